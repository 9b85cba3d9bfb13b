//! Whether a connection is read, and why not.
//!
//! Each reason is set by one function of the broker. A connection is read when no reason is set and
//! its time has come.

use crate::NEVER;

/// Why a connection is not read, without an end that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum PauseReason {
    /// It is queued: for its part of a turn, for another shard, for a subscriber, or for the
    /// authorization service.
    Queued = 1 << 63,
    /// It has not read the answers it was sent, in addition to a full outbox.
    UnreadAnswers = 1 << 62,
}

/// Of the record: the bits below those of [`PauseReason`].
const TIME: u64 = (1 << 62) - 1;

/// The record of one connection: the bits of its reasons, and the time before which it is not read,
/// in broker time. One word, as every connection has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadPauses(u64);

impl ReadPauses {
    /// Sets a reason. False: it was set already.
    pub const fn pause(&mut self, reason: PauseReason) -> bool {
        let is_new = !self.is_paused(reason);
        self.0 |= reason as u64;
        is_new
    }

    /// Clears a reason.
    pub const fn resume(&mut self, reason: PauseReason) {
        self.0 &= !(reason as u64);
    }

    pub const fn is_paused(&self, reason: PauseReason) -> bool {
        self.0 & reason as u64 != 0
    }

    /// The connection is not read before then, whichever reasons are cleared meanwhile.
    pub const fn pause_until(&mut self, until_ms: u64) {
        let until_ms = if until_ms > TIME { TIME } else { until_ms };
        if until_ms > self.until_ms() {
            self.0 = self.0 & !TIME | until_ms;
        }
    }

    /// When the connection may be read: a time that has come, one to come, or [`NEVER`]: once its
    /// reasons are cleared.
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
    fn a_connection_is_read_once_no_reason_is_set_and_its_time_has_come() {
        let mut pauses = ReadPauses::default();
        assert_eq!(pauses.reads_at_ms(), 0);
        pauses.pause_until(7);
        assert!(pauses.pause(PauseReason::Queued) && !pauses.pause(PauseReason::Queued));
        assert!(pauses.pause(PauseReason::UnreadAnswers));
        pauses.resume(PauseReason::Queued);
        assert_eq!(pauses.reads_at_ms(), NEVER);
        pauses.pause_until(5);
        pauses.resume(PauseReason::UnreadAnswers);
        assert_eq!(pauses.reads_at_ms(), 7);
    }
}
