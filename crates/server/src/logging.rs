//! Log lines: text for people, with colours only on a terminal, or one JSON object per line.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{LogConfig, LogFormat, LogLevel, LogTarget};

/// The installed logger.
#[derive(Clone, Debug)]
pub struct Logging {
    file: Option<LogFile>,
}

/// Logs cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    #[error("cannot open log file {path}: {cause}")]
    Open { path: String, cause: io::Error },
    #[error("a logger is already installed")]
    Installed,
}

/// A file that is opened anew when asked to, after a rotation has moved it away.
#[derive(Clone, Debug)]
struct LogFile {
    path: Arc<PathBuf>,
    file: Arc<Mutex<File>>,
}

/// Holds the file while one line is written, so that lines of threads do not mix.
struct LockedFile<'a>(MutexGuard<'a, File>);

impl Logging {
    /// Opens the log file of the installed logger anew, as after a rotation. Does nothing when logs
    /// do not go to a file.
    ///
    /// # Errors
    ///
    /// When it cannot be opened; the old one then stays in use.
    pub fn reopen_installed() -> Result<(), LoggingError> {
        INSTALLED.get().map_or(Ok(()), Self::reopen)
    }

    /// Installs the logger of this process.
    ///
    /// # Errors
    ///
    /// When the log file cannot be opened, or a logger is there already.
    pub fn install(config: &LogConfig) -> Result<Self, LoggingError> {
        let file = match &config.target {
            LogTarget::File(path) => Some(LogFile::open(path)?),
            LogTarget::Stderr | LogTarget::Stdout => None,
        };
        let installed = match (&config.target, &file) {
            (_, Some(file)) => install(config, file.clone(), false),
            (LogTarget::Stdout, _) => install(config, io::stdout, has_colours(&io::stdout())),
            _ => install(config, io::stderr, has_colours(&io::stderr())),
        };
        installed.map_err(|_| LoggingError::Installed)?;
        let logging = Self { file };
        // Only one logger can be installed, so this is the first value.
        Ok(INSTALLED.get_or_init(|| logging).clone())
    }

    fn reopen(&self) -> Result<(), LoggingError> {
        self.file.as_ref().map_or(Ok(()), LogFile::reopen)
    }
}

impl LogFile {
    fn open(path: &Path) -> Result<Self, LoggingError> {
        let file = Arc::new(Mutex::new(append_to(path)?));
        Ok(Self { path: Arc::new(path.into()), file })
    }

    fn reopen(&self) -> Result<(), LoggingError> {
        let file = append_to(&self.path)?;
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = LockedFile<'a>;

    fn make_writer(&'a self) -> LockedFile<'a> {
        LockedFile(self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for LockedFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn install<W>(config: &LogConfig, writer: W, has_colours: bool) -> Result<(), TryInitError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let base = tracing_subscriber::fmt()
        .with_max_level(level_filter(config.level))
        .with_target(false)
        .with_writer(writer);
    match config.format {
        LogFormat::Text => base.with_ansi(has_colours).finish().try_init(),
        LogFormat::Json => base.json().flatten_event(true).finish().try_init(),
    }
}

/// Only people at a terminal are shown colours, and only those who have not said `NO_COLOR`.
fn has_colours(stream: &impl IsTerminal) -> bool {
    wants_colours(stream.is_terminal(), std::env::var_os("NO_COLOR").as_deref())
}

fn wants_colours(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
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

fn append_to(path: &Path) -> Result<File, LoggingError> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(|cause| LoggingError::Open { path: path.display().to_string(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_of_people_who_want_them() {
        assert!(wants_colours(true, None) && wants_colours(true, Some("".as_ref())));
        assert!(!wants_colours(true, Some("1".as_ref())) && !wants_colours(false, None));
    }
}
