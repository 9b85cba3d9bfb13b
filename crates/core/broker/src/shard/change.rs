//! Commands that change something, and how one is given to a shard.

use std::collections::BTreeMap;

use codec::Reason;
use session::{Awaited, Message, MessageParts, NEVER};

use crate::durable::Durable;
use crate::parts::client::{Client, address_of};
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::publish::check::Routed;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::command::{Answer, Publication, Whom};
use crate::{Confirm, Scope, SessionKey};

/// Publishes that wait for those who keep their message. More are refused.
pub(crate) const PUBLICATIONS_MAX: usize = 1_024;

/// Publishes of operators that are not answered yet. Each has a number that is given once: a place
/// that answers late for one that was answered long ago means no other.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    pending: BTreeMap<u64, Pending>,
    last_number: u64,
}

#[derive(Debug)]
pub(crate) struct Pending {
    /// Of its command.
    pub(crate) ticket: u32,
    /// Who has yet to answer.
    pub(crate) awaited: Awaited,
    pub(crate) reason: Reason,
}

impl Publications {
    /// The number of a publish, never given twice.
    pub(crate) const fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn wait_for(&mut self, number: u64, pending: Pending) {
        self.pending.insert(number, pending);
    }

    /// Those that are not answered yet.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl Whom {
    /// Only connected ones.
    pub(crate) fn means(&self, client: &Client) -> bool {
        let Some(link) = client.session.link() else { return false };
        match self {
            Self::Client(client_id) => *client_id == client.id,
            Self::User(name) => client.username.as_deref() == Some(name),
            Self::Addresses(addresses) => {
                address_of(&link.peer).is_some_and(|address| addresses.contains(&address))
            }
        }
    }
}

impl Retained {
    /// Clears what an older version retained on a topic that no client may publish to. Nobody hears
    /// of it: some clients end their connection over such a name.
    pub(crate) fn clear_unheard(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        message: &Message,
        asked: &mut Asked,
    ) -> Routed {
        let mut routed = Routed::default();
        if message.retain() && message.payload().is_empty() {
            self.retain(cx, sessions, durable, message, Some(asked), &mut routed);
        } else {
            routed.refused = Some(Reason::TOPIC_NAME_INVALID);
        }
        routed
    }
}

impl Publication {
    pub(crate) fn message(&self, cx: &Context, durable: &Durable, scope: Scope) -> Message {
        let now_ms = cx.now_ms;
        let Self { topic, properties, payload, qos, retain, expiry_secs, durability } = self;
        let level = durable.level_of(cx, topic, *durability);
        Message::new(&MessageParts {
            topic,
            properties,
            payload,
            qos: *qos,
            retain: *retain,
            expires_at_ms: expiry_secs.map_or(NEVER, |secs| now_ms + u64::from(secs) * 1000),
            publisher: SessionKey::NOBODY.as_u64(),
            author: 0,
            level,
            scope: scope.number(),
        })
    }
}

impl Context {
    /// Stands for the publisher of a publish that has no session: no session has this generation.
    pub(crate) const fn operator(&self) -> SessionKey {
        SessionKey::new(self.id, 0, 1)
    }

    /// One has answered to a publisher that is no session.
    #[cold]
    pub(crate) fn on_confirmed_to_operator(&mut self, confirm: &Confirm, reason: Reason) {
        if confirm.publisher != self.operator() {
            return;
        }
        let number = confirm.connection;
        if let Some(pending) = self.publications.pending.get_mut(&number)
            && pending.awaited.remove(confirm.respondent)
        {
            // A refusal by any of them counts; that it has no subscriber does not.
            if reason.is_error() && !pending.reason.is_error() {
                pending.reason = reason;
            }
            self.answer_publication(number);
        }
    }

    pub(crate) fn answer_publication(&mut self, number: u64) {
        let Some(pending) = self.publications.pending.get(&number) else { return };
        if pending.awaited.is_empty() {
            let (ticket, answer) = (pending.ticket, Answer::Published(pending.reason));
            self.publications.pending.remove(&number);
            self.effects.answers.push((ticket, answer));
        }
    }
}
