//! Remembers which credentials were right, so that a storm of reconnects is not a storm of hashing.
//!
//! Only keyed digests are kept, so a core dump holds nothing that can be tried offline without the
//! key of this very process. Wrong credentials are not remembered: whoever guesses pays each time.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::time::{Duration, Instant};

use driver::Origin;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Proof;
use base::random;

/// A bounded set of digests in two generations: when the young one is half of the limit, or too
/// old, it becomes the old one and the old one is forgotten. An entry that is asked for becomes
/// young.
pub(crate) struct VerdictCache {
    key: [u8; 32],
    entries_max: usize,
    generation_max: Duration,
    young_since: Instant,
    young: HashSet<Digest>,
    old: HashSet<Digest>,
}

/// The keyed digest of a user name and a password.
pub(crate) type Digest = [u8; 32];

impl VerdictCache {
    /// An entry lives between half of `lifetime` and all of it.
    pub(crate) fn new(entries_max: usize, lifetime: Duration, now: Instant) -> Self {
        Self {
            key: random(),
            entries_max,
            generation_max: lifetime / 2,
            young_since: now,
            young: HashSet::new(),
            old: HashSet::new(),
        }
    }

    pub(crate) fn digest(&self, username: &str, password: &[u8]) -> Digest {
        digest(&self.key, username, password)
    }

    /// True when these credentials were right not long ago.
    pub(crate) fn knows(&mut self, digest: &Digest, now: Instant) -> bool {
        self.age(now);
        self.young.contains(digest) || self.old.contains(digest)
    }

    pub(crate) fn remember(&mut self, digest: Digest, now: Instant) {
        self.age(now);
        if self.young.len() >= self.entries_max / 2 {
            self.turn(now);
        }
        if self.entries_max >= 2 {
            self.young.insert(digest);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    fn age(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.young_since);
        if age >= 2 * self.generation_max {
            self.clear();
            self.young_since = now;
        } else if age >= self.generation_max {
            self.turn(now);
        }
    }

    fn turn(&mut self, now: Instant) {
        self.old = std::mem::take(&mut self.young);
        self.young_since = now;
    }
}

/// Answers that are remembered take this many bytes at most: above it those that end soonest go.
const PROOF_BYTES_MAX: usize = 32 << 20;

/// While more than half of it is used, one user name and one address have this part of it: an
/// answer beyond that is not remembered. A proxy in front of all clients may use half.
const OWNER_PART: usize = 16;

/// What an entry takes in the maps, in addition to what its answer points to.
const ENTRY_BYTES: usize = 512;

/// Who caused an answer to be remembered: its address, and a number for its user name.
pub(super) type Asker = (Origin, u64);

/// The answers of a service about credentials, each for as long as it holds. Bounded in entries
/// and in bytes, also for each user name and each address.
pub(super) struct ProofCache {
    key: [u8; 32],
    entries_max: usize,
    bytes_max: usize,
    bytes: usize,
    /// How often it was cleared.
    generation: u64,
    entries: HashMap<Digest, Entry>,
    /// The one that ends first is the first.
    ends: BTreeSet<(Instant, Digest)>,
    by_user: HashMap<u64, usize>,
    by_origin: HashMap<Origin, usize>,
}

struct Entry {
    until: Instant,
    proof: Proof,
    bytes: usize,
    asker: Asker,
}

impl ProofCache {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            key: random(),
            entries_max,
            bytes_max: PROOF_BYTES_MAX,
            bytes: 0,
            generation: 0,
            entries: HashMap::new(),
            ends: BTreeSet::new(),
            by_user: HashMap::new(),
            by_origin: HashMap::new(),
        }
    }

    pub(super) fn digest(&self, first: &str, second: &[u8]) -> Digest {
        digest(&self.key, first, second)
    }

    pub(super) fn get(&mut self, digest: &Digest, now: Instant) -> Option<Proof> {
        let found = self.entries.get(digest).filter(|entry| entry.until > now);
        found.map(|entry| entry.proof.clone())
    }

    pub(super) fn remember(
        &mut self,
        digest: Digest,
        (proof, asker): (Proof, Asker),
        until: Instant,
        now: Instant,
    ) {
        self.remove(&digest);
        while let Some(&(end, first)) = self.ends.first()
            && end <= now
        {
            self.remove(&first);
        }
        let bytes = ENTRY_BYTES + bytes_of(&proof);
        let share = self.bytes_max / OWNER_PART;
        let of_user = self.by_user.get(&asker.1).copied().unwrap_or(0);
        let of_origin = self.by_origin.get(&asker.0).copied().unwrap_or(0);
        let is_beyond = of_user.max(of_origin) + bytes > share;
        if self.entries_max == 0 || is_beyond && self.bytes + bytes > self.bytes_max / 2 {
            return;
        }
        while (self.entries.len() >= self.entries_max || self.bytes + bytes > self.bytes_max)
            && let Some(&(_, first)) = self.ends.first()
        {
            self.remove(&first);
        }
        self.bytes += bytes;
        *self.by_user.entry(asker.1).or_default() += bytes;
        *self.by_origin.entry(asker.0).or_default() += bytes;
        self.ends.insert((until, digest));
        self.entries.insert(digest, Entry { until, proof, bytes, asker });
    }

    /// Forgets everything, with the memory of the maps. Returns how many bytes that were.
    pub(super) fn clear(&mut self) -> usize {
        let bytes = self.bytes;
        let (key, bytes_max, generation) = (self.key, self.bytes_max, self.generation + 1);
        *self = Self { key, bytes_max, generation, ..Self::new(self.entries_max) };
        bytes
    }

    /// What was asked under another one is not remembered any more.
    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    fn remove(&mut self, digest: &Digest) {
        let Some(entry) = self.entries.remove(digest) else { return };
        self.ends.remove(&(entry.until, *digest));
        self.bytes -= entry.bytes;
        take_from(&mut self.by_user, entry.asker.1, entry.bytes);
        take_from(&mut self.by_origin, entry.asker.0, entry.bytes);
    }
}

fn take_from<K: Eq + Hash>(sums: &mut HashMap<K, usize>, owner: K, bytes: usize) {
    if let MapEntry::Occupied(mut sum) = sums.entry(owner) {
        *sum.get_mut() -= bytes;
        if *sum.get() == 0 {
            sum.remove();
        }
    }
}

/// What an answer points to, roughly.
fn bytes_of(proof: &Proof) -> usize {
    let username = proof.username.as_ref().map_or(0, String::len);
    username + proof.attributes.bytes() + proof.rules.bytes()
}

fn digest(key: &[u8; 32], first: &str, second: &[u8]) -> Digest {
    let mut mac = keyed(key);
    // The length in front keeps ("ab", "c") and ("a", "bc") apart.
    mac.update(&(first.len() as u64).to_le_bytes());
    mac.update(first.as_bytes());
    mac.update(second);
    mac.finalize().into_bytes().into()
}

/// HMAC-SHA-256 with a key.
pub(crate) fn keyed(key: &[u8]) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length")
}

#[cfg(test)]
mod tests {
    use policy::Attribute;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn entries_are_bounded_and_the_newest_stay() {
        let now = Instant::now();
        let mut cache = VerdictCache::new(10, HOUR, now);
        let digests: Vec<Digest> = (0..100u8).map(|n| cache.digest("u", &[n])).collect();
        for digest in &digests {
            cache.remember(*digest, now);
            assert!(cache.knows(digest, now));
            assert!(cache.young.len() + cache.old.len() <= 10);
        }
        assert!(!cache.knows(&digests[0], now));
    }

    #[test]
    fn entries_grow_old() {
        let start = Instant::now();
        let mut cache = VerdictCache::new(10, HOUR, start);
        let digest = cache.digest("u", b"p");
        cache.remember(digest, start);
        assert!(cache.knows(&digest, start + HOUR / 2));
        assert!(!cache.knows(&digest, start + HOUR));
        cache.remember(digest, start + HOUR);
        assert!(!cache.knows(&digest, start + 10 * HOUR));
    }

    #[test]
    fn a_cache_of_none_remembers_nothing() {
        let now = Instant::now();
        let mut cache = VerdictCache::new(0, HOUR, now);
        let digest = cache.digest("u", b"p");
        cache.remember(digest, now);
        assert!(!cache.knows(&digest, now));
    }

    fn origin(number: u16) -> Origin {
        let [high, low] = number.to_be_bytes();
        Origin::V4([10, 0, high, low])
    }

    fn proof(bytes: usize) -> Proof {
        let value = Attribute::Text("x".repeat(bytes).into());
        let attributes = policy::Attributes::new([("a".into(), value)]);
        Proof { attributes, ..Proof::default() }
    }

    fn sums_are_right(cache: &ProofCache) {
        let sum = cache.entries.values().map(|entry| entry.bytes).sum::<usize>();
        assert_eq!(cache.bytes, sum);
        assert_eq!(cache.by_user.values().sum::<usize>(), sum);
        assert_eq!(cache.by_origin.values().sum::<usize>(), sum);
        assert_eq!(cache.ends.len(), cache.entries.len());
        assert!(cache.bytes <= cache.bytes_max);
    }

    #[test]
    fn proofs_are_bounded_and_end_in_time() {
        let now = Instant::now();
        let mut cache = ProofCache::new(10);
        for number in 0..100u8 {
            let digest = cache.digest("", &[number]);
            let proof = Proof { username: Some(number.to_string()), ..Proof::default() };
            let until = now + HOUR + Duration::from_secs(number.into());
            let asker = (origin(number.into()), number.into());
            cache.remember(digest, (proof.clone(), asker), until, now);
            assert_eq!(cache.get(&digest, now), Some(proof));
            assert_eq!(cache.get(&digest, until), None);
            assert!(cache.entries.len() <= 10);
            sums_are_right(&cache);
        }
        assert_eq!(cache.get(&cache.digest("", &[0]), now), None, "the oldest made room");
        let digest = cache.digest("", &[200]);
        let last = now + 3 * HOUR;
        cache.remember(digest, (proof(1), (origin(0), 0)), last + HOUR, last);
        assert_eq!(cache.entries.len(), 1, "what has ended is forgotten");
        cache.clear();
        assert_eq!(cache.get(&digest, last), None);
        sums_are_right(&cache);
    }

    #[test]
    fn proofs_are_bounded_in_bytes() {
        let now = Instant::now();
        let mut cache = ProofCache::new(100_000);
        for number in 0..3_000u16 {
            let digest = cache.digest("", &number.to_be_bytes());
            let proof = proof(30 << 10);
            cache.remember(digest, (proof, (origin(number), number.into())), now + HOUR, now);
            assert!(cache.get(&digest, now).is_some(), "{number}");
        }
        sums_are_right(&cache);
    }

    #[test]
    fn one_user_and_one_address_have_a_part_of_the_proofs() {
        let now = Instant::now();
        for is_one_user in [true, false] {
            let mut cache = ProofCache::new(100_000);
            let honest = cache.digest("honest", b"");
            cache.remember(honest, (proof(100), (Origin::Local, 70_000)), now + HOUR, now);
            for number in 0..3_000u16 {
                let digest = cache.digest("", &number.to_be_bytes());
                let asker =
                    if is_one_user { (origin(number), 1) } else { (origin(1), number.into()) };
                cache.remember(digest, (proof(30 << 10), asker), now + 2 * HOUR, now);
            }
            assert!(cache.get(&honest, now).is_some(), "others' answers stay");
            assert!(cache.bytes <= PROOF_BYTES_MAX / 2);
            let other = cache.digest("other", b"");
            cache.remember(other, (proof(100), (Origin::Local, 70_001)), now + HOUR, now);
            assert!(cache.get(&other, now).is_some(), "others' answers find room");
            sums_are_right(&cache);
        }
    }

    #[test]
    fn digests_distinguish_name_and_password() {
        let cache = VerdictCache::new(10, HOUR, Instant::now());
        assert_ne!(cache.digest("ab", b"c"), cache.digest("a", b"bc"));
        let other = VerdictCache::new(10, HOUR, Instant::now());
        assert_ne!(cache.digest("a", b"b"), other.digest("a", b"b"));
    }
}
