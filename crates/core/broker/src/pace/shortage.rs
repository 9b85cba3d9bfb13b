//! Who holds more than it leaves to others while memory is short: slowed, then refused, then cut.
//! Before that, who does not read is kept less.
//!
//! What waits to be written to a connection is not charged as it comes, which would cost every
//! message: it is counted by a walk over the clients, while memory is short.

use session::Outbox;

use crate::Ended;
use crate::parts::client::Client;
use crate::parts::flow::{BURST_BYTES, RECHECK_MS, SMALL_BYTES_MAX, UNSENT_BYTES_MAX};
use crate::state::Context;

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

    /// Counts the memory of its connection. Some: its owner is one of the largest consumers while
    /// memory is short, and the connection is to be closed ([`crate::Ledger::cut_largest`]).
    pub(crate) fn is_to_be_cut(&mut self, cx: &mut Context) -> Option<Ended> {
        let bytes = self.unsent_bytes();
        if cx.shared.keeps_less_unsent()
            && bytes >= UNSENT_BYTES_MAX
            && let Some(link) = self.session.link_mut()
        {
            let max = link.settings().outbox_bytes_max.min(UNSENT_BYTES_MAX as u32);
            link.set_outbox_bytes_max(max);
        }
        self.charged.set_unsent(u32::try_from(bytes).unwrap_or(u32::MAX));
        let is_large = cx.shared.memory_is_short() && bytes >= BURST_BYTES;
        let account = self.charged.account().filter(|_| is_large)?;
        let link = self.session.link_mut()?;
        if !cx.shared.ledger.cuts(account, bytes as u64) {
            return None;
        }
        if link.outbox.len() > SMALL_BYTES_MAX {
            link.outbox = Outbox::default();
            link.is_lost = true;
        }
        cx.metrics.memory_cuts.add(1);
        Some(Ended::LargestConsumer { bytes: bytes as u64, owner_bytes: account.total() })
    }

    /// What its connection makes the broker hold.
    pub(crate) fn unsent_bytes(&self) -> usize {
        let link = self.session.link();
        link.map_or(0, |link| link.outbox.heap_bytes() + link.inbox.capacity())
    }
}
