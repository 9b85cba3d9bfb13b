//! The first packet of a connection: is it a CONNECT that may go on to authentication?
//!
//! Used by acceptors, before any shard knows of the connection.

use std::sync::Arc;

use codec::{
    Auth, Connack, Connect, Disconnect, Packet, Properties, Property, PropertyBuf, Reason, Sender,
    Version, Violation,
};
use session::Will;

use crate::{ConnectRequest, Limits, Scope};

/// The type of a CONNECT, in the upper half of its first byte.
const CONNECT: u8 = 1;

const NO_CONNECT: Violation = Violation {
    reason: Reason::PROTOCOL_ERROR,
    clause: "MQTT-3.1.0-1",
    detail: "the first packet must be a CONNECT",
};

/// The client IDs of the bridges of this broker begin with it.
pub const BRIDGE_ID_PREFIX: &str = "$bridge/";

/// What the first bytes amount to.
#[derive(Debug)]
pub enum Admission {
    /// The packet is not complete.
    NeedMore,
    /// A CONNECT, of so many bytes.
    Connect(Box<Credentials>, usize),
    /// Write the bytes, then close.
    Refuse(Refusal),
}

/// Why a connection is refused before it reaches a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: Reason,
    /// A CONNACK, or nothing where the standard asks for silence.
    pub answer: Vec<u8>,
    /// For the log.
    pub clause: &'static str,
    pub detail: &'static str,
}

/// A CONNECT with what is needed to authenticate it.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub request: ConnectRequest,
    pub password: Option<Box<[u8]>>,
    /// The first data of an enhanced authentication.
    pub auth_data: Option<Box<[u8]>>,
}

/// Looks at the first bytes of a connection. `assigned_id` is asked for the id of a client that has
/// none of its own.
pub fn admit(
    bytes: &[u8],
    limits: &Arc<Limits>,
    peer: &str,
    assigned_id: impl FnOnce() -> String,
) -> Admission {
    let bytes_max = limits.connect_bytes_max.min(limits.packet_bytes_max);
    let decoded = codec::decode(bytes, Version::V5, Sender::Client, bytes_max);
    match decoded {
        // Another packet, or another protocol, is not waited for.
        Ok(None) if bytes.first().is_some_and(|first| first >> 4 != CONNECT) => {
            Admission::Refuse(silent(&NO_CONNECT))
        }
        Ok(None) => Admission::NeedMore,
        Ok(Some((Packet::Connect(connect), packet_len))) => {
            match check(&connect, limits, peer, assigned_id) {
                Ok(credentials) => Admission::Connect(Box::new(credentials), packet_len),
                Err((reason, clause, detail)) => Admission::Refuse(Refusal {
                    reason,
                    answer: refusal(&connect, reason),
                    clause,
                    detail,
                }),
            }
        }
        Ok(Some(_)) => Admission::Refuse(silent(&NO_CONNECT)),
        Err(violation) => Admission::Refuse(refuse_violation(bytes, &violation)),
    }
}

/// For a connection for whose packet there is no room, and of whom only the first bytes are known.
pub fn refuse_first(bytes: &[u8], reason: Reason, detail: &'static str) -> Refusal {
    refuse_violation(bytes, &Violation { reason, clause: "", detail })
}

/// An unreadable CONNECT: answered as the codec says, in the version that it announces.
fn refuse_violation(bytes: &[u8], violation: &Violation) -> Refusal {
    let mut refusal = silent(violation);
    violation.answer_connect(bytes, &mut refusal.answer);
    refusal
}

fn silent(violation: &Violation) -> Refusal {
    Refusal {
        reason: violation.reason,
        answer: Vec::new(),
        clause: violation.clause,
        detail: violation.detail,
    }
}

/// The bytes of a CONNACK that refuses. No reason string: the public suites compare the whole
/// packet, and the journal has the detail.
pub fn connack(version: Version, reason: Reason) -> Vec<u8> {
    let mut out = Vec::new();
    let properties = Properties::EMPTY;
    Packet::Connack(Connack { session_present: false, reason, properties })
        .encode(version, &mut out);
    out
}

/// The CONNACK that refuses a CONNECT which was let in so far, or nothing if the client does not
/// take packets of that size (MQTT-3.1.2-24).
pub fn refuse(request: &ConnectRequest, reason: Reason) -> Vec<u8> {
    let mut answer = connack(request.version, reason);
    if answer.len() > request.packet_bytes_max as usize {
        answer.clear();
    }
    answer
}

/// The CONNACK that refuses a CONNECT because another server is to be used. What the client does
/// not take for its size is left out: the text first (MQTT-3.2.2-19), then the reference.
pub fn refer(
    request: &ConnectRequest,
    reason: Reason,
    reference: Option<&str>,
    text: &str,
) -> Vec<u8> {
    let bytes_max = request.packet_bytes_max as usize;
    for text in [Some(text), None] {
        let mut properties = PropertyBuf::new();
        if let Some(reference) = reference {
            properties.push(Property::ServerReference(reference));
        }
        if let Some(text) = text {
            properties.push(Property::ReasonString(text));
        }
        let properties = properties.as_properties();
        let mut answer = Vec::new();
        let connack = Connack { session_present: false, reason, properties };
        Packet::Connack(connack).encode(request.version, &mut answer);
        if answer.len() <= bytes_max {
            return answer;
        }
    }
    refuse(request, reason)
}

/// The CONNACK for a CONNECT that is refused, or nothing if the client does not take packets of
/// that size (MQTT-3.1.2-24).
fn refusal(connect: &Connect<'_>, reason: Reason) -> Vec<u8> {
    let mut answer = connack(connect.version, reason);
    if answer.len() > Asked::of(&connect.properties).packet_bytes_max as usize {
        answer.clear();
    }
    answer
}

/// The bytes of a server's AUTH packet during the CONNECT exchange (MQTT-4.12.0-2). None: the
/// client does not take packets of that size (MQTT-3.1.2-24), so that there can be no exchange.
pub fn auth_continue(request: &ConnectRequest, data: &[u8]) -> Option<Vec<u8>> {
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod(request.auth_method.as_deref().unwrap_or_default()));
    properties.push(Property::AuthData(data));
    let properties = properties.as_properties();
    let mut out = Vec::new();
    Packet::Auth(Auth { reason: Reason::CONTINUE_AUTHENTICATION, properties })
        .encode(Version::V5, &mut out);
    (out.len() <= request.packet_bytes_max as usize).then_some(out)
}

/// What a client may send while an enhanced authentication is under way.
#[derive(Debug)]
pub enum AuthStep {
    NeedMore,
    /// The client's data, and the length of the packet.
    Data(Box<[u8]>, usize),
    Refuse(Refusal),
}

/// Looks at the bytes that follow a server's AUTH (MQTT-4.12.0-3, MQTT-4.12.0-5).
pub fn auth_step(bytes: &[u8], request: &ConnectRequest, packet_bytes_max: u32) -> AuthStep {
    let violation = match codec::decode(bytes, Version::V5, Sender::Client, packet_bytes_max) {
        Ok(None) => return AuthStep::NeedMore,
        Ok(Some((Packet::Auth(auth), packet_len))) => {
            let is_same = auth.properties.auth_method() == request.auth_method.as_deref();
            if is_same && auth.reason == Reason::CONTINUE_AUTHENTICATION {
                let data = auth.properties.auth_data().unwrap_or_default();
                return AuthStep::Data(data.into(), packet_len);
            }
            Violation {
                reason: Reason::PROTOCOL_ERROR,
                clause: "MQTT-4.12.0-5",
                detail: "AUTH with another method or reason code than expected",
            }
        }
        Ok(Some(_)) => Violation {
            reason: Reason::PROTOCOL_ERROR,
            clause: "MQTT-3.1.2-30",
            detail: "packet other than AUTH or DISCONNECT before the CONNACK",
        },
        Err(violation) => violation,
    };
    let mut refusal = silent(&violation);
    refusal.answer = refuse(request, violation.reason.connack());
    AuthStep::Refuse(refusal)
}

/// The bytes of a DISCONNECT for MQTT 5, for connections that no shard knows yet.
pub fn disconnect(reason: Reason) -> Vec<u8> {
    let mut out = Vec::new();
    Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY })
        .encode(Version::V5, &mut out);
    out
}

type Refused = (Reason, &'static str, &'static str);

fn check(
    connect: &Connect<'_>,
    limits: &Arc<Limits>,
    peer: &str,
    assigned_id: impl FnOnce() -> String,
) -> Result<Credentials, Refused> {
    let asked = Asked::of(&connect.properties);
    let is_v5 = connect.version >= Version::V5;
    check_client_id(connect, limits)?;
    check_texts(connect, limits)?;
    if asked.auth_data.is_some() && asked.auth_method.is_none() {
        return Err((
            Reason::PROTOCOL_ERROR,
            "MQTT-4.12.0-1",
            "authentication data without a method",
        ));
    }
    let is_assigned = connect.client_id.is_empty();
    let session_expiry_secs = match (is_v5, connect.clean_start) {
        (true, _) => asked.session_expiry_secs,
        (false, true) => 0,
        (false, false) => limits.session_expiry_v3_secs,
    };
    let request = ConnectRequest {
        version: connect.version,
        is_bridge: connect.bridge,
        scope: Scope::FIRST,
        clean_start: connect.clean_start,
        keep_alive_secs: connect.keep_alive_secs,
        client_id: if is_assigned { assigned_id().into() } else { connect.client_id.into() },
        is_assigned,
        username: connect.username.map(Into::into),
        is_proved: true,
        principal: None,
        will: check_will(connect, limits)?.map(Box::new),
        session_expiry_secs,
        receive_max: asked.receive_max,
        packet_bytes_max: asked.packet_bytes_max,
        alias_max: asked.alias_max,
        problem_info: asked.problem_info,
        response_info: asked.response_info,
        auth_method: asked.auth_method.map(Into::into),
        auth_data: None,
        limits: limits.clone(),
        peer: peer.into(),
        origin: Box::default(),
    };
    Ok(Credentials {
        request,
        password: connect.password.map(Into::into),
        auth_data: asked.auth_data.map(Into::into),
    })
}

fn check_client_id(connect: &Connect<'_>, limits: &Limits) -> Result<(), Refused> {
    let invalid = Reason::CLIENT_IDENTIFIER_NOT_VALID;
    if connect.client_id.len() > usize::from(limits.client_id_bytes_max) {
        return Err((invalid, "MQTT-3.1.3-8", "client ID longer than client_id_bytes_max"));
    }
    if connect.client_id.starts_with(BRIDGE_ID_PREFIX) {
        return Err((invalid, "", "client IDs that begin with $bridge/ are the broker's own"));
    }
    let chars = connect.client_id.chars().count();
    match connect.version {
        Version::V31 if chars == 0 => {
            Err((invalid, "MQIsdp-3.1-CONNECT", "no client ID, which MQTT 3.1 requires"))
        }
        Version::V31 if chars > usize::from(limits.client_id_v31_chars_max) => {
            Err((invalid, "MQIsdp-3.1-CONNECT", "client ID longer than client_id_v31_chars_max"))
        }
        Version::V311 if chars == 0 && !connect.clean_start => {
            Err((invalid, "MQTT-3.1.3-8", "no client ID, and clean session is 0"))
        }
        Version::V31 | Version::V311 | Version::V5 => Ok(()),
    }
}

fn check_texts(connect: &Connect<'_>, limits: &Limits) -> Result<(), Refused> {
    let is_long =
        |text: Option<&[u8]>, max: u16| text.is_some_and(|text| text.len() > usize::from(max));
    if is_long(connect.username.map(str::as_bytes), limits.username_bytes_max) {
        let detail = "username longer than username_bytes_max";
        return Err((Reason::BAD_USER_NAME_OR_PASSWORD, "", detail));
    }
    if is_long(connect.password, limits.password_bytes_max) {
        let detail = "password longer than password_bytes_max";
        return Err((Reason::BAD_USER_NAME_OR_PASSWORD, "", detail));
    }
    Ok(())
}

fn check_will(connect: &Connect<'_>, limits: &Limits) -> Result<Option<Will>, Refused> {
    let Some(will) = &connect.will else { return Ok(None) };
    if will.qos > limits.qos_max {
        let detail = "QoS of the will above qos_max";
        return Err((Reason::QOS_NOT_SUPPORTED, "MQTT-3.2.2-12", detail));
    }
    if will.retain && !limits.retain_available {
        let detail = "retained will, but retained messages are disabled (retain_available)";
        return Err((Reason::RETAIN_NOT_SUPPORTED, "MQTT-3.2.2-13", detail));
    }
    if will.payload.len() > usize::from(limits.will_payload_bytes_max) {
        let detail = "will payload larger than will_payload_bytes_max";
        return Err((Reason::PACKET_TOO_LARGE, "", detail));
    }
    let properties_bytes = will.properties.raw().len();
    let will_bytes = will.topic.len() + properties_bytes + will.payload.len();
    if will_bytes > limits.will_bytes_max as usize
        || properties_bytes > limits.properties_bytes_max as usize
    {
        let detail = "will larger than will_bytes_max";
        return Err((Reason::PACKET_TOO_LARGE, "", detail));
    }
    if let Err(error) = topic::check_topic(will.topic, &limits.topic) {
        let detail = "the will topic must be a valid topic name";
        return Err((Reason::TOPIC_NAME_INVALID, error.clause(), detail));
    }
    let mut delay_secs = 0;
    let mut message_expiry_secs = limits.message_expiry_secs(None);
    let mut forwarded = PropertyBuf::new();
    for property in will.properties.iter() {
        match property {
            Property::WillDelaySecs(secs) => delay_secs = secs,
            Property::MessageExpirySecs(secs) => {
                message_expiry_secs = limits.message_expiry_secs(Some(secs));
            }
            other => {
                forwarded.push(other);
            }
        }
    }
    Ok(Some(Will {
        topic: will.topic.into(),
        properties: forwarded.as_properties().raw().into(),
        payload: will.payload.into(),
        qos: will.qos,
        retain: will.retain,
        delay_secs,
        message_expiry_secs,
        due_ms: session::NEVER,
    }))
}

/// What the properties of a CONNECT ask for.
struct Asked<'a> {
    session_expiry_secs: u32,
    receive_max: u16,
    packet_bytes_max: u32,
    alias_max: u16,
    problem_info: bool,
    response_info: bool,
    auth_method: Option<&'a str>,
    auth_data: Option<&'a [u8]>,
}

impl<'a> Asked<'a> {
    fn of(properties: &Properties<'a>) -> Self {
        let mut asked = Self {
            session_expiry_secs: 0,
            receive_max: u16::MAX,
            packet_bytes_max: u32::MAX,
            alias_max: 0,
            problem_info: true,
            response_info: false,
            auth_method: None,
            auth_data: None,
        };
        for property in properties.iter() {
            match property {
                Property::SessionExpirySecs(secs) => asked.session_expiry_secs = secs,
                Property::ReceiveMax(max) => asked.receive_max = max,
                Property::PacketBytesMax(max) => asked.packet_bytes_max = max,
                Property::TopicAliasMax(max) => asked.alias_max = max,
                Property::RequestProblemInfo(wanted) => asked.problem_info = wanted,
                Property::RequestResponseInfo(wanted) => asked.response_info = wanted,
                Property::AuthMethod(method) => asked.auth_method = Some(method),
                Property::AuthData(data) => asked.auth_data = Some(data),
                _ => {}
            }
        }
        asked
    }
}
