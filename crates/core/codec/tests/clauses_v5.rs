//! One test per normative statement of MQTT 5 that decoding and encoding answer for, named after
//! its id, and a few for rules that have none.

mod raw;

use Sender::{Client, Server};
use Version::{V5, V31, V311};
use codec::{
    Ack, AckKind, Connack, Connect, Packet, Properties, Publish, QoS, Reason, Sender, Suback,
    Unsuback, Version, Will, decode,
};
use raw::*;

// Section 1: data representation.

#[test]
fn mqtt_1_5_4_1_ill_formed_utf8_is_malformed() {
    for bad in
        [&b"\xED\xA0\x80"[..], b"\xED\xBF\xBF", b"\xC0\x80", b"\xF8\x88\x80\x80\x80", b"\xE2\x82"]
    {
        let topic = [&[0, bad.len() as u8], bad].concat();
        breaks(&raw(0x30, &[&topic, &[0]]), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
        breaks(&subscribe_v5(bad, 0), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_1_5_4_2_u0000_is_malformed() {
    breaks(&raw(0x30, &[b"\0\x03a\0b\0"]), V5, "MQTT-1.5.4-2", Reason::MALFORMED_PACKET);
    let user = publish_v5(b"\x26\0\x01a\0\x01\0");
    breaks(&user, V5, "MQTT-1.5.4-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_1_5_4_3_a_byte_order_mark_is_kept() {
    let bytes = raw(0x30, &[b"\0\x04\xEF\xBB\xBFa\0"]);
    let Packet::Publish(publish) = accept(&bytes, V5, Client) else { panic!("no PUBLISH") };
    assert_eq!(publish.topic, "\u{FEFF}a");
}

#[test]
fn mqtt_1_5_5_1_integers_are_in_their_shortest_form() {
    let overlong = Reason::MALFORMED_PACKET;
    // Remaining length, property length, subscription identifier.
    breaks(&[0x30, 0x85, 0x00, 0, 1, b'a', 0, b'x'], V5, "MQTT-1.5.5-1", overlong);
    breaks(&raw(0x30, &[b"\0\x01a\x80\0"]), V5, "MQTT-1.5.5-1", overlong);
    let subscribe = raw(0x82, &[&[0, 1, 3, 0x0B, 0x81, 0, 0, 1, b'a', 0]]);
    breaks(&subscribe, V5, "MQTT-1.5.5-1", overlong);
    // MQTT 3.1.1 states no such rule.
    accept(&[0x30, 0x84, 0x00, 0, 1, b'a', b'x'], V311, Client);
}

#[test]
fn mqtt_1_5_7_1_both_strings_of_a_pair_are_utf8() {
    for user in [&b"\x26\0\x01\xFF\0\x01a"[..], b"\x26\0\x01a\0\x01\xFF"] {
        breaks(&publish_v5(user), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
    }
}

/// What libmosquitto disconnects on, for ever if it is retained or queued.
const POISON: [&str; 11] = [
    "a\u{1}",
    "\u{1F}",
    "line\n",
    "a\u{7F}",
    "\u{9F}",
    "\u{FDD0}",
    "a\u{FDEF}",
    "\u{FFFE}",
    "\u{FFFF}b",
    "\u{1FFFE}",
    "\u{10FFFF}",
];

#[test]
fn control_characters_and_noncharacters_are_refused_in_names_and_forwarded_text() {
    let refused = |bytes: &[u8]| breaks(bytes, V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
    for bad in POISON {
        let text = [&[0, bad.len() as u8], bad.as_bytes()].concat();
        refused(&raw(0x30, &[&text, b"\0"]));
        refused(&subscribe_v5(bad.as_bytes(), 0));
        refused(&publish_v5(&[b"\x03", &text[..]].concat()));
        refused(&publish_v5(&[b"\x26\0\x01a", &text[..]].concat()));
        let pair = [b"\x26", &text[..], b"\0\x01a"].concat();
        refused(&publish_v5(&pair));
        let will = [&[0, 1, b'c', pair.len() as u8][..], &pair, b"\0\x01w\0\0"].concat();
        refused(&connect_v5(0x06, b"", &will));
        // Of a server it is read: it may have accepted that. So it is where nobody else gets it.
        accept(&publish_v5(&pair), V5, Server);
        accept(&connect_v5(2, &pair, b"\0\x01c"), V5, Client);
    }
    // Everything else that is well-formed is accepted.
    accept(&publish_v5(b"\x26\0\x02+#\0\x02\xC2\xA0"), V5, Client);
    accept(&raw(0x30, &[b"\0\x03\xEF\xB7\x8F\0"]), V5, Client);
    accept(&raw(0x30, &[b"\0\x05A\xF0\xAA\x9B\x94\0"]), V5, Client);
}

// Section 2: the shape of a packet.

#[test]
fn mqtt_2_1_3_1_reserved_flags_are_malformed() {
    let from_client = [0x41, 0x52, 0x60, 0x63, 0x6A, 0x71, 0x80, 0x8A, 0xA0, 0xA3, 0xC1, 0xE8];
    for first in from_client {
        // At once: neither length nor body has arrived.
        breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
    for first in [0x21, 0x92, 0xB4, 0xD8] {
        server_breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
    }
    let mut connect = connect_v5(2, b"", b"\0\x01c");
    connect[0] = 0x11;
    breaks(&connect, V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_2_2_1_2_no_packet_identifier_at_qos_0() {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "a",
        packet_id: 7,
        properties: Properties::EMPTY,
        payload: b"x",
    };
    let mut out = Vec::new();
    publish.encode(V5, &mut out);
    assert_eq!(out, b"\x30\x05\0\x01a\0x");
    assert_eq!(publish.packet_id_at(V5), None);
}

#[test]
fn mqtt_2_2_1_3_packet_identifier_0_is_refused() {
    let (clause, v311) = ("MQTT-2.2.1-3", "MQTT-2.3.1-1");
    for first in [0x32, 0x34] {
        breaks(&raw(first, &[b"\0\x01a\0\0\0"]), V5, clause, Reason::PROTOCOL_ERROR);
    }
    for first in [0x40, 0x50, 0x62, 0x70] {
        breaks(&[first, 2, 0, 0], V5, clause, Reason::PROTOCOL_ERROR);
        breaks(&[first, 2, 0, 0], V311, v311, Reason::PROTOCOL_ERROR);
    }
    for (first, body) in [(0x82, &b"\0\0\0\0\x01a\0"[..]), (0xA2, b"\0\0\0\0\x01a")] {
        breaks(&raw(first, &[body]), V5, clause, Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_2_2_2_1_no_properties_is_length_0() {
    let mut out = Vec::new();
    let reasons = [0];
    Suback { packet_id: 1, properties: Properties::EMPTY, reasons: &reasons }.encode(V5, &mut out);
    assert_eq!(out, [0x90, 4, 0, 1, 0, 0]);
    // Where the length is missing the packet is cut short.
    breaks(&[0x82, 2, 0, 1], V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
}

// Section 3.1: CONNECT.

#[test]
fn mqtt_3_1_2_1_the_protocol_name_is_mqtt() {
    for name in [&b"\0\x04MQTU\x05"[..], b"\0\x03MQT\x05", b"\0\0\x05", b"\0\x05MQTTT\x05"] {
        let bytes = raw(0x10, &[name, &[2, 0, 10, 0], b"\0\x01c"]);
        let violation = refuse(&bytes, V5, Client);
        assert_eq!(violation.clause, "MQTT-3.1.2-1");
        assert!(!violation.is_answered());
    }
}

#[test]
fn mqtt_3_1_2_2_other_versions_are_unsupported() {
    // A level below 5 is answered in the form that all versions before 5 share (MQTT-3.1.2-2 of
    // MQTT 3.1.1), a level from 5 up in the form of MQTT 5.
    let (before_5, from_5) = (&[0x20, 2, 0, 1][..], &[0x20, 3, 0, 0x84, 0][..]);
    for (protocol, expected) in [
        (&b"\0\x04MQTT\x02"[..], before_5),
        (b"\0\x04MQTT\x03", before_5),
        (b"\0\x04MQTT\x83", before_5),
        (b"\0\x06MQIsdp\x04", before_5),
        (b"\0\x06MQIsdp\x06", before_5),
        (b"\0\x04MQTT\x06", from_5),
        (b"\0\x04MQTT\x7F", from_5),
        (b"\0\x04MQTT\x85", from_5),
        (b"\0\x04MQTT\xFF", from_5),
    ] {
        let bytes = raw(0x10, &[protocol, b"junk of another age"]);
        breaks(&bytes, V5, "MQTT-3.1.2-2", Reason::UNSUPPORTED_PROTOCOL_VERSION);
        let mut answer = Vec::new();
        refuse(&bytes, V5, Client).answer_connect(&bytes, &mut answer);
        assert_eq!(answer, expected, "{protocol:?}");
    }
}

#[test]
fn mqtt_3_1_2_3_the_reserved_connect_flag_is_0() {
    breaks(&connect_v5(3, b"", b"\0\x01c"), V5, "MQTT-3.1.2-3", Reason::MALFORMED_PACKET);
    breaks(&connect_v311(3, b"\0\x01c"), V5, "MQTT-3.1.2-3", Reason::MALFORMED_PACKET);
    accept(&connect_v31(3, b"\0\x01c"), V5, Client);
}

#[test]
fn mqtt_3_1_2_9_will_fields_must_be_present() {
    for payload in [&b"\0\x01c"[..], b"\0\x01c\0", b"\0\x01c\0\0\x01t"] {
        breaks(&connect_v5(6, b"", payload), V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
    }
    let bytes = connect_v5(6, b"", b"\0\x01c\0\0\x01t\0\0");
    let Packet::Connect(connect) = accept(&bytes, V5, Client) else { panic!("no CONNECT") };
    assert_eq!(connect.will.map(|will| (will.topic, will.payload)), Some(("t", &b""[..])));
}

#[test]
fn mqtt_3_1_2_11_no_will_no_will_qos() {
    breaks(&connect_v5(0x0A, b"", b"\0\x01c"), V5, "MQTT-3.1.2-11", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_12_will_qos_3_is_malformed() {
    let payload = b"\0\x01c\0\0\x01t\0\0";
    breaks(&connect_v5(0x1E, b"", payload), V5, "MQTT-3.1.2-12", Reason::MALFORMED_PACKET);
    breaks(&connect_v5(0x1A, b"", payload), V5, "MQTT-3.1.2-12", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_13_no_will_no_will_retain() {
    breaks(&connect_v5(0x22, b"", b"\0\x01c"), V5, "MQTT-3.1.2-13", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_16_a_user_name_without_its_flag_is_malformed() {
    let bytes = connect_v5(2, b"", b"\0\x01c\0\x01u");
    breaks(&bytes, V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_18_a_password_without_its_flag_is_malformed() {
    let bytes = connect_v5(0x82, b"", b"\0\x01c\0\x01u\0\x01p");
    breaks(&bytes, V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_17_an_announced_user_name_must_be_there() {
    let bytes = connect_v5(0x82, b"", b"\0\x01c");
    breaks(&bytes, V5, "MQTT-3.1.2-17", Reason::MALFORMED_PACKET);
    assert!(!refuse(&bytes, V5, Client).is_answered());
}

#[test]
fn mqtt_3_1_2_19_an_announced_password_must_be_there() {
    let bytes = connect_v5(0xC2, b"", b"\0\x01c\0\x01u");
    breaks(&bytes, V5, "MQTT-3.1.2-19", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_2_24_a_server_must_not_exceed_the_maximum_packet_size() {
    // Before the body has arrived, and in no other way than when it has.
    let publish = raw(0x30, &[b"\0\x01a\0", &[b'x'; 20]]);
    for arrived in 2..=publish.len() {
        let violation = decode(&publish[..arrived], V5, Server, 25).unwrap_err();
        assert_eq!(violation.clause, "MQTT-3.1.2-24");
        assert_eq!(violation.reason, Reason::PACKET_TOO_LARGE);
    }
    assert!(decode(&publish, V5, Server, 26).unwrap().is_some());
}

#[test]
fn mqtt_3_1_3_1_the_payload_fields_stand_in_order() {
    let bytes = connect_v5(0xC6, b"", b"\0\x01c\0\0\x01t\0\x01w\0\x01u\0\x01p");
    let expected = Connect {
        version: V5,
        clean_start: true,
        keep_alive_secs: 10,
        client_id: "c",
        properties: Properties::EMPTY,
        will: Some(Will {
            topic: "t",
            payload: b"w",
            qos: QoS::AtMostOnce,
            retain: false,
            properties: Properties::EMPTY,
        }),
        username: Some("u"),
        password: Some(b"p"),
        bridge: false,
    };
    assert_eq!(accept(&bytes, V311, Client), Packet::Connect(expected));
}

#[test]
fn mqtt_3_1_3_3_the_client_identifier_must_be_present() {
    breaks(&connect_v5(2, b"", b""), V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
    accept(&connect_v5(2, b"", b"\0\0"), V5, Client);
}

#[test]
fn mqtt_3_1_3_4_the_client_identifier_is_utf8() {
    for bad in [&b"\0\x03to\0"[..], b"\0\x03\xED\xA0\x80", b"\0\x01\x01"] {
        let bytes = connect_v5(2, b"", bad);
        breaks(&bytes, V5, "MQTT-3.1.3-4", Reason::CLIENT_IDENTIFIER_NOT_VALID);
    }
}

#[test]
fn mqtt_3_1_3_11_the_will_topic_is_utf8() {
    let bytes = connect_v5(6, b"", b"\0\x01c\0\0\x01\xFF\0\0");
    breaks(&bytes, V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_1_3_12_the_user_name_is_utf8() {
    let bytes = connect_v5(0x82, b"", b"\0\x01c\0\x01\xFF");
    breaks(&bytes, V5, "MQTT-3.1.3-12", Reason::MALFORMED_PACKET);
}

#[test]
fn authentication_data_needs_a_method() {
    let bytes = connect_v5(2, b"\x16\0\x01d", b"\0\x01c");
    breaks(&bytes, V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    accept(&connect_v5(2, b"\x16\0\x01d\x15\0\x01m", b"\0\x01c"), V5, Client);
}

#[test]
fn a_refused_connect_is_answered_in_its_own_version() {
    let answer = |bytes: &[u8]| {
        let mut out = Vec::new();
        refuse(bytes, V5, Client).answer_connect(bytes, &mut out);
        out
    };
    assert_eq!(answer(&connect_v5(2, b"\x21\0\0", b"\0\x01c")), [0x20, 3, 0, 0x82, 0]);
    assert_eq!(answer(&connect_v5(2, b"", b"\0\x01c\0")), [0x20, 3, 0, 0x81, 0]);
    assert_eq!(answer(&connect_v311(2, b"\0\x01c\0")), []);
    assert_eq!(answer(&connect_v31(2, b"\0\x01c\0")), []);
    assert_eq!(answer(&[0x00, 0x00]), []);
}

// Section 3.2: CONNACK.

#[test]
fn mqtt_3_2_2_1_reserved_acknowledge_flags_are_0() {
    server_breaks(&[0x20, 3, 2, 0, 0], V5, "MQTT-3.2.2-1", Reason::MALFORMED_PACKET);
    accept(&[0x20, 2, 2, 0], V31, Server);
}

#[test]
fn mqtt_3_2_2_6_a_refusal_has_no_session() {
    server_breaks(&[0x20, 3, 1, 0x87, 0], V5, "MQTT-3.2.2-6", Reason::PROTOCOL_ERROR);
    let mut out = Vec::new();
    let connack = Connack {
        session_present: true,
        reason: Reason::NOT_AUTHORIZED,
        properties: Properties::EMPTY,
    };
    connack.encode(V5, &mut out);
    connack.encode(V311, &mut out);
    assert_eq!(out, [0x20, 3, 0, 0x87, 0, 0x20, 2, 0, 5]);
}

#[test]
fn mqtt_3_2_2_8_connack_carries_a_connect_reason_code() {
    for code in [0x01, 0x10, 0x8D, 0x91, 0xA2, 0xFF] {
        server_breaks(&[0x20, 3, 0, code, 0], V5, "MQTT-3.2.2-8", Reason::PROTOCOL_ERROR);
    }
    server_breaks(&[0x20, 2, 0, 6], V311, "MQTT-4.8.0-1", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt_3_2_2_15_a_client_must_not_exceed_the_maximum_packet_size() {
    let violation = decode(&[0x30, 0xFF, 0x7F], V5, Client, 1024).unwrap_err();
    assert_eq!(violation.clause, "MQTT-3.2.2-15");
    assert_eq!(violation.reason, Reason::PACKET_TOO_LARGE);
}

// Section 3.3: PUBLISH.

#[test]
fn mqtt_3_3_1_2_dup_is_0_at_qos_0() {
    breaks(&[0x38], V5, "MQTT-3.3.1-2", Reason::MALFORMED_PACKET);
    breaks(&[0x38], V311, "MQTT-3.3.1-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_3_1_4_qos_3_is_malformed() {
    for first in [0x36, 0x37, 0x3E, 0x3F] {
        for version in [V31, V311, V5] {
            breaks(&[first], version, "MQTT-3.3.1-4", Reason::MALFORMED_PACKET);
        }
    }
}

#[test]
fn mqtt_3_3_2_1_the_topic_name_comes_first() {
    breaks(&[0x30, 0], V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
    breaks(&raw(0x30, &[b"\0\x05a"]), V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_3_2_2_no_wildcard_in_a_topic_name() {
    for topic in [&b"\0\x01+"[..], b"\0\x01#", b"\0\x03a/#", b"\0\x03\xC3\xA4+"] {
        breaks(&raw(0x30, &[topic, b"\0"]), V5, "MQTT-3.3.2-2", Reason::MALFORMED_PACKET);
        breaks(&raw(0x30, &[topic]), V311, "MQTT-3.3.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_3_3_2_8_topic_alias_0_is_invalid() {
    breaks(&publish_v5(b"\x23\0\0"), V5, "MQTT-3.3.2-8", Reason::TOPIC_ALIAS_INVALID);
}

#[test]
fn mqtt_3_3_2_13_the_response_topic_is_utf8() {
    breaks(&publish_v5(b"\x08\0\x01\xFF"), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
    breaks(&publish_v5(b"\x08\0\0"), V5, "MQTT-4.7.3-1", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt_3_3_2_14_no_wildcard_in_a_response_topic() {
    breaks(&publish_v5(b"\x08\0\x01#"), V5, "MQTT-3.3.2-14", Reason::PROTOCOL_ERROR);
    breaks(&publish_v5(b"\x08\0\x03a/+"), V5, "MQTT-3.3.2-14", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt_3_3_2_18_user_properties_keep_their_order() {
    let bytes = publish_v5(b"\x26\0\x01b\0\x011\x26\0\x01a\0\x012\x26\0\x01b\0\x013");
    let Packet::Publish(publish) = accept(&bytes, V5, Client) else { panic!("no PUBLISH") };
    let pairs: Vec<_> = publish.properties.user_properties().collect();
    assert_eq!(pairs, [("b", "1"), ("a", "2"), ("b", "3")]);
    let mut again = Vec::new();
    publish.encode(V5, &mut again);
    assert_eq!(again, bytes);
}

#[test]
fn mqtt_3_3_2_19_the_content_type_is_utf8() {
    breaks(&publish_v5(b"\x03\0\x01\xFF"), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_3_4_6_a_client_sends_no_subscription_identifier() {
    breaks(&publish_v5(b"\x0B\x01"), V5, "MQTT-3.3.4-6", Reason::PROTOCOL_ERROR);
    // A server sends several (MQTT-3.3.4-4).
    let bytes = publish_v5(b"\x0B\x01\x0B\x80\x01");
    let Packet::Publish(publish) = accept(&bytes, V5, Server) else { panic!("no PUBLISH") };
    assert_eq!(publish.properties.subscription_ids().collect::<Vec<_>>(), [1, 128]);
    server_breaks(&publish_v5(b"\x0B\0"), V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
}

// Sections 3.4 to 3.7: PUBACK, PUBREC, PUBREL, PUBCOMP.

#[test]
fn mqtt_3_4_2_1_puback_carries_its_reason_codes() {
    acknowledgement_codes(
        0x40,
        "MQTT-3.4.2-1",
        &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    );
}

#[test]
fn mqtt_3_5_2_1_pubrec_carries_its_reason_codes() {
    acknowledgement_codes(
        0x50,
        "MQTT-3.5.2-1",
        &[0, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99],
    );
}

#[test]
fn mqtt_3_6_2_1_pubrel_carries_its_reason_codes() {
    acknowledgement_codes(0x62, "MQTT-3.6.2-1", &[0, 0x92]);
}

#[test]
fn mqtt_3_7_2_1_pubcomp_carries_its_reason_codes() {
    acknowledgement_codes(0x70, "MQTT-3.7.2-1", &[0, 0x92]);
}

fn acknowledgement_codes(first: u8, clause: &str, allowed: &[u8]) {
    for code in 0..=255 {
        let bytes = [first, 3, 0, 1, code];
        if allowed.contains(&code) {
            accept(&bytes, V5, Client);
        } else {
            breaks(&bytes, V5, clause, Reason::PROTOCOL_ERROR);
        }
    }
}

#[test]
fn acknowledgements_have_three_lengths() {
    let plain = Ack::new(AckKind::Pubrec, 1, Reason::SUCCESS);
    let failed = Ack::new(AckKind::Pubrec, 1, Reason::QUOTA_EXCEEDED);
    assert_eq!(accept(&[0x50, 2, 0, 1], V5, Client), Packet::Ack(plain));
    assert_eq!(accept(&[0x50, 3, 0, 1, 0], V5, Client), Packet::Ack(plain));
    assert_eq!(accept(&[0x50, 4, 0, 1, 0x97, 0], V5, Client), Packet::Ack(failed));
    breaks(&[0x50, 5, 0, 1, 0, 0, 0], V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
    breaks(&[0x50, 3, 0, 1, 0], V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
    let mut out = Vec::new();
    plain.encode(V5, &mut out);
    failed.encode(V5, &mut out);
    failed.encode(V311, &mut out);
    assert_eq!(out, [0x50, 2, 0, 1, 0x50, 3, 0, 1, 0x97, 0x50, 2, 0, 1]);
}

#[test]
fn mqtt_3_6_1_1_pubrel_flags_are_0010() {
    for first in [0x60, 0x61, 0x63, 0x64, 0x66, 0x6A] {
        breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
    }
    // MQTT 3.1 sets DUP on a resent PUBREL.
    accept(&[0x6A, 2, 0, 1], V31, Client);
}

// Sections 3.8 to 3.11: SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK.

#[test]
fn mqtt_3_8_1_1_subscribe_flags_are_0010() {
    for first in [0x80, 0x81, 0x83, 0x84, 0x86, 0x8A] {
        breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_3_8_3_1_filters_are_utf8() {
    breaks(&subscribe_v5(b"\xFF", 0), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_8_3_2_at_least_one_filter() {
    breaks(&[0x82, 3, 0, 1, 0], V5, "MQTT-3.8.3-2", Reason::PROTOCOL_ERROR);
    // A second filter without its options.
    let bytes = raw(0x82, &[b"\0\x01\0\0\x01a\0\0\x01b"]);
    breaks(&bytes, V5, "MQTT-4.13.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_8_3_4_no_local_on_a_shared_subscription() {
    breaks(&subscribe_v5(b"$share/g/a", 4), V5, "MQTT-3.8.3-4", Reason::PROTOCOL_ERROR);
    accept(&subscribe_v5(b"$share/g/a", 0), V5, Client);
    accept(&subscribe_v5(b"$sharing/g", 4), V5, Client);
}

#[test]
fn mqtt_3_8_3_5_reserved_option_bits_are_malformed() {
    for options in [0x40, 0x80, 0xC0, 0xF0] {
        breaks(&subscribe_v5(b"a", options), V5, "MQTT-3.8.3-5", Reason::MALFORMED_PACKET);
    }
    for options in [0x03, 0x30] {
        breaks(&subscribe_v5(b"a", options), V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    }
}

#[test]
fn mqtt_3_9_3_2_suback_carries_subscribe_reason_codes() {
    server_breaks(&[0x90, 4, 0, 1, 0, 3], V5, "MQTT-3.9.3-2", Reason::PROTOCOL_ERROR);
    server_breaks(&[0x90, 3, 0, 1, 3], V311, "MQTT-3.9.3-2", Reason::PROTOCOL_ERROR);
    server_breaks(&[0x90, 3, 0, 1, 0], V5, "MQTT-3.8.4-6", Reason::PROTOCOL_ERROR);
    accept(&[0x90, 6, 0, 1, 0, 0, 2, 0x97], V5, Server);
}

#[test]
fn mqtt_3_10_1_1_unsubscribe_flags_are_0010() {
    for first in [0xA0, 0xA1, 0xA3, 0xA4, 0xA6, 0xAA] {
        breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_3_10_3_1_unsubscribed_filters_are_utf8() {
    breaks(&raw(0xA2, &[b"\0\x01\0\0\x01\xFF"]), V5, "MQTT-1.5.4-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_3_10_3_2_at_least_one_filter_to_unsubscribe() {
    breaks(&[0xA2, 3, 0, 1, 0], V5, "MQTT-3.10.3-2", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt_3_11_3_2_unsuback_carries_unsubscribe_reason_codes() {
    server_breaks(&[0xB0, 4, 0, 1, 0, 1], V5, "MQTT-3.11.3-2", Reason::PROTOCOL_ERROR);
    server_breaks(&[0xB0, 3, 0, 1, 0], V5, "MQTT-3.11.3-1", Reason::PROTOCOL_ERROR);
    let mut out = Vec::new();
    let reasons = [0x11];
    let unsuback = Unsuback { packet_id: 1, properties: Properties::EMPTY, reasons: &reasons };
    unsuback.encode(V311, &mut out);
    assert_eq!(out, [0xB0, 2, 0, 1]);
}

// Sections 3.12 to 3.15: the pings, DISCONNECT, AUTH.

#[test]
fn pings_are_empty() {
    accept(&[0xC0, 0], V5, Client);
    accept(&[0xD0, 0], V5, Server);
    let violation = refuse(&[0xC0, 1], V5, Client);
    assert_eq!(violation.reason, Reason::MALFORMED_PACKET);
    assert!(!violation.is_answered());
}

#[test]
fn mqtt_3_14_1_1_disconnect_flags_are_0() {
    for first in [0xE1, 0xE2, 0xE4, 0xE8] {
        breaks(&[first], V5, "MQTT-2.1.3-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_3_14_2_1_disconnect_carries_its_own_reason_codes() {
    for code in [0x01, 0x05, 0x87, 0x8B, 0x9C, 0xA2] {
        breaks(&[0xE0, 1, code], V5, "MQTT-3.14.2-1", Reason::PROTOCOL_ERROR);
    }
    server_breaks(&[0xE0, 1, 0x04], V5, "MQTT-3.14.2-1", Reason::PROTOCOL_ERROR);
    accept(&[0xE0, 1, 0x8B], V5, Server);
    accept(&[0xE0, 0], V5, Client);
    accept(&[0xE0, 2, 4, 0], V5, Client);
}

#[test]
fn mqtt_3_14_2_2_no_session_expiry_from_a_server() {
    let bytes = raw(0xE0, &[b"\0\x05\x11\0\0\0\x01"]);
    accept(&bytes, V5, Client);
    server_breaks(&bytes, V5, "MQTT-3.14.2-2", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt_3_15_1_1_auth_flags_are_0() {
    for first in [0xF1, 0xF2, 0xF4, 0xF8] {
        breaks(&[first], V5, "MQTT-3.15.1-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt_3_15_2_1_auth_carries_its_own_reason_codes() {
    let method = b"\x04\x15\0\x01m";
    for (code, client, server) in [(0, false, true), (0x18, true, true), (0x19, true, false)] {
        let bytes = raw(0xF0, &[&[code], method]);
        assert_eq!(decode(&bytes, V5, Client, ANY_SIZE).is_ok(), client, "{code}");
        assert_eq!(decode(&bytes, V5, Server, ANY_SIZE).is_ok(), server, "{code}");
    }
    breaks(&[0xF0, 1, 0], V5, "MQTT-3.15.2-1", Reason::PROTOCOL_ERROR);
    // Without a method.
    breaks(&[0xF0, 1, 0x18], V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    breaks(&[0xF0, 2, 0x18, 0], V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    accept(&[0xF0, 0], V5, Server);
}

// Section 4.

#[test]
fn mqtt_4_7_0_1_no_wildcard_in_a_will_topic() {
    let bytes = connect_v5(6, b"", b"\0\x01c\0\0\x01#\0\0");
    breaks(&bytes, V5, "MQTT-4.7.0-1", Reason::MALFORMED_PACKET);
    let bytes = connect_v311(6, b"\0\x01c\0\x01#\0\0");
    breaks(&bytes, V5, "MQTT-4.7.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_4_7_3_1_names_and_filters_are_not_empty() {
    let malformed = Reason::MALFORMED_PACKET;
    let protocol = Reason::PROTOCOL_ERROR;
    breaks(&raw(0x30, &[b"\0\0\0payload"]), V5, "MQTT-4.7.3-1", protocol);
    breaks(&raw(0x30, &[b"\0\0payload"]), V311, "MQTT-4.7.3-1", protocol);
    breaks(&subscribe_v5(b"", 0), V5, "MQTT-4.7.3-1", malformed);
    breaks(&raw(0xA2, &[b"\0\x01\0\0\x01q\0\0"]), V5, "MQTT-4.7.3-1", malformed);
    breaks(&connect_v5(6, b"", b"\0\x01c\0\0\0\0\0"), V5, "MQTT-4.7.3-1", malformed);
    // Beside a topic alias the name may be empty.
    accept(&raw(0x30, &[b"\0\0\x03\x23\0\x01payload"]), V5, Client);
}

#[test]
fn mqtt_4_7_3_2_no_u0000_in_names_and_filters() {
    breaks(&raw(0x30, &[b"\0\x02\0a\0"]), V5, "MQTT-1.5.4-2", Reason::MALFORMED_PACKET);
    breaks(&subscribe_v5(b"a\0", 0), V5, "MQTT-1.5.4-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt_4_7_3_3_a_topic_name_has_up_to_65535_bytes() {
    let topic = "t".repeat(65_535);
    let publish = Publish {
        dup: false,
        qos: QoS::AtLeastOnce,
        retain: false,
        topic: &topic,
        packet_id: 1,
        properties: Properties::EMPTY,
        payload: b"",
    };
    let mut out = Vec::new();
    publish.encode(V5, &mut out);
    assert_eq!(accept(&out, V5, Client), Packet::Publish(publish));
}

#[test]
fn mqtt_4_13_1_1_what_cannot_be_parsed_closes_the_connection() {
    // Reserved packet type, fifth length byte, the other side's packets.
    for first in [0x00, 0x01, 0x0A] {
        breaks(&[first], V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    }
    let violation = refuse(&[0x30, 0x80, 0x80, 0x80, 0x80], V5, Client);
    assert_eq!(violation.clause, "MQTT-4.13.1-1");
    assert!(!violation.is_answered());
    for first in [0x20, 0x90, 0xB0, 0xD0] {
        breaks(&[first, 0], V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    }
    for first in [0x10, 0x82, 0xA2, 0xC0] {
        server_breaks(&[first, 0], V5, "MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    }
}

#[test]
fn mqtt_4_13_1_1_properties_stand_where_they_may_and_once() {
    let (clause, protocol) = ("MQTT-4.13.1-1", Reason::PROTOCOL_ERROR);
    let malformed = Reason::MALFORMED_PACKET;
    breaks(&publish_v5(b"\x11\0\0\0\x01"), V5, clause, protocol);
    breaks(&publish_v5(b"\x01\x00\x01\x00"), V5, clause, protocol);
    breaks(&publish_v5(b"\x01\x02"), V5, clause, protocol);
    breaks(&publish_v5(b"\x04\x01"), V5, clause, malformed);
    breaks(&publish_v5(b"\x81\x01\x01"), V5, clause, malformed);
    breaks(&publish_v5(b"\x02\0\0"), V5, clause, malformed);
    // The value is read before the place is judged.
    breaks(&publish_v5(b"\x11"), V5, clause, malformed);
    breaks(&raw(0x82, &[b"\0\x01\x05\x11\0\0\0\0\0\x01a\0"]), V5, clause, malformed);
    breaks(&raw(0x82, &[b"\0\x01\x02\x0B\0\0\x01a\0"]), V5, clause, protocol);
    breaks(&raw(0x82, &[b"\0\x01\x04\x0B\x01\x0B\x01\0\x01a\0"]), V5, clause, protocol);
    for zero in [&b"\x21\0\0"[..], b"\x27\0\0\0\0", b"\x17\x02", b"\x19\x02"] {
        breaks(&connect_v5(2, zero, b"\0\x01c"), V5, clause, protocol);
    }
}
