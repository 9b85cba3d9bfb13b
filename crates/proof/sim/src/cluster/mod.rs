//! Cluster worlds: two or three nodes with a simulated engine between them.
//!
//! One of the nodes serves at a time. The world of the other modules knows one process of a broker:
//! here it is exchanged for that of the node whose turn it is ([`World::switch_to`]). What decides
//! anything is `cluster::Node`, as in the server; only its effects are carried out here.

mod bugs;
mod calamities;
mod clients;
mod copy;
mod engine;
mod files;
mod member;
mod moves;
mod odd;
mod programs;
mod setup;
mod silent;
mod span;
mod takeover;
mod toll;

use std::rc::Rc;

use cluster::Role;
use driver::testing::Clock;

use crate::disks::{LAZY_COMMIT_MS, SYNC_INTERVAL_MS};
use crate::node::Node;
use crate::random::Random;
use crate::sabotage::Sabotage;
use crate::world::World;
pub(crate) use calamities::Plan;
use engine::Engine;
use files::Lines;
use member::Member;
pub use toll::Toll;

/// The nodes of a cluster, and what is between them.
pub(crate) struct Cluster {
    pub(crate) engine: Engine,
    pub(crate) members: Vec<Member>,
    /// Whose broker the world has in its hands.
    pub(crate) current: usize,
    /// Who opened its journals last.
    pub(crate) serving: Option<usize>,
    pub(crate) settings: storage::Settings,
    pub(crate) plan: Plan,
    pub(crate) toll: Toll,
    pub(crate) random: Random,
    pub(crate) sabotage: Option<Sabotage>,
    /// The last active node closed its journals before it went.
    pub(crate) has_closed: bool,
    /// Journals may have refused something since the last takeover.
    pub(crate) may_have_refused: bool,
    /// Before this time the bucket names another cluster, or has a format that nobody knows.
    pub(crate) other_record_until_ms: Option<u64>,
    pub(crate) is_record_later: bool,
    /// Of the small file.
    pub(crate) lines: Lines,
    /// Under which journals were opened last.
    pub(crate) opened_epoch: u64,
    /// The time of what is done with the file.
    pub(crate) file_now_ms: u64,
    /// When nodes were compared last.
    pub(crate) compared_ms: u64,
}

impl Cluster {
    pub(crate) fn new(
        shards: broker::ShardId,
        clock: &Rc<Clock>,
        settings: &broker::Settings,
        sabotage: Option<Sabotage>,
        random: &mut Random,
    ) -> Self {
        let mut own = Random::new(random.next());
        let count = 2 + own.below(2);
        let segment_bytes = SEGMENT_BYTES << own.below(2);
        let journal = storage::Settings {
            slack_segments: own.below(3) as u32,
            lazy_commit_ms: LAZY_COMMIT_MS[own.below(LAZY_COMMIT_MS.len())],
            sync_interval_ms: SYNC_INTERVAL_MS,
            retry_ms: 200,
            ..storage::Settings::with_segment_bytes(segment_bytes)
        };
        let member = |number: usize, own: &mut Random| {
            let idle = Node::new(settings, shards, own.next(), &policy::Access::default(), clock);
            Member::new(number, shards, &journal, idle, sabotage, own)
        };
        let members = (0..count).map(|number| member(number, &mut own)).collect();
        let plan = Plan::new(sabotage, &mut own);
        let mut engine = Engine::new(count, &mut own);
        engine.sabotage = sabotage;
        Self {
            engine,
            members,
            current: 0,
            serving: None,
            settings: journal,
            plan,
            toll: Toll::default(),
            random: own,
            sabotage,
            has_closed: false,
            may_have_refused: plan.fills,
            other_record_until_ms: None,
            is_record_later: false,
            lines: Lines::default(),
            opened_epoch: 0,
            file_now_ms: 0,
            compared_ms: 0,
        }
    }

    /// Nothing goes wrong by itself.
    pub(crate) const fn is_calm(&self) -> bool {
        self.plan.is_calm()
    }

    /// Streams may be full, and publishers refused.
    pub(crate) const fn may_refuse(&self) -> bool {
        self.plan.fills
    }

    /// The process of a node is about to replace itself: the streams have another writer.
    pub(crate) fn has_superseded(&self) -> bool {
        self.members.iter().any(|member| matches!(member.new_role, Some(Role::Ended(_))))
    }

    /// All that has happened.
    pub(crate) fn toll(&self) -> Toll {
        let copies_resumed = self.members.iter().filter(|it| it.has_resumed).count() as u64;
        self.toll.plus(&self.engine.toll).plus(&Toll { copies_resumed, ..Toll::default() })
    }

    /// May the member's bytes leave, and is it to read any?
    pub(crate) fn is_acting(&self, member: usize, now_ms: u64) -> bool {
        let member = &self.members[member];
        let Some(agent) = member.agent.as_ref().filter(|_| !member.is_paused) else { return false };
        if self.sabotage == Some(Sabotage::ServeWithoutLease) {
            return matches!(agent.role(), Role::Active { .. });
        }
        member.clock.read(now_ms) < agent.acting_until_ms()
    }

    /// Does it answer clients?
    pub(crate) fn is_open(&self, member: usize, now_ms: u64) -> bool {
        self.members[member].is_ready && self.is_acting(member, now_ms)
    }

    /// Who answers clients, if anybody does.
    pub(crate) fn open(&self, now_ms: u64) -> Option<usize> {
        self.serving.filter(|member| self.is_open(*member, now_ms))
    }

    /// A node that no longer serves, and does not know it.
    pub(crate) fn stale(&self) -> Option<usize> {
        let is_stale = |it: &usize| {
            let member = &self.members[*it];
            self.serving != Some(*it) && member.is_ready && member.is_running()
        };
        (0..self.members.len()).find(is_stale)
    }

    /// Nothing is under way between journals and engine.
    pub(crate) fn is_idle(&self, now_ms: u64) -> bool {
        let Some(open) = self.open(now_ms) else { return false };
        self.members[open].is_idle() && self.engine.is_idle()
    }

    /// Nothing is left to do for the member but to wait for others to share a message with.
    pub(crate) fn delays_commits(&self, member: usize) -> bool {
        self.members[member].delays_commits() && self.engine.is_idle()
    }
}

impl World {
    /// The world goes on with the broker of this member.
    pub(crate) fn switch_to(&mut self, member: usize) {
        let Some(cluster) = &mut self.cluster else { return };
        if cluster.current == member {
            return;
        }
        std::mem::swap(&mut self.node, &mut cluster.members[cluster.current].broker);
        std::mem::swap(&mut self.node, &mut cluster.members[member].broker);
        cluster.current = member;
    }

    /// The world goes on with the broker that answers clients, if any does.
    pub(crate) fn choose_open(&mut self) {
        let now_ms = self.now_ms;
        if let Some(open) = self.cluster.as_ref().and_then(|cluster| cluster.open(now_ms)) {
            self.switch_to(open);
        }
    }

    /// Whether what the current broker says of sessions and connections holds: a stale one may say
    /// what it likes, as long as nobody hears it.
    pub(crate) fn is_current_valid(&self) -> bool {
        self.cluster.as_ref().is_none_or(|it| it.serving == Some(it.current))
    }

    /// May bytes go between the current broker and its clients?
    pub(crate) fn may_write(&self) -> bool {
        self.cluster.as_ref().is_none_or(|it| it.is_open(it.current, self.now_ms))
    }
}

/// The smallest segments, so that space has to come back.
const SEGMENT_BYTES: u32 = 64 * 1024;
