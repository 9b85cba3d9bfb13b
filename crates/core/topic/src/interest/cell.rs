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
