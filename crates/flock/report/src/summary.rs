//! The end of a run in a few lines, for the terminal.

use std::fmt::Write as _;

use super::sections::searches;
use flock_measure::figures::{
    Figures, Verdict, headline, others_unknown_words, unjudged_words, verdicts,
};
use flock_measure::text::{bytes, count, micros, number, seconds};
use flock_measure::{ErrorCount, Results};

pub fn summary(results: &Results) -> String {
    let figures = Figures::of(results);
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |name: &str, value: String| {
        // One blank at least: some kinds of latency have long names.
        let _ = writeln!(out, "{name:<21} {value}");
    };
    // What speaks against a run is said before any figure of it.
    let unknown = [others_unknown_words(results), unjudged_words(results)];
    let is_first = |(is, words): &(Verdict, String)| {
        *is == Verdict::Bad || unknown.iter().flatten().any(|unknown| unknown == words)
    };
    let (first, last): (Vec<_>, Vec<_>) = verdicts(results).into_iter().partition(is_first);
    for (is, words) in first {
        line(is.word(), words);
    }
    line("scenario", format!("{}, scale {}", results.scenario.id, number(results.scenario.scale)));
    line("duration", seconds(results.run.duration_secs));
    line("connections", count(figures.connections_max));
    if let (Some(published), Some(received)) = (figures.published_per_sec, figures.received_per_sec)
    {
        line("published, received", format!("{}/s, {}/s", number(published), number(received)));
    } else if let Some(published) = figures.published_per_sec {
        let all = count(results.totals.published_all());
        line("published", format!("{all} messages, {}/s", number(published)));
    } else if let Some(received) = figures.received_per_sec {
        let all = count(results.totals.received_all());
        line("received", format!("{all} messages, {}/s", number(received)));
    }
    if let Some(routed) = figures.routed_per_sec {
        line("routed", format!("{}/s", number(routed)));
    }
    if figures.average_us.is_some() || figures.latency_missing > 0 {
        let name = format!("latency, {}", headline(results).title());
        let [average, p50, p75, p95, p99, max] = [
            figures.average_us,
            figures.p50_us,
            figures.p75_us,
            figures.p95_us,
            figures.p99_us,
            figures.max_us,
        ]
        .map(|us| us.map_or("unknown".to_owned(), micros));
        let value =
            format!("average {average}, p50 {p50}, p75 {p75}, p95 {p95}, p99 {p99}, max {max}");
        line(&name, value);
    }
    for (name, value) in broker_cost(results, &figures) {
        line(name, value);
    }
    if let Some(slope) = figures.memory_slope {
        line("memory slope", slope.words());
    }
    for (name, words) in searches(results) {
        line(name, words);
    }
    for (is, words) in last {
        line(is.word(), words);
    }
    for words in &results.validity.notes {
        line("note", words.clone());
    }
    for error in results.errors.iter().take(5) {
        let ErrorCount { what, reason, client, .. } = error;
        line("error", format!("{} x {what}: {reason} (first: {client})", count(error.count)));
    }
    out
}

fn broker_cost(results: &Results, figures: &Figures) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(cost) = figures.cpu_us_per_message {
        let step = results.broker_load.as_ref().map_or(0.0, |load| load.cpu_resolution_us);
        let resolution =
            if step > 0.0 { format!(" (resolution {})", micros(step)) } else { String::new() };
        let value = format!("{} us per message received{resolution}", number(cost));
        lines.push(("broker CPU", value));
    } else if results.broker_load.is_some() && results.totals.received_all() > 0 {
        let value = "unknown: not available, or below the resolution of the clock";
        lines.push(("broker CPU", value.to_owned()));
    }
    if let Some(memory) = figures.memory_max_bytes {
        let each = figures
            .memory_per_connection_bytes
            .map_or(String::new(), |each| format!(", {} per connection", bytes(each)));
        lines.push(("broker memory", format!("{} at most{each}", bytes(memory))));
    }
    lines
}
