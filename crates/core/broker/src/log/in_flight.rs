//! Messages assigned to durable sessions: stored once, dispatched to each.
//!
//! A session that can take a message gets it at once, like any other. One that cannot only counts
//! it: the message's serial goes into the backlog of its filter, which all sessions on the filter
//! share, and the session's cursor says where it goes on.

use codec::{Ack, AckKind, Properties, QoS, Reason};
use session::{Delivery, Dropped, Message, Offered, Overflow, Terms};
use storage::{Level, Position};
use topic::{FilterId, Subscription};

use crate::Name;
use crate::deliver::copies::{Keeping, may_receive, terms_of};
use crate::log::facts::{Fact, Purpose, Stage, StoredMessage};
use crate::log::kept_sessions::KeptSession;
use crate::log::postponed::Postponed;
use crate::log::promise::Promise;
use crate::log::store::{Loaded, Noted, Store};
use crate::log::streams::{ForStreams, Publisher};
use crate::log::{Durable, Kept};
use crate::parts::client::{Client, Pace};
use crate::parts::flow::PAUSE_MS;
use crate::parts::router::Router;
use crate::parts::sessions::Sessions;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::options;

/// A session with more subscriptions asks the index which of them match a message of its backlog.
const OWN_FILTERS_MAX: usize = 64;

/// Does a durable session here have to get it from the journal?
fn is_assigned_to_any(message: &Message, found: &[Subscription]) -> bool {
    // A packet id of QoS 2 that is forgotten with the process would later be taken for a
    // repetition: such deliveries of kept sessions are written at every level.
    let least = if message.level() > 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
    message.qos() >= least
        && found.iter().any(|subscription| {
            subscription.options & options::DURABLE != 0
                && options::qos(subscription.options) >= least
        })
}

/// Who has published it, if a recipient may ask.
fn noted_author(message: &Message, found: &[Subscription]) -> u64 {
    let is_local = found.iter().any(|own| own.options & options::NO_LOCAL != 0);
    if is_local { message.author() } else { 0 }
}

impl Durable {
    /// Writes a message into the journal for streams, and for the durable sessions that it is
    /// assigned to. Returns its serial if these share the record, and what its acknowledgement has
    /// to wait for.
    pub(crate) fn keep_for_streams(
        &mut self,
        cx: &Context,
        sessions: &Sessions,
        message: &Message,
        found: &[Subscription],
        places: &[u32],
    ) -> Result<(Option<u64>, Position, Level), storage::AppendError> {
        let Some(store) = &mut self.store else { return Err(storage::AppendError::Closed) };
        let is_shared = is_assigned_to_any(message, found);
        let publisher = sessions.publisher_of(message).map(Publisher::from);
        let owner = sessions.owner_of(message);
        let author = noted_author(message, found);
        let purpose = if is_shared { Purpose::Message } else { Purpose::Streams };
        let own = ForStreams { message, publisher, owner, author, places };
        let set = sessions.router.streams().set();
        let (serial, position, level) = store.keep_for_streams(set, &own, purpose, cx.now_ms)?;
        self.note_space_left(cx);
        Ok((is_shared.then_some(serial), position, level))
    }

    /// Writes a message into the journal if it is assigned to a durable session here. Returns its
    /// serial and, if it was written just now, what its acknowledgement has to wait for.
    ///
    /// Err: there is no room for it, its publisher can be notified, and nothing was done.
    pub(crate) fn keep(
        &mut self,
        cx: &Context,
        sessions: &Sessions,
        message: &Message,
        found: &[Subscription],
        keeping: Keeping,
    ) -> Result<Option<(u64, Option<Position>)>, storage::AppendError> {
        let (origin, is_awaited, owner) = match keeping {
            Keeping::Kept(serial) => return Ok(Some((serial, None))),
            Keeping::Late => return Ok(None),
            Keeping::New { origin, is_awaited, owner, .. } => (origin, is_awaited, owner),
        };
        let Some(store) = &mut self.store else { return Ok(None) };
        let is_assigned = is_assigned_to_any(message, found);
        if is_assigned {
            // Without an owner in the message, as for a will, its publisher on this shard is
            // charged.
            let owner = match owner {
                NOBODY => sessions.owner_of(message).cloned(),
                owner => store.owner(owner, &cx.shared.ledger),
            };
            let author = noted_author(message, found);
            let kept = store.keep_message(message, owner.as_ref(), |it| {
                Fact::Message(StoredMessage { origin, author, ..it })
            });
            match kept {
                Ok((serial, position)) => {
                    self.note_space_left(cx);
                    return Ok(Some((serial, Some(position))));
                }
                Err(error) if is_awaited => return Err(error),
                Err(_) => {}
            }
        }
        if message.level() > 0 && !is_assigned || message.qos() == QoS::AtMostOnce {
            return Ok(None);
        }
        // What a session has in memory goes first: behind what waits in the journal it has to queue
        // up there, though it is not written.
        let store =
            if self.is_anybody_behind(sessions, found) { self.store.as_mut() } else { None };
        Ok(store.map(|store| (store.add_unwritten(message), None)))
    }

    /// A journal that is short of space says so with each message: many may come before the disk is
    /// heard of again.
    #[inline]
    fn note_space_left(&self, cx: &Context) {
        if cx.shared.journals().tight & 1 << cx.id != 0
            && let Some(space) = self.store.as_ref().and_then(|store| store.space_left())
        {
            cx.shared.set_journal_space(cx.id, space);
        }
    }

    /// Is the message assigned to the session, by its serial? One that is not written is so only
    /// where older ones wait, and never at QoS 2, as no journal would know its packet id.
    pub(crate) fn is_assigned_by_serial(&self, client: &Client, serial: u64, qos: QoS) -> bool {
        let Some(store) = self.store.as_ref().filter(|_| serial != 0) else { return false };
        match qos {
            QoS::AtMostOnce => false,
            _ if !store.is_unwritten(serial) => true,
            QoS::AtLeastOnce => self.has_backlog(client),
            QoS::ExactlyOnce => false,
        }
    }

    fn is_anybody_behind(&self, sessions: &Sessions, found: &[Subscription]) -> bool {
        self.store.is_some()
            && found.iter().any(|subscription| {
                subscription.options & options::DURABLE != 0
                    && sessions
                        .get(subscription.subscriber)
                        .is_some_and(|client| self.has_backlog(client))
            })
    }

    /// Everybody here has been offered the message. `is_left_behind`: somebody could not take it.
    pub(crate) fn end_delivery(
        &mut self,
        router: &mut Router,
        message: &Message,
        keeping: Keeping,
        serial: u64,
        is_left_behind: bool,
    ) {
        if serial == 0 {
            return;
        }
        if is_left_behind {
            self.leave_behind(router, Name::topic_of(message), serial);
        }
        if let Some(store) = self.store.as_mut().filter(|_| matches!(keeping, Keeping::New { .. }))
        {
            store.release_message(serial);
        }
    }

    /// What a publisher gets of its own message waits until that is answered.
    pub(crate) fn defer_own(&mut self, serial: u64) {
        if let Some(store) = self.store.as_mut().filter(|_| serial != 0) {
            store.need_message(serial);
        }
    }

    pub(crate) fn release_own(
        &mut self,
        router: &mut Router,
        message: &Message,
        serial: u64,
        is_left_behind: bool,
    ) {
        if is_left_behind {
            self.leave_behind(router, Name::topic_of(message), serial);
        }
        if let Some(store) = &mut self.store {
            store.release_message(serial);
        }
    }

    /// Assigns a message in the journal to a durable session. True: it cannot take it now, so that
    /// the message is to be [left behind](Durable::leave_behind).
    pub(crate) fn assign(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &Router,
        delivery: Delivery,
    ) -> bool {
        let Some(store) = self.store.as_mut().expected() else { return false };
        store.need_message(delivery.terms.serial);
        if !self.has_backlog(client) && client.session.has_window() {
            self.dispatch(cx, client, delivery);
            return false;
        }
        self.fall_behind(cx, client, router, &delivery)
    }

    /// Skips a message for a durable session, which others on its filter get.
    pub(crate) fn skip(&mut self, client: &mut Client, serial: u64) {
        if let (Some(store), Some(durable)) =
            (self.store.as_mut().expected(), self.kept.get_mut(client.key.slot()).expected())
        {
            store.skip(durable, serial);
        }
    }

    /// Puts a delivery in flight; the window is open.
    pub(super) fn dispatch(&mut self, cx: &mut Context, client: &mut Client, delivery: Delivery) {
        let now_ms = cx.now_ms;
        let session = client.key;
        cx.buffers.lend(client);
        let serial = delivery.terms.serial;
        let sent = delivery.as_sent();
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
        let (Some(durable), Some(store)) =
            (self.kept.get_mut(client.key.slot()).expected(), self.store.as_mut().expected())
        else {
            return;
        };
        if matches!(offered, Offered::Dropped(_)) {
            store.pass_now(durable, serial);
            store.release_message(serial);
        } else {
            let stage = if is_uncommitted { Stage::AwaitsPubrec } else { Stage::AwaitsPuback };
            durable.track.assign_at(serial, packet_id, stage);
            let then = is_uncommitted.then_some(Promise::Send { session, packet_id });
            let (queue, level) = (durable.queue, durable.journal_level());
            store.pin_in_flight(serial);
            // A packet id whose message goes with the process means nothing without it.
            if !store.is_unwritten(serial) {
                let is_aside = false;
                store.noted.push(Noted {
                    slot: session.slot(),
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
        client.after_offer(cx, sent, offered);
    }

    /// A delivery is complete.
    pub(crate) fn finish_delivery(&mut self, client: &mut Client, serial: u64) {
        let slot = client.key.slot();
        let durable = self.kept.get_mut(client.key.slot()).expected();
        let (Some(durable), Some(store)) = (durable, self.store.as_mut().expected()) else {
            return;
        };
        let Some(out) = durable.track.finish(serial) else { return };
        store.release(out.place);
        if out.is_aside {
            // Its packet id means nothing any more.
            store.noted.push(Noted {
                slot,
                queue: durable.queue,
                serial: out.serial,
                packet_id: out.packet_id,
                stage: Stage::Over,
                is_aside: true,
                level: durable.journal_level(),
                then: None,
            });
        } else {
            store.note_session_moved(durable);
            store.unpin_message(serial);
        }
    }

    /// How the session gets a message of its backlog, by the subscriptions of now.
    pub(super) fn delivery_of(
        &self,
        client: &Client,
        router: &mut Router,
        serial: u64,
        message: &Message,
    ) -> Option<Delivery> {
        let own = client.own_subscriptions(router, Name::of(message));
        let mut terms = terms_of((message, message.traits()), &own, client)?;
        if self.store.as_ref().is_some_and(|store| store.is_unwritten(serial)) {
            terms.qos = terms.qos.min(QoS::AtLeastOnce);
        }
        let is_kept = terms.qos != QoS::AtMostOnce;
        is_kept.then(|| Delivery { message: message.clone(), terms: Terms { serial, ..terms } })
    }
}

impl Store {
    /// Skips a message for the session, in its order behind those before it.
    pub(super) fn skip(&mut self, durable: &mut KeptSession, serial: u64) {
        if durable.is_behind {
            durable.track.skip(serial, durable.last_queued);
        } else {
            durable.track.pass(serial);
        }
        self.note_session_moved(durable);
    }

    /// The session's turn has come for a serial of which nothing is assigned to it any more. False:
    /// its message has expired.
    pub(super) fn leave_queue(&mut self, durable: &mut KeptSession, serial: u64) -> bool {
        let was_live = self.count_out(durable, serial);
        self.pass_now(durable, serial);
        was_live
    }

    /// Counts a serial out of the queue of a session. False: its message has expired, and is
    /// [counted](KeptSession::expire) as that.
    pub(super) fn count_out(&self, durable: &mut KeptSession, serial: u64) -> bool {
        let stored = self.stored(serial).zip(self.bytes_of(serial));
        stored.is_some_and(|(stored, bytes)| durable.count_out(stored.expires_at_ms, bytes))
    }

    pub(super) fn pass_now(&mut self, durable: &mut KeptSession, serial: u64) {
        durable.track.pass(serial);
        self.note_session_moved(durable);
    }

    /// The progress of the session goes into the next commit.
    pub(super) fn note_session_moved(&mut self, durable: &mut KeptSession) {
        if !std::mem::replace(&mut durable.is_moved, true) {
            self.note_moved(durable.queue.into());
        }
    }
}

impl Client {
    /// Is a message that waited in the backlog still subscribed to, but not allowed any more?
    pub(super) fn has_lost_right(&self, router: &mut Router, message: &Message) -> bool {
        let own = self.own_subscriptions(router, Name::of(message));
        !own.is_empty() && !may_receive(self, message)
    }

    /// Those that match the topic. What is still due by one of QoS 0 is so at QoS 1: it was
    /// accepted, and must not be lost with a connection.
    fn own_subscriptions(&self, router: &mut Router, topic: Name<'_>) -> Vec<Subscription> {
        let filters: Vec<FilterId> = if self.subscriptions.len() > OWN_FILTERS_MAX {
            router.filters_of(topic.as_bytes()).1.to_vec()
        } else {
            let key = topic.key();
            let plain = self.subscriptions.plain().map(|listed| listed.filter);
            plain.filter(|filter| topic::matches(router.key(*filter), &key)).collect()
        };
        let of_now = |filter: &FilterId| {
            let mut own = router.subscription(*filter, self.key.slot())?;
            own.options |= u8::from(options::is_owed(own.options));
            Some(own)
        };
        filters.iter().filter_map(of_now).collect()
    }
}

impl Durable {
    /// Supplies the delivery that the resends of a restored session wait for. False: none does, or
    /// the disk has to be waited for.
    pub(crate) fn supply_in_flight(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        router: &mut Router,
    ) -> bool {
        if !client.session.is_online() {
            return false;
        }
        let queue = self.kept.get(client.key.slot()).map(|durable| durable.queue);
        let unsupplied = client.session.outgoing.unsupplied();
        let (Some(queue), Some((packet_id, origin))) = (queue, unsupplied) else { return false };
        let Some(store) = self.store.as_mut().expected() else { return false };
        let delivery = match store.load(origin.serial, queue.into()) {
            Loaded::Pending => return false,
            Loaded::Ready(message) => {
                let wanted = self.delivery_of(client, router, origin.serial, &message);
                let mut delivery = wanted.unwrap_or_else(|| begun(message, origin.serial));
                delivery.terms.qos = self.kept.begun_qos(client.key.slot(), origin.serial);
                Some(delivery)
            }
            Loaded::Gone => {
                client.note_dropped(cx, Dropped::Expired);
                None
            }
        };
        if delivery.is_none() {
            self.finish_delivery(client, origin.serial);
        }
        client.session.outgoing.supply(packet_id, delivery);
        true
    }
}

impl Kept {
    /// The QoS at which the client has seen the delivery, or may have.
    fn begun_qos(&mut self, slot: u32, serial: u64) -> QoS {
        let durable = self.get_mut(slot);
        let out = durable.and_then(|durable| durable.track.get_mut(serial));
        match out.map(|out| out.stage) {
            Some(Stage::AwaitsPubrec | Stage::AwaitsPubcomp) => QoS::ExactlyOnce,
            Some(Stage::AwaitsPuback | Stage::Over) | None => QoS::AtLeastOnce,
        }
    }
}

impl Durable {
    /// A PUBREC for a delivery that the journal knows: its PUBREL leaves when that is written down.
    /// False: it is like any other.
    pub(crate) fn keep_pubrec(&mut self, client: &mut Client, ack: &Ack<'_>) -> bool {
        let session = client.key;
        let origin = client.session.outgoing.origin_of_qos_2(ack.packet_id);
        let (Some(durable), Some(store)) = (self.kept.get_mut(client.key.slot()), &mut self.store)
        else {
            return false;
        };
        let Some(origin) = origin.filter(|origin| origin.serial != 0 && origin.group == 0) else {
            return false;
        };
        let (queue, level) = (durable.queue, durable.journal_level());
        // What stands aside is completed after a crash anyway, and never sent again.
        let out = durable.track.get_mut(origin.serial).filter(|out| !out.is_aside);
        let Some(out) = out else { return false };
        out.stage = Stage::AwaitsPubcomp;
        client.session.outgoing.await_release(ack.packet_id);
        let (packet_id, is_aside) = (ack.packet_id, false);
        let then = Some(Promise::Received { session, packet_id });
        let (slot, serial, stage) = (session.slot(), origin.serial, Stage::AwaitsPubcomp);
        store.noted.push(Noted { slot, queue, serial, packet_id, stage, is_aside, level, then });
        true
    }

    /// A QoS 2 delivery was not sent again, because its client may not have it any more: it is
    /// treated as if its PUBREC had come. False: it is none, or was never sent.
    pub(crate) fn release_denied(
        &mut self,
        cx: &mut Context,
        client: &mut Client,
        origin: session::Origin,
    ) -> bool {
        let Some(durable) = self.kept.get_mut(client.key.slot()) else { return false };
        let Some(packet_id) = durable.track.get_mut(origin.serial).map(|out| out.packet_id) else {
            return false;
        };
        if client.session.outgoing.origin_of_qos_2(packet_id) != Some(origin) {
            return false;
        }
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if !self.keep_pubrec(client, &ack) {
            // It awaits this.
            let _ = client.session.on_ack(&ack);
            client.mark_dirty(cx);
        }
        true
    }

    /// A PUBREL for a packet id that the journal knows: its PUBCOMP leaves when that is written
    /// down. False: it is like any other.
    pub(crate) fn keep_pubrel(&mut self, client: &mut Client, packet_id: u16) -> bool {
        let session = client.key;
        let connection = client.connection;
        let (Some(durable), Some(store)) = (self.kept.get_mut(client.key.slot()), &mut self.store)
        else {
            return false;
        };
        let (queue, level) = (durable.queue, durable.journal_level());
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
            Err(_) => {
                store.postponed.push(Postponed::Pubrel { session, connection, packet_id });
            }
        }
        true
    }

    /// With a disk that is behind, publishers are read on a little later.
    #[inline(always)]
    pub(crate) fn pace_of_disk(&self) -> Pace {
        match &self.store {
            Some(store) if store.is_behind() => {
                Pace { pause_ms: *PAUSE_MS.start(), ..Pace::default() }
            }
            _ => Pace::default(),
        }
    }
}

/// A delivery that had begun is completed, although its subscription is gone (MQTT-3.10.4-3): the
/// client holds its packet id, and would take another message under it for a repetition.
fn begun(message: Message, serial: u64) -> Delivery {
    let qos = QoS::AtLeastOnce;
    let identifiers = session::Identifiers::None;
    Delivery { message, terms: Terms { identifiers, group: 0, serial, qos, retain: false } }
}

impl Durable {
    /// Would a message for it be refused, because its backlog is full?
    pub(crate) fn would_refuse(&self, client: &Client, message: &Message) -> bool {
        let limits = &client.limits.queue;
        match self.kept.get(client.key.slot()) {
            Some(durable)
                if message.level() > 0
                    || message.qos() == QoS::ExactlyOnce
                    || durable.is_behind =>
            {
                let bytes = message.heap_bytes() as u64;
                let is_full = durable.limit_reached(bytes, limits).is_some();
                let is_open = !durable.is_behind && client.session.has_window();
                limits.overflow == Overflow::Reject && is_full && !is_open
            }
            _ => client.session.would_refuse(message, limits),
        }
    }
}
