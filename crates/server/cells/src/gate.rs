//! Ends a cell at once, whatever the thread is doing.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locked while something of the cell leaves or is delivered.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: Mutex<bool>,
}

impl Gate {
    /// Waits until what is about to leave or to be delivered has been. Nothing follows.
    pub(crate) fn close(&self) {
        *self.lock() = true;
    }

    /// The cell does not end before the result is dropped. None: it has ended.
    pub(crate) fn pass(&self) -> Option<MutexGuard<'_, bool>> {
        Some(self.lock()).filter(|is_closed| !**is_closed)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
