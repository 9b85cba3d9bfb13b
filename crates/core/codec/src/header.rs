//! The fixed header: packet type, flags and length, checked as soon as each byte is there.

use crate::rules::{self, Rule};
use crate::{AckKind, QoS, Sender, Version, Violation, varint};

/// A fixed header that has arrived whole and breaks no rule.
#[derive(Clone, Copy)]
pub(crate) struct Header {
    pub(crate) kind: PacketType,
    /// The low four bits of the first byte.
    pub(crate) flags: u8,
    /// Bytes of the header itself: 2 to 5.
    pub(crate) header_bytes: usize,
    /// Bytes that follow it.
    pub(crate) body_bytes: usize,
}

impl Header {
    #[inline]
    pub(crate) fn read(
        bytes: &[u8],
        version: Version,
        sender: Sender,
        packet_bytes_max: u32,
    ) -> Result<Option<Self>, Violation> {
        let Some((&first, rest)) = bytes.split_first() else { return Ok(None) };
        let kind = check_first(first, version)?;
        let (body_bytes, length_bytes) = match varint::read(rest) {
            Ok(Some(read)) => read,
            Ok(None) => return Ok(None),
            Err(varint::Malformed) => return Err(rules::LENGTH_BYTES.broken(version)),
        };
        if matches!(kind, PacketType::Pingreq | PacketType::Pingresp) && body_bytes != 0 {
            return Err(rules::PING_BODY.broken(version));
        }
        if !kind.is_sent_by(sender, version) {
            return Err(rules::DIRECTION.broken(version));
        }
        if u64::from(body_bytes) + 1 + length_bytes as u64 > u64::from(packet_bytes_max) {
            return Err(too_large(sender).broken(version));
        }
        // Before CONNECT has given its version only the older, looser rule can be applied.
        if length_bytes > 1
            && version >= Version::V5
            && kind != PacketType::Connect
            && length_bytes != varint::len(body_bytes)
        {
            return Err(rules::OVERLONG.broken(version));
        }
        Ok(Some(Self {
            kind,
            flags: first & 0x0F,
            header_bytes: 1 + length_bytes,
            body_bytes: body_bytes as usize,
        }))
    }
}

/// The packet types, numbered as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PacketType {
    Connect = 1,
    Connack = 2,
    Publish = 3,
    Puback = 4,
    Pubrec = 5,
    Pubrel = 6,
    Pubcomp = 7,
    Subscribe = 8,
    Suback = 9,
    Unsubscribe = 10,
    Unsuback = 11,
    Pingreq = 12,
    Pingresp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketType {
    /// The first byte of a packet of this type, with the flags that the standard fixes.
    pub(crate) const fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags_fixed()
    }

    const fn flags_fixed(self) -> u8 {
        match self {
            Self::Pubrel | Self::Subscribe | Self::Unsubscribe => 0b0010,
            _ => 0,
        }
    }

    #[inline]
    const fn of(first: u8) -> Option<Self> {
        Some(match first >> 4 {
            1 => Self::Connect,
            2 => Self::Connack,
            3 => Self::Publish,
            4 => Self::Puback,
            5 => Self::Pubrec,
            6 => Self::Pubrel,
            7 => Self::Pubcomp,
            8 => Self::Subscribe,
            9 => Self::Suback,
            10 => Self::Unsubscribe,
            11 => Self::Unsuback,
            12 => Self::Pingreq,
            13 => Self::Pingresp,
            14 => Self::Disconnect,
            15 => Self::Auth,
            _ => return None,
        })
    }

    /// Which of the four acknowledgements it is, if it is one.
    #[inline]
    pub(crate) const fn ack(self) -> Option<AckKind> {
        match self {
            Self::Puback => Some(AckKind::Puback),
            Self::Pubrec => Some(AckKind::Pubrec),
            Self::Pubrel => Some(AckKind::Pubrel),
            Self::Pubcomp => Some(AckKind::Pubcomp),
            _ => None,
        }
    }

    const fn is_sent_by(self, sender: Sender, version: Version) -> bool {
        match self {
            Self::Publish | Self::Puback | Self::Pubrec | Self::Pubrel | Self::Pubcomp => true,
            Self::Auth => true,
            Self::Connect | Self::Subscribe | Self::Unsubscribe | Self::Pingreq => {
                matches!(sender, Sender::Client)
            }
            Self::Connack | Self::Suback | Self::Unsuback | Self::Pingresp => {
                matches!(sender, Sender::Server)
            }
            Self::Disconnect => matches!(sender, Sender::Client) || matches!(version, Version::V5),
        }
    }
}

/// What the first byte alone can break.
#[inline]
fn check_first(first: u8, version: Version) -> Result<PacketType, Violation> {
    let Some(kind) = PacketType::of(first) else { return Err(rules::PACKET_TYPE.broken(version)) };
    let broken = match kind {
        PacketType::Publish => check_publish(first, version),
        // The version of the packet is not known yet, and MQTT 3.1 calls these bits unused.
        PacketType::Connect => None,
        PacketType::Auth if version < Version::V5 => Some(&rules::PACKET_TYPE),
        PacketType::Auth if first & 0x0F != 0 => Some(&rules::AUTH_FLAGS),
        // MQTT 3.1 sets DUP on a resent PUBREL, SUBSCRIBE or UNSUBSCRIBE.
        _ if version >= Version::V311 && first & 0x0F != kind.flags_fixed() => Some(&rules::FLAGS),
        _ => None,
    };
    match broken {
        None => Ok(kind),
        Some(rule) => Err(rule.broken(version)),
    }
}

#[inline]
fn check_publish(first: u8, version: Version) -> Option<&'static Rule> {
    match QoS::from_bits(first >> 1) {
        None => Some(&rules::PUBLISH_QOS_3),
        // MQTT 3.1 only says that DUP has no meaning there.
        Some(QoS::AtMostOnce) if first & 0b1000 != 0 && version >= Version::V311 => {
            Some(&rules::PUBLISH_DUP_QOS_0)
        }
        Some(_) => None,
    }
}

fn too_large(sender: Sender) -> &'static Rule {
    match sender {
        Sender::Client => &rules::TOO_LARGE_FOR_SERVER,
        Sender::Server => &rules::TOO_LARGE_FOR_CLIENT,
    }
}
