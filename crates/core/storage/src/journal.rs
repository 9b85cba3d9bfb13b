//! The journal of one shard: what is appended, where it stands, and how much of it may be relied
//! upon.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::chunk::Chunk;
use crate::command::{Command, CommandId, Completion, Fault, FaultKind, Outcome, Step};
use crate::commit::Commit;
#[cfg(feature = "testing")]
use crate::commit::JournalFlaw;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, FLAG_MANIFEST, FLAG_OPEN, Identity, Record, RecordKind,
    SegmentHeader, crc32c, push_record,
};
use crate::ledger::{Ledger, weight};
use crate::manifest::{Manifest, Upkeep};
use crate::position::Position;
use crate::recent::{Recent, read_in, trim};
use crate::reclaim::Reclaim;
use crate::recovery::Recovered;
use crate::scan::Walk;
use crate::settings::Settings;
use crate::space::Space;

/// A segmented append-only journal with group commit, as a state machine.
///
/// The user appends records, hands the commands of [`Journal::take_commands`] to a disk once per
/// turn, brings each completion back to [`Journal::on_completed`], and calls [`Journal::on_tick`]
/// now and then.
pub struct Journal {
    pub(crate) identity: Identity,
    pub(crate) settings: Settings,
    pub(crate) now_ms: u64,
    pub(crate) head: Head,
    /// The batch that records go into, not closed yet.
    pub(crate) open: Option<Batch>,
    /// Steps closed and not handed to the disk yet.
    pub(crate) queue: VecDeque<Step>,
    /// Bytes appended and not yet written.
    pub(crate) pending_bytes: usize,
    pub(crate) commit: Commit,
    pub(crate) recent: Recent,
    pub(crate) ledger: Ledger,
    pub(crate) space: Space,
    pub(crate) reclaim: Reclaim,
    /// Those that somebody asked for.
    pub(crate) reads: Vec<Reading>,
    pub(crate) phase: Phase,
    pub(crate) upkeep: Upkeep,
    pub(crate) poison: Option<Fault>,
    pub(crate) commands: Vec<Command>,
    pub(crate) stats: Stats,
    next_id: u64,
    #[cfg(feature = "testing")]
    pub(crate) flaw: Option<JournalFlaw>,
}

/// When a record counts as committed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// As [`Level::Disk`], but nobody waits for it: it goes with the next commit, or when it is
    /// `lazy_commit_ms` old.
    Lazy,
    /// Handed to the operating system: survives the end of the process, not a loss of power. It is
    /// synced within `sync_interval_ms` all the same.
    Disk,
    /// Synced to the medium: survives a loss of power.
    Fsync,
}

/// Why a record is not taken. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Not a passing state: the limit is `record_bytes_max`.
    #[error("record of {bytes} bytes is larger than record_bytes_max ({bytes_max})")]
    TooLarge { bytes: usize, bytes_max: u32 },
    /// The disk is behind. Passes with the next completions: slow the sender down.
    #[error("{bytes} bytes are queued for the disk, the maximum: try again after the next commit")]
    Backlog { bytes: usize },
    /// No space. Passes when space returns: refuse or slow the sender down.
    #[error("no space for the log: {0}")]
    Full(Fault),
    /// A write or sync failed, or another node owns the journal. Nothing more will ever be promised
    /// by this journal.
    #[error("the log is out of service: {0}")]
    Poisoned(Fault),
    /// The journal is closing or closed.
    #[error("the log is closed")]
    Closed,
}

/// What state the journal is in, for readiness checks and operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// What recovery found is being made durable; wait before relying on it.
    Opening,
    Ready,
    /// Normal appends are or soon will be refused; reads, releases and essential appends go on.
    Full(Fault),
    /// There is no quorum: appends are taken until too much waits, nothing is promised meanwhile,
    /// and the journal goes on by itself.
    Unavailable(Fault),
    /// Nothing is promised any more.
    Poisoned(Fault),
    /// Another node owns the journal: nothing is promised or written any more.
    Fenced(Fault),
    /// Sealed and complete: the files may be left alone.
    Closed,
}

impl Status {
    /// Is nothing promised any more, and never will be by this journal?
    pub fn is_out_of_service(&self) -> bool {
        matches!(self, Self::Poisoned(_) | Self::Fenced(_))
    }
}

/// Counters since the journal was opened, and sizes as of now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub records_appended: u64,
    /// Bytes of records appended, frames included.
    pub bytes_appended: u64,
    /// Groups handed to the disk or written in place, and those of them that ended with a sync.
    pub commits: u64,
    pub syncs: u64,
    /// Appends refused for lack of space.
    pub refused_full: u64,
    /// Segments whose space came back.
    pub segments_reclaimed: u64,
    /// Bytes read in order to reclaim.
    pub bytes_reclaim_read: u64,
    pub segments: usize,
    pub spares: usize,
    pub used_bytes: u64,
    pub live_bytes: u64,
    /// See [`Journal::live_bytes_max`]. 0: no limit.
    pub live_bytes_max: u64,
    pub pending_bytes: usize,
    /// See [`Journal::damaged`].
    pub is_damaged: bool,
}

/// What came back for a [`Journal::request`].
#[derive(Debug)]
pub struct ReadBack {
    pub id: CommandId,
    pub position: Position,
    pub result: Result<Chunk, Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Phase {
    /// The batch that begins this opening is not closed yet.
    Unopened,
    /// It is not durable yet.
    Opening,
    Running,
    Closing,
    /// The seal is on its way.
    Sealing,
    Closed,
}

/// A read under way, or to be tried again at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    id: CommandId,
    position: Position,
    bytes: u32,
    retry_at: Option<u64>,
}

/// How far down a record may use up the free space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Normal,
    Essential,
    Copy,
}

/// Where the next batch goes.
#[derive(Debug)]
pub(crate) struct Head {
    /// 0 before the first segment.
    pub(crate) segment: u32,
    pub(crate) seed: u32,
    pub(crate) capacity: u32,
    pub(crate) next: u32,
    pub(crate) sequence: u64,
    /// Checksum of the batch or segment header before.
    pub(crate) previous: u32,
    pub(crate) epoch: u32,
}

/// A batch in the making. Its header is filled in when it is closed.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) start: Position,
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: u32,
}

impl Head {
    /// Before the first segment.
    pub(crate) fn of_nothing() -> Self {
        Self { segment: 0, seed: 0, capacity: 0, next: 0, sequence: 1, previous: 0, epoch: 1 }
    }

    /// Of the next opening, behind what was walked of a journal.
    pub(crate) fn behind(identity: &Identity, capacity: u32, end: &Walk) -> Self {
        let segment = end.position.segment();
        Self {
            segment,
            seed: identity.seed(segment),
            capacity,
            next: end.position.offset(),
            sequence: end.chain.sequence,
            previous: end.chain.previous,
            epoch: end.chain.epoch.wrapping_add(1),
        }
    }
}

impl Journal {
    /// A new journal in an empty directory. `identity.id` must be random.
    pub fn create(identity: Identity, settings: Settings) -> Self {
        let head = Head::of_nothing();
        Self::with(identity, settings, head, Ledger::default(), Space::default(), None)
    }

    /// Goes on with a journal that was recovered. Nothing that recovery found may be relied upon
    /// before [`Journal::status`] is past `Opening`: only then is it known to be durable.
    pub fn open(recovered: Recovered, settings: Settings) -> Self {
        let Recovered { identity, head, ledger, space, manifest, .. } = recovered;
        let segment = head.segment;
        let mut journal = Self::with(identity, settings, head, ledger, space, manifest);
        if segment != 0 {
            // Its header may be in the hands of the operating system only, if the process ended in
            // between: no batch may be on the medium before it.
            journal.queue.push_back(Step::Sync { segment });
        }
        journal
    }

    fn with(
        id: Identity,
        settings: Settings,
        head: Head,
        ledger: Ledger,
        space: Space,
        manifest: Option<Manifest>,
    ) -> Self {
        let written = Position::new(head.segment, head.next);
        Self {
            identity: id,
            now_ms: 0,
            open: None,
            queue: VecDeque::new(),
            pending_bytes: 0,
            // All but the last segment were synced before the next one was begun.
            commit: Commit::new(written, Position::new(head.segment, 0)),
            recent: Recent::new(settings.cache_bytes_max),
            ledger,
            space,
            reclaim: Reclaim::default(),
            reads: Vec::new(),
            phase: Phase::Unopened,
            upkeep: Upkeep::new(manifest),
            poison: None,
            commands: Vec::new(),
            stats: Stats::default(),
            next_id: 0,
            #[cfg(feature = "testing")]
            flaw: None,
            head,
            settings,
        }
    }

    /// Appends a record made of `parts` in order. It is committed once [`Journal::written_upto`] or
    /// [`Journal::synced_upto`], as `level` asks, is past the position returned.
    pub fn append(
        &mut self,
        kind: RecordKind,
        parts: &[&[u8]],
        level: Level,
    ) -> Result<Position, AppendError> {
        self.append_as(Class::Normal, kind, parts, level)
    }

    /// Appends a record that frees more than it takes: an acknowledgement, a deletion. It may use
    /// the reserve that other records leave alone on a full disk.
    pub fn append_essential(
        &mut self,
        kind: RecordKind,
        parts: &[&[u8]],
        level: Level,
    ) -> Result<Position, AppendError> {
        self.append_as(Class::Essential, kind, parts, level)
    }

    /// Appends a record of a [`Journal::reclaim`] chunk again. It may use the segment that is kept
    /// free for this.
    pub fn append_copy(
        &mut self,
        kind: RecordKind,
        parts: &[&[u8]],
        level: Level,
    ) -> Result<Position, AppendError> {
        self.append_as(Class::Copy, kind, parts, level)
    }

    /// Says that `bytes` of the record at `position` are no longer needed; see
    /// [`Ledger::release`].
    pub fn release(&mut self, position: Position, bytes: u64) {
        self.ledger.release(position, bytes);
    }

    /// Every record before this position is in the hands of the operating system.
    pub fn written_upto(&self) -> Position {
        self.commit.written
    }

    /// Every record before this position is durable.
    pub fn synced_upto(&self) -> Position {
        self.commit.synced
    }

    /// Whether the record at `position` is committed at `level`.
    pub fn is_committed(&self, position: Position, level: Level) -> bool {
        match level {
            Level::Lazy | Level::Disk => position < self.commit.written,
            Level::Fsync => position < self.commit.synced,
        }
    }

    /// The record at `position`, if it is still in memory. `None` means: [`Journal::request`] it.
    pub fn read(&self, position: Position) -> Option<Record<'_>> {
        match &self.open {
            Some(batch) if batch.start <= position => read_in(&batch.bytes, batch.start, position),
            _ => self.recent.read(position),
        }
    }

    /// Asks the disk for the record at `position` and those behind it, about `bytes_max` bytes in
    /// all. [`Journal::on_completed`] returns the [`ReadBack`]. `None`: there is no such segment,
    /// or nothing is written there yet.
    pub fn request(&mut self, position: Position, bytes_max: u32) -> Option<CommandId> {
        let segment = position.segment();
        let end = self.written_end(segment)?;
        let bytes = end.checked_sub(position.offset())?.min(bytes_max);
        if bytes == 0 {
            return None;
        }
        let id = self.command_id();
        self.commands.push(Command::Read { id, segment, offset: position.offset(), bytes });
        self.reads.push(Reading { id, position, bytes, retry_at: None });
        Some(id)
    }

    /// Moves everything the disk has to do now to the end of `out`. Call it once per turn, so that
    /// all appends of a turn share a write, and at [`Journal::next_deadline`].
    pub fn take_commands(&mut self, out: &mut Vec<Command>, now_ms: u64) {
        self.plan_reads();
        self.plan_reclaim();
        self.plan_space();
        self.plan_commit(now_ms);
        out.append(&mut self.commands);
    }

    /// Takes in the answer to a command, and returns what a [`Journal::request`] asked for.
    pub fn on_completed(&mut self, completion: Completion) -> Option<ReadBack> {
        let Completion { id, outcome } = completion;
        match outcome {
            Outcome::Committed { steps_done, fault } => self.on_committed(id, steps_done, fault),
            Outcome::Done(result) => self.on_housekeeping(id, result),
            Outcome::Read(result) => return self.on_read(id, result),
        }
        None
    }

    /// Tells the time in milliseconds, which never goes back.
    pub fn on_tick(&mut self, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.now_ms);
        self.now_ms = self.now_ms.max(now_ms);
        self.grant_reclaim_time(elapsed);
        self.on_tick_commit();
        self.on_tick_manifest();
    }

    /// When [`Journal::on_tick`] has something to do at the latest, if nothing else happens. What
    /// waits for the disk is not due before that has answered.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.poison.is_some() {
            return None;
        }
        let commit = [self.commit_deadline(), self.manifest_deadline()];
        let space = [self.space.deadline(self.commit.synced), self.reclaim_deadline()];
        let reads = self.reads.iter().filter_map(|reading| reading.retry_at);
        commit.into_iter().chain(space).flatten().chain(reads).min()
    }

    /// Makes everything appended so far durable, whatever its level.
    pub fn sync(&mut self) {
        self.commit.sync_target = self.end();
    }

    /// Ends the journal in order: no further appends; what is pending is written, synced and
    /// sealed. Complete when [`Journal::status`] is `Closed`.
    pub fn close(&mut self) {
        self.phase = self.phase.max(Phase::Closing);
    }

    /// Keeps all files as they are, for a backup: segments are neither removed nor used again while
    /// pinned. Each `pin` wants its [`Journal::unpin`].
    pub fn pin(&mut self) {
        self.space.pins += 1;
    }

    /// Ends one [`Journal::pin`].
    pub fn unpin(&mut self) {
        self.space.pins = self.space.pins.saturating_sub(1);
    }

    /// The segment files of the journal, and how many bytes of each are written: what a backup
    /// copies while it pins them. Those that have just been emptied belong to it, as long as what
    /// is written does not say that the journal begins behind them.
    pub fn written_files(&self) -> Vec<(u32, u64)> {
        let Some(oldest) = self.ledger.oldest() else { return Vec::new() };
        let emptied = self.space.still_needed(self.commit.written);
        let written = (oldest..=self.head.segment)
            .filter_map(|segment| self.written_end(segment).map(|end| (segment, end)));
        emptied.chain(written).map(|(segment, end)| (segment, u64::from(end))).collect()
    }

    /// The manifest file that belongs to them: it states no more than they hold.
    pub fn manifest(&self) -> Option<Vec<u8>> {
        self.upkeep.file()
    }

    /// The state the journal is in.
    pub fn status(&self) -> Status {
        match (&self.poison, &self.space.full, self.phase) {
            (Some(fault), _, _) if fault.kind == FaultKind::Fenced => Status::Fenced(fault.clone()),
            (Some(fault), _, _) => Status::Poisoned(fault.clone()),
            (_, _, Phase::Closed) => Status::Closed,
            (_, Some(fault), _) => Status::Full(fault.clone()),
            _ if let Some(fault) = self.unavailable() => Status::Unavailable(fault.clone()),
            (_, _, Phase::Unopened | Phase::Opening) => Status::Opening,
            _ => Status::Ready,
        }
    }

    fn unavailable(&self) -> Option<&Fault> {
        self.commit.unavailable.as_ref().or(self.space.unavailable.as_ref())
    }

    /// Whether recovery's findings are durable and appends are taken.
    pub fn is_ready(&self) -> bool {
        self.poison.is_none() && (Phase::Running..Phase::Closed).contains(&self.phase)
    }

    /// Counters and sizes.
    pub fn stats(&self) -> Stats {
        Stats {
            segments: self.ledger.len(),
            spares: self.space.spares.len(),
            used_bytes: self.ledger.used_bytes(),
            live_bytes: self.ledger.live_bytes(),
            pending_bytes: self.pending_bytes,
            live_bytes_max: self.live_bytes_max().unwrap_or(0),
            is_damaged: self.damaged().is_some(),
            ..self.stats
        }
    }

    /// Bytes of records that are needed.
    pub fn live_bytes(&self) -> u64 {
        self.ledger.live_bytes()
    }

    /// How much may live in a journal of this size before reclaiming has to hurry to make room:
    /// none where its size has no limit.
    pub fn live_bytes_max(&self) -> Option<u64> {
        self.settings.live_bytes_max()
    }

    /// How much records may take, beside what is reserved, before the journal is full and space has
    /// to come back: none where its size has no limit.
    pub fn bytes_left(&self) -> Option<u64> {
        let unmade = self.segment_payload() * self.segments_left()?;
        let left = unmade + self.spare_bytes() + self.rest_bytes();
        let reserved = self.left_alone(Class::Normal, usize::MAX) + self.ready_bytes();
        Some(left.saturating_sub(reserved))
    }

    /// Is so much waiting for the disk that whoever appends had better slow down? A quarter of
    /// `pending_bytes_max`, beyond which appends are refused.
    pub fn is_behind(&self) -> bool {
        self.pending_bytes > self.settings.pending_bytes_max / 4
    }

    /// Would one of so many records of so many bytes each be refused for now, though the disk is
    /// not known to be full? One that is too large is refused for good. No more than
    /// `record_bytes_max` in all is waited for: more may never be free at one time.
    pub fn would_wait(&self, record_bytes: usize, records: usize) -> bool {
        let is_refused = self.poison.is_some()
            || self.space.full.is_some()
            || self.phase >= Phase::Closing
            || record_bytes > self.settings.record_bytes_max as usize;
        if is_refused {
            return false;
        }
        let bytes = (record_bytes * records).min(self.settings.record_bytes_max as usize);
        if self.phase == Phase::Unopened
            || self.pending_bytes + bytes > self.settings.pending_bytes_max
        {
            return true;
        }
        let framed = weight(bytes);
        let (rest, spares) = (self.rest_bytes(), self.spare_bytes());
        if framed <= rest {
            rest - framed + spares < self.left_alone(Class::Normal, self.ledger.len())
        } else {
            let left_alone = self.left_alone(Class::Normal, self.ledger.len() + 1);
            framed + u64::from(BATCH_HEADER_BYTES) + left_alone > spares
        }
    }

    /// Whose journal it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn append_as(
        &mut self,
        class: Class,
        kind: RecordKind,
        parts: &[&[u8]],
        level: Level,
    ) -> Result<Position, AppendError> {
        let len = parts.iter().map(|part| part.len()).sum();
        self.admit(len, class)?;
        if self.open.is_none() {
            self.begin_batch();
        }
        let Some(batch) = self.open.as_mut() else { return Err(AppendError::Closed) };
        let before = batch.bytes.len();
        let segment = batch.start.segment();
        let position = Position::new(segment, batch.start.offset() + before as u32);
        push_record(&mut batch.bytes, self.head.seed, kind, parts);
        batch.records += 1;
        let full = batch.bytes.len() >= self.settings.batch_bytes_max as usize;
        self.account(segment, weight(len));
        if class != Class::Copy {
            self.grant_reclaim_share(weight(len));
        }
        self.commit.note_append(level, position, self.now_ms);
        if full {
            self.close_batch(0);
        }
        Ok(position)
    }

    fn account(&mut self, segment: u32, bytes: u64) {
        self.pending_bytes += bytes as usize;
        self.ledger.add(segment, bytes);
        self.stats.records_appended += 1;
        self.stats.bytes_appended += bytes;
    }

    /// Finds room for a record of `len` bytes, or says why there is none.
    fn admit(&mut self, len: usize, class: Class) -> Result<(), AppendError> {
        if let Some(fault) = &self.poison {
            return Err(AppendError::Poisoned(fault.clone()));
        }
        if self.phase >= Phase::Closing {
            return Err(AppendError::Closed);
        }
        if len > self.settings.record_bytes_max as usize {
            let bytes_max = self.settings.record_bytes_max;
            return Err(AppendError::TooLarge { bytes: len, bytes_max });
        }
        // The others may still come when normal records are refused, but not without end.
        let share = if class == Class::Normal { 1 } else { 2 };
        if self.pending_bytes + len > self.settings.pending_bytes_max * share
            || self.phase == Phase::Unopened
        {
            return Err(AppendError::Backlog { bytes: self.pending_bytes });
        }
        let framed = weight(len);
        let (rest, spares) = (self.rest_bytes(), self.spare_bytes());
        if framed <= rest {
            return match rest - framed + spares >= self.left_alone(class, self.ledger.len()) {
                true => Ok(()),
                false => Err(self.refuse_for_space()),
            };
        }
        let left_alone = self.left_alone(class, self.ledger.len() + 1);
        let needed = framed + u64::from(BATCH_HEADER_BYTES) + left_alone;
        if needed > spares || !self.roll() {
            return Err(self.refuse_for_space());
        }
        Ok(())
    }

    /// Bytes that a record of this class has to leave free in a journal of so many segments.
    ///
    /// A whole segment is for copies, so that the oldest segment can always be emptied, however
    /// full the disk is; unless the journal has only one segment and there is nothing to empty.
    pub(crate) fn left_alone(&self, class: Class, segments: usize) -> u64 {
        let for_copies = if segments > 1 { self.segment_payload() } else { 0 };
        match class {
            Class::Normal => for_copies + u64::from(self.settings.reserve_bytes),
            Class::Essential => for_copies,
            Class::Copy => 0,
        }
    }

    fn refuse_for_space(&mut self) -> AppendError {
        match &self.space.full {
            Some(fault) => {
                self.stats.refused_full += 1;
                AppendError::Full(fault.clone())
            }
            None => AppendError::Backlog { bytes: self.pending_bytes },
        }
    }

    /// Bytes that records can still take in the head segment.
    pub(crate) fn rest_bytes(&self) -> u64 {
        let taken = match &self.open {
            Some(batch) => batch.bytes.len() as u32,
            None => BATCH_HEADER_BYTES,
        };
        let usable = self.head.capacity.saturating_sub(CONTROL_BYTES);
        u64::from(usable.saturating_sub(self.head.next + taken))
    }

    /// Whether a batch without records fits into the head segment. It may use the end that records
    /// leave free, so that a journal that is full to the brim can still be opened, sealed and
    /// reclaimed.
    pub(crate) fn has_control_room(&self) -> bool {
        self.head.segment != 0 && self.head.next + BATCH_HEADER_BYTES <= self.head.capacity
    }

    fn begin_batch(&mut self) {
        let mut bytes = self.recent.buffer();
        bytes.resize(BATCH_HEADER_BYTES as usize, 0);
        let start = Position::new(self.head.segment, self.head.next);
        self.open = Some(Batch { start, bytes, records: 0 });
    }

    /// Closes the open batch, or an empty one, and queues it.
    pub(crate) fn close_batch(&mut self, flags: u16) {
        if self.open.is_none() {
            self.begin_batch();
        }
        let Some(Batch { start, mut bytes, records }) = self.open.take() else { return };
        let end = Position::new(start.segment(), start.offset() + bytes.len() as u32);
        self.extend_reach(end);
        let flags = if self.upkeep.exists() { flags | FLAG_MANIFEST } else { flags };
        let (prefix, body) = bytes.split_at_mut(BATCH_HEADER_BYTES as usize);
        let header = BatchHeader {
            flags,
            body_bytes: body.len() as u32,
            records,
            epoch: self.head.epoch,
            sequence: self.head.sequence,
            synced: self.commit.synced,
            oldest: self.ledger.oldest().unwrap_or(self.head.segment),
            previous: self.head.previous,
            body_crc: crc32c(body) ^ self.head.seed,
        };
        self.head.previous = header.write_to(prefix, self.head.seed);
        self.head.sequence += 1;
        self.head.next += bytes.len() as u32;
        self.pending_bytes += BATCH_HEADER_BYTES as usize;
        self.ledger.set_end(self.head.segment, self.head.next);
        self.note_closed(records, flags);
        trim(&mut bytes);
        let bytes = Arc::new(bytes);
        self.recent.push(start, Arc::clone(&bytes));
        self.queue.push_back(Step::Write {
            segment: start.segment(),
            offset: start.offset(),
            bytes,
        });
    }

    fn note_closed(&mut self, records: u32, flags: u16) {
        let end = self.end();
        self.commit.claimed = self.commit.synced;
        if records > 0 {
            self.commit.records_end = end;
        }
        if self.space.note_oldest_written(end) || flags & FLAG_OPEN != 0 {
            self.commit.sync_target = end;
        }
    }

    /// Goes on in the next segment. False: there is none yet.
    pub(crate) fn roll(&mut self) -> bool {
        let Some(number) = self.space.spares.pop_front() else { return false };
        if self.open.is_some() {
            self.close_batch(0);
        }
        self.ledger.push(number, self.settings.segment_bytes);
        let header = SegmentHeader {
            identity: self.identity,
            number,
            segment_bytes: self.settings.segment_bytes,
            oldest: self.ledger.oldest().unwrap_or(number),
            previous: self.head.previous,
            first_sequence: self.head.sequence,
            epoch: self.head.epoch,
        };
        let bytes = Arc::new(header.encode());
        let before = std::mem::replace(&mut self.head.segment, number);
        self.head.seed = self.identity.seed(number);
        self.head.capacity = self.settings.segment_bytes;
        self.head.next = bytes.len() as u32;
        self.head.previous = header.chain();
        self.pending_bytes += bytes.len();
        // Recovery relies on both syncs: only the last segment can have a torn tail, and a segment
        // in which there is a batch has a whole header.
        if before != 0 {
            self.queue.push_back(Step::Sync { segment: before });
        }
        self.queue.push_back(Step::Write { segment: number, offset: 0, bytes });
        self.queue.push_back(Step::Sync { segment: number });
        // Before the first batch there, so that no segment with batches can be lost unnoticed.
        if self.upkeep.exists() {
            let step = self.state_end();
            self.queue.push_back(step);
        }
        true
    }

    /// Where the next batch begins: behind everything closed so far.
    pub(crate) fn end(&self) -> Position {
        let open = self.open.as_ref().map_or(0, |batch| batch.bytes.len() as u32);
        Position::new(self.head.segment, self.head.next + open)
    }

    /// Offset up to which a segment is in the hands of the operating system.
    pub(crate) fn written_end(&self, segment: u32) -> Option<u32> {
        let written = self.commit.written;
        match segment.cmp(&written.segment()) {
            std::cmp::Ordering::Less => self.ledger.usage(segment).map(|usage| usage.end),
            std::cmp::Ordering::Equal => Some(written.offset()),
            std::cmp::Ordering::Greater => None,
        }
    }

    pub(crate) fn command_id(&mut self) -> CommandId {
        self.next_id += 1;
        CommandId(self.next_id)
    }

    /// Asks again for what could not be read for now.
    fn plan_reads(&mut self) {
        for reading in &mut self.reads {
            if reading.retry_at.take_if(|at| *at <= self.now_ms).is_some() {
                let Reading { id, position, bytes, .. } = *reading;
                let (segment, offset) = (position.segment(), position.offset());
                self.commands.push(Command::Read { id, segment, offset, bytes });
            }
        }
    }

    fn on_read(&mut self, id: CommandId, result: Result<Vec<u8>, Fault>) -> Option<ReadBack> {
        let Some(index) = self.reads.iter().position(|reading| reading.id == id) else {
            self.on_reclaim_read(id, result);
            return None;
        };
        if result.as_ref().is_err_and(|fault| fault.kind == FaultKind::Unavailable) {
            let retry_at = self.now_ms + u64::from(self.settings.retry_ms);
            self.reads[index].retry_at = Some(retry_at);
            return None;
        }
        let Reading { position, .. } = self.reads.swap_remove(index);
        let seed = self.identity.seed(position.segment());
        let result = result.map(|bytes| Chunk::new(position, bytes, seed));
        Some(ReadBack { id, position, result })
    }
}

/// The end of each segment that only batches without records may use.
pub(crate) const CONTROL_BYTES: u32 = 4096;
