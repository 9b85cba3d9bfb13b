//! How many connections does a broker hold, and how many connects per second? A scenario runs again
//! and again, larger until it does not hold, then in between.

use crate::engine::{self, Hunt, RunError, Step};
use flock_measure::text::{count, micros, number, seconds};
use flock_measure::{LatencyKind, Outcome, Results, Sizing, SizingStep, Sought};
use flock_model::{Command, Scenario, Spread, Stage};

/// What to look for, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quest {
    pub sought: Sought,
    /// The percentile of the connect latency that has to stay within the bound.
    pub percentile: f64,
    pub latency_max_us: u64,
    /// Connections, or connects per second.
    pub size_min: u64,
    pub size_max: u64,
    /// Connects per second, where connections are looked for.
    pub connects_per_sec: u64,
    /// For how long clients connect, where the rate of it is looked for.
    pub ramp_us: u64,
    /// Of the measured stages.
    pub hold_us: u64,
    /// How far apart the size that held and the one that did not may be, as a share.
    pub precision: f64,
}

/// Looks for the largest size that holds. `run` carries a scenario out; `on_step` hears of each
/// step. The results are those of the run that confirmed the size, or of the last one.
pub fn search(
    quest: &Quest,
    base: &Scenario,
    mut run: impl FnMut(&Scenario) -> anyhow::Result<Results>,
    mut on_step: impl FnMut(&Sizing),
) -> anyhow::Result<Results> {
    let mut sizing = Sizing {
        sought: quest.sought,
        latency_percentile: quest.percentile,
        latency_bound_us: quest.latency_max_us,
        ..Sizing::default()
    };
    let mut hunt = Hunt::new(quest.size_min, quest.size_max, quest.precision);
    let mut last: Option<Results> = None;
    let (mut refusal, mut is_stopped) = (None, false);
    while let Some(next) = hunt.next()
        && sizing.steps.len() < STEPS_MAX
    {
        let scenario = quest.scenario_of(base, next.rate);
        let step = match run(&scenario) {
            Ok(results) => {
                is_stopped = matches!(results.run.outcome, Outcome::Interrupted(_));
                let step = quest.judged(next.rate, &scenario, &results);
                last = Some(results);
                if is_stopped {
                    break;
                }
                step
            }
            // This machine cannot make so much load.
            Err(error) if matches!(error.downcast_ref(), Some(RunError::Refused(_))) => {
                let why = error.to_string();
                refusal = Some(error);
                SizingStep { size: next.rate, why, by_tool: true, ..SizingStep::default() }
            }
            Err(error) => return Err(error),
        };
        hunt.tell(match (step.held, step.by_tool) {
            (true, _) => Step::Held,
            (false, true) => Step::Disturbed,
            (false, false) => Step::Failed,
        });
        sizing.steps.push(step);
        on_step(&sizing);
    }
    let found = hunt.found();
    (sizing.held, sizing.failed) = (found.held, found.failed);
    let at_end = |step: &&SizingStep| !step.held && Some(step.size) == sizing.failed;
    let failed = sizing.steps.iter().filter(at_end);
    sizing.limited_by_tool = engine::is_tool_the_limit(failed.map(|step| step.by_tool));
    let mut results = match (last, refusal) {
        (Some(results), _) => results,
        // The very first size is too much for this machine.
        (None, Some(error)) => return Err(error),
        (None, None) => anyhow::bail!("the search was stopped ahead of its first step"),
    };
    if sizing.held.is_none() {
        let least = quest.sought.words(quest.size_min);
        results.validity.reasons.push(if is_stopped {
            "the search was stopped ahead of its end".to_owned()
        } else if hunt.next().is_some() {
            format!("no size was confirmed within {STEPS_MAX} runs: results vary too much")
        } else {
            format!("the smallest size of the search, {least}, failed")
        });
        results.validity.valid = false;
    }
    results.sizing = Some(sizing);
    Ok(results)
}

impl Quest {
    /// `base`, larger or smaller: a size says how many clients there are, and how fast they come.
    fn scenario_of(&self, base: &Scenario, size: u64) -> Scenario {
        let of_base = base.estimate().clients.max(1);
        let (clients, ramp_us) = match self.sought {
            Sought::Connections => {
                (size, size.saturating_mul(1_000_000) / self.connects_per_sec.max(1))
            }
            Sought::ConnectRate => {
                let clients = size.saturating_mul(self.ramp_us).div_ceil(1_000_000).max(1);
                (clients, clients.saturating_mul(1_000_000) / size.max(1))
            }
        };
        let scaled = base.scaled(clients as f64 / of_base as f64);
        scaled.with_ramps(ramp_us.max(1)).with_duration(self.hold_us)
    }

    fn judged(&self, size: u64, scenario: &Scenario, results: &Results) -> SizingStep {
        let latency = results.latency_merged(LatencyKind::Connect);
        let load = results.broker_load.as_ref();
        let mut step = SizingStep {
            size,
            connections: results.totals.connections_max,
            connect_latency_us: latency.micros_at(self.percentile),
            memory_bytes_max: load.map(|load| load.memory_bytes_max).filter(|most| *most > 0),
            ..SizingStep::default()
        };
        step.why = self.why_not(&step, scenario, results);
        step.held = step.why.is_empty();
        step.by_tool = !step.held && is_the_tools(results);
        step
    }

    /// What a run shows against its size; empty if it held.
    fn why_not(&self, step: &SizingStep, scenario: &Scenario, results: &Results) -> String {
        let totals = &results.totals;
        let clients = scenario.estimate().clients;
        if let Outcome::Failed(why) = &results.run.outcome {
            return why.clone();
        }
        if totals.connects_failed > 0 {
            let failed = count(totals.connects_failed);
            let of_connects = results.errors.iter().find(|error| error.what == "connect");
            let why = of_connects.map_or("", |error| error.reason.as_str());
            return format!("{failed} of {} connects failed: {why}", count(clients));
        }
        if totals.connections_lost > 0 {
            return format!("{} connections were lost", count(totals.connections_lost));
        }
        if step.connections < clients {
            let [open, all] = [step.connections, clients].map(count);
            return format!("only {open} of {all} connections were open at the same time");
        }
        if step.connect_latency_us > self.latency_max_us {
            let latency = micros(step.connect_latency_us as f64);
            return format!("p{} of the connect latency was {latency}", number(self.percentile));
        }
        self.too_slow(scenario, results)
    }

    /// Clients have to come as fast as they were meant to.
    fn too_slow(&self, scenario: &Scenario, results: &Results) -> String {
        for stage in scenario.stages.iter().filter(|stage| stage.duration_us.is_none()) {
            let planned_us = ramp_of(stage);
            let mut phases = results.phases.iter().filter(|phase| phase.name == stage.id);
            let Some(phase) = phases.next().filter(|_| planned_us > 0) else { continue };
            let took = phase.to_secs - phase.from_secs;
            let planned = planned_us as f64 / 1e6;
            if took > planned + self.latency_max_us as f64 / 1e6 + LEAD_SECS {
                let [took, planned] = [took, planned].map(seconds);
                return format!("connecting took {took} instead of {planned}");
            }
        }
        String::new()
    }
}

/// How long the clients of a stage take to connect, by plan.
fn ramp_of(stage: &Stage) -> u64 {
    let connects = stage
        .life_cycles
        .iter()
        .filter(|cycle| cycle.steps.iter().any(|step| matches!(step.command, Command::Connect(_))));
    let delays = connects.flat_map(|cycle| &cycle.steps).filter_map(|step| match &step.command {
        Command::Delay(delay) if delay.spread == Spread::Linear => Some(delay.duration_us),
        _ => None,
    });
    delays.max().unwrap_or(0)
}

/// Whether the clients of a scenario come in one stage, so that their rate is that of its ramp.
pub fn connects_in_one_stage(scenario: &Scenario) -> bool {
    scenario.stages.iter().filter(|stage| ramp_of(stage) > 0).count() == 1
}

/// Whether flock, or its machine, was at its end as well.
fn is_the_tools(results: &Results) -> bool {
    let is_local = |reason: &String| OWN_ERRORS.iter().any(|error| reason.contains(error));
    results.validity.thread_cpu_percent_max > engine::THREAD_CPU_MAX_PERCENT
        || results.errors.iter().any(|error| is_local(&error.reason))
}

/// What a connect fails with for want of local ports or descriptors.
const OWN_ERRORS: [&str; 3] =
    ["Cannot assign requested address", "Too many open files", "No buffer space available"];
const STEPS_MAX: usize = 64;
/// Ahead of a stage, and until its last answer is counted.
const LEAD_SECS: f64 = 1.0;
