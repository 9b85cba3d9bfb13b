//! The clock on the wall, which people and NTP set while the broker runs.

use broker::{Calendar, CalendarNote};

use crate::random::Random;

#[derive(Debug)]
pub(crate) struct Wall {
    /// What it shows more than the time that has passed.
    wrong_ms: i64,
    calendar: Calendar,
    note: CalendarNote,
    /// Of its own: what else happens in a world does not depend on its clock.
    random: Random,
}

/// By how much it is set: back to 1970, a day forth, to when somebody typed a wrong year.
const SET_TO_MS: [i64; 5] = [-1_600_000_000_000, -3_600_000, 0, 86_400_000, 300_000_000_000];

impl Wall {
    pub(crate) fn new(now_ms: u64, seed: u64) -> Self {
        let (calendar, ..) = Calendar::begin(None, now_ms);
        let (note, random) = (calendar.note(now_ms), Random::new(seed));
        Self { wrong_ms: 0, calendar, note, random }
    }

    /// Somebody may set it. Returns by how much the broker takes it to be set.
    pub(crate) fn may_be_set(&mut self, now_ms: u64) -> Option<i64> {
        if !self.random.chance(10) {
            return None;
        }
        self.wrong_ms = SET_TO_MS[self.random.below(SET_TO_MS.len())];
        let set_by_ms = self.calendar.look(now_ms, self.shows(now_ms));
        self.note = self.calendar.note(now_ms);
        set_by_ms
    }

    /// What the next process takes the time to be. `forgets`: it does not find the note.
    pub(crate) fn begin(&mut self, now_ms: u64, forgets: bool) -> u64 {
        let note = Some(self.note).filter(|_| !forgets);
        let (calendar, begin_ms, _) = Calendar::begin(note, self.shows(now_ms));
        self.calendar = calendar;
        begin_ms
    }

    fn shows(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add_signed(self.wrong_ms)
    }
}
