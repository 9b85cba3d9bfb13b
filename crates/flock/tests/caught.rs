//! A broker that misbehaves is caught each time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use common::standin::{Mischief, StandIn};
use common::{pairs, run_on, total};
use flock::engine::BrokerAccess;
use flock::measure::{LatencyKind, Outcome, Results};

fn run_with(mischief: Mischief, text: &str) -> Results {
    let broker = StandIn::start(mischief);
    run_on(text, &broker.address, BrokerAccess::None)
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
fn duplicates_are_counted() {
    let mischief = Mischief { duplicate_every: 50, ..Mischief::default() };
    let results = run_with(mischief, &pairs(10, 100, 1, 500));
    assert_eq!((total(&results).duplicated, total(&results).lost), (20, 0));
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
    let text = pairs(8, 100, 1, 500)
        .replace("[subscriptions.pairs]\ntopics = \"pairs\"", "[subscriptions.pairs]\nFILTERS")
        .replace("FILTERS", "filter = \"$share/g/pairs/{i}\"\ncount = 8\nassign = \"all\"");
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
    assert_eq!(results.totals.disconnects, 10);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
}

#[test]
fn a_client_that_is_never_acknowledged_leaves_all_the_same() {
    let mischief = Mischief { acknowledge_after: u64::MAX, ..Mischief::default() };
    let results = run_with(mischief, &brief(publish_and_leave()));
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert_eq!((results.totals.acknowledged, results.integrity.unacknowledged), (0, 30));
    assert_eq!(results.totals.disconnects, 10);
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
    let broker = StandIn::start(Mischief { stall: Some((100, pause)), ..Mischief::default() });
    let text = common::searching(10, "latency_max = \"1s\"\nrate_min = 400\nrate_max = 400");
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    let found = results.rate_search.unwrap();
    assert!(!found.steps[0].held && found.steps[0].latency_us >= 1_000_000, "{found:#?}");
    // Whether it holds is up to the machine.
    assert!(found.steps[1].latency_us < 1_000_000, "{found:#?}");
}
