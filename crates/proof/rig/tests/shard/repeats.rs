//! QoS 2 publishes that come again with the next connection, because the PUBREC of the first was
//! lost with the connection before.

use broker::{ConnectRequest, Settings};
use codec::{AckKind, Packet, Reason, Version};
use rig::{Conn, Got, Lab, persistent, publish, queue, read_all, request, with_limits};
use session::Overflow;
use storage::testing::Crash;

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

fn again(payload: &[u8]) -> Packet<'_> {
    again_on("t", payload)
}

fn again_on<'a>(topic: &'a str, payload: &'a [u8]) -> Packet<'a> {
    let Packet::Publish(publish) = publish(topic, payload, 2, 5) else { unreachable!() };
    Packet::Publish(codec::Publish { dup: true, ..publish })
}

fn arrived(lab: &mut Lab) -> Vec<String> {
    let request = subscriber(lab, 10);
    let subscriber = lab.open(request);
    let mut arrived = Vec::new();
    for received in lab.received(subscriber) {
        arrived.push(String::from_utf8(received.payload).expect("text"));
        lab.ack(subscriber, AckKind::Pubrec, received.packet_id);
        lab.ack(subscriber, AckKind::Pubcomp, received.packet_id);
        arrived.extend(read_all(lab, subscriber));
    }
    arrived
}

const ACCEPTED: Got = Got::Ack(AckKind::Pubrec, 5, Reason::SUCCESS);
const REFUSED: Got = Got::Ack(AckKind::Pubrec, 5, Reason::QUOTA_EXCEEDED);

#[test]
fn mqtt_4_3_3_10_a_publish_that_was_accepted_after_its_connection_broke_is_a_repetition() {
    let (mut lab, first) = asked_elsewhere(10);
    lab.send_only(first, &publish("t", b"once", 2, 5));
    let second = publisher(&mut lab);
    lab.settle();
    lab.send(second, &again(b"once"));
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["once"]);
}

#[test]
fn mqtt_4_3_3_10_a_repetition_waits_for_the_answer_to_what_it_repeats() {
    let (mut lab, first) = asked_elsewhere(10);
    lab.send_only(first, &publish("t", b"once", 2, 5));
    let second = publisher(&mut lab);
    lab.send_only(second, &again(b"once"));
    // A connection later it waits for the same.
    let third = publisher(&mut lab);
    lab.send_only(third, &again(b"once"));
    lab.flush();
    assert_eq!(lab.take_all(third), []);
    lab.settle();
    assert_eq!(lab.take_all(third), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["once"]);
}

#[test]
fn a_repetition_of_what_is_refused_is_refused_and_new_when_it_comes_again() {
    let (mut lab, first) = asked_elsewhere(0);
    lab.send_only(first, &publish("t", b"late", 2, 5));
    let second = publisher(&mut lab);
    lab.send_only(second, &again(b"late"));
    lab.flush();
    lab.settle();
    assert_eq!(lab.take_all(second), [REFUSED]);
    lab.send(second, &publish("t", b"late", 2, 5));
    assert_eq!(lab.take_all(second), [REFUSED]);
    let request = subscriber(&lab, 10);
    let roomy = lab.open(request);
    lab.cut(roomy);
    lab.send(second, &publish("t", b"late", 2, 5));
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(arrived(&mut lab), ["late"]);
}

#[test]
fn a_client_of_3_1_1_is_cut_off_when_what_it_repeats_is_refused() {
    let (mut lab, first) = asked_elsewhere(0);
    lab.send_only(first, &publish("t", b"late", 2, 5));
    let id = lab.id_on(1, "publisher");
    let second = lab.connect_only(ConnectRequest { version: Version::V311, ..persistent(&id) });
    lab.send_only(second, &again(b"late"));
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
    lab.send(second, &again_on("free", b"once"));
    assert_eq!(lab.take_all(second), [ACCEPTED]);
    assert_eq!(lab.received(subscriber), []);
}

/// The disk of one shard does what it was told, the others nothing.
fn work_disk(lab: &mut Lab, shard: usize) {
    let mut commands = Vec::new();
    loop {
        lab.shards[shard].take_disk_commands(&mut commands, lab.now_ms);
        commands.drain(..).for_each(|command| lab.disks[shard].submit(command));
        if lab.disks[shard].is_idle() {
            return;
        }
        if let Some(completion) = lab.disks[shard].step() {
            lab.shards[shard].on_disk(completion, lab.now_ms);
        }
    }
}

#[test]
fn what_reached_a_shard_before_anything_was_promised_there_is_known_when_it_comes_again() {
    let mut lab = Lab::durable(2);
    let (publisher, subscriber) = (lab.id_on(0, "publisher"), lab.id_on(1, "subscriber"));
    let conn = lab.open(persistent(&publisher));
    let reader = lab.open(persistent(&subscriber));
    // Somebody to whom nothing is promised has the message sent there.
    let listener = lab.id_on(1, "listener");
    let listener = lab.open(request(&listener));
    lab.subscribe(listener, "t", 2);
    lab.disks_stand_still = true;
    lab.send(conn, &publish("t", b"1", 2, 1));
    work_disk(&mut lab, 0);
    // While it is on its way there, a session subscribes that is promised what comes.
    lab.subscribe_all(reader, &["t"], 2);
    lab.settle();
    // The subscription is committed, and the message behind it; that it was passed on is not.
    work_disk(&mut lab, 1);
    lab.settle();
    lab.disks_stand_still = false;
    lab.crash(Crash::Power);
    let reader = lab.open(persistent(&subscriber));
    lab.settle();
    assert_eq!(lab.payloads(reader), ["1"]);
    lab.ack(reader, AckKind::Pubrec, 1);
    lab.ack(reader, AckKind::Pubcomp, 1);
    lab.settle();
    assert_eq!(lab.payloads(reader), [""; 0]);
}
