//! Delivery: the exchanges of QoS 1 and 2 in both roles, resending, order, flow control.

use std::thread::sleep;
use std::time::Duration;

use conformance::wire::{self, first, prop};
use conformance::{Connect, Peer, Props, Publish, Version, fresh, proves};

const PROTOCOL_ERROR: u8 = 0x82;

/// A persistent client that has subscribed at QoS 2, how to connect it again, and a publisher.
fn subscriber(version: Version, topic: &str) -> (Connect, Peer, Peer) {
    let connect = Connect::new(version).persistent();
    let mut peer = connect.open();
    peer.subscribe(topic, 2);
    (connect, peer, Peer::connect(version))
}

fn new_messages_have_no_dup(version: Version) {
    let topic = fresh("dup");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    for qos in [1, 2] {
        publisher.publish(Publish::new(&topic, "x").qos(qos));
        let message = peer.take();
        assert_eq!((message.qos, message.dup), (qos, false));
        assert_ne!(message.packet_id, 0);
    }
}
proves!(new_messages_have_no_dup:
    V5 [mqtt_4_3_2_2 mqtt_4_3_3_2] V311 [mqtt311_4_3_2_1 mqtt311_4_3_3_1] V31 [mqtt31]);

fn unacknowledged_publishes_are_resent_with_dup(version: Version) {
    let topic = fresh("resend");
    for qos in [1, 2] {
        let (connect, mut peer, mut publisher) = subscriber(version, &topic);
        publisher.publish(Publish::new(&topic, "x").qos(qos));
        let sent = peer.recv_message();
        assert!(!sent.dup);
        peer.vanish();
        let mut peer = connect.open();
        let resent = peer.take();
        assert_eq!((resent.dup, resent.packet_id, resent.qos), (true, sent.packet_id, qos));
        assert_eq!(resent.payload, sent.payload);
        peer.ping();
        peer.vanish();
        // Acknowledged now, so never again.
        connect.open().ping();
    }
}
proves!(unacknowledged_publishes_are_resent_with_dup:
    V5 [mqtt_3_3_1_1 mqtt_4_4_0_1 mqtt_4_3_2_3 mqtt_4_3_3_3]
    V311 [mqtt311_3_3_1_1 mqtt311_4_4_0_1 mqtt311_4_3_2_1]
    V31 [mqtt31]);

fn unacknowledged_pubrels_are_resent(version: Version) {
    let topic = fresh("pubrel");
    let (connect, mut peer, mut publisher) = subscriber(version, &topic);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    let id = peer.recv_message().packet_id;
    peer.send(wire::ack(first::PUBREC, id));
    assert_eq!(peer.expect_ack(first::PUBREL, id), 0);
    peer.vanish();
    // The PUBREL comes again, the PUBLISH does not.
    let mut peer = connect.open();
    assert_eq!(peer.expect_ack(first::PUBREL, id), 0);
    peer.send(wire::ack(first::PUBCOMP, id));
    peer.ping();
    peer.vanish();
    connect.open().ping();
}
proves!(unacknowledged_pubrels_are_resent:
    V5 [mqtt_4_3_3_5 mqtt_4_3_3_6 mqtt_4_4_0_1]
    V311 [mqtt311_4_3_3_1 mqtt311_4_4_0_1]
    V31 [mqtt31]);

#[test]
fn mqtt_4_4_0_1_nothing_is_resent_on_an_open_connection() {
    let topic = fresh("resend");
    let (_, mut peer, mut publisher) = subscriber(Version::V5, &topic);
    publisher.publish(Publish::new(&topic, "x").qos(1));
    publisher.publish(Publish::new(&topic, "y").qos(2));
    peer.recv_message();
    peer.recv_message();
    sleep(Duration::from_secs(3));
    peer.ping();
}

#[test]
fn mqtt_4_4_0_2_negative_acknowledgements_end_a_message() {
    let topic = fresh("negative");
    let (connect, mut peer, mut publisher) = subscriber(Version::V5, &topic);
    publisher.publish(Publish::new(&topic, "x").qos(1));
    let id = peer.recv_message().packet_id;
    peer.send(wire::ack_with(first::PUBACK, id, 0x80));
    publisher.publish(Publish::new(&topic, "y").qos(2));
    let id = peer.recv_message().packet_id;
    peer.send(wire::ack_with(first::PUBREC, id, 0x83));
    peer.ping();
    peer.vanish();
    connect.open().ping();
}

#[test]
fn mqtt_4_3_3_4_pubrel_answers_pubrec_but_not_a_failed_one() {
    let topic = fresh("pubrec");
    let (_, mut peer, mut publisher) = subscriber(Version::V5, &topic);
    publisher.publish(Publish::new(&topic, "x").qos(2));
    let id = peer.recv_message().packet_id;
    peer.send(wire::ack_with(first::PUBREC, id, 0x10));
    assert_eq!(peer.expect_ack(first::PUBREL, id), 0);
    peer.send(wire::ack(first::PUBCOMP, id));
    publisher.publish(Publish::new(&topic, "y").qos(2));
    let id = peer.recv_message().packet_id;
    peer.send(wire::ack_with(first::PUBREC, id, 0x97));
    peer.ping();
}

/// An acknowledgement of another kind than the one that its message awaits.
fn acknowledgements_of_the_wrong_kind_are_protocol_errors(version: Version) {
    let wrong = [
        (1, vec![], first::PUBREC),
        (1, vec![], first::PUBCOMP),
        (2, vec![], first::PUBACK),
        (2, vec![], first::PUBCOMP),
        (2, vec![first::PUBREC], first::PUBACK),
    ];
    for (qos, before, last) in wrong {
        let topic = fresh("wrong-ack");
        let (_, mut peer, mut publisher) = subscriber(version, &topic);
        publisher.publish(Publish::new(&topic, "x").qos(qos));
        let id = peer.recv_message().packet_id;
        for ack in before {
            peer.send(wire::ack(ack, id));
            peer.expect_ack(first::PUBREL, id);
        }
        peer.send_anyway(wire::ack(last, id));
        peer.expect_refused(&[PROTOCOL_ERROR]);
    }
}
proves!(acknowledgements_of_the_wrong_kind_are_protocol_errors:
    V5 [mqtt_4_13_1_1] V311 [mqtt311_4_8_0_1] V31 [mqtt31]);

/// The server as a receiver: every packet id is free again after its exchange.
fn packet_ids_are_reused_for_new_messages(version: Version) {
    let topic = fresh("reuse");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    for payload in ["one", "two"] {
        publisher.publish(Publish::new(&topic, payload).qos(1).id(5));
        assert_eq!(peer.take().payload, payload.as_bytes());
    }
    // DUP says nothing once the first was acknowledged: it is a new message.
    publisher.publish(Publish::new(&topic, "three").qos(1).id(5).dup());
    assert_eq!(peer.take().payload, b"three");
}
proves!(packet_ids_are_reused_for_new_messages:
    V5 [mqtt_4_3_2_5] V311 [mqtt311_4_3_2_2 mqtt311_2_3_1_3] V31 [mqtt31]);

fn qos_2_is_received_in_four_packets(version: Version) {
    let topic = fresh("receive");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    publisher.send(Publish::new(&topic, "x").qos(2).id(5).encoded(version));
    publisher.expect_ack(first::PUBREC, 5);
    publisher.send(wire::ack(first::PUBREL, 5));
    assert_eq!(publisher.expect_ack(first::PUBCOMP, 5), 0);
    assert_eq!(peer.take().payload, b"x");
}
proves!(qos_2_is_received_in_four_packets:
    V5 [mqtt_4_3_3_8 mqtt_4_3_3_11] V311 [mqtt311_4_3_3_2] V31 [mqtt31]);

fn qos_2_is_delivered_once(version: Version) {
    let topic = fresh("once");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    let publish = Publish::new(&topic, "once").qos(2).id(5);
    publisher.send(publish.encoded(version));
    publisher.expect_ack(first::PUBREC, 5);
    for _ in 0..3 {
        publisher.send(publish.clone().dup().encoded(version));
        publisher.expect_ack(first::PUBREC, 5);
    }
    publisher.send(wire::ack(first::PUBREL, 5));
    publisher.expect_ack(first::PUBCOMP, 5);
    assert_eq!(peer.take().payload, b"once");
    peer.expect_nothing_from(&mut publisher);
}
proves!(qos_2_is_delivered_once:
    V5 [mqtt_4_3_3_10] V311 [mqtt311_4_3_3_2] V31 [mqtt31]);

/// The state of a receiver outlives its connection too.
fn qos_2_is_delivered_once_across_connections(version: Version) {
    let topic = fresh("once");
    let (_, mut peer, _) = subscriber(version, &topic);
    let connect = Connect::new(version).persistent();
    let mut publisher = connect.open();
    publisher.send(Publish::new(&topic, "once").qos(2).id(5).encoded(version));
    publisher.expect_ack(first::PUBREC, 5);
    publisher.vanish();
    let mut publisher = connect.open();
    publisher.send(Publish::new(&topic, "once").qos(2).id(5).dup().encoded(version));
    publisher.expect_ack(first::PUBREC, 5);
    publisher.vanish();
    let mut publisher = connect.open();
    publisher.send(wire::ack(first::PUBREL, 5));
    assert_eq!(publisher.expect_ack(first::PUBCOMP, 5), 0);
    assert_eq!(peer.take().payload, b"once");
    peer.expect_nothing_from(&mut publisher);
}
proves!(qos_2_is_delivered_once_across_connections:
    V5 [mqtt_4_3_3_10] V311 [mqtt311_4_3_3_2] V31 [mqtt31]);

fn qos_2_packet_ids_are_free_after_pubcomp(version: Version) {
    let topic = fresh("reuse");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    for payload in ["one", "two"] {
        publisher.publish(Publish::new(&topic, payload).qos(2).id(5));
        assert_eq!(peer.take().payload, payload.as_bytes());
    }
}
proves!(qos_2_packet_ids_are_free_after_pubcomp: V5 [mqtt_4_3_3_12] V311 [mqtt311_4_3_3_2]);

#[test]
fn mqtt_4_3_3_7_expiry_does_not_apply_to_a_message_that_was_sent() {
    let topic = fresh("expiry");
    let (connect, mut peer, mut publisher) = subscriber(Version::V5, &topic);
    // Enough for a busy machine to send it in time.
    let props = Props::new().four(prop::MESSAGE_EXPIRY, 5);
    publisher.publish(Publish::new(&topic, "x").qos(2).props(props));
    let sent = peer.recv_message();
    peer.vanish();
    sleep(Duration::from_millis(6500));
    let resent = connect.open().take();
    assert_eq!((resent.packet_id, resent.dup), (sent.packet_id, true));
}

#[test]
fn mqtt_4_3_3_13_acknowledgements_go_on_after_the_expiry() {
    let topic = fresh("expiry");
    let mut publisher = Peer::connect(Version::V5);
    let props = Props::new().four(prop::MESSAGE_EXPIRY, 1);
    publisher.send(Publish::new(&topic, "x").qos(2).id(5).props(props).encoded(Version::V5));
    publisher.expect_ack(first::PUBREC, 5);
    sleep(Duration::from_millis(2500));
    publisher.send(wire::ack(first::PUBREL, 5));
    assert_eq!(publisher.expect_ack(first::PUBCOMP, 5), 0);
}

/// A packet id of QoS 2 that the server is still using is not given to another message.
fn qos_2_ids_stay_in_use_until_pubcomp(version: Version) {
    let topic = fresh("unused");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    let mut open = Vec::new();
    for _ in 0..10 {
        publisher.publish(Publish::new(&topic, "x").qos(2));
        let id = peer.recv_message().packet_id;
        assert!(!open.contains(&id), "{id} is in use");
        peer.send(wire::ack(first::PUBREC, id));
        assert_eq!(peer.expect_ack(first::PUBREL, id), 0);
        open.push(id);
    }
}
proves!(qos_2_ids_stay_in_use_until_pubcomp: V5 [mqtt_4_3_3_1] V311 [mqtt311_2_3_1_4]);

fn resending_keeps_the_order(version: Version) {
    let topic = fresh("order");
    let (connect, mut peer, mut publisher) = subscriber(version, &topic);
    for round in 0..10u8 {
        publisher.publish(Publish::new(&topic, [round]).qos(1 + round % 2));
    }
    let sent: Vec<_> = (0..10).map(|_| peer.recv_message()).collect();
    peer.vanish();
    let mut peer = connect.open();
    for message in sent {
        let resent = peer.recv_message();
        assert_eq!((resent.payload, resent.packet_id), (message.payload, message.packet_id));
    }
}
proves!(resending_keeps_the_order:
    V5 [mqtt_4_6_0_1] V311 [mqtt311_4_6_0_1] V31 [mqtt31]);

fn messages_keep_their_order(version: Version) {
    for qos in 0..3 {
        let topic = fresh("order");
        let (_, mut peer, mut publisher) = subscriber(version, &topic);
        for round in 0..100u8 {
            let publish = Publish::new(&topic, [round]).qos(qos).id(u16::from(round) + 1);
            publisher.send(publish.encoded(version));
            if qos == 2 {
                publisher.send(wire::ack(first::PUBREL, u16::from(round) + 1));
            }
        }
        let rounds: Vec<_> = (0..100).map(|_| peer.take().payload[0]).collect();
        assert_eq!(rounds, (0..100).collect::<Vec<_>>());
    }
}
proves!(messages_keep_their_order:
    V5 [mqtt_4_6_0_5 mqtt_4_6_0_6] V311 [mqtt311_4_6_0_5 mqtt311_4_6_0_6] V31 [mqtt31]);

fn pubrecs_keep_the_order_of_the_publishes(version: Version) {
    let topic = fresh("order");
    let mut peer = Peer::connect(version);
    let ids = [9, 3, 7, 1];
    let publishes = ids.map(|id| Publish::new(&topic, "x").qos(2).id(id).encoded(version));
    peer.send(publishes.concat());
    ids.iter().for_each(|id| assert!(peer.expect_ack(first::PUBREC, *id) < 0x80));
}
proves!(pubrecs_keep_the_order_of_the_publishes: V5 [mqtt_4_6_0_3] V311 [mqtt311_4_6_0_3]);

fn pubrels_keep_the_order_of_the_pubrecs(version: Version) {
    let topic = fresh("order");
    let (_, mut peer, mut publisher) = subscriber(version, &topic);
    for _ in 0..4 {
        publisher.publish(Publish::new(&topic, "x").qos(2));
    }
    let mut ids: Vec<_> = (0..4).map(|_| peer.recv_message().packet_id).collect();
    ids.reverse();
    let pubrecs: Vec<_> = ids.iter().map(|id| wire::ack(first::PUBREC, *id)).collect();
    peer.send(pubrecs.concat());
    ids.iter().for_each(|id| assert_eq!(peer.expect_ack(first::PUBREL, *id), 0));
}
proves!(pubrels_keep_the_order_of_the_pubrecs: V5 [mqtt_4_6_0_4] V311 [mqtt311_4_6_0_4]);

/// A subscriber with this Receive Maximum and this many messages on their way to it.
fn windowed(receive_max: u16, messages: u8) -> (String, Peer, Peer) {
    let topic = fresh("window");
    let props = Props::new().two(prop::RECEIVE_MAX, receive_max);
    let mut peer = Connect::new(Version::V5).props(props).open();
    peer.subscribe(&topic, 2);
    let mut publisher = Peer::connect(Version::V5);
    for round in 0..messages {
        publisher.publish(Publish::new(&topic, [round]).qos(1 + round % 2));
    }
    (topic, peer, publisher)
}

fn server_keeps_to_receive_maximum(_: Version) {
    let (_, mut peer, mut publisher) = windowed(3, 9);
    let open: Vec<_> = (0..3).map(|_| peer.recv_message()).collect();
    // QoS 0 is not held back, and shows that no fourth one comes.
    peer.expect_nothing_from(&mut publisher);
    peer.send(wire::ack(first::PUBACK, open[0].packet_id));
    let fourth = peer.recv_message();
    assert_eq!(fourth.payload, [3]);
    peer.expect_nothing_from(&mut publisher);
    // A PUBREC does not end a message, but a failed one does.
    peer.send(wire::ack(first::PUBREC, open[1].packet_id));
    peer.expect_ack(first::PUBREL, open[1].packet_id);
    peer.expect_nothing_from(&mut publisher);
    peer.send(wire::ack(first::PUBCOMP, open[1].packet_id));
    assert_eq!(peer.recv_message().payload, [4]);
    peer.send(wire::ack_with(first::PUBREC, fourth.packet_id, 0x80));
    assert_eq!(peer.recv_message().payload, [5]);
    peer.expect_nothing_from(&mut publisher);
}
proves!(server_keeps_to_receive_maximum: V5 [mqtt_3_3_4_9 mqtt_4_9_0_1 mqtt_4_9_0_2]);

fn a_full_window_holds_nothing_else_back(_: Version) {
    let (topic, mut peer, mut publisher) = windowed(1, 3);
    let open = peer.recv_message();
    peer.ping();
    assert_eq!(peer.subscribe(fresh("other"), 1), 1);
    peer.publish(Publish::new(fresh("other"), "x").qos(1));
    peer.publish(Publish::new(fresh("other"), "x").qos(2));
    peer.unsubscribe(&[&topic]);
    peer.expect_nothing_from(&mut publisher);
    peer.send(wire::ack(first::PUBACK, open.packet_id));
}
proves!(a_full_window_holds_nothing_else_back: V5 [mqtt_3_3_4_10 mqtt_4_9_0_3]);

/// A window that was full when the connection broke is a whole one on the next.
#[test]
fn mqtt_4_9_0_1_the_send_quota_starts_anew_with_each_connection() {
    let topic = fresh("window");
    let props = Props::new().two(prop::RECEIVE_MAX, 2);
    let connect = Connect::new(Version::V5).persistent().props(props);
    let mut peer = connect.open();
    peer.subscribe(&topic, 1);
    let mut publisher = Peer::connect(Version::V5);
    for round in 0..6u8 {
        publisher.publish(Publish::new(&topic, [round]).qos(1));
    }
    for _ in 0..3 {
        peer.recv_message();
        peer.recv_message();
        peer.vanish();
        peer = connect.open();
    }
    for round in 0..6 {
        assert_eq!(peer.take().payload, [round]);
    }
}
