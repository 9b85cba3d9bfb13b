//! A page that lists the runs of a folder.

use std::fmt::Write as _;

use maud::html as markup;

use super::page::{self, page};
use super::table::{Cell, Table};
use flock_measure::Results;
use flock_measure::figures::{Figures, Verdict, headline, verdicts};
use flock_measure::text::{self, count, micros, number};

/// What the list has of one run.
#[derive(Clone, Debug)]
pub struct Row {
    started_unix_ms: u64,
    cells: Vec<Cell>,
}

impl Row {
    /// `page` is the report, relative to the list.
    pub fn of(page: &str, results: &Results) -> Self {
        let figures = Figures::of(results);
        let rate = |value: Option<f64>| value.map_or("–".to_owned(), |rate| number(rate) + "/s");
        let latency = |value: Option<f64>| value.map_or("–".to_owned(), micros);
        let started_unix_ms = results.run.started_unix_ms;
        let broker = match results.broker.name.as_str() {
            "" => results.broker.addresses.join(", "),
            name => format!("{name} {}", results.broker.version).trim_end().to_owned(),
        };
        let scenario = match results.scenario.scale {
            1.0 => results.scenario.id.clone(),
            scale => format!("{}, scale {}", results.scenario.id, number(scale)),
        };
        let mut cells = vec![Cell { link: href(page), ..text::date(started_unix_ms).into() }];
        let figures = [
            scenario,
            broker,
            count(figures.connections_max),
            rate(figures.published_per_sec),
            rate(figures.received_per_sec),
            headline(results).title().to_owned(),
            latency(figures.p50_us),
            latency(figures.p99_us),
        ];
        cells.extend(figures.map(Cell::from));
        cells.push(verdict(results));
        Self { started_unix_ms, cells }
    }
}

/// What speaks against the run; the reasons are in its report.
fn verdict(results: &Results) -> Cell {
    let bad = verdicts(results).into_iter().filter(|(is, _)| *is == Verdict::Bad);
    let bad: Vec<String> = bad.map(|(_, words)| words).collect();
    let short = bad.iter().map(|words| words.split(": ").next().unwrap_or(words));
    let short = short.collect::<Vec<_>>().join("; ");
    let value = if bad.is_empty() { "ok".to_owned() } else { short };
    Cell { bad: bad.join("; "), ..value.into() }
}

/// The newest run first. `others` are pages that belong to no single run.
pub fn html(folder: &str, mut rows: Vec<Row>, others: &[String], omitted: usize) -> String {
    rows.sort_by_key(|row| std::cmp::Reverse(row.started_unix_ms));
    let lead = match omitted {
        0 => format!("{} runs in {folder}", count(rows.len() as u64)),
        _ => format!(
            "the newest {} runs in {folder}; {} older ones are not listed",
            count(rows.len() as u64),
            count(omitted as u64)
        ),
    };
    let mut table = Table::new(Some("index"), HEAD);
    rows.into_iter().for_each(|row| table.add(row.cells));
    let body = markup! {
        (page::header("flock", TITLE, &lead))
        @if !others.is_empty() {
            p { "Pages of several runs: " @for (n, other) in others.iter().enumerate() {
                @if n > 0 { ", " }
                a href=(href(other)) { (other) }
            } }
        }
        (table.html())
    };
    page(TITLE, &body)
}

/// Whether a page is one of these, which may be replaced.
pub fn is_index(page: &str) -> bool {
    page.contains(&format!("<title>{TITLE}</title>"))
}

/// A file name as a relative address.
fn href(name: &str) -> String {
    let mut out = String::from("./");
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => out.push(byte.into()),
            // Writing to a String cannot fail.
            _ => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

const TITLE: &str = "Results of flock";
const HEAD: [&str; 10] = [
    "Report",
    "Scenario",
    "Broker",
    "Connections",
    "Published",
    "Received",
    "Latency",
    "p50",
    "p99",
    "Verdict",
];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    #[test]
    fn the_newest_run_is_first_and_what_speaks_against_it_is_said() {
        let mut old = sample::results(1.0);
        old.run.started_unix_ms = 1_000;
        old.scenario.id = "<OLD>".into();
        let mut new = sample::results(1.0);
        new.integrity = Default::default();
        new.scenario.scale = 0.5;
        let rows = vec![Row::of("old.html", &old), Row::of("a b#1.html", &new)];
        let text = html("results", rows, &["versus.html".into()], 0);
        let mut slow = sample::results(1.0);
        slow.validity.valid = false;
        slow.validity.reasons = vec!["too slow".into()];
        let invalid = html("results", vec![Row::of("slow.html", &slow)], &[], 0);
        assert!(invalid.contains(">not valid as a measurement; 2 lost"), "{invalid}");
        assert!(invalid.contains("title=\"not valid as a measurement: too slow"), "{invalid}");
        let [first, second] = ["MB-B1, scale 0.50", "&lt;OLD&gt;"].map(|id| text.find(id).unwrap());
        assert!(first < second, "{text}");
        assert!(text.contains("./a%20b%231.html") && text.contains("./versus.html"), "{text}");
        assert!(text.contains("1,000/s") && text.contains("sample 1.0"));
        assert!(text.contains("2 lost in 55,000 deliveries") && text.contains(">ok<"));
        assert!(text.contains("2 runs in results") && is_index(&text));
        assert!(html("r", Vec::new(), &[], 7).contains("7 older ones are not listed"));
        assert!(!is_index(&crate::html(&old)));
    }
}
