//! The mailbox of an acceptor: how other threads reach it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use mio::Poll;
use net::{Handshake, PeerInfo, Stream};

use super::WAKER;
use crate::run::limiter::{ConnectionPermit, Listener};
use identity::auth::Verdict;

/// What other threads send to an acceptor.
pub(in crate::run) enum AcceptorItem {
    /// A connection that another acceptor accepted.
    Accepted(Handshake, Arc<Listener>),
    /// A client that has entered by a listener of this node or of another one.
    Entered(Box<Entered>),
    Verdict {
        key: usize,
        generation: u64,
        verdict: Verdict,
    },
    /// The namespace that a client has asked for is there, or cannot be.
    Named {
        key: usize,
        generation: u64,
        is_made: bool,
    },
}

/// A client of a cell, whose CONNECT has arrived.
pub(in crate::run) struct Entered {
    pub(in crate::run) stream: Stream,
    pub(in crate::run) peer: Box<PeerInfo>,
    /// From the CONNECT on.
    pub(in crate::run) bytes: Vec<u8>,
    pub(in crate::run) listener: Arc<Listener>,
    /// None: the listener or the node is full.
    pub(in crate::run) permit: Option<ConnectionPermit>,
    /// Since when no node has had its cell. Some: it comes back to the listeners.
    pub(in crate::run) homeless_since_ms: Option<u64>,
}

/// Queues items for an acceptor and wakes it.
pub(in crate::run) struct AcceptorMailbox {
    items: Mutex<Vec<AcceptorItem>>,
    waker: mio::Waker,
}

impl AcceptorMailbox {
    pub(in crate::run) fn put(&self, item: AcceptorItem) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push(item);
        self.wake();
    }

    pub(super) fn take(&self) -> Vec<AcceptorItem> {
        std::mem::take(&mut *self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::run) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "cannot wake a listener thread");
        }
    }
}

/// An event queue and the mailbox that wakes it.
pub(in crate::run) fn poll_and_mailbox() -> io::Result<(Poll, Arc<AcceptorMailbox>)> {
    let poll = Poll::new()?;
    let waker = mio::Waker::new(poll.registry(), WAKER)?;
    Ok((poll, Arc::new(AcceptorMailbox { items: Mutex::default(), waker })))
}
