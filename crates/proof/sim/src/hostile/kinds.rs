//! What each kind of hostile client does.

use codec::{
    Auth, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish, QoS, Reason, Subscribe,
    SubscribeOptions, TopicBuf, Unsubscribe, Version,
};

use super::Hostile;
use crate::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostileKind {
    /// Subscribes to all there is, asks on and on, and reads nothing.
    Mute,
    /// Sends large packets, and some that never end.
    Giant,
    /// Subscribes to many filters in each packet, and gives them up.
    Subscriber,
    /// Founds groups, joins others, and goes.
    Joiner,
    /// Retains large messages, and writes them anew.
    Retainer,
    /// Opens sessions, fills their queues, and leaves them.
    Ghost,
    /// Authenticates anew all the time.
    Authenticator,
    /// Takes over its own session, with a will each time.
    Taker,
    /// Sends many small messages at a time, each for many subscriptions.
    Flooder,
    /// Sends what is no packet.
    Babbler,
}

impl HostileKind {
    pub(super) const ALL: [Self; 10] = [
        Self::Mute,
        Self::Giant,
        Self::Subscriber,
        Self::Joiner,
        Self::Retainer,
        Self::Ghost,
        Self::Authenticator,
        Self::Taker,
        Self::Flooder,
        Self::Babbler,
    ];

    pub(super) const fn reads(self) -> bool {
        !matches!(self, Self::Mute | Self::Giant)
    }

    /// Client ids that one of them uses.
    pub(super) const fn ids(self) -> usize {
        match self {
            Self::Ghost | Self::Joiner => 4,
            _ => 1,
        }
    }

    /// Seconds that its sessions outlive their connections.
    pub(super) fn expiry_secs(self, random: &mut Random) -> u32 {
        match self {
            Self::Ghost => SESSION_SECS_MAX,
            _ => [0, 0, 5, SESSION_SECS_MAX][random.below(4)],
        }
    }

    /// Of a hundred acts, those by which it leaves without a word.
    pub(super) const fn breaks_percent(self) -> usize {
        match self {
            Self::Mute | Self::Retainer => 1,
            Self::Taker | Self::Joiner | Self::Ghost => 20,
            _ => 5,
        }
    }
}

impl Hostile {
    /// The next bytes, of any number of packets.
    pub(super) fn write(&mut self, version: Version, random: &mut Random) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.kind {
            HostileKind::Mute => self.ask_on(version, random, &mut bytes),
            HostileKind::Giant => self.write_giant(version, random, &mut bytes),
            HostileKind::Subscriber => self.write_filters(version, random, &mut bytes),
            HostileKind::Joiner => self.join(version, random, &mut bytes),
            HostileKind::Retainer => {
                let topic = format!("x/{}/{}", self.user, random.below(RETAINED_TOPICS));
                let len = random.below(LARGE_BYTES);
                self.publish(version, &topic, (QoS::AtLeastOnce, true), len, &mut bytes);
            }
            HostileKind::Ghost => self.fill_ghosts(version, random, &mut bytes),
            HostileKind::Authenticator => self.authenticate(version, random, &mut bytes),
            HostileKind::Taker => {
                let topic = format!("x/{}/t", self.user);
                self.publish(version, &topic, (QoS::ExactlyOnce, false), 10, &mut bytes);
            }
            HostileKind::Flooder => self.flood(version, random, &mut bytes),
            HostileKind::Babbler => self.babble(version, random, &mut bytes),
        }
        if random.chance(2) {
            // Where it has no right to be: nobody may ever get it.
            let topic = ["t/0/0", "r/0", "g/0", "w/0"][random.below(4)];
            let retain = random.chance(50);
            self.publish_forbidden(version, topic, retain, &mut bytes);
        }
        bytes
    }

    /// What the honest ones have is not for it.
    const fn is_apart(&self) -> bool {
        self.is_guarded || self.is_tenant
    }

    fn packet_id(&mut self) -> u16 {
        self.next_packet_id = self.next_packet_id % 500 + 1;
        self.next_packet_id
    }

    fn subscribe(&mut self, version: Version, filters: &FilterBuf, bytes: &mut Vec<u8>) {
        let (packet_id, properties) = (self.packet_id(), Properties::EMPTY);
        let filters = filters.as_filters();
        Packet::Subscribe(Subscribe { packet_id, properties, filters }).encode(version, bytes);
    }

    fn unsubscribe(&mut self, version: Version, filters: &TopicBuf, bytes: &mut Vec<u8>) {
        let (packet_id, properties) = (self.packet_id(), Properties::EMPTY);
        let filters = filters.as_topics();
        Packet::Unsubscribe(Unsubscribe { packet_id, properties, filters }).encode(version, bytes);
    }

    fn publish(
        &mut self,
        version: Version,
        topic: &str,
        (qos, retain): (QoS, bool),
        len: usize,
        bytes: &mut Vec<u8>,
    ) {
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { self.packet_id() };
        let payload = vec![b'x'; len.max(1)];
        let properties = Properties::EMPTY;
        let (dup, payload) = (false, payload.as_slice());
        let publish = Publish { dup, qos, retain, topic, packet_id, properties, payload };
        Packet::Publish(publish).encode(version, bytes);
    }

    /// Only in worlds whose rules forbid it, or where it is in another namespace: else the honest
    /// ones would rightly get it.
    fn publish_forbidden(
        &mut self,
        version: Version,
        topic: &str,
        retain: bool,
        bytes: &mut Vec<u8>,
    ) {
        if self.is_apart() {
            self.publish(version, topic, (QoS::AtLeastOnce, retain), 3, bytes);
        }
    }

    fn ask_on(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        if random.chance(30) {
            let mut filters = FilterBuf::new();
            // Who may have what an honest group gets would rightly take its part.
            let count = if self.is_apart() { EVERYTHING.len() } else { EVERYTHING.len() - 1 };
            for filter in &EVERYTHING[..count] {
                filters.push(filter, SubscribeOptions::new(QOS[random.below(3)]));
            }
            return self.subscribe(version, &filters, bytes);
        }
        for _ in 0..random.below(2_000) {
            Packet::Pingreq.encode(version, bytes);
        }
    }

    fn write_giant(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        let topic = format!("x/{}/giant", self.user);
        let len = 10_000 + random.below(50_000);
        self.publish(version, &topic, (QOS[random.below(3)], false), len, bytes);
        if random.chance(70) {
            bytes.truncate(1 + random.below(bytes.len() - 1));
            self.tail_bytes = bytes.len();
        }
    }

    fn write_filters(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        self.made = self.made.wrapping_add(1);
        let count = FILTERS_PER_PACKET;
        let first = random.below(4);
        let name = |at: usize| match at % 5 {
            0 => format!("x/{}/+/{:0>60}/#", self.user, first * count + at),
            1 => format!("+/+/{:0>60}/#", first * count + at),
            2 => format!("t/+/{}/{:0>50}", at, first),
            _ => format!("x/{}/{:0>70}/{}", self.user, at, first),
        };
        if random.chance(50) {
            let mut filters = FilterBuf::new();
            (0..count).for_each(|at| {
                filters.push(&name(at), SubscribeOptions::new(QOS[at % 3]));
            });
            return self.subscribe(version, &filters, bytes);
        }
        let mut filters = TopicBuf::new();
        (0..count).for_each(|at| {
            filters.push(&name(at));
        });
        self.unsubscribe(version, &filters, bytes);
    }

    fn join(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        self.made = self.made.wrapping_add(1);
        let names = [
            format!("$share/own{}/x/{}/#", self.made % 7, self.user),
            format!("$share/s/x/{}/#", self.user),
            format!("$share/own{}/t/#", self.made % 3),
            "$share/s/t/#".into(),
            "$share/s/g/#".into(),
        ];
        // As in `ask_on`.
        let count = if self.is_apart() { names.len() } else { names.len() - 1 };
        let name = &names[random.below(count)];
        if random.chance(60) {
            let mut filters = FilterBuf::new();
            filters.push(name, SubscribeOptions::new(QOS[random.below(3)]));
            self.subscribe(version, &filters, bytes);
        } else {
            let mut filters = TopicBuf::new();
            filters.push(name);
            self.unsubscribe(version, &filters, bytes);
        }
        let topic = format!("x/{}/g", self.user);
        self.publish(version, &topic, (QoS::AtLeastOnce, false), 100, bytes);
    }

    fn fill_ghosts(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        if random.chance(30) {
            let mut filters = FilterBuf::new();
            for filter in [format!("x/{}/ghosts", self.user), "t/#".into(), "#".into()] {
                filters.push(&filter, SubscribeOptions::new(QoS::ExactlyOnce));
            }
            self.subscribe(version, &filters, bytes);
        }
        let topic = format!("x/{}/ghosts", self.user);
        for _ in 0..1 + random.below(4) {
            let len = random.below(LARGE_BYTES);
            self.publish(version, &topic, (QoS::AtLeastOnce, false), len, bytes);
        }
    }

    fn authenticate(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        for _ in 0..random.below(50) {
            let mut properties = PropertyBuf::new();
            properties.push(Property::AuthMethod(METHOD));
            properties.push(Property::AuthData(b"again and again"));
            let reason = match random.chance(50) {
                true => Reason::RE_AUTHENTICATE,
                false => Reason::CONTINUE_AUTHENTICATION,
            };
            let properties = properties.as_properties();
            Packet::Auth(Auth { reason, properties }).encode(version, bytes);
        }
    }

    fn flood(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        if random.chance(10) {
            let mut filters = FilterBuf::new();
            for filter in ["x/#", "x/+/flood", "+/+/flood", "+/#"] {
                filters.push(filter, SubscribeOptions::new(QoS::AtMostOnce));
            }
            self.subscribe(version, &filters, bytes);
        }
        let topic = format!("x/{}/flood", self.user);
        for _ in 0..random.below(200) {
            self.publish(version, &topic, (QoS::AtMostOnce, false), 5, bytes);
        }
    }

    fn babble(&mut self, version: Version, random: &mut Random, bytes: &mut Vec<u8>) {
        let topic = format!("x/{}/b", self.user);
        self.publish(version, &topic, (QoS::ExactlyOnce, true), 50, bytes);
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
    }
}

const QOS: [QoS; 3] = [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce];

/// The last is the honest group's.
const EVERYTHING: [&str; 7] = ["#", "t/#", "x/#", "t/+/1", "r/#", "w/#", "$share/s/g/#"];

/// More than a request that is handled in one go.
pub(super) const FILTERS_PER_PACKET: usize = 100;

const RETAINED_TOPICS: usize = 60;

pub(super) const LARGE_BYTES: usize = 16_000;

/// The longest that a session of theirs is kept.
pub(super) const SESSION_SECS_MAX: u32 = 40;

/// Of authentication.
pub(super) const METHOD: &str = "over and over";
