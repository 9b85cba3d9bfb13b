//! A model client: correct, but slow and moody.

mod aliases;
mod fate;
mod publishing;
mod subscribing;
mod will;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use codec::{
    Ack, AckKind, Connack, Connect, Disconnect, Packet, Properties, Property, PropertyBuf, Publish,
    QoS, Reason, Sender, Version, Will,
};

use crate::node::ConnectionRef;
use crate::oracle::{Oracle, Payload};
use aliases::Aliases;
use fate::Fate;
use publishing::Publishing;
pub use publishing::{Draft, OwnedPublish};
pub use subscribing::Filter;
use subscribing::Subscribing;
pub use will::Habit;

/// A session that never expires.
pub const NEVER_SECS: u32 = u32::MAX;

/// A client uses so few packet ids that they come again soon: a broker that does not forget them in
/// time takes news for repetitions.
const PACKET_IDS: u16 = 50;

/// The client's end of a connection.
#[derive(Debug)]
pub struct Wire {
    /// The number of the connection at the acceptor: none is given twice.
    pub arrival: u32,
    pub opened_ms: u64,
    /// The node of a cluster that it leads to.
    pub member: usize,
    /// Bytes of the broker that the client has looked at.
    pub read_bytes: u64,
    /// As the broker knows it, once admitted.
    pub(crate) place: Option<ConnectionRef>,
    /// Written by the client, not yet taken by the broker.
    pub to_broker: Vec<u8>,
    /// Written by the broker, not yet looked at by the client.
    pub to_client: Vec<u8>,
    pub is_acknowledged: bool,
    /// Its CONNECT asked for a new session.
    pub(crate) is_clean: bool,
    /// DISCONNECT was written: nothing else matters any more.
    is_leaving: bool,
    aliases: Aliases,
}

#[derive(Debug)]
pub struct ModelClient {
    pub number: u32,
    pub id: String,
    /// Whose its session is.
    pub username: Option<String>,
    pub version: Version,
    /// How long the broker keeps its session without a connection. 0: it always starts clean.
    pub expiry_secs: u32,
    pub receive_max: u16,
    /// 0: it may be silent for ever.
    pub keep_alive_secs: u16,
    /// Topic aliases that it takes, and as many it uses where it may. Only MQTT 5 knows them.
    pub alias_max: u16,
    /// It wants nothing that was published under its client ID, but from a shared group.
    pub no_local: bool,
    pub wire: Option<Wire>,
    /// Reads nothing while set.
    pub is_deaf: bool,
    pub fate: Fate,
    /// The will of each connection, if it leaves any.
    pub habit: Option<Habit>,
    subscribing: Subscribing,
    publishing: Publishing,
    next_packet_id: u16,
    /// QoS 2 packet ids received and not released, with the topic of the message.
    received: BTreeMap<u16, String>,
    /// Acknowledgements not sent yet.
    owed: VecDeque<(AckKind, u16)>,
    /// Publishes of QoS 1 and 2 from the broker that are not acknowledged.
    unacknowledged: BTreeSet<u16>,
}

impl ModelClient {
    pub fn new(number: u32, version: Version, expiry_secs: u32, receive_max: u16) -> Self {
        Self {
            number,
            id: format!("c{number}"),
            username: (!number.is_multiple_of(3)).then(|| format!("u{}", number % 3)),
            version,
            expiry_secs,
            receive_max,
            keep_alive_secs: 0,
            alias_max: 0,
            no_local: false,
            wire: None,
            is_deaf: false,
            fate: Fate::default(),
            habit: None,
            subscribing: Subscribing::default(),
            publishing: Publishing::default(),
            next_packet_id: 0,
            received: BTreeMap::new(),
            owed: VecDeque::new(),
            unacknowledged: BTreeSet::new(),
        }
    }

    /// Asks for messages, with its first connection.
    pub fn want(&mut self, filter: &str, qos: QoS) {
        self.subscribing.filters.push(Filter::new(filter, qos));
    }

    /// Asks for nothing that is shared, and for nothing but wills and retained messages if so.
    pub(crate) fn leave_groups(&mut self, and_topics: bool) {
        let goes = |filter: &Filter| {
            let is_topic = filter.name().starts_with("t/");
            filter.name().starts_with("$share/") || and_topics && is_topic
        };
        self.subscribing.filters.retain(|filter| !goes(filter));
    }

    pub(crate) fn wants_nothing(&self) -> bool {
        self.subscribing.filters.is_empty()
    }

    pub const fn is_persistent(&self) -> bool {
        self.expiry_secs > 0
    }

    /// The limit on unacknowledged publishes that the broker has to keep.
    fn receive_limit(&self) -> usize {
        if self.version == Version::V5 { usize::from(self.receive_max) } else { usize::MAX }
    }

    pub fn is_ready(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.is_acknowledged && !wire.is_leaving)
    }

    pub fn is_quiet(&self) -> bool {
        self.publishing.is_empty()
            && self.subscribing.is_quiet()
            && self.owed.is_empty()
            && self.wire.as_ref().is_none_or(|w| w.to_broker.is_empty() && w.to_client.is_empty())
    }

    /// What it waits for.
    pub fn unrest(&self) -> String {
        let Self { publishing, subscribing, owed, wire, .. } = self;
        let wire = wire.as_ref().map(|wire| {
            let (to_broker, to_client) = (wire.to_broker.len(), wire.to_client.len());
            format!("arrival {}, {to_broker} bytes to send, {to_client} to read", wire.arrival)
        });
        format!("{wire:?}, owes {owed:?}, {subscribing:?}, {publishing:?}")
    }

    /// Opens a connection; whatever was under way on an old one is lost with it.
    pub fn connect(&mut self, arrival: u32, oracle: &mut Oracle) {
        self.lose_wire(oracle);
        let is_clean = !self.is_persistent() || self.fate.begins_anew;
        let mut properties = PropertyBuf::new();
        if self.version == Version::V5 {
            properties.push(Property::ReceiveMax(self.receive_max));
            if self.alias_max > 0 {
                properties.push(Property::TopicAliasMax(self.alias_max));
            }
            if self.is_persistent() {
                properties.push(Property::SessionExpirySecs(self.expiry_secs));
            }
        }
        let will = self.next_will(arrival, is_clean, oracle);
        let payload = will.as_ref().map(|will| will.payload.to_bytes(will.padding));
        let mut will_properties = PropertyBuf::new();
        if let Some(habit) = self.habit.as_ref().filter(|habit| habit.delay_secs > 0) {
            will_properties.push(Property::WillDelaySecs(habit.delay_secs));
        }
        let connect = Connect {
            version: self.version,
            clean_start: is_clean,
            keep_alive_secs: self.keep_alive_secs,
            client_id: &self.id,
            properties: properties.as_properties(),
            will: will.as_ref().map(|will| Will {
                topic: &will.topic,
                payload: payload.as_deref().unwrap_or_default(),
                qos: will.qos,
                retain: will.retain,
                properties: will_properties.as_properties(),
            }),
            username: self.username.as_deref(),
            password: None,
            bridge: false,
        };
        let mut to_broker = Vec::new();
        Packet::Connect(connect).encode(self.version, &mut to_broker);
        self.wire = Some(Wire {
            arrival,
            opened_ms: oracle.now_ms,
            member: 0,
            read_bytes: 0,
            place: None,
            to_broker,
            to_client: Vec::new(),
            is_acknowledged: false,
            is_clean,
            is_leaving: false,
            aliases: Aliases::default(),
        });
    }

    /// The connection is gone, and what was under way on it.
    pub fn lose_wire(&mut self, oracle: &mut Oracle) -> Option<Wire> {
        let wire = self.wire.take()?;
        self.owed.clear();
        self.unacknowledged.clear();
        self.subscribing.forget_requests();
        self.publishing.for_each_unanswered(|publish| oracle.on_unanswered(publish));
        if wire.place.is_some() {
            self.fate.on_lost(wire.is_acknowledged, oracle.now_ms);
        }
        Some(wire)
    }

    fn write(&mut self, packet: &Packet<'_>) {
        if let Some(wire) = &mut self.wire {
            packet.encode(self.version, &mut wire.to_broker);
        }
    }

    /// It has not said that it goes: it may say that it is still there, also before it is answered.
    pub fn may_ping(&self) -> bool {
        self.wire.as_ref().is_some_and(|wire| !wire.is_leaving)
    }

    pub fn ping(&mut self) {
        self.write(&Packet::Pingreq);
    }

    pub fn disconnect(&mut self) {
        self.leave(Reason::NORMAL_DISCONNECTION);
    }

    /// A goodbye that asks for the will to be published, which only MQTT 5 knows.
    pub fn leave_badly(&mut self) {
        match self.version {
            Version::V5 => self.leave(Reason::DISCONNECT_WITH_WILL),
            _ => self.disconnect(),
        }
    }

    /// DISCONNECT, and nothing behind it.
    fn leave(&mut self, reason: Reason) {
        if let Some(wire) = &mut self.wire {
            let packet = Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY });
            packet.encode(self.version, &mut wire.to_broker);
            wire.is_leaving = true;
        }
    }

    fn take_packet_id(&mut self) -> u16 {
        loop {
            self.next_packet_id = self.next_packet_id % PACKET_IDS + 1;
            let packet_id = self.next_packet_id;
            if !self.publishing.contains(packet_id) && !self.subscribing.contains(packet_id) {
                return packet_id;
            }
        }
    }

    fn write_ack(&mut self, kind: AckKind, packet_id: u16) {
        let (reason, properties) = (Reason::SUCCESS, Properties::EMPTY);
        self.write(&Packet::Ack(Ack { kind, packet_id, reason, properties }));
    }

    /// Sends some of the acknowledgements that are owed, oldest first.
    pub fn acknowledge(&mut self, count: usize) {
        for _ in 0..count {
            let Some((kind, packet_id)) = self.owed.pop_front() else { return };
            if matches!(kind, AckKind::Puback | AckKind::Pubcomp) {
                self.unacknowledged.remove(&packet_id);
            }
            self.write_ack(kind, packet_id);
        }
    }

    /// Looks at what has come. Err: the broker broke a rule.
    pub fn read(&mut self, oracle: &mut Oracle) -> Result<(), String> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        let bytes = std::mem::take(&mut wire.to_client);
        let read_bytes = wire.read_bytes;
        let mut taken = 0;
        while taken < bytes.len() {
            let decoded = codec::decode(&bytes[taken..], self.version, Sender::Server, u32::MAX);
            match decoded {
                Ok(Some((packet, len))) => {
                    oracle.reading_at = read_bytes + taken as u64;
                    taken += len;
                    self.on_packet(&packet, oracle)?;
                }
                Ok(None) => break,
                Err(violation) => return Err(format!("{} got {violation}", self.id)),
            }
        }
        if let Some(wire) = &mut self.wire {
            wire.to_client = bytes[taken..].to_vec();
            wire.read_bytes += taken as u64;
        }
        Ok(())
    }

    fn on_packet(&mut self, packet: &Packet<'_>, oracle: &mut Oracle) -> Result<(), String> {
        match packet {
            Packet::Connack(connack) => self.on_connack(connack, oracle),
            // It has given the session up.
            _ if self.fate.begins_anew => Ok(()),
            Packet::Publish(publish) => self.on_publish(publish, oracle),
            Packet::Suback(suback) => self.on_suback(suback.packet_id, suback.reasons, oracle),
            Packet::Unsuback(unsuback) => {
                self.on_unsuback(unsuback.packet_id, unsuback.reasons, oracle)
            }
            Packet::Ack(ack) => self.on_ack(ack, oracle),
            Packet::Disconnect(_) | Packet::Pingresp | Packet::Auth(_) => Ok(()),
            other => Err(format!("{}: unexpected {other:?}", self.id)),
        }
    }

    fn on_connack(&mut self, connack: &Connack<'_>, oracle: &mut Oracle) -> Result<(), String> {
        let Some(wire) = &mut self.wire else { return Ok(()) };
        if connack.reason.is_error() {
            // A session that is new to a journal has to find room for itself, which a journal that
            // has just begun its next segment lacks for a moment.
            return match oracle.terms.may_refuse || !self.fate.expects_session() {
                true => Ok(()),
                false => Err(format!("{}: refused with {:?}", self.id, connack.reason)),
            };
        }
        wire.is_acknowledged = true;
        oracle.on_will_connected(wire.arrival);
        let aliases_max = connack.properties.find(|property| match property {
            Property::TopicAliasMax(max) => Some(max),
            _ => None,
        });
        wire.aliases.allow(aliases_max.unwrap_or_default().min(self.alias_max));
        let (is_clean, opened_ms) = (wire.is_clean, wire.opened_ms);
        let keeps = self.is_persistent() && (self.version == Version::V5 || !is_clean);
        let was_renewal = self.fate.begins_anew;
        self.fate
            .on_connack(connack.session_present, is_clean, keeps)
            .map_err(|rule| format!("{}: {rule}", self.id))?;
        if self.fate.begins_anew {
            self.disconnect();
            return Ok(());
        }
        if !connack.session_present {
            if self.is_persistent() {
                self.publishing.for_each_unanswered(|publish| oracle.on_given_up(publish));
            }
            self.publishing.clear();
            self.received.clear();
            self.subscribing.start_over();
            oracle.on_session_start(self.number);
        }
        if let Some(since_ms) = self.fate.may_be_over_since_ms().filter(|_| connack.session_present)
        {
            oracle.on_maybe_over(self.number, since_ms);
        }
        oracle.on_connected(self.number, opened_ms);
        if was_renewal && !keeps {
            // A clean session of MQTT 3.1.1 only served to end the old one.
            self.disconnect();
            return Ok(());
        }
        self.request_missing(oracle);
        self.resend(oracle);
        Ok(())
    }

    fn on_publish(&mut self, publish: &Publish<'_>, oracle: &mut Oracle) -> Result<(), String> {
        let aliases = self.wire.as_mut().map(|wire| &mut wire.aliases);
        let topic = aliases.map_or(Ok(publish.topic.to_owned()), |aliases| {
            aliases.topic_of(publish, self.alias_max).map_err(|rule| format!("{}: {rule}", self.id))
        })?;
        let publish = &Publish { topic: &topic, ..*publish };
        oracle.spans.on_read(self.number, publish.properties)?;
        let payload = Payload::from_bytes(publish.payload);
        if payload.is_none() && !publish.payload.is_empty() {
            return Err(format!("{}: a payload that nobody sent", self.id));
        }
        if publish.qos == QoS::AtMostOnce {
            return self.report_received(publish, payload, oracle);
        }
        let is_repeat =
            publish.qos == QoS::ExactlyOnce && self.received.contains_key(&publish.packet_id);
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
        if let Some(first) = self.received.get(&publish.packet_id).filter(|_| is_repeat) {
            if let Some(payload) = payload {
                oracle.on_repetition(self.number, first, publish, payload);
            }
            return Ok(());
        }
        if kind == AckKind::Pubrec {
            self.received.insert(publish.packet_id, publish.topic.to_owned());
        }
        self.report_received(publish, payload, oracle)
    }

    /// One without a payload clears a topic: which of them it is, nobody can tell.
    fn report_received(
        &self,
        publish: &Publish<'_>,
        payload: Option<Payload>,
        oracle: &mut Oracle,
    ) -> Result<(), String> {
        payload.map_or(Ok(()), |payload| oracle.on_received(self.number, publish, payload))
    }

    fn on_ack(&mut self, ack: &Ack<'_>, oracle: &mut Oracle) -> Result<(), String> {
        if ack.kind == AckKind::Pubrel {
            self.received.remove(&ack.packet_id);
            self.owed.push_back((AckKind::Pubcomp, ack.packet_id));
            return Ok(());
        }
        self.on_answer(ack, oracle)
    }
}

/// Sequence numbers by topic.
type Sequences = BTreeMap<String, u32>;
