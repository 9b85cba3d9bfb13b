//! The comparison as one HTML page for each scenario: what people share, and so with everything
//! that somebody needs who doubts it.

use maud::{Markup, html};

use super::bars::Bars;
use super::strip::{Row, Strip};
use super::table::{
    COLUMNS, RATIOS_NOTE, is_shown, is_valid, names, obstacles, ratio_of, ratio_parts, remarks,
    valid_values, valid_words,
};
use super::{Cell, Conduct};
use crate::chart::{Chart, Line};
use crate::columns::{self, Column, own_cores};
use crate::likeness::Likeness;
use crate::page::{self as parts, details, note, pairs};
use crate::published::{Beside, HARDWARE_DIFFERS, published};
use crate::reports::Reports;
use crate::{clients_words, machine_words, overrides_words, percentile_points, surroundings_words};
use flock_measure::figures::{Verdict, headline};
use flock_measure::stats::{RUNS_MIN, Spread};
use flock_measure::text::{self, number, seconds};
use flock_measure::{Due, Results};

/// The runs of one scenario, by broker in the order of their first appearance.
type Rounds<'a> = Vec<(&'a str, Vec<&'a Cell>)>;

/// The page of one scenario: `cells` are its runs.
pub fn page(cells: &[&Cell], conduct: &Conduct, reports: Reports) -> String {
    let any = cells.iter().find_map(|cell| cell.results.as_deref().ok());
    let scenario = cells.first().map_or("", |cell| cell.scenario.as_str());
    let of = |broker| cells.iter().filter(|cell| cell.broker == broker).copied().collect();
    let brokers = names(cells.iter().copied(), |cell| &cell.broker);
    let all: Rounds<'_> = brokers.into_iter().map(|broker| (broker, of(broker))).collect();
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
        (parts::charts(result_charts(&all)))
        (ratios(&all))
        @if let Some(results) = any { (beside(results)) }
        h2 { "Every round" }
        p {
            "Each point is a round; hollow points are not valid and not part of any figure. The \
                 line is the median of the valid rounds, the bar their range."
        }
        (parts::charts(STRIPS.iter().map(|column| strip(column, &all))))
        (percentiles(&all))
        (rounds_table(&all, reports))
        @if let Some(results) = any { (conditions(results, conduct)) }
        h2 { "Brokers" }
        @for (name, rounds) in &all { (broker(name, rounds)) }
        (reports.part(cells.iter().filter_map(|cell| {
            Some((cell.name(), cell.results.as_deref().ok()?))
        })))
    };
    parts::page(&format!("{scenario}: brokers side by side"), &body)
}

fn header(scenario: &str, all: &Rounds<'_>, any: Option<&Results>, conduct: &Conduct) -> Markup {
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
    for (broker, rounds) in all {
        let is_valid = rounds.iter().all(|cell| is_valid(cell));
        verdicts.push((Verdict::of(is_valid), format!("{broker}: {}", valid_words(rounds))));
    }
    html! {
        (parts::header(&kicker, &format!("{scenario}: {title}"), &lead))
        (parts::verdict_list(&verdicts))
    }
}

/// The medians in the form of the published tables: a row for each broker.
fn medians(name: &str, columns: &[&Column], all: &Rounds<'_>) -> Markup {
    let columns: Vec<&&Column> = columns.iter().filter(|column| is_shown(column, all)).collect();
    html! {
        @if !columns.is_empty() {
            @if !name.is_empty() { h3 { (name) } }
            div.scroll {
                table.rounds {
                    thead {
                        tr {
                            th { "Broker" }
                            @for column in &columns { th { (column.name) } }
                        }
                    }
                    tbody {
                        @for (broker, rounds) in all {
                            tr {
                                td { (broker) br; small { (valid_words(rounds)) } }
                                @for column in &columns { td { (median(column, rounds)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn median(column: &Column, rounds: &[&Cell]) -> Markup {
    let cores = rounds.iter().find_map(|cell| own_cores(cell.results.as_ref().ok()?));
    column.cell_spread(&valid_values(column, rounds), cores)
}

fn result_charts(all: &Rounds<'_>) -> impl Iterator<Item = Markup> {
    let brokers: Vec<String> = all.iter().map(|(broker, _)| (*broker).to_owned()).collect();
    let mut results = all.iter().flat_map(|(_, rounds)| rounds);
    let cores = results.find_map(|cell| own_cores(cell.results.as_ref().ok()?));
    let median = |column: &Column, rounds: &[&Cell]| {
        Spread::of(&valid_values(column, rounds)).map(|spread| spread.median)
    };
    CHARTS.iter().map(move |(title, columns)| {
        let of = |column: &'static Column| {
            (column, all.iter().map(|(_, rounds)| median(column, rounds)).collect())
        };
        let groups = columns.iter().map(|column| of(column)).collect();
        Bars { title, brokers: &brokers, groups, cores }.figure()
    })
}

/// How the others stand to the first broker; nothing where no ratio can be told.
fn ratios(all: &Rounds<'_>) -> Markup {
    let Some(((base, of_base), others)) = all.split_first() else { return Markup::default() };
    let has_ratio = |column: &&&Column| {
        others.iter().any(|(_, rounds)| ratio_of(column, of_base, rounds).is_some())
    };
    let columns: Vec<&&Column> = COLUMNS.iter().filter(has_ratio).collect();
    html! {
        @if !columns.is_empty() {
            h3 { "Ratios to " (base) }
            div.scroll {
                table.rounds {
                    thead {
                        tr {
                            th { "Figure" }
                            @for (broker, _) in others { th { (broker) " / " (base) } }
                        }
                    }
                    tbody {
                        @for column in columns {
                            tr {
                                td { (column.title) }
                                @for (_, rounds) in others {
                                    td { (ratio(column, of_base, rounds)) }
                                }
                            }
                        }
                    }
                }
            }
            (note(RATIOS_NOTE))
        }
    }
}

/// What was published for the scenario, apart from ours.
fn beside(results: &Results) -> Markup {
    let all = published(results);
    let theirs = Beside::with(Vec::new(), &all, &Likeness::of(results));
    html! {
        @if !all.is_empty() {
            h2 { "Published results for reference" }
            p { (HARDWARE_DIFFERS) }
            @if !theirs.difference.is_empty() { p { (theirs.difference) } }
            (parts::table_with(Some("notes"), &theirs.head, &theirs.rows, false))
        }
    }
}

/// One figure, with every round as a point.
fn strip(column: &Column, all: &Rounds<'_>) -> Markup {
    let point = |cell: &&Cell| {
        let results = cell.results.as_ref().ok()?;
        Some(((column.ours)(results)?, is_valid(cell)))
    };
    let row = |(broker, rounds): &(&str, Vec<&Cell>)| Row {
        name: (*broker).to_owned(),
        points: rounds.iter().filter_map(point).collect(),
    };
    let rows = all.iter().map(row).collect();
    Strip { title: column.title, unit: column.unit, rows }.figure()
}

/// Latency against the percentile: all valid rounds of a broker together.
fn percentiles(all: &Rounds<'_>) -> Markup {
    let mut kinds = Vec::new();
    for results in all.iter().flat_map(|(_, rounds)| rounds).filter_map(|c| c.results.as_ref().ok())
    {
        let kind = headline(results);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let chart = |kind| {
        let line = |(broker, rounds): &(&str, Vec<&Cell>)| {
            let mut merged = Due::default();
            let valid = rounds.iter().filter(|cell| is_valid(cell));
            for results in valid.filter_map(|cell| cell.results.as_ref().ok()) {
                merged.merge(&Due::of(results, kind));
            }
            Line::new(broker, percentile_points(&merged))
        };
        let lines: Vec<Line> =
            all.iter().map(line).filter(|line| !line.points.is_empty()).collect();
        let whose = match &lines[..] {
            // A single line has no legend.
            [only] => only.name.clone(),
            _ => "each broker".to_owned(),
        };
        let title = format!("Latency by percentile, {}", kind.title());
        Chart::by_percentile(title, lines, &format!("All valid rounds of {whose} together."))
    };
    html! { @for kind in kinds { (parts::charts([chart(kind).figure()])) } }
}

/// Every round, with the way to its report.
fn rounds_table(all: &Rounds<'_>, reports: Reports) -> Markup {
    let columns: Vec<&&Column> = STRIPS.iter().filter(|column| is_shown(column, all)).collect();
    html! {
        div.scroll {
            table.rounds {
                thead {
                    tr {
                        th { "Broker" }
                        th.text { "Round" }
                        @for column in &columns { th { (column.name) } }
                        th.text { "Remarks" }
                    }
                }
                tbody {
                    @for cell in all.iter().flat_map(|(_, rounds)| rounds) {
                        (round(cell, &columns, reports))
                    }
                }
            }
        }
    }
}

fn round(cell: &Cell, columns: &[&&Column], reports: Reports) -> Markup {
    let number = cell.round + 1;
    let shown = |column: &Column| column.show_ours(cell.results.as_ref().ok()?);
    html! {
        tr {
            td { (cell.broker) }
            td.text {
                @match &cell.results {
                    Ok(_) => a href=(reports.link(&cell.name())) { (number) },
                    Err(_) => (number),
                }
            }
            @for column in columns { td { (shown(column).as_deref().unwrap_or("–")) } }
            td.text {
                @match &cell.results { Ok(results) => (remarks(results)), Err(why) => (why) }
            }
        }
    }
}

/// In bold what is more than noise.
fn ratio(column: &Column, base: &[&Cell], other: &[&Cell]) -> Markup {
    let Some(ratio) = ratio_of(column, base, other) else { return html! { "–" } };
    let (words, is_beyond, rest) = ratio_parts(&ratio);
    html! { @if is_beyond { b { (words) } } @else { (words) } (rest) }
}

fn conditions(results: &Results, conduct: &Conduct) -> Markup {
    let (machine, scenario) = (&results.machine, &results.scenario);
    let mut facts = vec![
        ("date", text::date(results.run.started_unix_ms)),
        ("command", conduct.command.join(" ")),
        ("tool", results.tool.words()),
        ("rounds", format!("{}, all brokers in each", conduct.rounds)),
        ("machine", machine_words(machine)),
        ("system", format!("{}, kernel {}", machine.os, machine.kernel)),
        ("surroundings", surroundings_words(&machine.surroundings)),
        ("cores of the brokers", conduct.broker_cpus.clone()),
        ("cores of the load", conduct.load_cpus.clone()),
        ("load threads", results.run.threads.to_string()),
        ("scenario", format!("{}, scale {}", scenario.id, number(scenario.scale))),
        ("options", overrides_words(results)),
        ("clients", clients_words(scenario)),
        ("time of a run", seconds(results.run.duration_secs)),
    ];
    facts.extend(scenario.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())));
    facts.extend(machine.sysctls.iter().map(|(name, value)| (name.as_str(), value.clone())));
    html! {
        h2 { "Environment" }
        (pairs(&facts))
        (details("The scenario as it ran", &scenario.as_ran))
        (details("The scenario file", &scenario.source))
    }
}

fn broker(name: &str, rounds: &[&Cell]) -> Markup {
    let remark = rounds.first().map_or("", |cell| cell.note.as_str());
    html! {
        h3 { (name) }
        @if let Some(results) = rounds.iter().find_map(|cell| cell.results.as_ref().ok()) {
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
    &columns::PUBLISHED,
    &columns::RECEIVED,
    &columns::CONNECTS,
    &columns::AVERAGE,
    &columns::CPU_MAX,
    &columns::CPU_AVERAGE,
    &columns::CPU_COST,
    &columns::MEMORY_MAX,
    &columns::MEMORY_AVERAGE,
    &columns::LOST,
];
const LATENCIES: [&Column; 5] =
    [&columns::P50, &columns::P75, &columns::P90, &columns::P95, &columns::P99];
const CHARTS: [(&str, &[&Column]); 4] = [
    ("Rate", &[&columns::PUBLISHED, &columns::RECEIVED, &columns::CONNECTS]),
    (
        "Latency",
        &[
            &columns::AVERAGE,
            &columns::P50,
            &columns::P75,
            &columns::P90,
            &columns::P95,
            &columns::P99,
        ],
    ),
    ("Broker CPU", &[&columns::CPU_MAX, &columns::CPU_AVERAGE]),
    ("Broker memory", &[&columns::MEMORY_MAX, &columns::MEMORY_AVERAGE]),
];
/// Figures of which every round is drawn and listed.
const STRIPS: [&Column; 9] = [
    &columns::PUBLISHED,
    &columns::RECEIVED,
    &columns::CONNECTS,
    &columns::AVERAGE,
    &columns::P50,
    &columns::P99,
    &columns::CPU_COST,
    &columns::MEMORY_MAX,
    &columns::LOST,
];

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
            "kernel 6.1",
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
            "All valid rounds of a&lt;b together",
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
