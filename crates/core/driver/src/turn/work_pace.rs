//! How much work fits into a turn.
//!
//! Shards count what clients ask for in units of some 0.1 us. Where memory is not in the caches, or
//! the machine is slow, a unit takes several times as long: a turn has fewer of them then, so that
//! nobody waits longer for what another one asks for.

use std::time::Duration;

use broker::TURN_UNITS;

/// With fewer units a turn says nothing about how long they take.
pub(super) const UNITS_MEASURED_MIN: u64 = 2_000;

/// How long the work of a turn may take, of all shards of a worker together.
const WORK_MAX: Duration = Duration::from_millis(5);

/// In each turn clients have so much, and mail has.
const KINDS: u64 = 2;

/// However long a unit takes: with fewer a turn would be little more than a look at the sockets,
/// and what broadcasts bring would be written message by message.
const UNITS_MIN: u64 = 2_500;

/// A measurement counts for one part in so many: a turn in which the system has run something else
/// changes little.
const MEMORY: u64 = 4;

/// How long a unit takes, in picoseconds, on the average of the latest turns.
#[derive(Debug)]
pub(super) struct WorkPace {
    unit_picos: u64,
}

impl Default for WorkPace {
    fn default() -> Self {
        Self { unit_picos: 100_000 }
    }
}

impl WorkPace {
    /// A turn of so many shards has taken so long for so many units. Returns how many each shard
    /// may use next time, clients and mail each.
    pub(super) fn units(&mut self, used: u64, took: Duration, shards: usize) -> u32 {
        let picos = took.as_nanos() as u64 * 1000 / used.max(1);
        self.unit_picos = (self.unit_picos * (MEMORY - 1) + picos) / MEMORY;
        let parts = shards as u64 * KINDS;
        let units = WORK_MAX.as_nanos() as u64 * 1000 / self.unit_picos.max(1) / parts.max(1);
        units.clamp(UNITS_MIN, TURN_UNITS.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_turns(pace: &mut WorkPace, unit_nanos: u64, turns: u32) -> u32 {
        let took = Duration::from_nanos(10_000 * unit_nanos);
        (0..turns).map(|_| pace.units(10_000, took, 2)).last().unwrap_or_default()
    }

    #[test]
    fn a_turn_has_as_many_units_as_fit() {
        let mut pace = WorkPace::default();
        assert_eq!(after_turns(&mut pace, 100, 1), 12_500);
        assert!((4_166..4_300).contains(&after_turns(&mut pace, 300, 30)));
        assert!((12_300..12_501).contains(&after_turns(&mut pace, 100, 30)), "and back");
        assert_eq!(after_turns(&mut pace, 10, 30), TURN_UNITS);
        assert_eq!(after_turns(&mut pace, 100_000, 30), UNITS_MIN as u32);
    }

    #[test]
    fn one_turn_that_was_interrupted_changes_little() {
        let mut pace = WorkPace::default();
        let before = after_turns(&mut pace, 100, 10);
        assert!(after_turns(&mut pace, 200, 1) > before / 10 * 7);
    }
}
