//! The journal of a shard, and the tables that say where in it things stand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use session::{Account, Message, MessageParts, NEVER, Pot};
use storage::{
    AppendError, Chunk, CommandId, Journal, Level, Position, RecordKind, Status, weight,
};
use topic::FilterId;

use crate::log::ends::Ends;
use crate::log::facts::{Fact, Stage, StoredMessage};
use crate::log::handovers::{Handovers, SOURCES};
use crate::log::kept_groups::KeptGroups;
use crate::log::line::Line;
use crate::log::postponed::PostponedFacts;
use crate::log::promise::{Promise, Promises};
use crate::log::streams::Streams;
use crate::words::clearing::frees_room;
use crate::words::expected::Expected;
use crate::words::ledger::{Ledger, NOBODY, OwnerCharges};
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::words::shared::JournalSpace;
use crate::{Durability, Name, ShardId};

/// Bytes of messages read back from the disk and kept for those that asked. Policy: they are
/// forgotten, the oldest first, before more are read.
const FETCHED_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Bytes that one read asks for: neighbours in the journal are neighbours in a backlog.
const READ_BYTES: u32 = 256 * 1024;

/// Bytes of one list of in-flight deliveries or of progress, so that it fits a record by far.
const LIST_BYTES_MAX: usize = 64 * 1024;

/// When only this part of a journal's space is left, it is looked at who holds how much: the
/// reserves of namespaces are no more than that ([`session::Pots`]).
const TIGHT_PART: u64 = 2;

/// The owner of a message is stored with it, so that it is known after a start. Policy: a longer
/// name is not.
pub(crate) const OWNER_BYTES_MAX: usize = 1024;

/// Reads under way. Policy: who needs more waits until one has come back.
const READINGS_MAX: usize = 64;

/// Lists below this length are left as they are.
const COMPACT_MIN: usize = 64;

/// A table that has room for so many times what is in it gives room back.
const SPARSE_PART: usize = 8;

/// Reads of a damaged record before its message is given up: a disk may yet deliver.
const UNREAD_TRIES_MAX: u8 = 5;

/// A message that is assigned to a session or group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    pub(crate) place: RecordLocation,
    /// Sessions, groups, handovers and unreleased packet ids that need it.
    pub(super) refs: u32,
    /// Those of them for which its record matters even when it has expired.
    pub(super) pins: u32,
    pub(super) expires_at_ms: u64,
    /// The account that is charged for its bytes in the journal, by its number.
    pub(crate) owner: u32,
}

/// What came from another shard last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) serial: u64,
    pub(crate) place: RecordLocation,
}

/// A delivery whose in-flight fact is in the making.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) slot: u32,
    pub(super) queue: QueueNumber,
    pub(super) serial: u64,
    pub(super) packet_id: u16,
    pub(super) stage: Stage,
    /// Its message is not in the journal.
    pub(super) is_aside: bool,
    /// How firmly the fact has to be kept for that.
    pub(super) level: Level,
    /// What may go on when the fact is on disk.
    pub(super) then: Option<Promise>,
}

/// What sessions on one filter have yet to get. Bounded by their queue limits: what nobody needs
/// any more is taken out whenever the list has doubled.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) serials: VecDeque<u64>,
    /// The length at which the dead are taken out next.
    compact_at: usize,
}

/// A read under way, and the queues that wait for it.
#[derive(Debug)]
pub(super) struct Reading {
    id: CommandId,
    serial: u64,
    position: Position,
    bytes: u32,
    waiters: Vec<QueueId>,
}

/// What became of a request for a message.
#[derive(Debug)]
pub(crate) enum Loaded {
    Ready(Message),
    /// It will be notified when it has come.
    Pending,
    /// It has expired.
    Gone,
}

/// A shard's journal with its tables.
pub(super) struct Store {
    pub(super) journal: Journal,
    last_queue: Option<QueueNumber>,
    last_serial: u64,
    messages: HashMap<u64, Stored, FixedState>,
    charges: OwnerCharges,
    /// Those of them that are lost with the process: they have a serial to keep their place behind
    /// others. Bounded by the queues of the sessions that wait for them.
    unwritten: HashMap<u64, Message, FixedState>,
    /// Messages that expire, by the second.
    expiries: BTreeMap<u64, Vec<u64>>,
    /// Serials in `expiries`, those of messages that are gone among them: at most about twice as
    /// many as there are messages.
    expiry_count: usize,
    /// Per filter: the serials that a session on it has yet to get, growing. Filters with none
    /// have no list.
    pub(super) backlogs: HashMap<FilterId, Backlog, FixedState>,
    pub(super) groups: KeptGroups,
    /// Queues whose progress goes into the next commit.
    pub(super) moved: Vec<QueueId>,
    pub(super) noted: Vec<Noted>,
    pub(super) promises: Promises,
    pub(super) handovers: Handovers,
    pub(super) line: Line,
    /// The highest serials that came from each of the sources (`handover.rs`).
    pub(super) seen: Vec<Seen>,
    fetched: HashMap<u64, Message, FixedState>,
    fetched_bytes: usize,
    /// Whether something was read back or asked for since [`Store::fit_caches`].
    is_fetching: bool,
    /// In the order of reading; those that are gone among them, as many as came with the reads.
    fetched_order: VecDeque<u64>,
    readings: Vec<Reading>,
    /// Queues that wait for what could not be read: tried again with the next tick.
    unreadable: Vec<QueueId>,
    /// How often each message could not be read.
    unread_tries: HashMap<u64, u8, FixedState>,
    /// Queues to be tried again once the disk has done something.
    pub(super) retry: VecDeque<QueueId>,
    /// What reclaiming has read and could not be dealt with whole yet.
    pub(super) chunk: Option<Chunk>,
    buffer: Vec<u8>,
    /// Larger lists are written as several.
    pub(super) list_bytes_max: usize,
    pub(super) postponed: PostponedFacts,
    pub(super) ends: Ends,
    pub(super) streams: Streams,
    /// The state that was reported last.
    pub(super) reported: Status,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// How far down a fact may use up the free space of a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Normal,
    /// It frees more than it takes.
    Essential,
    /// It was in the journal before.
    Copy,
}

impl Store {
    pub(super) fn new(
        journal: Journal,
        settings: &storage::Settings,
        shard_count: ShardId,
    ) -> Self {
        let shard = usize::from(journal.identity().shard);
        Self {
            journal,
            last_queue: None,
            last_serial: 0,
            messages: HashMap::default(),
            charges: OwnerCharges::of(Pot::Journal(shard)),
            unwritten: HashMap::default(),
            expiries: BTreeMap::new(),
            expiry_count: 0,
            unreadable: Vec::new(),
            unread_tries: HashMap::default(),
            backlogs: HashMap::default(),
            groups: KeptGroups::default(),
            moved: Vec::new(),
            noted: Vec::new(),
            promises: Promises::default(),
            handovers: Handovers::default(),
            line: Line::default(),
            seen: vec![Seen::default(); SOURCES * usize::from(shard_count)],
            fetched: HashMap::default(),
            fetched_bytes: 0,
            is_fetching: false,
            fetched_order: VecDeque::new(),
            readings: Vec::new(),
            retry: VecDeque::new(),
            chunk: None,
            buffer: Vec::new(),
            list_bytes_max: LIST_BYTES_MAX.min(settings.record_bytes_max as usize / 2),
            postponed: PostponedFacts::default(),
            ends: Ends::default(),
            streams: Streams::default(),
            reported: Status::Opening,
        }
    }

    /// Goes on behind what the journal knows.
    pub(super) fn continue_from(&mut self, last_queue: Option<QueueNumber>, last_serial: u64) {
        self.last_queue = last_queue;
        self.last_serial = last_serial;
    }

    /// Another shard has had serials up to this one from here: the next ones are above it, whatever
    /// this journal has lost.
    pub(super) fn skip_serials(&mut self, serial: u64) {
        self.last_serial = self.last_serial.max(serial);
        self.handovers.track.advance(self.last_serial);
    }

    /// A serial for what is in flight and not in the journal.
    pub(super) const fn new_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }

    pub(super) const fn last_serial(&self) -> u64 {
        self.last_serial
    }

    pub(super) fn message_count(&self) -> usize {
        self.messages.len()
    }

    pub(super) const fn new_queue(&mut self) -> QueueNumber {
        let queue = QueueNumber::after(self.last_queue);
        self.last_queue = Some(queue);
        queue
    }

    pub(super) fn append(
        &mut self,
        class: Class,
        fact: &Fact<'_>,
        level: Level,
    ) -> Result<RecordLocation, AppendError> {
        if class == Class::Normal && self.postponed.goes_first() {
            return Err(AppendError::Backlog { bytes: self.journal.stats().pending_bytes });
        }
        self.buffer.clear();
        let rest = fact.encode(&mut self.buffer);
        let bytes = weight(self.buffer.len() + rest.len()) as u32;
        let (kind, parts) = (RecordKind::new(fact.kind()), [&self.buffer[..], rest]);
        let position = match class {
            Class::Normal => self.journal.append(kind, &parts, level),
            Class::Essential => self.journal.append_essential(kind, &parts, level),
            Class::Copy => self.journal.append_copy(kind, &parts, level),
        }?;
        Ok(RecordLocation::new(position, bytes))
    }

    /// Writes a fact again, as it stood in the journal.
    pub(super) fn append_raw(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<RecordLocation, AppendError> {
        let position = self.journal.append_copy(kind, &[bytes], Level::Disk)?;
        Ok(RecordLocation::new(position, weight(bytes.len()) as u32))
    }

    /// Writes a fact that takes others away. It is needed no more once it is written: what it
    /// deletes is gone before its own segment has its turn.
    pub(super) fn append_deletion(
        &mut self,
        fact: &Fact<'_>,
        level: Level,
    ) -> Result<Position, AppendError> {
        let place = self.append(Class::Essential, fact, level)?;
        self.release(place);
        Ok(place.position())
    }

    pub(super) fn release(&mut self, place: RecordLocation) {
        if place.is_some() {
            self.journal.release(place.position(), u64::from(place.bytes));
        }
    }

    /// Writes a message as the next serial; it begins with one reference. `owner`: of its place in
    /// the journal, as long as it is needed there.
    pub(super) fn keep_message(
        &mut self,
        message: &Message,
        owner: Option<&Arc<Account>>,
        make: impl FnOnce(StoredMessage<'_>) -> Fact<'_>,
    ) -> Result<(u64, Position), AppendError> {
        // What clears a topic frees more than it takes.
        let class = if frees_room(message) { Class::Essential } else { Class::Normal };
        self.keep_message_as(class, message, owner, make)
    }

    pub(super) fn keep_message_as(
        &mut self,
        class: Class,
        message: &Message,
        owner: Option<&Arc<Account>>,
        make: impl FnOnce(StoredMessage<'_>) -> Fact<'_>,
    ) -> Result<(u64, Position), AppendError> {
        let serial = self.last_serial + 1;
        let topic = Name::of(message).key();
        let fact = make(stored_message(message, &topic, serial, owner));
        let place = self.append(class, &fact, level_of(message.level()))?;
        self.add_message(place, (1, 0), message.expires_at_ms(), owner);
        Ok((serial, place.position()))
    }

    /// A message that was written as the next serial, with its references and how many of them are
    /// pins.
    pub(super) fn add_message(
        &mut self,
        place: RecordLocation,
        (refs, pins): (u32, u32),
        expires_at_ms: u64,
        owner: Option<&Arc<Account>>,
    ) {
        self.last_serial += 1;
        let owner = owner.map_or(NOBODY, |owner| self.charges.charge(owner, place.bytes.into()));
        let stored = Stored { place, refs, pins, expires_at_ms, owner };
        self.messages.insert(self.last_serial, stored);
        self.note_expiry(self.last_serial, expires_at_ms);
    }

    /// The owner in another shard, by the number of its account.
    pub(super) fn owner(&mut self, number: u32, ledger: &Ledger) -> Option<Arc<Account>> {
        self.charges.account(number, ledger)
    }

    /// What is left for messages, if it gets short: before reclaiming has to hurry, and all wait
    /// for it, or until it has caught up.
    pub(super) fn space_left(&self) -> Option<JournalSpace> {
        let most = self.journal.live_bytes_max()?;
        let unreclaimed = self.journal.bytes_left()?;
        let left = most.saturating_sub(self.journal.live_bytes()).min(unreclaimed);
        (left < most - most / TIGHT_PART).then_some(JournalSpace { left, most })
    }

    /// Takes a message up as the next serial without writing it; it begins with one reference.
    pub(super) fn add_unwritten(&mut self, message: &Message) -> u64 {
        self.last_serial += 1;
        let serial = self.last_serial;
        let place = RecordLocation::NOWHERE;
        let (expires_at_ms, owner) = (message.expires_at_ms(), NOBODY);
        self.messages.insert(serial, Stored { place, refs: 1, pins: 0, expires_at_ms, owner });
        self.unwritten.insert(serial, message.clone());
        self.note_expiry(serial, expires_at_ms);
        serial
    }

    /// Is this message lost with the process?
    pub(super) fn is_unwritten(&self, serial: u64) -> bool {
        !self.unwritten.is_empty() && self.unwritten.contains_key(&serial)
    }

    /// What the message counts for in a queue; None: it is gone.
    pub(super) fn bytes_of(&self, serial: u64) -> Option<u64> {
        let stored = self.messages.get(&serial)?;
        Some(match self.unwritten.get(&serial) {
            Some(message) => message.heap_bytes() as u64,
            None => stored.place.bytes.into(),
        })
    }

    pub(super) fn note_expiry(&mut self, serial: u64, expires_at_ms: u64) {
        if expires_at_ms != NEVER {
            self.expiries.entry(second_of(expires_at_ms)).or_default().push(serial);
            self.expiry_count += 1;
            if self.expiry_count > 2 * self.messages.len() + COMPACT_MIN {
                self.compact_expiries();
            }
        }
    }

    fn compact_expiries(&mut self) {
        let messages = &self.messages;
        self.expiries.retain(|_, serials| {
            serials.retain(|serial| messages.contains_key(serial));
            !serials.is_empty()
        });
        self.expiry_count = self.expiries.values().map(Vec::len).sum();
    }

    pub(super) fn restore_message(
        &mut self,
        serial: u64,
        stored: Stored,
        owner: Option<&Arc<Account>>,
    ) {
        let bytes = stored.place.bytes.into();
        let owner = owner.map_or(NOBODY, |owner| self.charges.charge(owner, bytes));
        self.messages.insert(serial, Stored { owner, ..stored });
    }

    pub(super) fn stored(&self, serial: u64) -> Option<Stored> {
        self.messages.get(&serial).copied()
    }

    pub(super) fn move_message(&mut self, serial: u64, place: RecordLocation) {
        if let Some(stored) = self.messages.get_mut(&serial) {
            self.charges.change(stored.owner, stored.place.bytes.into(), place.bytes.into());
            stored.place = place;
        }
    }

    pub(super) fn need_message(&mut self, serial: u64) {
        if let Some(stored) = self.messages.get_mut(&serial) {
            stored.refs += 1;
        }
    }

    /// Somebody needs the record of the message, whether or not the message expires.
    pub(super) fn pin_message(&mut self, serial: u64) {
        if let Some(stored) = self.messages.get_mut(&serial) {
            stored.refs += 1;
            stored.pins += 1;
        }
    }

    /// What is on its way to a client is completed, whether or not it expires: its packet id stays
    /// with it (MQTT-4.3.3-13).
    pub(super) fn pin_in_flight(&mut self, serial: u64) {
        if let Some(stored) = self.messages.get_mut(&serial) {
            stored.pins += 1;
        }
    }

    pub(super) fn unpin_message(&mut self, serial: u64) {
        if let Some(stored) = self.messages.get_mut(&serial) {
            stored.pins = stored.pins.saturating_sub(1);
        }
        self.release_message(serial);
    }

    /// Somebody needs the message no more.
    pub(super) fn release_message(&mut self, serial: u64) {
        // It has expired meanwhile, whoever needed it.
        let Some(stored) = self.messages.get_mut(&serial) else { return };
        stored.refs -= 1;
        if stored.refs == 0 {
            self.drop_message(serial);
        }
    }

    /// Memory of the log that is no client's: what was written or read back lately.
    pub(super) fn cache_bytes(&self) -> usize {
        self.journal.cache_bytes() + self.fetched_bytes
    }

    pub(super) fn has_caches_to_fit(&self) -> bool {
        self.journal.has_cache_to_fit() || (!self.fetched.is_empty() && self.readings.is_empty())
    }

    /// Gives back what nobody needs any more. What was read back and not asked for since is read
    /// again.
    pub(super) fn fit_caches(&mut self) {
        self.journal.fit_cache();
        if self.readings.is_empty() && !std::mem::take(&mut self.is_fetching) {
            (self.fetched, self.fetched_bytes) = (HashMap::default(), 0);
            self.fetched_order = VecDeque::new();
        }
        let count = self.messages.len();
        if self.messages.capacity() > COMPACT_MIN.max(count) * SPARSE_PART {
            self.messages.shrink_to(count * 2);
        }
    }

    pub(super) fn drop_message(&mut self, serial: u64) {
        if let Some(stored) = self.messages.remove(&serial) {
            self.charges.release(stored.owner, stored.place.bytes.into());
            self.release(stored.place);
        }
        if !self.unwritten.is_empty() {
            self.unwritten.remove(&serial);
        }
        if !self.fetched.is_empty()
            && let Some(message) = self.fetched.remove(&serial)
        {
            self.fetched_bytes -= message.heap_bytes();
            if self.fetched.is_empty() {
                self.fetched_order.clear();
            }
        }
    }

    /// Lets go of the messages that have expired.
    pub(super) fn expire_messages(&mut self, now_ms: u64) {
        while let Some(entry) = self.expiries.first_entry()
            && *entry.key() <= now_ms / 1000
        {
            let serials = entry.remove();
            self.expiry_count -= serials.len();
            for serial in serials {
                if self.messages.get(&serial).is_some_and(|stored| stored.pins == 0) {
                    self.drop_message(serial);
                }
            }
        }
    }

    /// The message, from memory if it is there, else the disk is asked for it on behalf of
    /// `waiter`.
    pub(super) fn load(&mut self, serial: u64, waiter: QueueId) -> Loaded {
        let Some(stored) = self.messages.get(&serial).copied() else { return Loaded::Gone };
        if let Some(message) = self.unwritten.get(&serial).or_else(|| self.fetched.get(&serial)) {
            self.is_fetching = true;
            return Loaded::Ready(message.clone());
        }
        let position = stored.place.position();
        if let Some(record) = self.journal.read(position) {
            return match message_in(record.kind, record.bytes) {
                Some((_, message)) => Loaded::Ready(message),
                None => Loaded::Gone,
            };
        }
        let covering = self.readings.iter_mut().find(|reading| {
            reading.position.segment() == position.segment()
                && reading.position <= position
                && position.offset() + stored.place.bytes
                    <= reading.position.offset() + reading.bytes
        });
        if let Some(reading) = covering {
            if !reading.waiters.contains(&waiter) {
                reading.waiters.push(waiter);
            }
            return Loaded::Pending;
        }
        if self.readings.len() >= READINGS_MAX {
            self.retry.push_back(waiter);
            return Loaded::Pending;
        }
        let bytes = READ_BYTES.max(stored.place.bytes + 64);
        match self.journal.request(position, bytes) {
            Some(id) => {
                self.readings.push(Reading { id, serial, position, bytes, waiters: vec![waiter] });
            }
            None => self.retry.push_back(waiter),
        }
        Loaded::Pending
    }

    /// Some of those who are to be tried again.
    pub(super) fn take_retry(&mut self) -> Vec<QueueId> {
        let count = self.retry.len().min(READINGS_MAX);
        self.retry.drain(..count).collect()
    }

    /// Those who wait for what could not be read may try again.
    pub(super) fn take_unreadable(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.unreadable)
    }

    /// A read has come back: keeps what is in it, and returns who waited for it. If what was asked
    /// for is not in it, they have to wait for the next tick; when a record is damaged for good,
    /// its message is given up. Err: the place of such a record.
    pub(super) fn on_read(
        &mut self,
        id: CommandId,
        chunk: Option<Chunk>,
    ) -> Result<Vec<QueueId>, Position> {
        let index = self.readings.iter().position(|reading| reading.id == id);
        let Some(index) = index.expected() else {
            return Ok(Vec::new());
        };
        let reading = self.readings.swap_remove(index);
        let has_failed = chunk.is_none();
        self.is_fetching = true;
        while self.fetched_bytes > FETCHED_BYTES_MAX
            && let Some(oldest) = self.fetched_order.pop_front()
        {
            if let Some(message) = self.fetched.remove(&oldest) {
                self.fetched_bytes -= message.heap_bytes();
            }
        }
        let mut chunk = chunk;
        while let Some(record) = chunk.as_mut().and_then(Chunk::next) {
            let Some((serial, message)) = message_in(record.kind, record.bytes) else { continue };
            let is_current = self
                .messages
                .get(&serial)
                .is_some_and(|stored| stored.place.is_at(record.position));
            if is_current {
                self.fetched_bytes += message.heap_bytes();
                self.fetched_order.push_back(serial);
                if let Some(old) = self.fetched.insert(serial, message) {
                    self.fetched_bytes -= old.heap_bytes();
                }
            }
        }
        let is_missing = !self.fetched.contains_key(&reading.serial)
            && self.messages.get(&reading.serial).is_some_and(|s| s.place.is_at(reading.position));
        if !is_missing {
            self.unread_tries.remove(&reading.serial);
            return Ok(reading.waiters);
        }
        self.unreadable.extend(reading.waiters);
        if has_failed {
            return Ok(Vec::new());
        }
        let tries = self.unread_tries.entry(reading.serial).or_default();
        *tries += 1;
        if *tries >= UNREAD_TRIES_MAX {
            self.unread_tries.remove(&reading.serial);
            self.drop_message(reading.serial);
        }
        Err(reading.position)
    }

    pub(super) fn note_moved(&mut self, queue: QueueId) {
        self.moved.push(queue);
    }

    /// Would a record of so many bytes be refused for now, though the disk is not known to be full?
    pub(super) fn would_wait(&self, bytes: usize, records: usize) -> bool {
        self.journal.would_wait(bytes, records) || self.postponed.goes_first() && self.is_ready()
    }

    /// May what finds no room now find some when the next segment is there?
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.journal.status(), Status::Ready)
    }

    /// Is so much waiting for the disk that publishers had better pause?
    pub(super) fn is_behind(&self) -> bool {
        self.journal.is_behind()
    }

    /// Adds a serial to the backlog of a filter.
    pub(super) fn push_backlog(&mut self, filter: FilterId, serial: u64) {
        let messages = &self.messages;
        let backlog = self.backlogs.entry(filter).or_default();
        let serials = &mut backlog.serials;
        while serials.front().is_some_and(|front| !messages.contains_key(front)) {
            serials.pop_front();
        }
        if serials.len() >= backlog.compact_at.max(COMPACT_MIN) {
            serials.retain(|serial| messages.contains_key(serial));
            backlog.compact_at = 2 * serials.len();
        }
        if serials.back().is_none_or(|last| *last < serial) {
            serials.push_back(serial);
        }
    }

    /// Takes the dead front off a backlog, and the backlog away if nothing is left.
    pub(super) fn prune_backlog(&mut self, filter: FilterId) {
        let messages = &self.messages;
        let Some(backlog) = self.backlogs.get_mut(&filter) else { return };
        while backlog.serials.front().is_some_and(|front| !messages.contains_key(front)) {
            backlog.serials.pop_front();
        }
        if backlog.serials.is_empty() {
            self.backlogs.remove(&filter);
        }
    }
}

/// The second with which a message has expired.
const fn second_of(expires_at_ms: u64) -> u64 {
    expires_at_ms / 1000 + 1
}

pub(crate) fn level_of(durability: u8) -> Level {
    if durability >= Durability::Fsync as u8 { Level::Fsync } else { Level::Disk }
}

/// The owner, as a fact names it.
pub(crate) fn noted(owner: Option<&Arc<Account>>) -> &str {
    let name = owner.map_or("", |owner| owner.name());
    if name.len() > OWNER_BYTES_MAX { "" } else { name }
}

fn stored_message<'a>(
    message: &'a Message,
    topic: &'a str,
    serial: u64,
    owner: Option<&'a Arc<Account>>,
) -> StoredMessage<'a> {
    let (_, properties, payload) = message.parts_on_wire();
    StoredMessage {
        serial,
        origin: None,
        queue: None,
        qos: message.qos(),
        retain: message.retain(),
        expires_at_ms: message.expires_at_ms(),
        owner: noted(owner),
        author: message.author(),
        topic,
        properties,
        payload,
    }
}

/// A message as it was kept. The session that published it is forgotten, the client ID only where
/// nobody needs it.
pub(super) fn message_of(stored: &StoredMessage<'_>) -> Message {
    let topic = Name::of_key(stored.topic);
    Message::new(&MessageParts {
        topic: topic.text(),
        properties: stored.properties,
        payload: stored.payload,
        qos: stored.qos,
        retain: stored.retain,
        expires_at_ms: stored.expires_at_ms,
        publisher: 0,
        author: stored.author,
        level: Durability::Fsync as u8,
        scope: topic.scope().number(),
    })
}

fn message_in(kind: RecordKind, bytes: &[u8]) -> Option<(u64, Message)> {
    let stored = match Fact::decode(kind.get(), bytes) {
        Ok(
            Fact::Message(stored)
            | Fact::Taken { message: stored, .. }
            | Fact::WillTaken { message: stored, .. },
        ) => stored,
        Ok(Fact::Streamed(streamed)) => streamed.message()?,
        _ => return None,
    };
    Some((stored.serial, message_of(&stored)))
}
