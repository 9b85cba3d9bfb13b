//! From a PUBLISH to the shards that want it.

use codec::{Property, Publish, QoS, Reason, Violation};
use session::{Inbound, Message, MessageParts, NEVER, Respondent};
use topic::Interested;

use crate::clients::client::{Client, Pace};
use crate::clients::notices::Kind;
use crate::durable::{Promise, level_of};
use crate::flow::work::GROUPS_OVER_PER_UNIT;
use crate::limits::ledger::NOBODY;
use crate::routing::asked::Asked;
use crate::routing::capacity::frees_room;
use crate::routing::deliver::{Delivered, Keeping, OwnCopy};
use crate::routing::router::Audience;
use crate::shard::OwnMemory;
use crate::sure::Sure;
use crate::{Confirm, Ended, Limits, Mail, Name, SessionKey, Settings, Shard, WhenFull};
use policy::{Action, Identity, Manner};

/// What became of a message on its way.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    matched: bool,
    /// Why the message was not taken, if it was not.
    pub(crate) refused: Option<Reason>,
    /// Of the slowest subscriber here.
    pace: Pace,
    own: Option<Box<OwnCopy>>,
}

/// What the checks of a PUBLISH came to.
enum Checked {
    Accept(Message),
    /// Known. Some: it is retained, perhaps in place of what an older one has put there again.
    Repeat(Option<Message>),
    Deny(Box<str>),
    Invalid(Violation),
}

impl Routed {
    /// Is there anybody who wants it?
    pub(crate) const fn has_matched(&self) -> bool {
        self.matched
    }
}

impl Shard {
    /// Returns how the slowest subscriber keeps pace.
    pub(crate) fn on_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        memory: OwnMemory<'_>,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        let metrics = self.metrics();
        metrics.publishes_received.add(1);
        metrics.publish_bytes_received.add(publish.payload.len() as u64);
        let key = self.key(slot);
        let Some(client) = self.clients.get_mut(slot).sure() else { return Ok(Pace::default()) };
        self.work.charge(client.grants.topic_units());
        let settings = self.store.as_ref().map(|_| &self.shared.settings);
        let buffers = (self.buffers.properties(), memory);
        let checked = check(client, publish, buffers, settings, key, now_ms)?;
        let message = match checked {
            Checked::Accept(message) => message,
            Checked::Repeat(retained) => {
                self.on_repeat(slot, publish, retained.as_ref());
                return Ok(Pace::default());
            }
            Checked::Deny(topic) => return self.deny_publish(slot, publish, &topic, now_ms),
            Checked::Invalid(violation) => return self.refuse_topic(slot, publish, violation),
        };
        if self.shared.memory_is_short()
            && !frees_room(&message)
            && self.lacks_memory(slot, message.heap_bytes())
        {
            let reason = Reason::QUOTA_EXCEEDED;
            return self.refuse_publish(slot, publish, &message, reason, now_ms);
        }
        let disk = self.pace_of_disk();
        let mut pace = match self.is_taken_on(slot, publish, &message) {
            true => self.publish_taken(slot, publish, &message, now_ms)?,
            false => self.publish_now(slot, publish, &message, now_ms)?,
        };
        pace.slow_to(disk);
        Ok(pace)
    }

    /// The way of a PUBLISH that goes to everybody at once.
    #[inline(always)]
    fn publish_now(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        let mut undone = None;
        if publish.dup && publish.retain {
            match self.note_sent_again(slot, message, 0) {
                Ok(position) => undone = position,
                Err(error) => {
                    let reason = reason_of(&error);
                    return self.refuse_publish(slot, publish, message, reason, now_ms);
                }
            }
        }
        let mut asked = match publish.qos {
            QoS::AtMostOnce => None,
            _ if self.is_awaited(message) => self.ask_for(slot, publish),
            _ => None,
        };
        let routed = self.route_in_turn(slot, message, asked.as_mut(), now_ms);
        if undone.is_some() && routed.refused.is_none() {
            self.await_undone(undone, message, asked.as_mut());
        }
        let answered =
            self.answer_routed(slot, publish, message, (&routed, asked.as_mut()), now_ms);
        let Routed { mut pace, own, .. } = routed;
        if own.is_some() {
            pace.slow_to(self.deliver_own(message, own, now_ms));
        }
        answered.map(|()| pace)
    }

    /// What no log keeps is refused by none: it waits for nobody, and a repetition is known at
    /// once.
    fn is_awaited(&self, message: &Message) -> bool {
        self.store.is_none()
            || message.level() > 0
            || self.shared.settings.rejects
            || self.lacks_room_to_retain(message)
    }

    #[inline]
    fn answer_routed(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        (routed, asked): (&Routed, Option<&mut Asked>),
        now_ms: u64,
    ) -> Result<(), Ended> {
        if let Some(reason) = routed.refused {
            return self.refuse_publish(slot, publish, message, reason, now_ms).map(drop);
        }
        let reason = if routed.matched {
            Reason::SUCCESS
        } else {
            self.metrics().publishes_unmatched.add(1);
            // A PUBREC only says that the message has come; subscribers are not its matter.
            match publish.qos {
                QoS::ExactlyOnce => Reason::SUCCESS,
                _ => Reason::NO_MATCHING_SUBSCRIBERS,
            }
        };
        self.answer_publish(slot, publish, reason, asked);
        Ok(())
    }

    /// Is it a QoS 2 publish of a durable session? It is taken on in the log first, and passed to
    /// the others when it is committed.
    #[inline]
    fn is_taken_on(&self, slot: u32, publish: &Publish<'_>, message: &Message) -> bool {
        // With the retained store about full its home has to be asked first: what is taken on
        // cannot be refused any more.
        publish.qos == QoS::ExactlyOnce
            && message.level() > 0
            && !self.lacks_room_to_retain(message)
            && !self.shared.settings.rejects
            && self.clients.get(slot).is_some_and(|client| client.durable.is_some())
    }

    fn publish_taken(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        if let Some(reason) = self.lacks_disk_for(message, 1 << self.id) {
            return self.refuse_publish(slot, publish, message, reason, now_ms);
        }
        let mut asked = self.ask_for(slot, publish);
        let confirm = asked.as_mut().map(|asked| asked.ask(Respondent::HANDOVER));
        let serial = match self.take_on(slot, publish.packet_id, message, confirm) {
            Ok(serial) => serial,
            Err(error) => {
                let reason = reason_of(&error);
                return self.refuse_publish(slot, publish, message, reason, now_ms);
            }
        };
        if let Some(client) = self.clients.get_mut(slot) {
            client.session.incoming.insert(publish.packet_id);
        }
        let Delivered { mut pace, own, .. } = self.deliver_kept(message, serial, now_ms);
        self.owe_kept_answer(slot, publish, asked.as_mut());
        pace.slow_to(self.deliver_own(message, own, now_ms));
        Ok(pace)
    }

    /// Delivers to the subscribers here what is in the log.
    pub(crate) fn deliver_kept(
        &mut self,
        message: &Message,
        serial: u64,
        now_ms: u64,
    ) -> Delivered {
        let mut audience = self.router.audience(Name::topic_of(message), &mut self.work);
        let (found, keeping) = (audience.subscriptions(), Keeping::Kept(serial));
        let delivered = self.deliver_to_all(message, found, keeping, now_ms);
        self.router.keep(audience);
        delivered
    }

    /// Owes the answer to a publish whose packet id counts as accepted already.
    fn owe_kept_answer(&mut self, slot: u32, publish: &Publish<'_>, asked: Option<&mut Asked>) {
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        self.buffers.lend(client);
        let awaited = asked.and_then(Asked::take_awaited);
        client.session.owe_kept_answer(publish.packet_id, awaited);
        self.mark_dirty(slot);
    }

    /// A publish that was accepted comes again. Some: it is retained, too, as that may be undone.
    fn on_repeat(&mut self, slot: u32, publish: &Publish<'_>, retained: Option<&Message>) {
        let mut asked = self.ask_for(slot, publish);
        if let Some(asked) = &mut asked {
            self.await_handover(slot, publish, asked);
            self.inherit(slot, publish, asked);
            asked.ask_again();
        }
        if let Some(message) = retained {
            let asked = asked.as_mut().filter(|_| self.is_awaited(message));
            self.retain_again(slot, publish, message, asked);
        }
        self.owe_kept_answer(slot, publish, asked.as_mut());
    }

    /// A retained publish of QoS 2 is repeated behind one of QoS 1 that may be older than it, and
    /// has replaced it: it is retained anew, and nobody gets it twice.
    fn retain_again(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        mut asked: Option<&mut Asked>,
    ) {
        // Now it stands in the place of those behind it, until they come again.
        let durable = self.clients.get(slot).and_then(|client| client.durable.as_ref());
        let own = durable.and_then(|durable| durable.received(publish.packet_id));
        match self.note_sent_again(slot, message, own.map_or(0, |own| own.serial)) {
            Ok(undone) => self.await_undone(undone, message, asked.as_deref_mut()),
            // It comes again with the next connection.
            Err(_) => self.doomed.push((slot, Ended::LogFailed)),
        }
        if self.would_overtake(slot, message) {
            return self.wait_in_line(slot, message, asked, true);
        }
        self.retain_patiently(message, asked, &mut Routed::default());
    }

    /// The acknowledgement waits for what the log is told of those that the message has replaced.
    fn await_undone(
        &mut self,
        undone: Option<storage::Position>,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        if let (Some(position), Some(asked)) = (undone, asked) {
            let confirm = asked.ask(Respondent::UNDONE);
            self.promise(position, level_of(message.level()), Promise::Confirm(confirm));
        }
    }

    /// A QoS 2 publish comes again while the first has not reached everybody: this connection
    /// waits for it, too.
    fn await_handover(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        let durable = self.clients.get(slot).and_then(|client| client.durable.as_ref());
        let serial = durable.and_then(|d| d.received(publish.packet_id)).map(|r| r.serial);
        if let (Some(serial), Some(store)) = (serial, &mut self.store) {
            store.handovers.await_again(serial, asked);
        }
    }

    /// A QoS 2 publish comes again for which other places have yet to answer: this connection waits
    /// for them, too.
    fn inherit(&mut self, slot: u32, publish: &Publish<'_>, asked: &mut Asked) {
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        let number = asked.confirm().ack_number;
        if client.session.incoming.inherit(publish.packet_id, number) {
            asked.ask(Respondent::FIRST);
        }
    }

    /// A publish of which the publisher waits for answers; its ack number is the one that
    /// `answer_publish` will get.
    fn ask_for(&mut self, slot: u32, publish: &Publish<'_>) -> Option<Asked> {
        if publish.qos == QoS::AtMostOnce {
            return None;
        }
        let publisher = self.key(slot);
        let client = self.clients.get(slot)?;
        let ack_number = client.session.link()?.next_ack_number();
        let connection = client.connection;
        let packet_id = publish.packet_id;
        let (serial, is_will, is_again) = (0, false, false);
        let payer = client.charged.account().map_or(NOBODY, |account| account.number());
        Some(Asked::new(Confirm {
            publisher,
            connection,
            ack_number,
            packet_id,
            respondent: Respondent::ASKING,
            serial,
            is_will,
            payer,
            is_again,
        }))
    }

    #[inline]
    fn answer_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        if publish.qos != QoS::AtMostOnce {
            self.owe_answer(slot, publish, reason, asked);
        }
    }

    fn owe_answer(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        reason: Reason,
        asked: Option<&mut Asked>,
    ) {
        let awaited = asked.and_then(Asked::take_awaited);
        let Some(client) = self.clients.get_mut(slot).sure() else { return };
        self.buffers.lend(client);
        client.session.owe_answer(publish.qos, publish.packet_id, reason, awaited);
        self.mark_dirty(slot);
    }

    /// Not allowed: MQTT 5 clients are told, others get a success, as the standard has no other
    /// word for them (MQTT-3.3.5-2 of 3.1.1 allows either this or closing).
    fn deny_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        topic: &str,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        self.metrics().publishes_denied.add(1);
        let manner = Manner { qos: publish.qos as u8, retain: publish.retain };
        self.note_as(slot, Kind::Denied("publish"), topic, manner, now_ms);
        let reason = self.reason_for(slot, Reason::NOT_AUTHORIZED);
        self.answer_publish(slot, publish, reason, None);
        Ok(Pace::default())
    }

    fn refuse_topic(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        violation: Violation,
    ) -> Result<Pace, Ended> {
        let is_v5 = self.clients.get(slot).is_some_and(is_v5);
        if is_v5 && publish.qos != QoS::AtMostOnce && violation.clause.is_empty() {
            self.answer_publish(slot, publish, violation.reason, None);
            return Ok(Pace::default());
        }
        Err(Ended::Violation(violation))
    }

    /// No room: told with 0x97, or by closing the connection of a 3.1.1 client, which then sends
    /// the message again.
    fn refuse_publish(
        &mut self,
        slot: u32,
        publish: &Publish<'_>,
        message: &Message,
        reason: Reason,
        now_ms: u64,
    ) -> Result<Pace, Ended> {
        self.note_refused(slot, message, now_ms);
        // Clients of 3.1.1 are cut off, when those before have been answered.
        self.answer_publish(slot, publish, reason, None);
        let link = self.clients.get_mut(slot).and_then(|client| client.session.link_mut());
        // What the message led to has ended the connection.
        let Some(link) = link else { return Ok(Pace::default()) };
        if link.is_lost {
            link.refuse_rest();
        }
        if link.has_refused() { Err(Ended::Refused) } else { Ok(Pace::default()) }
    }

    /// Counts a message that its publisher is told to be refused, and tells who it was.
    pub(crate) fn note_refused(&mut self, slot: u32, message: &Message, now_ms: u64) {
        self.metrics().publishes_refused.add(1);
        self.note(slot, Kind::Refused, message.topic(), now_ms);
    }

    fn reason_for(&self, slot: u32, reason: Reason) -> Reason {
        match self.clients.get(slot) {
            Some(client) if is_v5(client) => reason,
            _ => Reason::SUCCESS,
        }
    }

    /// Sends a will on its way that no log keeps.
    pub(crate) fn route_will(&mut self, slot: u32, message: &Message, now_ms: u64) {
        let routed = self.route_in_turn(slot, message, None, now_ms);
        self.deliver_own(message, routed.own, now_ms);
    }

    /// Sends a message of a client on its way, not before older ones of its topic.
    #[inline(always)]
    fn route_in_turn(
        &mut self,
        slot: u32,
        message: &Message,
        asked: Option<&mut Asked>,
        now_ms: u64,
    ) -> Routed {
        if self.would_overtake(slot, message) {
            return self.route_behind(slot, message, asked, now_ms);
        }
        self.route(message, asked, now_ms)
    }

    /// Subscribers here have had the older ones; the others get the message behind them.
    #[cold]
    fn route_behind(
        &mut self,
        slot: u32,
        message: &Message,
        mut asked: Option<&mut Asked>,
        now_ms: u64,
    ) -> Routed {
        let mut routed = Routed::default();
        if asked.is_some()
            && let Some(reason) = self.lacks_disk_for(message, 0)
        {
            routed.refused = Some(reason);
            return routed;
        }
        let mut audience = self.router.audience(Name::topic_of(message), &mut self.work);
        let is_taken =
            self.route_here(message, &mut audience, asked.as_deref_mut(), &mut routed, now_ms);
        let has_others = audience.interested().wants & !(1 << self.id) != 0;
        let goes_on = has_others || !audience.groups().is_empty();
        self.router.keep(audience);
        if !is_taken {
            return routed;
        }
        routed.matched |= goes_on;
        if goes_on || message.retain() {
            self.wait_in_line(slot, message, asked, false);
        }
        routed
    }

    /// Sends a message on its way: to the retained store, the subscribers here, the shared groups
    /// and the shards that may want it.
    pub(crate) fn route(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        now_ms: u64,
    ) -> Routed {
        if asked.is_some()
            && let Some(reason) = self.lacks_disk_for(message, 0)
        {
            return Routed { refused: Some(reason), ..Routed::default() };
        }
        let mut routed = Routed::default();
        if message.retain() {
            self.retain(message, asked.as_deref_mut(), &mut routed);
            if routed.refused.is_some() && asked.is_some() {
                // The publisher is told and sends it again: nobody is to get it twice.
                return routed;
            }
        }
        let mut audience = self.router.audience(Name::topic_of(message), &mut self.work);
        if self.route_here(message, &mut audience, asked.as_deref_mut(), &mut routed, now_ms) {
            if !audience.groups().is_empty() {
                let asked = asked.as_deref_mut();
                self.route_to_groups(message, audience.groups(), asked, &mut routed, now_ms);
            }
            if audience.interested().wants & !(1 << self.id) != 0 {
                self.route_to_others(message, audience.interested(), asked, &mut routed);
            }
        }
        self.router.keep(audience);
        routed
    }

    /// The way of a message to the subscribers here. False: it is refused.
    #[inline(always)]
    fn route_here(
        &mut self,
        message: &Message,
        audience: &mut Audience,
        asked: Option<&mut Asked>,
        routed: &mut Routed,
        now_ms: u64,
    ) -> bool {
        let keeping = Keeping::of_published(asked.as_deref());
        let delivered = self.deliver_to_all(message, audience.subscriptions(), keeping, now_ms);
        routed.matched |= delivered.matched;
        routed.pace.slow_to(delivered.pace);
        routed.own = delivered.own;
        if delivered.refused.is_some() {
            routed.refused = delivered.refused;
            return false;
        }
        if let (Some(position), Some(asked)) = (delivered.kept, asked) {
            let confirm = asked.ask(Respondent::OWN_LOG);
            self.promise(position, level_of(message.level()), Promise::Confirm(confirm));
        }
        true
    }

    /// The way of a message from the subscribers here to the groups and the other shards.
    pub(crate) fn route_onward(
        &mut self,
        message: &Message,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
        now_ms: u64,
    ) {
        let audience = self.router.audience(Name::topic_of(message), &mut self.work);
        self.route_to_groups(message, audience.groups(), asked.as_deref_mut(), routed, now_ms);
        self.route_to_others(message, audience.interested(), asked, routed);
        self.router.keep(audience);
    }

    fn route_to_groups(
        &mut self,
        message: &Message,
        groups: &[u32],
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
        now_ms: u64,
    ) {
        let mut over = 0;
        for group in groups {
            if self.groups.is_over(*group) {
                over += 1;
                continue;
            }
            routed.matched = true;
            self.deliver_to_group(*group, message, asked.as_deref_mut(), now_ms);
        }
        self.work.charge(over / GROUPS_OVER_PER_UNIT);
    }

    fn route_to_others(
        &mut self,
        message: &Message,
        interested: Interested,
        mut asked: Option<&mut Asked>,
        routed: &mut Routed,
    ) {
        let mut others = interested.wants & !(1 << self.id);
        routed.matched |= others != 0;
        while others != 0 {
            let shard = others.trailing_zeros() as u16;
            others &= others - 1;
            // One that was taken on may be mailed again after a crash: who has kept it meanwhile,
            // though nobody there was promised it yet, has to know it by its serial.
            let promises = interested.promises & (1 << shard) != 0;
            let is_awaited = |asked: &&mut Asked| promises || asked.confirm().serial != 0;
            let payer = self.payer_number(message, asked.as_deref());
            let confirm = asked.as_deref_mut().filter(is_awaited).map(|a| a.ask_shard(shard));
            self.send(shard, Mail::Publish { message: message.clone(), confirm, payer });
        }
    }

    /// A message from another shard.
    pub(crate) fn on_publish_mail(
        &mut self,
        message: Message,
        confirm: Option<Confirm>,
        payer: u32,
        now_ms: u64,
    ) {
        if confirm.is_some() && self.inbox.has_late() {
            self.inbox.put_late(Mail::Publish { message, confirm, payer });
            return;
        }
        if self.is_repetition(confirm) {
            self.answer(confirm, Reason::SUCCESS, message);
            return;
        }
        let delivered = self.deliver_mailed(&message, confirm, payer, now_ms);
        match (delivered.refused, delivered.kept, confirm) {
            (Some(_), _, Some(_)) if delivered.lacks_log && self.waits_for_disk(confirm) => {
                self.inbox.put_late(Mail::Publish { message, confirm, payer });
            }
            (Some(reason), _, _) => self.answer(confirm, reason, message),
            (None, Some(position), Some(confirm)) => {
                self.note_seen(Some(confirm));
                self.promise(position, level_of(message.level()), Promise::Confirm(confirm));
            }
            (None, ..) if delivered.matched => self.answer(confirm, Reason::SUCCESS, message),
            (None, ..) => self.answer(confirm, Reason::NO_MATCHING_SUBSCRIBERS, message),
        }
    }

    /// Is mail that found no room in the log kept until there is?
    pub(crate) fn waits_for_disk(&self, confirm: Option<Confirm>) -> bool {
        let Some(confirm) = confirm else { return false };
        let status = self.log_status();
        let is_poisoned = status.as_ref().is_some_and(storage::Status::is_out_of_service);
        let is_full = matches!(status, Some(storage::Status::Full(_)));
        let waits = !is_full || self.shared.settings.when_full == WhenFull::Wait;
        confirm.serial != 0 || !is_poisoned && (waits || confirm.is_again)
    }
}

/// The reason code that tells a publisher why the log does not take its message.
pub(crate) const fn reason_of(error: &storage::AppendError) -> Reason {
    match error {
        // MQTT 5 has no "too large" for an acknowledgement (table 3-4).
        storage::AppendError::TooLarge { .. }
        | storage::AppendError::Backlog { .. }
        | storage::AppendError::Full(_) => Reason::QUOTA_EXCEEDED,
        storage::AppendError::Poisoned(_) | storage::AppendError::Closed => {
            Reason::IMPLEMENTATION_SPECIFIC_ERROR
        }
    }
}

fn is_v5(client: &Client) -> bool {
    client.session.link().is_some_and(session::Link::is_v5)
}

#[inline]
fn check_sizes(
    topic: &str,
    properties: codec::Properties<'_>,
    limits: &Limits,
) -> Result<(), Violation> {
    topic::check_size(topic, &limits.topic).map_err(|error| Violation {
        reason: Reason::TOPIC_NAME_INVALID,
        clause: error.clause(),
        detail: "topic name is not valid, or longer or deeper than this server takes",
    })?;
    match properties.raw().len() > limits.properties_bytes_max as usize {
        true => Err(Violation {
            reason: Reason::QUOTA_EXCEEDED,
            clause: "",
            detail: "more bytes of properties than this server takes",
        }),
        false => Ok(()),
    }
}

/// Checks a PUBLISH and makes it a message: the one allocation on its way.
fn check(
    client: &mut Client,
    publish: &Publish<'_>,
    (buffer, memory): (&mut codec::PropertyBuf, OwnMemory<'_>),
    settings: Option<&Settings>,
    key: SessionKey,
    now_ms: u64,
) -> Result<Checked, Ended> {
    check_offered(client, publish).map_err(Ended::Violation)?;
    let is_undone = publish.retain && client.has_undone(publish.packet_id);
    let Client { scope, id, username, principal, grants, limits, session, .. } = client;
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
    if !grants.allows_as(identity, Action::Publish, topic, manner) {
        return Ok(Checked::Deny(topic.into()));
    }
    let properties = if publishing.rewrite_properties {
        buffer.clear();
        for property in publish.properties.iter() {
            if !matches!(property, Property::TopicAlias(_) | Property::MessageExpirySecs(_)) {
                buffer.push(property);
            }
        }
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
            .map_or(NEVER, |secs| now_ms + u64::from(secs) * 1000),
        publisher: key.as_u64(),
        level: match settings {
            Some(settings) => settings.level_of(topic, limits.durability),
            None => 0,
        },
        scope: scope.number(),
    };
    let message = match memory {
        Some(memory) => Message::of_packet(&parts, memory),
        None => Message::new(&parts),
    };
    Ok(if is_repeat { Checked::Repeat(Some(message)) } else { Checked::Accept(message) })
}

fn check_offered(client: &Client, publish: &Publish<'_>) -> Result<(), Violation> {
    if publish.qos > client.limits.qos_max {
        return Err(Violation {
            reason: Reason::QOS_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-11",
            detail: "publish with a higher QoS than this server takes",
        });
    }
    if publish.retain && !client.limits.retain_available {
        return Err(Violation {
            reason: Reason::RETAIN_NOT_SUPPORTED,
            clause: "MQTT-3.2.2-14",
            detail: "retained publish, and this server keeps none",
        });
    }
    Ok(())
}
