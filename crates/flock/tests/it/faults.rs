//! The broker is killed, paused and restarted under load, and integrity is judged across it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::net::TcpListener;

use common::{Draft, LASTING, Mosquitto, publish, run_on, total};
use flock::engine::{BrokerAccess, Options, RunError, run};
use flock::faults::{BrokerProcess, FaultError};
use flock_measure::{LatencyKind, Outcome, Results};
use flock_model::Expect;
use flock_report::expect::unmet;

fn text(fault: &str) -> String {
    let publish = publish("qos = 1, rate = \"50/s\", count = 150, payload = 16");
    let fault = format!("{{ delay = \"1s\" }}, {fault}");
    // A broker that forgets loses messages; nobody waits for them for long.
    Draft::new(LASTING, 10)
        .drain("5s")
        .connected("pairs", 1)
        .stage("publish", &[("pub", &publish), ("", &fault)])
        .text()
}

/// A run of it against a mosquitto that keeps nothing on disk.
fn run_with(fault: &str) -> Results {
    let broker = Mosquitto::prepare("persistence false\n");
    let access = BrokerAccess::Command(broker.command.clone());
    let results = run_on(&text(fault), &broker.address, access);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    results
}

#[test]
fn a_broker_that_keeps_nothing_is_caught_after_a_kill() {
    // In memory only: the sessions, and whatever was acknowledged and under way, are gone.
    let results = run_with(
        r#"{ fault = { kill = "main" } }, { delay = "100ms" }, { fault = { restart = "main" } }"#,
    );
    assert_eq!(results.faults.len(), 2);
    assert!(results.faults[0].connections_lost >= 20, "{:?}", results.faults);
    assert_eq!(results.totals.reconnects, 20, "{:?}", results.errors);
    // The sessions were meant to last, those of publishers as well. What publishers sent before
    // their subscribers were back is lost.
    let forgotten = results.errors.iter().find(|error| error.what == "session").unwrap();
    assert_eq!((forgotten.count, results.integrity.forgotten_sessions), (20, 20));
    let told = unmet(&Expect::default(), &results);
    assert!(told.contains(&"20 persistent sessions lost, 0 allowed".to_owned()), "{told:?}");
    assert!(total(&results).lost > 0, "{:?}", results.integrity);
    assert!(!results.integrity.worst[0].missing.is_empty());
    assert_eq!(results.totals.published_all(), 1_500);
}

#[test]
fn a_pause_is_latency_and_not_loss() {
    let results = run_with(
        r#"{ fault = { pause = "main" } }, { delay = "500ms" }, { fault = { resume = "main" } }"#,
    );
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
    assert_eq!((total(&results).received, results.totals.connections_lost), (1_500, 0));
    let latency = results.latency(LatencyKind::EndToEnd, Some(1)).unwrap();
    assert!(latency.summary.max_us >= 450_000, "{:?}", latency.summary);
}

#[test]
fn a_fault_without_a_process_fails_the_run_and_keeps_what_was_measured() {
    let broker = Mosquitto::start();
    let results =
        run_on(&text(r#"{ fault = { kill = "main" } }"#), &broker.address, BrokerAccess::None);
    match &results.run.outcome {
        Outcome::Failed(why) => assert!(why.contains("--pid"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(results.totals.published_all() > 0);
}

#[test]
fn a_pid_that_nobody_has_is_refused_before_anything_is_started() {
    let broker = Mosquitto::start();
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    for pid in [gone.id(), 0, u32::MAX] {
        let options = Options { broker: BrokerAccess::Pid(pid), ..Options::default() };
        match run(&common::scenario(&text("{ delay = \"1ms\" }"), &broker.address), options) {
            Err(RunError::Broker(error)) => {
                assert!(error.to_string().contains(&format!("the ID {pid}:")), "{error}");
            }
            other => panic!("{pid}: {:?}", other.map(|results| results.run)),
        }
    }
}

#[test]
fn a_pid_that_is_not_the_brokers_is_refused_with_the_owners_name() {
    let broker = Mosquitto::start();
    let mut other = std::process::Command::new("cat");
    let mut other = other.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let options = Options { broker: BrokerAccess::Pid(other.id()), ..Options::default() };
    let model = common::scenario(&text("{ delay = \"1ms\" }"), &broker.address);
    let refused = run(&model, options).map(|results| results.run).unwrap_err();
    drop(other.stdin.take());
    other.wait().unwrap();
    let told = refused.to_string();
    let owner = format!("process {} (mosquitto)", broker.pid());
    for words in [&format!("--pid {}", other.id()), &broker.address, &owner] {
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn a_broker_is_not_started_where_another_would_be_measured() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    let refused = BrokerProcess::start(vec!["no.such.program".to_owned()], &address);
    let told = refused.unwrap_err();
    assert!(matches!(&told, FaultError::Taken { address: taken } if *taken == address), "{told}");
}

#[test]
fn the_user_can_stop_a_run_and_keeps_what_was_measured() {
    let broker = Mosquitto::start();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let seen = std::sync::Arc::clone(&stop);
    let options = Options {
        threads: Some(1),
        stop,
        on_progress: Some(Box::new(move |progress| {
            if progress.second.published > 0 {
                seen.store(true, std::sync::atomic::Ordering::Relaxed);
            }
        })),
        ..Options::default()
    };
    let model = common::scenario(&text("{ delay = \"1ms\" }"), &broker.address);
    let results = run(&model, options).unwrap();
    assert!(matches!(results.run.outcome, Outcome::Interrupted(_)));
    assert!(!results.validity.valid);
    assert_eq!(results.validity.reasons[0], "stopped by the user");
    let published = results.totals.published_all();
    assert!(published > 0 && published < 1_500, "{published}");
    assert_eq!(results.run.threads, 1);
}
