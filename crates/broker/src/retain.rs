//! Retained messages: each topic has one home shard, subscribers fetch in pages.
//!
//! A page is asked for only when the subscriber has room for it, so that a subscription to a
//! million retained messages neither floods its outbox nor holds up anybody else.

mod kept;

use std::collections::VecDeque;

use codec::Reason;
use session::{Delivery, Message, Terms};
use storage::Level;

pub(crate) use kept::Kept;

use crate::access::Action;
use crate::client::{Extras, Wanted};
use crate::deliver::{identifiers_of, options};
use crate::durable::{Class, Deletion, Place, Promise, level_of, unlogged};
use crate::journal::{Fact, Origin, StoredMessage};
use crate::news::Subject;
use crate::room::frees_room;
use crate::{Confirm, Mail, RetainedQuery, Shard};

/// Retained messages in one page.
const PAGE_MESSAGES: usize = 100;

/// Bytes that a subscriber may have in its outbox when the next page is asked for. More would keep
/// a worker busy with one subscriber while others wait.
const CALM_BYTES_MAX: usize = 64 * 1024;

/// Pages that a home gives in one turn, some 0.05 ms each; other subscribers wait for the next.
const PAGES_PER_TURN: usize = 32;

/// Retained messages looked at per tick for expiry.
const SWEEP_MESSAGES: usize = 1000;

/// Pages of this shard that were asked for, and how many this turn has had.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    waiting: VecDeque<Box<RetainedQuery>>,
    given: usize,
}

impl Shard {
    /// Keeps, replaces or clears a retained message (MQTT-3.3.1-5, MQTT-3.3.1-6). True: `confirm`
    /// is answered when it is written down. Err: why it was not kept.
    pub(crate) fn keep_retained(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, Reason> {
        let topic = message.topic();
        if message.payload().is_empty() {
            return self.clear_retained(message, confirm);
        }
        if !self.has_room_to_retain(message) || self.inbox.has_late_retained(topic) {
            self.metrics().retained_refused.add(1);
            self.note_of_shard(Subject::RetainedRefused { topic: topic.into() }, 1);
            return Err(Reason::QUOTA_EXCEEDED);
        }
        let place = match self.write_retained(message, confirm) {
            Ok(place) => place,
            Err(error) => return Err(crate::publish::reason_of(&error)),
        };
        let kept = Kept::new(message, place);
        let bytes = kept.bytes();
        match self.retained.insert(kept) {
            Some(old) => {
                self.count_retained(topic, 0, bytes - old.bytes());
                self.unwrite_retained(topic, old.place, place.is_some());
            }
            None => self.count_retained(topic, 1, bytes),
        }
        Ok(place.is_some() && confirm.is_some())
    }

    /// False: it would go beyond the limit. What takes the place of an older one needs room for
    /// what it is larger by.
    pub(crate) fn has_room_to_retain(&self, message: &Message) -> bool {
        if is_own(message.topic()) {
            return true;
        }
        let bytes = message.heap_bytes() as u64;
        match self.retained.get(message.topic()) {
            Some(old) => {
                let more = bytes.saturating_sub(old.bytes() as u64);
                !self.shared.lacks_room_to_retain(0, more)
            }
            None => !self.shared.lacks_room_to_retain(1, bytes),
        }
    }

    /// May it be refused where its topic has its home? Then its publisher waits for the word.
    pub(crate) fn lacks_room_to_retain(&self, message: &Message) -> bool {
        message.retain()
            && !frees_room(message)
            && self.shared.lacks_room_to_retain(1, message.heap_bytes() as u64)
    }

    /// Where there is nothing to clear, the acknowledgement waits for the log all the same: what is
    /// repeated here may not be committed yet.
    fn clear_retained(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, Reason> {
        let topic = message.topic();
        let is_written = self.retained.get(topic).is_some_and(|old| old.place.is_some());
        let is_kept = is_written || message.level() > 0;
        let level = level_of(message.level());
        let mut answers_later = false;
        if let Some(store) = self.store.as_mut().filter(|_| is_kept) {
            answers_later = confirm.is_some();
            match store.append_deletion(&Fact::RetainedCleared { topic }, Level::Fsync) {
                Ok(position) => {
                    if let Some(confirm) = confirm {
                        store.promises.push(position, level, Promise::Confirm(confirm));
                    }
                }
                // Mail with a serial waits as such, so that it is not known before it is written.
                Err(error) if confirm.is_some_and(|confirm| confirm.serial != 0) => {
                    return Err(crate::publish::reason_of(&error));
                }
                Err(error) => {
                    let topic = topic.into();
                    let late = || Deletion::RetainedCleared { topic, level, confirm };
                    let put_off = store.late.put_off(error, late);
                    put_off.map_err(|error| crate::publish::reason_of(&error))?;
                }
            }
        }
        if let Some(old) = self.retained.remove(topic) {
            self.count_retained(topic, -1, -old.bytes());
            self.unwrite_retained(topic, old.place, true);
        }
        Ok(answers_later)
    }

    /// Writes a retained message into the log, if it is to be.
    fn write_retained(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<Place, storage::AppendError> {
        let level = level_of(message.level());
        // So that its repetition after a crash is known, and replaces nothing that came since.
        let taken = confirm.filter(|confirm| confirm.serial != 0);
        let origin = taken
            .map(|confirm| Origin { source: self.source_of(confirm, 1), serial: confirm.serial });
        let Some(store) = self.store.as_mut().filter(|_| message.level() > 0) else {
            return Ok(Place::NOWHERE);
        };
        let fact = Fact::Retained(StoredMessage {
            serial: 0,
            origin,
            queue: 0,
            qos: message.qos(),
            retain: true,
            expires_at_ms: message.expires_at_ms(),
            topic: message.topic(),
            properties: message.properties(),
            payload: message.payload(),
        });
        let place = store.append(Class::Normal, &fact, level)?;
        if let Some(confirm) = confirm {
            store.promises.push(place.position(), level, Promise::Confirm(confirm));
        }
        Ok(place)
    }

    /// What is written of a topic is void. Unless something is written of it since, that is said.
    fn unwrite_retained(&mut self, topic: &str, place: Place, is_superseded: bool) {
        let Some(store) = self.store.as_mut().filter(|_| place.is_some()) else { return };
        store.release(place);
        if !is_superseded {
            // Unless it finds room in the end, the old one is back after a start.
            let fact = Fact::RetainedCleared { topic };
            if let Err(error) = store.append_deletion(&fact, Level::Fsync) {
                let (topic, level, confirm) = (topic.into(), Level::Fsync, None);
                let late = || Deletion::RetainedCleared { topic, level, confirm };
                let _ = store.late.put_off(error, late);
            }
        }
    }

    /// Puts a retained message back as it was in the log.
    pub(crate) fn insert_retained(&mut self, message: &Message, place: Place) {
        let kept = Kept::new(message, place);
        self.count_retained(message.topic(), 1, kept.bytes());
        self.retained.insert(kept);
    }

    /// What the broker says of itself is nobody's, and counts to no limit.
    fn count_retained(&self, topic: &str, messages: i64, bytes: i64) {
        if is_own(topic) {
            return;
        }
        self.shared.add_retained(messages, bytes);
        let metrics = self.metrics();
        metrics.retained.set(metrics.retained.value().wrapping_add(messages as u64));
        metrics.retained_bytes.set(metrics.retained_bytes.value().wrapping_add(bytes as u64));
    }

    /// Removes some of the retained messages that have expired.
    pub(crate) fn sweep_retained(&mut self, now_ms: u64) {
        let mut expired: Vec<Message> = Vec::new();
        let after = self.retained_sweep.take();
        self.retained_sweep = self.retained.walk_all(after, SWEEP_MESSAGES, &mut |kept| {
            if kept.expires_at_ms() <= now_ms {
                expired.push(kept.message());
            }
        });
        for message in expired {
            if let Some(old) = self.retained.remove(message.topic()) {
                self.count_retained(message.topic(), -1, -old.bytes());
                // It is expired in the next life, too, so nothing has to say so.
                self.unwrite_retained(message.topic(), old.place, true);
            }
        }
    }

    /// The retained messages of a new subscription are to be sent, once there is room for them
    /// ([`Shard::ask_next_page`]).
    pub(crate) fn want_retained(&mut self, slot: u32, filter: &str, bits: u8, identifier: u32) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let wanted = Wanted { options: bits, identifier };
        client.extras().retained_wanted.insert(filter.into(), wanted);
    }

    /// Asks for the retained messages of a filter from the beginning.
    fn ask_retained(&mut self, slot: u32, filter: &str, wanted: Wanted) {
        let subscriber = self.key(slot);
        let Wanted { options: bits, identifier } = wanted;
        let Some(client) = self.clients.get_mut(slot) else { return };
        let extras = client.extras();
        extras.retained_asks = extras.retained_asks.wrapping_add(1);
        let query = RetainedQuery {
            subscriber,
            home: 0,
            filter: filter.into(),
            options: bits,
            identifier,
            ask: extras.retained_asks,
            after: None,
        };
        if has_wildcard(filter) {
            extras.retained_asked += u32::from(self.shared.shard_count);
            for home in 0..self.shared.shard_count {
                self.query(RetainedQuery { home, ..query.clone() });
            }
        } else {
            extras.retained_asked += 1;
            let home = self.shared.shard_of_topic(filter);
            self.query(RetainedQuery { home, ..query });
        }
    }

    /// The home's side: a page, now or in a later turn.
    pub(crate) fn on_retained_query(&mut self, query: Box<RetainedQuery>) {
        if !has_wildcard(&query.filter) {
            return self.give_page(query);
        }
        self.pages.waiting.push_back(query);
        self.give_pages();
    }

    fn give_pages(&mut self) {
        while self.pages.given < PAGES_PER_TURN
            && let Some(query) = self.pages.waiting.pop_front()
        {
            self.pages.given += 1;
            self.give_page(query);
        }
    }

    /// A turn is over, and there may be more pages.
    pub(crate) fn give_more_pages(&mut self) {
        self.pages.given = 0;
        self.give_pages();
    }

    fn give_page(&mut self, mut query: Box<RetainedQuery>) {
        let mut messages = Vec::new();
        let after = query.after.take();
        if has_wildcard(&query.filter) {
            query.after = self.retained.walk(&query.filter, after, PAGE_MESSAGES, &mut |kept| {
                messages.push(kept.message());
            });
        } else {
            messages.extend(self.retained.get(&query.filter).map(Kept::message));
        }
        let is_last = query.after.is_none();
        let subscriber = query.subscriber.shard();
        self.send(subscriber, Mail::Retained { query, messages, is_last });
    }

    /// The subscriber's side: deliver the page, and go on when there is room.
    pub(crate) fn on_retained_page(
        &mut self,
        query: RetainedQuery,
        messages: &[Message],
        is_last: bool,
        now_ms: u64,
    ) {
        let Some(slot) = self.clients.slot_of(query.subscriber) else { return };
        for message in messages {
            self.offer_retained(slot, &query, message, now_ms);
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        let extras = client.extras();
        extras.retained_asked = extras.retained_asked.saturating_sub(1);
        if !is_last {
            // Without a connection it is asked for after the next CONNECT.
            extras.retained_next.push(query);
        }
        if extras.retained_asked == 0 && extras.retained_next.is_empty() {
            extras.retained_fresh = Vec::new();
        }
        self.ask_next_page(slot);
    }

    fn offer_retained(&mut self, slot: u32, query: &RetainedQuery, message: &Message, now_ms: u64) {
        let Some(client) = self.clients.get_mut(slot) else { return };
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
        let is_own = query.options & options::NO_LOCAL != 0
            && message.publisher() == query.subscriber.as_u64();
        if is_stale || is_denied || is_own {
            return;
        }
        let terms = Terms {
            identifiers: identifiers_of(query.identifier),
            group: 0,
            serial: 0,
            qos: options::qos(query.options).min(message.qos()),
            // MQTT-3.3.1-8: sent because of a subscription, so the flag is set.
            retain: true,
        };
        let mut terms = terms;
        if self.logs_packet_id(slot, terms.qos) {
            terms = unlogged(terms);
            if self.clients.get(slot).is_some_and(|client| client.session.has_window()) {
                let message = message.clone();
                return self.hand_out_aside(slot, Delivery { message, terms }, now_ms);
            }
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        let limits = client.limits.queue;
        let offered = client.session.offer_patiently(message, terms, &limits, now_ms);
        self.after_offer(slot, message.payload().len(), offered, now_ms);
    }

    /// Asks for further pages while the subscriber has room.
    pub(crate) fn ask_next_page(&mut self, slot: u32) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let is_calm = client
            .session
            .link()
            .is_some_and(|link| link.has_room() && link.outbox.len() <= CALM_BYTES_MAX)
            // What waits for the log is in no outbox yet.
            && !client.session.outgoing.is_held()
            && client.session.outgoing.queued() < PAGE_MESSAGES;
        let Some(extras) = &mut client.extras else { return };
        if !is_calm {
            return;
        }
        if let Some(query) = extras.retained_next.pop() {
            extras.retained_asked += 1;
            return self.query(query);
        }
        while let Some((filter, wanted)) = self.next_wanted(slot) {
            self.ask_retained(slot, &filter, wanted);
        }
        self.drop_extras_if_unused(slot);
    }

    /// The next filter whose retained messages may be asked for: one after the other, as each can
    /// be all there are. Those of a single topic go in portions of a page.
    fn next_wanted(&mut self, slot: u32) -> Option<(Box<str>, Wanted)> {
        let extras = self.clients.get_mut(slot)?.extras.as_mut()?;
        let under_way = extras.retained_under_way();
        let first = extras.retained_wanted.first_entry()?;
        let is_one = !has_wildcard(first.key());
        (under_way == 0 || is_one && under_way < PAGE_MESSAGES).then(|| first.remove_entry())
    }

    pub(crate) fn drop_extras_if_unused(&mut self, slot: u32) {
        if let Some(client) = self.clients.get_mut(slot)
            && client.extras.as_deref().is_some_and(Extras::are_unused)
        {
            client.extras = None;
        }
    }
}

fn has_wildcard(filter: &str) -> bool {
    filter.contains(['+', '#'])
}

fn is_own(topic: &str) -> bool {
    topic.starts_with("$SYS/")
}
