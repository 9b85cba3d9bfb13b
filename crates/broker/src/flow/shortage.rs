//! Who holds more than it leaves to others while memory is short: slowed, then refused, then cut.
//! Before that, who does not read is kept less.
//!
//! What waits to be written to a connection is not charged as it comes, which would cost every
//! message: it is counted by a walk over the clients, while memory is short.

use session::Outbox;

use crate::clients::client::Client;
use crate::{Ended, Event, Shard};

/// Clients looked at in one go, some 2 ms; and while it is not urgent.
const LOOKS_MAX: u32 = 20_000;
const EARLY_LOOKS_MAX: u32 = 5_000;

/// While memory is short, or much waits in connections, no more is kept for one that does not read.
/// It has its whole outbox again when it has read what it is owed.
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// To cut a connection that holds less frees too little.
const CUT_BYTES_MIN: usize = 16 * 1024;

/// How long the publishers of who is slowed are not read after what they have sent.
const SLOWED_MS: u64 = 100;

/// What is sent to a connection that is cut, with the DISCONNECT behind it. One that is owed more
/// has not read it until now.
const FAREWELL_BYTES_MAX: usize = 4 * 1024;

/// Where the walk goes on.
#[derive(Debug, Default)]
pub(crate) struct GreedWalk {
    next_slot: u32,
}

impl Shard {
    /// The driver has looked at the memory, and much of it is used: counts what connections hold,
    /// and cuts those of the largest holders if that is to be ([`crate::Ledger::cut_largest`]).
    pub fn on_memory_look(&mut self, now_ms: u64) {
        let slots_end = self.clients.slots_end();
        let is_tight = self.shared.memory_is_tight();
        let looks_max = if is_tight { LOOKS_MAX } else { EARLY_LOOKS_MAX };
        let begin =
            if self.greed_walk.next_slot < slots_end { self.greed_walk.next_slot } else { 0 };
        let end = slots_end.min(begin.saturating_add(looks_max));
        self.greed_walk.next_slot = end;
        for slot in begin..end {
            self.look_at_unsent(slot, now_ms);
        }
        self.finish(now_ms);
    }

    fn look_at_unsent(&mut self, slot: u32, now_ms: u64) {
        let (is_short, keeps_less) =
            (self.shared.memory_is_short(), self.shared.keeps_less_unsent());
        let Some(client) = self.clients.get_mut(slot) else { return };
        let bytes = client.unsent_bytes();
        if keeps_less
            && bytes >= UNSENT_BYTES_MAX
            && let Some(link) = client.session.link_mut()
        {
            let max = link.settings().outbox_bytes_max.min(UNSENT_BYTES_MAX as u32);
            link.set_outbox_bytes_max(max);
        }
        client.charged.set_unsent(u32::try_from(bytes).unwrap_or(u32::MAX));
        let Some(account) = client.charged.account().filter(|_| client.is_connected()) else {
            return;
        };
        if is_short && bytes >= CUT_BYTES_MIN && self.shared.ledger.cuts(account, bytes as u64) {
            let held = account.total();
            self.cut_greedy(slot, bytes as u64, held, now_ms);
        }
    }

    fn cut_greedy(&mut self, slot: u32, bytes: u64, held: u64, now_ms: u64) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(link) = client.session.link_mut() else { return };
        if link.outbox.len() > FAREWELL_BYTES_MAX {
            link.outbox = Outbox::default();
            link.is_lost = true;
        }
        let event = Event::Cut {
            client_id: client.id.clone(),
            username: client.username.clone(),
            peer: link.peer.clone(),
            bytes,
            held,
        };
        self.metrics().memory_cuts.add(1);
        let scope = self.scope_of(slot);
        self.tell(scope, event);
        self.end(slot, Ended::Greedy, now_ms);
    }

    /// Is so much more to be refused to a client, because memory is short?
    #[cold]
    pub(crate) fn lacks_memory(&self, slot: u32, more: usize) -> bool {
        let ledger = &self.shared.ledger;
        self.clients.get(slot).is_none_or(|c| c.charged.lacks_memory(ledger, more as u64))
    }

    /// Memory gets short, and a client has published: is it one of those who hold most?
    #[cold]
    pub(crate) fn slow_greedy(&mut self, slot: u32, now_ms: u64) -> bool {
        let ledger = &self.shared.ledger;
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if !client.charged.lacks_memory(ledger, 0) {
            return false;
        }
        self.pause(slot, SLOWED_MS, now_ms);
        true
    }
}

impl Client {
    /// What its connection makes the broker hold.
    fn unsent_bytes(&self) -> usize {
        let link = self.session.link();
        link.map_or(0, |link| link.outbox.heap_bytes() + link.inbox.capacity())
    }
}
