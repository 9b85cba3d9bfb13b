//! Who may come in: the running listeners with their limits and counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use broker::Limits;

use crate::config::CertificateIdentity;

/// Counts of the whole broker.
#[derive(Debug, Default)]
pub struct Gate {
    connections: AtomicU32,
    /// 0: no limit.
    pub(super) connections_max: u32,
    pub accepted: AtomicU64,
    /// Connections that ended before they were admitted.
    pub refused: AtomicU64,
}

/// One running listener.
#[derive(Debug)]
pub(super) struct Entrance {
    pub(super) name: String,
    pub(super) limits: Arc<Limits>,
    pub(super) allow_anonymous: bool,
    pub(super) identity: CertificateIdentity,
    /// 0: no limit.
    pub(super) connections_max: u32,
    pub(super) connections: AtomicU32,
    pub(super) gate: Arc<Gate>,
}

/// A counted connection; dropping it gives the place back.
#[derive(Debug)]
pub(super) struct Seat(Arc<Entrance>);

impl Gate {
    pub(super) fn new(connections_max: u32) -> Self {
        Self { connections_max, ..Self::default() }
    }
}

impl Entrance {
    /// Takes a place for one connection. None: the listener or the broker is full.
    pub(super) fn sit(self: &Arc<Self>) -> Option<Seat> {
        if !take(&self.connections, self.connections_max) {
            return None;
        }
        if !take(&self.gate.connections, self.gate.connections_max) {
            self.connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(Seat(self.clone()))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.gate.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn take(count: &AtomicU32, max: u32) -> bool {
    let taken = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
        (max == 0 || now < max).then_some(now + 1)
    });
    taken.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let gate = Arc::new(Gate::new(2));
        let entrance = Arc::new(Entrance {
            name: "one".into(),
            limits: Arc::default(),
            allow_anonymous: true,
            identity: CertificateIdentity::None,
            connections_max: 0,
            connections: AtomicU32::new(0),
            gate: gate.clone(),
        });
        let first = entrance.sit();
        let second = entrance.sit();
        assert!(first.is_some() && second.is_some());
        assert!(entrance.sit().is_none());
        drop(first);
        assert!(entrance.sit().is_some());
        drop(second);
        assert_eq!(entrance.connections.load(Ordering::Relaxed), 0);
        assert_eq!(gate.connections.load(Ordering::Relaxed), 0);
    }
}
