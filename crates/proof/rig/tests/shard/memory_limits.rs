//! What takes memory has limits, and what frees some is never refused.

use std::sync::Arc;

use broker::admission::{self, Admission};
use broker::{ConnectRequest, Limits, Memory, Settings};
use codec::{AckKind, Connect, Packet, Property, PropertyBuf, QoS, Reason, Version};
use policy::{Access, Attribute, Attributes, Principal};
use policy::{OrderedRule, OwnRules};
use rig::{
    Conn, Got, Lab, connect_packet, of_version, persistent, publish, request, request_with,
    retained, with_limits,
};
use session::MemoryKind;

fn answer_to_retained(lab: &mut Lab, conn: Conn, topic: &str, payload: &[u8]) -> Reason {
    lab.send(conn, &retained(topic, payload, 1, 1));
    match lab.take_all(conn)[..] {
        [Got::Ack(AckKind::Puback, 1, reason)] => reason,
        ref other => panic!("expected a PUBACK, got {other:?}"),
    }
}

#[test]
fn what_frees_memory_is_taken_when_memory_is_short() {
    for qos in [0, 1, 2] {
        let mut lab = Lab::new(2);
        let client = lab.open(persistent("client"));
        for (number, topic) in ["a", "b"].into_iter().enumerate() {
            lab.send(client, &retained(topic, b"kept", 1, number as u16 + 1));
        }
        lab.take_all(client);
        lab.subscribe(client, "mine", 1);
        lab.publish(client, "mine", b"x", 1, 9);
        lab.take_all(client);
        lab.shared.set_memory(Memory::Out);
        lab.send(client, &retained("a", b"", qos, 11));
        assert_eq!(lab.total(|m| &m.retained), 1, "cleared at QoS {qos}");
        let refused = lab
            .take_all(client)
            .into_iter()
            .any(|got| matches!(got, Got::Ack(_, 11, reason) if reason.is_error()));
        assert!(!refused);
        lab.ack(client, AckKind::Puback, 1);
        lab.unsubscribe(client, "mine");
        assert_eq!(lab.take_all(client), [Got::Unsuback(2, vec![0])]);
        lab.cut(client);
        let client = lab.open(request("client"));
        lab.cut(client);
        assert_eq!(lab.total(|m| &m.sessions), 0, "a clean start ends the session");
    }
}

#[test]
fn what_clears_a_retained_message_reaches_its_subscribers_when_memory_is_short() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "a", 1);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("a", b"kept", 1, 1));
    assert_eq!(lab.payloads(subscriber), ["kept"]);
    lab.shared.set_memory(Memory::Short);
    lab.send(publisher, &retained("a", b"", 1, 2));
    assert_eq!(lab.payloads(subscriber), [""]);
}

#[test]
fn a_new_subscription_is_refused_when_memory_is_short_and_one_that_there_is_changes() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    let old = lab.open(of_version(Version::V311, "old"));
    lab.subscribe(client, "there", 0);
    lab.shared.set_memory(Memory::Short);
    assert_eq!(lab.subscribe(client, "new", 1), Reason::QUOTA_EXCEEDED.0);
    assert_eq!(lab.subscribe(old, "new", 1), 0x80, "3.1.1 knows one failure");
    assert_eq!(lab.subscribe(client, "there", 1), 1);
    lab.shared.set_memory(Memory::Enough);
    assert_eq!(lab.subscribe(client, "new", 1), 1);
}

#[test]
fn retained_messages_do_not_grow_beyond_the_limit_by_being_replaced() {
    for shards in [1, 3] {
        let settings = Settings { retained_bytes_max: 10_000, ..Settings::default() };
        let mut lab = Lab::with(shards, settings, Access::open());
        let client = lab.open(request("client"));
        for topic in ["a", "b", "c", "d"] {
            assert!(!answer_to_retained(&mut lab, client, topic, &[7; 1000]).is_error());
        }
        let large = answer_to_retained(&mut lab, client, "a", &[7; 9000]);
        assert_eq!(large, Reason::QUOTA_EXCEEDED);
        assert!(lab.total(|m| &m.retained_bytes) < 10_000);
        assert_eq!(answer_to_retained(&mut lab, client, "new", &[7; 8000]), Reason::QUOTA_EXCEEDED);
        // What fits still goes, and so does what takes less.
        for payload in [&[7; 5000][..], &[7; 900], &[]] {
            assert!(!answer_to_retained(&mut lab, client, "a", payload).is_error());
        }
        assert_eq!(lab.total(|m| &m.retained), 3);
    }
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
    for (qos, fits) in [(0, true), (0, false), (1, true), (1, false), (2, false)] {
        let mut lab = Lab::new(1);
        let subscriber = lab.open(request("subscriber"));
        lab.subscribe(subscriber, "t", 0);
        let publisher = lab.open(request_with("publisher", limited()));
        let many = properties(if fits { 900 } else { 1_100 });
        let plain = publish("t", b"x", qos, 1);
        let Packet::Publish(mut large) = plain else { unreachable!("it is one") };
        large.properties = many.as_properties();
        lab.send(publisher, &Packet::Publish(large));
        assert_eq!(lab.payloads(subscriber).len(), usize::from(fits), "QoS {qos}");
        let expected = match (qos, fits) {
            (0, true) => vec![],
            (0, false) => vec![Got::Disconnect(Reason::QUOTA_EXCEEDED)],
            (1, true) => vec![Got::Ack(AckKind::Puback, 1, Reason::SUCCESS)],
            (1, false) => vec![Got::Ack(AckKind::Puback, 1, Reason::QUOTA_EXCEEDED)],
            _ => vec![Got::Ack(AckKind::Pubrec, 1, Reason::QUOTA_EXCEEDED)],
        };
        assert_eq!(lab.take_all(publisher), expected);
    }
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
fn the_bytes_of_subscriptions_are_limited_and_given_back() {
    let limits = Limits { subscription_bytes_max: 1_000, ..Limits::default() };
    let mut lab = Lab::new(1);
    let client = lab.open(request_with("client", limits));
    let (deep, wide) = ("a/b/c/d/e/f/g", format!("x{}", "y".repeat(200)));
    let shared = "$share/g/a/b";
    for filter in [deep, shared] {
        assert_eq!(lab.subscribe(client, filter, 1), 1);
    }
    assert_eq!(lab.subscribe(client, &wide, 1), Reason::QUOTA_EXCEEDED.0);
    assert_eq!(lab.subscribe(client, deep, 0), 0, "one that there is takes no more");
    lab.unsubscribe(client, shared);
    lab.take_all(client);
    assert_eq!(lab.subscribe(client, &wide, 1), 1);
    for _ in 0..3 {
        lab.unsubscribe(client, deep);
        lab.take_all(client);
        assert_eq!(lab.subscribe(client, deep, 1), 1);
    }
    assert_eq!(lab.subscribe(client, shared, 1), Reason::QUOTA_EXCEEDED.0);
}

#[test]
fn a_filter_that_is_too_long_by_now_can_be_given_up() {
    let long = "f".repeat(300);
    let mut lab = Lab::new(1);
    let client = lab.open(persistent("client"));
    lab.subscribe(client, &long, 1);
    lab.cut(client);
    let topic = topic::TopicLimits { bytes_max: 100, ..topic::TopicLimits::default() };
    let limits = Limits { topic, ..Limits::default() };
    let client = lab.open(with_limits(persistent("client"), limits));
    assert_eq!(lab.subscribe(client, &format!("{long}g"), 1), Reason::TOPIC_FILTER_INVALID.0);
    let name = format!("$share/{}/f", "s".repeat(101));
    assert_eq!(lab.subscribe(client, &name, 1), Reason::TOPIC_FILTER_INVALID.0);
    lab.unsubscribe(client, &long);
    assert_eq!(lab.take_all(client), [Got::Unsuback(2, vec![0])]);
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
