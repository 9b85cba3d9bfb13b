//! Who gets what: shared, retained and plain subscriptions, and topic aliases, seen by clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use broker::{ConnectRequest, Event, Limits, Settings, ShareStrategy};
use codec::{
    AckKind, Connect, Packet, Properties, Property, PropertyBuf, Publish, QoS, Reason,
    RetainHandling, SubscribeOptions, Version, Will,
};
use policy::Access;
use rig::{
    Conn, Got, Lab, admit, connect_packet, level, of_version, persistent, publish, publish_numbers,
    read_all, request, request_with, retained, texts, window, with_limits,
};
use session::QueueLimits;
// What was found for the last topic.

/// Publishes on `t`, with a message on another topic before it if `alternates`; who got it.
fn takers(lab: &mut Lab, clients: [Conn; 3], alternates: bool) -> [usize; 2] {
    let [publisher, next_door, elsewhere] = clients;
    if alternates {
        lab.publish(publisher, "other", b"y", 0, 0);
    }
    lab.publish(publisher, "t", b"x", 0, 0);
    [next_door, elsewhere].map(|client| lab.payloads(client).len())
}

#[test]
fn a_change_of_subscriptions_counts_for_the_next_message_on_the_same_topic() {
    // With a listener of its own the publisher's shard always has somebody to deliver to.
    for (alternates, is_own) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut lab = Lab::new(2);
        let ids = [(0, "publisher"), (0, "next-door"), (1, "elsewhere")];
        let clients = ids.map(|(shard, name)| {
            let id = lab.id_on(shard, name);
            lab.open(request(&id))
        });
        let [publisher, next_door, elsewhere] = clients;
        if is_own {
            lab.subscribe(publisher, "t", 0);
        }
        assert_eq!(takers(&mut lab, clients, alternates), [0, 0]);
        lab.subscribe(next_door, "t", 0);
        assert_eq!(takers(&mut lab, clients, alternates), [1, 0]);
        assert_eq!(takers(&mut lab, clients, alternates), [1, 0]);
        lab.subscribe(elsewhere, "#", 0);
        let with_other = 1 + usize::from(alternates);
        assert_eq!(takers(&mut lab, clients, alternates), [1, with_other]);
        lab.unsubscribe(next_door, "t");
        assert_eq!(takers(&mut lab, clients, alternates), [0, with_other]);
        lab.subscribe(next_door, "$share/g/t", 0);
        assert_eq!(takers(&mut lab, clients, alternates), [1, with_other]);
        lab.unsubscribe(next_door, "$share/g/t");
        lab.cut(elsewhere);
        assert_eq!(takers(&mut lab, [publisher, next_door, next_door], alternates), [0, 0]);
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
fn a_group_keeps_messages_while_its_members_are_away() {
    let (mut lab, members, publisher) = group_lab(ShareStrategy::RoundRobin, &Limits::default());
    for member in &members {
        lab.cut(*member);
    }
    publish_numbers(&mut lab, publisher, "t/1", 0..30);
    let id = lab.id_on(2, "member");
    let back = lab.open(persistent(&id));
    assert_eq!(read_all(&mut lab, back), texts(0..30));
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
fn the_queue_of_a_group_drops_its_oldest_and_says_so() {
    let share_queue = QueueLimits { messages_max: 5, ..Limits::default().queue };
    let settings = Settings { share_queue, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let member = lab.open(persistent("member"));
    lab.subscribe(member, "$share/g/t", 1);
    lab.cut(member);
    let publisher = lab.open(request("publisher"));
    publish_numbers(&mut lab, publisher, "t", 0..8);
    assert_eq!(lab.total(|m| &m.dropped_group), 3);
    lab.pass_secs(1);
    let reported = lab.events.iter().filter_map(|event| match event {
        Event::GroupDropped { group, count, .. } => Some((&**group, *count)),
        _ => None,
    });
    assert_eq!(reported.collect::<Vec<_>>(), [("$share/g/t", 3)]);
    let member = lab.open(persistent("member"));
    assert_eq!(read_all(&mut lab, member), texts(3..8));
}

#[test]
fn a_subscription_and_a_group_on_the_same_filter_both_get_it() {
    let mut lab = Lab::new(2);
    let member_id = lab.id_on(0, "member");
    let member = lab.open(request(&member_id));
    lab.subscribe(member, "$share/g/t", 1);
    lab.subscribe(member, "t", 1);
    let publisher_id = lab.id_on(1, "publisher");
    let publisher = lab.open(request(&publisher_id));
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(read_all(&mut lab, member).len(), 2);
    lab.unsubscribe(member, "$share/g/t");
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(read_all(&mut lab, member).len(), 1);
    lab.unsubscribe(member, "t");
    lab.take_all(publisher);
    lab.publish(publisher, "t", b"x", 1, 2);
    let unmatched = Reason::NO_MATCHING_SUBSCRIBERS;
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Puback, 2, unmatched)]);
}

// Retained messages.

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
fn a_retained_message_in_a_page_does_not_follow_a_newer_live_one() {
    let mut lab = Lab::new(2);
    let home = lab.topic_on(1, "t");
    let subscriber_id = lab.id_on(0, "subscriber");
    let subscriber = lab.open(request(&subscriber_id));
    let publisher = lab.open(request(&lab.id_on(0, "publisher")));
    lab.send(publisher, &retained(&home, b"old", 0, 0));
    lab.subscribe_all(subscriber, &["t/+"], 0);
    // The page is asked for; before it comes, a newer message is delivered live.
    lab.deliver_mail();
    lab.send_only(publisher, &retained(&home, b"new", 0, 0));
    lab.settle();
    assert_eq!(lab.payloads(subscriber), ["new"]);
}

#[test]
fn mqtt_3_3_1_6_an_empty_payload_clears_what_is_retained() {
    let mut lab = Lab::new(2);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("t", b"x", 1, 1));
    let first = lab.open(request("first"));
    lab.subscribe(first, "t", 1);
    assert!(lab.received(first)[0].retain);
    lab.send(publisher, &retained("t", b"", 1, 1));
    assert!(!lab.received(first)[0].retain, "live, and not retained as published");
    let second = lab.open(request("second"));
    lab.subscribe(second, "t", 1);
    assert_eq!(lab.received(second), []);
    assert_eq!(lab.total(|m| &m.retained), 0);
}

#[test]
fn mqtt_3_3_1_10_retain_handling_1_asks_for_new_subscriptions_only() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("t", b"x", 1, 1));
    let client = lab.open(request("client"));
    let options = |retain_handling| SubscribeOptions {
        retain_handling,
        ..SubscribeOptions::new(QoS::AtLeastOnce)
    };
    for (handling, count) in [
        (RetainHandling::IfNew, 1),
        (RetainHandling::IfNew, 0),
        (RetainHandling::Always, 1),
        (RetainHandling::Never, 0),
    ] {
        lab.subscribe_with(client, "t", options(handling), None);
        assert_eq!(read_all(&mut lab, client).len(), count, "{handling:?}");
    }
}

// Subscriptions.

#[test]
fn overlapping_subscriptions_give_one_copy_with_all_identifiers_and_the_highest_qos() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.subscribe_with(client, "a/b", SubscribeOptions::new(level(0)), Some(1));
    lab.subscribe_with(client, "a/+", SubscribeOptions::new(level(2)), Some(2));
    lab.subscribe_with(client, "#", SubscribeOptions::new(level(1)), None);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a/b", b"x", 2, 1);
    let received = lab.received(client);
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].qos, 2);
    let identifiers: BTreeSet<u32> = received[0].identifiers.iter().copied().collect();
    assert_eq!(identifiers, [1, 2].into());
    // A new subscription in the place of an old one: no second copy, the new options.
    lab.subscribe_with(client, "a/+", SubscribeOptions::new(level(0)), Some(3));
    lab.unsubscribe(client, "a/b");
    lab.unsubscribe(client, "#");
    lab.publish(publisher, "a/b", b"x", 2, 2);
    let received = lab.received(client);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].qos, received[0].identifiers.as_slice()), (0, &[3][..]));
}

#[test]
fn limits_on_subscriptions_answer_with_their_codes() {
    let limits = Limits {
        subscriptions_per_client_max: 2,
        qos_max: QoS::AtLeastOnce,
        wildcard_available: false,
        shared_available: false,
        ..Limits::default()
    };
    let mut lab = Lab::new(1);
    let client = lab.open(request_with("client", limits.clone()));
    assert_eq!(lab.subscribe(client, "a", 2), 1, "granted less");
    assert_eq!(lab.subscribe(client, "#", 1), Reason::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED.0);
    let shared = Reason::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED.0;
    assert_eq!(lab.subscribe(client, "$share/g/a", 1), shared);
    assert_eq!(lab.subscribe(client, "b", 0), 0);
    assert_eq!(lab.subscribe(client, "c", 0), Reason::QUOTA_EXCEEDED.0);
    assert_eq!(lab.subscribe(client, "a", 0), 0, "it has this one already");
    let old = lab.open(with_limits(of_version(Version::V311, "old"), limits));
    assert_eq!(lab.subscribe(old, "#", 1), 0x80);
}

#[test]
fn publishes_beyond_what_is_offered_end_the_connection() {
    let limits = Limits {
        qos_max: QoS::AtMostOnce,
        retain_available: false,
        alias_in_max: 2,
        packet_bytes_max: 200,
        ..Limits::default()
    };
    let mut alias = PropertyBuf::new();
    alias.push(Property::TopicAlias(3));
    let aliased = Packet::Publish(Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: false,
        topic: "t",
        packet_id: 0,
        properties: alias.as_properties(),
        payload: b"",
    });
    let large = [0; 300];
    for (packet, reason) in [
        (publish("t", b"", 1, 1), Reason::QOS_NOT_SUPPORTED),
        (retained("t", b"", 0, 0), Reason::RETAIN_NOT_SUPPORTED),
        (aliased, Reason::TOPIC_ALIAS_INVALID),
        (publish("t", &large, 0, 0), Reason::PACKET_TOO_LARGE),
    ] {
        let mut lab = Lab::new(1);
        let client = lab.open(request_with("client", limits.clone()));
        lab.send(client, &packet);
        assert_eq!(lab.take_all(client), [Got::Disconnect(reason)]);
        assert!(lab.is_closed(client));
        assert_eq!(lab.total(|m| &m.violations), 1);
    }
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

// Aliases towards the client.

#[test]
fn topics_are_sent_by_alias_once_the_client_knows_them() {
    let mut lab = Lab::new(1);
    let client = lab.open(ConnectRequest { alias_max: 1, ..request("client") });
    lab.subscribe(client, "#", 0);
    let publisher = lab.open(request("publisher"));
    for topic in ["a", "b", "a"] {
        lab.publish(publisher, topic, b"", 0, 0);
    }
    let received = lab.received(client);
    let seen: Vec<_> = received.iter().map(|p| (p.topic.as_str(), p.alias)).collect();
    assert_eq!(seen, [("a", Some(1)), ("b", None), ("", Some(1))]);
}
