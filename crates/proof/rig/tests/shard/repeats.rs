//! QoS 2 publishes that come again with the next connection, because the PUBREC of the first was
//! lost with the connection before.

use broker::{ConnectRequest, Settings};
use codec::{AckKind, Packet, Reason, Version};
use rig::{Conn, Got, Lab, again, persistent, publish, queue, read_all, with_limits};
use session::Overflow;

/// A subscriber on another shard than the publisher, which is asked and may refuse: it is away, and
/// its queue has room for so many messages.
fn asked_elsewhere(room: u32) -> (Lab, Conn) {
    let settings = Settings { rejects: true, ..Settings::default() };
    let mut lab = Lab::with(2, settings, policy::Access::open());
    let request = subscriber(&lab, room);
    let subscriber = lab.open(request);
    lab.subscribe(subscriber, "t", 2);
    lab.cut(subscriber);
    let publisher = publisher(&mut lab);
    (lab, publisher)
}

fn subscriber(lab: &Lab, room: u32) -> ConnectRequest {
    with_limits(persistent(&lab.id_on(0, "subscriber")), queue(room, Overflow::Reject))
}

/// A connection of the publisher, which takes over one that is still open. Mail stays where it is.
fn publisher(lab: &mut Lab) -> Conn {
    let id = lab.id_on(1, "publisher");
    let conn = lab.connect_only(persistent(&id));
    lab.flush();
    assert!(matches!(lab.take(conn), Some(Got::Connack { reason: Reason::SUCCESS, .. })));
    conn
}

fn arrived(lab: &mut Lab) -> Vec<String> {
    let request = subscriber(lab, 10);
    let subscriber = lab.open(request);
    read_all(lab, subscriber)
}

const ACCEPTED: Got = Got::Ack(AckKind::Pubrec, 5, Reason::SUCCESS);
const REFUSED: Got = Got::Ack(AckKind::Pubrec, 5, Reason::QUOTA_EXCEEDED);

#[test]
fn mqtt_4_3_3_10_a_publish_that_was_accepted_after_its_connection_broke_is_a_repetition() {
    let (mut lab, first) = asked_elsewhere(10);
    lab.send_only(first, &publish("t", b"once", 2, 5));
    let second = publisher(&mut lab);
    lab.settle();
    lab.send(second, &again(publish("t", b"once", 2, 5)));
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["once"]);
}

#[test]
fn mqtt_4_3_3_10_a_repetition_waits_for_the_answer_to_what_it_repeats() {
    let (mut lab, first) = asked_elsewhere(10);
    lab.send_only(first, &publish("t", b"once", 2, 5));
    let second = publisher(&mut lab);
    lab.send_only(second, &again(publish("t", b"once", 2, 5)));
    // A connection later it waits for the same.
    let third = publisher(&mut lab);
    lab.send_only(third, &again(publish("t", b"once", 2, 5)));
    lab.flush();
    assert_eq!(lab.take_all(third), []);
    lab.settle();
    assert_eq!(lab.take_all(third), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["once"]);
}

#[test]
fn a_repetition_of_what_is_refused_is_refused_and_new_when_it_comes_again() {
    let (mut lab, first) = asked_elsewhere(0);
    let late = publish("t", b"late", 2, 5);
    lab.send_only(first, &late);
    let second = publisher(&mut lab);
    lab.send(second, &again(late));
    assert_eq!(lab.take_all(second), [REFUSED]);
    lab.send(second, &late);
    assert_eq!(lab.take_all(second), [REFUSED]);
    let request = subscriber(&lab, 10);
    let roomy = lab.open(request);
    lab.cut(roomy);
    lab.send(second, &late);
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["late"]);
}

#[test]
fn a_client_of_3_1_1_is_cut_off_when_what_it_repeats_is_refused() {
    let (mut lab, first) = asked_elsewhere(0);
    lab.send_only(first, &publish("t", b"late", 2, 5));
    let id = lab.id_on(1, "publisher");
    let second = lab.connect_only(ConnectRequest { version: Version::V311, ..persistent(&id) });
    lab.send_only(second, &again(publish("t", b"late", 2, 5)));
    lab.settle();
    assert!(lab.is_closed(second));
}

#[test]
fn a_late_refusal_is_not_of_the_publish_that_has_the_packet_id_by_then() {
    let (mut lab, first) = asked_elsewhere(0);
    lab.send_only(first, &publish("t", b"refused", 2, 5));
    // The client gives it up, as one may that has lost what it sent.
    let second = publisher(&mut lab);
    lab.send_only(second, &Packet::Ack(codec::Ack::new(AckKind::Pubrel, 5, Reason::SUCCESS)));
    lab.send_only(second, &publish("free", b"once", 2, 5));
    lab.flush();
    lab.take_all(second);
    lab.settle();
    assert_eq!(lab.total(|m| &m.publishes_refused), 1);
    // The packet id is that of the second, which was accepted, and is not passed on again.
    let request = subscriber(&lab, 10);
    let subscriber = lab.open(request);
    lab.subscribe(subscriber, "free", 2);
    lab.send(second, &again(publish("free", b"once", 2, 5)));
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(lab.received(subscriber), []);
}
