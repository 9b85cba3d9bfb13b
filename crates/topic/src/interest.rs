//! Which shards may want a topic: a summary of all their filters that every publisher can read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::filter::has_wildcard;
use crate::hash::TextHasher;

/// A table of shard masks that all shards of a process share. Reading it is wait-free, a false
/// positive costs a message to a shard that does not want it, a false negative never occurs.
///
/// An exact filter marks the bucket of its whole text. A wildcard filter marks the bucket of its
/// literal levels before the first wildcard; a topic asks for itself and for each of its prefixes.
/// Depths at which no wildcard filter begins are not asked for, and the levels below the deepest
/// are not even read, so a broker of exact filters pays for one look-up.
///
/// Memory: a page of 4 KiB for each 256 buckets once a filter falls into them, 16 MiB at most with
/// 2^20 buckets, and 16 bytes per page from the start.
///
/// Ordering: once [`InterestCounts::add`] has returned, every look-up that happens after it (say,
/// on a publish that follows the SUBACK) sees the shard.
#[derive(Debug)]
pub struct Interest {
    hasher: TextHasher,
    buckets_log2: u8,
    pages: Box<[OnceLock<Box<[Bucket; PAGE_LEN]>>]>,
    /// For wildcard filters without a literal level before the wildcard, as `#` and `+/a`.
    root: Bucket,
    /// How many claims of wildcard filters there are per number of literal levels.
    depths: [AtomicU32; DEPTHS],
    /// The most literal levels that a wildcard filter ever had.
    deepest: AtomicUsize,
}

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
    /// A table of `2^buckets_log2` buckets (8 to 28; 20 suits a million filters). The seed should
    /// be one that clients cannot guess.
    ///
    /// # Panics
    ///
    /// When `buckets_log2` is out of range.
    pub fn new(buckets_log2: u8, seed: u64) -> Self {
        assert!((PAGE_LOG2..=28).contains(&buckets_log2), "2^{buckets_log2} interest buckets");
        let page_count = 1 << (buckets_log2 - PAGE_LOG2);
        Self {
            hasher: TextHasher::new(seed),
            buckets_log2,
            pages: std::iter::repeat_with(OnceLock::new).take(page_count).collect(),
            root: Bucket::default(),
            depths: [const { AtomicU32::new(0) }; DEPTHS],
            deepest: AtomicUsize::new(0),
        }
    }

    /// The shards that may want `topic`, which must have passed [`crate::check_topic`].
    pub fn shards(&self, topic: &[u8]) -> Interested {
        let mut found = self.look_up(self.exact_place(topic));
        // MQTT-4.7.2-1: the wildcards of the first level do not see topics that begin with `$`.
        if !topic.starts_with(b"$") {
            found.join(self.root.load());
        }
        for (depth, prefix) in prefixes(topic).take(self.deepest.load(Ordering::Acquire)) {
            if self.depths[depth].load(Ordering::Acquire) > 0 {
                found.join(self.look_up(self.prefix_place(prefix)));
            }
        }
        found
    }

    /// Where the claims of a filter are kept.
    fn place(&self, filter: &str) -> Place {
        if !has_wildcard(filter) {
            return Place { bucket: Some(self.exact_place(filter.as_bytes())), depth: None };
        }
        let is_literal = |level: &str| level != "+" && level != "#";
        let literals = filter.split('/').take_while(|level| is_literal(level)).count();
        // Prefixes deeper than the table knows are entered by their upper levels, which is wider.
        match prefixes(filter.as_bytes()).take(literals).last() {
            None => Place { bucket: None, depth: None },
            Some((depth, prefix)) => {
                Place { bucket: Some(self.prefix_place(prefix)), depth: Some(depth) }
            }
        }
    }

    fn exact_place(&self, text: &[u8]) -> usize {
        self.fold(self.hasher.hash_bytes(text))
    }

    /// Prefixes live in a hash space of their own: the exact filter `a` and the prefix of `a/#`
    /// fall into different buckets.
    fn prefix_place(&self, prefix: &[u8]) -> usize {
        self.fold(!self.hasher.hash_bytes(prefix).rotate_left(32))
    }

    fn fold(&self, hash: u64) -> usize {
        (hash >> (64 - self.buckets_log2)) as usize
    }

    fn look_up(&self, place: usize) -> Interested {
        let page = self.pages[place >> PAGE_LOG2].get();
        page.map_or(Interested::default(), |page| page[place & PAGE_MASK].load())
    }

    fn bucket(&self, place: Option<usize>) -> &Bucket {
        let Some(place) = place else { return &self.root };
        let page = self.pages[place >> PAGE_LOG2]
            .get_or_init(|| Box::new([const { Bucket::new() }; PAGE_LEN]));
        &page[place & PAGE_MASK]
    }
}

impl Interested {
    fn join(&mut self, other: Self) {
        self.wants |= other.wants;
        self.promises |= other.promises;
    }
}

/// One shard's own counts behind its bits in an [`Interest`]: a bit is cleared when the last filter
/// of its bucket goes.
///
/// Counts are a byte each. One that has reached 255 stays there: the bit is then never cleared,
/// which costs false positives for that bucket and nothing else.
#[derive(Debug)]
pub struct InterestCounts {
    shard_bit: u64,
    pages: Box<[Option<Box<[Counts; PAGE_LEN]>>]>,
    root: Counts,
}

impl InterestCounts {
    /// The counts of a shard that has no filters yet.
    ///
    /// # Panics
    ///
    /// When `shard` is not below [`SHARDS_MAX`].
    pub fn new(shard: u16, interest: &Interest) -> Self {
        assert!(shard < SHARDS_MAX, "shard {shard} has no bit in a mask of {SHARDS_MAX}");
        Self {
            shard_bit: 1 << shard,
            pages: std::iter::repeat_with(|| None).take(interest.pages.len()).collect(),
            root: Counts::default(),
        }
    }

    /// Claims a filter, once more than before. For [`Claim::Want`] the moment is
    /// [`crate::Subscribed::is_first`]; for [`Claim::Promise`] it is `is_first_promise`, and
    /// whatever else (a durable group) the caller counts as a promise.
    pub fn add(&mut self, interest: &Interest, filter: &str, claim: Claim) {
        let place = interest.place(filter);
        if let Some(depth) = place.depth {
            interest.depths[depth].fetch_add(1, Ordering::Release);
            interest.deepest.fetch_max(depth, Ordering::Release);
        }
        let count = self.count(place.bucket, claim);
        *count = count.saturating_add(1);
        if *count == 1 {
            interest.bucket(place.bucket).mask(claim).fetch_or(self.shard_bit, Ordering::Release);
        }
    }

    /// Takes back one claim that was added for the same filter.
    pub fn remove(&mut self, interest: &Interest, filter: &str, claim: Claim) {
        let place = interest.place(filter);
        let count = self.count(place.bucket, claim);
        debug_assert!(*count > 0, "no claim on {filter}");
        if *count < SATURATED {
            *count -= 1;
            if *count == 0 {
                let bucket = interest.bucket(place.bucket);
                bucket.mask(claim).fetch_and(!self.shard_bit, Ordering::Release);
            }
        }
        if let Some(depth) = place.depth {
            interest.depths[depth].fetch_sub(1, Ordering::Release);
        }
    }

    fn count(&mut self, place: Option<usize>, claim: Claim) -> &mut u8 {
        let counts = match place {
            None => &mut self.root,
            Some(place) => {
                let page = &mut self.pages[place >> PAGE_LOG2];
                let page = page.get_or_insert_with(|| Box::new([Counts::default(); PAGE_LEN]));
                &mut page[place & PAGE_MASK]
            }
        };
        match claim {
            Claim::Want => &mut counts.wants,
            Claim::Promise => &mut counts.promises,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// None: the root bucket.
    bucket: Option<usize>,
    /// The literal levels of a wildcard filter that has any.
    depth: Option<usize>,
}

#[derive(Debug, Default)]
struct Bucket {
    wants: AtomicU64,
    promises: AtomicU64,
}

impl Bucket {
    const fn new() -> Self {
        Self { wants: AtomicU64::new(0), promises: AtomicU64::new(0) }
    }

    fn load(&self) -> Interested {
        Interested {
            wants: self.wants.load(Ordering::Acquire),
            promises: self.promises.load(Ordering::Acquire),
        }
    }

    fn mask(&self, claim: Claim) -> &AtomicU64 {
        match claim {
            Claim::Want => &self.wants,
            Claim::Promise => &self.promises,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    wants: u8,
    promises: u8,
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

/// Shards that fit the masks.
pub const SHARDS_MAX: u16 = 64;
/// Wildcard filters are told apart by at most this many literal levels, less one.
const DEPTHS: usize = 32;
const SATURATED: u8 = u8::MAX;
const PAGE_LOG2: u8 = 8;
const PAGE_LEN: usize = 1 << PAGE_LOG2;
const PAGE_MASK: usize = PAGE_LEN - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(interest: &Interest, topic: &str) -> u64 {
        interest.shards(topic.as_bytes()).wants
    }

    #[test]
    fn each_shard_shows_and_clears_its_own_bit() {
        let interest = Interest::new(16, 1);
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
    fn promises_and_wants_are_apart() {
        let interest = Interest::new(16, 1);
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
        let interest = Interest::new(20, 1);
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
    fn a_saturated_count_never_clears_its_bit() {
        let interest = Interest::new(8, 1);
        let mut counts = InterestCounts::new(0, &interest);
        for _ in 0..300 {
            counts.add(&interest, "#", Claim::Want);
        }
        for _ in 0..300 {
            counts.remove(&interest, "#", Claim::Want);
        }
        assert_eq!(wants(&interest, "anything"), 1);
        for _ in 0..254 {
            counts.add(&interest, "x", Claim::Want);
        }
        for _ in 0..254 {
            counts.remove(&interest, "x", Claim::Want);
        }
        assert_eq!(interest.look_up(interest.exact_place(b"x")).wants, 0);
    }

    #[test]
    fn filters_deeper_than_the_table_are_entered_by_their_upper_levels() {
        let interest = Interest::new(16, 1);
        let mut counts = InterestCounts::new(0, &interest);
        let deep = "level/".repeat(DEPTHS + 10);
        counts.add(&interest, &format!("{deep}#"), Claim::Want);
        assert_eq!(wants(&interest, &format!("{deep}end")), 1);
        counts.remove(&interest, &format!("{deep}#"), Claim::Want);
        assert_eq!(wants(&interest, &format!("{deep}end")), 0);
    }

    #[test]
    fn empty_levels_are_levels() {
        let interest = Interest::new(16, 1);
        let mut counts = InterestCounts::new(0, &interest);
        counts.add(&interest, "/+", Claim::Want);
        assert_eq!(wants(&interest, "/finance"), 1);
        assert_eq!(wants(&interest, "x/finance"), 0);
    }
}
