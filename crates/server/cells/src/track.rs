//! One lane between two owners of cells, and how it begins on a connection.

use std::collections::VecDeque;

use broker::cells::lane::{Fault, Full, Lane, Packet};
use broker::cells::wire::{Envelope, LaneHello, Route};

use crate::way::Way;

/// It lasts as long as both epochs last.
#[derive(Debug, Default)]
pub(crate) struct Track {
    lane: Lane,
    /// Frames that the lane has no room for, each with the time of its encoding.
    overflow: VecDeque<(Vec<u8>, u64)>,
    /// Encoded packets that the link had no room for.
    refused: Option<Vec<u8>>,
    state: State,
    /// Counts attempts to begin.
    attempt: u64,
    /// The latest attempt of the peer on this connection.
    seen: u64,
    owes_hello: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Without a connection, or without an owner of the other cell.
    #[default]
    Ended,
    /// No hello has seen the present attempt. What else arrives is older than the attempt.
    Begun,
    Connected,
}

impl Track {
    pub(crate) fn push(&mut self, frame: Vec<u8>, now_ms: u64) {
        self.overflow.push_back((frame, now_ms));
        self.refill();
    }

    /// There is a connection, and the other cell has an owner.
    pub(crate) fn begin(&mut self) {
        self.end();
        self.attempt += 1;
        (self.state, self.seen, self.owes_hello) = (State::Begun, 0, true);
    }

    /// One of them is gone.
    pub(crate) fn end(&mut self) {
        self.lane.disconnect();
        (self.state, self.refused, self.owes_hello) = (State::Ended, None, false);
    }

    pub(crate) fn on_hello(&mut self, hello: LaneHello, received: u64) -> Result<(), Fault> {
        if self.state == State::Ended {
            return Ok(());
        }
        if hello.attempt != self.seen {
            // The peer drops what was sent before it has an answer.
            self.lane.disconnect();
            (self.state, self.refused) = (State::Begun, None);
            (self.seen, self.owes_hello) = (hello.attempt, true);
        }
        if self.state == State::Begun && hello.seen == self.attempt {
            self.lane.reconnect(received)?;
            self.state = State::Connected;
        }
        Ok(())
    }

    /// True: the packet has the next frame.
    pub(crate) fn on_packet(&mut self, packet: Packet<'_>) -> Result<bool, Fault> {
        if self.state != State::Connected {
            return Ok(false);
        }
        let is_next = self.lane.on_packet(packet)?.is_some();
        self.refill();
        Ok(is_next)
    }

    pub(crate) fn ask_ack(&mut self) {
        self.lane.ask_ack();
    }

    /// Sends what the lane and the way take.
    pub(crate) fn pump(&mut self, mut way: Way<'_>, route: Route, now_ms: u64) {
        if self.state == State::Ended {
            return;
        }
        if let Some(refused) = self.refused.take() {
            self.refused = way.send_again(refused);
        }
        let version = way.version();
        while self.refused.is_none() {
            let envelope = if self.owes_hello {
                self.owes_hello = false;
                let hello = LaneHello { attempt: self.attempt, seen: self.seen };
                Envelope::of_hello(version, route, hello, self.lane.received())
            } else {
                let Some(packet) = self.lane.next_packet(now_ms) else { return };
                Envelope::new(version, route, packet)
            };
            self.refused = way.send(envelope);
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state == State::Connected
    }

    pub(crate) fn kept(&self) -> (usize, usize) {
        self.lane.kept()
    }

    pub(crate) fn overflow_frames(&self) -> usize {
        self.overflow.len()
    }

    fn refill(&mut self) {
        while let Some((frame, since_ms)) = self.overflow.pop_front() {
            if let Err(Full(frame)) = self.lane.push(frame, since_ms) {
                return self.overflow.push_front((frame, since_ms));
            }
        }
    }
}
