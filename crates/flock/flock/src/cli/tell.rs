//! `flock report` and `flock compare`: from results files to something to read.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use super::args;
use super::run::write_reports;
use super::say::{out, say};
use crate::keep;
use flock_measure::Results;
use flock_report::{Side, compare, summary};

pub(super) fn report(args: &args::Report) -> anyhow::Result<ExitCode> {
    let results = read(&args.results)?;
    let path = match (&args.out, args.results.file_name()) {
        (Some(folder), Some(name)) => {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            folder.join(name)
        }
        _ => args.results.clone(),
    };
    out(format_args!("{}", summary(&results)));
    write_reports(&results, &path)?;
    say!("{:<22}{}", "report", path.with_extension("html").display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn compare(args: &args::Compare) -> anyhow::Result<ExitCode> {
    let sets = sets(&args.results)?;
    let sides = Side::each(&sets);
    let runs: usize = sets.iter().map(Vec::len).sum();
    anyhow::ensure!(runs > 1, "a comparison needs at least two runs");
    out(format_args!("{}", compare::plain(&sides)));
    let Some(path) = &args.out else { return Ok(ExitCode::SUCCESS) };
    let text = match path.extension().and_then(|ending| ending.to_str()) {
        Some("html") => compare::html(&sides),
        Some("md") => compare::markdown(&sides),
        _ => anyhow::bail!("{}: the name must end with .html or .md", path.display()),
    };
    keep::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    say!("\nwritten to {}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs that belong together: those that say so, and those that the user joined by commas.
fn sets(given: &[String]) -> anyhow::Result<Vec<Vec<Results>>> {
    let (mut sets, mut single) = (Vec::new(), Vec::new());
    for one in given {
        let paths: Vec<&str> = one.split(',').filter(|path| !path.is_empty()).collect();
        let mut results =
            paths.iter().map(|path| read(Path::new(path))).collect::<anyhow::Result<Vec<_>>>()?;
        match results.len() {
            1 => single.append(&mut results),
            _ => {
                sets.append(&mut compare::in_sets(std::mem::take(&mut single)));
                sets.push(results);
            }
        }
    }
    sets.append(&mut compare::in_sets(single));
    Ok(sets)
}

fn read(path: &Path) -> anyhow::Result<Results> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Results::parse(&text).map_err(|why| anyhow::anyhow!("{} {why}", path.display()))
}
