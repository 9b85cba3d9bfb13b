//! The sixteen bytes at the front of a payload: when the message was due, whose it is, and its
//! number.
//!
//! | bytes | content |
//! |---|---|
//! | 0-1 | tag of the run, so that messages of an earlier run are told apart |
//! | 2-7 | due time, nanoseconds of the run's clock (three days fit) |
//! | 8-11 | stream: publisher and topic |
//! | 12-15 | sequence in the stream, from 0 |
//!
//! All big endian.

use crate::measure::ledger::StreamId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) tag: u16,
    pub(super) due_ns: u64,
    pub(super) stream: StreamId,
    pub(super) sequence: u32,
}

impl Stamp {
    #[inline]
    pub(super) fn to_bytes(self) -> [u8; STAMP_BYTES] {
        let first = u64::from(self.tag) << TIME_BITS | (self.due_ns & TIME_MASK);
        let second = u64::from(self.stream) << 32 | u64::from(self.sequence);
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..].copy_from_slice(&second.to_be_bytes());
        bytes
    }

    /// `None` for a payload that is too short.
    #[inline]
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP_BYTES] = payload.first_chunk()?;
        let word = u128::from_be_bytes(*bytes);
        let (first, second) = ((word >> 64) as u64, word as u64);
        Some(Self {
            tag: (first >> TIME_BITS) as u16,
            due_ns: first & TIME_MASK,
            stream: (second >> 32) as u32,
            sequence: second as u32,
        })
    }
}

pub(super) const STAMP_BYTES: usize = crate::model::STAMP_BYTES as usize;
/// The stream of every will: they are counted, not judged.
pub(super) const WILL_STREAM: StreamId = StreamId::MAX;
const TIME_BITS: u32 = 48;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_reads_back() {
        let stamp = Stamp { tag: 0xBEEF, due_ns: 123_456_789_012_345, stream: 7, sequence: 9 };
        assert_eq!(Stamp::read(&stamp.to_bytes()), Some(stamp));
        assert_eq!(Stamp::read(&[0; 15]), None);
    }
}
