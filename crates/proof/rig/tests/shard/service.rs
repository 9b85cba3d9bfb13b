//! An authorization service: what waits for its answers, and for whom these are.

use broker::{AccessQuestion, ConnectRequest, ServiceAnswer, ServiceSettings, Settings};
use codec::{QoS, Reason, Version};
use policy::{Access, Permission, Who};
use session::Will;

use rig::{Conn, Got, Lab, of_version, persistent, request, rule};
use storage::testing::Crash;

const SERVICE: ServiceSettings =
    ServiceSettings { entries_max: 2, holds_ms: 10_000, no_match_allows: false };

fn lab_with(service: ServiceSettings) -> Lab {
    let settings = Settings { service: Some(service), ..Settings::default() };
    Lab::with(1, settings, Access::open().asking_service())
}

fn lab() -> Lab {
    lab_with(SERVICE)
}

fn asked(lab: &mut Lab) -> Vec<AccessQuestion> {
    std::mem::take(&mut lab.shards[0].effects_mut().questions)
}

fn asked_one(lab: &mut Lab) -> AccessQuestion {
    let mut questions = asked(lab);
    assert_eq!(questions.len(), 1, "{questions:?}");
    questions.remove(0)
}

fn answer(lab: &mut Lab, question: &AccessQuestion, answer: ServiceAnswer) {
    let connection = (question.slot, question.connection);
    lab.shards[0].on_verdict(connection, question.number, answer, lab.now_ms);
    lab.settle();
}

fn acks(lab: &mut Lab, conn: Conn) -> Vec<(u16, Reason)> {
    let got = lab.take_all(conn);
    let ack = |got: &Got| match got {
        Got::Ack(_, packet_id, reason) => Some((*packet_id, *reason)),
        _ => None,
    };
    got.iter().filter_map(ack).collect()
}

fn will(topic: &str) -> Will {
    Will {
        topic: topic.into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos: QoS::AtMostOnce,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }
}

/// Nobody is subscribed to what is published here.
fn taken(packet_id: u16) -> (u16, Reason) {
    (packet_id, Reason::NO_MATCHING_SUBSCRIBERS)
}

fn denied(packet_id: u16) -> (u16, Reason) {
    (packet_id, Reason::NOT_AUTHORIZED)
}

#[test]
fn packets_of_a_connection_wait_for_one_question_and_keep_their_order() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    for number in 1..=3 {
        lab.publish(conn, &format!("t/{number}"), b"", 1, number);
    }
    assert!(!lab.is_read(conn) && acks(&mut lab, conn).is_empty());
    for number in 1..=3 {
        let question = asked_one(&mut lab);
        assert_eq!(*question.topic, *format!("t/{number}"));
        let allow = [ServiceAnswer::Allow, ServiceAnswer::Deny][usize::from(number == 2)];
        answer(&mut lab, &question, allow);
    }
    assert_eq!(acks(&mut lab, conn), [taken(1), denied(2), taken(3)]);
    assert!(asked(&mut lab).is_empty() && lab.is_read(conn));
}

#[test]
fn an_answer_that_comes_twice_or_late_is_nobodys() {
    let mut lab = lab_with(ServiceSettings { holds_ms: 0, ..SERVICE });
    let conn = lab.open(request("c"));
    lab.publish(conn, "a", b"", 1, 1);
    let first = asked_one(&mut lab);
    answer(&mut lab, &first, ServiceAnswer::Deny);
    assert_eq!(acks(&mut lab, conn), [denied(1)]);
    lab.publish(conn, "a", b"", 1, 2);
    let second = asked_one(&mut lab);
    answer(&mut lab, &first, ServiceAnswer::Allow);
    assert!(acks(&mut lab, conn).is_empty(), "the answer to an earlier question");
    answer(&mut lab, &second, ServiceAnswer::Deny);
    answer(&mut lab, &second, ServiceAnswer::Allow);
    assert_eq!(acks(&mut lab, conn), [denied(2)]);
    lab.publish(conn, "a", b"", 1, 3);
    assert_eq!(asked(&mut lab).len(), 1, "what came twice is not remembered either");
}

#[test]
fn an_answer_for_an_earlier_connection_of_the_client_is_nobodys() {
    let mut lab = lab();
    let old = lab.open(request("c"));
    lab.publish(old, "a", b"", 1, 1);
    let question = asked_one(&mut lab);
    let new = lab.open(request("c"));
    lab.publish(new, "a", b"", 1, 1);
    let of_new = asked_one(&mut lab);
    assert_eq!(question.number, of_new.number, "only the connection tells them apart");
    answer(&mut lab, &question, ServiceAnswer::Allow);
    assert!(acks(&mut lab, new).is_empty());
    answer(&mut lab, &of_new, ServiceAnswer::Deny);
    assert_eq!(acks(&mut lab, new), [denied(1)]);
}

#[test]
fn an_answer_to_a_question_from_before_a_reload_is_asked_for_again() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    lab.publish(conn, "a", b"", 1, 1);
    let before = asked_one(&mut lab);
    lab.shards[0].set_access(Access::open().asking_service());
    answer(&mut lab, &before, ServiceAnswer::Allow);
    assert!(acks(&mut lab, conn).is_empty());
    let again = asked_one(&mut lab);
    answer(&mut lab, &again, ServiceAnswer::Deny);
    assert_eq!(acks(&mut lab, conn), [denied(1)]);
    lab.shards[0].set_access(Access::open());
    lab.publish(conn, "a", b"", 1, 2);
    assert_eq!(acks(&mut lab, conn), [taken(2)], "nobody is asked any more");
}

#[test]
fn so_many_answers_are_remembered_for_so_long() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    let mut packet_id = 0;
    let mut is_asked = |lab: &mut Lab, topic: &str| {
        packet_id += 1;
        lab.publish(conn, topic, b"", 1, packet_id);
        let questions = asked(lab);
        questions.iter().for_each(|question| answer(lab, question, ServiceAnswer::Allow));
        assert_eq!(acks(lab, conn), [taken(packet_id)]);
        !questions.is_empty()
    };
    assert!(is_asked(&mut lab, "a") && is_asked(&mut lab, "b"));
    assert!(!is_asked(&mut lab, "a") && !is_asked(&mut lab, "b"));
    assert!(is_asked(&mut lab, "c"), "a makes room");
    assert!(!is_asked(&mut lab, "b") && is_asked(&mut lab, "a"));
    let long = "x".repeat(1025);
    assert!(is_asked(&mut lab, &long) && is_asked(&mut lab, &long), "too long to be kept");
    lab.pass_secs(11);
    assert!(is_asked(&mut lab, "a"), "its time is over");
    // Another QoS is another question, and so is another action.
    lab.publish(conn, "a", b"", 0, 0);
    assert_eq!(asked_one(&mut lab).qos, 0);
}

#[test]
fn a_failure_refuses_and_is_asked_about_again_and_no_match_decides_what_is_ignored() {
    for no_match_allows in [false, true] {
        let mut lab = lab_with(ServiceSettings { no_match_allows, ..SERVICE });
        let conn = lab.open(request("c"));
        for packet_id in 1..=2 {
            lab.publish(conn, "a", b"", 1, packet_id);
            let question = asked_one(&mut lab);
            answer(&mut lab, &question, ServiceAnswer::Failed);
            let refused = (packet_id, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
            assert_eq!(acks(&mut lab, conn), [refused], "its client may send it again");
        }
        lab.publish(conn, "a", b"", 1, 3);
        let question = asked_one(&mut lab);
        answer(&mut lab, &question, ServiceAnswer::Ignore);
        let expected = if no_match_allows { taken(3) } else { denied(3) };
        assert_eq!(acks(&mut lab, conn), [expected]);
    }
}

/// No log has seen the message, so its packet ID is free again.
#[test]
fn a_failure_refuses_a_message_of_qos_2_and_the_connection_goes_on() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    for packet_id in [1, 1] {
        lab.publish(conn, "a", b"", 2, packet_id);
        let question = asked_one(&mut lab);
        answer(&mut lab, &question, ServiceAnswer::Failed);
        let refused = (packet_id, Reason::IMPLEMENTATION_SPECIFIC_ERROR);
        assert_eq!(acks(&mut lab, conn), [refused]);
    }
    assert!(!lab.is_closed(conn));
}

#[test]
fn what_a_client_sent_before_it_was_gone_waits_for_its_answer() {
    let mut lab = lab();
    let reader = lab.open(request("reader"));
    lab.subscribe_all(reader, &["a"], 0);
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Allow);
    let conn = lab.open(request("gone"));
    lab.publish(conn, "a", b"last", 0, 0);
    let question = asked_one(&mut lab);
    lab.cut(conn);
    answer(&mut lab, &question, ServiceAnswer::Allow);
    assert_eq!(lab.payloads(reader), ["last"]);
    assert!(lab.shards[0].connection_of(broker::Name::first("gone")).is_none());
}

#[test]
fn each_filter_of_a_subscribe_is_asked_about() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    lab.subscribe_all(conn, &["a/#", "$share/g/b", "c"], 1);
    for (filter, allow) in
        [("a/#", ServiceAnswer::Allow), ("b", ServiceAnswer::Deny), ("c", ServiceAnswer::Allow)]
    {
        let question = asked_one(&mut lab);
        assert_eq!((&*question.topic, question.publishes, question.qos), (filter, false, 1));
        answer(&mut lab, &question, allow);
    }
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![1, 0x87, 1])]);
}

#[test]
fn a_will_counts_once_the_service_has_allowed_it() {
    let mut lab = lab();
    let answers = [Some(ServiceAnswer::Allow), Some(ServiceAnswer::Deny), None];
    for (number, verdict) in answers.into_iter().enumerate() {
        let will = Some(Box::new(will("w")));
        let conn = lab.open(ConnectRequest { will, ..request("dying") });
        let question = asked_one(&mut lab);
        assert!(lab.is_read(conn) && question.publishes);
        if let Some(verdict) = verdict {
            answer(&mut lab, &question, verdict);
        }
        lab.cut(conn);
        assert_eq!(lab.total(|m| &m.wills), 1, "{number}");
        answer(&mut lab, &question, ServiceAnswer::Allow);
        assert_eq!(lab.total(|m| &m.wills), 1, "too late");
    }
}

#[test]
fn a_will_that_was_allowed_late_outlives_a_crash_and_one_that_was_not_does_not() {
    for (verdict, published) in [(Some(ServiceAnswer::Allow), 1), (None, 0)] {
        let settings = Settings { service: Some(SERVICE), ..Settings::default() };
        let mut lab = Lab::durable_with(1, settings);
        lab.shards[0].set_access(Access::open().asking_service());
        let will = Will { delay_secs: 5, ..will("w") };
        let asking = ConnectRequest { will: Some(Box::new(will)), ..persistent("dying") };
        lab.open(asking);
        let question = asked_one(&mut lab);
        if let Some(verdict) = verdict {
            answer(&mut lab, &question, verdict);
        }
        lab.crash(Crash::Power);
        lab.pass_secs(10);
        assert_eq!(lab.total(|m| &m.wills), published);
    }
}

#[test]
fn a_publisher_of_3_1_1_is_cut_off_when_nobody_knows_so_that_it_sends_again() {
    let mut lab = lab();
    let conn = lab.open(of_version(Version::V311, "old"));
    lab.publish(conn, "a", b"", 1, 1);
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Failed);
    assert!(lab.is_closed(conn) && lab.take_all(conn).is_empty(), "not acknowledged");
}

#[test]
fn a_will_that_nobody_knew_about_is_asked_about_again() {
    let mut lab = lab();
    let conn = lab.open(ConnectRequest { will: Some(Box::new(will("w"))), ..request("dying") });
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Failed);
    assert!(asked(&mut lab).is_empty());
    lab.pass_secs(6);
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Allow);
    lab.pass_secs(20);
    assert!(asked(&mut lab).is_empty());
    lab.cut(conn);
    assert_eq!(lab.total(|m| &m.wills), 1);
}

#[test]
fn a_will_that_a_rule_allowed_is_asked_about_when_the_rule_is_gone() {
    let mut lab = lab();
    let rules = Access::compile(&[rule(Who::Everyone, Permission::Write, "w")]).expect("sound");
    lab.shards[0].set_access(rules.asking_service());
    let conn = lab.open(ConnectRequest { will: Some(Box::new(will("w"))), ..request("dying") });
    assert!(asked(&mut lab).is_empty(), "a rule allows it");
    lab.shards[0].set_access(Access::open().asking_service());
    lab.settle();
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Deny);
    lab.cut(conn);
    assert_eq!(lab.total(|m| &m.wills), 0);
}

#[test]
fn a_connection_that_is_gone_does_not_ask_for_ever() {
    let mut lab = lab();
    let conn = lab.open(request("gone"));
    let packets = (1..=100).map(|number| format!("t/{number}"));
    for topic in packets {
        lab.publish(conn, &topic, b"", 0, 0);
    }
    let question = asked_one(&mut lab);
    lab.cut(conn);
    answer(&mut lab, &question, ServiceAnswer::Allow);
    let mut count = 1;
    while let Some(question) = asked(&mut lab).pop() {
        answer(&mut lab, &question, ServiceAnswer::Allow);
        count += 1;
    }
    assert_eq!(count, 17, "16 of them after its end");
    assert!(lab.shards[0].connection_of(broker::Name::first("gone")).is_none());
}

#[test]
fn a_grant_of_a_part_of_a_filter_does_not_open_the_rest() {
    let mut lab = lab();
    let rules = Access::compile(&[rule(Who::Everyone, Permission::Read, "public/#")]);
    lab.shards[0].set_access(rules.expect("sound").asking_service());
    let conn = lab.open(request("c"));
    lab.subscribe_all(conn, &["#"], 0);
    let question = asked_one(&mut lab);
    assert_eq!(&*question.topic, "#");
    answer(&mut lab, &question, ServiceAnswer::Deny);
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![0x87])]);
    lab.subscribe_all(conn, &["public/a/#"], 0);
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![0])]);
}

#[test]
fn what_was_taken_already_is_not_asked_about() {
    let mut lab = lab();
    let conn = lab.open(request("c"));
    lab.publish(conn, "a", b"", 2, 1);
    let question = asked_one(&mut lab);
    answer(&mut lab, &question, ServiceAnswer::Allow);
    assert_eq!(acks(&mut lab, conn).len(), 1);
    lab.shards[0].set_access(Access::open().asking_service());
    lab.publish(conn, "a", b"", 2, 1);
    assert!(asked(&mut lab).is_empty());
    assert_eq!(acks(&mut lab, conn).len(), 1, "it is known");
}
