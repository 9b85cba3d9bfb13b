//! The clients of a shard: connections, sessions, subscriptions.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::parts::cleanup::Cleanup;
use crate::parts::client::Client;
use crate::parts::router::Router;
use crate::words::rules::Rules;
use crate::{ShardId, Shared};

/// The sessions of a shard, their connections, and the index of what they subscribe to.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(super) shard: ShardId,
    /// By slot.
    pub(crate) clients: Vec<Option<Box<Client>>>,
    /// By slot. One grows each time its slot is taken, so that an old key finds nobody.
    pub(super) generations: Vec<u16>,
    pub(super) free: Vec<u32>,
    pub(super) by_id: HashTable<u32>,
    pub(super) hasher: FixedState,
    pub(crate) router: Router,
    pub(crate) rules: Rules,
    pub(crate) cleanup: Cleanup,
    /// Of the latest connection.
    pub(crate) sequence: u64,
    pub(crate) load_walk: LoadWalk,
    /// The first slot whose unsent bytes are to be counted next.
    pub(crate) next_unsent: u32,
}

impl Sessions {
    pub(crate) fn new(id: ShardId, shared: &Arc<Shared>, rules: Rules, seed: u64) -> Self {
        Self {
            shard: id,
            clients: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_id: HashTable::new(),
            hasher: FixedState::with_seed(seed),
            router: Router::new(id, shared, seed),
            rules,
            cleanup: Cleanup::default(),
            sequence: 0,
            load_walk: LoadWalk::default(),
            next_unsent: 0,
        }
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }
}

/// How far the walk is, and what it has found.
#[derive(Debug, Default)]
pub(crate) struct LoadWalk {
    pub(crate) next_slot: u32,
    pub(crate) queued: u64,
    pub(crate) in_flight: u64,
}
