//! Until when this node may act: read by workers before anything leaves, written by the member's
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How often a worker that waits for the lease looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The time that stands for a right that does not come back.
const LOST: u64 = u64::MAX;

/// The right to act, shared by all threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acting(Arc<AtomicU64>);

impl Acting {
    /// `until_ms`: of [`boot_ms`]. 0: not at all. Has no effect once the right is lost.
    pub(crate) fn set(&self, until_ms: u64) {
        let until_ms = until_ms.min(LOST - 1);
        let put = |known| (known != LOST).then_some(until_ms);
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, put);
    }

    /// For ever: another node may have it.
    pub(crate) fn lose(&self) {
        self.0.store(LOST, Ordering::Release);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.0.load(Ordering::Acquire) == LOST
    }

    pub(crate) fn is_held(&self) -> bool {
        self.remaining_ms() > 0
    }

    /// For how long it is held if nothing renews it.
    pub(crate) fn remaining_ms(&self) -> u64 {
        match self.0.load(Ordering::Acquire) {
            LOST => 0,
            until_ms => until_ms.saturating_sub(boot_ms()),
        }
    }

    /// Returns when the lease is held; false if it is lost. The clock is read here, after all that
    /// led to what is about to leave: a process that was stopped in between finds its lease run
    /// out.
    pub(crate) fn wait(&self) -> bool {
        while !self.is_held() {
            if self.is_lost() {
                return false;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
        true
    }
}

/// Milliseconds of a clock that never goes back and counts the time in which the machine or the
/// process did not run.
pub(crate) fn boot_ms() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_held_until_its_time_and_not_before_it_was_set() {
        let acting = Acting::default();
        assert!(!acting.is_held());
        acting.set(boot_ms() + 60_000);
        assert!(acting.is_held());
        assert!(acting.wait());
        acting.set(boot_ms());
        assert!(!acting.is_held());
    }

    #[test]
    fn who_waits_goes_on_when_the_lease_is_back() {
        let acting = Acting::default();
        let waits = acting.clone();
        let waiting = std::thread::spawn(move || waits.wait());
        acting.set(boot_ms() + 60_000);
        assert!(waiting.join().unwrap());
    }

    #[test]
    fn who_waits_for_a_lost_lease_is_told_so_and_it_does_not_come_back() {
        let acting = Acting::default();
        let waits = acting.clone();
        let waiting = std::thread::spawn(move || waits.wait());
        acting.lose();
        assert!(!waiting.join().unwrap());
        acting.set(boot_ms() + 60_000);
        assert!(!acting.is_held() && !acting.wait());
    }
}
