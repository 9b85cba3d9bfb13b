//! The report as one HTML page.

use maud::{Markup, html as markup};

use super::chart::{Axis, Chart, Line, Unit};
use super::facts::{agents, disclosure, verbatim};
use super::over_time;
use super::page::{self, details, note, page, pairs};
use super::sections::{headline_rows, searches, sections};
use flock_measure::figures::{Figures, headline, verdicts};
use flock_measure::text::{self, micros, number, seconds};
use flock_measure::{Due, Results};

pub fn html(results: &Results) -> String {
    let distributions = match distribution(results) {
        none if none.is_empty() => Vec::new(),
        distribution => vec![distribution.figure(), below_each_latency(results).figure()],
    };
    let body = markup! {
        (header(results))
        section.tiles {
            @for row in headline_rows(&Figures::of(results)) {
                div.tile { b { (row[1]) } span { (row[0]) } }
            }
        }
        @for (title, figures) in over_time::sections(results, distributions) {
            h2 { (title) }
            (page::charts(figures))
        }
        (tables(results))
        (conditions(results))
        footer { (results.tool.words()) " · results format " (results.format) }
    };
    let title = format!("{} · {}", results.scenario.id, results.broker.name);
    page(title.trim_end_matches(" · "), &body)
}

fn header(results: &Results) -> Markup {
    let addresses = results.broker.addresses.join(", ");
    let broker = match format!("{} {}", results.broker.name, results.broker.version).trim() {
        "" => addresses,
        name => format!("{name} at {addresses}"),
    };
    let scale = match results.scenario.scale {
        1.0 => String::new(),
        scale => format!(", at {} of the published scale", number(scale)),
    };
    let (tool, date) = (&results.tool, text::date(results.run.started_unix_ms));
    markup! {
        (page::header(
            &format!("{} {} · {date}", tool.name, tool.version),
            &format!("{}: {}", results.scenario.id, results.scenario.title),
            &format!("{broker}, {}{scale}", seconds(results.run.duration_secs)),
        ))
        (page::verdict_list(&verdicts(results)))
        @for (what, found) in searches(results) { p.found { b { (what) } ": " (found) } }
    }
}

/// One line per kind and QoS against the percentile.
fn distribution(results: &Results) -> Chart {
    let known = results.latencies.iter().filter(|latency| latency.summary.count > 0);
    let lines = known.map(|latency| {
        let qos = latency.qos.map_or(String::new(), |qos| format!(", QoS {qos}"));
        let name = format!("{}{qos}", latency.kind.title());
        let due = Due {
            histogram: latency.histogram.clone(),
            missing: latency.missing,
            unfinished: latency.unfinished,
        };
        Line::new(&name, percentile_points(&due))
    });
    Chart::by_percentile("Latency by percentile".to_owned(), lines.collect(), PERCENTILE_NOTE)
}

/// Percentile of all that was due, and latency, as far right as something came and the number of
/// samples supports.
pub fn percentile_points(due: &Due) -> Vec<(f64, f64)> {
    if due.histogram.is_empty() {
        return Vec::new();
    }
    let last = (due.histogram.count() - 1) as f64 * 100.0 / due.total() as f64;
    let steps = PERCENTILE_STEPS
        .iter()
        .flat_map(|(from, to)| (0..10).map(move |n| from + (to - from) * f64::from(n) / 10.0));
    let all = steps.filter(|at| *at <= last).chain([last.max(0.0)]);
    all.filter_map(|at| Some((at, due.micros_at(at)? as f64))).collect()
}

/// How much of all samples lies below each latency: the same data read the other way.
fn below_each_latency(results: &Results) -> Chart {
    let due = Due::of(results, headline(results));
    let (histogram, total) = (&due.histogram, due.total().max(1) as f64);
    let mut below = 0;
    let mut percent = |(us, n): (u64, u64)| {
        below += n;
        (us as f64, below as f64 * 100.0 / total)
    };
    let points: Vec<(f64, f64)> = histogram.buckets().into_iter().map(&mut percent).collect();
    let share = |limit: f64| {
        let below =
            points.iter().rfind(|(us, _)| *us <= limit).map_or(0.0, |(_, percent)| *percent);
        format!("{} % within {}", number(below), micros(limit))
    };
    let shares = [10.0, 100.0, 1_000.0, 10_000.0, 100_000.0].map(share);
    Chart {
        title: format!("Samples below each latency, {}", headline(results).title()),
        unit: Unit::Percent,
        axis: Axis::Micros,
        note: shares.join(", ") + ".",
        lines: vec![Line::new("below", points)],
        ..Chart::default()
    }
}

fn tables(results: &Results) -> Markup {
    markup! {
        @for section in sections(results) {
            @if section.is_part { h3 { (section.title) } } @else { h2 { (section.title) } }
            @for words in &section.words { p { (words) } }
            (section.table.html())
        }
    }
}

fn conditions(results: &Results) -> Markup {
    markup! {
        h2 { "Environment" }
        (pairs(&disclosure(results)))
        @if !results.run.agents.is_empty() { h3 { "Agents" } (agents(results).html()) }
        @for words in &results.validity.notes { (note(words)) }
        @for (name, text) in verbatim(results) { (details(name, text)) }
    }
}

const PERCENTILE_NOTE: &str = "Each step to the right is ten times rarer.";
const PERCENTILE_STEPS: [(f64, f64); 6] =
    [(0.0, 50.0), (50.0, 90.0), (90.0, 99.0), (99.0, 99.9), (99.9, 99.99), (99.99, 99.999)];
