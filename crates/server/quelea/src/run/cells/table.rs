//! Which node has which cell, as far as this node knows, and where clients of a cell go on.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{Homes, Shared};

use super::life::Requests;
use super::links::NodeLinks;
use crate::api::Api;
use crate::cluster::{Acting, Owner};
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

/// Where a cell is.
enum Found {
    Here(Serving),
    /// On this node, which is active for it with this epoch.
    There(String, u64),
}

/// A cell that this node is active for.
#[derive(Clone)]
pub(in crate::run) struct Serving {
    pub(in crate::run) epoch: u64,
    pub(in crate::run) acting: Acting,
    pub(in crate::run) shared: Arc<Shared>,
    /// Of its workers.
    pub(in crate::run) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(in crate::run) acceptors: Vec<Arc<AcceptorMailbox>>,
    pub(in crate::run) metrics: Metrics,
    /// None: this node has no API.
    pub(in crate::run) api: Option<Arc<Api>>,
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

    /// As its lease says.
    pub(super) fn owner(&self, cell: u16) -> Option<Owner> {
        self.lock(cell).owner.clone()
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

    /// Bytes in the connections of who holds most in another cell of this node.
    pub(super) fn largest_beside(&self, cell: u16) -> u64 {
        let others = self.all_serving().into_iter().filter(|(other, _)| *other != cell);
        others.map(|(_, serving)| serving.shared.ledger.largest_unsent()).max().unwrap_or(0)
    }

    /// Tells all workers of all cells that this node is active for.
    pub(super) fn tell_workers(&self, item: impl Fn() -> Item) {
        for (_, serving) in self.all_serving() {
            serving.mailboxes.iter().for_each(|mailbox| mailbox.put(item()));
        }
    }

    /// The node that is active for the cell, if one is.
    pub(super) fn node_of(&self, cell: u16) -> Option<String> {
        match self.find(cell)? {
            Found::Here(_) => Some(self.node.clone()),
            Found::There(node, _) => Some(node),
        }
    }

    /// Where clients of the cell go on. None: no node serves them now.
    fn find(&self, cell: u16) -> Option<Found> {
        let state = self.lock(cell);
        // A cell whose lease has run out lets nobody in: another node may have it soon.
        if let Some(serving) = state.serving.as_ref().filter(|serving| serving.acting.is_held()) {
            return Some(Found::Here(serving.clone()));
        }
        let (node, epoch) = state.owner.clone().filter(|(node, _)| *node != self.node)?;
        Some(Found::There(node, epoch))
    }

    /// A cell for a client without a client id: one that is here, if there is one.
    fn find_any(&self, turn: usize) -> Option<u16> {
        let is_here = |cell: &u16| matches!(self.find(*cell), Some(Found::Here(_)));
        let here: Vec<u16> = (0..self.cells.len() as u16).filter(is_here).collect();
        match here.get(turn % here.len().max(1)) {
            Some(cell) => Some(*cell),
            None => (0..self.cells.len() as u16).find(|cell| self.find(*cell).is_some()),
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
    /// `cluster.redirect`: who knows the addresses of owners.
    redirects: Option<Vec<Arc<Requests>>>,
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
    pub(super) fn new(
        table: &Arc<Table>,
        shared: &Arc<Shared>,
        links: &Arc<NodeLinks>,
        redirects: Option<Vec<Arc<Requests>>>,
    ) -> Self {
        let (table, shared, links) = (table.clone(), shared.clone(), links.clone());
        Self { table, shared, links, redirects, next: AtomicUsize::new(0) }
    }

    /// Where clients reach the node that has the cell of this client id: its `cluster.advertise`.
    /// None: clients are relayed, or its cell is here, or the node states no address.
    pub(in crate::run) fn redirect(&self, client_id: &str) -> Option<String> {
        let cells = self.redirects.as_ref()?;
        let cell = self.shared.cell_of_client(client_id);
        let Some(Found::There(node, _)) = self.table.find(cell) else { return None };
        let status = cells.get(usize::from(cell))?.member()?.status();
        let address = status.holder_address.filter(|address| !address.is_empty())?;
        (status.holder? == node).then_some(address)
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
        match self.table.find(cell)? {
            Found::Here(serving) => {
                let next = self.next.fetch_add(1, Ordering::Relaxed) % serving.acceptors.len();
                Some(Way::Here(serving.acceptors[next].clone()))
            }
            Found::There(node, epoch) => {
                Some(Way::There(Relay { links: self.links.clone(), cell, node, epoch }))
            }
        }
    }

    fn way_to_any(&self) -> Option<Way> {
        self.way_to(self.table.find_any(self.next.fetch_add(1, Ordering::Relaxed))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::boot_ms;
    use crate::run::acceptor::poll_and_mailbox;

    fn serving(epoch: u64) -> Serving {
        let (_, acceptor) = poll_and_mailbox().unwrap();
        let (mailboxes, metrics) = (Arc::new([]), Arc::new(String::new));
        let acting = Acting::default();
        acting.set(boot_ms() + 60_000);
        let shared = Shared::new(broker::Settings::default(), Homes::of_one_cell(1), 1);
        Serving { epoch, acting, shared, mailboxes, acceptors: vec![acceptor], metrics, api: None }
    }

    fn found(table: &Table, cell: u16) -> String {
        match table.find(cell) {
            None => "nowhere".to_owned(),
            Some(Found::Here(serving)) => format!("here {}", serving.epoch),
            Some(Found::There(node, epoch)) => format!("{node} {epoch}"),
        }
    }

    #[test]
    fn a_cell_is_where_it_serves_and_not_where_it_is_about_to() {
        let table = Table::new("n1", Homes::new(3, 0, 2));
        assert!(table.why_not_ready().is_some());
        assert_eq!((found(&table, 1), table.find_any(0)), ("nowhere".to_owned(), None));
        table.set_owner(1, Some(("n2".to_owned(), 4)));
        assert_eq!((found(&table, 1), table.find_any(7)), ("n2 4".to_owned(), Some(1)));
        assert_eq!(table.why_not_ready(), None);
        // This node has the lease, and does not serve yet.
        table.set_owner(2, Some(("n1".to_owned(), 5)));
        assert_eq!(found(&table, 2), "nowhere");
        table.set_serving(2, Some(serving(5)));
        assert_eq!((found(&table, 2), table.find_any(7)), ("here 5".to_owned(), Some(2)));
        assert!(table.serving(2, 5).is_some() && table.serving(2, 4).is_none());
        assert!(table.serving(3, 5).is_none(), "there is no such cell");
        // Its lease runs out, and comes back.
        let acting = table.serving(2, 5).unwrap().acting;
        acting.set(0);
        assert_eq!((found(&table, 2), table.find_any(7)), ("nowhere".to_owned(), Some(1)));
        acting.set(boot_ms() + 60_000);
        assert_eq!(found(&table, 2), "here 5");
        // Its lease is gone before its last client is.
        table.set_owner(2, Some(("n3".to_owned(), 6)));
        table.set_serving(2, None);
        assert_eq!(found(&table, 2), "n3 6");
    }

    #[test]
    fn clients_without_a_client_id_are_spread_over_the_cells_that_are_here() {
        let table = Table::new("n1", Homes::new(4, 0, 2));
        table.set_owner(0, Some(("n2".to_owned(), 1)));
        table.set_serving(1, Some(serving(1)));
        table.set_serving(3, Some(serving(1)));
        let chosen: Vec<_> = (0..4).map(|turn| table.find_any(turn)).collect();
        assert_eq!(chosen, [Some(1), Some(3), Some(1), Some(3)]);
    }

    #[test]
    fn each_change_makes_another_version() {
        let table = Table::new("n1", Homes::new(2, 0, 2));
        let version = || table.version.load(Ordering::Acquire);
        let mut seen = vec![version()];
        table.set_owner(0, None);
        seen.push(version());
        table.set_serving(0, Some(serving(1)));
        seen.push(version());
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    }
}
