//! Who makes the broker hold how much.
//!
//! Of each kind of thing there is a pot for all. One payer may take as much as it leaves to others:
//! alone half of the pot, one of nine a tenth. So whoever comes finds room, and nobody has to say
//! what the share of each is. The same holds for the memory of the process, while it is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is held, by what it counts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Deliveries that wait in memory for sessions.
    Queued,
    /// Sessions with their wills and subscriptions.
    Sessions,
    /// Retained messages.
    Retained,
    /// What waits to be written to connections, and what has come of them and waits. It is counted
    /// while memory is short.
    Unsent,
    /// Messages that wait in the logs, on the disk.
    Logged,
}

impl Held {
    pub const COUNT: usize = 5;
    pub const ALL: [Self; Self::COUNT] =
        [Self::Queued, Self::Sessions, Self::Retained, Self::Unsent, Self::Logged];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sessions => "sessions",
            Self::Retained => "retained",
            Self::Unsent => "unsent",
            Self::Logged => "logged",
        }
    }

    /// Does it take memory?
    pub const fn is_in_memory(self) -> bool {
        !matches!(self, Self::Logged)
    }
}

/// What all payers together hold, and may hold.
#[derive(Debug)]
pub struct Pots {
    /// In the order of [`Held::ALL`], like the next.
    bytes_max: [u64; Held::COUNT],
    bytes: [AtomicU64; Held::COUNT],
    /// Those who have something in the logs.
    loggers: AtomicU64,
    /// Of the process; [`u64::MAX`] while there is enough.
    memory_left: AtomicU64,
}

/// What one payer holds: a user, or an address of clients without a proved name.
#[derive(Debug)]
pub struct Account {
    name: Box<str>,
    pots: Arc<Pots>,
    /// By which it is known where a reference would take too much. No other has it meanwhile.
    number: u32,
    bytes: [AtomicU64; Held::COUNT],
}

impl Pots {
    pub fn new(bytes_max: [u64; Held::COUNT]) -> Arc<Self> {
        let memory_left = AtomicU64::new(u64::MAX);
        let loggers = AtomicU64::new(0);
        Arc::new(Self { bytes_max, bytes: Default::default(), loggers, memory_left })
    }

    pub fn memory_left(&self) -> u64 {
        self.memory_left.load(Ordering::Relaxed)
    }

    /// So much memory is left to all; [`u64::MAX`]: enough.
    pub fn set_memory_left(&self, bytes: u64) {
        self.memory_left.store(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self, held: Held) -> u64 {
        self.bytes[held as usize].load(Ordering::Relaxed)
    }
}

impl Account {
    pub fn new(name: &str, number: u32, pots: &Arc<Pots>) -> Self {
        Self { name: name.into(), pots: pots.clone(), number, bytes: Default::default() }
    }

    pub const fn number(&self) -> u32 {
        self.number
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn bytes(&self, held: Held) -> u64 {
        self.bytes[held as usize].load(Ordering::Relaxed)
    }

    /// What it holds in memory, of all kinds.
    pub fn total(&self) -> u64 {
        Held::ALL.iter().filter(|held| held.is_in_memory()).map(|held| self.bytes(*held)).sum()
    }

    /// Is memory short, and would it hold more, with so many bytes more, than it leaves to others?
    pub fn lacks_memory(&self, more: u64) -> bool {
        let left = self.pots.memory_left.load(Ordering::Relaxed);
        left != u64::MAX && self.total() + more > left
    }

    /// Would so many bytes more be too many? Two who ask at the same moment may both be told no.
    pub fn lacks_room(&self, held: Held, more: u64) -> bool {
        let left = self.pots.bytes_max[held as usize].saturating_sub(self.pots.bytes(held));
        self.bytes(held) + more > left || self.lacks_memory(more)
    }

    /// How many share the logs: those who have something there, and it.
    pub fn logging_count(&self) -> u64 {
        let others = self.pots.loggers.load(Ordering::Relaxed);
        others.max(1) + u64::from(self.bytes(Held::Logged) == 0 && others > 0)
    }

    pub fn add(&self, held: Held, bytes: u64) {
        let before = self.bytes[held as usize].fetch_add(bytes, Ordering::Relaxed);
        self.pots.bytes[held as usize].fetch_add(bytes, Ordering::Relaxed);
        if held == Held::Logged && before == 0 && bytes > 0 {
            self.pots.loggers.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn sub(&self, held: Held, bytes: u64) {
        let before = self.bytes[held as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.pots.bytes[held as usize].fetch_sub(bytes, Ordering::Relaxed);
        if held == Held::Logged && before == bytes && bytes > 0 {
            self.pots.loggers.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_payer_takes_half_and_leaves_the_rest_to_others() {
        let pots = Pots::new([1000, 0, 0, 0, 0]);
        let greedy = Account::new("greedy", 1, &pots);
        let mut taken = 0;
        while !greedy.lacks_room(Held::Queued, 10) {
            greedy.add(Held::Queued, 10);
            taken += 10;
        }
        assert_eq!(taken, 500);
        let others: Vec<_> = (0..8).map(|_| Account::new("other", 2, &pots)).collect();
        for _ in 0..100 {
            for other in others.iter().filter(|other| !other.lacks_room(Held::Queued, 1)) {
                other.add(Held::Queued, 1);
            }
        }
        let (least, most) = (others[7].bytes(Held::Queued), others[0].bytes(Held::Queued));
        assert!(least >= 50 && most - least <= 1, "{least} {most}");
        let late = Account::new("late", 3, &pots);
        assert!(!late.lacks_room(Held::Queued, 50), "who comes last finds room, too");
        greedy.sub(Held::Queued, 500);
        assert!(!others[0].lacks_room(Held::Queued, 100));
    }

    #[test]
    fn those_who_have_something_in_the_logs_are_counted() {
        let pots = Pots::new([u64::MAX; Held::COUNT]);
        let (one, other) = (Account::new("one", 1, &pots), Account::new("other", 2, &pots));
        let counts = || (one.logging_count(), other.logging_count());
        assert_eq!(counts(), (1, 1));
        one.add(Held::Logged, 10);
        one.add(Held::Logged, 5);
        one.add(Held::Queued, 5);
        assert_eq!(counts(), (1, 2), "who comes counts, too");
        other.add(Held::Logged, 0);
        other.add(Held::Logged, 7);
        assert_eq!(counts(), (2, 2));
        one.sub(Held::Logged, 10);
        assert_eq!(counts(), (2, 2));
        one.sub(Held::Logged, 5);
        assert_eq!(counts(), (2, 1));
        other.sub(Held::Logged, 7);
        assert_eq!(counts(), (1, 1));
    }

    #[test]
    fn while_memory_is_short_one_payer_has_no_more_than_it_leaves() {
        let pots = Pots::new([u64::MAX; Held::COUNT]);
        let (greedy, modest) = (Account::new("greedy", 1, &pots), Account::new("modest", 2, &pots));
        greedy.add(Held::Unsent, 400);
        greedy.add(Held::Sessions, 200);
        modest.add(Held::Queued, 20);
        modest.add(Held::Logged, 1_000_000);
        let lacks = || (greedy.lacks_room(Held::Queued, 10), modest.lacks_room(Held::Queued, 10));
        assert_eq!(lacks(), (false, false));
        pots.set_memory_left(100);
        assert_eq!(lacks(), (true, false));
        pots.set_memory_left(25);
        assert_eq!(lacks(), (true, true));
        assert!(!modest.lacks_memory(5), "what is left it may have");
        greedy.sub(Held::Unsent, 400);
        pots.set_memory_left(u64::MAX);
        assert_eq!(lacks(), (false, false));
    }
}
