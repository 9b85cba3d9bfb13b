//! What a session has itself, moved on as far as there is room: resends and its queue.

use codec::{Ack, AckKind, Properties, Reason};
use policy::{Action, Identity};
use session::{Dropped, Message, Origin};

use crate::log::sent::is_logged;
use crate::parts::client::Client;
use crate::words::expected::Expected;
use crate::{Ended, SessionKey, Shard};

impl Shard {
    /// Moves on resends, the queue in memory and what waits in the log.
    pub(crate) fn pump_deliveries(&mut self, slot: u32) {
        self.pump_session(slot);
        while self.supply_in_flight(slot) || self.dispatch_unlogged(slot) {
            self.pump_session(slot);
        }
        self.pump_backlog(slot);
    }

    fn pump_session(&mut self, slot: u32) {
        let Self { cx, sessions, log, .. } = self;
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let metrics = &cx.metrics;
        let mut given_up: Vec<(Dropped, Origin)> = Vec::new();
        let before = client.session.link().map_or(0, |link| link.outbox.len());
        let Client { session, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        session.pump(cx.now_ms, may_have, |outcome| match outcome {
            Ok(sent) => metrics.count_sent(sent),
            Err(reason) => given_up.push(reason),
        });
        let outgoing = &client.session.outgoing;
        let waits = outgoing.queued() > 0 || outgoing.has_unsent() || outgoing.has_withheld();
        client.rechecks &= waits;
        let after = client.session.link().map_or(0, |link| link.outbox.len());
        client.publish_load();
        if !cx.flow.pauses.is_empty() {
            client.check_pause(cx, client.backlog(log.as_deref()));
        }
        if after > before {
            client.mark_dirty(cx);
        }
        if !given_up.is_empty() {
            self.note_given_up(slot, given_up);
        }
    }

    /// Deliveries are over that the client could not be sent.
    pub(crate) fn note_given_up(&mut self, slot: u32, given_up: Vec<(Dropped, Origin)>) {
        for (reason, origin) in given_up {
            if reason == Dropped::Denied && self.release_denied(slot, origin) {
                // It is in flight until the client has answered.
            } else {
                // What rules keep from one member may be for another.
                let is_done = is_logged(origin) || reason != Dropped::Denied;
                self.finish_delivery(slot, origin, is_done);
            }
            if let Some(client) = self.sessions.get_mut(slot) {
                client.note_dropped(&mut self.cx, reason);
            }
        }
    }

    /// The packet id of a QoS 2 delivery is kept: it may leave, and what was withheld behind it.
    /// True: the session has to go on by itself.
    pub(crate) fn send_committed(&mut self, session: SessionKey, packet_id: u16) -> bool {
        let Self { cx, sessions, .. } = self;
        let metrics = &cx.metrics;
        let Some(client) = sessions.at(session) else { return false };
        let mut given_up = Vec::new();
        let Client { session: own, grants, id, username, principal, rechecks, .. } = client;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        let is_of_this_link = own.commit(packet_id, cx.now_ms, may_have, |outcome| match outcome {
            Ok(sent) => metrics.count_sent(sent),
            Err(reason) => given_up.push(reason),
        });
        client.mark_dirty(cx);
        if is_of_this_link && given_up.is_empty() {
            return false;
        }
        self.note_given_up(session.slot(), given_up);
        // What belongs to an earlier link leaves with the resends.
        true
    }

    /// A PUBREC is kept: PUBREL.
    pub(crate) fn release_outgoing(&mut self, session: SessionKey, packet_id: u16) {
        let Self { cx, sessions, .. } = self;
        let Some(client) = sessions.at(session) else { return };
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if let Err(violation) = client.session.on_ack(&ack) {
            cx.doomed.push((session.slot(), Ended::Violation(violation)));
        }
        client.mark_dirty(cx);
    }
}
