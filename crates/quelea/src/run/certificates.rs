//! When the certificates of the listeners expire.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::json;

use crate::life_cycle::{Happened, table};
use base::moment;

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

    /// Logs those that have expired or will before long, and says which they are.
    pub(crate) fn warn(&self, now_secs: u64) -> Vec<Happened<'static>> {
        let mut warnings = Vec::new();
        for (listener, not_after_secs) in self.expiries() {
            let days = days_left(not_after_secs, now_secs);
            let kind = match days {
                None => &table::CERTIFICATE_EXPIRED,
                Some(..WARNING_DAYS) => &table::CERTIFICATE_EXPIRING,
                Some(_) => continue,
            };
            let data = json!({
                "listener": listener,
                "expires_at": moment::text_of(not_after_secs),
                "days_left": days,
            });
            let warning = Happened::of_broker(kind, data);
            warning.log();
            warnings.push(warning);
        }
        warnings
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
    fn those_that_end_soon_are_reported() {
        let certificates = Certificates::default();
        for (listener, days) in [("gone", 0), ("soon", 13), ("later", 16)] {
            certificates.set(listener, days * DAY_SECS + 99);
        }
        let warnings: Vec<_> = certificates.warn(DAY_SECS).into_iter().map(|it| it.data).collect();
        assert_eq!(warnings.len(), 2);
        assert_eq!(
            (&warnings[0]["listener"], &warnings[0]["days_left"]),
            (&json!("gone"), &json!(null))
        );
        assert_eq!(
            (&warnings[1]["listener"], &warnings[1]["days_left"]),
            (&json!("soon"), &json!(12))
        );
        assert_eq!(warnings[1]["expires_at"], "1970-01-14T00:01:39Z");
    }

    #[test]
    fn the_last_second_of_a_certificate_is_its_own() {
        assert_eq!(days_left(1_000_000, 1_000_000), Some(0));
        assert_eq!(days_left(1_000_000, 1_000_001), None);
        assert_eq!(days_left(WARNING_DAYS * DAY_SECS, 1), Some(WARNING_DAYS - 1));
    }
}
