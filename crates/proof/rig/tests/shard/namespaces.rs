//! Namespaces: what one has and does is nothing to another, whatever they call it.

use std::collections::BTreeMap;

use crate::rows::{
    Step, all, asks, connects, crashes, does, gets, is_closed, is_open, kept, opens, passes,
    reads_count, row, run, sends, settles,
};
use broker::command::{PAGE_ROWS, Wanted};
use broker::journal::{Fact, GroupOpened, QueueNumber, SessionOpened, StoredMessage};
use broker::{Answer, Command, ConnectRequest, Name, Quota, Scope};
use codec::{AckKind, QoS, Reason, Version};
use proptest::prelude::*;
use rig::{Conn, Got, Lab, SCOPES, level, persistent, request, retained, will, with_will};
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

/// What is in a namespace, by the number of each.
const ALL: [&str; 3] = ["", "1:", "300:"];

#[test]
fn what_a_namespace_retains() {
    let kept = ["publish t/a kept qos1 retain", "publish $x/a kept qos1 retain"];
    let large = "publish t/large x*100000 qos1 retain";
    let everything = ["subscribe #", "subscribe $x/#", "subscribe t/a", "subscribe t/large"];
    let dying = |request| {
        let will = Will { retain: true, ..will("t/will", QoS::AtLeastOnce) };
        with_will(request, will)
    };
    let reader = |own: &str| format!("{own}reader");
    run([row("", "retained messages and wills are of their namespace", Lab::new(4))
        .steps([sends("1:writer", kept), sends("1:writer", [large])])
        .steps(ALL.map(|own| {
            let count = if own == "1:" { 5 } else { 0 };
            all([
                sends(&reader(own), everything),
                reads_count(&reader(own), count),
                sends(&reader(own), ["cut"]),
            ])
        }))
        .steps(ALL.map(|own| sends(&format!("{own}listener"), ["subscribe t/will"])))
        .steps([opens("300:dying", dying), sends("300:dying", ["cut"])])
        .steps(ALL.map(|own| reads_count(&format!("{own}listener"), usize::from(own == "300:"))))
        // Clearing a topic clears it where it was said.
        .steps([
            sends("300:clears", ["publish t/a \"\" qos1 retain"]),
            asks("1:reads on", "subscribe t/a", ["publish t/a kept retain"]),
        ])]);
}

#[test]
fn one_namespace_is_meant() {
    run([
        row("", "a kick ends the session of the namespace that is meant", Lab::new(2))
            .steps(ALL.map(|own| sends(&format!("{own}phone"), ["kept"])))
            .steps([
                does(|stage| {
                    let name = Name::new(SCOPES[0], "phone");
                    let shard = usize::from(stage.lab.shared.place_of_client(name));
                    let now_ms = stage.lab.now_ms;
                    assert!(stage.lab.shards[shard].on_kick(name, now_ms));
                }),
                settles(),
                is_open("phone"),
                is_closed("1:phone"),
                is_open("300:phone"),
            ]),
        row("", "a closed namespace takes nobody", Lab::new(1)).steps([
            closes(true),
            connects("1:client", |own| own),
            gets("1:client", ["connack banned"]),
            // There is none.
            connects("77:client", |own| own),
            gets("77:client", ["connack banned"]),
            closes(false),
            opens("1:client", |own| own),
        ]),
    ]);
}

#[test]
fn what_outlives_a_loss_of_power() {
    run([row("", "all of it outlives a loss of power", [Lab::durable(1), Lab::durable(4)])
        .steps(ALL.map(|own| {
            let (away, writer) = (format!("{own}away"), format!("{own}writer"));
            all([
                sends(&away, ["kept", "subscribe t/# qos1", "subscribe $share/g/jobs/+ qos1"]),
                sends(&away, ["cut"]),
                sends(&writer, ["kept", &format!("publish t/a queued{own} qos1 id1")]),
                sends(&writer, [format!("publish t/b exactly{own} qos2 id2")]),
                sends(&writer, [format!("publish jobs/1 job{own} qos1 id3")]),
                sends(&writer, [&format!("publish kept kept{own} qos1 id4 retain"), "cut"]),
            ])
        }))
        .steps([does(|stage| stage.lab.turn_the_journal_over()), crashes()])
        .steps(ALL.map(|own| {
            let (away, reader) = (format!("{own}away"), format!("{own}reader"));
            all([
                sends(&away, ["kept"]),
                does(move |stage| {
                    let conn = stage.conn(&away);
                    let mut got = payloads(&mut stage.lab, conn);
                    got.sort();
                    let own = ["exactly", "job", "queued"].map(|what| format!("{what}{own}"));
                    assert_eq!(got, own);
                }),
                sends(&reader, ["subscribe #"]),
                does(move |stage| {
                    let conn = stage.conn(&reader);
                    let kept = stage.received(conn).into_iter();
                    let kept = kept.filter(|own| own.payload.len() < 100);
                    let kept: Vec<_> = kept.map(|own| own.payload).collect();
                    assert_eq!(kept, [format!("kept{own}").into_bytes()]);
                }),
            ])
        }))]);
}

fn closes(is_closed: bool) -> Step {
    does(move |stage| stage.lab.shared.spaces.open(SCOPES[0]).set_closed(is_closed))
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
            let Answer::Sessions(page) = lab.ask(0, &command) else { panic!("sessions") };
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
    let Answer::Homes(homes) = lab.ask(0, &command) else { panic!("homes") };
    assert_eq!(homes, [(first, true), (one, false), (two, true)]);
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

/// What namespace 1 may have.
fn limits<const N: usize>(quotas: [(Quota, u64); N]) -> Step {
    does(move |stage| {
        let space = stage.lab.shared.spaces.open(SCOPES[0]);
        quotas.iter().for_each(|(quota, most)| space.set_limit(*quota, Some(*most)));
    })
}

/// What namespace 1 has of it, and how often more was refused.
fn has(quota: Quota, count: u64, refused: u64) -> Step {
    does(move |stage| {
        let space = stage.lab.shared.spaces.open(SCOPES[0]);
        assert_eq!((space.count(quota), space.refused(quota)), (count, refused), "{quota:?}");
    })
}

/// Connects to a session that is kept, and is answered so.
fn keeps(name: &str, answer: &str) -> Step {
    all([connects(name, kept), gets(name, [answer])])
}

#[test]
fn quotas() {
    use Quota::{Connections, RetainedMessages, Sessions, Subscriptions};
    let retain = |name: &str, number: u32, answer: &str| {
        asks(name, &format!("publish r/{number} x qos1 retain"), [&format!("puback 1 {answer}")])
    };
    let none = "no_matching_subscribers";
    let others = ["", "300:"]
        .into_iter()
        .flat_map(|own| ["a", "b", "c", "d"].map(|id| keeps(&format!("{own}{id}"), "connack")));
    run([
        row("", "so many clients, and no other namespace is limited", Lab::new(3))
            .steps([
                limits([(Connections, 2), (Sessions, 3)]),
                keeps("1:a", "connack"),
                keeps("1:b", "connack"),
                keeps("1:c", "connack quota_exceeded"),
            ])
            .steps(others)
            .steps([
                // Who comes again takes no place.
                keeps("1:b", "connack present"),
                sends("1:b", ["cut"]),
                keeps("1:c", "connack"),
                sends("1:c", ["cut"]),
                // A fourth session.
                keeps("1:d", "connack quota_exceeded"),
                has(Connections, 1, 1),
                has(Sessions, 3, 1),
            ]),
        row("", "so many subscriptions and retained messages together", Lab::new(2)).steps([
            limits([(Subscriptions, 3), (RetainedMessages, 2)]),
            sends("1:a", ["subscribe t/1 qos1", "subscribe t/2 qos1"]),
            sends("1:b", ["subscribe t/1 qos1"]),
            asks("1:b", "subscribe t/2 qos1", ["suback 1: quota_exceeded"]),
            // It is there already.
            sends("1:b", ["subscribe t/1"]),
            sends("1:a", ["unsubscribe t/2"]),
            sends("1:b", ["subscribe t/2 qos1"]),
            retain("1:a", 1, none),
            retain("1:a", 2, none),
            retain("1:a", 3, "quota_exceeded"),
            asks("1:a", "publish r/1 \"\" qos1 retain", [&format!("puback 1 {none}")]),
            retain("1:a", 3, none),
            has(RetainedMessages, 2, 1),
            sends("other", (1..10).map(|id| format!("publish r/{id} x qos1 retain"))),
            has(RetainedMessages, 2, 1),
        ]),
    ]);
}

#[test]
fn connects_faster_than_the_limit_are_refused_until_there_is_time() {
    run([row("", "two a second", Lab::new(2)).steps([
        limits([(Quota::Connects, 2)]),
        does(|stage| {
            let late = (0..20).filter(|number| {
                let conn = stage.lab.connect(of(SCOPES[0], request(&format!("c{number}"))));
                let answer = stage.lab.connack(conn).expect("an answer");
                answer == Err(Reason::CONNECTION_RATE_EXCEEDED)
            });
            assert!((16..=17).contains(&late.count()));
        }),
        opens("300:c", |own| own),
        passes(2),
        opens("1:later", |own| own),
    ])]);
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

/// What a tenant does. Clients, topics and filters are numbers into short lists. All tenants have
/// the crash.
#[derive(Clone, Debug)]
enum Op {
    Connect { client: usize, clean: bool, with_will: bool },
    Cut { client: usize },
    Publish { client: usize, topic: usize, qos: u8, retain: bool, is_empty: bool },
    Subscribe { client: usize, filter: usize, qos: u8 },
    Unsubscribe { client: usize, filter: usize },
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
        let asked = of(scope, persistent(CLIENTS[client]));
        let asked = ConnectRequest { clean_start: clean, ..asked };
        let asked = match will {
            Some(text) => {
                let payload = text.into_bytes().into();
                with_will(asked, Will { payload, ..rig::will(TOPICS[client], QoS::AtLeastOnce) })
            }
            None => asked,
        };
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
