//! A block: records of one shard that follow each other, as one piece of a file.

use crate::checksum;
use crate::stream::file::FileIdentity;
use crate::stream::wire::{Input, put_varint};

/// Bytes of the records of a block, as they are before they are packed. Policy: the next record
/// begins another block, and a record that is larger is a block of its own.
pub const BLOCK_BYTES_MAX: usize = 512 << 10;

/// Bytes of a record. A larger one is refused when it is added.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// Bytes in front of the records of a block.
pub const BLOCK_HEADER_BYTES: usize = 52;
const MAGIC: [u8; 4] = *b"QlBk";

/// Packing that saves less than this part is not worth the time of the reader.
const SAVED_PART_MIN: usize = 16;

/// How the records of a block are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packing {
    Plain,
    Lz4,
}

/// What is stated in front of the records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    pub shard: u16,
    pub packing: Packing,
    /// Of the owner that wrote it. Grows with each one.
    pub epoch: u32,
    /// The number of the first record among those of its shard and stream.
    pub first: u64,
    pub count: u32,
    /// Of the first and of the last record, in milliseconds of the broker's time.
    pub first_ms: u64,
    pub last_ms: u64,
    /// Of the records, before they were packed.
    pub plain_bytes: u32,
    /// As stored, behind the header.
    pub stored_bytes: u32,
    /// Of the stored records.
    pub(crate) crc: u32,
}

impl BlockHeader {
    /// The number behind the last record.
    pub const fn next(&self) -> u64 {
        self.first.saturating_add(self.count as u64)
    }

    /// Header and records.
    pub const fn block_bytes(&self) -> u64 {
        BLOCK_HEADER_BYTES as u64 + self.stored_bytes as u64
    }

    fn encode(&self, seed: u32, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.shard.to_le_bytes());
        out.extend_from_slice(&[self.packing as u8, 0]);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.first.to_le_bytes());
        out.extend_from_slice(&self.first_ms.to_le_bytes());
        out.extend_from_slice(&((self.last_ms - self.first_ms) as u32).to_le_bytes());
        out.extend_from_slice(&self.plain_bytes.to_le_bytes());
        out.extend_from_slice(&self.stored_bytes.to_le_bytes());
        out.extend_from_slice(&self.crc.to_le_bytes());
        let crc = checksum(&out[begin..]) ^ seed;
        out.extend_from_slice(&crc.to_le_bytes());
    }

    /// The header at the front of `bytes`. None: no block of this file begins there.
    pub fn read(bytes: &[u8], identity: &FileIdentity) -> Option<Self> {
        Self::decode(bytes, identity.seed())
    }

    /// None: no header of this file stands there.
    pub(crate) fn decode(bytes: &[u8], seed: u32) -> Option<Self> {
        let header = bytes.get(..BLOCK_HEADER_BYTES)?;
        let (stated, crc) = header.split_at(BLOCK_HEADER_BYTES - 4);
        if (checksum(stated) ^ seed).to_le_bytes() != crc || stated[..4] != MAGIC {
            return None;
        }
        let mut input = Input::new(&stated[4..]);
        let shard = input.u16()?;
        let packing = match input.u8()? {
            0 => Packing::Plain,
            1 => Packing::Lz4,
            _ => return None,
        };
        input.u8()?;
        let (epoch, count, first, first_ms) =
            (input.u32()?, input.u32()?, input.u64()?, input.u64()?);
        let last_ms = first_ms.checked_add(u64::from(input.u32()?))?;
        let (plain_bytes, stored_bytes, crc) = (input.u32()?, input.u32()?, input.u32()?);
        first.checked_add(u64::from(count))?;
        let is_sound = count > 0
            && plain_bytes as usize <= RECORD_BYTES_MAX + RECORD_FRAME_MAX
            && match packing {
                Packing::Plain => plain_bytes == stored_bytes,
                // No more can come of so many bytes: memory is taken before they are unpacked.
                Packing::Lz4 => plain_bytes / LZ4_RATIO_MAX <= stored_bytes,
            };
        is_sound.then_some(Self {
            shard,
            packing,
            epoch,
            first,
            count,
            first_ms,
            last_ms,
            plain_bytes,
            stored_bytes,
            crc,
        })
    }
}

/// Length and time in front of a record.
const RECORD_FRAME_MAX: usize = 20;

/// What a byte of LZ4 can stand for.
const LZ4_RATIO_MAX: u32 = 255;

/// A record of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRecord<'a> {
    pub ordinal: u64,
    /// Broker time of the publish, in milliseconds.
    pub at_ms: u64,
    pub bytes: &'a [u8],
}

/// A block in the making.
#[derive(Debug)]
pub struct BlockWriter {
    shard: u16,
    epoch: u32,
    first: u64,
    count: u32,
    first_ms: u64,
    last_ms: u64,
    plain: Vec<u8>,
}

impl BlockWriter {
    pub const fn new(shard: u16, epoch: u32, first: u64) -> Self {
        let (count, first_ms, last_ms) = (0, 0, 0);
        Self { shard, epoch, first, count, first_ms, last_ms, plain: Vec::new() }
    }

    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the records, with their frames.
    pub const fn len(&self) -> usize {
        self.plain.len()
    }

    /// The number that the next record gets.
    pub const fn next(&self) -> u64 {
        self.first + self.count as u64
    }

    /// Of the first record.
    pub const fn first_ms(&self) -> u64 {
        self.first_ms
    }

    /// Adds the next record. False: it belongs into another block, or is too large for all.
    pub fn push(&mut self, at_ms: u64, bytes: &[u8]) -> bool {
        // Time never goes back, whatever the clock does: a seek by time relies on that.
        let at_ms = at_ms.max(self.last_ms);
        let is_full = self.plain.len() + bytes.len() > BLOCK_BYTES_MAX
            || at_ms - self.first_ms > u64::from(u32::MAX)
            || self.count == u32::MAX;
        if bytes.len() > RECORD_BYTES_MAX || is_full && !self.is_empty() {
            return false;
        }
        if self.is_empty() {
            (self.first_ms, self.last_ms) = (at_ms, at_ms);
        }
        put_varint(&mut self.plain, bytes.len() as u64);
        put_varint(&mut self.plain, at_ms - self.last_ms);
        self.plain.extend_from_slice(bytes);
        self.last_ms = at_ms;
        self.count += 1;
        true
    }

    /// The block as it is stored in the file with this seed. Packed if that saves enough.
    pub fn encode(&self, identity: &FileIdentity) -> (BlockHeader, Vec<u8>) {
        let seed = identity.seed();
        let packed = lz4_flex::block::compress(&self.plain);
        let saves = packed.len() + self.plain.len() / SAVED_PART_MIN < self.plain.len();
        let (packing, stored) = match saves {
            true => (Packing::Lz4, packed),
            false => (Packing::Plain, self.plain.clone()),
        };
        let header = BlockHeader {
            shard: self.shard,
            packing,
            epoch: self.epoch,
            first: self.first,
            count: self.count,
            first_ms: self.first_ms,
            last_ms: self.last_ms,
            plain_bytes: self.plain.len() as u32,
            stored_bytes: stored.len() as u32,
            crc: checksum(&stored) ^ seed,
        };
        let mut block = Vec::with_capacity(BLOCK_HEADER_BYTES + stored.len());
        header.encode(seed, &mut block);
        block.extend_from_slice(&stored);
        (header, block)
    }
}

/// A block as read, with its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    pub header: BlockHeader,
    plain: Vec<u8>,
}

/// Why a block cannot be used. Its records count as dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockFault {
    #[error("no block begins here")]
    Header,
    #[error("the file ends within the block")]
    Short,
    #[error("the checksum of its records is wrong")]
    Checksum,
    #[error("its records are not what its header states")]
    Content,
}

impl Block {
    /// Reads the block at the front of `bytes`.
    ///
    /// # Errors
    ///
    /// When it is damaged, or not all there.
    pub fn read(bytes: &[u8], identity: &FileIdentity) -> Result<Self, BlockFault> {
        let seed = identity.seed();
        let header = BlockHeader::decode(bytes, seed).ok_or(BlockFault::Header)?;
        let end = header.block_bytes() as usize;
        let stored = bytes.get(BLOCK_HEADER_BYTES..end).ok_or(BlockFault::Short)?;
        if checksum(stored) ^ seed != header.crc {
            return Err(BlockFault::Checksum);
        }
        let plain_bytes = header.plain_bytes as usize;
        let plain = match header.packing {
            Packing::Plain => stored.to_vec(),
            Packing::Lz4 => lz4_flex::block::decompress(stored, plain_bytes)
                .ok()
                .filter(|plain| plain.len() == plain_bytes)
                .ok_or(BlockFault::Content)?,
        };
        let block = Self { header, plain };
        match block.records().count() == header.count as usize && block.is_whole() {
            true => Ok(block),
            false => Err(BlockFault::Content),
        }
    }

    /// Its records, in order.
    pub fn records(&self) -> Records<'_> {
        let Self { header, plain } = self;
        Records { input: Input::new(plain), ordinal: header.first, at_ms: header.first_ms }
    }

    fn is_whole(&self) -> bool {
        let mut records = self.records();
        let last_ms = records.by_ref().map(|record| record.at_ms).last();
        records.input.is_empty() && last_ms == Some(self.header.last_ms)
    }
}

/// The records of a [`Block`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    input: Input<'a>,
    ordinal: u64,
    at_ms: u64,
}

impl<'a> Iterator for Records<'a> {
    type Item = StreamRecord<'a>;

    fn next(&mut self) -> Option<StreamRecord<'a>> {
        let mut input = self.input;
        let len = input.varint()?;
        let at_ms = self.at_ms.checked_add(input.varint()?)?;
        let bytes = input.take(usize::try_from(len).ok()?)?;
        let ordinal = self.ordinal;
        (self.input, self.ordinal, self.at_ms) = (input, ordinal.checked_add(1)?, at_ms);
        Some(StreamRecord { ordinal, at_ms, bytes })
    }
}
