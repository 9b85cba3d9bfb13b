//! Retained messages.

use conformance::wire::prop;
use conformance::{Peer, Props, Publish, Version, fresh, proves};

/// A subscription option of MQTT 5; no other version has these bits.
const RETAIN_AS_PUBLISHED: u8 = 0x08;
const HANDLING_NEW_ONLY: u8 = 0x10;
const HANDLING_NEVER: u8 = 0x20;

fn clear(version: Version, topic: &str) {
    Peer::connect(version).publish(Publish::new(topic, "").retain().qos(1));
}

fn retain(version: Version, topic: &str, payload: &str, qos: u8) {
    Peer::connect(version).publish(Publish::new(topic, payload).retain().qos(qos));
}

fn retained_message_is_stored_and_replaced(version: Version) {
    let topic = fresh("retain");
    retain(version, &topic, "old", 1);
    retain(version, &topic, "new", 2);
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 2);
    let message = peer.take();
    assert_eq!((&message.payload[..], message.qos, message.retain), (&b"new"[..], 2, true));
    peer.expect_nothing_from(&mut Peer::connect(version));
    clear(version, &topic);
}
proves!(retained_message_is_stored_and_replaced:
    V5 [mqtt_3_3_1_5] V311 [mqtt311_3_3_1_5 mqtt311_3_3_1_8] V31 [mqtt31]);

fn new_subscriptions_get_every_match(version: Version) {
    let base = fresh("retain");
    for name in ["a", "b/c", "b/d"] {
        retain(version, &format!("{base}/{name}"), name, 1);
    }
    let mut peer = Peer::connect(version);
    peer.subscribe(format!("{base}/#"), 1);
    let mut arrived: Vec<_> = (0..3).map(|_| peer.take()).collect();
    arrived.sort_by(|a, b| a.topic.cmp(&b.topic));
    for (message, name) in arrived.iter().zip(["a", "b/c", "b/d"]) {
        assert_eq!((&message.payload[..], message.retain), (name.as_bytes(), true));
        clear(version, &message.topic);
    }
}
proves!(new_subscriptions_get_every_match:
    V5 [mqtt_3_3_1_9] V311 [mqtt311_3_3_1_6] V31 [mqtt31]);

/// A server may drop a retained QoS 0 message at any time; one that it keeps is the last one.
fn qos_0_replaces_an_older_retained_message(version: Version) {
    let topic = fresh("retain");
    retain(version, &topic, "old", 1);
    retain(version, &topic, "new", 0);
    let mut publisher = Peer::connect(version);
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    publisher.publish(Publish::new(&topic, "live"));
    let first = peer.take();
    assert_ne!(first.payload, b"old", "replaced by the QoS 0 message");
    clear(version, &topic);
}
proves!(qos_0_replaces_an_older_retained_message: V5 [mqtt_3_3_1_5] V311 [mqtt311_3_3_1_7]);

fn retain_is_0_for_an_existing_subscription(version: Version) {
    let topic = fresh("retain");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    retain(version, &topic, "x", 1);
    assert!(!peer.take().retain);
    clear(version, &topic);
}
proves!(retain_is_0_for_an_existing_subscription:
    V5 [mqtt_3_3_1_12] V311 [mqtt311_3_3_1_9] V31 [mqtt31]);

fn empty_payload_removes_the_retained_message(version: Version) {
    let topic = fresh("retain");
    retain(version, &topic, "x", 1);
    let mut existing = Peer::connect(version);
    existing.subscribe(&topic, 1);
    assert_eq!(existing.take().payload, b"x");
    clear(version, &topic);
    // It is delivered like any other message to those who have subscribed already.
    let message = existing.take();
    assert_eq!((&message.payload[..], message.retain), (&b""[..], false));
    let mut late = Peer::connect(version);
    late.subscribe(&topic, 1);
    late.expect_nothing_from(&mut existing);
}
proves!(empty_payload_removes_the_retained_message:
    V5 [mqtt_3_3_1_6] V311 [mqtt311_3_3_1_10] V31 [mqtt31]);

fn empty_payload_is_not_stored(version: Version) {
    let topic = fresh("retain");
    clear(version, &topic);
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    peer.expect_nothing_from(&mut Peer::connect(version));
}
proves!(empty_payload_is_not_stored: V5 [mqtt_3_3_1_7] V311 [mqtt311_3_3_1_11]);

fn messages_without_retain_do_not_touch_the_retained_one(version: Version) {
    let topic = fresh("retain");
    retain(version, &topic, "kept", 1);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "passing").qos(1));
    publisher.publish(Publish::new(&topic, "").qos(1));
    let never = fresh("retain");
    publisher.publish(Publish::new(&never, "passing").qos(1));
    let mut peer = Peer::connect(version);
    peer.subscribe(&never, 1);
    peer.subscribe(&topic, 1);
    assert_eq!(peer.take().payload, b"kept");
    peer.expect_nothing_from(&mut publisher);
    clear(version, &topic);
}
proves!(messages_without_retain_do_not_touch_the_retained_one:
    V5 [mqtt_3_3_1_8] V311 [mqtt311_3_3_1_12]);

#[test]
fn mqtt_3_3_1_9_handling_0_sends_at_every_subscribe() {
    let topic = fresh("retain");
    retain(Version::V5, &topic, "x", 1);
    let mut peer = Peer::connect(Version::V5);
    for _ in 0..2 {
        peer.subscribe(&topic, 1);
        assert_eq!(peer.take().payload, b"x");
    }
    clear(Version::V5, &topic);
}

#[test]
fn mqtt_3_3_1_10_handling_1_sends_to_new_subscriptions_only() {
    let topic = fresh("retain");
    retain(Version::V5, &topic, "x", 1);
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1 | HANDLING_NEW_ONLY);
    assert_eq!(peer.take().payload, b"x");
    peer.subscribe(&topic, HANDLING_NEW_ONLY);
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "live"));
    assert_eq!(peer.take().payload, b"live");
    peer.unsubscribe(&[&topic]);
    peer.subscribe(&topic, 1 | HANDLING_NEW_ONLY);
    assert_eq!(peer.take().payload, b"x");
    clear(Version::V5, &topic);
}

#[test]
fn mqtt_3_3_1_11_handling_2_sends_nothing_retained() {
    let topic = fresh("retain");
    retain(Version::V5, &topic, "x", 1);
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1 | HANDLING_NEVER);
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "live"));
    assert_eq!(peer.take().payload, b"live");
    // Only now is it asked for, and it comes once.
    peer.subscribe(&topic, 1);
    assert_eq!(peer.take().payload, b"x");
    peer.expect_nothing_from(&mut publisher);
    clear(Version::V5, &topic);
}

#[test]
fn retain_handling_3_is_a_protocol_error() {
    let mut peer = Peer::connect(Version::V5);
    let filters = [(fresh("retain"), 0x30)];
    peer.send(conformance::wire::subscribe(Version::V5, 1, &Props::new(), &filters));
    peer.expect_refused(&[0x81, 0x82]);
}

#[test]
fn mqtt_3_3_1_12_retain_is_cleared_without_retain_as_published() {
    let topic = fresh("retain");
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "with").retain());
    publisher.publish(Publish::new(&topic, "without"));
    assert!(!peer.take().retain);
    assert!(!peer.take().retain);
    clear(Version::V5, &topic);
}

#[test]
fn mqtt_3_3_1_13_retain_is_passed_on_with_retain_as_published() {
    let topic = fresh("retain");
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1 | RETAIN_AS_PUBLISHED);
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "with").retain());
    publisher.publish(Publish::new(&topic, "without"));
    assert!(peer.take().retain);
    assert!(!peer.take().retain);
    clear(Version::V5, &topic);
}

#[test]
fn retained_messages_keep_their_properties() {
    let topic = fresh("retain");
    let props = Props::new()
        .bytes(prop::CONTENT_TYPE, "text/plain")
        .user("a", "b")
        .bytes(prop::CORRELATION_DATA, [1, 2])
        .byte(prop::PAYLOAD_FORMAT, 1);
    let publish = Publish::new(&topic, "x").retain().qos(1).props(props);
    Peer::connect(Version::V5).publish(publish);
    let mut peer = Peer::connect(Version::V5);
    let identified = Props::new().varint(prop::SUBSCRIPTION_ID, 77);
    peer.subscribe_with(&identified, &[(topic.as_bytes(), 1)]);
    let message = peer.take();
    assert_eq!(message.bytes(prop::CONTENT_TYPE).as_deref(), Some(&b"text/plain"[..]));
    assert_eq!(message.users(), [("a".to_owned(), "b".to_owned())]);
    assert_eq!(message.bytes(prop::CORRELATION_DATA), Some(vec![1, 2]));
    assert_eq!(message.int(prop::PAYLOAD_FORMAT), Some(1));
    assert_eq!(message.subscription_ids(), [77]);
    clear(Version::V5, &topic);
}

#[test]
fn retained_message_expires() {
    let topic = fresh("retain");
    let props = Props::new().four(prop::MESSAGE_EXPIRY, 1);
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "short").retain().qos(1).props(props));
    std::thread::sleep(std::time::Duration::from_millis(2500));
    let mut peer = Peer::connect(Version::V5);
    peer.subscribe(&topic, 1);
    peer.expect_nothing_from(&mut publisher);
}

/// Properties of MQTT 5 do not reach older clients, but the message does.
#[test]
fn retained_message_crosses_versions() {
    let topic = fresh("retain");
    let props = Props::new().user("a", "b").four(prop::MESSAGE_EXPIRY, 100);
    Peer::connect(Version::V5).publish(Publish::new(&topic, "x").retain().qos(1).props(props));
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut peer = Peer::connect(version);
        peer.subscribe(&topic, 1);
        assert_eq!(peer.take().payload, b"x");
    }
    clear(Version::V5, &topic);
}
