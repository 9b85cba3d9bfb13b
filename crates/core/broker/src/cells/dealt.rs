//! What another cell has asked, and the shards of this one have not answered.

use std::collections::{HashMap, VecDeque};

use codec::Reason;
use foldhash::fast::FixedState;

use crate::ShardId;

/// Of the present owner of the other cell. Numbers are those of this gateway, and are not used
/// again: a shard's answer to something that an earlier owner has asked finds nothing.
#[derive(Debug, Default)]
pub(super) struct Dealt {
    messages: HashMap<u64, Asked, FixedState>,
    pages: HashMap<u64, u64, FixedState>,
    /// In the order in which they were asked, as shards answer the latest only.
    grants: VecDeque<(u64, Asked)>,
    /// Questions of barriers, each with the shard that asks there.
    barriers: HashMap<u64, Barrier, FixedState>,
    last: u64,
}

#[derive(Debug)]
struct Barrier {
    asked_by: (ShardId, u64),
    awaited: u64,
}

#[derive(Debug)]
struct Asked {
    /// Of the question, where it was asked.
    number: u64,
    /// A bit for each shard that has yet to answer.
    awaited: u64,
    reason: Reason,
}

impl Dealt {
    /// A message goes to these shards. Returns what their answers name.
    pub(super) fn message(&mut self, number: u64, awaited: u64) -> u64 {
        let asked = Asked { number, awaited, reason: Reason::NO_MATCHING_SUBSCRIBERS };
        self.last += 1;
        self.messages.insert(self.last, asked);
        self.last
    }

    /// A shard has answered. Some: all have, and what the answer is.
    pub(super) fn on_answer(
        &mut self,
        own: u64,
        by: ShardId,
        reason: Reason,
    ) -> Option<(u64, Reason)> {
        let asked = self.messages.get_mut(&own)?;
        asked.awaited &= !(1 << by);
        asked.reason = worse(asked.reason, reason);
        if asked.awaited != 0 {
            return None;
        }
        self.messages.remove(&own).map(|asked| (asked.number, asked.reason))
    }

    /// A shard looks up a page.
    pub(super) fn page(&mut self, number: u64) -> u64 {
        self.last += 1;
        self.pages.insert(self.last, number);
        self.last
    }

    pub(super) fn on_page(&mut self, own: u64) -> Option<u64> {
        self.pages.remove(&own)
    }

    /// All shards are asked to say when they have dealt with their mail.
    pub(super) fn grant(&mut self, number: u64, awaited: u64) -> u64 {
        self.last += 1;
        self.grants.push_back((self.last, Asked { number, awaited, reason: Reason::SUCCESS }));
        self.last
    }

    /// A shard has dealt with all that came before this one. Returns the questions that are
    /// answered.
    pub(super) fn on_grant(&mut self, through: u64, by: ShardId) -> Vec<u64> {
        for (_, asked) in self.grants.iter_mut().take_while(|(own, _)| *own <= through) {
            asked.awaited &= !(1 << by);
        }
        let mut answered = Vec::new();
        while let Some((_, asked)) = self.grants.pop_front_if(|(_, asked)| asked.awaited == 0) {
            answered.push(asked.number);
        }
        answered
    }

    /// All shards are asked by a barrier. Returns the number of the question here.
    pub(super) fn barrier(&mut self, asked_by: (ShardId, u64), awaited: u64) -> u64 {
        self.last += 1;
        self.barriers.insert(self.last, Barrier { asked_by, awaited });
        self.last
    }

    /// A shard has answered. Returns who has asked there, and under which number.
    pub(super) fn on_barrier(&mut self, own: u64, by: ShardId) -> Option<(ShardId, u64)> {
        let barrier = self.barriers.get_mut(&own)?;
        barrier.awaited &= !(1 << by);
        let (asked_by, is_over) = (barrier.asked_by, barrier.awaited == 0);
        if is_over {
            self.barriers.remove(&own);
        }
        Some(asked_by)
    }

    /// Who has asked all that is gone.
    pub(super) fn forget(&mut self) {
        *self = Self { last: self.last, ..Self::default() };
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len() + self.pages.len() + self.grants.len() + self.barriers.len()
    }
}

/// Of two answers: an error counts, and that one has a subscriber.
fn worse(one: Reason, other: Reason) -> Reason {
    match (one.is_error(), other) {
        (true, _) | (_, Reason::NO_MATCHING_SUBSCRIBERS) => one,
        _ => other,
    }
}
