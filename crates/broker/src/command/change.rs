//! Commands that change something, and how one is given to a shard.

use std::collections::BTreeMap;

use codec::Reason;
use session::{Awaited, Message, MessageParts, NEVER, Respondent};

use crate::clients::client::{Client, address_of};
use crate::limits::ledger::NOBODY;
use crate::routing::asked::Asked;
use crate::routing::capacity::frees_room;
use crate::routing::publish::Routed;
use crate::{Confirm, Ended, Event, GroupText, Name, Scope, SessionKey, Shard};

use super::{Answer, Command, PAGE_LOOKS, Publication, Whom, rows_of};

/// Publishes that wait for those who keep their message. More are refused.
const PUBLICATIONS_MAX: usize = 1_024;

/// Publishes of operators that are not answered yet. Each has a number that is given once: a place
/// that answers late for one that was answered long ago means no other.
#[derive(Debug, Default)]
pub(crate) struct Publications {
    pending: BTreeMap<u64, Pending>,
    last_number: u64,
}

#[derive(Debug)]
struct Pending {
    /// Of its command.
    ticket: u32,
    /// Who has yet to answer.
    awaited: Awaited,
    reason: Reason,
}

impl Publications {
    /// Those that are not answered yet.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }
}

impl Whom {
    /// Only connected ones.
    fn means(&self, client: &Client) -> bool {
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

impl Shard {
    /// A command of an operator's, about one scope. It is answered by [`crate::Effects::answers`],
    /// most at once, under its ticket: not 0, and no other's before that.
    pub fn on_command(&mut self, ticket: u32, scope: Scope, command: &Command, now_ms: u64) {
        let answer = match command {
            Command::Sessions { from, max, wanted } => {
                Answer::Sessions(self.look_at_sessions(*from, rows_of(*max), wanted))
            }
            Command::Session(client_id) => {
                Answer::Session(self.look_at_session(Name::new(scope, client_id)))
            }
            Command::Subscriptions { client_id, from, max } => {
                let client = Name::new(scope, &**client_id);
                Answer::Subscriptions(self.look_at_subscriptions(client, *from, rows_of(*max)))
            }
            Command::Receivers { topic, from, max } => {
                let topic = Name::new(scope, &**topic);
                Answer::Receivers(self.look_at_receivers(topic, *from, rows_of(*max)))
            }
            Command::Groups { within, from, max } => {
                Answer::Groups(self.look_at_groups(*within, *from, rows_of(*max)))
            }
            Command::Members { share, filter, from, max } => {
                let group = GroupText::new(scope, share, filter);
                Answer::Members(self.look_at_members(group, *from, rows_of(*max)))
            }
            Command::Names(keys) => self.look_at_names(scope, keys),
            Command::Homes { client_id, scopes } => {
                Answer::Homes(self.look_at_homes(client_id, scopes))
            }
            Command::Retained { filter, after, max } => {
                let (filter, max) = (Name::new(scope, &**filter), rows_of(*max) as usize);
                let (messages, after) = self.retained.page(filter, after.clone(), max);
                Answer::Retained { messages, after }
            }
            Command::Kick(client_id) => {
                Answer::Done(self.on_kick(Name::new(scope, client_id), now_ms))
            }
            Command::Purge(client_id) => {
                Answer::Done(self.on_purge(Name::new(scope, client_id), now_ms))
            }
            Command::EndBanned { from, within, whom } => {
                Answer::Ended(self.end_banned(*from, *within, whom, now_ms))
            }
            Command::CutOff { from } => {
                let swept = self.cut_off(scope, *from, now_ms);
                self.finish(now_ms);
                Answer::Swept(swept)
            }
            Command::Empty { from } => {
                let swept = self.empty(scope, *from, now_ms);
                self.finish(now_ms);
                Answer::Swept(swept)
            }
            Command::Publish(publication) => {
                return self.on_publication(ticket, scope, publication, now_ms);
            }
        };
        self.effects.answers.push((ticket, answer));
    }

    /// An operator ends a session, and its connection. Its will is due. False if there is none.
    pub fn on_purge(&mut self, client: Name<'_>, now_ms: u64) -> bool {
        let Some(slot) = self.clients.find(client) else { return false };
        if self.clients.get(slot).is_some_and(|client| client.is_connected()) {
            self.end(slot, Ended::Administrative, now_ms);
        }
        // It may have ended with its connection.
        if let Some(slot) = self.clients.find(client) {
            let username = self.clients.get(slot).and_then(|client| client.username.clone());
            let client_id = client.text().into();
            self.tell(client.scope(), Event::SessionPurged { client_id, username });
            self.end_session(slot, now_ms);
        }
        self.finish(now_ms);
        true
    }

    /// Looks at a page of sessions, of all scopes. Who connects from now on is the driver's to keep
    /// out.
    fn end_banned(
        &mut self,
        from: u32,
        within: Option<Scope>,
        whom: &Whom,
        now_ms: u64,
    ) -> Option<u32> {
        let end = self.clients.slots_end();
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        for slot in from..looks_end {
            let is_there = |client: &Client| within.is_none_or(|scope| scope == client.scope);
            let client = self.clients.get(slot).filter(|client| is_there(client));
            if client.is_some_and(|client| whom.means(client)) {
                self.end(slot, Ended::Banned, now_ms);
            }
        }
        self.finish(now_ms);
        (looks_end < end).then_some(looks_end)
    }

    fn on_publication(
        &mut self,
        ticket: u32,
        scope: Scope,
        publication: &Publication,
        now_ms: u64,
    ) {
        let message = self.message_of(scope, publication, now_ms);
        let is_short = self.shared.memory_is_short() && !frees_room(&message);
        if is_short || self.publications.len() >= PUBLICATIONS_MAX {
            let answer = Answer::Published(Reason::QUOTA_EXCEEDED);
            return self.effects.answers.push((ticket, answer));
        }
        self.publications.last_number += 1;
        let number = self.publications.last_number;
        let mut asked = Asked::new(Confirm {
            publisher: self.operator(),
            connection: number,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial: 0,
            is_will: false,
            payer: NOBODY,
            is_again: false,
        });
        let routed = match crate::names::topics::is_published(&publication.topic) {
            true => self.route(&message, Some(&mut asked), now_ms),
            false => self.clear_unheard(&message, &mut asked),
        };
        let reason = match routed.refused {
            Some(reason) => reason,
            None if routed.has_matched() => Reason::SUCCESS,
            None => Reason::NO_MATCHING_SUBSCRIBERS,
        };
        let awaited = match routed.refused {
            Some(_) => Awaited::default(),
            None => asked.take_awaited().unwrap_or_default(),
        };
        self.publications.pending.insert(number, Pending { ticket, awaited, reason });
        self.answer_publication(number);
        self.finish(now_ms);
    }

    /// Clears what an older version retained on a topic that no client may publish to. Nobody hears
    /// of it: some clients end their connection over such a name.
    fn clear_unheard(&mut self, message: &Message, asked: &mut Asked) -> Routed {
        let mut routed = Routed::default();
        if message.retain() && message.payload().is_empty() {
            self.retain(message, Some(asked), &mut routed);
        } else {
            routed.refused = Some(Reason::TOPIC_NAME_INVALID);
        }
        routed
    }

    fn message_of(&self, scope: Scope, publication: &Publication, now_ms: u64) -> Message {
        let Publication { topic, properties, payload, qos, retain, expiry_secs, durability } =
            publication;
        let level = match self.store {
            Some(_) => self.shared.settings.level_of(topic, *durability),
            None => 0,
        };
        Message::new(&MessageParts {
            topic,
            properties,
            payload,
            qos: *qos,
            retain: *retain,
            expires_at_ms: expiry_secs.map_or(NEVER, |secs| now_ms + u64::from(secs) * 1000),
            publisher: SessionKey::NOBODY.as_u64(),
            level,
            scope: scope.number(),
        })
    }

    /// Stands for the publisher of a publish that has no session: no session has this generation.
    const fn operator(&self) -> SessionKey {
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

    fn answer_publication(&mut self, number: u64) {
        let Some(pending) = self.publications.pending.get(&number) else { return };
        if pending.awaited.is_empty() {
            let (ticket, answer) = (pending.ticket, Answer::Published(pending.reason));
            self.publications.pending.remove(&number);
            self.effects.answers.push((ticket, answer));
        }
    }
}
