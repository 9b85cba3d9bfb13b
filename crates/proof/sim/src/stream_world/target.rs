//! The targets of consumers, as models: they accept, refuse, fall silent, go away, and answer what
//! never arrives.

use std::collections::VecDeque;

use routing::dispatch::{Answer, BatchId, RecordAnswer, RecordId};
use streams::Outgoing;

use crate::random::Random;

/// A batch on its way.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) id: BatchId,
    /// Of each shard, the run that the consumer was in when it was sent.
    pub(super) runs: Vec<u64>,
    pub(super) records: Vec<Outgoing>,
    is_alone: bool,
    /// It is at the target, or its answer is on the way back.
    has_left: bool,
    answer: Option<Answer>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Mood {
    #[default]
    Well,
    /// Errors that are on no list, some of them after it has taken the records.
    Confused,
    Busy,
    Away,
    /// Nothing comes back for a while.
    Silent,
}

/// What has become of a batch at the target.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The records that it has accepted, whatever it answers.
    pub(super) accepted: Vec<RecordId>,
    /// Those of which the answer says nothing.
    pub(super) unknown: Vec<RecordId>,
    pub(super) runs: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct TargetModel {
    pub(super) mood: Mood,
    /// One of so many records is refused for its content. 0: none.
    refused_of: u64,
    batches: VecDeque<Batch>,
}

impl TargetModel {
    pub(super) fn new(refused_of: u64) -> Self {
        Self { refused_of, ..Self::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn send(
        &mut self,
        (id, is_alone): (BatchId, bool),
        records: Vec<Outgoing>,
        runs: Vec<u64>,
    ) {
        let (has_left, answer) = (false, None);
        self.batches.push_back(Batch { id, runs, records, is_alone, has_left, answer });
    }

    /// Another mood than before.
    pub(super) fn change(&mut self, random: &mut Random) {
        self.mood = match random.below(8) {
            0..=3 => Mood::Well,
            4 => Mood::Confused,
            5 => Mood::Busy,
            6 => Mood::Away,
            _ => Mood::Silent,
        };
    }

    /// One of the batches reaches the target. None: none may.
    pub(super) fn take_one(&mut self, now_ms: u64, random: &mut Random) -> Option<Taken> {
        if self.mood == Mood::Silent {
            return None;
        }
        let is_under_way = self.batches.iter().any(|batch| batch.has_left);
        let has_alone = self.batches.iter().any(|batch| batch.has_left && batch.is_alone);
        let may_leave =
            |batch: &Batch| !(batch.has_left || has_alone || batch.is_alone && is_under_way);
        let waiting: Vec<usize> =
            (0..self.batches.len()).filter(|place| may_leave(&self.batches[*place])).collect();
        if waiting.is_empty() {
            return None;
        }
        let place = waiting[random.below(waiting.len())];
        let (mood, refused_of) = (self.mood, self.refused_of);
        let batch = &mut self.batches[place];
        batch.has_left = true;
        let (answer, taken) = batch.decide(mood, refused_of, now_ms, random);
        batch.answer = Some(answer);
        Some(taken)
    }

    /// The answer to one of the batches arrives.
    pub(super) fn answer_one(&mut self, random: &mut Random) -> Option<(BatchId, Answer)> {
        let answered: Vec<usize> =
            (0..self.batches.len()).filter(|it| self.batches[*it].answer.is_some()).collect();
        if answered.is_empty() {
            return None;
        }
        let place = answered[random.below(answered.len())];
        let batch = self.batches.remove(place)?;
        Some((batch.id, batch.answer?))
    }

    /// The process of the sender ends. What it has sent may still arrive: now, so that nothing of
    /// the next process is ahead of it.
    pub(super) fn lose_sender(&mut self, now_ms: u64, random: &mut Random) -> Vec<Taken> {
        let mut taken = Vec::new();
        for batch in self.batches.drain(..) {
            if !batch.has_left && self.mood == Mood::Well && random.chance(50) {
                taken.push(batch.decide(self.mood, self.refused_of, now_ms, random).1);
            }
        }
        taken
    }

    /// Does it refuse the record for its content?
    fn refuses(refused_of: u64, record: &Outgoing) -> bool {
        let body = record.output.body.as_deref().unwrap_or_default();
        is_refused(refused_of, body)
    }
}

/// Is a payload of those that a target refuses?
pub(crate) fn is_refused(refused_of: u64, payload: &[u8]) -> bool {
    let sum: u64 = payload.iter().take(8).map(|byte| u64::from(*byte)).sum();
    refused_of > 0 && sum.is_multiple_of(refused_of)
}

impl Batch {
    fn decide(
        &self,
        mood: Mood,
        refused_of: u64,
        now_ms: u64,
        random: &mut Random,
    ) -> (Answer, Taken) {
        let mut taken = Taken { runs: self.runs.clone(), ..Taken::default() };
        let answer = match mood {
            Mood::Away => Answer::Unavailable("away".into()),
            Mood::Busy => Answer::Busy { until_ms: now_ms + random.below(2000) as u64 },
            Mood::Confused => self.confuse(refused_of, random, &mut taken),
            Mood::Well | Mood::Silent => self.judge(refused_of, random, &mut taken),
        };
        (answer, taken)
    }

    fn judge(&self, refused_of: u64, random: &mut Random, taken: &mut Taken) -> Answer {
        let refuses = |record: &Outgoing| TargetModel::refuses(refused_of, record);
        // Some targets answer for a batch as a whole.
        if self.records.iter().any(refuses) && random.chance(50) {
            return Answer::Refused("content".into());
        }
        let answers = self.records.iter().map(|record| match refuses(record) {
            true => RecordAnswer::Refused("content".into()),
            false => {
                taken.accepted.push(record.id);
                RecordAnswer::Accepted
            }
        });
        Answer::Records(answers.collect())
    }

    /// It takes some from the first on, and of the others nobody hears anything.
    fn confuse(&self, refused_of: u64, random: &mut Random, taken: &mut Taken) -> Answer {
        let len = self.records.len();
        let (arrived, answered) = (random.below(len + 1), random.below(len + 1));
        let mut answers = Vec::new();
        for (place, record) in self.records.iter().enumerate() {
            let is_refused = TargetModel::refuses(refused_of, record);
            if place < arrived && !is_refused {
                taken.accepted.push(record.id);
            }
            answers.push(match place < arrived.min(answered) {
                true if is_refused => RecordAnswer::Refused("content".into()),
                true => RecordAnswer::Accepted,
                false => {
                    taken.unknown.push(record.id);
                    RecordAnswer::Unknown("reset".into())
                }
            });
        }
        match answered == 0 || random.chance(30) {
            true => {
                taken.unknown = self.records.iter().map(|record| record.id).collect();
                Answer::Unknown("no answer".into())
            }
            false => Answer::Records(answers),
        }
    }
}
