//! What waits for a commit: acknowledgements first of all.

use std::collections::VecDeque;

use codec::{Ack, AckKind, Properties, Reason};
use session::Message;
use storage::{Level, Log, Position};

use crate::clients::client::Client;
use crate::shard::shared::LogState;
use crate::{Confirm, Ended, Mail, SessionKey, Shard};
use policy::{Action, Identity};

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
    fn next(&mut self, log: &Log) -> Option<Promise> {
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

    fn next_broken(&mut self) -> Option<Promise> {
        let broken = self.disk.pop_front().or_else(|| self.fsync.pop_front());
        broken.map(|(_, promise)| promise)
    }
}

impl Shard {
    pub(crate) fn promise(&mut self, position: Position, level: Level, promise: Promise) {
        if let Some(store) = &mut self.store {
            store.promises.push(position, level, promise);
        }
    }

    /// Does what has waited for what is committed by now.
    pub(crate) fn keep_promises(&mut self, now_ms: u64) {
        while let Some(store) = &mut self.store
            && let Some(promise) = store.promises.next(&store.log)
        {
            self.keep_promise(promise, now_ms);
        }
        self.pass_on_line(now_ms);
    }

    fn keep_promise(&mut self, promise: Promise, now_ms: u64) {
        match promise {
            Promise::Confirm(confirm) => self.confirm(confirm, Reason::SUCCESS, now_ms),
            Promise::Send { session, packet_id } => {
                self.send_committed(session, packet_id, now_ms);
            }
            Promise::Received { session, packet_id } => {
                self.release_outgoing(session, packet_id, now_ms);
            }
            Promise::Released { session, connection, packet_id, serial } => {
                self.complete_incoming(session, connection, packet_id, serial);
            }
            Promise::Packet { session, connection, packet } => {
                let Some(slot) = self.clients.slot_of(session) else { return };
                let Some(link) = self.link(slot, connection) else { return };
                link.outbox.append(|out| out.extend_from_slice(&packet));
                link.outbox.note_control();
                self.mark_dirty(slot);
            }
            Promise::SessionEnded { client } => self.finish_end(client),
        }
    }

    /// The log is out of service: what waits for it never gets a success.
    pub(crate) fn break_promises(&mut self, now_ms: u64) {
        while let Some(store) = &mut self.store
            && let Some(promise) = store.promises.next_broken()
        {
            match promise {
                Promise::Confirm(confirm) => {
                    self.confirm(confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR, now_ms);
                }
                Promise::Packet { session, connection, .. } => {
                    if let Some(slot) = self.clients.slot_of(session)
                        && self.link(slot, connection).is_some()
                    {
                        self.doomed.push((slot, Ended::LogFailed));
                    }
                }
                // Half of a QoS 2 exchange: the client repeats its part with its next connection.
                Promise::Send { .. } | Promise::Received { .. } | Promise::Released { .. } => {}
                Promise::SessionEnded { .. } => {}
            }
        }
        self.break_ends();
        self.break_late(now_ms);
        self.break_line(now_ms);
    }

    /// Answers for one place of a publish, here or on another shard.
    pub(crate) fn confirm(&mut self, confirm: Confirm, reason: Reason, now_ms: u64) {
        if confirm.publisher.shard() == self.id {
            self.on_confirmed(confirm, reason, None, now_ms);
        } else {
            let mail = Mail::Confirmed { confirm, reason, refused: None };
            self.send(confirm.publisher.shard(), mail);
        }
    }

    /// The packet id of a QoS 2 delivery is kept: it may leave, and what was held behind it.
    fn send_committed(&mut self, session: SessionKey, packet_id: u16, now_ms: u64) {
        let metrics = &self.metrics;
        let Some(slot) = self.clients.slot_of(session) else { return };
        let Some(client) = self.clients.get_mut(slot) else { return };
        let mut given_up = Vec::new();
        let Client { session, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        let is_of_this_link =
            session.commit(packet_id, now_ms, may_have, |outcome| match outcome {
                Ok(payload_bytes) => {
                    metrics.publishes_sent.add(1);
                    metrics.publish_bytes_sent.add(payload_bytes as u64);
                }
                Err(reason) => given_up.push(reason),
            });
        self.mark_dirty(slot);
        if is_of_this_link && given_up.is_empty() {
            return;
        }
        self.note_given_up(slot, given_up, now_ms);
        // What belongs to an earlier link leaves with the resends.
        self.pump(slot, now_ms);
    }

    /// A PUBREC is kept: PUBREL.
    fn release_outgoing(&mut self, session: SessionKey, packet_id: u16, now_ms: u64) {
        let Some(slot) = self.clients.slot_of(session) else { return };
        let Some(client) = self.clients.get_mut(slot) else { return };
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if let Err(violation) = client.session.on_ack(&ack) {
            self.end(slot, Ended::Violation(violation), now_ms);
        }
        self.mark_dirty(slot);
    }

    /// A PUBREL is kept: PUBCOMP.
    fn complete_incoming(
        &mut self,
        session: SessionKey,
        connection: u64,
        packet_id: u16,
        serial: u64,
    ) {
        let Some(slot) = self.clients.slot_of(session) else { return };
        self.forget_received(slot, packet_id, serial);
        let durable = self.clients.get(slot).and_then(|client| client.durable.as_ref());
        if durable.is_some_and(|durable| durable.received(packet_id).is_some()) {
            // A repeated PUBREL: the packet id has a new publish by now.
            return;
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.connection == connection {
            client.session.on_pubrel(packet_id);
            self.mark_dirty(slot);
        } else {
            // The next connection asks for itself, and may use the packet id for something else.
            client.session.incoming.release(packet_id);
        }
    }

    /// Looks at the state of the log, and does once what follows from a change of it.
    pub(crate) fn note_log_status(&mut self, now_ms: u64) {
        let Some(store) = &mut self.store else { return };
        let status = store.log.status();
        let is_poisoned = status.is_out_of_service();
        let state = LogState {
            full: matches!(status, storage::Status::Full(_)),
            poisoned: is_poisoned,
            behind: store.is_behind(),
            space: store.space_left(),
        };
        self.shared.set_log_state(self.id, state);
        if status == store.told {
            return;
        }
        store.told = status;
        if is_poisoned {
            self.break_promises(now_ms);
        } else if state.full {
            self.wait_for_no_end();
        }
        let undetached = match &mut self.store {
            Some(store) => std::mem::take(&mut store.undetached),
            None => return,
        };
        self.resume_handovers(now_ms);
        for slot in undetached {
            if self.clients.get(slot).is_some_and(|client| !client.is_connected()) {
                self.keep_detached(slot, now_ms);
            }
        }
    }
}
