//! Searches for the number of connections, and of connects per second, that a broker holds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use flock::engine::{Options, RunError, preflight, run};
use flock::sizing::{Quest, connects_in_one_stage, search};
use flock::standin::{Mischief, StandIn};
use flock_measure::{Results, Sought};
use flock_model::Scenario;
use flock_model::catalogue::find;
use flock_model::scenario::Choice;

const QUEST: Quest = Quest {
    sought: Sought::Connections,
    percentile: 99.0,
    // A busy machine is slow, and refuses nobody.
    latency_max_us: 60_000_000,
    size_min: 100,
    size_max: 400,
    connects_per_sec: 2_000,
    ramp_us: 1_000_000,
    hold_us: 200_000,
    precision: 0.2,
};

fn connections(address: &str) -> Scenario {
    let mut scenario = find("MB-B4", &Choice::default()).unwrap().scenario;
    scenario.brokers[0].addresses = vec![address.to_owned()];
    scenario.drain_us = 100_000;
    scenario
}

fn found(quest: &Quest, mischief: Mischief) -> Results {
    let broker = StandIn::start(mischief).unwrap();
    let run_one = |scenario: &Scenario| {
        Ok(run(scenario, Options { threads: Some(2), ..Options::default() })?)
    };
    search(quest, &connections(&broker.address), run_one, |_| {}).unwrap()
}

#[test]
fn the_number_of_connections_that_a_broker_holds_is_found() {
    let results = found(&QUEST, Mischief { connections_max: 300, ..Mischief::default() });
    let sizing = results.sizing.unwrap();
    let (held, failed) = (sizing.held.unwrap(), sizing.failed.unwrap());
    assert!(held <= 300 && 300 < failed && failed - held <= failed / 5, "{sizing:#?}");
    assert!(!sizing.limited_by_tool, "{sizing:#?}");
    let words = sizing.words();
    assert!(words.contains(" connects failed: refused: Server unavailable"), "{words}");
    // They are the results of the run that held.
    assert_eq!(results.totals.connections_max, held);
}

#[test]
fn the_rate_of_connects_that_a_broker_holds_is_found() {
    let quest = Quest {
        sought: Sought::ConnectRate,
        latency_max_us: 500_000,
        size_min: 20,
        size_max: 160,
        precision: 0.5,
        ..QUEST
    };
    let results = found(&quest, Mischief { connects_per_sec: 50, ..Mischief::default() });
    let sizing = results.sizing.unwrap();
    // Of a second's connects at 75/s, the last waits for half a second. How far below that a search
    // ends is up to the machine.
    assert!(sizing.held.is_none_or(|held| held <= 75), "{sizing:#?}");
    assert!(sizing.failed.is_some(), "{sizing:#?}");
    // On a busy machine a connect is given up before it is late.
    let words = sizing.words();
    let is_late = words.contains("of the connect latency was");
    assert!(is_late || words.contains("connections were lost"), "{words}");
}

#[test]
fn a_size_that_this_machine_cannot_make_is_flocks_limit() {
    let broker = StandIn::start(Mischief::default()).unwrap();
    let run_one = |scenario: &Scenario| {
        let clients = scenario.estimate().clients;
        if clients > 250 {
            let refusal = preflight::Refusal::Ports { connections: clients, ports: 100, more: 1 };
            return Err(RunError::Refused(refusal).into());
        }
        Ok(run(scenario, Options { threads: Some(2), ..Options::default() })?)
    };
    let results = search(&QUEST, &connections(&broker.address), run_one, |_| {}).unwrap();
    let sizing = results.sizing.unwrap();
    assert!(sizing.limited_by_tool && sizing.held.unwrap() <= 250, "{sizing:#?}");
    let words = sizing.words();
    assert!(words.contains("flock was the limit") && words.contains("--ifaddr"), "{words}");
}

#[test]
fn a_broker_that_does_not_hold_the_smallest_size_gives_no_valid_result() {
    let results = found(&QUEST, Mischief { connections_max: 10, ..Mischief::default() });
    assert_eq!(results.sizing.unwrap().held, None);
    assert!(!results.validity.valid);
    let said = "the smallest size of the search, 100 connections, failed";
    assert!(results.validity.reasons.contains(&said.to_owned()), "{:?}", results.validity.reasons);
}

#[test]
fn a_search_that_is_stopped_says_so_and_blames_no_size() {
    let broker = StandIn::start(Mischief::default()).unwrap();
    let mut runs = 0;
    let run_one = |scenario: &Scenario| {
        runs += 1;
        let stop = Arc::new(AtomicBool::new(runs > 1));
        Ok(run(scenario, Options { threads: Some(2), stop, ..Options::default() })?)
    };
    let results = search(&QUEST, &connections(&broker.address), run_one, |_| {}).unwrap();
    let reasons = &results.validity.reasons;
    assert!(reasons.contains(&"the search was stopped ahead of its end".to_owned()), "{reasons:?}");
    assert!(!reasons.iter().any(|reason| reason.contains("smallest size")), "{reasons:?}");
    assert_eq!(results.sizing.unwrap().steps.len(), 1);
}

#[test]
fn a_rate_of_connects_is_that_of_one_stage() {
    let loaded = |id| find(id, &Choice::default()).unwrap().scenario;
    assert!(connects_in_one_stage(&loaded("MB-B4")));
    assert!(!connects_in_one_stage(&loaded("HM-R2000")));
}
