//! The last lines of the log.

use std::time::Duration;

use base::moment;
use config::LogLevel;

use super::call::Call;
use super::json;
use super::paging::bad_cursor;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::{Rows, record};
use crate::logging::{LEVELS, Logging};

record! {
    /// A line of the log.
    LogLine {
        /// When it was logged, to the microsecond.
        time: String,
        /// error, warn, info, debug or trace.
        level: String,
        /// The message with its fields as `name=value`. Of a longer line the first 1,024 bytes.
        text: String,
    }
}

pub(crate) fn list(call: &Call) -> Outcome {
    let level = call.text("level").map_or(Ok(LogLevel::Info), |text| {
        level_of(text).map_err(|detail| Problem::bad("query parameter level", detail))
    })?;
    let read = |text: &str| text.parse().map_err(|_| bad_cursor(text));
    let before = call.text("cursor").map(read).transpose()?.unwrap_or(u64::MAX);
    let (lines, has_more) = Logging::lines(level, before, call.limit());
    let last = lines.last().map(|line| line.number.to_string());
    let items: Vec<_> = lines
        .into_iter()
        .map(|line| LogLine {
            time: moment::text_with_micros(Duration::from_millis(line.time_ms)),
            level: line.level.as_str().to_lowercase(),
            text: line.text,
        })
        .collect();
    json(&Rows { items, cursor: last.filter(|_| has_more) })
}

/// # Errors
///
/// What it should have been.
pub(super) fn level_of(text: &str) -> Result<LogLevel, String> {
    LEVELS
        .into_iter()
        .find(|known| known.as_str() == text)
        .ok_or_else(|| format!("must be one of {}, got '{text}'", LogLevel::WORDS.join(", ")))
}
