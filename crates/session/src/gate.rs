//! Whether a connection is read, and why not.
//!
//! Each reason is given and taken back by one place in the broker. A connection is read when it has
//! none, and its time has come.

use crate::NEVER;

/// Why a connection is not read, without an end that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// It stands in a line: for its part of a turn, for another shard, or for a subscriber.
    InLine = 1,
    /// It has not taken what it was sent, beside a full outbox.
    ToBeRead = 2,
}

/// The record of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate {
    /// Of [`Wait`].
    waits: u8,
    /// It is not read before then, in broker time.
    until_ms: u64,
}

impl Gate {
    /// Gives a reason. False: it was given already.
    pub const fn shut(&mut self, wait: Wait) -> bool {
        let is_new = self.waits & wait as u8 == 0;
        self.waits |= wait as u8;
        is_new
    }

    /// Takes a reason back.
    pub const fn open(&mut self, wait: Wait) {
        self.waits &= !(wait as u8);
    }

    pub const fn is_shut(&self, wait: Wait) -> bool {
        self.waits & wait as u8 != 0
    }

    /// The connection is not read before then, whatever else is said meanwhile.
    pub const fn shut_until(&mut self, until_ms: u64) {
        if until_ms > self.until_ms {
            self.until_ms = until_ms;
        }
    }

    /// When the connection may be read: a time that has come, one to come, or [`NEVER`]: when a
    /// reason is taken back.
    pub const fn reads_at_ms(&self) -> u64 {
        if self.waits != 0 { NEVER } else { self.until_ms }
    }

    /// The time before which the connection was not read.
    pub const fn until_ms(&self) -> u64 {
        self.until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_when_no_reason_is_left_and_its_time_has_come() {
        let mut gate = Gate::default();
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
