//! What other threads ask for.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex};

use links::Bell;

use crate::handle::lock;
use crate::task::Command;

/// Bounded by what is queued in it: see the limits of this crate.
pub(crate) struct Queue {
    commands: Mutex<VecDeque<Command>>,
    bell: Arc<Bell>,
}

impl Queue {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { commands: Mutex::default(), bell }
    }

    pub(crate) fn put(&self, command: Command) {
        lock(&self.commands).push_back(command);
        self.bell.ring();
    }

    pub(crate) fn take(&self) -> VecDeque<Command> {
        mem::take(&mut *lock(&self.commands))
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.commands).is_empty()
    }
}
