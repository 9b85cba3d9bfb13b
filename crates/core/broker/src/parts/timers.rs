//! When to look at which client again.

use std::collections::BTreeMap;

/// Deadlines, rounded up to ticks of [`TICK_MS`].
///
/// Entries are hints: the owner looks at the client and decides what is due. So moving a deadline
/// to later costs nothing, the entry fires early and is armed anew. A client has at most one
/// entry that counts (see `Client::timer_at`), so the size is bounded by clients and re-armings.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    slots: BTreeMap<u64, Vec<u64>>,
}

/// How much later than asked an entry may fire. Whole seconds are in time; and of many clients
/// that came in the same second not all are looked at together.
const TICK_MS: u64 = 125;

impl Timers {
    /// The tick at which a deadline has passed.
    pub(crate) const fn tick_of(deadline_ms: u64) -> u64 {
        deadline_ms.div_ceil(TICK_MS)
    }

    pub(crate) fn arm(&mut self, tick: u64, key: u64) {
        self.slots.entry(tick).or_default().push(key);
    }

    pub(crate) fn next_ms(&self) -> Option<u64> {
        self.slots.first_key_value().map(|(tick, _)| tick * TICK_MS)
    }

    /// An entry of the earliest tick, if that has passed: the tick and the key.
    pub(crate) fn take_due(&mut self, now_ms: u64) -> Option<(u64, u64)> {
        while let Some(mut slot) = self.slots.first_entry() {
            let tick = *slot.key();
            if tick * TICK_MS > now_ms {
                return None;
            }
            match slot.get_mut().pop() {
                Some(key) => return Some((tick, key)),
                None => slot.remove(),
            };
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_one_by_one_and_not_before_their_deadline() {
        let mut wheel = Timers::default();
        for (deadline_ms, key) in [(1_000, 1), (1_001, 2), (1_125, 3), (1_126, 4)] {
            wheel.arm(Timers::tick_of(deadline_ms), key);
        }
        assert_eq!(wheel.next_ms(), Some(1_000));
        assert_eq!(wheel.take_due(999), None);
        assert_eq!(wheel.take_due(1_000), Some((8, 1)));
        assert_eq!(wheel.take_due(1_124), None);
        assert_eq!(wheel.next_ms(), Some(1_125));
        let mut keys = [(); 2].map(|()| wheel.take_due(1_200).map(|(_, key)| key));
        keys.sort_unstable();
        assert_eq!(keys, [Some(2), Some(3)]);
        assert_eq!(wheel.take_due(1_249), None);
        assert_eq!(wheel.take_due(1_250), Some((10, 4)));
        assert_eq!(wheel.take_due(u64::MAX), None);
        assert_eq!(wheel.next_ms(), None);
    }
}
