//! What the shared groups of a process are called, and the number that stands for each.
//!
//! A group is its text: share name and filter. All shards have to mean the same by a short key, and
//! two groups must never have the same one, however their names hash. So the first shard that hears
//! of a group from a client of its own gives it a key here. The lock is taken for that alone: what
//! is mailed brings the name along.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::words::homes::Homes;
use crate::{GroupText, Name, Scope};

/// Names that may be kept of groups that are gone, beside as many as there are groups.
const GONE_MAX: usize = 64;

/// What identifies a group, on every shard alike.
#[derive(Debug)]
pub struct GroupName {
    /// Its remainder by the number of shards is the home, which is the same in every life of the
    /// broker: the home's journal keeps the queue. The key itself is another in each. Never 0.
    pub key: u64,
    pub(crate) scope: Scope,
    pub share: Box<str>,
    pub filter: Box<str>,
    /// Of the text. Others may have the same.
    pub(crate) hash: u64,
    members: Members,
}

/// How many sessions of all shards are members. Their shards say so before they notify the others,
/// who hear of it later.
#[derive(Debug, Default)]
struct Members {
    count: AtomicU32,
    /// Those of a group that the journal knows come back one by one.
    had_any: AtomicBool,
}

impl GroupName {
    pub(crate) fn text(&self) -> GroupText<'_> {
        GroupText::new(self.scope, &self.share, &self.filter)
    }

    pub(crate) fn add_member(&self) {
        self.members.count.fetch_add(1, Ordering::AcqRel);
        self.members.had_any.store(true, Ordering::Release);
    }

    pub(crate) fn remove_member(&self) {
        self.members.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// Has the last member left? What other shards still know of the group is out of date.
    pub(crate) fn is_over(&self) -> bool {
        self.members.count.load(Ordering::Acquire) == 0
            && self.members.had_any.load(Ordering::Acquire)
    }

    pub(crate) fn filter_name(&self) -> Name<'_> {
        Name::new(self.scope, &self.filter)
    }
}

/// Of all groups that any shard knows.
#[derive(Debug)]
pub(crate) struct GroupNames {
    hasher: FixedState,
    homes: Homes,
    names: Mutex<Names>,
}

#[derive(Debug, Default)]
struct Names {
    /// With their hashes. Those that nobody holds any more are gone.
    table: HashTable<(u64, Weak<GroupName>)>,
    given: u64,
    /// The number of names at which those that are gone are looked for.
    sweep_at: usize,
}

impl GroupNames {
    /// The seed is one that clients cannot guess.
    pub(crate) fn new(homes: Homes, seed: u64) -> Self {
        let names = Names { sweep_at: GONE_MAX, ..Names::default() };
        Self { hasher: FixedState::with_seed(seed), homes, names: Mutex::new(names) }
    }

    /// The name of a group: that which others hold, or a new one.
    pub(crate) fn get(&self, text: GroupText<'_>) -> Arc<GroupName> {
        self.get_hashed(text.hash(&self.hasher), text)
    }

    pub(crate) fn get_hashed(&self, hash: u64, text: GroupText<'_>) -> Arc<GroupName> {
        let mut names = self.lock();
        let mut found = None;
        names.table.find(hash, |(_, name)| {
            found = name.upgrade().filter(|name| name.text() == text);
            found.is_some()
        });
        if let Some(found) = found {
            return found;
        }
        names.given += 1;
        let (home, places) = (text.place(self.homes), self.homes.places());
        let key = names.given * u64::from(places) + u64::from(home);
        let GroupText { scope, share, filter } = text;
        let (share, filter) = (share.into(), filter.into());
        let members = Members::default();
        let name = Arc::new(GroupName { key, scope, share, filter, hash, members });
        names.insert(&name);
        name
    }

    fn lock(&self) -> MutexGuard<'_, Names> {
        // Each change is whole, whoever panicked behind it.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Names {
    fn insert(&mut self, name: &Arc<GroupName>) {
        if self.table.len() >= self.sweep_at {
            self.table.retain(|(_, name)| name.strong_count() > 0);
            self.table.shrink_to(2 * self.table.len(), |(hash, _)| *hash);
            self.sweep_at = 2 * self.table.len() + GONE_MAX;
        }
        let entry = (name.hash, Arc::downgrade(name));
        self.table.insert_unique(name.hash, entry, |(hash, _)| *hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_the_same_hash_are_different_groups() {
        let names = GroupNames::new(Homes::of_one_cell(3), 7);
        let texts = [("s", "a"), ("s", "b"), ("t", "a"), ("s", "a/b")];
        let texts = [Scope::FIRST, Scope::SECOND]
            .map(|scope| texts.map(|(share, filter)| GroupText::new(scope, share, filter)))
            .concat();
        let in_use: Vec<_> = texts.iter().map(|text| names.get_hashed(1, *text)).collect();
        for (name, text) in in_use.iter().zip(texts) {
            assert!(Arc::ptr_eq(name, &names.get_hashed(1, text)));
            assert_eq!(name.key % 3, u64::from(text.place(Homes::of_one_cell(3))));
            assert_eq!(in_use.iter().filter(|other| other.key == name.key).count(), 1);
        }
    }

    #[test]
    fn a_key_is_not_given_again() {
        let names = GroupNames::new(Homes::of_one_cell(1), 7);
        let text = GroupText::first("s", "a");
        let first = names.get(text).key;
        assert_ne!(names.get(text).key, first);
    }

    #[test]
    fn names_of_groups_that_are_gone_are_removed() {
        let names = GroupNames::new(Homes::of_one_cell(2), 7);
        let in_use: Vec<_> =
            (0..100).map(|n| names.get(GroupText::first("s", &n.to_string()))).collect();
        for number in 0..100_000 {
            names.get(GroupText::first("gone", &number.to_string()));
        }
        let count = names.lock().table.len();
        assert!(count <= 2 * in_use.len() + GONE_MAX, "{count}");
        for (number, name) in in_use.iter().enumerate() {
            assert!(Arc::ptr_eq(name, &names.get(GroupText::first("s", &number.to_string()))));
        }
    }
}
