//! The two sides of a bridge, and what a relay knows of each.

use std::collections::{BTreeMap, BTreeSet};

use crate::stale::Release;
use crate::unanswered::Unanswered;

/// One of the two sessions of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In this broker. It always speaks MQTT 5.
    Local,
    Remote,
}

/// A filter that an earlier connection may have subscribed to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earlier {
    pub filter: String,
    /// A connection was up that had subscribed to it: so its retained messages were relayed.
    pub was_up: bool,
}

/// What concerns one side.
#[derive(Debug, Default)]
pub(super) struct Peer {
    pub(super) out: Vec<u8>,
    /// Bytes of `out` that are written.
    pub(super) written: usize,
    pub(super) release: Option<Release>,
    /// Messages that it was sent.
    pub(super) unanswered: Unanswered,
    /// QoS 2 messages that it was sent with QoS 1. At most the messages in flight.
    pub(super) lowered: BTreeSet<u16>,
    /// Identifiers that were released before they were used again, without the PUBCOMP. At most the
    /// messages in flight.
    pub(super) released: BTreeSet<u16>,
    /// Identifiers of refused messages that this side may know: they are refused at the other side
    /// when this side has released them. At most the messages in flight.
    pub(super) refusing: BTreeSet<u16>,
    /// Filters of SUBSCRIBE and UNSUBSCRIBE without an answer.
    pub(super) asked: BTreeMap<u16, String>,
    pub(super) earlier: Vec<Earlier>,
    pub(super) subscribed: BTreeSet<String>,
    pub(super) refused: Vec<String>,
    pub(super) ids_taken: u16,
}

impl Side {
    pub const ALL: [Self; 2] = [Self::Local, Self::Remote];

    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
        }
    }
}

impl Peer {
    /// For a SUBSCRIBE or UNSUBSCRIBE. Messages in flight mostly have low ones.
    pub(super) fn take_id(&mut self) -> u16 {
        self.ids_taken += 1;
        u16::MAX - (self.ids_taken - 1)
    }
}
