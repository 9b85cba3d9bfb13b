//! What clients are sent, and how their acknowledgements are dealt with.

use codec::Reason;
use policy::{Action, Identity};
use session::{Dropped, Link, Message, Origin, Respondent};

use crate::log::Durable;
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::command::Answer;
use crate::words::expected::Expected;
use crate::{Confirm, Ended, SessionKey};

impl Sessions {
    /// PUBREL: PUBCOMP, once it is written down if the packet id is.
    pub(crate) fn on_pubrel(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        slot: u32,
        packet_id: u16,
    ) {
        let Some(client) = self.get_mut(slot).expected() else { return };
        if !durable.keep_pubrel(client, packet_id) {
            client.session.on_pubrel(packet_id);
            client.mark_dirty(cx);
        }
    }

    pub(crate) fn on_confirmed(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        confirm: Confirm,
        reason: Reason,
        refused: Option<&Message>,
    ) {
        if confirm.serial != 0 {
            // A journal out of service holds nothing, so the publisher hears nothing.
            if reason != Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                durable.on_handed_over(cx, self, confirm.serial, confirm.respondent);
            }
            return;
        }
        // The session has ended since it published, or the publisher has none.
        let Some(client) = self.at(confirm.publisher) else {
            return cx.on_confirmed_to_operator(&confirm, reason);
        };
        let mut reason = reason;
        if let Some(message) = refused {
            client.note_refused(cx, message);
        }
        if confirm.is_again {
            if reason == Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                return;
            }
            // The publish itself was accepted: a limit on what is retained is not its matter.
            reason = Reason::SUCCESS;
        }
        let is_current = client.connection == confirm.connection && client.session.is_online();
        cx.buffers.lend(client);
        let Confirm { connection, ack_number, respondent, .. } = confirm;
        if is_current {
            client.session.settle(ack_number, respondent, reason);
        } else {
            let awaited_as = (connection, ack_number);
            let incoming = &mut client.session.incoming;
            let heir = incoming.settle_orphan(awaited_as, respondent, reason.is_error());
            let Some(number) = heir else { return };
            client.session.settle(number, Respondent::FIRST, reason);
        }
        if let Some(ended) = client.session.link().and_then(end_of_refused) {
            cx.doomed.push((client.key.slot(), ended));
        }
        client.mark_dirty(cx);
    }
}

/// Why the connection ends if a publish was refused which nothing else reports.
pub(crate) fn end_of_refused(link: &Link) -> Option<Ended> {
    let ended = if link.is_v5() { Ended::JournalFailed } else { Ended::Refused };
    link.has_refused().then_some(ended)
}

impl Client {
    /// Deliveries are over that the client could not be sent.
    pub(crate) fn note_given_up(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        given_up: Vec<(Dropped, Origin)>,
    ) {
        for (reason, origin) in given_up {
            if reason == Dropped::Denied && durable.release_denied(cx, self, origin) {
                // It is in flight until the client has answered.
            } else if origin.serial != 0 && origin.group == 0 {
                durable.finish_delivery(self, origin.serial);
            } else {
                // What rules keep from one member may be for another.
                let is_done = reason != Dropped::Denied;
                cx.notify_home(origin.group, origin.serial, is_done);
            }
            self.note_dropped(cx, reason);
        }
    }

    /// Moves on what the session itself has, as far as there is room: resends and its queue.
    pub(crate) fn pump(&mut self, cx: &mut Context, durable: &mut Durable) {
        let metrics = &cx.metrics;
        let mut given_up: Vec<(Dropped, Origin)> = Vec::new();
        let before = self.session.link().map_or(0, |link| link.outbox.len());
        let Self { session, grants, id, username, principal, rechecks, .. } = self;
        let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
        let may_have = |message: &Message| {
            !*rechecks || grants.allows(identity, Action::Receive, message.topic())
        };
        session.pump(cx.now_ms, may_have, |outcome| match outcome {
            Ok(sent) => metrics.count_sent(sent),
            Err(reason) => given_up.push(reason),
        });
        let outgoing = &self.session.outgoing;
        let waits = outgoing.queued() > 0 || outgoing.has_unsent() || outgoing.has_withheld();
        self.rechecks &= waits;
        let after = self.session.link().map_or(0, |link| link.outbox.len());
        self.publish_load();
        if !cx.flow.pauses.is_empty() {
            self.check_pause(cx, durable.backlog(self));
        }
        if after > before {
            self.mark_dirty(cx);
        }
        self.note_given_up(cx, durable, given_up);
    }
}

impl Context {
    /// Stands for the publisher of a publish that has no session: no session has this generation.
    pub(crate) const fn operator(&self) -> SessionKey {
        SessionKey::new(self.id, 0, 1)
    }

    /// One has answered to a publisher that is no session.
    #[cold]
    pub(crate) fn on_confirmed_to_operator(&mut self, confirm: &Confirm, reason: Reason) {
        if confirm.publisher != self.operator() {
            return;
        }
        let number = confirm.connection;
        if let Some(pending) = self.publications.pending.get_mut(&number)
            && pending.awaited.remove(confirm.respondent)
        {
            // A refusal by any of them counts; that it has no subscriber does not.
            if reason.is_error() && !pending.reason.is_error() {
                pending.reason = reason;
            }
            self.answer_publication(number);
        }
    }

    pub(crate) fn answer_publication(&mut self, number: u64) {
        let Some(pending) = self.publications.pending.get(&number) else { return };
        if pending.awaited.is_empty() {
            let (ticket, answer) = (pending.ticket, Answer::Published(pending.reason));
            self.publications.pending.remove(&number);
            self.effects.answers.push((ticket, answer));
        }
    }
}
