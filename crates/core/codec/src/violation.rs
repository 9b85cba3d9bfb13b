//! What a peer did wrong, and where the standard says so.

use crate::{Connack, Disconnect, Properties, Reason, Version, connect, rules};

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

impl Violation {
    /// Whether the peer gets the reason before the connection is closed. A few faults are not
    /// worth a packet: bytes that are hardly MQTT, garbled credentials, a garbled farewell.
    pub fn is_answered(&self) -> bool {
        !rules::SILENT.iter().any(|rule| rule.detail == self.detail)
    }

    /// Appends the DISCONNECT with the reason for an MQTT 5 peer, if the
    /// violation [is answered](Self::is_answered) at all. Before version 5 there is none.
    pub fn answer(&self, version: Version, out: &mut Vec<u8>) {
        if version >= Version::V5 && self.is_answered() {
            Disconnect::new(self.reason.disconnect()).encode(version, out);
        }
    }

    /// Appends the CONNACK with which a server refuses `bytes`, a first packet that is this
    /// violation. There is none for a packet that is no CONNECT, and before version 5 none at
    /// all, except to a version that is not known (`MQTT-3.1.2-2`): a level from 5 up is answered
    /// in the form of MQTT 5, one below it in the form that all versions before 5 share.
    pub fn answer_connect(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let unknown = self.detail == rules::PROTOCOL_VERSION.detail;
        let is_v5 = connect::is_level_from_5(bytes);
        if self.is_answered() && (unknown || is_v5) {
            let refusal = Connack {
                session_present: false,
                reason: self.reason.connack(),
                properties: Properties::EMPTY,
            };
            refusal.encode(if is_v5 { Version::V5 } else { Version::V311 }, out);
        }
    }
}
