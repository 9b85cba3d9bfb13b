//! Which thread drives which worker.
//!
//! Every worker has a thread, and the first thread is the lead. While there is little to do, the
//! lead drives all workers: it finds more to do each time it wakes, and mail between workers wakes
//! nobody. When it is busy, it gives workers away to their own threads, which bring them back when
//! there is little to do. A worker is moved whole, between two turns, so nothing else knows of it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::mailbox::Mailbox;
use super::worker::{self, Worker};

/// The lead gives a worker away when it was busy for more than this share of a short while.
const GIVE_AWAY_PERCENT: u32 = 85;
const SHORT: Duration = Duration::from_millis(10);

/// A thread brings its worker back when it and the lead were busy for less than this share of a
/// long while together. Less than above, so that a worker does not go to and fro.
const BRING_BACK_PERCENT: u32 = 65;
const LONG: Duration = Duration::from_secs(1);

/// Passes over workers that have mail from each other before the sockets are looked at again.
const MAIL_PASSES_MAX: usize = 8;

/// What the threads of the workers share.
pub(super) struct Crew {
    /// Workers on their way back to the lead; none once it has ended.
    inbox: Mutex<Option<Vec<Worker>>>,
    has_inbox: AtomicBool,
    /// How busy the lead was, in per cent of the last long while.
    lead_busy_percent: AtomicU32,
    /// The mailbox of a worker that the lead always has.
    lead_mailbox: Arc<Mailbox>,
    /// One per worker; nobody waits at the first.
    berths: Box<[Berth]>,
}

/// Where a thread waits for its worker.
#[derive(Default)]
struct Berth {
    place: Mutex<Place>,
    changed: Condvar,
}

#[derive(Default)]
enum Place {
    #[default]
    Empty,
    Filled(Box<Worker>),
    /// The worker has ended while the lead had it.
    Over,
}

impl Crew {
    pub(super) fn new(mailboxes: &[Arc<Mailbox>]) -> Self {
        Self {
            inbox: Mutex::new(Some(Vec::new())),
            has_inbox: AtomicBool::new(false),
            lead_busy_percent: AtomicU32::new(0),
            lead_mailbox: mailboxes[0].clone(),
            berths: mailboxes.iter().map(|_| Berth::default()).collect(),
        }
    }

    /// The first thread: starts with all workers, and ends when none is left to it.
    pub(super) fn lead(self: &Arc<Self>, workers: Vec<Worker>) -> io::Result<()> {
        Lead::new(self.clone(), workers)?.run()
    }

    /// The thread of another worker: drives it whenever the lead has given it away.
    pub(super) fn follow(&self, index: usize) -> io::Result<()> {
        let mut events = worker::events();
        while let Some(mut worker) = self.berths[index].wait() {
            let mut long = Meter::start(Instant::now());
            loop {
                long.slept += worker.sleep(&mut events)?;
                worker.turn(&events);
                if worker.is_over() {
                    return Ok(());
                }
                let Some(busy_percent) = long.read_after(LONG, Instant::now()) else { continue };
                let lead_busy_percent = self.lead_busy_percent.load(Ordering::Relaxed);
                if busy_percent + lead_busy_percent < BRING_BACK_PERCENT && !worker.is_stopping() {
                    tracing::debug!(worker = index, "little to do: a worker joins the lead");
                    match self.bring_back(worker) {
                        Ok(()) => break,
                        Err(refused) => worker = refused,
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a worker into the lead's inbox; gives it back if the lead has ended.
    fn bring_back(&self, worker: Box<Worker>) -> Result<(), Box<Worker>> {
        match &mut *self.inbox() {
            Some(workers) => workers.push(*worker),
            None => return Err(worker),
        }
        self.has_inbox.store(true, Ordering::SeqCst);
        self.lead_mailbox.nudge();
        Ok(())
    }

    fn take_inbox(&self) -> Vec<Worker> {
        self.has_inbox.store(false, Ordering::SeqCst);
        self.inbox().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// True if nothing was in it; from then on it refuses.
    fn close_inbox(&self) -> bool {
        let mut inbox = self.inbox();
        let is_empty = inbox.as_ref().is_none_or(Vec::is_empty);
        if is_empty {
            *inbox = None;
        }
        is_empty
    }

    fn inbox(&self) -> MutexGuard<'_, Option<Vec<Worker>>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Berth {
    /// Waits for the worker; none if it has ended elsewhere.
    fn wait(&self) -> Option<Box<Worker>> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut *place) {
                Place::Filled(worker) => return Some(worker),
                Place::Over => return None,
                Place::Empty => {}
            }
            place = self.changed.wait(place).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fill(&self, with: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = with;
        self.changed.notify_one();
    }
}

/// The first thread at work.
struct Lead {
    crew: Arc<Crew>,
    /// Has the event queues of the workers as sources, while there are several.
    poll: Poll,
    signals: Events,
    /// Those of the worker whose turn it is.
    events: Events,
    workers: Vec<Worker>,
    short: Meter,
    long: Meter,
}

impl Lead {
    fn new(crew: Arc<Crew>, workers: Vec<Worker>) -> io::Result<Self> {
        let now = Instant::now();
        let mut lead = Self {
            crew,
            poll: Poll::new()?,
            signals: Events::with_capacity(workers.len()),
            events: worker::events(),
            workers: Vec::new(),
            short: Meter::start(now),
            long: Meter::start(now),
        };
        for worker in workers {
            lead.adopt(worker)?;
        }
        Ok(lead)
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.sleep()?;
            match self.workers.as_mut_slice() {
                [alone] => alone.turn(&self.events),
                _ => self.take_turns()?,
            }
            self.let_go()?;
            self.take_inbox()?;
            if self.workers.is_empty() && self.crew.close_inbox() {
                return Ok(());
            }
        }
    }

    /// Sleeps until one of the workers has something to do.
    fn sleep(&mut self) -> io::Result<()> {
        // Each one announces its sleep, also behind one that does not sleep.
        let idle_ms = self.workers.iter().map(Worker::fall_asleep).min().unwrap_or(0);
        let idle_ms = if self.crew.has_inbox.load(Ordering::SeqCst) { 0 } else { idle_ms };
        let slept = match self.workers.as_mut_slice() {
            [alone] => worker::poll(alone.queue(), &mut self.events, idle_ms)?,
            _ => worker::poll(&mut self.poll, &mut self.signals, idle_ms)?,
        };
        self.workers.iter().for_each(Worker::wake_up);
        self.count(slept);
        Ok(())
    }

    /// A turn for each worker that has something to do, and for those that it sends mail to.
    fn take_turns(&mut self) -> io::Result<()> {
        let mut place = 0;
        while let Some(worker) = self.workers.get_mut(place) {
            let is_signalled = self.signals.iter().any(|event| event.token() == token(worker));
            if is_signalled || worker.has_work() {
                worker::poll(worker.queue(), &mut self.events, 0)?;
                worker.turn(&self.events);
            }
            self.give_away_if_busy()?;
            place += 1;
        }
        self.events.clear();
        for _ in 0..MAIL_PASSES_MAX {
            let mut with_mail = self.workers.iter_mut().filter(|worker| worker.has_mail());
            let Some(worker) = with_mail.next() else { break };
            worker.turn(&self.events);
            self.give_away_if_busy()?;
        }
        Ok(())
    }

    fn count(&mut self, slept: Duration) {
        self.short.slept += slept;
        self.long.slept += slept;
        if let Some(percent) = self.long.read_after(LONG, Instant::now()) {
            self.crew.lead_busy_percent.store(percent, Ordering::Relaxed);
        }
    }

    fn give_away_if_busy(&mut self) -> io::Result<()> {
        if self.workers.len() < 2 {
            return Ok(());
        }
        let busy_percent = self.short.read_after(SHORT, Instant::now());
        let is_busy = busy_percent.is_some_and(|percent| percent > GIVE_AWAY_PERCENT);
        if is_busy && let Some(worker) = self.workers.pop() {
            self.unwatch(&worker)?;
            if let [last] = self.workers.as_slice() {
                self.unwatch(last)?;
            }
            tracing::debug!(worker = worker.index(), "much to do: a worker gets its own thread");
            self.crew.berths[worker.index()].fill(Place::Filled(Box::new(worker)));
        }
        Ok(())
    }

    fn take_inbox(&mut self) -> io::Result<()> {
        if self.crew.has_inbox.load(Ordering::SeqCst) {
            for worker in self.crew.take_inbox() {
                self.adopt(worker)?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, worker: Worker) -> io::Result<()> {
        if let [alone] = self.workers.as_slice() {
            self.watch(alone)?;
        }
        if !self.workers.is_empty() {
            self.watch(&worker)?;
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Drops the workers that are over.
    fn let_go(&mut self) -> io::Result<()> {
        let crew = &self.crew;
        let before = self.workers.len();
        self.workers.retain_mut(|worker| {
            let is_over = worker.is_over();
            if is_over {
                crew.berths[worker.index()].fill(Place::Over);
            }
            !is_over
        });
        match self.workers.as_slice() {
            [alone] if before > 1 => self.unwatch(alone),
            _ => Ok(()),
        }
    }

    fn watch(&self, worker: &Worker) -> io::Result<()> {
        let queue = worker.queue_fd();
        self.poll.registry().register(&mut SourceFd(&queue), token(worker), Interest::READABLE)
    }

    fn unwatch(&self, worker: &Worker) -> io::Result<()> {
        self.poll.registry().deregister(&mut SourceFd(&worker.queue_fd()))
    }
}

fn token(worker: &Worker) -> Token {
    Token(worker.index())
}

/// How much of a while a thread did not sleep.
struct Meter {
    began: Instant,
    slept: Duration,
}

impl Meter {
    fn start(now: Instant) -> Self {
        Self { began: now, slept: Duration::ZERO }
    }

    /// If the while is over: how busy the thread was, in per cent; and begins the next.
    fn read_after(&mut self, length: Duration, now: Instant) -> Option<u32> {
        let passed = now.saturating_duration_since(self.began);
        if passed < length {
            return None;
        }
        let busy = passed.saturating_sub(self.slept);
        *self = Self::start(now);
        Some((busy.as_micros() * 100 / passed.as_micros()) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::mailbox::Item;
    use crate::run::workers::tests::idle_workers;

    #[test]
    fn a_meter_reads_what_was_not_slept_once_per_while() {
        let began = Instant::now();
        let mut meter = Meter::start(began);
        assert_eq!(meter.read_after(LONG, began + LONG / 2), None);
        meter.slept += LONG / 4;
        assert_eq!(meter.read_after(LONG, began + LONG), Some(75));
        assert_eq!(meter.read_after(LONG, began + LONG), None);
        assert_eq!(meter.read_after(LONG, began + LONG * 2), Some(100));
    }

    /// A lead with two workers, as if it had been busy for a short while.
    fn busy_lead() -> Lead {
        busy_lead_and_mailboxes().0
    }

    fn busy_lead_and_mailboxes() -> (Lead, Arc<[Arc<Mailbox>]>) {
        let (workers, mailboxes) = idle_workers(2);
        let mut lead = Lead::new(Arc::new(Crew::new(&mailboxes)), workers).unwrap();
        lead.short = Meter::start(Instant::now() - SHORT);
        (lead, mailboxes)
    }

    #[test]
    fn a_busy_lead_gives_a_worker_away_and_keeps_the_last() {
        let mut lead = busy_lead();
        lead.give_away_if_busy().unwrap();
        assert_eq!(lead.crew.berths[1].wait().map(|worker| worker.index()), Some(1));
        lead.short = Meter::start(Instant::now() - SHORT);
        lead.give_away_if_busy().unwrap();
        assert_eq!(lead.workers.len(), 1);
    }

    #[test]
    fn a_lead_that_slept_gives_nothing_away() {
        let mut lead = busy_lead();
        lead.count(SHORT);
        lead.give_away_if_busy().unwrap();
        assert_eq!(lead.workers.len(), 2);
    }

    #[test]
    fn a_worker_that_is_brought_back_is_driven_again() {
        let (mut lead, mailboxes) = busy_lead_and_mailboxes();
        lead.give_away_if_busy().unwrap();
        let worker = lead.crew.berths[1].wait().unwrap();
        assert!(lead.crew.bring_back(worker).is_ok());
        lead.sleep().unwrap();
        lead.take_inbox().unwrap();
        assert_eq!(lead.workers.len(), 2);
        mailboxes[1].put(Item::Release);
        lead.sleep().unwrap();
        lead.take_turns().unwrap();
        assert!(!lead.workers[1].has_mail());
    }

    #[test]
    fn a_lead_that_has_ended_takes_no_worker() {
        let mut lead = busy_lead();
        lead.give_away_if_busy().unwrap();
        let worker = lead.crew.berths[1].wait().unwrap();
        assert!(lead.crew.close_inbox());
        assert!(lead.crew.bring_back(worker).is_err());
    }

    #[test]
    fn an_inbox_with_a_worker_in_it_is_not_closed() {
        let mut lead = busy_lead();
        lead.give_away_if_busy().unwrap();
        let worker = lead.crew.berths[1].wait().unwrap();
        assert!(lead.crew.bring_back(worker).is_ok());
        assert!(!lead.crew.close_inbox());
    }
}
