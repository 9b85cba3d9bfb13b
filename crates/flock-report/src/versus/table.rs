//! The comparison that the command prints: every round, the median of the valid ones, their spread,
//! and how brokers stand to the first of them.

use std::fmt::Write as _;

use super::Cell;
use crate::alike::unlike;
use crate::chart::Unit;
use crate::columns::{self, Column, own_cores};
use flock_measure::figures::headline;
use flock_measure::stats::{Noise, Ratio, Spread};
use flock_measure::{Due, Results};

/// Two Markdown tables per scenario: the figures of the brokers side by side, and every round. What
/// is not valid is shown and stands in no median; a broker without a valid round has no figure.
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
        text.push_str(&medians(&all));
        text.push('\n');
        text.push_str(&row("round", ROUND_COLUMNS.iter().map(|column| column.name), "remarks"));
        text.push_str(&rule(ROUND_COLUMNS.len() + 2));
        for cell in all.iter().flat_map(|(_, rounds)| rounds) {
            text.push_str(&round(cell));
        }
        text.push('\n');
    }
    text
}

/// A column for each broker, and one for each ratio to the first of them.
fn medians(all: &[(&str, Vec<&Cell>)]) -> String {
    let Some(((base, of_base), others)) = all.split_first() else { return String::new() };
    let mut head: Vec<String> = all.iter().map(|(broker, rounds)| named(broker, rounds)).collect();
    head.extend(others.iter().map(|(broker, _)| format!("{broker} / {base}")));
    let mut text = row("", head.iter().map(String::as_str), "");
    text.push_str(&rule(head.len() + 1));
    let counts = all.iter().map(|(_, rounds)| valid_words(rounds));
    let counts: Vec<String> = counts.chain(others.iter().map(|_| String::new())).collect();
    text.push_str(&row("rounds", counts.iter().map(String::as_str), ""));
    for column in COLUMNS.iter().filter(|column| is_shown(column, all)) {
        let medians = all.iter().map(|(_, rounds)| median(column, rounds));
        let ratio = |rounds: &Vec<&Cell>| {
            let ratio = ratio_of(column, of_base, rounds);
            ratio.map_or_else(|| "-".to_owned(), |ratio| ratio_words(&ratio))
        };
        let cells: Vec<String> =
            medians.chain(others.iter().map(|(_, rounds)| ratio(rounds))).collect();
        text.push_str(&row(column.title, cells.iter().map(String::as_str), ""));
    }
    if text.contains("x (") {
        let _ = write!(text, "\n{RATIOS_NOTE}\n");
    }
    text
}

/// A line of a Markdown table; `last` is left out where it is empty.
fn row<'a>(first: &'a str, cells: impl Iterator<Item = &'a str>, last: &'a str) -> String {
    let last = Some(last).filter(|last| !last.is_empty());
    let cells: Vec<&str> = std::iter::once(first).chain(cells).chain(last).collect();
    format!("| {} |\n", cells.join(" | "))
}

fn rule(columns: usize) -> String {
    format!("|{}\n", "---|".repeat(columns))
}

/// `mosquitto 2.0.11`, as far as it ran.
pub(super) fn named(broker: &str, rounds: &[&Cell]) -> String {
    let version = rounds.iter().find_map(|cell| cell.results.as_ref().ok());
    let version = version.map_or("", |results| results.broker.version.as_str());
    format!("{broker} {version}").trim().to_owned()
}

/// `4 of 5 valid`.
pub(super) fn valid_words(rounds: &[&Cell]) -> String {
    let valid = rounds.iter().filter(|cell| is_valid(cell)).count();
    format!("{valid} of {} valid", rounds.len())
}

/// Whether any round has such a figure.
pub(super) fn is_shown(column: &Column, all: &[(&str, Vec<&Cell>)]) -> bool {
    let rounds = || all.iter().flat_map(|(_, rounds)| rounds);
    rounds().any(|cell| cell.results.as_ref().is_ok_and(|r| (column.ours)(r).is_some()))
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
    let is_latency = column.unit == Unit::Micros;
    let is_of_one_kind = all.windows(2).all(|pair| headline(pair[0]) == headline(pair[1]));
    if column.key == columns::LOST.key
        || !unlike(&all).is_empty()
        || (is_latency && !is_of_one_kind)
    {
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

/// All figures, in the order of the published tables.
pub(super) const COLUMNS: [&Column; 15] = [
    &columns::PUBLISHED,
    &columns::RECEIVED,
    &columns::CONNECTS,
    &columns::AVERAGE,
    &columns::P50,
    &columns::P75,
    &columns::P90,
    &columns::P95,
    &columns::P99,
    &columns::CPU_MAX,
    &columns::CPU_AVERAGE,
    &columns::CPU_COST,
    &columns::MEMORY_MAX,
    &columns::MEMORY_AVERAGE,
    &columns::LOST,
];

/// What is told of each round in the printed table; its own report has the rest.
const ROUND_COLUMNS: [&Column; 6] = [
    &columns::RECEIVED,
    &columns::P50,
    &columns::P99,
    &columns::CPU_COST,
    &columns::MEMORY_MAX,
    &columns::LOST,
];

pub(super) fn valid_values(column: &Column, rounds: &[&Cell]) -> Vec<f64> {
    rounds.iter().filter_map(valid).filter_map(column.ours).collect()
}

fn round(cell: &Cell) -> String {
    let first = format!("{} {}", cell.broker, cell.round + 1);
    match &cell.results {
        Ok(results) => {
            let shown = |column: &&Column| column.show_ours(results).unwrap_or_else(|| "-".into());
            let cells: Vec<String> = ROUND_COLUMNS.iter().map(shown).collect();
            row(&first, cells.iter().map(String::as_str), &remarks(results))
        }
        Err(why) => row(&first, ROUND_COLUMNS.iter().map(|_| "-"), &one_line(why)),
    }
}

fn median(column: &Column, rounds: &[&Cell]) -> String {
    Spread::of(&valid_values(column, rounds)).map_or("-".to_owned(), |spread| {
        let cores = rounds.iter().filter_map(valid).find_map(own_cores);
        let Spread { median, least, most, .. } = spread;
        let shown = format!("**{}**", column.show(median, cores));
        match least < most {
            true => {
                let [least, most] = [least, most].map(|end| column.show_end(end, cores));
                format!("{shown} ({least} to {most})")
            }
            false => shown,
        }
    })
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

pub(super) const RATIOS_NOTE: &str = "Ratios of medians, with 95 % confidence intervals \
     (rank test over five or more valid rounds each). Bold: larger than the noise. Of 20 ratios of \
     equal brokers, chance makes one bold at most, on average.";

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
        let first = line(&text, "b 1");
        assert!(first.contains("| 1 us |") && first.contains("NOT VALID"), "{first}");
        assert!([2, 3, 4].iter().all(|n| !line(&text, &format!("b {n}")).contains("NOT VALID")));
        let median = line(&text, "Broker CPU per message");
        assert!(median.contains("**30 us** (20 us to 50 us)"), "{median}");
        assert!(line(&text, "rounds").contains("3 of 4 valid") && all_have_a_valid_round(&cells));
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
            assert!(line(&text, title).contains("**"), "{title}: {text}");
        }
        assert!(line(&text, columns::CPU_MAX.title).contains(" cores)"), "{text}");
        assert!(!text.contains("Connects per second"), "it is no scenario of connections");
    }

    #[test]
    fn a_scenario_of_connections_has_their_rate() {
        let mut cells = rounds(&[(1.0, true)]);
        if let Ok(results) = &mut cells[0].results {
            results.latencies.retain(|latency| latency.kind == LatencyKind::Connect);
        }
        let text = table(&cells);
        assert!(line(&text, "Connects per second").contains("**400/s**"), "{text}");
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
        assert!(text.contains("| dear / b | like / b |"), "{text}");
        let cost = line(&text, "Broker CPU per message");
        assert!(cost.contains("**3.10x** (2.") && cost.contains("| 1.04x (0."), "{text}");
        assert!(text.contains("larger than the noise") && !cost.contains("99"));
        // Nor is there a ratio of what is not alike.
        if let Ok(results) = &mut cells[1].results {
            results.scenario.scale = 0.5;
        }
        let text = table(&cells);
        assert!(text.find("No ratios: the runs differ in scales.") < text.find("| rounds"));
        assert!(!text.contains("x (") && !text.contains("larger than the noise"), "{text}");
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
        assert!(!text.contains("**"), "{text}");
        assert!(line(&text, "rounds").contains("0 of 2 valid"), "{text}");
        cells[1].results = Err("did not start".into());
        assert!(table(&cells).contains("did not start"));
    }
}
