//! Files of streams: an input is what stands behind the checksums of a block or a footer, which are
//! made right, so that changes come as far as the content.

use storage::checksum;
use storage::stream::{Block, BlockWriter, FileIdentity, FileIndex, Packing};

const IDENTITY: FileIdentity = FileIdentity { stream: *b"0123456789abcdef", number: 7 };

pub fn stream_file(input: &[u8]) {
    let _ = FileIdentity::read(input);
    let _ = Block::read(input, &IDENTITY);
    let _ = FileIndex::read_footer(input, &IDENTITY);
    FileIndex::default().scan(input, &IDENTITY, u64::MAX);
    if let Some((head, stored)) = input.split_at_checked(HEAD_BYTES) {
        block(head, stored);
    }
    footer(input);
}

/// Of the documented header: all between the magic and the bytes as stored.
const HEAD_BYTES: usize = 36;

fn seed() -> u32 {
    let mut bytes = IDENTITY.stream.to_vec();
    bytes.extend_from_slice(&IDENTITY.number.to_le_bytes());
    checksum(&bytes)
}

/// A block by its documented layout.
fn block(head: &[u8], stored: &[u8]) {
    let mut bytes = b"QlBk".to_vec();
    bytes.extend_from_slice(head);
    bytes.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&(checksum(stored) ^ seed()).to_le_bytes());
    let crc = checksum(&bytes) ^ seed();
    bytes.extend_from_slice(&crc.to_le_bytes());
    let mut index = FileIndex::default();
    let begin = index.end();
    bytes.extend_from_slice(stored);
    index.scan(&bytes, &IDENTITY, u64::MAX);
    let end = index.end();
    let Ok(block) = Block::read(&bytes, &IDENTITY) else { return };
    assert_eq!(block.records().count(), block.header.count as usize);
    let ordinals = block.records().map(|record| record.ordinal);
    assert!(ordinals.eq(block.header.first..block.header.next()));
    if end > begin {
        assert_eq!(end - begin, block.header.block_bytes());
        assert_eq!(index.seek(block.header.shard, block.header.first), Some(begin));
    }
    // What was read is written again as it was, but for the packing.
    let mut again = BlockWriter::new(block.header.shard, block.header.epoch, block.header.first);
    if block.records().all(|record| again.push(record.at_ms, record.bytes)) {
        let (header, bytes) = again.encode(&IDENTITY);
        assert!(header.packing == Packing::Plain || header.stored_bytes < header.plain_bytes);
        let read = Block::read(&bytes, &IDENTITY).expect("it was just written");
        assert!(read.records().eq(block.records()));
    }
}

/// A footer by its documented layout.
fn footer(content: &[u8]) {
    let mut bytes = content.to_vec();
    let mut tail = b"QlStTail".to_vec();
    tail.extend_from_slice(&64_u64.to_le_bytes());
    tail.extend_from_slice(&(checksum(content) ^ seed()).to_le_bytes());
    let crc = checksum(&tail) ^ seed();
    bytes.extend_from_slice(&tail);
    bytes.extend_from_slice(&crc.to_le_bytes());
    if let Ok(index) = FileIndex::read_footer(&bytes, &IDENTITY) {
        for (shard, extent) in index.extents() {
            let _ = (index.seek(shard, extent.first), index.seek_time(shard, extent.last_ms));
        }
        let again = index.footer(&IDENTITY);
        assert_eq!(FileIndex::read_footer(&again, &IDENTITY), Ok(index));
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut index = FileIndex::default();
    let mut seeds = Vec::new();
    for (shard, payload) in [(0, vec![7; 300]), (3, b"short".to_vec())] {
        let mut writer = BlockWriter::new(shard, 1, 100);
        for at_ms in [1000, 1001, 5000] {
            writer.push(at_ms, &payload);
        }
        let (header, bytes) = writer.encode(&IDENTITY);
        index.note_block(&header);
        // Without the magic, the length and the two checksums.
        let stored = bytes.len() - header.stored_bytes as usize;
        seeds.push([&bytes[4..4 + HEAD_BYTES], &bytes[stored..]].concat());
    }
    let footer = index.footer(&IDENTITY);
    seeds.push(footer[..footer.len() - storage::stream::FILE_TAIL_BYTES].to_vec());
    seeds.push(IDENTITY.header());
    seeds
}
