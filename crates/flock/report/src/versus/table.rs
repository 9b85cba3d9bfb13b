//! The comparison that the command prints: the median of the valid rounds, their spread, how
//! brokers stand to the first of them, and every round.

use std::fmt::Write as _;

use super::Cell;
use crate::columns::{
    AVERAGE, CONNECTS, CPU_AVG, CPU_COST, CPU_MAX, Column, LOST, MEMORY_AVG, MEMORY_MAX, P50, P75,
    P90, P95, P99, PUBLISHED, RECEIVED,
};
use crate::reports::Reports;
use crate::sides::{self, RATIOS_NOTE, Side};
use crate::table::{self, Table};
use flock_measure::figures::headline;
use flock_measure::{Due, Results};

/// Two Markdown tables per scenario: the figures of the brokers side by side, and every round. What
/// is not valid is shown and stands in no median; a broker without a valid round has no figure.
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::new();
    let mut scenarios: Vec<&str> = Vec::new();
    for cell in cells {
        if !scenarios.contains(&cell.scenario.as_str()) {
            scenarios.push(&cell.scenario);
        }
    }
    for scenario in scenarios {
        let cells: Vec<&Cell> = cells.iter().filter(|cell| cell.scenario == scenario).collect();
        let mut sides = sides(&cells);
        for side in &mut sides {
            let version = side.runs.first().map_or("", |results| &results.broker.version);
            side.name = format!("{} {version}", side.name).trim_end().to_owned();
        }
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {scenario}\n");
        for words in sides::obstacles(&sides) {
            let _ = writeln!(text, "{words}\n");
        }
        let figures = sides::figures(&sides, &COLUMNS, Side::valid).markdown();
        let rounds = rounds(&cells, &ROUND_COLUMNS, Reports::Files).markdown();
        let note = if sides.len() > 1 { format!("\n{RATIOS_NOTE}\n") } else { String::new() };
        let _ = writeln!(text, "{figures}{note}\n{rounds}");
    }
    text
}

/// The rounds of one scenario by broker, in the order of their first appearance.
pub(super) fn sides<'a>(cells: &[&'a Cell]) -> Vec<Side<'a>> {
    let mut all: Vec<Side<'a>> = Vec::new();
    for cell in cells {
        let known = all.iter().position(|side| side.name == cell.broker).unwrap_or_else(|| {
            all.push(Side { name: cell.broker.clone(), runs: Vec::new(), begun: 0 });
            all.len() - 1
        });
        all[known].begun += 1;
        all[known].runs.extend(cell.results.as_deref());
    }
    all
}

/// Every round, by broker, with the way to its report.
pub(super) fn rounds(cells: &[&Cell], columns: &[&Column], reports: Reports) -> Table {
    let runs: Vec<&Results> =
        cells.iter().filter_map(|cell| cell.results.as_deref().ok()).collect();
    let columns: Vec<&&Column> =
        columns.iter().filter(|column| sides::is_shown(column, &runs)).collect();
    let names = columns.iter().map(|column| column.name);
    let mut table =
        Table::new(Some("rounds"), ["Broker", "Round"].into_iter().chain(names).chain(["Remarks"]));
    for side in sides(cells) {
        for cell in cells.iter().filter(|cell| cell.broker == side.name) {
            let mut number = table::Cell::from((cell.round + 1).to_string());
            let (results, remarks) = match &cell.results {
                Ok(results) => (Some(&**results), remarks(results)),
                Err(why) => (None, one_line(why)),
            };
            if results.is_some() {
                number.link = reports.link(&cell.name());
            }
            let shown = columns.iter().map(|column| column.spread(results.as_slice()));
            let first = [cell.broker.clone().into(), number];
            table.add(first.into_iter().chain(shown).chain([remarks.into()]));
        }
    }
    table
}

/// Whether each broker has a valid round of each scenario: otherwise there is nothing to compare.
pub fn all_have_a_valid_round(cells: &[Cell]) -> bool {
    let is_same = |a: &Cell, b: &Cell| a.broker == b.broker && a.scenario == b.scenario;
    let is_valid = |cell: &Cell| cell.results.as_ref().is_ok_and(|results| results.validity.valid);
    let valid = |cell: &Cell| cells.iter().any(|other| is_same(other, cell) && is_valid(other));
    cells.iter().all(valid)
}

pub(crate) fn remarks(results: &Results) -> String {
    let mut words = Vec::new();
    if !results.validity.valid {
        words.push("NOT VALID".to_owned());
    }
    if results.validity.lateness.count > 0 {
        words.push(headline(results).title().to_owned());
    }
    if let Some(warm_up) = results.phases.iter().find(|phase| phase.name == "warm-up") {
        words.push(format!("warm-up {:.1} s", warm_up.to_secs - warm_up.from_secs));
    }
    for timer in &results.timers {
        // The slowest client's: that of all of them.
        words.push(format!("{} {:.0} ms", timer.name, timer.summary.max_us as f64 / 1e3));
    }
    let missing = Due::of(results, headline(results)).missing_words();
    words.extend(missing.map(|share| format!("{share} without latency")));
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

/// All figures, in the order of the published tables.
pub(super) const COLUMNS: [&Column; 15] = [
    PUBLISHED, RECEIVED, CONNECTS, AVERAGE, P50, P75, P90, P95, P99, CPU_MAX, CPU_AVG, CPU_COST,
    MEMORY_MAX, MEMORY_AVG, LOST,
];

/// What is told of each round in the printed table; its own report has the rest.
const ROUND_COLUMNS: [&Column; 6] = [RECEIVED, P50, P99, CPU_COST, MEMORY_MAX, LOST];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::{LatencyKind, sample};

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
                note: String::new(),
                scenario: "S".into(),
                round: round as u32,
                results: Ok(Box::new(results)),
            }
        };
        costs.iter().enumerate().map(cell).collect()
    }

    /// The row of a table that begins so.
    fn line<'a>(text: &'a str, start: &str) -> &'a str {
        let start = format!("| {start} |");
        text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn the_median_is_of_valid_rounds_and_all_are_shown() {
        let cells = rounds(&[(1.0, false), (30.0, true), (20.0, true), (50.0, true)]);
        let text = table(&cells);
        let first = line(&text, "b | 1");
        assert!(first.contains("| 1 us |") && first.contains("NOT VALID"), "{first}");
        assert!([2, 3, 4].iter().all(|n| !line(&text, &format!("b | {n}")).contains("NOT VALID")));
        let median = line(&text, "Broker CPU per message");
        assert!(median.contains("| 30 us (20 us to 50 us) |"), "{median}");
        assert!(line(&text, "Valid runs").contains("3 of 4") && all_have_a_valid_round(&cells));
    }

    #[test]
    fn every_figure_of_the_published_tables_is_a_row() {
        let text = table(&rounds(&[(1.0, true)]));
        for title in [
            "Published per second",
            "Received per second",
            "Latency, average",
            "Latency, p50",
            "Latency, p75",
            "Latency, p90",
            "Latency, p95",
            "Latency, p99",
            "Broker memory, maximum",
            "Broker memory, average",
        ] {
            assert!(!line(&text, title).contains('–'), "{title}: {text}");
        }
        assert!(line(&text, CPU_MAX.title).contains(" cores)"), "{text}");
        assert!(!text.contains("Connects per second"), "it is no scenario of connections");
    }

    #[test]
    fn a_scenario_of_connections_has_their_rate() {
        let mut cells = rounds(&[(1.0, true)]);
        if let Ok(results) = &mut cells[0].results {
            results.latencies.retain(|latency| latency.kind == LatencyKind::Connect);
        }
        let text = table(&cells);
        assert!(line(&text, "Connects per second").contains("400/s"), "{text}");
    }

    #[test]
    fn ratios_are_of_the_valid_rounds_to_the_first_broker() {
        let own = [10.0, 11.0, 9.5, 10.2, 9.9].map(|cost| (cost, true));
        let mut cells = rounds(&[&own[..], &[(99.0, false)]].concat());
        let mut others = rounds(&[30.0, 33.0, 31.0, 31.5, 30.5].map(|cost| (cost, true)));
        others.iter_mut().for_each(|cell| cell.broker = "dear".to_owned());
        cells.extend(others);
        let text = table(&cells);
        assert!(text.contains("| dear 1.0 / b 1.0 |") && text.contains(RATIOS_NOTE), "{text}");
        let cost = line(&text, "Broker CPU per message");
        assert!(cost.contains("| **3.10x (2.") && !cost.contains("99"), "{text}");
        // Nor is there a ratio of what is not alike.
        if let Ok(results) = &mut cells[1].results {
            results.scenario.scale = 0.5;
        }
        let text = table(&cells);
        let said = text.find("no ratios: the runs differ in scales");
        assert!(said.is_some() && said < text.find("| Valid runs"), "{text}");
        assert!(!text.contains("x ("), "{text}");
    }

    #[test]
    fn without_a_valid_round_there_is_no_figure() {
        let mut cells = rounds(&[(1.0, false), (2.0, false)]);
        assert!(!all_have_a_valid_round(&cells));
        let text = table(&cells);
        assert!(line(&text, "Published per second").ends_with("| – |"), "{text}");
        assert!(line(&text, "Valid runs").contains("0 of 2"), "{text}");
        cells[1].results = Err("did not start".into());
        assert!(table(&cells).contains("did not start"));
    }
}
