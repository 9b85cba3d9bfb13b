//! The batches near the tail, in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::format::{Frame, Record, read_frame};
use crate::position::Position;

/// Batches that are not written yet, and the newest of those that are, up to a limit.
#[derive(Debug)]
pub(crate) struct Recent {
    batches: VecDeque<Cached>,
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
        self.bytes += bytes.len();
        self.batches.push_back(Cached { start, bytes });
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
            self.bytes -= batch.bytes.len();
            if self.free.len() < FREE_BUFFERS_MAX
                && let Ok(mut buffer) = Arc::try_unwrap(batch.bytes)
            {
                buffer.clear();
                self.free.push(buffer);
            }
        }
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
