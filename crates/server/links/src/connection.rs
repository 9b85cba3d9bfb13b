//! One connection: TLS, the handshake of nodes, then a link.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use broker::cells::lane::Packet;
use broker::cells::wire::{Envelope, Envelopes, Route};

use crate::hello::Greeting;
use crate::life::Life;
use crate::links::Origin;
use crate::outbox::Outbox;
use crate::peers::LinkName;
use crate::transport::Transport;

pub(crate) struct Connection {
    pub(crate) transport: Transport,
    pub(crate) origin: Origin,
    pub(crate) begun_ms: u64,
    pub(crate) stage: Stage,
}

pub(crate) enum Stage {
    Tls,
    Greeting(Box<Greeting>),
    Up(Box<Link>),
}

/// A connection of two nodes that have proved who they are.
pub(crate) struct Link {
    pub(crate) name: LinkName,
    pub(crate) envelopes: Envelopes,
    pub(crate) life: Life,
    pub(crate) outbox: Arc<Outbox>,
    /// Taken out of the outbox.
    batch: VecDeque<Vec<u8>>,
    /// Bytes of the first packet of the batch that are sent.
    begun_bytes: usize,
    heartbeat: Vec<u8>,
}

impl Link {
    pub(crate) fn new(name: LinkName, version: u8, life: Life, outbox: Arc<Outbox>) -> Self {
        let (envelopes, batch, heartbeat) =
            (Envelopes::default(), VecDeque::new(), heartbeat(version));
        Self { name, envelopes, life, outbox, batch, begun_bytes: 0, heartbeat }
    }

    /// Sends what waits, as far as the connection takes it. True: a sender that was refused has
    /// room again.
    pub(crate) fn send(&mut self, transport: &mut Transport, now_ms: u64) -> io::Result<bool> {
        let mut has_room = false;
        transport.flush()?;
        loop {
            if self.batch.is_empty() {
                self.outbox.take(&mut self.batch);
            }
            let mut slices = Vec::with_capacity(self.batch.len().min(GATHERED_PACKETS_MAX));
            let mut begun_bytes = self.begun_bytes;
            for packet in self.batch.iter().take(GATHERED_PACKETS_MAX) {
                slices.push(IoSlice::new(&packet[std::mem::take(&mut begun_bytes)..]));
            }
            let taken = if slices.is_empty() { 0 } else { transport.send(&slices)? };
            if taken == 0 {
                return Ok(has_room);
            }
            self.life.on_sent(now_ms);
            has_room |= self.drop_sent(taken);
        }
    }

    /// Sends a heartbeat unless packets wait: they say more.
    pub(crate) fn beat(&mut self, transport: &mut Transport, now_ms: u64) -> io::Result<()> {
        self.life.on_sent(now_ms);
        if self.batch.is_empty() {
            // A connection that takes none has bytes under way.
            let taken = transport.send(&[IoSlice::new(&self.heartbeat)])?;
            debug_assert!(taken == 0 || taken == self.heartbeat.len(), "{taken} bytes");
        }
        Ok(())
    }

    fn drop_sent(&mut self, taken: usize) -> bool {
        self.begun_bytes += taken;
        let (mut packets, mut bytes) = (0, 0);
        while let Some(first) = self.batch.front()
            && first.len() <= self.begun_bytes
        {
            self.begun_bytes -= first.len();
            (packets, bytes) = (packets + 1, bytes + first.len());
            self.batch.pop_front();
        }
        packets > 0 && self.outbox.on_sent(packets, bytes)
    }
}

/// An owner of a cell has an epoch above 0, so a packet with two zeros is of no cell.
fn heartbeat(version: u8) -> Vec<u8> {
    let route = Route { from_cell: 0, to_cell: 0, from_epoch: 0, to_epoch: 0, lane: 0 };
    let packet = Packet { number: 0, received: 0, age_ms: 0, frame: &[] };
    let mut bytes = Vec::new();
    Envelope::new(version, route, packet).encode(&mut bytes);
    bytes
}

pub(crate) const fn is_heartbeat(envelope: &Envelope<'_>) -> bool {
    envelope.route.from_epoch == 0 && envelope.route.to_epoch == 0
}

/// Packets that are encrypted at once: enough small ones for some records.
const GATHERED_PACKETS_MAX: usize = 1024;
