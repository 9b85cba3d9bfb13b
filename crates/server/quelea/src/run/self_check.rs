//! The broker as a client of its own: at an interval it connects to each listener, publishes at QoS
//! 1, and waits for the message.
//!
//! The client proves itself by a secret of the process, and lives in a scope that no other client
//! can come to: nobody can subscribe to its topic, publish there, or take over its session.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use broker::admission::Credentials;
use broker::{Scope, Shared};
use client::blocking::{Client, ClientError, Message};
use client::{ConnectOptions, Endpoint, TlsOptions};
use codec::{QoS, Reason, SubscribeOptions};

use super::limiter::Counts;
use base::{equal_in_constant_time, random};
use config::{ClientAuth, Config, Listener, SelfCheck};

/// The scope of these clients. Namespaces are numbered from 1, and never come so far.
pub(crate) const SCOPE: Scope = Scope::new(u16::MAX);

/// The name of the scope for operators.
pub(crate) const NAMESPACE: &str = "$self-check";

/// Results of the checks of all listeners, for metrics and `/readyz`.
#[derive(Default)]
pub struct SelfChecks {
    /// What the client proves itself with. `None`: nothing is checked.
    secret: Option<String>,
    failures_max: u32,
    listeners: Mutex<Vec<Arc<Checked>>>,
}

/// Results of one listener.
#[derive(Debug, Default)]
pub struct Checked {
    pub name: String,
    pub succeeded: AtomicU64,
    pub failed: AtomicU64,
    /// The broker refused the client for want of resources, or because an operator paused the
    /// listener. That is no failure.
    pub refused: AtomicU64,
    /// From the PUBLISH to the message, the last time.
    pub round_trip_nanos: AtomicU64,
    failures_in_a_row: AtomicU32,
    last_error: Mutex<String>,
}

/// A listener as the checks see it.
struct Target {
    endpoint: Endpoint,
    client_id: String,
    qos: QoS,
    counts: Option<Arc<Counts>>,
    checked: Arc<Checked>,
}

/// The thread that checks. It ends with the process, or when it is stopped.
pub(super) struct SelfChecker {
    is_over: Arc<AtomicBool>,
    thread: std::thread::Thread,
}

impl SelfChecks {
    pub(super) fn new(config: &SelfCheck) -> Self {
        let fresh = || random::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            secret: (config.interval_secs > 0).then(fresh),
            failures_max: config.failures_max,
            listeners: Mutex::default(),
        }
    }

    /// Is this the client of the checks?
    pub(super) fn recognizes(&self, credentials: &Credentials) -> bool {
        let Some(secret) = &self.secret else { return false };
        credentials.request.username.as_deref() == Some(USERNAME)
            && credentials
                .password
                .as_deref()
                .is_some_and(|shown| equal_in_constant_time(shown, secret.as_bytes()))
    }

    /// The results of another listener.
    pub fn add_listener(&self, name: &str) -> Arc<Checked> {
        let checked = Arc::new(Checked { name: name.to_owned(), ..Checked::default() });
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(checked.clone());
        checked
    }

    /// Results so far, in the order of the listeners.
    pub fn listeners(&self) -> Vec<Arc<Checked>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Which listener fails, if one has failed too often in a row.
    pub(super) fn why_not_ready(&self) -> Option<String> {
        let failing = self.listeners().into_iter().find(|checked| {
            let failures = checked.failures_in_a_row.load(Ordering::Relaxed);
            failures >= self.failures_max.max(1)
        })?;
        let error = failing.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some(format!("self-check of listener '{}' fails: {error}", failing.name))
    }

    /// Starts to check the listeners of the configuration, which are open at these URLs. `None`:
    /// the checks are off.
    pub(super) fn start(
        &self,
        config: &Config,
        shared: &Shared,
        urls: &[String],
        counts: &[(String, Arc<Counts>)],
    ) -> io::Result<Option<SelfChecker>> {
        let Some(secret) = self.secret.clone() else { return Ok(None) };
        shared.spaces.open(SCOPE).set_name(NAMESPACE);
        let mut targets = Vec::new();
        for (number, (listener, url)) in config.listeners.iter().zip(urls).enumerate() {
            if let Some(why) = why_unchecked(listener) {
                tracing::info!(listener = listener.name, "no self-check: {why}");
                continue;
            }
            let counts = counts.iter().find(|(name, _)| *name == listener.name);
            targets.push(Target {
                endpoint: endpoint(&reachable(url)),
                client_id: format!("{USERNAME}-{number}"),
                qos: if listener.limits.qos_max == 0 { QoS::AtMostOnce } else { QoS::AtLeastOnce },
                counts: counts.map(|(_, counts)| counts.clone()),
                checked: self.add_listener(&listener.name),
            });
        }
        let interval = Duration::from_secs(config.self_check.interval_secs.into());
        SelfChecker::start(targets, secret, interval).map(Some)
    }
}

impl SelfChecker {
    fn start(targets: Vec<Target>, secret: String, interval: Duration) -> io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let run = move || {
            while !over.load(Ordering::Acquire) {
                let next = Instant::now() + interval;
                for target in &targets {
                    target.look(&secret, &over);
                }
                while !over.load(Ordering::Acquire) && Instant::now() < next {
                    std::thread::park_timeout(next.saturating_duration_since(Instant::now()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("self-check".into()).spawn(run)?;
        Ok(Self { is_over, thread: thread.thread().clone() })
    }

    /// A check that is under way may go on for its time; its result does not count.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Target {
    fn look(&self, secret: &str, is_over: &AtomicBool) {
        let is_paused =
            || self.counts.as_ref().is_some_and(|counts| counts.is_paused.load(Ordering::Relaxed));
        if is_paused() {
            self.checked.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        match self.check(secret) {
            Ok(took) => self.checked.note_success(took),
            Err(ClientError::Refused { reason, .. }) if LIMITS.contains(&reason) => {
                tracing::debug!(listener = self.checked.name, %reason, "self-check refused");
                self.checked.refused.fetch_add(1, Ordering::Relaxed);
            }
            // A broker that stops, or a listener that was paused meanwhile, fails nobody.
            Err(_) if is_over.load(Ordering::Acquire) || is_paused() => {}
            Err(error) => self.checked.note_failure(&error.to_string()),
        }
    }

    fn check(&self, secret: &str) -> Result<Duration, ClientError> {
        let options = ConnectOptions {
            client_id: self.client_id.clone(),
            username: Some(USERNAME.to_owned()),
            password: Some(secret.as_bytes().to_vec()),
            ..ConnectOptions::default()
        };
        let (mut client, _) = Client::connect(&self.endpoint, &options, TIME_MAX)?;
        client.subscribe(&[(&*self.client_id, SubscribeOptions::new(self.qos))])?;
        let nonce: [u8; 16] = random();
        let began = Instant::now();
        let reason = client.publish(&Message::new(&*self.client_id, nonce).qos(self.qos))?;
        if reason.0 >= FIRST_ERROR {
            return Err(ClientError::Refused { reason, why: "PUBLISH".to_owned() });
        }
        let message = client.recv(Some(TIME_MAX))?.ok_or(ClientError::TimedOut(TIME_MAX))?;
        if message.payload != nonce {
            return Err(io::Error::other("another message came than was published").into());
        }
        let took = began.elapsed();
        client.disconnect()?;
        Ok(took)
    }
}

impl Checked {
    fn note_success(&self, took: Duration) {
        self.succeeded.fetch_add(1, Ordering::Relaxed);
        self.round_trip_nanos.store(took.as_nanos() as u64, Ordering::Relaxed);
        if self.failures_in_a_row.swap(0, Ordering::Relaxed) > 0 {
            tracing::info!(listener = self.name, "self-check succeeds again");
        }
    }

    fn note_failure(&self, error: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        error.clone_into(&mut self.last_error.lock().unwrap_or_else(PoisonError::into_inner));
        let failures = self.failures_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!(listener = self.name, failures, error, "self-check failed");
    }

    /// Did the last check succeed?
    pub fn is_fine(&self) -> bool {
        self.failures_in_a_row.load(Ordering::Relaxed) == 0
            && self.succeeded.load(Ordering::Relaxed) > 0
    }
}

/// Why a listener cannot be checked from here, if it cannot.
fn why_unchecked(listener: &Listener) -> Option<&'static str> {
    if listener.trusted_proxies.is_some() {
        return Some("the listener expects a PROXY header from its proxies");
    }
    let is_required = |auth: ClientAuth| auth == ClientAuth::Require;
    let asks = listener.tls.as_ref().is_some_and(|tls| is_required(tls.client_auth));
    asks.then_some("the listener requires client certificates")
}

/// The certificate is not issued for the address, and both ends are the same process.
fn endpoint(url: &str) -> Endpoint {
    let tls = TlsOptions { insecure: true, ..TlsOptions::default() };
    Endpoint { url: url.to_owned(), tls, ..Endpoint::default() }
}

/// A listener on all addresses is there on loopback.
fn reachable(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let Ok(address) = authority.parse::<SocketAddr>() else { return url.to_owned() };
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    format!("{scheme}://{}{path}", SocketAddr::new(ip, address.port()))
}

const USERNAME: &str = "$self-check";

/// For each answer of the broker.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Reason codes from here on are errors.
const FIRST_ERROR: u8 = 0x80;

/// Answers of a broker that works and is at a limit, or that another node stands in for.
const LIMITS: [Reason; 4] = [
    Reason::SERVER_BUSY,
    Reason::QUOTA_EXCEEDED,
    Reason::SERVER_UNAVAILABLE,
    Reason::USE_ANOTHER_SERVER,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_loopback() {
        for (url, reached) in [
            ("tcp://0.0.0.0:1883", "tcp://127.0.0.1:1883"),
            ("wss://[::]:443/mqtt", "wss://[::1]:443/mqtt"),
            ("tls://192.0.2.1:8883", "tls://192.0.2.1:8883"),
            ("unix:///run/q.sock", "unix:///run/q.sock"),
        ] {
            assert_eq!(reachable(url), reached);
        }
    }

    #[test]
    fn readiness_ends_after_failures_in_a_row_only() {
        let config = SelfCheck { interval_secs: 1, failures_max: 3 };
        let checks = SelfChecks::new(&config);
        let checked = checks.add_listener("a");
        checked.note_failure("x");
        checked.note_failure("x");
        checked.note_success(Duration::from_millis(1));
        checked.note_failure("x");
        checked.note_failure("x");
        assert_eq!((checks.why_not_ready(), checked.is_fine()), (None, false));
        checked.note_failure("no answer");
        let why = checks.why_not_ready().unwrap();
        assert_eq!(why, "self-check of listener 'a' fails: no answer");
        checked.note_success(Duration::from_millis(1));
        assert_eq!((checks.why_not_ready(), checked.is_fine()), (None, true));
    }
}
