//! The shared groups that a shard knows, their members, and who of them is next.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use slab::Slab;
use topic::FilterId;

use crate::parts::group_queue::GroupQueue;
use crate::parts::members::Members;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::queue_number::KeptId;
use crate::{GroupText, SessionKey};

/// A group as one shard knows it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: Arc<GroupName>,
    pub(crate) filter: FilterId,
    pub(crate) members: Members,
    /// Where the round robin goes on, or who is stuck to.
    pub(crate) next: usize,
    /// At home: what waits. `Settings::share_queue` limits it.
    pub(crate) queue: GroupQueue,
    /// At home: the queue that the journal keeps for the group.
    pub(crate) kept: Option<KeptId>,
    /// At home: something waits for a member, and the other shards were notified.
    pub(crate) is_announced: bool,
    /// Elsewhere: the home has parked messages, so new ones go there, behind them.
    pub(crate) is_waiting: bool,
    /// Until when a group without a member is kept: its first member may be on the way, behind a
    /// message that another shard sent. [`NEVER`](session::NEVER) while it has members.
    pub(crate) forget_at_ms: u64,
}

impl Group {
    /// Without a member, and with nothing that waits.
    pub(crate) fn new(name: Arc<GroupName>, filter: FilterId, forget_at_ms: u64) -> Self {
        Self {
            name,
            filter,
            members: Members::default(),
            next: 0,
            queue: GroupQueue::default(),
            kept: None,
            is_announced: false,
            is_waiting: false,
            forget_at_ms,
        }
    }
}

/// The groups a shard knows: all of them.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) places: Slab<Group>,
    by_key: HashMap<u64, u32, FixedState>,
    /// With the hashes of their names.
    by_name: HashTable<(u64, u32)>,
    hasher: FixedState,
}

impl Groups {
    /// The seed is one that clients cannot guess.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            places: Slab::new(),
            by_key: HashMap::default(),
            by_name: HashTable::new(),
            hasher: FixedState::with_seed(seed),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub(crate) fn find(&self, text: GroupText<'_>) -> Option<u32> {
        self.find_hashed(text.hash(&self.hasher), text)
    }

    fn find_hashed(&self, hash: u64, text: GroupText<'_>) -> Option<u32> {
        let is_it =
            |(_, number): &(u64, u32)| self.name(*number).is_some_and(|name| name.text() == text);
        self.by_name.find(hash, is_it).map(|(_, number)| *number)
    }

    pub(crate) fn keys(&self) -> Vec<u64> {
        self.by_key.keys().copied().collect()
    }

    /// The names of a group that is known.
    pub(crate) fn name(&self, number: u32) -> Option<&Arc<GroupName>> {
        self.get(number).map(|group| &group.name)
    }

    /// Options and identifier of a member's subscription.
    pub(crate) fn member_bits(&self, number: u32, member: SessionKey) -> Option<(u8, u32)> {
        let member = self.get(number)?.members.get(member)?;
        Some((member.options, member.identifier))
    }

    pub(crate) fn has_durable_member(&self, number: u32) -> bool {
        self.get(number).is_some_and(|group| group.members.keep_in_journal())
    }

    pub(crate) fn is_over(&self, number: u32) -> bool {
        self.get(number).is_some_and(|group| group.name.is_over())
    }

    /// The numbers of those that have been without a member for long enough.
    pub(crate) fn forgettable(&self, now_ms: u64) -> Vec<u32> {
        let over = self.places.iter().filter(|(_, group)| group.forget_at_ms <= now_ms);
        over.map(|(number, _)| number as u32).collect()
    }

    /// The keys of those at home for which something waits.
    pub(crate) fn waiting(&self) -> Vec<u64> {
        let waiting = self.places.iter().filter(|(_, group)| group.is_announced);
        waiting.map(|(_, group)| group.name.key).collect()
    }

    pub(crate) fn by_key_mut(&mut self, key: u64) -> Option<&mut Group> {
        let number = self.number(key)?;
        self.get_mut(number)
    }

    /// The queue that the journal keeps for a group, at its home.
    pub(crate) fn kept(&self, key: u64) -> Option<KeptId> {
        self.get(self.number(key)?)?.kept
    }

    pub(crate) fn number(&self, key: u64) -> Option<u32> {
        self.by_key.get(&key).copied()
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Group> {
        self.places.get(number as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Group> {
        self.places.get_mut(number as usize)
    }

    /// All numbers are below this one.
    pub(crate) fn numbers_end(&self) -> u32 {
        self.places.iter().next_back().map_or(0, |(number, _)| number as u32 + 1)
    }

    pub(crate) fn next_number(&self) -> u32 {
        self.places.vacant_key() as u32
    }

    pub(crate) fn insert(&mut self, group: Group) -> u32 {
        let GroupName { key, hash, .. } = *group.name;
        let number = self.places.insert(group) as u32;
        self.by_key.insert(key, number);
        self.by_name.insert_unique(hash, (hash, number), |(hash, _)| *hash);
        number
    }

    /// New access rules: must each message be checked for this member? Only the member's own
    /// shard asks.
    pub(crate) fn set_check_receive(&mut self, number: u32, member: SessionKey, checks: bool) {
        let Some(group) = self.get_mut(number).expected() else { return };
        let is_member = group.members.set_check_receive(member, checks);
        debug_assert!(is_member, "a session has left the group that it lists");
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<Group> {
        let group = self.places.try_remove(number as usize)?;
        self.by_key.remove(&group.name.key);
        if let Ok(found) = self.by_name.find_entry(group.name.hash, |(_, known)| *known == number) {
            found.remove();
        }
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::group_names::GroupNames;
    use crate::{Homes, Scope};

    fn group(name: Arc<GroupName>) -> Group {
        Group::new(name, FilterId(0), 0)
    }

    #[test]
    fn groups_whose_names_have_the_same_hash_are_distinguished() {
        let (names, mut groups) = (GroupNames::new(Homes::of_one_cell(1), 7), Groups::new(7));
        let second = GroupText::new(Scope::SECOND, "s", "a");
        let first = |share, filter| GroupText::first(share, filter);
        let texts = [first("s", "a"), first("s", "b"), first("t", "a"), second];
        let numbers = texts.map(|text| {
            let number = groups.insert(group(names.get_hashed(1, text)));
            assert_eq!(groups.name(number).map(|name| groups.number(name.key)), Some(Some(number)));
            number
        });
        for (number, text) in numbers.iter().zip(texts) {
            assert_eq!(groups.find_hashed(1, text), Some(*number));
        }
        groups.remove(numbers[1]);
        let found = texts.map(|text| groups.find_hashed(1, text));
        assert_eq!(found, [Some(numbers[0]), None, Some(numbers[2]), Some(numbers[3])]);
    }
}
