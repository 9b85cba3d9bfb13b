//! `/metrics` in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use broker::{Kind, Metrics, Shared};

use crate::run::{Clock, Gate, resident_bytes};

/// All metrics: each of the core's, per shard, then the process's own.
pub fn exposition(shared: &Shared, gate: &Gate, clock: Clock) -> String {
    let mut text = String::new();
    let shards: Vec<Vec<u64>> = shared.metrics.iter().map(Metrics::values).collect();
    for (number, metric) in Metrics::DESCRIPTIONS.iter().enumerate() {
        head(&mut text, metric.name, metric.kind, metric.help);
        for (shard, values) in shards.iter().enumerate() {
            let _ = writeln!(text, "{}{{shard=\"{shard}\"}} {}", metric.name, values[number]);
        }
    }
    for (name, kind, help, value) in own(gate, clock) {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

fn head(text: &mut String, name: &str, kind: Kind, help: &str) {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

type Sample = (&'static str, Kind, &'static str, u64);

fn own(gate: &Gate, clock: Clock) -> Vec<Sample> {
    vec![
        (
            "quelea_accepted_total",
            Kind::Counter,
            "Network connections that were accepted, before any handshake.",
            gate.accepted.load(Ordering::Relaxed),
        ),
        (
            "quelea_turned_away_total",
            Kind::Counter,
            "Network connections that ended before they were admitted.",
            gate.refused.load(Ordering::Relaxed),
        ),
        ("quelea_uptime_seconds", Kind::Gauge, "Time since the start.", clock.uptime_secs()),
        (
            "process_resident_memory_bytes",
            Kind::Gauge,
            "Resident memory of the process.",
            resident_bytes().unwrap_or(0),
        ),
    ]
}
