//! The kept sessions of a shard: by the slot of their client, and by their queue.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::log::kept_sessions::KeptSession;
use crate::words::queue_number::QueueNumber;

/// What the journal knows of sessions that outlive their connections.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// As long as the table of clients, at most.
    by_slot: Vec<Option<Box<KeptSession>>>,
    by_queue: HashTable<u32>,
    hasher: FixedState,
}

impl Kept {
    /// Makes room for sessions of the journal, so that the tables need not grow under them step by
    /// step.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (by_slot, hasher) = (&self.by_slot, &self.hasher);
        self.by_queue.reserve(count, |slot| hash_at(hasher, by_slot, *slot));
        self.by_slot.reserve(count);
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&KeptSession> {
        self.by_slot.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut KeptSession> {
        self.by_slot.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = &KeptSession> {
        self.by_slot.iter().flatten().map(|session| &**session)
    }

    pub(crate) fn sessions_mut(&mut self) -> impl Iterator<Item = &mut KeptSession> {
        self.by_slot.iter_mut().flatten().map(|session| &mut **session)
    }

    /// The slot of the session with this queue.
    pub(crate) fn find(&self, queue: QueueNumber) -> Option<u32> {
        let hash = self.hasher.hash_one(queue);
        self.by_queue.find(hash, |slot| queue_at(&self.by_slot, *slot) == Some(queue)).copied()
    }

    /// The session with this queue, if it is still there.
    pub(super) fn of_queue(&mut self, queue: QueueNumber) -> Option<&mut KeptSession> {
        self.get_mut(self.find(queue)?)
    }

    /// From now on the session of this slot is in the journal.
    pub(crate) fn insert(&mut self, slot: u32, session: KeptSession) {
        self.take(slot);
        let queue = session.queue;
        if self.by_slot.len() <= slot as usize {
            self.by_slot.resize_with(slot as usize + 1, || None);
        }
        self.by_slot[slot as usize] = Some(Box::new(session));
        let (by_slot, hasher) = (&self.by_slot, &self.hasher);
        let hash = |slot: &u32| hash_at(hasher, by_slot, *slot);
        self.by_queue.insert_unique(hasher.hash_one(queue), slot, hash);
    }

    /// From now on the session is no more in the journal. Returns what it had there.
    pub(crate) fn take(&mut self, slot: u32) -> Option<Box<KeptSession>> {
        let session = self.by_slot.get_mut(slot as usize)?.take()?;
        let hash = self.hasher.hash_one(session.queue);
        if let Ok(entry) = self.by_queue.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        Some(session)
    }
}

/// 0 if there is none.
fn hash_at(hasher: &FixedState, by_slot: &[Option<Box<KeptSession>>], slot: u32) -> u64 {
    queue_at(by_slot, slot).map_or(0, |queue| hasher.hash_one(queue))
}

fn queue_at(by_slot: &[Option<Box<KeptSession>>], slot: u32) -> Option<QueueNumber> {
    Some(by_slot.get(slot as usize)?.as_ref()?.queue)
}
