//! The figures that tables and curves show, ours and those that were published for the same
//! scenario: each is defined once for all pages.

use crate::chart::Unit;
use crate::likeness::{Likeness, Scales, Theirs};
use crate::table::Cell;
use flock_measure::figures::{Figures, headline};
use flock_measure::stats::Spread;
use flock_measure::text::number;
use flock_measure::{LatencyKind, LatencySummary, Results};
use flock_model::scenario::Published;

/// Every figure, for tables that name theirs by key.
const ALL: [&Column; 23] = [
    PUBLISHED, RECEIVED, MESSAGES, PAYLOAD, CONNECTS, CONNECTED, CONN_TIME, AVERAGE, P50, P75, P90,
    P95, P99, MAX, ACK_AVG, ACK_P95, CPU_AVG, CPU_MAX, CPU_COST, MEMORY_AVG, MEMORY_MAX,
    MEMORY_ONE, LOST,
];

/// By key; an error names the valid ones.
pub(crate) fn find(key: &str) -> Result<&'static Column, String> {
    let found = ALL.iter().find(|column| column.key == key).copied();
    found.ok_or_else(|| {
        let valid: Vec<&str> = ALL.iter().map(|column| column.key).collect();
        format!("unknown column `{key}`; valid: {}", valid.join(", "))
    })
}

/// One figure.
pub(crate) struct Column {
    /// In CSV files.
    pub key: &'static str,
    /// Of a chart.
    pub title: &'static str,
    /// At the head of a column.
    pub name: &'static str,
    pub unit: Unit,
    pub scales: Scales,
    pub ours: fn(&Results) -> Option<f64>,
    published: fn(&Published) -> Option<f64>,
}

impl Column {
    /// As people read it. CPU is per cent of all `cores` of the machine, and how many those are.
    pub(crate) fn show(&self, value: f64, cores: Option<f64>) -> String {
        match (self.unit, cores) {
            (Unit::Percent, Some(cores)) => {
                format!("{} % ({} cores)", number(value / cores), number(value / 100.0))
            }
            (unit, _) => unit.show(value),
        }
    }

    /// One end of a range beside such a figure.
    pub(crate) fn show_end(&self, value: f64, cores: Option<f64>) -> String {
        match (self.unit, cores) {
            (Unit::Percent, Some(cores)) => self.unit.show(value / cores),
            (unit, _) => unit.show(value),
        }
    }

    pub(crate) fn is_latency(&self) -> bool {
        self.unit == Unit::Micros
    }

    pub(crate) fn values(&self, runs: &[&Results]) -> Vec<f64> {
        runs.iter().filter_map(|results| (self.ours)(results)).collect()
    }

    /// The median of several runs, and their range.
    pub(crate) fn spread(&self, runs: &[&Results]) -> Cell {
        let cores = runs.iter().find_map(|results| own_cores(results));
        self.spread_of(&self.values(runs), cores)
    }

    pub(crate) fn spread_of(&self, values: &[f64], cores: Option<f64>) -> Cell {
        let Some(Spread { median, least, most, .. }) = Spread::of(values) else {
            return Cell::none();
        };
        let range = (least < most).then_some((least, most));
        Cell::with(self.show(median, cores), self.show_range(range, cores))
    }

    pub(crate) fn show_range(&self, range: Option<(f64, f64)>, cores: Option<f64>) -> String {
        let show = |end| self.show_end(end, cores);
        range.map_or(String::new(), |(low, high)| format!("{} to {}", show(low), show(high)))
    }

    pub(crate) fn was_published(&self, published: &Published) -> bool {
        (self.published)(published).is_some()
    }

    /// With what has to be said of its scale.
    pub(crate) fn theirs(&self, published: &Published, likeness: &Likeness) -> Cell {
        let show = |value| self.show(value, published.vcpus);
        match self.beside(published, likeness) {
            Some(theirs) => Cell::with(show(theirs.value()), theirs.remark(show)),
            None => Cell::none(),
        }
    }

    /// On the axis of our runs; `None` where it is of another scale, or of unknown cores.
    pub(crate) fn drawn(&self, published: &Published, likeness: &Likeness) -> Option<f64> {
        if self.unit == Unit::Percent && published.vcpus.is_none() {
            return None;
        }
        self.beside(published, likeness)?.drawn()
    }

    fn beside(&self, published: &Published, likeness: &Likeness) -> Option<Theirs> {
        Some(likeness.theirs(self.scales, (self.published)(published)?))
    }
}

pub(crate) fn own_cores(results: &Results) -> Option<f64> {
    (results.machine.cores > 0).then(|| f64::from(results.machine.cores))
}

const fn column(
    [key, title, name]: [&'static str; 3],
    unit: Unit,
    scales: Scales,
    ours: fn(&Results) -> Option<f64>,
    published: fn(&Published) -> Option<f64>,
) -> Column {
    Column { key, title, name, unit, scales, ours, published }
}

/// A latency: published in milliseconds, never scaled.
const fn latency(
    names: [&'static str; 3],
    ours: fn(&Results) -> Option<f64>,
    theirs: fn(&Published) -> Option<f64>,
) -> Column {
    column(names, Unit::Micros, Scales::Never, ours, theirs)
}

fn us(ms: Option<f64>) -> Option<f64> {
    ms.map(|ms| ms * 1e3)
}

/// Per cent of one core, where it is known how many cores there were; else of the machine.
fn cpu(published: &Published, percent: Option<f64>) -> Option<f64> {
    percent.map(|percent| percent * published.vcpus.unwrap_or(1.0))
}

fn acknowledged(results: &Results) -> Option<LatencySummary> {
    let all = results.latency_merged(LatencyKind::PublishAck);
    (!all.is_empty()).then(|| all.summary())
}

/// How many connected, and in how many seconds from the first to the last of them.
fn connecting(results: &Results) -> Option<(u64, u32)> {
    let mut busy = results.series.iter().filter(|second| second.connects > 0);
    let first = busy.next()?;
    let last = busy.next_back().unwrap_or(first);
    let connects = results.series.iter().map(|second| second.connects).sum();
    Some((connects, last.at_secs - first.at_secs + results.step_secs()))
}

/// Of a run that measures connects.
fn connects_per_sec(results: &Results) -> Option<f64> {
    let (connects, secs) = connecting(results)?;
    (headline(results) == LatencyKind::Connect).then(|| connects as f64 / f64::from(secs))
}

/// Bytes of payload in a message, on average.
fn message_bytes(results: &Results) -> Option<f64> {
    let received = results.totals.received_all();
    (received > 0).then(|| results.totals.received_bytes as f64 / received as f64)
}

fn both(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? + b?)
}

fn times(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(a? * b?)
}

pub(crate) const PUBLISHED: &Column = &column(
    ["published_per_sec", "Published per second", "Published"],
    Unit::PerSecond,
    Scales::Published,
    |r| Figures::of(r).published_per_sec,
    |p| p.published_per_sec,
);
pub(crate) const RECEIVED: &Column = &column(
    ["received_per_sec", "Received per second", "Received"],
    Unit::PerSecond,
    Scales::Received,
    |r| {
        let figures = Figures::of(r);
        // Without subscribers, sinks are the receivers.
        figures.received_per_sec.or(figures.routed_per_sec)
    },
    |p| p.received_per_sec,
);
pub(crate) const CONNECTS: &Column = &column(
    ["connects_per_sec", "Connects per second", "Connects"],
    Unit::PerSecond,
    Scales::Never,
    connects_per_sec,
    |p| p.connects_per_sec,
);
/// PUBLISH packets of both directions.
pub(crate) const MESSAGES: &Column = &column(
    ["messages_per_sec", "Published and received per second", "Published and received"],
    Unit::PerSecond,
    Scales::Received,
    |r| both(Figures::of(r).published_per_sec, Figures::of(r).received_per_sec),
    |p| both(p.published_per_sec, p.received_per_sec),
);
/// Rates times sizes, also where a source prints bytes: their units differ.
pub(crate) const PAYLOAD: &Column = &column(
    ["payload_bytes_per_sec", "Payload received per second", "Payload per second"],
    Unit::Bytes,
    Scales::Received,
    |r| times(Figures::of(r).received_per_sec, message_bytes(r)),
    |p| times(p.received_per_sec, p.payload_bytes),
);
pub(crate) const CONNECTED: &Column = &column(
    ["connections", "Connections", "Connections"],
    Unit::Count,
    Scales::Clients,
    |r| Some(r.totals.connections_max as f64),
    |p| p.connections,
);
pub(crate) const CONN_TIME: &Column = &column(
    ["connect_secs", "Time until all are connected", "All connected within"],
    Unit::Micros,
    Scales::Time,
    |r| Some(f64::from(connecting(r)?.1) * 1e6),
    |p| p.connect_secs.map(|secs| secs * 1e6),
);
pub(crate) const AVERAGE: &Column = &latency(
    ["latency_average_us", "Latency, average", "Average"],
    |r| Figures::of(r).average_us,
    |p| us(p.average_ms),
);
pub(crate) const P50: &Column = &latency(
    ["latency_p50_us", "Latency, p50", "p50"],
    |r| Figures::of(r).p50_us,
    |p| us(p.p50_ms),
);
pub(crate) const P75: &Column = &latency(
    ["latency_p75_us", "Latency, p75", "p75"],
    |r| Figures::of(r).p75_us,
    |p| us(p.p75_ms),
);
pub(crate) const P90: &Column = &latency(
    ["latency_p90_us", "Latency, p90", "p90"],
    |r| Figures::of(r).p90_us,
    |p| us(p.p90_ms),
);
pub(crate) const P95: &Column = &latency(
    ["latency_p95_us", "Latency, p95", "p95"],
    |r| Figures::of(r).p95_us,
    |p| us(p.p95_ms),
);
pub(crate) const P99: &Column = &latency(
    ["latency_p99_us", "Latency, p99", "p99"],
    |r| Figures::of(r).p99_us,
    |p| us(p.p99_ms),
);
pub(crate) const MAX: &Column = &latency(
    ["latency_max_us", "Latency, maximum", "Maximum"],
    |r| Figures::of(r).max_us,
    |p| us(p.max_ms),
);
pub(crate) const ACK_AVG: &Column = &latency(
    ["ack_average_us", "Acknowledged, average", "Acknowledged, average"],
    |r| acknowledged(r).map(|summary| summary.average_us),
    |p| us(p.ack_average_ms),
);
pub(crate) const ACK_P95: &Column = &latency(
    ["ack_p95_us", "Acknowledged, p95", "Acknowledged, p95"],
    |r| acknowledged(r).map(|summary| summary.p95_us as f64),
    |p| us(p.ack_p95_ms),
);
pub(crate) const CPU_AVG: &Column = &column(
    ["broker_cpu_percent", "Broker CPU, average", "CPU, average"],
    Unit::Percent,
    Scales::Never,
    |r| Figures::of(r).cpu_average_percent,
    |p| cpu(p, p.cpu_average_percent),
);
pub(crate) const CPU_MAX: &Column = &column(
    ["broker_cpu_percent_max", "Broker CPU, maximum", "CPU, maximum"],
    Unit::Percent,
    Scales::Never,
    |r| Figures::of(r).cpu_max_percent,
    |p| cpu(p, p.cpu_max_percent),
);
/// Per connect where there are no messages.
pub(crate) const CPU_COST: &Column = &column(
    ["broker_cpu_us_per_message", "Broker CPU per message", "CPU per message"],
    Unit::Cost,
    Scales::Never,
    |r| {
        let load = r.broker_load.as_ref()?;
        load.cpu_us_per_message.or(load.cpu_us_per_connect)
    },
    |_| None,
);
pub(crate) const MEMORY_AVG: &Column = &column(
    ["broker_memory_bytes_average", "Broker memory, average", "Memory, average"],
    Unit::Bytes,
    Scales::Never,
    |r| Figures::of(r).memory_average_bytes,
    |p| p.memory_average_mb.map(|mb| mb * 1e6),
);
pub(crate) const MEMORY_MAX: &Column = &column(
    ["broker_memory_bytes_max", "Broker memory, maximum", "Memory, maximum"],
    Unit::Bytes,
    Scales::Never,
    |r| Figures::of(r).memory_max_bytes,
    |p| p.memory_max_mb.map(|mb| mb * 1e6),
);
pub(crate) const MEMORY_ONE: &Column = &column(
    ["memory_bytes_per_connection", "Broker memory per connection", "Memory per connection"],
    Unit::Bytes,
    Scales::Never,
    |r| Figures::of(r).memory_per_connection_bytes,
    |p| p.memory_per_connection_kb.map(|kb| kb * 1e3),
);
pub(crate) const LOST: &Column = &column(
    ["lost", "Lost", "Lost"],
    Unit::Count,
    Scales::Never,
    // What carries no stamp cannot be missed.
    |r| (r.integrity.total().expected > 0).then(|| r.integrity.total().lost as f64),
    |_| None,
);
