//! Which connections have something to write, and in which order.
//!
//! What a turn has for a few is written in that turn. A broadcast would keep everybody else waiting
//! while thousands of sockets are written, so its connections are set apart: the driver writes a
//! portion of them in each turn, behind all others.

use std::collections::VecDeque;

use crate::Shard;
use crate::sure::Sure;

/// A message for more subscriptions of one shard is a broadcast.
pub const BROADCAST_MIN: usize = 128;

/// Slot and connection of each, once.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    urgent: VecDeque<(u32, u64)>,
    /// Of the last broadcast.
    broadcast: VecDeque<(u32, u64)>,
}

impl Dirty {
    /// How many are urgent.
    pub(crate) fn urgent(&self) -> usize {
        self.urgent.len()
    }

    /// The urgent ones from the place `first` on are of a broadcast. What an earlier one has left
    /// over gets urgent: broadcasts that come faster than they are written do not gather in
    /// outboxes.
    pub(crate) fn set_apart(&mut self, first: usize) {
        if first == 0 {
            return std::mem::swap(&mut self.urgent, &mut self.broadcast);
        }
        let end = self.urgent.len();
        self.urgent.append(&mut self.broadcast);
        self.broadcast.extend(self.urgent.drain(first..end));
    }

    fn next(&mut self) -> Option<(u32, u64)> {
        self.urgent.pop_front().or_else(|| self.broadcast.pop_front())
    }
}

impl Shard {
    /// The next connection that may have something in its outbox: slot and connection. In the order
    /// in which they got it: who waits longest is next, and a delivery is written before the
    /// acknowledgement that its publisher gets. Those of a broadcast come last.
    pub fn take_dirty(&mut self) -> Option<(u32, u64)> {
        loop {
            let (slot, connection) = self.dirty.next()?;
            if self.unmark(slot, connection) {
                return Some((slot, connection));
            }
        }
    }

    /// As [`Shard::take_dirty`], but for those of a broadcast.
    pub fn take_urgent(&mut self) -> Option<(u32, u64)> {
        loop {
            let (slot, connection) = self.dirty.urgent.pop_front()?;
            if self.unmark(slot, connection) {
                return Some((slot, connection));
            }
        }
    }

    /// Has a broadcast left connections that are dirty?
    pub fn has_broadcast(&self) -> bool {
        !self.dirty.broadcast.is_empty()
    }

    /// Takes the mark of a connection; false if it is gone.
    fn unmark(&mut self, slot: u32, connection: u64) -> bool {
        // The connection has ended since.
        let Some(link) = self.link(slot, connection) else { return false };
        link.is_dirty = false;
        true
    }

    /// Notes that the outbox of a client may have something to write.
    pub(crate) fn mark_dirty(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        let connection = client.connection;
        let Some(link) = client.session.link_mut().filter(|link| !link.is_dirty) else { return };
        link.is_dirty = true;
        self.dirty.urgent.push_back((slot, connection));
    }
}
