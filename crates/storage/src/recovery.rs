//! From the bytes of segment files back to a log, or to a refusal that says what is wrong.
//!
//! # How a torn tail is told from damage
//!
//! A crash may leave any part of what was written after the last sync: that *tail* is cut at the
//! first batch that is not whole, and nothing that was promised at level `fsync` is in it. Damage
//! to what had been synced must never be cut silently. Three facts tell them apart:
//!
//! - A segment, and the header of the next one, are synced before the first batch goes into the
//!   next one. So in every segment but the last, the chain of batches must reach exactly to where
//!   the next header says it ended; and a file that holds a batch but no whole header is damaged.
//! - Each batch states up to which position the log was durable when it was closed. If the chain
//!   breaks before a position that any batch behind it states, what is broken had been synced.
//! - The oldest segment that is needed is stated by the last batch; a file missing from there on is
//!   a loss, a file before it is a leftover.
//!
//! What cannot be told from a torn tail is damage to the very last synced batches while nothing was
//! written behind them. After an orderly close, or one quiet second, there always is.

use std::collections::VecDeque;

use crate::format::{FLAG_SEAL, HEADER_BLOCK_BYTES, HeaderRead, Identity, Record, SegmentHeader};
use crate::ledger::{Ledger, weight};
use crate::log::Head;
use crate::position::Position;
use crate::scan::{Chain, Scan, has_lost_header};
use crate::settings::Settings;
use crate::space::Space;

/// A segment file found in the log's directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentFile {
    pub number: u32,
    pub bytes: u64,
}

/// The state machine of recovery: it says which segment it wants to see, is given the file's bytes,
/// and in the end gives a log.
///
/// The newest segments come first, to find the end of the log; then all from the oldest needed on,
/// whose records are handed out in order.
#[derive(Debug)]
pub struct Recovery {
    /// Shard and number of shards that the log must belong to.
    expected: (u16, u16),
    segment_bytes: u32,
    /// In order of their numbers.
    files: Vec<SegmentFile>,
    stage: Stage,
    /// Files above the last segment which look unused.
    blanks: Vec<SegmentFile>,
    /// Those of them that are not empty and want a second look.
    suspects: Vec<u32>,
    last: Option<Last>,
    /// How the segment replayed last ended.
    link: Option<(u32, Chain, Position)>,
    ledger: Ledger,
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
    /// The log had been closed in order.
    pub sealed: bool,
}

/// Why a log is not opened. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error(
        "segment {0} has a damaged header: run `quelea log check` on the data directory, \
         then restore a backup or `quelea log repair`"
    )]
    Header(u32),
    #[error(
        "segment {0} has format version {1}, this program reads version {version}: \
         use the program version that wrote it",
        version = crate::format::FORMAT_VERSION
    )]
    Version(u32, u16),
    #[error(
        "the log is damaged at {0}, in data that had been durable: run `quelea log check` on the \
         data directory, then restore a backup or `quelea log repair`"
    )]
    Damaged(Position),
    #[error(
        "the file of segment {0} is missing: put it back, or restore a backup, or run \
         `quelea log repair`"
    )]
    Missing(u32),
    #[error(
        "segment {segment} belongs to shard {shard} of {shards}, not to shard {expected} of \
         {expected_shards}: the number of shards is fixed when a data directory is made"
    )]
    Shard { segment: u32, shard: u16, shards: u16, expected: u16, expected_shards: u16 },
    #[error("segment {0} belongs to another log: keep the files of different logs apart")]
    Foreign(u32),
    #[error("segment {0} is not a file this program can have written (number or size): remove it")]
    Impossible(u32),
}

/// A log as recovered, to be opened with [`Log::open`](crate::Log::open).
#[derive(Debug)]
pub struct Recovered {
    pub report: Report,
    /// Liveness as the replay left it.
    pub ledger: Ledger,
    pub(crate) identity: Identity,
    pub(crate) head: Head,
    pub(crate) space: Space,
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

#[derive(Debug, Clone, Copy)]
struct Last {
    header: SegmentHeader,
    end: Position,
    chain: Chain,
}

impl Recovery {
    /// Begins with the files found. `shard` of `shards` is what the log must belong to.
    pub fn new(
        (shard, shards): (u16, u16),
        settings: &Settings,
        mut files: Vec<SegmentFile>,
    ) -> Result<Self, Refusal> {
        files.sort_unstable_by_key(|file| file.number);
        let possible = |file: &&SegmentFile| {
            (1..NUMBER_MAX).contains(&file.number) && file.bytes <= FILE_BYTES_MAX
        };
        if let Some(file) = files.iter().find(|file| !possible(file)) {
            return Err(Refusal::Impossible(file.number));
        }
        files.dedup_by_key(|file| file.number);
        let stage = Stage::Last(files.len());
        Ok(Self {
            expected: (shard, shards),
            segment_bytes: settings.segment_bytes,
            files,
            stage: if stage == Stage::Last(0) { Stage::Done } else { stage },
            blanks: Vec::new(),
            suspects: Vec::new(),
            last: None,
            link: None,
            ledger: Ledger::default(),
            report: Report::default(),
        })
    }

    /// The segment whose whole file it wants to see next. `None`: it is done.
    pub fn wants(&self) -> Option<u32> {
        match self.stage {
            Stage::Last(left) => Some(self.files[left - 1].number),
            Stage::Suspects(left) => Some(self.suspects[left - 1]),
            Stage::Replay(number) => Some(number),
            Stage::Done => None,
        }
    }

    /// Takes the bytes of the segment it wanted, and hands its records, in order, to `sink`, which
    /// may release what each record makes superfluous.
    pub fn on_segment(
        &mut self,
        file: &[u8],
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        match self.stage {
            Stage::Last(left) => self.on_last(left, file),
            Stage::Suspects(left) => {
                self.check_suspect(self.suspects[left - 1], file)?;
                self.after_suspects(left - 1)
            }
            Stage::Replay(number) => self.on_replay(number, file, sink),
            Stage::Done => Ok(()),
        }
    }

    /// What was recovered. An empty directory gives a new log of identity `fresh`, whose `id` must
    /// be random.
    ///
    /// # Panics
    /// If the recovery still wants a segment.
    pub fn finish(self, fresh: Identity) -> Recovered {
        assert_eq!(self.stage, Stage::Done, "recovery ended before all segments were seen");
        let mut head =
            Head { segment: 0, seed: 0, capacity: 0, next: 0, sequence: 1, previous: 0, epoch: 1 };
        let mut identity = fresh;
        if let Some(Last { header, end, chain }) = self.last {
            identity = header.identity;
            head = Head {
                segment: header.number,
                seed: identity.seed(header.number),
                capacity: header.segment_bytes,
                next: end.offset(),
                sequence: chain.sequence,
                previous: chain.previous,
                epoch: chain.epoch.wrapping_add(1),
            };
        }
        let oldest = self.last.map_or(0, |last| last.chain.oldest);
        let mut spares = VecDeque::new();
        let mut garbage: Vec<u32> = self.files.iter().map(|file| file.number).collect();
        garbage.retain(|&number| number < oldest);
        for blank in self.blanks.iter().rev() {
            let next = head.segment + 1 + spares.len() as u32;
            if blank.number == next && blank.bytes == u64::from(self.segment_bytes) {
                spares.push_back(blank.number);
            } else {
                garbage.push(blank.number);
            }
        }
        Recovered {
            report: self.report,
            ledger: self.ledger,
            identity,
            head,
            space: Space::with_garbage(spares, garbage),
        }
    }

    fn on_last(&mut self, left: usize, file: &[u8]) -> Result<(), Refusal> {
        let entry = self.files[left - 1];
        match SegmentHeader::decode(file) {
            HeaderRead::Valid(header) if header.number == entry.number => {
                return self.found_last(file, header);
            }
            HeaderRead::Blank => {
                if file.iter().any(|&byte| byte != 0) {
                    self.suspects.push(entry.number);
                }
            }
            // A file to be used again, which still has the header of its former use.
            HeaderRead::Valid(header) if header.number < entry.number => {
                self.check_shard(entry.number, &header)?;
                self.suspects.push(entry.number);
            }
            HeaderRead::Version(version) => return Err(Refusal::Version(entry.number, version)),
            // Perhaps a header that was being written: then there is no batch.
            HeaderRead::Damaged => self.suspects.push(entry.number),
            HeaderRead::Valid(_) => return Err(Refusal::Header(entry.number)),
        }
        self.blanks.push(entry);
        if left > 1 {
            self.stage = Stage::Last(left - 1);
            return Ok(());
        }
        self.after_suspects(self.suspects.len())
    }

    /// Refuses a file that looked unused if it is not.
    fn check_suspect(&self, number: u32, file: &[u8]) -> Result<(), Refusal> {
        let identity = self.last.map(|last| last.header.identity);
        let lost = match (SegmentHeader::decode(file), identity) {
            // A log has at least one begun segment before any file is used again.
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

    fn found_last(&mut self, file: &[u8], header: SegmentHeader) -> Result<(), Refusal> {
        self.check_shard(header.number, &header)?;
        let mut scan = Scan::new(file, &header);
        while let Some(batch) = scan.next_batch() {
            self.report.sealed = batch.header.flags & FLAG_SEAL != 0;
        }
        let (end, chain) = (scan.position(), scan.chain);
        if scan.is_damaged() {
            return Err(Refusal::Damaged(end));
        }
        let plausible = (1..=header.number).contains(&chain.oldest)
            && u64::from(header.segment_bytes) <= FILE_BYTES_MAX;
        if !plausible {
            return Err(Refusal::Header(header.number));
        }
        self.report.cut = scan.is_torn().then_some(end);
        self.last = Some(Last { header, end, chain });
        self.after_suspects(self.suspects.len())
    }

    fn after_suspects(&mut self, left: usize) -> Result<(), Refusal> {
        if left > 0 {
            self.stage = Stage::Suspects(left);
            return Ok(());
        }
        let Some(last) = self.last else {
            self.stage = Stage::Done;
            return Ok(());
        };
        self.check_complete(last.chain.oldest, last.header.number)?;
        self.stage = Stage::Replay(last.chain.oldest);
        Ok(())
    }

    fn check_complete(&self, oldest: u32, newest: u32) -> Result<(), Refusal> {
        let mut expected = oldest;
        for file in &self.files {
            if (oldest..=newest).contains(&file.number) {
                if file.number != expected {
                    return Err(Refusal::Missing(expected));
                }
                expected += 1;
            }
        }
        if expected <= newest { Err(Refusal::Missing(expected)) } else { Ok(()) }
    }

    fn on_replay(
        &mut self,
        number: u32,
        file: &[u8],
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        let header = self.header_for_replay(number, file)?;
        self.ledger.push(number, header.segment_bytes);
        let mut scan = Scan::new(file, &header);
        while let Some(batch) = scan.next_batch() {
            self.report.batches += 1;
            for record in batch.records() {
                self.ledger.add(number, weight(record.bytes.len()));
                self.report.records += 1;
                self.report.record_bytes += record.bytes.len() as u64;
                sink(record, &mut self.ledger);
            }
        }
        let end = scan.position();
        self.ledger.set_end(number, end.offset());
        self.report.segments += 1;
        self.link = Some((number, scan.chain, end));
        self.stage = Stage::Replay(number + 1);
        if let Some(last) = self.last
            && last.header.number == number
        {
            self.stage = Stage::Done;
            if end != last.end {
                return Err(Refusal::Damaged(end));
            }
        }
        Ok(())
    }

    /// The header of the segment, which must take up where the one before ended.
    fn header_for_replay(&self, number: u32, file: &[u8]) -> Result<SegmentHeader, Refusal> {
        let header = match SegmentHeader::decode(file) {
            HeaderRead::Valid(header) if header.number == number => header,
            HeaderRead::Version(version) => return Err(Refusal::Version(number, version)),
            _ => return Err(Refusal::Header(number)),
        };
        if u64::from(header.segment_bytes) > FILE_BYTES_MAX {
            return Err(Refusal::Header(number));
        }
        if self.last.is_some_and(|last| last.header.identity != header.identity) {
            return Err(Refusal::Foreign(number));
        }
        match self.link {
            Some((_, chain, end))
                if chain.sequence != header.first_sequence || chain.previous != header.previous =>
            {
                Err(Refusal::Damaged(end))
            }
            _ => Ok(header),
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

/// Numbers above this are not reached in the life of a log.
const NUMBER_MAX: u32 = u32::MAX - 1024;
/// The largest segment that settings allow.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 30;
