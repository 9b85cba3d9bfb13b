//! The owner of all streams and consumers: what is defined, what is reported to it, and whose turn
//! it is.

use std::collections::{BTreeMap, BTreeSet};

use broker::streams::{ConsumerNumber, StreamFound, StreamNews, StreamNumber};
use routing::Cursor;
use routing::dispatch::{Answer, BatchId};
use storage::Fault;
use storage::stream::{FoundFile, StreamCommandId};
use topic::Matches;

use crate::consumer::{Consumer, Goal, Progress};
use crate::definition::{
    ConsumerDefinition, DefinitionError, Full, Seek, Start, StreamDefinition, leads_back,
};
use crate::effect::{Effect, Happening};
use crate::orders::Orders;
use crate::settings::{Flaw, HubSettings};
use crate::stream::Stream;
use crate::view::ConsumerView;

/// See the crate.
#[derive(Debug)]
pub struct Hub {
    pub(crate) settings: HubSettings,
    pub(crate) streams: BTreeMap<StreamNumber, Stream>,
    pub(crate) consumers: BTreeMap<ConsumerNumber, Consumer>,
    pub(crate) orders: Orders,
    /// Consumers that have something to do now.
    pub(crate) ready: BTreeSet<ConsumerNumber>,
    /// Who had the last turn.
    pub(crate) last: ConsumerNumber,
    /// Consumers that have something to do at a time.
    pub(crate) timers: BTreeSet<(u64, ConsumerNumber)>,
    /// Shards of streams with records that the front has not passed.
    pub(crate) fresh: BTreeSet<(StreamNumber, u16)>,
    /// Streams that have something to move or to order.
    pub(crate) touched: BTreeSet<StreamNumber>,
    /// When retention and retries are looked at next.
    pub(crate) tick_ms: u64,
    pub(crate) ticks: u64,
    /// Bytes of the records in memory.
    pub(crate) memory: usize,
    /// Bytes of blocks that consumers have read and not finished.
    pub(crate) read_bytes: usize,
    pub(crate) matches: Matches,
    pub(crate) out: Vec<Effect>,
}

impl Hub {
    pub fn new(settings: HubSettings) -> Self {
        Self {
            settings,
            streams: BTreeMap::new(),
            consumers: BTreeMap::new(),
            orders: Orders::default(),
            ready: BTreeSet::new(),
            last: ConsumerNumber(0),
            timers: BTreeSet::new(),
            fresh: BTreeSet::new(),
            touched: BTreeSet::new(),
            tick_ms: 0,
            ticks: 0,
            memory: 0,
            read_bytes: 0,
            matches: Matches::default(),
            out: Vec::new(),
        }
    }

    pub(crate) fn happened(&mut self, happening: Happening) {
        self.out.push(Effect::Happened(happening));
    }

    /// Bytes of the records in memory, of all streams.
    pub const fn memory_bytes(&self) -> usize {
        self.memory
    }

    /// Publishers of streams are to be paused: files are not written as fast as records come.
    pub const fn is_memory_full(&self) -> bool {
        self.memory >= self.settings.memory_max
    }

    /// The wall clock is so far ahead of broker time from now on. Events that are sent again have
    /// other times then.
    pub fn set_wall_ahead(&mut self, ahead_ms: i64) {
        self.settings.wall_ahead_ms = ahead_ms;
    }

    /// Less of the disk is free than is to be. Policy: the largest stream that drops deletes its
    /// oldest file each second, and streams that reject do so.
    pub fn set_disk_short(&mut self, is_short: bool) {
        let drops = self.streams.iter().filter(|(_, it)| it.definition.full == Full::DropOldest);
        let largest = drops.max_by_key(|(_, it)| it.log.bytes()).map(|(number, _)| *number);
        for (number, stream) in &mut self.streams {
            let is_meant = stream.definition.full == Full::Reject || Some(*number) == largest;
            stream.is_disk_short = is_short && is_meant;
        }
    }

    /// Whether the stream rejects records now ([`crate::Full::Reject`]).
    pub fn is_full(&self, stream: StreamNumber) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.is_full)
    }

    /// A consumer at a moment. None: there is none of this number.
    pub fn view(&mut self, number: ConsumerNumber, now_ms: u64) -> Option<ConsumerView> {
        let consumer = self.consumers.get_mut(&number)?;
        let stream = self.streams.get(&consumer.definition.stream)?;
        for shard in 0..self.settings.shards {
            if consumer.shards[usize::from(shard)].is_at_front {
                let front = stream.shards[usize::from(shard)].tail.front;
                if consumer.shards[usize::from(shard)].read < front {
                    consumer.settle(shard, front, now_ms, &self.settings);
                    self.ready.insert(number);
                }
            }
        }
        let view = consumer.view(stream, now_ms, &self.settings);
        debug_assert!(view.adds_up || self.settings.has(Flaw::SumOffByOne));
        Some(view)
    }
}

/// Definitions.
impl Hub {
    /// A stream with what its journals and its directory have of it.
    ///
    /// # Errors
    ///
    /// The number is in use.
    pub fn add_stream(
        &mut self,
        definition: StreamDefinition,
        files: Vec<FoundFile>,
        found: &BTreeMap<u16, StreamFound>,
    ) -> Result<(), DefinitionError> {
        let number = definition.number;
        if self.streams.contains_key(&number) {
            return Err(DefinitionError::StreamInUse(number.0));
        }
        let stream = Stream::new(definition, files, found, &self.settings);
        self.streams.insert(number, stream);
        self.touched.insert(number);
        Ok(())
    }

    /// Other limits or another name. They count from the next second on.
    ///
    /// # Errors
    ///
    /// There is no such stream.
    pub fn change_stream(&mut self, definition: StreamDefinition) -> Result<(), DefinitionError> {
        let number = definition.number;
        let stream = self.streams.get_mut(&number);
        let stream = stream.ok_or(DefinitionError::NoStream(number.0))?;
        let identity = stream.definition.identity;
        stream.definition = StreamDefinition { identity, ..definition };
        Ok(())
    }

    /// Forgets a stream. The host orders the shards to do the same ([`Hub::set_streams`]), and
    /// deletes the files once that is confirmed.
    ///
    /// # Errors
    ///
    /// There is none, it has consumers, or gets dead letters.
    pub fn remove_stream(&mut self, number: StreamNumber) -> Result<(), DefinitionError> {
        let stream = self.streams.get(&number).ok_or(DefinitionError::NoStream(number.0))?;
        let gets_dead = self.consumers.values().any(|it| it.dead_letter() == Some(number));
        if gets_dead || !stream.consumers.is_empty() {
            return Err(DefinitionError::StreamUsed(number.0));
        }
        self.memory -= stream.memory_bytes();
        self.streams.remove(&number);
        self.fresh.retain(|(stream, _)| *stream != number);
        self.touched.remove(&number);
        Ok(())
    }

    /// A consumer with its cursors, by shard, as the journals have them. On a shard without one it
    /// starts as defined, which is confirmed by [`Happening::Started`].
    ///
    /// # Errors
    ///
    /// The number is in use, a stream does not exist, dead letters would come back to the consumer,
    /// or a cursor is damaged.
    pub fn add_consumer(
        &mut self,
        definition: ConsumerDefinition,
        cursors: &BTreeMap<u16, Vec<u8>>,
    ) -> Result<(), DefinitionError> {
        let number = definition.number;
        if self.consumers.contains_key(&number) {
            return Err(DefinitionError::ConsumerInUse(number.0));
        }
        self.check_consumer(&definition)?;
        let Some(stream) = self.streams.get_mut(&definition.stream) else {
            return Err(DefinitionError::NoStream(definition.stream.0));
        };
        let mut found = BTreeMap::new();
        for (shard, bytes) in cursors {
            let cursor = Cursor::decode(bytes);
            found.insert(*shard, cursor.ok_or(DefinitionError::Cursor(number.0, *shard))?);
        }
        // A crash may have come between the shards of a seek: the others go on in the same run.
        let run = found.values().map(Cursor::run).max().unwrap_or(1);
        let progress = |shard: u16| match (found.remove(&shard), definition.start) {
            (Some(cursor), _) if cursor.run() == run => Progress::found(cursor),
            (Some(cursor), _) => Progress::behind(cursor, run),
            (None, Start::New) => Progress::new(run, stream.next(shard)),
            (None, Start::Beginning) => Progress::new(run, stream.beginning(shard)),
        };
        let shards = (0..self.settings.shards).map(progress).collect();
        let mut consumer = Consumer::new(definition, shards);
        consumer.listen(stream);
        stream.consumers.insert(number);
        self.consumers.insert(number, consumer);
        self.ready.insert(number);
        Ok(())
    }

    fn check_consumer(&self, definition: &ConsumerDefinition) -> Result<(), DefinitionError> {
        let Some(to) = definition.dead_letter else { return Ok(()) };
        if !self.streams.contains_key(&to) {
            return Err(DefinitionError::NoStream(to.0));
        }
        let own = definition.number;
        let next = |from: StreamNumber| {
            // One that was removed reads no more.
            let others = self.consumers.values();
            let others = others.filter(|it| it.definition.number != own && it.ending_ms.is_none());
            let of_stream = others.filter(|it| it.definition.stream == from);
            of_stream.filter_map(Consumer::dead_letter).collect()
        };
        match leads_back(definition.stream, to, next) {
            true => Err(DefinitionError::DeadLetterLoop(to.0)),
            false => Ok(()),
        }
    }

    /// Another revision of a consumer. What is in flight ends under the one before. Retries and
    /// records that were not read use this one. A consumer keeps its number of lanes until the next
    /// start.
    ///
    /// # Errors
    ///
    /// There is none, it would have another stream, or dead letters would come back to it.
    pub fn change_consumer(
        &mut self,
        definition: ConsumerDefinition,
        now_ms: u64,
    ) -> Result<(), DefinitionError> {
        let number = definition.number;
        self.check_consumer(&definition)?;
        let consumer = self.consumers.get_mut(&number);
        let consumer = consumer.ok_or(DefinitionError::NoConsumer(number.0))?;
        if consumer.definition.stream != definition.stream {
            return Err(DefinitionError::OtherStream(number.0));
        }
        if let Some(stream) = self.streams.get_mut(&definition.stream) {
            // What the front has passed was compared with the filter before.
            consumer.leave_front(stream, now_ms, &self.settings);
            consumer.change(definition);
            consumer.listen(stream);
        }
        self.ready.insert(number);
        Ok(())
    }

    /// Sends no more, awaits answers for a while, and has the journals forget the consumer.
    /// Confirmed by [`Happening::Ended`].
    pub fn remove_consumer(&mut self, number: ConsumerNumber, now_ms: u64) {
        self.with_consumer(number, now_ms, |consumer, settings| {
            consumer.ending_ms.get_or_insert(now_ms + settings.ending_ms);
        });
    }

    /// Sends nothing more until it is resumed. Answers count.
    pub fn pause(&mut self, number: ConsumerNumber, now_ms: u64) {
        self.with_consumer(number, now_ms, |consumer, _| consumer.is_paused = true);
    }

    pub fn resume(&mut self, number: ConsumerNumber, now_ms: u64) {
        self.with_consumer(number, now_ms, |consumer, _| consumer.is_paused = false);
    }

    /// Its namespace is suspended, or is so no more. A consumer sends while it is neither suspended
    /// nor paused.
    pub fn set_suspended(&mut self, number: ConsumerNumber, is_suspended: bool, now_ms: u64) {
        let known = self.consumers.get(&number).map(|consumer| consumer.is_suspended);
        if known != Some(is_suspended) {
            self.with_consumer(number, now_ms, |it, _| it.is_suspended = is_suspended);
        }
    }

    fn with_consumer(
        &mut self,
        number: ConsumerNumber,
        now_ms: u64,
        change: impl FnOnce(&mut Consumer, &HubSettings),
    ) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        if let Some(stream) = self.streams.get(&consumer.definition.stream) {
            consumer.leave_front(stream, now_ms, &self.settings);
        }
        change(consumer, &self.settings);
        self.ready.insert(number);
    }

    /// Begins another run somewhere else. It reads nothing until all shards have committed that,
    /// which is confirmed by [`Happening::Started`].
    pub fn seek(&mut self, number: ConsumerNumber, to: &Seek, now_ms: u64) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let Some(stream) = self.streams.get(&consumer.definition.stream) else { return };
        consumer.leave_front(stream, now_ms, &self.settings);
        let run = consumer.run() + 1;
        let goal = |shard: u16| {
            let (oldest, next) = (stream.beginning(shard), stream.next(shard));
            let start = match to {
                Seek::Time(at_ms) => return Goal::Time { run, at_ms: *at_ms },
                Seek::Beginning => oldest,
                Seek::End => next,
                Seek::Position(position) => position.0.get(&shard).copied().unwrap_or(oldest),
            };
            Goal::Cursor(Cursor::new(run, start.clamp(oldest, next)))
        };
        let goals = (0..self.settings.shards).map(goal).collect();
        self.read_bytes -= consumer.read_bytes();
        consumer.begin_run(goals, &self.settings);
        self.ready.insert(number);
    }

    /// The journals have forgotten it.
    pub(crate) fn forget(&mut self, number: ConsumerNumber) {
        let Some(mut consumer) = self.consumers.remove(&number) else { return };
        if let Some(stream) = self.streams.get_mut(&consumer.definition.stream) {
            consumer.unlisten(stream);
            stream.consumers.remove(&number);
        }
        self.read_bytes -= consumer.read_bytes();
        if let Some(at_ms) = consumer.wake_ms {
            self.timers.remove(&(at_ms, number));
        }
        self.ready.remove(&number);
        self.happened(Happening::Ended { consumer: number });
    }
}

/// What is reported.
impl Hub {
    pub fn on_news(&mut self, shard: u16, news: StreamNews, now_ms: u64) {
        if shard >= self.settings.shards {
            return;
        }
        match news {
            StreamNews::Stored { stream: number, first, records } => {
                let Some(stream) = self.streams.get_mut(&number) else { return };
                let tail = &mut stream.shards[usize::from(shard)].tail;
                let before = tail.bytes();
                if tail.push(first, records).is_none() {
                    let detail = "records of the shard are missing: restart the broker";
                    return self.happened(Happening::Broken { stream: number, shard, detail });
                }
                self.memory += tail.bytes() - before;
                self.fresh.insert((number, shard));
                self.touched.insert(number);
            }
            StreamNews::Synced { stream: number, next } => {
                let Some(stream) = self.streams.get_mut(&number) else { return };
                let tail = &mut stream.shards[usize::from(shard)].tail;
                if tail.synced < next {
                    tail.synced = next;
                    self.touched.insert(number);
                }
            }
            StreamNews::NeedsSpace => self.move_all(shard),
            StreamNews::Done { order, result } => self.on_done(shard, order, result, now_ms),
        }
    }

    /// The disk has answered a write.
    pub fn on_file(
        &mut self,
        number: StreamNumber,
        id: StreamCommandId,
        result: Result<(), Fault>,
        now_ms: u64,
    ) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        let retry_ms = now_ms + self.settings.retry_ms;
        let is_stored = stream.on_file(id, result, retry_ms);
        self.touched.insert(number);
        let fault = stream.log.fault().map(|fault| fault.detail.clone());
        let was_failing = stream.is_failing;
        stream.is_failing |= fault.is_some();
        match fault {
            Some(fault) if !was_failing => {
                self.happened(Happening::WriteFault { stream: number, fault });
            }
            None if is_stored && std::mem::take(&mut stream.is_failing) => {
                self.happened(Happening::WriteResumed { stream: number });
            }
            _ => {}
        }
        if is_stored {
            self.trim(number, now_ms);
        }
    }

    /// The target of a consumer has answered a batch.
    pub fn on_answer(
        &mut self,
        number: ConsumerNumber,
        batch: BatchId,
        answer: Answer,
        now_ms: u64,
    ) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let finished = consumer.on_answer(batch, answer, now_ms, &self.settings);
        self.ready.insert(number);
        for finished in finished {
            self.report_undelivered(number, finished);
        }
    }

    /// The journal of a shard needs space: all that its streams have so far is moved into files.
    pub fn move_all(&mut self, shard: u16) {
        for (number, stream) in &mut self.streams {
            stream.move_all(shard);
            self.touched.insert(*number);
        }
    }
}
