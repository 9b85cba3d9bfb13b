//! Connections come and go: a few in each turn, behind the messages, so that nobody waits for a
//! storm of them.

use std::io;

use broker::{Close, Who, admission, key_of};
use session::Outbox;

use super::reading::READS_PER_TURN;
use super::{Connection, Driver, State};
use crate::host::Host;
use crate::mailbox::Handover;
use crate::socket::{Read, Socket};

/// Connections that are opened in one turn, and as many sockets are closed; the others follow with
/// the next. Either takes some 20 us, and 10 us more for the answer.
pub(super) const ARRIVALS_PER_TURN: usize = 8;
pub(super) const CLOSINGS_PER_TURN: usize = ARRIVALS_PER_TURN;

/// The slot of a connection whose session is another user's.
const NO_SLOT: u32 = u32::MAX;

/// How long a client may take to read the reason why its connection is closed.
const FAREWELL_MS: u64 = 2000;

impl<H: Host> Driver<H> {
    pub(super) fn open_arrivals(&mut self) {
        if self.arrivals.is_empty() {
            return;
        }
        for left in (0..ARRIVALS_PER_TURN).rev() {
            let Some(handover) = self.arrivals.pop(left == 0) else { break };
            let place = usize::from(handover.shard) / self.mailboxes.len();
            let was_spent = self.shards[place].work().has_no_more();
            self.on_connection(handover);
            // What came behind its CONNECT was much. If nothing was left before, it waits.
            if !was_spent && self.shards[place].work().has_no_more() {
                break;
            }
        }
        self.carry_out();
    }

    fn on_connection(&mut self, handover: Handover<H>) {
        if self.ends_at_ms.is_some() {
            return;
        }
        let place = usize::from(handover.shard) / self.mailboxes.len();
        if let Some(old) = self.shards[place].connection_of(handover.request.name()) {
            self.read_before_takeover(key_of(old));
        }
        let entry = self.connections.vacant_entry();
        let key = entry.key();
        let Some(number) = self.numbers.give(key) else {
            let error = io::Error::other("a worker has as many connections as it can");
            return self.host.on_untaken(&handover.request.client_id, &error);
        };
        let mut socket = handover.socket;
        if let Err(error) = self.host.watch(&mut socket, key) {
            return self.host.on_untaken(&handover.request.client_id, &error);
        }
        let now_ms = self.now_ms;
        let has_layers = socket.has_layers();
        let shard = &mut self.shards[place];
        let connected = match self.host.refuses(&handover.request) {
            None => shard.on_connect(number, handover.request, now_ms),
            Some(reason) => Err(admission::refuse(&handover.request, reason)),
        };
        let (slot, state, is_refused) = match connected {
            Ok(slot) => (slot, State::Open, false),
            Err(answer) => (NO_SLOT, leaving(answer, now_ms), true),
        };
        entry.insert(Connection {
            socket,
            number,
            shard: place as u16,
            slot,
            state,
            paused_until_ms: None,
            is_waiting: false,
            is_blocked: false,
            is_unread: false,
            gathers: false,
            sends_large: false,
            sends_much: false,
            incoming: None,
            _permit: handover.permit,
        });
        drop(handover.charge);
        if let Some(Who { client, username, .. }) = shard.who(slot, number) {
            self.host.on_let_in(client, username);
        }
        if is_refused {
            self.wait_until(key, now_ms + FAREWELL_MS);
            return self.write(key);
        }
        if !handover.rest.is_empty() {
            let rest = shard.on_bytes(slot, number, &handover.rest, now_ms);
            self.note_rest(key, rest, handover.rest.len());
        }
        if has_layers {
            // What it has read and not handed on makes no event.
            self.read_later(key);
        }
    }

    /// A client connects anew while the worker still knows an older connection of it. What it sent
    /// there comes first: a DISCONNECT that waits in the socket decides about its will.
    fn read_before_takeover(&mut self, key: usize) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if !connection.is_read() {
                return;
            }
            match connection.socket.read(&mut self.buffer) {
                Ok(Read::Bytes(count)) => self.give(key, count),
                Ok(Read::WouldBlock) => return,
                Ok(Read::Closed) | Err(_) => return self.on_lost(key),
            }
        }
    }

    pub(super) fn on_lost(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else { return };
        if matches!(connection.state, State::Leaving { .. }) {
            return self.close_later(key);
        }
        connection.state = State::Lost;
        let (place, slot) = (usize::from(connection.shard), connection.slot);
        let number = connection.number;
        self.shards[place].on_closed(slot, number, self.now_ms);
    }

    /// Writes a connection's farewell and lets it go.
    pub(super) fn close(&mut self, close: Close) {
        let key = key_of(close.connection);
        let known = self.connections.get_mut(key);
        let Some(connection) = known.filter(|known| known.number == close.connection) else {
            return;
        };
        // The layers have a farewell of their own, and so does the client: one whose own cannot be
        // written any more takes the end for a fault.
        let says_farewell = !close.farewell.is_empty() || connection.socket.has_layers();
        if matches!(connection.state, State::Lost) || !says_farewell {
            return self.close_later(key);
        }
        // Closing now, with bytes of the client unread, would make the kernel throw the farewell
        // away at the client's end. So the sending side ends first, and the rest is read away.
        let until_ms = self.now_ms + FAREWELL_MS;
        connection.state = State::Leaving { farewell: Box::new(close.farewell), until_ms };
        self.wait_until(key, until_ms);
        self.write(key);
    }

    /// Nobody needs this connection any more: its socket is closed when messages are dealt with.
    pub(super) fn close_later(&mut self, key: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.state = State::Lost;
            self.closing.push_back(key);
        }
    }

    pub(super) fn close_some(&mut self) {
        let count = self.closing.len().min(CLOSINGS_PER_TURN);
        for key in self.closing.drain(..count) {
            let mut connection = self.connections.remove(key);
            if connection.socket.has_layers() {
                let _ = connection.socket.shutdown();
            }
        }
    }
}

/// Of a connection that no shard knows: these bytes are all that it gets.
fn leaving(answer: Vec<u8>, now_ms: u64) -> State {
    let mut farewell = Outbox::default();
    farewell.append(|out| out.extend_from_slice(&answer));
    State::Leaving { farewell: Box::new(farewell), until_ms: now_ms + FAREWELL_MS }
}
