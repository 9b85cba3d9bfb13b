//! In what runs differ besides what they measured, and which of it leaves nothing to compare.

use flock_measure::Results;
use flock_measure::figures::headline;
use flock_measure::text::number;

/// Something that runs have in common, or not.
struct Condition {
    name: &'static str,
    differs: Differs,
    /// Figures of runs that differ in it are of different things, and have no ratio.
    is_needed: bool,
}

/// When runs differ in it.
enum Differs {
    /// If the words are not the same.
    Words(fn(&Results) -> String),
    /// If the largest is more than so many times the smallest.
    Amount(fn(&Results) -> f64, f64),
}

const fn needed(name: &'static str, of: fn(&Results) -> String) -> Condition {
    Condition { name, differs: Differs::Words(of), is_needed: true }
}

const fn told(name: &'static str, of: fn(&Results) -> String) -> Condition {
    Condition { name, differs: Differs::Words(of), is_needed: false }
}

const CONDITIONS: [Condition; 14] = [
    needed("scenarios", |r| r.scenario.id.clone()),
    needed("scales", |r| number(r.scenario.scale)),
    needed("parameters, such as rate or duration", |r| format!("{:?}", r.scenario.parameters)),
    needed("options that change the scenario", |r| format!("{:?}", r.scenario.overrides)),
    needed("closed and open loops", |r| r.scenario.closed_loop.to_string()),
    needed("machines", |r| format!("{} {}", r.machine.cpu, r.machine.cores)),
    needed("cores for the broker", |r| r.broker.cpus.clone().unwrap_or_default()),
    Condition {
        name: "lengths of the measurement",
        differs: Differs::Amount(measured_secs, LENGTHS_APART_MAX),
        is_needed: true,
    },
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
    match condition.differs {
        Differs::Words(of) => {
            let mut all = all.iter().map(|results| of(results));
            let first = all.next();
            all.any(|other| Some(other) != first)
        }
        Differs::Amount(of, apart_max) => {
            let all = all.iter().map(|results| of(results));
            let (least, most) =
                all.fold((f64::INFINITY, 0.0_f64), |(low, high), it| (low.min(it), high.max(it)));
            most > least * apart_max
        }
    }
}

fn words(condition: &Condition) -> String {
    format!("the runs differ in {}", condition.name)
}

/// How long figures were taken.
fn measured_secs(results: &Results) -> f64 {
    let phases = results.phases.iter().filter(|phase| phase.measured);
    phases.map(|phase| phase.to_secs - phase.from_secs).sum()
}

/// Runs of one command differ in length by less: the end of a stage is waited for.
const LENGTHS_APART_MAX: f64 = 1.2;

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::Phase;

    fn lasting(secs: f64) -> Results {
        let phase = Phase { from_secs: 0.0, to_secs: secs, measured: true, ..Phase::default() };
        Results { phases: vec![phase], ..Results::default() }
    }

    #[test]
    fn runs_of_one_length_are_alike_whatever_the_length() {
        for tenths in 20..1_000 {
            let secs = f64::from(tenths) / 10.0;
            let (short, long) = (lasting(secs), lasting(secs * 1.1));
            assert_eq!(unlike(&[&short, &long]), Vec::<String>::new(), "{secs} s");
            let other = lasting(secs * 1.3);
            let said = ["the runs differ in lengths of the measurement"];
            assert_eq!(unlike(&[&short, &long, &other]), said, "{secs} s");
        }
        assert!(unlike(&[&lasting(0.0), &lasting(5.0)]).len() == 1);
    }
}
