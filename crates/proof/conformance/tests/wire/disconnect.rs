//! DISCONNECT in both directions, and the end of connections.

use conformance::wire::{self, first, packet, prop};
use conformance::{Connect, Peer, Props, Publish, Version, Will, fresh, proves};

const BAD: &[u8] = &[0x81, 0x82];

#[test]
fn mqtt_3_14_0_1_no_disconnect_before_a_connack() {
    let refused = [
        Connect::new(Version::V5).flip(1).encoded(),
        Connect::new(Version::V5).id(b"\xFF").encoded(),
        wire::pingreq(),
        vec![0x00, 0x00],
    ];
    for bytes in refused {
        let mut peer = Peer::open(Version::V5);
        peer.send(bytes);
        if let Some(packet) = peer.recv_or_end() {
            assert_eq!(packet.first, first::CONNACK);
            assert!(packet.connack(Version::V5).reason >= 0x80);
            peer.expect_closed();
        }
    }
}

fn reserved_flags_of_a_disconnect_are_malformed(version: Version) {
    let topic = fresh("will");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let mut peer = Connect::new(version).will(Will::new(&topic, "not a clean end")).open();
    peer.send(packet(first::DISCONNECT | 1, []));
    peer.expect_refused(&[0x81]);
    assert_eq!(watcher.take().payload, b"not a clean end");
}
proves!(reserved_flags_of_a_disconnect_are_malformed:
    V5 [mqtt_3_14_1_1] V311 [mqtt311_3_14_1_1]);

/// Every way to get a DISCONNECT from a server, with what it says and what follows it.
fn disconnects_of_the_server(props: &Props) -> Vec<(usize, u8, Vec<u8>)> {
    let triggers = [
        packet(first::PUBLISH | 0x06, [0, 1, b'a', 0, 1, 0]),
        Publish::new("a/#", "x").encoded(Version::V5),
        Connect::new(Version::V5).encoded(),
        packet(first::SUBSCRIBE, [0, 0, 0, 0, 1, b'a', 0]),
        Publish::new("", "x").props(Props::new().two(prop::TOPIC_ALIAS, 9)).encoded(Version::V5),
    ];
    let mut told = Vec::new();
    for trigger in triggers {
        let mut peer = Connect::new(Version::V5).props(props.clone()).open();
        peer.send(trigger);
        if let Some(packet) = peer.recv_or_end() {
            let (reason, found) = packet.disconnect();
            let ids = found.iter().map(|(id, _)| *id).collect();
            told.push((packet.packet_bytes(), reason, ids));
            peer.expect_closed();
        }
    }
    told
}

#[test]
fn mqtt_3_14_2_1_reasons_of_a_disconnect_are_those_of_the_standard() {
    let client_only = [0x04];
    for (_, reason, _) in disconnects_of_the_server(&Props::new()) {
        assert!((0x81..=0xA2).contains(&reason) && !client_only.contains(&reason), "{reason:#x}");
        assert!(![0x84, 0x85, 0x86, 0x88, 0x8A, 0x8C, 0x91, 0x92].contains(&reason), "{reason:#x}");
    }
    // And a client that uses one that does not exist is refused.
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::disconnect_with(0x55, &Props::new()));
    peer.expect_refused_or_dropped(BAD);
}

#[test]
fn mqtt_3_14_2_2_no_session_expiry_from_the_server() {
    for (_, _, properties) in disconnects_of_the_server(&Props::new()) {
        assert!(!properties.contains(&prop::SESSION_EXPIRY));
    }
}

fn disconnects_fit_the_packet_size_of_the_client(_: Version) {
    for packet_bytes_max in [20, 30] {
        let props = Props::new().four(prop::PACKET_BYTES_MAX, packet_bytes_max);
        for (packet_bytes, _, _) in disconnects_of_the_server(&props) {
            assert!(packet_bytes <= packet_bytes_max as usize);
        }
    }
}
proves!(disconnects_fit_the_packet_size_of_the_client: V5 [mqtt_3_14_2_3 mqtt_3_14_2_4]);

/// `disconnects_of_the_server` has seen to it that nothing follows but the end.
fn nothing_follows_a_disconnect_of_the_server(_: Version) {
    let topic = fresh("after");
    let connect = Connect::new(Version::V5);
    let mut older = connect.open();
    older.subscribe(&topic, 0);
    let mut newer = connect.open();
    newer.publish(Publish::new(&topic, "not for the older one"));
    older.expect_refused(&[0x8E]);
    disconnects_of_the_server(&Props::new());
}
proves!(nothing_follows_a_disconnect_of_the_server: V5 [mqtt_3_14_4_1 mqtt_3_14_4_2]);

fn server_closes_after_a_disconnect_of_the_client(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(wire::disconnect());
    peer.expect_closed();
}
proves!(server_closes_after_a_disconnect_of_the_client: V5 [mqtt5] V311 [mqtt311] V31 [mqtt31]);

/// What a client sends after its DISCONNECT is not processed.
fn nothing_is_processed_after_a_disconnect(version: Version) {
    let topic = fresh("after");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let mut peer = Peer::connect(version);
    peer.send([wire::disconnect(), Publish::new(&topic, "x").encoded(version)].concat());
    peer.expect_closed();
    watcher.expect_nothing_from(&mut Peer::connect(version));
}
proves!(nothing_is_processed_after_a_disconnect: V5 [mqtt5] V311 [mqtt311]);

fn bad_packets_close_the_connection(_: Version) {
    let bad = [
        vec![0x00, 0x00],
        vec![first::PUBLISH, 0xFF, 0xFF, 0xFF, 0xFF, 0x01],
        packet(first::PUBLISH, []),
        packet(first::SUBSCRIBE, [0, 1]),
        packet(first::PINGREQ, [0]),
        packet(first::DISCONNECT, [0x00, 0x7F]),
        wire::disconnect_with(0x00, &Props::new().two(prop::TOPIC_ALIAS, 1)),
    ];
    for bytes in bad {
        eprintln!("{bytes:02x?}");
        let mut peer = Peer::connect(Version::V5);
        peer.send(bytes);
        peer.expect_refused_or_dropped(&[0x81, 0x82, 0x95]);
    }
}
proves!(bad_packets_close_the_connection: V5 [mqtt_4_13_1_1 mqtt_4_13_2_1]);

fn bad_packets_close_only_their_connection(version: Version) {
    let topic = fresh("others");
    let mut bystander = Peer::connect(version);
    bystander.subscribe(&topic, 0);
    for _ in 0..10 {
        let mut peer = Peer::connect(version);
        peer.send([0x00; 16]);
        peer.expect_refused(BAD);
    }
    bystander.publish(Publish::new(&topic, "still here"));
    assert_eq!(bystander.take().payload, b"still here");
}
proves!(bad_packets_close_only_their_connection: V5 [mqtt5] V311 [mqtt311_4_8_0_1]);

fn half_a_packet_and_then_the_end_is_a_network_failure(version: Version) {
    let topic = fresh("will");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 0);
    let mut peer = Connect::new(version).will(Will::new(&topic, "cut")).open();
    peer.send(&Publish::new(&topic, "never whole").encoded(version)[..10]);
    peer.vanish();
    assert_eq!(watcher.take().payload, b"cut");
}
proves!(half_a_packet_and_then_the_end_is_a_network_failure: V5 [mqtt5] V311 [mqtt311]);
