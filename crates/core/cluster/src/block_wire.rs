//! The messages of the second stream of a cell: bytes of the files of MQTT streams.
//!
//! ```text
//! magic "QB"  version u8  kind u8
//! cluster [u8; 16]  epoch u64  stream u32  file u64  offset u64
//! bytes of the file from this offset on
//! crc u32     CRC-32C of all before
//! ```
//!
//! All numbers are little-endian. A file is written by one active node only, as its number names
//! the epoch ([`first_file_of`]). So a message that arrives twice, late or out of order is
//! harmless: what it says of its file is true for ever.

use storage::checksum;

use crate::effect::Body;
use crate::wire::{ClusterId, WireError};

/// A file of an MQTT stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockFile {
    /// The number of the MQTT stream.
    pub stream: u32,
    pub file: u64,
}

/// Bytes of a file. A longer write is several messages. Above this an engine's cost per byte does
/// not fall any more, and a reader's memory grows.
pub const BLOCK_BYTES_MAX: usize = 64 << 10;

/// The least number of a file that the active node of this epoch makes.
pub const fn first_file_of(epoch: u64) -> u64 {
    epoch.saturating_mul(FILES_OF_EPOCH)
}

/// The epoch in which a file was made. 0: by a broker without a cluster.
pub(crate) const fn epoch_of(file: u64) -> u64 {
    file / FILES_OF_EPOCH
}

/// In one epoch nobody makes so many: they would be of at least a block each.
const FILES_OF_EPOCH: u64 = 1_000_000_000;

/// A message as read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockMessage<'a> {
    pub cluster: ClusterId,
    /// Of the node that wrote it.
    pub epoch: u64,
    pub file: BlockFile,
    pub offset: u64,
    pub bytes: &'a [u8],
}

impl<'a> BlockMessage<'a> {
    /// The messages of a write, in the order of the file.
    pub fn all_of(
        (cluster, epoch): (ClusterId, u64),
        file: BlockFile,
        offset: u64,
        bytes: &[u8],
    ) -> Vec<Body> {
        let parts = bytes.chunks(BLOCK_BYTES_MAX).enumerate();
        let message = |(place, bytes): (usize, &[u8])| {
            let offset = offset + (place * BLOCK_BYTES_MAX) as u64;
            BlockMessage { cluster, epoch, file, offset, bytes }.encode()
        };
        parts.map(message).collect()
    }

    fn encode(&self) -> Body {
        let mut body = Vec::with_capacity(HEADER_BYTES + self.bytes.len() + CRC_BYTES);
        body.extend_from_slice(&MAGIC);
        body.extend_from_slice(&[VERSION, KIND_BYTES]);
        body.extend_from_slice(&self.cluster);
        body.extend_from_slice(&self.epoch.to_le_bytes());
        body.extend_from_slice(&self.file.stream.to_le_bytes());
        body.extend_from_slice(&self.file.file.to_le_bytes());
        body.extend_from_slice(&self.offset.to_le_bytes());
        body.extend_from_slice(self.bytes);
        let crc = checksum(&body);
        body.extend_from_slice(&crc.to_le_bytes());
        body.into()
    }

    /// Reads a message.
    ///
    /// # Errors
    ///
    /// When it is not one, or not whole.
    pub fn decode(body: &'a [u8]) -> Result<Self, WireError> {
        if body.len() < HEADER_BYTES + CRC_BYTES || body[..2] != MAGIC {
            return Err(WireError::Foreign);
        }
        if body[2] != VERSION {
            return Err(WireError::Version(body[2]));
        }
        let (stated, crc) = body.split_at(body.len() - CRC_BYTES);
        if crc != checksum(stated).to_le_bytes() {
            return Err(WireError::Checksum);
        }
        let (head, bytes) = stated.split_at(HEADER_BYTES);
        let number = |at: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&head[at..at + 8]);
            u64::from_le_bytes(field)
        };
        let (mut cluster, mut stream) = ([0; 16], [0; 4]);
        cluster.copy_from_slice(&head[4..20]);
        stream.copy_from_slice(&head[28..32]);
        let file = BlockFile { stream: u32::from_le_bytes(stream), file: number(32) };
        let offset = number(40);
        let is_sound = head[3] == KIND_BYTES
            && bytes.len() <= BLOCK_BYTES_MAX
            && offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= i64::MAX as u64);
        match is_sound {
            true => Ok(Self { cluster, epoch: number(20), file, offset, bytes }),
            false => Err(WireError::Content),
        }
    }
}

const MAGIC: [u8; 2] = *b"QB";
const VERSION: u8 = 1;
const KIND_BYTES: u8 = 1;
const HEADER_BYTES: usize = 48;
const CRC_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OF: (ClusterId, u64) = ([7; 16], 3);
    const FILE: BlockFile = BlockFile { stream: 2, file: first_file_of(3) + 1 };

    #[test]
    fn a_write_is_read_as_written() {
        let bytes: Vec<u8> = (0..2 * BLOCK_BYTES_MAX + 5).map(|at| at as u8).collect();
        let messages = BlockMessage::all_of(OF, FILE, 64, &bytes);
        assert_eq!(messages.len(), 3);
        let mut found = Vec::new();
        for body in &messages {
            let message = BlockMessage::decode(body).expect("it is whole");
            assert_eq!((message.cluster, message.epoch, message.file), (OF.0, OF.1, FILE));
            assert_eq!(message.offset, 64 + found.len() as u64);
            found.extend_from_slice(message.bytes);
        }
        assert!(found == bytes);
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let body = BlockMessage::all_of(OF, FILE, 0, b"block").remove(0);
        for len in 0..body.len() {
            assert!(BlockMessage::decode(&body[..len]).is_err(), "{len}");
        }
        let mut newer = body.to_vec();
        newer[2] = VERSION + 1;
        assert_eq!(BlockMessage::decode(&newer), Err(WireError::Version(VERSION + 1)));
        let beyond = BlockMessage::all_of(OF, FILE, i64::MAX as u64, b"x").remove(0);
        assert_eq!(BlockMessage::decode(&beyond), Err(WireError::Content));
    }

    #[test]
    fn files_of_different_epochs_have_different_numbers() {
        assert_eq!(epoch_of(first_file_of(9)), 9);
        assert_eq!(epoch_of(first_file_of(9) + 5000), 9);
        assert_eq!(epoch_of(5000), 0, "of a broker without a cluster");
    }

    proptest! {
        #[test]
        fn one_wrong_bit_is_found(at in 0usize..57, bit in 0u8..8) {
            let mut body = BlockMessage::all_of(OF, FILE, 0, b"block").remove(0).to_vec();
            body[at] ^= 1 << bit;
            prop_assert!(BlockMessage::decode(&body).is_err());
        }
    }
}
