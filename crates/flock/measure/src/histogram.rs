//! Latency histograms: one microsecond to ten minutes at three significant digits, mergeable and
//! kept in results as sparse buckets.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What a latency was measured between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyKind {
    /// Start of the TCP connect to CONNACK, handshakes of TLS and WebSocket included.
    Connect,
    /// SUBSCRIBE sent to SUBACK.
    Subscribe,
    /// Intended send time of a QoS 1 or 2 PUBLISH to PUBACK or PUBCOMP.
    PublishAck,
    /// Intended send time of a PUBLISH to its arrival at a subscriber.
    EndToEnd,
    /// Intended send time of a PUBLISH to its arrival by way of an event bus.
    Routed,
    /// Intended send time of a request to the arrival of its answer.
    RoundTrip,
    /// Intended send time to the moment when the tool handed the PUBLISH to the kernel: the
    /// tool's own part of every other latency.
    Lateness,
}

impl LatencyKind {
    pub const ALL: [Self; 7] = [
        Self::Connect,
        Self::Subscribe,
        Self::PublishAck,
        Self::EndToEnd,
        Self::Routed,
        Self::RoundTrip,
        Self::Lateness,
    ];

    /// The words a report uses.
    pub fn title(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Subscribe => "subscribe",
            Self::PublishAck => "publish acknowledged",
            Self::EndToEnd => "end to end",
            Self::Routed => "routed",
            Self::RoundTrip => "request to answer",
            Self::Lateness => "tool lateness",
        }
    }
}

/// A histogram of microseconds. Values under 1 us count as 1 us, values over ten minutes as ten
/// minutes.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyHistogram {
    inner: Histogram<u64>,
}

impl LatencyHistogram {
    pub fn new() -> Self {
        #[expect(clippy::expect_used, reason = "the three constants are a valid choice of bounds")]
        let inner = Histogram::new_with_bounds(MICROS_MIN, MICROS_MAX, SIGNIFICANT_DIGITS)
            .expect("constant bounds are valid");
        Self { inner }
    }

    pub fn record_nanos(&mut self, nanos: u64) {
        self.record_micros_n(nanos / 1000, 1);
    }

    pub fn record_micros_n(&mut self, micros: u64, count: u64) {
        self.inner.saturating_record_n(micros.max(MICROS_MIN), count);
    }

    pub fn merge(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        // Both sides have the same bounds, so that adding cannot fail.
        let _ = self.inner.add(&other.inner);
    }

    pub fn clear(&mut self) {
        if self.is_empty() {
            return;
        }
        self.inner.reset();
    }

    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// The value at `percentile` (0..=100) in microseconds; 0 when nothing was recorded.
    pub fn micros_at(&self, percentile: f64) -> u64 {
        if self.is_empty() { 0 } else { self.inner.value_at_percentile(percentile) }
    }

    pub fn summary(&self) -> LatencySummary {
        if self.is_empty() {
            return LatencySummary::default();
        }
        LatencySummary {
            count: self.count(),
            average_us: self.inner.mean(),
            min_us: self.inner.min(),
            p50_us: self.micros_at(50.0),
            p75_us: self.micros_at(75.0),
            p90_us: self.micros_at(90.0),
            p95_us: self.micros_at(95.0),
            p99_us: self.micros_at(99.0),
            p999_us: self.micros_at(99.9),
            max_us: self.inner.max(),
        }
    }

    /// Recorded buckets as (highest equivalent microseconds, count), rising.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        self.inner
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_at_value()))
            .collect()
    }

    pub fn from_buckets(buckets: &[(u64, u64)]) -> Self {
        let mut histogram = Self::new();
        for &(micros, count) in buckets {
            histogram.record_micros_n(micros, count);
        }
        histogram
    }
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Serialize for LatencyHistogram {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.buckets().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LatencyHistogram {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let buckets = Vec::<(u64, u64)>::deserialize(deserializer)?;
        Ok(Self::from_buckets(&buckets))
    }
}

/// The usual figures of one histogram, in microseconds. All zero when nothing was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencySummary {
    pub count: u64,
    pub average_us: f64,
    pub min_us: u64,
    pub p50_us: u64,
    pub p75_us: u64,
    pub p90_us: u64,
    pub p95_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

const MICROS_MIN: u64 = 1;
/// Ten minutes.
const MICROS_MAX: u64 = 600_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_json_with_the_same_percentiles() {
        let mut before = LatencyHistogram::new();
        for micros in [1, 7, 999, 1_000, 123_456, 599_999_999] {
            before.record_micros_n(micros, micros % 5 + 1);
        }
        let text = serde_json::to_string(&before).unwrap();
        let after: LatencyHistogram = serde_json::from_str(&text).unwrap();
        assert_eq!(after.count(), before.count());
        for percentile in [0.0, 50.0, 90.0, 99.9, 100.0] {
            assert_eq!(after.micros_at(percentile), before.micros_at(percentile));
        }
        assert_eq!(serde_json::to_string(&after).unwrap(), text);
    }

    #[test]
    fn merging_is_the_same_as_recording_together() {
        let (mut left, mut right, mut both) =
            (LatencyHistogram::new(), LatencyHistogram::new(), LatencyHistogram::new());
        for micros in 1..5_000 {
            if micros % 3 == 0 { &mut left } else { &mut right }.record_micros_n(micros, 1);
            both.record_micros_n(micros, 1);
        }
        left.merge(&right);
        assert_eq!(left.buckets(), both.buckets());
    }

    #[test]
    fn values_beyond_the_bounds_are_kept_at_the_bounds() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_nanos(0);
        histogram.record_nanos(3_600_000_000_000);
        assert_eq!(histogram.count(), 2);
        assert_eq!(histogram.summary().min_us, 1);
        assert!(histogram.summary().max_us >= MICROS_MAX);
    }
}
