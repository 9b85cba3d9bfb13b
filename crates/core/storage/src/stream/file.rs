//! A file of a stream: a header, blocks, and once it is full a footer with its index.

use std::collections::BTreeMap;

use crate::checksum;
use crate::stream::block::BlockHeader;
use crate::stream::wire::Input;

/// The version of the files that this code writes, and the only one it reads.
pub const STREAM_FORMAT_VERSION: u16 = 1;

/// Shards that a file knows. A block of another one is damage.
pub const STREAM_SHARDS_MAX: u16 = 64;

/// A shard has an entry in the index for each so many bytes of its blocks.
pub const INDEX_BYTES: u64 = 64 << 10;

pub const FILE_HEADER_BYTES: usize = 64;
/// Bytes at the end of a closed file that say where its footer begins.
pub const FILE_TAIL_BYTES: usize = 24;

const FILE_MAGIC: [u8; 8] = *b"QueleaSt";
const TAIL_MAGIC: [u8; 8] = *b"QlStTail";
const EXTENT_BYTES: usize = 42;
const ENTRY_BYTES: usize = 26;

/// Whose file it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    /// Random, chosen when the stream is made. Clients never see it, so that no payload can forge a
    /// block.
    pub stream: [u8; 16],
    /// Grows with each file of the stream, from 1. Never used again.
    pub number: u64,
}

impl FileIdentity {
    /// What the checksums of this file are XORed with, so that bytes of another file never pass.
    pub(crate) fn seed(&self) -> u32 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.stream);
        bytes[16..].copy_from_slice(&self.number.to_le_bytes());
        checksum(&bytes)
    }

    /// The front of the file.
    pub fn header(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        out.extend_from_slice(&FILE_MAGIC);
        out.extend_from_slice(&STREAM_FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&(FILE_HEADER_BYTES as u16).to_le_bytes());
        out.extend_from_slice(&self.stream);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.resize(FILE_HEADER_BYTES - 4, 0);
        let crc = checksum(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Whose file begins with these bytes.
    ///
    /// # Errors
    ///
    /// When it is none of a stream, of another format, or damaged.
    pub fn read(bytes: &[u8]) -> Result<Self, FileFault> {
        let header = bytes.get(..FILE_HEADER_BYTES).ok_or(FileFault::Header)?;
        let (stated, crc) = header.split_at(FILE_HEADER_BYTES - 4);
        if checksum(stated).to_le_bytes() != crc || stated[..8] != FILE_MAGIC {
            return Err(FileFault::Header);
        }
        let mut input = Input::new(&stated[8..]);
        let version = input.u16().ok_or(FileFault::Header)?;
        if version != STREAM_FORMAT_VERSION {
            return Err(FileFault::Version(version));
        }
        input.u16();
        let stream = input.take(16).and_then(|id| id.try_into().ok()).ok_or(FileFault::Header)?;
        let number = input.u64().ok_or(FileFault::Header)?;
        Ok(Self { stream, number })
    }
}

/// What a file was found to have at a start.
///
/// A footer counts only if it ends where the journal says that the file was durable to: it is
/// written before all that it states is. Otherwise the blocks are [scanned](FileIndex::scan).
///
/// # Errors
///
/// When the file does not reach that far: records that were acknowledged are missing.
pub fn check_reach(index: &FileIndex, number: u64, reach: u64) -> Result<(), StreamRefusal> {
    let end = index.end();
    match end == reach {
        true => Ok(()),
        false => Err(StreamRefusal { file: number, end, reach }),
    }
}

/// Why a stream is not opened. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "stream file {file} can be read up to byte {end}, and was durable up to {reach}: put the whole \
     file back, or restore a backup"
)]
pub struct StreamRefusal {
    pub file: u64,
    pub end: u64,
    pub reach: u64,
}

/// Why a file cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileFault {
    #[error("its header is damaged, or a file of something else has its name")]
    Header,
    #[error(
        "it has format version {0}, this program reads version {STREAM_FORMAT_VERSION}: use the \
         program version that wrote it"
    )]
    Version(u16),
    #[error("its index is damaged")]
    Footer,
}

/// What a file has of one shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// The number of its first record, and the one behind its last.
    pub first: u64,
    pub next: u64,
    pub records: u64,
    /// Bytes of its blocks.
    pub bytes: u64,
    pub last_ms: u64,
}

/// Where a block begins that the index names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    pub shard: u16,
    /// The number of the first record of the block.
    pub first: u64,
    /// Broker time of that record.
    pub at_ms: u64,
    pub offset: u64,
}

/// What is known of the content of a file: its size in memory follows the bytes of the file, not
/// the number of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileIndex {
    /// The end of the last block.
    pub(crate) end: u64,
    extents: BTreeMap<u16, Extent>,
    /// In the order of the blocks.
    entries: Vec<IndexEntry>,
    /// Bytes of each shard's blocks since its last entry.
    since_entry: BTreeMap<u16, u64>,
}

impl Default for FileIndex {
    fn default() -> Self {
        Self {
            end: FILE_HEADER_BYTES as u64,
            extents: BTreeMap::new(),
            entries: Vec::new(),
            since_entry: BTreeMap::new(),
        }
    }
}

impl FileIndex {
    /// The end of the last block, where the next one begins.
    pub const fn end(&self) -> u64 {
        self.end
    }

    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// What the file has of the shard.
    pub fn extent(&self, shard: u16) -> Option<Extent> {
        self.extents.get(&shard).copied()
    }

    /// What the file has of each shard.
    pub fn extents(&self) -> impl Iterator<Item = (u16, Extent)> + '_ {
        self.extents.iter().map(|(shard, extent)| (*shard, *extent))
    }

    /// The last time in it.
    pub fn last_ms(&self) -> u64 {
        self.extents.values().map(|extent| extent.last_ms).max().unwrap_or_default()
    }

    pub fn records(&self) -> u64 {
        self.extents.values().map(|extent| extent.records).sum()
    }

    /// A block was appended at the end. False: its records do not follow those that the file has of
    /// its shard, and it does not count.
    pub fn note_block(&mut self, header: &BlockHeader) -> bool {
        let known = self.extents.get(&header.shard);
        if header.shard >= STREAM_SHARDS_MAX || known.is_some_and(|it| it.next > header.first) {
            return false;
        }
        let since = self.since_entry.entry(header.shard).or_insert(INDEX_BYTES);
        if *since >= INDEX_BYTES {
            *since = 0;
            let BlockHeader { shard, first, first_ms: at_ms, .. } = *header;
            self.entries.push(IndexEntry { shard, first, at_ms, offset: self.end });
        }
        *since += header.block_bytes();
        let extent = self.extents.entry(header.shard).or_insert(Extent {
            first: header.first,
            next: header.first,
            records: 0,
            bytes: 0,
            last_ms: 0,
        });
        extent.next = header.next();
        extent.records += u64::from(header.count);
        extent.bytes += header.block_bytes();
        extent.last_ms = extent.last_ms.max(header.last_ms);
        self.end += header.block_bytes();
        true
    }

    /// Forgets blocks of a shard from this record on: they are, or will be, in a later file. They
    /// are here only as a block of another shard behind them was durable.
    pub(crate) fn forget_from(&mut self, shard: u16, ordinal: u64) {
        let Some(extent) = self.extents.get_mut(&shard) else { return };
        if extent.next <= ordinal {
            return;
        }
        self.entries.retain(|entry| entry.shard != shard || entry.first < ordinal);
        if extent.first >= ordinal {
            self.extents.remove(&shard);
            return;
        }
        extent.records -= extent.next - ordinal;
        extent.next = ordinal;
    }

    /// Where to begin to read for a record of the shard: at a block of it that is not behind the
    /// record, at most [`INDEX_BYTES`] of its blocks ahead. None: the file has nothing of the shard
    /// from there on.
    pub fn seek(&self, shard: u16, ordinal: u64) -> Option<u64> {
        self.extents.get(&shard).filter(|extent| ordinal < extent.next)?;
        self.offset_before(shard, |entry| entry.first <= ordinal)
    }

    /// The same for the first record at this time or later.
    pub fn seek_time(&self, shard: u16, at_ms: u64) -> Option<u64> {
        self.extents.get(&shard).filter(|extent| at_ms <= extent.last_ms)?;
        // Several blocks may begin in the same millisecond: all of them count.
        self.offset_before(shard, |entry| entry.at_ms < at_ms)
    }

    /// Where to go on behind a block that is damaged: at the next block that the index names. None:
    /// nothing behind it can be found.
    pub fn resume_behind(&self, offset: u64) -> Option<u64> {
        self.entries.iter().map(|entry| entry.offset).find(|known| *known > offset)
    }

    fn offset_before(&self, shard: u16, is_before: impl Fn(&IndexEntry) -> bool) -> Option<u64> {
        let mut own = self.entries.iter().filter(|entry| entry.shard == shard);
        let first = own.next()?;
        let last = own.take_while(|entry| is_before(entry)).last();
        Some(last.unwrap_or(first).offset)
    }

    /// What follows the last block of a file that is closed.
    pub fn footer(&self, identity: &FileIdentity) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.extents.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        for (shard, extent) in &self.extents {
            out.extend_from_slice(&shard.to_le_bytes());
            let Extent { first, next, records, bytes, last_ms } = extent;
            for number in [first, next, records, bytes, last_ms] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        for IndexEntry { shard, first, at_ms, offset } in &self.entries {
            out.extend_from_slice(&shard.to_le_bytes());
            for number in [first, at_ms, offset] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        let crc = checksum(&out) ^ identity.seed();
        let begin = out.len();
        out.extend_from_slice(&TAIL_MAGIC);
        out.extend_from_slice(&self.end.to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        let crc = checksum(&out[begin..]) ^ identity.seed();
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Where the footer begins, by the last bytes of the file. None: the file is not closed.
    pub fn footer_at(tail: &[u8], identity: &FileIdentity) -> Option<u64> {
        let stated = tail.get(..FILE_TAIL_BYTES - 4)?;
        let crc = checksum(stated) ^ identity.seed();
        if stated[..8] != TAIL_MAGIC || tail.get(FILE_TAIL_BYTES - 4..)? != crc.to_le_bytes() {
            return None;
        }
        Input::new(&stated[8..]).u64()
    }

    /// Reads the footer, from where it begins to the end of the file.
    ///
    /// # Errors
    ///
    /// When it is damaged.
    pub fn read_footer(bytes: &[u8], identity: &FileIdentity) -> Result<Self, FileFault> {
        Self::parse_footer(bytes, identity).ok_or(FileFault::Footer)
    }

    fn parse_footer(bytes: &[u8], identity: &FileIdentity) -> Option<Self> {
        let (content, tail) = bytes.split_at_checked(bytes.len().checked_sub(FILE_TAIL_BYTES)?)?;
        let end = Self::footer_at(tail, identity)?;
        let crc = checksum(content) ^ identity.seed();
        if tail[16..20] != crc.to_le_bytes() {
            return None;
        }
        let mut input = Input::new(content);
        let (extents, entries) = (input.u32()? as usize, input.u32()? as usize);
        let expected =
            extents.checked_mul(EXTENT_BYTES)?.checked_add(entries.checked_mul(ENTRY_BYTES)?)?;
        if content.len() != 8 + expected {
            return None;
        }
        let mut index = Self { end, ..Self::default() };
        for _ in 0..extents {
            let shard = input.u16()?;
            let (first, next) = (input.u64()?, input.u64()?);
            let (records, bytes, last_ms) = (input.u64()?, input.u64()?, input.u64()?);
            index.extents.insert(shard, Extent { first, next, records, bytes, last_ms });
        }
        for _ in 0..entries {
            let shard = input.u16()?;
            let (first, at_ms, offset) = (input.u64()?, input.u64()?, input.u64()?);
            index.entries.push(IndexEntry { shard, first, at_ms, offset });
        }
        Some(index)
    }

    /// Looks at what a file that is not closed has at [`FileIndex::end`]. True: the header of a
    /// block that ends at `reach` at the latest, and it counts now.
    pub fn next_block(&mut self, header: &[u8], identity: &FileIdentity, reach: u64) -> bool {
        let found = BlockHeader::decode(header, identity.seed());
        let is_there = |header: &BlockHeader| self.end + header.block_bytes() <= reach;
        found.filter(is_there).is_some_and(|header| self.note_block(&header))
    }

    /// The same for all blocks of `content`, which begins at [`FileIndex::end`].
    pub fn scan(&mut self, content: &[u8], identity: &FileIdentity, reach: u64) {
        let begin = self.end;
        let reach = reach.min(begin + content.len() as u64);
        while self.end < reach
            && self.next_block(&content[(self.end - begin) as usize..], identity, reach)
        {}
    }
}
