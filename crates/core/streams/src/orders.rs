//! What shards are ordered to write into their journals, until they have answered.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::journal::StreamRecord;
use broker::streams::{
    ConsumerNumber, OrderRefusal, StreamChange, StreamNumber, StreamOrder, StreamSet,
};
use routing::dispatch::DeadLetter;

use crate::consumer::{DeadLetters, FactEnd, Finished};
use crate::effect::{Effect, Happening};
use crate::event_id::EventId;
use crate::hub::Hub;
use crate::message::dead_record;

/// Who waits for the answer to an order. Limit: one for each shard and stream, and one for each
/// shard and consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    Stream(StreamNumber),
    Consumer(ConsumerNumber),
    /// A consumer that only journals know of.
    Unknown(ConsumerNumber),
    Streams,
}

/// When it is ordered. None: it is under way.
type DueMs = Option<u64>;

/// Orders under way, and those that are not of a stream or a consumer.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    next: u64,
    under_way: BTreeMap<u64, (u16, Asker)>,
    /// The streams that shards are to have.
    set: Option<(Arc<StreamSet>, BTreeMap<u16, DueMs>)>,
    /// Consumers to be forgotten.
    unknown: BTreeMap<(ConsumerNumber, u16), DueMs>,
}

impl Orders {
    pub(crate) fn give(
        &mut self,
        shard: u16,
        asker: Asker,
        change: StreamChange,
        out: &mut Vec<Effect>,
    ) {
        let id = self.next;
        self.next += 1;
        self.under_way.insert(id, (shard, asker));
        out.push(Effect::Order { shard, order: StreamOrder { id, change } });
    }

    /// When an order is due that is not of a stream or a consumer.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let set = self.set.iter().flat_map(|(_, shards)| shards.values());
        set.chain(self.unknown.values()).flatten().min().copied()
    }

    pub(crate) fn work(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        let is_due = |at_ms: &mut u64| *at_ms <= now_ms;
        let mut due = Vec::new();
        if let Some((set, shards)) = &mut self.set {
            for (shard, at_ms) in shards {
                if at_ms.take_if(is_due).is_some() {
                    due.push((*shard, Asker::Streams, StreamChange::Set(Arc::clone(set))));
                }
            }
        }
        for ((consumer, shard), at_ms) in &mut self.unknown {
            if at_ms.take_if(is_due).is_some() {
                let consumer = *consumer;
                let change = StreamChange::EndConsumer { consumer };
                due.push((*shard, Asker::Unknown(consumer), change));
            }
        }
        for (shard, asker, change) in due {
            self.give(shard, asker, change, out);
        }
    }
}

impl Hub {
    /// All shards are to have these streams. Confirmed by [`Happening::StreamsSet`].
    pub fn set_streams(&mut self, set: Arc<StreamSet>) {
        let shards = (0..self.settings.shards).map(|shard| (shard, Some(0)));
        self.orders.set = Some((set, shards.collect()));
    }

    /// A journal has a cursor of a consumer that is not defined any more: it is to be forgotten.
    pub fn forget_consumer(&mut self, shard: u16, consumer: ConsumerNumber) {
        self.orders.unknown.insert((consumer, shard), Some(0));
    }

    pub(crate) fn on_done(
        &mut self,
        shard: u16,
        order: u64,
        result: Result<(), OrderRefusal>,
        now_ms: u64,
    ) {
        let Some((known, asker)) = self.orders.under_way.remove(&order) else { return };
        debug_assert_eq!(known, shard, "a shard answers its own orders");
        let retry_ms = now_ms + self.settings.retry_ms;
        match asker {
            Asker::Stream(number) => {
                if let Some(stream) = self.streams.get_mut(&number) {
                    stream.on_done(shard, result, retry_ms);
                    self.touched.insert(number);
                }
            }
            Asker::Consumer(number) => self.on_fact(shard, number, result, now_ms),
            Asker::Unknown(number) => {
                let place = (number, shard);
                match result {
                    Ok(()) => drop(self.orders.unknown.remove(&place)),
                    Err(_) => drop(self.orders.unknown.insert(place, Some(retry_ms))),
                }
            }
            Asker::Streams => self.on_set(shard, result, retry_ms),
        }
    }

    fn on_set(&mut self, shard: u16, result: Result<(), OrderRefusal>, retry_ms: u64) {
        let Some((_, shards)) = &mut self.orders.set else { return };
        // A later set was ordered meanwhile if it is not under way.
        if shards.get(&shard) != Some(&None) {
            return;
        }
        match result {
            Ok(()) => drop(shards.remove(&shard)),
            Err(_) => drop(shards.insert(shard, Some(retry_ms))),
        }
        if shards.is_empty() {
            self.orders.set = None;
            self.happened(Happening::StreamsSet);
        }
    }

    fn on_fact(
        &mut self,
        shard: u16,
        number: ConsumerNumber,
        result: Result<(), OrderRefusal>,
        now_ms: u64,
    ) {
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let end = consumer.on_fact(shard, result, now_ms, &self.settings);
        self.ready.insert(number);
        // Files may wait for outcomes to be committed.
        self.touched.insert(consumer.definition.stream);
        match end {
            FactEnd::Nothing => {}
            FactEnd::Started => {
                let run = consumer.run();
                self.happened(Happening::Started { consumer: number, run });
            }
            FactEnd::Dead(finished) => self.report_undelivered(number, finished),
            FactEnd::Ended => self.forget(number),
        }
    }

    pub(crate) fn report_undelivered(&mut self, consumer: ConsumerNumber, finished: Finished) {
        let Finished { dead, stream } = finished;
        let (record, reason, attempts, answer) = (dead.id, dead.reason, dead.attempts, dead.answer);
        let undelivered =
            Happening::Undelivered { consumer, record, stream, reason, attempts, answer };
        self.happened(undelivered);
    }

    /// Orders what a consumer wants its journals to know.
    pub(crate) fn order_facts(&mut self, number: ConsumerNumber, now_ms: u64) {
        let Some(consumer) = self.consumers.get(&number) else { return };
        let is_full = consumer.dead_letter().is_some_and(|stream| self.is_full(stream));
        let Some(consumer) = self.consumers.get_mut(&number) else { return };
        let (name, stream) = (consumer.definition.name.clone(), consumer.definition.stream);
        let settings = &self.settings;
        let record = |dead: &DeadLetter, bytes: &[u8]| {
            let own_life = StreamRecord::decode(bytes).map_or(0, |stored| stored.life);
            let id = EventId::new(own_life, stream, dead.id);
            // It was read as a record before.
            dead_record(bytes, (&name, id.as_str()), dead, settings)
                .unwrap_or_else(|_| bytes.to_vec())
        };
        let dead_letters = DeadLetters { is_full, record };
        for shard in 0..settings.shards {
            let change = consumer.next_fact(shard, now_ms, settings, &dead_letters);
            if let Some(change) = change {
                self.orders.give(shard, Asker::Consumer(number), change, &mut self.out);
            }
        }
    }
}
