//! Which free cells this node takes: one decision for all its members, each on a thread of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{Claims, Node};

use super::acting::boot_ms;
use super::member::wall_ms;

/// A tick of a member. `claim`: of a cell of several. `is_waiting`: as in [`Node::set_waiting`].
pub(super) fn tick(node: &mut Node, claim: Option<&CellClaim>, is_waiting: bool) {
    let now_ms = boot_ms();
    match claim {
        Some(claim) => claim.cells.lock().before_tick(claim.cell, node, is_waiting, now_ms),
        None => node.set_waiting(is_waiting),
    }
    node.on_tick(now_ms, wall_ms());
    if let Some(claim) = claim {
        claim.cells.lock().after_tick(claim.cell, node);
    }
}

/// The cells of this node, shared by its members.
#[derive(Clone, Debug)]
pub(crate) struct ActiveCells(Arc<Mutex<Claims>>);

/// The part of a member in it. Dropped when the member has ended.
#[derive(Debug)]
pub(crate) struct CellClaim {
    cells: ActiveCells,
    cell: u16,
}

impl ActiveCells {
    /// `node`: the name of this node.
    pub(crate) fn new(node: &str) -> Self {
        Self(Arc::new(Mutex::new(Claims::new(node))))
    }

    /// For the member of a cell.
    pub(crate) fn of(&self, cell: u16) -> CellClaim {
        CellClaim { cells: self.clone(), cell }
    }

    /// As [`Claims::note_failed`].
    pub(crate) fn note_failed(&self, cell: u16) {
        self.lock().note_failed(cell, boot_ms());
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CellClaim {
    fn drop(&mut self) {
        self.cells.lock().forget(self.cell);
    }
}

#[cfg(test)]
mod tests {
    use cluster::{Answer, Cursor, Effect, Identity, LeaseAnswer, Settings, Timing};

    use super::*;

    /// A member that has caught up, of a cell that nobody has.
    fn member() -> Node {
        let settings = Settings {
            cluster: [7; 16],
            identity: Identity { node: "n1".into(), ..Identity::default() },
            seed: 1,
            timing: Timing::default(),
            message_bytes_max: cluster::MESSAGE_BYTES_MAX,
            span_bytes_min: 1 << 20,
            stream_bytes_max: u64::MAX,
            append_interval_ms: 0,
        };
        let mut node = Node::new(settings, vec![Cursor::default()], 0);
        node.set_waiting(true);
        node.on_tick(0, 0);
        let mut effects = Vec::new();
        node.take_effects(&mut effects);
        for effect in effects {
            match effect {
                Effect::Ask(id, _) => node.on_answer(id, Answer::Ends { first: 1, last: 0 }, 0),
                Effect::AskLease(id, _) => node.on_lease_answer(id, LeaseAnswer::Missing, 0),
                _ => {}
            }
        }
        node
    }

    #[test]
    fn members_claim_one_after_the_other_and_leave_nothing_behind_at_their_end() {
        let cells = ActiveCells::new("n1");
        let (first, second) = (cells.of(0), cells.of(1));
        let (mut one, mut other) = (member(), member());
        tick(&mut one, Some(&first), false);
        assert!(one.is_claiming());
        tick(&mut other, Some(&second), false);
        assert!(!other.is_claiming());
        drop(first);
        assert_eq!(*cells.lock(), Claims::new("n1"));
        let mut other = member();
        tick(&mut other, Some(&second), false);
        assert!(other.is_claiming());
    }

    #[test]
    fn the_only_cell_of_a_cluster_waits_for_nobody() {
        let mut node = member();
        tick(&mut node, None, true);
        assert!(!node.is_claiming(), "it lacks something");
        let mut node = member();
        tick(&mut node, None, false);
        assert!(node.is_claiming());
    }
}
