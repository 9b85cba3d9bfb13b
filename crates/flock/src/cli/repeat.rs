//! `flock run --runs N`: the same again and again, and what all of it says together.

use std::process::ExitCode;

use super::run::{Origin, carry_out_one, endpoint};
use super::{FAILED, args};
use crate::measure::{Outcome, RunSet};
use crate::model::Scenario;
use crate::noise::{self, Side};
use crate::stats;

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
            eprintln!("one run is an anecdote: --runs 5 shows how far runs lie apart");
        }
        return Ok(ExitCode::from(code));
    }
    let mut codes = Vec::new();
    let mut all = Vec::new();
    let id = noise::set_id(&scenario.id, &lab.broker_name);
    for number in 1..=runs {
        if !lab.quiet {
            eprintln!("run {number} of {runs}");
        }
        let set = RunSet { id: id.clone(), number, of: runs };
        let (code, results) = carry_out_one(scenario, origin, lab, (Some(set), endpoint.as_ref()))?;
        println!();
        codes.push(code);
        let is_over = matches!(results.run.outcome, Outcome::Interrupted(_));
        all.push(results);
        if is_over {
            // What was not done makes up for nothing.
            codes.retain(|code| *code == FAILED);
            codes.push(code);
            break;
        }
    }
    print!("{}", noise::plain(&Side::each(vec![all])));
    if (runs as usize) < stats::RUNS_MIN {
        println!("two runs tell little of the noise: --runs 5");
    }
    Ok(ExitCode::from(together(&codes)))
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
}
