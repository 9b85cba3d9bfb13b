//! Which node has which cell, as far as this node knows, and where clients of a cell go on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{Homes, Shared};

use super::links::NodeLinks;
use crate::cluster::Owner;
use crate::http::Metrics;
use crate::run::acceptor::{AcceptorMailbox, Entered};
use crate::run::mailbox::{Item, Mailbox};

/// All cells of the cluster.
pub(in crate::run) struct Table {
    /// This node.
    node: String,
    cells: Box<[Mutex<Cell>]>,
    /// Grows with each change.
    version: AtomicU64,
}

#[derive(Default)]
struct Cell {
    /// As its lease says.
    owner: Option<Owner>,
    /// This node is active for it.
    serving: Option<Serving>,
}

/// A cell that this node is active for.
#[derive(Clone)]
pub(in crate::run) struct Serving {
    pub(in crate::run) epoch: u64,
    /// Of its workers.
    pub(in crate::run) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(in crate::run) acceptors: Vec<Arc<AcceptorMailbox>>,
    pub(in crate::run) metrics: Metrics,
}

impl Table {
    pub(super) fn new(node: &str, homes: Homes) -> Self {
        let cells = (0..homes.cells()).map(|_| Mutex::default()).collect();
        Self { node: node.to_owned(), cells, version: AtomicU64::new(1) }
    }

    pub(super) fn set_owner(&self, cell: u16, owner: Option<Owner>) {
        self.lock(cell).owner = owner;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// From now on clients of the cell are let in here. `None`: they are not.
    pub(super) fn set_serving(&self, cell: u16, serving: Option<Serving>) {
        self.lock(cell).serving = serving;
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The cell, if this node is active for it.
    pub(super) fn any_serving(&self, cell: u16) -> Option<Serving> {
        let is_known = usize::from(cell) < self.cells.len();
        is_known.then(|| self.lock(cell).serving.clone()).flatten()
    }

    /// The same, of this epoch.
    pub(super) fn serving(&self, cell: u16, epoch: u64) -> Option<Serving> {
        self.any_serving(cell).filter(|serving| serving.epoch == epoch)
    }

    /// Those that this node is active for, with their numbers.
    pub(super) fn all_serving(&self) -> Vec<(u16, Serving)> {
        let cells = 0..self.cells.len() as u16;
        cells.filter_map(|cell| Some((cell, self.lock(cell).serving.clone()?))).collect()
    }

    /// Why this node is of no use to clients, if so: it knows no node that has a cell.
    pub(super) fn why_not_ready(&self) -> Option<String> {
        let has_owner = |cell| self.lock(cell).owner.is_some();
        let none = !(0..self.cells.len() as u16).any(has_owner);
        none.then(|| "no cell has a node yet".to_owned())
    }

    /// Tells all workers of all cells that this node is active for.
    pub(super) fn tell_workers(&self, item: impl Fn() -> Item) {
        for (_, serving) in self.all_serving() {
            serving.mailboxes.iter().for_each(|mailbox| mailbox.put(item()));
        }
    }

    fn lock(&self, cell: u16) -> MutexGuard<'_, Cell> {
        self.cells[usize::from(cell)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way from the listeners of this node to the cells.
pub(in crate::run) struct Entrance {
    table: Arc<Table>,
    shared: Arc<Shared>,
    links: Arc<NodeLinks>,
    /// Spreads clients over the acceptors of a cell, and those without a client id over cells.
    next: AtomicUsize,
}

/// Where a client goes on.
pub(in crate::run) enum Way {
    Here(Arc<AcceptorMailbox>),
    There(Relay),
}

/// The way to the node that has the cell of a client.
pub(in crate::run) struct Relay {
    links: Arc<NodeLinks>,
    cell: u16,
    node: String,
    epoch: u64,
}

/// A client that could not be relayed.
pub(in crate::run) struct Homeless(pub(in crate::run) Entered);

impl Relay {
    /// # Errors
    ///
    /// There is no link to the node just now.
    pub(in crate::run) fn begin(&self, entered: Entered) -> Result<(), Homeless> {
        self.links.relay((self.cell, &self.node, self.epoch), entered).map_err(Homeless)
    }
}

impl Entrance {
    /// `shared`: knows the homes of client ids.
    pub(super) fn new(table: &Arc<Table>, shared: &Arc<Shared>, links: &Arc<NodeLinks>) -> Self {
        let (table, shared, links) = (table.clone(), shared.clone(), links.clone());
        Self { table, shared, links, next: AtomicUsize::new(0) }
    }

    /// What changes with each owner.
    pub(in crate::run) fn version(&self) -> u64 {
        self.table.version.load(Ordering::Acquire)
    }

    /// `client_id`: none if the client has none, and a cell may be chosen for it. None: no node has
    /// its cell.
    pub(in crate::run) fn way(&self, client_id: Option<&str>) -> Option<Way> {
        match client_id {
            Some(id) => self.way_to(self.shared.cell_of_client(id)),
            None => self.way_to_any(),
        }
    }

    fn way_to(&self, cell: u16) -> Option<Way> {
        let state = self.table.lock(cell);
        if let Some(serving) = &state.serving {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % serving.acceptors.len();
            return Some(Way::Here(serving.acceptors[next].clone()));
        }
        let (node, epoch) = state.owner.clone().filter(|(node, _)| *node != self.table.node)?;
        Some(Way::There(Relay { links: self.links.clone(), cell, node, epoch }))
    }

    /// Of a cell that is here, if there is one.
    fn way_to_any(&self) -> Option<Way> {
        let here = self.table.all_serving();
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        match here.get(next % here.len().max(1)) {
            Some((cell, _)) => self.way_to(*cell),
            None => (0..self.table.cells.len() as u16).find_map(|cell| self.way_to(cell)),
        }
    }
}
