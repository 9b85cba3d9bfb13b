//! The comparison as one HTML page for each scenario: what people share, and so with everything
//! that somebody needs who doubts it.

use maud::{Markup, html};

use super::strip::{Row, Strip};
use super::table::{COLUMNS, rounds, sides};
use super::{Cell, Conduct};
use crate::columns::{
    AVERAGE, CONNECTS, CPU_AVG, CPU_COST, CPU_MAX, Column, LOST, MEMORY_AVG, MEMORY_MAX, P50, P75,
    P90, P95, P99, PUBLISHED, RECEIVED,
};
use crate::disclosure;
use crate::likeness::Likeness;
use crate::page::{self as parts, details, note, pairs};
use crate::published::{Beside, HARDWARE_DIFFERS, published};
use crate::reports::Reports;
use crate::sides::{self, RATIOS_NOTE, Side, is_shown, obstacles, ratio, ratio_cell};
use crate::table::{self, Table};
use flock_measure::Results;
use flock_measure::figures::Verdict;
use flock_measure::stats::RUNS_MIN;
use flock_measure::text::{self, seconds};

/// The page of one scenario: `cells` are its runs.
pub fn page(cells: &[&Cell], conduct: &Conduct, reports: Reports) -> String {
    let any = cells.iter().find_map(|cell| cell.results.as_deref().ok());
    let scenario = cells.first().map_or("", |cell| cell.scenario.as_str());
    let all = sides(cells);
    let body = html! {
        (header(scenario, &all, any, conduct))
        h2 { "Results" }
        p {
            "Medians of the valid rounds, with minimum and maximum. CPU is per cent of all cores \
                 of the machine."
        }
        (medians("", &RESULTS, &all))
        (medians("Latency", &LATENCIES, &all))
        h3 { "Charts" }
        (parts::charts(sides::bar_charts(&all)))
        (ratios(&all))
        @if let Some(results) = any { (beside(results)) }
        h2 { "Every round" }
        p {
            "Each point is a round; hollow points are not valid and not part of any figure. The \
                 line is the median of the valid rounds, the bar their range."
        }
        (parts::charts(STRIPS.iter().map(|column| strip(column, &all))))
        (parts::charts(sides::percentile_charts(&all, Side::valid)))
        (rounds(cells, &STRIPS, reports).html())
        @if let Some(results) = any { (conditions(results, conduct)) }
        h2 { "Brokers" }
        @for side in &all { (broker(side, cells)) }
        (reports.part(cells.iter().filter_map(|cell| {
            Some((cell.name(), cell.results.as_deref().ok()?))
        })))
    };
    parts::page(&format!("{scenario}: brokers side by side"), &body)
}

fn header(scenario: &str, all: &[Side<'_>], any: Option<&Results>, conduct: &Conduct) -> Markup {
    let title = any.map_or("", |results| results.scenario.title.as_str());
    let (kicker, lead) = any.map_or_else(Default::default, |results| {
        let machine = &results.machine;
        let date = text::date(results.run.started_unix_ms);
        let rounds = match conduct.rounds {
            1 => "1 round".to_owned(),
            rounds => format!("{rounds} rounds"),
        };
        let lead = format!(
            "{} brokers, {rounds} of {}, on {}, {} cores, {}",
            all.len(),
            seconds(results.run.duration_secs),
            machine.cpu,
            machine.cores,
            machine.kernel
        );
        (format!("{} · {date}", results.tool.words()), lead)
    });
    let mut verdicts = Vec::new();
    if (conduct.rounds as usize) < RUNS_MIN {
        verdicts.push((Verdict::Bad, ANECDOTE.to_owned()));
    }
    verdicts.extend(obstacles(all).into_iter().map(|words| (Verdict::Bad, words)));
    for side in all {
        let is_valid = side.valid().len() == side.begun;
        let words = format!("{}: {} valid", side.name, side.valid_words());
        verdicts.push((Verdict::of(is_valid), words));
    }
    html! {
        (parts::header(&kicker, &format!("{scenario}: {title}"), &lead))
        (parts::verdict_list(&verdicts))
    }
}

/// The medians in the form of the published tables: a row for each broker.
fn medians(name: &str, columns: &[&Column], all: &[Side<'_>]) -> Markup {
    let runs: Vec<&Results> = all.iter().flat_map(|side| side.runs.clone()).collect();
    let columns: Vec<&&Column> = columns.iter().filter(|column| is_shown(column, &runs)).collect();
    let names = columns.iter().map(|column| column.name);
    let mut table = Table::new(Some("rounds"), ["Broker"].into_iter().chain(names));
    for side in all {
        let valid = format!("{} valid", side.valid_words());
        let cells = columns.iter().map(|column| column.spread(&side.valid()));
        table.add([table::Cell::with(side.name.clone(), valid)].into_iter().chain(cells));
    }
    html! {
        @if !columns.is_empty() {
            @if !name.is_empty() { h3 { (name) } }
            (table.html())
        }
    }
}

/// How the others stand to the first broker; nothing where no ratio can be told.
fn ratios(all: &[Side<'_>]) -> Markup {
    let base = all.first().map_or("", |side| side.name.as_str());
    let others = all.iter().skip(1).map(|side| format!("{} / {base}", side.name));
    let mut table = Table::new(Some("rounds"), ["Figure".to_owned()].into_iter().chain(others));
    for column in COLUMNS {
        let ratios: Vec<_> = (1..all.len()).map(|n| ratio(column, all, n)).collect();
        if ratios.iter().any(Option::is_some) {
            let cells = ratios.into_iter().map(ratio_cell);
            table.add([column.title.into()].into_iter().chain(cells));
        }
    }
    html! {
        @if !table.rows.is_empty() {
            h3 { "Ratios to " (base) }
            (table.html())
            (note(RATIOS_NOTE))
        }
    }
}

/// What was published for the scenario, apart from ours.
fn beside(results: &Results) -> Markup {
    let all = published(results);
    let theirs = Beside::with(None, &all, &Likeness::of(results));
    html! {
        @if !all.is_empty() {
            h2 { "Published results for reference" }
            p { (HARDWARE_DIFFERS) }
            @if !theirs.difference.is_empty() { p { (theirs.difference) } }
            (theirs.table.html())
        }
    }
}

/// One figure, with every round as a point.
fn strip(column: &Column, all: &[Side<'_>]) -> Markup {
    let point = |run: &&Results| Some(((column.ours)(run)?, run.validity.valid));
    let row = |side: &Side<'_>| Row {
        name: side.name.clone(),
        points: side.runs.iter().filter_map(point).collect(),
    };
    let rows = all.iter().map(row).collect();
    Strip { title: column.title, unit: column.unit, rows }.figure()
}

/// What the runs have in common; what is of one broker is below its name.
fn conditions(results: &Results, conduct: &Conduct) -> Markup {
    let mut facts = vec![
        ("date", text::date(results.run.started_unix_ms)),
        ("command", conduct.command.join(" ")),
        ("rounds", format!("{}, all brokers in each", conduct.rounds)),
        ("cores of the brokers", conduct.broker_cpus.clone()),
        ("cores of the load", conduct.load_cpus.clone()),
        ("time of a run", seconds(results.run.duration_secs)),
    ];
    let is_common = |(name, _): &(&str, String)| *name != "command" && !name.contains("broker");
    facts.extend(disclosure(results).into_iter().filter(is_common));
    html! {
        h2 { "Environment" }
        (pairs(&facts))
        (details("The scenario as it ran", &results.scenario.as_ran))
        (details("The scenario file", &results.scenario.source))
    }
}

fn broker(side: &Side<'_>, cells: &[&Cell]) -> Markup {
    let remark = cells.iter().find(|cell| cell.broker == side.name).map_or("", |cell| &cell.note);
    html! {
        h3 { (side.name) }
        @if let Some(results) = side.runs.first() {
            @let info = &results.broker;
            (pairs(&[
                ("version", info.version.clone()),
                ("command", info.command.join(" ")),
                ("cores", info.cpus.clone().unwrap_or_default()),
                ("notes", remark.to_owned()),
            ]))
            (details("Configuration", &info.config))
        } @else {
            p { "It did not run." }
        }
    }
}

/// The table of the published comparison, and what it has no column for.
const RESULTS: [&Column; 10] = [
    PUBLISHED, RECEIVED, CONNECTS, AVERAGE, CPU_MAX, CPU_AVG, CPU_COST, MEMORY_MAX, MEMORY_AVG,
    LOST,
];
const LATENCIES: [&Column; 5] = [P50, P75, P90, P95, P99];
/// Figures of which every round is drawn and listed.
const STRIPS: [&Column; 9] =
    [PUBLISHED, RECEIVED, CONNECTS, AVERAGE, P50, P99, CPU_COST, MEMORY_MAX, LOST];

const ANECDOTE: &str = "fewer than five rounds do not show the noise";

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    fn cell(broker: &str, round: u32, valid: bool) -> Cell {
        let mut results = sample::results(1.0 + f64::from(round) / 10.0);
        results.validity.valid = valid;
        Cell {
            broker: broker.into(),
            note: format!("{broker} writes nothing"),
            scenario: "MB-B1".into(),
            round,
            results: Ok(Box::new(results)),
        }
    }

    #[test]
    fn the_page_has_what_a_doubter_asks_for() {
        let mut cells = vec![cell("a<b", 0, true), cell("a<b", 1, true), cell("a<b", 2, false)];
        cells.push(Cell { results: Err("did not start".into()), ..cell("other", 0, true) });
        let conduct = Conduct {
            command: ["flock", "versus", "MB-B1"].map(str::to_owned).to_vec(),
            rounds: 3,
            broker_cpus: "0".into(),
            load_cpus: "1-3".into(),
        };
        let cells: Vec<&Cell> = cells.iter().collect();
        let html = page(&cells, &conduct, Reports::Files);
        for part in [
            "2026-11-21",
            "flock versus MB-B1",
            "a CPU, 4 cores",
            "governor performance",
            "3 rounds of 60 s",
            "<a href=\"MB-B1-a&lt;b-2.html\">2</a>",
            "a&lt;b: 2 of 3 valid",
            "other: 0 of 1 valid",
            "did not start",
            "a&lt;b writes nothing",
            "broker -c broker.conf",
            "listener 1883",
            "duration 55s",
            "55s, measured",
            "38.0 us<br><small>36.2 us to 39.8 us</small>",
            "NOT VALID",
            "All valid runs of a&lt;b together",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        let drawn = STRIPS.iter().filter(|column| column.key != "connects_per_sec").count();
        assert_eq!(html.matches("<circle class=\"k0 hollow\"").count(), drawn);
        assert!(!html.contains("NaN") && !html.contains("a<b"));
        assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
    }

    #[test]
    fn one_round_is_called_an_anecdote() {
        let one = cell("b", 0, true);
        let conduct = Conduct { rounds: 1, ..Conduct::default() };
        assert!(page(&[&one], &conduct, Reports::Inside).contains("do not show the noise"));
    }

    #[test]
    fn a_single_file_has_the_report_of_each_round() {
        let cells = [cell("a<b", 0, true), cell("a<b", 1, true), cell("c", 0, true)];
        let cells: Vec<&Cell> = cells.iter().collect();
        let html = page(&cells, &Conduct::default(), Reports::Inside);
        for (broker, round) in [("a&lt;b", 1), ("a&lt;b", 2), ("c", 1)] {
            assert!(
                html.contains(&format!("href=\"#MB-B1-{broker}-{round}\"")),
                "{broker} {round}"
            );
            assert!(html.contains(&format!("id=\"MB-B1-{broker}-{round}\"")), "{broker} {round}");
        }
        // They are whole pages in an attribute, and nothing is loaded from elsewhere.
        assert_eq!(html.matches("srcdoc=\"&lt;!DOCTYPE html&gt;").count(), 3);
        assert!(!html.contains(".html\""));
    }
}
