//! Durable sessions, on simulated disks that can be stopped, filled, broken and cut off.

use broker::{ConnectRequest, Durability, Limits, Settings, WhenFull};
use codec::{
    Ack, AckKind, Packet, Properties, Publish, QoS, Reason, RetainHandling, SubscribeOptions,
    Version,
};
use rig::{Got, Lab, journal_settings, level, persistent, request, retained, with_limits};
use session::{Overflow, QueueLimits};
use storage::Status;
use storage::testing::Crash;

fn dup(topic: &str, payload: &'static [u8], packet_id: u16) -> Packet<'static> {
    let topic: &'static str = Box::leak(topic.to_owned().into_boxed_str());
    Packet::Publish(Publish {
        dup: true,
        qos: level(2),
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload,
    })
}

fn acks(got: Vec<Got>) -> Vec<(AckKind, u16, Reason)> {
    let ack = |got| match got {
        Got::Ack(kind, packet_id, reason) => Some((kind, packet_id, reason)),
        _ => None,
    };
    got.into_iter().filter_map(ack).collect()
}

/// A session that is subscribed and away.
fn leave_subscribed(lab: &mut Lab, id: &str, filter: &str, qos: u8) {
    let conn = lab.open(persistent(id));
    lab.subscribe(conn, filter, qos);
    lab.cut(conn);
}

fn is_present(lab: &mut Lab, id: &str) -> (rig::Conn, bool) {
    let conn = lab.connect(persistent(id));
    match lab.take(conn) {
        Some(Got::Connack { session_present, reason: Reason::SUCCESS, .. }) => {
            (conn, session_present)
        }
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

#[test]
fn what_was_acknowledged_outlives_a_loss_of_power() {
    for shards in [1, 4] {
        let mut lab = Lab::durable(shards);
        leave_subscribed(&mut lab, "away", "t/#", 1);
        let publisher = lab.open(request("publisher"));
        for number in 1..=20 {
            lab.publish(publisher, "t/a", format!("{number}").as_bytes(), 1, number);
        }
        assert_eq!(acks(lab.take_all(publisher)).len(), 20);
        lab.crash(Crash::Power);
        let (conn, present) = is_present(&mut lab, "away");
        assert!(present);
        let expected: Vec<String> = (1..=20).map(|number| number.to_string()).collect();
        assert_eq!(lab.payloads(conn), expected, "{shards} shards");
    }
}

#[test]
fn memory_of_the_log_is_counted_and_given_back_when_nothing_happens() {
    for shards in [1, 4] {
        let mut lab = Lab::durable(shards);
        leave_subscribed(&mut lab, "away", "t/#", 1);
        let publisher = lab.open(request("publisher"));
        let payload = vec![b'x'; 600];
        for number in 1..=20 {
            lab.publish(publisher, "t/a", &payload, 1, number);
        }
        lab.pass_secs(1);
        let busy = lab.total(|metrics| &metrics.log_cache_bytes);
        // A sixteenth of the limit of each shard, and buffers for new batches.
        assert!(busy > 0 && busy < u64::from(shards) * 8 * 1024, "{busy}");
        let (conn, _) = is_present(&mut lab, "away");
        assert_eq!(lab.payloads(conn).len(), 20);
        lab.cut(conn);
        lab.pass_secs(8);
        assert_eq!(lab.total(|metrics| &metrics.log_cache_bytes), 0);
        let (conn, _) = is_present(&mut lab, "away");
        assert_eq!(lab.payloads(conn).len(), 20, "the disk has them");
    }
}

#[test]
fn an_acknowledgement_waits_for_the_disk_and_delivery_does_not() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    lab.publish(publisher, "t", b"1", 1, 1);
    assert_eq!(lab.payloads(subscriber), ["1"]);
    assert_eq!(lab.take_all(publisher), []);
    lab.disks_stand_still = false;
    lab.settle();
    assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 1, Reason::SUCCESS)]);
}

#[test]
fn a_suback_waits_for_the_disk() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("subscriber"));
    lab.disks_stand_still = true;
    lab.subscribe_all(conn, &["t"], 1);
    lab.settle();
    assert_eq!(lab.take_all(conn), []);
    lab.disks_stand_still = false;
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![1])]);
}

#[test]
fn a_suback_waits_for_what_is_new_also_before_what_is_not() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("subscriber"));
    lab.subscribe(conn, "old", 1);
    lab.disks_stand_still = true;
    lab.subscribe_all(conn, &["new", "old"], 1);
    lab.settle();
    assert_eq!(lab.take_all(conn), []);
    lab.disks_stand_still = false;
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![1, 1])]);
}

#[test]
fn a_session_with_very_much_in_flight_is_sent_it_again_after_a_start() {
    let mut lab =
        Lab::durable_by(1, Settings::default(), storage::Settings::with_segment_bytes(1 << 24));
    let limits = Limits { in_flight_max: u16::MAX, outbox_bytes_max: 1 << 26, ..Limits::default() };
    let back = || with_limits(persistent("subscriber"), limits.clone());
    let conn = lab.open(back());
    lab.subscribe(conn, "t", 1);
    let publisher = lab.open(request("publisher"));
    for number in 0..40_000u32 {
        lab.send_only(publisher, &rig::publish("t", &number.to_be_bytes(), 1, 1));
        if number % 100 == 0 {
            lab.settle();
            lab.take_all(publisher);
        }
    }
    lab.settle();
    assert_eq!(lab.received(conn).len(), 40_000);
    lab.crash(Crash::Power);
    let conn = lab.open(back());
    assert_eq!(lab.received(conn).len(), 40_000);
}

#[test]
fn clean_sessions_and_qos_0_write_nothing() {
    let mut lab = Lab::durable(1);
    let before = lab.shards[0].journal().map(|journal| journal.stats().records_appended);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    lab.publish(publisher, "t", b"2", 2, 2);
    lab.publish(publisher, "t", b"3", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["1", "2", "3"]);
    assert_eq!(lab.shards[0].journal().map(|journal| journal.stats().records_appended), before);
}

#[test]
fn a_message_is_written_once_whatever_the_fan_out() {
    let mut lab = Lab::durable(1);
    for number in 0..50 {
        leave_subscribed(&mut lab, &format!("away-{number}"), "t", 1);
    }
    let publisher = lab.open(request("publisher"));
    let before = lab.shards[0].journal().expect("a log").stats().bytes_appended;
    lab.publish(publisher, "t", &[b'x'; 1000], 1, 1);
    let written = lab.shards[0].journal().expect("a log").stats().bytes_appended - before;
    assert!((1000..1100).contains(&written), "{written} bytes for one message of 1,000");
    for number in 0..50 {
        let (conn, _) = is_present(&mut lab, &format!("away-{number}"));
        assert_eq!(lab.received(conn).len(), 1);
    }
}

#[test]
fn what_a_client_acknowledged_does_not_come_again() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    for number in 1..=3 {
        lab.publish(publisher, "t", format!("{number}").as_bytes(), 1, number);
    }
    let received = lab.received(subscriber);
    // Out of order: the middle one is not acknowledged.
    lab.ack(subscriber, AckKind::Puback, received[0].packet_id);
    lab.ack(subscriber, AckKind::Puback, received[2].packet_id);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "subscriber");
    let again = lab.received(conn);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].payload, b"2");
    // MQTT-4.4.0-1: with its original packet id.
    assert_eq!((again[0].packet_id, again[0].dup), (received[1].packet_id, true));
}

/// A lab whose journals let lists that nobody waits for wait.
fn lazy() -> Lab {
    let settings = storage::Settings { lazy_commit_ms: 50, ..journal_settings() };
    let mut lab = Lab::durable_by(1, Settings::default(), settings);
    lab.shards[0].on_tick(lab.now_ms);
    lab.settle();
    lab
}

/// Groups that the disk was given.
fn commits(lab: &Lab) -> u64 {
    lab.shards[0].journal().expect("a log").stats().commits
}

#[test]
fn an_acknowledgement_of_a_subscriber_shares_a_commit_or_waits_for_its_time() {
    let mut lab = lazy();
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    let first = lab.received(subscriber);
    let before = commits(&lab);
    lab.ack(subscriber, AckKind::Puback, first[0].packet_id);
    assert_eq!(commits(&lab), before, "nobody waits for it");
    lab.publish(publisher, "t", b"2", 1, 2);
    assert_eq!(commits(&lab), before + 1, "it goes with the next message");
    let second = lab.received(subscriber);
    lab.ack(subscriber, AckKind::Puback, second[0].packet_id);
    assert_eq!(commits(&lab), before + 1);
    lab.now_ms += 50;
    let now_ms = lab.now_ms;
    lab.shards[0].on_tick(now_ms);
    lab.settle();
    assert_eq!(commits(&lab), before + 2);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "subscriber");
    assert_eq!(lab.received(conn), []);
}

#[test]
fn a_crash_before_a_lazy_list_repeats_qos_1_and_never_a_publish_of_qos_2() {
    let mut lab = lazy();
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"twice", 1, 1);
    lab.publish(publisher, "t", b"once", 2, 2);
    let received = lab.received(subscriber);
    assert_eq!(received.iter().map(|r| r.qos).collect::<Vec<_>>(), [1, 2]);
    lab.ack(subscriber, AckKind::Pubrec, received[1].packet_id);
    let released = (AckKind::Pubrel, received[1].packet_id, Reason::SUCCESS);
    assert_eq!(acks(lab.take_all(subscriber)), [released]);
    lab.ack(subscriber, AckKind::Puback, received[0].packet_id);
    lab.ack(subscriber, AckKind::Pubcomp, received[1].packet_id);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "subscriber");
    let again = lab.received(conn);
    assert_eq!(again.iter().map(|r| &r.payload[..]).collect::<Vec<_>>(), [b"twice"]);
    assert!(again[0].dup && again[0].packet_id == received[0].packet_id);
}

#[test]
fn qos_2_from_a_client_is_taken_once_across_a_crash() {
    let mut lab = Lab::durable(4);
    leave_subscribed(&mut lab, "away", "t", 2);
    let publisher = lab.open(persistent("publisher"));
    lab.publish(publisher, "t", b"once", 2, 7);
    assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Pubrec, 7, Reason::SUCCESS)]);
    lab.crash(Crash::Power);
    let (publisher, present) = is_present(&mut lab, "publisher");
    assert!(present);
    lab.send(publisher, &dup("t", b"once", 7));
    lab.ack(publisher, AckKind::Pubrel, 7);
    let expected = [(AckKind::Pubrec, 7, Reason::SUCCESS), (AckKind::Pubcomp, 7, Reason::SUCCESS)];
    assert_eq!(acks(lab.take_all(publisher)), expected);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["once"]);
    // The packet id is free for news, also after a further crash.
    lab.crash(Crash::Power);
    let (publisher, _) = is_present(&mut lab, "publisher");
    lab.publish(publisher, "t", b"news", 2, 7);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["once", "news"]);
}

#[test]
fn qos_2_to_a_client_is_sent_once_across_a_crash() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    lab.publish(publisher, "t", b"once", 2, 1);
    assert_eq!(lab.received(subscriber), [], "its packet id is not on the disk yet");
    lab.disks_stand_still = false;
    lab.settle();
    let first = lab.received(subscriber);
    lab.ack(subscriber, AckKind::Pubrec, first[0].packet_id);
    let released = [(AckKind::Pubrel, first[0].packet_id, Reason::SUCCESS)];
    assert_eq!(acks(lab.take_all(subscriber)), released);
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "subscriber");
    assert_eq!(acks(lab.take_all(conn)), released, "PUBREL again, and no PUBLISH");
    lab.ack(conn, AckKind::Pubcomp, first[0].packet_id);
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "subscriber");
    assert_eq!(lab.take_all(conn), []);
}

#[test]
fn retained_messages_and_their_clearing_outlive_a_crash() {
    let mut lab = Lab::durable(4);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("r/1", b"old", 1, 1));
    lab.send(publisher, &retained("r/1", b"new", 1, 2));
    lab.send(publisher, &retained("r/2", b"gone", 1, 3));
    lab.send(publisher, &retained("r/2", b"", 1, 4));
    assert_eq!(acks(lab.take_all(publisher)).len(), 4);
    lab.crash(Crash::Power);
    let conn = lab.open(request("reader"));
    lab.subscribe(conn, "r/#", 1);
    assert_eq!(lab.payloads(conn), ["new"]);
}

#[test]
fn mqtt_3_10_4_3_a_delivery_that_has_begun_is_completed_after_a_crash_too() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 2, 1);
    assert_eq!(lab.payloads(subscriber), ["1"]);
    lab.unsubscribe(subscriber, "t");
    lab.crash(Crash::Power);
    let (conn, is_present) = is_present(&mut lab, "subscriber");
    assert!(is_present);
    let received = lab.received(conn);
    assert_eq!(received.len(), 1);
    assert!(received[0].dup);
}

#[test]
fn a_clearing_that_is_repeated_waits_for_the_disk_too() {
    let mut lab = Lab::durable(1);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("r", b"old", 1, 1));
    lab.take_all(publisher);
    lab.disks_stand_still = true;
    lab.send(publisher, &retained("r", b"", 1, 2));
    // By now there is nothing to clear in memory, and nothing is cleared on disk.
    lab.send(publisher, &retained("r", b"", 1, 3));
    assert_eq!(lab.take_all(publisher), []);
    lab.disks_stand_still = false;
    lab.settle();
    assert_eq!(acks(lab.take_all(publisher)).len(), 2);
}

#[test]
fn a_full_retained_store_refuses_qos_2_of_a_kept_session_too() {
    let settings = Settings { retained_messages_max: 1, ..Settings::default() };
    for shards in [1, 4] {
        let mut lab = Lab::durable_with(shards, settings.clone());
        let publisher = lab.open(persistent("publisher"));
        lab.send(publisher, &retained("r/1", b"kept", 2, 1));
        lab.send(publisher, &retained("r/2", b"too many", 2, 2));
        lab.send(publisher, &retained("r/1", b"newer", 2, 3));
        let answers: Vec<Reason> =
            acks(lab.take_all(publisher)).into_iter().map(|(_, _, reason)| reason).collect();
        assert_eq!(answers, [Reason::SUCCESS, Reason::QUOTA_EXCEEDED, Reason::SUCCESS]);
        let reader = lab.open(request("reader"));
        lab.subscribe(reader, "r/#", 1);
        assert_eq!(lab.payloads(reader), ["newer"], "{shards} shards");
    }
}

#[test]
fn subscriptions_that_were_given_up_stay_so() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("client"));
    lab.subscribe(conn, "a", 1);
    lab.subscribe(conn, "b", 1);
    lab.unsubscribe(conn, "a");
    lab.crash(Crash::Power);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a", b"a", 1, 1);
    lab.publish(publisher, "b", b"b", 1, 2);
    let (conn, _) = is_present(&mut lab, "client");
    assert_eq!(lab.payloads(conn), ["b"]);
}

#[test]
fn a_subscription_made_again_keeps_what_waits() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    let slow = Limits { in_flight_max: 1, ..Limits::default() };
    lab.publish(publisher, "t", b"2", 1, 2);
    let conn = lab.open(with_limits(persistent("away"), slow));
    assert_eq!(lab.payloads(conn), ["1"]);
    lab.subscribe(conn, "t", 1);
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["1", "2"]);
}

#[test]
fn overlapping_filters_bring_one_copy_with_both_identifiers() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("away"));
    lab.subscribe_with(conn, "t/+", SubscribeOptions::new(level(1)), Some(7));
    lab.subscribe_with(conn, "t/#", SubscribeOptions::new(level(1)), Some(9));
    lab.cut(conn);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/a", b"1", 1, 1);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "away");
    let mut received = lab.received(conn);
    received[0].identifiers.sort_unstable();
    assert_eq!((received.len(), &received[0].identifiers[..]), (1, &[7, 9][..]));
}

#[test]
fn mqtt_3_8_3_3_no_local_holds_for_what_waits() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("both"));
    let options = SubscribeOptions { no_local: true, ..SubscribeOptions::new(level(1)) };
    lab.subscribe_with(conn, "t", options, None);
    let other = lab.open(persistent("other"));
    lab.subscribe(other, "t", 1);
    lab.cut(other);
    lab.publish(conn, "t", b"own", 1, 1);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "both");
    assert_eq!(lab.payloads(conn), Vec::<String>::new());
    let (other, _) = is_present(&mut lab, "other");
    assert_eq!(lab.payloads(other), ["own"]);
}

#[test]
fn expiry_goes_on_while_the_broker_is_down() {
    let mut lab = Lab::durable(1);
    let short = ConnectRequest { session_expiry_secs: 60, ..persistent("short") };
    let conn = lab.open(short);
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    leave_subscribed(&mut lab, "long", "t", 1);
    lab.pass_secs(40);
    lab.crash(Crash::Kill);
    lab.now_ms += 30_000;
    lab.restart();
    lab.pass_secs(1);
    assert!(!is_present(&mut lab, "short").1);
    assert!(is_present(&mut lab, "long").1);
}

#[test]
fn messages_that_expire_while_the_broker_is_down_are_not_delivered() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    let mut properties = codec::PropertyBuf::new();
    properties.push(codec::Property::MessageExpirySecs(10));
    lab.send(
        publisher,
        &Packet::Publish(Publish {
            dup: false,
            qos: level(1),
            retain: false,
            topic: "t",
            packet_id: 1,
            properties: properties.as_properties(),
            payload: b"stale",
        }),
    );
    lab.publish(publisher, "t", b"fresh", 1, 2);
    lab.crash(Crash::Kill);
    lab.now_ms += 11_000;
    lab.restart();
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["fresh"]);
}

#[test]
fn a_will_is_published_after_a_crash() {
    let mut lab = Lab::durable(2);
    leave_subscribed(&mut lab, "watcher", "will", 1);
    let mut asking = persistent("dying");
    asking.will = Some(Box::new(session::Will {
        topic: "will".into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        delay_secs: 2,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }));
    lab.open(asking);
    lab.crash(Crash::Power);
    lab.pass_secs(4);
    let (conn, _) = is_present(&mut lab, "watcher");
    assert_eq!(lab.payloads(conn), ["gone"]);
    lab.crash(Crash::Power);
    lab.pass_secs(4);
    let (conn, _) = is_present(&mut lab, "watcher");
    assert_eq!(lab.payloads(conn), ["gone"], "sent again, as it was not acknowledged; not twice");
}

#[test]
fn a_clean_start_takes_all_away_for_good() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "client", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    let conn = lab.open(ConnectRequest { clean_start: true, ..persistent("client") });
    lab.cut(conn);
    lab.crash(Crash::Power);
    let (conn, present) = is_present(&mut lab, "client");
    assert!(present, "the new session");
    assert_eq!(lab.payloads(conn), Vec::<String>::new());
    assert_eq!(lab.shards[0].journal().map(|journal| journal.stats().segments), Some(1));
}

#[test]
fn a_full_queue_drops_the_oldest_and_says_so() {
    let mut lab = Lab::durable(1);
    let queue =
        QueueLimits { messages_max: 3, overflow: Overflow::DropOldest, ..Limits::default().queue };
    let limits = Limits { queue, ..Limits::default() };
    let conn = lab.open(with_limits(persistent("away"), limits));
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    let publisher = lab.open(request("publisher"));
    for number in 1..=5 {
        lab.publish(publisher, "t", format!("{number}").as_bytes(), 1, number);
    }
    assert_eq!(lab.total(|metrics| &metrics.dropped_queue_full), 2);
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["3", "4", "5"]);
}

#[test]
fn a_group_keeps_what_nobody_has_acknowledged() {
    let mut lab = Lab::durable(4);
    leave_subscribed(&mut lab, "member-a", "$share/g/t", 1);
    leave_subscribed(&mut lab, "member-b", "$share/g/t", 1);
    let publisher = lab.open(request("publisher"));
    for number in 1..=4 {
        lab.publish(publisher, "t", format!("{number}").as_bytes(), 1, number);
    }
    assert_eq!(acks(lab.take_all(publisher)).len(), 4);
    lab.crash(Crash::Power);
    let (a, _) = is_present(&mut lab, "member-a");
    let received = lab.received(a);
    assert_eq!(received.len(), 4);
    lab.ack(a, AckKind::Puback, received[0].packet_id);
    // It dies: the other gets what it has not acknowledged.
    lab.cut(a);
    let (b, _) = is_present(&mut lab, "member-b");
    assert_eq!(lab.payloads(b), ["2", "3", "4"]);
    // Progress is written lazily: a loss of power may bring more again.
    lab.crash(Crash::Kill);
    let (b, _) = is_present(&mut lab, "member-b");
    assert_eq!(lab.payloads(b), ["2", "3", "4"], "not acknowledged yet");
}

#[test]
fn memory_level_topics_write_nothing_and_wait_for_nothing() {
    let topic_durability = vec![("fast/#".into(), Durability::Memory)];
    let settings = Settings { topic_durability, ..Settings::default() };
    let mut lab = Lab::durable_with(1, settings);
    leave_subscribed(&mut lab, "away", "#", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    lab.publish(publisher, "fast/a", b"1", 1, 1);
    assert_eq!(acks(lab.take_all(publisher)).len(), 1);
    lab.publish(publisher, "kept/a", b"2", 1, 2);
    assert_eq!(acks(lab.take_all(publisher)).len(), 0);
    lab.disks_stand_still = false;
    lab.settle();
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["2"]);
}

#[test]
fn at_level_disk_an_acknowledgement_outlives_the_process() {
    let mut lab = Lab::durable(1);
    let limits = Limits { durability: Durability::Disk, ..Limits::default() };
    let conn = lab.open(with_limits(persistent("away"), limits.clone()));
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    let publisher = lab.open(with_limits(request("publisher"), limits));
    let syncs = lab.shards[0].journal().map(|journal| journal.stats().syncs);
    lab.publish(publisher, "t", b"1", 1, 1);
    assert_eq!(acks(lab.take_all(publisher)).len(), 1);
    assert_eq!(
        lab.shards[0].journal().map(|journal| journal.stats().syncs),
        syncs,
        "no sync for it"
    );
    lab.crash(Crash::Kill);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["1"]);
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_space_returns() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks[0].faults.capacity_bytes = 4 * 64 * 1024;
    let mut packet_id = 0;
    let mut kept = 0;
    let refused = loop {
        packet_id += 1;
        lab.publish(publisher, "t", &[b'x'; 4000], 1, packet_id);
        match acks(lab.take_all(publisher)).first() {
            Some((_, _, Reason::SUCCESS)) => kept += 1,
            other => break other.copied(),
        }
        assert!(packet_id < 1000, "the disk is never full");
    };
    assert_eq!(refused.map(|(_, _, reason)| reason), Some(Reason::QUOTA_EXCEEDED));
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Full(_))));
    // Clean traffic goes on, and so does delivery.
    let other = lab.open(request("other"));
    lab.subscribe(other, "free", 1);
    lab.publish(publisher, "free", b"1", 1, 5000);
    assert_eq!(lab.payloads(other), ["1"]);
    let (conn, _) = is_present(&mut lab, "away");
    let received = lab.received(conn);
    assert_eq!(received.len(), kept);
    for message in received {
        lab.ack(conn, AckKind::Puback, message.packet_id);
    }
    lab.pass_secs(10);
    assert_eq!(lab.shards[0].journal_status(), Some(Status::Ready));
    lab.take_all(publisher);
    lab.publish(publisher, "t", b"again", 1, 6000);
    assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 6000, Reason::SUCCESS)]);
}

#[test]
fn a_full_disk_may_hold_publishers_up_instead() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let mut lab = Lab::durable_with(1, settings);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks[0].faults.capacity_bytes = 4 * 64 * 1024;
    let mut packet_id = 0;
    while !matches!(lab.shards[0].journal_status(), Some(Status::Full(_))) {
        packet_id += 1;
        lab.publish(publisher, "t", &[b'x'; 4000], 1, packet_id);
        assert!(packet_id < 1000, "the disk is never full");
    }
    lab.take_all(publisher);
    lab.pauses.clear();
    lab.publish(publisher, "t", b"waits", 1, 2000);
    assert_eq!(lab.take_all(publisher), []);
    assert_eq!(lab.pauses.len(), 1);
    lab.disks[0].faults.capacity_bytes = u64::MAX;
    lab.pass_secs(3);
    lab.bytes(publisher, &[]);
    lab.settle();
    assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 2000, Reason::SUCCESS)]);
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"before", 1, 1);
    lab.take_all(publisher);
    lab.disks[0].faults.fail_next_sync = true;
    lab.publish(publisher, "t", b"lost", 1, 2);
    let answered = acks(lab.take_all(publisher));
    assert_eq!(answered, [(AckKind::Puback, 2, Reason::IMPLEMENTATION_SPECIFIC_ERROR)]);
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Poisoned(_))));
    lab.publish(publisher, "t", b"later", 1, 3);
    let answered = acks(lab.take_all(publisher));
    assert_eq!(answered, [(AckKind::Puback, 3, Reason::IMPLEMENTATION_SPECIFIC_ERROR)]);
    let refused = lab.connect(persistent("new"));
    let answer = lab.take(refused);
    assert!(
        matches!(answer, Some(Got::Connack { reason: Reason::SERVER_UNAVAILABLE, .. })),
        "{answer:?}"
    );
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["before"]);
}

/// The packet ID may be on the medium: a PUBREC that refuses would free it for the client, and
/// after a start another message under it would be taken for a repetition.
#[test]
fn a_log_that_fails_ends_the_connection_of_a_qos_2_publisher_and_keeps_its_packet_id() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 2);
    let publisher = lab.open(persistent("publisher"));
    lab.disks[0].faults.fail_next_sync = true;
    lab.publish(publisher, "t", b"unknown", 2, 7);
    assert!(acks(lab.take_all(publisher)).is_empty());
    assert!(lab.is_closed(publisher));
    lab.crash(Crash::Kill);
    let (publisher, present) = is_present(&mut lab, "publisher");
    assert!(present);
    lab.send(publisher, &dup("t", b"unknown", 7));
    lab.ack(publisher, AckKind::Pubrel, 7);
    lab.publish(publisher, "t", b"next", 2, 7);
    let expected = [AckKind::Pubrec, AckKind::Pubcomp, AckKind::Pubrec];
    let answered = acks(lab.take_all(publisher));
    assert_eq!(answered, expected.map(|kind| (kind, 7, Reason::SUCCESS)));
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["unknown", "next"]);
}

#[test]
fn space_follows_what_is_needed_while_one_client_is_long_away() {
    let mut lab = Lab::durable(1);
    let queue = QueueLimits { messages_max: 10, ..Limits::default().queue };
    let limits = Limits { queue, ..Limits::default() };
    let conn = lab.open(with_limits(persistent("away"), limits));
    lab.subscribe(conn, "rare", 1);
    lab.cut(conn);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "busy", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "rare", b"for the one that is away", 1, 1);
    for round in 0..2000_u32 {
        let packet_id = (round % 60_000) as u16 + 2;
        lab.publish(publisher, "busy", &[b'x'; 1000], 1, packet_id);
        for message in lab.received(subscriber) {
            lab.ack(subscriber, AckKind::Puback, message.packet_id);
        }
        lab.now_ms += 1;
    }
    lab.pass_secs(5);
    let stats = lab.shards[0].journal().expect("a log").stats();
    assert!(stats.segments <= 4, "{stats:?}");
    assert!(stats.segments_reclaimed > 20, "{stats:?}");
    lab.crash(Crash::Power);
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["for the one that is away"]);
    let (subscriber, present) = is_present(&mut lab, "subscriber");
    assert!(present);
    assert_eq!(lab.received(subscriber), []);
}

#[test]
fn everything_outlives_many_turns_of_the_journal() {
    let mut lab = Lab::durable(2);
    leave_subscribed(&mut lab, "away", "kept", 2);
    leave_subscribed(&mut lab, "member", "$share/g/jobs", 1);
    let taking = lab.open(persistent("taking"));
    lab.publish(taking, "nobody", b"half", 2, 9);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "kept", b"1", 2, 1);
    lab.ack(publisher, AckKind::Pubrel, 1);
    lab.publish(publisher, "jobs", b"job", 1, 2);
    lab.send(publisher, &retained("r", b"kept", 1, 3));
    let topic = lab.topic_on(0, "churn");
    let other = lab.topic_on(1, "churn");
    for round in 0..600_u16 {
        lab.send(publisher, &retained(&topic, &[b'y'; 1000], 1, 10 + round));
        lab.send(publisher, &retained(&other, &[b'y'; 1000], 1, 5000 + round));
    }
    for shard in &lab.shards {
        let stats = shard.journal().expect("a log").stats();
        assert!(stats.segments_reclaimed > 2, "{stats:?}");
    }
    lab.crash(Crash::Power);
    let (away, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(away), ["1"]);
    let (member, _) = is_present(&mut lab, "member");
    assert_eq!(lab.payloads(member), ["job"]);
    let (taking, _) = is_present(&mut lab, "taking");
    lab.send(taking, &Packet::Ack(Ack::new(AckKind::Pubrel, 9, Reason::SUCCESS)));
    let expected = [(AckKind::Pubcomp, 9, Reason::SUCCESS)];
    assert_eq!(acks(lab.take_all(taking)), expected);
    let reader = lab.open(request("reader"));
    let options = SubscribeOptions {
        retain_handling: RetainHandling::Always,
        ..SubscribeOptions::new(level(1))
    };
    lab.subscribe_with(reader, "r", options, None);
    assert_eq!(lab.payloads(reader), ["kept"]);
}

#[test]
fn a_long_backlog_is_read_back_from_the_disk() {
    let mut lab = Lab::durable(1);
    leave_subscribed(&mut lab, "away", "t", 1);
    leave_subscribed(&mut lab, "also", "t", 1);
    let publisher = lab.open(request("publisher"));
    for number in 1..=500_u16 {
        let payload = format!("{number:0>500}");
        lab.publish(publisher, "t", payload.as_bytes(), 1, number);
    }
    lab.crash(Crash::Kill);
    for id in ["away", "also"] {
        let (conn, _) = is_present(&mut lab, id);
        let mut next = 1_u16;
        loop {
            let received = lab.received(conn);
            if received.is_empty() {
                break;
            }
            for message in received {
                let expected = format!("{next:0>500}");
                assert_eq!(String::from_utf8_lossy(&message.payload), expected, "{id}");
                next += 1;
                lab.ack(conn, AckKind::Puback, message.packet_id);
            }
        }
        assert_eq!(next, 501, "{id}");
    }
    lab.pass_secs(5);
    let stats = lab.shards[0].journal().expect("a log").stats();
    assert!(stats.live_bytes < 2000, "{stats:?}");
}

#[test]
fn an_orderly_end_and_a_start_lose_nothing() {
    let mut lab = Lab::durable(2);
    leave_subscribed(&mut lab, "away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    for shard in &mut lab.shards {
        shard.on_shutdown(lab.now_ms);
    }
    lab.settle();
    for shard in &mut lab.shards {
        shard.journal_mut().expect("a log").close();
    }
    lab.settle();
    assert!(lab.shards.iter().all(|shard| shard.journal_status() == Some(Status::Closed)));
    lab.restart();
    let (conn, _) = is_present(&mut lab, "away");
    assert_eq!(lab.payloads(conn), ["1"]);
}

#[test]
fn a_version_3_session_is_kept_too() {
    let mut lab = Lab::durable(1);
    let asking = ConnectRequest { version: Version::V311, ..persistent("old") };
    let conn = lab.open(asking.clone());
    lab.subscribe(conn, "t", 1);
    lab.crash(Crash::Kill);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    let conn = lab.open(asking);
    assert_eq!(lab.payloads(conn), ["1"]);
}

#[test]
fn mqtt_4_4_0_1_after_a_pubrec_only_its_pubrel_is_sent_again_though_no_disk_has_it() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("subscriber"));
    lab.subscribe(conn, "t", 2);
    let publisher = lab.open(request("publisher"));
    for number in 1..=3 {
        lab.publish(publisher, "t", b"x", 2, number);
        lab.ack(publisher, AckKind::Pubrel, number);
    }
    let received = lab.received(conn);
    assert_eq!(received.len(), 3);
    lab.disks_stand_still = true;
    for publish in &received {
        lab.ack(conn, AckKind::Pubrec, publish.packet_id);
    }
    lab.cut(conn);
    let conn = lab.open(persistent("subscriber"));
    assert_eq!(lab.take_all(conn), [], "no PUBLISH, and no PUBREL before it is kept");
    lab.disks_stand_still = false;
    lab.settle();
    let released = acks(lab.take_all(conn));
    let ids: Vec<_> = received.iter().map(|publish| publish.packet_id).collect();
    assert!(released.iter().all(|(kind, ..)| *kind == AckKind::Pubrel));
    assert_eq!(released.iter().map(|(_, packet_id, _)| *packet_id).collect::<Vec<_>>(), ids);
    for packet_id in ids {
        lab.ack(conn, AckKind::Pubcomp, packet_id);
    }
    assert_eq!(lab.take_all(conn), []);
}

#[test]
fn while_a_disk_works_nothing_is_due_that_waits_for_it() {
    let mut lab = Lab::durable(1);
    let limits = Limits { durability: Durability::Disk, ..Limits::default() };
    let conn = lab.open(with_limits(persistent("subscriber"), limits.clone()));
    lab.subscribe(conn, "t", 1);
    let publisher = lab.open(with_limits(request("publisher"), limits));
    lab.disks_stand_still = true;
    for number in 1..=20 {
        lab.publish(publisher, "t", b"x", 1, number);
        // A tick may find something to do; then it is done, or waits for the disk.
        lab.pass_secs(1);
        let due = lab.shards[0].next_deadline_ms();
        assert!(due > lab.now_ms, "{number}: due at {due}, it is {}", lab.now_ms);
    }
    lab.disks_stand_still = false;
    lab.settle();
    lab.pass_secs(2);
    assert!(lab.shards[0].next_deadline_ms() > lab.now_ms);
}
