//! The home of a group: the queue of what no member has, in memory and in the log.

use std::sync::Arc;

use codec::{QoS, Reason};
use session::{Dropped, Message, QueueLimit};

use crate::deliver::copies::count_dropped;
use crate::log::kept_groups::{ForGroup, Surplus};
use crate::log::store::{Loaded, Log};
use crate::parts::groups::{Group, Parked};
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::queue_number::KeptId;
use crate::words::reasons::reason_of;
use crate::{Confirm, GroupWay, Mail, Shard, ShareStrategy};
use session::{Overflow, QueueLimits};
use storage::AppendError;

impl Shard {
    /// Does the group keep this message in a journal, at its home?
    pub(super) fn group_keeps(&self, number: u32, message: &Message) -> bool {
        self.log.is_some()
            && message.level() > 0
            && message.qos() != QoS::AtMostOnce
            && self.groups.has_durable_member(number)
    }

    /// A message for the group's queue.
    pub(crate) fn on_park(
        &mut self,
        name: &Arc<GroupName>,
        (number, message): (u64, Message),
        confirm: Option<Confirm>,
    ) {
        if confirm.is_some() && self.has_late_mail() {
            let group = name.clone();
            return self.put_off_mail(Mail::Park { group, message, number, confirm });
        }
        let known = self.groups.number(name.key);
        let Some(place) = known.filter(|it| self.group_keeps(*it, &message)) else {
            self.park(name, (number, message.clone()));
            return self.cx.answer(confirm, Reason::SUCCESS, message);
        };
        match self.keep_for_group(place, &message, confirm) {
            Ok(true) => self.drain(place),
            Ok(false) => {}
            Err(error) if may_pass(&error) && self.waits_for_disk(confirm) => {
                let group = name.clone();
                self.put_off_mail(Mail::Park { group, message, number, confirm });
            }
            Err(error) => {
                if confirm.is_none() {
                    self.cx.note_group_dropped(name, 1);
                }
                self.cx.answer(confirm, reason_of(&error), message);
            }
        }
    }

    /// Writes a message into the group's queue. Returns whether it is the first that waits there.
    fn keep_for_group(
        &mut self,
        number: u32,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, AppendError> {
        let Self { cx, groups, log: Some(log), .. } = self else { return Ok(false) };
        let Some(group) = groups.get_mut(number) else { return Ok(false) };
        let id = log.open_group_queue(group.kept, &group.name)?;
        group.kept = Some(id);
        let by_client = cx.shared.settings.share_strategy == ShareStrategy::HashClient;
        let own = ForGroup { message, by_client, confirm };
        let is_first = log.keep_for_group(id, &own, &cx.shared.ledger, cx.now_ms)?;
        group.keep_all_to_limits(cx, log, id);
        Ok(is_first)
    }

    /// Keeps a message until a member can take it.
    pub(super) fn park(&mut self, name: &Arc<GroupName>, (place, message): (u64, Message)) {
        if name.is_over() {
            return self.cx.note_group_dropped(name, 1);
        }
        let limits = self.cx.shared.settings.share_queue;
        let number = self.know_group_for_now(name);
        let Self { cx, groups, log, .. } = self;
        let Some(group) = groups.get_mut(number).expected() else { return };
        let is_kept = message.qos() != QoS::AtMostOnce
            && (group.members.is_empty() || group.members.keep())
            && message.heap_bytes() as u64 <= limits.bytes_max;
        if !is_kept {
            return cx.note_group_dropped(&group.name, 1);
        }
        group.wait(place, message, false, cx.now_ms);
        group.keep_to_limits(cx, log.as_deref());
        self.drain_group(name.key);
    }

    /// A member has acknowledged what the journal keeps, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, key: u64, serial: u64) {
        // As in `drain_group`.
        if let (Some(kept), Some(log)) = (self.groups.kept(key), &mut self.log) {
            log.on_group_done(kept, serial);
        }
    }

    /// A member could not take what the journal keeps, or has ended.
    pub(crate) fn on_group_returned(&mut self, key: u64, serial: u64) {
        // As in `drain_group`.
        if let Some(number) = self.groups.number(key)
            && self.take_back(number, serial, false)
        {
            self.drain(number);
        }
    }

    /// A message that was dispatched comes back. False: it is over. `is_denied`: no member with
    /// room may have it, and it is offered again later.
    pub(super) fn take_back(&mut self, number: u32, serial: u64, is_denied: bool) -> bool {
        let Self { cx, groups, log: Some(log), .. } = self else { return false };
        let Some(group) = groups.get_mut(number).expected() else { return false };
        let Some(id) = group.kept else { return false };
        let is_back = log.take_back(id, serial, is_denied);
        if is_back {
            group.keep_all_to_limits(cx, log, id);
        }
        is_back
    }

    /// All groups at home, for members that became free without anybody saying so.
    pub(crate) fn drain_groups(&mut self) {
        for number in self.groups.forgettable(self.cx.now_ms) {
            self.forget_group(number);
        }
        for key in self.groups.waiting() {
            self.drain_group(key);
        }
    }

    /// Delivers what waits as far as members have room.
    pub(crate) fn drain_group(&mut self, key: u64) {
        // The group may have ended while mail for it was on its way.
        if let Some(number) = self.groups.number(key) {
            self.drain(number);
        }
    }

    /// The same, and notifies the other shards whether something is left.
    fn drain(&mut self, number: u32) {
        let Self { cx, groups, log, .. } = self;
        let Some(group) = groups.get_mut(number).expected() else { return };
        if let (Some(id), Some(log)) = (group.kept, log.as_mut()) {
            group.dispatch_kept(cx, log, id);
        }
        group.dispatch_parked(cx);
        group.announce_waiting(cx, log.as_deref());
    }

    /// After a start: notifies the other shards for which groups something waits here.
    pub(crate) fn announce_all_waiting(&mut self) {
        let Self { cx, groups, log, .. } = self;
        for key in groups.keys() {
            if let Some(group) = groups.by_key_mut(key) {
                group.announce_waiting(cx, log.as_deref());
            }
        }
    }
}

impl Group {
    /// Is there a message that no member could take?
    pub(crate) fn has_waiting(&self, log: Option<&Log>) -> bool {
        let is_kept = || self.kept.zip(log).is_some_and(|(kept, log)| log.has_waiting(kept));
        !self.parked.is_empty() || is_kept()
    }

    /// Tells the other shards, once per change, whether something waits here for their members.
    fn announce_waiting(&mut self, cx: &mut Context, log: Option<&Log>) {
        let any = self.has_waiting(log);
        if std::mem::replace(&mut self.is_announced, any) != any {
            cx.send_to_others(&Mail::Waiting { group: self.name.key, any });
        }
    }

    /// Dispatches what waits in the log, as far as members have room.
    fn dispatch_kept(&mut self, cx: &mut Context, log: &mut Log, id: KeptId) {
        while log.has_waiting(id)
            && self.has_room(cx)
            && let Some((serial, loaded)) = log.front_of_group(id)
        {
            let message = match loaded {
                Loaded::Pending => return,
                Loaded::Ready(message) if !message.is_expired(cx.now_ms) => message,
                Loaded::Ready(_) | Loaded::Gone => {
                    let was_live = log.drop_front_of_group(id, serial);
                    count_dropped(&cx.metrics, Dropped::Expired, was_live.into());
                    continue;
                }
            };
            let Some(member) = self.assign(cx, &message) else { return };
            log.dispatch_front_of_group(id, serial);
            let (group, way) = (self.name.clone(), GroupWay::new(1, serial));
            cx.send(member.shard(), Mail::Offer { group, member, message, way });
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

    /// The limits of a group's queue, on all that no member has, in memory and in the log.
    fn keep_all_to_limits(&mut self, cx: &mut Context, log: &mut Log, id: KeptId) {
        let limits = cx.shared.settings.share_queue;
        let mut waiting = self.waiting_here();
        waiting.add(log.waiting_amount(id));
        // With what has expired: no look at that is needed where all has room.
        if QueueLimit::exceeded(waiting, &limits).is_none() {
            return;
        }
        if limits.overflow == Overflow::DropOldest {
            // What is in memory goes before what is in the journal.
            self.drop_kept_surplus(cx, log, id, &limits);
            return self.keep_to_limits(cx, Some(log));
        }
        cx.drop_group_expired(self);
        let limits = limits.less(self.waiting_here());
        self.drop_kept_surplus(cx, log, id, &limits);
    }

    fn drop_kept_surplus(&self, cx: &mut Context, log: &mut Log, id: KeptId, limits: &QueueLimits) {
        let surplus = log.drop_group_surplus(id, limits, cx.now_ms);
        let Surplus { expired, dropped, at_limit, looked_at } = surplus;
        cx.flow.work.charge_for(Task::Pending(looked_at));
        count_dropped(&cx.metrics, Dropped::Expired, expired);
        if dropped > 0 {
            cx.note_group_dropped_at(&self.name, at_limit, dropped);
        }
    }

    /// Drops from memory what is beyond the limits of the group's queue, which the log may have a
    /// part of.
    pub(super) fn keep_to_limits(&mut self, cx: &mut Context, log: Option<&Log>) {
        let kept = self.kept.zip(log).map(|(kept, log)| log.waiting_amount(kept));
        let limits = cx.shared.settings.share_queue.less(kept.unwrap_or_default());
        if QueueLimit::exceeded(self.waiting_here(), &limits).is_none() {
            return;
        }
        cx.drop_group_expired(self);
        let (mut dropped, mut at_limit) = (0, None);
        while let Some(limit) = QueueLimit::exceeded(self.waiting_here(), &limits)
            && let Some(was_live) = self.drop_one(limits.overflow)
        {
            at_limit = Some(limit);
            dropped += u64::from(was_live);
        }
        if dropped > 0 {
            cx.note_group_dropped_at(&self.name, at_limit, dropped);
        }
    }
}

impl Context {
    /// What has expired in the queues of a group takes no room there.
    pub(super) fn drop_group_expired(&mut self, group: &mut Group) {
        let (expired, looked_at) = group.drop_expired(self.now_ms);
        self.flow.work.charge_for(Task::Pending(looked_at));
        count_dropped(&self.metrics, Dropped::Expired, expired);
    }
}

/// Is it worth while to try again?
const fn may_pass(error: &AppendError) -> bool {
    !matches!(error, AppendError::TooLarge { .. })
}
