//! How far a consumer is in the records of one shard.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use routing::cursor::RANGES_MAX;
use routing::dispatch::DeadLetter;
use routing::{Cursor, Outcome};

use super::facts::Fact;
use crate::reader::Reader;
use crate::settings::HubSettings;

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) cursor: Cursor,
    /// The next record to look at. Those below have an outcome or are held.
    pub(crate) read: u64,
    /// The front of the stream reads for it: what its filter does not match below the front is
    /// counted later.
    pub(crate) is_at_front: bool,
    /// Records without an outcome that were read: in flight, or dead letters on their way.
    pub(crate) held: BTreeMap<u64, Held>,
    /// Dead letters that are to be ordered, the first of them perhaps under way.
    pub(crate) dead: VecDeque<DeadLetter>,
    /// Some: the stream of dead letters did not take the first one, and is asked again then.
    pub(crate) dead_refused: Option<u64>,
    pub(crate) reader: Reader,
    /// Some: another run begins, once its cursor is committed.
    pub(crate) goal: Option<Goal>,
    /// At the journal.
    pub(crate) fact: Option<Fact>,
    /// The oldest outcome that is in no fact, and the oldest one that is in the fact under way.
    pub(crate) uncommitted_ms: Option<u64>,
    pub(crate) in_fact_ms: Option<u64>,
    /// When outcomes are to be ordered.
    pub(crate) due_ms: Option<u64>,
    /// No cursor is ordered before: the journal did not take the last one.
    pub(crate) not_before_ms: u64,
    /// The floor of the cursor that the journal has.
    pub(crate) committed_floor: u64,
    /// The journal has forgotten the consumer.
    pub(crate) is_ended: bool,
    /// Broker time of the record that was read last.
    pub(crate) last_read_ms: Option<u64>,
}

/// A record that was read.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) at_ms: u64,
    pub(crate) bytes: Arc<Vec<u8>>,
    /// `u64::MAX`: never.
    pub(crate) expires_at_ms: u64,
    /// The revision of the rule that it matches.
    pub(crate) revision: u64,
}

impl Held {
    pub(crate) const fn new(at_ms: u64, bytes: Arc<Vec<u8>>) -> Self {
        Self { at_ms, bytes, expires_at_ms: u64::MAX, revision: 0 }
    }
}

/// Where a run begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    /// At the first record of this time or later, which is to be found first.
    Time {
        run: u64,
        at_ms: u64,
    },
    Cursor(Cursor),
}

impl Goal {
    pub(crate) const fn run(&self) -> u64 {
        match self {
            Self::Time { run, .. } => *run,
            Self::Cursor(cursor) => cursor.run(),
        }
    }
}

impl Progress {
    /// As its journal knows it.
    pub(crate) fn found(cursor: Cursor) -> Self {
        Self {
            read: cursor.floor(),
            committed_floor: cursor.floor(),
            is_at_front: false,
            held: BTreeMap::new(),
            dead: VecDeque::new(),
            dead_refused: None,
            reader: Reader::default(),
            goal: None,
            fact: None,
            uncommitted_ms: None,
            in_fact_ms: None,
            due_ms: None,
            not_before_ms: 0,
            is_ended: false,
            last_read_ms: None,
            cursor,
        }
    }

    /// Of a consumer that its journal does not know.
    pub(crate) fn new(run: u64, start: u64) -> Self {
        let cursor = Cursor::new(run, start);
        Self { goal: Some(Goal::Cursor(cursor.clone())), ..Self::found(cursor) }
    }

    /// Another shard is in a later run: this one follows.
    pub(crate) fn behind(cursor: Cursor, run: u64) -> Self {
        let goal = Some(Goal::Cursor(Cursor::new(run, cursor.floor())));
        Self { goal, ..Self::found(cursor) }
    }

    pub(crate) fn run(&self) -> u64 {
        self.goal.as_ref().map_or(self.cursor.run(), Goal::run)
    }

    pub(crate) fn is_at_ranges_limit(&self) -> bool {
        self.cursor.ranges() >= RANGES_MAX
    }

    /// Records below are not needed any more, as far as the journal knows.
    pub(crate) fn passed(&self) -> u64 {
        match &self.goal {
            None => self.committed_floor,
            Some(Goal::Time { .. }) => 0,
            Some(Goal::Cursor(cursor)) => self.committed_floor.min(cursor.start()),
        }
    }

    /// The outcome of a record of this run.
    pub(crate) fn note(
        &mut self,
        ordinal: u64,
        outcome: Outcome,
        now_ms: u64,
        settings: &HubSettings,
    ) {
        let noted = self.cursor.note(self.cursor.run(), ordinal, outcome);
        debug_assert_eq!(noted, Ok(()), "a record has one outcome");
        self.note_change(outcome, now_ms, settings);
    }

    /// The outcome of all records of a range that have none. How many these were.
    pub(crate) fn note_range(
        &mut self,
        range: (u64, u64),
        outcome: Outcome,
        now_ms: u64,
        settings: &HubSettings,
    ) -> u64 {
        let noted = self.cursor.note_range(self.cursor.run(), range, outcome);
        let count = noted.unwrap_or_default();
        if count > 0 {
            self.note_change(outcome, now_ms, settings);
        }
        count
    }

    fn note_change(&mut self, outcome: Outcome, now_ms: u64, settings: &HubSettings) {
        let wait_ms = match outcome {
            Outcome::NotMatched => settings.idle_cursor_ms,
            _ => settings.cursor_ms,
        };
        let due_ms = now_ms + wait_ms;
        self.due_ms = Some(self.due_ms.map_or(due_ms, |at_ms| at_ms.min(due_ms)));
        self.uncommitted_ms.get_or_insert(now_ms);
    }

    /// The oldest outcome that is not committed.
    pub(crate) fn unsettled_ms(&self) -> Option<u64> {
        self.in_fact_ms.or(self.uncommitted_ms)
    }

    /// When it has something to do, if nothing is reported.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let fault_ms = self.reader.fault.as_ref().map(|(_, at_ms)| *at_ms);
        if self.fact.is_some() || self.is_ended {
            return fault_ms;
        }
        let goal = matches!(self.goal, Some(Goal::Cursor(_))).then_some(self.not_before_ms);
        let dead = self.dead.front().map(|_| self.dead_refused.unwrap_or_default());
        let due = self.due_ms.map(|at_ms| at_ms.max(self.not_before_ms));
        fault_ms.into_iter().chain(goal).chain(dead).chain(due).min()
    }

    /// What is in flight counts no more.
    pub(crate) fn forget_work(&mut self) {
        self.is_at_front = false;
        self.held.clear();
        self.dead.clear();
        self.dead_refused = None;
        self.due_ms = None;
        self.reader = Reader::default();
    }
}
