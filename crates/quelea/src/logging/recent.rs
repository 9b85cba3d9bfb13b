//! The last lines of the log, for those who look at the broker through its API.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FormatFields as _;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, Layer};

use super::fields::QuotedFields;

/// Errors and warnings in memory, and as many other lines: of more the oldest go. Lines about
/// clients cannot push out what went wrong.
pub(crate) const LINES_MAX: usize = 500;

/// Bytes of a line; the log has the rest.
const LINE_BYTES_MAX: usize = 1_024;

/// A line of the log.
#[derive(Clone, Debug)]
pub(crate) struct LogLine {
    /// Of all lines since the start.
    pub(crate) number: u64,
    /// Since 1970.
    pub(crate) time_ms: u64,
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// The lines there are.
pub(super) static RECENT: Recent =
    Recent(Mutex::new(Lines { count: 0, severe: VecDeque::new(), others: VecDeque::new() }));

pub(super) struct Recent(Mutex<Lines>);

struct Lines {
    count: u64,
    severe: VecDeque<LogLine>,
    others: VecDeque<LogLine>,
}

/// Sees every event that is logged.
pub(super) struct RecentLayer;

impl<S: Subscriber> Layer<S> for RecentLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = String::new();
        // A string takes all that is written.
        let _ = QuotedFields.format_fields(Writer::new(&mut text), event);
        RECENT.put(*event.metadata().level(), text);
    }
}

impl Recent {
    fn put(&self, level: Level, mut text: String) {
        text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.count += 1;
        let line = LogLine { number: lines.count, time_ms: since.as_millis() as u64, level, text };
        let ring = if level <= Level::WARN { &mut lines.severe } else { &mut lines.others };
        if ring.len() == LINES_MAX {
            ring.pop_front();
        }
        ring.push_back(line);
    }

    /// The newest lines before this number, the newest first, that are at least so severe; and
    /// whether there are more.
    pub(super) fn page(&self, least: Level, before: u64, max: usize) -> (Vec<LogLine>, bool) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |line: &&LogLine| line.level <= least && line.number < before;
        let mut all: Vec<&LogLine> =
            lines.severe.iter().chain(&lines.others).filter(wanted).collect();
        all.sort_unstable_by_key(|line| std::cmp::Reverse(line.number));
        (all.iter().take(max).map(|line| (*line).clone()).collect(), all.len() > max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent() -> Recent {
        let (severe, others) = Default::default();
        Recent(Mutex::new(Lines { count: 0, severe, others }))
    }

    fn texts(lines: &[LogLine]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn lines_of_clients_do_not_push_out_a_warning() {
        let recent = recent();
        recent.put(Level::WARN, "the disk is full".into());
        for number in 0..2 * LINES_MAX {
            recent.put(Level::INFO, format!("client {number} connected"));
        }
        let (warnings, has_more) = recent.page(Level::WARN, u64::MAX, 10);
        assert_eq!((texts(&warnings), has_more), (vec!["the disk is full"], false));
        let (all, has_more) = recent.page(Level::INFO, u64::MAX, LINES_MAX);
        assert_eq!(all[0].text, format!("client {} connected", 2 * LINES_MAX - 1));
        assert!(has_more, "the warning is the last");
        let last = all.last().map(|line| line.number);
        let (rest, has_more) = recent.page(Level::INFO, last.unwrap(), LINES_MAX);
        assert_eq!((texts(&rest), has_more), (vec!["the disk is full"], false));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let recent = recent();
        recent.put(Level::ERROR, "ä".repeat(LINE_BYTES_MAX));
        let (lines, _) = recent.page(Level::ERROR, u64::MAX, 1);
        assert_eq!(lines[0].text, "ä".repeat(LINE_BYTES_MAX / 2));
    }
}
