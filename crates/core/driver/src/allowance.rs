//! What clients may make the broker buffer: bytes in all, and for each of those who share a limit.
//! They are asked for before a buffer grows, so that nobody can make it grow at will.
//!
//! There is one for connections that are not admitted yet, each address with its share; one for the
//! packets of clients under way; and one for what has come of those that wait for room: each user
//! of a namespace with a share, or each address where there is none.
//!
//! Whoever has something may have as much as it leaves to others: so many who take little each do
//! not use it up, and who comes with nothing finds room. If that is not enough for it, it stands in
//! line, and what becomes free is kept for the first there.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::Scope;

use crate::origin::Origin;

/// Packets that are not complete yet may take this part of each limit only: what is complete and
/// has to wait, as for the check of a password, finds room however slow others are.
const UNFINISHED_PART: u64 = 2;

/// Shared by all threads that read from clients.
#[derive(Debug)]
pub struct Allowance<K> {
    bytes_max: u64,
    share_bytes_max: u64,
    used: Mutex<Used<K>>,
}

#[derive(Debug)]
struct Used<K> {
    bytes: u64,
    /// Somebody found no room in all since some was given back.
    is_wanted: bool,
    /// Those that have something: as many as there are connections at most.
    shares: HashMap<K, Share>,
    /// Bytes of each group that has something.
    groups: HashMap<Scope, u64>,
    /// Those that have nothing and found no room, each once, the longest there first.
    line: VecDeque<QueuePosition<K>>,
    places_made: u64,
}

/// In the line, for one connection of a sharer.
#[derive(Debug)]
struct QueuePosition<K> {
    sharer: K,
    number: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    /// One of those who share it found no room in it since some was given back.
    is_wanted: bool,
}

/// Who shares a limit.
pub trait Sharer: Clone + Eq + Hash {
    /// Those of one group have no more together than they leave to others.
    fn group(&self) -> Option<Scope> {
        None
    }
}

impl Sharer for Origin {}

impl Sharer for ScopedOwner {
    /// Its namespace. What the first one has is the rest.
    fn group(&self) -> Option<Scope> {
        Some(self.scope).filter(|scope| !scope.is_first())
    }
}

/// The user or address that is charged for the memory of a client, with its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScopedOwner {
    pub scope: Scope,
    pub owner: Owner,
}

/// An owner within a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// All clients with a proved name.
    User(Box<str>),
    /// All others of an address.
    Origin(Origin),
}

/// What one connection has; dropping it gives it back.
#[derive(Debug)]
pub struct Charge<K: Sharer> {
    allowance: Arc<Allowance<K>>,
    sharer: K,
    bytes: u64,
    /// The number of its place in the line.
    place: Option<u64>,
}

/// Which limit has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    /// Its own, or it would have more than it leaves to others.
    Share,
    All,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To wait for the rest of a packet.
    Unfinished,
    /// To keep what is complete, as while a password is checked; or a whole packet at once, where
    /// that has an allowance of its own.
    Whole,
}

impl<K: Sharer> Allowance<K> {
    pub fn new(bytes_max: u64, share_bytes_max: u64) -> Self {
        let used = Used {
            bytes: 0,
            is_wanted: false,
            shares: HashMap::new(),
            groups: HashMap::new(),
            line: VecDeque::new(),
            places_made: 0,
        };
        Self { bytes_max, share_bytes_max, used: Mutex::new(used) }
    }

    /// What a connection takes by being there is not refused: the acceptor accepts no more instead,
    /// see [`Allowance::is_full`].
    pub fn begin(self: &Arc<Self>, sharer: K, bytes: u64) -> Charge<K> {
        let mut charge = Charge { allowance: self.clone(), sharer, bytes: 0, place: None };
        charge.add(&mut self.used(), bytes);
        charge
    }

    /// Is half of it used, so that slow clients should be closed?
    pub fn is_short(&self) -> bool {
        self.used().bytes > self.bytes_max / UNFINISHED_PART
    }

    /// Is all of it used, so that nobody more should come in?
    pub fn is_full(&self) -> bool {
        self.used().bytes >= self.bytes_max
    }

    /// Has anybody something of it?
    pub fn has_any(&self) -> bool {
        self.used().bytes > 0
    }

    fn used(&self) -> MutexGuard<'_, Used<K>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Sharer> Charge<K> {
    /// Takes `bytes` more, or nothing.
    pub fn raise(&mut self, bytes: u64, purpose: Purpose) -> Result<(), Short> {
        let allowance = self.allowance.clone();
        let mut used = allowance.used();
        let part = match purpose {
            Purpose::Unfinished => UNFINISHED_PART,
            Purpose::Whole => 1,
        };
        let own = used.bytes_of(&self.sharer) + bytes;
        let left = (allowance.bytes_max / part).saturating_sub(used.bytes);
        let of_group = used.bytes_of_group(&self.sharer);
        let of_own = left.saturating_sub(of_group);
        if own > allowance.share_bytes_max / part
            || own > bytes && own > of_own
            || of_group > 0 && of_group + bytes > left
        {
            // Without a share it asks for more than there may be.
            if let Some(share) = used.shares.get_mut(&self.sharer) {
                share.is_wanted = true;
            }
            return Err(Short::Share);
        }
        if bytes > left.saturating_sub(used.kept_from(&self.sharer)) {
            used.is_wanted = true;
            return Err(Short::All);
        }
        self.add(&mut used, bytes);
        used.line.retain(|place| place.sharer != self.sharer);
        Ok(())
    }

    /// So many bytes are kept for it before others get any, once it is the first of those who have
    /// nothing and found no room. It leaves the line when it, or another of its sharer, has room.
    pub fn stand_in_line(&mut self, bytes: u64) {
        let allowance = self.allowance.clone();
        let mut used = allowance.used();
        let stands = used.line.iter().any(|place| place.sharer == self.sharer);
        // A group that would have more than half waits for its own, and keeps nothing from others.
        let of_group = used.bytes_of_group(&self.sharer);
        let is_large = of_group > 0 && of_group + bytes > allowance.bytes_max / 2;
        let has_some = used.bytes_of(&self.sharer) > 0;
        if stands || has_some || is_large || bytes > allowance.share_bytes_max {
            return;
        }
        used.places_made += 1;
        let (sharer, number) = (self.sharer.clone(), used.places_made);
        used.line.push_back(QueuePosition { sharer, number, bytes });
        self.place = Some(number);
    }

    /// Takes `bytes` more, whatever the limits.
    pub fn force(&mut self, bytes: u64) {
        let allowance = self.allowance.clone();
        self.add(&mut allowance.used(), bytes);
    }

    pub fn release(&mut self) {
        let allowance = self.allowance.clone();
        self.give_back(&mut allowance.used());
    }

    pub fn sharer(&self) -> &K {
        &self.sharer
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Does somebody else who has nothing stand in line?
    pub fn keeps_others_waiting(&self) -> bool {
        let used = self.allowance.used();
        used.line.iter().any(|place| place.sharer != self.sharer)
    }

    /// Does somebody wait for room of which this is a part?
    pub fn is_in_the_way(&self) -> bool {
        let used = self.allowance.used();
        used.is_wanted || used.shares.get(&self.sharer).is_some_and(|share| share.is_wanted)
    }

    /// The client turns out to be behind a proxy.
    pub fn move_to(&mut self, sharer: K) {
        if sharer != self.sharer {
            let allowance = self.allowance.clone();
            let mut used = allowance.used();
            let bytes = self.bytes;
            self.give_back(&mut used);
            self.sharer = sharer;
            self.add(&mut used, bytes);
        }
    }

    fn add(&mut self, used: &mut Used<K>, bytes: u64) {
        self.bytes += bytes;
        used.bytes += bytes;
        if bytes > 0 {
            used.shares.entry(self.sharer.clone()).or_default().bytes += bytes;
            if let Some(group) = self.sharer.group() {
                *used.groups.entry(group).or_default() += bytes;
            }
        }
    }

    fn give_back(&mut self, used: &mut Used<K>) {
        if let Some(number) = self.place.take() {
            used.line.retain(|place| place.number != number);
        }
        if self.bytes == 0 {
            return;
        }
        used.bytes -= self.bytes;
        used.is_wanted = false;
        if let Some(share) = used.shares.get_mut(&self.sharer) {
            share.bytes -= self.bytes;
            share.is_wanted = false;
            if share.bytes == 0 {
                used.shares.remove(&self.sharer);
            }
        }
        used.take_from_group(&self.sharer, self.bytes);
        self.bytes = 0;
    }
}

impl<K: Sharer> Used<K> {
    fn bytes_of(&self, sharer: &K) -> u64 {
        self.shares.get(sharer).map_or(0, |share| share.bytes)
    }

    fn bytes_of_group(&self, sharer: &K) -> u64 {
        sharer.group().and_then(|group| self.groups.get(&group)).copied().unwrap_or(0)
    }

    fn take_from_group(&mut self, sharer: &K, bytes: u64) {
        let Some(group) = sharer.group() else { return };
        if let Some(held) = self.groups.get_mut(&group) {
            *held -= bytes;
            if *held == 0 {
                self.groups.remove(&group);
            }
        }
    }

    /// What is kept for the first in line, if that is somebody else.
    fn kept_from(&self, sharer: &K) -> u64 {
        let first = self.line.front().filter(|place| place.sharer != *sharer);
        first.map_or(0, |place| place.bytes)
    }
}

impl<K: Sharer> Drop for Charge<K> {
    fn drop(&mut self) {
        let allowance = self.allowance.clone();
        self.give_back(&mut allowance.used());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    #[test]
    fn bytes_are_limited_in_all_and_for_each_origin_and_given_back() {
        let allowance = Arc::new(Allowance::new(1000, 400));
        let mut first = allowance.begin(ONE, 0);
        assert_eq!(first.raise(201, Purpose::Unfinished), Err(Short::Share), "half of its share");
        assert_eq!(first.raise(200, Purpose::Unfinished), Ok(()));
        let mut second = allowance.begin(ONE, 0);
        assert_eq!(second.raise(1, Purpose::Unfinished), Err(Short::Share));
        assert_eq!(second.raise(200, Purpose::Whole), Ok(()), "the other half");
        let mut others: Vec<Charge<Origin>> =
            (0..3).map(|last| allowance.begin(Origin::V4([198, 51, 100, last]), 0)).collect();
        assert_eq!(others[0].raise(200, Purpose::Whole), Ok(()));
        assert!(allowance.is_short());
        assert_eq!(others[1].raise(10, Purpose::Unfinished), Err(Short::All), "600 of 1000");
        assert_eq!(others[1].raise(400, Purpose::Whole), Ok(()));
        assert_eq!(others[2].raise(1, Purpose::Whole), Err(Short::All));
        drop(second);
        assert_eq!(others[2].raise(200, Purpose::Whole), Ok(()));
        others.clear();
        drop(first);
        let used = allowance.used();
        assert_eq!((used.bytes, used.shares.len()), (0, 0));
    }

    #[test]
    fn who_waits_for_room_is_known_to_those_who_have_it() {
        let allowance = Arc::new(Allowance::new(1000, 400));
        let mut first = allowance.begin(ONE, 0);
        let mut second = allowance.begin(ONE, 0);
        let mut other = allowance.begin(OTHER, 0);
        assert_eq!(first.raise(150, Purpose::Unfinished), Ok(()));
        assert_eq!(other.raise(150, Purpose::Unfinished), Ok(()));
        assert!(!first.is_in_the_way());
        assert_eq!(second.raise(60, Purpose::Unfinished), Err(Short::Share));
        assert!(first.is_in_the_way() && !other.is_in_the_way());
        drop(first);
        assert_eq!(second.raise(60, Purpose::Unfinished), Ok(()));
        assert!(!second.is_in_the_way());
        let mut many: Vec<_> =
            (0..2).map(|last| allowance.begin(Origin::V4([198, 51, 100, last]), 0)).collect();
        assert_eq!(many[0].raise(200, Purpose::Unfinished), Ok(()));
        assert_eq!(many[1].raise(100, Purpose::Unfinished), Err(Short::All));
        assert!(second.is_in_the_way() && other.is_in_the_way());
    }

    const fn origin(last: u8) -> Origin {
        Origin::V4([198, 51, 100, last])
    }

    /// Takes `bytes` at a time for `sharer` until it is refused.
    fn fill(
        allowance: &Arc<Allowance<Origin>>,
        sharer: &Origin,
        bytes: u64,
    ) -> Vec<Charge<Origin>> {
        let take = || {
            let mut charge = allowance.begin(*sharer, 0);
            charge.raise(bytes, Purpose::Whole).is_ok().then_some(charge)
        };
        std::iter::from_fn(take).collect()
    }

    #[test]
    fn many_who_take_little_leave_room_for_one_who_has_nothing() {
        let allowance = Arc::new(Allowance::new(5_000, 1_250));
        let mut held: Vec<_> = (0..50).map(|_| Vec::new()).collect();
        for _ in 0..10 {
            for (last, held) in held.iter_mut().enumerate() {
                let mut charge = allowance.begin(origin(last as u8), 0);
                if charge.raise(20, Purpose::Whole).is_ok() {
                    held.push(charge);
                }
            }
        }
        let used = allowance.used().bytes;
        assert!((4_000..=4_950).contains(&used), "{used}: there is use of most of it");
        let least = held.iter().map(Vec::len).min();
        assert_eq!(least, Some(4), "all have the same");
        let mut late = allowance.begin(ONE, 0);
        assert_eq!(late.raise(80, Purpose::Whole), Ok(()));
    }

    #[test]
    fn what_becomes_free_is_for_the_first_in_line() {
        let allowance = Arc::new(Allowance::new(1_000, 500));
        let mut held: Vec<_> = (0..4).map(|last| fill(&allowance, &origin(last), 100)).collect();
        assert!(allowance.used().bytes >= 900);
        let mut first = allowance.begin(ONE, 0);
        assert_eq!(first.raise(300, Purpose::Whole), Err(Short::All));
        first.stand_in_line(300);
        let mut second = allowance.begin(OTHER, 0);
        assert_eq!(second.raise(200, Purpose::Whole), Err(Short::All));
        second.stand_in_line(200);
        assert!(held[0][0].keeps_others_waiting());
        let mut third = allowance.begin(origin(77), 0);
        held[0].truncate(2);
        assert_eq!(second.raise(200, Purpose::Whole), Err(Short::All), "it is the first's");
        assert_eq!(third.raise(100, Purpose::Whole), Err(Short::All));
        assert_eq!(first.raise(300, Purpose::Whole), Ok(()));
        held[0].clear();
        assert_eq!(third.raise(200, Purpose::Whole), Err(Short::All), "now it is the second's");
        assert_eq!(second.raise(200, Purpose::Whole), Ok(()));
        assert!(!held[1][0].keeps_others_waiting());
        // Nothing is kept for one that is gone.
        drop(first);
        let mut fourth = allowance.begin(origin(78), 0);
        fourth.stand_in_line(500);
        drop(fourth);
        assert_eq!(third.raise(100, Purpose::Whole), Ok(()));
        assert!(allowance.used().line.is_empty());
    }

    #[test]
    fn who_comes_through_a_proxy_takes_from_its_own_share() {
        let allowance = Arc::new(Allowance::new(1000, 100));
        let mut charge = allowance.begin(ONE, 60);
        charge.move_to(OTHER);
        let mut proxy = allowance.begin(ONE, 0);
        assert_eq!(proxy.raise(100, Purpose::Whole), Ok(()));
        assert_eq!(charge.raise(60, Purpose::Whole), Err(Short::Share));
        drop((charge, proxy));
        assert_eq!(allowance.used().bytes, 0);
    }
}
