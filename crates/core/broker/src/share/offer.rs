//! Shared subscriptions: from the publisher to a member.
//!
//! Every shard knows all groups and their members (`parts/groups.rs`), so that the shard of the
//! publisher chooses and the message takes one hop. The load of a member is in a table entry, which
//! all may read. The member's shard has the last word: a member without room passes the message on.
//! What no member can take is parked at the group's home shard until one can (`home.rs`); so an
//! offline or stuck member never keeps messages from the others.

use std::hash::BuildHasher;
use std::sync::Arc;

use codec::QoS;
use foldhash::fast::FixedState;
use session::{Delivery, Message, Offered, Sent, Terms};
use smallvec::SmallVec;

use crate::deliver::copies::identifiers_of;
use crate::parts::groups::Group;
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::asked::Asked;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::options;
use crate::{GroupWay, Mail, Scope, SessionKey, Shard, ShareStrategy};

/// How often a message is passed on before it is parked.
const HOPS_MAX: u8 = 3;

impl Shard {
    /// The publisher's side: choose a member, or let the home keep it.
    pub(crate) fn deliver_to_group(
        &mut self,
        number: u32,
        message: &Message,
        asked: Option<&mut Asked>,
    ) {
        self.cx.flow.work.charge_for(Task::Group);
        if !Scope::of(message).is_first() {
            self.cx.charge_sent(message, 1);
        }
        if !self.group_keeps(number, message) {
            return self.pass_on(number, message, GroupWay::new(0, 0));
        }
        let Some(name) = self.groups.name(number).cloned().expected() else { return };
        let home = self.cx.shared.place_of_group(name.key);
        // Also to itself by mail: an answer must not come before the acknowledgement is queued.
        let confirm = asked.map(Asked::ask_group);
        let mail = Mail::Park { group: name, message: message.clone(), number: 0, confirm };
        self.cx.send(home, mail);
    }

    pub(super) fn pass_on(&mut self, number: u32, message: &Message, way: GroupWay) {
        let cx = &mut self.cx;
        let hops = way.hops;
        let Some(group) = self.groups.get_mut(number).expected() else { return };
        let name = group.name.clone();
        let home = cx.shared.place_of_group(name.key);
        let is_behind = group.is_waiting && home != cx.id || !group.queue.is_empty();
        let chosen = if is_behind && hops == 0 || hops >= HOPS_MAX {
            None
        } else {
            group.assign(cx, message)
        };
        let message = message.clone();
        match chosen {
            Some(member) if member.shard() == cx.id => self.on_offer(&name, member, message, way),
            Some(member) => {
                cx.send(member.shard(), Mail::Offer { group: name, member, message, way });
            }
            None if home == cx.id => self.park(&name, (way.number, message)),
            None => {
                let (number, confirm) = (way.number, None);
                cx.send(home, Mail::Park { group: name, message, number, confirm });
            }
        }
    }

    /// The member's side: deliver, or pass on if it cannot take it now.
    pub(crate) fn on_offer(
        &mut self,
        name: &Arc<GroupName>,
        member_key: SessionKey,
        message: Message,
        way: GroupWay,
    ) {
        let serial = way.serial;
        if name.is_over() {
            return self.cx.lose_for_group(name, serial);
        }
        let number = self.know_group_for_now(name);
        let Self { cx, sessions, groups, .. } = self;
        let member = groups.get(number).and_then(|group| group.members.get(member_key));
        let member = member.map(|member| (member.options, member.identifier));
        let (Some((bits, identifier)), Some(client)) = (member, sessions.at(member_key)) else {
            return self.pass_back(number, &message, way);
        };
        let is_denied = bits & options::CHECK_RECEIVE != 0
            && !client.grants.allows(client.identity(), policy::Action::Receive, message.topic());
        if bits & options::CHECK_RECEIVE != 0 {
            cx.flow.work.charge(client.grants.topic_units());
        }
        if is_denied {
            client.publish_load();
            return self.pass_on_denied(number, &message, member_key, way);
        }
        if !client.session.has_window() {
            client.publish_load();
            return self.pass_back(number, &message, way);
        }
        cx.buffers.lend(client);
        let terms = Terms {
            identifiers: identifiers_of(identifier),
            group: name.key,
            serial,
            qos: options::qos(bits).min(message.qos()),
            retain: bits & options::RETAIN_AS_PUBLISHED != 0 && message.retain(),
        };
        let limits = client.limits.queue;
        let delivered_for_good = terms.qos == QoS::AtMostOnce;
        let sent = Sent { qos: terms.qos, payload_bytes: message.payload_len() };
        let offered = client.session.offer(&message, terms, &limits, None, cx.now_ms);
        client.publish_load();
        if !matches!(offered, Offered::Written | Offered::Queued) || delivered_for_good {
            cx.notify_home(name.key, serial, true);
        }
        client.after_offer(cx, sent, offered);
        let can_take_more = client.load.as_ref().is_some_and(|load| load.is_available());
        if delivered_for_good && can_take_more {
            // No acknowledgement will ask for the next one.
            self.pull(number);
        }
    }

    /// The member's side: what it cannot take goes back to the home that keeps it, or on to others.
    fn pass_back(&mut self, number: u32, message: &Message, way: GroupWay) {
        if way.serial == 0 {
            let way = GroupWay { hops: way.hops + 1, ..way };
            self.pass_on(number, message, way);
        } else if let Some(name) = self.groups.name(number) {
            self.cx.notify_home(name.key, way.serial, false);
        }
    }

    /// A member that may not receive the message gives it to the others, once round in the order of
    /// their keys, which is the same on all shards. What nobody with room may receive is put off.
    fn pass_on_denied(
        &mut self,
        number: u32,
        message: &Message,
        denied: SessionKey,
        way: GroupWay,
    ) {
        let Some(group) = self.groups.get(number).expected() else { return };
        let name = group.name.clone();
        let (all, members) = (group.members.len(), group.members.online());
        self.cx.flow.work.charge_for(Task::Members(members.len()));
        let members = members.filter(|member| member.load.is_available());
        let keys: SmallVec<[SessionKey; 8]> = members.map(|member| member.key).collect();
        let way = GroupWay { has_skipped: way.has_skipped || keys.len() < all, ..way };
        let first = if way.denied_by == SessionKey::NOBODY { denied } else { way.denied_by };
        let ahead = |key: SessionKey| key.as_u64().wrapping_sub(denied.as_u64());
        let others = keys.into_iter().filter(|key| *key != denied);
        let next = others.min_by_key(|key| ahead(*key));
        let is_unasked = |key: &SessionKey| first == denied || ahead(*key) < ahead(first);
        let Some(next) = next.filter(is_unasked) else {
            return self.put_off_denied(number, message, way);
        };
        // By mail also to itself: a group of thousands would go deep.
        let (message, way) = (message.clone(), GroupWay { denied_by: first, ..way });
        self.cx.send(next.shard(), Mail::Offer { group: name, member: next, message, way });
    }

    /// A member is gone: what it has not acknowledged goes back to its groups.
    pub(crate) fn give_back(&mut self, slot: u32) {
        let Some(client) = self.sessions.get_mut(slot).expected() else { return };
        if client.load.is_none() {
            return;
        }
        let deliveries = client.session.outgoing.take_shared();
        client.publish_load();
        for delivery in deliveries {
            let Delivery { message, terms: Terms { group, serial, .. } } = delivery;
            if serial != 0 {
                self.cx.notify_home(group, serial, false);
            } else if let Some(number) = self.groups.number(group) {
                self.pass_on(number, &message, GroupWay::new(1, 0));
            }
        }
    }

    /// A member here may have room now: ask the homes of its groups for parked messages.
    pub(crate) fn pull_for(&mut self, slot: u32) {
        let Some(client) = self.sessions.get(slot) else { return };
        if !client.load.as_ref().is_some_and(|load| load.is_available()) {
            return;
        }
        let numbers: SmallVec<[u32; 4]> =
            client.subscriptions.shared().map(|listed| listed.group - 1).collect();
        for number in numbers {
            self.pull(number);
        }
    }

    /// For a member that can take a message.
    fn pull(&mut self, number: u32) {
        let Some(group) = self.groups.get(number).expected() else { return };
        let key = group.name.key;
        let home = self.cx.shared.place_of_group(key);
        if home == self.cx.id {
            if group.is_announced {
                self.drain_group(key);
            }
        } else if group.is_waiting {
            self.cx.send(home, Mail::Pull { group: key });
        }
    }

    /// The home says whether something waits there.
    pub(crate) fn on_waiting(&mut self, key: u64, any: bool) {
        // The group may have ended while this was on its way.
        let Some(number) = self.groups.number(key) else { return };
        let Some(group) = self.groups.get_mut(number).expected() else { return };
        group.is_waiting = any;
        if any && group.has_room_on(&mut self.cx) {
            self.pull(number);
        }
    }
}

impl Context {
    /// The group is gone, and the message was for it alone.
    fn lose_for_group(&mut self, name: &Arc<GroupName>, serial: u64) {
        match serial {
            0 => self.note_group_dropped(name, 1),
            serial => self.notify_home(name.key, serial, false),
        }
    }
}

impl Group {
    /// Can a member of this shard take a message?
    fn has_room_on(&self, cx: &mut Context) -> bool {
        let mut online = self.members.online();
        cx.flow.work.charge_for(Task::Members(online.len()));
        online.any(|member| member.key.shard() == cx.id && member.load.is_available())
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
