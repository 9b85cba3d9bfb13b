//! From what a replay has found back to the tables of the log.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use session::Account;
use storage::{Journal, Recovered};
use topic::FilterId;

use crate::log::ends::End;
use crate::log::facts::{Sent, Stage};
use crate::log::handovers::Received;
use crate::log::kept::Kept;
use crate::log::kept::KeptSession;
use crate::log::late::Late;
use crate::log::replay::{
    GroupFacts, MessageFacts, Opened, ProgressFacts, RareFacts, ReceivedFacts, Replay,
    SessionFacts, Unreadable,
};
use crate::log::store::Log;
use crate::log::store::{Store, Stored};
use crate::log::track::{Out, Track};
use crate::words::ledger::NOBODY;
use crate::words::queue_number::{KeptId, QueueId, QueueNumber};

/// Possible recipients of the messages of one topic: slot, filter, and behind which serial.
pub(crate) type Recipients = Vec<(u32, FilterId, u64)>;

/// How often each message is needed by its serial: references, and how many of them are pins.
pub(crate) type Needs = HashMap<u64, (u32, u32), FixedState>;

/// What a session has in flight, in the order of its packet ids, and the QoS 2 packet ids that its
/// client has used.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    /// With the serial, and whether only the PUBCOMP is missing.
    pub(crate) resends: Vec<(u16, u64, bool)>,
    pub(crate) received: Vec<u16>,
}

impl Log {
    /// Opens the journal, and leaves out of the facts what no longer counts.
    pub(crate) fn open(
        mut recovered: Recovered,
        settings: &storage::Settings,
        sources: u16,
        replay: &mut Replay,
    ) -> Result<Self, Unreadable> {
        // What was said since the last record.
        replay.forget_before(recovered.ledger.oldest().unwrap_or_default());
        replay.check()?;
        replay.drop_unopened(&mut recovered.ledger);
        let namesakes = replay.drop_namesakes(&mut recovered.ledger);
        let group_namesakes = replay.drop_group_namesakes(&mut recovered.ledger);
        let journal = Journal::open(recovered, settings.clone());
        let mut store = Store::new(journal, settings, sources);
        store.continue_from(replay.last_queue, replay.last_serial);
        for end in namesakes.into_iter().map(End::of_namesake) {
            store.late.push(Late::End(end));
        }
        for queue in group_namesakes {
            store.late.push(Late::GroupClosed(queue));
        }
        let mut kept = Kept::default();
        kept.reserve(replay.sessions.len());
        Ok(Self { store, kept })
    }

    /// A session as it was found; its subscriptions and messages are to follow. Returns it, since
    /// when it has no connection, with its expiry interval in seconds then, and what is in flight.
    /// A session that had a connection when the broker ended has none from now on.
    pub(crate) fn restore_session(
        &mut self,
        mut kept: KeptSession,
        opened: &Opened,
        mut facts: SessionFacts,
        progress: &ProgressFacts,
        now_ms: u64,
    ) -> (KeptSession, (u64, u32), Exchanges) {
        kept.opened = opened.place;
        kept.fact_ms = opened.opened_at_ms;
        let since = match facts.detached.take() {
            Some((at_ms, secs, place)) if at_ms > opened.opened_at_ms => {
                kept.detached = place;
                kept.fact_ms = at_ms;
                (at_ms, secs)
            }
            other => {
                self.release(other.map(|(_, _, place)| place).unwrap_or_default());
                self.store.late.push(Late::Detached(kept.queue));
                (now_ms, opened.expiry_secs)
            }
        };
        let exchanges = self.store.restore_track(&mut kept, facts.take_rare(), progress);
        (kept, since, exchanges)
    }

    /// The queue of a group as it was found.
    pub(crate) fn restore_group(
        &mut self,
        queue: QueueNumber,
        key: u64,
        facts: &GroupFacts,
        progress: &ProgressFacts,
    ) -> KeptId {
        let mut track = Track::starting_at(progress.floor.max(facts.from_serial));
        for (from, through) in &progress.above {
            track.restore_done(*from, *through);
        }
        track.place = progress.place;
        self.store.put_group_queue(queue, key, facts.place, track)
    }

    /// What the shard itself has taken on and had from others.
    pub(crate) fn restore_own(&mut self, replay: &mut Replay) {
        let store = &mut self.store;
        let handed_over = replay.progress.remove(&QueueId::Handover).unwrap_or_default();
        let is_done = |serial: &u64| {
            let mut runs = handed_over.above.iter();
            *serial <= handed_over.floor
                || runs.any(|(from, through)| (from..=through).contains(&serial))
        };
        let messages = &replay.messages;
        replay.taken.retain(|serial, _| !is_done(serial) && messages.contains_key(serial));
        store.handovers.track = Track::starting_at(handed_over.floor);
        store.handovers.track.place = handed_over.place;
        for (serial, (session, is_will)) in &replay.taken {
            store.handovers.restore(*serial, *session, *is_will);
        }
        store.handovers.track.advance(replay.last_serial);
        for (source, seen) in store.seen.iter_mut().enumerate() {
            let source = source as u16;
            let progress = replay.progress.remove(&QueueId::Seen(source)).unwrap_or_default();
            let newest = replay.seen.get(&source).copied().unwrap_or_default();
            seen.serial = progress.floor.max(newest);
            seen.place = progress.place;
        }
    }

    /// Marks what is in the line, and the QoS 2 publishes that are not released, as far as their
    /// messages are known. `mark_of`: stands for the topic with this key.
    pub(crate) fn mark_topics(&mut self, replay: &Replay, mark_of: impl Fn(&str) -> u64) {
        let mark_of = |serial: &u64| {
            let facts = replay.messages.get(serial)?;
            Some(mark_of(replay.texts.get(facts.topic)))
        };
        for (serial, (session, _)) in &replay.taken {
            let slot = session.and_then(|session| self.kept.find(session));
            if let (Some(slot), Some(mark)) = (slot, mark_of(serial)) {
                self.kept.enter_line(slot, mark);
            }
        }
        for rare in self.kept.sessions_mut().filter_map(|kept| kept.rare.as_mut()) {
            for received in &mut rare.received {
                received.topic_mark = mark_of(&received.serial);
            }
        }
    }

    /// How often each message is needed by what is in flight, by packet ids, by handovers and by
    /// streams.
    pub(crate) fn needs(&self, replay: &Replay) -> Needs {
        let mut needs = Needs::default();
        let mut pin = |serial: u64| {
            let need = needs.entry(serial).or_default();
            *need = (need.0 + 1, need.1 + 1);
        };
        for kept in self.kept.sessions() {
            kept.track.in_flight().for_each(|out| pin(out.serial));
            let received = kept.rare.iter().flat_map(|rare| &rare.received);
            let aside = received.filter(|received| !received.place.is_some());
            aside.for_each(|received| pin(received.serial));
        }
        for serial in replay.taken.keys() {
            needs.entry(*serial).or_default().0 += 1;
        }
        replay.streams.add_needs(&mut needs);
        needs
    }

    /// Lines a message up for those who have not had it, and gives its place back if nobody needs
    /// it. `recipients`: the sessions that may be meant. `waits`: a group needs it.
    pub(crate) fn restore_message(
        &mut self,
        (serial, facts): (u64, &MessageFacts),
        (refs, pins): (u32, u32),
        (recipients, waits): (Option<&Recipients>, bool),
        owner: Option<&Arc<Account>>,
        now_ms: u64,
    ) {
        let lined_up = recipients.map_or(0, |all| self.line_up(serial, facts, all, now_ms));
        let waiting = lined_up + u32::from(waits);
        let refs = refs + waiting;
        if refs == 0 {
            return self.release(facts.place);
        }
        let MessageFacts { place, expires_at_ms, .. } = *facts;
        let stored = Stored { place, refs, pins, expires_at_ms, owner: NOBODY };
        self.store.restore_message(serial, stored, owner);
        self.store.note_expiry(serial, expires_at_ms);
    }

    /// Puts a message into the backlogs of those who have not had it. Returns how many they are.
    fn line_up(
        &mut self,
        serial: u64,
        facts: &MessageFacts,
        recipients: &Recipients,
        now_ms: u64,
    ) -> u32 {
        let (mut count, mut last) = (0, None);
        for (slot, filter, from) in recipients {
            let Some(kept) = self.kept.get_mut(*slot) else { continue };
            let is_assigned =
                serial > *from && serial > kept.track.cursor() && !kept.track.contains(serial);
            if !is_assigned {
                continue;
            }
            let list = &mut self.store.backlogs.entry(*filter).or_default().serials;
            if list.back() != Some(&serial) {
                list.push_back(serial);
            }
            if last.replace(*slot) != Some(*slot) {
                count += 1;
                kept.count_in(serial, facts.place.bytes.into(), facts.expires_at_ms, now_ms);
            }
        }
        count
    }

    /// All messages are lined up. Sessions for which nothing waits have had all there is, whatever
    /// others still have to get. `since`: by slot and filter, from which serial on that counts.
    /// Returns how many messages there are.
    pub(crate) fn end_restore(
        &mut self,
        replay: &mut Replay,
        since: impl Iterator<Item = (u32, FilterId, u64)>,
    ) -> u64 {
        let last_serial = self.store.last_serial();
        for kept in self.kept.sessions_mut().filter(|kept| !kept.is_behind) {
            kept.track.advance(last_serial);
        }
        for (slot, filter, serial) in since {
            if let Some(kept) = self.kept.get_mut(slot).filter(|kept| kept.is_behind) {
                kept.rare().since.begin(filter, serial);
            }
        }
        std::mem::take(&mut replay.streams).restore(&mut self.store.streams);
        for progress in std::mem::take(&mut replay.progress).into_values() {
            self.release(progress.place);
        }
        self.store.message_count() as u64
    }

    /// The newest serial from each [source](crate::Homes).
    pub(crate) fn seen(&self) -> Vec<u64> {
        self.store.seen.iter().map(|seen| seen.serial).collect()
    }
}

impl Store {
    /// Restores what is in flight and done above the floor, and the QoS 2 packet ids.
    fn restore_track(
        &mut self,
        kept: &mut KeptSession,
        mut rare: RareFacts,
        progress: &ProgressFacts,
    ) -> Exchanges {
        for (from, through) in &progress.above {
            kept.track.restore_done(*from, *through);
        }
        let mut resends = Vec::new();
        for (sent, place) in rare.take_in_flight() {
            let is_aside = sent.queue.is_none();
            let is_done =
                !is_aside && (sent.serial <= progress.floor || kept.track.contains(sent.serial));
            if is_done || sent.packet_id == 0 {
                self.release(place);
                continue;
            }
            let (serial, packet_id, stage) = (sent.serial, sent.packet_id, sent.stage);
            match is_aside {
                true => kept.track.assign_aside(Out::aside(serial, packet_id, place)),
                false => kept.track.restore(Out::restored(serial, packet_id, stage, place)),
            }
            resends.push(sent);
        }
        let is_released = |sent: &Sent| sent.stage == Stage::AwaitsPubcomp || sent.queue.is_none();
        let resends = in_ring_order(resends);
        let resends =
            resends.iter().map(|sent| (sent.packet_id, sent.serial, is_released(sent))).collect();
        let mut received = Vec::new();
        for (packet_id, facts) in rare.received {
            let ReceivedFacts { serial, place, is_undone } = facts;
            let (topic_mark, is_released) = (None, false);
            kept.rare().received.push(Received {
                packet_id,
                serial,
                place,
                topic_mark,
                is_undone,
                is_released,
            });
            received.push(packet_id);
        }
        Exchanges { resends, received }
    }
}

/// Packet ids are given in a ring: those in flight begin behind its widest gap. Their order is not
/// that of the serials, because what was resent from the backlog after a start has newer ids.
fn in_ring_order(mut sent: Vec<Sent>) -> Vec<Sent> {
    sent.sort_unstable_by_key(|sent| sent.packet_id);
    let gap_before = |index: &usize| {
        let before = index.checked_sub(1).unwrap_or(sent.len() - 1);
        sent[*index].packet_id.wrapping_sub(sent[before].packet_id)
    };
    let first = (0..sent.len()).max_by_key(gap_before).unwrap_or_default();
    sent.rotate_left(first);
    sent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_ids_in_flight_begin_behind_the_widest_gap() {
        let order = |packet_ids: &[u16]| -> Vec<u16> {
            let sent = |&packet_id| {
                let (session, serial, stage) = (QueueNumber::MIN, 1, Stage::AwaitsPuback);
                Sent { session, packet_id, stage, queue: Some(session), serial }
            };
            let sent = packet_ids.iter().map(sent).collect();
            in_ring_order(sent).iter().map(|sent| sent.packet_id).collect()
        };
        assert_eq!(order(&[7, 2, 4, 5]), [2, 4, 5, 7]);
        assert_eq!(order(&[1, 65_534, 2, 65_530]), [65_530, 65_534, 1, 2]);
        assert_eq!(order(&[9]), [9]);
        assert_eq!(order(&[]), []);
    }
}
