//! The run second by second, for a spreadsheet.

use crate::table::Table;
use flock_measure::{HostSample, Results, Second};

/// One row per second, or per step of `secs` in a long run; latencies in microseconds, broker load
/// as sampled nearest before its end.
pub fn csv(results: &Results) -> String {
    let names = COLUMNS.iter().map(|(name, _)| *name);
    let load = ["broker_cpu_percent", "broker_memory_bytes"];
    let mut table = Table::new(None, ["scenario"].into_iter().chain(names).chain(load));
    for second in &results.series {
        let until = f64::from(second.at_secs) + 1.0;
        let samples = || results.broker_load.iter().flat_map(|load| load.samples.iter().rev());
        let sample = samples().find(|sample| sample.at_secs <= until);
        let shown = |of: fn(&HostSample) -> Option<String>| sample.and_then(of).unwrap_or_default();
        let load = [
            shown(|sample| Some(format!("{:.1}", sample.cpu_percent?))),
            shown(|sample| Some(sample.memory_bytes?.to_string())),
        ];
        let cells = COLUMNS.iter().map(|(_, of)| of(second));
        table.add([results.scenario.id.clone()].into_iter().chain(cells).chain(load));
    }
    table.csv()
}

type Column = (&'static str, fn(&Second) -> String);

const COLUMNS: [Column; 30] = [
    ("at_secs", |s| s.at_secs.to_string()),
    ("secs", |s| s.secs().to_string()),
    ("connections", |s| s.connections.to_string()),
    ("connects", |s| s.connects.to_string()),
    ("connect_failures", |s| s.connect_failures.to_string()),
    ("disconnects", |s| s.disconnects.to_string()),
    ("subscribes", |s| s.subscribes.to_string()),
    ("scheduled", |s| s.scheduled.to_string()),
    ("published", |s| s.published.to_string()),
    ("acknowledged", |s| s.acknowledged.to_string()),
    ("received", |s| s.received.to_string()),
    ("pubacks_sent", |s| s.pubacks_sent.to_string()),
    ("pubacks_received", |s| s.pubacks_received.to_string()),
    ("bytes_in", |s| s.bytes_in.to_string()),
    ("bytes_out", |s| s.bytes_out.to_string()),
    ("backlog", |s| s.backlog.to_string()),
    ("lost_so_far", |s| s.lost_so_far.to_string()),
    ("duplicated_so_far", |s| s.duplicated_so_far.to_string()),
    ("e2e_average_us", |s| format!("{:.1}", s.end_to_end.average_us)),
    ("e2e_p50_us", |s| s.end_to_end.p50_us.to_string()),
    ("e2e_p75_us", |s| s.end_to_end.p75_us.to_string()),
    ("e2e_p90_us", |s| s.end_to_end.p90_us.to_string()),
    ("e2e_p95_us", |s| s.end_to_end.p95_us.to_string()),
    ("e2e_p99_us", |s| s.end_to_end.p99_us.to_string()),
    ("e2e_max_us", |s| s.end_to_end.max_us.to_string()),
    ("ack_p50_us", |s| s.publish_ack.p50_us.to_string()),
    ("ack_p99_us", |s| s.publish_ack.p99_us.to_string()),
    ("connect_p50_us", |s| s.connect.p50_us.to_string()),
    ("connect_p99_us", |s| s.connect.p99_us.to_string()),
    ("lateness_p99_us", |s| s.lateness_p99_us.to_string()),
];
