//! What is left of sessions that have ended.

use std::collections::VecDeque;

use session::{ExpiringQueue, Outgoing};

use crate::parts::group_queue::Item;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Leaving;

/// So many deliveries and parked messages are freed in one turn, up to 0.1 us each.
pub(crate) const MESSAGES_PER_TURN: usize = 5_000;

/// Or this part of all that is left, if it is more: sessions that end one after the other thus
/// leave no more than what a hundred turns bring, however fast they come.
pub(crate) const PART_PER_TURN: usize = 100;

pub(crate) const MESSAGES_AT_ONCE: usize = 500;

/// What goes with the next turns.
#[derive(Debug, Default)]
pub(crate) struct Cleanup {
    /// Slots, and what leaves the index of them.
    pub(crate) subscriptions: VecDeque<(u32, Leaving)>,
    pub(crate) queues: Vec<Outgoing>,
    pub(crate) parked: Vec<ExpiringQueue<Item>>,
}

impl Cleanup {
    /// Frees as many messages as one turn may.
    pub(crate) fn free_messages(&mut self) {
        let queued: usize = self.queues.iter().map(count).sum();
        let parked: usize = self.parked.iter().map(ExpiringQueue::len).sum();
        let mut left = MESSAGES_PER_TURN.max((queued + parked) / PART_PER_TURN);
        while left > 0 {
            if let Some(queue) = self.queues.last_mut() {
                let freed = queue.discard(left);
                if freed < left {
                    self.queues.pop();
                }
                left -= freed;
            } else if let Some(parked) = self.parked.last_mut() {
                while left > 0 && parked.pop_front().is_some() {
                    left -= 1;
                }
                if parked.is_empty() {
                    self.parked.pop();
                }
            } else {
                return;
            }
        }
    }
}

impl Sessions {
    /// Messages of a shared group that is gone.
    pub(crate) fn discard_parked(&mut self, parked: ExpiringQueue<Item>) {
        if parked.len() > MESSAGES_AT_ONCE {
            self.cleanup.parked.push(parked);
        }
    }
}

/// Deliveries of a session, in any state.
pub(crate) fn count(queue: &Outgoing) -> usize {
    queue.queued() + usize::from(queue.in_flight())
}
