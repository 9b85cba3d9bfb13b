//! The comparison as one HTML page for each scenario: what people share, and so with everything
//! that somebody needs who doubts it.

use std::fmt::Write as _;

use super::Cell;
use super::strip::{Row, Strip};
use super::table::{
    COLUMNS, Column, RATIOS_NOTE, is_valid, names, ratio_of, ratio_words, remarks, valid_values,
};
use crate::measure::{LatencyHistogram, Results};
use crate::report::chart::{Axis, Chart, Line, Unit};
use crate::report::figures::headline;
use crate::report::text::{self, html as escape, number, seconds};
use crate::report::{
    clients_words, details, machine_words, overrides_words, page as frame, pairs,
    percentile_points, surroundings_words,
};
use crate::stats::Spread;

/// How the whole was done, as far as no run knows it.
#[derive(Clone, Debug, Default)]
pub struct Conduct {
    pub command: Vec<String>,
    pub rounds: u32,
    pub broker_cpus: String,
    pub load_cpus: String,
}

/// The page of one scenario: `cells` are its runs, `link` gives the address of a run's report.
pub fn page(cells: &[&Cell], conduct: &Conduct, link: &dyn Fn(&Cell) -> String) -> String {
    let any = cells.iter().find_map(|cell| cell.results.as_ref().ok());
    let mut body = String::new();
    header(cells, any.map(|results| &**results), conduct, &mut body);
    strips(cells, &mut body);
    percentiles(cells, &mut body);
    rounds(cells, link, &mut body);
    if let Some(results) = any {
        conditions(results, conduct, &mut body);
    }
    brokers(cells, &mut body);
    let scenario = cells.first().map_or("", |cell| cell.scenario.as_str());
    frame(&format!("{scenario}: brokers side by side"), &body)
}

fn header(cells: &[&Cell], any: Option<&Results>, conduct: &Conduct, out: &mut String) {
    let scenario = cells.first().map_or("", |cell| cell.scenario.as_str());
    let title = any.map_or("", |results| results.scenario.title.as_str());
    let (kicker, lead) = any.map_or_else(Default::default, |results| {
        let machine = &results.machine;
        let kicker =
            format!("{} · {}", results.tool.words(), text::date(results.run.started_unix_ms));
        let lead = format!(
            "{} brokers, {} of {}, on {}, {} cores, {}",
            names(cells.iter().copied(), |cell| &cell.broker).len(),
            times(conduct.rounds),
            seconds(results.run.duration_secs),
            machine.cpu,
            machine.cores,
            machine.kernel
        );
        (kicker, lead)
    });
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<header><p class=\"kicker\">{}</p><h1>{}: {}</h1><p class=\"lead\">{}</p></header>",
        escape(&kicker),
        escape(scenario),
        escape(title),
        escape(&lead)
    );
    out.push_str("<ul class=\"verdicts\">");
    let mut say = |good: bool, words: &str| {
        let class = if good { "" } else { " class=\"bad\"" };
        let _ = write!(out, "<li{class}>{}</li>", escape(words));
    };
    if conduct.rounds < 2 {
        say(false, "one round tells nothing of the noise: an anecdote, no comparison");
    }
    for broker in names(cells.iter().copied(), |cell| &cell.broker) {
        let of: Vec<&&Cell> = cells.iter().filter(|cell| cell.broker == broker).collect();
        let valid = of.iter().filter(|cell| is_valid(cell)).count();
        let words = format!("{broker}: {valid} of {} rounds valid", of.len());
        say(valid == of.len(), &words);
    }
    out.push_str("</ul>");
}

fn times(rounds: u32) -> String {
    if rounds == 1 { "1 round".to_owned() } else { format!("{rounds} rounds") }
}

/// For each figure a strip with every round as a point.
fn strips(cells: &[&Cell], out: &mut String) {
    out.push_str(
        "<h2>Every round</h2><p>A point is a round, a hollow one a round that is not valid as a \
         measurement and stands in no figure. The line is the median of the valid ones, the bar \
         reaches from the smallest to the largest of them.</p><section class=\"charts\">",
    );
    for column in &COLUMNS {
        let rows = names(cells.iter().copied(), |cell| &cell.broker).into_iter().map(|broker| {
            let of = cells.iter().filter(|cell| cell.broker == broker);
            let points = of.filter_map(|cell| {
                let results = cell.results.as_ref().ok()?;
                Some(((column.of)(results)?, is_valid(cell)))
            });
            Row { name: broker.to_owned(), points: points.collect() }
        });
        let strip = Strip { title: column.title, digits: column.digits, rows: rows.collect() };
        out.push_str(&strip.figure());
    }
    out.push_str("</section>");
}

/// Latency against the percentile: all valid rounds of a broker together.
fn percentiles(cells: &[&Cell], out: &mut String) {
    let mut kinds = Vec::new();
    for kind in cells.iter().filter_map(|cell| cell.results.as_ref().ok()).map(|r| headline(r)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let line = |broker: &str| {
            let mut merged = LatencyHistogram::new();
            for cell in cells.iter().filter(|cell| cell.broker == broker && is_valid(cell)) {
                if let Ok(results) = &cell.results {
                    merged.merge(&results.latency_merged(kind));
                }
            }
            Line { name: broker.to_owned(), points: percentile_points(&merged), ..Line::default() }
        };
        let lines = names(cells.iter().copied(), |cell| &cell.broker).into_iter().map(line);
        let lines: Vec<Line> = lines.filter(|line| !line.points.is_empty()).collect();
        let chart = Chart {
            title: format!("Latency by percentile, {}", kind.title()),
            unit: Unit::Micros,
            axis: Axis::Percentile,
            log: true,
            note: match &lines[..] {
                // A single line has no legend.
                [only] => format!("All valid rounds of {} together.", only.name),
                _ => "All valid rounds of each broker together.".to_owned(),
            },
            lines,
            marks: Vec::new(),
            outages: Vec::new(),
        };
        let _ = write!(out, "<section class=\"charts\">{}</section>", chart.figure());
    }
}

/// The table: every round with the way to its report, and the medians.
fn rounds(cells: &[&Cell], link: &dyn Fn(&Cell) -> String, out: &mut String) {
    out.push_str("<h2>Figures</h2><div class=\"scroll\"><table class=\"rounds\"><thead><tr><th>Broker</th><th class=\"text\">Round</th>");
    for column in &COLUMNS {
        let _ = write!(out, "<th>{}</th>", escape(column.name));
    }
    out.push_str("<th class=\"text\">Remarks</th></tr></thead><tbody>");
    for broker in names(cells.iter().copied(), |cell| &cell.broker) {
        let of: Vec<&Cell> = cells.iter().filter(|cell| cell.broker == broker).copied().collect();
        for cell in &of {
            row(cell, link, out);
        }
        let valid = of.iter().filter(|cell| is_valid(cell)).count();
        let _ = write!(
            out,
            "<tr class=\"ours\"><td>{}</td><td class=\"text\">median</td>",
            escape(broker)
        );
        for column in &COLUMNS {
            let shown = Spread::of(&valid_values(column, &of)).map_or("–".to_owned(), |spread| {
                let fixed = |value| text::fixed(value, column.digits);
                let (least, most) = (fixed(spread.least), fixed(spread.most));
                format!("{}<br><small>{least} to {most}</small>", fixed(spread.median))
            });
            let _ = write!(out, "<td>{shown}</td>");
        }
        let _ = write!(out, "<td class=\"text\">{valid} of {} rounds valid</td></tr>", of.len());
    }
    ratios(cells, out);
    out.push_str("</tbody></table></div>");
    let _ = write!(out, "<p class=\"note\">{}</p>", escape(RATIOS_NOTE));
}

/// How the others stand to the first broker.
fn ratios(cells: &[&Cell], out: &mut String) {
    let rounds_of = |broker: &str| -> Vec<&Cell> {
        cells.iter().filter(|cell| cell.broker == broker).copied().collect()
    };
    let names = names(cells.iter().copied(), |cell| &cell.broker);
    let Some((base, others)) = names.split_first() else { return };
    let of_base = rounds_of(base);
    for broker in others {
        let rounds = rounds_of(broker);
        let _ = write!(
            out,
            "<tr><td>{} / {}</td><td class=\"text\">ratio</td>",
            escape(broker),
            escape(base)
        );
        for column in &COLUMNS {
            let words = ratio_of(column, &of_base, &rounds)
                .map_or("–".to_owned(), |ratio| ratio_words(&ratio));
            // The words are Markdown: what is more than noise is bold.
            let shown = escape(&words).replacen("**", "<b>", 1).replacen("**", "</b>", 1);
            let _ = write!(out, "<td>{shown}</td>");
        }
        out.push_str("<td></td></tr>");
    }
}

fn row(cell: &Cell, link: &dyn Fn(&Cell) -> String, out: &mut String) {
    let number = cell.round + 1;
    match &cell.results {
        Ok(results) => {
            let _ = write!(
                out,
                "<tr><td>{}</td><td class=\"text\"><a href=\"{}\">{number}</a></td>",
                escape(&cell.broker),
                escape(&link(cell))
            );
            for Column { of, digits, .. } in &COLUMNS {
                let shown =
                    of(results).map_or("–".to_owned(), |value| text::fixed(value, *digits));
                let _ = write!(out, "<td>{shown}</td>");
            }
            let _ = write!(out, "<td class=\"text\">{}</td></tr>", escape(&remarks(results)));
        }
        Err(why) => {
            let _ = write!(
                out,
                "<tr><td>{}</td><td class=\"text\">{number}</td>{}<td class=\"text\">{}</td></tr>",
                escape(&cell.broker),
                "<td>–</td>".repeat(COLUMNS.len()),
                escape(why)
            );
        }
    }
}

fn conditions(results: &Results, conduct: &Conduct, out: &mut String) {
    let (machine, scenario) = (&results.machine, &results.scenario);
    let mut facts = vec![
        ("date", text::date(results.run.started_unix_ms)),
        ("command", conduct.command.join(" ")),
        ("tool", results.tool.words()),
        ("rounds", format!("{}, the brokers in turn in each", conduct.rounds)),
        ("machine", machine_words(machine)),
        ("system", format!("{}, kernel {}", machine.os, machine.kernel)),
        ("surroundings", surroundings_words(&machine.surroundings)),
        ("cores of the brokers", conduct.broker_cpus.clone()),
        ("cores of the load", conduct.load_cpus.clone()),
        ("load threads", results.run.threads.to_string()),
        ("scenario", format!("{}, scale {}", scenario.id, number(scenario.scale))),
        ("asked to be otherwise", overrides_words(results)),
        ("clients", clients_words(scenario)),
        ("a run takes", seconds(results.run.duration_secs)),
    ];
    facts.extend(scenario.parameters.iter().map(|(name, value)| (name.as_str(), value.clone())));
    facts.extend(machine.sysctls.iter().map(|(name, value)| (name.as_str(), value.clone())));
    let _ = write!(out, "<h2>How it was run</h2>{}", pairs(&facts));
    for (name, text) in
        [("The scenario as it ran", &scenario.as_ran), ("As it is written", &scenario.source)]
    {
        out.push_str(&details(name, text));
    }
}

fn brokers(cells: &[&Cell], out: &mut String) {
    out.push_str("<h2>Brokers</h2>");
    for broker in names(cells.iter().copied(), |cell| &cell.broker) {
        let mut of = cells.iter().filter(|cell| cell.broker == broker);
        let note = of.clone().next().map_or("", |cell| cell.note.as_str());
        let _ = write!(out, "<h3>{}</h3>", escape(broker));
        let Some(results) = of.find_map(|cell| cell.results.as_ref().ok()) else {
            out.push_str("<p>It did not run.</p>");
            continue;
        };
        let info = &results.broker;
        let facts = [
            ("version", info.version.clone()),
            ("command", info.command.join(" ")),
            ("cores", info.cpus.clone().unwrap_or_default()),
            ("worth knowing", note.to_owned()),
        ];
        out.push_str(&pairs(&facts));
        out.push_str(&details("Configuration", &info.config));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

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
        let html = page(&cells, &conduct, &|cell| format!("{}-{}.html", cell.round, cell.broker));
        for part in [
            "2026-11-21",
            "flock versus MB-B1",
            "a CPU, 4 cores",
            "kernel 6.1",
            "governor performance",
            "3 rounds of 60 s",
            "<a href=\"1-a&lt;b.html\">2</a>",
            "a&lt;b: 2 of 3 rounds valid",
            "other: 0 of 1 rounds valid",
            "did not start",
            "a&lt;b writes nothing",
            "broker -c broker.conf",
            "listener 1883",
            "duration 55s",
            "55s, measured",
            "38.01<br><small>36.20 to 39.82</small>",
            "NOT VALID",
            "All valid rounds of a&lt;b together",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        assert_eq!(html.matches("<circle class=\"k0 hollow\"").count(), COLUMNS.len());
        assert!(!html.contains("NaN") && !html.contains("a<b"));
        assert_eq!(html.matches("<table").count(), html.matches("</table>").count());
    }

    #[test]
    fn one_round_is_called_an_anecdote() {
        let one = cell("b", 0, true);
        let conduct = Conduct { rounds: 1, ..Conduct::default() };
        assert!(page(&[&one], &conduct, &|_| String::new()).contains("an anecdote"));
    }
}
