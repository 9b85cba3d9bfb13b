//! What operators ask of shards, and what comes of it.

use std::collections::BTreeSet;

use broker::command::{
    Answer, Asker, Command, PAGE_LOOKS, PAGE_ROWS, Publication, Question, SubscriptionPlace,
    Wanted, WantedSubscriptions, Whom,
};
use broker::{Durability, Event, Mail, Memory, Name, Scope, Settings};
use codec::{QoS, Reason};
use policy::{Access, Action, Manner, Permission, Who};
use rig::{Got, Lab, persistent, request, retained, rule};
use session::{Message, MessageParts};
use storage::testing::Crash;

fn message(topic: &str, qos: QoS) -> Publication {
    Publication {
        topic: topic.into(),
        properties: Box::default(),
        payload: b"told".as_slice().into(),
        qos,
        retain: false,
        expiry_secs: None,
        durability: Durability::Fsync,
    }
}

fn of_user(client_id: &str, username: &str) -> broker::ConnectRequest {
    broker::ConnectRequest {
        username: Some(username.into()),
        peer: "10.0.0.7:1234".into(),
        ..persistent(client_id)
    }
}

#[test]
fn each_session_is_reported_once_in_pages_whoever_comes_and_goes() {
    let mut lab = Lab::new(1);
    let conns: Vec<_> = (0..250).map(|number| lab.open(request(&format!("c{number}")))).collect();
    let (mut seen, mut from) = (BTreeSet::new(), 0);
    loop {
        let (rows, next) = lab.sessions(from, u32::MAX, Wanted::default());
        assert!(rows.len() <= PAGE_ROWS as usize);
        for row in rows {
            assert!(seen.insert(row.client_id.to_string()), "{} twice", row.client_id);
        }
        // One of the first page goes, and somebody takes its place.
        if from == 0 {
            lab.cut(conns[3]);
            lab.open(request("newcomer"));
        }
        let Some(next) = next else { break };
        from = next;
    }
    assert!((0..250).all(|number| seen.contains(&format!("c{number}"))));
}

#[test]
fn a_page_takes_a_bounded_look_however_few_are_wanted() {
    let mut lab = Lab::new(1);
    for number in 0..PAGE_LOOKS + 10 {
        lab.connect_only(request(&format!("c{number}")));
    }
    let last = format!("c{}", PAGE_LOOKS + 9);
    let wanted = || Wanted { id_part: Some(last.as_str().into()), ..Wanted::default() };
    let (rows, next) = lab.sessions(0, 10, wanted());
    assert!(rows.is_empty());
    assert_eq!(next, Some(PAGE_LOOKS));
    let (rows, next) = lab.sessions(PAGE_LOOKS, 10, wanted());
    assert_eq!((&*rows[0].client_id, rows.len(), next), (last.as_str(), 1, None));
    let (rows, next) = lab.sessions(u32::MAX, 10, Wanted::default());
    assert_eq!((rows.len(), next), (0, None), "behind the last");
}

#[test]
fn sessions_are_found_by_what_is_known_of_them() {
    let mut lab = Lab::new(1);
    lab.open(of_user("one", "anna"));
    let two = lab.open(of_user("two", "berta"));
    lab.open(request("three"));
    lab.cut(two);
    let mut found = |wanted: Wanted| -> Vec<String> {
        let rows = lab.sessions(0, 100, wanted).0;
        rows.iter().map(|row| row.client_id.to_string()).collect()
    };
    let any = Wanted::default;
    assert_eq!(found(Wanted { id_part: Some("o".into()), ..any() }), ["one", "two"]);
    assert_eq!(found(Wanted { username: Some("anna".into()), ..any() }), ["one"]);
    assert_eq!(found(Wanted { username: Some("".into()), ..any() }), ["three"]);
    assert_eq!(found(Wanted { address: Some("10.0.0.7:".into()), ..any() }), ["one"]);
    assert_eq!(found(Wanted { connected: Some(false), ..any() }), ["two"]);
    assert!(found(Wanted { queued_min: 1, ..any() }).is_empty());
    let both = Wanted { connected: Some(true), username: Some("berta".into()), ..any() };
    assert_eq!(found(both), [""; 0]);
}

#[test]
fn one_session_is_reported_with_what_waits_for_it() {
    let mut lab = Lab::new(1);
    let conn = lab.open(persistent("sub"));
    lab.subscribe(conn, "a/+", 1);
    lab.subscribe(conn, "$share/g/b", 2);
    let publisher = lab.open(request("pub"));
    lab.publish(publisher, "a/1", b"one", 1, 1);
    let view = lab.session("sub").unwrap();
    assert!(view.connection.is_some());
    assert_eq!((view.in_flight, view.queued), (1, 0));
    assert_eq!((view.subscriptions, view.shared_subscriptions), (2, 1));
    lab.cut(conn);
    lab.publish(publisher, "a/2", b"two", 1, 2);
    let view = lab.session("sub").unwrap();
    assert!(view.connection.is_none() && view.expires_at_ms > lab.now_ms);
    assert_eq!(view.queued, 1);
    assert!(lab.session("nobody").is_none());

    let command = |from| Command::Subscriptions { client_id: "sub".into(), from, max: 1 };
    let mut listed = Vec::new();
    for from in 0..2 {
        let Answer::Subscriptions(Some(page)) = lab.ask(0, &command(from)) else { panic!("page") };
        assert_eq!(page.next, (from == 0).then_some(1));
        listed
            .extend(page.rows.into_iter().map(|row| (row.share, row.filter.to_string(), row.qos)));
    }
    assert_eq!(listed, [(Some("g".into()), "b".into(), 2), (None, "a/+".into(), 1)]);
    let nobody = Command::Subscriptions { client_id: "nobody".into(), from: 0, max: 1 };
    assert!(matches!(lab.ask(0, &nobody), Answer::Subscriptions(None)));
}

#[test]
fn one_session_is_reported_with_its_traffic_and_its_will() {
    let mut lab = Lab::new(1);
    let idle = lab.open(request("idle"));
    let sub = lab.open(request("sub"));
    lab.subscribe(sub, "a/+", 0);
    let publisher = lab.open(request("pub"));
    for _ in 0..3 {
        lab.publish(publisher, "a/1", b"one", 0, 0);
    }
    let tally =
        |lab: &mut Lab, client_id| lab.session(client_id).unwrap().connection.unwrap().tally;
    let sent = tally(&mut lab, "pub");
    assert_eq!((sent.messages_in, sent.messages_out), (3, 0));
    assert!(sent.bytes_in >= 3 * 11, "{sent:?}");
    assert_eq!(tally(&mut lab, "sub").messages_out, 3);
    assert_eq!(tally(&mut lab, "idle"), Default::default());
    lab.cut(idle);
    let view = lab.session("sub").unwrap();
    assert!(view.connection.unwrap().connected_ms <= lab.now_ms);
    assert!(view.details.unwrap().will.is_none());
    let rows = lab.sessions(0, 100, Wanted::default()).0;
    assert!(rows.iter().all(|row| row.details.is_none()), "lists have none");
}

/// Client, share name and filter of each subscription that is wanted, and the number of pages.
fn all_subscriptions(lab: &mut Lab, wanted: &WantedSubscriptions) -> (Vec<[String; 3]>, usize) {
    let (mut rows, mut pages, mut from) = (Vec::new(), 0, SubscriptionPlace::default());
    loop {
        let command = Command::AllSubscriptions { from, max: 7, wanted: wanted.clone() };
        let Answer::AllSubscriptions(page) = lab.ask(0, &command) else { panic!("page") };
        assert!(page.rows.len() <= 7);
        rows.extend(page.rows.into_iter().map(|row| {
            let share = row.subscription.share.unwrap_or_default();
            [row.client_id.into(), share.into(), row.subscription.filter.into()]
        }));
        pages += 1;
        let Some(next) = page.next else { return (rows, pages) };
        assert_ne!(next, from, "a page that leads nowhere");
        from = next;
    }
}

#[test]
fn all_subscriptions_are_listed_once_by_what_is_known_of_them() {
    let mut lab = Lab::new(1);
    let one = lab.open(request("one"));
    for number in 0..2_100 {
        lab.subscribe(one, &format!("a/{number}"), 0);
    }
    let two = lab.open(request("two"));
    lab.subscribe(two, "a/+", 1);
    lab.subscribe(two, "$share/g/b/#", 1);
    lab.open(request("three"));
    let any = WantedSubscriptions::default;
    let (mut rows, _) = all_subscriptions(&mut lab, &any());
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rows.len(), 2_102, "each once");
    let row = |client: &str, share: &str, filter: &str| {
        [client.to_owned(), share.to_owned(), filter.to_owned()]
    };
    let mut found = |wanted| all_subscriptions(&mut lab, &wanted).0;
    let matching = WantedSubscriptions { topic: Some("a/7".into()), ..any() };
    assert_eq!(found(matching), [row("one", "", "a/7"), row("two", "", "a/+")]);
    let exact = WantedSubscriptions { filter: Some("a/+".into()), ..any() };
    assert_eq!(found(exact), [row("two", "", "a/+")]);
    let shared = WantedSubscriptions { is_shared: Some(true), ..any() };
    assert_eq!(found(shared), [row("two", "g", "b/#")]);
    let part = WantedSubscriptions { id_part: Some("tw".into()), ..any() };
    assert_eq!(found(part).len(), 2);
    let elsewhere = WantedSubscriptions { scope: Some(Scope::new(7)), ..any() };
    assert_eq!(found(elsewhere).len(), 0);
    let nowhere = WantedSubscriptions { filter: Some("x".into()), ..any() };
    let (rows, pages) = all_subscriptions(&mut lab, &nowhere);
    assert_eq!((rows.len(), pages), (0, 3), "a page ends after {PAGE_LOOKS} looks");
}

fn retain_in(lab: &mut Lab, scope: Scope, topic: &str) {
    let publication = Publication { retain: true, ..message(topic, QoS::AtMostOnce) };
    lab.shards[0].on_command(rig::TICKET, scope, &Command::Publish(publication), lab.now_ms);
    assert!(lab.published(0).is_some_and(|reason| !reason.is_error()));
}

#[test]
fn levels_of_topics_belong_to_one_scope() {
    let mut lab = Lab::new(1);
    for topic in ["a", "a/b", "a/c/d", "$x/y", "z"] {
        retain_in(&mut lab, Scope::FIRST, topic);
    }
    let mut levels = |scope: Scope, parent: Option<&str>, after: Option<&str>| {
        let after = after.map(|level| level.as_bytes().into());
        let command = Command::Levels { parent: parent.map(Into::into), after, max: 2 };
        lab.shards[0].on_command(rig::TICKET, scope, &command, lab.now_ms);
        let Some(Answer::Levels { rows, has_more }) = lab.answer(0) else { panic!("levels") };
        let text = |level: &[u8]| String::from_utf8(level.to_vec()).unwrap();
        let rows = rows.iter().map(|it| (text(&it.level), it.has_message, it.below));
        (rows.collect::<Vec<_>>(), has_more)
    };
    let row = |level: &str, has, below| (level.to_owned(), has, below);
    let first = levels(Scope::FIRST, None, None);
    assert_eq!(first, (vec![row("$x", false, 1), row("a", true, 2)], true));
    assert_eq!(levels(Scope::FIRST, None, Some("a")), (vec![row("z", true, 0)], false));
    let below = levels(Scope::FIRST, Some("a"), None);
    assert_eq!(below, (vec![row("b", true, 0), row("c", false, 1)], false));
    assert_eq!(levels(Scope::new(1), None, None), (vec![], false));
    for topic in ["a/b", "$x/y", "b"] {
        retain_in(&mut lab, Scope::new(1), topic);
    }
    let mut levels = |after: Option<&str>, max| {
        let after = after.map(|level| level.as_bytes().into());
        let command = Command::Levels { parent: None, after, max };
        lab.shards[0].on_command(rig::TICKET, Scope::new(1), &command, lab.now_ms);
        let Some(Answer::Levels { rows, has_more }) = lab.answer(0) else { panic!("levels") };
        let names = rows.iter().map(|it| String::from_utf8(it.level.to_vec()).unwrap());
        (names.collect::<Vec<_>>().join(" "), has_more)
    };
    assert_eq!(levels(None, 10), ("a b $x".into(), false));
    assert_eq!(levels(None, 2), ("a b".into(), true));
    assert_eq!(levels(Some("b"), 2), ("$x".into(), false));
    assert_eq!(levels(Some("$x"), 2), (String::new(), false));
}

#[test]
fn a_decision_is_explained_with_the_rights_of_the_session() {
    let rules = [
        rule(Who::User("anna".into()), Permission::ReadWrite, "a/#"),
        rule(Who::User("anna".into()), Permission::Deny, "a/secret"),
    ];
    let mut lab = Lab::with(1, Settings::default(), Access::compile(&rules).unwrap());
    lab.open(of_user("one", "anna"));
    let mut explain = |who: Asker, action, topic: &str| {
        let manner = Manner::default();
        let question = Question { who, action, topic: topic.into(), manner };
        let Answer::Explained(found) = lab.ask(0, &Command::Explain(question.into())) else {
            panic!("explained")
        };
        found
            .map(|it| (it.explanation.is_allowed, it.explanation.decider.as_str(), it.is_connected))
    };
    let one = || Asker::Session("one".into());
    assert_eq!(explain(one(), Action::Publish, "a/x"), Some((true, "rule", true)));
    assert_eq!(explain(one(), Action::Publish, "a/secret"), Some((false, "rule", true)));
    assert_eq!(explain(one(), Action::Subscribe, "b/#"), Some((false, "default", true)));
    assert_eq!(explain(Asker::Session("two".into()), Action::Publish, "a/x"), None);
    let described = |username: &str| Asker::Described {
        client_id: "two".into(),
        username: Some(username.into()),
        principal: None,
        address: None,
        listener: Box::default(),
    };
    assert_eq!(explain(described("anna"), Action::Receive, "a/x"), Some((true, "rule", false)));
    let eve = explain(described("eve"), Action::Receive, "a/x");
    assert_eq!(eve, Some((false, "default", false)));
}

#[test]
fn who_gets_a_message_is_reported_with_the_rules_that_keep_it_away() {
    let rules = [
        rule(Who::User("anna".into()), Permission::ReadWrite, "#"),
        rule(Who::User("berta".into()), Permission::Read, "a/open"),
    ];
    let access = Access::compile(&rules).unwrap().accepting_all_subscriptions(true);
    let mut lab = Lab::with(1, Settings::default(), access);
    for (client_id, username) in [("one", "anna"), ("two", "berta"), ("three", "anna")] {
        let conn = lab.open(of_user(client_id, username));
        lab.subscribe(conn, "a/#", 1);
    }
    let conn = lab.open(of_user("four", "anna"));
    lab.subscribe(conn, "a/secret", 0);
    lab.subscribe(conn, "$share/g/a/+", 1);
    lab.subscribe(conn, "b", 1);
    let mut listed: Vec<_> = lab
        .receivers(0, "a/secret")
        .into_iter()
        .map(|row| (row.client_id.to_string(), row.filter.to_string(), row.qos, row.allowed))
        .collect();
    listed.sort();
    let row =
        |id: &str, filter: &str, qos, allowed| (id.to_owned(), filter.to_owned(), qos, allowed);
    let wanted = [
        row("", "a/+", 1, true),
        row("four", "a/secret", 0, true),
        row("one", "a/#", 1, true),
        row("three", "a/#", 1, true),
        row("two", "a/#", 1, false),
    ];
    assert_eq!(listed, wanted);
    assert!(lab.receivers(0, "c").is_empty());
}

#[test]
fn a_group_is_reported_by_its_home_alone_and_its_members_by_any_shard() {
    let mut lab = Lab::new(2);
    let ids = [lab.id_on(0, "m"), lab.id_on(1, "m")];
    let conns = ids.each_ref().map(|id| lab.open(persistent(id)));
    for conn in conns {
        lab.subscribe(conn, "$share/g/jobs", 1);
    }
    lab.settle();
    lab.cut(conns[0]);
    lab.cut(conns[1]);
    let publisher = lab.open(request("pub"));
    lab.publish(publisher, "jobs", b"x", 1, 1);
    lab.settle();
    let mut listed = Vec::new();
    for shard in 0..2 {
        let command = Command::Groups { within: None, from: 0, max: 10 };
        let Answer::Groups(page) = lab.ask(shard, &command) else { panic!("groups") };
        listed.extend(page.rows);
    }
    let [group] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&*group.share, &*group.filter), ("g", "jobs"));
    assert_eq!((group.members, group.online, group.waiting), (2, 0, 1));
    for shard in 0..2 {
        let listed: usize = lab.receivers(shard, "jobs").len();
        let command =
            Command::Members { share: "g".into(), filter: "jobs".into(), from: 0, max: 9 };
        let Answer::Members(Some(page)) = lab.ask(shard, &command) else { panic!("members") };
        assert!(listed <= 1);
        let mut names = Vec::new();
        for member in page.rows {
            let home = usize::from(member.key.shard());
            let Answer::Names(found) = lab.ask(home, &Command::Names(vec![member.key])) else {
                panic!("names")
            };
            names.extend(found.into_iter().flatten().map(String::from));
        }
        names.sort();
        let mut wanted = ids.to_vec();
        wanted.sort();
        assert_eq!(names, wanted);
    }
    let unknown = Command::Members { share: "g".into(), filter: "x".into(), from: 0, max: 9 };
    assert!(matches!(lab.ask(0, &unknown), Answer::Members(None)));
}

#[test]
fn a_kick_ends_the_connection_and_a_purge_the_session() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent("one"));
    lab.subscribe(conn, "a", 1);
    assert!(lab.done(&Command::Kick("one".into())));
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]);
    assert!(!lab.done(&Command::Kick("one".into())), "it is gone");
    assert!(lab.session("one").is_some(), "its session is not");

    let conn = lab.open(persistent("one"));
    let publisher = lab.open(request("pub"));
    lab.publish(publisher, "a", b"x", 1, 1);
    assert!(lab.done(&Command::Purge("one".into())));
    lab.settle();
    let listed = lab.take_all(conn);
    assert_eq!(listed.last(), Some(&Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)));
    assert!(lab.session("one").is_none());
    assert!(lab.receivers(0, "a").is_empty());
    assert!(!lab.done(&Command::Purge("one".into())));
    assert!(lab.events.iter().any(|event| matches!(event, Event::SessionPurged { .. })));
    // Nothing of it comes back.
    lab.crash(Crash::Kill);
    assert!(lab.session("one").is_none());
}

#[test]
fn a_ban_ends_those_whom_it_means_page_by_page() {
    let mut lab = Lab::new(1);
    let count = PAGE_LOOKS + 30;
    let conns: Vec<_> = (0..count)
        .map(|number| {
            let mut one = request(&format!("c{number}"));
            one.username = Some(if number % 2 == 0 { "even" } else { "odd" }.into());
            one.peer = format!("10.0.{}.{}:9", number / 256, number % 256).into();
            lab.open(one)
        })
        .collect();
    let ban = |lab: &mut Lab, whom: Whom| {
        let (mut next, mut pages) = (Some(0), 0);
        while let Some(from) = next {
            let answer = lab.ask(0, &Command::EndBanned { from, within: None, whom: whom.clone() });
            let Answer::Ended(more) = answer else { panic!("{answer:?}") };
            (next, pages) = (more, pages + 1);
        }
        lab.settle();
        let banned: Vec<usize> = conns
            .iter()
            .enumerate()
            .filter(|(_, conn)| {
                lab.take_all(**conn) == [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]
            })
            .map(|(at, _)| at)
            .collect();
        (banned, pages)
    };
    lab.settle();
    conns.iter().for_each(|conn| drop(lab.take_all(*conn)));
    assert_eq!(ban(&mut lab, Whom::Client("c7".into())), (vec![7], 2));
    assert_eq!(ban(&mut lab, Whom::Client("nobody".into())), (vec![], 2));
    let (first, last) = ("10.0.4.0".parse().unwrap(), "10.0.4.2".parse().unwrap());
    assert_eq!(ban(&mut lab, Whom::Addresses(first..=last)), (vec![1024, 1025, 1026], 2));
    assert!(lab.session("c1000").is_some_and(|session| session.connection.is_some()));
    let (odd, pages) = ban(&mut lab, Whom::User("odd".into()));
    assert_eq!(pages, 2);
    let wanted: Vec<usize> =
        (0..count as usize).filter(|at| at % 2 == 1 && ![7, 1025].contains(at)).collect();
    assert_eq!(odd, wanted);
    assert_eq!(ban(&mut lab, Whom::User("odd".into())), (vec![], 2));
}

#[test]
fn a_ban_of_a_client_id_means_it_in_one_scope_or_in_each() {
    let mut lab = Lab::new(1);
    let conns: Vec<_> = [Scope::FIRST, rig::SCOPES[0], rig::SCOPES[1]]
        .into_iter()
        .map(|scope| {
            let mut one = request("one");
            one.scope = scope;
            lab.open(one)
        })
        .collect();
    let ban = |within| Command::EndBanned { from: 0, within, whom: Whom::Client("one".into()) };
    assert!(matches!(lab.ask(0, &ban(Some(rig::SCOPES[0]))), Answer::Ended(None)));
    lab.settle();
    let are_closed: Vec<bool> = conns.iter().map(|conn| lab.is_closed(*conn)).collect();
    assert_eq!(are_closed, [false, true, false]);
    assert!(matches!(lab.ask(0, &ban(None)), Answer::Ended(None)));
    lab.settle();
    for conn in conns {
        let listed = lab.take_all(conn);
        assert_eq!(listed.last(), Some(&Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)));
    }
}

#[test]
fn a_session_that_ends_with_its_connection_is_purged_once() {
    let mut lab = Lab::new(1);
    let conn = lab.open(request("one"));
    assert!(lab.done(&Command::Purge("one".into())));
    lab.settle();
    assert_eq!(lab.take_all(conn), [Got::Disconnect(Reason::ADMINISTRATIVE_ACTION)]);
    assert!(lab.session("one").is_none());
}

#[test]
fn a_publish_is_answered_when_all_who_are_owed_it_have_it() {
    for (at, subscriber_on) in [(0, 0), (0, 1)] {
        let mut lab = Lab::durable(2);
        let subscriber = lab.id_on(subscriber_on, "sub");
        let conn = lab.open(persistent(&subscriber));
        lab.subscribe(conn, "a", 1);
        lab.disks_stand_still = true;
        lab.order(at, &Command::Publish(message("a", QoS::AtLeastOnce)));
        lab.settle();
        assert_eq!(lab.published(at), None, "no disk has it");
        assert_eq!(lab.shards[at].waits().publications, 1);
        lab.disks_stand_still = false;
        lab.settle();
        assert_eq!(lab.published(at), Some(Reason::SUCCESS));
        assert!(lab.shards[at].waits().are_over());
        assert_eq!(lab.payloads(conn), ["told"]);
    }
}

#[test]
fn a_publish_that_nobody_wants_is_answered_at_once() {
    let mut lab = Lab::new(2);
    let command = Command::Publish(message("a", QoS::AtLeastOnce));
    lab.order(1, &command);
    lab.settle();
    assert_eq!(lab.published(1), Some(Reason::NO_MATCHING_SUBSCRIBERS));
    lab.shared.set_memory(Memory::Short);
    lab.order(1, &command);
    assert_eq!(lab.published(1), Some(Reason::QUOTA_EXCEEDED));
}

#[test]
fn a_publish_that_cannot_be_retained_is_refused() {
    let settings = Settings { retained_messages_max: 1, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let conn = lab.open(request("pub"));
    lab.send(conn, &retained("first", b"x", 0, 0));
    for home in 0..2 {
        let topic = lab.topic_on(home, "t");
        let keep = Publication { retain: true, ..message(&topic, QoS::AtMostOnce) };
        lab.order(0, &Command::Publish(keep));
        lab.settle();
        assert_eq!(lab.published(0), Some(Reason::QUOTA_EXCEEDED), "home {home}");
    }
}

#[test]
fn retained_messages_are_reported_in_pages_and_found_by_topic() {
    let mut lab = Lab::new(1);
    let conn = lab.open(request("pub"));
    for number in 0..5 {
        lab.send(conn, &retained(&format!("t/{number}"), b"x", 0, 0));
    }
    let (mut topics, mut after) = (Vec::new(), None);
    loop {
        let command = Command::Retained { filter: "t/+".into(), after: after.take(), max: 2 };
        let Answer::Retained { messages, after: next } = lab.ask(0, &command) else { panic!() };
        assert!(messages.len() <= 2);
        topics.extend(messages.iter().map(|message| message.topic().to_owned()));
        let Some(next) = next else { break };
        // As it comes back from an operator.
        after = Some(topic::Cursor::at(next.topic()));
    }
    assert_eq!(topics, ["t/0", "t/1", "t/2", "t/3", "t/4"]);
    for (filter, count) in [("t/3", 1), ("t/9", 0)] {
        let command = Command::Retained { filter: filter.into(), after: None, max: 1 };
        let Answer::Retained { messages, .. } = lab.ask(0, &command) else { panic!() };
        assert_eq!(messages.len(), count);
    }
}

#[test]
fn what_is_retained_on_a_refused_topic_is_cleared_and_nobody_hears_of_it() {
    let mut lab = Lab::new(2);
    let conn = lab.open(request("sub"));
    lab.subscribe(conn, "#", 0);
    for topic in ["a\u{1}b", "$SYS/old"] {
        // As a journal of an older version brings it back.
        let message = Message::new(&MessageParts {
            topic,
            properties: &[],
            payload: b"x",
            qos: QoS::AtMostOnce,
            retain: true,
            expires_at_ms: session::NEVER,
            publisher: broker::SessionKey::NOBODY.as_u64(),
            author: 0,
            level: 0,
            scope: Scope::FIRST.number(),
        });
        let home = usize::from(lab.shared.place_of_topic(Name::first(topic)));
        lab.shards[home].on_mail(Mail::Retain { message, confirm: None, owner: None }, lab.now_ms);
        let look = Command::Retained { filter: topic.into(), after: None, max: 1 };
        let kept =
            |answer| matches!(answer, Answer::Retained { messages, .. } if messages.len() == 1);
        assert!(kept(lab.ask(home, &look)), "{topic:?}");

        let filled = Publication { retain: true, ..message_on(topic) };
        lab.order(home, &Command::Publish(filled.clone()));
        assert_eq!(lab.published(home), Some(Reason::TOPIC_NAME_INVALID), "{topic:?}");
        let clear = Publication { payload: Box::default(), ..filled };
        lab.order(home, &Command::Publish(clear));
        lab.settle();
        assert_eq!(lab.published(home), Some(Reason::NO_MATCHING_SUBSCRIBERS), "{topic:?}");
        assert!(!kept(lab.ask(home, &look)), "{topic:?}");
        assert!(lab.take_all(conn).is_empty(), "{topic:?}");
    }
}

fn message_on(topic: &str) -> Publication {
    message(topic, QoS::AtMostOnce)
}

/// Lets one disk do what it was told, and no other.
fn work_disk(lab: &mut Lab, which: usize) {
    let mut commands = Vec::new();
    for _ in 0..10 {
        lab.shards[which].take_disk_commands(&mut commands, lab.now_ms);
        commands.drain(..).for_each(|command| lab.disks[which].submit(command));
        while let Some(done) = lab.disks[which].step() {
            lab.shards[which].on_disk(done, lab.now_ms);
        }
    }
    while lab.deliver_mail() {}
}

/// One shard refuses, a second has the retained message and a third a session that wants `kept`.
/// The operator's shard is the first.
fn with_refusal(lab: &mut Lab) -> String {
    let topic = lab.topic_on(1, "retained");
    let id = lab.id_on(0, "full");
    let full =
        lab.open(rig::with_limits(persistent(&id), rig::queue(0, session::Overflow::Reject)));
    lab.subscribe(full, &topic, 1);
    lab.cut(full);
    let id = lab.id_on(2, "kept");
    let kept = lab.open(persistent(&id));
    lab.subscribe(kept, "kept", 1);
    lab.cut(kept);
    topic
}

#[test]
fn an_answer_for_an_earlier_publish_is_none_for_the_next_one_under_its_ticket() {
    let mut lab = Lab::durable_with(3, Settings { rejects: true, ..Settings::default() });
    let topic = with_refusal(&mut lab);
    let refused = Publication { retain: true, ..message(&topic, QoS::AtLeastOnce) };
    lab.order(0, &Command::Publish(refused));
    assert_eq!(lab.published(0), Some(Reason::QUOTA_EXCEEDED), "the ticket is free");
    lab.order(0, &Command::Publish(message("kept", QoS::AtLeastOnce)));
    while lab.deliver_mail() {}
    work_disk(&mut lab, 1);
    assert_eq!(lab.published(0), None, "the log that keeps it has not got it yet");
    work_disk(&mut lab, 2);
    assert_eq!(lab.published(0), Some(Reason::SUCCESS));
}

#[test]
fn a_publish_that_the_journal_is_too_far_behind_for_leaves_no_answer_behind() {
    let mut lab = Lab::durable(3);
    let topic = lab.topic_on(1, "retained");
    let id = lab.id_on(0, "here");
    let here = lab.open(persistent(&id));
    lab.subscribe(here, &topic, 1);
    lab.cut(here);
    let id = lab.id_on(2, "kept");
    let kept = lab.open(persistent(&id));
    lab.subscribe(kept, "kept", 1);
    lab.cut(kept);
    let large = Publication {
        retain: true,
        payload: vec![b'x'; 8000].into(),
        ..message(&topic, QoS::AtLeastOnce)
    };
    // The disk of the operator's shard stands still, until its journal takes no more.
    let is_behind = (100..2000).any(|ticket| {
        let command = Command::Publish(large.clone());
        lab.shards[0].on_command(ticket, Scope::FIRST, &command, lab.now_ms);
        !std::mem::take(&mut lab.shards[0].effects_mut().answers).is_empty()
    });
    assert!(is_behind);
    lab.order(0, &Command::Publish(large));
    assert!(lab.published(0).is_some_and(Reason::is_error), "the ticket is free");
    lab.order(0, &Command::Publish(message("kept", QoS::AtLeastOnce)));
    while lab.deliver_mail() {}
    work_disk(&mut lab, 1);
    assert_eq!(lab.published(0), None, "the log that keeps it has not got it yet");
    work_disk(&mut lab, 2);
    assert_eq!(lab.published(0), Some(Reason::SUCCESS));
}
