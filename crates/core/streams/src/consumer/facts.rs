//! What the journals have of a consumer: its cursors and its dead letters.
//!
//! One fact of a consumer is under way to a shard at a time, so that a cursor never goes back
//! behind a dead letter.

use std::sync::Arc;

use broker::Durability;
use broker::streams::{ConsumerNumber, OrderRefusal, StreamChange, StreamNumber};
use routing::dispatch::DeadLetter;
use routing::{Cursor, Outcome};

use super::Consumer;
use super::progress::{Goal, Progress};
use crate::settings::{Flaw, HubSettings};

/// A fact under way.
#[derive(Debug)]
pub(crate) struct Fact {
    floor: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Cursor,
    /// The first cursor of this run.
    NewRun(u64),
    DeadLetter {
        run: u64,
        dead: DeadLetter,
    },
    End,
}

/// The stream of dead letters of a consumer.
pub(crate) struct DeadLetters<F> {
    /// It rejects records at present.
    pub(crate) is_full: bool,
    /// The record for it.
    pub(crate) record: F,
}

/// What follows from the answer to a fact.
#[derive(Debug)]
pub(crate) enum FactEnd {
    Nothing,
    /// All shards have the run.
    Started,
    /// All shards have forgotten it.
    Ended,
    /// The record is a dead letter now.
    Dead(Finished),
}

/// A record that was not delivered.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) dead: DeadLetter,
    pub(crate) stream: Option<StreamNumber>,
}

impl Consumer {
    /// The next fact for a shard.
    pub(crate) fn next_fact(
        &mut self,
        shard: u16,
        now_ms: u64,
        settings: &HubSettings,
        dead_letters: &DeadLetters<impl Fn(&DeadLetter, &[u8]) -> Vec<u8>>,
    ) -> Option<StreamChange> {
        let consumer = self.definition.number;
        let is_over = self.is_over(now_ms);
        let dead_letter = self.definition.dead_letter;
        if self.shards[usize::from(shard)].fact.is_some() {
            return None;
        }
        if dead_letter.is_none() {
            self.discard_dead(shard, now_ms, settings);
        }
        let progress = &mut self.shards[usize::from(shard)];
        if progress.is_ended {
            return None;
        }
        if is_over {
            let may_end = now_ms >= progress.not_before_ms;
            return may_end.then(|| progress.end(consumer));
        }
        if let Some(goal) = &progress.goal {
            let Goal::Cursor(cursor) = goal else { return None };
            let (cursor, kind) = (cursor.clone(), Kind::NewRun(cursor.run()));
            // No loss of power undoes a run on some shards only: all wait for the sync ahead of
            // its first record.
            let level = match settings.has(Flaw::RunUnsynced) {
                true => Durability::Disk,
                false => Durability::Fsync,
            };
            return (now_ms >= progress.not_before_ms)
                .then(|| progress.order(consumer, &cursor, kind, level));
        }
        if dead_letters.is_full && !progress.dead.is_empty() {
            progress.dead_refused = Some(now_ms + settings.retry_ms);
        }
        if let Some(stream) = dead_letter
            && progress.dead_refused.is_none_or(|at_ms| at_ms <= now_ms)
            && let Some(change) = progress.next_dead_letter(consumer, stream, &dead_letters.record)
        {
            if settings.has(Flaw::DeadLetterLost)
                && let StreamChange::DeadLetter { consumer, cursor, .. } = change
            {
                let level = Durability::Disk;
                return Some(StreamChange::Cursor { consumer, cursor, level });
            }
            return Some(change);
        }
        let is_due = progress.due_ms.is_some_and(|at_ms| at_ms <= now_ms);
        if !is_due || now_ms < progress.not_before_ms {
            return None;
        }
        let cursor = progress.flawed(settings).unwrap_or_else(|| progress.cursor.clone());
        Some(progress.order(consumer, &cursor, Kind::Cursor, Durability::Disk))
    }

    /// Removed, and nothing more is awaited.
    fn is_over(&self, now_ms: u64) -> bool {
        let awaits = self.dispatch.under_way() > 0
            || self.shards.iter().any(|progress| !progress.dead.is_empty());
        self.ending_ms.is_some_and(|at_ms| at_ms <= now_ms || !awaits)
    }

    /// The journal of a shard has answered.
    pub(crate) fn on_fact(
        &mut self,
        shard: u16,
        result: Result<(), OrderRefusal>,
        now_ms: u64,
        settings: &HubSettings,
    ) -> FactEnd {
        let progress = &mut self.shards[usize::from(shard)];
        let Some(fact) = progress.fact.take() else { return FactEnd::Nothing };
        let in_fact_ms = progress.in_fact_ms.take();
        let refused = result.is_err();
        if refused {
            let oldest_ms = in_fact_ms.into_iter().chain(progress.uncommitted_ms).min();
            progress.uncommitted_ms = oldest_ms;
            progress.due_ms = oldest_ms.map(|_| now_ms).or(progress.due_ms);
        } else if !matches!(fact.kind, Kind::NewRun(_) | Kind::End) {
            progress.committed_floor = fact.floor;
        }
        let retry_ms = now_ms + settings.retry_ms;
        match fact.kind {
            Kind::DeadLetter { run, dead } => {
                return self.on_dead_letter(shard, (run, dead), result, now_ms, settings);
            }
            _ if refused => progress.not_before_ms = retry_ms,
            Kind::Cursor => {}
            Kind::NewRun(run) => return self.on_run(shard, run),
            Kind::End => {
                progress.is_ended = true;
                if self.shards.iter().all(|progress| progress.is_ended) {
                    return FactEnd::Ended;
                }
            }
        }
        FactEnd::Nothing
    }

    fn on_run(&mut self, shard: u16, run: u64) -> FactEnd {
        let progress = &mut self.shards[usize::from(shard)];
        // Another seek may have come meanwhile, and that run is to be committed first.
        let is_meant = |goal: &mut Goal| goal.run() == run;
        if let Some(Goal::Cursor(cursor)) = progress.goal.take_if(is_meant) {
            progress.start(cursor);
        }
        if self.shards.iter().any(|progress| progress.goal.is_some()) {
            return FactEnd::Nothing;
        }
        self.is_starting = false;
        FactEnd::Started
    }

    fn on_dead_letter(
        &mut self,
        shard: u16,
        (run, dead): (u64, DeadLetter),
        result: Result<(), OrderRefusal>,
        now_ms: u64,
        settings: &HubSettings,
    ) -> FactEnd {
        let progress = &mut self.shards[usize::from(shard)];
        // With the properties of a dead letter it is larger than any journal takes.
        let is_too_large = result == Err(OrderRefusal::TooLarge);
        if result.is_err() && !is_too_large {
            // Of an earlier run it is forgotten.
            if run == progress.run() {
                progress.dead_refused = Some(now_ms + settings.retry_ms);
            }
            return FactEnd::Nothing;
        }
        progress.dead_refused = None;
        let ordinal = dead.id.ordinal;
        if run == progress.run() {
            progress.dead.pop_front();
        }
        self.release(dead.id);
        let progress = &mut self.shards[usize::from(shard)];
        let outcome = if is_too_large { Outcome::GivenUp } else { Outcome::DeadLettered };
        // A dead letter is in the cursor of the journal already, so it is no change.
        let noted = progress.cursor.note(run, ordinal, outcome);
        debug_assert_eq!(noted, Ok(()), "a record has one outcome");
        if is_too_large {
            progress.uncommitted_ms.get_or_insert(now_ms);
            progress.due_ms.get_or_insert(now_ms + settings.cursor_ms);
        }
        self.counters.count(outcome, 1);
        let stream = self.definition.dead_letter.filter(|_| !is_too_large);
        FactEnd::Dead(Finished { dead, stream })
    }
}

impl Progress {
    fn end(&mut self, consumer: ConsumerNumber) -> StreamChange {
        self.fact = Some(Fact { floor: 0, kind: Kind::End });
        StreamChange::EndConsumer { consumer }
    }

    /// The cursor is new, so nothing of the run before counts.
    fn start(&mut self, cursor: Cursor) {
        (self.read, self.committed_floor) = (cursor.start(), cursor.start());
        (self.uncommitted_ms, self.due_ms) = (None, None);
        self.last_read_ms = None;
        self.cursor = cursor;
    }

    fn order(
        &mut self,
        consumer: ConsumerNumber,
        cursor: &Cursor,
        kind: Kind,
        level: Durability,
    ) -> StreamChange {
        self.note_ordered(cursor.floor(), kind);
        StreamChange::Cursor { consumer, cursor: encoded(cursor), level }
    }

    fn note_ordered(&mut self, floor: u64, kind: Kind) {
        self.fact = Some(Fact { floor, kind });
        self.in_fact_ms = self.uncommitted_ms.take();
        self.due_ms = None;
    }

    fn next_dead_letter(
        &mut self,
        consumer: ConsumerNumber,
        stream: StreamNumber,
        dead_record: &impl Fn(&DeadLetter, &[u8]) -> Vec<u8>,
    ) -> Option<StreamChange> {
        let dead = self.dead.front()?.clone();
        let held = self.held.get(&dead.id.ordinal)?;
        let record = Arc::new(dead_record(&dead, &held.bytes));
        let run = self.cursor.run();
        let mut cursor = self.cursor.clone();
        // It is held, so it has none.
        let _ = cursor.note(run, dead.id.ordinal, Outcome::DeadLettered);
        self.note_ordered(cursor.floor(), Kind::DeadLetter { run, dead });
        let cursor = encoded(&cursor);
        Some(StreamChange::DeadLetter { consumer, cursor, stream, record })
    }

    /// What a planted fault commits.
    fn flawed(&self, settings: &HubSettings) -> Option<Cursor> {
        let mut cursor = self.cursor.clone();
        let run = cursor.run();
        if settings.has(Flaw::CommittedBeforeAnswer) {
            for ordinal in self.held.keys() {
                cursor.note(run, *ordinal, Outcome::Delivered).ok()?;
            }
            return Some(cursor);
        }
        if settings.has(Flaw::FloorOverHole) {
            let open = self.held.keys().filter(|it| cursor.has_outcome(**it + 1));
            for ordinal in open.copied().collect::<Vec<_>>() {
                cursor.note(run, ordinal, Outcome::Delivered).ok()?;
            }
            return Some(cursor);
        }
        None
    }
}

fn encoded(cursor: &Cursor) -> Vec<u8> {
    let mut bytes = Vec::new();
    cursor.encode(&mut bytes);
    bytes
}
