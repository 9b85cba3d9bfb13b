//! Namespaces: what one has and does is nothing to another, whatever they call it.

use std::collections::BTreeMap;

use broker::command::{PAGE_ROWS, Wanted};
use broker::journal::{Fact, GroupOpened, QueueNumber, SessionOpened, StoredMessage};
use broker::{Answer, Command, ConnectRequest, Name, Quota, Scope};
use codec::{AckKind, Reason, Version};
use proptest::prelude::*;
use rig::{Conn, Got, Lab, SCOPES, level, persistent, request, retained};
use session::Will;
use storage::Status;
use storage::testing::Crash;

const FIRST: Scope = Scope::FIRST;

fn scopes() -> [Scope; 3] {
    [FIRST, SCOPES[0], SCOPES[1]]
}

fn of(scope: Scope, request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { scope, ..request }
}

/// Small payloads that came.
fn payloads(lab: &mut Lab, conn: Conn) -> Vec<String> {
    lab.payloads(conn).into_iter().filter(|payload| payload.len() < 100).collect()
}

/// What comes by it may come before its answer.
fn subscribe(lab: &mut Lab, conn: Conn, filter: &str, qos: u8) {
    lab.subscribe_all(conn, &[filter], qos);
    lab.settle();
}

#[test]
fn the_same_client_id_is_another_client_in_each_namespace() {
    let mut lab = Lab::new(4);
    let conns = scopes().map(|scope| lab.open(of(scope, persistent("phone"))));
    assert!(conns.iter().all(|conn| !lab.is_closed(*conn)), "nobody is taken over");
    for (scope, conn) in scopes().into_iter().zip(conns) {
        let again = lab.connect(of(scope, persistent("phone")));
        assert!(lab.is_closed(conn), "its own is");
        let Some(Got::Connack { session_present, .. }) = lab.take(again) else { panic!() };
        assert!(session_present);
    }
}

#[test]
fn sessions_are_listed_of_all_namespaces_or_of_one() {
    let mut lab = Lab::new(1);
    let conns = scopes().map(|scope| lab.open(of(scope, persistent("phone"))));
    lab.open(of(SCOPES[0], request("other")));
    lab.cut(conns[1]);
    let mut listed = |scope: Option<Scope>| {
        let wanted = Wanted { scope, ..Wanted::default() };
        let mut rows = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let command = Command::Sessions { from, max: 2, wanted: wanted.clone() };
            lab.shards[0].on_command(1, FIRST, &command, lab.now_ms);
            let Some((1, Answer::Sessions(page))) = lab.shards[0].effects_mut().answers.pop()
            else {
                panic!("sessions")
            };
            rows.extend(page.rows.into_iter().map(|row| (row.scope, row.client_id.to_string())));
            next = page.next;
        }
        rows.sort();
        rows
    };
    let phone = |scope: Scope| (scope, "phone".to_owned());
    let [first, one, two] = scopes();
    assert_eq!(listed(Some(two)), [phone(two)]);
    assert_eq!(listed(None).len(), 4);
    assert_eq!(listed(Some(one)), [(one, "other".into()), phone(one)]);
    let known = vec![first, one, Scope::new(77), two];
    let command = Command::Homes { client_id: "phone".into(), scopes: known };
    lab.shards[0].on_command(1, FIRST, &command, lab.now_ms);
    let Some((1, Answer::Homes(homes))) = lab.shards[0].effects_mut().answers.pop() else {
        panic!("homes")
    };
    assert_eq!(homes, [(first, true), (one, false), (two, true)]);
}

#[test]
fn a_message_stays_in_its_namespace_whatever_the_filter() {
    for shards in [1, 4] {
        let mut lab = Lab::new(shards);
        let filters = ["#", "+/+", "t/a", "t/#", "$share/g/#", "$share/g/t/a", "$x/#"];
        let mut subscribers = BTreeMap::new();
        for scope in scopes() {
            let id = format!("subscriber-{}", scope.number());
            let conn = lab.open(of(scope, request(&id)));
            filters.iter().for_each(|filter| assert!(lab.subscribe(conn, filter, 0) < 0x80));
            subscribers.insert(scope, conn);
        }
        for scope in scopes() {
            let publisher = lab.open(of(scope, request("publisher")));
            for topic in ["t/a", "$x/a", "/", "t"] {
                let payload = format!("{} on {topic}", scope.number());
                lab.publish(publisher, topic, payload.as_bytes(), 1, 1);
            }
            for (own, conn) in &subscribers {
                let got = lab.payloads(*conn);
                match *own == scope {
                    true => assert!(got.len() > 4, "{got:?}"),
                    false => assert_eq!(got, Vec::<String>::new(), "{own:?} from {scope:?}"),
                }
            }
        }
    }
}

#[test]
fn retained_messages_groups_and_wills_are_of_their_namespace() {
    let mut lab = Lab::new(4);
    let [_, one, other] = scopes();
    let publisher = lab.open(of(one, request("publisher")));
    for topic in ["t/a", "$x/a", "/"] {
        lab.send(publisher, &retained(topic, b"kept", 1, 1));
    }
    let large = vec![b'x'; 100_000];
    lab.send(publisher, &retained("t/large", &large, 1, 2));
    for scope in scopes() {
        let conn = lab.open(of(scope, request("reader")));
        for filter in ["#", "$x/#", "t/a", "t/large"] {
            subscribe(&mut lab, conn, filter, 1);
        }
        let count = lab.received(conn).len();
        assert_eq!(count, if scope == one { 6 } else { 0 }, "{scope:?}");
        lab.cut(conn);
    }
    let will = Will {
        topic: "t/will".into(),
        properties: Box::default(),
        payload: b"gone".as_slice().into(),
        qos: level(1),
        retain: true,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: u64::MAX,
    };
    let listeners = scopes().map(|scope| {
        let conn = lab.open(of(scope, request("listener")));
        subscribe(&mut lab, conn, "t/will", 0);
        conn
    });
    let dying = ConnectRequest { will: Some(Box::new(will)), ..of(other, request("dying")) };
    let dying = lab.open(dying);
    lab.cut(dying);
    let heard = listeners.map(|conn| lab.payloads(conn).len());
    assert_eq!(heard, [0, 0, 1]);
    // Clearing a topic clears it where it was said.
    let clears = lab.open(of(other, request("clears")));
    lab.send(clears, &retained("t/a", b"", 1, 1));
    let reader = lab.open(of(one, request("reads on")));
    subscribe(&mut lab, reader, "t/a", 0);
    assert_eq!(payloads(&mut lab, reader), ["kept"]);
}

#[test]
fn what_a_namespace_has_outlives_a_loss_of_power_and_stays_its_own() {
    for shards in [1, 4] {
        let mut lab = Lab::durable(shards);
        for scope in scopes() {
            let away = lab.open(of(scope, persistent("away")));
            subscribe(&mut lab, away, "t/#", 1);
            subscribe(&mut lab, away, "$share/g/jobs/+", 1);
            lab.cut(away);
            let publisher = lab.open(of(scope, persistent("publisher")));
            let text = |what: &str| format!("{what} of {}", scope.number()).into_bytes();
            lab.publish(publisher, "t/a", &text("queued"), 1, 1);
            lab.publish(publisher, "t/b", &text("exactly"), 2, 2);
            lab.publish(publisher, "jobs/1", &text("job"), 1, 3);
            lab.send(publisher, &retained("kept", &text("kept"), 1, 4));
            lab.cut(publisher);
        }
        lab.turn_the_journal_over();
        lab.crash(Crash::Power);
        for scope in scopes() {
            let away = lab.connect(of(scope, persistent("away")));
            let Some(Got::Connack { session_present: true, .. }) = lab.take(away) else {
                panic!("the session is there");
            };
            let mut got = payloads(&mut lab, away);
            got.sort();
            let own = |what: &str| format!("{what} of {}", scope.number());
            assert_eq!(got, [own("exactly"), own("job"), own("queued")], "{shards} shards");
            let reader = lab.open(of(scope, request("reader")));
            subscribe(&mut lab, reader, "#", 0);
            assert_eq!(payloads(&mut lab, reader), [own("kept")]);
        }
    }
}

#[test]
fn a_closed_namespace_takes_nobody() {
    let mut lab = Lab::new(1);
    let space = lab.shared.spaces.open(SCOPES[0]);
    space.set_closed(true);
    for scope in [SCOPES[0], Scope::new(77)] {
        let conn = lab.connect(of(scope, request("client")));
        let Some(Got::Connack { reason: Reason::BANNED, .. }) = lab.take(conn) else {
            panic!("{scope:?} is closed, or there is none");
        };
    }
    space.set_closed(false);
    lab.open(of(SCOPES[0], request("client")));
}

#[test]
fn an_operator_ends_the_session_of_the_namespace_that_is_meant() {
    let mut lab = Lab::new(2);
    let conns = scopes().map(|scope| lab.open(of(scope, persistent("phone"))));
    let name = Name::new(SCOPES[0], "phone");
    let shard = usize::from(lab.shared.shard_of_client(name));
    let now_ms = lab.now_ms;
    assert!(lab.shards[shard].on_kick(name, now_ms));
    lab.settle();
    assert_eq!(conns.map(|conn| lab.is_closed(conn)), [false, true, false]);
}

/// Journals have these bytes: those of the default namespace since there are journals.
#[test]
fn records_are_what_they_always_were() {
    let old: [(u8, &[u8], Fact<'_>); 4] = [
        (1, b"\x05\x05\xe8\x07\x3c\x01canna", opened("c")),
        (6, b"\x01\x09\x03t/a\x00x", Fact::Message(stored("t/a"))),
        (11, b"\x01\x09\x03t/a\x00x", Fact::Retained(stored("t/a"))),
        (15, b"\x05\x02\x01gjobs/#", group("jobs/#")),
    ];
    let new: [(u8, &[u8], Fact<'_>); 4] = [
        (1, b"\x05\x05\xe8\x07\x3c\x05$\x001/canna", opened("$\x001/c")),
        (6, b"\x01\x09\x07$\x001/t/a\x00x", Fact::Message(stored("$\x001/t/a"))),
        (12, b"$\x001$/$x", Fact::RetainedCleared { topic: "$\x001$/$x" }),
        (15, b"\x05\x02\x01g$\x001/jobs/#", group("$\x001/jobs/#")),
    ];
    for (kind, bytes, fact) in old.into_iter().chain(new) {
        assert_eq!(Fact::decode(kind, bytes), Ok(fact));
        let mut written = Vec::new();
        let rest = fact.encode(&mut written);
        assert_eq!([&written[..], rest].concat(), bytes);
    }
    for (scope, name, key) in [
        (FIRST, "t/a", "t/a"),
        (SCOPES[0], "t/a", "$\x001/t/a"),
        (SCOPES[0], "$x", "$\x001$/$x"),
        (SCOPES[1], "c", "$\x00300/c"),
    ] {
        assert_eq!(Name::new(scope, name).key(), key);
        assert_eq!(Name::of_key(key), Name::new(scope, name));
    }
}

fn opened(client_id: &str) -> Fact<'_> {
    Fact::SessionOpened(SessionOpened {
        session: QueueNumber::new(5).expect("a session's"),
        version: Version::V5,
        opened_at_ms: 1000,
        expiry_secs: 60,
        client_id,
        username: "anna",
    })
}

fn stored(topic: &str) -> StoredMessage<'_> {
    StoredMessage {
        serial: 9,
        origin: None,
        queue: None,
        qos: level(1),
        retain: false,
        expires_at_ms: u64::MAX,
        owner: "",
        author: 0,
        topic,
        properties: b"",
        payload: b"x",
    }
}

fn group(filter: &str) -> Fact<'_> {
    let queue = QueueNumber::new(5).expect("a group's");
    Fact::GroupOpened(GroupOpened { queue, from_serial: 2, name: "g", filter })
}

/// An operator deletes what a namespace has, part by part, and nothing of others.
#[test]
fn a_namespace_is_emptied_part_by_part_and_stays_so() {
    for shards in [1, 3] {
        let mut lab = Lab::durable(shards);
        for scope in scopes() {
            for number in 0..150 {
                let conn = lab.open(of(scope, persistent(&format!("client-{number}"))));
                subscribe(&mut lab, conn, "t/#", 1);
                subscribe(&mut lab, conn, "$share/g/jobs", 1);
                let topic = if number % 2 == 0 { "kept" } else { "$kept" };
                lab.send(conn, &retained(&format!("{topic}/{number}"), b"x", 1, 1));
                if number % 3 > 0 {
                    lab.cut(conn);
                }
            }
            let publisher = lab.open(of(scope, request("publisher")));
            lab.publish(publisher, "t/a", b"queued", 1, 1);
            lab.cut(publisher);
        }
        let (parts, found) = sweep(&mut lab, SCOPES[0], |from| Command::Empty { from });
        assert_eq!(found, 300, "sessions and retained messages");
        assert!(parts > 3, "{parts}: a part has {PAGE_ROWS} at most");
        let (_, found) = sweep(&mut lab, SCOPES[0], |from| Command::Empty { from });
        assert_eq!(found, 0);
        lab.crash(Crash::Power);
        for scope in scopes() {
            let is_gone = scope == SCOPES[0];
            let conn = lab.connect(of(scope, persistent("client-7")));
            let Some(Got::Connack { session_present, .. }) = lab.take(conn) else { panic!() };
            assert_eq!(session_present, !is_gone);
            lab.take_all(conn);
            let reader = lab.open(of(scope, request("reader")));
            subscribe(&mut lab, reader, "#", 0);
            subscribe(&mut lab, reader, "$kept/#", 0);
            assert_eq!(read_on(&mut lab, reader), if is_gone { 0 } else { 150 });
        }
    }
}

/// What a journal that is out of service cannot be told stays, and the sweep ends.
#[test]
fn a_sweep_ends_where_a_journal_is_out_of_service() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(of(SCOPES[0], request("publisher")));
    for number in 0..3 {
        lab.send(conn, &retained(&format!("kept/{number}"), b"x", 1, 1 + number));
    }
    lab.disks[0].faults.fail_next_sync = true;
    lab.send(conn, &retained("kept/3", b"x", 1, 9));
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Poisoned(_))));
    let (parts, found) = sweep(&mut lab, SCOPES[0], |from| Command::Empty { from });
    assert!(parts <= 2, "{parts}");
    assert!(found >= 3, "{found}");
    let (_, again) = sweep(&mut lab, SCOPES[0], |from| Command::Empty { from });
    assert!(again >= 3, "they are found again: {again}");
}

/// How many messages come, page by page.
fn read_on(lab: &mut Lab, conn: Conn) -> usize {
    let mut count = 0;
    loop {
        let more = lab.received(conn).len();
        lab.settle();
        if more == 0 {
            return count;
        }
        count += more;
    }
}

/// Gives a command for each part of each shard; returns how many there were, and what was found.
fn sweep(lab: &mut Lab, scope: Scope, command: impl Fn(u32) -> Command) -> (u32, u32) {
    let (mut parts, mut found) = (0, 0);
    for shard in 0..lab.shards.len() {
        let mut next = Some(0);
        while let Some(from) = next {
            let now_ms = lab.now_ms;
            lab.shards[shard].on_command(1, scope, &command(from), now_ms);
            let answers = std::mem::take(&mut lab.shards[shard].effects_mut().answers);
            let [(1, Answer::Swept(swept))] = answers[..] else { panic!("{answers:?}") };
            lab.settle();
            assert!(swept.found <= 2 * PAGE_ROWS);
            (parts, found, next) = (parts + 1, found + swept.found, swept.next);
        }
    }
    (parts, found)
}

fn refusal(lab: &mut Lab, conn: Conn) -> Reason {
    match lab.take(conn) {
        Some(Got::Connack { reason, .. }) => reason,
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

#[test]
fn a_namespace_with_as_many_clients_as_it_may_have_refuses_more_and_no_other_does() {
    let mut lab = Lab::new(3);
    let space = lab.shared.spaces.open(SCOPES[0]);
    space.set_limit(Quota::Connections, Some(2));
    space.set_limit(Quota::Sessions, Some(3));
    let connect = |lab: &mut Lab, scope, id: &str| {
        let conn = lab.connect(of(scope, persistent(id)));
        (conn, refusal(lab, conn))
    };
    for id in ["a", "b"] {
        assert_eq!(connect(&mut lab, SCOPES[0], id).1, Reason::SUCCESS);
    }
    assert_eq!(connect(&mut lab, SCOPES[0], "c").1, Reason::QUOTA_EXCEEDED);
    for scope in [FIRST, SCOPES[1]] {
        for id in ["a", "b", "c", "d"] {
            assert_eq!(connect(&mut lab, scope, id).1, Reason::SUCCESS);
        }
    }
    // Who comes again takes no place.
    let (again, reason) = connect(&mut lab, SCOPES[0], "b");
    assert_eq!(reason, Reason::SUCCESS);
    lab.cut(again);
    let (third, reason) = connect(&mut lab, SCOPES[0], "c");
    assert_eq!(reason, Reason::SUCCESS);
    lab.cut(third);
    assert_eq!(connect(&mut lab, SCOPES[0], "d").1, Reason::QUOTA_EXCEEDED, "a fourth session");
    assert_eq!((space.count(Quota::Connections), space.count(Quota::Sessions)), (1, 3));
    assert_eq!((space.refused(Quota::Connections), space.refused(Quota::Sessions)), (1, 1));
}

#[test]
fn connects_faster_than_the_limit_are_refused_until_there_is_time() {
    let mut lab = Lab::new(2);
    let space = lab.shared.spaces.open(SCOPES[0]);
    space.set_limit(Quota::Connects, Some(2));
    let reasons: Vec<Reason> = (0..20)
        .map(|number| {
            let conn = lab.connect(of(SCOPES[0], request(&format!("c{number}"))));
            refusal(&mut lab, conn)
        })
        .collect();
    let is_late = |reason: &&Reason| **reason == Reason::CONNECTION_RATE_EXCEEDED;
    let late = reasons.iter().filter(is_late).count();
    assert!((16..=17).contains(&late), "{reasons:?}");
    let other = lab.connect(of(SCOPES[1], request("c")));
    assert_eq!(refusal(&mut lab, other), Reason::SUCCESS);
    lab.pass_secs(2);
    lab.open(of(SCOPES[0], request("later")));
}

#[test]
fn subscriptions_and_retained_messages_of_a_namespace_have_a_limit_together() {
    let mut lab = Lab::new(2);
    let space = lab.shared.spaces.open(SCOPES[0]);
    space.set_limit(Quota::Subscriptions, Some(3));
    space.set_limit(Quota::RetainedMessages, Some(2));
    let full = Reason::QUOTA_EXCEEDED.0;
    let conns = ["a", "b"].map(|id| lab.open(of(SCOPES[0], request(id))));
    assert_eq!(conns.map(|conn| lab.subscribe(conn, "t/1", 1)), [1, 1]);
    assert_eq!(conns.map(|conn| lab.subscribe(conn, "t/2", 1)), [1, full]);
    assert_eq!(lab.subscribe(conns[1], "t/1", 0), 0, "it is there already");
    lab.unsubscribe(conns[0], "t/2");
    assert_eq!(lab.subscribe(conns[1], "t/2", 1), 1);
    lab.take_all(conns[0]);
    let mut reasons = Vec::new();
    for (id, topic, payload) in
        [(1, "r/1", "x"), (2, "r/2", "x"), (3, "r/3", "x"), (4, "r/1", ""), (5, "r/3", "x")]
    {
        lab.send(conns[0], &retained(topic, payload.as_bytes(), 1, id));
        let answer = lab.take_all(conns[0]).into_iter().find_map(|got| match got {
            Got::Ack(AckKind::Puback, _, reason) => Some(reason.0),
            _ => None,
        });
        reasons.extend(answer);
    }
    let none = Reason::NO_MATCHING_SUBSCRIBERS.0;
    assert_eq!(reasons, [none, none, full, none, none]);
    assert_eq!(space.count(Quota::RetainedMessages), 2);
    assert_eq!(space.refused(Quota::RetainedMessages), 1);
    let other = lab.open(request("other"));
    for id in 1..10 {
        lab.send(other, &retained(&format!("r/{id}"), b"x", 1, id));
    }
    assert_eq!(space.count(Quota::RetainedMessages), 2);
}

#[test]
fn who_publishes_too_fast_for_its_namespace_is_read_later_and_loses_nothing() {
    for quota in [Quota::MessagesIn, Quota::BytesIn, Quota::MessagesOut, Quota::BytesOut] {
        let mut lab = Lab::new(2);
        let space = lab.shared.spaces.open(SCOPES[0]);
        let amount = if matches!(quota, Quota::BytesIn | Quota::BytesOut) { 1_000 } else { 10 };
        space.set_limit(quota, Some(amount));
        let (publisher, subscriber, other) = (
            lab.open(of(SCOPES[0], request("publisher"))),
            lab.open(of(SCOPES[0], request("subscriber"))),
            lab.open(of(SCOPES[1], request("publisher"))),
        );
        lab.subscribe(subscriber, "t", 1);
        lab.pauses.clear();
        for id in 1..=30 {
            lab.publish(other, "t", &[b'x'; 90], 1, id);
        }
        assert!(lab.pauses.is_empty(), "nobody of another namespace waits");
        for id in 1..=30 {
            lab.publish(publisher, "t", &[b'x'; 90], 1, id);
        }
        let until = lab.pauses.iter().map(|(_, until_ms)| *until_ms).max();
        let wait_ms = until.expect("it waits") - lab.now_ms;
        assert!((1..3_000).contains(&wait_ms), "{quota:?}: {wait_ms} ms");
        let before = lab.received(subscriber).len();
        assert!(before < 30, "{quota:?}: the rest is not read yet");
        assert!(lab.pauses.iter().all(|(conn, _)| *conn == publisher));
        assert!(space.refused(quota) > 0, "{quota:?}");
        // What it had sent is delivered when it is its turn.
        let mut received = before;
        for _ in 0..40 {
            lab.pass_secs(1);
            lab.bytes(publisher, &[]);
            lab.settle();
            received += lab.received(subscriber).len();
        }
        assert_eq!(received, 30);
    }
}

/// What a tenant does. Clients, topics and filters are numbers into short lists.
#[derive(Clone, Debug)]
enum Op {
    Connect {
        client: usize,
        clean: bool,
        with_will: bool,
    },
    Cut {
        client: usize,
    },
    Publish {
        client: usize,
        topic: usize,
        qos: u8,
        retain: bool,
        is_empty: bool,
    },
    Subscribe {
        client: usize,
        filter: usize,
        qos: u8,
    },
    Unsubscribe {
        client: usize,
        filter: usize,
    },
    /// Of the broker: all tenants have it.
    Crash,
}

const CLIENTS: [&str; 3] = ["a", "b", "$1/a"];
const TOPICS: [&str; 6] = ["t", "t/a", "/", "$x/a", "1/t", "$1/a"];
const FILTERS: [&str; 8] = ["#", "+/a", "t", "t/#", "$x/#", "$share/g/#", "$share/g/t/a", "$1/#"];

fn op() -> impl Strategy<Value = Op> {
    let client = 0..CLIENTS.len();
    prop_oneof![
        4 => (client.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(client, clean, with_will)| Op::Connect { client, clean, with_will }),
        2 => client.clone().prop_map(|client| Op::Cut { client }),
        8 => (client.clone(), 0..TOPICS.len(), 0..3_u8, any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(client, topic, qos, retain, is_empty)| Op::Publish {
                client, topic, qos, retain, is_empty,
            }),
        // Which member of a group gets a message differs by world, so they all have one QoS.
        4 => (client.clone(), 0..FILTERS.len(), 0..3_u8).prop_map(|(client, filter, qos)| {
            let qos = if FILTERS[filter].starts_with("$share/") { 1 } else { qos };
            Op::Subscribe { client, filter, qos }
        }),
        1 => (client, 0..FILTERS.len())
            .prop_map(|(client, filter)| Op::Unsubscribe { client, filter }),
        1 => Just(Op::Crash),
    ]
}

/// One broker, and the connections of its tenants.
struct World {
    lab: Lab,
    open: BTreeMap<(Scope, usize), Conn>,
    packet_id: u16,
}

impl World {
    fn new(shards: u16) -> Self {
        Self { lab: Lab::durable(shards), open: BTreeMap::new(), packet_id: 0 }
    }

    /// Does what a tenant does, and tells what its clients got by it, in no order: which shard is
    /// at home where is not the same in two worlds.
    fn run(&mut self, scope: Scope, op: &Op, step: usize) -> Vec<String> {
        self.packet_id += 1;
        match op {
            Op::Connect { client, clean, with_will } => {
                self.connect(scope, *client, *clean, with_will.then(|| format!("will {step}")))
            }
            Op::Cut { client } => {
                if let Some(conn) = self.open.remove(&(scope, *client)) {
                    self.lab.cut(conn);
                }
            }
            Op::Publish { client, topic, qos, retain, is_empty } => {
                if let Some(conn) = self.conn(scope, *client) {
                    let payload = if *is_empty { String::new() } else { format!("{step}") };
                    let (topic, payload) = (TOPICS[*topic], payload.as_bytes());
                    let id = self.packet_id;
                    let packet = match retain {
                        true => retained(topic, payload, *qos, id),
                        false => rig::publish(topic, payload, *qos, id),
                    };
                    self.lab.send(conn, &packet);
                    self.lab.ack(conn, AckKind::Pubrel, id);
                }
            }
            Op::Subscribe { client, filter, qos } => {
                if let Some(conn) = self.conn(scope, *client) {
                    subscribe(&mut self.lab, conn, FILTERS[*filter], *qos);
                }
            }
            Op::Unsubscribe { client, filter } => {
                if let Some(conn) = self.conn(scope, *client) {
                    self.lab.unsubscribe(conn, FILTERS[*filter]);
                }
            }
            Op::Crash => {}
        }
        self.got(scope)
    }

    fn connect(&mut self, scope: Scope, client: usize, clean: bool, will: Option<String>) {
        let will = will.map(|text| Will {
            topic: TOPICS[client].into(),
            properties: Box::default(),
            payload: text.into_bytes().into(),
            qos: level(1),
            retain: false,
            delay_secs: 0,
            message_expiry_secs: None,
            due_ms: u64::MAX,
        });
        let asked = of(scope, persistent(CLIENTS[client]));
        let asked = ConnectRequest { clean_start: clean, will: will.map(Box::new), ..asked };
        let conn = self.lab.connect(asked);
        self.open.insert((scope, client), conn);
    }

    fn conn(&self, scope: Scope, client: usize) -> Option<Conn> {
        self.open.get(&(scope, client)).copied()
    }

    /// All that came to clients of a tenant; they acknowledge it.
    fn got(&mut self, scope: Scope) -> Vec<String> {
        let mut lines = Vec::new();
        let own = self.open.iter().filter(|((own, _), _)| *own == scope);
        let own: Vec<(usize, Conn)> = own.map(|((_, client), conn)| (*client, *conn)).collect();
        let mut is_more = true;
        while is_more {
            is_more = false;
            for (_, conn) in &own {
                for got in self.lab.take_all(*conn) {
                    is_more = true;
                    match got {
                        Got::Publish(got) => {
                            let payload = String::from_utf8_lossy(&got.payload).into_owned();
                            let line =
                                format!("{} {payload} {} {}", got.topic, got.qos, got.retain);
                            lines.push(line);
                            match got.qos {
                                0 => {}
                                1 => self.lab.ack(*conn, AckKind::Puback, got.packet_id),
                                _ => self.lab.ack(*conn, AckKind::Pubrec, got.packet_id),
                            }
                        }
                        Got::Connack { session_present, reason, .. } => {
                            lines.push(format!("connack {session_present} {reason:?}"));
                        }
                        Got::Ack(AckKind::Pubrel, id, _) => {
                            self.lab.ack(*conn, AckKind::Pubcomp, id);
                        }
                        Got::Suback(_, reasons) => lines.push(format!("suback {reasons:?}")),
                        _ => {}
                    }
                }
            }
        }
        lines.sort();
        lines
    }

    /// The process dies. What a power failure leaves of what was not synced differs by world.
    fn crash(&mut self) {
        self.open.clear();
        self.lab.crash(Crash::Kill);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Each tenant sees what it would see if it were alone on a broker.
    #[test]
    fn nobody_notices_that_others_are_there(
        ops in prop::collection::vec((0..3_usize, op()), 1..60),
        shards in 1..4_u16,
    ) {
        let mut together = World::new(shards);
        let mut alone = [0, 1, 2].map(|_| World::new(shards));
        for (step, (tenant, op)) in ops.iter().enumerate() {
            if matches!(op, Op::Crash) {
                together.crash();
                alone.iter_mut().for_each(World::crash);
                continue;
            }
            let got = together.run(scopes()[*tenant], op, step);
            let expected = alone[*tenant].run(FIRST, op, step);
            prop_assert_eq!(got, expected, "step {} of tenant {}: {:?}", step, tenant, op);
            for other in (0..3).filter(|other| other != tenant) {
                let got = together.got(scopes()[other]);
                prop_assert_eq!(got, Vec::<String>::new(), "step {}: {:?}", step, op);
            }
        }
    }
}
