//! Windows, acknowledgements and full queues, seen by clients.

use broker::{BROADCAST_MIN, ConnectRequest, Event, Limits, Settings};
use codec::{AckKind, Packet, Property, PropertyBuf, Publish, QoS, Reason, Version};
use policy::Access;
use rig::{
    Conn, Got, Lab, of_version, persistent, publish, publish_numbers, queue, read_all, request,
    request_with, texts, window, with_limits,
};
use session::Overflow;
// Windows, resends, acknowledgements.

#[test]
fn mqtt_3_3_4_9_no_more_than_the_receive_maximum_is_in_flight() {
    let mut lab = Lab::new(2);
    let subscriber = lab.open(ConnectRequest { receive_max: 3, ..request("subscriber") });
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    publish_numbers(&mut lab, publisher, "t", 0..10);
    let first = lab.received(subscriber);
    assert_eq!(first.iter().map(|p| p.packet_id).collect::<Vec<_>>(), [1, 2, 3]);
    lab.ack(subscriber, AckKind::Puback, 2);
    assert_eq!(lab.received(subscriber)[0].packet_id, 4);
    lab.ack(subscriber, AckKind::Puback, 1);
    lab.ack(subscriber, AckKind::Puback, 3);
    assert_eq!(lab.payloads(subscriber), texts(4..6), "two more, in order");
}

#[test]
fn mqtt_4_4_0_1_unacknowledged_publishes_come_again_in_order_with_dup() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    for packet_id in 1..=3 {
        lab.publish(publisher, "t", b"x", 2, packet_id);
    }
    assert_eq!(lab.received(subscriber).len(), 3);
    lab.ack(subscriber, AckKind::Pubrec, 1);
    assert_eq!(lab.take_all(subscriber), [Got::Ack(AckKind::Pubrel, 1, Reason::SUCCESS)]);
    lab.cut(subscriber);
    let subscriber = lab.connect(persistent("subscriber"));
    let got = lab.take_all(subscriber);
    assert!(matches!(got[0], Got::Connack { session_present: true, .. }));
    assert_eq!(got[1], Got::Ack(AckKind::Pubrel, 1, Reason::SUCCESS));
    for (got, packet_id) in got[2..].iter().zip([2, 3]) {
        let Got::Publish(publish) = got else { panic!("{got:?}") };
        assert!(publish.dup && publish.packet_id == packet_id);
    }
    assert_eq!(got.len(), 4);
}

#[test]
fn mqtt_4_3_3_10_a_repeated_qos_2_publish_is_delivered_once() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 0);
    let publisher = lab.open(persistent("publisher"));
    lab.publish(publisher, "t", b"x", 2, 9);
    lab.cut(publisher);
    let publisher = lab.open(persistent("publisher"));
    lab.publish(publisher, "t", b"x", 2, 9);
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Pubrec, 9, Reason::SUCCESS)]);
    lab.ack(publisher, AckKind::Pubrel, 9);
    lab.ack(publisher, AckKind::Pubrel, 9);
    // The second may be the repetition of one whose PUBCOMP was lost (section 3.7.2.1).
    let done = Got::Ack(AckKind::Pubcomp, 9, Reason::SUCCESS);
    assert_eq!(lab.take_all(publisher), [done.clone(), done]);
    assert_eq!(lab.payloads(subscriber), ["x"]);
}

#[test]
fn a_pubrel_out_of_nowhere_is_reported_that_its_id_is_not_known() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.ack(client, AckKind::Pubrel, 9);
    let gone = Reason::PACKET_IDENTIFIER_NOT_FOUND;
    assert_eq!(lab.take_all(client), [Got::Ack(AckKind::Pubcomp, 9, gone)]);
}

#[test]
fn a_publisher_gets_its_acknowledgement_before_its_own_copy() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe(client, "t", 2);
    for (qos, ack) in [(1, AckKind::Puback), (2, AckKind::Pubrec)] {
        lab.publish(client, "t", b"x", qos, 9);
        let got = lab.take_all(client);
        assert_eq!(got[0], Got::Ack(ack, 9, Reason::SUCCESS));
        assert!(matches!(&got[1], Got::Publish(publish) if publish.payload == b"x"));
    }
}

#[test]
fn a_pubrec_does_not_report_that_nobody_has_subscribed() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.publish(client, "t", b"x", 2, 9);
    assert_eq!(lab.take_all(client), [Got::Ack(AckKind::Pubrec, 9, Reason::SUCCESS)]);
}

#[test]
fn mqtt_4_6_0_2_acknowledgements_keep_the_order_of_the_publishes() {
    let settings = Settings { rejects: true, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let id = lab.id_on(0, "subscriber");
    let far = lab.open(with_limits(request(&id), queue(10, Overflow::Reject)));
    lab.subscribe(far, "far", 1);
    let id = lab.id_on(1, "publisher");
    let publisher = lab.open(request(&id));
    lab.send_only(publisher, &publish("far", b"x", 1, 1));
    lab.send_only(publisher, &publish("near", b"x", 1, 2));
    lab.flush();
    assert_eq!(lab.take_all(publisher), [], "the second waits for the first");
    lab.settle();
    let answers = lab.take_all(publisher);
    assert_eq!(answers[0], Got::Ack(AckKind::Puback, 1, Reason::SUCCESS));
    let unmatched = Reason::NO_MATCHING_SUBSCRIBERS;
    assert_eq!(answers[1], Got::Ack(AckKind::Puback, 2, unmatched));
}

#[test]
fn more_publishes_than_the_receive_maximum_end_the_connection() {
    let mut lab = Lab::new(1);
    let limits = Limits { receive_max: 2, ..Limits::default() };
    let publisher = lab.open(request_with("publisher", limits.clone()));
    for packet_id in 1..=2 {
        lab.publish(publisher, "t", b"x", 2, packet_id);
    }
    assert!(!lab.is_closed(publisher));
    lab.publish(publisher, "t", b"x", 2, 3);
    let last = lab.take_all(publisher).pop();
    assert_eq!(last, Some(Got::Disconnect(Reason::RECEIVE_MAXIMUM_EXCEEDED)));
    // MQTT 3.1.1 knows no such limit.
    let old = lab.open(with_limits(of_version(Version::V311, "old"), limits));
    for packet_id in 1..=10 {
        lab.publish(old, "t", b"x", 2, packet_id);
    }
    assert!(!lab.is_closed(old));
}

#[test]
fn the_largest_receive_maximum_can_be_filled_and_repeated() {
    let mut lab = Lab::new(1);
    let limits = Limits { receive_max: u16::MAX, ..Limits::default() };
    let publisher = lab.open(request_with("publisher", limits));
    for packet_id in 1..=u16::MAX {
        lab.send_only(publisher, &publish("t", b"", 2, packet_id));
    }
    lab.send_only(publisher, &publish("t", b"", 2, 1));
    lab.flush();
    assert!(!lab.is_closed(publisher));
    assert_eq!(lab.take_all(publisher).len(), 65_536);
}

// Overflow.

#[test]
fn a_full_queue_drops_the_oldest() {
    let (mut lab, publisher) = overflowing(Overflow::DropOldest);
    publish_numbers(&mut lab, publisher, "t", 0..7);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 2);
    let subscriber = lab.open(with_limits(persistent("subscriber"), window(10)));
    assert_eq!(read_all(&mut lab, subscriber), texts(2..7));
    lab.pass_secs(2);
    assert_eq!(reported_dropped(&lab), 2);
}

#[test]
fn a_full_queue_drops_the_newest() {
    let (mut lab, publisher) = overflowing(Overflow::DropNewest);
    publish_numbers(&mut lab, publisher, "t", 0..7);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 2);
    let subscriber = lab.open(with_limits(persistent("subscriber"), window(10)));
    assert_eq!(read_all(&mut lab, subscriber), texts(0..5));
    lab.pass_secs(2);
    assert_eq!(reported_dropped(&lab), 2);
}

#[test]
fn a_full_queue_refuses_and_the_publisher_is_reported() {
    let (mut lab, publisher) = overflowing(Overflow::Reject);
    publish_numbers(&mut lab, publisher, "t", 0..5);
    lab.publish(publisher, "t", b"x", 1, 6);
    let answer = lab.take_all(publisher);
    assert_eq!(answer, [Got::Ack(AckKind::Puback, 6, Reason::QUOTA_EXCEEDED)]);
    assert_eq!(lab.total(|m| &m.publishes_refused), 1);
    let subscriber = lab.open(with_limits(persistent("subscriber"), window(10)));
    assert_eq!(read_all(&mut lab, subscriber), texts(0..5));
}

#[test]
fn a_full_queue_ends_the_connection_if_so_asked() {
    let mut lab = Lab::new(1);
    let limits = queue(2, Overflow::Disconnect);
    let subscriber = lab.open(with_limits(persistent("subscriber"), limits));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    publish_numbers(&mut lab, publisher, "t", 0..4);
    assert!(lab.is_closed(subscriber));
    let last = lab.take_all(subscriber).pop();
    assert_eq!(last, Some(Got::Disconnect(Reason::QUOTA_EXCEEDED)));
    let subscriber = lab.open(with_limits(persistent("subscriber"), window(10)));
    assert_eq!(read_all(&mut lab, subscriber), texts(0..3));
}

fn overflowing(overflow: Overflow) -> (Lab, Conn) {
    let settings = Settings { rejects: overflow == Overflow::Reject, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let subscriber = lab.open(with_limits(persistent("subscriber"), queue(5, overflow)));
    lab.subscribe(subscriber, "t", 1);
    lab.cut(subscriber);
    let publisher = lab.open(request("publisher"));
    (lab, publisher)
}

fn reported_dropped(lab: &Lab) -> u64 {
    let count = |event: &Event| match event {
        Event::Dropped { client_id, count, .. } if **client_id == *"subscriber" => *count,
        _ => 0,
    };
    lab.events.iter().map(count).sum()
}

#[test]
fn a_slow_reader_of_qos_0_loses_messages_and_nobody_else_does() {
    let mut lab = Lab::new(1);
    let limits = Limits { outbox_bytes_max: 200, ..Limits::default() };
    let slow = lab.open(request_with("slow", limits));
    lab.subscribe(slow, "t", 0);
    let fast = lab.open(request("fast"));
    lab.subscribe(fast, "t", 0);
    let publisher = lab.open(request("publisher"));
    let mut packets = Vec::new();
    for _ in 0..10 {
        publish("t", &[0; 100], 0, 0).encode(Version::V5, &mut packets);
    }
    lab.bytes(publisher, &packets);
    assert_eq!(lab.pauses, [(publisher, lab.now_ms + 2)], "it waits for the slow one");
    // The slow one reads nothing at all, and the publisher does not wait for ever.
    for _ in 0..500 {
        lab.now_ms += 2;
        lab.bytes(publisher, &[]);
    }
    lab.settle();
    assert_eq!(lab.received(slow).len(), 2);
    assert_eq!(lab.received(fast).len(), 10);
    assert_eq!(lab.total(|m| &m.dropped_slow), 8);
    // Reports come at most once a second.
    lab.now_ms += 1000;
    lab.shards[0].on_tick(lab.now_ms);
    assert_eq!(lab.lost(), [("slow".to_owned(), 8)]);
}

#[test]
fn a_publisher_is_slowed_by_a_subscriber_that_catches_up_and_nothing_is_lost() {
    let mut lab = Lab::new(2);
    let limits = Limits { outbox_bytes_max: 200, ..Limits::default() };
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "t", 0);
    let publisher = lab.open(request("publisher"));
    let mut packets = Vec::new();
    for _ in 0..10 {
        publish("t", &[0; 100], 0, 0).encode(Version::V5, &mut packets);
    }
    lab.bytes(publisher, &packets);
    let mut received = 0;
    for _ in 0..20 {
        lab.settle();
        received += lab.received(subscriber).len();
        lab.now_ms += 2;
        lab.bytes(publisher, &[]);
    }
    assert_eq!(received, 10);
    assert_eq!(lab.total(|m| &m.dropped_slow), 0);
}

/// A subscriber of QoS 1 that reads nothing, with a window of one: it is behind after 1,000 more.
fn stopped_subscriber(lab: &mut Lab) -> Conn {
    let limits = Limits { in_flight_max: 1, ..Limits::default() };
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "#", 1);
    subscriber
}

#[test]
fn a_publisher_that_sends_now_and_then_does_not_wait_for_a_subscriber_that_is_behind() {
    let mut lab = Lab::new(1);
    stopped_subscriber(&mut lab);
    let publisher = lab.open(request("publisher"));
    for _ in 0..2000 {
        lab.publish(publisher, "t", b"x", 1, 1);
    }
    assert_eq!(lab.pauses, []);
}

#[test]
fn a_publisher_of_bursts_waits_for_a_subscriber_that_is_behind_and_goes_on_waiting() {
    let mut lab = Lab::new(1);
    stopped_subscriber(&mut lab);
    let publisher = lab.open(request("publisher"));
    let burst = |count: u16| {
        let mut packets = Vec::new();
        for packet_id in 1..=count {
            publish("t", b"x", 1, packet_id).encode(Version::V5, &mut packets);
        }
        packets
    };
    while lab.pauses.is_empty() {
        lab.bytes(publisher, &burst(8));
    }
    // Six are left. Held up, it sends one at a time, and is the same publisher still.
    let mut pauses_ms = Vec::new();
    for _ in 0..6 {
        lab.now_ms = lab.pauses.pop().expect("a pause").1;
        assert_eq!(lab.pauses, []);
        lab.bytes(publisher, &[]);
        pauses_ms.extend(lab.pauses.iter().map(|(_, until_ms)| until_ms - lab.now_ms));
    }
    assert_eq!(pauses_ms, [2; 6]);
    lab.pauses.clear();
    lab.now_ms += 300;
    lab.bytes(publisher, &burst(1));
    assert_eq!(lab.pauses, [], "it has become one that sends now and then");
}

#[test]
fn every_publisher_waits_when_the_queue_is_about_to_be_full() {
    let mut lab = Lab::new(1);
    let mut limits = Limits { in_flight_max: 1, ..Limits::default() };
    limits.queue.messages_max = 12_000;
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "#", 1);
    let publisher = lab.open(request("publisher"));
    let mut sent = 0;
    while lab.pauses.is_empty() {
        lab.publish(publisher, "t", b"x", 1, 1);
        sent += 1;
        assert!(sent <= 12_000, "it never waits");
    }
    assert!(sent > 1500, "an eighth of the queue is not full after {sent}");
}

#[test]
fn publishers_of_messages_as_large_as_an_outbox_wait_no_longer_than_it_takes() {
    let mut lab = Lab::new(1);
    let limits = Limits { outbox_bytes_max: 1000, ..Limits::default() };
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "t", 0);
    let publisher = lab.open(request("publisher"));
    let mut packet = Vec::new();
    publish("t", &[0; 16 * 1024], 0, 0).encode(Version::V5, &mut packet);
    for _ in 0..10 {
        lab.bytes(publisher, &packet);
        assert_eq!(lab.pauses, [(publisher, lab.now_ms + 2)]);
        lab.pauses.clear();
        lab.flush();
        lab.now_ms += 2;
    }
    assert_eq!(lab.received(subscriber).len(), 10);
}

#[test]
fn packets_put_aside_in_a_pause_come_before_the_end_of_the_connection() {
    let mut lab = Lab::new(1);
    let limits = Limits { outbox_bytes_max: 200, ..Limits::default() };
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "t", 0);
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "kept", 1);
    let publisher = lab.open(request("publisher"));
    let mut packets = Vec::new();
    publish("t", &[0; 200], 0, 0).encode(Version::V5, &mut packets);
    publish("kept", b"last words", 0, 0).encode(Version::V5, &mut packets);
    lab.bytes(publisher, &packets);
    assert_eq!(lab.pauses.len(), 1, "the second packet waits");
    lab.cut(publisher);
    lab.settle();
    assert_eq!(lab.received(watcher).len(), 1);
}

#[test]
fn what_expires_in_the_queue_is_not_sent_and_what_does_not_says_how_long_it_has() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    lab.cut(subscriber);
    let publisher = lab.open(request("publisher"));
    for secs in [5, 20] {
        let mut properties = PropertyBuf::new();
        properties.push(Property::MessageExpirySecs(secs));
        let packet = Publish {
            dup: false,
            qos: QoS::AtLeastOnce,
            retain: false,
            topic: "t",
            packet_id: 1,
            properties: properties.as_properties(),
            payload: b"x",
        };
        lab.send(publisher, &Packet::Publish(packet));
    }
    lab.pass_secs(8);
    let subscriber = lab.open(persistent("subscriber"));
    let received = lab.received(subscriber);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].expiry_secs, Some(12));
    assert_eq!(lab.total(|m| &m.dropped_expired), 1);
}
// The order of writing.

#[test]
fn connections_are_written_in_the_order_in_which_they_got_something() {
    let mut lab = Lab::new(1);
    let conns = ["first", "second", "third", "fourth"].map(|id| lab.open(request(id)));
    let [subscriber, publisher, late_subscriber, late_publisher] = conns;
    lab.subscribe(subscriber, "a", 1);
    lab.subscribe(late_subscriber, "b", 1);
    lab.send_only(publisher, &publish("a", b"x", 1, 1));
    lab.send_only(late_publisher, &publish("b", b"x", 1, 1));
    let dirty = std::iter::from_fn(|| lab.shards[0].take_dirty());
    // Before the acknowledgement comes what is acknowledged.
    assert_eq!(dirty.map(|(_, conn)| conn).collect::<Vec<_>>(), conns);
}

/// So many subscribers of the topic that a message for it is a broadcast.
fn crowd(lab: &mut Lab, topic: &str) -> Vec<Conn> {
    let subscribe = |number| {
        let conn = lab.open(request(&format!("{topic}-{number}")));
        lab.subscribe(conn, topic, 1);
        conn
    };
    (0..=BROADCAST_MIN).map(subscribe).collect()
}

fn urgent(lab: &mut Lab) -> Vec<Conn> {
    std::iter::from_fn(|| lab.shards[0].take_urgent()).map(|(_, conn)| conn).collect()
}

fn dirty(lab: &mut Lab) -> Vec<Conn> {
    std::iter::from_fn(|| lab.shards[0].take_dirty()).map(|(_, conn)| conn).collect()
}

#[test]
fn others_are_written_before_the_crowd_of_a_broadcast() {
    let mut lab = Lab::new(1);
    let [announcer, publisher, subscriber] = ["0", "1", "2"].map(|id| lab.open(request(id)));
    lab.subscribe(subscriber, "a", 1);
    let crowd = crowd(&mut lab, "news");
    lab.send_only(announcer, &publish("news", b"x", 1, 1));
    lab.send_only(publisher, &publish("a", b"x", 1, 1));
    assert_eq!(urgent(&mut lab), [announcer, subscriber, publisher]);
    assert!(lab.shards[0].has_broadcast());
    assert_eq!(dirty(&mut lab), crowd);
    assert!(!lab.shards[0].has_broadcast());
}

#[test]
fn a_broadcast_does_not_hurry_those_of_the_one_before() {
    let mut lab = Lab::new(1);
    let announcer = lab.open(request("announcer"));
    let (first, second) = (crowd(&mut lab, "first"), crowd(&mut lab, "second"));
    lab.send_only(announcer, &publish("first", b"x", 0, 0));
    assert_eq!(lab.shards[0].take_dirty().map(|(_, conn)| conn), first.first().copied());
    lab.send_only(announcer, &publish("second", b"x", 0, 0));
    assert!(urgent(&mut lab).is_empty());
    assert_eq!(dirty(&mut lab), [&first[1..], &second].concat());
}

#[test]
fn who_gets_something_else_does_not_wait_among_those_of_a_broadcast() {
    let mut lab = Lab::new(1);
    let announcer = lab.open(request("announcer"));
    let crowd = crowd(&mut lab, "news");
    lab.send_only(announcer, &publish("news", b"x", 0, 0));
    let last = *crowd.last().expect("a crowd");
    lab.send_only(last, &Packet::Pingreq);
    lab.send_only(last, &Packet::Pingreq);
    assert_eq!(urgent(&mut lab), [last]);
    assert_eq!(dirty(&mut lab), crowd[..crowd.len() - 1], "and not again");
}

#[test]
fn broadcasts_wait_until_what_has_gathered_is_written() {
    let mut lab = Lab::new(1);
    let announcer = lab.open(request("announcer"));
    let crowd = crowd(&mut lab, "news");
    // Each fills the outboxes by a quarter.
    let payload = [b'x'; 4 << 10];
    for _ in 0..6 {
        lab.send_only(announcer, &publish("news", &payload, 0, 0));
    }
    let gathered: Vec<usize> = (crowd.iter())
        .map(|&conn| {
            let (shard, slot) = lab.place(conn);
            let outbox = lab.shards[shard].outbox(slot, conn).expect("a connection");
            outbox.slices().map(<[u8]>::len).sum::<usize>() / payload.len()
        })
        .collect();
    assert_eq!(gathered, vec![4; crowd.len()]);
    lab.settle();
    assert!(crowd.iter().all(|&conn| lab.received(conn).len() == 6));
}

#[test]
fn a_connection_is_dirty_once_though_several_broadcasts_are_for_it() {
    let mut lab = Lab::new(1);
    let announcer = lab.open(request("announcer"));
    let crowd = crowd(&mut lab, "news");
    for _ in 0..3 {
        lab.send_only(announcer, &publish("news", b"x", 0, 0));
    }
    assert_eq!(dirty(&mut lab), crowd);
}
