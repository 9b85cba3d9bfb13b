//! Remembers which credentials were right, so that a storm of reconnects is not a storm of hashing.
//!
//! Only keyed digests are kept, so a core dump holds nothing that can be tried offline without the
//! key of this very process. Wrong credentials are not remembered: whoever guesses pays each time.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::Proof;
use super::random::random;

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

/// The same of credentials about which somebody else has said something, for as long as it holds.
pub(super) struct ProofCache {
    key: [u8; 32],
    entries_max: usize,
    young: HashMap<Digest, (Instant, Proof)>,
    old: HashMap<Digest, (Instant, Proof)>,
}

impl ProofCache {
    pub(super) fn new(entries_max: usize) -> Self {
        Self { key: random(), entries_max, young: HashMap::new(), old: HashMap::new() }
    }

    pub(super) fn digest(&self, first: &str, second: &[u8]) -> Digest {
        digest(&self.key, first, second)
    }

    pub(super) fn get(&mut self, digest: &Digest, now: Instant) -> Option<Proof> {
        let found = self.young.get(digest).or_else(|| self.old.get(digest));
        found.filter(|(until, _)| *until > now).map(|(_, proof)| proof.clone())
    }

    pub(super) fn remember(&mut self, digest: Digest, proof: Proof, until: Instant, now: Instant) {
        if self.young.len() >= self.entries_max / 2 {
            self.young.retain(|_, (until, _)| *until > now);
        }
        if self.young.len() >= self.entries_max / 2 {
            self.old = std::mem::take(&mut self.young);
        }
        if self.entries_max >= 2 {
            self.young.insert(digest, (until, proof));
        }
    }

    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
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

    #[test]
    fn proofs_are_bounded_and_end_in_time() {
        let now = Instant::now();
        let mut cache = ProofCache::new(10);
        for number in 0..100u8 {
            let digest = cache.digest("", &[number]);
            let proof = Proof { username: Some(number.to_string()), ..Proof::default() };
            cache.remember(digest, proof.clone(), now + HOUR, now);
            assert_eq!(cache.get(&digest, now), Some(proof));
            assert_eq!(cache.get(&digest, now + HOUR), None);
            assert!(cache.young.len() + cache.old.len() <= 10);
        }
        assert_eq!(cache.get(&cache.digest("", &[0]), now), None, "the oldest made room");
    }

    #[test]
    fn digests_tell_name_and_password_apart() {
        let cache = VerdictCache::new(10, HOUR, Instant::now());
        assert_ne!(cache.digest("ab", b"c"), cache.digest("a", b"bc"));
        let other = VerdictCache::new(10, HOUR, Instant::now());
        assert_ne!(cache.digest("a", b"b"), other.digest("a", b"b"));
    }
}
