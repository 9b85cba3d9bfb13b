//! Mending a damaged journal offline: where the undamaged part ends, and what makes it a journal
//! again.

use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, FLAG_MANIFEST, FLAG_MARK, HeaderRead, Identity, SegmentHeader,
    crc32c,
};
use crate::manifest::Manifest;
use crate::position::Position;
use crate::scan::{Chain, Scan};

/// Walks segment files from the oldest to the newest for as far as they are one unbroken journal.
#[derive(Debug, Default)]
pub struct Survey {
    good: Option<Good>,
    lowest: u32,
    ended: bool,
}

/// The unbroken part so far.
#[derive(Debug, Clone, Copy)]
struct Good {
    header: SegmentHeader,
    chain: Chain,
    end: Position,
    file_bytes: u32,
}

/// What has to be done so that the undamaged part of a journal opens again. Everything behind `end`
/// is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The end of the undamaged part. `None`: there is none.
    pub end: Option<Position>,
    /// Bytes to be written at `end`: a batch without records that states where the journal now
    /// begins, then zeros over everything behind.
    pub write: Vec<u8>,
    /// The last segment that is kept; files with higher numbers are to be set aside.
    pub last_kept: u32,
    /// The manifest of what is left, which replaces the one there is.
    pub manifest: Manifest,
}

impl Survey {
    /// Takes the next file in order of numbers. The first break ends the survey.
    pub fn on_segment(&mut self, number: u32, file: &[u8]) {
        if self.ended {
            return;
        }
        let HeaderRead::Valid(header) = SegmentHeader::decode(file) else {
            self.ended = true;
            return;
        };
        if header.number != number || !self.continues(&header) {
            self.ended = true;
            return;
        }
        if self.good.is_none() {
            self.lowest = number;
        }
        let mut scan = Scan::new(file, &header);
        while scan.next_batch().is_some() {}
        let (chain, end) = (scan.walk.chain, scan.position());
        // What is cut off at its end is made up for; so it has to be the last.
        self.ended = file.len() < header.segment_bytes as usize;
        self.good = Some(Good { header, chain, end, file_bytes: file.len() as u32 });
    }

    /// What to do. Behind the last unbroken batch everything is given up, also what is whole in
    /// itself: records mean something only in their order. Where nothing is left, the journal
    /// begins anew as `fresh`, whose `id` must be random.
    pub fn finish(self, fresh: Identity) -> Repair {
        let Some(good) = self.good else {
            let manifest = Manifest::of_nothing(fresh);
            return Repair { end: None, write: Vec::new(), last_kept: 0, manifest };
        };
        let Good { header, chain, end, file_bytes } = good;
        let seed = header.identity.seed(header.number);
        let mark = BatchHeader {
            flags: FLAG_MARK | FLAG_MANIFEST,
            epoch: chain.epoch.wrapping_add(1),
            sequence: chain.sequence,
            // True once the repair is synced, and until then nothing relies on it.
            synced: end,
            oldest: chain.oldest.max(self.lowest),
            previous: chain.previous,
            body_crc: crc32c(&[]) ^ seed,
            ..BatchHeader::default()
        };
        let mut write = vec![0; BATCH_HEADER_BYTES as usize];
        let crc = mark.write_to(&mut write, seed);
        let whole = header.segment_bytes.max(file_bytes);
        write.resize((whole.saturating_sub(end.offset()) as usize).max(write.len()), 0);
        let behind = Position::new(end.segment(), end.offset() + BATCH_HEADER_BYTES);
        let manifest = Manifest {
            identity: header.identity,
            number: 1,
            end: behind,
            sequence: mark.sequence.wrapping_add(1),
            previous: crc,
            epoch: mark.epoch,
            reach: behind,
            stamp: None,
        };
        Repair { end: Some(end), write, last_kept: header.number, manifest }
    }

    fn continues(&self, header: &SegmentHeader) -> bool {
        let Some(good) = &self.good else { return true };
        header.number == good.header.number + 1
            && header.identity == good.header.identity
            && header.first_sequence == good.chain.sequence
            && header.previous == good.chain.previous
    }
}
