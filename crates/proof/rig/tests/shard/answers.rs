//! What a publish waits for has names: an answer that comes again counts once.

use broker::command::{Answer, Command, Publication};
use broker::{ConnectRequest, Durability, Scope, Settings};
use codec::{AckKind, QoS, Reason};
use rig::{Conn, Got, Lab, again, persistent, publish, queue, request, retained, with_limits};
use session::Overflow;

use crate::wills::cut_only;

/// Two sessions on the shards 1 and 2 get what this client publishes on `t`, on shard 0. All
/// answers come several times.
fn two_who_answer(lab: &mut Lab, publisher: impl Fn(&str) -> ConnectRequest) -> Conn {
    for shard in [1, 2] {
        let id = lab.id_on(shard, "subscriber");
        let roomy = with_limits(persistent(&id), queue(10, Overflow::Reject));
        let subscriber = lab.open(roomy);
        lab.subscribe(subscriber, "t", 2);
        lab.cut(subscriber);
    }
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(publisher(&id));
    lab.repeats_answers = true;
    publisher
}

#[test]
fn a_shard_that_answers_again_does_not_answer_for_another() {
    for (qos, kind) in [(1, AckKind::Puback), (2, AckKind::Pubrec)] {
        let mut lab = Lab::durable(3);
        let conn = two_who_answer(&mut lab, request);
        lab.send_only(conn, &publish("t", b"1", qos, 5));
        lab.settle_but(2);
        assert_eq!(lab.take_all(conn), [], "one of two has answered");
        lab.settle();
        assert_eq!(lab.acks(conn), [(kind, 5, Reason::SUCCESS)]);
    }
}

#[test]
fn a_publish_that_was_taken_on_is_handed_over_when_each_shard_has_it() {
    let mut lab = Lab::durable(3);
    let conn = two_who_answer(&mut lab, persistent);
    lab.send_only(conn, &publish("t", b"1", 2, 5));
    lab.settle_but(2);
    assert_eq!((lab.acks(conn), lab.shards[0].waits().handovers), (vec![], 1));
    lab.settle();
    let accepted = (AckKind::Pubrec, 5, Reason::SUCCESS);
    assert_eq!((lab.acks(conn), lab.shards[0].waits().handovers), (vec![accepted], 0));
}

#[test]
fn what_is_awaited_after_its_connection_is_awaited_from_each_shard() {
    let settings = Settings { rejects: true, ..Settings::default() };
    let mut lab = Lab::with(3, settings, policy::Access::open());
    let conn = two_who_answer(&mut lab, persistent);
    lab.send_only(conn, &publish("t", b"1", 2, 5));
    cut_only(&mut lab, conn);
    lab.settle_but(2);
    assert_eq!(lab.shards[0].waits().orphans, 1, "one of two has answered");
    lab.settle();
    assert_eq!(lab.shards[0].waits().orphans, 0);
}

#[test]
fn an_operator_is_answered_when_each_shard_has() {
    let mut lab = Lab::durable(3);
    two_who_answer(&mut lab, request);
    let publication = Publication {
        topic: "t".into(),
        properties: Box::default(),
        payload: b"1".as_slice().into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        expiry_secs: None,
        durability: Durability::Fsync,
    };
    let command = Command::Publish(publication);
    lab.shards[0].on_command(9, Scope::FIRST, &command, lab.now_ms);
    lab.settle_but(2);
    assert!(lab.shards[0].effects().answers.is_empty(), "one of two has answered");
    lab.settle();
    let answers = std::mem::take(&mut lab.shards[0].effects_mut().answers);
    assert!(matches!(answers[..], [(9, Answer::Published(Reason::SUCCESS))]), "{answers:?}");
}

#[test]
fn each_group_answers_for_itself_also_where_many_have_their_home_on_one_shard() {
    let mut lab = Lab::durable(3);
    let id = lab.id_on(1, "member");
    let member = lab.open(persistent(&id));
    let shares: Vec<String> = (0..70).map(|number| format!("$share/g{number}/t")).collect();
    lab.subscribe_all(member, &shares, 1);
    lab.cut(member);
    let id = lab.id_on(0, "publisher");
    let conn = lab.open(request(&id));
    lab.repeats_answers = true;
    lab.send_only(conn, &publish("t", b"1", 1, 5));
    lab.settle_but(2);
    assert_eq!(lab.take_all(conn), [], "the homes on one shard have not answered");
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Ack(AckKind::Puback, 5, Reason::SUCCESS)]);
}

#[test]
fn a_publish_in_the_line_is_not_accepted_before_those_behind_the_line_answer() {
    let settings = Settings { retained_messages_max: 1, ..Settings::default() };
    let mut lab = Lab::durable_with(3, settings);
    let (topic, filler) = (lab.topic_on(2, "t"), lab.topic_on(2, "filler"));
    let id = lab.id_on(0, "publisher");
    let first = lab.open(persistent(&id));
    lab.send(first, &retained(&filler, b"kept", 1, 1));
    lab.disks_stand_still = true;
    lab.send_only(first, &publish(&topic, b"before it", 2, 2));
    lab.send_only(first, &retained(&topic, b"too many", 2, 3));
    cut_only(&mut lab, first);
    lab.disks_stand_still = false;
    lab.settle_but(2);
    let second = lab.connect_only(persistent(&id));
    lab.send_only(second, &again(retained(&topic, b"too many", 2, 3)));
    lab.flush();
    lab.take(second).expect("a CONNACK");
    assert_eq!(lab.take_all(second), [], "the home of the topic has not answered");
    lab.settle();
    let refused = Got::Ack(AckKind::Pubrec, 3, Reason::QUOTA_EXCEEDED);
    assert_eq!(lab.take_all(second), [refused]);
}

#[test]
fn a_page_of_retained_messages_that_comes_again_is_no_other_page() {
    let mut lab = Lab::new(2);
    let publisher = lab.open(request("publisher"));
    let topics: Vec<String> = (0..250).map(|number| format!("r/{number}")).collect();
    topics.iter().for_each(|topic| lab.send(publisher, &retained(topic, b"kept", 0, 0)));
    let reader = lab.open(request("reader"));
    lab.repeats_answers = true;
    lab.subscribe_all(reader, &["r/#", "r/1"], 0);
    lab.settle();
    let mut received: Vec<String> =
        lab.received(reader).into_iter().map(|received| received.topic).collect();
    received.sort_unstable();
    let mut expected = [topics, vec!["r/1".to_owned()]].concat();
    expected.sort_unstable();
    assert_eq!(received, expected);
    assert!(lab.shards.iter().all(|shard| shard.waits().are_over()));
}
