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
        self.fill(now_ms);
        self.level = self.level.saturating_sub((count as i64).saturating_mul(1000));
        if self.level >= 0 {
            return None;
        }
        let wait_ms = self.level.unsigned_abs().div_ceil(u64::from(self.rate.per_second));
        Some(now_ms + wait_ms)
    }

    /// Takes `count` tokens if there are so many. False: nothing was taken.
    pub fn take_if_there(&mut self, count: u32, now_ms: u64) -> bool {
        self.fill(now_ms);
        let cost = i64::from(count) * 1000;
        let is_there = self.level >= cost;
        if is_there {
            self.level -= cost;
        }
        is_there
    }

    /// Is it as if nothing had ever been taken?
    pub fn is_full(&mut self, now_ms: u64) -> bool {
        self.fill(now_ms);
        self.level >= self.level_max()
    }

    fn fill(&mut self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.filled_at_ms) as i64;
        let gained = elapsed_ms.saturating_mul(i64::from(self.rate.per_second));
        self.level = self.level.saturating_add(gained).min(self.level_max());
        self.filled_at_ms = now_ms;
    }

    fn level_max(&self) -> i64 {
        i64::from(self.rate.burst.max(1)) * 1000
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
    fn a_refused_take_leaves_no_debt() {
        let mut bucket = Bucket::new(Rate { per_second: 1, burst: 2 }, 0).expect("limited");
        assert!(bucket.is_full(0) && bucket.take_if_there(2, 0));
        for ms in 0..1000 {
            assert!(!bucket.take_if_there(1, ms));
        }
        assert!(bucket.take_if_there(1, 1000) && !bucket.is_full(2999) && bucket.is_full(3000));
    }

    #[test]
    fn no_rate_no_bucket() {
        assert!(Bucket::new(Rate::default(), 0).is_none());
    }
}
