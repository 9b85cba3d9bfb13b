//! Journals of shards, as lists of facts: what is committed is reported, what is synced survives.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use broker::streams::{
    ConsumerNumber, OrderRefusal, StoredRecord, StreamChange, StreamFound, StreamNews,
    StreamNumber, StreamOrder,
};
use storage::testing::Rng;

#[derive(Clone, Debug)]
pub(crate) enum Fact {
    Record { stream: StreamNumber, record: StoredRecord },
    Change(StreamChange, u64),
}

#[derive(Default)]
pub(crate) struct Journal {
    pub(crate) facts: Vec<Fact>,
    pub(crate) committed: usize,
    pub(crate) synced: usize,
    pub(crate) orders: VecDeque<StreamOrder>,
    /// Orders in the journal whose answer is due once they are synced.
    answers: VecDeque<(usize, u64)>,
    /// The facts that store records.
    places: BTreeMap<StreamNumber, Vec<usize>>,
}

/// What a journal has at a start.
#[derive(Default)]
pub(crate) struct Replayed {
    pub(crate) streams: BTreeMap<StreamNumber, StreamFound>,
    pub(crate) cursors: BTreeMap<ConsumerNumber, Vec<u8>>,
}

impl Fact {
    /// The record that it stores.
    pub(crate) fn record(&self) -> Option<(StreamNumber, StoredRecord)> {
        match self {
            Self::Record { stream, record } => Some((*stream, record.clone())),
            Self::Change(StreamChange::DeadLetter { stream, record, .. }, at_ms) => {
                let record = StoredRecord { at_ms: *at_ms, bytes: Arc::clone(record) };
                Some((*stream, record))
            }
            Self::Change(..) => None,
        }
    }
}

impl Journal {
    pub(crate) fn push(&mut self, fact: Fact) {
        if let Some((stream, _)) = fact.record() {
            self.places.entry(stream).or_default().push(self.facts.len());
        }
        self.facts.push(fact);
    }

    /// How many records of a stream are ahead of this fact.
    pub(crate) fn count(&self, stream: StreamNumber, end: usize) -> u64 {
        let places = self.places.get(&stream);
        places.map_or(0, |places| places.partition_point(|place| *place < end) as u64)
    }

    /// From an ordinal to ahead of a fact.
    pub(crate) fn records(
        &self,
        stream: StreamNumber,
        first: u64,
        end: usize,
    ) -> Vec<StoredRecord> {
        let Some(places) = self.places.get(&stream) else { return Vec::new() };
        let places = &places[first as usize..self.count(stream, end) as usize];
        places.iter().filter_map(|place| self.facts[*place].record()).map(|it| it.1).collect()
    }

    /// Takes the oldest order, or refuses it.
    pub(crate) fn take_order(&mut self, refuses: bool, now_ms: u64) -> Option<StreamNews> {
        let StreamOrder { id, change } = self.orders.pop_front()?;
        if refuses {
            return Some(StreamNews::Done { order: id, result: Err(OrderRefusal::TryAgain) });
        }
        self.push(Fact::Change(change, now_ms));
        self.answers.push_back((self.facts.len(), id));
        None
    }

    pub(crate) fn commit(&mut self) -> Vec<StreamNews> {
        let mut news = Vec::new();
        let streams = [StreamNumber(1), StreamNumber(2)];
        for stream in streams {
            let first = self.count(stream, self.committed);
            let records = self.records(stream, first, self.facts.len());
            if !records.is_empty() {
                news.push(StreamNews::Stored { stream, first, records });
            }
        }
        self.committed = self.facts.len();
        news
    }

    pub(crate) fn sync(&mut self) -> Vec<StreamNews> {
        self.synced = self.committed;
        let mut news = Vec::new();
        for stream in [StreamNumber(1), StreamNumber(2)] {
            let next = self.count(stream, self.synced);
            news.push(StreamNews::Synced { stream, next });
        }
        while let Some((_, order)) = self.answers.pop_front_if(|(end, _)| *end <= self.synced) {
            news.push(StreamNews::Done { order, result: Ok(()) });
        }
        news
    }

    /// A loss of power takes what is not synced, or a part of it. The end of a process takes what
    /// is not committed.
    pub(crate) fn crash(&mut self, loses_power: bool, rng: &mut Rng) {
        let (least, most) = match loses_power {
            true => (self.synced, self.committed),
            false => (self.committed, self.facts.len()),
        };
        let kept = least + rng.below((most - least) as u64 + 1) as usize;
        self.facts.truncate(kept);
        self.places.values_mut().for_each(|places| places.retain(|place| *place < kept));
        (self.committed, self.synced) = (kept, kept);
        self.orders.clear();
        self.answers.clear();
    }

    pub(crate) fn replay(&self) -> Replayed {
        let mut found = Replayed::default();
        for fact in &self.facts {
            if let Some((stream, _)) = fact.record() {
                found.streams.entry(stream).or_default().next += 1;
            }
            let Fact::Change(change, _) = fact else { continue };
            match change.clone() {
                StreamChange::Archived { stream, next, file, end } => {
                    let stream = found.streams.entry(stream).or_default();
                    stream.archived = stream.archived.max(next);
                    let reach = stream.reach.entry(file).or_default();
                    *reach = end.max(*reach);
                }
                StreamChange::Dropped { stream, first_file } => {
                    let stream = found.streams.entry(stream).or_default();
                    stream.reach.retain(|file, _| *file >= first_file);
                    stream.first_file = stream.first_file.max(first_file);
                }
                StreamChange::Cursor { consumer, cursor, .. }
                | StreamChange::DeadLetter { consumer, cursor, .. } => {
                    found.cursors.insert(consumer, cursor);
                }
                StreamChange::EndConsumer { consumer } => {
                    found.cursors.remove(&consumer);
                }
                StreamChange::Set(_) => {}
            }
        }
        found
    }
}
