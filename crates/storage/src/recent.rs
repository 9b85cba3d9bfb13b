//! The batches near the tail, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::{Frame, Record, read_frame};
use crate::position::Position;

/// Batches that are not written yet, and the newest of those that are, up to a limit.
#[derive(Debug)]
pub(crate) struct Recent {
    batches: VecDeque<Cached>,
    /// What they take: a batch is as large as its buffer, however little is in it.
    bytes: usize,
    bytes_max: usize,
    /// Buffers of evicted batches, for new ones.
    free: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct Cached {
    start: Position,
    bytes: Arc<Vec<u8>>,
}

impl Recent {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { batches: VecDeque::new(), bytes: 0, bytes_max, free: Vec::new() }
    }

    pub(crate) fn push(&mut self, start: Position, bytes: Arc<Vec<u8>>) {
        let batch = Cached { start, bytes };
        self.bytes += batch.cost();
        self.batches.push_back(batch);
    }

    /// An empty buffer, used before where possible.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.free.pop().unwrap_or_default()
    }

    /// The record at `position`, if its batch is here.
    pub(crate) fn read(&self, position: Position) -> Option<Record<'_>> {
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

/// Enough for a group in the making, one at the disk and one just evicted.
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
}
