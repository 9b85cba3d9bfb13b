//! One publisher, one topic, mixed QoS: nothing overtakes, and retained is what was acknowledged
//! last.

use std::ops::Range;

use broker::{Durability, Limits, Settings};
use codec::{AckKind, Packet, QoS, Reason};
use rig::{
    Conn, Lab, again, persistent, publish, queue, read_all, request, retained, will, window,
    with_limits, with_will,
};
use session::{Overflow, Will};
use storage::Status;
use storage::testing::Crash;

/// A publish of this QoS whose packet id and payload are its number.
fn send(lab: &mut Lab, conn: Conn, topic: &str, qos: u8, number: u16) {
    let packet_id = if qos == 0 { 0 } else { number };
    lab.publish(conn, topic, number.to_string().as_bytes(), qos, packet_id);
}

fn retain(lab: &mut Lab, conn: Conn, topic: &str, qos: u8, number: u16) {
    lab.send(conn, &retained(topic, number.to_string().as_bytes(), qos, number));
}

fn retain_again(lab: &mut Lab, conn: Conn, topic: &str, qos: u8, number: u16) {
    lab.send(conn, &again(retained(topic, number.to_string().as_bytes(), qos, number)));
}

/// Packet ids that were acknowledged, each with success.
fn acked(lab: &mut Lab, conn: Conn) -> Vec<u16> {
    let acks = lab.acks(conn).into_iter();
    acks.inspect(|(_, _, reason)| assert!(!reason.is_error(), "{reason:?}"))
        .map(|(_, packet_id, _)| packet_id)
        .collect()
}

/// What happens on the topic of a row. Publishes are retained, with number and QoS.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Send(u16, u8),
    Again(u16, u8),
    /// On another topic of the same home.
    Elsewhere(u16, u8),
    ElsewhereAgain(u16, u8),
    /// Of another client.
    Other(u16, u8),
    Release(u16),
    /// The publisher has another connection, with its session.
    Back,
    /// And without.
    CleanStart,
    StandStill,
    Work,
    /// A loss of power. Each row is tried without it, too.
    PowerLoss,
}

#[test]
fn retained_is_what_was_acknowledged_last_whatever_comes_again() {
    use Step::*;
    let rows: [(&[Step], &str); 7] = [
        (&[StandStill, Send(1, 2), Send(2, 1), Work, PowerLoss], "2"),
        (&[StandStill, Send(1, 2), Send(2, 0), Work, PowerLoss], "2"),
        // The acknowledgements are lost with the connection.
        (&[Send(1, 1), Send(2, 2), Back, Again(1, 1), Again(2, 2), PowerLoss], "2"),
        // Released, it has no say any more.
        (
            &[
                &[Send(1, 1), Send(2, 2), Back, Again(1, 1), PowerLoss][..],
                &[Back, Again(2, 2), Release(2), Send(3, 1)],
            ]
            .concat(),
            "3",
        ),
        (
            &[
                &[Send(1, 1), Send(2, 2), Back, Again(1, 1), Again(2, 2), Send(3, 2)][..],
                &[PowerLoss, Back, Again(2, 2), PowerLoss, Back, Release(2), Again(3, 2)],
            ]
            .concat(),
            "3",
        ),
        // It replaces nothing of another client.
        (
            &[
                &[Elsewhere(1, 1), Send(2, 2), Other(3, 1), PowerLoss][..],
                &[Back, ElsewhereAgain(1, 1), Again(2, 2)],
            ]
            .concat(),
            "3",
        ),
        // Nobody hears of the first one any more.
        (&[StandStill, Send(1, 2), CleanStart, Send(2, 1), Work, PowerLoss], "2"),
    ];
    for (steps, expected) in rows {
        let calm: Vec<Step> = steps.iter().copied().filter(|step| *step != PowerLoss).collect();
        for (home, steps) in [(0, steps), (1, steps), (0, &calm), (1, &calm)] {
            let mut lab = Lab::durable(2);
            let topic = go(&mut lab, home, steps);
            assert_eq!(lab.retained_on(&topic), [expected], "home {home}: {steps:?}");
        }
    }
}

/// Returns the topic. The publisher is on the first shard.
fn go(lab: &mut Lab, home: u16, steps: &[Step]) -> String {
    let (topic, elsewhere) = (lab.topic_on(home, "r"), lab.topic_on(home, "s"));
    let id = lab.id_on(0, "publisher");
    let mut conn = lab.open(persistent(&id));
    for step in steps {
        match *step {
            Step::Send(number, qos) => retain(lab, conn, &topic, qos, number),
            Step::Again(number, qos) => retain_again(lab, conn, &topic, qos, number),
            Step::Elsewhere(number, qos) => retain(lab, conn, &elsewhere, qos, number),
            Step::ElsewhereAgain(number, qos) => retain_again(lab, conn, &elsewhere, qos, number),
            Step::Other(number, qos) => {
                let other = lab.open(request("other"));
                retain(lab, other, &topic, qos, number);
            }
            Step::Release(number) => lab.ack(conn, AckKind::Pubrel, number),
            Step::Back => conn = lab.open(persistent(&id)),
            Step::CleanStart => conn = lab.connect(request(&id)),
            Step::StandStill => lab.disks_stand_still = true,
            Step::Work => lab.let_disks_work(),
            Step::PowerLoss => lab.crash(Crash::Power),
        }
    }
    topic
}

#[test]
fn another_topic_does_not_wait_for_a_publish_of_qos_2() {
    let mut lab = Lab::durable(2);
    let (kept, clean) = (lab.id_on(1, "kept"), lab.id_on(1, "clean"));
    let kept = lab.open(persistent(&kept));
    lab.subscribe(kept, "t/#", 2);
    let clean = lab.open(request(&clean));
    lab.subscribe(clean, "t/#", 2);
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    lab.disks_stand_still = true;
    for (number, qos) in (1..).zip([2, 1, 0, 2, 1, 1, 2, 0, 1]) {
        send(&mut lab, publisher, "t/a", qos, number);
    }
    send(&mut lab, publisher, "t/b", 1, 100);
    assert_eq!(lab.payloads(clean), ["100"]);
    assert_eq!(lab.payloads(kept), ["100"]);
    lab.let_disks_work();
    assert_eq!(lab.payloads(clean), ["1", "2", "3", "4", "5", "6", "7", "8", "9"]);
    assert_eq!(acked(&mut lab, publisher), [1, 2, 4, 5, 6, 7, 9, 100]);
}

#[test]
fn a_will_does_not_overtake_what_its_client_published() {
    for home in 0..2 {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(home, "status");
        let will = Will { retain: true, ..will(&topic, QoS::AtLeastOnce) };
        let publisher = with_will(persistent(&lab.id_on(0, "publisher")), will);
        let publisher = lab.open(publisher);
        lab.disks_stand_still = true;
        retain(&mut lab, publisher, &topic, 2, 1);
        lab.cut(publisher);
        lab.let_disks_work();
        assert_eq!(lab.retained_on(&topic), ["gone"], "home {home}");
    }
}

/// Large, so that a segment has room for a few only.
fn large(number: u16, qos: u8) -> Packet<'static> {
    retained("r", format!("{number:0>5000}").leak().as_bytes(), qos, number)
}

#[test]
fn what_is_retained_in_its_turn_waits_for_the_next_segment() {
    for (is_again, qos, count) in [(false, 1, 30), (true, 2, 19)] {
        let mut lab = Lab::durable(1);
        let packets: Vec<Packet<'_>> =
            (1..=count).map(|number| large(number, if number == 1 { 1 } else { qos })).collect();
        if is_again {
            let publisher = lab.open(persistent("publisher"));
            packets.iter().for_each(|packet| lab.send(publisher, packet));
        }
        let publisher = lab.open(persistent("publisher"));
        lab.disks_stand_still = true;
        // All that follows waits behind this one, and is written at once.
        retain(&mut lab, publisher, "r", 2, 100);
        for packet in packets {
            lab.send(publisher, &if is_again { again(packet) } else { packet });
        }
        lab.let_disks_work();
        lab.pass_secs(1);
        assert_eq!(acked(&mut lab, publisher).len(), 1 + usize::from(count), "again: {is_again}");
        let retained = lab.retained_on("r");
        assert_eq!(retained[0].trim_start_matches('0'), count.to_string(), "again: {is_again}");
    }
}

#[test]
fn what_came_again_is_known_however_often_the_journal_was_copied() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "r", 1);
    let publisher = lab.open(persistent("publisher"));
    retain(&mut lab, publisher, "r", 1, 1);
    retain(&mut lab, publisher, "r", 2, 2);
    let publisher = lab.open(persistent("publisher"));
    retain_again(&mut lab, publisher, "r", 1, 1);
    for _ in 0..2 {
        lab.turn_the_journal_over();
        lab.crash(Crash::Power);
    }
    assert_eq!(lab.retained_on("r"), ["1"]);
    let publisher = lab.open(persistent("publisher"));
    retain_again(&mut lab, publisher, "r", 2, 2);
    assert_eq!(lab.retained_on("r"), ["2"]);
    // Released, it is forgotten.
    lab.ack(publisher, AckKind::Pubrel, 2);
    lab.turn_the_journal_over();
    lab.crash(Crash::Power);
    let publisher = lab.open(persistent("publisher"));
    retain(&mut lab, publisher, "r", 2, 2);
    assert_eq!(acked(&mut lab, publisher), [2]);
    let (away, _) = lab.resume("away");
    assert_eq!(lab.payloads(away).len(), 4);
}

#[test]
fn what_waits_behind_others_has_a_limit_and_nothing_is_lost() {
    let mut lab = Lab::durable(2);
    let id = lab.id_on(1, "subscriber");
    let limits = Limits { outbox_bytes_max: 1 << 26, ..Limits::default() };
    let subscriber = lab.open(with_limits(request(&id), limits));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    lab.disks_stand_still = true;
    send(&mut lab, publisher, "t", 2, 1);
    let payload = vec![b'x'; 10_000];
    for _ in 0..500 {
        lab.send_only(publisher, &publish("t", &payload, 0, 0));
    }
    // It is told to wait: what lies in its inbox is not looked at.
    assert!(lab.pauses.iter().any(|(conn, _)| *conn == publisher));
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 0);
    lab.disks_stand_still = false;
    let mut received = 0;
    for _ in 0..100 {
        lab.settle();
        received += lab.received(subscriber).len();
        // Its pause is over.
        lab.now_ms += 2;
        lab.bytes(publisher, b"");
    }
    assert_eq!(received, 501);
}

/// Topics below `fast` are at level `memory`. The sessions `slow`, at QoS 1 and with room for one
/// message in flight, and `twice`, at QoS 2 and away, are kept and listen to them. Returns `slow`,
/// and a publisher.
fn memory_and_disk(shards: u16, settings: Settings) -> (Lab, Conn, Conn) {
    let topic_durability = vec![("fast/#".into(), Durability::Memory)];
    let mut lab = Lab::durable_with(shards, Settings { topic_durability, ..settings });
    lab.leave(&lab.id_on(0, "twice"), "fast/#", 2);
    let slow = slow(&mut lab);
    lab.subscribe(slow, "#", 1);
    let publisher = lab.id_on(shards - 1, "publisher");
    let publisher = lab.open(request(&publisher));
    (lab, slow, publisher)
}

fn slow(lab: &mut Lab) -> Conn {
    let id = lab.id_on(0, "slow");
    lab.open(with_limits(persistent(&id), window(1)))
}

fn send_each(lab: &mut Lab, publisher: Conn, qos: &[u8], from: u16) {
    for (number, qos) in (from..).zip(qos) {
        send(lab, publisher, "fast/a", *qos, number);
    }
    assert_eq!(acked(lab, publisher).len(), qos.len(), "nobody waits");
}

/// Fills the journal of shard 0, as far as the disk lets it.
fn fill(lab: &mut Lab) {
    let filler = lab.open(request("filler"));
    for number in 1..100 {
        let before = lab.log_stats(0).bytes_appended;
        lab.publish(filler, "other", &[b'x'; 4000], 1, number);
        let after = lab.log_stats(0).bytes_appended;
        let is_ready = lab.shards[0].journal_status() == Some(Status::Ready);
        if !is_ready || lab.disks_stand_still && before == after {
            return;
        }
    }
    panic!("there is always room");
}

/// Publishes at QoS 2 until the journal takes no more of it. Returns the number of the next one.
fn brim(lab: &mut Lab, publisher: Conn, from: u16) -> u16 {
    let unlogged = lab.total(|metrics| &metrics.dropped_unlogged);
    for number in from..from + 1000 {
        send_each(lab, publisher, &[2], number);
        if lab.total(|metrics| &metrics.dropped_unlogged) > unlogged {
            return number + 1;
        }
    }
    panic!("there is always room");
}

/// Reads and acknowledges what comes on `fast/a`, and its QoS.
fn read_fast(lab: &mut Lab, conn: Conn) -> Vec<(u8, String)> {
    let mut seen = Vec::new();
    loop {
        let received = lab.received(conn);
        if received.is_empty() {
            return seen;
        }
        for publish in received {
            if publish.qos == 2 {
                lab.ack(conn, AckKind::Pubrec, publish.packet_id);
                assert_eq!(lab.take_all(conn).len(), 1, "the PUBREL");
                lab.ack(conn, AckKind::Pubcomp, publish.packet_id);
            } else {
                lab.ack(conn, AckKind::Puback, publish.packet_id);
            }
            if publish.topic == "fast/a" {
                seen.push((publish.qos, String::from_utf8(publish.payload).expect("text")));
            }
        }
    }
}

fn at_qos(qos: u8, numbers: Range<u16>) -> Vec<(u8, String)> {
    numbers.map(|number| (qos, number.to_string())).collect()
}

#[test]
fn what_waits_keeps_its_order_in_memory_whatever_becomes_of_the_journal() {
    for shards in [1, 2] {
        for state in ["behind", "full", "broken"] {
            let (mut lab, slow, publisher) = memory_and_disk(shards, Settings::default());
            send_each(&mut lab, publisher, &[1, 1, 2, 1], 1);
            match state {
                "behind" => lab.disks_stand_still = true,
                "full" => lab.disks[0].faults.capacity_bytes = 4 * 64 * 1024,
                _ => lab.disks[0].faults.fail_next_sync = true,
            }
            fill(&mut lab);
            // What needs a packet id in the journal is not read until there is a segment.
            let next = if state == "behind" { 5 } else { brim(&mut lab, publisher, 5) };
            send_each(&mut lab, publisher, &[1, 1], next);
            lab.disks_stand_still = false;
            lab.settle();
            let seen = read_fast(&mut lab, slow);
            assert_eq!(seen, at_qos(1, 1..next + 2), "{state}, {shards} shards");
        }
    }
}

#[test]
fn what_is_not_written_is_lost_with_the_process_and_nothing_else() {
    for crash in [Crash::Kill, Crash::Power] {
        let (mut lab, conn, publisher) = memory_and_disk(1, Settings::default());
        lab.cut(conn);
        send_each(&mut lab, publisher, &[2, 1, 2, 1, 1, 1], 1);
        // What begins now counts from a serial that no message in the journal has.
        lab.leave("late", "fast/#", 2);
        lab.crash(crash);
        let publisher = lab.open(request("publisher"));
        send_each(&mut lab, publisher, &[2, 1, 2], 7);
        let conn = slow(&mut lab);
        let seen = read_all(&mut lab, conn);
        assert_eq!(seen, ["1", "3", "7", "8", "9"], "{crash:?}");
        lab.crash(crash);
        let (late, _) = lab.resume("late");
        assert_eq!(lab.payloads(late), ["7", "9"], "{crash:?}");
    }
}

#[test]
fn what_is_not_written_and_waits_has_the_limits_of_its_queue() {
    let rows: [(Overflow, &[u16], [&str; 4], u64); 3] = [
        (Overflow::DropOldest, &[], ["1", "4", "5", "6"], 2),
        (Overflow::DropNewest, &[], ["1", "2", "3", "4"], 2),
        (Overflow::Reject, &[5, 6], ["1", "2", "3", "4"], 0),
    ];
    for (overflow, refused, expected, dropped) in rows {
        let settings = Settings { rejects: overflow == Overflow::Reject, ..Settings::default() };
        let (mut lab, conn, publisher) = memory_and_disk(1, settings);
        lab.cut(conn);
        let id = lab.id_on(0, "slow");
        let conn = lab.open(with_limits(persistent(&id), queue(3, overflow)));
        for (number, qos) in (1..).zip([2, 2, 1, 1, 1, 1]) {
            send(&mut lab, publisher, "fast/a", qos, number);
        }
        let mut answers = lab.acks(publisher);
        answers.retain(|(_, _, reason)| reason.is_error());
        let is_quota = |(_, packet_id, reason)| (packet_id, reason == Reason::QUOTA_EXCEEDED);
        let answers: Vec<_> = answers.into_iter().map(is_quota).collect();
        assert!(answers.into_iter().eq(refused.iter().map(|id| (*id, true))), "{overflow:?}");
        assert_eq!(lab.total(|metrics| &metrics.dropped_queue_full), dropped, "{overflow:?}");
        assert_eq!(read_all(&mut lab, conn), expected, "{overflow:?}");
    }
}

#[test]
fn what_is_not_written_never_has_a_packet_id_that_no_journal_knows() {
    let (mut lab, conn, publisher) = memory_and_disk(1, Settings::default());
    send_each(&mut lab, publisher, &[1, 2], 1);
    lab.disks[0].faults.capacity_bytes = 4 * 64 * 1024;
    fill(&mut lab);
    let next = brim(&mut lab, publisher, 3);
    lab.disks[0].faults.capacity_bytes = u64::MAX;
    lab.pass_secs(3);
    // When their turn comes they are subscribed to at QoS 2. The last is not written.
    assert_eq!(lab.payloads(conn), ["1"]);
    lab.subscribe(conn, "#", 2);
    lab.ack(conn, AckKind::Puback, 1);
    let mut expected = at_qos(2, 2..next - 1);
    expected.extend(at_qos(1, next - 1..next));
    assert_eq!(read_fast(&mut lab, conn), expected);
}
