//! Streams: what was stored in them, in the order in which shards reported it, against what was
//! sent and acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use broker::journal::StreamRecord;
use broker::streams::{StoredRecord, StreamFound, StreamNews};
use broker::{Durability, Name, ShardId};
use codec::{Properties, QoS, Reason};
use streams::names;

use super::{MessageId, Payload, Terms};
use crate::client::OwnedPublish;
use crate::stream_world::StreamPlan;

/// A stream, and a shard of it.
pub(crate) type LogName = (u32, ShardId);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) plans: Vec<StreamPlan>,
    sent: BTreeMap<MessageId, Sent>,
    /// By ordinal, from 0 on. What limits have deleted stays here.
    logs: BTreeMap<LogName, Vec<Entry>>,
    /// Power was lost since the last start, and what was not synced with it.
    has_lost_power: bool,
}

/// What was published.
#[derive(Debug)]
struct Sent {
    qos: QoS,
    is_retained: bool,
    is_clear: bool,
    is_will: bool,
    bytes: usize,
    /// How often it was written.
    times: u32,
    /// It was acknowledged, and what it then outlives.
    promise: Option<Durability>,
    /// QoS 2 or not, it may rightly be stored twice.
    may_repeat: bool,
}

/// A record.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) client_id: String,
    pub(crate) topic: String,
    /// None: it clears what is retained.
    payload: Option<Payload>,
    expires_at_ms: u64,
    /// It outlives a loss of power.
    is_durable: bool,
    /// Some: it is a dead letter, of this consumer and event.
    pub(crate) dead: Option<(String, String)>,
}

impl Entry {
    fn read(bytes: &Arc<Vec<u8>>) -> Result<Self, String> {
        let record = StreamRecord::decode(bytes).map_err(|error| error.to_string())?;
        let topic = Name::of_key(record.topic).text().to_owned();
        let payload = Payload::from_bytes(record.payload);
        if payload.is_none() && !record.payload.is_empty() {
            return Err("a payload that nobody sent".into());
        }
        let user = |wanted: &str| {
            let mut all = Properties::from_raw(record.properties).user_properties();
            all.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
        };
        let dead = user(names::CONSUMER).zip(user(names::EVENT));
        let (client_id, expires_at_ms) = (record.client_id.to_owned(), record.expires_at_ms);
        let (bytes, is_durable) = (Arc::clone(bytes), false);
        Ok(Self { bytes, client_id, topic, payload, expires_at_ms, is_durable, dead })
    }

    pub(crate) const fn expires(&self) -> bool {
        self.expires_at_ms != u64::MAX
    }

    /// The same message, whoever stored it.
    pub(crate) fn is_same_message(&self, other: &Self) -> bool {
        let parts = |entry: &Self| {
            let record = StreamRecord::decode(&entry.bytes).ok();
            record.map(|it| (it.at_ms, it.qos, it.retain, it.payload.to_vec()))
        };
        self.client_id == other.client_id
            && self.topic == other.topic
            && parts(self) == parts(other)
    }
}

/// What clients send, and what they are told.
impl Streams {
    pub(super) fn on_sent(&mut self, publish: &OwnedPublish, is_will: bool) {
        if self.plans.is_empty() {
            return;
        }
        let bytes = if publish.is_clear { 0 } else { Payload::BYTES + publish.padding };
        let sent = Sent {
            qos: publish.qos,
            is_retained: publish.retain,
            is_clear: publish.is_clear,
            is_will,
            bytes,
            times: 1,
            promise: None,
            may_repeat: false,
        };
        self.sent.insert((publish.topic.clone(), publish.payload), sent);
    }

    fn of(&mut self, publish: &OwnedPublish) -> Option<&mut Sent> {
        self.sent.get_mut(&(publish.topic.clone(), publish.payload))
    }

    pub(super) fn on_resent(&mut self, publish: &OwnedPublish) {
        if let Some(sent) = self.of(publish) {
            sent.times += 1;
        }
    }

    /// `level`: of the message.
    pub(super) fn on_acknowledged(&mut self, publish: &OwnedPublish, level: Durability) {
        let topic = &publish.topic;
        let Some(sent) = self.sent.get_mut(&(topic.clone(), publish.payload)) else { return };
        let wants = self.plans.iter().filter(|plan| sent.is_taken_by(plan, topic));
        sent.promise = Some(wants.map(|plan| plan.level).max().unwrap_or(level).max(level));
    }

    /// A message that a stream takes has found somebody.
    pub(crate) fn judge_reason(&self, publish: &OwnedPublish, reason: Reason) -> bool {
        let sent = self.sent.get(&(publish.topic.clone(), publish.payload));
        let is_taken =
            |sent: &Sent| self.plans.iter().any(|plan| sent.is_taken_by(plan, &publish.topic));
        reason != Reason::NO_MATCHING_SUBSCRIBERS || !sent.is_some_and(is_taken)
    }

    pub(super) fn on_maybe_refused(&mut self, publish: &OwnedPublish) {
        if let Some(sent) = self.of(publish) {
            sent.may_repeat = true;
        }
    }

    /// The broker ended, and what it kept less firmly than `kept` may be gone.
    pub(super) fn on_crash(&mut self, kept: Durability, terms: &Terms) {
        self.has_lost_power |= kept == Durability::Fsync;
        for ((topic, _), sent) in &mut self.sent {
            sent.promise.take_if(|promise| *promise < kept);
            // Its packet ID may be forgotten.
            sent.may_repeat |= terms.level_of(topic).min(terms.level) < kept;
        }
    }
}

impl Sent {
    fn is_taken_by(&self, plan: &StreamPlan, topic: &str) -> bool {
        plan.takes(topic, self.qos as u8, self.is_retained, self.bytes)
    }
}

/// What shards report.
impl Streams {
    /// In the order of the shard.
    pub(crate) fn on_news(&mut self, shard: ShardId, news: &StreamNews) -> Result<(), String> {
        match news {
            StreamNews::Stored { stream, first, records } => {
                self.on_stored((stream.0, shard), *first, records)
            }
            StreamNews::Synced { stream, next } => {
                let log = self.logs.entry((stream.0, shard)).or_default();
                let synced = log.iter_mut().take(*next as usize);
                synced.for_each(|entry| entry.is_durable = true);
                Ok(())
            }
            StreamNews::NeedsSpace | StreamNews::Done { .. } => Ok(()),
        }
    }

    fn on_stored(
        &mut self,
        name: LogName,
        first: u64,
        records: &[StoredRecord],
    ) -> Result<(), String> {
        for (ordinal, record) in (first..).zip(records) {
            let at = format!("record {ordinal} of stream {}, shard {}", name.0, name.1);
            let log = self.logs.entry(name).or_default();
            if let Some(known) = log.get(ordinal as usize) {
                if known.bytes != record.bytes {
                    return Err(format!("{at}: it was another one before the start"));
                }
                continue;
            }
            if log.len() as u64 != ordinal {
                return Err(format!("{at}: {} records are ahead of it", log.len()));
            }
            let mut entry = Entry::read(&record.bytes).map_err(|rule| format!("{at}: {rule}"))?;
            entry.is_durable =
                self.judge_entry(name.0, &entry).map_err(|r| format!("{at}: {r}"))?;
            self.logs.entry(name).or_default().push(entry);
        }
        Ok(())
    }

    /// Whether the record outlives a loss of power. Err: the stream must not have it.
    fn judge_entry(&self, stream: u32, entry: &Entry) -> Result<bool, String> {
        let Some(plan) = self.plans.iter().find(|plan| plan.number == stream) else {
            return Err("there is no such stream".into());
        };
        if entry.dead.is_some() {
            return Ok(plan.level == Durability::Fsync);
        }
        let topic = &entry.topic;
        let Some(payload) = entry.payload else { return Ok(false) };
        let Some(sent) = self.sent.get(&(topic.clone(), payload)) else {
            return Err(format!("nobody sent {payload:?} on {topic}"));
        };
        if entry.client_id != format!("c{}", payload.publisher) {
            return Err(format!("{} did not send {payload:?}", entry.client_id));
        }
        if !sent.is_taken_by(plan, topic) {
            return Err(format!("it does not take {payload:?} on {topic}"));
        }
        let takers = self.plans.iter().filter(|plan| sent.is_taken_by(plan, topic));
        Ok(takers.map(|plan| plan.level).max() == Some(Durability::Fsync))
    }

    /// A start has found this. What is gone was not promised.
    pub(crate) fn on_start(&mut self, name: LogName, found: &StreamFound) -> Result<(), String> {
        let log = self.logs.entry(name).or_default();
        let lost = log.get(found.next as usize..).unwrap_or_default();
        let is_promised = |entry: &&Entry| entry.is_durable || !self.has_lost_power;
        if let Some(entry) = lost.iter().find(is_promised) {
            let (stream, shard) = name;
            return Err(format!(
                "stream {stream}, shard {shard}: {:?} on {} was committed, and is not there: it \
                 ends at {} of {}",
                entry.payload,
                entry.topic,
                found.next,
                log.len()
            ));
        }
        log.truncate(found.next as usize);
        Ok(())
    }

    pub(crate) fn end_start(&mut self) {
        self.has_lost_power = false;
    }

    pub(crate) fn log(&self, name: LogName) -> &[Entry] {
        self.logs.get(&name).map_or(&[], Vec::as_slice)
    }

    /// A file is to have this record.
    pub(crate) fn judge_archived(
        &self,
        name: LogName,
        ordinal: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        let what = match self.log(name).get(ordinal as usize) {
            None => "it is not committed",
            Some(entry) if *entry.bytes != bytes => "it is another one",
            Some(entry) if !entry.is_durable => "it is not synced",
            Some(_) => return Ok(()),
        };
        Err(format!("a file has record {ordinal} of stream {}, shard {}: {what}", name.0, name.1))
    }
}

/// How often a stream has each message, and each topic a message without a payload.
#[derive(Default)]
struct Counts {
    messages: BTreeMap<MessageId, u32>,
    clears: BTreeMap<String, u32>,
}

/// After everybody has read and acknowledged everything.
impl Streams {
    /// `wills`: those that were published.
    pub(super) fn judge(&self, terms: &Terms, wills: &BTreeSet<MessageId>) -> Result<(), String> {
        for plan in &self.plans {
            let mut counts = Counts::default();
            for ((stream, _), log) in &self.logs {
                if *stream == plan.number {
                    judge_order(log, terms).map_err(|rule| format!("stream {stream}: {rule}"))?;
                    count(log, &mut counts);
                }
            }
            self.judge_counts(plan, &counts, terms, wills)
                .map_err(|rule| format!("stream {}: {rule}", plan.number))?;
        }
        Ok(())
    }

    fn judge_counts(
        &self,
        plan: &StreamPlan,
        counts: &Counts,
        terms: &Terms,
        wills: &BTreeSet<MessageId>,
    ) -> Result<(), String> {
        let mut clears: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
        for (id, sent) in self.sent.iter().filter(|(id, it)| it.is_taken_by(plan, &id.0)) {
            let is_due = match sent.is_will {
                true => wills.contains(id) && !terms.may_refuse,
                false => sent.promise.is_some() && sent.qos != QoS::AtMostOnce,
            };
            if sent.is_clear {
                let own = clears.entry(&id.0).or_default();
                *own = (own.0 + u32::from(is_due), own.1 + sent.times);
                continue;
            }
            let times = counts.messages.get(id).copied().unwrap_or_default();
            if is_due && times == 0 {
                return Err(format!("{id:?} was acknowledged, and is not stored"));
            }
            if times > sent.times_max() {
                return Err(format!("{id:?}, {:?}, is stored {times} times", sent.qos));
            }
        }
        for (topic, (least, most)) in clears {
            let times = counts.clears.get(topic).copied().unwrap_or_default();
            if times < least || times > most {
                return Err(format!("{topic} was cleared {least} to {most} times, not {times}"));
            }
        }
        Ok(())
    }

    /// So many records were stored by now, in all streams.
    pub(crate) fn stored(&self) -> u64 {
        self.logs.values().map(|log| log.len() as u64).sum()
    }
}

impl Sent {
    const fn times_max(&self) -> u32 {
        match self.qos {
            _ if self.may_repeat => u32::MAX,
            QoS::AtLeastOnce if !self.is_will => self.times,
            _ => 1,
        }
    }
}

/// Messages of one publisher and topic are in their order.
fn judge_order(log: &[Entry], terms: &Terms) -> Result<(), String> {
    let mut last: BTreeMap<(&str, u32), u32> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for entry in log.iter().filter(|entry| entry.dead.is_none()) {
        let Some(payload) = entry.payload else { continue };
        if !seen.insert((&*entry.topic, payload)) || terms.may_refuse {
            continue;
        }
        let last = last.entry((&entry.topic, payload.publisher)).or_default();
        if payload.sequence < *last {
            return Err(format!("{payload:?} on {} is behind {last}", entry.topic));
        }
        *last = payload.sequence;
    }
    Ok(())
}

fn count(log: &[Entry], counts: &mut Counts) {
    for entry in log.iter().filter(|entry| entry.dead.is_none()) {
        let times = match entry.payload {
            Some(payload) => counts.messages.entry((entry.topic.clone(), payload)).or_default(),
            None => counts.clears.entry(entry.topic.clone()).or_default(),
        };
        *times += 1;
    }
}
