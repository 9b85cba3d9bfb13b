//! Limits and counts of connections, for each running listener and for the broker.

use std::array;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use broker::Limits;
use codec::Reason;

use config::CertificateIdentity;
use identity::auth::Chain;
use identity::auth::bans::Bans;
use identity::namespaces::Belonging;

/// Limits the connections of the broker, and has its bans and the counts of its listeners.
#[derive(Debug, Default)]
pub struct ConnectionLimiter {
    connections: AtomicU32,
    /// 0: no limit.
    connections_max: AtomicU32,
    listeners: Mutex<Vec<(String, Arc<Counts>)>>,
    pub(crate) bans: Bans,
    /// Calls of the management API with a wrong token or password.
    pub(crate) api_refused: AtomicU64,
}

/// Counts of one listener.
#[derive(Debug)]
pub struct Counts {
    /// URLs that identify it in addition to its name.
    pub(crate) urls: Vec<String>,
    /// Present ones, not admitted ones included.
    pub connections: AtomicU32,
    pub accepted: AtomicU64,
    pub admitted: AtomicU64,
    /// An operator has paused the listener: it admits no clients.
    pub is_paused: AtomicBool,
    turned_away: [AtomicU64; TurnedAway::ALL.len()],
    /// By reason code.
    refused: [AtomicU64; 256],
}

/// Why a connection ended before it was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnedAway {
    Handshake,
    Timeout,
    Closed,
    Refused,
    Resources,
    /// Its address is banned.
    Banned,
    /// The listener is paused.
    Paused,
}

/// One running listener.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) name: String,
    pub(super) limits: Arc<Limits>,
    pub(super) allow_anonymous: bool,
    /// The providers that authenticate its clients.
    pub(super) chain: Chain,
    pub(super) identity: CertificateIdentity,
    /// To which namespaces they belong.
    pub(super) belonging: Belonging,
    /// TLS or WebSocket.
    pub(super) has_layers: bool,
    /// 0: no limit.
    pub(super) connections_max: u32,
    pub(super) counts: Arc<Counts>,
    pub(super) limiter: Arc<ConnectionLimiter>,
}

/// The permit of one connection; dropping it releases it.
#[derive(Debug)]
pub(super) struct ConnectionPermit(Arc<Listener>);

impl ConnectionLimiter {
    pub fn new(connections_max: u32) -> Self {
        Self { connections_max: connections_max.into(), ..Self::default() }
    }

    /// One with bans.
    pub(super) fn with_bans(connections_max: u32, bans: Bans) -> Self {
        Self { connections_max: connections_max.into(), bans, ..Self::default() }
    }

    /// Applies to new connections: those that are open stay.
    pub(super) fn set_connections_max(&self, connections_max: u32) {
        self.connections_max.store(connections_max, Ordering::Relaxed);
    }

    /// The counts of a new listener. The last of its URLs is where it really listens.
    pub fn add_listener(&self, name: &str, urls: Vec<String>) -> Arc<Counts> {
        let counts = Arc::new(Counts { urls, ..Counts::new() });
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.push((name.to_owned(), counts.clone()));
        counts
    }

    /// Those of a name, or of a URL where none has that name.
    pub(crate) fn listeners_of(&self, text: &str) -> Vec<(String, Arc<Counts>)> {
        let (named, others): (Vec<_>, Vec<_>) =
            self.listeners().into_iter().partition(|(name, _)| name == text);
        if !named.is_empty() {
            return named;
        }
        others.into_iter().filter(|(_, counts)| counts.urls.iter().any(|url| url == text)).collect()
    }

    /// All listeners by name, in the order of the configuration.
    pub fn listeners(&self) -> Vec<(String, Arc<Counts>)> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Present connections of all listeners.
    pub(super) fn connections(&self) -> u64 {
        let present = |(_, counts): &(_, Arc<Counts>)| counts.connections.load(Ordering::Relaxed);
        self.listeners().iter().map(|listener| u64::from(present(listener))).sum()
    }

    /// Network connections that all listeners have accepted.
    pub fn accepted(&self) -> u64 {
        let accepted = |(_, counts): &(_, Arc<Counts>)| counts.accepted.load(Ordering::Relaxed);
        self.listeners().iter().map(accepted).sum()
    }
}

impl Counts {
    fn new() -> Self {
        Self {
            urls: Vec::new(),
            connections: AtomicU32::new(0),
            accepted: AtomicU64::new(0),
            admitted: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
            turned_away: array::from_fn(|_| AtomicU64::new(0)),
            refused: array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    pub fn turn_away(&self, why: TurnedAway) {
        self.turned_away[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub fn turned_away(&self, why: TurnedAway) -> u64 {
        self.turned_away[why as usize].load(Ordering::Relaxed)
    }

    pub fn refuse(&self, reason: Reason) {
        self.refused[usize::from(reason.0)].fetch_add(1, Ordering::Relaxed);
    }

    /// The reason codes that there were, with how often.
    pub fn refused(&self) -> impl Iterator<Item = (Reason, u64)> {
        let counts = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        let codes = (0..=u8::MAX).map(Reason);
        codes.zip(counts).filter(|(_, count)| *count > 0)
    }
}

impl TurnedAway {
    pub const ALL: [Self; 7] = [
        Self::Handshake,
        Self::Timeout,
        Self::Closed,
        Self::Refused,
        Self::Resources,
        Self::Banned,
        Self::Paused,
    ];

    /// For a label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Handshake => "handshake",
            Self::Timeout => "timeout",
            Self::Closed => "closed",
            Self::Refused => "refused",
            Self::Resources => "resources",
            Self::Banned => "banned",
            Self::Paused => "paused",
        }
    }
}

impl Listener {
    /// The one that bridges of this broker count as. It has no socket, and no row in any list.
    pub(super) fn of_bridges(limits: &Arc<Limits>, limiter: &Arc<ConnectionLimiter>) -> Arc<Self> {
        Arc::new(Self {
            name: "bridge".into(),
            limits: limits.clone(),
            allow_anonymous: false,
            chain: Arc::default(),
            identity: CertificateIdentity::None,
            belonging: Belonging::default(),
            has_layers: false,
            connections_max: 0,
            counts: Arc::new(Counts::new()),
            limiter: limiter.clone(),
        })
    }

    /// Acquires a permit for one connection. None: the listener or the broker is full.
    pub(super) fn acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        if !take(&self.counts.connections, self.connections_max) {
            return None;
        }
        if !take(&self.limiter.connections, self.limiter.connections_max.load(Ordering::Relaxed)) {
            self.counts.connections.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(ConnectionPermit(self.clone()))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.counts.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.limiter.connections.fetch_sub(1, Ordering::Relaxed);
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
    fn permits_are_counted_and_released() {
        let limiter = Arc::new(ConnectionLimiter::new(2));
        let listener = Arc::new(Listener {
            name: "one".into(),
            limits: Arc::default(),
            allow_anonymous: true,
            chain: Arc::default(),
            identity: CertificateIdentity::None,
            belonging: Belonging::default(),
            has_layers: false,
            connections_max: 0,
            counts: limiter.add_listener("one", Vec::new()),
            limiter: limiter.clone(),
        });
        let first = listener.acquire();
        let second = listener.acquire();
        assert!(first.is_some() && second.is_some());
        assert!(listener.acquire().is_none());
        drop(first);
        assert!(listener.acquire().is_some());
        drop(second);
        assert_eq!(listener.counts.connections.load(Ordering::Relaxed), 0);
        assert_eq!(limiter.connections.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_listener_is_found_by_its_name_and_by_its_urls() {
        let limiter = ConnectionLimiter::new(0);
        let urls = |port: u16| vec!["tcp://*:0".to_owned(), format!("tcp://[::]:{port}")];
        limiter.add_listener("plain", urls(1));
        limiter.add_listener("tcp://*:0", urls(2));
        limiter.add_listener("third", urls(3));
        let found = |text: &str| -> Vec<String> {
            limiter.listeners_of(text).into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(found("plain"), ["plain"]);
        assert_eq!(found("tcp://[::]:3"), ["third"]);
        assert_eq!(found("tcp://*:0"), ["tcp://*:0"], "a name goes before a URL");
        assert_eq!(found("tcp://[::]:4"), Vec::<String>::new());
    }

    #[test]
    fn reasons_are_counted_apart() {
        for (index, why) in TurnedAway::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, index);
        }
        let counts = Counts::new();
        counts.turn_away(TurnedAway::Timeout);
        counts.refuse(Reason::NOT_AUTHORIZED);
        counts.refuse(Reason::NOT_AUTHORIZED);
        assert_eq!(TurnedAway::ALL.map(|why| counts.turned_away(why)), [0, 1, 0, 0, 0, 0, 0]);
        assert_eq!(counts.refused().collect::<Vec<_>>(), [(Reason::NOT_AUTHORIZED, 2)]);
    }
}
