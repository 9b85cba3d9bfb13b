//! Reading the records of a shard from the files of its stream, for a consumer that is behind.

use std::io;

use broker::streams::StreamNumber;
use storage::stream::{BLOCK_HEADER_BYTES, Block, BlockFault, BlockHeader, FileIdentity, Location};

use crate::stream::Stream;

/// Reads files of streams: the host does.
pub trait ReadFiles {
    /// So many bytes at an offset, or fewer if the file ends.
    ///
    /// # Errors
    ///
    /// The system could not read it now. It is tried again.
    fn read(
        &self,
        stream: StreamNumber,
        file: u64,
        offset: u64,
        bytes: usize,
    ) -> io::Result<Vec<u8>>;
}

/// Where a consumer reads.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The block that it is in.
    pub(crate) block: Option<Block>,
    /// Where the next one begins: file and offset.
    next: Option<(u64, u64)>,
    /// Some: the disk could not be read, for this reason, and is asked again then.
    pub(crate) fault: Option<(String, u64)>,
}

/// What was found for a record.
#[derive(Debug)]
pub(crate) enum Found {
    /// The block has it, or the next one that can be read.
    Block(Block),
    /// Records ahead of this one were deleted.
    Gone(u64),
    /// Those ahead of this one cannot be read.
    Damaged(u64),
    /// It is in no file.
    Ahead,
    /// To be continued: many blocks of others had to be skipped.
    More,
}

/// Blocks that are looked at until another consumer has its turn.
const BLOCKS_MAX: usize = 64;

/// Bytes that are read at once: most blocks fit.
const READ_BYTES: u64 = 64 << 10;

/// A stream whose files are read.
pub(crate) struct Source<'a> {
    pub(crate) stream: &'a Stream,
    pub(crate) files: &'a dyn ReadFiles,
}

impl Reader {
    /// The block of a shard with this record.
    pub(crate) fn find(
        &mut self,
        source: &Source<'_>,
        shard: u16,
        ordinal: u64,
    ) -> io::Result<Found> {
        let log = &source.stream.log;
        let (file, begin, end) = match log.locate(shard, ordinal) {
            Location::Ahead => return Ok(Found::Ahead),
            Location::Gone { next } => return Ok(Found::Gone(next)),
            Location::File { file, offset, end } => (file, offset, end),
        };
        let known = self.next.filter(|(known, offset)| *known == file && *offset > begin);
        // Behind that the file may have blocks that count in a later one.
        let file_next = log.extent(file, shard).map_or(ordinal + 1, |(_, next)| next);
        let mut offset = known.map_or(begin, |(_, offset)| offset);
        for _ in 0..BLOCKS_MAX {
            if offset >= end {
                // The file has it, and it is behind none of what can be read.
                self.next = None;
                return Ok(Found::Damaged(file_next));
            }
            let limit = end - offset;
            let (header, block) = source.block(shard, ordinal, (file, offset, limit))?;
            let Some(header) = header else {
                offset = log.resume_behind(file, offset).unwrap_or(end);
                continue;
            };
            offset += header.block_bytes();
            self.next = Some((file, offset));
            match block {
                None => {}
                Some(_) if header.first > ordinal => {
                    // The block is found again from its own first record.
                    self.next = Some((file, offset - header.block_bytes()));
                    return Ok(Found::Damaged(header.first.min(file_next)));
                }
                Some(Ok(block)) => return Ok(Found::Block(block)),
                Some(Err(_)) => return Ok(Found::Damaged(header.next())),
            }
        }
        self.next = Some((file, offset));
        Ok(Found::More)
    }

    /// Reads from somewhere else.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }

    /// Frees the memory of its block. An unfinished one is found again by the index.
    pub(crate) fn drop_block(&mut self) {
        if self.block.take().is_some() {
            self.next = None;
        }
    }

    /// Bytes of its block.
    pub(crate) fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.header.plain_bytes as usize)
    }
}

/// A header, if one can be read, and its block, if it is asked for.
type Piece = (Option<BlockHeader>, Option<Result<Block, BlockFault>>);

impl Source<'_> {
    /// What begins at an offset of a file. Its block, if it is of the shard and has this record or
    /// one behind it.
    fn block(&self, shard: u16, ordinal: u64, at: (u64, u64, u64)) -> io::Result<Piece> {
        let (file, offset, limit) = at;
        let number = self.stream.definition.number;
        let identity: FileIdentity = self.stream.identity(file);
        let size = limit.min(READ_BYTES) as usize;
        let mut bytes = self.files.read(number, file, offset, size)?;
        let Some(header) = BlockHeader::read(&bytes, &identity) else { return Ok((None, None)) };
        if header.shard != shard || header.next() <= ordinal {
            return Ok((Some(header), None));
        }
        let whole = header.block_bytes() as usize;
        if whole > bytes.len() && bytes.len() >= BLOCK_HEADER_BYTES {
            bytes = self.files.read(number, file, offset, whole)?;
        }
        Ok((Some(header), Some(Block::read(&bytes, &identity))))
    }

    /// The ordinal of the first record of a shard at this time or later. None: to be continued.
    pub(crate) fn at_time(
        &self,
        reader: &mut Reader,
        shard: u16,
        at_ms: u64,
    ) -> io::Result<Option<u64>> {
        let tail = &self.stream.shards[usize::from(shard)].tail;
        let oldest = self.stream.beginning(shard);
        let Location::File { file, offset, end } = self.stream.log.locate_time(shard, at_ms) else {
            return Ok(Some(tail.at_time(at_ms).max(oldest)));
        };
        let known = reader.next.filter(|(known, at)| *known == file && *at > offset);
        let mut offset = known.map_or(offset, |(_, offset)| offset);
        for _ in 0..BLOCKS_MAX {
            if offset >= end {
                // What it has at this time counts in a later file.
                let next = self.stream.log.extent(file, shard).map_or(oldest, |(_, next)| next);
                return Ok(Some(next));
            }
            let (header, block) = self.block(shard, 0, (file, offset, end - offset))?;
            let Some(header) = header else {
                offset = self.stream.log.resume_behind(file, offset).unwrap_or(end);
                continue;
            };
            offset += header.block_bytes();
            reader.next = Some((file, offset));
            match block {
                Some(Ok(block)) if header.last_ms >= at_ms => {
                    let mut records = block.records().skip_while(|record| record.at_ms < at_ms);
                    return Ok(records.next().map(|record| record.ordinal));
                }
                Some(Err(_)) if header.last_ms >= at_ms => return Ok(Some(header.first)),
                _ => {}
            }
        }
        Ok(None)
    }
}
