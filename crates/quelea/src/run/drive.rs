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

use broker::ShardId;
use mio::event::Event;
use mio::{Events, Token};

use super::mailbox::Mailbox;
use super::worker::{self, Worker};
use base::memory;

/// The lead gives a worker away when it was busy for more than this share of a short while: when
/// it hardly slept. Below that it keeps up, and the fewer sleeps, the less each message costs.
const GIVE_AWAY_PERCENT: u32 = 96;
const SHORT: Duration = Duration::from_millis(10);

/// A thread brings its worker back when it and the lead were busy for less than this share of a
/// long while together. That may be more than one thread has: two wake up, and wake each other,
/// for what one finds while it is awake. If it was too much after all, `Patience` grows.
const BRING_BACK_PERCENT: u32 = 120;

/// A thread that sleeps less often has few wake-ups to save, and keeps its worker: two threads
/// are sooner done with a burst. Unless both together have next to nothing to do.
const BRING_BACK_SLEEPS_PER_SEC: u32 = 1000;
const NEXT_TO_NOTHING_PERCENT: u32 = 20;
const LONG: Duration = Duration::from_secs(1);

/// The longest wait before a worker is brought back once more.
const PATIENCE_MAX: Duration = Duration::from_secs(64);

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

    /// Threads whose workers the lead drives look whether memory is asked for.
    pub(super) fn wake_idle(&self) {
        for berth in &self.berths {
            berth.changed.notify_one();
        }
    }

    /// The first thread: starts with all workers, and ends when none is left to it.
    pub(super) fn lead(self: &Arc<Self>, workers: Vec<Worker>) -> io::Result<()> {
        Lead::new(self.clone(), workers)?.run()
    }

    /// The thread of another worker: drives it whenever the lead has given it away.
    pub(super) fn follow(&self, index: usize) -> io::Result<()> {
        let mut events = worker::events();
        let mut patience = Patience::default();
        while let Some(mut worker) = self.berths[index].wait() {
            patience.on_given_away(Instant::now());
            let mut long = Meter::start(Instant::now());
            loop {
                long.add(worker.sleep(&mut events)?);
                worker.turn(&events);
                if worker.is_over() {
                    return Ok(());
                }
                let now = Instant::now();
                let Some(reading) = long.read_after(patience.wait, now) else { continue };
                if !worker.is_stopping() && self.lead_takes(&reading) {
                    tracing::debug!(
                        worker = index,
                        "little to do: a worker joins the first thread"
                    );
                    match self.bring_back(worker) {
                        Ok(()) => {
                            patience.on_brought_back(now);
                            break;
                        }
                        Err(refused) => worker = refused,
                    }
                }
            }
        }
        Ok(())
    }

    /// Is it better that the lead drives a worker whose thread had this to do? What the lead takes
    /// on counts at once, so that several workers do not rush to a lead that has time for one.
    fn lead_takes(&self, reading: &Reading) -> bool {
        let has_wake_ups_to_save = reading.sleeps_per_sec >= BRING_BACK_SLEEPS_PER_SEC;
        let sum_max =
            if has_wake_ups_to_save { BRING_BACK_PERCENT } else { NEXT_TO_NOTHING_PERCENT };
        let add = |lead_percent| {
            let sum: u32 = reading.busy_percent + lead_percent;
            (sum < sum_max).then_some(sum)
        };
        self.lead_busy_percent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
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
            drop(self.changed.wait(place).unwrap_or_else(PoisonError::into_inner));
            memory::purge_if_asked();
            place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fill(&self, with: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = with;
        self.changed.notify_one();
    }
}

/// How long a thread keeps its worker at least.
struct Patience {
    wait: Duration,
    brought_back_at: Option<Instant>,
}

impl Default for Patience {
    fn default() -> Self {
        Self { wait: LONG, brought_back_at: None }
    }
}

impl Patience {
    fn on_brought_back(&mut self, now: Instant) {
        self.brought_back_at = Some(now);
    }

    /// Twice as long as the last time, if the lead did not keep the worker as long as the thread
    /// had it before.
    fn on_given_away(&mut self, now: Instant) {
        let Some(since) = self.brought_back_at else { return };
        let was_too_early = now.saturating_duration_since(since) < self.wait;
        self.wait = if was_too_early { (self.wait * 2).min(PATIENCE_MAX) } else { LONG };
    }
}

/// The first thread at work.
struct Lead {
    crew: Arc<Crew>,
    /// Those of the first worker. Its event queue has those of the others as sources.
    signals: Events,
    /// Those of another worker whose turn it is.
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
            signals: worker::events(),
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
            self.take_turns()?;
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
        let Some(first) = self.workers.first_mut() else { return Ok(()) };
        let slept = worker::poll(first.queue(), &mut self.signals, idle_ms)?;
        self.workers.iter().for_each(Worker::wake_up);
        self.count(slept);
        Ok(())
    }

    /// A turn for each worker that has something to do, and for those that it sends mail to.
    fn take_turns(&mut self) -> io::Result<()> {
        let mut place = 0;
        while let Some(worker) = self.workers.get_mut(place) {
            let mut signals = self.signals.iter();
            if place == 0 {
                if signals.any(|event| !is_of_worker(event)) || worker.has_work() {
                    worker.turn(&self.signals);
                }
            } else if signals.any(|event| event.token() == token(worker)) || worker.has_work() {
                worker::poll(worker.queue(), &mut self.events, 0)?;
                worker.turn(&self.events);
            }
            self.give_away_if_busy()?;
            place += 1;
        }
        for _ in 0..MAIL_PASSES_MAX {
            let mut with_mail = self.workers.iter_mut().filter(|worker| worker.has_mail());
            let Some(worker) = with_mail.next() else { break };
            worker.turn_for_mail();
            self.give_away_if_busy()?;
        }
        Ok(())
    }

    fn count(&mut self, slept: Duration) {
        self.short.add(slept);
        self.long.add(slept);
        if let Some(reading) = self.long.read_after(LONG, Instant::now()) {
            self.crew.lead_busy_percent.store(reading.busy_percent, Ordering::Relaxed);
        }
    }

    fn give_away_if_busy(&mut self) -> io::Result<()> {
        if self.workers.len() < 2 {
            return Ok(());
        }
        let reading = self.short.read_after(SHORT, Instant::now());
        let is_busy = reading.is_some_and(|reading| reading.busy_percent > GIVE_AWAY_PERCENT);
        if is_busy && let Some(worker) = self.workers.pop() {
            self.workers[0].forget_queue(&worker)?;
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
        if let Some(first) = self.workers.first() {
            first.watch_queue(&worker, token(&worker))?;
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Drops the workers that are over.
    fn let_go(&mut self) -> io::Result<()> {
        let crew = &self.crew;
        let first = self.workers.first().map(Worker::index);
        self.workers.retain_mut(|worker| {
            let is_over = worker.is_over();
            if is_over {
                crew.berths[worker.index()].fill(Place::Over);
            }
            !is_over
        });
        match self.workers.as_slice() {
            [new_first, others @ ..] if Some(new_first.index()) != first => {
                others.iter().try_for_each(|other| new_first.watch_queue(other, token(other)))
            }
            _ => Ok(()),
        }
    }
}

/// What a worker is called in the event queue of the first: numbers that no connection has.
fn token(worker: &Worker) -> Token {
    Token(worker::WAKER.0 - 1 - worker.index())
}

fn is_of_worker(event: &Event) -> bool {
    // There are no more workers than shards.
    const LOWEST: usize = worker::WAKER.0 - 1 - ShardId::MAX as usize;
    (LOWEST..worker::WAKER.0).contains(&event.token().0)
}

/// How much of a while a thread did not sleep.
struct Meter {
    began: Instant,
    slept: Duration,
    sleeps: u32,
}

#[derive(Debug, PartialEq)]
struct Reading {
    busy_percent: u32,
    sleeps_per_sec: u32,
}

impl Meter {
    fn start(now: Instant) -> Self {
        Self { began: now, slept: Duration::ZERO, sleeps: 0 }
    }

    fn add(&mut self, slept: Duration) {
        self.slept += slept;
        self.sleeps += u32::from(!slept.is_zero());
    }

    /// If the while is over: what the thread did in it; and begins the next.
    fn read_after(&mut self, length: Duration, now: Instant) -> Option<Reading> {
        let passed = now.saturating_duration_since(self.began);
        if passed < length {
            return None;
        }
        let busy = passed.saturating_sub(self.slept);
        let reading = Reading {
            busy_percent: (busy.as_micros() * 100 / passed.as_micros()) as u32,
            sleeps_per_sec: (f64::from(self.sleeps) / passed.as_secs_f64()) as u32,
        };
        *self = Self::start(now);
        Some(reading)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::mailbox::Item;
    use crate::run::worker::Order;
    use crate::run::workers::tests::idle_workers;

    #[test]
    fn a_meter_reads_what_was_not_slept_once_per_while() {
        let began = Instant::now();
        let mut meter = Meter::start(began);
        assert_eq!(meter.read_after(LONG, began + LONG / 2), None);
        for slept in [LONG / 8, Duration::ZERO, LONG / 8] {
            meter.add(slept);
        }
        let reading = |busy_percent, sleeps_per_sec| Some(Reading { busy_percent, sleeps_per_sec });
        assert_eq!(meter.read_after(LONG, began + LONG), reading(75, 2));
        assert_eq!(meter.read_after(LONG, began + LONG), None);
        assert_eq!(meter.read_after(LONG, began + LONG * 2), reading(100, 0));
    }

    #[test]
    fn patience_doubles_while_workers_come_back_too_early() {
        let began = Instant::now();
        let mut patience = Patience::default();
        patience.on_given_away(began);
        assert_eq!(patience.wait, LONG);
        for times in [2, 4, 8, 16, 32, 64, 64] {
            patience.on_brought_back(began);
            patience.on_given_away(began + SHORT);
            assert_eq!(patience.wait, LONG * times);
        }
        patience.on_brought_back(began);
        patience.on_given_away(began + PATIENCE_MAX);
        assert_eq!(patience.wait, LONG);
    }

    #[test]
    fn a_lead_that_has_taken_one_busy_worker_has_no_time_for_the_next() {
        let (_, mailboxes) = idle_workers(3);
        let crew = Crew::new(&mailboxes);
        crew.lead_busy_percent.store(BRING_BACK_PERCENT / 2, Ordering::Relaxed);
        let reading = Reading {
            busy_percent: BRING_BACK_PERCENT / 3,
            sleeps_per_sec: BRING_BACK_SLEEPS_PER_SEC,
        };
        assert!(crew.lead_takes(&reading));
        assert!(!crew.lead_takes(&reading));
    }

    #[test]
    fn a_thread_that_seldom_sleeps_keeps_its_worker() {
        let (_, mailboxes) = idle_workers(2);
        let crew = Crew::new(&mailboxes);
        let sleeps_per_sec = BRING_BACK_SLEEPS_PER_SEC - 1;
        let reading = Reading { busy_percent: NEXT_TO_NOTHING_PERCENT, sleeps_per_sec };
        assert!(!crew.lead_takes(&reading));
    }

    #[test]
    fn a_thread_with_next_to_nothing_to_do_gives_its_worker_back_even_if_it_seldom_wakes() {
        let (_, mailboxes) = idle_workers(2);
        let crew = Crew::new(&mailboxes);
        let reading = Reading { busy_percent: NEXT_TO_NOTHING_PERCENT - 1, sleeps_per_sec: 1 };
        assert!(crew.lead_takes(&reading));
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
        // However long this thread is kept from running meanwhile.
        lead.count(LONG * 3600);
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
        mailboxes[1].put(Item::Order(Order::Unpin));
        lead.sleep().unwrap();
        lead.take_turns().unwrap();
        assert!(!lead.workers[1].has_mail());
    }

    #[test]
    fn the_queue_of_the_first_worker_tells_of_the_others_also_when_another_is_first() {
        let (workers, mailboxes) = idle_workers(3);
        let mut lead = Lead::new(Arc::new(Crew::new(&mailboxes)), workers).unwrap();
        mailboxes[0].put(Item::Shutdown);
        lead.sleep().unwrap();
        lead.take_turns().unwrap();
        lead.let_go().unwrap();
        assert_eq!(lead.workers.iter().map(Worker::index).collect::<Vec<_>>(), [1, 2]);
        lead.workers.iter().for_each(|worker| assert_ne!(worker.fall_asleep(), 0));
        mailboxes[2].put(Item::Order(Order::Unpin));
        worker::poll(lead.workers[0].queue(), &mut lead.signals, 1000).unwrap();
        let signals: Vec<_> = lead.signals.iter().map(Event::token).collect();
        assert_eq!(signals, [token(&lead.workers[1])]);
        assert!(lead.signals.iter().all(is_of_worker));
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
