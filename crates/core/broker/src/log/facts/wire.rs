//! The primitives of the journal's encoding: those that others have as well, and queue numbers.

use crate::log::facts::fact::Malformed;
use crate::words::queue_number::QueueNumber;
pub(super) use crate::words::wire::{Reader, put_bytes, put_fixed, put_number};

pub(super) fn put_queue(out: &mut Vec<u8>, queue: QueueNumber) {
    put_number(out, queue.get());
}

pub(super) fn put_queue_if_any(out: &mut Vec<u8>, queue: Option<QueueNumber>) {
    put_number(out, QueueNumber::number_of(queue));
}

impl Reader<'_> {
    /// The queue of a session or of a shared group.
    pub(super) fn queue(&mut self) -> Result<QueueNumber, Malformed> {
        QueueNumber::new(self.number()?).ok_or(NOBODYS)
    }

    /// The same where there may be none.
    pub(super) fn queue_if_any(&mut self) -> Result<Option<QueueNumber>, Malformed> {
        QueueNumber::of_number(self.number()?)
    }
}

impl QueueNumber {
    /// What is written where there may be none.
    pub(super) fn number_of(queue: Option<Self>) -> u64 {
        queue.map_or(NOBODY, Self::get)
    }

    /// The reverse. Err: the number stands for something else.
    pub(super) fn of_number(number: u64) -> Result<Option<Self>, Malformed> {
        match number {
            NOBODY => Ok(None),
            _ => Self::new(number).map(Some).ok_or(NOBODYS),
        }
    }
}

/// Where a fact may name no session or group. No fact can mean either by it.
const NOBODY: u64 = 0;

pub(super) const NOBODYS: Malformed =
    Malformed("a queue number belongs neither to a session nor to a group");
