//! The run second by second, for a spreadsheet.

use std::fmt::Write as _;

use flock_measure::Results;
use flock_measure::text;

/// One row per second, or per step of `secs` in a long run; latencies in microseconds, broker load
/// as sampled nearest before its end.
pub fn csv(results: &Results) -> String {
    let mut out = String::from(
        "scenario,at_secs,secs,connections,connects,connect_failures,disconnects,subscribes,scheduled,published,acknowledged,received,pubacks_sent,pubacks_received,bytes_in,bytes_out,backlog,lost_so_far,duplicated_so_far,e2e_average_us,e2e_p50_us,e2e_p75_us,e2e_p90_us,e2e_p95_us,e2e_p99_us,e2e_max_us,ack_p50_us,ack_p99_us,connect_p50_us,connect_p99_us,lateness_p99_us,broker_cpu_percent,broker_memory_bytes\n",
    );
    let scenario = text::csv(&results.scenario.id);
    for second in &results.series {
        let until = f64::from(second.at_secs) + 1.0;
        let load = results
            .broker_load
            .as_ref()
            .and_then(|load| load.samples.iter().rfind(|sample| sample.at_secs <= until));
        let (cpu, memory) = load.map_or((String::new(), String::new()), |sample| {
            let cpu = sample.cpu_percent.map_or(String::new(), |cpu| format!("{cpu:.1}"));
            (cpu, sample.memory_bytes.map_or(String::new(), |bytes| bytes.to_string()))
        });
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{scenario},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{:.1},{},{},{},{},{},{},{},{},{},{},{},{cpu},{memory}",
            second.at_secs,
            second.secs(),
            second.connections,
            second.connects,
            second.connect_failures,
            second.disconnects,
            second.subscribes,
            second.scheduled,
            second.published,
            second.acknowledged,
            second.received,
            second.pubacks_sent,
            second.pubacks_received,
            second.bytes_in,
            second.bytes_out,
            second.backlog,
            second.lost_so_far,
            second.duplicated_so_far,
            second.end_to_end.average_us,
            second.end_to_end.p50_us,
            second.end_to_end.p75_us,
            second.end_to_end.p90_us,
            second.end_to_end.p95_us,
            second.end_to_end.p99_us,
            second.end_to_end.max_us,
            second.publish_ack.p50_us,
            second.publish_ack.p99_us,
            second.connect.p50_us,
            second.connect.p99_us,
            second.lateness_p99_us,
        );
    }
    out
}
