//! Clients of other users that do their worst beside the honest ones.
//!
//! They have a listener of their own, with limits that they hit, and two users between them; or
//! they are a namespace of their own, with many users. What they send comes from a seed of its own;
//! what they read is judged: no message and no session of another user or namespace. The honest
//! ones keep every promise that they have in a world of their own, and are neither refused nor cut.
//! When the hostile ones have gone, nothing is charged to them.

mod kinds;
mod network;
mod pressure;

use std::sync::Arc;

use broker::{Limits, Scope, Settings, Shared};
use codec::Version;
use driver::testing::PipeEnd;
use policy::{Access, Permission, Rule, Who};
use session::{Account, Overflow, QueueLimits};

use crate::random::Random;
use crate::sabotage::Sabotage;
use kinds::HostileKind;
use pressure::Pressure;

/// All of them, and what the broker is made to feel.
#[derive(Debug)]
pub(crate) struct Mob {
    pub(crate) random: Random,
    pub(super) members: Vec<Hostile>,
    /// That of the honest ones, or a namespace of their own.
    pub(crate) scope: Scope,
    /// Planted: accounts that belong to no namespace.
    astray: Vec<Arc<Account>>,
    /// Access rules keep them from the topics of the honest ones.
    pub(crate) is_guarded: bool,
    pub(super) limits: Arc<Limits>,
    pub(super) outbox_bytes_max: u32,
    /// What one client may ask for in a turn, whatever the broker makes of it.
    pub(super) turn_units: u32,
    pressure: Pressure,
    /// Some of them flood without end, and others write to queues that are long.
    pub(crate) has_floods: bool,
    /// The journals have no more room than they may fill.
    pub(crate) has_small_journals: bool,
    /// Publishes of theirs that were answered with a refusal for want of room.
    pub(super) refused: u64,
    /// They do nothing more.
    pub(super) has_left: bool,
    /// Ends of connections that they have taken over.
    pub(super) left_behind: Vec<PipeEnd>,
}

#[derive(Debug)]
pub(super) struct Hostile {
    number: u32,
    user: String,
    kind: HostileKind,
    wire: Option<Wire>,
    next_packet_id: u16,
    /// What it has made so far, to make each thing another one.
    made: u32,
    /// It has no right to what is not its own.
    is_guarded: bool,
    /// It is in a namespace with those like it.
    is_tenant: bool,
    /// Bytes at the end of what it has written, of a packet that never ends. 0: there are none.
    tail_bytes: usize,
}

/// Its end of a connection that was admitted.
#[derive(Debug)]
pub(super) struct Wire {
    pipe: PipeEnd,
    client_id: String,
    account: String,
    /// A CONNACK has come.
    is_answered: bool,
    to_broker: Vec<u8>,
    /// The beginning of a packet of the broker's.
    unread: Vec<u8>,
}

impl Mob {
    /// `is_there`: there are any.
    pub(crate) fn new(
        (is_there, has_policy): (bool, bool),
        seed: u64,
        honest: &Limits,
        settings: &Settings,
    ) -> Self {
        let mut random = Random::new(seed ^ (1 << 60));
        let count = if is_there { 2 + random.below(5) as u32 } else { 0 };
        let is_tenant = is_there && !has_policy && random.chance(40);
        let has_floods = is_there && !has_policy && random.chance(25);
        let is_guarded = is_there && !has_policy && !is_tenant && !has_floods && random.chance(60);
        let one = |number| Hostile::new(number, (is_guarded, is_tenant), &mut random);
        let mut members: Vec<Hostile> = (0..count).map(one).collect();
        let outbox_bytes_max = [500, 2_000, 200_000][random.below(3)];
        let has_small_journals = is_there && random.chance(50);
        let (messages_max, bytes_max) =
            if has_small_journals { (5_000, 8 << 20) } else { (200, 150_000) };
        for member in members.iter_mut().skip(1).filter(|_| has_small_journals) {
            member.kind = HostileKind::Ghost;
        }
        for member in members.iter_mut().filter(|_| has_floods) {
            // Who subscribes to everything has its session on one shard, who floods on another.
            member.kind =
                if member.number % 2 == 0 { HostileKind::Ghost } else { HostileKind::Flooder };
        }
        let limits = Limits {
            packet_bytes_max: 64 * 1024,
            outbox_bytes_max,
            filters_per_packet_max: 150,
            subscriptions_per_client_max: 400,
            shared_subscriptions_per_client_max: 20,
            queue: QueueLimits {
                messages_max,
                bytes_max,
                overflow: Overflow::DropOldest,
                keeps_qos0: random.chance(50),
            },
            ..honest.clone()
        };
        Self {
            random,
            members,
            scope: if is_tenant { TENANT } else { Scope::FIRST },
            astray: Vec::new(),
            is_guarded,
            limits: Arc::new(limits),
            outbox_bytes_max,
            turn_units: settings.turn_units,
            pressure: Pressure::default(),
            has_floods,
            has_small_journals,
            refused: 0,
            has_left: !is_there,
            left_behind: Vec::new(),
        }
    }

    pub(crate) const fn has_left(&self) -> bool {
        self.has_left
    }

    pub(crate) const fn refused(&self) -> u64 {
        self.refused
    }

    pub(crate) fn is_there(&self) -> bool {
        !self.members.is_empty()
    }

    /// The rules of the broker.
    pub(crate) fn access(&self) -> Access {
        if !self.is_guarded {
            return Access::open();
        }
        let honest = [Who::User("u1".into()), Who::User("u2".into()), Who::Anonymous];
        let mut rules: Vec<Rule> = honest.into_iter().map(|who| rule(who, "#")).collect();
        rules.extend(self.rules());
        // All filters are valid.
        let access = Access::compile(&rules).unwrap_or_else(|_| Access::open());
        access.accepting_all_subscriptions(true)
    }

    /// What they may do, where others have rules of their own.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        if self.is_there() { vec![rule(Who::Everyone, "x/%u/#")] } else { Vec::new() }
    }

    /// A process begins, and knows of their namespace.
    pub(crate) fn enter(&mut self, shared: &Shared, sabotage: Option<Sabotage>) {
        if self.is_tenant() && self.is_there() {
            shared.spaces.open(self.scope);
        }
        self.astray.clear();
        if sabotage == Some(Sabotage::ForgetNamespaces) {
            self.astray = self.accounts().iter().map(|name| shared.ledger.account(name)).collect();
        }
    }

    /// Of those that have a connection.
    pub(crate) fn client_ids(&self) -> Vec<String> {
        let wires = self.members.iter().filter_map(|member| member.wire.as_ref());
        wires.map(|wire| wire.client_id.clone()).collect()
    }

    pub(crate) fn is_tenant(&self) -> bool {
        !self.scope.is_first()
    }

    pub(super) fn account_of(&self, user: &str) -> String {
        match self.is_tenant() {
            true => format!("namespace {} user {user}", self.scope.number()),
            false => format!("user {user}"),
        }
    }

    /// Their accounts.
    pub(crate) fn accounts(&self) -> Vec<String> {
        let users = self.members.iter().flat_map(Hostile::users);
        let mut accounts: Vec<String> = users.map(|user| self.account_of(&user)).collect();
        accounts.sort();
        accounts.dedup();
        accounts
    }

    /// The process of the broker has ended.
    pub(crate) fn lose_connections(&mut self) {
        self.members.iter_mut().for_each(|member| member.wire = None);
        self.left_behind.clear();
        self.pressure = Pressure::default();
    }
}

impl Hostile {
    fn new(number: u32, (is_guarded, is_tenant): (bool, bool), random: &mut Random) -> Self {
        let kind = HostileKind::ALL[random.below(HostileKind::ALL.len())];
        let user = format!("x{}", number % USERS);
        let (wire, next_packet_id, made, tail_bytes) = (None, 0, 0, 0);
        Self { number, user, kind, wire, next_packet_id, made, is_guarded, is_tenant, tail_bytes }
    }

    /// Client ids that it uses.
    fn ids(&self) -> usize {
        // A taker has to come back by the id that it has.
        let is_crowd = self.is_tenant && self.kind != HostileKind::Taker;
        if is_crowd { TENANT_IDS } else { self.kind.ids() }
    }

    /// The user with its client id of this number: in a namespace of its own each is another one.
    fn user_of(&self, id: usize) -> String {
        match self.is_tenant {
            true => format!("x{}u{id}", self.number),
            false => self.user.clone(),
        }
    }

    fn users(&self) -> impl Iterator<Item = String> {
        (0..self.ids()).map(|id| self.user_of(id))
    }

    /// The protocol that it speaks.
    const fn version(&self) -> Version {
        if self.number % 4 == 3 { Version::V311 } else { Version::V5 }
    }
}

/// So many users they have between them beside the honest ones.
const USERS: u32 = 2;

/// A namespace of their own.
const TENANT: Scope = Scope::new(7);

/// Client ids, each of another user, that one of them uses there.
const TENANT_IDS: usize = 6;

fn rule(who: Who, filter: &str) -> Rule {
    Rule { who, permission: Permission::ReadWrite, filter: filter.into() }
}
