//! `flock versus`: brokers side by side, with results, reports and a comparison for each scenario.

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Context as _;

use super::progress::ProgressLine;
use super::run::{changed, keep_all, lengths_words, survive_full_places};
use super::say::{note, say};
use super::{FAILED, NOT_VALID, args};
use crate::keep;
use crate::versus::{self, Description};
use flock_measure::stats;
use flock_measure::text;
use flock_model::Scenario;
use flock_model::scenario::check::check;
use flock_report::versus::{self as report, Cell, Conduct};

pub(super) fn versus(args: &args::Versus) -> anyhow::Result<ExitCode> {
    let scenarios = scenarios(args)?;
    let brokers = brokers(args)?;
    keep::check(&args.out).map_err(anyhow::Error::msg)?;
    survive_full_places()?;
    let missing = versus::missing(&brokers, &scenarios);
    anyhow::ensure!(missing.is_empty(), "not started: {}", missing.join("; "));
    if (args.rounds as usize) < stats::RUNS_MIN && !args.quiet {
        note!(
            "fewer than {} rounds: whether a difference is noise stays unknown, use --rounds 5",
            stats::RUNS_MIN
        );
    }
    if !args.quiet {
        note!("{}", opening(args.rounds, &brokers, &scenarios));
        brokers.iter().filter_map(Description::program_words).for_each(|words| note!("{words}"));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second one ends the program at once.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut kept = Vec::new();
    let line = RefCell::new(ProgressLine::new(None, args.quiet));
    let mut course = Course::new(args.rounds as usize * scenarios.len() * brokers.len());
    let options = versus::Options {
        brokers,
        broker_cpus: args.broker_cpus.clone(),
        load_cpus: args.load_cpus.clone(),
        rounds: args.rounds,
        same_warm_up: args.changes.warm_up.is_some(),
        command: std::env::args().collect(),
        overrides: args.changes.overrides(),
        stop,
        on_begin: &mut |broker, scenario| {
            line.borrow_mut().end();
            note!("{scenario} against {broker}, {}", course.next());
        },
        on_progress: &mut |progress| line.borrow_mut().show(progress),
        on_end: &mut |cell| kept.push(keep_one(cell, args)),
    };
    let (cells, conduct) = versus::run(options, &scenarios);
    line.borrow_mut().end();
    say!("{}", report::table(&cells));
    keep_comparisons(&cells, &conduct, args)?;
    kept.into_iter().collect::<anyhow::Result<()>>()?;
    say!("results, reports and comparisons: {}", args.out.display());
    let all_ran = !cells.is_empty() && cells.iter().all(|cell| cell.results.is_ok());
    Ok(match (all_ran, report::all_have_a_valid_round(&cells)) {
        (false, _) => ExitCode::from(FAILED),
        (true, false) => ExitCode::from(NOT_VALID),
        (true, true) => ExitCode::SUCCESS,
    })
}

/// What is to come, and how long it will take, as far as that is known.
fn opening(rounds: u32, brokers: &[Description], scenarios: &[(Scenario, String)]) -> String {
    let lengths = scenarios.iter().map(|(scenario, _)| scenario.length());
    let time = lengths_words(lengths, f64::from(rounds) * brokers.len() as f64);
    let count = |n: usize, what: &str| match n {
        1 => format!("one {what}"),
        n => format!("{n} {what}s"),
    };
    format!(
        "{} of {} against {}: {time}, plus the starts of the brokers",
        count(rounds as usize, "round"),
        count(scenarios.len(), "scenario"),
        brokers.iter().map(|broker| broker.name.as_str()).collect::<Vec<_>>().join(", ")
    )
}

/// How far a comparison has come.
struct Course {
    runs: usize,
    begun: usize,
    started_at: Instant,
}

impl Course {
    fn new(runs: usize) -> Self {
        Self { runs, begun: 0, started_at: Instant::now() }
    }

    /// `run 3 of 10, about 8 min left`, of the run that begins. What is left is known of those that
    /// are over.
    fn next(&mut self) -> String {
        let elapsed_secs = self.started_at.elapsed().as_secs_f64();
        let each_secs = elapsed_secs / self.begun.max(1) as f64;
        let left = match self.begun {
            0 => String::new(),
            _ => {
                let left_secs = each_secs * (self.runs - self.begun) as f64;
                format!(", about {} left", text::seconds(left_secs.ceil()))
            }
        };
        self.begun += 1;
        format!("run {} of {}{left}", self.begun, self.runs)
    }
}

fn scenarios(args: &args::Versus) -> anyhow::Result<Vec<(Scenario, String)>> {
    let mut all = Vec::new();
    for name in &args.scenarios {
        let loaded = super::catalogue::load(name, &args.changes.set)?;
        let scenario = changed(loaded.scenario, &args.changes);
        if let Some(problem) = check(&scenario).into_iter().next() {
            anyhow::bail!("{}: {}", scenario.id, problem.message);
        }
        all.push((scenario, loaded.source));
    }
    Ok(all)
}

fn brokers(args: &args::Versus) -> anyhow::Result<Vec<Description>> {
    if args.brokers.is_empty() {
        let installed: Vec<Description> =
            Description::plain().into_iter().filter(|broker| broker.program().is_some()).collect();
        anyhow::ensure!(
            !installed.is_empty(),
            "no broker is installed: use --brokers, or `make peers`"
        );
        return Ok(installed);
    }
    let mut all = Vec::new();
    for name in &args.brokers {
        all.push(Description::find(name)?);
    }
    Ok(all)
}

fn keep_one(cell: &Cell, args: &args::Versus) -> anyhow::Result<()> {
    let Ok(results) = &cell.results else { return Ok(()) };
    keep_all(results, &args.out.join(format!("{}.json", cell.name())))
}

/// For each scenario a page with the brokers beside each other, and all tables as Markdown.
fn keep_comparisons(cells: &[Cell], conduct: &Conduct, args: &args::Versus) -> anyhow::Result<()> {
    let write = |name: &str, text: &str| {
        let path = args.out.join(name);
        keep::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut scenarios: Vec<&str> = cells.iter().map(|cell| cell.scenario.as_str()).collect();
    scenarios.sort_unstable();
    scenarios.dedup();
    for scenario in scenarios {
        let of: Vec<&Cell> = cells.iter().filter(|cell| cell.scenario == scenario).collect();
        let page = report::page(&of, conduct, args.single_file.reports());
        write(&format!("{scenario}.html"), &page)?;
    }
    write("comparison.md", &report::table(cells))?;
    super::index::refresh(&args.out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_course_says_how_much_is_left() {
        let mut course = Course::new(3);
        assert_eq!(course.next(), "run 1 of 3");
        let second = course.next();
        assert!(second.starts_with("run 2 of 3, about ") && second.ends_with(" left"), "{second}");
    }
}
