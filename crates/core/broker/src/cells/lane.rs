//! A reliable, ordered stream of frames between two owners of cells, over connections that break.
//!
//! Each end has one [`Lane`] per lane number. It lasts as long as both epochs last. Frames are
//! numbered from 1. An end stores each frame until its peer has acknowledged it, and sends it again
//! on the next connection if it has not. Invariants, within both epochs:
//!
//! - Each frame is delivered exactly once and in order. Duplicates are dropped. A connection keeps
//!   its order, so a gap is a fault of the peer.
//! - Memory is bounded: an end stores its own frames only, at most [`FRAMES_MAX`] and
//!   [`BYTES_MAX`], whatever its peer does. Acknowledged frames are dropped.
//! - Packets of an earlier connection do not reach the lane. The driver sees to that.
//!
//! There is one class of frames: all wait in one queue. A sender that wants answers and credit to
//! go before payload has to order them before it pushes them. Two classes would need two sequences
//! of numbers.
//!
//! A frame contains the time until its message expires, and can be queued here for long. So a
//! packet contains the age of its frame, computed each time it is sent.
//!
//! The lane knows no cells, no frame types, no connections and no clocks.

use std::collections::VecDeque;

use thiserror::Error;

/// Frames without an acknowledgement. Policy: further ones are refused until the peer acknowledges.
pub const FRAMES_MAX: usize = 16 * 1024;

/// Bytes of these frames; a single frame may be larger. Policy: as [`FRAMES_MAX`].
pub const BYTES_MAX: usize = 8 * 1024 * 1024;

/// An end acknowledges after this number of frames.
pub const ACK_FRAMES: u64 = 64;

/// An end acknowledges after this number of bytes.
pub const ACK_BYTES: usize = 256 * 1024;

/// The unit that is sent on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// 0: the packet has no frame and only acknowledges.
    pub number: u64,
    /// The sender has received all frames up to this number.
    pub received: u64,
    /// Time since the frame was encoded.
    pub age_ms: u64,
    pub frame: &'a [u8],
}

/// The lane is full. Contains the refused frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Full(pub Vec<u8>);

/// A violation of the protocol by the peer. The driver closes the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Fault {
    #[error("gap between frames of another cell: {number} follows {received}")]
    Gap { number: u64, received: u64 },
    #[error("acknowledged frame {received} was not sent; the last one sent is {sent}")]
    NeverSent { received: u64, sent: u64 },
    #[error("acknowledged frame {received} is below frame {acknowledged}, acknowledged earlier")]
    Forgotten { received: u64, acknowledged: u64 },
    #[error("packet of another cell without a connection")]
    NotConnected,
}

/// One end of a lane.
#[derive(Debug, Default)]
pub struct Lane {
    /// Frames without an acknowledgement, oldest first. The first one has the number
    /// `acknowledged + 1`.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
    /// The peer has acknowledged all frames up to this number.
    acknowledged: u64,
    /// The last frame sent on this connection, or acknowledged when it began. The peer has no later
    /// one. `acknowledged <= sent <= acknowledged + kept.len()`.
    sent: u64,
    /// The last frame delivered here.
    received: u64,
    /// The last frame acknowledged to the peer.
    reported: u64,
    unreported_bytes: usize,
    is_ack_asked: bool,
    is_connected: bool,
}

#[derive(Debug)]
struct Kept {
    frame: Vec<u8>,
    since_ms: u64,
}

impl Lane {
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues a frame that was encoded at `now_ms`.
    ///
    /// # Errors
    ///
    /// A limit is reached: push again after an acknowledgement.
    pub fn push(&mut self, frame: Vec<u8>, now_ms: u64) -> Result<(), Full> {
        debug_assert!(!frame.is_empty(), "a packet without a frame only acknowledges");
        let is_over = self.kept_bytes.saturating_add(frame.len()) > BYTES_MAX;
        if self.kept.len() >= FRAMES_MAX || is_over && !self.kept.is_empty() {
            return Err(Full(frame));
        }
        self.kept_bytes += frame.len();
        self.kept.push_back(Kept { frame, since_ms: now_ms });
        Ok(())
    }

    /// The next packet to send on this connection: a frame, or an acknowledgement if one is due.
    /// Each packet acknowledges.
    pub fn next_packet(&mut self, now_ms: u64) -> Option<Packet<'_>> {
        let next = (self.sent - self.acknowledged) as usize;
        let has_frame = next < self.kept.len();
        if !self.is_connected || !has_frame && !self.wants_ack() {
            return None;
        }
        self.note_reported();
        let received = self.received;
        let Some(Kept { frame, since_ms }) = self.kept.get(next) else {
            return Some(Packet { number: 0, received, age_ms: 0, frame: &[] });
        };
        self.sent += 1;
        let age_ms = now_ms.saturating_sub(*since_ms);
        Some(Packet { number: self.sent, received, age_ms, frame })
    }

    /// Takes a packet that arrived on this connection. Returns its frame unless it is a duplicate.
    ///
    /// # Errors
    ///
    /// The peer violates the protocol. The lane is unchanged.
    pub fn on_packet<'a>(&mut self, packet: Packet<'a>) -> Result<Option<&'a [u8]>, Fault> {
        let Packet { number, received, frame, .. } = packet;
        if !self.is_connected {
            return Err(Fault::NotConnected);
        }
        if number > self.received + 1 {
            return Err(Fault::Gap { number, received: self.received });
        }
        self.check_acknowledged(received, self.sent)?;
        self.acknowledge(received);
        if number <= self.received {
            return Ok(None);
        }
        self.received = number;
        self.unreported_bytes = self.unreported_bytes.saturating_add(frame.len());
        Ok(Some(frame))
    }

    /// An acknowledgement is due.
    pub const fn wants_ack(&self) -> bool {
        let unreported = self.received - self.reported;
        unreported >= ACK_FRAMES
            || self.unreported_bytes >= ACK_BYTES
            || self.is_ack_asked && unreported > 0
    }

    /// Makes an acknowledgement due if a frame has none. A timer has to call it, some milliseconds
    /// after a frame has arrived: a few large frames can fill the lane of the peer.
    pub const fn ask_ack(&mut self) {
        self.is_ack_asked = self.received > self.reported;
    }

    /// The last frame delivered. Each end sends it first on a new connection, after
    /// [`Lane::disconnect`], for [`Lane::reconnect`] of its peer.
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// The connection is closed. Its last packets may or may not have arrived.
    pub const fn disconnect(&mut self) {
        self.is_connected = false;
    }

    /// Begins a connection, the first one or a later one. Frames above `peer_received` are sent
    /// again.
    ///
    /// # Errors
    ///
    /// The number was never sent, or is below an earlier acknowledgement: the peer has lost its
    /// state. The lane stays disconnected.
    pub fn reconnect(&mut self, peer_received: u64) -> Result<(), Fault> {
        self.is_connected = false;
        self.check_acknowledged(peer_received, self.sent)?;
        self.acknowledge(peer_received);
        self.sent = peer_received;
        self.note_reported();
        self.is_connected = true;
        Ok(())
    }

    /// The number of frames without an acknowledgement, and their bytes.
    pub fn kept(&self) -> (usize, usize) {
        (self.kept.len(), self.kept_bytes)
    }

    fn check_acknowledged(&self, received: u64, sent: u64) -> Result<(), Fault> {
        if received > sent {
            return Err(Fault::NeverSent { received, sent });
        }
        let acknowledged = self.acknowledged;
        if received < acknowledged {
            Err(Fault::Forgotten { received, acknowledged })
        } else {
            Ok(())
        }
    }

    /// `received` has passed [`Lane::check_acknowledged`].
    fn acknowledge(&mut self, received: u64) {
        let over = self.kept.drain(..(received - self.acknowledged) as usize);
        self.kept_bytes -= over.map(|kept| kept.frame.len()).sum::<usize>();
        self.acknowledged = received;
    }

    const fn note_reported(&mut self) {
        self.reported = self.received;
        self.unreported_bytes = 0;
        self.is_ack_asked = false;
    }
}

const _: () = {
    // A peer whose lane is full of small frames gets an acknowledgement without the timer.
    assert!(ACK_FRAMES as usize * 2 <= FRAMES_MAX && ACK_BYTES * 2 <= BYTES_MAX);
};

#[cfg(test)]
mod tests {
    use super::*;

    fn connected() -> Lane {
        let mut lane = Lane::new();
        lane.reconnect(0).expect("nothing was sent");
        lane
    }

    /// A frame and the acknowledgement with it, as from a peer.
    fn packet(number: u64, received: u64) -> Packet<'static> {
        let frame: &[u8] = if number == 0 { &[] } else { &[7] };
        Packet { number, received, age_ms: 0, frame }
    }

    /// The numbers of all packets that the lane would send now.
    fn sent(lane: &mut Lane) -> Vec<u64> {
        std::iter::from_fn(|| lane.next_packet(0).map(|packet| packet.number)).collect()
    }

    fn filled(frames: usize) -> Lane {
        let mut lane = connected();
        (0..frames).for_each(|_| lane.push(vec![1], 0).expect("there is room"));
        lane
    }

    #[test]
    fn frames_that_were_not_acknowledged_are_sent_again() {
        let mut lane = filled(4);
        assert_eq!(sent(&mut lane), [1, 2, 3, 4]);
        assert_eq!(lane.on_packet(packet(0, 1)), Ok(None));
        lane.disconnect();
        assert_eq!(sent(&mut lane), [0_u64; 0], "there is no connection");
        lane.reconnect(2).expect("it was sent");
        assert_eq!(sent(&mut lane), [3, 4]);
        assert_eq!(lane.kept(), (2, 2));
    }

    #[test]
    fn a_frame_counts_once_and_in_order() {
        let mut lane = connected();
        assert_eq!(lane.on_packet(packet(1, 0)), Ok(Some(&[7][..])));
        assert_eq!(lane.on_packet(packet(1, 0)), Ok(None), "it comes twice");
        assert_eq!(lane.on_packet(packet(3, 0)), Err(Fault::Gap { number: 3, received: 1 }));
        assert_eq!(lane.on_packet(packet(2, 0)), Ok(Some(&[7][..])));
        assert_eq!(lane.received(), 2);
    }

    #[test]
    fn numbers_that_were_never_sent_or_are_over_are_faults() {
        let mut lane = filled(3);
        lane.next_packet(0).expect("a frame");
        let never = Err(Fault::NeverSent { received: 2, sent: 1 });
        assert_eq!(lane.on_packet(packet(1, 2)), never, "it waits here");
        assert_eq!(lane.received(), 0, "nothing of the packet counts");
        assert_eq!(lane.reconnect(2), never.map(|_| ()));
        assert_eq!(lane.on_packet(packet(1, 0)), Err(Fault::NotConnected), "it has no connection");
        lane.reconnect(1).expect("it was sent");
        let forgotten = Fault::Forgotten { received: 0, acknowledged: 1 };
        assert_eq!(lane.on_packet(packet(0, 0)), Err(forgotten));
        assert_eq!(lane.reconnect(0), Err(forgotten));
        lane.reconnect(1).expect("it was sent");
        assert_eq!(sent(&mut lane), [2, 3]);
        lane.reconnect(1).expect("they are lost");
        // The peer has said that it does not have them.
        let never = Fault::NeverSent { received: 3, sent: 1 };
        assert_eq!(lane.on_packet(packet(0, 3)), Err(never));
        assert_eq!(lane.reconnect(3), Err(never));
        lane.reconnect(1).expect("they are lost");
        assert_eq!(sent(&mut lane), [2, 3]);
        lane.reconnect(3).expect("they came");
        assert_eq!(lane.kept(), (0, 0));
    }

    #[test]
    fn an_acknowledgement_is_due_after_frames_bytes_or_time() {
        let mut lane = connected();
        for number in 1..ACK_FRAMES {
            lane.on_packet(packet(number, 0)).expect("it is the next");
        }
        assert_eq!(sent(&mut lane), [0_u64; 0]);
        lane.on_packet(packet(ACK_FRAMES, 0)).expect("it is the next");
        let due = Packet { number: 0, received: ACK_FRAMES, age_ms: 0, frame: &[] };
        assert_eq!(lane.next_packet(0), Some(due));
        assert_eq!(lane.next_packet(0), None);
        lane.ask_ack();
        assert_eq!(lane.next_packet(0), None, "there is nothing new");
        let large = Packet { frame: &[7; ACK_BYTES], ..packet(ACK_FRAMES + 1, 0) };
        lane.on_packet(large).expect("it is the next");
        assert_eq!(sent(&mut lane), [0]);
        lane.on_packet(packet(ACK_FRAMES + 2, 0)).expect("it is the next");
        assert_eq!(sent(&mut lane), [0_u64; 0]);
        lane.ask_ack();
        assert_eq!(sent(&mut lane), [0]);
        lane.on_packet(packet(ACK_FRAMES + 3, 0)).expect("it is the next");
        lane.push(vec![1], 0).expect("there is room");
        let carries = lane.next_packet(0).map(|packet| (packet.number, packet.received));
        assert_eq!(carries, Some((1, ACK_FRAMES + 3)));
        lane.ask_ack();
        assert_eq!(sent(&mut lane), [0_u64; 0], "a frame has acknowledged");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut lane = filled(FRAMES_MAX);
        assert_eq!(lane.push(vec![5], 0), Err(Full(vec![5])));
        assert_eq!(sent(&mut lane).len(), FRAMES_MAX);
        assert_eq!(lane.push(vec![5], 0), Err(Full(vec![5])), "sent is not acknowledged");
        lane.on_packet(packet(0, 1)).expect("it was sent");
        lane.push(vec![5], 0).expect("there is room again");
        let mut lane = connected();
        lane.push(vec![0; BYTES_MAX + 1], 0).expect("it is alone");
        assert_eq!(lane.push(vec![5], 0), Err(Full(vec![5])));
        let mut lane = filled(1);
        let longest = vec![0; BYTES_MAX - 1];
        assert_eq!(lane.push(vec![0; BYTES_MAX], 0), Err(Full(vec![0; BYTES_MAX])));
        lane.push(longest, 0).expect("there is room");
        assert_eq!(lane.kept(), (2, BYTES_MAX));
    }

    #[test]
    fn a_packet_states_how_long_its_frame_has_waited() {
        let mut lane = connected();
        lane.push(vec![1], 100).expect("there is room");
        assert_eq!(lane.next_packet(130).map(|packet| packet.age_ms), Some(30));
        lane.reconnect(0).expect("it is lost");
        assert_eq!(lane.next_packet(5_100).map(|packet| packet.age_ms), Some(5_000));
    }
}
