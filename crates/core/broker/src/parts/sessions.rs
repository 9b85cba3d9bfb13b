//! The clients of a shard: connections, sessions, subscriptions.

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::life::cleanup::Cleanup;
use crate::observe::load::LoadWalk;
use crate::parts::client::Client;
use std::sync::Arc;

use crate::parts::groups::Groups;
use crate::parts::router::Router;
use crate::state::Context;
use crate::words::rules::Rules;
use crate::{ShardId, Shared};

/// The sessions of a shard, their connections, and the index of what they subscribe to.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(super) shard: ShardId,
    /// By slot.
    pub(super) clients: Vec<Option<Box<Client>>>,
    /// By slot. One grows each time its slot is taken, so that an old key finds nobody.
    pub(super) generations: Vec<u16>,
    pub(super) free: Vec<u32>,
    pub(super) by_id: HashTable<u32>,
    /// Those with a queue in the journal.
    pub(super) by_queue: HashTable<u32>,
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
