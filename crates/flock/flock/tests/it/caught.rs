//! A broker that misbehaves is caught each time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::time::Duration;

use codec::{AckKind, QoS};
use common::{pairs, run_on, run_with, total};
use flock::engine::BrokerAccess;
use flock::standin::{Damage, Mischief, StandIn};
use flock_measure::figures::{Verdict, verdicts};
use flock_measure::{LatencyKind, Outcome};
use flock_model::Expect;
use flock_report::expect::unmet;

/// Publishers with a topic each, and one group of as many members that shares them all.
fn shared(clients: u64, count: u64, qos: u8) -> String {
    let filters = format!("filter = \"$share/g/pairs/{{i}}\"\ncount = {clients}\nassign = \"all\"");
    pairs(clients, count, qos, 500)
        .replace("[subscriptions.pairs]\ntopics = \"pairs\"", "[subscriptions.pairs]\nFILTERS")
        .replace("FILTERS", &filters)
}

/// Pairs whose publishers go on until the stage ends.
fn lasting(pairs: String, time: &str) -> String {
    let measured = format!("measured = true\nduration = \"{time}\"");
    pairs.replace("measured = true", &measured).replace("count = 1, ", "")
}

/// For what does not come; longer than a busy machine keeps the rest from coming.
fn brief(text: String) -> String {
    common::drained_for(text, "3s")
}

#[test]
fn an_honest_stand_in_is_found_honest() {
    for qos in 0..3 {
        let results = run_with(Mischief::default(), &pairs(10, 100, qos, 500));
        assert!(results.integrity.is_clean(), "{:?}", results.integrity);
        assert_eq!(total(&results).received, 1_000);
    }
}

#[test]
fn lost_messages_are_counted_and_named() {
    let mischief = Mischief { lose_every: 97, ..Mischief::default() };
    for qos in 0..2 {
        let results = run_with(mischief, &brief(pairs(10, 100, qos, 500)));
        assert_eq!((total(&results).lost, total(&results).received), (10, 990));
        let named: u64 = results.integrity.worst.iter().map(|sample| sample.lost).sum();
        assert_eq!(named, 10);
        let sample = &results.integrity.worst[0];
        assert!(sample.topic.starts_with("pairs/") && !sample.missing.is_empty(), "{sample:?}");
    }
}

#[test]
fn the_missing_end_of_a_stream_is_lost_at_every_qos() {
    let mischief = Mischief { lose_after: 300, ..Mischief::default() };
    for qos in 0..3 {
        let results = run_with(mischief, &brief(pairs(10, 100, qos, 500)));
        let total = total(&results);
        assert_eq!((total.expected, total.received, total.lost), (1_000, 300, 700), "QoS {qos}");
        assert_eq!(total.unjudged, 0);
        assert_eq!(unmet(&Expect::default(), &results), ["700 lost, 0 allowed"]);
    }
}

#[test]
fn where_nothing_arrives_everything_is_lost() {
    let mischief = Mischief { lose_every: 1, ..Mischief::default() };
    for qos in 0..3 {
        let results = run_with(mischief, &brief(pairs(10, 20, qos, 500)));
        let total = total(&results);
        assert_eq!((total.expected, total.received, total.lost), (200, 0, 200), "QoS {qos}");
    }
}

#[test]
fn the_missing_end_is_lost_in_a_shared_group_as_well() {
    let mischief = Mischief { lose_after: 300, ..Mischief::default() };
    for qos in 0..2 {
        let results = run_with(mischief, &brief(shared(10, 100, qos)));
        let total = total(&results);
        assert_eq!((total.expected, total.received, total.lost), (1_000, 300, 700), "QoS {qos}");
    }
}

#[test]
fn duplicates_are_counted() {
    let mischief = Mischief { duplicate_every: 50, ..Mischief::default() };
    let results = run_with(mischief, &pairs(10, 100, 1, 500));
    assert_eq!((total(&results).duplicated, total(&results).lost), (20, 0));
}

#[test]
fn what_comes_again_when_all_has_come_is_counted() {
    let duplicate_later = Some(Duration::from_millis(500));
    let mischief = Mischief { duplicate_every: 50, duplicate_later, ..Mischief::default() };
    let results = run_with(mischief, &pairs(10, 50, 1, 500));
    assert_eq!((total(&results).duplicated_without_cause(), total(&results).lost), (10, 0));
}

#[test]
fn disorder_is_counted() {
    let mischief = Mischief { swap_every: 33, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(10, 100, 1, 500)));
    let total = total(&results);
    assert!(total.reordered >= 20, "{total:?}");
    assert_eq!(total.duplicated, 0);
    // A message that was held back at the very end never came.
    assert!(total.lost <= 10, "{total:?}");
}

#[test]
fn messages_to_the_wrong_client_are_counted() {
    let mischief = Mischief { misroute: true, ..Mischief::default() };
    let results = run_with(mischief, &pairs(4, 50, 0, 500));
    assert_eq!(results.integrity.misrouted, 200);
    assert_eq!(total(&results).lost, 0);
    assert!(!results.integrity.is_clean());
}

#[test]
fn messages_to_the_wrong_client_do_not_stand_for_those_to_the_right_one() {
    let last = 2 * 200;
    let stall = Some((last, Duration::from_millis(300)));
    let mischief = Mischief { misroute: true, stall, ..Mischief::default() };
    let results = run_with(mischief, &pairs(4, 50, 0, 500));
    assert_eq!((results.integrity.misrouted, total(&results).lost), (200, 0));
}

#[test]
fn a_loss_in_a_shared_group_is_caught() {
    let text = shared(8, 100, 1);
    let honest = run_with(Mischief::default(), &text);
    assert!(honest.integrity.is_clean(), "{:?}", honest.integrity);
    assert_eq!(total(&honest).expected, 800);
    let mischief = Mischief { lose_every: 80, duplicate_every: 200, ..Mischief::default() };
    let results = run_with(mischief, &brief(text));
    // The 400th and 800th delivery would have been doubled, and are lost.
    assert_eq!((total(&results).lost, total(&results).duplicated), (10, 2));
}

#[test]
fn a_stall_shows_in_open_loop_latency() {
    let pause = Duration::from_millis(400);
    let mischief = Mischief { stall: Some((500, pause)), ..Mischief::default() };
    let results = run_with(mischief, &pairs(10, 100, 1, 100));
    let latency = results.latency(LatencyKind::EndToEnd, Some(1)).unwrap();
    assert_eq!(latency.summary.count, 1_000);
    // 1,000 messages per second: those due in the pause waited for the rest of it, evenly spread,
    // though they were sent as soon as could be. A closed loop would have shown ten of them, and
    // no machine is so busy that fewer wait.
    let buckets = latency.histogram.buckets();
    let waited: u64 = buckets.iter().filter(|(us, _)| *us >= 100_000).map(|b| b.1).sum();
    assert!(waited >= 250, "{waited}");
    assert!(latency.summary.max_us >= 390_000, "{:?}", latency.summary);
}

#[test]
fn a_client_that_is_always_late_is_named() {
    let pause = Duration::from_millis(200);
    let mischief = Mischief { delays_first: Some(pause), ..Mischief::default() };
    let results = run_with(mischief, &pairs(20, 30, 1, 100));
    let slowest = &results.worst_clients[0];
    assert_eq!((slowest.count, slowest.routed), (30, false));
    assert!(slowest.p50_us >= 200_000 && slowest.p50_us <= slowest.max_us, "{slowest:?}");
    let note = format!("the median latency of client {} is ", slowest.client);
    let notes = &results.validity.notes;
    assert!(notes.iter().any(|one| one.starts_with(&note)), "{notes:?}");
    let (page, text) = (flock_report::html(&results), flock_report::markdown(&results));
    for report in [page, text] {
        assert!(report.contains("Slowest clients") && report.contains(&slowest.client));
    }
}

#[test]
fn a_broker_that_refuses_fails_the_run_with_its_reason() {
    let results = run_with(Mischief { refuse: true, ..Mischief::default() }, &pairs(4, 5, 1, 100));
    assert!(matches!(results.run.outcome, Outcome::Failed(_)), "{:?}", results.run.outcome);
    let error = &results.errors[0];
    assert_eq!((error.what.as_str(), error.count), ("connect", 8));
    assert!(error.reason.contains("Not authorized"), "{error:?}");
    assert_eq!(results.totals.connects_failed, 8);
}

#[test]
fn a_broker_that_answers_garbage_fails_the_run_with_the_clause() {
    let mischief = Mischief { answer_garbage: true, ..Mischief::default() };
    let results = run_with(mischief, &pairs(4, 5, 1, 100));
    assert!(matches!(results.run.outcome, Outcome::Failed(_)));
    assert!(results.errors.iter().any(|error| error.what == "protocol"), "{:?}", results.errors);
}

#[test]
fn a_broker_that_dies_leaves_what_was_measured() {
    let mischief = Mischief { die_after: 300, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(10, 100, 1, 500)));
    assert!(results.totals.connections_lost > 0);
    assert!(total(&results).received > 0);
    assert!(results.errors.iter().any(|error| error.what == "connection"));
}

#[test]
fn every_kind_of_damage_is_seen_and_named() {
    let all = [
        (Damage::Payload, "damaged"),
        (Damage::Shortened, "damaged"),
        (Damage::Lengthened, "damaged"),
        (Damage::DueTime, "damaged"),
        (Damage::Sequence, "damaged"),
        (Damage::Topic, "with a wrong topic"),
        (Damage::LowerQos, "with a wrong QoS"),
        (Damage::RetainFlag, "with a wrong retain flag"),
    ];
    for (damage, named) in all {
        let mischief = Mischief { damage: Some(damage), damage_every: 20, ..Mischief::default() };
        let text = pairs(10, 20, 1, 500);
        let payload = if damage == Damage::Payload { "payload = 300" } else { "payload = 16" };
        let results = run_with(mischief, &text.replace("payload = 16", payload));
        let integrity = &results.integrity;
        for (what, times) in integrity.wrongs() {
            assert_eq!(times, if what == named { 10 } else { 0 }, "{damage:?}: {what}");
        }
        // Whatever is not what was sent stands for nothing that was.
        let is_lost = named == "damaged" || damage == Damage::Topic;
        assert_eq!(total(&results).lost, if is_lost { 10 } else { 0 }, "{damage:?}");
        let expected = unmet(&Expect::default(), &results);
        assert!(expected.contains(&format!("10 {named}, 0 allowed")), "{expected:?}");
        let told = verdicts(&results);
        let line = told.iter().find(|(_, words)| words.contains(&format!("10 {named}")));
        assert!(line.is_some_and(|(is, _)| *is == Verdict::Bad), "{told:?}");
    }
}

#[test]
fn damage_in_a_shared_group_is_seen() {
    for damage in [Damage::Payload, Damage::Sequence] {
        let mischief = Mischief { damage: Some(damage), damage_every: 20, ..Mischief::default() };
        let results = run_with(mischief, &shared(10, 20, 1));
        assert_eq!((results.integrity.damaged, total(&results).lost), (10, 10), "{damage:?}");
    }
}

#[test]
fn a_lower_quality_of_service_is_seen_at_2_as_well() {
    let mischief =
        Mischief { damage: Some(Damage::LowerQos), damage_every: 1, ..Mischief::default() };
    let results = run_with(mischief, &pairs(4, 10, 2, 500));
    assert_eq!((results.integrity.wrong_qos, total(&results).lost), (40, 0));
}

#[test]
fn what_the_broker_grants_less_is_told_of_the_run_and_of_no_message() {
    let mischief = Mischief { grants_at_most: Some(QoS::AtLeastOnce), ..Mischief::default() };
    let results = run_with(mischief, &pairs(4, 10, 2, 500));
    assert_eq!((results.integrity.wrong_qos, total(&results).lost), (0, 0));
    assert_eq!((results.totals.subscribes_lowered, results.totals.subscribes_ok), (4, 4));
    let told = verdicts(&results);
    let line = told.iter().find(|(_, words)| words.contains("a lower QoS than asked for: 4"));
    assert!(line.is_some_and(|(is, _)| *is == Verdict::Bad), "{told:?}");
    let results = run_with(Mischief::default(), &pairs(4, 10, 2, 500));
    assert_eq!(results.totals.subscribes_lowered, 0);
}

#[test]
fn a_message_of_qos_2_that_is_sent_again_on_its_connection_is_a_duplicate() {
    let mischief = Mischief { repeat_every: 20, ..Mischief::default() };
    let results = run_with(mischief, &pairs(10, 20, 2, 500));
    assert_eq!((total(&results).duplicated, total(&results).lost), (10, 0));
    let expected = unmet(&Expect::default(), &results);
    assert_eq!(expected, ["10 duplicated without cause, 0 allowed"]);
}

#[test]
fn a_first_delivery_that_is_marked_dup_is_counted_and_fails_the_run() {
    let mischief = Mischief { mark_dup_every: 20, ..Mischief::default() };
    for qos in 1..3 {
        let results = run_with(mischief, &pairs(10, 20, qos, 500));
        assert_eq!((results.integrity.wrong_dup, total(&results).duplicated), (10, 0), "{qos}");
        let expected = unmet(&Expect::default(), &results);
        assert_eq!(expected, ["10 marked DUP on first delivery, 0 allowed"]);
    }
    // Who repeats, and says so, lies about the repeating only.
    let honest = Mischief { duplicate_every: 20, ..Mischief::default() };
    assert_eq!(run_with(honest, &pairs(10, 20, 1, 500)).integrity.wrong_dup, 0);
}

#[test]
fn acknowledgements_that_are_sent_twice_are_counted_and_fail_the_run() {
    for (qos, kind, name) in [
        (1, AckKind::Puback, "PUBACKs"),
        (2, AckKind::Pubrec, "PUBRECs"),
        (2, AckKind::Pubcomp, "PUBCOMPs"),
    ] {
        let mischief = Mischief {
            acknowledge_twice: Some(kind),
            acknowledge_twice_every: 20,
            ..Mischief::default()
        };
        let results = run_with(mischief, &pairs(10, 20, qos, 500));
        let expected = unmet(&Expect::default(), &results);
        assert_eq!(expected, [format!("10 {name} sent twice, 0 allowed")]);
        assert_eq!((total(&results).lost, total(&results).duplicated), (0, 0));
    }
}

#[test]
fn an_exchange_of_qos_2_that_is_not_ended_is_told_and_its_wait_counts() {
    let mischief = Mischief { uncompleted_every: 20, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(10, 20, 2, 500)));
    assert_eq!((results.integrity.unacknowledged, total(&results).lost), (10, 0));
    let latency = results.latency(LatencyKind::PublishAck, Some(2)).unwrap();
    assert_eq!((latency.summary.count, latency.unfinished), (200, 10));
    let expected = unmet(&Expect::default(), &results);
    assert_eq!(expected, ["10 not acknowledged, 0 allowed"]);
}

#[test]
fn what_goes_to_the_wrong_client_only_is_lost_and_fails_the_run() {
    let mischief = Mischief { misdirect: true, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(4, 10, 0, 500)));
    assert_eq!((results.integrity.misrouted, total(&results).lost), (40, 40));
    let expected = unmet(&Expect::default(), &results);
    assert!(expected.contains(&"40 misrouted, 0 allowed".to_owned()), "{expected:?}");
}

#[test]
fn a_run_in_which_the_broker_died_is_not_valid_and_says_so_first() {
    let mischief = Mischief { die_after: 300, ..Mischief::default() };
    let text = lasting(pairs(10, 1, 1, 100), "2s");
    let results = run_with(mischief, &brief(text));
    assert!(!results.validity.valid);
    let (is, words) = &verdicts(&results)[0];
    assert_eq!(*is, Verdict::Bad);
    assert!(words.contains("connections lost without a fault: 20"), "{words}");
    // 200 messages of each were due, and count.
    assert!(words.contains("of 2,000 messages were due and not sent"), "{words}");
    let totals = &results.totals;
    assert_eq!(totals.published_all() + totals.publishes_skipped, 2_000);
    assert_eq!(totals.programs_cut_short, 10);
}

#[test]
fn one_connection_lost_makes_a_run_invalid() {
    let mischief = Mischief { hang_up_after: 50, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(10, 20, 0, 500)));
    let reason = &results.validity.reasons[0];
    assert_eq!(reason, "connections lost without a fault: 1");
}

#[test]
fn subscriptions_that_are_refused_make_a_run_invalid() {
    let mischief = Mischief { refuse_subscriptions: true, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(4, 5, 1, 500)));
    assert_eq!(results.validity.reasons[0], "subscriptions refused: 4");
}

#[test]
fn what_was_due_at_the_end_and_not_sent_counts_with_its_wait() {
    // The broker hangs from the middle of the stage to long after it, and takes one message of each
    // publisher at a time.
    let stall = Some((200, Duration::from_secs(5)));
    let mischief = Mischief { stall, ..Mischief::default() };
    let text =
        lasting(pairs(4, 1, 1, 100), "1s").replace("payload = 16", "payload = 16, in_flight = 1");
    let results = run_with(mischief, &brief(text));
    let skipped = results.totals.publishes_skipped;
    assert!(skipped >= 150, "{skipped}");
    assert_eq!(results.totals.published_all() + skipped, 400);
    assert!(!results.validity.valid);
    let (is, words) = &verdicts(&results)[0];
    let told = format!("{skipped} of 400 messages were due and not sent");
    assert_eq!(*is, Verdict::Bad);
    assert!(words.contains(&told), "{words}");
    for kind in [LatencyKind::EndToEnd, LatencyKind::PublishAck] {
        let latency = results.latency(kind, Some(1)).unwrap();
        assert!(latency.unfinished >= skipped, "{kind:?}: {}", latency.unfinished);
        // They waited a second after the stage at least.
        assert!(latency.summary.p90_us >= 1_000_000, "{kind:?}: {:?}", latency.summary);
    }
}

#[test]
fn what_is_never_acknowledged_has_a_latency_and_fails_the_run() {
    let mischief = Mischief { acknowledge_after: u64::MAX, lose_after: 50, ..Mischief::default() };
    let results = run_with(mischief, &brief(pairs(10, 10, 1, 500)));
    assert_eq!(results.integrity.unacknowledged, 100);
    // Half of them came; the others have waited until the end.
    assert_eq!(total(&results).lost, 0);
    let latency = results.latency(LatencyKind::EndToEnd, Some(1)).unwrap();
    assert_eq!((latency.summary.count, latency.unfinished), (100, 50));
    let expected = unmet(&Expect::default(), &results);
    assert_eq!(expected, ["100 not acknowledged, 0 allowed"]);
}

#[test]
fn a_receive_that_gave_up_makes_a_run_invalid() {
    let receive = "{ receive = { count = 6, timeout = \"500ms\" } }";
    let text = common::Draft::new(common::V5, 2)
        .connected("pairs", 0)
        .stage("both", &[("pub", &common::publish("count = 5, payload = 16")), ("sub", receive)])
        .leaving()
        .text();
    let results = run_with(Mischief::default(), &text);
    let reason = &results.validity.reasons[0];
    assert_eq!(reason, "`receive` steps without all messages: 2");
}

#[test]
fn a_closed_loop_is_marked() {
    let text = pairs(2, 20, 1, 500).replace("rate = \"500/s\"", "in_flight = 2");
    let results = run_with(Mischief::default(), &text);
    assert!(results.scenario.closed_loop);
    let verdicts = verdicts(&results);
    let is_marked = verdicts.iter().any(|(_, words)| words.starts_with("closed loop"));
    assert!(is_marked, "{verdicts:?}");
    assert!(flock_report::Format::Markdown.render(&results).contains("| loop | closed"));
}

#[test]
fn a_run_without_a_latency_does_not_say_that_the_tool_kept_up() {
    let text = common::Draft::new(common::V5, 2)
        .stage("connect", &[("pub", "{ connect = {} }")])
        .publishing("qos = 0, rate = \"100/s\", count = 10, payload = 16")
        .stage("disconnect", &[("pub", "{ disconnect = {} }")])
        .text();
    let results = run_with(Mischief::default(), &text);
    assert_eq!(results.totals.published_all(), 20);
    let told = verdicts(&results);
    assert!(!told.iter().any(|(_, words)| words.contains("not the bottleneck")), "{told:?}");
    assert_eq!(told.last().map(|(is, _)| *is), Some(Verdict::Unknown), "{told:?}");
}

/// Ten clients publish three messages each, as fast as they can, and say good-bye.
fn publish_and_leave() -> String {
    pairs(10, 3, 1, 500)
        .replace("rate = \"500/s\"", "in_flight = 3")
        .replace("payload = 16 } }]", "payload = 16 } }, { disconnect = {} }]")
}

#[test]
fn a_client_that_leaves_waits_for_its_acknowledgements() {
    let mischief = Mischief { acknowledge_after: 30, ..Mischief::default() };
    let results = run_with(mischief, &publish_and_leave());
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert_eq!((results.totals.acknowledged, results.integrity.unacknowledged), (30, 0));
    assert_eq!(results.totals.disconnects, 20);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
}

#[test]
fn a_client_that_is_never_acknowledged_leaves_all_the_same() {
    let mischief = Mischief { acknowledge_after: u64::MAX, ..Mischief::default() };
    let results = run_with(mischief, &brief(publish_and_leave()));
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert_eq!((results.totals.acknowledged, results.integrity.unacknowledged), (0, 30));
    assert_eq!(results.totals.disconnects, 20);
}

#[test]
fn disorder_within_a_shared_group_is_told_apart() {
    let text = pairs(8, 100, 1, 500).replace(
        "topics = \"pairs\"\n[[stage]]",
        "filter = \"$share/g/pairs/{i}\"\ncount = 8\n[[stage]]",
    );
    let mischief = Mischief { swap_every: 33, ..Mischief::default() };
    let results = run_with(mischief, &brief(text));
    let integrity = &results.integrity;
    assert!(integrity.reordered_in_groups >= 16, "{integrity:?}");
    // The standard promises no order within a group, so that it is no fault.
    assert_eq!((total(&results).reordered, total(&results).duplicated), (0, 0));
}

#[test]
fn a_rate_that_did_not_hold_leaves_nothing_behind_for_the_next() {
    let pause = Duration::from_millis(1_500);
    let broker =
        StandIn::start(Mischief { stall: Some((100, pause)), ..Mischief::default() }).unwrap();
    let text = common::searching(10, "latency_max = \"1s\"\nrate_min = 400\nrate_max = 400");
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    let found = results.rate_search.unwrap();
    assert!(!found.steps[0].held && found.steps[0].latency_us >= 1_000_000, "{found:#?}");
    // Whether it holds is up to the machine. The broker stands still in the first step only.
    assert!(found.steps[1].latency_us < found.steps[0].latency_us, "{found:#?}");
}

#[test]
fn what_a_rate_that_is_too_high_lost_is_not_held_against_those_below() {
    let mischief = Mischief { deliver_per_sec: 1_500, ..Mischief::default() };
    let broker = StandIn::start(mischief).unwrap();
    let keys = "latency_max = \"10s\"\nrate_min = 600\nrate_max = 2400\nprecision = 0.5";
    let text = common::drained_for(common::searching(10, keys), "500ms");
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    let found = results.rate_search.clone().unwrap();
    // On a machine that is late by itself no rate holds.
    if found.limited_by_tool {
        return;
    }
    assert!(found.rate_held >= 600.0, "{found:#?}");
    assert!(found.rate_failed > Some(found.rate_held), "{found:#?}");
    // A step of three seconds takes a little more, as the stand-in had saved some up.
    assert!(found.rate_held <= 1_650.0, "{found:#?}");
    assert!(found.steps.iter().all(|step| step.rate >= 600.0), "{found:#?}");
    // Where nothing held, it was to lose some; the run as such lost nothing.
    assert!(found.missing_beyond > 0 && total(&results).lost > 0, "{found:#?}");
    assert_eq!(unmet(&Expect::default(), &results), Vec::<String>::new());
}

#[test]
fn a_broker_that_reads_slowly_is_the_limit_of_a_search_and_flock_is_not() {
    // A quarter of the rate. What the kernel does not buffer waits in flock until TCP takes it.
    let work_per_message = Duration::from_millis(40);
    let broker = StandIn::start(Mischief { work_per_message, ..Mischief::default() }).unwrap();
    let keys = "latency_max = \"100ms\"\nrate_min = 100\nrate_max = 100";
    let text = common::drained_for(common::searching(1, keys), "300ms")
        .replace("payload = 16", "payload = \"256K\"")
        .replace("step = \"500ms\"", "step = \"2s\"");
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    let found = results.rate_search.unwrap();
    // The broker adds a second and more to each step: no pause of the machine explains most of it.
    assert!(found.steps.iter().all(|step| !step.held), "{found:#?}");
    assert!(found.steps.iter().any(|step| step.published_per_sec < 80.0), "{found:#?}");
    assert!(!found.limited_by_tool, "{found:#?}");
}

#[test]
fn a_warm_up_and_a_cool_down_stand_in_no_figure() {
    let text = lasting(pairs(10, 1, 1, 100), "1s")
        .replace("id = \"t\"\n", "id = \"t\"\nwarm_up = \"2s\"\ncool_down = \"1s\"\n");
    let results = run_with(Mischief::default(), &text);
    let phases: Vec<(&str, bool)> =
        results.phases.iter().map(|phase| (phase.name.as_str(), phase.measured)).collect();
    let around = [("warm-up", false), ("publish", true), ("cool-down", false)];
    assert!(phases.windows(3).any(|some| some == around), "{phases:?}");
    let measured = results.latency_merged(LatencyKind::EndToEnd).count();
    let published = results.totals.published_all();
    // A quarter of the time, on a machine that has time.
    assert!(measured > 0 && measured < published * 2 / 3, "{measured} of {published}");
    // What was lost in a warm-up is lost.
    assert_eq!((total(&results).expected, total(&results).lost), (published, 0));
}
