//! Scenarios that were handed in, runs that were asked for; one run at a time.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::cli::args;
use crate::cli::repeat::Series;
use crate::cli::run::{Origin, exporters, keep_all, options, placed, results_path, verdict};
use crate::cli::say::note;
use crate::engine::{self, Options, Progress};
use crate::export::Exporter;
use crate::keep;
use crate::prometheus::Live;
use crate::sizing::{Quest, search};
use flock_measure::{AgentInfo, Outcome, Results, RunSet};
use flock_model::{Payload, Scenario, Target};
use flock_report::expect::unmet;

pub(super) struct Jobs {
    pub(super) broker: Vec<Target>,
    pub(super) secure: args::Secure,
    pub(super) payload: Option<Payload>,
    lab: args::Lab,
    pub(super) live: Live,
    state: Mutex<State>,
    /// A run has ended.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    scenarios: BTreeMap<u32, Stored>,
    runs: BTreeMap<u32, Run>,
    scenario_last: u32,
    run_last: u32,
    is_closing: bool,
}

/// A scenario that was handed in, and parses.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) title: String,
    /// Says by its ending what the text is.
    pub(super) file: String,
    pub(super) text: String,
}

/// What is to be run.
pub(super) struct Job {
    /// Unless it is a built-in one.
    pub(super) scenario_id: Option<u32>,
    /// Of its text: `XML` or `TOML`.
    pub(super) format: &'static str,
    pub(super) scenario: Scenario,
    pub(super) source: String,
    /// What the asker changed of it, by the names of options.
    pub(super) overrides: BTreeMap<String, String>,
    /// How often.
    pub(super) runs: u32,
    /// A size to look for.
    pub(super) quest: Option<Quest>,
}

struct Run {
    scenario_id: Option<u32>,
    /// `XML` or `TOML`.
    format: &'static str,
    name: String,
    title: String,
    status: Status,
    started_unix_ms: u64,
    stop: Arc<AtomicBool>,
    stage: String,
    /// As the last second told.
    progress: Value,
    agents: Value,
    result: Value,
    /// Of each repetition.
    results_paths: Vec<PathBuf>,
    /// Which repetition is under way, and of how many.
    repetition: (u32, u32),
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    /// Agents are met, the broker is started.
    Starting,
    Running,
    Stopping,
    /// There are results.
    Finished,
    /// There are none.
    Failed,
}

impl Status {
    fn is_over(self) -> bool {
        matches!(self, Self::Finished | Self::Failed)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Starting => "STARTING",
            Self::Running => "RUNNING",
            Self::Stopping => "STOPPING",
            Self::Finished => "FINISHED",
            Self::Failed => "FAILED",
        }
    }
}

/// Why something cannot be done now.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    State(String),
}

impl Jobs {
    pub(super) fn new(args: &args::Commander) -> Self {
        Self {
            broker: args.broker.clone(),
            secure: args.secure.clone(),
            payload: args.payload.clone(),
            lab: args.lab.clone(),
            live: Live::default(),
            state: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops what runs, waits for its results, and begins nothing more.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closing = true;
        while let Some(run) = state.runs.values_mut().find(|run| !run.status.is_over()) {
            run.stop.store(true, Ordering::Relaxed);
            run.status = Status::Stopping;
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    // --- Scenarios

    pub(super) fn add(&self, scenario: Stored) -> Result<u32, Refusal> {
        let mut state = self.state();
        if state.scenarios.len() >= SCENARIOS_MAX {
            return Err(Refusal::State(format!(
                "at most {SCENARIOS_MAX} scenarios are kept: delete one first"
            )));
        }
        state.scenario_last += 1;
        let id = state.scenario_last;
        state.scenarios.insert(id, scenario);
        Ok(id)
    }

    pub(super) fn scenario(&self, id: u32) -> Result<Stored, Refusal> {
        let none = || Refusal::Missing(format!("unknown scenario {id}"));
        self.state().scenarios.get(&id).cloned().ok_or_else(none)
    }

    pub(super) fn remove(&self, id: u32) -> Result<(), Refusal> {
        let none = || Refusal::Missing(format!("unknown scenario {id}"));
        self.state().scenarios.remove(&id).map(|_| ()).ok_or_else(none)
    }

    pub(super) fn scenarios(&self) -> Value {
        let state = self.state();
        let all = state.scenarios.iter().map(|(id, stored)| scenario_entry(*id, stored));
        json!({"scenarios": all.collect::<Vec<_>>()})
    }

    // --- Runs

    pub(super) fn commander(&self) -> Value {
        let state = self.state();
        let active = state.runs.iter().find(|(_, run)| !run.status.is_over());
        json!({
            "commander-status": active.map_or("READY", |(_, run)| run.status.word()),
            "run-id": active.map(|(id, _)| id.to_string()),
            "version": env!("CARGO_PKG_VERSION"),
            "agents": self.lab.agents,
        })
    }

    pub(super) fn runs(&self) -> Value {
        let state = self.state();
        json!({"runs": state.runs.iter().map(|(id, run)| run_entry(*id, run)).collect::<Vec<_>>()})
    }

    /// Forgets a run that is over. Its files stay.
    pub(super) fn remove_run(&self, id: u32) -> Result<(), Refusal> {
        let mut state = self.state();
        match state.runs.get(&id) {
            None => Err(no_run(id)),
            Some(run) if !run.status.is_over() => {
                Err(Refusal::State(format!("run {id} is in progress: stop it first")))
            }
            Some(_) => {
                state.runs.remove(&id);
                Ok(())
            }
        }
    }

    /// The run as it is, or as it is when it ends or this time has passed.
    pub(super) fn run(&self, id: u32, wait: Duration) -> Result<Value, Refusal> {
        let mut state = self.state();
        let is_busy = |state: &mut State| state.runs.get(&id).is_some_and(|r| !r.status.is_over());
        if !wait.is_zero() {
            let waited = self.ended.wait_timeout_while(state, wait, is_busy);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.runs.get(&id).map(|run| run_entry(id, run)).ok_or_else(|| no_run(id))
    }

    pub(super) fn start(self: &Arc<Self>, job: Job) -> Result<u32, Refusal> {
        let mut state = self.state();
        if state.is_closing {
            return Err(Refusal::State("the commander is stopping".to_owned()));
        }
        if let Some((id, _)) = state.runs.iter().find(|(_, run)| !run.status.is_over()) {
            return Err(Refusal::State(format!(
                "run {id} is in progress: only one run is possible \
                 at a time"
            )));
        }
        while state.runs.len() >= RUNS_MAX {
            // Its results stay where they are.
            state.runs.pop_first();
        }
        state.run_last += 1;
        let id = state.run_last;
        let stop = Arc::new(AtomicBool::new(false));
        state.runs.insert(id, Run::new(&job, &stop));
        let jobs = Arc::clone(self);
        let started = std::thread::Builder::new().name("run".to_owned()).spawn(move || {
            let done = catch_unwind(AssertUnwindSafe(|| jobs.carry_out(id, &job, &stop)));
            let done = done.unwrap_or_else(|_| Err(anyhow::anyhow!("internal error of flock")));
            jobs.end(id, done);
        });
        if let Err(error) = started {
            state.runs.remove(&id);
            return Err(Refusal::State(format!("cannot start a thread for the run: {error}")));
        }
        Ok(id)
    }

    pub(super) fn stop(&self, id: u32) -> Result<Value, Refusal> {
        let mut state = self.state();
        let run = state.runs.get_mut(&id).ok_or_else(|| no_run(id))?;
        if run.status.is_over() {
            return Err(Refusal::State(format!("run {id} has finished")));
        }
        run.stop.store(true, Ordering::Relaxed);
        run.status = Status::Stopping;
        Ok(run_entry(id, run))
    }

    /// Where the results of a run are: of one repetition, or of the last.
    pub(super) fn results(&self, id: u32, number: Option<u32>) -> Result<PathBuf, Refusal> {
        let state = self.state();
        let run = state.runs.get(&id).ok_or_else(|| no_run(id))?;
        let paths = &run.results_paths;
        let at = number.map_or(paths.len(), |number| number as usize);
        let found = at.checked_sub(1).and_then(|at| paths.get(at));
        found.cloned().ok_or_else(|| match (run.status.is_over(), paths.is_empty()) {
            (false, _) => Refusal::State(format!("run {id} is in progress")),
            (true, true) => Refusal::Missing(format!("run {id} failed and has no results")),
            (true, false) => Refusal::Missing(format!(
                "run {id} has {} repetitions, got number {at}",
                paths.len()
            )),
        })
    }

    /// The run itself, as often as it is to be done: what there is to tell of it, and how keeping
    /// that went.
    fn carry_out(&self, id: u32, job: &Job, stop: &Arc<AtomicBool>) -> anyhow::Result<Done> {
        let scenario = placed(job.scenario.clone(), &self.lab);
        keep::check(&self.lab.out).map_err(anyhow::Error::msg)?;
        let mut series = Series::new(&scenario.id, &self.lab.broker_name, job.runs);
        let mut done = Done::default();
        while let Some(set) = series.next() {
            self.begin_repetition(id, set.number);
            let once = self.carry_out_once(id, job, &scenario, (set, Arc::clone(stop)));
            let (results, path, error) = match once {
                Ok(once) => once,
                // What was done before it stays.
                Err(error) if !done.each.is_empty() => {
                    done.error = Some(format!("{error:#}"));
                    break;
                }
                Err(error) => return Err(error),
            };
            done.agents = agents_told(&results.run.agents);
            let told = result(&scenario, &results, &path.display().to_string());
            let code = verdict(&unmet(&scenario.expect, &results), &results);
            series.add(code, results);
            done.each.push(told);
            match error {
                None => done.results_paths.push(path),
                Some(error) => {
                    done.error = Some(error);
                    break;
                }
            }
        }
        done.result = together(&done.each, &series, job.runs);
        Ok(done)
    }

    fn carry_out_once(
        &self,
        id: u32,
        job: &Job,
        scenario: &Scenario,
        (set, stop): (RunSet, Arc<AtomicBool>),
    ) -> anyhow::Result<(Results, PathBuf, Option<String>)> {
        let is_one = set.of == 1;
        let mut path = results_path(scenario, &self.lab, Some(id));
        if !is_one {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            path.set_file_name(format!("{stem}-{}.json", set.number));
        }
        let mut pushed = exporters(scenario, &self.lab)?;
        self.live.clear();
        let origin = Origin { source: &job.source, overrides: job.overrides.clone() };
        let mut run = |scenario: &Scenario| {
            let options = Options {
                on_progress: Some(Box::new(|progress| {
                    // Whoever sees the run under way finds its metrics.
                    self.live.update(progress);
                    self.note(id, progress);
                    pushed.iter_mut().for_each(|exporter| exporter.update(progress));
                })),
                ..options(scenario, &origin, &self.lab, Arc::clone(&stop))?
            };
            anyhow::Ok(engine::run(scenario, options)?)
        };
        let mut results = match &job.quest {
            Some(quest) => search(quest, scenario, &mut run, |_| {})?,
            None => run(scenario)?,
        };
        results.run.set = (!is_one).then_some(set);
        for told in pushed.into_iter().filter_map(Exporter::finish) {
            note!("flock: run {id}: {told}");
        }
        let kept = keep_all(&results, &path).err();
        Ok((results, path, kept.map(|error| format!("{error:#}"))))
    }

    fn begin_repetition(&self, id: u32, number: u32) {
        if let Some(run) = self.state().runs.get_mut(&id) {
            run.repetition.0 = number;
        }
    }

    fn note(&self, id: u32, progress: &Progress<'_>) {
        let mut state = self.state();
        let Some(run) = state.runs.get_mut(&id) else { return };
        if run.status == Status::Starting {
            run.status = Status::Running;
        }
        progress.stage.clone_into(&mut run.stage);
        run.progress = progress_told(progress);
        run.agents = agents_told(progress.agents);
    }

    fn end(&self, id: u32, done: anyhow::Result<Done>) {
        let mut state = self.state();
        if let Some(run) = state.runs.get_mut(&id) {
            let (status, error) = match done {
                Ok(done) => {
                    (run.agents, run.result) = (done.agents, done.result);
                    run.results_paths = done.results_paths;
                    match run.results_paths.is_empty() {
                        false => (Status::Finished, done.error),
                        true => (Status::Failed, done.error),
                    }
                }
                Err(error) => (Status::Failed, Some(format!("{error:#}"))),
            };
            if let Some(error) = &error {
                note!("flock: run {id}: {error}");
            }
            (run.status, run.error) = (status, error);
        }
        self.ended.notify_all();
    }
}

/// What is left of a run.
#[derive(Default)]
struct Done {
    agents: Value,
    result: Value,
    /// The same of each repetition.
    each: Vec<Value>,
    results_paths: Vec<PathBuf>,
    error: Option<String>,
}

/// What repetitions say together; of one, what it says.
fn together(each: &[Value], series: &Series, runs: u32) -> Value {
    let Some(last) = each.last() else { return Value::Null };
    let mut all = last.clone();
    if runs == 1 {
        return all;
    }
    all["valid"] = each.iter().any(|one| one["valid"] == true).into();
    all["exit-code"] = series.code().into();
    all["runs"] = each.into();
    all["summary"] = series.words().into();
    all
}

impl Run {
    fn new(job: &Job, stop: &Arc<AtomicBool>) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            scenario_id: job.scenario_id,
            format: job.format,
            name: job.scenario.id.clone(),
            title: job.scenario.title.clone(),
            status: Status::Starting,
            started_unix_ms: now.map_or(0, |since| since.as_millis() as u64),
            stop: Arc::clone(stop),
            stage: String::new(),
            progress: Value::Null,
            agents: json!([]),
            result: Value::Null,
            results_paths: Vec::new(),
            repetition: (0, job.runs),
            error: None,
        }
    }
}

fn no_run(id: u32) -> Refusal {
    Refusal::Missing(format!("unknown run {id}: only the last {RUNS_MAX} are kept"))
}

pub(super) fn format_of(file: &str) -> &'static str {
    if file.ends_with(".xml") { "XML" } else { "TOML" }
}

pub(super) fn scenario_entry(id: u32, stored: &Stored) -> Value {
    json!({
        "scenario-id": id,
        "scenario-name": stored.name,
        "scenario-description": stored.title,
        "scenario-type": format_of(&stored.file),
    })
}

fn run_entry(id: u32, run: &Run) -> Value {
    json!({
        "run-id": id,
        "run-status": run.status.word(),
        "scenario-id": run.scenario_id,
        "scenario-name": run.name,
        "scenario-description": run.title,
        "scenario-type": run.format,
        "scenario-stage": run.stage,
        "started-unix-ms": run.started_unix_ms,
        "progress": run.progress,
        "agents": run.agents,
        "repetition": run.repetition.0,
        "repetitions": run.repetition.1,
        "result": run.result,
        "error": run.error,
    })
}

fn progress_told(progress: &Progress<'_>) -> Value {
    let (second, totals) = (progress.second, progress.totals);
    json!({
        "at-secs": second.at_secs + 1,
        "length-secs": progress.length.secs(),
        "length-is-open": progress.length.is_open,
        "clients": progress.clients,
        "connections": second.connections,
        "published-per-sec": second.published,
        "received-per-sec": second.received,
        "published": totals.published_all(),
        "acknowledged": totals.acknowledged,
        "received": totals.received_all(),
        "connect-failures": totals.connects_failed,
        "connections-lost": totals.connections_lost,
        "backlog": second.backlog,
        "lost": second.lost_so_far,
        "duplicated": second.duplicated_so_far,
        "end-to-end-p50-us": second.end_to_end.p50_us,
        "end-to-end-p99-us": second.end_to_end.p99_us,
    })
}

fn agents_told(agents: &[AgentInfo]) -> Value {
    let told = agents.iter().map(|agent| {
        json!({
            "address": agent.address,
            "clients": agent.clients,
            "status": if agent.died.is_some() { "LOST" } else { "WORKING" },
            "why": agent.died,
        })
    });
    told.collect()
}

fn result(scenario: &Scenario, results: &Results, path: &str) -> Value {
    let unmet = unmet(&scenario.expect, results);
    let (outcome, why) = match &results.run.outcome {
        Outcome::Completed => ("COMPLETED", None),
        Outcome::Interrupted(why) => ("INTERRUPTED", Some(why)),
        Outcome::Failed(why) => ("FAILED", Some(why)),
    };
    json!({
        "outcome": outcome,
        "why": why,
        "valid": results.validity.valid,
        "reasons": results.validity.reasons,
        "unmet": unmet,
        "exit-code": verdict(&unmet, results),
        "duration-secs": results.run.duration_secs,
        "file": path,
    })
}

/// Scenarios that are kept; one more is refused.
pub(super) const SCENARIOS_MAX: usize = 64;
/// Runs that are told of; the oldest makes room.
const RUNS_MAX: usize = 100;
