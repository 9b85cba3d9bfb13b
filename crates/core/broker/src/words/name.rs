//! What clients, topics and groups are called, and by what a name is found.
//!
//! A name means something within its scope: what two scopes call the same is not the same. All
//! tables that are asked for a name are asked with its scope, and the homes of names follow from
//! both. Each namespace is a scope; the first one is of everybody who has no other.
//!
//! Trees and the journal know names by one text, the [key](Name::key): in the first scope it is the
//! name itself, in others the scope stands before it, as a level that no client can write and no
//! wildcard matches.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use session::Message;

use crate::words::homes::{Home, Homes, Place};

/// Where a name means what it means.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Scope(u16);

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

    pub const fn new(number: u16) -> Self {
        Self(number)
    }

    pub const fn number(self) -> u16 {
        self.0
    }

    /// Of a message's topic.
    #[inline(always)]
    pub fn of(message: &Message) -> Self {
        Self(message.scope())
    }

    /// Filters of keys that match all topics of a scope but the first.
    pub(crate) fn filters(self) -> [String; 2] {
        self.fronts().map(|front| front + "#")
    }

    /// What stands before the topics of a scope but the first, and before those that begin with
    /// `$`.
    pub(crate) fn fronts(self) -> [String; 2] {
        [front_of(self, false), front_of(self, true)]
    }

    /// What keys of other scopes than the first begin with, and no name does.
    pub(crate) const KEY_FRONT: &'static str = FRONT;

    pub const fn is_first(self) -> bool {
        self.0 == 0
    }
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

    pub const fn scope(self) -> Scope {
        self.scope
    }

    pub const fn text(self) -> &'a T {
        self.text
    }
}

/// Whether a topic or filter is below `$SYS/`, where the broker publishes what it says of itself.
pub(crate) fn is_of_broker(topic: &[u8]) -> bool {
    topic.starts_with(b"$SYS/")
}

impl<'a> Name<'a> {
    /// The topic of a message.
    pub(crate) fn of(message: &'a Message) -> Self {
        Self::new(Scope::of(message), message.topic())
    }

    /// The place that keeps what has this name. Of a client id see [`Name::home_of_client`].
    pub(crate) fn place(self, homes: Homes) -> Place {
        homes.place_of(self.home(homes))
    }

    pub(crate) fn home(self, homes: Homes) -> Home {
        let hash = stable_hash(self.scope, &[self.text.as_bytes()]);
        // Each cell has its own of what the broker says of itself.
        if homes.has_other_cells() && is_of_broker(self.text.as_bytes()) {
            return homes.own_of(hash);
        }
        homes.of(hash)
    }

    /// The shard that keeps the session of a client id. Its cell follows from the text alone: it
    /// must be known before the client has authenticated, and thus before its scope is.
    pub(crate) fn home_of_client(self, homes: Homes) -> Home {
        let of = |scope| homes.of(stable_hash(scope, &[self.text.as_bytes()]));
        Home { cell: of(Scope::FIRST).cell, shard: of(self.scope).shard }
    }

    /// What stands for a client ID in messages, in memory and in the journal. Never 0. That one of
    /// a billion other client IDs has the same is less likely than 1 in 10^10.
    pub(crate) fn author(self) -> u64 {
        stable_hash(self.scope, &[self.text.as_bytes()]).max(1)
    }

    /// For tables within a process.
    pub(crate) fn hash(self, hasher: &FixedState) -> u64 {
        hash_of(hasher, self.scope, &[self.text.as_bytes()])
    }

    /// By what the trees of a shard know it: the index, the interest summary, the retained store;
    /// and the journal.
    #[inline(always)]
    pub fn key(self) -> Cow<'a, str> {
        match self.scope {
            Scope::FIRST => Cow::Borrowed(self.text),
            scope => Cow::Owned(front_of(scope, self.text.starts_with('$')) + self.text),
        }
    }

    /// The name of a key. Stored keys do not change their meaning: what is not like one of another
    /// scope is a name of the first.
    pub fn of_key(key: &'a str) -> Self {
        split_key(key).unwrap_or(Self::first(key))
    }

    pub(crate) fn as_bytes(self) -> Name<'a, [u8]> {
        Name::new(self.scope, self.text.as_bytes())
    }
}

impl<'a> Name<'a, [u8]> {
    /// The topic of a message, to be looked up.
    #[inline(always)]
    pub(crate) fn topic_of(message: &'a Message) -> Self {
        Self::new(Scope::of(message), message.topic_bytes())
    }

    /// As [`Name::key`].
    pub(crate) fn key(self) -> Cow<'a, [u8]> {
        match self.scope {
            Scope::FIRST => Cow::Borrowed(self.text),
            _ => {
                let mut key = Vec::new();
                self.write_key(&mut key);
                Cow::Owned(key)
            }
        }
    }

    /// The same, in place of what stands there.
    pub(crate) fn write_key(self, key: &mut Vec<u8>) {
        key.clear();
        if !self.scope.is_first() {
            key.extend_from_slice(front_of(self.scope, self.text.starts_with(b"$")).as_bytes());
        }
        key.extend_from_slice(self.text);
    }
}

/// What stands before a name of another scope than the first. It begins with a `$`, so wildcards in
/// the first level of a filter do not match it (MQTT-4.7.2-1), and has a character that no client
/// may send (MQTT-1.5.4-2). A second `$` is for names that begin with one themselves, which the
/// wildcards in the first level of their own scope must not match either.
fn front_of(scope: Scope, is_of_server: bool) -> String {
    let mut front = String::with_capacity(FRONT_BYTES_MAX);
    // A string takes all that is written.
    let _ = write!(front, "{FRONT}{}{}", scope.0, if is_of_server { "$/" } else { "/" });
    front
}

fn split_key(key: &str) -> Option<Name<'_>> {
    let (front, text) = key.strip_prefix(FRONT)?.split_once('/')?;
    let number = front.strip_suffix('$').unwrap_or(front).parse().ok()?;
    Some(Name::new(Scope(number), text))
}

const FRONT: &str = "$\u{0}";

/// A number of 16 bits, and what is around it.
pub(crate) const FRONT_BYTES_MAX: usize = FRONT.len() + 5 + 2;

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

    pub(crate) fn place(self, homes: Homes) -> Place {
        homes.place_of(homes.of(stable_hash(self.scope, &self.parts())))
    }

    pub(crate) fn hash(self, hasher: &FixedState) -> u64 {
        hash_of(hasher, self.scope, &self.parts())
    }
}

/// FNV-1a with a final mix: fixed for ever, as stored sessions, retained messages and groups are
/// found by it after a restart, and good enough to spread names. A scope stands behind the text and
/// a character that no text has; the first one adds nothing, which is how it always was.
fn stable_hash(scope: Scope, parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    };
    parts.iter().for_each(|part| add(part));
    if scope != Scope::FIRST {
        add(&[0]);
        add(&u32::from(scope.0).to_le_bytes());
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn hash_of(hasher: &FixedState, scope: Scope, parts: &[&[u8]]) -> u64 {
    let mut state = hasher.build_hasher();
    parts.iter().for_each(|part| state.write(part));
    state.write_u32(scope.0.into());
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
                let place = Name::new(scope, text.as_str()).place(Homes::of_one_cell(8));
                counts[usize::from(place)] += 1;
            }
            assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        }
    }

    /// Stored data depends on these values.
    #[test]
    fn names_stay_in_the_shard_where_they_always_were() {
        let homes = ["", "client-1", "site/4/meter", "\u{fc}/ber"]
            .map(|text| Name::first(text).place(Homes::of_one_cell(64)));
        assert_eq!(homes, [33, 54, 24, 3]);
        assert_eq!(GroupText::first("g", "jobs/#").place(Homes::of_one_cell(64)), 14);
    }

    #[test]
    fn the_cell_of_a_client_follows_from_its_id_alone() {
        let homes = Homes::new(3, 1, 4);
        let mut shards = [0; 4];
        for number in 0..1000 {
            let id = format!("client-{number}");
            let homes = [Scope::FIRST, Scope::SECOND]
                .map(|scope| Name::new(scope, id.as_str()).home_of_client(homes));
            assert_eq!(homes[0].cell, homes[1].cell);
            shards[usize::from(homes[1].shard)] += 1;
        }
        assert!(shards.iter().all(|count| (200..300).contains(count)), "{shards:?}");
    }

    #[test]
    fn a_broker_of_one_cell_keeps_clients_like_other_names() {
        let homes = Homes::of_one_cell(64);
        for scope in [Scope::FIRST, Scope::SECOND] {
            let name = Name::new(scope, "client-1");
            assert_eq!(name.home_of_client(homes).shard, name.place(homes));
        }
    }

    /// Stored data depends on these values.
    #[test]
    fn client_ids_are_known_by_what_they_always_were() {
        let [first, second] = [Scope::FIRST, Scope::SECOND].map(|it| Name::new(it, "client-1"));
        assert_eq!(first.author(), 0xda92_22d4_902f_25e2);
        assert_eq!(second.author(), 0xbaf8_aff4_ba99_bbb7);
    }

    #[test]
    fn keys_are_read_back_and_no_wildcard_leaves_its_scope() {
        let scopes = [Scope::FIRST, Scope::SECOND, Scope::new(10), Scope::new(u16::MAX)];
        let topics = ["a", "a/b", "/", "$SYS/x", "$", "\u{fc}/b"];
        let filters = ["#", "+/#", "+", "a/#", "$SYS/#", "$SYS/+", "+/x", "/+"];
        for (scope, topic) in scopes.iter().flat_map(|scope| topics.map(|topic| (*scope, topic))) {
            let name = Name::new(scope, topic);
            let key = name.key().into_owned();
            assert!(key.len() <= FRONT_BYTES_MAX + topic.len());
            assert_eq!(Name::of_key(&key), name);
            assert_eq!(*name.as_bytes().key(), *key.as_bytes());
            for (other, filter) in scopes.iter().flat_map(|s| filters.map(|f| (*s, f))) {
                let matches = topic::matches(&Name::new(other, filter).key(), &key);
                assert_eq!(matches, scope == other && topic::matches(filter, topic));
            }
        }
    }

    /// Stored data depends on these bytes.
    #[test]
    fn keys_are_what_they_always_were() {
        let second = |text: &'static str| Name::new(Scope::SECOND, text).key();
        assert_eq!(Name::first("a/b").key(), "a/b");
        assert_eq!(second("a/b"), "$\u{0}1/a/b");
        assert_eq!(second("$SYS/a"), "$\u{0}1$/$SYS/a");
        assert_eq!(Name::new(Scope::SECOND, "client-1").place(Homes::of_one_cell(64)), 46);
    }

    #[test]
    fn the_same_text_in_another_scope_is_another_name() {
        let hasher = FixedState::with_seed(7);
        let (one, other) = (Name::first("a"), Name::new(Scope::SECOND, "a"));
        assert_ne!(one, other);
        assert_ne!(one.hash(&hasher), other.hash(&hasher));
        let moved = (0..100).map(|number| number.to_string()).filter(|text| {
            Name::first(text.as_str()).place(Homes::of_one_cell(64))
                != Name::new(Scope::SECOND, text.as_str()).place(Homes::of_one_cell(64))
        });
        assert!(moved.count() > 90, "the home follows from the scope, too");
    }
}
