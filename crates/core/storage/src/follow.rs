//! Recovery of a journal that still grows: the state of a standby that is brought each write.
//!
//! # What is checked
//!
//! The writes must be the journal, each one once and in order: a write begins where the last one
//! ended, or is the header of the next segment. Batches must continue the chain of checksums and
//! sequence numbers, headers must belong to the same journal, and a manifest must not state more
//! than there is.
//!
//! # What is kept
//!
//! The ledger, the place in the chain, the newest manifest, some numbers per segment, and the bytes
//! of at most one batch that is not whole yet. That batch cannot be larger than its segment:
//! [`Follow::buffer_bytes_max`] is the bound. Settings do not bound it further, because a writer
//! may have had larger ones.

use std::collections::VecDeque;

use crate::format::{
    BATCH_HEADER_BYTES, FLAG_MANIFEST, FLAG_SEAL, HEADER_BLOCK_BYTES, HeaderRead, Identity, Record,
    SEGMENT_HEADER_BYTES, SegmentHeader,
};
use crate::journal::Head;
use crate::ledger::{Ledger, weight};
use crate::manifest::{MANIFEST_BYTES, Manifest, manifest_file};
use crate::position::Position;
use crate::recovery::{Count, FILE_BYTES_MAX, NUMBER_MAX, Recovered, Report};
use crate::refusal::Refusal;
use crate::scan::{Chain, Scan, Walk};
use crate::settings::Settings;
use crate::space::Space;

/// Recovery of a journal that still grows: what a standby keeps.
///
/// After a [`Refusal`] it is of no further use: the copy has to be made again.
#[derive(Debug)]
pub struct Follow {
    /// Shard and number of shards that the journal must belong to.
    expected: (u16, u16),
    segment_bytes: u32,
    /// The segment that is written, once its header is known.
    current: Option<Current>,
    /// Where the next write begins. `None`: with the header of any segment.
    next: Option<Position>,
    /// Bytes of a header or a batch that is not whole yet.
    partial: Vec<u8>,
    manifest: Option<Manifest>,
    /// A write of a segment that was begun before anything was seen.
    skipped: Option<Position>,
    /// Manifests up to this number are in the local copy that was resumed, and may come again.
    copied_manifest: u64,
    ledger: Ledger,
    /// Of each segment in the ledger.
    counts: VecDeque<Count>,
    sealed: bool,
    cut: Option<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    identity: Identity,
    capacity: u32,
    walk: Walk,
}

impl Follow {
    /// Nothing is known yet: the first write must be the header of a segment.
    pub fn new(expected: (u16, u16), settings: &Settings) -> Self {
        Self {
            expected,
            segment_bytes: settings.segment_bytes,
            current: None,
            next: None,
            partial: Vec::new(),
            manifest: None,
            skipped: None,
            copied_manifest: 0,
            ledger: Ledger::default(),
            counts: VecDeque::new(),
            sealed: false,
            cut: None,
        }
    }

    /// Goes on behind what [`Recovery`](crate::Recovery) found in the local copy. The next write
    /// begins at [`Follow::end`].
    pub fn resume(recovered: Recovered, expected: (u16, u16), settings: &Settings) -> Self {
        let Recovered { report, ledger, identity, head, manifest, counts, .. } = recovered;
        let position = Position::new(head.segment, head.next);
        let current = ledger.oldest().map(|oldest| Current {
            identity,
            capacity: head.capacity,
            walk: Walk {
                position,
                chain: Chain {
                    sequence: head.sequence,
                    previous: head.previous,
                    // The head has that of the next opening.
                    epoch: head.epoch.wrapping_sub(1),
                    oldest,
                },
            },
        });
        Self {
            current,
            next: current.map(|_| position),
            manifest,
            copied_manifest: manifest.map_or(0, |manifest| manifest.number),
            ledger,
            counts,
            sealed: report.sealed,
            cut: report.cut,
            ..Self::new(expected, settings)
        }
    }

    /// A write reached the journal. Records of batches that are whole now go to `sink`, in order.
    ///
    /// A write must begin where the last one ended, or be the header of the next segment, or, after
    /// [`Follow::on_new_writer`], begin at [`Follow::end`].
    ///
    /// # Errors
    ///
    /// The write is not the next one of this journal.
    pub fn on_write(
        &mut self,
        segment: u32,
        offset: u32,
        bytes: &[u8],
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        let at = Position::new(segment, offset);
        self.check_order(at)?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.cut = None;
        let is_header =
            self.current.is_none_or(|current| current.walk.position.segment() < segment);
        let rest = match is_header {
            true => self.take_header(segment, bytes)?,
            false => bytes,
        };
        let rest = self.skip_padding(segment, rest)?;
        if rest.is_empty() { Ok(()) } else { self.take_batches(rest, sink) }
    }

    /// A slot of the manifest was written.
    ///
    /// # Errors
    ///
    /// It is not a manifest of this journal, or states more than was written.
    pub fn on_manifest(&mut self, offset: u32, bytes: &[u8]) -> Result<(), Refusal> {
        if offset as usize + bytes.len() > MANIFEST_BYTES {
            return Err(Refusal::Manifest);
        }
        let stated = Manifest::read(&manifest_file(offset, bytes))?;
        if stated.slot().0 != offset {
            return Err(Refusal::Manifest);
        }
        let Identity { shard, shards, .. } = stated.identity;
        let known = self.manifest.map(|known| known.identity);
        let own = self.current.map(|current| current.identity).or(known);
        let is_foreign = own.is_some_and(|own| own != stated.identity);
        if is_foreign || (shard, shards) != self.expected {
            return Err(Refusal::ForeignManifest);
        }
        if let Some(known) = self.manifest
            && stated.number <= known.number
        {
            return match stated.number <= self.copied_manifest {
                true => Ok(()),
                false => Err(Refusal::ManifestOrder { number: stated.number, last: known.number }),
            };
        }
        if let Some(Current { walk, .. }) = self.current {
            // It was written behind everything before the end that it states.
            if stated.end > walk.position {
                return Err(Refusal::Lost { found: walk.position, durable: stated.end });
            }
            if stated.contradicts(walk, walk) {
                return Err(Refusal::Replaced(walk.position.segment()));
            }
        }
        self.manifest = Some(stated);
        Ok(())
    }

    /// Whether a write is of a segment that was begun before anything was seen. It is no part of
    /// what follows: [`Follow::skip`] it.
    pub fn is_before_beginning(&self, offset: u32) -> bool {
        self.next.is_none() && offset > 0
    }

    /// A write was seen whose segment was begun before. The journal must still come: what has no
    /// beginning is not whole ([`Follow::check`]).
    pub fn skip(&mut self, segment: u32, offset: u32) {
        self.skipped = Some(Position::new(segment, offset));
    }

    /// Another writer goes on from here: a batch that is not whole is dropped, the next write
    /// begins at [`Follow::end`].
    pub fn on_new_writer(&mut self) {
        self.cut = self.torn();
        self.partial.clear();
        self.next = self.current.map(|current| current.walk.position);
    }

    /// Segments below are no longer needed: the last whole batch, or the header of the segment,
    /// says so. 0: nothing is known yet.
    pub fn oldest(&self) -> u32 {
        self.current.map_or(0, |current| current.walk.chain.oldest)
    }

    /// A batch or header was begun that is not whole yet, or the journal was, and what was seen of
    /// it was skipped.
    pub fn is_within_batch(&self) -> bool {
        let has_no_beginning = self.current.is_none() && self.skipped.is_some();
        !self.partial.is_empty() || has_no_beginning
    }

    /// End of the last whole batch.
    pub fn end(&self) -> Position {
        self.current.map_or(Position::default(), |current| current.walk.position)
    }

    /// Bytes that are kept of a batch that is not whole: at most those of its segment.
    pub fn buffer_bytes_max(&self) -> usize {
        self.current.map_or(self.segment_bytes, |current| current.capacity) as usize
    }

    /// What the journal consists of, from the oldest segment that is needed on.
    pub fn report(&self) -> Report {
        let mut report = Report {
            segments: self.counts.len() as u32,
            cut: self.torn().or(self.cut),
            sealed: self.sealed,
            is_new: self.current.is_none() && self.manifest.is_none_or(|it| it.is_of_new_journal()),
            ..Report::default()
        };
        for count in &self.counts {
            report.batches += count.batches;
            report.records += count.records;
            report.record_bytes += count.record_bytes;
        }
        report
    }

    /// Liveness as the sink left it.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether what was seen is a whole journal: [`Follow::finish`] is for one that is.
    ///
    /// # Errors
    ///
    /// What is lacking: more of the journal has to be read.
    pub fn check(&self) -> Result<(), Refusal> {
        let durable = self.manifest.map_or(Position::default(), |manifest| manifest.end);
        if durable > self.end() {
            return Err(Refusal::Lost { found: self.end(), durable });
        }
        match (self.ledger.oldest(), self.skipped) {
            (Some(first), _) if self.oldest() < first => Err(Refusal::Missing(first - 1)),
            (None, Some(skipped)) => Err(Refusal::NoBeginning(skipped)),
            _ => Ok(()),
        }
    }

    /// A journal to be opened with [`Journal::open`](crate::Journal::open), as recovery would give
    /// it from the same bytes, without files to be used again or removed. `fresh` is the identity
    /// of a journal of which nothing was seen; its `id` must be random.
    pub fn finish(self, fresh: Identity) -> Recovered {
        let report = self.report();
        let (identity, head) = match self.current {
            Some(Current { identity, capacity, walk }) => {
                (identity, Head::behind(&identity, capacity, &walk))
            }
            None => (self.manifest.map_or(fresh, |manifest| manifest.identity), Head::of_nothing()),
        };
        Recovered {
            report,
            ledger: self.ledger,
            identity,
            head,
            space: Space::default(),
            manifest: self.manifest,
            counts: self.counts,
        }
    }

    fn check_order(&self, at: Position) -> Result<(), Refusal> {
        let Some(next) = self.next else {
            let is_beginning = at.offset() == 0 && (1..NUMBER_MAX).contains(&at.segment());
            return if is_beginning { Ok(()) } else { Err(Refusal::NoBeginning(at)) };
        };
        // The journal goes on in the next segment behind a whole batch only.
        let is_whole = self.partial.is_empty() && next.offset() >= HEADER_BLOCK_BYTES;
        let following = Position::new(next.segment() + 1, 0);
        match at == next || is_whole && at == following && at.segment() < NUMBER_MAX {
            true => Ok(()),
            false => Err(Refusal::NotNext { expected: next, found: at }),
        }
    }

    /// Takes what it can use of the header of a segment, and returns what stands behind.
    fn take_header<'a>(&mut self, segment: u32, bytes: &'a [u8]) -> Result<&'a [u8], Refusal> {
        let wanted = (SEGMENT_HEADER_BYTES - self.partial.len()).min(bytes.len());
        let (front, rest) = bytes.split_at(wanted);
        self.partial.extend_from_slice(front);
        self.next = Some(Position::new(segment, self.partial.len() as u32));
        if self.partial.len() == SEGMENT_HEADER_BYTES {
            let header = self.read_header(segment)?;
            self.partial.clear();
            self.begin_segment(&header);
        }
        Ok(rest)
    }

    fn read_header(&self, segment: u32) -> Result<SegmentHeader, Refusal> {
        let header = match SegmentHeader::decode(&self.partial) {
            HeaderRead::Valid(header) if header.number == segment => header,
            HeaderRead::Version(version) => return Err(Refusal::Version(segment, version)),
            _ => return Err(Refusal::Changed(Position::new(segment, 0))),
        };
        let Identity { shard, shards, .. } = header.identity;
        let (expected, expected_shards) = self.expected;
        if (shard, shards) != self.expected {
            return Err(Refusal::Shard { segment, shard, shards, expected, expected_shards });
        }
        let known = self.current.map(|current| current.identity);
        let known = known.or(self.manifest.map(|manifest| manifest.identity));
        if known.is_some_and(|known| known != header.identity) {
            return Err(Refusal::Foreign(segment));
        }
        let chain = Walk::new(&header).chain;
        let continues =
            self.current.is_none_or(|Current { walk: Walk { chain: before, .. }, .. }| {
                before.sequence == header.first_sequence
                    && before.previous == header.previous
                    && before.epoch <= chain.epoch
                    && before.oldest <= chain.oldest
            });
        let is_possible = (HEADER_BLOCK_BYTES..=FILE_BYTES_MAX as u32)
            .contains(&header.segment_bytes)
            && (1..=segment).contains(&chain.oldest);
        match continues && is_possible {
            true => Ok(header),
            false => Err(Refusal::Changed(Position::new(segment, 0))),
        }
    }

    fn begin_segment(&mut self, header: &SegmentHeader) {
        self.ledger.push(header.number, header.segment_bytes);
        self.counts.push_back(Count::default());
        self.sealed = false;
        let (identity, capacity) = (header.identity, header.segment_bytes);
        self.current = Some(Current { identity, capacity, walk: Walk::new(header) });
        self.forget_unneeded();
    }

    /// Skips the rest of the block of a header, which is blank.
    fn skip_padding<'a>(&mut self, segment: u32, bytes: &'a [u8]) -> Result<&'a [u8], Refusal> {
        let offset = self.next.map_or(0, Position::offset);
        if offset < SEGMENT_HEADER_BYTES as u32 || offset >= HEADER_BLOCK_BYTES {
            return Ok(bytes);
        }
        let padding = ((HEADER_BLOCK_BYTES - offset) as usize).min(bytes.len());
        let (padding, rest) = bytes.split_at(padding);
        if padding.iter().any(|&byte| byte != 0) {
            return Err(Refusal::Changed(Position::new(segment, 0)));
        }
        self.next = Some(Position::new(segment, offset + padding.len() as u32));
        Ok(rest)
    }

    fn take_batches(
        &mut self,
        bytes: &[u8],
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<(), Refusal> {
        let Some(current) = self.current else { return Ok(()) };
        let base = current.walk.position.offset();
        let mut partial = std::mem::take(&mut self.partial);
        // What comes in whole is not copied.
        if partial.is_empty() {
            let taken = self.walk(bytes, current, sink)?;
            partial.extend_from_slice(&bytes[taken..]);
        } else {
            partial.extend_from_slice(bytes);
            let taken = self.walk(&partial, current, sink)?;
            partial.drain(..taken);
        }
        if partial.is_empty() && partial.capacity() > BUFFER_KEPT_BYTES {
            partial = Vec::new();
        }
        let end = self.end();
        debug_assert!(base <= end.offset());
        self.next = Some(Position::new(end.segment(), end.offset() + partial.len() as u32));
        self.partial = partial;
        Ok(())
    }

    /// Walks the whole batches at the front of `bytes`, which stand at the end of the journal, and
    /// returns how many bytes they take.
    fn walk(
        &mut self,
        bytes: &[u8],
        current: Current,
        sink: &mut dyn FnMut(Record<'_>, &mut Ledger),
    ) -> Result<usize, Refusal> {
        let base = current.walk.position.offset();
        let segment = current.walk.position.segment();
        let mut scan = Scan::resume(bytes, base, &current.identity, current.walk);
        while let Some(batch) = scan.next_batch() {
            if batch.header.flags & FLAG_MANIFEST != 0 && self.manifest.is_none() {
                return Err(Refusal::NoManifest);
            }
            let end = scan.walk.position.offset();
            if end > current.capacity || !(1..=segment).contains(&batch.header.oldest) {
                return Err(Refusal::Changed(batch.position));
            }
            self.sealed = batch.header.flags & FLAG_SEAL != 0;
            let mut count = Count { batches: 1, ..Count::default() };
            for record in batch.records() {
                count.records += 1;
                count.record_bytes += record.bytes.len() as u64;
                self.ledger.add(segment, weight(record.bytes.len()));
                sink(record, &mut self.ledger);
            }
            if let Some(sum) = self.counts.back_mut() {
                sum.add(&count);
            }
            self.ledger.set_end(segment, end);
            self.current = Some(Current { walk: scan.walk, ..current });
            self.forget_unneeded();
        }
        let end = scan.walk.position;
        match scan.lacks() {
            Some(needed) if needed <= current.capacity => Ok((end.offset() - base) as usize),
            // A segment may end with less than a batch's header.
            Some(_) if (end.offset() - base) as usize == bytes.len() => Ok(bytes.len()),
            _ => Err(Refusal::Changed(end)),
        }
    }

    fn forget_unneeded(&mut self) {
        let oldest = self.oldest();
        while self.ledger.oldest().is_some_and(|first| first < oldest) {
            self.ledger.pop_oldest();
            self.counts.pop_front();
        }
    }

    /// Where a batch begins that is not whole, if its header is.
    fn torn(&self) -> Option<Position> {
        let current = self.current?;
        let is_batch = self.next.is_some_and(|next| next.segment() == self.end().segment());
        let is_torn = is_batch && self.partial.len() >= BATCH_HEADER_BYTES as usize;
        is_torn.then_some(current.walk.position)
    }
}

/// A larger buffer is given back when the batch is whole.
const BUFFER_KEPT_BYTES: usize = 1 << 20;
