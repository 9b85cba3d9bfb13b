//! From the facts of a journal to a shard: sessions, subscriptions, groups, retained messages, and
//! who has yet to get what waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use policy::Principal;
use session::{Account, Origin, Will};
use storage::Recovered;
use topic::FilterId;

use crate::life::subscribe::Request;
use crate::log::facts::Subscribed;
use crate::log::kept::KeptSession;
use crate::log::rebuild::Recipients;
use crate::log::replay::{
    FormerFacts, Opened, ProgressFacts, Replay, Restored, SessionFacts, SubscribedFacts, Unreadable,
};
use crate::log::store::Log;
use crate::parts::client::Client;
use crate::parts::group_queue::Item;
use crate::parts::sessions::Sessions;
use crate::parts::subscriptions::Listed;
use crate::state::Context;
use crate::words::expected::Expected;
use crate::words::options;
use crate::words::owners::{owner_name, user_account};
use crate::words::queue_number::{QueueId, QueueNumber};
use crate::{Durability, GroupText, Limits, Mail, Name, Quota, Scope, Shard};

/// A session that ends with its connection has 0; `u32::MAX` never ends.
const NEVER_EXPIRES: u32 = u32::MAX;

/// Wills of clients that do not come back after a start, a second and shard. Policy: others are
/// published later.
const WILLS_PER_SEC_MAX: u64 = 1000;

/// The owners of messages, by the numbers of their names.
type Accounts = BTreeMap<u32, Arc<Account>>;

/// Subscriptions that do not go back as far as their session: the serial they count from.
type Since = HashMap<(u32, FilterId), u64, FixedState>;

/// Serials that an owner of a cell has, as a power of two: a million per second for twelve days.
const SERIAL_BITS: u32 = 40;

impl Shard {
    /// Joins the shard's journal and rebuilds the state that it holds. `limits` hold for restored
    /// sessions until their clients connect again.
    ///
    /// Call [`crate::settle`] when all shards have done so, and carry out disk commands until
    /// the journal is [ready](storage::Journal::is_ready), before the first connection.
    ///
    /// # Errors
    ///
    /// A record with a right checksum cannot be read: another program version wrote it.
    pub fn open_journal(
        &mut self,
        recovered: Recovered,
        settings: storage::Settings,
        mut replay: Replay,
        limits: &Arc<Limits>,
        now_ms: u64,
    ) -> Result<Restored, Unreadable> {
        self.cx.now_ms = now_ms;
        let log = Log::open(recovered, &settings, self.cx.shared.homes.sources(), &mut replay)?;
        self.log = Some(Box::new(log));
        let mut since = Since::default();
        self.sessions.reserve(replay.session_count());
        let mut only_wills = 0;
        for (queue, facts) in replay.take_sessions() {
            let progress = replay.take_progress(QueueId::Owned(queue));
            let slot = self.restore_session(queue, facts, &progress, limits, &mut since)?;
            if slot.is_some_and(|slot| self.set_will_grace(slot, only_wills)) {
                only_wills += 1;
            }
        }
        self.restore_groups(&mut replay);
        self.restore_retained(&mut replay);
        let messages = self.restore_messages(&mut replay, &since);
        self.begin_serials();
        self.announce_seen();
        self.announce_all_waiting();
        let metrics = &self.cx.metrics;
        Ok(Restored {
            sessions: metrics.sessions.value(),
            subscriptions: metrics.subscriptions.value(),
            retained: metrics.retained.value(),
            messages,
        })
    }

    fn restore_session(
        &mut self,
        queue: QueueNumber,
        mut facts: SessionFacts,
        progress: &ProgressFacts,
        limits: &Arc<Limits>,
        since: &mut Since,
    ) -> Result<Option<u32>, Unreadable> {
        let Some(opened) = facts.opened.take().expected() else { return Ok(None) };
        let formerly = facts.take_formerly();
        let subscriptions = std::mem::take(&mut facts.subscriptions);
        let slot = self.restore_client(queue, &opened, facts, progress, limits);
        for (filter, facts) in subscriptions.into_iter() {
            let listed = self.restore_subscription(slot, &filter, &facts)?;
            let Some(listed) = listed.filter(|it| !it.is_shared()) else { continue };
            let former = former_of(&formerly, &filter, progress.floor);
            if let Some(log) = self.log.as_mut().filter(|_| former != Former::default()) {
                log.put_off_subscription(queue, listed.filter);
            }
            let from_serial = self.sessions.restore_owed(slot, listed, &facts, former);
            if from_serial > progress.floor {
                since.insert((slot, listed.filter), from_serial);
            }
        }
        let Self { cx, sessions, log: Some(log), .. } = self else { return Ok(None) };
        formerly.into_values().for_each(|(_, place)| log.release(place));
        if let Some(client) = sessions.get_mut(slot) {
            cx.count_in_space(client.scope, Quota::Sessions, 1);
            client.arm_timer(cx);
        }
        Ok(Some(slot))
    }

    /// Of a session that ends with its connection there is nothing but its will, which waits for
    /// its client as long as the settings say. `before`: how many there are before it. False: it is
    /// another session.
    fn set_will_grace(&mut self, slot: u32, before: u64) -> bool {
        let Self { cx, sessions, .. } = self;
        let Some(client) = sessions.get_mut(slot).filter(|client| client.is_only_will) else {
            return false;
        };
        let spread_ms = before * 1000 / WILLS_PER_SEC_MAX;
        client.expires_at_ms += cx.shared.settings.will_grace_ms + spread_ms;
        let due_ms = client.expires_at_ms;
        client.will.iter_mut().for_each(|will| will.due_ms = due_ms);
        client.arm_timer(cx);
        true
    }

    /// A session before its subscriptions and messages. Returns its slot.
    fn restore_client(
        &mut self,
        queue: QueueNumber,
        opened: &Opened,
        mut facts: SessionFacts,
        progress: &ProgressFacts,
        limits: &Arc<Limits>,
    ) -> u32 {
        let Self { cx, sessions, log: Some(log), .. } = self else { return 0 };
        let will = facts.take_will();
        let level = limits.durability.max(Durability::Disk);
        let kept = KeptSession::restored(queue, level, progress, will.as_ref().map(|it| it.1));
        let (kept, (at_ms, expiry_secs), exchanges) =
            log.restore_session(kept, opened, facts, progress, cx.now_ms);
        let mut client = sessions.restored_client(cx, opened, limits);
        client.session_expiry_secs = expiry_secs;
        client.is_only_will = opened.expiry_secs == 0;
        if expiry_secs != NEVER_EXPIRES {
            client.expires_at_ms = at_ms + u64::from(expiry_secs) * 1000;
        }
        if let Some((will, _)) = will {
            client.restore_will(will, at_ms, limits);
        }
        for (packet_id, serial, is_released) in exchanges.resends {
            let origin = Origin { group: 0, serial };
            client.session.outgoing.restore(packet_id, origin, is_released);
        }
        for packet_id in exchanges.received {
            client.session.incoming.insert(packet_id);
        }
        client.session.mark_resumed();
        client.is_kept = true;
        client.recharge();
        let slot = sessions.insert(client);
        log.kept.insert(slot, kept);
        cx.metrics.sessions.add(1);
        slot
    }

    fn restore_subscription(
        &mut self,
        slot: u32,
        filter: &str,
        facts: &SubscribedFacts,
    ) -> Result<Option<Listed>, Unreadable> {
        let parsed = topic::parse_filter(filter, &crate::words::topics::UNLIMITED);
        let asked = codec::SubscribeOptions::from_byte(facts.options & !Subscribed::OWED);
        let (Ok(parsed), Some(asked)) = (parsed, asked) else {
            // Going on without it would lose messages of the session without a report.
            let id = self.sessions.get(slot).map_or("", |client| &client.id);
            let options = facts.options;
            let why = format!("{id:?} is subscribed to {filter:?} with options {options:#04x}");
            return Err(Unreadable { at: facts.place.position(), why: why.into() });
        };
        let (options, identifier) = (asked, facts.identifier);
        self.subscribe(slot, &Request { filter: parsed, options, identifier });
        let Some(listed) = self.listed_of(slot, filter).expected() else { return Ok(None) };
        let client = self.sessions.get_mut(slot);
        if let Some(place) = client.and_then(|client| client.subscriptions.place_mut(&listed)) {
            *place = facts.place;
        }
        Ok(Some(listed))
    }

    fn restore_groups(&mut self, replay: &mut Replay) {
        for (queue, facts) in replay.take_groups() {
            let progress = replay.take_progress(QueueId::Owned(queue));
            let filter = Name::of_key(&facts.filter);
            let text = GroupText::new(filter.scope(), &facts.name, filter.text());
            let name = self.group_name(text);
            let Some(log) = &mut self.log else { return };
            let kept = log.restore_group(queue, name.key, &facts, &progress);
            self.restore_group(&name, kept);
        }
    }

    fn restore_retained(&mut self, replay: &mut Replay) {
        let Self { cx, retained, log: Some(log), .. } = self else { return };
        let mut owners = Accounts::new();
        for facts in replay.take_retained() {
            if facts.message.is_expired(cx.now_ms) {
                log.release(facts.place);
            } else {
                let owner = cx.account_of(facts.owner, replay, &mut owners);
                retained.insert(&facts.message, facts.place, owner, &cx.effects);
            }
        }
    }

    /// Counts who needs each message, and lines up what waits. Returns how many there are.
    fn restore_messages(&mut self, replay: &mut Replay, since: &Since) -> u64 {
        let Self { cx, sessions, groups, log: Some(log), .. } = self else { return 0 };
        log.restore_own(replay);
        log.mark_topics(replay, |topic| cx.topic_mark(Name::of_key(topic)));
        let mut needs = log.needs(replay);
        let mut recipients_by_topic: Vec<Option<Recipients>> = vec![None; replay.text_count()];
        let mut owners = Accounts::new();
        for (serial, facts) in replay.take_messages() {
            let recipients =
                match facts.topic_of_waiting(cx.now_ms) {
                    Some(topic) => {
                        let known = &mut recipients_by_topic[topic as usize];
                        Some(&*known.get_or_insert_with(|| {
                            sessions.recipients_of(replay.text(topic), since)
                        }))
                    }
                    None => None,
                };
            let mut waits = false;
            if let Some((queue, (bytes, expires_at_ms))) = facts.group_of_waiting(cx.now_ms)
                && let Some(key) = log.group_of_found(queue, serial)
                && let Some(group) = groups.by_key_mut(key).expected()
            {
                let item = Item::in_log(serial, bytes, expires_at_ms);
                group.queue.push(item, None, cx.now_ms);
                waits = true;
            }
            let need = needs.remove(&serial).unwrap_or_default();
            let owner = cx.account_of(facts.owner(), replay, &mut owners);
            log.restore_message((serial, &facts), need, (recipients, waits), owner, cx.now_ms);
        }
        let since = since.iter().map(|((slot, filter), serial)| (*slot, *filter, *serial));
        log.end_restore(replay, since)
    }

    /// In a cluster of several cells each owner begins above all serials that those before can have
    /// mailed, whoever of the others could be asked.
    fn begin_serials(&mut self) {
        let epoch = self.cx.shared.epoch;
        if let Some(log) = self.log.as_mut().filter(|_| epoch > 0) {
            log.skip_serials(epoch << SERIAL_BITS);
        }
    }

    /// Tells the other shards which of their serials have come here.
    fn announce_seen(&mut self) {
        let Self { cx, log: Some(log), .. } = self else { return };
        let homes = cx.shared.homes;
        for (source, serial) in log.seen().into_iter().enumerate() {
            let place = homes.place_of(homes.sender_of(source as u16));
            // Other cells begin above all their serials of earlier lives.
            if serial > 0 && place != cx.id && place < homes.shards() {
                cx.send(place, Mail::Seen { serial });
            }
        }
    }
}

/// Carries mail between the shards of a process until none is left: after [`Shard::open_journal`],
/// so that each knows the shared groups of all.
pub fn settle(shards: &mut [Shard], now_ms: u64) {
    loop {
        let mut mails = Vec::new();
        let count = shards.len();
        for shard in shards.iter_mut() {
            // What is for other cells waits for links.
            for (to, mail) in shard.effects_mut().mail.iter_mut().enumerate().take(count) {
                mails.extend(mail.drain(..).map(|mail| (to, mail)));
            }
        }
        if mails.is_empty() {
            return;
        }
        for (to, mail) in mails {
            if let Some(shard) = shards.get_mut(to) {
                shard.on_mail(mail, now_ms);
            }
        }
    }
}

/// The owner of restored sessions of clients without a name, until they connect again.
fn nameless_account(scope: Scope) -> String {
    owner_name("address", Name::new(scope, "unknown"))
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

impl Context {
    /// The account of the owner of a message.
    fn account_of<'a>(
        &self,
        owner: Option<u32>,
        replay: &Replay,
        known: &'a mut Accounts,
    ) -> Option<&'a Arc<Account>> {
        let owner = owner?;
        let account = || self.shared.account(replay.text(owner));
        Some(known.entry(owner).or_insert_with(account))
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
