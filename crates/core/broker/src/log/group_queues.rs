//! The queues of shared groups with a durable member.
//!
//! The group's home keeps each message until a member has acknowledged it, whoever that is. Members
//! hold what they were given in memory only: after a crash the home dispatches it again, which at
//! least once allows. So shared subscriptions of durable sessions are granted QoS 1 at most.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use slab::Slab;

use crate::log::track::Track;
use crate::words::queue_number::{KeptId, QueueNumber};
use crate::words::record_location::RecordLocation;

/// Stands for a packet id in the track: the message is with a member.
const WITH_MEMBER: u16 = 0;

/// The message has come back from a member, and waits again.
const IS_BACK: u16 = 1;

/// How far the queue of a group is, at its home. What waits in it lies with the group
/// (`parts/group_queue.rs`).
#[derive(Debug)]
pub(super) struct KeptQueue {
    pub(super) number: QueueNumber,
    /// The key of its group.
    pub(super) group: u64,
    pub(super) place: RecordLocation,
    pub(super) track: Track,
}

/// The queues of the groups that have their home here.
#[derive(Debug, Default)]
pub(super) struct KeptGroups {
    queues: Slab<KeptQueue>,
    by_number: HashMap<QueueNumber, KeptId, FixedState>,
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
    /// Messages that a member was chosen for.
    pub(super) fn dispatched(&self) -> usize {
        self.track.in_flight().filter(|out| out.packet_id == WITH_MEMBER).count()
    }

    /// A member gets the message.
    pub(super) fn dispatch(&mut self, serial: u64) {
        self.track.assign(serial, WITH_MEMBER);
    }

    /// A message that was dispatched comes back. False: it is over, or is back already.
    pub(super) fn come_back(&mut self, serial: u64) -> bool {
        let Some(out) = self.track.get_mut(serial) else { return false };
        std::mem::replace(&mut out.packet_id, IS_BACK) == WITH_MEMBER
    }

    /// A message is acknowledged. False: that was known.
    pub(super) fn finish(&mut self, serial: u64) -> bool {
        self.track.finish(serial).is_some()
    }

    /// A message will never be dispatched. `waiting`: others before it will, up to this serial.
    pub(super) fn give_up(&mut self, serial: u64, waiting: Option<u64>) {
        if self.finish(serial) {
            return;
        }
        match waiting {
            Some(waiting) => self.track.skip(serial, waiting),
            None => self.track.pass(serial),
        }
    }
}
