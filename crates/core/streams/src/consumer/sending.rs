//! What is sent to the target of a consumer, and what its answers mean.

use broker::journal::StreamRecord;
use routing::dispatch::{self, Answer, BatchId, DeadLetter, RecordAnswer, RecordId};
use routing::{Event, Outcome, Verdict};

use super::Consumer;
use super::facts::Finished;
use super::progress::Progress;
use crate::definition::{ConsumerDefinition, StreamDefinition};
use crate::effect::{Effect, Outgoing};
use crate::event_id::EventId;
use crate::message::Message;
use crate::settings::HubSettings;

/// Which records are still to be sent.
struct Wanted<'a> {
    definition: &'a ConsumerDefinition,
    shards: &'a [Progress],
    revision: u64,
    now_ms: u64,
    wall_ahead_ms: i64,
}

impl Wanted<'_> {
    /// The outcome of a record that is not to be sent any more: it has expired, or the rule is
    /// another one since.
    fn verdict(&self, id: RecordId) -> Option<Outcome> {
        let held = self.shards[usize::from(id.shard)].held.get(&id.ordinal)?;
        if self.definition.skip_expired && held.expires_at_ms <= self.now_ms {
            return Some(Outcome::SkippedExpired);
        }
        if held.revision == self.revision {
            return None;
        }
        let message = StreamRecord::decode(&held.bytes).and_then(Message::unpack).ok()?;
        let event_id = EventId::new(message.life(), self.definition.stream, id);
        let namespace = &self.definition.namespace;
        let record = message.as_record(event_id.as_str(), namespace, self.wall_ahead_ms);
        match self.definition.rule.verdict(&Event::new(&record)) {
            Verdict::Matches => None,
            Verdict::Filter => Some(Outcome::NotMatched),
            Verdict::Condition(_) => Some(Outcome::SkippedByCondition),
        }
    }
}

/// Characters of the last error that are kept.
const ERROR_CHARS_MAX: usize = 256;

impl Consumer {
    /// Sends what may be sent.
    pub(crate) fn send(
        &mut self,
        stream: &StreamDefinition,
        now_ms: u64,
        settings: &HubSettings,
        out: &mut Vec<Effect>,
    ) {
        if !self.is_active() {
            return;
        }
        let mut effects = Vec::new();
        let ahead_ms = settings.wall_ahead_ms;
        let (definition, shards, revision) = (&self.definition, &self.shards, self.revision);
        let own = Wanted { definition, shards, revision, now_ms, wall_ahead_ms: ahead_ms };
        match self.is_mixed || definition.skip_expired {
            true => self.dispatch.work_if(now_ms, |id| own.verdict(id).is_none(), &mut effects),
            false => self.dispatch.work(now_ms, &mut effects),
        }
        for effect in effects {
            if let dispatch::Effect::Withdrawn(id) = effect {
                let (definition, shards, revision) =
                    (&self.definition, &self.shards, self.revision);
                let own = Wanted { definition, shards, revision, now_ms, wall_ahead_ms: ahead_ms };
                let outcome = own.verdict(id).unwrap_or(Outcome::NotMatched);
                self.finish(id, outcome, now_ms, settings);
            }
            let dispatch::Effect::Send { batch, records, is_alone } = effect else { continue };
            self.counters.batches += 1;
            self.counters.sent += records.len() as u64;
            let records = records.into_iter();
            let records = records.filter_map(|id| self.outgoing(id, stream, ahead_ms)).collect();
            let consumer = self.definition.number;
            out.push(Effect::Send { consumer, batch, is_alone, records });
        }
    }

    /// As the newest revision of the rule makes it. A record is held while it is in flight, and was
    /// read once, so there is one.
    fn outgoing(
        &self,
        id: RecordId,
        stream: &StreamDefinition,
        wall_ahead_ms: i64,
    ) -> Option<Outgoing> {
        let held = self.shards[usize::from(id.shard)].held.get(&id.ordinal)?;
        let stored = StreamRecord::decode(&held.bytes).ok()?;
        let event_id = EventId::new(stored.life, stream.number, id);
        let message = Message::unpack(stored).ok()?;
        let record =
            message.as_record(event_id.as_str(), &self.definition.namespace, wall_ahead_ms);
        let event = Event::new(&record);
        let output = self.rule().part(&event);
        let key = self.rule().target().and_then(|target| target.destination.key(&record));
        let time_ms = record.time_ms;
        Some(Outgoing { id, key, output, time_ms, event_id })
    }

    /// The target has answered a batch. Records that will not be delivered and have no stream to go
    /// to are returned.
    pub(crate) fn on_answer(
        &mut self,
        batch: BatchId,
        answer: Answer,
        now_ms: u64,
        settings: &HubSettings,
    ) -> Vec<Finished> {
        self.note_error(&answer);
        let mut effects = Vec::new();
        self.dispatch.on_answer(batch, answer, now_ms, &mut effects);
        let mut finished = Vec::new();
        for effect in effects {
            match effect {
                dispatch::Effect::Delivered(id) => {
                    self.finish(id, Outcome::Delivered, now_ms, settings);
                }
                dispatch::Effect::DeadLetter(dead) if self.dead_letter().is_some() => {
                    self.shards[usize::from(dead.id.shard)].dead.push_back(dead);
                }
                dispatch::Effect::DeadLetter(dead) => {
                    self.finish(dead.id, Outcome::GivenUp, now_ms, settings);
                    finished.push(Finished { dead, stream: None });
                }
                dispatch::Effect::Send { .. } | dispatch::Effect::Withdrawn(_) => {}
            }
        }
        finished
    }

    /// The stream of dead letters was taken away from the rule.
    pub(super) fn discard_dead(&mut self, shard: u16, now_ms: u64, settings: &HubSettings) {
        let progress = &mut self.shards[usize::from(shard)];
        progress.dead_refused = None;
        for DeadLetter { id, .. } in std::mem::take(&mut progress.dead) {
            self.finish(id, Outcome::GivenUp, now_ms, settings);
        }
    }

    fn finish(&mut self, id: RecordId, outcome: Outcome, now_ms: u64, settings: &HubSettings) {
        // A record of this run is held until it has its outcome.
        if self.release(id) {
            let progress = &mut self.shards[usize::from(id.shard)];
            progress.note(id.ordinal, outcome, now_ms, settings);
            self.counters.count(outcome, 1);
        }
    }

    fn note_error(&mut self, answer: &Answer) {
        let text = match answer {
            Answer::Refused(text) | Answer::Unknown(text) | Answer::Unavailable(text) => text,
            Answer::Busy { .. } => "busy",
            Answer::Records(answers) => {
                let text = answers.iter().find_map(|answer| match answer {
                    RecordAnswer::Accepted => None,
                    RecordAnswer::Refused(text) | RecordAnswer::Unknown(text) => Some(text),
                });
                let Some(text) = text else { return };
                text
            }
        };
        self.counters.failed_batches += 1;
        self.last_error = Some(text.chars().take(ERROR_CHARS_MAX).collect());
    }
}
