//! What the host of the cells sees.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Clock;
use broker::{Mail, Place, ShardId, Shared};
use links::Bell;

use crate::figures::Figures;
use crate::gate::Gate;
use crate::own::Own;
use crate::queue::Queue;
use crate::task::{Command, Task};

/// What a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its name, as in the leases of cells.
    pub node: String,
    /// The number of cells of the cluster.
    pub cells: u16,
    /// As `links::Options::lanes`, at least 1.
    pub lanes: u8,
}

/// Puts mail for a shard into the mailbox of its worker. It must not block, and must not call
/// [`Cells::close`] of its cell.
pub type Deliver = Arc<dyn Fn(ShardId, Vec<Mail>) + Send + Sync>;

/// Whether the lease of a cell is held now. It must not block.
pub type IsHeld = Arc<dyn Fn() -> bool + Send + Sync>;

/// A cell for which this node is active.
#[derive(Clone)]
pub struct OwnCell {
    pub cell: u16,
    pub epoch: u64,
    pub shared: Arc<Shared>,
    /// Broker time of this cell.
    pub clock: Clock,
    pub deliver: Deliver,
    pub is_held: IsHeld,
}

/// Who has a cell, as its lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub node: String,
    /// Above 0.
    pub epoch: u64,
}

/// The cells of a node, for all threads. All calls return at once.
#[derive(Clone)]
pub struct Cells {
    inner: Arc<Inner>,
}

struct Inner {
    facts: Facts,
    queue: Arc<Queue>,
    figures: Arc<Mutex<Vec<Figures>>>,
    /// Of own cells, each with its epoch.
    gates: Mutex<HashMap<u16, (u64, Arc<Gate>)>>,
}

impl Cells {
    /// With the part that the handler of the links drives. `bell`: of its poller.
    pub fn new(facts: Facts, bell: Arc<Bell>) -> (Self, Task) {
        let queue = Arc::new(Queue::new(bell));
        let figures = Arc::<Mutex<Vec<Figures>>>::default();
        let task = Task::new(&facts, Arc::clone(&queue), Arc::clone(&figures));
        let inner = Inner { facts, queue, figures, gates: Mutex::default() };
        (Self { inner: Arc::new(inner) }, task)
    }

    /// A cell of this node is active from now on. Call it before its shards do anything: until
    /// summaries have come, each other cell counts as one that wants everything.
    pub fn open(&self, cell: OwnCell) {
        let (number, epoch) = (cell.cell, cell.epoch);
        let gate = Arc::<Gate>::default();
        let before = lock(&self.inner.gates).insert(number, (epoch, Arc::clone(&gate)));
        if let Some((_, before)) = before {
            before.close();
        }
        self.command(Command::Open(Box::new(Own::new(cell, gate, &self.inner.facts))));
    }

    /// A cell of this node ends. Nothing of it leaves or is delivered after this returns. It waits
    /// for a call of [`OwnCell::deliver`] that has begun.
    pub fn close(&self, cell: u16, epoch: u64) {
        let mut gates = lock(&self.inner.gates);
        let is_it = gates.get(&cell).is_some_and(|(own, _)| *own == epoch);
        let gate = if is_it { gates.remove(&cell) } else { None };
        drop(gates);
        if let Some((_, gate)) = gate {
            gate.close();
            self.command(Command::Close { cell, epoch });
        }
    }

    /// Who has a cell, own or other. None: nobody. An owner of an earlier epoch is ignored.
    pub fn owner_changed(&self, cell: u16, owner: Option<Owner>) {
        self.command(Command::OwnerChanged { cell, owner });
    }

    /// Mail of a shard of an own cell for another cell, in its order.
    pub fn post(&self, cell: u16, epoch: u64, from: ShardId, to: Place, mails: Vec<Mail>) {
        self.command(Command::Post { cell, epoch, from, to, mails });
    }

    /// The lease of an own cell had run out and is back.
    pub fn on_lapse(&self, cell: u16, epoch: u64) {
        self.command(Command::Lapse { cell, epoch });
    }

    /// Of each pair of an own and another cell, not older than some seconds.
    pub fn figures(&self) -> Vec<Figures> {
        lock(&self.inner.figures).clone()
    }

    fn command(&self, command: Command) {
        self.inner.queue.put(command);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        lock(&self.gates).values().for_each(|(_, gate)| gate.close());
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cells({:?})", self.inner.facts)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
