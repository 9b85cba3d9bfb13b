//! What another cell knows of the filters here, and what waits for it.

use std::collections::VecDeque;

use topic::Interest;

use super::frame::Frame;
use crate::ShardId;

/// Changes in a frame.
const CHANGES_MAX: usize = 4096;

/// How far the owner of another cell has the summary of this one.
///
/// As long as it has none it takes this cell for one that wants everything, so nothing has to wait.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// It has asked for a summary, and got it.
    is_told: bool,
    /// The number of its latest question.
    ask: u64,
    through: u64,
    counts_through: u64,
    /// Questions of shards, each with the number that has to count: SUBACKs wait for them.
    barriers: VecDeque<(ShardId, u64, u64)>,
}

impl Told {
    /// A new owner has nothing: what waits is over.
    pub(super) fn restart(&mut self) -> Vec<(ShardId, u64)> {
        (self.is_told, self.through, self.counts_through) = (false, 0, 0);
        self.barriers.drain(..).map(|(shard, number, _)| (shard, number)).collect()
    }

    pub(super) fn answer(&mut self, interest: &Interest, ask: u64) -> Frame {
        let snapshot = Box::new(interest.snapshot());
        (self.is_told, self.ask, self.through) = (true, ask, snapshot.number());
        Frame::Summary { ask, snapshot }
    }

    /// What it has not been told yet.
    pub(super) fn tell(&mut self, interest: &Interest, frames: &mut Vec<(ShardId, Frame)>) {
        while self.is_told && self.through < interest.exported() {
            let Some(found) = interest.changes_since(self.through, CHANGES_MAX) else {
                // Too much has changed.
                return frames.push((0, self.answer(interest, self.ask)));
            };
            self.through = found.through;
            frames.push((0, Frame::Changes { through: found.through, changes: found.changes }));
        }
    }

    /// A shard asks when what it claims by now counts there. False: it waits.
    pub(super) fn pass(&mut self, shard: ShardId, number: u64, interest: &Interest) -> bool {
        let through = interest.exported();
        if !self.is_told || self.counts_through >= through {
            return true;
        }
        self.barriers.push_back((shard, number, through));
        false
    }

    /// So much counts there. Returns the questions that are answered.
    pub(super) fn on_counts(&mut self, through: u64) -> Vec<(ShardId, u64)> {
        self.counts_through = self.counts_through.max(through);
        let mut passed = Vec::new();
        while let Some((shard, number, _)) =
            self.barriers.pop_front_if(|(.., through)| *through <= self.counts_through)
        {
            passed.push((shard, number));
        }
        passed
    }

    pub(super) fn waiting(&self) -> usize {
        self.barriers.len()
    }
}
