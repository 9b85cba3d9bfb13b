//! Packets on a connection.

use std::borrow::Cow;

use super::{FRAME_BYTES_MAX, VERSION, VERSION_MIN, WireError, decode, decode_owned};
use crate::cells::frame::Frame;
use crate::cells::lane::Packet;
use crate::words::homes::Place;
use crate::words::wire::{Reader, Unreadable, put_number};

/// A packet with its route:
///
/// ```text
/// length u32   of what follows, little-endian
/// version u8, lane u8
/// from_cell, to_cell, from_epoch, to_epoch, number, received, age_ms
/// frame        to the end; if the number is 0: none, or a LaneHello
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope<'a> {
    pub version: u8,
    pub route: Route,
    /// As in [`Packet`].
    pub number: u64,
    pub received: u64,
    pub age_ms: u64,
    pub frame: Cow<'a, [u8]>,
}

/// Begins a lane on a connection: a packet with number 0 whose `received` is for
/// [`Lane::reconnect`](crate::cells::lane::Lane::reconnect) of the peer.
///
/// ```text
/// attempt      from 1
/// seen         0 if there was none
/// ```
///
/// Each end numbers its attempts to begin the lane on this connection. It drops all other packets
/// until a hello has `seen` its present attempt: those are of an earlier attempt, or of an earlier
/// owner. A hello with a new `attempt` ends what the lane was before, and is answered by one that
/// has seen it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneHello {
    /// Of the sender.
    pub attempt: u64,
    /// The latest attempt of the peer.
    pub seen: u64,
}

/// The cells and epochs that a packet is from and for, and its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    pub from_cell: u16,
    pub to_cell: u16,
    pub from_epoch: u64,
    pub to_epoch: u64,
    pub lane: u8,
}

/// Splits the bytes of a connection into packets. After an error the connection has to be closed.
#[derive(Debug, Default)]
pub struct Envelopes {
    /// The first bytes of an incomplete packet, at most as many as a head can have.
    head: Vec<u8>,
    rest: Option<Rest>,
}

/// An incomplete packet whose head is complete.
#[derive(Debug)]
struct Rest {
    envelope: Envelope<'static>,
    /// The length of the complete frame.
    frame_bytes: usize,
}

impl<'a> Envelope<'a> {
    pub fn new(version: u8, route: Route, packet: Packet<'a>) -> Self {
        let Packet { number, received, age_ms, frame } = packet;
        Self { version, route, number, received, age_ms, frame: Cow::Borrowed(frame) }
    }

    /// A packet that begins a lane. All frames up to `received` have arrived.
    pub fn of_hello(version: u8, route: Route, hello: LaneHello, received: u64) -> Self {
        let mut frame = Vec::with_capacity(HELLO_BYTES_MAX);
        put_number(&mut frame, hello.attempt);
        put_number(&mut frame, hello.seen);
        Self { version, route, number: 0, received, age_ms: 0, frame: Cow::Owned(frame) }
    }

    /// What the packet begins a lane with. None: it does not.
    ///
    /// # Errors
    ///
    /// The bytes are not a valid hello.
    pub fn lane_hello(&self) -> Result<Option<LaneHello>, WireError> {
        if self.number != 0 || self.frame.is_empty() {
            return Ok(None);
        }
        let mut reader = Reader(&self.frame);
        let hello = LaneHello::read(&mut reader);
        let at = self.frame.len() - reader.left();
        hello.map(Some).map_err(|Unreadable(what)| WireError { what, at })
    }

    pub fn packet(&self) -> Packet<'_> {
        let Self { number, received, age_ms, .. } = *self;
        Packet { number, received, age_ms, frame: &self.frame }
    }

    /// Decodes the frame, which is of the cell at `place`.
    ///
    /// # Errors
    ///
    /// As [`decode`].
    pub fn into_frame(self, place: Place, now_ms: u64) -> Result<Frame, WireError> {
        let encoded_at_ms = now_ms.saturating_sub(self.age_ms);
        match self.frame {
            Cow::Borrowed(frame) => decode(frame, place, encoded_at_ms),
            Cow::Owned(frame) => decode_owned(frame, place, encoded_at_ms),
        }
    }

    pub fn encode(&self, bytes: &mut Vec<u8>) {
        self.encode_head(bytes);
        bytes.extend_from_slice(&self.frame);
    }

    /// Appends all but the frame, which has to follow.
    pub fn encode_head(&self, bytes: &mut Vec<u8>) {
        debug_assert!(self.frame.len() <= FRAME_BYTES_MAX, "{} bytes", self.frame.len());
        let begin = bytes.len();
        bytes.extend_from_slice(&[0; LENGTH_BYTES]);
        let Route { from_cell, to_cell, from_epoch, to_epoch, lane } = self.route;
        bytes.extend_from_slice(&[self.version, lane]);
        put_number(bytes, from_cell.into());
        put_number(bytes, to_cell.into());
        for number in [from_epoch, to_epoch, self.number, self.received, self.age_ms] {
            put_number(bytes, number);
        }
        let length = bytes.len() - begin - LENGTH_BYTES + self.frame.len();
        bytes[begin..][..LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    }

    /// `bytes`: the first ones of a packet of this `length`, at least a head. The envelope's frame
    /// is the part of it that is in `bytes`.
    fn decode(bytes: &'a [u8], length: usize) -> Result<Self, WireError> {
        let mut reader = Reader(bytes);
        let envelope = Self::read(&mut reader).and_then(|envelope| {
            let frame_bytes = length - (bytes.len() - envelope.frame.len());
            if envelope.number != 0 && frame_bytes == 0 {
                return Err(Unreadable("packet has a number and no frame"));
            }
            if envelope.number == 0 && frame_bytes > HELLO_BYTES_MAX {
                return Err(Unreadable("packet has a frame and no number"));
            }
            if frame_bytes > FRAME_BYTES_MAX { Err(TOO_LONG) } else { Ok(envelope) }
        });
        let at = LENGTH_BYTES + bytes.len() - reader.left();
        envelope.map_err(|Unreadable(what)| WireError { what, at })
    }

    fn read(reader: &mut Reader<'a>) -> Result<Self, Unreadable> {
        let version = reader.byte()?;
        if !(VERSION_MIN..=VERSION).contains(&version) {
            return Err(Unreadable("unsupported version: upgrade the older node"));
        }
        let lane = reader.byte()?;
        let (from_cell, to_cell) = (reader.number_u16()?, reader.number_u16()?);
        let (from_epoch, to_epoch) = (reader.number()?, reader.number()?);
        let (number, received, age_ms) = (reader.number()?, reader.number()?, reader.number()?);
        let route = Route { from_cell, to_cell, from_epoch, to_epoch, lane };
        let frame = Cow::Borrowed(reader.0);
        Ok(Self { version, route, number, received, age_ms, frame })
    }

    fn with_frame(self, frame: Vec<u8>) -> Envelope<'static> {
        let Self { version, route, number, received, age_ms, .. } = self;
        Envelope { version, route, number, received, age_ms, frame: Cow::Owned(frame) }
    }
}

impl LaneHello {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Unreadable> {
        let (attempt, seen) = (reader.number()?, reader.number()?);
        match (attempt, reader.left()) {
            (0, _) => Err(Unreadable("attempt of a hello is 0")),
            (_, 0) => Ok(Self { attempt, seen }),
            _ => Err(Unreadable("there are bytes behind the end")),
        }
    }
}

impl Envelopes {
    /// Takes the next packet off the front of `input`. None: all of `input` is taken and the packet
    /// is incomplete. The frame of a packet that arrived in pieces is owned, and fills its memory.
    ///
    /// # Errors
    ///
    /// The head of the packet is invalid.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Envelope<'a>>, WireError> {
        if self.rest.is_none() {
            if self.head.is_empty()
                && let Some(length) = length_of(input)?
                && let Some((packet, rest)) = input[LENGTH_BYTES..].split_at_checked(length)
            {
                *input = rest;
                return Envelope::decode(packet, length).map(Some);
            }
            self.rest = self.gather_head(input)?;
        }
        Ok(self.gather_frame(input))
    }

    /// Bytes of the incomplete packet.
    pub fn gathered_bytes(&self) -> usize {
        let frame = self.rest.as_ref().map_or(0, |rest| rest.envelope.frame.len());
        self.head.len() + frame
    }

    fn gather_head(&mut self, input: &mut &[u8]) -> Result<Option<Rest>, WireError> {
        self.take_up_to(LENGTH_BYTES, input);
        let Some(length) = length_of(&self.head)? else { return Ok(None) };
        let wanted = LENGTH_BYTES + length.min(HEAD_BYTES_MAX);
        self.take_up_to(wanted, input);
        if self.head.len() < wanted {
            return Ok(None);
        }
        let head = std::mem::take(&mut self.head);
        let envelope = Envelope::decode(&head[LENGTH_BYTES..], length)?;
        // A head is mostly shorter: the rest is the beginning of the frame.
        let begun = envelope.frame.len();
        let frame_bytes = length - (wanted - LENGTH_BYTES - begun);
        let mut frame = Vec::new();
        extend(&mut frame, &envelope.frame, frame_bytes);
        Ok(Some(Rest { envelope: envelope.with_frame(frame), frame_bytes }))
    }

    fn take_up_to(&mut self, bytes: usize, input: &mut &[u8]) {
        let count = bytes.saturating_sub(self.head.len()).min(input.len());
        let (taken, left) = input.split_at(count);
        self.head.extend_from_slice(taken);
        *input = left;
    }

    fn gather_frame(&mut self, input: &mut &[u8]) -> Option<Envelope<'static>> {
        let Rest { envelope, frame_bytes } = self.rest.as_mut()?;
        let frame = envelope.frame.to_mut();
        let count = (*frame_bytes - frame.len()).min(input.len());
        let (taken, left) = input.split_at(count);
        extend(frame, taken, *frame_bytes);
        *input = left;
        if frame.len() < *frame_bytes {
            return None;
        }
        self.rest.take().map(|rest| rest.envelope)
    }
}

/// The longest head, without the length before it.
pub const HEAD_BYTES_MAX: usize = 2 + 2 * 3 + 5 * 10;

const LENGTH_BYTES: usize = 4;

const HELLO_BYTES_MAX: usize = 2 * 10;

const TOO_LONG: Unreadable = Unreadable("frame is longer than 257 MiB");

/// Memory that is allocated for a frame before its bytes have arrived.
const AHEAD_BYTES: usize = 64 * 1024;

/// The length of the packet that begins here. None: it is incomplete.
fn length_of(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > HEAD_BYTES_MAX + FRAME_BYTES_MAX {
        return Err(WireError { what: TOO_LONG.0, at: LENGTH_BYTES });
    }
    Ok(Some(length))
}

/// The capacity grows to at most twice the bytes that have arrived, so announcing a length
/// allocates nothing. It ends at the announced length, so a large message wastes no memory.
fn extend(frame: &mut Vec<u8>, bytes: &[u8], announced: usize) {
    let needed = frame.len() + bytes.len();
    if needed > frame.capacity() {
        let capacity = announced.min(AHEAD_BYTES.max(2 * needed));
        frame.reserve_exact(capacity - frame.len());
    }
    frame.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route =
        Route { from_cell: 1, to_cell: 300, from_epoch: 7, to_epoch: u64::MAX, lane: 3 };

    fn packet(number: u64, frame: &[u8]) -> Packet<'_> {
        Packet { number, received: 128, age_ms: 5, frame }
    }

    fn encoded(packet: Packet<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        Envelope::new(VERSION, ROUTE, packet).encode(&mut bytes);
        bytes
    }

    fn refused(bytes: &[u8]) -> (&'static str, usize) {
        let whole = Envelopes::default().next(&mut &*bytes).expect_err("it is no packet");
        let mut pieces = Envelopes::default();
        let mut found = bytes.chunks(1).map(|mut piece| pieces.next(&mut piece).map(|_| ()));
        let piece = found.find(Result::is_err).expect("it is none in pieces");
        assert_eq!(piece, Err(whole));
        (whole.what, whole.at)
    }

    /// Another version reads and writes the same.
    #[test]
    fn a_packet_has_its_bytes() {
        let head = [1, 3, 1, 0xac, 2, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        let with_frame = [&[22, 0, 0, 0][..], &head, &[9, 0x80, 1, 5, 11, 0]].concat();
        assert_eq!(encoded(packet(9, &[11, 0])), with_frame);
        let without = [&[20, 0, 0, 0][..], &head, &[0, 0x80, 1, 5]].concat();
        assert_eq!(encoded(packet(0, &[])), without);
        let hello = LaneHello { attempt: 300, seen: 2 };
        let mut bytes = Vec::new();
        Envelope::of_hello(VERSION, ROUTE, hello, 128).encode(&mut bytes);
        let of_hello = [&[23, 0, 0, 0][..], &head, &[0, 0x80, 1, 0, 0xac, 2, 2]].concat();
        assert_eq!(bytes, of_hello);
    }

    #[test]
    fn a_hello_comes_back_and_nothing_else_is_one() {
        let of = |packet| {
            let bytes = encoded(packet);
            let found = Envelopes::default().next(&mut &*bytes).expect("it is a packet");
            found.expect("it is complete").lane_hello().map_err(|error| (error.what, error.at))
        };
        let most = [&[0xff; 9][..], &[1], &[0xff; 9], &[1]].concat();
        let hello = |attempt, seen| Ok(Some(LaneHello { attempt, seen }));
        assert_eq!(of(packet(0, &most)), hello(u64::MAX, u64::MAX));
        assert_eq!(of(packet(0, &[1, 0])), hello(1, 0));
        assert_eq!(of(packet(0, &[])), Ok(None), "it acknowledges");
        assert_eq!(of(packet(1, &[1, 0])), Ok(None), "it is a frame");
        assert_eq!(of(packet(0, &[0, 0])), Err(("attempt of a hello is 0", 2)));
        assert_eq!(of(packet(0, &[1])), Err(("it ends early", 1)));
        assert_eq!(of(packet(0, &[0x81, 0])), Err(("a number is padded", 2)));
        assert_eq!(of(packet(0, &[1, 0, 0])), Err(("there are bytes behind the end", 2)));
    }

    #[test]
    fn packets_come_back_however_they_are_cut() {
        let large = vec![7; 3 * AHEAD_BYTES];
        let sent = [packet(1, &[8, 1]), packet(0, &[]), packet(2, &large), packet(3, &[8; 90])];
        let bytes = sent.map(encoded).concat();
        for piece in [1, 2, 3, 7, 40, 61, 62, 63, 1000, bytes.len() / 2, bytes.len()] {
            let mut envelopes = Envelopes::default();
            let mut left = sent.iter();
            for mut piece in bytes.chunks(piece) {
                while let Some(envelope) = envelopes.next(&mut piece).expect("they are sound") {
                    assert_eq!((envelope.version, envelope.route), (VERSION, ROUTE));
                    assert_eq!(Some(&envelope.packet()), left.next());
                    if let Cow::Owned(frame) = &envelope.frame {
                        assert_eq!(frame.capacity(), frame.len(), "it fills its memory");
                    }
                }
                assert!(piece.is_empty());
            }
            assert_eq!((left.next(), envelopes.gathered_bytes()), (None, 0));
        }
    }

    #[test]
    fn what_is_no_packet_is_refused() {
        let sound = encoded(packet(9, &[11, 0]));
        let with = |at: usize, byte| {
            let mut bytes = sound.clone();
            bytes[at] = byte;
            bytes
        };
        let version = "unsupported version: upgrade the older node";
        assert_eq!(refused(&with(4, VERSION_MIN - 1)), (version, 5));
        assert_eq!(refused(&with(4, VERSION + 1)), (version, 5));
        assert_eq!(refused(&with(0, 20)).0, "packet has a number and no frame");
        let of_none = encoded(packet(0, &[1; HELLO_BYTES_MAX + 1]));
        assert_eq!(refused(&of_none).0, "packet has a frame and no number");
        for length in 0..20 {
            assert_eq!(refused(&with(0, length)), ("it ends early", 4 + usize::from(length)));
        }
        assert_eq!(refused(&with(8, 0x82)).0, "a number exceeds 16 bits");
    }

    #[test]
    fn a_length_above_the_limit_is_refused_before_memory_is_taken() {
        let too_long = (HEAD_BYTES_MAX + FRAME_BYTES_MAX + 1) as u32;
        assert_eq!(refused(&too_long.to_le_bytes()), (TOO_LONG.0, 4));
        assert_eq!(refused(&[0xff; 4]), (TOO_LONG.0, 4));
        // A head is short, so its frame would be too long as well.
        let mut bytes = encoded(packet(1, &[7; 100]));
        bytes[..4].copy_from_slice(&(too_long - 1).to_le_bytes());
        assert_eq!(refused(&bytes).0, TOO_LONG.0);
    }

    #[test]
    fn an_announced_frame_takes_memory_as_it_comes() {
        let mut bytes = encoded(packet(1, &[7; 100]));
        let frame_bytes = FRAME_BYTES_MAX as u32;
        let head = bytes.len() as u32 - 4 - 100;
        bytes[..4].copy_from_slice(&(head + frame_bytes).to_le_bytes());
        let mut envelopes = Envelopes::default();
        assert_eq!(envelopes.next(&mut &*bytes), Ok(None));
        let capacity = |envelopes: &Envelopes| match &envelopes.rest {
            Some(Rest { envelope: Envelope { frame: Cow::Owned(frame), .. }, .. }) => {
                frame.capacity()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(capacity(&envelopes), AHEAD_BYTES);
        assert_eq!(envelopes.gathered_bytes(), 100);
        for _ in 0..10 {
            assert_eq!(envelopes.next(&mut &[7; 50_000][..]), Ok(None));
            let most = 2 * envelopes.gathered_bytes();
            assert!(capacity(&envelopes) <= most.max(AHEAD_BYTES), "{}", capacity(&envelopes));
        }
    }
}
