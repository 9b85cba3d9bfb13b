//! Latency client by client, in little memory: who is slower than the rest.

use serde::{Deserialize, Serialize};

use crate::{LatencyHistogram, LatencyKind};

/// The latencies of what one client received: 136 bytes.
#[derive(Clone, Debug)]
pub struct ClientTally {
    count: u32,
    max_us: u32,
    /// Quarters of an octave from [`FINE_US`] on. What is below it, or beyond the last, is not told
    /// apart.
    buckets: [u16; BUCKETS],
}

/// The latency of the messages that one client received in measured stages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientLatency {
    pub client: String,
    /// Routed, or not: of which kind all or most of its messages were.
    pub routed: bool,
    pub count: u64,
    /// Up to a quarter above the true value.
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

impl Default for ClientTally {
    fn default() -> Self {
        Self { count: 0, max_us: 0, buckets: [0; BUCKETS] }
    }
}

impl ClientTally {
    #[inline]
    pub fn record_nanos(&mut self, nanos: u64) {
        let us = u32::try_from(nanos / 1_000).unwrap_or(u32::MAX);
        let at = bucket(us);
        if self.buckets[at] == u16::MAX {
            self.buckets.iter_mut().for_each(|count| *count /= 2);
        }
        self.buckets[at] += 1;
        self.count = self.count.saturating_add(1);
        self.max_us = self.max_us.max(us);
    }

    /// The latency that this share of the messages does not exceed, or a little more.
    fn micros_at(&self, share: f64) -> u64 {
        let all: u64 = self.buckets.iter().map(|&count| u64::from(count)).sum();
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let at = self.buckets.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        let upper = at.and_then(upper_us).unwrap_or(u32::MAX);
        u64::from(upper.min(self.max_us))
    }

    pub fn summary(&self, client: String, routed: bool) -> ClientLatency {
        ClientLatency {
            client,
            routed,
            count: u64::from(self.count),
            p50_us: self.micros_at(0.5),
            p99_us: self.micros_at(0.99),
            max_us: u64::from(self.max_us),
        }
    }

    /// What clients are ranked by.
    pub fn rank(&self) -> (bool, u64, u32) {
        (self.count >= MESSAGES_MIN, self.micros_at(0.5), self.max_us)
    }
}

impl ClientLatency {
    pub fn kind(&self) -> LatencyKind {
        if self.routed { LatencyKind::Routed } else { LatencyKind::EndToEnd }
    }

    /// By how many times its median is that of all clients.
    pub fn times(&self, all: &LatencyHistogram) -> f64 {
        self.p50_us as f64 / all.micros_at(50.0).max(1) as f64
    }

    /// Whether its median stands out from that of all clients.
    pub fn is_apart(&self, all: &LatencyHistogram) -> bool {
        let over_us = self.p50_us.saturating_sub(all.micros_at(50.0));
        let is_many = self.count >= u64::from(MESSAGES_MIN);
        is_many && self.times(all) >= APART_TIMES && over_us >= APART_US
    }

    /// Whether that is worth a note.
    pub fn is_far_apart(&self, all: &LatencyHistogram) -> bool {
        self.is_apart(all) && self.times(all) > FAR_APART_TIMES
    }
}

/// The slowest first, at most [`WORST_CLIENTS_MAX`].
pub fn keep_worst_clients(all: &mut Vec<ClientLatency>) {
    all.sort_by_key(|one| std::cmp::Reverse((one.p50_us, one.p99_us, one.max_us)));
    all.truncate(WORST_CLIENTS_MAX);
}

#[inline]
fn bucket(us: u32) -> usize {
    if us < FINE_US {
        return 0;
    }
    let octave = us.ilog2();
    let quarter = us >> (octave - 2) & 3;
    let at = (octave - FINE_US.ilog2()) * 4 + quarter + 1;
    (at as usize).min(BUCKETS - 1)
}

/// The end of a bucket; the last has none.
fn upper_us(at: usize) -> Option<u32> {
    match at {
        0 => Some(FINE_US),
        at if at == BUCKETS - 1 => None,
        at => {
            let (octave, quarter) = ((at as u32 - 1) / 4, (at as u32 - 1) % 4);
            Some((5 + quarter) << (octave + FINE_US.ilog2() - 2))
        }
    }
}

/// How many clients [`crate::Results::worst_clients`] names.
pub const WORST_CLIENTS_MAX: usize = 10;
const BUCKETS: usize = 64;
/// Shorter latencies are not told apart.
const FINE_US: u32 = 64;
/// The median of fewer messages is chance.
const MESSAGES_MIN: u32 = 10;
const APART_TIMES: f64 = 2.0;
/// Less than that lies in the buckets.
const APART_US: u64 = 100;
const FAR_APART_TIMES: f64 = 5.0;
const _: () = assert!(size_of::<ClientTally>() == 136);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_at_most_a_quarter_too_high() {
        for median in [64_u64, 65, 100, 127, 128, 5_000, 999_999, 2_000_000] {
            let mut tally = ClientTally::default();
            for us in [1, median - 1, median, median, 3_000_000] {
                tally.record_nanos(us * 1_000);
            }
            let found = tally.summary("c".into(), false);
            assert!((median..=median + median / 4 + 1).contains(&found.p50_us), "{found:?}");
            assert_eq!((found.count, found.max_us, found.p99_us), (5, 3_000_000, 3_000_000));
        }
    }

    #[test]
    fn buckets_cover_all_latencies_without_gaps() {
        let mut before = 0;
        for us in 1..10_000_000 {
            let at = bucket(us);
            assert!(at == before || at == before + 1, "{us}");
            assert!(upper_us(at).is_none_or(|upper| us < upper), "{us}");
            before = at;
        }
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_long_run_keeps_its_shape() {
        let mut tally = ClientTally::default();
        for n in 0..300_000_u64 {
            tally.record_nanos(if n % 3 == 0 { 50_000_000 } else { 100_000 });
        }
        let found = tally.summary("c".into(), false);
        assert_eq!((found.count, found.p50_us, found.p99_us), (300_000, 112, 50_000));
    }

    #[test]
    fn a_client_stands_out_by_its_median() {
        let mut all = LatencyHistogram::new();
        for _ in 0..100 {
            all.record_nanos(1_000_000);
        }
        let client = |p50_us, count| ClientLatency { p50_us, count, ..ClientLatency::default() };
        assert!(client(2_100, 10).is_apart(&all) && !client(1_900, 10).is_apart(&all));
        assert!(!client(9_000, 9).is_apart(&all), "too few messages");
        assert!(client(9_000, 10).is_far_apart(&all) && !client(4_000, 10).is_far_apart(&all));
    }
}
