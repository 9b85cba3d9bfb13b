//! Durable sessions, on simulated disks that can be stopped, filled, broken and cut off.
//!
//! Worlds of the simulator show that nothing is lost, comes twice or in another order. Here is what
//! they do not see: what is written, and how often; what waits for a disk; reasons and limits.

use broker::{Durability, Limits, Settings, WhenFull};
use codec::{AckKind, Packet, Reason, SubscribeOptions};
use rig::{
    Got, Lab, journal_settings, level, persistent, publish, queue, read_all, request, retained,
    with_limits,
};
use session::{Overflow, QueueLimits};
use storage::Status;
use storage::testing::Crash;

/// What is sent while the disk stands still: the last packet, and its answer once the disk works.
#[test]
fn answers_wait_for_the_disk_and_deliveries_do_not() {
    let puback = |packet_id| Got::Ack(AckKind::Puback, packet_id, Reason::SUCCESS);
    let rows: [(&str, &[Packet<'_>], Vec<Got>); 3] = [
        ("a publish", &[publish("t", b"1", 1, 1)], vec![puback(1)]),
        ("a retained message is cleared", &[retained("r", b"", 1, 2)], vec![puback(2)]),
        // By the second one there is nothing to clear in memory, and nothing is cleared on disk.
        (
            "it is cleared again",
            &[retained("r", b"", 1, 2), retained("r", b"", 1, 3)],
            vec![puback(2), puback(3)],
        ),
    ];
    for (what, packets, answers) in rows {
        let mut lab = Lab::durable(1);
        let subscriber = lab.open(persistent("subscriber"));
        lab.subscribe(subscriber, "t", 1);
        let publisher = lab.open(request("publisher"));
        lab.send(publisher, &retained("r", b"old", 1, 1));
        lab.take_all(publisher);
        lab.disks_stand_still = true;
        packets.iter().for_each(|packet| lab.send(publisher, packet));
        assert_eq!(lab.take_all(publisher), [], "{what}");
        assert_eq!(lab.received(subscriber).len(), usize::from(what == "a publish"));
        lab.let_disks_work();
        assert_eq!(lab.take_all(publisher), answers, "{what}");
    }
}

#[test]
fn a_suback_waits_for_what_is_new_also_before_what_is_not() {
    for filters in [&["new"][..], &["new", "old"]] {
        let mut lab = Lab::durable(1);
        let conn = lab.open(persistent("subscriber"));
        lab.subscribe(conn, "old", 1);
        lab.disks_stand_still = true;
        lab.subscribe_all(conn, filters, 1);
        lab.settle();
        assert_eq!(lab.take_all(conn), [], "{filters:?}");
        lab.let_disks_work();
        assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![1; filters.len()])], "{filters:?}");
    }
}

#[test]
fn topics_of_level_memory_wait_for_nothing() {
    let topic_durability = vec![("fast/#".into(), Durability::Memory)];
    let mut lab = Lab::durable_with(1, Settings { topic_durability, ..Settings::default() });
    lab.leave("away", "#", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    lab.publish(publisher, "fast/a", b"1", 1, 1);
    lab.publish(publisher, "kept/a", b"2", 1, 2);
    assert_eq!(lab.acks(publisher), [(AckKind::Puback, 1, Reason::SUCCESS)]);
}

#[test]
fn memory_of_the_log_is_counted_and_given_back_when_nothing_happens() {
    for shards in [1, 4] {
        let mut lab = Lab::durable(shards);
        lab.leave("away", "t/#", 1);
        let publisher = lab.open(request("publisher"));
        let payload = vec![b'x'; 600];
        for number in 1..=20 {
            lab.publish(publisher, "t/a", &payload, 1, number);
        }
        lab.pass_secs(1);
        let busy = lab.total(|metrics| &metrics.log_cache_bytes);
        // A sixteenth of the limit of each shard, and buffers for new batches.
        assert!(busy > 0 && busy < u64::from(shards) * 8 * 1024, "{busy}");
        let (conn, _) = lab.resume("away");
        assert_eq!(lab.payloads(conn).len(), 20);
        lab.cut(conn);
        lab.pass_secs(8);
        assert_eq!(lab.total(|metrics| &metrics.log_cache_bytes), 0);
        let (conn, _) = lab.resume("away");
        assert_eq!(lab.payloads(conn).len(), 20, "the disk has them");
    }
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
        lab.send_only(publisher, &publish("t", &number.to_be_bytes(), 1, 1));
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
    let before = lab.log_stats(0).records_appended;
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 1, 1);
    lab.publish(publisher, "t", b"2", 2, 2);
    lab.publish(publisher, "t", b"3", 0, 0);
    assert_eq!(lab.payloads(subscriber), ["1", "2", "3"]);
    assert_eq!(lab.log_stats(0).records_appended, before);
}

#[test]
fn a_message_is_written_once_whatever_the_fan_out() {
    let mut lab = Lab::durable(1);
    for number in 0..50 {
        lab.leave(&format!("away-{number}"), "t", 1);
    }
    let publisher = lab.open(request("publisher"));
    let before = lab.log_stats(0).bytes_appended;
    lab.publish(publisher, "t", &[b'x'; 1000], 1, 1);
    let written = lab.log_stats(0).bytes_appended - before;
    assert!((1000..1100).contains(&written), "{written} bytes for one message of 1,000");
    for number in 0..50 {
        let (conn, _) = lab.resume(&format!("away-{number}"));
        assert_eq!(lab.received(conn).len(), 1);
    }
}

/// Groups that the disk was given.
fn commits(lab: &Lab) -> u64 {
    lab.log_stats(0).commits
}

#[test]
fn an_acknowledgement_of_a_subscriber_shares_a_commit_or_waits_for_its_time() {
    let settings = storage::Settings { lazy_commit_ms: 50, ..journal_settings() };
    let mut lab = Lab::durable_by(1, Settings::default(), settings);
    lab.shards[0].on_tick(lab.now_ms);
    lab.settle();
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
    let (conn, _) = lab.resume("subscriber");
    assert_eq!(lab.received(conn), []);
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
            lab.acks(publisher).into_iter().map(|(_, _, reason)| reason).collect();
        assert_eq!(answers, [Reason::SUCCESS, Reason::QUOTA_EXCEEDED, Reason::SUCCESS]);
        assert_eq!(lab.retained_on("r/#"), ["newer"], "{shards} shards");
    }
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
    let (conn, _) = lab.resume("away");
    let mut received = lab.received(conn);
    received[0].identifiers.sort_unstable();
    assert_eq!((received.len(), &received[0].identifiers[..]), (1, &[7, 9][..]));
}

#[test]
fn a_full_queue_drops_the_oldest_and_says_so() {
    let mut lab = Lab::durable(1);
    let limits = Limits { in_flight_max: 20, ..queue(3, Overflow::DropOldest) };
    let conn = lab.open(with_limits(persistent("away"), limits));
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    let publisher = lab.open(request("publisher"));
    for number in 1..=5 {
        lab.publish(publisher, "t", format!("{number}").as_bytes(), 1, number);
    }
    assert_eq!(lab.total(|metrics| &metrics.dropped_queue_full), 2);
    lab.crash(Crash::Kill);
    let (conn, _) = lab.resume("away");
    assert_eq!(lab.payloads(conn), ["3", "4", "5"]);
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_space_returns() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.fill_disk(publisher, "t");
    let kept = lab.acks(publisher);
    assert!(kept.iter().all(|(_, _, reason)| *reason == Reason::SUCCESS));
    lab.publish(publisher, "t", &[b'x'; 4000], 1, 4000);
    assert_eq!(lab.acks(publisher), [(AckKind::Puback, 4000, Reason::QUOTA_EXCEEDED)]);
    // Clean traffic goes on, and so does delivery.
    let other = lab.open(request("other"));
    lab.subscribe(other, "free", 1);
    lab.publish(publisher, "free", b"1", 1, 5000);
    assert_eq!(lab.payloads(other), ["1"]);
    let (conn, _) = lab.resume("away");
    assert_eq!(read_all(&mut lab, conn).len(), kept.len());
    lab.pass_secs(10);
    assert_eq!(lab.shards[0].journal_status(), Some(Status::Ready));
    lab.take_all(publisher);
    lab.publish(publisher, "t", b"again", 1, 6000);
    assert_eq!(lab.acks(publisher), [(AckKind::Puback, 6000, Reason::SUCCESS)]);
}

#[test]
fn a_full_disk_may_hold_publishers_up_instead() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let mut lab = Lab::durable_with(1, settings);
    lab.leave("away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.fill_disk(publisher, "t");
    lab.take_all(publisher);
    lab.pauses.clear();
    lab.publish(publisher, "t", b"waits", 1, 2000);
    assert_eq!(lab.take_all(publisher), []);
    assert_eq!(lab.pauses.len(), 1);
    lab.make_room();
    lab.bytes(publisher, &[]);
    lab.settle();
    assert_eq!(lab.acks(publisher), [(AckKind::Puback, 2000, Reason::SUCCESS)]);
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks[0].faults.fail_next_sync = true;
    for packet_id in 1..=2 {
        lab.publish(publisher, "t", b"lost", 1, packet_id);
        let failed = (AckKind::Puback, packet_id, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
        assert_eq!(lab.acks(publisher), [failed]);
        assert!(lab.is_poisoned(0));
    }
    let refused = lab.connect(persistent("new"));
    assert_eq!(lab.connack(refused), Some(Err(Reason::SERVER_UNAVAILABLE)));
}

/// The packet ID may be on the medium: a PUBREC that refuses would free it for the client, and
/// after a start another message under it would be taken for a repetition.
#[test]
fn a_log_that_fails_ends_the_connection_of_a_qos_2_publisher_without_an_answer() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "t", 2);
    let publisher = lab.open(persistent("publisher"));
    lab.disks[0].faults.fail_next_sync = true;
    lab.publish(publisher, "t", b"unknown", 2, 7);
    assert_eq!(lab.acks(publisher), []);
    assert!(lab.is_closed(publisher));
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
    for packet_id in 2..2000 {
        lab.publish(publisher, "busy", &[b'x'; 1000], 1, packet_id);
        read_all(&mut lab, subscriber);
        lab.now_ms += 1;
    }
    lab.pass_secs(5);
    let stats = lab.log_stats(0);
    assert!(stats.segments <= 4, "{stats:?}");
    assert!(stats.segments_reclaimed > 20, "{stats:?}");
    lab.crash(Crash::Power);
    let (conn, _) = lab.resume("away");
    assert_eq!(lab.payloads(conn), ["for the one that is away"]);
    let (subscriber, _) = lab.resume("subscriber");
    assert_eq!(lab.received(subscriber), []);
}

#[test]
fn everything_outlives_many_turns_of_the_journal() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "kept", 2);
    lab.leave("member", "$share/g/jobs", 1);
    let taking = lab.open(persistent("taking"));
    lab.publish(taking, "nobody", b"half", 2, 9);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "kept", b"1", 2, 1);
    lab.ack(publisher, AckKind::Pubrel, 1);
    lab.publish(publisher, "jobs", b"job", 1, 2);
    lab.send(publisher, &retained("r", b"kept", 1, 3));
    lab.turn_the_journal_over();
    lab.turn_the_journal_over();
    lab.crash(Crash::Power);
    let (away, _) = lab.resume("away");
    assert_eq!(lab.payloads(away), ["1"]);
    let (member, _) = lab.resume("member");
    assert_eq!(lab.payloads(member), ["job"]);
    let (taking, _) = lab.resume("taking");
    lab.ack(taking, AckKind::Pubrel, 9);
    assert_eq!(lab.acks(taking), [(AckKind::Pubcomp, 9, Reason::SUCCESS)]);
    assert_eq!(lab.retained_on("r"), ["kept"]);
}

#[test]
fn a_long_backlog_is_read_back_from_the_disk() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "t", 1);
    lab.leave("also", "t", 1);
    let publisher = lab.open(request("publisher"));
    let payloads: Vec<String> = (1..=500).map(|number| format!("{number:0>500}")).collect();
    for (packet_id, payload) in (1..).zip(&payloads) {
        lab.publish(publisher, "t", payload.as_bytes(), 1, packet_id);
    }
    lab.crash(Crash::Kill);
    for id in ["away", "also"] {
        let (conn, _) = lab.resume(id);
        assert_eq!(read_all(&mut lab, conn), payloads, "{id}");
    }
    lab.pass_secs(5);
    let stats = lab.log_stats(0);
    assert!(stats.live_bytes < 2000, "{stats:?}");
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
    lab.let_disks_work();
    lab.pass_secs(2);
    assert!(lab.shards[0].next_deadline_ms() > lab.now_ms);
}

#[test]
fn no_sync_follows_what_is_acknowledged_at_level_disk() {
    let mut lab = Lab::durable(1);
    let limits = Limits { durability: Durability::Disk, ..Limits::default() };
    let conn = lab.open(with_limits(persistent("subscriber"), limits.clone()));
    lab.subscribe(conn, "t", 1);
    let publisher = lab.open(with_limits(request("publisher"), limits));
    let before = lab.log_stats(0).syncs;
    lab.publish(publisher, "t", b"1", 1, 1);
    assert_eq!(lab.acks(publisher).len(), 1);
    assert_eq!(lab.log_stats(0).syncs, before);
}
