//! What lies before another shard is limited, and publishers wait for it.

use broker::{Limits, Mail, Settings};
use codec::{AckKind, Packet, Reason, Version};
use policy::Access;
use rig::{Conn, Got, Lab, publish, request, request_with};
use session::NEVER;

const MAIL_BYTES_MAX: u64 = 2_000;

/// Of one message on its way.
const MESSAGE_BYTES_MAX: u64 = 400;

fn lab(shards: u16) -> Lab {
    lab_with(shards, MAIL_BYTES_MAX)
}

/// So many bytes may lie on each way between two of the shards.
fn lab_with(shards: u16, mail_bytes_max: u64) -> Lab {
    let others = u64::from(shards - 1);
    let settings = Settings { mail_bytes_max: mail_bytes_max * others, ..Settings::default() };
    Lab::with(shards, settings, Access::open())
}

fn client_on(lab: &mut Lab, shard: u16, name: &str) -> Conn {
    let id = lab.id_on(shard, name);
    lab.open(request(&id))
}

fn subscriber_on(lab: &mut Lab, shard: u16, topic: &str) -> Conn {
    let subscriber = client_on(lab, shard, topic);
    lab.subscribe(subscriber, topic, 2);
    subscriber
}

/// Publishes of 100 bytes, their numbers in front.
fn burst(topic: &str, qos: u8, numbers: std::ops::Range<u16>) -> Vec<u8> {
    let mut packets = Vec::new();
    for number in numbers {
        let payload = format!("{number:0>100}");
        publish(topic, payload.as_bytes(), qos, number + 1).encode(Version::V5, &mut packets);
    }
    packets
}

fn numbers(lab: &mut Lab, subscriber: Conn) -> Vec<u16> {
    lab.payloads(subscriber).iter().map(|payload| payload.parse().expect("a number")).collect()
}

/// Bytes of messages in the mail of one shard to another.
fn mailed_bytes(lab: &Lab, from: usize, to: usize) -> u64 {
    let mails = lab.shards[from].effects().mail[to].iter();
    let bytes = mails.map(|mail| match mail {
        Mail::Publish { message, .. } => message.heap_bytes() as u64,
        _ => 0,
    });
    bytes.sum()
}

#[test]
fn a_publisher_waits_for_a_shard_before_which_much_lies_and_is_read_on() {
    let mut lab = lab(2);
    let subscriber = subscriber_on(&mut lab, 1, "t");
    let publisher = client_on(&mut lab, 0, "publisher");
    lab.bytes(publisher, &burst("t", 0, 0..50));
    assert_eq!(lab.pauses, [(publisher, NEVER)]);
    let lies = mailed_bytes(&lab, 0, 1);
    assert!((MAIL_BYTES_MAX..MAIL_BYTES_MAX + MESSAGE_BYTES_MAX).contains(&lies), "{lies}");
    assert_eq!(lab.total(|m| &m.mail_waits), 1);
    lab.pauses.clear();
    lab.settle();
    assert!(lab.is_read(publisher), "it is read on");
    assert_eq!(numbers(&mut lab, subscriber), (0..50).collect::<Vec<_>>());
}

#[test]
fn who_sends_little_does_not_wait_for_those_who_send_much() {
    let mut lab = lab(2);
    let subscriber = subscriber_on(&mut lab, 1, "t");
    let flooder = client_on(&mut lab, 0, "flooder");
    let modest = client_on(&mut lab, 0, "modest");
    lab.bytes(flooder, &burst("t", 0, 0..50));
    lab.pauses.clear();
    lab.bytes(modest, &burst("t", 0, 100..101));
    assert_eq!(lab.pauses, [], "it has brought one");
    lab.bytes(modest, &burst("t", 0, 101..102));
    assert_eq!(lab.pauses, [(modest, NEVER)], "and that was it for this turn");
    lab.settle();
    let arrived = numbers(&mut lab, subscriber);
    let place = |number| arrived.iter().position(|found| *found == number).expect("it came");
    assert!(place(100) < 30 && place(100) < place(101), "{arrived:?}");
    assert_eq!(arrived.len(), 52);
}

#[test]
fn no_more_than_twice_as_much_lies_before_a_shard_whoever_sends() {
    let mut lab = lab(2);
    subscriber_on(&mut lab, 1, "t");
    let modest: Vec<Conn> =
        (0..60).map(|n| client_on(&mut lab, 0, &format!("modest-{n}"))).collect();
    for conn in modest {
        lab.bytes(conn, &burst("t", 0, 0..1));
    }
    let lies = mailed_bytes(&lab, 0, 1);
    assert!((2 * MAIL_BYTES_MAX..2 * MAIL_BYTES_MAX + MESSAGE_BYTES_MAX).contains(&lies), "{lies}");
}

#[test]
fn mail_counts_until_the_turn_of_its_shard_is_over() {
    let mut lab = lab(2);
    subscriber_on(&mut lab, 1, "t");
    let publisher = client_on(&mut lab, 0, "publisher");
    lab.bytes(publisher, &burst("t", 0, 0..50));
    lab.settle_mail();
    lab.pauses.clear();
    lab.bytes(publisher, &[]);
    assert_eq!(lab.pauses, [(publisher, NEVER)], "what it led to is not written");
    assert_eq!(lab.total(|m| &m.mail_waits), 1, "and it waits already");
}

#[test]
fn two_shards_that_flood_each_other_come_to_an_end() {
    let mut lab = lab(2);
    let ends = [0, 1].map(|shard| {
        let topic = if shard == 0 { "to-0" } else { "to-1" };
        (topic, subscriber_on(&mut lab, shard, topic), client_on(&mut lab, 1 - shard, topic))
    });
    for (topic, _, publisher) in ends {
        lab.bytes(publisher, &burst(topic, 1, 0..200));
    }
    assert_eq!(lab.pauses.len(), 2, "both wait");
    lab.settle();
    for (_, subscriber, _) in ends {
        assert_eq!(numbers(&mut lab, subscriber), (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn a_flood_from_many_publishers_does_not_pile_up_before_a_busy_shard() {
    let mut lab = lab(2);
    let subscriber = subscriber_on(&mut lab, 1, "t");
    let publishers: Vec<Conn> =
        (0..50).map(|number| client_on(&mut lab, 0, &format!("p{number}"))).collect();
    for _ in 0..3 {
        for publisher in &publishers {
            lab.bytes(*publisher, &burst("t", 0, 0..20));
        }
    }
    let lies = mailed_bytes(&lab, 0, 1);
    assert!(lies < MAIL_BYTES_MAX + MESSAGE_BYTES_MAX, "{lies}");
    lab.settle();
    assert_eq!(numbers(&mut lab, subscriber).len(), 50 * 3 * 20);
}

/// Pairs of which the subscribers read all there is in each turn, and have outboxes that take twice
/// what one credit window does: how much is dropped.
fn dropped_of_a_flood(mail_bytes_max: u64) -> u64 {
    let mut lab = lab_with(2, mail_bytes_max);
    let outbox_bytes_max = 4 * MAIL_BYTES_MAX as u32;
    let limits = Limits { outbox_bytes_max, ..Limits::default() };
    let pairs: Vec<(Conn, Conn, String)> = (0..20)
        .map(|number| {
            let topic = format!("t/{number}");
            let id = lab.id_on(1, &format!("s{number}"));
            let subscriber = lab.open(request_with(&id, limits.clone()));
            lab.subscribe(subscriber, &topic, 0);
            (client_on(&mut lab, 0, &format!("p{number}")), subscriber, topic)
        })
        .collect();
    for _ in 0..10 {
        // Publishers are read three times in each turn of the subscribers' shard.
        for _ in 0..3 {
            for (publisher, _, topic) in &pairs {
                lab.bytes(*publisher, &burst(topic, 0, 0..40));
            }
        }
        lab.settle();
        lab.now_ms += 1000;
        pairs.iter().for_each(|(publisher, ..)| lab.bytes(*publisher, &[]));
        lab.settle();
    }
    let received: usize = pairs.iter().map(|(_, s, _)| lab.received(*s).len()).sum();
    let dropped = lab.total(|m| &m.dropped_slow);
    assert_eq!(received as u64 + dropped, 20 * 10 * 3 * 40);
    dropped
}

#[test]
fn a_flood_of_qos_0_is_not_dropped_by_subscribers_that_read() {
    assert_eq!(dropped_of_a_flood(MAIL_BYTES_MAX), 0);
    assert!(dropped_of_a_flood(u64::MAX / 64) > 0, "without a limit it is");
}

#[test]
fn publishers_are_read_on_in_the_order_in_which_they_began_to_wait() {
    let mut lab = lab(2);
    subscriber_on(&mut lab, 1, "t");
    let publishers = ["a", "b", "c"].map(|name| client_on(&mut lab, 0, name));
    for publisher in publishers {
        lab.bytes(publisher, &burst("t", 0, 0..30));
    }
    lab.pauses.clear();
    lab.settle_mail();
    lab.flush();
    lab.deliver_mail();
    lab.collect_closes();
    // The first goes to the end of the row, and the others have not had their turn.
    assert_eq!(lab.pauses, [(publishers[0], NEVER)]);
    lab.settle();
    let ends: Vec<_> = lab.pauses.iter().filter(|(_, until_ms)| *until_ms != NEVER).collect();
    assert_eq!(ends.len(), 3, "{:?}", lab.pauses);
}

#[test]
fn who_publishes_to_others_does_not_wait() {
    let mut lab = lab(3);
    subscriber_on(&mut lab, 1, "t");
    let other = subscriber_on(&mut lab, 2, "u");
    let publisher = client_on(&mut lab, 0, "publisher");
    let neighbour = client_on(&mut lab, 0, "neighbour");
    lab.bytes(publisher, &burst("t", 0, 0..50));
    lab.pauses.clear();
    lab.bytes(neighbour, &burst("u", 0, 0..1));
    assert_eq!(lab.pauses, []);
    lab.settle();
    assert_eq!(numbers(&mut lab, other), [0]);
}

#[test]
fn a_retained_message_waits_for_the_home_of_its_topic() {
    let mut lab = lab(2);
    let topic = lab.topic_on(1, "kept");
    let publisher = client_on(&mut lab, 0, "publisher");
    let mut packets = Vec::new();
    for number in 1..50 {
        let Packet::Publish(mut packet) = publish(&topic, &[1; 100], 1, number) else {
            unreachable!("it is a PUBLISH")
        };
        packet.retain = true;
        Packet::Publish(packet).encode(Version::V5, &mut packets);
    }
    lab.bytes(publisher, &packets);
    assert_eq!(lab.pauses, [(publisher, NEVER)]);
    lab.settle();
    assert_eq!(lab.take_all(publisher).len(), 49, "all are acknowledged");
}

#[test]
fn what_is_no_publish_waits_for_nothing() {
    let mut lab = lab(2);
    let subscriber = subscriber_on(&mut lab, 1, "t");
    let publisher = client_on(&mut lab, 0, "publisher");
    lab.bytes(publisher, &burst("t", 2, 0..50));
    lab.deliver_mail();
    lab.bytes(publisher, &burst("t", 2, 50..51));
    // An acknowledgement comes through, and a ping of somebody else.
    let pinging = client_on(&mut lab, 0, "pinging");
    lab.bytes(pinging, &[0xC0, 0]);
    lab.flush();
    assert_eq!(lab.take(pinging), Some(Got::Pingresp));
    lab.settle();
    assert_eq!(numbers(&mut lab, subscriber), (0..51).collect::<Vec<_>>());
    let answers = lab.take_all(publisher);
    assert!(answers.iter().all(|got| matches!(got, Got::Ack(AckKind::Pubrec, _, Reason::SUCCESS))));
    assert_eq!(answers.len(), 51);
}

#[test]
fn a_publisher_that_also_has_to_wait_for_its_rate_is_not_read_before_its_time() {
    let mut lab = lab(2);
    subscriber_on(&mut lab, 1, "t");
    let message_rate = session::Rate { per_second: 10, burst: 10 };
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(request_with(&id, Limits { message_rate, ..Limits::default() }));
    lab.bytes(publisher, &burst("t", 0, 0..50));
    assert_eq!(lab.pauses.last(), Some(&(publisher, NEVER)), "it waits for the shard first");
    let taken = lab.total(|m| &m.publishes_received);
    lab.pauses.clear();
    lab.settle();
    assert_eq!(lab.total(|m| &m.publishes_received), taken);
    let [(_, until_ms)] = lab.pauses[..] else { panic!("one word: {:?}", lab.pauses) };
    assert!(until_ms > lab.now_ms && until_ms < NEVER);
    lab.now_ms = until_ms;
    lab.bytes(publisher, &[]);
    assert!(lab.total(|m| &m.publishes_received) > taken);
}

#[test]
fn what_waits_is_published_when_the_connection_ends() {
    let mut lab = lab(2);
    let subscriber = subscriber_on(&mut lab, 1, "t");
    let publisher = client_on(&mut lab, 0, "publisher");
    lab.bytes(publisher, &burst("t", 0, 0..50));
    lab.cut(publisher);
    lab.settle();
    assert_eq!(numbers(&mut lab, subscriber).len(), 50);
}

#[test]
fn a_publisher_elsewhere_waits_as_long_again_as_its_subscriber_has_been_behind() {
    let mut lab = lab_with(2, 1 << 20);
    let id = lab.id_on(1, "subscriber");
    let limits = Limits { outbox_bytes_max: 1000, ..Limits::default() };
    let subscriber = lab.open(request_with(&id, limits));
    lab.subscribe(subscriber, "t", 1);
    let publisher = client_on(&mut lab, 0, "publisher");
    let mut waits_ms = Vec::new();
    for _ in 0..7 {
        lab.bytes(publisher, &burst("t", 1, 0..10));
        lab.settle_mail();
        let until_ms = lab.pauses.pop().expect("a pause").1;
        waits_ms.push(until_ms - lab.now_ms);
        lab.now_ms = until_ms;
        lab.shards[1].end_turn();
    }
    assert_eq!(waits_ms, [2, 2, 4, 8, 16, 32, 64]);
    lab.flush();
    lab.bytes(publisher, &burst("t", 1, 0..10));
    lab.settle_mail();
    assert_eq!(lab.pauses.pop(), Some((publisher, lab.now_ms + 2)), "it has caught up");
}
