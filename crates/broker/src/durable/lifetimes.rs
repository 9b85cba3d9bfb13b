//! How much of what waits for a session may have expired, known without a look at all of it.

use std::collections::BTreeMap;

use session::NEVER;

/// Messages may count later than they expire, by this part of the lifetime that they had left.
const LATE_PART: u64 = 16;

/// What of a session's backlog expires, by the second.
///
/// Bounded: it holds up to twice [`LATE_PART`] entries for each doubling of the lifetimes. What has
/// been dispatched meanwhile stays in it: it says how much may have expired, not how much has.
#[derive(Debug, Default)]
pub(super) struct Lifetimes(BTreeMap<u64, Amount>);

/// Messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(crate) messages: u32,
    pub(crate) bytes: u64,
}

impl Lifetimes {
    /// A message waits.
    pub(crate) fn add(&mut self, expires_at_ms: u64, bytes: u64, now_ms: u64) {
        if expires_at_ms == NEVER {
            return;
        }
        // The journal looks for what has expired already with the next second.
        let now = now_ms / 1000;
        let second = second_of(expires_at_ms).max(now + 1);
        let left = second - now;
        let step = 1 << (left / LATE_PART).max(1).ilog2();
        let entry = self.0.entry(second.next_multiple_of(step)).or_default();
        entry.messages = entry.messages.saturating_add(1);
        entry.bytes = entry.bytes.saturating_add(bytes);
    }

    /// What may have expired up to a second.
    pub(crate) fn over(&self, second: u64) -> Amount {
        self.0.range(..=second).fold(Amount::default(), |sum, (_, amount)| Amount {
            messages: sum.messages.saturating_add(amount.messages),
            bytes: sum.bytes.saturating_add(amount.bytes),
        })
    }

    /// All that expired up to a second has been looked for.
    pub(crate) fn forget(&mut self, second: u64) {
        self.0 = self.0.split_off(&(second + 1));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The second with which a message has expired.
pub(super) const fn second_of(expires_at_ms: u64) -> u64 {
    expires_at_ms / 1000 + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lives_longer_counts_a_little_late_and_never_early() {
        for left_secs in [1, 2, 31, 32, 100, 3600, 1_000_000, u64::from(u32::MAX)] {
            for now_ms in [0, 1999, 123_456_789] {
                let expires_at_ms = now_ms + left_secs * 1000;
                let mut lifetimes = Lifetimes::default();
                lifetimes.add(expires_at_ms, 7, now_ms);
                let second = second_of(expires_at_ms);
                assert_eq!(lifetimes.over(second - 1), Amount::default());
                let latest = second + left_secs / LATE_PART;
                assert_eq!(lifetimes.over(latest), Amount { messages: 1, bytes: 7 });
                lifetimes.forget(latest);
                assert!(lifetimes.is_empty());
            }
        }
    }

    #[test]
    fn however_many_wait_there_are_few_entries() {
        let mut lifetimes = Lifetimes::default();
        lifetimes.add(NEVER, 1, 0);
        assert!(lifetimes.is_empty());
        for now_secs in 0..10_000 {
            lifetimes.forget(now_secs);
            lifetimes.add((now_secs + 3600) * 1000, 1, now_secs * 1000);
            lifetimes.add((now_secs + now_secs % 1000) * 1000, 1, now_secs * 1000);
            assert!(lifetimes.0.len() <= 2 * LATE_PART as usize * 8, "{}", lifetimes.0.len());
        }
    }
}
