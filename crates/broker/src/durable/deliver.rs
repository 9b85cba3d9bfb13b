//! Messages that durable sessions are owed: kept once, handed out to each.
//!
//! A session that can take a message gets it at once, like any other. One that cannot only counts
//! it: the message's serial goes into the backlog of its filter, which all sessions on the filter
//! share, and the session's cursor says where it goes on.

use std::collections::VecDeque;

use codec::{Ack, AckKind, Properties, QoS, Reason};
use session::{Delivery, Dropped, Message, Offered, Overflow, Terms};
use storage::Position;
use topic::{FilterId, Subscription};

use super::eras::{self, is_owed};
use super::lifetimes::Lifetimes;
use super::promise::Promise;
use super::store::{Loaded, Noted};
use crate::clients::client::{Client, Pace};
use crate::flow::pause::CONGESTION_PAUSE_MS;
use crate::flow::work::PENDING_PER_UNIT;
use crate::journal::{Fact, Stage, StoredMessage};
use crate::limits::ledger::NOBODY;
use crate::routing::deliver::{Keeping, Traits, may_receive, options, terms_of};
use crate::sure::Sure;
use crate::{Name, Shard};

/// Serials that a session takes from its backlogs at once.
const BATCH_SERIALS: usize = 64;

/// A session with more subscriptions asks the index which of them match a message of its backlog.
const OWN_FILTERS_MAX: usize = 64;

/// A queue is looked through for what has expired only if that may be this part of it: so much of a
/// full queue may be taken by what has expired, and for each message that expires this many are
/// looked at.
const EXPIRED_PART: u32 = 16;

impl Shard {
    /// Writes a message into the log if a durable session here is owed it. Returns its serial and,
    /// if it was written just now, what its acknowledgement has to wait for.
    ///
    /// Err: there is no room for it, its publisher can be told, and nothing was done.
    pub(crate) fn keep(
        &mut self,
        message: &Message,
        found: &[Subscription],
        keeping: Keeping,
    ) -> Result<Option<(u64, Option<Position>)>, storage::AppendError> {
        let (origin, is_awaited, payer) = match keeping {
            Keeping::Kept(serial) => return Ok(Some((serial, None))),
            Keeping::Late => return Ok(None),
            Keeping::New { origin, is_awaited, payer, .. } => (origin, is_awaited, payer),
        };
        // A packet id of QoS 2 that is forgotten with the process would later be taken for a
        // repetition: such deliveries of kept sessions are written at every level.
        let least = if message.level() > 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let Some(store) = &mut self.store else { return Ok(None) };
        let is_owed = message.qos() >= least
            && found.iter().any(|subscription| {
                subscription.options & options::DURABLE != 0
                    && options::qos(subscription.options) >= least
            });
        if is_owed {
            // Of what nobody answers for, such as a will, the publisher here pays.
            let payer = match payer {
                NOBODY => self.clients.payer_of(message).cloned(),
                payer => store.payer(payer, &self.shared.ledger),
            };
            let kept = store.keep_message(message, payer.as_ref(), |it| {
                Fact::Message(StoredMessage { origin, ..it })
            });
            match kept {
                Ok((serial, position)) => {
                    self.note_space_left();
                    return Ok(Some((serial, Some(position))));
                }
                Err(error) if is_awaited => return Err(error),
                Err(_) => {}
            }
        }
        if message.level() > 0 && !is_owed || message.qos() == QoS::AtMostOnce {
            return Ok(None);
        }
        // What a session has in memory goes first: behind what waits in the log it has to queue up
        // there, though it is not written.
        let store = if self.is_anybody_behind(found) { self.store.as_mut() } else { None };
        Ok(store.map(|store| (store.add_unwritten(message), None)))
    }

    /// A log that is short of space says so with each message: many may come before the disk is
    /// heard of again.
    #[inline]
    fn note_space_left(&self) {
        if self.shared.logs().tight & 1 << self.id != 0
            && let Some(space) = self.store.as_ref().and_then(|store| store.space_left())
        {
            self.shared.set_log_space(self.id, space);
        }
    }

    /// Is a session owed the message by its serial? One that is not written is so only where older
    /// ones wait, and never at QoS 2, as no log would know its packet id.
    pub(crate) fn is_owed_by_serial(&self, slot: u32, serial: u64, qos: QoS) -> bool {
        let Some(store) = self.store.as_ref().filter(|_| serial != 0) else { return false };
        match qos {
            QoS::AtMostOnce => false,
            _ if !store.is_unwritten(serial) => true,
            QoS::AtLeastOnce => self.clients.get(slot).is_some_and(Client::has_backlog),
            QoS::ExactlyOnce => false,
        }
    }

    fn is_anybody_behind(&self, found: &[Subscription]) -> bool {
        self.store.is_some()
            && found.iter().any(|subscription| {
                subscription.options & options::DURABLE != 0
                    && self.clients.get(subscription.subscriber).is_some_and(Client::has_backlog)
            })
    }

    /// Everybody here has been offered the message. `is_left_behind`: somebody could not take it.
    pub(crate) fn end_delivery(
        &mut self,
        message: &Message,
        keeping: Keeping,
        serial: u64,
        is_left_behind: bool,
    ) {
        if serial == 0 {
            return;
        }
        if is_left_behind {
            self.leave_behind(Name::topic_of(message), serial);
        }
        if matches!(keeping, Keeping::New { .. }) {
            self.release_message(serial);
        }
    }

    /// What a publisher gets of its own message waits until that is answered.
    pub(crate) fn defer_own(&mut self, serial: u64) {
        if let Some(store) = self.store.as_mut().filter(|_| serial != 0) {
            store.need_message(serial);
        }
    }

    pub(crate) fn let_own_go(&mut self, message: &Message, serial: u64, is_left_behind: bool) {
        if is_left_behind {
            self.leave_behind(Name::topic_of(message), serial);
        }
        self.release_message(serial);
    }

    /// A durable session is owed a message that is in the log. True: it cannot take it now, so that
    /// the message is to be [left behind](Shard::leave_behind).
    pub(crate) fn owe(&mut self, slot: u32, delivery: Delivery, now_ms: u64) -> bool {
        let Some(store) = self.store.as_mut().sure() else { return false };
        store.need_message(delivery.terms.serial);
        let Some(client) = self.clients.get_mut(slot).sure() else { return false };
        let is_behind = client.durable.as_ref().is_some_and(|durable| durable.is_behind);
        if !is_behind && client.session.has_window() {
            self.hand_out(slot, delivery, now_ms);
            return false;
        }
        self.fall_behind(slot, &delivery, now_ms)
    }

    /// A durable session is not owed a message that others on its filter are.
    pub(crate) fn pass_over(&mut self, slot: u32, serial: u64) {
        let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()).sure()
        else {
            return;
        };
        if durable.is_behind {
            durable.track.skip(serial, durable.last_queued);
        } else {
            durable.track.pass(serial);
        }
        self.note_moved(slot);
    }

    /// Puts a delivery in flight; the window is open.
    fn hand_out(&mut self, slot: u32, delivery: Delivery, now_ms: u64) {
        let session = self.key(slot);
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        self.buffers.lend(client);
        let serial = delivery.terms.serial;
        let payload_bytes = delivery.message.payload_len();
        let is_expired = delivery.message.is_expired(now_ms);
        let is_uncommitted = delivery.terms.qos == QoS::ExactlyOnce;
        let (offered, packet_id) = if is_expired {
            (Offered::Dropped(Dropped::Expired), 0)
        } else if is_uncommitted {
            (Offered::Queued, client.session.start_uncommitted(delivery))
        } else {
            let packet_id = client.session.outgoing.next_packet_id();
            let Delivery { message, terms } = delivery;
            let limits = client.limits.queue;
            (client.session.offer(&message, terms, &limits, None, now_ms), packet_id)
        };
        let Some(durable) = client.durable.as_mut().sure() else { return };
        if matches!(offered, Offered::Dropped(_)) {
            durable.track.pass(serial);
            self.release_message(serial);
            self.note_moved(slot);
        } else {
            let stage = if is_uncommitted { Stage::AwaitsPubrec } else { Stage::AwaitsPuback };
            durable.track.hand_out_at(serial, packet_id, stage);
            let then = is_uncommitted.then_some(Promise::Send { session, packet_id });
            let (queue, level) = (durable.queue, durable.log_level());
            if let Some(store) = &mut self.store {
                store.pin_in_flight(serial);
                // A packet id whose message goes with the process means nothing without it.
                if !store.is_unwritten(serial) {
                    let is_aside = false;
                    store.noted.push(Noted {
                        slot,
                        queue,
                        serial,
                        packet_id,
                        stage,
                        is_aside,
                        level,
                        then,
                    });
                }
            }
        }
        self.after_offer(slot, payload_bytes, offered, now_ms);
    }

    /// The session cannot take the delivery now: it waits in the backlogs of its filters. False:
    /// they are full, and it does not.
    fn fall_behind(&mut self, slot: u32, delivery: &Delivery, now_ms: u64) -> bool {
        let (payload_bytes, serial) = (delivery.message.payload_len(), delivery.terms.serial);
        let bytes = self.store.as_ref().and_then(|store| store.bytes_of(serial));
        let bytes = bytes.unwrap_or_default();
        let is_full = self.is_backlog_full(slot, bytes, now_ms);
        let Some(client) = self.clients.get_mut(slot).sure() else { return false };
        let limits = client.limits.queue;
        let Some(durable) = client.durable.as_mut().sure() else { return false };
        let fits_at_all = limits.messages_max > 0 && bytes <= limits.bytes_max;
        if is_full && (limits.overflow != Overflow::DropOldest || !fits_at_all) {
            self.pass_over(slot, serial);
            self.release_message(serial);
            let offered = match limits.overflow {
                Overflow::Disconnect => Offered::Disconnect,
                Overflow::Reject => Offered::Refused,
                _ => Offered::Dropped(Dropped::QueueFull),
            };
            self.after_offer(slot, payload_bytes, offered, now_ms);
            return false;
        }
        durable.count_in(serial, bytes, delivery.message.expires_at_ms(), now_ms);
        self.after_offer(slot, payload_bytes, Offered::Queued, now_ms);
        if is_full {
            self.drop_oldest(slot, now_ms);
        }
        true
    }

    /// Makes room in a full backlog.
    fn drop_oldest(&mut self, slot: u32, now_ms: u64) {
        loop {
            let Some(client) = self.clients.get(slot).sure() else { return };
            let limits = client.limits.queue;
            let Some(durable) = client.durable.as_ref().sure() else { return };
            let is_full =
                durable.queued > limits.messages_max || durable.queued_bytes > limits.bytes_max;
            if !is_full {
                return;
            }
            let Some(serial) = self.take_pending(slot) else {
                return;
            };
            let was_live = self.leave_queue(slot, serial);
            self.release_message(serial);
            if was_live {
                self.note_dropped(slot, Dropped::QueueFull, now_ms);
            }
        }
    }

    /// Is there no room in the backlog of a session for one more delivery of so many bytes?
    fn is_backlog_full(&mut self, slot: u32, bytes: u64, now_ms: u64) -> bool {
        let is_full = |shard: &Self| {
            shard.clients.get(slot).is_some_and(|client| {
                let durable = client.durable.as_ref();
                durable.is_some_and(|durable| durable.is_full(bytes, &client.limits.queue))
            })
        };
        if !is_full(self) {
            return false;
        }
        self.drop_expired_in_log(slot, now_ms);
        is_full(self)
    }

    /// What has expired in a full queue takes no room there (MQTT-3.3.2-5): counts the queue anew
    /// if [enough](EXPIRED_PART) may have expired since that was done last, as it walks all of it.
    ///
    /// What has just been counted in has to be in the lists.
    pub(crate) fn drop_expired_in_log(&mut self, slot: u32, now_ms: u64) {
        let Some(second) = self.store.as_ref().map(|store| store.expired_through) else { return };
        let durable = self.clients.get_mut(slot).and_then(|client| client.durable.as_mut());
        let Some(durable) = durable.filter(|durable| durable.is_behind) else { return };
        let Some(rare) = &mut durable.rare else { return };
        let over = rare.lifetimes.over(second);
        let is_enough = over.messages.saturating_mul(EXPIRED_PART) >= durable.queued
            || over.bytes.saturating_mul(EXPIRED_PART.into()) >= durable.queued_bytes;
        if over.messages == 0 || !is_enough {
            return;
        }
        rare.lifetimes.forget(second);
        let pending = self.all_pending(slot);
        self.work.charge(pending.len() / PENDING_PER_UNIT);
        let Some(store) = &self.store else { return };
        let live = pending.into_iter().filter_map(|serial| store.bytes_of(serial));
        let (count, bytes) = live.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let durable = self.clients.get_mut(slot).and_then(|client| client.durable.as_mut());
        let Some(durable) = durable else { return };
        let expired = durable.queued.saturating_sub(count);
        (durable.queued, durable.queued_bytes) = (count, bytes);
        self.note_expired(slot, expired, now_ms);
    }

    /// The session's turn has come for a serial of which it is owed nothing more. False: its
    /// message has expired.
    fn leave_queue(&mut self, slot: u32, serial: u64) -> bool {
        let was_live = self.count_out(slot, serial);
        self.pass_now(slot, serial);
        was_live
    }

    /// Counts a serial out of the queue of a session. False: its message has expired, and stays
    /// counted until all is counted anew: nobody knows of one alone whether that was before or
    /// after.
    fn count_out(&mut self, slot: u32, serial: u64) -> bool {
        let bytes = self.store.as_ref().and_then(|store| store.bytes_of(serial));
        let durable = self.clients.get_mut(slot).and_then(|client| client.durable.as_mut());
        if let (Some(durable), Some(bytes)) = (durable, bytes) {
            durable.count_out(1, bytes);
        }
        bytes.is_some()
    }

    fn pass_now(&mut self, slot: u32, serial: u64) {
        if let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()) {
            durable.track.pass(serial);
        }
        self.note_moved(slot);
    }

    /// A delivery is complete.
    pub(crate) fn finish_delivery(&mut self, slot: u32, serial: u64) {
        let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()).sure()
        else {
            return;
        };
        let Some(out) = durable.track.finish(serial) else { return };
        if out.is_aside {
            return self.note_over(slot, &out);
        }
        self.note_moved(slot);
        if let Some(store) = &mut self.store {
            store.release(out.place);
            store.unpin_message(serial);
        }
    }

    fn release_message(&mut self, serial: u64) {
        if let Some(store) = &mut self.store {
            store.release_message(serial);
        }
    }

    /// The progress of the session goes into the next commit.
    pub(crate) fn note_moved(&mut self, slot: u32) {
        let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()).sure()
        else {
            return;
        };
        if !std::mem::replace(&mut durable.is_moved, true)
            && let Some(store) = &mut self.store
        {
            store.note_moved(durable.queue.into());
        }
    }

    /// Puts a serial into the backlogs of the filters that match the topic.
    pub(crate) fn leave_behind(&mut self, topic: Name<'_, [u8]>, serial: u64) {
        let Some(store) = self.store.as_mut().sure() else { return };
        let (index, filters) = self.router.filters_of(topic);
        for filter in filters {
            if index.promises(*filter) > 0 {
                store.push_backlog(*filter, serial);
            }
        }
    }

    /// What the session's turn comes for next: at most `count` serials, growing.
    fn pending(&self, slot: u32, count: usize) -> Vec<u64> {
        let mut serials = Vec::new();
        let (Some(store), Some(client)) = (&self.store, self.clients.get(slot)) else {
            return serials;
        };
        let Some(durable) = client.durable.as_ref().filter(|durable| durable.is_behind) else {
            return serials;
        };
        for listed in client.subscriptions.plain() {
            let Some(backlog) = store.backlogs.get(&listed.filter) else { continue };
            let list = &backlog.serials;
            let eras = self.eras_of(slot, listed.filter);
            let subscription = self.router.subscription(listed.filter, slot);
            let is_durable = subscription.is_some_and(|s| s.options & options::DURABLE != 0);
            if !is_durable && eras.is_empty() {
                continue;
            }
            let begin = list.partition_point(|serial| *serial <= durable.track.cursor());
            let fresh = list.iter().skip(begin).filter(|serial| {
                is_owed(eras, **serial, is_durable) && !durable.track.contains(**serial)
            });
            serials.extend(fresh.take(count).copied());
        }
        serials.sort_unstable();
        serials.dedup();
        serials.truncate(count);
        serials
    }

    /// All that waits for the session.
    pub(crate) fn all_pending(&self, slot: u32) -> Vec<u64> {
        self.pending(slot, usize::MAX)
    }

    /// Moves on what waits in the log for a session, as far as its window goes.
    pub(crate) fn pump_backlog(&mut self, slot: u32, now_ms: u64) {
        loop {
            let Some(client) = self.clients.get(slot).sure() else { return };
            let is_behind = client.durable.as_ref().is_some_and(|durable| durable.is_behind);
            if !is_behind || !client.session.has_window() {
                return;
            }
            let Some(serial) = self.take_pending(slot) else {
                self.catch_up(slot, now_ms);
                return;
            };
            if !self.hand_out_stored(slot, serial, now_ms) {
                self.put_back_pending(slot, serial);
                return;
            }
        }
    }

    /// The serial whose turn comes next. They are looked up a batch at a time: what comes meanwhile
    /// is behind them all.
    fn take_pending(&mut self, slot: u32) -> Option<u64> {
        let durable = self.clients.get_mut(slot)?.durable.as_mut()?;
        let next = durable.rare.as_mut().and_then(|rare| rare.upcoming.pop_front());
        if next.is_some() || !durable.is_behind {
            return next;
        }
        let serials = self.pending(slot, BATCH_SERIALS);
        let durable = self.clients.get_mut(slot)?.durable.as_mut()?;
        let upcoming = &mut durable.rare().upcoming;
        upcoming.extend(serials);
        upcoming.pop_front()
    }

    fn put_back_pending(&mut self, slot: u32, serial: u64) {
        if let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()) {
            durable.rare().upcoming.push_front(serial);
        }
    }

    /// What the session listens to has changed: its next serials are looked up anew.
    pub(crate) fn forget_upcoming(&mut self, slot: u32) {
        let durable = self.clients.get_mut(slot).and_then(|client| client.durable.as_mut());
        if let Some(rare) = durable.and_then(|durable| durable.rare.as_mut()) {
            rare.upcoming = VecDeque::new();
        }
    }

    /// False: the disk has to be waited for.
    fn hand_out_stored(&mut self, slot: u32, serial: u64, now_ms: u64) -> bool {
        let queue = self.clients.get(slot).and_then(|c| c.durable.as_ref()).map(|d| d.queue);
        let (Some(store), Some(queue)) = (self.store.as_mut().sure(), queue.sure()) else {
            return false;
        };
        match store.load(serial, queue.into()) {
            Loaded::Pending => false,
            Loaded::Gone => {
                self.leave_queue(slot, serial);
                self.drop_expired_in_log(slot, now_ms);
                true
            }
            Loaded::Ready(message) => {
                self.count_out(slot, serial);
                match self.delivery_of(slot, serial, &message) {
                    Some(delivery) => self.hand_out(slot, delivery, now_ms),
                    None => {
                        if self.has_lost_right(slot, serial, &message) {
                            self.note_dropped(slot, Dropped::Denied, now_ms);
                        }
                        self.pass_now(slot, serial);
                        self.release_message(serial);
                    }
                }
                true
            }
        }
    }

    /// How the session gets a message of its backlog, by the subscriptions it had when that came.
    fn delivery_of(&mut self, slot: u32, serial: u64, message: &Message) -> Option<Delivery> {
        let own = self.own_subscriptions(slot, serial, Name::of(message));
        let client = self.clients.get(slot)?;
        let mut terms = terms_of((message, Traits::of(message)), &own, false, client)?;
        if self.store.as_ref().is_some_and(|store| store.is_unwritten(serial)) {
            terms.qos = terms.qos.min(QoS::AtLeastOnce);
        }
        let is_kept = terms.qos != QoS::AtMostOnce;
        is_kept.then(|| Delivery { message: message.clone(), terms: Terms { serial, ..terms } })
    }

    /// Is a message that waited in the backlog still subscribed to, but not allowed any more?
    fn has_lost_right(&mut self, slot: u32, serial: u64, message: &Message) -> bool {
        let own = self.own_subscriptions(slot, serial, Name::of(message));
        let client = self.clients.get(slot);
        !own.is_empty() && client.is_some_and(|client| !may_receive(client, message))
    }

    /// Those that match the topic, as they were when the message with this serial came.
    fn own_subscriptions(&mut self, slot: u32, serial: u64, topic: Name<'_>) -> Vec<Subscription> {
        let Some(client) = self.clients.get(slot).sure() else { return Vec::new() };
        let filters: Vec<FilterId> = if client.subscriptions.len() > OWN_FILTERS_MAX {
            self.router.filters_of(topic.as_bytes()).1.to_vec()
        } else {
            let key = topic.key();
            let plain = client.subscriptions.plain().map(|listed| listed.filter);
            plain.filter(|filter| topic::matches(self.router.key(*filter), &key)).collect()
        };
        let as_it_was = |filter: &FilterId| {
            let now = self.router.subscription(*filter, slot);
            eras::at(self.eras_of(slot, *filter), serial, now)
        };
        filters.iter().filter_map(as_it_was).collect()
    }

    /// Nothing waits for the session any more.
    fn catch_up(&mut self, slot: u32, now_ms: u64) {
        let Some(store) = self.store.as_mut().sure() else { return };
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        let Some(durable) = client.durable.as_mut().sure() else { return };
        durable.is_behind = false;
        if let Some(rare) = &mut durable.rare {
            rare.upcoming = VecDeque::new();
            rare.lifetimes = Lifetimes::default();
        }
        durable.queued_bytes = 0;
        let expired = std::mem::take(&mut durable.queued);
        durable.track.advance(store.last_serial());
        for listed in client.subscriptions.plain() {
            store.prune_backlog(listed.filter);
        }
        if let Some(link) = client.session.link_mut().filter(|link| link.outbox.is_empty()) {
            link.has_caught_up();
        }
        self.note_expired(slot, expired, now_ms);
    }

    /// The session gives a filter up: what waits for it by this filter alone is not owed any more.
    /// Called before and after the subscription goes; the difference is let go.
    pub(crate) fn let_pending_go(&mut self, slot: u32, before: Vec<u64>) {
        self.forget_upcoming(slot);
        if before.is_empty() {
            return;
        }
        self.work.charge(before.len() / PENDING_PER_UNIT);
        let after = self.all_pending(slot);
        let mut bytes_gone = 0;
        let mut count = 0;
        for serial in before {
            if after.binary_search(&serial).is_err()
                && let Some(store) = &mut self.store
                && let Some(bytes) = store.bytes_of(serial)
            {
                bytes_gone += bytes;
                count += 1;
                store.release_message(serial);
            }
        }
        if let Some(durable) = self.clients.get_mut(slot).and_then(|c| c.durable.as_mut()) {
            durable.count_out(count, bytes_gone);
        }
    }

    /// Supplies the delivery that the resends of a restored session wait for. False: none does, or
    /// the disk has to be waited for.
    pub(crate) fn supply_in_flight(&mut self, slot: u32, now_ms: u64) -> bool {
        let Some(client) = self.clients.get(slot).filter(|c| c.session.is_online()) else {
            return false;
        };
        let queue = client.durable.as_ref().map(|durable| durable.queue);
        let unsupplied = client.session.outgoing.unsupplied();
        let (Some(queue), Some((packet_id, origin))) = (queue, unsupplied) else { return false };
        let Some(store) = self.store.as_mut().sure() else { return false };
        let delivery = match store.load(origin.serial, queue.into()) {
            Loaded::Pending => return false,
            Loaded::Ready(message) => {
                let wanted = self.delivery_of(slot, origin.serial, &message);
                let mut delivery = wanted.unwrap_or_else(|| begun(message, origin.serial));
                delivery.terms.qos = self.begun_qos(slot, origin.serial);
                Some(delivery)
            }
            Loaded::Gone => {
                self.note_dropped(slot, Dropped::Expired, now_ms);
                None
            }
        };
        if delivery.is_none() {
            self.finish_delivery(slot, origin.serial);
        }
        if let Some(client) = self.clients.get_mut(slot) {
            client.session.outgoing.supply(packet_id, delivery);
        }
        true
    }

    /// The QoS at which the client has seen the delivery, or may have.
    fn begun_qos(&mut self, slot: u32, serial: u64) -> QoS {
        let durable = self.clients.get_mut(slot).and_then(|client| client.durable.as_mut());
        let out = durable.and_then(|durable| durable.track.get_mut(serial));
        match out.map(|out| out.stage) {
            Some(Stage::AwaitsPubrec | Stage::AwaitsPubcomp) => QoS::ExactlyOnce,
            Some(Stage::AwaitsPuback | Stage::Over) | None => QoS::AtLeastOnce,
        }
    }

    /// A filter that is free for others.
    pub(crate) fn close_backlog(&mut self, filter: FilterId) {
        if let Some(store) = &mut self.store {
            store.backlogs.remove(&filter);
        }
    }

    /// A PUBREC for a delivery that the log knows: its PUBREL leaves when that is written down.
    /// False: it is like any other.
    pub(crate) fn keep_pubrec(&mut self, slot: u32, ack: &Ack<'_>) -> bool {
        let session = self.key(slot);
        let Some(client) = self.clients.get_mut(slot).sure() else { return false };
        let origin = client.session.outgoing.origin_of_qos_2(ack.packet_id);
        let (Some(durable), Some(store)) = (&mut client.durable, &mut self.store) else {
            return false;
        };
        let Some(origin) = origin.filter(|origin| origin.serial != 0 && origin.group == 0) else {
            return false;
        };
        let (queue, level) = (durable.queue, durable.log_level());
        // What stands aside is completed after a crash anyway, and never sent again.
        let out = durable.track.get_mut(origin.serial).filter(|out| !out.is_aside);
        let Some(out) = out else { return false };
        out.stage = Stage::AwaitsPubcomp;
        client.session.outgoing.await_release(ack.packet_id);
        let (packet_id, is_aside) = (ack.packet_id, false);
        let then = Some(Promise::Received { session, packet_id });
        let (serial, stage) = (origin.serial, Stage::AwaitsPubcomp);
        store.noted.push(Noted { slot, queue, serial, packet_id, stage, is_aside, level, then });
        true
    }

    /// A QoS 2 delivery was not sent again, because its client may not have it any more: it is
    /// treated as if its PUBREC had come. False: it is none, or was never sent.
    pub(crate) fn release_denied(&mut self, slot: u32, origin: session::Origin) -> bool {
        let Some(client) = self.clients.get_mut(slot).sure() else { return false };
        let Some(durable) = &mut client.durable else { return false };
        let Some(packet_id) = durable.track.get_mut(origin.serial).map(|out| out.packet_id) else {
            return false;
        };
        if client.session.outgoing.origin_of_qos_2(packet_id) != Some(origin) {
            return false;
        }
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if !self.keep_pubrec(slot, &ack)
            && let Some(client) = self.clients.get_mut(slot)
        {
            // It awaits this.
            let _ = client.session.on_ack(&ack);
            self.mark_dirty(slot);
        }
        true
    }

    /// A PUBREL for a packet id that the log knows: its PUBCOMP leaves when that is written down.
    /// False: it is like any other.
    pub(crate) fn keep_pubrel(&mut self, slot: u32, packet_id: u16) -> bool {
        let session = self.key(slot);
        let Some(client) = self.clients.get_mut(slot).sure() else { return false };
        let connection = client.connection;
        let (Some(durable), Some(store)) = (&mut client.durable, &mut self.store) else {
            return false;
        };
        let (queue, level) = (durable.queue, durable.log_level());
        let Some(rare) = &mut durable.rare else { return false };
        let received = rare.received.iter_mut().find(|received| received.packet_id == packet_id);
        let Some(received) = received else { return false };
        let fact = Fact::Released { session: queue, packet_id };
        match store.append_deletion(&fact, level) {
            Ok(position) => {
                received.is_released = true;
                let serial = received.serial;
                let promise = Promise::Released { session, connection, packet_id, serial };
                store.promises.push(position, level, promise);
            }
            Err(_) => store.late_pubrels.push((session, connection, packet_id)),
        }
        true
    }

    /// A client that a message would be refused for, because its backlog is full.
    pub(crate) fn would_refuse(&self, client: &Client, message: &Message) -> bool {
        let limits = &client.limits.queue;
        match &client.durable {
            Some(durable)
                if message.level() > 0
                    || message.qos() == QoS::ExactlyOnce
                    || durable.is_behind =>
            {
                let is_full = durable.is_full(message.heap_bytes() as u64, limits);
                let is_open = !durable.is_behind && client.session.has_window();
                limits.overflow == Overflow::Reject && is_full && !is_open
            }
            _ => client.session.would_refuse(message, limits),
        }
    }

    /// With a disk that is behind, publishers are read on a little later.
    #[inline(always)]
    pub(crate) fn pace_of_disk(&self) -> Pace {
        match &self.store {
            Some(store) if store.is_behind() => {
                Pace { pause_ms: CONGESTION_PAUSE_MS, ..Pace::default() }
            }
            _ => Pace::default(),
        }
    }
}

impl Client {
    /// Deliveries that wait in the log.
    pub(crate) fn backlog(&self) -> usize {
        self.durable.as_ref().map_or(0, |durable| durable.queued as usize)
    }

    /// Does anything wait for this session in the log?
    pub(crate) fn has_backlog(&self) -> bool {
        self.durable.as_ref().is_some_and(|durable| durable.is_behind)
    }
}

/// A delivery that had begun is completed, although its subscription is gone (MQTT-3.10.4-3): the
/// client holds its packet id, and would take another message under it for a repetition.
fn begun(message: Message, serial: u64) -> Delivery {
    let qos = QoS::AtLeastOnce;
    let identifiers = session::Identifiers::None;
    Delivery { message, terms: Terms { identifiers, group: 0, serial, qos, retain: false } }
}
