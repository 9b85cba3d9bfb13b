//! One cell among others: its claims go to the others, and theirs are entered here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::export::Export;
use super::summary::{Change, Changes, Snapshot, SummaryError, bits, check_depth, check_lane};
use super::{CLAIMS, Claim, Interest, PAGE_BITS, PAGE_WORDS, lane_of, new_page};

/// What a table has in addition if there are other cells.
#[derive(Debug)]
pub(super) struct Cell {
    /// The number of the newest change in `export`.
    exported: AtomicU64,
    export: Mutex<Export>,
    others: usize,
    /// The depths that each other cell has told. Held while claims of others are entered.
    depths: Mutex<Box<[u32]>>,
}

/// A claim of a local shard is about to change. No other does until this is dropped.
pub(super) struct Exporting<'a> {
    cell: &'a Cell,
    export: MutexGuard<'a, Export>,
}

impl Cell {
    pub(super) fn new(lanes: u32, others: u16) -> Self {
        let others = usize::from(others);
        Self {
            others,
            exported: AtomicU64::new(0),
            export: Mutex::new(Export::new(lanes)),
            depths: Mutex::new(vec![0; others].into()),
        }
    }

    pub(super) fn begin(&self) -> Exporting<'_> {
        Exporting { cell: self, export: self.export.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl Exporting<'_> {
    pub(super) fn claim(&mut self, lane: u32, depth: Option<usize>) {
        self.export.claim(lane, depth);
    }

    pub(super) fn unclaim(&mut self, lane: u32, depth: Option<usize>, is_last: bool) {
        self.export.unclaim(lane, depth, is_last);
    }
}

impl Drop for Exporting<'_> {
    /// Still under the lock. Whoever takes it next, and asks for the number then, gets this one or
    /// a higher one: also a shard whose claim another shard has made known.
    fn drop(&mut self) {
        self.cell.exported.store(self.export.newest(), Ordering::Release);
    }
}

/// For other cells. A table without any has nothing to export.
impl Interest {
    /// The number of the newest change of what the local shards claim together. 0: there was none.
    ///
    /// Asked for after [`super::InterestCounts::add`] has returned, it is a promise: another cell
    /// that has entered all changes up to it, or a snapshot with it or a higher one, sees what was
    /// claimed until the claim is taken back.
    pub fn exported(&self) -> u64 {
        self.cell.as_ref().map_or(0, |cell| cell.exported.load(Ordering::Acquire))
    }

    /// All that the local shards claim, and what they claimed a moment ago.
    pub fn snapshot(&self) -> Snapshot {
        match &self.cell {
            None => Snapshot::of_bitmap(0, 0, &[]),
            Some(cell) => cell.begin().export.snapshot(),
        }
    }

    /// What has changed since `number`, `max` changes at most. None: that is too long ago, or there
    /// is no such number, and a snapshot is needed.
    pub fn changes_since(&self, number: u64, max: usize) -> Option<Changes> {
        match &self.cell {
            None => (number == 0).then(|| Changes { through: 0, changes: Vec::new() }),
            Some(cell) => cell.begin().export.changes_since(number, max),
        }
    }

    /// Makes known what nobody has claimed for ten seconds. To be called now and then, once a
    /// second or so: clears are made by these calls only.
    pub fn release_clears(&self, now_ms: u64) {
        if let Some(cell) = &self.cell {
            cell.begin().export.release_clears(now_ms, self);
        }
    }
}

/// Claims of other cells. Their places are numbered behind the local shards.
///
/// A look-up that happens after one of these calls sees all that it has entered, and one that runs
/// meanwhile misses nothing that was claimed before and after: bits that stay set are not touched,
/// and a cell is unknown until the last bit is set. The version changes last.
///
/// # Panics
///
/// All of these do when the place is not that of another cell.
impl Interest {
    /// Nothing is known of the claims of another cell, as at the beginning: it counts as wanting
    /// and promising all topics. What was known of an earlier owner is used in addition.
    pub fn set_unknown(&self, place: u16) {
        let _ = self.other(place);
        self.unknown.fetch_or(1 << place, Ordering::Release);
        self.count_change();
    }

    pub fn is_unknown(&self, place: u16) -> bool {
        let _ = self.other(place);
        self.unknown.load(Ordering::Acquire) & 1 << place != 0
    }

    /// Replaces all claims of another cell, which are known from now on.
    ///
    /// # Errors
    ///
    /// When the snapshot is of a larger table: nothing has changed then.
    pub fn replace(&self, place: u16, snapshot: &Snapshot) -> Result<(), SummaryError> {
        if let Some(lane) = snapshot.highest() {
            check_lane(lane, self.lanes())?;
        }
        let (mut depths, other) = self.depths_of(place);
        let before = std::mem::replace(&mut depths[other], snapshot.depths());
        for depth in bits(u64::from(snapshot.depths() & !before)) {
            self.count_depth(depth as usize);
        }
        self.replace_lanes(place, snapshot);
        for depth in bits(u64::from(before & !snapshot.depths())) {
            self.discount_depth(depth as usize);
        }
        self.unknown.fetch_and(!(1 << place), Ordering::Release);
        self.count_change();
        Ok(())
    }

    /// Enters changes that follow those which are entered. After [`Interest::keep_promises_only`] a
    /// snapshot has to come first, and a cell that is unknown stays so.
    ///
    /// # Errors
    ///
    /// When one of them is of a larger table: nothing has changed then.
    pub fn apply(&self, place: u16, changes: &[Change]) -> Result<(), SummaryError> {
        let (mut depths, other) = self.depths_of(place);
        for change in changes {
            match *change {
                Change::Depth(depth) => check_depth(depth)?,
                Change::Set { lane } | Change::Clear { lane } => check_lane(lane, self.lanes())?,
            }
        }
        for change in changes {
            match *change {
                Change::Depth(depth) if depths[other] & 1 << depth != 0 => {}
                Change::Depth(depth) => {
                    depths[other] |= 1 << depth;
                    self.count_depth(depth.into());
                }
                Change::Set { lane } => self.put(lane as usize, place, true),
                Change::Clear { lane } => self.put(lane as usize, place, false),
            }
        }
        self.count_change();
        Ok(())
    }

    /// Another cell has no owner. Nobody takes what it only wants; what it has promised to keep
    /// has to wait for its next owner. If its claims are unknown, that is everything.
    pub fn keep_promises_only(&self, place: u16) {
        let _entering = self.depths_of(place);
        let buckets_of_page = (PAGE_BITS >> self.lane_log2) / CLAIMS;
        for (number, page) in self.pages.iter().enumerate() {
            if page.get().is_some() {
                let first = number * buckets_of_page;
                for bucket in first..(first + buckets_of_page).min(self.root_place()) {
                    self.keep_promise(bucket, place);
                }
            }
        }
        self.keep_promise(self.root_place(), place);
        self.count_change();
    }

    fn keep_promise(&self, bucket: usize, place: u16) {
        let (word, bit) = self.bit(lane_of(bucket, Claim::Promise), place);
        let is_promised = word.load(Ordering::Relaxed) & bit != 0;
        self.put(lane_of(bucket, Claim::Want), place, is_promised);
    }

    fn replace_lanes(&self, place: u16, snapshot: &Snapshot) {
        let mut lanes = snapshot.lanes().map(|lane| lane as usize).peekable();
        let lanes_of_word = u64::BITS as usize >> self.lane_log2;
        let root = lane_of(self.root_place(), Claim::Want);
        for (number, page) in self.pages.iter().enumerate() {
            let end = root.min((number + 1) * PAGE_WORDS * lanes_of_word);
            if page.get().is_none() && lanes.peek().is_none_or(|lane| *lane >= end) {
                continue;
            }
            for (at, word) in page.get_or_init(new_page).iter().enumerate() {
                let first = (number * PAGE_WORDS + at) * lanes_of_word;
                let mut claimed = 0;
                while let Some(lane) = lanes.next_if(|lane| *lane < end.min(first + lanes_of_word))
                {
                    claimed |= 1 << ((lane - first) << self.lane_log2);
                }
                self.replace_bits(word, place, claimed << place);
            }
        }
        for lane in root..root + CLAIMS {
            self.put(lane, place, lanes.next_if_eq(&lane).is_some());
        }
    }

    /// Replaces the bits of another cell in a word.
    fn replace_bits(&self, word: &AtomicU64, place: u16, claimed: u64) {
        let all = (u64::MAX / self.lane_mask) << place;
        let before = word.load(Ordering::Relaxed) & all;
        if claimed & !before != 0 {
            word.fetch_or(claimed, Ordering::Release);
        }
        if before & !claimed != 0 {
            word.fetch_and(!(before & !claimed), Ordering::Release);
        }
    }

    /// Sets or clears one bit of another cell. Nobody else changes it meanwhile.
    fn put(&self, lane: usize, place: u16, is_claimed: bool) {
        let (word, bit) = self.bit(lane, place);
        if (word.load(Ordering::Relaxed) & bit != 0) == is_claimed {
            return;
        }
        if is_claimed {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }

    /// Begins to enter claims of another cell: the depths of all, and which of them are its.
    fn depths_of(&self, place: u16) -> (MutexGuard<'_, Box<[u32]>>, usize) {
        let (cell, other) = self.other(place);
        (cell.depths.lock().unwrap_or_else(PoisonError::into_inner), other)
    }

    fn other(&self, place: u16) -> (&Cell, usize) {
        let other = place.checked_sub(self.shards).map(usize::from);
        match (&self.cell, other) {
            (Some(cell), Some(other)) if other < cell.others => (cell, other),
            _ => panic!("place {place} is not another cell"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::export::{CHANGES_KEPT_MAX, CLEARS_AT_ONCE};
    use super::super::{InterestCounts, Interested, Lanes};
    use super::*;

    /// Two shards, and one other cell.
    const OTHER: u16 = 2;

    fn cell(buckets_log2: u8) -> (Interest, [InterestCounts; 2]) {
        let interest = Interest::of_cell(2, 3, buckets_log2, 7);
        let counts = [0, 1].map(|shard| InterestCounts::new(shard, &interest));
        (interest, counts)
    }

    fn known(buckets_log2: u8) -> Interest {
        let (interest, _) = cell(buckets_log2);
        let nothing = Snapshot::new(0, 0, Lanes::List(Vec::new())).expect("a sound one");
        interest.replace(OTHER, &nothing).expect("of any table");
        interest
    }

    fn changes(interest: &Interest, number: u64) -> Vec<Change> {
        interest.changes_since(number, usize::MAX).expect("not too long ago").changes
    }

    const NOBODY: Interested = Interested { wants: 0, promises: 0 };
    const WANTS: Interested = Interested { wants: 4, promises: 0 };
    const PROMISES: Interested = Interested { wants: 4, promises: 4 };

    /// Other cells may run an earlier version.
    #[test]
    fn lanes_and_depths_are_what_they_always_were() {
        let (interest, [mut counts, _]) = cell(20);
        for filter in ["site/4/meter", "site/+/meter", "a/b/#", "#"] {
            counts.add(&interest, filter, Claim::Want);
            counts.add(&interest, filter, Claim::Promise);
        }
        let both = |lane| [Change::Set { lane }, Change::Set { lane: lane + 1 }];
        let expected = [
            &both(1_032_714)[..],
            &[Change::Depth(1)],
            &both(192_660),
            &[Change::Depth(2)],
            &both(520_616),
            &both(2 << 20),
        ];
        assert_eq!(changes(&interest, 0), expected.concat());
    }

    #[test]
    fn only_what_changes_for_the_whole_cell_is_exported() {
        let (interest, [mut first, mut second]) = cell(16);
        assert_eq!((interest.exported(), changes(&interest, 0)), (0, Vec::new()));
        first.add(&interest, "a/+", Claim::Want);
        assert_eq!(interest.exported(), 2);
        assert!(matches!(changes(&interest, 0)[..], [Change::Depth(1), Change::Set { .. }]));
        second.add(&interest, "a/#", Claim::Want);
        first.add(&interest, "a/+/c", Claim::Want);
        first.remove(&interest, "a/+", Claim::Want);
        first.remove(&interest, "a/+/c", Claim::Want);
        interest.release_clears(0);
        interest.release_clears(1_000_000);
        assert_eq!(interest.exported(), 2);
    }

    #[test]
    fn a_clear_is_held_back_for_ten_seconds() {
        let (interest, [mut first, mut second]) = cell(16);
        first.add(&interest, "a", Claim::Want);
        interest.release_clears(1_000);
        first.remove(&interest, "a", Claim::Want);
        interest.release_clears(2_000);
        interest.release_clears(11_999);
        assert_eq!(interest.exported(), 1);
        interest.release_clears(12_000);
        assert!(matches!(changes(&interest, 1)[..], [Change::Clear { .. }]));
        interest.release_clears(100_000);
        assert_eq!(interest.exported(), 2);

        second.add(&interest, "a", Claim::Want);
        assert!(matches!(changes(&interest, 2)[..], [Change::Set { .. }]));
        second.remove(&interest, "a", Claim::Want);
        interest.release_clears(100_000);
        first.add(&interest, "a", Claim::Want);
        interest.release_clears(1_000_000);
        assert_eq!(interest.exported(), 3, "dropped, as it is claimed again");
        first.remove(&interest, "a", Claim::Want);
        interest.release_clears(1_000_000);
        first.add(&interest, "a", Claim::Want);
        first.remove(&interest, "a", Claim::Want);
        interest.release_clears(1_010_000);
        assert_eq!(interest.exported(), 3, "its time begins again");
        interest.release_clears(1_020_000);
        assert_eq!(interest.exported(), 4);
    }

    #[test]
    fn the_time_of_a_clear_begins_when_the_last_shard_takes_its_claim_back() {
        let (interest, [mut first, mut second]) = cell(16);
        first.add(&interest, "a", Claim::Want);
        second.add(&interest, "a", Claim::Want);
        first.remove(&interest, "a", Claim::Want);
        interest.release_clears(0);
        second.remove(&interest, "a", Claim::Want);
        interest.release_clears(5_000);
        interest.release_clears(14_999);
        assert_eq!(interest.exported(), 1);
        interest.release_clears(15_000);
        assert_eq!(interest.exported(), 2);
    }

    #[test]
    fn clears_are_released_in_portions() {
        let (interest, [mut counts, _]) = cell(22);
        let filters: Vec<String> = (0..20_000).map(|number| format!("{number}")).collect();
        filters.iter().for_each(|filter| counts.add(&interest, filter, Claim::Want));
        let lanes = |number| -> Vec<u32> {
            let lane_of = |change: &Change| match *change {
                Change::Set { lane } | Change::Clear { lane } => lane,
                Change::Depth(_) => panic!("there are exact filters only"),
            };
            changes(&interest, number).iter().map(lane_of).collect()
        };
        let set = lanes(0);
        let number = interest.exported();
        filters.iter().for_each(|filter| counts.remove(&interest, filter, Claim::Want));
        interest.release_clears(0);
        interest.release_clears(10_000);
        assert_eq!(interest.exported() - number, CLEARS_AT_ONCE as u64);
        interest.release_clears(10_000);
        let cleared: BTreeSet<u32> = lanes(number).into_iter().collect();
        assert_eq!((cleared.len(), interest.exported()), (set.len(), 2 * number));
        assert_eq!(cleared, set.into_iter().collect());
        assert_eq!(interest.snapshot().lanes().count(), 0);
    }

    #[test]
    fn a_reader_never_has_a_promise_without_a_want() {
        let (interest, [mut counts, mut other]) = cell(16);
        let reader = known(16);
        let mut entered = 0;
        let mut now_ms = 0;
        let mut lanes = BTreeSet::new();
        let mut check = |expected: Interested| {
            for change in changes(&interest, entered) {
                match change {
                    Change::Set { lane } => assert!(lanes.insert(lane)),
                    Change::Clear { lane } => assert!(lanes.remove(&lane)),
                    Change::Depth(_) => panic!("there are exact filters only"),
                }
                let is_within = |lane: &u32| lane.is_multiple_of(2) || lanes.contains(&(lane - 1));
                assert!(lanes.iter().all(is_within), "{change:?}");
                reader.apply(OTHER, &[change]).expect("of the same table");
            }
            entered = interest.exported();
            assert_eq!(reader.shards(b"a"), expected);
        };
        counts.add(&interest, "a", Claim::Promise);
        check(PROMISES);
        // The want is cleared before the promise.
        other.add(&interest, "a", Claim::Want);
        other.remove(&interest, "a", Claim::Want);
        for _ in 0..3 {
            now_ms += 10_000;
            interest.release_clears(now_ms);
            check(PROMISES);
        }
        counts.remove(&interest, "a", Claim::Promise);
        for expected in [PROMISES, WANTS, WANTS, NOBODY] {
            now_ms += 10_000;
            interest.release_clears(now_ms);
            check(expected);
        }
    }

    #[test]
    fn changes_of_long_ago_are_gone() {
        let (interest, [mut counts, _]) = cell(24);
        for number in 0..70_000 {
            counts.add(&interest, &format!("{number}"), Claim::Want);
        }
        let newest = interest.exported();
        let oldest = newest - CHANGES_KEPT_MAX as u64;
        assert!(oldest > 0);
        assert_eq!(interest.changes_since(oldest - 1, 1), None);
        let found = interest.changes_since(oldest, 2).expect("they are kept");
        assert_eq!((found.through, found.changes.len()), (oldest + 2, 2));
        assert_eq!(interest.changes_since(newest + 1, 2), None, "it is of another owner");
        let none = Changes { through: newest, changes: Vec::new() };
        assert_eq!(interest.changes_since(newest, 2), Some(none));
    }

    #[test]
    fn a_snapshot_of_a_million_filters_is_a_bit_for_each_lane() {
        let (interest, [mut counts, _]) = cell(20);
        for number in 0..100 {
            counts.add(&interest, &format!("{number}"), Claim::Want);
        }
        assert!(matches!(interest.snapshot().form(), Lanes::List(list) if list.len() == 100));
        for number in 100..1_000_000 {
            counts.add(&interest, &format!("{number}"), Claim::Want);
        }
        let snapshot = interest.snapshot();
        let Lanes::Bitmap(words) = snapshot.form() else { panic!("a list of so many lanes") };
        assert_eq!(words.len() * 8, (256 << 10) + 8);
        let reader = known(20);
        reader.replace(OTHER, &snapshot).expect("of the same table");
        for number in 0..1_000_000 {
            assert_eq!(reader.shards(format!("{number}").as_bytes()), WANTS);
        }
    }

    #[test]
    fn an_unknown_cell_wants_and_promises_everything() {
        let (interest, [mut counts, _]) = cell(16);
        counts.add(&interest, "a/#", Claim::Want);
        let (reader, _) = cell(16);
        let topics = [&b"a"[..], b"b/c", b"$SYS/x"];
        let found = |reader: &Interest| topics.map(|topic| reader.shards(topic));
        assert!(reader.is_unknown(OTHER));
        assert_eq!(found(&reader), [PROMISES; 3]);
        reader.keep_promises_only(OTHER);
        assert_eq!(found(&reader), [PROMISES; 3]);
        let version = reader.version();
        reader.replace(OTHER, &interest.snapshot()).expect("of the same table");
        assert!(!reader.is_unknown(OTHER) && reader.version() > version);
        assert_eq!(found(&reader), [WANTS, NOBODY, NOBODY]);
        let version = reader.version();
        reader.apply(OTHER, &changes(&interest, 0)).expect("of the same table");
        assert!(reader.version() > version);
        let version = reader.version();
        reader.set_unknown(OTHER);
        assert!(reader.is_unknown(OTHER) && reader.version() > version);
        assert_eq!(found(&reader), [PROMISES; 3]);
        reader.apply(OTHER, &changes(&interest, 0)).expect("of the same table");
        assert!(reader.is_unknown(OTHER), "changes alone are not all claims");
    }

    #[test]
    fn a_cell_without_an_owner_keeps_its_promises() {
        for places in [3, 5, 9, 17, 33, 64] {
            let made = || Interest::of_cell(2, places, 16, 7);
            let (interest, reader) = (made(), made());
            let mut counts = InterestCounts::new(1, &interest);
            counts.add(&interest, "want/+", Claim::Want);
            counts.add(&interest, "promise/+", Claim::Want);
            counts.add(&interest, "promise/+", Claim::Promise);
            for place in 2..places {
                reader.replace(place, &interest.snapshot()).expect("of the same table");
            }
            let [all, rest] = [u64::MAX >> (64 - places) & !3, u64::MAX >> (64 - places) & !7];
            let of = |wants, promises| Interested { wants, promises };
            assert_eq!(reader.shards(b"want/x"), of(all, 0));
            let version = reader.version();
            reader.keep_promises_only(2);
            assert!(reader.version() > version);
            assert_eq!(reader.shards(b"want/x"), of(rest, 0));
            assert_eq!(reader.shards(b"promise/x"), of(all, all));
            counts.add(&interest, "#", Claim::Want);
            reader.replace(2, &interest.snapshot()).expect("of the same table");
            reader.keep_promises_only(2);
            assert_eq!(reader.shards(b"x"), NOBODY, "what the root wants goes as well");
            counts.add(&interest, "#", Claim::Promise);
            reader.replace(2, &interest.snapshot()).expect("of the same table");
            reader.keep_promises_only(2);
            assert_eq!(reader.shards(b"x"), PROMISES);
        }
    }

    #[test]
    fn what_is_of_a_larger_table_is_refused_and_changes_nothing() {
        let reader = known(8);
        let lanes = reader.lanes();
        let error = Err(SummaryError::Lane { bit: lanes, bits: lanes });
        let snapshot =
            |lane| Snapshot::new(1, 2, Lanes::List(vec![lane - 1, lane])).expect("sound");
        reader.set_unknown(OTHER);
        assert_eq!(reader.replace(OTHER, &snapshot(lanes)), error);
        assert!(reader.is_unknown(OTHER));
        assert_eq!(reader.replace(OTHER, &snapshot(lanes - 1)), Ok(()));
        let before = reader.version();
        for change in [Change::Set { lane: lanes }, Change::Clear { lane: lanes }] {
            let changes = [Change::Clear { lane: lanes - 1 }, change];
            assert_eq!(reader.apply(OTHER, &changes), error);
        }
        for depth in [0, 32, 255] {
            let changes = [Change::Clear { lane: lanes - 1 }, Change::Depth(depth)];
            assert_eq!(reader.apply(OTHER, &changes), Err(SummaryError::Depth { depth }));
        }
        assert_eq!(reader.version(), before);
        assert_eq!(reader.shards(b"x").promises, 4, "by the last lane, which is of the root");
        assert_eq!(reader.apply(OTHER, &[Change::Clear { lane: lanes - 1 }]), Ok(()));
        assert_eq!(reader.shards(b"x").promises, 0);
    }

    #[test]
    fn depths_of_another_cell_are_counted_once() {
        let (reader, [mut counts, _]) = cell(16);
        let told = [Change::Depth(3), Change::Depth(3), Change::Depth(5)];
        reader.apply(OTHER, &told).expect("sound");
        counts.add(&reader, "a/b/c/#", Claim::Want);
        let count = |depth: usize| reader.depths[depth].load(Ordering::Relaxed);
        assert_eq!([count(3), count(5)], [2, 1]);
        let snapshot = |depths| Snapshot::new(9, depths, Lanes::List(Vec::new())).expect("sound");
        reader.replace(OTHER, &snapshot(1 << 3 | 1 << 4)).expect("sound");
        assert_eq!([count(3), count(4), count(5)], [2, 1, 0]);
        reader.replace(OTHER, &snapshot(0)).expect("sound");
        assert_eq!([count(3), count(4), count(5)], [1, 0, 0]);
    }

    #[test]
    fn a_table_without_other_cells_exports_nothing() {
        let interest = Interest::of_cell(2, 2, 16, 7);
        InterestCounts::new(0, &interest).add(&interest, "a/#", Claim::Want);
        interest.release_clears(0);
        assert_eq!(interest.exported(), 0);
        assert_eq!(interest.snapshot().lanes().count(), 0);
        assert_eq!(changes(&interest, 0), []);
        assert_eq!(interest.changes_since(1, 1), None);
    }

    #[test]
    #[should_panic(expected = "place 1 is not another cell")]
    fn a_shard_is_not_another_cell() {
        cell(16).0.set_unknown(1);
    }
}
