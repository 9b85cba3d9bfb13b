//! Packet identifiers that one broker still knows though the other has lost its session.
//!
//! The receiver of a QoS 2 message keeps its identifier until the PUBREL. If the sender's session
//! is lost, the next message with that identifier would be taken for a repetition, and be lost. So
//! the bridge releases all identifiers, before it subscribes to anything.

use std::collections::BTreeSet;

use codec::{Ack, AckKind, Packet, Reason, Version};

/// Releases all identifiers of one receiver.
#[derive(Debug)]
pub(crate) struct Release {
    /// To be sent next; 0: all have been.
    next: u16,
    /// At most [`UNANSWERED_MAX`].
    unanswered: BTreeSet<u16>,
}

impl Release {
    pub(crate) const fn new() -> Self {
        Self { next: 1, unanswered: BTreeSet::new() }
    }

    /// Appends as many PUBREL as fit.
    pub(crate) fn write(&mut self, version: Version, out: &mut Vec<u8>, bytes_max: usize) {
        while self.next != 0 && out.len() < bytes_max && self.unanswered.len() < UNANSWERED_MAX {
            let ack = Ack::new(AckKind::Pubrel, self.next, Reason::SUCCESS);
            Packet::Ack(ack).encode(version, out);
            self.unanswered.insert(self.next);
            self.next = self.next.wrapping_add(1);
        }
    }

    /// A PUBCOMP has come. False: it is the answer to another PUBREL.
    pub(crate) fn on_pubcomp(&mut self, packet_id: u16) -> bool {
        self.unanswered.remove(&packet_id)
    }

    pub(crate) fn is_done(&self) -> bool {
        self.next == 0 && self.unanswered.is_empty()
    }
}

/// PUBRELs without an answer: a receiver with a small buffer is not flooded.
const UNANSWERED_MAX: usize = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_identifier_is_released_once() {
        let mut release = Release::new();
        let (mut ids, mut out) = (Vec::new(), Vec::new());
        while !release.is_done() {
            release.write(Version::V311, &mut out, 400);
            for packet in out.chunks(4) {
                assert_eq!(packet[..2], [0x62, 2]);
                let id = u16::from_be_bytes([packet[2], packet[3]]);
                ids.push(id);
                assert!(release.on_pubcomp(id) && !release.on_pubcomp(id));
            }
            out.clear();
        }
        assert_eq!(ids, (1..=u16::MAX).collect::<Vec<_>>());
    }
}
