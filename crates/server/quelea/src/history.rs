//! The last hours of the metrics, for the management API: a ring of samples in memory.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{MetricType, Metrics, Shared};
use session::MemoryKind;

use crate::run::{FIGURES, JournalBoard, Timing};
use base::{memory, resident_bytes};

/// Time between two samples.
pub const INTERVAL_SECS: u64 = 10;

/// Samples that are kept, 6 hours of them. The oldest is dropped. With eight bytes for each series
/// (about 130) the ring has less than [`BYTES_MAX`].
pub const SAMPLES_MAX: usize = 2_160;

/// The most memory of the ring.
pub const BYTES_MAX: usize = 3 << 20;

/// What is sampled, and the samples.
#[derive(Debug)]
pub struct History {
    series: Vec<Series>,
    sources: Sources,
    ring: Mutex<VecDeque<Sample>>,
    /// When the next sample is due.
    due_ms: AtomicU64,
}

/// What the values are read from.
#[derive(Clone, Debug)]
pub struct Sources {
    pub shared: Arc<Shared>,
    pub board: Arc<JournalBoard>,
    /// Of each worker.
    pub turns: Arc<[Timing]>,
}

/// A metric with its labels, as `/metrics` names it, without the shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    pub name: String,
    pub kind: MetricType,
}

/// The values of all series at a time, in the order of the series.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Broker time.
    pub at_ms: u64,
    pub values: Box<[u64]>,
}

impl History {
    pub fn new(sources: Sources) -> Self {
        let series = series_of(&sources);
        Self { series, sources, ring: Mutex::default(), due_ms: AtomicU64::new(0) }
    }

    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Takes a sample if one is due.
    pub fn look(&self, now_ms: u64) {
        if now_ms < self.due_ms.load(Ordering::Relaxed) {
            return;
        }
        self.due_ms.store(now_ms + INTERVAL_SECS * 1000, Ordering::Relaxed);
        let sample = Sample { at_ms: now_ms, values: self.values().into() };
        let mut ring = self.lock();
        if ring.len() == SAMPLES_MAX {
            ring.pop_front();
        }
        ring.push_back(sample);
    }

    /// The present values.
    pub fn values(&self) -> Vec<u64> {
        let Sources { shared, board, turns } = &self.sources;
        let mut values: Vec<u64> = vec![0; Metrics::descriptions().len()];
        for own in &shared.metrics {
            for (sum, value) in values.iter_mut().zip(own.values()) {
                *sum = sum.wrapping_add(value);
            }
        }
        values.push(memory::held_bytes());
        values.push(resident_bytes().unwrap_or_default());
        values.extend(MemoryKind::ALL.map(|kind| shared.ledger.bytes(kind)));
        let bucket = |(_, count): (f64, u64)| count;
        values.extend(Timing::sum(turns.iter()).cumulative().into_iter().map(bucket));
        if board.journal_count() > 0 {
            values.extend((0..FIGURES.len()).map(|place| board.figures(place).sum::<u64>()));
            values.extend(board.commits.cumulative().into_iter().map(bucket));
        }
        values
    }

    /// Samples since a time, at most so many: where there are more, they are evenly spread, and the
    /// newest is among them.
    pub fn since(&self, from_ms: u64, points_max: usize) -> Vec<Sample> {
        let ring = self.lock();
        let first = ring.partition_point(|sample| sample.at_ms < from_ms);
        let count = ring.len() - first;
        let step = count.div_ceil(points_max.max(1)).max(1);
        let skipped = count.saturating_sub(1) % step;
        ring.iter().skip(first + skipped).step_by(step).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Sample>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// In the order of [`History::values`].
fn series_of(sources: &Sources) -> Vec<Series> {
    let labelled = |name: &str, label: &str| match label {
        "" => name.to_owned(),
        label => format!("{name}{{{label}}}"),
    };
    let gauge = |name: String| Series { name, kind: MetricType::Gauge };
    let core = Metrics::descriptions()
        .iter()
        .map(|metric| Series { name: labelled(metric.name, metric.label), kind: metric.kind });
    let own = ["quelea_memory_held_bytes", "process_resident_memory_bytes"];
    let parts =
        MemoryKind::ALL.map(|kind| format!("quelea_held_bytes{{kind=\"{}\"}}", kind.name()));
    let mut series: Vec<Series> =
        core.chain(own.map(str::to_owned).map(gauge)).chain(parts.map(gauge)).collect();
    series.extend(buckets("quelea_worker_turn_seconds"));
    if sources.board.journal_count() > 0 {
        series.extend(FIGURES.iter().map(|figure| Series {
            name: format!("quelea_log_{}", figure.name),
            kind: figure.kind,
        }));
        series.extend(buckets("quelea_log_commit_seconds"));
    }
    series
}

fn buckets(name: &str) -> impl Iterator<Item = Series> {
    let bounds = Timing::default().cumulative();
    bounds.into_iter().map(move |(bound, _)| {
        let mut label = String::new();
        let _ = match bound.is_finite() {
            true => write!(label, "{bound}"),
            false => write!(label, "+Inf"),
        };
        Series { name: format!("{name}_bucket{{le=\"{label}\"}}"), kind: MetricType::Counter }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Health;

    fn history(journals: u16) -> History {
        let shared = Shared::new(broker::Settings::default(), broker::Homes::of_one_cell(2), 1);
        let board = Arc::new(JournalBoard::new(journals, Health::new()));
        let turns: Arc<[Timing]> = [Timing::default(), Timing::default()].into();
        History::new(Sources { shared, board, turns })
    }

    #[test]
    fn each_series_has_a_value_and_a_name_of_its_own() {
        for history in [history(0), history(2)] {
            assert_eq!(history.values().len(), history.series().len());
            let mut names: Vec<_> = history.series().iter().map(|it| &it.name).collect();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), history.series().len());
        }
        let history = history(0);
        let place = |name: &str| history.series().iter().position(|it| it.name == name).unwrap();
        history.sources.shared.metrics[0].connections.set(2);
        history.sources.shared.metrics[1].connections.set(3);
        history.sources.shared.metrics[1].dropped_slow.add(7);
        let values = history.values();
        assert_eq!(values[place("quelea_connections")], 5);
        let slow = "quelea_messages_dropped_total{reason=\"slow_subscriber\"}";
        assert_eq!(values[place(slow)], 7);
    }

    #[test]
    fn the_ring_has_the_last_samples_within_its_memory() {
        let history = history(2);
        for number in 0..SAMPLES_MAX as u64 + 10 {
            history.look(number * INTERVAL_SECS * 1000);
            history.look(number * INTERVAL_SECS * 1000 + 1);
        }
        let all = history.since(0, usize::MAX);
        assert_eq!(all.len(), SAMPLES_MAX);
        let last_ms = (SAMPLES_MAX as u64 + 9) * INTERVAL_SECS * 1000;
        assert_eq!((all[0].at_ms, all.last().unwrap().at_ms), (100_000, last_ms));
        let bytes: usize = all.iter().map(|it| size_of::<Sample>() + 8 * it.values.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes}");

        let some = history.since(last_ms - 100_000, 4);
        let times: Vec<u64> = some.iter().map(|sample| last_ms - sample.at_ms).collect();
        assert_eq!(times, [90_000, 60_000, 30_000, 0]);
        assert_eq!(history.since(last_ms, 4).len(), 1);
        assert!(history.since(last_ms + 1, 4).is_empty());
    }
}
