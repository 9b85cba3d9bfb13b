//! Compares what the process holds with its limit, and has freed memory given back.

use std::time::{Duration, Instant};

use broker::Memory;

use base::memory;
use base::resident_bytes;

/// All is well again below this share of a limit, in per cent.
const RELIEF_PERCENT: u64 = 95;

/// What is resident may exceed the limit by this part of it, as far as it is free: the next
/// allocations take from that first. `auto` leaves twice as much to the rest of the machine.
const FREE_PART: u64 = 8;

/// The last part of the memory is for those who come to free some: log-ins, acknowledgements and
/// the like find room while publishes are refused already.
const RESERVE_PART: u64 = 16;
const RESERVE_BYTES_MAX: u64 = 256 << 20;

/// Less that is free is not worth the walk through all heaps.
const PURGED_BYTES_MIN: u64 = 32 << 20;

/// Nor is a smaller part of what is resident.
const PURGED_PART: u64 = 5;

/// How soon memory is asked for again. Twice as long each time that not much came back.
const PURGE_EVERY: Duration = Duration::from_secs(1);
const PURGE_EVERY_MAX: Duration = Duration::from_secs(64);

/// How often to look, far from the limit and near it: with 1 GB, and 300 MB arriving in a second,
/// the second look comes before the limit.
const LOOK_EVERY: Duration = Duration::from_millis(500);
const LOOK_EVERY_NEAR: Duration = Duration::from_millis(50);

/// What there is at a moment, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    resident: u64,
    /// Allocated and not freed, and what is not the allocator's.
    held: u64,
}

impl Reading {
    /// None where the system does not report it.
    pub(super) fn take() -> Option<Self> {
        let resident = resident_bytes()?;
        let others = resident.saturating_sub(memory::taken_bytes());
        let held = (memory::held_bytes() + others).min(resident);
        Some(Self { resident, held }.with_apart(memory::apart_bytes()))
    }

    /// What is set apart counts as held whether it is in use or not. What will be taken of it comes
    /// from what is free first: that was used for the same a moment ago, as often as not.
    fn with_apart(self, (bytes, lent): (u64, u64)) -> Self {
        let idle = bytes.saturating_sub(lent);
        let resident = self.resident + idle.saturating_sub(self.free());
        Self { resident, held: self.held + idle }
    }

    fn free(self) -> u64 {
        self.resident - self.held
    }
}

/// What changes with a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// So much memory is left from now on.
    pub(super) left: Option<Memory>,
    /// There is not enough: so much is left, and so much has to be freed.
    pub(super) bytes: Option<Bytes>,
    /// Freed memory should be given back.
    pub(super) purges: bool,
    /// So much is used that what waits in connections is to be counted.
    pub(super) counts: bool,
}

/// While there is not enough memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bytes {
    pub(super) left: u64,
    /// Until all is well again. 0: nothing has to be freed.
    pub(super) to_free: u64,
}

/// Limits of memory, with what was seen of it last.
pub(super) struct MemoryGuard {
    bytes_max: u64,
    reserve_bytes: u64,
    left: Memory,
    purge_every: Duration,
    /// When memory was asked for, and what there was then.
    asked: Option<(Instant, Reading)>,
    is_near: bool,
}

impl MemoryGuard {
    pub(super) fn new(bytes_max: u64) -> Self {
        let reserve_bytes = (bytes_max / RESERVE_PART).min(RESERVE_BYTES_MAX);
        let (left, purge_every) = (Memory::Enough, PURGE_EVERY);
        Self { bytes_max, reserve_bytes, left, purge_every, asked: None, is_near: false }
    }

    /// When to look again.
    pub(super) fn interval(&self) -> Duration {
        if self.is_near { LOOK_EVERY_NEAR } else { LOOK_EVERY }
    }

    /// Looks, and logs. What can be freed without harm is, before anybody has to slow down; `free`
    /// returns how many bytes that were.
    pub(super) fn look(&mut self, free: impl FnOnce() -> usize) -> Change {
        let Some(now) = self.read(Reading::take, free) else { return Change::default() };
        let change = self.judge(now, Instant::now());
        if let Some(left) = change.left {
            log_memory(left, now, self.bytes_max);
        }
        if change.purges {
            let Reading { held, resident } = now;
            let limit = self.bytes_max;
            tracing::info!(used = held, resident, limit, "free memory was returned to the system");
        }
        change
    }

    fn read(
        &self,
        take: impl Fn() -> Option<Reading>,
        free: impl FnOnce() -> usize,
    ) -> Option<Reading> {
        let now = take()?;
        let is_enough = self.level(now) == Memory::Enough;
        if is_enough || free() == 0 { Some(now) } else { take() }
    }

    fn level(&self, now: Reading) -> Memory {
        let before = self.left;
        match () {
            () if self.is_beyond(now, 0, before >= Memory::Out) => Memory::Out,
            () if self.is_beyond(now, self.reserve_bytes, before >= Memory::Short) => Memory::Short,
            () if self.is_tight(now, before >= Memory::Tight) => Memory::Tight,
            () => Memory::Enough,
        }
    }

    fn judge(&mut self, now: Reading, at: Instant) -> Change {
        let before = self.left;
        self.is_near = before != Memory::Enough || now.resident > self.bytes_max / 2;
        self.left = self.level(now);
        let left = (self.left != before).then_some(self.left);
        let bytes = (self.left != Memory::Enough).then(|| self.bytes(now));
        Change { left, bytes, purges: self.purges(now, at), counts: self.is_near }
    }

    fn bytes(&self, now: Reading) -> Bytes {
        let resident_max = self.bytes_max + self.bytes_max / FREE_PART;
        let left = self.bytes_max.saturating_sub(now.held);
        let left = left.min(resident_max.saturating_sub(now.resident));
        let held_max = (self.bytes_max - self.reserve_bytes) / 100 * RELIEF_PERCENT;
        let relief = resident_max / 100 * RELIEF_PERCENT;
        let too_much = now.held.saturating_sub(held_max).max(now.resident.saturating_sub(relief));
        let to_free = if self.left >= Memory::Short { too_much } else { 0 };
        Bytes { left, to_free }
    }

    /// Is less left than `reserve_bytes`? `was`: it was the last time, and is no more only when
    /// there is a little more than that.
    fn is_beyond(&self, now: Reading, reserve_bytes: u64, was: bool) -> bool {
        let held_max = self.bytes_max - reserve_bytes;
        let resident_max = held_max + self.bytes_max / FREE_PART;
        let relief = |limit: u64| limit / 100 * RELIEF_PERCENT;
        match was {
            false => now.held > held_max || now.resident > resident_max,
            true => now.held >= relief(held_max) || now.resident >= relief(resident_max),
        }
    }

    /// Twice the reserve is left of what may be held: who holds most has to slow down.
    fn is_tight(&self, now: Reading, was: bool) -> bool {
        let held_max = self.bytes_max - 2 * self.reserve_bytes;
        if was { now.held >= held_max / 100 * RELIEF_PERCENT } else { now.held > held_max }
    }

    fn purges(&mut self, now: Reading, at: Instant) -> bool {
        if let Some((asked_at, before)) = self.asked {
            if at.saturating_duration_since(asked_at) < self.purge_every {
                return false;
            }
            let came_back = before.resident.saturating_sub(now.resident);
            self.purge_every = match came_back >= before.free() / 2 {
                true => PURGE_EVERY,
                false => (self.purge_every * 2).min(PURGE_EVERY_MAX),
            };
            self.asked = None;
        }
        // While memory is short each bit counts, and a small machine has no more of it free.
        let least = match self.left {
            Memory::Enough => PURGED_BYTES_MIN.max(now.resident / PURGED_PART),
            _ => PURGED_BYTES_MIN.min(self.bytes_max / FREE_PART / 2),
        };
        if now.free() < least {
            return false;
        }
        self.asked = Some((at, now));
        true
    }
}

fn log_memory(left: Memory, Reading { held, resident }: Reading, limit: u64) {
    match left {
        Memory::Enough => {
            tracing::info!(used = held, resident, limit, "below the memory limit again")
        }
        Memory::Tight => tracing::info!(
            used = held,
            resident,
            limit,
            "memory is short: the largest consumers (users, addresses) are throttled"
        ),
        Memory::Short => tracing::warn!(
            used = held,
            resident,
            limit,
            "memory limit near: publishes and subscriptions of the largest consumers are refused"
        ),
        Memory::Out => tracing::warn!(
            used = held,
            resident,
            limit,
            "memory limit reached: publishes and new connections are refused"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MIB: u64 = 1 << 20;

    fn reading(held_mib: u64, resident_mib: u64) -> Reading {
        Reading { held: held_mib * MIB, resident: resident_mib * MIB }
    }

    #[test]
    fn what_is_held_decides_and_not_what_is_resident() {
        let mut guard = MemoryGuard::new(800 * MIB);
        let start = Instant::now();
        let mut judge =
            |held_mib, resident_mib| guard.judge(reading(held_mib, resident_mib), start).left;
        assert_eq!(judge(700, 790), None);
        assert_eq!(judge(100, 840), None, "what is free is used first");
        assert_eq!(judge(801, 810), Some(Memory::Out));
        assert_eq!(judge(790, 810), None, "not yet");
        assert_eq!(judge(20, 800), Some(Memory::Enough), "though it has not come back");
        assert_eq!(judge(20, 901), Some(Memory::Out), "the machine is used up all the same");
        assert_eq!(judge(20, 870), None);
        assert_eq!(judge(20, 850), Some(Memory::Short));
        assert_eq!(judge(20, 800), Some(Memory::Enough));
    }

    #[test]
    fn what_can_be_asked_for_again_is_forgotten_before_anybody_has_to_slow_down() {
        let guard = MemoryGuard::new(800 * MIB);
        let answers = Cell::new(200_u64);
        let take = |others: u64| Some(reading(others + answers.get(), 850));
        let free = || (answers.replace(0) * MIB) as usize;
        assert_eq!(guard.read(|| take(400), free), Some(reading(600, 850)));
        assert_eq!(answers.get(), 200, "there is enough");
        let after = guard.read(|| take(590), free);
        assert_eq!(after, Some(reading(590, 850)));
        assert_eq!(guard.level(after.unwrap()), Memory::Enough);
        assert_eq!(guard.read(|| take(790), free), Some(reading(790, 850)), "nothing is left");
        assert_eq!(guard.level(reading(790, 850)), Memory::Short);
    }

    #[test]
    fn a_password_check_makes_no_difference() {
        let idle = reading(300, 310).with_apart((40 * MIB, 0));
        let one_check = reading(320, 330).with_apart((40 * MIB, 20 * MIB));
        assert_eq!((idle, one_check), (reading(340, 340), reading(340, 340)));
        let one_has_been = reading(300, 330).with_apart((40 * MIB, 0));
        assert_eq!(one_has_been, reading(340, 340), "what is free is there for the next");
    }

    #[test]
    fn the_last_of_it_is_for_those_who_free_some() {
        let mut guard = MemoryGuard::new(800 * MIB);
        let start = Instant::now();
        let mut judge = |held_mib| guard.judge(reading(held_mib, held_mib.max(800)), start).left;
        assert_eq!(judge(751), Some(Memory::Short), "50 MiB are left");
        assert_eq!(judge(800), None);
        assert_eq!(judge(801), Some(Memory::Out));
        assert_eq!(judge(770), None);
        assert_eq!(judge(755), Some(Memory::Short));
        assert_eq!(judge(715), None);
        assert_eq!(judge(700), Some(Memory::Tight));
        assert_eq!(judge(666), None);
        assert_eq!(judge(660), Some(Memory::Enough));
        assert_eq!(judge(701), Some(Memory::Tight), "twice as much");
        assert_eq!(MemoryGuard::new(64 << 30).reserve_bytes, 256 * MIB);
    }

    #[test]
    fn it_reports_free_memory_and_how_much_has_to_be_freed() {
        let mut guard = MemoryGuard::new(800 * MIB);
        let start = Instant::now();
        let mut judge = |held, resident| {
            let bytes = guard.judge(reading(held, resident), start).bytes;
            bytes.map(|bytes| (bytes.left / MIB, bytes.to_free / MIB))
        };
        assert_eq!(judge(600, 700), None);
        assert_eq!(judge(720, 730), Some((80, 0)));
        assert_eq!(judge(760, 780), Some((40, 47)), "back to 95 % of 750");
        assert_eq!(judge(700, 880), Some((20, 25)), "the machine has less");
        assert_eq!(judge(810, 830), Some((0, 97)));
        assert_eq!(judge(600, 700), None);
    }

    #[test]
    fn free_memory_is_asked_for_when_it_is_worth_it() {
        let mut guard = MemoryGuard::new(800 * MIB);
        let start = Instant::now();
        let mut purges = |held_mib, resident_mib, ms| {
            guard.judge(reading(held_mib, resident_mib), start + Duration::from_millis(ms)).purges
        };
        assert!(!purges(300, 331, 0), "too little");
        assert!(!purges(300, 360, 0), "a small part");
        assert!(purges(100, 400, 0));
        assert!(!purges(100, 400, 999), "it takes a moment");
        // All came back, and then the same again.
        assert!(!purges(100, 110, 1000));
        assert!(purges(100, 400, 1100));
        // Nothing came back: asked again later and later.
        assert!(purges(100, 400, 2100), "asked a second time");
        assert!(!purges(100, 400, 3200));
        assert!(purges(100, 400, 4200));
    }

    #[test]
    fn on_a_small_machine_what_is_free_is_asked_for_before_it_stands_in_the_way() {
        let mut guard = MemoryGuard::new(120 * MIB);
        let start = Instant::now();
        let change = guard.judge(reading(106, 128), start);
        assert_eq!((change.left, change.purges), (Some(Memory::Short), true));
    }

    #[test]
    fn it_looks_more_often_near_the_limit() {
        let mut guard = MemoryGuard::new(800 * MIB);
        assert_eq!(guard.interval(), LOOK_EVERY);
        guard.judge(reading(390, 410), Instant::now());
        assert_eq!(guard.interval(), LOOK_EVERY_NEAR);
        guard.judge(reading(390, 395), Instant::now());
        assert_eq!(guard.interval(), LOOK_EVERY);
    }
}
