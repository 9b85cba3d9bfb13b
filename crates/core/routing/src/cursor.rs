//! How far a consumer is: each record of its stream has one outcome, and all of them add up.

use std::collections::BTreeMap;

/// What became of a record for one consumer. It is final.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    /// Its filter does not match.
    NotMatched,
    /// A condition of the rule does not hold.
    SkippedByCondition,
    /// The message had expired before it could be sent.
    SkippedExpired,
    /// The target has acknowledged it.
    Delivered,
    /// It is in the dead-letter stream.
    DeadLettered,
    /// The target refused it, or its attempts are used up, and there is no dead-letter stream.
    GivenUp,
    /// The stream's limits have deleted it.
    DroppedByRetention,
    /// The stream's files cannot be read there.
    DroppedDamaged,
}

impl Outcome {
    pub const ALL: [Self; 8] = [
        Self::NotMatched,
        Self::SkippedByCondition,
        Self::SkippedExpired,
        Self::Delivered,
        Self::DeadLettered,
        Self::GivenUp,
        Self::DroppedByRetention,
        Self::DroppedDamaged,
    ];

    /// Its name in the API, in metrics and in logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NotMatched => "not_matched",
            Self::SkippedByCondition => "skipped_condition",
            Self::SkippedExpired => "skipped_expired",
            Self::Delivered => "delivered",
            Self::DeadLettered => "dead_lettered",
            Self::GivenUp => "given_up",
            Self::DroppedByRetention => "dropped_retention",
            Self::DroppedDamaged => "dropped_damaged",
        }
    }
}

/// Ranges of outcomes above the floor of a shard. Policy: at the limit the consumer takes no
/// further record of this shard until the floor moves. So the cursor has at most some 16 KiB.
pub const RANGES_MAX: usize = 1000;

/// How far a consumer is in the records of one shard. The records are numbered without gaps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cursor {
    /// Which run of the sum this is. A seek begins a new one; outcomes of an earlier run do not
    /// count.
    run: u64,
    /// The first record of the run.
    start: u64,
    /// All records below have their outcome.
    floor: u64,
    /// Beginning to end of those above the floor that have theirs. They neither overlap nor touch.
    above: BTreeMap<u64, u64>,
    totals: [u64; Outcome::ALL.len()],
}

/// Why an outcome does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ignored {
    #[error("it is of run {0}, and this is run {1}")]
    OtherRun(u64, u64),
    #[error("record {0} has its outcome already, or is ahead of the run")]
    Known(u64),
}

impl Cursor {
    /// A run that begins with this record.
    pub const fn new(run: u64, start: u64) -> Self {
        Self { run, start, floor: start, above: BTreeMap::new(), totals: [0; Outcome::ALL.len()] }
    }

    /// The next run, from another record on. What was is forgotten.
    pub const fn seek(&self, start: u64) -> Self {
        Self::new(self.run + 1, start)
    }

    pub const fn run(&self) -> u64 {
        self.run
    }

    pub const fn start(&self) -> u64 {
        self.start
    }

    /// All records below have their outcome: a stream that may forget what is consumed may forget
    /// them.
    pub const fn floor(&self) -> u64 {
        self.floor
    }

    pub const fn total(&self, outcome: Outcome) -> u64 {
        self.totals[outcome as usize]
    }

    /// Ranges above the floor: compare with [`RANGES_MAX`].
    pub fn ranges(&self) -> usize {
        self.above.len()
    }

    pub fn has_outcome(&self, ordinal: u64) -> bool {
        let before = self.above.range(..=ordinal).next_back();
        ordinal < self.floor || before.is_some_and(|(_, end)| ordinal < *end)
    }

    /// The first record from this one on that has no outcome.
    pub fn next_open(&self, ordinal: u64) -> u64 {
        let ordinal = ordinal.max(self.floor);
        match self.above.range(..=ordinal).next_back() {
            Some((_, end)) if ordinal < *end => *end,
            _ => ordinal,
        }
    }

    /// The outcome of one record of a run.
    ///
    /// # Errors
    ///
    /// When it does not count. Nothing has changed then.
    pub fn note(&mut self, run: u64, ordinal: u64, outcome: Outcome) -> Result<(), Ignored> {
        self.check_run(run)?;
        if ordinal == u64::MAX || !self.cover(ordinal, ordinal + 1) {
            return Err(Ignored::Known(ordinal));
        }
        self.totals[outcome as usize] += 1;
        Ok(())
    }

    /// The outcome of all records from `first` to ahead of `next` that have none. Returns how many
    /// these were.
    ///
    /// # Errors
    ///
    /// When it is of another run. Nothing has changed then.
    pub fn note_range(
        &mut self,
        run: u64,
        (first, next): (u64, u64),
        outcome: Outcome,
    ) -> Result<u64, Ignored> {
        self.check_run(run)?;
        let mut count = 0;
        let mut at = self.next_open(first);
        while at < next {
            let open_end =
                self.above.range(at..).next().map_or(next, |(begin, _)| next.min(*begin));
            count += open_end - at;
            self.cover(at, open_end);
            at = self.next_open(open_end);
        }
        self.totals[outcome as usize] += count;
        Ok(count)
    }

    /// Records from the start of the run to ahead of `end` that have no outcome: in flight, or
    /// pending.
    pub fn open_until(&self, end: u64) -> u64 {
        end.max(self.floor) - self.floor - self.covered_above(end)
    }

    /// The sum, for a stream whose next record has this number. It always holds.
    pub fn adds_up(&self, end: u64) -> bool {
        let outcomes: u64 = self.totals.iter().sum();
        let covered: u64 = self.above.iter().map(|(begin, end)| end - begin).sum();
        let is_sound = self.start <= self.floor && outcomes == self.floor - self.start + covered;
        let stored = end.max(self.floor) - self.start;
        is_sound && stored == outcomes - (covered - self.covered_above(end)) + self.open_until(end)
    }

    fn check_run(&self, run: u64) -> Result<(), Ignored> {
        if run == self.run { Ok(()) } else { Err(Ignored::OtherRun(run, self.run)) }
    }

    fn covered_above(&self, end: u64) -> u64 {
        let below = self.above.range(..end);
        below.map(|(begin, range_end)| end.min(*range_end) - begin).sum()
    }

    /// Joins a range that is covered nowhere, or in its first record, with what touches it. False:
    /// its first record has its outcome.
    fn cover(&mut self, begin: u64, end: u64) -> bool {
        if begin < self.floor {
            return false;
        }
        let mut joined = None;
        if let Some((first, known)) = self.above.range_mut(..=begin).next_back() {
            if begin < *known {
                return false;
            }
            if begin == *known {
                *known = end;
                joined = Some(*first);
            }
        }
        let behind = self.above.remove(&end);
        if begin == self.floor {
            self.floor = behind.unwrap_or(end);
        } else if joined.is_none() || behind.is_some() {
            self.above.insert(joined.unwrap_or(begin), behind.unwrap_or(end));
        }
        true
    }
}

impl Cursor {
    /// As it is stored: numbers of 8 bytes, little endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = [self.run, self.start, self.floor, self.above.len() as u64];
        let ranges = self.above.iter().flat_map(|(begin, end)| [*begin, *end]);
        for number in head.into_iter().chain(self.totals).chain(ranges) {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    /// None: it is none, or does not add up.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let (run, start, floor, count) =
            (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
        let mut totals = [0; Outcome::ALL.len()];
        for total in &mut totals {
            *total = numbers.next()?;
        }
        let mut above = BTreeMap::new();
        let mut last = floor;
        for _ in 0..count {
            let (begin, end) = (numbers.next()?, numbers.next()?);
            if begin <= last || end <= begin {
                return None;
            }
            above.insert(begin, end);
            last = end;
        }
        let is_whole = rest.is_empty() && numbers.next().is_none();
        let outcomes = totals.iter().try_fold(0_u64, |sum, total| sum.checked_add(*total))?;
        let cursor = Self { run, start, floor, above, totals };
        let covered: u64 = cursor.above.iter().map(|(begin, end)| end - begin).sum();
        let expected = floor.checked_sub(start)?.checked_add(covered)?;
        (is_whole && outcomes == expected).then_some(cursor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_floor_moves_over_what_was_finished_out_of_order() {
        let mut cursor = Cursor::new(1, 10);
        for ordinal in [12, 14, 11, 13] {
            assert_eq!(cursor.note(1, ordinal, Outcome::Delivered), Ok(()));
        }
        assert_eq!((cursor.floor(), cursor.ranges(), cursor.open_until(16)), (10, 1, 2));
        assert_eq!(cursor.next_open(11), 15);
        assert_eq!(cursor.note(1, 10, Outcome::GivenUp), Ok(()));
        assert_eq!((cursor.floor(), cursor.ranges(), cursor.open_until(16)), (15, 0, 1));
        assert_eq!((cursor.total(Outcome::Delivered), cursor.total(Outcome::GivenUp)), (4, 1));
    }

    #[test]
    fn a_record_has_one_outcome_and_an_earlier_run_has_none() {
        let mut cursor = Cursor::new(1, 5);
        assert_eq!(cursor.note(1, 7, Outcome::Delivered), Ok(()));
        for ordinal in [7, 4] {
            let known = cursor.note(1, ordinal, Outcome::DeadLettered);
            assert_eq!(known, Err(Ignored::Known(ordinal)));
        }
        let mut later = cursor.seek(6);
        assert_eq!(later.note(1, 6, Outcome::Delivered), Err(Ignored::OtherRun(1, 2)));
        assert_eq!((later.floor(), later.total(Outcome::Delivered)), (6, 0));
        assert!(later.adds_up(100) && cursor.adds_up(100));
    }

    #[test]
    fn a_range_takes_what_is_left() {
        let mut cursor = Cursor::new(1, 0);
        for ordinal in [2, 3, 6] {
            cursor.note(1, ordinal, Outcome::Delivered).unwrap();
        }
        assert_eq!(cursor.note_range(1, (1, 8), Outcome::DroppedByRetention), Ok(4));
        assert_eq!((cursor.floor(), cursor.ranges()), (0, 1));
        assert_eq!(cursor.note_range(1, (0, 8), Outcome::NotMatched), Ok(1));
        assert_eq!((cursor.floor(), cursor.ranges()), (8, 0));
        assert_eq!(cursor.note_range(1, (0, 8), Outcome::NotMatched), Ok(0));
    }

    #[test]
    fn what_does_not_add_up_is_refused() {
        let mut cursor = Cursor::new(1, 0);
        cursor.note(1, 3, Outcome::Delivered).unwrap();
        let mut bytes = Vec::new();
        cursor.encode(&mut bytes);
        assert_eq!(Cursor::decode(&bytes), Some(cursor));
        for at in [8, 16, 24, 32, bytes.len() - 8] {
            let mut changed = bytes.clone();
            changed[at] ^= 2;
            assert_eq!(Cursor::decode(&changed), None, "number at {at}");
        }
        assert_eq!(Cursor::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        One(u64, usize),
        Range(u64, u64, usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let which = 0..Outcome::ALL.len();
        prop_oneof![
            3 => (0_u64..60, which.clone()).prop_map(|(at, which)| Step::One(at, which)),
            1 => (0_u64..60, 0_u64..20, which)
                .prop_map(|(at, len, which)| Step::Range(at, at + len, which)),
        ]
    }

    proptest! {
        /// Against a list of all records.
        #[test]
        fn it_is_what_a_list_would_be(
            start in 0_u64..20,
            work in prop::collection::vec(step(), 0..60),
        ) {
            let mut cursor = Cursor::new(3, start);
            let mut known: BTreeMap<u64, Outcome> = BTreeMap::new();
            for step in work {
                match step {
                    Step::One(at, which) => {
                        let outcome = Outcome::ALL[which];
                        let is_new = at >= start && !known.contains_key(&at);
                        prop_assert_eq!(cursor.note(3, at, outcome).is_ok(), is_new);
                        if is_new {
                            known.insert(at, outcome);
                        }
                    }
                    Step::Range(first, next, which) => {
                        let outcome = Outcome::ALL[which];
                        let open = (first.max(start)..next).filter(|at| !known.contains_key(at));
                        let open: Vec<u64> = open.collect();
                        let count = cursor.note_range(3, (first, next), outcome);
                        prop_assert_eq!(count, Ok(open.len() as u64));
                        known.extend(open.into_iter().map(|at| (at, outcome)));
                    }
                }
                let floor = (start..).find(|at| !known.contains_key(at)).unwrap();
                prop_assert_eq!(cursor.floor(), floor);
                for end in [0, 30, 100] {
                    prop_assert!(cursor.adds_up(end));
                    let open = (start..end).filter(|at| !known.contains_key(at)).count();
                    prop_assert_eq!(cursor.open_until(end), open as u64);
                }
                for outcome in Outcome::ALL {
                    let count = known.values().filter(|known| **known == outcome).count();
                    prop_assert_eq!(cursor.total(outcome), count as u64);
                }
                let mut bytes = Vec::new();
                cursor.encode(&mut bytes);
                prop_assert_eq!(Cursor::decode(&bytes), Some(cursor.clone()));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>) {
            if let Some(cursor) = Cursor::decode(&bytes) {
                let mut again = Vec::new();
                cursor.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
