//! Second copies that have no cause yet, and what explains them at the end.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Numbers that came again, as far as only their publisher can explain it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Repeats {
    numbers: Vec<u32>,
    /// Beyond what is listed.
    overflowed: u32,
}

impl Repeats {
    pub(super) fn add(&mut self, sequence: u32) {
        match self.numbers.len() < REPEATS_MAX {
            true => self.numbers.push(sequence),
            false => self.overflowed += 1,
        }
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> u32 {
        self.numbers.len() as u32 + self.overflowed
    }

    /// How many copies have no cause, where the publisher sent these again (in rising order). Each
    /// time that it did explains one copy.
    pub(super) fn without_cause(&self, resent: &[u32]) -> u32 {
        without_cause(&self.numbers, self.overflowed, resent)
    }
}

fn without_cause(numbers: &[u32], overflowed: u32, resent: &[u32]) -> u32 {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    let (mut at, mut found) = (0, 0);
    for number in numbers {
        at += resent[at..].partition_point(|&resent| resent < number);
        match resent.get(at) == Some(&number) {
            true => at += 1,
            false => found += 1,
        }
    }
    // Which ones did not fit is not known: all that the publisher sent again may be among them.
    found + overflowed.saturating_sub(u32::try_from(resent.len()).unwrap_or(u32::MAX))
}

/// A second copy that a shared group got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupRepeat {
    pub(super) sequence: u32,
    /// The first copy did not come before this, as far as it is known.
    pub(super) from: Slot,
    /// The second did not come after this.
    pub(super) to: Slot,
}

/// Second copies that a shared group got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupRepeats {
    all: Vec<GroupRepeat>,
    overflowed: u32,
}

impl GroupRepeats {
    pub(super) fn add(&mut self, repeat: GroupRepeat) {
        match self.all.len() < REPEATS_MAX {
            true => self.all.push(repeat),
            false => self.overflowed += 1,
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.overflowed += other.overflowed;
        other.all.iter().for_each(|repeat| self.add(*repeat));
    }

    /// How many copies have no cause: no connection of a member ended (`ends`) between first and
    /// second copy, and the publisher did not send the message again.
    pub(super) fn without_cause(
        &self,
        sent_from: impl Fn(u32) -> Slot,
        ends: &BTreeSet<Slot>,
        resent: &[u32],
    ) -> u32 {
        let is_open = |repeat: &&GroupRepeat| {
            let from = repeat.from.max(sent_from(repeat.sequence)).saturating_sub(1);
            let to = repeat.to.max(from).saturating_add(1);
            ends.range(from..=to).next().is_none()
        };
        let open: Vec<u32> = self.all.iter().filter(is_open).map(|one| one.sequence).collect();
        let overflowed = if ends.is_empty() { self.overflowed } else { 0 };
        without_cause(&open, overflowed, resent)
    }
}

/// A time of the run, in steps of 10 ms.
pub type Slot = u32;

pub fn slot(at_ns: u64) -> Slot {
    u32::try_from(at_ns / SLOT_NS).unwrap_or(Slot::MAX)
}

const SLOT_NS: u64 = 10_000_000;
/// Second copies of one stream at one subscriber that are told apart by their number.
const REPEATS_MAX: usize = 4_096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_that_a_publisher_sent_again_explains_one_copy() {
        let mut repeats = Repeats::default();
        for sequence in [7, 3, 7, 9] {
            repeats.add(sequence);
        }
        assert_eq!(repeats.without_cause(&[]), 4);
        assert_eq!(repeats.without_cause(&[3, 7]), 2);
        assert_eq!(repeats.without_cause(&[1, 3, 7, 7, 8, 9, 9]), 0);
    }

    #[test]
    fn what_is_not_told_apart_is_explained_by_as_many() {
        let mut repeats = Repeats::default();
        for _ in 0..REPEATS_MAX + 5 {
            repeats.add(1);
        }
        assert_eq!(repeats.without_cause(&[2, 3]), REPEATS_MAX as u32 + 3);
    }

    #[test]
    fn a_member_that_leaves_explains_copies_that_lie_around_it() {
        let mut repeats = GroupRepeats::default();
        for (sequence, from, to) in [(1, 10, 20), (2, 40, 50), (3, 0, 90)] {
            repeats.add(GroupRepeat { sequence, from, to });
        }
        let sent_from = |sequence: u32| if sequence == 3 { 60 } else { 0 };
        let found = |ends: &[Slot], resent: &[u32]| {
            repeats.without_cause(sent_from, &ends.iter().copied().collect(), resent)
        };
        assert_eq!(found(&[], &[]), 3);
        assert_eq!(found(&[15, 55], &[]), 2);
        assert_eq!(found(&[15, 70], &[2]), 0);
    }
}
