//! What clients send: some of it from each connection in each turn, so that everybody has a turn.

use std::time::{Duration, Instant};

use super::{Driver, State};
use crate::host::Host;
use crate::socket::{Read, Socket};
use broker::Rest;

/// Reads of one connection before the others get their turn, beside those of a large packet.
pub(super) const READS_PER_TURN: usize = 1;

/// A turn that has been shorter goes on reading where there is more: a read of large messages is
/// only a few of them, and hardly worth a look at the sockets.
const TURN_MIN: Duration = Duration::from_micros(100);

/// What is read in one go from a connection that has just sent a large packet: enough to see how
/// large the next one is, and little to move to where it is gathered.
const LARGE_READ_BYTES: usize = 4 * 1024;

/// Bytes that are read in one turn, in either of its two parts, before those that send much have
/// to wait for the next. What they sent is written while the cache still has it, a subscriber that
/// many publish to does not run dry until all are read, and other workers, which wait until this
/// one has dealt with their mail, do not stand still meanwhile.
pub(super) const BYTES_PER_TURN: usize = 256 * 1024;

impl<H: Host> Driver<H> {
    /// Goes on with connections that had more to read than one turn gave them.
    pub(super) fn read_on(&mut self, began: Instant) {
        self.bytes_left = BYTES_PER_TURN;
        let mut not_yet = self.unread.len();
        while let Some(&key) = self.unread.front()
            && (not_yet > 0 || self.took_since(began) < TURN_MIN)
        {
            not_yet = not_yet.saturating_sub(1);
            if self.bytes_left == 0 {
                // Those that are left come first in the next turn.
                return;
            }
            self.unread.pop_front();
            if let Some(connection) = self.connections.get_mut(key) {
                connection.is_unread = false;
                self.read(key, true);
            }
        }
    }

    pub(super) fn read_later(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !std::mem::replace(&mut connection.is_unread, true) {
            self.unread.push_back(key);
        }
    }

    /// Reads what is there. `to_the_end`: do not take a short read for the last, because no event
    /// will report what comes behind it (the end of the stream came with this one).
    pub(super) fn read(&mut self, key: usize, to_the_end: bool) {
        if !self.gather(key, to_the_end) {
            return;
        }
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if !connection.is_read() && !matches!(connection.state, State::Leaving { .. }) {
                return;
            }
            if connection.sends_much && self.bytes_left == 0 {
                return self.read_later(key);
            }
            let room = if connection.sends_large { LARGE_READ_BYTES } else { self.buffer.len() };
            let read = connection.socket.read(&mut self.buffer[..room]);
            match read {
                Ok(Read::Bytes(count)) => {
                    let is_drained = connection.socket.is_drained(count, room);
                    connection.sends_much = !is_drained;
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    if matches!(connection.state, State::Open) {
                        self.feed(key, count);
                    }
                    if is_drained && !to_the_end {
                        return self.write_own(key);
                    }
                }
                Ok(Read::WouldBlock) => return self.write_own(key),
                Ok(Read::Closed) | Err(_) => return self.on_lost(key),
            }
        }
        if self.gather(key, to_the_end) {
            self.read_later(key);
        }
    }

    /// Reads what a large packet lacks that is under way, right to where it is gathered. False:
    /// there is nothing more to read for now.
    fn gather(&mut self, key: usize, to_the_end: bool) -> bool {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return false };
            if !connection.gathers || !connection.is_read() {
                return true;
            }
            if self.bytes_left == 0 {
                self.read_later(key);
                return false;
            }
            let (place, slot) = (usize::from(connection.shard), connection.slot);
            let inbox = self.shards[place].inbox(slot, connection.number);
            let Some(inbox) = inbox.filter(|inbox| inbox.len() < inbox.capacity()) else {
                connection.gathers = false;
                return true;
            };
            let room = inbox.capacity() - inbox.len();
            match connection.socket.read_onto(inbox) {
                Ok(Read::Bytes(count)) => {
                    self.bytes_left = self.bytes_left.saturating_sub(count);
                    self.feed(key, 0);
                    if count < room && !to_the_end {
                        return false;
                    }
                }
                Ok(Read::WouldBlock) => return false,
                Ok(Read::Closed) | Err(_) => {
                    self.on_lost(key);
                    return false;
                }
            }
        }
    }

    /// Gives the first `count` bytes of the buffer to the shard of the connection; none, if they
    /// were read to where it gathers them.
    fn feed(&mut self, key: usize, count: usize) {
        // A publish that follows a SUBACK on another worker must find that subscription: mail that
        // was sent before these bytes were read is taken before they are looked at.
        self.take_mail();
        self.give(key, count);
    }

    pub(super) fn give(&mut self, key: usize, count: usize) {
        let Some(connection) = self.connections.get(key) else { return };
        let (place, slot) = (usize::from(connection.shard), connection.slot);
        let (shard, number) = (&mut self.shards[place], connection.number);
        let rest = shard.on_bytes(slot, number, &self.buffer[..count], self.now_ms);
        self.take_pauses(place);
        self.note_rest(key, rest, count);
    }

    /// What is left of the last `count` bytes, and those before.
    pub(super) fn note_rest(&mut self, key: usize, rest: Rest, count: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        connection.gathers = rest == Rest::Large && !connection.socket.has_layers();
        if count > 0 {
            connection.sends_large = connection.gathers;
        }
        if rest != Rest::Nothing || connection.incoming.is_some() {
            self.settle_incoming(key);
        }
    }
}
