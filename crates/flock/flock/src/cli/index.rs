//! `flock index`, and the list of runs that is kept beside their reports.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;

use super::args;
use super::say::{note, say};
use crate::keep;
use flock_measure::Results;
use flock_report::index::{self, Row};

pub(super) fn index(args: &args::Index) -> anyhow::Result<ExitCode> {
    let listed = write(&args.folder, BYTES_MAX)?;
    anyhow::ensure!(
        listed > 0,
        "{} has no results of flock: give the folder of --out",
        args.folder.display()
    );
    say!("{:<22}{}", "index", args.folder.join(NAME).display());
    Ok(ExitCode::SUCCESS)
}

/// Brings the list up to date. That it could not be written makes no run a failed one.
pub(super) fn refresh(folder: &Path) {
    if let Err(error) = write(folder, BYTES_MAX) {
        note!("flock: the list of runs was not written: {error:#}");
    }
}

/// Writes the list of the newest runs, as far as their results have no more than `bytes_max`, and
/// returns how many there are.
fn write(folder: &Path, bytes_max: u64) -> anyhow::Result<usize> {
    let path = folder.join(NAME);
    if fs::read_to_string(&path).is_ok_and(|page| !index::is_index(&page)) {
        anyhow::bail!("{} was not written by flock: move or rename it", path.display());
    }
    let (mut results, mut pages) = (Vec::new(), Vec::new());
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    for entry in entries?.flatten() {
        let path = entry.path();
        let changed = entry.metadata().and_then(|about| about.modified());
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("json") => {
                let bytes = entry.metadata().map_or(0, |about| about.len());
                results.push((changed.unwrap_or(SystemTime::UNIX_EPOCH), path, bytes));
            }
            Some("html") => pages.push(path),
            _ => {}
        }
    }
    results.sort_by(|a, b| b.cmp(a));
    pages.retain(|page| {
        let is_of_run = results.iter().any(|(_, path, _)| path.with_extension("html") == *page);
        !is_of_run && page.file_name().is_some_and(|name| name != NAME)
    });
    let mut others: Vec<String> = pages.iter().filter_map(|page| name_of(page)).collect();
    others.sort();
    let mut bytes_read = 0;
    let is_read = |(_, _, bytes): &&(SystemTime, PathBuf, u64)| {
        bytes_read += bytes;
        bytes_read <= bytes_max
    };
    let read = results.iter().take(RUNS_MAX).take_while(is_read);
    let read: Vec<&Path> = read.map(|(_, path, _)| path.as_path()).collect();
    let omitted = results.len() - read.len();
    let rows: Vec<Row> = read.into_iter().filter_map(row).collect();
    let listed = rows.len();
    if listed > 0 {
        let page = index::html(&folder.display().to_string(), rows, &others, omitted);
        keep::write(&path, &page).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(listed)
}

/// Nothing for a file that is none of ours.
fn row(path: &Path) -> Option<Row> {
    let results = Results::parse(&fs::read_to_string(path).ok()?).ok()?;
    Some(Row::of(&name_of(&path.with_extension("html"))?, &results))
}

fn name_of(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_string_lossy().into_owned())
}

const NAME: &str = "index.html";
/// Reading more takes longer than a user may notice. Older runs are not listed, and the page says
/// how many.
const RUNS_MAX: usize = 200;
const BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_listed_and_a_page_of_somebody_else_stays() {
        let folder = std::env::temp_dir().join(format!("flock-index-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let results = Results { format: flock_measure::RESULTS_FORMAT, ..Results::default() };
        let text = serde_json::to_string(&results).unwrap();
        fs::write(folder.join("one.json"), &text).unwrap();
        fs::write(folder.join("two.json"), &text).unwrap();
        fs::write(folder.join("other.json"), "{}").unwrap();
        for page in ["one.html", "versus.html"] {
            fs::write(folder.join(page), "x").unwrap();
        }
        let all = u64::MAX;
        assert_eq!(write(&folder, all).unwrap(), 2);
        assert_eq!(write(&folder, all).unwrap(), 2, "its own page is replaced");
        let page = fs::read_to_string(folder.join(NAME)).unwrap();
        assert!(page.contains("./one.html") && page.contains("./two.html"), "{page}");
        assert!(page.contains("Pages of several runs: <a href=\"./versus.html\">"), "{page}");
        // What is not read is said.
        assert_eq!(write(&folder, text.len() as u64 + 2).unwrap(), 1);
        let page = fs::read_to_string(folder.join(NAME)).unwrap();
        assert!(page.contains("older ones are not listed"), "{page}");
        fs::write(folder.join(NAME), "mine").unwrap();
        assert!(write(&folder, all).unwrap_err().to_string().contains("not written by flock"));
        assert_eq!(fs::read_to_string(folder.join(NAME)).unwrap(), "mine");
        fs::remove_dir_all(&folder).unwrap();
        let told = write(&folder, all).unwrap_err();
        assert!(format!("{told:#}").contains("cannot read"), "{told:#}");
    }
}
