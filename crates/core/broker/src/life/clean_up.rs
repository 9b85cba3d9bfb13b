//! What is left of sessions that have ended: it goes in portions, so that nobody waits for the end
//! of a large one.
//!
//! The session itself is gone at once, for clients and for counters. Until its last subscription
//! is out of the index its slot is not given to anybody else: what still matches finds no client.

use crate::Quota;
use crate::Shard;
use crate::parts::cleanup::{Cleanup, MESSAGES_AT_ONCE, PART_PER_TURN, count};
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Leaving;
use crate::words::expected::Expected;

/// So many subscriptions are taken out of the index in one turn, some 0.3 us each.
const SUBSCRIPTIONS_PER_TURN: usize = 1_000;

/// What a session of everyday size has goes with it: up to so many subscriptions, and messages.
const SUBSCRIPTIONS_AT_ONCE: usize = 64;

impl Shard {
    /// Takes a session out of all tables. What is large goes in later turns.
    pub(crate) fn bury(&mut self, slot: u32) {
        let Some(mut client) = self.sessions.take(slot).expected() else { return };
        // Whoever gets the slot next inherits nothing.
        if let Some(log) = &mut self.log {
            log.kept.take(slot);
        }
        self.cx.flow.broadcasts.forget(slot);
        let mut shared = 0;
        for own in client.subscriptions.shared() {
            self.groups.note_left(own);
            shared += 1;
        }
        let mut leaving = std::mem::take(&mut client.subscriptions).into_iter();
        let metrics = &self.cx.metrics;
        metrics.sessions.sub(1);
        metrics.subscriptions.sub(leaving.len() as u64);
        metrics.shared_subscriptions.sub(shared);
        let scope = client.scope;
        self.cx.count_in_space(scope, Quota::Sessions, -1);
        self.cx.count_in_space(scope, Quota::Subscriptions, -(leaving.len() as i64));
        if leaving.len() > SUBSCRIPTIONS_AT_ONCE {
            self.sessions.cleanup.subscriptions.push_back((slot, leaving));
        } else {
            self.remove_some_from_index(slot, &mut leaving, SUBSCRIPTIONS_AT_ONCE);
            self.sessions.free(slot);
        }
        let queue = std::mem::take(&mut client.session.outgoing);
        if count(&queue) > MESSAGES_AT_ONCE {
            self.sessions.cleanup.queues.push(queue);
        }
    }

    /// Goes on with what is left of sessions that have ended.
    pub(crate) fn clean_up(&mut self) {
        self.sessions.cleanup.free_messages();
        let all: usize =
            self.sessions.cleanup.subscriptions.iter().map(|(_, leaving)| leaving.len()).sum();
        let mut left = SUBSCRIPTIONS_PER_TURN.max(all / PART_PER_TURN);
        while left > 0
            && let Some((slot, mut leaving)) = self.sessions.cleanup.subscriptions.pop_front()
        {
            left = self.remove_some_from_index(slot, &mut leaving, left);
            if leaving.len() == 0 {
                self.sessions.free(slot);
            } else {
                self.sessions.cleanup.subscriptions.push_front((slot, leaving));
            }
        }
    }

    /// Takes so many subscriptions out of the index; returns how many more it might have taken.
    fn remove_some_from_index(&mut self, slot: u32, leaving: &mut Leaving, count: usize) -> usize {
        for left in (1..=count).rev() {
            let Some(one) = leaving.next() else { return left };
            if let Some(log) = &mut self.log {
                log.release(one.place);
            }
            self.remove_from_index(slot, one);
        }
        0
    }
}

impl Sessions {
    pub(crate) fn has_cleanup(&self) -> bool {
        let Cleanup { subscriptions, queues, parked } = &self.cleanup;
        !subscriptions.is_empty() || !queues.is_empty() || !parked.is_empty()
    }
}
