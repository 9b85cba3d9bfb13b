//! An authorization service: what waits for its answers, and for whom these are.

use crate::rows::{
    Row, Stage, Step, all, asks, crashes, does, gets, is_closed, is_not_read, is_open, is_read,
    kept, opens, passes, reads, row, run, sends, settles, v311,
};
use ServiceAnswer::{Allow, Deny, Failed, Ignore};
use broker::{AccessQuestion, ConnectRequest, ServiceAnswer, ServiceSettings, Settings};
use codec::QoS;
use policy::{Access, Permission, Who};
use rig::{Lab, rule, will, with_will};

const SERVICE: ServiceSettings =
    ServiceSettings { entries_max: 2, holds_ms: 10_000, no_match_allows: false };

fn lab_with(service: ServiceSettings) -> Lab {
    let settings = Settings { service: Some(service), ..Settings::default() };
    Lab::with(1, settings, Access::open().asking_service())
}

fn case(name: &str) -> Row {
    row("", name, lab_with(SERVICE))
}

fn questions(stage: &mut Stage) -> Vec<AccessQuestion> {
    std::mem::take(&mut stage.lab.shards[0].effects_mut().questions)
}

fn give(stage: &mut Stage, question: &AccessQuestion, answer: ServiceAnswer) {
    let (connection, now_ms) = ((question.slot, question.connection), stage.lab.now_ms);
    stage.lab.shards[0].on_verdict(connection, question.number, answer, now_ms);
    stage.lab.settle();
}

/// The service is asked about this topic and nothing else, and says so.
fn service(topic: &str, answer: ServiceAnswer) -> Step {
    let topic = topic.to_owned();
    does(move |stage| {
        let questions = questions(stage);
        let topics: Vec<&str> = questions.iter().map(|question| &*question.topic).collect();
        assert_eq!(topics, [topic.as_str()]);
        give(stage, &questions[0], answer);
    })
}

fn nobody_is_asked() -> Step {
    does(|stage| assert!(questions(stage).is_empty()))
}

fn sets(access: Access) -> Step {
    does(move |stage| stage.lab.shards[0].set_access(access.clone()))
}

fn granted(permission: Permission, filter: &str) -> Access {
    let access = Access::compile(&[rule(Who::Everyone, permission, filter)]);
    access.expect("sound rules").asking_service()
}

/// Nobody has subscribed to what is published here.
const TAKEN: &str = "no_matching_subscribers";

#[test]
fn questions_and_answers() {
    let brief = || lab_with(ServiceSettings { holds_ms: 0, ..SERVICE });
    run([
        case("packets wait for one question and keep their order").steps([
            sends("c", (1..4).map(|id| format!("publish t/{id} x qos1 id{id}"))),
            gets("c", []),
            is_not_read("c"),
            service("t/1", Allow),
            service("t/2", Deny),
            service("t/3", Allow),
            gets(
                "c",
                [
                    &format!("puback 1 {TAKEN}"),
                    "puback 2 not_authorized",
                    &format!("puback 3 {TAKEN}"),
                ],
            ),
            nobody_is_asked(),
            is_read("c"),
        ]),
        row("", "an answer that comes twice or late is nobody's", brief()).steps([
            sends("c", ["publish a x qos1 id1"]),
            does(|stage| {
                let first = questions(stage).remove(0);
                give(stage, &first, Deny);
                let conn = stage.conn("c");
                assert_eq!(stage.lab.acks(conn).len(), 1);
                stage.lab.publish(conn, "a", b"", 1, 2);
                let second = questions(stage).remove(0);
                give(stage, &first, Allow);
                assert_eq!(stage.lab.acks(conn), [], "the answer to an earlier question");
                give(stage, &second, Deny);
                give(stage, &second, Allow);
            }),
            gets("c", ["puback 2 not_authorized"]),
            sends("c", ["publish a x qos1 id3"]),
            // What came twice is not remembered either.
            service("a", Allow),
        ]),
        case("an answer for an earlier connection of the client is nobody's").steps([
            sends("c", ["publish a x qos1"]),
            does(|stage| {
                let of_old = questions(stage).remove(0);
                let new = stage.lab.open(rig::request("c"));
                stage.lab.publish(new, "a", b"", 1, 1);
                let of_new = questions(stage).remove(0);
                assert_eq!(of_old.number, of_new.number, "only the connection differs");
                give(stage, &of_old, Allow);
                assert_eq!(stage.lab.acks(new), []);
                give(stage, &of_new, Deny);
                assert!(stage.lab.acks(new)[0].2.is_error());
            }),
        ]),
        case("a question from before a reload is asked again").steps([
            sends("c", ["publish a x qos1 id1"]),
            sets(Access::open().asking_service()),
            service("a", Allow),
            gets("c", []),
            service("a", Deny),
            gets("c", ["puback 1 not_authorized"]),
            sets(Access::open()),
            asks("c", "publish a x qos1 id2", [&format!("puback 2 {TAKEN}")]),
            nobody_is_asked(),
        ]),
    ]);
}

#[test]
fn failures_and_no_match() {
    run([
        case("a failure refuses and is asked about again").steps([
            sends("c", ["publish a x qos1"]),
            service("a", Failed),
            gets("c", ["puback 1 implementation_specific_error"]),
            sends("c", ["publish a x qos1"]),
            service("a", Failed),
            gets("c", ["puback 1 implementation_specific_error"]),
            sends("c", ["publish a x qos1"]),
            service("a", Ignore),
            gets("c", ["puback 1 not_authorized"]),
            // No log has seen the message, so its packet ID is free again.
            sends("c", ["publish b x qos2"]),
            service("b", Failed),
            sends("c", ["publish b x qos2"]),
            service("b", Failed),
            gets("c", ["pubrec 1 implementation_specific_error"; 2]),
            is_open("c"),
        ]),
        row(
            "",
            "no match decides what is ignored",
            lab_with(ServiceSettings { no_match_allows: true, ..SERVICE }),
        )
        .steps([
            sends("c", ["publish a x qos1"]),
            service("a", Ignore),
            gets("c", [&format!("puback 1 {TAKEN}")]),
        ]),
        // It is cut off and not acknowledged, so that it sends again.
        case("a publisher of MQTT 3.1.1 is cut off by a failure").steps([
            opens("old", v311),
            sends("old", ["publish a x qos1"]),
            service("a", Failed),
            is_closed("old"),
            gets("old", []),
        ]),
    ]);
}

#[test]
fn what_is_asked_about() {
    run([
        case("each filter of a SUBSCRIBE is asked about").steps([
            does(|stage| {
                let conn = stage.conn("c");
                stage.lab.subscribe_all(conn, &["a/#", "$share/g/b", "c"], 1);
                let next = &stage.lab.shards[0].effects_mut().questions[0];
                assert!(!next.publishes && next.qos == 1);
            }),
            service("a/#", Allow),
            service("b", Deny),
            service("c", Allow),
            gets("c", ["suback 1: 1 not_authorized 1"]),
        ]),
        case("a grant of a part of a filter does not open the rest").steps([
            sets(granted(Permission::Read, "public/#")),
            sends("c", ["subscribe #"]),
            service("#", Deny),
            gets("c", ["suback 1: not_authorized"]),
            sends("c", ["subscribe public/a/#"]),
            nobody_is_asked(),
        ]),
        case("what was taken already is not asked about").steps([
            sends("c", ["publish a x qos2"]),
            service("a", Allow),
            gets("c", ["pubrec 1"]),
            sets(Access::open().asking_service()),
            asks("c", "publish a x qos2", ["pubrec 1"]),
            nobody_is_asked(),
        ]),
        case("what a client sent before it was gone waits for its answer").steps([
            sends("reader", ["subscribe a"]),
            service("a", Allow),
            sends("gone", ["publish a last"]),
            sends("gone", ["cut"]),
            service("a", Allow),
            reads("reader", ["last"]),
            does(is_gone),
        ]),
        case("a connection that is gone does not ask for ever").steps([
            sends("gone", (1..=100).map(|number| format!("publish t/{number} x"))),
            sends("gone", ["cut"]),
            does(|stage| {
                let mut count = 0;
                while let Some(question) = questions(stage).pop() {
                    give(stage, &question, Allow);
                    count += 1;
                }
                assert_eq!(count, 17, "16 of them after its end");
                is_gone(stage);
            }),
        ]),
    ]);
}

fn is_gone(stage: &mut Stage) {
    assert!(stage.lab.shards[0].connection_of(broker::Name::first("gone")).is_none());
}

#[test]
fn so_many_answers_are_remembered_for_so_long() {
    let publishes = |topic: &str| sends("c", [format!("publish {topic} x")]);
    let asked = |topic: &str| all([publishes(topic), service(topic, Allow)]);
    let known = |topic: &str| all([publishes(topic), nobody_is_asked()]);
    let long = "x".repeat(1025);
    run([case("two answers for ten seconds").steps([
        asked("a"),
        asked("b"),
        known("a"),
        known("b"),
        // a makes room.
        asked("c"),
        known("b"),
        asked("a"),
        // Too long to be kept.
        asked(&long),
        asked(&long),
        // Its time is over.
        passes(11),
        asked("a"),
        // Another QoS is another question.
        sends("c", ["publish a x qos1"]),
        does(|stage| assert_eq!(questions(stage)[0].qos, 1)),
    ])]);
}

fn dying(request: ConnectRequest) -> ConnectRequest {
    with_will(request, will("w", QoS::AtMostOnce))
}

/// So many wills were published.
fn wills(count: u64) -> Step {
    crate::rows::counts(|m| &m.wills, count)
}

#[test]
fn of_wills() {
    let late = |request| {
        let will = session::Will { delay_secs: 5, ..will("w", QoS::AtMostOnce) };
        with_will(kept(request), will)
    };
    let durable = || {
        let settings = Settings { service: Some(SERVICE), ..Settings::default() };
        let mut lab = Lab::durable_with(1, settings);
        lab.shards[0].set_access(Access::open().asking_service());
        lab
    };
    run([
        case("a will counts once the service has allowed it").steps([
            opens("1", dying),
            service("w", Allow),
            sends("1", ["cut"]),
            wills(1),
            sets(Access::open().asking_service()),
            opens("2", dying),
            service("w", Deny),
            sends("2", ["cut"]),
            wills(1),
            sets(Access::open().asking_service()),
            opens("3", dying),
            // Its client does not wait for the answer, which comes too late.
            is_read("3"),
            sends("3", ["cut"]),
            service("w", Allow),
            wills(1),
        ]),
        case("a will that nobody knew about is asked about again").steps([
            opens("c", dying),
            service("w", Failed),
            nobody_is_asked(),
            passes(6),
            service("w", Allow),
            passes(20),
            nobody_is_asked(),
            sends("c", ["cut"]),
            wills(1),
        ]),
        case("a will that a rule allowed is asked about when the rule is gone").steps([
            sets(granted(Permission::Write, "w")),
            opens("c", dying),
            nobody_is_asked(),
            sets(Access::open().asking_service()),
            settles(),
            service("w", Deny),
            sends("c", ["cut"]),
            wills(0),
        ]),
        row("", "a will that was allowed late outlives a crash", durable()).steps([
            opens("c", late),
            service("w", Allow),
            crashes(),
            passes(10),
            wills(1),
        ]),
        row("", "a will that nobody allowed does not outlive a crash", durable()).steps([
            opens("c", late),
            crashes(),
            passes(10),
            wills(0),
        ]),
    ]);
}
