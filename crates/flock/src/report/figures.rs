//! The few figures that everybody looks for, computed once for all formats.

use super::text;
use crate::measure::{HostLoad, LatencyKind, Outcome, Results, Second};

/// Headline figures of a run. `None` where the run has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Averages over the seconds in which messages were published, without the first and last one.
    pub published_per_sec: Option<f64>,
    /// Over the same seconds, or those of receiving where nothing came while messages were
    /// published (they were queued, say).
    pub received_per_sec: Option<f64>,
    pub average_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p75_us: Option<f64>,
    pub p90_us: Option<f64>,
    pub p95_us: Option<f64>,
    pub p99_us: Option<f64>,
    pub p999_us: Option<f64>,
    pub max_us: Option<f64>,
    /// In per cent of one core.
    pub cpu_average_percent: Option<f64>,
    pub cpu_max_percent: Option<f64>,
    pub cpu_us_per_message: Option<f64>,
    pub memory_average_bytes: Option<f64>,
    pub memory_max_bytes: Option<f64>,
    pub memory_per_connection_bytes: Option<f64>,
    /// Of a hold that is long enough to have one.
    pub memory_slope: Option<MemorySlope>,
    pub connections_max: u64,
    pub lost: u64,
    pub duplicated: u64,
    pub reordered: u64,
}

/// How the broker's memory rose while the load was the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemorySlope {
    pub bytes_per_hour: f64,
    pub late_bytes_per_hour: f64,
    pub over_secs: f64,
}

impl MemorySlope {
    fn of(load: &HostLoad) -> Option<Self> {
        (load.memory_slope_secs >= SLOPE_SECS_MIN).then_some(Self {
            bytes_per_hour: load.memory_slope_bytes_per_sec * 3600.0,
            late_bytes_per_hour: load.memory_slope_late_bytes_per_sec * 3600.0,
            over_secs: load.memory_slope_secs,
        })
    }

    /// `+1.20 MB per hour over 60 min, -3.10 KB over the second half`.
    pub fn words(&self) -> String {
        let signed = |bytes: f64| match bytes < 0.0 {
            true => text::bytes(bytes),
            false => format!("+{}", text::bytes(bytes)),
        };
        let (all, late) = (signed(self.bytes_per_hour), signed(self.late_bytes_per_hour));
        format!(
            "{all} per hour over {}, {late} over its second half",
            text::seconds(self.over_secs)
        )
    }
}

/// In less, a slope is what happened to be going on.
const SLOPE_SECS_MIN: f64 = 60.0;

impl Figures {
    pub fn of(results: &Results) -> Self {
        let integrity = results.integrity.total();
        let mut figures = Self {
            connections_max: results.totals.connections_max,
            lost: integrity.lost,
            duplicated: integrity.duplicated,
            reordered: integrity.reordered,
            ..Self::default()
        };
        let publishing = busy(&results.series, |second| second.published + second.scheduled);
        if !publishing.is_empty() {
            let receiving = match publishing.iter().all(|second| second.received == 0) {
                true => busy(&results.series, |second| second.received),
                false => publishing,
            };
            figures.published_per_sec = Some(average(publishing, |second| second.published));
            figures.received_per_sec = Some(average(receiving, |second| second.received));
        }
        figures.add_latency(results);
        if let Some(load) = &results.broker_load {
            let known = |value: f64| (value > 0.0).then_some(value);
            figures.cpu_average_percent = known(load.cpu_percent_average);
            figures.cpu_max_percent = known(load.cpu_percent_max);
            figures.cpu_us_per_message = load.cpu_us_per_message;
            figures.memory_average_bytes = known(load.memory_bytes_average);
            figures.memory_max_bytes = known(load.memory_bytes_max as f64);
            // A broker that was still busy with its start may have shrunk while clients connected.
            figures.memory_per_connection_bytes = load.memory_bytes_per_connection.and_then(known);
            figures.memory_slope = MemorySlope::of(load);
        }
        figures
    }

    /// That of the kind that stands for the run.
    fn add_latency(&mut self, results: &Results) {
        let histogram = results.latency_merged(headline(results));
        if histogram.is_empty() {
            return;
        }
        let summary = histogram.summary();
        self.average_us = Some(summary.average_us);
        self.p50_us = Some(summary.p50_us as f64);
        self.p75_us = Some(summary.p75_us as f64);
        self.p90_us = Some(summary.p90_us as f64);
        self.p95_us = Some(summary.p95_us as f64);
        self.p99_us = Some(summary.p99_us as f64);
        self.p999_us = Some(summary.p999_us as f64);
        self.max_us = Some(summary.max_us as f64);
    }
}

/// Which latency stands for the run.
pub fn headline(results: &Results) -> LatencyKind {
    let has = |kind| {
        results.latencies.iter().any(|latency| latency.kind == kind && latency.summary.count > 0)
    };
    [LatencyKind::EndToEnd, LatencyKind::Routed, LatencyKind::PublishAck]
        .into_iter()
        .find(|kind| has(*kind))
        .unwrap_or(LatencyKind::Connect)
}

/// The seconds from the first to the last in which `of` counts something; these two, which are
/// rarely whole, are cut off where enough is left.
fn busy(series: &[Second], of: fn(&Second) -> u64) -> &[Second] {
    let Some(first) = series.iter().position(|second| of(second) > 0) else { return &[] };
    let last = series.iter().rposition(|second| of(second) > 0).unwrap_or(first);
    if last - first >= 3 { &series[first + 1..last] } else { &series[first..=last] }
}

fn average(seconds: &[Second], of: fn(&Second) -> u64) -> f64 {
    seconds.iter().map(of).sum::<u64>() as f64 / seconds.len().max(1) as f64
}

/// One line for each thing that speaks for or against the run: good or bad, and the words.
pub fn verdicts(results: &Results) -> Vec<(bool, String)> {
    let mut all = Vec::new();
    match &results.run.outcome {
        Outcome::Completed => {}
        Outcome::Interrupted(why) => all.push((false, format!("interrupted: {why}"))),
        Outcome::Failed(why) => all.push((false, format!("failed: {why}"))),
    }
    match results.validity.valid {
        true => all.push((true, "the tool kept up: figures are the broker's".to_owned())),
        false => {
            let why = results.validity.reasons.join("; ");
            all.push((false, format!("not valid as a measurement: {why}")));
        }
    }
    if results.integrity.total().expected > 0 {
        all.push(integrity_verdict(results));
    }
    if results.totals.connects_failed > 0 {
        all.push((
            false,
            format!("{} connects failed", text::count(results.totals.connects_failed)),
        ));
    }
    all
}

fn integrity_verdict(results: &Results) -> (bool, String) {
    let integrity = results.integrity.total();
    let owed = text::count(integrity.expected);
    // A connection that breaks leaves publisher and broker in doubt, and at least once means again.
    let at_least_once = results.totals.connections_lost > 0
        && results.integrity.by_qos.iter().all(|count| count.qos == 1 || count.duplicated == 0);
    let again = if at_least_once { integrity.duplicated } else { 0 };
    let bad = [
        (integrity.lost, "lost"),
        (integrity.duplicated - again, "duplicated"),
        (integrity.reordered, "out of order"),
        (results.integrity.misrouted, "misrouted"),
    ];
    let found: Vec<String> = bad
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", text::count(*n)))
        .collect();
    let words = match (found.is_empty(), again) {
        (true, 0) => format!("nothing lost, duplicated or out of order in {owed} deliveries"),
        (true, _) => format!("nothing lost or out of order in {owed} deliveries"),
        (false, _) => format!("{} in {owed} deliveries", found.join(", ")),
    };
    let repeats = match again {
        0 => String::new(),
        _ => format!(
            "; {} came again, as at least once allows when connections break",
            text::count(again)
        ),
    };
    (found.is_empty(), words + &repeats)
}
