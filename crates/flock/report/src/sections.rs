//! The tables of a run, for its page and for Markdown.

use crate::page::{Column, rows_of};
use crate::published::{Beside, HARDWARE_DIFFERS, published};
use crate::routing;
use crate::table::Table;
use flock_measure::figures::{Figures, search_words};
use flock_measure::text::{bytes, count, micros, number, seconds};
use flock_measure::{
    FaultRecord, IntegritySample, Latency, LatencySummary, RateSearch, Results, Sizing, Timer,
};

/// A table under its title.
pub(super) struct Section {
    pub title: &'static str,
    /// It belongs to the section ahead of it.
    pub is_part: bool,
    /// Paragraphs before the table.
    pub words: Vec<String>,
    pub table: Table,
}

impl Section {
    pub(super) fn new(title: &'static str, table: Table) -> Self {
        Self { title, is_part: false, words: Vec::new(), table }
    }

    pub(super) fn part(self) -> Self {
        Self { is_part: true, ..self }
    }

    pub(super) fn with(self, words: impl Into<String>) -> Self {
        Self { words: vec![words.into()], ..self }
    }
}

/// What the run measured and what was published for it; the sections that have rows.
pub(super) fn sections(results: &Results) -> Vec<Section> {
    let latency = rows_of(&latency_rows(results), &LATENCY);
    let integrity = rows_of(
        &results.integrity.by_qos,
        &[
            ("QoS", |c| c.qos.to_string()),
            ("Expected", |c| count(c.expected)),
            ("Received", |c| count(c.received)),
            ("Lost", |c| count(c.lost)),
            ("Duplicated", |c| count(c.duplicated)),
            ("Duplicated with DUP", |c| count(c.duplicated_marked)),
            ("Duplicated without cause", |c| count(c.duplicated_without_cause())),
            ("Out of order", |c| count(c.reordered)),
            ("Received unacknowledged", |c| count(c.unacknowledged_received)),
            ("Not judged", |c| count(c.unjudged)),
        ],
    );
    let slowest = rows_of(
        &results.worst_clients,
        &[
            ("Client", |one| one.client.clone()),
            ("Latency", |one| one.kind().title().to_owned()),
            ("Count", |one| count(one.count)),
            ("p50", |one| micros(one.p50_us as f64)),
            ("p99", |one| micros(one.p99_us as f64)),
            ("Maximum", |one| micros(one.max_us as f64)),
        ],
    );
    let mut all = vec![
        Section::new("Latency", latency),
        Section::new("Slowest clients", slowest).part().with(WORST_CLIENTS_NOTE),
        Section::new("Integrity", integrity).with(INTEGRITY_NOTE),
        Section::new("Most affected", most_affected(&results.integrity.worst)).part(),
    ];
    all.extend(routing::sections(results));
    all.extend(results.rate_search.as_ref().map(rate_search));
    all.extend(results.sizing.as_ref().map(sizing));
    all.extend([
        Section::new("Faults", faults(results)),
        Section::new("Failures", failures(results)),
        beside(results),
    ]);
    all.retain(|section| !section.table.rows.is_empty());
    all
}

pub(super) fn most_affected(worst: &[IntegritySample]) -> Table {
    fn missing(ranges: &[(u32, u32)]) -> String {
        let one = |&(from, to): &(u32, u32)| match from == to {
            true => from.to_string(),
            false => format!("{from} to {to}"),
        };
        ranges.iter().map(one).collect::<Vec<_>>().join(", ")
    }
    rows_of(
        worst,
        &[
            ("Subscriber", |sample| sample.subscriber.clone()),
            ("Publisher", |sample| sample.publisher.clone()),
            ("Topic", |sample| sample.topic.clone()),
            ("Lost", |sample| count(sample.lost)),
            ("Duplicated", |sample| count(sample.duplicated)),
            ("Out of order", |sample| count(sample.reordered)),
            ("Missing numbers", |sample| missing(&sample.missing)),
        ],
    )
}

fn faults(results: &Results) -> Table {
    rows_of(
        &results.faults,
        &[
            ("Fault", |fault| fault.what.clone()),
            ("At", |fault| seconds(fault.at_secs)),
            ("Connections lost", |fault| count(fault.connections_lost)),
            ("Recovered after", recovered),
            ("Without service", |fault| fault.without_service_secs.map_or("–".into(), seconds)),
            ("Note", |fault| fault.note.clone()),
        ],
    )
}

/// Who lost nobody has nobody to wait for.
fn recovered(fault: &FaultRecord) -> String {
    let lost = fault.dipped || fault.connections_lost > 0;
    let none = if lost { "not" } else { "–" };
    fault.recovered_after_secs.map_or(none.into(), seconds)
}

fn failures(results: &Results) -> Table {
    rows_of(
        &results.errors,
        &[
            ("What", |error| error.what.clone()),
            ("Reason", |error| error.reason.clone()),
            ("Count", |error| count(error.count)),
            ("First client", |error| error.client.clone()),
        ],
    )
}

fn rate_search(search: &RateSearch) -> Section {
    let words = format!(
        "Highest rate with p{} below {} and without a growing backlog: {}. Each step has at least \
         {} messages. A rate fails if two of three steps fail.",
        number(search.latency_percentile),
        micros(search.latency_bound_us as f64),
        search_words(search),
        count(search.samples_min),
    );
    let steps = rows_of(
        &search.steps,
        &[
            ("Rate tried", |step| number(step.rate)),
            ("Published/s", |step| number(step.published_per_sec)),
            ("Received/s", |step| number(step.received_per_sec)),
            ("Latency", |step| micros(step.latency_us as f64)),
            ("Messages", |step| count(step.samples)),
            ("Lateness, p99", |step| micros(step.lateness_p99_us as f64)),
            ("To", |step| if step.confirms { "confirm" } else { "find" }.to_owned()),
            ("Outcome", |step| if step.held { "held".to_owned() } else { step.why.clone() }),
        ],
    );
    Section::new("Rate search", steps).with(words)
}

/// The runs in which a size was looked for.
fn sizing(sizing: &Sizing) -> Section {
    let words = format!(
        "Largest size without failed or lost connections, and with p{} of the connect latency \
         below {}: {}. A size fails if two of three runs fail. This page is that of the last run.",
        number(sizing.latency_percentile),
        micros(sizing.latency_bound_us as f64),
        sizing.words(),
    );
    let steps = rows_of(
        &sizing.steps,
        &[
            ("Size tried", |step| count(step.size)),
            ("Connections", |step| count(step.connections)),
            ("Connect latency", |step| micros(step.connect_latency_us as f64)),
            ("Memory", |step| step.memory_bytes_max.map_or("–".into(), |it| bytes(it as f64))),
            ("Outcome", |step| if step.held { "passed".to_owned() } else { step.why.clone() }),
        ],
    );
    Section::new("Search", steps).with(words)
}

fn beside(results: &Results) -> Section {
    let figures = published(results);
    let title = "Published results for reference";
    if figures.is_empty() {
        return Section::new(title, Table::default());
    }
    let Beside { table, difference } = Beside::of(results, &figures);
    let words = [HARDWARE_DIFFERS.to_owned(), difference].into_iter();
    let words = words.filter(|words| !words.is_empty()).collect();
    Section { words, ..Section::new(title, table) }
}

/// What the run looked for, and what it found.
pub(super) fn searches(results: &Results) -> impl Iterator<Item = (&'static str, String)> {
    let sizing = results.sizing.as_ref().map(|found| (found.sought.title(), found.words()));
    let rate = results.rate_search.as_ref();
    let rate = rate.map(|found| ("highest sustained rate", search_words(found)));
    sizing.into_iter().chain(rate)
}

/// The headline figures that the run has.
pub(super) fn headline_rows(figures: &Figures) -> Vec<Vec<String>> {
    let rate = |value: Option<f64>| value.map(|value| format!("{}/s", number(value)));
    let us = |value: Option<f64>| match value {
        None if figures.latency_missing > 0 => Some("unknown".to_owned()),
        value => value.map(micros),
    };
    let rows = [
        ("published", rate(figures.published_per_sec)),
        ("received", rate(figures.received_per_sec)),
        ("routed", rate(figures.routed_per_sec)),
        ("latency, average", us(figures.average_us)),
        ("latency, p50", us(figures.p50_us)),
        ("latency, p75", us(figures.p75_us)),
        ("latency, p90", us(figures.p90_us)),
        ("latency, p95", us(figures.p95_us)),
        ("latency, p99", us(figures.p99_us)),
        ("latency, p99.9", us(figures.p999_us)),
        ("latency, maximum", us(figures.max_us)),
        (
            "without latency: lost, refused or failed",
            (figures.latency_missing > 0).then(|| count(figures.latency_missing)),
        ),
        ("connections, at most", Some(count(figures.connections_max))),
        (
            "broker CPU, average",
            figures.cpu_average_percent.map(|p| format!("{} cores", number(p / 100.0))),
        ),
        (
            "broker CPU per message",
            figures.cpu_us_per_message.map(|us| format!("{} us", number(us))),
        ),
        ("broker memory, at most", figures.memory_max_bytes.map(bytes)),
        ("broker memory per connection", figures.memory_per_connection_bytes.map(bytes)),
        ("broker memory, slope", figures.memory_slope.map(|slope| slope.words())),
    ];
    rows.into_iter().filter_map(|(name, value)| Some(vec![name.to_owned(), value?])).collect()
}

/// Name, QoS, how many, and the figures.
type LatencyRow = (String, Option<u8>, String, LatencySummary);

const LATENCY: [Column<'_, LatencyRow>; 11] = [
    ("Latency", |row| row.0.clone()),
    ("QoS", |row| row.1.map_or(String::new(), |qos| qos.to_string())),
    ("Count", |row| row.2.clone()),
    ("Average", |row| micros(row.3.average_us)),
    ("p50", |row| micros(row.3.p50_us as f64)),
    ("p75", |row| micros(row.3.p75_us as f64)),
    ("p90", |row| micros(row.3.p90_us as f64)),
    ("p95", |row| micros(row.3.p95_us as f64)),
    ("p99", |row| micros(row.3.p99_us as f64)),
    ("p99.9", |row| micros(row.3.p999_us as f64)),
    ("Maximum", |row| micros(row.3.max_us as f64)),
];

fn latency_rows(results: &Results) -> Vec<LatencyRow> {
    let mut rows = Vec::new();
    for Latency { kind, qos, summary, unfinished, missing, .. } in &results.latencies {
        let missing = match *missing {
            0 => String::new(),
            missing => format!(", and {} without latency", count(missing)),
        };
        let samples = unfinished_words(summary.count, *unfinished) + &missing;
        rows.push((kind.title().to_owned(), *qos, samples, *summary));
    }
    let lag = &results.validity.receive_lag;
    if lag.count > 0 {
        rows.push((READ_LATE.to_owned(), None, count(lag.count), *lag));
    }
    for Timer { name, summary, unfinished } in &results.timers {
        let samples = unfinished_words(summary.count, *unfinished);
        rows.push((format!("timer {name}"), None, samples, *summary));
    }
    rows
}

fn unfinished_words(all: u64, unfinished: u64) -> String {
    match unfinished {
        0 => count(all),
        open => format!("{}, {} of them unfinished", count(all), count(open)),
    }
}

/// How long messages may have waited for the tool to read them.
const READ_LATE: &str = "time until read by flock";
const WORST_CLIENTS_NOTE: &str = "Clients whose median latency is at least twice that of all \
     clients, at most ten. Medians and p99 are up to 25 % too high.";
const INTEGRITY_NOTE: &str = "Counted in deliveries: one message to one subscriber or shared \
     subscription. At QoS 1 and 2 only acknowledged messages are expected.";
