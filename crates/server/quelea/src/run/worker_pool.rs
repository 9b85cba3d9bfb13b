//! Which thread drives which worker.
//!
//! Every worker has a thread, and the first thread is the main thread. At low load the main thread
//! drives all workers: it finds more to do each time it wakes, and mail between workers wakes no
//! other thread. When it is busy, it hands workers off to their own threads, which return them at
//! low load. A worker is moved whole, between two turns, so nothing else knows of it.

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

/// The main thread hands a worker off when it was busy for more than this share of [`SHORT`]: when
/// it hardly slept. Below that it keeps up, and the fewer sleeps, the less each message costs.
const HAND_OFF_PERCENT: u32 = 96;
const SHORT: Duration = Duration::from_millis(10);

/// A thread returns its worker when it and the main thread were busy for less than this share of
/// [`LONG`] together. That may be more than one thread has: two wake up, and wake each other, for
/// what one finds while it is awake. If it was too much, the [`Backoff`] grows.
const RETURN_PERCENT: u32 = 120;

/// A thread that sleeps less often has few wake-ups to save, and keeps its worker: two threads
/// are sooner done with a burst. Unless both together are nearly idle.
const RETURN_SLEEPS_PER_SEC: u32 = 1000;
const IDLE_PERCENT: u32 = 20;
const LONG: Duration = Duration::from_secs(1);

/// The longest wait before a worker is returned again.
const BACKOFF_MAX: Duration = Duration::from_secs(64);

/// Passes over workers that have mail from each other before the sockets are looked at again.
const MAIL_PASSES_MAX: usize = 8;

/// What the threads of the workers share: the slots of their workers and the way back.
pub(super) struct WorkerPool {
    /// Workers on their way back to the main thread; none once it has ended.
    inbox: Mutex<Option<Vec<Worker>>>,
    has_inbox: AtomicBool,
    /// How busy the main thread was, in per cent of the last long while.
    main_busy_percent: AtomicU32,
    /// The mailbox of a worker that the main thread always has.
    main_mailbox: Arc<Mailbox>,
    /// One per worker; the first is not used.
    slots: Box<[Slot]>,
}

/// Where a thread waits for its worker.
#[derive(Default)]
struct Slot {
    state: Mutex<SlotState>,
    changed: Condvar,
}

#[derive(Default)]
enum SlotState {
    #[default]
    Empty,
    Filled(Box<Worker>),
    /// The worker has ended while the main thread had it.
    Over,
}

impl WorkerPool {
    pub(super) fn new(mailboxes: &[Arc<Mailbox>]) -> Self {
        Self {
            inbox: Mutex::new(Some(Vec::new())),
            has_inbox: AtomicBool::new(false),
            main_busy_percent: AtomicU32::new(0),
            main_mailbox: mailboxes[0].clone(),
            slots: mailboxes.iter().map(|_| Slot::default()).collect(),
        }
    }

    /// Wakes the threads whose workers the main thread drives: they return free memory if asked.
    pub(super) fn wake_idle(&self) {
        for slot in &self.slots {
            slot.changed.notify_one();
        }
    }

    /// The first thread: starts with all workers, and ends when none is left to it.
    pub(super) fn run_main(self: &Arc<Self>, workers: Vec<Worker>) -> io::Result<()> {
        MainThread::new(self.clone(), workers)?.run()
    }

    /// The thread of another worker: drives it whenever the main thread has handed it off.
    pub(super) fn run_worker(&self, index: usize) -> io::Result<()> {
        let mut events = worker::events();
        let mut backoff = Backoff::default();
        while let Some(mut worker) = self.slots[index].wait() {
            backoff.on_handed_off(Instant::now());
            let mut now = Instant::now();
            let mut long = Meter::start(now);
            loop {
                let woken = worker.sleep(now, &mut events)?;
                long.add(woken.slept);
                now = worker.turn(woken.at, &events);
                if worker.is_over() {
                    return Ok(());
                }
                let Some(reading) = long.read_after(backoff.wait, now) else { continue };
                if !worker.is_stopping() && self.main_accepts(&reading) {
                    tracing::debug!(worker = index, "low load: a worker moves to the main thread");
                    match self.return_worker(worker) {
                        Ok(()) => {
                            backoff.on_returned(now);
                            break;
                        }
                        Err(refused) => worker = refused,
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the main thread has time for a worker whose thread was that busy. What it accepts
    /// counts at once, so that several workers do not return to a thread that has time for one.
    fn main_accepts(&self, reading: &Reading) -> bool {
        let has_wake_ups_to_save = reading.sleeps_per_sec >= RETURN_SLEEPS_PER_SEC;
        let sum_max = if has_wake_ups_to_save { RETURN_PERCENT } else { IDLE_PERCENT };
        let add = |lead_percent| {
            let sum: u32 = reading.busy_percent + lead_percent;
            (sum < sum_max).then_some(sum)
        };
        self.main_busy_percent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Puts a worker into the main thread's inbox. Err: the main thread has ended.
    fn return_worker(&self, worker: Box<Worker>) -> Result<(), Box<Worker>> {
        match &mut *self.inbox() {
            Some(workers) => workers.push(*worker),
            None => return Err(worker),
        }
        self.has_inbox.store(true, Ordering::SeqCst);
        self.main_mailbox.nudge();
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

impl Slot {
    /// Waits for the worker; none if it has ended elsewhere.
    fn wait(&self) -> Option<Box<Worker>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match std::mem::take(&mut *state) {
                SlotState::Filled(worker) => return Some(worker),
                SlotState::Over => return None,
                SlotState::Empty => {}
            }
            drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
            memory::purge_if_asked();
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn fill(&self, with: SlotState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = with;
        self.changed.notify_one();
    }
}

/// How long a thread keeps its worker at least: longer after each return that was too early.
struct Backoff {
    wait: Duration,
    returned_at: Option<Instant>,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { wait: LONG, returned_at: None }
    }
}

impl Backoff {
    fn on_returned(&mut self, now: Instant) {
        self.returned_at = Some(now);
    }

    /// Twice as long as the last time, if the main thread kept the worker for a shorter time than
    /// the thread had it before.
    fn on_handed_off(&mut self, now: Instant) {
        let Some(since) = self.returned_at else { return };
        let was_too_early = now.saturating_duration_since(since) < self.wait;
        self.wait = if was_too_early { (self.wait * 2).min(BACKOFF_MAX) } else { LONG };
    }
}

/// The first thread at work.
struct MainThread {
    pool: Arc<WorkerPool>,
    /// Those of the first worker. Its event queue has those of the others as sources.
    signals: Events,
    /// Those of another worker whose turn it is.
    events: Events,
    workers: Vec<Worker>,
    /// As it was when the thread woke, or when the last turn since then ended.
    now: Instant,
    short: Meter,
    long: Meter,
}

impl MainThread {
    fn new(pool: Arc<WorkerPool>, workers: Vec<Worker>) -> io::Result<Self> {
        let now = Instant::now();
        let mut main = Self {
            pool,
            signals: worker::events(),
            events: worker::events(),
            workers: Vec::new(),
            now,
            short: Meter::start(now),
            long: Meter::start(now),
        };
        for worker in workers {
            main.accept(worker)?;
        }
        Ok(main)
    }

    fn run(mut self) -> io::Result<()> {
        loop {
            self.sleep()?;
            self.take_turns()?;
            self.drop_ended()?;
            self.take_inbox()?;
            if self.workers.is_empty() && self.pool.close_inbox() {
                return Ok(());
            }
        }
    }

    /// Sleeps until one of the workers has something to do.
    fn sleep(&mut self) -> io::Result<()> {
        // Each one announces its sleep, also behind one that does not sleep.
        let idle_ms = self.workers.iter().map(|worker| worker.fall_asleep(self.now)).min();
        let idle_ms = idle_ms.unwrap_or(0);
        let idle_ms = if self.pool.has_inbox.load(Ordering::SeqCst) { 0 } else { idle_ms };
        let Some(first) = self.workers.first_mut() else { return Ok(()) };
        let woken = worker::poll(first.queue(), self.now, &mut self.signals, idle_ms)?;
        self.workers.iter().for_each(Worker::wake_up);
        self.now = woken.at;
        self.count(woken.slept);
        Ok(())
    }

    /// A turn for each worker that has something to do, and for those that it sends mail to.
    fn take_turns(&mut self) -> io::Result<()> {
        let mut state = 0;
        while let Some(worker) = self.workers.get_mut(state) {
            let mut signals = self.signals.iter();
            if state == 0 {
                if signals.any(|event| !is_of_worker(event)) || worker.has_work(self.now) {
                    self.now = worker.turn(self.now, &self.signals);
                }
            } else if signals.any(|event| event.token() == token(worker))
                || worker.has_work(self.now)
            {
                let woken = worker::poll(worker.queue(), self.now, &mut self.events, 0)?;
                self.now = worker.turn(woken.at, &self.events);
            }
            self.hand_off_if_busy()?;
            state += 1;
        }
        for _ in 0..MAIL_PASSES_MAX {
            let mut with_mail = self.workers.iter_mut().filter(|worker| worker.has_mail());
            let Some(worker) = with_mail.next() else { break };
            self.now = worker.turn_for_mail(self.now);
            self.hand_off_if_busy()?;
        }
        Ok(())
    }

    fn count(&mut self, slept: Duration) {
        self.short.add(slept);
        self.long.add(slept);
        if let Some(reading) = self.long.read_after(LONG, self.now) {
            self.pool.main_busy_percent.store(reading.busy_percent, Ordering::Relaxed);
        }
    }

    fn hand_off_if_busy(&mut self) -> io::Result<()> {
        if self.workers.len() < 2 {
            return Ok(());
        }
        let reading = self.short.read_after(SHORT, self.now);
        let is_busy = reading.is_some_and(|reading| reading.busy_percent > HAND_OFF_PERCENT);
        if is_busy && let Some(worker) = self.workers.pop() {
            self.workers[0].forget_queue(&worker)?;
            tracing::debug!(worker = worker.index(), "high load: a worker gets its own thread");
            self.pool.slots[worker.index()].fill(SlotState::Filled(Box::new(worker)));
        }
        Ok(())
    }

    fn take_inbox(&mut self) -> io::Result<()> {
        if self.pool.has_inbox.load(Ordering::SeqCst) {
            for worker in self.pool.take_inbox() {
                self.accept(worker)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, worker: Worker) -> io::Result<()> {
        if let Some(first) = self.workers.first() {
            first.watch_queue(&worker, token(&worker))?;
        }
        self.workers.push(worker);
        Ok(())
    }

    /// Drops the workers that are over.
    fn drop_ended(&mut self) -> io::Result<()> {
        let pool = &self.pool;
        let first = self.workers.first().map(Worker::index);
        self.workers.retain_mut(|worker| {
            let is_over = worker.is_over();
            if is_over {
                pool.slots[worker.index()].fill(SlotState::Over);
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

/// How much of a period a thread did not sleep.
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

    /// If the period is over: what the thread did in it. Begins the next.
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
    fn the_backoff_doubles_while_workers_come_back_too_early() {
        let began = Instant::now();
        let mut backoff = Backoff::default();
        backoff.on_handed_off(began);
        assert_eq!(backoff.wait, LONG);
        for times in [2, 4, 8, 16, 32, 64, 64] {
            backoff.on_returned(began);
            backoff.on_handed_off(began + SHORT);
            assert_eq!(backoff.wait, LONG * times);
        }
        backoff.on_returned(began);
        backoff.on_handed_off(began + BACKOFF_MAX);
        assert_eq!(backoff.wait, LONG);
    }

    #[test]
    fn a_main_thread_with_one_busy_worker_accepts_no_other() {
        let (_, mailboxes) = idle_workers(3);
        let pool = WorkerPool::new(&mailboxes);
        pool.main_busy_percent.store(RETURN_PERCENT / 2, Ordering::Relaxed);
        let reading =
            Reading { busy_percent: RETURN_PERCENT / 3, sleeps_per_sec: RETURN_SLEEPS_PER_SEC };
        assert!(pool.main_accepts(&reading));
        assert!(!pool.main_accepts(&reading));
    }

    #[test]
    fn a_thread_that_seldom_sleeps_keeps_its_worker() {
        let (_, mailboxes) = idle_workers(2);
        let pool = WorkerPool::new(&mailboxes);
        let sleeps_per_sec = RETURN_SLEEPS_PER_SEC - 1;
        let reading = Reading { busy_percent: IDLE_PERCENT, sleeps_per_sec };
        assert!(!pool.main_accepts(&reading));
    }

    #[test]
    fn an_idle_thread_returns_its_worker_even_if_it_seldom_wakes() {
        let (_, mailboxes) = idle_workers(2);
        let pool = WorkerPool::new(&mailboxes);
        let reading = Reading { busy_percent: IDLE_PERCENT - 1, sleeps_per_sec: 1 };
        assert!(pool.main_accepts(&reading));
    }

    /// A main thread with two workers, as if it had been busy for a short while.
    fn busy_main() -> MainThread {
        busy_main_and_mailboxes().0
    }

    fn busy_main_and_mailboxes() -> (MainThread, Arc<[Arc<Mailbox>]>) {
        let (workers, mailboxes) = idle_workers(2);
        let mut main = MainThread::new(Arc::new(WorkerPool::new(&mailboxes)), workers).unwrap();
        main.short = Meter::start(main.now - SHORT);
        (main, mailboxes)
    }

    #[test]
    fn a_busy_main_thread_hands_a_worker_off_and_keeps_the_last() {
        let mut main = busy_main();
        main.hand_off_if_busy().unwrap();
        assert_eq!(main.pool.slots[1].wait().map(|worker| worker.index()), Some(1));
        main.short = Meter::start(main.now - SHORT);
        main.hand_off_if_busy().unwrap();
        assert_eq!(main.workers.len(), 1);
    }

    #[test]
    fn a_main_thread_that_slept_hands_nothing_off() {
        let mut main = busy_main();
        // However long this thread is kept from running meanwhile.
        main.count(LONG * 3600);
        main.hand_off_if_busy().unwrap();
        assert_eq!(main.workers.len(), 2);
    }

    #[test]
    fn a_returned_worker_is_driven_again() {
        let (mut main, mailboxes) = busy_main_and_mailboxes();
        main.hand_off_if_busy().unwrap();
        let worker = main.pool.slots[1].wait().unwrap();
        assert!(main.pool.return_worker(worker).is_ok());
        main.sleep().unwrap();
        main.take_inbox().unwrap();
        assert_eq!(main.workers.len(), 2);
        mailboxes[1].put(Item::Order(Order::Unpin));
        main.sleep().unwrap();
        main.take_turns().unwrap();
        assert!(!main.workers[1].has_mail());
    }

    #[test]
    fn the_queue_of_the_first_worker_reports_the_others_after_it_has_changed() {
        let (workers, mailboxes) = idle_workers(3);
        let mut main = MainThread::new(Arc::new(WorkerPool::new(&mailboxes)), workers).unwrap();
        mailboxes[0].put(Item::Shutdown);
        main.sleep().unwrap();
        main.take_turns().unwrap();
        main.drop_ended().unwrap();
        assert_eq!(main.workers.iter().map(Worker::index).collect::<Vec<_>>(), [1, 2]);
        main.workers.iter().for_each(|worker| assert_ne!(worker.fall_asleep(main.now), 0));
        mailboxes[2].put(Item::Order(Order::Unpin));
        worker::poll(main.workers[0].queue(), main.now, &mut main.signals, 1000).unwrap();
        let signals: Vec<_> = main.signals.iter().map(Event::token).collect();
        assert_eq!(signals, [token(&main.workers[1])]);
        assert!(main.signals.iter().all(is_of_worker));
    }

    #[test]
    fn a_main_thread_that_has_ended_accepts_no_worker() {
        let mut main = busy_main();
        main.hand_off_if_busy().unwrap();
        let worker = main.pool.slots[1].wait().unwrap();
        assert!(main.pool.close_inbox());
        assert!(main.pool.return_worker(worker).is_err());
    }

    #[test]
    fn an_inbox_with_a_worker_in_it_is_not_closed() {
        let mut main = busy_main();
        main.hand_off_if_busy().unwrap();
        let worker = main.pool.slots[1].wait().unwrap();
        assert!(main.pool.return_worker(worker).is_ok());
        assert!(!main.pool.close_inbox());
    }
}
