//! The clients of a shard: connections, sessions, subscriptions.

pub mod admission;
pub(crate) mod answers;
pub(crate) mod cleanup;
pub(crate) mod client;
pub(crate) mod connect;
pub(crate) mod ending;
pub(crate) mod load;
pub(crate) mod notices;
pub(crate) mod slots;
pub(crate) mod subscribe;
pub(crate) mod subscriptions;
pub(crate) mod verdicts;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::clients::cleanup::Cleanup;
use crate::clients::client::Client;
use crate::clients::load::LoadWalk;
use std::sync::Arc;

use crate::groups::table::Groups;
use crate::limits::rules::Rules;
use crate::routing::router::Router;
use crate::shard::context::Context;
use crate::{ShardId, Shared};

/// The sessions of a shard, their connections, and the index of what they subscribe to.
#[derive(Debug)]
pub(crate) struct Sessions {
    shard: ShardId,
    /// By slot.
    clients: Vec<Option<Box<Client>>>,
    /// By slot. One grows each time its slot is taken, so that an old key finds nobody.
    generations: Vec<u16>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// Those with a queue in the journal.
    by_queue: HashTable<u32>,
    hasher: FixedState,
    pub(crate) router: Router,
    rules: Rules,
    cleanup: Cleanup,
    /// Of the latest connection.
    sequence: u64,
    load_walk: LoadWalk,
    /// The first slot whose unsent bytes are to be counted next.
    next_unsent: u32,
}

impl Sessions {
    pub(crate) fn new(id: ShardId, shared: &Arc<Shared>, rules: Rules, seed: u64) -> Self {
        Self {
            shard: id,
            clients: Vec::new(),
            generations: Vec::new(),
            free: Vec::new(),
            by_id: HashTable::new(),
            by_queue: HashTable::new(),
            hasher: FixedState::with_seed(seed),
            router: Router::new(id, shared, seed),
            rules,
            cleanup: Cleanup::default(),
            sequence: 0,
            load_walk: LoadWalk::default(),
            next_unsent: 0,
        }
    }

    /// From now on these rules hold.
    pub(crate) fn set_rules(&mut self, cx: &mut Context, groups: &mut Groups, rules: Rules) {
        self.rules = rules;
        for slot in self.slots() {
            self.renew_grants(cx, groups, slot);
        }
    }

    /// A client may do what the rules say of it now.
    pub(crate) fn renew_grants(&mut self, cx: &mut Context, groups: &mut Groups, slot: u32) {
        let Some(Some(client)) = self.clients.get_mut(slot as usize) else { return };
        client.grants = client.grants_by(&self.rules);
        client.rechecks = !client.grants.is_open();
        client.forget_verdicts();
        client.recharge();
        self.recheck_receiving(cx, groups, slot);
    }

    pub(crate) const fn rules(&self) -> &Rules {
        &self.rules
    }
}
