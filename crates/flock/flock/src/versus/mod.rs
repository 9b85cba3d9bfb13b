//! Brokers side by side: each started in turn on the same cores, the same scenarios run against
//! each.
//!
//! A [`Description`] says how to start a broker; [`run`] starts, loads and stops them one after
//! another, so that never two share the machine, and gives one [`Cell`] per broker, scenario and
//! round.

mod certificate;
mod container;
mod description;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

pub use container::Container;
pub use description::{BrokerError, ConfigFile, Description, TlsForm, Variant};

use crate::engine::conductor::Progress;
use crate::engine::host;
use crate::engine::{self, BrokerAccess};
use flock_measure::{BrokerInfo, Results, RunSet};
use flock_model::scenario::words::parameters;
use flock_model::{Scenario, Transport};
use flock_report::compare;
use flock_report::versus::{Cell, Conduct};

/// How to compare.
pub struct Options<'a> {
    pub brokers: Vec<Description>,
    /// Cores for the brokers, as `taskset -c` takes them; `None`: the lower half.
    pub broker_cpus: Option<String>,
    /// Cores for the load; `None`: those that the brokers do not get.
    pub load_cpus: Option<String>,
    /// How often the whole is repeated; the table shows all, the median and the spread.
    pub rounds: u32,
    /// Warm up every broker as long as the scenarios say, also those that need longer.
    pub same_warm_up: bool,
    pub command: Vec<String>,
    /// What the options changed of the scenarios.
    pub overrides: BTreeMap<String, String>,
    pub stop: Arc<AtomicBool>,
    /// Told when a run begins: broker and scenario.
    pub on_begin: &'a mut dyn FnMut(&str, &str),
    pub on_progress: &'a mut dyn FnMut(&Progress<'_>),
    /// Told of each run when it is over, so that a later one cannot take it away.
    pub on_end: &'a mut dyn FnMut(&Cell),
}

/// Why brokers cannot take part, in words: known before anything is started.
pub fn missing(brokers: &[Description], scenarios: &[(Scenario, String)]) -> Vec<String> {
    let absent = brokers.iter().filter(|broker| !broker.is_there());
    let absent = absent.map(Description::not_installed);
    let deaf = brokers.iter().filter_map(|broker| broker.over_tls().err());
    let with_tls = scenarios.iter().any(|(scenario, _)| is_over_tls(scenario));
    absent.chain(deaf.filter(|_| with_tls)).map(|error| error.to_string()).collect()
}

fn is_over_tls(scenario: &Scenario) -> bool {
    scenario.brokers.iter().any(|target| target.transport.is_tls())
}

/// Runs every scenario against every broker, `rounds` times. Each run gets a broker that was just
/// started.
pub fn run(mut options: Options<'_>, scenarios: &[(Scenario, String)]) -> (Vec<Cell>, Conduct) {
    let (broker_cpus, load_cpus) =
        share_cores(options.broker_cpus.take(), options.load_cpus.take());
    let conduct = Conduct {
        command: options.command.clone(),
        rounds: options.rounds.max(1),
        broker_cpus: broker_cpus.clone(),
        load_cpus: load_cpus.clone(),
    };
    let before = sched_getaffinity(None).ok();
    confine(&load_cpus);
    let mut cells = Vec::new();
    let set = compare::set_id("versus", "");
    let brokers = std::mem::take(&mut options.brokers);
    for round in 0..options.rounds.max(1) {
        for (scenario, source) in scenarios {
            for broker in &brokers {
                if options.stop.load(Ordering::Relaxed) {
                    break;
                }
                (options.on_begin)(&broker.name, &scenario.id);
                let results = run_one(broker, (scenario, source), &broker_cpus, &mut options);
                let of_set = |mut results: Results| {
                    let id = format!("{set} {} {}", scenario.id, broker.name);
                    results.run.set = Some(RunSet { id, number: round + 1, of: options.rounds });
                    Box::new(results)
                };
                let cell = Cell {
                    broker: broker.name.clone(),
                    note: broker.notes(),
                    scenario: scenario.id.clone(),
                    round,
                    results: results.map(of_set),
                };
                (options.on_end)(&cell);
                cells.push(cell);
            }
        }
    }
    if let Some(before) = before {
        // The caller's threads go where they may.
        let _ = sched_setaffinity(None, &before);
    }
    (cells, conduct)
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
    let address = broker.remote.clone().unwrap_or_else(|| format!("127.0.0.1:{port}"));
    let broker = direct(&mut scenario, broker, &address, &dir.0)?;
    if !options.same_warm_up {
        let own_us = broker.warm_up_us()?;
        scenario.warm_up_us = Some(scenario.warm_up_us.unwrap_or(0).max(own_us));
    }
    // It goes last, when the process that it belongs to has ended.
    let _removal = broker.removal(port);
    let (access, info) = if broker.remote.is_some() {
        let name = broker.name.clone();
        let info = BrokerInfo { name, addresses: vec![address], ..BrokerInfo::default() };
        (BrokerAccess::None, info)
    } else {
        let started = broker.start(port, Some(cpus), &dir.0);
        let (process, info) = started.map_err(|error| error.to_string())?;
        (BrokerAccess::Process(process), info)
    };
    let on_progress = &mut *options.on_progress;
    let run_options = engine::Options {
        command: options.command.clone(),
        source: source.to_owned(),
        parameters: parameters(&scenario),
        overrides: options.overrides.clone(),
        broker: access,
        broker_info: info,
        stop: Arc::clone(&options.stop),
        on_progress: Some(Box::new(|progress| on_progress(progress))),
        ..engine::Options::default()
    };
    engine::run(&scenario, run_options).map_err(|error| error.to_string())
}

/// Sends the scenario's clients to `address`, over TCP or TLS, the common ground of all brokers.
/// Gives the broker in the form that listens so.
fn direct(
    scenario: &mut Scenario,
    broker: &Description,
    address: &str,
    dir: &Path,
) -> Result<Description, String> {
    let is_tls = is_over_tls(scenario);
    for target in &mut scenario.brokers {
        target.addresses = vec![address.to_owned()];
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
