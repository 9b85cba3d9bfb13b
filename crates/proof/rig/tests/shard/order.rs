//! One publisher, one topic, mixed QoS: nothing overtakes, and retained is what was acknowledged
//! last.

use broker::{Durability, Settings};
use codec::{AckKind, Packet, QoS};
use rig::{Conn, Got, Lab, persistent, request};
use session::Overflow;
use storage::Status;
use storage::testing::Crash;

fn acks(got: Vec<Got>) -> Vec<(AckKind, u16)> {
    let ack = |got| match got {
        Got::Ack(kind, packet_id, reason) => {
            assert!(!reason.is_error(), "{reason:?}");
            Some((kind, packet_id))
        }
        _ => None,
    };
    got.into_iter().filter_map(ack).collect()
}

/// A publish of this QoS whose packet id is its number.
fn send(lab: &mut Lab, conn: Conn, topic: &str, qos: u8, number: u16, flags: &[&str]) {
    let payload = number.to_string();
    let packet_id = if qos == 0 { 0 } else { number };
    let mut packet = rig::publish(topic, payload.as_bytes(), qos, packet_id);
    if let Packet::Publish(publish) = &mut packet {
        publish.retain = flags.contains(&"retain");
        publish.dup = flags.contains(&"dup");
        if flags.contains(&"clear") {
            publish.payload = b"";
        }
    }
    lab.send(conn, &packet);
}

fn retained_on(lab: &mut Lab, topic: &str) -> Vec<String> {
    let fresh = lab.open(request("fresh"));
    lab.subscribe(fresh, topic, 0);
    lab.settle();
    let payloads = lab.payloads(fresh);
    lab.cut(fresh);
    payloads
}

#[test]
fn what_is_retained_is_what_was_acknowledged_last_whatever_the_qos() {
    for home in 0..3 {
        for newer in [0, 1] {
            let mut lab = Lab::durable(3);
            let publisher = lab.id_on(0, "publisher");
            let publisher = lab.open(persistent(&publisher));
            let topic = lab.topic_on(home, "r");
            lab.disks_stand_still = true;
            send(&mut lab, publisher, &topic, 2, 1, &["retain"]);
            send(&mut lab, publisher, &topic, newer, 2, &["retain"]);
            assert_eq!(acks(lab.take_all(publisher)), []);
            lab.disks_stand_still = false;
            lab.settle();
            let expected = [(AckKind::Pubrec, 1), (AckKind::Puback, 2)];
            assert_eq!(acks(lab.take_all(publisher)), expected[..1 + usize::from(newer)]);
            assert_eq!(retained_on(&mut lab, &topic), ["2"], "QoS {newer}, home {home}");
            lab.crash(Crash::Power);
            assert_eq!(retained_on(&mut lab, &topic), ["2"], "QoS {newer}, home {home}, crash");
        }
    }
}

#[test]
fn a_publisher_and_topic_keep_their_order_on_other_shards_whatever_the_qos() {
    let mut lab = Lab::durable(2);
    let (kept, clean) = (lab.id_on(1, "kept"), lab.id_on(1, "clean"));
    let kept = lab.open(persistent(&kept));
    lab.subscribe(kept, "t/#", 2);
    let clean = lab.open(request(&clean));
    lab.subscribe(clean, "t/#", 2);
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    lab.disks_stand_still = true;
    for (number, qos) in [2, 1, 0, 2, 1, 1, 2, 0, 1].into_iter().enumerate() {
        send(&mut lab, publisher, "t/a", qos, number as u16 + 1, &[]);
    }
    // Another topic does not wait.
    send(&mut lab, publisher, "t/b", 1, 100, &[]);
    assert_eq!(lab.payloads(clean), ["100"]);
    assert_eq!(lab.payloads(kept), ["100"]);
    lab.disks_stand_still = false;
    lab.settle();
    let expected = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
    assert_eq!(lab.payloads(clean), expected);
    let exactly: Vec<String> =
        lab.payloads(kept).into_iter().filter(|number| !["3", "8"].contains(&&**number)).collect();
    assert_eq!(exactly, ["1", "2", "4", "5", "6", "7", "9"]);
    let answers = acks(lab.take_all(publisher));
    let numbers: Vec<u16> = answers.iter().map(|(_, number)| *number).collect();
    assert_eq!(numbers, [1, 2, 4, 5, 6, 7, 9, 100]);
}

#[test]
fn a_delivery_of_qos_1_does_not_overtake_one_of_qos_2_that_waits_for_the_disk() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    for (number, qos) in [1, 2, 1, 2, 1].into_iter().enumerate() {
        send(&mut lab, publisher, "t", qos, number as u16 + 1, &[]);
    }
    assert_eq!(lab.payloads(subscriber), ["1"]);
    lab.disks_stand_still = false;
    lab.settle();
    let received = lab.received(subscriber);
    let seen: Vec<(u8, bool, &[u8])> =
        received.iter().map(|r| (r.qos, r.dup, r.payload.as_slice())).collect();
    assert_eq!(
        seen,
        [(2, false, b"2".as_slice()), (1, false, b"3"), (2, false, b"4"), (1, false, b"5")]
    );
}

#[test]
fn what_waits_behind_a_commit_is_sent_again_in_order_to_the_next_connection() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    send(&mut lab, publisher, "t", 2, 1, &[]);
    send(&mut lab, publisher, "t", 1, 2, &[]);
    let subscriber = lab.open(persistent("subscriber"));
    send(&mut lab, publisher, "t", 1, 3, &[]);
    assert_eq!(lab.payloads(subscriber), Vec::<String>::new());
    lab.disks_stand_still = false;
    lab.settle();
    assert_eq!(lab.payloads(subscriber), ["1", "2", "3"]);
}

#[test]
fn a_will_does_not_overtake_what_its_client_published() {
    for home in 0..2 {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(home, "status");
        let publisher = lab.id_on(0, "publisher");
        let mut with_will = persistent(&publisher);
        with_will.will = Some(Box::new(session::Will {
            topic: topic.as_str().into(),
            properties: Box::default(),
            payload: b"offline".as_slice().into(),
            qos: QoS::AtLeastOnce,
            retain: true,
            delay_secs: 0,
            message_expiry_secs: None,
            due_ms: session::NEVER,
        }));
        let publisher = lab.open(with_will);
        lab.disks_stand_still = true;
        send(&mut lab, publisher, &topic, 2, 1, &["retain"]);
        lab.cut(publisher);
        lab.disks_stand_still = false;
        lab.settle();
        assert_eq!(retained_on(&mut lab, &topic), ["offline"], "home {home}");
    }
}

#[test]
fn an_older_publish_that_comes_again_does_not_stay_retained() {
    for home in 0..2 {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(home, "r");
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain"]);
        // The acknowledgements are lost with the connection, and both come again.
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain", "dup"]);
        assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 1)]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain", "dup"]);
        assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Pubrec, 2)]);
        assert_eq!(retained_on(&mut lab, &topic), ["2"], "home {home}");
        lab.crash(Crash::Power);
        assert_eq!(retained_on(&mut lab, &topic), ["2"], "home {home}, crash");
    }
}

#[test]
fn an_older_publish_that_came_again_on_an_earlier_connection_does_not_stay_retained() {
    for crashes in [false, true] {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(1, "r");
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain"]);
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain", "dup"]);
        if crashes {
            lab.crash(Crash::Power);
        }
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 2, 2, &["retain", "dup"]);
        assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Pubrec, 2)]);
        assert_eq!(retained_on(&mut lab, &topic), ["2"], "crashes: {crashes}");
        // Released, it has no say any more.
        lab.ack(publisher, AckKind::Pubrel, 2);
        send(&mut lab, publisher, &topic, 1, 3, &["retain"]);
        assert_eq!(retained_on(&mut lab, &topic), ["3"], "crashes: {crashes}");
    }
}

/// A client that has published `1` to `19`, retained, on a topic whose home is its own shard, all
/// large and all but the first at QoS 2, and has seen no acknowledgement of them.
fn unanswered(lab: &mut Lab, id: &str, topic: &str) {
    let publisher = lab.open(persistent(id));
    for number in 1..20 {
        lab.send(publisher, &large(topic, number, false));
    }
}

fn large(topic: &str, number: u16, dup: bool) -> Packet<'static> {
    let mut payload = vec![b'0'; 5000];
    payload.extend(number.to_string().bytes());
    let qos = if number == 1 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
    Packet::Publish(codec::Publish {
        dup,
        qos,
        retain: true,
        topic: topic.to_owned().leak(),
        packet_id: number,
        properties: codec::Properties::EMPTY,
        payload: payload.leak(),
    })
}

fn numbers(payloads: &[String]) -> Vec<&str> {
    payloads.iter().map(|payload| payload.trim_start_matches('0')).collect()
}

#[test]
fn what_is_retained_in_its_turn_waits_for_the_next_segment() {
    let mut lab = Lab::durable(1);
    let publisher = lab.open(persistent("publisher"));
    lab.disks_stand_still = true;
    send(&mut lab, publisher, "r", 2, 100, &["retain"]);
    for number in 2..32 {
        let Packet::Publish(publish) = large("r", number, false) else { unreachable!() };
        lab.send(publisher, &Packet::Publish(codec::Publish { qos: QoS::AtLeastOnce, ..publish }));
    }
    lab.disks_stand_still = false;
    lab.settle();
    lab.pass_secs(1);
    assert_eq!(acks(lab.take_all(publisher)).len(), 31);
    assert_eq!(numbers(&retained_on(&mut lab, "r")), ["31"]);
}

#[test]
fn what_is_retained_anew_in_its_turn_waits_for_the_next_segment() {
    let mut lab = Lab::durable(1);
    unanswered(&mut lab, "publisher", "r");
    let publisher = lab.open(persistent("publisher"));
    lab.disks_stand_still = true;
    // All that follows waits behind this one, and is written at once.
    send(&mut lab, publisher, "r", 2, 100, &["retain"]);
    for number in 1..20 {
        lab.send(publisher, &large("r", number, true));
    }
    lab.disks_stand_still = false;
    lab.settle();
    lab.pass_secs(1);
    assert_eq!(acks(lab.take_all(publisher)).len(), 20);
    assert_eq!(numbers(&retained_on(&mut lab, "r")), ["19"]);
    lab.crash(Crash::Power);
    assert_eq!(numbers(&retained_on(&mut lab, "r")), ["19"]);
}

#[test]
fn what_came_again_is_known_however_often_the_journal_was_copied() {
    let mut lab = Lab::durable(1);
    let away = lab.open(persistent("away"));
    lab.subscribe(away, "r", 1);
    lab.cut(away);
    let publisher = lab.open(persistent("publisher"));
    send(&mut lab, publisher, "r", 1, 1, &["retain"]);
    send(&mut lab, publisher, "r", 2, 2, &["retain"]);
    let publisher = lab.open(persistent("publisher"));
    send(&mut lab, publisher, "r", 1, 1, &["retain", "dup"]);
    for _ in 0..2 {
        lab.turn_the_journal_over();
        lab.crash(Crash::Power);
    }
    assert_eq!(retained_on(&mut lab, "r"), ["1"]);
    let publisher = lab.open(persistent("publisher"));
    send(&mut lab, publisher, "r", 2, 2, &["retain", "dup"]);
    assert_eq!(retained_on(&mut lab, "r"), ["2"]);
    // Released, it is forgotten.
    lab.ack(publisher, AckKind::Pubrel, 2);
    lab.turn_the_journal_over();
    lab.crash(Crash::Power);
    let publisher = lab.open(persistent("publisher"));
    lab.take_all(publisher);
    send(&mut lab, publisher, "r", 2, 2, &["retain"]);
    assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Pubrec, 2)]);
    let away = lab.open(persistent("away"));
    assert_eq!(lab.payloads(away).len(), 4);
}

#[test]
fn what_was_retained_behind_one_that_comes_again_is_so_when_both_come_again() {
    for crashes in [false, true] {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(1, "r");
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain"]);
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 1, 1, &["retain", "dup"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain", "dup"]);
        send(&mut lab, publisher, &topic, 2, 3, &["retain"]);
        if crashes {
            lab.crash(Crash::Power);
        }
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &topic, 2, 2, &["retain", "dup"]);
        if crashes {
            lab.crash(Crash::Power);
        }
        let publisher = lab.open(persistent(&id));
        lab.ack(publisher, AckKind::Pubrel, 2);
        send(&mut lab, publisher, &topic, 2, 3, &["retain", "dup"]);
        assert_eq!(retained_on(&mut lab, &topic), ["3"], "crashes: {crashes}");
    }
}

#[test]
fn a_retained_publish_that_comes_again_replaces_nothing_that_another_client_has_put_there() {
    for (home, crashes) in [(0, false), (0, true), (1, false), (1, true)] {
        let mut lab = Lab::durable(2);
        let (topic, another) = (lab.topic_on(home, "r"), lab.topic_on(home, "s"));
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &another, 1, 1, &["retain"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain"]);
        let other = lab.open(request("other"));
        send(&mut lab, other, &topic, 1, 3, &["retain"]);
        if crashes {
            lab.crash(Crash::Power);
        }
        let publisher = lab.open(persistent(&id));
        send(&mut lab, publisher, &another, 1, 1, &["retain", "dup"]);
        send(&mut lab, publisher, &topic, 2, 2, &["retain", "dup"]);
        let expected = [(AckKind::Puback, 1), (AckKind::Pubrec, 2)];
        assert_eq!(acks(lab.take_all(publisher)), expected);
        assert_eq!(retained_on(&mut lab, &topic), ["3"], "home {home}, crashes: {crashes}");
    }
}

#[test]
fn what_was_taken_on_and_given_up_does_not_replace_what_was_acknowledged() {
    for home in 0..2 {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(home, "r");
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        lab.disks_stand_still = true;
        send(&mut lab, publisher, &topic, 2, 1, &["retain"]);
        // A clean start: nobody will hear of the first one any more.
        let publisher = lab.connect(request(&id));
        send(&mut lab, publisher, &topic, 1, 2, &["retain"]);
        lab.disks_stand_still = false;
        lab.settle();
        assert!(matches!(lab.take(publisher), Some(Got::Connack { .. })));
        assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 2)]);
        assert_eq!(retained_on(&mut lab, &topic), ["2"], "home {home}");
    }
}

#[test]
fn what_waits_behind_others_has_a_limit_and_nothing_is_lost() {
    let mut lab = Lab::durable(2);
    let id = lab.id_on(1, "subscriber");
    let limits = broker::Limits { outbox_bytes_max: 1 << 26, ..broker::Limits::default() };
    let subscriber = lab.open(rig::with_limits(request(&id), limits));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    lab.disks_stand_still = true;
    send(&mut lab, publisher, "t", 2, 1, &[]);
    let payload = vec![b'x'; 10_000];
    for _ in 0..500 {
        lab.send_only(publisher, &rig::publish("t", &payload, 0, 0));
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

#[test]
fn what_waits_for_a_kept_session_keeps_its_order_where_only_some_of_it_is_written() {
    for shards in [1, 2] {
        let topic_durability = vec![("fast/#".into(), Durability::Memory)];
        let mut lab =
            Lab::durable_with(shards, Settings { topic_durability, ..Settings::default() });
        let away = lab.id_on(0, "away");
        let conn = lab.open(persistent(&away));
        lab.subscribe(conn, "#", 2);
        lab.settle();
        lab.cut(conn);
        let publisher = lab.id_on(shards - 1, "publisher");
        let publisher = lab.open(request(&publisher));
        for (number, qos) in [1, 2, 1, 1, 2, 1].into_iter().enumerate() {
            send(&mut lab, publisher, "fast/a", qos, number as u16 + 1, &[]);
            lab.settle();
        }
        // Nobody waits for what is written only for the order.
        lab.disks_stand_still = true;
        send(&mut lab, publisher, "fast/a", 1, 7, &[]);
        assert_eq!(acks(lab.take_all(publisher)).len(), 7);
        lab.disks_stand_still = false;
        lab.settle();
        let conn = lab.open(persistent(&away));
        lab.settle();
        assert_eq!(lab.payloads(conn), ["1", "2", "3", "4", "5", "6", "7"], "{shards} shards");
    }
}

/// Topics below `fast` are at level `memory`. The sessions `slow`, at QoS 1 and with room for one
/// message in flight, and `twice`, at QoS 2 and away, are kept and listen to them. Returns `slow`,
/// and a publisher.
fn memory_and_disk(shards: u16, settings: Settings) -> (Lab, Conn, Conn) {
    let topic_durability = vec![("fast/#".into(), Durability::Memory)];
    let mut lab = Lab::durable_with(shards, Settings { topic_durability, ..settings });
    let twice = lab.id_on(0, "twice");
    let twice = lab.open(persistent(&twice));
    lab.subscribe(twice, "fast/#", 2);
    lab.cut(twice);
    let slow = slow(&mut lab);
    lab.subscribe(slow, "#", 1);
    let publisher = lab.id_on(shards - 1, "publisher");
    let publisher = lab.open(request(&publisher));
    (lab, slow, publisher)
}

fn slow(lab: &mut Lab) -> Conn {
    let id = lab.id_on(0, "slow");
    lab.open(rig::with_limits(persistent(&id), rig::window(1)))
}

fn send_each(lab: &mut Lab, publisher: Conn, qos: &[u8], from: u16) {
    for (number, qos) in (from..).zip(qos) {
        send(lab, publisher, "fast/a", *qos, number, &[]);
    }
    assert_eq!(acks(lab.take_all(publisher)).len(), qos.len(), "nobody waits");
}

/// Fills the journal of shard 0, as far as the disk lets it.
fn fill(lab: &mut Lab) {
    let filler = lab.open(request("filler"));
    for number in 1..100 {
        let before = lab.shards[0].journal().expect("a log").stats().bytes_appended;
        lab.publish(filler, "other", &[b'x'; 4000], 1, number);
        let after = lab.shards[0].journal().expect("a log").stats().bytes_appended;
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

fn at_qos(qos: u8, numbers: std::ops::Range<u16>) -> Vec<(u8, String)> {
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
fn what_is_not_written_and_waits_goes_to_each_once_across_connections() {
    let (mut lab, first, publisher) = memory_and_disk(1, Settings::default());
    let quick = lab.open(rig::with_limits(persistent("quick"), rig::window(2)));
    lab.subscribe(quick, "fast/#", 1);
    send_each(&mut lab, publisher, &[1, 2], 1);
    // The one has room, the other is behind.
    lab.ack(quick, AckKind::Puback, 1);
    send_each(&mut lab, publisher, &[1], 3);
    assert_eq!(lab.payloads(quick), ["1", "2", "3"]);
    // Now both are.
    send_each(&mut lab, publisher, &[2, 1, 1], 4);
    assert_eq!(lab.payloads(first), ["1"]);
    let again = slow(&mut lab);
    assert_eq!(rig::read_all(&mut lab, again), ["1", "2", "3", "4", "5", "6"]);
    for packet_id in 2..=3 {
        lab.ack(quick, AckKind::Puback, packet_id);
    }
    assert_eq!(rig::read_all(&mut lab, quick), ["4", "5", "6"]);
    // Nobody is behind any more, and nothing is left.
    send_each(&mut lab, publisher, &[1], 7);
    assert_eq!(rig::read_all(&mut lab, quick), ["7"]);
    assert_eq!(rig::read_all(&mut lab, again), ["7"]);
}

#[test]
fn what_is_not_written_is_lost_with_the_process_and_nothing_else() {
    for crash in [Crash::Kill, Crash::Power] {
        let (mut lab, conn, publisher) = memory_and_disk(1, Settings::default());
        lab.cut(conn);
        send_each(&mut lab, publisher, &[2, 1, 2, 1, 1, 1], 1);
        // What begins now counts from a serial that no message in the journal has.
        let late = lab.open(persistent("late"));
        lab.subscribe(late, "fast/#", 2);
        lab.cut(late);
        lab.crash(crash);
        let publisher = lab.open(request("publisher"));
        send_each(&mut lab, publisher, &[2, 1, 2], 7);
        let conn = slow(&mut lab);
        let seen = rig::read_all(&mut lab, conn);
        assert_eq!(seen, ["1", "3", "7", "8", "9"], "{crash:?}");
        lab.crash(crash);
        let late = lab.open(persistent("late"));
        assert_eq!(lab.payloads(late), ["7", "9"], "{crash:?}");
    }
}

#[test]
fn what_is_not_written_and_waits_has_the_limits_of_its_queue() {
    let limits = |overflow| rig::queue(3, overflow);
    for (overflow, expected) in [
        (Overflow::DropOldest, vec!["1", "4", "5", "6"]),
        (Overflow::DropNewest, vec!["1", "2", "3", "4"]),
        (Overflow::Reject, vec!["1", "2", "3", "4"]),
    ] {
        let rejects = overflow == Overflow::Reject;
        let settings = Settings { rejects, ..Settings::default() };
        let (mut lab, conn, publisher) = memory_and_disk(1, settings);
        lab.cut(conn);
        let id = lab.id_on(0, "slow");
        let conn = lab.open(rig::with_limits(persistent(&id), limits(overflow)));
        let mut refused = Vec::new();
        for (number, qos) in (1..).zip([2, 2, 1, 1, 1, 1]) {
            send(&mut lab, publisher, "fast/a", qos, number, &[]);
            let is_error = |got: &Got| matches!(got, Got::Ack(_, _, reason) if reason.is_error());
            refused.extend(lab.take_all(publisher).iter().any(is_error).then_some(number));
        }
        assert_eq!(refused, if rejects { vec![5, 6] } else { vec![] }, "{overflow:?}");
        let dropped = lab.total(|metrics| &metrics.dropped_queue_full);
        assert_eq!(dropped, if rejects { 0 } else { 2 }, "{overflow:?}");
        assert_eq!(rig::read_all(&mut lab, conn), expected, "{overflow:?}");
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

#[test]
fn what_is_not_written_and_waits_expires() {
    let (mut lab, conn, publisher) = memory_and_disk(1, Settings::default());
    lab.cut(conn);
    send_each(&mut lab, publisher, &[2], 1);
    let mut properties = codec::PropertyBuf::new();
    properties.push(codec::Property::MessageExpirySecs(2));
    let Packet::Publish(publish) = rig::publish("fast/a", b"2", 1, 2) else { unreachable!() };
    let properties = properties.as_properties();
    lab.send(publisher, &Packet::Publish(codec::Publish { properties, ..publish }));
    lab.take_all(publisher);
    send_each(&mut lab, publisher, &[1], 3);
    lab.pass_secs(5);
    let conn = slow(&mut lab);
    assert_eq!(rig::read_all(&mut lab, conn), ["1", "3"]);
}
