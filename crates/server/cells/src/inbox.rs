//! What one connection has brought and the thread has not taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker::cells::lane::{BYTES_MAX, FRAMES_MAX};
use links::{Envelope, Violation};

/// Counts packets of one connection. Policy: at a limit the connection is closed. The lanes of a
/// peer that keeps to the protocol cannot contain more, as nothing here is acknowledged yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) node: Arc<str>,
    pub(crate) lane: u8,
    /// Pairs of cells that may share the connection.
    pairs_max: usize,
    packets: AtomicUsize,
    bytes: AtomicUsize,
}

impl Inbox {
    /// Two nodes own at most all `cells`, and each cell of one is a pair with each of the other.
    pub(crate) fn new(node: Arc<str>, lane: u8, cells: u16) -> Self {
        let cells = usize::from(cells);
        let pairs_max = (cells / 2) * cells.div_ceil(2);
        Self { node, lane, pairs_max, packets: AtomicUsize::new(0), bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn put(&self, envelope: &Envelope<'_>) -> Result<(), Violation> {
        let packets = self.packets.fetch_add(1, Ordering::Relaxed);
        let bytes = self.bytes.fetch_add(size(envelope), Ordering::Relaxed);
        let (packets_max, bytes_max) =
            (self.pairs_max * PACKETS_PER_LANE_MAX, self.pairs_max * BYTES_MAX);
        if packets >= packets_max || bytes + size(envelope) > bytes_max {
            return Err(Violation(format!(
                "{packets} packets with {bytes} bytes of cells are not processed yet: a node waits \
                 for acknowledgements before it sends so many"
            )));
        }
        Ok(())
    }

    pub(crate) fn take(&self, envelope: &Envelope<'_>) {
        self.packets.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(size(envelope), Ordering::Relaxed);
    }
}

/// A frame that is larger than a lane is alone in it.
fn size(envelope: &Envelope<'_>) -> usize {
    envelope.frame.len().min(BYTES_MAX)
}

/// Frames, and packets without one: acknowledgements and hellos.
const PACKETS_PER_LANE_MAX: usize = 2 * FRAMES_MAX;

#[cfg(test)]
mod tests {
    use broker::cells::lane::Packet;
    use broker::cells::wire::{Route, VERSION};

    use super::*;

    fn envelope(frame: &[u8]) -> Envelope<'_> {
        let route = Route { from_cell: 0, to_cell: 1, from_epoch: 1, to_epoch: 1, lane: 0 };
        Envelope::new(VERSION, route, Packet { number: 1, received: 0, age_ms: 0, frame })
    }

    #[test]
    fn what_lanes_can_contain_is_accepted_and_no_more() {
        // Four pairs, if each node owns two cells.
        let inbox = Inbox::new("n2".into(), 0, 4);
        let large = vec![0; BYTES_MAX + 1];
        for _ in 0..4 {
            inbox.put(&envelope(&large)).expect("each is alone in its lane");
        }
        let refused = inbox.put(&envelope(&[1])).expect_err("it is too much");
        assert!(refused.0.contains("4 packets with 33554432 bytes"), "{refused}");
        let inbox = Inbox::new("n2".into(), 0, 2);
        for _ in 0..PACKETS_PER_LANE_MAX {
            inbox.put(&envelope(&[1])).expect("a lane contains it");
        }
        assert!(inbox.put(&envelope(&[1])).is_err());
        (0..2).for_each(|_| inbox.take(&envelope(&[1])));
        inbox.put(&envelope(&[1])).expect("one was taken");
    }
}
