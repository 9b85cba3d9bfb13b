//! From the facts of a journal to a shard: sessions, subscriptions, retained messages, backlogs.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use policy::Principal;
use session::{Account, Will};
use storage::{Journal, Recovered};
use topic::FilterId;

use crate::log::ends::End;
use crate::log::facts::{Sent, Stage, Subscribed};
use crate::log::handovers::Received;
use crate::log::kept_sessions::KeptSession;
use crate::log::postponed::Postponed;
use crate::log::replay::{
    FormerFacts, MessageFacts, Opened, ProgressFacts, RareFacts, ReceivedFacts, Replay, Restored,
    SessionFacts, SubscribedFacts, Unreadable,
};
use crate::log::store::{Store, Stored};
use crate::log::track::{Out, Track};
use crate::log::{Durable, Kept};
use crate::parts::client::Client;
use crate::parts::groups::Groups;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::ledger::NOBODY;
use crate::words::options;
use crate::words::owners::{owner_name, user_account};
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::{Durability, GroupText, Limits, Mail, Name, Quota, Scope, ShardId};

/// A session that ends with its connection has 0; `u32::MAX` never ends.
const NEVER_EXPIRES: u32 = u32::MAX;

/// Possible recipients of the messages of one topic: slot, filter, and behind which serial.
type Recipients = Vec<(u32, FilterId, u64)>;

/// The owners of messages, by the numbers of their names.
type Accounts = BTreeMap<u32, Arc<Account>>;

/// Subscriptions that do not go back as far as their session: the serial they count from.
type Since = HashMap<(u32, FilterId), u64, FixedState>;

/// A session as it was found.
pub(super) struct Found {
    queue: QueueNumber,
    facts: SessionFacts,
    progress: ProgressFacts,
}

/// The owner of restored sessions of clients without a name, until they connect again.
fn nameless_account(scope: Scope) -> String {
    owner_name("address", Name::new(scope, "unknown"))
}

impl Durable {
    /// Opens the journal, and leaves out of the facts what no longer counts.
    pub(crate) fn open(
        &mut self,
        cx: &Context,
        mut recovered: Recovered,
        settings: storage::Settings,
        replay: &mut Replay,
    ) -> Result<(), Unreadable> {
        // What was said since the last record.
        replay.forget_before(recovered.ledger.oldest().unwrap_or_default());
        replay.check()?;
        replay.drop_unopened(&mut recovered.ledger);
        let namesakes = replay.drop_namesakes(&mut recovered.ledger);
        let group_namesakes = replay.drop_group_namesakes(&mut recovered.ledger);
        let journal = Journal::open(recovered, settings.clone());
        let mut store = Store::new(journal, &settings, cx.shared.shard_count);
        store.continue_from(replay.last_queue, replay.last_serial);
        for end in namesakes.into_iter().map(End::of_namesake) {
            store.postponed.push(Postponed::End(end));
        }
        for queue in group_namesakes {
            store.postponed.push(Postponed::GroupClosed(queue));
        }
        self.store = Some(Box::new(store));
        Ok(())
    }

    /// Rebuilds sessions, groups and retained messages from the facts.
    pub(crate) fn restore(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        retained: &mut Retained,
        mut replay: Replay,
        limits: &Arc<Limits>,
    ) -> Result<Restored, Unreadable> {
        let Some(store) = self.store.as_mut().expected() else { return Ok(Restored::default()) };
        let mut since = Since::default();
        let kept = &mut self.kept;
        sessions.reserve(replay.sessions.len());
        kept.reserve(replay.sessions.len());
        for (queue, facts) in std::mem::take(&mut replay.sessions) {
            let progress = replay.progress.remove(&QueueId::Owned(queue)).unwrap_or_default();
            let found = Found { queue, facts: *facts, progress };
            store.restore_session(cx, kept, sessions, groups, found, limits, &mut since)?;
        }
        store.restore_groups(cx, sessions, groups, &mut replay);
        store.restore_retained(cx, retained, &mut replay);
        store.restore_own(cx, kept, &mut replay);
        kept.mark_topics(cx, &replay);
        store.restore_messages(cx, kept, sessions, &mut replay, &since);
        std::mem::take(&mut replay.streams).restore(&mut store.streams);
        for progress in replay.progress.into_values() {
            store.release(progress.place);
        }
        store.announce_seen(cx);
        let messages = store.message_count() as u64;
        groups.announce_all_waiting(cx, self);
        Ok(Restored {
            sessions: cx.metrics.sessions.value(),
            subscriptions: cx.metrics.subscriptions.value(),
            retained: cx.metrics.retained.value(),
            messages,
        })
    }
}

impl Store {
    fn restore_session(
        &mut self,
        cx: &mut Context,
        kept: &mut Kept,
        sessions: &mut Sessions,
        groups: &mut Groups,
        found: Found,
        limits: &Arc<Limits>,
        since: &mut Since,
    ) -> Result<(), Unreadable> {
        let Found { queue, mut facts, progress } = found;
        let Some(opened) = facts.opened.take().expected() else { return Ok(()) };
        let mut rare = facts.take_rare();
        let mut client = sessions.restored_client(cx, &opened, limits);
        let mut durable =
            KeptSession::new(queue, limits.durability.max(Durability::Disk), progress.floor);
        durable.note_restored();
        durable.opened = opened.place;
        durable.fact_ms = opened.opened_at_ms;
        durable.track.place = progress.place;
        let (at_ms, expiry_secs) = match facts.detached.take() {
            Some((at_ms, secs, place)) if at_ms > opened.opened_at_ms => {
                durable.detached = place;
                durable.fact_ms = at_ms;
                (at_ms, secs)
            }
            // It was connected when the broker ended: its time begins now.
            other => {
                self.release(other.map(|(_, _, place)| place).unwrap_or_default());
                (cx.now_ms, opened.expiry_secs)
            }
        };
        client.session_expiry_secs = expiry_secs;
        if expiry_secs != NEVER_EXPIRES {
            client.expires_at_ms = at_ms + u64::from(expiry_secs) * 1000;
        }
        if let Some((will, place)) = rare.will.take() {
            client.restore_will(will, at_ms, limits);
            durable.rare().will = place;
        }
        let formerly = std::mem::take(&mut rare.formerly);
        self.restore_track(&mut client, &mut durable, rare, &progress);
        client.session.mark_resumed();
        client.recharge();
        if !durable.detached.is_some() {
            self.postponed.push(Postponed::Detached(queue));
        }
        let slot = sessions.insert(Client { is_kept: true, ..client });
        kept.insert(slot, durable);
        cx.metrics.sessions.add(1);
        for (filter, facts) in facts.subscriptions.into_iter() {
            let listed = groups.restore_subscription(cx, sessions, slot, &filter, &facts)?;
            let Some(listed) = listed.filter(|it| !it.is_shared()) else { continue };
            let former = former_of(&formerly, &filter, progress.floor);
            if former != Former::default() {
                let filter = listed.filter;
                self.postponed.push(Postponed::Subscribed { session: queue, filter });
            }
            let from_serial = sessions.restore_owed(slot, listed, &facts, former);
            if from_serial > progress.floor {
                since.insert((slot, listed.filter), from_serial);
            }
        }
        formerly.into_values().for_each(|(_, place)| self.release(place));
        if let Some(client) = sessions.get_mut(slot) {
            cx.count_in_space(client.scope, Quota::Sessions, 1);
            client.arm_timer(cx);
        }
        Ok(())
    }
}

impl Sessions {
    /// Marks a subscription by which older messages are due. Returns the serial from which on it
    /// counts.
    fn restore_owed(
        &mut self,
        slot: u32,
        listed: Listed,
        facts: &SubscribedFacts,
        former: Former,
    ) -> u64 {
        if former.is_owed || facts.options & Subscribed::OWED != 0 {
            self.set_owed(slot, listed);
        }
        facts.from_serial.max(former.through)
    }

    /// The client of a session that the journal knows, before its subscriptions and messages.
    fn restored_client(&self, cx: &Context, opened: &Opened, limits: &Arc<Limits>) -> Client {
        let name = Name::of_key(&opened.client_id);
        let mut client = Client::new(name, limits.clone());
        client.username = Some(opened.username.clone()).filter(|name| !name.is_empty());
        if self.rules().of(name.scope()).heeds_principals() {
            let unknown = Principal { is_unknown: true, ..Principal::default() };
            client.principal = Some(Box::new(unknown));
        }
        client.grants = client.grants_by(self.rules());
        let user = client.username.as_deref().map(|user| Name::new(name.scope(), user));
        let owner = user.map_or_else(|| nameless_account(name.scope()), user_account);
        let account = cx.shared.account(&owner);
        client.session.outgoing.charge_to(account.clone());
        client.charged.move_to(account);
        client
    }
}

impl Groups {
    fn restore_subscription(
        &mut self,
        cx: &mut Context,
        sessions: &mut Sessions,
        slot: u32,
        filter: &str,
        facts: &SubscribedFacts,
    ) -> Result<Option<Listed>, Unreadable> {
        let parsed = topic::parse_filter(filter, &crate::words::topics::UNLIMITED);
        let asked = codec::SubscribeOptions::from_byte(facts.options & !Subscribed::OWED);
        let (Ok(parsed), Some(asked)) = (parsed, asked) else {
            // Going on without it would lose messages of the session without a report.
            let id = sessions.get(slot).map_or("", |client| &client.id);
            let options = facts.options;
            let why = format!("{id:?} is subscribed to {filter:?} with options {options:#04x}");
            return Err(Unreadable { at: facts.place.position(), why: why.into() });
        };
        let request = crate::life::subscribe::Request {
            filter: parsed,
            options: asked,
            identifier: facts.identifier,
        };
        sessions.subscribe(cx, self, slot, &request);
        let Some(listed) = sessions.listed_of(self, slot, filter).expected() else {
            return Ok(None);
        };
        let client = sessions.get_mut(slot);
        if let Some(place) = client.and_then(|client| client.subscriptions.place_mut(&listed)) {
            *place = facts.place;
        }
        Ok(Some(listed))
    }
}

impl Client {
    /// Its delay began at that time.
    fn restore_will(&mut self, mut will: Box<Will>, at_ms: u64, limits: &Limits) {
        let delay_secs = will.delay_secs.min(limits.will_delay_max_secs);
        will.due_ms = at_ms + u64::from(delay_secs) * 1000;
        self.will = Some(will);
    }
}

/// What facts of earlier versions say of a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Former {
    /// Up to this serial it had QoS 0.
    through: u64,
    /// It had another QoS behind that.
    is_owed: bool,
}

fn former_of(formerly: &FormerFacts, filter: &str, floor: u64) -> Former {
    let mut former = Former::default();
    let all = formerly.iter().filter(|((of, through), _)| **of == *filter && *through > floor);
    // By growing serials.
    let is_durable = |options: u8| options & 0b11 != 0;
    for ((_, through), (options, _)) in all {
        if is_durable(*options) {
            former.is_owed = true;
            break;
        }
        former.through = *through;
    }
    former
}

impl Store {
    fn restore_groups(
        &mut self,
        cx: &Context,
        sessions: &mut Sessions,
        groups: &mut Groups,
        replay: &mut Replay,
    ) {
        for (queue, facts) in std::mem::take(&mut replay.groups) {
            let progress = replay.progress.remove(&QueueId::Owned(queue)).unwrap_or_default();
            let mut track = Track::starting_at(progress.floor.max(facts.from_serial));
            for (from, through) in &progress.above {
                track.restore_done(*from, *through);
            }
            track.place = progress.place;
            let filter = Name::of_key(&facts.filter);
            let text = GroupText::new(filter.scope(), &facts.name, filter.text());
            let name = groups.group_name(cx, text);
            let kept = self.put_group_queue(queue, name.key, facts.place, track);
            groups.restore_group(sessions, &name, kept, cx.now_ms);
        }
    }

    /// Tells the other shards which of their serials have come here.
    fn announce_seen(&self, cx: &mut Context) {
        let shard_count = usize::from(cx.shared.shard_count);
        for (index, seen) in self.seen.iter().enumerate() {
            let shard = (index % shard_count) as ShardId;
            if seen.serial > 0 && shard != cx.id {
                cx.send(shard, Mail::Seen { serial: seen.serial });
            }
        }
    }

    fn restore_retained(&mut self, cx: &Context, retained: &mut Retained, replay: &mut Replay) {
        let now_ms = cx.now_ms;
        let mut owners = Accounts::new();
        for facts in std::mem::take(&mut replay.retained).into_values() {
            if facts.message.is_expired(now_ms) {
                self.release(facts.place);
            } else {
                let owner = cx.account_of(facts.owner, replay, &mut owners);
                retained.insert(&facts.message, facts.place, owner, &cx.effects);
            }
        }
    }
}

impl Context {
    /// The account of the owner of a message.
    fn account_of<'a>(
        &self,
        owner: Option<u32>,
        replay: &Replay,
        known: &'a mut Accounts,
    ) -> Option<&'a Arc<Account>> {
        let owner = owner?;
        let account = || self.shared.account(replay.texts.get(owner));
        Some(known.entry(owner).or_insert_with(account))
    }
}

impl Store {
    /// What the shard itself has taken on and had from others.
    fn restore_own(&mut self, cx: &Context, kept: &mut Kept, replay: &mut Replay) {
        let handed_over = replay.progress.remove(&QueueId::Handover).unwrap_or_default();
        let is_done = |serial: &u64| {
            let mut runs = handed_over.above.iter();
            *serial <= handed_over.floor
                || runs.any(|(from, through)| (from..=through).contains(&serial))
        };
        let messages = &replay.messages;
        replay.taken.retain(|serial, _| !is_done(serial) && messages.contains_key(serial));
        self.handovers.track = Track::starting_at(handed_over.floor);
        self.handovers.track.place = handed_over.place;
        for (serial, (session, is_will)) in &replay.taken {
            self.handovers.restore(*serial, *session, *is_will);
        }
        self.handovers.track.advance(replay.last_serial);
        for (source, seen) in self.seen.iter_mut().enumerate() {
            let source = source as u16;
            let progress = replay.progress.remove(&QueueId::Seen(source)).unwrap_or_default();
            let newest = replay.seen.get(&source).copied().unwrap_or_default();
            seen.serial = progress.floor.max(newest);
            seen.place = progress.place;
        }
        for (serial, (session, _)) in &replay.taken {
            let topic = replay.messages.get(serial).map(|facts| facts.topic);
            let slot = session.and_then(|session| kept.find(session));
            if let (Some(slot), Some(topic)) = (slot, topic) {
                kept.enter_line(cx, slot, Name::of_key(replay.texts.get(topic)));
            }
        }
    }

    /// Counts who needs each message, and lines up what waits.
    fn restore_messages(
        &mut self,
        cx: &Context,
        kept: &mut Kept,
        sessions: &mut Sessions,
        replay: &mut Replay,
        since: &Since,
    ) {
        let now_ms = cx.now_ms;
        let mut needs = kept.pinned_messages(replay);
        replay.streams.add_needs(&mut needs);
        let mut recipients_by_topic: Vec<Option<Recipients>> = vec![None; replay.texts.len()];
        let mut owners = Accounts::new();
        for (serial, facts) in std::mem::take(&mut replay.messages) {
            let (mut refs, pins) = needs.remove(&serial).unwrap_or_default();
            if facts.expires_at_ms > now_ms && !facts.is_of_streams {
                refs += if let Some(queue) = facts.queue {
                    self.restore_group_message(serial, queue, &facts, now_ms)
                } else {
                    let recipients =
                        recipients_by_topic[facts.topic as usize].get_or_insert_with(|| {
                            sessions.recipients_of(replay.texts.get(facts.topic), since)
                        });
                    self.line_up(kept, serial, &facts, recipients, now_ms)
                };
            }
            if refs == 0 {
                self.release(facts.place);
                continue;
            }
            let owner = cx.account_of(facts.owner, replay, &mut owners);
            let MessageFacts { place, expires_at_ms, .. } = facts;
            let stored = Stored { place, refs, pins, expires_at_ms, owner: NOBODY };
            self.restore_message(serial, stored, owner);
            self.note_expiry(serial, expires_at_ms);
        }
        self.catch_up_idle(kept);
        for (&(slot, filter), &serial) in since {
            let durable = kept.get_mut(slot);
            if let Some(durable) = durable.filter(|durable| durable.is_behind) {
                durable.rare().since.begin(filter, serial);
            }
        }
    }

    /// Sessions for which nothing waits have had all there is, whatever others still have to get.
    fn catch_up_idle(&self, kept: &mut Kept) {
        let last_serial = self.last_serial();
        for durable in kept.sessions_mut().filter(|durable| !durable.is_behind) {
            durable.track.advance(last_serial);
        }
    }
}

impl Kept {
    /// The topics of QoS 2 publishes that are not released, as far as their messages are known.
    fn mark_topics(&mut self, cx: &Context, replay: &Replay) {
        let topic_of = |received: &Received| {
            let facts = replay.messages.get(&received.serial)?;
            Some(cx.topic_mark(Name::of_key(replay.texts.get(facts.topic))))
        };
        for rare in self.sessions_mut().filter_map(|durable| durable.rare.as_mut()) {
            for received in &mut rare.received {
                received.topic_mark = topic_of(received);
            }
        }
    }

    /// How often each message is needed by what is in flight, by packet ids and by handovers:
    /// references, and how many of them are pins.
    fn pinned_messages(&self, replay: &Replay) -> HashMap<u64, (u32, u32), FixedState> {
        let mut needs: HashMap<u64, (u32, u32), FixedState> = HashMap::default();
        for serial in replay.taken.keys() {
            needs.entry(*serial).or_default().0 += 1;
        }
        for durable in self.sessions() {
            for out in durable.track.in_flight() {
                let need = needs.entry(out.serial).or_default();
                *need = (need.0 + 1, need.1 + 1);
            }
            for received in durable.rare.iter().flat_map(|rare| &rare.received) {
                if !received.place.is_some() {
                    let need = needs.entry(received.serial).or_default();
                    *need = (need.0 + 1, need.1 + 1);
                }
            }
        }
        needs
    }
}

impl Sessions {
    fn recipients_of(&mut self, topic: &str, since: &Since) -> Recipients {
        let topic = Name::of_key(topic).as_bytes();
        let (index, filters) = self.router.filters_of(topic);
        let mut recipients = Recipients::new();
        for filter in filters {
            for subscription in index.subscriptions(*filter) {
                let slot = subscription.subscriber;
                if options::is_durable(subscription.options) {
                    let from = since.get(&(slot, *filter)).copied().unwrap_or_default();
                    recipients.push((slot, *filter, from));
                }
            }
        }
        recipients.sort_unstable_by_key(|(slot, filter, _)| (*slot, *filter));
        recipients
    }
}

impl Store {
    /// Puts a message into the backlogs of those who have not had it. Returns how many they are.
    fn line_up(
        &mut self,
        kept: &mut Kept,
        serial: u64,
        facts: &MessageFacts,
        recipients: &Recipients,
        now_ms: u64,
    ) -> u32 {
        let (mut count, mut last) = (0, None);
        for (slot, filter, from) in recipients {
            let durable = kept.get_mut(*slot);
            let Some(durable) = durable else { continue };
            let is_assigned = serial > *from
                && serial > durable.track.cursor()
                && !durable.track.contains(serial);
            if !is_assigned {
                continue;
            }
            let list = &mut self.backlogs.entry(*filter).or_default().serials;
            if list.back() != Some(&serial) {
                list.push_back(serial);
            }
            if last.replace(*slot) != Some(*slot) {
                count += 1;
                let bytes = facts.place.bytes.into();
                durable.count_in(serial, bytes, facts.expires_at_ms, now_ms);
            }
        }
        count
    }

    /// Restores what is in flight and done above the floor, and the QoS 2 packet ids.
    fn restore_track(
        &mut self,
        client: &mut Client,
        durable: &mut KeptSession,
        mut rare: RareFacts,
        progress: &ProgressFacts,
    ) {
        for (from, through) in &progress.above {
            durable.track.restore_done(*from, *through);
        }
        let mut resends = Vec::new();
        for (sent, place) in rare.take_in_flight() {
            let is_aside = sent.queue.is_none();
            let is_done =
                !is_aside && (sent.serial <= progress.floor || durable.track.contains(sent.serial));
            if is_done || sent.packet_id == 0 {
                self.release(place);
                continue;
            }
            let (serial, packet_id, stage) = (sent.serial, sent.packet_id, sent.stage);
            match is_aside {
                true => durable.track.assign_aside(Out::aside(serial, packet_id, place)),
                false => durable.track.restore(Out::restored(serial, packet_id, stage, place)),
            }
            resends.push(sent);
        }
        for Sent { packet_id, serial, stage, queue, .. } in in_ring_order(resends) {
            let origin = session::Origin { group: 0, serial };
            let is_released = stage == Stage::AwaitsPubcomp || queue.is_none();
            client.session.outgoing.restore(packet_id, origin, is_released);
        }
        for (packet_id, received) in rare.received {
            client.session.incoming.insert(packet_id);
            let ReceivedFacts { serial, place, is_undone } = received;
            let (topic_mark, is_released) = (None, false);
            let received =
                Received { packet_id, serial, place, topic_mark, is_undone, is_released };
            durable.rare().received.push(received);
        }
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
