//! Brokers side by side: each started in turn on the same cores, the same scenarios run against
//! each.
//!
//! A [`Description`] says how to start a broker; [`run`] starts, loads and stops them one after
//! another, so that never two share the machine, and gives one [`Cell`] per broker, scenario and
//! round. [`table`] draws the comparison that the command prints.

mod certificate;
mod description;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use description::{BrokerError, ConfigFile, Description, TlsForm, Variant};

use crate::engine::conductor::Progress;
use crate::engine::host;
use crate::engine::{self, BrokerAccess};
use crate::measure::{LatencyKind, Results, Second};
use crate::model::{Scenario, Transport};

/// How to compare.
pub struct Options<'a> {
    pub brokers: Vec<Description>,
    /// Cores for the brokers, as `taskset -c` takes them; `None`: the lower half.
    pub broker_cpus: Option<String>,
    /// Cores for the load; `None`: those that the brokers do not get.
    pub load_cpus: Option<String>,
    /// How often the whole is repeated; the table shows the best round of each.
    pub rounds: u32,
    pub command: Vec<String>,
    pub stop: Arc<AtomicBool>,
    /// Told when a run begins: broker and scenario.
    pub on_begin: &'a mut dyn FnMut(&str, &str),
    pub on_progress: &'a mut dyn FnMut(&Progress<'_>),
}

/// One broker and one scenario, once.
#[derive(Debug)]
pub struct Cell {
    pub broker: String,
    pub scenario: String,
    pub round: u32,
    pub results: Result<Box<Results>, String>,
}

/// Runs every scenario against every broker, `rounds` times. Each run gets a broker that was just
/// started.
pub fn run(mut options: Options<'_>, scenarios: &[(Scenario, String)]) -> Vec<Cell> {
    let (broker_cpus, load_cpus) =
        share_cores(options.broker_cpus.take(), options.load_cpus.take());
    let before = sched_getaffinity(None).ok();
    confine(&load_cpus);
    let mut cells = Vec::new();
    let brokers = std::mem::take(&mut options.brokers);
    for round in 0..options.rounds.max(1) {
        for (scenario, source) in scenarios {
            for broker in &brokers {
                if options.stop.load(Ordering::Relaxed) {
                    break;
                }
                (options.on_begin)(&broker.name, &scenario.id);
                let results = run_one(broker, (scenario, source), &broker_cpus, &mut options);
                cells.push(Cell {
                    broker: broker.name.clone(),
                    scenario: scenario.id.clone(),
                    round,
                    results: results.map(Box::new),
                });
            }
        }
    }
    if let Some(before) = before {
        // The caller's threads go where they may.
        let _ = sched_setaffinity(None, &before);
    }
    cells
}

fn run_one(
    broker: &Description,
    (scenario, source): (&Scenario, &str),
    cpus: &str,
    options: &mut Options<'_>,
) -> Result<Results, String> {
    let port = net::free_port().map_err(|error| format!("no free port: {error}"))?;
    let dir = Workspace::new(&broker.name, port).map_err(|error| error.to_string())?;
    let mut scenario = scenario.clone();
    let broker = direct(&mut scenario, broker, port, &dir.0)?;
    let (process, info) =
        broker.start(port, Some(cpus), &dir.0).map_err(|error| error.to_string())?;
    let on_progress = &mut *options.on_progress;
    let run_options = engine::Options {
        command: options.command.clone(),
        source: source.to_owned(),
        broker: BrokerAccess::Process(process),
        broker_info: info,
        stop: Arc::clone(&options.stop),
        on_progress: Some(Box::new(|progress| on_progress(progress))),
        ..engine::Options::default()
    };
    engine::run(&scenario, run_options).map_err(|error| error.to_string())
}

/// Sends the scenario's clients to `port`, over TCP or TLS, the common ground of all brokers, and
/// gives the broker in the form that listens so.
fn direct(
    scenario: &mut Scenario,
    broker: &Description,
    port: u16,
    dir: &Path,
) -> Result<Description, String> {
    let is_tls = scenario.brokers.iter().any(|target| target.transport.is_tls());
    for target in &mut scenario.brokers {
        target.addresses = vec![format!("127.0.0.1:{port}")];
        target.transport = if is_tls { Transport::Tls } else { Transport::Tcp };
    }
    if !is_tls {
        return Ok(broker.clone());
    }
    let form = broker.over_tls().map_err(|error| error.to_string())?;
    let certificate = certificate::write(dir)?.display().to_string();
    for target in &mut scenario.brokers {
        target.tls.ca_file = Some(certificate.clone());
        target.tls.server_name = None;
    }
    Ok(form)
}

/// Half the cores for each side, unless something else was asked for.
fn share_cores(broker: Option<String>, load: Option<String>) -> (String, String) {
    let cores = host::cores();
    let half = (cores / 2).max(1);
    let broker = broker.unwrap_or_else(|| format!("0-{}", half - 1));
    let load = load.unwrap_or_else(|| {
        let taken = description::parse_cpus(&broker);
        let left: Vec<String> =
            (0..cores).filter(|cpu| !taken.contains(cpu)).map(|cpu| cpu.to_string()).collect();
        if left.is_empty() { broker.clone() } else { left.join(",") }
    });
    (broker, load)
}

/// Keeps this thread, and the load threads that it will start, on these cores.
fn confine(cpus: &str) {
    let mut set = CpuSet::new();
    for cpu in description::parse_cpus(cpus) {
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    // Where the system does not let us, the load runs everywhere, as without this.
    let _ = sched_setaffinity(None, &set);
}

/// A directory for one broker's files, removed with it.
struct Workspace(PathBuf);

impl Workspace {
    fn new(broker: &str, port: u16) -> std::io::Result<Self> {
        let name = format!("flock-{broker}-{}-{port}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The comparison as a Markdown table per scenario; of several rounds, each broker's one with the
/// least CPU per message.
pub fn table(cells: &[Cell]) -> String {
    let mut scenarios: Vec<&str> = Vec::new();
    for cell in cells {
        if !scenarios.contains(&cell.scenario.as_str()) {
            scenarios.push(&cell.scenario);
        }
    }
    let mut text = String::new();
    for scenario in scenarios {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {scenario}\n");
        text.push_str(HEADER);
        let mut brokers: Vec<&str> = Vec::new();
        for cell in cells.iter().filter(|cell| cell.scenario == scenario) {
            if !brokers.contains(&cell.broker.as_str()) {
                brokers.push(&cell.broker);
            }
        }
        for broker in brokers {
            let of_pair = |cell: &&Cell| cell.scenario == scenario && cell.broker == broker;
            let best = cells.iter().filter(of_pair).min_by(|a, b| cost(a).total_cmp(&cost(b)));
            if let Some(cell) = best {
                text.push_str(&row(cell));
            }
        }
        text.push('\n');
    }
    text
}

fn cost(cell: &Cell) -> f64 {
    let cost = cell.results.as_ref().ok().and_then(|results| results.broker_cpu_us_per_message());
    cost.unwrap_or(f64::MAX)
}

fn row(cell: &Cell) -> String {
    let results = match &cell.results {
        Ok(results) => results,
        Err(why) => return format!("| {} | {} | | | | | | | |\n", cell.broker, one_line(why)),
    };
    let mut latency = results.latency_merged(LatencyKind::EndToEnd);
    if latency.is_empty() {
        latency = results.latency_merged(LatencyKind::Connect);
    }
    let load = results.broker_load.clone().unwrap_or_default();
    let optional = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let total = results.integrity.total();
    format!(
        "| {} {} | {:.0} | {:.0} | {:.2} | {:.2} | {} | {:.1} | {} | {} |\n",
        cell.broker,
        results.broker.version,
        typical(results, |second| second.published),
        typical(results, |second| second.received),
        latency.micros_at(50.0) as f64 / 1e3,
        latency.micros_at(99.0) as f64 / 1e3,
        optional(load.cpu_us_per_message.or(load.cpu_us_per_connect), 2),
        load.memory_bytes_max as f64 / 1e6,
        total.lost,
        verdict(results),
    )
}

fn verdict(results: &Results) -> String {
    let mut words = Vec::new();
    for timer in &results.timers {
        // The slowest client's: that of all of them.
        words.push(format!("{} {:.0} ms", timer.name, timer.summary.max_us as f64 / 1e3));
    }
    let total = results.integrity.total();
    if total.duplicated > 0 {
        words.push(format!("{} repeated", total.duplicated));
    }
    if total.reordered > 0 {
        words.push(format!("{} out of order", total.reordered));
    }
    if let Some(reason) = results.validity.reasons.first() {
        words.push(one_line(reason));
    }
    if let Some(error) = results.errors.first() {
        words.push(format!("{} x {}", error.count, one_line(&error.reason)));
    }
    words.join("; ")
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

/// The median over the seconds in which messages flowed: the first and the last one are partial.
fn typical(results: &Results, of: fn(&Second) -> u64) -> f64 {
    let busy = |second: &&Second| second.published + second.received > 0;
    let mut rates: Vec<u64> = results.series.iter().filter(busy).map(of).collect();
    rates.sort_unstable();
    rates.get(rates.len() / 2).copied().unwrap_or(0) as f64
}

const HEADER: &str = "| broker | published/s | received/s | p50 ms | p99 ms | CPU us per message | \
                      memory MB | lost | remarks |\n|---|---|---|---|---|---|---|---|---|\n";
