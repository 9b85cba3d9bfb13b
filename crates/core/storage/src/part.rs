//! The part of a segment file that recovery has at hand.

use crate::format::HEADER_BLOCK_BYTES;
use crate::recovery::{SegmentFile, Want};

/// Bytes of one segment file from some offset on, and how far more are wanted.
#[derive(Debug, Default)]
pub(crate) struct Part {
    segment: u32,
    file_bytes: u32,
    /// Offset in the file of the first byte at hand.
    base: u32,
    bytes: Vec<u8>,
    upto: u32,
}

impl Part {
    /// Begins with the block of the header.
    pub(crate) fn begin(file: SegmentFile) -> Self {
        let file_bytes = u32::try_from(file.bytes).unwrap_or(u32::MAX);
        let upto = file_bytes.min(HEADER_BLOCK_BYTES);
        Self { segment: file.number, file_bytes, base: 0, bytes: Vec::new(), upto }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    pub(crate) fn wants(&self) -> Option<Want> {
        let (offset, segment) = (self.end(), self.segment);
        (offset < self.upto).then(|| Want { segment, offset, bytes: self.upto - offset })
    }

    /// Takes the bytes that were wanted. Where they are fewer, the file ends.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.end() < self.upto {
            self.file_bytes = self.end();
            self.upto = self.end();
        }
    }

    /// Asks for the bytes up to offset `needed`, and a good deal more, but none from `limit` on.
    /// False: all there are are at hand.
    pub(crate) fn ask(&mut self, needed: u32, limit: u32) -> bool {
        let have = self.end();
        // In proportion to what is there, so that what is read follows what is used.
        let ahead = have.clamp(READ_BYTES_MIN, READ_BYTES_MAX);
        let wanted = needed.max(have.saturating_add(ahead));
        self.upto = wanted.min(limit).min(self.file_bytes);
        self.upto > have
    }

    /// Lets go of what comes before an offset.
    pub(crate) fn forget_before(&mut self, offset: u32) {
        let count = offset.saturating_sub(self.base).min(self.bytes.len() as u32);
        self.bytes.drain(..count as usize);
        self.base += count;
    }

    fn end(&self) -> u32 {
        self.base + self.bytes.len() as u32
    }
}

/// The least and the most that is read at once of what may not be needed.
const READ_BYTES_MIN: u32 = 64 << 10;
const READ_BYTES_MAX: u32 = 4 << 20;
