//! From the records of a log to the state of a shard.

use storage::{Ledger, Record};

/// What recovery read, collected until the shard can be rebuilt from it.
#[derive(Debug, Default)]
pub struct Replay {}

/// What was rebuilt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub sessions: u64,
    pub subscriptions: u64,
    pub retained: u64,
    /// Messages that are owed to somebody.
    pub messages: u64,
}

impl Replay {
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next record of the log, in order.
    pub fn on_record(&mut self, _record: Record<'_>, _ledger: &mut Ledger) {}
}
