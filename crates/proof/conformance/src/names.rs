//! Client ids and topics that no other test, and no earlier run, has used.

use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A topic prefix of two levels that nobody else uses, such as `will/4711-12`.
pub fn fresh(what: &str) -> String {
    format!("{what}/{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A client id that nobody else uses, within what every server has to take: 23 letters and digits.
pub fn fresh_client() -> String {
    format!("c{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
