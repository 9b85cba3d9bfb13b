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

#[cfg(test)]
mod tests {
    use broker::cells::lane::FRAMES_MAX;

    use super::*;

    const ROUTE: Route = Route { from_cell: 0, to_cell: 1, from_epoch: 1, to_epoch: 1, lane: 0 };

    /// Two ends, and what is under way to each.
    #[derive(Default)]
    struct Pair {
        ends: [Track; 2],
        under_way: [VecDeque<Envelope<'static>>; 2],
        sent: [u32; 2],
        received: [u32; 2],
    }

    impl Pair {
        fn push(&mut self, end: usize) {
            self.sent[end] += 1;
            self.ends[end].push(self.sent[end].to_le_bytes().to_vec(), 0);
        }

        fn pump(&mut self, end: usize) {
            self.ends[end].pump(Way::Near(&mut self.under_way[1 - end]), ROUTE, 0);
        }

        /// A packet arrives. False: there is none.
        fn carry(&mut self, end: usize) -> bool {
            let Some(envelope) = self.under_way[end].pop_front() else { return false };
            let track = &mut self.ends[end];
            if let Some(hello) = envelope.lane_hello().expect("sound") {
                track.on_hello(hello, envelope.received).expect("they agree");
            } else if track.on_packet(envelope.packet()).expect("they agree") {
                self.received[end] += 1;
                assert_eq!(*envelope.frame, self.received[end].to_le_bytes(), "in order");
                track.ask_ack();
            }
            true
        }

        /// The connection breaks.
        fn cut(&mut self) {
            self.ends.iter_mut().for_each(Track::end);
            self.under_way.iter_mut().for_each(VecDeque::clear);
        }

        fn settle(&mut self) {
            loop {
                (0..2).for_each(|end| self.pump(end));
                if ![0, 1].map(|end| self.carry(end)).contains(&true) {
                    return;
                }
            }
        }
    }

    /// Connections break, each end begins when it likes, and begins again on the same connection.
    #[test]
    fn frames_arrive_once_and_in_order_whenever_the_ends_begin() {
        let mut random = 1_u64;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        for _ in 0..2000 {
            let mut pair = Pair::default();
            for _ in 0..below(200) {
                let end = below(2) as usize;
                match below(40) {
                    0 => pair.cut(),
                    1 => pair.ends[end].end(),
                    2..=4 => pair.ends[end].begin(),
                    5..=14 => pair.push(end),
                    15..=24 => pair.pump(end),
                    _ => drop(pair.carry(end)),
                }
            }
            pair.ends.iter_mut().filter(|end| end.state == State::Ended).for_each(Track::begin);
            pair.settle();
            assert_eq!([pair.received[1], pair.received[0]], pair.sent);
            assert!(pair.ends.iter().all(|end| end.is_connected() && end.kept() == (0, 0)));
        }
    }

    #[test]
    fn what_is_older_than_an_attempt_does_not_reach_the_lane() {
        let mut pair = Pair::default();
        pair.ends.iter_mut().for_each(Track::begin);
        pair.settle();
        pair.push(0);
        pair.pump(0);
        pair.ends[1].begin();
        assert!(pair.carry(1));
        assert_eq!(pair.received, [0, 0]);
        pair.settle();
        assert_eq!(pair.received, [0, 1], "it is sent again");
    }

    #[test]
    fn frames_wait_for_room_in_a_full_lane() {
        let mut pair = Pair::default();
        (0..FRAMES_MAX + 5).for_each(|_| pair.push(0));
        assert_eq!((pair.ends[0].kept().0, pair.ends[0].overflow_frames()), (FRAMES_MAX, 5));
        pair.ends.iter_mut().for_each(Track::begin);
        pair.settle();
        assert_eq!(pair.received[1] as usize, FRAMES_MAX + 5);
        assert_eq!((pair.ends[0].kept().0, pair.ends[0].overflow_frames()), (0, 0));
    }
}
