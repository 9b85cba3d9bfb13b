//! A worker: a driver with an event queue of the system. A thread drives it (`drive`).

mod os;

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use driver::{Driver, DriverParts, Ready};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

pub(super) use self::os::{EventWaker, Line, Order, Os, OsParts, Pinned};

/// The token of the waker. Connections count from 0; just below it are other workers (`drive`).
pub(super) const WAKER: Token = Token(usize::MAX);

/// Events of one turn; the rest follows with the next. What the first of them led to is written
/// when the last is dealt with.
const EVENTS_MAX: usize = 256;

/// Polls that a signal may interrupt before a turn begins without events.
const INTERRUPTIONS_MAX: usize = 8;

pub(super) struct Worker {
    driver: Driver<Os>,
}

impl Worker {
    pub(super) fn new(parts: DriverParts<Os>) -> Self {
        Self { driver: Driver::new(parts) }
    }

    /// One turn of its driver, from now on. Returns when it ended.
    pub(super) fn turn(&mut self, now: Instant, events: &Events) -> Instant {
        // An event queue reports each change once: what did not fit is still there.
        let has_more = events.iter().count() == EVENTS_MAX;
        let of_sockets = events.iter().filter(|event| event.token() != WAKER);
        self.driver.turn(now, of_sockets.map(ready), has_more);
        self.driver.ended()
    }

    pub(super) fn turn_for_mail(&mut self, now: Instant) -> Instant {
        self.driver.turn_for_mail(now);
        self.driver.ended()
    }

    pub(super) fn is_over(&mut self) -> bool {
        self.driver.is_over()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.driver.is_stopping()
    }

    pub(super) fn index(&self) -> usize {
        self.driver.index()
    }

    pub(super) fn queue(&mut self) -> &mut Poll {
        self.driver.host_mut().queue()
    }

    /// From now on the event queue of this worker reports the other's by a token of which
    /// this worker has no connection.
    pub(super) fn watch_queue(&self, other: &Self, token: Token) -> io::Result<()> {
        let queue = other.driver.host().registry().as_raw_fd();
        self.driver.host().registry().register(&mut SourceFd(&queue), token, Interest::READABLE)
    }

    pub(super) fn forget_queue(&self, other: &Self) -> io::Result<()> {
        let queue = other.driver.host().registry().as_raw_fd();
        self.driver.host().registry().deregister(&mut SourceFd(&queue))
    }

    pub(super) fn has_mail(&self) -> bool {
        self.driver.has_mail()
    }

    /// Sleeps until there is something to do.
    pub(super) fn sleep(&mut self, now: Instant, events: &mut Events) -> io::Result<Woken> {
        let idle_ms = self.fall_asleep(now);
        let woken = poll(self.queue(), now, events, idle_ms);
        self.wake_up();
        woken
    }

    pub(super) fn fall_asleep(&self, now: Instant) -> u64 {
        self.driver.fall_asleep(now)
    }

    pub(super) fn has_work(&self, now: Instant) -> bool {
        self.driver.has_work(now)
    }

    pub(super) fn wake_up(&self) {
        self.driver.wake_up();
    }
}

fn ready(event: &Event) -> Ready {
    Ready {
        key: event.token().0,
        is_readable: event.is_readable(),
        is_writable: event.is_writable(),
        is_ending: event.is_read_closed() || event.is_error(),
    }
}

pub(super) fn events() -> Events {
    Events::with_capacity(EVENTS_MAX)
}

/// The end of a sleep, which is where a turn begins: a thread reads the clock twice per turn, now
/// and when the turn has ended.
pub(super) struct Woken {
    pub(super) at: Instant,
    /// Zero: it only looked.
    pub(super) slept: Duration,
}

/// Waits for events, so many milliseconds at most.
pub(super) fn poll(
    poll: &mut Poll,
    now: Instant,
    events: &mut Events,
    idle_ms: u64,
) -> io::Result<Woken> {
    let mut polled = poll.poll(events, Some(Duration::from_millis(idle_ms)));
    // A poll that a signal interrupted (SIGCONT does, after SIGSTOP) says nothing of what is ready,
    // and the deadlines of clients that wait unread must not pass on its word.
    for _ in 0..INTERRUPTIONS_MAX {
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                polled = poll.poll(events, Some(Duration::ZERO));
            }
            _ => break,
        }
    }
    match polled {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => {
            let at = Instant::now();
            let sleeps = idle_ms > 0;
            let slept = if sleeps { at.saturating_duration_since(now) } else { Duration::ZERO };
            Ok(Woken { at, slept })
        }
    }
}
