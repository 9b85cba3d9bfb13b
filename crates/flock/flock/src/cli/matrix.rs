//! `flock matrix`: one scenario over the values of some parameters, and one report of it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;

use super::consent;
use super::run::{
    Shown, access, broker_info, changed, deaf_words, endpoint, ensemble, keep_all, lengths_words,
    placed, stop_by_signal, survive_full_places,
};
use super::say::{note, out, say};
use super::{FAILED, NOT_VALID, args};
use crate::engine::{self, Options, surroundings};
use crate::keep;
use crate::prometheus::Endpoint;
use flock_measure::{Outcome, Results};
use flock_model::matrix::{self, Cell, Matrix};
use flock_model::scenario::Loaded;
use flock_model::scenario::check::check;
use flock_model::scenario::words::parameters;
use flock_report::form;
use flock_report::matrix::{self as report, Done};

pub(super) fn matrix(args: &args::Matrix) -> anyhow::Result<ExitCode> {
    let Some(name) = &args.matrix else {
        list()?;
        return Ok(ExitCode::SUCCESS);
    };
    let matrix = find(name, args)?;
    // What cannot be run is told before anything is.
    let cells = matrix
        .cells()
        .into_iter()
        .map(|cell| {
            let loaded = prepared(&cell, args)
                .with_context(|| format!("{}, {}", matrix.id, cell.words(&matrix.axes)))?;
            Ok((cell, loaded))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    if let Some((_, loaded)) = cells.first() {
        let is_named = loaded.names_broker || !args.broker.is_empty();
        consent::ask(&loaded.scenario, is_named, "--broker HOST:PORT", &args.lab)?;
    }
    let deaf = cells.first().and_then(|(_, loaded)| deaf_words(&loaded.scenario, &args.lab));
    if let Some(words) = deaf {
        anyhow::bail!("not started: {words}");
    }
    keep::check(&args.lab.out).map_err(anyhow::Error::msg)?;
    survive_full_places()?;
    let stop = stop_by_signal()?;
    let endpoint = endpoint(&args.lab)?;
    let rounds = args.rounds.max(1);
    if !args.lab.quiet {
        let lengths = cells.iter().map(|(_, loaded)| loaded.scenario.length());
        let time = lengths_words(lengths, f64::from(rounds));
        note!("{}: {} combinations, {rounds} of each: {time}", matrix.id, cells.len());
    }
    let mut all: Vec<Done> = cells
        .iter()
        .map(|(cell, loaded)| Done {
            cell: cell.clone(),
            published: loaded.published.clone(),
            runs: Vec::new(),
        })
        .collect();
    // Round by round, so that what changes on the machine meets all alike.
    for round in 0..rounds {
        for (n, (cell, loaded)) in cells.iter().enumerate() {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            if !args.lab.quiet {
                note!("{}, {}", matrix.id, cell.words(&matrix.axes));
            }
            let name = format!("{}-{}-{}", file_name(&matrix, args), n + 1, round + 1);
            let run = run_one(cell, loaded, args, (&stop, endpoint.as_ref())).and_then(|results| {
                keep_all(&results, &args.lab.out.join(format!("{name}.json")))?;
                Ok((Box::new(results), name))
            });
            if let Err(error) = &run {
                note!("flock: {}", super::told(error));
            }
            all[n].runs.push(run.map_err(|error| super::told(&error)));
        }
    }
    keep_report(&matrix, &all, args)?;
    Ok(verdict(&all, stop.load(Ordering::Relaxed)))
}

fn find(name: &str, args: &args::Matrix) -> anyhow::Result<Matrix> {
    let path = Path::new(name);
    let from_file = if path.extension().is_some_and(|ending| ending == "toml") {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Matrix::parse(name, &text)
    } else {
        Matrix::find(name).map(Ok)
    };
    let matrix = match from_file {
        Some(found) => found.and_then(|matrix| matrix.with(args.axis.clone())),
        None => {
            super::catalogue::load(name, &args.changes.set).map_err(|error| {
                anyhow::anyhow!("neither a matrix (see `flock matrix`) nor a scenario: {error}")
            })?;
            Matrix::of(name, args.axis.clone())
        }
    };
    let matrix = matrix.map_err(anyhow::Error::msg)?;
    form::check(&matrix).map_err(anyhow::Error::msg)?;
    Ok(matrix)
}

/// The scenario of a cell, with the changes of the options.
fn prepared(cell: &Cell, args: &args::Matrix) -> anyhow::Result<Loaded> {
    let mut loaded =
        cell.load(&super::catalogue::load, &args.changes.set).map_err(anyhow::Error::msg)?;
    let (transport, tls) = (args.secure.transport(), args.secure.tls());
    let aimed = loaded.scenario.aim(&args.broker, transport.as_ref(), tls.as_ref());
    aimed.map_err(anyhow::Error::msg)?;
    loaded.scenario = changed(loaded.scenario, &args.changes);
    loaded.scenario = placed(loaded.scenario, &args.lab);
    if let Some(problem) = check(&loaded.scenario).into_iter().next() {
        anyhow::bail!("{}: {}", loaded.scenario.id, problem.message);
    }
    Ok(loaded)
}

fn run_one(
    cell: &Cell,
    loaded: &Loaded,
    args: &args::Matrix,
    (stop, endpoint): (&Arc<AtomicBool>, Option<&Endpoint>),
) -> anyhow::Result<Results> {
    let mut overrides = args.changes.overrides();
    overrides.extend(matrix::overrides(cell));
    let mut shown = Shown::start(&loaded.scenario, &args.lab, endpoint)?;
    let options = Options {
        command: std::env::args().collect(),
        source: loaded.source.clone(),
        parameters: parameters(&loaded.scenario),
        overrides,
        threads: args.lab.threads,
        agents: crate::agent::discover(&args.lab.agents)?,
        broker: access(&args.lab),
        ensemble: ensemble(&args.lab),
        broker_info: broker_info(&args.lab)?,
        stop: Arc::clone(stop),
        on_progress: Some(Box::new(|progress| shown.show(progress))),
    };
    let results = engine::run(&loaded.scenario, options)?;
    shown.end();
    Ok(results)
}

fn keep_report(matrix: &Matrix, all: &[Done], args: &args::Matrix) -> anyhow::Result<()> {
    let command: Vec<String> = std::env::args().collect();
    let command = surroundings::without_passwords(&command);
    let page = report::page(matrix, &command, all, args.single_file.reports());
    let path = args.lab.out.join(format!("{}.html", file_name(matrix, args)));
    for (path, text) in
        [(path.with_extension("csv"), report::csv(matrix, all)), (path.clone(), page)]
    {
        keep::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    super::index::refresh(&args.lab.out);
    out(format_args!("{}", report::table(matrix, all)));
    say!("report                {}", path.display());
    Ok(())
}

fn file_name(matrix: &Matrix, args: &args::Matrix) -> String {
    let name = args.lab.name.as_ref().unwrap_or(&matrix.id);
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    name.chars().map(safe).collect()
}

fn verdict(all: &[Done], is_stopped: bool) -> ExitCode {
    let ran = |done: &Done| {
        let carried_out = |run: &Result<(Box<Results>, String), String>| {
            let outcome = run.as_ref().map(|(results, _)| &results.run.outcome);
            matches!(outcome, Ok(Outcome::Completed))
        };
        !done.runs.is_empty() && done.runs.iter().all(carried_out)
    };
    let is_valid = |run: &Result<(Box<Results>, String), String>| {
        run.as_ref().is_ok_and(|(results, _)| results.validity.valid)
    };
    match (all.iter().all(ran), all.iter().all(|done| done.runs.iter().any(is_valid))) {
        _ if is_stopped => ExitCode::from(NOT_VALID),
        (false, _) => ExitCode::from(FAILED),
        (true, false) => ExitCode::from(NOT_VALID),
        (true, true) => ExitCode::SUCCESS,
    }
}

fn list() -> anyhow::Result<()> {
    let mut text = String::new();
    for matrix in Matrix::built_in() {
        let axes = matrix.axes.iter();
        let axes: Vec<String> =
            axes.map(|axis| format!("{} {}", axis.name, axis.values.join(" "))).collect();
        let runs = matrix.cells().len();
        text.push_str(&format!(
            "{:<14}{}\n{:14}{runs} runs of {}: {}\n{:14}{}\n",
            matrix.id,
            matrix.title,
            "",
            matrix.scenario,
            axes.join("; "),
            "",
            matrix.source
        ));
    }
    super::catalogue::print(&text)?;
    Ok(())
}
