//! Whose questions a service left without an answer, until a time-out.
//!
//! That may be due to what was asked, so it counts against those who asked, and not against the
//! service: the asker for [`HOLDS_FOR`], and its origin until one of its questions has an answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use driver::Origin;

/// For how long a question without an answer counts against its asker.
const HOLDS_FOR: Duration = Duration::from_secs(60);

/// Askers, and origins, that are remembered. A further one replaces the oldest.
const ENTRIES_MAX: usize = 10_000;

/// An origin, and a number for the user or the client there.
pub(super) type Asker = (Origin, u64);

/// May a question have any place at the service, or one of those for such askers only?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Trusted,
    /// Its asker or its origin has had a time-out.
    Doubtful,
}

#[derive(Debug, Default)]
pub(super) struct Doubts {
    /// When a question of them has had its time-out last.
    askers: HashMap<Asker, Instant>,
    origins: HashMap<Origin, Instant>,
}

impl Doubts {
    pub(super) fn note_hung(&mut self, asker: Asker, now: Instant) {
        note(&mut self.askers, asker, now);
        note(&mut self.origins, asker.0, now);
    }

    pub(super) fn note_answered(&mut self, origin: Origin) {
        self.origins.remove(&origin);
    }

    pub(super) fn has_hung(&self, asker: Asker, now: Instant) -> bool {
        self.has_hung_within(asker, HOLDS_FOR, now)
    }

    pub(super) fn has_hung_within(&self, asker: Asker, time: Duration, now: Instant) -> bool {
        self.askers.get(&asker).is_some_and(|at| is_within(*at, time, now))
    }

    pub(super) fn has_origin_hung(&self, origin: Origin, now: Instant) -> bool {
        self.origins.get(&origin).is_some_and(|at| is_within(*at, HOLDS_FOR, now))
    }
}

fn is_within(at: Instant, time: Duration, now: Instant) -> bool {
    now.saturating_duration_since(at) < time
}

fn note<K: Copy + Eq + Hash>(entries: &mut HashMap<K, Instant>, key: K, now: Instant) {
    if entries.len() >= ENTRIES_MAX && !entries.contains_key(&key) {
        entries.retain(|_, at| is_within(*at, HOLDS_FOR, now));
        let oldest = entries.iter().min_by_key(|(_, at)| **at).map(|(key, _)| *key);
        if let Some(oldest) = oldest.filter(|_| entries.len() >= ENTRIES_MAX) {
            entries.remove(&oldest);
        }
    }
    entries.insert(key, now);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);

    #[test]
    fn an_answer_clears_the_origin_and_time_clears_the_asker() {
        let (mut doubts, start) = (Doubts::default(), Instant::now());
        doubts.note_hung((ONE, 1), start);
        assert!(doubts.has_hung((ONE, 1), start) && doubts.has_origin_hung(ONE, start));
        assert!(!doubts.has_hung((ONE, 2), start));
        doubts.note_answered(ONE);
        assert!(doubts.has_hung((ONE, 1), start) && !doubts.has_origin_hung(ONE, start));
        assert!(!doubts.has_hung((ONE, 1), start + HOLDS_FOR));
    }

    #[test]
    fn the_oldest_make_room() {
        let (mut doubts, start) = (Doubts::default(), Instant::now());
        for number in 0..ENTRIES_MAX as u64 + 10 {
            doubts.note_hung((ONE, number), start + Duration::from_micros(number));
        }
        assert_eq!(doubts.askers.len(), ENTRIES_MAX);
        assert!(!doubts.has_hung((ONE, 9), start) && doubts.has_hung((ONE, 10), start));
        let later = start + 2 * HOLDS_FOR;
        doubts.note_hung((ONE, 1), later);
        assert_eq!(doubts.askers.len(), 1, "all others have ended");
    }
}
