//! Who has changed what: a line of the log for each call, and the last of them in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use base::{Clock, moment};

use super::call::Call;
use super::paging::bad_cursor;
use super::problem::cut;
use super::route::{Method, Outcome, Route};
use super::schema::{Rows, record};
use super::{Api, json};

record! {
    /// A call that has changed something, or was refused.
    AuditEntry {
        /// When it was answered.
        time: String,
        /// The username of the caller, or `token`.
        caller: String,
        /// POST, PUT or DELETE.
        method: String,
        /// Path and query of the call.
        call: String,
        /// The namespace; empty: the call is not about one.
        namespace: String,
        /// The topic of the body, or the banned name.
        subject: String,
        /// The status of the answer.
        status: u16,
        /// The cause of a failure; empty: it succeeded.
        detail: String,
    }
}

/// Entries in memory; of more the oldest go.
const ENTRIES_MAX: usize = 1_000;

/// Bytes of a text of an entry.
const TEXT_BYTES_MAX: usize = 1_024;

/// The last calls, the newest first.
#[derive(Debug, Default)]
pub(super) struct AuditLog(Mutex<Entries>);

#[derive(Debug, Default)]
struct Entries {
    /// Of all that there ever were.
    count: u64,
    latest: VecDeque<AuditEntry>,
}

/// Who does what.
pub(super) struct Audit {
    pub(super) log: (Arc<AuditLog>, Clock),
    pub(super) route: &'static Route,
    pub(super) name: String,
    pub(super) target: String,
    /// What it is in; empty: it is not about one.
    pub(super) namespace: String,
    /// What the body is about: a topic, or who is banned.
    pub(super) subject: String,
}

impl Audit {
    /// What came of it: a line of its own for each call that changes something, or was to.
    pub(super) fn note(&self, outcome: &Outcome) {
        if self.route.method == Method::Get {
            return;
        }
        let (status, detail) = match outcome {
            Ok(_) => (self.route.status(), ""),
            Err(problem) => (problem.status, problem.detail.as_str()),
        };
        let (method, status) = (self.route.method.as_str(), status.as_u16());
        let (log, clock) = &self.log;
        log.put(AuditEntry {
            time: moment::text_of(clock.wall_secs()),
            caller: cut(&self.name, TEXT_BYTES_MAX),
            method: method.to_owned(),
            call: cut(&self.target, TEXT_BYTES_MAX),
            namespace: cut(&self.namespace, TEXT_BYTES_MAX),
            subject: cut(&self.subject, TEXT_BYTES_MAX),
            status,
            detail: cut(detail, TEXT_BYTES_MAX),
        });
        tracing::info!(
            caller = &*base::shown(&self.name),
            method,
            call = &*base::shown(&self.target),
            namespace = &*base::shown(&self.namespace),
            subject = &*base::shown(&self.subject),
            status,
            // A line that is too long for the log is lost.
            detail = cut(detail, TEXT_BYTES_MAX),
            "audit"
        );
    }
}

impl AuditLog {
    fn put(&self, entry: AuditEntry) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.count += 1;
        entries.latest.push_front(entry);
        entries.latest.truncate(ENTRIES_MAX);
    }

    /// So many behind the newest `before`-th of all, and the number of the last one if there are
    /// more.
    fn page(&self, before: Option<u64>, max: usize) -> (Vec<AuditEntry>, Option<u64>) {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = before.unwrap_or(u64::MAX).min(entries.count);
        let newer = (entries.count - before) as usize;
        let rows: Vec<_> = entries.latest.iter().skip(newer).take(max).cloned().collect();
        let has_more = newer + rows.len() < entries.latest.len();
        let last = before - rows.len() as u64;
        (rows, has_more.then_some(last))
    }
}

pub(crate) fn list(api: &Api, call: &Call) -> Outcome {
    let read = |text: &str| text.parse().map_err(|_| bad_cursor(text));
    let before = call.text("cursor").map(read).transpose()?;
    let (items, next) = api.audit.page(before, call.limit());
    json(&Rows { items, cursor: next.map(|number| number.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: usize) -> AuditEntry {
        AuditEntry {
            time: String::new(),
            caller: number.to_string(),
            method: String::new(),
            call: String::new(),
            namespace: String::new(),
            subject: String::new(),
            status: 200,
            detail: String::new(),
        }
    }

    #[test]
    fn the_last_calls_are_listed_once_while_others_come() {
        let log = AuditLog::default();
        assert_eq!(log.page(None, 10), (vec![], None));
        (0..ENTRIES_MAX + 5).for_each(|number| log.put(entry(number)));
        let (mut listed, mut before) = (Vec::new(), None);
        loop {
            let (rows, next) = log.page(before, 300);
            listed.extend(rows.into_iter().map(|row| row.caller.parse::<usize>().unwrap()));
            let Some(next) = next else { break };
            log.put(entry(9_999));
            before = Some(next);
        }
        let newest = ENTRIES_MAX + 4;
        assert_eq!(listed, (newest + 1 - listed.len()..=newest).rev().collect::<Vec<_>>());
        assert!(listed.len() >= ENTRIES_MAX - 5);
        assert_eq!(log.page(Some(0), 10).0.len(), 0);
    }
}
