//! Answers to publishers: what is still waited for, and what they are told.

use codec::{Publish, QoS, Reason};
use session::{Link, Message, Respondent};

use crate::deliver::copies::Routed;
use crate::words::asked::Asked;

use crate::state::Context;
use crate::words::command::Answer;
use crate::words::expected::Expected;
use crate::{Confirm, Ended, Mail, SessionKey, Shard};

impl Shard {
    #[inline]
    pub(super) fn answer_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        if publish.qos != QoS::AtMostOnce {
            self.queue_answer(slot, publish, reason, asked);
        }
    }

    #[inline]
    pub(super) fn answer_routed(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        (routed, asked): (&Routed, Option<&mut Asked>),
    ) -> Result<(), Ended> {
        if let Some(reason) = routed.refused {
            return self.refuse_publish(slot, publish, message, reason).map(drop);
        }
        let reason = if routed.matched {
            Reason::SUCCESS
        } else {
            self.cx.metrics.publishes_unmatched.add(1);
            // A PUBREC only says that the message has come; subscribers are not its matter.
            match publish.qos {
                QoS::ExactlyOnce => Reason::SUCCESS,
                _ => Reason::NO_MATCHING_SUBSCRIBERS,
            }
        };
        self.answer_publish(slot, publish, reason, asked);
        Ok(())
    }

    fn queue_answer(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        let awaited = asked.and_then(Asked::take_awaited);
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        self.cx.buffers.lend(client);
        client.session.queue_answer(publish.qos, publish.packet_id, reason, awaited);
        client.mark_dirty(&mut self.cx);
    }

    /// Owes the answer to a publish whose packet id counts as accepted already.
    pub(super) fn queue_stored_answer(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        asked: Option<&mut Asked>,
    ) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        self.cx.buffers.lend(client);
        let awaited = asked.and_then(Asked::take_awaited);
        client.session.queue_stored_answer(publish.packet_id, awaited);
        client.mark_dirty(&mut self.cx);
    }

    /// PUBREL: PUBCOMP, once it is written down if the packet id is.
    pub(crate) fn on_pubrel(&mut self, slot: u32, packet_id: u16) {
        let Self { cx, sessions, log, .. } = self;
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        let (session, connection) = (client.key, client.connection);
        if !log.as_mut().is_some_and(|log| log.note_pubrel(session, connection, packet_id)) {
            client.session.on_pubrel(packet_id);
            client.mark_dirty(cx);
        }
    }

    /// A PUBREL is written down: PUBCOMP.
    pub(crate) fn complete_incoming(
        &mut self,
        (session, connection): (SessionKey, u64),
        packet_id: u16,
        serial: u64,
    ) {
        let Self { cx, sessions, log: Some(log), .. } = self else { return };
        let Some(slot) = sessions.slot_of(session) else { return };
        log.forget_received(slot, packet_id, serial);
        if log.kept.serial_of(slot, packet_id).is_some() {
            // A repeated PUBREL: the packet id has a new publish by now.
            return;
        }
        let Some(client) = sessions.get_mut(slot) else { return };
        if client.connection == connection {
            client.session.on_pubrel(packet_id);
            client.mark_dirty(cx);
        } else {
            // The next connection asks for itself, and may use the packet id for something else.
            client.session.incoming.release(packet_id);
        }
    }

    /// Answers for one place of a publish, to a publisher here or on another shard.
    pub(crate) fn confirm(&mut self, confirm: Confirm, reason: Reason) {
        if confirm.publisher.shard() == self.cx.id {
            self.on_confirmed(confirm, reason, None);
        } else {
            let mail = Mail::Confirmed { confirm, reason, refused: None };
            self.cx.send(confirm.publisher.shard(), mail);
        }
    }

    pub(crate) fn on_confirmed(
        &mut self,
        confirm: Confirm,
        reason: Reason,
        refused: Option<&Message>,
    ) {
        if confirm.serial != 0 {
            // A journal out of service holds nothing, so the publisher hears nothing.
            if reason != Reason::IMPLEMENTATION_SPECIFIC_ERROR {
                self.on_handed_over(confirm.serial, confirm.respondent);
            }
            return;
        }
        let Self { cx, sessions, .. } = self;
        // The session has ended since it published, or the publisher has none.
        let Some(client) = sessions.at(confirm.publisher) else {
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
        if reason == Reason::SERVER_SHUTTING_DOWN {
            // Whether another cell has delivered it is not known. On another connection the same
            // packet id counts as accepted: it must not be delivered twice (MQTT-4.3.3).
            reason = Reason::SUCCESS;
            if is_current {
                cx.doomed.push((client.key.slot(), Ended::CellLost));
                return;
            }
        }
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

    /// One more place has stored a message that was taken on.
    fn on_handed_over(&mut self, serial: u64, respondent: Respondent) {
        let confirm = self.log.as_mut().and_then(|log| log.handed_over(serial, respondent));
        self.answer_handed_over(confirm);
    }

    /// Some: all places have stored what it asks about.
    pub(crate) fn answer_handed_over(&mut self, confirm: Option<Confirm>) {
        if let Some(confirm) = confirm {
            self.on_confirmed(confirm, Reason::SUCCESS, None);
        }
    }
}

/// Why the connection ends if a publish was refused which nothing else reports.
pub(crate) fn end_of_refused(link: &Link) -> Option<Ended> {
    let ended = if link.is_v5() { Ended::JournalFailed } else { Ended::Refused };
    link.has_refused().then_some(ended)
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
