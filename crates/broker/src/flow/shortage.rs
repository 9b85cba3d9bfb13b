//! Who holds more than it leaves to others while memory is short: slowed, then refused, then cut.
//! Before that, who does not read is kept less.
//!
//! What waits to be written to a connection is not charged as it comes, which would cost every
//! message: it is counted by a walk over the clients, while memory is short.

use crate::clients::client::Client;
use crate::shard::context::Context;

/// Clients looked at in one go, some 2 ms; and while it is not urgent.
pub(crate) const LOOKS_MAX: u32 = 20_000;
pub(crate) const EARLY_LOOKS_MAX: u32 = 5_000;

/// While memory is short, or much waits in connections, no more is kept for one that does not read.
/// It has its whole outbox again when it has read what it is owed.
pub(crate) const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// To cut a connection that holds less frees too little.
pub(crate) const CUT_BYTES_MIN: usize = 16 * 1024;

/// How long the publishers of who is slowed are not read after what they have sent.
const SLOWED_MS: u64 = 100;

/// What is sent to a connection that is cut, with the DISCONNECT behind it. One that is owed more
/// has not read it until now.
pub(crate) const FAREWELL_BYTES_MAX: usize = 4 * 1024;

impl Client {
    /// Is so much more to be refused to it, because memory is short?
    #[cold]
    pub(crate) fn lacks_memory(&self, cx: &Context, more: usize) -> bool {
        self.charged.lacks_memory(&cx.shared.ledger, more as u64)
    }

    /// Memory gets short, and it has published: is it one of the largest consumers?
    #[cold]
    pub(crate) fn slow_largest(&mut self, cx: &mut Context) -> bool {
        let lacks = self.charged.lacks_memory(&cx.shared.ledger, 0);
        if lacks {
            self.pause(cx, SLOWED_MS);
        }
        lacks
    }

    /// What its connection makes the broker hold.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let link = self.session.link();
        link.map_or(0, |link| link.outbox.heap_bytes() + link.inbox.capacity())
    }
}
