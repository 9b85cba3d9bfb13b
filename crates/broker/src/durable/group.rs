//! The queues of shared groups with a durable member.
//!
//! The group's home keeps each message until a member has acknowledged it, whoever that is. Members
//! hold what they were given in memory only: after a crash the home gives it out again, which at
//! least once allows. So shared subscriptions of durable sessions are granted QoS 1 at most.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use session::{Dropped, Message, Overflow};

use super::promise::Promise;
use super::queue::Queue;
use super::store::{Class, Loaded, level_of};
use super::track::{Place, Track};
use crate::clients::Sessions;
use crate::durable::Durable;
use crate::groups::group_names::GroupName;
use crate::groups::table::EXPIRY_LOOK_MS;
use crate::groups::table::Groups;
use crate::journal::{Fact, GroupOpened, QueueNumber, StoredMessage};
use crate::limits::ledger::NOBODY;
use crate::shard::context::Context;
use crate::sure::Sure;
use crate::{Confirm, GroupText, GroupWay, Mail, Name};

/// Bytes of waiting messages that a group keeps in memory beside the log. Policy: later ones are
/// read back from the disk.
const MEMORY_BYTES_MAX: usize = 1024 * 1024;

/// One message that waits.
#[derive(Debug)]
struct Waiting {
    serial: u64,
    bytes: u32,
    message: Option<Message>,
}

/// The queue of a group, at its home.
#[derive(Debug)]
pub(crate) struct KeptQueue {
    pub(crate) queue: QueueNumber,
    pub(crate) place: Place,
    pub(crate) track: Track,
    waiting: VecDeque<Waiting>,
    bytes: u64,
    memory_bytes: usize,
    /// Until then it is not looked through for what has expired.
    look_ms: u64,
    /// Given out and come back; they go first.
    returned: BTreeSet<u64>,
    /// Given out, and no member with room may have them (`groups/denied.rs`).
    denied: BTreeSet<u64>,
}

impl KeptQueue {
    fn new(queue: QueueNumber, place: Place, track: Track) -> Self {
        Self {
            queue,
            place,
            track,
            waiting: VecDeque::new(),
            bytes: 0,
            memory_bytes: 0,
            look_ms: 0,
            returned: BTreeSet::new(),
            denied: BTreeSet::new(),
        }
    }

    /// Messages that are not given out.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len() + self.returned.len() + self.denied.len()
    }

    /// Messages that a member was chosen for.
    pub(crate) fn given_out(&self) -> usize {
        self.track.in_flight().count() - self.returned.len() - self.denied.len()
    }

    pub(crate) fn has_denied(&self) -> bool {
        !self.denied.is_empty()
    }

    /// One that was given out is offered again later.
    pub(crate) fn put_off(&mut self, serial: u64) {
        if self.track.get_mut(serial).is_some() {
            self.denied.insert(serial);
        }
    }

    /// As many of these as that go to members again. Returns how many.
    pub(crate) fn put_back(&mut self, most: usize) -> usize {
        let count = self.denied.len().min(most);
        for _ in 0..count {
            self.returned.extend(self.denied.pop_first());
        }
        count
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.returned.is_empty()
    }

    fn push(&mut self, serial: u64, bytes: u32, message: Option<Message>) {
        let message = message.filter(|_| self.memory_bytes < MEMORY_BYTES_MAX);
        self.memory_bytes += message.as_ref().map_or(0, Message::heap_bytes);
        self.bytes += u64::from(bytes);
        self.waiting.push_back(Waiting { serial, bytes, message });
    }

    fn front(&self) -> Option<(u64, Option<&Message>)> {
        if let Some(serial) = self.returned.first() {
            return Some((*serial, None));
        }
        self.waiting.front().map(|waiting| (waiting.serial, waiting.message.as_ref()))
    }

    fn pop_front(&mut self) {
        if self.returned.pop_first().is_some() {
            return;
        }
        if let Some(gone) = self.waiting.pop_front() {
            self.bytes -= u64::from(gone.bytes);
            self.memory_bytes -= gone.message.as_ref().map_or(0, Message::heap_bytes);
        }
    }
}

impl Durable {
    /// Does the group keep this message in a log, at its home?
    pub(crate) fn group_keeps(&self, groups: &Groups, number: u32, message: &Message) -> bool {
        self.store.is_some()
            && message.level() > 0
            && message.qos() != codec::QoS::AtMostOnce
            && groups.has_durable_member(number)
    }

    /// The home's side: writes a message into the group's queue.
    ///
    /// None: it cannot be kept here, because no member is durable any more.
    pub(crate) fn keep_for_group(
        &mut self,
        cx: &mut Context,
        groups: &mut Groups,
        name: &Arc<GroupName>,
        message: &Message,
        confirm: Option<Confirm>,
    ) -> Result<bool, storage::AppendError> {
        let Some(number) = groups.number(name.key) else { return Ok(false) };
        if !self.group_keeps(groups, number, message) {
            return Ok(false);
        }
        let Some(queue) = self.open_group_queue(groups, name)?.sure() else { return Ok(false) };
        let Some(store) = self.store.as_mut().sure() else { return Ok(false) };
        let payer = confirm.map_or(NOBODY, |confirm| confirm.payer);
        let payer = store.payer(payer, &cx.shared.ledger);
        let (serial, position) = store.keep_message(message, payer.as_ref(), |message| {
            let queue = Some(queue);
            Fact::Message(StoredMessage { queue, ..message })
        })?;
        let bytes = store.stored(serial).map_or(0, |stored| stored.place.bytes);
        if let Some(confirm) = confirm {
            store.promises.push(position, level_of(message.level()), Promise::Confirm(confirm));
        }
        let Some(kept) = groups.kept_mut(name.key).sure() else { return Ok(false) };
        let was_empty = kept.is_empty();
        kept.push(serial, bytes, Some(message.clone()));
        self.drop_group_expired(cx, groups, name.key);
        self.drop_group_oldest(cx, groups, name);
        if was_empty {
            groups.drain_group(cx, self, name.key);
        }
        Ok(true)
    }

    fn open_group_queue(
        &mut self,
        groups: &mut Groups,
        name: &Arc<GroupName>,
    ) -> Result<Option<QueueNumber>, storage::AppendError> {
        if let Some(kept) = groups.kept(name.key) {
            return Ok(Some(kept.queue));
        }
        let Some(store) = self.store.as_mut().sure() else { return Ok(None) };
        let queue = store.new_queue();
        let from_serial = store.last_serial();
        let fact = Fact::GroupOpened(GroupOpened {
            queue,
            from_serial,
            name: &name.share,
            filter: &name.filter_name().key(),
        });
        let place = store.append(Class::Normal, &fact, storage::Level::Fsync)?;
        store.groups.insert(queue, name.key);
        let kept = KeptQueue::new(queue, place, Track::starting_at(from_serial));
        groups.set_kept(name.key, kept);
        Ok(Some(queue))
    }

    /// What has expired in a full queue takes no room there (MQTT-3.3.2-5).
    fn drop_group_expired(&mut self, cx: &Context, groups: &mut Groups, key: u64) {
        let now_ms = cx.now_ms;
        let limits = cx.shared.settings.share_queue;
        let (Some(kept), Some(store)) = (groups.kept_mut(key), &self.store) else { return };
        let is_full =
            kept.waiting.len() > limits.messages_max as usize || kept.bytes > limits.bytes_max;
        if !is_full || kept.look_ms > now_ms {
            return;
        }
        kept.look_ms = now_ms + EXPIRY_LOOK_MS;
        let (mut gone, mut bytes, mut memory_bytes) = (Vec::new(), 0, 0);
        kept.waiting.retain(|waiting| {
            let is_live = store.stored(waiting.serial).is_some();
            if !is_live {
                gone.push(waiting.serial);
                bytes += u64::from(waiting.bytes);
                memory_bytes += waiting.message.as_ref().map_or(0, Message::heap_bytes);
            }
            is_live
        });
        kept.bytes -= bytes;
        kept.memory_bytes -= memory_bytes;
        crate::routing::deliver::count_dropped(&cx.metrics, Dropped::Expired, gone.len() as u64);
        for serial in gone {
            self.finish_group_message(groups, key, serial, true);
        }
    }

    /// The limits of a group's queue: the oldest go, as a group has no one publisher to refuse.
    fn drop_group_oldest(&mut self, cx: &mut Context, groups: &mut Groups, name: &Arc<GroupName>) {
        let limits = cx.shared.settings.share_queue;
        let mut dropped = 0;
        while let Some(kept) = groups.kept_mut(name.key)
            && (kept.waiting.len() > limits.messages_max as usize || kept.bytes > limits.bytes_max)
        {
            let gone = match limits.overflow {
                Overflow::DropOldest => kept.waiting.pop_front(),
                _ => kept.waiting.pop_back(),
            };
            let Some(gone) = gone else { break };
            kept.bytes -= u64::from(gone.bytes);
            kept.memory_bytes -= gone.message.as_ref().map_or(0, Message::heap_bytes);
            self.finish_group_message(groups, name.key, gone.serial, true);
            dropped += 1;
        }
        if dropped > 0 {
            cx.note_group_dropped(name, dropped);
        }
    }

    /// The home's side: gives out what waits, as far as members have room.
    pub(crate) fn give_out_kept(&mut self, cx: &mut Context, groups: &mut Groups, key: u64) {
        let now_ms = cx.now_ms;
        loop {
            let Some(kept) = groups.kept(key) else { return };
            let queue = kept.queue;
            let Some((serial, message)) = kept.front() else { return };
            let message = message.cloned();
            if !groups.has_room(key) {
                return;
            }
            let loaded = match (message, &mut self.store) {
                (Some(message), _) => Loaded::Ready(message),
                (None, Some(store)) => store.load(serial, queue.into()),
                (None, None) => return,
            };
            let message = match loaded {
                Loaded::Pending => return,
                Loaded::Ready(message) if !message.is_expired(now_ms) => Some(message),
                Loaded::Ready(_) | Loaded::Gone => None,
            };
            let Some(message) = message else {
                groups.pop_kept(key);
                self.finish_group_message(groups, key, serial, true);
                crate::routing::deliver::count_dropped(&cx.metrics, Dropped::Expired, 1);
                continue;
            };
            let random = cx.next_random();
            let Some((name, member)) = groups.choose_for(key, &message, random, &cx.shared) else {
                return;
            };
            groups.pop_kept(key);
            if let Some(kept) = groups.kept_mut(key) {
                kept.track.hand_out(serial, 0);
            }
            let mail = Mail::Offer { group: name, member, message, way: GroupWay::new(1, serial) };
            cx.send(member.shard(), mail);
        }
    }
}

impl Groups {
    fn pop_kept(&mut self, key: u64) {
        if let Some(kept) = self.kept_mut(key) {
            kept.pop_front();
        }
    }
}

impl Durable {
    /// The home's side: a member has acknowledged, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, groups: &mut Groups, key: u64, serial: u64) {
        self.finish_group_message(groups, key, serial, false);
    }

    fn finish_group_message(
        &mut self,
        groups: &mut Groups,
        key: u64,
        serial: u64,
        is_unsent: bool,
    ) {
        // The group may have lost its last member, and its queue, while this was on its way.
        let Some(kept) = groups.kept_mut(key) else { return };
        kept.returned.remove(&serial);
        kept.denied.remove(&serial);
        let was_out = kept.track.finish(serial).is_some();
        let queue = kept.queue;
        if !was_out {
            if !is_unsent {
                return;
            }
            match (kept.waiting.front(), kept.waiting.back()) {
                // It was the last of several.
                (Some(front), Some(back)) if front.serial < serial => {
                    kept.track.skip(serial, back.serial);
                }
                _ => kept.track.pass(serial),
            }
        }
        if let Some(store) = &mut self.store {
            store.note_moved(queue.into());
            store.release_message(serial);
        }
    }

    /// The home's side: a member could not take it, or ended before it acknowledged.
    pub(crate) fn on_group_returned(
        &mut self,
        cx: &mut Context,
        groups: &mut Groups,
        key: u64,
        serial: u64,
    ) {
        // As in `finish_group_message`.
        let Some(kept) = groups.kept_mut(key) else { return };
        if kept.track.get_mut(serial).is_some() {
            kept.returned.insert(serial);
            groups.drain_group(cx, self, key);
        }
    }
}

impl Context {
    /// The member's side: tells the home that a message is done, or comes back.
    pub(crate) fn tell_home(&mut self, group: u64, serial: u64, is_done: bool) {
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

impl Durable {
    /// The group has no member any more: what it kept is lost, and said to be.
    pub(crate) fn close_group_queue(&mut self, kept: KeptQueue) -> u64 {
        let Some(store) = self.store.as_mut().sure() else { return 0 };
        let mut lost = 0;
        let given_out: Vec<u64> = kept.track.in_flight().map(|out| out.serial).collect();
        for serial in kept.waiting.iter().map(|waiting| waiting.serial).chain(given_out) {
            store.release_message(serial);
            lost += 1;
        }
        store.release(kept.place);
        store.release(kept.track.place);
        store.groups.remove(&kept.queue);
        // Should it be lost, the group comes back with the next start and is closed then.
        let closed = Fact::GroupClosed { queue: kept.queue };
        let _ = store.append_deletion(&closed, storage::Level::Fsync);
        lost
    }

    /// Puts a group's queue back as it was in the log.
    pub(super) fn restore_group(
        &mut self,
        cx: &Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        queue: QueueNumber,
        facts: &super::replay::GroupFacts,
        track: Track,
    ) {
        let now_ms = cx.now_ms;
        let filter = Name::of_key(&facts.filter);
        let name =
            groups.group_name(cx, GroupText::new(filter.scope(), &facts.name, filter.text()));
        groups.know_restored_group(sessions, &name, now_ms);
        if let Some(store) = &mut self.store {
            store.groups.insert(queue, name.key);
        }
        groups.set_kept(name.key, KeptQueue::new(queue, facts.place, track));
    }

    /// Lines a message up in the queue of its group. Returns how many need it.
    pub(crate) fn restore_group_message(
        &self,
        sessions: &Sessions,
        groups: &mut Groups,
        serial: u64,
        queue: QueueNumber,
        bytes: u32,
    ) -> u32 {
        // Its group was closed.
        let Some(Queue::Group(key)) = self.queue_of(sessions, queue) else { return 0 };
        let Some(kept) = groups.kept_mut(key).sure() else { return 0 };
        if serial <= kept.track.cursor() || kept.track.contains(serial) {
            return 0;
        }
        kept.push(serial, bytes, None);
        1
    }
}
