//! Which of the cells of a cluster one node takes when they are free: no more than its share, as
//! long as there are other nodes.
//!
//! There is no planner. Each cell is a [`Node`] of its own with a lease of its own, and any node
//! that has caught up may take it. A node waits longer the more cells it has, and claims one cell
//! at a time. So nodes with fewer cells are faster, and the cells of a node that is lost go to all
//! others.

use std::collections::{BTreeMap, BTreeSet};

use crate::effect::Role;
use crate::node::Node;

/// For each cell that it has, a node waits so much longer before it claims another one.
pub const CLAIM_STEP_MS: u64 = 500;

/// Nodes that have as many cells differ by less than this. Together with the time between two looks
/// at a lease it is below a step.
const TIE_MS: u32 = 150;

/// A claim that takes longer keeps the node from no other cell: the stream may have no leader.
const CLAIM_MS_MAX: u64 = 3000;

/// A node that has taken a cell and could not serve it leaves it to others for so long.
const FAILED_MS: u64 = 10_000;

/// The cells of one node. All its members share it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claims {
    node: String,
    active: BTreeSet<u16>,
    /// When each claim began.
    claiming: BTreeMap<u16, u64>,
    /// Cells that this node could not serve when it had them, and since when.
    failed: BTreeMap<u16, u64>,
}

impl Claims {
    /// `node`: its name.
    pub fn new(node: &str) -> Self {
        let (claiming, failed) = (BTreeMap::new(), BTreeMap::new());
        Self { node: node.to_owned(), active: BTreeSet::new(), claiming, failed }
    }

    /// Decides whether the next tick of the member of a cell may take the lease. `is_waiting`: it
    /// lacks something else, as in [`Node::set_waiting`].
    pub fn before_tick(&mut self, cell: u16, node: &mut Node, is_waiting: bool, now_ms: u64) {
        node.set_claim_delay(self.delay_ms(cell) + self.penalty_ms(cell, now_ms));
        node.set_waiting(is_waiting);
        let may_claim = node.would_claim(now_ms) && self.begin(cell, now_ms);
        node.set_waiting(!may_claim);
    }

    fn begin(&mut self, cell: u16, now_ms: u64) -> bool {
        let is_over = |since_ms: &u64| now_ms.saturating_sub(*since_ms) >= CLAIM_MS_MAX;
        let is_free = self.claiming.values().all(is_over);
        if is_free {
            self.claiming.insert(cell, now_ms);
        }
        is_free
    }

    /// Notes what became of it. Until the next tick the member claims nothing.
    pub fn after_tick(&mut self, cell: u16, node: &mut Node) {
        node.set_waiting(true);
        if let Role::Active { .. } = node.role() {
            self.active.insert(cell);
        } else {
            self.active.remove(&cell);
        }
        if !node.is_claiming() {
            self.claiming.remove(&cell);
        }
    }

    /// The member of the cell has ended.
    pub fn forget(&mut self, cell: u16) {
        self.active.remove(&cell);
        self.claiming.remove(&cell);
    }

    /// This node has the cell and cannot serve it. Another node may be able to.
    pub fn note_failed(&mut self, cell: u16, now_ms: u64) {
        self.failed.insert(cell, now_ms);
    }

    fn penalty_ms(&self, cell: u16, now_ms: u64) -> u64 {
        let has_failed = |since_ms: &u64| now_ms.saturating_sub(*since_ms) < FAILED_MS;
        if self.failed.get(&cell).is_some_and(has_failed) { FAILED_MS } else { 0 }
    }

    fn delay_ms(&self, cell: u16) -> u64 {
        let others = self.claiming.keys().filter(|claiming| **claiming != cell).count();
        let count = self.active.len() + others;
        let tie = storage::checksum(format!("{} {cell}", self.node).as_bytes()) % TIE_MS;
        count as u64 * CLAIM_STEP_MS + u64::from(tie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Timing;

    #[test]
    fn a_node_with_more_cells_waits_longer_than_any_with_fewer() {
        let poll_ms = Timing::default().poll_ms;
        for node in ["a", "b", "c", "node-17"] {
            for cell in 0..56 {
                let mut claims = Claims::new(node);
                let most_ms = claims.delay_ms(cell) + poll_ms;
                assert!(most_ms < CLAIM_STEP_MS, "{node} {cell}: {most_ms}");
                assert!(claims.begin(99, 7));
                assert_eq!(claims.delay_ms(cell) / CLAIM_STEP_MS, 1);
                claims.active.extend([100, 101]);
                assert_eq!(claims.delay_ms(cell) / CLAIM_STEP_MS, 3);
                claims.forget(99);
                claims.forget(100);
                assert_eq!(claims.delay_ms(cell) / CLAIM_STEP_MS, 1);
            }
        }
    }

    #[test]
    fn a_claim_keeps_the_node_from_another_one_for_a_while() {
        let mut claims = Claims::new("a");
        assert!(claims.begin(0, 1000));
        assert!(!claims.begin(1, 1000 + CLAIM_MS_MAX - 1));
        assert!(claims.begin(1, 1000 + CLAIM_MS_MAX));
        assert!(!claims.begin(2, 1000 + CLAIM_MS_MAX), "the second one began just now");
        claims.forget(1);
        assert!(claims.begin(2, 1000 + CLAIM_MS_MAX));
        assert_eq!(claims.delay_ms(3) / CLAIM_STEP_MS, 2, "both count");
    }

    #[test]
    fn a_cell_that_this_node_could_not_serve_is_left_to_others() {
        let mut claims = Claims::new("a");
        claims.note_failed(3, 1000);
        claims.forget(3);
        assert_eq!(claims.penalty_ms(3, 1000), FAILED_MS, "its next member waits");
        assert_eq!(claims.penalty_ms(4, 1000), 0);
        assert_eq!(claims.penalty_ms(3, 1000 + FAILED_MS - 1), FAILED_MS);
        assert_eq!(claims.penalty_ms(3, 1000 + FAILED_MS), 0, "nobody else could");
    }

    #[test]
    fn nodes_with_as_many_cells_wait_for_different_times() {
        let of = |node| (0..56).map(|cell| Claims::new(node).delay_ms(cell)).collect::<Vec<_>>();
        let (one, other) = (of("broker1"), of("broker2"));
        let first = one.iter().zip(&other).filter(|(one, other)| one < other).count();
        assert!((14..=42).contains(&first), "each is first for some: {first}");
    }
}
