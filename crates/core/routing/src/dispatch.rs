//! What is sent to a target next, and what its answers mean: lanes, retries, halving, probation.
//!
//! Records that must stay in order share a lane, and a lane has one batch under way. So no retry is
//! overtaken, and one lane that waits stops no other. Only answers of the target decide about a
//! record. A target that is away costs no attempt.

use std::collections::VecDeque;

/// A record of the stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordId {
    pub shard: u16,
    pub ordinal: u64,
}

/// Names a batch, and its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(u64);

impl BatchId {
    /// The batch with this [number](Self::number).
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// It grows with each batch of a consumer.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// A record that is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offered {
    pub id: RecordId,
    /// Records with the same hash stay in order: of publisher and topic, say.
    pub order_hash: u64,
    /// As it will be sent.
    pub bytes: usize,
}

/// Limits of a consumer's sending.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DispatchRules {
    /// Batches under way at a time, from 1 on. Default 32.
    pub lanes: usize,
    /// Records of a batch. Default 500.
    pub batch_records_max: usize,
    /// Bytes of a batch. A record that is larger is sent alone. Default 512 KiB.
    pub batch_bytes_max: usize,
    /// Records that were offered and have no outcome. Policy: no more are wanted. Default 10,000.
    pub in_flight_max: usize,
    /// Attempts of a record until it is a dead letter. Default 10.
    pub attempts_max: u32,
    /// Milliseconds until each next attempt; the last one is repeated. Default: Event Grid's, from
    /// 10 s to 12 h.
    pub retry_after_ms: Vec<u64>,
    /// Milliseconds until a target on probation is tried again: doubled from the first to the
    /// second. Defaults 1 s, 60 s.
    pub probation_ms: (u64, u64),
}

impl Default for DispatchRules {
    fn default() -> Self {
        const SECOND: u64 = 1000;
        const MINUTE: u64 = 60 * SECOND;
        const HOUR: u64 = 60 * MINUTE;
        Self {
            lanes: 32,
            batch_records_max: 500,
            batch_bytes_max: 512 << 10,
            in_flight_max: 10_000,
            attempts_max: 10,
            retry_after_ms: vec![
                10 * SECOND,
                30 * SECOND,
                MINUTE,
                5 * MINUTE,
                10 * MINUTE,
                30 * MINUTE,
                HOUR,
                3 * HOUR,
                6 * HOUR,
                12 * HOUR,
            ],
            probation_ms: (SECOND, MINUTE),
        }
    }
}

/// What a target says of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Of each record, in the order of the batch.
    Records(Vec<RecordAnswer>),
    /// It takes none of them, for a reason that its list calls permanent. Of a record that was not
    /// alone it says little: the target may have joined it with others.
    Refused(String),
    /// An error that is on no list, or no answer in time: it may have them.
    Unknown(String),
    /// It asks to be left alone until then.
    Busy { until_ms: u64 },
    /// It cannot be reached.
    Unavailable(String),
}

/// What a target says of one record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RecordAnswer {
    Accepted,
    Refused(String),
    Unknown(String),
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Answered by [`Dispatch::on_answer`]. `is_alone`: the target gets nothing else at the same
    /// time, so that the answer is about this one record.
    Send { batch: BatchId, records: Vec<RecordId>, is_alone: bool },
    /// The target has it.
    Delivered(RecordId),
    /// It was not to be sent any more ([`Dispatch::work_if`]).
    Withdrawn(RecordId),
    /// It will not be sent again.
    DeadLetter(DeadLetter),
}

/// Why a record is not sent any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeadLetter {
    pub id: RecordId,
    pub reason: DeadReason,
    /// Answers that the record got by itself.
    pub attempts: u32,
    pub first_ms: u64,
    pub last_ms: u64,
    /// The last answer, in the words of the target.
    pub answer: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadReason {
    Refused,
    AttemptsUsedUp,
}

impl DeadReason {
    /// Its name in dead letters, in events and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::AttemptsUsedUp => "attempts_used_up",
        }
    }
}

/// Why nothing more is sent, though something waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Waits {
    /// The target is away, or failing for all.
    Probation { until_ms: u64, reason: String },
    /// All batches are under way.
    Answers,
    /// Records are tried again at this time.
    Retries { at_ms: u64 },
}

/// See the module.
#[derive(Debug)]
pub struct Dispatch {
    rules: DispatchRules,
    lanes: Vec<Lane>,
    /// Records in lanes.
    in_flight: usize,
    target: Target,
    /// The lane that is looked at first.
    first: usize,
    next_batch: u64,
}

#[derive(Debug, Default)]
struct Lane {
    /// Without an outcome, in order.
    records: VecDeque<Item>,
    /// How the first of them are sent: together, or apart since a batch of them was refused.
    groups: VecDeque<Group>,
    /// The first group is under way.
    under_way: Option<BatchId>,
    not_before_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Item {
    id: RecordId,
    bytes: usize,
    attempts: u32,
    first_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    len: usize,
    /// Answers that left it unknown, while the target answered others.
    unknowns: u32,
    first_ms: Option<u64>,
    /// One record that was refused, or left unknown, in company: it is sent by itself.
    is_alone: bool,
}

#[derive(Debug, Default)]
struct Target {
    /// When it last decided about a record.
    decided_ms: Option<u64>,
    /// Unknown answers since then.
    unknowns: u32,
    probation: Option<Probation>,
}

#[derive(Debug)]
struct Probation {
    until_ms: u64,
    delay_ms: u64,
    reason: String,
    /// The target has asked for it, so answers to what was under way do not end it.
    is_asked: bool,
    /// One batch finds out how the target is.
    probe: Option<BatchId>,
}

/// So many unknown answers let a batch be halved, or put a target on probation.
const UNKNOWNS_MAX: u32 = 3;

impl Group {
    /// A part of a batch that was not taken.
    const fn part(len: usize) -> Self {
        Self { is_alone: len == 1, ..Self::of(len) }
    }

    const fn of(len: usize) -> Self {
        Self { len, unknowns: 0, first_ms: None, is_alone: false }
    }
}

impl Dispatch {
    pub fn new(rules: DispatchRules) -> Self {
        let lanes = (0..rules.lanes.max(1)).map(|_| Lane::default()).collect();
        let target = Target::default();
        Self { rules, lanes, in_flight: 0, target, first: 0, next_batch: 0 }
    }

    /// The same without records, for another run. Batches have further numbers, so an answer to an
    /// earlier one is taken for none of them. What is known of the target stays known.
    pub fn renewed(self) -> Self {
        let Self { rules, mut target, next_batch, .. } = self;
        if let Some(probation) = &mut target.probation {
            probation.probe = None;
        }
        Self { target, next_batch, ..Self::new(rules) }
    }

    /// Limits of what is sent from now on. The number of lanes stays: it decides about the order.
    pub fn set_rules(&mut self, rules: DispatchRules) {
        self.rules = rules;
    }

    /// Batches that have no answer.
    pub fn under_way(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.under_way.is_some()).count()
    }

    /// How many records may be offered now.
    pub const fn wanted(&self) -> usize {
        self.rules.in_flight_max.saturating_sub(self.in_flight)
    }

    /// Records that were offered and have no outcome.
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a record behind all others of its order. More than are [wanted](Self::wanted) are
    /// taken as well: the caller bounds them.
    pub fn offer(&mut self, offered: Offered) {
        let lane = (offered.order_hash % self.lanes.len() as u64) as usize;
        let Offered { id, bytes, .. } = offered;
        self.lanes[lane].records.push_back(Item { id, bytes, attempts: 0, first_ms: None });
        self.in_flight += 1;
    }

    /// Sends what may be sent.
    pub fn work(&mut self, now_ms: u64, out: &mut Vec<Effect>) {
        self.work_if(now_ms, |_| true, out);
    }

    /// Sends what may be sent, of the records that are still to be.
    pub fn work_if(
        &mut self,
        now_ms: u64,
        is_wanted: impl Fn(RecordId) -> bool,
        out: &mut Vec<Effect>,
    ) {
        let lanes = self.lanes.len();
        let begin = self.first;
        for place in (begin..lanes).chain(0..begin) {
            if !self.target.may_send(now_ms) {
                return;
            }
            let before = self.lanes[place].records.len();
            let next = self.lanes[place].next_batch(&self.rules, now_ms, &is_wanted, out);
            self.in_flight -= before - self.lanes[place].records.len();
            let Some((records, is_alone)) = next else { continue };
            let batch = BatchId(self.next_batch);
            self.next_batch += 1;
            self.lanes[place].under_way = Some(batch);
            self.target.note_sent(batch);
            // Each lane has its turn, also as the one that finds out how the target is.
            self.first = (place + 1) % lanes;
            out.push(Effect::Send { batch, records, is_alone });
        }
    }

    /// When [`Dispatch::work`] may have something to do, if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        let idle = self.lanes.iter().filter(|it| it.under_way.is_none() && !it.records.is_empty());
        let at_ms = idle.map(|lane| lane.not_before_ms).min()?;
        match &self.target.probation {
            None => Some(at_ms),
            Some(probation) if probation.probe.is_some() => None,
            Some(probation) => Some(at_ms.max(probation.until_ms)),
        }
    }

    /// Why nothing more is sent now. None: nothing waits, or it is sent by [`Dispatch::work`].
    pub fn waits(&self, now_ms: u64) -> Option<Waits> {
        if self.in_flight == 0 {
            return None;
        }
        if let Some(Probation { until_ms, reason, .. }) = &self.target.probation {
            return Some(Waits::Probation { until_ms: *until_ms, reason: reason.clone() });
        }
        match self.next_deadline() {
            None => Some(Waits::Answers),
            Some(at_ms) if at_ms > now_ms => Some(Waits::Retries { at_ms }),
            Some(_) => None,
        }
    }

    /// The target has answered a batch. An answer to none that is under way is ignored.
    pub fn on_answer(
        &mut self,
        batch: BatchId,
        answer: Answer,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let is_meant = |lane: &Lane| lane.under_way == Some(batch);
        let Some(place) = self.lanes.iter().position(is_meant) else { return };
        self.target.end_probe(batch);
        let lane = &mut self.lanes[place];
        lane.under_way = None;
        let before = lane.records.len();
        let began_ms = lane.groups.front().and_then(|group| group.first_ms).unwrap_or(now_ms);
        match answer {
            Answer::Records(answers) => {
                let decides = |it: &RecordAnswer| !matches!(it, RecordAnswer::Unknown(_));
                if answers.iter().any(decides) {
                    self.target.note_decision(now_ms);
                }
                let is_alive = self.target.has_decided_since(began_ms);
                lane.on_records(answers, is_alive, &self.rules, now_ms, out);
                if !is_alive {
                    self.target.note_unknown("no record accepted", &self.rules, now_ms);
                }
            }
            Answer::Refused(answer) => {
                self.target.note_decision(now_ms);
                lane.on_refused(answer, now_ms, out);
            }
            Answer::Unknown(answer) => match self.target.has_decided_since(began_ms) {
                true => lane.on_unknown(answer, &self.rules, now_ms, out),
                // Nobody knows whether it is the batch or the target.
                false => {
                    self.target.note_unknown(&answer, &self.rules, now_ms);
                    lane.not_before_ms = now_ms + self.rules.probation_ms.0;
                }
            },
            Answer::Busy { until_ms } => self.target.leave_alone(until_ms, "busy", &self.rules),
            Answer::Unavailable(answer) => self.target.note_away(&answer, &self.rules, now_ms),
        }
        self.in_flight -= before - self.lanes[place].records.len();
    }
}

impl Lane {
    fn next_batch(
        &mut self,
        rules: &DispatchRules,
        now_ms: u64,
        is_wanted: &impl Fn(RecordId) -> bool,
        out: &mut Vec<Effect>,
    ) -> Option<(Vec<RecordId>, bool)> {
        if self.under_way.is_some() || self.not_before_ms > now_ms {
            return None;
        }
        while !self.records.is_empty() {
            if self.groups.is_empty() {
                self.groups.push_back(Group::of(self.fitting(rules)));
            }
            if self.withdraw(is_wanted, out) {
                continue;
            }
            let group = self.groups.front_mut()?;
            group.first_ms.get_or_insert(now_ms);
            let records = self.records.iter_mut().take(group.len);
            let records = records.map(|item| (item.first_ms.get_or_insert(now_ms), item.id).1);
            return Some((records.collect(), group.is_alone));
        }
        None
    }

    /// Takes records out of the first group that are not to be sent any more, and the group with
    /// the last of them. True: the group is gone.
    fn withdraw(&mut self, is_wanted: &impl Fn(RecordId) -> bool, out: &mut Vec<Effect>) -> bool {
        let Some(group) = self.groups.front_mut() else { return false };
        let mut first = self.records.iter().take(group.len);
        if first.all(|item| is_wanted(item.id)) {
            return false;
        }
        let batch: Vec<Item> = self.records.drain(..group.len).collect();
        let (kept, gone): (Vec<Item>, Vec<Item>) =
            batch.into_iter().partition(|item| is_wanted(item.id));
        out.extend(gone.iter().map(|item| Effect::Withdrawn(item.id)));
        group.len = kept.len();
        let is_gone = kept.is_empty();
        if is_gone {
            self.groups.pop_front();
        }
        kept.into_iter().rev().for_each(|item| self.records.push_front(item));
        is_gone
    }

    /// How many records fit into a batch, at least one.
    fn fitting(&self, rules: &DispatchRules) -> usize {
        let mut bytes_left = rules.batch_bytes_max;
        let fits = |item: &&Item| {
            let fits = item.bytes <= bytes_left;
            bytes_left = bytes_left.saturating_sub(item.bytes);
            fits
        };
        let fitting = self.records.iter().take(rules.batch_records_max).take_while(fits).count();
        fitting.max(1)
    }

    /// `is_alive`: the target answers others, so an unknown answer is the records'. A record in a
    /// batch may have it because of one ahead of it, so that is no attempt of its own.
    fn on_records(
        &mut self,
        answers: Vec<RecordAnswer>,
        is_alive: bool,
        rules: &DispatchRules,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(group) = self.groups.pop_front() else { return };
        let batch: Vec<Item> = self.records.drain(..group.len).collect();
        let is_single = batch.len() == 1;
        let mut left = VecDeque::new();
        let mut answers = answers.into_iter();
        for mut item in batch {
            // A target that forgets one has not answered it.
            let answer = answers.next();
            match answer.unwrap_or_else(|| RecordAnswer::Unknown("no answer".to_owned())) {
                RecordAnswer::Accepted => out.push(Effect::Delivered(item.id)),
                RecordAnswer::Refused(answer) => {
                    out.push(item.dead(DeadReason::Refused, now_ms, answer));
                }
                RecordAnswer::Unknown(answer) => {
                    item.attempts += u32::from(is_alive && is_single);
                    if item.attempts >= rules.attempts_max {
                        out.push(item.dead(DeadReason::AttemptsUsedUp, now_ms, answer));
                    } else {
                        left.push_back(item);
                    }
                }
            }
        }
        let Some(attempts) = left.iter().map(|item| item.attempts).max() else { return };
        let unknowns = group.unknowns + u32::from(is_alive);
        let is_one = left.len() == 1;
        let (len, first_ms) = (left.len(), Some(now_ms));
        self.groups.push_front(Group { len, unknowns, first_ms, is_alone: is_one });
        left.append(&mut self.records);
        self.records = left;
        match !is_one && unknowns >= UNKNOWNS_MAX {
            true => self.halve(),
            false => self.not_before_ms = now_ms + rules.retry_after(attempts),
        }
    }

    /// Halved at once, until the one is found that the target does not take.
    fn on_refused(&mut self, answer: String, now_ms: u64, out: &mut Vec<Effect>) {
        let Some(group) = self.groups.front_mut() else { return };
        if group.len > 1 {
            return self.halve();
        }
        if !group.is_alone {
            *group = Group::part(1);
            return;
        }
        self.groups.pop_front();
        let Some(item) = self.records.pop_front() else { return };
        out.push(item.dead(DeadReason::Refused, now_ms, answer));
    }

    /// The target answers others.
    fn on_unknown(
        &mut self,
        answer: String,
        rules: &DispatchRules,
        now_ms: u64,
        out: &mut Vec<Effect>,
    ) {
        let Some(group) = self.groups.front_mut() else { return };
        group.unknowns += 1;
        group.first_ms = Some(now_ms);
        if group.len > 1 {
            if group.unknowns >= UNKNOWNS_MAX {
                return self.halve();
            }
            self.not_before_ms = now_ms + rules.retry_after(0);
            return;
        }
        group.is_alone = true;
        let Some(item) = self.records.front_mut() else { return };
        item.attempts += 1;
        if item.attempts < rules.attempts_max {
            self.not_before_ms = now_ms + rules.retry_after(item.attempts);
            return;
        }
        out.push(item.dead(DeadReason::AttemptsUsedUp, now_ms, answer));
        self.records.pop_front();
        self.groups.pop_front();
    }

    fn halve(&mut self) {
        let Some(Group { len, .. }) = self.groups.pop_front() else { return };
        self.groups.push_front(Group::part(len - len / 2));
        self.groups.push_front(Group::part(len / 2));
    }
}

impl Item {
    fn dead(&self, reason: DeadReason, now_ms: u64, answer: String) -> Effect {
        let Self { id, attempts, first_ms, .. } = *self;
        let first_ms = first_ms.unwrap_or(now_ms);
        Effect::DeadLetter(DeadLetter { id, reason, attempts, first_ms, last_ms: now_ms, answer })
    }
}

impl DispatchRules {
    fn retry_after(&self, attempts: u32) -> u64 {
        let place = (attempts.saturating_sub(1) as usize).min(self.retry_after_ms.len().max(1) - 1);
        self.retry_after_ms.get(place).copied().unwrap_or_default()
    }
}

impl Target {
    fn may_send(&self, now_ms: u64) -> bool {
        let may = |it: &Probation| it.probe.is_none() && it.until_ms <= now_ms;
        self.probation.as_ref().is_none_or(may)
    }

    const fn note_sent(&mut self, batch: BatchId) {
        if let Some(probation) = &mut self.probation {
            probation.probe = Some(batch);
        }
    }

    fn has_decided_since(&self, at_ms: u64) -> bool {
        self.decided_ms.is_some_and(|decided_ms| decided_ms >= at_ms)
    }

    fn note_decision(&mut self, now_ms: u64) {
        self.decided_ms = Some(now_ms);
        self.unknowns = 0;
        self.probation.take_if(|it| !it.is_asked || it.until_ms <= now_ms);
    }

    fn end_probe(&mut self, batch: BatchId) {
        if let Some(probation) = &mut self.probation {
            probation.probe.take_if(|probe| *probe == batch);
        }
    }

    fn note_unknown(&mut self, why: &str, rules: &DispatchRules, now_ms: u64) {
        self.unknowns += 1;
        if self.unknowns >= UNKNOWNS_MAX {
            self.note_away(why, rules, now_ms);
        }
    }

    fn note_away(&mut self, why: &str, rules: &DispatchRules, now_ms: u64) {
        let (first_ms, most_ms) = rules.probation_ms;
        // Others that were under way say the same of the same outage.
        let is_known = |it: &Probation| it.probe.is_none() && it.until_ms > now_ms;
        if self.probation.as_ref().is_some_and(is_known) {
            return;
        }
        let before = self.probation.as_ref();
        let delay_ms = before.map_or(first_ms, |it| (2 * it.delay_ms).min(most_ms));
        let (until_ms, reason, is_asked) = (now_ms + delay_ms, why.to_owned(), false);
        self.probation = Some(Probation { until_ms, delay_ms, reason, is_asked, probe: None });
    }

    fn leave_alone(&mut self, until_ms: u64, why: &str, rules: &DispatchRules) {
        let known_ms = self.probation.as_ref().map_or(0, |it| it.until_ms);
        let (until_ms, delay_ms) = (until_ms.max(known_ms), rules.probation_ms.0);
        let (reason, is_asked) = (why.to_owned(), true);
        self.probation = Some(Probation { until_ms, delay_ms, reason, is_asked, probe: None });
    }
}

#[cfg(test)]
mod tests;
