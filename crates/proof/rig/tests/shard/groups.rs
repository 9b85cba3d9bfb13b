//! Shared groups across shards: who knows of a member, from when on, and what is kept for it.

use broker::{ConnectRequest, Durability, Limits, Settings, WhenFull};
use codec::{AckKind, FilterBuf, Packet, Properties, Reason, Subscribe, SubscribeOptions};
use policy::{Access, Permission, Who};
use rig::{Conn, Got, Lab, persistent, read_all, request, rule, with_limits};
use storage::Status;
use storage::testing::Crash;

const FILTER: &str = "$share/g/t/#";

/// Asks for a filter; nothing is carried on.
fn ask(lab: &mut Lab, conn: Conn, filter: &str, qos: u8, packet_id: u16) {
    let mut filters = FilterBuf::new();
    filters.push(filter, SubscribeOptions::new(rig::level(qos)));
    let (properties, filters) = (Properties::EMPTY, filters.as_filters());
    lab.send_only(conn, &Packet::Subscribe(Subscribe { packet_id, properties, filters }));
}

fn suback(packet_id: u16, qos: u8) -> Option<Got> {
    Some(Got::Suback(packet_id, vec![qos]))
}

/// Publishes at QoS 1 and expects the acknowledgement.
fn publish(lab: &mut Lab, publisher: Conn, payload: &str) {
    lab.publish(publisher, "t/a", payload.as_bytes(), 1, 1);
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Puback, 1, Reason::SUCCESS)]);
}

/// A kept member on shard 0, which asks for its subscription, and a publisher on each other shard.
fn newcomer(lab: &mut Lab) -> (String, Conn, Vec<Conn>) {
    let id = lab.id_on(0, "member");
    let publishers = (1..lab.shards.len() as u16).map(|shard| {
        let id = lab.id_on(shard, "publisher");
        lab.open(request(&id))
    });
    let publishers = publishers.collect();
    let member = lab.open(persistent(&id));
    (id, member, publishers)
}

/// Subscribes while one shard hears nothing of it, and publishes there as soon as the SUBACK has
/// come.
fn publish_behind_the_suback(lab: &mut Lab, deaf: u16) -> (String, Conn) {
    let (id, member, publishers) = newcomer(lab);
    ask(lab, member, FILTER, 1, 7);
    lab.settle_but(deaf);
    // The shard of a publisher does not know of the member yet.
    assert_eq!(lab.take(member), None, "shard {deaf}");
    lab.settle();
    assert_eq!(lab.take(member), suback(7, 1));
    publish(lab, publishers[usize::from(deaf) - 1], "1");
    (id, member)
}

#[test]
fn what_is_published_behind_the_suback_is_kept_whatever_the_shard() {
    for deaf in 1..3 {
        let mut lab = Lab::durable(3);
        let (id, _) = publish_behind_the_suback(&mut lab, deaf);
        lab.crash(Crash::Power);
        let member = lab.open(persistent(&id));
        assert_eq!(lab.payloads(member), ["1"], "shard {deaf}");
    }
}

#[test]
fn what_is_published_behind_the_suback_finds_a_group_in_memory_too() {
    for deaf in 1..3 {
        let mut lab = Lab::new(3);
        let (_, member) = publish_behind_the_suback(&mut lab, deaf);
        assert_eq!(lab.payloads(member), ["1"], "shard {deaf}");
    }
}

#[test]
fn a_member_whose_qos_rises_is_reported_when_all_shards_keep_messages_for_it() {
    let mut lab = Lab::durable(2);
    let (id, member, publishers) = newcomer(&mut lab);
    assert_eq!(lab.subscribe(member, FILTER, 0), 0);
    ask(&mut lab, member, FILTER, 1, 7);
    lab.settle_but(1);
    assert_eq!(lab.take(member), None);
    lab.settle();
    assert_eq!(lab.take(member), suback(7, 1));
    publish(&mut lab, publishers[0], "1");
    lab.crash(Crash::Power);
    let member = lab.open(persistent(&id));
    assert_eq!(lab.payloads(member), ["1"]);
}

#[test]
fn after_a_start_all_shards_know_who_keeps_what() {
    let mut lab = Lab::durable(3);
    let (id, member, _) = newcomer(&mut lab);
    lab.subscribe(member, FILTER, 1);
    lab.crash(Crash::Power);
    let publisher = lab.id_on(2, "publisher");
    let publisher = lab.open(request(&publisher));
    publish(&mut lab, publisher, "1");
    lab.crash(Crash::Power);
    let member = lab.open(persistent(&id));
    assert_eq!(lab.payloads(member), ["1"]);
}

#[test]
fn who_asks_again_waits_for_the_first_answer_too() {
    let mut lab = Lab::durable(2);
    let (_, member, _) = newcomer(&mut lab);
    ask(&mut lab, member, FILTER, 1, 7);
    lab.settle_but(1);
    ask(&mut lab, member, FILTER, 1, 8);
    lab.settle_but(1);
    assert_eq!(lab.take(member), None);
    lab.settle();
    assert_eq!((lab.take(member), lab.take(member)), (suback(7, 1), suback(8, 1)));
}

#[test]
fn an_answer_that_comes_late_is_not_for_the_next_connection() {
    let mut lab = Lab::durable(2);
    let (id, member, _) = newcomer(&mut lab);
    ask(&mut lab, member, FILTER, 1, 7);
    lab.settle_but(1);
    let next = lab.connect_only(persistent(&id));
    lab.settle();
    assert!(matches!(lab.take_all(next)[..], [Got::Connack { .. }]));
    assert!(lab.is_closed(member));
}

#[test]
fn who_waits_for_other_shards_when_the_journal_fails_is_cut_off() {
    let mut lab = Lab::durable(2);
    let (_, member, _) = newcomer(&mut lab);
    ask(&mut lab, member, FILTER, 1, 7);
    lab.disks[0].faults.fail_next_sync = true;
    lab.settle_but(1);
    assert!(!lab.is_closed(member));
    lab.settle();
    assert!(lab.is_closed(member));
    assert!(!lab.take_all(member).iter().any(|got| matches!(got, Got::Suback(..))));
}

#[test]
fn while_very_many_wait_for_other_shards_no_subscribe_is_read() {
    let mut lab = Lab::new(2);
    let (_, member, _) = newcomer(&mut lab);
    let mut asked = 0_u16;
    while lab.pauses.is_empty() {
        asked += 1;
        ask(&mut lab, member, FILTER, 1, asked);
    }
    let (shard, slot) = lab.place(member);
    lab.settle();
    lab.shards[shard].on_bytes(slot, member, &[], lab.now_ms);
    lab.settle();
    let answers: Vec<Got> = (1..=asked).filter_map(|packet_id| suback(packet_id, 1)).collect();
    assert_eq!(lab.take_all(member), answers);
}

#[test]
fn a_session_that_becomes_durable_is_a_member_for_which_messages_are_kept() {
    let mut lab = Lab::durable(2);
    let id = lab.id_on(0, "member");
    let at = |durability| {
        let limits = Limits { durability, ..Limits::default() };
        with_limits(persistent(&id), limits)
    };
    let member = lab.open(at(Durability::Memory));
    assert_eq!(lab.subscribe(member, FILTER, 2), 2);
    let member = lab.open(at(Durability::Fsync));
    let publisher = lab.id_on(1, "publisher");
    let publisher = lab.open(request(&publisher));
    publish(&mut lab, publisher, "1");
    lab.publish(publisher, "t/a", b"2", 2, 2);
    lab.ack(publisher, AckKind::Pubrel, 2);
    let qos: Vec<u8> = lab.received(member).iter().map(|received| received.qos).collect();
    // At QoS 2 the client would take what has the packet id after a crash for a repetition.
    assert_eq!(qos, [1, 1]);
    lab.crash(Crash::Power);
    let member = lab.open(at(Durability::Fsync));
    assert_eq!(lab.payloads(member), ["1", "2"]);
}

/// Full disks of all shards, and a group with a kept member that is away.
fn full_disks(when_full: WhenFull) -> Lab {
    let mut lab = Lab::durable_with(2, Settings { when_full, ..Settings::default() });
    let member = lab.open(persistent("member"));
    lab.subscribe(member, FILTER, 1);
    lab.cut(member);
    let publisher = lab.open(request("other"));
    for shard in 0..2 {
        let away = lab.id_on(shard, "away");
        let away = lab.open(persistent(&away));
        let topic = format!("f/{shard}");
        lab.subscribe(away, &topic, 1);
        lab.cut(away);
        lab.disks[usize::from(shard)].faults.capacity_bytes = 4 * 64 * 1024;
        let mut packet_id = 0;
        while !matches!(lab.shards[usize::from(shard)].journal_status(), Some(Status::Full(_))) {
            packet_id += 1;
            lab.publish(publisher, &topic, &[b'x'; 4000], 1, packet_id);
            assert!(packet_id < 1000, "the disk is never full");
        }
    }
    lab
}

#[test]
fn what_a_client_sends_with_each_connection_to_a_group_without_room_does_not_pile_up() {
    for shard in 0..2 {
        let mut lab = full_disks(WhenFull::Wait);
        let id = lab.id_on(shard, "publisher");
        for _ in 0..20 {
            let publisher = lab.open(request(&id));
            lab.publish(publisher, "t/a", b"1", 1, 1);
            assert_eq!(lab.take(publisher), None);
            lab.cut(publisher);
        }
        lab.disks.iter_mut().for_each(|disk| disk.faults.capacity_bytes = u64::MAX);
        lab.pass_secs(3);
        let publisher = lab.open(request(&id));
        publish(&mut lab, publisher, "1");
        let member = lab.open(persistent("member"));
        assert_eq!(read_all(&mut lab, member), ["1"], "publisher on shard {shard}");
    }
}

#[test]
fn what_a_group_has_no_room_for_is_refused_before_anybody_has_it() {
    for shard in 0..2 {
        let mut lab = full_disks(WhenFull::Refuse);
        let other = lab.open(request("other"));
        lab.subscribe(other, "t/a", 1);
        let publisher = lab.id_on(shard, "publisher");
        let publisher = lab.open(request(&publisher));
        lab.publish(publisher, "t/a", b"1", 1, 1);
        let refused = Got::Ack(AckKind::Puback, 1, Reason::QUOTA_EXCEEDED);
        assert_eq!(lab.take_all(publisher), [refused], "publisher on shard {shard}");
        assert_eq!(lab.payloads(other), Vec::<String>::new(), "publisher on shard {shard}");
    }
}

/// Somebody without the right to what a group is for is there all the time; who has it is away.
fn nothing_is_lost_to_who_may_not_have_it(mut lab: Lab) {
    let user = |name: &str, filter| rule(Who::User(name.into()), Permission::ReadWrite, filter);
    let access = Access::compile(&[user("owner", "#"), user("intruder", "open/#")]);
    let access = access.expect("sound rules").accepting_all_subscriptions(true);
    lab.shards.iter_mut().for_each(|shard| shard.set_access(access.clone()));
    let of = |name: &str, id: &str| ConnectRequest {
        username: Some(name.into()),
        is_proved: true,
        ..persistent(id)
    };
    let owner = lab.open(of("owner", "owner"));
    lab.subscribe(owner, FILTER, 1);
    lab.cut(owner);
    let intruder = lab.open(of("intruder", "intruder"));
    lab.subscribe(intruder, FILTER, 1);
    let publisher = lab.open(of("owner", "publisher"));
    for number in 1..=20 {
        let payload = number.to_string();
        lab.publish(publisher, "t/a", payload.as_bytes(), 1, number);
    }
    lab.pass_secs(3);
    assert_eq!(lab.payloads(intruder), Vec::<String>::new());
    let owner = lab.connect(of("owner", "owner"));
    lab.pass_secs(3);
    let mut got = read_all(&mut lab, owner);
    got.sort_by_key(|number| number.parse::<u32>().unwrap_or_default());
    assert_eq!(got, rig::texts(1..21));
    assert_eq!(lab.total(|m| &m.dropped_group), 0);
}

#[test]
fn a_message_waits_for_the_member_that_may_have_it() {
    for shard_count in [1, 3] {
        nothing_is_lost_to_who_may_not_have_it(Lab::new(shard_count));
    }
}

#[test]
fn a_message_in_the_journal_waits_for_the_member_that_may_have_it() {
    for shard_count in [1, 3] {
        nothing_is_lost_to_who_may_not_have_it(Lab::durable(shard_count));
    }
}

/// What leads to it stands in the tables of other shards until they hear of it, and here until its
/// turn comes.
#[test]
fn nobody_does_anything_for_a_group_whose_last_member_is_gone() {
    for shard in [0, 1] {
        let mut lab = Lab::new(2);
        let [member, publisher] = [("member", 0), ("publisher", shard)].map(|(name, shard)| {
            let id = lab.id_on(shard, name);
            lab.open(request(&id))
        });
        let filters: Vec<_> = (0..100).map(|number| format!("$share/g{number}/t/#")).collect();
        lab.subscribe_all(member, &filters, 1);
        lab.take_all(member);
        let (shard_of_member, slot) = lab.place(member);
        let now_ms = lab.now_ms;
        lab.shards[shard_of_member].on_closed(slot, member, now_ms);
        lab.send_only(publisher, &rig::publish("t/a", b"x", 1, 1));
        lab.settle();
        let answer = Got::Ack(AckKind::Puback, 1, Reason::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(lab.take_all(publisher), [answer], "shard {shard}");
        assert_eq!(lab.total(|metrics| &metrics.dropped_group), 0, "shard {shard}");
    }
}
