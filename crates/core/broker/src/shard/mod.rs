//! A shard: the unit of state. Events in, effects out.

pub(crate) mod buffers;
mod bytes;
pub(crate) mod calendar;
mod commands;
pub(crate) mod connection_numbers;
mod connections;
pub(crate) mod context;
mod disk;
pub(crate) mod effects;
pub(crate) mod event;
mod exchange;
mod gather;
pub(crate) mod inbox;
pub(crate) mod mail;
mod route;
pub(crate) mod shared;
pub(crate) mod spans;
mod ticks;
pub(crate) mod timers;
pub(crate) mod trace;
pub(crate) mod waits;

pub(crate) use gather::OwnMemory;
pub use gather::Rest;

use std::sync::Arc;

use session::Outbox;

use crate::clients::Sessions;
use crate::durable::Durable;
use crate::groups::table::Groups;
use crate::limits::rules::Rules;
use crate::retained::Retained;
use crate::shard::context::Context;
use crate::shard::effects::Effects;
use crate::{Metrics, ShardId, Shared};

/// Sessions, subscriptions and retained messages of a part of all clients and topics.
///
/// One thread drives it. Between two calls the driver drains [`Shard::effects`].
#[derive(Debug)]
pub struct Shard {
    cx: Context,
    sessions: Sessions,
    groups: Groups,
    retained: Retained,
    durable: Durable,
    /// When retained messages and groups are looked through next.
    sweeps_at_ms: u64,
}

impl Shard {
    pub fn new(id: ShardId, shared: Arc<Shared>, rules: impl Into<Rules>) -> Self {
        let seed = shared.seed ^ u64::from(id);
        Self {
            sessions: Sessions::new(id, &shared, rules.into(), seed),
            groups: Groups::new(shared.seed),
            retained: Retained::new(id),
            durable: Durable::default(),
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
    fn finish(&mut self) {
        while let Some((slot, ended)) = self.cx.doomed.pop() {
            self.end(slot, ended);
        }
    }

    /// Sessions, with or without a connection; none that has ended.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }
}
