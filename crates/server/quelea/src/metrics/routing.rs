//! Metrics of streams and rules.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use broker::MetricType;
use routing::Outcome;
use streams::{ConsumerView, State, StreamView};

use super::{head, write_one};
use crate::run::{RoutingFigures, RuleFigures, StreamFigures};

/// Streams, and rules, with series of their own. The others are summed under an empty name.
pub(crate) const NAMED_MAX: usize = 100;

/// Nothing where no streams are configured.
pub(super) fn write_routing(text: &mut String, figures: &RoutingFigures) {
    let help = "Memory of messages of all streams that are in no file yet.";
    write_one(text, "quelea_streams_memory_bytes", MetricType::Gauge, help, figures.memory_bytes);
    write_streams(text, &figures.streams);
    write_rules(text, &figures.rules);
}

/// A value of each stream.
type OfStream = fn(&StreamView) -> u64;

const OF_STREAMS: [(&str, MetricType, &str, OfStream); 6] = [
    (
        "stored_messages_total",
        MetricType::Counter,
        "Messages that a stream has ever stored, also before the start.",
        |view| view.stored,
    ),
    ("file_messages", MetricType::Gauge, "Messages in the files of a stream.", |view| view.records),
    ("file_bytes", MetricType::Gauge, "Bytes of the files of a stream.", |view| view.bytes),
    (
        "log_messages",
        MetricType::Gauge,
        "Messages of a stream that are in the durable log and in no file yet.",
        |view| view.unmoved,
    ),
    ("full", MetricType::Gauge, "1 while a stream refuses messages at a limit.", |view| {
        view.is_full.into()
    }),
    (
        "write_fault",
        MetricType::Gauge,
        "1 while the files of a stream cannot be written.",
        |view| view.fault.is_some().into(),
    ),
];

fn write_streams(text: &mut String, streams: &[StreamFigures]) {
    let series = named(streams, |own| (own.view.stream.0, own.spec.name.clone()));
    for (end, kind, help, value) in OF_STREAMS {
        let name = format!("quelea_stream_{end}");
        head(text, &name, kind, help);
        for (stream, own) in &series {
            let sum: u64 = own.iter().map(|own| value(&own.view)).sum();
            let _ = writeln!(text, "{name}{{stream=\"{stream}\"}} {sum}");
        }
    }
}

/// A value of each rule.
type OfRule = fn(&ConsumerView) -> u64;

const OF_RULES: [(&str, MetricType, &str, OfRule); 5] = [
    (
        "in_flight_messages",
        MetricType::Gauge,
        "Messages of a rule that are sent and not answered, or are retried.",
        |view| view.sum.in_flight,
    ),
    (
        "pending_messages",
        MetricType::Gauge,
        "Messages of its stream that a rule has not dealt with yet, without those in flight.",
        |view| view.sum.pending,
    ),
    ("batches_total", MetricType::Counter, "Batches that a rule has sent.", |view| {
        view.counters.batches
    }),
    (
        "failed_batches_total",
        MetricType::Counter,
        "Batches of a rule that the target did not accept as a whole.",
        |view| view.counters.failed_batches,
    ),
    (
        "sent_messages_total",
        MetricType::Counter,
        "Messages in the batches of a rule, each retry included.",
        |view| view.counters.sent,
    ),
];

fn write_rules(text: &mut String, rules: &[RuleFigures]) {
    let series = named(rules, |own| (own.view.consumer.0, own.name().to_owned()));
    let name = "quelea_rule_messages_total";
    head(text, name, MetricType::Counter, OUTCOMES_HELP);
    for (rule, own) in &series {
        for outcome in Outcome::ALL {
            let sum: u64 = own.iter().map(|own| own.view.counters.total(outcome)).sum();
            let labels = format!("rule=\"{rule}\",outcome=\"{}\"", outcome.name());
            let _ = writeln!(text, "{name}{{{labels}}} {sum}");
        }
    }
    for (end, kind, help, value) in OF_RULES {
        let name = format!("quelea_rule_{end}");
        head(text, &name, kind, help);
        for (rule, own) in &series {
            let sum: u64 = own.iter().map(|own| value(&own.view)).sum();
            let _ = writeln!(text, "{name}{{rule=\"{rule}\"}} {sum}");
        }
    }
    let name = "quelea_rule_lag_seconds";
    let help = "Age of the oldest message of a rule without an outcome; 0: there is none, or it \
                was not read yet. With an empty name: the greatest.";
    head(text, name, MetricType::Gauge, help);
    for (rule, own) in &series {
        let lag_ms = own.iter().filter_map(|own| own.view.lag_ms).max().unwrap_or_default();
        let _ = writeln!(text, "{name}{{rule=\"{rule}\"}} {}", lag_ms as f64 / 1000.0);
    }
    let name = "quelea_rule_state";
    head(text, name, MetricType::Gauge, STATE_HELP);
    for (rule, own) in &series {
        for state in State::NAMES {
            let count = own.iter().filter(|own| own.view.state.name() == state).count();
            let _ = writeln!(text, "{name}{{rule=\"{rule}\",state=\"{state}\"}} {count}");
        }
    }
}

const OUTCOMES_HELP: &str = "Messages of its stream that a rule has dealt with, by outcome. Not \
     for it: its filter does not match (not_matched). Skipped: a condition does not hold \
     (skipped_condition), or the message has expired (skipped_expired). The target has \
     acknowledged it (delivered). Not delivered: it is in the dead-letter stream (dead_lettered), \
     or there is none (given_up). Dropped ahead of delivery: by a limit of the stream \
     (dropped_retention), or with a damaged file (dropped_damaged).";

const STATE_HELP: &str = "1 for the present state of a rule, 0 for the others. With an empty name: \
     rules in this state.";

/// The oldest, which have the lowest numbers, each with its name, and the rest together.
fn named<T>(all: &[T], of: impl Fn(&T) -> (u32, String)) -> BTreeMap<String, Vec<&T>> {
    let mut oldest: Vec<(u32, String, &T)> = Vec::with_capacity(all.len());
    oldest.extend(all.iter().map(|own| {
        let (number, name) = of(own);
        (number, name, own)
    }));
    oldest.sort_by_key(|(number, ..)| *number);
    let mut series: BTreeMap<String, Vec<&T>> = BTreeMap::new();
    for (place, (_, name, own)) in oldest.into_iter().enumerate() {
        let name = if place < NAMED_MAX { name } else { String::new() };
        series.entry(name).or_default().push(own);
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_have_names_and_the_rest_is_summed() {
        let all: Vec<u32> = (0..NAMED_MAX as u32 + 7).rev().collect();
        let series = named(&all, |number| (*number, format!("{number:03}")));
        assert_eq!(series.len(), NAMED_MAX + 1);
        assert_eq!(series["099"], [&99]);
        assert_eq!(series[""].len(), 7);
        let few = named(&all[..NAMED_MAX], |number| (*number, number.to_string()));
        assert!(!few.contains_key(""));
    }
}
