//! Wills of sessions that end with their connections.
//!
//! Nothing else of such a session is in the journal: a CONNECT with an expiry interval of 0, its
//! will, and its end. A journal that lacks the end is that of a broker which ended first. The next
//! one publishes the will if the client does not come back ([`crate::Settings::will_grace_ms`]).

use std::collections::HashMap;

use foldhash::fast::FixedState;
use storage::Level;

use crate::log::facts::Fact;
use crate::words::queue_number::QueueNumber;
use crate::words::record_location::RecordLocation;

/// What the journal knows of a session that ends with its connection.
#[derive(Debug)]
pub(crate) struct LoneWill {
    pub(super) queue: QueueNumber,
    pub(super) opened: RecordLocation,
    pub(super) will: RecordLocation,
    pub(super) level: Level,
    /// It is published, and not in the journal as a message yet.
    pub(super) is_due: bool,
}

/// By slot, and by queue. At most one for each connection.
#[derive(Debug, Default)]
pub(super) struct LoneWills {
    by_slot: HashMap<u32, LoneWill, FixedState>,
    by_queue: HashMap<QueueNumber, u32, FixedState>,
}

impl LoneWills {
    pub(super) fn get(&self, slot: u32) -> Option<&LoneWill> {
        self.by_slot.get(&slot)
    }

    pub(super) fn of_queue(&mut self, queue: QueueNumber) -> Option<&mut LoneWill> {
        self.by_slot.get_mut(self.by_queue.get(&queue)?)
    }

    pub(super) fn insert(&mut self, slot: u32, will: LoneWill) {
        self.by_queue.insert(will.queue, slot);
        self.by_slot.insert(slot, will);
    }

    pub(super) fn take(&mut self, slot: u32) -> Option<LoneWill> {
        let will = self.by_slot.remove(&slot)?;
        self.by_queue.remove(&will.queue);
        Some(will)
    }

    /// Where a fact of such a session stands.
    pub(super) fn place_of(
        &mut self,
        queue: QueueNumber,
        fact: &Fact<'_>,
    ) -> Option<&mut RecordLocation> {
        let will = self.of_queue(queue)?;
        match fact {
            Fact::SessionOpened(_) => Some(&mut will.opened),
            Fact::Will(_) => Some(&mut will.will),
            _ => None,
        }
    }
}
