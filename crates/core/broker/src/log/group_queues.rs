//! The queues of shared groups with a durable member.
//!
//! The group's home keeps each message until a member has acknowledged it, whoever that is. Members
//! hold what they were given in memory only: after a crash the home dispatches it again, which at
//! least once allows. So shared subscriptions of durable sessions are granted QoS 1 at most.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::FixedState;
use session::{Amount, Expires, ExpiringQueue, Message, Overflow, QueueLimits};
use slab::Slab;

use crate::log::track::Track;
use crate::words::queue_number::{KeptId, QueueNumber};
use crate::words::record_location::RecordLocation;

/// Bytes of waiting messages that a group keeps in memory beside the journal. Policy: later ones
/// are read back from the disk.
pub(super) const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// How long what has come back is not looked through again for what has expired.
pub(super) const EXPIRY_LOOK_MS: u64 = 1000;

/// One message that waits.
#[derive(Debug)]
pub(super) struct QueuedMessage {
    pub(super) serial: u64,
    pub(super) expires_at_ms: u64,
    pub(super) bytes: u32,
    pub(super) message: Option<Message>,
}

impl Expires for QueuedMessage {
    fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    fn bytes(&self) -> u64 {
        self.bytes.into()
    }
}

impl QueuedMessage {
    pub(super) fn memory_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Message::heap_bytes)
    }
}

/// The queue of a group, at its home.
#[derive(Debug)]
pub(super) struct KeptQueue {
    pub(super) number: QueueNumber,
    /// The key of its group.
    pub(super) group: u64,
    pub(super) place: RecordLocation,
    pub(super) track: Track,
    pub(super) waiting: ExpiringQueue<QueuedMessage>,
    pub(super) memory_bytes: usize,
    /// Dispatched and returned; they go first. With their bytes.
    pub(super) returned: BTreeMap<u64, u32>,
    /// Dispatched, and no member with room may have them (`share/denied.rs`). With their bytes.
    pub(super) denied: BTreeMap<u64, u32>,
    /// Of both.
    pub(super) returned_bytes: u64,
    /// Until then they are not looked through for what has expired.
    pub(super) look_ms: u64,
}

/// The queues of the groups that have their home here.
#[derive(Debug, Default)]
pub(super) struct KeptGroups {
    pub(super) queues: Slab<KeptQueue>,
    pub(super) by_number: HashMap<QueueNumber, KeptId, FixedState>,
}

impl KeptGroups {
    /// Messages of all groups that a member was chosen for.
    pub(super) fn dispatched(&self) -> usize {
        self.queues.iter().map(|(_, kept)| kept.dispatched()).sum()
    }

    pub(super) fn find(&self, number: QueueNumber) -> Option<KeptId> {
        self.by_number.get(&number).copied()
    }

    pub(super) fn get(&self, id: KeptId) -> Option<&KeptQueue> {
        self.queues.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: KeptId) -> Option<&mut KeptQueue> {
        self.queues.get_mut(id.0 as usize)
    }

    pub(super) fn insert(&mut self, queue: KeptQueue) -> KeptId {
        let number = queue.number;
        let id = KeptId(self.queues.insert(queue) as u32);
        self.by_number.insert(number, id);
        id
    }

    pub(super) fn remove(&mut self, id: KeptId) -> Option<KeptQueue> {
        let queue = self.queues.try_remove(id.0 as usize)?;
        self.by_number.remove(&queue.number);
        Some(queue)
    }
}

impl KeptQueue {
    pub(super) fn new(
        number: QueueNumber,
        group: u64,
        place: RecordLocation,
        track: Track,
    ) -> Self {
        Self {
            number,
            group,
            place,
            track,
            waiting: ExpiringQueue::default(),
            memory_bytes: 0,
            returned: BTreeMap::new(),
            denied: BTreeMap::new(),
            returned_bytes: 0,
            look_ms: 0,
        }
    }

    /// Messages that a member was chosen for.
    pub(super) fn dispatched(&self) -> usize {
        self.track.in_flight().count() - self.returned.len() - self.denied.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.returned.is_empty()
    }

    /// What no member has, whatever keeps it waiting.
    pub(super) fn undispatched(&self) -> Amount {
        let mut amount = self.waiting.live();
        let messages = (self.returned.len() + self.denied.len()) as u32;
        amount.add(Amount { messages, bytes: self.returned_bytes });
        amount
    }

    /// Takes out the oldest or the newest message that no member has. False: it was counted as
    /// expired before.
    pub(super) fn take_one(&mut self, limits: &QueueLimits) -> Option<(u64, bool)> {
        // One that is too large by itself makes nobody else go.
        let newest_bytes = self.waiting.back().map_or(0, Expires::bytes);
        let is_oldest = limits.overflow == Overflow::DropOldest && newest_bytes <= limits.bytes_max;
        let (waiting, others) = if is_oldest {
            let others = [self.returned.first_key_value(), self.denied.first_key_value()];
            (self.waiting.front(), others)
        } else {
            let others = [self.returned.last_key_value(), self.denied.last_key_value()];
            (self.waiting.back(), others)
        };
        let waiting = waiting.map(|waiting| waiting.serial);
        let all = others.into_iter().flatten().map(|(serial, _)| *serial).chain(waiting);
        let serial = if is_oldest { all.min() } else { all.max() }?;
        if Some(serial) != waiting {
            self.forget_returned(serial);
            return Some((serial, true));
        }
        let gone = if is_oldest { self.waiting.pop_front() } else { self.waiting.pop_back() };
        let (gone, is_live) = gone?;
        self.memory_bytes -= gone.memory_bytes();
        Some((serial, is_live))
    }

    /// A message that had come back waits no more.
    pub(super) fn forget_returned(&mut self, serial: u64) {
        for bytes in [self.returned.remove(&serial), self.denied.remove(&serial)] {
            self.returned_bytes -= u64::from(bytes.unwrap_or_default());
        }
    }

    /// A message that was dispatched comes back. False: it is over.
    pub(super) fn come_back(&mut self, serial: u64, bytes: u32, is_denied: bool) -> bool {
        if self.track.get_mut(serial).is_none() {
            return false;
        }
        self.forget_returned(serial);
        self.returned_bytes += u64::from(bytes);
        let queue = if is_denied { &mut self.denied } else { &mut self.returned };
        queue.insert(serial, bytes);
        true
    }

    pub(super) fn push(&mut self, queued: QueuedMessage, now_ms: u64) {
        let message = queued.message.filter(|_| self.memory_bytes < MEMORY_BYTES_MAX);
        self.memory_bytes += message.as_ref().map_or(0, Message::heap_bytes);
        self.waiting.push(QueuedMessage { message, ..queued }, now_ms);
    }

    pub(super) fn front(&self) -> Option<(u64, Option<&Message>)> {
        if let Some((serial, _)) = self.returned.first_key_value() {
            return Some((*serial, None));
        }
        self.waiting.front().map(|waiting| (waiting.serial, waiting.message.as_ref()))
    }

    /// False: it was counted as expired before.
    pub(super) fn pop_front(&mut self) -> bool {
        if let Some((_, bytes)) = self.returned.pop_first() {
            self.returned_bytes -= u64::from(bytes);
            return true;
        }
        let Some((gone, is_live)) = self.waiting.pop_front() else { return false };
        self.memory_bytes -= gone.memory_bytes();
        is_live
    }

    /// A message is acknowledged or, `is_unsent`, will never be dispatched. False: that was known.
    pub(super) fn finish(&mut self, serial: u64, is_unsent: bool) -> bool {
        self.forget_returned(serial);
        if self.track.finish(serial).is_some() {
            return true;
        }
        if !is_unsent {
            return false;
        }
        match (self.waiting.front(), self.waiting.back()) {
            // It was the last of several.
            (Some(front), Some(back)) if front.serial < serial => {
                self.track.skip(serial, back.serial);
            }
            _ => self.track.pass(serial),
        }
        true
    }
}
