//! What a peer did wrong, and where the standard says so.

use crate::Reason;

/// A breach of the protocol by the peer. It closes one connection; the reason code is what an
/// MQTT 5 peer is told, the clause and the detail are what the operator reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{detail} ({clause}, {reason})")]
pub struct Violation {
    /// The code for CONNACK or DISCONNECT.
    pub reason: Reason,
    /// The normative statement that was broken, for example `MQTT-3.3.1-4`: of MQTT 5 on a
    /// version 5 connection, else of MQTT 3.1.1. A rule that the standard states without an id
    /// of its own goes under the statement that a breach closes the connection.
    pub clause: &'static str,
    /// One lower case phrase that says what was seen.
    pub detail: &'static str,
}
