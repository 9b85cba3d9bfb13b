//! `flock run --find-connections` and `--find-connect-rate`: a line for each step, and the results
//! of the run that confirmed what was found.

use std::process::ExitCode;
use std::sync::Arc;

use super::args;
use super::run::{
    Origin, Shown, deaf_words, endpoint, judged, keep_all, options, results_path, stop_by_signal,
    survive_full_places,
};
use super::say::{note, out, say};
use crate::engine::{self, Options};
use crate::keep;
use crate::sizing::{Quest, search};
use flock_model::Scenario;
use flock_report::summary;

/// Searches, and keeps the results and their reports.
pub(super) fn carry_out(
    quest: &Quest,
    scenario: &Scenario,
    origin: &Origin<'_>,
    lab: &args::Lab,
) -> anyhow::Result<ExitCode> {
    let path = results_path(scenario, lab, None);
    keep::check(&lab.out).map_err(anyhow::Error::msg)?;
    if let Some(words) = deaf_words(scenario, lab) {
        anyhow::bail!("not started: {words}");
    }
    survive_full_places()?;
    let stop = stop_by_signal()?;
    if !lab.quiet {
        let [least, most] = [quest.size_min, quest.size_max].map(|size| quest.sought.words(size));
        note!("{}: {}\nruns with {least} up to {most}", scenario.id, scenario.title);
    }
    let endpoint = endpoint(lab)?;
    let mut shown = Shown::start(scenario, lab, endpoint.as_ref())?;
    let run = |scenario: &Scenario| {
        let options = Options {
            on_progress: Some(Box::new(|progress| shown.show(progress))),
            ..options(scenario, origin, lab, Arc::clone(&stop))?
        };
        let results = engine::run(scenario, options);
        shown.end_line();
        Ok(results?)
    };
    let results = search(quest, scenario, run, |sizing| {
        if let Some(step) = sizing.steps.last()
            && !lab.quiet
        {
            note!("{}", step.words(sizing));
        }
    })?;
    shown.end();
    out(format_args!("{}", summary(&results)));
    let code = judged(scenario, &results);
    keep_all(&results, &path)?;
    say!("{:<22}{}", "report", path.with_extension("html").display());
    Ok(ExitCode::from(code))
}
