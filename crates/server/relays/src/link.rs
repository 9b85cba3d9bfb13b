//! One connection of a link, as relays use it.

use std::collections::{HashMap, VecDeque};

use broker::cells::lane::Packet;
use broker::cells::wire::{Envelope, FRONT, Route};
use links::{SendError, Sender};

use crate::queue::Begin;
use crate::wire::{self, Frame};

/// Opens of one connection that the home has not answered. Policy: further clients wait.
pub const OPENS_MAX: usize = 256;

pub(crate) struct Link {
    sender: Sender,
    lane: u8,
    version: u8,
    /// The relays on it, by their number as this node writes it.
    pub(crate) relays: HashMap<u64, usize>,
    /// Relays that have been begun here, and by the peer.
    begun: [u64; 2],
    /// What was refused for lack of room, in order: what data a relay has sent at once, and what is
    /// sent without data, which a peer causes by what it sends within its credits.
    backlog: VecDeque<Vec<u8>>,
    /// Relays that have something to send and wait for room.
    pub(crate) parked: Vec<(usize, u64)>,
    /// Clients that wait to be opened.
    pub(crate) waiting: VecDeque<Begin>,
    /// Opens without an answer.
    pub(crate) opening: usize,
    /// It was given up, and its end is not reported yet.
    pub(crate) is_over: bool,
}

/// What the number of a packet says of its relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// Its key.
    Relay(usize),
    /// It has been and is closed: what the peer sent before it knew.
    Closed,
    /// The next that the peer begins.
    New,
    /// It has never been.
    Never,
}

impl Link {
    pub(crate) fn new(sender: Sender, lane: u8, version: u8) -> Self {
        Self {
            sender,
            lane,
            version,
            relays: HashMap::new(),
            begun: [0; 2],
            backlog: VecDeque::new(),
            parked: Vec::new(),
            waiting: VecDeque::new(),
            opening: 0,
            is_over: false,
        }
    }

    /// May bytes move?
    pub(crate) fn is_alive(&self) -> bool {
        !self.is_over && !self.sender.is_dead()
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// A number for a relay that begins here.
    pub(crate) const fn next_number(&mut self) -> u64 {
        self.begun[0] += 1;
        self.begun[0] << 1 | 1
    }

    /// `number`: as this node writes it.
    pub(crate) fn known(&self, number: u64) -> Known {
        if let Some(key) = self.relays.get(&number) {
            return Known::Relay(*key);
        }
        let is_own = number & 1 == 1;
        match number >> 1 {
            0 => Known::Never,
            count if count <= self.begun[usize::from(!is_own)] => Known::Closed,
            count if !is_own && count == self.begun[1] + 1 => Known::New,
            _ => Known::Never,
        }
    }

    /// The peer has begun its next relay.
    pub(crate) const fn on_begun(&mut self) {
        self.begun[1] += 1;
    }

    pub(crate) fn send(&mut self, number: u64, route: (u16, u64), frame: &Frame) {
        let mut bytes = Vec::new();
        wire::encode(frame, &mut bytes);
        self.send_bytes(number, route, &bytes);
    }

    /// `frame`: encoded.
    pub(crate) fn send_bytes(&mut self, number: u64, (cell, epoch): (u16, u64), frame: &[u8]) {
        let (from_cell, from_epoch, lane) = (FRONT, 0, self.lane);
        let route = Route { from_cell, to_cell: cell, from_epoch, to_epoch: epoch, lane };
        let packet = Packet { number, received: 0, age_ms: 0, frame };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + frame.len());
        Envelope::new(self.version, route, packet).encode(&mut bytes);
        self.backlog.push_back(bytes);
        // If others wait, so does this.
        if self.backlog.len() == 1 {
            self.send_backlog();
        }
    }

    /// False: there is still no room.
    pub(crate) fn send_backlog(&mut self) -> bool {
        while let Some(bytes) = self.backlog.pop_front() {
            match self.sender.send(bytes) {
                Ok(()) => {}
                Err(SendError::Full(bytes)) => {
                    self.backlog.push_front(bytes);
                    return false;
                }
                // Its end is about to be reported.
                Err(SendError::Closed(_)) => self.is_over = true,
            }
        }
        true
    }
}

/// About the length of a head.
const HEAD_BYTES: usize = 32;
