//! From a PUBLISH to the shards that want it.

use codec::{Publish, QoS, Reason, Violation};
use policy::{Action, Identity, Manner};
use session::{Inbound, Message, MessageParts, NEVER, Respondent};
use storage::AppendError;
use topic::Interested;

use crate::Shard;
use crate::deliver::copies::{Delivered, Keeping, Routed};
use crate::log::messages::level_of;
use crate::log::passing::ToTakeOn;
use crate::log::store::Log;
use crate::log::waiting::Step;
use crate::observe::spans::write_forwarded;
use crate::parts::client::{Client, Pace};
use crate::parts::notices::NoticeKind;
use crate::parts::router::Audience;
use crate::parts::sessions::Sessions;
use crate::parts::verdicts::Verdict;
use crate::parts::work::Task;
use crate::publish::answer::end_of_refused;
use crate::publish::in_streams::InStreams;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::clearing::frees_room;
use crate::words::expected::Expected;
use crate::words::input::OwnMemory;
use crate::words::ledger::NOBODY;
use crate::words::reasons::{check_sizes, reason_of};
use crate::{Confirm, Ended, Mail, Name};

/// What the checks of a PUBLISH came to.
pub(crate) enum Checked {
    Accept(Message),
    /// There is no memory for it.
    Refuse(Message),
    /// Known. Some: it is retained, perhaps in place of what an older one has put there again.
    Repeat(Option<Message>),
    Deny(Box<str>),
    /// The service that has to allow it could not be asked.
    Unknown(Message),
    Invalid(Violation),
}

impl Shard {
    #[inline]
    fn answer_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        if publish.qos != QoS::AtMostOnce {
            self.queue_answer(slot, publish, reason, asked);
        }
    }

    fn answer_refused(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
    ) -> Result<Pace, Ended> {
        self.answer_publish(slot, publish, reason, None);
        self.sessions.after_refusal(slot)
    }

    #[inline]
    pub(crate) fn answer_routed(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        (routed, asked): (&Routed, Option<&mut Asked>),
    ) -> Result<(), Ended> {
        if let Some(reason) = routed.refused {
            return self.refuse_publish(slot, publish, message, reason).map(drop);
        }
        let reason = if routed.matched {
            Reason::SUCCESS
        } else {
            self.cx.metrics.publishes_unmatched.add(1);
            // A PUBREC only says that the message has come; subscribers are not its matter.
            match publish.qos {
                QoS::ExactlyOnce => Reason::SUCCESS,
                _ => Reason::NO_MATCHING_SUBSCRIBERS,
            }
        };
        self.answer_publish(slot, publish, reason, asked);
        Ok(())
    }

    /// A QoS 2 publish comes again while the first has not reached everybody: this connection
    /// waits for it, too.
    pub(crate) fn await_handover(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        if let Some(log) = &mut self.log
            && let Some(serial) = log.kept.serial_of(slot, publish.packet_id)
            && log.is_under_way(serial)
        {
            log.await_handover(serial, asked.ask(Respondent::HANDOVER));
        }
    }

    /// Not allowed: MQTT 5 clients get the reason, others get a success, as the standard has no
    /// other word for them (MQTT-3.3.5-2 of 3.1.1 allows either this or closing). A name that is
    /// reserved is well-formed and not accepted, which 0x90 says.
    pub(crate) fn deny_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        topic: &str,
    ) -> Result<Pace, Ended> {
        self.cx.metrics.publishes_denied.add(1);
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_as(&mut self.cx, NoticeKind::Denied("publish"), topic, manner);
        }
        let reason = match topic::reserved(topic) {
            Some(_) => Reason::TOPIC_NAME_INVALID,
            None => Reason::NOT_AUTHORIZED,
        };
        if reason == Reason::NOT_AUTHORIZED && self.cx.shared.settings.denied_ends {
            return Err(Ended::Denied);
        }
        let reason = self.sessions.reason_for(slot, reason);
        self.answer_publish(slot, publish, reason, None);
        Ok(Pace::default())
    }

    /// What no journal keeps is refused by none: it waits for nobody, and a repetition is known at
    /// once.
    pub(crate) fn is_awaited(&mut self, message: &Message) -> bool {
        self.log.is_none()
            || message.level() > 0
            || self.cx.shared.settings.rejects
            || self.lacks_room_to_retain(message)
            || !self.sessions.streams_for(message).is_empty()
    }

    /// Is it a QoS 2 publish of a durable session? It is taken on in the journal first, and passed
    /// to the others when it is committed.
    #[inline]
    pub(crate) fn is_taken_on(&self, slot: u32, publish: &Publish<'_>, message: &Message) -> bool {
        // With the retained store about full its home has to be asked first: what is taken on
        // cannot be refused any more.
        publish.qos == QoS::ExactlyOnce
            && message.level() > 0
            && !self.lacks_room_to_retain(message)
            && !self.cx.shared.settings.rejects
            && self.sessions.get(slot).is_some_and(|client| client.is_kept)
    }

    pub(crate) fn publish_taken(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
        let own = 1 << self.cx.id;
        let lacks_disk = self.lacks_disk_for(message, own);
        let places = self.sessions.streams_for(message);
        if let Some(reason) = lacks_disk.or_else(|| self.sessions.reason_of_full(&places)) {
            return self.refuse_publish(slot, publish, message, reason);
        }
        let mut asked = self.sessions.ask_for(slot, publish);
        let confirm = asked.as_mut().map(|asked| asked.ask(Respondent::HANDOVER));
        let serial = match self.take_on(slot, publish.packet_id, (message, &places), confirm) {
            Ok(serial) => serial,
            Err(error) => {
                let reason = reason_of(&error);
                return self.refuse_publish(slot, publish, message, reason);
            }
        };
        let Delivered { mut pace, own, .. } = self.deliver_kept(message, serial);
        self.queue_stored_answer(slot, publish, asked.as_mut());
        pace.slow_to(self.deliver_own(message, own));
        Ok(pace)
    }

    /// Takes a QoS 2 publish of a kept session on, also for the streams at these places. Returns
    /// its serial.
    fn take_on(
        &mut self,
        slot: u32,
        packet_id: u16,
        (message, places): (&Message, &[u32]),
        confirm: Option<Confirm>,
    ) -> Result<u64, AppendError> {
        let Self { cx, sessions, log: Some(log), .. } = self else {
            return Err(AppendError::Closed);
        };
        let Some((client, router)) = sessions.with_index(slot).expected() else {
            return Err(AppendError::Closed);
        };
        let own = ToTakeOn {
            message,
            packet_id,
            mark: cx.topic_mark(Name::of(message)),
            publisher: client.as_publisher(),
            owner: client.charged.account(),
            streams: (router.streams().set(), places),
            confirm,
        };
        let serial = log.take_on(slot, &own, cx.now_ms)?;
        client.session.incoming.insert(packet_id);
        Ok(serial)
    }

    fn queue_answer(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        let awaited = asked.and_then(Asked::take_awaited);
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        self.cx.buffers.lend(client);
        client.session.queue_answer(publish.qos, publish.packet_id, reason, awaited);
        client.mark_dirty(&mut self.cx);
    }

    /// Owes the answer to a publish whose packet id counts as accepted already.
    pub(crate) fn queue_stored_answer(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        asked: Option<&mut Asked>,
    ) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        self.cx.buffers.lend(client);
        let awaited = asked.and_then(Asked::take_awaited);
        client.session.queue_stored_answer(publish.packet_id, awaited);
        client.mark_dirty(&mut self.cx);
    }

    /// No room: refused with 0x97, or by closing the connection of a 3.1.1 client, which then sends
    /// the message again.
    pub(crate) fn refuse_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        reason: Reason,
    ) -> Result<Pace, Ended> {
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_refused(&mut self.cx, message);
        }
        self.cx.note_span_refused(message, reason);
        self.answer_refused(slot, publish, reason)
    }

    pub(crate) fn refuse_topic(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        violation: Violation,
    ) -> Result<Pace, Ended> {
        let is_v5 = self.sessions.get(slot).is_some_and(is_v5);
        if is_v5 && publish.qos != QoS::AtMostOnce && violation.clause.is_empty() {
            self.answer_publish(slot, publish, violation.reason, None);
            return Ok(Pace::default());
        }
        Err(Ended::Violation(violation))
    }

    /// Nobody knows whether it is allowed: to say that it was taken would lose it.
    pub(crate) fn refuse_unknown(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
    ) -> Result<Pace, Ended> {
        self.cx.metrics.publishes_denied.add(1);
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        let reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;
        self.cx.note_span_refused(message, reason);
        if let Some(client) = self.sessions.get_mut(slot).expected() {
            client.note_as(&mut self.cx, NoticeKind::Denied("publish"), message.topic(), manner);
            self.cx.buffers.lend(client);
            client.session.queue_refusal(publish.qos, publish.packet_id, reason);
            client.mark_dirty(&mut self.cx);
        }
        self.sessions.after_refusal(slot)
    }

    /// Subscribers here have had the older ones; the others get the message behind them.
    #[cold]
    pub(crate) fn route_behind(
        &mut self,
        slot: u32,
        message: &Message,
        mut asked: Option<&mut Asked>,
    ) -> Routed {
        let mut routed = Routed::default();
        if asked.is_some()
            && let Some(reason) = self.lacks_disk_for(message, 0)
        {
            routed.refused = Some(reason);
            return routed;
        }
        let stored = match self.store_in_streams(message, asked.as_deref_mut()) {
            Ok(stored) => stored,
            Err(reason) => {
                routed.refused = Some(reason);
                return routed;
            }
        };
        let mut audience =
            self.sessions.router.audience(Name::topic_of(message), &mut self.cx.flow.work);
        let asked_here = (asked.as_deref_mut(), stored);
        let is_taken = self.route_here(message, &mut audience, asked_here, &mut routed);
        let has_others = audience.interested().wants & !(1 << self.cx.id) != 0;
        let goes_on = has_others || !audience.groups().is_empty();
        self.sessions.router.keep(audience);
        if !is_taken {
            return routed;
        }
        routed.matched |= goes_on;
        if goes_on || message.retain() {
            self.wait_in_line(slot, message, asked, false);
        }
        routed
    }

    /// The way of a message to the subscribers here. False: it is refused.
    #[inline(always)]
    pub(crate) fn route_here(
        &mut self,
        message: &Message,
        audience: &mut Audience,
        (asked, stored): (Option<&mut Asked>, InStreams),
        routed: &mut Routed,
    ) -> bool {
        routed.matched |= stored.has_any;
        let keeping = match stored.serial {
            Some(serial) => Keeping::Kept(serial),
            None => Keeping::of_published(asked.as_deref()),
        };
        let delivered = self.deliver_to_all(message, audience.subscriptions(), keeping);
        routed.matched |= delivered.matched;
        routed.pace.slow_to(delivered.pace);
        routed.own = delivered.own;
        if delivered.refused.is_some() {
            routed.refused = delivered.refused;
            return false;
        }
        if let (Some(position), Some(asked), Some(log)) = (delivered.kept, asked, &mut self.log) {
            let confirm = asked.ask(Respondent::OWN_JOURNAL);
            log.wait(position, level_of(message.level()), Step::Answer(confirm));
        }
        true
    }
}

impl Sessions {
    /// A QoS 2 publish comes again for which other places have yet to answer: this connection waits
    /// for them, too.
    pub(crate) fn inherit(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        let Some(client) = self.get_mut(slot).expected() else { return };
        let number = asked.confirm().ack_number;
        if client.session.incoming.inherit(publish.packet_id, number) {
            asked.ask(Respondent::FIRST);
        }
    }

    /// A publish of which the publisher waits for answers; its ack number is the one that
    /// `answer_publish` will get.
    pub(crate) fn ask_for(&self, slot: u32, publish: &Publish<'_>) -> Option<Asked> {
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let client = self.get(slot)?;
        let publisher = client.key;
        let ack_number = client.session.link()?.next_ack_number();
        let connection = client.connection;
        let packet_id = publish.packet_id;
        let (serial, is_will, is_again) = (0, false, false);
        let owner = client.charged.account().map_or(NOBODY, |account| account.number());
        Some(Asked::new(Confirm {
            publisher,
            connection,
            ack_number,
            packet_id,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            owner,
            is_again,
        }))
    }

    /// Clients of 3.1.1 are disconnected when the publishes before have been answered, and so are
    /// publishers of QoS 2 on a log that is out of service.
    fn after_refusal(&mut self, slot: u32) -> Result<Pace, Ended> {
        let link = self.get_mut(slot).and_then(|client| client.session.link_mut());
        // What the message led to has ended the connection.
        let Some(link) = link else { return Ok(Pace::default()) };
        if link.is_lost {
            link.refuse_rest();
        }
        end_of_refused(link).map_or(Ok(Pace::default()), Err)
    }

    fn reason_for(&self, slot: u32, reason: Reason) -> Reason {
        match self.get(slot) {
            Some(client) if is_v5(client) => reason,
            _ => Reason::SUCCESS,
        }
    }
}

impl Shard {
    /// The way of a message from the subscribers here to the groups and the other shards.
    pub(super) fn route_onward(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let topic = Name::topic_of(message);
        let audience = self.sessions.router.audience(topic, &mut self.cx.flow.work);
        self.route_to_groups(message, audience.groups(), asked.as_deref_mut(), routed);
        self.route_to_others(message, audience.interested(), asked, routed);
        self.sessions.router.keep(audience);
    }

    pub(super) fn route_to_groups(
        &mut self,
        message: &Message,
        matches: &[u32],
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let mut over = 0;
        for group in matches {
            if self.groups.is_over(*group) {
                over += 1;
                continue;
            }
            routed.matched = true;
            self.deliver_to_group(*group, message, asked.as_deref_mut());
        }
        self.cx.flow.work.charge_for(Task::EmptyGroups(over));
    }

    pub(super) fn route_to_others(
        &mut self,
        message: &Message,
        interested: Interested,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let mut others = interested.wants & !(1 << self.cx.id);
        routed.matched |= others != 0;
        while others != 0 {
            let shard = others.trailing_zeros() as u16;
            others &= others - 1;
            // One that was taken on may be mailed again after a crash: who has kept it meanwhile,
            // though nobody there was promised it yet, has to know it by its serial.
            let promises = interested.promises & (1 << shard) != 0;
            let is_awaited = |asked: &&mut Asked| promises || asked.confirm().serial != 0;
            let owner = self.owner_number(message, asked.as_deref());
            let confirm = asked.as_deref_mut().filter(is_awaited).map(|a| a.ask_shard(shard));
            self.cx.send(shard, Mail::Publish { message: message.clone(), confirm, owner });
        }
    }
}

impl Client {
    /// Counts a message that is refused to its publisher, and reports the publisher.
    pub(crate) fn note_refused(&mut self, cx: &mut Context, message: &Message) {
        cx.metrics.publishes_refused.add(1);
        self.note(cx, NoticeKind::Refused, message.topic());
    }
}

fn is_v5(client: &Client) -> bool {
    client.session.link().is_some_and(session::Link::is_v5)
}

/// Checks a PUBLISH and makes it a message: the one allocation on its way.
pub(crate) fn check(
    client: &mut Client,
    cx: &mut Context,
    log: Option<&Log>,
    publish: &Publish<'_>,
    memory: OwnMemory<'_>,
) -> Result<Checked, Ended> {
    cx.metrics.publishes_received.count(publish.qos as usize);
    cx.metrics.publish_bytes_received.add(publish.payload.len() as u64);
    cx.flow.work.charge(client.grants.topic_units());
    check_offered(client, publish).map_err(Ended::Violation)?;
    let is_undone = publish.retain && client.has_undone(log, publish.packet_id);
    let asks = client.grants.asks_service();
    let verdict = if asks { client.verdict_of(publish, cx) } else { None };
    let Client { scope, id, key, username, principal, grants, limits, session, .. } = client;
    let name = Name::new(*scope, &**id);
    let author = session.link_mut().map_or(0, |link| link.author(|| name.author()));
    let inbound = session.on_publish(publish).map_err(Ended::Violation)?;
    let (publishing, is_repeat) = match inbound {
        Inbound::Accept(publishing) => (publishing, false),
        Inbound::Repeat(_) if !is_undone => return Ok(Checked::Repeat(None)),
        Inbound::Repeat(publishing) => (publishing, true),
    };
    let topic = publishing.topic;
    if let Err(violation) = check_sizes(topic, publish.properties, limits) {
        return Ok(Checked::Invalid(violation));
    }
    let identity = Identity::new(id, username.as_deref()).with(principal.as_deref());
    let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
    let is_let = matches!(verdict, Some(Verdict::Allowed | Verdict::Unknown));
    if !grants.allows_as(identity, Action::Publish, topic, manner) && !is_let {
        return Ok(Checked::Deny(topic.into()));
    }
    let properties = if publishing.rewrite_properties {
        let own = match cx.tracing {
            Some(_) if !is_repeat => cx.note_received(Name::new(*scope, id), *key, publish, topic),
            _ => None,
        };
        let buffer = cx.buffers.properties();
        write_forwarded(publish.properties, own, buffer);
        buffer.as_properties().raw()
    } else {
        publish.properties.raw()
    };
    let parts = MessageParts {
        topic,
        properties,
        payload: publish.payload,
        qos: publish.qos,
        retain: publish.retain,
        expires_at_ms: limits
            .message_expiry_secs(publishing.message_expiry_secs)
            .map_or(NEVER, |secs| cx.now_ms + u64::from(secs) * 1000),
        publisher: key.as_u64(),
        author,
        level: match log {
            Some(_) => cx.shared.settings.level_of(topic, limits.durability),
            None => 0,
        },
        scope: scope.number(),
    };
    let message = match memory {
        Some(memory) => Message::of_packet(&parts, memory),
        None => Message::new(&parts),
    };
    Ok(outcome_of(client, cx, message, (verdict, is_repeat)))
}

/// What becomes of a message that nothing forbids.
#[inline]
fn outcome_of(
    client: &Client,
    cx: &mut Context,
    message: Message,
    (verdict, is_repeat): (Option<Verdict>, bool),
) -> Checked {
    if verdict == Some(Verdict::Unknown) {
        return Checked::Unknown(message);
    }
    if is_repeat {
        return Checked::Repeat(Some(message));
    }
    let is_refused = cx.shared.memory_is_short()
        && !frees_room(&message)
        && client.lacks_memory(cx, message.heap_bytes());
    if is_refused { Checked::Refuse(message) } else { Checked::Accept(message) }
}

fn check_offered(client: &Client, publish: &Publish<'_>) -> Result<(), Violation> {
    if publish.qos > client.limits.qos_max {
        return Err(Violation {
            reason: Reason::QOS_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-11",
            detail: "QoS of a publish above qos_max",
        });
    }
    if publish.retain && !client.limits.retain_available {
        return Err(Violation {
            reason: Reason::RETAIN_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-14",
            detail: "retained publish, but retained messages are disabled (retain_available)",
        });
    }
    Ok(())
}
