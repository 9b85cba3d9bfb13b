//! The broker is killed, paused and restarted under load, and integrity is judged across it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

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
    // A message was due every 2 ms. On a busy machine the broker stands still for less or longer
    // than was asked for, but not for a moment only.
    let [paused, resumed] = [0, 1].map(|at: usize| results.faults[at].at_secs);
    let stood_us = ((resumed - paused) * 1e6) as u64;
    assert!(latency.summary.max_us >= stood_us / 2, "{stood_us}: {:?}", latency.summary);
    assert!(stood_us > 0 && latency.summary.max_us > latency.summary.p50_us);
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
    let mut gone = Command::new("true").spawn().unwrap();
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
    let mut other = Command::new("cat");
    let mut other = other.stdin(Stdio::piped()).spawn().unwrap();
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

/// A program that passes each connection on to a port of this machine.
struct Proxy {
    process: Child,
    address: String,
}

impl Proxy {
    fn to(broker: &str) -> Self {
        let script = "import socket, sys, threading\n\
            def carry(one, other):\n\
            \x20   try:\n\
            \x20       while data := one.recv(65536): other.sendall(data)\n\
            \x20   except OSError: pass\n\
            \x20   finally: other.close()\n\
            door = socket.create_server(('127.0.0.1', 0), backlog=100)\n\
            print(door.getsockname()[1], flush=True)\n\
            while True:\n\
            \x20   one = door.accept()[0]\n\
            \x20   other = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
            \x20   for ends in (one, other), (other, one):\n\
            \x20       threading.Thread(target=carry, args=ends, daemon=True).start()\n";
        let port = broker.rsplit_once(':').unwrap().1;
        let mut process = Command::new("python3");
        process.args(["-c", script, port]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = process.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = format!("127.0.0.1:{}", line.trim());
        Self { process, address }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_proxy_is_not_measured_as_the_broker() {
    let broker = Mosquitto::start();
    let proxy = Proxy::to(&broker.address);
    let text = common::pairs(5, 20, 1, 100);
    let results = run_on(&text, &proxy.address, BrokerAccess::None);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert_eq!(results.broker_load, None);
    let why = results.validity.others_unknown.unwrap();
    let ways = format!("passes clients on to process {} (mosquitto)", broker.pid());
    assert!(why.starts_with(&format!("process {} (", proxy.process.id())), "{why}");
    assert!(why.contains(&ways) && why.contains(&broker.address), "{why}");
    // The broker itself, as the user says, and nothing that is not behind the address.
    let behind = run_on(&text, &proxy.address, BrokerAccess::Pid(broker.pid()));
    let load = behind.broker_load.unwrap();
    assert_eq!(load.source, format!("pid {}", broker.pid()));
    assert_eq!(behind.validity.others_unknown, None);
    let told = behind.validity.notes.iter().find(|note| note.contains("(--pid)"));
    assert!(told.is_some_and(|note| note.contains(&proxy.address)), "{:?}", behind.validity.notes);
    let other = Mosquitto::start();
    let options = Options { broker: BrokerAccess::Pid(other.pid()), ..Options::default() };
    let refused = run(&common::scenario(&text, &proxy.address), options).unwrap_err().to_string();
    assert!(refused.contains("does not connect to this process"), "{refused}");
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
