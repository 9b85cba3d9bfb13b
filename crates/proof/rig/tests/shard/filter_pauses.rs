//! Publishers are held while the queue of a subscriber that reads is long: those of large messages
//! early, all others when it is half full.

use broker::{ConnectRequest, Limits};
use codec::{AckKind, Packet, Properties, Version};
use rig::{Conn, Got, Lab, publish, request_with};
use session::{NEVER, QueueLimits};

const PAYLOAD_BYTES: usize = 100_000;

/// Of which an eighth is long.
const QUEUE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// More than fit into the queue.
const PUBLISHERS: u16 = 300;

fn limits() -> Limits {
    let queue = QueueLimits { bytes_max: QUEUE_BYTES_MAX, ..Limits::default().queue };
    Limits { queue, outbox_bytes_max: 256 * 1024, ..Limits::default() }
}

pub(crate) fn client_on(lab: &mut Lab, shard: u16, name: &str) -> Conn {
    let id = lab.id_on(shard, name);
    lab.open(request_with(&id, limits()))
}

pub(crate) fn encoded(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes
}

/// A large packet comes in two pieces, as off a socket.
fn send(lab: &mut Lab, conn: Conn, packet: &Packet<'_>) {
    let bytes = encoded(packet);
    let (front, rest) = bytes.split_at(4096.min(bytes.len()));
    lab.bytes(conn, front);
    lab.bytes(conn, rest);
}

pub(crate) fn send_large(lab: &mut Lab, conn: Conn, topic: &str, packet_id: u16) {
    send(lab, conn, &publish(topic, &[7; PAYLOAD_BYTES], 1, packet_id));
}

/// A subscriber on shard 1, and clients on both shards that each send it a message, of which the
/// mail is carried, but nothing is written to its socket.
struct Flood {
    lab: Lab,
    subscriber: Conn,
    publishers: Vec<Conn>,
    /// On each shard one that has sent nothing yet, but set alias 3 to `t/9`.
    neighbours: [Conn; 2],
}

fn flood() -> Flood {
    let mut lab = Lab::new(2);
    let subscriber = client_on(&mut lab, 1, "subscriber");
    lab.subscribe(subscriber, "t/#", 1);
    let other = client_on(&mut lab, 1, "other");
    lab.subscribe(other, "u", 1);
    let neighbours = [0, 1].map(|shard| client_on(&mut lab, shard, "neighbour"));
    for neighbour in neighbours {
        lab.send(neighbour, &aliased("t/9", &[1; 10], 100));
    }
    lab.received(subscriber);
    let on = |lab: &mut Lab, number| client_on(lab, number % 2, &format!("p{number}"));
    let publishers: Vec<Conn> = (0..PUBLISHERS).map(|number| on(&mut lab, number)).collect();
    for publisher in &publishers {
        send_large(&mut lab, *publisher, "t/1", 1);
        carry_mail(&mut lab);
    }
    Flood { lab, subscriber, publishers, neighbours }
}

/// A publish with alias 3.
fn aliased<'a>(topic: &'a str, payload: &'a [u8], packet_id: u16) -> Packet<'a> {
    let Packet::Publish(mut packet) = publish(topic, payload, 1, packet_id) else {
        unreachable!("it is a PUBLISH")
    };
    packet.properties = Properties::from_raw(&[0x23, 0, 3]);
    Packet::Publish(packet)
}

/// Mail is dealt with, and turns end, but sockets take nothing.
pub(crate) fn carry_mail(lab: &mut Lab) {
    lab.settle_mail();
    for shard in 0..lab.shards.len() {
        lab.shards[shard].end_turn();
    }
    lab.settle_mail();
}

pub(crate) fn acknowledged(lab: &mut Lab, publishers: &[Conn]) -> usize {
    let answers = publishers.iter().flat_map(|publisher| lab.take_all(*publisher));
    answers.filter(|got| matches!(got, Got::Ack(AckKind::Puback, ..))).count()
}

fn is_held(lab: &Lab, publisher: Conn) -> bool {
    lab.pauses.iter().rev().find(|(paused, _)| *paused == publisher).is_some_and(|p| p.1 == NEVER)
}

#[test]
fn what_a_subscriber_that_reads_has_no_room_for_is_not_acknowledged_and_comes_later() {
    let Flood { mut lab, subscriber, publishers, .. } = flood();
    let taken = lab.total(|m| &m.publishes_received) as usize;
    assert!(taken * PAYLOAD_BYTES < QUEUE_BYTES_MAX as usize / 4, "{taken} taken");
    assert!(lab.total(|m| &m.holds) > 0);
    assert!(is_held(&lab, *publishers.last().unwrap()), "it never sent anything before");
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), publishers.len());
    assert_eq!(acknowledged(&mut lab, &publishers), publishers.len());
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 0);
    assert!(publishers.iter().all(|publisher| !is_held(&lab, *publisher)), "all are read on");
}

#[test]
fn a_subscriber_that_stops_reading_holds_up_its_publishers_for_a_moment_only() {
    let Flood { mut lab, publishers, .. } = flood();
    let taken = lab.total(|m| &m.publishes_received);
    let began_ms = lab.now_ms;
    while lab.now_ms < began_ms + 700 {
        let due_ms = lab.shards[1].next_deadline_ms();
        assert!(due_ms <= lab.now_ms + 100, "it looks again");
        lab.now_ms = due_ms;
        for shard in &mut lab.shards {
            shard.on_tick(due_ms);
        }
        carry_mail(&mut lab);
        if lab.total(|m| &m.publishes_received) > taken {
            break;
        }
    }
    assert!(lab.now_ms < began_ms + 700, "they are let go");
    // Resumed publishers may also have to wait for a credit window or a moment.
    for _ in 0..200 {
        lab.now_ms += 1;
        carry_mail(&mut lab);
    }
    let all = publishers.len() as u64 + 2;
    assert_eq!(lab.total(|m| &m.publishes_received), all);
    // Nor does it hold up anybody again.
    send_large(&mut lab, publishers[0], "t/2", 2);
    assert_eq!(lab.total(|m| &m.publishes_received), all + 1);
}

/// Is it held what a client on each shard sends, that has sent nothing large before?
fn is_held_everywhere(packet: &Packet<'_>) -> bool {
    let Flood { mut lab, neighbours, .. } = flood();
    let held = neighbours.map(|neighbour| {
        send(&mut lab, neighbour, packet);
        is_held(&lab, neighbour)
    });
    assert_eq!(held[0], held[1]);
    held[0]
}

#[test]
fn large_messages_that_are_acknowledged_are_held_and_no_others() {
    let large = [7; PAYLOAD_BYTES];
    assert!(is_held_everywhere(&publish("t/2", &large, 1, 1)));
    assert!(is_held_everywhere(&publish("t/2", &large, 2, 1)));
    assert!(is_held_everywhere(&aliased("", &large, 1)), "its topic is behind an alias");
    assert!(!is_held_everywhere(&publish("t/2", &[7; 1000], 1, 1)));
    assert!(!is_held_everywhere(&publish("u", &large, 1, 1)), "for somebody else");
    assert!(!is_held_everywhere(&publish("nobody", &large, 1, 1)));
}

/// Messages that a queue of [`small_flood`] takes.
const QUEUE_MESSAGES_MAX: u32 = 8_000;

/// A subscriber on shard 1, and publishers on both shards that each have sent it a whole window of
/// small messages, more in all than its queue takes, before any of them could be told to wait.
fn small_flood() -> (Lab, Conn, Vec<Conn>) {
    const WINDOW: u16 = 40;
    let mut lab = Lab::new(2);
    let queue = QueueLimits { messages_max: QUEUE_MESSAGES_MAX, ..Limits::default().queue };
    let id = lab.id_on(1, "subscriber");
    let subscriber = lab.open(request_with(&id, Limits { queue, ..limits() }));
    lab.subscribe(subscriber, "t/#", 1);
    let on = |lab: &mut Lab, number| client_on(lab, number % 2, &format!("p{number}"));
    let publishers: Vec<Conn> = (0..PUBLISHERS).map(|number| on(&mut lab, number)).collect();
    for publisher in &publishers {
        let packets = (1..=WINDOW).map(|packet_id| publish("t/1", &[7; 16], 1, packet_id));
        lab.bytes(*publisher, &packets.flat_map(|packet| encoded(&packet)).collect::<Vec<_>>());
        carry_mail(&mut lab);
    }
    assert!(usize::from(WINDOW) * publishers.len() > QUEUE_MESSAGES_MAX as usize);
    (lab, subscriber, publishers)
}

#[test]
fn small_messages_are_held_while_the_queue_of_a_subscriber_that_reads_is_half_full() {
    let (mut lab, subscriber, publishers) = small_flood();
    let taken = lab.total(|m| &m.publishes_received);
    assert!(taken > u64::from(QUEUE_MESSAGES_MAX / 2), "{taken} taken");
    let last = *publishers.last().unwrap();
    assert!(is_held(&lab, last));
    let mut received = 0;
    let mut acknowledgements = 0;
    for _ in 0..1000 {
        lab.now_ms += 1;
        for shard in &mut lab.shards {
            shard.on_tick(lab.now_ms);
        }
        // Those whose pause had an end are read on.
        let over = publishers.iter().filter(|publisher| !is_held(&lab, **publisher));
        over.copied().collect::<Vec<_>>().into_iter().for_each(|conn| lab.bytes(conn, &[]));
        lab.settle();
        for message in lab.received(subscriber) {
            received += 1;
            lab.ack(subscriber, AckKind::Puback, message.packet_id);
        }
        acknowledgements += acknowledged(&mut lab, &publishers);
    }
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 0);
    assert_eq!((received, acknowledgements), (12_000, 12_000));
    assert!(!is_held(&lab, last));
}

#[test]
fn a_client_does_not_wait_for_its_own_queue() {
    let mut lab = Lab::new(1);
    let both = client_on(&mut lab, 0, "both");
    lab.subscribe(both, "t/#", 1);
    for packet_id in 1..40 {
        send_large(&mut lab, both, "t/1", packet_id);
        assert!(!is_held(&lab, both));
    }
}

#[test]
fn publishers_go_on_when_the_subscriber_is_gone() {
    let Flood { mut lab, subscriber, publishers, .. } = flood();
    let (shard, slot) = lab.place(subscriber);
    lab.shards[shard].on_closed(slot, subscriber, lab.now_ms);
    for _ in 0..3 {
        lab.now_ms += 100;
        for shard in &mut lab.shards {
            shard.on_tick(lab.now_ms);
        }
        lab.settle();
    }
    assert_eq!(acknowledged(&mut lab, &publishers), publishers.len());
}

#[test]
fn a_publisher_that_is_held_for_long_is_not_silent() {
    let mut lab = Lab::new(2);
    let subscriber = client_on(&mut lab, 1, "subscriber");
    lab.subscribe(subscriber, "t/#", 1);
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(ConnectRequest { keep_alive_secs: 2, ..request_with(&id, limits()) });
    for packet_id in 1..60 {
        send_large(&mut lab, publisher, "t/1", packet_id);
        carry_mail(&mut lab);
    }
    assert!(is_held(&lab, publisher));
    let began_ms = lab.now_ms;
    // The subscriber reads so much that it is worth to wait for, and no more than that.
    for _ in 0..100 {
        lab.write_some(subscriber, 20_000);
        lab.now_ms += 100;
        for shard in &mut lab.shards {
            shard.on_tick(lab.now_ms);
        }
        carry_mail(&mut lab);
        if !is_held(&lab, publisher) {
            lab.bytes(publisher, &[]);
        }
    }
    assert!(!lab.is_closed(publisher), "{:?}, after {} ms", lab.events, lab.now_ms - began_ms);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 0);
}

/// A subscriber and a publisher for each number.
fn pairs(lab: &mut Lab, count: usize) -> Vec<(Conn, String)> {
    let queue = QueueLimits { bytes_max: 1024 * 1024, ..Limits::default().queue };
    let small = Limits { queue, outbox_bytes_max: 64 * 1024, ..Limits::default() };
    let pair = |number: usize| {
        let subscriber = lab.open(request_with(&format!("s{number}"), small.clone()));
        lab.subscribe(subscriber, &format!("t/{number}"), 1);
        (lab.open(request_with(&format!("p{number}"), limits())), format!("t/{number}"))
    };
    (0..count).map(pair).collect()
}

/// Fills queues, each with messages of one publisher, and says who was held for that.
fn are_held(lab: &mut Lab, pairs: &[(Conn, String)]) -> Vec<bool> {
    for (publisher, topic) in pairs {
        (1..5).for_each(|packet_id| send_large(lab, *publisher, topic, packet_id));
        assert!(lab.pauses.iter().any(|(paused, _)| paused == publisher), "it waits in any case");
    }
    pairs.iter().map(|(publisher, _)| is_held(lab, *publisher)).collect()
}

#[test]
fn publishers_to_more_slow_subscribers_than_are_held_for_at_a_time_are_paused() {
    let mut lab = Lab::new(1);
    let pairs = pairs(&mut lab, 66);
    let held = are_held(&mut lab, &pairs);
    assert_eq!(held.iter().filter(|held| **held).count(), 64);
    assert_eq!(held[64..], [false; 2]);
}
