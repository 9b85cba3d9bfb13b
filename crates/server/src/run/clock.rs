//! The one clock of the process.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch at the start, and monotonic from there on.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_ms: u64,
}

impl Clock {
    pub fn start() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), started_ms: since_epoch.as_millis() as u64 }
    }

    pub fn now_ms(&self) -> u64 {
        self.ms_at(Instant::now())
    }

    pub fn ms_at(&self, time: Instant) -> u64 {
        self.started_ms + time.saturating_duration_since(self.started).as_millis() as u64
    }

    pub fn uptime_secs(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}
