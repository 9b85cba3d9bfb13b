//! What clients are sent: each dirty connection is written once, those of a broadcast in portions.

use std::io::{self, IoSlice};
use std::time::Duration;

use broker::key_of;
use session::Outbox;

use super::{Driver, State};
use crate::host::Host;
use crate::socket::Socket;

/// Connections of a shard that get their part of a broadcast in one turn; the rest follows with the
/// next. A write takes some microseconds, and there may be many thousands.
pub(super) const BROADCAST_WRITES_PER_TURN: usize = 256;

/// When the writes of a turn have taken so long, the rest follows with the next.
const BROADCAST_TIME_MAX: Duration = Duration::from_millis(1);

/// Writes of a shard before the other shards have theirs, and before a look at the clock.
const BROADCAST_STRIDE: usize = 16;

/// Slices of one write; the rest follows with the next.
const SLICES_MAX: usize = 64;

impl<H: Host> Driver<H> {
    /// Writing makes room, and room may make a connection dirty again.
    pub(super) fn write_urgent(&mut self, place: usize) {
        while let Some((_, connection)) = self.shards[place].take_urgent() {
            self.write(key_of(connection));
        }
    }

    /// A portion of what broadcasts have left over.
    pub(super) fn write_broadcasts(&mut self) {
        if !self.has_broadcast() {
            return;
        }
        let began = self.host.now();
        for _ in 0..BROADCAST_WRITES_PER_TURN / BROADCAST_STRIDE {
            for place in self.shards.marked() {
                self.write_stride(place);
            }
            if !self.has_broadcast() || self.took_since(began) >= BROADCAST_TIME_MAX {
                break;
            }
        }
        self.carry_out();
    }

    fn write_stride(&mut self, place: usize) {
        for _ in 0..BROADCAST_STRIDE {
            let Some((_, connection)) = self.shards[place].take_dirty() else { return };
            self.write(key_of(connection));
        }
    }

    pub(super) fn has_broadcast(&self) -> bool {
        self.shards.marked().any(|place| self.shards[place].has_broadcast())
    }

    /// Writes the outbox of a connection, as far as the socket takes it.
    pub(super) fn write(&mut self, key: usize) {
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.is_blocked || matches!(connection.state, State::Lost) {
                return;
            }
            if !self.host.await_lease() {
                return self.abandon();
            }
            let (place, slot) = (usize::from(connection.shard), connection.slot);
            let number = connection.number;
            let written = match &mut connection.state {
                State::Leaving { farewell, .. } => write_outbox(&mut connection.socket, farewell),
                _ => match self.shards[place].outbox(slot, number) {
                    Some(outbox) => write_outbox(&mut connection.socket, outbox),
                    None => return,
                },
            };
            let Ok((written, wanted)) = written else { return self.on_lost(key) };
            connection.is_blocked = written < wanted;
            if let State::Leaving { farewell, .. } = &mut connection.state {
                farewell.advance(written);
                if farewell.is_empty() {
                    let _ = connection.socket.shutdown();
                    return;
                }
            } else if written > 0 {
                self.shards[place].on_written(slot, number, written, self.now_ms);
            }
            if written == 0 {
                return;
            }
        }
    }

    /// Sends what the transport itself has to say, such as a WebSocket pong.
    pub(super) fn write_own(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if !connection.socket.wants_write() {
            return;
        }
        // What an earlier write left over leaves now.
        if !self.host.await_lease() {
            return self.abandon();
        }
        if connection.socket.flush().is_err() {
            self.on_lost(key);
        }
    }
}

/// One write call. Returns the bytes written and those offered.
fn write_outbox(socket: &mut impl Socket, outbox: &Outbox) -> io::Result<(usize, usize)> {
    match outbox.as_slice() {
        Some([]) => Ok((0, 0)),
        Some(bytes) => Ok((socket.write(&[IoSlice::new(bytes)])?, bytes.len())),
        None => write_slices(socket, outbox),
    }
}

/// Out of line: it needs a large frame, and most outboxes are one slice.
#[inline(never)]
fn write_slices(socket: &mut impl Socket, outbox: &Outbox) -> io::Result<(usize, usize)> {
    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
    let mut count = 0;
    let mut wanted = 0;
    for (place, slice) in slices.iter_mut().zip(outbox.slices()) {
        wanted += slice.len();
        *place = IoSlice::new(slice);
        count += 1;
    }
    if wanted == 0 {
        return Ok((0, 0));
    }
    Ok((socket.write(&slices[..count])?, wanted))
}
