//! What the host of the cells sees.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::mpsc::{self, Sender as Queue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use base::Clock;
use broker::{Mail, Place, ShardId, Shared};
use links::{Envelope, Sender, Violation};

use crate::figures::Figures;
use crate::gate::Gate;
use crate::inbox::Inbox;
use crate::own::Own;
use crate::thread::{Command, Thread};
use crate::way::owned;

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

/// The cells of a node. All calls return at once. The thread ends with the last clone.
#[derive(Clone)]
pub struct Cells {
    inner: Arc<Inner>,
}

struct Inner {
    facts: Facts,
    /// Bounded by what is queued in it: see the limits of this crate.
    commands: Queue<Command>,
    figures: Arc<Mutex<Vec<Figures>>>,
    /// Of own cells, each with its epoch.
    gates: Mutex<HashMap<u16, (u64, Arc<Gate>)>>,
    /// Of the present connections, by node and lane.
    inboxes: Mutex<HashMap<String, HashMap<u8, Arc<Inbox>>>>,
}

impl Cells {
    /// # Errors
    ///
    /// The thread cannot be started.
    pub fn start(facts: Facts) -> io::Result<Self> {
        let (commands, receiver) = mpsc::channel();
        let figures = Arc::<Mutex<Vec<Figures>>>::default();
        let thread = Thread::new(&facts, receiver, Arc::clone(&figures));
        // Without it shards would wait for answers that never come.
        let run = move || base::ending_the_process(move || thread.run());
        Builder::new().name("cells".to_owned()).spawn(run)?;
        let (gates, inboxes) = (Mutex::default(), Mutex::default());
        Ok(Self { inner: Arc::new(Inner { facts, commands, figures, gates, inboxes }) })
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

    /// The same of [`links::Handler`].
    pub fn on_connected(&self, node: &str, lane: u8, version: u8, sender: Sender) {
        let inbox = Arc::new(Inbox::new(node.into(), lane, self.inner.facts.cells));
        let mut inboxes = lock(&self.inner.inboxes);
        inboxes.entry(node.to_owned()).or_default().insert(lane, Arc::clone(&inbox));
        drop(inboxes);
        self.command(Command::Connected { inbox, version, sender });
    }

    /// The same of [`links::Handler`], of a packet between cells.
    ///
    /// # Errors
    ///
    /// No owner of a cell sends it. What else is wrong with it closes the link later.
    pub fn on_envelope(
        &self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        let route = envelope.route;
        let cells = self.inner.facts.cells;
        if route.lane != lane || lane >= self.inner.facts.lanes {
            return Err(Violation(format!(
                "packet for connection {} on connection {lane}",
                route.lane
            )));
        }
        if route.from_cell >= cells || route.to_cell >= cells || route.from_cell == route.to_cell {
            let (from, to) = (route.from_cell, route.to_cell);
            return Err(Violation(format!("packet of cell {from} for cell {to} of {cells} cells")));
        }
        let inboxes = lock(&self.inner.inboxes);
        let inbox = inboxes.get(node).and_then(|lanes| lanes.get(&lane)).map(Arc::clone);
        drop(inboxes);
        let Some(inbox) = inbox else { return Ok(()) };
        inbox.put(&envelope)?;
        self.command(Command::Envelope { inbox, envelope: owned(envelope) });
        Ok(())
    }

    /// The same of [`links::Handler`].
    pub fn on_room(&self, node: &str, lane: u8) {
        self.command(Command::Room { node: node.to_owned(), lane });
    }

    /// The same of [`links::Handler`].
    pub fn on_lost(&self, node: &str, lane: u8) {
        let mut inboxes = lock(&self.inner.inboxes);
        let inbox = inboxes.get_mut(node).and_then(|lanes| lanes.remove(&lane));
        drop(inboxes);
        if let Some(inbox) = inbox {
            self.command(Command::Lost { inbox });
        }
    }

    fn command(&self, command: Command) {
        // The thread runs as long as this handle.
        let _ = self.inner.commands.send(command);
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
