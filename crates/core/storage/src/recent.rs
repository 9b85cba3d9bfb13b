//! The batches near the tail, in memory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::Journal;
use crate::format::{Frame, Record, read_frame};
use crate::position::Position;

/// Batches that are not written yet, and the newest of those that are, up to a limit.
#[derive(Debug)]
pub(crate) struct Recent {
    batches: VecDeque<Cached>,
    /// What they take: a batch is as large as its buffer, however little is in it.
    bytes: usize,
    /// For now: see [`Recent::fit`].
    bytes_max: usize,
    /// While somebody reads.
    read_bytes_max: usize,
    /// Buffers of evicted batches, for new ones.
    free: Vec<Vec<u8>>,
    /// Whether somebody has read, and whether a batch has come, since the last [`Recent::fit`].
    is_read: Cell<bool>,
    is_fed: bool,
    /// How often in a row nothing had happened.
    quiet: u32,
}

#[derive(Debug)]
struct Cached {
    start: Position,
    bytes: Arc<Vec<u8>>,
}

impl Recent {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            batches: VecDeque::new(),
            bytes: 0,
            bytes_max,
            read_bytes_max: bytes_max,
            free: Vec::new(),
            is_read: Cell::new(false),
            is_fed: false,
            quiet: 0,
        }
    }

    /// All that it keeps for later readers: batches, and buffers for new ones.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.bytes + self.free.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Whether [`Recent::fit`] may give something back, now or when nothing happens for longer.
    pub(crate) fn is_to_be_fitted(&self) -> bool {
        let is_empty = self.batches.is_empty() && self.free.is_empty();
        self.is_fed || self.is_read.get() || (self.bytes_max > 0 && !is_empty)
    }

    /// Fits the limit to the use, now and then. Of what nobody reads a small part is kept, for who
    /// falls behind next; where nothing is appended either, nothing is.
    pub(crate) fn fit(&mut self, written: Position) {
        let is_used = self.is_read.take();
        let is_quiet = !std::mem::take(&mut self.is_fed) && !is_used;
        self.quiet = if is_quiet { self.quiet.saturating_add(1) } else { 0 };
        self.bytes_max = match (is_used, self.quiet >= QUIET_FITS) {
            (true, _) => self.read_bytes_max,
            (false, false) => self.read_bytes_max / UNREAD_PART,
            (false, true) => 0,
        };
        self.evict(written);
        if self.bytes_max == 0 {
            self.free = Vec::new();
            self.batches.shrink_to_fit();
        }
    }

    pub(crate) fn push(&mut self, start: Position, bytes: Arc<Vec<u8>>) {
        let batch = Cached { start, bytes };
        self.bytes += batch.cost();
        self.batches.push_back(batch);
        self.is_fed = true;
    }

    /// An empty buffer, used before where possible.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// The record at `position`, if its batch is here.
    pub(crate) fn read(&self, position: Position) -> Option<Record<'_>> {
        self.is_read.set(true);
        let behind = self.batches.partition_point(|batch| batch.start <= position);
        let batch = self.batches.get(behind.checked_sub(1)?)?;
        if batch.start.segment() != position.segment() {
            return None;
        }
        read_in(&batch.bytes, batch.start, position)
    }

    /// Drops the oldest batches above the limit, but none that is not `written` yet.
    pub(crate) fn evict(&mut self, written: Position) {
        while self.bytes > self.bytes_max
            && let Some(batch) = self.batches.front()
            && batch.start < written
        {
            let Some(batch) = self.batches.pop_front() else { return };
            self.bytes -= batch.cost();
            if self.free.len() < FREE_BUFFERS_MAX
                && let Ok(mut buffer) = Arc::try_unwrap(batch.bytes)
            {
                buffer.clear();
                self.free.push(buffer);
            }
        }
    }
}

impl Journal {
    /// What the journal has in memory besides what it still has to write: batches near the tail,
    /// for readers that are a little behind, and buffers.
    pub fn cache_bytes(&self) -> usize {
        self.recent.kept_bytes().saturating_sub(self.pending_bytes)
    }

    /// Whether [`Journal::fit_cache`] has something to do within the next seconds.
    pub fn has_cache_to_fit(&self) -> bool {
        self.recent.is_to_be_fitted()
    }

    /// Gives back what is in memory for readers that there are not. To be called about once a
    /// second.
    pub fn fit_cache(&mut self) {
        self.recent.fit(self.commit.written);
    }
}

impl Cached {
    fn cost(&self) -> usize {
        self.bytes.capacity() + BATCH_OVERHEAD_BYTES
    }
}

/// Lets go of the room that a batch leaves in its buffer, where it is more than it uses: buffers
/// are used again and again, and each would come to stay as large as the largest batch ever in it.
pub(crate) fn trim(bytes: &mut Vec<u8>) {
    if bytes.capacity() / 2 > bytes.len() {
        bytes.shrink_to_fit();
    }
}

/// The record at `position` in a batch that begins at `start`.
pub(crate) fn read_in(batch: &[u8], start: Position, position: Position) -> Option<Record<'_>> {
    let offset = position.offset().checked_sub(start.offset())?;
    match read_frame(batch.get(offset as usize..)?, 0, false) {
        Frame::Record(kind, bytes, _) => Some(Record { position, kind, bytes }),
        _ => None,
    }
}

/// The part of the limit that is kept while nobody reads.
const UNREAD_PART: usize = 16;
/// So often has nothing to happen until nothing is kept.
const QUIET_FITS: u32 = 5;
/// Enough for a group in the making, two at the disk and one just evicted.
const FREE_BUFFERS_MAX: usize = 4;
/// Places in lists, counters of references, and what the allocator adds.
const BATCH_OVERHEAD_BYTES: usize = 112;

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_bytes(recent: &Recent) -> usize {
        recent.batches.iter().map(|batch| batch.bytes.capacity()).sum()
    }

    #[test]
    fn buffers_that_were_large_once_do_not_add_up() {
        const BYTES_MAX: usize = 64 * 1024;
        let mut recent = Recent::new(BYTES_MAX);
        let mut sizes = [0_usize; 10];
        // One batch in seven is large, and seven is no divisor of how many go round.
        for number in 0..100_000_u32 {
            let mut bytes = recent.buffer();
            bytes.resize(if number % 7 == 0 { 8 * 1024 } else { 100 }, 0);
            trim(&mut bytes);
            let start = Position::new(1, number);
            recent.push(start, Arc::new(bytes));
            recent.evict(Position::new(1, number + 1));
            sizes[number as usize / 10_000] = recent.batches.len();
            assert!(resident_bytes(&recent) <= BYTES_MAX + 8 * 1024);
        }
        assert!(sizes[9] * 2 > sizes[0], "fewer and fewer batches fit: {sizes:?}");
    }

    #[test]
    fn a_batch_without_much_in_it_is_not_free() {
        let mut recent = Recent::new(1_000);
        for number in 0..100 {
            recent.push(Position::new(1, number), Arc::new(vec![0]));
            recent.evict(Position::new(1, number + 1));
        }
        assert!(recent.batches.len() < 10, "{}", recent.batches.len());
    }

    #[test]
    fn what_nobody_reads_is_kept_in_part_and_given_back() {
        const BYTES_MAX: usize = 1 << 20;
        let mut recent = Recent::new(BYTES_MAX);
        let mut number = 0;
        let mut feed = |recent: &mut Recent| {
            for _ in 0..200 {
                recent.push(Position::new(1, number), Arc::new(vec![0; 10_000]));
                number += 1;
                recent.evict(Position::new(1, number));
            }
            Position::new(1, number)
        };
        let written = feed(&mut recent);
        recent.fit(written);
        assert!(recent.kept_bytes() <= BYTES_MAX / UNREAD_PART + FREE_BUFFERS_MAX * 10_000);
        // A reader near the tail has more to find from then on.
        assert!(recent.read(Position::new(1, 0)).is_none());
        recent.fit(written);
        let written = feed(&mut recent);
        assert!(recent.bytes > BYTES_MAX / 2 && recent.bytes <= BYTES_MAX, "{}", recent.bytes);
        recent.fit(written);
        assert!(recent.bytes <= BYTES_MAX / UNREAD_PART, "{}", recent.bytes);
        for _ in 0..QUIET_FITS {
            recent.fit(written);
        }
        assert_eq!((recent.kept_bytes(), recent.batches.len()), (0, 0));
        assert!(!recent.is_to_be_fitted());
        // What is not written yet stays.
        let ahead = feed(&mut recent);
        recent.push(ahead, Arc::new(vec![0; 500]));
        for _ in 0..=QUIET_FITS {
            assert!(recent.is_to_be_fitted());
            recent.fit(ahead);
        }
        assert_eq!((recent.batches.len(), recent.is_to_be_fitted()), (1, false));
    }
}
