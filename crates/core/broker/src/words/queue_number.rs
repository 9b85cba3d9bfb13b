//! How the journal names queues: the one place that says which number stands for what.

use std::fmt;
use std::num::NonZeroU64;

/// What a shard has taken on and not yet passed to others.
const HANDOVER: u64 = 0;

/// From here on a number stands for a source of messages, up to the last number there is.
const FIRST_SOURCE: u64 = u64::MAX - u16::MAX as u64;

/// The number of a session or of a shared group: given once, and never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct QueueNumber(NonZeroU64);

impl QueueNumber {
    pub const MIN: Self = Self(NonZeroU64::MIN);

    pub const MAX: Self = match Self::new(FIRST_SOURCE - 1) {
        Some(number) => number,
        None => Self::MIN,
    };

    /// None: the number stands for something else.
    pub const fn new(number: u64) -> Option<Self> {
        match QueueId::of_number(number) {
            QueueId::Owned(number) => Some(number),
            QueueId::Handover | QueueId::Seen(_) => None,
        }
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The one to give behind `last`.
    pub(crate) const fn after(last: Option<Self>) -> Self {
        match last {
            None => Self::MIN,
            Some(Self(last)) => Self(last.saturating_add(1)),
        }
    }
}

impl fmt::Display for QueueNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A queue as the journal names it. `Log::queue` says whose it is in the shard.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QueueId {
    /// What the shard has taken on and not yet passed to others.
    Handover,
    /// That of a session or of a shared group.
    Owned(QueueNumber),
    /// The highest serial that came from this source.
    Seen(u16),
}

impl QueueId {
    pub const fn of_number(number: u64) -> Self {
        match NonZeroU64::new(number) {
            None => Self::Handover,
            Some(_) if number >= FIRST_SOURCE => Self::Seen((number - FIRST_SOURCE) as u16),
            Some(number) => Self::Owned(QueueNumber(number)),
        }
    }

    pub const fn number(self) -> u64 {
        match self {
            Self::Handover => HANDOVER,
            Self::Owned(number) => number.get(),
            Self::Seen(source) => FIRST_SOURCE + source as u64,
        }
    }
}

impl From<QueueNumber> for QueueId {
    fn from(number: QueueNumber) -> Self {
        Self::Owned(number)
    }
}

/// The number of a group's queue in memory. A group has it as long as its queue is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptId(pub(crate) u32);

#[cfg(test)]
mod tests {
    use super::*;

    /// As journals have been written from the first version on.
    #[test]
    fn numbers_mean_what_they_have_always_meant() {
        let first_source = 18_446_744_073_709_486_080;
        let owned = |number| QueueId::Owned(QueueNumber(NonZeroU64::new(number).unwrap()));
        let meant = [
            (0, QueueId::Handover),
            (1, owned(1)),
            (2, owned(2)),
            (first_source - 1, owned(first_source - 1)),
            (first_source, QueueId::Seen(0)),
            (first_source + 1, QueueId::Seen(1)),
            (u64::MAX - 1, QueueId::Seen(u16::MAX - 1)),
            (u64::MAX, QueueId::Seen(u16::MAX)),
        ];
        for (number, id) in meant {
            assert_eq!((QueueId::of_number(number), id.number()), (id, number));
        }
        assert!(meant.is_sorted_by_key(|(_, id)| *id), "lists are written in their order");
    }

    #[test]
    fn only_sessions_and_groups_have_numbers_that_are_given() {
        assert_eq!(QueueNumber::new(0), None);
        assert_eq!(QueueNumber::new(1), Some(QueueNumber::MIN));
        assert_eq!(QueueNumber::new(QueueNumber::MAX.get()), Some(QueueNumber::MAX));
        assert_eq!(QueueNumber::new(QueueNumber::MAX.get() + 1), None);
        assert_eq!(QueueNumber::new(u64::MAX), None);
        let first = QueueNumber::after(None);
        assert_eq!((first, QueueNumber::after(Some(first)).get()), (QueueNumber::MIN, 2));
    }
}
