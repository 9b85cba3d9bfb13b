//! What a relay reports to its driver.

use codec::{Reason, Violation};

use super::Side;
use crate::forward::Refusal;
use crate::suspects::may_blame_a_message;

/// What the driver of a relay does, or reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the local session. Its CONNACK comes as bytes.
    OpenLocal { receive_max: u16 },
    /// The local session is open without a remote. When its subscriptions are answered,
    /// [`Self::Up`] follows.
    QueueOpened { was_present: bool },
    /// Both sessions are connected.
    Opened { local_present: bool, remote_present: bool },
    /// A subscription was refused.
    Refused(Refused),
    /// The first message of this connection that is not relayed for this reason, and each that its
    /// receiver does not accept. `bytes`: of the payload.
    Dropped { from: Side, refusal: Refusal, topic: String, bytes: usize },
    /// All subscriptions are answered.
    Up,
}

/// A subscription that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub side: Side,
    pub filter: String,
    pub reason: Reason,
}

/// Why the connections of a bridge end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// CONNACK with a reason.
    ConnectRefused {
        side: Side,
        reason: Reason,
    },
    /// The remote does not know the announcement of a bridge: connect without it.
    Unannounced,
    /// DISCONNECT of a broker.
    Disconnected {
        side: Side,
        reason: Reason,
    },
    Violation {
        side: Side,
        violation: Violation,
    },
    /// A packet that does not come at this time.
    Unexpected {
        side: Side,
        packet: &'static str,
    },
    /// The remote has not answered within the keep-alive.
    Silent,
}

impl Down {
    /// The side that has ended the connection, if that may be because of a message.
    pub const fn closed_by(&self) -> Option<Side> {
        match self {
            Self::Disconnected { side, reason } if may_blame_a_message(*reason) => Some(*side),
            Self::Violation { side, .. } | Self::Unexpected { side, .. } => Some(*side),
            Self::ConnectRefused { .. }
            | Self::Unannounced
            | Self::Disconnected { .. }
            | Self::Silent => None,
        }
    }
}

/// Messages of a relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// To the remote.
    pub sent: u64,
    /// From the remote.
    pub received: u64,
    /// Not relayed, by [`Refusal`]: to the remote, and from it.
    pub refused: [[u64; Refusal::ALL.len()]; 2],
    /// Answered with an error by the receiver: to the remote, and from it.
    pub rejected: [u64; 2],
}
