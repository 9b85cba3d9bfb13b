//! Operators' commands that change something.

use codec::Reason;
use session::{Awaited, Respondent};

use crate::parts::client::Client;
use crate::parts::publications::{PUBLICATIONS_MAX, Pending};
use crate::words::asked::Asked;
use crate::words::clearing::frees_room;
use crate::words::command::{
    Answer, Command, PAGE_LOOKS, Publication, Swept, Wanted, Whom, rows_of,
};
use crate::words::ledger::NOBODY;
use crate::{Confirm, Ended, Event, GroupText, Name, Scope, Shard};

impl Shard {
    /// A command of an operator's, about one scope. It is answered by [`crate::Effects::answers`],
    /// most at once, under its ticket: not 0, and no other's before that.
    pub fn on_command(&mut self, ticket: u32, scope: Scope, command: &Command, now_ms: u64) {
        self.cx.now_ms = now_ms;
        let answer = match command {
            Command::Kick(client_id) => {
                Answer::Done(self.on_kick(Name::new(scope, client_id), now_ms))
            }
            Command::Purge(client_id) => {
                Answer::Done(self.on_purge(Name::new(scope, client_id), now_ms))
            }
            Command::EndBanned { from, within, whom } => {
                Answer::Ended(self.end_banned(*from, *within, whom))
            }
            Command::Disconnect { from, wanted } => {
                let swept = self.disconnect(*from, wanted);
                self.finish();
                Answer::Swept(swept)
            }
            Command::ForgetVerdicts { from, wanted } => {
                Answer::Swept(self.forget_verdicts(*from, wanted))
            }
            Command::CutOff { from } => {
                let swept = self.cut_off(scope, *from);
                self.finish();
                Answer::Swept(swept)
            }
            Command::Empty { from } => {
                let swept = self.empty(scope, *from);
                self.finish();
                Answer::Swept(swept)
            }
            Command::Publish(publication) => {
                return self.on_publication(ticket, scope, publication);
            }
            question => self.look(scope, question),
        };
        self.cx.effects.answers.push((ticket, answer));
    }

    /// Answers what changes nothing.
    fn look(&mut self, scope: Scope, question: &Command) -> Answer {
        match question {
            Command::Sessions { from, max, wanted } => {
                Answer::Sessions(self.look_at_sessions(*from, rows_of(*max), wanted))
            }
            Command::Session(client_id) => {
                let mut view = self.look_at_session(Name::new(scope, client_id));
                if let Some(details) = view.as_mut().and_then(|view| view.details.as_mut()) {
                    details.dropped = self.cx.droppers.of((scope, client_id), self.cx.now_ms);
                }
                Answer::Session(view)
            }
            Command::Subscriptions { client_id, from, max } => {
                let client = Name::new(scope, &**client_id);
                Answer::Subscriptions(self.look_at_subscriptions(client, *from, rows_of(*max)))
            }
            Command::AllSubscriptions { from, max, wanted } => {
                let (_sessions, max) = (&self.sessions, rows_of(*max));
                Answer::AllSubscriptions(self.look_at_all_subscriptions(*from, max, wanted))
            }
            Command::Explain(question) => Answer::Explained(self.sessions.explain(scope, question)),
            Command::Levels { parent, after, max } => {
                let parent = parent.as_deref().map(|parent| Name::new(scope, parent));
                let max = rows_of(*max) as usize;
                let (rows, has_more) = self.retained.levels(parent, scope, after.as_deref(), max);
                Answer::Levels { rows, has_more }
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
                Answer::Members(self.groups.look_at_members(group, *from, rows_of(*max)))
            }
            Command::Droppers { within } => {
                Answer::Droppers(self.cx.droppers.look(*within, self.cx.now_ms))
            }
            Command::Names(keys) => self.sessions.look_at_names(scope, keys),
            Command::Homes { client_id, scopes } => {
                Answer::Homes(self.sessions.look_at_homes(client_id, scopes))
            }
            Command::Retained { filter, after, max } => {
                let (filter, max) = (Name::new(scope, &**filter), rows_of(*max) as usize);
                let (messages, after) = self.retained.page(filter, after.clone(), max);
                Answer::Retained { messages, after }
            }
            // What changes something is answered by [`Self::on_command`].
            _ => Answer::Done(false),
        }
    }

    /// An operator ends a session, and its connection. Its will is due. False if there is none.
    pub fn on_purge(&mut self, client: Name<'_>, now_ms: u64) -> bool {
        self.cx.now_ms = now_ms;
        let Some(slot) = self.sessions.find(client) else { return false };
        if self.sessions.get(slot).is_some_and(|client| client.is_connected()) {
            self.end(slot, Ended::Administrative);
        }
        // It may have ended with its connection.
        if let Some(slot) = self.sessions.find(client) {
            let username = self.sessions.get(slot).and_then(|client| client.username.clone());
            let client_id = client.text().into();
            self.cx.report(client.scope(), Event::SessionPurged { client_id, username });
            self.end_session(slot);
        }
        self.finish();
        true
    }

    /// Looks at a page of sessions, of all scopes. Who connects from now on is the driver's to keep
    /// out.
    pub(crate) fn end_banned(
        &mut self,
        from: u32,
        within: Option<Scope>,
        whom: &Whom,
    ) -> Option<u32> {
        let end = self.sessions.slots_end();
        let looks_end = from.saturating_add(PAGE_LOOKS).min(end);
        for slot in from..looks_end {
            let is_there = |client: &Client| within.is_none_or(|scope| scope == client.scope);
            let client = self.sessions.get(slot).filter(|client| is_there(client));
            if client.is_some_and(|client| whom.means(client)) {
                self.end(slot, Ended::Banned);
            }
        }
        self.finish();
        (looks_end < end).then_some(looks_end)
    }

    pub(crate) fn on_publication(&mut self, ticket: u32, scope: Scope, publication: &Publication) {
        let level = self.level_of(&publication.topic, publication.durability);
        let message = publication.message(level, scope, self.cx.now_ms);
        let is_short = self.cx.shared.memory_is_short() && !frees_room(&message);
        if is_short || self.cx.publications.len() >= PUBLICATIONS_MAX {
            let answer = Answer::Published(Reason::QUOTA_EXCEEDED);
            return self.cx.effects.answers.push((ticket, answer));
        }
        let number = self.cx.publications.next_number();
        let mut asked = Asked::new(Confirm {
            publisher: self.cx.operator(),
            connection: number,
            ack_number: 0,
            packet_id: 0,
            respondent: Respondent::ASKING,
            serial: 0,
            is_will: false,
            owner: NOBODY,
            is_again: false,
        });
        let routed = match crate::words::topics::is_published(&publication.topic) {
            true => self.route(&message, Some(&mut asked)),
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
        self.cx.publications.wait_for(number, Pending { ticket, awaited, reason });
        self.cx.answer_publication(number);
        self.finish();
    }

    /// Ends the connections of those that are wanted.
    fn disconnect(&mut self, from: u32, wanted: &Wanted) -> Swept {
        let is_wanted = |client: &Client| {
            client.is_connected() && wanted.admits(client, client.queued(self.log.as_deref()))
        };
        let (slots, swept) = self.sessions.slots_where(from, is_wanted);
        for slot in slots {
            self.end(slot, Ended::Administrative);
        }
        swept
    }

    /// Those that are wanted forget what the authorization service has answered.
    fn forget_verdicts(&mut self, from: u32, wanted: &Wanted) -> Swept {
        let is_wanted = |client: &Client| wanted.admits(client, client.queued(self.log.as_deref()));
        let (slots, swept) = self.sessions.slots_where(from, is_wanted);
        for slot in slots {
            if let Some(client) = self.sessions.get_mut(slot) {
                client.forget_verdicts();
            }
        }
        swept
    }

    /// Ends the connections of a scope, of those sessions that have places from `from` on.
    pub(crate) fn cut_off(&mut self, scope: Scope, from: u32) -> Swept {
        let (slots, swept) = self.sessions.slots_of(scope, from, Client::is_connected);
        for slot in slots {
            self.end(slot, Ended::Administrative);
        }
        swept
    }

    /// Deletes what a scope has: its sessions, with what waits for them, and without their wills,
    /// then its retained messages.
    pub(crate) fn empty(&mut self, scope: Scope, from: u32) -> Swept {
        let (slots, mut swept) = self.sessions.slots_of(scope, from, |_| true);
        for slot in slots {
            self.delete_session(slot);
        }
        if swept.next.is_none() {
            self.cx.droppers.forget(scope);
            let (found, cleared) = self.clear_some_retained(scope);
            swept.found += found;
            // There may be more: the places of sessions are all looked at by now. What could not be
            // cleared is no reason to go on at once.
            swept.next = (cleared > 0).then(|| self.sessions.slots_end());
        }
        swept
    }

    pub(crate) fn delete_session(&mut self, slot: u32) {
        if let Some(client) = self.sessions.get_mut(slot) {
            client.will = None;
        }
        self.forget_will(slot);
        if self.sessions.get(slot).is_some_and(|client| client.is_connected()) {
            self.end(slot, Ended::Administrative);
        }
        // It may have ended with its connection.
        if self.sessions.get(slot).is_some() {
            self.end_session(slot);
        }
    }
}
