//! What operators see of a consumer: its sum, which adds up, and why it waits.

use broker::streams::{ConsumerNumber, StreamNumber};
use routing::dispatch::Waits;
use routing::{Cursor, Outcome};

use crate::consumer::{Consumer, Progress};
use crate::settings::{Flaw, HubSettings};
use crate::stream::Stream;

/// What a consumer does, or waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Its first cursors, or those of a seek, are not committed yet.
    Starting,
    Running,
    /// All records have their outcome.
    Idle,
    Paused,
    /// Its namespace is suspended.
    Suspended,
    /// As many records, or bytes, as it may have are in flight.
    InFlightLimit,
    /// The target is away, or fails for all.
    Probation {
        until_ms: u64,
        reason: String,
    },
    /// Records that the target did not accept are sent again then, and nothing else is left to do.
    Blocked {
        until_ms: u64,
    },
    /// Outcomes have too many gaps: records are awaited that were sent long ago.
    RangesLimit,
    /// The stream of dead letters does not take any.
    DeadLetterFull,
    /// The files of the stream cannot be read.
    Disk {
        error: String,
    },
    /// It was removed, and awaits answers.
    Ending,
}

impl State {
    /// All names.
    pub const NAMES: [&str; 12] = [
        "starting",
        "running",
        "idle",
        "paused",
        "suspended",
        "in_flight_limit",
        "probation",
        "blocked",
        "ranges_limit",
        "dead_letter_full",
        "disk",
        "ending",
    ];

    /// Its name in the API, in metrics and in logs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Idle => "idle",
            Self::Paused => "paused",
            Self::Suspended => "suspended",
            Self::InFlightLimit => "in_flight_limit",
            Self::Probation { .. } => "probation",
            Self::Blocked { .. } => "blocked",
            Self::RangesLimit => "ranges_limit",
            Self::DeadLetterFull => "dead_letter_full",
            Self::Disk { .. } => "disk",
            Self::Ending => "ending",
        }
    }

    /// What it waits for, for people. Empty: it does not wait.
    pub fn reason(&self) -> String {
        match self {
            Self::Running | Self::Idle => String::new(),
            Self::Starting => "the start position is being committed".into(),
            Self::Paused => "paused by an operator".into(),
            Self::Suspended => "namespace suspended".into(),
            Self::InFlightLimit => "the limit of messages or bytes in flight is reached".into(),
            Self::Probation { reason, .. } => format!("the target is not available: {reason}"),
            Self::Blocked { .. } => "the target did not accept messages: they are retried".into(),
            Self::RangesLimit => "too many messages are confirmed behind an open one".into(),
            Self::DeadLetterFull => "the dead-letter stream does not accept messages".into(),
            Self::Disk { error } => format!("files of the stream cannot be read: {error}"),
            Self::Ending => "removed: answers of the target are awaited".into(),
        }
    }

    /// When it is tried again, in broker time.
    pub const fn until_ms(&self) -> Option<u64> {
        match self {
            Self::Probation { until_ms, .. } | Self::Blocked { until_ms } => Some(*until_ms),
            _ => None,
        }
    }

    /// It waits for something other than messages and answers.
    pub const fn is_waiting(&self) -> bool {
        !matches!(self, Self::Running | Self::Idle | Self::InFlightLimit | Self::Ending)
    }

    /// Its name in reports: whether there is something to do is not worth one.
    pub(crate) const fn reported(&self) -> &'static str {
        match self {
            Self::Running | Self::Idle | Self::InFlightLimit => "running",
            _ => self.name(),
        }
    }
}

/// What was counted since the process started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    outcomes: [u64; Outcome::ALL.len()],
    pub batches: u64,
    /// Records in batches: those that are sent again count again.
    pub sent: u64,
    /// Batches that were not accepted as a whole.
    pub failed_batches: u64,
}

impl Counters {
    pub const fn total(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    pub(crate) const fn count(&mut self, outcome: Outcome, count: u64) {
        self.outcomes[outcome as usize] += count;
    }
}

/// The sum of a run: `stored` is that of all outcomes, `in_flight` and `pending`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Records of the stream since the start of the run.
    pub stored: u64,
    pub outcomes: [u64; Outcome::ALL.len()],
    pub in_flight: u64,
    pub pending: u64,
}

impl Sum {
    pub const fn total(&self, outcome: Outcome) -> u64 {
        self.outcomes[outcome as usize]
    }

    /// Records that have no outcome.
    pub const fn lag(&self) -> u64 {
        self.in_flight + self.pending
    }

    pub fn adds_up(&self) -> bool {
        self.stored == self.outcomes.iter().sum::<u64>() + self.lag()
    }

    fn add(&mut self, other: &Self) {
        self.stored += other.stored;
        self.in_flight += other.in_flight;
        self.pending += other.pending;
        for (total, more) in self.outcomes.iter_mut().zip(other.outcomes) {
            *total += more;
        }
    }
}

/// What a consumer has of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardView {
    pub shard: u16,
    pub run: u64,
    pub start: u64,
    /// All records below have their outcome.
    pub floor: u64,
    /// The next record to be read.
    pub read: u64,
    /// The next record of the stream.
    pub next: u64,
    /// Of outcomes above the floor.
    pub ranges: usize,
    pub sum: Sum,
}

/// A consumer at a moment.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsumerView {
    pub consumer: ConsumerNumber,
    pub stream: StreamNumber,
    pub run: u64,
    pub state: State,
    pub sum: Sum,
    /// Whether the sum, and that of each shard, adds up. It always does.
    pub adds_up: bool,
    /// Age of the oldest record without an outcome, by broker time. None: there is none, or its
    /// time is not known as it was not read yet.
    pub lag_ms: Option<u64>,
    pub shards: Vec<ShardView>,
    pub counters: Counters,
    /// The last answer of the target that accepted not all of a batch.
    pub last_error: Option<String>,
}

impl Consumer {
    pub(crate) fn state(&self, stream: &Stream, now_ms: u64) -> State {
        if self.ending_ms.is_some() {
            return State::Ending;
        }
        let fault = self.shards.iter().find_map(|it| it.reader.fault.as_ref());
        if let Some((error, _)) = fault {
            return State::Disk { error: error.clone() };
        }
        if self.is_starting {
            return State::Starting;
        }
        // An operator who resumes the rule learns of an own pause next.
        if self.is_suspended {
            return State::Suspended;
        }
        if self.is_paused {
            return State::Paused;
        }
        if self.is_dead_letter_refused() {
            return State::DeadLetterFull;
        }
        let waits = self.dispatch.waits(now_ms);
        if let Some(Waits::Probation { until_ms, reason }) = waits {
            return State::Probation { until_ms, reason };
        }
        let has_more = |shard: u16| !self.shards[usize::from(shard)].is_done(stream.next(shard));
        let pending = (0..self.shards.len() as u16).filter(|shard| has_more(*shard));
        let pending: Vec<u16> = pending.collect();
        if !pending.is_empty() && !self.has_capacity() {
            return State::InFlightLimit;
        }
        if pending.iter().any(|it| self.shards[usize::from(*it)].is_at_ranges_limit()) {
            return State::RangesLimit;
        }
        match waits {
            Some(Waits::Retries { at_ms }) if pending.is_empty() => {
                State::Blocked { until_ms: at_ms }
            }
            _ if pending.is_empty() && self.in_flight == 0 => State::Idle,
            _ => State::Running,
        }
    }

    pub(crate) fn view(
        &self,
        stream: &Stream,
        now_ms: u64,
        settings: &HubSettings,
    ) -> ConsumerView {
        let shards = self.shards.iter().zip(0..);
        let shards = shards.map(|(it, shard)| it.view(shard, stream.next(shard), settings));
        let shards: Vec<ShardView> = shards.collect();
        let mut sum = Sum::default();
        shards.iter().for_each(|shard| sum.add(&shard.sum));
        let cursors = self.shards.iter().zip(0..);
        let adds_up = shards.iter().all(|shard| shard.sum.adds_up())
            && cursors.into_iter().all(|(it, shard)| it.cursor.adds_up(stream.next(shard)));
        let oldest = self.shards.iter().zip(0..);
        let oldest_ms = oldest.filter_map(|(it, shard)| it.oldest_ms(stream, shard)).min();
        ConsumerView {
            consumer: self.definition.number,
            stream: self.definition.stream,
            run: self.shards.iter().map(|it| it.cursor.run()).max().unwrap_or_default(),
            state: self.state(stream, now_ms),
            sum,
            adds_up,
            lag_ms: oldest_ms.map(|at_ms| now_ms.saturating_sub(at_ms)),
            shards,
            counters: self.counters,
            last_error: self.last_error.clone(),
        }
    }
}

impl Progress {
    /// Nothing is left to read.
    fn is_done(&self, next: u64) -> bool {
        self.is_at_front || self.read >= next
    }

    fn view(&self, shard: u16, next: u64, settings: &HubSettings) -> ShardView {
        let cursor: &Cursor = &self.cursor;
        let in_flight = self.held.len() as u64;
        let mut outcomes = Outcome::ALL.map(|outcome| cursor.total(outcome));
        if settings.has(Flaw::SumOffByOne) && cursor.total(Outcome::Delivered) > 0 {
            outcomes[Outcome::Delivered as usize] += 1;
        }
        let next = next.max(cursor.start());
        let sum = Sum {
            stored: next - cursor.start(),
            outcomes,
            in_flight,
            pending: cursor.open_until(next) - in_flight,
        };
        ShardView {
            shard,
            run: cursor.run(),
            start: cursor.start(),
            floor: cursor.floor(),
            read: self.read,
            next,
            ranges: cursor.ranges(),
            sum,
        }
    }

    /// The time of the oldest record without an outcome. Of one that is in a file and was not read
    /// it is that of the one read before.
    fn oldest_ms(&self, stream: &Stream, shard: u16) -> Option<u64> {
        if let Some(held) = self.held.values().next() {
            return Some(held.at_ms);
        }
        let tail = &stream.shards[usize::from(shard)].tail;
        if self.read >= tail.next() {
            return None;
        }
        tail.get(self.read).map(|record| record.at_ms).or(self.last_read_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_names_of_states_are_listed() {
        let (until_ms, text) = (0, String::new);
        let all = [
            State::Starting,
            State::Running,
            State::Idle,
            State::Paused,
            State::Suspended,
            State::InFlightLimit,
            State::Probation { until_ms, reason: text() },
            State::Blocked { until_ms },
            State::RangesLimit,
            State::DeadLetterFull,
            State::Disk { error: text() },
            State::Ending,
        ];
        assert_eq!(all.each_ref().map(State::name), State::NAMES);
        let reasoned = all.iter().filter(|state| state.is_waiting());
        assert!(reasoned.clone().all(|state| !state.reason().is_empty()));
        assert_eq!(reasoned.count(), 8);
    }
}
