//! The front of a stream: new records, read from memory once for all consumers that are there.
//!
//! A record is looked up in an index of their filters. A consumer whose filter does not match has
//! no work with it: what the front has passed is counted later, in one piece.

use std::collections::{BTreeMap, BTreeSet};

use broker::journal::StreamRecord;
use broker::streams::{ConsumerNumber, StoredRecord};
use routing::dispatch::RecordId;
use routing::{Event, Outcome};
use topic::Matches;

use crate::consumer::{Consumer, Held, Read};
use crate::effect::{Effect, Happening};
use crate::event_id::{EventId, order_hash};
use crate::message::{Message, topic_of};
use crate::settings::HubSettings;
use crate::stream::Stream;

/// The consumers of a stream, and what they share.
pub(crate) struct Front<'a> {
    pub(crate) stream: &'a mut Stream,
    pub(crate) consumers: &'a mut BTreeMap<ConsumerNumber, Consumer>,
    pub(crate) matches: &'a mut Matches,
    /// Consumers that have something to do now.
    pub(crate) ready: &'a mut BTreeSet<ConsumerNumber>,
    pub(crate) settings: &'a HubSettings,
    pub(crate) now_ms: u64,
    pub(crate) out: &'a mut Vec<Effect>,
}

impl Front<'_> {
    /// Passes a bounded number of records of a shard. True: there are more.
    pub(crate) fn pass(&mut self, shard: u16) -> bool {
        for _ in 0..self.settings.turn_records {
            let tail = &self.stream.shards[usize::from(shard)].tail;
            let ordinal = tail.front;
            let Some(record) = tail.get(ordinal).cloned() else { return false };
            self.pass_record(RecordId { shard, ordinal }, &record);
            self.stream.shards[usize::from(shard)].tail.front = ordinal + 1;
        }
        true
    }

    fn pass_record(&mut self, at: RecordId, record: &StoredRecord) {
        let Ok(stored) = StreamRecord::decode(&record.bytes) else {
            return self.drop_damaged(at);
        };
        self.stream.index.matches(topic_of(&stored).as_bytes(), self.matches);
        if self.matches.is_empty() {
            return;
        }
        let subscribers = self.matches.subscriptions.iter();
        let mut takers: Vec<_> = subscribers.map(|it| ConsumerNumber(it.subscriber)).collect();
        takers.sort_unstable();
        takers.retain(|taker| self.reaches(*taker, at));
        if takers.is_empty() {
            return;
        }
        let Ok(message) = Message::unpack(stored) else { return self.drop_damaged(at) };
        let id = EventId::new(message.life(), self.stream.definition.number, at);
        let held = Held::new(record.at_ms, record.bytes.clone());
        // Consumers of a stream are of one namespace, so one event is for all of them.
        let mut open = &takers[..];
        while let Some(first) = open.first() {
            let namespace = self.consumers[first].definition.namespace.clone();
            let ahead_ms = self.settings.wall_ahead_ms;
            let record = message.as_record(id.as_str(), &namespace, ahead_ms);
            let event = Event::new(&record);
            let order_hash = order_hash(record.client_id, record.topic);
            let expires_at_ms = message.expires_at_ms();
            let read = Read { at, held: &held, event: &event, expires_at_ms, order_hash };
            let is_own = |it: &ConsumerNumber| self.consumers[it].definition.namespace == namespace;
            let same = open.iter().take_while(|it| is_own(it)).count();
            for taker in &open[..same] {
                if let Some(consumer) = self.consumers.get_mut(taker) {
                    consumer.take(&read, self.now_ms, self.settings);
                    self.ready.insert(*taker);
                }
            }
            open = &open[same..];
        }
    }

    /// Whether a consumer is at the front, and takes the record now. One that may not read leaves
    /// the front: it stops no other.
    fn reaches(&mut self, number: ConsumerNumber, at: RecordId) -> bool {
        let Some(consumer) = self.consumers.get_mut(&number) else { return false };
        let progress = &consumer.shards[usize::from(at.shard)];
        if !progress.is_at_front || progress.read > at.ordinal {
            return false;
        }
        consumer.settle(at.shard, at.ordinal, self.now_ms, self.settings);
        let may_read = consumer.may_read(at.shard);
        let progress = &mut consumer.shards[usize::from(at.shard)];
        if progress.cursor.has_outcome(at.ordinal) {
            progress.read = at.ordinal + 1;
            return false;
        }
        if !may_read {
            progress.is_at_front = false;
            self.ready.insert(number);
        }
        may_read
    }

    /// No consumer at the front can have the record.
    fn drop_damaged(&mut self, at: RecordId) {
        let RecordId { shard, ordinal } = at;
        let (now_ms, settings) = (self.now_ms, self.settings);
        for number in &self.stream.consumers {
            let Some(consumer) = self.consumers.get_mut(number) else { continue };
            let progress = &consumer.shards[usize::from(shard)];
            if !progress.is_at_front || progress.read > ordinal {
                continue;
            }
            consumer.settle(shard, ordinal, now_ms, settings);
            let progress = &mut consumer.shards[usize::from(shard)];
            progress.read = ordinal + 1;
            let outcome = Outcome::DroppedDamaged;
            let range = (ordinal, ordinal + 1);
            let count = progress.note_range(range, outcome, now_ms, settings);
            consumer.counters.count(outcome, count);
            self.ready.insert(*number);
            let ordinals = ordinal..ordinal + 1;
            let consumer = *number;
            let dropped = Happening::Dropped { consumer, shard, ordinals, count, outcome };
            self.out.push(Effect::Happened(dropped));
        }
    }
}
