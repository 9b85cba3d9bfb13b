//! How long something took, each time it was done: a histogram for `/metrics`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A histogram of durations, with the longest. A cache line of its own: others write their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Timing {
    /// One for each bound, and one for what is above all.
    counts: [AtomicU64; BOUNDS_MICROS.len() + 1],
    sum_nanos: AtomicU64,
    longest_nanos: AtomicU64,
}

impl Timing {
    pub(super) fn note(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        let place = BOUNDS_MICROS.partition_point(|bound| bound * 1000 < nanos);
        self.counts[place].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
        if self.longest_nanos.load(Ordering::Relaxed) < nanos {
            self.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// Adds up what several have noted.
    pub fn sum<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let sum = Self::default();
        for one in all {
            for (to, from) in sum.counts.iter().zip(&one.counts) {
                to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            sum.sum_nanos.fetch_add(one.sum_nanos.load(Ordering::Relaxed), Ordering::Relaxed);
            let longest_nanos = one.longest_nanos.load(Ordering::Relaxed);
            sum.longest_nanos.fetch_max(longest_nanos, Ordering::Relaxed);
        }
        sum
    }

    /// For each bound, in seconds, how many took at most so long; the last is all of them.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let mut sum = 0;
        let bounds = BOUNDS_MICROS.iter().map(|micros| *micros as f64 / 1e6);
        let bounds = bounds.chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed));
        bounds
            .zip(counts)
            .map(|(bound, count)| {
                sum += count;
                (bound, sum)
            })
            .collect()
    }

    pub(super) fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    pub fn sum_secs(&self) -> f64 {
        self.sum_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }

    pub fn longest_secs(&self) -> f64 {
        self.longest_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }
}

const BOUNDS_MICROS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 500_000, 2_000_000];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_below_their_bounds() {
        let timing = Timing::default();
        for micros in [100, 101, 3_000_000] {
            timing.note(Duration::from_micros(micros));
        }
        let cumulative = timing.cumulative();
        assert_eq!(cumulative[0], (0.0001, 1));
        assert_eq!(cumulative[1], (0.00025, 2));
        assert_eq!(cumulative[11], (2.0, 2));
        assert_eq!(cumulative[12], (f64::INFINITY, 3));
        assert!((timing.sum_secs() - 3.000_201).abs() < 1e-9);
        assert!((timing.longest_secs() - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_sum_has_the_counts_of_all_and_the_longest_of_them() {
        let all = [Timing::default(), Timing::default()];
        all[0].note(Duration::from_micros(50));
        all[1].note(Duration::from_micros(70));
        let sum = Timing::sum(&all);
        assert_eq!(sum.cumulative()[0], (0.0001, 2));
        assert!((sum.sum_secs() - 0.000_12).abs() < 1e-9);
        assert!((sum.longest_secs() - 0.000_07).abs() < 1e-9);
    }
}
