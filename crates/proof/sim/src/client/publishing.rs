//! The publishing side: what was sent, and sent again until it is answered.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use codec::{Ack, AckKind, Packet, Property, PropertyBuf, Publish, QoS, Reason, Version};

use super::{ModelClient, Sequences};
use crate::dice::pick;
use crate::oracle::{Oracle, Payload};
use crate::random::Random;

/// Publishes under way, of QoS 1 and 2: well below the broker's receive maximum.
const IN_FLIGHT_MAX: usize = 20;

/// A publish that can be sent again.
#[derive(Clone, Debug)]
pub struct OwnedPublish {
    pub topic: String,
    pub qos: QoS,
    pub retain: bool,
    /// It has no payload, and removes what is retained.
    pub is_clear: bool,
    pub expiry_secs: Option<u32>,
    pub payload: Payload,
    /// Bytes behind the payload.
    pub padding: usize,
}

/// What to publish.
#[derive(Clone, Debug)]
pub struct Draft {
    pub topic: String,
    pub qos: QoS,
    pub retain: bool,
    pub is_clear: bool,
    /// Only MQTT 5 can say it.
    pub expiry_secs: Option<u32>,
    pub padding: usize,
}

impl Draft {
    /// Something that the client of this number may publish. `may_expire`: some of it does.
    pub(crate) fn any(
        number: u32,
        may_expire: bool,
        padding_max: usize,
        random: &mut Random,
    ) -> Self {
        let qos = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce][random.below(3)];
        let (topic, qos, retain) = match random.below(10) {
            0..=5 => (format!("t/{number}/{}", random.below(3)), qos, false),
            6..=7 => (format!("r/{number}"), qos, true),
            _ => (format!("g/{number}"), QoS::AtLeastOnce, false),
        };
        let is_clear = retain && random.chance(20);
        let expires = may_expire && !retain && random.chance(20);
        let expiry_secs = expires.then(|| pick(&[2, 20, 1_000_000], random));
        let padding = random.below(padding_max + 1);
        Self { topic, qos, retain, is_clear, expiry_secs, padding }
    }
}

impl fmt::Display for OwnedPublish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Payload { publisher, sequence } = self.payload;
        let clears = if self.is_clear { ", clears" } else { "" };
        write!(f, "{sequence} of {publisher} on {}, QoS {}{clears}", self.topic, self.qos as u8)
    }
}

#[derive(Clone, Debug)]
struct Sent {
    publish: OwnedPublish,
    /// PUBREC has come: PUBREL is what to send again.
    is_released: bool,
}

#[derive(Debug, Default)]
pub(super) struct Publishing {
    in_flight: BTreeMap<u16, Sent>,
    in_flight_order: VecDeque<u16>,
    sequences: Sequences,
}

impl Publishing {
    pub(super) fn contains(&self, packet_id: u16) -> bool {
        self.in_flight.contains_key(&packet_id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.in_flight.clear();
        self.in_flight_order.clear();
    }

    pub(super) fn for_each_unanswered(&self, mut each: impl FnMut(&OwnedPublish)) {
        let unanswered = self.in_flight.values().filter(|sent| !sent.is_released);
        unanswered.for_each(|sent| each(&sent.publish));
    }
}

impl ModelClient {
    /// Room for another publish of QoS 1 or 2.
    pub fn may_publish(&self) -> bool {
        self.is_ready() && self.publishing.in_flight.len() < IN_FLIGHT_MAX
    }

    /// Publishes the next message of this client on a topic.
    pub fn publish(&mut self, draft: Draft, oracle: &mut Oracle) {
        let Draft { topic, qos, retain, is_clear, expiry_secs, padding } = draft;
        let sequence = self.publishing.sequences.entry(topic.clone()).or_default();
        *sequence += 1;
        let payload = Payload { publisher: self.number, sequence: *sequence };
        let expiry_secs = expiry_secs.filter(|_| self.version == Version::V5);
        let publish = OwnedPublish { topic, qos, retain, is_clear, expiry_secs, payload, padding };
        oracle.on_sent(&publish);
        let mut packet_id = 0;
        if qos != QoS::AtMostOnce {
            packet_id = self.take_packet_id();
            let sent = Sent { publish: publish.clone(), is_released: false };
            self.publishing.in_flight.insert(packet_id, sent);
            self.publishing.in_flight_order.push_back(packet_id);
        }
        self.write_publish(&publish, packet_id, false);
    }

    fn write_publish(&mut self, publish: &OwnedPublish, packet_id: u16, dup: bool) {
        let payload = match publish.is_clear {
            true => Vec::new(),
            false => publish.payload.to_bytes(publish.padding),
        };
        let mut properties = PropertyBuf::new();
        if let Some(secs) = publish.expiry_secs {
            properties.push(Property::MessageExpirySecs(secs));
        }
        let aliases = self.wire.as_mut().map(|wire| &mut wire.aliases);
        let alias = aliases.and_then(|aliases| aliases.of_topic(&publish.topic));
        if let Some((alias, _)) = alias {
            properties.push(Property::TopicAlias(alias));
        }
        let is_known = alias.is_some_and(|(_, is_known)| is_known);
        self.write(&Packet::Publish(Publish {
            dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: if is_known { "" } else { &publish.topic },
            packet_id,
            properties: properties.as_properties(),
            payload: &payload,
        }));
    }

    /// What was not answered goes out again, in the order of the first time (MQTT-4.6.0-1).
    pub(super) fn resend(&mut self, oracle: &mut Oracle) {
        for packet_id in self.publishing.in_flight_order.clone() {
            let Some(sent) = self.publishing.in_flight.get(&packet_id).cloned() else { continue };
            match sent.is_released {
                true => self.write_ack(AckKind::Pubrel, packet_id),
                false => {
                    oracle.on_resent(&sent.publish);
                    self.write_publish(&sent.publish, packet_id, true);
                }
            }
        }
    }

    /// PUBACK, PUBREC or PUBCOMP.
    pub(super) fn on_answer(&mut self, ack: &Ack<'_>, oracle: &mut Oracle) -> Result<(), String> {
        let Some(sent) = self.publishing.in_flight.get_mut(&ack.packet_id) else {
            return Err(format!("{}: {:?} for nothing", self.id, ack.kind));
        };
        let is_refusal = ack.reason.is_error();
        if ack.kind == AckKind::Puback && !oracle.streams.judge_reason(&sent.publish, ack.reason) {
            return Err(format!(
                "{}: {} matches a stream: {:?}",
                self.id, sent.publish, ack.reason
            ));
        }
        match ack.kind {
            AckKind::Pubrec if !is_refusal => {
                sent.is_released = true;
                oracle.on_acknowledged(&sent.publish);
                self.write_ack(AckKind::Pubrel, ack.packet_id);
                return Ok(());
            }
            AckKind::Puback if !is_refusal => oracle.on_acknowledged(&sent.publish),
            AckKind::Puback | AckKind::Pubrec if !may_be_refused(ack.reason, oracle, sent) => {
                return Err(format!("{}: {} is refused: {:?}", self.id, sent.publish, ack.reason));
            }
            AckKind::Puback | AckKind::Pubrec => oracle.on_refused(&sent.publish),
            _ => {}
        }
        self.publishing.in_flight.remove(&ack.packet_id);
        self.publishing.in_flight_order.retain(|id| *id != ack.packet_id);
        Ok(())
    }
}

/// For lack of room, where there may be none, or of a right.
fn may_be_refused(reason: Reason, oracle: &Oracle, sent: &Sent) -> bool {
    match reason {
        Reason::NOT_AUTHORIZED => oracle.may_be_forbidden(&sent.publish),
        _ => oracle.terms.may_refuse,
    }
}
