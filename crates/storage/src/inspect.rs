//! Mending a damaged log offline: where the undamaged part ends, and what makes it a log again.

use crate::format::{BATCH_HEADER_BYTES, BatchHeader, FLAG_MARK, HeaderRead, SegmentHeader};
use crate::position::Position;
use crate::scan::{Chain, Scan};

/// Walks segment files from the oldest to the newest for as far as they are one unbroken log.
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

/// What has to be done so that the undamaged part of a log opens again. Everything behind `end` is
/// given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The end of the undamaged part. `None`: there is none.
    pub end: Option<Position>,
    /// Bytes to be written at `end`: a batch without records that states where the log now begins,
    /// then zeros over everything behind.
    pub write: Vec<u8>,
    /// The last segment that is kept; files with higher numbers are to be set aside.
    pub last_kept: u32,
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
        let (chain, end) = (scan.chain, scan.position());
        self.good = Some(Good { header, chain, end, file_bytes: file.len() as u32 });
    }

    /// What to do. Behind the last unbroken batch everything is given up, also what is whole in
    /// itself: records mean something only in their order.
    pub fn finish(self) -> Repair {
        let Some(good) = self.good else {
            return Repair { end: None, write: Vec::new(), last_kept: 0 };
        };
        let mut write = vec![0; BATCH_HEADER_BYTES as usize];
        let seed = good.header.identity.seed(good.header.number);
        let mark = BatchHeader {
            flags: FLAG_MARK,
            epoch: good.chain.epoch.wrapping_add(1),
            sequence: good.chain.sequence,
            // True once the repair is synced, and until then nothing relies on it.
            synced: good.end,
            oldest: good.chain.oldest.max(self.lowest),
            previous: good.chain.previous,
            body_crc: crate::format::crc32c(&[]) ^ seed,
            ..BatchHeader::default()
        };
        mark.write_to(&mut write, seed);
        let rest = good.file_bytes.saturating_sub(good.end.offset()) as usize;
        write.resize(rest.max(write.len()), 0);
        Repair { end: Some(good.end), write, last_kept: good.header.number }
    }

    fn continues(&self, header: &SegmentHeader) -> bool {
        let Some(good) = &self.good else { return true };
        header.number == good.header.number + 1
            && header.identity == good.header.identity
            && header.first_sequence == good.chain.sequence
            && header.previous == good.chain.previous
    }
}
