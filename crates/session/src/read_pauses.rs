//! Whether a connection is read, and why not.
//!
//! Each reason is given by one function of the broker. A connection is read when it has
//! none, and its time has come.

use crate::NEVER;

/// Why a connection is not read, without an end that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Wait {
    /// It stands in a line: for its part of a turn, for another shard, or for a subscriber.
    InLine = 1 << 63,
    /// It has not taken what it was sent, beside a full outbox.
    ToBeRead = 1 << 62,
}

/// Of the record: the bits below those of [`Wait`].
const TIME: u64 = (1 << 62) - 1;

/// The record of one connection: the bits of its waits, and the time before which it is not read,
/// in broker time. One word, as every connection has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadPauses(u64);

impl ReadPauses {
    /// Gives a reason. False: it was given already.
    pub const fn shut(&mut self, wait: Wait) -> bool {
        let is_new = !self.is_shut(wait);
        self.0 |= wait as u64;
        is_new
    }

    /// Takes a reason back.
    pub const fn open(&mut self, wait: Wait) {
        self.0 &= !(wait as u64);
    }

    pub const fn is_shut(&self, wait: Wait) -> bool {
        self.0 & wait as u64 != 0
    }

    /// The connection is not read before then, whatever else is said meanwhile.
    pub const fn shut_until(&mut self, until_ms: u64) {
        let until_ms = if until_ms > TIME { TIME } else { until_ms };
        if until_ms > self.until_ms() {
            self.0 = self.0 & !TIME | until_ms;
        }
    }

    /// When the connection may be read: a time that has come, one to come, or [`NEVER`]: when a
    /// reason is taken back.
    pub const fn reads_at_ms(&self) -> u64 {
        if self.0 > TIME { NEVER } else { self.0 }
    }

    /// The time before which the connection was not read.
    pub const fn until_ms(&self) -> u64 {
        self.0 & TIME
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_when_no_reason_is_left_and_its_time_has_come() {
        let mut gate = ReadPauses::default();
        assert_eq!(gate.reads_at_ms(), 0);
        gate.shut_until(7);
        assert!(gate.shut(Wait::InLine) && !gate.shut(Wait::InLine));
        assert!(gate.shut(Wait::ToBeRead));
        gate.open(Wait::InLine);
        assert_eq!(gate.reads_at_ms(), NEVER);
        gate.shut_until(5);
        gate.open(Wait::ToBeRead);
        assert_eq!(gate.reads_at_ms(), 7);
    }
}
