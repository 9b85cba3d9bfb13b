//! Reason codes: MQTT 5's one list for all packets, and the way to and from the older return codes.

use std::fmt;

/// A reason code of MQTT 5 (section 2.4). Codes from 0x80 up are errors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Reason(pub u8);

impl Reason {
    pub const SUCCESS: Self = Self(0x00);
    pub const NORMAL_DISCONNECTION: Self = Self(0x00);
    pub const GRANTED_QOS_0: Self = Self(0x00);
    pub const GRANTED_QOS_1: Self = Self(0x01);
    pub const GRANTED_QOS_2: Self = Self(0x02);
    pub const DISCONNECT_WITH_WILL: Self = Self(0x04);
    pub const NO_MATCHING_SUBSCRIBERS: Self = Self(0x10);
    pub const NO_SUBSCRIPTION_EXISTED: Self = Self(0x11);
    pub const CONTINUE_AUTHENTICATION: Self = Self(0x18);
    pub const RE_AUTHENTICATE: Self = Self(0x19);
    pub const UNSPECIFIED_ERROR: Self = Self(0x80);
    pub const MALFORMED_PACKET: Self = Self(0x81);
    pub const PROTOCOL_ERROR: Self = Self(0x82);
    pub const IMPLEMENTATION_SPECIFIC_ERROR: Self = Self(0x83);
    pub const UNSUPPORTED_PROTOCOL_VERSION: Self = Self(0x84);
    pub const CLIENT_IDENTIFIER_NOT_VALID: Self = Self(0x85);
    pub const BAD_USER_NAME_OR_PASSWORD: Self = Self(0x86);
    pub const NOT_AUTHORIZED: Self = Self(0x87);
    pub const SERVER_UNAVAILABLE: Self = Self(0x88);
    pub const SERVER_BUSY: Self = Self(0x89);
    pub const BANNED: Self = Self(0x8A);
    pub const SERVER_SHUTTING_DOWN: Self = Self(0x8B);
    pub const BAD_AUTHENTICATION_METHOD: Self = Self(0x8C);
    pub const KEEP_ALIVE_TIMEOUT: Self = Self(0x8D);
    pub const SESSION_TAKEN_OVER: Self = Self(0x8E);
    pub const TOPIC_FILTER_INVALID: Self = Self(0x8F);
    pub const TOPIC_NAME_INVALID: Self = Self(0x90);
    pub const PACKET_IDENTIFIER_IN_USE: Self = Self(0x91);
    pub const PACKET_IDENTIFIER_NOT_FOUND: Self = Self(0x92);
    pub const RECEIVE_MAXIMUM_EXCEEDED: Self = Self(0x93);
    pub const TOPIC_ALIAS_INVALID: Self = Self(0x94);
    pub const PACKET_TOO_LARGE: Self = Self(0x95);
    pub const MESSAGE_RATE_TOO_HIGH: Self = Self(0x96);
    pub const QUOTA_EXCEEDED: Self = Self(0x97);
    pub const ADMINISTRATIVE_ACTION: Self = Self(0x98);
    pub const PAYLOAD_FORMAT_INVALID: Self = Self(0x99);
    pub const RETAIN_NOT_SUPPORTED: Self = Self(0x9A);
    pub const QOS_NOT_SUPPORTED: Self = Self(0x9B);
    pub const USE_ANOTHER_SERVER: Self = Self(0x9C);
    pub const SERVER_MOVED: Self = Self(0x9D);
    pub const SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Self = Self(0x9E);
    pub const CONNECTION_RATE_EXCEEDED: Self = Self(0x9F);
    pub const MAXIMUM_CONNECT_TIME: Self = Self(0xA0);
    pub const SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: Self = Self(0xA1);
    pub const WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: Self = Self(0xA2);

    /// Codes from 0x80 up mean that the thing asked for was not done.
    #[inline]
    pub const fn is_error(self) -> bool {
        self.0 >= 0x80
    }

    /// The code that a CONNACK of MQTT 5 tells of this: itself, or protocol error where section
    /// 3.2.2.2 does not list it.
    pub fn connack(self) -> Self {
        if CONNACK.contains(self.0) { self } else { Self::PROTOCOL_ERROR }
    }

    /// The same for the DISCONNECT of a server, and section 3.14.2.1.
    pub fn disconnect(self) -> Self {
        if DISCONNECT_SERVER.contains(self.0) { self } else { Self::PROTOCOL_ERROR }
    }

    /// The nearest CONNACK return code of MQTT 3.1 and 3.1.1 (0 to 5). Where the older standard
    /// has no word for a refusal it becomes 3, server unavailable.
    pub const fn connack_v3(self) -> u8 {
        match self {
            Self(0x00..=0x7F) => 0,
            Self::UNSUPPORTED_PROTOCOL_VERSION => 1,
            Self::CLIENT_IDENTIFIER_NOT_VALID => 2,
            Self::BAD_USER_NAME_OR_PASSWORD => 4,
            Self::NOT_AUTHORIZED
            | Self::BANNED
            | Self::BAD_AUTHENTICATION_METHOD
            | Self::TOPIC_NAME_INVALID => 5,
            _ => 3,
        }
    }

    /// What a CONNACK return code of MQTT 3.1 and 3.1.1 means, or `None` for the reserved ones.
    pub const fn from_connack_v3(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::SUCCESS,
            1 => Self::UNSUPPORTED_PROTOCOL_VERSION,
            2 => Self::CLIENT_IDENTIFIER_NOT_VALID,
            3 => Self::SERVER_UNAVAILABLE,
            4 => Self::BAD_USER_NAME_OR_PASSWORD,
            5 => Self::NOT_AUTHORIZED,
            _ => return None,
        })
    }

    /// The SUBACK return code of MQTT 3.1.1: 0, 1, 2, or 0x80 for every refusal.
    #[inline]
    pub const fn suback_v3(self) -> u8 {
        if self.is_error() { 0x80 } else { self.0 }
    }

    /// The name that the standard gives to the code, or `None` if it gives none. 0x00 is named
    /// Success, whatever the packet.
    pub const fn name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x00 => "Success",
            0x01 => "Granted QoS 1",
            0x02 => "Granted QoS 2",
            0x04 => "Disconnect with Will Message",
            0x10 => "No matching subscribers",
            0x11 => "No subscription existed",
            0x18 => "Continue authentication",
            0x19 => "Re-authenticate",
            _ => return self.error_name(),
        })
    }

    const fn error_name(self) -> Option<&'static str> {
        Some(match self.0 {
            0x80 => "Unspecified error",
            0x81 => "Malformed Packet",
            0x82 => "Protocol Error",
            0x83 => "Implementation specific error",
            0x84 => "Unsupported Protocol Version",
            0x85 => "Client Identifier not valid",
            0x86 => "Bad User Name or Password",
            0x87 => "Not authorized",
            0x88 => "Server unavailable",
            0x89 => "Server busy",
            0x8A => "Banned",
            0x8B => "Server shutting down",
            0x8C => "Bad authentication method",
            0x8D => "Keep Alive timeout",
            0x8E => "Session taken over",
            0x8F => "Topic Filter invalid",
            0x90 => "Topic Name invalid",
            0x91 => "Packet Identifier in use",
            0x92 => "Packet Identifier not found",
            0x93 => "Receive Maximum exceeded",
            0x94 => "Topic Alias invalid",
            0x95 => "Packet too large",
            0x96 => "Message rate too high",
            0x97 => "Quota exceeded",
            0x98 => "Administrative action",
            0x99 => "Payload format invalid",
            0x9A => "Retain not supported",
            0x9B => "QoS not supported",
            0x9C => "Use another server",
            0x9D => "Server moved",
            0x9E => "Shared Subscriptions not supported",
            0x9F => "Connection rate exceeded",
            0xA0 => "Maximum connect time",
            0xA1 => "Subscription Identifiers not supported",
            0xA2 => "Wildcard Subscriptions not supported",
            _ => return None,
        })
    }
}

impl Reason {
    /// The name in small letters, as `reason` in logs and events has it: `not_authorized`.
    pub fn word(self) -> String {
        self.to_string().to_lowercase().replace([' ', '-'], "_")
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "reason code 0x{:02X}", self.0),
        }
    }
}

/// The codes that one packet type may carry: one bit per code.
pub(crate) struct ReasonSet([u64; 3]);

impl ReasonSet {
    const fn of(codes: &[u8]) -> Self {
        let mut bits = [0; 3];
        let mut at = 0;
        while at < codes.len() {
            bits[codes[at] as usize / 64] |= 1 << (codes[at] % 64);
            at += 1;
        }
        Self(bits)
    }

    #[inline]
    pub(crate) fn contains(&self, code: u8) -> bool {
        self.0.get(usize::from(code / 64)).is_some_and(|word| word & (1 << (code % 64)) != 0)
    }
}

pub(crate) static CONNACK: ReasonSet = ReasonSet::of(&[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97,
    0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
]);
/// PUBACK and PUBREC.
pub(crate) static PUBACK: ReasonSet =
    ReasonSet::of(&[0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99]);
/// PUBREL and PUBCOMP.
pub(crate) static PUBREL: ReasonSet = ReasonSet::of(&[0x00, 0x92]);
pub(crate) static SUBACK: ReasonSet =
    ReasonSet::of(&[0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2]);
pub(crate) static SUBACK_V3: ReasonSet = ReasonSet::of(&[0x00, 0x01, 0x02, 0x80]);
pub(crate) static UNSUBACK: ReasonSet = ReasonSet::of(&[0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91]);
pub(crate) static DISCONNECT_CLIENT: ReasonSet = ReasonSet::of(&[
    0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
]);
/// 0x00 is listed for clients only, but servers do send it and nothing else can be meant; 0x8C is
/// given to DISCONNECT by section 2.4, not by section 3.14.
pub(crate) static DISCONNECT_SERVER: ReasonSet = ReasonSet::of(&[
    0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95,
    0x96, 0x97, 0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2,
]);
pub(crate) static AUTH_CLIENT: ReasonSet = ReasonSet::of(&[0x18, 0x19]);
pub(crate) static AUTH_SERVER: ReasonSet = ReasonSet::of(&[0x00, 0x18]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_names_43_codes() {
        assert_eq!((0..=255).filter(|&code| Reason(code).name().is_some()).count(), 43);
        assert_eq!(Reason::QUOTA_EXCEEDED.to_string(), "Quota exceeded");
        assert_eq!(Reason(0x42).to_string(), "reason code 0x42");
    }

    #[test]
    fn every_code_of_a_packet_has_a_name() {
        let sets = [
            &CONNACK,
            &PUBACK,
            &PUBREL,
            &SUBACK,
            &SUBACK_V3,
            &UNSUBACK,
            &DISCONNECT_CLIENT,
            &DISCONNECT_SERVER,
            &AUTH_CLIENT,
            &AUTH_SERVER,
        ];
        for set in sets {
            for code in 0..=255 {
                assert!(!set.contains(code) || Reason(code).name().is_some(), "0x{code:02X}");
            }
        }
    }

    #[test]
    fn connack_codes_go_there_and_back() {
        for code in 0..=5 {
            assert_eq!(Reason::from_connack_v3(code).map(Reason::connack_v3), Some(code));
        }
        assert_eq!(Reason::from_connack_v3(6), None);
        assert_eq!(Reason::QUOTA_EXCEEDED.connack_v3(), 3);
    }
}
