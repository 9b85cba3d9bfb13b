//! All packets, and the two functions that take them off a stream of bytes.

use crate::header::{Header, PacketType};
use crate::reader::Reader;
use crate::{
    Ack, AckKind, Auth, Connack, Connect, Disconnect, Publish, Sender, Suback, Subscribe, Unsuback,
    Unsubscribe, Version, Violation, rules, varint,
};

/// One control packet, borrowed from the bytes it was decoded from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    Connack(Connack<'a>),
    Publish(Publish<'a>),
    /// PUBACK, PUBREC, PUBREL and PUBCOMP.
    Ack(Ack<'a>),
    Subscribe(Subscribe<'a>),
    Suback(Suback<'a>),
    Unsubscribe(Unsubscribe<'a>),
    Unsuback(Unsuback<'a>),
    Pingreq,
    Pingresp,
    Disconnect(Disconnect<'a>),
    Auth(Auth<'a>),
}

/// Takes one packet off the front of `bytes`: the packet and the bytes that it took, or `None` when
/// more bytes are needed.
///
/// `version` is that of the connection; CONNECT carries its own, so there it only matters for the
/// faults of the fixed header. `packet_bytes_max` is the largest packet that is accepted, header
/// and all. A fault of the fixed header is a violation at once, before the body has arrived.
///
/// Nothing is allocated. Filter syntax is not looked at, nor anything that depends on what was
/// sent before.
#[inline]
pub fn decode(
    bytes: &[u8],
    version: Version,
    sender: Sender,
    packet_bytes_max: u32,
) -> Result<Option<(Packet<'_>, usize)>, Violation> {
    decode_behind("", bytes, version, sender, packet_bytes_max)
}

/// [`decode`] for a packet behind another one. `known`: the topic of a PUBLISH that was decoded
/// before it. Publishers send many messages on one topic, and the same bytes are not checked twice.
#[inline]
pub fn decode_behind<'a>(
    known: &'a str,
    bytes: &'a [u8],
    version: Version,
    sender: Sender,
    packet_bytes_max: u32,
) -> Result<Option<(Packet<'a>, usize)>, Violation> {
    let Some(header) = Header::read(bytes, version, sender, packet_bytes_max)? else {
        return Ok(None);
    };
    let taken = header.header_bytes + header.body_bytes;
    let Some(body) = bytes.get(header.header_bytes..taken) else { return Ok(None) };
    // The packets of the message path are read right to where the caller wants them: a packet that
    // the branches shared would be moved once more.
    let reader = Reader::new(body, version);
    match (header.kind, header.kind.ack()) {
        (PacketType::Publish, _) => {
            let publish = Publish::read(reader, header.flags, sender, known)?;
            Ok(Some((Packet::Publish(publish), taken)))
        }
        (_, Some(ack)) => Ok(Some((Packet::Ack(Ack::read(reader, ack)?), taken))),
        _ => Ok(Some((read_other(&header, body, version, sender)?, taken))),
    }
}

fn read_other<'a>(
    header: &Header,
    body: &'a [u8],
    version: Version,
    sender: Sender,
) -> Result<Packet<'a>, Violation> {
    let reader = Reader::new(body, version);
    match header.kind {
        PacketType::Connect => Connect::read(body, header.flags).map(Packet::Connect),
        PacketType::Connack => Connack::read(reader).map(Packet::Connack),
        PacketType::Publish
        | PacketType::Puback
        | PacketType::Pubrec
        | PacketType::Pubrel
        | PacketType::Pubcomp => {
            unreachable!("packets of the message path are read by decode itself")
        }
        PacketType::Subscribe => Subscribe::read(reader).map(Packet::Subscribe),
        PacketType::Suback => Suback::read(reader).map(Packet::Suback),
        PacketType::Unsubscribe => Unsubscribe::read(reader).map(Packet::Unsubscribe),
        PacketType::Unsuback => Unsuback::read(reader).map(Packet::Unsuback),
        PacketType::Pingreq => Ok(Packet::Pingreq),
        PacketType::Pingresp => Ok(Packet::Pingresp),
        PacketType::Disconnect => Disconnect::read(reader, sender).map(Packet::Disconnect),
        PacketType::Auth => Auth::read(reader, sender).map(Packet::Auth),
    }
}

/// The total length of the packet at the front of `bytes`, once its fixed header is complete, so
/// that a reader can reserve room. Only the length field is looked at.
pub fn packet_len(bytes: &[u8]) -> Result<Option<usize>, Violation> {
    let Some((_, rest)) = bytes.split_first() else { return Ok(None) };
    match varint::read(rest) {
        Ok(Some((body_bytes, length_bytes))) => Ok(Some(1 + length_bytes + body_bytes as usize)),
        Ok(None) => Ok(None),
        Err(varint::Malformed) => Err(rules::LENGTH_BYTES.broken(Version::V5)),
    }
}

impl Packet<'_> {
    /// Appends the whole packet to `out`, as `version` writes it. CONNECT is written in its own
    /// version.
    ///
    /// # Panics
    /// If a field is longer than 65,535 bytes or the packet longer than MQTT can say (256 MiB).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        match self {
            Self::Connect(packet) => packet.encode(version, out),
            Self::Connack(packet) => packet.encode(version, out),
            Self::Publish(packet) => packet.encode(version, out),
            Self::Ack(packet) => packet.encode(version, out),
            Self::Subscribe(packet) => packet.encode(version, out),
            Self::Suback(packet) => packet.encode(version, out),
            Self::Unsubscribe(packet) => packet.encode(version, out),
            Self::Unsuback(packet) => packet.encode(version, out),
            Self::Pingreq => out.extend_from_slice(&PINGREQ),
            Self::Pingresp => out.extend_from_slice(&PINGRESP),
            Self::Disconnect(packet) => packet.encode(version, out),
            Self::Auth(packet) => packet.encode(version, out),
        }
    }

    /// The name of the packet type, for logs and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Connect(_) => "CONNECT",
            Self::Connack(_) => "CONNACK",
            Self::Publish(_) => "PUBLISH",
            Self::Ack(Ack { kind: AckKind::Puback, .. }) => "PUBACK",
            Self::Ack(Ack { kind: AckKind::Pubrec, .. }) => "PUBREC",
            Self::Ack(Ack { kind: AckKind::Pubrel, .. }) => "PUBREL",
            Self::Ack(Ack { kind: AckKind::Pubcomp, .. }) => "PUBCOMP",
            Self::Subscribe(_) => "SUBSCRIBE",
            Self::Suback(_) => "SUBACK",
            Self::Unsubscribe(_) => "UNSUBSCRIBE",
            Self::Unsuback(_) => "UNSUBACK",
            Self::Pingreq => "PINGREQ",
            Self::Pingresp => "PINGRESP",
            Self::Disconnect(_) => "DISCONNECT",
            Self::Auth(_) => "AUTH",
        }
    }
}

const PINGREQ: [u8; 2] = [PacketType::Pingreq.first_byte(), 0];
const PINGRESP: [u8; 2] = [PacketType::Pingresp.first_byte(), 0];
