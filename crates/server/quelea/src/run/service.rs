//! Messages to the service manager (systemd, `Type=notify`): readiness, reloads, a line of status,
//! and a watchdog that is fed only while all workers make progress.
//!
//! Without `NOTIFY_SOCKET` in the environment nothing is sent. Messages never block: a manager that
//! does not read loses them.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::mailbox::Mailbox;
use super::timing::Timing;
use crate::cluster::Acting;

/// The service manager that started this process, if it wants to be notified.
#[derive(Clone, Default)]
pub(super) struct ServiceManager(Option<Arc<Inner>>);

/// What the status line shows.
pub(super) type Describe = dyn Fn() -> String + Send + Sync;

/// Workers that the watchdog looks at.
pub(super) struct Watched {
    pub(super) mailboxes: Arc<[Arc<Mailbox>]>,
    pub(super) turns: Arc<[Timing]>,
    /// In a cluster: a worker may wait for the lease, and then the node ends by itself.
    pub(super) acting: Option<Acting>,
}

struct Inner {
    socket: UnixDatagram,
    address: SocketAddr,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    describe: Option<Arc<Describe>>,
    /// The start waits for something outside of this process.
    is_waiting: bool,
    told: String,
    watched: Option<Watched>,
}

impl ServiceManager {
    /// Finds the manager in the environment, and starts the thread of status and watchdog.
    pub(super) fn start() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(path) = variable("NOTIFY_SOCKET") else { return Self::default() };
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let interval = watchdog_of(text("WATCHDOG_USEC"), text("WATCHDOG_PID"));
        Self::open(&path, interval).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot notify the service manager (NOTIFY_SOCKET)");
            Self::default()
        })
    }

    fn open(path: &OsStr, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match path.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(WRITE_TIME_MAX))?;
        let inner = Arc::new(Inner { socket, address, state: Mutex::default() });
        let run = inner.clone();
        // It ends with the process.
        std::thread::Builder::new().name("service".into()).spawn(move || run.run(watchdog))?;
        Ok(Self(Some(inner)))
    }

    /// The start goes on: the manager shows `text`, and waits longer than it would.
    pub(super) fn progress(&self, text: &str) {
        let Some(inner) = &self.0 else { return };
        inner.send(&[&status(text), &extend(START_EXTENSION)]);
    }

    /// The start waits for something outside of this process, which `describe` names, as long as it
    /// takes.
    pub(super) fn waiting(&self, describe: impl Fn() -> String + Send + Sync + 'static) {
        let Some(inner) = &self.0 else { return };
        let mut state = inner.lock();
        state.describe = Some(Arc::new(describe));
        state.is_waiting = true;
    }

    /// The listeners are open. From now on the status is what `describe` returns.
    pub(super) fn ready(&self, describe: impl Fn() -> String + Send + Sync + 'static) {
        let Some(inner) = &self.0 else { return };
        let text = describe();
        let mut state = inner.lock();
        state.describe = Some(Arc::new(describe));
        state.is_waiting = false;
        state.told.clone_from(&text);
        drop(state);
        inner.send(&["READY=1", &status(&text)]);
    }

    /// From now on the watchdog is fed only while each of these workers makes progress.
    pub(super) fn watch(&self, watched: Watched) {
        let Some(inner) = &self.0 else { return };
        inner.lock().watched = Some(watched);
    }

    /// Does `work` as a reload.
    pub(super) fn reload<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(inner) = &self.0 else { return work() };
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        inner.send(&["RELOADING=1", &format!("MONOTONIC_USEC={micros}"), "STATUS=reloading"]);
        let done = work();
        let describe = inner.lock().describe.clone();
        let text = describe.map(|describe| describe()).unwrap_or_default();
        inner.lock().told.clone_from(&text);
        inner.send(&["READY=1", &status(&text)]);
        done
    }

    /// The process ends within `grace`, and so do its workers.
    pub(super) fn stopping(&self, grace: Duration) {
        let Some(inner) = &self.0 else { return };
        *inner.lock() = State::default();
        inner.send(&["STOPPING=1", "STATUS=stopping", &extend(grace + STOP_MARGIN), "WATCHDOG=1"]);
    }
}

impl Inner {
    fn run(&self, interval: Option<Duration>) {
        let mut watchdog = interval.map(|interval| Watchdog::new(interval, Instant::now()));
        let mut told_at = Instant::now();
        loop {
            std::thread::sleep(interval.map_or(LOOK_INTERVAL, look_interval));
            if let Some(watchdog) = &mut watchdog {
                self.feed(watchdog);
            }
            if told_at.elapsed() >= STATUS_INTERVAL {
                told_at = Instant::now();
                self.tell_status();
            }
        }
    }

    fn feed(&self, watchdog: &mut Watchdog) {
        let state = self.lock();
        let counts = state.watched.as_ref().map(Watched::counts).unwrap_or_default();
        match watchdog.look(&counts, Instant::now()) {
            Look::Early => {}
            Look::Fed => {
                drop(state);
                self.send(&["WATCHDOG=1"]);
            }
            Look::Stuck { worker, is_new } => {
                if let Some(watched) = &state.watched {
                    watched.mailboxes.iter().for_each(|mailbox| mailbox.nudge());
                }
                drop(state);
                if is_new {
                    tracing::error!(worker, "a worker makes no progress: watchdog not fed");
                    self.send(&[&status(&format!("worker {worker} makes no progress"))]);
                }
            }
        }
    }

    fn tell_status(&self) {
        let (describe, is_waiting) = {
            let state = self.lock();
            (state.describe.clone(), state.is_waiting)
        };
        // It may take locks of others.
        let Some(text) = describe.map(|describe| describe()) else { return };
        let is_changed = std::mem::replace(&mut self.lock().told, text.clone()) != text;
        match (is_waiting, is_changed) {
            (true, _) => self.send(&[&status(&text), &extend(START_EXTENSION)]),
            (false, true) => self.send(&[&status(&text)]),
            (false, false) => {}
        }
    }

    fn send(&self, lines: &[&str]) {
        let message = lines.join("\n");
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            tracing::debug!(%error, "cannot notify the service manager");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watched {
    /// Turns of each worker; none if they wait for the lease.
    fn counts(&self) -> Vec<u64> {
        if self.acting.as_ref().is_some_and(|acting| !acting.is_held()) {
            return Vec::new();
        }
        self.turns.iter().take(self.mailboxes.len()).map(Timing::count).collect()
    }
}

/// Decides when the watchdog is fed: each quarter of the interval, once all workers have made a
/// turn since the last time. An idle worker makes one when it is nudged.
struct Watchdog {
    interval: Duration,
    fed_at: Instant,
    /// Turns of each worker at that time.
    seen: Vec<u64>,
    is_told: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Look {
    Early,
    Fed,
    /// This worker has made no turn yet. `is_new`: for half of the interval, and that is not
    /// reported yet.
    Stuck {
        worker: usize,
        is_new: bool,
    },
}

impl Watchdog {
    fn new(interval: Duration, now: Instant) -> Self {
        Self { interval, fed_at: now, seen: Vec::new(), is_told: false }
    }

    fn look(&mut self, counts: &[u64], now: Instant) -> Look {
        let passed = now.saturating_duration_since(self.fed_at);
        if passed < self.interval / 4 {
            return Look::Early;
        }
        // Workers that were not there before have no count to compare with.
        let has_same = self.seen.len() == counts.len();
        let stuck = self.seen.iter().zip(counts).position(|(seen, count)| seen == count);
        if let Some(worker) = stuck.filter(|_| has_same) {
            let is_new = passed >= self.interval / 2 && !self.is_told;
            self.is_told |= is_new;
            return Look::Stuck { worker, is_new };
        }
        *self = Self { seen: counts.to_vec(), ..Self::new(self.interval, now) };
        Look::Fed
    }
}

/// Another process of the service may be meant.
fn watchdog_of(micros: Option<String>, pid: Option<String>) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid == std::process::id().to_string());
    let micros = micros.filter(|_| is_own)?.parse().ok().filter(|micros| *micros > 0);
    micros.map(Duration::from_micros)
}

/// A worker that is nudged at one look has made its turn at the next.
fn look_interval(watchdog: Duration) -> Duration {
    (watchdog / 16).clamp(Duration::from_millis(10), LOOK_INTERVAL)
}

/// A line feed would begin another variable.
fn status(text: &str) -> String {
    format!("STATUS={}", text.replace('\n', " "))
}

fn extend(by: Duration) -> String {
    format!("EXTEND_TIMEOUT_USEC={}", by.as_micros())
}

/// The longest wait for a manager that does not read.
const WRITE_TIME_MAX: Duration = Duration::from_secs(1);

const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// How often the status is sent, if it has changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// Far more than the time between two signs of progress.
const START_EXTENSION: Duration = Duration::from_secs(60);

/// For what follows the grace: the lease is given back, the process ends.
const STOP_MARGIN: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_fed_once_all_workers_have_made_a_turn() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut watchdog = Watchdog::new(Duration::from_secs(20), start);
        assert_eq!(watchdog.look(&[1, 1], at(4)), Look::Early);
        assert_eq!(watchdog.look(&[1, 1], at(5)), Look::Fed, "seen for the first time");
        assert_eq!(watchdog.look(&[2, 1], at(10)), Look::Stuck { worker: 1, is_new: false });
        assert_eq!(watchdog.look(&[3, 2], at(11)), Look::Fed);
        assert_eq!(watchdog.look(&[3, 3], at(16)), Look::Stuck { worker: 0, is_new: false });
        assert_eq!(watchdog.look(&[3, 4], at(21)), Look::Stuck { worker: 0, is_new: true });
        assert_eq!(watchdog.look(&[3, 9], at(99)), Look::Stuck { worker: 0, is_new: false });
        assert_eq!(watchdog.look(&[4, 9], at(100)), Look::Fed);
        assert_eq!(watchdog.look(&[], at(105)), Look::Fed, "no workers, or no lease");
        assert_eq!(watchdog.look(&[4, 9], at(110)), Look::Fed);
        assert_eq!(watchdog.look(&[4, 10], at(120)), Look::Stuck { worker: 0, is_new: true });
    }

    #[test]
    fn only_a_watchdog_of_this_process_counts() {
        let own = std::process::id().to_string();
        let of = |micros: &str, pid: Option<&str>| {
            watchdog_of(Some(micros.to_owned()), pid.map(str::to_owned))
        };
        assert_eq!(of("2000000", None), Some(Duration::from_secs(2)));
        assert_eq!(of("2000000", Some(&own)), Some(Duration::from_secs(2)));
        assert_eq!((of("2000000", Some("0")), of("0", None), of("x", None)), (None, None, None));
        assert_eq!(watchdog_of(None, None), None);
    }

    #[test]
    fn messages_reach_the_manager_and_one_that_does_not_read_blocks_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let service = ServiceManager::open(path.as_os_str(), None).unwrap();
        let mut buffer = [0; 512];
        let mut next = || {
            let count = manager.recv(&mut buffer).unwrap();
            String::from_utf8_lossy(&buffer[..count]).into_owned()
        };
        service.progress("reading\nREADY=1");
        assert_eq!(next(), "STATUS=reading READY=1\nEXTEND_TIMEOUT_USEC=60000000");
        service.ready(|| "ready".into());
        assert_eq!(next(), "READY=1\nSTATUS=ready");
        let mut is_done = false;
        service.reload(|| is_done = true);
        assert!(is_done && next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
        assert_eq!(next(), "READY=1\nSTATUS=ready");
        service.stopping(Duration::from_secs(5));
        let stopping = "STOPPING=1\nSTATUS=stopping\nEXTEND_TIMEOUT_USEC=15000000\nWATCHDOG=1";
        assert_eq!(next(), stopping);
        let silent = || {
            let mut is_done = false;
            ServiceManager::default().reload(|| is_done = true);
            is_done
        };
        assert!(silent(), "without a manager the work is done");
        manager.set_nonblocking(true).unwrap();
        while UnixDatagram::unbound().is_ok_and(|other| {
            other.set_nonblocking(true).unwrap();
            other.send_to(b"x", &path).is_ok()
        }) {}
        service.progress("nobody reads this");
        assert!(manager.recv(&mut [0; 9]).is_ok(), "and the call came back");
    }
}
