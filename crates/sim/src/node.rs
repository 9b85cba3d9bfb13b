//! The broker's process: all that ends with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use broker::{Mail, NO_CONNECTION, Numbers, Settings, Shard, ShardId, Shared, key_of};
use policy::Access;
use slab::Slab;

use crate::random::Random;
use crate::sabotage::Sabotage;

/// A connection as the broker knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) shard: ShardId,
    pub(crate) slot: u32,
    pub(crate) connection: u64,
}

/// What the workers of the server are here: they number the connections of their shards.
///
/// As there, a key is the next connection's as soon as nobody needs the one before.
#[derive(Debug, Default)]
pub(crate) struct Worker {
    numbers: Numbers,
    keys: Slab<()>,
    /// Of those whose socket is still to be closed.
    closing: VecDeque<usize>,
}

impl Worker {
    pub(crate) fn open(&mut self, sabotage: Option<Sabotage>) -> u64 {
        let key = self.keys.insert(());
        if sabotage == Some(Sabotage::ReuseNumbers) {
            return key as u64;
        }
        self.numbers.give(key).unwrap_or(NO_CONNECTION)
    }

    pub(crate) fn close_later(&mut self, connection: u64) {
        self.closing.push_back(key_of(connection));
    }

    /// Sockets are closed at the end of a turn, but not all in the same one.
    pub(crate) fn close_some(&mut self, random: &mut Random) {
        let count = random.below(self.closing.len() + 1);
        self.closing.drain(..count).for_each(|key| self.keys.remove(key));
    }
}

pub(crate) struct Node {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) mail: BTreeMap<(ShardId, ShardId), VecDeque<Mail>>,
    /// Shard `n` lives on worker `n % workers`.
    pub(crate) workers: Vec<Worker>,
    /// First bytes of connections that are not admitted, by arrival.
    pub(crate) door: BTreeMap<u32, Vec<u8>>,
    /// All connections, and as what they arrived.
    pub(crate) connections: BTreeMap<Place, u32>,
    /// Connections that the shards said have something to write.
    pub(crate) dirty: BTreeSet<Place>,
    /// Connections that are not read for a while.
    pub(crate) paused: Vec<(ShardId, u64)>,
    /// Connections that are not read before their shard says so.
    pub(crate) held: BTreeSet<(ShardId, u64)>,
    /// Connections that broke, and of which the broker does not know yet.
    pub(crate) broken: Vec<Place>,
    /// What is wrong with it.
    pub(crate) sabotage: Option<Sabotage>,
}

impl Node {
    pub(crate) fn new(
        settings: &Settings,
        shard_count: ShardId,
        seed: u64,
        access: &Access,
    ) -> Self {
        let worker_count = 1 + Random::new(seed).below(usize::from(shard_count));
        let shared = Shared::new(settings.clone(), shard_count, seed);
        let shards = (0..shard_count)
            .map(|number| Shard::new(number, shared.clone(), access.clone()))
            .collect();
        Self {
            shared,
            shards,
            mail: BTreeMap::new(),
            workers: (0..worker_count).map(|_| Worker::default()).collect(),
            door: BTreeMap::new(),
            connections: BTreeMap::new(),
            dirty: BTreeSet::new(),
            paused: Vec::new(),
            held: BTreeSet::new(),
            broken: Vec::new(),
            sabotage: None,
        }
    }

    pub(crate) fn worker(&mut self, shard: ShardId) -> &mut Worker {
        let index = usize::from(shard) % self.workers.len();
        &mut self.workers[index]
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.paused.is_empty()
            && self.held.is_empty()
            && self.dirty.is_empty()
            && self.mail.is_empty()
            && self.door.is_empty()
            && self.shards.iter().all(|shard| shard.waits().are_over())
    }
}
