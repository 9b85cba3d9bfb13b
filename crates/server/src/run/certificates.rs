//! When the certificates of the listeners expire.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// By listener, in their order. Read for the metrics, written at the start and with each reload.
#[derive(Debug, Default)]
pub struct Certificates {
    expiries: Mutex<Vec<(String, u64)>>,
}

impl Certificates {
    /// Takes down until when the certificate of a listener is good, in seconds since 1970.
    pub fn set(&self, listener: &str, not_after_secs: u64) {
        let mut expiries = self.lock();
        match expiries.iter_mut().find(|(name, _)| name == listener) {
            Some((_, known)) => *known = not_after_secs,
            None => expiries.push((listener.to_owned(), not_after_secs)),
        }
    }

    /// Listeners, and until when their certificates are good.
    pub fn expiries(&self) -> Vec<(String, u64)> {
        self.lock().clone()
    }

    /// Logs those that have expired or will before long.
    pub fn warn(&self, now_secs: u64) {
        for (listener, not_after_secs) in self.expiries() {
            match days_left(not_after_secs, now_secs) {
                None => tracing::error!(listener, "the certificate has expired: renew it, SIGHUP"),
                Some(days @ ..WARNING_DAYS) => {
                    tracing::warn!(
                        listener,
                        days,
                        "the certificate expires soon: renew it, SIGHUP"
                    );
                }
                Some(_) => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, u64)>> {
        self.expiries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole days; `None`: it has expired.
fn days_left(not_after_secs: u64, now_secs: u64) -> Option<u64> {
    not_after_secs.checked_sub(now_secs).map(|secs| secs / DAY_SECS)
}

/// Those who renew by hand have a fortnight; what renews by itself does so earlier.
const WARNING_DAYS: u64 = 14;
const DAY_SECS: u64 = 24 * 60 * 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_replaces_what_was_known_of_a_listener() {
        let certificates = Certificates::default();
        certificates.set("a", 1);
        certificates.set("b", 2);
        certificates.set("a", 3);
        assert_eq!(certificates.expiries(), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
    }

    #[test]
    fn the_last_second_of_a_certificate_is_its_own() {
        assert_eq!(days_left(1_000_000, 1_000_000), Some(0));
        assert_eq!(days_left(1_000_000, 1_000_001), None);
        assert_eq!(days_left(WARNING_DAYS * DAY_SECS, 1), Some(WARNING_DAYS - 1));
    }
}
