//! QoS 2 messages of the remote that this broker has accepted, and that the remote has not
//! released.
//!
//! A remote that has lost its latest changes in a crash uses their packet identifiers again, for
//! other messages. This broker would take such a message for a repetition, and lose it. So a bridge
//! remembers what it has passed on over the end of its connections. If a message with the same
//! identifier has other contents, the identifier is released first.

use std::collections::BTreeMap;

use codec::Publish;

use crate::unanswered::hash_of;

/// Hashes of messages by packet identifier: at most one for each identifier.
#[derive(Debug, Default)]
pub struct Unreleased {
    messages: BTreeMap<u16, u64>,
}

impl Unreleased {
    /// Whether this broker may know the identifier of this message from another one.
    pub(crate) fn is_reused(&self, publish: &Publish<'_>) -> bool {
        let known = self.messages.get(&publish.packet_id);
        known.is_some_and(|known| *known != hash_of(publish))
    }

    /// It was passed on.
    pub(crate) fn insert(&mut self, publish: &Publish<'_>) {
        self.messages.insert(publish.packet_id, hash_of(publish));
    }

    /// This broker does not know the identifier any more.
    pub(crate) fn remove(&mut self, packet_id: u16) {
        self.messages.remove(&packet_id);
    }
}
