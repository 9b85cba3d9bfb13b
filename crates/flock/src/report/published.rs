//! The figures published for a scenario, beside ours.

use super::figures::Figures;
use super::text::{bytes, micros, number};
use crate::catalogue;
use crate::measure::Results;
use crate::scenario::{Choice, Published};

/// Figures published for the scenario of `results`; empty for a scenario that is not built in.
pub fn published(results: &Results) -> Vec<Published> {
    catalogue::find(&results.scenario.id, &Choice::default())
        .map(|loaded| loaded.published)
        .unwrap_or_default()
}

/// What has to be said wherever the two stand side by side.
pub(super) const HARDWARE_DIFFERS: &str = "The published figures were taken on other hardware, with other load tools and often another scale. \
They show what the scenario looked like there; they are not a comparison of brokers.";

pub(super) const HEAD: [&str; 10] = [
    "System",
    "Published/s",
    "Received/s",
    "Average",
    "p50",
    "p90",
    "p99",
    "CPU",
    "Memory",
    "Hardware and notes",
];

/// The table: ours first.
pub(super) fn rows(results: &Results, all: &[Published]) -> Vec<Vec<String>> {
    let figures = Figures::of(results);
    let rate = |value: Option<f64>| value.map_or("–".to_owned(), number);
    let us = |value: Option<f64>| value.map_or("–".to_owned(), micros);
    let name = match results.broker.name.as_str() {
        "" => "this run".to_owned(),
        name => format!("{name} {} (this run)", results.broker.version),
    };
    let scale = match results.scenario.scale {
        1.0 => String::new(),
        scale => format!(", scale {}", number(scale)),
    };
    let mut rows = vec![vec![
        name,
        rate(figures.published_per_sec),
        rate(figures.received_per_sec),
        us(figures.average_us),
        us(figures.p50_us),
        us(figures.p90_us),
        us(figures.p99_us),
        figures
            .cpu_average_percent
            .map_or("–".to_owned(), |p| format!("{} cores", number(p / 100.0))),
        figures.memory_average_bytes.map_or("–".to_owned(), bytes),
        format!("{}, {} cores{scale}", results.machine.cpu, results.machine.cores),
    ]];
    for figure in all {
        let ms = |value: Option<f64>| us(value.map(|ms| ms * 1000.0));
        let cpu = figure.cpu_average_percent.map(|percent| match figure.vcpus {
            Some(vcpus) => format!("{} cores", number(percent * vcpus / 100.0)),
            None => format!("{} %", number(percent)),
        });
        let memory = figure.memory_average_mb.or(figure.memory_max_mb).map(|mb| bytes(mb * 1e6));
        let words: Vec<&str> = [figure.hardware.as_str(), figure.note.as_str()]
            .into_iter()
            .filter(|w| !w.is_empty())
            .collect();
        rows.push(vec![
            figure.system.clone(),
            rate(figure.published_per_sec),
            rate(figure.received_per_sec),
            ms(figure.average_ms),
            ms(figure.p50_ms),
            ms(figure.p90_ms),
            ms(figure.p99_ms),
            cpu.unwrap_or("–".to_owned()),
            memory.unwrap_or("–".to_owned()),
            words.join("; "),
        ]);
    }
    rows
}
