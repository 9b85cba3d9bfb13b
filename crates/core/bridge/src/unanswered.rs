//! Messages that were passed to a side and have no first answer yet.
//!
//! - If that side closes the connection, they are suspects: see `suspects.rs`.
//! - If it answers that it has no room now, the message is sent again. It is given up after
//!   [`RETRIES_MAX`] times, so that one message does not use a place of the window for ever.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use codec::{Publish, Reason};

/// By packet identifier: at most the window of the side.
#[derive(Debug, Default)]
pub(crate) struct Unanswered {
    messages: BTreeMap<u16, Sent>,
    /// Messages that were ever passed.
    passed: u64,
    copied_bytes: usize,
    /// Those that wait to be sent again.
    waiting: usize,
}

#[derive(Debug)]
struct Sent {
    number: u64,
    hash: u64,
    /// The packet; empty: there is no room to keep it.
    copy: Box<[u8]>,
    refusals: u32,
    due_ms: Option<u64>,
}

impl Unanswered {
    /// `packet`: as it was written, if the side can answer that it has no room.
    pub(crate) fn insert(&mut self, publish: &Publish<'_>, packet: Option<&[u8]>) {
        self.remove(publish.packet_id);
        self.passed += 1;
        let has_room = |packet: &&[u8]| packet.len() <= COPIES_BYTES_MAX - self.copied_bytes;
        let copy: Box<[u8]> = packet.filter(has_room).unwrap_or_default().into();
        self.copied_bytes += copy.len();
        let (number, hash) = (self.passed, hash_of(publish));
        let sent = Sent { number, hash, copy, refusals: 0, due_ms: None };
        self.messages.insert(publish.packet_id, sent);
    }

    pub(crate) fn remove(&mut self, packet_id: u16) {
        if let Some(sent) = self.messages.remove(&packet_id) {
            self.copied_bytes -= sent.copy.len();
            self.waiting -= usize::from(sent.due_ms.is_some());
        }
    }

    /// The side has refused a message for now. Returns whether it is sent again later: at most
    /// `waiting_max` wait for that at a time.
    pub(crate) fn retry(&mut self, packet_id: u16, now_ms: u64, waiting_max: usize) -> bool {
        let Some(sent) = self.messages.get_mut(&packet_id) else { return false };
        let may_wait = self.waiting < waiting_max && sent.refusals < RETRIES_MAX;
        if sent.copy.is_empty() || sent.due_ms.is_some() || !may_wait {
            return false;
        }
        sent.due_ms = Some(now_ms + (RETRY_MS << sent.refusals));
        sent.refusals += 1;
        self.waiting += 1;
        true
    }

    /// Appends those that are due.
    pub(crate) fn write_due(&mut self, now_ms: u64, out: &mut Vec<u8>) {
        if self.waiting == 0 {
            return;
        }
        for sent in self.messages.values_mut() {
            if sent.due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
                sent.due_ms = None;
                self.waiting -= 1;
                out.extend_from_slice(&sent.copy);
            }
        }
    }

    /// The packet of a message that was sent again as often as it may be.
    pub(crate) fn given_up(&self, packet_id: u16) -> Option<&[u8]> {
        let sent = self.messages.get(&packet_id)?;
        (sent.refusals == RETRIES_MAX).then_some(&sent.copy)
    }

    /// Identifiers and hashes, in the order in which they were passed.
    pub(crate) fn in_order(&self) -> Vec<(u16, u64)> {
        let mut all: Vec<_> = self.messages.iter().collect();
        all.sort_unstable_by_key(|(_, sent)| sent.number);
        all.into_iter().map(|(id, sent)| (*id, sent.hash)).collect()
    }
}

/// What tells a message from another one with the same identifier.
pub(crate) fn hash_of(publish: &Publish<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (publish.topic, publish.payload).hash(&mut hasher);
    hasher.finish()
}

/// Whether the same message may be accepted later. Other refusals are about the message itself.
pub(crate) fn is_for_now(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::QUOTA_EXCEEDED | Reason::UNSPECIFIED_ERROR | Reason::IMPLEMENTATION_SPECIFIC_ERROR
    )
}

/// Bytes of packets that are kept to be sent again, for each side. Further messages are not sent
/// again.
const COPIES_BYTES_MAX: usize = 1024 * 1024;

/// How often a message is sent again, the first time after [`RETRY_MS`], then after twice the time.
pub(crate) const RETRIES_MAX: u32 = 5;
const RETRY_MS: u64 = 1_000;

#[cfg(test)]
mod tests {
    use codec::{Properties, QoS};

    use super::*;

    fn message(packet_id: u16) -> Publish<'static> {
        let (dup, retain, qos) = (false, false, QoS::AtLeastOnce);
        let (properties, payload) = (Properties::EMPTY, &b"payload"[..]);
        Publish { dup, qos, retain, topic: "a", packet_id, properties, payload }
    }

    #[test]
    fn a_message_is_sent_again_later_and_later_and_then_given_up() {
        let mut own = Unanswered::default();
        own.insert(&message(7), Some(b"packet"));
        let (mut now_ms, mut out) = (0, Vec::new());
        for retry in 0..RETRIES_MAX {
            assert!(own.retry(7, now_ms, 9));
            now_ms += RETRY_MS << retry;
            own.write_due(now_ms - 1, &mut out);
            assert_eq!(out, []);
            own.write_due(now_ms, &mut out);
            assert_eq!(out, b"packet");
            out.clear();
        }
        assert!(!own.retry(7, now_ms, 9));
        assert_eq!(own.given_up(7), Some(&b"packet"[..]));
        own.remove(7);
        assert_eq!((own.copied_bytes, own.waiting), (0, 0));
    }

    #[test]
    fn messages_that_wait_and_their_bytes_have_a_limit() {
        let mut own = Unanswered::default();
        for packet_id in 1..4 {
            own.insert(&message(packet_id), Some(&[0; COPIES_BYTES_MAX / 2]));
        }
        assert!(own.retry(1, 0, 1));
        assert!(!own.retry(2, 0, 1));
        assert!(own.retry(2, 0, 2));
        // There is no room for its bytes.
        assert!(!own.retry(3, 0, 3));
        assert_eq!(own.given_up(3), None);
        own.remove(1);
        own.insert(&message(3), Some(b"x"));
        assert!(own.retry(3, 0, 3));
        assert_eq!(own.in_order().iter().map(|(id, _)| *id).collect::<Vec<_>>(), [2, 3]);
    }
}
