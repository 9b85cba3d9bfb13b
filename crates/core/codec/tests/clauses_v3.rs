//! One test per normative statement of MQTT 3.1.1 that decoding and encoding answer for, named
//! after its id, and what MQTT 3.1 does in its own way.

mod raw;

use Sender::Client;
use Version::{V5, V31, V311};
use codec::{Connect, Packet, Properties, Reason, Sender, Suback, Version};
use raw::*;

#[test]
fn mqtt311_1_5_3_1_strings_are_utf8() {
    for topic in [&b"\0\x01\xFF"[..], b"\0\x03\xED\xA0\x80", b"\0\x02\xC0\x80"] {
        breaks(&raw(0x30, &[topic]), V311, "MQTT-1.5.3-1", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_1_5_3_2_no_u0000_in_strings() {
    breaks(&raw(0x30, &[b"\0\x02a\0"]), V311, "MQTT-1.5.3-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_1_5_3_3_a_byte_order_mark_is_kept() {
    let bytes = raw(0x30, &[b"\0\x04\xEF\xBB\xBFa"]);
    let Packet::Publish(publish) = accept(&bytes, V311, Client) else { panic!("no PUBLISH") };
    assert_eq!(publish.topic, "\u{FEFF}a");
}

#[test]
fn mqtt311_2_2_2_2_wrong_flags_end_the_connection() {
    for first in [0x41, 0x52, 0x60, 0x63, 0x71, 0x80, 0x8A, 0xA0, 0xA3, 0xC1, 0xE8] {
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
    let mut connect = connect_v311(2, b"\0\x01c");
    connect[0] = 0x11;
    breaks(&connect, V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_2_3_1_1_packet_identifiers_are_not_0() {
    for bytes in [[0x40, 2, 0, 0], [0x50, 2, 0, 0], [0x62, 2, 0, 0], [0x70, 2, 0, 0]] {
        breaks(&bytes, V311, "MQTT-2.3.1-1", Reason::PROTOCOL_ERROR);
    }
    breaks(&raw(0x32, &[b"\0\x01a\0\0"]), V311, "MQTT-2.3.1-1", Reason::PROTOCOL_ERROR);
    breaks(&raw(0x82, &[b"\0\0\0\x01a\0"]), V311, "MQTT-2.3.1-1", Reason::MALFORMED_PACKET);
    breaks(&raw(0xA2, &[b"\0\0\0\x01a"]), V311, "MQTT-2.3.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_2_3_1_5_no_packet_identifier_at_qos_0() {
    let bytes = raw(0x30, &[b"\0\x01a\0\x07"]);
    let Packet::Publish(publish) = accept(&bytes, V311, Client) else { panic!("no PUBLISH") };
    assert_eq!((publish.packet_id, publish.payload), (0, &b"\0\x07"[..]));
}

#[test]
fn mqtt311_3_1_2_3_the_reserved_connect_flag_is_0() {
    breaks(&connect_v311(3, b"\0\x01c"), V311, "MQTT-3.1.2-3", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_13_no_will_no_will_qos() {
    breaks(&connect_v311(0x0A, b"\0\x01c"), V311, "MQTT-3.1.2-13", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_14_will_qos_3_is_malformed() {
    let bytes = connect_v311(0x1E, b"\0\x01c\0\x01t\0\0");
    breaks(&bytes, V311, "MQTT-3.1.2-14", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_15_no_will_no_will_retain() {
    breaks(&connect_v311(0x22, b"\0\x01c"), V311, "MQTT-3.1.2-15", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_18_a_user_name_without_its_flag_is_malformed() {
    let bytes = connect_v311(2, b"\0\x01c\0\x01u");
    breaks(&bytes, V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_19_an_announced_user_name_must_be_there() {
    breaks(&connect_v311(0x82, b"\0\x01c"), V311, "MQTT-3.1.2-19", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_20_a_password_without_its_flag_is_malformed() {
    let bytes = connect_v311(0x82, b"\0\x01c\0\x01u\0\x01p");
    breaks(&bytes, V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_21_an_announced_password_must_be_there() {
    let bytes = connect_v311(0xC2, b"\0\x01c\0\x01u");
    breaks(&bytes, V311, "MQTT-3.1.2-21", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_2_22_no_password_without_a_user_name() {
    let bytes = connect_v311(0x42, b"\0\x01c\0\x01p");
    breaks(&bytes, V311, "MQTT-3.1.2-22", Reason::MALFORMED_PACKET);
    // MQTT 5 lets a password stand alone.
    accept(&connect_v5(0x42, b"", b"\0\x01c\0\x01p"), V5, Client);
    // Encoding leaves it out rather than breaking the rule.
    let connect = Connect {
        version: V311,
        clean_start: true,
        keep_alive_secs: 10,
        client_id: "c",
        properties: Properties::EMPTY,
        will: None,
        username: None,
        password: Some(b"p"),
        bridge: false,
    };
    let mut out = Vec::new();
    connect.encode(V5, &mut out);
    assert_eq!(out, connect_v311(2, b"\0\x01c"));
}

#[test]
fn mqtt311_3_1_3_1_the_payload_fields_stand_in_order() {
    let bytes = connect_v311(0xC6, b"\0\x01c\0\x01t\0\x01w\0\x01u\0\x01p");
    let Packet::Connect(connect) = accept(&bytes, V311, Client) else { panic!("no CONNECT") };
    assert_eq!((connect.client_id, connect.username), ("c", Some("u")));
    assert_eq!(connect.will.map(|will| (will.topic, will.payload)), Some(("t", &b"w"[..])));
    assert_eq!(connect.password, Some(&b"p"[..]));
}

#[test]
fn mqtt311_3_1_3_3_the_client_identifier_must_be_present() {
    breaks(&connect_v311(2, b""), V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_3_4_the_client_identifier_is_utf8() {
    let refused = Reason::CLIENT_IDENTIFIER_NOT_VALID;
    breaks(&connect_v311(2, b"\0\x01\xFF"), V311, "MQTT-3.1.3-4", refused);
}

#[test]
fn mqtt311_3_1_3_10_the_will_topic_is_utf8() {
    let bytes = connect_v311(6, b"\0\x01c\0\x01\xFF\0\0");
    breaks(&bytes, V311, "MQTT-1.5.3-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_1_3_11_the_user_name_is_utf8() {
    let bytes = connect_v311(0x82, b"\0\x01c\0\x01\xFF");
    breaks(&bytes, V311, "MQTT-3.1.3-11", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_2_2_4_a_refusal_has_no_session() {
    server_breaks(&[0x20, 2, 1, 5], V311, "MQTT-3.2.2-4", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt311_3_3_1_2_dup_is_0_at_qos_0() {
    breaks(&[0x38], V311, "MQTT-3.3.1-2", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_3_1_4_qos_3_ends_the_connection() {
    for first in [0x36, 0x37, 0x3E, 0x3F] {
        breaks(&[first], V311, "MQTT-3.3.1-4", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_3_3_2_1_the_topic_name_comes_first() {
    breaks(&[0x30, 0], V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
    breaks(&raw(0x30, &[b"\0\x05a"]), V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_3_2_2_no_wildcard_in_a_topic_name() {
    for topic in [&b"\0\x01+"[..], b"\0\x01#", b"\0\x03a/#"] {
        breaks(&raw(0x30, &[topic]), V311, "MQTT-3.3.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_3_6_1_1_pubrel_flags_are_0010() {
    for first in [0x60, 0x61, 0x63, 0x64, 0x66, 0x6A] {
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_3_8_1_1_subscribe_flags_are_0010() {
    for first in [0x80, 0x83, 0x84, 0x86, 0x8A] {
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_3_8_3_1_filters_are_utf8() {
    let bytes = raw(0x82, &[b"\0\x01\0\x01\xFF\0"]);
    breaks(&bytes, V311, "MQTT-1.5.3-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_8_3_3_at_least_one_filter() {
    breaks(&[0x82, 2, 0, 1], V311, "MQTT-3.8.3-3", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt311_3_8_3_4_reserved_option_bits_and_qos_3() {
    for options in [0x03, 0x04, 0x08, 0x10, 0x40, 0x80] {
        let bytes = raw(0x82, &[b"\0\x01\0\x01a", &[options]]);
        let reason = if options == 3 { Reason::PROTOCOL_ERROR } else { Reason::MALFORMED_PACKET };
        breaks(&bytes, V311, "MQTT-3.8.3-4", reason);
    }
}

#[test]
fn mqtt311_3_9_3_2_suback_carries_0_1_2_or_0x80() {
    for code in [3, 0x7F, 0x81, 0x97, 0xFF] {
        server_breaks(&[0x90, 3, 0, 1, code], V311, "MQTT-3.9.3-2", Reason::PROTOCOL_ERROR);
    }
    let reasons = [0, 1, 2, 0x80, 0x97];
    let mut out = Vec::new();
    Suback { packet_id: 1, properties: Properties::EMPTY, reasons: &reasons }
        .encode(V311, &mut out);
    assert_eq!(out, [0x90, 7, 0, 1, 0, 1, 2, 0x80, 0x80]);
}

#[test]
fn mqtt311_3_10_1_1_unsubscribe_flags_are_0010() {
    for first in [0xA0, 0xA3, 0xA4, 0xA6, 0xAA] {
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_3_10_3_1_unsubscribed_filters_are_utf8() {
    let bytes = raw(0xA2, &[b"\0\x01\0\x01\xFF"]);
    breaks(&bytes, V311, "MQTT-1.5.3-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_3_10_3_2_at_least_one_filter_to_unsubscribe() {
    breaks(&[0xA2, 2, 0, 1], V311, "MQTT-3.10.3-2", Reason::PROTOCOL_ERROR);
}

#[test]
fn mqtt311_3_14_1_1_disconnect_flags_are_0() {
    for first in [0xE1, 0xE2, 0xE4, 0xE8] {
        breaks(&[first], V311, "MQTT-2.2.2-2", Reason::MALFORMED_PACKET);
    }
}

#[test]
fn mqtt311_4_7_1_1_no_wildcard_in_a_will_topic() {
    let bytes = connect_v311(6, b"\0\x01c\0\x01#\0\0");
    breaks(&bytes, V311, "MQTT-4.7.1-1", Reason::MALFORMED_PACKET);
}

#[test]
fn mqtt311_4_7_3_1_names_and_filters_are_not_empty() {
    let malformed = Reason::MALFORMED_PACKET;
    breaks(&raw(0x30, &[b"\0\0payload"]), V311, "MQTT-4.7.3-1", Reason::PROTOCOL_ERROR);
    breaks(&raw(0x82, &[b"\0\x01\0\0\0"]), V311, "MQTT-4.7.3-1", malformed);
    breaks(&raw(0xA2, &[b"\0\x01\0\x01q\0\0"]), V311, "MQTT-4.7.3-1", malformed);
}

#[test]
fn mqtt311_4_7_3_2_no_u0000_in_names_and_filters() {
    let malformed = Reason::MALFORMED_PACKET;
    breaks(&raw(0x30, &[b"\0\x02\0a"]), V311, "MQTT-1.5.3-2", malformed);
    breaks(&raw(0x82, &[b"\0\x01\0\x01\0\0"]), V311, "MQTT-1.5.3-2", malformed);
}

#[test]
fn mqtt311_4_8_0_1_what_cannot_be_parsed_closes_the_connection() {
    for first in [0x00, 0x0A, 0xF0] {
        breaks(&[first], V311, "MQTT-4.8.0-1", Reason::PROTOCOL_ERROR);
    }
    for first in [0x20, 0x90, 0xB0, 0xD0] {
        breaks(&[first, 0], V311, "MQTT-4.8.0-1", Reason::PROTOCOL_ERROR);
    }
    let endless = [0x30, 0x80, 0x80, 0x80, 0x80];
    breaks(&endless, V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
}

#[test]
fn only_clients_send_disconnect_and_nobody_sends_auth() {
    accept(&[0xE0, 0], V311, Client);
    server_breaks(&[0xE0, 0], V311, "MQTT-4.8.0-1", Reason::PROTOCOL_ERROR);
    breaks(&[0xE0, 1, 0], V311, "MQTT-4.8.0-1", Reason::MALFORMED_PACKET);
    breaks(&[0xF0], V311, "MQTT-4.8.0-1", Reason::PROTOCOL_ERROR);
}

// MQTT 3.1.

#[test]
fn mqtt31_announced_credentials_may_be_missing() {
    for payload in [&b"\0\x01c"[..], b"\0\x01c\0\x01u"] {
        let bytes = connect_v31(0xC2, payload);
        let Packet::Connect(connect) = accept(&bytes, V5, Client) else { panic!("no CONNECT") };
        assert_eq!(connect.version, V31);
        assert_eq!(connect.username.is_some(), payload.len() > 3);
        assert_eq!(connect.password, None);
    }
}

#[test]
fn mqtt31_unused_flags_are_ignored() {
    let mut connect = connect_v31(2, b"\0\x01c");
    connect[0] = 0x14;
    accept(&connect, V5, Client);
    accept(&raw(0x8A, &[b"\0\x01\0\x01a\0"]), V31, Client);
    let bytes = raw(0x38, &[b"\0\x01a"]);
    let Packet::Publish(publish) = accept(&bytes, V31, Client) else { panic!("no PUBLISH") };
    assert!(!publish.dup);
}

#[test]
fn a_bridge_announces_itself_in_the_version_byte() {
    let bytes = raw(0x10, &[b"\0\x04MQTT\x84", &[2, 0, 10], b"\0\x01c"]);
    let Packet::Connect(connect) = accept(&bytes, V5, Client) else { panic!("no CONNECT") };
    assert!(connect.bridge && connect.version == V311);
    let mut again = Vec::new();
    connect.encode(V5, &mut again);
    assert_eq!(again, bytes);
    let bytes = raw(0x10, &[b"\0\x04MQTT\x85", &[2, 0, 10, 0], b"\0\x01c"]);
    breaks(&bytes, V5, "MQTT-3.1.2-2", Reason::UNSUPPORTED_PROTOCOL_VERSION);
}
