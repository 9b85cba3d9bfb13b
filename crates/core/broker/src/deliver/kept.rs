//! Messages that the log keeps for sessions here: written once, offered to each in its turn.

use codec::{Ack, AckKind, Properties, QoS, Reason};
use session::{
    Delivery, Dropped, Identifiers, Message, Offered, Origin, Overflow, Terms, UNLOGGED,
};
use storage::{AppendError, Level, Position, Status};
use topic::{FilterId, Subscription};

use crate::deliver::copies::{Keeping, may_receive, terms_of};
use crate::log::sent::{Turn, is_logged};
use crate::log::store::{Loaded, Log};
use crate::log::streams::ForStreams;
use crate::parts::client::Client;
use crate::parts::router::Router;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::options;
use crate::{Name, Shard};

/// A session with more subscriptions asks the index which of them match a message of its backlog.
const OWN_FILTERS_MAX: usize = 64;

/// Does a kept session here have to get it from the log?
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

/// A journal that is short of space says so with each message: many may come before the disk is
/// heard of again.
#[inline]
fn note_space_left(cx: &Context, log: &Log) {
    if cx.shared.journals().tight & 1 << cx.id != 0
        && let Some(space) = log.space_left()
    {
        cx.shared.set_journal_space(cx.id, space);
    }
}

impl Shard {
    /// Writes a message down for streams, and for the kept sessions that it is assigned to. Returns
    /// its serial if these share the record, and what its acknowledgement has to wait for.
    pub(crate) fn keep_for_streams(
        &mut self,
        message: &Message,
        found: &[Subscription],
        places: &[u32],
    ) -> Result<(Option<u64>, Position, Level), AppendError> {
        let Self { cx, sessions, log, .. } = self;
        let Some(log) = log else { return Err(AppendError::Closed) };
        let is_shared = is_assigned_to_any(message, found);
        let publisher = sessions.publisher_of(message).map(Client::as_publisher);
        let (owner, author) = (sessions.owner_of(message), noted_author(message, found));
        let own = ForStreams { message, publisher, owner, author, places };
        let set = sessions.router.streams().set();
        let (serial, position, level) = log.store_for_streams(set, &own, is_shared, cx.now_ms)?;
        note_space_left(cx, log);
        Ok((is_shared.then_some(serial), position, level))
    }

    /// Writes a message down if it is assigned to a kept session here. Returns its serial and, if
    /// it was written just now, what its acknowledgement has to wait for.
    ///
    /// Err: there is no room for it, its publisher can be notified, and nothing was done.
    pub(super) fn keep(
        &mut self,
        message: &Message,
        found: &[Subscription],
        keeping: Keeping,
    ) -> Result<Option<(u64, Option<Position>)>, AppendError> {
        let (origin, is_awaited, owner) = match keeping {
            Keeping::Kept(serial) => return Ok(Some((serial, None))),
            Keeping::Late => return Ok(None),
            Keeping::New { origin, is_awaited, owner, .. } => (origin, is_awaited, owner),
        };
        let Self { cx, sessions, log, .. } = self;
        let Some(log) = log else { return Ok(None) };
        let is_assigned = is_assigned_to_any(message, found);
        if is_assigned {
            // Without an owner in the message, as for a will, its publisher on this shard is
            // charged.
            let owner = match owner {
                NOBODY => sessions.owner_of(message).cloned(),
                owner => log.owner(owner, &cx.shared.ledger),
            };
            let author = noted_author(message, found);
            match log.store_message(message, owner.as_ref(), origin, author) {
                Ok((serial, position)) => {
                    note_space_left(cx, log);
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
        let is_behind = |own: &Subscription| {
            let client = sessions.get(own.subscriber);
            own.options & options::DURABLE != 0
                && client.is_some_and(|client| client.has_backlog(Some(log)))
        };
        let is_anybody_behind = found.iter().any(is_behind);
        Ok(is_anybody_behind.then(|| (log.add_unwritten(message), None)))
    }

    /// Everybody here has been offered the message. `is_left_behind`: somebody could not take it.
    pub(super) fn end_delivery(
        &mut self,
        message: &Message,
        keeping: Keeping,
        serial: u64,
        is_left_behind: bool,
    ) {
        if is_left_behind {
            self.leave_behind(message, serial);
        }
        if let Some(log) = self.log.as_mut().filter(|_| matches!(keeping, Keeping::New { .. })) {
            log.release_message(serial);
        }
    }

    /// What a publisher gets of its own message was offered.
    pub(super) fn release_own(&mut self, message: &Message, serial: u64, is_left_behind: bool) {
        if is_left_behind {
            self.leave_behind(message, serial);
        }
        if let Some(log) = &mut self.log {
            log.release_message(serial);
        }
    }

    /// Assigns a message of the log to a kept session. True: it cannot take it now, so that the
    /// message is to be left behind for it.
    pub(super) fn assign(&mut self, slot: u32, delivery: Delivery) -> bool {
        let Self { cx, sessions, log, .. } = self;
        let (Some(client), Some(log)) = (sessions.get_mut(slot).expected(), log.as_mut()) else {
            return false;
        };
        let serial = delivery.terms.serial;
        log.need(serial);
        if !log.is_behind(slot) && client.session.has_window() {
            self.dispatch(slot, delivery);
            return false;
        }
        let expired = log.drop_expired(slot, cx.now_ms);
        client.note_expired(cx, expired);
        let limits = client.limits.queue;
        let arrived = (serial, delivery.message.expires_at_ms());
        let Some(turn) = log.fall_behind(slot, arrived, &limits, cx.now_ms) else { return false };
        let offered = match turn {
            Turn::Behind(_) => Offered::Queued,
            Turn::Refused(reached) => match limits.overflow {
                Overflow::Disconnect => Offered::Disconnect(reached),
                Overflow::Reject => Offered::Refused(reached),
                Overflow::DropOldest | Overflow::DropNewest => {
                    Offered::Dropped(Dropped::QueueFull(reached))
                }
            },
        };
        client.after_offer(cx, delivery.as_sent(), offered);
        if let Turn::Behind(Some(reached)) = turn {
            self.drop_oldest(slot, reached);
        }
        matches!(turn, Turn::Behind(_))
    }

    /// Puts a delivery in flight; the window is open.
    pub(super) fn dispatch(&mut self, slot: u32, delivery: Delivery) {
        let Self { cx, sessions, log, .. } = self;
        let (Some(client), Some(log)) = (sessions.get_mut(slot).expected(), log.as_mut()) else {
            return;
        };
        cx.buffers.lend(client);
        let (serial, sent) = (delivery.terms.serial, delivery.as_sent());
        let (offered, packet_id) = client.start(delivery, cx.now_ms);
        match offered {
            Offered::Dropped(_) => log.passed(slot, serial),
            _ => log.sent(client.key, serial, packet_id, sent.qos),
        }
        client.after_offer(cx, sent, offered);
    }

    /// The next delivery in the queue of a session, if it is one whose packet id has to be written
    /// first. False: it is not, or the window is closed.
    pub(super) fn dispatch_unlogged(&mut self, slot: u32) -> bool {
        let client = self.sessions.get_mut(slot);
        let delivery = client.and_then(|client| client.session.take_unlogged());
        let Some(delivery) = delivery else { return false };
        self.dispatch_aside(slot, delivery);
        true
    }

    /// Puts a delivery in flight that is in no queue of the log; the window is open.
    pub(crate) fn dispatch_aside(&mut self, slot: u32, delivery: Delivery) {
        let Self { cx, sessions, log, .. } = self;
        let (Some(client), Some(log)) = (sessions.get_mut(slot).expected(), log.as_mut()) else {
            return;
        };
        let sent = delivery.as_sent();
        let Delivery { message, terms } = delivery;
        let offered = match why_not_aside(client, &message, &log.status(), cx.now_ms) {
            Some(dropped) => Offered::Dropped(dropped),
            None => {
                let serial = log.new_serial();
                let terms = Terms { serial, ..terms };
                let packet_id = client.session.start_uncommitted(Delivery { message, terms });
                log.sent_aside(client.key, serial, packet_id);
                Offered::Queued
            }
        };
        client.after_offer(cx, sent, offered);
    }

    /// Supplies the delivery that the resends of a restored session wait for. False: none does, or
    /// the disk has to be waited for.
    pub(super) fn supply_in_flight(&mut self, slot: u32) -> bool {
        let Self { cx, sessions, log, .. } = self;
        let (Some((client, router)), Some(log)) = (sessions.with_index(slot), log.as_mut()) else {
            return false;
        };
        if !client.session.is_online() {
            return false;
        }
        let Some((packet_id, origin)) = client.session.outgoing.unsupplied() else { return false };
        let delivery = match log.load_for(slot, origin.serial) {
            Loaded::Pending => return false,
            Loaded::Ready(message) => {
                let is_unwritten = log.is_unwritten(origin.serial);
                let wanted = client.delivery_of(router, &message, origin.serial, is_unwritten);
                let mut delivery = wanted.unwrap_or_else(|| begun(message, origin.serial));
                delivery.terms.qos = log.begun_qos(slot, origin.serial);
                Some(delivery)
            }
            Loaded::Gone => {
                client.note_dropped(cx, Dropped::Expired);
                log.finished(slot, origin.serial);
                None
            }
        };
        client.session.outgoing.supply(packet_id, delivery);
        true
    }

    /// A PUBREC for a delivery of the log: its PUBREL leaves when that is written down. False: it
    /// is like any other.
    pub(crate) fn keep_pubrec(&mut self, slot: u32, packet_id: u16) -> bool {
        let Self { sessions, log, .. } = self;
        let (Some(client), Some(log)) = (sessions.get_mut(slot).expected(), log) else {
            return false;
        };
        let origin = client.session.outgoing.origin_of_qos_2(packet_id);
        let is_kept = origin.is_some_and(|it| log.note_released(client.key, it, packet_id));
        if is_kept {
            client.session.outgoing.await_release(packet_id);
        }
        is_kept
    }

    /// A QoS 2 delivery was not sent again, because its client may not have it any more: it is
    /// treated as if its PUBREC had come. False: it is none, or was never sent.
    pub(super) fn release_denied(&mut self, slot: u32, origin: Origin) -> bool {
        let Self { sessions, log, .. } = self;
        let (Some(client), Some(log)) = (sessions.get(slot), log) else { return false };
        let Some(packet_id) = log.packet_id_of(slot, origin.serial) else { return false };
        if client.session.outgoing.origin_of_qos_2(packet_id) != Some(origin) {
            return false;
        }
        if self.keep_pubrec(slot, packet_id) {
            return true;
        }
        let (kind, reason) = (AckKind::Pubrec, Reason::SUCCESS);
        let ack = Ack { kind, packet_id, reason, properties: Properties::EMPTY };
        if let Some(client) = self.sessions.get_mut(slot) {
            // It awaits this.
            let _ = client.session.on_ack(&ack);
            client.mark_dirty(&mut self.cx);
        }
        true
    }

    /// A delivery is over, whoever keeps its message: the log here, or the home of a group.
    /// `is_done`: a group may not give it to another member.
    pub(crate) fn finish_delivery(&mut self, slot: u32, origin: Origin, is_done: bool) {
        match &mut self.log {
            Some(log) if is_logged(origin) => log.finished(slot, origin.serial),
            _ => self.cx.notify_home(origin.group, origin.serial, is_done),
        }
    }
}

fn why_not_aside(
    client: &Client,
    message: &Message,
    status: &Status,
    now_ms: u64,
) -> Option<Dropped> {
    let may_have = !client.rechecks || may_receive(client, message);
    match status {
        _ if message.is_expired(now_ms) => Some(Dropped::Expired),
        _ if !may_have => Some(Dropped::Denied),
        Status::Closed => Some(Dropped::Unlogged),
        status if status.is_out_of_service() || !client.is_kept => Some(Dropped::Unlogged),
        _ => None,
    }
}

/// The terms of a delivery that waits for its turn in the queue of a session, and of which the log
/// gets to know the packet id only.
pub(crate) fn unlogged(terms: Terms) -> Terms {
    Terms { serial: UNLOGGED, ..terms }
}

/// A delivery that had begun is completed, although its subscription is gone (MQTT-3.10.4-3): the
/// client holds its packet id, and would take another message under it for a repetition.
const fn begun(message: Message, serial: u64) -> Delivery {
    let (qos, identifiers) = (QoS::AtLeastOnce, Identifiers::None);
    Delivery { message, terms: Terms { identifiers, group: 0, serial, qos, retain: false } }
}

impl Client {
    /// Is the packet id of such a delivery written down before it leaves?
    pub(crate) fn journals_packet_id(&self, qos: QoS) -> bool {
        qos == QoS::ExactlyOnce && self.is_kept
    }

    /// Puts a delivery of the log in flight, unless it has expired. Returns its packet id.
    fn start(&mut self, delivery: Delivery, now_ms: u64) -> (Offered, u16) {
        if delivery.message.is_expired(now_ms) {
            return (Offered::Dropped(Dropped::Expired), 0);
        }
        if delivery.terms.qos == QoS::ExactlyOnce {
            return (Offered::Queued, self.session.start_uncommitted(delivery));
        }
        let packet_id = self.session.outgoing.next_packet_id();
        let Delivery { message, terms } = delivery;
        let limits = self.limits.queue;
        (self.session.offer(&message, terms, &limits, None, now_ms), packet_id)
    }

    /// Would a message for it be refused, because its queue is full?
    pub(super) fn would_refuse(&self, log: Option<&Log>, message: &Message) -> bool {
        let limits = &self.limits.queue;
        let Some(log) = log.filter(|_| self.is_kept) else {
            return self.session.would_refuse(message, limits);
        };
        let slot = self.key.slot();
        let is_behind = log.is_behind(slot);
        if message.level() == 0 && message.qos() != QoS::ExactlyOnce && !is_behind {
            return self.session.would_refuse(message, limits);
        }
        let is_open = !is_behind && self.session.has_window();
        limits.overflow == Overflow::Reject
            && !is_open
            && log.is_full(slot, message.heap_bytes() as u64, limits)
    }

    /// How it gets a message of its backlog, by the subscriptions of now.
    pub(super) fn delivery_of(
        &self,
        router: &mut Router,
        message: &Message,
        serial: u64,
        is_unwritten: bool,
    ) -> Option<Delivery> {
        let own = self.own_subscriptions(router, Name::of(message));
        let mut terms = terms_of((message, message.traits()), &own, self)?;
        if is_unwritten {
            terms.qos = terms.qos.min(QoS::AtLeastOnce);
        }
        let is_kept = terms.qos != QoS::AtMostOnce;
        is_kept.then(|| Delivery { message: message.clone(), terms: Terms { serial, ..terms } })
    }

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
