//! What clients, topics and groups are called, and by what a name is found.
//!
//! A name means something within its scope: what two scopes call the same is not the same. All
//! tables that are asked for a name are asked with its scope, and the homes of names follow from
//! both. So far there is one scope, which [`Name::first`] and [`GroupText::first`] stand for:
//! whoever makes names of several has to say there which.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use session::Message;

use crate::ShardId;

/// Where a name means what it means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Scope(u32);

/// A client id, a topic or a filter, with its scope. Topics that are looked up for each message
/// come as bytes, which need not be proved to be text again.
#[derive(Debug, PartialEq, Eq)]
pub struct Name<'a, T: ?Sized = str> {
    scope: Scope,
    text: &'a T,
}

/// What a shared group is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupText<'a> {
    pub(crate) scope: Scope,
    pub(crate) share: &'a str,
    pub(crate) filter: &'a str,
}

impl Scope {
    /// Of everybody who has no other.
    pub const FIRST: Self = Self(0);

    #[cfg(test)]
    pub(crate) const SECOND: Self = Self(1);
}

impl<T: ?Sized> Clone for Name<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Name<'_, T> {}

impl<'a, T: ?Sized> Name<'a, T> {
    #[inline(always)]
    pub const fn new(scope: Scope, text: &'a T) -> Self {
        Self { scope, text }
    }

    /// In the first scope.
    #[inline(always)]
    pub const fn first(text: &'a T) -> Self {
        Self::new(Scope::FIRST, text)
    }

    /// By what the trees of a shard know it: the index, the interest summary, the retained store.
    /// They hold one scope.
    #[inline(always)]
    pub(crate) fn in_trees(self) -> &'a T {
        debug_assert!(self.scope == Scope::FIRST, "no tree has names of {:?}", self.scope);
        self.text
    }
}

impl<'a> Name<'a> {
    /// The topic of a message.
    pub(crate) fn of(message: &'a Message) -> Self {
        Self::first(message.topic())
    }

    /// The shard that keeps what has this name.
    pub(crate) fn home(self, shard_count: ShardId) -> ShardId {
        home_of(self.scope, &[self.text.as_bytes()], shard_count)
    }

    /// For tables within a process.
    pub(crate) fn hash(self, hasher: &FixedState) -> u64 {
        hash_of(hasher, self.scope, &[self.text.as_bytes()])
    }
}

impl<'a> Name<'a, [u8]> {
    /// The topic of a message, to be looked up.
    #[inline(always)]
    pub(crate) fn topic_of(message: &'a Message) -> Self {
        Self::first(message.topic_bytes())
    }
}

impl<'a> GroupText<'a> {
    pub(crate) const fn new(scope: Scope, share: &'a str, filter: &'a str) -> Self {
        Self { scope, share, filter }
    }

    /// In the first scope.
    pub const fn first(share: &'a str, filter: &'a str) -> Self {
        Self::new(Scope::FIRST, share, filter)
    }

    /// A share name has no `/`.
    const fn parts(&self) -> [&'a [u8]; 3] {
        [self.share.as_bytes(), b"/", self.filter.as_bytes()]
    }

    pub(crate) fn home(self, shard_count: ShardId) -> ShardId {
        home_of(self.scope, &self.parts(), shard_count)
    }

    pub(crate) fn hash(self, hasher: &FixedState) -> u64 {
        hash_of(hasher, self.scope, &self.parts())
    }
}

/// FNV-1a with a final mix: fixed for ever, as stored sessions, retained messages and groups are
/// found by it after a restart, and good enough to spread names. A scope stands behind the text and
/// a character that no text has; the first one adds nothing, which is how it always was.
fn home_of(scope: Scope, parts: &[&[u8]], shard_count: ShardId) -> ShardId {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    parts.iter().for_each(|part| add(part));
    if scope != Scope::FIRST {
        add(&[0]);
        add(&scope.0.to_le_bytes());
    }
    hash ^= hash >> 32;
    hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(hash) * u128::from(shard_count)) >> 64) as ShardId
}

fn hash_of(hasher: &FixedState, scope: Scope, parts: &[&[u8]]) -> u64 {
    let mut state = hasher.build_hasher();
    parts.iter().for_each(|part| state.write(part));
    state.write_u32(scope.0);
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_spread_over_shards_whatever_their_scope() {
        for scope in [Scope::FIRST, Scope::SECOND] {
            let mut counts = [0; 8];
            for number in 0..8000 {
                let text = format!("client-{number}");
                counts[usize::from(Name::new(scope, text.as_str()).home(8))] += 1;
            }
            assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        }
    }

    /// Stored data depends on these values.
    #[test]
    fn names_stay_in_the_shard_where_they_always_were() {
        let homes =
            ["", "client-1", "site/4/meter", "\u{fc}/ber"].map(|text| Name::first(text).home(64));
        assert_eq!(homes, [33, 54, 24, 3]);
        assert_eq!(GroupText::first("g", "jobs/#").home(64), 14);
    }

    #[test]
    fn the_same_text_in_another_scope_is_another_name() {
        let hasher = FixedState::with_seed(7);
        let (one, other) = (Name::first("a"), Name::new(Scope::SECOND, "a"));
        assert_ne!(one, other);
        assert_ne!(one.hash(&hasher), other.hash(&hasher));
        let moved = (0..100).map(|number| number.to_string()).filter(|text| {
            Name::first(text.as_str()).home(64) != Name::new(Scope::SECOND, text.as_str()).home(64)
        });
        assert!(moved.count() > 90, "the home follows from the scope, too");
    }
}
