//! The subscriptions of one session.

use std::collections::{HashMap, hash_map};

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use topic::FilterId;

use crate::durable::Place;

/// Up to so many are looked through one by one, a microsecond or two for each filter of a packet;
/// more stand in a table. Without it a client that subscribes again to all it has would keep its
/// shard busy for the square of their number. A table takes twice the memory of a list.
const FEW_MAX: usize = 2_048;

/// A subscription as the session lists it; its options stand in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listed {
    pub(crate) filter: FilterId,
    /// The shard's number of the shared group plus one, or 0.
    pub(crate) group: u32,
    /// Where it stands in the log.
    pub(crate) place: Place,
}

impl Listed {
    pub(crate) const fn new(filter: FilterId, group: u32) -> Self {
        Self { filter, group, place: Place::NOWHERE }
    }

    /// Which subscription it is, wherever it is written.
    const fn name(&self) -> Name {
        (self.filter, self.group)
    }
}

/// Filter and group of a [`Listed`].
type Name = (FilterId, u32);

type Table = HashMap<Name, Place, FixedState>;

/// What a session is subscribed to, each once, in no particular order.
#[derive(Debug)]
pub(crate) enum Subscriptions {
    /// The first lies in place: most sessions have one subscription.
    Few(SmallVec<[Listed; 1]>),
    Many(Box<Table>),
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Subscriptions {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Adds what the session does not list yet.
    pub(crate) fn add(&mut self, listed: Listed) {
        if let Self::Few(few) = self
            && few.len() == FEW_MAX
        {
            let all = few.iter().map(|listed| (listed.name(), listed.place));
            *self = Self::Many(Box::new(all.collect()));
        }
        match self {
            Self::Few(few) => few.push(listed),
            Self::Many(many) => {
                many.insert(listed.name(), listed.place);
            }
        }
    }

    pub(crate) fn remove(&mut self, listed: &Listed) {
        match self {
            Self::Few(few) => {
                few.retain(|known| known.name() != listed.name());
                if few.len() <= 1 {
                    few.shrink_to_fit();
                }
            }
            Self::Many(many) => {
                many.remove(&listed.name());
                if many.len() <= FEW_MAX / 2 {
                    *self = Self::Few(self.iter().collect());
                }
            }
        }
    }

    /// The same with its place, if the session lists it.
    pub(crate) fn find(&self, wanted: &Listed) -> Option<Listed> {
        match self {
            Self::Few(few) => few.iter().find(|known| known.name() == wanted.name()).copied(),
            Self::Many(many) => {
                many.get(&wanted.name()).map(|place| Listed { place: *place, ..*wanted })
            }
        }
    }

    pub(crate) fn place_mut(&mut self, listed: &Listed) -> Option<&mut Place> {
        match self {
            Self::Few(few) => {
                let known = few.iter_mut().find(|known| known.name() == listed.name());
                known.map(|known| &mut known.place)
            }
            Self::Many(many) => many.get_mut(&listed.name()),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Listed> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.iter()), None),
            Self::Many(many) => (None, Some(many.iter())),
        };
        let many = many.into_iter().flatten().map(|(name, place)| listed_of((*name, *place)));
        few.into_iter().flatten().copied().chain(many)
    }
}

fn listed_of(((filter, group), place): (Name, Place)) -> Listed {
    Listed { filter, group, place }
}

/// What a session was subscribed to, one by one.
#[derive(Debug)]
pub(crate) enum Leaving {
    Few(smallvec::IntoIter<[Listed; 1]>),
    Many(hash_map::IntoIter<Name, Place>),
}

impl Iterator for Leaving {
    type Item = Listed;

    fn next(&mut self) -> Option<Listed> {
        match self {
            Self::Few(few) => few.next(),
            Self::Many(many) => many.next().map(listed_of),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Few(few) => few.size_hint(),
            Self::Many(many) => many.size_hint(),
        }
    }
}

impl ExactSizeIterator for Leaving {}

impl IntoIterator for Subscriptions {
    type Item = Listed;
    type IntoIter = Leaving;

    fn into_iter(self) -> Leaving {
        match self {
            Self::Few(few) => Leaving::Few(few.into_iter()),
            Self::Many(many) => Leaving::Many(many.into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: u32) -> Listed {
        let place = Place::new(storage::Position::new(1, number), 1);
        Listed { place, ..Listed::new(FilterId(number), number % 3) }
    }

    fn numbers(all: impl Iterator<Item = Listed>) -> Vec<u32> {
        let mut numbers: Vec<u32> = all.map(|listed| listed.filter.0).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn few_and_many_are_found_changed_and_removed_alike() {
        let count = 2 * FEW_MAX as u32;
        let mut subscriptions = Subscriptions::default();
        for number in 0..count {
            let wanted = Listed::new(FilterId(number), number % 3);
            assert!(subscriptions.find(&wanted).is_none());
            subscriptions.add(listed(number));
            assert_eq!(
                subscriptions.find(&wanted).map(|listed| listed.place),
                Some(listed(number).place)
            );
            assert!(
                subscriptions.find(&Listed::new(FilterId(number), 7)).is_none(),
                "another group"
            );
            assert_eq!(subscriptions.len() as u32, number + 1);
            assert_eq!(matches!(subscriptions, Subscriptions::Many(_)), number >= FEW_MAX as u32);
        }
        for number in 0..count {
            if number % 100 == 0 {
                assert_eq!(numbers(subscriptions.iter()), (number..count).collect::<Vec<_>>());
            }
            *subscriptions.place_mut(&listed(number)).unwrap() = Place::NOWHERE;
            assert!(!subscriptions.find(&listed(number)).unwrap().place.is_some());
            subscriptions.remove(&listed(number));
            assert!(subscriptions.find(&listed(number)).is_none());
            assert!(subscriptions.place_mut(&listed(number)).is_none());
        }
        assert!(matches!(subscriptions, Subscriptions::Few(_)));
    }

    #[test]
    fn all_leave_once() {
        for count in [0, 1, FEW_MAX as u32, 3 * FEW_MAX as u32] {
            let mut subscriptions = Subscriptions::default();
            (0..count).for_each(|number| subscriptions.add(listed(number)));
            let leaving = subscriptions.into_iter();
            assert_eq!(leaving.len() as u32, count);
            assert_eq!(numbers(leaving), (0..count).collect::<Vec<_>>());
        }
    }
}
