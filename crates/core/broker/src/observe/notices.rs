//! What happened to somebody and is worth a line in the log: reported at most once a second for
//! each of them, with how often it was, however often it is.

use policy::{Action, Manner};
use session::{Dropped, QueueLimit};

use crate::parts::client::Client;
use crate::state::Context;
use crate::words::group_names::GroupName;
use crate::{Event, Scope};

/// How often a client is reported.
const NOTICES_EVERY_MS: u64 = 1000;

/// Groups and the like about which a shard has something to report. More are counted as lost
/// events.
const NOTICES_MAX: usize = 100;

/// Of a client.
#[derive(Debug, Default)]
pub(crate) struct ClientNotices {
    /// One of each kind.
    items: Vec<ClientItem>,
    reported_ms: u64,
}

#[derive(Debug)]
struct ClientItem {
    kind: NoticeKind,
    count: u64,
    /// Of the first; empty where the kind has none.
    topic: Box<str>,
    rule: Box<str>,
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
    items: Vec<(Subject, u64)>,
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
    fn count(&mut self, kind: NoticeKind, count: u64) -> bool {
        let known = self.items.iter_mut().find(|item| item.kind == kind);
        known.map(|item| item.count += count).is_some()
    }
}

impl ShardNotices {
    pub(crate) const fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl Client {
    /// Counts, and reports at once if nothing was reported for a second.
    pub(crate) fn note(&mut self, cx: &mut Context, kind: NoticeKind, topic: &str) {
        self.note_as(cx, kind, topic, Manner::default());
    }

    /// The same of something that was wanted in a certain manner.
    pub(crate) fn note_as(
        &mut self,
        cx: &mut Context,
        kind: NoticeKind,
        topic: &str,
        manner: Manner,
    ) {
        if !self.extras().notices.count(kind, 1) {
            let (topic, rule) = (topic.into(), rule_of(self, kind, topic, manner));
            self.extras().notices.items.push(ClientItem { kind, count: 1, topic, rule });
        }
        self.report_when_due(cx);
    }

    pub(crate) fn note_dropped_of(&mut self, cx: &mut Context, reason: Dropped, count: u64) {
        let kind = NoticeKind::Dropped(reason);
        if !self.extras().notices.count(kind, count) {
            let (topic, rule) = Default::default();
            self.extras().notices.items.push(ClientItem { kind, count, topic, rule });
        }
        self.report_when_due(cx);
    }

    fn report_when_due(&mut self, cx: &mut Context) {
        if self.extras().notices.due_ms() <= cx.now_ms {
            self.report_notices(cx);
        } else {
            self.arm_timer(cx);
        }
    }

    /// Tells what there is of it.
    pub(crate) fn report_notices(&mut self, cx: &mut Context) {
        let Some(extras) = self.extras.as_mut().filter(|extras| !extras.notices.items.is_empty())
        else {
            return;
        };
        extras.notices.reported_ms = cx.now_ms;
        let items = std::mem::take(&mut extras.notices.items);
        let scope = self.scope;
        let client_id = self.id.clone();
        let username = self.username.clone();
        let peer = self.session.link().map_or_else(Box::default, |link| link.peer.clone());
        for ClientItem { kind, count, topic, rule } in items {
            let (client_id, username, peer) = (client_id.clone(), username.clone(), peer.clone());
            let event = match kind {
                NoticeKind::Dropped(reason) => {
                    cx.droppers.count((scope, &client_id), reason, count, cx.now_ms);
                    Event::Dropped { client_id, reason, count }
                }
                NoticeKind::Refused => Event::Refused { client_id, username, peer, topic, count },
                NoticeKind::TooMany => {
                    Event::TooManySubscriptions { client_id, username, peer, filter: topic, count }
                }
                NoticeKind::Denied(action) => {
                    Event::Denied { client_id, username, peer, action, topic, rule, count }
                }
            };
            cx.report(scope, event);
        }
    }
}

impl Context {
    /// Counts what happened to no single client; reported within a second.
    pub(crate) fn note_of_shard(&mut self, subject: Subject, count: u64) {
        let items = &mut self.notices.items;
        match items.iter().position(|(known, _)| known.is_same(&subject)) {
            Some(place) => items[place].1 += count,
            None if items.len() < NOTICES_MAX => items.push((subject, count)),
            None => self.metrics.events_lost.add(1),
        }
    }

    pub(crate) fn note_group_dropped(&mut self, name: &GroupName, count: u64) {
        self.note_group_dropped_at(name, None, count);
    }

    /// The same, because its queue is full.
    pub(crate) fn note_group_dropped_at(
        &mut self,
        name: &GroupName,
        limit: Option<QueueLimit>,
        count: u64,
    ) {
        self.metrics.count_group_dropped(limit, count);
        let text = format!("$share/{}/{}", name.share, name.filter);
        let (scope, key, name) = (name.scope, name.key, text.into());
        self.note_of_shard(Subject::Group { scope, key, name, limit }, count);
    }

    /// Tells what there is of the shard.
    pub(crate) fn report_shard_notices(&mut self) {
        for (subject, count) in std::mem::take(&mut self.notices.items) {
            let (scope, event) = match subject {
                Subject::Group { scope, name: group, limit, .. } => {
                    (scope, Event::GroupDropped { group, limit, count })
                }
                Subject::RetainedRefused { scope, topic } => {
                    (scope, Event::RetainedRefused { topic, count })
                }
                Subject::JournalUnreadable(fault) => {
                    (Scope::FIRST, Event::JournalUnreadable { shard: self.id, fault, count })
                }
            };
            self.report(scope, event);
        }
    }
}

impl Subject {
    fn is_same(&self, other: &Self) -> bool {
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

/// The access rule that denied something.
fn rule_of(client: &Client, kind: NoticeKind, topic: &str, manner: Manner) -> Box<str> {
    let action = match kind {
        NoticeKind::Denied("subscribe") => Action::Subscribe,
        NoticeKind::Denied(_) => Action::Publish,
        NoticeKind::Dropped(_) | NoticeKind::Refused | NoticeKind::TooMany => {
            return Box::default();
        }
    };
    client.grants.why_denied(client.identity(), action, topic, manner)
}
