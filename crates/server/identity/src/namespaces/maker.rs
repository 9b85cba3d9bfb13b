//! Makes the namespaces that clients ask for, on a thread of its own. A name is on the disk before
//! anybody goes by it, and only those who asked for it wait for that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use driver::Origin;
use session::{Bucket, Rate};

/// Names that are asked for and not made yet. At the limit who asks for another is refused (0x89).
const NAMES_MAX: usize = 256;

/// Clients that wait, for whatever name. At the limit they are refused (0x89).
const CLIENTS_MAX: usize = 20_000;

/// New names that one address may ask for: so many at once, and so many more each second. Above
/// that it is refused (0x9F).
const NAMES_OF_ADDRESS: Rate = Rate { per_second: 1, burst: 32 };

/// Addresses that have asked for a new name within half a minute. At the limit another one is
/// refused (0x89).
const ADDRESSES_MAX: usize = 10_000;

/// Takes the word that a name was made (true), or cannot be. It should only put it somewhere.
pub(crate) type Answer = Box<dyn FnOnce(bool) + Send>;

/// Makes names, and says of each whether it was made. Blocks on the disk.
pub(super) type Make = Box<dyn FnMut(&[Box<str>]) -> Vec<bool> + Send>;

/// Why somebody cannot even wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoWait {
    /// Too much is waited for.
    Full,
    /// Its address asks for new names too often.
    TooFast,
}

/// Dropping it ends the thread, which is not waited for: a name that it is writing is there after
/// the next start, or not.
pub struct Maker {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wakes: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Names to be made with the next write, and who waits for each.
    wanted: HashMap<Box<str>, Vec<Answer>>,
    /// Those of the write that is under way.
    under_way: HashMap<Box<str>, Vec<Answer>>,
    clients: usize,
    paces: HashMap<Origin, Bucket>,
    is_over: bool,
}

impl Maker {
    /// # Errors
    ///
    /// When the system gives no thread.
    pub(super) fn start(make: Make) -> std::io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("name-maker".into());
        thread.spawn(move || of_thread.run(make))?;
        Ok(Self { shared })
    }

    /// Asks for a name. Those who ask for the same one wait for one write.
    ///
    /// # Errors
    ///
    /// It will not be made, and there will be no answer.
    pub fn ask(
        &self,
        name: &str,
        origin: Origin,
        now_ms: u64,
        answer: Answer,
    ) -> Result<(), NoWait> {
        self.shared.lock().ask(name, origin, now_ms, answer)?;
        self.shared.wakes.notify_one();
        Ok(())
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.wakes.notify_one();
    }
}

impl Shared {
    fn run(&self, mut make: Make) {
        while let Some(names) = self.next() {
            let made = make(&names);
            let answers = self.lock().end();
            for (name, answers) in answers {
                let place = names.iter().position(|own| *own == name);
                let is_made = place.and_then(|place| made.get(place)).copied().unwrap_or(false);
                answers.into_iter().for_each(|answer| answer(is_made));
            }
        }
    }

    /// All that are wanted by now: they share a write. None: it is over.
    fn next(&self) -> Option<Vec<Box<str>>> {
        let mut queue = self.lock();
        while queue.wanted.is_empty() && !queue.is_over {
            queue = self.wakes.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if queue.is_over {
            return None;
        }
        queue.under_way = std::mem::take(&mut queue.wanted);
        Some(queue.under_way.keys().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn ask(
        &mut self,
        name: &str,
        origin: Origin,
        now_ms: u64,
        answer: Answer,
    ) -> Result<(), NoWait> {
        if self.clients >= CLIENTS_MAX {
            return Err(NoWait::Full);
        }
        let known = [&mut self.under_way, &mut self.wanted];
        if let Some(waiting) = known.into_iter().find_map(|names| names.get_mut(name)) {
            waiting.push(answer);
        } else {
            if self.under_way.len() + self.wanted.len() >= NAMES_MAX {
                return Err(NoWait::Full);
            }
            self.charge(origin, now_ms)?;
            self.wanted.insert(name.into(), vec![answer]);
        }
        self.clients += 1;
        Ok(())
    }

    fn charge(&mut self, origin: Origin, now_ms: u64) -> Result<(), NoWait> {
        if self.paces.len() >= ADDRESSES_MAX {
            self.paces.retain(|_, bucket| !bucket.is_full(now_ms));
        }
        let is_full = self.paces.len() >= ADDRESSES_MAX;
        let bucket = match self.paces.entry(origin) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if is_full => return Err(NoWait::Full),
            Entry::Vacant(entry) => {
                let Some(bucket) = Bucket::new(NAMES_OF_ADDRESS, now_ms) else { return Ok(()) };
                entry.insert(bucket)
            }
        };
        if bucket.take_if_there(1, now_ms) { Ok(()) } else { Err(NoWait::TooFast) }
    }

    /// The write has ended.
    fn end(&mut self) -> HashMap<Box<str>, Vec<Answer>> {
        let ended = std::mem::take(&mut self.under_way);
        self.clients -= ended.values().map(Vec::len).sum::<usize>();
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const ONE: Origin = Origin::V4([192, 0, 2, 1]);
    const OTHER: Origin = Origin::V4([192, 0, 2, 2]);

    /// Who was answered, and with what.
    type Answered = (u32, bool);

    /// A maker whose disk is the test.
    struct Disk {
        maker: Maker,
        begun: Receiver<Vec<Box<str>>>,
        done: Sender<bool>,
        answers: (Sender<Answered>, Receiver<Answered>),
    }

    impl Disk {
        fn new() -> Self {
            let ((sender, begun), (done, wait)) = (channel(), channel());
            let maker = Maker::start(Box::new(move |names| {
                let _ = sender.send(names.to_vec());
                let is_made = wait.recv().unwrap_or(false);
                names.iter().map(|name| is_made && **name != *"bad").collect()
            }));
            Self { maker: maker.unwrap(), begun, done, answers: channel() }
        }

        fn ask(&self, who: u32, name: &str, origin: Origin) -> Result<(), NoWait> {
            let answers = self.answers.0.clone();
            let answer = Box::new(move |is_made| answers.send((who, is_made)).unwrap());
            self.maker.ask(name, origin, 0, answer)
        }

        /// The names of the write that has begun.
        fn begun(&self) -> Vec<Box<str>> {
            let mut names = self.begun.recv().unwrap();
            names.sort_unstable();
            names
        }

        fn answered(&self, count: usize) -> Vec<Answered> {
            let mut all: Vec<_> = self.answers.1.iter().take(count).collect();
            all.sort_unstable();
            all
        }
    }

    #[test]
    fn those_who_want_one_name_share_its_making_and_those_behind_share_a_write() {
        let disk = Disk::new();
        disk.ask(1, "a", ONE).unwrap();
        assert_eq!(disk.begun(), ["a".into()]);
        disk.ask(2, "a", OTHER).unwrap();
        disk.ask(3, "b", ONE).unwrap();
        disk.ask(4, "bad", OTHER).unwrap();
        disk.ask(5, "b", OTHER).unwrap();
        disk.done.send(true).unwrap();
        assert_eq!(disk.answered(2), [(1, true), (2, true)]);
        assert_eq!(disk.begun(), ["b".into(), "bad".into()]);
        disk.done.send(true).unwrap();
        assert_eq!(disk.answered(3), [(3, true), (4, false), (5, true)]);
        disk.ask(6, "c", ONE).unwrap();
        disk.begun();
        disk.done.send(false).unwrap();
        assert_eq!(disk.answered(1), [(6, false)]);
        assert_eq!(disk.maker.shared.lock().clients, 0);
    }

    #[test]
    fn one_address_cannot_fill_the_queue() {
        let disk = Disk::new();
        let burst = NAMES_OF_ADDRESS.burst;
        for number in 0..burst {
            disk.ask(number, &format!("n{number}"), ONE).unwrap();
        }
        assert_eq!(disk.ask(0, "one more", ONE), Err(NoWait::TooFast));
        assert_eq!(disk.ask(0, "n0", ONE), Ok(()), "a name that is made already costs nothing");
        assert_eq!(disk.ask(0, "one more", OTHER), Ok(()));
        let answer: Answer = Box::new(|_| {});
        assert_eq!(disk.maker.ask("later", ONE, 1_000, answer), Ok(()), "one each second");
    }

    #[test]
    fn names_and_clients_that_wait_are_limited() {
        let disk = Disk::new();
        for number in 0..NAMES_MAX as u32 {
            disk.ask(number, &format!("n{number}"), Origin::V4(number.to_be_bytes())).unwrap();
        }
        assert_eq!(disk.ask(0, "one more", ONE), Err(NoWait::Full));
        for number in NAMES_MAX..CLIENTS_MAX {
            assert_eq!(disk.ask(number as u32, "n0", ONE), Ok(()));
        }
        assert_eq!(disk.ask(0, "n0", ONE), Err(NoWait::Full));
    }

    #[test]
    fn addresses_that_are_paced_are_limited_and_forgotten() {
        let mut queue = Queue::default();
        let address = |number: usize| Origin::V4((number as u32).to_be_bytes());
        for number in 0..ADDRESSES_MAX {
            assert_eq!(queue.charge(address(number), 0), Ok(()));
        }
        assert_eq!(queue.charge(address(ADDRESSES_MAX), 500), Err(NoWait::Full));
        assert_eq!(queue.charge(address(0), 500), Ok(()));
        assert_eq!(queue.charge(address(ADDRESSES_MAX), 1_500), Ok(()));
        assert_eq!(queue.paces.len(), 2, "all others may ask as if they never had");
    }
}
