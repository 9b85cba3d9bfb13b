//! One publisher, one topic, mixed QoS: nothing overtakes, and retained is what was acknowledged
//! last.

mod lab;

use broker::{Durability, Settings};
use codec::{AckKind, Packet, QoS};
use lab::{Got, Lab, persistent, request};
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
fn send(lab: &mut Lab, conn: lab::Conn, topic: &str, qos: u8, number: u16, flags: &[&str]) {
    let payload = number.to_string();
    let packet_id = if qos == 0 { 0 } else { number };
    let mut packet = lab::publish(topic, payload.as_bytes(), qos, packet_id);
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
        let publisher = lab.open(request(&id));
        send(&mut lab, publisher, &topic, 1, 2, &["retain"]);
        lab.disks_stand_still = false;
        lab.settle();
        assert_eq!(acks(lab.take_all(publisher)), [(AckKind::Puback, 2)]);
        assert_eq!(retained_on(&mut lab, &topic), ["2"], "home {home}");
    }
}

#[test]
fn what_waits_behind_others_has_a_limit_and_nothing_is_lost() {
    let mut lab = Lab::durable(2);
    let id = lab.id_on(1, "subscriber");
    let limits = broker::Limits { outbox_bytes_max: 1 << 26, ..broker::Limits::default() };
    let subscriber = lab.open(lab::with_limits(request(&id), limits));
    lab.subscribe(subscriber, "t", 2);
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    lab.disks_stand_still = true;
    send(&mut lab, publisher, "t", 2, 1, &[]);
    let payload = vec![b'x'; 10_000];
    for _ in 0..500 {
        lab.send_only(publisher, &lab::publish("t", &payload, 0, 0));
    }
    // It is told to wait: what lies in its inbox is not looked at.
    assert!(lab.pauses.iter().any(|(conn, _)| *conn == publisher));
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 0);
    lab.disks_stand_still = false;
    lab.settle();
    lab.bytes(publisher, b"");
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 501);
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
