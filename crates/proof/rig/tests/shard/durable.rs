//! Durable sessions, on simulated disks that can be stopped, filled, broken and cut off.
//!
//! Worlds of the simulator show that nothing is lost, comes twice or in another order. Here is what
//! they do not see: what is written, and how often; what waits for a disk; reasons and limits.

use broker::{Durability, Limits, Settings, WhenFull};
use codec::{AckKind, Reason};
use rig::{
    Lab, journal_settings, persistent, publish, queue, read_all, request, retained, with_limits,
};
use session::{Overflow, QueueLimits};
use storage::testing::Crash;

use crate::rows::{
    Step, asks, bursts, connects, counts, crashes_by, does, gets, is_closed, keeps, kept, numbers,
    passes, reads, row, run, sends, settles, stands_still, subscribes_all, works,
};

/// A kept session on `t` is away.
fn is_away() -> Step {
    sends("away", ["kept", "subscribe t qos2", "cut"])
}

fn fills_disk() -> Step {
    does(|stage| {
        let writer = stage.conn("writer");
        stage.lab.fill_disk(writer, "t");
        let acks = stage.lab.acks(writer);
        assert!(acks.iter().all(|(_, _, reason)| !reason.is_error()));
        stage.lab.pauses.clear();
    })
}

fn fails_next_sync() -> Step {
    does(|stage| stage.lab.disks[0].faults.fail_next_sync = true)
}

fn is_poisoned() -> Step {
    does(|stage| assert!(stage.lab.is_poisoned(0)))
}

#[test]
fn what_waits_for_the_disk() {
    let topic_durability = vec![("fast/#".into(), Durability::Memory)];
    let in_memory = Settings { topic_durability, ..Settings::default() };
    run([
        row("", "a PUBACK, and no delivery", Lab::durable(1)).steps([
            sends("reader", ["kept", "subscribe t qos1"]),
            stands_still(),
            asks("writer", "publish t 1 qos1", []),
            reads("reader", [1]),
            works(),
            gets("writer", ["puback 1"]),
        ]),
        row("", "what clears a retained message, also for the second time", Lab::durable(1)).steps(
            [
                asks("writer", "publish r old qos1 retain", ["puback 1"]),
                stands_still(),
                sends("writer", ["publish r \"\" qos1 id2 retain"]),
                // By now there is nothing to clear in memory, and nothing is cleared on disk.
                asks("writer", "publish r \"\" qos1 id3 retain", []),
                works(),
                gets("writer", ["puback 2", "puback 3"]),
            ],
        ),
        row("", "a SUBACK", Lab::durable(1)).steps([
            sends("reader", ["kept"]),
            stands_still(),
            asks("reader", "subscribe t qos1", []),
            works(),
            gets("reader", ["suback 1: 1"]),
        ]),
        row("", "a SUBACK for what is new before what is not", Lab::durable(1)).steps([
            sends("reader", ["kept", "subscribe old qos1"]),
            stands_still(),
            subscribes_all("reader", vec!["new".into(), "old".into()], 1),
            settles(),
            gets("reader", []),
            works(),
            gets("reader", ["suback 1: 1 1"]),
        ]),
        row("", "nothing of level memory", Lab::durable_with(1, in_memory)).steps([
            sends("away", ["kept", "subscribe # qos1", "cut"]),
            stands_still(),
            sends("writer", ["publish fast/a 1 qos1", "publish kept/a 2 qos1 id2"]),
            gets("writer", ["puback 1"]),
        ]),
    ]);
}

#[test]
fn limits_and_refusals_of_durable_sessions() {
    let one = Settings { retained_messages_max: 1, ..Settings::default() };
    let stores = [1, 4].map(|shards| Lab::durable_with(shards, one.clone()));
    let waits = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let few = Limits { in_flight_max: 20, ..queue(3, Overflow::DropOldest) };
    run([
        row("", "a full store of retained messages refuses QoS 2 of a kept session", stores).steps(
            [
                sends("writer", ["kept"]),
                asks("writer", "publish r/1 kept qos2 id1 retain", ["pubrec 1"]),
                asks("writer", "publish r/2 x qos2 id2 retain", ["pubrec 2 quota_exceeded"]),
                asks("writer", "publish r/1 newer qos2 id3 retain", ["pubrec 3"]),
                sends("reader", ["subscribe r/# qos1"]),
                reads("reader", ["newer"]),
            ],
        ),
        row("", "a full queue drops the oldest, and counts it", Lab::durable(1)).steps([
            keeps("away", few),
            sends("away", ["subscribe t qos1", "cut"]),
            numbers("writer", "t", 1..6),
            counts(|metrics| &metrics.dropped_queue_full, 2),
            crashes_by(Crash::Kill),
            sends("away", ["kept"]),
            reads("away", [3, 4, 5]),
        ]),
        row("", "overlapping filters bring one copy with both identifiers", Lab::durable(1)).steps(
            [
                sends(
                    "away",
                    ["kept", "subscribe t/+ qos1 sub7", "subscribe t/# qos1 sub9", "cut"],
                ),
                sends("writer", ["publish t/a 1 qos1"]),
                crashes_by(Crash::Kill),
                sends("away", ["kept"]),
                gets("away", ["publish t/a 1 qos1 id1 sub7,9"]),
            ],
        ),
        row("", "a full disk refuses until there is space", Lab::durable(1)).steps([
            is_away(),
            fills_disk(),
            asks("writer", "publish t x*4000 qos1 id4000", ["puback 4000 quota_exceeded"]),
            // Clean traffic goes on, and so does delivery.
            sends("other", ["subscribe free qos1"]),
            sends("writer", ["publish free 1 qos1 id4001"]),
            reads("other", [1]),
            does(|stage| {
                let (conn, _) = stage.lab.resume("away");
                assert!(read_all(&mut stage.lab, conn).len() > 20);
            }),
            passes(10),
            gets("writer", ["puback 4001"]),
            asks("writer", "publish t again qos1 id4002", ["puback 4002"]),
        ]),
        row("", "a full disk may hold publishers up instead", Lab::durable_with(1, waits)).steps([
            is_away(),
            fills_disk(),
            asks("writer", "publish t waits qos1 id2000", []),
            does(|stage| assert_eq!(stage.lab.pauses.len(), 1)),
            does(|stage| stage.lab.make_room()),
            bursts("writer", [""; 0]),
            settles(),
            gets("writer", ["puback 2000"]),
        ]),
    ]);
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    run([
        row("", "publishes and new sessions are refused", Lab::durable(1)).steps([
            is_away(),
            fails_next_sync(),
            asks("writer", "publish t lost qos1 id1", ["puback 1 implementation_specific_error"]),
            is_poisoned(),
            asks("writer", "publish t lost qos1 id2", ["puback 2 implementation_specific_error"]),
            connects("new", kept),
            gets("new", ["connack server_unavailable"]),
        ]),
        // The packet ID may be on the medium: a PUBREC that refuses would free it for the client,
        // and after a start another message under it would be taken for a repetition.
        row("", "a publisher at QoS 2 is disconnected without an answer", Lab::durable(1)).steps([
            is_away(),
            sends("writer", ["kept"]),
            fails_next_sync(),
            asks(
                "writer",
                "publish t unknown qos2 id7",
                ["disconnect implementation_specific_error"],
            ),
            is_closed("writer"),
        ]),
    ]);
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
