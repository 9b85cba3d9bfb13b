//! SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK.

use conformance::wire::{self, first, packet, prefixed, prop};
use conformance::{Connect, Peer, Props, Publish, Version, broker, fresh, proves};

const BAD: &[u8] = &[0x81, 0x82];
/// Section 3.8: what MQTT 5 calls so, and not malformed.
const PROTOCOL_ERROR: u8 = 0x82;
const NO_LOCAL: u8 = 0x04;

/// A SUBSCRIBE or UNSUBSCRIBE with this payload behind packet id and properties.
fn send_payload(version: Version, first: u8, payload: &[u8]) -> Peer {
    let props = Props::new().encoded(version);
    let mut peer = Peer::connect(version);
    peer.send(packet(first, [&[0, 1], &props[..], payload].concat()));
    peer
}

fn filters_must_be_utf8(version: Version) {
    let payload = [prefixed(b"a/\xFF"), vec![0]].concat();
    send_payload(version, first::SUBSCRIBE, &payload).expect_refused(&[0x81, 0x82, 0x8F]);
}
proves!(filters_must_be_utf8: V5 [mqtt_3_8_3_1] V311 [mqtt311_3_8_3_1]);

fn subscribe_without_filters_is_refused(version: Version) {
    send_payload(version, first::SUBSCRIBE, &[]).expect_refused(&[PROTOCOL_ERROR]);
}
proves!(subscribe_without_filters_is_refused: V5 [mqtt_3_8_3_2] V311 [mqtt311_3_8_3_3]);

fn cut_filters_are_refused(version: Version) {
    // No options byte; a length beyond the packet; half a length.
    for payload in [&prefixed("a")[..], &[0, 9, b'a', 0], &[0]] {
        send_payload(version, first::SUBSCRIBE, payload).expect_refused(BAD);
        if payload != prefixed("a") {
            send_payload(version, first::UNSUBSCRIBE, payload).expect_refused(BAD);
        }
    }
}
proves!(cut_filters_are_refused: V5 [mqtt5] V311 [mqtt311]);

fn reserved_option_bits_are_malformed(version: Version) {
    let reserved: &[u8] = match version {
        Version::V5 => &[0x40, 0x80, 0xC0],
        _ => &[0x03, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80],
    };
    for options in reserved {
        let payload = [prefixed("a"), vec![*options]].concat();
        send_payload(version, first::SUBSCRIBE, &payload).expect_refused(BAD);
    }
}
proves!(reserved_option_bits_are_malformed: V5 [mqtt_3_8_3_5] V311 [mqtt311_3_8_3_4]);

#[test]
fn qos_3_and_retain_handling_3_are_protocol_errors() {
    for options in [0x03, 0x30] {
        let payload = [prefixed("a"), vec![options]].concat();
        send_payload(Version::V5, first::SUBSCRIBE, &payload).expect_refused(&[PROTOCOL_ERROR]);
    }
}

#[test]
fn mqtt_3_8_3_3_no_local_keeps_own_messages_away() {
    let topic = fresh("local");
    let connect = Connect::new(Version::V5);
    let mut peer = connect.open();
    peer.subscribe(&topic, 1 | NO_LOCAL);
    peer.publish(Publish::new(&topic, "mine").qos(1));
    let mut other = Peer::connect(Version::V5);
    other.publish(Publish::new(&topic, "theirs").qos(1));
    assert_eq!(peer.take().payload, b"theirs");
    peer.expect_nothing_of_its_own();
    // Without the option a client gets what it publishes.
    peer.subscribe(&topic, 1);
    peer.publish(Publish::new(&topic, "mine").qos(1));
    assert_eq!(peer.take().payload, b"mine");
}

#[test]
fn mqtt_3_8_3_4_no_local_on_a_shared_subscription_is_a_protocol_error() {
    let filter = format!("$share/group/{}", fresh("local"));
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::subscribe(Version::V5, 1, &Props::new(), &[(filter, NO_LOCAL)]));
    peer.expect_refused(&[0x82]);
}

fn subscribe_is_answered_by_a_suback(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send(wire::subscribe(version, 5, &Props::new(), &[(fresh("suback"), 0)]));
    let acked = peer.recv().acks(first::SUBACK, version);
    assert_eq!((acked.packet_id, acked.reasons), (5, vec![0]));
    peer.ping();
}
proves!(subscribe_is_answered_by_a_suback:
    V5 [mqtt_3_8_4_1] V311 [mqtt311_3_8_4_1] V31 [mqtt31]);

fn same_filter_replaces_the_subscription(version: Version) {
    let topic = fresh("replace");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 2);
    peer.subscribe(&topic, 0);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    assert_eq!(peer.take().qos, 0);
    peer.expect_nothing_from(&mut publisher);
    peer.unsubscribe(&[&topic]);
    publisher.publish(Publish::new(&topic, "y"));
    peer.expect_nothing_from(&mut publisher);
}
proves!(same_filter_replaces_the_subscription:
    V5 [mqtt_3_8_4_3] V311 [mqtt311_3_8_4_3] V31 [mqtt31]);

#[test]
fn mqtt_3_8_4_3_replacing_replaces_identifier_and_options() {
    let topic = fresh("replace");
    let mut peer = Peer::connect(Version::V5);
    let identified = |id| Props::new().varint(prop::SUBSCRIPTION_ID, id);
    peer.subscribe_with(&identified(1), &[(topic.as_bytes(), NO_LOCAL)]);
    peer.subscribe_with(&identified(2), &[(topic.as_bytes(), 0)]);
    peer.publish(Publish::new(&topic, "x"));
    assert_eq!(peer.take().subscription_ids(), [2]);
    peer.subscribe(&topic, 0);
    peer.publish(Publish::new(&topic, "y"));
    assert_eq!(peer.take().subscription_ids(), [0; 0]);
}

fn retained_messages_come_again_when_replaced(version: Version) {
    let topic = fresh("replace");
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "kept").retain().qos(1));
    let mut peer = Peer::connect(version);
    for qos in [0, 1] {
        peer.subscribe(&topic, qos);
        let message = peer.take();
        assert_eq!((&message.payload[..], message.qos, message.retain), (&b"kept"[..], qos, true));
    }
    publisher.publish(Publish::new(&topic, "").retain());
}
proves!(retained_messages_come_again_when_replaced: V5 [mqtt_3_8_4_4] V311 [mqtt311_3_8_4_3]);

/// Publications must not get lost while a subscription is being replaced.
fn replacing_loses_nothing(version: Version) {
    let topic = fresh("replace");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(version);
    for round in 0..50u8 {
        let publish = Publish::new(&topic, [round]).qos(1).id(u16::from(round) + 1);
        publisher.send(publish.encoded(version));
        let filters = [(&topic, 1)];
        peer.send(wire::subscribe(version, u16::from(round) + 1, &Props::new(), &filters));
    }
    let (mut next, mut subacks) = (0, 0);
    while next < 50 || subacks < 50 {
        let packet = peer.recv();
        if packet.first == first::SUBACK {
            subacks += 1;
        } else {
            let message = packet.message(version);
            assert_eq!(message.payload, [next]);
            next += 1;
            peer.send(wire::ack(first::PUBACK, message.packet_id));
        }
    }
}
proves!(replacing_loses_nothing: V5 [mqtt_3_8_4_4] V311 [mqtt311_3_8_4_3]);

fn many_filters_in_one_subscribe(version: Version) {
    let topics = [fresh("many"), fresh("many"), fresh("many")];
    let mut peer = Peer::connect(version);
    let filters: Vec<_> = topics.iter().map(|topic| (topic.as_bytes(), 1)).collect();
    assert_eq!(peer.subscribe_with(&Props::new(), &filters).reasons, [1, 1, 1]);
    let mut publisher = Peer::connect(version);
    for topic in &topics {
        publisher.publish(Publish::new(topic, "x").qos(1));
        assert_eq!(&peer.take().topic, topic);
    }
    peer.ping();
}
proves!(many_filters_in_one_subscribe:
    V5 [mqtt_3_8_4_5] V311 [mqtt311_3_8_4_4] V31 [mqtt31]);

fn suback_has_a_reason_per_filter_in_order(version: Version) {
    let topic = fresh("order");
    let mut peer = Peer::connect(version);
    let filters: [(&[u8], u8); 4] =
        [(topic.as_bytes(), 2), (b"order/a", 0), (b"order/+/b", 1), (b"order/c/#", 2)];
    assert_eq!(peer.subscribe_with(&Props::new(), &filters).reasons, [2, 0, 1, 2]);
}
proves!(suback_has_a_reason_per_filter_in_order:
    V5 [mqtt_3_8_4_6 mqtt_3_8_4_7 mqtt_3_9_3_1]
    V311 [mqtt311_3_8_4_5 mqtt311_3_9_3_1]
    V31 [mqtt31]);

/// A filter that cannot be granted among others that can: told in its place, or refused whole.
#[test]
fn mqtt_3_9_3_2_reasons_of_a_suback_are_those_of_the_standard() {
    let mut peer = Peer::connect(Version::V5);
    let topic = fresh("suback");
    let filters = [(topic.clone(), 1), (format!("{topic}/#/x"), 0), (format!("{topic}/+"), 2)];
    peer.send(wire::subscribe(Version::V5, 1, &Props::new(), &filters));
    let packet = peer.recv_or_end();
    match packet.filter(|packet| packet.first == first::SUBACK) {
        Some(suback) => {
            let reasons = suback.acks(first::SUBACK, Version::V5).reasons;
            assert_eq!(reasons, [1, 0x8F, 2]);
        }
        None => peer.expect_closed(),
    }
}

fn failure_code_of_a_suback(version: Version) {
    let mut peer = Peer::connect(version);
    let topic = fresh("suback");
    let filters = [(topic.clone(), 1), (format!("{topic}/#/x"), 0)];
    peer.send(wire::subscribe(version, 1, &Props::new(), &filters));
    if let Some(packet) = peer.recv_or_end() {
        assert_eq!(packet.acks(first::SUBACK, version).reasons, [1, 0x80]);
    }
}
proves!(failure_code_of_a_suback: V311 [mqtt311_3_9_3_2]);

fn delivered_qos_is_the_lesser_of_both(version: Version) {
    for granted in 0..3 {
        let topic = fresh("qos");
        let mut peer = Peer::connect(version);
        peer.subscribe(&topic, granted);
        let mut publisher = Peer::connect(version);
        for published in 0..3 {
            publisher.publish(Publish::new(&topic, "x").qos(published));
            assert_eq!(peer.take().qos, granted.min(published));
        }
    }
}
proves!(delivered_qos_is_the_lesser_of_both:
    V5 [mqtt_3_8_4_8] V311 [mqtt311_3_8_4_6] V31 [mqtt31]);

fn small_subacks_and_unsubacks(first: u8) {
    let props = Props::new().four(prop::PACKET_BYTES_MAX, 20);
    let mut peer = Connect::new(Version::V5).props(props).open();
    match first {
        first::SUBACK => {
            let filters = [("$SYS/not/for/you", 0), ("a/b", 1)];
            peer.send(wire::subscribe(Version::V5, 1, &Props::new(), &filters));
        }
        _ => peer.send(wire::unsubscribe(Version::V5, 1, &["not/subscribed", "a/b"])),
    }
    let packet = peer.recv();
    assert!(packet.packet_bytes() <= 20, "{packet:02x?}");
    assert_eq!(packet.acks(first, Version::V5).reasons.len(), 2);
}

fn subacks_fit_the_packet_size_of_the_client(_: Version) {
    small_subacks_and_unsubacks(first::SUBACK);
}
proves!(subacks_fit_the_packet_size_of_the_client: V5 [mqtt_3_9_2_1 mqtt_3_9_2_2]);

fn unsubacks_fit_the_packet_size_of_the_client(_: Version) {
    small_subacks_and_unsubacks(first::UNSUBACK);
}
proves!(unsubacks_fit_the_packet_size_of_the_client: V5 [mqtt_3_11_2_1 mqtt_3_11_2_2]);

#[test]
fn bad_subscription_identifiers_are_refused() {
    let zero = Props::new().varint(prop::SUBSCRIPTION_ID, 0);
    let twice = Props::new().varint(prop::SUBSCRIPTION_ID, 1).varint(prop::SUBSCRIPTION_ID, 2);
    for props in [zero, twice] {
        let mut peer = Peer::connect(Version::V5);
        peer.send(wire::subscribe(Version::V5, 1, &props, &[("a", 0)]));
        peer.expect_refused(&[PROTOCOL_ERROR]);
    }
}

fn filters_of_an_unsubscribe_must_be_utf8(version: Version) {
    let payload = prefixed(b"a/\xFF");
    send_payload(version, first::UNSUBSCRIBE, &payload).expect_refused(&[0x81, 0x82, 0x8F]);
}
proves!(filters_of_an_unsubscribe_must_be_utf8: V5 [mqtt_3_10_3_1] V311 [mqtt311_3_10_3_1]);

fn unsubscribe_without_filters_is_refused(version: Version) {
    send_payload(version, first::UNSUBSCRIBE, &[]).expect_refused(&[PROTOCOL_ERROR]);
}
proves!(unsubscribe_without_filters_is_refused: V5 [mqtt_3_10_3_2] V311 [mqtt311_3_10_3_2]);

fn unsubscribe_compares_character_by_character(version: Version) {
    let topic = fresh("unsub");
    let mut peer = Peer::connect(version);
    peer.subscribe(format!("{topic}/+"), 0);
    peer.subscribe(format!("{topic}/a"), 0);
    // Filters that match the same topics, but are not the same filter.
    peer.unsubscribe(&[&format!("{topic}/#"), &format!("{topic}/A"), &format!("{topic}/b")]);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(format!("{topic}/b"), "by the wildcard"));
    assert_eq!(peer.take().payload, b"by the wildcard");
    peer.unsubscribe(&[&format!("{topic}/+")]);
    publisher.publish(Publish::new(format!("{topic}/b"), "by nothing"));
    publisher.publish(Publish::new(format!("{topic}/a"), "by its name"));
    assert_eq!(peer.take().payload, b"by its name");
    peer.expect_nothing_from(&mut publisher);
}
proves!(unsubscribe_compares_character_by_character:
    V5 [mqtt_3_10_4_1] V311 [mqtt311_3_10_4_1] V31 [mqtt31]);

fn unsubscribe_stops_new_messages(version: Version) {
    let topic = fresh("unsub");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 2);
    peer.unsubscribe(&[&topic]);
    let mut publisher = Peer::connect(version);
    for qos in 0..3 {
        publisher.publish(Publish::new(&topic, "x").qos(qos));
    }
    peer.expect_nothing_from(&mut publisher);
}
proves!(unsubscribe_stops_new_messages:
    V5 [mqtt_3_10_4_2] V311 [mqtt311_3_10_4_2] V31 [mqtt31]);

fn unsubscribe_completes_what_was_started(version: Version) {
    let topic = fresh("unsub");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 2);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "started").qos(2));
    let started = peer.recv_message();
    peer.unsubscribe(&[&topic]);
    peer.send(wire::ack(first::PUBREC, started.packet_id));
    assert_eq!(peer.expect_ack(first::PUBREL, started.packet_id), 0);
    peer.send(wire::ack(first::PUBCOMP, started.packet_id));
    peer.ping();
}
proves!(unsubscribe_completes_what_was_started: V5 [mqtt_3_10_4_3] V311 [mqtt311_3_10_4_3]);

fn unsubscribe_is_answered_by_an_unsuback(version: Version) {
    let topic = fresh("unsub");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 0);
    for _ in 0..2 {
        // The second time there is nothing to delete; the answer comes all the same.
        peer.send(wire::unsubscribe(version, 0x1234, &[&topic]));
        let packet = peer.recv();
        assert_eq!(packet.acks(first::UNSUBACK, version).packet_id, 0x1234);
        if version < Version::V5 {
            assert_eq!(packet.body.len(), 2, "an UNSUBACK has no payload before MQTT 5");
        }
    }
}
proves!(unsubscribe_is_answered_by_an_unsuback:
    V5 [mqtt_3_10_4_4 mqtt_3_10_4_5] V311 [mqtt311_3_10_4_4 mqtt311_3_10_4_5] V31 [mqtt31]);

fn many_filters_in_one_unsubscribe(version: Version) {
    let topics = [fresh("many"), fresh("many"), fresh("many")];
    let mut peer = Peer::connect(version);
    topics.iter().for_each(|topic| assert_eq!(peer.subscribe(topic, 1), 1));
    let filters: Vec<_> = topics.iter().map(String::as_str).collect();
    peer.unsubscribe(&filters);
    let mut publisher = Peer::connect(version);
    for topic in &topics {
        publisher.publish(Publish::new(topic, "x").qos(1));
    }
    peer.expect_nothing_from(&mut publisher);
    peer.ping();
}
proves!(many_filters_in_one_unsubscribe: V5 [mqtt_3_10_4_6] V311 [mqtt311_3_10_4_6]);

fn unsuback_has_a_reason_per_filter_in_order(_: Version) {
    let topics = [fresh("order"), fresh("order"), fresh("order")];
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topics[1], 0);
    let filters: Vec<_> = topics.iter().map(String::as_str).collect();
    // 0x11 says that there was no such subscription.
    assert_eq!(peer.unsubscribe(&filters).reasons, [0x11, 0x00, 0x11]);
}
proves!(unsuback_has_a_reason_per_filter_in_order: V5 [mqtt_3_11_3_1 mqtt_3_11_3_2]);

fn pingreq_is_answered(version: Version) {
    let mut peer = Peer::connect(version);
    peer.send([wire::pingreq(), wire::pingreq(), wire::pingreq()].concat());
    for _ in 0..3 {
        assert_eq!(peer.recv().first, first::PINGRESP);
    }
    peer.ping();
}
proves!(pingreq_is_answered:
    V5 [mqtt_3_12_4_1] V311 [mqtt311_3_12_4_1] V31 [mqtt31]);

/// A filter that is not allowed is told to the client or ends the connection, and never granted.
fn expect_filter_refused(version: Version, filter: &str) {
    let mut peer = Peer::connect(version);
    peer.send(wire::subscribe(version, 1, &Props::new(), &[(filter, 0)]));
    match peer.recv_or_end() {
        None => assert!(version < Version::V5 || !broker::is_ours(), "{filter}: not told why"),
        Some(packet) if packet.first == first::SUBACK => {
            let reason = packet.acks(first::SUBACK, version).reasons[0];
            let expected = if version == Version::V5 { 0x8F } else { 0x80 };
            assert_eq!(reason, expected, "{filter}");
        }
        Some(packet) => {
            let (reason, _) = packet.disconnect();
            assert!([0x81, 0x82, 0x8F].contains(&reason), "{filter}: {reason:#x}");
            peer.expect_closed();
        }
    }
}

fn misplaced_multi_level_wildcards_are_refused(version: Version) {
    for filter in ["a/#/b", "a#", "a/b#", "#/a", "##", "a/##", "#a"] {
        expect_filter_refused(version, filter);
    }
}
proves!(misplaced_multi_level_wildcards_are_refused:
    V5 [mqtt_4_7_1_1] V311 [mqtt311_4_7_1_2]);

fn misplaced_single_level_wildcards_are_refused(version: Version) {
    for filter in ["a+", "+a", "a/b+/c", "++", "a/+b"] {
        expect_filter_refused(version, filter);
    }
}
proves!(misplaced_single_level_wildcards_are_refused:
    V5 [mqtt_4_7_1_2] V311 [mqtt311_4_7_1_3]);

fn empty_filters_are_refused(version: Version) {
    expect_filter_refused(version, "");
}
proves!(empty_filters_are_refused: V5 [mqtt_4_7_3_1] V311 [mqtt311_4_7_3_1]);

fn share_names_must_be_there(version: Version) {
    for filter in ["$share//a", "$share/"] {
        expect_filter_refused(version, filter);
    }
}
proves!(share_names_must_be_there: V5 [mqtt_4_8_2_1]);

fn share_names_are_plain_and_followed_by_a_filter(version: Version) {
    for filter in ["$share/a+/b", "$share/a#/b", "$share/+/b", "$share/#", "$share/a", "$share/a/"]
    {
        expect_filter_refused(version, filter);
    }
}
proves!(share_names_are_plain_and_followed_by_a_filter: V5 [mqtt_4_8_2_2]);
