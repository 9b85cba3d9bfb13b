//! What takes memory has limits, and what frees some is never refused.

use std::sync::Arc;

use crate::rows::{
    Step, asks, counts, counts_in, does, gets, keeps, opens, reads, reads_count, row, run, sends,
    v311, within,
};
use broker::admission::{self, Admission};
use broker::{ConnectRequest, Limits, Memory, Settings};
use codec::{Connect, Packet, Property, PropertyBuf, QoS, Reason};
use policy::{Access, Attribute, Attributes, Principal};
use policy::{OrderedRule, OwnRules};
use rig::{Got, Lab, connect_packet, persistent, request};
use session::MemoryKind;

fn sets_memory(memory: Memory) -> Step {
    does(move |stage| stage.lab.shared.set_memory(memory))
}

#[test]
fn when_memory_is_short() {
    run([0, 1, 2].map(|qos| {
        let name = format!("what frees memory is taken, cleared at QoS {qos}");
        let (clear, cleared) = match qos {
            0 => ("publish a \"\" retain", ""),
            1 => ("publish a \"\" qos1 id11 retain", "puback 11 no_matching_subscribers"),
            _ => ("publish a \"\" qos2 id11 retain", "pubrec 11"),
        };
        row("", name, Lab::new(2)).steps([
            sends("client", ["kept", "publish a x qos1 retain", "publish b x qos1 retain"]),
            sends("client", ["subscribe mine qos1", "publish mine x qos1"]),
            reads("client", ["x"]),
            sets_memory(Memory::Out),
            sends("client", [clear]),
            does(move |stage| {
                let got = stage.taken_by("client");
                let got: Vec<String> = got.iter().map(crate::notation::text_of).collect();
                assert_eq!(got.concat(), cleared);
            }),
            counts(|m| &m.retained, 1),
            sends("client", ["puback 1", "unsubscribe mine"]),
            gets("client", []),
            // A clean start ends the session.
            sends("client", ["cut"]),
            opens("client", |own| own),
            sends("client", ["cut"]),
            counts(|m| &m.sessions, 0),
        ])
    }));
    run([
        row("", "what clears a retained message reaches its subscribers", Lab::new(1)).steps([
            sends("reader", ["subscribe a qos1"]),
            sends("writer", ["publish a kept qos1 retain"]),
            sets_memory(Memory::Short),
            sends("writer", ["publish a \"\" qos1 retain"]),
            reads("reader", ["kept", ""]),
        ]),
        row("", "a new subscription is refused, and one that there is changes", Lab::new(1)).steps(
            [
                opens("old", v311),
                sends("client", ["subscribe there"]),
                sets_memory(Memory::Short),
                asks("client", "subscribe new qos1", ["suback 1: quota_exceeded"]),
                // MQTT 3.1.1 knows one failure.
                asks("old", "subscribe new qos1", ["suback 1: unspecified_error"]),
                sends("client", ["subscribe there qos1"]),
                sets_memory(Memory::Enough),
                sends("client", ["subscribe new qos1"]),
            ],
        ),
    ]);
}

#[test]
fn retained_messages_do_not_grow_beyond_the_limit_by_being_replaced() {
    let settings = Settings { retained_bytes_max: 10_000, ..Settings::default() };
    let labs = [1, 3].map(|shards| Lab::with(shards, settings.clone(), Access::open()));
    let retains = |topic: &str, bytes: usize, answer: &str| {
        let payload = if bytes == 0 { "\"\"".into() } else { format!("x*{bytes}") };
        let answer = format!("puback 1 {answer}");
        asks("client", &format!("publish {topic} {payload} qos1 retain"), [&answer])
    };
    let (taken, refused) = ("no_matching_subscribers", "quota_exceeded");
    run([row("", "four messages", labs)
        .steps(["a", "b", "c", "d"].map(|topic| retains(topic, 1000, taken)))
        .steps([
            retains("a", 9000, refused),
            counts_in(|m| &m.retained_bytes, 1..10_000),
            retains("new", 8000, refused),
            // What fits still goes, and so does what takes less.
            retains("a", 5000, taken),
            retains("a", 900, taken),
            retains("a", 0, taken),
            counts(|m| &m.retained, 3),
        ])]);
}

// What a client chooses the length of.

/// User properties of about so many bytes.
fn properties(bytes: usize) -> PropertyBuf {
    let mut buffer = PropertyBuf::new();
    buffer.push(Property::User("k", &"v".repeat(bytes)));
    buffer
}

fn limited() -> Limits {
    Limits { properties_bytes_max: 1_000, ..Limits::default() }
}

#[test]
fn a_publish_with_many_properties_is_refused() {
    let cases = [
        ("publish t x user900", 1, ""),
        ("publish t x user1100", 0, "disconnect quota_exceeded"),
        ("publish t x user900 qos1", 1, "puback 1"),
        ("publish t x user1100 qos1", 0, "puback 1 quota_exceeded"),
        ("publish t x user1100 qos2", 0, "pubrec 1 quota_exceeded"),
    ];
    run(cases.map(|(packet, count, answer)| {
        let steps = [
            sends("reader", ["subscribe t"]),
            opens("writer", within(limited())),
            sends("writer", [packet]),
            reads_count("reader", count),
        ];
        let answered =
            if answer.is_empty() { gets("writer", []) } else { gets("writer", [answer]) };
        row("", packet, Lab::new(1)).steps(steps).steps([answered])
    }));
}

fn refusal_of(connect: &Connect<'_>, limits: &Arc<Limits>) -> Option<Reason> {
    let mut bytes = Vec::new();
    Packet::Connect(*connect).encode(connect.version, &mut bytes);
    match admission::admit(&bytes, limits, "peer", String::new) {
        Admission::Refuse(refusal) => Some(refusal.reason),
        Admission::Connect(..) => None,
        Admission::NeedMore => panic!("it is complete"),
    }
}

#[test]
fn a_will_is_measured_with_its_topic_and_its_properties() {
    let limits = Arc::new(Limits { will_bytes_max: 500, ..limited() });
    let large = Some(Reason::PACKET_TOO_LARGE);
    for (payload, bytes, refused) in
        [(100, 100, None), (410, 100, large), (0, 490, None), (0, 510, large), (0, 1_200, large)]
    {
        let (payload, own) = (vec![7; payload], properties(bytes - 10));
        let will = codec::Will {
            topic: "w",
            payload: &payload,
            qos: QoS::AtMostOnce,
            retain: false,
            properties: own.as_properties(),
        };
        let connect = Connect { will: Some(will), ..connect_packet("client") };
        assert_eq!(refusal_of(&connect, &limits), refused, "{} and {bytes}", payload.len());
    }
}

#[test]
fn subscriptions() {
    let limits = Limits { subscription_bytes_max: 1_000, ..Limits::default() };
    let (deep, shared) = ("subscribe a/b/c/d/e/f/g qos1", "subscribe $share/g/a/b qos1");
    let wide = format!("subscribe x{} qos1", "y".repeat(200));
    let again = || sends("client", ["unsubscribe a/b/c/d/e/f/g", deep]);
    let long = "f".repeat(300);
    let topic = topic::TopicLimits { bytes_max: 100, ..topic::TopicLimits::default() };
    let short = Limits { topic, ..Limits::default() };
    let refused = ["suback 1: topic_filter_invalid"];
    run([
        row("", "their bytes are limited and given back", Lab::new(1)).steps([
            opens("client", within(limits)),
            sends("client", [deep, shared]),
            asks("client", &wide, ["suback 1: quota_exceeded"]),
            // One that there is takes no more.
            sends("client", ["subscribe a/b/c/d/e/f/g", "unsubscribe $share/g/a/b", wide.as_str()]),
            again(),
            again(),
            again(),
            asks("client", shared, ["suback 1: quota_exceeded"]),
        ]),
        row("", "a filter that is too long by now can be given up", Lab::new(1)).steps([
            sends("client", ["kept", &format!("subscribe {long} qos1"), "cut"]),
            keeps("client", short),
            asks("client", &format!("subscribe {long}g qos1"), refused),
            asks("client", &format!("subscribe $share/{}/f qos1", "s".repeat(101)), refused),
            sends("client", [format!("unsubscribe {long}")]),
            gets("client", []),
        ]),
    ]);
}

// Owners.

/// A kept session of a client without a name at an address.
fn from(address: &str, client_id: &str) -> ConnectRequest {
    ConnectRequest { origin: address.into(), ..persistent(client_id) }
}

fn used(lab: &Lab, owner: &str, kind: MemoryKind) -> u64 {
    let all = lab.shared.ledger.largest(usize::MAX);
    all.iter().find(|consumer| *consumer.name == *owner).map_or(0, |h| h.bytes[kind as usize])
}

#[test]
fn the_queues_of_one_owner_leave_room_for_those_of_others() {
    let settings = Settings { queues_bytes_max: 100_000, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    for (address, ids) in [("greedy", 0..3), ("modest", 3..4)] {
        for id in ids {
            let conn = lab.open(from(address, &format!("client-{id}")));
            lab.subscribe(conn, &format!("t/{id}"), 1);
            lab.cut(conn);
        }
    }
    let publisher = lab.open(request("publisher"));
    for number in 0..300 {
        lab.publish(publisher, &format!("t/{}", number % 3), &[7; 1_000], 1, number as u16 + 1);
    }
    assert!((45_000..=52_000).contains(&used(&lab, "address greedy", MemoryKind::Queued)));
    for number in 0..20 {
        lab.publish(publisher, "t/3", &[7; 1_000], 1, number + 1);
    }
    let modest = lab.open(from("modest", "client-3"));
    assert_eq!(lab.payloads(modest).len(), 20, "nothing was dropped for the others' sake");
    let dropped = lab.total(|m| &m.dropped_queue_full);
    // The newest stay, of each session some.
    let mut left = 0;
    for id in 0..3 {
        let conn = lab.open(from("greedy", &format!("client-{id}")));
        let got = lab.payloads(conn).len();
        assert!(got > 0, "client-{id}");
        left += got as u64;
    }
    assert_eq!(left + dropped, 300);
    assert_eq!(used(&lab, "address greedy", MemoryKind::Queued), 0);
    assert_eq!(lab.shared.ledger.bytes(MemoryKind::Queued), 0);
}

#[test]
fn sessions_are_refused_to_an_owner_of_many_but_can_be_resumed() {
    let settings = Settings { sessions_bytes_max: 20_000, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let is_let_in = |lab: &mut Lab, request: ConnectRequest| {
        let conn = lab.connect(request);
        let answer = lab.take_all(conn);
        match answer[..] {
            [Got::Connack { reason: Reason::SUCCESS, .. }, ..] => {
                lab.cut(conn);
                true
            }
            [Got::Connack { reason: Reason::QUOTA_EXCEEDED, .. }] => false,
            _ => panic!("expected a CONNACK, got {answer:?}"),
        }
    };
    let count =
        (0..50).filter(|id| is_let_in(&mut lab, from("a", &format!("client-{id}")))).count();
    assert_eq!(count, 17, "half of 20,000 bytes");
    assert_eq!(lab.total(|m| &m.sessions_refused), 33);
    assert!(is_let_in(&mut lab, from("a", "client-3")), "one that there is");
    assert!(is_let_in(&mut lab, from("b", "other")), "another address");
    let named = |name: &str| ConnectRequest { username: Some(name.into()), ..from("a", name) };
    assert!(is_let_in(&mut lab, named("anna")), "a user is charged wherever it comes from");
    let short_lived = ConnectRequest { session_expiry_secs: 0, ..from("a", "short-lived") };
    assert!(is_let_in(&mut lab, short_lived), "what keeps nothing");
    let ended =
        ConnectRequest { clean_start: true, session_expiry_secs: 0, ..from("a", "client-3") };
    let before = used(&lab, "address a", MemoryKind::Sessions);
    assert!(is_let_in(&mut lab, ended));
    assert!(used(&lab, "address a", MemoryKind::Sessions) < before, "it is over");
    let will = session::Will {
        topic: "w".into(),
        properties: [].into(),
        payload: vec![7; 5_000].into(),
        qos: QoS::AtMostOnce,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    };
    let with_will = |address| ConnectRequest {
        will: Some(Box::new(will.clone())),
        session_expiry_secs: 0,
        ..from(address, "mortal")
    };
    assert!(!is_let_in(&mut lab, with_will("a")));
    assert!(is_let_in(&mut lab, with_will("c")));
}

/// Its credential says much of it, and brings rules.
fn fat(address: &str, client_id: &str) -> ConnectRequest {
    let text = |number| Attribute::Text(format!("{client_id}-{number:050}").into());
    let list = Attribute::List((0..100).map(text).collect());
    let rule = OrderedRule {
        allows: true,
        publish: true,
        subscribe: true,
        filters: (0..50).map(|number| format!("own/{number}/%{{attributes.many}}")).collect(),
        ..OrderedRule::default()
    };
    let principal = Principal {
        attributes: Attributes::new([("many".into(), list)]),
        rules: OwnRules::compile(&[rule]).expect("valid rules"),
        ..Principal::default()
    };
    ConnectRequest { principal: Some(Box::new(principal)), ..from(address, client_id) }
}

#[test]
fn what_is_known_of_clients_is_charged_as_long_as_they_are_connected() {
    let settings = Settings { sessions_bytes_max: 400_000, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    let once = |request: ConnectRequest| ConnectRequest { session_expiry_secs: 0, ..request };
    let mut all = Vec::new();
    for number in 0..40 {
        let conn = lab.connect(once(fat("a", &format!("a{number}"))));
        match lab.take_all(conn)[..] {
            [Got::Connack { reason: Reason::SUCCESS, .. }] => all.push(conn),
            [Got::Connack { reason: Reason::QUOTA_EXCEEDED, .. }] => {}
            ref other => panic!("expected a CONNACK, got {other:?}"),
        }
    }
    assert!((2..20).contains(&all.len()), "{}", all.len());
    assert!(used(&lab, "address a", MemoryKind::Sessions) > 10_000 * all.len() as u64);
    all.push(lab.open(once(fat("b", "its neighbour has its share"))));
    all.push(lab.open(once(from("a", "who needs little"))));
    all.into_iter().for_each(|conn| lab.cut(conn));
    assert_eq!(lab.shared.ledger.bytes(MemoryKind::Sessions), 0);
    // A session that is kept is still charged.
    let kept = lab.open(fat("a", "kept"));
    lab.cut(kept);
    assert!(used(&lab, "address a", MemoryKind::Sessions) > 10_000);
    let clean = ConnectRequest { clean_start: true, ..once(from("a", "kept")) };
    let again = lab.open(clean);
    assert!(used(&lab, "address a", MemoryKind::Sessions) < 1_000);
    lab.cut(again);
    assert_eq!(lab.shared.ledger.bytes(MemoryKind::Sessions), 0);
}

#[test]
fn subscriptions_are_charged_and_come_back_with_the_end_of_the_session() {
    let settings = Settings { sessions_bytes_max: 4_000, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    let conn = lab.open(from("a", "client"));
    let before = used(&lab, "address a", MemoryKind::Sessions);
    let granted = (0..50).filter(|n| lab.subscribe(conn, &format!("t/{n}"), 1) < 0x80).count();
    assert!((3..10).contains(&granted), "{granted}");
    lab.unsubscribe(conn, "t/0");
    lab.take_all(conn);
    assert_eq!(lab.subscribe(conn, "t/0", 1), 1);
    assert!(used(&lab, "address a", MemoryKind::Sessions) > before);
    lab.cut(conn);
    let conn = lab.open(ConnectRequest {
        clean_start: true,
        session_expiry_secs: 0,
        ..from("a", "client")
    });
    lab.cut(conn);
    assert_eq!(lab.shared.ledger.bytes(MemoryKind::Sessions), 0);
}
