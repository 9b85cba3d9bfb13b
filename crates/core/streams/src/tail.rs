//! The newest records of a shard of a stream, in memory: those that are in no file yet, and those
//! that consumers at the front are about to read.

use std::collections::VecDeque;

use broker::streams::StoredRecord;

/// What a record takes in addition to its bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Ordinals of one shard. `first <= archived <= moved <= synced`, if each is not above `next`.
/// `first <= front`.
#[derive(Debug)]
pub(crate) struct Tail {
    /// Of the first record that is here.
    pub(crate) first: u64,
    records: VecDeque<StoredRecord>,
    bytes: usize,
    /// Records below outlive a loss of power: a file may have them.
    pub(crate) synced: u64,
    /// Records below are in blocks.
    pub(crate) moved: u64,
    /// Of those from `moved` on.
    unmoved_bytes: usize,
    /// Records below are durable in files.
    pub(crate) archived: u64,
    /// Records below were compared with the filters of consumers at the front.
    pub(crate) front: u64,
}

/// Bytes that a record counts for.
pub(crate) fn cost(record: &StoredRecord) -> usize {
    record.bytes.len() + RECORD_OVERHEAD_BYTES
}

impl Tail {
    pub(crate) const fn new(archived: u64) -> Self {
        Self {
            first: archived,
            records: VecDeque::new(),
            bytes: 0,
            synced: archived,
            moved: archived,
            unmoved_bytes: 0,
            archived,
            front: archived,
        }
    }

    /// The ordinal of the next record.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes committed records. None, and nothing has changed: they leave a gap.
    pub(crate) fn push(&mut self, first: u64, records: Vec<StoredRecord>) -> Option<()> {
        let known = self.next().checked_sub(first)?;
        for record in records.into_iter().skip(usize::try_from(known).unwrap_or(usize::MAX)) {
            self.bytes += cost(&record);
            self.unmoved_bytes += cost(&record);
            self.records.push_back(record);
        }
        Some(())
    }

    pub(crate) fn get(&self, ordinal: u64) -> Option<&StoredRecord> {
        self.records.get(usize::try_from(ordinal.checked_sub(self.first)?).ok()?)
    }

    /// The first record at this time or later, or the next one.
    pub(crate) fn at_time(&self, at_ms: u64) -> u64 {
        self.first + self.records.partition_point(|record| record.at_ms < at_ms) as u64
    }

    /// Bytes that wait for a block, whether they are synced or not.
    pub(crate) const fn unmoved_bytes(&self) -> usize {
        self.unmoved_bytes
    }

    /// The next record for a block.
    pub(crate) fn next_to_move(&self) -> Option<&StoredRecord> {
        if self.moved < self.synced { self.get(self.moved) } else { None }
    }

    pub(crate) fn note_moved(&mut self) {
        let bytes = self.get(self.moved).map_or(0, cost);
        self.unmoved_bytes -= bytes;
        self.moved += 1;
    }

    /// Forgets records below `end` that are in files and that the front has passed. Returns the
    /// bytes that are free.
    pub(crate) fn trim(&mut self, end: u64) -> usize {
        let end = end.min(self.archived).min(self.front).min(self.next());
        let before = self.bytes;
        while self.first < end {
            let Some(record) = self.records.pop_front() else { break };
            self.bytes -= cost(&record);
            self.first += 1;
        }
        before - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn records(times: &[u64]) -> Vec<StoredRecord> {
        let record = |at_ms: &u64| StoredRecord { at_ms: *at_ms, bytes: Arc::new(vec![0; 10]) };
        times.iter().map(record).collect()
    }

    #[test]
    fn records_follow_each_other_and_known_ones_count_once() {
        let mut tail = Tail::new(5);
        assert_eq!(tail.push(5, records(&[1, 2])), Some(()));
        assert_eq!(tail.push(6, records(&[2, 3])), Some(()));
        assert_eq!((tail.next(), tail.bytes()), (8, 3 * (10 + RECORD_OVERHEAD_BYTES)));
        assert_eq!(tail.push(9, records(&[4])), None);
        assert_eq!((tail.at_time(2), tail.at_time(9)), (6, 8));
    }

    #[test]
    fn only_synced_records_are_moved_and_only_archived_ones_behind_the_front_are_forgotten() {
        let mut tail = Tail::new(0);
        tail.push(0, records(&[1, 2, 3])).unwrap();
        assert!(tail.next_to_move().is_none());
        tail.synced = 2;
        while tail.next_to_move().is_some() {
            tail.note_moved();
        }
        assert_eq!((tail.moved, tail.unmoved_bytes()), (2, 10 + RECORD_OVERHEAD_BYTES));
        assert_eq!(tail.trim(9), 0);
        (tail.archived, tail.front) = (2, 1);
        assert_eq!(tail.trim(9), 10 + RECORD_OVERHEAD_BYTES);
        assert_eq!((tail.first, tail.get(0).is_none(), tail.get(1).is_some()), (1, true, true));
    }
}
