//! Token buckets: how fast one connection may send.

/// A rate limit. A rate of 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub per_second: u32,
    /// How much may come at once after a pause.
    pub burst: u32,
}

/// A bucket that fills at a steady rate and may be overdrawn once.
///
/// What already arrived is always let through, so that a packet larger than the burst does not
/// block for ever; the debt is paid by a pause in reading.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    rate: Rate,
    /// Thousandths of a token.
    level: i64,
    filled_at_ms: u64,
}

impl Bucket {
    pub fn new(rate: Rate, now_ms: u64) -> Option<Self> {
        (rate.per_second > 0).then(|| Self {
            rate,
            level: i64::from(rate.burst.max(1)) * 1000,
            filled_at_ms: now_ms,
        })
    }

    /// Takes `count` tokens. Some(time) when the bucket is overdrawn: read nothing before then.
    pub fn take(&mut self, count: u64, now_ms: u64) -> Option<u64> {
        let elapsed_ms = now_ms.saturating_sub(self.filled_at_ms) as i64;
        let full = i64::from(self.rate.burst.max(1)) * 1000;
        let gained = elapsed_ms.saturating_mul(i64::from(self.rate.per_second));
        self.level = self.level.saturating_add(gained).min(full);
        self.filled_at_ms = now_ms;
        self.level = self.level.saturating_sub((count as i64).saturating_mul(1000));
        if self.level >= 0 {
            return None;
        }
        let wait_ms = self.level.unsigned_abs().div_ceil(u64::from(self.rate.per_second));
        Some(now_ms + wait_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_the_rest_waits() {
        let mut bucket = Bucket::new(Rate { per_second: 100, burst: 10 }, 0).expect("limited");
        assert_eq!(bucket.take(10, 0), None);
        assert_eq!(bucket.take(5, 0), Some(50));
        assert_eq!(bucket.take(0, 50), None);
        assert_eq!(bucket.take(1, 50), Some(60));
        assert_eq!(bucket.take(10, 10_000), None, "never fuller than the burst");
        assert_eq!(bucket.take(1, 10_000), Some(10_010));
    }

    #[test]
    fn no_rate_no_bucket() {
        assert!(Bucket::new(Rate::default(), 0).is_none());
    }
}
