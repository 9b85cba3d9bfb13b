//! Walking the batches of a whole segment file, as recovery and the offline tools do.

use crate::Position;
use crate::format::{
    BATCH_HEADER_BYTES, BATCH_MAGIC, BatchHeader, Frame, HEADER_BLOCK_BYTES, Identity, Record,
    SegmentHeader, crc32c, read_frame,
};

/// Walks the unbroken chain of batches of one segment.
#[derive(Clone, Debug)]
pub struct Scan<'a> {
    /// The file, or a stretch of it.
    file: &'a [u8],
    /// Offset in the file of what is at hand.
    base: u32,
    seed: u32,
    at: usize,
    pub(crate) walk: Walk,
}

/// How far a walk over a segment has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Walk {
    pub(crate) position: Position,
    pub(crate) chain: Chain,
}

/// What the next batch must state to be a continuation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chain {
    pub(crate) sequence: u64,
    pub(crate) previous: u32,
    pub(crate) epoch: u32,
    pub(crate) oldest: u32,
}

/// A batch whose checksums are right and which continues the chain.
#[derive(Clone, Copy, Debug)]
pub struct ScannedBatch<'a> {
    pub position: Position,
    pub header: BatchHeader,
    body: &'a [u8],
}

impl<'a> Scan<'a> {
    /// Begins behind the header, which must be that of `file`.
    pub fn new(file: &'a [u8], header: &SegmentHeader) -> Self {
        Self::resume(file, 0, &header.identity, Walk::new(header))
    }

    /// Goes on with a walk over a part of a file that begins at offset `base`.
    pub(crate) fn resume(part: &'a [u8], base: u32, identity: &Identity, walk: Walk) -> Self {
        let seed = identity.seed(walk.position.segment());
        let at = walk.position.offset().saturating_sub(base) as usize;
        Self { file: part, base, seed, at, walk }
    }

    /// The next batch, or nothing where the chain ends.
    pub fn next_batch(&mut self) -> Option<ScannedBatch<'a>> {
        let (header, crc) = BatchHeader::decode(self.file.get(self.at..)?, self.seed)?;
        if !self.continues(&header) {
            return None;
        }
        let begin = self.at + BATCH_HEADER_BYTES as usize;
        let body = self.file.get(begin..begin + header.body_bytes as usize)?;
        if crc32c(body) ^ self.seed != header.body_crc || !is_packed(body, header.records) {
            return None;
        }
        let position = self.position();
        self.at = begin + body.len();
        let end = Position::new(position.segment(), self.base + self.at as u32);
        self.walk = Walk { position: end, chain: Chain::behind(&header, crc) };
        Some(ScannedBatch { position, header, body })
    }

    /// Up to which offset of the file bytes are needed to know whether a batch follows, if they are
    /// not at hand.
    pub(crate) fn lacks(&self) -> Option<u32> {
        let rest = self.file.get(self.at..).unwrap_or_default();
        let head = BATCH_HEADER_BYTES;
        let needed = if rest.len() < head as usize {
            head
        } else {
            let (header, _) = BatchHeader::decode(rest, self.seed)?;
            self.continues(&header).then_some(head.saturating_add(header.body_bytes))?
        };
        (rest.len() < needed as usize)
            .then_some((self.base + self.at as u32).saturating_add(needed))
    }

    fn continues(&self, header: &BatchHeader) -> bool {
        let chain = self.walk.chain;
        header.sequence == chain.sequence
            && header.previous == chain.previous
            && header.epoch >= chain.epoch
            && header.oldest >= chain.oldest
    }

    /// Where the walk stands: behind the last batch returned.
    pub fn position(&self) -> Position {
        self.walk.position
    }

    /// Batch headers at or behind the walk's position that this segment's journal wrote, whether or
    /// not they continue the chain: what a torn or damaged place is judged by.
    pub fn beyond(&self) -> impl Iterator<Item = (Position, BatchHeader)> + use<'a> {
        let (segment, seed, file) = (self.walk.position.segment(), self.seed, self.file);
        let base = self.base;
        candidates(file, self.at).filter_map(move |at| {
            let (header, _) = BatchHeader::decode(&file[at..], seed)?;
            Some((Position::new(segment, base + at as u32), header))
        })
    }

    /// The first bytes that break the chain are damage, not a torn tail, if a later batch states
    /// that they were durable already.
    pub fn is_damaged(&self) -> bool {
        let end = self.position();
        self.beyond().any(|(_, header)| header.synced > end)
    }

    /// Whether there is the beginning of a batch of this very stretch of the journal behind the
    /// end.
    pub fn is_torn(&self) -> bool {
        self.beyond().any(|(_, header)| {
            let chain = self.walk.chain;
            header.sequence >= chain.sequence && header.epoch >= chain.epoch
        })
    }
}

impl Walk {
    /// Right behind the header of a segment.
    pub(crate) fn new(header: &SegmentHeader) -> Self {
        let chain = Chain {
            sequence: header.first_sequence,
            previous: header.chain(),
            epoch: header.epoch,
            oldest: header.oldest,
        };
        Self { position: Position::new(header.number, HEADER_BLOCK_BYTES), chain }
    }
}

impl Chain {
    /// Behind a batch whose header has this checksum.
    fn behind(header: &BatchHeader, crc: u32) -> Self {
        Self {
            sequence: header.sequence.wrapping_add(1),
            previous: crc,
            epoch: header.epoch,
            oldest: header.oldest,
        }
    }
}

impl<'a> ScannedBatch<'a> {
    /// The records of the batch in order.
    pub fn records(&self) -> impl Iterator<Item = Record<'a>> + use<'a> {
        let (segment, base) =
            (self.position.segment(), self.position.offset() + BATCH_HEADER_BYTES);
        let (body, mut at) = (self.body, 0);
        std::iter::from_fn(move || match read_frame(&body[at..], 0, false) {
            Frame::Record(kind, bytes, whole) => {
                let position = Position::new(segment, base + at as u32);
                at += whole;
                Some(Record { position, kind, bytes })
            }
            _ => None,
        })
    }
}

/// Whether a file without a whole header holds a batch. A header is synced before the first batch
/// is written, so it was there once. Without a known `identity` what looks like a batch counts as
/// one.
pub(crate) fn has_lost_header(file: &[u8], number: u32, identity: Option<&Identity>) -> bool {
    candidates(file, HEADER_BLOCK_BYTES as usize).any(|at| match identity {
        Some(identity) => BatchHeader::decode(&file[at..], identity.seed(number)).is_some(),
        None => BatchHeader::decode_unchecked(&file[at..]).is_some_and(|(header, _)| {
            header.epoch > 0 && header.sequence > 0 && (1..=number).contains(&header.oldest)
        }),
    })
}

/// Offsets from `from` on where a whole batch header could stand.
fn candidates(file: &[u8], from: usize) -> impl Iterator<Item = usize> + use<'_> {
    let mut at = from;
    std::iter::from_fn(move || {
        loop {
            at += file.get(at..)?.iter().position(|&byte| byte == BATCH_MAGIC[0])?;
            let found = at;
            at += 1;
            if file.get(found + 1) == Some(&BATCH_MAGIC[1])
                && file.len() - found >= BATCH_HEADER_BYTES as usize
            {
                return Some(found);
            }
        }
    })
}

/// Whether the body is exactly as many frames as the header says.
fn is_packed(body: &[u8], records: u32) -> bool {
    let (mut rest, mut count) = (body, 0_u32);
    while !rest.is_empty() {
        let Frame::Record(_, _, whole) = read_frame(rest, 0, false) else { return false };
        rest = &rest[whole..];
        count += 1;
    }
    count == records
}
