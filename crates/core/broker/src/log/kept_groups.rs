//! The queues of shared groups with a durable member.
//!
//! The group's home keeps each message until a member has acknowledged it, whoever that is. Members
//! hold what they were given in memory only: after a crash the home dispatches it again, which at
//! least once allows. So shared subscriptions of durable sessions are granted QoS 1 at most.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use session::{Amount, Dropped, Expires, ExpiringQueue, Message, Overflow, QueueLimits};
use slab::Slab;
use storage::{AppendError, Level};

use crate::deliver::copies::count_dropped;
use crate::log::Durable;
use crate::log::facts::{Fact, GroupOpened, StoredMessage};
use crate::log::postponed::Postponed;
use crate::log::promise::Promise;
use crate::log::replay::MessageFacts;
use crate::log::store::{Class, Loaded, Store, level_of};
use crate::log::track::Track;
use crate::parts::groups::{Group, Groups};
use crate::parts::work::Task;
use crate::share::offer::{exceeded, less};
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::ledger::NOBODY;
use crate::words::queue_number::{KeptId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::{Confirm, GroupWay, Mail, ShareStrategy};

/// Bytes of waiting messages that a group keeps in memory beside the journal. Policy: later ones
/// are read back from the disk.
const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// How long what has come back is not looked through again for what has expired.
const EXPIRY_LOOK_MS: u64 = 1000;

/// One message that waits.
#[derive(Debug)]
struct QueuedMessage {
    serial: u64,
    expires_at_ms: u64,
    bytes: u32,
    message: Option<Message>,
}

impl Expires for QueuedMessage {
    fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    fn bytes(&self) -> u64 {
        self.bytes.into()
    }
}

impl QueuedMessage {
    fn memory_bytes(&self) -> usize {
        self.message.as_ref().map_or(0, Message::heap_bytes)
    }
}

/// The queue of a group, at its home.
#[derive(Debug)]
pub(super) struct KeptQueue {
    pub(super) number: QueueNumber,
    /// The key of its group.
    pub(super) group: u64,
    pub(super) place: RecordLocation,
    pub(super) track: Track,
    waiting: ExpiringQueue<QueuedMessage>,
    memory_bytes: usize,
    /// Dispatched and returned; they go first. With their bytes.
    returned: BTreeMap<u64, u32>,
    /// Dispatched, and no member with room may have them (`share/denied.rs`). With their bytes.
    denied: BTreeMap<u64, u32>,
    /// Of both.
    returned_bytes: u64,
    /// Until then they are not looked through for what has expired.
    look_ms: u64,
}

/// The queues of the groups that have their home here.
#[derive(Debug, Default)]
pub(super) struct KeptGroups {
    queues: Slab<KeptQueue>,
    by_number: HashMap<QueueNumber, KeptId, FixedState>,
}

impl KeptGroups {
    /// Messages of all groups that a member was chosen for.
    pub(super) fn dispatched(&self) -> usize {
        self.queues.iter().map(|(_, kept)| kept.dispatched()).sum()
    }

    pub(super) fn find(&self, number: QueueNumber) -> Option<KeptId> {
        self.by_number.get(&number).copied()
    }

    pub(super) fn get(&self, id: KeptId) -> Option<&KeptQueue> {
        self.queues.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: KeptId) -> Option<&mut KeptQueue> {
        self.queues.get_mut(id.0 as usize)
    }

    fn insert(&mut self, queue: KeptQueue) -> KeptId {
        let number = queue.number;
        let id = KeptId(self.queues.insert(queue) as u32);
        self.by_number.insert(number, id);
        id
    }

    fn remove(&mut self, id: KeptId) -> Option<KeptQueue> {
        let queue = self.queues.try_remove(id.0 as usize)?;
        self.by_number.remove(&queue.number);
        Some(queue)
    }
}

impl KeptQueue {
    fn new(number: QueueNumber, group: u64, place: RecordLocation, track: Track) -> Self {
        Self {
            number,
            group,
            place,
            track,
            waiting: ExpiringQueue::default(),
            memory_bytes: 0,
            returned: BTreeMap::new(),
            denied: BTreeMap::new(),
            returned_bytes: 0,
            look_ms: 0,
        }
    }

    /// Messages that a member was chosen for.
    fn dispatched(&self) -> usize {
        self.track.in_flight().count() - self.returned.len() - self.denied.len()
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.returned.is_empty()
    }

    /// What no member has, whatever keeps it waiting.
    fn undispatched(&self) -> Amount {
        let mut amount = self.waiting.live();
        let messages = (self.returned.len() + self.denied.len()) as u32;
        amount.add(Amount { messages, bytes: self.returned_bytes });
        amount
    }

    /// Takes out the oldest or the newest message that no member has. False: it was counted as
    /// expired before.
    fn take_one(&mut self, limits: &QueueLimits) -> Option<(u64, bool)> {
        // One that is too large by itself makes nobody else go.
        let newest_bytes = self.waiting.back().map_or(0, Expires::bytes);
        let is_oldest = limits.overflow == Overflow::DropOldest && newest_bytes <= limits.bytes_max;
        let (waiting, others) = if is_oldest {
            let others = [self.returned.first_key_value(), self.denied.first_key_value()];
            (self.waiting.front(), others)
        } else {
            let others = [self.returned.last_key_value(), self.denied.last_key_value()];
            (self.waiting.back(), others)
        };
        let waiting = waiting.map(|waiting| waiting.serial);
        let all = others.into_iter().flatten().map(|(serial, _)| *serial).chain(waiting);
        let serial = if is_oldest { all.min() } else { all.max() }?;
        if Some(serial) != waiting {
            self.forget_returned(serial);
            return Some((serial, true));
        }
        let gone = if is_oldest { self.waiting.pop_front() } else { self.waiting.pop_back() };
        let (gone, is_live) = gone?;
        self.memory_bytes -= gone.memory_bytes();
        Some((serial, is_live))
    }

    /// A message that had come back waits no more.
    fn forget_returned(&mut self, serial: u64) {
        for bytes in [self.returned.remove(&serial), self.denied.remove(&serial)] {
            self.returned_bytes -= u64::from(bytes.unwrap_or_default());
        }
    }

    /// A message that was dispatched comes back. False: it is over.
    fn come_back(&mut self, serial: u64, bytes: u32, is_denied: bool) -> bool {
        if self.track.get_mut(serial).is_none() {
            return false;
        }
        self.forget_returned(serial);
        self.returned_bytes += u64::from(bytes);
        let queue = if is_denied { &mut self.denied } else { &mut self.returned };
        queue.insert(serial, bytes);
        true
    }

    fn push(&mut self, queued: QueuedMessage, now_ms: u64) {
        let message = queued.message.filter(|_| self.memory_bytes < MEMORY_BYTES_MAX);
        self.memory_bytes += message.as_ref().map_or(0, Message::heap_bytes);
        self.waiting.push(QueuedMessage { message, ..queued }, now_ms);
    }

    fn front(&self) -> Option<(u64, Option<&Message>)> {
        if let Some((serial, _)) = self.returned.first_key_value() {
            return Some((*serial, None));
        }
        self.waiting.front().map(|waiting| (waiting.serial, waiting.message.as_ref()))
    }

    /// False: it was counted as expired before.
    fn pop_front(&mut self) -> bool {
        if let Some((_, bytes)) = self.returned.pop_first() {
            self.returned_bytes -= u64::from(bytes);
            return true;
        }
        let Some((gone, is_live)) = self.waiting.pop_front() else { return false };
        self.memory_bytes -= gone.memory_bytes();
        is_live
    }

    /// A message is acknowledged or, `is_unsent`, will never be dispatched. False: that was known.
    fn finish(&mut self, serial: u64, is_unsent: bool) -> bool {
        self.forget_returned(serial);
        if self.track.finish(serial).is_some() {
            return true;
        }
        if !is_unsent {
            return false;
        }
        match (self.waiting.front(), self.waiting.back()) {
            // It was the last of several.
            (Some(front), Some(back)) if front.serial < serial => {
                self.track.skip(serial, back.serial);
            }
            _ => self.track.pass(serial),
        }
        true
    }
}

impl Durable {
    /// Does the group keep this message in a journal, at its home?
    pub(crate) fn group_keeps(&self, groups: &Groups, number: u32, message: &Message) -> bool {
        self.store.is_some()
            && message.level() > 0
            && message.qos() != codec::QoS::AtMostOnce
            && groups.has_durable_member(number)
    }

    /// The home's side: writes a message into the group's queue. Returns whether it is the first
    /// that waits there.
    pub(crate) fn keep_for_group(
        &mut self,
        cx: &mut Context,
        group: &mut Group,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, AppendError> {
        let Some(store) = self.store.as_mut().expected() else { return Ok(false) };
        let id = store.open_group_queue(group)?;
        let Some(kept) = store.groups.get(id).expected() else { return Ok(false) };
        let (number, was_empty) = (kept.number, kept.is_empty());
        let owner = confirm.map_or(NOBODY, |confirm| confirm.owner);
        let owner = store.owner(owner, &cx.shared.ledger);
        let by_client = cx.shared.settings.share_strategy == ShareStrategy::HashClient;
        let (serial, position) = store.keep_message(message, owner.as_ref(), |message| {
            // Only one strategy asks who has published it.
            let author = if by_client { message.author } else { 0 };
            Fact::Message(StoredMessage { queue: Some(number), author, ..message })
        })?;
        if let Some(confirm) = confirm {
            store.promises.push(position, level_of(message.level()), Promise::Confirm(confirm));
        }
        let bytes = store.stored(serial).map_or(0, |stored| stored.place.bytes);
        if let Some(kept) = store.groups.get_mut(id) {
            let (expires_at_ms, message) = (message.expires_at_ms(), Some(message.clone()));
            kept.push(QueuedMessage { serial, expires_at_ms, bytes, message }, cx.now_ms);
        }
        self.keep_group_to_limits(cx, group, id);
        Ok(was_empty)
    }

    /// The home's side: dispatches what waits, as far as members have room.
    pub(crate) fn dispatch_kept(&mut self, cx: &mut Context, group: &mut Group) {
        let (Some(id), Some(store)) = (group.kept, &mut self.store) else { return };
        while let Some(kept) = store.groups.get(id).expected()
            && let Some((serial, message)) = kept.front()
            && group.has_room(cx)
        {
            let loaded = match message.cloned() {
                Some(message) => Loaded::Ready(message),
                None => {
                    let queue = kept.number.into();
                    store.load(serial, queue)
                }
            };
            let message = match loaded {
                Loaded::Pending => return,
                Loaded::Ready(message) if !message.is_expired(cx.now_ms) => message,
                Loaded::Ready(_) | Loaded::Gone => {
                    let was_live = store.groups.get_mut(id).is_some_and(KeptQueue::pop_front);
                    store.finish_for_group(id, serial, true);
                    count_dropped(&cx.metrics, Dropped::Expired, was_live.into());
                    continue;
                }
            };
            let Some(member) = group.assign(cx, &message) else { return };
            if let Some(kept) = store.groups.get_mut(id) {
                kept.pop_front();
                kept.track.assign(serial, 0);
            }
            let (group, way) = (group.name.clone(), GroupWay::new(1, serial));
            cx.send(member.shard(), Mail::Offer { group, member, message, way });
        }
    }

    /// The home's side: a member has acknowledged, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, id: KeptId, serial: u64) {
        if let Some(store) = &mut self.store {
            store.finish_for_group(id, serial, false);
        }
    }

    /// The home's side: a member could not take it, or ended before it acknowledged. True: it is to
    /// be dispatched again. `is_denied`: no member with room may have it, and it is offered again
    /// later.
    pub(crate) fn take_back(
        &mut self,
        cx: &mut Context,
        group: &mut Group,
        serial: u64,
        is_denied: bool,
    ) -> bool {
        let (Some(id), Some(store)) = (group.kept, &mut self.store) else { return false };
        let bytes = store.stored(serial).map_or(0, |stored| stored.place.bytes);
        let kept = store.groups.get_mut(id);
        if !kept.is_some_and(|kept| kept.come_back(serial, bytes, is_denied)) {
            return false;
        }
        self.keep_group_to_limits(cx, group, id);
        true
    }

    /// The limits of a group's queue, on all that no member has, in memory and in the journal.
    fn keep_group_to_limits(&mut self, cx: &mut Context, group: &mut Group, id: KeptId) {
        let Some(store) = &mut self.store else { return };
        let limits = cx.shared.settings.share_queue;
        let mut waiting = group.waiting_here();
        waiting.add(store.groups.get(id).map(KeptQueue::undispatched).unwrap_or_default());
        // With what has expired: no look at that is needed where all has room.
        if exceeded(waiting, &limits).is_none() {
            return;
        }
        if limits.overflow == Overflow::DropOldest {
            // What is in memory goes before what is in the journal.
            store.drop_group_surplus(cx, &group.name, id, &limits);
            return group.keep_to_limits(cx, self);
        }
        cx.drop_group_expired(group);
        let limits = less(&limits, group.waiting_here());
        store.drop_group_surplus(cx, &group.name, id, &limits);
    }

    /// As many of these as that go to members again. Returns how many.
    pub(crate) fn put_back_denied(&mut self, id: KeptId, most: usize) -> usize {
        let Some(kept) = self.kept_group(id) else { return 0 };
        let count = kept.denied.len().min(most);
        for _ in 0..count {
            kept.returned.extend(kept.denied.pop_first());
        }
        count
    }

    pub(crate) fn has_denied(&self, id: KeptId) -> bool {
        let kept = self.store.as_ref().and_then(|store| store.groups.get(id));
        kept.is_some_and(|kept| !kept.denied.is_empty())
    }

    /// Does anything wait for a member?
    pub(crate) fn has_waiting(&self, id: KeptId) -> bool {
        let kept = self.store.as_ref().and_then(|store| store.groups.get(id));
        kept.is_some_and(|kept| !kept.is_empty())
    }

    /// Messages that are not dispatched.
    pub(crate) fn waiting_amount(&self, id: KeptId) -> Amount {
        let kept = self.store.as_ref().and_then(|store| store.groups.get(id));
        kept.map(KeptQueue::undispatched).unwrap_or_default()
    }

    /// The group has no member any more: what it kept is lost, and said to be.
    pub(crate) fn close_group_queue(&mut self, id: KeptId) -> u64 {
        let Some(store) = self.store.as_mut().expected() else { return 0 };
        let Some(kept) = store.groups.remove(id).expected() else { return 0 };
        let mut lost = 0;
        let dispatched = kept.track.in_flight().map(|out| out.serial);
        for serial in kept.waiting.iter().map(|waiting| waiting.serial).chain(dispatched) {
            store.release_message(serial);
            lost += 1;
        }
        store.release(kept.place);
        store.release(kept.track.place);
        let queue = kept.number;
        if let Err(error) = store.append_deletion(&Fact::GroupClosed { queue }, Level::Fsync) {
            // Should it be lost, the queue comes back with the next start and is closed then.
            let _ = store.postponed.put_off(error, || Postponed::GroupClosed(queue));
        }
        lost
    }

    fn kept_group(&mut self, id: KeptId) -> Option<&mut KeptQueue> {
        self.store.as_mut()?.groups.get_mut(id)
    }
}

impl Store {
    fn open_group_queue(&mut self, group: &mut Group) -> Result<KeptId, AppendError> {
        if let Some(id) = group.kept {
            return Ok(id);
        }
        let (number, from_serial) = (self.new_queue(), self.last_serial());
        let name = &group.name;
        let fact = Fact::GroupOpened(GroupOpened {
            queue: number,
            from_serial,
            name: &name.share,
            filter: &name.filter_name().key(),
        });
        let place = self.append(Class::Normal, &fact, Level::Fsync)?;
        let id = self.put_group_queue(number, name.key, place, Track::starting_at(from_serial));
        group.kept = Some(id);
        Ok(id)
    }

    /// Puts a group's queue where it is found by its number.
    pub(super) fn put_group_queue(
        &mut self,
        number: QueueNumber,
        group: u64,
        place: RecordLocation,
        track: Track,
    ) -> KeptId {
        self.groups.insert(KeptQueue::new(number, group, place, track))
    }

    /// What has expired in a full queue takes no room there (MQTT-3.3.2-5).
    fn drop_group_expired(&mut self, cx: &mut Context, id: KeptId) {
        let Some(kept) = self.groups.get_mut(id) else { return };
        let mut gone = Vec::new();
        let (expired, looked_at) = kept.waiting.expire(cx.now_ms, |it| gone.push(it));
        cx.flow.work.charge_for(Task::Pending(looked_at));
        count_dropped(&cx.metrics, Dropped::Expired, expired.messages.into());
        kept.memory_bytes -= gone.iter().map(QueuedMessage::memory_bytes).sum::<usize>();
        for QueuedMessage { serial, .. } in gone {
            self.finish_for_group(id, serial, true);
        }
    }

    /// What has expired of that which had come back, of which no end is noted. Only where there is
    /// more than the limits allow, and once a second at most.
    fn drop_returned_expired(&mut self, cx: &mut Context, id: KeptId) {
        let Some(kept) = self.groups.get(id).filter(|kept| kept.look_ms <= cx.now_ms) else {
            return;
        };
        cx.flow.work.charge_for(Task::Pending(kept.returned.len() + kept.denied.len()));
        let all = kept.returned.keys().chain(kept.denied.keys()).copied();
        let gone: Vec<u64> = all.filter(|serial| self.stored(*serial).is_none()).collect();
        if let Some(kept) = self.groups.get_mut(id) {
            kept.look_ms = cx.now_ms + EXPIRY_LOOK_MS;
        }
        count_dropped(&cx.metrics, Dropped::Expired, gone.len() as u64);
        gone.into_iter().for_each(|serial| self.finish_for_group(id, serial, true));
    }

    /// The oldest or the newest messages go, as a group has no one publisher to refuse.
    fn drop_group_surplus(
        &mut self,
        cx: &mut Context,
        name: &Arc<GroupName>,
        id: KeptId,
        limits: &QueueLimits,
    ) {
        self.drop_group_expired(cx, id);
        let over = |kept: &KeptQueue| exceeded(kept.undispatched(), limits);
        if self.groups.get(id).and_then(over).is_none() {
            return;
        }
        self.drop_returned_expired(cx, id);
        let (mut dropped, mut at_limit) = (0, None);
        while let Some(kept) = self.groups.get_mut(id)
            && let Some(limit) = over(kept)
            && let Some((serial, was_live)) = kept.take_one(limits)
        {
            at_limit = Some(limit);
            self.finish_for_group(id, serial, true);
            dropped += u64::from(was_live);
        }
        if dropped > 0 {
            cx.note_group_dropped_at(name, at_limit, dropped);
        }
    }

    fn finish_for_group(&mut self, id: KeptId, serial: u64, is_unsent: bool) {
        // The group may have lost its queue while this was on its way.
        let Some(kept) = self.groups.get_mut(id) else { return };
        if kept.finish(serial, is_unsent) {
            let number = kept.number;
            self.note_moved(number.into());
            self.release_message(serial);
        }
    }

    /// Lines a message up in the queue of its group. Returns how many need it.
    pub(super) fn restore_group_message(
        &mut self,
        serial: u64,
        queue: QueueNumber,
        facts: &MessageFacts,
        now_ms: u64,
    ) -> u32 {
        // Its group was closed.
        let Some(id) = self.groups.find(queue) else { return 0 };
        let Some(kept) = self.groups.get_mut(id).expected() else { return 0 };
        if serial <= kept.track.cursor() || kept.track.contains(serial) {
            return 0;
        }
        let MessageFacts { place, expires_at_ms, .. } = *facts;
        let (bytes, message) = (place.bytes, None);
        kept.push(QueuedMessage { serial, expires_at_ms, bytes, message }, now_ms);
        1
    }
}

impl Context {
    /// The member's side: notifies the home that a message is done, or comes back.
    pub(crate) fn notify_home(&mut self, group: u64, serial: u64, is_done: bool) {
        if serial == 0 {
            return;
        }
        let mail = match is_done {
            true => Mail::GroupDone { group, serial },
            false => Mail::GroupReturned { group, serial },
        };
        self.send(self.shared.shard_of_group(group), mail);
    }
}
