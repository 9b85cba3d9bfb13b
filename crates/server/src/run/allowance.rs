//! What clients may make the broker buffer: bytes in all, and for each of those who share a limit.
//! They are asked for before a buffer grows, so that nobody can make it grow at will.
//!
//! There is one for connections that are not admitted yet, each address with its share; one for the
//! packets of clients under way; and one for what has come of those that wait for room: each user
//! with a share, or each address where there is none.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::origin::Origin;

/// Packets that are not complete yet may take this part of each limit only: what is complete and
/// has to wait, as for the check of a password, finds room whoever dawdles.
const UNFINISHED_PART: u64 = 2;

/// Shared by all threads that read from clients.
#[derive(Debug)]
pub(super) struct Allowance<K> {
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
}

#[derive(Debug, Default)]
struct Share {
    bytes: u64,
    /// One of those who share it found no room in it since some was given back.
    is_wanted: bool,
}

/// Who shares a limit.
pub(super) trait Sharer: Clone + Eq + Hash {}

impl Sharer for Origin {}
impl Sharer for Payer {}

/// Who is charged for what a client makes the broker hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Payer {
    /// All clients with a proved name.
    User(Box<str>),
    /// All others of an address.
    Origin(Origin),
}

/// What one connection has; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Charge<K: Sharer> {
    allowance: Arc<Allowance<K>>,
    sharer: K,
    bytes: u64,
}

/// Which limit has been reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    Share,
    All,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To wait for the rest of a packet.
    Unfinished,
    /// To keep what is complete, as while a password is checked; or a whole packet at once, where
    /// that has an allowance of its own.
    Whole,
}

impl<K: Sharer> Allowance<K> {
    pub(super) fn new(bytes_max: u64, share_bytes_max: u64) -> Self {
        let used = Used { bytes: 0, is_wanted: false, shares: HashMap::new() };
        Self { bytes_max, share_bytes_max, used: Mutex::new(used) }
    }

    /// What a connection takes by being there is not refused: the door accepts no more instead,
    /// see [`Allowance::is_full`].
    pub(super) fn begin(self: &Arc<Self>, sharer: K, bytes: u64) -> Charge<K> {
        let mut charge = Charge { allowance: self.clone(), sharer, bytes: 0 };
        charge.add(&mut self.used(), bytes);
        charge
    }

    /// Is half of it used, so that those who dawdle should go?
    pub(super) fn is_short(&self) -> bool {
        self.used().bytes > self.bytes_max / UNFINISHED_PART
    }

    /// Is all of it used, so that nobody more should come in?
    pub(super) fn is_full(&self) -> bool {
        self.used().bytes >= self.bytes_max
    }

    /// Has anybody something of it?
    pub(super) fn has_any(&self) -> bool {
        self.used().bytes > 0
    }

    fn used(&self) -> MutexGuard<'_, Used<K>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Sharer> Charge<K> {
    /// Takes `bytes` more, or nothing.
    pub(super) fn raise(&mut self, bytes: u64, purpose: Purpose) -> Result<(), Short> {
        let allowance = self.allowance.clone();
        let mut used = allowance.used();
        let part = match purpose {
            Purpose::Unfinished => UNFINISHED_PART,
            Purpose::Whole => 1,
        };
        let share = used.shares.get_mut(&self.sharer);
        if share.as_ref().map_or(0, |share| share.bytes) + bytes > allowance.share_bytes_max / part
        {
            // Without a share it asks for more than there may be.
            if let Some(share) = share {
                share.is_wanted = true;
            }
            return Err(Short::Share);
        }
        if used.bytes + bytes > allowance.bytes_max / part {
            used.is_wanted = true;
            return Err(Short::All);
        }
        self.add(&mut used, bytes);
        Ok(())
    }

    /// Takes `bytes` more, whatever the limits.
    pub(super) fn force(&mut self, bytes: u64) {
        let allowance = self.allowance.clone();
        self.add(&mut allowance.used(), bytes);
    }

    pub(super) fn release(&mut self) {
        let allowance = self.allowance.clone();
        self.give_back(&mut allowance.used());
    }

    pub(super) fn sharer(&self) -> &K {
        &self.sharer
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Does somebody wait for room of which this is a part?
    pub(super) fn is_in_the_way(&self) -> bool {
        let used = self.allowance.used();
        used.is_wanted || used.shares.get(&self.sharer).is_some_and(|share| share.is_wanted)
    }

    /// The client turns out to be behind a proxy.
    pub(super) fn move_to(&mut self, sharer: K) {
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
        }
    }

    fn give_back(&mut self, used: &mut Used<K>) {
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
        self.bytes = 0;
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
