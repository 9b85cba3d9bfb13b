//! A shard: the unit of state, and what all its behaviour has at hand.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use codec::Reason;
use foldhash::fast::FixedState;
use session::{Dirt, Message, NEVER, Outbox};

use crate::log::facts::Origin;
use crate::log::kept::KeptSession;
use crate::log::messages::level_of;
use crate::log::store::Log;
use crate::parts::buffers::Buffers;
use crate::parts::client::{Client, KEPT_SESSION_BYTES};
use crate::parts::droppers::Droppers;
use crate::parts::effects::Effects;
use crate::parts::flow::Flow;
use crate::parts::groups::Groups;
use crate::parts::notices::ShardNotices;
use crate::parts::publications::Publications;
use crate::parts::retained::Retained;
use crate::parts::sessions::Sessions;
use crate::parts::timers::Timers;
use crate::parts::tracing::Tracing;
use crate::parts::write_order::Dirty;
use crate::words::expected::Expected;
use crate::words::rules::Rules;
use crate::{
    Confirm, Durability, Ended, Event, Mail, Metrics, Name, Quota, Scope, ShardId, Shared, Space,
};

const _: () = assert!(size_of::<KeptSession>() == KEPT_SESSION_BYTES);

/// Which shard this is, what shards share, how much work is left of the present turn, and the
/// effects so far.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) id: ShardId,
    pub(crate) shared: Arc<Shared>,
    /// Those of this shard among the shared ones.
    pub(crate) metrics: Arc<Metrics>,
    /// Of the present event, since the Unix epoch.
    pub(crate) now_ms: u64,
    pub(crate) random: u64,
    pub(crate) effects: Effects,
    pub(crate) notices: ShardNotices,
    pub(crate) droppers: Droppers,
    pub(crate) flow: Flow,
    /// Of operators: publishes that wait for their shards.
    pub(crate) publications: Publications,
    /// Connections with bytes to write.
    pub(crate) dirty: Dirty,
    /// Connections to be ended when the present event is done.
    pub(crate) doomed: Vec<(u32, Ended)>,
    pub(crate) buffers: Buffers,
    pub(crate) timers: Timers,
    pub(crate) tracing: Option<Box<Tracing>>,
    /// Those that a client of this shard has been of.
    pub(crate) spaces: BTreeMap<Scope, Arc<Space>>,
}

impl Context {
    pub(crate) fn new(id: ShardId, shared: Arc<Shared>, seed: u64) -> Self {
        Self {
            id,
            metrics: Arc::clone(&shared.metrics[usize::from(id)]),
            now_ms: 0,
            random: seed | 1,
            effects: Effects::new(id, &shared),
            notices: ShardNotices::default(),
            droppers: Droppers::default(),
            flow: Flow::new(&shared),
            publications: Publications::default(),
            dirty: Dirty::default(),
            doomed: Vec::new(),
            buffers: Buffers::default(),
            timers: Timers::default(),
            tracing: Tracing::new(shared.settings.spans, seed),
            spaces: BTreeMap::new(),
            shared,
        }
    }
    pub(crate) fn answer(&mut self, confirm: Option<Confirm>, reason: Reason, message: Message) {
        if let Some(confirm) = confirm {
            let refused = reason.is_error().then_some(message);
            self.send(confirm.publisher.shard(), Mail::Confirmed { confirm, reason, refused });
        }
    }

    pub(crate) fn send(&mut self, shard: ShardId, mail: Mail) {
        self.effects.send(shard, mail);
    }

    pub(crate) fn send_to_shards(&mut self, mail: &Mail) {
        self.effects.send_to_shards(mail);
    }

    pub(crate) fn report(&mut self, scope: Scope, event: Event) {
        self.effects.report(scope, event);
    }

    /// What there is to know of a scope. None: of the first, or of one that is gone.
    pub(crate) fn space(&mut self, scope: Scope) -> Option<&Space> {
        if scope.is_first() {
            return None;
        }
        if let Entry::Vacant(vacant) = self.spaces.entry(scope) {
            vacant.insert(self.shared.spaces.get(scope)?);
        }
        self.spaces.get(&scope).map(|space| &**space)
    }

    pub(crate) fn count_in_space(&mut self, scope: Scope, quota: Quota, more: i64) {
        if let Some(space) = self.space(scope) {
            space.add(quota, more);
        }
    }

    /// Stands for a topic. Should two have the same, one waits for the other.
    pub(crate) fn topic_mark(&self, topic: Name<'_>) -> u64 {
        topic.hash(&FixedState::with_seed(self.shared.seed))
    }

    /// What is written with a message that has a serial where it comes from.
    pub(crate) fn origin_of(&self, confirm: Confirm) -> Option<Origin> {
        let (source, serial) = (self.source_of(confirm, 0), confirm.serial);
        (serial != 0).then_some(Origin { source, serial })
    }

    /// By what the journal knows whose serial it is. `step` 1: of what is to be retained.
    pub(crate) fn source_of(&self, confirm: Confirm, step: u16) -> u16 {
        let kind = 2 * u16::from(confirm.is_will) + step;
        let (homes, publisher) = (self.shared.homes, confirm.publisher);
        match publisher.shard() < homes.shards() {
            true => homes.source(kind, publisher.shard()),
            false => homes.source_at(kind, publisher.shard(), publisher.generation()),
        }
    }

    /// The member's side: notifies the home of a group that a message is done, or comes back.
    pub(crate) fn notify_home(&mut self, group: u64, serial: u64, is_done: bool) {
        if serial == 0 {
            return;
        }
        let mail = match is_done {
            true => Mail::GroupDone { group, serial },
            false => Mail::GroupReturned { group, serial },
        };
        self.send(self.shared.place_of_group(group), mail);
    }

    /// A random number; xorshift, for choices that need to be spread, not secret.
    pub(crate) const fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Sessions, subscriptions and retained messages of a part of all clients and topics.
///
/// One thread drives it. Between two calls the driver drains [`Shard::effects`].
#[derive(Debug)]
pub struct Shard {
    pub(crate) cx: Context,
    pub(crate) sessions: Sessions,
    pub(crate) groups: Groups,
    pub(crate) retained: Retained,
    /// None: nothing is kept across a start.
    pub(crate) log: Option<Box<Log>>,
    /// When retained messages and groups are looked through next.
    pub(crate) sweeps_at_ms: u64,
}

impl Shard {
    pub fn new(id: ShardId, shared: Arc<Shared>, rules: impl Into<Rules>) -> Self {
        let seed = shared.seed ^ u64::from(id);
        Self {
            sessions: Sessions::new(id, &shared, rules.into(), seed),
            groups: Groups::new(shared.seed),
            retained: Retained::new(id),
            log: None,
            sweeps_at_ms: 0,
            cx: Context::new(id, shared, seed),
        }
    }

    /// What the driver has to carry out.
    pub const fn effects(&self) -> &Effects {
        &self.cx.effects
    }

    /// The driver takes out what it carries out.
    pub const fn effects_mut(&mut self) -> &mut Effects {
        &mut self.cx.effects
    }

    pub const fn id(&self) -> ShardId {
        self.cx.id
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.cx.shared
    }

    pub fn metrics(&self) -> &Metrics {
        &self.cx.metrics
    }

    /// The outbox of a connection; None if the session has another connection by now, or may not be
    /// told anything yet.
    pub fn outbox(&mut self, slot: u32, connection: u64) -> Option<&mut Outbox> {
        let link = self.sessions.link(slot, connection).filter(|link| !link.is_told_nothing);
        link.map(|link| &mut link.outbox)
    }

    /// Ends the connections that were found to be at their end while something else went on.
    pub(crate) fn finish(&mut self) {
        while let Some((slot, ended)) = self.cx.doomed.pop() {
            self.end(slot, ended);
        }
    }

    /// Is there mail that what comes from now on must not overtake in the log?
    pub(crate) fn has_late_mail(&self) -> bool {
        self.log.as_ref().is_some_and(|log| log.has_late_mail())
    }

    /// Mail of a serial that this shard has had: nothing is to be done for it again. `step` 1: of
    /// what is to be retained.
    pub(crate) fn has_had(&self, confirm: Confirm, step: u16) -> bool {
        let Some(log) = &self.log else { return false };
        log.has_seen(self.cx.source_of(confirm, step), confirm.serial)
    }

    pub(crate) fn answer_repetition(&mut self, confirm: Confirm, message: Message) {
        let level = level_of(message.level());
        let Some(log) = &mut self.log else { return };
        if log.answer_repetition(level, confirm).is_some() {
            self.cx.answer(Some(confirm), Reason::SUCCESS, message);
        }
    }

    /// Mail waits until there is room for it in the log.
    pub(crate) fn put_off_mail(&mut self, mail: Mail) {
        if let Some(log) = self.log.as_mut().expected() {
            log.put_off_mail(mail);
        }
    }

    /// At which level a message of a client is kept.
    pub(crate) fn level_of(&self, topic: &str, durability: Durability) -> u8 {
        match self.log {
            Some(_) => self.cx.shared.settings.level_of(topic, durability),
            None => 0,
        }
    }

    /// Sessions, with or without a connection; none that has ended.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
}

impl Client {
    /// Deliveries that wait for it in the log.
    #[inline]
    pub(crate) fn backlog(&self, log: Option<&Log>) -> usize {
        if self.is_kept { log.map_or(0, |log| log.queued(self.key.slot())) } else { 0 }
    }

    /// Does anything wait for it in the log?
    #[inline]
    pub(crate) fn has_backlog(&self, log: Option<&Log>) -> bool {
        self.is_kept && log.is_some_and(|log| log.is_behind(self.key.slot()))
    }

    /// Deliveries that wait for a place in its window.
    pub(crate) fn queued(&self, log: Option<&Log>) -> u64 {
        (self.session.outgoing.queued() + self.backlog(log)) as u64
    }

    /// Has an older publish of the client perhaps replaced what this one has retained?
    pub(crate) fn has_undone(&self, log: Option<&Log>, packet_id: u16) -> bool {
        let known = log.and_then(|log| log.kept.has_undone(self.key.slot(), packet_id));
        known.unwrap_or_else(|| self.session.incoming.is_behind())
    }

    /// Makes sure that it is looked at when something is due.
    pub(crate) fn arm_timer(&mut self, cx: &mut Context) {
        let due_ms = self.next_due_ms();
        if due_ms == NEVER {
            return;
        }
        let tick = Timers::tick_of(due_ms);
        if tick < self.timer_at {
            self.timer_at = tick;
            cx.timers.arm(tick, self.key.as_u64());
        }
    }

    /// Takes the mark of its connection; false if it has none.
    pub(crate) fn unmark(&mut self) -> bool {
        let Some(link) = self.session.link_mut() else { return false };
        std::mem::replace(&mut link.dirty, Dirt::Clean) != Dirt::Clean
    }

    /// Notes that its outbox may have something to write.
    pub(crate) fn mark_dirty(&mut self, cx: &mut Context) {
        let dirt = cx.dirty.dirt;
        let Some(link) = self.session.link_mut().filter(|link| link.dirty < dirt) else { return };
        link.dirty = dirt;
        let queue = match dirt {
            Dirt::Urgent => &mut cx.dirty.urgent,
            Dirt::SetApart | Dirt::Clean => &mut cx.dirty.broadcast,
        };
        queue.push_back((self.key.slot(), self.connection));
    }
}
