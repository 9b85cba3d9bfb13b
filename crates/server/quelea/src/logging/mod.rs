//! Log lines: text for people, with colours only on a terminal, or one JSON object per line. They
//! are written by a thread of their own, see `queue`.

mod fields;
mod file;
mod queue;
mod recent;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, reload};

use config::{LogConfig, LogFormat, LogLevel, LogTarget};
use fields::QuotedFields;
use queue::{Producer, Queue, Sink};
pub(crate) use recent::LogLine;
use recent::{RECENT, RecentLayer};

/// How long a process that ends waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// The installed logger.
pub struct Logging {
    levels: Levels,
    queue: Arc<Queue>,
    file: Option<PathBuf>,
    /// The disk was full when it was to be made.
    lacks_file: bool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A level that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LevelChange {
    pub(crate) level: LogLevel,
    /// When the configured level returns, in seconds since 1970.
    pub(crate) until_secs: Option<u64>,
}

/// The level in force, and how it is changed.
struct Levels {
    configured: Mutex<LogLevel>,
    present: Mutex<LevelChange>,
    set: SetLevel,
}

type SetLevel = Box<dyn Fn(LevelFilter) -> Result<(), reload::Error> + Send + Sync>;

/// Logs cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error(
        "cannot open log file {path}: {cause}; name another under [log], or let this user write it"
    )]
    Open { path: String, cause: io::Error },
    #[error("cannot start the thread that writes the log: {0}")]
    Thread(io::Error),
    #[error("a logger is already installed")]
    Installed,
}

impl Logging {
    /// Installs the logger of this process.
    ///
    /// # Errors
    ///
    /// When the log file cannot be opened, or a logger is there already.
    pub fn install(config: &LogConfig) -> Result<&'static Self, LoggingError> {
        let file = match &config.target {
            LogTarget::File(path) => Some(path.clone()),
            LogTarget::Stdout | LogTarget::Stderr => None,
        };
        let sink = match (&config.target, &file) {
            (_, Some(path)) => match open(path) {
                // A start on a full disk serves. The file is opened when there is space.
                Err(LoggingError::Open { cause, .. }) if data::is_full(&cause) => Sink::Stderr,
                opened => Sink::File(opened?),
            },
            (LogTarget::Stdout, _) => Sink::Stdout,
            _ => Sink::Stderr,
        };
        let lacks_file = file.is_some() && !matches!(sink, Sink::File(_));
        let has_colours = match &sink {
            Sink::Stdout => has_colours(&io::stdout()),
            Sink::Stderr => has_colours(&io::stderr()),
            Sink::File(_) => false,
        };
        let (queue, thread) = Queue::start(sink).map_err(LoggingError::Thread)?;
        let thread = Mutex::new(Some(thread));
        let is_json = matches!(config.format, LogFormat::Json);
        let producer = Producer { queue: queue.clone(), is_json };
        let Ok(set) = install(config, producer, has_colours) else {
            finish(&queue, &thread);
            return Err(LoggingError::Installed);
        };
        let levels = Levels::new(config.level, set);
        let logging = Self { levels, queue, file, lacks_file, thread };
        log_panics();
        // Only one logger can be installed, so this is the first value.
        Ok(INSTALLED.get_or_init(|| logging))
    }

    /// Can the log file be written, or made? Makes nothing.
    ///
    /// # Errors
    ///
    /// When it cannot.
    pub fn check(config: &LogConfig) -> Result<(), LoggingError> {
        let LogTarget::File(path) = &config.target else { return Ok(()) };
        file::check(path).map_err(|cause| cannot_open(path, cause))
    }

    /// Opens the log file of the installed logger anew, as after a rotation. Does nothing when logs
    /// do not go to a file.
    ///
    /// # Errors
    ///
    /// When it cannot be opened; the old one then stays in use.
    pub fn reopen_installed() -> Result<(), LoggingError> {
        let Some(logging) = INSTALLED.get() else { return Ok(()) };
        let Some(path) = &logging.file else { return Ok(()) };
        let file = open(path)?;
        // What was logged before belongs into the old one.
        logging.queue.flush(FLUSH_MAX);
        logging.queue.replace_file(file);
        Ok(())
    }

    /// Lines go to standard error, because the disk was full when the file was to be made.
    pub(crate) fn lacks_file() -> bool {
        INSTALLED.get().is_some_and(|logging| logging.lacks_file)
    }

    /// Waits until what was logged is written, for a process that is about to end, for two seconds
    /// at most.
    pub fn flush_installed() {
        if let Some(logging) = INSTALLED.get() {
            logging.queue.flush(FLUSH_MAX);
        }
    }

    /// Lines that were lost since the start, because they came faster than they could be written.
    pub fn lines_lost() -> u64 {
        INSTALLED.get().map_or(0, |logging| logging.queue.lost())
    }

    /// The last lines before this number, the newest first, of this level and more severe ones; and
    /// whether there are more.
    pub(crate) fn lines(least: LogLevel, before: u64, max: usize) -> (Vec<LogLine>, bool) {
        let least = level_filter(least).into_level().unwrap_or(Level::ERROR);
        RECENT.page(least, before, max)
    }

    /// Why the broker ends. Where there is no file, standard error will say it.
    pub fn log_error(&self, error: &anyhow::Error) {
        if self.file.is_some() {
            tracing::error!(error = format!("{error:#}"), "the broker exits");
        }
    }

    /// Writes what is there and ends the thread; a log that takes longer than two seconds for it
    /// loses the rest.
    pub fn finish(&self) {
        finish(&self.queue, &self.thread);
    }

    /// The level in force. None: no logger is installed.
    pub(crate) fn level() -> Option<LevelChange> {
        INSTALLED.get().map(|logging| *lock(&logging.levels.present))
    }

    /// Sets the level until a time, or until the process ends.
    ///
    /// # Errors
    ///
    /// There is no logger any more.
    pub(crate) fn set_level(change: LevelChange) -> Result<(), reload::Error> {
        let Some(logging) = INSTALLED.get() else { return Ok(()) };
        let mut present = lock(&logging.levels.present);
        (logging.levels.set)(level_filter(change.level))?;
        *present = change;
        drop(present);
        let until = change.until_secs.map(base::moment::text_of);
        tracing::info!(level = change.level.as_str(), until, "log level changed");
        Ok(())
    }

    /// Sets another configured level, which is in force at once.
    ///
    /// # Errors
    ///
    /// There is no logger any more.
    pub(crate) fn configure_level(level: LogLevel) -> Result<(), reload::Error> {
        let Some(logging) = INSTALLED.get() else { return Ok(()) };
        Self::set_level(LevelChange { level, until_secs: None })?;
        *lock(&logging.levels.configured) = level;
        Ok(())
    }

    /// Brings the configured level back, if its time has come.
    pub(crate) fn end_level(now_secs: u64) {
        let Some(logging) = INSTALLED.get() else { return };
        let is_due = Self::level().and_then(|it| it.until_secs).is_some_and(|at| at <= now_secs);
        if is_due {
            let change = LevelChange { level: *lock(&logging.levels.configured), until_secs: None };
            if let Err(error) = Self::set_level(change) {
                tracing::error!(%error, "the configured log level cannot be set");
            }
        }
    }
}

impl Levels {
    fn new(configured: LogLevel, set: SetLevel) -> Self {
        let present = Mutex::new(LevelChange { level: configured, until_secs: None });
        Self { configured: configured.into(), present, set }
    }
}

fn finish(queue: &Queue, thread: &Mutex<Option<JoinHandle<()>>>) {
    queue.flush(FLUSH_MAX);
    queue.close();
    // One that hangs in a write would hold up the end.
    if let Some(thread) = lock(thread).take().filter(|_| queue.is_idle()) {
        let _ = thread.join();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(path: &Path) -> Result<File, LoggingError> {
    file::open(path).map_err(|cause| cannot_open(path, cause))
}

fn cannot_open(path: &Path, cause: io::Error) -> LoggingError {
    LoggingError::Open { path: path.display().to_string(), cause }
}

fn install(
    config: &LogConfig,
    producer: Producer,
    has_colours: bool,
) -> Result<SetLevel, TryInitError> {
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter(level_filter(config.level)))
        .with_target(false)
        .with_writer(producer);
    match config.format {
        LogFormat::Text => {
            let text = base.fmt_fields(QuotedFields).with_ansi(has_colours);
            let text = text.with_filter_reloading();
            let handle = text.reload_handle();
            text.finish().with(RecentLayer).try_init()?;
            Ok(Box::new(move |level| handle.reload(filter(level))))
        }
        LogFormat::Json => {
            let json = base.json().flatten_event(true).with_filter_reloading();
            let handle = json.reload_handle();
            json.finish().with(RecentLayer).try_init()?;
            Ok(Box::new(move |level| handle.reload(filter(level))))
        }
    }
}

/// A broken promise of ours ends the process: what was logged until then, and what broke, is
/// written first.
fn log_panics() {
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!(%panic, "internal error: the broker exits");
        Logging::flush_installed();
        default_hook(panic);
    }));
}

/// Only people at a terminal are shown colours, and only those who have not said `NO_COLOR`.
fn has_colours(stream: &impl IsTerminal) -> bool {
    wants_colours(stream.is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

fn wants_colours(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

/// What the libraries for NATS and Kafka say of their work is left out: what operators have to know
/// of it, the broker says. That of Kafka warns of each attempt to connect.
fn filter(level: LevelFilter) -> EnvFilter {
    let own = EnvFilter::default().add_directive(level.into());
    let quiet: &[&str] = match level {
        LevelFilter::INFO => &["async_nats=warn", "krafka=error"],
        LevelFilter::WARN => &["krafka=error"],
        _ => &[],
    };
    let directives = quiet.iter().filter_map(|directive| directive.parse().ok());
    directives.fold(own, EnvFilter::add_directive)
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// All levels, from the one with the fewest lines on.
pub(crate) const LEVELS: [LogLevel; 5] =
    [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug, LogLevel::Trace];

/// The logger of this process; loggers are global, and so is this one.
static INSTALLED: OnceLock<Logging> = OnceLock::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_of_people_who_want_them() {
        assert!(wants_colours(true, None) && wants_colours(true, Some("".as_ref())));
        assert!(!wants_colours(true, Some("1".as_ref())) && !wants_colours(false, None));
    }
}
