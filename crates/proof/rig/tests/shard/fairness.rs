//! A publisher waits for what it publishes to, and for nothing that others publish to.

use broker::{Limits, Settings};
use codec::{AckKind, Packet, Version};
use policy::Access;
use rig::{Conn, Got, Lab, publish, request, request_with};
use session::{NEVER, QueueLimits};

const LARGE_BYTES: usize = 100_000;

/// Messages of a client that floods a shard.
const FLOOD: usize = 60_000;

/// A publisher that still waits then waits for the end of the flood.
const TURNS_MAX: usize = 1_000;

fn on(lab: &mut Lab, shard: u16, name: &str) -> Conn {
    let id = lab.id_on(shard, name);
    lab.open(request(&id))
}

/// Publishes of 100 bytes at QoS 0.
fn burst(topic: &str, count: usize) -> Vec<u8> {
    let mut packets = Vec::new();
    for _ in 0..count {
        publish(topic, &[7; 100], 0, 0).encode(Version::V5, &mut packets);
    }
    packets
}

/// A client whose queue is long with few large messages.
fn with_small_queue(lab: &mut Lab, shard: u16, name: &str) -> Conn {
    let queue = QueueLimits { bytes_max: 16 * 1024 * 1024, ..Limits::default().queue };
    let limits = Limits { queue, outbox_bytes_max: 256 * 1024, ..Limits::default() };
    let id = lab.id_on(shard, name);
    lab.open(request_with(&id, limits))
}

/// A large packet comes in two pieces, as off a socket.
fn send_large(lab: &mut Lab, conn: Conn) {
    let mut bytes = Vec::new();
    let packet: Packet<'_> = publish("t/1", &[7; LARGE_BYTES], 1, 1);
    packet.encode(Version::V5, &mut bytes);
    let (front, rest) = bytes.split_at(4096);
    lab.bytes(conn, front);
    lab.bytes(conn, rest);
}

/// Mail is dealt with, and turns end, but sockets take nothing.
fn carry_mail(lab: &mut Lab) {
    lab.settle_mail();
    for shard in 0..lab.shards.len() {
        lab.shards[shard].end_turn();
    }
    lab.settle_mail();
}

/// What a driver does in a turn.
fn turn(lab: &mut Lab) {
    lab.flush();
    lab.deliver_mail();
    lab.read_on();
    lab.now_ms += 1;
    for shard in &mut lab.shards {
        shard.on_tick(lab.now_ms);
    }
    lab.collect_closes();
}

fn pubacks(lab: &mut Lab, conns: &[Conn]) -> usize {
    let answers = conns.iter().flat_map(|conn| lab.take_all(*conn));
    answers.filter(|got| matches!(got, Got::Ack(AckKind::Puback, ..))).count()
}

/// The turns that publishers of two shards need until a subscriber whose queue is long has all that
/// they send it, while others flood a third shard.
fn turns_beside(flooder_count: usize) -> usize {
    let mut lab = Lab::with(3, Settings::default(), Access::open());
    let slow = with_small_queue(&mut lab, 1, "slow");
    lab.subscribe(slow, "t/#", 1);
    let sink = on(&mut lab, 2, "sink");
    lab.subscribe(sink, "u", 0);
    let publishers: Vec<Conn> =
        (0..300).map(|n| with_small_queue(&mut lab, n % 2, &format!("publisher {n}"))).collect();
    let flooders: Vec<Conn> =
        (0..flooder_count).map(|n| on(&mut lab, 0, &format!("flooder {n}"))).collect();
    for conn in &publishers {
        send_large(&mut lab, *conn);
        carry_mail(&mut lab);
    }
    let mut acknowledged = pubacks(&mut lab, &publishers);
    assert!(lab.shards[0].waits().pauses > 0, "some wait for the slow subscriber");
    for conn in &flooders {
        lab.bytes(*conn, &burst("u", FLOOD));
    }
    let mut turns = 0;
    while acknowledged < publishers.len() && turns < TURNS_MAX {
        turn(&mut lab);
        lab.received(sink);
        acknowledged += pubacks(&mut lab, &publishers);
        turns += 1;
    }
    let taken = lab.total(|metrics| &metrics.publishes_received);
    assert!(flooder_count == 0 || taken < (flooder_count * FLOOD) as u64, "the flood goes on");
    turns
}

#[test]
fn a_publisher_that_need_not_wait_any_more_goes_on_though_others_flood_another_shard() {
    let (alone, beside) = (turns_beside(0), turns_beside(20));
    assert!(beside <= 2 * alone, "{alone} turns alone, {beside} beside a flood");
}

/// Little mail fills a credit window. A subscriber of `u` is on shard 2, one of `v` on shard 1.
fn with_short_lanes() -> Lab {
    let settings = Settings { mail_bytes_max: 2 * 2_000, ..Settings::default() };
    let mut lab = Lab::with(3, settings, Access::open());
    let sink = on(&mut lab, 2, "sink");
    lab.subscribe(sink, "u", 0);
    let reader = on(&mut lab, 1, "reader");
    lab.subscribe(reader, "v", 0);
    lab
}

#[test]
fn a_shared_subscription_of_somebody_else_makes_nobody_wait() {
    let mut lab = with_short_lanes();
    let member = on(&mut lab, 1, "member");
    lab.subscribe(member, "$share/g/else", 1);
    let (flooder, modest) = (on(&mut lab, 0, "flooder"), on(&mut lab, 0, "modest"));
    lab.bytes(flooder, &burst("u", 50));
    assert_eq!(lab.pauses, [(flooder, NEVER)]);
    lab.bytes(modest, &burst("v", 3));
    assert_eq!(lab.pauses, [(flooder, NEVER)], "nothing lies before the shard of the reader");
    // One that a member may get waits for the member's shard, and this one's is not known.
    lab.bytes(modest, &burst("else", 3));
    assert_eq!(lab.pauses, [(flooder, NEVER), (modest, NEVER)]);
}

#[test]
fn a_topic_alias_makes_nobody_wait_for_a_shard_that_does_not_want_its_topic() {
    let mut lab = with_short_lanes();
    let (flooder, modest) = (on(&mut lab, 0, "flooder"), on(&mut lab, 0, "modest"));
    let aliased = |topic: &'static str| {
        let Packet::Publish(mut packet) = publish(topic, &[7; 100], 0, 0) else {
            unreachable!("it is a PUBLISH")
        };
        packet.properties = codec::Properties::from_raw(&[0x23, 0, 3]);
        let mut bytes = Vec::new();
        Packet::Publish(packet).encode(Version::V5, &mut bytes);
        bytes
    };
    lab.bytes(modest, &aliased("v"));
    lab.settle();
    lab.bytes(flooder, &burst("u", 50));
    lab.pauses.clear();
    lab.bytes(modest, &[aliased(""), aliased("")].concat());
    assert_eq!(lab.pauses, []);
}
