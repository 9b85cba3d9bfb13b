//! [`run`]: a scenario in, results out.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use super::clock::Clock;
use super::conductor::{Conductor, DRAIN, Mark, OnProgress};
use super::contention;
use super::host;
use super::judge::{Part, judge_shared_groups};
use super::plan::{Plan, PlanError};
use super::pool::{LocalPool, Pool};
use super::preflight::{self, Refusal};
use super::sinks::Sinks;
use super::surroundings;
use super::valid::validity;
use super::watch::watch;
use crate::agent::{AgentError, RemotePool};
use crate::faults::{BrokerProcess, Ensemble, EnsembleSpec, FaultError};
use flock_measure::ledger::SentTable;
use flock_measure::{
    BrokerInfo, HostLoad, Latency, LatencyHistogram, LatencyKind, Minute, Outcome, QosSeries,
    RESULTS_FORMAT, Results, Routing, RunInfo, ScenarioInfo, Service, Timer, ToolInfo,
};
use flock_model::scenario::words::words;
use flock_model::{Scenario, SinkKind};
use flock_sinks::SinkError;

/// How a scenario is to be run.
#[derive(Default)]
pub struct Options<'a> {
    /// The command line, for the report.
    pub command: Vec<String>,
    /// The scenario's own text, for the report.
    pub source: String,
    /// Chosen values worth printing.
    pub parameters: BTreeMap<String, String>,
    /// What was asked to be otherwise than in the source, by the name of the option.
    pub overrides: BTreeMap<String, String>,
    /// Load threads per process; `None` takes the cores.
    pub threads: Option<usize>,
    /// `host:port` of agents to share the load; empty: this machine alone.
    pub agents: Vec<String>,
    /// Where the broker's process is known, so that it can be watched and have faults done to it.
    pub broker: BrokerAccess,
    /// Nodes, engines and links of a cluster that faults are done to.
    pub ensemble: EnsembleSpec,
    /// What is known of the broker, for the report.
    pub broker_info: BrokerInfo,
    /// Set to stop the run early; what was measured is kept.
    pub stop: Arc<AtomicBool>,
    pub on_progress: Option<OnProgress<'a>>,
}

/// How the broker can be reached other than by MQTT.
#[derive(Debug, Default)]
pub enum BrokerAccess {
    #[default]
    None,
    Pid(u32),
    /// Program and arguments; started before the run, ended after it.
    Command(Vec<String>),
    /// A process that somebody else started and hands over.
    Process(BrokerProcess),
    /// `http://host:port/metrics` or `https://...`.
    Metrics(String),
}

/// Why there are no results.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("this machine cannot run the scenario: {0}")]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Broker(#[from] FaultError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Sink(#[from] SinkError),
    #[error("cannot start the load: {0}")]
    Start(#[source] io::Error),
    #[error("`{0}` {1}; write http://host:port/metrics or https://host/metrics")]
    Metrics(String, String),
    #[error("not started: {0} does not return metrics (--metrics)")]
    NoMetrics(String),
    #[error(
        "--pid {pid}: {address} belongs to {owners}, which does not connect to this process: use \
             the ID of the broker, or omit --pid"
    )]
    NotTheBroker { pid: u32, address: String, owners: String },
}

/// Runs a scenario to its end, or as far as it goes. Whatever was measured is in the results, with
/// the outcome; an error means that the run did not begin.
pub fn run(scenario: &Scenario, mut options: Options<'_>) -> Result<Results, RunError> {
    let plan = Plan::new(scenario.clone())?;
    let mut preflight = preflight::Preflight { processes: 1, ..Default::default() };
    if options.agents.is_empty() {
        preflight = preflight::check(scenario)?;
    }
    let ensemble = Ensemble::start(&options.ensemble)?;
    let watched = watch(scenario, std::mem::take(&mut options.broker), &ensemble, &options.agents)?;
    let address = first_address(scenario);
    let round_trip = surroundings::round_trip(address);
    let clock = Clock::start();
    let tag = (clock.epoch_ns() as u64 >> 16) as u16;
    let threads = options.threads.unwrap_or_else(host::cores).max(1);
    let mut scenario = scenario.clone();
    if options.agents.is_empty() {
        scenario.source_addresses.clone_from(&preflight.sources);
    }
    let mut pool: Box<dyn Pool> = if !options.agents.is_empty() {
        Box::new(RemotePool::connect(&scenario, &options.agents, clock, tag, options.threads)?)
    } else if preflight.processes > 1 {
        let each = threads.div_ceil(preflight.processes).max(1);
        Box::new(RemotePool::spawn(&scenario, preflight.processes, clock, tag, each)?)
    } else {
        let started = LocalPool::start(&plan, clock, tag, &preflight.sources, threads);
        Box::new(started.map_err(RunError::Start)?)
    };
    let sinks = Sinks::open(&plan, clock, tag)?;
    let started_unix_ms =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let on_progress = options.on_progress.take().unwrap_or_else(|| Box::new(|_| {}));
    let stop = Arc::clone(&options.stop);
    let threads = pool.threads();
    let mut conductor =
        Conductor::new(Arc::clone(&plan), clock, pool.as_mut(), watched, stop, on_progress);
    conductor.notes.extend(preflight.notes);
    conductor.ensemble = ensemble;
    conductor.sinks = sinks;
    conductor.conduct();
    let mut results = finish(conductor, &plan);
    results.run.command = surroundings::without_passwords(&options.command);
    let known: Vec<&str> = sink_passwords(&scenario).collect();
    hide(&known, &mut options);
    results.run.started_unix_ms = started_unix_ms;
    results.run.threads = threads as u32;
    results.run.agents = pool.agents();
    results.scenario = ScenarioInfo {
        source: options.source,
        parameters: options.parameters,
        overrides: options.overrides,
        ..scenario_info(&plan, &scenario)
    };
    let addresses = scenario.brokers.iter().flat_map(|broker| broker.addresses.clone());
    results.broker = BrokerInfo {
        addresses: addresses.collect(),
        round_trip,
        ..broker_info(options.broker_info, std::mem::take(&mut results.broker), address)
    };
    Ok(results)
}

/// Takes passwords of sinks out of what the report shows.
fn hide(passwords: &[&str], options: &mut Options<'_>) {
    for password in passwords {
        options.source = options.source.replace(&format!("\"{password}\""), "\"(left out)\"");
        for value in options.parameters.values_mut().chain(options.overrides.values_mut()) {
            *value = value.replace(password, "(left out)");
        }
    }
}

fn sink_passwords(scenario: &Scenario) -> impl Iterator<Item = &str> {
    let logins = scenario.sinks.iter().filter_map(|sink| match &sink.kind {
        SinkKind::Kafka(kafka) => kafka.login.as_ref(),
        SinkKind::Webhook(_) => None,
    });
    logins.map(|login| login.password.as_str()).filter(|password| !password.is_empty())
}

pub(super) fn first_address(scenario: &Scenario) -> &str {
    let first = scenario.brokers.first().and_then(|broker| broker.addresses.first());
    first.map_or("", String::as_str)
}

/// What is to be told of the broker: what was said, and of the rest what was found.
fn broker_info(mut said: BrokerInfo, found: BrokerInfo, address: &str) -> BrokerInfo {
    said.pid = said.pid.or(found.pid);
    if !found.command.is_empty() {
        said.command = found.command;
    }
    if said.config.is_empty() {
        said.config = found.config;
    }
    if said.name.is_empty() {
        // A program tells its name by its own.
        let program = said.command.first().map(Path::new).and_then(Path::file_name);
        said.name = program.map_or(String::new(), |name| name.to_string_lossy().into_owned());
    }
    if said.host.is_empty() && (said.pid.is_some() || preflight::is_local(address)) {
        said.host = "the load machine".to_owned();
    }
    said.limits = found.limits;
    said.command = surroundings::without_passwords(&said.command);
    said
}

/// Stops the load, judges, and puts everything together.
fn finish(mut conductor: Conductor<'_>, plan: &Plan) -> Results {
    let (sent, ticks) = conductor.pool.finish();
    let ended_secs = conductor.clock.now_ns() as f64 / 1e9;
    for tick in &ticks {
        conductor.on_tick(tick);
    }
    conductor.complete_rest();
    conductor.sinks.close();
    let mut part = conductor.pool.judge(&sent);
    judge_shared_groups(plan, &sent, &mut part);
    let window = measured_window(&conductor, ended_secs);
    let broker_load = conductor.broker_load.as_ref().map(|sampler| {
        let mut load = sampler.load(window.0, window.1);
        add_unit_costs(&mut load, &conductor);
        load.cpu_wait_ratio = contention::wait_ratio(&conductor.marks);
        load
    });
    if part.integrity.by_qos.is_empty() && !plan.all_stamped {
        conductor
            .notes
            .push("messages have no stamp: latency and integrity were not measured".into());
    }
    if part.integrity.reordered_in_groups > 0 {
        conductor.notes.push(format!(
            "{} messages arrived out of order within a shared subscription, which MQTT allows",
            part.integrity.reordered_in_groups
        ));
    }
    let routing = routing(&conductor, &sent, &mut part);
    let validity = validity(&conductor, &part);
    let mut results = Results {
        format: RESULTS_FORMAT,
        tool: ToolInfo::here(),
        run: RunInfo {
            duration_secs: ended_secs,
            outcome: outcome(&conductor),
            ..RunInfo::default()
        },
        machine: host::machine(),
        totals: conductor.totals,
        latencies: latencies(&part),
        broker_load,
        tool_load: conductor.own_load.load(window.0, window.1),
        validity,
        timers: timers(plan, &part),
        integrity: part.integrity,
        worst_clients: part.worst_clients,
        errors: super::tally::merge_errors(part.errors.into_iter()),
        rate_search: conductor.rate_search.take(),
        routing,
        ..Results::default()
    };
    if let Some(process) = &conductor.broker {
        results.broker = process_info(process.pid(), process.command());
    } else if conductor.found.is_some() {
        results.broker = process_info(conductor.found, &[]);
    }
    keep_those_apart(&mut results);
    results.series = std::mem::take(&mut conductor.series);
    results.heat = std::mem::take(&mut conductor.heat);
    results.qos_series = QosSeries::of(std::mem::take(&mut conductor.levels));
    results.phases = std::mem::take(&mut conductor.phases);
    results.faults = std::mem::take(&mut conductor.faults);
    judge_faults(&mut results);
    judge_service(&mut results, &conductor.service);
    conductor.steps.compact(&mut results);
    results
}

/// What the sinks received, with what clients published and received in the same minutes.
fn routing(conductor: &Conductor<'_>, sent: &SentTable, part: &mut Part) -> Option<Routing> {
    if conductor.sinks.is_empty() {
        return None;
    }
    let mut minutes: Vec<Minute> = Vec::new();
    for (qos, seconds) in conductor.levels.iter().enumerate() {
        for second in seconds {
            // A second is named after its end.
            let at = second.at_secs.saturating_sub(1) as usize / 60;
            while minutes.len() <= at {
                let minute = minutes.len() as u32 + 1;
                minutes.push(Minute { minute, ..Minute::default() });
            }
            minutes[at].published[qos] += second.published;
            minutes[at].received[qos] += second.received;
        }
    }
    let measured = conductor.phases.iter().filter(|phase| phase.measured);
    let measured: Vec<_> = measured.map(|phase| (phase.from_secs, phase.to_secs)).collect();
    Some(Routing { sinks: conductor.sinks.judge(sent, &measured, part), minutes })
}

/// Of the slowest clients only those are named that stand out.
fn keep_those_apart(results: &mut Results) {
    let all = [LatencyKind::EndToEnd, LatencyKind::Routed].map(|kind| results.latency_merged(kind));
    results.worst_clients.retain(|one| one.is_apart(&all[usize::from(one.routed)]));
}

/// What can be told of a broker's process.
fn process_info(pid: Option<u32>, command: &[String]) -> BrokerInfo {
    let mut command = command.to_vec();
    // One that was started here resolves its arguments as we do.
    let folder = if command.is_empty() { pid.and_then(surroundings::folder_of) } else { None };
    if command.is_empty() {
        command = pid.map(surroundings::command_of).unwrap_or_default();
    }
    BrokerInfo {
        pid,
        config: surroundings::config_of(&command, folder.as_deref()),
        limits: pid.map(surroundings::limits_of).unwrap_or_default(),
        command,
        ..BrokerInfo::default()
    }
}

fn outcome(conductor: &Conductor<'_>) -> Outcome {
    let totals = &conductor.totals;
    match &conductor.outcome {
        Outcome::Completed if totals.connects_started > 0 && totals.connects_ok == 0 => {
            Outcome::Failed("no client could connect".into())
        }
        outcome => outcome.clone(),
    }
}

fn measured_window(conductor: &Conductor<'_>, ended_secs: f64) -> (f64, f64) {
    let at = |mark: Option<Mark>| mark.map(|mark| mark.at_secs);
    (
        at(conductor.marks.measured_from).unwrap_or(0.0),
        at(conductor.marks.measured_to).unwrap_or(ended_secs),
    )
}

/// CPU per message over the measured stages; CPU per connect until all are connected; memory per
/// connection then, or after the hold that follows.
fn add_unit_costs(load: &mut HostLoad, conductor: &Conductor<'_>) {
    let marks = &conductor.marks;
    if let (Some(from), Some(to)) = (marks.measured_from, marks.measured_to) {
        let received = to.standing.received.saturating_sub(from.standing.received);
        if let (Some(before), Some(after)) = (from.broker_cpu_secs, to.broker_cpu_secs)
            && received > 0
            && is_figure(after - before, load)
        {
            load.cpu_us_per_message = Some((after - before) * 1e6 / received as f64);
        }
    }
    if let (Some(from), Some(to)) = (marks.start, marks.connected) {
        let connects = to.standing.connects_ok.saturating_sub(from.standing.connects_ok);
        if let (Some(before), Some(after)) = (from.broker_cpu_secs, to.broker_cpu_secs)
            && connects > 0
            && is_figure(after - before, load)
        {
            load.cpu_us_per_connect = Some((after - before) * 1e6 / connects as f64);
        }
        let to = marks.settled.unwrap_or(to);
        let standing = to.standing.connections.saturating_sub(from.standing.connections);
        // Where clients come and go, memory is no matter of those that stand.
        if let (Some(before), Some(after)) = (from.broker_memory_bytes, to.broker_memory_bytes)
            && standing > 0
            && standing == connects
        {
            let grown = after as f64 - before as f64;
            load.memory_bytes_per_connection = Some(grown / standing as f64);
        }
    }
}

/// A few steps of the clock are no figure.
fn is_figure(spent_secs: f64, load: &HostLoad) -> bool {
    spent_secs * 1e6 >= load.cpu_resolution_us * CPU_STEPS_MIN && load.cpu_resolution_us > 0.0
}

fn latencies(part: &Part) -> Vec<Latency> {
    part.latencies
        .iter()
        .filter(|one| !one.histogram.is_empty() || one.missing > 0)
        .map(|one| {
            let has_qos = matches!(
                one.kind,
                LatencyKind::PublishAck
                    | LatencyKind::EndToEnd
                    | LatencyKind::Routed
                    | LatencyKind::RoundTrip
            );
            Latency {
                kind: one.kind,
                qos: has_qos.then_some(one.qos),
                summary: one.histogram.summary(),
                histogram: one.histogram.clone(),
                unfinished: one.unfinished,
                missing: one.missing,
            }
        })
        .collect()
}

fn timers(plan: &Plan, part: &Part) -> Vec<Timer> {
    let found = part.timers.iter().zip(&part.timers_unfinished);
    let timer = |(name, (histogram, unfinished)): (&String, (&LatencyHistogram, &u64))| Timer {
        name: name.clone(),
        summary: histogram.summary(),
        unfinished: *unfinished,
    };
    plan.timers.iter().zip(found).map(timer).collect()
}

/// What each fault led to, read off the series.
fn judge_faults(results: &mut Results) {
    let starts: Vec<f64> = results.faults.iter().map(|fault| fault.at_secs).collect();
    // Clients before something was taken away that has not been given back yet.
    let mut missed = 0;
    for fault in &mut results.faults {
        // Faults of one second show together; the effect of a later one is its own.
        let next = starts.iter().copied().find(|start| *start >= fault.at_secs + 1.0);
        let until = next.unwrap_or(f64::MAX).min(fault.at_secs + FAULT_EFFECT_SECS);
        let at = |second: &&flock_measure::Second| f64::from(second.at_secs);
        let there = results
            .series
            .iter()
            .rfind(|second| at(second) <= fault.at_secs)
            .map_or(0, |second| second.connections);
        let before = there.max(missed);
        missed = if takes_away(&fault.what) { before } else { 0 };
        let after: Vec<_> = results
            .series
            .iter()
            .filter(|second| at(second) > fault.at_secs)
            .take_while(|second| at(second) <= until)
            .collect();
        fault.connections_lost = after.iter().map(|second| second.disconnects).sum();
        let is_short = there < before;
        fault.dipped = is_short || after.iter().any(|second| second.connections < before);
        let mut later = results.series.iter().filter(|second| at(second) > fault.at_secs);
        if fault.dipped && (is_short || later.any(|second| second.connections < before)) {
            let back = later.find(|second| second.connections >= before);
            fault.recovered_after_secs =
                back.map(|second| f64::from(second.at_secs) - fault.at_secs);
        }
    }
}

/// Whether a fault takes something away, or gives it back.
fn takes_away(what: &str) -> bool {
    !["resume", "restart", "mend"].contains(&what)
}

/// How long nobody was acknowledged, from each fault on that takes something away.
fn judge_service(results: &mut Results, service: &Service) {
    let end_secs = results.run.duration_secs;
    let starts: Vec<f64> = results
        .faults
        .iter()
        .filter(|fault| takes_away(&fault.what))
        .map(|fault| fault.at_secs)
        .collect();
    let drains = results.phases.iter().filter(|phase| phase.name == DRAIN);
    let ends: Vec<f64> = drains.map(|phase| phase.from_secs).collect();
    for fault in results.faults.iter_mut().filter(|fault| takes_away(&fault.what)) {
        // Faults of one second show together.
        let next = starts.iter().copied().find(|start| *start >= fault.at_secs + 1.0);
        let load_end = ends.iter().copied().find(|end| *end >= fault.at_secs).unwrap_or(end_secs);
        let until = next.unwrap_or(load_end).min(load_end);
        fault.without_service_secs = service.longest_gap_secs(fault.at_secs, until, load_end);
    }
}

fn scenario_info(plan: &Plan, scenario: &Scenario) -> ScenarioInfo {
    let estimate = scenario.estimate();
    ScenarioInfo {
        id: scenario.id.clone(),
        title: scenario.title.clone(),
        scale: scenario.scale,
        seed: scenario.seed,
        as_ran: words(scenario),
        publishers: estimate.publishers,
        subscribers: estimate.subscribers,
        clients: estimate.clients,
        topics: estimate.topics,
        closed_loop: plan.is_closed_loop(),
        ..ScenarioInfo::default()
    }
}

/// Writes results where a report will look for them.
pub fn save(results: &Results, path: &Path) -> io::Result<()> {
    crate::keep::write(path, &serde_json::to_string(results)?)
}

/// CPU of fewer steps of its clock may be wrong by more than a tenth.
const CPU_STEPS_MIN: f64 = 10.0;
const FAULT_EFFECT_SECS: f64 = 10.0;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::{FaultRecord, Second};

    /// What faults at these times led to, with so many connections at the end of each second.
    fn judged(faults: &[(&str, f64)], connections: &[u64]) -> Vec<(bool, Option<f64>)> {
        let second = |(at, connections): (usize, &u64)| Second {
            at_secs: at as u32 + 1,
            connections: *connections,
            ..Second::default()
        };
        let fault = |(what, at_secs): &(&str, f64)| FaultRecord {
            what: (*what).to_owned(),
            at_secs: *at_secs,
            ..FaultRecord::default()
        };
        let mut results = Results {
            series: connections.iter().enumerate().map(second).collect(),
            faults: faults.iter().map(fault).collect(),
            ..Results::default()
        };
        judge_faults(&mut results);
        results.faults.iter().map(|fault| (fault.dipped, fault.recovered_after_secs)).collect()
    }

    #[test]
    fn a_restart_is_recovered_from_when_all_are_back_that_the_kill_took() {
        let kill = [("kill", 2.0), ("restart", 4.0)];
        assert_eq!(judged(&kill, &[9, 9, 0, 0, 0, 9, 9]), [(true, Some(4.0)), (true, Some(2.0))]);
        assert_eq!(judged(&kill, &[9, 9, 0, 0, 3, 3, 3]), [(true, None), (true, None)]);
        // Nobody was lost, so that nobody has to come back.
        let pause = [("pause", 2.0), ("resume", 4.0)];
        assert_eq!(judged(&pause, &[9; 7]), [(false, None), (false, None)]);
        // The second restart follows a kill of its own.
        let twice = [("kill", 2.0), ("restart", 3.0), ("kill", 5.0), ("restart", 6.0)];
        let found = judged(&twice, &[9, 9, 0, 9, 9, 0, 9, 9]);
        assert_eq!(found[2..], [(true, Some(2.0)), (true, Some(1.0))]);
    }
}
