//! Two ends of a lane on a link, as an owner of cells drives them.

use std::sync::mpsc;

use broker::cells::lane::{Lane, Packet};
use broker::cells::wire::{Route, VERSION};
use links::{Connected, Envelope, Handler, Reason, SendError, Sender, Violation};

/// Sends the numbers from 0 below `total` to the other node as frames, and checks that the other
/// node's arrive once and in order. The first packet on each connection says what has arrived.
pub(crate) struct Carrier {
    lane: Lane,
    /// The numbers that come next.
    sent: u64,
    received: u64,
    total: u64,
    connection: Option<Connection>,
    losses: u64,
    /// Gets the number of losses once everything has arrived here and there.
    done: Option<mpsc::Sender<u64>>,
}

struct Connection {
    sender: Sender,
    has_begun: bool,
    /// Returned for lack of room.
    refused: Option<Vec<u8>>,
}

impl Carrier {
    pub(crate) fn new(total: u64, done: mpsc::Sender<u64>) -> Self {
        let (lane, connection, done) = (Lane::new(), None, Some(done));
        Self { lane, sent: 0, received: 0, total, connection, losses: 0, done }
    }

    /// Fills the lane, then the link.
    fn pump(&mut self) {
        while self.sent < self.total && self.lane.push(frame(self.sent), 0).is_ok() {
            self.sent += 1;
        }
        let Some(connection) = self.connection.as_mut().filter(|connection| connection.has_begun)
        else {
            return;
        };
        loop {
            let bytes = match connection.refused.take() {
                Some(bytes) => bytes,
                None => match self.lane.next_packet(0) {
                    Some(packet) => encode(packet),
                    None => return,
                },
            };
            match connection.sender.send(bytes) {
                Ok(()) => {}
                Err(SendError::Full(bytes)) => {
                    connection.refused = Some(bytes);
                    return;
                }
                Err(SendError::Closed(_)) => return,
            }
        }
    }

    fn on_packet(&mut self, packet: Packet<'_>) -> Result<(), Violation> {
        let violation = |error: &dyn std::fmt::Display| Violation(error.to_string());
        let connection = self.connection.as_mut().expect("packets come on a connection");
        if !connection.has_begun {
            connection.has_begun = true;
            return self.lane.reconnect(packet.received).map_err(|error| violation(&error));
        }
        if let Some(bytes) = self.lane.on_packet(packet).map_err(|error| violation(&error))? {
            assert_eq!(bytes, frame(self.received), "once and in order");
            self.received += 1;
            if self.received == self.total {
                self.lane.ask_ack();
            }
        }
        Ok(())
    }
}

impl Handler for Carrier {
    fn on_connected(&mut self, connected: Connected) {
        let (sender, received) = (connected.sender, self.lane.received());
        sender.send(encode(Packet { number: 0, received, age_ms: 0, frame: &[] })).expect("room");
        self.connection = Some(Connection { sender, has_begun: false, refused: None });
    }

    fn on_envelope(
        &mut self,
        _node: &str,
        _lane: u8,
        envelope: Envelope<'_>,
    ) -> Result<(), Violation> {
        self.on_packet(envelope.packet())?;
        self.pump();
        let is_acknowledged = self.sent == self.total && self.lane.kept().0 == 0;
        if is_acknowledged
            && self.received == self.total
            && let Some(done) = self.done.take()
        {
            done.send(self.losses).expect("the test waits");
        }
        Ok(())
    }

    fn on_room(&mut self, _node: &str, _lane: u8) {
        self.pump();
    }

    fn on_lost(&mut self, _node: &str, _lane: u8, _why: &Reason) {
        self.lane.disconnect();
        self.connection = None;
        self.losses += 1;
    }
}

fn frame(number: u64) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

fn encode(packet: Packet<'_>) -> Vec<u8> {
    let route = Route { from_cell: 1, to_cell: 2, from_epoch: 3, to_epoch: 4, lane: 0 };
    let mut bytes = Vec::new();
    Envelope::new(VERSION, route, packet).encode(&mut bytes);
    bytes
}
