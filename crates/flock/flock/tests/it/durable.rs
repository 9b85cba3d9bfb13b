//! The durable scenarios of the catalogue, small, against Debian's mosquitto: whole, and with
//! nothing left behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Mosquitto, total};
use flock::engine::{Options, run};
use flock_measure::{Outcome, Results};
use flock_model::scenario::Choice;

fn run_small(id: &str, scale: f64, params: &[(&str, &str)], address: &str) -> Results {
    let params = params.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    let choice = Choice { params, ..Choice::default() };
    let loaded =
        flock_model::catalogue::find(id, &choice).unwrap_or_else(|error| panic!("{error}"));
    let mut scenario = loaded.scenario.scaled(scale).with_ramps(50_000);
    for broker in &mut scenario.brokers {
        broker.addresses = vec![address.to_owned()];
    }
    for stage in scenario.stages.iter_mut().filter(|stage| stage.duration_us.is_some()) {
        stage.duration_us = Some(300_000);
    }
    let results = run(&scenario, Options { threads: Some(2), ..Options::default() }).unwrap();
    assert_eq!(results.run.outcome, Outcome::Completed, "{id}: {:?}", results.errors);
    assert!(results.integrity.is_clean(), "{id}: {:?}", results.integrity);
    assert!(results.errors.is_empty(), "{id}: {:?}", results.errors);
    results
}

#[test]
fn online_sessions_get_everything_in_both_versions() {
    let broker = Mosquitto::start();
    for (id, copies) in [("D-1-16B", 1), ("D-1-1K", 1), ("D-1-8K", 1), ("D-2", 5)] {
        for version in ["3.1.1", "5"] {
            let params = [("version", version), ("in_flight", "5")];
            let results = run_small(id, 0.05, &params, &broker.address);
            let published = results.totals.published_all();
            assert!(published > 0);
            assert_eq!(total(&results).received, published * copies, "{id} in {version}");
        }
    }
}

#[test]
fn offline_sessions_fetch_what_was_queued_and_leave_nothing_for_the_next_run() {
    let broker = Mosquitto::start();
    for round in 0..2 {
        let params = [("messages", "20"), ("in_flight", "5")];
        let results = run_small("D-3", 0.01, &params, &broker.address);
        assert_eq!(total(&results).received, 200, "round {round}");
        assert_eq!(results.totals.received_all(), 200, "round {round}");
        let timers: Vec<&str> = results.timers.iter().map(|timer| timer.name.as_str()).collect();
        assert_eq!(timers, ["fill", "drain"]);
    }
}

#[test]
fn a_resume_is_timed_to_its_first_and_its_last_message() {
    let broker = Mosquitto::start();
    let params = [("messages", "500"), ("rest", "499"), ("in_flight", "50")];
    let results = run_small("D-4", 1.0, &params, &broker.address);
    assert_eq!(total(&results).received, 500);
    let timer = |name: &str| {
        let found = results.timers.iter().find(|timer| timer.name == name).unwrap();
        (found.summary.count, found.summary.max_us)
    };
    let (first, drain) = (timer("first"), timer("drain"));
    assert_eq!((first.0, drain.0), (1, 1));
    assert!(first.1 <= drain.1);
}
