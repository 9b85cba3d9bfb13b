//! Arbitrary valid packets for the property and differential tests.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use codec::{
    Ack, AckKind, Auth, Connack, Connect, Disconnect, FilterBuf, Packet, Properties, Property,
    PropertyBuf, Publish, QoS, Reason, RetainHandling, Sender, Suback, Subscribe, SubscribeOptions,
    TopicBuf, Unsuback, Unsubscribe, Version, Will,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// What packets are made of. Every value gives a valid packet of every kind in every version.
#[derive(Clone, Debug)]
pub(crate) struct Ingredients {
    pub(crate) version: Version,
    pub(crate) kind: usize,
    pub(crate) sender: Sender,
    bits: u16,
    packet_id: u16,
    number: u32,
    name: String,
    text: String,
    topic: String,
    payload: Vec<u8>,
    filters: Vec<(String, u8)>,
    codes: Vec<usize>,
    /// One bit per property: whether it is there.
    properties: u32,
    will_properties: u32,
    users: Vec<(String, String)>,
}

/// CONNECT, CONNACK, PUBLISH, four acknowledgements, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK,
/// PINGREQ, PINGRESP, DISCONNECT, AUTH.
pub(crate) const KINDS: usize = 15;

pub(crate) fn ingredients() -> impl Strategy<Value = Ingredients> {
    let version = prop::sample::select(vec![Version::V31, Version::V311, Version::V5]);
    let sender = prop::sample::select(vec![Sender::Client, Sender::Server]);
    let head = (version, 0..KINDS, sender, any::<u16>(), 1..=u16::MAX, any::<u32>());
    let topic = "[a-zA-Z0-9/$ äß漢\u{10437}]{1,40}";
    let filter = ("[a-z0-9/+#$ä]{1,30}", 0..=2_u8);
    let texts = (".{0,12}", ".{0,20}", topic, vec(any::<u8>(), 0..300));
    let lists = (vec(filter, 1..5), vec(any::<usize>(), 1..5));
    let users = vec((".{0,8}", ".{0,8}"), 0..3);
    (head, texts, lists, (any::<u32>(), any::<u32>(), users)).prop_map(
        |(head, (name, text, topic, payload), (filters, codes), properties)| {
            let (version, kind, sender, bits, packet_id, number) = head;
            let (properties, will_properties, users) = properties;
            Ingredients {
                version,
                kind,
                sender,
                bits,
                packet_id,
                number,
                name: plain(&name),
                text: plain(&text),
                topic,
                payload,
                filters,
                codes,
                properties,
                will_properties,
                users: users
                    .into_iter()
                    .map(|(name, value)| (plain(&name), plain(&value)))
                    .collect(),
            }
        },
    )
}

/// Without what is refused in names and in text that is forwarded.
fn plain(text: &str) -> String {
    let is_noncharacter =
        |c: char| matches!(c, '\u{FDD0}'..='\u{FDEF}') || u32::from(c) & 0xFFFE == 0xFFFE;
    text.replace(|c: char| c.is_control() || is_noncharacter(c), "-")
}

impl Ingredients {
    /// The bytes of the packet.
    pub(crate) fn encoded(&self) -> Vec<u8> {
        self.with_packet(|packet, _| {
            let mut out = Vec::new();
            packet.encode(self.version, &mut out);
            out
        })
    }

    /// Builds the packet, and tells who sends it.
    pub(crate) fn with_packet<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        match self.kind {
            0 => self.connect(then),
            1 => self.connack(then),
            2 => self.publish(then),
            3..=6 => self.ack(then),
            7..=10 => self.list(then),
            11 => then(Packet::Pingreq, Sender::Client),
            12 => then(Packet::Pingresp, Sender::Server),
            _ => self.farewell(then),
        }
    }

    fn bit(&self, at: u32) -> bool {
        self.bits >> at & 1 == 1
    }

    fn is_v5(&self) -> bool {
        self.version >= Version::V5
    }

    fn qos(&self) -> QoS {
        QoS::from_bits((self.bits >> 12) as u8 % 3).unwrap_or(QoS::AtMostOnce)
    }

    fn code(&self, codes: &[u8]) -> Reason {
        Reason(codes[self.codes[0] % codes.len()])
    }

    /// Those of `allowed` whose bit is set, and the user properties; none before version 5.
    fn properties(&self, allowed: &[u8], chosen: u32) -> PropertyBuf {
        let mut buf = PropertyBuf::new();
        if !self.is_v5() {
            return buf;
        }
        for (at, &id) in allowed.iter().enumerate() {
            if chosen >> at & 1 == 1 {
                buf.push(self.property(id));
            }
        }
        for (name, value) in &self.users {
            buf.push(Property::User(name, value));
        }
        buf
    }

    fn property(&self, id: u8) -> Property<'_> {
        let (number, text) = (self.number, self.text.as_str());
        let (flag, short) = (number & 1 == 1, number as u16);
        match id {
            0x01 => Property::PayloadFormat(u8::from(flag)),
            0x02 => Property::MessageExpirySecs(number),
            0x03 => Property::ContentType(text),
            0x08 => Property::ResponseTopic(&self.topic),
            0x09 => Property::CorrelationData(&self.payload),
            0x0B => Property::SubscriptionId(number % codec::varint::MAX + 1),
            0x11 => Property::SessionExpirySecs(number),
            0x12 => Property::AssignedClientId(text),
            0x13 => Property::ServerKeepAliveSecs(short),
            0x15 => Property::AuthMethod(text),
            0x16 => Property::AuthData(&self.payload),
            0x17 => Property::RequestProblemInfo(flag),
            0x18 => Property::WillDelaySecs(number),
            0x19 => Property::RequestResponseInfo(flag),
            0x1A => Property::ResponseInfo(text),
            0x1C => Property::ServerReference(text),
            0x1F => Property::ReasonString(text),
            0x21 => Property::ReceiveMax(short.max(1)),
            0x22 => Property::TopicAliasMax(short),
            0x23 => Property::TopicAlias(short.max(1)),
            0x24 => Property::QosMax(u8::from(flag)),
            0x25 => Property::RetainAvailable(flag),
            0x27 => Property::PacketBytesMax(number.max(1)),
            0x28 => Property::WildcardAvailable(flag),
            0x29 => Property::SubscriptionIdAvailable(flag),
            0x2A => Property::SharedAvailable(flag),
            _ => panic!("no such property: {id}"),
        }
    }

    fn connect<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        let mut allowed = vec![0x11, 0x21, 0x27, 0x22, 0x19, 0x17];
        if self.bit(0) {
            allowed.extend([0x15, 0x16]);
        }
        let chosen = self.properties | if self.bit(0) { 1 << 6 } else { 0 };
        let properties = self.properties(&allowed, chosen);
        let will_allowed = [0x18, 0x01, 0x02, 0x03, 0x08, 0x09];
        let will_properties = self.properties(&will_allowed, self.will_properties);
        let will = Will {
            topic: &self.topic,
            payload: &self.payload,
            qos: self.qos(),
            retain: self.bit(1),
            properties: will_properties.as_properties(),
        };
        let username = self.bit(2).then_some(self.name.as_str());
        let password_allowed = self.is_v5() || username.is_some();
        let connect = Connect {
            version: self.version,
            clean_start: self.bit(3),
            keep_alive_secs: self.packet_id,
            client_id: &self.name,
            properties: properties.as_properties(),
            will: self.bit(4).then_some(will),
            username,
            password: (self.bit(5) && password_allowed).then_some(&self.payload),
            bridge: self.bit(6) && !self.is_v5(),
        };
        then(Packet::Connect(connect), Sender::Client)
    }

    fn connack<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        let reason = if self.is_v5() {
            self.code(&[0x00, 0x80, 0x81, 0x84, 0x87, 0x8A, 0x8C, 0x95, 0x97, 0x9F])
        } else {
            self.code(&[0x00, 0x84, 0x85, 0x88, 0x86, 0x87])
        };
        let allowed = [
            0x11, 0x21, 0x24, 0x25, 0x27, 0x12, 0x22, 0x1F, 0x28, 0x29, 0x2A, 0x13, 0x1A, 0x1C,
            0x15, 0x16,
        ];
        let properties = self.properties(&allowed, self.properties);
        let known = self.version >= Version::V311 && !reason.is_error();
        let connack = Connack {
            session_present: self.bit(0) && known,
            reason,
            properties: properties.as_properties(),
        };
        then(Packet::Connack(connack), Sender::Server)
    }

    fn publish<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        let qos = self.qos();
        let mut allowed = vec![0x01, 0x02, 0x03, 0x08, 0x09, 0x23];
        if self.sender == Sender::Server {
            allowed.extend([0x0B, 0x0B]);
        }
        let properties = self.properties(&allowed, self.properties);
        let alias = properties.as_properties().topic_alias().is_some();
        let publish = Publish {
            dup: self.bit(0) && qos != QoS::AtMostOnce,
            qos,
            retain: self.bit(1),
            topic: if alias && self.bit(2) { "" } else { &self.topic },
            packet_id: if qos == QoS::AtMostOnce { 0 } else { self.packet_id },
            properties: properties.as_properties(),
            payload: &self.payload,
        };
        then(Packet::Publish(publish), self.sender)
    }

    fn ack<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        let (kind, codes): (_, &[u8]) = match self.kind {
            3 => (AckKind::Puback, &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
            4 => (AckKind::Pubrec, &[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]),
            5 => (AckKind::Pubrel, &[0x00, 0x92]),
            _ => (AckKind::Pubcomp, &[0x00, 0x92]),
        };
        let properties = self.properties(&[0x1F], self.properties);
        let reason = if self.is_v5() { self.code(codes) } else { Reason::SUCCESS };
        let properties = properties.as_properties();
        then(Packet::Ack(Ack { kind, packet_id: self.packet_id, reason, properties }), self.sender)
    }

    fn list<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        let packet_id = self.packet_id;
        let allowed: &[u8] = match self.kind {
            7 => &[0x0B],
            9 => &[],
            _ => &[0x1F],
        };
        let properties = self.properties(allowed, self.properties);
        let properties = properties.as_properties();
        let codes: &[u8] = match (self.kind, self.is_v5()) {
            (8, true) => &[0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2],
            (8, false) => &[0, 1, 2, 0x80],
            _ => &[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91],
        };
        let reasons: Vec<u8> = self.codes.iter().map(|&at| codes[at % codes.len()]).collect();
        match self.kind {
            7 => {
                let mut buf = FilterBuf::new();
                for (filter, qos) in &self.filters {
                    buf.push(filter, self.options(filter, *qos));
                }
                let filters = buf.as_filters();
                then(
                    Packet::Subscribe(Subscribe { packet_id, properties, filters }),
                    Sender::Client,
                )
            }
            8 => {
                let suback = Suback { packet_id, properties, reasons: &reasons };
                then(Packet::Suback(suback), Sender::Server)
            }
            9 => {
                let mut buf = TopicBuf::new();
                for (filter, _) in &self.filters {
                    buf.push(filter);
                }
                let unsubscribe = Unsubscribe { packet_id, properties, filters: buf.as_topics() };
                then(Packet::Unsubscribe(unsubscribe), Sender::Client)
            }
            _ => {
                let reasons = if self.is_v5() { &reasons[..] } else { &[] };
                then(Packet::Unsuback(Unsuback { packet_id, properties, reasons }), Sender::Server)
            }
        }
    }

    fn options(&self, filter: &str, qos: u8) -> SubscribeOptions {
        let qos = QoS::from_bits(qos).unwrap_or(QoS::AtMostOnce);
        if !self.is_v5() {
            return SubscribeOptions::new(qos);
        }
        SubscribeOptions {
            qos,
            no_local: self.bit(0) && !filter.starts_with("$share/"),
            retain_as_published: self.bit(1),
            retain_handling: [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never]
                [usize::from(self.bits >> 2) % 3],
        }
    }

    /// DISCONNECT or AUTH. Before version 5 only a client's DISCONNECT, and no AUTH: PINGREQ then.
    fn farewell<T>(&self, then: impl FnOnce(Packet<'_>, Sender) -> T) -> T {
        if !self.is_v5() {
            return match self.kind {
                13 => then(
                    Packet::Disconnect(Disconnect::new(Reason::NORMAL_DISCONNECTION)),
                    Sender::Client,
                ),
                _ => then(Packet::Pingreq, Sender::Client),
            };
        }
        let from_client = self.sender == Sender::Client;
        if self.kind == 13 {
            let (codes, allowed): (&[u8], &[u8]) = if from_client {
                (&[0x00, 0x04, 0x80, 0x81, 0x82, 0x99], &[0x11, 0x1F])
            } else {
                (&[0x00, 0x80, 0x8B, 0x8D, 0x8E, 0x9C, 0xA2], &[0x1C, 0x1F])
            };
            let properties = self.properties(allowed, self.properties);
            let properties = properties.as_properties();
            let disconnect = Disconnect { reason: self.code(codes), properties };
            return then(Packet::Disconnect(disconnect), self.sender);
        }
        let codes = if from_client { [0x18, 0x19] } else { [0x00, 0x18] };
        let reason = self.code(&codes);
        if reason == Reason::SUCCESS && self.bit(0) {
            return then(Packet::Auth(Auth { reason, properties: Properties::EMPTY }), self.sender);
        }
        let properties = self.properties(&[0x15, 0x16, 0x1F], self.properties | 1);
        let properties = properties.as_properties();
        then(Packet::Auth(Auth { reason, properties }), self.sender)
    }
}

/// One change to a byte string: bits flipped, bytes overwritten, inserted or removed.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Flip(usize, u8),
    Set(usize, u8),
    Insert(usize, u8),
    Remove(usize),
    Cut(usize),
}

pub(crate) fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![0x00, 0x01, 0x7F, 0x80, 0xC2, 0xED, 0xFF, b'+', b'#'])
    ];
    let one = prop_oneof![
        (any::<usize>(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip(at, 1 << bit)),
        (any::<usize>(), byte.clone()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<usize>(), byte).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<usize>().prop_map(Mutation::Remove),
        any::<usize>().prop_map(Mutation::Cut),
    ];
    vec(one, 1..4)
}

/// Applies the changes, then makes the remaining length fit again if `mend` is set and the packet
/// is short enough: else nearly every change ends at the length.
pub(crate) fn mutate(bytes: &mut Vec<u8>, mutations: &[Mutation], mend: bool) {
    for mutation in mutations {
        let len = bytes.len().max(1);
        match *mutation {
            Mutation::Flip(at, bit) => {
                if let Some(byte) = bytes.get_mut(at % len) {
                    *byte ^= bit;
                }
            }
            Mutation::Set(at, byte) => {
                if let Some(slot) = bytes.get_mut(at % len) {
                    *slot = byte;
                }
            }
            Mutation::Insert(at, byte) => bytes.insert(at % (bytes.len() + 1), byte),
            Mutation::Remove(at) if !bytes.is_empty() => {
                bytes.remove(at % len);
            }
            Mutation::Remove(_) => {}
            Mutation::Cut(at) => bytes.truncate(at % len),
        }
    }
    if mend && (2..0x80).contains(&bytes.len()) {
        bytes[1] = bytes.len() as u8 - 2;
    }
}
