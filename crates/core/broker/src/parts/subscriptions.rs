//! The subscriptions of one session.

use std::collections::HashMap;
use std::collections::hash_map::IntoIter;
use std::iter::Chain;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use topic::FilterId;

use crate::words::record_location::RecordLocation;

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
    /// Where it stands in the journal.
    pub(crate) place: RecordLocation,
}

impl Listed {
    pub(crate) const fn new(filter: FilterId, group: u32) -> Self {
        Self { filter, group, place: RecordLocation::NOWHERE }
    }

    pub(crate) const fn is_shared(&self) -> bool {
        self.group != 0
    }

    /// Which subscription it is, wherever it is written.
    const fn name(&self) -> Name {
        (self.filter, self.group)
    }
}

/// Filter and group of a [`Listed`].
type Name = (FilterId, u32);

type Table = HashMap<Name, RecordLocation, FixedState>;

/// What a session is subscribed to, each once. Its shared subscriptions are found without a look at
/// the others: with each acknowledgement their groups are asked for more.
#[derive(Debug)]
pub(crate) enum Subscriptions {
    /// Shared ones come first. One lies in place: most sessions have one subscription.
    Few(SmallVec<[Listed; 1]>),
    Many(Box<Tables>),
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    shared: Table,
    plain: Table,
}

impl Tables {
    const fn of(&self, listed: &Listed) -> &Table {
        if listed.is_shared() { &self.shared } else { &self.plain }
    }

    const fn of_mut(&mut self, listed: &Listed) -> &mut Table {
        if listed.is_shared() { &mut self.shared } else { &mut self.plain }
    }

    fn insert(&mut self, listed: &Listed) {
        self.of_mut(listed).insert(listed.name(), listed.place);
    }
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
            Self::Many(many) => many.shared.len() + many.plain.len(),
        }
    }

    pub(crate) fn shared_len(&self) -> usize {
        match self {
            Self::Few(few) => shared_in(few),
            Self::Many(many) => many.shared.len(),
        }
    }

    /// Adds what the session does not list yet.
    pub(crate) fn add(&mut self, listed: Listed) {
        if let Self::Few(few) = self
            && few.len() == FEW_MAX
        {
            let mut many = Box::<Tables>::default();
            few.iter().for_each(|known| many.insert(known));
            *self = Self::Many(many);
        }
        match self {
            Self::Few(few) => {
                let (first_plain, last) = (shared_in(few), few.len());
                few.push(listed);
                if listed.is_shared() {
                    few.swap(first_plain, last);
                }
            }
            Self::Many(many) => many.insert(&listed),
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
                many.of_mut(listed).remove(&listed.name());
                if self.len() <= FEW_MAX / 2 {
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
                let place = many.of(wanted).get(&wanted.name())?;
                Some(Listed { place: *place, ..*wanted })
            }
        }
    }

    pub(crate) fn place_mut(&mut self, listed: &Listed) -> Option<&mut RecordLocation> {
        match self {
            Self::Few(few) => {
                let known = few.iter_mut().find(|known| known.name() == listed.name());
                known.map(|known| &mut known.place)
            }
            Self::Many(many) => many.of_mut(listed).get_mut(&listed.name()),
        }
    }

    /// Those that are shared come first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Listed> {
        self.shared().chain(self.plain())
    }

    pub(crate) fn shared(&self) -> impl Iterator<Item = Listed> {
        match self {
            Self::Few(few) => one_by_one(&few[..shared_in(few)], None),
            Self::Many(many) => one_by_one(&[], Some(&many.shared)),
        }
    }

    pub(crate) fn plain(&self) -> impl Iterator<Item = Listed> {
        match self {
            Self::Few(few) => one_by_one(&few[shared_in(few)..], None),
            Self::Many(many) => one_by_one(&[], Some(&many.plain)),
        }
    }
}

/// How many of them are shared; all of these come first.
fn shared_in(few: &[Listed]) -> usize {
    few.partition_point(Listed::is_shared)
}

fn one_by_one<'a>(few: &'a [Listed], many: Option<&'a Table>) -> impl Iterator<Item = Listed> + 'a {
    let many = many.into_iter().flatten().map(|(name, place)| listed_of((*name, *place)));
    few.iter().copied().chain(many)
}

fn listed_of(((filter, group), place): (Name, RecordLocation)) -> Listed {
    Listed { filter, group, place }
}

/// What a session was subscribed to, one by one.
#[derive(Debug)]
pub(crate) enum Leaving {
    Few(smallvec::IntoIter<[Listed; 1]>),
    Many(Chain<IntoIter<Name, RecordLocation>, IntoIter<Name, RecordLocation>>),
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
            Self::Many(many) => {
                let Tables { shared, plain } = *many;
                Leaving::Many(shared.into_iter().chain(plain))
            }
        }
    }
}

/// What became of the filters of a packet, as far as it has got.
#[derive(Debug, Default)]
pub(crate) struct Done {
    /// One for each filter.
    pub(crate) reasons: Vec<u8>,
    /// What its acknowledgement has to wait for: the newest record of any of them.
    pub(crate) kept: Option<storage::Position>,
    /// It has led to what other shards have to hear of.
    pub(crate) is_shared: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(number: u32) -> Listed {
        let place = RecordLocation::new(storage::Position::new(1, number), 1);
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
            *subscriptions.place_mut(&listed(number)).unwrap() = RecordLocation::NOWHERE;
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

    #[test]
    fn shared_ones_are_found_apart_from_the_others() {
        let mut subscriptions = Subscriptions::default();
        let check = |subscriptions: &Subscriptions, all: std::ops::Range<u32>| {
            let (shared, plain) = all.partition::<Vec<_>, _>(|number| listed(*number).is_shared());
            assert_eq!(numbers(subscriptions.shared()), shared);
            assert_eq!(numbers(subscriptions.plain()), plain);
        };
        for number in 0..2 * FEW_MAX as u32 {
            subscriptions.add(listed(number));
            if number < 100 || number % 100 == 0 {
                check(&subscriptions, 0..number + 1);
            }
        }
        // Beyond the place where they are few again.
        for number in 0..2 * FEW_MAX as u32 {
            subscriptions.remove(&listed(number));
            if number % 100 == 0 {
                check(&subscriptions, number + 1..2 * FEW_MAX as u32);
            }
        }
        assert!(matches!(subscriptions, Subscriptions::Few(few) if !few.spilled()));
    }

    #[test]
    fn what_a_session_lists_stays_small() {
        assert!(size_of::<Subscriptions>() <= 32, "{}", size_of::<Subscriptions>());
    }
}
