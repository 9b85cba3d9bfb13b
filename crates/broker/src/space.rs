//! What shards know of a namespace beside its number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::Scope;

/// Those that there are, but for the first scope. Asked when a client connects.
#[derive(Debug, Default)]
pub struct Spaces(RwLock<BTreeMap<Scope, Arc<Space>>>);

/// One of them.
#[derive(Debug, Default)]
pub struct Space {
    is_closed: AtomicBool,
}

impl Spaces {
    pub fn get(&self, scope: Scope) -> Option<Arc<Space>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&scope).cloned()
    }

    /// From now on there is one, if there was none.
    pub fn open(&self, scope: Scope) -> Arc<Space> {
        if let Some(known) = self.get(scope) {
            return known;
        }
        let mut spaces = self.0.write().unwrap_or_else(PoisonError::into_inner);
        spaces.entry(scope).or_default().clone()
    }

    /// There is none any more.
    pub fn close(&self, scope: Scope) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&scope);
    }
}

impl Space {
    /// A closed one takes no clients.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}
