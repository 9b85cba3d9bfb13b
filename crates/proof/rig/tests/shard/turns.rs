//! How much one turn may do for a single client or a single moment, by number: the rest follows
//! with the next turns, and nobody can tell from outside.

use broker::ConnectRequest;
use codec::Reason;
use rig::{
    Conn, Got, Lab, persistent, publish, publish_numbers, read_all, request, texts, with_limits,
};

/// Calls of `on_tick` until nothing is due any more.
fn ticks(lab: &mut Lab) -> usize {
    let mut count = 0;
    while lab.shards[0].next_deadline_ms() <= lab.now_ms {
        lab.shards[0].on_tick(lab.now_ms);
        count += 1;
    }
    count
}

fn subscribe_all(lab: &mut Lab, conn: Conn, filters: &[String], qos: u8) {
    lab.subscribe_all(conn, filters, qos);
    lab.settle();
    assert_eq!(lab.take(conn), Some(Got::Suback(1, vec![qos; filters.len()])));
}

fn with_keep_alive(lab: &mut Lab, count: usize) -> Vec<Conn> {
    let open = |number| {
        let request = request(&format!("client-{number}"));
        lab.open(ConnectRequest { keep_alive_secs: 60, ..request })
    };
    (0..count).map(open).collect()
}

#[test]
fn many_clients_of_one_moment_are_looked_at_over_several_turns() {
    let mut lab = Lab::new(1);
    let clients = with_keep_alive(&mut lab, 3000);
    lab.now_ms += 60_000;
    clients.iter().for_each(|conn| lab.bytes(*conn, &[0xc0, 0]));
    lab.settle();
    lab.now_ms += 30_000;
    assert_eq!(ticks(&mut lab), 3, "1,024 in a turn");
    assert!(!clients.iter().any(|conn| lab.is_closed(*conn)), "all have sent something");
    assert_eq!(lab.shards[0].next_deadline_ms(), lab.now_ms + 60_000, "and are armed anew");
}

#[test]
fn mqtt_3_1_2_22_many_silent_clients_end_over_several_turns_and_none_too_early() {
    let mut lab = Lab::new(1);
    let clients = with_keep_alive(&mut lab, 200);
    lab.now_ms += 89_999;
    assert_eq!(ticks(&mut lab), 0);
    lab.now_ms += 1;
    lab.shards[0].on_tick(lab.now_ms);
    assert_eq!(lab.shards[0].effects().closes.len(), 61, "an end counts for 17 looks of 1,024");
    assert_eq!(ticks(&mut lab), 3, "61 in a turn");
    lab.settle();
    assert!(clients.iter().all(|conn| lab.is_closed(*conn)));
    assert_eq!(lab.total(|m| &m.keep_alive_timeouts), 200);
    assert_eq!(lab.total(|m| &m.connections), 0);
}

#[test]
fn a_session_with_many_subscriptions_is_gone_at_once_and_cleared_away_over_several_turns() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("publisher"));
    let many = lab.open(persistent("many"));
    let filters: Vec<String> = (0..2_500).map(|number| format!("t/{number}")).collect();
    subscribe_all(&mut lab, many, &filters, 1);
    lab.subscribe(many, "$share/group/t", 1);
    assert_eq!(lab.total(|m| &m.subscriptions), 2_501);

    let again = lab.open(request("many"));
    assert_eq!(lab.total(|m| &m.subscriptions), 0);
    assert_eq!(lab.total(|m| &m.sessions), 2);
    // Neither the new session nor one that comes now gets what the old one wanted.
    let other = lab.open(request("other"));
    for filter in &filters {
        lab.publish(publisher, filter, b"x", 1, 1);
    }
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(lab.received(again).len() + lab.received(other).len(), 0);
    assert_eq!(lab.total(|m| &m.publishes_sent), 0);

    assert_eq!(ticks(&mut lab), 3, "1,000 in a turn");
    lab.take_all(publisher);
    for topic in ["t/0", "t/2499", "t"] {
        lab.publish(publisher, topic, b"x", 1, 1);
        let nobody = Reason::NO_MATCHING_SUBSCRIBERS;
        assert_eq!(lab.take(publisher), Some(Got::Ack(codec::AckKind::Puback, 1, nobody)));
    }
    // The slot is free again.
    let third = lab.open(request("third"));
    assert_eq!(lab.place(third).1, lab.place(many).1);
}

#[test]
fn sessions_that_end_together_share_what_a_turn_may_clear_away() {
    let mut lab = Lab::new(1);
    let filters: Vec<String> = (0..1_500).map(|number| format!("t/{number}")).collect();
    let clients: Vec<Conn> = (0..4)
        .map(|number| {
            let conn = lab.open(request(&format!("client-{number}")));
            subscribe_all(&mut lab, conn, &filters, 0);
            conn
        })
        .collect();
    clients.iter().for_each(|conn| lab.cut(*conn));
    assert_eq!(lab.total(|m| &m.subscriptions), 0);
    assert_eq!(ticks(&mut lab), 6, "1,000 in a turn");
}

#[test]
fn what_a_session_of_everyday_size_had_is_cleared_away_at_once() {
    let mut lab = Lab::new(1);
    let filters: Vec<String> = (0..64).map(|number| format!("t/{number}")).collect();
    let conn = lab.open(request("client"));
    subscribe_all(&mut lab, conn, &filters, 0);
    lab.cut(conn);
    assert_eq!(ticks(&mut lab), 0);
}

#[test]
fn sessions_that_end_faster_than_they_are_cleared_away_are_cleared_away_faster() {
    let mut lab = Lab::new(1);
    let filters: Vec<String> = (0..50_000).map(|number| format!("t/{number}")).collect();
    for _ in 0..5 {
        let conn = lab.open(request("client"));
        subscribe_all(&mut lab, conn, &filters, 0);
        lab.cut(conn);
    }
    let count = ticks(&mut lab);
    assert!((190..200).contains(&count), "a hundredth in a turn, and 1,000 at the end: {count}");
}

#[test]
fn a_long_queue_is_freed_over_several_turns() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("publisher"));
    let conn = lab.open(persistent("long"));
    lab.subscribe(conn, "t", 1);
    lab.cut(conn);
    for _ in 0..12_000 {
        lab.send_only(publisher, &publish("t", b"x", 1, 1));
    }
    lab.settle();
    assert_eq!(lab.total(|m| &m.publishes_queued), 12_000);
    let conn = lab.open(request("long"));
    assert!(lab.received(conn).is_empty());
    assert_eq!(ticks(&mut lab), 3, "5,000 in a turn");
}

#[test]
fn filters_given_up_in_one_packet_take_along_what_waits_by_them_alone() {
    for is_unsubscribed in [true, false] {
        let mut lab = Lab::durable(1);
        let publisher = lab.open(request("publisher"));
        let back = || with_limits(persistent("client"), rig::window(1));
        let client = lab.open(back());
        let filters: Vec<String> = ["a", "b", "+", "c"].map(String::from).into();
        subscribe_all(&mut lab, client, &filters, 1);
        lab.cut(client);
        publish_numbers(&mut lab, publisher, "a", 0..3);
        publish_numbers(&mut lab, publisher, "b", 3..6);
        publish_numbers(&mut lab, publisher, "c", 6..9);
        let client = lab.open(back());
        let given_up = ["a", "+", "b"];
        match is_unsubscribed {
            true => lab.unsubscribe_all(client, &given_up),
            false => lab.subscribe_all(client, &given_up, 0),
        }
        lab.settle();
        let payloads = read_all(&mut lab, client);
        match is_unsubscribed {
            // The first was in flight already.
            true => assert_eq!(payloads, ["0", "6", "7", "8"]),
            false => assert_eq!(payloads, texts(0..9), "only what comes from now on is less"),
        }
    }
}
