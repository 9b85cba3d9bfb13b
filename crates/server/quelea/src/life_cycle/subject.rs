//! Whom a line of the log is about, and what it says: what is repeated is summed up by it.

use std::borrow::Cow;
use std::net::IpAddr;

use broker::Event;
use serde_json::Value;
use session::QueueLimit;
use tracing::Level;

use super::Happened;
use super::happened::client_of;
use super::line_pace::About;
use super::table::EventKind;
use base::shown;
use config::namespaces::DEFAULT;

/// Lines with the same subject say the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Subject {
    pub(crate) about: About,
    pub(crate) level: Level,
    pub(crate) text: &'static str,
    /// Empty: the default one, or unknown.
    pub(crate) namespace: Box<str>,
    /// As it is shown in the log. Empty: unknown, or there is none.
    pub(crate) client: Box<str>,
    /// Of a shared subscription, a bridge or a rule.
    pub(crate) name: Box<str>,
    /// Of a client before admission: it has not proved its name yet.
    pub(crate) peer: Option<IpAddr>,
    /// What tells lines of this text apart: a reason, an action, a clause.
    pub(crate) what: Cow<'static, str>,
}

impl Subject {
    /// A client that is not admitted.
    pub(crate) fn of_visitor(
        about: About,
        peer: Option<IpAddr>,
        client: &str,
        what: &'static str,
    ) -> Self {
        let client = if client == "-" { "" } else { client };
        Self {
            about,
            level: Level::INFO,
            text: about.text(),
            namespace: Box::default(),
            client: client.into(),
            name: Box::default(),
            peer,
            what: what.into(),
        }
    }

    /// A bridge. None: lines of this kind are not limited.
    pub(crate) fn of_bridge(kind: &EventKind, bridge: &str, reason: &str) -> Option<Self> {
        let (about, (level, text)) = (kind.about?, kind.line?);
        let (namespace, client) = Default::default();
        let (name, what) = (bridge.into(), reason.to_owned().into());
        Some(Self { about, level, text, namespace, client, name, peer: None, what })
    }

    /// A stream or a rule. None: lines of this kind are not limited.
    pub(crate) fn of_routing(happened: &Happened<'_>) -> Option<Self> {
        let (about, (level, text)) = (happened.kind.about?, happened.kind.line?);
        let text_of = |name: &str| happened.data.get(name).and_then(Value::as_str).unwrap_or("");
        let namespace = happened.namespace.as_deref().filter(|name| *name != DEFAULT);
        Some(Self {
            about,
            level,
            text,
            namespace: namespace.unwrap_or_default().into(),
            client: Box::default(),
            name: text_of("rule").into(),
            peer: None,
            what: text_of("reason").to_owned().into(),
        })
    }

    /// Of an event, with how often it has happened. None: its line is not limited.
    pub(super) fn of_event(
        event: &Event,
        kind: &EventKind,
        namespace: &str,
    ) -> Option<(Self, u64)> {
        let (about, (level, text)) = (kind.about?, kind.line?);
        let (group, what, count): (&str, Cow<'static, str>, u64) = match event {
            Event::Dropped { reason, count, .. } => {
                ("", at_limit(reason.word(), reason.limit()), *count)
            }
            Event::GroupDropped { group, limit, count } => {
                (group, at_limit("shared_group", *limit), *count)
            }
            Event::Denied { action, count, .. } => ("", (*action).into(), *count),
            Event::Disconnected { ended, .. } => ("", ended.word(), 1),
            Event::Refused { count, .. }
            | Event::RetainedRefused { count, .. }
            | Event::TooManySubscriptions { count, .. } => ("", "".into(), *count),
            _ => ("", "".into(), 1),
        };
        let client = client_of(event).0.unwrap_or_default();
        let subject = Self {
            about,
            level,
            text,
            namespace: if namespace == DEFAULT { "" } else { namespace }.into(),
            client: shown(client).into(),
            name: shown(group).into(),
            peer: None,
            what,
        };
        Some((subject, count))
    }
}

/// A reason, with the limit of a full queue.
fn at_limit(reason: &'static str, limit: Option<QueueLimit>) -> Cow<'static, str> {
    limit.map_or(reason.into(), |limit| format!("{reason} ({})", limit.word()).into())
}
