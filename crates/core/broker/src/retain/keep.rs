//! Retained messages: each topic has one home shard, subscribers fetch in pages.
//!
//! A page is asked for only when the subscriber has room for it, so that a subscription to a
//! million retained messages neither floods its outbox nor holds up anybody else.

use std::sync::Arc;

use codec::{QoS, Reason, RetainHandling, SubscribeOptions};
use policy::Action;
use session::{Account, Delivery, Message, Respondent, Sent, Terms};
use topic::{Subscription, has_wildcard};

use crate::Shard;
use crate::deliver::copies::{Routed, identifiers_of};
use crate::deliver::kept::unlogged;
use crate::log::facts::Origin;
use crate::parts::barrier::{Behind, RetainedFlaw};
use crate::parts::client::{AskedPage, Client, Extras};
use crate::parts::notices::Subject;
use crate::parts::retained::PAGE_MESSAGES;
use crate::words::asked::Asked;
use crate::words::clearing::frees_room;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::name::is_of_broker;
use crate::words::options;
use crate::words::reasons::reason_of;
use crate::words::record_location::RecordLocation;
use crate::{Confirm, Mail, Name, RetainedQuery, Scope};

/// Bytes that a subscriber may have in its outbox when the next page is asked for. More would keep
/// a worker busy with one subscriber while others wait.
const CALM_BYTES_MAX: usize = 64 * 1024;

impl Shard {
    pub(crate) fn offer_retained(
        &mut self,
        slot: u32,
        query: &RetainedQuery,
        subscription: Subscription,
        message: &Message,
    ) {
        let now_ms = self.cx.now_ms;
        let Subscription { options: bits, identifier, .. } = subscription;
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        if message.is_expired(now_ms) {
            return;
        }
        // A newer message on the topic has overtaken the page.
        let is_stale = client.extras.as_ref().is_some_and(|extras| {
            let fresh = extras.retained_fresh.iter();
            let mut newer = fresh.filter(|(_, asks)| *asks >= query.ask);
            newer.any(|(topic, _)| **topic == *message.topic())
        });
        // By the rules of now: they may have changed since the page was asked for.
        let is_denied = !client.grants.allows(client.identity(), Action::Receive, message.topic());
        self.cx.flow.work.charge(client.grants.topic_units());
        // MQTT-3.8.3-3: whatever session of the client ID has published it.
        let is_own = bits & options::NO_LOCAL != 0 && message.author() == client.name().author();
        if is_stale || is_denied || is_own {
            return;
        }
        let terms = Terms {
            identifiers: identifiers_of(identifier),
            group: 0,
            serial: 0,
            qos: options::qos(bits).min(message.qos()),
            // MQTT-3.3.1-8: sent because of a subscription, so the flag is set.
            retain: true,
        };
        let mut terms = terms;
        if client.journals_packet_id(terms.qos) {
            terms = unlogged(terms);
            if client.session.has_window() {
                let message = message.clone();
                return self.dispatch_aside(slot, Delivery { message, terms });
            }
        }
        client.drop_expired(&mut self.cx);
        let limits = client.limits.queue;
        let sent = Sent { qos: terms.qos, payload_bytes: message.payload().len() };
        let offered = client.session.offer_or_wait(message, terms, &limits, now_ms);
        client.after_offer(&mut self.cx, sent, offered);
    }

    /// Removes some of the retained messages that have expired.
    pub(crate) fn sweep_retained(&mut self) {
        for message in self.retained.look_for_expired(self.cx.now_ms) {
            let old = self.retained.remove(Name::of(&message), &self.cx.effects);
            if let (Some(old), Some(log)) = (old, &mut self.log) {
                // It is expired in the next life, too, so nothing has to say so.
                log.release(old);
            }
        }
    }

    /// Sends a message to the home of its topic, which keeps it.
    pub(crate) fn retain(
        &mut self,
        message: &Message,
        asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let home = self.cx.shared.place_of_topic(Name::of(message));
        if home == self.cx.id {
            return self.retain_at_home(message, asked, routed);
        }
        // Its home is asked when it writes the message down, or when the store is about full.
        let is_kept = self.log.is_some() && message.level() > 0;
        let asked = asked.filter(|_| is_kept || self.lacks_room_to_retain(message));
        let confirm = asked.map(|asked| asked.ask(Respondent::RETAINED));
        let owner = self.sessions.owner_of(message).cloned();
        self.cx.send(home, Mail::Retain { message: message.clone(), confirm, owner });
    }

    fn retain_at_home(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        // What stands before it here must not be overtaken.
        let is_late = self.has_late_mail();
        if let Some(asked) = asked.as_deref_mut()
            && (is_late || asked.confirm().serial != 0)
        {
            return self.retain_here(message, asked);
        }
        let owner = self.sessions.owner_of(message).cloned();
        let confirm = asked.as_deref_mut().map(|asked| asked.ask(Respondent::RETAINED));
        let kept = self.keep_retained(message, confirm, owner.as_ref());
        if let Some(asked) = asked.filter(|_| kept != Ok(true)) {
            asked.take_back(Respondent::RETAINED);
        }
        routed.refused = kept.err();
    }

    /// The same for a message of which it is too late to say that it should come later: should its
    /// home be here and have no room for a moment, it waits there.
    pub(crate) fn retain_or_wait(
        &mut self,
        message: &Message,
        asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let home = self.cx.shared.place_of_topic(Name::of(message));
        match asked {
            Some(asked) if home == self.cx.id => self.retain_here(message, asked),
            asked => self.retain(message, asked, routed),
        }
    }

    fn retain_here(&mut self, message: &Message, asked: &mut Asked) {
        let owner = self.sessions.owner_of(message).cloned();
        let confirm = Some(asked.ask(Respondent::RETAINED));
        self.on_retain_mail(message.clone(), confirm, owner);
    }

    /// A message to be retained. One that is mailed again must not replace what came after it.
    pub(crate) fn on_retain_mail(
        &mut self,
        message: Message,
        confirm: Option<Confirm>,
        owner: Option<Arc<Account>>,
    ) {
        if confirm.is_some() && self.has_late_mail() {
            return self.put_off_mail(Mail::Retain { message, confirm, owner });
        }
        let serial = confirm.map_or(0, |confirm| confirm.serial);
        let source = confirm.map_or(0, |confirm| self.cx.source_of(confirm, 1));
        if let Some(confirm) = confirm.filter(|confirm| self.has_had(*confirm, 1)) {
            return self.answer_repetition(confirm, message);
        }
        let has_room = self.retained.has_room_for(&message, owner.as_ref(), &self.cx.effects);
        let is_clear = message.payload().is_empty();
        match self.keep_retained(&message, confirm, owner.as_ref()) {
            // One that was taken on, and one that only has to wait for the next segment.
            Err(_) if has_room && confirm.is_some() && self.waits_for_disk(confirm) => {
                return self.put_off_mail(Mail::Retain { message, confirm, owner });
            }
            Err(reason) => self.cx.answer(confirm, reason, message),
            Ok(false) => self.cx.answer(confirm, Reason::SUCCESS, message),
            Ok(true) => {}
        }
        if let Some(log) = &mut self.log {
            log.note_seen(source, serial);
            if serial != 0 && is_clear {
                log.write_seen(source);
            }
        }
    }

    /// Keeps, replaces or clears a retained message (MQTT-3.3.1-5, MQTT-3.3.1-6). True: `confirm`
    /// is answered when it is written down. Err: why it was not kept.
    pub(crate) fn keep_retained(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
        owner: Option<&Arc<Account>>,
    ) -> Result<bool, Reason> {
        if message.payload().is_empty() {
            return self.clear_retained(message, confirm);
        }
        let Self { cx, retained, log, .. } = self;
        let name = Name::of(message);
        if !retained.has_room_for(message, owner, &cx.effects)
            || log.as_ref().is_some_and(|log| log.has_late_retained(name))
        {
            cx.metrics.retained_refused.add(1);
            let (scope, topic) = (Scope::of(message), message.topic().into());
            cx.note_of_shard(Subject::RetainedRefused { scope, topic }, 1);
            return Err(Reason::QUOTA_EXCEEDED);
        }
        let taken = confirm.filter(|confirm| confirm.serial != 0);
        let origin = taken.map(|it| Origin { source: cx.source_of(it, 1), serial: it.serial });
        let place = match log {
            Some(log) => log.write_retained(message, origin, confirm, owner),
            None => Ok(RecordLocation::NOWHERE),
        };
        let place = place.map_err(|error| reason_of(&error))?;
        let old = retained.insert(message, place, owner, &cx.effects);
        if let (Some(old), Some(log)) = (old, log) {
            match place.is_some() {
                true => log.release(old),
                false => log.unwrite_retained(message, old),
            }
        }
        Ok(place.is_some() && confirm.is_some())
    }

    /// Where there is nothing to clear, the acknowledgement waits for the journal all the same:
    /// what is repeated here may not be committed yet.
    fn clear_retained(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, Reason> {
        let Self { cx, retained, log, .. } = self;
        let name = Name::of(message);
        let is_written = retained.place_of(name).is_some_and(RecordLocation::is_some);
        let answers_later = match log {
            Some(log) => log.clear_retained(message, is_written, confirm),
            None => Ok(false),
        };
        let answers_later = answers_later.map_err(|error| reason_of(&error))?;
        if let (Some(old), Some(log)) = (retained.remove(name, &cx.effects), log) {
            log.release(old);
        }
        Ok(answers_later)
    }

    /// May it be refused where its topic has its home? Then its publisher waits for the word.
    pub(crate) fn lacks_room_to_retain(&self, message: &Message) -> bool {
        if !message.retain() || frees_room(message) {
            return false;
        }
        let (shared, bytes) = (&self.cx.shared, message.heap_bytes() as u64);
        let owner = self.sessions.owner_of(message);
        shared.lacks_room_to_retain(1, bytes)
            || owner.is_some_and(|owner| shared.lacks_room_to_retain_for(owner, bytes))
    }

    /// The account that is charged for the bytes of a message in a journal, by its number. Without
    /// an owner in the mail the publisher on this shard is charged: it may be its will.
    #[inline]
    pub(crate) fn owner_number(&self, message: &Message, asked: Option<&Asked>) -> u32 {
        match asked {
            Some(asked) => asked.confirm().owner,
            None if message.level() == 0 || message.qos() == QoS::AtMostOnce => NOBODY,
            None => self.sessions.owner_of(message).map_or(NOBODY, |owner| owner.number()),
        }
    }

    /// Asks for the retained messages of a filter from the beginning.
    fn ask_retained(&mut self, slot: u32, filter: &str) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        let (subscriber, scope) = (client.key, client.scope);
        let extras = client.extras();
        extras.retained_asks = extras.retained_asks.wrapping_add(1);
        let query = RetainedQuery {
            subscriber,
            home: 0,
            scope,
            filter: filter.into(),
            ask: extras.retained_asks,
            page: 0,
            is_settled: false,
            after: None,
            shard: 0,
        };
        if has_wildcard(filter) {
            let homes = self.cx.shared.homes;
            let of_broker = is_of_broker(filter.as_bytes());
            for home in 0..if of_broker { homes.shards() } else { homes.places() } {
                self.ask_page(slot, RetainedQuery { home, ..query.clone() });
            }
        } else {
            let home = self.cx.shared.place_of_topic(Name::new(scope, filter));
            self.ask_page(slot, RetainedQuery { home, ..query });
        }
    }

    /// Do all other shards know of the subscriptions whose retained messages it wants?
    fn are_wanted_settled(&self, slot: u32) -> bool {
        let extras = self.sessions.get(slot).and_then(|client| client.extras.as_ref());
        let barrier = extras.map_or(0, |extras| extras.retained_barrier);
        barrier == 0 || self.cx.flow.barrier.is_passed(self.cx.id, barrier)
    }

    /// With several cells, what the session wants is asked for behind the next barrier.
    pub(crate) fn want_behind_barrier(&mut self, slot: u32) {
        let number = self.cx.flow.barrier.next_number();
        let is_early = self.cx.flow.barrier.flaw == Some(RetainedFlaw::AsksEarly);
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        let (session, extras) = (client.key, client.extras());
        if !extras.retained_wanted.is_empty() && extras.retained_barrier != number && !is_early {
            extras.retained_barrier = number;
            self.cx.flow.barrier.push(Behind::Wanted(session));
        }
    }

    fn ask_page(&mut self, slot: u32, mut query: RetainedQuery) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        query.page = self.retained.next_page();
        let asked = AskedPage { number: query.page, filter: Some(query.filter.clone()) };
        client.extras().retained_asked.push(asked);
        self.cx.send(query.home, Mail::QueryRetained(Box::new(query)));
    }

    /// Asks for further pages while the subscriber has room.
    pub(crate) fn ask_next_page(&mut self, slot: u32) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        let is_calm = client
            .session
            .link()
            .is_some_and(|link| link.has_room() && link.outbox.len() <= CALM_BYTES_MAX)
            // What waits for the journal is in no outbox yet.
            && !client.session.outgoing.has_withheld()
            && client.session.outgoing.queued() < PAGE_MESSAGES;
        let Some(extras) = &mut client.extras else { return };
        if !is_calm {
            return;
        }
        if let Some(query) = extras.retained_next.pop() {
            return self.ask_page(slot, query);
        }
        while self.are_wanted_settled(slot)
            && let Some(filter) = self.sessions.get_mut(slot).and_then(Client::next_wanted)
        {
            self.ask_retained(slot, &filter);
        }
        if let Some(client) = self.sessions.get_mut(slot) {
            client.drop_extras_if_unused();
        }
    }
}

impl Client {
    /// A SUBSCRIBE decides on the retained messages of its filter, those included that an earlier
    /// one has asked for and that are still to be sent. They are once there is room for them
    /// ([`Shard::ask_next_page`]), with the options of the subscription that there is then.
    /// `is_other`: these have changed.
    pub(crate) fn handle_retained(
        &mut self,
        filter: &str,
        options: SubscribeOptions,
        is_new: bool,
        is_other: bool,
    ) {
        let handling = options.retain_handling;
        let begins_anew = handling == RetainHandling::Always && is_other;
        if (begins_anew || handling == RetainHandling::Never)
            && let Some(extras) = &mut self.extras
        {
            // MQTT-3.3.1-11: without an UNSUBSCRIBE between the two as well.
            extras.give_up_retained(filter);
        }
        if handling == RetainHandling::Always || handling == RetainHandling::IfNew && is_new {
            self.extras().retained_wanted.insert(filter.into());
        }
    }

    /// The next filter whose retained messages may be asked for: one after the other, as each can
    /// be all there are. Those of a single topic go in portions of a page.
    fn next_wanted(&mut self) -> Option<Box<str>> {
        let extras = self.extras.as_mut()?;
        let under_way = extras.retained_under_way();
        let is_one = !has_wildcard(extras.retained_wanted.first()?);
        let is_next = under_way == 0 || is_one && under_way < PAGE_MESSAGES;
        if is_next { extras.retained_wanted.pop_first() } else { None }
    }

    pub(crate) fn drop_extras_if_unused(&mut self) {
        if self.extras.as_deref().is_some_and(Extras::are_unused) {
            self.extras = None;
        }
    }
}
