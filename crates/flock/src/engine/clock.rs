//! The run's clock: nanoseconds since the run began, the same on every thread, process and machine.
//!
//! Processes of one machine share the kernel's monotonic clock, so that they agree exactly. On
//! another machine an agent is told the offset that the commander measured.

use rustix::time::{ClockId, clock_gettime};

/// Copied to every thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The monotonic clock when the run began.
    epoch_ns: i64,
}

impl Clock {
    /// A run that begins now.
    pub fn start() -> Self {
        Self { epoch_ns: monotonic_ns() }
    }

    /// A run that began when this machine's monotonic clock showed `epoch_ns`.
    pub fn from_epoch(epoch_ns: i64) -> Self {
        Self { epoch_ns }
    }

    pub fn epoch_ns(&self) -> i64 {
        self.epoch_ns
    }

    #[inline]
    pub fn now_ns(&self) -> u64 {
        (monotonic_ns() - self.epoch_ns).max(0) as u64
    }

    /// What the monotonic clock shows at `at_ns` of the run.
    pub fn to_monotonic(&self, at_ns: u64) -> i64 {
        self.epoch_ns.saturating_add_unsigned(at_ns)
    }
}

/// Nanoseconds of the kernel's monotonic clock.
#[inline]
pub fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
