//! Messages that are read back from the disk, and who waits for them.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;
use session::Message;
use storage::{CommandId, Position};

use crate::words::expected::Expected;
use crate::words::queue_number::QueueId;

/// Bytes of messages read back from the disk and kept for those that asked. Policy: they are
/// forgotten, the oldest first, before more are read.
const FETCHED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that one read asks for: neighbours in the journal are neighbours in a backlog.
const READ_BYTES: u32 = 256 * 1024;

/// Reads under way. Policy: who needs more waits until one has come back.
const READINGS_MAX: usize = 64;

/// Reads of a damaged record before its message is given up: a disk may yet deliver.
const UNREAD_TRIES_MAX: u8 = 5;

/// A read under way, and the queues that wait for it.
#[derive(Debug)]
pub(super) struct Reading {
    id: CommandId,
    pub(super) serial: u64,
    pub(super) position: Position,
    bytes: u32,
    waiters: Vec<QueueId>,
}

/// What was read, is being read and could not be read.
#[derive(Debug, Default)]
pub(super) struct Reads {
    fetched: HashMap<u64, Message, FixedState>,
    fetched_bytes: usize,
    /// In the order of reading; those that are gone among them, as many as came with the reads.
    fetched_order: VecDeque<u64>,
    /// Whether something was read back or asked for since [`Reads::fit`].
    is_used: bool,
    under_way: Vec<Reading>,
    /// Queues that wait for what could not be read: tried again with the next tick.
    unreadable: Vec<QueueId>,
    /// How often each message could not be read.
    tries: HashMap<u64, u8, FixedState>,
    /// Queues to be tried again once the disk has done something.
    retry: VecDeque<QueueId>,
}

impl Reads {
    pub(super) const fn bytes(&self) -> usize {
        self.fetched_bytes
    }

    pub(super) fn has_to_fit(&self) -> bool {
        !self.fetched.is_empty() && self.under_way.is_empty()
    }

    /// Gives back what was read and not asked for since.
    pub(super) fn fit(&mut self) {
        if self.under_way.is_empty() && !std::mem::take(&mut self.is_used) {
            (self.fetched, self.fetched_bytes) = (HashMap::default(), 0);
            self.fetched_order = VecDeque::new();
        }
    }

    pub(super) fn get(&mut self, serial: u64) -> Option<Message> {
        let message = self.fetched.get(&serial).cloned();
        self.is_used |= message.is_some();
        message
    }

    pub(super) fn forget(&mut self, serial: u64) {
        if self.fetched.is_empty() {
            return;
        }
        if let Some(message) = self.fetched.remove(&serial) {
            self.fetched_bytes -= message.heap_bytes();
            if self.fetched.is_empty() {
                self.fetched_order.clear();
            }
        }
    }

    /// Waits for a read under way that brings this record, too. False: there is none.
    pub(super) fn join(&mut self, position: Position, bytes: u32, waiter: QueueId) -> bool {
        let covering = self.under_way.iter_mut().find(|reading| {
            reading.position.segment() == position.segment()
                && reading.position <= position
                && position.offset() + bytes <= reading.position.offset() + reading.bytes
        });
        let Some(reading) = covering else { return false };
        if !reading.waiters.contains(&waiter) {
            reading.waiters.push(waiter);
        }
        true
    }

    /// Begins a read of a record, by `request`. If that cannot be, `waiter` is tried again.
    pub(super) fn begin(
        &mut self,
        serial: u64,
        (position, bytes): (Position, u32),
        waiter: QueueId,
        request: impl FnOnce(u32) -> Option<CommandId>,
    ) {
        let bytes = READ_BYTES.max(bytes + 64);
        let has_room = self.under_way.len() < READINGS_MAX;
        match has_room.then(|| request(bytes)).flatten() {
            Some(id) => {
                let waiters = vec![waiter];
                self.under_way.push(Reading { id, serial, position, bytes, waiters });
            }
            None => self.retry.push_back(waiter),
        }
    }

    /// Some of those who are to be tried again.
    pub(super) fn take_retry(&mut self) -> Vec<QueueId> {
        let count = self.retry.len().min(READINGS_MAX);
        self.retry.drain(..count).collect()
    }

    /// Those who wait for what could not be read may try again.
    pub(super) fn take_unreadable(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.unreadable)
    }

    /// A read has come back.
    pub(super) fn end(&mut self, id: CommandId) -> Option<Reading> {
        let index = self.under_way.iter().position(|reading| reading.id == id).expected()?;
        self.is_used = true;
        while self.fetched_bytes > FETCHED_BYTES_MAX
            && let Some(oldest) = self.fetched_order.pop_front()
        {
            if let Some(message) = self.fetched.remove(&oldest) {
                self.fetched_bytes -= message.heap_bytes();
            }
        }
        Some(self.under_way.swap_remove(index))
    }

    /// It has brought this message.
    pub(super) fn put(&mut self, serial: u64, message: Message) {
        self.fetched_bytes += message.heap_bytes();
        self.fetched_order.push_back(serial);
        if let Some(old) = self.fetched.insert(serial, message) {
            self.fetched_bytes -= old.heap_bytes();
        }
    }

    pub(super) fn has(&self, serial: u64) -> bool {
        self.fetched.contains_key(&serial)
    }

    /// It has brought what was asked for, or nobody needs that. Returns who waited.
    pub(super) fn serve(&mut self, reading: Reading) -> Vec<QueueId> {
        self.tries.remove(&reading.serial);
        reading.waiters
    }

    /// It has not: those who wait do so until the next tick. `is_damaged`: the disk has delivered,
    /// and not this record. True: it was asked often enough.
    pub(super) fn fail(&mut self, reading: Reading, is_damaged: bool) -> bool {
        self.unreadable.extend(reading.waiters);
        if !is_damaged {
            return false;
        }
        let tries = self.tries.entry(reading.serial).or_default();
        *tries += 1;
        let is_over = *tries >= UNREAD_TRIES_MAX;
        if is_over {
            self.tries.remove(&reading.serial);
        }
        is_over
    }
}
