//! Hashing of text, and a hash table of ids whose text lives elsewhere.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

/// Hashes text, the same way for the same seed. A seed that clients cannot guess keeps them from
/// steering their filters into one bucket.
#[derive(Clone, Debug)]
pub(crate) struct TextHasher(FixedState);

impl TextHasher {
    pub(crate) fn new(seed: u64) -> Self {
        Self(FixedState::with_seed(seed))
    }

    #[inline]
    pub(crate) fn hash(&self, text: &str) -> u64 {
        self.hash_bytes(text.as_bytes())
    }

    #[inline]
    pub(crate) fn hash_bytes(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}

/// Ids by the hash of their text. The upper half of the hash is kept beside the id, so that the
/// table grows without a look at the texts: at a million filters that is the difference between a
/// few and some hundred milliseconds.
#[derive(Debug, Default)]
pub(crate) struct IdTable {
    slots: HashTable<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    hash: u32,
    id: u32,
}

impl IdTable {
    /// The id whose text hashes to `hash` and for which `is_same` confirms the text.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        let short = shorten(hash);
        self.slots
            .find(spread(short), |slot| slot.hash == short && is_same(slot.id))
            .map(|slot| slot.id)
    }

    /// Adds an id that is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, id: u32) {
        let slot = Slot { hash: shorten(hash), id };
        self.slots.insert_unique(spread(slot.hash), slot, |slot| spread(slot.hash));
    }

    pub(crate) fn remove(&mut self, hash: u64, id: u32) {
        let found = self.slots.find_entry(spread(shorten(hash)), |slot| slot.id == id);
        debug_assert!(found.is_ok(), "id {id} is removed twice");
        if let Ok(entry) = found {
            entry.remove();
        }
        shrink_sparse(&mut self.slots, |slot| spread(slot.hash));
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.slots.allocation_size()
    }
}

/// Gives memory back once seven eighths of a table stand empty. The distance to the growth limit
/// keeps a table that breathes from being rebuilt over and over.
pub(crate) fn shrink_sparse<T>(table: &mut HashTable<T>, hasher: impl Fn(&T) -> u64) {
    if table.capacity() > SHRINK_FLOOR && table.len() < table.capacity() / 8 {
        table.shrink_to(table.len() * 2, hasher);
    }
}

/// Spreads an integer over all 64 bits: tables take the bucket from the low bits and a tag from
/// the highest seven.
#[inline]
pub(crate) fn spread_u64(value: u64) -> u64 {
    let product = u128::from(value ^ 0x2545_F491_4F6C_DD1D) * u128::from(SPREAD);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
fn shorten(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[inline]
fn spread(short: u32) -> u64 {
    u64::from(short).wrapping_mul(SPREAD)
}

/// 2^64 divided by the golden ratio, odd.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// Tables of this capacity and below are never rebuilt to save memory.
const SHRINK_FLOOR: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_equal_hashes_are_distinguished_by_their_text() {
        let mut table = IdTable::default();
        table.insert(7 << 32, 1);
        table.insert(7 << 32, 2);
        assert_eq!(table.find(7 << 32, |id| id == 2), Some(2));
        table.remove(7 << 32, 1);
        assert_eq!(table.find(7 << 32, |id| id == 1), None);
        assert_eq!(table.find(7 << 32, |id| id == 2), Some(2));
    }

    #[test]
    fn an_emptied_table_gives_its_memory_back() {
        let mut table = IdTable::default();
        let hash = |id: u32| spread_u64(u64::from(id));
        for id in 0..100_000 {
            table.insert(hash(id), id);
        }
        let full = table.heap_bytes();
        for id in 10..100_000 {
            table.remove(hash(id), id);
        }
        assert!(table.heap_bytes() < full / 100, "{} of {full}", table.heap_bytes());
        assert!((0..10).all(|id| table.find(hash(id), |other| other == id) == Some(id)));
    }
}
