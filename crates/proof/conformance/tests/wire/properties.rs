//! Properties of a PUBLISH: passed on as they came, topic aliases, expiry, sizes.

use std::thread::sleep;
use std::time::Duration;

use conformance::wire::{self, first, prop};
use conformance::{Connect, Message, Peer, Props, Publish, Version, fresh, proves};

const BAD: &[u8] = &[0x81, 0x82];

/// What a subscriber gets of a message with these properties.
fn forwarded(props: Props) -> Message {
    let topic = fresh("forward");
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1);
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x").qos(1).props(props));
    peer.take()
}

fn expect_publish_refused(props: Props, reasons: &[u8]) {
    let mut peer = Peer::connect(Version::V5);
    peer.send(Publish::new(fresh("refused"), "x").props(props).encoded(Version::V5));
    peer.expect_refused(reasons);
}

#[test]
fn mqtt_3_3_2_4_payload_format_is_unaltered() {
    for format in [0, 1] {
        let message = forwarded(Props::new().byte(prop::PAYLOAD_FORMAT, format));
        assert_eq!(message.int(prop::PAYLOAD_FORMAT), Some(u32::from(format)));
    }
    assert_eq!(forwarded(Props::new()).int(prop::PAYLOAD_FORMAT), None);
    expect_publish_refused(Props::new().byte(prop::PAYLOAD_FORMAT, 2), BAD);
}

#[test]
fn mqtt_3_3_2_5_expired_messages_are_not_delivered() {
    let topic = fresh("expired");
    let connect = Connect::new(Version::V5).persistent();
    let mut peer = connect.open();
    peer.subscribe(&topic, 1);
    peer.vanish();
    let mut publisher = Peer::connect(Version::V5);
    let expiring = Props::new().four(prop::MESSAGE_EXPIRY, 1);
    publisher.publish(Publish::new(&topic, "short").qos(1).props(expiring));
    publisher.publish(Publish::new(&topic, "long").qos(1));
    sleep(Duration::from_millis(2500));
    let mut peer = connect.open();
    assert_eq!(peer.take().payload, b"long");
    peer.expect_nothing_from(&mut publisher);
}

#[test]
fn mqtt_3_3_2_6_expiry_is_passed_on_without_the_time_spent_waiting() {
    let topic = fresh("expiry");
    let connect = Connect::new(Version::V5).persistent();
    let mut peer = connect.open();
    peer.subscribe(&topic, 1);
    peer.vanish();
    let props = Props::new().four(prop::MESSAGE_EXPIRY, 1000);
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x").qos(1).props(props));
    sleep(Duration::from_millis(2500));
    let secs = connect.open().take().int(prop::MESSAGE_EXPIRY).expect("an expiry");
    assert!((900..=998).contains(&secs), "{secs} s are left of 1000 after more than 2 s");
}

#[test]
fn mqtt_3_3_2_6_expiry_of_a_message_that_did_not_wait_is_whole() {
    let message = forwarded(Props::new().four(prop::MESSAGE_EXPIRY, 100_000));
    let secs = message.int(prop::MESSAGE_EXPIRY).expect("an expiry");
    assert!((99_900..=100_000).contains(&secs), "{secs}");
}

#[test]
fn mqtt_3_3_2_15_response_topic_is_unaltered() {
    let message = forwarded(Props::new().bytes(prop::RESPONSE_TOPIC, "answers/to//me ä"));
    assert_eq!(message.bytes(prop::RESPONSE_TOPIC).as_deref(), Some("answers/to//me ä".as_bytes()));
}

#[test]
fn mqtt_3_3_2_13_response_topic_must_be_utf8() {
    expect_publish_refused(Props::new().bytes(prop::RESPONSE_TOPIC, b"\xFF"), BAD);
}

#[test]
fn mqtt_3_3_2_14_response_topic_must_not_have_wildcards() {
    for topic in ["a/#", "+"] {
        expect_publish_refused(
            Props::new().bytes(prop::RESPONSE_TOPIC, topic),
            &[0x81, 0x82, 0x90],
        );
    }
}

#[test]
fn mqtt_3_3_2_16_correlation_data_is_unaltered() {
    let data: Vec<u8> = (0..=255).collect();
    let message = forwarded(Props::new().bytes(prop::CORRELATION_DATA, &data));
    assert_eq!(message.bytes(prop::CORRELATION_DATA), Some(data));
    let message = forwarded(Props::new().bytes(prop::CORRELATION_DATA, ""));
    assert_eq!(message.bytes(prop::CORRELATION_DATA), Some(Vec::new()));
}

fn user_properties_are_unaltered_and_in_order(_: Version) {
    let pairs = [("b", "1"), ("a", "2"), ("b", "1"), ("", ""), ("ä", "π"), ("a", "0")];
    let props = pairs.iter().fold(Props::new(), |props, (name, value)| props.user(name, value));
    let arrived = forwarded(props).users();
    let arrived: Vec<_> = arrived.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(arrived, pairs);
}
proves!(user_properties_are_unaltered_and_in_order: V5 [mqtt_3_3_2_17 mqtt_3_3_2_18]);

#[test]
fn mqtt_3_3_2_19_content_type_must_be_utf8() {
    expect_publish_refused(Props::new().bytes(prop::CONTENT_TYPE, b"text/\xC3"), BAD);
}

#[test]
fn mqtt_3_3_2_20_content_type_is_unaltered() {
    let message = forwarded(Props::new().bytes(prop::CONTENT_TYPE, "any thing/at all"));
    assert_eq!(message.bytes(prop::CONTENT_TYPE).as_deref(), Some(&b"any thing/at all"[..]));
}

#[test]
fn properties_twice_are_a_protocol_error() {
    let twice = [
        Props::new().byte(prop::PAYLOAD_FORMAT, 1).byte(prop::PAYLOAD_FORMAT, 1),
        Props::new().four(prop::MESSAGE_EXPIRY, 1).four(prop::MESSAGE_EXPIRY, 1),
        Props::new().bytes(prop::CONTENT_TYPE, "a").bytes(prop::CONTENT_TYPE, "a"),
        Props::new().bytes(prop::RESPONSE_TOPIC, "a").bytes(prop::RESPONSE_TOPIC, "a"),
        Props::new().bytes(prop::CORRELATION_DATA, "a").bytes(prop::CORRELATION_DATA, "a"),
        Props::new().two(prop::TOPIC_ALIAS, 1).two(prop::TOPIC_ALIAS, 1),
    ];
    twice.into_iter().for_each(|props| expect_publish_refused(props, BAD));
}

#[test]
fn properties_of_other_packets_are_refused() {
    let foreign = [
        Props::new().four(prop::SESSION_EXPIRY, 1),
        Props::new().bytes(prop::REASON_STRING, "x"),
        Props::new().two(prop::RECEIVE_MAX, 1),
        Props::new().four(prop::WILL_DELAY, 1),
        Props::new().byte(0x2B, 1),
        Props::new().byte(0x00, 1),
    ];
    foreign.into_iter().for_each(|props| expect_publish_refused(props, BAD));
}

/// The largest alias that the server takes from a client.
fn alias_max(peer: &Peer) -> u16 {
    peer.connack().int(prop::TOPIC_ALIAS_MAX).unwrap_or(0) as u16
}

#[test]
fn mqtt_3_3_2_12_every_alias_up_to_the_maximum_is_taken() {
    let base = fresh("alias");
    let mut watcher = Peer::connect(Version::V5);
    watcher.subscribe(format!("{base}/#"), 0);
    let mut peer = Peer::connect(Version::V5);
    let aliases: Vec<u16> = (1..=alias_max(&peer)).collect();
    for alias in &aliases {
        let props = Props::new().two(prop::TOPIC_ALIAS, *alias);
        peer.publish(Publish::new(format!("{base}/{alias}"), "first").props(props));
        assert_eq!(watcher.take().topic, format!("{base}/{alias}"));
    }
    for alias in aliases.iter().rev() {
        let props = Props::new().two(prop::TOPIC_ALIAS, *alias);
        peer.publish(Publish::new("", "again").props(props));
        let message = watcher.take();
        assert_eq!(message.int(prop::TOPIC_ALIAS), None);
        assert_eq!(message.topic, format!("{base}/{alias}"));
    }
    // An alias can be given to another topic.
    if alias_max(&peer) > 0 {
        let props = Props::new().two(prop::TOPIC_ALIAS, 1);
        peer.publish(Publish::new(format!("{base}/moved"), "x").props(props.clone()));
        peer.publish(Publish::new("", "y").props(props));
        assert_eq!(watcher.take().topic, format!("{base}/moved"));
        assert_eq!(watcher.take().topic, format!("{base}/moved"));
    }
}

#[test]
fn mqtt_3_3_2_7_aliases_end_with_their_connection() {
    let topic = fresh("alias");
    let connect = Connect::new(Version::V5).persistent();
    let mut peer = connect.open();
    if alias_max(&peer) == 0 {
        return;
    }
    let props = Props::new().two(prop::TOPIC_ALIAS, 1);
    peer.publish(Publish::new(&topic, "x").qos(1).props(props.clone()));
    peer.disconnect();
    let mut peer = connect.open();
    peer.send(Publish::new("", "x").props(props).encoded(Version::V5));
    peer.expect_refused(&[0x82, 0x94]);
}

#[test]
fn mqtt_3_3_2_8_alias_zero_is_refused() {
    expect_publish_refused(Props::new().two(prop::TOPIC_ALIAS, 0), &[0x94, 0x82, 0x81]);
}

fn alias_beyond_the_maximum_is_refused(_: Version) {
    let max = alias_max(&Peer::connect(Version::V5));
    let beyond = max.checked_add(1).expect("a server with a smaller alias maximum");
    expect_publish_refused(Props::new().two(prop::TOPIC_ALIAS, beyond), &[0x94, 0x82]);
}
proves!(alias_beyond_the_maximum_is_refused: V5 [mqtt_3_3_2_9 mqtt_3_2_2_17 mqtt_3_2_2_18]);

/// Every delivery of a few topics, each several times, to a client with this alias maximum.
fn aliases_that_arrive(alias_max: Option<u16>) -> Vec<Option<u32>> {
    let base = fresh("alias");
    let props = alias_max.map(|max| Props::new().two(prop::TOPIC_ALIAS_MAX, max));
    let mut peer = Connect::new(Version::V5).props(props.unwrap_or_default()).open();
    peer.subscribe(format!("{base}/#"), 0);
    let mut publisher = Peer::connect(Version::V5);
    let mut known = std::collections::HashMap::new();
    let mut arrived = Vec::new();
    for round in 0..4 {
        for name in ["a", "b", "c", "d"] {
            publisher.publish(Publish::new(format!("{base}/{name}"), [round]));
            let message = peer.take();
            let alias = message.int(prop::TOPIC_ALIAS);
            let topic = if message.topic.is_empty() {
                let alias = alias.expect("an empty topic comes with an alias");
                known.get(&alias).cloned().expect("an alias that was given a topic before")
            } else {
                message.topic
            };
            assert_eq!(topic, format!("{base}/{name}"));
            alias.map(|alias| known.insert(alias, topic));
            arrived.push(alias);
        }
    }
    arrived
}

#[test]
fn mqtt_3_1_2_26_server_keeps_to_the_alias_maximum_of_the_client() {
    keeps_to_the_alias_maximum();
}

#[test]
fn mqtt_3_3_2_11_server_keeps_to_the_alias_maximum_of_the_client() {
    keeps_to_the_alias_maximum();
}

fn keeps_to_the_alias_maximum() {
    for max in [1, 2, 10] {
        let arrived = aliases_that_arrive(Some(max));
        assert!(arrived.iter().flatten().all(|alias| (1..=u32::from(max)).contains(alias)));
    }
}

#[test]
fn mqtt_3_1_2_27_no_alias_for_a_client_that_takes_none() {
    assert!(aliases_that_arrive(None).iter().all(Option::is_none));
    assert!(aliases_that_arrive(Some(0)).iter().all(Option::is_none));
}

/// A subscriber that takes packets of 100 bytes, and what it gets at this QoS.
fn large_then_small(qos: u8) {
    let topic = fresh("size");
    let props = Props::new().four(prop::PACKET_BYTES_MAX, 100).two(prop::RECEIVE_MAX, 1);
    let mut peer = Connect::new(Version::V5).props(props).open();
    peer.subscribe(&topic, qos);
    let mut publisher = Peer::connect(Version::V5);
    let overhead = Publish::new(&topic, "").qos(qos).encoded(Version::V5).len();
    let fits = vec![b's'; 100 - overhead];
    for payload in [&[b'l'; 101][..], &[b'l'; 5000], &fits, &[b'l'; 1000], b"small"] {
        publisher.publish(Publish::new(&topic, payload).qos(qos));
    }
    assert_eq!(peer.take().payload, fits);
    assert_eq!(peer.take().payload, b"small");
    peer.expect_nothing_from(&mut publisher);
}

#[test]
fn mqtt_3_1_2_24_no_packet_beyond_the_clients_maximum() {
    large_then_small(0);
}

/// Receive Maximum is 1: a discarded message that still counted would stop the rest.
#[test]
fn mqtt_3_1_2_25_too_large_a_message_is_done_with() {
    large_then_small(1);
    large_then_small(2);
}

#[test]
fn mqtt_3_1_2_29_no_problem_information_unless_wanted() {
    let props = Props::new().byte(prop::REQUEST_PROBLEM_INFO, 0);
    let mut peer = Connect::new(Version::V5).props(props).open();
    let none = |props: &conformance::received::Received| {
        props.iter().all(|(id, _)| ![prop::REASON_STRING, prop::USER].contains(id))
    };
    // Everything that might be worth a reason: a bad filter, an unknown filter, an unknown id.
    peer.send(wire::subscribe(Version::V5, 1, &Props::new(), &[("$share/x", 0), ("a/b", 0)]));
    let packet = peer.recv_or_end();
    if let Some(packet) = packet.filter(|packet| packet.first == first::SUBACK) {
        assert!(none(&packet.acks(first::SUBACK, Version::V5).props));
    } else {
        peer = Peer::connect(Version::V5);
    }
    peer.send(wire::unsubscribe(Version::V5, 2, &[fresh("unknown")]));
    assert!(none(&peer.recv().acks(first::UNSUBACK, Version::V5).props));
    peer.send(wire::ack(first::PUBREL, 99));
    assert!(none(&peer.recv().ack(first::PUBCOMP, Version::V5).props));
    peer.send(Publish::new(fresh("nobody"), "x").qos(1).id(9).encoded(Version::V5));
    assert!(none(&peer.recv().ack(first::PUBACK, Version::V5).props));
    peer.send(Publish::new(fresh("nobody"), "x").qos(2).id(10).encoded(Version::V5));
    assert!(none(&peer.recv().ack(first::PUBREC, Version::V5).props));
}
