//! Packets that come in more than one piece: put together, and large ones where they stay.

use session::large_packet_len;

use crate::parts::sessions::Sessions;
use crate::words::input::Rest;

impl Sessions {
    /// Keeps what has to wait.
    pub(crate) fn put_aside(&mut self, slot: u32, connection: u64, bytes: &[u8]) -> Rest {
        if bytes.is_empty() {
            return Rest::Nothing;
        }
        // What came before has ended the connection.
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        link.put_aside(bytes);
        Rest::of(link.gathers())
    }

    /// What was put aside, of which so much was taken, waits on.
    pub(crate) fn put_back(
        &mut self,
        slot: u32,
        connection: u64,
        mut inbox: Vec<u8>,
        taken: usize,
    ) -> Rest {
        if taken == inbox.len() {
            return Rest::Nothing;
        }
        // What came before has ended the connection.
        let Some(link) = self.link(slot, connection) else { return Rest::Nothing };
        if taken == 0 {
            link.inbox = inbox;
        } else if large_packet_len(&inbox[taken..]).is_some() {
            // It gets memory for itself.
            link.put_aside(&inbox[taken..]);
        } else {
            inbox.drain(..taken);
            link.inbox = inbox;
        }
        Rest::of(link.gathers())
    }
}
