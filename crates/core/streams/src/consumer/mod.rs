//! One consumer: its cursors, what it has read and not finished, and what it waits for.

mod facts;
mod progress;
mod sending;

use broker::streams::StreamNumber;
use routing::dispatch::{Dispatch, DispatchRules, Offered, RecordId};
use routing::{Event, Outcome, Rule, Verdict};
use topic::{FilterId, Subscription};

pub(crate) use facts::{DeadLetters, FactEnd, Finished};
pub(crate) use progress::{Goal, Held, Progress};

use crate::definition::{ConsumerDefinition, Order};
use crate::settings::{Flaw, HubSettings};
use crate::stream::Stream;
use crate::view::Counters;

/// See the module.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) definition: ConsumerDefinition,
    pub(crate) dispatch: Dispatch,
    /// By shard.
    pub(crate) shards: Vec<Progress>,
    pub(crate) is_paused: bool,
    /// Its namespace is suspended. An operator's pause outlives the end of that.
    pub(crate) is_suspended: bool,
    /// Some: it was removed, and waits until then for answers.
    pub(crate) ending_ms: Option<u64>,
    /// Bytes of records that were read and have no outcome.
    pub(crate) in_flight_bytes: usize,
    /// How often the definition has changed.
    pub(crate) revision: u64,
    /// Some records in flight may be of an earlier revision.
    is_mixed: bool,
    /// Records in flight, of all shards.
    pub(crate) in_flight: usize,
    /// Records that were offered: their order, if there is none.
    offered: u64,
    /// The shard that is read first.
    pub(crate) first: usize,
    /// In the index of its stream.
    filter: Option<FilterId>,
    pub(crate) counters: Counters,
    pub(crate) last_error: Option<String>,
    /// The first cursors, or those of a seek, are not committed yet.
    pub(crate) is_starting: bool,
    /// What it was last reported to wait for.
    pub(crate) reported: &'static str,
    /// Its entry among the timers.
    pub(crate) wake_ms: Option<u64>,
}

/// A record that was read, as rules see it.
pub(crate) struct Read<'a, 'e> {
    pub(crate) at: RecordId,
    pub(crate) held: &'a Held,
    pub(crate) event: &'a Event<'e>,
    pub(crate) expires_at_ms: u64,
    pub(crate) order_hash: u64,
}

/// What a record takes as an event, in addition to its own bytes.
const EVENT_OVERHEAD_BYTES: usize = 512;

impl Consumer {
    pub(crate) fn new(definition: ConsumerDefinition, shards: Vec<Progress>) -> Self {
        let is_starting = shards.iter().any(|progress| progress.goal.is_some());
        Self {
            dispatch: Dispatch::new(definition.dispatch.clone()),
            definition,
            shards,
            is_paused: false,
            is_suspended: false,
            ending_ms: None,
            in_flight_bytes: 0,
            revision: 0,
            is_mixed: false,
            in_flight: 0,
            offered: 0,
            first: 0,
            filter: None,
            counters: Counters::default(),
            last_error: None,
            is_starting,
            reported: "",
            wake_ms: None,
        }
    }

    /// Has the filter in the index of the stream, in place of the one before.
    pub(crate) fn listen(&mut self, stream: &mut Stream) {
        self.unlisten(stream);
        let subscriber = self.definition.number.0;
        let subscription = Subscription { subscriber, options: 0, identifier: 0 };
        let added = stream.index.subscribe(self.definition.rule.filter(), subscription);
        self.filter = Some(added.filter);
    }

    pub(crate) fn unlisten(&mut self, stream: &mut Stream) {
        if let Some(filter) = self.filter.take() {
            stream.index.unsubscribe(filter, self.definition.number.0);
        }
    }

    /// Takes out a record that has its outcome. False: it is of an earlier run.
    pub(crate) fn release(&mut self, id: RecordId) -> bool {
        let held = self.shards[usize::from(id.shard)].held.remove(&id.ordinal);
        let Some(held) = held else { return false };
        self.in_flight -= 1;
        self.is_mixed &= self.in_flight > 0;
        self.in_flight_bytes -= held.bytes.len();
        true
    }

    /// Whether it reads and sends at all.
    pub(crate) const fn is_active(&self) -> bool {
        !self.is_paused && !self.is_suspended && !self.is_starting && self.ending_ms.is_none()
    }

    /// Whether a dead letter waits for its stream. Nothing is read meanwhile.
    pub(crate) fn is_dead_letter_refused(&self) -> bool {
        self.shards.iter().any(|progress| progress.dead_refused.is_some())
    }

    /// Whether another record of any shard may be in flight.
    pub(crate) fn has_capacity(&self) -> bool {
        self.dispatch.wanted() > 0
            && self.in_flight < self.definition.dispatch.in_flight_max
            && self.in_flight_bytes < self.definition.in_flight_bytes_max
    }

    /// Whether the next record of the shard may be looked at.
    pub(crate) fn may_read(&self, shard: u16) -> bool {
        self.is_active()
            && self.has_capacity()
            && !self.shards[usize::from(shard)].is_at_ranges_limit()
            && !self.is_dead_letter_refused()
    }

    /// A record whose topic its filter matches. It gets its outcome, or is in flight.
    pub(crate) fn take(&mut self, read: &Read<'_, '_>, now_ms: u64, settings: &HubSettings) {
        let outcome = match self.definition.rule.verdict(read.event) {
            Verdict::Filter => Some(Outcome::NotMatched),
            Verdict::Condition(_) => Some(Outcome::SkippedByCondition),
            Verdict::Matches if self.is_expired(read, now_ms) => Some(Outcome::SkippedExpired),
            Verdict::Matches => None,
        };
        let RecordId { shard, ordinal } = read.at;
        let progress = &mut self.shards[usize::from(shard)];
        progress.read = ordinal + 1;
        progress.last_read_ms = Some(read.held.at_ms);
        if let Some(outcome) = outcome {
            progress.note(ordinal, outcome, now_ms, settings);
            self.counters.count(outcome, 1);
            return;
        }
        self.in_flight += 1;
        self.in_flight_bytes += read.held.bytes.len();
        let (expires_at_ms, revision) = (read.expires_at_ms, self.revision);
        progress.held.insert(ordinal, Held { expires_at_ms, revision, ..read.held.clone() });
        self.offered += 1;
        let order_hash = match self.definition.order {
            Order::Lanes if !settings.has(Flaw::LaneOvertaken) => read.order_hash,
            _ => self.offered,
        };
        let bytes = read.held.bytes.len() + EVENT_OVERHEAD_BYTES;
        self.dispatch.offer(Offered { id: read.at, order_hash, bytes });
    }

    fn is_expired(&self, read: &Read<'_, '_>, now_ms: u64) -> bool {
        self.definition.skip_expired && read.expires_at_ms <= now_ms
    }

    /// Counts the records of a shard below `end` that its filter does not match: those that the
    /// front has passed without it.
    pub(crate) fn settle(&mut self, shard: u16, end: u64, now_ms: u64, settings: &HubSettings) {
        let progress = &mut self.shards[usize::from(shard)];
        if progress.read < end {
            let range = (progress.read, end);
            let count = progress.note_range(range, Outcome::NotMatched, now_ms, settings);
            self.counters.count(Outcome::NotMatched, count);
            progress.read = end;
        }
    }

    /// Leaves the front of all shards, to read by itself.
    pub(crate) fn leave_front(&mut self, stream: &Stream, now_ms: u64, settings: &HubSettings) {
        for shard in 0..self.shards.len() as u16 {
            if self.shards[usize::from(shard)].is_at_front {
                let front = stream.shards[usize::from(shard)].tail.front;
                self.settle(shard, front, now_ms, settings);
                self.shards[usize::from(shard)].is_at_front = false;
            }
        }
    }

    /// Has all outcomes so far ordered at once. False: there are none.
    pub(crate) fn commit(&mut self, stream: &Stream, now_ms: u64, settings: &HubSettings) -> bool {
        let mut has_some = false;
        for shard in 0..self.shards.len() as u16 {
            if self.shards[usize::from(shard)].is_at_front {
                let front = stream.shards[usize::from(shard)].tail.front;
                self.settle(shard, front, now_ms, settings);
            }
            let progress = &mut self.shards[usize::from(shard)];
            if progress.uncommitted_ms.is_some() {
                progress.due_ms = Some(now_ms);
                has_some = true;
            }
        }
        has_some
    }

    /// When it has something to do, if nothing is reported.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let dispatch = self.dispatch.next_deadline().filter(|_| self.is_active());
        let shards = self.shards.iter().filter_map(Progress::next_deadline);
        let idle = self.shards.iter().filter(|it| it.fact.is_none() && !it.is_ended);
        let ending_ms = self.ending_ms.unwrap_or(u64::MAX);
        let ends = idle.map(|it| it.not_before_ms.max(ending_ms)).filter(|it| *it != u64::MAX);
        dispatch.into_iter().chain(ends).chain(shards).min()
    }

    /// Bytes of blocks that it has read and not finished.
    pub(crate) fn read_bytes(&self) -> usize {
        self.shards.iter().map(|progress| progress.reader.bytes()).sum()
    }

    pub(crate) fn drop_blocks(&mut self) {
        self.shards.iter_mut().for_each(|progress| progress.reader.drop_block());
    }

    /// Another revision: what is in flight ends under its own, all else uses this one.
    pub(crate) fn change(&mut self, definition: ConsumerDefinition) {
        let lanes = self.definition.dispatch.lanes;
        let rules = DispatchRules { lanes, ..definition.dispatch.clone() };
        self.dispatch.set_rules(rules);
        self.revision += 1;
        self.is_mixed = true;
        self.definition = definition;
    }

    pub(crate) fn rule(&self) -> &Rule {
        &self.definition.rule
    }

    pub(crate) const fn dead_letter(&self) -> Option<StreamNumber> {
        self.definition.dead_letter
    }

    /// Forgets what is in flight, for another run from these goals on. Answers to what was sent
    /// count no more.
    pub(crate) fn begin_run(&mut self, goals: Vec<Goal>, settings: &HubSettings) {
        let idle = Dispatch::new(self.definition.dispatch.clone());
        let dispatch = std::mem::replace(&mut self.dispatch, idle);
        if !settings.has(Flaw::EarlierRunTaken) {
            self.dispatch = dispatch.renewed();
        }
        (self.in_flight, self.in_flight_bytes) = (0, 0);
        self.is_starting = true;
        for (progress, goal) in self.shards.iter_mut().zip(goals) {
            progress.forget_work();
            progress.goal = Some(goal);
        }
    }

    /// Of the run that it is in, or is about to begin.
    pub(crate) fn run(&self) -> u64 {
        self.shards.iter().map(Progress::run).max().unwrap_or_default()
    }
}
