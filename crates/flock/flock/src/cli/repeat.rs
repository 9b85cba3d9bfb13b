//! `flock run --runs N`: the same again and again, and what all of it says together.

use std::process::ExitCode;

use super::run::{Origin, carry_out_one, endpoint};
use super::say::{note, out, say};
use super::{FAILED, args};
use flock_measure::stats;
use flock_measure::{Outcome, Results, RunSet};
use flock_model::Scenario;
use flock_report::{Side, compare};

/// Carries the scenario out as often as asked for.
pub(super) fn carry_out_all(
    scenario: &Scenario,
    origin: &Origin<'_>,
    lab: &args::Lab,
    runs: u32,
) -> anyhow::Result<ExitCode> {
    let endpoint = endpoint(lab)?;
    if runs == 1 {
        let (code, _) = carry_out_one(scenario, origin, lab, (None, endpoint.as_ref()))?;
        // A search has repeated itself.
        if !lab.quiet && scenario.search.is_none() {
            note!("a single run does not show the noise: use --runs 5");
        }
        return Ok(ExitCode::from(code));
    }
    let mut series = Series::new(&scenario.id, &lab.broker_name, runs);
    while let Some(set) = series.next() {
        if !lab.quiet {
            note!("run {} of {runs}", set.number);
        }
        let (code, results) = carry_out_one(scenario, origin, lab, (Some(set), endpoint.as_ref()))?;
        say!("");
        series.add(code, results);
    }
    out(format_args!("{}", series.words()));
    if (runs as usize) < stats::RUNS_MIN {
        say!("fewer than {} runs show little of the noise: use --runs 5", stats::RUNS_MIN);
    }
    Ok(ExitCode::from(series.code()))
}

/// Runs of one thing, as they are done.
pub(super) struct Series {
    id: String,
    of: u32,
    codes: Vec<u8>,
    all: Vec<Results>,
    is_over: bool,
}

impl Series {
    pub(super) fn new(scenario: &str, broker: &str, of: u32) -> Self {
        let id = compare::set_id(scenario, broker);
        Self { id, of, codes: Vec::new(), all: Vec::new(), is_over: false }
    }

    /// What the next run is in the series; `None` after the last one.
    pub(super) fn next(&self) -> Option<RunSet> {
        let number = self.all.len() as u32 + 1;
        let is_next = number <= self.of && !self.is_over;
        is_next.then(|| RunSet { id: self.id.clone(), number, of: self.of })
    }

    /// A run is done. One that was stopped is the last.
    pub(super) fn add(&mut self, code: u8, results: Results) {
        if matches!(results.run.outcome, Outcome::Interrupted(_)) {
            self.is_over = true;
            // What was not done makes up for nothing.
            self.codes.retain(|code| *code == FAILED);
        }
        self.codes.push(code);
        self.all.push(results);
    }

    /// Medians and spread of what there is.
    pub(super) fn words(&self) -> String {
        compare::plain(&Side::each(std::slice::from_ref(&self.all)))
    }

    /// The exit code of all of them.
    pub(super) fn code(&self) -> u8 {
        together(&self.codes)
    }
}

/// One run that failed is enough. Of those that are valid there are figures, if there is one.
fn together(codes: &[u8]) -> u8 {
    match codes.contains(&FAILED) {
        true => FAILED,
        false => codes.iter().copied().min().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::NOT_VALID;
    use super::*;

    #[test]
    fn one_valid_run_is_enough_and_one_that_failed_is_too_many() {
        assert_eq!(together(&[NOT_VALID, 0, NOT_VALID]), 0);
        assert_eq!(together(&[NOT_VALID, NOT_VALID]), NOT_VALID);
        assert_eq!(together(&[NOT_VALID, FAILED, 0]), FAILED);
    }

    #[test]
    fn a_run_that_is_stopped_is_the_last_and_no_earlier_one_makes_up_for_it() {
        let mut series = Series::new("t", "", 3);
        let numbers = |series: &Series| series.next().map(|set| (set.number, set.of));
        assert_eq!(numbers(&series), Some((1, 3)));
        series.add(0, Results::default());
        assert_eq!((numbers(&series), series.code()), (Some((2, 3)), 0));
        let mut stopped = Results::default();
        stopped.run.outcome = Outcome::Interrupted("by the user".into());
        series.add(NOT_VALID, stopped);
        assert_eq!((numbers(&series), series.code()), (None, NOT_VALID));
    }
}
