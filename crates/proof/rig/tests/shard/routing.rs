//! Who gets what: shared, retained and plain subscriptions, and topic aliases, seen by clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::rows::{
    asks, counts, does, gets, is_closed, numbers, opens, passes, posts, reads, reads_all,
    reads_count, reports, row, run, sends, settles, v311, within,
};
use broker::{ConnectRequest, Event, Limits, Settings, ShareStrategy};
use codec::{Connect, Properties, QoS, Reason, Will};
use policy::Access;
use rig::{
    Conn, Lab, admit, connect_packet, level, persistent, publish_numbers, read_all, request,
    request_with, retained, texts, window, with_limits,
};
use session::QueueLimits;

/// With a listener of its own the publisher's shard always has somebody to deliver to.
#[test]
fn what_was_found_for_the_last_topic() {
    for (alternates, is_own) in [(false, false), (false, true), (true, false), (true, true)] {
        // Publishes on `t`, with a message on another topic before it or without.
        let takes = move |near, far| {
            let other = ["publish other y"].into_iter().filter(|_| alternates);
            let counts = [reads_count("near@0", near), reads_count("far@1", far)];
            [sends("writer@0", other.chain(["publish t x"]))].into_iter().chain(counts)
        };
        let both = 1 + usize::from(alternates);
        let name = format!("subscriptions change; alternates {alternates}, own {is_own}");
        let own = ["subscribe t"].into_iter().filter(|_| is_own);
        run([row("", name, Lab::new(2))
            .steps([sends("writer@0", own)])
            .steps(takes(0, 0))
            .steps([sends("near@0", ["subscribe t"])])
            .steps(takes(1, 0))
            .steps(takes(1, 0))
            .steps([sends("far@1", ["subscribe #"])])
            .steps(takes(1, both))
            .steps([sends("near@0", ["unsubscribe t"])])
            .steps(takes(0, both))
            .steps([sends("near@0", ["subscribe $share/g/t"])])
            .steps(takes(1, both))
            .steps([sends("near@0", ["unsubscribe $share/g/t"]), sends("far@1", ["cut"])])
            .steps(takes(0, 0))]);
    }
}

// Shared subscriptions.

fn group_lab(strategy: ShareStrategy, limits: &Limits) -> (Lab, Vec<Conn>, Conn) {
    let settings = Settings { share_strategy: strategy, ..Settings::default() };
    let mut lab = Lab::with(3, settings, Access::open());
    let mut members = Vec::new();
    for number in 0..3 {
        let id = lab.id_on(number, "member");
        let member = lab.open(with_limits(persistent(&id), limits.clone()));
        lab.subscribe(member, "$share/g/t/#", 1);
        members.push(member);
    }
    let publisher = lab.open(request("publisher"));
    (lab, members, publisher)
}

/// Publishes 30 messages; how many each member got, once all are acknowledged.
fn shares(lab: &mut Lab, members: &[Conn], publisher: Conn, topic: &str) -> Vec<usize> {
    publish_numbers(lab, publisher, topic, 0..30);
    let got: Vec<Vec<String>> = members.iter().map(|member| read_all(lab, *member)).collect();
    let all: BTreeSet<&String> = got.iter().flatten().collect();
    assert_eq!(all.len(), 30, "each message once: {got:?}");
    assert_eq!(got.iter().map(Vec::len).sum::<usize>(), 30);
    got.iter().map(Vec::len).collect()
}

#[test]
fn every_strategy_gives_each_message_to_one_member() {
    use ShareStrategy::{HashClient, HashTopic, LeastInFlight, Random, RoundRobin, Sticky};
    for strategy in [Random, RoundRobin, LeastInFlight, Sticky, HashClient, HashTopic] {
        let (mut lab, members, publisher) = group_lab(strategy, &Limits::default());
        let counts = shares(&mut lab, &members, publisher, "t/1");
        let busy = counts.iter().filter(|count| **count > 0).count();
        match strategy {
            RoundRobin => assert_eq!(counts, [10, 10, 10]),
            Random => assert_eq!(busy, 3, "{counts:?}"),
            LeastInFlight => assert_eq!(counts, [10, 10, 10]),
            Sticky | HashClient | HashTopic => assert_eq!(busy, 1, "{counts:?}"),
        }
    }
}

#[test]
fn an_offline_member_gets_nothing_and_the_others_everything() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &Limits::default());
    lab.cut(members[1]);
    let counts = shares(&mut lab, &[members[0], members[2]], publisher, "t/1");
    assert_eq!(counts, [15, 15]);
}

#[test]
fn a_member_that_does_not_acknowledge_does_not_keep_messages_from_the_others() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &window(2));
    publish_numbers(&mut lab, publisher, "t/1", 0..30);
    // Member 0 never acknowledges; two are stuck with it until it leaves.
    let mut got: Vec<String> = Vec::new();
    for _ in 0..20 {
        for member in &members[1..] {
            got.extend(read_all(&mut lab, *member));
        }
    }
    assert_eq!(got.len(), 28);
    lab.cut(members[0]);
    for member in &members[1..] {
        got.extend(read_all(&mut lab, *member));
    }
    let all: BTreeSet<String> = got.into_iter().collect();
    assert_eq!(all, texts(0..30).into_iter().collect(), "what it did not acknowledge went on");
    assert_eq!(lab.total(|m| &m.dropped_group), 0);
}

#[test]
fn a_member_with_thousands_of_other_subscriptions_gets_what_its_groups_keep() {
    let others: Vec<String> = (0..5_000).map(|number| format!("other/{number}")).collect();
    for others in [&others[..3], &others] {
        let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &window(2));
        for member in &members[1..] {
            lab.cut(*member);
        }
        let member = members[0];
        lab.subscribe_all(member, others, 1);
        lab.subscribe(member, "$share/another/elsewhere", 1);
        lab.settle();
        lab.take_all(member);
        // Two are under way; its acknowledgements fetch the others from where they are kept.
        for topic in ["t/1", "elsewhere"] {
            publish_numbers(&mut lab, publisher, topic, 0..30);
        }
        let mut got = read_all(&mut lab, member);
        let mut all = [texts(0..30), texts(0..30)].concat();
        got.sort_unstable();
        all.sort_unstable();
        assert_eq!(got, all);
    }
}

#[test]
fn queues_of_groups() {
    let share_queue = QueueLimits { messages_max: 5, ..Limits::default().queue };
    let five = Settings { share_queue, ..Settings::default() };
    run([
        row("", "a group keeps messages while its members are away", Lab::new(3)).steps([
            sends("member@0", ["kept", "subscribe $share/g/t/# qos1", "cut"]),
            sends("member@1", ["kept", "subscribe $share/g/t/# qos1", "cut"]),
            numbers("writer", "t/1", 0..30),
            sends("member@1", ["kept"]),
            reads_all("member@1", 0..30),
        ]),
        row("", "its queue drops the oldest", Lab::with(2, five, Access::open())).steps([
            sends("member", ["kept", "subscribe $share/g/t qos1", "cut"]),
            numbers("writer", "t", 0..8),
            counts(|m| &m.dropped_group, 3),
            passes(1),
            reports(is_of_group, 1),
            sends("member", ["kept"]),
            reads_all("member", 3..8),
        ]),
        row("", "a subscription and a group on the same filter both get it", Lab::new(2)).steps([
            sends("member@0", ["subscribe $share/g/t qos1", "subscribe t qos1"]),
            asks("writer@1", "publish t x qos1", ["puback 1"]),
            reads("member@0", ["x", "x"]),
            sends("member@0", ["unsubscribe $share/g/t"]),
            asks("writer@1", "publish t y qos1", ["puback 1"]),
            reads("member@0", ["y"]),
            sends("member@0", ["unsubscribe t"]),
            asks("writer@1", "publish t z qos1", ["puback 1 no_matching_subscribers"]),
        ]),
    ]);
}

fn is_of_group(event: &Event) -> bool {
    matches!(event, Event::GroupDropped { group, count: 3, .. } if &**group == "$share/g/t")
}

// Retained messages and subscriptions.

#[test]
fn ten_thousand_retained_messages_reach_a_slow_reader() {
    let mut lab = Lab::new(4);
    let publisher = lab.open(request("publisher"));
    for number in 0..10_000 {
        lab.send_only(publisher, &retained(&format!("t/{number}"), b"x", 1, 1));
    }
    lab.settle();
    let slow = Limits { outbox_bytes_max: 500, ..window(7) };
    let subscriber = lab.open(request_with("subscriber", slow));
    lab.subscribe(subscriber, "t/#", 1);
    assert_eq!(read_all(&mut lab, subscriber).len(), 10_000);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 0);
}

#[test]
fn retained_messages() {
    run([row("", "a page does not bring what is older than a live message", Lab::new(2)).steps([
        sends("writer@0", ["publish t@1 old retain"]),
        // The page is asked for; before it comes, a newer message is delivered live.
        posts("reader@0", "subscribe t/+"),
        does(|stage| assert!(stage.lab.deliver_mail())),
        posts("writer@0", "publish t@1 new retain"),
        settles(),
        reads("reader@0", ["new"]),
    ])]);
}

#[test]
fn subscriptions() {
    let limits = Limits {
        subscriptions_per_client_max: 2,
        qos_max: QoS::AtLeastOnce,
        wildcard_available: false,
        shared_available: false,
        ..Limits::default()
    };
    let old = limits.clone();
    run([
        row("", "overlapping subscriptions give one copy", Lab::new(1)).steps([
            sends("reader", ["subscribe a/b sub1", "subscribe a/+ qos2 sub2", "subscribe # qos1"]),
            sends("writer", ["publish a/b x qos2 id1"]),
            gets("reader", ["publish a/b x qos2 id1 sub1,2"]),
            // A new one in the place of an old one: no second copy, the new options.
            sends("reader", ["subscribe a/+ sub3", "unsubscribe a/b", "unsubscribe #"]),
            sends("writer", ["publish a/b x qos2 id2"]),
            gets("reader", ["publish a/b x sub3"]),
        ]),
        row("", "limits on subscriptions answer with their codes", Lab::new(1)).steps([
            opens("client", within(limits)),
            asks("client", "subscribe a qos2", ["suback 1: 1"]),
            asks("client", "subscribe #", ["suback 1: wildcard_subscriptions_not_supported"]),
            asks(
                "client",
                "subscribe $share/g/a",
                ["suback 1: shared_subscriptions_not_supported"],
            ),
            sends("client", ["subscribe b"]),
            asks("client", "subscribe c", ["suback 1: quota_exceeded"]),
            // It has this one already.
            sends("client", ["subscribe a"]),
            opens("old", move |request| v311(with_limits(request, old.clone()))),
            asks("old", "subscribe # qos1", ["suback 1: unspecified_error"]),
        ]),
        row("", "topics are sent by alias once the client knows them", Lab::new(1)).steps([
            opens("reader", |request| ConnectRequest { alias_max: 1, ..request }),
            sends("reader", ["subscribe #"]),
            sends("writer", ["publish a x", "publish b x", "publish a x"]),
            gets("reader", ["publish a x alias1", "publish b x", "publish \"\" x alias1"]),
        ]),
    ]);
}

// What is not offered.

#[test]
fn publishes_beyond_what_is_offered() {
    let limits = Limits {
        qos_max: QoS::AtMostOnce,
        retain_available: false,
        alias_in_max: 2,
        packet_bytes_max: 200,
        ..Limits::default()
    };
    let cases = [
        ("publish t x qos1", "disconnect qos_not_supported"),
        ("publish t x retain", "disconnect retain_not_supported"),
        ("publish t x alias3", "disconnect topic_alias_invalid"),
        ("publish t x*300", "disconnect packet_too_large"),
    ];
    run(cases.map(|(packet, answer)| {
        row("", format!("{packet} ends the connection"), Lab::new(1)).steps([
            opens("client", within(limits.clone())),
            asks("client", packet, [answer]),
            is_closed("client"),
            counts(|m| &m.violations, 1),
        ])
    }));
}

#[test]
fn admission_refuses_what_the_limits_do_not_allow() {
    let limits = Arc::new(Limits {
        client_id_bytes_max: 10,
        will_payload_bytes_max: 10,
        qos_max: QoS::AtLeastOnce,
        retain_available: false,
        ..Limits::default()
    });
    let will = |qos, retain, payload| {
        let properties = Properties::EMPTY;
        Some(Will { topic: "t", payload, qos: level(qos), retain, properties })
    };
    let plain = connect_packet("id");
    for (connect, reason) in [
        (connect_packet("eleven chars"), Reason::CLIENT_IDENTIFIER_NOT_VALID),
        (Connect { will: will(0, false, &[0; 11]), ..plain }, Reason::PACKET_TOO_LARGE),
        (Connect { will: will(2, false, b""), ..plain }, Reason::QOS_NOT_SUPPORTED),
        (Connect { will: will(0, true, b""), ..plain }, Reason::RETAIN_NOT_SUPPORTED),
    ] {
        assert_eq!(admit(&connect, &limits).expect_err("beyond a limit").reason, reason);
    }
    assert!(admit(&Connect { will: will(1, false, &[0; 10]), ..plain }, &limits).is_ok());
}
