//! The certificates of the listeners, and when they expire.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use net::CertificateInfo;
use serde_json::json;

use crate::life_cycle::{Happened, table};
use base::moment;

/// By listener, in their order. Read for the metrics, written at the start and with each reload.
#[derive(Debug, Default)]
pub struct Certificates {
    own: Mutex<Vec<(String, Arc<CertificateInfo>)>>,
}

impl Certificates {
    /// Takes down which certificate a listener has now.
    pub fn set(&self, listener: &str, certificate: Arc<CertificateInfo>) {
        let mut own = self.lock();
        match own.iter_mut().find(|(name, _)| name == listener) {
            Some((_, known)) => *known = certificate,
            None => own.push((listener.to_owned(), certificate)),
        }
    }

    /// Listeners with their certificates.
    pub fn all(&self) -> Vec<(String, Arc<CertificateInfo>)> {
        self.lock().clone()
    }

    /// Listeners, and until when their certificates are good, in seconds since 1970.
    pub fn expiries(&self) -> Vec<(String, u64)> {
        self.lock().iter().map(|(name, own)| (name.clone(), own.not_after_secs)).collect()
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

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<CertificateInfo>)>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
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

    fn until(not_after_secs: u64) -> Arc<CertificateInfo> {
        Arc::new(CertificateInfo { not_after_secs, ..CertificateInfo::default() })
    }

    #[test]
    fn a_reload_replaces_what_was_known_of_a_listener() {
        let certificates = Certificates::default();
        certificates.set("a", until(1));
        certificates.set("b", until(2));
        certificates.set("a", until(3));
        assert_eq!(certificates.expiries(), [("a".to_owned(), 3), ("b".to_owned(), 2)]);
    }

    #[test]
    fn those_that_end_soon_are_reported() {
        let certificates = Certificates::default();
        for (listener, days) in [("gone", 0), ("soon", 13), ("later", 16)] {
            certificates.set(listener, until(days * DAY_SECS + 99));
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
