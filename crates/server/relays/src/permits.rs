//! How many relays there are, and how much is lent to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) relays_max: usize,
    pub(crate) relay_bytes_max: u64,
    /// To other nodes, and from them.
    relays: [AtomicUsize; 2],
    all: AtomicUsize,
    lent_bytes: AtomicU64,
    refused: AtomicU64,
}

/// Which end of a relay is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Front,
    Home,
}

/// The right to one relay.
#[derive(Debug)]
pub(crate) struct Permit {
    counts: Arc<Counts>,
    pub(crate) end: End,
}

impl Counts {
    pub(crate) fn new(relays_max: usize, relay_bytes_max: u64) -> Self {
        let (relays, all) = (Default::default(), AtomicUsize::new(0));
        let (lent_bytes, refused) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { relays_max, relay_bytes_max, relays, all, lent_bytes, refused }
    }

    pub(crate) fn permit(self: &Arc<Self>, end: End) -> Option<Permit> {
        let next = |count| (count < self.relays_max).then_some(count + 1);
        self.all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()?;
        self.relays[end as usize].fetch_add(1, Ordering::Relaxed);
        Some(Permit { counts: Arc::clone(self), end })
    }

    /// False: all is lent. One thread lends.
    pub(crate) fn lend(&self, bytes: u32) -> bool {
        let lent = self.lent_bytes() + u64::from(bytes);
        let may = lent <= self.relay_bytes_max;
        if may {
            self.lent_bytes.store(lent, Ordering::Relaxed);
        }
        may
    }

    pub(crate) fn take_back(&self, bytes: u32) {
        debug_assert!(self.lent_bytes() >= bytes.into(), "{bytes} were lent");
        self.lent_bytes.fetch_sub(bytes.into(), Ordering::Relaxed);
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn relays(&self, end: End) -> usize {
        self.relays[end as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn lent_bytes(&self) -> u64 {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.counts.relays[self.end as usize].fetch_sub(1, Ordering::Relaxed);
        self.counts.all.fetch_sub(1, Ordering::Relaxed);
    }
}
