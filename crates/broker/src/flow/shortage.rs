//! Who holds more than it leaves to others while memory is short: slowed, then refused, then cut.
//! Before that, who does not read is kept less.
//!
//! What waits to be written to a connection is not charged as it comes, which would cost every
//! message: it is counted by a walk over the clients, while memory is short.

use crate::clients::client::Client;
use crate::flow::RECHECK_MS;
use crate::shard::context::Context;

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
            self.pause(cx, RECHECK_MS);
        }
        lacks
    }

    /// What its connection makes the broker hold.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let link = self.session.link();
        link.map_or(0, |link| link.outbox.heap_bytes() + link.inbox.capacity())
    }
}
