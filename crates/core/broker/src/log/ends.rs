//! Ends of kept sessions on their way into the journal.
//!
//! A crash before the commit brings such a session back, and whoever has its client id would take
//! it for the one that it has opened since. So a client is sent nothing on its next connection, not
//! even its CONNACK, before the end is committed. Where the journal has no room for the end, or has
//! failed, nobody waits: what is full should not keep those away who free it.

use std::collections::BTreeMap;

use storage::Level;

use crate::SessionKey;
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
    pub(super) under_way: BTreeMap<u64, UnderWay>,
}

#[derive(Debug, Default)]
pub(super) struct UnderWay {
    /// Ends that are not committed: the id may have had several sessions since.
    ends: u32,
    /// The session and connection that have the id now.
    pub(super) waits: Option<(SessionKey, u64)>,
}

impl Ends {
    pub(super) fn begin(&mut self, client: u64) {
        self.under_way.entry(client).or_default().ends += 1;
    }

    /// The journal has one end more. Returns who waits no longer.
    pub(super) fn finish(&mut self, client: u64) -> Option<(SessionKey, u64)> {
        let under_way = self.under_way.get_mut(&client)?;
        under_way.ends -= 1;
        if under_way.ends > 0 {
            return None;
        }
        self.under_way.remove(&client)?.waits
    }

    /// False: there is nothing to wait for.
    pub(super) fn wait(&mut self, client: u64, session: SessionKey, connection: u64) -> bool {
        let under_way = self.under_way.get_mut(&client);
        under_way.map(|it| it.waits = Some((session, connection))).is_some()
    }
}
