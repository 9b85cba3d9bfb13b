//! Packets that come in pieces, and large ones whose memory becomes the message's.

use broker::{Limits, Settings};
use codec::{AckKind, Packet, Reason, Version};
use policy::Access;
use rig::{Conn, Got, Lab, of_version, persistent, publish, request, with_limits};
use session::{LARGE_BYTES_MIN, QueueLimits};
use storage::testing::Crash;

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index % 251) as u8).collect()
}

fn encoded(packets: &[Packet<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for packet in packets {
        packet.encode(Version::V5, &mut bytes);
    }
    bytes
}

/// Reads as a worker does: what a large packet lacks right into the inbox, other bytes by a buffer
/// of so many.
fn read(lab: &mut Lab, conn: Conn, mut bytes: &[u8], buffer_bytes: usize) {
    let (shard, slot) = lab.place(conn);
    let mut gathers = false;
    while !bytes.is_empty() {
        let inbox = lab.shards[shard].inbox(slot, conn).filter(|_| gathers);
        let is_direct = inbox.is_some();
        let (now, later) = match inbox {
            Some(inbox) => {
                let room = inbox.capacity() - inbox.len();
                assert!(room > 0, "a packet under way has room");
                let (now, later) = bytes.split_at(room.min(bytes.len()));
                inbox.extend_from_slice(now);
                (now, later)
            }
            None => bytes.split_at(buffer_bytes.min(bytes.len())),
        };
        let now = if is_direct { &[] } else { now };
        gathers = lab.shards[shard].on_bytes(slot, conn, now, lab.now_ms) == broker::Rest::Large;
        bytes = later;
    }
    lab.collect_closes();
    lab.settle();
}

/// What arrives of three packets, of which the second is of this length.
fn check(payload_len: usize, feed: impl FnOnce(&mut Lab, Conn, &[u8])) {
    let mut lab = Lab::new(2);
    let [publisher, subscriber] = ["p", "s"].map(|name| {
        let limits = Limits { outbox_bytes_max: u32::MAX, ..Limits::default() };
        lab.open(with_limits(request(&lab.id_on(u16::from(name == "s"), name)), limits))
    });
    lab.subscribe(subscriber, "t/#", 0);
    let large = payload(payload_len);
    let bytes = encoded(&[
        publish("t/1", b"before", 0, 0),
        publish("t/2", &large, 1, 7),
        publish("t/3", b"behind", 0, 0),
        Packet::Pingreq,
    ]);
    feed(&mut lab, publisher, &bytes);
    let payloads: Vec<_> = lab.received(subscriber).into_iter().map(|got| got.payload).collect();
    assert!(payloads == [&b"before"[..], &large, b"behind"], "{payload_len}");
    let answers = lab.take_all(publisher);
    assert_eq!(answers.len(), 2, "an acknowledgement and a PINGRESP: {answers:?}");
    let (shard, slot) = lab.place(publisher);
    let inbox = lab.shards[shard].inbox(slot, publisher).expect("a link");
    assert_eq!(inbox.capacity(), 0, "an idle connection owns no buffer");
}

#[test]
fn a_large_packet_arrives_whole_wherever_it_is_split() {
    let packet_len = LARGE_BYTES_MIN + 100;
    let ends = (0..60).chain([LARGE_BYTES_MIN / 2]).chain(packet_len - 40..packet_len + 30);
    for at in ends {
        check(LARGE_BYTES_MIN + 17, |lab, conn, bytes| {
            let (front, rest) = bytes.split_at(at.min(bytes.len()));
            lab.bytes(conn, front);
            lab.bytes(conn, rest);
            lab.settle();
        });
    }
}

#[test]
fn a_large_packet_is_read_to_where_it_stays_whatever_the_buffer() {
    for payload_len in [10, LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, 300_000, 3_000_000] {
        for buffer_bytes in [1, 2, 3, 5, 40, 4_096, 65_536] {
            check(payload_len, |lab, conn, bytes| read(lab, conn, bytes, buffer_bytes));
        }
    }
}

#[test]
fn bytes_behind_a_large_packet_wait_while_its_publisher_does() {
    let mut lab = Lab::new(1);
    let slow = Limits { outbox_bytes_max: 64 * 1024, ..Limits::default() };
    let subscriber = lab.open(with_limits(request("s"), slow));
    let publisher = lab.open(request("p"));
    lab.subscribe(subscriber, "t", 1);
    let large = payload(100_000);
    let bytes = encoded(&[publish("t", &large, 1, 1), publish("t", &large, 1, 2)]);
    lab.bytes(publisher, &bytes[..50_000]);
    lab.bytes(publisher, &bytes[50_000..]);
    assert!(lab.pauses.iter().any(|(paused, _)| *paused == publisher), "the outbox is full");
    let (shard, slot) = lab.place(publisher);
    let inbox = lab.shards[shard].inbox(slot, publisher).expect("a link");
    assert!(inbox.len() > 100_000, "the second packet waits");
    lab.settle();
    lab.shards[shard].on_bytes(slot, publisher, &[], lab.now_ms);
    lab.collect_closes();
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 2);
}

#[test]
fn a_claim_of_a_huge_length_makes_no_memory() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("p"));
    let bytes = encoded(&[publish("t", &payload(10_000_000), 0, 0)]);
    lab.bytes(publisher, &bytes[..100]);
    let (shard, slot) = lab.place(publisher);
    let inbox = lab.shards[shard].inbox(slot, publisher).expect("a link");
    assert!(inbox.capacity() <= 1_600, "{}", inbox.capacity());
}

#[test]
fn a_packet_beyond_the_limit_is_not_gathered() {
    let mut lab = Lab::new(1);
    let limits = Limits { packet_bytes_max: 50_000, ..Limits::default() };
    let publisher = lab.open(with_limits(of_version(Version::V5, "p"), limits));
    let bytes = encoded(&[publish("t", &payload(60_000), 0, 0)]);
    read(&mut lab, publisher, &bytes[..1_000], 2);
    assert!(lab.is_closed(publisher));
}

#[test]
fn a_large_message_outlives_the_broker_in_the_journal() {
    let journal = storage::Settings::with_segment_bytes(1024 * 1024);
    let mut lab = Lab::durable_by(1, Settings::default(), journal);
    let subscriber = lab.open(persistent("s"));
    lab.subscribe(subscriber, "t", 1);
    lab.cut(subscriber);
    let publisher = lab.open(request("p"));
    let large = payload(100_000);
    read(&mut lab, publisher, &encoded(&[publish("t", &large, 1, 7)]), 1_000);
    assert_eq!(lab.take_all(publisher).len(), 1, "acknowledged");
    lab.crash(Crash::Power);
    let mut request = persistent("s");
    request.clean_start = false;
    let subscriber = lab.open(request);
    let received = lab.received(subscriber);
    assert!(received.len() == 1 && received[0].payload == large);
    lab.ack(subscriber, AckKind::Puback, received[0].packet_id);
}

/// How long the publisher of a large message waits for a subscriber with so many in its queue.
fn wait_ms(queued: usize) -> Option<u64> {
    let mut lab = Lab::new(1);
    let queue = QueueLimits { bytes_max: u64::MAX, ..Limits::default().queue };
    let slow = Limits { queue, ..Limits::default() };
    let subscriber = lab.open(with_limits(request("s"), slow));
    let publisher = lab.open(request("p"));
    lab.subscribe(subscriber, "t", 1);
    let large = payload(1024 * 1024);
    let bytes = encoded(&[publish("t", &large, 1, 7)]);
    // One fills the outbox, of which nothing is written.
    for _ in 0..queued + 1 {
        lab.pauses.clear();
        lab.bytes(publisher, &bytes[..100_000]);
        lab.bytes(publisher, &bytes[100_000..]);
    }
    lab.pauses.iter().map(|(_, until_ms)| until_ms - lab.now_ms).max()
}

#[test]
fn publishers_of_large_messages_wait_for_the_bytes_in_a_queue_not_for_its_limit() {
    assert_eq!(wait_ms(1), Some(2), "the outbox is full, and that is all");
    assert!(wait_ms(20).is_some_and(|ms| ms >= 64), "{:?}", wait_ms(20));
}

/// How many messages for a subscriber elsewhere are taken before their publisher waits.
fn taken_before_it_waits(qos: u8, payload_bytes: usize) -> u64 {
    let settings = Settings { mail_bytes_max: 256 * 1024, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let publisher = lab.open(request(&lab.id_on(0, "p")));
    let subscriber = lab.open(request(&lab.id_on(1, "s")));
    lab.subscribe(subscriber, "t", qos);
    let large = payload(payload_bytes);
    let (shard, slot) = lab.place(publisher);
    for packet_id in 1..=1000 {
        let bytes = encoded(&[publish("t", &large, qos, packet_id)]);
        lab.shards[shard].on_bytes(slot, publisher, &bytes[..1_000], lab.now_ms);
        lab.shards[shard].on_bytes(slot, publisher, &bytes[1_000..], lab.now_ms);
        if lab.total(|metrics| &metrics.mail_waits) > 0 {
            return lab.total(|metrics| &metrics.publishes_received);
        }
    }
    panic!("there is a limit for them, too");
}

#[test]
fn large_messages_that_can_be_queued_do_not_wait_for_a_turn_of_another_shard_each() {
    assert!((6..12).contains(&taken_before_it_waits(1, 400_000)));
}

#[test]
fn of_messages_above_2_kib_that_can_be_queued_a_quarter_counts_before_another_shard() {
    let [whole, quarter] = [0, 1].map(|qos| taken_before_it_waits(qos, 8 * 1024));
    assert!((28..=32).contains(&whole) && (112..=128).contains(&quarter), "{whole}, {quarter}");
    let [whole, queued] = [0, 1].map(|qos| taken_before_it_waits(qos, 1500));
    assert_eq!(whole, queued);
}

#[test]
fn a_large_message_that_would_be_dropped_waits_until_the_one_before_it_is_dealt_with() {
    assert_eq!(taken_before_it_waits(0, 400_000), 1);
}

#[test]
fn a_message_too_large_for_the_journal_is_refused_by_a_reason_that_a_puback_has() {
    // Larger than a record of the small journals of the laboratory, and than all that waits to be
    // written: it must not wait for room that there never is.
    for len in [LARGE_BYTES_MIN + 1, 100_000] {
        let mut lab = Lab::durable(1);
        let subscriber = lab.open(persistent("s"));
        lab.subscribe(subscriber, "t", 1);
        let publisher = lab.open(request("p"));
        read(&mut lab, publisher, &encoded(&[publish("t", &payload(len), 1, 7)]), 1_000);
        let refused = Got::Ack(AckKind::Puback, 7, Reason::QUOTA_EXCEEDED);
        assert_eq!(lab.take(publisher), Some(refused), "{len} bytes");
    }
}
