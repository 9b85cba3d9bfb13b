//! Every rule that decoding enforces, each once, with its normative statement in MQTT 5 and in
//! MQTT 3.1.1.
//!
//! The standards state some rules without an id. Those go under the statement that a breach closes
//! the connection: `MQTT-4.13.1-1` in MQTT 5, `MQTT-4.8.0-1` in MQTT 3.1.1.

use crate::{Reason, Version, Violation};

pub(crate) struct Rule {
    pub(crate) reason: Reason,
    v5: &'static str,
    v3: &'static str,
    pub(crate) detail: &'static str,
}

impl Rule {
    #[cold]
    #[inline(never)]
    pub(crate) fn broken(&self, version: Version) -> Violation {
        let clause = if version >= Version::V5 { self.v5 } else { self.v3 };
        Violation { reason: self.reason, clause, detail: self.detail }
    }
}

const CLOSE_V5: &str = "MQTT-4.13.1-1";
const CLOSE_V3: &str = "MQTT-4.8.0-1";

const fn rule(reason: Reason, v5: &'static str, v3: &'static str, detail: &'static str) -> Rule {
    Rule { reason, v5, v3, detail }
}

const fn malformed(v5: &'static str, v3: &'static str, detail: &'static str) -> Rule {
    rule(Reason::MALFORMED_PACKET, v5, v3, detail)
}

const fn protocol(v5: &'static str, v3: &'static str, detail: &'static str) -> Rule {
    rule(Reason::PROTOCOL_ERROR, v5, v3, detail)
}

macro_rules! rules {
    ($($(#[$note:meta])* $name:ident = $rule:expr;)*) => {
        $($(#[$note])* pub(crate) static $name: Rule = $rule;)*
    };
}

// The fixed header, and what every packet shares.
rules! {
    PACKET_TYPE = protocol(CLOSE_V5, CLOSE_V3, "the packet type is reserved");
    DIRECTION = protocol(CLOSE_V5, CLOSE_V3, "this packet is only ever sent by the other side");
    FLAGS = malformed("MQTT-2.1.3-1", "MQTT-2.2.2-2", "reserved flags of the fixed header are set");
    AUTH_FLAGS = malformed("MQTT-3.15.1-1", CLOSE_V3, "reserved flags of an AUTH packet are set");
    LENGTH_BYTES = malformed(CLOSE_V5, CLOSE_V3, "the remaining length is longer than four bytes");
    TOO_LARGE_FOR_SERVER = rule(Reason::PACKET_TOO_LARGE, "MQTT-3.2.2-15", CLOSE_V3,
        "the packet is larger than this server accepts");
    TOO_LARGE_FOR_CLIENT = rule(Reason::PACKET_TOO_LARGE, "MQTT-3.1.2-24", CLOSE_V3,
        "the packet is larger than this client accepts");
    PING_BODY = malformed(CLOSE_V5, CLOSE_V3, "a ping packet is not empty");
    TRUNCATED = malformed(CLOSE_V5, CLOSE_V3, "a field reaches beyond the end of its packet");
    TRAILING = malformed(CLOSE_V5, CLOSE_V3, "bytes are left over at the end of the packet");
    OVERLONG = malformed("MQTT-1.5.5-1", CLOSE_V3,
        "a variable byte integer is not in its shortest form");
    VARINT = malformed(CLOSE_V5, CLOSE_V3, "a variable byte integer is longer than four bytes");
    UTF8 = malformed("MQTT-1.5.4-1", "MQTT-1.5.3-1", "a string is not well-formed UTF-8");
    NUL = malformed("MQTT-1.5.4-2", "MQTT-1.5.3-2", "a string contains U+0000");
    /// Section 1.5.4 lets a receiver refuse control characters.
    NAME_BYTES = malformed("MQTT-4.7.3-3", "MQTT-4.7.3-3", "a name has more than 65535 bytes");
    CONTROL_CHARACTER = malformed(CLOSE_V5, CLOSE_V3, "a string contains a control character");
    NONCHARACTER = malformed(CLOSE_V5, CLOSE_V3, "a string contains a noncharacter of Unicode");
    PACKET_ID_ZERO = protocol("MQTT-2.2.1-3", "MQTT-2.3.1-1", "the packet identifier is 0");
    TOPIC_EMPTY = malformed("MQTT-4.7.3-1", "MQTT-4.7.3-1", "a topic name or filter is empty");
    REASON_PUBACK = protocol("MQTT-3.4.2-1", CLOSE_V3, "PUBACK cannot carry this reason code");
    REASON_PUBREC = protocol("MQTT-3.5.2-1", CLOSE_V3, "PUBREC cannot carry this reason code");
    REASON_PUBREL = protocol("MQTT-3.6.2-1", CLOSE_V3, "PUBREL cannot carry this reason code");
    REASON_PUBCOMP = protocol("MQTT-3.7.2-1", CLOSE_V3, "PUBCOMP cannot carry this reason code");
    REASON_DISCONNECT = protocol("MQTT-3.14.2-1", CLOSE_V3,
        "DISCONNECT cannot carry this reason code");
    REASON_AUTH = protocol("MQTT-3.15.2-1", CLOSE_V3, "AUTH cannot carry this reason code");
    AUTH_NO_METHOD = protocol(CLOSE_V5, CLOSE_V3, "AUTH lacks the authentication method");
}

// CONNECT and CONNACK.
rules! {
    PROTOCOL_NAME = rule(Reason::UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-1", "MQTT-3.1.2-1",
        "the protocol name is neither MQTT nor MQIsdp");
    PROTOCOL_VERSION = rule(Reason::UNSUPPORTED_PROTOCOL_VERSION, "MQTT-3.1.2-2", "MQTT-3.1.2-2",
        "the protocol version must be 3.1, 3.1.1 or 5");
    CONNECT_FLAG_RESERVED = malformed("MQTT-3.1.2-3", "MQTT-3.1.2-3",
        "the reserved connect flag is set");
    CLIENT_ID = rule(Reason::CLIENT_IDENTIFIER_NOT_VALID, "MQTT-3.1.3-4", "MQTT-3.1.3-4",
        "the client identifier is not well-formed UTF-8 or contains a control character");
    WILL_QOS_WITHOUT_WILL = malformed("MQTT-3.1.2-11", "MQTT-3.1.2-13",
        "a will QoS is given without a will");
    WILL_QOS_3 = malformed("MQTT-3.1.2-12", "MQTT-3.1.2-14", "the will QoS is 3");
    WILL_RETAIN_WITHOUT_WILL = malformed("MQTT-3.1.2-13", "MQTT-3.1.2-15",
        "will retain is set without a will");
    WILL_TOPIC_WILDCARD = malformed("MQTT-4.7.0-1", "MQTT-4.7.1-1",
        "the will topic contains a wildcard");
    USER_NAME_MISSING = malformed("MQTT-3.1.2-17", "MQTT-3.1.2-19",
        "the username is announced but missing");
    USER_NAME = malformed("MQTT-3.1.3-12", "MQTT-3.1.3-11",
        "the username is not well-formed UTF-8 or contains a control character");
    PASSWORD_MISSING = malformed("MQTT-3.1.2-19", "MQTT-3.1.2-21",
        "the password is announced but missing");
    /// MQTT 5 lets a password stand alone.
    PASSWORD_WITHOUT_USER = malformed(CLOSE_V5, "MQTT-3.1.2-22",
        "a password is given without a username");
    AUTH_DATA_WITHOUT_METHOD = protocol(CLOSE_V5, CLOSE_V3,
        "authentication data is given without an authentication method");
    CONNACK_FLAGS = malformed("MQTT-3.2.2-1", CLOSE_V3, "reserved acknowledge flags are set");
    CONNACK_REASON = protocol("MQTT-3.2.2-8", CLOSE_V3, "CONNACK cannot carry this code");
    CONNACK_SESSION_ON_ERROR = protocol("MQTT-3.2.2-6", "MQTT-3.2.2-4",
        "CONNACK refuses the connection but says that a session is present");
}

// PUBLISH.
rules! {
    PUBLISH_QOS_3 = malformed("MQTT-3.3.1-4", "MQTT-3.3.1-4", "the QoS of a PUBLISH is 3");
    PUBLISH_DUP_QOS_0 = malformed("MQTT-3.3.1-2", "MQTT-3.3.1-2", "DUP is set on a QoS 0 PUBLISH");
    /// Section 3.3.2.1 of MQTT 5 calls it a protocol error.
    TOPIC_MISSING = protocol("MQTT-4.7.3-1", "MQTT-4.7.3-1",
        "the topic name is empty and the topic alias is missing");
    PUBLISH_WILDCARD = malformed("MQTT-3.3.2-2", "MQTT-3.3.2-2",
        "the topic name of a PUBLISH contains a wildcard");
}

// SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK. Where MQTT 5 does not settle whether a fault is a
// malformed packet or a protocol error, these answer as mosquitto does: malformed. It settles an
// empty payload (3.8.3, 3.10.3), QoS 3, retain handling 3 (3.8.3.1) and identifier 0 (3.8.2.1.2).
rules! {
    LIST_ID_ZERO = malformed("MQTT-2.2.1-3", "MQTT-2.3.1-1", "the packet identifier is 0");
    SUBSCRIBE_EMPTY = protocol("MQTT-3.8.3-2", "MQTT-3.8.3-3", "SUBSCRIBE without a topic filter");
    SUBSCRIBE_RESERVED = malformed("MQTT-3.8.3-5", "MQTT-3.8.3-4",
        "reserved bits of the subscription options are set");
    SUBSCRIBE_QOS_3 = protocol(CLOSE_V5, "MQTT-3.8.3-4", "the QoS of a subscription is 3");
    SUBSCRIBE_RETAIN_HANDLING_3 = protocol(CLOSE_V5, "MQTT-3.8.3-4",
        "the retain handling of a subscription is 3");
    SUBSCRIBE_SHARED_NO_LOCAL = protocol("MQTT-3.8.3-4", CLOSE_V3,
        "No Local is set on a shared subscription");
    SUBSCRIBE_ID_ZERO = protocol(CLOSE_V5, CLOSE_V3, "the subscription identifier is 0");
    SUBACK_REASON = protocol("MQTT-3.9.3-2", "MQTT-3.9.3-2", "SUBACK cannot carry this code");
    SUBACK_EMPTY = protocol("MQTT-3.8.4-6", "MQTT-3.8.4-5", "SUBACK without a code");
    UNSUBSCRIBE_EMPTY = protocol("MQTT-3.10.3-2", "MQTT-3.10.3-2",
        "UNSUBSCRIBE without a topic filter");
    UNSUBACK_REASON = protocol("MQTT-3.11.3-2", CLOSE_V3, "UNSUBACK cannot carry this reason code");
    UNSUBACK_EMPTY = protocol("MQTT-3.11.3-1", CLOSE_V3, "UNSUBACK without a reason code");
    PROPERTY_NOT_IN_LIST = malformed(CLOSE_V5, CLOSE_V3,
        "the property is not allowed in SUBSCRIBE or UNSUBSCRIBE");
}

// Properties exist in MQTT 5 only.
rules! {
    PROPERTY_UNKNOWN = malformed(CLOSE_V5, CLOSE_V3, "the property identifier is unknown");
    PROPERTY_NOT_HERE = protocol(CLOSE_V5, CLOSE_V3, "the property is not allowed in this packet");
    PROPERTY_TWICE = protocol(CLOSE_V5, CLOSE_V3, "the property occurs twice");
    PROPERTY_RANGE = protocol(CLOSE_V5, CLOSE_V3, "the property has a value out of its range");
    SUBSCRIPTION_ID_FROM_CLIENT = protocol("MQTT-3.3.4-6", CLOSE_V3,
        "a client's PUBLISH carries a subscription identifier");
    SESSION_EXPIRY_FROM_SERVER = protocol("MQTT-3.14.2-2", CLOSE_V3,
        "a server's DISCONNECT carries a session expiry interval");
    RESPONSE_TOPIC_EMPTY = protocol("MQTT-4.7.3-1", CLOSE_V3, "the response topic is empty");
    RESPONSE_TOPIC_WILDCARD = protocol("MQTT-3.3.2-14", CLOSE_V3,
        "the response topic contains a wildcard");
    TOPIC_ALIAS_ZERO = rule(Reason::TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8", CLOSE_V3,
        "the topic alias is 0");
}

/// The faults that are answered by closing, without a packet: bytes that are hardly MQTT, garbled
/// credentials, and the farewell of a peer that no longer listens.
pub(crate) static SILENT: [&Rule; 8] = [
    &LENGTH_BYTES,
    &PING_BODY,
    &PROTOCOL_NAME,
    &USER_NAME_MISSING,
    &USER_NAME,
    &PASSWORD_MISSING,
    &PASSWORD_WITHOUT_USER,
    &REASON_DISCONNECT,
];
