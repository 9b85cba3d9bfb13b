//! Credit windows between shards: bytes of messages that were mailed and not yet dealt with.
//!
//! A sender asks each other shard for a grant now and then, in its mail. The other shard answers
//! the last request of a turn when the turn is over and its output is written. While the window
//! to a shard is full, the sender takes no more publishes for that shard: their publishers are
//! paused, and resumed in their order. Mail itself is never paused.
//!
//! So a shard never has more to deliver in one turn than half an outbox takes, and what it tells
//! the publishers of a slow subscriber reaches them before they have sent more than that.

use std::collections::VecDeque;

use crate::parts::flow::{GRANTS_PER_WINDOW, SCANNED_MAX};
use crate::{ShardId, Shared};

/// The windows from one shard to the others.
#[derive(Debug)]
pub(crate) struct CreditWindows {
    windows: Box<[Window]>,
    /// A bit per shard whose window is full.
    pub(crate) full: u64,
    /// Of one window.
    bytes_max: u64,
    /// Those who have sent something past others that wait, in this turn.
    passed: Vec<u32>,
    /// The latest requests for a grant in the mail of this turn.
    requests: Vec<(ShardId, u64)>,
}

/// Bytes since the start, and who waits.
#[derive(Debug, Default)]
struct Window {
    sent_bytes: u64,
    asked_bytes: u64,
    granted_bytes: u64,
    /// Slots and connections. One entry for each connection, and for some that have ended.
    waiting: VecDeque<(u32, u64)>,
}

impl CreditWindows {
    pub(crate) fn new(shared: &Shared) -> Self {
        let windows = (0..shared.homes.places()).map(|_| Window::default()).collect();
        let others = u64::from(shared.homes.places()).saturating_sub(1).max(1);
        let bytes_max = shared.settings.mail_bytes_max / others;
        Self { windows, full: 0, bytes_max, passed: Vec::new(), requests: Vec::new() }
    }

    /// Counts a message. Some: it is time to ask for a grant up to here.
    pub(crate) fn add(&mut self, shard: ShardId, bytes: u64) -> Option<u64> {
        let window = &mut self.windows[usize::from(shard)];
        window.sent_bytes += bytes;
        if window.sent_bytes - window.granted_bytes >= self.bytes_max {
            self.full |= 1 << shard;
        }
        if window.sent_bytes - window.asked_bytes < self.bytes_max / GRANTS_PER_WINDOW {
            return None;
        }
        window.asked_bytes = window.sent_bytes;
        Some(window.sent_bytes)
    }

    /// The first `bytes` that were sent to the shard are dealt with.
    pub(crate) fn take(&mut self, shard: ShardId, bytes: u64) {
        let window = &mut self.windows[usize::from(shard)];
        window.granted_bytes = window.granted_bytes.max(bytes);
        if window.sent_bytes - window.granted_bytes < self.bytes_max {
            self.full &= !(1 << shard);
        }
    }

    /// May a client that has brought one small message and nothing else send it, though so much
    /// lies before these shards? One in each turn: so who sends little does not wait for those who
    /// send much.
    pub(crate) fn lets_pass(&mut self, full: u64, slot: u32) -> bool {
        let is_over = |shard: usize| {
            let window = &self.windows[shard];
            full & 1 << shard != 0 && window.sent_bytes - window.granted_bytes >= 2 * self.bytes_max
        };
        let may = self.passed.len() < SCANNED_MAX
            && !self.passed.contains(&slot)
            && !(0..self.windows.len()).any(is_over);
        if may {
            self.passed.push(slot);
        }
        may
    }

    /// Another shard asks for a grant.
    pub(crate) fn note_asked(&mut self, from: ShardId, bytes: u64) {
        match self.requests.iter_mut().find(|(shard, _)| *shard == from) {
            Some((_, latest)) => *latest = bytes,
            None => self.requests.push((from, bytes)),
        }
    }

    pub(crate) fn end_turn(&mut self) {
        self.passed.clear();
    }

    pub(crate) const fn has_requests(&self) -> bool {
        !self.requests.is_empty()
    }

    /// A grant to be sent: all mail of that shard up to here is dealt with.
    pub(crate) fn next_grant(&mut self) -> Option<(ShardId, u64)> {
        self.requests.pop()
    }

    pub(crate) fn wait(&mut self, shard: ShardId, slot: u32, connection: u64) {
        self.windows[usize::from(shard)].waiting.push_back((slot, connection));
    }

    #[cfg(feature = "testing")]
    pub(crate) const fn is_any_full(&self) -> bool {
        self.full != 0
    }

    pub(crate) fn waiting_count(&self) -> usize {
        self.windows.iter().map(|window| window.waiting.len()).sum()
    }

    /// Those in lines of windows that have room.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = (u32, u64)> {
        let has_room = |shard: &usize| self.full & 1 << shard == 0;
        let windows = (0..self.windows.len()).filter(has_room).map(|shard| &self.windows[shard]);
        windows.flat_map(|window| window.waiting.iter().copied())
    }

    pub(crate) fn next_waiting(&mut self, shard: ShardId) -> Option<(u32, u64)> {
        if self.full & (1 << shard) != 0 {
            return None;
        }
        self.windows[usize::from(shard)].waiting.pop_front()
    }
}
