//! The broker's process: all that ends with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use broker::{Access, Mail, Settings, Shard, ShardId, Shared};

use crate::sabotage::Sabotage;

/// A connection as the broker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) shard: ShardId,
    pub(crate) slot: u32,
    pub(crate) connection: u32,
}

pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) mail: BTreeMap<(ShardId, ShardId), VecDeque<Mail>>,
    /// First bytes of connections that are not admitted.
    pub(crate) door: BTreeMap<u32, Vec<u8>>,
    /// Connections that the shards said have something to write.
    pub(crate) dirty: BTreeSet<Place>,
    /// Connections that are not read for a while.
    pub(crate) paused: Vec<(ShardId, u32)>,
    /// Connections that are not read before their shard says so.
    pub(crate) held: BTreeSet<u32>,
    /// Connections that broke, and of which the broker does not know yet.
    pub(crate) broken: Vec<Place>,
    /// What is wrong with it.
    pub(crate) sabotage: Option<Sabotage>,
}

impl Node {
    pub(crate) fn new(settings: &Settings, shard_count: ShardId, seed: u64) -> Self {
        let shared = Shared::new(settings.clone(), shard_count, seed);
        let shards = (0..shard_count)
            .map(|number| Shard::new(number, shared.clone(), Access::open()))
            .collect();
        Self {
            shared,
            shards,
            mail: BTreeMap::new(),
            door: BTreeMap::new(),
            dirty: BTreeSet::new(),
            paused: Vec::new(),
            held: BTreeSet::new(),
            broken: Vec::new(),
            sabotage: None,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.paused.is_empty()
            && self.held.is_empty()
            && self.dirty.is_empty()
            && self.mail.is_empty()
            && self.door.is_empty()
    }
}
