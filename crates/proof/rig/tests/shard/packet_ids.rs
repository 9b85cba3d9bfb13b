//! Packet ids of QoS 2 deliveries to kept sessions: the client has them until a PUBREL, so the
//! broker may not forget them.

use codec::{AckKind, QoS, Reason};
use rig::{
    Conn, Got, Lab, Received, persistent, request, retained, will, window, with_limits, with_will,
};
use storage::testing::Crash;

#[test]
fn mqtt_4_4_0_1_what_is_in_flight_is_sent_again_at_its_qos_whatever_is_subscribed_now() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t/+", 2);
    lab.subscribe(subscriber, "t/#", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/a", b"1", 2, 1);
    let first = lab.received(subscriber);
    assert_eq!((first[0].qos, first[0].packet_id), (2, 1));
    lab.unsubscribe(subscriber, "t/+");
    lab.crash(Crash::Power);
    let subscriber = lab.open(persistent("subscriber"));
    let again = lab.received(subscriber);
    assert_eq!((again[0].qos, again[0].packet_id, again[0].dup), (2, 1, true));
}

#[test]
fn no_packet_id_of_qos_2_is_used_that_no_journal_can_keep() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "will/#", 2);
    let dying = lab.open(with_will(request("c"), will("will/a", QoS::ExactlyOnce)));
    lab.disks[0].faults.fail_next_sync = true;
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "will/b", b"1", 1, 1);
    lab.take_all(subscriber);
    assert!(lab.is_poisoned(0));
    lab.cut(dying);
    assert_eq!(lab.take_all(subscriber), []);
    assert_eq!(lab.total(|m| &m.dropped_unlogged), 1);
}

/// A publisher retains so many messages at QoS 2, on `r/0`, `r/1` and so on.
fn retain(lab: &mut Lab, count: u16, payload: &[u8]) {
    let publisher = lab.open(request("publisher"));
    for number in 0..count {
        lab.send(publisher, &retained(&format!("r/{number}"), payload, 2, 1));
        lab.ack(publisher, AckKind::Pubrel, 1);
    }
}

/// What a session is sent that comes back: packet ids of PUBRELs and of publishes.
fn sent_again(lab: &mut Lab, conn: Conn) -> (Vec<u16>, Vec<u16>) {
    let (mut released, mut published) = (Vec::new(), Vec::new());
    for got in lab.take_all(conn) {
        match got {
            Got::Ack(AckKind::Pubrel, packet_id, Reason::SUCCESS) => released.push(packet_id),
            Got::Publish(received) => published.push(received.packet_id),
            other => panic!("unexpected {other:?}"),
        }
    }
    (released, published)
}

/// Subscribes to `r/#`, and returns what is retained.
fn subscribe(lab: &mut Lab, conn: Conn) -> Vec<Received> {
    lab.subscribe_all(conn, &["r/#"], 2);
    lab.settle();
    lab.received(conn)
}

#[test]
fn the_packet_id_of_a_retained_message_is_ended_by_a_pubrel_after_a_crash() {
    for reclaims in [false, true] {
        let mut lab = Lab::durable(1);
        retain(&mut lab, 3, b"kept");
        let subscriber = lab.open(persistent("subscriber"));
        let received = subscribe(&mut lab, subscriber);
        assert!(received.iter().all(|r| r.qos == 2 && r.retain && r.payload == b"kept"));
        assert_eq!(received.iter().map(|r| r.packet_id).collect::<Vec<_>>(), [1, 2, 3]);
        // The first is complete, of the second and third no PUBREL has come.
        lab.ack(subscriber, AckKind::Pubrec, 1);
        lab.ack(subscriber, AckKind::Pubcomp, 1);
        if reclaims {
            lab.turn_the_journal_over();
        }
        lab.crash(Crash::Power);
        let subscriber = lab.open(persistent("subscriber"));
        assert_eq!(sent_again(&mut lab, subscriber), (vec![2, 3], vec![]), "{reclaims}");
        let publisher = lab.open(request("publisher"));
        lab.publish(publisher, "r/0", b"live", 2, 1);
        assert_eq!(sent_again(&mut lab, subscriber), (vec![], vec![4]));
        lab.ack(subscriber, AckKind::Pubcomp, 2);
        lab.ack(subscriber, AckKind::Pubcomp, 3);
        lab.settle();
        if reclaims {
            lab.turn_the_journal_over();
        }
        // What is over is so in the next life, too.
        lab.crash(Crash::Kill);
        let subscriber = lab.open(persistent("subscriber"));
        assert_eq!(sent_again(&mut lab, subscriber), (vec![], vec![4]), "{reclaims}");
    }
}

#[test]
fn a_retained_message_of_qos_2_leaves_when_its_packet_id_is_written_and_in_order() {
    let mut lab = Lab::durable(1);
    retain(&mut lab, 1, b"kept");
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    lab.subscribe_all(subscriber, &["r/#"], 2);
    lab.settle();
    // A delivery of QoS 1 does not wait for the disk, but for what is before it.
    lab.publish(publisher, "t", b"live", 1, 1);
    lab.settle();
    assert_eq!(lab.received(subscriber), []);
    lab.let_disks_work();
    assert_eq!(lab.payloads(subscriber), ["kept", "live"]);
}

#[test]
fn packet_ids_of_retained_messages_are_written_as_they_are_sent_and_not_the_messages() {
    let mut lab = Lab::durable(1);
    retain(&mut lab, 1000, &[b'x'; 1000]);
    let slow = || with_limits(persistent("subscriber"), window(10));
    let subscriber = lab.open(slow());
    let before = lab.log_stats(0).bytes_appended;
    let first = subscribe(&mut lab, subscriber);
    assert_eq!(first.len(), 10);
    let of_ten = lab.log_stats(0).bytes_appended - before;
    assert!(of_ten < 1000, "{of_ten}");
    let mut waiting: std::collections::VecDeque<_> = first.into();
    let mut count = 0;
    while let Some(received) = waiting.pop_front() {
        count += 1;
        lab.ack(subscriber, AckKind::Pubrec, received.packet_id);
        lab.ack(subscriber, AckKind::Pubcomp, received.packet_id);
        waiting.extend(lab.received(subscriber));
    }
    assert_eq!(count, 1000);
    // Nobody waits for the last of what is written here, so a loss of power may take it.
    lab.crash(Crash::Kill);
    let subscriber = lab.open(slow());
    assert_eq!(sent_again(&mut lab, subscriber), (vec![], vec![]));
}

#[test]
fn no_retained_message_of_qos_2_leaves_from_a_broken_journal() {
    let mut lab = Lab::durable(2);
    let topic = lab.topic_on(0, "r");
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained(&topic, b"kept", 2, 1));
    let id = lab.id_on(1, "subscriber");
    let subscriber = lab.open(persistent(&id));
    lab.disks[1].faults.fail_next_sync = true;
    lab.subscribe_all(subscriber, &[&topic], 2);
    lab.settle();
    assert!(lab.is_poisoned(1));
    assert!(lab.received(subscriber).is_empty());
}
