//! Where packets go: to another node, or to another cell of this one.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};

use broker::cells::wire::VERSION;
use links::{Envelope, SendError, Sender};

/// A connection to another node.
pub(crate) struct Link {
    pub(crate) version: u8,
    pub(crate) sender: Sender,
}

/// By node and lane.
pub(crate) type Links = HashMap<String, BTreeMap<u8, Link>>;

/// All that there are.
pub(crate) struct Ways<'a> {
    /// This one.
    pub(crate) node: &'a str,
    pub(crate) links: &'a Links,
    pub(crate) near: &'a mut VecDeque<Envelope<'static>>,
}

/// One of them.
pub(crate) enum Way<'a> {
    Far(&'a Link),
    /// Bounded by the lanes of the cells of this node.
    Near(&'a mut VecDeque<Envelope<'static>>),
}

impl Ways<'_> {
    /// None: there is no connection.
    pub(crate) fn to(&mut self, node: &str, lane: u8) -> Option<Way<'_>> {
        if node == self.node {
            return Some(Way::Near(self.near));
        }
        self.links.get(node)?.get(&lane).map(Way::Far)
    }
}

impl Way<'_> {
    /// Of packets.
    pub(crate) const fn version(&self) -> u8 {
        match self {
            Self::Far(link) => link.version,
            Self::Near(_) => VERSION,
        }
    }

    /// Returns the encoded packet if there is no room.
    pub(crate) fn send(&mut self, envelope: Envelope<'_>) -> Option<Vec<u8>> {
        match self {
            Self::Far(_) => {
                let mut bytes = Vec::with_capacity(HEAD_BYTES + envelope.frame.len());
                envelope.encode(&mut bytes);
                self.send_again(bytes)
            }
            Self::Near(queue) => {
                queue.push_back(owned(envelope));
                None
            }
        }
    }

    /// The same of a packet that was returned.
    pub(crate) fn send_again(&self, packet: Vec<u8>) -> Option<Vec<u8>> {
        let Self::Far(link) = self else { return None };
        match link.sender.send(packet) {
            Err(SendError::Full(packet)) => Some(packet),
            // The tracks end when that is reported.
            Ok(()) | Err(SendError::Closed(_)) => None,
        }
    }
}

/// The same in memory of its own.
fn owned(envelope: Envelope<'_>) -> Envelope<'static> {
    let Envelope { version, route, number, received, age_ms, frame } = envelope;
    let frame = Cow::Owned(frame.into_owned());
    Envelope { version, route, number, received, age_ms, frame }
}

/// Of most packets.
const HEAD_BYTES: usize = 32;
