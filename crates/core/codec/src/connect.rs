//! CONNECT and CONNACK.

use crate::header::PacketType;
use crate::properties::PropertyScope;
use crate::reader::Reader;
use crate::rules::{self, Rule};
use crate::{Properties, QoS, Reason, Version, Violation, reason, text, varint, writer};

/// The first packet of a client (section 3.1). An empty client identifier is passed on: whether it
/// is acceptable is the server's decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connect<'a> {
    pub version: Version,
    /// Called clean session before version 5, where it also ends the session at disconnection.
    pub clean_start: bool,
    /// 0 switches keep alive off.
    pub keep_alive_secs: u16,
    pub client_id: &'a str,
    pub properties: Properties<'a>,
    pub will: Option<Will<'a>>,
    pub username: Option<&'a str>,
    /// Before version 5 only beside a user name.
    pub password: Option<&'a [u8]>,
    /// The high bit of the version byte, by which bridges of mosquitto announce themselves to a
    /// server of MQTT 3.1 or 3.1.1.
    pub bridge: bool,
}

/// The message that the server publishes for a client that is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Will<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub properties: Properties<'a>,
}

impl<'a> Connect<'a> {
    pub(crate) fn read(body: &'a [u8], header_flags: u8) -> Result<Self, Violation> {
        let mut reader = Reader::new(body, Version::V5);
        let (version, bridge) = protocol(&mut reader)?;
        reader.version = version;
        // MQTT 3.1 calls the flags of the fixed header unused.
        if header_flags != 0 && version >= Version::V311 {
            return Err(reader.fail(&rules::FLAGS));
        }
        let flags = reader.byte()?;
        check_flags(flags, &reader)?;
        let keep_alive_secs = reader.short()?;
        let properties = Properties::read(&mut reader, PropertyScope::Connect)?;
        let client_id = named(&mut reader, &rules::CLIENT_ID)?;
        let will = if flags & WILL != 0 { Some(Will::read(&mut reader, flags)?) } else { None };
        // In MQTT 3.1 the length takes precedence over these flags: the fields may be missing.
        let absent = |reader: &Reader<'_>| version < Version::V311 && reader.is_empty();
        let username = match flags & USERNAME != 0 && !absent(&reader) {
            true => Some(credential(&mut reader, &rules::USER_NAME_MISSING)?),
            false => None,
        };
        let username = username
            .map(|bytes| text::check_name(bytes).map_err(|_| reader.fail(&rules::USER_NAME)))
            .transpose()?;
        let password = match flags & PASSWORD != 0 && !absent(&reader) {
            true => Some(credential(&mut reader, &rules::PASSWORD_MISSING)?),
            false => None,
        };
        reader.finish()?;
        Ok(Connect {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive_secs,
            client_id,
            properties,
            will,
            username,
            password,
            bridge,
        })
    }

    /// Appends the whole packet in the packet's own version; the argument is there only because
    /// all packets are encoded with one.
    ///
    /// # Panics
    /// If a field is longer than 65,535 bytes.
    pub fn encode(&self, _version: Version, out: &mut Vec<u8>) {
        let version = self.version;
        writer::packet(out, PacketType::Connect.first_byte(), |out| {
            writer::text(out, version.protocol_name());
            let bridge = self.bridge && version < Version::V5;
            out.push(version.level() | if bridge { BRIDGE } else { 0 });
            out.push(self.flags());
            out.extend_from_slice(&self.keep_alive_secs.to_be_bytes());
            writer::properties(out, self.properties, version);
            writer::text(out, self.client_id);
            if let Some(will) = &self.will {
                writer::properties(out, will.properties, version);
                writer::text(out, will.topic);
                writer::binary(out, will.payload);
            }
            if let Some(username) = self.username {
                writer::text(out, username);
            }
            if let Some(password) = self.password_sent() {
                writer::binary(out, password);
            }
        });
    }

    fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.clean_start {
            flags |= CLEAN_START;
        }
        if let Some(will) = &self.will {
            flags |= WILL | (will.qos as u8) << WILL_QOS_SHIFT;
            if will.retain {
                flags |= WILL_RETAIN;
            }
        }
        if self.username.is_some() {
            flags |= USERNAME;
        }
        if self.password_sent().is_some() {
            flags |= PASSWORD;
        }
        flags
    }

    /// `MQTT-3.1.2-22` of MQTT 3.1.1: no password without a user name.
    fn password_sent(&self) -> Option<&'a [u8]> {
        let allowed = self.version >= Version::V5 || self.username.is_some();
        self.password.filter(|_| allowed)
    }
}

impl<'a> Will<'a> {
    fn read(reader: &mut Reader<'a>, flags: u8) -> Result<Self, Violation> {
        let Some(qos) = QoS::from_bits(flags >> WILL_QOS_SHIFT) else {
            return Err(reader.fail(&rules::WILL_QOS_3));
        };
        let properties = Properties::read(reader, PropertyScope::Will)?;
        let topic = reader.topic(&rules::WILL_TOPIC_WILDCARD, "")?;
        if topic.is_empty() {
            return Err(reader.fail(&rules::TOPIC_EMPTY));
        }
        let payload = reader.binary()?;
        Ok(Will { topic, payload, qos, retain: flags & WILL_RETAIN != 0, properties })
    }
}

/// Does the CONNECT at the front of `bytes` announce a level from 5 up, of whatever version? The
/// name `MQTT` has had its own levels since 3.1.1.
pub(crate) fn is_level_from_5(bytes: &[u8]) -> bool {
    let level = || {
        let mut reader = Reader::new(body(bytes)?, Version::V5);
        let is_mqtt = reader.binary().ok()? == b"MQTT";
        reader.byte().ok().filter(|_| is_mqtt)
    };
    level().is_some_and(|level| level & !BRIDGE >= Version::V5.level())
}

/// What follows the fixed header of a CONNECT.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let (&first, rest) = bytes.split_first()?;
    if first >> 4 != PacketType::Connect as u8 {
        return None;
    }
    let (_, length_bytes) = varint::read(rest).ok()??;
    rest.get(length_bytes..)
}

/// A string whose every fault breaks the same rule, unless it is cut short.
fn named<'a>(reader: &mut Reader<'a>, rule: &'static Rule) -> Result<&'a str, Violation> {
    let bytes = reader.binary()?;
    text::check_name(bytes).map_err(|_| reader.fail(rule))
}

/// A user name or password that the flags announce.
fn credential<'a>(reader: &mut Reader<'a>, missing: &'static Rule) -> Result<&'a [u8], Violation> {
    reader.binary().map_err(|_| reader.fail(missing))
}

/// Protocol name and level: the version, and whether a bridge is calling.
fn protocol(reader: &mut Reader<'_>) -> Result<(Version, bool), Violation> {
    let name = reader.binary()?;
    if name != b"MQTT" && name != b"MQIsdp" {
        return Err(reader.fail(&rules::PROTOCOL_NAME));
    }
    let level = reader.byte()?;
    let version = match (name, level & !BRIDGE) {
        (b"MQIsdp", 3) => Version::V31,
        (b"MQTT", 4) => Version::V311,
        (b"MQTT", 5) if level & BRIDGE == 0 => Version::V5,
        _ => return Err(reader.fail(&rules::PROTOCOL_VERSION)),
    };
    Ok((version, level & BRIDGE != 0))
}

/// MQTT 3.1 calls the reserved flag unused and lets a server ignore the rest.
fn check_flags(flags: u8, reader: &Reader<'_>) -> Result<(), Violation> {
    if reader.version >= Version::V311 {
        if flags & RESERVED != 0 {
            return Err(reader.fail(&rules::CONNECT_FLAG_RESERVED));
        }
        if flags & (WILL | WILL_QOS) == WILL_QOS {
            return Err(reader.fail(&rules::WILL_QOS_3));
        }
        if flags & WILL == 0 && flags & WILL_QOS != 0 {
            return Err(reader.fail(&rules::WILL_QOS_WITHOUT_WILL));
        }
        if flags & WILL == 0 && flags & WILL_RETAIN != 0 {
            return Err(reader.fail(&rules::WILL_RETAIN_WITHOUT_WILL));
        }
    }
    if reader.version < Version::V5 && flags & (USERNAME | PASSWORD) == PASSWORD {
        return Err(reader.fail(&rules::PASSWORD_WITHOUT_USER));
    }
    Ok(())
}

/// The server's answer to CONNECT (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connack<'a> {
    /// Not known to MQTT 3.1, where it reads as false and is not sent.
    pub session_present: bool,
    /// Sent as [`Reason::connack_v3`] before version 5.
    pub reason: Reason,
    pub properties: Properties<'a>,
}

impl<'a> Connack<'a> {
    pub(crate) fn read(mut reader: Reader<'a>) -> Result<Self, Violation> {
        let [flags, code] = reader.array()?;
        if flags & !SESSION_PRESENT != 0 && reader.version >= Version::V311 {
            return Err(reader.fail(&rules::CONNACK_FLAGS));
        }
        let session_present = flags & SESSION_PRESENT != 0 && reader.version >= Version::V311;
        let reason = match reader.version {
            Version::V5 => Some(Reason(code)).filter(|_| reason::CONNACK.contains(code)),
            Version::V31 | Version::V311 => Reason::from_connack_v3(code),
        };
        let Some(reason) = reason else { return Err(reader.fail(&rules::CONNACK_REASON)) };
        if session_present && reason.is_error() {
            return Err(reader.fail(&rules::CONNACK_SESSION_ON_ERROR));
        }
        let properties = Properties::read(&mut reader, PropertyScope::Connack)?;
        reader.finish()?;
        Ok(Connack { session_present, reason, properties })
    }

    /// Appends the whole packet. A refusal never says that a session is present.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let known = version >= Version::V311 && !self.reason.is_error();
        let flags = if self.session_present && known { SESSION_PRESENT } else { 0 };
        let code = if version >= Version::V5 { self.reason.0 } else { self.reason.connack_v3() };
        writer::packet(out, PacketType::Connack.first_byte(), |out| {
            out.extend_from_slice(&[flags, code]);
            writer::properties(out, self.properties, version);
        });
    }
}

const RESERVED: u8 = 0b0000_0001;
const CLEAN_START: u8 = 0b0000_0010;
const WILL: u8 = 0b0000_0100;
const WILL_QOS: u8 = 0b0001_1000;
const WILL_QOS_SHIFT: u8 = 3;
const WILL_RETAIN: u8 = 0b0010_0000;
const PASSWORD: u8 = 0b0100_0000;
const USERNAME: u8 = 0b1000_0000;
const BRIDGE: u8 = 0b1000_0000;
const SESSION_PRESENT: u8 = 0b0000_0001;
