//! Properties of MQTT 5: validated once at decoding, kept as raw bytes, read lazily.

use std::fmt;

use crate::reader::Reader;
use crate::rules::{self, Rule};
use crate::{Sender, Version, Violation, text, varint, writer};

/// The properties of one packet or will: validated raw bytes without their length prefix. Empty
/// before version 5. They can be copied into another packet as they are.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Properties<'a> {
    raw: &'a [u8],
}

impl<'a> Properties<'a> {
    pub const EMPTY: Self = Properties { raw: &[] };

    /// Takes bytes that [`Properties::raw`] gave, now or in an earlier life (from a log, say).
    /// They are not validated again: reading stops at the first byte that makes no sense.
    pub const fn from_raw(raw: &'a [u8]) -> Self {
        Properties { raw }
    }

    /// The wire form, without the property length.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// The properties in the order in which they were sent.
    #[inline]
    pub fn iter(&self) -> PropertyIter<'a> {
        PropertyIter { reader: Reader::new(self.raw, Version::V5) }
    }

    /// The user properties in order (`MQTT-3.3.2-18`: they are forwarded so).
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.iter().filter_map(|property| match property {
            Property::User(name, value) => Some((name, value)),
            _ => None,
        })
    }

    /// The subscription identifiers: several when a message matched several subscriptions.
    pub fn subscription_ids(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.iter().filter_map(|property| match property {
            Property::SubscriptionId(identifier) => Some(identifier),
            _ => None,
        })
    }

    pub fn topic_alias(&self) -> Option<u16> {
        self.find(|property| match property {
            Property::TopicAlias(alias) => Some(alias),
            _ => None,
        })
    }

    pub fn message_expiry_secs(&self) -> Option<u32> {
        self.find(|property| match property {
            Property::MessageExpirySecs(secs) => Some(secs),
            _ => None,
        })
    }

    pub fn session_expiry_secs(&self) -> Option<u32> {
        self.find(|property| match property {
            Property::SessionExpirySecs(secs) => Some(secs),
            _ => None,
        })
    }

    pub fn reason_string(&self) -> Option<&'a str> {
        self.find(|property| match property {
            Property::ReasonString(text) => Some(text),
            _ => None,
        })
    }

    pub fn auth_method(&self) -> Option<&'a str> {
        self.find(|property| match property {
            Property::AuthMethod(method) => Some(method),
            _ => None,
        })
    }

    pub fn auth_data(&self) -> Option<&'a [u8]> {
        self.find(|property| match property {
            Property::AuthData(data) => Some(data),
            _ => None,
        })
    }

    /// The first property for which `pick` has an answer.
    pub fn find<T>(&self, pick: impl FnMut(Property<'a>) -> Option<T>) -> Option<T> {
        self.iter().find_map(pick)
    }

    /// Whether `raw` may be the properties of a PUBLISH of a client.
    pub(crate) fn check_publish(raw: &[u8]) -> Result<(), Violation> {
        validate(raw, PropertyScope::Publish(Sender::Client))
    }

    /// Reads and validates the properties at the front of `reader`; none before version 5.
    #[inline]
    pub(crate) fn read(reader: &mut Reader<'a>, place: PropertyScope) -> Result<Self, Violation> {
        if reader.version < Version::V5 || reader.skip_zero() {
            return Ok(Self::EMPTY);
        }
        Self::read_some(reader, place)
    }

    fn read_some(reader: &mut Reader<'a>, place: PropertyScope) -> Result<Self, Violation> {
        let len = reader.varint()? as usize;
        let raw = reader.take(len)?;
        if !raw.is_empty() {
            validate(raw, place)?;
        }
        Ok(Properties { raw })
    }
}

impl<'a> IntoIterator for Properties<'a> {
    type Item = Property<'a>;
    type IntoIter = PropertyIter<'a>;

    fn into_iter(self) -> PropertyIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Properties<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The properties of a packet, one after another.
pub struct PropertyIter<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for PropertyIter<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        if self.reader.is_empty() {
            return None;
        }
        Property::read(&mut self.reader).ok()
    }
}

/// One property (section 2.2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property<'a> {
    /// 0: unspecified bytes; 1: UTF-8.
    PayloadFormat(u8),
    MessageExpirySecs(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    /// 1 to 268,435,455.
    SubscriptionId(u32),
    /// `u32::MAX` means that the session does not expire.
    SessionExpirySecs(u32),
    AssignedClientId(&'a str),
    ServerKeepAliveSecs(u16),
    AuthMethod(&'a str),
    AuthData(&'a [u8]),
    RequestProblemInfo(bool),
    WillDelaySecs(u32),
    RequestResponseInfo(bool),
    ResponseInfo(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    /// Not 0.
    ReceiveMax(u16),
    TopicAliasMax(u16),
    /// Not 0.
    TopicAlias(u16),
    /// 0 or 1: a server that supports QoS 2 does not send it.
    QosMax(u8),
    RetainAvailable(bool),
    User(&'a str, &'a str),
    /// Not 0.
    PacketBytesMax(u32),
    WildcardAvailable(bool),
    SubscriptionIdAvailable(bool),
    SharedAvailable(bool),
}

impl<'a> Property<'a> {
    /// Reads one property. Bytes that are no property at all are malformed; a value out of its
    /// range is a protocol error.
    fn read(reader: &mut Reader<'a>) -> Result<Self, Violation> {
        Ok(match reader.byte()? {
            id::PAYLOAD_FORMAT => Self::PayloadFormat(u8::from(flag(reader)?)),
            id::MESSAGE_EXPIRY => Self::MessageExpirySecs(reader.long()?),
            id::CONTENT_TYPE => Self::ContentType(reader.text()?),
            id::RESPONSE_TOPIC => Self::ResponseTopic(response_topic(reader)?),
            id::CORRELATION_DATA => Self::CorrelationData(reader.binary()?),
            id::SUBSCRIPTION_ID => Self::SubscriptionId(reader.varint()?),
            id::SESSION_EXPIRY => Self::SessionExpirySecs(reader.long()?),
            id::ASSIGNED_CLIENT_ID => Self::AssignedClientId(reader.text()?),
            id::SERVER_KEEP_ALIVE => Self::ServerKeepAliveSecs(reader.short()?),
            id::AUTH_METHOD => Self::AuthMethod(reader.text()?),
            id::AUTH_DATA => Self::AuthData(reader.binary()?),
            id::REQUEST_PROBLEM_INFO => Self::RequestProblemInfo(flag(reader)?),
            id::WILL_DELAY => Self::WillDelaySecs(reader.long()?),
            id::REQUEST_RESPONSE_INFO => Self::RequestResponseInfo(flag(reader)?),
            id::RESPONSE_INFO => Self::ResponseInfo(reader.text()?),
            id::SERVER_REFERENCE => Self::ServerReference(reader.text()?),
            id::REASON_STRING => Self::ReasonString(reader.text()?),
            id::RECEIVE_MAX => Self::ReceiveMax(above_0(reader.short()?)?),
            id::TOPIC_ALIAS_MAX => Self::TopicAliasMax(reader.short()?),
            id::TOPIC_ALIAS => Self::TopicAlias(topic_alias(reader)?),
            id::QOS_MAX => Self::QosMax(u8::from(flag(reader)?)),
            id::RETAIN_AVAILABLE => Self::RetainAvailable(flag(reader)?),
            id::USER => Self::User(reader.text()?, reader.text()?),
            id::PACKET_BYTES_MAX => Self::PacketBytesMax(above_0(reader.long()?)?),
            id::WILDCARD_AVAILABLE => Self::WildcardAvailable(flag(reader)?),
            id::SUBSCRIPTION_ID_AVAILABLE => Self::SubscriptionIdAvailable(flag(reader)?),
            id::SHARED_AVAILABLE => Self::SharedAvailable(flag(reader)?),
            _ => return Err(reader.fail(&rules::PROPERTY_UNKNOWN)),
        })
    }

    /// Appends the identifier and the value.
    ///
    /// # Panics
    /// If a string or binary value is longer than 65,535 bytes, or a subscription identifier
    /// larger than [`varint::MAX`].
    fn write(self, out: &mut Vec<u8>) {
        out.push(self.id());
        match self {
            Self::PayloadFormat(byte) | Self::QosMax(byte) => out.push(byte),
            Self::RequestProblemInfo(flag)
            | Self::RequestResponseInfo(flag)
            | Self::RetainAvailable(flag)
            | Self::WildcardAvailable(flag)
            | Self::SubscriptionIdAvailable(flag)
            | Self::SharedAvailable(flag) => out.push(u8::from(flag)),
            Self::ServerKeepAliveSecs(short)
            | Self::ReceiveMax(short)
            | Self::TopicAliasMax(short)
            | Self::TopicAlias(short) => out.extend_from_slice(&short.to_be_bytes()),
            Self::MessageExpirySecs(long)
            | Self::SessionExpirySecs(long)
            | Self::WillDelaySecs(long)
            | Self::PacketBytesMax(long) => out.extend_from_slice(&long.to_be_bytes()),
            Self::SubscriptionId(identifier) => varint::write(out, identifier),
            Self::ContentType(text)
            | Self::ResponseTopic(text)
            | Self::AssignedClientId(text)
            | Self::AuthMethod(text)
            | Self::ResponseInfo(text)
            | Self::ServerReference(text)
            | Self::ReasonString(text) => writer::text(out, text),
            Self::CorrelationData(bytes) | Self::AuthData(bytes) => writer::binary(out, bytes),
            Self::User(name, value) => {
                writer::text(out, name);
                writer::text(out, value);
            }
        }
    }

    /// Texts that are passed on have no characters on which a receiver may disconnect
    /// (section 1.5.4). Response topics are names: they have been checked as such.
    fn check_forwarded(self) -> Result<(), &'static Rule> {
        match self {
            Self::ContentType(text) => text::check_name(text.as_bytes()).map(drop),
            Self::User(name, value) => {
                text::check_name(name.as_bytes())?;
                text::check_name(value.as_bytes()).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// The identifier on the wire.
    pub const fn id(&self) -> u8 {
        match self {
            Self::PayloadFormat(_) => id::PAYLOAD_FORMAT,
            Self::MessageExpirySecs(_) => id::MESSAGE_EXPIRY,
            Self::ContentType(_) => id::CONTENT_TYPE,
            Self::ResponseTopic(_) => id::RESPONSE_TOPIC,
            Self::CorrelationData(_) => id::CORRELATION_DATA,
            Self::SubscriptionId(_) => id::SUBSCRIPTION_ID,
            Self::SessionExpirySecs(_) => id::SESSION_EXPIRY,
            Self::AssignedClientId(_) => id::ASSIGNED_CLIENT_ID,
            Self::ServerKeepAliveSecs(_) => id::SERVER_KEEP_ALIVE,
            Self::AuthMethod(_) => id::AUTH_METHOD,
            Self::AuthData(_) => id::AUTH_DATA,
            Self::RequestProblemInfo(_) => id::REQUEST_PROBLEM_INFO,
            Self::WillDelaySecs(_) => id::WILL_DELAY,
            Self::RequestResponseInfo(_) => id::REQUEST_RESPONSE_INFO,
            Self::ResponseInfo(_) => id::RESPONSE_INFO,
            Self::ServerReference(_) => id::SERVER_REFERENCE,
            Self::ReasonString(_) => id::REASON_STRING,
            Self::ReceiveMax(_) => id::RECEIVE_MAX,
            Self::TopicAliasMax(_) => id::TOPIC_ALIAS_MAX,
            Self::TopicAlias(_) => id::TOPIC_ALIAS,
            Self::QosMax(_) => id::QOS_MAX,
            Self::RetainAvailable(_) => id::RETAIN_AVAILABLE,
            Self::User(..) => id::USER,
            Self::PacketBytesMax(_) => id::PACKET_BYTES_MAX,
            Self::WildcardAvailable(_) => id::WILDCARD_AVAILABLE,
            Self::SubscriptionIdAvailable(_) => id::SUBSCRIPTION_ID_AVAILABLE,
            Self::SharedAvailable(_) => id::SHARED_AVAILABLE,
        }
    }
}

/// Properties in the making. Keep one and [`clear`](Self::clear) it: then nothing is allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyBuf {
    raw: Vec<u8>,
}

impl PropertyBuf {
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// Appends a property. That it may stand in the packet, and only once, is the caller's care.
    ///
    /// # Panics
    /// If a string or binary value is longer than 65,535 bytes, or a subscription identifier
    /// larger than [`varint::MAX`].
    pub fn push(&mut self, property: Property<'_>) -> &mut Self {
        property.write(&mut self.raw);
        self
    }

    /// Appends all of `properties` as they are.
    pub fn extend(&mut self, properties: Properties<'_>) -> &mut Self {
        self.raw.extend_from_slice(properties.raw());
        self
    }

    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    pub fn as_properties(&self) -> Properties<'_> {
        Properties { raw: &self.raw }
    }
}

/// Where properties stand. Which ones may stand there is [`PropertyScope::allowed`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PropertyScope {
    Connect,
    Will,
    Connack,
    Publish(Sender),
    Subscribe,
    /// UNSUBSCRIBE allows user properties only.
    Unsubscribe,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK: reason string and user properties.
    Acknowledgement,
    Disconnect(Sender),
    Auth,
}

impl PropertyScope {
    /// One bit per identifier.
    const fn allowed(self) -> u64 {
        match self {
            Self::Connect => CONNECT,
            Self::Will => WILL,
            Self::Connack => CONNACK,
            Self::Publish(Sender::Client) => PUBLISH_CLIENT,
            Self::Publish(Sender::Server) => PUBLISH_SERVER,
            Self::Subscribe => SUBSCRIBE,
            Self::Unsubscribe => UNSUBSCRIBE,
            Self::Acknowledgement => ACKNOWLEDGEMENT,
            Self::Disconnect(Sender::Client) => DISCONNECT_CLIENT,
            Self::Disconnect(Sender::Server) => DISCONNECT_SERVER,
            Self::Auth => AUTH,
        }
    }

    /// Does a server pass the properties on to other clients?
    const fn is_forwarded(self) -> bool {
        matches!(self, Self::Publish(Sender::Client) | Self::Will)
    }

    /// One bit per identifier that may stand there more than once.
    const fn repeatable(self) -> u64 {
        match self {
            Self::Publish(Sender::Server) => bits(&[id::USER, id::SUBSCRIPTION_ID]),
            _ => bits(&[id::USER]),
        }
    }
}

/// Checks that `raw` is a sequence of properties, each allowed at `place` and not twice.
fn validate(raw: &[u8], place: PropertyScope) -> Result<(), Violation> {
    let mut reader = Reader::new(raw, Version::V5);
    let mut seen = 0_u64;
    while !reader.is_empty() {
        let property = Property::read(&mut reader)?;
        let bit = 1 << property.id();
        if place.allowed() & bit == 0 {
            return Err(not_here(bit, place));
        }
        if property == Property::SubscriptionId(0) {
            return Err(reader.fail(subscription_id_0(place)));
        }
        if seen & bit & !place.repeatable() != 0 {
            return Err(reader.fail(&rules::PROPERTY_TWICE));
        }
        seen |= bit;
        if place.is_forwarded() {
            property.check_forwarded().map_err(|rule| reader.fail(rule))?;
        }
    }
    if place == PropertyScope::Connect
        && seen & bits(&[id::AUTH_METHOD, id::AUTH_DATA]) == 1 << id::AUTH_DATA
    {
        return Err(reader.fail(&rules::AUTH_DATA_WITHOUT_METHOD));
    }
    Ok(())
}

#[cold]
fn not_here(bit: u64, place: PropertyScope) -> Violation {
    let rule = match place {
        PropertyScope::Publish(Sender::Client) if bit == 1 << id::SUBSCRIPTION_ID => {
            &rules::SUBSCRIPTION_ID_FROM_CLIENT
        }
        PropertyScope::Subscribe | PropertyScope::Unsubscribe => &rules::PROPERTY_NOT_IN_LIST,
        PropertyScope::Disconnect(Sender::Server) if bit == 1 << id::SESSION_EXPIRY => {
            &rules::SESSION_EXPIRY_FROM_SERVER
        }
        _ => &rules::PROPERTY_NOT_HERE,
    };
    rule.broken(Version::V5)
}

fn subscription_id_0(place: PropertyScope) -> &'static Rule {
    if place == PropertyScope::Subscribe {
        &rules::SUBSCRIBE_ID_ZERO
    } else {
        &rules::PROPERTY_RANGE
    }
}

/// A byte that is 0 or 1; any other value is a protocol error.
fn flag(reader: &mut Reader<'_>) -> Result<bool, Violation> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(reader.fail(&rules::PROPERTY_RANGE)),
    }
}

fn above_0<T: Default + PartialEq>(value: T) -> Result<T, Violation> {
    if value == T::default() {
        return Err(rules::PROPERTY_RANGE.broken(Version::V5));
    }
    Ok(value)
}

fn topic_alias(reader: &mut Reader<'_>) -> Result<u16, Violation> {
    match reader.short()? {
        0 => Err(reader.fail(&rules::TOPIC_ALIAS_ZERO)),
        alias => Ok(alias),
    }
}

fn response_topic<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Violation> {
    let topic = reader.name()?;
    if topic.is_empty() {
        return Err(reader.fail(&rules::RESPONSE_TOPIC_EMPTY));
    }
    if text::has_wildcard(topic) {
        return Err(reader.fail(&rules::RESPONSE_TOPIC_WILDCARD));
    }
    Ok(topic)
}

/// Property identifiers on the wire. All fit one byte of a variable byte integer, and one bit of
/// a `u64`.
mod id {
    pub(super) const PAYLOAD_FORMAT: u8 = 0x01;
    pub(super) const MESSAGE_EXPIRY: u8 = 0x02;
    pub(super) const CONTENT_TYPE: u8 = 0x03;
    pub(super) const RESPONSE_TOPIC: u8 = 0x08;
    pub(super) const CORRELATION_DATA: u8 = 0x09;
    pub(super) const SUBSCRIPTION_ID: u8 = 0x0B;
    pub(super) const SESSION_EXPIRY: u8 = 0x11;
    pub(super) const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub(super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(super) const AUTH_METHOD: u8 = 0x15;
    pub(super) const AUTH_DATA: u8 = 0x16;
    pub(super) const REQUEST_PROBLEM_INFO: u8 = 0x17;
    pub(super) const WILL_DELAY: u8 = 0x18;
    pub(super) const REQUEST_RESPONSE_INFO: u8 = 0x19;
    pub(super) const RESPONSE_INFO: u8 = 0x1A;
    pub(super) const SERVER_REFERENCE: u8 = 0x1C;
    pub(super) const REASON_STRING: u8 = 0x1F;
    pub(super) const RECEIVE_MAX: u8 = 0x21;
    pub(super) const TOPIC_ALIAS_MAX: u8 = 0x22;
    pub(super) const TOPIC_ALIAS: u8 = 0x23;
    pub(super) const QOS_MAX: u8 = 0x24;
    pub(super) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(super) const USER: u8 = 0x26;
    pub(super) const PACKET_BYTES_MAX: u8 = 0x27;
    pub(super) const WILDCARD_AVAILABLE: u8 = 0x28;
    pub(super) const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub(super) const SHARED_AVAILABLE: u8 = 0x2A;
}

const fn bits(ids: &[u8]) -> u64 {
    let mut bits = 0;
    let mut at = 0;
    while at < ids.len() {
        bits |= 1 << ids[at];
        at += 1;
    }
    bits
}

const CONNECT: u64 = bits(&[
    id::SESSION_EXPIRY,
    id::RECEIVE_MAX,
    id::PACKET_BYTES_MAX,
    id::TOPIC_ALIAS_MAX,
    id::REQUEST_RESPONSE_INFO,
    id::REQUEST_PROBLEM_INFO,
    id::USER,
    id::AUTH_METHOD,
    id::AUTH_DATA,
]);
const MESSAGE: u64 = bits(&[
    id::PAYLOAD_FORMAT,
    id::MESSAGE_EXPIRY,
    id::CONTENT_TYPE,
    id::RESPONSE_TOPIC,
    id::CORRELATION_DATA,
    id::USER,
]);
const WILL: u64 = MESSAGE | bits(&[id::WILL_DELAY]);
const CONNACK: u64 = bits(&[
    id::SESSION_EXPIRY,
    id::RECEIVE_MAX,
    id::QOS_MAX,
    id::RETAIN_AVAILABLE,
    id::PACKET_BYTES_MAX,
    id::ASSIGNED_CLIENT_ID,
    id::TOPIC_ALIAS_MAX,
    id::REASON_STRING,
    id::USER,
    id::WILDCARD_AVAILABLE,
    id::SUBSCRIPTION_ID_AVAILABLE,
    id::SHARED_AVAILABLE,
    id::SERVER_KEEP_ALIVE,
    id::RESPONSE_INFO,
    id::SERVER_REFERENCE,
    id::AUTH_METHOD,
    id::AUTH_DATA,
]);
const PUBLISH_CLIENT: u64 = MESSAGE | bits(&[id::TOPIC_ALIAS]);
const PUBLISH_SERVER: u64 = PUBLISH_CLIENT | bits(&[id::SUBSCRIPTION_ID]);
const SUBSCRIBE: u64 = bits(&[id::SUBSCRIPTION_ID, id::USER]);
const UNSUBSCRIBE: u64 = bits(&[id::USER]);
const ACKNOWLEDGEMENT: u64 = bits(&[id::REASON_STRING, id::USER]);
/// A server reference makes sense from a server only, but the standard does not forbid it here.
const DISCONNECT_CLIENT: u64 = DISCONNECT_SERVER | bits(&[id::SESSION_EXPIRY]);
const DISCONNECT_SERVER: u64 = ACKNOWLEDGEMENT | bits(&[id::SERVER_REFERENCE]);
const AUTH: u64 = ACKNOWLEDGEMENT | bits(&[id::AUTH_METHOD, id::AUTH_DATA]);
