//! Checks passwords of callers, on threads of its own: a check takes tens of milliseconds, and
//! neither `/metrics` nor callers with a token wait for those who guess.
//!
//! An address has one check under way. Addresses take turns, and of one address the newest check
//! comes first, of the user with the fewest: who guesses delays nobody but itself.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use driver::Origin;
use tokio::sync::oneshot;

/// Each takes tens of milliseconds of a core.
const THREADS: usize = 2;

/// Checks that wait. At the limit the address with the most makes room, by its oldest.
const WAITING_MAX: usize = 64;

/// The same of one address: fewer than its connections, so that each gets an answer.
const OF_ADDRESS_MAX: usize = 8;

pub(crate) struct PasswordChecks {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Is a password right?
type Check = Box<dyn FnOnce() -> bool + Send>;

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    /// The oldest first.
    waiting: Vec<Waiting>,
    /// Addresses with something waiting, in the order of their turns.
    turns: VecDeque<Origin>,
    under_way: Vec<Origin>,
    is_closed: bool,
}

struct Waiting {
    from: Origin,
    username: String,
    check: Check,
    answer: oneshot::Sender<bool>,
}

impl PasswordChecks {
    /// # Errors
    ///
    /// There is no thread.
    pub(crate) fn start() -> io::Result<Self> {
        let mut checks = Self { shared: Arc::default(), threads: Vec::new() };
        for index in 0..THREADS {
            let shared = checks.shared.clone();
            let thread = std::thread::Builder::new().name(format!("api-auth-{index}"));
            checks.threads.push(thread.spawn(move || shared.work())?);
        }
        Ok(checks)
    }

    /// Is it right? None: too many wait, or the check panicked, which it has reported itself. A
    /// caller that does not wait any more is not checked.
    pub(crate) async fn ask(
        &self,
        from: Origin,
        username: String,
        check: impl FnOnce() -> bool + Send + 'static,
    ) -> Option<bool> {
        let (answer, given) = oneshot::channel();
        let waiting = Waiting { from, username, check: Box::new(check), answer };
        self.shared.lock().put(waiting);
        self.shared.wake.notify_one();
        given.await.ok()
    }
}

impl Drop for PasswordChecks {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        *queue = Queue { is_closed: true, ..Queue::default() };
        drop(queue);
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported it itself.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for PasswordChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PasswordChecks").finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut queue = self.lock();
        while !queue.is_closed {
            let Some(next) = queue.take() else {
                queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            let Waiting { from, check, answer, .. } = next;
            // Nobody may wait any more.
            let _ = answer.send(check());
            queue = self.lock();
            queue.end(from);
            // Another one of this address may be next.
            self.wake.notify_one();
        }
    }
}

impl Queue {
    fn put(&mut self, new: Waiting) {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        let from = new.from;
        self.waiting.push(new);
        if self.count(from) > OF_ADDRESS_MAX {
            self.drop_oldest_of(from);
        } else if self.waiting.len() > WAITING_MAX {
            let most = self.waiting.iter().map(|it| it.from).max_by_key(|from| self.count(*from));
            self.drop_oldest_of(most.unwrap_or(from));
        }
        if !self.turns.contains(&from) {
            self.turns.push_back(from);
        }
    }

    fn count(&self, from: Origin) -> usize {
        self.waiting.iter().filter(|waiting| waiting.from == from).count()
    }

    fn drop_oldest_of(&mut self, from: Origin) {
        if let Some(place) = self.waiting.iter().position(|waiting| waiting.from == from) {
            self.waiting.remove(place);
        }
    }

    /// The next that may begin; [`Queue::end`] has to follow.
    fn take(&mut self) -> Option<Waiting> {
        self.waiting.retain(|waiting| !waiting.answer.is_closed());
        self.turns.retain(|from| self.waiting.iter().any(|waiting| waiting.from == *from));
        let turn = self.turns.iter().position(|from| !self.under_way.contains(from))?;
        let from = self.turns.remove(turn)?;
        self.turns.push_back(from);
        let own = || self.waiting.iter().enumerate().filter(move |(_, it)| it.from == from);
        let mut of_user: HashMap<&str, usize> = HashMap::new();
        own().for_each(|(_, it)| *of_user.entry(&it.username).or_default() += 1);
        // Of equals the first counts: the newest.
        let next = own().rev().min_by_key(|(_, it)| of_user[&*it.username]);
        let place = next.map(|(place, _)| place)?;
        self.under_way.push(from);
        Some(self.waiting.remove(place))
    }

    fn end(&mut self, from: Origin) {
        if let Some(place) = self.under_way.iter().position(|own| *own == from) {
            self.under_way.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn origin(number: u8) -> Origin {
        Origin::V4([192, 0, 2, number])
    }

    /// A check that waits, and where its answer comes.
    fn put(queue: &mut Queue, number: u8, username: &str) -> oneshot::Receiver<bool> {
        let (answer, given) = oneshot::channel();
        let username = username.to_owned();
        queue.put(Waiting { from: origin(number), username, check: Box::new(|| true), answer });
        given
    }

    fn next(queue: &mut Queue) -> Option<(Origin, String)> {
        queue.take().map(|waiting| (waiting.from, waiting.username))
    }

    fn named(number: u8, username: &str) -> Option<(Origin, String)> {
        Some((origin(number), username.to_owned()))
    }

    #[test]
    fn an_address_has_one_under_way_and_addresses_take_turns() {
        let mut queue = Queue::default();
        let _given: Vec<_> = (0..4).map(|it| put(&mut queue, 1, &format!("a{it}"))).collect();
        assert_eq!(next(&mut queue), named(1, "a3"), "the newest");
        assert_eq!(next(&mut queue), None, "one is under way");
        let _other = put(&mut queue, 2, "b");
        queue.end(origin(1));
        let _third = put(&mut queue, 3, "c");
        assert_eq!(next(&mut queue), named(1, "a2"));
        assert_eq!(next(&mut queue), named(2, "b"));
        queue.end(origin(1));
        assert_eq!(next(&mut queue), named(3, "c"), "behind one of the others");
        assert_eq!(next(&mut queue), named(1, "a1"));
    }

    #[test]
    fn who_guesses_for_one_user_does_not_delay_another_of_its_address() {
        let mut queue = Queue::default();
        let _right = put(&mut queue, 1, "anna");
        let _given: Vec<_> = (0..7).map(|_| put(&mut queue, 1, "admin")).collect();
        assert_eq!(next(&mut queue), named(1, "anna"));
    }

    #[test]
    fn the_address_with_the_most_makes_room_by_its_oldest() {
        let mut queue = Queue::default();
        let mut given: Vec<_> = (0..20).map(|it| put(&mut queue, 1, &format!("a{it}"))).collect();
        let is_dropped = |given: &mut oneshot::Receiver<bool>| {
            matches!(given.try_recv(), Err(oneshot::error::TryRecvError::Closed))
        };
        assert_eq!(given.iter_mut().map(is_dropped).filter(|it| *it).count(), 12);
        assert!(!is_dropped(&mut given[12]) && queue.waiting.len() == OF_ADDRESS_MAX);
        let _others: Vec<_> = (2..60).map(|number| put(&mut queue, number, "b")).collect();
        assert_eq!((queue.waiting.len(), queue.count(origin(1))), (WAITING_MAX, 6));
        assert_eq!(queue.count(origin(59)), 1, "the newest is there");
        drop(given);
        assert_eq!(next(&mut queue), named(2, "b"), "nobody waits for those of the first");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn each_that_waits_is_answered_and_who_is_gone_is_not_checked() {
        let checks = PasswordChecks::start().unwrap();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let ask = |check: Check| checks.ask(origin(1), "anna".into(), check);
        let mut first = Box::pin(ask(Box::new(move || {
            begun.send(()).unwrap();
            held.recv().is_ok()
        })));
        tokio::select! {
            biased;
            _ = &mut first => panic!("it is held"),
            () = std::future::ready(()) => has_begun.recv().unwrap(),
        }
        let mut gone = Box::pin(ask(Box::new(|| panic!("nobody waits for this one"))));
        let mut last = Box::pin(ask(Box::new(|| false)));
        tokio::select! {
            biased;
            _ = &mut gone => panic!("one of its address is under way"),
            _ = &mut last => panic!("one of its address is under way"),
            other = checks.ask(origin(2), "otto".into(), || true) => assert_eq!(other, Some(true)),
        }
        drop(gone);
        release.send(()).unwrap();
        assert_eq!((first.await, last.await), (Some(true), Some(false)));
    }
}
