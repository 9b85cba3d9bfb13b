//! Log lines: text for people, with colours only on a terminal, or one JSON object per line. They
//! are written by a thread of their own, see `queue`.

mod fields;
mod file;
mod queue;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use config::{LogConfig, LogFormat, LogLevel, LogTarget};
use fields::QuotedFields;
use queue::{Producer, Queue, Sink};

/// How long a process that ends waits for its last lines to be written.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// The installed logger.
pub struct Logging {
    queue: Arc<Queue>,
    file: Option<PathBuf>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

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
            (_, Some(path)) => Sink::File(open(path)?),
            (LogTarget::Stdout, _) => Sink::Stdout,
            _ => Sink::Stderr,
        };
        let has_colours = match &sink {
            Sink::Stdout => has_colours(&io::stdout()),
            Sink::Stderr => has_colours(&io::stderr()),
            Sink::File(_) => false,
        };
        let (queue, thread) = Queue::start(sink).map_err(LoggingError::Thread)?;
        let logging = Self { queue: queue.clone(), file, thread: Mutex::new(Some(thread)) };
        if install(config, Producer(queue), has_colours).is_err() {
            logging.finish();
            return Err(LoggingError::Installed);
        }
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

    /// Why the broker ends. Where there is no file, standard error will say it.
    pub fn log_error(&self, error: &anyhow::Error) {
        if self.file.is_some() {
            tracing::error!(error = format!("{error:#}"), "the broker exits");
        }
    }

    /// Writes what is there and ends the thread; a log that takes longer than two seconds for it
    /// loses the rest.
    pub fn finish(&self) {
        self.queue.flush(FLUSH_MAX);
        self.queue.close();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // One that hangs in a write would hold up the end.
        if let Some(thread) = thread.filter(|_| self.queue.is_idle()) {
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> Result<File, LoggingError> {
    file::open(path).map_err(|cause| cannot_open(path, cause))
}

fn cannot_open(path: &Path, cause: io::Error) -> LoggingError {
    LoggingError::Open { path: path.display().to_string(), cause }
}

fn install(config: &LogConfig, producer: Producer, has_colours: bool) -> Result<(), TryInitError> {
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter(level_filter(config.level)))
        .with_target(false)
        .with_writer(producer);
    match config.format {
        LogFormat::Text => base.fmt_fields(QuotedFields).with_ansi(has_colours).finish().try_init(),
        LogFormat::Json => base.json().flatten_event(true).finish().try_init(),
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

/// What the library for NATS says of its work is left out: what operators have to know of it, the
/// broker says.
fn filter(level: LevelFilter) -> EnvFilter {
    let own = EnvFilter::default().add_directive(level.into());
    let quiet = level == LevelFilter::INFO;
    match "async_nats=warn".parse() {
        Ok(directive) if quiet => own.add_directive(directive),
        _ => own,
    }
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
