//! The journal of a shard, and the tables that say where in it things stand.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use session::{Account, Message, NEVER, Pot};
use storage::{
    AppendError, Chunk, CommandId, Completion, Fault, FaultKind, Journal, Level, Position,
    RecordKind, Status, weight,
};
use topic::FilterId;

use crate::log::ends::Ends;
use crate::log::facts::{Fact, Stage, StoredMessage};
use crate::log::group_queues::KeptGroups;
use crate::log::handovers::Handovers;
use crate::log::kept::Kept;
use crate::log::late::LateFacts;
use crate::log::lone_wills::LoneWills;
use crate::log::messages::{level_of, message_in, stored_message};
use crate::log::own_streams::Streams;
use crate::log::reads::Reads;
use crate::log::waiting::{Step, Waiting};
use crate::words::clearing::frees_room;
use crate::words::ledger::{Ledger, NOBODY, OwnerCharges};
use crate::words::queue_number::{KeptId, QueueId, QueueNumber};
use crate::words::record_location::RecordLocation;
use crate::words::shared::{JournalSpace, JournalState};
use crate::{Name, Waits};

/// Bytes of one list of in-flight deliveries or of progress, so that it fits a record by far.
const LIST_BYTES_MAX: usize = 64 * 1024;

/// When only this part of a journal's space is left, it is looked at who holds how much: the
/// reserves of namespaces are no more than that ([`session::Pots`]).
const TIGHT_PART: u64 = 2;

/// Lists below this length are left as they are.
const COMPACT_MIN: usize = 64;

/// A table that has room for so many times what is in it gives room back.
const SPARSE_PART: usize = 8;

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
#[derive(Debug)]
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
    pub(super) then: Option<Step>,
}

/// What sessions on one filter have yet to get. Bounded by their queue limits: what nobody needs
/// any more is taken out whenever the list has doubled.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) serials: VecDeque<u64>,
    /// The length at which the dead are taken out next.
    compact_at: usize,
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
    pub(super) waiting: Waiting,
    pub(super) handovers: Handovers,
    /// The highest serials that came from each of the sources (`handover.rs`).
    pub(super) seen: Vec<Seen>,
    pub(super) reads: Reads,
    /// What reclaiming has read and could not be dealt with whole yet.
    pub(super) chunk: Option<Chunk>,
    buffer: Vec<u8>,
    /// Larger lists are written as several.
    pub(super) list_bytes_max: usize,
    pub(super) late: LateFacts,
    pub(super) lone_wills: LoneWills,
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
    pub(super) fn new(journal: Journal, settings: &storage::Settings, sources: u16) -> Self {
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
            backlogs: HashMap::default(),
            groups: KeptGroups::default(),
            moved: Vec::new(),
            noted: Vec::new(),
            waiting: Waiting::default(),
            handovers: Handovers::default(),
            seen: vec![Seen::default(); usize::from(sources)],
            reads: Reads::default(),
            chunk: None,
            buffer: Vec::new(),
            list_bytes_max: LIST_BYTES_MAX.min(settings.record_bytes_max as usize / 2),
            late: LateFacts::default(),
            lone_wills: LoneWills::default(),
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
        if class == Class::Normal && self.late.goes_first() {
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
        self.journal.cache_bytes() + self.reads.bytes()
    }

    pub(super) fn has_caches_to_fit(&self) -> bool {
        self.journal.has_cache_to_fit() || self.reads.has_to_fit()
    }

    /// Gives back what nobody needs any more. What was read back and not asked for since is read
    /// again.
    pub(super) fn fit_caches(&mut self) {
        self.journal.fit_cache();
        self.reads.fit();
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
        self.reads.forget(serial);
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
        let known = self.unwritten.get(&serial).cloned();
        if let Some(message) = known.or_else(|| self.reads.get(serial)) {
            return Loaded::Ready(message);
        }
        let (position, bytes) = (stored.place.position(), stored.place.bytes);
        if let Some(record) = self.journal.read(position) {
            return match message_in(record.kind, record.bytes) {
                Some((_, message)) => Loaded::Ready(message),
                None => Loaded::Gone,
            };
        }
        if !self.reads.join(position, bytes, waiter) {
            let journal = &mut self.journal;
            let request = |bytes| journal.request(position, bytes);
            self.reads.begin(serial, (position, bytes), waiter, request);
        }
        Loaded::Pending
    }

    /// A read has come back: keeps what is in it, and returns who waited for it. If what was asked
    /// for is not in it, they have to wait for the next tick; when a record is damaged for good,
    /// its message is given up. Err: the place of such a record.
    pub(super) fn on_read(
        &mut self,
        id: CommandId,
        chunk: Option<Chunk>,
    ) -> Result<Vec<QueueId>, Position> {
        let Some(reading) = self.reads.end(id) else { return Ok(Vec::new()) };
        let is_damaged = chunk.is_some();
        let mut chunk = chunk;
        while let Some(record) = chunk.as_mut().and_then(Chunk::next) {
            let Some((serial, message)) = message_in(record.kind, record.bytes) else { continue };
            if self.stands_at(serial, record.position) {
                self.reads.put(serial, message);
            }
        }
        let (serial, position) = (reading.serial, reading.position);
        if self.reads.has(serial) || !self.stands_at(serial, position) {
            return Ok(self.reads.serve(reading));
        }
        if self.reads.fail(reading, is_damaged) {
            self.drop_message(serial);
        }
        if is_damaged { Err(position) } else { Ok(Vec::new()) }
    }

    fn stands_at(&self, serial: u64, position: Position) -> bool {
        self.messages.get(&serial).is_some_and(|stored| stored.place.is_at(position))
    }

    pub(super) fn note_moved(&mut self, queue: QueueId) {
        self.moved.push(queue);
    }

    /// Would a record of so many bytes be refused for now, though the disk is not known to be full?
    pub(super) fn would_wait(&self, bytes: usize, records: usize) -> bool {
        self.journal.would_wait(bytes, records) || self.late.goes_first() && self.is_ready()
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

/// The journal of a shard, with all that is known of what stands in it.
#[derive(Debug)]
pub(crate) struct Log {
    pub(super) store: Store,
    pub(crate) kept: Kept,
}

/// What a completion of the disk has brought.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// The queues that may go on.
    pub(crate) readers: Vec<QueueId>,
    /// A record cannot be read.
    pub(crate) unreadable: Option<Fault>,
}

impl Log {
    /// The key of the group whose queue this is.
    pub(crate) fn group_of(&self, id: KeptId) -> Option<u64> {
        self.store.groups.get(id).map(|kept| kept.group)
    }

    /// The journal, for the driver.
    pub(crate) const fn journal(&self) -> &Journal {
        &self.store.journal
    }

    pub(crate) const fn journal_mut(&mut self) -> &mut Journal {
        &mut self.store.journal
    }

    pub(crate) fn status(&self) -> Status {
        self.store.journal.status()
    }

    /// Would a record of so many bytes be refused for now, though the disk is not known to be full?
    pub(crate) fn would_wait(&self, bytes: usize, records: usize) -> bool {
        self.store.would_wait(bytes, records)
    }

    /// What is left for messages, if that gets short.
    pub(crate) fn space_left(&self) -> Option<JournalSpace> {
        self.store.space_left()
    }

    /// The account of an owner in another shard, by its number.
    pub(crate) fn owner(&mut self, number: u32, ledger: &Ledger) -> Option<Arc<Account>> {
        self.store.owner(number, ledger)
    }

    /// Is so much waiting for the disk that publishers had better pause?
    #[inline]
    pub(crate) fn is_disk_behind(&self) -> bool {
        self.store.is_behind()
    }

    /// What waits in the journal for another shard.
    pub(crate) fn waits(&self) -> Waits {
        let handovers = self.store.handovers.waiting_count();
        Waits { handovers, dispatched: self.store.groups.dispatched(), ..Waits::default() }
    }

    /// The disk has carried out a command.
    pub(crate) fn on_completed(&mut self, completion: Completion) -> Heard {
        let read_back = self.store.journal.on_completed(completion);
        let mut heard = Heard { readers: self.store.reads.take_retry(), unreadable: None };
        let Some(read_back) = read_back else { return heard };
        let chunk = match read_back.result {
            Ok(chunk) => Some(chunk),
            Err(fault) => {
                heard.unreadable = Some(fault);
                None
            }
        };
        match self.store.on_read(read_back.id, chunk) {
            Ok(served) => heard.readers.extend(served),
            Err(position) => heard.unreadable = Some(damage_at(position)),
        }
        heard
    }

    /// Records were written in place. Returns the queues that may go on.
    pub(crate) fn on_written(&mut self) -> Vec<QueueId> {
        self.store.reads.take_retry()
    }

    /// Time has passed. Returns the queues that may try again.
    pub(crate) fn on_tick(&mut self, now_ms: u64) -> Vec<QueueId> {
        self.store.journal.on_tick(now_ms);
        self.store.expire_messages(now_ms);
        let mut readers = self.store.reads.take_retry();
        readers.extend(self.store.reads.take_unreadable());
        readers
    }

    pub(crate) fn has_caches_to_fit(&self) -> bool {
        self.store.has_caches_to_fit()
    }

    /// Gives back memory that nobody needs, about once a second. Returns the bytes that are left of
    /// it.
    pub(crate) fn fit_caches(&mut self) -> u64 {
        self.store.fit_caches();
        self.store.cache_bytes() as u64
    }

    /// The state of the journal, and whether it is another than when this was asked last.
    pub(crate) fn note_status(&mut self) -> (JournalState, bool) {
        let status = self.status();
        let state = JournalState {
            full: matches!(status, Status::Full(_)),
            poisoned: status.is_out_of_service(),
            behind: self.store.is_behind(),
            space: self.store.space_left(),
        };
        let has_changed = status != self.store.reported;
        self.store.reported = status;
        (state, has_changed)
    }
}

fn damage_at(position: Position) -> Fault {
    let detail = format!("the record at {position} differs from the written one");
    Fault { kind: FaultKind::Io, detail }
}
