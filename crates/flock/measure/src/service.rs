//! When acknowledgements came, and the longest time without one.

use std::collections::BTreeMap;

/// Bins of a second; bit `n` is set if an acknowledgement came in the `n`th of them.
pub type Bins = [u64; 2];
pub const BINS_PER_SEC: u64 = 100;
const BIN_NS: u64 = 1_000_000_000 / BINS_PER_SEC;

/// Second and bin of a moment.
#[inline]
pub fn bin_of(now_ns: u64) -> (u32, u64) {
    ((now_ns / 1_000_000_000) as u32, now_ns % 1_000_000_000 / BIN_NS)
}

/// Of all publishers together, to a hundredth of a second.
#[derive(Clone, Debug, Default)]
pub struct Service {
    seconds: BTreeMap<u32, Bins>,
}

impl Service {
    pub fn note(&mut self, at_secs: u32, bins: Bins) {
        let known = self.seconds.entry(at_secs).or_default();
        for (known, more) in known.iter_mut().zip(bins) {
            *known |= more;
        }
    }

    /// The longest time without an acknowledgement that overlaps `from` to `until`; `None` if none
    /// ever came. It is rounded up: from the beginning of the bin of the one before, however long
    /// before `from`, to the end of the bin of the one after, which may come after `until`. Where
    /// none comes after, it lasts to `end_secs`.
    pub fn longest_gap_secs(&self, from: f64, until: f64, end_secs: f64) -> Option<f64> {
        let bin = |secs: f64| (secs * BINS_PER_SEC as f64) as u64;
        let (from, until, end) = (bin(from), bin(until), bin(end_secs) + 1);
        let (mut before, mut worst) = (None, None);
        for at in self.bins().chain([end]) {
            if let Some(before) = before
                && at >= from
                && before < until
            {
                worst = worst.max(Some(at + 1 - before));
            }
            before = Some(at);
        }
        worst.map(|bins| bins as f64 / BINS_PER_SEC as f64)
    }

    fn bins(&self) -> impl Iterator<Item = u64> + '_ {
        self.seconds.iter().flat_map(|(second, bins)| {
            let first = u64::from(*second) * BINS_PER_SEC;
            let is_set = |at: &u64| bins[(at / 64) as usize] >> (at % 64) & 1 == 1;
            (0..BINS_PER_SEC).filter(is_set).map(move |at| first + at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(at_ms: &[u64]) -> Service {
        let mut service = Service::default();
        for ms in at_ms {
            let (second, bin) = bin_of(ms * 1_000_000);
            let mut bins = Bins::default();
            bins[(bin / 64) as usize] |= 1 << (bin % 64);
            service.note(second, bins);
        }
        service
    }

    #[test]
    fn a_gap_is_told_longer_than_it_was_and_never_shorter() {
        let service = service(&[100, 200, 2_750, 2_800, 9_000]);
        // From the acknowledgement before the fault to the one after.
        assert_eq!(service.longest_gap_secs(1.0, 2.0, 10.0), Some(2.56));
        // It may be over only after the time that was asked for.
        assert_eq!(service.longest_gap_secs(2.75, 3.0, 10.0), Some(6.21));
        assert_eq!(service.longest_gap_secs(0.0, 0.15, 10.0), Some(0.11));
    }

    #[test]
    fn what_never_comes_back_is_away_to_the_end() {
        let service = service(&[100, 200]);
        assert_eq!(service.longest_gap_secs(1.0, 2.0, 10.0), Some(9.82));
        assert_eq!(Service::default().longest_gap_secs(1.0, 2.0, 10.0), None);
    }
}
