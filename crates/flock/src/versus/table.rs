//! The comparison that the command prints: every round, the median of the valid ones, and their
//! spread.

use std::fmt::Write as _;

use super::Cell;
use crate::measure::Results;
use crate::report::figures::{Figures, headline};

/// A Markdown table per scenario. What is not valid is shown and stands in no median; a broker
/// without a valid round has no figure.
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::new();
    for scenario in names(cells.iter(), |cell| &cell.scenario) {
        let of_scenario = || cells.iter().filter(|cell| cell.scenario == scenario);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {scenario}\n");
        text.push_str(HEADER);
        for broker in names(of_scenario(), |cell| &cell.broker) {
            let rounds: Vec<&Cell> = of_scenario().filter(|cell| cell.broker == broker).collect();
            for cell in &rounds {
                text.push_str(&round(cell));
            }
            text.push_str(&median(broker, &rounds));
        }
        text.push('\n');
    }
    text
}

/// Whether each broker has a valid round of each scenario: otherwise there is nothing to compare.
pub fn all_have_a_valid_round(cells: &[Cell]) -> bool {
    let valid = |cell: &Cell| cells.iter().any(|other| is_same(other, cell) && is_valid(other));
    cells.iter().all(valid)
}

fn is_same(a: &Cell, b: &Cell) -> bool {
    a.broker == b.broker && a.scenario == b.scenario
}

fn is_valid(cell: &Cell) -> bool {
    cell.results.as_ref().is_ok_and(|results| results.validity.valid)
}

/// In the order of their first appearance.
fn names<'a>(cells: impl Iterator<Item = &'a Cell>, of: fn(&Cell) -> &String) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells {
        if !names.contains(&of(cell).as_str()) {
            names.push(of(cell));
        }
    }
    names
}

/// The columns with a figure, and how many digits they have.
fn values(results: &Results) -> [(Option<f64>, usize); COLUMNS] {
    let figures = Figures::of(results);
    let load = results.broker_load.as_ref();
    let cpu = load.and_then(|load| load.cpu_us_per_message.or(load.cpu_us_per_connect));
    [
        (figures.published_per_sec, 0),
        (figures.received_per_sec, 0),
        (figures.p50_us.map(|us| us / 1e3), 2),
        (figures.p99_us.map(|us| us / 1e3), 2),
        (cpu, 2),
        (figures.memory_max_bytes.map(|bytes| bytes / 1e6), 1),
        (Some(figures.lost as f64), 0),
    ]
}

fn round(cell: &Cell) -> String {
    let number = cell.round + 1;
    let results = match &cell.results {
        Ok(results) => results,
        Err(why) => {
            let empty = " |".repeat(COLUMNS);
            return format!("| {}, round {number} |{empty} {} |\n", cell.broker, one_line(why));
        }
    };
    let all = values(results).map(|(value, digits)| shown(value, digits));
    let (broker, version) = (&cell.broker, &results.broker.version);
    format!(
        "| {} , round {number} | {} | {} |\n",
        format!("{broker} {version}").trim(),
        all.join(" | "),
        remarks(results)
    )
    .replacen(" ,", ",", 1)
}

fn median(broker: &str, rounds: &[&Cell]) -> String {
    let valid = rounds.iter().filter(|cell| is_valid(cell));
    let valid: Vec<[(Option<f64>, usize); COLUMNS]> =
        valid.filter_map(|cell| cell.results.as_ref().ok()).map(|r| values(r)).collect();
    let each: Vec<String> = (0..COLUMNS)
        .map(|column| {
            let digits = valid.first().map_or(0, |row| row[column].1);
            let mut all: Vec<f64> = valid.iter().filter_map(|row| row[column].0).collect();
            all.sort_by(f64::total_cmp);
            let (Some(low), Some(high)) = (all.first(), all.last()) else {
                return "-".to_owned();
            };
            let middle = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
            format!("**{middle:.digits$}** ({low:.digits$} to {high:.digits$})")
        })
        .collect();
    let of = format!("{} of {} rounds valid", valid.len(), rounds.len());
    format!("| **{broker}, median** | {} | {of} |\n", each.join(" | "))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn remarks(results: &Results) -> String {
    let mut words = Vec::new();
    if !results.validity.valid {
        words.push("NOT VALID".to_owned());
    }
    if results.validity.lateness.count > 0 {
        words.push(headline(results).title().to_owned());
    }
    for timer in &results.timers {
        // The slowest client's: that of all of them.
        words.push(format!("{} {:.0} ms", timer.name, timer.summary.max_us as f64 / 1e3));
    }
    let total = results.integrity.total();
    let counts = [("repeated", total.duplicated), ("out of order", total.reordered)];
    let wrong = counts.into_iter().chain(results.integrity.wrongs()).filter(|(_, n)| *n > 0);
    words.extend(wrong.map(|(what, n)| format!("{n} {what}")));
    if let Some(reason) = results.validity.reasons.first() {
        words.push(one_line(reason));
    }
    if let Some(error) = results.errors.first() {
        words.push(format!("{} x {}", error.count, one_line(&error.reason)));
    }
    words.join("; ")
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

const COLUMNS: usize = 7;
const HEADER: &str = "| broker | published/s | received/s | p50 ms | p99 ms | CPU us per message | \
                      memory MB | lost | remarks |\n|---|---|---|---|---|---|---|---|---|\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    /// Rounds with these costs per message, valid or not.
    fn rounds(costs: &[(f64, bool)]) -> Vec<Cell> {
        let cell = |(round, &(cost, valid)): (usize, &(f64, bool))| {
            let mut results = sample::results(1.0);
            results.validity.valid = valid;
            if let Some(load) = &mut results.broker_load {
                load.cpu_us_per_message = Some(cost);
            }
            Cell {
                broker: "b".into(),
                scenario: "S".into(),
                round: round as u32,
                results: Ok(Box::new(results)),
            }
        };
        costs.iter().enumerate().map(cell).collect()
    }

    #[test]
    fn the_median_is_of_valid_rounds_and_all_are_shown() {
        let cells = rounds(&[(1.0, false), (30.0, true), (20.0, true), (50.0, true)]);
        let text = table(&cells);
        assert_eq!(text.lines().filter(|line| line.contains(", round ")).count(), 4);
        let first = text.lines().find(|line| line.contains("round 1")).unwrap();
        assert!(first.contains("| 1.00 |") && first.contains("NOT VALID"), "{first}");
        let median = text.lines().find(|line| line.contains("median")).unwrap();
        assert!(median.contains("**30.00** (20.00 to 50.00)"), "{median}");
        assert!(median.contains("3 of 4 rounds valid") && all_have_a_valid_round(&cells));
    }

    #[test]
    fn without_a_valid_round_there_is_no_figure() {
        let mut cells = rounds(&[(1.0, false), (2.0, false)]);
        assert!(!all_have_a_valid_round(&cells));
        let text = table(&cells);
        let median = text.lines().find(|line| line.contains("median")).unwrap();
        assert!(!median.contains("**1") && !median.contains("**2"), "{median}");
        assert_eq!(median.matches("| - ").count(), COLUMNS, "{median}");
        cells[1].results = Err("did not start".into());
        assert!(table(&cells).contains("did not start"));
    }
}
