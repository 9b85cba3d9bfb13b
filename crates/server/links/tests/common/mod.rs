//! Nodes on loopback, and what happens on their links.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod carrier;
pub(crate) mod certificates;
pub(crate) mod proxy;

use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use broker::cells::lane::Packet;
use broker::cells::wire::{Route, VERSION};
use links::hello::Secret;
use links::{Connected, Envelope, Files, Handler, Links, Member, Options, Origin, Reason};
use links::{Sender, Violation};

/// What a handler was called with.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(Connected),
    /// Node, lane, number, frame.
    Packet(String, u8, u64, Vec<u8>),
    Room,
    Lost {
        node: String,
        why: String,
    },
    Failed {
        origin: Origin,
        why: String,
    },
}

/// A handler that passes everything on.
pub(crate) struct Recorder(pub(crate) mpsc::Sender<Event>);

/// A node whose events a test waits for.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) links: Links,
    events: Receiver<Event>,
}

impl Handler for Recorder {
    fn on_connected(&mut self, connected: Connected) {
        let _ = self.0.send(Event::Connected(connected));
    }

    fn on_envelope(
        &mut self,
        node: &str,
        lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        let (number, frame) = (envelope.number, envelope.frame.into_owned());
        if frame == b"violation" {
            return Err(Violation("a violation".to_owned()));
        }
        let _ = self.0.send(Event::Packet(node.to_owned(), lane, number, frame));
        Ok(())
    }

    fn on_room(&mut self, _node: &str, _lane: u8) {
        let _ = self.0.send(Event::Room);
    }

    fn on_lost(&mut self, node: &str, _lane: u8, why: &Reason) {
        let _ = self.0.send(Event::Lost { node: node.to_owned(), why: why.to_string() });
    }

    fn on_failed(&mut self, origin: &Origin, why: &Reason) {
        let _ = self.0.send(Event::Failed { origin: origin.clone(), why: why.to_string() });
    }
}

impl Node {
    pub(crate) fn start(options: Options) -> Self {
        let (sender, events) = mpsc::channel();
        Self::start_with(options, Box::new(Recorder(sender)), events)
    }

    pub(crate) fn start_with(
        options: Options,
        handler: Box<dyn Handler>,
        events: Receiver<Event>,
    ) -> Self {
        let name = options.node.clone();
        let links = Links::start(options, &[], handler).expect("links");
        Self { name, links, events }
    }

    pub(crate) fn member(&self) -> Member {
        member(&self.name, self.links.local_address())
    }

    /// The first event, from now on, for which `find` returns something.
    pub(crate) fn until<T>(&self, mut find: impl FnMut(Event) -> Option<T>) -> T {
        loop {
            let event = self.events.recv_timeout(PATIENCE).expect("it happens");
            if let Some(found) = find(event) {
                return found;
            }
        }
    }

    pub(crate) fn until_connected(&self) -> Connected {
        self.until(|event| match event {
            Event::Connected(connected) => Some(connected),
            _ => None,
        })
    }

    /// Why the next link is lost.
    pub(crate) fn until_lost(&self) -> String {
        self.until(|event| match event {
            Event::Lost { why, .. } => Some(why),
            _ => None,
        })
    }

    /// Why the next connection fails in its handshake.
    pub(crate) fn until_failed(&self) -> String {
        self.until(|event| match event {
            Event::Failed { why, .. } => Some(why),
            _ => None,
        })
    }

    pub(crate) fn until_packet(&self) -> (u64, Vec<u8>) {
        self.until(|event| match event {
            Event::Packet(_, _, number, frame) => Some((number, frame)),
            _ => None,
        })
    }
}

/// A link lives longer than a busy machine pauses. Tests of its life set their own time.
pub(crate) fn options(node: &str, files: Files) -> Options {
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let secret = Secret::new(*b"secret of the cluster");
    Options { link_ms: 30_000, ..Options::new(node, (CLUSTER, secret), listen, files) }
}

pub(crate) fn member(name: &str, address: SocketAddr) -> Member {
    Member { name: name.to_owned(), address: address.to_string() }
}

/// Tells two nodes of each other, and waits for their link: first what the first one reports.
pub(crate) fn join(one: &Node, other: &Node) -> [Connected; 2] {
    one.links.add(other.member());
    other.links.add(one.member());
    [one.until_connected(), other.until_connected()]
}

/// A packet of some cell.
pub(crate) fn packet(number: u64, received: u64, frame: &[u8]) -> Vec<u8> {
    let route = Route { from_cell: 1, to_cell: 2, from_epoch: 3, to_epoch: 4, lane: 0 };
    let packet = Packet { number, received, age_ms: 0, frame };
    let mut bytes = Vec::new();
    Envelope::new(VERSION, route, packet).encode(&mut bytes);
    bytes
}

/// Sends packets until the outbox is full. Returns their number.
pub(crate) fn fill(sender: &Sender) -> usize {
    let bytes = packet(1, 0, &[7; 100_000]);
    (0..).find(|_| sender.send(bytes.clone()).is_err()).expect("it is bounded")
}

pub(crate) const CLUSTER: [u8; 16] = *b"0123456789abcdef";

/// How long a test waits for what has to happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);
