//! Bytes to be written to a connection.

use std::collections::VecDeque;

use codec::AckKind;

use crate::Message;

/// Payloads of at least this many bytes are sent from the shared message instead of being copied
/// into every subscriber's outbox. Below it the copy is cheaper than one more slice in a `writev`.
pub const SPLICE_BYTES_MIN: usize = 4096;

/// A buffer with so much in it does not grow: a vector that doubles takes much at once, and those
/// of a thousand subscribers that do not read would all double at the same message.
const CHUNK_BYTES: usize = 64 * 1024;

/// What is left of it for one packet more, which has few bytes beside a payload that is not
/// spliced.
const PACKET_BYTES: usize = 8 * 1024;

/// What waits to be written to one connection. Empty, it owns no memory.
///
/// Its length is bounded by the session: publishes stop entering above a limit (see
/// `LinkSettings::outbox_bytes_max`), acknowledgements are bounded by the receive maximum.
#[derive(Debug, Default)]
#[expect(clippy::box_collection, reason = "8 bytes instead of 32 in every connection")]
pub struct Outbox {
    /// What precedes `tail`, in order. None while no payload was spliced.
    spliced: Option<Box<VecDeque<Chunk>>>,
    tail: Vec<u8>,
    /// Bytes of the first chunk that are already written: a chunk is hardly longer than a packet.
    written: u32,
    /// PUBLISH packets that were appended since they were last counted.
    publishes: u32,
    /// Packets other than PUBLISH that were appended since they were last counted, by
    /// [`Control`]. What does not fit is not counted: acknowledgements of publishes are bounded by
    /// the receive maximum, which fits, and reading stops long before so many others wait.
    controls: Controls,
    len: usize,
}

/// Packets other than PUBLISH, 16 bits for each [`Control`]. Two words, because they are looked at
/// with every write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Controls([u64; 2]);

impl Controls {
    const BITS: usize = 16;
    const MASK: u64 = (1 << Self::BITS) - 1;

    #[inline(always)]
    const fn note(&mut self, control: Control) {
        let (word, shift) = (control as usize / 4, control as usize % 4 * Self::BITS);
        if self.0[word] >> shift & Self::MASK != Self::MASK {
            self.0[word] += 1 << shift;
        }
    }

    /// Some: they are PUBACKs, and nothing else.
    #[inline(always)]
    pub const fn only_pubacks(self) -> Option<u64> {
        let [first, second] = self.0;
        if first <= Self::MASK && second == 0 { Some(first) } else { None }
    }

    /// By the number of each [`Control`].
    pub fn counts(self) -> impl Iterator<Item = u64> {
        let of_word =
            |word: u64| (0..4).map(move |place| word >> (place * Self::BITS) & Self::MASK);
        self.0.into_iter().flat_map(of_word)
    }
}

/// A packet other than PUBLISH that a broker sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
    Suback,
    Unsuback,
    Pingresp,
    /// CONNACK, DISCONNECT and AUTH: few in the life of a connection.
    Other,
}

impl Control {
    pub const COUNT: usize = 8;

    /// By the first byte of the packet, whose upper half is its type.
    pub const fn of_first_byte(byte: u8) -> Self {
        match byte >> 4 {
            4 => Self::Puback,
            5 => Self::Pubrec,
            6 => Self::Pubrel,
            7 => Self::Pubcomp,
            9 => Self::Suback,
            11 => Self::Unsuback,
            13 => Self::Pingresp,
            _ => Self::Other,
        }
    }

    pub const fn of_ack(kind: AckKind) -> Self {
        match kind {
            AckKind::Puback => Self::Puback,
            AckKind::Pubrec => Self::Pubrec,
            AckKind::Pubrel => Self::Pubrel,
            AckKind::Pubcomp => Self::Pubcomp,
        }
    }
}

/// What is appended through `bytes` belongs to the outbox once it is [counted](End::count).
pub(crate) struct End<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    before: usize,
    len: &'a mut usize,
}

impl End<'_> {
    #[inline(always)]
    pub(crate) fn count(&mut self) {
        *self.len += self.bytes.len() - std::mem::replace(&mut self.before, self.bytes.len());
    }
}

#[derive(Debug)]
enum Chunk {
    Bytes(Vec<u8>),
    Payload(Message),
}

impl Chunk {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Payload(message) => message.payload(),
        }
    }

    fn heap_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.capacity(),
            Self::Payload(message) => message.heap_bytes(),
        }
    }
}

impl Outbox {
    /// Appends what `write` puts at the end of the buffer.
    #[inline]
    pub fn append<R>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let mut end = self.end();
        let result = write(end.bytes);
        end.count();
        result
    }

    /// The end of the buffer, to write behind.
    #[inline(always)]
    pub(crate) fn end(&mut self) -> End<'_> {
        if self.tail.len() > CHUNK_BYTES - PACKET_BYTES {
            self.begin_chunk();
        }
        End { before: self.tail.len(), bytes: &mut self.tail, len: &mut self.len }
    }

    /// A whole packet other than PUBLISH was appended.
    pub const fn note_control(&mut self, control: Control) {
        self.controls.note(control);
    }

    /// A whole PUBLISH was appended.
    #[inline(always)]
    pub(crate) const fn note_publish(&mut self) {
        self.publishes = self.publishes.wrapping_add(1);
    }

    /// How many were appended since the last call.
    pub(crate) const fn take_publishes(&mut self) -> u32 {
        std::mem::replace(&mut self.publishes, 0)
    }

    /// How many packets other than PUBLISH were appended since the last call, if any were.
    #[inline]
    pub fn take_controls(&mut self) -> Option<Controls> {
        let controls = std::mem::take(&mut self.controls);
        (controls != Controls::default()).then_some(controls)
    }

    #[cold]
    fn begin_chunk(&mut self) {
        let full = std::mem::replace(&mut self.tail, Vec::with_capacity(CHUNK_BYTES));
        self.spliced.get_or_insert_default().push_back(Chunk::Bytes(full));
    }

    /// Appends the payload of `message` by reference: worth it from [`SPLICE_BYTES_MIN`] on.
    pub fn splice_payload(&mut self, message: &Message) {
        let spliced = self.spliced.get_or_insert_default();
        if !self.tail.is_empty() {
            spliced.push_back(Chunk::Bytes(std::mem::take(&mut self.tail)));
        }
        spliced.push_back(Chunk::Payload(message.clone()));
        self.len += message.payload().len();
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The unwritten bytes in order, in as many slices as they lie in.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let spliced = self.spliced.iter().flat_map(|chunks| chunks.iter().map(Chunk::bytes));
        let mut skip = self.written as usize;
        spliced.chain(std::iter::once(self.tail.as_slice())).filter_map(move |slice| {
            let slice = &slice[std::mem::take(&mut skip)..];
            (!slice.is_empty()).then_some(slice)
        })
    }

    /// The unwritten bytes, if they lie in one slice. None: see [`Self::slices`].
    #[inline]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.spliced.is_none().then(|| &self.tail[self.written as usize..])
    }

    /// Forgets the first `count` bytes: they were written. Hands back an emptied buffer for reuse.
    pub fn advance(&mut self, count: usize) -> Option<Vec<u8>> {
        debug_assert!(count <= self.len, "wrote more than there was");
        self.len -= count;
        let mut written = self.written as usize + count;
        self.written = 0;
        while let Some(chunks) = &mut self.spliced {
            let Some(first) = chunks.front() else {
                self.spliced = None;
                break;
            };
            let first_len = first.bytes().len();
            if written < first_len {
                self.written = written as u32;
                return None;
            }
            written -= first_len;
            chunks.pop_front();
        }
        if self.len > 0 {
            self.written = written as u32;
            return None;
        }
        let mut buffer = std::mem::take(&mut self.tail);
        buffer.clear();
        (buffer.capacity() > 0).then_some(buffer)
    }

    /// Lends an empty buffer, so that the next packets need no allocation.
    pub fn lend(&mut self, buffer: Vec<u8>) {
        debug_assert!(buffer.is_empty(), "a lent buffer is empty");
        if self.tail.capacity() == 0 {
            self.tail = buffer;
        }
    }

    /// True if the outbox has no buffer to write into yet.
    pub const fn is_bare(&self) -> bool {
        self.tail.capacity() == 0
    }

    /// Bytes of memory this outbox keeps alive.
    pub fn heap_bytes(&self) -> usize {
        let spliced = self.spliced.iter().map(|chunks| {
            let bytes: usize = chunks.iter().map(Chunk::heap_bytes).sum();
            chunks.capacity() * size_of::<Chunk>() + bytes
        });
        self.tail.capacity() + spliced.sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use codec::QoS;

    use super::*;
    use crate::{MessageParts, NEVER};

    fn message(payload: &[u8]) -> Message {
        Message::new(&MessageParts {
            topic: "t",
            properties: &[],
            payload,
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: NEVER,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        })
    }

    fn content(outbox: &Outbox) -> Vec<u8> {
        outbox.slices().flatten().copied().collect()
    }

    #[test]
    fn controls_are_counted_apart_and_stop_at_the_most() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.take_controls(), None);
        for _ in 0..3 {
            outbox.note_control(Control::Puback);
        }
        let controls = outbox.take_controls().unwrap();
        assert_eq!((controls.only_pubacks(), controls.counts().sum::<u64>()), (Some(3), 3));
        let all = [4, 5, 6, 7, 9, 11, 13, 2].map(|kind| Control::of_first_byte(kind << 4));
        for (count, control) in all.into_iter().enumerate() {
            (0..=count).for_each(|_| outbox.note_control(control));
        }
        (0..70_000).for_each(|_| outbox.note_control(Control::Pubrec));
        let controls = outbox.take_controls().unwrap();
        assert_eq!(controls.only_pubacks(), None);
        assert!(controls.counts().eq([1, 65_535, 3, 4, 5, 6, 7, 8]));
        assert_eq!(outbox.take_controls(), None);
    }

    #[test]
    fn large_payloads_are_spliced_in_order_and_written_in_any_steps() {
        for step in [1, 7, 4096, 5000, 100_000] {
            let mut outbox = Outbox::default();
            let mut expected = Vec::new();
            for size in [3, 5000, 0, 4096, 10] {
                let payload = vec![size as u8; size];
                outbox.append(|out| out.extend_from_slice(b"head"));
                if size < SPLICE_BYTES_MIN {
                    outbox.append(|out| out.extend_from_slice(&payload));
                } else {
                    outbox.splice_payload(&message(&payload));
                }
                expected.extend_from_slice(b"head");
                expected.extend_from_slice(&payload);
            }
            assert_eq!(outbox.len(), expected.len());
            while !outbox.is_empty() {
                assert_eq!(content(&outbox), expected);
                let count = step.min(expected.len());
                outbox.advance(count);
                expected.drain(..count);
            }
            assert!(outbox.is_bare(), "an idle connection owns no buffer");
            assert_eq!(outbox.heap_bytes(), 0);
        }
    }

    #[test]
    fn what_grows_large_takes_no_more_than_it_has() {
        let mut outbox = Outbox::default();
        let mut expected = Vec::new();
        for number in 0..1_100_u32 {
            outbox.append(|out| out.extend(std::iter::repeat_n(number as u8, 1_000)));
            expected.extend(std::iter::repeat_n(number as u8, 1_000));
            let most = outbox.len() + outbox.len() / 5 + CHUNK_BYTES;
            assert!(outbox.heap_bytes() <= most, "{} for {}", outbox.heap_bytes(), outbox.len());
        }
        while !outbox.is_empty() {
            assert!(content(&outbox) == expected);
            let count = 99_999.min(expected.len());
            outbox.advance(count);
            expected.drain(..count);
        }
        assert_eq!(outbox.heap_bytes(), 0);
    }

    #[test]
    fn an_emptied_buffer_is_handed_back_for_reuse() {
        let mut outbox = Outbox::default();
        outbox.lend(Vec::with_capacity(100));
        outbox.append(|out| out.push(1));
        let buffer = outbox.advance(1).expect("the buffer comes back");
        assert!(buffer.is_empty() && buffer.capacity() == 100);
    }
}
