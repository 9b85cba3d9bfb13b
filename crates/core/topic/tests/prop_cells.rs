//! What a cell claims is seen by the others: in random histories of claims, changes that arrive
//! late, links that are lost, snapshots, owners that are lost, and time.
//!
//! Each step is one call. Calls of several threads add no more orders: those that change what is
//! exported are made under one lock, and so are those that enter the claims of others.

mod common;

use std::collections::VecDeque;

use proptest::prelude::*;
use proptest::sample;
use topic::interest::{Change, Snapshot};
use topic::{Claim, Interest, InterestCounts, Interested};

const SHARDS: u16 = 2;

#[derive(Clone, Debug)]
enum Step {
    Add {
        cell: usize,
        shard: u16,
        filter: String,
        claim: Claim,
    },
    /// A claim that was made.
    Remove(sample::Index),
    /// A cell sends the next changes to another one, at most so many.
    Send {
        pair: sample::Index,
        max: usize,
    },
    SendSnapshot {
        pair: sample::Index,
    },
    /// The other one enters the next that is under way.
    Deliver {
        pair: sample::Index,
    },
    /// All that is under way is lost, and the reader asks for a snapshot.
    Lose {
        pair: sample::Index,
    },
    LoseOwner {
        pair: sample::Index,
    },
    Wait {
        cell: usize,
        ms: u64,
    },
}

fn step(cells: usize) -> impl Strategy<Value = Step> {
    let claim = prop_oneof![Just(Claim::Want), Just(Claim::Promise)];
    let pair = any::<sample::Index>;
    prop_oneof![
        6 => (0..cells, 0..SHARDS, common::filter(), claim)
            .prop_map(|(cell, shard, filter, claim)| Step::Add { cell, shard, filter, claim }),
        5 => any::<sample::Index>().prop_map(Step::Remove),
        5 => (pair(), 1..6_usize).prop_map(|(pair, max)| Step::Send { pair, max }),
        2 => pair().prop_map(|pair| Step::SendSnapshot { pair }),
        7 => pair().prop_map(|pair| Step::Deliver { pair }),
        1 => pair().prop_map(|pair| Step::Lose { pair }),
        1 => pair().prop_map(|pair| Step::LoseOwner { pair }),
        4 => (0..cells, 0..12_000_u64).prop_map(|(cell, ms)| Step::Wait { cell, ms }),
    ]
}

fn history() -> impl Strategy<Value = (usize, Vec<Step>)> {
    (2..=3_usize).prop_flat_map(|cells| (Just(cells), prop::collection::vec(step(cells), 1..150)))
}

/// A claim of a local shard, and the number that its SUBACK waits for.
#[derive(Clone, Debug)]
struct Claimed {
    cell: usize,
    shard: u16,
    filter: String,
    claim: Claim,
    number: u64,
}

/// What one cell knows of another.
#[derive(Debug)]
struct Pair {
    from: usize,
    to: usize,
    /// Of `from`, in the table of `to`.
    place: u16,
    /// The number of the last change that was sent. None: a snapshot has to come first.
    sent: Option<u64>,
    under_way: VecDeque<Sent>,
    /// The number of the last change that was entered.
    entered: u64,
    knows: Knows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knows {
    Nothing,
    All,
    /// There was no owner since the last snapshot.
    Promises,
}

#[derive(Debug)]
enum Sent {
    Snapshot(Snapshot),
    Changes(u64, Vec<Change>),
}

struct World {
    cells: Vec<(Interest, Vec<InterestCounts>)>,
    claims: Vec<Claimed>,
    pairs: Vec<Pair>,
    topics: Vec<String>,
    now_ms: u64,
    buckets_log2: u8,
    seed: u64,
}

impl World {
    fn new(cells: usize, buckets_log2: u8, seed: u64, topics: Vec<String>) -> Self {
        let mut pairs = Vec::new();
        for (from, to) in (0..cells).flat_map(|from| (0..cells).map(move |to| (from, to))) {
            if from != to {
                let place = SHARDS + (if from < to { from } else { from - 1 }) as u16;
                let under_way = VecDeque::new();
                let knows = Knows::Nothing;
                pairs.push(Pair { from, to, place, sent: None, under_way, entered: 0, knows });
            }
        }
        let made = (0..cells).map(|_| cell(cells, buckets_log2, seed)).collect();
        Self { cells: made, claims: Vec::new(), pairs, topics, now_ms: 0, buckets_log2, seed }
    }

    fn take(&mut self, step: Step) {
        let pair_of = |any: sample::Index| any.index(self.pairs.len());
        match step {
            Step::Add { cell, shard, filter, claim } => self.add(cell, shard, filter, claim),
            Step::Remove(any) if !self.claims.is_empty() => {
                self.remove(any.index(self.claims.len()));
            }
            Step::Remove(_) => {}
            Step::Send { pair, max } => self.send(pair_of(pair), max),
            Step::SendSnapshot { pair } => self.send_snapshot(pair_of(pair)),
            Step::Deliver { pair } => self.deliver(pair_of(pair)),
            Step::Lose { pair } => self.lose(pair_of(pair), Knows::Nothing),
            Step::LoseOwner { pair } => self.lose(pair_of(pair), Knows::Promises),
            Step::Wait { cell, ms } => {
                self.now_ms += ms;
                self.cells[cell].0.release_clears(self.now_ms);
            }
        }
    }

    fn add(&mut self, cell: usize, shard: u16, filter: String, claim: Claim) {
        let (interest, counts) = &mut self.cells[cell];
        counts[usize::from(shard)].add(interest, &filter, claim);
        let number = interest.exported();
        self.claims.push(Claimed { cell, shard, filter, claim, number });
    }

    fn remove(&mut self, at: usize) {
        let claimed = self.claims.swap_remove(at);
        let (interest, counts) = &mut self.cells[claimed.cell];
        counts[usize::from(claimed.shard)].remove(interest, &claimed.filter, claimed.claim);
    }

    fn send(&mut self, pair: usize, max: usize) {
        let pair = &mut self.pairs[pair];
        let Some(sent) = pair.sent else { return };
        let found = self.cells[pair.from].0.changes_since(sent, max).expect("not too long ago");
        assert!(found.changes.len() <= max);
        assert_eq!(found.through, sent + found.changes.len() as u64);
        pair.sent = Some(found.through);
        pair.under_way.push_back(Sent::Changes(found.through, found.changes));
    }

    fn send_snapshot(&mut self, pair: usize) {
        let pair = &mut self.pairs[pair];
        let snapshot = self.cells[pair.from].0.snapshot();
        // As it comes from the wire.
        let copy = Snapshot::new(snapshot.number(), snapshot.depths(), snapshot.form().clone());
        assert_eq!(copy.as_ref(), Ok(&snapshot));
        assert_eq!(snapshot.number(), self.cells[pair.from].0.exported());
        pair.sent = Some(snapshot.number());
        pair.under_way.push_back(Sent::Snapshot(snapshot));
    }

    fn deliver(&mut self, pair: usize) {
        let pair = &mut self.pairs[pair];
        let interest = &self.cells[pair.to].0;
        match pair.under_way.pop_front() {
            None => {}
            Some(Sent::Snapshot(snapshot)) => {
                pair.entered = snapshot.number();
                pair.knows = Knows::All;
                interest.replace(pair.place, &snapshot).expect("of the same table");
            }
            Some(Sent::Changes(through, changes)) => {
                pair.entered = through;
                interest.apply(pair.place, &changes).expect("of the same table");
            }
        }
    }

    fn lose(&mut self, pair: usize, knows: Knows) {
        let pair = &mut self.pairs[pair];
        let interest = &self.cells[pair.to].0;
        pair.sent = None;
        pair.under_way.clear();
        if knows == Knows::Nothing {
            interest.set_unknown(pair.place);
            pair.knows = Knows::Nothing;
        } else {
            interest.keep_promises_only(pair.place);
            if pair.knows == Knows::All {
                pair.knows = Knows::Promises;
            }
        }
    }

    /// Nothing is missed of what was claimed before the last number that a reader has.
    fn check(&self) -> Result<(), TestCaseError> {
        for (pair, topic) in self.pairs.iter().flat_map(|p| self.topics.iter().map(move |t| (p, t)))
        {
            let interest = &self.cells[pair.to].0;
            let bits = interest.shards(topic.as_bytes());
            let is_seen = |mask: u64| mask & 1 << pair.place != 0;
            let found = (is_seen(bits.wants), is_seen(bits.promises));
            let is_unknown = pair.knows == Knows::Nothing;
            prop_assert_eq!(interest.is_unknown(pair.place), is_unknown);
            if is_unknown {
                prop_assert_eq!(found, (true, true));
                continue;
            }
            for claimed in self.claims.iter().filter(|one| {
                one.cell == pair.from
                    && one.number <= pair.entered
                    && topic::matches(&one.filter, topic)
            }) {
                match claimed.claim {
                    Claim::Promise => prop_assert_eq!(found, (true, true), "{}", topic),
                    Claim::Want if pair.knows == Knows::All => prop_assert!(found.0, "{}", topic),
                    Claim::Want => {}
                }
            }
        }
        Ok(())
    }

    /// Delivers everything, and releases all clears.
    fn settle(&mut self) {
        for _ in 0..8 {
            self.now_ms += 20_000;
            for cell in 0..self.cells.len() {
                self.take(Step::Wait { cell, ms: 0 });
            }
        }
        for pair in 0..self.pairs.len() {
            if self.pairs[pair].sent.is_none() {
                self.send_snapshot(pair);
            }
            self.send(pair, usize::MAX);
            while !self.pairs[pair].under_way.is_empty() {
                self.deliver(pair);
            }
        }
    }

    /// Everybody knows what tables would know that had been made of what is claimed.
    fn check_settled(&self) -> Result<(), TestCaseError> {
        let cells = self.cells.len();
        let mut fresh: Vec<_> =
            (0..cells).map(|_| cell(cells, self.buckets_log2, self.seed)).collect();
        for Claimed { cell, shard, filter, claim, .. } in &self.claims {
            let (interest, counts) = &mut fresh[*cell];
            counts[usize::from(*shard)].add(interest, filter, *claim);
        }
        for pair in &self.pairs {
            let snapshot = fresh[pair.from].0.snapshot();
            let own = self.cells[pair.from].0.snapshot();
            prop_assert_eq!((own.form(), own.depths()), (snapshot.form(), snapshot.depths()));
            fresh[pair.to].0.replace(pair.place, &snapshot).expect("of the same table");
        }
        // Depths that were once told are looked up by some, which is no difference in bits.
        let depths: Vec<Change> = (1..8).map(Change::Depth).collect();
        for pair in &self.pairs {
            for interest in [&self.cells[pair.to].0, &fresh[pair.to].0] {
                interest.apply(pair.place, &depths).expect("of the same table");
            }
        }
        let others = (0..500).map(|number| format!("{number}"));
        for topic in self.topics.iter().cloned().chain(others) {
            for ((interest, _), (fresh, _)) in self.cells.iter().zip(&fresh) {
                let found = interest.shards(topic.as_bytes());
                prop_assert_eq!(found, fresh.shards(topic.as_bytes()), "{}", topic);
            }
        }
        Ok(())
    }
}

fn cell(cells: usize, buckets_log2: u8, seed: u64) -> (Interest, Vec<InterestCounts>) {
    let places = SHARDS + cells as u16 - 1;
    let interest = Interest::of_cell(SHARDS, places, buckets_log2, seed);
    let counts = (0..SHARDS).map(|shard| InterestCounts::new(shard, &interest)).collect();
    (interest, counts)
}

proptest! {
    #[test]
    fn no_claim_is_missed_in_another_cell(
        seed: u64,
        buckets_log2 in 8..11_u8,
        (cells, steps) in history(),
        topics in prop::collection::vec(common::topic(), 1..8),
    ) {
        let mut world = World::new(cells, buckets_log2, seed, topics);
        for step in steps {
            world.take(step);
            world.check()?;
        }
        world.settle();
        world.check()?;
        world.check_settled()?;
        while !world.claims.is_empty() {
            world.remove(0);
        }
        world.settle();
        for (interest, _) in &world.cells {
            prop_assert_eq!(interest.snapshot().lanes().count(), 0);
            prop_assert_eq!(interest.snapshot().depths(), 0);
            for topic in &world.topics {
                prop_assert_eq!(interest.shards(topic.as_bytes()), Interested::default());
            }
        }
    }
}
