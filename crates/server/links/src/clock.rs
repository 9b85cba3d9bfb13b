//! The time of links.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds of a clock that counts the time in which the process or the machine was paused.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
