//! The bytes on the medium: segment headers, batch headers and record frames.
//!
//! `docs/develop/journal-format.md` describes the same field by field. Numbers are little endian,
//! all checksums CRC-32C. A checksum of a batch or record is XORed with the *seed* of its segment,
//! which depends on the journal's random identity and the segment's number, so that bytes of
//! another journal, or left over from an earlier use of a recycled file, never pass as valid.

use crate::Position;

/// The version of the format that this code writes, and the only one it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Whose journal it is. All segments of a journal carry the same identity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Random, chosen when the journal is made. Unguessable, so that a payload cannot forge a
    /// batch.
    pub id: [u8; 16],
    /// Which shard the journal belongs to, and of how many.
    pub shard: u16,
    pub shards: u16,
}

impl Identity {
    /// The value that checksums in segment `number` are XORed with.
    pub(crate) fn seed(&self, number: u32) -> u32 {
        let mut bytes = [0; 20];
        bytes[..16].copy_from_slice(&self.id);
        bytes[16..].copy_from_slice(&number.to_le_bytes());
        crc32c(&bytes)
    }
}

/// What stands at the front of a segment file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    pub identity: Identity,
    pub number: u32,
    /// Capacity of the file when it was begun.
    pub segment_bytes: u32,
    /// The oldest segment that the journal still needed when this one was begun.
    pub oldest: u32,
    /// `header_crc` of the last batch before this segment (0 in the first).
    pub previous: u32,
    /// Sequence number of the first batch of this segment.
    pub first_sequence: u64,
    pub epoch: u32,
}

/// What the front of a file turned out to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HeaderRead {
    /// Nothing was ever written there.
    Blank,
    Valid(SegmentHeader),
    /// A valid header of a format this code does not know.
    Version(u16),
    Damaged,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BLOCK_BYTES as usize);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(SEGMENT_HEADER_BYTES as u16).to_le_bytes());
        out.extend_from_slice(&self.identity.shard.to_le_bytes());
        out.extend_from_slice(&self.identity.shards.to_le_bytes());
        out.extend_from_slice(&self.identity.id);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.segment_bytes.to_le_bytes());
        out.extend_from_slice(&self.oldest.to_le_bytes());
        out.extend_from_slice(&self.previous.to_le_bytes());
        out.extend_from_slice(&self.first_sequence.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.resize(HEADER_BLOCK_BYTES as usize, 0);
        out
    }

    /// Reads the header at the front of a file's bytes.
    pub fn decode(file: &[u8]) -> HeaderRead {
        let block = &file[..file.len().min(HEADER_BLOCK_BYTES as usize)];
        if block.iter().all(|&byte| byte == 0) {
            return HeaderRead::Blank;
        }
        if block.len() < SEGMENT_HEADER_BYTES || &block[..8] != SEGMENT_MAGIC {
            return HeaderRead::Damaged;
        }
        if crc32c(&block[..60]) != u32_at(block, 60) {
            return HeaderRead::Damaged;
        }
        let version = u16_at(block, 8);
        if version != FORMAT_VERSION {
            return HeaderRead::Version(version);
        }
        let mut id = [0; 16];
        id.copy_from_slice(&block[16..32]);
        HeaderRead::Valid(Self {
            identity: Identity { id, shard: u16_at(block, 12), shards: u16_at(block, 14) },
            number: u32_at(block, 32),
            segment_bytes: u32_at(block, 36),
            oldest: u32_at(block, 40),
            previous: u32_at(block, 44),
            first_sequence: u64_at(block, 48),
            epoch: u32_at(block, 56),
        })
    }

    /// What the first batch of this segment states as the checksum before it.
    pub(crate) fn chain(&self) -> u32 {
        crc32c(&self.encode()[..60])
    }
}

/// What stands before the records of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BatchHeader {
    pub flags: u16,
    /// Bytes of the records that follow.
    pub body_bytes: u32,
    pub records: u32,
    /// Which opening of the journal wrote the batch: grows by one with each start.
    pub epoch: u32,
    /// Grows by one from batch to batch.
    pub sequence: u64,
    /// Everything before this position was durable when the batch was closed.
    pub synced: Position,
    /// The oldest segment that the journal needs from this batch on.
    pub oldest: u32,
    /// `header_crc` of the batch before.
    pub previous: u32,
    pub body_crc: u32,
}

impl BatchHeader {
    /// Writes the header into the first bytes of `batch`, and returns its checksum.
    pub(crate) fn write_to(&self, batch: &mut [u8], seed: u32) -> u32 {
        batch[0..2].copy_from_slice(&BATCH_MAGIC);
        batch[2..4].copy_from_slice(&self.flags.to_le_bytes());
        batch[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        batch[8..12].copy_from_slice(&self.records.to_le_bytes());
        batch[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        batch[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        batch[24..32].copy_from_slice(&self.synced.to_bits().to_le_bytes());
        batch[32..36].copy_from_slice(&self.oldest.to_le_bytes());
        batch[36..40].copy_from_slice(&self.previous.to_le_bytes());
        batch[40..44].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc32c(&batch[..44]) ^ seed;
        batch[44..48].copy_from_slice(&crc.to_le_bytes());
        crc
    }

    /// Reads a header whose own checksum is right. The body is not looked at.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<(Self, u32)> {
        let (header, crc) = Self::decode_unchecked(bytes)?;
        (crc32c(&bytes[..44]) ^ seed == crc).then_some((header, crc))
    }

    /// Reads what looks like a header, and the checksum it states.
    pub(crate) fn decode_unchecked(bytes: &[u8]) -> Option<(Self, u32)> {
        let bytes = bytes.get(..BATCH_HEADER_BYTES as usize)?;
        if bytes[..2] != BATCH_MAGIC {
            return None;
        }
        let header = Self {
            flags: u16_at(bytes, 2),
            body_bytes: u32_at(bytes, 4),
            records: u32_at(bytes, 8),
            epoch: u32_at(bytes, 12),
            sequence: u64_at(bytes, 16),
            synced: Position::from_bits(u64_at(bytes, 24)),
            oldest: u32_at(bytes, 32),
            previous: u32_at(bytes, 36),
            body_crc: u32_at(bytes, 40),
        };
        Some((header, u32_at(bytes, 44)))
    }
}

/// What a record is to its reader: 1 to 127, given a meaning by the user of the journal. The first
/// byte of a batch header is outside that range, so a walk over bytes can distinguish the two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordKind(u8);

impl RecordKind {
    /// Panics, at compile time in a `const`, when `kind` is not 1 to 127.
    pub const fn new(kind: u8) -> Self {
        assert!(kind >= 1 && kind <= KIND_MAX);
        Self(kind)
    }

    /// The kind as a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A record as it is read back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    pub position: Position,
    pub kind: RecordKind,
    pub bytes: &'a [u8],
}

/// Appends one framed record to `out`; the parts are its bytes in order.
pub(crate) fn push_record(out: &mut Vec<u8>, seed: u32, kind: RecordKind, parts: &[&[u8]]) {
    let start = out.len();
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(len + RECORD_FRAME_BYTES as usize);
    out.push(kind.0);
    out.extend_from_slice(&(len as u32).to_le_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
    let crc = crc32c(&out[start..]) ^ seed;
    out.extend_from_slice(&crc.to_le_bytes());
}

/// One frame off the front of `bytes`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A record: its kind, its bytes, the bytes of its whole frame.
    Record(RecordKind, &'a [u8], usize),
    /// The frame is not whole: it takes this many bytes.
    Partial(usize),
    /// Neither a record nor the beginning of one.
    Other,
}

/// Reads a frame and, when asked, checks its checksum (a batch's checksum covers it already).
pub(crate) fn read_frame(bytes: &[u8], seed: u32, checked: bool) -> Frame<'_> {
    let Some(&kind) = bytes.first() else {
        return Frame::Partial(RECORD_FRAME_BYTES as usize);
    };
    if kind == 0 || kind > KIND_MAX {
        return Frame::Other;
    }
    if bytes.len() < 5 {
        return Frame::Partial(RECORD_FRAME_BYTES as usize);
    }
    let len = u32_at(bytes, 1) as usize;
    let whole = len + RECORD_FRAME_BYTES as usize;
    if bytes.len() < whole {
        return Frame::Partial(whole);
    }
    if checked && crc32c(&bytes[..5 + len]) ^ seed != u32_at(bytes, 5 + len) {
        return Frame::Other;
    }
    Frame::Record(RecordKind(kind), &bytes[5..5 + len], whole)
}

/// CRC-32C, the checksum of all that is stored.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The batch is the first of an opening of the journal and holds no records.
pub const FLAG_OPEN: u16 = 1;
/// The journal was closed in order after this batch, which holds no records.
pub const FLAG_SEAL: u16 = 2;
/// The batch only carries `synced` or `oldest`, and holds no records.
pub const FLAG_MARK: u16 = 4;
/// There was a manifest when the batch was closed. Goes with records and with the other flags.
pub const FLAG_MANIFEST: u16 = 8;

/// A segment's header has a block to itself, so that no batch ever shares a sector with it.
pub(crate) const HEADER_BLOCK_BYTES: u32 = 4096;
pub(crate) const BATCH_HEADER_BYTES: u32 = 48;
/// Kind, length and checksum around a record's bytes.
pub(crate) const RECORD_FRAME_BYTES: u32 = 9;
pub(crate) const BATCH_MAGIC: [u8; 2] = [0xb5, 0x4c];

const SEGMENT_MAGIC: &[u8; 8] = b"QueleaLg";
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
const KIND_MAX: u8 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity { id: *b"0123456789abcdef", shard: 1, shards: 4 };

    fn header() -> SegmentHeader {
        SegmentHeader {
            identity: IDENTITY,
            number: 7,
            segment_bytes: 1 << 26,
            oldest: 3,
            previous: 0xdead_beef,
            first_sequence: 99,
            epoch: 2,
        }
    }

    #[test]
    fn segment_header_survives_the_way_there_and_back() {
        let bytes = header().encode();
        assert_eq!(bytes.len(), HEADER_BLOCK_BYTES as usize);
        assert_eq!(SegmentHeader::decode(&bytes), HeaderRead::Valid(header()));
    }

    #[test]
    fn segment_header_flipped_anywhere_is_damaged() {
        let good = header().encode();
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), HeaderRead::Damaged, "bit {bit}");
        }
    }

    #[test]
    fn segment_header_of_a_later_format_is_named() {
        let mut bytes = header().encode();
        bytes[8] = 9;
        let crc = crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(&bytes), HeaderRead::Version(9));
    }

    #[test]
    fn blank_means_only_zeros() {
        assert_eq!(SegmentHeader::decode(&[]), HeaderRead::Blank);
        assert_eq!(SegmentHeader::decode(&[0; 10_000]), HeaderRead::Blank);
        assert_eq!(SegmentHeader::decode(&[1]), HeaderRead::Damaged);
    }

    #[test]
    fn batch_header_is_bound_to_journal_and_segment() {
        let header = BatchHeader { records: 3, sequence: 8, previous: 5, ..Default::default() };
        let mut bytes = [0; 48];
        let crc = header.write_to(&mut bytes, IDENTITY.seed(7));
        assert_eq!(BatchHeader::decode(&bytes, IDENTITY.seed(7)), Some((header, crc)));
        assert_eq!(BatchHeader::decode(&bytes, IDENTITY.seed(8)), None);
        let other = Identity { id: [0; 16], ..IDENTITY };
        assert_eq!(BatchHeader::decode(&bytes, other.seed(7)), None);
    }

    #[test]
    fn frames_are_read_back_and_partial_ones_say_what_they_need() {
        let mut out = Vec::new();
        push_record(&mut out, 11, RecordKind::new(5), &[b"ab", b"", b"c"]);
        assert_eq!(out.len(), 12);
        assert_eq!(read_frame(&out, 11, true), Frame::Record(RecordKind::new(5), b"abc", 12));
        assert_eq!(read_frame(&out, 12, true), Frame::Other);
        assert_eq!(read_frame(&out[..11], 11, true), Frame::Partial(12));
        assert_eq!(read_frame(&out[..3], 11, true), Frame::Partial(9));
        assert_eq!(read_frame(&BATCH_MAGIC, 11, true), Frame::Other);
        assert_eq!(read_frame(&[0; 50], 11, true), Frame::Other);
    }
}
