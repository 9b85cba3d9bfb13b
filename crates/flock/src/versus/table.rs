//! The comparison that the command prints: every round, the median of the valid ones, their spread,
//! and how brokers stand to the first of them.

use std::fmt::Write as _;

use super::Cell;
use crate::measure::Results;
use crate::report::figures::{Figures, headline};
use crate::stats::{Noise, Ratio, Spread};

/// A Markdown table per scenario. What is not valid is shown and stands in no median; a broker
/// without a valid round has no figure.
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::new();
    for scenario in names(cells.iter(), |cell| &cell.scenario) {
        let of_scenario = || cells.iter().filter(|cell| cell.scenario == scenario);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {scenario}\n");
        text.push_str(HEADER);
        let mut all: Vec<(&str, Columns)> = Vec::new();
        for broker in names(of_scenario(), |cell| &cell.broker) {
            let rounds: Vec<&Cell> = of_scenario().filter(|cell| cell.broker == broker).collect();
            for cell in &rounds {
                text.push_str(&round(cell));
            }
            let columns = columns(&rounds);
            text.push_str(&median(broker, &columns, &rounds));
            all.push((broker, columns));
        }
        text.push_str(&ratios(&all));
        text.push('\n');
    }
    text
}

/// The values of the valid rounds, by column, and how many digits they have.
type Columns = [(Vec<f64>, usize); COLUMNS];

fn columns(rounds: &[&Cell]) -> Columns {
    let valid: Vec<_> = rounds
        .iter()
        .filter(|cell| is_valid(cell))
        .filter_map(|cell| cell.results.as_ref().ok())
        .map(|results| values(results))
        .collect();
    std::array::from_fn(|column| {
        let digits = valid.first().map_or(0, |row| row[column].1);
        (valid.iter().filter_map(|row| row[column].0).collect(), digits)
    })
}

/// A row for each broker but the first, to which the ratios are.
fn ratios(all: &[(&str, Columns)]) -> String {
    let Some(((base, of_base), others)) = all.split_first() else { return String::new() };
    let mut text = String::new();
    for (broker, columns) in others {
        let each: Vec<String> = (0..COLUMNS)
            .map(|column| {
                let ratio = Ratio::of(&of_base[column].0, &columns[column].0);
                // A ratio of losses says nothing.
                let ratio = ratio.filter(|_| column != LOST);
                ratio.map_or_else(|| "-".to_owned(), |ratio| ratio_words(&ratio))
            })
            .collect();
        let _ = writeln!(text, "| {broker} / {base} | {} | |", each.join(" | "));
    }
    let are_told = text.contains("x (");
    if are_told {
        text.push_str(RATIOS_NOTE);
    }
    text
}

/// `1.20x (1.10 to 1.31)`, in bold where it is more than noise.
fn ratio_words(ratio: &Ratio) -> String {
    let words = format!("{:.2}x", ratio.ratio);
    let interval =
        ratio.interval.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"));
    match ratio.noise() {
        Noise::Beyond => format!("**{words}**{interval}"),
        Noise::Within => format!("{words}{interval}"),
        Noise::Unknown => format!("{words}, noise unknown"),
    }
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

fn median(broker: &str, columns: &Columns, rounds: &[&Cell]) -> String {
    let each: Vec<String> = columns
        .iter()
        .map(|(values, digits)| {
            let Some(spread) = Spread::of(values) else { return "-".to_owned() };
            let Spread { median, least, most, .. } = spread;
            format!("**{median:.digits$}** ({least:.digits$} to {most:.digits$})")
        })
        .collect();
    let valid = rounds.iter().filter(|cell| is_valid(cell)).count();
    let of = format!("{valid} of {} rounds valid", rounds.len());
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
    if let Some(warm_up) = results.phases.iter().find(|phase| phase.name == "warm-up") {
        words.push(format!("warm-up {:.1} s", warm_up.to_secs - warm_up.from_secs));
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
const LOST: usize = 6;
const RATIOS_NOTE: &str = "\nRatios are of medians; in brackets the interval in which they lie with 95 % \
                           confidence (bootstrap over the valid rounds). In bold: larger than the \
                           noise.\n";
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
    fn ratios_say_whether_they_are_more_than_noise() {
        let mut cells = rounds(&[(10.0, true), (11.0, true), (9.5, true), (99.0, false)]);
        for (costs, broker) in [([30.0, 33.0, 31.0], "dear"), ([10.5, 9.0, 11.5], "like")] {
            let mut others = rounds(&costs.map(|cost| (cost, true)));
            others.iter_mut().for_each(|cell| cell.broker = broker.to_owned());
            cells.extend(others);
        }
        let text = table(&cells);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("| dear / b ").contains("**3.10x** (2."), "{text}");
        assert!(line("| like / b ").contains("| 1.05x (0."), "{text}");
        assert!(text.contains("larger than the noise") && !line("| dear / b ").contains("99"));
        // Two rounds tell nothing.
        cells.retain(|cell| cell.round < 2);
        assert!(table(&cells).contains("x, noise unknown"));
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
