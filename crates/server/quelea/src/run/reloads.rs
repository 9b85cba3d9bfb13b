//! Reloads: what was taken and what was refused, for callers of the API who wait for that.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use signal_hook::consts::SIGHUP;
use signal_hook::low_level::raise;
use tokio::sync::oneshot;

/// The part of a reload that has the registries.
pub(crate) const REGISTRIES: &str = "registries";

/// What came of a reload, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reloaded {
    pub(crate) parts: Vec<ReloadedPart>,
    /// Keys that were set while running, and have their configured value again.
    pub(crate) taken_back: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReloadedPart {
    pub(crate) name: String,
    /// Why the old one stays in use; none: the new one is.
    pub(crate) error: Option<String>,
}

/// Those who wait. They are few: each is a call of the API.
#[derive(Debug, Default)]
pub(crate) struct Reloads {
    waiting: Mutex<Vec<oneshot::Sender<Reloaded>>>,
}

impl Reloaded {
    pub(super) fn note<T>(&mut self, name: &str, done: &Result<T, impl std::fmt::Display>) {
        let error = done.as_ref().err().map(|error| format!("{error:#}"));
        self.parts.push(ReloadedPart { name: name.to_owned(), error });
    }
}

impl Reloads {
    /// Asks for a reload as SIGHUP does.
    ///
    /// # Errors
    ///
    /// The system does not take the signal.
    pub(crate) fn ask(&self) -> io::Result<oneshot::Receiver<Reloaded>> {
        let (answer, given) = oneshot::channel();
        self.lock().push(answer);
        raise(SIGHUP)?;
        Ok(given)
    }

    /// A reload begins, for those who have asked by now.
    pub(super) fn begin(&self) -> Vec<oneshot::Sender<Reloaded>> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<oneshot::Sender<Reloaded>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_listed_with_what_was_wrong() {
        let mut reloaded = Reloaded::default();
        reloaded.note("bans", &Ok::<(), String>(()));
        reloaded.note("rules", &Err::<(), _>(anyhow::anyhow!("line 7").context("policy")));
        let error = |at: usize| reloaded.parts[at].error.as_deref();
        assert_eq!((error(0), error(1)), (None, Some("policy: line 7")));
    }
}
