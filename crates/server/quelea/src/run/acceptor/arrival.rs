//! A connection between accept and admission, and how far it has come.

use std::net::IpAddr;
use std::sync::Arc;

use broker::admission::{self, Credentials, Refusal};
use codec::Reason;
use mio::event::Source;
use net::{Handshake, PeerAddress, PeerInfo, Stream};

use crate::run::limiter::{ConnectionPermit, Listener};
use driver::Charge;
use driver::Origin;
use identity::auth::scram::Exchange;

/// A connection between accept and admission.
pub(super) struct Arrival {
    pub(super) stage: Stage,
    pub(super) listener: Arc<Listener>,
    pub(super) permit: Option<ConnectionPermit>,
    pub(super) generation: u64,
    /// Registered with the poll; one that never had to wait is not.
    pub(super) is_watched: bool,
    /// Its part of the memory for connections that are not admitted yet.
    pub(super) charge: Charge<Origin>,
    /// The host name that the client asked for.
    pub(super) host: Option<Box<str>>,
    /// Since when no node has had its cell.
    pub(super) homeless_since_ms: Option<u64>,
}

pub(super) enum Stage {
    Handshake(Box<Handshake>),
    /// Waiting for the whole CONNECT.
    Connect {
        stream: Stream,
        peer: Box<PeerInfo>,
        bytes: Vec<u8>,
    },
    /// Waiting for the authentication back-end, or for its namespace to be made.
    Checking {
        stream: Stream,
        credentials: Box<Credentials>,
        rest: Vec<u8>,
    },
    /// An enhanced authentication is under way.
    Exchange {
        stream: Stream,
        credentials: Box<Credentials>,
        exchange: Box<Exchange>,
        bytes: Vec<u8>,
    },
    /// Refused; the client may read why until the deadline.
    Refused(Stream),
    /// Between two stages.
    Moving,
}

impl Stage {
    pub(super) fn source(&mut self) -> Option<&mut dyn Source> {
        match self {
            Self::Handshake(handshake) => Some(handshake.as_mut()),
            Self::Connect { stream, .. }
            | Self::Checking { stream, .. }
            | Self::Exchange { stream, .. }
            | Self::Refused(stream) => Some(stream),
            Self::Moving => None,
        }
    }

    pub(super) fn peer(&self) -> String {
        match self {
            Self::Handshake(handshake) => handshake.peer().address.to_string(),
            Self::Connect { peer, .. } => peer.address.to_string(),
            Self::Checking { credentials, .. } | Self::Exchange { credentials, .. } => {
                credentials.request.peer.to_string()
            }
            Self::Refused(_) | Self::Moving => "-".into(),
        }
    }
}

pub(super) fn origin_of(peer: &PeerAddress) -> Origin {
    ip(peer).map_or(Origin::Local, Origin::of)
}

pub(super) fn ip(peer: &PeerAddress) -> Option<IpAddr> {
    match peer {
        PeerAddress::Inet(address) => Some(address.ip()),
        PeerAddress::Unix => None,
    }
}

pub(super) fn refusal(
    credentials: &Credentials,
    reason: Reason,
    clause: &'static str,
    detail: &'static str,
) -> Refusal {
    let answer = admission::refuse(&credentials.request, reason);
    Refusal { reason, answer, clause, detail }
}
