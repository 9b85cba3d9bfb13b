//! What the home of a group writes, and dispatches again.

use session::{Amount, Message, QueueLimit, QueueLimits};
use storage::{AppendError, Level};

use crate::Confirm;
use crate::log::facts::{Fact, GroupOpened, StoredMessage};
use crate::log::group_queues::{EXPIRY_LOOK_MS, KeptQueue, QueuedMessage};
use crate::log::late::Late;
use crate::log::messages::level_of;
use crate::log::store::{Class, Loaded, Log, Store};
use crate::log::track::Track;
use crate::log::waiting::Step;
use crate::words::expected::Expected;
use crate::words::group_names::GroupName;
use crate::words::ledger::{Ledger, NOBODY};
use crate::words::queue_number::{KeptId, QueueNumber};
use crate::words::record_location::RecordLocation;

/// A message that a group keeps.
pub(crate) struct ForGroup<'a> {
    pub(crate) message: &'a Message,
    /// Only one strategy asks who has published it.
    pub(crate) by_client: bool,
    pub(crate) confirm: Option<Confirm>,
}

/// What went from the queue of a group to keep it to its limits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Surplus {
    pub(crate) expired: u64,
    pub(crate) dropped: u64,
    /// The last limit that was exceeded.
    pub(crate) at_limit: Option<QueueLimit>,
    /// Messages that were looked at.
    pub(crate) looked_at: usize,
}

impl Log {
    /// The home's side: the queue of a group, which is opened if there is none.
    pub(crate) fn open_group_queue(
        &mut self,
        known: Option<KeptId>,
        name: &GroupName,
    ) -> Result<KeptId, AppendError> {
        known.map_or_else(|| self.store.open_group_queue(name), Ok)
    }

    /// The home's side: writes a message into a group's queue. Returns whether it is the first that
    /// waits there.
    pub(crate) fn keep_for_group(
        &mut self,
        id: KeptId,
        own: &ForGroup<'_>,
        ledger: &Ledger,
        now_ms: u64,
    ) -> Result<bool, AppendError> {
        let ForGroup { message, by_client, confirm } = *own;
        let store = &mut self.store;
        let Some(kept) = store.groups.get(id).expected() else { return Ok(false) };
        let (number, was_empty) = (kept.number, kept.is_empty());
        let owner = store.owner(confirm.map_or(NOBODY, |confirm| confirm.owner), ledger);
        let (serial, position) = store.keep_message(message, owner.as_ref(), |message| {
            let author = if by_client { message.author } else { 0 };
            Fact::Message(StoredMessage { queue: Some(number), author, ..message })
        })?;
        if let Some(confirm) = confirm {
            store.waiting.push(position, level_of(message.level()), Step::Answer(confirm));
        }
        let bytes = store.stored(serial).map_or(0, |stored| stored.place.bytes);
        if let Some(kept) = store.groups.get_mut(id) {
            let (expires_at_ms, message) = (message.expires_at_ms(), Some(message.clone()));
            kept.push(QueuedMessage { serial, expires_at_ms, bytes, message }, now_ms);
        }
        Ok(was_empty)
    }

    /// The next message of a group for a member, by its serial, from memory or the disk.
    pub(crate) fn front_of_group(&mut self, id: KeptId) -> Option<(u64, Loaded)> {
        let store = &mut self.store;
        let kept = store.groups.get(id).expected()?;
        let (serial, message) = kept.front()?;
        let loaded = match message.cloned() {
            Some(message) => Loaded::Ready(message),
            None => {
                let queue = kept.number.into();
                store.load(serial, queue)
            }
        };
        Some((serial, loaded))
    }

    /// The front of the queue has expired. False: it was counted as that before.
    pub(crate) fn drop_front_of_group(&mut self, id: KeptId, serial: u64) -> bool {
        let was_live = self.store.groups.get_mut(id).is_some_and(KeptQueue::pop_front);
        self.store.finish_for_group(id, serial, true);
        was_live
    }

    /// The front of the queue goes to a member.
    pub(crate) fn dispatch_front_of_group(&mut self, id: KeptId, serial: u64) {
        if let Some(kept) = self.store.groups.get_mut(id) {
            kept.pop_front();
            kept.track.assign(serial, 0);
        }
    }

    /// The home's side: a member has acknowledged, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, id: KeptId, serial: u64) {
        self.store.finish_for_group(id, serial, false);
    }

    /// The home's side: a member could not take it, or ended before it acknowledged. False: it is
    /// over. `is_denied`: no member with room may have it, and it is offered again later.
    pub(crate) fn take_back(&mut self, id: KeptId, serial: u64, is_denied: bool) -> bool {
        let bytes = self.store.stored(serial).map_or(0, |stored| stored.place.bytes);
        let kept = self.store.groups.get_mut(id);
        kept.is_some_and(|kept| kept.come_back(serial, bytes, is_denied))
    }

    /// As many of these as that go to members again. Returns how many.
    pub(crate) fn put_back_denied(&mut self, id: KeptId, most: usize) -> usize {
        let Some(kept) = self.store.groups.get_mut(id) else { return 0 };
        let count = kept.denied.len().min(most);
        for _ in 0..count {
            kept.returned.extend(kept.denied.pop_first());
        }
        count
    }

    pub(crate) fn has_denied(&self, id: KeptId) -> bool {
        self.store.groups.get(id).is_some_and(|kept| !kept.denied.is_empty())
    }

    /// Does anything wait for a member?
    pub(crate) fn has_waiting(&self, id: KeptId) -> bool {
        self.store.groups.get(id).is_some_and(|kept| !kept.is_empty())
    }

    /// Messages that are not dispatched.
    pub(crate) fn waiting_amount(&self, id: KeptId) -> Amount {
        self.store.groups.get(id).map(KeptQueue::undispatched).unwrap_or_default()
    }

    /// The oldest or the newest messages go, as a group has no one publisher to refuse. Those first
    /// that have expired.
    pub(crate) fn drop_group_surplus(
        &mut self,
        id: KeptId,
        limits: &QueueLimits,
        now_ms: u64,
    ) -> Surplus {
        let store = &mut self.store;
        let mut surplus = Surplus::default();
        store.drop_group_expired(id, now_ms, &mut surplus);
        let over = |kept: &KeptQueue| QueueLimit::exceeded(kept.undispatched(), limits);
        if store.groups.get(id).and_then(over).is_none() {
            return surplus;
        }
        store.drop_returned_expired(id, now_ms, &mut surplus);
        while let Some(kept) = store.groups.get_mut(id)
            && let Some(limit) = over(kept)
            && let Some((serial, was_live)) = kept.take_one(limits)
        {
            surplus.at_limit = Some(limit);
            store.finish_for_group(id, serial, true);
            surplus.dropped += u64::from(was_live);
        }
        surplus
    }

    /// The group has no member any more: what it kept is lost. Returns how many messages.
    pub(crate) fn close_group_queue(&mut self, id: KeptId) -> u64 {
        let store = &mut self.store;
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
            let _ = store.late.put_off(error, || Late::GroupClosed(queue));
        }
        lost
    }
}

impl Store {
    fn open_group_queue(&mut self, name: &GroupName) -> Result<KeptId, AppendError> {
        let (number, from_serial) = (self.new_queue(), self.last_serial());
        let fact = Fact::GroupOpened(GroupOpened {
            queue: number,
            from_serial,
            name: &name.share,
            filter: &name.filter_name().key(),
        });
        let place = self.append(Class::Normal, &fact, Level::Fsync)?;
        Ok(self.put_group_queue(number, name.key, place, Track::starting_at(from_serial)))
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
    fn drop_group_expired(&mut self, id: KeptId, now_ms: u64, surplus: &mut Surplus) {
        let Some(kept) = self.groups.get_mut(id) else { return };
        let mut gone = Vec::new();
        let (expired, looked_at) = kept.waiting.expire(now_ms, |it| gone.push(it));
        surplus.looked_at += looked_at;
        surplus.expired += u64::from(expired.messages);
        kept.memory_bytes -= gone.iter().map(QueuedMessage::memory_bytes).sum::<usize>();
        for QueuedMessage { serial, .. } in gone {
            self.finish_for_group(id, serial, true);
        }
    }

    /// What has expired of that which had come back, of which no end is noted. Only where there is
    /// more than the limits allow, and once a second at most.
    fn drop_returned_expired(&mut self, id: KeptId, now_ms: u64, surplus: &mut Surplus) {
        let Some(kept) = self.groups.get(id).filter(|kept| kept.look_ms <= now_ms) else {
            return;
        };
        surplus.looked_at += kept.returned.len() + kept.denied.len();
        let all = kept.returned.keys().chain(kept.denied.keys()).copied();
        let gone: Vec<u64> = all.filter(|serial| self.stored(*serial).is_none()).collect();
        if let Some(kept) = self.groups.get_mut(id) {
            kept.look_ms = now_ms + EXPIRY_LOOK_MS;
        }
        surplus.expired += gone.len() as u64;
        gone.into_iter().for_each(|serial| self.finish_for_group(id, serial, true));
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
}
