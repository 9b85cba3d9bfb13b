//! Windows, acknowledgements and full queues, seen by clients.

use crate::rows::{
    Row, Step, asks, bursts, connects, counts, does, flushes, gets, is_open, keeps, kept, numbers,
    opens, passes, pauses, posts, reads, reads_all, reads_count, row, run, sends, settles,
    waits_ms,
};
use broker::{BROADCAST_MIN, ConnectRequest, Event, Limits, Settings};
use codec::{Packet, Version};
use policy::Access;
use rig::{Conn, Lab, publish, queue, request, request_with, window, with_limits};
use session::Overflow;

#[test]
fn windows() {
    run([
        row("MQTT-4.4.0-1", "what is not acknowledged comes again with DUP", Lab::new(1)).steps([
            sends("reader", ["kept", "subscribe t qos2"]),
            sends("writer", (1..=3).map(|id| format!("publish t x qos2 id{id}"))),
            reads_count("reader", 3),
            asks("reader", "pubrec 1", ["pubrel 1"]),
            sends("reader", ["cut"]),
            connects("reader", kept),
            gets(
                "reader",
                [
                    "connack present",
                    "pubrel 1",
                    "publish t x qos2 id2 dup",
                    "publish t x qos2 id3 dup",
                ],
            ),
        ]),
        row("", "more publishes than the receive maximum end the connection", Lab::new(1)).steps([
            opens("writer", receives_two),
            sends("writer", ["publish t x qos2 id1", "publish t x qos2 id2"]),
            gets("writer", ["pubrec 1", "pubrec 2"]),
            asks("writer", "publish t x qos2 id3", ["disconnect receive_maximum_exceeded"]),
            // MQTT 3.1.1 knows no such limit.
            opens("old", |request| {
                receives_two(ConnectRequest { version: Version::V311, ..request })
            }),
            sends("old", (1..=10).map(|id| format!("publish t x qos2 id{id}"))),
            is_open("old"),
        ]),
    ]);
}

fn receives_two(request: ConnectRequest) -> ConnectRequest {
    with_limits(request, Limits { receive_max: 2, ..Limits::default() })
}

#[test]
fn acknowledgements() {
    let rejecting = Settings { rejects: true, ..Settings::default() };
    let rejecting = Lab::with(2, rejecting, Access::open());
    run([
        row("MQTT-4.3.3-10", "a repeated QoS 2 publish is delivered once", Lab::new(1)).steps([
            sends("reader", ["subscribe t"]),
            sends("writer", ["kept", "publish t x qos2 id9", "cut", "kept"]),
            asks("writer", "publish t x qos2 id9", ["pubrec 9"]),
            asks("writer", "pubrel 9", ["pubcomp 9"]),
            // It may repeat one whose PUBCOMP was lost (section 3.7.2.1).
            asks("writer", "pubrel 9", ["pubcomp 9"]),
            reads("reader", ["x"]),
        ]),
        row("", "an unknown packet id and an unmatched topic of QoS 2", Lab::new(1)).steps([
            asks("client", "pubrel 9", ["pubcomp 9 packet_identifier_not_found"]),
            asks("client", "publish t x qos2 id9", ["pubrec 9"]),
        ]),
        row("", "a publisher gets its acknowledgement before its own copy", Lab::new(1)).steps([
            sends("client", ["subscribe t qos2"]),
            asks("client", "publish t x qos1 id9", ["puback 9", "publish t x qos1 id1"]),
            asks("client", "publish t x qos2 id9", ["pubrec 9", "publish t x qos2 id2"]),
        ]),
        row("MQTT-4.6.0-2", "acknowledgements keep the order of the publishes", rejecting).steps([
            opens("far@0", |request| with_limits(request, queue(10, Overflow::Reject))),
            sends("far@0", ["subscribe far qos1"]),
            posts("writer@1", "publish far x qos1 id1"),
            posts("writer@1", "publish near x qos1 id2"),
            flushes(),
            // The second waits for the first.
            gets("writer@1", []),
            settles(),
            gets("writer@1", ["puback 1", "puback 2 no_matching_subscribers"]),
        ]),
    ]);
}

#[test]
fn the_largest_receive_maximum_can_be_filled_and_repeated() {
    let mut lab = Lab::new(1);
    let limits = Limits { receive_max: u16::MAX, ..Limits::default() };
    let publisher = lab.open(request_with("publisher", limits));
    for packet_id in 1..=u16::MAX {
        lab.send_only(publisher, &publish("t", b"", 2, packet_id));
    }
    lab.send_only(publisher, &publish("t", b"", 2, 1));
    lab.flush();
    assert!(!lab.is_closed(publisher));
    assert_eq!(lab.take_all(publisher).len(), 65_536);
}

#[test]
fn full_queues() {
    run([
        overflowing("a full queue drops the oldest", Overflow::DropOldest).steps([
            numbers("writer", "t", 0..7),
            keeps("reader", window(10)),
            reads_all("reader", 2..7),
            drops(2),
        ]),
        overflowing("a full queue drops the newest", Overflow::DropNewest).steps([
            numbers("writer", "t", 0..7),
            keeps("reader", window(10)),
            reads_all("reader", 0..5),
            drops(2),
        ]),
        overflowing("a full queue refuses, and its publisher hears it", Overflow::Reject).steps([
            numbers("writer", "t", 0..5),
            asks("writer", "publish t x qos1 id6", ["puback 6 quota_exceeded"]),
            counts(|m| &m.publishes_refused, 1),
            keeps("reader", window(10)),
            reads_all("reader", 0..5),
        ]),
        row("", "a full queue ends the connection if so asked", Lab::new(1)).steps([
            keeps("reader", queue(2, Overflow::Disconnect)),
            sends("reader", ["subscribe t qos1"]),
            numbers("writer", "t", 0..4),
            gets("reader", ["publish t 0 qos1 id1", "disconnect quota_exceeded"]),
            keeps("reader", window(10)),
            reads_all("reader", 0..3),
        ]),
        row("", "what lives on in a queue says how long it has", Lab::new(1)).steps([
            sends("reader", ["kept", "subscribe t qos1", "cut"]),
            sends("writer", ["publish t x qos1 expiry5", "publish t y qos1 expiry20"]),
            passes(8),
            sends("reader", ["kept"]),
            gets("reader", ["publish t y qos1 id1 expiry12"]),
            counts(|m| &m.dropped_expired, 1),
        ]),
    ]);
}

/// A kept session with room for five, which is away.
fn overflowing(name: &str, overflow: Overflow) -> Row {
    let settings = Settings { rejects: overflow == Overflow::Reject, ..Settings::default() };
    row("", name, Lab::with(2, settings, Access::open()))
        .steps([keeps("reader", queue(5, overflow)), sends("reader", ["subscribe t qos1", "cut"])])
}

/// So many are counted and reported.
fn drops(count: u64) -> Step {
    does(move |stage| {
        assert_eq!(stage.lab.total(|m| &m.dropped_queue_full), count);
        stage.lab.pass_secs(2);
        let dropped = stage.lab.events.iter().map(|event| match event {
            Event::Dropped { client_id, count, .. } if **client_id == *"reader" => *count,
            _ => 0,
        });
        assert_eq!(dropped.sum::<u64>(), count);
    })
}

fn outbox(bytes_max: u32) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    move |request| with_limits(request, Limits { outbox_bytes_max: bytes_max, ..Limits::default() })
}

/// The publisher is read on, so often, every two milliseconds.
fn goes_on(times: u32, settles: bool) -> Step {
    does(move |stage| {
        let writer = stage.conn("writer");
        for _ in 0..times {
            if settles {
                stage.lab.settle();
            }
            stage.lab.now_ms += 2;
            stage.lab.bytes(writer, &[]);
        }
        stage.lab.settle();
    })
}

#[test]
fn slow_readers() {
    let ten = || bursts("writer", ["publish t x*100"; 10]);
    run([
        row("", "a slow reader of QoS 0 loses messages and nobody else does", Lab::new(1)).steps([
            opens("slow", outbox(200)),
            sends("slow", ["subscribe t"]),
            sends("fast", ["subscribe t"]),
            ten(),
            pauses("writer", [2]),
            // The slow one reads nothing at all, and the publisher does not wait for ever.
            goes_on(500, false),
            reads_count("slow", 2),
            reads_count("fast", 10),
            counts(|m| &m.dropped_slow, 8),
            // Reports come at most once a second.
            passes(1),
            does(|stage| assert_eq!(stage.lab.lost(), [("slow".to_owned(), 8)])),
        ]),
        row("", "a publisher waits for a subscriber that catches up", Lab::new(1)).steps([
            opens("reader", outbox(200)),
            sends("reader", ["subscribe t"]),
            ten(),
            goes_on(20, true),
            reads_count("reader", 10),
            counts(|m| &m.dropped_slow, 0),
        ]),
        row("", "what is put aside in a pause comes before the end", Lab::new(1)).steps([
            opens("reader", outbox(200)),
            sends("reader", ["subscribe t"]),
            sends("watcher", ["subscribe kept qos1"]),
            bursts("writer", ["publish t x*200", "publish kept last-words"]),
            pauses("writer", [2]),
            sends("writer", ["cut"]),
            reads("watcher", ["last-words"]),
        ]),
        row("", "a message as large as an outbox waits no longer than it takes", Lab::new(1))
            .steps([opens("reader", outbox(1000)), sends("reader", ["subscribe t"])])
            .steps((0..10).flat_map(|_| {
                let packet = "publish t x*16384";
                [bursts("writer", [packet]), pauses("writer", [2]), flushes(), waits_ms(2)]
            }))
            .steps([reads_count("reader", 10)]),
    ]);
}

/// A publisher, and a subscriber of QoS 1 that reads nothing, with a window of one: it is behind
/// after 1,000 more.
fn stopped_subscriber() -> (Lab, Conn) {
    let mut lab = Lab::new(1);
    let mut limits = window(1);
    limits.queue.messages_max = 12_000;
    let subscriber = lab.open(request_with("subscriber", limits));
    lab.subscribe(subscriber, "#", 1);
    let publisher = lab.open(request("publisher"));
    (lab, publisher)
}

#[test]
fn a_publisher_that_sends_now_and_then_waits_only_when_the_queue_is_about_to_be_full() {
    let (mut lab, publisher) = stopped_subscriber();
    let mut sent = 0;
    while lab.pauses.is_empty() {
        lab.publish(publisher, "t", b"x", 1, 1);
        sent += 1;
        assert!(sent <= 12_000, "it never waits");
    }
    assert!(sent > 1500, "an eighth of the queue is not full after {sent}");
}

#[test]
fn a_publisher_of_bursts_waits_for_a_subscriber_that_is_behind_and_goes_on_waiting() {
    let (mut lab, publisher) = stopped_subscriber();
    let burst = |count: u16| {
        let mut packets = Vec::new();
        for packet_id in 1..=count {
            publish("t", b"x", 1, packet_id).encode(Version::V5, &mut packets);
        }
        packets
    };
    while lab.pauses.is_empty() {
        lab.bytes(publisher, &burst(8));
    }
    // Six are left. Held up, it sends one at a time, and is the same publisher still.
    let mut pauses_ms = Vec::new();
    for _ in 0..6 {
        lab.now_ms = lab.pauses.pop().expect("a pause").1;
        assert_eq!(lab.pauses, []);
        lab.bytes(publisher, &[]);
        pauses_ms.extend(lab.pauses.iter().map(|(_, until_ms)| until_ms - lab.now_ms));
    }
    assert_eq!(pauses_ms, [2; 6]);
    lab.pauses.clear();
    lab.now_ms += 300;
    lab.bytes(publisher, &burst(1));
    assert_eq!(lab.pauses, [], "it has become one that sends now and then");
}

// The order of writing.

/// A shard, a publisher, and so many subscribers of `news` that a message for it is a broadcast.
fn crowd() -> (Lab, Conn, Vec<Conn>) {
    let mut lab = Lab::new(1);
    let announcer = lab.open(request("announcer"));
    let crowd = more_crowd(&mut lab, "news");
    (lab, announcer, crowd)
}

fn more_crowd(lab: &mut Lab, topic: &str) -> Vec<Conn> {
    let subscribe = |number| {
        let conn = lab.open(request(&format!("{topic}-{number}")));
        lab.subscribe(conn, topic, 1);
        conn
    };
    (0..=BROADCAST_MIN).map(subscribe).collect()
}

fn urgent(lab: &mut Lab) -> Vec<Conn> {
    std::iter::from_fn(|| lab.shards[0].take_urgent()).map(|(_, conn)| conn).collect()
}

fn dirty(lab: &mut Lab) -> Vec<Conn> {
    std::iter::from_fn(|| lab.shards[0].take_dirty()).map(|(_, conn)| conn).collect()
}

#[test]
fn connections_are_written_in_the_order_in_which_they_got_something() {
    let mut lab = Lab::new(1);
    let conns = ["first", "second", "third", "fourth"].map(|id| lab.open(request(id)));
    let [subscriber, publisher, late_subscriber, late_publisher] = conns;
    lab.subscribe(subscriber, "a", 1);
    lab.subscribe(late_subscriber, "b", 1);
    lab.send_only(publisher, &publish("a", b"x", 1, 1));
    lab.send_only(late_publisher, &publish("b", b"x", 1, 1));
    // Before the acknowledgement comes what is acknowledged.
    assert_eq!(dirty(&mut lab), conns);
}

#[test]
fn others_are_written_before_the_crowd_of_a_broadcast() {
    let (mut lab, announcer, crowd) = crowd();
    let [publisher, subscriber] = ["1", "2"].map(|id| lab.open(request(id)));
    lab.subscribe(subscriber, "a", 1);
    lab.send_only(announcer, &publish("news", b"x", 1, 1));
    lab.send_only(publisher, &publish("a", b"x", 1, 1));
    assert_eq!(urgent(&mut lab), [announcer, subscriber, publisher]);
    assert!(lab.shards[0].has_broadcast());
    assert_eq!(dirty(&mut lab), crowd);
    assert!(!lab.shards[0].has_broadcast());
}

#[test]
fn a_broadcast_does_not_hurry_those_of_the_one_before() {
    let (mut lab, announcer, first) = crowd();
    let second = more_crowd(&mut lab, "second");
    lab.send_only(announcer, &publish("news", b"x", 0, 0));
    assert_eq!(lab.shards[0].take_dirty().map(|(_, conn)| conn), first.first().copied());
    lab.send_only(announcer, &publish("second", b"x", 0, 0));
    assert!(urgent(&mut lab).is_empty());
    assert_eq!(dirty(&mut lab), [&first[1..], &second].concat());
}

#[test]
fn who_gets_something_else_does_not_wait_among_those_of_several_broadcasts() {
    let (mut lab, announcer, crowd) = crowd();
    for _ in 0..3 {
        lab.send_only(announcer, &publish("news", b"x", 0, 0));
    }
    let last = *crowd.last().expect("a crowd");
    lab.send_only(last, &Packet::Pingreq);
    lab.send_only(last, &Packet::Pingreq);
    assert_eq!(urgent(&mut lab), [last]);
    assert_eq!(dirty(&mut lab), crowd[..crowd.len() - 1], "each once");
}

#[test]
fn broadcasts_wait_until_what_has_gathered_is_written() {
    let (mut lab, announcer, crowd) = crowd();
    // Each fills the outboxes by a quarter.
    let payload = [b'x'; 4 << 10];
    for _ in 0..6 {
        lab.send_only(announcer, &publish("news", &payload, 0, 0));
    }
    let gathered: Vec<usize> = (crowd.iter())
        .map(|&conn| {
            let (shard, slot) = lab.place(conn);
            let outbox = lab.shards[shard].outbox(slot, conn).expect("a connection");
            outbox.slices().map(<[u8]>::len).sum::<usize>() / payload.len()
        })
        .collect();
    assert_eq!(gathered, vec![4; crowd.len()]);
    lab.settle();
    assert!(crowd.iter().all(|&conn| lab.received(conn).len() == 6));
}
