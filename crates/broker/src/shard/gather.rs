//! Packets that come in more than one piece: put together, and large ones where they stay.

use std::sync::Arc;

use session::large_packet_len;

use super::Shard;

/// What is left of the bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// All were taken.
    Nothing,
    /// Some wait, or are a part of a packet.
    Some,
    /// The beginning of a large packet: what it lacks may be read right into [`Shard::inbox`].
    Large,
}

/// The memory of a packet that has it for itself.
pub(crate) type OwnMemory<'a> = Option<&'a Arc<Vec<u8>>>;

/// Bytes of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) bytes: &'a [u8],
    /// If they are one packet.
    pub(crate) memory: OwnMemory<'a>,
}

impl<'a> Input<'a> {
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, memory: None }
    }
}

impl Rest {
    const fn of(gathers: bool) -> Self {
        if gathers { Self::Large } else { Self::Some }
    }
}

impl Shard {
    /// Where a packet of this connection is gathered. What was read into it is told by
    /// [`Shard::on_bytes`] without bytes.
    pub fn inbox(&mut self, slot: u32, connection: u64) -> Option<&mut Vec<u8>> {
        self.link(slot, connection).map(|link| &mut link.inbox)
    }

    /// Keeps what has to wait.
    pub(super) fn put_aside(&mut self, slot: u32, connection: u64, bytes: &[u8]) -> Rest {
        if bytes.is_empty() {
            return Rest::Nothing;
        }
        // What came before has ended the connection.
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        link.put_aside(bytes);
        Rest::of(link.gathers())
    }

    /// More of what was put aside. A large packet gets just what it lacks, so that its memory can
    /// become the message's.
    pub(super) fn on_more_bytes(
        &mut self,
        slot: u32,
        connection: u64,
        bytes: &[u8],
        now_ms: u64,
    ) -> Rest {
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        let arrived = link.inbox.len();
        let large_len = large_packet_len(&link.inbox);
        let lacks = large_len.and_then(|len| len.checked_sub(arrived)).filter(|lacks| *lacks > 0);
        let (more, rest) = bytes.split_at(bytes.len().min(lacks.unwrap_or(usize::MAX)));
        link.put_aside(more);
        if lacks.is_some_and(|lacks| more.len() < lacks) {
            return Rest::of(link.gathers());
        }
        let inbox = std::mem::take(&mut link.inbox);
        if large_len == Some(inbox.len()) {
            return self.on_large_packet(slot, connection, (inbox, rest), now_ms);
        }
        let taken = self.on_packets(slot, connection, Input::of(&inbox), now_ms);
        self.put_back(slot, connection, inbox, taken.bytes)
    }

    /// Handles a packet that has its memory for itself, then the bytes behind it.
    fn on_large_packet(
        &mut self,
        slot: u32,
        connection: u64,
        (inbox, rest): (Vec<u8>, &[u8]),
        now_ms: u64,
    ) -> Rest {
        let packet = Arc::new(inbox);
        let input = Input { bytes: &packet, memory: Some(&packet) };
        let taken = self.on_packets(slot, connection, input, now_ms);
        // The packet has ended the connection.
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        if taken.bytes == 0 {
            link.inbox = Arc::unwrap_or_clone(packet);
            link.put_aside(rest);
            return Rest::Some;
        }
        link.note_gathered(taken.bytes);
        let taken = match taken.is_paused || rest.is_empty() {
            true => 0,
            false => self.on_packets(slot, connection, Input::of(rest), now_ms).bytes,
        };
        self.put_aside(slot, connection, &rest[taken..])
    }

    /// What was put aside, of which so much was taken, waits on.
    fn put_back(&mut self, slot: u32, connection: u64, mut inbox: Vec<u8>, taken: usize) -> Rest {
        if taken == inbox.len() {
            return Rest::Nothing;
        }
        // What came before has ended the connection.
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        if taken == 0 {
            link.inbox = inbox;
        } else if large_packet_len(&inbox[taken..]).is_some() {
            // It gets memory for itself.
            link.put_aside(&inbox[taken..]);
        } else {
            inbox.drain(..taken);
            link.inbox = inbox;
        }
        Rest::of(link.gathers())
    }
}
