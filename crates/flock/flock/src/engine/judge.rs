//! The judgement at the end of a run: every subscriber's receipts against all that was sent.
//!
//! Each process judges the subscribers that it ran (`judge_part`); shared groups, whose members may
//! be anywhere, are judged by the conductor once the parts are together ([`judge_shared_groups`]).

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, Subscriber};
use super::stay::{Stay, join};
use super::tally::Measured;
use super::worker::{Harvest, HeardEntry};
use flock_measure::clients::keep_worst_clients;
use flock_measure::ledger::{
    Heard, Ledger, Published, Sent, SentTable, ShareKey, SharedTrack, Slot, StreamId, Track,
    Verdict, Window, judge, judge_shared, judge_stored, settled_ns,
};
use flock_measure::{
    ClientLatency, Contention, ErrorCount, Integrity, IntegrityCount, IntegritySample,
    LatencyHistogram, LatencyKind, WORST_MAX,
};
use flock_model::{GroupId, SubscriptionId};

/// One process's part of the result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    pub integrity: Integrity,
    pub shared: Vec<(ShareKey, StreamId, SharedTrack)>,
    pub shared_heard: Vec<(ShareKey, GroupHeard)>,
    /// Messages that came though their publisher was told that nobody hears them.
    #[serde(default)]
    pub denied: BTreeSet<(StreamId, u32)>,
    pub latencies: Vec<Measured>,
    pub timers: Vec<LatencyHistogram>,
    /// Of them, by timer: started, and never stopped.
    #[serde(default)]
    pub timers_unfinished: Vec<u64>,
    /// How long messages may have waited for the tool to look.
    pub receive_lag: LatencyHistogram,
    /// The slowest clients, whether they stand out or not.
    #[serde(default)]
    pub worst_clients: Vec<ClientLatency>,
    pub errors: Vec<ErrorCount>,
    /// What else the machine did, if it is an agent's.
    pub contention: Contention,
}

/// When a shared group was there.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct GroupHeard {
    pub heard: Heard,
    /// When connections of its members ended.
    #[serde(default)]
    pub ends: BTreeSet<Slot>,
    /// When some member was there: for deliveries at QoS 0, and for others.
    pub windows: [Vec<Window>; 2],
}

impl Part {
    pub fn merge(&mut self, other: Self) {
        merge_integrity(&mut self.integrity, other.integrity);
        let mut shared: BTreeMap<(ShareKey, StreamId), SharedTrack> =
            self.shared.drain(..).map(|(key, stream, track)| ((key, stream), track)).collect();
        for (key, stream, track) in other.shared {
            shared.entry((key, stream)).or_default().merge(&track);
        }
        self.shared =
            shared.into_iter().map(|((key, stream), track)| (key, stream, track)).collect();
        for (key, group) in other.shared_heard {
            match self.shared_heard.iter_mut().find(|(known, _)| *known == key) {
                Some((_, mine)) => mine.merge(group),
                None => self.shared_heard.push((key, group)),
            }
        }
        for measured in &other.latencies {
            add_latency(&mut self.latencies, measured);
        }
        for (at, timer) in other.timers.into_iter().enumerate() {
            match self.timers.get_mut(at) {
                Some(mine) => mine.merge(&timer),
                None => self.timers.push(timer),
            }
        }
        add_each(&mut self.timers_unfinished, &other.timers_unfinished);
        self.receive_lag.merge(&other.receive_lag);
        self.worst_clients.extend(other.worst_clients);
        keep_worst_clients(&mut self.worst_clients);
        self.errors.extend(other.errors);
        self.denied.extend(other.denied);
    }
}

impl GroupHeard {
    fn merge(&mut self, other: Self) {
        let (mine, heard) = (&mut self.heard, other.heard);
        mine.since_ns = mine.since_ns.min(heard.since_ns);
        mine.until_ns = mine.until_ns.max(heard.until_ns);
        mine.generation = mine.generation.max(heard.generation);
        mine.settled_ns = mine.settled_ns.max(heard.settled_ns);
        self.ends.extend(other.ends);
        for (mine, theirs) in self.windows.iter_mut().zip(other.windows) {
            join(mine, theirs);
        }
    }
}

pub(super) fn add_latency(all: &mut Vec<Measured>, other: &Measured) {
    match all.iter_mut().find(|known| (known.kind, known.qos) == (other.kind, other.qos)) {
        Some(known) => {
            known.histogram.merge(&other.histogram);
            known.unfinished += other.unfinished;
            known.missing += other.missing;
        }
        None => all.push(other.clone()),
    }
}

fn add_each(mine: &mut Vec<u64>, other: &[u64]) {
    mine.resize(mine.len().max(other.len()), 0);
    for (mine, other) in mine.iter_mut().zip(other) {
        *mine += other;
    }
}

fn merge_integrity(mine: &mut Integrity, other: Integrity) {
    for count in other.by_qos {
        add_count(&mut mine.by_qos, &count);
    }
    mine.worst.extend(other.worst);
    keep_worst(&mut mine.worst);
    mine.unacknowledged += other.unacknowledged;
    mine.misrouted += other.misrouted;
    mine.damaged += other.damaged;
    mine.repeated_pubrels += other.repeated_pubrels;
    mine.wrong_properties += other.wrong_properties;
    mine.wrong_identifiers += other.wrong_identifiers;
    mine.denied += other.denied;
    mine.stale_retained += other.stale_retained;
    mine.unreleased += other.unreleased;
    mine.unnoticed += other.unnoticed;
    mine.breaches += other.breaches;
    mine.wrong_topic += other.wrong_topic;
    mine.wrong_qos += other.wrong_qos;
    mine.wrong_retain += other.wrong_retain;
    mine.wrong_dup += other.wrong_dup;
    mine.missing_dup += other.missing_dup;
    mine.wills_lost += other.wills_lost;
    mine.wills_repeated += other.wills_repeated;
    mine.wills_unasked += other.wills_unasked;
    mine.repeated_pubacks += other.repeated_pubacks;
    mine.repeated_pubrecs += other.repeated_pubrecs;
    mine.repeated_pubcomps += other.repeated_pubcomps;
    mine.forgotten_sessions += other.forgotten_sessions;
    mine.reordered_in_groups += other.reordered_in_groups;
    mine.joined_late += other.joined_late;
    mine.interrupted += other.interrupted;
    mine.settled_us = mine.settled_us.max(other.settled_us);
}

fn add_count(all: &mut Vec<IntegrityCount>, count: &IntegrityCount) {
    match all.iter_mut().find(|known| known.qos == count.qos) {
        Some(known) => known.add(count),
        None => all.push(*count),
    }
    all.sort_by_key(|count| count.qos);
}

pub(super) fn keep_worst(worst: &mut Vec<IntegritySample>) {
    worst.sort_by_key(|sample| {
        std::cmp::Reverse(sample.lost + sample.duplicated + sample.reordered)
    });
    worst.truncate(WORST_MAX);
}

/// Judges the subscribers of one process.
pub(super) fn judge_part(plan: &Plan, harvests: &[Harvest], sent: &SentTable) -> Part {
    let settled_ns = settled_of(harvests);
    let judge = PartJudge::new(plan, harvests, settled_ns);
    let mut part = Part::default();
    part.integrity.settled_us = settled_ns / 1_000;
    for (stream, published) in sent.published() {
        judge.judge_stream(stream, published, sent, &mut part);
    }
    judge.judge_wills(sent, &mut part.integrity);
    keep_worst(&mut part.integrity.worst);
    for harvest in harvests {
        book_ledger(&harvest.ledger, &mut part.integrity);
        for measured in &harvest.latencies {
            add_latency(&mut part.latencies, measured);
        }
        part.receive_lag.merge(&harvest.receive_lag);
        for (at, timer) in harvest.timers.iter().enumerate() {
            match part.timers.get_mut(at) {
                Some(mine) => mine.merge(timer),
                None => part.timers.push(timer.clone()),
            }
        }
        add_each(&mut part.timers_unfinished, &harvest.timers_unfinished);
        part.errors.extend(harvest.errors.iter().cloned());
        part.worst_clients.extend(harvest.worst_clients.iter().cloned());
    }
    keep_worst_clients(&mut part.worst_clients);
    part.errors = super::tally::merge_errors(part.errors.into_iter());
    gather_shared(plan, harvests, settled_ns, &mut part);
    part
}

/// How long after their SUBACKs the subscribers of this process are owed all that is sent.
fn settled_of(harvests: &[Harvest]) -> u64 {
    let mut subscribes = LatencyHistogram::new();
    let all = harvests.iter().flat_map(|harvest| &harvest.latencies);
    for measured in all.filter(|measured| measured.kind == LatencyKind::Subscribe) {
        subscribes.merge(&measured.histogram);
    }
    settled_ns(&subscribes)
}

/// What a thread counted as it came.
fn book_ledger(ledger: &Ledger, all: &mut Integrity) {
    all.misrouted += ledger.misrouted;
    all.damaged += ledger.damaged;
    all.wrong_topic += ledger.wrong_topic;
    all.wrong_qos += ledger.wrong_qos;
    all.wrong_retain += ledger.wrong_retain;
    all.wrong_dup += ledger.wrong_dup;
    all.missing_dup += ledger.missing_dup;
    all.wrong_properties += ledger.wrong_properties;
    all.wrong_identifiers += ledger.wrong_identifiers;
    all.repeated_pubacks += ledger.repeated_pubacks;
    all.repeated_pubrecs += ledger.repeated_pubrecs;
    all.repeated_pubcomps += ledger.repeated_pubcomps;
    all.repeated_pubrels += ledger.repeated_pubrels;
    all.unreleased += ledger.unreleased;
    all.unnoticed += ledger.unnoticed;
    all.breaches += ledger.breaches;
    all.forgotten_sessions += ledger.forgotten;
    all.unacknowledged += ledger.uncompleted;
    all.reordered_in_groups += ledger.reordered_in_groups;
    for (qos, duplicated) in [(2, ledger.repeated), (0, ledger.repeated_stored)] {
        if duplicated > 0 {
            let repeats = IntegrityCount { qos, duplicated, ..IntegrityCount::default() };
            add_count(&mut all.by_qos, &repeats);
        }
    }
}

fn gather_shared(plan: &Plan, harvests: &[Harvest], settled_ns: u64, part: &mut Part) {
    let mut shared: BTreeMap<(ShareKey, StreamId), SharedTrack> = BTreeMap::new();
    let mut heard: BTreeMap<ShareKey, GroupHeard> = BTreeMap::new();
    for harvest in harvests {
        let mut ends: HashMap<u32, BTreeSet<Slot>> = HashMap::new();
        for &(client, end) in &harvest.ledger.ends {
            ends.entry(client).or_default().insert(end);
        }
        for (key, track) in &harvest.ledger.shared {
            shared.entry(*key).or_default().merge(track);
        }
        for entry in &harvest.heard {
            let subscription = plan.scenario.subscription(entry.subscription);
            if entry.since_ns == u64::MAX {
                continue;
            }
            for filter in plan.filters_of(entry.group, entry.index, subscription).iter() {
                let mut text = String::new();
                plan.write_filter(subscription, filter, &mut text);
                if !text.starts_with("$share/") {
                    continue;
                }
                let key = ShareKey { subscription: entry.subscription.0, filter: filter as u32 };
                let ends = ends.get(&entry.client).cloned().unwrap_or_default();
                let mut stay = Stay::new(*entry);
                if let Some(breaks) = harvest.breaks.get(&entry.client) {
                    stay.leave_out(breaks);
                }
                let (heard_at, windows) = (entry.strictness(0, settled_ns), stay.into_windows());
                let member = GroupHeard { heard: heard_at, ends, windows };
                match heard.get_mut(&key) {
                    Some(group) => group.merge(member),
                    None => drop(heard.insert(key, member)),
                }
            }
        }
    }
    part.shared = shared.into_iter().map(|((key, stream), track)| (key, stream, track)).collect();
    part.shared_heard = heard.into_iter().collect();
}

pub(super) struct PartJudge<'a> {
    pub(super) plan: &'a Plan,
    pub(super) harvests: &'a [Harvest],
    /// By thread, client and subscription.
    pub(super) heard: Vec<HashMap<(u32, SubscriptionId), Stay>>,
    settled_ns: u64,
}

impl<'a> PartJudge<'a> {
    fn new(plan: &'a Plan, harvests: &'a [Harvest], settled_ns: u64) -> Self {
        let mut heard = Vec::new();
        for harvest in harvests {
            let mut of_thread: HashMap<(u32, SubscriptionId), Stay> = HashMap::new();
            for entry in &harvest.heard {
                of_thread
                    .entry((entry.client, entry.subscription))
                    .and_modify(|stay| stay.add(entry))
                    .or_insert_with(|| Stay::new(*entry));
            }
            for ((client, _), stay) in &mut of_thread {
                if let Some(breaks) = harvest.breaks.get(client) {
                    stay.leave_out(breaks);
                }
            }
            heard.push(of_thread);
        }
        Self { plan, harvests, heard, settled_ns }
    }

    fn judge_stream(
        &self,
        stream: StreamId,
        sent: Published<'_>,
        table: &SentTable,
        part: &mut Part,
    ) {
        let unheard = table.unheard.get(&stream).map_or(&[][..], Vec::as_slice);
        let Some((topics, index)) = self.plan.topic_of(stream) else { return };
        let mut plain: Vec<(&Subscriber, u64)> = Vec::new();
        for subscriber in self.plan.listeners() {
            let subscription = self.plan.scenario.subscription(subscriber.subscription);
            self.plan.each_match(subscription, topics, index, &mut |filter, shared| {
                if !shared {
                    plain.push((subscriber, filter));
                }
            });
        }
        let several = plain.len() > 1;
        let mut judged: Vec<(GroupId, u64)> = Vec::new();
        for (subscriber, filter) in &plain {
            let subscription = self.plan.scenario.subscription(subscriber.subscription);
            for client in self.plan.clients_of(subscriber.group, *filter, subscription).iter() {
                if several && judged.contains(&(subscriber.group, client)) {
                    continue;
                }
                let repeats = several
                    && plain.iter().any(|(other, other_filter)| {
                        (other.subscription, *other_filter) != (subscriber.subscription, *filter)
                            && other.group == subscriber.group
                    });
                let publisher = self.plan.locate(stream).map(|(family, at, _)| (family.group, at));
                if subscriber.no_local && publisher == Some((subscriber.group, client)) {
                    continue;
                }
                self.judge_pair(stream, sent, (subscriber, client, repeats), part);
                self.note_denied(stream, unheard, (subscriber.group, client), part);
                if several {
                    judged.push((subscriber.group, client));
                }
            }
        }
    }

    fn judge_pair(
        &self,
        stream: StreamId,
        published: Published<'_>,
        (subscriber, client, repeats): (&Subscriber, u64, bool),
        part: &mut Part,
    ) {
        let Some((thread, at)) = self.find(subscriber.group, client) else { return };
        let Some(stay) = self.heard[thread].get(&(at, subscriber.subscription)) else { return };
        let entry = &stay.entry;
        if entry.since_ns == u64::MAX {
            // Never granted: nothing is owed, and the failed subscribe is counted elsewhere.
            return;
        }
        let sent = published.sent;
        let qos = sent.qos.min(subscriber.qos as u8);
        let track = self.harvests[thread].ledger.track(at, stream);
        let is_patchy = stay.times > 1;
        let heard = Heard {
            copies_may_repeat: repeats,
            is_patchy,
            ..entry.strictness(qos, self.settled_ns)
        };
        let is_owed_the_stored = entry.since_ns > sent.last_ns && self.plan.retains_one(stream);
        let verdict = match is_owed_the_stored && track.is_none() {
            true => {
                let stored = self.harvests[thread].ledger.stored(at, stream);
                let has_stayed = entry.stayed_ns >= self.plan.scenario.drain_us * 1_000;
                judge_stored(published, stored, entry.takes_stored && has_stayed, qos)
            }
            false => judge(published, track, (heard, stay.windows(qos)), qos),
        };
        if let Some(track) = track
            && !is_patchy
            && !repeats
        {
            self.book_late(stream, (sent, entry, track), &mut part.integrity);
        }
        let routed = self.plan.scenario.subscription(subscriber.subscription).routed;
        // What comes from a broker's store has no latency, come or not.
        let missing = if is_owed_the_stored { 0 } else { verdict.count.lost };
        add_waits(&mut part.latencies, &verdict, missing, routed);
        let name = || client_name(self.plan, subscriber.group, client);
        book(self.plan, stream, &verdict, name, &mut part.integrity);
    }

    /// What was all sent long before the client subscribed can only come from a broker's store, and
    /// says so.
    fn book_late(
        &self,
        stream: StreamId,
        (sent, entry, track): (&Sent, &HeardEntry, &Track),
        all: &mut Integrity,
    ) {
        let is_late = entry.since_ns > sent.last_ns.saturating_add(UNDER_WAY_NS_MAX);
        if !is_late || !entry.is_fresh || entry.as_published {
            return;
        }
        let came = u64::from(track.received());
        match self.plan.retains(stream) {
            true => all.wrong_retain += came,
            false => all.misrouted += came,
        }
    }

    /// Notes what the client got though its publisher was told that nobody would.
    fn note_denied(
        &self,
        stream: StreamId,
        unheard: &[u32],
        (group, client): (GroupId, u64),
        part: &mut Part,
    ) {
        if unheard.is_empty() {
            return;
        }
        let Some((thread, at)) = self.find(group, client) else { return };
        let Some(track) = self.harvests[thread].ledger.track(at, stream) else { return };
        let came = unheard.iter().filter(|&&sequence| track.has(sequence));
        part.denied.extend(came.map(|&sequence| (stream, sequence)));
    }

    /// Where a client ran, if in this process.
    pub(super) fn find(&self, group: GroupId, client: u64) -> Option<(usize, u32)> {
        let here = self.plan.scenario.group(group).here;
        let offset = client.checked_sub(here.first)?;
        if offset % here.step != 0 || offset / here.step >= here.count {
            return None;
        }
        let (local, threads) = (offset / here.step, self.harvests.len() as u64);
        let thread = (local % threads) as usize;
        Some((thread, self.harvests[thread].bases[group.index()] + (local / threads) as u32))
    }
}

/// Judges the shared groups of the whole run, and adds the result to `part`'s integrity.
pub fn judge_shared_groups(plan: &Plan, sent: &SentTable, part: &mut Part) {
    let tracks: HashMap<(ShareKey, StreamId), &SharedTrack> =
        part.shared.iter().map(|(key, stream, track)| ((*key, *stream), track)).collect();
    let heard: HashMap<ShareKey, &GroupHeard> =
        part.shared_heard.iter().map(|(key, group)| (*key, group)).collect();
    let mut denied: Vec<(StreamId, u32)> = Vec::new();
    for (stream, published) in sent.published() {
        let Some((topics, index)) = plan.topic_of(stream) else { continue };
        let mut judged: Vec<ShareKey> = Vec::new();
        for subscriber in plan.listeners() {
            let subscription = plan.scenario.subscription(subscriber.subscription);
            plan.each_match(subscription, topics, index, &mut |filter, shared| {
                let key =
                    ShareKey { subscription: subscriber.subscription.0, filter: filter as u32 };
                let Some(group) = heard.get(&key) else { return };
                if !shared || judged.contains(&key) {
                    return;
                }
                judged.push(key);
                let qos = published.sent.qos.min(subscriber.qos as u8);
                let track = tracks.get(&(key, stream)).copied();
                let unheard = sent.unheard.get(&stream).into_iter().flatten();
                let came = unheard.filter(|sequence| track.is_some_and(|one| one.has(**sequence)));
                denied.extend(came.map(|&sequence| (stream, sequence)));
                let windows = &group.windows[usize::from(qos > 0)];
                let heard = (group.heard, windows.as_slice(), &group.ends);
                let verdict = judge_shared(published, track, heard, qos);
                let name = || {
                    let mut text = String::new();
                    plan.write_filter(subscription, filter, &mut text);
                    text
                };
                let missing = verdict.count.lost;
                add_waits(&mut part.latencies, &verdict, missing, subscription.routed);
                book(plan, stream, &verdict, name, &mut part.integrity);
            });
        }
    }
    part.denied.extend(denied);
    part.integrity.denied = part.denied.len() as u64;
    part.integrity.unacknowledged += sent.unpromised_count();
    keep_worst(&mut part.integrity.worst);
}

/// What was handed to the kernel so long before has reached its broker.
const UNDER_WAY_NS_MAX: u64 = 1_000_000_000;

/// What nobody promised has waited at least until the end. What was lost has no latency.
pub(super) fn add_waits(all: &mut Vec<Measured>, verdict: &Verdict, missing: u64, routed: bool) {
    let kind = if routed { LatencyKind::Routed } else { LatencyKind::EndToEnd };
    let mut histogram = LatencyHistogram::new();
    if verdict.waited_ns.is_empty() && missing == 0 {
        return;
    }
    for &waited_ns in &verdict.waited_ns {
        histogram.record_nanos(waited_ns);
    }
    let unfinished = verdict.waited_ns.len() as u64;
    add_latency(all, &Measured { kind, qos: verdict.count.qos, histogram, unfinished, missing });
}

pub(super) fn book(
    plan: &Plan,
    stream: StreamId,
    verdict: &Verdict,
    subscriber: impl FnOnce() -> String,
    all: &mut Integrity,
) {
    let count = &verdict.count;
    add_count(&mut all.by_qos, count);
    all.joined_late += u64::from(verdict.joined_late);
    all.interrupted += u64::from(verdict.interrupted);
    all.damaged += verdict.invented;
    all.stale_retained += u64::from(verdict.is_stale);
    if count.lost + count.duplicated + count.reordered == 0 {
        return;
    }
    let Some((family, client, _)) = plan.locate(stream) else { return };
    let topic = plan.topic_of(stream);
    all.worst.push(IntegritySample {
        subscriber: subscriber(),
        publisher: client_name(plan, family.group, client),
        topic: topic
            .map_or_else(String::new, |(topics, index)| plan.scenario.topic_name(topics, index)),
        lost: count.lost,
        duplicated: count.duplicated,
        reordered: count.reordered,
        missing: verdict.missing.clone(),
    });
    if all.worst.len() > WORST_MAX * 8 {
        keep_worst(&mut all.worst);
    }
}

fn client_name(plan: &Plan, group: GroupId, client: u64) -> String {
    let group = plan.scenario.group(group);
    group.client_ids.name(group.offset + client)
}
