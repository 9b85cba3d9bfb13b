//! Sessions: what outlives a connection, and for how long.

use std::thread::sleep;
use std::time::Duration;

use conformance::wire::{self, first, prop};
use conformance::{Connect, Peer, Props, Publish, Version, fresh, fresh_client, proves};

fn clean_start_discards_the_session(version: Version) {
    let topic = fresh("clean");
    let connect = Connect::new(version).persistent();
    let mut peer = connect.open();
    peer.subscribe(&topic, 1);
    peer.disconnect();
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "queued").qos(1));
    let mut peer = Connect::new(version).id(&connect.client_id).open();
    assert!(!peer.connack().session_present());
    publisher.publish(Publish::new(&topic, "live").qos(1));
    peer.expect_nothing_from(&mut publisher);
}
proves!(clean_start_discards_the_session:
    V5 [mqtt_3_1_2_4] V311 [mqtt311_3_1_2_6] V31 [mqtt31]);

/// Subscribes, goes away, and finds what came in between.
fn session_is_resumed(version: Version) {
    let topic = fresh("resume");
    let connect = Connect::new(version).persistent();
    let mut peer = connect.open();
    peer.subscribe(&topic, 2);
    peer.vanish();
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "one").qos(1));
    publisher.publish(Publish::new(&topic, "two").qos(2));
    let mut peer = connect.open();
    let first = peer.take();
    assert_eq!((&first.payload[..], first.qos, first.dup), (&b"one"[..], 1, false));
    let second = peer.take();
    assert_eq!((&second.payload[..], second.qos, second.dup), (&b"two"[..], 2, false));
    publisher.publish(Publish::new(&topic, "three"));
    assert_eq!(peer.take().payload, b"three");
}
proves!(session_is_resumed:
    V5 [mqtt_3_1_2_5 mqtt_3_1_2_23 mqtt_4_5_0_1]
    V311 [mqtt311_3_1_2_4 mqtt311_3_1_2_5 mqtt311_4_1_0_1 mqtt311_4_5_0_1]
    V31 [mqtt31]);

fn session_is_created_when_there_is_none(version: Version) {
    let connect = Connect::new(version).persistent();
    let mut peer = connect.open();
    assert!(!peer.connack().session_present());
    let topic = fresh("created");
    peer.subscribe(&topic, 0);
    peer.publish(Publish::new(&topic, "works"));
    assert_eq!(peer.take().payload, b"works");
}
proves!(session_is_created_when_there_is_none: V5 [mqtt_3_1_2_6] V311 [mqtt311_3_1_2_4]);

fn sessions_belong_to_their_client_id(version: Version) {
    let connects = [(); 2].map(|()| Connect::new(version).persistent());
    let topics = [(); 2].map(|()| fresh("mine"));
    for (connect, topic) in connects.iter().zip(&topics) {
        let mut peer = connect.open();
        peer.subscribe(topic, 1);
        peer.disconnect();
    }
    let mut publisher = Peer::connect(version);
    for topic in &topics {
        publisher.publish(Publish::new(topic, topic).qos(1));
    }
    for (connect, topic) in connects.iter().zip(&topics) {
        let mut peer = connect.open();
        assert_eq!(&peer.take().topic, topic);
        peer.ping();
    }
}
proves!(sessions_belong_to_their_client_id:
    V5 [mqtt_3_1_3_2] V311 [mqtt311_3_1_3_2] V31 [mqtt31]);

/// QoS 0 while away may be kept or dropped; the rest of the session must not suffer.
fn clean_session_ends_with_its_connection(version: Version) {
    let topic = fresh("ends");
    let client = fresh_client();
    let mut peer = Connect::new(version).id(&client).open();
    peer.subscribe(&topic, 1);
    peer.disconnect();
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "nobody there").qos(1));
    let mut peer = Connect::new(version).id(&client).resume().open();
    assert!(!peer.connack().session_present());
    peer.expect_nothing_from(&mut publisher);
}
proves!(clean_session_ends_with_its_connection:
    V5 [mqtt_4_1_0_2] V311 [mqtt311_3_1_2_6] V31 [mqtt31]);

#[test]
fn mqtt_4_1_0_1_session_lives_while_its_connection_does() {
    let topic = fresh("lives");
    let mut peer = Connect::new(Version::V5).session_expiry(1).open();
    peer.subscribe(&topic, 1);
    sleep(Duration::from_millis(2500));
    peer.publish(Publish::new(&topic, "still there").qos(1));
    assert_eq!(peer.take().payload, b"still there");
}

fn session_state_is_kept_while_connected(version: Version) {
    let topic = fresh("kept");
    let mut peer = Peer::connect(version);
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(version);
    publisher.publish(Publish::new(&topic, "x").qos(1));
    let message = peer.recv_message();
    peer.ping();
    // Much later, from the point of view of the protocol, the exchange goes on.
    peer.send(wire::ack(first::PUBACK, message.packet_id));
    publisher.publish(Publish::new(&topic, "y").qos(1));
    assert_eq!(peer.take().payload, b"y");
}
proves!(session_state_is_kept_while_connected: V5 [mqtt5] V311 [mqtt311_4_1_0_2]);

#[test]
fn mqtt_4_1_0_2_session_is_discarded_after_its_expiry() {
    let topic = fresh("expiry");
    let connect = Connect::new(Version::V5).resume().session_expiry(1);
    let mut peer = connect.open();
    peer.subscribe(&topic, 1);
    peer.vanish();
    sleep(Duration::from_millis(3500));
    let mut publisher = Peer::connect(Version::V5);
    publisher.publish(Publish::new(&topic, "too late").qos(1));
    let mut peer = connect.open();
    assert!(!peer.connack().session_present());
    peer.expect_nothing_from(&mut publisher);
}

#[test]
fn mqtt_3_1_2_23_expiry_can_change_at_disconnect() {
    // From an hour to nothing: the session is gone at once.
    let connect = Connect::new(Version::V5).persistent();
    connect.open().disconnect_with(0, &Props::new().four(prop::SESSION_EXPIRY, 0));
    assert!(!connect.open().connack().session_present());
    // From a second to an hour: it is still there when the second is long over.
    let connect = Connect::new(Version::V5).resume().session_expiry(1);
    connect.open().disconnect_with(0, &Props::new().four(prop::SESSION_EXPIRY, 3600));
    sleep(Duration::from_millis(2500));
    assert!(connect.open().connack().session_present());
}

#[test]
fn expiry_cannot_be_set_at_disconnect_when_it_was_zero() {
    let mut peer = Peer::connect(Version::V5);
    peer.send(wire::disconnect_with(0, &Props::new().four(prop::SESSION_EXPIRY, 60)));
    peer.expect_refused(&[0x82]);
}

/// Retained messages are no part of a session.
fn retained_messages_outlive_sessions(version: Version) {
    let topic = fresh("outlives");
    let connect = Connect::new(version);
    let mut peer = connect.open();
    peer.publish(Publish::new(&topic, "kept").retain().qos(1));
    peer.disconnect();
    let mut peer = connect.open();
    peer.subscribe(&topic, 0);
    assert_eq!(peer.take().payload, b"kept");
    peer.publish(Publish::new(&topic, "").retain());
}
proves!(retained_messages_outlive_sessions: V5 [mqtt5] V311 [mqtt311_3_1_2_7]);
