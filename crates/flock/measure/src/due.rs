//! Latency of all that was due, and not only of what came: a broker that drops what it cannot
//! deliver in time is not faster for it.

use crate::text::{count, number};
use crate::{LatencyHistogram, LatencyKind, Results};

/// Latencies, with how many of them have no end.
#[derive(Clone, Debug, Default)]
pub struct Due {
    pub histogram: LatencyHistogram,
    /// Due, and in no percentile: never arrived, refused, or not let in.
    pub missing: u64,
    /// Of those in the histogram: lower bounds.
    pub unfinished: u64,
}

impl Due {
    /// Of every QoS of a kind.
    pub fn of(results: &Results, kind: LatencyKind) -> Self {
        let mut due = Self { histogram: results.latency_merged(kind), ..Self::default() };
        for latency in results.latencies.iter().filter(|latency| latency.kind == kind) {
            due.missing += latency.missing;
            due.unfinished += latency.unfinished;
        }
        // What got lost at rates that failed was due at none that figures are of.
        if matches!(kind, LatencyKind::EndToEnd | LatencyKind::Routed) {
            due.missing = due.missing.saturating_sub(results.lost_beyond());
        }
        due
    }

    pub fn merge(&mut self, other: &Self) {
        self.histogram.merge(&other.histogram);
        self.missing += other.missing;
        self.unfinished += other.unfinished;
    }

    pub fn total(&self) -> u64 {
        self.histogram.count() + self.missing
    }

    /// The latency that this share of all that was due did not exceed; `None` where it is that of
    /// something that never came.
    pub fn micros_at(&self, percentile: f64) -> Option<u64> {
        if self.missing == 0 {
            return (!self.histogram.is_empty()).then(|| self.histogram.micros_at(percentile));
        }
        let came = self.histogram.count() as f64;
        let rank = percentile / 100.0 * self.total() as f64;
        (came > 0.0 && rank <= came)
            .then(|| self.histogram.micros_at((rank / came * 100.0).min(100.0)))
    }

    /// Whether the value at a percentile may be that of something without an end, which is not less
    /// than it.
    pub fn is_open_at(&self, percentile: f64) -> bool {
        let open = (self.missing + self.unfinished) as f64;
        open > (1.0 - percentile / 100.0) * self.total() as f64
    }

    /// `10 of 200 (5 %)`, of what is in no percentile.
    pub fn missing_words(&self) -> Option<String> {
        share_words(self.missing, self.total())
    }

    /// The same of all that has no end.
    pub fn open_words(&self) -> Option<String> {
        share_words(self.missing + self.unfinished, self.total())
    }
}

fn share_words(part: u64, total: u64) -> Option<String> {
    let percent = part as f64 * 100.0 / total.max(1) as f64;
    let share = || format!("{} of {} ({} %)", count(part), count(total), number(percent));
    (part > 0).then(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(came: u64, missing: u64, unfinished: u64) -> Due {
        let mut due = Due { missing, unfinished, ..Due::default() };
        (1..=came).for_each(|us| due.histogram.record_micros_n(us, 1));
        due
    }

    #[test]
    fn what_never_came_counts_as_slower_than_all_that_did() {
        let half = due(500, 500, 0);
        assert_eq!((half.micros_at(50.0), half.micros_at(25.0)), (Some(500), Some(250)));
        assert_eq!((half.micros_at(50.2), half.micros_at(100.0)), (None, None));
        // Just as much as the percentile leaves out.
        let few = due(990, 10, 0);
        assert_eq!((few.micros_at(99.0), few.micros_at(99.9)), (Some(990), None));
        assert!(!few.is_open_at(99.0) && few.is_open_at(99.9));
        let all = due(1_000, 0, 0);
        assert_eq!(all.micros_at(99.0), Some(all.histogram.micros_at(99.0)));
        assert_eq!((due(0, 0, 0).micros_at(50.0), due(0, 5, 0).micros_at(50.0)), (None, None));
        assert_eq!(due(190, 10, 0).missing_words().unwrap(), "10 of 200 (5 %)");
        assert_eq!(all.missing_words(), None);
    }

    #[test]
    fn what_has_not_come_yet_is_a_lower_bound() {
        let waits = due(100, 0, 2);
        assert!(waits.micros_at(99.0).is_some() && waits.is_open_at(99.0));
        assert!(!waits.is_open_at(98.0) && waits.is_open_at(100.0));
        assert!(!due(100, 0, 0).is_open_at(100.0));
    }
}
