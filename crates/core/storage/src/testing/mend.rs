//! Making a fuzzer's bytes pass the checksums, so that it gets to what is behind them.

use crate::format::{
    BATCH_HEADER_BYTES, BATCH_MAGIC, HEADER_BLOCK_BYTES, HeaderRead, SegmentHeader, crc32c, u32_at,
};

/// Sets the checksums of a segment file to what its bytes ask for: that of the header, then those
/// of as many batches as follow each other.
pub fn mend_checksums(file: &mut [u8]) {
    let block = HEADER_BLOCK_BYTES as usize;
    if file.len() < block {
        return;
    }
    let crc = crc32c(&file[..60]);
    file[60..64].copy_from_slice(&crc.to_le_bytes());
    let HeaderRead::Valid(header) = SegmentHeader::decode(file) else { return };
    let (seed, mut previous) = (header.identity.seed(header.number), header.chain());
    let (mut at, head) = (block, BATCH_HEADER_BYTES as usize);
    while file.len() - at >= head && file[at..at + 2] == BATCH_MAGIC {
        let body = u32_at(file, at + 4) as usize;
        let Some(batch) = file[at..].get_mut(..head + body) else { return };
        let body_crc = crc32c(&batch[head..]) ^ seed;
        batch[36..40].copy_from_slice(&previous.to_le_bytes());
        batch[40..44].copy_from_slice(&body_crc.to_le_bytes());
        previous = crc32c(&batch[..44]) ^ seed;
        batch[44..48].copy_from_slice(&previous.to_le_bytes());
        at += head + body;
    }
}
