//! What the rest of the node sees: the handle, and what it has to do for relays.

use std::any::Any;
use std::io;
use std::sync::Arc;
use std::thread::Builder;

use links::{Connected, Envelope, Violation};
use mio::{Poll, Waker};
use net::{PeerInfo, Stream};

use crate::inbox::{Inbox, Item};
use crate::link::OPENS_MAX;
use crate::permits::{Counts, End};
use crate::thread::{Thread, WAKER};
use crate::wire::{Arrival, CREDIT_BYTES_MIN, FRAME_BYTES_MAX, FRAME_COST, decode};

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

/// What the node does for its relays. All calls come from the one thread of the relays, and must
/// return soon.
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
    inbox: Arc<Inbox>,
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
    /// # Errors
    ///
    /// The system has no more threads or files.
    pub fn start(options: &Options, host: Arc<dyn Host>) -> io::Result<Self> {
        let Options { relays_max, relay_bytes_max } = *options;
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let inbox = Arc::new(Inbox::new(waker, waiting_bytes_max(options)));
        let counts = Arc::new(Counts::new(relays_max, relay_bytes_max));
        let thread = Thread::new(poll, host, (Arc::clone(&inbox), Arc::clone(&counts)));
        // Without it clients would be silent for ever.
        let run = move || base::ending_the_process(move || thread.run());
        Builder::new().name("relays".to_owned()).spawn(run)?;
        Ok(Self(Arc::new(Handle { inbox, counts })))
    }

    /// Front: from now on the bytes of this client go to that node. The client is closed when the
    /// link or the epoch ends.
    ///
    /// # Errors
    ///
    /// There is no link to the node, or no room, or no such epoch. The client is returned.
    pub fn begin(&self, node: &str, cell: u16, epoch: u64, client: Client) -> Result<(), Client> {
        let Handle { inbox, counts } = &*self.0;
        // An owner has an epoch above 0. With 0, links would take its packets for heartbeats.
        let permit = counts.permit(End::Front).filter(|_| epoch > 0);
        let refused = match permit {
            None => Some(client),
            Some(permit) => inbox.begin(node, (cell, epoch), (client, permit)),
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
        self.0.inbox.put(Item::Epoch { cell, epoch });
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
        self.0.inbox.stop();
    }
}

/// What a peer may send before this node has looked at any of it: data within all credits, some
/// frames without data for each relay, and opens.
fn waiting_bytes_max(options: &Options) -> usize {
    let each = u64::from(CREDIT_BYTES_MIN) + 1024;
    let opens = (OPENS_MAX * (FRAME_BYTES_MAX + FRAME_COST as usize)) as u64;
    let all = (options.relays_max as u64).saturating_mul(each);
    let all = all.saturating_add(opens).saturating_add(options.relay_bytes_max);
    usize::try_from(all).unwrap_or(usize::MAX)
}

/// What the handler of the links passes on.
impl Relays {
    pub fn on_connected(&self, connected: &Connected) {
        let Connected { node, lane, version, sender, .. } = connected;
        self.0.inbox.connect(node.clone(), *lane, *version, sender.clone());
    }

    /// A packet whose `from_cell` is [`FRONT`](broker::cells::wire::FRONT).
    ///
    /// # Errors
    ///
    /// The node violates the protocol. What is found later closes the connection as well.
    pub fn on_packet(
        &self,
        node: &str,
        lane: u8,
        envelope: &Envelope<'_>,
    ) -> Result<(), Violation> {
        let frame = decode(&envelope.frame).map_err(|error| Violation(error.to_string()))?;
        let route = (envelope.route.to_cell, envelope.route.to_epoch);
        let frame = (frame, envelope.frame.len());
        self.0.inbox.put_packet((node, lane), (envelope.number, route), frame)
    }

    pub fn on_room(&self, node: &str, lane: u8) {
        self.0.inbox.on_room(node, lane);
    }

    pub fn on_lost(&self, node: &str, lane: u8) {
        self.0.inbox.disconnect(node, lane);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inbox.stop();
    }
}
