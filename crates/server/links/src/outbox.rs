//! What waits to be sent on one connection.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::boot_ms;
use mio::Token;
use thiserror::Error;

use crate::links::Violation;
use crate::poller::Bell;
use crate::thread::Command;

/// Bytes of packets that wait on one link; a single packet may be larger. Policy: the sender gets
/// its packet back, and [`Handler::on_room`](crate::Handler::on_room) once half is sent.
pub const OUTBOX_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Packets that wait on one link. Policy: as [`OUTBOX_BYTES_MAX`].
pub const OUTBOX_PACKETS_MAX: usize = 64 * 1024;

/// Sends on one connection between two nodes, from any thread and without waiting. It outlives
/// its connection and then refuses. So no packet reaches a later connection by mistake: a
/// [`Lane`](broker::cells::lane::Lane) would take it for a gap.
#[derive(Clone)]
pub struct Sender {
    outbox: Arc<Outbox>,
    doorbell: Arc<Doorbell>,
}

/// A packet that was not accepted. It is returned.
#[derive(Clone, PartialEq, Eq, Error)]
pub enum SendError {
    #[error("the outbox is full: send again after on_room")]
    Full(Vec<u8>),
    #[error("the link is closed")]
    Closed(Vec<u8>),
}

/// Reports to the thread of the links what other threads ask for, and which outboxes have
/// something new.
pub(crate) struct Doorbell {
    commands: Mutex<Vec<Command>>,
    marked: Mutex<Vec<Token>>,
    bell: Arc<Bell>,
}

pub(crate) struct Outbox {
    token: Token,
    state: Mutex<State>,
    /// From this time on the link is dead ([`base::boot_ms`]).
    dead_ms: AtomicU64,
}

#[derive(Default)]
struct State {
    packets: VecDeque<Vec<u8>>,
    /// With those that the thread has taken and not sent completely.
    packet_count: usize,
    bytes: usize,
    /// The thread will look at it.
    is_marked: bool,
    is_closed: bool,
    has_refused: bool,
    /// Why the thread has to close the connection.
    violation: Option<Violation>,
}

impl fmt::Debug for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(bytes) => write!(f, "Full({} bytes)", bytes.len()),
            Self::Closed(bytes) => write!(f, "Closed({} bytes)", bytes.len()),
        }
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({})", self.outbox.token.0)
    }
}

impl Sender {
    pub(crate) fn new(outbox: Arc<Outbox>, doorbell: Arc<Doorbell>) -> Self {
        Self { outbox, doorbell }
    }

    /// Queues an encoded [`Envelope`](broker::cells::wire::Envelope).
    ///
    /// # Errors
    ///
    /// A limit is reached, or the connection is closed.
    pub fn send(&self, packet: Vec<u8>) -> Result<(), SendError> {
        let must_mark = self.outbox.push(packet)?;
        if must_mark {
            self.doorbell.ring(self.outbox.token);
        }
        Ok(())
    }

    /// Is the link dead, or closed? It can be before the handler is called: a process that was
    /// paused asks before it uses what the link has brought.
    pub fn is_dead(&self) -> bool {
        boot_ms() >= self.outbox.dead_ms.load(Ordering::Acquire)
    }

    /// Closes the connection: its peer violates the protocol, which was found after
    /// [`Handler::on_envelope`](crate::Handler::on_envelope) had returned. The first reason counts.
    pub fn close(&self, why: Violation) {
        if self.outbox.refuse(why) {
            self.doorbell.ring(self.outbox.token);
        }
    }

    /// Bytes and packets that wait.
    pub fn queued(&self) -> (usize, usize) {
        let state = self.outbox.state();
        (state.bytes, state.packet_count)
    }
}

impl Outbox {
    pub(crate) fn new(token: Token, dead_ms: u64) -> Self {
        Self { token, state: Mutex::default(), dead_ms: dead_ms.into() }
    }

    pub(crate) fn live_until(&self, dead_ms: u64) {
        self.dead_ms.store(dead_ms, Ordering::Release);
    }

    /// True: it was empty, as far as the thread knows.
    fn push(&self, packet: Vec<u8>) -> Result<bool, SendError> {
        let mut state = self.state();
        if state.is_closed {
            return Err(SendError::Closed(packet));
        }
        let is_over = state.bytes.saturating_add(packet.len()) > OUTBOX_BYTES_MAX;
        if state.packet_count >= OUTBOX_PACKETS_MAX || is_over && state.packet_count > 0 {
            state.has_refused = true;
            return Err(SendError::Full(packet));
        }
        state.bytes += packet.len();
        state.packet_count += 1;
        state.packets.push_back(packet);
        Ok(!mem::replace(&mut state.is_marked, true))
    }

    /// No packet is accepted any more. True: as [`Outbox::push`].
    fn refuse(&self, why: Violation) -> bool {
        let mut state = self.state();
        if state.is_closed {
            return false;
        }
        (state.is_closed, state.violation) = (true, Some(why));
        !mem::replace(&mut state.is_marked, true)
    }

    /// Why the connection is to be closed, if it is.
    pub(crate) fn take_violation(&self) -> Option<Violation> {
        self.state().violation.take()
    }

    /// All that waits, into an empty batch. It counts until [`Outbox::on_sent`].
    pub(crate) fn take(&self, batch: &mut VecDeque<Vec<u8>>) {
        debug_assert!(batch.is_empty(), "{} packets come first", batch.len());
        let mut state = self.state();
        state.is_marked = false;
        mem::swap(&mut state.packets, batch);
    }

    /// True: a sender that was refused can send again.
    pub(crate) fn on_sent(&self, packets: usize, bytes: usize) -> bool {
        let mut state = self.state();
        state.packet_count -= packets;
        state.bytes -= bytes;
        let is_roomy =
            state.bytes <= OUTBOX_BYTES_MAX / 2 && state.packet_count <= OUTBOX_PACKETS_MAX / 2;
        is_roomy && mem::replace(&mut state.has_refused, false)
    }

    pub(crate) fn close(&self) {
        self.live_until(0);
        let mut state = self.state();
        state.is_closed = true;
        state.packets = VecDeque::new();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Doorbell {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { commands: Mutex::default(), marked: Mutex::default(), bell }
    }

    pub(crate) fn command(&self, command: Command) {
        lock(&self.commands).push(command);
        self.bell.ring();
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        mem::take(&mut *lock(&self.commands))
    }

    pub(crate) fn take(&self) -> Vec<Token> {
        mem::take(&mut *lock(&self.marked))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.marked).is_empty() && lock(&self.commands).is_empty()
    }

    fn ring(&self, token: Token) {
        lock(&self.marked).push(token);
        self.bell.ring();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outbox() -> Outbox {
        Outbox::new(Token(1), u64::MAX)
    }

    #[test]
    fn a_full_outbox_returns_the_packet_and_reports_room_once() {
        let outbox = outbox();
        let half = vec![1; OUTBOX_BYTES_MAX / 2];
        assert_eq!(outbox.push(half.clone()), Ok(true));
        assert_eq!(outbox.push(half.clone()), Ok(false), "the thread knows");
        assert_eq!(outbox.push(vec![7]), Err(SendError::Full(vec![7])));
        let mut batch = VecDeque::new();
        outbox.take(&mut batch);
        assert_eq!(outbox.push(vec![7]), Err(SendError::Full(vec![7])), "taken is not sent");
        assert!(outbox.on_sent(1, half.len()));
        assert_eq!(outbox.push(vec![7]), Ok(true));
        assert!(!outbox.on_sent(1, half.len()), "nobody was refused since");
    }

    #[test]
    fn packets_are_counted_and_a_large_one_is_accepted_alone() {
        let outbox = outbox();
        for _ in 0..OUTBOX_PACKETS_MAX {
            outbox.push(vec![1]).expect("there is room");
        }
        assert_eq!(outbox.push(vec![7]), Err(SendError::Full(vec![7])));
        let outbox = self::outbox();
        outbox.push(vec![0; OUTBOX_BYTES_MAX + 1]).expect("it is alone");
        assert_eq!(outbox.push(vec![7]), Err(SendError::Full(vec![7])));
    }

    #[test]
    fn a_closed_outbox_refuses() {
        let outbox = outbox();
        outbox.close();
        assert_eq!(outbox.push(vec![7]), Err(SendError::Closed(vec![7])));
        assert!(!outbox.refuse(Violation("late".to_owned())), "it is closed");
        assert_eq!(outbox.take_violation(), None);
        let outbox = self::outbox();
        let first = Violation("first".to_owned());
        assert!(outbox.refuse(first.clone()), "the thread has to look");
        assert!(!outbox.refuse(Violation("second".to_owned())));
        assert_eq!(outbox.push(vec![7]), Err(SendError::Closed(vec![7])));
        assert_eq!((outbox.take_violation(), outbox.take_violation()), (Some(first), None));
    }
}
