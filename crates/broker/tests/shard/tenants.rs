//! Many users of one namespace have no more than it: another tenant finds room whatever they take.

use crate::lab::{
    Conn, Got, Lab, SCOPES, persistent, publish, queue, request, retained, with_limits,
};
use broker::{ConnectRequest, Quota, Scope, Settings};
use codec::{AckKind, Reason};
use policy::Access;
use session::Overflow;

const CROWD: Scope = SCOPES[0];
const TENANT: Scope = SCOPES[1];
const USERS: usize = 150;

fn of(scope: Scope, user: &str, request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { scope, username: Some(user.into()), ..request }
}

/// Each user of the crowd with one connection.
fn crowd(lab: &mut Lab) -> Vec<Conn> {
    let member = |number: usize| {
        let name = format!("u{number}");
        lab.open(of(CROWD, &name, request(&name)))
    };
    (0..USERS).map(member).collect()
}

fn answer(lab: &mut Lab, conn: Conn) -> Reason {
    let answers = lab.take_all(conn);
    let found = answers.iter().find_map(|got| match got {
        Got::Ack(AckKind::Puback, _, reason) => Some(*reason),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("expected a PUBACK, got {answers:?}"))
}

/// A session that is away and gets what is published on `t`.
fn leave_session(lab: &mut Lab, scope: Scope, user: &str) {
    let away = lab.open(of(scope, user, persistent(&format!("{user}-away"))));
    lab.subscribe(away, "t", 1);
    lab.cut(away);
}

/// How many of 200 messages are acknowledged without an error.
fn taken_of_200(lab: &mut Lab, conn: Conn, topic: impl Fn(u16) -> String, retain: bool) -> usize {
    let send = |lab: &mut Lab, id: u16| {
        let topic = topic(id);
        let packet = if retain { retained } else { publish };
        lab.send(conn, &packet(&topic, &[b'x'; 1_000], 1, id));
        !answer(lab, conn).is_error()
    };
    (1..=200).filter(|id| send(lab, *id)).count()
}

#[test]
fn a_crowd_that_queues_leaves_the_queue_of_another_tenant_its_room() {
    let settings = Settings { queues_bytes_max: 2_000_000, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    for number in 0..USERS {
        leave_session(&mut lab, CROWD, &format!("u{number}"));
    }
    let publisher = lab.open(of(CROWD, "u0", request("u0")));
    for id in 1..=40 {
        lab.publish(publisher, "t", &[b'x'; 1_000], 1, id);
    }
    leave_session(&mut lab, TENANT, "anna");
    let anna = lab.open(of(TENANT, "anna", request("anna")));
    assert_eq!(taken_of_200(&mut lab, anna, |_| "t".into(), false), 200);
    let back = lab.open(of(TENANT, "anna", persistent("anna-away")));
    let mut received = 0;
    loop {
        let some = lab.received(back);
        if some.is_empty() {
            break;
        }
        received += some.len();
        for message in some {
            lab.ack(back, AckKind::Puback, message.packet_id);
        }
    }
    assert_eq!(received, 200);
}

#[test]
fn a_crowd_that_retains_leaves_another_tenant_its_room() {
    let per_user = [None, Some(300_000)];
    for retained_bytes_per_owner_max in per_user {
        let settings = Settings {
            retained_bytes_max: 1_000_000,
            retained_bytes_per_owner_max,
            ..Settings::default()
        };
        let mut lab = Lab::with(2, settings, Access::open());
        for (number, conn) in crowd(&mut lab).into_iter().enumerate() {
            for id in 1..=8 {
                let topic = format!("{number}/{id}");
                lab.send(conn, &retained(&topic, &[b'x'; 1_000], 1, id));
            }
        }
        let anna = lab.open(of(TENANT, "anna", request("anna")));
        let taken = taken_of_200(&mut lab, anna, |id| format!("t/{id}"), true);
        assert!(taken >= 140, "{taken}");
        let first = lab.open(of(Scope::FIRST, "bob", request("bob")));
        let taken = taken_of_200(&mut lab, first, |id| format!("t/{id}"), true);
        assert!(taken >= 60, "{taken}: the default namespace is one, too");
    }
}

#[test]
fn a_crowd_that_fills_the_journals_leaves_another_tenant_its_room() {
    let journal =
        storage::Settings { log_bytes_max: 16 * 1024 * 1024, ..crate::lab::journal_settings() };
    let mut lab = Lab::durable_by(1, Settings::default(), journal);
    leave_session(&mut lab, CROWD, "u0");
    leave_session(&mut lab, TENANT, "anna");
    let members = crowd(&mut lab);
    for id in 1..=60 {
        for conn in &members {
            lab.send(*conn, &publish("t", &[b'x'; 1_000], 1, id));
            lab.take_all(*conn);
        }
    }
    let anna = lab.open(of(TENANT, "anna", request("anna")));
    assert_eq!(taken_of_200(&mut lab, anna, |_| "t".into(), false), 200);
}

#[test]
fn a_crowd_of_sessions_leaves_another_tenant_room_for_its_own() {
    let settings = Settings { sessions_bytes_max: 200_000, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    let mut opens = |scope, user: &str, id: &str| {
        let conn = lab.connect(of(scope, user, persistent(id)));
        let is_open = matches!(lab.take(conn), Some(Got::Connack { reason: Reason::SUCCESS, .. }));
        lab.cut(conn);
        is_open
    };
    for number in 0..2_000 {
        opens(CROWD, &format!("u{}", number % USERS), &format!("c{number}"));
    }
    let opened = (0..20).filter(|id| opens(TENANT, "anna", &format!("c{id}"))).count();
    assert_eq!(opened, 20);
}

#[test]
fn a_namespace_has_limits_of_queued_logged_and_session_bytes() {
    let mut lab = Lab::durable(1);
    let space = lab.shared.spaces.get(CROWD).expect("it is open");
    leave_session(&mut lab, CROWD, "u0");
    let used = space.count(Quota::SessionBytes);
    assert!(used > 0);
    space.set_limit(Quota::SessionBytes, Some(used));
    let refused = lab.connect(of(CROWD, "u1", persistent("more")));
    assert!(matches!(lab.take(refused), Some(Got::Connack { reason: Reason::QUOTA_EXCEEDED, .. })));
    assert_eq!(space.refused(Quota::SessionBytes), 1);
    space.set_limit(Quota::SessionBytes, None);
    space.set_limit(Quota::LoggedBytes, Some(10_000));
    let members = ["u1", "u2"].map(|user| lab.open(of(CROWD, user, request(user))));
    let mut taken = 0;
    for id in 1..=10 {
        for conn in members {
            lab.send(conn, &publish("t", &[b'x'; 1_000], 1, id));
            taken += usize::from(answer(&mut lab, conn) == Reason::SUCCESS);
        }
    }
    assert!((7..=10).contains(&taken), "{taken}");
    assert!(space.count(Quota::LoggedBytes) <= 10_000);
    let refused = 20 - taken as u64;
    assert_eq!(space.refused(Quota::LoggedBytes), refused);
    // What no kept session waits for is taken, and does not count as refused.
    lab.send(members[0], &publish("other", b"x", 1, 99));
    assert!(!answer(&mut lab, members[0]).is_error());
    assert_eq!(space.refused(Quota::LoggedBytes), refused);
    leave_session(&mut lab, TENANT, "anna");
    let anna = lab.open(of(TENANT, "anna", request("anna")));
    assert_eq!(taken_of_200(&mut lab, anna, |_| "t".into(), false), 200);
}

#[test]
fn a_rate_of_a_namespace_holds_with_a_hundred_connections_which_take_turns() {
    for quota in [Quota::MessagesIn, Quota::MessagesOut] {
        let mut lab = Lab::new(2);
        let space = lab.shared.spaces.get(CROWD).expect("it is open");
        space.set_limit(quota, Some(100));
        let reader = lab.open(of(CROWD, "reader", request("reader")));
        lab.subscribe(reader, "t/#", 0);
        let members: Vec<Conn> = crowd(&mut lab).into_iter().take(100).collect();
        let (begin_ms, mut taken) = (lab.now_ms, vec![0; members.len()]);
        // Each sends 200 at once, and says so whenever it is looked at.
        for (number, conn) in members.iter().enumerate() {
            for _ in 0..200 {
                lab.send_only(*conn, &publish(&format!("t/{number}"), b"x", 0, 0));
            }
            lab.settle();
        }
        for second in 1..=30 {
            lab.pass_secs(1);
            assert_eq!(lab.now_ms, begin_ms + second * 1_000);
            for conn in &members {
                lab.bytes(*conn, &[]);
            }
            lab.settle();
            for message in lab.received(reader) {
                let number: usize = message.topic[2..].parse().expect("a number");
                taken[number] += 1;
            }
        }
        let all: usize = taken.iter().sum();
        assert!((2_000..=3_300).contains(&all), "{quota:?}: {all} in 30 s at 100 per second");
        let (least, most) = (taken.iter().min(), taken.iter().max());
        let first = taken.iter().filter(|count| **count > 130).count();
        assert!(*least.expect("some") >= 15, "{quota:?}: {least:?} to {most:?}, {first} of them");
    }
}

#[test]
fn publishes_that_never_come_make_nobody_wait() {
    let mut lab = Lab::new(1);
    let space = lab.shared.spaces.get(CROWD).expect("it is open");
    space.set_limit(Quota::MessagesIn, Some(10));
    let open =
        |lab: &mut Lab, number: usize| lab.open(of(CROWD, "u", request(&format!("c{number}"))));
    for _ in 0..20 {
        for number in 0..50 {
            // It takes over a connection whose PUBLISH waits.
            let conn = open(&mut lab, number);
            lab.send_only(conn, &publish("t", b"x", 1, 1));
        }
        lab.settle();
    }
    (0..50).for_each(|number| {
        open(&mut lab, number);
    });
    let patient = open(&mut lab, 51);
    lab.send_only(patient, &publish("t", b"x", 1, 1));
    lab.settle();
    lab.pass_secs(3);
    lab.bytes(patient, &[]);
    lab.settle();
    assert_eq!(answer(&mut lab, patient), Reason::NO_MATCHING_SUBSCRIBERS);
}

#[test]
fn who_subscribes_at_full_speed_delays_publishers_for_a_moment_only() {
    let mut lab = Lab::new(1);
    let space = lab.shared.spaces.get(CROWD).expect("it is open");
    space.set_limit(Quota::BytesIn, Some(1_000));
    let subscriber = lab.open(of(CROWD, "u0", request("subscriber")));
    for _ in 0..200 {
        lab.subscribe(subscriber, &"f".repeat(1_000), 0);
    }
    let publisher = lab.open(of(CROWD, "u1", request("publisher")));
    lab.send_only(publisher, &publish("t", b"x", 1, 1));
    lab.settle();
    lab.pass_secs(3);
    lab.bytes(publisher, &[]);
    lab.settle();
    assert_eq!(answer(&mut lab, publisher), Reason::NO_MATCHING_SUBSCRIBERS);
}

#[test]
fn a_publish_that_a_limit_of_queued_bytes_refuses_or_drops_counts_once() {
    for overflow in [Overflow::Reject, Overflow::DropNewest, Overflow::DropOldest] {
        let rejects = overflow == Overflow::Reject;
        let mut lab = Lab::with(1, Settings { rejects, ..Settings::default() }, Access::open());
        let space = lab.shared.spaces.get(CROWD).expect("it is open");
        let kept = with_limits(persistent("kept"), queue(1_000, overflow));
        let conn = lab.open(of(CROWD, "u0", kept));
        lab.subscribe(conn, "t", 1);
        lab.cut(conn);
        let publisher = lab.open(of(CROWD, "u1", request("publisher")));
        let publish = |lab: &mut Lab, id| {
            lab.send(publisher, &publish("t", &[b'x'; 1_000], 1, id));
            lab.take_all(publisher);
        };
        publish(&mut lab, 1);
        publish(&mut lab, 2);
        assert_eq!(space.refused(Quota::QueuedBytes), 0, "{overflow:?}");
        space.set_limit(Quota::QueuedBytes, Some(space.count(Quota::QueuedBytes)));
        for id in 3..8 {
            publish(&mut lab, id);
            assert_eq!(space.refused(Quota::QueuedBytes), u64::from(id) - 2, "{overflow:?}");
        }
    }
}
