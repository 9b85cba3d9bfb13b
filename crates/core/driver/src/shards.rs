//! The shards of a driver, and which of them a turn has to look at.
//!
//! A shard is marked when a function gets it to change it. A turn visits only shards that are
//! marked or due, and takes the mark away at its end, unless something is left. So a shard that has
//! nothing to do costs nothing, and none is forgotten: without the mark nothing has changed.

use std::ops::{Index, IndexMut};

use broker::{Shard, ShardId};
use session::NEVER;

/// Shards by their places on this driver; at most 64, as there are no more in a broker.
#[derive(Debug)]
pub struct Shards {
    shards: Vec<Shard>,
    marked: Places,
    /// When each had something to do by itself, when its mark was taken away.
    deadlines_ms: Vec<u64>,
    /// The first of those.
    next_ms: u64,
    #[cfg(feature = "testing")]
    flaw: Option<Flaw>,
}

/// A bug that a test plants.
#[cfg(feature = "testing")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A shard that a function gets to change it is not marked.
    ForgetsMarks,
    /// When a shard is due is not asked anew.
    KeepsDeadlines,
    /// What was written in place counts as answered, and the answers are not written.
    StrandsAnswers,
}

/// Places of shards, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places(u64);

impl Shards {
    /// All are marked at first.
    ///
    /// # Panics
    ///
    /// With more than 64 shards.
    pub fn new(shards: Vec<Shard>) -> Self {
        assert!(shards.len() <= u64::BITS as usize, "{} shards on one driver", shards.len());
        let deadlines_ms = vec![0; shards.len()];
        let mut own = Self {
            shards,
            marked: Places::default(),
            deadlines_ms,
            next_ms: 0,
            #[cfg(feature = "testing")]
            flaw: None,
        };
        own.all_mut();
        own
    }

    pub fn len(&self) -> usize {
        self.shards.len()
    }

    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// To look at.
    pub fn all(&self) -> &[Shard] {
        &self.shards
    }

    /// All are marked.
    pub fn all_mut(&mut self) -> &mut [Shard] {
        self.marked = self.places();
        &mut self.shards
    }

    /// One of this broker's number. It is marked.
    pub fn find_mut(&mut self, id: ShardId) -> Option<&mut Shard> {
        let place = self.shards.iter().position(|shard| shard.id() == id)?;
        Some(&mut self[place])
    }

    /// All of them.
    pub(crate) fn places(&self) -> Places {
        Places::first(self.len())
    }

    /// Those that may have something for the driver.
    pub const fn marked(&self) -> Places {
        self.marked
    }

    /// They have so much for each turn from now on. That is nothing to visit them for.
    pub(crate) fn set_units(&mut self, units: u32) {
        self.shards.iter_mut().for_each(|shard| shard.work_mut().set_units(units));
    }

    /// Those that have something to do by themselves at this time. A marked shard is asked again:
    /// it may have got something in this turn that is due at once.
    pub(crate) fn due(&self, now_ms: u64) -> Places {
        let is_due = |place: &usize| self.deadline_ms(*place) <= now_ms;
        match self.next_ms <= now_ms {
            true => (0..self.len()).filter(is_due).collect(),
            false => self.marked.filter(is_due).collect(),
        }
    }

    /// When the first of them has something to do by itself.
    pub(crate) fn next_deadline_ms(&self) -> u64 {
        self.marked.map(|place| self.deadline_ms(place)).fold(self.next_ms, u64::min)
    }

    fn deadline_ms(&self, place: usize) -> u64 {
        match self.marked.contains(place) {
            true => self.shards[place].next_deadline_ms(),
            false => self.deadlines_ms[place],
        }
    }

    /// A turn is over: marks stay where it has left something.
    pub(crate) fn settle(&mut self) {
        let mut left = Places::default();
        for place in self.marked {
            self.note_deadline(place, self.shards[place].next_deadline_ms());
            if self.shards[place].has_leftovers() {
                left.insert(place);
            }
        }
        self.next_ms = self.deadlines_ms.iter().copied().min().unwrap_or(NEVER);
        self.marked = left;
    }

    #[cfg(not(feature = "testing"))]
    fn note_deadline(&mut self, place: usize, deadline_ms: u64) {
        self.deadlines_ms[place] = deadline_ms;
    }

    #[cfg(not(feature = "testing"))]
    const fn mark(&mut self, place: usize) {
        self.marked.insert(place);
    }
}

#[cfg(feature = "testing")]
impl Shards {
    pub(crate) const fn plant(&mut self, flaw: Flaw) {
        self.flaw = Some(flaw);
    }

    pub(crate) fn has_flaw(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    fn note_deadline(&mut self, place: usize, deadline_ms: u64) {
        let keeps = self.flaw == Some(Flaw::KeepsDeadlines) && self.deadlines_ms[place] != 0;
        if !keeps {
            self.deadlines_ms[place] = deadline_ms;
        }
    }

    fn mark(&mut self, place: usize) {
        if self.flaw != Some(Flaw::ForgetsMarks) {
            self.marked.insert(place);
        }
    }

    /// What a turn would pass by though it is there.
    pub(crate) fn missed(&self) -> Option<String> {
        let unvisited = (0..self.len()).filter(|place| !self.marked.contains(*place));
        for place in unvisited {
            let shard = &self.shards[place];
            let (known_ms, deadline_ms) = (self.deadlines_ms[place], shard.next_deadline_ms());
            if shard.has_leftovers() {
                return Some(format!("shard {} has something, and is not marked", shard.id()));
            }
            if deadline_ms < known_ms || self.next_ms > known_ms {
                let id = shard.id();
                return Some(format!("shard {id} is due at {deadline_ms}, not at {known_ms}"));
            }
        }
        None
    }
}

impl Index<usize> for Shards {
    type Output = Shard;

    #[inline]
    fn index(&self, place: usize) -> &Shard {
        &self.shards[place]
    }
}

impl IndexMut<usize> for Shards {
    #[inline]
    fn index_mut(&mut self, place: usize) -> &mut Shard {
        self.mark(place);
        &mut self.shards[place]
    }
}

impl Places {
    fn first(count: usize) -> Self {
        Self(u64::MAX.checked_shr(u64::BITS - count as u32).unwrap_or(0))
    }

    const fn insert(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    const fn contains(self, place: usize) -> bool {
        self.0 & 1 << place != 0
    }
}

impl Iterator for Places {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let place = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(place as usize)
    }
}

impl FromIterator<usize> for Places {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        let mut own = Self::default();
        places.into_iter().for_each(|place| own.insert(place));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_in_order() {
        assert_eq!(Places::first(0).count(), 0);
        assert!(Places::first(3).eq([0, 1, 2]));
        assert_eq!(Places::first(64).count(), 64);
        let places: Places = [63, 0, 7, 7].into_iter().collect();
        assert!(places.eq([0, 7, 63]));
        assert!(places.contains(63) && !places.contains(62));
    }
}
