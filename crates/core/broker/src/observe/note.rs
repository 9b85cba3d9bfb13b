//! What happened to somebody and is worth a line in the log: reported at most once a second for
//! each of them, with how often it was, however often it is.

use policy::{Action, Manner};
use session::{Dropped, QueueLimit};

use crate::parts::client::Client;
use crate::parts::notices::{ClientItem, NoticeKind, Subject};
use crate::state::Context;
use crate::words::group_names::GroupName;
use crate::{Event, Scope};

/// Groups and the like about which a shard has something to report. More are counted as lost
/// events.
const NOTICES_MAX: usize = 100;

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
