//! Signals for a node of a cluster before it serves: it may wait for NATS, or for its turn, as long
//! as it takes. SIGTERM and SIGINT end it in order all the while, and SIGHUP is heard.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::logging::Logging;

/// The signals that were caught, and what they do now.
#[derive(Clone)]
pub(super) struct Stops {
    is_asked: Arc<AtomicBool>,
    actions: Arc<Mutex<Actions>>,
}

#[derive(Default)]
struct Actions {
    stop: Option<Box<dyn FnOnce() + Send>>,
    reload: Option<Arc<dyn Fn() + Send + Sync>>,
    is_handed_over: bool,
}

impl Stops {
    /// From now on the signals do not end the process.
    ///
    /// # Errors
    ///
    /// When the system gives no handler or thread.
    pub(super) fn catch() -> io::Result<Self> {
        let stops = Self { is_asked: Arc::default(), actions: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // Set by the handler itself: who looks behind a signal does not miss it.
            signal_hook::flag::register(signal, stops.is_asked.clone())?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let own = stops.clone();
        std::thread::Builder::new().name("stops".into()).spawn(move || {
            for signal in signals.forever() {
                match signal {
                    SIGHUP => own.reload(),
                    _ => own.stop(),
                }
            }
        })?;
        Ok(stops)
    }

    /// A stop was asked for, at any time.
    pub(super) fn are_asked(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }

    /// The same, for others to look at.
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        self.is_asked.clone()
    }

    /// What a stop does from now on, once. One that was asked for before does it at once.
    pub(super) fn set(&self, action: impl FnOnce() + Send + 'static) {
        self.lock().stop = Some(Box::new(action));
        if self.are_asked() {
            self.stop();
        }
    }

    /// What SIGHUP does from now on, beside opening the log file anew.
    pub(super) fn set_reload(&self, action: impl Fn() + Send + Sync + 'static) {
        self.lock().reload = Some(Arc::new(action));
    }

    /// From now on signals are heard by those who wait for them. One that came before comes again.
    ///
    /// # Errors
    ///
    /// When the system does not send it.
    pub(super) fn hand_over(&self) -> io::Result<()> {
        *self.lock() = Actions { is_handed_over: true, ..Actions::default() };
        match self.are_asked() {
            true => signal_hook::low_level::raise(SIGTERM),
            false => Ok(()),
        }
    }

    fn stop(&self) {
        let action = self.lock().stop.take();
        if let Some(action) = action {
            action();
        }
    }

    fn reload(&self) {
        let (action, is_handed_over) = {
            let actions = self.lock();
            (actions.reload.clone(), actions.is_handed_over)
        };
        if is_handed_over {
            return;
        }
        if let Err(error) = Logging::reopen_installed() {
            tracing::error!(%error, "the log file was not reopened; the old one stays in use");
        }
        match action {
            Some(action) => action(),
            None => tracing::info!(
                "SIGHUP ignored: files are read when this node becomes \
            standby or active"
            ),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Actions> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
