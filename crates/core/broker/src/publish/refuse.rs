//! A PUBLISH that goes no further, and what its publisher is told.

use codec::{Publish, QoS, Reason, Violation};
use policy::Manner;
use session::Message;

use crate::parts::client::{Client, Pace};
use crate::parts::notices::NoticeKind;
use crate::parts::sessions::Sessions;
use crate::publish::answer::end_of_refused;
use crate::publish::check::Checked;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::{Ended, Shard};

impl Shard {
    /// What was not accepted.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        checked: Checked,
    ) -> Result<Pace, Ended> {
        match checked {
            Checked::Repeat(retained) => {
                self.on_repeat(slot, publish, retained.as_ref());
                Ok(Pace::default())
            }
            Checked::Deny(topic) => self.deny_publish(slot, publish, &topic),
            Checked::Invalid(violation) => self.refuse_topic(slot, publish, violation),
            Checked::Unknown(message) => self.refuse_unknown(slot, publish, &message),
            Checked::Refuse(message) | Checked::Accept(message, _) => {
                self.refuse_publish(slot, publish, &message, Reason::QUOTA_EXCEEDED)
            }
        }
    }

    fn answer_refused(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
    ) -> Result<Pace, Ended> {
        self.answer_publish(slot, publish, reason, None);
        self.sessions.after_refusal(slot)
    }

    /// Not allowed: MQTT 5 clients get the reason, others get a success, as the standard has no
    /// other word for them (MQTT-3.3.5-2 of 3.1.1 allows either this or closing). A name that is
    /// reserved is well-formed and not accepted, which 0x90 says.
    fn deny_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        topic: &str,
    ) -> Result<Pace, Ended> {
        self.cx.metrics.publishes_denied.add(1);
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_as(&mut self.cx, NoticeKind::Denied("publish"), topic, manner);
        }
        let reason = match topic::reserved(topic) {
            Some(_) => Reason::TOPIC_NAME_INVALID,
            None => Reason::NOT_AUTHORIZED,
        };
        if reason == Reason::NOT_AUTHORIZED && self.cx.shared.settings.denied_ends {
            return Err(Ended::Denied);
        }
        let reason = self.sessions.reason_for(slot, reason);
        self.answer_publish(slot, publish, reason, None);
        Ok(Pace::default())
    }

    /// No room: refused with 0x97, or by closing the connection of a 3.1.1 client, which then sends
    /// the message again.
    pub(super) fn refuse_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        reason: Reason,
    ) -> Result<Pace, Ended> {
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_refused(&mut self.cx, message);
        }
        self.cx.note_span_refused(message, reason);
        self.answer_refused(slot, publish, reason)
    }

    fn refuse_topic(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        violation: Violation,
    ) -> Result<Pace, Ended> {
        let is_v5 = self.sessions.get(slot).is_some_and(is_v5);
        if is_v5 && publish.qos != QoS::AtMostOnce && violation.clause.is_empty() {
            self.answer_publish(slot, publish, violation.reason, None);
            return Ok(Pace::default());
        }
        Err(Ended::Violation(violation))
    }

    /// Nobody knows whether it is allowed: to say that it was taken would lose it.
    fn refuse_unknown(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
        self.cx.metrics.publishes_denied.add(1);
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        let reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;
        self.cx.note_span_refused(message, reason);
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_as(&mut self.cx, NoticeKind::Denied("publish"), message.topic(), manner);
            self.cx.buffers.lend(client);
            client.session.queue_refusal(publish.qos, publish.packet_id, reason);
            client.mark_dirty(&mut self.cx);
        }
        self.sessions.after_refusal(slot)
    }
}

impl Sessions {
    /// Clients of 3.1.1 are disconnected when the publishes before have been answered, and so are
    /// publishers of QoS 2 on a log that is out of service.
    fn after_refusal(&mut self, slot: u32) -> Result<Pace, Ended> {
        let link = self.get_mut(slot).and_then(|client| client.session.link_mut());
        // What the message led to has ended the connection.
        let Some(link) = link else { return Ok(Pace::default()) };
        if link.is_lost {
            link.refuse_rest();
        }
        end_of_refused(link).map_or(Ok(Pace::default()), Err)
    }

    fn reason_for(&self, slot: u32, reason: Reason) -> Reason {
        match self.get(slot) {
            Some(client) if is_v5(client) => reason,
            _ => Reason::SUCCESS,
        }
    }
}

impl Client {
    /// Counts a message that is refused to its publisher, and reports the publisher.
    pub(super) fn note_refused(&mut self, cx: &mut Context, message: &Message) {
        cx.metrics.publishes_refused.add(1);
        self.note(cx, NoticeKind::Refused, message.topic());
    }
}

fn is_v5(client: &Client) -> bool {
    client.session.link().is_some_and(session::Link::is_v5)
}
