//! Targets with their own mind.

use std::collections::BTreeMap;

use routing::dispatch::{Answer, BatchId, RecordAnswer, RecordId};
use storage::testing::Rng;
use streams::{EventId, Outgoing};

use super::message::{Fate, Message};

/// A batch under way.
pub(crate) struct Batch {
    pub(crate) id: BatchId,
    /// The run of each record's shard when it was sent.
    pub(crate) records: Vec<Sent>,
    is_alone: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) id: RecordId,
    pub(crate) run: u64,
    pub(crate) event_id: EventId,
    pub(crate) message: Message,
}

/// What a target has accepted in a run of a shard, in its order.
pub(crate) type Accepted = BTreeMap<(u16, u64), Vec<Sent>>;

#[derive(Default)]
pub(crate) struct Target {
    pub(crate) batches: Vec<Batch>,
    pub(crate) accepted: Accepted,
    /// Events that it did not accept by themselves, and how often: they may be dead letters.
    pub(crate) failed: BTreeMap<EventId, u32>,
}

impl Target {
    pub(crate) fn send(
        &mut self,
        id: BatchId,
        is_alone: bool,
        records: Vec<Outgoing>,
        run: impl Fn(u16) -> u64,
    ) {
        let records = records.into_iter().map(|it| Sent {
            id: it.id,
            run: run(it.id.shard),
            event_id: it.event_id,
            message: Message::parse(&it.output.body.expect("raw has a body")),
        });
        self.batches.push(Batch { id, is_alone, records: records.collect() });
    }

    fn accept(&mut self, sent: &Sent) {
        self.accepted.entry((sent.id.shard, sent.run)).or_default().push(sent.clone());
    }

    /// Answers a batch. `is_calm`: it decides about all records.
    pub(crate) fn answer(
        &mut self,
        rng: &mut Rng,
        is_calm: bool,
        now_ms: u64,
    ) -> Option<(BatchId, Answer)> {
        if self.batches.is_empty() {
            return None;
        }
        let place = rng.below(self.batches.len() as u64) as usize;
        let batch = self.batches.remove(place);
        let is_good = |it: &Sent| it.message.fate == Fate::Good;
        let fate = if is_calm { 99 } else { rng.below(100) };
        let answer = match fate {
            0..5 => Answer::Unavailable("away".to_owned()),
            5..8 => Answer::Busy { until_ms: now_ms + 40 },
            8..16 => Answer::Unknown("500".to_owned()),
            16..24 => {
                // It has them, and the answer is lost.
                let all_good = batch.records.iter().all(is_good);
                batch.records.iter().filter(|_| all_good).for_each(|sent| self.accept(sent));
                Answer::Unknown("timeout".to_owned())
            }
            _ => self.decide(&batch, fate % 2 == 0, is_calm),
        };
        let is_bad = match &answer {
            Answer::Records(answers) => !answers.contains(&RecordAnswer::Accepted),
            Answer::Refused(_) | Answer::Unknown(_) => true,
            Answer::Busy { .. } | Answer::Unavailable(_) => false,
        };
        if let ([sent], true) = (&batch.records[..], is_bad) {
            *self.failed.entry(sent.event_id).or_default() += 1;
        }
        Some((batch.id, answer))
    }

    fn decide(&mut self, batch: &Batch, as_whole: bool, is_calm: bool) -> Answer {
        let refused = |it: &Sent| match it.message.fate {
            Fate::Good => false,
            Fate::Refused => true,
            Fate::Failing => is_calm,
        };
        let is_single = batch.is_alone && batch.records.len() == 1;
        if batch.records.iter().any(refused) && (as_whole || is_calm) && !is_single {
            return Answer::Refused("one of them".to_owned());
        }
        let mut is_stopped = false;
        let mut answers = Vec::new();
        for sent in &batch.records {
            // A record that fails stops those behind it.
            is_stopped |= !refused(sent) && sent.message.fate == Fate::Failing;
            answers.push(match () {
                () if is_stopped => RecordAnswer::Unknown("500".to_owned()),
                () if refused(sent) => RecordAnswer::Refused("not allowed".to_owned()),
                () => {
                    self.accept(sent);
                    RecordAnswer::Accepted
                }
            });
        }
        Answer::Records(answers)
    }

    /// The broker is gone: what is under way arrives or not, and no answer does.
    pub(crate) fn lose_connections(&mut self, rng: &mut Rng) {
        for batch in std::mem::take(&mut self.batches) {
            let arrives = rng.chance(50);
            let is_good = batch.records.iter().all(|it| it.message.fate == Fate::Good);
            batch.records.iter().filter(|_| arrives && is_good).for_each(|sent| self.accept(sent));
        }
    }
}
