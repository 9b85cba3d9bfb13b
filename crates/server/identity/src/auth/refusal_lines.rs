//! Which refused log-ins are logged with their reason: a client gets a line a minute for the same
//! reason, and all together so many a second.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// Lines in a second; others are written at level `debug`.
const PER_SECOND_MAX: u32 = 10;

/// How long a client that was refused for a reason gets no other line for it.
const QUIET_SECS: u64 = 60;

/// Clients and reasons that are remembered. Above it only the limit of all applies.
const KNOWN_MAX: usize = 4_096;

/// See the module.
#[derive(Debug, Default)]
pub struct RefusalLines {
    second: u64,
    lines: u32,
    /// By a hash of client and reason: when the line was written.
    known: HashMap<u64, u64>,
    hasher: RandomState,
}

impl RefusalLines {
    /// May a line be written? `provider`: who has refused the client.
    pub fn allows(&mut self, client: &str, provider: &str, why: &str, now_secs: u64) -> bool {
        if self.second != now_secs {
            (self.second, self.lines) = (now_secs, 0);
        }
        let hash = self.hasher.hash_one((client, provider, why));
        let is_recent = |at: &u64| at.abs_diff(now_secs) < QUIET_SECS;
        if self.lines >= PER_SECOND_MAX || self.known.get(&hash).is_some_and(is_recent) {
            return false;
        }
        self.lines += 1;
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, at| is_recent(at));
        }
        if self.known.len() < KNOWN_MAX {
            self.known.insert(hash, now_secs);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_gets_a_line_a_minute_for_a_reason_and_leaves_the_others_theirs() {
        let mut lines = RefusalLines::default();
        let mut count = |client: &str, why: &str, now_secs: u64| {
            (0..100).filter(|_| lines.allows(client, "file", why, now_secs)).count()
        };
        assert_eq!((count("loud", "password", 100), count("loud", "expired", 100)), (1, 1));
        assert_eq!((count("late", "password", 100), count("loud", "password", 159)), (1, 0));
        assert_eq!(count("loud", "password", 160), 1);
    }

    #[test]
    fn all_together_get_so_many_a_second() {
        let mut lines = RefusalLines::default();
        let mut at = |secs: u64| {
            (0..2 * KNOWN_MAX).filter(|n| lines.allows(&n.to_string(), "", "", secs)).count()
        };
        assert_eq!((at(1), at(2)), (PER_SECOND_MAX as usize, PER_SECOND_MAX as usize));
        for secs in 3..1000 {
            at(secs);
        }
        assert!(lines.known.len() <= KNOWN_MAX);
    }
}
