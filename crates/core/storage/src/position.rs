//! Where a record stands in a journal.

use std::fmt;

/// The place of a record in a journal: the number of its segment and its byte offset in that
/// segment.
///
/// Positions grow in the order in which records were appended, so a position is also the ticket of
/// its record: the record is written once `journal.written_upto()` is past it, and durable once
/// `journal.synced_upto()` is past it. A position stays valid until its segment is reclaimed; a
/// record that is still needed then is appended again and so gets a new position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(u64);

impl Position {
    /// The position of byte `offset` of segment `segment`.
    pub const fn new(segment: u32, offset: u32) -> Self {
        Self(((segment as u64) << 32) | offset as u64)
    }

    /// The number of the segment.
    pub const fn segment(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The offset in the segment's file, in bytes.
    pub const fn offset(self) -> u32 {
        self.0 as u32
    }

    /// The position as one number, for compact storage.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The inverse of [`Position::to_bits`].
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment {} offset {}", self.segment(), self.offset())
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.segment(), self.offset())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_segment_first() {
        let early = Position::new(1, u32::MAX);
        let late = Position::new(2, 0);
        assert!(early < late);
        assert_eq!(Position::from_bits(late.to_bits()), late);
        assert_eq!((early.segment(), early.offset()), (1, u32::MAX));
    }
}
