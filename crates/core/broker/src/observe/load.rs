//! How much waits for clients, for the metrics. Clients are looked at one after the other, so many
//! each second, so that counting costs no message anything.

use std::ops::Range;

use crate::Shard;
use crate::parts::sessions::{LoadWalk, Sessions};

/// Clients that are looked at in one go. A shard with more shows what was some seconds ago.
const LOOKS_MAX: u32 = 5_000;

impl Shard {
    /// Walks on; at the end the metrics get what was found.
    pub(crate) fn look_at_load(&mut self) {
        let slots_end = self.sessions.slots_end();
        let mut walk = std::mem::take(&mut self.sessions.load_walk);
        let end = slots_end.min(walk.next_slot.saturating_add(LOOKS_MAX));
        for slot in walk.next_slot..end {
            if let Some(client) = self.sessions.get(slot) {
                walk.queued += client.queued(self.log.as_deref());
                walk.in_flight += u64::from(client.session.outgoing.in_flight());
            }
        }
        walk.next_slot = end;
        self.cx.metrics.topic_filters.set(self.sessions.router.filter_count() as u64);
        if end == slots_end {
            self.cx.metrics.queued.set(walk.queued);
            self.cx.metrics.in_flight.set(walk.in_flight);
            walk = LoadWalk::default();
        }
        self.sessions.load_walk = walk;
    }

    /// Deliveries that wait for their sessions. It looks at all of them: for tests.
    pub fn queued(&self) -> u64 {
        let clients = (0..self.sessions.slots_end()).filter_map(|slot| self.sessions.get(slot));
        clients.map(|client| client.queued(self.log.as_deref())).sum()
    }
}

impl Sessions {
    /// The slots whose unsent bytes are to be counted now: some 2 ms if it is urgent.
    pub(crate) fn next_unsent(&mut self, is_urgent: bool) -> Range<u32> {
        let looks_max = if is_urgent { 4 * LOOKS_MAX } else { LOOKS_MAX };
        let slots_end = self.slots_end();
        let begin = if self.next_unsent < slots_end { self.next_unsent } else { 0 };
        self.next_unsent = slots_end.min(begin.saturating_add(looks_max));
        begin..self.next_unsent
    }
}
