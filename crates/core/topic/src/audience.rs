//! Who listens on one filter: subscriptions and shared groups.

use hashbrown::HashTable;

use crate::hash::{shrink_sparse, spread_u64};
use crate::index::Subscription;

/// All that listen on one filter. Most filters have exactly one subscriber, which then costs no
/// allocation of its own.
#[derive(Debug, Default)]
pub(crate) enum Audience {
    #[default]
    Empty,
    One(Subscription),
    Many(Box<Listeners>),
}

/// The general case: any number of subscriptions and groups.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    subscriptions: Crowd<Subscription>,
    groups: Crowd<u32>,
    promises: u32,
}

impl Audience {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::One(_) => false,
            Self::Many(many) => many.subscriptions.is_empty() && many.groups.is_empty(),
        }
    }

    pub(crate) fn subscriptions(&self) -> &[Subscription] {
        match self {
            Self::Empty => &[],
            Self::One(subscription) => std::slice::from_ref(subscription),
            Self::Many(many) => &many.subscriptions.members,
        }
    }

    pub(crate) fn groups(&self) -> &[u32] {
        match self {
            Self::Empty | Self::One(_) => &[],
            Self::Many(many) => &many.groups.members,
        }
    }

    pub(crate) fn subscription(&self, subscriber: u32) -> Option<Subscription> {
        match self {
            Self::Empty => None,
            Self::One(only) => (only.subscriber == subscriber).then_some(*only),
            Self::Many(many) => {
                let place = many.subscriptions.position(subscriber)?;
                Some(many.subscriptions.members[place])
            }
        }
    }

    /// How many subscriptions carry [`Subscription::PROMISES`].
    pub(crate) fn promises(&self) -> u32 {
        match self {
            Self::Empty => 0,
            Self::One(subscription) => u32::from(subscription.promises()),
            Self::Many(many) => many.promises,
        }
    }

    /// Adds the subscription, or puts it in the place of the subscriber's earlier one.
    pub(crate) fn subscribe(&mut self, subscription: Subscription) -> Option<Subscription> {
        match self {
            Self::Empty => {
                *self = Self::One(subscription);
                None
            }
            Self::One(only) if only.subscriber == subscription.subscriber => {
                Some(std::mem::replace(only, subscription))
            }
            _ => {
                let many = self.widen();
                many.promises += u32::from(subscription.promises());
                let replaced = many.subscriptions.insert(subscription);
                many.promises -= u32::from(replaced.is_some_and(|old| old.promises()));
                replaced
            }
        }
    }

    pub(crate) fn unsubscribe(&mut self, subscriber: u32) -> Option<Subscription> {
        match self {
            Self::Empty => None,
            Self::One(only) => {
                let removed = (only.subscriber == subscriber).then_some(*only)?;
                *self = Self::Empty;
                Some(removed)
            }
            Self::Many(many) => {
                let removed = many.subscriptions.remove(subscriber)?;
                many.promises -= u32::from(removed.promises());
                self.narrow();
                Some(removed)
            }
        }
    }

    /// False: the group listened here already.
    pub(crate) fn add_group(&mut self, group: u32) -> bool {
        self.widen().groups.insert(group).is_none()
    }

    /// False: the group did not listen here.
    pub(crate) fn remove_group(&mut self, group: u32) -> bool {
        let Self::Many(many) = self else { return false };
        let was_there = many.groups.remove(group).is_some();
        self.narrow();
        was_there
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Empty | Self::One(_) => 0,
            Self::Many(many) => {
                size_of::<Listeners>() + many.subscriptions.heap_bytes() + many.groups.heap_bytes()
            }
        }
    }

    fn widen(&mut self) -> &mut Listeners {
        if !matches!(self, Self::Many(_)) {
            let mut many = Box::<Listeners>::default();
            if let Self::One(only) = *self {
                many.promises = u32::from(only.promises());
                many.subscriptions.insert(only);
            }
            *self = Self::Many(many);
        }
        match self {
            Self::Many(many) => many,
            Self::Empty | Self::One(_) => unreachable!("the audience has just been widened"),
        }
    }

    /// Back to the lean form once it is enough again.
    fn narrow(&mut self) {
        let Self::Many(many) = self else { return };
        if !many.groups.is_empty() {
            return;
        }
        match many.subscriptions.members.as_slice() {
            [] => *self = Self::Empty,
            &[only] => *self = Self::One(only),
            _ => {}
        }
    }
}

/// A member of a [`Crowd`], identified by its key.
pub(crate) trait Member: Copy {
    fn key(self) -> u32;
}

impl Member for Subscription {
    fn key(self) -> u32 {
        self.subscriber
    }
}

impl Member for u32 {
    fn key(self) -> u32 {
        self
    }
}

/// A dense list of members in no order, with a map from key to position once it is worth one: a
/// million subscribers of one filter come and go in constant time each.
#[derive(Debug)]
struct Crowd<T> {
    members: Vec<T>,
    positions: Option<Box<HashTable<u32>>>,
}

impl<T> Default for Crowd<T> {
    fn default() -> Self {
        Self { members: Vec::new(), positions: None }
    }
}

impl<T: Member> Crowd<T> {
    fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Adds the member, or puts it in the place of the one with the same key.
    fn insert(&mut self, member: T) -> Option<T> {
        if let Some(position) = self.position(member.key()) {
            return Some(std::mem::replace(&mut self.members[position], member));
        }
        self.members.push(member);
        let last = (self.members.len() - 1) as u32;
        let members = &self.members;
        if let Some(positions) = &mut self.positions {
            positions.insert_unique(hash(member.key()), last, hash_of(members));
        } else if members.len() > SCAN_MAX {
            let mut positions = HashTable::with_capacity(members.len());
            for (position, member) in (0..).zip(members) {
                positions.insert_unique(hash(member.key()), position, hash_of(members));
            }
            self.positions = Some(Box::new(positions));
        }
        None
    }

    fn remove(&mut self, key: u32) -> Option<T> {
        let position = self.position(key)?;
        self.unmap(key, position as u32);
        let moved_from = (self.members.len() - 1) as u32;
        let removed = self.members.swap_remove(position);
        self.remap(position, moved_from);
        self.shrink();
        Some(removed)
    }

    fn position(&self, key: u32) -> Option<usize> {
        match &self.positions {
            None => self.members.iter().position(|member| member.key() == key),
            Some(positions) => positions
                .find(hash(key), |&position| self.members[position as usize].key() == key)
                .map(|&position| position as usize),
        }
    }

    fn unmap(&mut self, key: u32, position: u32) {
        let Some(positions) = &mut self.positions else { return };
        if let Ok(entry) = positions.find_entry(hash(key), |&other| other == position) {
            entry.remove();
        }
    }

    /// The last member has moved to `position`; the map must say so.
    fn remap(&mut self, position: usize, moved_from: u32) {
        let (Some(positions), Some(moved)) = (&mut self.positions, self.members.get(position))
        else {
            return;
        };
        if let Some(place) = positions.find_mut(hash(moved.key()), |&other| other == moved_from) {
            *place = position as u32;
        }
    }

    fn shrink(&mut self) {
        let len = self.members.len();
        if self.members.capacity() > SCAN_MAX && len < self.members.capacity() / 4 {
            self.members.shrink_to(len * 2);
        }
        if len <= SCAN_MAX / 2 {
            self.positions = None;
        } else if let Some(positions) = &mut self.positions {
            shrink_sparse(positions, hash_of(&self.members));
        }
    }

    fn heap_bytes(&self) -> usize {
        let positions = self.positions.as_ref();
        self.members.capacity() * size_of::<T>()
            + positions.map_or(0, |map| size_of::<HashTable<u32>>() + map.allocation_size())
    }
}

fn hash(key: u32) -> u64 {
    spread_u64(u64::from(key))
}

fn hash_of<T: Member>(members: &[T]) -> impl Fn(&u32) -> u64 {
    |&position| hash(members[position as usize].key())
}

/// Up to this many members a scan of the list beats a map, in time and in memory.
const SCAN_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription(subscriber: u32, options: u8) -> Subscription {
        Subscription { subscriber, options, identifier: 0 }
    }

    #[test]
    fn a_single_subscriber_costs_no_allocation() {
        let mut audience = Audience::default();
        assert_eq!(audience.subscribe(subscription(1, 0)), None);
        assert_eq!(audience.heap_bytes(), 0);
        audience.subscribe(subscription(2, 0));
        assert!(audience.heap_bytes() > 0);
        audience.unsubscribe(1);
        assert_eq!(audience.heap_bytes(), 0);
        assert_eq!(audience.subscriptions(), [subscription(2, 0)]);
    }

    #[test]
    fn promises_are_counted_through_replacement_and_removal() {
        let mut audience = Audience::default();
        audience.subscribe(subscription(1, Subscription::PROMISES));
        assert_eq!(audience.promises(), 1);
        audience.subscribe(subscription(2, Subscription::PROMISES));
        audience.subscribe(subscription(3, 0));
        assert_eq!(audience.promises(), 2);
        audience.subscribe(subscription(2, 0));
        assert_eq!(audience.promises(), 1);
        audience.unsubscribe(1);
        assert_eq!(audience.promises(), 0);
    }

    #[test]
    fn a_group_keeps_the_audience_alive_without_subscribers() {
        let mut audience = Audience::default();
        audience.subscribe(subscription(1, 0));
        assert!(audience.add_group(9));
        assert!(!audience.add_group(9));
        audience.unsubscribe(1);
        assert!(!audience.is_empty());
        assert_eq!(audience.groups(), [9]);
        assert!(audience.remove_group(9));
        assert!(!audience.remove_group(9));
        assert!(audience.is_empty());
    }

    #[test]
    fn the_position_map_comes_and_goes_with_the_size() {
        let mut crowd = Crowd::<u32>::default();
        for key in 0..=SCAN_MAX as u32 {
            assert_eq!(crowd.insert(key), None);
        }
        assert!(crowd.positions.is_some());
        for key in 0..SCAN_MAX as u32 {
            assert_eq!(crowd.remove(key), Some(key));
            assert_eq!(crowd.remove(key), None);
        }
        assert!(crowd.positions.is_none());
        assert_eq!(crowd.members, [SCAN_MAX as u32]);
    }

    #[test]
    fn a_large_crowd_keeps_every_member_findable() {
        let mut crowd = Crowd::<u32>::default();
        for key in 0..10_000 {
            crowd.insert(key);
        }
        for key in (0..10_000).filter(|key| key % 3 != 0) {
            crowd.remove(key);
        }
        for key in 0..10_000 {
            let found = crowd.position(key).map(|position| crowd.members[position]);
            assert_eq!(found, (key % 3 == 0).then_some(key));
        }
    }
}
