//! The home of a group: the queue of what no member has, in memory and in the log.

use std::sync::Arc;

use codec::{QoS, Reason};
use session::{Dropped, Message, QueueLimit};
use storage::AppendError;

use crate::deliver::copies::count_dropped;
use crate::log::kept_groups::{Back, ForGroup};
use crate::log::store::{Loaded, Log};
use crate::parts::group_queue::Item;
use crate::parts::groups::Group;
use crate::parts::work::Task;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::reasons::reason_of;
use crate::{Confirm, GroupWay, Mail, Shard, ShareStrategy};

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
        let (serial, bytes) = log.keep_for_group(id, &own, &cx.shared.ledger)?;
        let was_empty = group.queue.is_empty();
        let item = Item::in_log(serial, bytes, message.expires_at_ms());
        group.queue.push(item, Some(message), cx.now_ms);
        group.keep_to_limits(cx, Some(log));
        Ok(was_empty)
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
        group.queue.wait(place, message, false, cx.now_ms);
        group.keep_to_limits(cx, log.as_deref_mut());
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
        let back = group.kept.map(|id| log.take_back(id, serial));
        let item = match back {
            Some(Back::Waits(bytes, expires_at_ms)) => Item::in_log(serial, bytes, expires_at_ms),
            Some(Back::Expired) => {
                count_dropped(&cx.metrics, Dropped::Expired, 1);
                return false;
            }
            Some(Back::Over) | None => return false,
        };
        group.queue.come_back(item, is_denied, cx.now_ms);
        group.keep_to_limits(cx, Some(log));
        true
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
        group.dispatch(cx, log.as_deref_mut());
        group.announce_waiting(cx);
    }

    /// After a start: notifies the other shards for which groups something waits here.
    pub(crate) fn announce_all_waiting(&mut self) {
        let Self { cx, groups, .. } = self;
        for key in groups.keys() {
            if let Some(group) = groups.by_key_mut(key) {
                group.announce_waiting(cx);
            }
        }
    }
}

impl Group {
    /// Tells the other shards, once per change, whether something waits here for their members.
    fn announce_waiting(&mut self, cx: &mut Context) {
        let any = !self.queue.is_empty();
        if std::mem::replace(&mut self.is_announced, any) != any {
            cx.send_to_shards(&Mail::Waiting { group: self.name.key, any });
        }
    }

    /// Dispatches what waits, as far as members have room.
    fn dispatch(&mut self, cx: &mut Context, mut log: Option<&mut Log>) {
        while let Some(front) = self.queue.front() {
            let (place, serial, known) = (front.place, front.serial, front.message.clone());
            if serial != 0 && !self.has_room(cx) {
                return;
            }
            let kept = self.kept.zip(log.as_deref_mut());
            let loaded = match (known, kept) {
                (Some(message), _) => Loaded::Ready(message),
                (None, Some((id, log))) => log.load_for_group(id, serial),
                (None, None) => Loaded::Gone,
            };
            let message = match loaded {
                Loaded::Pending => return,
                Loaded::Ready(message) if !message.is_expired(cx.now_ms) => Some(message),
                Loaded::Ready(_) | Loaded::Gone => None,
            };
            let member = message.as_ref().and_then(|message| self.assign(cx, message));
            if message.is_some() && member.is_none() {
                return;
            }
            let Some((_, was_live)) = self.queue.pop_front().expected() else { return };
            let (Some(member), Some(message)) = (member, message) else {
                count_dropped(&cx.metrics, Dropped::Expired, was_live.into());
                self.give_up(log.as_deref_mut(), Some(serial).filter(|serial| *serial != 0));
                continue;
            };
            if let Some((id, log)) = self.kept.zip(log.as_deref_mut()).filter(|_| serial != 0) {
                log.dispatch_for_group(id, serial);
            }
            // Hop 1: it comes from the queue, so the rest of the queue does not hold it back.
            let group = self.name.clone();
            let way = GroupWay { number: place, ..GroupWay::new(1, serial) };
            cx.send(member.shard(), Mail::Offer { group, member, message, way });
        }
    }

    /// Drops what is beyond the limits of the group's queue, in memory and in the log.
    pub(super) fn keep_to_limits(&mut self, cx: &mut Context, mut log: Option<&mut Log>) {
        let limits = cx.shared.settings.share_queue;
        // With what has expired: no look at that is needed where all has room.
        if QueueLimit::exceeded(self.queue.amount(), &limits).is_none() {
            return;
        }
        self.drop_expired(cx, log.as_deref_mut());
        let (mut dropped, mut at_limit) = (0, None);
        while let Some(limit) = QueueLimit::exceeded(self.queue.amount(), &limits)
            && let Some((item, was_live)) = self.queue.drop_one(&limits)
        {
            at_limit = Some(limit);
            dropped += u64::from(was_live);
            let serial = Some(item.serial).filter(|serial| *serial != 0);
            self.give_up(log.as_deref_mut(), serial);
        }
        if dropped > 0 {
            cx.note_group_dropped_at(&self.name, at_limit, dropped);
        }
    }

    /// What has expired takes no room (MQTT-3.3.2-5).
    pub(super) fn drop_expired(&mut self, cx: &mut Context, log: Option<&mut Log>) {
        let (expired, looked_at, gone) = self.queue.drop_expired(cx.now_ms);
        cx.flow.work.charge_for(Task::Pending(looked_at));
        count_dropped(&cx.metrics, Dropped::Expired, expired);
        self.give_up(log, gone);
    }

    /// Messages of the log will never be dispatched.
    pub(super) fn give_up(&self, log: Option<&mut Log>, serials: impl IntoIterator<Item = u64>) {
        let Some((id, log)) = self.kept.zip(log) else { return };
        for serial in serials {
            log.give_up_for_group(id, serial, self.queue.waits_before(serial));
        }
    }
}

/// Is it worth while to try again?
const fn may_pass(error: &AppendError) -> bool {
    !matches!(error, AppendError::TooLarge { .. })
}
