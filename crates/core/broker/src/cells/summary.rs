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
    /// Questions of barriers, in the order of each shard.
    barriers: VecDeque<Barrier>,
}

/// A question of a shard.
#[derive(Debug)]
struct Barrier {
    /// With the number of the question.
    shard: (ShardId, u64),
    /// What of the summary has to count there.
    through: u64,
    /// Shards there that have not answered.
    awaited: u64,
}

impl Told {
    /// A new owner has nothing: what waits is over.
    pub(super) fn restart(&mut self) -> Vec<(ShardId, u64)> {
        (self.is_told, self.through, self.counts_through) = (false, 0, 0);
        self.barriers.drain(..).map(|barrier| barrier.shard).collect()
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

    /// A shard asks when what it claims by now counts there, and when what shards there have sent
    /// before has come.
    pub(super) fn ask(&mut self, shard: (ShardId, u64), awaited: u64, interest: &Interest) {
        // Who has no summary takes this cell for one that wants everything.
        let through = if self.is_told { interest.exported() } else { 0 };
        self.barriers.push_back(Barrier { shard, through, awaited });
    }

    /// So much counts there. Returns the questions that are answered.
    pub(super) fn on_counts(&mut self, through: u64) -> Vec<(ShardId, u64)> {
        self.counts_through = self.counts_through.max(through);
        self.take_passed()
    }

    /// A shard there has sent what it had. Returns the questions that are answered.
    pub(super) fn on_passed(&mut self, shard: (ShardId, u64), by: ShardId) -> Vec<(ShardId, u64)> {
        if let Some(barrier) = self.barriers.iter_mut().find(|barrier| barrier.shard == shard) {
            barrier.awaited &= !(1 << by);
        }
        self.take_passed()
    }

    fn take_passed(&mut self) -> Vec<(ShardId, u64)> {
        let counts_through = self.counts_through;
        let is_passed = |own: &mut Barrier| own.awaited == 0 && own.through <= counts_through;
        let mut passed = Vec::new();
        while let Some(barrier) = self.barriers.pop_front_if(is_passed) {
            passed.push(barrier.shard);
        }
        passed
    }

    pub(super) fn waiting(&self) -> usize {
        self.barriers.len()
    }
}
