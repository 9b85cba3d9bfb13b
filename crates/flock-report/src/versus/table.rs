//! The comparison that the command prints: every round, the median of the valid ones, their spread,
//! and how brokers stand to the first of them.

use std::fmt::Write as _;

use super::Cell;
use crate::alike::unlike;
use flock_measure::figures::{Figures, headline};
use flock_measure::stats::{Noise, Ratio, Spread};
use flock_measure::{Due, Results};

/// A Markdown table per scenario. What is not valid is shown and stands in no median; a broker
/// without a valid round has no figure.
pub fn table(cells: &[Cell]) -> String {
    let mut text = String::new();
    for scenario in names(cells.iter(), |cell| &cell.scenario) {
        let of_scenario = || cells.iter().filter(|cell| cell.scenario == scenario);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "### {scenario}\n");
        let rounds = |broker| of_scenario().filter(|cell| cell.broker == broker).collect();
        let brokers = names(of_scenario(), |cell| &cell.broker).into_iter();
        let all: Vec<(&str, Vec<&Cell>)> = brokers.map(|broker| (broker, rounds(broker))).collect();
        for words in obstacles(&all) {
            let _ = writeln!(text, "{words}\n");
        }
        text.push_str(&head());
        for (broker, rounds) in &all {
            for cell in rounds {
                text.push_str(&round(cell));
            }
            text.push_str(&median(broker, rounds));
        }
        text.push_str(&ratios(&all));
        text.push('\n');
    }
    text
}

/// A row for each broker but the first, to which the ratios are.
fn ratios(all: &[(&str, Vec<&Cell>)]) -> String {
    let Some(((base, of_base), others)) = all.split_first() else { return String::new() };
    let mut text = String::new();
    for (broker, rounds) in others {
        let each = COLUMNS.each_ref().map(|column| {
            let ratio = ratio_of(column, of_base, rounds);
            ratio.map_or_else(|| "-".to_owned(), |ratio| ratio_words(&ratio))
        });
        let _ = writeln!(text, "| {broker} / {base} | {} | |", each.join(" | "));
    }
    let are_told = text.contains("x (");
    if are_told {
        let _ = write!(text, "\n{RATIOS_NOTE}\n");
    }
    text
}

fn valid<'a>(cell: &&'a Cell) -> Option<&'a Results> {
    cell.results.as_deref().ok().filter(|results| results.validity.valid)
}

/// Why brokers have no ratios.
pub(super) fn obstacles(all: &[(&str, Vec<&Cell>)]) -> Vec<String> {
    let rounds = || all.iter().flat_map(|(_, rounds)| rounds);
    let valid: Vec<&Results> = rounds().filter_map(valid).collect();
    let unlike = unlike(&valid).into_iter().map(|words| format!("No ratios: {words}."));
    let none = all.iter().filter(|(_, rounds)| !rounds.iter().any(|cell| is_valid(cell)));
    let invalid = none.map(|(broker, _)| format!("No ratio of {broker}: no round is valid."));
    unlike.chain(invalid).collect()
}

/// Of the medians of the valid rounds, with its interval. A ratio of losses says nothing.
pub(super) fn ratio_of(column: &Column, base: &[&Cell], other: &[&Cell]) -> Option<Ratio> {
    let all: Vec<&Results> = [base, other].into_iter().flatten().filter_map(valid).collect();
    // Their connects are not to be divided by others' messages.
    let is_latency = column.name.starts_with('p') && column.name.ends_with(" ms");
    let is_of_one_kind = all.windows(2).all(|pair| headline(pair[0]) == headline(pair[1]));
    if column.name == LOST || !unlike(&all).is_empty() || (is_latency && !is_of_one_kind) {
        return None;
    }
    Ratio::of(&valid_values(column, base), &valid_values(column, other))
}

/// `1.20x`, whether it is more than noise, and ` (1.10 to 1.31)`.
pub(super) fn ratio_parts(ratio: &Ratio) -> (String, bool, String) {
    let rest = match (ratio.noise(), ratio.interval) {
        (Noise::Unknown, _) => ", noise unknown".to_owned(),
        (_, Some((low, high))) => format!(" ({low:.2} to {high:.2})"),
        (_, None) => String::new(),
    };
    (format!("{:.2}x", ratio.ratio), ratio.noise() == Noise::Beyond, rest)
}

/// In bold where it is more than noise.
fn ratio_words(ratio: &Ratio) -> String {
    let (words, is_beyond, rest) = ratio_parts(ratio);
    if is_beyond { format!("**{words}**{rest}") } else { words + &rest }
}

fn head() -> String {
    let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
    format!(
        "| broker | {} | remarks |\n|---|{}---|\n",
        names.join(" | "),
        "---|".repeat(COLUMNS.len())
    )
}

/// Whether each broker has a valid round of each scenario: otherwise there is nothing to compare.
pub fn all_have_a_valid_round(cells: &[Cell]) -> bool {
    let valid = |cell: &Cell| cells.iter().any(|other| is_same(other, cell) && is_valid(other));
    cells.iter().all(valid)
}

fn is_same(a: &Cell, b: &Cell) -> bool {
    a.broker == b.broker && a.scenario == b.scenario
}

pub(super) fn is_valid(cell: &Cell) -> bool {
    cell.results.as_ref().is_ok_and(|results| results.validity.valid)
}

/// In the order of their first appearance.
pub(super) fn names<'a>(
    cells: impl Iterator<Item = &'a Cell>,
    of: fn(&Cell) -> &String,
) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells {
        if !names.contains(&of(cell).as_str()) {
            names.push(of(cell));
        }
    }
    names
}

/// A column with a figure.
pub(super) struct Column {
    /// In the printed table, and on the page.
    pub name: &'static str,
    pub title: &'static str,
    pub digits: usize,
    pub of: fn(&Results) -> Option<f64>,
}

const fn column(
    name: &'static str,
    title: &'static str,
    digits: usize,
    of: fn(&Results) -> Option<f64>,
) -> Column {
    Column { name, title, digits, of }
}

pub(super) const COLUMNS: [Column; 8] = [
    column("published/s", "Published per second", 0, |r| Figures::of(r).published_per_sec),
    column("received/s", "Received per second", 0, |r| Figures::of(r).received_per_sec),
    column("p50 ms", "Latency p50, ms", 2, |r| Figures::of(r).p50_us.map(|us| us / 1e3)),
    column("p95 ms", "Latency p95, ms", 2, |r| Figures::of(r).p95_us.map(|us| us / 1e3)),
    column("p99 ms", "Latency p99, ms", 2, |r| Figures::of(r).p99_us.map(|us| us / 1e3)),
    column("CPU us per message", "CPU us per message", 2, cpu_us),
    column("memory MB", "Memory, MB at most", 1, |r| {
        Figures::of(r).memory_max_bytes.map(|bytes| bytes / 1e6)
    }),
    column(LOST, "Lost", 0, |r| Some(Figures::of(r).lost as f64)),
];

/// Per connect where there are no messages.
fn cpu_us(results: &Results) -> Option<f64> {
    let load = results.broker_load.as_ref()?;
    load.cpu_us_per_message.or(load.cpu_us_per_connect)
}

pub(super) fn valid_values(column: &Column, rounds: &[&Cell]) -> Vec<f64> {
    let valid = rounds.iter().filter(|cell| is_valid(cell));
    valid.filter_map(|cell| (column.of)(cell.results.as_ref().ok()?)).collect()
}

fn round(cell: &Cell) -> String {
    let number = cell.round + 1;
    let results = match &cell.results {
        Ok(results) => results,
        Err(why) => {
            let empty = " |".repeat(COLUMNS.len());
            return format!("| {}, round {number} |{empty} {} |\n", cell.broker, one_line(why));
        }
    };
    let all = COLUMNS.each_ref().map(|column| shown((column.of)(results), column.digits));
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
    let each = COLUMNS.each_ref().map(|column| {
        let digits = column.digits;
        Spread::of(&valid_values(column, rounds)).map_or("-".to_owned(), |spread| {
            let Spread { median, least, most, .. } = spread;
            format!("**{median:.digits$}** ({least:.digits$} to {most:.digits$})")
        })
    });
    let valid = rounds.iter().filter(|cell| is_valid(cell)).count();
    let of = format!("{valid} of {} rounds valid", rounds.len());
    format!("| **{broker}, median** | {} | {of} |\n", each.join(" | "))
}

fn shown(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
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

const LOST: &str = "lost";
pub(super) const RATIOS_NOTE: &str = "Ratios of medians, with 95 % confidence intervals \
     (rank test over five or more valid rounds each). Bold: larger than the noise. Of 20 ratios of \
     equal brokers, chance makes one bold at most, on average.";

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

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
        let own = [10.0, 11.0, 9.5, 10.2, 9.9].map(|cost| (cost, true));
        let mut cells = rounds(&[&own[..], &[(99.0, false)]].concat());
        let dear = [30.0, 33.0, 31.0, 31.5, 30.5];
        for (costs, broker) in [(dear, "dear"), ([10.5, 9.0, 11.5, 10.4, 9.6], "like")] {
            let mut others = rounds(&costs.map(|cost| (cost, true)));
            others.iter_mut().for_each(|cell| cell.broker = broker.to_owned());
            cells.extend(others);
        }
        let text = table(&cells);
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line("| dear / b ").contains("**3.10x** (2."), "{text}");
        assert!(line("| like / b ").contains("| 1.04x (0."), "{text}");
        assert!(text.contains("larger than the noise") && !line("| dear / b ").contains("99"));
        // Nor is there a ratio of what is not alike.
        if let Ok(results) = &mut cells[1].results {
            results.scenario.scale = 0.5;
        }
        let text = table(&cells);
        assert!(text.find("No ratios: the runs differ in scales.") < text.find("| broker"));
        assert!(!text.contains("x (") && text.contains("| dear / b | - |"), "{text}");
        if let Ok(results) = &mut cells[1].results {
            results.scenario.scale = 1.0;
        }
        // Of four rounds there is no interval.
        cells.retain(|cell| cell.round < 4);
        assert!(table(&cells).contains("x, noise unknown"));
    }

    #[test]
    fn without_a_valid_round_there_is_no_figure() {
        let mut cells = rounds(&[(1.0, false), (2.0, false)]);
        assert!(!all_have_a_valid_round(&cells));
        let text = table(&cells);
        let median = text.lines().find(|line| line.contains("median")).unwrap();
        assert!(!median.contains("**1") && !median.contains("**2"), "{median}");
        assert_eq!(median.matches("| - ").count(), COLUMNS.len(), "{median}");
        cells[1].results = Err("did not start".into());
        assert!(table(&cells).contains("did not start"));
    }
}
