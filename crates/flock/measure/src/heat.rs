//! How the latencies of a run lay in each of its seconds: what a heat map is drawn of.
//!
//! Coarser than [`LatencyHistogram`], so that hours of it fit a results file: eight steps for each
//! power of ten.

use serde::{Deserialize, Serialize};

use super::histogram::{LatencyHistogram, LatencyKind};

/// One kind of latency, second by second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heat {
    pub kind: LatencyKind,
    /// Only seconds with a latency are here; in a long run steps, as in the series.
    pub seconds: Vec<HeatSecond>,
}

impl Heat {
    /// Joins neighbours that get the same name.
    pub fn merge(&mut self, name: impl Fn(u32) -> u32) {
        let mut merged: Vec<HeatSecond> = Vec::new();
        for second in std::mem::take(&mut self.seconds) {
            let at_secs = name(second.at_secs);
            match merged.last_mut().filter(|last| last.at_secs == at_secs) {
                Some(last) => last.add(&second.steps),
                None => merged.push(HeatSecond { at_secs, ..second }),
            }
        }
        self.seconds = merged;
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeatSecond {
    pub at_secs: u32,
    /// Step and how many latencies lay in it, rising; see [`step_of`].
    pub steps: Vec<(u8, u64)>,
}

impl HeatSecond {
    pub fn of(at_secs: u32, histogram: &LatencyHistogram) -> Self {
        let mut steps: Vec<(u8, u64)> = Vec::new();
        for (micros, count) in histogram.buckets() {
            let step = step_of(micros);
            match steps.last_mut() {
                Some((last, sum)) if *last == step => *sum += count,
                _ => steps.push((step, count)),
            }
        }
        Self { at_secs, steps }
    }

    fn add(&mut self, steps: &[(u8, u64)]) {
        for (step, count) in steps {
            match self.steps.binary_search_by_key(step, |(own, _)| *own) {
                Ok(at) => self.steps[at].1 += count,
                Err(at) => self.steps.insert(at, (*step, *count)),
            }
        }
    }
}

/// The step of a latency: step `n` reaches from [`step_from_us`]`(n)` to the next one's.
pub fn step_of(micros: u64) -> u8 {
    let step = (micros.max(1) as f64).log10() * f64::from(STEPS_PER_DECADE);
    // A power of ten lies at the lower edge of its step, whatever the rounding of its logarithm.
    (step + 1e-9) as u8
}

/// The lower edge of a step, in microseconds.
pub fn step_from_us(step: u8) -> f64 {
    10_f64.powf(f64::from(step) / f64::from(STEPS_PER_DECADE))
}

pub const STEPS_PER_DECADE: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_in_its_step() {
        for micros in (1..2_000).chain([9_999, 10_000, 123_456, 1_000_000, 600_000_000]) {
            let step = step_of(micros);
            let (from, to) = (step_from_us(step), step_from_us(step + 1));
            assert!(from <= micros as f64 * (1.0 + 1e-9) && (micros as f64) < to, "{micros}");
        }
    }

    #[test]
    fn a_second_has_all_of_its_histogram() {
        let mut histogram = LatencyHistogram::new();
        for micros in [1, 2, 150, 151, 152, 90_000, 599_000_000] {
            histogram.record_micros_n(micros, 3);
        }
        let second = HeatSecond::of(7, &histogram);
        assert_eq!(second.steps.iter().map(|(_, count)| count).sum::<u64>(), histogram.count());
        assert!(second.steps.windows(2).all(|pair| pair[0].0 < pair[1].0), "{second:?}");
        assert_eq!(second.steps.len(), 5);
    }
}
