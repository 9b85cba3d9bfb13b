//! What was taken from a connection in one go.

use codec::Packet;

use crate::parts::flow::{BURST_BYTES, BURST_MESSAGES};
use crate::parts::tracing::TracedConnection;

/// What was taken from a connection in one go.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) publishes: u64,
    pub(crate) publish_bytes: usize,
    pub(crate) bytes: usize,
    /// The connection is not to be read on for now.
    pub(crate) is_paused: bool,
    /// Its packets are traced.
    pub(crate) traced: Option<Box<TracedConnection>>,
}

impl Taken {
    pub(crate) const fn count(&mut self, packet: &Packet<'_>, packet_len: usize) {
        self.bytes += packet_len;
        if matches!(packet, Packet::Publish(_)) {
            self.publishes += 1;
            self.publish_bytes += packet_len;
        }
    }

    /// Does a publisher that sends so much in one go send all it can?
    pub(crate) const fn is_burst(&self, bytes: &[u8]) -> bool {
        self.publishes >= BURST_MESSAGES || bytes.len() >= BURST_BYTES
    }
}
