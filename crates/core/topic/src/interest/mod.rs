//! Which shards may want a topic: a summary of all their filters that every publisher can read.
//!
//! To the shards of a cell, each other cell is one more place in it, with one bit for all its
//! shards. What the shards of a cell claim together is exported, and entered there.

mod cell;
mod counts;
mod export;
mod hash;
mod summary;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

pub use counts::InterestCounts;
pub use summary::{Change, Changes, Lanes, Snapshot, SummaryError};

use self::cell::Cell;
use self::hash::{BucketHasher, FrozenHasher};
use crate::filter::has_wildcard;

/// A table of shard masks that all shards of a process share. Reading it is wait-free, a false
/// positive costs a message to a shard that does not want it, a false negative never occurs.
///
/// An exact filter marks the bucket of its whole text. A wildcard filter marks the bucket of its
/// literal levels before the first wildcard; a topic asks for itself and for each of its prefixes.
/// Depths at which no wildcard filter begins are not asked for, and the levels below the deepest
/// are not even read, so a broker of exact filters pays for one look-up.
///
/// A bucket has a lane of bits for each [`Claim`], as wide as there are shards. Memory: pages of
/// 4 KiB, made when a filter first falls into them; with 2^20 buckets a bucket's width in all, from
/// 1 MiB for up to 4 shards to 16 MiB for 64.
///
/// Ordering: once [`InterestCounts::add`] has returned, every look-up that happens after it (say,
/// on a publish that follows the SUBACK) sees the shard. In another cell this is true once it has
/// entered all changes up to [`Interest::exported`], asked for after that return.
#[derive(Debug)]
pub struct Interest {
    hasher: BucketHasher,
    buckets_log2: u8,
    /// The bits of a lane, as a power of two: 64 at most, so that no lane spans two words.
    lane_log2: u8,
    lane_mask: u64,
    pages: Box<[OnceLock<Box<Page>>]>,
    /// The lanes for wildcard filters without a literal level before the wildcard, as `#` and
    /// `+/a`: every topic asks for them.
    root: [AtomicU64; CLAIMS],
    /// Other cells that want and promise all topics, for all that is known.
    unknown: AtomicU64,
    /// How many claims of wildcard filters there are per number of literal levels. Each other cell
    /// counts as one.
    depths: [AtomicU32; DEPTHS],
    /// The most literal levels that a wildcard filter ever had.
    deepest: AtomicUsize,
    /// Grows with each claim that is added or taken back.
    version: AtomicU64,
    /// Places below this number are local shards.
    shards: u16,
    /// None: there are no other cells.
    cell: Option<Box<Cell>>,
}

type Page = [AtomicU64; PAGE_WORDS];

/// Shards that may want a topic, as bit masks: shard `n` is bit `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interested {
    /// Shards with some subscriber or group.
    pub wants: u64,
    /// Shards with some subscriber whose acceptance must be awaited before the PUBACK.
    pub promises: u64,
}

/// What a shard claims a filter for; the two are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The shard wants matching messages: [`Interested::wants`].
    Want,
    /// The shard promises to keep them: [`Interested::promises`].
    Promise,
}

impl Interest {
    /// A table for so many shards with `2^buckets_log2` buckets (8 to 28; 20 suits a million
    /// filters). The seed should be one that clients cannot guess.
    ///
    /// # Panics
    ///
    /// When `shard_count` or `buckets_log2` is out of range.
    pub fn new(shard_count: u16, buckets_log2: u8, seed: u64) -> Self {
        Self::with(BucketHasher::own(seed), shard_count, shard_count, buckets_log2)
    }

    /// The table of a cell: places below `shards` are the shards here, those up to `places` the
    /// other cells, which are unknown at first. Without any it is the table of a broker that is
    /// not in a cluster. Seed and buckets are the same in all cells.
    ///
    /// # Panics
    ///
    /// When a number is out of range.
    pub fn of_cell(shards: u16, places: u16, buckets_log2: u8, seed: u64) -> Self {
        if shards == places {
            return Self::new(shards, buckets_log2, seed);
        }
        assert!((1..places).contains(&shards), "{shards} shards among {places} places");
        let table = Self::with(BucketHasher::frozen(seed), shards, places, buckets_log2);
        Self {
            unknown: AtomicU64::new(mask_of(places) & !mask_of(shards)),
            cell: Some(Box::new(Cell::new(table.lanes(), places - shards))),
            ..table
        }
    }

    fn with(hasher: BucketHasher, shards: u16, places: u16, buckets_log2: u8) -> Self {
        assert!((1..=SHARDS_MAX).contains(&places), "{places} of {SHARDS_MAX} shards");
        let is_in_range = (8..=BUCKETS_LOG2_MAX).contains(&buckets_log2);
        assert!(is_in_range, "2^{buckets_log2} interest buckets");
        let lane_bits = places.next_power_of_two();
        let bits = (CLAIMS << buckets_log2) * usize::from(lane_bits);
        Self {
            hasher,
            buckets_log2,
            lane_log2: lane_bits.trailing_zeros() as u8,
            lane_mask: mask_of(lane_bits),
            pages: std::iter::repeat_with(OnceLock::new).take(bits.div_ceil(PAGE_BITS)).collect(),
            root: [const { AtomicU64::new(0) }; CLAIMS],
            unknown: AtomicU64::new(0),
            depths: [const { AtomicU32::new(0) }; DEPTHS],
            deepest: AtomicUsize::new(0),
            version: AtomicU64::new(1),
            shards,
            cell: None,
        }
    }

    /// Another number after each change; never 0. What [`Interest::shards`] said holds on while it
    /// is the same as before that was asked.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The shards that may want `topic`, which must have passed [`crate::check_topic`].
    #[inline]
    pub fn shards(&self, topic: &[u8]) -> Interested {
        match &self.hasher {
            BucketHasher::Own(hasher) => self.find(topic, |text| hasher.hash_bytes(text)),
            BucketHasher::Frozen(hasher) => self.find_among_cells(topic, hasher),
        }
    }

    /// Only here other cells can be unknown.
    #[inline(never)]
    fn find_among_cells(&self, topic: &[u8], hasher: &FrozenHasher) -> Interested {
        // First: a cell is known only after its claims are entered.
        let unknown = self.unknown.load(Ordering::Acquire);
        let mut found = self.find(topic, |text| hasher.hash(text));
        found.join(Interested { wants: unknown, promises: unknown });
        // Another cell's promise is within its want, also if both have changed between two loads.
        found.promises &= found.wants | mask_of(self.shards);
        found
    }

    #[inline]
    fn find(&self, topic: &[u8], hash: impl Fn(&[u8]) -> u64) -> Interested {
        let mut found = self.look_up(self.exact_place(hash(topic)));
        // MQTT-4.7.2-1: the wildcards of the first level do not see topics that begin with `$`.
        if !topic.starts_with(b"$") {
            let [wants, promises] = &self.root;
            found.wants |= wants.load(Ordering::Acquire);
            found.promises |= promises.load(Ordering::Acquire);
        }
        for (depth, prefix) in prefixes(topic).take(self.deepest.load(Ordering::Acquire)) {
            if self.depths[depth].load(Ordering::Acquire) > 0 {
                found.join(self.look_up(self.prefix_place(hash(prefix))));
            }
        }
        found
    }

    /// Where the claims of a filter are kept, and the literal levels of a wildcard filter that has
    /// any.
    fn place(&self, filter: &str) -> (usize, Option<usize>) {
        if !has_wildcard(filter) {
            return (self.exact_place(self.hasher.hash(filter.as_bytes())), None);
        }
        let is_literal = |level: &str| level != "+" && level != "#";
        let literals = filter.split('/').take_while(|level| is_literal(level)).count();
        // Prefixes deeper than the table knows are entered by their upper levels, which is wider.
        match prefixes(filter.as_bytes()).take(literals).last() {
            None => (self.root_place(), None),
            Some((depth, prefix)) => (self.prefix_place(self.hasher.hash(prefix)), Some(depth)),
        }
    }

    fn exact_place(&self, hash: u64) -> usize {
        self.fold(hash)
    }

    /// Prefixes live in a hash space of their own: the exact filter `a` and the prefix of `a/#`
    /// fall into different buckets.
    fn prefix_place(&self, hash: u64) -> usize {
        self.fold(!hash.rotate_left(32))
    }

    /// One more than those of the table.
    fn root_place(&self) -> usize {
        1 << self.buckets_log2
    }

    fn fold(&self, hash: u64) -> usize {
        (hash >> (64 - self.buckets_log2)) as usize
    }

    fn look_up(&self, place: usize) -> Interested {
        let bit = lane_of(place, Claim::Want) << self.lane_log2;
        let Some(page) = self.pages[bit / PAGE_BITS].get() else { return Interested::default() };
        let at = bit % PAGE_BITS / 64;
        let word = page[at].load(Ordering::Acquire);
        if self.lane_mask == u64::MAX {
            return Interested { wants: word, promises: page[at | 1].load(Ordering::Acquire) };
        }
        // Both lanes are in this word.
        let wants = word >> (bit % 64);
        let promises = wants >> (1 << self.lane_log2);
        Interested { wants: wants & self.lane_mask, promises: promises & self.lane_mask }
    }

    /// The word of a place's bit in a lane, and the bit.
    fn bit(&self, lane: usize, shard: u16) -> (&AtomicU64, u64) {
        if let Some(claim) = lane.checked_sub(lane_of(self.root_place(), Claim::Want)) {
            return (&self.root[claim], 1 << shard);
        }
        let bit = (lane << self.lane_log2) + usize::from(shard);
        let page = self.pages[bit / PAGE_BITS].get_or_init(new_page);
        (&page[bit % PAGE_BITS / 64], 1 << (bit % 64))
    }

    /// Does a local shard claim the lane?
    fn is_claimed_here(&self, lane: u32) -> bool {
        let (word, first) = self.bit(lane as usize, 0);
        let shards = mask_of(self.shards) << first.trailing_zeros();
        word.load(Ordering::Relaxed) & shards != 0
    }

    fn lanes(&self) -> u32 {
        lanes_of_table(self.buckets_log2)
    }

    fn count_depth(&self, depth: usize) {
        self.depths[depth].fetch_add(1, Ordering::Release);
        self.deepest.fetch_max(depth, Ordering::Release);
    }

    fn discount_depth(&self, depth: usize) {
        self.depths[depth].fetch_sub(1, Ordering::Release);
    }

    fn count_change(&self) {
        self.version.fetch_add(1, Ordering::Release);
    }
}

impl Interested {
    fn join(&mut self, other: Self) {
        self.wants |= other.wants;
        self.promises |= other.promises;
    }
}

/// Each bucket has a lane for each claim, side by side.
fn lane_of(place: usize, claim: Claim) -> usize {
    place * CLAIMS + claim as usize
}

/// The first level, the first two levels and so on, with their number, up to the deepest counted.
fn prefixes(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut end = 0;
    (1..DEPTHS).map_while(move |depth| {
        let rest = text.get(end..)?;
        let level_end = end + rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
        end = level_end + 1;
        Some((depth, &text[..level_end]))
    })
}

fn new_page() -> Box<Page> {
    Box::new([const { AtomicU64::new(0) }; PAGE_WORDS])
}

/// The lowest so many bits, 1 to 64.
const fn mask_of(bits: u16) -> u64 {
    u64::MAX >> (64 - bits)
}

/// Those of all buckets, then those of the root.
const fn lanes_of_table(buckets_log2: u8) -> u32 {
    ((1 << buckets_log2) + 1) * CLAIMS as u32
}

/// Shards that fit the masks.
pub const SHARDS_MAX: u16 = 64;
/// Wildcard filters are distinguished by at most this many literal levels, less one.
const DEPTHS: usize = 32;
const BUCKETS_LOG2_MAX: u8 = 28;
/// Variants of [`Claim`].
const CLAIMS: usize = 2;
const PAGE_WORDS: usize = 512;
const PAGE_BITS: usize = PAGE_WORDS * 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(interest: &Interest, topic: &str) -> u64 {
        interest.shards(topic.as_bytes()).wants
    }

    #[test]
    fn each_shard_shows_and_clears_its_own_bit() {
        let interest = Interest::new(SHARDS_MAX, 16, 1);
        let mut first = InterestCounts::new(0, &interest);
        let mut last = InterestCounts::new(SHARDS_MAX - 1, &interest);
        for filter in ["a/b", "a/+", "a/#"] {
            first.add(&interest, filter, Claim::Want);
            last.add(&interest, filter, Claim::Want);
            assert_eq!(wants(&interest, "a/b"), 1 << 63 | 1);
            first.remove(&interest, filter, Claim::Want);
            assert_eq!(wants(&interest, "a/b"), 1 << 63);
            last.remove(&interest, filter, Claim::Want);
            assert_eq!(wants(&interest, "a/b"), 0);
        }
    }

    #[test]
    fn the_version_is_another_after_each_change() {
        let interest = Interest::new(2, 16, 1);
        let mut counts = InterestCounts::new(0, &interest);
        let mut versions = vec![0, interest.version()];
        for filter in ["a/b", "a/+", "#"] {
            for claim in [Claim::Want, Claim::Promise] {
                counts.add(&interest, filter, claim);
                versions.push(interest.version());
                counts.remove(&interest, filter, claim);
                versions.push(interest.version());
            }
        }
        assert!(versions.is_sorted_by(|one, next| one < next), "{versions:?}");
    }

    #[test]
    fn promises_and_wants_are_apart() {
        let interest = Interest::new(4, 16, 1);
        let mut counts = InterestCounts::new(3, &interest);
        counts.add(&interest, "a/#", Claim::Want);
        assert_eq!(interest.shards(b"a"), Interested { wants: 8, promises: 0 });
        counts.add(&interest, "a/#", Claim::Promise);
        assert_eq!(interest.shards(b"a"), Interested { wants: 8, promises: 8 });
        counts.remove(&interest, "a/#", Claim::Want);
        assert_eq!(interest.shards(b"a/b/c"), Interested { wants: 0, promises: 8 });
    }

    #[test]
    fn unrelated_topics_stay_out_of_sight() {
        let interest = Interest::new(4, 20, 1);
        let mut counts = InterestCounts::new(0, &interest);
        counts.add(&interest, "site/7/+/temperature", Claim::Want);
        counts.add(&interest, "site/8", Claim::Want);
        assert_eq!(wants(&interest, "site/7/room/temperature"), 1);
        assert_eq!(wants(&interest, "site/8"), 1);
        assert_eq!(wants(&interest, "site/6/room/temperature"), 0);
        assert_eq!(wants(&interest, "site"), 0);
        assert_eq!(wants(&interest, "site/8/room"), 0);
    }

    #[test]
    fn every_number_of_shards_has_bits_of_its_own() {
        for shard_count in 1..=SHARDS_MAX {
            let interest = Interest::new(shard_count, 8, 1);
            for shard in 0..shard_count {
                let mut counts = InterestCounts::new(shard, &interest);
                for number in 0..50 {
                    counts.add(&interest, &format!("{shard}/{number}"), Claim::Promise);
                }
                counts.add(&interest, "#", Claim::Want);
            }
            let everyone = Interested { wants: u64::MAX >> (64 - shard_count), promises: 0 };
            assert_eq!(interest.root[0].load(Ordering::Acquire), everyone.wants);
            for shard in 0..shard_count {
                for number in 0..50 {
                    let found = interest.shards(format!("{shard}/{number}").as_bytes());
                    assert_ne!(found.promises & 1 << shard, 0, "{shard} of {shard_count}");
                    assert_eq!(found.promises & !everyone.wants, 0);
                    assert_eq!(found.wants, everyone.wants);
                }
            }
        }
    }

    #[test]
    fn filters_deeper_than_the_table_are_entered_by_their_upper_levels() {
        let interest = Interest::new(4, 16, 1);
        let mut counts = InterestCounts::new(0, &interest);
        let deep = "level/".repeat(DEPTHS + 10);
        counts.add(&interest, &format!("{deep}#"), Claim::Want);
        assert_eq!(wants(&interest, &format!("{deep}end")), 1);
        counts.remove(&interest, &format!("{deep}#"), Claim::Want);
        assert_eq!(wants(&interest, &format!("{deep}end")), 0);
    }

    #[test]
    fn empty_levels_are_levels() {
        let interest = Interest::new(4, 16, 1);
        let mut counts = InterestCounts::new(0, &interest);
        counts.add(&interest, "/+", Claim::Want);
        assert_eq!(wants(&interest, "/finance"), 1);
        assert_eq!(wants(&interest, "x/finance"), 0);
    }
}
