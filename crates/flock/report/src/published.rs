//! The figures published for a scenario, beside ours.

use crate::columns::{
    ACK_AVG, ACK_P95, AVERAGE, CONN_TIME, CONNECTED, CONNECTS, CPU_AVG, CPU_MAX, Column, MAX,
    MEMORY_AVG, MEMORY_MAX, MEMORY_ONE, P50, P75, P90, P95, P99, PUBLISHED, RECEIVED,
};
use crate::likeness::Likeness;
use crate::table::{Cell, Table};
use flock_measure::Results;
use flock_measure::text::number;
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
    pub table: Table,
    /// How the run differs from the published ones; empty where it does not.
    pub difference: String,
}

impl Beside {
    pub(super) fn of(results: &Results, all: &[Published]) -> Self {
        Self::with(Some(results), all, &Likeness::of(results))
    }

    /// Theirs, below those of `ours` if there is such a run.
    pub(super) fn with(ours: Option<&Results>, all: &[Published], likeness: &Likeness) -> Self {
        let is_shown = |column: &&&Column| {
            ALWAYS.contains(&column.key) || all.iter().any(|figure| column.was_published(figure))
        };
        let columns: Vec<&&Column> = COLUMNS.iter().filter(is_shown).collect();
        let names = columns.iter().map(|column| column.name);
        let head = ["System"].into_iter().chain(names).chain(["Hardware and notes"]);
        let mut table = Table::new(Some("notes"), head);
        if let Some(ours) = ours {
            let cells = columns.iter().map(|column| column.spread(&[ours]));
            let name = [own_name(ours).into()].into_iter();
            table.add_ours(name.chain(cells).chain([own_hardware(ours).into()]));
        }
        for figure in all {
            let cells = columns.iter().map(|column| column.theirs(figure, likeness));
            let name = [Cell::from(figure.system.as_str())].into_iter();
            table.add(name.chain(cells).chain([hardware_words(figure).into()]));
        }
        Self { table, difference: likeness.words() }
    }
}

pub(super) fn hardware_words(figure: &Published) -> String {
    let words = [figure.hardware.as_str(), figure.note.as_str()];
    words.into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join("; ")
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

const COLUMNS: [&Column; 19] = [
    PUBLISHED, RECEIVED, CONNECTS, CONNECTED, CONN_TIME, AVERAGE, P50, P75, P90, P95, P99, MAX,
    ACK_AVG, ACK_P95, CPU_AVG, CPU_MAX, MEMORY_AVG, MEMORY_MAX, MEMORY_ONE,
];
/// Columns also where nobody published such a figure.
const ALWAYS: [&str; 7] =
    [PUBLISHED.key, RECEIVED.key, AVERAGE.key, P50.key, P99.key, CPU_AVG.key, MEMORY_AVG.key];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_measure::sample;
    use flock_measure::text::{bytes, micros};

    fn in_words(row: &crate::table::Row) -> String {
        row.cells.iter().map(Cell::words).collect::<Vec<_>>().join(" | ")
    }

    #[test]
    fn every_figure_that_was_published_is_in_the_table() {
        for entry in catalogue::entries() {
            let all = entry.load().unwrap().published;
            let beside = Beside::of(&sample::results(1.0), &all);
            for (figure, row) in all.iter().zip(&beside.table.rows[1..]) {
                assert_eq!(row.cells.len(), beside.table.head.len(), "{}", entry.id);
                let words = in_words(row);
                let stated = serde_json::to_value(figure).unwrap();
                for (name, value) in stated.as_object().unwrap() {
                    let Some(value) = value.as_f64().filter(|_| name != "vcpus") else { continue };
                    let shown = match name.rsplit('_').next() {
                        Some("sec" | "connections") => number(value),
                        Some("secs") => micros(value * 1e6),
                        Some("kb") => bytes(value * 1e3),
                        Some("ms") => micros(value * 1000.0),
                        Some("mb") => bytes(value * 1e6),
                        Some("percent") => format!("{} %", number(value)),
                        unit => panic!("{name} has the unit {unit:?}, which nobody shows"),
                    };
                    assert!(words.contains(&shown), "{}: {name} {shown}: {words}", entry.id);
                }
            }
        }
    }

    #[test]
    fn figures_of_the_full_scale_are_marked_beside_a_run_of_another() {
        let mut results = sample::results(1.0);
        results.scenario.id = "MB-E1".into();
        results.scenario.scale = 0.02;
        results.scenario.overrides.insert("scale".into(), "0.02".into());
        let beside = Beside::of(&results, &published(&results));
        let words = in_words(&beside.table.rows[1]);
        for part in [
            "1,000/s (scaled from 50,000/s)",
            "1.58 ms (full scale)",
            "80 % (12.8 cores) (full scale)",
            "5.02 GB (full scale)",
        ] {
            assert!(words.contains(part), "{part}: {words}");
        }
        assert!(beside.difference.contains("scale 0.02, 55 s instead of 30 min"));
        for text in [crate::html(&results), crate::markdown(&results)] {
            assert!(text.contains("scale 0.02, 55 s instead of 30 min"));
        }
    }

    #[test]
    fn what_nobody_published_is_no_column() {
        let rabbit = catalogue::find("RABBIT-Q1", &Choice::default()).unwrap().published;
        let head = Beside::of(&sample::results(1.0), &rabbit).table.head;
        let has = |name: &str| head.iter().any(|known| known == name);
        assert!(has("Maximum") && has("Acknowledged, average"), "{head:?}");
        assert!(!has("Acknowledged, p95"), "{head:?}");
    }
}
