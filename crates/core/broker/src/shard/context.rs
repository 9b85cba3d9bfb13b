//! What every part of a shard has at hand.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use codec::Reason;
use session::Message;

use crate::clients::notices::ShardNotices;
use crate::command::Publications;
use crate::flow::Flow;
use crate::flow::write_order::Dirty;
use crate::shard::buffers::Buffers;
use crate::shard::effects::Effects;
use crate::shard::timers::Timers;
use crate::shard::trace::Tracing;
use crate::stats::droppers::Droppers;
use crate::{Confirm, Ended, Event, Mail, Metrics, Quota, Scope, ShardId, Shared, Space};

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

    pub(crate) fn send_to_others(&mut self, mail: &Mail) {
        self.effects.send_to_others(mail);
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

    /// A random number; xorshift, for choices that need to be spread, not secret.
    pub(crate) const fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}
