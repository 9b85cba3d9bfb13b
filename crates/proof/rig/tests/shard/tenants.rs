//! Many users of one namespace have no more than it: another tenant finds room whatever they take.

use broker::{ConnectRequest, Quota, Scope, Settings};
use codec::{AckKind, Reason};
use policy::Access;
use rig::{Conn, Got, Lab, SCOPES, persistent, publish, queue, request, retained, with_limits};
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
    let journal = storage::Settings { log_bytes_max: 16 * 1024 * 1024, ..rig::journal_settings() };
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

const SHARDS: u16 = 2;

/// Journals of 2 MiB each, and these namespaces are configured.
fn town(scopes: &[Scope]) -> Lab {
    let journal = storage::Settings { log_bytes_max: 2 * 1024 * 1024, ..rig::journal_settings() };
    let lab = Lab::durable_by(SHARDS, Settings::default(), journal);
    for scope in scopes {
        lab.shared.open_space(*scope);
    }
    lab
}

/// What may live in one of the journals.
fn most(lab: &Lab) -> u64 {
    lab.shards[0].journal().expect("it has one").stats().live_bytes_max
}

fn id_on(lab: &Lab, scope: Scope, shard: u16, name: &str) -> String {
    let ids = (0..).map(|number| format!("{name}-{number}"));
    let mut ids =
        ids.filter(|id| lab.shared.place_of_client(broker::Name::new(scope, id)) == shard);
    ids.next().expect("one of them")
}

/// A session on a shard that is away, and gets what is published on `t`.
fn leave_session_on(lab: &mut Lab, scope: Scope, user: &str, shard: u16) -> bool {
    let id = id_on(lab, scope, shard, &format!("{user}-away"));
    let away = lab.connect(of(scope, user, persistent(&id)));
    let answers = lab.take_all(away);
    if !matches!(answers[..], [Got::Connack { reason: Reason::SUCCESS, .. }, ..]) {
        return false;
    }
    let granted = lab.subscribe(away, &format!("t/{shard}/#"), 1);
    lab.cut(away);
    granted == 1
}

/// Publishes until that is refused many times, to the session on a shard or as retained messages;
/// returns how many bytes were taken.
fn fill(lab: &mut Lab, members: &[Conn], topic: impl Fn(u32) -> String, retains: bool) -> u64 {
    const PAYLOAD: [u8; 1_000] = [b'x'; 1_000];
    let (mut taken, mut refused) = (0, 0);
    for (number, conn) in (0..).zip(members.iter().cycle()) {
        let topic = topic(number);
        let packet = if retains { retained } else { publish };
        lab.send(*conn, &packet(&topic, &PAYLOAD, 1, 1));
        match answer(lab, *conn).is_error() {
            true => refused += 1,
            false => taken += PAYLOAD.len() as u64,
        }
        assert!(
            lab.shards
                .iter()
                .all(|shard| { !matches!(shard.journal_status(), Some(storage::Status::Full(_))) })
        );
        if refused > 2 * members.len() {
            return taken;
        }
    }
    unreachable!("it goes on without an end")
}

/// Whoever fills the journals first, in one shard or in all, and by whatever, another configured
/// namespace finds its part in each of them.
#[test]
fn a_late_tenant_finds_its_reserve_in_each_journal() {
    for (first, late) in [(CROWD, TENANT), (Scope::FIRST, TENANT), (CROWD, Scope::FIRST)] {
        for (shards, retains) in [(vec![0], false), (vec![0, 1], false), (vec![0, 1], true)] {
            let what = format!("{first:?}, {late:?}, {shards:?}, retained {retains}");
            let mut lab = town(&[CROWD, TENANT]);
            // Of three namespaces, equal parts of half of it; a user has nearly all of its own's.
            let reserve = most(&lab) / 6;
            for shard in &shards {
                assert!(leave_session_on(&mut lab, first, "u0", *shard));
            }
            let members: Vec<Conn> = (0..USERS)
                .map(|number| {
                    lab.open(of(first, &format!("u{number}"), request(&format!("u{number}"))))
                })
                .collect();
            let topic = |number: u32| match retains {
                true => format!("kept/{number}"),
                false => format!("t/{}/x", shards[number as usize % shards.len()]),
            };
            let taken = fill(&mut lab, &members, topic, retains);
            let all = most(&lab) * shards.len() as u64;
            assert!(taken > all / 100 * 55 && taken < all / 100 * 68, "{what}: {taken} of {all}");
            let anna = lab.open(of(late, "anna", request("anna")));
            for shard in 0..SHARDS {
                assert!(leave_session_on(&mut lab, late, "anna", shard), "{what}, session");
                let own = fill(&mut lab, &[anna], |_| format!("t/{shard}/y"), false);
                assert!(own > reserve / 100 * 80, "{what}, {shard}: {own} of {reserve}");
            }
            // What is still free of the other parts is not for the first one.
            assert_eq!(fill(&mut lab, &members[..1], topic, retains), 0, "{what}");
        }
    }
}

#[test]
fn a_late_tenant_finds_room_for_what_it_retains_in_each_journal() {
    let mut lab = town(&[CROWD, TENANT]);
    assert!(leave_session_on(&mut lab, CROWD, "u0", 0));
    assert!(leave_session_on(&mut lab, CROWD, "u0", 1));
    let members = crowd(&mut lab);
    fill(&mut lab, &members, |number| format!("t/{}/x", number % 2), false);
    let anna = lab.open(of(TENANT, "anna", request("anna")));
    assert_eq!(taken_of_200(&mut lab, anna, |id| format!("kept/{id}"), true), 200);
}

/// The first one is limited to so much that the rest is for the other one.
#[test]
fn what_a_limit_leaves_of_the_journals_is_for_the_others() {
    let mut lab = town(&[CROWD, TENANT]);
    let most = most(&lab);
    let space = lab.shared.spaces.get(CROWD).expect("it is open");
    space.set_limit(Quota::LoggedBytes, Some(most / 10));
    for shard in 0..SHARDS {
        assert!(leave_session_on(&mut lab, CROWD, "u0", shard));
        assert!(leave_session_on(&mut lab, TENANT, "anna", shard));
    }
    let members = crowd(&mut lab);
    let taken = fill(&mut lab, &members, |number| format!("t/{}/x", number % 2), false);
    assert!(taken < most / 10);
    let anna = lab.open(of(TENANT, "anna", request("anna")));
    let taken = fill(&mut lab, &[anna], |number| format!("t/{}/x", number % 2), false);
    // Nobody but the default namespace has a reserve that is free.
    assert!(taken > 2 * most / 100 * 65, "{taken} of {most}");
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
