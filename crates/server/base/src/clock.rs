//! The one clock of the process: broker time, which no clock that is set moves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Broker time in milliseconds. It never goes back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    /// What it showed then, and what the machine has slept since. One for each process: it may
    /// live as long.
    base_ms: &'static AtomicU64,
}

impl Clock {
    /// Broker time begins as the wall clock.
    pub fn start() -> Self {
        let base_ms = Box::leak(Box::new(AtomicU64::new(wall_ms())));
        Self { started: Instant::now(), base_ms }
    }

    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    pub fn ms_at(&self, time: Instant) -> u64 {
        let since = time.saturating_duration_since(self.started).as_millis() as u64;
        self.base_ms.load(Ordering::Relaxed) + since
    }

    pub fn uptime_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }

    /// The clock on the wall, for what others have dated.
    pub fn wall_secs(&self) -> u64 {
        wall_ms() / 1000
    }

    pub fn wall_ms(&self) -> u64 {
        wall_ms()
    }

    /// Broker time is `now_ms` now. Call it before anything else takes the time.
    pub fn go_on_at(&self, now_ms: u64) {
        let since = self.started.elapsed().as_millis() as u64;
        self.base_ms.store(now_ms.saturating_sub(since), Ordering::Relaxed);
    }

    /// Adds time that `Instant` does not count.
    pub fn advance(&self, by_ms: u64) {
        self.base_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

/// Milliseconds of a clock that never goes back and counts the time in which the machine or the
/// process did not run.
pub fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// Milliseconds since 1970.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
