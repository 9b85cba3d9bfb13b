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
    /// The wall clock then, of whoever leads the run.
    wall_ns: u64,
}

impl Clock {
    /// A run that begins now.
    pub fn start() -> Self {
        let wall = clock_gettime(ClockId::Realtime);
        let wall_ns = (wall.tv_sec * 1_000_000_000 + wall.tv_nsec).max(0) as u64;
        Self { epoch_ns: monotonic_ns(), wall_ns }
    }

    /// A run that began when this machine's monotonic clock showed `epoch_ns`, and the leader's
    /// wall clock `wall_ns`.
    pub fn from_epoch(epoch_ns: i64, wall_ns: u64) -> Self {
        Self { epoch_ns, wall_ns }
    }

    /// The leader's wall clock when the run began: what stamps count from.
    pub fn wall_ns(&self) -> u64 {
        self.wall_ns
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
