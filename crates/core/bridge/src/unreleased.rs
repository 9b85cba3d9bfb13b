//! QoS 2 messages that their receiver has accepted, and that their sender has not released.
//!
//! A sender that has lost its session, or its latest changes in a crash, uses their packet
//! identifiers again, for other messages. The receiver would take such a message for a repetition,
//! and lose it. So a bridge remembers what it has passed on over the end of its connections. If a
//! message with the same identifier has other contents, the identifier is released first.
//!
//! What was passed on before the bridge began is not known. So all identifiers of a receiver are
//! released when the sender's session is new.

use std::collections::BTreeMap;

use codec::Publish;

use crate::Side;
use crate::unanswered::hash_of;

/// What two receivers may know.
#[derive(Debug, Default)]
pub struct Unreleased {
    /// By the receiver's side.
    receivers: [Receiver; 2],
}

#[derive(Debug, Default)]
struct Receiver {
    /// Hashes of messages by packet identifier: at most one for each identifier.
    messages: BTreeMap<u16, u64>,
    /// All identifiers are to be released: it may know some from a session that is lost.
    is_due: bool,
}

impl Unreleased {
    /// Whether this side may know the identifier of this message from another one.
    pub(crate) fn is_reused(&self, to: Side, publish: &Publish<'_>) -> bool {
        let known = self.receivers[to as usize].messages.get(&publish.packet_id);
        known.is_some_and(|known| *known != hash_of(publish))
    }

    /// It was passed on to this side.
    pub(crate) fn insert(&mut self, to: Side, publish: &Publish<'_>) {
        self.receivers[to as usize].messages.insert(publish.packet_id, hash_of(publish));
    }

    /// This side does not know the identifier any more.
    pub(crate) fn remove(&mut self, to: Side, packet_id: u16) {
        self.receivers[to as usize].messages.remove(&packet_id);
    }

    /// Whether all identifiers of this side are still to be released.
    pub const fn is_due(&self, side: Side) -> bool {
        self.receivers[side as usize].is_due
    }

    /// All identifiers of this side are to be released.
    pub const fn set_due(&mut self, side: Side) {
        self.receivers[side as usize].is_due = true;
    }

    /// This side knows no identifier.
    pub(crate) fn clear(&mut self, side: Side) {
        self.receivers[side as usize] = Receiver::default();
    }

    /// All of its identifiers were released.
    pub(crate) const fn set_released(&mut self, side: Side) {
        self.receivers[side as usize].is_due = false;
    }
}
