//! Data representation and fixed headers: strings, variable byte integers, flags, packet ids.

use conformance::wire::{self, first, packet, prefixed, prop};
use conformance::{Connect, Peer, Props, Publish, Version, fresh, proves};

const BAD: &[u8] = &[0x81, 0x82];
/// What a bad topic or filter may be called besides malformed.
const BAD_NAME: &[u8] = &[0x81, 0x82, 0x8F, 0x90];

/// Every place for a string that a connected client can fill.
fn packets_with_string(version: Version, text: &[u8]) -> Vec<Vec<u8>> {
    let none = Props::new();
    let mut packets = vec![
        Publish::new(text, "x").encoded(version),
        wire::subscribe(version, 1, &none, &[(text, 0)]),
        wire::unsubscribe(version, 1, &[text]),
    ];
    if version == Version::V5 {
        let topic = fresh("string");
        let everywhere = [
            Props::new().user(text, "value"),
            Props::new().user("name", text),
            Props::new().bytes(prop::CONTENT_TYPE, text),
            Props::new().bytes(prop::RESPONSE_TOPIC, text),
        ];
        packets.extend(
            everywhere.map(|props| Publish::new(&topic, "x").props(props).encoded(version)),
        );
    }
    packets
}

fn expect_all_refused(version: Version, packets: Vec<Vec<u8>>) {
    for bytes in packets {
        eprintln!("{bytes:02x?}");
        let mut peer = Peer::connect(version);
        peer.send(bytes);
        peer.expect_refused(BAD_NAME);
    }
}

fn ill_formed_utf8_is_refused(version: Version) {
    // A cut sequence, an overlong slash, a lone surrogate, a code point beyond U+10FFFF.
    for text in [&b"a\xC3"[..], b"a\xC0\xAF", b"a\xED\xA0\x80b", b"a\xF4\x90\x80\x80"] {
        expect_all_refused(version, packets_with_string(version, text));
    }
}
proves!(ill_formed_utf8_is_refused: V5 [mqtt_1_5_4_1] V311 [mqtt311_1_5_3_1]);

fn null_character_is_refused(version: Version) {
    expect_all_refused(version, packets_with_string(version, b"a\0b"));
    Connect::new(version).id(b"a\0b").send().expect_connect_refused(&[0x81, 0x82, 0x85, 2]);
}
proves!(null_character_is_refused:
    V5 [mqtt_1_5_4_2 mqtt_4_7_3_2] V311 [mqtt311_1_5_3_2 mqtt311_4_7_3_2]);

fn byte_order_mark_is_kept(version: Version) {
    let plain = fresh("bom");
    let marked = format!("\u{FEFF}{plain}");
    let mut peer = Peer::connect(version);
    peer.subscribe(&marked, 0);
    peer.publish(Publish::new(&plain, "another topic"));
    peer.publish(Publish::new(&marked, "this one"));
    let message = peer.recv_message();
    assert_eq!((message.topic, &message.payload[..]), (marked, &b"this one"[..]));
}
proves!(byte_order_mark_is_kept: V5 [mqtt_1_5_4_3] V311 [mqtt311_1_5_3_3]);

/// The reader of the tests refuses a remaining length that is longer than it need be.
fn lengths_take_the_fewest_bytes(version: Version) {
    let topic = fresh("length");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 0);
    let overhead = Publish::new(&topic, "").encoded(version).len() - 2;
    for (packet_bytes, length_bytes) in
        [(127, 1), (128, 2), (16_383, 2), (16_384, 3), (2_097_151, 3), (2_097_152, 4)]
    {
        let payload = vec![b'x'; packet_bytes - overhead];
        peer.publish(Publish::new(&topic, &payload));
        let packet = peer.recv();
        assert_eq!((packet.body.len(), packet.length_bytes), (packet_bytes, length_bytes));
        assert_eq!(packet.message(version).payload, payload);
    }
}
proves!(lengths_take_the_fewest_bytes: V5 [mqtt_1_5_5_1] V311 [mqtt311] V31 [mqtt31]);

fn five_byte_lengths_are_malformed(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send([first::PUBLISH, 0x80, 0x80, 0x80, 0x80, 0x01]);
    peer.expect_refused_or_dropped(&[0x81, 0x82, 0x95]);
}
proves!(five_byte_lengths_are_malformed: V5 [mqtt5] V311 [mqtt311]);

#[test]
fn mqtt_1_5_7_1_both_strings_of_a_pair_are_utf8() {
    for props in [Props::new().user(b"\xFF", "value"), Props::new().user("name", b"\xFF")] {
        let mut peer = Peer::connect(Version::V5);
        peer.send(Publish::new(fresh("pair"), "x").props(props.clone()).encoded(Version::V5));
        peer.expect_refused(BAD);
        Connect::new(Version::V5).props(props).send().expect_connect_refused(BAD);
    }
}

fn reserved_header_flags_are_malformed(version: Version) {
    let kinds = [
        (first::PUBACK, 0x40),
        (first::PUBREC, 0x50),
        (first::PUBREL, 0x60),
        (first::PUBCOMP, 0x70),
        (first::SUBSCRIBE, 0x80),
        (first::UNSUBSCRIBE, 0xA0),
        (first::PINGREQ, 0xC0),
        (first::DISCONNECT, 0xE0),
    ];
    let good = |first| match first {
        first::SUBSCRIBE => wire::subscribe(version, 1, &Props::new(), &[("a", 0)]),
        first::UNSUBSCRIBE => wire::unsubscribe(version, 1, &["a"]),
        first::PINGREQ | first::DISCONNECT => packet(first, []),
        _ => wire::ack(first, 1),
    };
    for (right, kind) in kinds {
        for flags in [0x1, 0x2, 0x4, 0x8, 0xF].map(|flags| kind | flags) {
            if flags == right {
                continue;
            }
            let mut bytes = good(right);
            bytes[0] = flags;
            let mut peer = Peer::connect(version);
            peer.send(bytes);
            eprintln!("first byte {flags:#x}");
            peer.expect_refused(BAD);
        }
    }
}
proves!(reserved_header_flags_are_malformed:
    V5 [mqtt_2_1_3_1] V311 [mqtt311_2_2_2_1 mqtt311_2_2_2_2]);

fn zero_flags_of(version: Version, bytes: Vec<u8>) {
    let mut peer = Peer::connect(version);
    peer.send([&[bytes[0] & 0xF0], &bytes[1..]].concat());
    peer.expect_refused(BAD);
}

fn pubrel_flags_must_be_2(version: Version) {
    zero_flags_of(version, wire::ack(first::PUBREL, 1));
}
proves!(pubrel_flags_must_be_2: V5 [mqtt_3_6_1_1] V311 [mqtt311_3_6_1_1]);

fn subscribe_flags_must_be_2(version: Version) {
    zero_flags_of(version, wire::subscribe(version, 1, &Props::new(), &[("a", 0)]));
}
proves!(subscribe_flags_must_be_2: V5 [mqtt_3_8_1_1] V311 [mqtt311_3_8_1_1]);

fn unsubscribe_flags_must_be_2(version: Version) {
    zero_flags_of(version, wire::unsubscribe(version, 1, &["a"]));
}
proves!(unsubscribe_flags_must_be_2: V5 [mqtt_3_10_1_1] V311 [mqtt311_3_10_1_1]);

fn packet_types_of_a_server_are_refused(version: Version) {
    for first in [first::CONNACK, first::SUBACK, first::UNSUBACK, first::PINGRESP, 0x00] {
        let mut peer = Peer::connect(version);
        peer.send(packet(first, [0, 1, 0, 0]));
        peer.expect_refused_or_dropped(BAD);
    }
}
proves!(packet_types_of_a_server_are_refused: V5 [mqtt5] V311 [mqtt311_4_8_0_1]);

fn qos_0_has_no_packet_id(version: Version) {
    let topic = fresh("qos0");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 2);
    // If there were a packet id, these two bytes would be it.
    peer.publish(Publish::new(&topic, [0, 7]));
    let packet = peer.recv();
    let props: &[u8] = if version == Version::V5 { &[0] } else { &[] };
    assert_eq!(packet.body, [&prefixed(&topic)[..], props, &[0, 7]].concat());
}
proves!(qos_0_has_no_packet_id: V5 [mqtt_2_2_1_2] V311 [mqtt311_2_3_1_5]);

fn packet_id_zero_is_refused(version: Version) {
    let packets = [
        wire::subscribe(version, 0, &Props::new(), &[("a", 0)]),
        wire::unsubscribe(version, 0, &["a"]),
        Publish::new("a", "x").qos(1).id(0).encoded(version),
        Publish::new("a", "x").qos(2).id(0).encoded(version),
    ];
    for bytes in packets {
        let mut peer = Peer::connect(version);
        peer.send(bytes);
        peer.expect_refused(BAD);
    }
}
proves!(packet_id_zero_is_refused: V5 [mqtt_2_2_1_3] V311 [mqtt311_2_3_1_1]);

fn server_uses_packet_ids_that_are_free(version: Version) {
    let topic = fresh("ids");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(version);
    let mut ids = Vec::new();
    for _ in 0..20 {
        publisher.publish(Publish::new(&topic, "x").qos(1));
        let message = peer.recv_message();
        assert!(!ids.contains(&message.packet_id), "{} is not free", message.packet_id);
        ids.push(message.packet_id);
    }
}
proves!(server_uses_packet_ids_that_are_free:
    V5 [mqtt_2_2_1_4 mqtt_4_3_2_1] V311 [mqtt311_2_3_1_4]);

fn acknowledgements_carry_the_packet_id(version: Version) {
    let mut peer = Peer::connect(version);
    let topic = fresh("ids");
    for id in [1, 0x0102, 0x8000, 0xFFFF] {
        peer.publish(Publish::new(&topic, "x").qos(1).id(id));
        peer.publish(Publish::new(&topic, "x").qos(2).id(id));
    }
}
proves!(acknowledgements_carry_the_packet_id:
    V5 [mqtt_2_2_1_5] V311 [mqtt311_2_3_1_6] V31 [mqtt31]);

fn suback_and_unsuback_carry_the_packet_id(version: Version) {
    let mut peer = Peer::connect(version);
    for id in [1, 0x0102, 0x8000, 0xFFFF] {
        peer.send(wire::subscribe(version, id, &Props::new(), &[(fresh("ids"), 0)]));
        assert_eq!(peer.recv().acks(first::SUBACK, version).packet_id, id);
        peer.send(wire::unsubscribe(version, id, &[fresh("ids")]));
        assert_eq!(peer.recv().acks(first::UNSUBACK, version).packet_id, id);
    }
}
proves!(suback_and_unsuback_carry_the_packet_id:
    V5 [mqtt_2_2_1_6 mqtt_3_8_4_2] V311 [mqtt311_2_3_1_7 mqtt311_3_8_4_2] V31 [mqtt31]);

/// The three kinds of packet that a client names share no packet ids with those of the server.
fn packet_ids_of_client_and_server_are_apart(version: Version) {
    let topic = fresh("ids");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "theirs").qos(1));
    let theirs = peer.recv_message();
    // Its id is in use by the server; the client may use the same one for its own.
    peer.publish(Publish::new(fresh("ids"), "ours").qos(1).id(theirs.packet_id));
    peer.send(wire::ack(first::PUBACK, theirs.packet_id));
    peer.ping();
}
proves!(packet_ids_of_client_and_server_are_apart: V5 [mqtt5] V311 [mqtt311]);

#[test]
fn mqtt_2_2_2_1_no_properties_are_a_length_of_zero() {
    let topic = fresh("noprops");
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::subscribe(Version::V5, 7, &Props::new(), &[(&topic, 0)]));
    assert_eq!(peer.recv().body, [0, 7, 0, 0]);
    peer.publish(Publish::new(&topic, "x"));
    assert_eq!(peer.recv().body, [&prefixed(&topic)[..], &[0], b"x"].concat());
    peer.send(wire::unsubscribe(Version::V5, 8, &[&topic]));
    assert_eq!(peer.recv().body, [0, 8, 0, 0]);
}
