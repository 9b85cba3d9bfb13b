//! A run of records as read back from a segment.

use crate::Position;
use crate::format::{BATCH_HEADER_BYTES, BATCH_MAGIC, BatchHeader, Frame, Record, read_frame};

/// Bytes of a segment with the records in them, from a read or for reclaiming.
///
/// [`Chunk::next`] returns the records one by one, each checked against its own checksum, and
/// steps over batch headers in between.
#[derive(Debug)]
pub struct Chunk {
    start: Position,
    bytes: Vec<u8>,
    at: usize,
    /// Where the record returned last begins.
    last: usize,
    seed: u32,
    end: ChunkEnd,
}

/// Why a chunk has no further record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkEnd {
    /// All of its bytes were walked, or the walk is not there yet.
    Whole,
    /// The next frame goes on behind the chunk, and takes this many bytes.
    Partial(usize),
    /// The bytes at the walk's position are not what was written.
    Damaged,
}

impl Chunk {
    pub(crate) fn new(start: Position, bytes: Vec<u8>, seed: u32) -> Self {
        Self { start, bytes, at: 0, last: 0, seed, end: ChunkEnd::Whole }
    }

    /// The next record, or nothing at the end of the chunk; [`Chunk::end`] then says why.
    #[expect(clippy::should_implement_trait, reason = "a lending iterator: records borrow from it")]
    pub fn next(&mut self) -> Option<Record<'_>> {
        self.skip_batch_headers();
        if self.at == self.bytes.len() || self.end != ChunkEnd::Whole {
            return None;
        }
        let position = self.position();
        match read_frame(&self.bytes[self.at..], self.seed, true) {
            Frame::Record(kind, bytes, whole) => {
                self.last = self.at;
                self.at += whole;
                Some(Record { position, kind, bytes })
            }
            Frame::Partial(bytes) => {
                self.end = ChunkEnd::Partial(bytes);
                None
            }
            Frame::Other => {
                self.end = ChunkEnd::Damaged;
                None
            }
        }
    }

    /// Takes the record returned last back, so that the next call returns it again: for a user
    /// that could not deal with it now.
    pub fn put_back(&mut self) {
        self.at = self.last;
    }

    /// Where the walk stands: behind the last record returned.
    pub fn position(&self) -> Position {
        Position::new(self.start.segment(), self.start.offset() + self.at as u32)
    }

    /// Why there is no further record.
    pub fn end(&self) -> ChunkEnd {
        self.end
    }

    pub(crate) fn start(&self) -> Position {
        self.start
    }

    fn skip_batch_headers(&mut self) {
        while self.end == ChunkEnd::Whole && self.bytes.get(self.at) == Some(&BATCH_MAGIC[0]) {
            let rest = &self.bytes[self.at..];
            if rest.len() < BATCH_HEADER_BYTES as usize {
                self.end = ChunkEnd::Partial(BATCH_HEADER_BYTES as usize);
            } else if BatchHeader::decode(rest, self.seed).is_none() {
                self.end = ChunkEnd::Damaged;
            } else {
                self.at += BATCH_HEADER_BYTES as usize;
            }
        }
    }
}
