//! Which connections have something to write, and in which order.
//!
//! What a turn has for a few is written in that turn. A broadcast would keep everybody else waiting
//! while thousands of sockets are written, so its connections are set apart: the driver writes a
//! portion of them in each turn, behind all others. Who is sent something else meanwhile does not
//! wait for its place among them.

use std::collections::VecDeque;

use session::Dirt;

use crate::parts::flow::{BURST_BYTES, MESSAGE_BYTES_MIN};

/// Slot and connection of each. Who was set apart and has got urgent since stands in both.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) urgent: VecDeque<(u32, u64)>,
    /// Who has waited longest is first.
    pub(crate) broadcast: VecDeque<(u32, u64)>,
    /// Of broadcasts that went to outboxes since nobody was set apart.
    gathered_bytes: usize,
    /// What becomes of those who get something now.
    pub(crate) dirt: Dirt,
}

impl Dirty {
    /// Until the end of the broadcast all that get dirty are set apart.
    pub(crate) fn begin_broadcast(&mut self, bytes: usize) {
        if self.has_gathered() {
            self.urgent.append(&mut self.broadcast);
        }
        if self.broadcast.is_empty() {
            self.gathered_bytes = 0;
        }
        self.gathered_bytes += bytes.max(MESSAGE_BYTES_MIN);
        self.dirt = Dirt::SetApart;
    }

    pub(crate) fn end_broadcast(&mut self) {
        self.dirt = Dirt::Urgent;
    }

    /// Has the next broadcast to wait until the outboxes are written?
    pub(crate) fn has_gathered(&self) -> bool {
        self.gathered_bytes >= BURST_BYTES && !self.broadcast.is_empty()
    }

    pub(crate) fn next_urgent(&mut self) -> Option<(u32, u64)> {
        self.urgent.pop_front()
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.urgent.is_empty() && self.broadcast.is_empty()
    }

    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    pub(crate) fn has_broadcast(&self) -> bool {
        !self.broadcast.is_empty()
    }

    pub(crate) fn next(&mut self) -> Option<(u32, u64)> {
        self.urgent.pop_front().or_else(|| self.broadcast.pop_front())
    }
}
