//! Broker time and the wall clock.
//!
//! All times of a shard, in memory and in the journal, are **broker time**: milliseconds that pass
//! as time does. It began as the wall clock, and is never set. When the wall clock is, the calendar
//! notes by how much they differ now, so that a later start finds the broker time again: nothing
//! expires, or lives for ever, because somebody set a clock.

/// A wall clock before that was never set: no journal is as old (1 January 2025).
const SET_SINCE_MS: u64 = 1_735_689_600_000;

/// Smaller differences are not reported; they are kept, so that they do not add up unseen.
const JUMP_MS_MIN: u64 = 1_000;

/// How far the wall clock is ahead of broker time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calendar {
    ahead_ms: i64,
}

/// What outlives the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CalendarNote {
    pub ahead_ms: i64,
    /// Broker time when this was written.
    pub at_ms: u64,
}

impl Calendar {
    /// A start: how late it is, and by how much the wall clock was set while nobody looked, as far
    /// as that is known. Else what it shows has passed.
    pub fn begin(note: Option<CalendarNote>, wall_ms: u64) -> (Self, u64, i64) {
        let Some(note) = note else { return (Self::default(), wall_ms, 0) };
        let then_ms = note.at_ms.saturating_add_signed(note.ahead_ms);
        let now_ms = wall_ms.checked_add_signed(note.ahead_ms.saturating_neg()).unwrap_or(0);
        let is_behind = now_ms < note.at_ms;
        let was_unset = then_ms < SET_SINCE_MS && wall_ms >= SET_SINCE_MS;
        if !is_behind && !was_unset {
            return (Self { ahead_ms: note.ahead_ms }, now_ms, 0);
        }
        let ahead_ms = difference(wall_ms, note.at_ms);
        (Self { ahead_ms }, note.at_ms, ahead_ms.saturating_sub(note.ahead_ms))
    }

    /// Compares the clocks. Some: the wall clock was set, by so many milliseconds; write a note.
    pub fn look(&mut self, now_ms: u64, wall_ms: u64) -> Option<i64> {
        let ahead_ms = difference(wall_ms, now_ms);
        let jump_ms = ahead_ms.saturating_sub(self.ahead_ms);
        if jump_ms.unsigned_abs() < JUMP_MS_MIN {
            return None;
        }
        self.ahead_ms = ahead_ms;
        Some(jump_ms)
    }

    /// To be kept until the next start.
    pub const fn note(&self, now_ms: u64) -> CalendarNote {
        CalendarNote { ahead_ms: self.ahead_ms, at_ms: now_ms }
    }
}

impl CalendarNote {
    pub fn to_text(self) -> String {
        format!("ahead_ms = {}\nat_ms = {}\n", self.ahead_ms, self.at_ms)
    }

    /// None: it is not what `to_text` writes.
    pub fn from_text(text: &str) -> Option<Self> {
        let (ahead_ms, at_ms) = text.trim_end().split_once('\n')?;
        Some(Self {
            ahead_ms: ahead_ms.strip_prefix("ahead_ms = ")?.parse().ok()?,
            at_ms: at_ms.strip_prefix("at_ms = ")?.parse().ok()?,
        })
    }
}

fn difference(one: u64, other: u64) -> i64 {
    i64::try_from(i128::from(one) - i128::from(other)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON_MS: u64 = 1_800_000_000_000;
    const HOUR_MS: u64 = 3_600_000;

    #[test]
    fn without_a_jump_broker_time_is_the_wall_clock() {
        let (mut calendar, now_ms, set_ms) = Calendar::begin(None, NOON_MS);
        assert_eq!((now_ms, set_ms), (NOON_MS, 0));
        assert_eq!(calendar.look(now_ms + HOUR_MS, NOON_MS + HOUR_MS + 900), None);
        let note = calendar.note(now_ms + HOUR_MS);
        let (_, now_ms, set_ms) = Calendar::begin(Some(note), NOON_MS + 3 * HOUR_MS);
        assert_eq!((now_ms, set_ms), (NOON_MS + 3 * HOUR_MS, 0), "down for two hours");
    }

    #[test]
    fn a_clock_that_is_set_while_the_broker_runs_makes_no_time_pass() {
        for wall_ms in [0, NOON_MS / 2, NOON_MS - HOUR_MS, NOON_MS + 24 * HOUR_MS, 3 * NOON_MS] {
            let (mut calendar, begin_ms, _) = Calendar::begin(None, NOON_MS);
            let jump_ms = calendar.look(begin_ms + 1_000, wall_ms);
            assert_eq!(jump_ms, Some(wall_ms as i64 - (NOON_MS + 1_000) as i64));
            assert_eq!(calendar.look(begin_ms + 2_000, wall_ms + 1_000), None, "once");
            let note = CalendarNote::from_text(&calendar.note(begin_ms + 2_000).to_text());
            let (_, now_ms, set_ms) = Calendar::begin(note, wall_ms + 1_000 + HOUR_MS);
            assert_eq!((now_ms, set_ms), (begin_ms + 2_000 + HOUR_MS, 0), "{wall_ms}");
        }
    }

    #[test]
    fn small_steps_add_up_to_one_that_counts() {
        let (mut calendar, now_ms, _) = Calendar::begin(None, NOON_MS);
        assert_eq!(calendar.look(now_ms, NOON_MS + 600), None);
        assert_eq!(calendar.look(now_ms, NOON_MS + 1_200), Some(1_200));
    }

    #[test]
    fn a_clock_behind_the_last_note_makes_no_time_pass_and_none_come_back() {
        let note = CalendarNote { ahead_ms: 0, at_ms: NOON_MS };
        let (mut calendar, now_ms, set_ms) = Calendar::begin(Some(note), 1_000);
        assert_eq!((now_ms, set_ms), (NOON_MS, 1_000 - NOON_MS as i64));
        // Set right after a minute: it says so, and a minute has passed.
        let right_ms = NOON_MS + 24 * HOUR_MS;
        assert_eq!(calendar.look(now_ms + 60_000, right_ms), Some(right_ms as i64 - 61_000));
        let (_, later_ms, _) =
            Calendar::begin(Some(calendar.note(now_ms + 60_000)), right_ms + HOUR_MS);
        assert_eq!(later_ms, now_ms + 60_000 + HOUR_MS);
    }

    #[test]
    fn a_clock_that_was_never_set_when_the_note_was_written_makes_no_time_pass() {
        let note = CalendarNote { ahead_ms: 0, at_ms: HOUR_MS };
        let (_, now_ms, set_ms) = Calendar::begin(Some(note), NOON_MS);
        assert_eq!((now_ms, set_ms), (HOUR_MS, (NOON_MS - HOUR_MS) as i64));
        let (_, now_ms, _) = Calendar::begin(Some(note), 2 * HOUR_MS);
        assert_eq!(now_ms, 2 * HOUR_MS, "two starts in 1970 are an hour apart");
    }

    #[test]
    fn a_note_that_is_none_is_not_taken_for_one() {
        let note = CalendarNote { ahead_ms: -5, at_ms: 7 };
        assert_eq!(CalendarNote::from_text(&note.to_text()), Some(note));
        for text in ["", "ahead_ms = 1", "ahead_ms = x\nat_ms = 1\n", "at_ms = 1\nahead_ms = 1\n"] {
            assert_eq!(CalendarNote::from_text(text), None, "{text:?}");
        }
    }
}
