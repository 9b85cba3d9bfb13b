//! The engine falls silent to a node at each step of its takeover. Whatever the node wants at that
//! step, it must become a standby or go on: its process never ends.

use cluster::Role;

use super::member::Member;
use crate::world::World;

/// How far a node has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Standby,
    /// It has the lease, and claims the streams.
    Claim,
    /// It takes over the small file.
    File,
    /// It writes what it begins with.
    Begin,
    /// It opens its journals.
    Open,
    Serve,
}

impl Step {
    fn of(member: &Member) -> Self {
        match member.agent.as_ref().map(cluster::Node::role) {
            Some(Role::Claiming { .. }) => Self::Claim,
            Some(Role::Active { .. }) => match (member.is_ready, member.has_journals) {
                (true, _) => Self::Serve,
                (_, true) => Self::Open,
                _ if member.keeper.is_beginning() => Self::Begin,
                _ => Self::File,
            },
            _ => Self::Standby,
        }
    }
}

impl World {
    /// A node has come one step further: from now on it may hear nothing for a while.
    pub(crate) fn fall_silent(&mut self, number: usize) {
        let now_ms = self.now_ms;
        let Some(cluster) = &mut self.cluster else { return };
        let node = &mut cluster.members[number];
        let step = Step::of(node);
        let before = std::mem::replace(&mut node.step, step);
        let is_free = node.until_ms.is_none() && node.is_running();
        if !cluster.plan.silences || step <= before || !is_free {
            return;
        }
        if !cluster.random.chance(SILENT_PERCENT) {
            return;
        }
        let silent_ms = SILENT_MS[cluster.random.below(SILENT_MS.len())];
        cluster.members[number].until_ms = Some(now_ms + silent_ms);
        let link = &mut cluster.engine.links[number];
        (link.is_cut_to, link.is_cut_from) = (true, true);
        let toll = &mut cluster.toll;
        let count = match step {
            Step::Standby => return,
            Step::Claim => &mut toll.silences_at_claim,
            Step::File => &mut toll.silences_at_file,
            Step::Begin => &mut toll.silences_at_beginning,
            Step::Open => &mut toll.silences_at_opening,
            Step::Serve => &mut toll.silences_at_serving,
        };
        *count += 1;
        self.note(|| format!("the engine is silent to node {number} for {silent_ms} ms, {step:?}"));
    }

    /// A process that ends by itself is gone.
    pub(crate) fn look_at_exit(&mut self, number: usize) -> Result<(), String> {
        let Some(cluster) = &mut self.cluster else { return Ok(()) };
        if !std::mem::take(&mut cluster.members[number].has_exited) {
            return Ok(());
        }
        self.note(|| format!("the process of node {number} has ended"));
        self.end_process(number, None)
    }
}

/// Of a hundred steps.
const SILENT_PERCENT: usize = 20;

/// Less and more than an answer, a lease and a takeover may take.
const SILENT_MS: [u64; 5] = [300, 1_300, 2_600, 4_000, 12_000];
