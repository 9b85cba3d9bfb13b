//! The tables of sinks: those of Event Grid's report, and what was lost on the way.

use crate::page::rows_of;
use crate::sections::{Section, most_affected};
use crate::table::Table;
use flock_measure::text::{count, micros, number, seconds};
use flock_measure::{
    Due, LatencyKind, LatencyPoint, Minute, Results, Routing, SinkMinute, SinkResults,
};

/// The sections of a run with sinks.
pub(super) fn sections(results: &Results) -> Vec<Section> {
    let Some(routing) = &results.routing else { return Vec::new() };
    let worst: Vec<_> = routing.sinks.iter().flat_map(|sink| sink.worst.clone()).collect();
    vec![
        Section::new("Routed messages", sinks(&routing.sinks)).with(SINKS_NOTE),
        Section::new("Most affected at sinks", most_affected(&worst)).part(),
        Section::new("Latency of subscribers and sinks", paths(results, routing)).part(),
        match last_minute(routing) {
            ..=MINUTES_MAX => Section::new(MINUTES, minutes(routing)).part(),
            _ => Section::new(MINUTES, minutes(routing)).part().with(MINUTES_NOTE),
        },
    ]
}

fn sinks(sinks: &[SinkResults]) -> Table {
    rows_of(
        sinks,
        &[
            ("Sink", |sink| sink.name.clone()),
            ("Where", |sink| sink.target.clone()),
            ("Expected", |sink| count(sink.total().expected)),
            ("Received", |sink| count(sink.total().received)),
            ("Per second", |sink| number(sink.received_per_sec)),
            ("Lost", |sink| count(sink.total().lost)),
            ("Duplicated", |sink| count(sink.total().duplicated)),
            ("Out of order", |sink| count(sink.total().reordered)),
            ("Not as sent", |sink| count(sink.wrongs().iter().map(|(_, n)| n).sum())),
            ("Refused", |sink| count(sink.refused)),
            ("Waited", |sink| {
                format!("{} of {}", seconds(sink.waited_secs), seconds(sink.drain_secs))
            }),
        ],
    )
}

/// As in the report of Event Grid: messages to subscribers by QoS, and routed ones.
fn paths(results: &Results, routing: &Routing) -> Table {
    let subscribers = results.latencies.iter().filter(|one| one.kind == LatencyKind::EndToEnd);
    let subscribers = subscribers.map(|one| {
        let qos = one.qos.map_or(String::new(), |qos| format!(", QoS {qos}"));
        let due = Due {
            histogram: one.histogram.clone(),
            missing: one.missing,
            unfinished: one.unfinished,
        };
        (format!("subscribers{qos}"), due)
    });
    let sinks = routing.sinks.iter().map(|sink| (format!("sink {}", sink.name), sink.due()));
    let rows: Vec<(String, Due)> = subscribers.chain(sinks).collect();
    rows_of(
        &rows,
        &[
            ("To", |row| row.0.clone()),
            ("Messages", |row| count(row.1.histogram.count())),
            ("Without latency", |row| count(row.1.missing)),
            ("p50", |row| percentile(&row.1, 50.0)),
            ("p75", |row| percentile(&row.1, 75.0)),
            ("p90", |row| percentile(&row.1, 90.0)),
            ("p99", |row| percentile(&row.1, 99.0)),
            ("Maximum", |row| micros(row.1.histogram.summary().max_us as f64)),
        ],
    )
}

/// Of all that was due: what was lost is slower than all others.
fn percentile(due: &Due, at: f64) -> String {
    match due.micros_at(at) {
        Some(us) => micros(us as f64),
        None if due.missing > 0 => "unknown".to_owned(),
        None => "–".to_owned(),
    }
}

/// What was published, received and routed in each minute, with the latency at each sink.
fn minutes(routing: &Routing) -> Table {
    let used = |of: fn(&Minute) -> [u64; 3]| -> Vec<usize> {
        let is_used = |qos: &usize| routing.minutes.iter().any(|minute| of(minute)[*qos] > 0);
        (0..3).filter(is_used).collect()
    };
    let (published, received) = (used(|minute| minute.published), used(|minute| minute.received));
    let mut head = vec!["Minute".to_owned()];
    head.extend(published.iter().map(|qos| format!("Published, QoS {qos}")));
    head.extend(received.iter().map(|qos| format!("Received, QoS {qos}")));
    for sink in &routing.sinks {
        let names = ["routed", "p50", "p90", "p99", "maximum"];
        head.extend(names.map(|name| format!("{}: {name}", sink.name)));
    }
    let mut table = Table::new(None, head);
    for number in 1..=last_minute(routing).min(MINUTES_MAX) {
        let clients = routing.minutes.iter().find(|one| one.minute == number).copied();
        let clients = clients.unwrap_or_default();
        let mut row = vec![number.to_string()];
        row.extend(published.iter().map(|qos| count(clients.published[*qos])));
        row.extend(received.iter().map(|qos| count(clients.received[*qos])));
        for sink in &routing.sinks {
            let minute = sink.minutes.iter().find(|one| one.minute == number).copied();
            row.extend(cells(&minute.unwrap_or_default()));
        }
        table.add(row);
    }
    table
}

fn last_minute(routing: &Routing) -> u32 {
    let clients = routing.minutes.iter().map(|minute| minute.minute);
    let sinks = routing.sinks.iter().flat_map(|sink| &sink.minutes).map(|minute| minute.minute);
    clients.chain(sinks).max().unwrap_or(0)
}

fn cells(minute: &SinkMinute) -> [String; 5] {
    let LatencyPoint { p50_us, p90_us, p99_us, max_us, count: all, .. } = minute.latency;
    let shown = |us: u64| if all > 0 { micros(us as f64) } else { "–".to_owned() };
    [count(minute.received), shown(p50_us), shown(p90_us), shown(p99_us), shown(max_us)]
}

const MINUTES: &str = "Messages per minute";
/// Rows of a page.
const MINUTES_MAX: u32 = 240;
const MINUTES_NOTE: &str = "The first 240 minutes. The results as JSON have all.";
const SINKS_NOTE: &str = "A sink must receive each message of its topics once. At QoS 1 and 2 only \
     acknowledged messages are expected. A message that did not arrive until the end of the wait \
     is lost. Latency counts from the time at which a message was due.";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{html, markdown, summary};
    use flock_measure::sample;

    #[test]
    fn a_run_with_sinks_has_the_tables_of_event_grids_report() {
        let results = sample::routed();
        let text = markdown(&results);
        for row in [
            "| hub | topic t of Kafka at 127.0.0.1:9092 | 55,000 | 54,997 | 1,000 | 3 | 2 | 1 | 0 |",
            "| hub | pub-7 | d2c/7 | 3 | 0 | 0 | 5 to 6, 9 |",
            "| sink hub | 55,000 | 3 | 1.50 ms | 1.50 ms | 1.50 ms | 65",
            "| 1 | 55,000 | 54,998 | 55,000 | 1.50 ms |",
            "| 2 | 0 | 0 | 0 | – |",
        ] {
            assert!(text.contains(row), "{row} is not in {text}");
        }
        let page = html(&results);
        assert!(page.contains("Messages per minute") && page.contains("Published, QoS 1"));
        let bad = "sink hub: 3 lost, 2 duplicated, 1 out of order in 55,000 messages";
        assert!(page.contains(bad));
        let words = summary(&results);
        assert!(words.contains(bad) && words.contains("2,000/s"), "{words}");
    }

    #[test]
    fn a_run_without_sinks_has_none_of_it() {
        assert_eq!(sections(&sample::results(1.0)).len(), 0);
        assert!(!html(&sample::results(1.0)).contains("Routed messages"));
    }
}
