//! The report as one HTML page.

use std::fmt::Write as _;

use super::chart::{Axis, Chart, Line, Unit};
use super::figures::{Figures, Verdict, headline, is_unheard, search_words, verdicts};
use super::frame::Events;
use super::heat;
use super::markdown::{
    INTEGRITY_HEAD, LATENCY_HEAD, disclosure, headline_rows, integrity_rows, latency_rows, verbatim,
};
use super::page::{details, page, pairs, table};
use super::published::{Beside, HARDWARE_DIFFERS, published};
use super::text::{self, count, html as escape, number, seconds};
use crate::measure::{HostSample, LatencyHistogram, LatencyKind, LatencyPoint, Results, Second};

pub fn html(results: &Results) -> String {
    let mut body = String::new();
    header(results, &mut body);
    tiles(results, &mut body);
    charts(results, &mut body);
    tables(results, &mut body);
    beside(results, &mut body);
    conditions(results, &mut body);
    let title = format!("{} · {}", results.scenario.id, results.broker.name);
    page(title.trim_end_matches(" · "), &body)
}

fn header(results: &Results, out: &mut String) {
    let broker = format!("{} {}", results.broker.name, results.broker.version);
    let broker = match broker.trim() {
        "" => results.broker.addresses.join(", "),
        name => format!("{name} at {}", results.broker.addresses.join(", ")),
    };
    // Writing to a String cannot fail.
    let _ = write!(
        out,
        "<header><p class=\"kicker\">{} {} · {}</p><h1>{}: {}</h1><p class=\"lead\">{}, {}{}</p></header>",
        escape(&results.tool.name),
        escape(&results.tool.version),
        text::date(results.run.started_unix_ms),
        escape(&results.scenario.id),
        escape(&results.scenario.title),
        escape(&broker),
        seconds(results.run.duration_secs),
        match results.scenario.scale {
            1.0 => String::new(),
            scale => format!(", at {} of the published scale", number(scale)),
        },
    );
    out.push_str("<ul class=\"verdicts\">");
    out.push_str(&verdict_items(results));
    out.push_str("</ul>");
}

/// The verdicts as items of a list.
pub(crate) fn verdict_items(results: &Results) -> String {
    let mut out = String::new();
    for (is, words) in verdicts(results) {
        let said = if is == Verdict::Unknown { "unknown: " } else { "" };
        let _ = write!(out, "<li{}>{said}{}</li>", is.class(), escape(&words));
    }
    out
}

fn tiles(results: &Results, out: &mut String) {
    out.push_str("<section class=\"tiles\">");
    for row in headline_rows(&Figures::of(results)) {
        let _ = write!(
            out,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&row[1]),
            escape(&row[0])
        );
    }
    out.push_str("</section>");
}

fn charts(results: &Results, out: &mut String) {
    out.push_str("<h2>Over time</h2><section class=\"charts\">");
    for (n, chart) in over_time(results).iter().enumerate() {
        out.push_str(&chart.figure());
        // Beside its lines.
        if n == LATENCY_CHART {
            out.push_str(&heat_map(results));
        }
    }
    out.push_str("</section>");
    let distribution = distribution(results);
    if !distribution.is_empty() {
        out.push_str("<h2>Latency distribution</h2><section class=\"charts\">");
        out.push_str(&distribution.figure());
        out.push_str(&histogram_bars(results).figure());
        out.push_str("</section>");
    }
}

fn heat_map(results: &Results) -> String {
    let kind = headline(results);
    let Some(heat) = results.heat.iter().find(|heat| heat.kind == kind) else {
        return String::new();
    };
    let title = format!("Every latency, {}", kind.title());
    // As far as the lines beside it.
    let until_secs = results.series.last().map_or(0, |second| second.at_secs);
    heat::figure(heat, &title, until_secs, &events(results))
}

fn over_time(results: &Results) -> Vec<Chart> {
    let line = |name: &str, of: &dyn Fn(&Second) -> f64| Line {
        name: name.to_owned(),
        points: results
            .series
            .iter()
            .map(|second| (f64::from(second.at_secs), of(second)))
            .collect(),
        ..Line::default()
    };
    let planned = line("due", &|s| s.scheduled as f64);
    let published = line("published", &|s| s.published as f64);
    let received = line("received", &|s| s.received as f64);
    let mut messages = vec![published, received, planned];
    if is_unheard(results) {
        // What nobody listened for did not come to nought.
        messages.remove(1);
    }
    let mut all = vec![
        timed("Messages per second", Unit::PerSecond, messages),
        headline_latency(results),
        timed("Connections", Unit::Count, vec![line("connections", &|s| s.connections as f64)]),
        timed(
            "Connects per second",
            Unit::PerSecond,
            vec![
                line("connected", &|s| s.connects as f64),
                line("failed", &|s| s.connect_failures as f64),
                line("disconnected", &|s| s.disconnects as f64),
            ],
        ),
    ];
    all.extend(broker_charts(results));
    let mut backlog = timed(
        "Backlog: published and not yet received",
        Unit::Count,
        vec![line("backlog", &|s| s.backlog.max(0) as f64)],
    );
    backlog.note = "Messages under way at the end of each second, at the known fan-out.".to_owned();
    let lateness = vec![line("p99", &|s| s.lateness_p99_us as f64)];
    let mut own = timed("The tool's own lateness", Unit::Micros, lateness);
    own.log = true;
    own.note = "How long after its due time a message was handed to the kernel. It is part of every latency above.".to_owned();
    all.extend([backlog, own]);
    let events = events(results);
    for chart in &mut all {
        chart.marks.clone_from(&events.marks);
        chart.outages.clone_from(&events.outages);
    }
    if let (Some(chart), false) = (all.first_mut(), events.outages.is_empty()) {
        OUTAGE_NOTE.clone_into(&mut chart.note);
    }
    all
}

fn events(results: &Results) -> Events {
    Events { marks: marks(results), outages: outages(results) }
}

/// From when to when messages were due, and none was acknowledged or arrived.
fn outages(results: &Results) -> Vec<(f64, f64)> {
    let is_answered = |second: &Second| second.received + second.acknowledged > 0;
    if !results.series.iter().any(is_answered) {
        // Nothing of it was for this run to see.
        return Vec::new();
    }
    let mut all: Vec<(f64, f64)> = Vec::new();
    for second in &results.series {
        if second.scheduled < OUTAGE_DUE_MIN || is_answered(second) {
            continue;
        }
        // A second is named after its end.
        let to = f64::from(second.at_secs);
        match all.last_mut().filter(|last| last.1 >= to - 1.0) {
            Some(last) => last.1 = to,
            None => all.push((to - 1.0, to)),
        }
    }
    all
}

const OUTAGE_NOTE: &str = "Shaded: messages were due, and none arrived or was acknowledged.";
/// Of fewer messages a second, none may arrive by chance.
const OUTAGE_DUE_MIN: u64 = 10;

/// A chart against time, without the lines that are zero throughout.
fn timed(title: &str, unit: Unit, lines: Vec<Line>) -> Chart {
    let says_something = |line: &Line| line.points.iter().any(|point| point.1 > 0.0);
    Chart {
        title: title.to_owned(),
        unit,
        axis: Axis::Seconds,
        log: false,
        lines: lines.into_iter().filter(says_something).collect(),
        marks: Vec::new(),
        outages: Vec::new(),
        note: String::new(),
    }
}

fn broker_charts(results: &Results) -> Vec<Chart> {
    let Some(load) = &results.broker_load else { return Vec::new() };
    let sampled = |name: &str, of: &dyn Fn(&HostSample) -> Option<f64>| {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for sample in &load.samples {
            let Some(value) = of(sample) else { continue };
            // A broker that is down has no samples.
            if let Some(before) = points.last().map(|point| point.0)
                && sample.at_secs - before > SAMPLE_GAP_SECS
            {
                points.push((before + SAMPLE_GAP_SECS / 2.0, f64::NAN));
            }
            points.push((sample.at_secs, value));
        }
        Line { name: name.to_owned(), points, ..Line::default() }
    };
    let cpu = sampled("CPU", &|s| s.cpu_percent);
    let memory = sampled("resident", &|s| s.memory_bytes.map(|bytes| bytes as f64));
    vec![
        timed("Broker CPU (100 % is one core)", Unit::Percent, vec![cpu]),
        timed("Broker memory", Unit::Bytes, vec![memory]),
    ]
}

fn headline_latency(results: &Results) -> Chart {
    match headline(results) {
        LatencyKind::EndToEnd => latency_chart("End-to-end latency", results, |s| &s.end_to_end),
        LatencyKind::RoundTrip => {
            latency_chart("Latency from request to answer", results, |s| &s.round_trip)
        }
        LatencyKind::PublishAck => {
            latency_chart("Latency to acknowledgement", results, |s| &s.publish_ack)
        }
        _ => latency_chart("Connect latency", results, |s| &s.connect),
    }
}

fn latency_chart(title: &str, results: &Results, of: fn(&Second) -> &LatencyPoint) -> Chart {
    // As far as the charts beside it; a second in which nothing arrived, a stall, say, is a gap.
    let known = |second: &Second| of(second).count > 0;
    let seconds = match results.series.iter().any(known) {
        true => results.series.as_slice(),
        false => &[],
    };
    let line = |name: &str, value: fn(&LatencyPoint) -> u64| Line {
        name: name.to_owned(),
        points: seconds
            .iter()
            .map(|second| {
                let value = if known(second) { value(of(second)) as f64 } else { f64::NAN };
                (f64::from(second.at_secs), value)
            })
            .collect(),
        ..Line::default()
    };
    Chart {
        title: title.to_owned(),
        unit: Unit::Micros,
        axis: Axis::Seconds,
        log: true,
        lines: vec![
            line("p50", |p| p.p50_us),
            line("p99", |p| p.p99_us),
            line("maximum", |p| p.max_us),
        ],
        marks: Vec::new(),
        outages: Vec::new(),
        note: String::new(),
    }
}

/// Faults, or where there are none the begin of each stage, as far as the names leave room.
fn marks(results: &Results) -> Vec<(f64, String)> {
    if !results.faults.is_empty() {
        return results.faults.iter().map(|fault| (fault.at_secs, fault.what.clone())).collect();
    }
    let room = results.run.duration_secs / MARKS_MAX;
    let mut marks: Vec<(f64, String)> = Vec::new();
    for phase in &results.phases {
        if marks.last().is_none_or(|last| phase.from_secs - last.0 >= room) {
            marks.push((phase.from_secs, phase.name.clone()));
        }
    }
    marks
}

/// One line per kind and QoS against the percentile.
fn distribution(results: &Results) -> Chart {
    let lines =
        results.latencies.iter().filter(|latency| latency.summary.count > 0).map(|latency| {
            let qos = latency.qos.map_or(String::new(), |qos| format!(", QoS {qos}"));
            let points = percentile_points(&latency.histogram);
            Line { name: format!("{}{qos}", latency.kind.title()), points, ..Line::default() }
        });
    Chart {
        title: "Latency by percentile".to_owned(),
        unit: Unit::Micros,
        axis: Axis::Percentile,
        log: true,
        lines: lines.collect(),
        marks: Vec::new(),
        outages: Vec::new(),
        note: "Each step to the right is ten times rarer. Lines end where there is only one slower sample.".to_owned(),
    }
}

/// Percentile and latency, as far right as the number of samples supports.
pub(crate) fn percentile_points(histogram: &LatencyHistogram) -> Vec<(f64, f64)> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let last = 100.0 - 100.0 / histogram.count() as f64;
    let steps = PERCENTILE_STEPS
        .iter()
        .flat_map(|(from, to)| (0..10).map(move |n| from + (to - from) * f64::from(n) / 10.0));
    let all = steps.filter(|at| *at <= last).chain([last.max(0.0)]);
    all.map(|at| (at, histogram.micros_at(at) as f64)).collect()
}

/// How much of all samples lies below each latency: the same data read the other way.
fn histogram_bars(results: &Results) -> Chart {
    let histogram = results.latency_merged(headline(results));
    let total = histogram.count().max(1) as f64;
    let mut below = 0;
    let points: Vec<(f64, f64)> = histogram
        .buckets()
        .into_iter()
        .map(|(us, n)| {
            below += n;
            (us as f64, below as f64 * 100.0 / total)
        })
        .collect();
    let marks = [1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1_000_000.0];
    let share = marks
        .iter()
        .map(|limit| {
            let below =
                points.iter().rfind(|(us, _)| us <= limit).map_or(0.0, |(_, percent)| *percent);
            format!("{} % within {}", number(below), text::micros(*limit))
        })
        .collect::<Vec<_>>();
    Chart {
        title: format!("Samples below each latency, {}", headline(results).title()),
        unit: Unit::Percent,
        axis: Axis::Micros,
        log: false,
        lines: vec![Line { name: "below".to_owned(), points, ..Line::default() }],
        marks: Vec::new(),
        outages: Vec::new(),
        note: share[1..6].join(", ") + ".",
    }
}

fn tables(results: &Results, out: &mut String) {
    out.push_str("<h2>Latency</h2>");
    out.push_str(&table(&LATENCY_HEAD, &latency_rows(results)));
    if !results.integrity.by_qos.is_empty() {
        out.push_str("<h2>Integrity</h2><p class=\"note\">In deliveries: one message to one subscriber, or to one shared group. At QoS 1 and 2 what is owed are the acknowledged messages.</p>");
        out.push_str(&table(&INTEGRITY_HEAD, &integrity_rows(results)));
        worst(results, out);
    }
    if let Some(search) = &results.rate_search {
        let _ = write!(
            out,
            "<h2>Rate search</h2><p>Highest rate that kept p{} below {} without a growing backlog: {}. Each step has {} messages at least; a rate fails by two steps of three, and both ends are confirmed at the end.</p>",
            number(search.latency_percentile),
            text::micros(search.latency_bound_us as f64),
            escape(&search_words(search)),
            count(search.samples_min),
        );
        let rows: Vec<Vec<String>> = search
            .steps
            .iter()
            .map(|step| {
                vec![
                    number(step.rate),
                    number(step.published_per_sec),
                    number(step.received_per_sec),
                    text::micros(step.latency_us as f64),
                    count(step.samples),
                    text::micros(step.lateness_p99_us as f64),
                    if step.confirms { "confirm" } else { "find" }.to_owned(),
                    if step.held { "held".to_owned() } else { step.why.clone() },
                ]
            })
            .collect();
        out.push_str(&table(
            &[
                "Rate tried",
                "Published/s",
                "Received/s",
                "Latency",
                "Messages",
                "Tool late, p99",
                "To",
                "Outcome",
            ],
            &rows,
        ));
    }
    if !results.faults.is_empty() {
        out.push_str("<h2>Faults</h2>");
        let rows: Vec<Vec<String>> = results
            .faults
            .iter()
            .map(|fault| {
                vec![
                    fault.what.clone(),
                    seconds(fault.at_secs),
                    count(fault.connections_lost),
                    fault.recovered_after_secs.map_or("not".to_owned(), seconds),
                    fault.without_service_secs.map_or("–".to_owned(), seconds),
                    fault.note.clone(),
                ]
            })
            .collect();
        out.push_str(&table(
            &["Fault", "At", "Connections lost", "Recovered after", "Without service", "Note"],
            &rows,
        ));
    }
    failures(results, out);
}

fn failures(results: &Results, out: &mut String) {
    if results.errors.is_empty() {
        return;
    }
    out.push_str("<h2>Failures</h2>");
    let rows: Vec<Vec<String>> = results
        .errors
        .iter()
        .map(|error| {
            vec![error.what.clone(), error.reason.clone(), count(error.count), error.client.clone()]
        })
        .collect();
    out.push_str(&table(&["What", "Reason", "Count", "First client"], &rows));
}

fn worst(results: &Results, out: &mut String) {
    if results.integrity.worst.is_empty() {
        return;
    }
    let missing = |ranges: &[(u32, u32)]| {
        let one = |&(from, to): &(u32, u32)| {
            if from == to { from.to_string() } else { format!("{from} to {to}") }
        };
        ranges.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let rows: Vec<Vec<String>> = results
        .integrity
        .worst
        .iter()
        .map(|sample| {
            vec![
                sample.subscriber.clone(),
                sample.publisher.clone(),
                sample.topic.clone(),
                count(sample.lost),
                count(sample.duplicated),
                count(sample.reordered),
                missing(&sample.missing),
            ]
        })
        .collect();
    out.push_str("<h3>Where it happened most</h3>");
    out.push_str(&table(
        &[
            "Subscriber",
            "Publisher",
            "Topic",
            "Lost",
            "Duplicated",
            "Out of order",
            "Missing numbers",
        ],
        &rows,
    ));
}

fn beside(results: &Results, out: &mut String) {
    let figures = published(results);
    if figures.is_empty() {
        return;
    }
    let _ =
        write!(out, "<h2>Published figures beside ours</h2><p>{}</p>", escape(HARDWARE_DIFFERS));
    let beside = Beside::of(results, &figures);
    let rows = table(&beside.head, &beside.rows)
        .replacen("<table>", "<table class=\"notes\">", 1)
        .replacen("<tbody><tr>", "<tbody><tr class=\"ours\">", 1);
    out.push_str(&rows);
}

fn conditions(results: &Results, out: &mut String) {
    out.push_str("<h2>How it was run</h2>");
    out.push_str(&pairs(&disclosure(results)));
    if !results.run.agents.is_empty() {
        let rows: Vec<Vec<String>> = results
            .run
            .agents
            .iter()
            .map(|agent| {
                let clock = format!(
                    "{} ± {}",
                    text::micros(agent.clock_offset_us),
                    text::micros(agent.clock_error_us)
                );
                let drift = match agent.clock_readings {
                    0 => "the commander's clock".to_owned(),
                    n => format!(
                        "{} ± {}, {n} readings",
                        text::micros(agent.clock_drift_us),
                        text::micros(agent.clock_drift_error_us)
                    ),
                };
                vec![
                    agent.address.clone(),
                    agent.machine.hostname.clone(),
                    count(agent.clients),
                    clock,
                    drift,
                    agent.died.clone().unwrap_or_default(),
                ]
            })
            .collect();
        out.push_str("<h3>Agents</h3>");
        out.push_str(&table(&AGENTS_HEAD, &rows));
    }
    for note in &results.validity.notes {
        let _ = write!(out, "<p class=\"note\">{}</p>", escape(note));
    }
    for (name, text) in verbatim(results) {
        out.push_str(&details(name, text));
    }
    let _ = write!(
        out,
        "<footer>{} · results format {}</footer>",
        escape(&results.tool.words()),
        results.format
    );
}

const AGENTS_HEAD: [&str; 6] =
    ["Agent", "Host", "Clients", "Clock offset", "Clock drift, at most", "Died"];
/// Samples are taken once a second and at the edges of stages.
const SAMPLE_GAP_SECS: f64 = 1.8;
/// Its place among the charts over time.
const LATENCY_CHART: usize = 1;
/// More names than this would overlap.
const MARKS_MAX: f64 = 14.0;
const PERCENTILE_STEPS: [(f64, f64); 6] =
    [(0.0, 50.0), (50.0, 90.0), (90.0, 99.0), (99.0, 99.9), (99.9, 99.99), (99.99, 99.999)];
