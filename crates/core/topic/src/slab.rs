//! A paged slab: values under small dense ids, without the doubling and copying of one long `Vec`.

/// Values under `u32` ids. Ids of removed values are used again, latest first.
///
/// Grows by a page at a time, so a million entries cost neither a copy of tens of megabytes in the
/// middle of a turn nor up to twice their memory. Pages go back when the slab becomes empty.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    pages: Vec<Box<[T; PAGE_LEN]>>,
    free: Vec<u32>,
    len: u32,
}

impl<T: Default> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { pages: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len as usize
    }

    /// Stores `value` under a free id.
    ///
    /// # Panics
    ///
    /// When [`ID_LIMIT`] ids are taken, which no machine has the memory for.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(id) = self.free.pop() {
            *self.at_mut(id) = value;
            return id;
        }
        let id = self.len - 1;
        assert!(id < ID_LIMIT, "slab is full");
        if offset_of(id) == 0 {
            self.pages.push(Box::new(std::array::from_fn(|_| T::default())));
        }
        *self.at_mut(id) = value;
        id
    }

    /// Takes the value out; the id is free from now on.
    pub(crate) fn remove(&mut self, id: u32) -> T {
        let value = std::mem::take(self.at_mut(id));
        self.len -= 1;
        if self.len == 0 {
            self.pages = Vec::new();
            self.free = Vec::new();
        } else {
            self.free.push(id);
        }
        value
    }

    /// The value under `id`, which must be taken.
    #[inline]
    pub(crate) fn at(&self, id: u32) -> &T {
        &self.pages[page_of(id)][offset_of(id)]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, id: u32) -> &mut T {
        &mut self.pages[page_of(id)][offset_of(id)]
    }

    /// Like [`Slab::at`] for an id that may not be taken: then a default value or none.
    pub(crate) fn find(&self, id: u32) -> Option<&T> {
        self.pages.get(page_of(id)).map(|page| &page[offset_of(id)])
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.pages.len() * PAGE_LEN * size_of::<T>()
            + self.pages.capacity() * size_of::<usize>()
            + self.free.capacity() * size_of::<u32>()
    }
}

fn page_of(id: u32) -> usize {
    (id >> PAGE_LOG2) as usize
}

fn offset_of(id: u32) -> usize {
    id as usize & (PAGE_LEN - 1)
}

/// Ids stay below this, which leaves a bit of 32 to mark them with, and the highest one for "none".
pub(crate) const ID_LIMIT: u32 = (1 << 31) - 1;
const PAGE_LOG2: u32 = 8;
const PAGE_LEN: usize = 1 << PAGE_LOG2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_reused_and_values_stay_where_they_are() {
        let mut slab = Slab::new();
        let ids: Vec<u32> = (0..1000_u64).map(|value| slab.insert(value)).collect();
        assert_eq!(ids, (0..1000).collect::<Vec<u32>>());
        assert_eq!(slab.remove(500), 500);
        assert_eq!(slab.remove(3), 3);
        assert_eq!(slab.insert(7000), 3);
        assert_eq!(slab.insert(8000), 500);
        assert_eq!(slab.insert(9000), 1000);
        assert_eq!((*slab.at(3), *slab.at(999), slab.len()), (7000, 999, 1001));
        assert_eq!(slab.find(1_000_000), None);
    }

    #[test]
    fn an_empty_slab_holds_no_memory() {
        let mut slab = Slab::new();
        for value in 0..1000_u64 {
            slab.insert(value);
        }
        for id in 0..1000 {
            slab.remove(id);
        }
        assert_eq!(slab.len(), 0);
        assert_eq!(slab.heap_bytes(), 0);
        assert_eq!(slab.insert(1), 0);
    }
}
