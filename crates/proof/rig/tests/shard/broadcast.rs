//! Messages for more subscribers than a turn has time for: the others get them later, in order, and
//! whoever else has something to say is heard in between.

use broker::{Mail, Settings};
use codec::Packet;
use policy::Access;
use policy::{Permission, Who};
use rig::{Conn, Got, Lab, persistent, publish, request, rule};
use storage::testing::Crash;

/// Subscriptions that a turn has time for.
const UNITS: usize = 100;
const SUBSCRIBERS: usize = 250;

fn settings() -> Settings {
    Settings { turn_units: UNITS as u32, ..Settings::default() }
}

fn subscribers(lab: &mut Lab, shard: u16) -> Vec<Conn> {
    let all = (0..SUBSCRIBERS).map(|number| {
        let id = lab.id_on(shard, &format!("subscriber {number}"));
        let conn = lab.open(request(&id));
        lab.subscribe(conn, "all/#", 1);
        conn
    });
    all.collect()
}

/// A publisher of the first shard, whose message on `all/a` has reached some.
fn half_way(lab: &mut Lab) -> (Conn, Vec<Conn>) {
    let all = subscribers(lab, 0);
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(request(&id));
    lab.send_only(publisher, &publish("all/a", b"1", 1, 1));
    lab.flush();
    (publisher, all)
}

fn payloads(lab: &mut Lab, all: &[Conn]) -> Vec<Vec<String>> {
    all.iter().map(|conn| lab.payloads(*conn)).collect()
}

#[test]
fn one_turn_reaches_some_and_somebody_else_comes_before_the_others() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let (other, reader) = (lab.open(request("other")), lab.open(request("reader")));
    lab.subscribe(reader, "else", 0);
    let (publisher, all) = half_way(&mut lab);
    lab.send_only(other, &publish("else", b"2", 0, 0));
    lab.flush();
    assert_eq!(lab.payloads(reader), ["2"]);
    let reached = payloads(&mut lab, &all).iter().filter(|own| !own.is_empty()).count();
    assert_eq!(reached, UNITS);
    assert!(matches!(lab.take(publisher), Some(Got::Ack(..))), "it is taken");
    assert_eq!(lab.shards[0].next_deadline_ms(), 0, "there is more to do");
    lab.settle();
    let reached = payloads(&mut lab, &all).iter().filter(|own| !own.is_empty()).count();
    assert_eq!(reached, SUBSCRIBERS - UNITS);
    assert_eq!(lab.total(|metrics| &metrics.broadcasts_put_off), 1);
}

#[test]
fn what_comes_behind_it_waits_until_it_has_reached_everybody() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let other = lab.open(request("other"));
    let (publisher, all) = half_way(&mut lab);
    lab.take_all(publisher);
    // Of its publisher, on another topic, and on its topic by somebody else.
    lab.send_only(publisher, &publish("all/b", b"2", 1, 2));
    lab.send_only(other, &publish("all/a", b"3", 1, 1));
    lab.flush();
    assert_eq!((lab.take(publisher), lab.take(other)), (None, None), "neither is taken yet");
    lab.settle();
    for own in payloads(&mut lab, &all) {
        assert_eq!(own.first().map(String::as_str), Some("1"));
        assert_eq!(own.len(), 3, "{own:?}");
    }
}

#[test]
fn what_a_publisher_that_is_gone_has_left_keeps_its_order() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let all = subscribers(&mut lab, 0);
    let last = all[SUBSCRIBERS - 1];
    lab.subscribe(last, "few", 1);
    let publisher = lab.open(request("publisher"));
    lab.send_only(publisher, &publish("all/a", b"1", 1, 1));
    lab.flush();
    lab.send_only(publisher, &publish("few", b"2", 0, 0));
    lab.send_only(publisher, &publish("all/b", b"3", 0, 0));
    let (shard, slot) = lab.place(publisher);
    lab.shards[shard].on_closed(slot, publisher, lab.now_ms);
    assert_eq!(lab.payloads(last), [""; 0], "it is behind");
    lab.settle();
    assert_eq!(lab.payloads(last), ["1", "2", "3"]);
    assert!(payloads(&mut lab, &all[..SUBSCRIBERS - 1]).iter().all(|own| own == &["1", "3"]));
}

#[test]
fn mail_behind_it_keeps_its_order() {
    let mut lab = Lab::with(2, settings(), Access::open());
    let all = subscribers(&mut lab, 1);
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(request(&id));
    for number in 1..=4 {
        let payload = number.to_string();
        lab.send_only(publisher, &publish("all/a", payload.as_bytes(), 0, 0));
    }
    let mail = lab.shards[0].effects_mut().take_batch(1);
    assert!(mail.iter().any(|mail| matches!(mail, Mail::Publish { .. })));
    lab.shards[1].on_batch(mail, lab.now_ms);
    assert_eq!(lab.total(|metrics| &metrics.broadcasts_put_off), 1, "the others are not read");
    lab.pass_secs(20);
    assert!(payloads(&mut lab, &all).iter().all(|own| own == &["1", "2", "3", "4"]));
}

#[test]
fn mail_of_others_does_not_wait_behind_what_it_holds_up() {
    const OTHERS: usize = UNITS + UNITS / 2;
    let mut lab = Lab::with(2, settings(), Access::open());
    let all = subscribers(&mut lab, 1);
    let reader = lab.id_on(1, "reader");
    let reader = lab.open(request(&reader));
    lab.subscribe(reader, "else", 0);
    let [publisher, other] = ["publisher", "other"].map(|name| {
        let id = lab.id_on(0, name);
        lab.open(request(&id))
    });
    for payload in [b"1", b"2"] {
        lab.send_only(publisher, &publish("all/a", payload, 0, 0));
    }
    for _ in 0..OTHERS {
        lab.send_only(other, &publish("else", b"else", 0, 0));
    }
    let mail = lab.shards[0].effects_mut().take_batch(1);
    lab.shards[1].on_batch(mail, lab.now_ms);
    lab.flush();
    assert!(lab.payloads(reader).len() < OTHERS, "more than a turn has time for");
    lab.shards[1].on_tick(lab.now_ms);
    let got = payloads(&mut lab, &all);
    assert!(got.iter().any(Vec::is_empty), "the first has not reached everybody");
    lab.flush();
    assert_eq!(lab.payloads(reader).len(), OTHERS - UNITS, "the others are not held up");
    lab.pass_secs(20);
    assert!(payloads(&mut lab, &all).iter().all(|own| own.ends_with(&["2".to_owned()])));
}

#[test]
fn who_unsubscribes_meanwhile_gets_it_before_the_answer_and_nothing_after() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let (_, all) = half_way(&mut lab);
    let last = all[SUBSCRIBERS - 1];
    let mut filters = codec::TopicBuf::new();
    filters.push("all/#");
    let (packet_id, properties) = (9, codec::Properties::EMPTY);
    let filters = filters.as_topics();
    lab.send(last, &Packet::Unsubscribe(codec::Unsubscribe { packet_id, properties, filters }));
    let got = lab.take_all(last);
    assert!(matches!(got.as_slice(), [Got::Publish(_), Got::Unsuback(..)]), "{got:?}");
}

#[test]
fn who_gets_the_slot_of_one_that_has_gone_gets_nothing() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let (_, all) = half_way(&mut lab);
    let last = all[SUBSCRIBERS - 1];
    let (shard, slot) = lab.place(last);
    lab.shards[shard].on_closed(slot, last, lab.now_ms);
    let conn = lab.connect_only(request("newcomer"));
    assert_eq!(lab.place(conn), (shard, slot), "the slot is used again");
    lab.settle();
    assert_eq!(lab.payloads(conn), [""; 0]);
}

#[test]
fn who_may_not_receive_it_any_more_does_not() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let (_, all) = half_way(&mut lab);
    let rules = [rule(Who::Everyone, Permission::Deny, "all/#")];
    let access = Access::compile(&rules).expect("sound rules");
    lab.shards[0].set_access(access);
    lab.settle();
    let reached = payloads(&mut lab, &all).iter().filter(|own| !own.is_empty()).count();
    assert_eq!(reached, UNITS);
}

#[test]
fn what_kept_sessions_are_owed_is_in_the_journal_at_once() {
    let mut lab = Lab::durable_with(1, settings());
    let ids: Vec<String> = (0..SUBSCRIBERS).map(|number| format!("kept {number}")).collect();
    for id in &ids {
        let conn = lab.open(persistent(id));
        lab.subscribe(conn, "all/#", 1);
        lab.cut(conn);
    }
    let (publisher, all) = half_way(&mut lab);
    lab.work_disks();
    lab.flush();
    assert!(matches!(lab.take(publisher), Some(Got::Ack(..))));
    let reached = payloads(&mut lab, &all).iter().filter(|own| !own.is_empty()).count();
    assert!(reached < SUBSCRIBERS);
    lab.crash(Crash::Power);
    for id in &ids {
        let conn = lab.open(persistent(id));
        assert_eq!(lab.payloads(conn), ["1"], "{id}");
    }
}

#[test]
fn a_kept_message_does_not_overtake_a_broadcast_of_its_publisher() {
    let mut lab = Lab::durable_with(1, settings());
    subscribers(&mut lab, 0);
    let kept = lab.open(persistent("kept"));
    lab.subscribe(kept, "all/#", 1);
    let publisher = lab.open(request("publisher"));
    lab.send_only(publisher, &publish("all/a", b"1", 0, 0));
    lab.flush();
    assert_eq!(lab.payloads(kept), [""; 0], "it is behind");
    lab.send_only(publisher, &publish("all/b", b"2", 1, 1));
    let (shard, slot) = lab.place(publisher);
    lab.shards[shard].on_closed(slot, publisher, lab.now_ms);
    lab.settle();
    assert_eq!(lab.payloads(kept), ["1", "2"]);
}

#[test]
fn before_the_end_everybody_is_reached() {
    let mut lab = Lab::with(1, settings(), Access::open());
    let (_, all) = half_way(&mut lab);
    lab.shards[0].on_shutdown(lab.now_ms);
    lab.flush();
    assert!(payloads(&mut lab, &all).iter().all(|own| own == &["1"]));
}
