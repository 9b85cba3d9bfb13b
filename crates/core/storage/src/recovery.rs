//! From the bytes of segment files back to a journal, or to a refusal that says what is wrong.
//!
//! # How a torn tail is distinguished from damage
//!
//! A crash may leave any part of what was written after the last sync: that *tail* is cut at the
//! first batch that is not whole, and nothing that was promised at level `fsync` is in it. Damage
//! to what had been synced must never be cut silently. Three facts distinguish them:
//!
//! - A segment, and the header of the next one, are synced before the first batch goes into the
//!   next one. So in every segment but the last, the chain of batches must reach exactly to where
//!   the next header says it ended; and a file that holds a batch but no whole header is damaged.
//! - Each batch states up to which position the journal was durable when it was closed. If the
//!   chain breaks before a position that any batch behind it states, what is broken had been
//!   synced.
//! - The oldest segment that is needed is stated by the last batch; a file missing from there on is
//!   a loss, a file before it is a leftover.
//!
//! - The manifest states a position that the journal must reach (`manifest.rs`). So the loss of the
//!   newest segment, or of its end, is noticed.
//!
//! What cannot be distinguished from a torn tail is damage to the very last synced batches while
//! nothing was written behind them. After an orderly close, or one quiet second, there always is.
//!
//! # How much is read
//!
//! Of each segment its batches, in growing parts, and not what comes behind them. Behind the end of
//! the last one, and in files that look unused, nothing can stand that matters, except before the
//! position that the manifest gives as its reach; without a manifest all of it is read.

use std::collections::VecDeque;

use crate::format::{
    FLAG_MANIFEST, FLAG_SEAL, HEADER_BLOCK_BYTES, HeaderRead, Identity, Record, SegmentHeader,
};
use crate::journal::Head;
use crate::ledger::{Ledger, weight};
use crate::manifest::Manifest;
use crate::part::Part;
use crate::position::Position;
use crate::refusal::Refusal;
use crate::scan::{Scan, Walk, has_lost_header};
use crate::settings::Settings;
use crate::space::Space;
use crate::stamp::Stamp;

/// A segment file found in the journal's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    pub number: u32,
    pub bytes: u64,
}

/// Bytes of a segment file that recovery wants to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    pub segment: u32,
    pub offset: u32,
    pub bytes: u32,
}

/// The state machine of recovery: it says which bytes of which segment it wants to see, is given
/// them, and in the end gives a journal.
///
/// The newest segments come first, to find the end of the journal; then all from the oldest needed
/// on, whose records are returned in order.
#[derive(Debug)]
pub struct Recovery {
    /// Shard and number of shards that the journal must belong to.
    expected: (u16, u16),
    segment_bytes: u32,
    /// In order of their numbers.
    files: Vec<SegmentFile>,
    manifest: Option<Manifest>,
    stage: Stage,
    /// What is at hand of the segment that is looked at.
    part: Part,
    /// How far its batches have been walked, once its header is known.
    walking: Option<(SegmentHeader, Walk)>,
    /// Files above the last segment, the highest first.
    unused: Vec<SegmentFile>,
    /// Those of them that want a second look.
    suspects: Vec<SegmentFile>,
    last: Option<Last>,
    /// How the segment replayed last ended.
    link: Option<Walk>,
    /// A batch says that there was a manifest.
    had_manifest: bool,
    ledger: Ledger,
    /// Of each segment that is replayed.
    counts: VecDeque<Count>,
    report: Report,
}

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    pub segments: u32,
    pub batches: u64,
    pub records: u64,
    pub record_bytes: u64,
    /// Where a torn tail was cut off.
    pub cut: Option<Position>,
    /// The journal had been closed in order.
    pub sealed: bool,
    /// There are neither segments nor a manifest of a journal that was ever served from.
    pub is_new: bool,
}

/// A journal as recovered, to be opened with [`Journal::open`](crate::Journal::open).
#[derive(Debug)]
pub struct Recovered {
    pub report: Report,
    /// Liveness as the replay left it.
    pub ledger: Ledger,
    pub(crate) identity: Identity,
    pub(crate) head: Head,
    pub(crate) space: Space,
    pub(crate) manifest: Option<Manifest>,
    /// Of each segment in the ledger.
    pub(crate) counts: VecDeque<Count>,
}

/// What was found in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Count {
    pub(crate) batches: u64,
    pub(crate) records: u64,
    pub(crate) record_bytes: u64,
}

impl Count {
    pub(crate) fn add(&mut self, more: &Self) {
        self.batches += more.batches;
        self.records += more.records;
        self.record_bytes += more.record_bytes;
    }
}

impl Recovered {
    /// Gives the journal a stamp. The manifest that is returned has to be on the medium before the
    /// journal is opened.
    pub fn stamp(&mut self, stamp: Stamp) -> Manifest {
        let found = self.manifest.unwrap_or_else(|| Manifest::of_nothing(self.identity));
        let stamped = found.stamped(stamp);
        self.manifest = Some(stamped);
        stamped
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Looking for the last segment: the index of the file to look at, plus one.
    Last(usize),
    /// Looking again at files that seemed unused: how many are left.
    Suspects(usize),
    Replay(u32),
    Done,
}

#[derive(Debug)]
struct Last {
    header: SegmentHeader,
    end: Walk,
    /// What was read of it to find its end.
    part: Part,
}

impl Recovery {
    /// Begins with the files found, and the content of the manifest if there is one. `shard` of
    /// `shards` is what the journal must belong to.
    pub fn new(
        (shard, shards): (u16, u16),
        settings: &Settings,
        mut files: Vec<SegmentFile>,
        manifest: Option<&[u8]>,
    ) -> Result<Self, Refusal> {
        files.sort_unstable_by_key(|file| file.number);
        let possible = |file: &&SegmentFile| {
            (1..NUMBER_MAX).contains(&file.number) && file.bytes <= FILE_BYTES_MAX
        };
        if let Some(file) = files.iter().find(|file| !possible(file)) {
            return Err(Refusal::Impossible(file.number));
        }
        files.dedup_by_key(|file| file.number);
        let manifest = manifest.map(Manifest::read).transpose()?;
        let is_new = files.is_empty() && manifest.is_none_or(|found| found.is_of_new_journal());
        let mut recovery = Self {
            expected: (shard, shards),
            segment_bytes: settings.segment_bytes,
            files,
            manifest,
            stage: Stage::Done,
            part: Part::default(),
            walking: None,
            unused: Vec::new(),
            suspects: Vec::new(),
            last: None,
            link: None,
            had_manifest: false,
            ledger: Ledger::default(),
            counts: VecDeque::new(),
            report: Report { is_new, ..Report::default() },
        };
        recovery.look_at_file(recovery.files.len())?;
        // Empty files are done with already; no record can come of them.
        recovery.advance(&mut |_, _| {})?;
        Ok(recovery)
    }

    /// What it wants to see next. `None`: it is done.
    pub fn wants(&self) -> Option<Want> {
        if self.stage == Stage::Done { None } else { self.part.wants() }
    }

    /// Takes the bytes that it wanted, fewer where the file ends before, and hands the records
    /// found, in order, to `sink`, which may release what each record makes superfluous.
    pub fn on_bytes(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        self.part.take(bytes);
        self.advance(sink)
    }

    /// What was recovered. An empty directory gives a new journal of identity `fresh`, whose `id`
    /// must be random.
    ///
    /// # Panics
    /// If the recovery still wants something.
    pub fn finish(self, fresh: Identity) -> Recovered {
        assert_eq!(self.stage, Stage::Done, "recovery ended before all segments were seen");
        let mut head = Head::of_nothing();
        let mut identity = self.manifest.map_or(fresh, |manifest| manifest.identity);
        let mut oldest = 0;
        if let Some(Last { header, end, .. }) = self.last {
            identity = header.identity;
            head = Head::behind(&identity, header.segment_bytes, &end);
            oldest = end.chain.oldest;
        }
        let mut spares = VecDeque::new();
        let mut misfits = Vec::new();
        for file in self.unused.iter().rev() {
            let next = head.segment + 1 + spares.len() as u32;
            if file.number == next && file.bytes == u64::from(self.segment_bytes) {
                spares.push_back(file.number);
            } else {
                misfits.push(file.number);
            }
        }
        let mut void: Vec<u32> = self.files.iter().map(|file| file.number).collect();
        void.retain(|&number| number < oldest);
        // The highest goes first, so that an end in between leaves no gap: that would be a loss.
        misfits.reverse();
        let space =
            Space::with_garbage(spares, &misfits, &void, Position::new(head.segment, head.next));
        Recovered {
            report: self.report,
            ledger: self.ledger,
            identity,
            head,
            space,
            manifest: self.manifest,
            counts: self.counts,
        }
    }

    /// Goes on until bytes are wanted that are not at hand.
    fn advance(&mut self, sink: &mut dyn FnMut(Record<'_>, &mut Ledger)) -> Result<(), Refusal> {
        while self.part.wants().is_none() {
            match self.stage {
                Stage::Last(left) => self.look_for_last(left)?,
                Stage::Suspects(left) => self.look_at_suspect(left)?,
                Stage::Replay(number) => self.replay(number, sink)?,
                Stage::Done => return Ok(()),
            }
        }
        Ok(())
    }

    /// Looks whether the last of so many files is the last segment.
    fn look_at_file(&mut self, left: usize) -> Result<(), Refusal> {
        if left == 0 {
            return self.after_last();
        }
        self.stage = Stage::Last(left);
        self.part = Part::begin(self.files[left - 1]);
        Ok(())
    }

    fn look_for_last(&mut self, left: usize) -> Result<(), Refusal> {
        let entry = self.files[left - 1];
        if let Some((header, walk)) = self.walking {
            return self.walk_to_end(header, walk);
        }
        match SegmentHeader::decode(self.part.bytes()) {
            HeaderRead::Valid(header) if header.number == entry.number => {
                self.check_begun(&header)?;
                self.walking = Some((header, Walk::new(&header)));
                return Ok(());
            }
            // A file to be used again, which still has the header of its former use.
            HeaderRead::Valid(header) if header.number < entry.number => {
                self.check_shard(entry.number, &header)?;
            }
            HeaderRead::Valid(_) => return Err(Refusal::Header(entry.number)),
            HeaderRead::Version(version) => return Err(Refusal::Version(entry.number, version)),
            // Perhaps a header that was being written: then there is no batch.
            HeaderRead::Blank | HeaderRead::Damaged => {}
        }
        self.unused.push(entry);
        self.look_at_file(left - 1)
    }

    /// Walks the batches of the last segment, to where they end.
    fn walk_to_end(&mut self, header: SegmentHeader, mut walk: Walk) -> Result<(), Refusal> {
        let mut scan = Scan::resume(self.part.bytes(), 0, &header.identity, walk);
        loop {
            let next = scan.next_batch();
            if self.manifest.is_some_and(|manifest| manifest.contradicts(walk, scan.walk)) {
                return Err(Refusal::Replaced(header.number));
            }
            walk = scan.walk;
            let Some(batch) = next else { break };
            self.report.sealed = batch.header.flags & FLAG_SEAL != 0;
        }
        self.walking = Some((header, walk));
        let lacks = scan.lacks();
        let is_damaged = scan.is_damaged();
        let is_torn = scan.is_torn();
        if lacks.is_some_and(|needed| self.part.ask(needed, u32::MAX)) {
            return Ok(());
        }
        // The batches end here. What follows them distinguishes a torn tail from damage.
        if self.part.ask(0, self.reach(header.number, &walk)) {
            return Ok(());
        }
        if is_damaged {
            return Err(Refusal::Damaged(walk.position));
        }
        if !(1..=header.number).contains(&walk.chain.oldest) {
            return Err(Refusal::Header(header.number));
        }
        self.check_manifest(&header, walk.position)?;
        self.report.cut = is_torn.then_some(walk.position);
        let part = std::mem::take(&mut self.part);
        self.last = Some(Last { header, end: walk, part });
        self.walking = None;
        self.after_last()
    }

    /// Offset up to which batches may stand in the last segment, behind those that were found.
    fn reach(&self, segment: u32, end: &Walk) -> u32 {
        match self.manifest {
            Some(manifest) if manifest.is_current(end) && manifest.reach.segment() == segment => {
                manifest.reach.offset()
            }
            _ => u32::MAX,
        }
    }

    fn check_manifest(&self, header: &SegmentHeader, end: Position) -> Result<(), Refusal> {
        let Some(manifest) = self.manifest else { return Ok(()) };
        if manifest.identity != header.identity {
            return Err(Refusal::ForeignManifest);
        }
        if manifest.end.segment() > header.number {
            return Err(self.lost(manifest.end.segment()));
        }
        if manifest.end > end {
            return Err(Refusal::Lost { found: end, durable: manifest.end });
        }
        Ok(())
    }

    /// A segment that was begun once, and is not one now.
    fn lost(&self, segment: u32) -> Refusal {
        match self.files.iter().any(|file| file.number == segment) {
            true => Refusal::Header(segment),
            false => Refusal::Missing(segment),
        }
    }

    /// The last segment is known, if there is one.
    fn after_last(&mut self) -> Result<(), Refusal> {
        let is_current = match (&self.last, self.manifest) {
            (Some(last), Some(manifest)) => manifest.is_current(&last.end),
            (None, Some(manifest)) if manifest.end.segment() > 0 => {
                return Err(self.lost(manifest.end.segment()));
            }
            _ => false,
        };
        if !is_current {
            self.suspects.clone_from(&self.unused);
        }
        self.look_again(self.suspects.len())
    }

    /// Looks once more at the last of so many files that seemed unused.
    fn look_again(&mut self, left: usize) -> Result<(), Refusal> {
        if left > 0 {
            self.stage = Stage::Suspects(left);
            self.part = Part::begin(self.suspects[left - 1]);
            return Ok(());
        }
        self.stage = Stage::Done;
        let Some(last) = &self.last else { return Ok(()) };
        let oldest = last.end.chain.oldest;
        self.check_complete(oldest)?;
        self.begin_replay(oldest);
        Ok(())
    }

    fn look_at_suspect(&mut self, left: usize) -> Result<(), Refusal> {
        if !self.part.ask(u32::MAX, u32::MAX) {
            self.check_suspect(self.suspects[left - 1].number)?;
            self.look_again(left - 1)?;
        }
        Ok(())
    }

    /// Refuses a file that looked unused if it is not.
    fn check_suspect(&self, number: u32) -> Result<(), Refusal> {
        let file = self.part.bytes();
        let identity = self.last.as_ref().map(|last| last.header.identity);
        let lost = match (SegmentHeader::decode(file), identity) {
            // A journal has at least one begun segment before any file is used again.
            (HeaderRead::Valid(_), None) => return Err(Refusal::Missing(number - 1)),
            (HeaderRead::Valid(header), Some(identity)) if header.identity != identity => {
                return Err(Refusal::Foreign(number));
            }
            // Nothing but a header can have been begun in the first file of all.
            (HeaderRead::Damaged, None) => {
                let block = file.len().min(HEADER_BLOCK_BYTES as usize);
                file[block..].iter().any(|&byte| byte != 0)
            }
            _ => has_lost_header(file, number, identity.as_ref()),
        };
        if lost { Err(Refusal::Header(number)) } else { Ok(()) }
    }

    /// Files are made and removed one after the other: from the oldest needed on there is no gap,
    /// also not before a file that is not used yet.
    fn check_complete(&self, oldest: u32) -> Result<(), Refusal> {
        let needed = self.files.iter().filter(|file| file.number >= oldest);
        for (expected, file) in (oldest..).zip(needed) {
            if file.number != expected {
                return Err(Refusal::Missing(expected));
            }
        }
        Ok(())
    }

    fn begin_replay(&mut self, number: u32) {
        self.stage = Stage::Replay(number);
        let last = self.last.as_mut().filter(|last| last.header.number == number);
        let file = self.files.iter().find(|file| file.number == number);
        self.part = match (last, file) {
            (Some(last), _) => std::mem::take(&mut last.part),
            (None, Some(file)) => Part::begin(*file),
            (None, None) => Part::default(),
        };
    }

    fn replay(
        &mut self,
        number: u32,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        let (header, walk) = match self.walking {
            Some(walking) => walking,
            None => {
                let header = self.header_for_replay(number)?;
                self.ledger.push(number, header.segment_bytes);
                self.counts.push_back(Count::default());
                (header, Walk::new(&header))
            }
        };
        let (bytes, base) = (self.part.bytes(), self.part.base());
        let mut scan = Scan::resume(bytes, base, &header.identity, walk);
        let mut count = Count::default();
        while let Some(batch) = scan.next_batch() {
            count.batches += 1;
            self.had_manifest |= batch.header.flags & FLAG_MANIFEST != 0;
            for record in batch.records() {
                self.ledger.add(number, weight(record.bytes.len()));
                count.records += 1;
                count.record_bytes += record.bytes.len() as u64;
                sink(record, &mut self.ledger);
            }
        }
        let (end, lacks) = (scan.walk, scan.lacks());
        self.count(&count);
        self.walking = Some((header, end));
        if lacks.is_some_and(|needed| self.part.ask(needed, u32::MAX)) {
            self.part.forget_before(end.position.offset());
            return Ok(());
        }
        self.after_replay(number, end)
    }

    fn count(&mut self, found: &Count) {
        if let Some(sum) = self.counts.back_mut() {
            sum.add(found);
        }
        self.report.batches += found.batches;
        self.report.records += found.records;
        self.report.record_bytes += found.record_bytes;
    }

    fn after_replay(&mut self, number: u32, end: Walk) -> Result<(), Refusal> {
        self.walking = None;
        self.ledger.set_end(number, end.position.offset());
        self.report.segments += 1;
        self.link = Some(end);
        match &self.last {
            Some(last) if last.header.number == number => {
                self.stage = Stage::Done;
                if last.end != end {
                    return Err(Refusal::Damaged(end.position));
                }
                match self.had_manifest && self.manifest.is_none() {
                    true => Err(Refusal::NoManifest),
                    false => Ok(()),
                }
            }
            _ => {
                self.begin_replay(number + 1);
                Ok(())
            }
        }
    }

    /// The header of the segment, which must take up where the one before ended.
    fn header_for_replay(&self, number: u32) -> Result<SegmentHeader, Refusal> {
        let header = match SegmentHeader::decode(self.part.bytes()) {
            HeaderRead::Valid(header) if header.number == number => header,
            HeaderRead::Version(version) => return Err(Refusal::Version(number, version)),
            _ => return Err(Refusal::Header(number)),
        };
        if self.last.as_ref().is_some_and(|last| last.header.identity != header.identity) {
            return Err(Refusal::Foreign(number));
        }
        self.check_begun(&header)?;
        match self.link {
            Some(Walk { position, chain })
                if chain.sequence != header.first_sequence || chain.previous != header.previous =>
            {
                Err(Refusal::Damaged(position))
            }
            _ => Ok(header),
        }
    }

    /// Files have their full size before they are begun, and keep it.
    fn check_begun(&self, header: &SegmentHeader) -> Result<(), Refusal> {
        let (segment, expected) = (header.number, header.segment_bytes);
        self.check_shard(segment, header)?;
        if u64::from(expected) > FILE_BYTES_MAX {
            return Err(Refusal::Header(segment));
        }
        let file = self.files.iter().find(|file| file.number == segment);
        match file.map_or(0, |file| file.bytes) {
            bytes if bytes < u64::from(expected) => {
                Err(Refusal::Short { segment, bytes, expected })
            }
            _ => Ok(()),
        }
    }

    fn check_shard(&self, segment: u32, header: &SegmentHeader) -> Result<(), Refusal> {
        let Identity { shard, shards, .. } = header.identity;
        let (expected, expected_shards) = self.expected;
        if (shard, shards) == self.expected {
            return Ok(());
        }
        Err(Refusal::Shard { segment, shard, shards, expected, expected_shards })
    }
}

/// Numbers above this are not reached in the life of a journal.
pub(crate) const NUMBER_MAX: u32 = u32::MAX - 1024;
/// The largest segment that settings allow.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 30;
