//! `/metrics` in Prometheus' text format.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use broker::{Kind, Metrics, Shared};

use crate::run::{Certificates, Clock, FIGURES, Gate, LogBoard, LogState, Timing, resident_bytes};

/// All metrics: each of the core's, per shard, those of the logs where there are any, then the
/// process's own.
pub fn exposition(
    shared: &Shared,
    gate: &Gate,
    board: &LogBoard,
    turns: &[Timing],
    certificates: &Certificates,
    clock: Clock,
) -> String {
    let mut text = String::new();
    let shards: Vec<Vec<u64>> = shared.metrics.iter().map(Metrics::values).collect();
    for (number, metric) in Metrics::DESCRIPTIONS.iter().enumerate() {
        head(&mut text, metric.name, metric.kind, metric.help);
        for (shard, values) in shards.iter().enumerate() {
            let _ = writeln!(text, "{}{{shard=\"{shard}\"}} {}", metric.name, values[number]);
        }
    }
    if board.log_count() > 0 {
        write_logs(&mut text, board);
    }
    let turns = Timing::sum(turns);
    let help = "How long workers were busy at a time, before they looked at their sockets again.";
    write_timing(&mut text, "quelea_worker_turn_seconds", help, &turns);
    let name = "quelea_worker_turn_seconds_max";
    head(&mut text, name, Kind::Gauge, "The longest of these times since the start.");
    let _ = writeln!(text, "{name} {}", turns.longest_secs());
    write_certificates(&mut text, certificates);
    for (name, kind, help, value) in own(gate, clock) {
        head(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    }
    text
}

/// Nothing where no listener has one.
fn write_certificates(text: &mut String, certificates: &Certificates) {
    let name = "quelea_certificate_expiry_timestamp_seconds";
    for (number, (listener, secs)) in certificates.expiries().into_iter().enumerate() {
        if number == 0 {
            let help = "When the certificate of a TLS listener expires, in seconds since 1970.";
            head(text, name, Kind::Gauge, help);
        }
        let listener = listener.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let _ = writeln!(text, "{name}{{listener=\"{listener}\"}} {secs}");
    }
}

fn write_logs(text: &mut String, board: &LogBoard) {
    for (name, state, help) in STATES {
        let values = board.states().map(|now| u64::from(now == state));
        write_log(text, name, Kind::Gauge, help, values);
    }
    for (place, figure) in FIGURES.iter().enumerate() {
        write_log(text, figure.name, figure.kind, figure.help, board.figures(place));
    }
    let help = "How long the disk took to write, and where asked to sync, a group of records.";
    write_timing(text, "quelea_log_commit_seconds", help, &board.commits);
}

fn write_log(
    text: &mut String,
    name: &str,
    kind: Kind,
    help: &str,
    values: impl Iterator<Item = u64>,
) {
    let name = format!("quelea_log_{name}");
    head(text, &name, kind, help);
    for (shard, value) in values.enumerate() {
        let _ = writeln!(text, "{name}{{shard=\"{shard}\"}} {value}");
    }
}

/// A Prometheus histogram.
fn write_timing(text: &mut String, name: &str, help: &str, timing: &Timing) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    let mut count = 0;
    for (bound, sum) in timing.cumulative() {
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        count = sum;
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", timing.sum_secs());
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

const STATES: [(&str, LogState, &str); 2] = [
    ("full", LogState::Full, "1 while there is no space for the log."),
    (
        "poisoned",
        LogState::Poisoned,
        "1 once a write or sync failed: nothing is promised any more.",
    ),
];
