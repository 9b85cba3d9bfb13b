//! How far one queue, of a session or of a shared group, has been worked off.

use std::collections::VecDeque;

use crate::log::facts::Stage;
use crate::words::record_location::RecordLocation;

/// A message that was assigned, or a run of serials of which nothing is left to deliver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out {
    pub(crate) serial: u64,
    /// The last serial of a run; that of the message itself while it is in flight.
    through: u64,
    /// Its share of the in-flight fact with its packet id.
    pub(crate) place: RecordLocation,
    pub(crate) packet_id: u16,
    pub(crate) stage: Stage,
    is_done: bool,
    /// It came from no queue: no progress fact includes it.
    pub(super) is_aside: bool,
}

impl Out {
    pub(crate) const fn in_flight(serial: u64, packet_id: u16) -> Self {
        let (place, stage) = (RecordLocation::NOWHERE, Stage::AwaitsPuback);
        let (is_done, is_aside) = (false, false);
        Self { serial, through: serial, place, packet_id, stage, is_done, is_aside }
    }

    /// A delivery of which the journal knows the packet id only.
    pub(crate) const fn aside(serial: u64, packet_id: u16, place: RecordLocation) -> Self {
        let stage = Stage::AwaitsPubrec;
        Self { place, stage, is_aside: true, ..Self::in_flight(serial, packet_id) }
    }

    pub(crate) const fn restored(
        serial: u64,
        packet_id: u16,
        stage: Stage,
        place: RecordLocation,
    ) -> Self {
        Self { place, stage, ..Self::in_flight(serial, packet_id) }
    }

    const fn done(from: u64, through: u64) -> Self {
        let (place, stage) = (RecordLocation::NOWHERE, Stage::AwaitsPuback);
        let (packet_id, is_done, is_aside) = (0, true, false);
        Self { serial: from, through, place, packet_id, stage, is_done, is_aside }
    }
}

/// Both of growing serials.
#[derive(Debug, Default)]
struct Outs {
    /// Those in flight, and runs of done ones that a floor cannot express yet.
    queued: VecDeque<Out>,
    /// In flight, and from no queue: cursor and floor are not concerned.
    aside: VecDeque<Out>,
}

/// The cursor of a queue, and what was assigned behind it.
///
/// Bounded by the in-flight window: between two messages in flight there is at most one run, as all
/// up to the cursor is done that is not in flight. Above the cursor, where messages wait, runs are
/// as many as those at the most.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Everything up to this serial was assigned or skipped.
    cursor: u64,
    /// Absent while there has been no traffic for a while.
    out: Option<Box<Outs>>,
    /// The share of the latest progress fact about this queue.
    pub(crate) place: RecordLocation,
}

impl Track {
    pub(super) fn starting_at(cursor: u64) -> Self {
        Self { cursor, ..Self::default() }
    }

    pub(super) const fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Everything up to this serial is done.
    pub(crate) fn floor(&self) -> u64 {
        let front = self.outs().and_then(|outs| outs.front());
        front.map_or(self.cursor, |out| self.cursor.min(out.serial - 1))
    }

    /// What is done above the floor: growing runs, first and last serial of each.
    pub(crate) fn above(&self) -> impl Iterator<Item = (u64, u64)> {
        let done = self.outs().into_iter().flatten().filter(|out| out.is_done);
        done.map(|out| (out.serial, out.through))
    }

    /// Is it in flight, or done?
    pub(crate) fn contains(&self, serial: u64) -> bool {
        self.at(serial).is_some()
    }

    /// The message, if it is in flight.
    pub(crate) fn get_mut(&mut self, serial: u64) -> Option<&mut Out> {
        let Outs { queued, aside } = &mut **self.out.as_mut()?;
        match live_at(aside, serial) {
            Some(place) => aside.get_mut(place),
            None => live_at(queued, serial).and_then(|place| queued.get_mut(place)),
        }
    }

    /// What is in flight: first in order what came from the queue.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = &Out> {
        let aside = self.out.as_ref().map(|outs| &outs.aside);
        let queued = self.outs().into_iter().flatten().filter(|out| !out.is_done);
        queued.chain(aside.into_iter().flatten())
    }

    /// The message is on its way.
    pub(super) fn assign(&mut self, serial: u64, packet_id: u16) {
        self.assign_at(serial, packet_id, Stage::AwaitsPuback);
    }

    pub(super) fn assign_at(&mut self, serial: u64, packet_id: u16, stage: Stage) {
        self.insert(Out { stage, ..Out::in_flight(serial, packet_id) });
        self.cursor = self.cursor.max(serial);
        self.join_below_cursor();
    }

    /// A message that is in no queue is on its way.
    pub(crate) fn assign_aside(&mut self, out: Out) {
        self.out.get_or_insert_default().aside.push_back(out);
    }

    /// Puts a message back in flight that was so when the broker ended.
    pub(crate) fn restore(&mut self, out: Out) {
        self.insert(out);
    }

    /// Puts back a run that was done when the broker ended.
    pub(super) fn restore_done(&mut self, from: u64, through: u64) {
        self.insert(Out::done(from, through));
    }

    /// Skips the message, whose turn has come.
    pub(crate) fn pass(&mut self, serial: u64) {
        let cursor = self.cursor;
        self.cursor = cursor.max(serial);
        if self.outs().is_some_and(|outs| !outs.is_empty()) {
            // What stands before it up to the old cursor is done, if it is not in flight.
            self.add_done(serial, cursor);
            self.join_below_cursor();
            self.trim();
        }
    }

    /// Skips the message, but others before it wait for their turn, the last of them
    /// `waiting`.
    pub(crate) fn skip(&mut self, serial: u64, waiting: u64) {
        // Behind the last that waits there is nobody whose turn could come.
        self.add_done(serial, u64::MAX);
        self.merge_above(waiting);
    }

    /// With nothing waiting, the cursor may stand anywhere behind what was assigned.
    pub(crate) fn advance(&mut self, serial: u64) {
        self.cursor = self.cursor.max(serial);
        self.trim();
    }

    /// The message is done. Returns what was known of it, if it was in flight.
    pub(crate) fn finish(&mut self, serial: u64) -> Option<Out> {
        let finished = *self.get_mut(serial)?;
        let outs = self.out.as_mut()?;
        if finished.is_aside {
            live_at(&outs.aside, serial).and_then(|place| outs.aside.remove(place));
            self.trim();
            return Some(finished);
        }
        let outs = &mut outs.queued;
        let place = place_of(outs, serial);
        outs[place] = Out::done(serial, serial);
        let cursor = self.cursor;
        let joins = |outs: &VecDeque<Out>, place: usize| {
            outs.get(place).is_some_and(|out| out.is_done && out.through <= cursor)
        };
        if joins(outs, place + 1) {
            outs[place].through = outs[place + 1].through;
            outs.remove(place + 1);
        }
        if place > 0 && joins(outs, place) && joins(outs, place - 1) {
            outs[place - 1].through = outs[place].through;
            outs.remove(place);
        }
        self.trim();
        Some(finished)
    }

    fn outs(&self) -> Option<&VecDeque<Out>> {
        self.out.as_ref().map(|outs| &outs.queued)
    }

    fn at(&self, serial: u64) -> Option<&Out> {
        let outs = self.outs()?;
        let behind = outs.partition_point(|out| out.serial <= serial);
        outs.get(behind.checked_sub(1)?).filter(|out| serial <= out.through)
    }

    fn insert(&mut self, out: Out) {
        let outs = &mut self.out.get_or_insert_default().queued;
        match outs.back() {
            Some(last) if last.serial >= out.serial => {
                let place = outs.partition_point(|known| known.serial < out.serial);
                if outs.get(place).is_some_and(|known| known.serial == out.serial) {
                    outs[place] = out;
                } else {
                    outs.insert(place, out);
                }
            }
            _ => outs.push_back(out),
        }
    }

    /// Adds a serial to the run before it, if that ends up to `joinable`; else as a run of its own.
    fn add_done(&mut self, serial: u64, joinable: u64) {
        let outs = &mut self.out.get_or_insert_default().queued;
        let place = outs.partition_point(|out| out.serial <= serial);
        let before = place.checked_sub(1).and_then(|before| outs.get_mut(before));
        match before {
            Some(run) if run.is_done && serial <= run.through => {}
            Some(run) if run.is_done && run.through <= joinable && joinable != u64::MAX => {
                run.through = serial;
            }
            _ => outs.insert(place, Out::done(serial, serial)),
        }
    }

    /// Joins the runs that the cursor has passed just now: nothing waits between them any more.
    fn join_below_cursor(&mut self) {
        let cursor = self.cursor;
        let Some(outs) = self.out.as_mut().map(|outs| &mut outs.queued) else { return };
        let is_run =
            |out: Option<&Out>| out.is_some_and(|out| out.is_done && out.through <= cursor);
        let mut place = match outs.back() {
            Some(last) if last.serial > cursor => outs.partition_point(|o| o.serial <= cursor),
            _ => outs.len(),
        };
        if !is_run(place.checked_sub(1).and_then(|last| outs.get(last))) {
            place = place.saturating_sub(1);
        }
        while place >= 2 && is_run(outs.get(place - 1)) && is_run(outs.get(place - 2)) {
            outs[place - 2].through = outs[place - 1].through;
            outs.remove(place - 1);
            place -= 1;
        }
    }

    /// Joins the last two runs if nothing waits between them.
    fn merge_above(&mut self, waiting: u64) {
        let Some(outs) = self.out.as_mut().map(|outs| &mut outs.queued) else { return };
        let count = outs.len();
        if count < 2 {
            return;
        }
        let (before, last) = (outs[count - 2], outs[count - 1]);
        if before.is_done && last.is_done && waiting <= before.through {
            outs[count - 2].through = last.through;
            outs.pop_back();
        }
    }

    fn trim(&mut self) {
        let cursor = self.cursor;
        let Some(Outs { queued, aside }) = self.out.as_deref_mut() else { return };
        while queued.front().is_some_and(|out| out.is_done && out.through <= cursor) {
            queued.pop_front();
        }
        let capacity = queued.capacity() + aside.capacity();
        if queued.is_empty() && aside.is_empty() && capacity > IDLE_CAPACITY_MAX {
            self.out = None;
        }
    }

    /// Gives back memory that only traffic needs.
    pub(crate) fn shrink(&mut self) {
        if self.out.as_ref().is_some_and(|outs| outs.queued.is_empty() && outs.aside.is_empty()) {
            self.out = None;
        }
    }
}

/// Where the message of this serial stands, if it is in flight.
fn live_at(outs: &VecDeque<Out>, serial: u64) -> Option<usize> {
    let place = place_of(outs, serial);
    let is_live = outs.get(place).is_some_and(|out| out.serial == serial && !out.is_done);
    is_live.then_some(place)
}

/// The first of this serial or a higher one. Clients acknowledge in order, so it is mostly at the
/// front.
#[inline]
fn place_of(outs: &VecDeque<Out>, serial: u64) -> usize {
    match outs.front() {
        Some(first) if first.serial < serial => outs.partition_point(|out| out.serial < serial),
        _ => 0,
    }
}

/// Above this capacity memory is given back when nothing is out.
const IDLE_CAPACITY_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn above(track: &Track) -> Vec<(u64, u64)> {
        track.above().collect()
    }

    #[test]
    fn the_floor_stands_below_the_first_that_is_out() {
        let mut track = Track::starting_at(10);
        assert_eq!(track.floor(), 10);
        track.assign(12, 1);
        track.assign(15, 2);
        track.pass(16);
        assert_eq!((track.floor(), track.cursor()), (11, 16));
        assert!(track.finish(15).is_some_and(|out| out.packet_id == 2));
        assert!(track.finish(15).is_none());
        assert_eq!(above(&track), [(15, 16)]);
        assert!(track.finish(12).is_some());
        assert_eq!((track.floor(), track.above().count()), (16, 0));
    }

    #[test]
    fn what_is_skipped_before_its_turn_does_not_move_the_cursor() {
        let mut track = Track::starting_at(10);
        track.skip(14, 12);
        assert_eq!((track.floor(), track.cursor()), (10, 10));
        assert_eq!(above(&track), [(14, 14)]);
        track.assign(12, 1);
        assert_eq!(track.floor(), 11);
        track.finish(12);
        assert_eq!((track.floor(), track.contains(14)), (12, true));
        track.assign(16, 2);
        track.finish(16);
        assert_eq!((track.floor(), track.contains(14)), (16, false));
    }

    #[test]
    fn one_message_in_flight_does_not_keep_the_memory_of_all_behind_it() {
        let mut track = Track::starting_at(0);
        track.assign(1, 1);
        for serial in 2..1000 {
            track.pass(serial);
        }
        assert_eq!((track.floor(), above(&track)), (0, vec![(2, 999)]));
        // One waits at 1,500: what is skipped behind it is one run, too.
        for serial in 1501..3000 {
            track.skip(serial, 1500);
        }
        assert_eq!(above(&track), [(2, 999), (1501, 2999)]);
        track.skip(4000, 3500);
        track.assign(1500, 2);
        track.finish(1);
        assert_eq!((track.floor(), above(&track)), (1499, vec![(1501, 2999), (4000, 4000)]));
    }

    #[test]
    fn what_is_in_no_queue_moves_neither_floor_nor_cursor() {
        let mut track = Track::starting_at(10);
        track.assign_aside(Out::aside(13, 1, RecordLocation::NOWHERE));
        track.assign(12, 2);
        assert_eq!((track.floor(), track.cursor()), (11, 12));
        assert_eq!(track.in_flight().map(|out| out.serial).collect::<Vec<_>>(), [12, 13]);
        assert!(track.finish(12).is_some_and(|out| !out.is_aside));
        track.pass(20);
        assert_eq!((track.floor(), track.above().count()), (20, 0));
        track.shrink();
        assert!(track.finish(13).is_some_and(|out| out.is_aside && out.packet_id == 1));
        assert!(track.finish(13).is_none());
        assert_eq!((track.floor(), track.in_flight().count()), (20, 0));
    }

    #[test]
    fn runs_join_when_what_parts_them_is_done() {
        let mut track = Track::starting_at(0);
        for serial in 1..=9 {
            track.assign(serial, serial as u16);
        }
        for serial in [3, 5, 4, 8, 7] {
            assert!(track.finish(serial).is_some());
        }
        assert_eq!(above(&track), [(3, 5), (7, 8)]);
        assert!(track.finish(6).is_some());
        assert_eq!(above(&track), [(3, 8)]);
        assert_eq!(track.in_flight().map(|out| out.serial).collect::<Vec<_>>(), [1, 2, 9]);
    }

    #[test]
    fn runs_stay_few_while_skips_and_drops_alternate() {
        let mut track = Track::starting_at(0);
        track.assign(1, 1);
        // Each odd serial is skipped (access rules), each even one waits; the queue holds three.
        let mut queue = VecDeque::new();
        let mut last_queued = 0;
        for serial in 2..10_000_u64 {
            if serial % 2 == 1 {
                track.skip(serial, last_queued);
            } else {
                queue.push_back(serial);
                last_queued = serial;
                if queue.len() > 3 {
                    track.pass(queue.pop_front().unwrap());
                }
            }
        }
        assert!(track.above().count() < 10, "{} runs", track.above().count());
    }
}
