//! What one shard claims: the bits that it sets and clears.

use std::sync::atomic::Ordering;

use hashbrown::HashTable;

use super::{Claim, Interest, lane_of};
use crate::hash::{shrink_sparse, spread_u64};

/// One shard's own counts behind its bits in an [`Interest`]: a bit is cleared when the last filter
/// of its bucket goes.
///
/// A bit stands for one claim, and most buckets have no other. Only what goes beyond is kept here,
/// so that memory follows the filters of the shard that share a bucket.
#[derive(Debug)]
pub struct InterestCounts {
    shard: u16,
    further: HashTable<Further>,
}

/// Claims on a lane beyond the first.
#[derive(Clone, Copy, Debug)]
struct Further {
    lane: u32,
    count: u32,
}

impl Further {
    fn hash(&self) -> u64 {
        spread_u64(u64::from(self.lane))
    }
}

impl InterestCounts {
    /// The counts of a shard that has no filters yet.
    ///
    /// # Panics
    ///
    /// When `interest` is for fewer shards.
    pub fn new(shard: u16, interest: &Interest) -> Self {
        assert!(shard < interest.shards, "shard {shard} has no bit in the interest table");
        Self { shard, further: HashTable::new() }
    }

    /// Claims a filter, once more than before. For [`Claim::Want`] the moment is
    /// [`crate::Subscribed::is_first`]; for [`Claim::Promise`] it is `is_first_promise`, and
    /// whatever else (a durable group) the caller counts as a promise.
    pub fn add(&mut self, interest: &Interest, filter: &str, claim: Claim) {
        let (place, depth) = interest.place(filter);
        let lane = lane_of(place, claim);
        match &interest.cell {
            None => self.enter(interest, lane, depth),
            Some(cell) => {
                let mut exporting = cell.begin();
                self.enter(interest, lane, depth);
                exporting.claim(lane as u32, depth);
            }
        }
        interest.count_change();
    }

    /// Takes back one claim that was added for the same filter.
    pub fn remove(&mut self, interest: &Interest, filter: &str, claim: Claim) {
        let (place, depth) = interest.place(filter);
        let lane = lane_of(place, claim);
        match &interest.cell {
            None => {
                self.leave(interest, lane, depth);
            }
            Some(cell) => {
                let mut exporting = cell.begin();
                let is_last =
                    self.leave(interest, lane, depth) && !interest.is_claimed_here(lane as u32);
                exporting.unclaim(lane as u32, depth, is_last);
            }
        }
        interest.count_change();
    }

    fn enter(&mut self, interest: &Interest, lane: usize, depth: Option<usize>) {
        if let Some(depth) = depth {
            interest.count_depth(depth);
        }
        let (word, bit) = interest.bit(lane, self.shard);
        if word.fetch_or(bit, Ordering::Release) & bit != 0 {
            self.count_further(lane as u32);
        }
    }

    /// Was it the last claim of this shard on the lane?
    fn leave(&mut self, interest: &Interest, lane: usize, depth: Option<usize>) -> bool {
        let is_last = !self.discount_further(lane as u32);
        if is_last {
            let (word, bit) = interest.bit(lane, self.shard);
            let before = word.fetch_and(!bit, Ordering::Release);
            debug_assert!(before & bit != 0, "no claim on lane {lane}");
        }
        if let Some(depth) = depth {
            interest.discount_depth(depth);
        }
        is_last
    }

    fn count_further(&mut self, lane: u32) {
        let further = Further { lane, count: 1 };
        let hash = further.hash();
        match self.further.find_mut(hash, |one| one.lane == lane) {
            Some(found) => found.count += 1,
            None => {
                self.further.insert_unique(hash, further, Further::hash);
            }
        }
    }

    /// False: there was one claim on the lane at most.
    fn discount_further(&mut self, lane: u32) -> bool {
        let hash = Further { lane, count: 0 }.hash();
        let Ok(mut found) = self.further.find_entry(hash, |one| one.lane == lane) else {
            return false;
        };
        found.get_mut().count -= 1;
        if found.get().count == 0 {
            found.remove();
            shrink_sparse(&mut self.further, Further::hash);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_claims_on_a_bucket_is_counted() {
        let interest = Interest::new(1, 8, 1);
        let mut counts = InterestCounts::new(0, &interest);
        for filter in ["#", "x"] {
            for _ in 0..1000 {
                counts.add(&interest, filter, Claim::Want);
            }
            assert_eq!(counts.further.len(), 1);
            for _ in 0..999 {
                counts.remove(&interest, filter, Claim::Want);
            }
            assert_eq!(interest.shards(b"x").wants, 1);
            assert!(counts.further.is_empty());
            counts.remove(&interest, filter, Claim::Want);
            assert_eq!(interest.shards(b"x").wants, 0);
        }
    }
}
