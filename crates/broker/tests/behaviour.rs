//! How shards behave at their limits and over time, seen by clients.

mod lab;

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::access::{Permission, Rule, Who};
use broker::{
    Access, ConnectRequest, Ended, Event, Limits, Reauthenticated, Settings, ShareStrategy,
};
use codec::{
    Ack, AckKind, Auth, Connect, Disconnect, Packet, Properties, Property, PropertyBuf, Publish,
    QoS, Reason, RetainHandling, SubscribeOptions, Version, Will,
};
use lab::{
    Conn, Got, Lab, admit, connect_packet, level, of_version, persistent, publish, request,
    request_with, retained,
};
use session::{Overflow, QueueLimits, Rate};

fn with_limits(request: ConnectRequest, limits: Limits) -> ConnectRequest {
    ConnectRequest { limits: Arc::new(limits), ..request }
}

fn window(in_flight_max: u16) -> Limits {
    Limits { in_flight_max, ..Limits::default() }
}

fn queue(messages_max: u32, overflow: Overflow) -> Limits {
    let queue = QueueLimits { messages_max, overflow, ..Limits::default().queue };
    Limits { queue, ..window(1) }
}

fn rule(who: Who, permission: Permission, filter: &str) -> Rule {
    Rule { who, permission, filter: filter.into() }
}

fn texts(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

/// Publishes `0`, `1`, `2`, ... with QoS 1.
fn publish_numbers(lab: &mut Lab, publisher: Conn, topic: &str, numbers: std::ops::Range<u32>) {
    for number in numbers {
        lab.publish(publisher, topic, number.to_string().as_bytes(), 1, 1);
    }
    lab.take_all(publisher);
}

/// Reads and acknowledges until nothing comes any more.
fn read_all(lab: &mut Lab, conn: Conn) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let received = lab.received(conn);
        if received.is_empty() {
            return payloads;
        }
        for publish in received {
            payloads.push(String::from_utf8(publish.payload).expect("text"));
            if publish.qos == 1 {
                lab.ack(conn, AckKind::Puback, publish.packet_id);
            }
        }
    }
}

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
fn a_pubrel_out_of_nowhere_is_told_that_its_id_is_not_known() {
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
fn a_pubrec_does_not_tell_that_nobody_has_subscribed() {
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
    assert_eq!(told_dropped(&lab), 2);
}

#[test]
fn a_full_queue_drops_the_newest() {
    let (mut lab, publisher) = overflowing(Overflow::DropNewest);
    publish_numbers(&mut lab, publisher, "t", 0..7);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 2);
    let subscriber = lab.open(with_limits(persistent("subscriber"), window(10)));
    assert_eq!(read_all(&mut lab, subscriber), texts(0..5));
    lab.pass_secs(2);
    assert_eq!(told_dropped(&lab), 2);
}

#[test]
fn a_full_queue_refuses_and_the_publisher_is_told() {
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

fn told_dropped(lab: &Lab) -> u64 {
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
    publish("t", &[0; 150], 0, 0).encode(Version::V5, &mut packets);
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

// Shared subscriptions.

fn group_lab(strategy: ShareStrategy, limits: &Limits) -> (Lab, Vec<Conn>, Conn) {
    let settings = Settings { share_strategy: strategy, ..Settings::default() };
    let mut lab = Lab::with(3, settings, Access::open());
    let mut members = Vec::new();
    for number in 0..3 {
        let id = lab.id_on(number, "member");
        let member = lab.open(with_limits(persistent(&id), limits.clone()));
        lab.subscribe(member, "$share/g/t/#", 1);
        members.push(member);
    }
    let publisher = lab.open(request("publisher"));
    (lab, members, publisher)
}

/// Publishes 30 messages; how many each member got, once all are acknowledged.
fn shares(lab: &mut Lab, members: &[Conn], publisher: Conn, topic: &str) -> Vec<usize> {
    publish_numbers(lab, publisher, topic, 0..30);
    let got: Vec<Vec<String>> = members.iter().map(|member| read_all(lab, *member)).collect();
    let all: BTreeSet<&String> = got.iter().flatten().collect();
    assert_eq!(all.len(), 30, "each message once: {got:?}");
    assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 30);
    got.iter().map(Vec::len).collect()
}

#[test]
fn every_strategy_gives_each_message_to_one_member() {
    use ShareStrategy::{HashClient, HashTopic, LeastInFlight, Random, RoundRobin, Sticky};
    for strategy in [Random, RoundRobin, LeastInFlight, Sticky, HashClient, HashTopic] {
        let (mut lab, members, publisher) = group_lab(strategy, &Limits::default());
        let counts = shares(&mut lab, &members, publisher, "t/1");
        let busy = counts.iter().filter(|count| **count > 0).count();
        match strategy {
            RoundRobin => assert_eq!(counts, [10, 10, 10]),
            Random => assert_eq!(busy, 3, "{counts:?}"),
            LeastInFlight => assert_eq!(counts, [10, 10, 10]),
            Sticky | HashClient | HashTopic => assert_eq!(busy, 1, "{counts:?}"),
        }
    }
}

#[test]
fn an_offline_member_gets_nothing_and_the_others_everything() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &Limits::default());
    lab.cut(members[1]);
    let counts = shares(&mut lab, &[members[0], members[2]], publisher, "t/1");
    assert_eq!(counts, [15, 15]);
}

#[test]
fn a_member_that_does_not_acknowledge_does_not_keep_messages_from_the_others() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &window(2));
    publish_numbers(&mut lab, publisher, "t/1", 0..30);
    // Member 0 never acknowledges; two are stuck with it until it leaves.
    let mut got: Vec<String> = Vec::new();
    for _ in 0..20 {
        for member in &members[1..] {
            got.extend(read_all(&mut lab, *member));
        }
    }
    assert_eq!(got.len(), 28);
    lab.cut(members[0]);
    for member in &members[1..] {
        got.extend(read_all(&mut lab, *member));
    }
    let all: BTreeSet<String> = got.into_iter().collect();
    assert_eq!(all, texts(0..30).into_iter().collect(), "what it did not acknowledge went on");
    assert_eq!(lab.total(|m| &m.dropped_group), 0);
}

#[test]
fn a_group_keeps_messages_while_its_members_are_away() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &Limits::default());
    for member in &members {
        lab.cut(*member);
    }
    publish_numbers(&mut lab, publisher, "t/1", 0..30);
    let id = lab.id_on(2, "member");
    let back = lab.open(persistent(&id));
    assert_eq!(read_all(&mut lab, back), texts(0..30));
}

#[test]
fn the_queue_of_a_group_drops_its_oldest_and_says_so() {
    let share_queue = QueueLimits { messages_max: 5, ..Limits::default().queue };
    let settings = Settings { share_queue, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let member = lab.open(persistent("member"));
    lab.subscribe(member, "$share/g/t", 1);
    lab.cut(member);
    let publisher = lab.open(request("publisher"));
    publish_numbers(&mut lab, publisher, "t", 0..8);
    assert_eq!(lab.total(|m| &m.dropped_group), 3);
    let told = lab.events.iter().filter_map(|event| match event {
        Event::GroupDropped { group, count } => Some((&**group, *count)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [("$share/g/t", 1); 3]);
    let member = lab.open(persistent("member"));
    assert_eq!(read_all(&mut lab, member), texts(3..8));
}

#[test]
fn a_subscription_and_a_group_on_the_same_filter_both_get_it() {
    let mut lab = Lab::new(2);
    let member_id = lab.id_on(0, "member");
    let member = lab.open(request(&member_id));
    lab.subscribe(member, "$share/g/t", 1);
    lab.subscribe(member, "t", 1);
    let publisher_id = lab.id_on(1, "publisher");
    let publisher = lab.open(request(&publisher_id));
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(read_all(&mut lab, member).len(), 2);
    lab.unsubscribe(member, "$share/g/t");
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(read_all(&mut lab, member).len(), 1);
    lab.unsubscribe(member, "t");
    lab.take_all(publisher);
    lab.publish(publisher, "t", b"x", 1, 2);
    let unmatched = Reason::NO_MATCHING_SUBSCRIBERS;
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Puback, 2, unmatched)]);
}

// Retained messages.

#[test]
fn ten_thousand_retained_messages_reach_a_slow_reader() {
    let mut lab = Lab::new(4);
    let publisher = lab.open(request("publisher"));
    for number in 0..10_000 {
        lab.send_only(publisher, &retained(&format!("t/{number}"), b"x", 1, 1));
    }
    lab.settle();
    let slow = Limits { outbox_bytes_max: 500, ..window(7) };
    let subscriber = lab.open(request_with("subscriber", slow));
    lab.subscribe(subscriber, "t/#", 1);
    assert_eq!(read_all(&mut lab, subscriber).len(), 10_000);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 0);
}

#[test]
fn a_retained_message_in_a_page_does_not_follow_a_newer_live_one() {
    let mut lab = Lab::new(2);
    let home = lab.topic_on(1, "t");
    let subscriber_id = lab.id_on(0, "subscriber");
    let subscriber = lab.open(request(&subscriber_id));
    let publisher = lab.open(request(&lab.id_on(0, "publisher")));
    lab.send(publisher, &retained(&home, b"old", 0, 0));
    let mut filters = codec::FilterBuf::new();
    filters.push("t/+", SubscribeOptions::new(QoS::AtMostOnce));
    lab.send_only(
        subscriber,
        &Packet::Subscribe(codec::Subscribe {
            packet_id: 1,
            properties: Properties::EMPTY,
            filters: filters.as_filters(),
        }),
    );
    // The page is asked for; before it comes, a newer message is delivered live.
    lab.deliver_mail();
    lab.send_only(publisher, &retained(&home, b"new", 0, 0));
    lab.settle();
    assert_eq!(lab.payloads(subscriber), ["new"]);
}

#[test]
fn mqtt_3_3_1_6_an_empty_payload_clears_what_is_retained() {
    let mut lab = Lab::new(2);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("t", b"x", 1, 1));
    let first = lab.open(request("first"));
    lab.subscribe(first, "t", 1);
    assert!(lab.received(first)[0].retain);
    lab.send(publisher, &retained("t", b"", 1, 1));
    assert!(!lab.received(first)[0].retain, "live, and not retained as published");
    let second = lab.open(request("second"));
    lab.subscribe(second, "t", 1);
    assert_eq!(lab.received(second), []);
    assert_eq!(lab.total(|m| &m.retained), 0);
}

#[test]
fn mqtt_3_3_1_10_retain_handling_1_asks_for_new_subscriptions_only() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("t", b"x", 1, 1));
    let client = lab.open(request("client"));
    let options = |retain_handling| SubscribeOptions {
        retain_handling,
        ..SubscribeOptions::new(QoS::AtLeastOnce)
    };
    for (handling, count) in [
        (RetainHandling::IfNew, 1),
        (RetainHandling::IfNew, 0),
        (RetainHandling::Always, 1),
        (RetainHandling::Never, 0),
    ] {
        lab.subscribe_with(client, "t", options(handling), None);
        assert_eq!(read_all(&mut lab, client).len(), count, "{handling:?}");
    }
}

// Subscriptions.

#[test]
fn overlapping_subscriptions_give_one_copy_with_all_identifiers_and_the_highest_qos() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe_with(client, "a/b", SubscribeOptions::new(level(0)), Some(1));
    lab.subscribe_with(client, "a/+", SubscribeOptions::new(level(2)), Some(2));
    lab.subscribe_with(client, "#", SubscribeOptions::new(level(1)), None);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a/b", b"x", 2, 1);
    let received = lab.received(client);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].qos, 2);
    let identifiers: BTreeSet<u32> = received[0].identifiers.iter().copied().collect();
    assert_eq!(identifiers, [1, 2].into());
    // A new subscription in the place of an old one: no second copy, the new options.
    lab.subscribe_with(client, "a/+", SubscribeOptions::new(level(0)), Some(3));
    lab.unsubscribe(client, "a/b");
    lab.unsubscribe(client, "#");
    lab.publish(publisher, "a/b", b"x", 2, 2);
    let received = lab.received(client);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].qos, received[0].identifiers.as_slice()), (0, &[3][..]));
}

#[test]
fn limits_on_subscriptions_answer_with_their_codes() {
    let limits = Limits {
        subscriptions_per_client_max: 2,
        qos_max: QoS::AtLeastOnce,
        wildcard_available: false,
        shared_available: false,
        ..Limits::default()
    };
    let mut lab = Lab::new(1);
    let client = lab.open(request_with("client", limits.clone()));
    assert_eq!(lab.subscribe(client, "a", 2), 1, "granted less");
    assert_eq!(lab.subscribe(client, "#", 1), Reason::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED.0);
    let shared = Reason::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED.0;
    assert_eq!(lab.subscribe(client, "$share/g/a", 1), shared);
    assert_eq!(lab.subscribe(client, "b", 0), 0);
    assert_eq!(lab.subscribe(client, "c", 0), Reason::QUOTA_EXCEEDED.0);
    assert_eq!(lab.subscribe(client, "a", 0), 0, "it has this one already");
    let old = lab.open(with_limits(of_version(Version::V311, "old"), limits));
    assert_eq!(lab.subscribe(old, "#", 1), 0x80);
}

#[test]
fn publishes_beyond_what_is_offered_end_the_connection() {
    let limits = Limits {
        qos_max: QoS::AtMostOnce,
        retain_available: false,
        alias_in_max: 2,
        packet_bytes_max: 200,
        ..Limits::default()
    };
    let mut alias = PropertyBuf::new();
    alias.push(Property::TopicAlias(3));
    let aliased = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: alias.as_properties(),
        payload: b"",
    });
    let large = [0; 300];
    for (packet, reason) in [
        (publish("t", b"", 1, 1), Reason::QOS_NOT_SUPPORTED),
        (retained("t", b"", 0, 0), Reason::RETAIN_NOT_SUPPORTED),
        (aliased, Reason::TOPIC_ALIAS_INVALID),
        (publish("t", &large, 0, 0), Reason::PACKET_TOO_LARGE),
    ] {
        let mut lab = Lab::new(1);
        let client = lab.open(request_with("client", limits.clone()));
        lab.send(client, &packet);
        assert_eq!(lab.take_all(client), [Got::Disconnect(reason)]);
        assert!(lab.is_closed(client));
        assert_eq!(lab.total(|m| &m.violations), 1);
    }
}

#[test]
fn the_door_refuses_what_the_limits_do_not_allow() {
    let limits = Arc::new(Limits {
        client_id_bytes_max: 10,
        will_payload_bytes_max: 10,
        qos_max: QoS::AtLeastOnce,
        retain_available: false,
        ..Limits::default()
    });
    let will = |qos, retain, payload| {
        let properties = Properties::EMPTY;
        Some(Will { topic: "t", payload, qos: level(qos), retain, properties })
    };
    let plain = connect_packet("id");
    for (connect, reason) in [
        (connect_packet("eleven chars"), Reason::CLIENT_IDENTIFIER_NOT_VALID),
        (Connect { will: will(0, false, &[0; 11]), ..plain }, Reason::PACKET_TOO_LARGE),
        (Connect { will: will(2, false, b""), ..plain }, Reason::QOS_NOT_SUPPORTED),
        (Connect { will: will(0, true, b""), ..plain }, Reason::RETAIN_NOT_SUPPORTED),
    ] {
        assert_eq!(admit(&connect, &limits).expect_err("beyond a limit").reason, reason);
    }
    assert!(admit(&Connect { will: will(1, false, &[0; 10]), ..plain }, &limits).is_ok());
}

// Aliases towards the client.

#[test]
fn topics_are_sent_by_alias_once_the_client_knows_them() {
    let mut lab = Lab::new(1);
    let client = lab.open(ConnectRequest { alias_max: 1, ..request("client") });
    lab.subscribe(client, "#", 0);
    let publisher = lab.open(request("publisher"));
    for topic in ["a", "b", "a"] {
        lab.publish(publisher, topic, b"", 0, 0);
    }
    let received = lab.received(client);
    let seen: Vec<_> = received.iter().map(|p| (p.topic.as_str(), p.alias)).collect();
    assert_eq!(seen, [("a", Some(1)), ("b", None), ("", Some(1))]);
}

// Ends: wills, keep-alive, expiry, takeover.

fn with_will(id: &str, delay_secs: u32, expiry_secs: u32) -> ConnectRequest {
    let mut properties = PropertyBuf::new();
    properties.push(Property::WillDelaySecs(delay_secs));
    let will = Will {
        topic: "wills",
        payload: id.as_bytes(),
        qos: QoS::AtLeastOnce,
        retain: false,
        properties: properties.as_properties(),
    };
    let connect = Connect { will: Some(will), clean_start: false, ..connect_packet(id) };
    let request = admit(&connect, &Arc::new(Limits::default())).expect("a sound CONNECT");
    ConnectRequest { session_expiry_secs: expiry_secs, ..request }
}

fn will_lab() -> (Lab, Conn) {
    let mut lab = Lab::new(2);
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "wills", 0);
    (lab, watcher)
}

#[test]
fn a_will_comes_after_its_delay_or_with_the_end_of_the_session() {
    for (delay_secs, expiry_secs, after_secs) in [(5, 100, 5), (100, 5, 5), (0, 100, 0), (9, 0, 0)]
    {
        let (mut lab, watcher) = will_lab();
        let client = lab.open(with_will("client", delay_secs, expiry_secs));
        lab.cut(client);
        if after_secs > 0 {
            lab.pass_secs(after_secs - 1);
            assert_eq!(lab.payloads(watcher), Vec::<String>::new());
            lab.pass_secs(1);
        }
        assert_eq!(lab.payloads(watcher), ["client"], "{delay_secs} {expiry_secs}");
        lab.pass_secs(200);
        assert_eq!(lab.payloads(watcher), Vec::<String>::new(), "once only");
    }
}

#[test]
fn mqtt_3_1_3_9_no_will_if_the_client_is_back_before_its_delay() {
    let (mut lab, watcher) = will_lab();
    let client = lab.open(with_will("client", 5, 100));
    lab.cut(client);
    lab.pass_secs(3);
    let client = lab.open(with_will("client", 5, 100));
    lab.pass_secs(10);
    assert_eq!(lab.payloads(watcher), Vec::<String>::new());
    // A takeover is the same, unless the new connection wants a clean start.
    lab.open(with_will("client", 5, 100));
    assert!(lab.is_closed(client));
    assert_eq!(lab.payloads(watcher), Vec::<String>::new());
    lab.open(ConnectRequest { clean_start: true, ..with_will("client", 5, 100) });
    assert_eq!(lab.payloads(watcher), ["client"]);
    assert_eq!(lab.total(|m| &m.takeovers), 2);
}

#[test]
fn mqtt_3_14_4_3_a_goodbye_takes_the_will_away_and_0x04_does_not() {
    for (reason, count) in [(Reason::NORMAL_DISCONNECTION, 0), (Reason::DISCONNECT_WITH_WILL, 1)] {
        let (mut lab, watcher) = will_lab();
        let client = lab.open(with_will("client", 0, 100));
        let properties = Properties::EMPTY;
        lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
        assert_eq!(lab.received(watcher).len(), count);
    }
}

#[test]
fn mqtt_3_1_2_22_silence_for_one_and_a_half_keep_alives_ends_the_connection() {
    let mut lab = Lab::new(1);
    let client = lab.open(ConnectRequest { keep_alive_secs: 10, ..request("client") });
    lab.pass_secs(14);
    lab.send(client, &Packet::Pingreq);
    assert_eq!(lab.take_all(client), [Got::Pingresp]);
    lab.pass_secs(14);
    assert!(!lab.is_closed(client));
    lab.pass_secs(1);
    assert!(lab.is_closed(client));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::KEEP_ALIVE_TIMEOUT)]);
    assert_eq!(lab.total(|m| &m.keep_alive_timeouts), 1);
}

#[test]
fn a_session_ends_when_its_expiry_runs_out_and_a_disconnect_may_change_it() {
    let mut lab = Lab::new(1);
    for (at_disconnect, lives_secs) in [(None, 10), (Some(3), 3), (Some(30), 30)] {
        let asked = || ConnectRequest { session_expiry_secs: 10, ..persistent("client") };
        let client = lab.open(asked());
        let mut properties = PropertyBuf::new();
        if let Some(secs) = at_disconnect {
            properties.push(Property::SessionExpirySecs(secs));
        }
        let reason = Reason::NORMAL_DISCONNECTION;
        let properties = properties.as_properties();
        lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
        lab.pass_secs(lives_secs - 1);
        assert_eq!(lab.total(|m| &m.sessions), 1);
        lab.pass_secs(1);
        assert_eq!(lab.total(|m| &m.sessions), 0);
    }
    assert_eq!(lab.total(|m| &m.sessions_expired), 3);
}

#[test]
fn mqtt_3_14_2_2_no_session_expiry_at_disconnect_after_none_at_connect() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    let mut properties = PropertyBuf::new();
    properties.push(Property::SessionExpirySecs(5));
    let properties = properties.as_properties();
    let reason = Reason::NORMAL_DISCONNECTION;
    lab.send(client, &Packet::Disconnect(Disconnect { reason, properties }));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::PROTOCOL_ERROR)]);
}

#[test]
fn shutdown_and_kick_say_why() {
    let mut lab = Lab::new(1);
    let first = lab.open(request("first"));
    let second = lab.open(of_version(Version::V311, "second"));
    let now_ms = lab.now_ms;
    assert!(lab.shards[0].on_kick("first", now_ms));
    assert!(!lab.shards[0].on_kick("nobody", now_ms));
    lab.settle();
    assert_eq!(lab.take_all(first), [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]);
    let third = lab.open(request("third"));
    lab.shards[0].on_shutdown(now_ms);
    lab.settle();
    assert_eq!(lab.take_all(third), [Got::Disconnect(Reason::SERVER_SHUTTING_DOWN)]);
    assert_eq!(lab.take_all(second), [], "3.1.1 has no such packet");
    assert!(lab.is_closed(second) && lab.is_closed(third));
    let ended = |event: &Event| match event {
        Event::Disconnected { ended, .. } => Some(ended.clone()),
        _ => None,
    };
    let ended: Vec<_> = lab.events.iter().filter_map(ended).collect();
    assert_eq!(ended, [Ended::Administrative, Ended::Shutdown, Ended::Shutdown]);
}

// Access.

#[test]
fn rules_are_asked_for_publish_subscribe_receive_and_will() {
    let rules = [
        rule(Who::Everyone, Permission::ReadWrite, "open/#"),
        rule(Who::Everyone, Permission::Deny, "open/secret"),
    ];
    let access = Access::compile(&rules).expect("sound rules");
    let mut lab = Lab::with(2, Settings::default(), access);
    let client = lab.open(request("client"));
    assert_eq!(lab.subscribe(client, "closed/#", 1), Reason::NOT_AUTHORIZED.0);
    assert_eq!(lab.subscribe(client, "open/#", 1), 1);
    lab.publish(client, "closed/1", b"x", 1, 1);
    lab.publish(client, "open/secret", b"x", 1, 2);
    lab.publish(client, "open/1", b"seen", 0, 0);
    let answers = lab.take_all(client);
    assert_eq!(answers[0], Got::Ack(AckKind::Puback, 1, Reason::NOT_AUTHORIZED));
    assert_eq!(answers[1], Got::Ack(AckKind::Puback, 2, Reason::NOT_AUTHORIZED));
    assert_eq!(answers.len(), 3);
    let dying = lab.open(with_will("dying", 0, 0));
    lab.cut(dying);
    let denied: Vec<_> = lab
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Denied { action, topic, .. } => Some((*action, &**topic)),
            _ => None,
        })
        .collect();
    let expected = [
        ("subscribe", "closed/#"),
        ("publish", "closed/1"),
        ("publish", "open/secret"),
        ("will", "wills"),
    ];
    assert_eq!(denied, expected);
    assert_eq!(lab.total(|m| &m.publishes_denied), 3);
}

#[test]
fn new_rules_hold_for_sessions_that_are_open() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "#", 0);
    let publisher = lab.open(request("publisher"));
    let rules =
        [rule(Who::Everyone, Permission::Write, "#"), rule(Who::Everyone, Permission::Read, "ok")];
    lab.shards[0].set_access(Access::compile(&rules).expect("sound rules"));
    lab.publish(publisher, "hidden", b"1", 0, 0);
    lab.publish(publisher, "ok", b"2", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["2"]);
    lab.shards[0].set_access(Access::open());
    lab.publish(publisher, "hidden", b"3", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["3"]);
}

// Rates, memory, re-authentication.

#[test]
fn a_connection_above_its_rate_is_read_later() {
    let limits = Limits { message_rate: Rate { per_second: 10, burst: 5 }, ..Limits::default() };
    let mut lab = Lab::new(1);
    let client = lab.open(request_with("client", limits));
    for _ in 0..5 {
        lab.publish(client, "t", b"", 0, 0);
    }
    assert_eq!(lab.pauses, []);
    lab.publish(client, "t", b"", 0, 0);
    assert_eq!(lab.pauses, [(client, lab.now_ms + 100)]);
}

#[test]
fn publishes_are_refused_while_memory_is_short() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    let old = lab.open(of_version(Version::V311, "old"));
    lab.shared.set_memory_is_short(true);
    lab.publish(publisher, "t", b"x", 1, 1);
    lab.publish(publisher, "t", b"x", 0, 0);
    lab.publish(old, "t", b"x", 1, 1);
    let answers = lab.take_all(publisher);
    assert_eq!(answers, [Got::Ack(AckKind::Puback, 1, Reason::QUOTA_EXCEEDED)]);
    assert!(lab.is_closed(old));
    assert_eq!(lab.received(subscriber), []);
    assert_eq!(lab.total(|m| &m.publishes_refused), 3);
}

#[test]
fn re_authentication_asks_goes_on_and_ends() {
    let auth = |reason, data: &'static [u8]| {
        let mut properties = PropertyBuf::new();
        properties.push(Property::AuthMethod("SCRAM")).push(Property::AuthData(data));
        (reason, properties)
    };
    let mut lab = Lab::new(1);
    let client =
        lab.open(ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") });
    let (slot, now_ms) = (lab.place(client).1, lab.now_ms);
    let (reason, properties) = auth(Reason::RE_AUTHENTICATE, b"one");
    let properties = properties.as_properties();
    lab.send(client, &Packet::Auth(Auth { reason, properties }));
    assert!(lab.asked[0].is_start && *lab.asked[0].data == *b"one");
    let answers = [Reauthenticated::Continue(b"two".into()), Reauthenticated::Success(vec![])];
    for answer in answers {
        lab.shards[0].on_reauthenticated(slot, client, &answer, now_ms);
    }
    lab.settle();
    let two = Got::Auth(Reason::CONTINUE_AUTHENTICATION, b"two".into());
    assert_eq!(lab.take_all(client), [two, Got::Auth(Reason::SUCCESS, vec![])]);
    let failure = Reauthenticated::Failure(Reason::NOT_AUTHORIZED);
    lab.shards[0].on_reauthenticated(slot, client, &failure, now_ms);
    lab.settle();
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::NOT_AUTHORIZED)]);
}

#[test]
fn mqtt_4_12_1_1_another_method_is_a_protocol_error() {
    let mut lab = Lab::new(1);
    let client =
        lab.open(ConnectRequest { auth_method: Some("SCRAM".into()), ..request("client") });
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod("OTHER"));
    let reason = Reason::RE_AUTHENTICATE;
    let properties = properties.as_properties();
    lab.send(client, &Packet::Auth(Auth { reason, properties }));
    assert_eq!(lab.take_all(client), [Got::Disconnect(Reason::PROTOCOL_ERROR)]);
    assert!(lab.asked.is_empty());
}

#[test]
fn sys_topics_tell_what_the_counters_say() {
    let mut lab = Lab::new(2);
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "$SYS/#", 0);
    lab.publish(watcher, "t", b"abc", 1, 1);
    lab.take_all(watcher);
    let mut sys = broker::sys::SysTopics::new("1.2.3");
    for message in sys.messages(&lab.shared, 60, 60.0) {
        let now_ms = lab.now_ms;
        lab.shards[0].on_publish_command(&message, now_ms);
    }
    lab.settle();
    let told: std::collections::HashMap<String, String> = lab
        .received(watcher)
        .into_iter()
        .map(|p| (p.topic, String::from_utf8(p.payload).expect("text")))
        .collect();
    let value = |topic: &str| told[&format!("$SYS/broker/{topic}")].as_str();
    assert_eq!(value("version"), "quelea version 1.2.3");
    assert_eq!(value("uptime"), "60 seconds");
    assert_eq!(value("clients/connected"), "1");
    assert_eq!(value("subscriptions/count"), "1");
    assert_eq!(value("publish/messages/received"), "1");
    assert_eq!(value("publish/bytes/received"), "3");
    assert_eq!(value("load/publish/received/1min"), "0.63", "1 per minute, smoothed");
}

#[test]
fn a_packet_may_come_byte_by_byte() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe(client, "t", 0);
    let mut bytes = Vec::new();
    publish("t", b"slow", 0, 0).encode(Version::V5, &mut bytes);
    Packet::Pingreq.encode(Version::V5, &mut bytes);
    for byte in bytes {
        lab.bytes(client, &[byte]);
    }
    lab.settle();
    let got = lab.take_all(client);
    assert!(matches!(&got[0], Got::Publish(publish) if publish.payload == b"slow"));
    assert_eq!(got[1], Got::Pingresp);
}

#[test]
fn an_acknowledgement_of_the_wrong_kind_is_a_protocol_error() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe(client, "t", 1);
    lab.publish(client, "t", b"x", 1, 1);
    lab.take_all(client);
    lab.send(client, &Packet::Ack(Ack::new(AckKind::Puback, 77, Reason::SUCCESS)));
    assert!(!lab.is_closed(client), "an unknown id is a late answer");
    lab.send(client, &Packet::Ack(Ack::new(AckKind::Pubcomp, 1, Reason::SUCCESS)));
    assert_eq!(lab.take_all(client), [], "a client that has lost its place is not told");
    assert!(lab.is_closed(client));
}
