//! What must hold, counted apart from the owner of streams.

use std::collections::{BTreeMap, BTreeSet};

use broker::journal::StreamRecord;
use broker::streams::{ConsumerNumber, StreamChange, StreamNumber};
use codec::Properties;
use routing::dispatch::RecordId;
use routing::{Cursor, Outcome};
use storage::stream::{BlockHeader, FILE_HEADER_BYTES, FileIdentity, StreamCommand};
use streams::{ConsumerView, EventId, Order, Outgoing, ShardView, names};

use super::disk::identity_of;
use super::journal::Fact;
use super::message::Message;
use super::target::Sent;
use super::{ATTEMPTS_MAX, Checked, World};

/// A record of a stream, as the journal of its shard has it.
struct Known {
    event_id: EventId,
    message: Message,
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(what()) }
}

impl World {
    fn known(&self, stream: StreamNumber, shard: u16) -> Vec<Known> {
        let journal = &self.shards[usize::from(shard)];
        let records = journal.records(stream, 0, journal.committed);
        let known = records.iter().zip(0..).map(|(record, ordinal)| {
            let stored = StreamRecord::decode(&record.bytes).expect("it was encoded");
            Known {
                event_id: EventId::new(stored.life, stream, RecordId { shard, ordinal }),
                message: Message::parse(stored.payload),
            }
        });
        known.collect()
    }

    /// A file is written of synced records only.
    pub(super) fn check_command(&self, stream: StreamNumber, command: &StreamCommand) -> Checked {
        let StreamCommand::Write { file, offset, bytes, .. } = command else { return Ok(()) };
        let begin = if *offset == 0 { FILE_HEADER_BYTES } else { 0 };
        let identity = FileIdentity { stream: identity_of(stream), number: *file };
        let header = BlockHeader::read(&bytes[begin..], &identity).expect("it is a block");
        let journal = &self.shards[usize::from(header.shard)];
        let synced = journal.count(stream, journal.synced);
        ensure(header.next() <= synced, || {
            format!("a record is in a file and not synced: {header:?}")
        })
    }

    /// Only committed records are sent, of consumers that run, each with an ID of its own.
    pub(super) fn check_send(&mut self, consumer: ConsumerNumber, records: &[Outgoing]) -> Checked {
        let is_active = !self.paused[&consumer] && !self.suspended.contains(&consumer);
        ensure(is_active && self.wants.contains_key(&consumer), || {
            format!("{consumer:?} is paused, suspended or removed, and sends")
        })?;
        let stream = self.wants[&consumer].1.stream;
        for outgoing in records {
            let RecordId { shard, ordinal } = outgoing.id;
            let journal = &self.shards[usize::from(shard)];
            let committed = journal.count(stream, journal.committed);
            ensure(ordinal < committed, || format!("{:?} is not committed", outgoing.id))?;
            let body = outgoing.output.body.as_ref().expect("it has one");
            let Message { uid, expires_ms, .. } = Message::parse(body);
            let is_expired = expires_ms > 0 && expires_ms <= self.now_ms;
            ensure(!(is_expired && self.wants[&consumer].1.skip_expired), || {
                format!("{:?} has expired, and is sent", outgoing.id)
            })?;
            let known = *self.ids.entry(outgoing.event_id).or_insert(uid);
            ensure(known == uid, || format!("{} names two messages", outgoing.event_id))?;
        }
        Ok(())
    }

    /// A journal that has dropped files takes a lower number for one of them.
    pub(super) fn check_number(&self, shard: u16, change: &StreamChange) -> Checked {
        let StreamChange::Archived { stream, file, .. } = change else { return Ok(()) };
        let found = self.shards[usize::from(shard)].replay();
        let first_file = found.streams.get(stream).map_or(0, |found| found.first_file);
        ensure(*file >= first_file, || format!("file {file} is used again"))
    }

    pub(super) fn excuse(&mut self, change: &StreamChange) -> Checked {
        if let StreamChange::DeadLetter { consumer, record, .. } = change {
            self.excused.insert((*consumer, letter_of(record)?));
        }
        Ok(())
    }

    pub(super) fn excuse_record(&mut self, consumer: ConsumerNumber, record: RecordId) {
        let Some((_, definition)) = self.wants.get(&consumer) else { return };
        let known = self.known(definition.stream, record.shard);
        if let Some(known) = known.get(record.ordinal as usize) {
            self.excused.insert((consumer, known.event_id.to_string()));
        }
    }

    pub(super) fn check_views(&mut self) -> Checked {
        let numbers: Vec<ConsumerNumber> = self.wants.keys().copied().collect();
        for number in numbers {
            let view = self.hub.view(number, self.now_ms).ok_or("it is there")?;
            ensure(view.adds_up && view.sum.adds_up(), || format!("no sum: {view:#?}"))?;
            for shard in &view.shards {
                let taken = self.taken(number, shard).len() as u64;
                ensure(shard.sum.total(Outcome::Delivered) <= taken, || {
                    format!("delivered, and the target has only {taken}: {shard:?}")
                })?;
            }
        }
        Ok(())
    }

    /// What the target has accepted in the run of a shard.
    fn taken(&self, number: ConsumerNumber, shard: &ShardView) -> BTreeSet<EventId> {
        let accepted = self.targets[&number].accepted.get(&(shard.shard, shard.run));
        accepted.into_iter().flatten().map(|it| it.event_id).collect()
    }

    pub(super) fn check_end(&mut self) -> Checked {
        self.check_views()?;
        self.check_dead_letters()?;
        let numbers: Vec<ConsumerNumber> = self.wants.keys().copied().collect();
        for number in numbers {
            let view = self.hub.view(number, self.now_ms).ok_or("it is there")?;
            self.check_order(number)?;
            for shard in &view.shards {
                self.check_shard(&view, shard).map_err(|error| {
                    format!("{number:?} shard {}: {error}: {shard:?}", shard.shard)
                })?;
            }
        }
        Ok(())
    }

    fn check_shard(&self, view: &ConsumerView, shard: &ShardView) -> Checked {
        let number = view.consumer;
        let (want, definition) = &self.wants[&number];
        let known = self.known(view.stream, shard.shard);
        ensure(shard.next == known.len() as u64, || "records are missing".into())?;
        let run = &known[(shard.start as usize).min(known.len())..];
        ensure(shard.sum.lag() == 0, || "not all have an outcome".into())?;
        ensure(shard.sum.stored == run.len() as u64, || "stored is wrong".into())?;
        let total = |outcome| shard.sum.total(outcome);
        let dropped = total(Outcome::DroppedByRetention) + total(Outcome::DroppedDamaged);
        ensure(self.weather.drops || total(Outcome::DroppedByRetention) == 0, || {
            "dropped without a limit".into()
        })?;
        ensure(self.has_damage || total(Outcome::DroppedDamaged) == 0, || {
            "damaged without damage".into()
        })?;
        let accepted = self.taken(number, shard);
        let has = |it: &&Known| accepted.contains(&it.event_id);
        let taken = run.iter().filter(has).count() as u64;
        ensure(total(Outcome::Delivered) <= taken, || {
            format!("delivered, and the target has only {taken}")
        })?;
        let unmatched = run.iter().filter(|it| !want.matches_topic(&it.message)).count() as u64;
        ensure(total(Outcome::NotMatched) <= unmatched, || format!("not matched: {unmatched}"))?;
        if definition.dead_letter.is_some() {
            ensure(total(Outcome::GivenUp) == 0, || "given up".into())?;
        } else {
            ensure(total(Outcome::DeadLettered) == 0, || "dead-lettered".into())?;
        }
        if self.changed.contains_key(&number) {
            return Ok(());
        }
        let skipped =
            run.iter().filter(|it| want.matches_topic(&it.message) && !want.matches(&it.message));
        let skipped = skipped.count() as u64;
        ensure(total(Outcome::SkippedByCondition) <= skipped, || format!("skipped: {skipped}"))?;
        let wanted = run.iter().filter(|it| want.matches(&it.message));
        let missing = wanted.filter(|it| !has(it)).count() as u64;
        let expired = total(Outcome::SkippedExpired);
        let may_expire = run.iter().filter(|it| want.matches(&it.message));
        let may_expire = may_expire.filter(|it| it.message.expires_ms > 0).count() as u64;
        ensure(expired <= if definition.skip_expired { may_expire } else { 0 }, || {
            format!("expired: {may_expire}")
        })?;
        let lost = total(Outcome::DeadLettered) + total(Outcome::GivenUp) + dropped + expired;
        ensure(missing <= lost, || format!("{missing} are not delivered, and {lost} are counted"))?;
        if dropped == 0 {
            let wanted = run.len() as u64 - unmatched - skipped;
            ensure(total(Outcome::NotMatched) == unmatched, || format!("of {unmatched}"))?;
            ensure(total(Outcome::SkippedByCondition) == skipped, || format!("of {skipped}"))?;
            let ended = total(Outcome::Delivered) + lost;
            ensure(ended == wanted, || format!("{ended} of {wanted} ended"))?;
        }
        Ok(())
    }

    /// The first copies of a publisher and topic arrive in their order.
    fn check_order(&self, number: ConsumerNumber) -> Checked {
        let definition = &self.wants[&number].1;
        // A record that an earlier revision skipped may come late, if a crash takes that outcome.
        let is_changed = self.changed.contains_key(&number);
        if definition.order != Order::Lanes || definition.stream != super::MAIN || is_changed {
            return Ok(());
        }
        let failed = &self.targets[&number].failed;
        for accepted in self.targets[&number].accepted.values() {
            let mut seen = BTreeSet::new();
            let mut last: BTreeMap<(u64, usize), u64> = BTreeMap::new();
            let is_excused = |sent: &Sent| {
                self.excused.contains(&(number, sent.event_id.to_string()))
                    || failed.get(&sent.event_id).is_some_and(|times| *times >= ATTEMPTS_MAX)
            };
            let accepted = accepted.iter().filter(|sent| !is_excused(sent));
            for sent in accepted.filter(|sent| seen.insert(sent.event_id)) {
                let key = (sent.message.client, sent.message.topic);
                let before = last.insert(key, sent.message.uid).unwrap_or_default();
                ensure(before < sent.message.uid, || {
                    format!("{number:?}: {before} came ahead of {}", sent.message.uid)
                })?;
            }
        }
        Ok(())
    }

    /// Each outcome of a dead letter has its record, and each record is there once.
    fn check_dead_letters(&self) -> Checked {
        for (journal, shard) in self.shards.iter().zip(0..) {
            let mut letters: BTreeMap<(ConsumerNumber, u64), BTreeSet<String>> = BTreeMap::new();
            let mut cursors: BTreeMap<ConsumerNumber, Cursor> = BTreeMap::new();
            for fact in &journal.facts {
                let Fact::Change(change, _) = fact else { continue };
                let (StreamChange::Cursor { consumer, cursor, .. }
                | StreamChange::DeadLetter { consumer, cursor, .. }) = change
                else {
                    continue;
                };
                let cursor = Cursor::decode(cursor).ok_or("a cursor cannot be read")?;
                if let Some(before) = cursors.get(consumer) {
                    let is_back = before.run() == cursor.run() && cursor.floor() < before.floor();
                    ensure(!is_back && before.run() <= cursor.run(), || {
                        format!("{consumer:?} shard {shard}: the cursor went back")
                    })?;
                }
                if let StreamChange::DeadLetter { record, .. } = change {
                    let id = letter_of(record)?;
                    let own = letters.entry((*consumer, cursor.run())).or_default();
                    ensure(own.insert(id), || format!("{consumer:?}: a dead letter came twice"))?;
                }
                cursors.insert(*consumer, cursor);
            }
            for (consumer, cursor) in cursors {
                let total = cursor.total(Outcome::DeadLettered);
                let own = letters.get(&(consumer, cursor.run())).map_or(0, BTreeSet::len);
                ensure(own as u64 == total, || {
                    format!("{consumer:?} shard {shard}: {own} dead letters, and {total} counted")
                })?;
            }
        }
        Ok(())
    }
}

/// The event that a dead letter was.
fn letter_of(record: &[u8]) -> Result<String, String> {
    let stored = StreamRecord::decode(record).map_err(|error| error.to_string())?;
    let mut user = Properties::from_raw(stored.properties).user_properties();
    let id = user.find(|(name, _)| *name == names::EVENT).map(|(_, id)| id.to_owned());
    id.ok_or_else(|| "a dead letter does not say what it was".to_owned())
}
