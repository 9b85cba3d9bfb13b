//! What is known of each bridge, for metrics and the management API.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bridge::{Counts, Refusal};

/// All bridges, in the order of the configuration.
#[derive(Debug, Default)]
pub struct BridgeBoard {
    bridges: Vec<Arc<Figures>>,
}

/// Of one bridge. Its thread writes.
#[derive(Debug)]
pub(crate) struct Figures {
    name: String,
    state: AtomicU8,
    texts: Mutex<Texts>,
    /// Of the connections before the present one.
    before: Mutex<Counts>,
    now: Mutex<Counts>,
    attempts: AtomicU64,
    connects: AtomicU64,
    lag_messages: AtomicU64,
    lag_bytes: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Texts {
    address: String,
    error: String,
    refused: Vec<String>,
}

/// Whether a bridge is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BridgeState {
    Connecting,
    Connected,
    /// For the next attempt.
    Waiting,
    Stopped,
}

/// A copy of the figures of a bridge.
#[derive(Clone, Debug)]
pub(crate) struct BridgeFigures {
    pub(crate) name: String,
    pub(crate) state: BridgeState,
    /// That was tried last.
    pub(crate) address: String,
    /// Why the last connection ended; empty: there was no error.
    pub(crate) error: String,
    /// Subscriptions that are refused now.
    pub(crate) refused: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) attempts: u64,
    pub(crate) connects: u64,
    pub(crate) lag_messages: u64,
    pub(crate) lag_bytes: u64,
}

impl BridgeBoard {
    /// One for bridges with these names.
    pub fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        Self { bridges: names.map(|name| Arc::new(Figures::new(name))).collect() }
    }

    pub(super) fn all(&self) -> &[Arc<Figures>] {
        &self.bridges
    }

    pub(crate) fn figures(&self) -> Vec<BridgeFigures> {
        self.bridges.iter().map(|figures| figures.copy()).collect()
    }
}

impl BridgeState {
    const ALL: [Self; 4] = [Self::Connecting, Self::Connected, Self::Waiting, Self::Stopped];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Connected => "connected",
            Self::Waiting => "waiting",
            Self::Stopped => "stopped",
        }
    }
}

impl Figures {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            state: AtomicU8::new(BridgeState::Connecting as u8),
            texts: Mutex::default(),
            before: Mutex::default(),
            now: Mutex::default(),
            attempts: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            lag_messages: AtomicU64::new(0),
            lag_bytes: AtomicU64::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The address that was tried last.
    pub(super) fn address(&self) -> String {
        lock(&self.texts).address.clone()
    }

    /// An attempt to connect begins.
    pub(super) fn begin(&self, address: String) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        self.set_state(BridgeState::Connecting);
        let mut texts = lock(&self.texts);
        texts.address = address;
        texts.refused.clear();
    }

    pub(super) fn set_state(&self, state: BridgeState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(super) fn set_connected(&self) {
        self.connects.fetch_add(1, Ordering::Relaxed);
        lock(&self.texts).error.clear();
        self.set_state(BridgeState::Connected);
    }

    pub(super) fn set_error(&self, text: &str) {
        lock(&self.texts).error = text.into();
    }

    pub(super) fn add_refused(&self, text: String) {
        lock(&self.texts).refused.push(text);
    }

    /// Those of the present connection.
    pub(super) fn set_counts(&self, counts: &Counts) {
        *lock(&self.now) = *counts;
    }

    /// The present connection has ended.
    pub(super) fn settle_counts(&self) {
        let (mut before, mut now) = (lock(&self.before), lock(&self.now));
        *before = sum(&before, &now);
        *now = Counts::default();
    }

    pub(super) fn set_lag(&self, messages: u64, bytes: u64) {
        self.lag_messages.store(messages, Ordering::Relaxed);
        self.lag_bytes.store(bytes, Ordering::Relaxed);
    }

    fn copy(&self) -> BridgeFigures {
        let Texts { address, error, refused } = lock(&self.texts).clone();
        let counts = {
            let (before, now) = (lock(&self.before), lock(&self.now));
            sum(&before, &now)
        };
        let state = usize::from(self.state.load(Ordering::Relaxed));
        BridgeFigures {
            name: self.name.clone(),
            state: BridgeState::ALL[state],
            address,
            error,
            refused,
            counts,
            attempts: self.attempts.load(Ordering::Relaxed),
            connects: self.connects.load(Ordering::Relaxed),
            lag_messages: self.lag_messages.load(Ordering::Relaxed),
            lag_bytes: self.lag_bytes.load(Ordering::Relaxed),
        }
    }
}

fn sum(one: &Counts, other: &Counts) -> Counts {
    let mut sum = *one;
    sum.sent += other.sent;
    sum.received += other.received;
    for side in 0..2 {
        sum.rejected[side] += other.rejected[side];
        for refusal in Refusal::ALL {
            sum.refused[side][refusal as usize] += other.refused[side][refusal as usize];
        }
    }
    sum
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
