//! Messages behind which a broker may have closed the connection.
//!
//! Sessions send unacknowledged messages again after each reconnect. So a message that a broker
//! answers by closing the connection would stop the bridge for ever. After such an end the messages
//! without an answer are sent one at a time, each on a connection that has just answered a PINGREQ.
//! A message behind which the connection was closed [`CLOSES_MAX`] times is not relayed.

use std::collections::BTreeMap;

use codec::{Publish, Reason};

use crate::Side;
use crate::unanswered::{Unanswered, hash_of};

/// Of the side that has closed the last connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspects {
    side: Option<Side>,
    /// By packet identifier: a hash of the message, and closes right behind it. At most the window
    /// of the side.
    messages: BTreeMap<u16, (u64, u32)>,
}

impl Suspects {
    /// Whether messages for this side are sent one at a time.
    pub(crate) fn are_of(&self, side: Side) -> bool {
        self.side == Some(side) && !self.messages.is_empty()
    }

    /// How often the connection was closed right behind this message; None: it is no suspect.
    pub(crate) fn closes(&self, publish: &Publish<'_>) -> Option<u32> {
        let (hash, closes) = self.messages.get(&publish.packet_id)?;
        (*hash == hash_of(publish)).then_some(*closes)
    }

    /// It was answered, or is not relayed.
    pub(crate) fn remove(&mut self, packet_id: u16) {
        self.messages.remove(&packet_id);
    }

    /// This side has closed the connection. `probed`: the message that was sent alone. Returns
    /// whether a message is to blame.
    pub(crate) fn on_close(
        &mut self,
        side: Side,
        unanswered: &Unanswered,
        probed: Option<u16>,
    ) -> bool {
        let was_probing = self.are_of(side);
        let earlier = match was_probing {
            true => std::mem::take(&mut self.messages),
            false => BTreeMap::new(),
        };
        self.side = Some(side);
        let messages = unanswered.in_order();
        let oldest = messages.first().map(|(id, _)| *id);
        let blamed = if was_probing { probed } else { oldest };
        self.messages = messages
            .into_iter()
            .map(|(id, hash)| {
                let known = earlier.get(&id).filter(|(known, _)| *known == hash);
                let closes = known.map_or(0, |(_, closes)| *closes);
                (id, (hash, closes + u32::from(blamed == Some(id))))
            })
            .collect();
        // Those that have not come again on this connection.
        for (id, known) in earlier {
            self.messages.entry(id).or_insert(known);
        }
        blamed.is_some()
    }
}

/// Whether a DISCONNECT with this reason may be about a message. Others are about the connection or
/// the broker.
pub(crate) const fn may_blame_a_message(reason: Reason) -> bool {
    !matches!(
        reason,
        Reason::SERVER_UNAVAILABLE
            | Reason::SERVER_BUSY
            | Reason::SERVER_SHUTTING_DOWN
            | Reason::KEEP_ALIVE_TIMEOUT
            | Reason::SESSION_TAKEN_OVER
            | Reason::RECEIVE_MAXIMUM_EXCEEDED
            | Reason::MESSAGE_RATE_TOO_HIGH
            | Reason::QUOTA_EXCEEDED
            | Reason::ADMINISTRATIVE_ACTION
            | Reason::USE_ANOTHER_SERVER
            | Reason::SERVER_MOVED
            | Reason::CONNECTION_RATE_EXCEEDED
            | Reason::MAXIMUM_CONNECT_TIME
    )
}

/// Connections that a broker closes right behind a message before it is given up.
pub(crate) const CLOSES_MAX: u32 = 3;
