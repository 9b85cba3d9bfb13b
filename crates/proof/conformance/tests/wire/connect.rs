//! CONNECT: what a server takes, and what it closes the connection for.

use conformance::wire::{self, first, packet, prefixed, prop};
use conformance::{Connect, Peer, Props, Publish, Version, Will, fresh, fresh_client, proves};

const MALFORMED: u8 = 0x81;
const PROTOCOL_ERROR: u8 = 0x82;
const UNSUPPORTED_VERSION: u8 = 0x84;
const NOT_AUTHORIZED: u8 = 0x87;
const BAD_METHOD: u8 = 0x8C;
const BAD: &[u8] = &[MALFORMED, PROTOCOL_ERROR];

/// A CONNECT with a header and a payload of our making.
fn send_raw(version: Version, header: &[u8], payload: &[u8]) -> Peer {
    let mut peer = Peer::open(version);
    peer.send(packet(first::CONNECT, [header, payload].concat()));
    peer
}

fn first_packet_must_be_connect(version: Version) {
    let early: [Vec<u8>; 4] = [
        wire::pingreq(),
        Publish::new(fresh("early"), "x").encoded(version),
        wire::subscribe(version, 1, &Props::new(), &[("a", 0)]),
        wire::disconnect(),
    ];
    for bytes in early {
        let mut peer = Peer::open(version);
        peer.send(&bytes);
        peer.expect_closed();
    }
}
proves!(first_packet_must_be_connect: V5 [mqtt_3_1_0_1] V311 [mqtt311_3_1_0_1]);

fn second_connect_is_a_protocol_error(version: Version) {
    let connect = Connect::new(version);
    let mut peer = connect.open();
    peer.send_anyway(connect.encoded());
    peer.expect_refused(&[PROTOCOL_ERROR]);
}
proves!(second_connect_is_a_protocol_error:
    V5 [mqtt_3_1_0_2] V311 [mqtt311_3_1_0_2] V31 [mqtt31]);

/// A server answers what it does not know in the form of a version it knows: code 1 before MQTT 5,
/// 0x84 there. Or it only closes.
fn expect_unsupported(peer: &mut Peer) {
    if let Some(packet) = peer.recv_or_end() {
        assert_eq!(packet.first, first::CONNACK);
        assert_eq!(packet.body[0], 0, "session present in a refusal");
        assert!([1, UNSUPPORTED_VERSION, MALFORMED].contains(&packet.body[1]), "{packet:02x?}");
        peer.expect_closed();
    }
}

fn other_protocol_names_are_refused(version: Version) {
    let good = Connect::new(version);
    for name in ["MQTTX", "mqtt", "MQT", ""] {
        let header = [prefixed(name), good.header()[6..].to_vec()].concat();
        expect_unsupported(&mut send_raw(version, &header, &good.payload()));
    }
}
proves!(other_protocol_names_are_refused: V5 [mqtt_3_1_2_1] V311 [mqtt311_3_1_2_1]);

fn unknown_protocol_versions_are_refused(version: Version) {
    let good = Connect::new(version);
    for level in [0, 1, 2, 6, 0x7F] {
        let mut header = good.header();
        header[6] = level;
        expect_unsupported(&mut send_raw(version, &header, &good.payload()));
    }
}
proves!(unknown_protocol_versions_are_refused: V5 [mqtt_3_1_2_2] V311 [mqtt311_3_1_2_2]);

/// A client of a version to come reads the form of MQTT 5, if a server answers at all.
#[test]
fn levels_above_5_are_answered_in_the_form_of_5() {
    let good = Connect::new(Version::V5);
    for level in [6, 7, 0x7F] {
        let mut header = good.header();
        header[6] = level;
        let mut peer = send_raw(Version::V5, &header, &good.payload());
        if let Some(packet) = peer.recv_or_end() {
            assert_eq!((packet.first, &packet.body[..2]), (first::CONNACK, &[0, 0x84][..]));
            assert_eq!(packet.body.len(), 3, "flags, reason and the length of the properties");
            peer.expect_closed();
        }
    }
}

fn reserved_connect_flag_must_be_zero(version: Version) {
    let mut peer = Connect::new(version).flip(0x01).send();
    peer.expect_connect_refused(BAD);
}
proves!(reserved_connect_flag_must_be_zero: V5 [mqtt_3_1_2_3] V311 [mqtt311_3_1_2_3]);

fn all_payload_fields_in_their_order_are_taken(version: Version) {
    let topic = fresh("will");
    let connect =
        Connect::new(version).will(Will::new(&topic, "gone")).user("a user").password("a password");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    connect.open().vanish();
    assert_eq!(watcher.take().payload, b"gone");
}
proves!(all_payload_fields_in_their_order_are_taken:
    V5 [mqtt_3_1_3_1] V311 [mqtt311_3_1_3_1] V31 [mqtt31]);

fn client_id_must_be_there(version: Version) {
    let connect = Connect::new(version);
    let mut peer = send_raw(version, &connect.header(), &[]);
    peer.expect_connect_refused(BAD);
    let mut peer = send_raw(version, &connect.header(), &connect.payload()[..4]);
    peer.expect_connect_refused(BAD);
}
proves!(client_id_must_be_there: V5 [mqtt_3_1_3_3] V311 [mqtt311_3_1_3_3]);

fn client_id_must_be_utf8(version: Version) {
    let mut peer = Connect::new(version).id(b"bad\xC3\x28").send();
    peer.expect_connect_refused(&[MALFORMED, PROTOCOL_ERROR, 0x85, 2]);
}
proves!(client_id_must_be_utf8: V5 [mqtt_3_1_3_4] V311 [mqtt311_3_1_3_4]);

fn plain_client_ids_of_1_to_23_bytes_are_taken(version: Version) {
    let letters = "zyxwvutsrqponmlkjihgfedcba9876543210ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for len in 1..=23 {
        Connect::new(version).id(&letters[..len]).open().disconnect();
        Connect::new(version).id(&letters[letters.len() - len..]).open().disconnect();
    }
}
proves!(plain_client_ids_of_1_to_23_bytes_are_taken:
    V5 [mqtt_3_1_3_5] V311 [mqtt311_3_1_3_5] V31 [mqtt31]);

fn client_without_id_gets_one(_: Version) {
    let mut ids = Vec::new();
    let connect = Connect::new(Version::V5).id("").session_expiry(60);
    let held: Vec<_> = (0..5).map(|_| connect.open()).collect();
    for peer in &held {
        let id = peer.connack().text(prop::ASSIGNED_CLIENT_ID).expect("an assigned client id");
        assert!(!id.is_empty() && !ids.contains(&id), "{id:?} was assigned before");
        ids.push(id);
    }
    // It is a client id like any other: the session can be resumed by it.
    held.into_iter().for_each(Peer::vanish);
    let resumed = Connect::new(Version::V5).id(&ids[0]).resume().open();
    assert!(resumed.connack().session_present());
    assert_eq!(resumed.connack().text(prop::ASSIGNED_CLIENT_ID), None);
}
proves!(client_without_id_gets_one: V5 [mqtt_3_1_3_6 mqtt_3_1_3_7 mqtt_3_2_2_16]);

#[test]
fn mqtt311_3_1_3_6_clients_without_id_are_kept_apart() {
    let topic = fresh("nameless");
    let connect = Connect::new(Version::V311).id("");
    let mut held: Vec<_> = (0..5).map(|_| connect.open()).collect();
    held.iter_mut().for_each(|peer| assert_eq!(peer.subscribe(&topic, 0), 0));
    Peer::connect(Version::V311).publish(Publish::new(&topic, "to all"));
    held.iter_mut().for_each(|peer| assert_eq!(peer.take().payload, b"to all"));
}

#[test]
fn mqtt311_3_1_3_7_no_client_id_needs_a_clean_session() {
    Connect::new(Version::V311).id("").open().disconnect();
    let mut peer = Connect::new(Version::V311).id("").resume().send();
    peer.expect_connect_refused(&[2]);
}

#[test]
fn mqtt311_3_1_3_8_no_client_id_without_clean_session_gets_code_2() {
    let mut peer = Connect::new(Version::V311).id("").resume().send();
    let connack = peer.recv().connack(Version::V311);
    assert_eq!((connack.flags, connack.reason), (0, 2));
    peer.expect_closed();
}

fn user_name_must_be_utf8(version: Version) {
    let mut peer = Connect::new(version).user(b"\xFF\xFE").password("x").send();
    peer.expect_connect_refused(&[MALFORMED, PROTOCOL_ERROR, 4]);
}
proves!(user_name_must_be_utf8: V5 [mqtt_3_1_3_12] V311 [mqtt311_3_1_3_11]);

fn will_topic_must_be_utf8(version: Version) {
    let mut peer = Connect::new(version).will(Will::new(b"w/\xED\xA0\x80", "x")).send();
    peer.expect_connect_refused(BAD);
}
proves!(will_topic_must_be_utf8: V5 [mqtt_3_1_3_11] V311 [mqtt311_3_1_3_10]);

fn no_user_flag_means_no_user_name(version: Version) {
    // The name is there but its flag is not: bytes too many.
    let mut peer = Connect::new(version).user("somebody").flip(0x80).send();
    peer.expect_connect_refused(BAD);
}
proves!(no_user_flag_means_no_user_name: V5 [mqtt_3_1_2_16] V311 [mqtt311_3_1_2_18]);

fn user_flag_means_a_user_name(version: Version) {
    let mut peer = Connect::new(version).flip(0x80).send();
    peer.expect_connect_refused(BAD);
}
proves!(user_flag_means_a_user_name: V5 [mqtt_3_1_2_17] V311 [mqtt311_3_1_2_19]);

fn no_password_flag_means_no_password(version: Version) {
    let connect = Connect::new(version).user("somebody").password("secret").flip(0x40);
    connect.send().expect_connect_refused(BAD);
}
proves!(no_password_flag_means_no_password: V5 [mqtt_3_1_2_18] V311 [mqtt311_3_1_2_20]);

fn password_flag_means_a_password(version: Version) {
    let connect = Connect::new(version).user("somebody").flip(0x40);
    connect.send().expect_connect_refused(BAD);
}
proves!(password_flag_means_a_password: V5 [mqtt_3_1_2_19] V311 [mqtt311_3_1_2_21]);

#[test]
fn mqtt311_3_1_2_22_no_password_without_a_user_name() {
    let connect = Connect::new(Version::V311).password("secret");
    connect.send().expect_connect_refused(&[]);
}

/// MQTT 5 lifted the rule: a password may stand alone.
#[test]
fn mqtt5_takes_a_password_without_a_user_name() {
    Connect::new(Version::V5).password("token").open().disconnect();
}

fn will_fields_must_be_there(version: Version) {
    // The will flag without a will, and a will that is cut off after its topic.
    Connect::new(version).flip(0x04).send().expect_connect_refused(BAD);
    let connect = Connect::new(version).will(Will::new(fresh("will"), "payload"));
    let payload = connect.payload();
    let mut peer = send_raw(version, &connect.header(), &payload[..payload.len() - 9]);
    peer.expect_connect_refused(BAD);
}
proves!(will_fields_must_be_there: V5 [mqtt_3_1_2_9] V311 [mqtt311_3_1_2_9]);

fn will_qos_without_a_will_is_malformed(version: Version) {
    for flags in [0x08, 0x10] {
        Connect::new(version).flip(flags).send().expect_connect_refused(BAD);
    }
}
proves!(will_qos_without_a_will_is_malformed:
    V5 [mqtt_3_1_2_11] V311 [mqtt311_3_1_2_11 mqtt311_3_1_2_13]);

fn will_qos_3_is_malformed(version: Version) {
    for qos in 0..3 {
        Connect::new(version).will(Will::new(fresh("will"), "x").qos(qos)).open().disconnect();
    }
    let connect = Connect::new(version).will(Will::new(fresh("will"), "x").qos(3));
    connect.send().expect_connect_refused(BAD);
}
proves!(will_qos_3_is_malformed: V5 [mqtt_3_1_2_12] V311 [mqtt311_3_1_2_14]);

fn will_retain_without_a_will_is_malformed(version: Version) {
    Connect::new(version).flip(0x20).send().expect_connect_refused(BAD);
}
proves!(will_retain_without_a_will_is_malformed: V5 [mqtt_3_1_2_13] V311 [mqtt311_3_1_2_15]);

fn malformed_connects_are_refused(version: Version) {
    let connect = Connect::new(version);
    let (header, payload) = (connect.header(), connect.payload());
    // Bytes after the last field; a packet cut short; a flag in the fixed header.
    let long = [&payload[..], b"more"].concat();
    send_raw(version, &header, &long).expect_connect_refused(BAD);
    send_raw(version, &header[..7], &[]).expect_connect_refused(BAD);
    let mut peer = Peer::open(version);
    peer.send(packet(first::CONNECT | 1, [header, payload].concat()));
    peer.expect_connect_refused(BAD);
}
proves!(malformed_connects_are_refused: V5 [mqtt_3_1_4_1] V311 [mqtt311_3_1_4_1]);

#[test]
fn mqtt_3_1_4_1_bad_connect_properties_are_refused() {
    let bad = [
        Props::new().two(prop::RECEIVE_MAX, 0),
        Props::new().four(prop::PACKET_BYTES_MAX, 0),
        Props::new().byte(prop::REQUEST_PROBLEM_INFO, 2),
        Props::new().byte(prop::REQUEST_RESPONSE_INFO, 2),
        Props::new().four(prop::SESSION_EXPIRY, 1).four(prop::SESSION_EXPIRY, 1),
        Props::new().two(prop::RECEIVE_MAX, 1).two(prop::RECEIVE_MAX, 1),
        Props::new().two(prop::TOPIC_ALIAS_MAX, 1).two(prop::TOPIC_ALIAS_MAX, 1),
        Props::new().bytes(prop::AUTH_DATA, "data without a method"),
        Props::new().two(prop::TOPIC_ALIAS, 1),
        Props::new().bytes(prop::REASON_STRING, "not in a CONNECT"),
        Props::new().byte(0x00, 0),
        Props::new().byte(0x7F, 0),
    ];
    for props in bad {
        eprintln!("{props:02x?}");
        Connect::new(Version::V5).props(props).send().expect_connect_refused(BAD);
    }
}

#[test]
fn mqtt_3_1_4_1_property_length_beyond_the_packet_is_refused() {
    let connect = Connect::new(Version::V5);
    let mut header = connect.header();
    header[10] = 0x7F;
    send_raw(Version::V5, &header, &connect.payload()).expect_connect_refused(BAD);
}

fn takeover_closes_the_older_connection(version: Version) {
    let connect = Connect::new(version);
    let mut older = connect.open();
    let mut newer = connect.open();
    older.expect_refused(&[0x8E]);
    newer.ping();
}
proves!(takeover_closes_the_older_connection:
    V5 [mqtt_3_1_4_3] V311 [mqtt311_3_1_4_2] V31 [mqtt31]);

fn takeover_processes_clean_start(version: Version) {
    let client = fresh_client();
    let topic = fresh("takeover");
    let mut older = Connect::new(version).id(&client).persistent().open();
    older.subscribe(&topic, 1);
    let newer = Connect::new(version).id(&client).persistent().open();
    assert!(version == Version::V31 || newer.connack().session_present());
    older.expect_refused(&[0x8E]);
    let mut newest = Connect::new(version).id(&client).open();
    assert!(!newest.connack().session_present());
    newest.publish(Publish::new(&topic, "nobody wants this"));
    newest.expect_nothing_of_its_own();
}
proves!(takeover_processes_clean_start:
    V5 [mqtt_3_1_4_4] V311 [mqtt311_3_1_4_3] V31 [mqtt31]);

fn good_connect_is_accepted(version: Version) {
    let peer = Peer::connect(version);
    assert_eq!(peer.connack().reason, 0);
    assert_eq!(peer.connack().flags, 0);
}
proves!(good_connect_is_accepted:
    V5 [mqtt_3_1_4_5] V311 [mqtt311_3_1_4_4] V31 [mqtt31]);

fn what_follows_a_refused_connect_is_not_processed(version: Version) {
    let topic = fresh("smuggled");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let refused = Connect::new(version).flip(0x01).encoded();
    let publish = Publish::new(&topic, "smuggled").encoded(version);
    let mut peer = Peer::open(version);
    peer.send([refused, publish].concat());
    peer.expect_connect_refused(BAD);
    watcher.expect_nothing_from(&mut Peer::connect(version));
}
proves!(what_follows_a_refused_connect_is_not_processed:
    V5 [mqtt_3_1_4_6] V311 [mqtt311_3_1_4_5]);

/// A client need not wait for the CONNACK.
fn what_follows_a_good_connect_at_once_is_processed(version: Version) {
    let topic = fresh("hasty");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let publish = Publish::new(&topic, "hasty").encoded(version);
    let mut peer = Peer::open(version);
    peer.send([Connect::new(version).encoded(), publish, wire::pingreq()].concat());
    assert_eq!(peer.recv().connack(version).reason, 0);
    assert_eq!(peer.recv().first, first::PINGRESP);
    assert_eq!(watcher.take().payload, b"hasty");
}
proves!(what_follows_a_good_connect_at_once_is_processed: V5 [mqtt5] V311 [mqtt311] V31 [mqtt31]);

fn silent_client_is_closed_after_its_keep_alive(version: Version) {
    let topic = fresh("will");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let will = Will::new(&topic, "silent for too long");
    let mut peer = Connect::new(version).keep_alive(1).will(will).open();
    // As if the network had failed: the will is published too.
    peer.expect_refused(&[0x8D]);
    assert_eq!(watcher.take().payload, b"silent for too long");
}
proves!(silent_client_is_closed_after_its_keep_alive:
    V5 [mqtt_3_1_2_22 mqtt_3_2_2_22] V311 [mqtt311_3_1_2_24] V31 [mqtt31]);

#[test]
fn mqtt_4_12_0_1_unknown_authentication_method_is_refused() {
    let props = Props::new().bytes(prop::AUTH_METHOD, "no such method").bytes(prop::AUTH_DATA, "x");
    let mut peer = Connect::new(Version::V5).props(props).send();
    peer.expect_connect_refused(&[BAD_METHOD, NOT_AUTHORIZED]);
}

#[test]
fn mqtt_4_12_0_6_no_authentication_method_without_being_asked() {
    let peer = Peer::connect(Version::V5);
    assert_eq!(peer.connack().text(prop::AUTH_METHOD), None);
}

#[test]
fn mqtt_4_12_0_7_auth_without_a_method_is_a_protocol_error() {
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::auth(0x19, &Props::new().bytes(prop::AUTH_METHOD, "SCRAM-SHA-256")));
    peer.expect_refused(&[PROTOCOL_ERROR, NOT_AUTHORIZED, BAD_METHOD]);
}

#[test]
fn mqtt_3_15_1_1_auth_with_flags_is_malformed() {
    let mut peer = Peer::connect(Version::V5);
    peer.send(packet(first::AUTH | 1, [0x19, 0x00]));
    peer.expect_refused(&[MALFORMED]);
}

/// A stream may cut packets anywhere.
fn packets_may_arrive_byte_by_byte(version: Version) {
    let topic = fresh("slow");
    let mut peer = Peer::open(version);
    let bytes = [
        Connect::new(version).encoded(),
        wire::subscribe(version, 1, &Props::new(), &[(&topic, 0)]),
        Publish::new(&topic, "slowly").encoded(version),
    ];
    for byte in bytes.concat() {
        peer.send([byte]);
    }
    assert_eq!(peer.recv().connack(version).reason, 0);
    assert_eq!(peer.recv().acks(first::SUBACK, version).reasons, [0]);
    assert_eq!(peer.recv_message().payload, b"slowly");
}
proves!(packets_may_arrive_byte_by_byte:
    V5 [mqtt_4_2_0_1] V311 [mqtt311_7_1_1_1] V31 [mqtt31]);
