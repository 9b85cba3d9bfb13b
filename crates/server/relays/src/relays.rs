//! What the rest of the node sees: the handle, and what it has to do for relays.

use std::any::Any;
use std::io;
use std::sync::Arc;

use links::Poller;
use net::{PeerInfo, Stream};

use crate::permits::{Counts, End};
use crate::queue::{Item, Queue};
use crate::task::Task;
use crate::wire::Arrival;

/// Default of [`Options::relay_bytes_max`].
pub const RELAY_BYTES_MAX: u64 = 64 * 1024 * 1024;

#[derive(Clone, Debug)]
pub struct Options {
    /// Relays to other nodes and from them.
    pub relays_max: usize,
    /// What is lent to relays beyond the least credit of each.
    pub relay_bytes_max: u64,
}

/// Dropped at the end of a relay.
pub type Held = Box<dyn Any + Send>;

/// A client that arrives. Its stream is registered with no poll.
pub struct Client {
    pub stream: Stream,
    /// What a front keeps as long as the client is relayed, such as its place within limits.
    pub held: Held,
    pub arrival: Box<Arrival>,
}

/// What the node does for its relays. All calls come from the thread of the links, and must return
/// soon.
pub trait Host: Send + Sync {
    /// Home: a relayed client arrives for this cell.
    ///
    /// # Errors
    ///
    /// The client is refused, and the front is told so.
    fn arrive(&self, cell: u16, epoch: u64, client: Client) -> Result<(), Refused>;

    /// Front: a client whose relay has begun comes back as it was: it may be relayed again, or
    /// refused. Its home has not read a byte of it.
    fn refused(&self, cell: u16, epoch: u64, client: Client, why: Refused);
}

/// Why a client is not relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the node does not own this epoch of the cell")]
    NotOwner,
    #[error("a node relays as many connections as it may")]
    NoRoom,
    #[error("there is no link to the node")]
    NoLink,
    #[error("the certificates and names of the client are longer than 64 KiB")]
    TooLong,
}

/// What the relays of a node amount to now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayFigures {
    /// Clients that arrived here and have their home on another node.
    pub relayed_out: usize,
    /// Clients that arrived at another node and have their home here.
    pub relayed_in: usize,
    /// Credit beyond the least of each relay.
    pub bytes_lent: u64,
    /// Clients that were refused since the start, as a front and as a home.
    pub refused: u64,
}

/// The relays of a node. They end when the last handle is dropped, or when they are stopped.
#[derive(Clone)]
pub struct Relays(Arc<Handle>);

struct Handle {
    queue: Arc<Queue>,
    counts: Arc<Counts>,
}

impl Client {
    /// A client of this listener that has sent `bytes`, from its CONNECT on.
    pub fn new(
        stream: Stream,
        held: Held,
        peer: PeerInfo,
        (listener, bytes): (String, Vec<u8>),
    ) -> Self {
        let chain = stream.peer_certificates();
        Self { stream, held, arrival: Box::new(Arrival { peer, chain, listener, bytes }) }
    }
}

impl Relays {
    /// With the part that the handler of the links drives. `poller`: of these links.
    ///
    /// # Errors
    ///
    /// The system has no more files.
    pub fn new(
        options: &Options,
        host: Arc<dyn Host>,
        poller: &Poller,
    ) -> io::Result<(Self, Task)> {
        let queue = Arc::new(Queue::new(poller.bell()));
        let counts = Arc::new(Counts::new(options.relays_max, options.relay_bytes_max));
        let shared = (Arc::clone(&queue), Arc::clone(&counts));
        let task = Task::new(poller.registry()?, host, shared);
        Ok((Self(Arc::new(Handle { queue, counts })), task))
    }

    /// Front: from now on the bytes of this client go to that node. The client is closed when the
    /// link or the epoch ends.
    ///
    /// # Errors
    ///
    /// There is no link to the node, or no room, or no such epoch. The client is returned.
    pub fn begin(&self, node: &str, cell: u16, epoch: u64, client: Client) -> Result<(), Client> {
        let Handle { queue, counts } = &*self.0;
        // An owner has an epoch above 0. With 0, links would take its packets for heartbeats.
        let permit = counts.permit(End::Front).filter(|_| epoch > 0);
        let refused = match permit {
            None => Some(client),
            Some(permit) => queue.begin(node, (cell, epoch), (client, permit)),
        };
        match refused {
            None => Ok(()),
            Some(client) => {
                counts.count_refused();
                Err(client)
            }
        }
    }

    /// Relays of this cell with an epoch below are over, on both sides, without a further byte to
    /// their clients. None: it has no owner now, so all are.
    pub fn epoch_changed(&self, cell: u16, epoch: Option<u64>) {
        self.0.queue.put(Item::Epoch { cell, epoch });
    }

    pub fn figures(&self) -> RelayFigures {
        let counts = &self.0.counts;
        RelayFigures {
            relayed_out: counts.relays(End::Front),
            relayed_in: counts.relays(End::Home),
            bytes_lent: counts.lent_bytes(),
            refused: counts.refused(),
        }
    }

    /// All relays end, and their clients are closed. For a host that has a handle of its own.
    pub fn stop(&self) {
        self.0.queue.stop();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.stop();
    }
}
