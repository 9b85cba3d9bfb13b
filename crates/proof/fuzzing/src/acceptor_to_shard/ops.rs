//! What happens in a world: the bytes of an input as operations.
//!
//! The first byte of an operation has its kind and the slot of the connection that it is about; how
//! many bytes follow depends on the kind. Packets are made from a few bytes each, so that almost
//! every input says something sound; [`RAW`] and [`MANGLE`] are for what is not.

use broker::Memory;
use codec::{
    Ack, AckKind, Auth, Connect, Disconnect, FilterBuf, Packet, Properties, Property, PropertyBuf,
    Publish, QoS, Reason, RetainHandling, Subscribe, SubscribeOptions, TopicBuf, Unsubscribe,
    Version, Will,
};
use rig::connect_packet;

use super::peer::Peer;
use super::world::{METHOD, PROOF, SLOTS, World};

pub(super) const RAW: u8 = 0;
pub(super) const CONNECT: u8 = 1;
pub(super) const CONNECT_AGAIN: u8 = 2;
pub(super) const PUBLISH: u8 = 3;
pub(super) const SUBSCRIBE: u8 = 4;
pub(super) const UNSUBSCRIBE: u8 = 5;
pub(super) const ACK: u8 = 6;
pub(super) const PING: u8 = 7;
pub(super) const DISCONNECT: u8 = 8;
pub(super) const AUTH: u8 = 9;
pub(super) const READ: u8 = 10;
pub(super) const DELIVER: u8 = 11;
pub(super) const CUT: u8 = 12;
pub(super) const TIME: u8 = 13;
pub(super) const MAIL: u8 = 14;
pub(super) const TURN: u8 = 15;
pub(super) const DISK: u8 = 16;
pub(super) const SETTLE: u8 = 17;
pub(super) const RULES: u8 = 18;
pub(super) const MEMORY: u8 = 19;
pub(super) const ACKNOWLEDGE: u8 = 20;
pub(super) const PUSH_OUT: u8 = 21;
pub(super) const STORM: u8 = 22;
pub(super) const MANGLE: u8 = 23;
pub(super) const KINDS: u8 = 24;

/// Bytes that a client has ready to send; more it does not say.
const SOCKET_BYTES_MAX: usize = 64 * 1024;
const STORM_MAX: usize = 50;

pub(super) const CLIENT_IDS: [&str; 4] = ["c0", "c1", "c2", ""];
const TOPICS: [&str; 16] = [
    "a/x",
    "a/y/z",
    "a/secret",
    "b/x",
    "b/y",
    "p/x",
    "p/",
    "c/c0/x",
    "c/c1/x",
    "s/x",
    "s/y/z",
    "s",
    "/",
    "$SYS/x",
    "s//",
    "s/a-topic-whose-name-is-longer-than-what-some-clients-take",
];
const FILTERS: [&str; 16] = [
    "#",
    "+/+",
    "a/#",
    "a/+",
    "a/x",
    "b/#",
    "p/x",
    "c/c0/#",
    "c/+/x",
    "s/#",
    "s/+/#",
    "$share/g/s/#",
    "$share/g/a/#",
    "$share/h/#",
    "+/x",
    "$SYS/#",
];
/// Payload bytes, from none to more than a packet that stays where it was read.
const PAYLOAD_BYTES: [usize; 8] = [0, 1, 4, 40, 400, 1_000, 5_000, 9_000];
const TIMES_MS: [u64; 8] = [1, 100, 1_000, 5_000, 16_000, 61_000, 600_000, 4_000_000];
const READ_BYTES: [usize; 4] = [usize::MAX, 1, 7, 100];

/// The rest of an input.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl Input<'_> {
    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn take(&mut self, count: usize) -> &[u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// The secret of a user.
pub(super) fn password_of(name: &str) -> &[u8] {
    name.as_bytes()
}

/// One operation; None at the end of the input.
pub(super) fn step(world: &mut World, input: &mut Input<'_>) -> Option<()> {
    let (kind, slot) = operation(input.byte()?);
    match kind {
        RULES => world.change_rules(),
        SETTLE => everybody_is_heard(world),
        TURN => drop(world.end_turns()),
        DISK => drop(world.work_disks()),
        MAIL => {
            let pair = input.byte()?;
            world.carry_mail(usize::from(pair & 15), usize::from(pair >> 4));
        }
        TIME => world.pass(TIMES_MS[usize::from(input.byte()? % 8)]),
        MEMORY => {
            let choices = [Memory::Enough, Memory::Enough, Memory::Short, Memory::Out];
            world.set_memory(choices[usize::from(input.byte()? & 3)]);
        }
        CONNECT => {
            let who = world.newcomer(slot);
            say(world, who, kind, input)?;
        }
        _ => step_of(world, slot, kind, input)?,
    }
    Some(())
}

pub(super) const fn operation(byte: u8) -> (u8, usize) {
    (byte / SLOTS as u8 % KINDS, byte as usize % SLOTS)
}

fn step_of(world: &mut World, slot: usize, kind: u8, input: &mut Input<'_>) -> Option<()> {
    let who = world.slot(slot);
    match kind {
        READ => {
            let count = READ_BYTES[usize::from(input.byte()? & 3)];
            world.read(who, count);
        }
        DELIVER => {
            let count = usize::from(input.byte()?);
            world.deliver(who, if count == 0 { usize::MAX } else { count });
        }
        CUT => world.cut(who),
        PUSH_OUT => world.push_out(who, input.byte()? & 1 != 0),
        ACKNOWLEDGE => world.peers[who].acknowledge(),
        _ => say(world, who, kind, input)?,
    }
    Some(())
}

/// Everything that is under way arrives, in both directions.
fn everybody_is_heard(world: &mut World) {
    for who in 0..world.peers.len() {
        world.deliver(who, usize::MAX);
    }
    world.settle();
}

/// A client has something to send.
fn say(world: &mut World, who: usize, kind: u8, input: &mut Input<'_>) -> Option<()> {
    let peer = &mut world.peers[who];
    if peer.socket.len() > SOCKET_BYTES_MAX {
        return Some(());
    }
    match kind {
        RAW => {
            let count = usize::from(input.byte()? % 64);
            peer.socket.extend_from_slice(input.take(count));
        }
        MANGLE => {
            let (at, with) = (usize::from(input.byte()?), input.byte()?);
            let len = peer.socket.len();
            if len > 0 {
                peer.socket[at % len] ^= with;
            }
        }
        STORM => {
            let count = usize::from(input.byte()?) % STORM_MAX;
            let what = input.byte()?;
            let mut portion = Vec::new();
            let mut one = Peer::new();
            one.speaks = peer.speaks;
            encode(&mut one, operation(what).0, input)?;
            portion.append(&mut one.socket);
            (0..count).for_each(|_| peer.socket.extend_from_slice(&portion));
        }
        _ => encode(peer, kind, input)?,
    }
    Some(())
}

fn encode(peer: &mut Peer, kind: u8, input: &mut Input<'_>) -> Option<()> {
    match kind {
        CONNECT | CONNECT_AGAIN => say_connect(peer, input)?,
        PUBLISH => say_publish(peer, input)?,
        SUBSCRIBE => say_subscribe(peer, input)?,
        UNSUBSCRIBE => {
            let (filter, packet_id) = (input.byte()?, input.byte()?);
            let mut filters = TopicBuf::new();
            filters.push(FILTERS[usize::from(filter & 15)]);
            if filter & 16 != 0 {
                filters.push(FILTERS[usize::from(filter >> 5)]);
            }
            let filters = filters.as_topics();
            let (packet_id, properties) = (packet_id_of(packet_id), Properties::EMPTY);
            let packet = Unsubscribe { packet_id, properties, filters };
            Packet::Unsubscribe(packet).encode(peer.speaks, &mut peer.socket);
        }
        ACK => {
            let choice = input.byte()?;
            let kinds = [AckKind::Puback, AckKind::Pubrec, AckKind::Pubrel, AckKind::Pubcomp];
            let kind = kinds[usize::from(choice & 3)];
            let fails = choice & 64 != 0 && matches!(kind, AckKind::Puback | AckKind::Pubrec);
            let reason = if fails { Reason::UNSPECIFIED_ERROR } else { Reason::SUCCESS };
            let packet_id = packet_id_of(choice >> 2);
            Packet::Ack(Ack::new(kind, packet_id, reason)).encode(peer.speaks, &mut peer.socket);
        }
        DISCONNECT => say_disconnect(peer, input.byte()?),
        AUTH => {
            let choice = input.byte()?;
            let mut properties = PropertyBuf::new();
            let method = if choice & 1 == 0 { METHOD } else { "another" };
            let data = if choice & 2 == 0 { PROOF } else { b"no" };
            properties.push(Property::AuthMethod(method)).push(Property::AuthData(data));
            let is_start = choice & 4 != 0;
            let reason =
                if is_start { Reason::RE_AUTHENTICATE } else { Reason::CONTINUE_AUTHENTICATION };
            let packet = Auth { reason, properties: properties.as_properties() };
            Packet::Auth(packet).encode(Version::V5, &mut peer.socket);
        }
        PING => Packet::Pingreq.encode(peer.speaks, &mut peer.socket),
        _ => {}
    }
    Some(())
}

/// 1 to 8, which collide often.
const fn packet_id_of(choice: u8) -> u16 {
    (choice & 7) as u16 + 1
}

const fn qos_of(choice: u8) -> QoS {
    match choice & 3 {
        0 => QoS::AtMostOnce,
        1 => QoS::AtLeastOnce,
        _ => QoS::ExactlyOnce,
    }
}

fn say_connect(peer: &mut Peer, input: &mut Input<'_>) -> Option<()> {
    let (who, how, last) = (input.byte()?, input.byte()?, input.byte()?);
    let version = [Version::V31, Version::V311, Version::V5, Version::V5];
    let version = version[usize::from(who >> 2 & 3)];
    let username = [None, Some("anna"), Some("bruno"), Some("eve")][usize::from(who >> 4 & 3)];
    let username = username.filter(|_| how & 64 == 0);
    let password = username.map(|name| if name == "eve" { b"?" } else { password_of(name) });
    let mut properties = PropertyBuf::new();
    push_some(&mut properties, how);
    let mut will_properties = PropertyBuf::new();
    if last & 64 != 0 {
        will_properties.push(Property::WillDelaySecs(u32::from(last & 32) * 10));
    }
    let will = Will {
        topic: TOPICS[usize::from(last & 15)],
        payload: b"will",
        qos: qos_of(last >> 4),
        retain: last & 128 != 0,
        properties: will_properties.as_properties(),
    };
    let connect = Connect {
        version,
        clean_start: who & 64 != 0,
        keep_alive_secs: if last & 16 != 0 { 10 } else { 0 },
        client_id: CLIENT_IDS[usize::from(who & 3)],
        properties: properties.as_properties(),
        will: (who & 128 != 0).then_some(will),
        username,
        password,
        bridge: false,
    };
    Packet::Connect(connect).encode(version, &mut peer.socket);
    if peer.place().is_none() {
        peer.speaks = version;
    }
    Some(())
}

fn push_some(properties: &mut PropertyBuf, how: u8) {
    match how & 3 {
        0 => {}
        choice => {
            let secs = [10, 3600, u32::MAX][usize::from(choice) - 1];
            properties.push(Property::SessionExpirySecs(secs));
        }
    }
    match how >> 2 & 3 {
        0 => {}
        choice => {
            properties.push(Property::ReceiveMax([1, 2, 500][usize::from(choice) - 1]));
        }
    }
    match how >> 4 & 3 {
        0 => {}
        choice => {
            properties.push(Property::PacketBytesMax([3, 60, 2_000][usize::from(choice) - 1]));
        }
    }
    if how & 64 != 0 {
        properties.push(Property::AuthMethod(METHOD)).push(Property::AuthData(b"begin"));
    }
    if how & 128 != 0 {
        properties.push(Property::TopicAliasMax(2));
    }
}

fn say_publish(peer: &mut Peer, input: &mut Input<'_>) -> Option<()> {
    let (what, how) = (input.byte()?, input.byte()?);
    let number = input.byte()?;
    let mut properties = PropertyBuf::new();
    let alias = how >> 6;
    if alias > 0 {
        properties.push(Property::TopicAlias(1 + u16::from(alias / 2)));
    }
    if number & 128 != 0 {
        properties.push(Property::MessageExpirySecs(u32::from(number & 15)));
        properties.push(Property::User("name", "value"));
    }
    let qos = qos_of(what >> 4);
    let mut payload = vec![number; PAYLOAD_BYTES[usize::from(how >> 3 & 7)]];
    if let Some(first) = payload.first_mut() {
        *first = what;
    }
    let publish = Publish {
        dup: what & 128 != 0 && qos != QoS::AtMostOnce,
        qos,
        retain: what & 64 != 0,
        topic: if alias == 3 { "" } else { TOPICS[usize::from(what & 15)] },
        packet_id: if qos == QoS::AtMostOnce { 0 } else { packet_id_of(how) },
        properties: properties.as_properties(),
        payload: &payload,
    };
    Packet::Publish(publish).encode(peer.speaks, &mut peer.socket);
    Some(())
}

fn say_subscribe(peer: &mut Peer, input: &mut Input<'_>) -> Option<()> {
    let (filter, how, more) = (input.byte()?, input.byte()?, input.byte()?);
    let mut properties = PropertyBuf::new();
    if how & 8 != 0 {
        properties.push(Property::SubscriptionId(u32::from(how & 15) + 1));
    }
    let name = FILTERS[usize::from(filter & 15)];
    let handling = [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never];
    let options = SubscribeOptions {
        no_local: how & 16 != 0 && !name.starts_with("$share/"),
        retain_as_published: how & 32 != 0,
        retain_handling: handling[usize::from(how >> 6) % 3],
        ..SubscribeOptions::new(qos_of(filter >> 4))
    };
    let options = match peer.speaks {
        Version::V5 => options,
        _ => SubscribeOptions::new(options.qos),
    };
    let mut filters = FilterBuf::new();
    filters.push(name, options);
    for at in 0..usize::from(more & 3) {
        let more = FILTERS[(usize::from(more >> 2) + at) % FILTERS.len()];
        filters.push(more, SubscribeOptions::new(options.qos));
    }
    let (packet_id, properties) = (packet_id_of(how), properties.as_properties());
    let packet = Subscribe { packet_id, properties, filters: filters.as_filters() };
    Packet::Subscribe(packet).encode(peer.speaks, &mut peer.socket);
    Some(())
}

fn say_disconnect(peer: &mut Peer, choice: u8) {
    let mut properties = PropertyBuf::new();
    if choice & 2 != 0 {
        properties.push(Property::SessionExpirySecs(u32::from(choice >> 2)));
    }
    let keeps_will = choice & 1 != 0;
    let reason =
        if keeps_will { Reason::DISCONNECT_WITH_WILL } else { Reason::NORMAL_DISCONNECTION };
    let packet = Disconnect { reason, properties: properties.as_properties() };
    Packet::Disconnect(packet).encode(peer.speaks, &mut peer.socket);
}

/// The bytes of a CONNECT of version 5 with nothing special about it.
pub(super) fn connect(client_id: &str, username: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let password = Some(password_of(username));
    let connect = Connect { username: Some(username), password, ..connect_packet(client_id) };
    Packet::Connect(connect).encode(Version::V5, &mut bytes);
    bytes
}
