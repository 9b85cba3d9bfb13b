//! Ends of kept sessions on their way into the journal.
//!
//! A crash before the commit brings such a session back, and whoever has its client id would take
//! it for the one that it has opened since. So a client is sent nothing on its next connection, not
//! even its CONNACK, before the end is committed. Where the journal has no room for the end, or has
//! failed, nobody waits: what is full should not keep those away who free it.

use std::collections::BTreeMap;

use storage::{AppendError, Level, Status};

use crate::log::Durable;
use crate::log::facts::Fact;
use crate::log::postponed::Postponed;
use crate::log::promise::Promise;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::queue_number::QueueNumber;
use crate::{Ended, SessionKey};

/// The end of a kept session.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(crate) queue: QueueNumber,
    pub(crate) level: Level,
    /// The hash of its client id, if who has it next waits for the commit.
    pub(super) awaited_by: Option<u64>,
}

impl End {
    /// Of an older session than the one that was found with the same client id.
    pub(super) const fn of_namesake(queue: QueueNumber) -> Self {
        Self { queue, level: Level::Disk, awaited_by: None }
    }
}

/// The ends that clients wait for, by the hashes of their ids: two ids with one hash wait for each
/// other's. Bounded: each end has a promise, or a will that is written before it.
#[derive(Debug, Default)]
pub(crate) struct Ends {
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
    pub(crate) fn begin(&mut self, client: u64) {
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

impl Durable {
    /// A connection has opened its session. It gets its answer when the ends of those before it are
    /// committed.
    pub(crate) fn wait_for_ends(&mut self, sessions: &mut Sessions, slot: u32) {
        let (session, id_hash) = (sessions.key(slot), sessions.id_hash(slot));
        let Some(store) = &mut self.store else { return };
        let Some(client) = sessions.get_mut(slot) else { return };
        let connection = client.connection;
        let Some(link) = client.session.link_mut() else { return };
        if !matches!(store.journal.status(), Status::Full(_)) {
            link.is_told_nothing = store.ends.wait(id_hash, session, connection);
        }
    }

    /// Writes down that a session has ended, now or when there is room for it.
    pub(super) fn end_queue(&mut self, cx: &mut Context, sessions: &mut Sessions, end: End) {
        let Some(store) = &mut self.store else { return };
        let ended = Fact::SessionEnded { session: end.queue };
        match (store.append_deletion(&ended, end.level), end.awaited_by) {
            (Ok(position), Some(client)) => {
                self.promise(position, end.level, Promise::SessionEnded { client });
            }
            (Ok(_), None) => {}
            // The next file is being made: it is tried again as soon as that is there.
            (Err(AppendError::Backlog { .. }), _) => store.postponed.push(Postponed::End(end)),
            (Err(_), awaited_by) => {
                store.postponed.push(Postponed::End(End { awaited_by: None, ..end }));
                if let Some(client) = awaited_by {
                    self.finish_end(cx, sessions, client);
                }
            }
        }
    }

    /// The journal takes nothing any more for want of room: nobody waits for it.
    pub(super) fn wait_for_no_end(&mut self, cx: &mut Context, sessions: &mut Sessions) {
        let Some(store) = &mut self.store else { return };
        let late: Vec<u64> =
            store.postponed.ends().filter_map(|end| end.awaited_by.take()).collect();
        let waiting: Vec<_> =
            store.ends.under_way.values_mut().filter_map(|it| it.waits.take()).collect();
        late.into_iter().for_each(|client| self.finish_end(cx, sessions, client));
        for (session, connection) in waiting {
            sessions.open_outbox(cx, session, connection);
        }
    }

    /// The answer to the client may leave, once none of its ends is under way.
    pub(super) fn finish_end(&mut self, cx: &mut Context, sessions: &mut Sessions, client: u64) {
        let Some(store) = &mut self.store else { return };
        if let Some((session, connection)) = store.ends.finish(client) {
            sessions.open_outbox(cx, session, connection);
        }
    }
}

impl Sessions {
    fn open_outbox(&mut self, cx: &mut Context, session: SessionKey, connection: u64) {
        let Some(slot) = self.slot_of(session) else { return };
        let Some(link) = self.link(slot, connection) else { return };
        link.is_told_nothing = false;
        self.mark_dirty(cx, slot);
    }

    /// The connection waits for a journal that is out of service.
    pub(super) fn doom(&mut self, cx: &mut Context, session: SessionKey, connection: u64) {
        if let Some(slot) = self.slot_of(session)
            && self.link(slot, connection).is_some()
        {
            cx.doomed.push((slot, Ended::JournalFailed));
        }
    }
}

impl Durable {
    /// The journal is out of service: the ends are never committed.
    pub(super) fn break_ends(&mut self, cx: &mut Context, sessions: &mut Sessions) {
        let Some(store) = &mut self.store else { return };
        for under_way in std::mem::take(&mut store.ends.under_way).into_values() {
            if let Some((session, connection)) = under_way.waits {
                sessions.doom(cx, session, connection);
            }
        }
    }
}
