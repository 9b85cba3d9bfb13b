//! A session goes on: it may have room for what waits.

use crate::Shard;

impl Shard {
    /// Moves on what waits for a session: resends, its queue, pages of retained messages, the
    /// queues of its shared groups.
    pub(crate) fn pump(&mut self, slot: u32) {
        let Some(client) = self.sessions.get(slot) else { return };
        if !client.may_have_waiting(client.has_backlog(self.log.as_deref())) {
            return;
        }
        self.pump_deliveries(slot);
        if self.sessions.get(slot).is_some_and(|client| client.extras.is_some()) {
            self.ask_next_page(slot);
        }
        self.pull_for(slot);
    }
}
