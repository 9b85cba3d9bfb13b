//! Who makes the broker hold how much.
//!
//! Of each kind of thing there is a pot for all. One payer may take as much as it leaves to others:
//! alone half of the pot, one of nine a tenth. So whoever comes finds room, and nobody has to say
//! what the share of each is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is held, by what it counts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Deliveries that wait in memory for sessions.
    Queued,
    /// Sessions with their wills and subscriptions.
    Sessions,
}

impl Held {
    pub const ALL: [Self; 2] = [Self::Queued, Self::Sessions];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Sessions => "sessions",
        }
    }
}

/// What all payers together hold, and may hold.
#[derive(Debug)]
pub struct Pots {
    /// In the order of [`Held::ALL`], like the next.
    bytes_max: [u64; 2],
    bytes: [AtomicU64; 2],
}

/// What one payer holds: a user, or an address of clients without a proved name.
#[derive(Debug)]
pub struct Account {
    name: Box<str>,
    pots: Arc<Pots>,
    bytes: [AtomicU64; 2],
}

impl Pots {
    pub fn new(bytes_max: [u64; 2]) -> Arc<Self> {
        Arc::new(Self { bytes_max, bytes: Default::default() })
    }

    pub fn bytes(&self, held: Held) -> u64 {
        self.bytes[held as usize].load(Ordering::Relaxed)
    }
}

impl Account {
    pub fn new(name: &str, pots: &Arc<Pots>) -> Self {
        Self { name: name.into(), pots: pots.clone(), bytes: Default::default() }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn bytes(&self, held: Held) -> u64 {
        self.bytes[held as usize].load(Ordering::Relaxed)
    }

    /// Would so many bytes more be too many? Two who ask at the same moment may both be told no.
    pub fn lacks_room(&self, held: Held, more: u64) -> bool {
        let left = self.pots.bytes_max[held as usize].saturating_sub(self.pots.bytes(held));
        self.bytes(held) + more > left
    }

    pub fn add(&self, held: Held, bytes: u64) {
        self.bytes[held as usize].fetch_add(bytes, Ordering::Relaxed);
        self.pots.bytes[held as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn sub(&self, held: Held, bytes: u64) {
        self.bytes[held as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.pots.bytes[held as usize].fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_payer_takes_half_and_leaves_the_rest_to_others() {
        let pots = Pots::new([1000, 0]);
        let greedy = Account::new("greedy", &pots);
        let mut taken = 0;
        while !greedy.lacks_room(Held::Queued, 10) {
            greedy.add(Held::Queued, 10);
            taken += 10;
        }
        assert_eq!(taken, 500);
        let others: Vec<_> = (0..8).map(|_| Account::new("other", &pots)).collect();
        for _ in 0..100 {
            for other in others.iter().filter(|other| !other.lacks_room(Held::Queued, 1)) {
                other.add(Held::Queued, 1);
            }
        }
        let (least, most) = (others[7].bytes(Held::Queued), others[0].bytes(Held::Queued));
        assert!(least >= 50 && most - least <= 1, "{least} {most}");
        let late = Account::new("late", &pots);
        assert!(!late.lacks_room(Held::Queued, 50), "who comes last finds room, too");
        greedy.sub(Held::Queued, 500);
        assert!(!others[0].lacks_room(Held::Queued, 100));
    }
}
