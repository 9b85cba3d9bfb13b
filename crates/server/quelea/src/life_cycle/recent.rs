//! The last events of clients, for who looks at one of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::Happened;

/// Events that are remembered. With texts of [`TEXT_BYTES_MAX`] they have less than 4 MiB.
const EVENTS_MAX: usize = 1_000;

/// Events of one client; its oldest goes first, so that one that comes and goes hides no other.
const OF_CLIENT_MAX: usize = 20;

/// Events a second that are remembered. A storm costs no more than these.
const PER_SECOND_MAX: u64 = 200;

/// An event with longer texts is not remembered.
const TEXT_BYTES_MAX: usize = 1_024;

#[derive(Debug, Default)]
pub(crate) struct Recent {
    events: Mutex<VecDeque<RecentEvent>>,
    /// The second of broker time, and behind it how many events it has had.
    second: AtomicU64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RecentEvent {
    namespace: Box<str>,
    client_id: Box<str>,
    /// Without `quelea.`.
    pub(crate) kind: &'static str,
    /// In broker time.
    pub(crate) at_ms: u64,
    pub(crate) data: Value,
}

impl Recent {
    /// Is there room for one more in this second?
    pub(super) fn admits(&self, now_ms: u64) -> bool {
        let second = now_ms / 1000;
        let before = self.second.load(Ordering::Relaxed);
        let count = if before >> COUNT_BITS == second { before & COUNT_MASK } else { 0 };
        if count >= PER_SECOND_MAX {
            return false;
        }
        // Two threads may count as one: it is a bound on work, not a promise.
        self.second.store(second << COUNT_BITS | (count + 1), Ordering::Relaxed);
        true
    }

    pub(super) fn put(&self, happened: &Happened<'_>, now_ms: u64) {
        let (Some(client_id), Some(namespace)) = (happened.client_id, &happened.namespace) else {
            return;
        };
        let is_long = |value: &Value| value.as_str().is_some_and(|it| it.len() > TEXT_BYTES_MAX);
        let mut texts = happened.data.as_object().into_iter().flatten();
        if client_id.len() > TEXT_BYTES_MAX || texts.any(|(_, value)| is_long(value)) {
            return;
        }
        let event = RecentEvent {
            namespace: namespace.clone(),
            client_id: client_id.into(),
            kind: happened.kind.name,
            at_ms: now_ms,
            data: happened.data.clone(),
        };
        let mut events = self.lock();
        let own = |it: &RecentEvent| it.is_of(namespace, client_id);
        if events.iter().filter(|it| own(it)).count() >= OF_CLIENT_MAX
            && let Some(oldest) = events.iter().position(own)
        {
            events.remove(oldest);
        }
        if events.len() >= EVENTS_MAX {
            events.pop_front();
        }
        events.push_back(event);
    }

    /// Those of one client, the newest first.
    pub(crate) fn of(&self, namespace: &str, client_id: &str) -> Vec<RecentEvent> {
        let events = self.lock();
        events.iter().rev().filter(|it| it.is_of(namespace, client_id)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RecentEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RecentEvent {
    fn is_of(&self, namespace: &str, client_id: &str) -> bool {
        *self.client_id == *client_id && *self.namespace == *namespace
    }
}

/// Bits of a count of events.
const COUNT_BITS: u32 = 16;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table;
    use super::*;

    fn happened(client_id: &str, data: Value) -> Happened<'_> {
        let namespace = Some("default".into());
        Happened {
            client_id: Some(client_id),
            namespace,
            ..Happened::of_broker(&table::CONNECTED, data)
        }
    }

    #[test]
    fn a_client_has_its_last_events_whatever_others_do() {
        let recent = Recent::default();
        recent.put(&happened("quiet", json!({ "n": 0 })), 1);
        for number in 0..10 * OF_CLIENT_MAX as u64 {
            recent.put(&happened("busy", json!({ "n": number })), number);
        }
        let own = recent.of("default", "busy");
        assert_eq!(own.len(), OF_CLIENT_MAX);
        assert_eq!(own[0].data["n"], 10 * OF_CLIENT_MAX as u64 - 1, "the newest first");
        assert_eq!(recent.of("default", "quiet").len(), 1);
        assert_eq!(recent.of("red", "quiet"), []);
        for number in 0..EVENTS_MAX {
            recent.put(&happened(&format!("c{number}"), json!({})), 9);
        }
        assert_eq!(recent.lock().len(), EVENTS_MAX);
        assert_eq!(recent.of("default", "quiet"), []);
    }

    #[test]
    fn long_texts_and_storms_are_left_out() {
        let recent = Recent::default();
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        recent.put(&happened(&long, json!({})), 1);
        recent.put(&happened("a", json!({ "detail": long })), 1);
        assert_eq!(recent.lock().len(), 0);
        let admitted = (0..1000).filter(|_| recent.admits(5_000)).count();
        assert_eq!(admitted as u64, PER_SECOND_MAX);
        assert!(recent.admits(6_000));
    }
}
