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

/// A subscription as the session holds it; its options stand in the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) filter: FilterId,
    /// The shard's number of the shared group plus one, or 0.
    pub(crate) group: u32,
    /// Where it stands in the log.
    pub(crate) place: Place,
}

impl Held {
    pub(crate) const fn new(filter: FilterId, group: u32) -> Self {
        Self { filter, group, place: Place::NOWHERE }
    }

    /// Which subscription it is, wherever it is written.
    const fn name(&self) -> Name {
        (self.filter, self.group)
    }
}

/// Filter and group of a [`Held`].
type Name = (FilterId, u32);

type Table = HashMap<Name, Place, FixedState>;

/// What a session is subscribed to, each once, in no particular order.
#[derive(Debug)]
pub(crate) enum Holdings {
    /// The first lies in place: most sessions have one subscription.
    Few(SmallVec<[Held; 1]>),
    Many(Box<Table>),
}

impl Default for Holdings {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Holdings {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    /// Adds what the session does not hold yet.
    pub(crate) fn add(&mut self, held: Held) {
        if let Self::Few(few) = self
            && few.len() == FEW_MAX
        {
            let all = few.iter().map(|held| (held.name(), held.place));
            *self = Self::Many(Box::new(all.collect()));
        }
        match self {
            Self::Few(few) => few.push(held),
            Self::Many(many) => {
                many.insert(held.name(), held.place);
            }
        }
    }

    pub(crate) fn remove(&mut self, held: &Held) {
        match self {
            Self::Few(few) => {
                few.retain(|known| known.name() != held.name());
                if few.len() <= 1 {
                    few.shrink_to_fit();
                }
            }
            Self::Many(many) => {
                many.remove(&held.name());
                if many.len() <= FEW_MAX / 2 {
                    *self = Self::Few(self.iter().collect());
                }
            }
        }
    }

    /// The same with its place, if the session holds it.
    pub(crate) fn find(&self, wanted: &Held) -> Option<Held> {
        match self {
            Self::Few(few) => few.iter().find(|known| known.name() == wanted.name()).copied(),
            Self::Many(many) => {
                many.get(&wanted.name()).map(|place| Held { place: *place, ..*wanted })
            }
        }
    }

    pub(crate) fn place_mut(&mut self, held: &Held) -> Option<&mut Place> {
        match self {
            Self::Few(few) => {
                let known = few.iter_mut().find(|known| known.name() == held.name());
                known.map(|known| &mut known.place)
            }
            Self::Many(many) => many.get_mut(&held.name()),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Held> {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.iter()), None),
            Self::Many(many) => (None, Some(many.iter())),
        };
        let many = many.into_iter().flatten().map(|(name, place)| held_of((*name, *place)));
        few.into_iter().flatten().copied().chain(many)
    }
}

fn held_of(((filter, group), place): (Name, Place)) -> Held {
    Held { filter, group, place }
}

/// Takes what a session held, one by one.
#[derive(Debug)]
pub(crate) enum Released {
    Few(smallvec::IntoIter<[Held; 1]>),
    Many(hash_map::IntoIter<Name, Place>),
}

impl Iterator for Released {
    type Item = Held;

    fn next(&mut self) -> Option<Held> {
        match self {
            Self::Few(few) => few.next(),
            Self::Many(many) => many.next().map(held_of),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Few(few) => few.size_hint(),
            Self::Many(many) => many.size_hint(),
        }
    }
}

impl ExactSizeIterator for Released {}

impl IntoIterator for Holdings {
    type Item = Held;
    type IntoIter = Released;

    fn into_iter(self) -> Released {
        match self {
            Self::Few(few) => Released::Few(few.into_iter()),
            Self::Many(many) => Released::Many(many.into_iter()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(number: u32) -> Held {
        let place = Place::new(storage::Position::new(1, number), 1);
        Held { place, ..Held::new(FilterId(number), number % 3) }
    }

    fn numbers(all: impl Iterator<Item = Held>) -> Vec<u32> {
        let mut numbers: Vec<u32> = all.map(|held| held.filter.0).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn few_and_many_are_found_changed_and_removed_alike() {
        let count = 2 * FEW_MAX as u32;
        let mut holdings = Holdings::default();
        for number in 0..count {
            let wanted = Held::new(FilterId(number), number % 3);
            assert!(holdings.find(&wanted).is_none());
            holdings.add(held(number));
            assert_eq!(holdings.find(&wanted).map(|held| held.place), Some(held(number).place));
            assert!(holdings.find(&Held::new(FilterId(number), 7)).is_none(), "another group");
            assert_eq!(holdings.len() as u32, number + 1);
            assert_eq!(matches!(holdings, Holdings::Many(_)), number >= FEW_MAX as u32);
        }
        for number in 0..count {
            if number % 100 == 0 {
                assert_eq!(numbers(holdings.iter()), (number..count).collect::<Vec<_>>());
            }
            *holdings.place_mut(&held(number)).unwrap() = Place::NOWHERE;
            assert!(!holdings.find(&held(number)).unwrap().place.is_some());
            holdings.remove(&held(number));
            assert!(holdings.find(&held(number)).is_none());
            assert!(holdings.place_mut(&held(number)).is_none());
        }
        assert!(matches!(holdings, Holdings::Few(_)));
    }

    #[test]
    fn all_are_released_once() {
        for count in [0, 1, FEW_MAX as u32, 3 * FEW_MAX as u32] {
            let mut holdings = Holdings::default();
            (0..count).for_each(|number| holdings.add(held(number)));
            let released = holdings.into_iter();
            assert_eq!(released.len() as u32, count);
            assert_eq!(numbers(released), (0..count).collect::<Vec<_>>());
        }
    }
}
