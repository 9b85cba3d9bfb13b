//! What waits for a commit: acknowledgements first of all.

use std::collections::VecDeque;

use codec::Reason;
use storage::{Level, Log, Position};

use crate::clients::Sessions;
use crate::durable::Durable;
use crate::shard::context::Context;
use crate::{Confirm, Mail, SessionKey};

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
    /// The end of a session: who has its client id now is told what waits.
    SessionEnded { client: u64 },
}

/// What waits, in the order of the log, per level.
///
/// Bounded by what the clients may have unacknowledged: each promise is one packet of theirs.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    disk: VecDeque<(Position, Promise)>,
    fsync: VecDeque<(Position, Promise)>,
}

impl Promises {
    pub(crate) fn push(&mut self, position: Position, level: Level, promise: Promise) {
        match level {
            Level::Disk => self.disk.push_back((position, promise)),
            Level::Fsync => self.fsync.push_back((position, promise)),
        }
    }

    /// The next promise that can be kept.
    pub(crate) fn next(&mut self, log: &Log) -> Option<Promise> {
        let is_due = |queue: &VecDeque<(Position, Promise)>, level| {
            queue.front().is_some_and(|(position, _)| log.is_committed(*position, level))
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

    pub(crate) fn next_broken(&mut self) -> Option<Promise> {
        let broken = self.disk.pop_front().or_else(|| self.fsync.pop_front());
        broken.map(|(_, promise)| promise)
    }
}

impl Durable {
    pub(crate) fn promise(&mut self, position: Position, level: Level, promise: Promise) {
        if let Some(store) = &mut self.store {
            store.promises.push(position, level, promise);
        }
    }

    /// Answers for one place of a publish, here or on another shard.
    pub(crate) fn confirm(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        confirm: Confirm,
        reason: Reason,
    ) {
        if confirm.publisher.shard() == cx.id {
            sessions.on_confirmed(cx, self, confirm, reason, None);
        } else {
            let mail = Mail::Confirmed { confirm, reason, refused: None };
            cx.send(confirm.publisher.shard(), mail);
        }
    }

    /// A PUBREL is kept: PUBCOMP.
    pub(crate) fn complete_incoming(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        session: SessionKey,
        connection: u64,
        packet_id: u16,
        serial: u64,
    ) {
        let Some(slot) = sessions.slot_of(session) else { return };
        self.forget_received(sessions, slot, packet_id, serial);
        let durable = sessions.get(slot).and_then(|client| client.durable.as_ref());
        if durable.is_some_and(|durable| durable.received(packet_id).is_some()) {
            // A repeated PUBREL: the packet id has a new publish by now.
            return;
        }
        let Some(client) = sessions.get_mut(slot) else { return };
        if client.connection == connection {
            client.session.on_pubrel(packet_id);
            sessions.mark_dirty(cx, slot);
        } else {
            // The next connection asks for itself, and may use the packet id for something else.
            client.session.incoming.release(packet_id);
        }
    }
}
