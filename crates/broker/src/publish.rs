//! From a PUBLISH to the shards that want it.

use codec::{Property, Publish, QoS, Reason, Violation};
use session::{Inbound, Message, MessageParts, NEVER};

use crate::access::Action;
use crate::client::Client;
use crate::{Confirm, Ended, Event, Mail, SessionKey, Shard};

/// Where a routed message is awaited, and by how many places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Routed {
    matched: bool,
    refused: bool,
    /// Shards that will answer.
    waiting: u16,
}

/// What the checks of a PUBLISH came to.
enum Checked {
    Accept(Message),
    Repeat,
    Deny(Box<str>),
    Invalid(Violation),
}

impl Shard {
    pub(crate) fn on_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        now_ms: u64,
    ) -> Result<(), Ended> {
        let metrics = self.metrics();
        metrics.publishes_received.add(1);
        metrics.publish_bytes_received.add(publish.payload.len() as u64);
        let key = self.key(slot);
        let Some(client) = self.clients.get_mut(slot) else { return Ok(()) };
        let checked = check(client, publish, &mut self.properties, key, now_ms)?;
        let message = match checked {
            Checked::Accept(message) => message,
            Checked::Repeat => {
                self.answer_publish(slot, publish, Reason::SUCCESS, 0);
                return Ok(());
            }
            Checked::Deny(topic) => return self.deny_publish(slot, publish, topic),
            Checked::Invalid(violation) => return self.refuse_topic(slot, publish, violation),
        };
        if self.shared.memory_is_short() {
            return self.refuse_publish(slot, publish, &message);
        }
        let confirm = self.confirm_of(slot, publish);
        self.holds_own = publish.qos != QoS::AtMostOnce;
        let routed = self.route(&message, confirm, now_ms);
        self.holds_own = false;
        let outcome = self.answer_routed(slot, publish, &message, routed);
        self.deliver_own(slot, now_ms);
        outcome
    }

    fn answer_routed(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        routed: Routed,
    ) -> Result<(), Ended> {
        if routed.refused {
            return self.refuse_publish(slot, publish, message);
        }
        let reason = if routed.matched {
            Reason::SUCCESS
        } else {
            self.metrics().publishes_unmatched.add(1);
            // A PUBREC only says that the message has come; subscribers are not its matter.
            match publish.qos {
                QoS::ExactlyOnce => Reason::SUCCESS,
                _ => Reason::NO_MATCHING_SUBSCRIBERS,
            }
        };
        self.answer_publish(slot, publish, reason, routed.waiting);
        Ok(())
    }

    /// The address for the answers of other shards; its ack number is the one that
    /// `answer_publish` will get.
    fn confirm_of(&mut self, slot: u32, publish: &Publish<'_>) -> Option<Confirm> {
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let publisher = self.key(slot);
        let client = self.clients.get(slot)?;
        let ack_number = client.session.link()?.next_ack_number();
        let connection = client.connection;
        Some(Confirm { publisher, connection, ack_number, packet_id: publish.packet_id })
    }

    fn answer_publish(&mut self, slot: u32, publish: &Publish<'_>, reason: Reason, waiting: u16) {
        if publish.qos == QoS::AtMostOnce {
            return;
        }
        let (clients, spare_buffers) = self.clients_and_buffers();
        let Some(client) = clients.get_mut(slot) else { return };
        Self::lend_buffer(client, spare_buffers);
        client.session.owe_answer(publish.qos, publish.packet_id, reason, waiting);
        self.mark_dirty(slot);
    }

    /// Not allowed: MQTT 5 clients are told, others get a success, as the standard has no other
    /// word for them (MQTT-3.3.5-2 of 3.1.1 allows either this or closing).
    fn deny_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        topic: Box<str>,
    ) -> Result<(), Ended> {
        self.metrics().publishes_denied.add(1);
        if let Some(client) = self.clients.get(slot) {
            let client_id = client.id.clone();
            self.tell(Event::Denied { client_id, action: "publish", topic });
        }
        let reason = self.reason_for(slot, Reason::NOT_AUTHORIZED);
        self.answer_publish(slot, publish, reason, 0);
        Ok(())
    }

    fn refuse_topic(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        violation: Violation,
    ) -> Result<(), Ended> {
        let is_v5 = self.clients.get(slot).is_some_and(is_v5);
        if is_v5 && publish.qos != QoS::AtMostOnce && violation.clause.is_empty() {
            self.answer_publish(slot, publish, violation.reason, 0);
            return Ok(());
        }
        Err(Ended::Violation(violation))
    }

    /// No room: told with 0x97, or by closing the connection of a 3.1.1 client, which then sends
    /// the message again.
    fn refuse_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<(), Ended> {
        self.note_refused(slot, message);
        let is_told = self.clients.get(slot).is_some_and(is_v5);
        if publish.qos == QoS::AtMostOnce {
            return Ok(());
        }
        if !is_told {
            return Err(Ended::Refused);
        }
        self.answer_publish(slot, publish, Reason::QUOTA_EXCEEDED, 0);
        Ok(())
    }

    /// Counts a message that its publisher is told to be refused, and tells who it was.
    pub(crate) fn note_refused(&mut self, slot: u32, message: &Message) {
        self.metrics().publishes_refused.add(1);
        if let Some(client) = self.clients.get(slot) {
            let client_id = client.id.clone();
            self.tell(Event::Refused { client_id, topic: message.topic().into() });
        }
    }

    fn reason_for(&self, slot: u32, reason: Reason) -> Reason {
        match self.clients.get(slot) {
            Some(client) if is_v5(client) => reason,
            _ => Reason::SUCCESS,
        }
    }

    /// Sends a message on its way: to the retained store, the subscribers here, the shared groups
    /// and the shards that may want it.
    pub(crate) fn route(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
        now_ms: u64,
    ) -> Routed {
        let mut routed = Routed::default();
        if message.retain() {
            self.retain(message, confirm, &mut routed);
            if routed.refused && confirm.is_some() {
                // The publisher is told and sends it again: nobody is to get it twice.
                return routed;
            }
        }
        let topic = message.topic();
        let interested = self.shared.interest.shards(topic);
        let own_bit = 1 << self.id;
        if interested.wants & own_bit != 0 || !self.groups.is_empty() {
            let mut matches = std::mem::take(&mut self.matches);
            self.index.matches(topic, &mut matches);
            let may_refuse = confirm.is_some() && self.shared.settings.rejects;
            let delivered = self.deliver_matches(message, &mut matches, may_refuse, now_ms);
            routed.matched |= delivered.matched;
            routed.refused |= delivered.refused;
            for group in &matches.groups {
                routed.matched = true;
                self.deliver_to_group(*group, message, now_ms);
            }
            self.matches = matches;
        }
        if routed.refused {
            return routed;
        }
        let mut others = interested.wants & !own_bit;
        routed.matched |= others != 0;
        while others != 0 {
            let shard = others.trailing_zeros() as u16;
            others &= others - 1;
            let is_awaited = interested.promises & (1 << shard) != 0;
            let confirm = confirm.filter(|_| is_awaited);
            routed.waiting += u16::from(confirm.is_some());
            self.send(shard, Mail::Publish { message: message.clone(), confirm });
        }
        routed
    }

    fn retain(&mut self, message: &Message, confirm: Option<Confirm>, routed: &mut Routed) {
        let home = self.shared.shard_of_topic(message.topic());
        if home == self.id {
            routed.refused |= self.keep_retained(message).is_error();
            return;
        }
        // Only when the store is about full does its home have to be asked.
        let confirm = confirm.filter(|_| self.shared.retained_is_full());
        routed.waiting += u16::from(confirm.is_some());
        self.send(home, Mail::Retain { message: message.clone(), confirm });
    }
}

fn is_v5(client: &Client) -> bool {
    client.session.link().is_some_and(session::Link::is_v5)
}

/// Checks a PUBLISH and makes it a message: the one allocation on its way.
fn check(
    client: &mut Client,
    publish: &Publish<'_>,
    buffer: &mut codec::PropertyBuf,
    key: SessionKey,
    now_ms: u64,
) -> Result<Checked, Ended> {
    check_offered(client, publish).map_err(Ended::Violation)?;
    let limits = client.limits.clone();
    let inbound = client.session.on_publish(publish).map_err(Ended::Violation)?;
    let Inbound::Accept(publishing) = inbound else { return Ok(Checked::Repeat) };
    let topic = publishing.topic;
    if let Err(error) = topic::check_topic(topic, &limits.topic) {
        return Ok(Checked::Invalid(Violation {
            reason: Reason::TOPIC_NAME_INVALID,
            clause: error.clause(),
            detail: "topic name is not valid, or longer or deeper than this server takes",
        }));
    }
    let properties = if publishing.rewrite_properties {
        buffer.clear();
        for property in publish.properties.iter() {
            if !matches!(property, Property::TopicAlias(_) | Property::MessageExpirySecs(_)) {
                buffer.push(property);
            }
        }
        buffer.as_properties().raw()
    } else {
        publish.properties.raw()
    };
    let message = Message::new(&MessageParts {
        topic,
        properties,
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        expires_at_ms: limits
            .message_expiry_secs(publishing.message_expiry_secs)
            .map_or(NEVER, |secs| now_ms + u64::from(secs) * 1000),
        publisher: key.as_u64(),
    });
    if !client.grants.allows(client.identity(), Action::Publish, message.topic()) {
        return Ok(Checked::Deny(message.topic().into()));
    }
    Ok(Checked::Accept(message))
}

fn check_offered(client: &Client, publish: &Publish<'_>) -> Result<(), Violation> {
    if publish.qos > client.limits.qos_max {
        return Err(Violation {
            reason: Reason::QOS_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-11",
            detail: "publish with a higher QoS than this server takes",
        });
    }
    if publish.retain && !client.limits.retain_available {
        return Err(Violation {
            reason: Reason::RETAIN_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-14",
            detail: "retained publish, and this server keeps none",
        });
    }
    Ok(())
}
