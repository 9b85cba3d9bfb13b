//! From a matching topic to the outboxes and queues of the subscribers.

use codec::{QoS, Reason};
use policy::Action;
use session::{
    Delivery, Dropped, Identifiers, LARGE_BYTES_MIN, Link, Message, NEVER, Offered, Sent, Template,
    Terms, Traits,
};
use topic::Subscription;

use crate::Shard;
use crate::log::facts::Origin;
use crate::parts::client::{Client, Pace};
use crate::parts::router::Router;
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::options;
use crate::words::reasons::reason_of;
use crate::{Confirm, Ended, Metrics, Name, Scope, SessionKey};

/// Topics remembered while a page of retained messages is under way. Above it, a subscriber may
/// see an older retained message after a newer live one.
const RETAINED_FRESH_MAX: usize = 1000;

pub(crate) fn count_dropped(metrics: &Metrics, reason: Dropped, count: u64) {
    match reason {
        Dropped::QueueFull(limit) => metrics.dropped_queue_full.add(limit as usize, count),
        Dropped::SlowSubscriber => metrics.dropped_slow.add(count),
        Dropped::Offline => metrics.dropped_offline.add(count),
        Dropped::Expired => metrics.dropped_expired.add(count),
        Dropped::TooLarge => metrics.dropped_too_large.add(count),
        Dropped::Denied => metrics.dropped_denied.add(count),
        Dropped::Unlogged => metrics.dropped_unlogged.add(count),
    }
}

/// What delivering to the subscribers of this shard came to.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    pub(crate) matched: bool,
    /// Why the message was not taken, if it was not: then nobody has got it.
    pub(crate) refused: Option<Reason>,
    /// It was the journal that did not take it.
    pub(crate) lacks_journal: bool,
    /// Where the journal has it: its acknowledgement waits for that.
    pub(crate) kept: Option<storage::Position>,
    /// Of the slowest subscriber.
    pub(crate) pace: Pace,
    /// What its publisher gets of it, to be [delivered](Shard::deliver_own) when it is answered:
    /// many clients wait for the acknowledgement before they look at anything else.
    pub(crate) own: Option<Box<OwnCopy>>,
}

/// What a publisher gets of its own message.
#[derive(Debug)]
pub(crate) struct OwnCopy {
    slot: u32,
    terms: Terms,
}

/// How a message for durable sessions comes into the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Keeping {
    /// It is written if one of them is found. If nobody awaits the outcome, and it cannot be
    /// written, it is kept in memory, in its turn. `may_refuse`: the publisher can be notified that
    /// a subscriber has no room. `owner`: of its place in the journal, by the number of the
    /// account.
    New { is_awaited: bool, may_refuse: bool, owner: u32, origin: Option<Origin> },
    /// It is there, with this serial.
    Kept(u64),
    /// It is not for these, who get it later than others (`broadcast.rs`).
    Late,
}

impl Keeping {
    pub(crate) fn of_published(asked: Option<&Asked>) -> Self {
        let is_awaited = asked.is_some();
        let owner = asked.map_or(NOBODY, |asked| asked.confirm().owner);
        Self::New { is_awaited, may_refuse: is_awaited, owner, origin: None }
    }
}

/// What goes from client to client with a message: what became of it so far.
#[derive(Debug, Default)]
struct FanOut {
    /// If there are several.
    template: Option<Template>,
    pace: Pace,
    own: Option<Box<OwnCopy>>,
    /// Somebody could not take it: it waits in the journal.
    is_left_behind: bool,
}

impl Shard {
    /// Delivers a message that another shard sent.
    pub(crate) fn deliver_mailed(
        &mut self,
        message: &Message,
        confirm: Option<Confirm>,
        owner: u32,
    ) -> Delivered {
        let origin = confirm.and_then(|confirm| self.cx.origin_of(confirm));
        let (is_awaited, may_refuse) = (confirm.is_some(), confirm.is_some() && origin.is_none());
        let keeping = Keeping::New { is_awaited, may_refuse, owner, origin };
        let topic = Name::topic_of(message);
        let mut audience = self.sessions.router.audience_here(topic, &mut self.cx.flow.work);
        let delivered = self.deliver(message, audience.subscriptions(), keeping);
        self.sessions.router.keep(audience);
        let mut pace = delivered.pace;
        pace.slow_to(self.pace_of_disk());
        if pace.pause_ms > 0 {
            self.cx.effects.slow_down(SessionKey::from_u64(message.publisher()), pace);
        }
        delivered
    }

    /// Delivers to the subscribers here what is in the journal.
    pub(crate) fn deliver_kept(&mut self, message: &Message, serial: u64) -> Delivered {
        let topic = Name::topic_of(message);
        let mut audience = self.sessions.router.audience(topic, &mut self.cx.flow.work);
        let keeping = Keeping::Kept(serial);
        let delivered = self.deliver(message, audience.subscriptions(), keeping);
        self.sessions.router.keep(audience);
        delivered
    }

    /// Delivers to the subscribers of this shard, not to its groups. A client with several matching
    /// subscriptions gets one copy, with the highest QoS and all identifiers (MQTT-3.3.4-2,
    /// MQTT-3.3.4-3, MQTT-3.3.5-1 in 3.1.1).
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        message: &Message,
        found: &mut [Subscription],
        keeping: Keeping,
    ) -> Delivered {
        if found.is_empty() {
            return Delivered::default();
        }
        let mut delivered = Delivered { matched: true, ..Delivered::default() };
        let may_refuse = matches!(keeping, Keeping::New { may_refuse: true, .. });
        if may_refuse && self.cx.shared.settings.rejects && self.anybody_refuses(message, found) {
            delivered.refused = Some(Reason::QUOTA_EXCEEDED);
            return delivered;
        }
        let mut serial = 0;
        match self.keep(message, found, keeping) {
            Ok(None) => {}
            Ok(Some((kept, position))) => {
                serial = kept;
                delivered.kept = position;
            }
            Err(error) => {
                delivered.refused = Some(reason_of(&error));
                delivered.lacks_journal = !matches!(error, storage::AppendError::TooLarge { .. });
                return delivered;
            }
        }
        let all = found.len();
        let is_late = matches!(keeping, Keeping::Late);
        let found = match (all > 1 || !self.cx.flow.broadcasts.is_empty()) && !is_late {
            true => self.at_once(message, found, serial),
            false => found,
        };
        let traits = message.traits();
        let mut fan_out = FanOut::default();
        if all > 1 {
            fan_out.template = Some(self.cx.buffers.take_template());
            if self.cx.is_broadcast(found) {
                self.cx.dirty.begin_broadcast(message.payload_len());
            }
        }
        for own in found.chunk_by(|one, next| one.subscriber == next.subscriber) {
            self.deliver_to((message, traits), own, serial, &mut fan_out);
        }
        if let Some(template) = fan_out.template {
            self.cx.dirty.end_broadcast();
            self.cx.buffers.keep_template(template);
        }
        if !Scope::new(traits.scope).is_first() && !is_late {
            self.cx.charge_sent(message, all as u64);
        }
        if serial != 0 {
            self.end_delivery(message, keeping, serial, fan_out.is_left_behind);
        }
        delivered.pace = fan_out.pace;
        delivered.own = fan_out.own;
        delivered
    }

    /// Those who get a message at once, sorted by client; others get it in later turns.
    #[inline(never)]
    fn at_once<'a>(
        &mut self,
        message: &Message,
        found: &'a mut [Subscription],
        serial: u64,
    ) -> &'a [Subscription] {
        if !found.is_sorted_by_key(|subscription| subscription.subscriber) {
            found.sort_unstable_by_key(|subscription| subscription.subscriber);
        }
        let cx = &self.cx;
        let is_behind = (!cx.flow.broadcasts.is_empty()
            && cx.flow.broadcasts.is_overtaken_by_message(message))
            || (cx.dirty.has_gathered() && cx.is_broadcast(found));
        let found = match is_behind || found.len() > cx.flow.work.broadcast_max() {
            true => self.put_some_off(message, found, (serial, is_behind)),
            false => found,
        };
        self.cx.flow.work.charge(found.len());
        found
    }

    /// `is_behind`: behind a broadcast that has not reached everybody, or is not written, nobody
    /// gets it at once. But what the journal assigns is assigned now, and a publisher's own copy
    /// comes with its acknowledgement.
    #[cold]
    fn put_some_off<'a>(
        &mut self,
        message: &Message,
        found: &'a mut [Subscription],
        (serial, is_behind): (u64, bool),
    ) -> &'a [Subscription] {
        if self.cx.flow.work.is_stopping() || self.cx.shared.settings.rejects {
            self.finish_broadcasts();
            return found;
        }
        let first = if is_behind { 0 } else { self.cx.flow.work.broadcast_max() };
        let first = found.get(first).map_or(u32::MAX, |subscription| subscription.subscriber);
        let sessions = &self.sessions;
        let publisher = sessions.slot_of(SessionKey::from_u64(message.publisher()));
        let is_assigned =
            |slot: u32| serial != 0 && sessions.get(slot).is_some_and(|client| client.is_kept);
        let comes_later =
            |s: &Subscription| s.subscriber >= first && Some(s.subscriber) != publisher;
        found.sort_by_key(|s| comes_later(s) && !is_assigned(s.subscriber));
        let now = found.partition_point(|s| !comes_later(s) || is_assigned(s.subscriber));
        let (now, later) = found.split_at(now);
        // What is assigned now would overtake the broadcasts before it (MQTT-4.6.0-6).
        for own in now.iter().filter(|_| is_behind && serial != 0) {
            self.finish_broadcasts_to(own.subscriber);
        }
        if !later.is_empty() {
            self.put_off_broadcast(message, later.iter().copied());
        }
        now
    }
}

impl Context {
    /// Are these many clients? The subscriptions are sorted by client.
    #[inline]
    fn is_broadcast(&self, found: &[Subscription]) -> bool {
        let many = self.flow.work.broadcast_min();
        found.len() > many && has_clients(found, many)
    }
}

impl Shard {
    pub(crate) fn anybody_refuses(&mut self, message: &Message, found: &[Subscription]) -> bool {
        let traits = message.traits();
        let kept =
            |subscription: &&Subscription| options::qos(subscription.options) != QoS::AtMostOnce;
        traits.qos != QoS::AtMostOnce
            && found.iter().filter(kept).any(|own| self.refuses((message, traits), own))
    }

    /// Does the session have no room for the message, though it has to get it?
    fn refuses(&mut self, of: (&Message, Traits), own: &Subscription) -> bool {
        let (message, _) = of;
        let slot = own.subscriber;
        let Self { cx, sessions, log, .. } = self;
        let Some(client) = sessions.get_mut(slot) else { return false };
        let is_assigned = || terms_of(of, std::slice::from_ref(own), client).is_some();
        if !client.would_refuse(log.as_deref(), message) || !is_assigned() {
            return false;
        }
        client.drop_expired(cx);
        if let Some(log) = log {
            let expired = log.drop_expired(slot, cx.now_ms);
            client.note_expired(cx, expired);
        }
        let refuses = client.would_refuse(log.as_deref(), message);
        if refuses {
            client.session.count_refusal(message);
        }
        refuses
    }

    /// Delivers to one client; `own` are its matching subscriptions.
    fn deliver_to(
        &mut self,
        (message, traits): (&Message, Traits),
        own: &[Subscription],
        serial: u64,
        fan_out: &mut FanOut,
    ) {
        let Some(first) = own.first().expected() else { return };
        let slot = first.subscriber;
        let Self { cx, sessions, log, .. } = self;
        // What is left of a session that has ended still stands in the index (`clean_up.rs`).
        let Some((client, router)) = sessions.with_index(slot) else { return };
        let is_own = traits.publisher == client.key.as_u64();
        let mut terms = terms_of((message, traits), own, client);
        if first.options & options::CHECK_RECEIVE != 0 {
            cx.flow.work.charge(client.grants.topic_units());
        }
        if terms.is_some() && traits.retain {
            note_fresh(client, message);
        }
        if serial != 0
            && client.is_kept
            && let Some(log) = log
        {
            match &mut terms {
                Some(terms) if log.is_assigned(slot, serial, terms.qos) => terms.serial = serial,
                _ if own.iter().any(|s| s.options & options::DURABLE != 0) => {
                    log.skip(slot, serial);
                }
                _ => {}
            }
        }
        let Some(terms) = terms else { return };
        let offered = (message, traits.payload_bytes);
        if is_own {
            // It waits until the message is answered.
            if let Some(log) = log.as_mut().filter(|_| terms.serial != 0) {
                log.need(terms.serial);
            }
            fan_out.own = Some(Box::new(OwnCopy { slot, terms }));
        } else if terms.serial != 0 {
            self.offer_kept(slot, offered, terms, fan_out);
        } else {
            let backlog = client.backlog(log.as_deref());
            client.offer(cx, router, offered, (terms, backlog), fan_out);
        }
    }

    /// Delivers what a publisher gets of its own message. Returns how it keeps pace with that.
    #[inline]
    pub(crate) fn deliver_own(&mut self, message: &Message, own: Option<Box<OwnCopy>>) -> Pace {
        match own {
            Some(own) => self.deliver_own_copy(message, *own),
            None => Pace::default(),
        }
    }

    #[inline(never)]
    fn deliver_own_copy(&mut self, message: &Message, own: OwnCopy) -> Pace {
        let OwnCopy { slot, terms } = own;
        let serial = terms.serial;
        let offered = (message, message.payload_len());
        let mut fan_out = FanOut::default();
        if serial != 0 {
            self.offer_kept(slot, offered, terms, &mut fan_out);
            self.release_own(message, serial, fan_out.is_left_behind);
            return fan_out.pace;
        }
        let Self { cx, sessions, log, .. } = self;
        if let Some((client, router)) = sessions.with_index(slot).expected() {
            let backlog = client.backlog(log.as_deref());
            client.offer(cx, router, offered, (terms, backlog), &mut fan_out);
        }
        fan_out.pace
    }

    /// The log has the message for the session, which gets it in its turn.
    #[inline(never)]
    fn offer_kept(
        &mut self,
        slot: u32,
        (message, payload_bytes): (&Message, usize),
        terms: Terms,
        fan_out: &mut FanOut,
    ) {
        let delivery = Delivery { message: message.clone(), terms };
        fan_out.is_left_behind |= self.assign(slot, delivery);
        let Self { cx, sessions, log, .. } = self;
        let Some((client, router)) = sessions.with_index(slot).expected() else { return };
        let pace = client.pace(client.backlog(log.as_deref()), cx.now_ms);
        if !client.pauses_all_instead(cx, router, (message, payload_bytes), pace) {
            fan_out.pace.slow_to(pace);
        }
    }
}

impl Client {
    /// Offers a message to the session. `backlog`: what waits for it in the log.
    #[inline]
    fn offer(
        &mut self,
        cx: &mut Context,
        router: &mut Router,
        (message, payload_bytes): (&Message, usize),
        (terms, backlog): (Terms, usize),
        fan_out: &mut FanOut,
    ) {
        let now_ms = cx.now_ms;
        self.drop_expired(cx);
        cx.buffers.lend(self);
        if terms.qos == QoS::ExactlyOnce && self.is_kept {
            // The client would take what has this packet id after a crash for a repetition.
            return self.note_dropped(cx, Dropped::Unlogged);
        }
        let sent = Sent { qos: terms.qos, payload_bytes };
        let has_no_queue = sent.qos == QoS::AtMostOnce;
        let Self { session, limits, .. } = self;
        let template = fan_out.template.as_mut();
        let offered = session.offer(message, terms, &limits.queue, template, now_ms);
        let has_room = session.link().is_none_or(Link::has_room);
        let mut pace = self.pace(backlog, now_ms);
        pace.is_urgent |= has_no_queue && !has_room;
        if has_no_queue || !self.pauses_all_instead(cx, router, (message, payload_bytes), pace) {
            fan_out.pace.slow_to(pace);
        }
        self.after_offer(cx, sent, offered);
    }

    /// While the queue is long, publishers of large messages are not paused one by one, but all
    /// together, and so are all others while it is half full. False: only this one is paused.
    #[inline]
    fn pauses_all_instead(
        &self,
        cx: &mut Context,
        router: &mut Router,
        (message, payload_bytes): (&Message, usize),
        pace: Pace,
    ) -> bool {
        let is_large = payload_bytes >= LARGE_BYTES_MIN && pace.pause_ms > 0;
        (is_large || pace.is_filling)
            && message.publisher() != self.key.as_u64()
            && (pace.is_filling || self.has_long_queue())
            && self.pause_publishers(cx, router, message, pace.is_filling)
    }

    /// Counts and reports the result of an offer of `sent`.
    #[inline]
    pub(crate) fn after_offer(&mut self, cx: &mut Context, sent: Sent, offered: Offered) {
        if offered == Offered::Written {
            cx.metrics.count_sent(sent);
            self.mark_dirty(cx);
        } else {
            self.note_not_written(cx, offered);
        }
    }

    fn note_not_written(&mut self, cx: &mut Context, offered: Offered) {
        match offered {
            Offered::Written => {}
            Offered::Queued => self.note_queued(cx),
            Offered::QueuedForOldest(dropped, limit) => {
                self.note_queued(cx);
                for _ in 0..dropped {
                    self.note_dropped(cx, Dropped::QueueFull(limit));
                }
            }
            Offered::Dropped(reason) => self.note_dropped(cx, reason),
            Offered::Refused(limit) => self.note_dropped(cx, Dropped::QueueFull(limit)),
            Offered::Disconnect(limit) => {
                self.note_dropped(cx, Dropped::QueueFull(limit));
                // Without a connection there is nothing to end, and the next one is innocent.
                if self.is_connected() {
                    cx.doomed.push((self.key.slot(), Ended::QueueFull));
                }
            }
        }
    }

    /// Counts a dropped delivery; the event that names the client comes at most once a second.
    pub(crate) fn note_dropped(&mut self, cx: &mut Context, reason: Dropped) {
        self.note_several_dropped(cx, reason, 1);
    }

    /// What has expired in the queue of the session takes no room there (MQTT-3.3.2-5).
    /// Returns how many of the queue were looked at.
    #[inline]
    pub(crate) fn drop_expired(&mut self, cx: &mut Context) -> usize {
        match self.session.outgoing.has_expired(cx.now_ms) {
            true => self.drop_what_has_expired(cx),
            false => 0,
        }
    }

    #[cold]
    fn drop_what_has_expired(&mut self, cx: &mut Context) -> usize {
        let (expired, looked_at) = self.session.outgoing.drop_expired(cx.now_ms);
        cx.flow.work.charge_for(Task::Pending(looked_at));
        self.note_expired(cx, expired);
        looked_at
    }

    /// A delivery was queued: what expires is taken out in time, so that its owner is not charged
    /// for it any longer.
    fn note_queued(&mut self, cx: &mut Context) {
        cx.metrics.publishes_queued.add(1);
        if self.session.outgoing.next_expiry_ms() != NEVER {
            self.arm_timer(cx);
        }
    }

    pub(crate) fn note_expired(&mut self, cx: &mut Context, count: u32) {
        if count > 0 {
            self.note_several_dropped(cx, Dropped::Expired, count.into());
        }
    }

    fn note_several_dropped(&mut self, cx: &mut Context, reason: Dropped, count: u64) {
        count_dropped(&cx.metrics, reason, count);
        // QoS 0 to somebody who is away is the normal case, not a loss to report.
        if reason != Dropped::Offline {
            self.note_dropped_of(cx, reason, count);
        }
    }
}

/// How one client gets a message, by its matching subscriptions `own`. None: none of them wants it.
#[inline]
pub(crate) fn terms_of(
    (message, traits): (&Message, Traits),
    own: &[Subscription],
    client: &Client,
) -> Option<Terms> {
    let mut may = None;
    let mut is_wanted = |subscription: &Subscription| {
        let bits = subscription.options;
        // MQTT-3.8.3-3: by client ID, also of a message that an earlier session has published.
        let is_unwanted = bits & options::NO_LOCAL != 0 && is_author(client, traits);
        !is_unwanted
            && (bits & options::CHECK_RECEIVE == 0
                || *may.get_or_insert_with(|| may_receive(client, message)))
    };
    match own {
        [only] => is_wanted(only).then(|| terms_by(traits, only)),
        several => terms_of_several(traits, several, is_wanted),
    }
}

/// Of several that match. Identifiers in one go: thousands would be copied thousands of times.
#[inline(never)]
fn terms_of_several(
    traits: Traits,
    own: &[Subscription],
    mut is_wanted: impl FnMut(&Subscription) -> bool,
) -> Option<Terms> {
    let mut wanted = own.iter().filter(|subscription| is_wanted(subscription));
    let mut terms = terms_by(traits, wanted.next()?);
    let mut all = terms.identifiers.as_slice().to_vec();
    for subscription in wanted {
        let other = terms_by(traits, subscription);
        terms.qos = terms.qos.max(other.qos);
        terms.retain |= other.retain;
        all.extend(other.identifiers.as_slice());
    }
    terms.identifiers = match all.as_slice() {
        [] => Identifiers::None,
        [only] => Identifiers::One([*only]),
        _ => Identifiers::Many(all.into()),
    };
    Some(terms)
}

/// Out of line: nearly no delivery needs these two, and each would carry them along.
#[inline(never)]
fn is_author(client: &Client, traits: Traits) -> bool {
    traits.author == client.name().author()
}

#[inline(never)]
pub(crate) fn may_receive(client: &Client, message: &Message) -> bool {
    client.grants.allows(client.identity(), Action::Receive, message.topic())
}

fn terms_by(traits: Traits, subscription: &Subscription) -> Terms {
    let bits = subscription.options;
    Terms {
        identifiers: identifiers_of(subscription.identifier),
        group: 0,
        serial: 0,
        qos: options::qos(bits).min(traits.qos),
        retain: bits & options::RETAIN_AS_PUBLISHED != 0 && traits.retain,
    }
}

/// Those of one subscription; 0 stands for none.
pub(crate) const fn identifiers_of(identifier: u32) -> Identifiers {
    match identifier {
        0 => Identifiers::None,
        identifier => Identifiers::One([identifier]),
    }
}

/// Are they of more clients than these?
#[cold]
fn has_clients(found: &[Subscription], count: usize) -> bool {
    found.chunk_by(|one, next| one.subscriber == next.subscriber).nth(count).is_some()
}

fn note_fresh(client: &mut Client, message: &Message) {
    if let Some(extras) = &mut client.extras
        && extras.retained_under_way() > 0
        && extras.retained_fresh.len() < RETAINED_FRESH_MAX
    {
        extras.retained_fresh.push((message.topic().into(), extras.retained_asks));
    }
}

/// What became of a message on its way.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    pub(crate) matched: bool,
    /// Why the message was not taken, if it was not.
    pub(crate) refused: Option<Reason>,
    /// Of the slowest subscriber here.
    pub(crate) pace: Pace,
    pub(crate) own: Option<Box<OwnCopy>>,
}

impl Routed {
    /// Is there anybody who wants it?
    pub(crate) const fn has_matched(&self) -> bool {
        self.matched
    }
}
