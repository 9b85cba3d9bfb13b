//! Agents together give the results of one process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Agent, Mosquitto, pairs, run_on, scenario, total};
use flock::engine::{BrokerAccess, Options, RunError, run};
use flock_measure::{LatencyKind, Outcome};
use rustix::process::{Pid, Signal, kill_process};

/// Shared and plain subscribers, so that both kinds of judgement cross the process boundary.
fn mixed() -> String {
    pairs(21, 60, 1, 200)
        .replace("[clients.pub]", "[clients.share]\ncount = 7\n[clients.pub]")
        .replace("[[stage]]\nname = \"connect\"", "[subscriptions.share]\nfilter = \"$share/g/pairs/#\"\n[[stage]]\nname = \"connect\"\n[[stage.do]]\nclients = \"share\"\nsteps = [{ connect = {} }, { subscribe = { to = \"share\", qos = 1 } }]")
}

#[test]
fn agents_merged_equal_one_process() {
    let broker = Mosquitto::start();
    let alone = run_on(&mixed(), &broker.address, BrokerAccess::None);
    let agents = [Agent::start(), Agent::start(), Agent::start()];
    let options = Options {
        threads: Some(1),
        agents: agents.iter().map(|agent| agent.address.clone()).collect(),
        ..Options::default()
    };
    let together = run(&scenario(&mixed(), &broker.address), options).unwrap();
    assert_eq!(together.run.outcome, Outcome::Completed, "{:?}", together.errors);
    assert!(
        alone.integrity.is_clean() && together.integrity.is_clean(),
        "{:?}",
        together.integrity
    );
    assert_eq!(total(&alone), total(&together));
    assert_eq!(total(&together).expected, 2 * 21 * 60);
    assert_eq!(alone.totals.published, together.totals.published);
    assert_eq!(alone.totals.received, together.totals.received);
    assert_eq!(alone.totals.connects_ok, together.totals.connects_ok);
    for kind in [LatencyKind::EndToEnd, LatencyKind::PublishAck, LatencyKind::Connect] {
        let counts = [&alone, &together].map(|results| results.latency_merged(kind).count());
        assert_eq!(counts[0], counts[1], "{kind:?}");
    }
    assert_eq!(together.run.agents.len(), 3);
    assert_eq!(together.run.agents.iter().map(|agent| agent.clients).sum::<u64>(), 49);
}

#[test]
fn agents_at_two_addresses_share_a_load_and_its_source_addresses() {
    let broker = Mosquitto::start();
    let agents = ["127.0.0.2", "127.0.0.3"].map(Agent::start_at);
    let mut model = scenario(&mixed(), &broker.address);
    model.source_addresses = vec!["127.0.0.4".parse().unwrap(), "127.0.0.5".parse().unwrap()];
    let options = Options {
        threads: Some(1),
        agents: agents.iter().map(|agent| agent.address.clone()).collect(),
        ..Options::default()
    };
    let results = run(&model, options).unwrap();
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
    assert_eq!(total(&results).expected, 2 * 21 * 60);
    for (agent, found) in agents.iter().zip(&results.run.agents) {
        assert_eq!(found.address, agent.address);
        assert!(found.clients >= 23, "{found:?}");
    }
}

#[test]
fn an_agent_that_dies_is_reported() {
    let broker = Mosquitto::start();
    let (mut doomed, other) = (Agent::start(), Agent::start());
    let agents = vec![doomed.address.clone(), other.address.clone()];
    let mut seconds = 0;
    let options = Options {
        threads: Some(1),
        agents,
        on_progress: Some(Box::new(move |_| {
            seconds += 1;
            if seconds == 1 {
                let _ = doomed.process.kill();
            }
        })),
        ..Options::default()
    };
    let results = run(&scenario(&pairs(10, 300, 1, 100), &broker.address), options).unwrap();
    assert!(!results.validity.valid);
    assert!(results.validity.reasons.iter().any(|reason| reason.contains("missing")));
    assert_eq!(results.run.agents.iter().filter(|agent| agent.died.is_some()).count(), 1);
    assert!(results.totals.received_all() > 0);
}

#[test]
fn an_agent_that_hangs_is_given_up_and_the_others_are_judged() {
    let broker = Mosquitto::start();
    let agents = [Agent::start(), Agent::start()];
    let hung = Pid::from_raw(agents[0].process.id() as i32).unwrap();
    let mut seconds = 0;
    let options = Options {
        threads: Some(1),
        agents: agents.iter().map(|agent| agent.address.clone()).collect(),
        on_progress: Some(Box::new(move |_| {
            seconds += 1;
            if seconds == 1 {
                kill_process(hung, Signal::STOP).unwrap();
            }
        })),
        ..Options::default()
    };
    // Half of the pairs end after three seconds; the others never.
    let results = run(&scenario(&pairs(10, 300, 1, 100), &broker.address), options).unwrap();
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.run);
    assert!(!results.validity.valid);
    let died: Vec<bool> = results.run.agents.iter().map(|agent| agent.died.is_some()).collect();
    assert_eq!(died, [true, false], "{:?}", results.run.agents);
    assert!(results.validity.reasons[0].contains("silent for"), "{:?}", results.validity);
    // The other's half is there, and whole.
    assert_eq!((total(&results).received, total(&results).lost), (1_500, 0));
}

#[test]
fn an_agent_that_is_not_there_is_named() {
    let address = format!("127.0.0.1:{}", net::free_port().unwrap());
    let options = Options { agents: vec![address.clone()], ..Options::default() };
    match run(&scenario(&pairs(1, 1, 0, 1), "127.0.0.1:1"), options) {
        Err(RunError::Agent(error)) => assert!(error.to_string().contains(&address), "{error}"),
        other => panic!("{:?}", other.map(|results| results.run)),
    }
}
