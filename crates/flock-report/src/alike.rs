//! In what runs differ besides what they measured, and which of it leaves nothing to compare.

use flock_measure::Results;
use flock_measure::figures::headline;
use flock_measure::text::number;

/// Something that runs have in common, or not.
struct Condition {
    name: &'static str,
    of: fn(&Results) -> String,
    /// Figures of runs that differ in it are of different things, and have no ratio.
    is_needed: bool,
}

const fn needed(name: &'static str, of: fn(&Results) -> String) -> Condition {
    Condition { name, of, is_needed: true }
}

const fn told(name: &'static str, of: fn(&Results) -> String) -> Condition {
    Condition { name, of, is_needed: false }
}

const CONDITIONS: [Condition; 14] = [
    needed("scenarios", |r| r.scenario.id.clone()),
    needed("scales", |r| number(r.scenario.scale)),
    needed("parameters, such as rate or duration", |r| format!("{:?}", r.scenario.parameters)),
    needed("options that change the scenario", |r| format!("{:?}", r.scenario.overrides)),
    needed("closed and open loops", |r| r.scenario.closed_loop.to_string()),
    needed("machines", |r| format!("{} {}", r.machine.cpu, r.machine.cores)),
    needed("cores for the broker", |r| r.broker.cpus.clone().unwrap_or_default()),
    needed("lengths of the measurement", measured_words),
    needed("numbers of clients", |r| r.scenario.clients.to_string()),
    told("versions or builds of flock", |r| r.tool.words()),
    needed("agents", |r| r.run.agents.len().to_string()),
    needed("governors, virtual machines or limits", |r| format!("{:?}", r.machine.surroundings)),
    told("kernels", |r| r.machine.kernel.clone()),
    // Each kind has figures of its own.
    told("kinds of latency", |r| headline(r).title().to_owned()),
];

/// Why the runs are not alike in more than the broker.
pub(crate) fn differences(all: &[&Results]) -> Vec<String> {
    CONDITIONS.iter().filter(|one| differs(one, all)).map(words).collect()
}

/// Why a ratio of their figures would say nothing; empty if it says something.
pub(crate) fn unlike(all: &[&Results]) -> Vec<String> {
    CONDITIONS.iter().filter(|one| one.is_needed && differs(one, all)).map(words).collect()
}

fn differs(condition: &Condition, all: &[&Results]) -> bool {
    let mut all = all.iter().map(|results| (condition.of)(results));
    let first = all.next();
    all.any(|other| Some(other) != first)
}

fn words(condition: &Condition) -> String {
    format!("the runs differ in {}", condition.name)
}

/// How long figures were taken, without the seconds by which runs differ anyway.
fn measured_words(results: &Results) -> String {
    let phases = results.phases.iter().filter(|phase| phase.measured);
    let secs: f64 = phases.map(|phase| phase.to_secs - phase.from_secs).sum();
    // A fifth apart is another length.
    if secs > 0.0 { format!("{:.0}", secs.ln() / 1.2_f64.ln()) } else { String::new() }
}
