//! A namespace is closed, or all that it has is deleted: a part of it with each command.

use codec::QoS;
use session::{Message, MessageParts, NEVER};

use crate::{Ended, Scope, SessionKey, Shard};

use super::{PAGE_LOOKS, PAGE_ROWS, Swept};

impl Shard {
    /// Ends the connections of a scope, of those sessions that have places from `from` on.
    pub(super) fn cut_off(&mut self, scope: Scope, from: u32, now_ms: u64) -> Swept {
        self.sweep_clients(scope, from, |shard, slot| {
            let is_open = shard.clients.get(slot).is_some_and(|client| client.is_connected());
            if is_open {
                shard.end(slot, Ended::Administrative, now_ms);
            }
            is_open
        })
    }

    /// Deletes what a scope has: its sessions, with what waits for them, and without their wills,
    /// then its retained messages.
    pub(super) fn empty(&mut self, scope: Scope, from: u32, now_ms: u64) -> Swept {
        let mut swept = self.sweep_clients(scope, from, |shard, slot| {
            shard.delete_session(slot, now_ms);
            true
        });
        if swept.next.is_none() {
            let cleared = self.clear_some_retained(scope);
            swept.found += cleared;
            // There may be more: the places of sessions are all looked at by now.
            swept.next = (cleared > 0).then(|| self.clients.slots_end());
        }
        swept
    }

    /// As many as a page has rows, among as many places as a page may look at.
    fn sweep_clients(
        &mut self,
        scope: Scope,
        from: u32,
        mut sweep: impl FnMut(&mut Self, u32) -> bool,
    ) -> Swept {
        let end = self.clients.slots_end();
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        let (mut slot, mut found) = (from, 0);
        while slot < looks_end && found < PAGE_ROWS {
            // Nobody deletes the default namespace.
            let is_own = self.clients.get(slot).is_some_and(|client| client.scope == scope);
            found += u32::from(is_own && !scope.is_first() && sweep(self, slot));
            slot += 1;
        }
        Swept { found, next: (slot < end).then_some(slot) }
    }

    fn delete_session(&mut self, slot: u32, now_ms: u64) {
        if let Some(client) = self.clients.get_mut(slot) {
            client.will = None;
        }
        self.forget_will(slot);
        if self.clients.get(slot).is_some_and(|client| client.is_connected()) {
            self.end(slot, Ended::Administrative, now_ms);
        }
        // It may have ended with its connection.
        if self.clients.get(slot).is_some() {
            self.end_session(slot, now_ms);
        }
    }

    /// A page of those that have their home here. What finds no room in the log to say so is found
    /// again.
    fn clear_some_retained(&mut self, scope: Scope) -> u32 {
        let mut messages = Vec::new();
        for filter in scope.filters() {
            let rest = (PAGE_ROWS as usize).saturating_sub(messages.len());
            if rest > 0 {
                messages.extend(self.retained.page_of_key(&filter, rest));
            }
        }
        for message in &messages {
            // Its level says whether it is in the log.
            let nothing = Message::new(&MessageParts {
                topic: message.topic(),
                properties: &[],
                payload: &[],
                qos: QoS::AtMostOnce,
                retain: true,
                expires_at_ms: NEVER,
                publisher: SessionKey::NOBODY.as_u64(),
                level: message.level(),
                scope: scope.number(),
            });
            let _ = self.keep_retained(&nothing, None, None);
        }
        messages.len() as u32
    }
}
