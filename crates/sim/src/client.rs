//! A model client: correct, but slow and moody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use codec::{
    Ack, AckKind, Connect, Disconnect, FilterBuf, Packet, Properties, Property, PropertyBuf,
    Publish, QoS, Reason, Sender, Subscribe, SubscribeOptions, Version,
};

use crate::oracle::{Oracle, Payload};

/// The client's end of a connection.
#[derive(Debug)]
pub struct Wire {
    pub connection: u32,
    /// The client's slot at its shard, once admitted.
    pub slot: Option<u32>,
    /// Written by the client, not yet taken by the broker.
    pub to_broker: Vec<u8>,
    /// Written by the broker, not yet looked at by the client.
    pub to_client: Vec<u8>,
    pub is_acknowledged: bool,
}

#[derive(Clone, Debug)]
struct Sent {
    publish: OwnedPublish,
    /// PUBREC has come: PUBREL is what to send again.
    is_released: bool,
}

/// A publish that can be sent again.
#[derive(Clone, Debug)]
pub struct OwnedPublish {
    pub topic: String,
    pub qos: QoS,
    pub retain: bool,
    pub payload: Payload,
}

#[derive(Debug)]
pub struct ModelClient {
    pub number: u32,
    pub id: String,
    pub version: Version,
    /// Keeps its session across connections, and never starts clean.
    pub is_persistent: bool,
    pub receive_max: u16,
    pub filters: Vec<(String, QoS)>,
    pub wire: Option<Wire>,
    /// Reads nothing while set.
    pub is_deaf: bool,
    /// The session has its subscriptions: SUBACK has come.
    pub is_subscribed: bool,
    next_packet_id: u16,
    in_flight: BTreeMap<u16, Sent>,
    in_flight_order: VecDeque<u16>,
    /// QoS 2 packet ids received and not released.
    received: BTreeSet<u16>,
    /// Acknowledgements not sent yet.
    owed: VecDeque<(AckKind, u16)>,
    /// Publishes of QoS 1 and 2 from the broker that are not acknowledged.
    unacknowledged: BTreeSet<u16>,
    sequences: BTreeMap<String, u32>,
}

impl ModelClient {
    pub fn new(number: u32, version: Version, is_persistent: bool, receive_max: u16) -> Self {
        Self {
            number,
            id: format!("c{number}"),
            version,
            is_persistent,
            receive_max,
            filters: Vec::new(),
            wire: None,
            is_deaf: false,
            is_subscribed: false,
            next_packet_id: 0,
            in_flight: BTreeMap::new(),
            in_flight_order: VecDeque::new(),
            received: BTreeSet::new(),
            owed: VecDeque::new(),
            unacknowledged: BTreeSet::new(),
            sequences: BTreeMap::new(),
        }
    }

    /// The limit on unacknowledged publishes that the broker has to keep.
    fn receive_limit(&self) -> usize {
        if self.version == Version::V5 { usize::from(self.receive_max) } else { usize::MAX }
    }

    pub fn is_ready(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.is_acknowledged)
    }

    pub fn is_quiet(&self) -> bool {
        self.in_flight.is_empty()
            && self.owed.is_empty()
            && self.wire.as_ref().is_none_or(|w| w.to_broker.is_empty() && w.to_client.is_empty())
    }

    /// Opens a connection; whatever was under way on an old one is lost with it.
    pub fn connect(&mut self, connection: u32) {
        let mut properties = PropertyBuf::new();
        if self.version == Version::V5 {
            properties.push(Property::ReceiveMax(self.receive_max));
            if self.is_persistent {
                properties.push(Property::SessionExpirySecs(1_000_000));
            }
        }
        let connect = Connect {
            version: self.version,
            clean_start: !self.is_persistent,
            keep_alive_secs: 0,
            client_id: &self.id,
            properties: properties.as_properties(),
            will: None,
            username: None,
            password: None,
            bridge: false,
        };
        let mut to_broker = Vec::new();
        Packet::Connect(connect).encode(self.version, &mut to_broker);
        self.owed.clear();
        self.unacknowledged.clear();
        self.wire = Some(Wire {
            connection,
            slot: None,
            to_broker,
            to_client: Vec::new(),
            is_acknowledged: false,
        });
    }

    fn write(&mut self, packet: &Packet<'_>) {
        if let Some(wire) = &mut self.wire {
            packet.encode(self.version, &mut wire.to_broker);
        }
    }

    pub fn disconnect(&mut self) {
        let reason = Reason::NORMAL_DISCONNECTION;
        self.write(&Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY }));
    }

    fn subscribe(&mut self) {
        let mut filters = FilterBuf::new();
        for (filter, qos) in &self.filters {
            filters.push(filter, SubscribeOptions::new(*qos));
        }
        let packet_id = self.take_packet_id();
        let mut bytes = Vec::new();
        let subscribe =
            Subscribe { packet_id, properties: Properties::EMPTY, filters: filters.as_filters() };
        Packet::Subscribe(subscribe).encode(self.version, &mut bytes);
        if let Some(wire) = &mut self.wire {
            wire.to_broker.extend(bytes);
        }
    }

    fn take_packet_id(&mut self) -> u16 {
        loop {
            self.next_packet_id = self.next_packet_id % u16::MAX + 1;
            if !self.in_flight.contains_key(&self.next_packet_id) {
                return self.next_packet_id;
            }
        }
    }

    /// Publishes the next message of this client on a topic.
    pub fn publish(&mut self, topic: &str, qos: QoS, retain: bool, oracle: &mut Oracle) {
        let sequence = self.sequences.entry(topic.to_owned()).or_default();
        *sequence += 1;
        let payload = Payload { publisher: self.number, sequence: *sequence };
        let publish = OwnedPublish { topic: topic.to_owned(), qos, retain, payload };
        oracle.on_sent(&publish);
        let mut packet_id = 0;
        if qos != QoS::AtMostOnce {
            packet_id = self.take_packet_id();
            let sent = Sent { publish: publish.clone(), is_released: false };
            self.in_flight.insert(packet_id, sent);
            self.in_flight_order.push_back(packet_id);
        }
        self.write_publish(&publish, packet_id, false);
    }

    /// Room for another publish of QoS 1 or 2: well below the broker's receive maximum.
    pub fn may_publish(&self) -> bool {
        self.is_ready() && self.in_flight.len() < 20
    }

    fn write_publish(&mut self, publish: &OwnedPublish, packet_id: u16, dup: bool) {
        let payload = publish.payload.to_bytes();
        self.write(&Packet::Publish(Publish {
            dup,
            qos: publish.qos,
            retain: publish.retain,
            topic: &publish.topic,
            packet_id,
            properties: Properties::EMPTY,
            payload: &payload,
        }));
    }

    /// Sends some of the acknowledgements that are owed, oldest first.
    pub fn acknowledge(&mut self, count: usize) {
        for _ in 0..count {
            let Some((kind, packet_id)) = self.owed.pop_front() else { return };
            if matches!(kind, AckKind::Puback | AckKind::Pubcomp) {
                self.unacknowledged.remove(&packet_id);
            }
            let reason = Reason::SUCCESS;
            self.write(&Packet::Ack(Ack {
                kind,
                packet_id,
                reason,
                properties: Properties::EMPTY,
            }));
        }
    }

    /// Looks at what has come. Err: the broker broke a rule.
    pub fn read(&mut self, oracle: &mut Oracle) -> Result<(), String> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        let bytes = std::mem::take(&mut wire.to_client);
        let mut taken = 0;
        while taken < bytes.len() {
            let decoded = codec::decode(&bytes[taken..], self.version, Sender::Server, u32::MAX);
            match decoded {
                Ok(Some((packet, len))) => {
                    taken += len;
                    self.on_packet(&packet, oracle)?;
                }
                Ok(None) => break,
                Err(violation) => return Err(format!("{} got {violation}", self.id)),
            }
        }
        if let Some(wire) = &mut self.wire {
            wire.to_client = bytes[taken..].to_vec();
        }
        Ok(())
    }

    fn on_packet(&mut self, packet: &Packet<'_>, oracle: &mut Oracle) -> Result<(), String> {
        match packet {
            Packet::Connack(connack) => self.on_connack(connack.session_present, oracle),
            Packet::Publish(publish) => self.on_publish(publish, oracle),
            Packet::Suback(suback) => {
                if suback.reasons.iter().any(|reason| *reason >= 0x80) {
                    return Err(format!("{}: subscription refused", self.id));
                }
                self.is_subscribed = true;
                oracle.on_subscribed(self.number, &self.filters);
                Ok(())
            }
            Packet::Ack(ack) => self.on_ack(ack, oracle),
            Packet::Disconnect(_) | Packet::Pingresp => Ok(()),
            other => Err(format!("{}: unexpected {other:?}", self.id)),
        }
    }

    fn on_connack(&mut self, session_present: bool, oracle: &mut Oracle) -> Result<(), String> {
        if let Some(wire) = &mut self.wire {
            wire.is_acknowledged = true;
        }
        if session_present && !self.is_persistent {
            return Err(format!("{}: session present after a clean start", self.id));
        }
        if !session_present {
            if self.is_subscribed && self.is_persistent {
                return Err(format!("{}: the broker lost a persistent session", self.id));
            }
            self.in_flight.clear();
            self.in_flight_order.clear();
            self.received.clear();
            self.is_subscribed = false;
            oracle.on_session_start(self.number);
        }
        if !self.is_subscribed {
            self.subscribe();
        }
        for packet_id in self.in_flight_order.clone() {
            let Some(sent) = self.in_flight.get(&packet_id).cloned() else { continue };
            if sent.is_released {
                self.write(&Packet::Ack(Ack {
                    kind: AckKind::Pubrel,
                    packet_id,
                    reason: Reason::SUCCESS,
                    properties: Properties::EMPTY,
                }));
            } else {
                self.write_publish(&sent.publish, packet_id, true);
            }
        }
        Ok(())
    }

    fn on_publish(&mut self, publish: &Publish<'_>, oracle: &mut Oracle) -> Result<(), String> {
        let Some(payload) = Payload::from_bytes(publish.payload) else {
            return Err(format!("{}: a payload that nobody sent", self.id));
        };
        if publish.qos == QoS::AtMostOnce {
            return oracle.on_received(self.number, publish, payload);
        }
        let is_repeat =
            publish.qos == QoS::ExactlyOnce && self.received.contains(&publish.packet_id);
        if self.unacknowledged.contains(&publish.packet_id) && !is_repeat {
            return Err(format!("{}: packet id {} used twice", self.id, publish.packet_id));
        }
        self.unacknowledged.insert(publish.packet_id);
        if self.unacknowledged.len() > self.receive_limit() {
            return Err(format!("{}: more in flight than the receive maximum", self.id));
        }
        let kind = match publish.qos {
            QoS::ExactlyOnce => AckKind::Pubrec,
            _ => AckKind::Puback,
        };
        self.owed.push_back((kind, publish.packet_id));
        if is_repeat {
            return Ok(());
        }
        if kind == AckKind::Pubrec {
            self.received.insert(publish.packet_id);
        }
        oracle.on_received(self.number, publish, payload)
    }

    fn on_ack(&mut self, ack: &Ack<'_>, oracle: &mut Oracle) -> Result<(), String> {
        match ack.kind {
            AckKind::Pubrel => {
                self.received.remove(&ack.packet_id);
                self.owed.push_back((AckKind::Pubcomp, ack.packet_id));
            }
            AckKind::Pubrec if !ack.reason.is_error() => {
                if let Some(sent) = self.in_flight.get_mut(&ack.packet_id) {
                    sent.is_released = true;
                }
                self.write(&Packet::Ack(Ack {
                    kind: AckKind::Pubrel,
                    packet_id: ack.packet_id,
                    reason: Reason::SUCCESS,
                    properties: Properties::EMPTY,
                }));
            }
            AckKind::Puback | AckKind::Pubrec | AckKind::Pubcomp => {
                let Some(sent) = self.in_flight.remove(&ack.packet_id) else {
                    return Err(format!("{}: {:?} for nothing", self.id, ack.kind));
                };
                self.in_flight_order.retain(|id| *id != ack.packet_id);
                if !ack.reason.is_error() {
                    oracle.on_acknowledged(&sent.publish);
                } else {
                    oracle.on_refused(&sent.publish);
                }
            }
        }
        Ok(())
    }
}
