//! PUBLISH: the answers by QoS, the flags, topic names, overlapping subscriptions.

use conformance::wire::{self, first, packet, prefixed, prop};
use conformance::{Connect, Peer, Props, Publish, Version, broker, fresh, proves};

const BAD: &[u8] = &[0x81, 0x82];
const NO_MATCHING_SUBSCRIBERS: u8 = 0x10;
const BAD_TOPIC: &[u8] = &[0x81, 0x82, 0x90];

fn each_qos_gets_its_answer(version: Version) {
    let topic = fresh("answer");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 2);
    let mut peer = Peer::connect(version);
    for qos in 0..3 {
        assert_eq!(peer.publish(Publish::new(&topic, [qos]).qos(qos)), 0);
        peer.ping();
        let message = watcher.take();
        assert_eq!((message.qos, message.payload), (qos, vec![qos]));
    }
}
proves!(each_qos_gets_its_answer:
    V5 [mqtt_3_3_4_1] V311 [mqtt311_3_3_4_1] V31 [mqtt31]);

fn dup_is_zero_for_qos_0(version: Version) {
    let topic = fresh("dup");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 0);
    // A QoS 1 retransmission that is delivered at QoS 0.
    peer.send(Publish::new(&topic, "x").qos(1).id(9).dup().encoded(version));
    let mut packets = [peer.recv(), peer.recv()];
    packets.sort_by_key(|packet| packet.first);
    let [publish, puback] = packets;
    assert_eq!(publish.first, first::PUBLISH, "QoS 0, no DUP, no RETAIN");
    assert_eq!(puback.ack(first::PUBACK, version).packet_id, 9);
}
proves!(dup_is_zero_for_qos_0:
    V5 [mqtt_3_3_1_2 mqtt_4_3_1_1] V311 [mqtt311_3_3_1_2 mqtt311_4_3_1_1]);

fn qos_0_with_dup_is_malformed(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(Publish::new(fresh("dup"), "x").dup().encoded(version));
    peer.expect_refused(BAD);
}
proves!(qos_0_with_dup_is_malformed: V5 [mqtt_3_3_1_2] V311 [mqtt311_3_3_1_2]);

fn dup_of_the_publisher_is_not_passed_on(version: Version) {
    let topic = fresh("dup");
    let mut watcher = Peer::connect(version);
    watcher.subscribe(&topic, 2);
    let mut peer = Peer::connect(version);
    for qos in [1, 2] {
        peer.publish(Publish::new(&topic, "x").qos(qos).id(9).dup());
        let message = watcher.take();
        assert_eq!((message.qos, message.dup), (qos, false));
    }
}
proves!(dup_of_the_publisher_is_not_passed_on: V5 [mqtt_3_3_1_3] V311 [mqtt311_3_3_1_3]);

fn qos_3_is_malformed(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(Publish::new(fresh("qos3"), "x").qos(3).id(1).encoded(version));
    peer.expect_refused(BAD);
}
proves!(qos_3_is_malformed: V5 [mqtt_3_3_1_4] V311 [mqtt311_3_3_1_4] V31 [mqtt31]);

fn topic_is_the_first_field_and_utf8(version: Version) {
    let none = if version == Version::V5 { vec![0] } else { vec![] };
    // No body at all, a length that points beyond the packet, bytes that are no UTF-8.
    let bodies = [vec![], vec![0, 9, b'a'], [prefixed(b"a\xFF"), none, vec![b'x']].concat()];
    for body in bodies {
        let mut peer = Peer::connect(version);
        peer.send(packet(first::PUBLISH, body));
        peer.expect_refused(BAD_TOPIC);
    }
}
proves!(topic_is_the_first_field_and_utf8: V5 [mqtt_3_3_2_1] V311 [mqtt311_3_3_2_1]);

fn wildcards_in_a_topic_name_are_refused(version: Version) {
    for topic in ["a/#", "a/+", "#", "+", "a#", "a+b"] {
        let mut peer = Peer::connect(version);
        peer.send(Publish::new(topic, "x").encoded(version));
        peer.expect_refused(BAD_TOPIC);
    }
}
proves!(wildcards_in_a_topic_name_are_refused:
    V5 [mqtt_3_3_2_2 mqtt_4_7_0_1] V311 [mqtt311_3_3_2_2 mqtt311_4_7_1_1]);

fn empty_topic_name_is_refused(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(Publish::new("", "x").encoded(version));
    peer.expect_refused(&[0x82]);
}
proves!(empty_topic_name_is_refused: V5 [mqtt_4_7_3_1] V311 [mqtt311_4_7_3_1]);

fn topic_of_a_delivery_matches_the_filter(version: Version) {
    let topic = fresh("match");
    let mut peer = Peer::connect(version);
    peer.subscribe(format!("{topic}/+/x"), 0);
    let mut publisher = Peer::connect(version);
    for last in ["a/y", "a/x/z", "x", "a/x", "b/x"] {
        publisher.publish(Publish::new(format!("{topic}/{last}"), last));
    }
    assert_eq!(peer.take().topic, format!("{topic}/a/x"));
    assert_eq!(peer.take().topic, format!("{topic}/b/x"));
    peer.expect_nothing_from(&mut publisher);
}
proves!(topic_of_a_delivery_matches_the_filter: V5 [mqtt_3_3_2_3] V311 [mqtt311_3_3_2_3]);

/// A server may send one copy or one per subscription; the best QoS must be among them.
fn overlapping_subscriptions_give_their_highest_qos(version: Version) {
    let topic = fresh("overlap");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 0);
    peer.subscribe(format!("{topic}/#"), 2);
    peer.subscribe(topic.replace("overlap", "+"), 1);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    publisher.publish(Publish::new(format!("{topic}/fence"), "x").qos(2));
    let mut copies = Vec::new();
    loop {
        let message = peer.take();
        if message.topic != topic {
            break;
        }
        copies.push(message.qos);
    }
    if broker::is_ours() {
        assert_eq!(copies, [2], "our server sends one copy");
    }
    assert_eq!(copies.iter().max(), Some(&2));
}
proves!(overlapping_subscriptions_give_their_highest_qos:
    V5 [mqtt_3_3_4_2] V311 [mqtt311_3_3_5_1] V31 [mqtt31]);

/// Subscribes to overlapping filters with these identifiers and returns those that arrive, either
/// in one message or spread over one message per subscription.
fn identifiers_that_arrive(identifiers: &[Option<usize>]) -> Vec<Vec<u32>> {
    let topic = fresh("ids");
    let filters = [format!("{topic}/#"), topic.clone(), topic.replace("ids", "+")];
    let mut peer = Peer::connect(Version::V5);
    for (filter, identifier) in filters.iter().zip(identifiers) {
        let props = identifier.map(|id| Props::new().varint(prop::SUBSCRIPTION_ID, id));
        peer.subscribe_with(&props.unwrap_or_default(), &[(filter.as_bytes(), 0)]);
    }
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "x"));
    publisher.publish(Publish::new(format!("{topic}/fence"), "x"));
    let mut arrived = Vec::new();
    loop {
        let message = peer.take();
        if message.topic != topic {
            return arrived;
        }
        arrived.push(message.subscription_ids());
    }
}

#[test]
fn mqtt_3_3_4_3_subscription_identifiers_are_sent() {
    let arrived = identifiers_that_arrive(&[Some(7), Some(268_435_455), None]);
    let mut all = arrived.concat();
    all.sort_unstable();
    assert_eq!(all, [7, 268_435_455]);
}

#[test]
fn mqtt_3_3_4_4_one_copy_carries_all_identifiers() {
    let arrived = identifiers_that_arrive(&[Some(3), Some(2), Some(1)]);
    if broker::is_ours() {
        assert_eq!(arrived, [[1, 2, 3]], "our server sends one copy");
    }
    let mut all = arrived.concat();
    all.sort_unstable();
    assert_eq!(all, [1, 2, 3]);
}

#[test]
fn mqtt_3_3_4_5_copies_carry_the_identifier_of_their_subscription() {
    let arrived = identifiers_that_arrive(&[Some(5), None, Some(6)]);
    // One copy with both, or a copy for each subscription with its own or none.
    let copies = arrived.len();
    let mut all = arrived.concat();
    all.sort_unstable();
    assert_eq!(all, [5, 6]);
    assert!(copies == 1 || copies == 3, "{arrived:?}");
    // The same identifier may serve two subscriptions.
    let same = identifiers_that_arrive(&[Some(5), Some(5)]).concat();
    assert!(!same.is_empty() && same.iter().all(|id| *id == 5), "{same:?}");
}

#[test]
fn no_subscription_identifier_for_other_subscriptions() {
    assert_eq!(identifiers_that_arrive(&[None]), [[0; 0]]);
}

#[test]
fn mqtt_3_3_4_6_subscription_identifier_from_a_client_is_refused() {
    let mut peer = Peer::connect(Version::V5);
    let props = Props::new().varint(prop::SUBSCRIPTION_ID, 1);
    peer.send(Publish::new(fresh("id"), "x").props(props).encoded(Version::V5));
    peer.expect_refused(BAD);
}

/// A client that does not respect the server's Receive Maximum, which QoS 2 messages that wait for
/// their PUBREL fill.
#[test]
fn mqtt_3_3_4_7_more_than_receive_maximum_is_refused() {
    let topic = fresh("flood");
    let mut peer = Peer::connect(Version::V5);
    let receive_max = peer.connack().int(prop::RECEIVE_MAX).unwrap_or(65_535);
    if receive_max == 65_535 {
        // There are not enough packet ids to exceed it with.
        return;
    }
    let mut flood = Vec::new();
    for id in 1..=receive_max + 1 {
        flood.extend(Publish::new(&topic, "").qos(2).id(id as u16).encoded(Version::V5));
    }
    peer.send_anyway(flood);
    for _ in 0..receive_max {
        assert!(peer.expect_ack_of_any(first::PUBREC) < 0x80);
    }
    if broker::is_ours() {
        peer.expect_refused(&[0x93]);
    } else {
        assert_ne!(peer.recv_or_end().map(|packet| packet.body[2]), Some(0));
    }
}

fn many_messages_at_once_are_all_answered(version: Version) {
    let topic = fresh("many");
    let mut peer = Peer::connect(version);
    let mut bytes = Vec::new();
    for id in 1..=10u16 {
        bytes.extend(Publish::new(&topic, "x").qos(1).id(id).encoded(version));
    }
    peer.send(bytes);
    for id in 1..=10 {
        let reason = peer.expect_ack(first::PUBACK, id);
        assert!([0x00, NO_MATCHING_SUBSCRIBERS].contains(&reason), "{reason:#x}");
    }
}
proves!(many_messages_at_once_are_all_answered:
    V5 [mqtt_4_3_2_4 mqtt_4_6_0_2] V311 [mqtt311_4_6_0_2] V31 [mqtt31]);

/// A server may tell that nobody has subscribed. Ours does where it can tell at once: where nobody
/// has a filter such as `+/a`, which may be for any topic, it is sure of most topics.
#[test]
fn mqtt_3_4_2_1_reasons_of_a_puback_are_those_of_the_standard() {
    let (address, _server) = broker::undisturbed();
    let mut peer = Connect::new(Version::V5).open_at(address);
    let reasons: Vec<u8> =
        (0..20).map(|_| peer.publish(Publish::new(fresh("nobody"), "x").qos(1))).collect();
    let told = reasons.iter().filter(|reason| **reason == NO_MATCHING_SUBSCRIBERS).count();
    assert!(reasons.iter().all(|reason| [0x00, NO_MATCHING_SUBSCRIBERS].contains(reason)));
    assert!(told > 10 || !broker::is_ours(), "{reasons:x?}");
}

#[test]
fn mqtt_3_5_2_1_reasons_of_a_pubrec_are_those_of_the_standard() {
    let mut peer = Peer::connect(Version::V5);
    let reason = peer.publish(Publish::new(fresh("nobody"), "x").qos(2));
    assert!([0x00, 0x10].contains(&reason), "{reason:#x}");
}

#[test]
fn mqtt_3_6_2_1_reasons_of_a_pubrel_are_those_of_the_standard() {
    let topic = fresh("pubrel");
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 2);
    peer.send(wire::ack(first::PUBREC, 777));
    expect_unknown_id(&mut peer, first::PUBREL);
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x").qos(2));
    // `take` accepts nothing but success for a message that there is.
    assert_eq!(peer.take().payload, b"x");
}

#[test]
fn mqtt_3_7_2_1_reasons_of_a_pubcomp_are_those_of_the_standard() {
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::ack(first::PUBREL, 777));
    expect_unknown_id(&mut peer, first::PUBCOMP);
    // A message that there is ends with success, which `publish` asserts.
    peer.publish(Publish::new(fresh("pubcomp"), "x").qos(2));
}

/// There is no message 777. A server may tell, ours does.
fn expect_unknown_id(peer: &mut Peer, first: u8) {
    let reason = peer.expect_ack(first, 777);
    assert!(reason == 0x92 || reason == 0 && !broker::is_ours(), "{reason:#x}");
}

fn unknown_pubrel_is_answered(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(wire::ack(first::PUBREL, 777));
    assert_eq!(peer.recv().ack(first::PUBCOMP, version).packet_id, 777);
}
proves!(unknown_pubrel_is_answered: V311 [mqtt311] V31 [mqtt31]);

fn unknown_acknowledgements_do_no_harm(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(wire::ack(first::PUBACK, 999));
    peer.send(wire::ack(first::PUBCOMP, 999));
    peer.ping();
}
proves!(unknown_acknowledgements_do_no_harm: V5 [mqtt5] V311 [mqtt311]);

/// Acknowledgements in the packet size of a client that takes next to nothing.
fn small_acknowledgements(qos: u8, first: u8) {
    let props = Props::new().four(prop::PACKET_BYTES_MAX, 20);
    let mut peer = Connect::new(Version::V5).props(props).open();
    let id = peer.packet_id();
    let publish = Publish::new(fresh("a"), "x").qos(qos).id(id);
    peer.send(publish.encoded(Version::V5));
    if first == first::PUBCOMP {
        peer.expect_ack(first::PUBREC, id);
        peer.send(wire::ack(first::PUBREL, id));
    }
    let packet = peer.recv();
    assert!(packet.packet_bytes() <= 20, "{packet:02x?}");
    assert_eq!(packet.ack(first, Version::V5).packet_id, id);
}

fn pubacks_fit_the_packet_size_of_the_client(_: Version) {
    small_acknowledgements(1, first::PUBACK);
}
proves!(pubacks_fit_the_packet_size_of_the_client: V5 [mqtt_3_4_2_2 mqtt_3_4_2_3]);

fn pubrecs_fit_the_packet_size_of_the_client(_: Version) {
    small_acknowledgements(2, first::PUBREC);
}
proves!(pubrecs_fit_the_packet_size_of_the_client: V5 [mqtt_3_5_2_2 mqtt_3_5_2_3]);

fn pubcomps_fit_the_packet_size_of_the_client(_: Version) {
    small_acknowledgements(2, first::PUBCOMP);
    let props = Props::new().four(prop::PACKET_BYTES_MAX, 20);
    let mut peer = Connect::new(Version::V5).props(props).open();
    peer.send(wire::ack(first::PUBREL, 777));
    assert!(peer.recv().packet_bytes() <= 20);
}
proves!(pubcomps_fit_the_packet_size_of_the_client: V5 [mqtt_3_7_2_2 mqtt_3_7_2_3]);

fn pubrels_fit_the_packet_size_of_the_client(_: Version) {
    let props = Props::new().four(prop::PACKET_BYTES_MAX, 20);
    let mut peer = Connect::new(Version::V5).props(props).open();
    peer.send(wire::ack(first::PUBREC, 777));
    let packet = peer.recv();
    assert!(packet.packet_bytes() <= 20, "{packet:02x?}");
    assert_eq!(packet.ack(first::PUBREL, Version::V5).packet_id, 777);
}
proves!(pubrels_fit_the_packet_size_of_the_client: V5 [mqtt_3_6_2_2 mqtt_3_6_2_3]);

#[test]
fn bad_acknowledgements_are_malformed() {
    let bad = [
        packet(first::PUBACK, [0]),
        packet(first::PUBACK, [0, 0]),
        packet(first::PUBACK, [0, 1, 0x77]),
        packet(first::PUBREC, [0, 1, 0x92]),
        packet(first::PUBREL, [0, 1, 0x10]),
        packet(first::PUBCOMP, [0, 1, 0x00, 2, 0x01, 0x00]),
        packet(first::PUBACK, [0, 1, 0x00, 0x00, 0x00]),
    ];
    for bytes in bad {
        eprintln!("{bytes:02x?}");
        let mut peer = Peer::connect(Version::V5);
        peer.send(bytes);
        peer.expect_refused(BAD);
    }
}
