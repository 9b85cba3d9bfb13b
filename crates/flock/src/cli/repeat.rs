//! `flock run --runs N`: the same again and again, and what all of it says together.

use std::process::ExitCode;

use super::run::{Origin, carry_out_one, endpoint};
use super::{FAILED, NOT_VALID, args};
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
            break;
        }
    }
    print!("{}", noise::plain(&Side::each(vec![all])));
    if (runs as usize) < stats::RUNS_MIN {
        println!("two runs tell little of the noise: --runs 5");
    }
    Ok(ExitCode::from(worst(&codes)))
}

/// A run that failed outweighs one that is not valid.
fn worst(codes: &[u8]) -> u8 {
    [FAILED, NOT_VALID].into_iter().find(|code| codes.contains(code)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_run_decides() {
        assert_eq!(worst(&[0, NOT_VALID, 0]), NOT_VALID);
        assert_eq!(worst(&[NOT_VALID, FAILED, 0]), FAILED);
        assert_eq!(worst(&[0, 0]), 0);
    }
}
