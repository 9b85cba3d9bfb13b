//! The kept sessions of a shard: by the slot of their client, and by their queue.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use session::{Amount, Lifetimes, NEVER, QueueLimit, QueueLimits};
use storage::{Level, Position};
use topic::FilterId;

use crate::Durability;
use crate::log::handovers::Received;
use crate::log::late::Unwritten;
use crate::log::replay::ProgressFacts;
use crate::log::since::Since;
use crate::log::track::Track;
use crate::words::queue_number::QueueNumber;
use crate::words::record_location::RecordLocation;

/// What the journal knows of a session that outlives its connections.
#[derive(Debug)]
pub(crate) struct KeptSession {
    /// Its queue number.
    pub(crate) queue: QueueNumber,
    pub(super) track: Track,
    pub(crate) opened: RecordLocation,
    /// Present while it has no connection.
    pub(crate) detached: RecordLocation,
    pub(super) rare: Option<Box<Rare>>,
    /// Deliveries that wait in the journal, and their bytes, without those that have
    /// [expired](KeptSession::expire).
    pub(crate) queued: u32,
    pub(crate) queued_bytes: u64,
    /// The last that has to wait.
    pub(super) last_queued: u64,
    /// The time of the newest fact about its connection, in milliseconds: times grow, so that the
    /// order of the facts shows however they are copied.
    pub(crate) fact_ms: u64,
    pub(crate) level: Durability,
    /// It was kept at level `fsync`, on this connection or an earlier one, or may have been.
    pub(super) was_synced: bool,
    pub(crate) is_behind: bool,
    /// Its progress goes into the next commit.
    pub(super) is_moved: bool,
}

/// What only few durable sessions have.
#[derive(Debug, Default)]
pub(super) struct Rare {
    pub(crate) will: RecordLocation,
    /// Bounded by the receive maximum.
    pub(crate) received: Vec<Received>,
    pub(super) since: Since,
    /// A mark for the topic of each publish of the client that is in the line (`waiting.rs`), in
    /// its order. Bounded as that is.
    pub(super) in_line: VecDeque<u64>,
    /// The serials whose turn comes next, looked up already.
    pub(super) upcoming: VecDeque<u64>,
    /// Of what is counted as waiting.
    pub(super) lifetimes: Lifetimes,
    /// A connection that is not in the journal yet (`late.rs`).
    pub(super) unwritten: Option<Unwritten>,
    /// UNSUBSCRIBEs that are not in the journal yet.
    pub(super) unwritten_unsubscribes: u32,
    /// Its will is not in the journal yet.
    pub(super) has_pending_will: bool,
    /// The end of its connection is not in the journal yet (`late.rs`).
    pub(super) has_late_end: bool,
    /// Its last will is due, and has yet to be taken.
    pub(super) has_due_will: bool,
}

impl KeptSession {
    pub(crate) fn new(queue: QueueNumber, level: Durability, cursor: u64) -> Self {
        Self {
            queue,
            track: Track::starting_at(cursor),
            opened: RecordLocation::default(),
            detached: RecordLocation::default(),
            rare: None,
            queued: 0,
            queued_bytes: 0,
            last_queued: 0,
            fact_ms: 0,
            level,
            was_synced: level >= Durability::Fsync,
            is_behind: false,
            is_moved: false,
        }
    }

    /// As it was found in the journal. At which level it was kept before, nobody knows.
    pub(crate) fn restored(
        queue: QueueNumber,
        level: Durability,
        progress: &ProgressFacts,
        will: Option<RecordLocation>,
    ) -> Self {
        let mut kept = Self { was_synced: true, ..Self::new(queue, level, progress.floor) };
        kept.track.place = progress.place;
        if let Some(place) = will {
            kept.rare().will = place;
        }
        kept
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// A delivery waits.
    pub(super) fn count_in(&mut self, serial: u64, bytes: u64, expires_at_ms: u64, now_ms: u64) {
        self.is_behind = true;
        self.last_queued = serial;
        self.queued += 1;
        self.queued_bytes += bytes;
        if expires_at_ms != NEVER {
            self.rare().lifetimes.add(expires_at_ms, bytes, now_ms);
        }
    }

    /// Nothing waits any more. Returns how many have expired.
    pub(super) fn catch_up(&mut self, last_serial: u64) -> u32 {
        self.is_behind = false;
        if let Some(rare) = &mut self.rare {
            rare.upcoming = VecDeque::new();
            rare.lifetimes = Lifetimes::default();
        }
        self.queued_bytes = 0;
        self.track.advance(last_serial);
        std::mem::take(&mut self.queued)
    }

    /// What the session listens to has changed: its next serials are looked up anew.
    pub(super) fn forget_upcoming(&mut self) {
        if let Some(rare) = &mut self.rare {
            rare.upcoming = VecDeque::new();
        }
    }

    /// A delivery waits no more. False: it has expired, and was counted as that.
    pub(super) fn count_out(&mut self, expires_at_ms: u64, bytes: u64) -> bool {
        let is_counted = expires_at_ms == NEVER
            || self.rare.as_mut().is_some_and(|rare| rare.lifetimes.remove(expires_at_ms, bytes));
        if is_counted {
            self.take_off(Amount::one(bytes));
        }
        is_counted
    }

    /// What has expired waits no more; returns how many they were.
    pub(super) fn expire(&mut self, now_ms: u64) -> u32 {
        let Some(rare) = &mut self.rare else { return 0 };
        let expired = rare.lifetimes.expire(now_ms);
        self.take_off(expired);
        expired.messages
    }

    /// When a delivery that waits expires next, or [`NEVER`].
    pub(crate) fn next_expiry_ms(&self) -> u64 {
        self.rare.as_ref().map_or(NEVER, |rare| rare.lifetimes.next_ms())
    }

    pub(super) const fn take_off(&mut self, gone: Amount) {
        self.queued = self.queued.saturating_sub(gone.messages);
        self.queued_bytes = self.queued_bytes.saturating_sub(gone.bytes);
    }

    /// Why is there no room for one more delivery of so many bytes?
    pub(crate) fn limit_reached(&self, bytes: u64, limits: &QueueLimits) -> Option<QueueLimit> {
        let waiting = Amount { messages: self.queued, bytes: self.queued_bytes };
        QueueLimit::reached(waiting, bytes, limits)
    }

    /// Is a will of it written down?
    pub(super) fn has_will(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.will.is_some())
    }

    /// Has its last will yet to be taken?
    pub(crate) fn has_due_will(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.has_due_will)
    }

    /// Is its connection not in the journal yet?
    pub(crate) fn is_unwritten(&self) -> bool {
        self.unwritten().is_some()
    }

    /// The connection that is not in the journal yet.
    pub(super) fn unwritten(&self) -> Option<Unwritten> {
        self.rare.as_ref()?.unwritten
    }

    /// Does the journal lack a fact that an answer to this session would promise?
    pub(super) fn is_ahead_of_journal(&self) -> bool {
        self.rare
            .as_ref()
            .is_some_and(|rare| rare.unwritten.is_some() || rare.unwritten_unsubscribes > 0)
    }

    /// What came up to this serial is none of the filter's business. 0: all is.
    pub(super) fn since(&self, filter: FilterId) -> u64 {
        let since = self.rare.as_ref().map(|rare| &rare.since);
        since.and_then(|it| it.find(filter).ok().map(|known| it.0[known].1)).unwrap_or_default()
    }

    /// The serial from which a filter of the session counts: what is done is done, however often
    /// the client subscribes again.
    pub(super) fn begin_of(&self, filter: FilterId) -> u64 {
        self.since(filter).max(self.track.floor())
    }

    /// The position of the newest fact of its last CONNECT.
    pub(super) fn connect_facts_end(&self) -> Option<Position> {
        let will = self.rare.as_ref().map(|rare| rare.will);
        let places = [Some(self.opened), will].into_iter().flatten();
        places.filter(|place| place.is_some()).map(|place| place.position()).max()
    }

    pub(super) const fn journal_level(&self) -> Level {
        match self.level {
            Durability::Memory | Durability::Disk => Level::Disk,
            Durability::Fsync | Durability::Quorum => Level::Fsync,
        }
    }

    pub(super) fn set_level(&mut self, level: Durability) {
        self.level = level;
        self.was_synced |= level >= Durability::Fsync;
    }

    /// How firmly its end has to be kept: as firmly as anything that it ends.
    pub(super) const fn highest_level(&self) -> Level {
        if self.was_synced { Level::Fsync } else { self.journal_level() }
    }

    /// The QoS 2 publish of this packet id, if it was taken on.
    pub(crate) fn received(&self, packet_id: u16) -> Option<Received> {
        let received = &self.rare.as_ref()?.received;
        received.iter().find(|received| received.packet_id == packet_id).copied()
    }

    /// The same, if it is only in the record of its message.
    pub(super) fn received_with(&mut self, packet_id: u16, serial: u64) -> Option<&mut Received> {
        self.rare.as_mut()?.received.iter_mut().find(|received| {
            received.packet_id == packet_id
                && received.serial == serial
                && !received.place.is_some()
                && !received.is_released
        })
    }

    /// Gives back what is not needed any more.
    pub(crate) fn shrink(&mut self) {
        self.track.shrink();
        let floor = self.track.floor();
        if let Some(rare) = &mut self.rare {
            rare.since.forget_through(floor);
        }
        if self.rare.as_ref().is_some_and(|rare| rare.is_empty()) {
            self.rare = None;
        }
    }
}

impl Rare {
    pub(super) fn is_empty(&self) -> bool {
        !self.will.is_some()
            && self.received.is_empty()
            && self.since.is_empty()
            && self.in_line.is_empty()
            && self.upcoming.is_empty()
            && self.lifetimes.is_empty()
            && self.unwritten.is_none()
            && self.unwritten_unsubscribes == 0
            && !(self.has_pending_will || self.has_due_will || self.has_late_end)
    }
}

/// What the journal knows of sessions that outlive their connections.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// As long as the table of clients, at most.
    by_slot: Vec<Option<Box<KeptSession>>>,
    by_queue: HashTable<u32>,
    hasher: FixedState,
}

impl Kept {
    /// Makes room for sessions of the journal, so that the tables need not grow under them step by
    /// step.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (by_slot, hasher) = (&self.by_slot, &self.hasher);
        self.by_queue.reserve(count, |slot| hash_at(hasher, by_slot, *slot));
        self.by_slot.reserve(count);
    }

    #[inline]
    pub(crate) fn get(&self, slot: u32) -> Option<&KeptSession> {
        self.by_slot.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut KeptSession> {
        self.by_slot.get_mut(slot as usize)?.as_deref_mut()
    }

    pub(crate) fn sessions(&self) -> impl Iterator<Item = &KeptSession> {
        self.by_slot.iter().flatten().map(|session| &**session)
    }

    pub(crate) fn sessions_mut(&mut self) -> impl Iterator<Item = &mut KeptSession> {
        self.by_slot.iter_mut().flatten().map(|session| &mut **session)
    }

    /// The slot of the session with this queue.
    pub(crate) fn find(&self, queue: QueueNumber) -> Option<u32> {
        let hash = self.hasher.hash_one(queue);
        self.by_queue.find(hash, |slot| queue_at(&self.by_slot, *slot) == Some(queue)).copied()
    }

    /// The session with this queue, if it is still there.
    pub(super) fn of_queue(&mut self, queue: QueueNumber) -> Option<&mut KeptSession> {
        self.get_mut(self.find(queue)?)
    }

    /// From now on the session of this slot is in the journal.
    pub(crate) fn insert(&mut self, slot: u32, session: KeptSession) {
        self.take(slot);
        let queue = session.queue;
        if self.by_slot.len() <= slot as usize {
            self.by_slot.resize_with(slot as usize + 1, || None);
        }
        self.by_slot[slot as usize] = Some(Box::new(session));
        let (by_slot, hasher) = (&self.by_slot, &self.hasher);
        let hash = |slot: &u32| hash_at(hasher, by_slot, *slot);
        self.by_queue.insert_unique(hasher.hash_one(queue), slot, hash);
    }

    /// From now on the session is no more in the journal. Returns what it had there.
    pub(crate) fn take(&mut self, slot: u32) -> Option<Box<KeptSession>> {
        let session = self.by_slot.get_mut(slot as usize)?.take()?;
        let hash = self.hasher.hash_one(session.queue);
        if let Ok(entry) = self.by_queue.find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
        Some(session)
    }

    /// The session has given the filter up.
    pub(crate) fn forget_since(&mut self, slot: u32, filter: FilterId) {
        if let Some(rare) = self.get_mut(slot).and_then(|kept| kept.rare.as_mut()) {
            rare.since.forget(filter);
        }
    }

    /// Has an older publish of the client perhaps replaced what this one has retained? None: the
    /// journal does not know the packet id.
    pub(crate) fn has_undone(&self, slot: u32, packet_id: u16) -> Option<bool> {
        Some(self.get(slot)?.received(packet_id)?.is_undone)
    }

    /// The serial of a QoS 2 publish that was taken on.
    pub(crate) fn serial_of(&self, slot: u32, packet_id: u16) -> Option<u64> {
        Some(self.get(slot)?.received(packet_id)?.serial)
    }

    /// Something of the session is in the line. `mark`: of its topic.
    pub(crate) fn enter_line(&mut self, slot: u32, mark: u64) {
        if let Some(kept) = self.get_mut(slot) {
            kept.rare().in_line.push_back(mark);
        }
    }

    /// What the session had in the line first goes on.
    pub(crate) fn leave_line(&mut self, session: Option<QueueNumber>) {
        let kept = session.and_then(|session| self.of_queue(session));
        if let Some(rare) = kept.and_then(|kept| kept.rare.as_mut()) {
            rare.in_line.pop_front();
        }
    }
}

/// 0 if there is none.
fn hash_at(hasher: &FixedState, by_slot: &[Option<Box<KeptSession>>], slot: u32) -> u64 {
    queue_at(by_slot, slot).map_or(0, |queue| hasher.hash_one(queue))
}

fn queue_at(by_slot: &[Option<Box<KeptSession>>], slot: u32) -> Option<QueueNumber> {
    Some(by_slot.get(slot as usize)?.as_ref()?.queue)
}
