//! The queue of a shared group has one limit, wherever its messages wait.

use broker::{ConnectRequest, Settings};
use codec::AckKind;
use policy::{Access, Permission, Who};
use rig::{Conn, Lab, level, persistent, read_all, request, rule, texts, window, with_limits};
use session::{Overflow, QueueLimits};
use storage::testing::Crash;

const FILTER: &str = "$share/g/t/#";
const MESSAGES_MAX: u32 = 10;
const POLICIES: [Overflow; 3] = [Overflow::DropOldest, Overflow::DropNewest, Overflow::Reject];

fn labs(limits: QueueLimits) -> impl Iterator<Item = (String, Lab)> {
    let settings = move || Settings { share_queue: limits, ..Settings::default() };
    [1, 3].into_iter().flat_map(move |shards| {
        let memory = Lab::with(shards, settings(), Access::open());
        let journal = Lab::durable_with(shards, settings());
        let of = |place: &str| format!("{shards} shards, {place}, {:?}", limits.overflow);
        [(of("memory"), memory), (of("journal"), journal)]
    })
}

fn limits(messages_max: u32, overflow: Overflow) -> QueueLimits {
    QueueLimits { messages_max, overflow, ..Settings::default().share_queue }
}

fn of(name: &str, id: &str) -> ConnectRequest {
    ConnectRequest { username: Some(name.into()), is_proved: true, ..persistent(id) }
}

/// Owners may have all, an intruder may subscribe and gets nothing.
fn set_access(lab: &mut Lab) {
    let user = |name: &str, filter| rule(Who::User(name.into()), Permission::ReadWrite, filter);
    let access = Access::compile(&[user("owner", "#"), user("intruder", "open/#")]);
    let access = access.expect("sound rules").accepting_all_subscriptions(true);
    lab.shards.iter_mut().for_each(|shard| shard.set_access(access.clone()));
}

fn member(lab: &mut Lab, request: ConnectRequest) -> Conn {
    let conn = lab.open(request);
    lab.subscribe(conn, FILTER, 1);
    conn
}

/// An owner is away, and as many intruders are there.
fn with_intruders(lab: &mut Lab, count: usize) {
    set_access(lab);
    let owner = member(lab, of("owner", "owner"));
    lab.cut(owner);
    for number in 0..count {
        member(lab, of("intruder", &format!("intruder-{number}")));
    }
}

/// Publishes the numbers; from time to time a second passes.
fn publish(lab: &mut Lab, numbers: std::ops::Range<u32>) {
    let publisher = lab.open(of("owner", "publisher"));
    for number in numbers {
        lab.publish(publisher, "t/a", number.to_string().as_bytes(), 1, 1);
        lab.take_all(publisher);
        if number % 7 == 0 {
            lab.pass_secs(1);
        }
    }
    lab.cut(publisher);
}

fn got_by_the_owner(lab: &mut Lab) -> Vec<String> {
    let owner = lab.connect(of("owner", "owner"));
    lab.pass_secs(5);
    let mut got = read_all(lab, owner);
    got.sort_by_key(|number| number.parse::<u32>().unwrap_or_default());
    got
}

fn expected(overflow: Overflow, count: u32) -> Vec<String> {
    match overflow {
        Overflow::DropOldest => texts(count - MESSAGES_MAX..count),
        _ => texts(0..MESSAGES_MAX),
    }
}

#[test]
fn members_without_the_right_to_receive_do_not_switch_the_limit_off() {
    for overflow in POLICIES {
        for intruders in [0, 1, 3] {
            for (case, mut lab) in labs(limits(MESSAGES_MAX, overflow)) {
                with_intruders(&mut lab, intruders);
                publish(&mut lab, 0..60);
                let dropped = lab.total(|m| &m.dropped_group);
                assert_eq!(dropped, 50, "{case}, {intruders} intruders");
                let got = got_by_the_owner(&mut lab);
                assert_eq!(got, expected(overflow, 60), "{case}, {intruders} intruders");
                assert_eq!(lab.total(|m| &m.dropped_group), 50, "{case}");
            }
        }
    }
}

#[test]
fn the_limit_on_bytes_counts_what_waits_for_the_right_member() {
    let (least, message) = (8 * 1_000, vec![b'x'; 1_000]);
    let bytes_max = 10 * 1_000;
    for overflow in POLICIES {
        for (case, mut lab) in labs(QueueLimits { bytes_max, ..limits(1_000, overflow) }) {
            with_intruders(&mut lab, 1);
            let publisher = lab.open(of("owner", "publisher"));
            for _ in 0..50 {
                lab.publish(publisher, "t/a", &message, 1, 1);
                lab.take_all(publisher);
            }
            lab.pass_secs(2);
            let dropped = lab.total(|m| &m.dropped_group);
            let got = got_by_the_owner(&mut lab);
            let bytes = got.iter().map(String::len).sum::<usize>();
            assert!((least..=bytes_max as usize).contains(&bytes), "{case}: {bytes}");
            assert_eq!(got.len() as u64 + dropped, 50, "{case}");
        }
    }
}

/// The one who may have messages has as many as its window takes, and an intruder is there.
#[test]
fn what_waits_for_a_busy_member_counts_with_what_others_may_not_have() {
    for overflow in POLICIES {
        for (case, mut lab) in labs(limits(MESSAGES_MAX, overflow)) {
            set_access(&mut lab);
            let owner = member(&mut lab, with_limits(of("owner", "owner"), window(2)));
            let intruder = member(&mut lab, of("intruder", "intruder"));
            publish(&mut lab, 0..30);
            lab.cut(intruder);
            publish(&mut lab, 30..60);
            assert_eq!(lab.total(|m| &m.dropped_group), 48, "{case}");
            let mut got = Vec::new();
            for _ in 0..5 {
                for received in lab.received(owner) {
                    got.push(String::from_utf8(received.payload).expect("text"));
                    lab.ack(owner, AckKind::Puback, received.packet_id);
                }
                got.extend(read_all(&mut lab, owner));
                lab.pass_secs(1);
            }
            got.sort_by_key(|number| number.parse::<u32>().unwrap_or_default());
            assert_eq!(got.len(), 12, "{case}: {got:?}");
            assert_eq!(lab.total(|m| &m.dropped_group), 48, "{case}");
        }
    }
}

#[test]
fn what_has_expired_counts_as_expired_wherever_it_waits() {
    for (case, mut lab) in labs(limits(MESSAGES_MAX, Overflow::DropNewest)) {
        with_intruders(&mut lab, 1);
        let publisher = lab.open(of("owner", "publisher"));
        let mut properties = codec::PropertyBuf::new();
        properties.push(codec::Property::MessageExpirySecs(1));
        for packet_id in 1..=10 {
            let packet = codec::Packet::Publish(codec::Publish {
                dup: false,
                qos: level(1),
                retain: false,
                topic: "t/a",
                packet_id,
                properties: properties.as_properties(),
                payload: b"short",
            });
            lab.send(publisher, &packet);
        }
        lab.pass_secs(4);
        publish(&mut lab, 0..10);
        assert_eq!(got_by_the_owner(&mut lab), texts(0..10), "{case}");
        assert_eq!(lab.total(|m| &m.dropped_group), 0, "{case}");
        assert_eq!(lab.total(|m| &m.dropped_expired), 10, "{case}");
    }
}

#[test]
fn the_limit_holds_after_a_start_as_well() {
    for shards in [1, 3] {
        let share_queue = limits(MESSAGES_MAX, Overflow::DropOldest);
        let mut lab = Lab::durable_with(shards, Settings { share_queue, ..Settings::default() });
        with_intruders(&mut lab, 1);
        publish(&mut lab, 0..20);
        lab.crash(Crash::Power);
        set_access(&mut lab);
        lab.open(of("intruder", "intruder-0"));
        lab.pass_secs(2);
        publish(&mut lab, 20..40);
        assert_eq!(got_by_the_owner(&mut lab), texts(30..40), "{shards} shards");
    }
}

#[test]
fn an_owner_that_is_there_gets_all_in_spite_of_intruders() {
    for (case, mut lab) in labs(limits(1_000, Overflow::DropOldest)) {
        set_access(&mut lab);
        let owner = member(&mut lab, of("owner", "owner"));
        for number in 0..3 {
            member(&mut lab, of("intruder", &format!("intruder-{number}")));
        }
        let other = lab.open(request("other"));
        lab.subscribe(other, "other/#", 1);
        publish(&mut lab, 0..50);
        lab.pass_secs(3);
        let mut got = read_all(&mut lab, owner);
        got.sort_by_key(|number| number.parse::<u32>().unwrap_or_default());
        assert_eq!(got, texts(0..50), "{case}");
    }
}
