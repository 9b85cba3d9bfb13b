//! One relayed connection: what it may send, what it has lent, and what waits for its stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use net::Stream;

use crate::permits::Permit;
use crate::queue::LinkId;
use crate::relays::Held;
use crate::wire::{Arrival, CREDIT_BYTES_MAX, CREDIT_BYTES_MIN, FRAME_COST};

/// The state of a relay on this node. It is the same at both ends.
pub(crate) struct Relay {
    pub(crate) stream: Stream,
    pub(crate) id: LinkId,
    /// As this node writes it.
    pub(crate) number: u64,
    /// Cell and epoch.
    pub(crate) route: (u16, u64),
    /// Tells it from others that had its key.
    pub(crate) serial: u64,
    pub(crate) permit: Permit,
    pub(crate) held: Held,
    /// Front: until the home has answered.
    pub(crate) opening: Option<Box<Arrival>>,
    /// First bytes of the client, which are sent before those of its stream.
    pub(crate) unsent: VecDeque<u8>,
    /// Bytes from the link that the stream has not taken.
    output: VecDeque<u8>,
    /// What may be sent to the link.
    credit: u32,
    pub(crate) lent: Lent,
    pub(crate) is_readable: bool,
    /// Its end has been reported, and is read after what comes before it.
    pub(crate) is_ending: bool,
    /// Among those that have a turn.
    pub(crate) is_queued: bool,
    /// Something was sent since the last tick.
    pub(crate) has_sent: bool,
    /// Among those whose credit has grown.
    pub(crate) is_grown: bool,
    /// The stream takes no more. What it has brought is still sent.
    pub(crate) is_deaf: bool,
    /// The other end has closed. What it sent before is written, and nothing more is sent there.
    pub(crate) is_closing: bool,
    /// All is written, and the stream has its farewell.
    pub(crate) is_leaving: bool,
}

/// What this end has lent to the other one: `granted` bytes may come, `freed` have been written
/// and are not reported. With those that wait for the stream they are `window` bytes.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) granted: u32,
    pub(crate) window: u32,
    pub(crate) freed: u32,
}

impl Relay {
    pub(crate) fn new(
        stream: Stream,
        (id, number, serial): (LinkId, u64, u64),
        route: (u16, u64),
        permit: Permit,
    ) -> Self {
        Self {
            stream,
            id,
            number,
            route,
            serial,
            permit,
            held: Box::new(()),
            opening: None,
            unsent: VecDeque::new(),
            output: VecDeque::new(),
            credit: CREDIT_BYTES_MIN,
            lent: Lent { granted: CREDIT_BYTES_MIN, window: CREDIT_BYTES_MIN, freed: 0 },
            is_readable: true,
            is_ending: false,
            is_queued: false,
            has_sent: false,
            is_grown: false,
            is_deaf: false,
            is_closing: false,
            is_leaving: false,
        }
    }

    pub(crate) const fn credit(&self) -> u32 {
        self.credit
    }

    /// Bytes that one frame of data may have now.
    pub(crate) const fn room(&self) -> u32 {
        self.credit.saturating_sub(FRAME_COST)
    }

    /// Of the credit.
    pub(crate) const fn spend(&mut self, bytes: u32) {
        self.credit -= bytes;
        self.has_sent = true;
    }

    /// False: the peer gives more than it may.
    pub(crate) const fn earn(&mut self, bytes: u32) -> bool {
        let is_sound = self.credit + bytes <= CREDIT_BYTES_MAX;
        if is_sound {
            self.credit += bytes;
        }
        is_sound
    }

    /// What an idle sender gives back. 0: nothing.
    pub(crate) fn give_back(&mut self) -> u32 {
        let was_idle = !std::mem::replace(&mut self.has_sent, false);
        let spare = self.credit.saturating_sub(CREDIT_BYTES_MIN);
        let bytes = if was_idle { spare } else { 0 };
        self.credit -= bytes;
        bytes
    }

    /// Is all that came from the link with the kernel?
    pub(crate) fn is_written(&self) -> bool {
        self.output.is_empty() && !self.stream.wants_write()
    }

    /// Writes bytes from the link, or keeps them until the stream takes them. They are within what
    /// was granted.
    pub(crate) fn on_data(&mut self, data: &[u8]) {
        self.lent.granted -= data.len() as u32 + FRAME_COST;
        self.lent.freed += FRAME_COST;
        let mut taken = 0;
        if self.output.is_empty() && !self.is_deaf {
            match self.stream.write(&[IoSlice::new(data)]) {
                Ok(count) => taken = count,
                Err(_) => self.deafen(),
            }
        }
        self.lent.freed += taken as u32;
        if !self.is_deaf {
            self.output.extend(&data[taken..]);
        }
    }

    /// Goes on to write at a writable event.
    pub(crate) fn write(&mut self) {
        if !self.is_deaf && self.try_write().is_err() {
            self.deafen();
        }
    }

    fn try_write(&mut self) -> io::Result<()> {
        if !self.stream.flush()? {
            return Ok(());
        }
        while !self.output.is_empty() {
            let (one, other) = self.output.as_slices();
            let taken = self.stream.write(&[IoSlice::new(one), IoSlice::new(other)])?;
            if taken == 0 {
                return Ok(());
            }
            self.output.drain(..taken);
            self.lent.freed += taken as u32;
        }
        // An idle relay owns no buffer.
        self.output = VecDeque::new();
        Ok(())
    }

    /// Ends the sending side. False: the stream is lost.
    pub(crate) fn leave(&mut self) -> bool {
        self.is_leaving = true;
        self.stream.shutdown().is_ok()
    }

    /// A read has brought so many bytes of `room`.
    pub(crate) fn on_read(&mut self, count: usize, room: usize) {
        // The end makes no other event.
        let has_end = self.is_ending || self.is_deaf;
        self.is_readable = has_end || !self.stream.is_drained(count, room);
    }

    /// A write has failed. What the stream has brought before is sent, then it ends.
    fn deafen(&mut self) {
        self.is_deaf = true;
        self.is_readable = true;
        self.output = VecDeque::new();
    }

    /// Credit that is reported now. `lend` decides whether the window may grow by so much.
    pub(crate) fn refill(&mut self, lend: impl FnOnce(u32) -> bool) -> u32 {
        let Lent { granted, window, freed } = &mut self.lent;
        if *freed < *window / 2 || self.is_deaf {
            return 0;
        }
        // The sender has used most of what it had, and all of it was written.
        let is_flowing = *granted < *window / 4 && self.output.is_empty();
        let more = (*window).min(CREDIT_BYTES_MAX - *window);
        if is_flowing && more > 0 && lend(more) {
            *window += more;
            *freed += more;
        }
        *granted += *freed;
        std::mem::take(freed)
    }
}

impl Lent {
    /// What is lent beyond the least.
    pub(crate) const fn beyond(&self) -> u32 {
        self.window - CREDIT_BYTES_MIN
    }

    /// The peer gives back. None: more than it has.
    pub(crate) fn shrink(&mut self, bytes: u32) -> Option<u32> {
        if bytes > self.granted || bytes > self.beyond() {
            return None;
        }
        self.granted -= bytes;
        self.window -= bytes;
        // What it has used and does not get again.
        let rest = self.freed.min(self.beyond());
        self.freed -= rest;
        self.window -= rest;
        Some(bytes + rest)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use net::Read;

    use super::*;
    use crate::permits::{Counts, End};

    /// A relay, and the other end of its stream.
    fn relay() -> (Relay, Stream) {
        let [stream, far] = Stream::pair().expect("pair");
        let permit = Arc::new(Counts::new(1, 0)).permit(End::Front).expect("room");
        (Relay::new(stream, (1, 3, 1), (3, 7), permit), far)
    }

    fn read(far: &mut Stream, count: usize) {
        let mut left = vec![0; count];
        while !left.is_empty() {
            let Ok(Read::Bytes(read)) = far.read(&mut left) else { panic!("{} left", left.len()) };
            left.truncate(left.len() - read);
        }
    }

    /// Fills the stream, whose far end does not read. Returns what it took.
    fn fill(relay: &mut Relay) -> usize {
        let mut taken = 0;
        while relay.output.is_empty() {
            let all = (relay.lent.granted - FRAME_COST) as usize;
            relay.on_data(&vec![7; all]);
            taken += all;
            relay.refill(|_| true);
        }
        taken
    }

    /// At the front, beyond the socket: the relay among others, and its number. Tables have up to
    /// twice the places that are used, the one of numbers a seventh more.
    #[test]
    fn an_idle_relay_takes_less_than_a_kilobyte() {
        let (mut relay, mut far) = relay();
        let taken = fill(&mut relay);
        read(&mut far, taken - relay.output.len());
        relay.write();
        assert_eq!((relay.output.capacity(), relay.unsent.capacity()), (0, 0));
        assert!(relay.opening.is_none());
        let of_number = size_of::<(u64, usize)>() + 1;
        let bytes = 2 * size_of::<Relay>() + 2 * of_number * 8 / 7;
        assert!(bytes <= 1024, "{bytes} bytes");
        assert!(size_of::<Relay>() <= 256, "{} bytes", size_of::<Relay>());
    }

    /// Whatever happens, what may come and what has come are within the window.
    #[test]
    fn a_window_holds_what_is_lent() {
        let (mut relay, _far) = relay();
        let is_sound = |relay: &Relay| {
            let Lent { granted, window, freed } = relay.lent;
            granted + freed + relay.output.len() as u32 == window
        };
        fill(&mut relay);
        assert!(is_sound(&relay) && relay.lent.window > CREDIT_BYTES_MIN);
        let Lent { granted, window, .. } = relay.lent;
        assert_eq!(relay.lent.shrink(granted + 1), None);
        let beyond = relay.lent.beyond();
        let bytes = granted.min(beyond);
        let taken_back = relay.lent.shrink(bytes).expect("it has so much");
        assert_eq!(relay.lent.window, window - taken_back);
        assert!(is_sound(&relay) && relay.lent.window >= CREDIT_BYTES_MIN);
    }

    #[test]
    fn a_window_grows_while_data_flows_and_may_be_lent() {
        let (mut relay, mut far) = relay();
        let mut next = |relay: &mut Relay, count: u32, may_lend| {
            let count = (count - FRAME_COST) as usize;
            relay.on_data(&vec![7; count]);
            read(&mut far, count);
            relay.refill(|_| may_lend)
        };
        assert_eq!(next(&mut relay, 1983, true), 0, "less than half is not reported");
        assert_eq!(next(&mut relay, 65, true), 2048, "there was more to use");
        assert_eq!(next(&mut relay, 4096, false), 4096);
        assert_eq!(next(&mut relay, 4096, true), 8192);
        assert_eq!(relay.lent.window, 8192);
        for _ in 0..9 {
            let all = relay.lent.granted;
            next(&mut relay, all, true);
        }
        assert_eq!(relay.lent.window, CREDIT_BYTES_MAX);
    }

    #[test]
    fn an_idle_sender_gives_back_what_is_beyond_the_least() {
        let (mut relay, _far) = relay();
        assert!(relay.earn(10_000));
        relay.spend(1);
        assert_eq!(relay.give_back(), 0, "it has sent");
        assert_eq!(relay.give_back(), 9_999);
        assert_eq!((relay.give_back(), relay.credit()), (0, CREDIT_BYTES_MIN));
        assert!(!relay.earn(CREDIT_BYTES_MAX), "no relay has so much");
    }

    #[test]
    fn a_stream_that_fails_takes_nothing_and_is_read_to_its_end() {
        let (mut relay, mut far) = relay();
        far.write(&[IoSlice::new(b"last")]).expect("write");
        drop(far);
        relay.is_readable = false;
        relay.on_data(&[7; 3000]);
        assert!(relay.is_deaf && relay.is_readable);
        assert_eq!(relay.refill(|_| true), 0, "nothing was written");
    }
}
