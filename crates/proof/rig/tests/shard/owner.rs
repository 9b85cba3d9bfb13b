//! A session belongs to the user who made it, and what waits for it is judged by the rules of now.

use broker::{ConnectRequest, Event, SessionOwner, Settings};
use codec::{AckKind, Reason, Version};
use policy::Access;
use policy::{Permission, Rule, Who};
use rig::{Conn, Got, Lab, of_version, persistent, request, rule};
use session::Dropped;
use storage::testing::Crash;

/// A kept session of a user; nobody has a user name if it is empty.
fn of_user(username: &str, client_id: &str) -> ConnectRequest {
    let username = Some(username).filter(|name| !name.is_empty()).map(Into::into);
    ConnectRequest { username, ..persistent(client_id) }
}

/// Anna's session, away, with a message in its queue.
fn leave_a_message(lab: &mut Lab, owner: &str) {
    let anna = lab.open(of_user(owner, "phone"));
    lab.subscribe(anna, "t/#", 1);
    lab.cut(anna);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/1", b"secret", 1, 1);
}

fn is_refused(lab: &mut Lab, request: ConnectRequest) -> bool {
    let conn = lab.connect(request);
    match &lab.take_all(conn)[..] {
        [Got::Connack { reason: Reason::NOT_AUTHORIZED, session_present: false, .. }] => {
            assert!(lab.is_closed(conn));
            true
        }
        [Got::Connack { reason: Reason::SUCCESS, .. }, ..] => {
            lab.cut(conn);
            false
        }
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

/// Resumes the session and reads what has waited.
fn resume(lab: &mut Lab, request: ConnectRequest) -> (Conn, Vec<String>) {
    let conn = lab.connect(request);
    match lab.take(conn) {
        Some(Got::Connack { session_present: true, reason: Reason::SUCCESS, .. }) => {}
        other => panic!("expected the session, got {other:?}"),
    }
    let payloads = lab.payloads(conn);
    (conn, payloads)
}

#[test]
fn another_user_neither_gets_a_session_nor_ends_it() {
    let mut lab = Lab::new(2);
    leave_a_message(&mut lab, "anna");
    let clean = ConnectRequest { clean_start: true, ..of_user("eve", "phone") };
    for stranger in [of_user("eve", "phone"), clean, of_user("", "phone")] {
        assert!(is_refused(&mut lab, stranger));
    }
    assert_eq!(lab.total(|m| &m.strangers), 3);
    let reported = lab.events.iter().filter(
        |event| matches!(event, Event::Stranger { client_id, .. } if &**client_id == "phone"),
    );
    assert_eq!(reported.count(), 3);
    assert_eq!(resume(&mut lab, of_user("anna", "phone")).1, ["secret"]);
}

#[test]
fn another_user_does_not_take_a_connection_over() {
    let mut lab = Lab::new(1);
    let anna = lab.open(of_user("anna", "phone"));
    lab.subscribe(anna, "t", 0);
    assert!(is_refused(&mut lab, of_user("eve", "phone")));
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", b"1", 0, 0);
    assert_eq!(lab.payloads(anna), ["1"]);
    assert_eq!(lab.total(|m| &m.takeovers), 0);
    // She herself may come from elsewhere.
    lab.open(of_user("anna", "phone"));
    assert!(lab.is_closed(anna));
}

#[test]
fn a_stranger_of_mqtt_3_is_answered_in_its_own_version() {
    let mut lab = Lab::new(1);
    lab.open(of_user("anna", "phone"));
    let stranger = lab.connect(of_version(Version::V311, "phone"));
    let refused = Got::Connack {
        session_present: false,
        reason: Reason::from_connack_v3(5).expect("a code of MQTT 3"),
        properties: Vec::new(),
    };
    assert_eq!(lab.take_all(stranger), [refused]);
}

#[test]
fn a_name_that_nobody_has_proved_owns_nothing() {
    let mut lab = Lab::new(1);
    leave_a_message(&mut lab, "anna");
    let stated = ConnectRequest { is_proved: false, ..of_user("anna", "phone") };
    assert!(is_refused(&mut lab, stated));
}

#[test]
fn a_session_without_a_user_name_is_for_those_who_have_none() {
    let mut lab = Lab::new(1);
    leave_a_message(&mut lab, "");
    assert!(is_refused(&mut lab, of_user("anna", "phone")));
    assert_eq!(resume(&mut lab, of_user("", "phone")).1, ["secret"]);
}

#[test]
fn where_everybody_has_a_name_the_first_adopts_what_was_made_without_one() {
    let session_owner = SessionOwner::User { may_adopt: true };
    let settings = Settings { session_owner, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    leave_a_message(&mut lab, "");
    let (anna, payloads) = resume(&mut lab, of_user("anna", "phone"));
    assert_eq!(payloads, ["secret"]);
    lab.cut(anna);
    assert!(is_refused(&mut lab, of_user("bob", "phone")));
}

#[test]
fn a_session_may_be_anybodys() {
    let settings = Settings { session_owner: SessionOwner::Anybody, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    leave_a_message(&mut lab, "anna");
    assert_eq!(resume(&mut lab, of_user("bob", "phone")).1, ["secret"]);
}

#[test]
fn a_session_that_has_expired_is_nobodys() {
    let mut lab = Lab::new(1);
    let short = ConnectRequest { session_expiry_secs: 1, ..of_user("anna", "phone") };
    let anna = lab.open(short);
    lab.cut(anna);
    lab.now_ms += 2000;
    assert!(!is_refused(&mut lab, of_user("eve", "phone")));
}

#[test]
fn the_owner_outlives_a_crash() {
    let mut lab = Lab::durable(2);
    leave_a_message(&mut lab, "anna");
    lab.settle();
    lab.crash(Crash::Kill);
    assert!(is_refused(&mut lab, of_user("eve", "phone")));
    assert!(is_refused(&mut lab, of_user("", "phone")));
    assert_eq!(resume(&mut lab, of_user("anna", "phone")).1, ["secret"]);
}

// What waits is judged by the rules of now.

fn rules_without(hidden: &str) -> Access {
    let rules: [Rule; 2] = [
        rule(Who::Everyone, Permission::ReadWrite, "#"),
        rule(Who::Everyone, Permission::Deny, hidden),
    ];
    Access::compile(&rules).expect("sound rules")
}

fn dropped(lab: &Lab) -> u64 {
    let denied = lab.events.iter().map(|event| match event {
        Event::Dropped { reason: Dropped::Denied, count, .. } => *count,
        _ => 0,
    });
    denied.sum()
}

fn set_rules(lab: &mut Lab, access: &Access) {
    for shard in &mut lab.shards {
        shard.set_access(access.clone());
    }
}

fn queued_messages_are_judged_again(mut lab: Lab) {
    let reader = lab.open(persistent("reader"));
    lab.subscribe(reader, "t/#", 1);
    lab.cut(reader);
    let publisher = lab.open(request("publisher"));
    for (number, topic) in ["t/1", "t/hidden", "t/2"].into_iter().enumerate() {
        lab.publish(publisher, topic, topic.as_bytes(), 1, number as u16 + 1);
    }
    lab.settle();
    set_rules(&mut lab, &rules_without("t/hidden"));
    let (reader, payloads) = resume(&mut lab, persistent("reader"));
    assert_eq!(payloads, ["t/1", "t/2"]);
    assert_eq!(lab.total(|m| &m.dropped_denied), 1);
    lab.pass_secs(2);
    assert_eq!(dropped(&lab), 1);
    // It is gone for good: with the old rules it does not come back.
    set_rules(&mut lab, &Access::open());
    lab.cut(reader);
    let again = lab.connect(persistent("reader"));
    assert!(!lab.payloads(again).contains(&"t/hidden".into()));
}

#[test]
fn queued_messages_are_judged_by_the_rules_of_now() {
    queued_messages_are_judged_again(Lab::new(1));
}

#[test]
fn messages_queued_in_the_journal_are_judged_by_the_rules_of_now() {
    queued_messages_are_judged_again(Lab::durable(1));
}

#[test]
fn what_is_in_flight_is_not_sent_again_to_who_may_not_have_it_any_more() {
    let mut lab = Lab::new(1);
    let reader = lab.open(persistent("reader"));
    lab.subscribe(reader, "t/#", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/hidden", b"1", 1, 1);
    lab.publish(publisher, "t/hidden", b"2", 2, 2);
    lab.ack(publisher, AckKind::Pubrel, 2);
    lab.publish(publisher, "t/ok", b"3", 1, 3);
    assert_eq!(lab.payloads(reader), ["1", "2", "3"]);
    lab.cut(reader);
    set_rules(&mut lab, &rules_without("t/hidden"));
    let reader = lab.connect(persistent("reader"));
    let sent = lab.take_all(reader);
    // The packet id of QoS 2 is let go of in order, so that the client can use it again.
    assert_eq!(sent[1], Got::Ack(AckKind::Pubrel, 2, Reason::SUCCESS));
    assert!(matches!(&sent[2..], [Got::Publish(resent)] if resent.payload == b"3" && resent.dup));
    lab.ack(reader, AckKind::Pubcomp, 2);
    lab.ack(reader, AckKind::Puback, 3);
    assert!(!lab.is_closed(reader));
    assert_eq!(lab.total(|m| &m.dropped_denied), 2);
}

#[test]
fn what_waits_for_the_journal_is_judged_when_it_leaves() {
    let mut lab = Lab::durable(1);
    let reader = lab.open(persistent("reader"));
    lab.subscribe(reader, "t/#", 2);
    let publisher = lab.open(request("publisher"));
    for (packet_id, topic) in [(1, "t/hidden"), (2, "t/ok")] {
        lab.send_only(publisher, &rig::publish(topic, topic.as_bytes(), 2, packet_id));
    }
    // It has its packet id, and waits until the disk has that, too.
    lab.settle_mail();
    assert_eq!(lab.payloads(reader), Vec::<String>::new());
    set_rules(&mut lab, &rules_without("t/hidden"));
    lab.settle();
    assert_eq!(lab.payloads(reader), ["t/ok"]);
    assert_eq!(lab.total(|m| &m.dropped_denied), 1);
}

#[test]
fn what_was_let_go_of_because_of_rules_does_not_come_again_after_a_crash() {
    let mut lab = Lab::durable(1);
    let reader = lab.open(persistent("reader"));
    lab.subscribe(reader, "t/#", 2);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/hidden", b"1", 2, 1);
    lab.ack(publisher, AckKind::Pubrel, 1);
    assert_eq!(lab.payloads(reader), ["1"]);
    lab.cut(reader);
    set_rules(&mut lab, &rules_without("t/hidden"));
    let reader = lab.connect(persistent("reader"));
    let sent = lab.take_all(reader);
    // The client may use the packet id for something new from here on.
    assert_eq!(sent[1..], [Got::Ack(AckKind::Pubrel, 1, Reason::SUCCESS)]);
    lab.crash(Crash::Kill);
    let reader = lab.connect(persistent("reader"));
    assert_eq!(lab.take_all(reader)[1..], [Got::Ack(AckKind::Pubrel, 1, Reason::SUCCESS)]);
    lab.ack(reader, AckKind::Pubcomp, 1);
    assert!(!lab.is_closed(reader));
}
