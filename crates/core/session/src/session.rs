//! A session: link, incoming and outgoing flows joined.

use codec::{Ack, AckKind, Property, Publish, QoS, Reason, Violation};

use crate::{
    Acked, Amount, Awaited, Delivery, Expires, Incoming, Link, LinkSettings, Message, NEVER,
    Origin, Outgoing, Publishing, Rates, Respondent, Sent, Template, Terms,
};

/// What happens to a delivery when the queue of its session is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The oldest waiting delivery makes room.
    #[default]
    DropOldest,
    /// The new delivery is dropped.
    DropNewest,
    /// The publisher is notified: 0x97 (MQTT 5), or its connection is closed (3.1.1).
    Reject,
    /// The subscriber's connection is closed; its session and queue stay, the new one is dropped.
    Disconnect,
}

/// How much may wait in one session.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    pub messages_max: u32,
    pub bytes_max: u64,
    pub overflow: Overflow,
    /// Does QoS 0 wait, too, for a session without a connection?
    pub keeps_qos0: bool,
}

impl QueueLimits {
    /// What is left of them where so much waits elsewhere.
    pub const fn less(&self, elsewhere: Amount) -> Self {
        Self {
            messages_max: self.messages_max.saturating_sub(elsewhere.messages),
            bytes_max: self.bytes_max.saturating_sub(elsewhere.bytes),
            ..*self
        }
    }
}

/// Deliveries that may wait for a connected client before its publishers are slowed.
const QUEUE_CALM_MAX: usize = 1000;

/// How long a client may be behind and slow its publishers, before it is left to its own limits.
const PATIENCE_MS: u64 = 500;

/// A client that takes as much in that time is not slow: its publishers are too fast, and wait on.
const PACE_BYTES_MIN: u32 = 64 * 1024;

/// The limit that a full queue has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueueLimit {
    /// Of its messages.
    Messages,
    /// Of its bytes.
    Bytes,
    /// Of the memory for all queues, as divided between namespaces and owners.
    Share,
    /// Of what is queued in its namespace.
    Namespace,
    /// Of the memory of the process, which is short.
    Memory,
}

impl QueueLimit {
    pub const ALL: [Self; 5] =
        [Self::Messages, Self::Bytes, Self::Share, Self::Namespace, Self::Memory];

    /// The `limit` of events and metrics: a key of `[limits]`, or of a namespace.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Messages => "queued_messages_max",
            Self::Bytes => "queued_bytes_max",
            Self::Share => "queues_bytes_max",
            Self::Namespace => "namespaces.queued_bytes_max",
            Self::Memory => "memory_bytes_max",
        }
    }

    /// What a queue lacks that holds so much and is to take so many bytes more, if it is full.
    pub fn reached(queued: Amount, bytes: u64, limits: &QueueLimits) -> Option<Self> {
        if queued.messages >= limits.messages_max {
            return Some(Self::Messages);
        }
        (queued.bytes + bytes > limits.bytes_max).then_some(Self::Bytes)
    }

    /// The limit of which a queue holds more, if it does.
    pub const fn exceeded(queued: Amount, limits: &QueueLimits) -> Option<Self> {
        if queued.messages > limits.messages_max {
            return Some(Self::Messages);
        }
        if queued.bytes > limits.bytes_max { Some(Self::Bytes) } else { None }
    }
}

/// Why a delivery was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dropped {
    /// The queue was full and the policy chose this one.
    QueueFull(QueueLimit),
    /// QoS 0 to a subscriber that reads too slowly.
    SlowSubscriber,
    /// QoS 0 to a session without a connection.
    Offline,
    /// The message expiry interval ran out (MQTT-3.3.2-5).
    Expired,
    /// Larger than the client's maximum packet size (MQTT-3.1.2-25).
    TooLarge,
    /// The access rules have changed: the client may not have it any more.
    Denied,
    /// No journal has room for its packet id, which a QoS 2 delivery to a kept session needs.
    Unlogged,
}

impl Dropped {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::QueueFull(QueueLimit::Messages),
        Self::QueueFull(QueueLimit::Bytes),
        Self::QueueFull(QueueLimit::Share),
        Self::QueueFull(QueueLimit::Namespace),
        Self::QueueFull(QueueLimit::Memory),
        Self::SlowSubscriber,
        Self::Offline,
        Self::Expired,
        Self::TooLarge,
        Self::Denied,
        Self::Unlogged,
    ];

    /// The `reason` of journals, events and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::QueueFull(_) => "queue_full",
            Self::SlowSubscriber => "slow_subscriber",
            Self::Offline => "offline",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::Denied => "denied",
            Self::Unlogged => "log_unavailable",
        }
    }

    /// The limit that was the reason.
    pub const fn limit(self) -> Option<QueueLimit> {
        match self {
            Self::QueueFull(limit) => Some(limit),
            _ => None,
        }
    }

    /// Its place in [`Dropped::ALL`].
    pub const fn place(self) -> usize {
        const LIMITS: usize = QueueLimit::ALL.len();
        match self {
            Self::QueueFull(limit) => limit as usize,
            Self::SlowSubscriber => LIMITS,
            Self::Offline => LIMITS + 1,
            Self::Expired => LIMITS + 2,
            Self::TooLarge => LIMITS + 3,
            Self::Denied => LIMITS + 4,
            Self::Unlogged => LIMITS + 5,
        }
    }
}

/// What became of an offered delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offered {
    /// It is in the outbox: flush the connection.
    Written,
    /// It waits in the queue.
    Queued,
    /// It waits; so many of the oldest were dropped for it, at this limit.
    QueuedForOldest(u32, QueueLimit),
    Dropped(Dropped),
    /// Not taken, at this limit: notify the publisher.
    Refused(QueueLimit),
    /// Not taken, at this limit: close the subscriber's connection.
    Disconnect(QueueLimit),
}

/// What to do with a publish from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inbound<'a> {
    /// New: pass it on, then queue the acknowledgement.
    Accept(Publishing<'a>),
    /// A QoS 2 publish that was accepted before: only acknowledge it (MQTT-4.3.3-10).
    Repeat(Publishing<'a>),
}

/// The protocol state of one client id.
#[derive(Debug, Default)]
pub struct Session {
    link: Option<Box<Link>>,
    pub incoming: Incoming,
    pub outgoing: Outgoing,
}

impl Session {
    pub fn link(&self) -> Option<&Link> {
        self.link.as_deref()
    }

    pub fn link_mut(&mut self) -> Option<&mut Link> {
        self.link.as_deref_mut()
    }

    pub const fn is_online(&self) -> bool {
        self.link.is_some()
    }

    /// The session is of an earlier life of the broker.
    pub const fn mark_resumed(&mut self) {
        self.outgoing.is_resumed = true;
    }

    /// A connection takes over the session. Call [`Session::pump`] after the CONNACK. `seed`: a
    /// number that clients cannot guess.
    pub fn attach(&mut self, settings: LinkSettings, rates: Rates, seed: u64, now_ms: u64) {
        self.outgoing.resume();
        self.link = Some(Box::new(Link::new(settings, rates, seed, now_ms)));
    }

    /// The connection is gone, and all that belonged to it.
    pub fn detach(&mut self) -> Option<Box<Link>> {
        self.outgoing.resume();
        self.outgoing.is_resumed = true;
        self.outgoing.shrink();
        self.incoming.shrink();
        self.link.take()
    }

    /// Checks a PUBLISH from the client: alias, quota, duplicate.
    pub fn on_publish<'a>(&'a mut self, publish: &Publish<'a>) -> Result<Inbound<'a>, Violation> {
        let Some(link) = self.link.as_deref_mut() else {
            let (topic, message_expiry_secs, rewrite_properties) = (publish.topic, None, false);
            return Ok(Inbound::Repeat(Publishing {
                topic,
                message_expiry_secs,
                rewrite_properties,
            }));
        };
        let mut alias = None;
        let mut message_expiry_secs = None;
        for property in publish.properties.iter() {
            match property {
                Property::TopicAlias(value) => alias = Some(value),
                Property::MessageExpirySecs(secs) => message_expiry_secs = Some(secs),
                _ => {}
            }
        }
        let is_known = publish.qos == QoS::ExactlyOnce && self.incoming.contains(publish.packet_id);
        let is_counted = publish.qos != QoS::AtMostOnce && !is_known;
        if is_counted && !link.take_receive_quota() && link.is_v5() {
            return Err(Violation {
                reason: Reason::RECEIVE_MAXIMUM_EXCEEDED,
                clause: "MQTT-3.3.4-9",
                detail: "more unacknowledged publishes than the server's receive maximum",
            });
        }
        let may_rewrite = link.settings().rewrites_properties;
        // A repeated publish, too, may set an alias for those after it.
        let topic = resolve_alias(link, publish.topic, alias)?;
        let rewrite_properties = may_rewrite | alias.is_some() | message_expiry_secs.is_some();
        let publishing = Publishing { topic, message_expiry_secs, rewrite_properties };
        Ok(if is_known { Inbound::Repeat(publishing) } else { Inbound::Accept(publishing) })
    }

    /// Owes the answer to an accepted PUBLISH.
    ///
    /// An accepted QoS 2 id is remembered at once, so that a repetition is not passed on twice.
    pub fn queue_answer(
        &mut self,
        qos: QoS,
        packet_id: u16,
        reason: Reason,
        awaited: Option<Awaited>,
    ) {
        let Some(kind) = answer_to(qos) else { return };
        if kind == AckKind::Pubrec && !reason.is_error() {
            self.incoming.insert(packet_id);
            match awaited {
                None => self.incoming.confirm(packet_id),
                Some(_) => self.incoming.await_answers(packet_id),
            }
        }
        if let Some(link) = self.link.as_deref_mut() {
            link.queue_ack(kind, packet_id, reason, awaited);
        }
    }

    /// Owes the answer to a PUBLISH that was refused ahead of every log.
    pub fn queue_refusal(&mut self, qos: QoS, packet_id: u16, reason: Reason) {
        let (Some(kind), Some(link)) = (answer_to(qos), self.link.as_deref_mut()) else { return };
        link.queue_refusal(kind, packet_id, reason);
    }

    /// Owes the PUBREC of a publish that is kept whatever happens: its packet id counts as
    /// accepted.
    pub fn queue_stored_answer(&mut self, packet_id: u16, awaited: Option<Awaited>) {
        self.incoming.insert(packet_id);
        if let Some(link) = self.link.as_deref_mut() {
            link.queue_ack(AckKind::Pubrec, packet_id, Reason::SUCCESS, awaited);
        }
    }

    /// The publish `number` waits for these, too.
    pub fn await_more(&mut self, number: u32, others: &Awaited) {
        if let Some(link) = self.link.as_deref_mut() {
            link.await_more(number, others);
        }
    }

    /// One of those that a publish waits for has answered: accepted it, or not.
    pub fn settle(&mut self, number: u32, respondent: Respondent, reason: Reason) {
        let Some(link) = self.link.as_deref_mut() else { return };
        let Some(ack) = link.note_answer(number, respondent, reason) else { return };
        if ack.answer.kind == AckKind::Pubrec {
            if reason.is_error() {
                // A refused publish is over with its PUBREC (MQTT-4.3.3-9).
                self.incoming.release(ack.answer.packet_id);
            } else if ack.awaited.is_empty() && !ack.answer.reason.is_error() {
                self.incoming.confirm(ack.answer.packet_id);
            }
        }
        link.write_settled();
    }

    /// PUBREL from the client, answered with PUBCOMP.
    pub fn on_pubrel(&mut self, packet_id: u16) {
        let known = self.incoming.release(packet_id);
        let Some(link) = self.link.as_deref_mut() else { return };
        if known {
            link.give_receive_quota();
        }
        // Not an error during recovery (section 3.7.2.1): the PUBCOMP was lost with the connection.
        let unknown_v5 = !known && link.is_v5() && !self.outgoing.is_resumed;
        let reason = if unknown_v5 { Reason::PACKET_IDENTIFIER_NOT_FOUND } else { Reason::SUCCESS };
        link.write_ack(AckKind::Pubcomp, packet_id, reason);
    }

    /// PUBACK, PUBREC or PUBCOMP from the client.
    pub fn on_ack(&mut self, ack: &Ack<'_>) -> Result<Acked, Violation> {
        let acked = self.outgoing.on_ack(ack.kind, ack.packet_id, ack.reason.is_error());
        let Some(link) = self.link.as_deref_mut() else { return Ok(acked) };
        match (acked, ack.kind) {
            (Acked::Release, _) => {
                link.write_ack(AckKind::Pubrel, ack.packet_id, Reason::SUCCESS);
            }
            (Acked::Unknown, AckKind::Pubrec) if !ack.reason.is_error() => {
                let v5 = link.is_v5();
                let reason = if v5 { Reason::PACKET_IDENTIFIER_NOT_FOUND } else { Reason::SUCCESS };
                link.write_ack(AckKind::Pubrel, ack.packet_id, reason);
            }
            (Acked::Mismatch, _) => {
                return Err(Violation {
                    reason: Reason::PROTOCOL_ERROR,
                    clause: "MQTT-4.3.3-4",
                    detail: "acknowledgement of another kind than the publish asks for",
                });
            }
            _ => {}
        }
        Ok(acked)
    }

    /// Is there a place in the window for one more delivery right now?
    pub fn has_window(&self) -> bool {
        self.link
            .as_ref()
            .is_some_and(|link| link.has_room() && self.outgoing.is_open(link.settings().send_max))
    }

    /// Would the queue limits refuse one more delivery of this message?
    pub fn would_refuse(&self, message: &Message, limits: &QueueLimits) -> bool {
        limits.overflow == Overflow::Reject
            && !self.has_window()
            && self.limit_reached(message.heap_bytes() as u64, limits).is_some()
    }

    /// The message has been refused, as it [would be](Self::would_refuse).
    pub fn count_refusal(&self, message: &Message) {
        self.outgoing.count_refusal(message.heap_bytes() as u64);
    }

    /// Why is there no room for one more delivery of so many bytes in the queue of this session?
    fn own_limit_reached(&self, bytes: u64, limits: &QueueLimits) -> Option<QueueLimit> {
        QueueLimit::reached(self.outgoing.live(), bytes, limits)
    }

    /// The same, or why is there none among the queues of its account?
    fn limit_reached(&self, bytes: u64, limits: &QueueLimits) -> Option<QueueLimit> {
        self.own_limit_reached(bytes, limits).or_else(|| self.outgoing.shared_limit_reached(bytes))
    }

    /// Offers a delivery: written at once if the window is open, queued otherwise. The session
    /// takes a share in the message only if it has to keep it. With a template, it is one of many
    /// sessions that are offered the message now.
    #[inline]
    pub fn offer(
        &mut self,
        message: &Message,
        terms: Terms,
        limits: &QueueLimits,
        template: Option<&mut Template>,
        now_ms: u64,
    ) -> Offered {
        if message.is_expired(now_ms) {
            return Offered::Dropped(Dropped::Expired);
        }
        if terms.qos == QoS::AtMostOnce {
            // What is kept already must not be overtaken (MQTT-4.6.0-6).
            let is_behind = self.link.is_none() || self.outgoing.queued() > 0;
            if !limits.keeps_qos0 || !is_behind {
                return self.offer_at_most_once(message, &terms, template, now_ms);
            }
        } else if self.has_window() {
            return self.send(Delivery { message: message.clone(), terms }, template, now_ms);
        }
        self.offer_to_queue(Delivery { message: message.clone(), terms }, limits, now_ms)
    }

    /// Offers a delivery that nobody sends at a pace of their own, such as a retained message:
    /// QoS 0 waits for room, too, instead of being dropped.
    pub fn offer_or_wait(
        &mut self,
        message: &Message,
        terms: Terms,
        limits: &QueueLimits,
        now_ms: u64,
    ) -> Offered {
        let is_open =
            self.outgoing.queued() == 0 && self.link.as_deref().is_some_and(Link::has_room);
        let waits = self.link.is_some() && !is_open && !message.is_expired(now_ms);
        if terms.qos == QoS::AtMostOnce && waits {
            let delivery = Delivery { message: message.clone(), terms };
            return self.offer_to_queue(delivery, limits, now_ms);
        }
        self.offer(message, terms, limits, None, now_ms)
    }

    fn offer_to_queue(&mut self, delivery: Delivery, limits: &QueueLimits, now_ms: u64) -> Offered {
        let Some(reached) = self.limit_reached(delivery.bytes(), limits) else {
            self.outgoing.enqueue(delivery, now_ms);
            return Offered::Queued;
        };
        debug_assert!(
            !self.outgoing.has_expired(now_ms),
            "a copy that has expired takes room (MQTT-3.3.2-5)"
        );
        self.outgoing.count_refusal(delivery.bytes());
        match limits.overflow {
            Overflow::DropOldest => self.enqueue_for_oldest(delivery, limits, reached, now_ms),
            Overflow::DropNewest => Offered::Dropped(Dropped::QueueFull(reached)),
            Overflow::Reject => Offered::Refused(reached),
            Overflow::Disconnect => Offered::Disconnect(reached),
        }
    }

    fn enqueue_for_oldest(
        &mut self,
        delivery: Delivery,
        limits: &QueueLimits,
        reached: QueueLimit,
        now_ms: u64,
    ) -> Offered {
        let bytes = delivery.bytes();
        let fits_at_all = limits.messages_max > 0 && bytes <= limits.bytes_max;
        // Where others hold what its account lacks, a session takes as much as it gives up.
        let makes_room = self.outgoing.queued_bytes() >= bytes
            || self.outgoing.shared_limit_reached(bytes).is_none();
        if !fits_at_all || !makes_room {
            return Offered::Dropped(Dropped::QueueFull(reached));
        }
        let (mut dropped, mut freed) = (0, 0);
        while self.limit_reached(bytes, limits).is_some()
            && (freed < bytes || self.own_limit_reached(bytes, limits).is_some())
            && let Some(oldest) = self.outgoing.dequeue()
        {
            dropped += 1;
            freed += oldest.bytes();
        }
        self.outgoing.enqueue(delivery, now_ms);
        Offered::QueuedForOldest(dropped, reached)
    }

    fn offer_at_most_once(
        &mut self,
        message: &Message,
        terms: &Terms,
        template: Option<&mut Template>,
        now_ms: u64,
    ) -> Offered {
        let Some(link) = self.link.as_deref_mut() else {
            return Offered::Dropped(Dropped::Offline);
        };
        if !link.has_room() {
            return Offered::Dropped(Dropped::SlowSubscriber);
        }
        if link.write_first(message, terms, 0, template, now_ms) {
            Offered::Written
        } else {
            Offered::Dropped(Dropped::TooLarge)
        }
    }

    fn send(
        &mut self,
        delivery: Delivery,
        template: Option<&mut Template>,
        now_ms: u64,
    ) -> Offered {
        let Some(link) = self.link.as_deref_mut() else {
            return Offered::Dropped(Dropped::Offline);
        };
        if self.outgoing.has_withheld() {
            self.outgoing.start(delivery);
            return Offered::Queued;
        }
        let packet_id = self.outgoing.next_packet_id();
        if !link.write_first(&delivery.message, &delivery.terms, packet_id, template, now_ms) {
            self.outgoing.skip_packet_id();
            return Offered::Dropped(Dropped::TooLarge);
        }
        self.outgoing.start(delivery);
        Offered::Written
    }

    /// Puts a QoS 2 delivery in flight that must not leave before [`Session::commit`]. The window
    /// must be open ([`Session::has_window`]). Returns its packet id. What is sent from now on is
    /// withheld behind it.
    pub fn start_uncommitted(&mut self, delivery: Delivery) -> u16 {
        self.outgoing.start_uncommitted(delivery)
    }

    /// The packet id of an uncommitted delivery is on disk: the publish may leave, and what was
    /// withheld behind it, as far as the client still `may_have` it. `report` hears of each, as in
    /// [`Session::pump`]. False: it belongs to an earlier link, and leaves with what is pumped.
    pub fn commit(
        &mut self,
        packet_id: u16,
        now_ms: u64,
        may_have: impl Fn(&Message) -> bool,
        mut report: impl FnMut(Result<Sent, (Dropped, Origin)>),
    ) -> bool {
        let is_of_this_link = self.outgoing.commit(packet_id);
        let Some(link) = self.link.as_deref_mut() else { return is_of_this_link };
        while let Some((packet_id, message, terms)) = self.outgoing.next_released() {
            let why = if !may_have(message) {
                Dropped::Denied
            } else if link.write_publish(message, terms, (packet_id, false), now_ms) {
                report(Ok(Sent { qos: terms.qos, payload_bytes: message.payload_len() }));
                continue;
            } else {
                Dropped::TooLarge
            };
            let origin = self.outgoing.give_up(packet_id).unwrap_or_default();
            report(Err((why, origin)));
        }
        is_of_this_link
    }

    /// Moves what waits into the outbox, as far as window and outbox allow: first what has to be
    /// sent again, then the queue. `may_have` is asked about each message that waited; `report`
    /// hears of each delivery that leaves the queue, and of each that is
    /// given up on the way.
    pub fn pump(
        &mut self,
        now_ms: u64,
        may_have: impl Fn(&Message) -> bool,
        mut report: impl FnMut(Result<Sent, (Dropped, Origin)>),
    ) {
        let Some(link) = self.link.as_deref_mut() else { return };
        let dropped = |dropped, origin| report(Err((dropped, origin)));
        if !self.outgoing.resend(link, now_ms, &may_have, dropped) {
            return;
        }
        let send_max = link.settings().send_max;
        while self.outgoing.room(send_max) > 0 {
            if !self.link.as_deref().is_some_and(Link::has_room) {
                return;
            }
            if self.outgoing.waits_for_journal() {
                return;
            }
            let Some(delivery) = self.outgoing.dequeue() else { return };
            let sent = delivery.as_sent();
            let offered = if delivery.message.is_expired(now_ms) {
                if delivery.terms.qos != QoS::AtMostOnce {
                    self.outgoing.skip_packet_id();
                }
                Offered::Dropped(Dropped::Expired)
            } else if !may_have(&delivery.message) {
                Offered::Dropped(Dropped::Denied)
            } else if delivery.terms.qos == QoS::AtMostOnce {
                self.offer_at_most_once(&delivery.message, &delivery.terms, None, now_ms)
            } else {
                self.send(delivery, None, now_ms)
            };
            match offered {
                Offered::Dropped(dropped) => report(Err((dropped, Origin::default()))),
                // It is withheld, and reported when it leaves.
                Offered::Queued => {}
                _ => report(Ok(sent)),
            }
        }
    }

    /// Takes the next waiting delivery for [`Session::start_uncommitted`], if it is one whose
    /// packet id has to be in the journal before it leaves, and the window is open for it. Until
    /// then [`Session::pump`] moves nothing that stands behind it.
    pub fn take_unlogged(&mut self) -> Option<Delivery> {
        let link = self.link.as_ref().filter(|link| link.has_room())?;
        let is_next = self.outgoing.waits_for_journal() && !self.outgoing.has_unsent();
        let has_place = is_next && self.outgoing.room(link.settings().send_max) > 0;
        has_place.then(|| self.outgoing.dequeue()).flatten()
    }

    /// Gives back memory that only traffic needs. For sessions that have been quiet for a while.
    pub fn shrink(&mut self) {
        self.outgoing.shrink();
        self.incoming.shrink();
        if let Some(link) = &mut self.link {
            link.shrink();
        }
    }

    /// Does the client take what it is sent, but more slowly than it comes? Then its publishers
    /// should wait a little. Says for how many milliseconds it has been so. One that does not catch
    /// up in time holds up nobody any more. `waiting` deliveries wait elsewhere than in its own
    /// queue, which is no matter up to `calm_bytes`.
    #[inline]
    pub fn behind_ms(&mut self, waiting: usize, calm_bytes: u64, now_ms: u64) -> Option<u64> {
        let link = self.link.as_deref_mut()?;
        let outbox_bytes_high = link.settings().outbox_bytes_max as usize / 2;
        let is_behind = link.outbox.len() > outbox_bytes_high
            || self.outgoing.queued() + waiting > QUEUE_CALM_MAX
            || self.outgoing.queued_bytes() > calm_bytes;
        if !is_behind {
            return None;
        }
        if link.behind_since_ms == NEVER {
            (link.behind_since_ms, link.taken_bytes) = (now_ms, 0);
        }
        if now_ms - link.behind_since_ms >= PATIENCE_MS && link.taken_bytes >= PACE_BYTES_MIN {
            // It reads well, and is sent more than anybody could read.
            (link.behind_since_ms, link.taken_bytes) = (now_ms, 0);
        }
        Some(now_ms - link.behind_since_ms).filter(|behind_ms| *behind_ms < PATIENCE_MS)
    }

    /// Unacknowledged deliveries, and how many more may be sent at once.
    pub fn load(&self) -> (u16, u16) {
        let room = match &self.link {
            Some(link) if self.has_window() => self.outgoing.room(link.settings().send_max),
            _ => 0,
        };
        (self.outgoing.in_flight(), room)
    }
}

const fn answer_to(qos: QoS) -> Option<AckKind> {
    match qos {
        QoS::AtMostOnce => None,
        QoS::AtLeastOnce => Some(AckKind::Puback),
        QoS::ExactlyOnce => Some(AckKind::Pubrec),
    }
}

fn resolve_alias<'a>(
    link: &'a mut Link,
    topic: &'a str,
    alias: Option<u16>,
) -> Result<&'a str, Violation> {
    let Some(alias) = alias else { return Ok(topic) };
    if alias == 0 || alias > link.settings().alias_in_max {
        return Err(Violation {
            reason: Reason::TOPIC_ALIAS_INVALID,
            clause: "MQTT-3.3.2-9",
            detail: "topic alias above the server's maximum",
        });
    }
    if !topic.is_empty() {
        link.aliases_in().set(alias, topic);
        return Ok(topic);
    }
    link.aliases_in().topic(alias).ok_or(Violation {
        reason: Reason::PROTOCOL_ERROR,
        clause: "MQTT-3.3.2-8",
        detail: "topic alias without a topic, and none was set for it",
    })
}
