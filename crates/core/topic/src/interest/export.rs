//! What the shards of a cell claim together, and how it has changed: for other cells.

use std::collections::VecDeque;

use hashbrown::HashTable;

use super::summary::{Change, Changes, Snapshot};
use super::{Claim, DEPTHS, Interest};
use crate::hash::{shrink_sparse, spread_u64};

/// The OR of the claims of the local shards, as whoever has all changes knows it.
///
/// A lane is told from its first claim on until 10 s after its last. A promise is told with the
/// want of its bucket, and taken back before it: readers always see promises within wants.
///
/// It is used under a lock that is also held while a shard sets or clears its bits. So no other
/// order of changes exists than that of their numbers.
#[derive(Debug)]
pub(super) struct Export {
    /// A bit for each lane that readers have, or get with the changes that they lack.
    told: Vec<u64>,
    /// A bit for each depth of which the same is true.
    told_depths: u32,
    /// Claims of wildcard filters of local shards by their depth.
    depths: [u32; DEPTHS],
    /// The newest changes.
    log: VecDeque<Change>,
    /// How many there ever were, which is the number of the newest.
    newest: u64,
    held: HeldClears,
}

impl Export {
    pub(super) fn new(lanes: u32) -> Self {
        Self {
            told: vec![0; lanes.div_ceil(u64::BITS) as usize],
            told_depths: 0,
            depths: [0; DEPTHS],
            log: VecDeque::new(),
            newest: 0,
            held: HeldClears::default(),
        }
    }

    pub(super) const fn newest(&self) -> u64 {
        self.newest
    }

    /// A shard claims a lane, perhaps not for the first time.
    pub(super) fn claim(&mut self, lane: u32, depth: Option<usize>) {
        if let Some(depth) = depth {
            self.depths[depth] += 1;
            if self.told_depths & 1 << depth == 0 {
                self.told_depths |= 1 << depth;
                self.log(Change::Depth(depth as u8));
            }
        }
        self.tell(want_of(lane));
        self.tell(lane);
    }

    /// A shard takes a claim back. `is_last`: no local shard claims the lane any longer.
    pub(super) fn unclaim(&mut self, lane: u32, depth: Option<usize>, is_last: bool) {
        if let Some(depth) = depth {
            self.depths[depth] -= 1;
        }
        if is_last {
            self.held.hold(lane);
        }
    }

    /// Tells clears whose time is over, unless the lane is claimed again.
    pub(super) fn release_clears(&mut self, now_ms: u64, interest: &Interest) {
        self.held.stamp(now_ms);
        for _ in 0..CLEARS_AT_ONCE {
            let Some(HeldLane { lane, is_again }) = self.held.pop_due(now_ms) else { return };
            if interest.is_claimed_here(lane) {
                continue;
            }
            if is_again {
                self.held.hold(lane);
                self.held.stamp(now_ms);
            } else {
                self.clear(lane, interest);
            }
        }
    }

    fn clear(&mut self, lane: u32, interest: &Interest) {
        let promise = promise_of(lane);
        if lane == promise {
            self.untell(lane);
            let want = want_of(lane);
            if !interest.is_claimed_here(want) && !self.held.has(want) {
                self.held.hold(want);
            }
        } else if !self.is_told(promise) {
            // Otherwise its turn comes with the promise.
            self.untell(lane);
        }
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        // Those who have told ones in addition know more than they need.
        self.told_depths = 0;
        for depth in 1..DEPTHS {
            self.told_depths |= u32::from(self.depths[depth] > 0) << depth;
        }
        Snapshot::of_bitmap(self.newest, self.told_depths, &self.told)
    }

    pub(super) fn changes_since(&self, number: u64, max: usize) -> Option<Changes> {
        let lacking = usize::try_from(self.newest.checked_sub(number)?).ok()?;
        let skipped = self.log.len().checked_sub(lacking)?;
        let changes: Vec<Change> = self.log.iter().skip(skipped).take(max).copied().collect();
        Some(Changes { through: number + changes.len() as u64, changes })
    }

    fn is_told(&self, lane: u32) -> bool {
        self.told[(lane / u64::BITS) as usize] & 1 << (lane % u64::BITS) != 0
    }

    fn tell(&mut self, lane: u32) {
        if !self.is_told(lane) {
            self.told[(lane / u64::BITS) as usize] |= 1 << (lane % u64::BITS);
            self.log(Change::Set { lane });
        }
    }

    fn untell(&mut self, lane: u32) {
        if self.is_told(lane) {
            self.told[(lane / u64::BITS) as usize] &= !(1 << (lane % u64::BITS));
            self.log(Change::Clear { lane });
        }
    }

    fn log(&mut self, change: Change) {
        if self.log.len() == CHANGES_KEPT_MAX {
            self.log.pop_front();
        }
        self.log.push_back(change);
        self.newest += 1;
    }
}

/// Lanes whose last claim has gone. Each is there once, so there are no more than lanes.
#[derive(Debug, Default)]
struct HeldClears {
    /// In the order in which they become due, those of the same time in the order of their clears.
    queue: VecDeque<(u32, u64)>,
    /// So many at the end have no time yet.
    unstamped: usize,
    lanes: HashTable<HeldLane>,
}

#[derive(Clone, Copy, Debug)]
struct HeldLane {
    lane: u32,
    /// It was claimed and cleared again since: its time begins again.
    is_again: bool,
}

impl HeldLane {
    fn hash(&self) -> u64 {
        spread_u64(u64::from(self.lane))
    }
}

impl HeldClears {
    fn hold(&mut self, lane: u32) {
        let held = HeldLane { lane, is_again: false };
        match self.lanes.find_mut(held.hash(), |one| one.lane == lane) {
            Some(found) => found.is_again = true,
            None => {
                self.lanes.insert_unique(held.hash(), held, HeldLane::hash);
                self.queue.push_back((lane, u64::MAX));
                self.unstamped += 1;
            }
        }
    }

    fn has(&self, lane: u32) -> bool {
        let hash = HeldLane { lane, is_again: false }.hash();
        self.lanes.find(hash, |one| one.lane == lane).is_some()
    }

    /// The time of those that came since the last call begins, a little late rather than early.
    fn stamp(&mut self, now_ms: u64) {
        for (_, since_ms) in self.queue.iter_mut().rev().take(self.unstamped) {
            *since_ms = now_ms;
        }
        self.unstamped = 0;
    }

    fn pop_due(&mut self, now_ms: u64) -> Option<HeldLane> {
        let is_due = |(_, since_ms): &mut (u32, u64)| now_ms >= since_ms.saturating_add(CLEAR_MS);
        let (lane, _) = self.queue.pop_front_if(is_due)?;
        let hash = HeldLane { lane, is_again: false }.hash();
        let entry = self.lanes.find_entry(hash, |one| one.lane == lane).ok()?;
        let (held, _) = entry.remove();
        shrink_sparse(&mut self.lanes, HeldLane::hash);
        Some(held)
    }
}

/// Of the same bucket.
const fn want_of(lane: u32) -> u32 {
    lane - lane % super::CLAIMS as u32 + Claim::Want as u32
}

/// As above.
const fn promise_of(lane: u32) -> u32 {
    want_of(lane) + Claim::Promise as u32
}

/// So long after the last claim a lane is told to be clear. Clients that come back within it cost
/// no changes.
const CLEAR_MS: u64 = 10_000;
/// Clears that are looked at in a call, as shards wait for it: the others become due in the next.
pub(super) const CLEARS_AT_ONCE: usize = 16_384;
/// Changes that can be asked for: 512 KiB. A reader that is further behind needs a snapshot, which
/// is no larger with 2^20 buckets.
pub(super) const CHANGES_KEPT_MAX: usize = 65_536;
