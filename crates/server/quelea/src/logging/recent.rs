//! The last lines of the log, for those who look at the broker through its API.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FormatFields as _;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::{Context, Layer};

use super::fields::QuotedFields;

/// Errors and warnings in memory, and as many other lines. Of more a line of the kind goes that has
/// the most, and of that kind the oldest of the client that has the most: no kind and no client
/// pushes out the others.
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
pub(super) static RECENT: Recent = Recent::new();

pub(super) struct Recent(Mutex<Lines>);

struct Lines {
    count: u64,
    severe: Ring,
    others: Ring,
}

struct Ring {
    lines: VecDeque<(Origin, LogLine)>,
    of_kind: BTreeMap<u64, usize>,
    of_origin: BTreeMap<Origin, usize>,
}

/// What a line says, and whom it is about, each by a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Origin {
    kind: u64,
    name: u64,
}

/// Fields that name whom a line is about.
const NAMES: [&str; 3] = ["client_id", "group", "bridge"];

impl Visit for Origin {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let hash = match field.name() {
            "message" => &mut self.kind,
            name if NAMES.contains(&name) => &mut self.name,
            _ => return,
        };
        let mut hashed = Hashed(DefaultHasher::new());
        // A hasher takes all that is written.
        let _ = write!(hashed, "{value:?}");
        *hash = hashed.0.finish();
    }
}

struct Hashed(DefaultHasher);

impl std::fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Ring {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), of_kind: BTreeMap::new(), of_origin: BTreeMap::new() }
    }

    fn push(&mut self, origin: Origin, line: LogLine) {
        if self.lines.len() == LINES_MAX {
            self.drop_one();
        }
        *self.of_kind.entry(origin.kind).or_default() += 1;
        *self.of_origin.entry(origin).or_default() += 1;
        self.lines.push_back((origin, line));
    }

    fn drop_one(&mut self) {
        let of_kind = |kind: u64| self.of_kind.get(&kind).copied().unwrap_or(0);
        let of_origin = |origin: &Origin| self.of_origin.get(origin).copied().unwrap_or(0);
        let most = self.of_kind.values().max().copied().unwrap_or(0);
        let kind = self.lines.iter().map(|(origin, _)| origin.kind).find(|it| of_kind(*it) == most);
        let is_it = |origin: &Origin| Some(origin.kind) == kind;
        let rivals = self.of_origin.iter().filter(|(origin, _)| is_it(origin));
        let most = rivals.map(|(_, count)| *count).max().unwrap_or(0);
        let is_oldest = |(it, _): &(Origin, _)| is_it(it) && of_origin(it) == most;
        let Some(place) = self.lines.iter().position(is_oldest) else { return };
        if let Some((origin, _)) = self.lines.remove(place) {
            take_one(&mut self.of_kind, origin.kind);
            take_one(&mut self.of_origin, origin);
        }
    }
}

fn take_one<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}

/// Sees every event that is logged.
pub(super) struct RecentLayer;

impl<S: Subscriber> Layer<S> for RecentLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = String::new();
        // A string takes all that is written.
        let _ = QuotedFields.format_fields(Writer::new(&mut text), event);
        let mut origin = Origin::default();
        event.record(&mut origin);
        RECENT.put(*event.metadata().level(), origin, base::seen_lines(&text).into_owned());
    }
}

impl Recent {
    const fn new() -> Self {
        Self(Mutex::new(Lines { count: 0, severe: Ring::new(), others: Ring::new() }))
    }

    fn put(&self, level: Level, origin: Origin, mut text: String) {
        text.truncate(text.floor_char_boundary(LINE_BYTES_MAX));
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.count += 1;
        let line = LogLine { number: lines.count, time_ms: since.as_millis() as u64, level, text };
        let ring = if level <= Level::WARN { &mut lines.severe } else { &mut lines.others };
        ring.push(origin, line);
    }

    /// The newest lines before this number, the newest first, that are at least so severe; and
    /// whether there are more.
    pub(super) fn page(&self, least: Level, before: u64, max: usize) -> (Vec<LogLine>, bool) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = |line: &&LogLine| line.level <= least && line.number < before;
        let both = lines.severe.lines.iter().chain(&lines.others.lines);
        let mut all: Vec<&LogLine> = both.map(|(_, line)| line).filter(wanted).collect();
        all.sort_unstable_by_key(|line| std::cmp::Reverse(line.number));
        (all.iter().take(max).map(|line| (*line).clone()).collect(), all.len() > max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a kind and a client, by number.
    fn put(recent: &Recent, level: Level, (kind, name): (u64, u64), text: &str) {
        recent.put(level, Origin { kind, name }, text.into());
    }

    fn texts(lines: &[LogLine]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn lines_of_clients_do_not_push_out_a_warning() {
        let recent = Recent::new();
        put(&recent, Level::WARN, (1, 0), "the disk is full");
        for number in 0..2 * LINES_MAX {
            put(&recent, Level::INFO, (2, number as u64), &format!("client {number} connected"));
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
    fn no_kind_and_no_client_pushes_out_the_others() {
        let recent = Recent::new();
        let (disk, drops, denials) = (1, 2, 3);
        put(&recent, Level::WARN, (disk, 0), "disk");
        put(&recent, Level::WARN, (drops, 7), "quiet");
        for number in 0..60 {
            put(&recent, Level::WARN, (denials, number), "denied");
        }
        for _ in 0..10 * LINES_MAX {
            put(&recent, Level::WARN, (drops, 8), "loud");
        }
        let (lines, has_more) = recent.page(Level::WARN, u64::MAX, LINES_MAX);
        let count = |text: &str| lines.iter().filter(|line| line.text == text).count();
        let counts = ["disk", "quiet", "denied", "loud"].map(count);
        assert_eq!((counts, has_more), ([1, 1, 60, LINES_MAX - 62], false));
        // Two that are as loud share.
        for number in 0..10 * LINES_MAX as u64 {
            put(&recent, Level::WARN, (denials, 100 + number % 2), "denied");
        }
        let lines = recent.page(Level::WARN, u64::MAX, LINES_MAX).0;
        let loud = lines.iter().filter(|line| line.text == "loud").count();
        assert!((200..300).contains(&loud), "{loud}");
        assert!(lines.iter().any(|line| line.text == "disk"));
    }

    #[test]
    fn a_line_is_of_its_text_and_of_its_client() {
        use tracing_subscriber::layer::SubscriberExt as _;
        struct Seen(std::sync::Arc<Mutex<Vec<Origin>>>);
        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let mut origin = Origin::default();
                event.record(&mut origin);
                self.0.lock().unwrap().push(origin);
            }
        }
        let seen = std::sync::Arc::default();
        let subscriber = tracing_subscriber::registry().with(Seen(std::sync::Arc::clone(&seen)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(client_id = "a", count = 1, "dropped");
            tracing::warn!(client_id = "a", count = 2, "dropped");
            tracing::warn!(client_id = "b", count = 1, "dropped");
            tracing::warn!(client_id = "a", count = 1, "denied");
        });
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0], seen[1]);
        assert_eq!((seen[0].kind, seen[0].name == seen[2].name), (seen[2].kind, false));
        assert_eq!((seen[0].name, seen[0].kind == seen[3].kind), (seen[3].name, false));
    }

    #[test]
    fn a_long_line_is_cut_between_characters() {
        let recent = Recent::new();
        put(&recent, Level::ERROR, (1, 0), &"ä".repeat(LINE_BYTES_MAX));
        let (lines, _) = recent.page(Level::ERROR, u64::MAX, 1);
        assert_eq!(lines[0].text, "ä".repeat(LINE_BYTES_MAX / 2));
    }
}
