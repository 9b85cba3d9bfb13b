//! Clients of other users that do their worst beside the honest ones.
//!
//! They have a listener of their own, with limits that they hit, and two users between them. What
//! they send comes from a seed of its own; what they read is judged: no message and no session of
//! another user. The honest ones keep every promise that they have in a world of their own, and
//! are neither refused nor cut. When the hostile ones have gone, nothing is charged to them.

mod kinds;
mod network;
mod pressure;

use std::sync::Arc;

use broker::access::{Access, Permission, Rule, Who};
use broker::{Limits, Settings};
use codec::Version;
use session::{Overflow, QueueLimits};

use crate::node::Place;
use crate::random::Random;
use kinds::Kind;
use pressure::Pressure;

/// All of them, and what the broker is made to feel.
#[derive(Debug)]
pub(crate) struct Mob {
    pub(super) random: Random,
    pub(super) members: Vec<Hostile>,
    /// Access rules keep them from the topics of the honest ones.
    pub(crate) is_guarded: bool,
    pub(super) limits: Arc<Limits>,
    pub(super) outbox_bytes_max: u32,
    /// What one client may ask for in a turn, whatever the broker makes of it.
    pub(super) turn_units: u32,
    pressure: Pressure,
    /// The logs have no more room than they may fill.
    pub(crate) has_small_logs: bool,
    /// Publishes of theirs that were answered with a refusal for want of room.
    pub(super) refused: u64,
    /// They do nothing more.
    pub(super) has_left: bool,
}

#[derive(Debug)]
pub(super) struct Hostile {
    number: u32,
    user: String,
    kind: Kind,
    wire: Option<Wire>,
    next_packet_id: u16,
    /// What it has made so far, to make each thing another one.
    made: u32,
    /// It has no right to what is not its own.
    is_guarded: bool,
    /// Bytes at the end of what it has written, of a packet that never ends. 0: there are none.
    tail_bytes: usize,
}

/// Its end of a connection that was admitted.
#[derive(Debug)]
pub(super) struct Wire {
    arrival: u32,
    place: Place,
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
        let is_guarded = is_there && !has_policy && random.chance(60);
        let mut members: Vec<Hostile> =
            (0..count).map(|number| Hostile::new(number, is_guarded, &mut random)).collect();
        let outbox_bytes_max = [500, 2_000, 200_000][random.below(3)];
        let has_small_logs = is_there && random.chance(50);
        let (messages_max, bytes_max) =
            if has_small_logs { (5_000, 8 << 20) } else { (200, 150_000) };
        for member in members.iter_mut().skip(1).filter(|_| has_small_logs) {
            member.kind = Kind::Ghost;
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
            is_guarded,
            limits: Arc::new(limits),
            outbox_bytes_max,
            turn_units: settings.turn_units,
            pressure: Pressure::default(),
            has_small_logs,
            refused: 0,
            has_left: !is_there,
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

    /// Whose connection is this?
    pub(super) fn member_of(&self, arrival: u32) -> Option<usize> {
        let is_it = |member: &Hostile| member.wire.as_ref().is_some_and(|w| w.arrival == arrival);
        self.members.iter().position(is_it)
    }

    /// The process of the broker has ended.
    pub(crate) fn lose_connections(&mut self) {
        self.members.iter_mut().for_each(|member| member.wire = None);
        self.pressure = Pressure::default();
    }
}

impl Hostile {
    fn new(number: u32, is_guarded: bool, random: &mut Random) -> Self {
        let kind = Kind::ALL[random.below(Kind::ALL.len())];
        let user = format!("x{}", number % USERS);
        let (wire, next_packet_id, made, tail_bytes) = (None, 0, 0, 0);
        Self { number, user, kind, wire, next_packet_id, made, is_guarded, tail_bytes }
    }

    /// The protocol that it speaks.
    const fn version(&self) -> Version {
        if self.number % 4 == 3 { Version::V311 } else { Version::V5 }
    }
}

/// So many users they have between them.
const USERS: u32 = 2;

/// Their accounts.
pub(crate) fn accounts() -> Vec<String> {
    (0..USERS).map(|user| format!("user x{user}")).collect()
}

fn rule(who: Who, filter: &str) -> Rule {
    Rule { who, permission: Permission::ReadWrite, filter: filter.into() }
}
