//! The relay of one bridge, from its CONNECT at the remote to the end of either connection.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use codec::{
    Ack, AckKind, Connack, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish, QoS,
    Reason, RetainHandling, Sender, Suback, Subscribe, SubscribeOptions, TopicBuf, Unsubscribe,
    Version, Violation,
};

use crate::copies::{self, Copies};
use crate::forward::{Refusal, forward};
use crate::oversize::{self, Front};
use crate::remote::{self, Login, RemoteLimits};
use crate::settings::{Settings, Ways, covers};
use crate::stale::Release;

/// No more is read from one side while the other has so many bytes to write.
pub const OUT_BYTES_MAX: usize = 256 * 1024;

/// One of the two sessions of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In this broker. It always speaks MQTT 5.
    Local,
    Remote,
}

/// What the driver of a relay does, or reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the local session. Its CONNACK comes as bytes.
    OpenLocal { receive_max: u16 },
    /// Both sessions are connected.
    Opened { local_present: bool, remote_present: bool },
    /// A subscription was refused.
    Refused(Refused),
    /// The first message of this connection that is not relayed for this reason.
    Dropped { from: Side, refusal: Refusal, topic: String },
    /// All subscriptions are answered.
    Up,
}

/// A subscription that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub side: Side,
    pub filter: String,
    pub reason: Reason,
}

/// Why the connections of a bridge end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// CONNACK with a reason.
    ConnectRefused {
        side: Side,
        reason: Reason,
    },
    /// The remote does not know the announcement of a bridge: connect without it.
    Unannounced,
    /// DISCONNECT of a broker.
    Disconnected {
        side: Side,
        reason: Reason,
    },
    Violation {
        side: Side,
        violation: Violation,
    },
    /// A packet that does not come at this time.
    Unexpected {
        side: Side,
        packet: &'static str,
    },
    /// The remote has not answered within the keep-alive.
    Silent,
}

/// Messages of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// To the remote.
    pub sent: u64,
    /// From the remote.
    pub received: u64,
    /// Not relayed, by [`Refusal`]: to the remote, and from it.
    pub refused: [[u64; Refusal::ALL.len()]; 2],
    /// That the remote, and this broker, have answered with an error.
    pub rejected: [u64; 2],
}

/// See the head of this crate.
#[derive(Debug)]
pub struct Relay {
    settings: Arc<Settings>,
    ways: Ways,
    state_topic: Option<String>,
    phase: Phase,
    remote: RemoteLimits,
    copies: Copies,
    sides: [Peer; 2],
    actions: VecDeque<Action>,
    counts: Counts,
    /// Reasons of which a first message was reported, by sender.
    reported: [[bool; Refusal::ALL.len()]; 2],
    sent_ms: u64,
    heard_ms: u64,
    /// When the PINGREQ without an answer was sent.
    pinged_ms: Option<u64>,
    /// Bytes to come of a message that is too large.
    skipped: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Phase {
    AwaitsRemote,
    AwaitsLocal,
    /// Identifiers are released, if one side has lost its session.
    Releases,
    Subscribes,
    Up,
}

/// What concerns one side.
#[derive(Debug, Default)]
struct Peer {
    out: Vec<u8>,
    /// Bytes of `out` that are written.
    written: usize,
    release: Option<Release>,
    /// Identifiers of refused messages that this side may know: they are refused at the other side
    /// when this side has released them. At most the messages in flight.
    refusing: BTreeSet<u16>,
    /// Filters of SUBSCRIBE and UNSUBSCRIBE without an answer.
    asked: BTreeMap<u16, String>,
    /// Filters of an earlier configuration.
    earlier: Vec<String>,
    subscribed: BTreeSet<String>,
    refused: Vec<String>,
    ids_taken: u16,
}

impl Side {
    pub const ALL: [Self; 2] = [Self::Local, Self::Remote];

    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl Relay {
    /// The connection to the remote is open. The first bytes for it are the CONNECT.
    pub fn new(settings: Arc<Settings>, login: &Login, now_ms: u64) -> Self {
        let mut sides = [Peer::default(), Peer::default()];
        remote::write_connect(&settings, login, &mut sides[Side::Remote as usize].out);
        Self {
            ways: Ways::of(&settings.maps),
            state_topic: login.state_topic.clone(),
            phase: Phase::AwaitsRemote,
            remote: RemoteLimits {
                session_present: false,
                receive_max: u16::MAX,
                packet_bytes_max: u32::MAX,
                qos_max: QoS::ExactlyOnce,
                retain_available: true,
                has_subscription_ids: false,
                keep_alive_secs: settings.keep_alive_secs,
            },
            copies: Copies::default(),
            sides,
            actions: VecDeque::new(),
            counts: Counts::default(),
            reported: Default::default(),
            sent_ms: now_ms,
            heard_ms: now_ms,
            pinged_ms: None,
            skipped: 0,
            settings,
        }
    }

    /// Filters that an earlier configuration may have subscribed to. Those that are not subscribed
    /// to now are removed.
    pub fn set_earlier(&mut self, side: Side, filters: Vec<String>) {
        self.peer(side).earlier = filters;
    }

    /// Takes whole packets of one side; says how many bytes. The others are to be given again,
    /// with what follows them, or when output was written.
    ///
    /// # Errors
    ///
    /// Why both connections are to be closed.
    pub fn on_bytes(&mut self, side: Side, bytes: &[u8], now_ms: u64) -> Result<usize, Down> {
        if side == Side::Remote {
            (self.heard_ms, self.pinged_ms) = (now_ms, None);
        }
        let (version, bytes_max) = match side {
            Side::Local => (Version::V5, u32::MAX),
            Side::Remote => (self.settings.version, self.settings.packet_bytes_max),
        };
        let mut taken = 0;
        while self.takes(side) {
            if side == Side::Remote {
                let skipped = self.skipped.min(bytes.len() - taken);
                self.skipped -= skipped;
                taken += skipped;
                match self.look(&bytes[taken..]) {
                    Front::Usual => {}
                    Front::Incomplete => break,
                    Front::Oversize(publish, len) => {
                        self.refuse(side, &publish, Refusal::Size);
                        self.skipped = len;
                        continue;
                    }
                }
            }
            let decoded = codec::decode(&bytes[taken..], version, Sender::Server, bytes_max);
            let decoded = decoded.map_err(|violation| Down::Violation { side, violation })?;
            let Some((packet, len)) = decoded else { break };
            self.on_packet(side, &packet)?;
            taken += len;
        }
        Ok(taken)
    }

    /// Does it take packets of this side now?
    pub fn takes(&self, side: Side) -> bool {
        let is_in_phase = match side {
            Side::Local => self.phase >= Phase::AwaitsLocal,
            // The local session may know identifiers that the remote uses for other messages.
            Side::Remote => {
                self.phase == Phase::AwaitsRemote
                    || self.phase >= Phase::Releases && self.sides[0].release.is_none()
            }
        };
        let own = self.unwritten(side).len();
        let other = self.unwritten(side.other()).len();
        // Refusals are short. A peer that sends and does not read has to stop some time.
        is_in_phase && other < OUT_BYTES_MAX && own < 2 * OUT_BYTES_MAX
    }

    /// Bytes to be written to a side.
    pub fn unwritten(&self, side: Side) -> &[u8] {
        let peer = &self.sides[side as usize];
        &peer.out[peer.written..]
    }

    /// So many of them are written.
    pub fn on_written(&mut self, side: Side, bytes: usize, now_ms: u64) {
        if side == Side::Remote && bytes > 0 {
            self.sent_ms = now_ms;
        }
        let peer = self.peer(side);
        peer.written += bytes;
        if peer.written == peer.out.len() {
            peer.out.clear();
            peer.written = 0;
        } else if peer.written >= OUT_BYTES_MAX {
            peer.out.drain(..peer.written);
            peer.written = 0;
        }
        self.advance();
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Those of this connection.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    pub fn is_up(&self) -> bool {
        self.phase == Phase::Up
    }

    /// Looks after the keep-alive. `is_read`: bytes of the remote are read as they come.
    ///
    /// # Errors
    ///
    /// When the remote does not answer.
    pub fn on_tick(&mut self, now_ms: u64, is_read: bool) -> Result<(), Down> {
        let keep_alive_ms = u64::from(self.remote.keep_alive_secs) * 1000;
        if keep_alive_ms == 0 || self.phase < Phase::Releases {
            return Ok(());
        }
        match self.pinged_ms {
            Some(since_ms) if is_read && now_ms >= since_ms + keep_alive_ms => {
                return Err(Down::Silent);
            }
            Some(_) => {}
            // A remote may be gone though the bridge sends.
            None if now_ms >= self.sent_ms.min(self.heard_ms) + keep_alive_ms * 3 / 4 => {
                Packet::Pingreq.encode(self.settings.version, &mut self.peer(Side::Remote).out);
                self.pinged_ms = Some(now_ms);
            }
            None => {}
        }
        Ok(())
    }

    /// Appends the last packets of both connections.
    pub fn say_farewell(&mut self) {
        if self.phase >= Phase::Releases {
            self.publish_state(remote::DOWN);
        }
        let packet = Packet::Disconnect(codec::Disconnect {
            reason: Reason::NORMAL_DISCONNECTION,
            properties: Properties::EMPTY,
        });
        for side in Side::ALL {
            packet.encode(self.version_of(side), &mut self.peer(side).out);
        }
    }

    fn look<'a>(&self, bytes: &'a [u8]) -> Front<'a> {
        match self.phase >= Phase::Releases && self.settings.version < Version::V5 {
            true => oversize::look(bytes, self.settings.packet_bytes_max),
            false => Front::Usual,
        }
    }

    fn on_packet(&mut self, side: Side, packet: &Packet<'_>) -> Result<(), Down> {
        match (packet, side, self.phase) {
            (Packet::Connack(connack), Side::Remote, Phase::AwaitsRemote) => {
                self.on_remote_connack(connack)
            }
            (Packet::Connack(connack), Side::Local, Phase::AwaitsLocal) => {
                self.on_local_connack(connack)
            }
            (Packet::Disconnect(disconnect), ..) => {
                Err(Down::Disconnected { side, reason: disconnect.reason })
            }
            (_, _, phase) if phase < Phase::Releases => {
                Err(Down::Unexpected { side, packet: packet.name() })
            }
            (Packet::Publish(publish), ..) => {
                self.on_publish(side, publish);
                Ok(())
            }
            (Packet::Ack(ack), ..) => {
                self.on_ack(side, ack);
                Ok(())
            }
            (Packet::Suback(suback), ..) => {
                self.on_suback(side, suback);
                Ok(())
            }
            (Packet::Unsuback(unsuback), ..) => {
                self.peer(side).asked.remove(&unsuback.packet_id);
                self.rise_if_answered();
                Ok(())
            }
            (Packet::Pingresp, ..) => Ok(()),
            _ => Err(Down::Unexpected { side, packet: packet.name() }),
        }
    }

    fn on_remote_connack(&mut self, connack: &Connack<'_>) -> Result<(), Down> {
        if remote::refuses_announcement(connack, &self.settings) {
            return Err(Down::Unannounced);
        }
        if connack.reason.is_error() {
            let (side, reason) = (Side::Remote, connack.reason);
            return Err(Down::ConnectRefused { side, reason });
        }
        self.remote = RemoteLimits::of(connack, &self.settings);
        self.phase = Phase::AwaitsLocal;
        let receive_max = self.remote.receive_max.min(self.settings.in_flight_max);
        self.actions.push_back(Action::OpenLocal { receive_max });
        Ok(())
    }

    fn on_local_connack(&mut self, connack: &Connack<'_>) -> Result<(), Down> {
        if connack.reason.is_error() {
            let (side, reason) = (Side::Local, connack.reason);
            return Err(Down::ConnectRefused { side, reason });
        }
        let local_present = connack.session_present;
        let remote_present = self.remote.session_present;
        self.actions.push_back(Action::Opened { local_present, remote_present });
        self.phase = Phase::Releases;
        if local_present && !remote_present && self.settings.has_in() {
            self.peer(Side::Local).release = Some(Release::new());
        }
        if remote_present && !local_present && self.settings.has_out() {
            self.peer(Side::Remote).release = Some(Release::new());
        }
        self.advance();
        Ok(())
    }

    fn on_publish(&mut self, from: Side, publish: &Publish<'_>) {
        if from == Side::Remote && self.copies.is_surplus(publish.topic, publish.properties) {
            return self.refuse(from, publish, Refusal::Copy);
        }
        let Self { settings, ways, remote, sides, .. } = self;
        let out = &mut sides[from.other() as usize].out;
        match (forward(settings, ways, remote, from, publish, out), from) {
            (Ok(()), Side::Local) => self.counts.sent += 1,
            (Ok(()), Side::Remote) => self.counts.received += 1,
            (Err(refusal), _) => self.refuse(from, publish, refusal),
        }
    }

    fn refuse(&mut self, from: Side, publish: &Publish<'_>, refusal: Refusal) {
        self.counts.refused[from as usize][refusal as usize] += 1;
        let is_reported = &mut self.reported[from as usize][refusal as usize];
        // A surplus copy is nothing that an operator could mend.
        if refusal != Refusal::Copy && !std::mem::replace(is_reported, true) {
            let topic = publish.topic.to_owned();
            self.actions.push_back(Action::Dropped { from, refusal, topic });
        }
        let packet_id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(from, AckKind::Puback, packet_id, NOT_RELAYED),
            // The receiver may have accepted it under an earlier configuration, and would take the
            // next message with this identifier for a repetition.
            QoS::ExactlyOnce if publish.dup => {
                self.peer(from.other()).refusing.insert(packet_id);
                self.ack(from.other(), AckKind::Pubrel, packet_id, Reason::SUCCESS);
            }
            QoS::ExactlyOnce => self.ack(from, AckKind::Pubrec, packet_id, NOT_RELAYED),
        }
    }

    fn on_ack(&mut self, from: Side, ack: &Ack<'_>) {
        if ack.kind == AckKind::Pubcomp {
            if let Some(release) = &mut self.peer(from).release {
                release.on_pubcomp();
                return self.advance();
            }
            if self.peer(from).refusing.remove(&ack.packet_id) {
                return self.ack(from.other(), AckKind::Pubrec, ack.packet_id, NOT_RELAYED);
            }
        }
        if matches!(ack.kind, AckKind::Puback | AckKind::Pubrec) && ack.reason.is_error() {
            self.counts.rejected[from.other() as usize] += 1;
        }
        self.ack(from.other(), ack.kind, ack.packet_id, ack.reason);
    }

    fn ack(&mut self, to: Side, kind: AckKind, packet_id: u16, reason: Reason) {
        let version = self.version_of(to);
        let packet = Packet::Ack(Ack::new(kind, packet_id, reason));
        packet.encode(version, &mut self.peer(to).out);
    }

    fn on_suback(&mut self, side: Side, suback: &Suback<'_>) {
        let Some(filter) = self.peer(side).asked.remove(&suback.packet_id) else { return };
        let reason = suback.reasons.first().map_or(Reason::SUCCESS, |code| Reason(*code));
        if reason.is_error() {
            self.peer(side).refused.push(filter.clone());
            self.copies.remove(&filter);
            self.actions.push_back(Action::Refused(Refused { side, filter, reason }));
            if side == Side::Remote {
                self.subscribe_at_remote();
            }
        }
        self.rise_if_answered();
    }

    /// Goes on with what waits for output or an answer.
    fn advance(&mut self) {
        if self.phase != Phase::Releases {
            return;
        }
        for side in Side::ALL {
            let version = self.version_of(side);
            let peer = self.peer(side);
            if let Some(release) = &mut peer.release {
                release.write(version, &mut peer.out, OUT_BYTES_MAX);
                if release.is_done() {
                    peer.release = None;
                }
            }
        }
        if self.sides.iter().all(|peer| peer.release.is_none()) {
            self.phase = Phase::Subscribes;
            self.subscribe();
        }
    }

    fn subscribe(&mut self) {
        let settings = self.settings.clone();
        for map in &settings.maps {
            let qos = map.qos.min(self.remote.qos_max);
            if map.direction.has_out() {
                self.subscribe_at(Side::Local, map.local_filter(), qos);
            }
        }
        self.subscribe_at_remote();
        let remote = &self.sides[Side::Remote as usize];
        let is_known = |filter| remote.earlier.contains(filter);
        if !remote.earlier.is_empty() && !remote.subscribed.iter().all(is_known) {
            // Queued copies may lack that of a new subscription.
            self.copies.relay_all();
        }
        for side in Side::ALL {
            for filter in std::mem::take(&mut self.peer(side).earlier) {
                self.unsubscribe_at(side, filter);
            }
        }
        self.rise_if_answered();
    }

    /// Subscribes to the filters that no other one covers: a remote may send a copy of a message
    /// for each subscription. A filter that was refused covers nothing.
    fn subscribe_at_remote(&mut self) {
        let settings = self.settings.clone();
        let maps = settings.maps.iter().filter(|map| map.direction.has_in());
        let refused = std::mem::take(&mut self.peer(Side::Remote).refused);
        for map in maps.clone() {
            let filter = map.remote_filter();
            let is_covered = maps.clone().any(|other| {
                let wide = other.remote_filter();
                wide != filter
                    && other.qos >= map.qos
                    && covers(&wide, &filter)
                    && !refused.contains(&wide)
            });
            if !is_covered && !refused.contains(&filter) {
                self.subscribe_at(Side::Remote, filter, map.qos.min(self.remote.qos_max));
            }
        }
        self.peer(Side::Remote).refused = refused;
    }

    fn subscribe_at(&mut self, side: Side, filter: String, qos: QoS) {
        let version = self.version_of(side);
        let peer = self.peer(side);
        if peer.subscribed.contains(&filter) {
            return;
        }
        let mut properties = PropertyBuf::new();
        if side == Side::Remote && self.remote.has_subscription_ids {
            properties.push(Property::SubscriptionId(copies::id_of(&filter)));
            self.copies.add(&filter, qos);
        }
        let peer = &mut self.sides[side as usize];
        let packet_id = peer.take_id();
        let options = SubscribeOptions {
            qos,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::IfNew,
        };
        let mut filters = FilterBuf::new();
        filters.push(&filter, options);
        let (properties, filters) = (properties.as_properties(), filters.as_filters());
        let packet = Packet::Subscribe(Subscribe { packet_id, properties, filters });
        packet.encode(version, &mut peer.out);
        peer.subscribed.insert(filter.clone());
        peer.asked.insert(packet_id, filter);
    }

    fn unsubscribe_at(&mut self, side: Side, filter: String) {
        let version = self.version_of(side);
        let peer = self.peer(side);
        if peer.subscribed.contains(&filter) {
            return;
        }
        let packet_id = peer.take_id();
        let mut filters = TopicBuf::new();
        filters.push(&filter);
        let (properties, filters) = (Properties::EMPTY, filters.as_topics());
        let packet = Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters });
        packet.encode(version, &mut peer.out);
        peer.asked.insert(packet_id, filter);
    }

    fn rise_if_answered(&mut self) {
        let is_answered = self.sides.iter().all(|peer| peer.asked.is_empty());
        if self.phase != Phase::Subscribes || !is_answered {
            return;
        }
        self.phase = Phase::Up;
        self.publish_state(remote::UP);
        self.actions.push_back(Action::Up);
    }

    fn publish_state(&mut self, payload: &[u8]) {
        let Some(topic) = self.state_topic.clone() else { return };
        let (version, retain) = (self.settings.version, self.remote.retain_available);
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic: &topic,
            packet_id: 0,
            properties: Properties::EMPTY,
            payload,
        };
        publish.encode(version, &mut self.peer(Side::Remote).out);
    }

    fn version_of(&self, side: Side) -> Version {
        match side {
            Side::Local => Version::V5,
            Side::Remote => self.settings.version,
        }
    }

    fn peer(&mut self, side: Side) -> &mut Peer {
        &mut self.sides[side as usize]
    }
}

impl Peer {
    /// For a SUBSCRIBE or UNSUBSCRIBE. Messages in flight mostly have low ones.
    fn take_id(&mut self) -> u16 {
        self.ids_taken += 1;
        u16::MAX - (self.ids_taken - 1)
    }
}

/// The answer to a message that is not relayed.
const NOT_RELAYED: Reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HOPS_PROPERTY;
    use crate::settings::tests::settings;

    /// A relay whose brokers have answered with these CONNACKs.
    fn opened(settings: Settings, local_present: bool, remote: &Connack<'_>) -> Relay {
        let version = settings.version;
        let mut relay = Relay::new(Arc::new(settings), &Login::default(), 0);
        take(&mut relay, Side::Remote);
        give(&mut relay, Side::Remote, version, &Packet::Connack(*remote)).unwrap();
        let local = connack(local_present, Properties::EMPTY);
        give(&mut relay, Side::Local, Version::V5, &Packet::Connack(local)).unwrap();
        relay
    }

    fn connack(session_present: bool, properties: Properties<'_>) -> Connack<'_> {
        Connack { session_present, reason: Reason::SUCCESS, properties }
    }

    fn up(version: Version, lines: &[&str], properties: Properties<'_>) -> Relay {
        let mut relay = opened(settings(version, lines), false, &connack(false, properties));
        for side in Side::ALL {
            let version = relay.version_of(side);
            for id in relay.peer(side).asked.clone().into_keys() {
                let suback = Suback { packet_id: id, properties: Properties::EMPTY, reasons: &[1] };
                give(&mut relay, side, version, &Packet::Suback(suback)).unwrap();
            }
            take(&mut relay, side);
        }
        assert!(relay.is_up());
        while relay.next_action().is_some() {}
        relay
    }

    fn give(
        relay: &mut Relay,
        side: Side,
        version: Version,
        packet: &Packet<'_>,
    ) -> Result<usize, Down> {
        let mut bytes = Vec::new();
        packet.encode(version, &mut bytes);
        relay.on_bytes(side, &bytes, 0)
    }

    /// What is to be written to a side.
    fn take(relay: &mut Relay, side: Side) -> Vec<u8> {
        let bytes = relay.unwritten(side).to_vec();
        relay.on_written(side, bytes.len(), 0);
        bytes
    }

    fn message<'a>(topic: &'a str, qos: QoS, properties: Properties<'a>) -> Publish<'a> {
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { 7 };
        let (dup, retain, payload) = (false, true, &b"payload"[..]);
        Publish { dup, qos, retain, topic, packet_id, properties, payload }
    }

    fn ack_bytes(version: Version, kind: AckKind, reason: Reason) -> Vec<u8> {
        let mut bytes = Vec::new();
        Packet::Ack(Ack::new(kind, 7, reason)).encode(version, &mut bytes);
        bytes
    }

    const NONE: Properties<'static> = Properties::EMPTY;

    #[test]
    fn a_message_keeps_its_identifier_and_its_own_properties() {
        let mut relay = up(Version::V5, &["# both 2 here/ there/"], NONE);
        let mut properties = PropertyBuf::new();
        properties.push(Property::SubscriptionId(3)).push(Property::MessageExpirySecs(9));
        properties.push(Property::User(HOPS_PROPERTY, "2"));
        let publish = message("here/a", QoS::ExactlyOnce, properties.as_properties());
        give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
        let bytes = take(&mut relay, Side::Remote);
        let decoded = codec::decode(&bytes, Version::V5, Sender::Client, 1_000).unwrap();
        let Some((Packet::Publish(got), _)) = decoded else { panic!("{decoded:?}") };
        assert_eq!((got.topic, got.packet_id, got.qos), ("there/a", 7, QoS::ExactlyOnce));
        assert!(got.retain);
        let properties: Vec<_> = got.properties.iter().collect();
        let hops = Property::User(HOPS_PROPERTY, "3");
        assert_eq!(properties, [Property::MessageExpirySecs(9), hops]);
        assert_eq!(relay.counts().sent, 1);
    }

    #[test]
    fn acknowledgements_are_passed_on_with_their_reasons() {
        let mut relay = up(Version::V5, &["# both 2 here/ there/"], NONE);
        let refused = Ack::new(AckKind::Puback, 7, Reason::QUOTA_EXCEEDED);
        give(&mut relay, Side::Remote, Version::V5, &Packet::Ack(refused)).unwrap();
        let passed = ack_bytes(Version::V5, AckKind::Puback, Reason::QUOTA_EXCEEDED);
        assert_eq!(take(&mut relay, Side::Local), passed);
        assert_eq!(relay.counts().rejected, [1, 0]);
        let mut old = up(Version::V311, &["# both 2 here/ there/"], NONE);
        give(&mut old, Side::Local, Version::V5, &Packet::Ack(refused)).unwrap();
        let passed = ack_bytes(Version::V311, AckKind::Puback, Reason::SUCCESS);
        assert_eq!(take(&mut old, Side::Remote), passed);
        assert_eq!(old.counts().rejected, [0, 1]);
    }

    #[test]
    fn a_message_that_is_not_relayed_is_answered_and_reported_once() {
        let mut properties = PropertyBuf::new();
        properties.push(Property::PacketBytesMax(60)).push(Property::QosMax(1));
        let mut relay = up(Version::V5, &["a/# out 2  "], properties.as_properties());
        let mut hops = PropertyBuf::new();
        hops.push(Property::User(HOPS_PROPERTY, "4"));
        let mut strange = PropertyBuf::new();
        strange.push(Property::User(HOPS_PROPERTY, "many"));
        let long = format!("a/{}", "x".repeat(60));
        let cases = [
            (message("b", QoS::AtLeastOnce, NONE), Refusal::Unmapped),
            (message("a/b", QoS::AtLeastOnce, hops.as_properties()), Refusal::Hops),
            (message("a/b", QoS::AtLeastOnce, strange.as_properties()), Refusal::Hops),
            (message(&long, QoS::AtLeastOnce, NONE), Refusal::Size),
            (message("a/b", QoS::ExactlyOnce, NONE), Refusal::Qos),
        ];
        let mut reported = Vec::new();
        for (publish, refusal) in cases {
            let before = relay.counts().refused[0][refusal as usize];
            give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
            let kind =
                if publish.qos == QoS::ExactlyOnce { AckKind::Pubrec } else { AckKind::Puback };
            let expected = ack_bytes(Version::V5, kind, NOT_RELAYED);
            assert_eq!(take(&mut relay, Side::Local), expected, "{refusal:?}");
            assert_eq!(take(&mut relay, Side::Remote), [], "{refusal:?}");
            assert_eq!(relay.counts().refused[0][refusal as usize], before + 1);
            while let Some(Action::Dropped { refusal, .. }) = relay.next_action() {
                reported.push(refusal);
            }
        }
        assert_eq!(reported, [Refusal::Unmapped, Refusal::Hops, Refusal::Size, Refusal::Qos]);
    }

    /// The remote may have accepted it before it became too large, and know its identifier.
    #[test]
    fn a_repetition_is_refused_once_the_other_side_has_released_it() {
        let mut relay = up(Version::V311, &["a out 2  "], NONE);
        let publish = Publish { dup: true, ..message("b", QoS::ExactlyOnce, NONE) };
        give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
        assert_eq!(take(&mut relay, Side::Local), []);
        let pubrel = ack_bytes(Version::V311, AckKind::Pubrel, Reason::SUCCESS);
        assert_eq!(take(&mut relay, Side::Remote), pubrel);
        let pubcomp = Ack::new(AckKind::Pubcomp, 7, Reason::SUCCESS);
        give(&mut relay, Side::Remote, Version::V311, &Packet::Ack(pubcomp)).unwrap();
        let refused = ack_bytes(Version::V5, AckKind::Pubrec, NOT_RELAYED);
        assert_eq!(take(&mut relay, Side::Local), refused);
    }

    #[test]
    fn a_remote_without_retained_messages_gets_an_ordinary_one() {
        let mut properties = PropertyBuf::new();
        properties.push(Property::RetainAvailable(false));
        let mut relay = up(Version::V5, &["a out 1  "], properties.as_properties());
        let publish = message("a", QoS::AtMostOnce, NONE);
        give(&mut relay, Side::Local, Version::V5, &Packet::Publish(publish)).unwrap();
        assert_eq!(take(&mut relay, Side::Remote)[0], 0x30);
    }

    #[test]
    fn the_window_is_the_smaller_of_both() {
        for (remote, expected) in [(None, 10), (Some(3), 3), (Some(99), 10)] {
            let mut properties = PropertyBuf::new();
            if let Some(max) = remote {
                properties.push(Property::ReceiveMax(max));
            }
            let mut relay = opened(
                settings(Version::V5, &["a out 1  "]),
                false,
                &connack(false, properties.as_properties()),
            );
            let action = relay.next_action();
            assert_eq!(action, Some(Action::OpenLocal { receive_max: expected }));
        }
    }

    #[test]
    fn a_side_that_does_not_read_stops_the_other() {
        let mut relay = up(Version::V311, &["a both 1  "], NONE);
        let mut bytes = Vec::new();
        message("a", QoS::AtMostOnce, NONE).encode(Version::V5, &mut bytes);
        let packet_len = bytes.len();
        let many = bytes.repeat(OUT_BYTES_MAX / 5);
        let taken = relay.on_bytes(Side::Local, &many, 0).unwrap();
        assert!(taken < many.len() && taken.is_multiple_of(packet_len));
        let waiting = relay.unwritten(Side::Remote).len();
        assert!((OUT_BYTES_MAX..OUT_BYTES_MAX + packet_len).contains(&waiting), "{waiting}");
        assert!(!relay.takes(Side::Local) && relay.takes(Side::Remote));
        // It goes on where it has stopped.
        relay.on_written(Side::Remote, waiting, 0);
        assert!(relay.on_bytes(Side::Local, &many[taken..], 0).unwrap() > 0);
    }

    #[test]
    fn a_refused_subscription_is_reported_and_the_bridge_is_up() {
        let mut relay =
            opened(settings(Version::V311, &["a in 1  "]), false, &connack(false, NONE));
        let suback = Suback { packet_id: u16::MAX, properties: NONE, reasons: &[0x80] };
        give(&mut relay, Side::Remote, Version::V311, &Packet::Suback(suback)).unwrap();
        let (side, filter, reason) = (Side::Remote, "a".to_owned(), Reason::UNSPECIFIED_ERROR);
        let actions: Vec<_> = std::iter::from_fn(|| relay.next_action()).collect();
        let refused = Action::Refused(Refused { side, filter, reason });
        assert_eq!(actions[2..], [refused, Action::Up]);
    }

    #[test]
    fn a_remote_that_does_not_answer_a_ping_is_left() {
        let mut relay = up(Version::V311, &["a out 1  "], NONE);
        relay.on_tick(44_999, true).unwrap();
        assert_eq!(take(&mut relay, Side::Remote), []);
        relay.on_tick(45_000, true).unwrap();
        assert_eq!(take(&mut relay, Side::Remote), [0xC0, 0]);
        // While its bytes are not read, an answer may wait among them.
        relay.on_tick(105_000, false).unwrap();
        relay.on_tick(104_999, true).unwrap();
        assert_eq!(relay.on_tick(105_000, true), Err(Down::Silent));
        give(&mut relay, Side::Remote, Version::V311, &Packet::Pingresp).unwrap();
        relay.on_tick(105_000, true).unwrap();
    }

    #[test]
    fn a_remote_that_does_not_know_bridges_is_told_apart_from_a_refusal() {
        let refused =
            Connack { reason: Reason::UNSUPPORTED_PROTOCOL_VERSION, ..connack(false, NONE) };
        let packet = Packet::Connack(refused);
        let begun = |is_announced| {
            let own = Settings { is_announced, ..settings(Version::V311, &["a out 1  "]) };
            let mut relay = Relay::new(Arc::new(own), &Login::default(), 0);
            give(&mut relay, Side::Remote, Version::V311, &packet).unwrap_err()
        };
        assert_eq!(begun(true), Down::Unannounced);
        assert!(matches!(begun(false), Down::ConnectRefused { side: Side::Remote, .. }));
    }

    #[test]
    fn a_message_of_an_old_remote_that_is_too_large_is_answered_and_skipped() {
        let mut relay = up(Version::V311, &["a in 1  "], NONE);
        let large = Publish { payload: &[0x30; 2_000], ..message("a", QoS::AtLeastOnce, NONE) };
        let mut bytes = Vec::new();
        large.encode(Version::V311, &mut bytes);
        message("a", QoS::AtMostOnce, NONE).encode(Version::V311, &mut bytes);
        // In pieces, as they come.
        let mut waiting = Vec::new();
        for piece in bytes.chunks(5) {
            waiting.extend_from_slice(piece);
            let taken = relay.on_bytes(Side::Remote, &waiting, 0).unwrap();
            waiting.drain(..taken);
        }
        assert_eq!(waiting, []);
        assert_eq!(relay.counts().refused[1][Refusal::Size as usize], 1);
        assert_eq!(relay.counts().received, 1);
        let puback = ack_bytes(Version::V311, AckKind::Puback, Reason::SUCCESS);
        assert_eq!(take(&mut relay, Side::Remote), puback);
    }

    #[test]
    fn subscriptions_that_are_gone_are_removed() {
        let own = Arc::new(settings(Version::V311, &["a in 1  "]));
        let mut relay = Relay::new(own, &Login::default(), 0);
        relay.set_earlier(Side::Remote, vec!["old/#".into()]);
        take(&mut relay, Side::Remote);
        let connack = Packet::Connack(connack(false, NONE));
        give(&mut relay, Side::Remote, Version::V311, &connack).unwrap();
        give(&mut relay, Side::Local, Version::V5, &connack).unwrap();
        let bytes = take(&mut relay, Side::Remote);
        let unsuback = [0xB0, 2, 0xFF, 0xFE];
        assert!(!relay.is_up());
        let wanted = b"\xA2\x09\xFF\xFE\x00\x05old/#";
        assert!(bytes.ends_with(wanted), "{bytes:?}");
        relay.on_bytes(Side::Remote, &[0x90, 3, 0xFF, 0xFF, 1], 0).unwrap();
        assert!(!relay.is_up());
        relay.on_bytes(Side::Remote, &unsuback, 0).unwrap();
        assert!(relay.is_up());
    }

    #[test]
    fn a_covered_filter_is_subscribed_to_once_the_wider_one_is_refused() {
        let lines = ["a/# in 1  ", "a/b in 1  ", "a/c in 2  "];
        let mut relay = opened(settings(Version::V311, &lines), false, &connack(false, NONE));
        let asked = |relay: &Relay| relay.sides[1].asked.values().cloned().collect::<Vec<_>>();
        assert_eq!(asked(&relay), ["a/c", "a/#"]);
        relay.on_bytes(Side::Remote, &[0x90, 3, 0xFF, 0xFF, 0x80], 0).unwrap();
        assert_eq!(asked(&relay), ["a/b", "a/c"]);
    }
}
