//! What waits for a commit: acknowledgements first of all.

use std::collections::VecDeque;

use storage::{Journal, Level, Position};

use crate::log::Log;
use crate::log::streams::Ordered;
use crate::{Confirm, SessionKey};

/// What may be done once a fact is committed.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    /// One of the places that a publish waits for has it.
    Confirm(Confirm),
    /// The packet id of a QoS 2 delivery: the PUBLISH may leave.
    Send { session: SessionKey, packet_id: u16 },
    /// A PUBREC: the PUBREL may leave.
    Received { session: SessionKey, packet_id: u16 },
    /// A PUBREL: the PUBCOMP may leave.
    Released { session: SessionKey, connection: u64, packet_id: u16, serial: u64 },
    /// A packet as it stands: SUBACK, UNSUBACK.
    Packet { session: SessionKey, connection: u64, packet: Box<[u8]> },
    /// What the owner of streams has ordered.
    Order(Ordered),
    /// The end of a session: the client with its id now gets what waits.
    SessionEnded { client: u64 },
}

/// What waits, in the order of the journal, per level.
///
/// Bounded by what the clients may have unacknowledged: each promise is one packet of theirs.
#[derive(Debug, Default)]
pub(super) struct Promises {
    disk: VecDeque<(Position, Promise)>,
    fsync: VecDeque<(Position, Promise)>,
}

impl Promises {
    pub(crate) fn push(&mut self, position: Position, level: Level, promise: Promise) {
        match level {
            Level::Lazy | Level::Disk => self.disk.push_back((position, promise)),
            Level::Fsync => self.fsync.push_back((position, promise)),
        }
    }

    /// The next promise that can be kept.
    fn next(&mut self, journal: &Journal) -> Option<Promise> {
        let is_due = |queue: &VecDeque<(Position, Promise)>, level| {
            queue.front().is_some_and(|(position, _)| journal.is_committed(*position, level))
        };
        let next = if is_due(&self.disk, Level::Disk) {
            self.disk.pop_front()
        } else if is_due(&self.fsync, Level::Fsync) {
            self.fsync.pop_front()
        } else {
            None
        };
        next.map(|(_, promise)| promise)
    }

    fn next_broken(&mut self) -> Option<Promise> {
        let broken = self.disk.pop_front().or_else(|| self.fsync.pop_front());
        broken.map(|(_, promise)| promise)
    }
}

impl Log {
    /// This may be done once the position is committed at the level.
    pub(crate) fn promise(&mut self, position: Position, level: Level, promise: Promise) {
        self.store.promises.push(position, level, promise);
    }

    /// The next promise that can be kept.
    pub(crate) fn next_promise(&mut self) -> Option<Promise> {
        self.store.promises.next(&self.store.journal)
    }

    /// The journal is out of service: what waits for it never gets a success.
    pub(crate) fn next_broken_promise(&mut self) -> Option<Promise> {
        self.store.promises.next_broken()
    }
}
