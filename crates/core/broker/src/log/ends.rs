//! Ends of kept sessions on their way into the journal.
//!
//! A crash before the commit brings such a session back, and whoever has its client id would take
//! it for the one that it has opened since. So a client is sent nothing on its next connection, not
//! even its CONNACK, before the end is committed. Where the journal has no room for the end, or has
//! failed, nobody waits: what is full should not keep those away who free it.

use std::collections::BTreeMap;

use storage::{AppendError, Level, Status};

use crate::SessionKey;
use crate::log::Log;
use crate::log::facts::Fact;
use crate::log::postponed::Postponed;
use crate::log::promise::Promise;
use crate::words::queue_number::QueueNumber;

/// The end of a kept session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(super) queue: QueueNumber,
    pub(super) level: Level,
    /// The hash of its client id, if who has it next waits for the commit.
    pub(crate) awaited_by: Option<u64>,
}

impl End {
    /// Of an older session than the one that was found with the same client id.
    pub(crate) const fn of_namesake(queue: QueueNumber) -> Self {
        Self { queue, level: Level::Disk, awaited_by: None }
    }
}

/// The ends that clients wait for, by the hashes of their ids: two ids with one hash wait for each
/// other's. Bounded: each end has a promise, or a will that is written before it.
#[derive(Debug, Default)]
pub(super) struct Ends {
    under_way: BTreeMap<u64, UnderWay>,
}

#[derive(Debug, Default)]
struct UnderWay {
    /// Ends that are not committed: the id may have had several sessions since.
    ends: u32,
    /// The session and connection that have the id now.
    waits: Option<(SessionKey, u64)>,
}

impl Ends {
    pub(super) fn begin(&mut self, client: u64) {
        self.under_way.entry(client).or_default().ends += 1;
    }

    /// The journal has one end more. Returns who waits no longer.
    fn finish(&mut self, client: u64) -> Option<(SessionKey, u64)> {
        let under_way = self.under_way.get_mut(&client)?;
        under_way.ends -= 1;
        if under_way.ends > 0 {
            return None;
        }
        self.under_way.remove(&client)?.waits
    }

    /// False: there is nothing to wait for.
    fn wait(&mut self, client: u64, session: SessionKey, connection: u64) -> bool {
        let under_way = self.under_way.get_mut(&client);
        under_way.map(|it| it.waits = Some((session, connection))).is_some()
    }
}

impl Log {
    /// A connection has opened the session of a client. True: it gets its answer when the ends of
    /// those before it are committed.
    pub(crate) fn waits_for_ends(
        &mut self,
        client: u64,
        session: SessionKey,
        connection: u64,
    ) -> bool {
        !matches!(self.status(), Status::Full(_))
            && self.store.ends.wait(client, session, connection)
    }

    /// Writes down that a session has ended, now or when there is room for it. Returns the client
    /// that does not wait for it any longer.
    pub(crate) fn write_end(&mut self, end: End) -> Option<u64> {
        let ended = Fact::SessionEnded { session: end.queue };
        match (self.store.append_deletion(&ended, end.level), end.awaited_by) {
            (Ok(position), Some(client)) => {
                self.promise(position, end.level, Promise::SessionEnded { client });
                None
            }
            (Ok(_), None) => None,
            // The next file is being made: it is tried again as soon as that is there.
            (Err(AppendError::Backlog { .. }), _) => {
                self.store.postponed.push(Postponed::End(end));
                None
            }
            (Err(_), awaited_by) => {
                self.store.postponed.push(Postponed::End(End { awaited_by: None, ..end }));
                awaited_by
            }
        }
    }

    /// An end of a session of this client is written, or given up. Returns who has the client id
    /// now and waits no longer: session and connection.
    pub(crate) fn finish_end(&mut self, client: u64) -> Option<(SessionKey, u64)> {
        self.store.ends.finish(client)
    }

    /// The journal takes nothing any more for want of room: nobody waits for it. Returns those who
    /// did.
    pub(crate) fn wait_for_no_end(&mut self) -> Vec<(SessionKey, u64)> {
        let late: Vec<u64> =
            self.store.postponed.ends().filter_map(|end| end.awaited_by.take()).collect();
        let under_way = self.store.ends.under_way.values_mut();
        let waiting = under_way.filter_map(|it| it.waits.take()).collect();
        for client in late {
            self.store.ends.finish(client);
        }
        waiting
    }

    /// The journal is out of service: the ends are never committed. Returns who waits for them.
    pub(crate) fn break_ends(&mut self) -> Vec<(SessionKey, u64)> {
        let under_way = std::mem::take(&mut self.store.ends.under_way);
        under_way.into_values().filter_map(|it| it.waits).collect()
    }
}
