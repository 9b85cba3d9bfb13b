//! SUBSCRIBE and UNSUBSCRIBE.

use codec::{
    Packet, Properties, Property, Reason, Suback, Subscribe, SubscribeOptions, Unsuback,
    Unsubscribe, Violation,
};
use policy::Manner;
use session::Link;
use topic::{Filter, Subscription};

use crate::durable::Durable;
use crate::parts::client::Client;
use crate::parts::groups::Groups;
use crate::parts::notices::NoticeKind;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::{Done, Listed};
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::event::ReportedFilters;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::topics::UNLIMITED;
use crate::{Ended, Event, GroupText, Name, Quota, ShardId};

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

impl Sessions {
    /// As many filters as one go takes. True: what is left is for [`Sessions::on_subscribe`] or
    /// [`Sessions::on_unsubscribe`].
    pub(crate) fn take_some(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        packet: &Packet<'_>,
    ) -> Result<bool, Ended> {
        let (done, filters) = match packet {
            Packet::Subscribe(subscribe) => {
                let done = self.subscribe_portion(cx, durable, groups, slot, subscribe, false)?;
                (done, subscribe.filters.iter().count())
            }
            Packet::Unsubscribe(unsubscribe) => {
                let done =
                    self.unsubscribe_portion(cx, durable, groups, slot, unsubscribe, false)?;
                (done, unsubscribe.filters.iter().count())
            }
            _ => return Ok(true),
        };
        let is_whole = done.reasons.len() >= filters;
        if let Some(client) = self.get_mut(slot) {
            client.extras().request = Some(Box::new(done));
        }
        Ok(is_whole)
    }

    /// Takes what is left of a SUBSCRIBE, and answers it.
    pub(crate) fn on_subscribe(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> Result<(), Ended> {
        let is_rest = self.get(slot).is_some_and(|client| !client.is_lost());
        let done = self.subscribe_portion(cx, durable, groups, slot, subscribe, is_rest)?;
        let Done { is_shared, reasons, kept } = done;
        let packet_id = subscribe.packet_id;
        if is_shared {
            self.answer_behind_barrier(cx, durable, slot, packet_id, reasons, kept);
        } else {
            let suback = Suback { packet_id, properties: Properties::EMPTY, reasons: &reasons };
            durable.answer_when_kept(cx, self, slot, kept, &Packet::Suback(suback));
        }
        Ok(())
    }

    fn subscribe_portion(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        subscribe: &Subscribe<'_>,
        is_rest: bool,
    ) -> Result<Done, Ended> {
        let Some(client) = self.get_mut(slot).expected() else { return Ok(Done::default()) };
        let identifier = client.subscription_identifier(&subscribe.properties)?;
        let mut portion = client.portion(cx, is_rest);
        let outcome =
            self.subscribe_all(cx, durable, groups, slot, subscribe, identifier, &mut portion);
        let Some(client) = self.get_mut(slot).expected() else { return Ok(portion.done) };
        client.report_subscriptions(cx, portion.reported, true);
        outcome.map(|()| portion.done)
    }

    fn subscribe_all(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        subscribe: &Subscribe<'_>,
        identifier: u32,
        portion: &mut Portion,
    ) -> Result<(), Ended> {
        let Some(client) = self.get(slot).expected() else { return Ok(()) };
        let filters_max = client.limits.filters_per_packet_max as usize;
        let rules_units = client.grants.filter_units();
        let begun = portion.done.reasons.len();
        for (number, (text, options)) in subscribe.filters.iter().enumerate().skip(begun) {
            let may_wait = !portion.is_rest;
            let Some(client) = self.get_mut(slot).expected() else { return Ok(()) };
            let one = std::iter::once(text);
            if may_wait && (cx.flow.work.is_spent() || client.filters_wait(cx, durable, one)) {
                return Ok(());
            }
            let qos = options.qos as u8;
            if may_wait && number < filters_max && client.filter_waits_for_verdict(cx, text, qos) {
                return Ok(());
            }
            if number >= filters_max {
                cx.flow.work.charge(1);
                let reason = client.refuse_filter(cx, text, qos, Reason::QUOTA_EXCEEDED)?;
                portion.done.reasons.push(reason);
                continue;
            }
            cx.flow.work.charge_for(Task::Filter(text.len()));
            cx.flow.work.charge(rules_units);
            let done = &mut portion.done;
            let request = match self.check_filter(cx, groups, slot, text, options, identifier)? {
                Ok(request) => request,
                Err(reason) => {
                    let Some(client) = self.get_mut(slot).expected() else { return Ok(()) };
                    done.reasons.push(client.refuse_filter(cx, text, qos, reason)?);
                    continue;
                }
            };
            let old = self.subscription_of(groups, slot, &request.filter);
            let granted = self.subscribe(cx, groups, slot, &request);
            match self.keep_granted(durable, groups, slot, text, old, granted, identifier) {
                Ok(position) => done.kept = done.kept.max(position),
                Err(reason) => {
                    self.take_subscription_back(cx, durable, groups, slot, &request.filter, old);
                    let Some(client) = self.get(slot).expected() else { return Ok(()) };
                    done.reasons.push(client.suback_code(reason));
                    continue;
                }
            }
            done.reasons.push(granted.qos);
            if let Some(reported) = &mut portion.reported {
                reported.add(text, granted.qos);
            }
            done.is_shared |= request.filter.group.is_some();
            // MQTT-4.8: retained messages are not sent to shared subscriptions.
            if request.filter.group.is_none()
                && let Some(client) = self.get_mut(slot)
            {
                let is_other = old != Some((granted.bits, identifier));
                client.handle_retained(request.filter.filter, options, granted.is_new, is_other);
            }
        }
        Ok(())
    }

    /// Err outside: the connection ends. Err inside: only this filter is refused.
    fn check_filter<'a>(
        &mut self,
        cx: &Context,
        groups: &Groups,
        slot: u32,
        text: &'a str,
        options: SubscribeOptions,
        identifier: u32,
    ) -> Result<Result<Request<'a>, Reason>, Ended> {
        let Some(client) = self.get(slot).expected() else {
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
        let may = self.get_mut(slot).is_some_and(|it| it.may_subscribe(text, manner, cx));
        let Some(client) = self.get(slot).filter(|_| may) else {
            return Ok(Err(Reason::NOT_AUTHORIZED));
        };
        let limits = &client.limits;
        let subscriptions = &client.subscriptions;
        let bytes = bytes_of(&filter, cx.shared.shard_count);
        let are_too_many = subscriptions.len() >= limits.subscriptions_per_client_max as usize
            || filter.group.is_some()
                && subscriptions.shared_len()
                    >= limits.shared_subscriptions_per_client_max as usize
            || bytes > limits.subscription_bytes_max.saturating_sub(client.subscription_bytes)
            || client.charged.lacks_room(bytes.into())
            || cx.shared.memory_is_short() && client.lacks_memory(cx, bytes as usize);
        let scope = client.scope;
        if (are_too_many || !scope.is_first()) && self.find_listed(groups, slot, &filter).is_none()
        {
            let space = cx.shared.spaces.of(scope);
            client.charged.count_refusal(bytes.into());
            if are_too_many || space.is_some_and(|space| space.lacks(Quota::Subscriptions, 1)) {
                return Ok(Err(Reason::QUOTA_EXCEEDED));
            }
        }
        Ok(Ok(Request { filter, options, identifier }))
    }

    /// The subscription with this filter, as the session lists it.
    fn find_listed(&self, groups: &Groups, slot: u32, filter: &Filter<'_>) -> Option<Listed> {
        let client = self.get(slot)?;
        let found = self.router.find(Name::new(client.scope, filter.filter))?;
        let group = match filter.group {
            Some(name) => groups.find(GroupText::new(client.scope, name, filter.filter))? + 1,
            None => 0,
        };
        client.subscriptions.find(&Listed::new(found, group))
    }

    /// The same, by the filter as the client wrote it.
    pub(crate) fn listed_of(&self, groups: &Groups, slot: u32, text: &str) -> Option<Listed> {
        let filter = topic::parse_filter(text, &UNLIMITED).ok()?;
        self.find_listed(groups, slot, &filter)
    }

    /// Option bits and identifier of a subscription that the session has. They stand in the index,
    /// so there is no need to look through what the session lists.
    fn subscription_of(
        &self,
        groups: &Groups,
        slot: u32,
        filter: &Filter<'_>,
    ) -> Option<(u8, u32)> {
        let client = self.get(slot)?;
        match filter.group {
            Some(share) => {
                let group = groups.find(GroupText::new(client.scope, share, filter.filter))?;
                groups.member_bits(group, client.key)
            }
            None => {
                let found = self.subscription_to(slot, filter.filter)?;
                Some((found.options, found.identifier))
            }
        }
    }

    /// The subscription of a session with this filter that is not shared.
    pub(crate) fn subscription_to(&self, slot: u32, filter: &str) -> Option<Subscription> {
        let scope = self.get(slot)?.scope;
        let known = self.router.find(Name::new(scope, filter))?;
        self.router.subscription(known, slot)
    }

    /// A subscription could not be written down: all is as it was before.
    fn take_subscription_back(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        filter: &Filter<'_>,
        old: Option<(u8, u32)>,
    ) {
        match (old, filter.group) {
            (None, _) => {
                self.unsubscribe(cx, durable, groups, slot, filter);
            }
            (Some((options, identifier)), None) => {
                let old = Subscription { subscriber: slot, options, identifier };
                let Some((client, router)) = self.with_index(slot).expected() else { return };
                router.subscribe(Name::new(client.scope, filter.filter), old);
            }
            (Some((bits, identifier)), Some(share)) => {
                groups.join_group(cx, self, slot, share, filter.filter, bits, identifier);
            }
        }
    }

    /// Writes a subscription of a durable session down. Returns what its SUBACK has to wait for.
    fn keep_granted(
        &mut self,
        durable: &mut Durable,
        groups: &Groups,
        slot: u32,
        text: &str,
        old: Option<(u8, u32)>,
        granted: Granted,
        identifier: u32,
    ) -> Result<Option<storage::Position>, Reason> {
        if !durable.has_journal() {
            return Ok(None);
        }
        let Some(listed) = self.listed_of(groups, slot, text) else { return Ok(None) };
        let text = &*topic::canonical(text);
        durable.keep_granted(self, slot, listed, text, old, (granted.bits, identifier))
    }

    pub(crate) fn subscribe(
        &mut self,
        cx: &mut Context,
        groups: &mut Groups,
        slot: u32,
        request: &Request<'_>,
    ) -> Granted {
        let Request { filter, identifier, .. } = request;
        let Some((client, router)) = self.with_index(slot).expected() else {
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
            Some(share) => {
                groups.join_group(cx, self, slot, share, filter.filter, bits, *identifier)
            }
        };
        if is_new && let Some(client) = self.get_mut(slot) {
            client.subscriptions.add(listed);
            let bytes = bytes_of(filter, cx.shared.shard_count);
            client.subscription_bytes = client.subscription_bytes.saturating_add(bytes);
            client.recharge();
            cx.metrics.subscriptions.add(1);
            cx.metrics.shared_subscriptions.add(listed.is_shared().into());
            cx.count_in_space(client.scope, Quota::Subscriptions, 1);
        }
        Granted { qos: qos as u8, is_new, bits }
    }

    pub(crate) fn on_unsubscribe(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<(), Ended> {
        let is_rest = self.get(slot).is_some_and(|client| !client.is_lost());
        let done = self.unsubscribe_portion(cx, durable, groups, slot, unsubscribe, is_rest)?;
        let unsuback = Unsuback {
            packet_id: unsubscribe.packet_id,
            properties: Properties::EMPTY,
            reasons: &done.reasons,
        };
        durable.answer_when_kept(cx, self, slot, done.kept, &Packet::Unsuback(unsuback));
        if let Some(client) = self.get_mut(slot) {
            client.drop_extras_if_unused();
        }
        Ok(())
    }

    fn unsubscribe_portion(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
        is_rest: bool,
    ) -> Result<Done, Ended> {
        if !cx.flow.broadcasts.is_empty() {
            self.finish_broadcasts_to(cx, durable, slot);
        }
        let Some(client) = self.get_mut(slot).expected() else { return Ok(Done::default()) };
        let mut portion = client.portion(cx, is_rest);
        let outcome = self.unsubscribe_all(cx, durable, groups, slot, unsubscribe, &mut portion);
        if let Some((client, router)) = self.with_index(slot) {
            durable.release_pending(cx, client, router, portion.before.unwrap_or_default());
            client.report_subscriptions(cx, portion.reported, false);
        }
        outcome.map(|()| portion.done)
    }

    fn unsubscribe_all(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
        portion: &mut Portion,
    ) -> Result<(), Ended> {
        let begun = portion.done.reasons.len();
        for text in unsubscribe.filters.iter().skip(begun) {
            if cx.flow.work.is_spent() && !portion.is_rest {
                return Ok(());
            }
            cx.flow.work.charge_for(Task::Filter(text.len()));
            let done = &mut portion.done;
            let filter = topic::parse_filter(text, &UNLIMITED)
                .map_err(|error| not_well_formed(error.clause()))?;
            let listed = self.find_listed(groups, slot, &filter);
            if let Some(listed) = listed {
                match durable.drop_subscription(self, slot, listed, &topic::canonical(text)) {
                    Ok(position) => done.kept = done.kept.max(position),
                    Err(_) if self.get(slot).is_none_or(|client| !client.is_v5()) => {
                        return Err(Ended::JournalFailed);
                    }
                    Err(_) => {
                        // An UNSUBACK has no word for a lack of room (section 3.11.3).
                        done.reasons.push(Reason::IMPLEMENTATION_SPECIFIC_ERROR.0);
                        continue;
                    }
                }
                if portion.before.is_none() {
                    let client = self.with_index(slot);
                    portion.before =
                        client.map(|(client, router)| durable.all_pending(client, router));
                }
            }
            let is_over = self.unsubscribe(cx, durable, groups, slot, &filter);
            if let Some(reported) = portion.reported.as_mut().filter(|_| is_over) {
                reported.add(text, 0);
            }
            let reason = match is_over {
                // Also one that was subscribed when longer ones were taken.
                true => Reason::SUCCESS,
                false if self.get(slot).is_some_and(|client| client.takes_filter(text)) => {
                    Reason::NO_SUBSCRIPTION_EXISTED
                }
                false => Reason::TOPIC_FILTER_INVALID,
            };
            done.reasons.push(reason.0);
        }
        Ok(())
    }

    fn unsubscribe(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        filter: &Filter<'_>,
    ) -> bool {
        let Some(listed) = self.find_listed(groups, slot, filter) else { return false };
        if let Some(client) = self.get_mut(slot) {
            client.subscriptions.remove(&listed);
            if let Some(extras) = client.extras.as_mut().filter(|_| filter.group.is_none()) {
                // MQTT-3.10.4-2: nothing is added for it any more.
                extras.give_up_retained(filter.filter);
            }
            let bytes = bytes_of(filter, cx.shared.shard_count);
            client.subscription_bytes = client.subscription_bytes.saturating_sub(bytes);
            client.recharge();
            cx.count_in_space(client.scope, Quota::Subscriptions, -1);
        }
        cx.metrics.subscriptions.sub(1);
        cx.metrics.shared_subscriptions.sub(listed.is_shared().into());
        if !listed.is_shared() {
            self.forget_since(slot, listed.filter);
        }
        groups.note_left(listed);
        self.remove_from_index(cx, durable, groups, slot, listed);
        true
    }

    /// Takes a subscription out of the index; the session does not list it any more.
    pub(crate) fn remove_from_index(
        &mut self,
        cx: &mut Context,
        durable: &mut Durable,
        groups: &mut Groups,
        slot: u32,
        listed: Listed,
    ) {
        if listed.group != 0 {
            let key = self.key(slot);
            groups.leave_group(cx, self, durable, listed.group - 1, key);
            return;
        }
        let Some(gone) = self.router.unsubscribe(listed.filter, slot).expected() else { return };
        // Messages may still be due by what other subscriptions were before.
        if gone.is_last {
            durable.close_backlog(listed.filter);
        }
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
        let is_durable = self.durable.is_some();
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
fn bytes_of(filter: &Filter<'_>, shards: ShardId) -> u32 {
    let first = if filter.filter.starts_with(['+', '#']) { 0 } else { INTEREST_BYTES };
    let group = filter.group.map_or(0, |name| name.len() + GROUP_BYTES * usize::from(shards));
    (filter.filter.len() + SUBSCRIPTION_BYTES + first + group) as u32
}

// As the allocator has it (`crates/core/broker/tests/allocations.rs`).
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
