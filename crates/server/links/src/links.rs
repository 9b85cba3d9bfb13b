//! What the host of the links sees: options, events, and the handle.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use broker::cells::wire::{Envelope, VERSION, VERSION_MIN, WireError};
use mio::event::Event;
use net::TlsError;
use thiserror::Error;

use crate::hello::{ClusterId, HelloError, Secret};
use crate::outbox::{Doorbell, SendError, Sender};
use crate::peers::Member;
use crate::poller::Poller;
use crate::thread::{Command, Thread};
use crate::tls::{Files, Tls};

/// Default of [`Options::link_ms`].
pub const LINK_MS: u64 = 2000;

/// What a node is and has.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of this node, for which its certificate is issued.
    pub node: String,
    pub cluster: ClusterId,
    pub secret: Secret,
    /// Port 0: any free one, see [`Links::local_address`].
    pub listen: SocketAddr,
    pub files: Files,
    /// Connections with each other node, numbered from 0. The same on all nodes.
    pub lanes: u8,
    /// A link on which nothing arrives for this time is dead.
    pub link_ms: u64,
    /// Versions of packets.
    pub versions: RangeInclusive<u8>,
}

/// Takes what happens on the links. All calls come from the one thread of the links. They must
/// return soon: while one of them runs, no link is read, and all links die after `link_ms`.
pub trait Handler: Send {
    fn on_connected(&mut self, connected: Connected);

    /// A packet of a connection that was reported. Heartbeats are not reported.
    ///
    /// # Errors
    ///
    /// The node violates the protocol: its connection is closed.
    fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation>;

    /// A [`Sender`] of this link was refused for lack of room, and now there is room.
    fn on_room(&mut self, _node: &str, _lane: u8) {}

    /// The connection is closed, and packets on their way are lost.
    fn on_lost(&mut self, node: &str, lane: u8, why: &Reason);

    /// A connection never became a link.
    fn on_failed(&mut self, _origin: &Origin, _why: &Reason) {}

    /// A source that the handler has registered itself ([`Poller::registry`]) has an event.
    fn on_event(&mut self, _event: &Event) {}

    /// All that has happened was reported. Called before the thread sends what waits, and waits.
    fn on_turn(&mut self) {}

    /// Until [`Handler::on_turn`] has something to do; none: until something happens. Asked
    /// before each wait. What other threads ask for later needs a ring ([`Poller::bell`]).
    fn wait(&self) -> Option<Duration> {
        None
    }
}

/// A link that has a connection now.
#[derive(Debug)]
pub struct Connected {
    pub node: String,
    pub lane: u8,
    /// Of packets: the lower of the highest that both nodes have.
    pub version: u8,
    /// The session numbers of both nodes. Both are the same as before: each node still has what it
    /// had on the connection before. A node changes its number after `link_ms` without its peer.
    pub own_session: u64,
    pub peer_session: u64,
    pub sender: Sender,
}

/// Whose connection it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Accepted from this address.
    Address(SocketAddr),
    /// Begun by this node.
    Link { node: String, lane: u8 },
}

/// What a handler found wrong with a packet.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// Why a connection is closed.
#[derive(Debug, Error)]
pub enum Reason {
    #[error("nothing has arrived for {0} ms")]
    Silent(u64),
    #[error("the peer closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Packet(#[from] WireError),
    #[error("{0}")]
    Violation(#[from] Violation),
    #[error("the node has connected again")]
    Replaced,
    #[error("the node was removed from the cluster")]
    Removed,
    #[error("this node stops")]
    Stopped,
    #[error("cannot resolve {address}: {error}")]
    Unresolved { address: String, error: io::Error },
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("the handshake took more than {0} ms")]
    Late(u64),
    #[error("too many connections of this address are in their handshake (limit {0})")]
    AddressCrowded(usize),
    #[error("too many connections are in their handshake (limit {0}), and this one is the oldest")]
    Crowded(usize),
}

/// Why links cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot listen for links on {address}: {error}")]
    Listen { address: SocketAddr, error: io::Error },
    #[error("cannot start the thread of links: {0}")]
    Io(#[from] io::Error),
}

/// The links of a node. Dropping it closes them.
pub struct Links {
    doorbell: Arc<Doorbell>,
    current: Arc<Current>,
    tls: Arc<Tls>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// The senders of all links that have a connection, by lane and node.
#[derive(Default)]
pub(crate) struct Current(Mutex<HashMap<u8, HashMap<String, Sender>>>);

impl Options {
    /// One lane, and the defaults.
    pub fn new(
        node: impl Into<String>,
        (cluster, secret): (ClusterId, Secret),
        listen: SocketAddr,
        files: Files,
    ) -> Self {
        let (node, versions) = (node.into(), VERSION_MIN..=VERSION);
        Self { node, cluster, secret, listen, files, lanes: 1, link_ms: LINK_MS, versions }
    }
}

impl Links {
    /// Listens, and begins to connect.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or the address cannot be listened on.
    pub fn start(
        options: Options,
        members: &[Member],
        handler: Box<dyn Handler>,
    ) -> Result<Self, StartError> {
        Self::start_on(Poller::new()?, options, members, handler)
    }

    /// The same, with a handler that uses the poller as well.
    ///
    /// # Errors
    ///
    /// As [`Links::start`].
    pub fn start_on(
        poller: Poller,
        options: Options,
        members: &[Member],
        handler: Box<dyn Handler>,
    ) -> Result<Self, StartError> {
        let tls = Arc::new(Tls::load(&options.files)?);
        let current = Arc::<Current>::default();
        let shared = (Arc::clone(&tls), Arc::clone(&current), handler);
        let mut thread = Thread::new(poller, options, shared)?;
        thread.add(members);
        let (doorbell, address) = (thread.doorbell(), thread.local_address());
        // Without it other parts would wait for packets that never come.
        let run = move || base::ending_the_process(move || thread.run());
        let thread = Some(Builder::new().name("links".to_owned()).spawn(run)?);
        Ok(Self { doorbell, current, tls, address, thread })
    }

    /// Where this node listens.
    pub const fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a member, or changes its address. An existing connection stays.
    pub fn add(&self, member: Member) {
        self.doorbell.command(Command::Add(member));
    }

    /// Closes the links of a member, and refuses it from now on.
    pub fn remove(&self, node: &str) {
        self.doorbell.command(Command::Remove(node.to_owned()));
    }

    /// Queues an encoded [`Envelope`] on the connection that the link has now. A sender that has to
    /// know on which one uses its [`Sender`].
    ///
    /// # Errors
    ///
    /// A limit is reached, or there is no connection.
    pub fn send(&self, node: &str, lane: u8, packet: Vec<u8>) -> Result<(), SendError> {
        match self.current.sender(node, lane) {
            Some(sender) => sender.send(packet),
            None => Err(SendError::Closed(packet)),
        }
    }

    /// Reads certificates and key again, for later connections. Those of now stay.
    ///
    /// # Errors
    ///
    /// A file cannot be read. What was loaded before is used.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.tls.reload()
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.doorbell.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // It ends the process if it panics.
            let _ = thread.join();
        }
    }
}

impl Current {
    fn sender(&self, node: &str, lane: u8) -> Option<Sender> {
        let lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lanes.get(&lane)?.get(node).cloned()
    }

    pub(crate) fn set(&self, node: &str, lane: u8, sender: Option<Sender>) {
        let mut lanes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = lanes.entry(lane).or_default();
        match sender {
            Some(sender) => nodes.insert(node.to_owned(), sender),
            None => nodes.remove(node),
        };
    }
}
