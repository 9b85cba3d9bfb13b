//! The report as one HTML page.

use maud::{Markup, html as markup};

use super::chart::{Axis, Chart, Line, Unit};
use super::markdown::{
    INTEGRITY_HEAD, LATENCY_HEAD, WORST_CLIENTS_HEAD, WORST_CLIENTS_NOTE, disclosure,
    headline_rows, integrity_rows, latency_rows, verbatim, worst_client_rows,
};
use super::over_time;
use super::page::{self, details, note, page, pairs, rows_of, table};
use super::published::{Beside, HARDWARE_DIFFERS, published};
use flock_measure::figures::{Figures, headline, search_words, verdicts};
use flock_measure::text::{self, bytes, count, micros, number, seconds};
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
        (beside(results))
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
        h2 { "Latency" }
        (table(&LATENCY_HEAD, &latency_rows(results)).html())
        @if !results.worst_clients.is_empty() {
            h3 { "Slowest clients" }
            (note(WORST_CLIENTS_NOTE))
            (table(&WORST_CLIENTS_HEAD, &worst_client_rows(results)).html())
        }
        @if !results.integrity.by_qos.is_empty() {
            h2 { "Integrity" }
            (note("Counted in deliveries: one message to one subscriber or shared subscription. \
                 At QoS 1 and 2 only acknowledged messages are expected."))
            (table(&INTEGRITY_HEAD, &integrity_rows(results)).html())
            (worst(results))
        }
        (rate_search(results))
        (sizing(results))
        (rows_of("Faults", &results.faults, &[
            ("Fault", |fault| fault.what.clone()),
            ("At", |fault| seconds(fault.at_secs)),
            ("Connections lost", |fault| count(fault.connections_lost)),
            ("Recovered after", |fault| fault.recovered_after_secs.map_or("not".into(), seconds)),
            ("Without service", |fault| fault.without_service_secs.map_or("–".into(), seconds)),
            ("Note", |fault| fault.note.clone()),
        ]))
        (rows_of("Failures", &results.errors, &[
            ("What", |error| error.what.clone()),
            ("Reason", |error| error.reason.clone()),
            ("Count", |error| count(error.count)),
            ("First client", |error| error.client.clone()),
        ]))
    }
}

fn rate_search(results: &Results) -> Markup {
    let Some(search) = &results.rate_search else { return Markup::default() };
    markup! {
        h2 { "Rate search" }
        p {
            "Highest rate with p" (number(search.latency_percentile)) " below "
            (micros(search.latency_bound_us as f64)) " and without a growing backlog: "
            (search_words(search)) ". Each step has at least " (count(search.samples_min))
            " messages. A rate fails if two of three steps fail."
        }
        (rows_of("", &search.steps, &[
            ("Rate tried", |step| number(step.rate)),
            ("Published/s", |step| number(step.published_per_sec)),
            ("Received/s", |step| number(step.received_per_sec)),
            ("Latency", |step| micros(step.latency_us as f64)),
            ("Messages", |step| count(step.samples)),
            ("Lateness, p99", |step| micros(step.lateness_p99_us as f64)),
            ("To", |step| if step.confirms { "confirm" } else { "find" }.to_owned()),
            ("Outcome", |step| if step.held { "held".to_owned() } else { step.why.clone() }),
        ]))
    }
}

/// The runs in which a size was looked for.
fn sizing(results: &Results) -> Markup {
    let Some(sizing) = &results.sizing else { return Markup::default() };
    let bound = micros(sizing.latency_bound_us as f64);
    let percentile = number(sizing.latency_percentile);
    markup! {
        h2 { "Search" }
        p {
            "Largest size without failed or lost connections, and with p" (percentile)
            " of the connect latency below " (bound) ": " (sizing.words())
            ". A size fails if two of three runs fail. This page is that of the last run."
        }
        (rows_of("", &sizing.steps, &[
            ("Size tried", |step| count(step.size)),
            ("Connections", |step| count(step.connections)),
            ("Connect latency", |step| micros(step.connect_latency_us as f64)),
            ("Memory", |step| step.memory_bytes_max.map_or("–".into(), |it| bytes(it as f64))),
            ("Outcome", |step| if step.held { "passed".to_owned() } else { step.why.clone() }),
        ]))
    }
}

fn worst(results: &Results) -> Markup {
    fn missing(ranges: &[(u32, u32)]) -> String {
        let one = |&(from, to): &(u32, u32)| match from == to {
            true => from.to_string(),
            false => format!("{from} to {to}"),
        };
        ranges.iter().map(one).collect::<Vec<_>>().join(", ")
    }
    markup! {
        @if !results.integrity.worst.is_empty() { h3 { "Most affected" } }
        (rows_of("", &results.integrity.worst, &[
            ("Subscriber", |sample| sample.subscriber.clone()),
            ("Publisher", |sample| sample.publisher.clone()),
            ("Topic", |sample| sample.topic.clone()),
            ("Lost", |sample| count(sample.lost)),
            ("Duplicated", |sample| count(sample.duplicated)),
            ("Out of order", |sample| count(sample.reordered)),
            ("Missing numbers", |sample| missing(&sample.missing)),
        ]))
    }
}

fn beside(results: &Results) -> Markup {
    let figures = published(results);
    let beside = Beside::of(results, &figures);
    markup! {
        @if !figures.is_empty() {
            h2 { "Published results for reference" }
            p { (HARDWARE_DIFFERS) }
            @if !beside.difference.is_empty() { p { (beside.difference) } }
            (beside.table.html())
        }
    }
}

fn conditions(results: &Results) -> Markup {
    fn plus_minus(of: f64, error: f64) -> String {
        format!("{} ± {}", micros(of), micros(error))
    }
    markup! {
        h2 { "Environment" }
        (pairs(&disclosure(results)))
        @if !results.run.agents.is_empty() { h3 { "Agents" } }
        (rows_of("", &results.run.agents, &[
            ("Agent", |agent| agent.address.clone()),
            ("Host", |agent| agent.machine.hostname.clone()),
            ("Clients", |agent| count(agent.clients)),
            ("Clock offset", |agent| plus_minus(agent.clock_offset_us, agent.clock_error_us)),
            ("Maximum clock drift", |agent| match agent.clock_readings {
                0 => "the commander's clock".to_owned(),
                n => {
                    let drift = plus_minus(agent.clock_drift_us, agent.clock_drift_error_us);
                    format!("{drift}, {n} readings")
                }
            }),
            ("Died", |agent| agent.died.clone().unwrap_or_default()),
        ]))
        @for words in &results.validity.notes { (note(words)) }
        @for (name, text) in verbatim(results) { (details(name, text)) }
    }
}

const PERCENTILE_NOTE: &str = "Each step to the right is ten times rarer.";
const PERCENTILE_STEPS: [(f64, f64); 6] =
    [(0.0, 50.0), (50.0, 90.0), (90.0, 99.0), (99.0, 99.9), (99.9, 99.99), (99.99, 99.999)];
