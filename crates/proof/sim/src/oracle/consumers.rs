//! Consumers: what their targets have got, against what they must get, and the sums that they show.

use std::collections::{BTreeMap, BTreeSet};

use broker::ShardId;
use routing::Outcome;
use routing::dispatch::RecordId;
use streams::{ConsumerView, Order, Outgoing, ShardView};

use super::streams::{Entry, Streams};
use crate::stream_world::{ConsumerPlan, StreamPlan, is_refused};

/// A shard, and a run of a consumer there.
type RunName = (ShardId, u64);

/// What is known of all consumers.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    own: BTreeMap<u32, Consumer>,
    /// The record of each event: stream, shard and ordinal, and its content.
    events: BTreeMap<String, (u32, RecordId, Entry)>,
}

#[derive(Debug)]
struct Consumer {
    plan: ConsumerPlan,
    /// Of each shard: the run, and where it began.
    runs: BTreeMap<ShardId, (u64, u64)>,
    /// The last run whose beginning was reported as stored.
    started: u64,
    /// Records that its target has accepted.
    accepted: BTreeMap<RunName, BTreeSet<u64>>,
    given_up: BTreeMap<RunName, BTreeSet<u64>>,
    /// Answers of which the record's outcome was not known.
    unknown: BTreeMap<(ShardId, u64), u32>,
    /// How many dead letters there were, by shard, when the run began.
    marks: BTreeMap<RunName, usize>,
}

impl Consumer {
    /// A record may be a dead letter though its target did not refuse it.
    fn may_be_used_up(&self, shard: ShardId, ordinal: u64) -> bool {
        let unknown = self.unknown.get(&(shard, ordinal)).copied().unwrap_or_default();
        unknown >= self.plan.dispatch.attempts_max
    }

    fn forget_runs(&mut self, shard: ShardId, first: u64) {
        let is_kept = |name: &RunName| name.0 != shard || name.1 < first;
        self.accepted.retain(|name, _| is_kept(name));
        self.given_up.retain(|name, _| is_kept(name));
        self.marks.retain(|name, _| is_kept(name));
    }

    fn wants(&self, entry: &Entry) -> bool {
        self.plan.matches(&entry.topic) && self.plan.holds(&entry.topic)
    }
}

/// What consumers do.
impl Consumers {
    pub(crate) fn on_defined(&mut self, plan: &ConsumerPlan) {
        let consumer = Consumer {
            plan: plan.clone(),
            runs: BTreeMap::new(),
            started: 0,
            accepted: BTreeMap::new(),
            given_up: BTreeMap::new(),
            unknown: BTreeMap::new(),
            marks: BTreeMap::new(),
        };
        self.own.insert(plan.number, consumer);
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        self.own.keys().copied()
    }

    /// All shards have stored where a run begins.
    pub(crate) fn on_started(&mut self, number: u32, run: u64) {
        if let Some(own) = self.own.get_mut(&number) {
            own.started = own.started.max(run);
        }
    }

    pub(crate) fn on_ended(&mut self, number: u32) {
        self.own.remove(&number);
    }

    /// The owner sends records. `runs`: of each shard.
    pub(crate) fn on_sent(
        &mut self,
        number: u32,
        records: &[Outgoing],
        runs: &[u64],
        logs: &Streams,
    ) -> Result<(), String> {
        let Some(own) = self.own.get(&number) else { return Ok(()) };
        for record in records {
            let RecordId { shard, ordinal } = record.id;
            let at = format!("consumer {number}, record {ordinal} of shard {shard}");
            let log = logs.log((own.plan.stream, shard));
            let Some(entry) = log.get(ordinal as usize) else {
                return Err(format!("{at}: it is not committed"));
            };
            let start = own.runs.get(&shard).map_or(0, |(_, start)| *start);
            if !own.wants(entry) || ordinal < start || runs.len() <= usize::from(shard) {
                return Err(format!("{at}: it is none of its business"));
            }
            let stored = broker::journal::StreamRecord::decode(&entry.bytes);
            let is_same = stored.is_ok_and(|stored| {
                stored.payload == record.output.body.as_deref().unwrap_or_default()
                    && stored.at_ms == record.time_ms
            });
            if !is_same {
                return Err(format!("{at}: another content is sent"));
            }
            let event = (own.plan.stream, record.id, entry.clone());
            let known =
                self.events.entry(record.event_id.to_string()).or_insert_with(|| event.clone());
            if (known.0, known.1) != (event.0, event.1) || known.2.bytes != event.2.bytes {
                return Err(format!("{at}: the id of its event is that of another record"));
            }
        }
        Ok(())
    }

    /// The target has accepted a record.
    pub(crate) fn on_accepted(
        &mut self,
        number: u32,
        record: RecordId,
        run: u64,
        logs: &Streams,
    ) -> Result<(), String> {
        let Some(own) = self.own.get_mut(&number) else { return Ok(()) };
        let RecordId { shard, ordinal } = record;
        let accepted = own.accepted.entry((shard, run)).or_default();
        if !accepted.insert(ordinal) || own.plan.order == Order::None {
            return Ok(());
        }
        let log = logs.log((own.plan.stream, shard));
        let key = |ordinal: u64| log.get(ordinal as usize).map(|it| (&it.client_id, &it.topic));
        let mut later = accepted.range(ordinal + 1..);
        let overtaking = later.find(|later| key(**later) == key(ordinal)).copied();
        match overtaking {
            Some(later) if !own.may_be_used_up(shard, ordinal) => Err(format!(
                "consumer {number}: record {later} of shard {shard} came ahead of {ordinal}"
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn on_unknown(&mut self, number: u32, record: RecordId) {
        if let Some(own) = self.own.get_mut(&number) {
            *own.unknown.entry((record.shard, record.ordinal)).or_default() += 1;
        }
    }

    /// The owner has reported that a record is discarded.
    pub(crate) fn on_given_up(&mut self, number: u32, record: RecordId) {
        if let Some(own) = self.own.get_mut(&number)
            && let Some((run, _)) = own.runs.get(&record.shard)
        {
            own.given_up.entry((record.shard, *run)).or_default().insert(record.ordinal);
        }
    }

    /// A start has found so many records of a shard: what was sent of others counts for nothing.
    pub(crate) fn on_start(&mut self, (stream, shard): (u32, ShardId), next: u64) {
        for own in self.own.values_mut().filter(|own| own.plan.stream == stream) {
            for records in own.accepted.iter_mut().chain(&mut own.given_up) {
                if records.0.0 == shard {
                    records.1.split_off(&next);
                }
            }
            own.unknown.retain(|(own, ordinal), _| *own != shard || *ordinal < next);
        }
    }

    /// What a consumer shows at any time.
    pub(crate) fn on_view(&mut self, view: &ConsumerView, logs: &Streams) -> Result<(), String> {
        let number = view.consumer.0;
        let adds_up = |sum: &streams::Sum| {
            sum.stored == Outcome::ALL.iter().map(|it| sum.total(*it)).sum::<u64>() + sum.lag()
        };
        let is_sound = |shard: &ShardView| {
            adds_up(&shard.sum) && shard.sum.stored == shard.next.saturating_sub(shard.start)
        };
        if !view.adds_up || !adds_up(&view.sum) || !view.shards.iter().all(is_sound) {
            return Err(format!("consumer {number}: the sum does not add up: {view:?}"));
        }
        let Some(own) = self.own.get_mut(&number) else { return Ok(()) };
        for it in &view.shards {
            let (shard, known) = (it.shard, own.runs.get(&it.shard).copied());
            if known == Some((it.run, it.start)) {
                continue;
            }
            // One that has not started ends with the process, unless its target has some of it.
            let has_begun =
                |run: u64| run <= own.started || own.accepted.contains_key(&(shard, run));
            if known.is_some_and(|(run, _)| it.run <= run && has_begun(run)) {
                return Err(format!(
                    "consumer {number}, shard {shard}: run {} from {} follows {known:?}",
                    it.run, it.start
                ));
            }
            own.runs.insert(shard, (it.run, it.start));
            // A run that begins, perhaps again, has nothing yet.
            own.forget_runs(shard, it.run);
            if let Some(to) = own.plan.dead_letter {
                let mark = logs.log((to, shard)).len();
                own.marks.insert((shard, it.run), mark);
            }
        }
        Ok(())
    }

    /// Dead letters are records that were sent, and each is there once.
    fn dead_letters(
        &self,
        own: &Consumer,
        (shard, run): RunName,
        logs: &Streams,
    ) -> Result<BTreeSet<u64>, String> {
        let mut dead = BTreeSet::new();
        let Some(to) = own.plan.dead_letter else { return Ok(dead) };
        let mark = own.marks.get(&(shard, run)).copied().unwrap_or_default();
        for entry in logs.log((to, shard)).iter().skip(mark) {
            let Some((name, event)) = &entry.dead else { continue };
            if *name != own.plan.name() {
                continue;
            }
            let Some((stream, record, sent)) = self.events.get(event) else {
                return Err(format!("a dead letter of event {event} that was never sent"));
            };
            let is_own = *stream == own.plan.stream && record.shard == shard;
            if !is_own || !entry.is_same_message(sent) {
                return Err(format!("a dead letter of event {event} is another message"));
            }
            if !dead.insert(record.ordinal) {
                return Err(format!("record {} is a dead letter twice", record.ordinal));
            }
        }
        Ok(dead)
    }

    /// All is at rest: each record has its outcome.
    pub(crate) fn judge(
        &self,
        view: &ConsumerView,
        stream: &StreamPlan,
        logs: &Streams,
    ) -> Result<(), String> {
        let number = view.consumer.0;
        let Some(own) = self.own.get(&number) else { return Ok(()) };
        for shard in &view.shards {
            self.judge_shard(own, shard, stream, logs).map_err(|rule| {
                format!("consumer {number}, shard {}: {rule}: {shard:?}", shard.shard)
            })?;
        }
        Ok(())
    }

    fn judge_shard(
        &self,
        own: &Consumer,
        it: &ShardView,
        stream: &StreamPlan,
        logs: &Streams,
    ) -> Result<(), String> {
        let name = (it.shard, it.run);
        let log = logs.log((stream.number, it.shard));
        let dead = self.dead_letters(own, name, logs)?;
        let none = BTreeSet::new();
        let accepted = own.accepted.get(&name).unwrap_or(&none);
        let given_up = own.given_up.get(&name).unwrap_or(&none);
        let total = |outcome: Outcome| it.sum.total(outcome);
        let dropped = total(Outcome::DroppedByRetention);
        if it.sum.lag() > 0 || it.next != log.len() as u64 {
            return Err(format!("{} records are stored, and some have no outcome", log.len()));
        }
        if total(Outcome::DroppedDamaged) > 0 || dropped > 0 && !stream.may_drop_unread() {
            return Err("records are dropped without a reason".into());
        }
        let (mut not_matched, mut skipped, mut missing, mut expired) = (0, 0, 0, 0);
        for (ordinal, entry) in (0..).zip(log).skip(it.start as usize) {
            let is_done = accepted.contains(&ordinal)
                || dead.contains(&ordinal)
                || given_up.contains(&ordinal);
            match () {
                () if !own.plan.matches(&entry.topic) => not_matched += 1,
                () if !own.plan.holds(&entry.topic) => skipped += 1,
                () if is_done => {}
                () if own.plan.skip_expired && entry.expires() => expired += 1,
                () => missing += 1,
            }
            let is_refused = {
                let record = broker::journal::StreamRecord::decode(&entry.bytes);
                record.is_ok_and(|it| is_refused(own.plan.refused_of, it.payload))
            };
            let may_be_dead = is_refused || own.may_be_used_up(it.shard, ordinal);
            if dead.contains(&ordinal) && !may_be_dead {
                return Err(format!("record {ordinal} is a dead letter without a reason"));
            }
        }
        let within =
            |counted: u64, expected: u64| counted <= expected && expected <= counted + dropped;
        let is_counted = within(total(Outcome::NotMatched), not_matched)
            && within(total(Outcome::SkippedByCondition), skipped)
            && missing <= dropped
            && missing + expired <= dropped + total(Outcome::SkippedExpired)
            && total(Outcome::DeadLettered) == dead.len() as u64
            && total(Outcome::GivenUp) <= given_up.len() as u64
            && total(Outcome::Delivered) <= accepted.len() as u64;
        match is_counted {
            true => Ok(()),
            false => Err(format!(
                "not matched {not_matched}, skipped {skipped}, lost {missing}, expired {expired}, \
                 dead {}, given up {}, accepted {}",
                dead.len(),
                given_up.len(),
                accepted.len()
            )),
        }
    }
}
