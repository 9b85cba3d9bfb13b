//! Where a record of the journal begins, and how long it is.

use storage::{Ledger, Position};

/// Where a fact stands in the journal, and what it weighs there. Default: nowhere.
///
/// Every session has several: the position lies here in two halves, so that it needs no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    segment: u32,
    offset: u32,
    /// 0: there is no such fact.
    pub(crate) bytes: u32,
}

impl RecordLocation {
    pub(crate) const NOWHERE: Self = Self { segment: 0, offset: 0, bytes: 0 };

    pub(crate) const fn new(position: Position, bytes: u32) -> Self {
        Self { segment: position.segment(), offset: position.offset(), bytes }
    }

    pub(crate) const fn position(self) -> Position {
        Position::new(self.segment, self.offset)
    }

    /// Was the segment that it stands in given back?
    pub(crate) const fn is_before(self, oldest: u32) -> bool {
        self.is_some() && self.segment < oldest
    }

    pub(crate) const fn is_some(self) -> bool {
        self.bytes > 0
    }

    pub(crate) fn is_at(self, position: Position) -> bool {
        self.bytes > 0 && self.position() == position
    }
}

/// A list's weight in the journal, in parts for its entries.
#[derive(Debug)]
pub(crate) struct Shares {
    place: RecordLocation,
    rest: u32,
    each: u32,
}

impl Shares {
    pub(crate) fn new(place: RecordLocation, count: usize) -> Self {
        let each = place.bytes / (count.max(1) as u32);
        let first = place.bytes - each * (count.saturating_sub(1) as u32);
        Self { place, rest: first, each }
    }

    /// The next entry's share; the first one has what does not divide.
    pub(crate) fn next(&mut self) -> RecordLocation {
        let bytes = std::mem::replace(&mut self.rest, self.each);
        RecordLocation::new(self.place.position(), bytes)
    }
}

/// The fact at this place is needed no more.
pub(crate) fn release(ledger: &mut Ledger, place: Option<RecordLocation>) {
    if let Some(place) = place.filter(|place| place.is_some()) {
        ledger.release(place.position(), u64::from(place.bytes));
    }
}
