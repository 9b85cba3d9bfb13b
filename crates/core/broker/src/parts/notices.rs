//! What happened often, counted until it is reported.

use session::{Dropped, QueueLimit};

use crate::Scope;

/// How often a client is reported.
pub(crate) const NOTICES_EVERY_MS: u64 = 1000;

/// Of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientNotices {
    /// One of each kind.
    pub(crate) items: Vec<ClientItem>,
    pub(crate) reported_ms: u64,
}

#[derive(Debug)]
pub(crate) struct ClientItem {
    pub(crate) kind: NoticeKind,
    pub(crate) count: u64,
    /// Of the first; empty where the kind has none.
    pub(crate) topic: Box<str>,
    pub(crate) rule: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoticeKind {
    /// Deliveries to the client.
    Dropped(Dropped),
    /// Its publishes, for lack of room.
    Refused,
    /// What it wanted, by the access rules.
    Denied(&'static str),
    /// Its filters: it has, or asks for, more than it may.
    TooMany,
}

/// Of a shard.
#[derive(Debug, Default)]
pub(crate) struct ShardNotices {
    pub(crate) items: Vec<(Subject, u64)>,
}

#[derive(Debug)]
pub(crate) enum Subject {
    /// Messages of a shared subscription were dropped.
    Group { scope: Scope, key: u64, name: Box<str>, limit: Option<QueueLimit> },
    /// Retained messages were not kept; the topic is that of the first.
    RetainedRefused { scope: Scope, topic: Box<str> },
    /// The journal could not be read; the fault is the first.
    JournalUnreadable(storage::Fault),
}

impl ClientNotices {
    /// When there is something to report, or [`session::NEVER`].
    pub(crate) fn due_ms(&self) -> u64 {
        if self.items.is_empty() { session::NEVER } else { self.reported_ms + NOTICES_EVERY_MS }
    }

    /// Was there never anything? The time of the last report has to be remembered.
    pub(crate) const fn is_unused(&self) -> bool {
        self.items.is_empty() && self.reported_ms == 0
    }

    /// Counts what is known to have happened already. False: it is new.
    pub(crate) fn count(&mut self, kind: NoticeKind, count: u64) -> bool {
        let known = self.items.iter_mut().find(|item| item.kind == kind);
        known.map(|item| item.count += count).is_some()
    }
}

impl ShardNotices {
    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Subject {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Group { key, limit, .. }, Self::Group { key: other, limit: by, .. }) => {
                key == other && limit == by
            }
            (Self::RetainedRefused { scope, .. }, Self::RetainedRefused { scope: other, .. }) => {
                scope == other
            }
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }
}
