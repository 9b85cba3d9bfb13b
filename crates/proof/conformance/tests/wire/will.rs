//! Wills: when they are published, when they are not, and as what.

use conformance::wire::{self, first, packet, prop};
use conformance::{Connect, Peer, Props, Publish, Version, Will, fresh, fresh_client, proves};

/// A client that waits for the wills on a topic.
fn watcher(version: Version, topic: &str) -> Peer {
    let mut peer = Peer::connect(version);
    peer.subscribe(topic, 2);
    peer
}

fn will_is_published_when_the_connection_breaks(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    Connect::new(version).will(Will::new(&topic, "gone")).open().vanish();
    let will = watcher.take();
    assert_eq!((will.topic, &will.payload[..], will.retain), (topic, &b"gone"[..], false));
}
proves!(will_is_published_when_the_connection_breaks:
    V5 [mqtt_3_1_2_7 mqtt_3_1_2_8] V311 [mqtt311_3_1_2_8] V31 [mqtt31]);

fn will_is_published_after_a_protocol_error(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    let mut peer = Connect::new(version).will(Will::new(&topic, "misbehaved")).open();
    peer.send(packet(first::PUBLISH | 0x06, [0, 1, b'a', 0, 1]));
    peer.expect_refused(&[0x81]);
    assert_eq!(watcher.take().payload, b"misbehaved");
}
proves!(will_is_published_after_a_protocol_error: V5 [mqtt_3_1_2_8] V311 [mqtt311_3_1_2_8]);

fn will_is_published_at_its_qos(version: Version) {
    for qos in 0..3 {
        let topic = fresh("will");
        let mut watcher = watcher(version, &topic);
        Connect::new(version).will(Will::new(&topic, "gone").qos(qos)).open().vanish();
        assert_eq!(watcher.take().qos, qos);
    }
}
proves!(will_is_published_at_its_qos:
    V5 [mqtt_3_1_2_9] V311 [mqtt311_3_1_2_9] V31 [mqtt31]);

fn will_is_published_once(version: Version) {
    let topic = fresh("will");
    let client = fresh_client();
    let mut watcher = watcher(version, &topic);
    Connect::new(version).id(&client).will(Will::new(&topic, "once")).open().vanish();
    assert_eq!(watcher.take().payload, b"once");
    Connect::new(version).id(&client).open().vanish();
    watcher.expect_nothing_from(&mut Connect::new(version).id(&client).open());
}
proves!(will_is_published_once:
    V5 [mqtt_3_1_2_10] V311 [mqtt311_3_1_2_10 mqtt311_3_1_2_12]);

fn will_is_discarded_by_disconnect(version: Version) {
    let topic = fresh("will");
    let client = fresh_client();
    let mut watcher = watcher(version, &topic);
    Connect::new(version).id(&client).will(Will::new(&topic, "never")).open().disconnect();
    watcher.expect_nothing_from(&mut Connect::new(version).id(&client).open());
}
proves!(will_is_discarded_by_disconnect:
    V5 [mqtt_3_14_4_3 mqtt_3_1_2_10] V311 [mqtt311_3_14_4_3] V31 [mqtt31]);

#[test]
fn mqtt_3_1_2_8_disconnect_with_will_publishes_it() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    let peer = Connect::new(Version::V5).will(Will::new(&topic, "goodbye")).open();
    peer.disconnect_with(0x04, &Props::new());
    assert_eq!(watcher.take().payload, b"goodbye");
}

fn will_without_retain_is_not_kept(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    Connect::new(version).will(Will::new(&topic, "live only")).open().vanish();
    watcher.take();
    let mut late = Peer::connect(version);
    late.subscribe(&topic, 0);
    late.expect_nothing_from(&mut watcher);
}
proves!(will_without_retain_is_not_kept: V5 [mqtt_3_1_2_14] V311 [mqtt311_3_1_2_16]);

fn will_with_retain_is_kept(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    Connect::new(version).will(Will::new(&topic, "kept").qos(1).retain()).open().vanish();
    assert!(!watcher.take().retain, "retain for an existing subscription");
    let mut late = Peer::connect(version);
    late.subscribe(&topic, 1);
    let will = late.take();
    assert_eq!((&will.payload[..], will.retain, will.qos), (&b"kept"[..], true, 1));
    late.publish(Publish::new(&topic, "").retain());
}
proves!(will_with_retain_is_kept:
    V5 [mqtt_3_1_2_15] V311 [mqtt311_3_1_2_17] V31 [mqtt31]);

fn empty_will_payload_is_a_message(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    Connect::new(version).will(Will::new(&topic, "")).open().vanish();
    assert_eq!(watcher.take().payload, b"");
}
proves!(empty_will_payload_is_a_message: V5 [mqtt5] V311 [mqtt311]);

#[test]
fn mqtt_3_1_3_9_new_connection_before_the_delay_cancels_the_will() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    // Enough for a busy machine to come back in time.
    let props = Props::new().four(prop::WILL_DELAY, 5);
    let will = Will::new(&topic, "too late").props(props);
    let connect = Connect::new(Version::V5).persistent().will(will);
    connect.open().vanish();
    let mut back = Connect::new(Version::V5).id(&connect.client_id).persistent().open();
    // Longer than the delay: now is when the will would have come.
    std::thread::sleep(std::time::Duration::from_secs(6));
    watcher.expect_nothing_from(&mut back);
}

#[test]
fn mqtt_3_1_2_8_will_comes_after_its_delay() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    // Enough for a busy machine to see that it does not come at once.
    let props = Props::new().four(prop::WILL_DELAY, 5);
    let will = Will::new(&topic, "after the delay").props(props);
    Connect::new(Version::V5).persistent().will(will).open().vanish();
    watcher.expect_nothing_from(&mut Peer::connect(Version::V5));
    assert_eq!(watcher.take().payload, b"after the delay");
}

#[test]
fn mqtt_3_1_2_8_will_comes_at_the_end_of_the_session_if_that_is_earlier() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    let props = Props::new().four(prop::WILL_DELAY, 3600);
    let will = Will::new(&topic, "session over").props(props);
    let connect = Connect::new(Version::V5).session_expiry(1).will(will);
    connect.open().vanish();
    assert_eq!(watcher.take().payload, b"session over");
}

#[test]
fn mqtt_3_1_2_8_clean_start_ends_the_session_and_so_publishes_the_will() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    let props = Props::new().four(prop::WILL_DELAY, 3600);
    let will = Will::new(&topic, "session over").props(props);
    let connect = Connect::new(Version::V5).persistent().will(will);
    connect.open().vanish();
    let fresh_start = Connect::new(Version::V5).id(&connect.client_id);
    let _peer = fresh_start.open();
    assert_eq!(watcher.take().payload, b"session over");
}

fn takeover_publishes_the_will(version: Version) {
    let topic = fresh("will");
    let mut watcher = watcher(version, &topic);
    let connect = Connect::new(version).will(Will::new(&topic, "taken over"));
    let mut older = connect.open();
    let _newer = Connect::new(version).id(&connect.client_id).open();
    older.expect_refused(&[0x8E]);
    assert_eq!(watcher.take().payload, b"taken over");
}
proves!(takeover_publishes_the_will: V5 [mqtt5] V311 [mqtt311]);

#[test]
fn mqtt_3_1_3_10_user_properties_of_a_will_keep_their_order() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    let props = Props::new()
        .user("z", "1")
        .bytes(prop::CONTENT_TYPE, "text/plain")
        .user("a", "2")
        .byte(prop::PAYLOAD_FORMAT, 1)
        .user("z", "1")
        .bytes(prop::RESPONSE_TOPIC, "answer/here")
        .bytes(prop::CORRELATION_DATA, b"\x00\x01")
        .four(prop::MESSAGE_EXPIRY, 1000);
    let will = Will::new(&topic, "gone").props(props);
    Connect::new(Version::V5).will(will).open().vanish();
    let will = watcher.take();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(will.users(), [pair("z", "1"), pair("a", "2"), pair("z", "1")]);
    assert_eq!(will.bytes(prop::CONTENT_TYPE).as_deref(), Some(&b"text/plain"[..]));
    assert_eq!(will.bytes(prop::RESPONSE_TOPIC).as_deref(), Some(&b"answer/here"[..]));
    assert_eq!(will.bytes(prop::CORRELATION_DATA).as_deref(), Some(&b"\x00\x01"[..]));
    assert_eq!(will.int(prop::PAYLOAD_FORMAT), Some(1));
    assert!(will.int(prop::MESSAGE_EXPIRY).is_some_and(|secs| (980..=1000).contains(&secs)));
    assert_eq!(will.int(prop::WILL_DELAY), None);
}

#[test]
fn bad_will_properties_are_refused() {
    let bad = [
        Props::new().byte(prop::PAYLOAD_FORMAT, 2),
        Props::new().four(prop::WILL_DELAY, 1).four(prop::WILL_DELAY, 1),
        Props::new().two(prop::TOPIC_ALIAS, 1),
        Props::new().bytes(prop::RESPONSE_TOPIC, "a/#"),
    ];
    for props in bad {
        let connect = Connect::new(Version::V5).will(Will::new(fresh("will"), "x").props(props));
        connect.send().expect_connect_refused(&[0x81, 0x82, 0x90]);
    }
}

#[test]
fn will_topic_with_wildcards_is_refused() {
    let connect = Connect::new(Version::V5).will(Will::new("will/#", "x"));
    connect.send().expect_connect_refused(&[0x81, 0x82, 0x90]);
    let connect = Connect::new(Version::V311).will(Will::new("will/+", "x"));
    connect.send().expect_connect_refused(&[]);
}

/// A will of a session that goes on is the will of its last connection only.
#[test]
fn mqtt_3_1_2_7_will_belongs_to_its_connection() {
    let topic = fresh("will");
    let mut watcher = watcher(Version::V5, &topic);
    let connect = Connect::new(Version::V5).persistent();
    connect.clone().will(Will::new(&topic, "first")).open().disconnect();
    connect.clone().will(Will::new(&topic, "second")).open().vanish();
    assert_eq!(watcher.take().payload, b"second");
    let mut last = connect.open();
    last.send(wire::pingreq());
    assert_eq!(last.recv().first, first::PINGRESP);
    watcher.expect_nothing_from(&mut last);
}
