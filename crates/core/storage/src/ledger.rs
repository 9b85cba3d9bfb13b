//! How many bytes of each segment are used, and how many of them are still needed.

use std::collections::VecDeque;

use crate::Position;
use crate::format::{HEADER_BLOCK_BYTES, RECORD_FRAME_BYTES};

/// The segments that hold records, oldest first, without gaps, with their live bytes.
///
/// A record counts as live from its append (or its replay) until the user releases it.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Number of the oldest segment.
    first: u32,
    segments: VecDeque<Usage>,
    used_bytes: u64,
    live_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    /// Size of the file when it was begun.
    pub(crate) capacity: u32,
    /// Offset behind the last batch.
    pub(crate) end: u32,
    pub(crate) live: u64,
}

/// What a record of `record_bytes` counts for in the ledger.
pub const fn weight(record_bytes: usize) -> u64 {
    record_bytes as u64 + RECORD_FRAME_BYTES as u64
}

impl Ledger {
    /// Says that `bytes` of the record at `position` are no longer needed. A record counts for
    /// [`weight`] of its length; one that packs several facts may be released in parts. Releasing
    /// what lies in a segment that is gone already does nothing.
    pub fn release(&mut self, position: Position, bytes: u64) {
        if let Some(usage) = self.usage_mut(position.segment()) {
            debug_assert!(usage.live >= bytes, "released twice: {position}");
            let released = bytes.min(usage.live);
            usage.live -= released;
            self.live_bytes -= released;
        }
    }

    /// Bytes of batches in all segments, needed or not.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Bytes of records that have not been released.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Number of the oldest segment, if there is one.
    pub fn oldest(&self) -> Option<u32> {
        (!self.segments.is_empty()).then_some(self.first)
    }

    pub(crate) fn len(&self) -> usize {
        self.segments.len()
    }

    pub(crate) fn usage(&self, segment: u32) -> Option<Usage> {
        let index = segment.checked_sub(self.first)?;
        self.segments.get(index as usize).copied()
    }

    pub(crate) fn push(&mut self, number: u32, capacity: u32) {
        if self.segments.is_empty() {
            self.first = number;
        }
        debug_assert_eq!(self.first as usize + self.segments.len(), number as usize);
        self.segments.push_back(Usage { capacity, end: HEADER_BLOCK_BYTES, live: 0 });
    }

    pub(crate) fn pop_oldest(&mut self) -> Option<(u32, Usage)> {
        let usage = self.segments.pop_front()?;
        let number = self.first;
        self.first += 1;
        self.used_bytes -= u64::from(usage.end - HEADER_BLOCK_BYTES);
        self.live_bytes -= usage.live;
        Some((number, usage))
    }

    pub(crate) fn set_end(&mut self, segment: u32, end: u32) {
        if let Some(usage) = self.usage_mut(segment) {
            let before = std::mem::replace(&mut usage.end, end);
            self.used_bytes = self.used_bytes + u64::from(end) - u64::from(before);
        }
    }

    pub(crate) fn add(&mut self, segment: u32, bytes: u64) {
        if let Some(usage) = self.usage_mut(segment) {
            usage.live += bytes;
            self.live_bytes += bytes;
        }
    }

    fn usage_mut(&mut self, segment: u32) -> Option<&mut Usage> {
        let index = segment.checked_sub(self.first)?;
        self.segments.get_mut(index as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_segments() {
        let mut ledger = Ledger::default();
        ledger.push(5, 1 << 20);
        ledger.push(6, 1 << 20);
        ledger.add(5, weight(91));
        ledger.set_end(5, 5000);
        assert_eq!((ledger.used_bytes(), ledger.live_bytes()), (5000 - 4096, 100));
        ledger.release(Position::new(5, 4200), 40);
        assert_eq!(ledger.live_bytes(), 60);
        let (number, usage) = ledger.pop_oldest().unwrap();
        assert_eq!((number, usage.live), (5, 60));
        assert_eq!((ledger.used_bytes(), ledger.live_bytes()), (0, 0));
        assert_eq!(ledger.oldest(), Some(6));
    }

    #[test]
    fn releasing_in_a_segment_that_is_gone_changes_nothing() {
        let mut ledger = Ledger::default();
        ledger.push(5, 1 << 20);
        ledger.add(5, 10);
        ledger.release(Position::new(4, 0), 10);
        ledger.release(Position::new(6, 0), 10);
        assert_eq!(ledger.live_bytes(), 10);
    }
}
