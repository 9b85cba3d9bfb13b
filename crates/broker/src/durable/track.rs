//! How far one queue, of a session or of a shared group, has been worked off.

use std::collections::VecDeque;

use storage::Position;

use crate::journal::Stage;

/// Where a fact stands in the log, and what it weighs there. Default: nowhere.
///
/// Every session has several: the position lies here in two halves, so that it needs no padding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    segment: u32,
    offset: u32,
    /// 0: there is no such fact.
    pub(crate) bytes: u32,
}

impl Place {
    pub(crate) const NOWHERE: Self = Self { segment: 0, offset: 0, bytes: 0 };

    pub(crate) const fn new(position: Position, bytes: u32) -> Self {
        Self { segment: position.segment(), offset: position.offset(), bytes }
    }

    pub(crate) const fn position(self) -> Position {
        Position::new(self.segment, self.offset)
    }

    pub(crate) const fn is_some(self) -> bool {
        self.bytes > 0
    }

    pub(crate) fn is_at(self, position: Position) -> bool {
        self.bytes > 0 && self.position() == position
    }
}

/// A message that was handed out, or that is done before its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) serial: u64,
    /// Its share of the in-flight fact that tells its packet id.
    pub(crate) place: Place,
    pub(crate) packet_id: u16,
    pub(crate) stage: Stage,
    pub(crate) is_done: bool,
}

/// Growing serials: those in flight, and done ones that cannot be told by a floor yet.
#[derive(Debug, Default)]
struct Outs(VecDeque<Out>);

/// The cursor of a queue, and what was handed out behind it.
///
/// Bounded by the in-flight window, and by the queue limit for what is done before its turn.
#[derive(Debug, Default)]
pub(crate) struct Track {
    /// Everything up to this serial was handed out or passed over.
    cursor: u64,
    /// Absent while there has been no traffic for a while.
    out: Option<Box<Outs>>,
    /// The share of the latest progress fact that tells of this queue.
    pub(crate) place: Place,
}

impl Track {
    pub(crate) fn starting_at(cursor: u64) -> Self {
        Self { cursor, ..Self::default() }
    }

    pub(crate) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Everything up to this serial is done.
    pub(crate) fn floor(&self) -> u64 {
        self.front().map_or(self.cursor, |out| self.cursor.min(out.serial - 1))
    }

    /// What is done above the floor, growing.
    pub(crate) fn above(&self) -> impl Iterator<Item = u64> {
        self.iter().filter(|out| out.is_done).map(|out| out.serial)
    }

    pub(crate) fn contains(&self, serial: u64) -> bool {
        self.place_of(serial).is_ok()
    }

    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut Out> {
        let place = self.place_of(serial).ok()?;
        self.outs().get_mut(place)
    }

    /// What is in flight, in order.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Out> {
        self.iter().filter(|out| !out.is_done)
    }

    /// The message is on its way.
    pub(crate) fn hand_out(&mut self, serial: u64, packet_id: u16) {
        self.insert(serial, packet_id, false);
        self.cursor = self.cursor.max(serial);
    }

    /// Puts a message back in flight that was so when the broker ended.
    pub(crate) fn restore(&mut self, out: Out) {
        if let Err(place) = self.place_of(out.serial) {
            self.outs().insert(place, out);
        }
    }

    /// Nothing is owed of the message, and its turn has come.
    pub(crate) fn pass(&mut self, serial: u64) {
        if self.front().is_some() {
            self.insert(serial, 0, true);
        }
        self.cursor = self.cursor.max(serial);
        self.trim();
    }

    /// Nothing is owed of the message, but others before it wait for their turn.
    pub(crate) fn skip(&mut self, serial: u64) {
        self.insert(serial, 0, true);
    }

    /// With nothing waiting, the cursor may stand anywhere behind what was handed out.
    pub(crate) fn advance(&mut self, serial: u64) {
        self.cursor = self.cursor.max(serial);
        self.trim();
    }

    /// The message is done. Returns what was known of it, if it was in flight.
    pub(crate) fn finish(&mut self, serial: u64) -> Option<Out> {
        let place = self.place_of(serial).ok()?;
        let out = self.outs().get_mut(place).filter(|out| !out.is_done)?;
        out.is_done = true;
        let finished = *out;
        out.place = Place::default();
        self.trim();
        Some(finished)
    }

    fn front(&self) -> Option<&Out> {
        self.out.as_ref()?.0.front()
    }

    fn iter(&self) -> impl Iterator<Item = &Out> {
        self.out.iter().flat_map(|outs| &outs.0)
    }

    fn outs(&mut self) -> &mut VecDeque<Out> {
        &mut self.out.get_or_insert_default().0
    }

    fn place_of(&self, serial: u64) -> Result<usize, usize> {
        let Some(Outs(outs)) = self.out.as_deref() else { return Err(0) };
        match outs.back() {
            Some(last) if last.serial < serial => Err(outs.len()),
            _ => outs.binary_search_by_key(&serial, |out| out.serial),
        }
    }

    fn insert(&mut self, serial: u64, packet_id: u16, is_done: bool) {
        let stage = Stage::Published;
        let out = Out { serial, place: Place::default(), packet_id, stage, is_done };
        match self.place_of(serial) {
            Ok(place) => self.outs()[place] = out,
            Err(place) => self.outs().insert(place, out),
        }
    }

    fn trim(&mut self) {
        let Some(Outs(outs)) = self.out.as_deref_mut() else { return };
        while outs.front().is_some_and(|out| out.is_done && out.serial <= self.cursor) {
            outs.pop_front();
        }
        if outs.is_empty() && outs.capacity() > IDLE_CAPACITY_MAX {
            self.out = None;
        }
    }

    /// Gives back memory that only traffic needs.
    pub(crate) fn shrink(&mut self) {
        if self.front().is_none() {
            self.out = None;
        }
    }
}

/// Above this capacity memory is given back when nothing is out.
const IDLE_CAPACITY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_stands_below_the_first_that_is_out() {
        let mut track = Track::starting_at(10);
        assert_eq!(track.floor(), 10);
        track.hand_out(12, 1);
        track.hand_out(15, 2);
        track.pass(16);
        assert_eq!((track.floor(), track.cursor()), (11, 16));
        assert!(track.finish(15).is_some_and(|out| out.packet_id == 2));
        assert!(track.finish(15).is_none());
        assert_eq!(track.above().collect::<Vec<_>>(), [15, 16]);
        assert!(track.finish(12).is_some());
        assert_eq!((track.floor(), track.above().count()), (16, 0));
    }

    #[test]
    fn what_is_skipped_before_its_turn_does_not_move_the_cursor() {
        let mut track = Track::starting_at(10);
        track.skip(14);
        assert_eq!((track.floor(), track.cursor()), (10, 10));
        assert_eq!(track.above().collect::<Vec<_>>(), [14]);
        track.hand_out(12, 1);
        assert_eq!(track.floor(), 11);
        track.finish(12);
        assert_eq!((track.floor(), track.contains(14)), (12, true));
        track.hand_out(16, 2);
        track.finish(16);
        assert_eq!((track.floor(), track.contains(14)), (16, false));
    }
}
