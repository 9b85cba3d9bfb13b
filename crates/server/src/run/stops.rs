//! SIGTERM and SIGINT for a node of a cluster before it serves: it may wait for NATS, or for its
//! turn, as long as it takes, and is to end in order all the while.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The signals that were caught, and what they do now.
#[derive(Clone)]
pub(super) struct Stops {
    is_asked: Arc<AtomicBool>,
    action: Arc<Mutex<Option<Action>>>,
}

type Action = Box<dyn FnOnce() + Send>;

impl Stops {
    /// From now on the signals do not end the process.
    ///
    /// # Errors
    ///
    /// When the system gives no handler or thread.
    pub(super) fn catch() -> io::Result<Self> {
        let stops = Self { is_asked: Arc::default(), action: Arc::default() };
        for signal in [SIGINT, SIGTERM] {
            // Set by the handler itself: who looks behind a signal does not miss it.
            signal_hook::flag::register(signal, stops.is_asked.clone())?;
        }
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let own = stops.clone();
        std::thread::Builder::new().name("stops".into()).spawn(move || {
            for _ in signals.forever() {
                own.act();
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
        *self.action.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
        if self.are_asked() {
            self.act();
        }
    }

    fn act(&self) {
        let action = self.action.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(action) = action {
            action();
        }
    }
}
