//! The report as Markdown, for a pull request or a wiki.

use std::fmt::Write as _;

use super::page::table;
use super::published::{Beside, HARDWARE_DIFFERS, published};
use flock_measure::figures::{Figures, Verdict, search_words, verdicts};
use flock_measure::text::{self, bytes, count, micros, number, seconds};
use flock_measure::{
    BrokerInfo, ClientLatency, Latency, LatencySummary, Limits, MachineInfo, Results, ScenarioInfo,
    Surroundings, Timer,
};

pub fn markdown(results: &Results) -> String {
    let mut out = format!("# {}: {}\n\n", results.scenario.id, results.scenario.title);
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}, {}, {} against `{}`\n",
        text::date(results.run.started_unix_ms),
        seconds(results.run.duration_secs),
        format_args!("{} {}", results.tool.name, results.tool.version),
        results.broker.addresses.join(", "),
    );
    for (is, words) in verdicts(results) {
        let said = match is {
            Verdict::Bad => format!("**{}:**", is.word()),
            _ => format!("{}:", is.word()),
        };
        let _ = writeln!(out, "- {said} {words}");
    }
    for words in &results.validity.notes {
        let _ = writeln!(out, "- note: {words}");
    }
    for (name, words) in searches(results) {
        let _ = writeln!(out, "- {name}: {words}");
    }
    out.push('\n');
    let _ = writeln!(
        out,
        "{}",
        table(&["Figure", "Value"], &headline_rows(&Figures::of(results))).markdown()
    );
    out.push_str("## Latency\n\n");
    let _ = writeln!(out, "{}", table(&LATENCY_HEAD, &latency_rows(results)).markdown());
    if !results.integrity.by_qos.is_empty() {
        out.push_str("## Integrity\n\n");
        let _ = writeln!(out, "{}", table(&INTEGRITY_HEAD, &integrity_rows(results)).markdown());
    }
    if !results.worst_clients.is_empty() {
        let _ = writeln!(out, "## Slowest clients\n\n{WORST_CLIENTS_NOTE}\n");
        let _ =
            writeln!(out, "{}", table(&WORST_CLIENTS_HEAD, &worst_client_rows(results)).markdown());
    }
    let figures = published(results);
    if !figures.is_empty() {
        let _ = writeln!(out, "## Published results for reference\n\n{HARDWARE_DIFFERS}\n");
        let beside = Beside::of(results, &figures);
        if !beside.difference.is_empty() {
            let _ = writeln!(out, "{}\n", beside.difference);
        }
        let _ = writeln!(out, "{}", beside.table.markdown());
    }
    out.push_str("## Environment\n\n");
    let facts: Vec<Vec<String>> = disclosure(results)
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![name.to_owned(), value])
        .collect();
    let _ = writeln!(out, "{}", table(&["What", "Value"], &facts).markdown());
    // What it was written in is in the page and in the results.
    for (name, text) in verbatim(results).filter(|(name, _)| *name != AS_WRITTEN) {
        let _ = writeln!(out, "## {name}\n\n```text\n{}\n```\n", text.trim_end());
    }
    out
}

/// What the run looked for, and what it found.
pub(super) fn searches(results: &Results) -> impl Iterator<Item = (&'static str, String)> {
    let sizing = results.sizing.as_ref().map(|found| (found.sought.title(), found.words()));
    let rate = results.rate_search.as_ref();
    let rate = rate.map(|found| ("highest sustained rate", search_words(found)));
    sizing.into_iter().chain(rate)
}

const AS_WRITTEN: &str = "The scenario file";

/// The texts that belong to a run.
pub(super) fn verbatim(results: &Results) -> impl Iterator<Item = (&'static str, &str)> {
    let all = [
        ("The scenario as it ran", &results.scenario.as_ran),
        (AS_WRITTEN, &results.scenario.source),
        ("The broker's configuration", &results.broker.config),
    ];
    all.into_iter().map(|(name, text)| (name, text.as_str())).filter(|(_, text)| !text.is_empty())
}

/// The headline figures that the run has.
pub(super) fn headline_rows(figures: &Figures) -> Vec<Vec<String>> {
    let rate = |value: Option<f64>| value.map(|value| format!("{}/s", number(value)));
    let us = |value: Option<f64>| match value {
        None if figures.latency_missing > 0 => Some("unknown".to_owned()),
        value => value.map(micros),
    };
    let rows = [
        ("published", rate(figures.published_per_sec)),
        ("received", rate(figures.received_per_sec)),
        ("latency, average", us(figures.average_us)),
        ("latency, p50", us(figures.p50_us)),
        ("latency, p75", us(figures.p75_us)),
        ("latency, p90", us(figures.p90_us)),
        ("latency, p95", us(figures.p95_us)),
        ("latency, p99", us(figures.p99_us)),
        ("latency, p99.9", us(figures.p999_us)),
        ("latency, maximum", us(figures.max_us)),
        (
            "without latency: lost, refused or failed",
            (figures.latency_missing > 0).then(|| count(figures.latency_missing)),
        ),
        ("connections, at most", Some(count(figures.connections_max))),
        (
            "broker CPU, average",
            figures.cpu_average_percent.map(|p| format!("{} cores", number(p / 100.0))),
        ),
        (
            "broker CPU per message",
            figures.cpu_us_per_message.map(|us| format!("{} us", number(us))),
        ),
        ("broker memory, at most", figures.memory_max_bytes.map(bytes)),
        ("broker memory per connection", figures.memory_per_connection_bytes.map(bytes)),
        ("broker memory, slope", figures.memory_slope.map(|slope| slope.words())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect()
}

pub(super) const LATENCY_HEAD: [&str; 11] =
    ["Latency", "QoS", "Count", "Average", "p50", "p75", "p90", "p95", "p99", "p99.9", "Maximum"];

pub(super) fn latency_rows(results: &Results) -> Vec<Vec<String>> {
    let row = |name: String, qos: Option<u8>, samples: String, s: &LatencySummary| {
        let all = [s.p50_us, s.p75_us, s.p90_us, s.p95_us, s.p99_us, s.p999_us, s.max_us];
        let qos = qos.map_or(String::new(), |qos| qos.to_string());
        let mut row = vec![name, qos, samples, micros(s.average_us)];
        row.extend(all.map(|us| micros(us as f64)));
        row
    };
    let mut rows = Vec::new();
    for Latency { kind, qos, summary, unfinished, missing, .. } in &results.latencies {
        let missing = match *missing {
            0 => String::new(),
            missing => format!(", and {} without latency", count(missing)),
        };
        let samples = unfinished_words(summary.count, *unfinished) + &missing;
        rows.push(row(kind.title().to_owned(), *qos, samples, summary));
    }
    let lag = &results.validity.receive_lag;
    if lag.count > 0 {
        rows.push(row(READ_LATE.to_owned(), None, count(lag.count), lag));
    }
    for Timer { name, summary, unfinished } in &results.timers {
        let samples = unfinished_words(summary.count, *unfinished);
        rows.push(row(format!("timer {name}"), None, samples, summary));
    }
    rows
}

fn unfinished_words(all: u64, unfinished: u64) -> String {
    match unfinished {
        0 => count(all),
        open => format!("{}, {} of them unfinished", count(all), count(open)),
    }
}

/// How long messages may have waited for the tool to read them.
const READ_LATE: &str = "time until read by flock";

pub(super) const WORST_CLIENTS_NOTE: &str = "Clients whose median latency is at least twice that \
     of all clients, at most ten. Medians and p99 are up to 25 % too high.";
pub(super) const WORST_CLIENTS_HEAD: [&str; 6] =
    ["Client", "Latency", "Count", "p50", "p99", "Maximum"];

pub(super) fn worst_client_rows(results: &Results) -> Vec<Vec<String>> {
    let row = |one: &ClientLatency| {
        let mut row = vec![one.client.clone(), one.kind().title().to_owned(), count(one.count)];
        row.extend([one.p50_us, one.p99_us, one.max_us].map(|us| micros(us as f64)));
        row
    };
    results.worst_clients.iter().map(row).collect()
}

pub(super) const INTEGRITY_HEAD: [&str; 10] = [
    "QoS",
    "Expected",
    "Received",
    "Lost",
    "Duplicated",
    "Duplicated with DUP",
    "Duplicated without cause",
    "Out of order",
    "Received unacknowledged",
    "Not judged",
];

pub(super) fn integrity_rows(results: &Results) -> Vec<Vec<String>> {
    let row = |c: &flock_measure::IntegrityCount| {
        let mut row = vec![c.qos.to_string()];
        let all = [
            c.expected,
            c.received,
            c.lost,
            c.duplicated,
            c.duplicated_marked,
            c.duplicated_without_cause(),
            c.reordered,
            c.unacknowledged_received,
            c.unjudged,
        ];
        row.extend(all.map(count));
        row
    };
    results.integrity.by_qos.iter().map(row).collect()
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
pub fn machine_words(machine: &MachineInfo) -> String {
    let MachineInfo { hostname, cpu, cores, memory_bytes, .. } = machine;
    format!("{hostname}: {cpu}, {cores} cores, {}", bytes(*memory_bytes as f64))
}

pub fn clients_words(scenario: &ScenarioInfo) -> String {
    let ScenarioInfo { clients, publishers, subscribers, topics, .. } = scenario;
    let [clients, publishers, subscribers, topics] =
        [clients, publishers, subscribers, topics].map(|n| count(*n));
    format!("{clients} ({publishers} publish, {subscribers} subscribe), {topics} topics")
}

/// What was asked to be otherwise than the scenario says.
pub fn overrides_words(results: &Results) -> String {
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
pub fn surroundings_words(round: &Surroundings) -> String {
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
