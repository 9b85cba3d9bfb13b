//! Keeps broker time right: it passes while the machine sleeps, and goes on over a restart.
//!
//! Sleep is what the system counts as such (`CLOCK_BOOTTIME`). What the wall clock is set by is
//! noted in the data directory, for the next start ([`Calendar`]).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use base::Clock;
use broker::{Calendar, CalendarNote};
use rustix::time::{ClockId, clock_gettime};

use data::Stamps;

/// The file in the data directory.
pub(super) const CLOCK_FILE: &str = "clock";

/// How often the note is written anew while no clock is set: a clock that is behind at the next
/// start is known by it.
const NOTE_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// The same, while the disk is full.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Less sleep than this is the time between two looks at clocks.
const SLEEP_MS_MIN: u64 = 50;

/// Who looks whether the wall clock was set, and notes it.
#[derive(Debug)]
pub(super) struct ClockWatch {
    clock: Clock,
    calendar: Calendar,
    /// None: nothing outlives the process.
    path: Option<PathBuf>,
    stamps: Stamps,
    slept_ms: u64,
    noted: Instant,
    /// The last note found no space on the disk.
    lacks_space: bool,
}

/// Goes on where the process before ended. Call it before anything else takes the time.
///
/// # Errors
///
/// The note of the process before cannot be read.
pub(super) fn resume(
    clock: Clock,
    directory: Option<&Path>,
    stamps: &Stamps,
) -> anyhow::Result<ClockWatch> {
    let path = directory.map(|directory| directory.join(CLOCK_FILE));
    let note = match &path {
        Some(path) => read_note(path, stamps)?,
        None => None,
    };
    let (calendar, now_ms, set_ms) = Calendar::begin(note, base::wall_ms());
    clock.go_on_at(now_ms);
    if set_ms != 0 {
        warn("since the broker ran last", set_ms);
    }
    let (slept_ms, noted) = (slept_ms(), Instant::now());
    let stamps = stamps.clone();
    let lacks_space = false;
    let mut watch = ClockWatch { clock, calendar, path, stamps, slept_ms, noted, lacks_space };
    watch.note();
    Ok(watch)
}

impl ClockWatch {
    /// Call it every second or so.
    pub(super) fn look(&mut self) {
        let slept_ms = slept_ms();
        if slept_ms >= self.slept_ms + SLEEP_MS_MIN {
            self.clock.advance(slept_ms - self.slept_ms);
            self.slept_ms = slept_ms;
        }
        let jump_ms = self.calendar.look(self.clock.now_ms(), base::wall_ms());
        if let Some(jump_ms) = jump_ms {
            warn("while the broker ran", jump_ms);
        }
        let interval = if self.lacks_space { RETRY_INTERVAL } else { NOTE_INTERVAL };
        if jump_ms.is_some() || self.noted.elapsed() >= interval {
            self.note();
        }
    }

    /// Writes the note. Without it a later start takes the jump for time that has passed.
    pub(super) fn note(&mut self) {
        self.noted = Instant::now();
        let Some(path) = &self.path else { return };
        let text = self.calendar.note(self.clock.now_ms()).to_text();
        let written = self.stamps.write(path, text.as_bytes());
        let lacks_space = written.as_ref().err().is_some_and(data::is_full);
        let is_known = std::mem::replace(&mut self.lacks_space, lacks_space) && lacks_space;
        if let Err(error) = written
            && !is_known
        {
            let path = path.display();
            tracing::error!(
                %path,
                %error,
                "cannot store the offset of the clock: sessions and messages may expire early \
                after the next start"
            );
        }
    }
}

fn warn(when: &str, set_ms: i64) {
    tracing::warn!(
        set_by_secs = set_ms / 1000,
        "the wall clock was set {when}; expiry times are not affected"
    );
}

fn read_note(path: &Path, stamps: &Stamps) -> anyhow::Result<Option<CalendarNote>> {
    let Some(text) = stamps.read_text(path)?.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let note = CalendarNote::from_text(&text).with_context(|| {
        format!(
            "{} is damaged; remove it if the clock of this machine was never set while a broker ran",
            path.display()
        )
    })?;
    Ok(Some(note))
}

/// What `Instant` does not count.
fn slept_ms() -> u64 {
    let ms = |clock| {
        let time = clock_gettime(clock);
        time.tv_sec.unsigned_abs() * 1000 + time.tv_nsec.unsigned_abs() / 1_000_000
    };
    ms(ClockId::Boottime).saturating_sub(ms(ClockId::Monotonic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_time_goes_on_where_the_note_says() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(CLOCK_FILE);
        let day_ms = 24 * 60 * 60 * 1000;
        // A day ago by broker time, in a process whose wall clock was set forward by two days.
        let note =
            CalendarNote { ahead_ms: 2 * day_ms, at_ms: base::wall_ms() - 3 * day_ms as u64 };
        std::fs::write(&path, note.to_text()).expect("written");
        let clock = Clock::start();
        let mut watch = resume(clock, Some(dir.path()), &Stamps::default()).expect("a sound note");
        let behind_ms = base::wall_ms() - clock.now_ms();
        assert!(behind_ms.abs_diff(2 * day_ms as u64) < 60_000, "{behind_ms}");
        watch.look();
        watch.note();
        let noted = read_note(&path, &Stamps::default()).expect("readable").expect("a note");
        assert_eq!(noted.ahead_ms, 2 * day_ms);
        assert!(noted.at_ms > note.at_ms + day_ms as u64 / 2);
    }

    #[test]
    fn a_note_that_nobody_wrote_is_reported_with_what_to_do() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join(CLOCK_FILE), "yesterday").expect("written");
        let error = resume(Clock::start(), Some(dir.path()), &Stamps::default())
            .expect_err("no note")
            .to_string();
        assert!(error.contains("clock") && error.contains("remove it"), "{error}");
    }
}
