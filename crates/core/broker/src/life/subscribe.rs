//! SUBSCRIBE and UNSUBSCRIBE.

use codec::{
    Packet, Properties, Property, Reason, Suback, Subscribe, SubscribeOptions, Unsuback,
    Unsubscribe, Violation,
};
use policy::Manner;
use session::Link;
use topic::{Filter, Subscription};

use crate::Shard;
use crate::parts::client::Client;
use crate::parts::notices::NoticeKind;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::{Done, Listed};
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::event::ReportedFilters;
use crate::words::expected::Expected;
use crate::words::homes::Place;
use crate::words::options;
use crate::words::topics::UNLIMITED;
use crate::{Ended, Event, GroupText, Name, Quota};

/// One filter of a SUBSCRIBE, checked.
pub(crate) struct Request<'a> {
    pub(crate) filter: Filter<'a>,
    pub(crate) options: SubscribeOptions,
    pub(crate) identifier: u32,
}

/// What became of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Granted {
    qos: u8,
    is_new: bool,
    /// The option bits of the index.
    bits: u8,
}

/// The filters of a packet that one go takes.
#[derive(Debug, Default)]
struct Portion {
    done: Done,
    /// All are taken, however long that is. Not of a client that is gone: it waits for no answer.
    is_rest: bool,
    /// What waited in the journal for the session before it lost the first subscription. Once for
    /// all filters of the portion: it walks the whole queue.
    before: Option<Vec<u64>>,
    /// None: nobody listens.
    reported: Option<ReportedFilters>,
}

impl Shard {
    /// As many filters as one go takes. True: what is left is for [`Shard::on_subscribe`] or
    /// [`Shard::on_unsubscribe`].
    pub(crate) fn take_some(&mut self, slot: u32, packet: &Packet<'_>) -> Result<bool, Ended> {
        let (done, filters) = match packet {
            Packet::Subscribe(subscribe) => {
                let done = self.subscribe_portion(slot, subscribe, false)?;
                (done, subscribe.filters.iter().count())
            }
            Packet::Unsubscribe(unsubscribe) => {
                let done = self.unsubscribe_portion(slot, unsubscribe, false)?;
                (done, unsubscribe.filters.iter().count())
            }
            _ => return Ok(true),
        };
        let is_whole = done.reasons.len() >= filters;
        if let Some(client) = self.sessions.get_mut(slot) {
            client.extras().request = Some(Box::new(done));
        }
        Ok(is_whole)
    }

    /// Takes what is left of a SUBSCRIBE, and answers it.
    pub(crate) fn on_subscribe(
        &mut self,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> Result<(), Ended> {
        let is_rest = self.sessions.get(slot).is_some_and(|client| !client.is_lost());
        let done = self.subscribe_portion(slot, subscribe, is_rest)?;
        let Done { is_shared, reasons, kept } = done;
        let packet_id = subscribe.packet_id;
        if is_shared || self.cx.shared.homes.has_other_cells() {
            self.answer_behind_barrier(slot, packet_id, reasons, kept);
        } else {
            let suback = Suback { packet_id, properties: Properties::EMPTY, reasons: &reasons };
            self.answer_when_kept(slot, kept, &Packet::Suback(suback));
        }
        Ok(())
    }

    fn subscribe_portion(
        &mut self,
        slot: u32,
        subscribe: &Subscribe<'_>,
        is_rest: bool,
    ) -> Result<Done, Ended> {
        let Some(client) = self.sessions.get_mut(slot).expected() else {
            return Ok(Done::default());
        };
        let identifier = client.subscription_identifier(&subscribe.properties)?;
        let mut portion = client.portion(&self.cx, is_rest);
        let outcome = self.subscribe_all(slot, subscribe, identifier, &mut portion);
        let Some(client) = self.sessions.get_mut(slot).expected() else { return Ok(portion.done) };
        client.report_subscriptions(&mut self.cx, portion.reported, true);
        outcome.map(|()| portion.done)
    }

    fn subscribe_all(
        &mut self,
        slot: u32,
        subscribe: &Subscribe<'_>,
        identifier: u32,
        portion: &mut Portion,
    ) -> Result<(), Ended> {
        let Some(client) = self.sessions.get(slot).expected() else { return Ok(()) };
        let filters_max = client.limits.filters_per_packet_max as usize;
        let rules_units = client.grants.filter_units();
        let begun = portion.done.reasons.len();
        for (number, (text, options)) in subscribe.filters.iter().enumerate().skip(begun) {
            let (qos, is_beyond) = (options.qos as u8, number >= filters_max);
            if !portion.is_rest && self.filter_waits(slot, text, qos, is_beyond) {
                return Ok(());
            }
            let checked = if is_beyond {
                self.cx.flow.work.charge(1);
                Err(Reason::QUOTA_EXCEEDED)
            } else {
                self.cx.flow.work.charge_for(Task::Filter(text.len()));
                self.cx.flow.work.charge(rules_units);
                self.check_filter(slot, text, options, identifier)?
            };
            let code = match checked {
                Ok(request) => self.subscribe_one(slot, text, &request, portion),
                Err(reason) => {
                    let Some(client) = self.sessions.get_mut(slot).expected() else {
                        return Ok(());
                    };
                    client.refuse_filter(&mut self.cx, text, qos, reason)?
                }
            };
            portion.done.reasons.push(code);
        }
        Ok(())
    }

    /// Has the rest of the packet to wait: for the next turn, for room, or for the verdict of the
    /// service?
    fn filter_waits(&mut self, slot: u32, text: &str, qos: u8, is_beyond: bool) -> bool {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return false };
        let one = std::iter::once(text);
        self.cx.flow.work.is_spent()
            || client.filters_wait(&mut self.cx, self.log.as_deref(), one)
            || !is_beyond && client.filter_waits_for_verdict(&mut self.cx, text, qos)
    }

    /// Returns what SUBACK says of a filter that may be subscribed.
    fn subscribe_one(
        &mut self,
        slot: u32,
        text: &str,
        request: &Request<'_>,
        portion: &mut Portion,
    ) -> u8 {
        let Request { filter, options, identifier } = request;
        let old = self.subscription_of(slot, filter);
        let granted = self.subscribe(slot, request);
        let done = &mut portion.done;
        match self.write_granted(slot, text, old, granted, *identifier) {
            Ok(position) => done.kept = done.kept.max(position),
            Err(reason) => {
                self.take_subscription_back(slot, filter, old);
                let client = self.sessions.get(slot).expected();
                return client.map_or(reason.0, |client| client.suback_code(reason));
            }
        }
        if let Some(reported) = &mut portion.reported {
            reported.add(text, granted.qos);
        }
        done.is_shared |= filter.group.is_some();
        // MQTT-4.8: retained messages are not sent to shared subscriptions.
        if filter.group.is_none()
            && let Some(client) = self.sessions.get_mut(slot)
        {
            let is_other = old != Some((granted.bits, *identifier));
            client.handle_retained(filter.filter, *options, granted.is_new, is_other);
            if self.cx.shared.homes.has_other_cells() {
                self.want_behind_barrier(slot);
            }
        }
        granted.qos
    }

    /// Err outside: the connection ends. Err inside: only this filter is refused.
    fn check_filter<'a>(
        &mut self,
        slot: u32,
        text: &'a str,
        options: SubscribeOptions,
        identifier: u32,
    ) -> Result<Result<Request<'a>, Reason>, Ended> {
        let Some(client) = self.sessions.get(slot).expected() else {
            return Ok(Err(Reason::UNSPECIFIED_ERROR));
        };
        let limits = &client.limits;
        let filter = match topic::parse_filter(text, &limits.topic) {
            Ok(filter) => filter,
            Err(error) if error.clause().is_empty() => {
                return Ok(Err(Reason::TOPIC_FILTER_INVALID));
            }
            Err(error) => return Err(not_well_formed(error.clause())),
        };
        if filter.group.is_some() && options.no_local {
            return Err(Ended::Violation(Violation {
                reason: Reason::PROTOCOL_ERROR,
                clause: "MQTT-3.8.3-4",
                detail: "No Local on a shared subscription",
            }));
        }
        if filter.group.is_some() && !limits.shared_available {
            return Ok(Err(Reason::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED));
        }
        if !limits.wildcard_available && filter.filter.contains(['+', '#']) {
            return Ok(Err(Reason::WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED));
        }
        let is_bridge = client.session.link().is_some_and(Link::is_bridge);
        let options = if is_bridge { as_bridge(options, &filter) } else { options };
        let manner = Manner { qos: options.qos as u8, retain: false };
        let may =
            self.sessions.get_mut(slot).is_some_and(|it| it.may_subscribe(text, manner, &self.cx));
        let Some(client) = self.sessions.get(slot).filter(|_| may) else {
            return Ok(Err(Reason::NOT_AUTHORIZED));
        };
        let limits = &client.limits;
        let subscriptions = &client.subscriptions;
        let bytes = bytes_of(&filter, self.cx.shared.homes.places());
        let are_too_many = subscriptions.len() >= limits.subscriptions_per_client_max as usize
            || filter.group.is_some()
                && subscriptions.shared_len()
                    >= limits.shared_subscriptions_per_client_max as usize
            || bytes > limits.subscription_bytes_max.saturating_sub(client.subscription_bytes)
            || client.charged.lacks_room(bytes.into())
            || self.cx.shared.memory_is_short() && client.lacks_memory(&self.cx, bytes as usize);
        let scope = client.scope;
        if (are_too_many || !scope.is_first()) && self.find_listed(slot, &filter).is_none() {
            let space = self.cx.shared.spaces.of(scope);
            client.charged.count_refusal(bytes.into());
            if are_too_many || space.is_some_and(|space| space.lacks(Quota::Subscriptions, 1)) {
                return Ok(Err(Reason::QUOTA_EXCEEDED));
            }
        }
        Ok(Ok(Request { filter, options, identifier }))
    }

    /// Option bits and identifier of a subscription that the session has. They stand in the index,
    /// so there is no need to look through what the session lists.
    fn subscription_of(&self, slot: u32, filter: &Filter<'_>) -> Option<(u8, u32)> {
        let client = self.sessions.get(slot)?;
        match filter.group {
            Some(share) => {
                let group = self.groups.find(GroupText::new(client.scope, share, filter.filter))?;
                self.groups.member_bits(group, client.key)
            }
            None => {
                let found = self.sessions.subscription_to(slot, filter.filter)?;
                Some((found.options, found.identifier))
            }
        }
    }

    /// A subscription could not be written down: all is as it was before.
    fn take_subscription_back(&mut self, slot: u32, filter: &Filter<'_>, old: Option<(u8, u32)>) {
        match (old, filter.group) {
            (None, _) => {
                self.unsubscribe(slot, filter);
            }
            (Some((options, identifier)), None) => {
                let old = Subscription { subscriber: slot, options, identifier };
                let Some((client, router)) = self.sessions.with_index(slot).expected() else {
                    return;
                };
                router.subscribe(Name::new(client.scope, filter.filter), old);
            }
            (Some((bits, identifier)), Some(share)) => {
                self.join_group(slot, (share, filter.filter), (bits, identifier));
            }
        }
    }

    /// Writes a subscription of a durable session down. Returns what its SUBACK has to wait for.
    fn write_granted(
        &mut self,
        slot: u32,
        text: &str,
        old: Option<(u8, u32)>,
        granted: Granted,
        identifier: u32,
    ) -> Result<Option<storage::Position>, Reason> {
        if self.log.is_none() {
            return Ok(None);
        }
        let Some(listed) = self.listed_of(slot, text) else { return Ok(None) };
        let text = &*topic::canonical(text);
        self.keep_granted(slot, listed, text, old, (granted.bits, identifier))
    }

    pub(crate) fn on_unsubscribe(
        &mut self,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<(), Ended> {
        let is_rest = self.sessions.get(slot).is_some_and(|client| !client.is_lost());
        let done = self.unsubscribe_portion(slot, unsubscribe, is_rest)?;
        let unsuback = Unsuback {
            packet_id: unsubscribe.packet_id,
            properties: Properties::EMPTY,
            reasons: &done.reasons,
        };
        self.answer_when_kept(slot, done.kept, &Packet::Unsuback(unsuback));
        if let Some(client) = self.sessions.get_mut(slot) {
            client.drop_extras_if_unused();
        }
        Ok(())
    }

    fn unsubscribe_portion(
        &mut self,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
        is_rest: bool,
    ) -> Result<Done, Ended> {
        if !self.cx.flow.broadcasts.is_empty() {
            self.finish_broadcasts_to(slot);
        }
        let Some(client) = self.sessions.get_mut(slot).expected() else {
            return Ok(Done::default());
        };
        let mut portion = client.portion(&self.cx, is_rest);
        let outcome = self.unsubscribe_all(slot, unsubscribe, &mut portion);
        self.release_pending(slot, portion.before.unwrap_or_default());
        if let Some(client) = self.sessions.get(slot) {
            client.report_subscriptions(&mut self.cx, portion.reported, false);
        }
        outcome.map(|()| portion.done)
    }

    fn unsubscribe_all(
        &mut self,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
        portion: &mut Portion,
    ) -> Result<(), Ended> {
        let begun = portion.done.reasons.len();
        for text in unsubscribe.filters.iter().skip(begun) {
            if self.cx.flow.work.is_spent() && !portion.is_rest {
                return Ok(());
            }
            self.cx.flow.work.charge_for(Task::Filter(text.len()));
            let done = &mut portion.done;
            let filter = topic::parse_filter(text, &UNLIMITED)
                .map_err(|error| not_well_formed(error.clause()))?;
            if let Some(listed) = self.find_listed(slot, &filter) {
                let text = topic::canonical(text);
                let dropped = match &mut self.log {
                    Some(log) => log.drop_subscription(slot, listed.place, &text),
                    None => Ok(None),
                };
                match dropped {
                    Ok(position) => done.kept = done.kept.max(position),
                    Err(_) if self.sessions.get(slot).is_none_or(|client| !client.is_v5()) => {
                        return Err(Ended::JournalFailed);
                    }
                    Err(_) => {
                        // An UNSUBACK has no word for a lack of room (section 3.11.3).
                        done.reasons.push(Reason::IMPLEMENTATION_SPECIFIC_ERROR.0);
                        continue;
                    }
                }
                if portion.before.is_none() {
                    portion.before = Some(self.all_pending(slot));
                }
            }
            let is_over = self.unsubscribe(slot, &filter);
            if let Some(reported) = portion.reported.as_mut().filter(|_| is_over) {
                reported.add(text, 0);
            }
            let reason = match is_over {
                // Also one that was subscribed when longer ones were taken.
                true => Reason::SUCCESS,
                false
                    if self.sessions.get(slot).is_some_and(|client| client.takes_filter(text)) =>
                {
                    Reason::NO_SUBSCRIPTION_EXISTED
                }
                false => Reason::TOPIC_FILTER_INVALID,
            };
            done.reasons.push(reason.0);
        }
        Ok(())
    }

    fn unsubscribe(&mut self, slot: u32, filter: &Filter<'_>) -> bool {
        let Some(listed) = self.find_listed(slot, filter) else { return false };
        if let Some(client) = self.sessions.get_mut(slot) {
            client.subscriptions.remove(&listed);
            if let Some(extras) = client.extras.as_mut().filter(|_| filter.group.is_none()) {
                // MQTT-3.10.4-2: nothing is added for it any more.
                extras.give_up_retained(filter.filter);
            }
            let bytes = bytes_of(filter, self.cx.shared.homes.places());
            client.subscription_bytes = client.subscription_bytes.saturating_sub(bytes);
            client.recharge();
            self.cx.count_in_space(client.scope, Quota::Subscriptions, -1);
        }
        self.cx.metrics.subscriptions.sub(1);
        self.cx.metrics.shared_subscriptions.sub(listed.is_shared().into());
        if let Some(log) = self.log.as_mut().filter(|_| !listed.is_shared()) {
            log.kept.forget_since(slot, listed.filter);
        }
        self.groups.note_left(listed);
        self.remove_from_index(slot, listed);
        true
    }

    /// Takes a subscription out of the index; the session does not list it any more.
    pub(crate) fn remove_from_index(&mut self, slot: u32, listed: Listed) {
        if listed.group != 0 {
            let key = self.sessions.key(slot);
            return self.leave_group(listed.group - 1, key);
        }
        let Some(gone) = self.sessions.router.unsubscribe(listed.filter, slot).expected() else {
            return;
        };
        // Messages may still be due by what other subscriptions were before.
        if let Some(log) = self.log.as_mut().filter(|_| gone.is_last) {
            log.close_backlog(listed.filter);
        }
    }

    /// The subscription with this filter, as the session lists it.
    fn find_listed(&self, slot: u32, filter: &Filter<'_>) -> Option<Listed> {
        let client = self.sessions.get(slot)?;
        let scope = client.scope;
        let found = self.sessions.router.find(Name::new(scope, filter.filter))?;
        let group = match filter.group {
            Some(name) => self.groups.find(GroupText::new(scope, name, filter.filter))? + 1,
            None => 0,
        };
        client.subscriptions.find(&Listed::new(found, group))
    }

    /// The same, by the filter as the client wrote it.
    pub(crate) fn listed_of(&self, slot: u32, text: &str) -> Option<Listed> {
        let filter = topic::parse_filter(text, &UNLIMITED).ok()?;
        self.find_listed(slot, &filter)
    }

    pub(crate) fn subscribe(&mut self, slot: u32, request: &Request<'_>) -> Granted {
        let Request { filter, identifier, .. } = request;
        let Some((client, router)) = self.sessions.with_index(slot).expected() else {
            return Granted::default();
        };
        let (qos, bits) = client.grant(request);
        let (listed, is_new) = match filter.group {
            None => {
                let (options, identifier) = (bits, *identifier);
                let subscription = Subscription { subscriber: slot, options, identifier };
                let name = Name::new(client.scope, filter.filter);
                let subscribed = router.subscribe(name, subscription);
                (Listed::new(subscribed.filter, 0), subscribed.is_new_subscription)
            }
            Some(share) => self.join_group(slot, (share, filter.filter), (bits, *identifier)),
        };
        let Self { cx, sessions, .. } = self;
        if is_new && let Some(client) = sessions.get_mut(slot) {
            client.subscriptions.add(listed);
            let bytes = bytes_of(filter, cx.shared.homes.places());
            client.subscription_bytes = client.subscription_bytes.saturating_add(bytes);
            client.recharge();
            cx.metrics.subscriptions.add(1);
            cx.metrics.shared_subscriptions.add(listed.is_shared().into());
            cx.count_in_space(client.scope, Quota::Subscriptions, 1);
        }
        Granted { qos: qos as u8, is_new, bits }
    }
}

impl Sessions {
    /// The subscription of a session with this filter that is not shared.
    pub(crate) fn subscription_to(&self, slot: u32, filter: &str) -> Option<Subscription> {
        let scope = self.get(slot)?.scope;
        let known = self.router.find(Name::new(scope, filter))?;
        self.router.subscription(known, slot)
    }
}

impl Client {
    /// How far an earlier go has got with the packet that comes next.
    fn portion(&mut self, cx: &Context, is_rest: bool) -> Portion {
        let done = self.extras.as_mut().and_then(|extras| extras.request.take());
        let reported = cx.shared.reports_subscriptions().then(ReportedFilters::default);
        Portion { done: *done.unwrap_or_default(), is_rest, reported, ..Portion::default() }
    }

    /// One event for what one go has taken of a packet.
    fn report_subscriptions(
        &self,
        cx: &mut Context,
        reported: Option<ReportedFilters>,
        are_new: bool,
    ) {
        let Some(filters) = reported.filter(|reported| reported.count > 0) else { return };
        let (client_id, username) = (self.id.clone(), self.username.clone());
        let peer = self.session.link().map(|link| link.peer.clone()).unwrap_or_default();
        let event = match are_new {
            true => Event::Subscribed { client_id, username, peer, filters },
            false => Event::Unsubscribed { client_id, username, peer, filters },
        };
        cx.report(self.scope, event);
    }

    /// Counts and reports why a filter is refused; returns what SUBACK says of it. Err: that
    /// ends the connection.
    fn refuse_filter(
        &mut self,
        cx: &mut Context,
        text: &str,
        qos: u8,
        reason: Reason,
    ) -> Result<u8, Ended> {
        match reason {
            Reason::NOT_AUTHORIZED => {
                let manner = Manner { qos, retain: false };
                self.note_as(cx, NoticeKind::Denied("subscribe"), text, manner);
                if topic::reserved(topic::without_share(text)).is_some() {
                    return Ok(self.suback_code(Reason::TOPIC_FILTER_INVALID));
                }
                if cx.shared.settings.denied_ends {
                    return Err(Ended::Denied);
                }
            }
            Reason::QUOTA_EXCEEDED => {
                cx.metrics.subscriptions_refused.add(1);
                self.note(cx, NoticeKind::TooMany, text);
            }
            _ => {}
        }
        Ok(self.suback_code(reason))
    }

    /// The code for a refused filter: 3.1.1 knows one only (MQTT-3.9.3-2).
    fn suback_code(&self, reason: Reason) -> u8 {
        if self.is_v5() { reason.0 } else { 0x80 }
    }

    fn subscription_identifier(&self, properties: &Properties<'_>) -> Result<u32, Ended> {
        let identifier = properties.iter().find_map(|property| match property {
            Property::SubscriptionId(identifier) => Some(identifier),
            _ => None,
        });
        if identifier.is_some() && !self.limits.subscription_ids_available {
            return Err(Ended::Violation(Violation {
                reason: Reason::SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
                clause: "MQTT-3.2.2-16",
                detail: "subscription identifiers are disabled (subscription_ids_available)",
            }));
        }
        Ok(identifier.unwrap_or(0))
    }

    /// The QoS and the option bits that a subscription gets.
    fn grant(&self, request: &Request<'_>) -> (codec::QoS, u8) {
        let mut qos = request.options.qos.min(self.limits.qos_max);
        let is_durable = self.is_kept;
        if is_durable && request.filter.group.is_some() {
            // What a group keeps is dispatched again after a crash: at least once, not exactly.
            qos = qos.min(codec::QoS::AtLeastOnce);
        }
        let is_acked = qos != codec::QoS::AtMostOnce;
        let rejects = self.limits.queue.overflow == session::Overflow::Reject;
        let covers = self.grants.covers(self.identity(), request.filter.filter);
        let flags = [
            (options::NO_LOCAL, request.options.no_local),
            (options::RETAIN_AS_PUBLISHED, request.options.retain_as_published),
            (options::CHECK_RECEIVE, !covers),
            (options::PROMISES, is_acked && (rejects || is_durable)),
            (options::DURABLE, is_acked && is_durable),
        ];
        let bits = flags.iter().filter(|(_, is_set)| *is_set).fold(0, |bits, (bit, _)| bits | bit);
        (qos, qos as u8 | bits)
    }

    fn is_v5(&self) -> bool {
        self.session.link().is_some_and(Link::is_v5)
    }

    fn takes_filter(&self, text: &str) -> bool {
        topic::parse_filter(text, &self.limits.topic).is_ok()
    }
}

/// What a subscription counts for: its text, its entries in lists and index, and in the table of
/// interest, which knows it by its first level. All shards know a group.
fn bytes_of(filter: &Filter<'_>, places: Place) -> u32 {
    let first = if filter.filter.starts_with(['+', '#']) { 0 } else { INTEREST_BYTES };
    let group = filter.group.map_or(0, |name| name.len() + GROUP_BYTES * usize::from(places));
    (filter.filter.len() + SUBSCRIPTION_BYTES + first + group) as u32
}

// As the allocator has it (`crates/proof/rig/tests/allocations.rs`).
const SUBSCRIPTION_BYTES: usize = 124;
const INTEREST_BYTES: usize = 48;
const GROUP_BYTES: usize = 475;

/// What a bridge of mosquitto relies on, and cannot ask for before MQTT 5: nothing that it has
/// published itself, and RETAIN as it was published. A shared subscription has no No Local.
fn as_bridge(options: SubscribeOptions, filter: &Filter<'_>) -> SubscribeOptions {
    SubscribeOptions { no_local: filter.group.is_none(), retain_as_published: true, ..options }
}

fn not_well_formed(clause: &'static str) -> Ended {
    Ended::Violation(Violation {
        reason: Reason::MALFORMED_PACKET,
        clause,
        detail: "malformed topic filter",
    })
}
