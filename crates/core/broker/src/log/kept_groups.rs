//! What the home of a group writes, and dispatches again.

use session::Message;
use storage::{AppendError, Level};

use crate::Confirm;
use crate::log::facts::{Fact, GroupOpened, StoredMessage};
use crate::log::group_queues::KeptQueue;
use crate::log::late::Late;
use crate::log::messages::level_of;
use crate::log::store::{Class, Loaded, Log, Store, Stored};
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

/// What becomes of a message of a group that a member did not keep.
pub(crate) enum Back {
    /// It waits again, for so many bytes and until that time.
    Waits(u32, u64),
    Expired,
    /// It was acknowledged, or is back already.
    Over,
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

    /// The home's side: writes a message for a group. Returns its serial, and what it counts for.
    pub(crate) fn keep_for_group(
        &mut self,
        id: KeptId,
        own: &ForGroup<'_>,
        ledger: &Ledger,
    ) -> Result<(u64, u32), AppendError> {
        let ForGroup { message, by_client, confirm } = *own;
        let store = &mut self.store;
        let queue = store.groups.get(id).expected().map(|kept| kept.number);
        let owner = store.owner(confirm.map_or(NOBODY, |confirm| confirm.owner), ledger);
        let (serial, position) = store.keep_message(message, owner.as_ref(), |message| {
            let author = if by_client { message.author } else { 0 };
            Fact::Message(StoredMessage { queue, author, ..message })
        })?;
        if let Some(confirm) = confirm {
            store.waiting.push(position, level_of(message.level()), Step::Answer(confirm));
        }
        Ok((serial, store.stored(serial).map_or(0, |stored| stored.place.bytes)))
    }

    /// A message of a group, from memory or the disk. The queue is told when that has brought it.
    pub(crate) fn load_for_group(&mut self, id: KeptId, serial: u64) -> Loaded {
        let Some(kept) = self.store.groups.get(id) else { return Loaded::Gone };
        let queue = kept.number.into();
        self.store.load(serial, queue)
    }

    /// A message goes to a member.
    pub(crate) fn dispatch_for_group(&mut self, id: KeptId, serial: u64) {
        if let Some(kept) = self.store.groups.get_mut(id) {
            kept.dispatch(serial);
        }
    }

    /// The home's side: a member has acknowledged, or nobody may have it.
    pub(crate) fn on_group_done(&mut self, id: KeptId, serial: u64) {
        let kept = self.store.groups.get_mut(id);
        if kept.is_some_and(|kept| kept.finish(serial)) {
            self.end_for_group(id, serial);
        }
    }

    /// A message will never be dispatched. `waiting`: others before it will, up to this serial.
    pub(crate) fn give_up_for_group(&mut self, id: KeptId, serial: u64, waiting: Option<u64>) {
        // The group may have lost its queue while this was on its way.
        if let Some(kept) = self.store.groups.get_mut(id) {
            kept.give_up(serial, waiting);
            self.end_for_group(id, serial);
        }
    }

    fn end_for_group(&mut self, id: KeptId, serial: u64) {
        if let Some(kept) = self.store.groups.get(id) {
            let queue = kept.number.into();
            self.store.note_moved(queue);
        }
        self.store.release_message(serial);
    }

    /// The home's side: a member could not take it, or ended before it acknowledged.
    pub(crate) fn take_back(&mut self, id: KeptId, serial: u64) -> Back {
        let kept = self.store.groups.get_mut(id);
        if !kept.is_some_and(|kept| kept.come_back(serial)) {
            return Back::Over;
        }
        match self.store.stored(serial) {
            Some(Stored { place, expires_at_ms, .. }) => Back::Waits(place.bytes, expires_at_ms),
            None => {
                self.on_group_done(id, serial);
                Back::Expired
            }
        }
    }

    /// A message that was found in the journal. Some: the group that it waits for.
    pub(crate) fn group_of_found(&self, queue: QueueNumber, serial: u64) -> Option<u64> {
        // Its group was closed.
        let kept = self.store.groups.get(self.store.groups.find(queue)?)?;
        let is_over = serial <= kept.track.cursor() || kept.track.contains(serial);
        (!is_over).then_some(kept.group)
    }

    /// The group has no member any more: what it kept is lost, these that wait and what members
    /// have. Returns how many messages members have.
    pub(crate) fn close_group_queue(&mut self, id: KeptId, waiting: &[u64]) -> u64 {
        let store = &mut self.store;
        let Some(kept) = store.groups.remove(id).expected() else { return 0 };
        let dispatched: Vec<u64> = kept.track.in_flight().map(|out| out.serial).collect();
        let others = waiting.iter().filter(|serial| dispatched.binary_search(serial).is_err());
        for serial in others.chain(&dispatched) {
            store.release_message(*serial);
        }
        store.release(kept.place);
        store.release(kept.track.place);
        let queue = kept.number;
        if let Err(error) = store.append_deletion(&Fact::GroupClosed { queue }, Level::Fsync) {
            // Should it be lost, the queue comes back with the next start and is closed then.
            let _ = store.late.put_off(error, || Late::GroupClosed(queue));
        }
        kept.dispatched() as u64
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
        self.groups.insert(KeptQueue { number, group, place, track })
    }
}
