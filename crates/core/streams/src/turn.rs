//! A consumer's turn: it reads by itself until it is at the front, or may not go on.

use std::sync::Arc;

use broker::journal::StreamRecord;
use routing::dispatch::RecordId;
use routing::{Cursor, Event, Outcome};
use storage::stream::Block;

use crate::consumer::{Consumer, Goal, Held, Read};
use crate::effect::{Effect, Happening};
use crate::event_id::{EventId, order_hash};
use crate::message::{Message, topic_of};
use crate::reader::{Found, Source};
use crate::settings::{Flaw, HubSettings};

/// What a turn is about.
pub(crate) struct Turn<'a> {
    pub(crate) source: Source<'a>,
    pub(crate) settings: &'a HubSettings,
    pub(crate) now_ms: u64,
}

impl Turn<'_> {
    /// Reads a bounded number of records of each shard. True: there is more to read.
    pub(crate) fn read(&self, consumer: &mut Consumer, out: &mut Vec<Effect>) -> bool {
        if consumer.is_starting {
            return self.find_starts(consumer);
        }
        let count = consumer.shards.len();
        let begin = consumer.first;
        consumer.first = (begin + 1) % count.max(1);
        let mut has_more = false;
        for shard in (begin..count).chain(0..begin) {
            if !consumer.shards[shard].is_at_front {
                has_more |= self.read_shard(consumer, shard as u16, out);
            }
        }
        has_more
    }

    fn read_shard(&self, consumer: &mut Consumer, shard: u16, out: &mut Vec<Effect>) -> bool {
        let tail = &self.source.stream.shards[usize::from(shard)].tail;
        let mut records_left = self.settings.turn_records;
        let mut may_find = true;
        loop {
            if !consumer.may_read(shard) {
                consumer.shards[usize::from(shard)].reader.drop_block();
                return false;
            }
            let progress = &mut consumer.shards[usize::from(shard)];
            progress.read = progress.cursor.next_open(progress.read);
            if progress.read >= tail.front {
                progress.is_at_front = true;
                progress.reader.reset();
                return false;
            }
            if records_left == 0 {
                return true;
            }
            if let Some(record) = tail.get(progress.read) {
                let held = Held::new(record.at_ms, Arc::clone(&record.bytes));
                let at = (shard, progress.read);
                records_left -= 1;
                self.look_at(consumer, at, held, out);
                continue;
            }
            let next = progress.read;
            if let Some(block) = progress.reader.block.take_if(|block| block.header.next() > next) {
                self.read_block(consumer, shard, block, &mut records_left, out);
                continue;
            }
            if progress.reader.fault.as_ref().is_some_and(|(_, at_ms)| *at_ms > self.now_ms) {
                return false;
            }
            if !std::mem::take(&mut may_find) {
                return true;
            }
            if let Some(has_more) = self.find(consumer, shard, out) {
                return has_more;
            }
        }
    }

    /// Finds the next block. Some: nothing more is to be done in this turn.
    fn find(&self, consumer: &mut Consumer, shard: u16, out: &mut Vec<Effect>) -> Option<bool> {
        let progress = &mut consumer.shards[usize::from(shard)];
        let found = progress.reader.find(&self.source, shard, progress.read);
        progress.reader.fault = None;
        match found {
            Err(error) => {
                let retry_ms = self.now_ms + self.settings.retry_ms;
                progress.reader.fault = Some((error.to_string(), retry_ms));
                return Some(false);
            }
            Ok(Found::Block(block)) => progress.reader.block = Some(block),
            Ok(Found::Gone(next)) => {
                self.drop_below(consumer, (shard, next), Outcome::DroppedByRetention, out);
            }
            Ok(Found::Damaged(next)) => {
                self.drop_below(consumer, (shard, next), Outcome::DroppedDamaged, out);
            }
            // Its journal has not reported it yet.
            Ok(Found::Ahead) => return Some(false),
            Ok(Found::More) => return Some(true),
        }
        None
    }

    fn read_block(
        &self,
        consumer: &mut Consumer,
        shard: u16,
        block: Block,
        records_left: &mut usize,
        out: &mut Vec<Effect>,
    ) {
        for record in block.records() {
            let progress = &mut consumer.shards[usize::from(shard)];
            progress.read = progress.cursor.next_open(progress.read);
            if record.ordinal < progress.read {
                continue;
            }
            if *records_left == 0 || !consumer.may_read(shard) {
                break;
            }
            *records_left -= 1;
            let held = Held::new(record.at_ms, Arc::new(record.bytes.to_vec()));
            self.look_at(consumer, (shard, record.ordinal), held, out);
        }
        consumer.shards[usize::from(shard)].reader.block = Some(block);
    }

    fn look_at(
        &self,
        consumer: &mut Consumer,
        (shard, ordinal): (u16, u64),
        held: Held,
        out: &mut Vec<Effect>,
    ) {
        let (now_ms, settings) = (self.now_ms, self.settings);
        let stored = StreamRecord::decode(&held.bytes);
        if let Ok(stored) = &stored
            && !topic::matches(consumer.rule().filter(), topic_of(stored))
        {
            consumer.shards[usize::from(shard)].last_read_ms = Some(held.at_ms);
            consumer.settle(shard, ordinal + 1, now_ms, settings);
            return;
        }
        let Ok(message) = stored.and_then(Message::unpack) else {
            let damaged = Outcome::DroppedDamaged;
            return self.drop_below(consumer, (shard, ordinal + 1), damaged, out);
        };
        let at = RecordId { shard, ordinal };
        let id = EventId::new(message.life(), self.source.stream.definition.number, at);
        let namespace = consumer.definition.namespace.clone();
        let record = message.as_record(id.as_str(), &namespace, settings.wall_ahead_ms);
        let event = Event::new(&record);
        let order_hash = order_hash(record.client_id, record.topic);
        let expires_at_ms = message.expires_at_ms();
        let read = Read { at, held: &held, event: &event, expires_at_ms, order_hash };
        consumer.take(&read, now_ms, settings);
    }

    /// The records of a shard ahead of `next` that were not read cannot be.
    pub(crate) fn drop_below(
        &self,
        consumer: &mut Consumer,
        (shard, next): (u16, u64),
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        let progress = &mut consumer.shards[usize::from(shard)];
        let first = progress.read;
        if first >= next {
            return;
        }
        progress.read = next;
        if self.settings.has(Flaw::DropUncounted) {
            return;
        }
        let count = progress.note_range((first, next), outcome, self.now_ms, self.settings);
        consumer.counters.count(outcome, count);
        if count > 0 {
            let consumer = consumer.definition.number;
            let ordinals = first..next;
            let dropped = Happening::Dropped { consumer, shard, ordinals, count, outcome };
            out.push(Effect::Happened(dropped));
        }
    }

    /// Finds where a seek by time begins. True: it is not found yet.
    fn find_starts(&self, consumer: &mut Consumer) -> bool {
        let mut has_more = false;
        for (progress, shard) in consumer.shards.iter_mut().zip(0..) {
            let Some(Goal::Time { run, at_ms }) = progress.goal else { continue };
            if progress.reader.fault.as_ref().is_some_and(|(_, at_ms)| *at_ms > self.now_ms) {
                continue;
            }
            let found = self.source.at_time(&mut progress.reader, shard, at_ms);
            progress.reader.fault = None;
            match found {
                Ok(None) => has_more = true,
                Ok(Some(start)) => {
                    progress.reader.reset();
                    progress.goal = Some(Goal::Cursor(Cursor::new(run, start)));
                }
                Err(error) => {
                    let retry_ms = self.now_ms + self.settings.retry_ms;
                    progress.reader.fault = Some((error.to_string(), retry_ms));
                }
            }
        }
        has_more
    }
}
