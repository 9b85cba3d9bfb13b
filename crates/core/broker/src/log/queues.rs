//! The kinds of queues that a shard has in its journal, and the facts of each: how far it is,
//! where that is written, and who goes on when the disk has brought something.
//!
//! A further kind gets a variant of [`Queue`], and of [`QueueId`] if it has no number of its own.
//! All else is in this file; what is in its queue and when it moves is its own business.

use crate::log::facts::ProgressBuf;
use crate::log::kept::Kept;
use crate::log::store::Log;
use crate::log::store::{Seen, Store};
use crate::log::track::Track;
use crate::words::expected::Expected;
use crate::words::queue_number::KeptId;
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;

/// A queue of this shard, by whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// What this shard has taken on and not yet passed to others.
    Handover,
    /// The highest serial that came from this source. Nothing waits in it.
    Seen(u16),
    /// Of the session in this slot.
    Session(u32),
    /// Of a shared group.
    Group(KeptId),
}

/// How far a queue is.
enum Reached<'a> {
    Track(&'a Track),
    Serial(&'a Seen),
}

impl Reached<'_> {
    fn push_to(&self, id: QueueId, buffer: &mut ProgressBuf) {
        match self {
            Self::Track(track) => buffer.push(id, track.floor(), track.above()),
            Self::Serial(seen) => buffer.push(id, seen.serial, []),
        }
    }

    const fn place(&self) -> RecordLocation {
        match self {
            Self::Track(track) => track.place,
            Self::Serial(seen) => seen.place,
        }
    }
}

impl Log {
    /// The queue that the journal means. None: it is gone.
    pub(crate) fn queue(&self, id: QueueId) -> Option<Queue> {
        self.store.queue(&self.kept, id)
    }
}

impl Store {
    /// The queue that the journal means. None: it is gone.
    pub(super) fn queue(&self, kept: &Kept, id: QueueId) -> Option<Queue> {
        match id {
            QueueId::Handover => Some(Queue::Handover),
            QueueId::Seen(source) => Some(Queue::Seen(source)),
            QueueId::Owned(number) => self.queue_of(kept, number),
        }
    }

    /// The queue of the session or group with this number. None: that is gone.
    pub(super) fn queue_of(&self, kept: &Kept, number: QueueNumber) -> Option<Queue> {
        if let Some(slot) = kept.find(number) {
            return Some(Queue::Session(slot));
        }
        self.groups.find(number).map(Queue::Group)
    }

    /// None: the queue is gone.
    fn reached<'a>(&'a self, kept: &'a Kept, id: QueueId) -> Option<Reached<'a>> {
        let track = match self.queue(kept, id)? {
            Queue::Handover => Some(&self.handovers.track),
            Queue::Seen(source) => {
                return self.seen.get(usize::from(source)).expected().map(Reached::Serial);
            }
            Queue::Session(slot) => {
                let session = kept.get(slot);
                session.map(|session| &session.track)
            }
            Queue::Group(id) => self.groups.get(id).map(|kept| &kept.track),
        };
        track.expected().map(Reached::Track)
    }

    /// Says in a list how far the queue is. False: it is gone.
    pub(super) fn push_progress(&self, kept: &Kept, id: QueueId, buffer: &mut ProgressBuf) -> bool {
        let reached = self.reached(kept, id);
        reached.inspect(|reached| reached.push_to(id, buffer)).is_some()
    }

    /// Where the journal says how far the queue is. None: the queue is gone.
    pub(super) fn progress_place(&self, kept: &Kept, id: QueueId) -> Option<RecordLocation> {
        self.reached(kept, id).map(|reached| reached.place())
    }

    /// From now on the journal says here how far the queue is. Returns the place that is needed no
    /// more: where it said so before, or this one, if the queue is gone.
    pub(super) fn set_progress_place(
        &mut self,
        kept: &mut Kept,
        id: QueueId,
        place: RecordLocation,
    ) -> RecordLocation {
        let Some(queue) = self.queue(kept, id) else { return place };
        let old = match queue {
            Queue::Handover => Some(&mut self.handovers.track.place),
            Queue::Seen(source) => {
                self.seen.get_mut(usize::from(source)).map(|seen| &mut seen.place)
            }
            Queue::Session(slot) => {
                let session = kept.get_mut(slot);
                session.map(|session| {
                    session.is_moved = false;
                    &mut session.track.place
                })
            }
            Queue::Group(id) => self.groups.get_mut(id).map(|kept| &mut kept.track.place),
        };
        old.map_or(place, |old| std::mem::replace(old, place))
    }
}
