//! What another cell knows of the filters here, and what waits for it.

use std::collections::VecDeque;

use topic::Interest;

use super::frame::Frame;
use crate::ShardId;
use crate::words::mail::BarrierKind::{self, Arrived, Known};

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
    /// Questions of barriers by which what this cell claims is to be known, each with what has to
    /// count there; in the order of each shard.
    known: VecDeque<(ShardId, u64, u64)>,
    /// Of those by which what was sent is to come, each with the shards there that have not
    /// answered.
    arrived: VecDeque<(ShardId, u64, u64)>,
}

/// A question that is answered: of which shard, its number, and of which barrier.
pub(super) type Passed = (ShardId, u64, BarrierKind);

impl Told {
    /// A new owner has nothing: what waits is over.
    pub(super) fn restart(&mut self) -> Vec<Passed> {
        (self.is_told, self.through, self.counts_through) = (false, 0, 0);
        let known = self.known.drain(..).map(|(shard, number, _)| (shard, number, Known));
        let arrived = self.arrived.drain(..).map(|(shard, number, _)| (shard, number, Arrived));
        known.chain(arrived).collect()
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

    /// A shard asks when what it claims by now counts there. Returns the questions that are
    /// answered.
    pub(super) fn ask_known(
        &mut self,
        (shard, number): (ShardId, u64),
        interest: &Interest,
    ) -> Vec<Passed> {
        // Who has no summary takes this cell for one that wants everything.
        let through = if self.is_told { interest.exported() } else { 0 };
        self.known.push_back((shard, number, through));
        self.on_counts(0)
    }

    /// A shard asks when what these shards there have sent has come.
    pub(super) fn ask_arrived(&mut self, (shard, number): (ShardId, u64), awaited: u64) {
        self.arrived.push_back((shard, number, awaited));
    }

    /// So much counts there. Returns the questions that are answered.
    pub(super) fn on_counts(&mut self, through: u64) -> Vec<Passed> {
        self.counts_through = self.counts_through.max(through);
        let mut passed = Vec::new();
        while let Some((shard, number, _)) =
            self.known.pop_front_if(|(.., through)| *through <= self.counts_through)
        {
            passed.push((shard, number, Known));
        }
        passed
    }

    /// What a shard there has sent has come. Returns the questions that are answered.
    pub(super) fn on_passed(&mut self, asked: (ShardId, u64), by: ShardId) -> Vec<Passed> {
        let mut all = self.arrived.iter_mut();
        if let Some((.., awaited)) = all.find(|(shard, number, _)| (*shard, *number) == asked) {
            *awaited &= !(1 << by);
        }
        let mut passed = Vec::new();
        while let Some((shard, number, _)) = self.arrived.pop_front_if(|(.., left)| *left == 0) {
            passed.push((shard, number, Arrived));
        }
        passed
    }

    pub(super) fn waiting(&self) -> usize {
        self.known.len() + self.arrived.len()
    }
}
