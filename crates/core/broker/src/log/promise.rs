//! What waits for a commit: acknowledgements first of all.

use std::collections::VecDeque;

use codec::{Ack, AckKind, Properties, Reason};
use policy::{Action, Identity};
use session::{Control, Message};
use storage::{Journal, Level, Position};

use crate::log::Durable;
use crate::log::streams::Ordered;
use crate::parts::client::Client;
use crate::parts::groups::Groups;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::{Confirm, Ended, Mail, SessionKey};

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
    pub(crate) fn next(&mut self, journal: &Journal) -> Option<Promise> {
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

    pub(super) fn next_broken(&mut self) -> Option<Promise> {
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

    /// The next promise that can be kept.
    pub(crate) fn next_promise(&mut self) -> Option<Promise> {
        let store = self.store.as_mut()?;
        store.promises.next(&store.journal)
    }

    /// Some: what waits for this session may go on.
    pub(crate) fn keep_promise(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        promise: Promise,
    ) -> Option<u32> {
        match promise {
            Promise::Confirm(confirm) => self.confirm(cx, sessions, confirm, Reason::SUCCESS),
            Promise::Send { session, packet_id } => {
                return self.send_committed(cx, sessions, session, packet_id);
            }
            Promise::Received { session, packet_id } => {
                sessions.release_outgoing(cx, session, packet_id);
            }
            Promise::Released { session, connection, packet_id, serial } => {
                self.complete_incoming(cx, sessions, session, connection, packet_id, serial);
            }
            Promise::Packet { session, connection, packet } => {
                let client = sessions.at(session).filter(|c| c.connection == connection)?;
                let link = client.session.link_mut()?;
                link.outbox.append(|out| out.extend_from_slice(&packet));
                let first = packet.first().copied().unwrap_or_default();
                link.outbox.note_control(Control::of_first_byte(first));
                client.mark_dirty(cx);
            }
            Promise::Order(ordered) => self.on_ordered(cx, ordered),
            Promise::SessionEnded { client } => self.finish_end(cx, sessions, client),
        }
        None
    }

    /// The journal is out of service: what waits for it never gets a success.
    pub(super) fn break_promises(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
    ) {
        while let Some(store) = &mut self.store
            && let Some(promise) = store.promises.next_broken()
        {
            match promise {
                Promise::Confirm(confirm) => {
                    self.confirm(cx, sessions, confirm, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
                }
                Promise::Packet { session, connection, .. } => {
                    sessions.doom(cx, session, connection);
                }
                // Half of a QoS 2 exchange: the client repeats its part with its next connection.
                Promise::Send { .. } | Promise::Received { .. } | Promise::Released { .. } => {}
                Promise::Order(ordered) => self.break_order(cx, ordered),
                Promise::SessionEnded { .. } => {}
            }
        }
        self.break_ends(cx, sessions);
        self.break_postponed(cx, sessions);
        self.break_line(cx, sessions, groups, retained);
    }

    /// The packet id of a QoS 2 delivery is kept: it may leave, and what was withheld behind it.
    /// Some: the session has to go on by itself.
    fn send_committed(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        session: SessionKey,
        packet_id: u16,
    ) -> Option<u32> {
        let now_ms = cx.now_ms;
        let metrics = &cx.metrics;
        let client = sessions.at(session)?;
        let mut given_up = Vec::new();
        let Client { session, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        let is_of_this_link =
            session.commit(packet_id, now_ms, may_have, |outcome| match outcome {
                Ok(sent) => metrics.count_sent(sent),
                Err(reason) => given_up.push(reason),
            });
        client.mark_dirty(cx);
        if is_of_this_link && given_up.is_empty() {
            return None;
        }
        client.note_given_up(cx, self, given_up);
        // What belongs to an earlier link leaves with the resends.
        Some(client.key.slot())
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
    pub(super) fn complete_incoming(
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
        let durable = self.kept.get(slot);
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

impl Sessions {
    /// A PUBREC is kept: PUBREL.
    fn release_outgoing(&mut self, cx: &mut Context, session: SessionKey, packet_id: u16) {
        let Some(client) = self.at(session) else { return };
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if let Err(violation) = client.session.on_ack(&ack) {
            cx.doomed.push((session.slot(), Ended::Violation(violation)));
        }
        client.mark_dirty(cx);
    }
}
