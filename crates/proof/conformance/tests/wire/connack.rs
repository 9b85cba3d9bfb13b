//! CONNACK: first, once, and what it says about the session.

use conformance::wire::{self, first, prop};
use conformance::{Connect, Peer, Props, Publish, Version, fresh, fresh_client, proves};

fn connack_comes_before_anything_else(version: Version) {
    let topic = fresh("queued");
    let client = fresh_client();
    let mut peer = Connect::new(version).id(&client).persistent().open();
    peer.subscribe(&topic, 1);
    peer.vanish();
    let mut publisher = Peer::connect(version);
    (0..3).for_each(|n| assert_eq!(publisher.publish(Publish::new(&topic, [n]).qos(1)), 0));
    // There is much to send, and a PINGREQ to answer; the CONNACK is first all the same.
    let mut peer = Connect::new(version).id(&client).persistent().send();
    peer.send(wire::pingreq());
    assert_eq!(peer.recv().connack(version).reason, 0);
}
proves!(connack_comes_before_anything_else:
    V5 [mqtt_3_2_0_1] V311 [mqtt311_3_2_0_1] V31 [mqtt31]);

fn connack_comes_once(version: Version) {
    let topic = fresh("once");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 0);
    peer.publish(Publish::new(&topic, "x"));
    assert_eq!(peer.recv().kind(), first::PUBLISH);
    peer.ping();
}
proves!(connack_comes_once: V5 [mqtt_3_2_0_2] V311 [mqtt311]);

fn reserved_connack_flags_are_zero(version: Version) {
    assert_eq!(Peer::connect(version).connack().flags & 0xFE, 0);
    let client = fresh_client();
    Connect::new(version).id(&client).persistent().open().disconnect();
    let peer = Connect::new(version).id(&client).persistent().open();
    assert_eq!(peer.connack().flags & 0xFE, 0);
}
proves!(reserved_connack_flags_are_zero: V5 [mqtt_3_2_2_1] V311 [mqtt311]);

fn clean_start_says_no_session(version: Version) {
    let client = fresh_client();
    Connect::new(version).id(&client).persistent().open().disconnect();
    let peer = Connect::new(version).id(&client).open();
    assert_eq!((peer.connack().session_present(), peer.connack().reason), (false, 0));
}
proves!(clean_start_says_no_session: V5 [mqtt_3_2_2_2] V311 [mqtt311_3_2_2_1]);

fn session_present_says_whether_there_is_one(version: Version) {
    let connect = Connect::new(version).persistent();
    let peer = connect.open();
    assert_eq!((peer.connack().session_present(), peer.connack().reason), (false, 0));
    peer.disconnect();
    let peer = connect.open();
    assert_eq!((peer.connack().session_present(), peer.connack().reason), (true, 0));
}
proves!(session_present_says_whether_there_is_one:
    V5 [mqtt_3_2_2_3] V311 [mqtt311_3_2_2_2 mqtt311_3_2_2_3]);

fn a_refusal_says_no_session_and_closes(version: Version) {
    // A client id with a session, and a protocol version that no server has.
    let connect = Connect::new(version).persistent();
    connect.open().disconnect();
    let mut bytes = connect.encoded();
    bytes[8] = 77;
    let mut peer = Peer::open(version);
    peer.send(bytes);
    if let Some(packet) = peer.recv_or_end() {
        assert_eq!(packet.body[0], 0, "session present in a refusal");
        assert!([1, 0x84].contains(&packet.body[1]), "{packet:02x?}");
        peer.expect_closed();
    }
}
proves!(a_refusal_says_no_session_and_closes:
    V5 [mqtt_3_2_2_6 mqtt_3_2_2_7] V311 [mqtt311_3_2_2_4 mqtt311_3_2_2_5]);

#[test]
fn mqtt_3_2_2_8_reasons_of_a_connack_are_those_of_the_standard() {
    let reasons = [
        0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95,
        0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F,
    ];
    let attempts = [
        Connect::new(Version::V5),
        Connect::new(Version::V5).flip(1),
        Connect::new(Version::V5).props(Props::new().two(prop::RECEIVE_MAX, 0)),
        Connect::new(Version::V5).props(Props::new().bytes(prop::AUTH_METHOD, "nonsense")),
        Connect::new(Version::V5).id(b"\xFF"),
    ];
    for connect in attempts {
        if let Some(packet) = connect.send().recv_or_end() {
            let reason = packet.connack(Version::V5).reason;
            assert!(reasons.contains(&reason), "{reason:#x} for {connect:?}");
        }
    }
}

#[test]
fn mqtt_3_2_2_8_values_of_a_connack_are_in_range() {
    let peer = Peer::connect(Version::V5);
    let connack = peer.connack();
    assert_ne!(connack.int(prop::RECEIVE_MAX), Some(0));
    assert!(connack.int(prop::QOS_MAX).is_none_or(|qos| qos < 2));
    assert_ne!(connack.int(prop::PACKET_BYTES_MAX), Some(0));
    for id in [
        prop::RETAIN_AVAILABLE,
        prop::WILDCARD_AVAILABLE,
        prop::SUBSCRIPTION_ID_AVAILABLE,
        prop::SHARED_AVAILABLE,
    ] {
        assert!(connack.int(id).is_none_or(|flag| flag < 2), "property {id:#x}");
    }
}

/// A CONNACK that would be too large with its reason string or user properties comes without.
#[test]
fn mqtt_3_2_2_19_connack_fits_the_packet_size_of_the_client() {
    small_connacks();
}

#[test]
fn mqtt_3_2_2_20_connack_fits_the_packet_size_of_the_client() {
    small_connacks();
}

fn small_connacks() {
    for packet_bytes_max in [8, 16, 24, 40] {
        let props = Props::new().four(prop::PACKET_BYTES_MAX, packet_bytes_max);
        let refused = props.clone().bytes(prop::AUTH_METHOD, "no such method");
        for props in [props, refused] {
            // Nothing at all is an answer too, when not even the bare packet fits.
            if let Some(packet) = Connect::new(Version::V5).props(props).send().recv_or_end() {
                assert!(packet.packet_bytes() <= packet_bytes_max as usize, "{packet:02x?}");
            }
        }
    }
}

#[test]
fn mqtt_3_1_2_28_no_response_information_unless_asked_for() {
    for props in [Props::new(), Props::new().byte(prop::REQUEST_RESPONSE_INFO, 0)] {
        let peer = Connect::new(Version::V5).props(props).open();
        assert_eq!(peer.connack().text(prop::RESPONSE_INFO), None);
    }
    // With 1 the server may answer or not; it accepts the connection either way.
    Connect::new(Version::V5).props(Props::new().byte(prop::REQUEST_RESPONSE_INFO, 1)).open();
}
