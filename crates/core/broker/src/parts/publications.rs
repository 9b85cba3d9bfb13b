//! Publishes of operators that are not answered yet.

use std::collections::BTreeMap;

use codec::Reason;
use session::Awaited;

/// Publishes of operators that are not answered yet. Each has a number that is given once: a place
/// that answers late for one that was answered long ago means no other.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    pub(crate) pending: BTreeMap<u64, Pending>,
    last_number: u64,
}

#[derive(Debug)]
pub(crate) struct Pending {
    /// Of its command.
    pub(crate) ticket: u32,
    /// Who has yet to answer.
    pub(crate) awaited: Awaited,
    pub(crate) reason: Reason,
}

impl Publications {
    /// The number of a publish, never given twice.
    pub(crate) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn wait_for(&mut self, number: u64, pending: Pending) {
        self.pending.insert(number, pending);
    }

    /// Those that are not answered yet.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}

/// Publishes that wait for those who keep their message. More are refused.
pub(crate) const PUBLICATIONS_MAX: usize = 1_024;
