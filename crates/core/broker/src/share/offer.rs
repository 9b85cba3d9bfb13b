//! Shared subscriptions.
//!
//! Every shard knows all groups and their members (`table.rs`), so that the shard of the publisher
//! chooses and the message takes one hop. The load of a member is in a table entry, which all may
//! read. The member's shard has the last word: a member without room passes the message on. What no
//! member can take is parked at the group's home shard until one can; so an offline or stuck member
//! never keeps messages from the others.

use std::hash::BuildHasher;
use std::sync::Arc;

use codec::QoS;
use foldhash::fast::FixedState;
use session::{
    Amount, Delivery, Dropped, Message, NEVER, Offered, QueueLimit, QueueLimits, Sent, Terms,
};
use smallvec::SmallVec;
use topic::FilterId;

use crate::Shard;
use crate::deliver::copies::identifiers_of;
use crate::log::Durable;
use crate::parts::client::Client;
use crate::parts::groups::{Group, Groups, Parked};
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::member::Member;
use crate::words::options;
use crate::words::queue_number::KeptId;
use crate::{Confirm, GroupText, GroupWay, Mail, Scope, SessionKey, ShareStrategy};

/// How often a message is passed on before it is parked.
const HOPS_MAX: u8 = 3;

/// How long messages wait for the first member of a group that is not known yet.
const MEMBERLESS_MS: u64 = 2000;

impl Shard {
    /// All groups at home, for members that became free without anybody saying so.
    pub(crate) fn drain_groups(&mut self) {
        let now_ms = self.cx.now_ms;
        for number in self.groups.forgettable(now_ms) {
            self.groups.forget_group(&mut self.cx, &mut self.sessions, &mut self.durable, number);
        }
        for key in self.groups.waiting() {
            self.groups.drain_group(&mut self.cx, &mut self.durable, key);
        }
    }

    /// The home's side: a member has acknowledged what the journal keeps, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, key: u64, serial: u64) {
        // As in `drain_group`.
        if let Some(kept) = self.groups.kept(key) {
            self.durable.on_group_done(kept, serial);
        }
    }

    /// The home's side: a member could not take what the journal keeps, or has ended.
    pub(crate) fn on_group_returned(&mut self, key: u64, serial: u64) {
        // As in `drain_group`.
        if let Some(group) = self.groups.by_key_mut(key)
            && self.durable.take_back(&mut self.cx, group, serial, false)
        {
            group.drain(&mut self.cx, &mut self.durable);
        }
    }

    pub(crate) fn on_leave(&mut self, key: u64, member: SessionKey) {
        if let Some(number) = self.groups.number(key) {
            self.groups.remove_member(
                &mut self.cx,
                &mut self.sessions,
                &mut self.durable,
                number,
                member,
            );
        }
    }

    pub(crate) fn on_waiting(&mut self, key: u64, any: bool) {
        // As in `drain_group`.
        let Some(number) = self.groups.number(key) else { return };
        let Some(group) = self.groups.get_mut(number).expected() else { return };
        group.is_waiting = any;
        if any && group.has_room_on(&mut self.cx) {
            self.groups.pull(&mut self.cx, &mut self.durable, number);
        }
    }
}

impl Groups {
    /// A session of this shard subscribes. Returns what it lists then, and whether that is new.
    pub(crate) fn join_group(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        share: &str,
        filter: &str,
        bits: u8,
        identifier: u32,
    ) -> (Listed, bool) {
        cx.flow.work.charge_for(Task::Membership(cx.shared.shard_count));
        let scope = sessions.get(slot).map_or(Scope::FIRST, |client| client.scope);
        let name = self.group_name(cx, GroupText::new(scope, share, filter));
        let key = name.key;
        let member_key = sessions.key(slot);
        let Some(client) = sessions.get_mut(slot).expected() else {
            return (Listed::new(FilterId(0), 0), false);
        };
        let load = client.load.get_or_insert_default().clone();
        let is_durable = client.is_kept;
        client.publish_load();
        let member = Member { key: member_key, load, options: bits, identifier, is_durable };
        let is_new = self.on_join(cx, sessions, &name, member.clone());
        if is_new {
            name.add_member();
        }
        cx.send_to_others(&Mail::Join { group: name, member });
        let number = self.number(key).unwrap_or_default();
        let filter = self.get(number).map_or(FilterId(0), |group| group.filter);
        (Listed::new(filter, number + 1), is_new)
    }

    pub(crate) fn group_name(&self, cx: &Context, text: GroupText<'_>) -> Arc<GroupName> {
        let known = self.find(text).and_then(|number| self.name(number));
        known.cloned().unwrap_or_else(|| cx.shared.group_names.get(text))
    }

    /// A group that the journal knows, before its members are back.
    pub(crate) fn restore_group(
        &mut self,
        sessions: &mut Sessions,
        name: &Arc<GroupName>,
        kept: KeptId,
        now_ms: u64,
    ) {
        let number = self.know_group(sessions, name, now_ms + MEMBERLESS_MS);
        if let Some(group) = self.get_mut(number) {
            group.kept = Some(kept);
        }
    }

    /// Somebody joined, here or on another shard. True if it was not a member before.
    pub(crate) fn on_join(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        name: &Arc<GroupName>,
        member: Member,
    ) -> bool {
        let number = self.know_group(sessions, name, NEVER);
        let Some(group) = self.get_mut(number).expected() else { return false };
        group.forget_at_ms = NEVER;
        let shard = member.key.shard();
        if !group.members.put(member) {
            return false;
        }
        // Its shard may never have heard that the queue here is not empty.
        if group.is_announced && shard != cx.id {
            cx.send(shard, Mail::Waiting { group: name.key, any: true });
        }
        true
    }

    /// A session of this shard is connected again: all shards look at it once more when they choose
    /// members of its groups.
    pub(crate) fn note_online(&mut self, cx: &mut Context, client: &Client) {
        for listed in client.subscriptions.shared() {
            let Some(group) = self.get_mut(listed.group - 1).expected() else { continue };
            cx.flow.work.charge_for(Task::Membership(cx.shared.shard_count));
            let (group, member) = (group.note_online(client.key), client.key);
            cx.send_to_others(&Mail::Online { group, member });
        }
    }

    pub(crate) fn on_online(&mut self, key: u64, member: SessionKey) {
        // It may have left the group, or that may have ended.
        if let Some(group) = self.by_key_mut(key) {
            group.note_online(member);
        }
    }

    /// The group's number on this shard; it gets one if it is new.
    fn know_group(
        &mut self,
        sessions: &mut Sessions,
        name: &Arc<GroupName>,
        forget_at_ms: u64,
    ) -> u32 {
        if let Some(number) = self.number(name.key) {
            return number;
        }
        let filter = sessions.router.add_group(name.filter_name(), self.next_number());
        self.insert(Group::new(name.clone(), filter, forget_at_ms))
    }

    /// A session of this shard does not list it any more: it is a member no longer, whoever still
    /// has to hear of it.
    pub(crate) fn note_left(&self, listed: Listed) {
        if let Some(number) = listed.group.checked_sub(1)
            && let Some(name) = self.name(number).expected()
        {
            name.remove_member();
        }
    }

    /// A session of this shard unsubscribes or ends.
    pub(crate) fn leave_group(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
        member: SessionKey,
    ) {
        let Some(group) = self.get(number).expected() else { return };
        let key = group.name.key;
        cx.flow.work.charge_for(Task::Membership(cx.shared.shard_count));
        cx.send_to_others(&Mail::Leave { group: key, member });
        self.remove_member(cx, sessions, durable, number, member);
    }

    fn remove_member(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
        member: SessionKey,
    ) {
        let Some(group) = self.get_mut(number).expected() else { return };
        group.members.remove(member);
        if group.members.is_empty() {
            self.forget_group(cx, sessions, durable, number);
        }
    }

    fn forget_group(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
    ) {
        let Some(group) = self.remove(number).expected() else { return };
        sessions.router.remove_group(group.filter, number);
        let waiting = u64::from(group.waiting_here().messages);
        let lost = waiting + group.kept.map_or(0, |kept| durable.close_group_queue(kept));
        sessions.discard_parked(group.parked);
        sessions.discard_parked(group.denied);
        if lost > 0 {
            cx.note_group_dropped(&group.name, lost);
        }
    }

    /// The publisher's side: choose a member, or let the home keep it.
    pub(crate) fn deliver_to_group(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        cx.flow.work.charge_for(Task::Group);
        if !Scope::of(message).is_first() {
            cx.charge_sent(message, 1);
        }
        if !durable.group_keeps(self, number, message) {
            return self.pass_on(cx, sessions, durable, number, message, GroupWay::new(0, 0));
        }
        let Some(name) = self.name(number).cloned().expected() else { return };
        let home = cx.shared.shard_of_group(name.key);
        // Also to itself by mail: an answer must not come before the acknowledgement is queued.
        let confirm = asked.map(Asked::ask_group);
        cx.send(home, Mail::Park { group: name, message: message.clone(), number: 0, confirm });
    }

    /// The home's side: a message for the group's queue.
    pub(crate) fn on_park(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        name: &Arc<GroupName>,
        (number, message): (u64, Message),
        confirm: Option<Confirm>,
    ) {
        if confirm.is_some() && durable.has_late_mail() {
            durable.put_off_mail(Mail::Park { group: name.clone(), message, number, confirm });
            return;
        }
        let known = self.number(name.key).filter(|it| durable.group_keeps(self, *it, &message));
        let Some(group) = known.and_then(|known| self.get_mut(known)) else {
            self.park(cx, sessions, durable, name, (number, message.clone()));
            return cx.answer(confirm, codec::Reason::SUCCESS, message);
        };
        match durable.keep_for_group(cx, group, &message, confirm) {
            Ok(is_first) => {
                if is_first {
                    group.drain(cx, durable);
                }
            }
            Err(error) if may_pass(&error) && durable.waits_for_disk(cx, confirm) => {
                durable.put_off_mail(Mail::Park { group: name.clone(), message, number, confirm });
            }
            Err(error) => {
                if confirm.is_none() {
                    cx.note_group_dropped(name, 1);
                }
                cx.answer(confirm, crate::words::reasons::reason_of(&error), message);
            }
        }
    }

    /// A member that may not receive the message gives it to the others, once round in the order of
    /// their keys, which is the same on all shards. What nobody with room may receive is put off.
    fn pass_on_denied(
        &self,
        cx: &mut Context,
        number: u32,
        message: &Message,
        denied: SessionKey,
        way: GroupWay,
    ) {
        let Some(group) = self.get(number).expected() else { return };
        let name = group.name.clone();
        let (all, members) = (group.members.len(), group.members.online());
        cx.flow.work.charge_for(Task::Members(members.len()));
        let members = members.filter(|member| member.load.is_available());
        let keys: SmallVec<[SessionKey; 8]> = members.map(|member| member.key).collect();
        let way = GroupWay { has_skipped: way.has_skipped || keys.len() < all, ..way };
        let first = if way.denied_by == SessionKey::NOBODY { denied } else { way.denied_by };
        let ahead = |key: SessionKey| key.as_u64().wrapping_sub(denied.as_u64());
        let others = keys.into_iter().filter(|key| *key != denied);
        let next = others.min_by_key(|key| ahead(*key));
        let is_unasked = |key: &SessionKey| first == denied || ahead(*key) < ahead(first);
        let Some(next) = next.filter(is_unasked) else {
            return self.put_off_denied(cx, number, message, way);
        };
        // By mail also to itself: a group of thousands would go deep.
        let (message, way) = (message.clone(), GroupWay { denied_by: first, ..way });
        cx.send(next.shard(), Mail::Offer { group: name, member: next, message, way });
    }

    fn pass_on(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
        message: &Message,
        way: GroupWay,
    ) {
        let hops = way.hops;
        let Some(group) = self.get_mut(number).expected() else { return };
        let name = group.name.clone();
        let key = name.key;
        let home = cx.shared.shard_of_group(key);
        let is_behind = group.is_waiting && home != cx.id || !group.parked.is_empty();
        let chosen = if is_behind && hops == 0 || hops >= HOPS_MAX {
            None
        } else {
            group.assign(cx, message)
        };
        let Some(member_key) = chosen else {
            let (number, message) = (way.number, message.clone());
            if home == cx.id {
                self.park(cx, sessions, durable, &name, (number, message));
            } else {
                cx.send(home, Mail::Park { group: name, message, number, confirm: None });
            }
            return;
        };
        if member_key.shard() == cx.id {
            self.on_offer(cx, sessions, durable, &name, member_key, message.clone(), way);
        } else {
            let (member, message) = (member_key, message.clone());
            let mail = Mail::Offer { group: name, member, message, way };
            cx.send(member_key.shard(), mail);
        }
    }

    /// The member's side: deliver, or pass on if it cannot take it now.
    pub(crate) fn on_offer(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        name: &Arc<GroupName>,
        member_key: SessionKey,
        message: Message,
        way: GroupWay,
    ) {
        let now_ms = cx.now_ms;
        let serial = way.serial;
        let key = name.key;
        if name.is_over() {
            return cx.lose_for_group(name, serial);
        }
        let number = self.know_group(sessions, name, now_ms + MEMBERLESS_MS);
        let member = self
            .get(number)
            .and_then(|group| group.members.get(member_key))
            .map(|member| (member.options, member.identifier));
        let client = sessions.at(member_key);
        let (Some((bits, identifier)), Some(client)) = (member, client) else {
            self.pass_back(cx, sessions, durable, number, &message, way);
            return;
        };
        let is_denied = bits & options::CHECK_RECEIVE != 0
            && !client.grants.allows(client.identity(), policy::Action::Receive, message.topic());
        if bits & options::CHECK_RECEIVE != 0 {
            cx.flow.work.charge(client.grants.topic_units());
        }
        if is_denied {
            client.publish_load();
            self.pass_on_denied(cx, number, &message, member_key, way);
            return;
        }
        if !client.session.has_window() {
            client.publish_load();
            self.pass_back(cx, sessions, durable, number, &message, way);
            return;
        }
        cx.buffers.lend(client);
        let terms = Terms {
            identifiers: identifiers_of(identifier),
            group: key,
            serial,
            qos: options::qos(bits).min(message.qos()),
            retain: bits & options::RETAIN_AS_PUBLISHED != 0 && message.retain(),
        };
        let limits = client.limits.queue;
        let delivered_for_good = terms.qos == QoS::AtMostOnce;
        let sent = Sent { qos: terms.qos, payload_bytes: message.payload_len() };
        let offered = client.session.offer(&message, terms, &limits, None, now_ms);
        client.publish_load();
        if !matches!(offered, Offered::Written | Offered::Queued) || delivered_for_good {
            cx.notify_home(key, serial, true);
        }
        client.after_offer(cx, sent, offered);
        let can_take_more = client.load.as_ref().is_some_and(|load| load.is_available());
        if delivered_for_good && can_take_more {
            // No acknowledgement will ask for the next one.
            self.pull(cx, durable, number);
        }
    }
}

impl Context {
    /// What has expired in the queues of a group takes no room there.
    pub(crate) fn drop_group_expired(&mut self, group: &mut Group) {
        let (expired, looked_at) = group.drop_expired(self.now_ms);
        self.flow.work.charge_for(Task::Pending(looked_at));
        crate::deliver::copies::count_dropped(&self.metrics, Dropped::Expired, expired);
    }

    /// The group is gone, and the message was for it alone.
    fn lose_for_group(&mut self, name: &Arc<GroupName>, serial: u64) {
        match serial {
            0 => self.note_group_dropped(name, 1),
            serial => self.notify_home(name.key, serial, false),
        }
    }
}

impl Groups {
    /// The member's side: what it cannot take goes back to the home that keeps it, or on to others.
    fn pass_back(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        number: u32,
        message: &Message,
        way: GroupWay,
    ) {
        if way.serial == 0 {
            let way = GroupWay { hops: way.hops + 1, ..way };
            self.pass_on(cx, sessions, durable, number, message, way);
        } else if let Some(name) = self.name(number) {
            cx.notify_home(name.key, way.serial, false);
        }
    }

    /// The home's side: keep a message until a member can take it.
    pub(crate) fn park(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        name: &Arc<GroupName>,
        (place, message): (u64, Message),
    ) {
        let now_ms = cx.now_ms;
        if name.is_over() {
            return cx.note_group_dropped(name, 1);
        }
        let limits = cx.shared.settings.share_queue;
        let key = name.key;
        let number = self.know_group(sessions, name, now_ms + MEMBERLESS_MS);
        let Some(group) = self.get_mut(number).expected() else { return };
        let is_kept = message.qos() != QoS::AtMostOnce
            && (group.members.is_empty() || group.members.keep())
            && message.heap_bytes() as u64 <= limits.bytes_max;
        if !is_kept {
            let name = group.name.clone();
            cx.note_group_dropped(&name, 1);
            return;
        }
        group.wait(place, message, false, now_ms);
        group.keep_to_limits(cx, durable);
        self.drain_group(cx, durable, key);
    }

    /// The home's side: deliver what waits as far as members have room.
    pub(crate) fn drain_group(&mut self, cx: &mut Context, durable: &mut Durable, key: u64) {
        // The group may have ended while mail for it was on its way.
        if let Some(group) = self.by_key_mut(key) {
            group.drain(cx, durable);
        }
    }

    /// After a start: notifies the other shards for which groups something waits here.
    pub(crate) fn announce_all_waiting(&mut self, cx: &mut Context, durable: &Durable) {
        for key in self.keys() {
            if let Some(group) = self.by_key_mut(key) {
                group.announce_waiting(cx, durable);
            }
        }
    }
}

impl Group {
    /// A member is online again. Returns the key of the group.
    fn note_online(&mut self, member: SessionKey) -> u64 {
        self.members.note_online(member);
        self.name.key
    }

    /// Can a member of this shard take a message?
    fn has_room_on(&self, cx: &mut Context) -> bool {
        let mut online = self.members.online();
        cx.flow.work.charge_for(Task::Members(online.len()));
        online.any(|member| member.key.shard() == cx.id && member.load.is_available())
    }

    /// Drops from memory what is beyond the limits of the group's queue, which the journal may have
    /// a part of.
    pub(crate) fn keep_to_limits(&mut self, cx: &mut Context, durable: &Durable) {
        let kept = self.kept.map(|kept| durable.waiting_amount(kept)).unwrap_or_default();
        let limits = less(&cx.shared.settings.share_queue, kept);
        if exceeded(self.waiting_here(), &limits).is_none() {
            return;
        }
        cx.drop_group_expired(self);
        let (mut dropped, mut at_limit) = (0, None);
        while let Some(limit) = exceeded(self.waiting_here(), &limits)
            && let Some(was_live) = self.drop_one(limits.overflow)
        {
            at_limit = Some(limit);
            dropped += u64::from(was_live);
        }
        if dropped > 0 {
            cx.note_group_dropped_at(&self.name, at_limit, dropped);
        }
    }

    /// The home's side: deliver what waits as far as members have room, and notify the other shards
    /// whether something is left.
    fn drain(&mut self, cx: &mut Context, durable: &mut Durable) {
        durable.dispatch_kept(cx, self);
        self.dispatch_parked(cx);
        self.announce_waiting(cx, durable);
    }

    /// Tells the other shards, once per change, whether something waits here for their members.
    fn announce_waiting(&mut self, cx: &mut Context, durable: &Durable) {
        let any = self.has_waiting(durable);
        if std::mem::replace(&mut self.is_announced, any) != any {
            cx.send_to_others(&Mail::Waiting { group: self.name.key, any });
        }
    }

    fn dispatch_parked(&mut self, cx: &mut Context) {
        while let Some(message) = self.parked.front().map(|parked| parked.message.clone()) {
            let member = self.assign(cx, &message);
            if member.is_none() && !message.is_expired(cx.now_ms) {
                return;
            }
            let Some((Parked { number, .. }, was_live)) = self.parked.pop_front().expected() else {
                return;
            };
            let Some(member) = member else {
                cx.metrics.dropped_expired.add(was_live.into());
                continue;
            };
            // Hop 1: it comes from the queue, so the rest of the queue does not hold it back.
            let (group, way) = (self.name.clone(), GroupWay { number, ..GroupWay::new(1, 0) });
            cx.send(member.shard(), Mail::Offer { group, member, message, way });
        }
    }
}

impl Groups {
    /// A member here may have room now: ask the homes of its groups for parked messages.
    pub(crate) fn pull_for(&mut self, cx: &mut Context, client: &Client, durable: &mut Durable) {
        if !client.load.as_ref().is_some_and(|load| load.is_available()) {
            return;
        }
        let numbers: SmallVec<[u32; 4]> =
            client.subscriptions.shared().map(|listed| listed.group - 1).collect();
        for number in numbers {
            self.pull(cx, durable, number);
        }
    }

    /// For a member that can take a message.
    fn pull(&mut self, cx: &mut Context, durable: &mut Durable, number: u32) {
        let Some(group) = self.get(number).expected() else { return };
        let key = group.name.key;
        let home = cx.shared.shard_of_group(key);
        if home == cx.id {
            if group.is_announced {
                self.drain_group(cx, durable, key);
            }
            return;
        }
        if group.is_waiting {
            cx.send(home, Mail::Pull { group: key });
        }
    }

    /// A member is gone: what it has not acknowledged goes back to its groups.
    pub(crate) fn give_back(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        durable: &mut Durable,
        slot: u32,
    ) {
        let Some(client) = sessions.get_mut(slot).expected() else { return };
        if client.load.is_none() {
            return;
        }
        let deliveries = client.session.outgoing.take_shared();
        client.publish_load();
        for delivery in deliveries {
            let Delivery { message, terms: Terms { group, serial, .. } } = delivery;
            if serial != 0 {
                cx.notify_home(group, serial, false);
            } else if let Some(number) = self.number(group) {
                self.pass_on(cx, sessions, durable, number, &message, GroupWay::new(1, 0));
            }
        }
    }
}

/// What is left of the limits of a queue of which there is so much elsewhere.
pub(crate) const fn less(limits: &QueueLimits, elsewhere: Amount) -> QueueLimits {
    QueueLimits {
        messages_max: limits.messages_max.saturating_sub(elsewhere.messages),
        bytes_max: limits.bytes_max.saturating_sub(elsewhere.bytes),
        ..*limits
    }
}

/// The limit of which that is more.
pub(crate) const fn exceeded(waiting: Amount, limits: &QueueLimits) -> Option<QueueLimit> {
    if waiting.messages > limits.messages_max {
        return Some(QueueLimit::Messages);
    }
    if waiting.bytes > limits.bytes_max { Some(QueueLimit::Bytes) } else { None }
}

/// Is it worth while to try again?
const fn may_pass(error: &storage::AppendError) -> bool {
    !matches!(error, storage::AppendError::TooLarge { .. })
}

impl Group {
    /// At home: is there a message that no member could take?
    pub(crate) fn has_waiting(&self, durable: &Durable) -> bool {
        !self.parked.is_empty() || self.kept.is_some_and(|kept| durable.has_waiting(kept))
    }

    /// Can any member take a message now?
    pub(crate) fn has_room(&mut self, cx: &mut Context) -> bool {
        let mut looks = 0;
        let found = self.members.find_available(self.next, &mut looks);
        cx.flow.work.charge_for(Task::Members(looks));
        found.is_some()
    }

    /// Chooses a member for a message, among those that can take one now.
    pub(crate) fn assign(&mut self, cx: &mut Context, message: &Message) -> Option<SessionKey> {
        let (strategy, random) = (cx.shared.settings.share_strategy, cx.next_random());
        let mut looks = 0;
        let place = choose(self, strategy, message, random, &mut looks);
        cx.flow.work.charge_for(Task::Members(looks));
        let member = self.members.at(place?)?;
        member.load.assign();
        Some(member.key)
    }
}

/// The place of the member that gets the message, among those that can take one now. `looks` counts
/// members that were looked at.
pub(crate) fn choose(
    group: &mut Group,
    strategy: ShareStrategy,
    message: &Message,
    random: u64,
    looks: &mut usize,
) -> Option<usize> {
    let members = &mut group.members;
    let count = members.len();
    if count == 0 {
        return None;
    }
    match strategy {
        ShareStrategy::Random => members.find_available(random as usize % count, looks),
        ShareStrategy::RoundRobin => {
            let place = members.find_available(group.next % count, looks)?;
            group.next = place + 1;
            Some(place)
        }
        ShareStrategy::Sticky => {
            let place = members.find_available(group.next % count, looks)?;
            group.next = place;
            Some(place)
        }
        ShareStrategy::LeastInFlight => members.find_idlest(random as usize % count, looks),
        ShareStrategy::HashClient => members.find_available(spread(message.author(), count), looks),
        ShareStrategy::HashTopic => {
            let hash = FixedState::with_seed(0).hash_one(message.topic());
            members.find_available(spread(hash, count), looks)
        }
    }
}

pub(crate) fn spread(hash: u64, count: usize) -> usize {
    ((u128::from(hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)) * count as u128) >> 64) as usize
}
