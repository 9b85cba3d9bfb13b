//! The links of this node: mail of its cells, and clients that are relayed.
//!
//! Both share the connections between two nodes. Packets of relays are those whose sender is no
//! cell.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use broker::cells::wire::FRONT;
use broker::{Mail, Place, ShardId};
use cells::{Cells, Facts, OwnCell};
use links::{
    Connected, Envelope, Files, Handler, Links, Options, Origin, Poller, Reason, Violation,
};
use net::{PeerAddress, PeerInfo, Stream};
use relays::{Arrival, Client, RelayFigures, Relays};
use tokio::sync::mpsc::UnboundedSender;

use mio::event::Event;

use super::table::Table;
use crate::cluster::{Acting, ClusterPlan, MemberChange, NodeMember, Owner};
use crate::metrics::{CellLink, LinkFigures};
use crate::run::acceptor::{AcceptorItem, AcceptorMailbox, Entered};
use crate::run::limiter::{ConnectionPermit, Listener};
use crate::run::mailbox::{Item, Mailbox};
use crate::run::parts::Parts;
use config::{ClusterConfig, Config};

/// What calls of the API are relayed to, instead of a cell. Its epoch never changes.
const CALLS: u16 = u16::MAX - 1;
const CALLS_EPOCH: u64 = 1;

/// Connections between two nodes.
const LANES: u8 = 1;

/// What this node has of the others.
pub(in crate::run) struct NodeLinks {
    cells: Cells,
    relays: Relays,
    doors: Arc<Doors>,
    links: Links,
}

/// The way of mail from the shards of a cell to other cells.
#[derive(Clone)]
pub(in crate::run) struct Post {
    links: Arc<NodeLinks>,
    cell: u16,
    epoch: u64,
}

impl Post {
    pub(super) fn new(links: &Arc<NodeLinks>, cell: u16, epoch: u64) -> Self {
        Self { links: links.clone(), cell, epoch }
    }

    pub(in crate::run) fn put(&self, from: ShardId, to: Place, mails: Vec<Mail>) {
        self.links.cells.post(self.cell, self.epoch, from, to, mails);
    }
}

impl NodeLinks {
    /// # Errors
    ///
    /// An address cannot be listened on, a certificate cannot be used, or there is no thread.
    pub(super) fn start(
        config: &Config,
        (cluster, plan): (&ClusterConfig, &ClusterPlan),
        table: &Arc<Table>,
        listeners: Vec<Arc<Listener>>,
        calls: UnboundedSender<Stream>,
    ) -> anyhow::Result<Self> {
        let own = cluster.links.as_ref().context("cluster.listen: is missing")?;
        let doors = Arc::new(Doors::new(table, listeners, calls));
        let facts = Facts { node: cluster.node.clone(), cells: plan.cells, lanes: LANES };
        let poller = Poller::new().context("cannot wait for links")?;
        let (cells, cells_task) = Cells::new(facts, poller.bell());
        let relays_max = usize::try_from(config.limits.connections_max).unwrap_or(usize::MAX);
        let relays_max = if relays_max == 0 { RELAYS_MAX } else { relays_max };
        let options = relays::Options { relays_max, relay_bytes_max: relays::RELAY_BYTES_MAX };
        let relays = Relays::new(&options, doors.clone(), &poller);
        let (relays, relays_task) = relays.context("cannot wait for relays")?;
        let files = Files {
            certificate: own.certificate.clone(),
            key: own.key.clone(),
            ca: own.ca.clone(),
        };
        let identity = (plan.id, links::hello::Secret::new(*plan.secret.bytes()));
        let options = Options {
            lanes: LANES,
            ..Options::new(cluster.node.clone(), identity, own.listen, files)
        };
        let others = plan.members.iter().filter(|member| member.node != cluster.node);
        let members: Vec<links::Member> = others
            .map(|member| links::Member { name: member.node.clone(), address: member.link.clone() })
            .collect();
        let switch = Box::new(Switch { cells: cells_task, relays: relays_task });
        let links = Links::start_on(poller, options, &members, switch).context("cluster.listen")?;
        tracing::info!(address = %links.local_address(), "listening for links of other nodes");
        Ok(Self { cells, relays, doors, links })
    }

    /// Clients that could not be relayed come back to them.
    pub(super) fn set_front(&self, acceptors: &[Arc<AcceptorMailbox>]) {
        // It is set once, by the start.
        let _ = self.doors.front.set(acceptors.to_vec());
    }

    /// # Errors
    ///
    /// There is no link to the node, or no room.
    pub(super) fn relay(
        &self,
        (cell, node, epoch): (u16, &str, u64),
        entered: Entered,
    ) -> Result<(), Entered> {
        let Entered { stream, peer, bytes, listener, permit, homeless_since_ms } = entered;
        let held = Box::new((permit, homeless_since_ms));
        let first = (listener.name.clone(), bytes);
        let client = Client::new(stream, held, *peer, first);
        let begun = self.relays.begin(node, cell, epoch, client);
        begun.map_err(|client| self.doors.entered(client, listener))
    }

    /// Begins a call of the API at another node, which gets what this stream brings.
    ///
    /// # Errors
    ///
    /// There is no link to the node, or no room.
    pub(super) fn call(&self, node: &str, stream: Stream) -> io::Result<()> {
        let peer = PeerInfo::new(PeerAddress::Unix);
        let client = Client::new(stream, Box::new(()), peer, (String::new(), Vec::new()));
        let begun = self.relays.begin(node, CALLS, CALLS_EPOCH, client);
        begun.map_err(|_| io::Error::other("there is no link to the node"))
    }

    /// The list of nodes has changed.
    pub(super) fn change_member(&self, change: &MemberChange) {
        match change {
            MemberChange::Set(NodeMember { node, link }) => {
                self.links.add(links::Member { name: node.clone(), address: link.clone() });
            }
            MemberChange::Removed(node) => self.links.remove(node),
        }
    }

    pub(super) fn owner_changed(&self, cell: u16, owner: Option<Owner>) {
        self.relays.epoch_changed(cell, owner.as_ref().map(|(_, epoch)| *epoch));
        let owner = owner.map(|(node, epoch)| cells::Owner { node, epoch });
        self.cells.owner_changed(cell, owner);
    }

    /// Before the shards of the cell do anything.
    pub(super) fn open_cell(
        &self,
        (cell, epoch): (u16, u64),
        parts: &Parts,
        mailboxes: Arc<[Arc<Mailbox>]>,
        acting: Acting,
    ) {
        let deliver = move |shard: ShardId, mails: Vec<Mail>| {
            mailboxes[usize::from(shard) % mailboxes.len()].put(Item::Mail(shard, mails));
        };
        self.cells.open(OwnCell {
            cell,
            epoch,
            shared: parts.shared.clone(),
            clock: parts.clock,
            deliver: Arc::new(deliver),
            is_held: Arc::new(move || acting.is_held()),
        });
    }

    /// From now on nothing of the cell leaves.
    pub(super) fn close_cell(&self, cell: u16, epoch: u64) {
        self.cells.close(cell, epoch);
    }

    /// The lease of a cell of this node had run out, and is back.
    pub(super) fn on_lapse(&self, cell: u16, epoch: u64) {
        self.cells.on_lapse(cell, epoch);
    }

    /// Reads the certificates again.
    pub(super) fn reload(&self) -> anyhow::Result<()> {
        Ok(self.links.reload()?)
    }

    pub(super) fn figures(&self) -> LinkFigures {
        let RelayFigures { relayed_out, relayed_in, bytes_lent, refused } = self.relays.figures();
        let of_cell = |it: cells::Figures| CellLink {
            cell: it.cell,
            other: it.other,
            is_connected: it.is_connected,
            waiting: it.waiting,
            frames: it.kept_frames + it.overflow_frames,
            frame_bytes: it.kept_bytes,
        };
        LinkFigures {
            relayed: [relayed_out, relayed_in],
            refused,
            lent_bytes: bytes_lent,
            cells: self.cells.figures().into_iter().map(of_cell).collect(),
        }
    }
}

/// What a client keeps while it is relayed: its permit, and since when no node has had its cell.
type Kept = (Option<ConnectionPermit>, Option<u64>);

/// If `limits.connections_max` sets none.
const RELAYS_MAX: usize = 1 << 20;

/// Gives packets to whom they concern. All calls come from the thread of the links.
struct Switch {
    cells: cells::Task,
    relays: relays::Task,
}

impl Handler for Switch {
    fn on_connected(&mut self, connected: Connected) {
        tracing::info!(node = connected.node, lane = connected.lane, "connected to another node");
        self.relays.on_connected(&connected);
        let Connected { node, lane, version, sender, .. } = connected;
        self.cells.on_connected(&node, lane, version, sender);
    }

    fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        match envelope.route.from_cell {
            FRONT => self.relays.on_envelope(node, lane, &envelope),
            _ => self.cells.on_envelope(node, lane, envelope),
        }
    }

    fn on_room(&mut self, node: &str, lane: u8) {
        self.cells.on_room(node, lane);
        self.relays.on_room(node, lane);
    }

    fn on_lost(&mut self, node: &str, lane: u8, why: &Reason) {
        tracing::warn!(node, lane, error = %why, "disconnected from another node, reconnecting");
        self.relays.on_lost(node, lane);
        self.cells.on_lost(node, lane);
    }

    fn on_event(&mut self, event: &Event) {
        self.relays.on_event(event);
    }

    fn on_turn(&mut self) {
        self.relays.on_turn();
        self.cells.on_turn();
    }

    fn wait(&self) -> Option<Duration> {
        let cells = self.cells.wait();
        Some(self.relays.wait().map_or(cells, |relays| relays.min(cells)))
    }

    fn on_failed(&mut self, origin: &Origin, why: &Reason) {
        match origin {
            Origin::Link { node, lane } => {
                tracing::debug!(node, lane, error = %why, "cannot connect to another node");
            }
            // Anybody can cause it.
            Origin::Address(address) => {
                tracing::debug!(%address, error = %why, "connection for links refused");
            }
        }
    }
}

/// Where clients arrive that are relayed: at the acceptors of a cell, or back at those of the
/// listeners.
struct Doors {
    table: Arc<Table>,
    listeners: HashMap<String, Arc<Listener>>,
    front: OnceLock<Vec<Arc<AcceptorMailbox>>>,
    next: AtomicUsize,
    /// When a client of an unknown listener was logged last.
    unknown_at: Mutex<Option<Instant>>,
    /// What other nodes ask by the API.
    calls: UnboundedSender<Stream>,
}

/// How often clients of unknown listeners are logged: each client can cause it.
const UNKNOWN_LOG_EVERY: Duration = Duration::from_secs(10);

impl Doors {
    fn new(
        table: &Arc<Table>,
        listeners: Vec<Arc<Listener>>,
        calls: UnboundedSender<Stream>,
    ) -> Self {
        let named = listeners.into_iter().map(|listener| (listener.name.clone(), listener));
        let (table, next) = (table.clone(), AtomicUsize::new(0));
        let unknown_at = Mutex::default();
        let (listeners, front) = (named.collect(), OnceLock::new());
        Self { table, listeners, front, next, unknown_at, calls }
    }

    fn may_log_unknown(&self) -> bool {
        let mut last = self.unknown_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|at| at.elapsed() >= UNKNOWN_LOG_EVERY);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }

    /// What it was before it was to be relayed.
    fn entered(&self, client: Client, listener: Arc<Listener>) -> Entered {
        let Client { stream, arrival, held } = client;
        let (permit, homeless_since_ms) = held.downcast::<Kept>().map_or((None, None), |it| *it);
        let Arrival { peer, bytes, .. } = *arrival;
        let peer = Box::new(peer);
        Entered { stream, peer, bytes, listener, permit, homeless_since_ms }
    }
}

impl relays::Host for Doors {
    fn arrive(&self, cell: u16, epoch: u64, client: Client) -> Result<(), relays::Refused> {
        if cell == CALLS {
            return self.calls.send(client.stream).map_err(|_| relays::Refused::NoRoom);
        }
        let serving = self.table.serving(cell, epoch).ok_or(relays::Refused::NotOwner)?;
        let name = &client.arrival.listener;
        let Some(listener) = self.listeners.get(name).cloned() else {
            if self.may_log_unknown() {
                tracing::warn!(
                    listener = name,
                    "a client of another node came by a listener that this node does not have: use \
                     the same listeners on all nodes"
                );
            }
            return Err(relays::Refused::NotOwner);
        };
        let permit = listener.acquire();
        let mut entered = self.entered(client, listener);
        entered.permit = permit;
        let next = self.next.fetch_add(1, Ordering::Relaxed) % serving.acceptors.len();
        serving.acceptors[next].put(AcceptorItem::Entered(Box::new(entered)));
        Ok(())
    }

    fn refused(&self, _cell: u16, _epoch: u64, client: Client, why: relays::Refused) {
        tracing::debug!(%why, "a client could not be relayed, retrying");
        let known = self.listeners.get(&client.arrival.listener).cloned();
        let Some((listener, front)) = known.zip(self.front.get()) else { return };
        let entered = self.entered(client, listener);
        let next = self.next.fetch_add(1, Ordering::Relaxed) % front.len();
        front[next].put(AcceptorItem::Entered(Box::new(entered)));
    }
}
