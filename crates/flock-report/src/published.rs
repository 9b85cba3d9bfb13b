//! The figures published for a scenario, beside ours.

use flock_measure::figures::Figures;
use flock_measure::text::{bytes, micros, number};
use flock_measure::{LatencyKind, Results};
use flock_model::catalogue;
use flock_model::scenario::{Choice, Published};

/// Figures published for the scenario of `results`; empty for a scenario that is not built in.
pub fn published(results: &Results) -> Vec<Published> {
    catalogue::find(&results.scenario.id, &Choice::default())
        .map(|loaded| loaded.published)
        .unwrap_or_default()
}

/// What has to be said wherever the two stand side by side.
pub const HARDWARE_DIFFERS: &str = "Published results come from other hardware, other \
     load tools and often another scale. They are not a comparison of brokers.";

/// Ours and theirs, ours first. Of the figures that few publish only those are columns that
/// somebody did for this scenario.
pub(super) struct Beside {
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl Beside {
    pub(super) fn of(results: &Results, all: &[Published]) -> Self {
        let ours = Measured::of(results);
        let is_shown = |(_, always, _, theirs): &&Column| {
            *always || all.iter().any(|figure| theirs(figure).is_some())
        };
        let columns: Vec<&Column> = COLUMNS.iter().filter(is_shown).collect();
        let row = |name: String, cells: Vec<Option<String>>, words: String| {
            let mut row = vec![name];
            row.extend(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "–".to_owned())));
            row.push(words);
            row
        };
        let mut head = vec!["System"];
        head.extend(columns.iter().map(|column| column.0));
        head.push("Hardware and notes");
        let cells = columns.iter().map(|column| column.2(&ours)).collect();
        let mut rows = vec![row(own_name(results), cells, own_hardware(results))];
        for figure in all {
            let cells = columns.iter().map(|column| column.3(figure)).collect();
            let words: Vec<&str> = [figure.hardware.as_str(), figure.note.as_str()]
                .into_iter()
                .filter(|w| !w.is_empty())
                .collect();
            rows.push(row(figure.system.clone(), cells, words.join("; ")));
        }
        Self { head, rows }
    }
}

fn own_name(results: &Results) -> String {
    match results.broker.name.as_str() {
        "" => "this run".to_owned(),
        name => format!("{name} {} (this run)", results.broker.version),
    }
}

fn own_hardware(results: &Results) -> String {
    let scale = match results.scenario.scale {
        1.0 => String::new(),
        scale => format!(", scale {}", number(scale)),
    };
    format!("{}, {} cores{scale}", results.machine.cpu, results.machine.cores)
}

/// What there is of a run to stand beside what was published.
struct Measured {
    figures: Figures,
    ack_average_us: Option<f64>,
    ack_p95_us: Option<f64>,
}

impl Measured {
    fn of(results: &Results) -> Self {
        let ack = results.latency_merged(LatencyKind::PublishAck);
        let summary = (!ack.is_empty()).then(|| ack.summary());
        Self {
            figures: Figures::of(results),
            ack_average_us: summary.map(|summary| summary.average_us),
            ack_p95_us: summary.map(|summary| summary.p95_us as f64),
        }
    }
}

/// Its name, whether it is there when nobody published such a figure, ours and theirs.
type Column =
    (&'static str, bool, fn(&Measured) -> Option<String>, fn(&Published) -> Option<String>);

fn ms(value: Option<f64>) -> Option<String> {
    value.map(|ms| micros(ms * 1000.0))
}

fn megabytes(value: Option<f64>) -> Option<String> {
    value.map(|mb| bytes(mb * 1e6))
}

/// Cores, where it is known how many there were; per cent of the machine otherwise.
fn cpu(figure: &Published, percent: Option<f64>) -> Option<String> {
    percent.map(|percent| match figure.vcpus {
        Some(vcpus) => cores(percent * vcpus),
        None => format!("{} %", number(percent)),
    })
}

fn cores(percent: f64) -> String {
    format!("{} cores", number(percent / 100.0))
}

const COLUMNS: [Column; 15] = [
    (
        "Published/s",
        true,
        |o| o.figures.published_per_sec.map(number),
        |p| p.published_per_sec.map(number),
    ),
    (
        "Received/s",
        true,
        |o| o.figures.received_per_sec.map(number),
        |p| p.received_per_sec.map(number),
    ),
    ("Average", true, |o| o.figures.average_us.map(micros), |p| ms(p.average_ms)),
    ("p50", true, |o| o.figures.p50_us.map(micros), |p| ms(p.p50_ms)),
    ("p75", false, |o| o.figures.p75_us.map(micros), |p| ms(p.p75_ms)),
    ("p90", false, |o| o.figures.p90_us.map(micros), |p| ms(p.p90_ms)),
    ("p95", false, |o| o.figures.p95_us.map(micros), |p| ms(p.p95_ms)),
    ("p99", true, |o| o.figures.p99_us.map(micros), |p| ms(p.p99_ms)),
    ("Maximum", false, |o| o.figures.max_us.map(micros), |p| ms(p.max_ms)),
    ("Acknowledged, average", false, |o| o.ack_average_us.map(micros), |p| ms(p.ack_average_ms)),
    ("Acknowledged, p95", false, |o| o.ack_p95_us.map(micros), |p| ms(p.ack_p95_ms)),
    ("CPU", true, |o| o.figures.cpu_average_percent.map(cores), |p| cpu(p, p.cpu_average_percent)),
    (
        "CPU, maximum",
        false,
        |o| o.figures.cpu_max_percent.map(cores),
        |p| cpu(p, p.cpu_max_percent),
    ),
    (
        "Memory",
        true,
        |o| o.figures.memory_average_bytes.map(bytes),
        |p| megabytes(p.memory_average_mb),
    ),
    (
        "Memory, maximum",
        false,
        |o| o.figures.memory_max_bytes.map(bytes),
        |p| megabytes(p.memory_max_mb),
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;

    #[test]
    fn every_figure_that_was_published_is_in_the_table() {
        for entry in catalogue::entries() {
            let all = entry.load().unwrap().published;
            let beside = Beside::of(&sample::results(1.0), &all);
            for (figure, row) in all.iter().zip(&beside.rows[1..]) {
                assert_eq!(row.len(), beside.head.len(), "{}", entry.id);
                let words = row.join(" | ");
                let stated = serde_json::to_value(figure).unwrap();
                for (name, value) in stated.as_object().unwrap() {
                    let Some(value) = value.as_f64().filter(|_| name != "vcpus") else { continue };
                    let shown = match name.rsplit('_').next() {
                        Some("sec") => number(value),
                        Some("ms") => micros(value * 1000.0),
                        Some("mb") => bytes(value * 1e6),
                        Some("percent") => cpu(figure, Some(value)).unwrap(),
                        unit => panic!("{name} has the unit {unit:?}, which nobody shows"),
                    };
                    assert!(words.contains(&shown), "{}: {name} {shown}: {words}", entry.id);
                }
            }
        }
    }

    #[test]
    fn what_nobody_published_is_no_column() {
        let rabbit = catalogue::find("RABBIT-Q1", &Choice::default()).unwrap().published;
        let head = Beside::of(&sample::results(1.0), &rabbit).head;
        assert!(head.contains(&"Maximum") && head.contains(&"Acknowledged, average"), "{head:?}");
        assert!(!head.contains(&"Acknowledged, p95"), "{head:?}");
    }
}
