//! A namespace is closed, or all that it has is deleted: a part of it with each command.

use codec::QoS;
use session::{Message, MessageParts, NEVER};

use crate::Shard;
use crate::parts::client::Client;
use crate::parts::sessions::Sessions;
use crate::words::command::{PAGE_LOOKS, PAGE_ROWS, Swept};
use crate::{Scope, SessionKey};

impl Shard {
    /// A page of those that have their home here: how many there were, and how many are cleared.
    /// The others stay, as the journal cannot be told now; they are found again.
    pub(crate) fn clear_some_retained(&mut self, scope: Scope) -> (u32, u32) {
        let mut messages = Vec::new();
        for filter in scope.filters() {
            let rest = (PAGE_ROWS as usize).saturating_sub(messages.len());
            if rest > 0 {
                messages.extend(self.retained.page_of_key(&filter, rest));
            }
        }
        let mut cleared = 0;
        for message in &messages {
            // Its level says whether it is in the journal.
            let nothing = Message::new(&MessageParts {
                topic: message.topic(),
                properties: &[],
                payload: &[],
                qos: QoS::AtMostOnce,
                retain: true,
                expires_at_ms: NEVER,
                publisher: SessionKey::NOBODY.as_u64(),
                author: 0,
                level: message.level(),
                scope: scope.number(),
            });
            cleared += u32::from(self.keep_retained(&nothing, None, None).is_ok());
        }
        (messages.len() as u32, cleared)
    }
}

impl Sessions {
    /// Those of one scope. Nobody deletes the default namespace.
    pub(crate) fn slots_of(
        &self,
        scope: Scope,
        from: u32,
        is_wanted: impl Fn(&Client) -> bool,
    ) -> (Vec<u32>, Swept) {
        let is_own = |client: &Client| !scope.is_first() && client.scope == scope;
        self.slots_where(from, |client| is_own(client) && is_wanted(client))
    }

    /// As many as a page has rows, among as many slots as a page may look at.
    pub(crate) fn slots_where(
        &self,
        from: u32,
        is_wanted: impl Fn(&Client) -> bool,
    ) -> (Vec<u32>, Swept) {
        let end = self.slots_end();
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        let (mut slot, mut slots) = (from, Vec::new());
        while slot < looks_end && slots.len() < PAGE_ROWS as usize {
            if self.get(slot).is_some_and(&is_wanted) {
                slots.push(slot);
            }
            slot += 1;
        }
        let found = slots.len() as u32;
        (slots, Swept { found, next: (slot < end).then_some(slot) })
    }
}
