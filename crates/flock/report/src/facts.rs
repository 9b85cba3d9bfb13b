//! How a run was done, in words: what somebody needs who runs it again.

use crate::page::rows_of;
use crate::table::Table;
use flock_measure::text::{bytes, count, counted, micros, number};
use flock_measure::{BrokerInfo, Limits, MachineInfo, Results, ScenarioInfo, Surroundings};

pub(super) const AS_WRITTEN: &str = "The scenario file";

/// The texts that belong to a run.
pub(super) fn verbatim(results: &Results) -> impl Iterator<Item = (&'static str, &str)> {
    let all = [
        ("The scenario as it ran", &results.scenario.as_ran),
        (AS_WRITTEN, &results.scenario.source),
        ("The broker's configuration", &results.broker.config),
    ];
    all.into_iter().map(|(name, text)| (name, text.as_str())).filter(|(_, text)| !text.is_empty())
}

fn or_unknown(text: &str, way_out: &str) -> String {
    if text.is_empty() { format!("unknown ({way_out})") } else { text.to_owned() }
}

fn config_words(broker: &BrokerInfo) -> String {
    match (broker.config.is_empty(), broker.command.is_empty()) {
        (false, _) => "below".to_owned(),
        (true, false) => "no file in its command".to_owned(),
        (true, true) => or_unknown("", "use --broker-config"),
    }
}

/// `lab: a CPU, 4 cores, 16 GB`.
fn machine_words(machine: &MachineInfo) -> String {
    let MachineInfo { hostname, cpu, cores, memory_bytes, .. } = machine;
    format!("{hostname}: {cpu}, {cores} cores, {}", bytes(*memory_bytes as f64))
}

pub(crate) fn clients_words(scenario: &ScenarioInfo) -> String {
    let ScenarioInfo { clients, publishers, subscribers, topics, .. } = scenario;
    let topics = counted(*topics, "topic");
    let [clients, publishers, subscribers] = [clients, publishers, subscribers].map(|n| count(*n));
    format!("{clients} ({publishers} publish, {subscribers} subscribe), {topics}")
}

/// What was asked to be otherwise than the scenario says.
fn overrides_words(results: &Results) -> String {
    let all = results.scenario.overrides.iter().map(|(name, value)| format!("{name} {value}"));
    all.collect::<Vec<_>>().join(", ")
}

fn round_trip_words(results: &Results) -> String {
    results.broker.round_trip.map_or(String::new(), |trip| {
        format!(
            "{} (median of {}), {} at least",
            micros(trip.median_us),
            trip.samples,
            micros(trip.min_us)
        )
    })
}

fn limits_words(limits: &Limits) -> String {
    let cpu = limits.cpu_cores.map(|cores| format!("{} cores", number(cores)));
    let memory = limits.memory_bytes.map(|limit| bytes(limit as f64));
    [cpu, memory].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What is not known is said to be, where it may change the figures.
fn surroundings_words(round: &Surroundings) -> String {
    let governor = round.governor.as_deref().unwrap_or("unknown");
    let nodes = round.numa_nodes.map_or("unknown".to_owned(), |nodes| nodes.to_string());
    let mut words = vec![format!("governor {governor}"), format!("NUMA nodes {nodes}")];
    words.extend(round.virtual_machine.as_ref().map(|of| format!("virtual machine ({of})")));
    words.extend(round.container.as_ref().map(|of| format!("container ({of})")));
    let limits = limits_words(&round.limits);
    words.push(match limits.as_str() {
        "" => "no limits of CPU or memory".to_owned(),
        limits => format!("limited to {limits}"),
    });
    words.join(", ")
}

/// Everything that somebody needs to run it again, as name and value.
pub fn disclosure(results: &Results) -> Vec<(&str, String)> {
    let mut all = run_facts(results);
    all.extend(broker_facts(results));
    all.extend(machine_facts(results));
    all.extend(
        results.scenario.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())),
    );
    let sysctls = results.machine.sysctls.iter();
    all.extend(sysctls.map(|(name, value)| (name.as_str(), value.clone())));
    all
}

fn broker_facts(results: &Results) -> Vec<(&'static str, String)> {
    vec![
        ("broker", format!("{} {}", results.broker.name, results.broker.version).trim().to_owned()),
        ("broker address", results.broker.addresses.join(", ")),
        ("broker's host", or_unknown(&results.broker.host, "use --broker-host")),
        (
            "broker command",
            or_unknown(&results.broker.command.join(" "), "use --pid or --broker-command"),
        ),
        ("broker's configuration", config_words(&results.broker)),
        ("broker's limits", limits_words(&results.broker.limits)),
        ("round trip to the broker", round_trip_words(results)),
        ("broker's cores", results.broker.cpus.clone().unwrap_or_default()),
        (
            "broker load from",
            results.broker_load.as_ref().map_or(String::new(), |load| load.source.clone()),
        ),
    ]
}

fn run_facts(results: &Results) -> Vec<(&'static str, String)> {
    vec![
        ("tool", results.tool.words()),
        ("command", results.run.command.join(" ")),
        ("load threads", results.run.threads.to_string()),
        (
            "loop",
            match results.scenario.closed_loop {
                true => "closed: latency counts from sending".to_owned(),
                false => String::new(),
            },
        ),
        (
            "scenario",
            format!(
                "{}, scale {}, seed {}",
                results.scenario.id,
                number(results.scenario.scale),
                results.scenario.seed
            ),
        ),
        ("options", overrides_words(results)),
        ("clients", clients_words(&results.scenario)),
    ]
}

fn machine_facts(results: &Results) -> Vec<(&'static str, String)> {
    let machine = &results.machine;
    vec![
        ("load machine", machine_words(machine)),
        ("system", format!("{}, {}", machine.os, machine.kernel)),
        ("surroundings", surroundings_words(&machine.surroundings)),
        (
            "descriptors",
            format!(
                "{} soft, {} hard",
                count(machine.descriptors_soft),
                count(machine.descriptors_hard)
            ),
        ),
    ]
}

/// Where the load came from, besides this machine.
pub(super) fn agents(results: &Results) -> Table {
    fn plus_minus(of: f64, error: f64) -> String {
        format!("{} ± {}", micros(of), micros(error))
    }
    rows_of(
        &results.run.agents,
        &[
            ("Agent", |agent| agent.address.clone()),
            ("Host", |agent| agent.machine.hostname.clone()),
            ("Clients", |agent| count(agent.clients)),
            ("Clock offset", |agent| plus_minus(agent.clock_offset_us, agent.clock_error_us)),
            ("Maximum clock drift", |agent| match agent.clock_readings {
                0 => "the commander's clock".to_owned(),
                n => {
                    let drift = plus_minus(agent.clock_drift_us, agent.clock_drift_error_us);
                    format!("{drift}, {n} readings")
                }
            }),
            ("Died", |agent| agent.died.clone().unwrap_or_default()),
        ],
    )
}
