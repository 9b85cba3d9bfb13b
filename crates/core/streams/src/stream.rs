//! One stream: its newest records in memory, its files, and what the journals are ordered to
//! release.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use broker::streams::{ConsumerNumber, OrderRefusal, StreamChange, StreamFound};
use storage::Fault;
use storage::stream::{
    Archived, BlockWriter, FileIdentity, FoundFile, StreamCommand, StreamCommandId, StreamLimits,
    StreamLog,
};
use topic::Index;

use crate::definition::{Full, StreamDefinition};
use crate::settings::{Flaw, HubSettings};
use crate::tail::Tail;

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) definition: StreamDefinition,
    pub(crate) log: StreamLog,
    /// By shard.
    pub(crate) shards: Vec<StreamShard>,
    /// Filters of the consumers, by their numbers.
    pub(crate) index: Index,
    pub(crate) consumers: BTreeSet<ConsumerNumber>,
    /// What is written is tried again then.
    retry_ms: Option<u64>,
    /// A write has failed, and none was done since.
    pub(crate) is_failing: bool,
    pub(crate) is_full: bool,
    /// Files of the disk are to go: of this stream the oldest one that may, once a second.
    pub(crate) is_disk_short: bool,
    commands: Vec<StreamCommand>,
}

/// What a stream has of one shard.
#[derive(Debug)]
pub(crate) struct StreamShard {
    pub(crate) tail: Tail,
    /// The journal had records below this one at the start: those that are in no file follow.
    found_next: u64,
    /// Files with records of the shard that its journal does not know of: one entry for each file.
    archived: VecDeque<Archived>,
    /// Files below these are dropped since the time.
    dropped: VecDeque<(u64, u64)>,
    /// The journal has forgotten the files below.
    forgotten: u64,
    under_way: Option<Told>,
    not_before_ms: u64,
    /// All that is synced is moved up to this record, whatever it is: its journal needs the space.
    move_until: u64,
}

/// An order that was given.
#[derive(Clone, Copy, Debug)]
enum Told {
    Archived(Archived),
    Dropped(u64),
}

impl StreamShard {
    fn new(found: &StreamFound) -> Self {
        Self {
            tail: Tail::new(found.archived),
            found_next: found.next,
            archived: VecDeque::new(),
            dropped: VecDeque::new(),
            forgotten: found.first_file,
            under_way: None,
            not_before_ms: 0,
            move_until: 0,
        }
    }

    fn note_archived(&mut self, archived: Archived) {
        self.tail.archived = self.tail.archived.max(archived.next);
        match self.archived.back_mut() {
            // The journal needs the last of each file only.
            Some(last) if last.file == archived.file => *last = archived,
            _ => self.archived.push_back(archived),
        }
    }
}

impl Stream {
    pub(crate) fn new(
        definition: StreamDefinition,
        files: Vec<FoundFile>,
        found: &BTreeMap<u16, StreamFound>,
        settings: &HubSettings,
    ) -> Self {
        let shards = settings.shards;
        let unknown = StreamFound::default();
        let found = |shard: u16| found.get(&shard).unwrap_or(&unknown);
        let archived = (0..shards).map(|shard| (shard, found(shard).archived)).collect();
        let mut log = StreamLog::open(definition.identity, definition.limits, files, archived);
        log.resume_drop((0..shards).map(|shard| found(shard).first_file).max().unwrap_or_default());
        log.begin_at(settings.first_file);
        let shard = |shard: u16| StreamShard::new(found(shard));
        Self {
            log,
            shards: (0..shards).map(shard).collect(),
            index: Index::new(u64::from(definition.number.0)),
            consumers: BTreeSet::new(),
            retry_ms: None,
            is_failing: false,
            is_full: false,
            is_disk_short: false,
            definition,
            commands: Vec::new(),
        }
    }

    /// The first record of a shard that can be read.
    pub(crate) fn oldest(&self, shard: u16) -> u64 {
        let first = self.shards[usize::from(shard)].tail.first;
        self.log.oldest(shard).map_or(first, |oldest| oldest.min(first))
    }

    /// The first record of a shard that a consumer may begin at. What is only in memory any more,
    /// or in a file that is dropped, may be gone ahead of its turn.
    pub(crate) fn beginning(&self, shard: u16) -> u64 {
        let archived = self.shards[usize::from(shard)].tail.archived;
        self.log.oldest_kept(shard).unwrap_or(archived)
    }

    /// The ordinal of the next record of a shard.
    pub(crate) fn next(&self, shard: u16) -> u64 {
        let shard = &self.shards[usize::from(shard)];
        shard.tail.next().max(shard.found_next)
    }

    pub(crate) const fn identity(&self, file: u64) -> FileIdentity {
        FileIdentity { stream: self.definition.identity, number: file }
    }

    /// Bytes of the records in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.tail.bytes()).sum()
    }
}

/// Records on their way into files.
impl Stream {
    /// A shard wants all that it has so far to be moved.
    pub(crate) fn move_all(&mut self, shard: u16) {
        let shard = &mut self.shards[usize::from(shard)];
        shard.move_until = shard.tail.next();
    }

    /// Makes blocks of what waits long enough, or is enough. `is_pressed`: of all that is synced.
    pub(crate) fn move_records(&mut self, now_ms: u64, is_pressed: bool, settings: &HubSettings) {
        if self.log.fault().is_some() {
            return;
        }
        let waiting: usize = self.shards.iter().map(|shard| shard.tail.unmoved_bytes()).sum();
        let is_enough = is_pressed || waiting >= settings.block_bytes_wait;
        for shard in 0..self.shards.len() {
            while self.is_due(shard, now_ms, is_enough, settings)
                && self.log.writing_bytes() < settings.writing_bytes_max
            {
                self.move_block(shard, settings);
            }
        }
    }

    fn is_due(&self, shard: usize, now_ms: u64, is_enough: bool, settings: &HubSettings) -> bool {
        let StreamShard { tail, move_until, .. } = &self.shards[shard];
        let next = match settings.has(Flaw::UnsyncedInBlock) {
            true => tail.get(tail.moved),
            false => tail.next_to_move(),
        };
        let Some(oldest) = next else { return false };
        is_enough
            || tail.moved < *move_until
            || now_ms.saturating_sub(oldest.at_ms) >= settings.block_age_ms
    }

    fn move_block(&mut self, shard: usize, settings: &HubSettings) {
        let tail = &mut self.shards[shard].tail;
        let mut block = BlockWriter::new(shard as u16, settings.epoch, tail.moved);
        if settings.has(Flaw::UnsyncedInBlock) {
            tail.synced = tail.next();
        }
        while let Some(record) = tail.next_to_move() {
            if !block.push(record.at_ms, &record.bytes) {
                break;
            }
            tail.note_moved();
        }
        if block.is_empty() {
            // Larger than a file takes: it is not in files, and counts as damaged there.
            tail.note_moved();
            return;
        }
        let next = block.next();
        self.log.append(block);
        self.log.take_commands(&mut self.commands);
        if settings.has(Flaw::ReleasedBeforeSync)
            && let Some(StreamCommand::Write { file, offset, bytes, .. }) = self.commands.last()
        {
            let (shard, end) = (shard as u16, offset + bytes.len() as u64);
            let archived = Archived { shard, next, file: *file, end };
            self.shards[usize::from(shard)].archived.push_back(archived);
        }
    }

    /// The disk has answered a write. True: more is durable than before.
    pub(crate) fn on_file(
        &mut self,
        id: StreamCommandId,
        result: Result<(), Fault>,
        retry_ms: u64,
    ) -> bool {
        let archived = self.log.on_written(id, result);
        if self.log.fault().is_some() && self.retry_ms.is_none() {
            self.retry_ms = Some(retry_ms);
        }
        if let Some(archived) = archived {
            self.shards[usize::from(archived.shard)].note_archived(archived);
        }
        archived.is_some()
    }

    /// Writes again what has failed, if it is time. True: it is tried.
    pub(crate) fn retry(&mut self, now_ms: u64) -> bool {
        let is_due = self.retry_ms.take_if(|at_ms| *at_ms <= now_ms).is_some();
        if is_due {
            self.log.retry();
        }
        is_due
    }

    pub(crate) fn take_commands(&mut self, out: &mut Vec<StreamCommand>) {
        out.append(&mut self.commands);
        self.log.take_commands(out);
    }
}

/// Retention, and what journals forget.
impl Stream {
    /// Drops what the limits say. Consumers read it until the journals have forgotten it: so no
    /// crash brings back what one of them has missed. `passed`: what all consumers have passed of a
    /// shard, as the journals know it. None: there are no consumers. True: files were dropped.
    pub(crate) fn retain(&mut self, now_ms: u64, passed: impl Fn(u16) -> Option<u64>) -> bool {
        let has_consumers = passed(0).is_some();
        let limits = self.definition.limits;
        let most = self.log.bytes().saturating_sub(1);
        let short_max = self.is_disk_short.then_some(most);
        self.log.set_limits(StreamLimits {
            bytes_max: limits.bytes_max.into_iter().chain(short_max).min(),
            // Without a consumer none has passed anything, and none waits for anything.
            consumed: limits.consumed && has_consumers,
            keep_unconsumed: has_consumers
                && (limits.keep_unconsumed || self.definition.full == Full::Reject),
            ..limits
        });
        let dropped = self.log.retain(now_ms, |shard| passed(shard).unwrap_or(u64::MAX));
        let Some(first_file) = dropped.iter().map(|it| it.file + 1).max() else { return false };
        for shard in &mut self.shards {
            shard.dropped.push_back((first_file, now_ms));
        }
        true
    }

    /// Whether it rejects: it is at a limit, and a consumer has not passed all of it.
    pub(crate) fn check_full(&mut self, passed: impl Fn(u16) -> Option<u64>) -> bool {
        let limits = &self.definition.limits;
        let unmoved = self.shards.iter().map(|it| it.tail.unmoved_bytes() as u64);
        let bytes = self.log.bytes() + unmoved.sum::<u64>();
        let unmoved = self.shards.iter().map(|it| it.tail.next() - it.tail.moved);
        let records = self.log.records() + unmoved.sum::<u64>();
        let is_over = self.is_disk_short
            || limits.bytes_max.is_some_and(|most| bytes >= most)
            || limits.records_max.is_some_and(|most| records >= most);
        let is_open = |shard: u16| passed(shard).is_some_and(|passed| passed < self.next(shard));
        let is_awaited = (0..self.shards.len() as u16).any(is_open);
        self.is_full = self.definition.full == Full::Reject && is_over && is_awaited;
        self.is_full
    }

    /// The next order for the journal of a shard. `settled_ms`: outcomes of its consumers until
    /// then are committed.
    pub(crate) fn next_order(
        &mut self,
        shard: u16,
        now_ms: u64,
        settled_ms: impl Fn(&BTreeSet<ConsumerNumber>) -> u64,
    ) -> Option<StreamChange> {
        let stream = self.definition.number;
        let own = &mut self.shards[usize::from(shard)];
        if own.under_way.is_some() || now_ms < own.not_before_ms {
            return None;
        }
        if let Some(archived) = own.archived.pop_front() {
            own.under_way = Some(Told::Archived(archived));
            let Archived { next, file, end, .. } = archived;
            return Some(StreamChange::Archived { stream, next, file, end });
        }
        let oldest_ms = own.dropped.front()?.1;
        let settled_ms = settled_ms(&self.consumers);
        if settled_ms < oldest_ms {
            return None;
        }
        let mut first_file = None;
        while let Some((file, _)) = own.dropped.pop_front_if(|(_, at_ms)| *at_ms <= settled_ms) {
            first_file = Some(file);
        }
        let first_file = first_file?;
        own.under_way = Some(Told::Dropped(first_file));
        Some(StreamChange::Dropped { stream, first_file })
    }

    /// Whether there is something to order.
    pub(crate) fn has_orders(&self, shard: u16) -> bool {
        let own = &self.shards[usize::from(shard)];
        own.under_way.is_none() && !(own.archived.is_empty() && own.dropped.is_empty())
    }

    /// A shard has answered.
    pub(crate) fn on_done(&mut self, shard: u16, result: Result<(), OrderRefusal>, retry_ms: u64) {
        let own = &mut self.shards[usize::from(shard)];
        let Some(told) = own.under_way.take() else { return };
        match (result, told) {
            // The shard does not have the stream: nothing of it is left in its journal.
            (Err(OrderRefusal::NoStream), Told::Archived(_)) | (Ok(()), Told::Archived(_)) => {}
            (Err(OrderRefusal::NoStream), Told::Dropped(file)) | (Ok(()), Told::Dropped(file)) => {
                own.forgotten = own.forgotten.max(file);
                let first = self.shards.iter().map(|shard| shard.forgotten).min();
                self.log.delete_below(first.unwrap_or_default());
            }
            (Err(_), told) => {
                own.not_before_ms = retry_ms;
                match told {
                    Told::Archived(archived) => match own.archived.front() {
                        Some(later) if later.file == archived.file => {}
                        _ => own.archived.push_front(archived),
                    },
                    Told::Dropped(file) => own.dropped.push_front((file, 0)),
                }
            }
        }
    }
}
