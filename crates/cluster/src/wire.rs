//! The messages of a stream: the writes of a journal, packed.
//!
//! ```text
//! magic "QJ"  version u8  kind u8  pieces u16
//! cluster [u8; 16]  epoch u64  writer u64  number u64  sent_at_ms u64
//! content     kind 1, claim: the name of the node
//!             kind 2, pieces: tag u8, segment u32, offset u32, len u32, bytes; again and again
//! crc u32     CRC-32C of all before
//! ```
//!
//! All numbers are little-endian. A message never holds writes to two segments: the first message
//! of a segment begins with its header, and the stream can be purged up to there.

use storage::{Step, checksum};

/// Names one cluster for ever. Random, made by `cluster init`.
pub type ClusterId = [u8; 16];

/// Who wrote a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    pub cluster: ClusterId,
    /// Of the lease under which the writer claimed the stream. Grows with each holder.
    pub epoch: u64,
    /// Random for each claim.
    pub writer: u64,
}

/// What is stated in front of the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    pub origin: Origin,
    /// 0 for the claim, then one more for each message of this writer.
    pub number: u64,
    /// Wall clock of the writer, in milliseconds since the Unix epoch. For display only.
    pub sent_at_ms: u64,
}

/// A message as read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    pub header: Header,
    pub content: Content<'a>,
}

/// What a message says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content<'a> {
    /// From here on only this writer counts.
    Claim { node: &'a str },
    /// Writes of the journal, in order.
    Pieces(Vec<Piece<'a>>),
}

/// A write of the journal, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    Write { segment: u32, offset: u32, bytes: &'a [u8] },
    Manifest { offset: u32, bytes: &'a [u8] },
}

/// Why the bytes of a stream are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    #[error("not a message of a log: wrong magic number or length")]
    Foreign,
    #[error("unknown version {0}: this program reads version {VERSION}; use a newer one")]
    Version(u8),
    #[error("its checksum is wrong: the engine returned other bytes than were appended")]
    Checksum,
    #[error("its content is malformed")]
    Content,
}

/// The message by which a writer takes over a stream.
pub(crate) fn claim(header: &Header, node: &str) -> Vec<u8> {
    let mut body = begin(header, KIND_CLAIM);
    body.extend_from_slice(node.as_bytes());
    end(body, 0)
}

/// Reads a message.
///
/// # Errors
///
/// When it is not one, or not whole.
pub fn decode(body: &[u8]) -> Result<Message<'_>, WireError> {
    if body.len() < HEADER_BYTES + CRC_BYTES || body[..2] != MAGIC {
        return Err(WireError::Foreign);
    }
    if body[2] != VERSION {
        return Err(WireError::Version(body[2]));
    }
    let (content, crc) = body.split_at(body.len() - CRC_BYTES);
    if crc != checksum(content).to_le_bytes() {
        return Err(WireError::Checksum);
    }
    let (head, content) = content.split_at(HEADER_BYTES);
    let header = Header {
        origin: Origin {
            cluster: array(&head[6..22]),
            epoch: u64::from_le_bytes(array(&head[22..30])),
            writer: u64::from_le_bytes(array(&head[30..38])),
        },
        number: u64::from_le_bytes(array(&head[38..46])),
        sent_at_ms: u64::from_le_bytes(array(&head[46..54])),
    };
    let count = u16::from_le_bytes(array(&head[4..6]));
    let content = match head[3] {
        KIND_CLAIM if count == 0 => {
            let node = std::str::from_utf8(content).map_err(|_| WireError::Content)?;
            Content::Claim { node }
        }
        KIND_PIECES => Content::Pieces(pieces(content, count)?),
        _ => return Err(WireError::Content),
    };
    Ok(Message { header, content })
}

fn pieces(mut rest: &[u8], count: u16) -> Result<Vec<Piece<'_>>, WireError> {
    let mut found: Vec<Piece<'_>> = Vec::new();
    while !rest.is_empty() {
        let (head, behind) = rest.split_at_checked(PIECE_BYTES).ok_or(WireError::Content)?;
        let number = |at: usize| u32::from_le_bytes(array(&head[at..at + 4]));
        let (segment, offset, len) = (number(1), number(5), number(9));
        let (bytes, behind) = behind.split_at_checked(len as usize).ok_or(WireError::Content)?;
        offset.checked_add(len).ok_or(WireError::Content)?;
        rest = behind;
        found.push(match head[0] {
            TAG_WRITE => Piece::Write { segment, offset, bytes },
            TAG_MANIFEST if segment == 0 => Piece::Manifest { offset, bytes },
            _ => return Err(WireError::Content),
        });
    }
    if found.len() != usize::from(count) || found.is_empty() || has_two_segments(&found) {
        return Err(WireError::Content);
    }
    Ok(found)
}

fn has_two_segments(pieces: &[Piece<'_>]) -> bool {
    let mut segments = pieces.iter().filter_map(|piece| match piece {
        Piece::Write { segment, .. } => Some(*segment),
        Piece::Manifest { .. } => None,
    });
    let first = segments.next();
    segments.any(|segment| Some(segment) != first)
}

/// A message in the making.
#[derive(Debug)]
pub(crate) struct Packet {
    body: Vec<u8>,
    pieces: u16,
    /// The segment of its writes.
    segment: Option<u32>,
    bytes_max: usize,
}

impl Packet {
    pub(crate) fn new(header: &Header, bytes_max: usize) -> Self {
        Self { body: begin(header, KIND_PIECES), pieces: 0, segment: None, bytes_max }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.pieces == 0
    }

    /// The segment whose header it begins with.
    pub(crate) const fn segment(&self) -> Option<u32> {
        self.segment
    }

    /// Adds as much of a step as fits, from byte `from` on; says how much. 0: nothing fits.
    pub(crate) fn add(&mut self, step: &Step, from: usize) -> usize {
        let (tag, segment, offset, bytes) = match step {
            Step::Write { segment, offset, bytes } => (TAG_WRITE, *segment, *offset, bytes),
            Step::Manifest { offset, bytes } => (TAG_MANIFEST, 0, *offset, bytes),
            Step::Sync { .. } => return 0,
        };
        let is_other = |known: u32| tag == TAG_WRITE && known != segment;
        let left = self.bytes_max.saturating_sub(self.body.len() + PIECE_BYTES + CRC_BYTES);
        let len = (bytes.len() - from).min(left);
        // A manifest is short, and only whole is it of use.
        let is_cut = tag == TAG_MANIFEST && len < bytes.len();
        if self.pieces == u16::MAX || self.segment.is_some_and(is_other) || len == 0 || is_cut {
            return 0;
        }
        if tag == TAG_WRITE {
            self.segment = Some(segment);
        }
        self.body.push(tag);
        self.body.extend_from_slice(&segment.to_le_bytes());
        self.body.extend_from_slice(&(offset + from as u32).to_le_bytes());
        self.body.extend_from_slice(&(len as u32).to_le_bytes());
        self.body.extend_from_slice(&bytes[from..from + len]);
        self.pieces += 1;
        len
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        end(self.body, self.pieces)
    }
}

fn begin(header: &Header, kind: u8) -> Vec<u8> {
    let mut body = Vec::with_capacity(512);
    body.extend_from_slice(&MAGIC);
    body.extend_from_slice(&[VERSION, kind, 0, 0]);
    body.extend_from_slice(&header.origin.cluster);
    for number in [header.origin.epoch, header.origin.writer, header.number, header.sent_at_ms] {
        body.extend_from_slice(&number.to_le_bytes());
    }
    body
}

fn end(mut body: Vec<u8>, pieces: u16) -> Vec<u8> {
    body[4..6].copy_from_slice(&pieces.to_le_bytes());
    let crc = checksum(&body);
    body.extend_from_slice(&crc.to_le_bytes());
    body
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

/// The version of the format that this program writes, and the only one that it reads.
pub const VERSION: u8 = 1;
const MAGIC: [u8; 2] = *b"QJ";
const KIND_CLAIM: u8 = 1;
const KIND_PIECES: u8 = 2;
const TAG_WRITE: u8 = 1;
const TAG_MANIFEST: u8 = 2;
const HEADER_BYTES: usize = 54;
const PIECE_BYTES: usize = 13;
const CRC_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        let origin = Origin { cluster: *b"0123456789abcdef", epoch: 7, writer: 99 };
        Header { origin, number: 3, sent_at_ms: 1_700_000_000_000 }
    }

    fn write(segment: u32, offset: u32, bytes: &[u8]) -> Step {
        Step::Write { segment, offset, bytes: Arc::new(bytes.to_vec()) }
    }

    #[test]
    fn a_claim_survives_the_way_there_and_back() {
        let body = claim(&header(), "node-1");
        let read = decode(&body).unwrap();
        assert_eq!(read, Message { header: header(), content: Content::Claim { node: "node-1" } });
    }

    #[test]
    fn pieces_survive_and_are_cut_where_the_message_is_full() {
        let mut packet = Packet::new(&header(), 200);
        assert_eq!(packet.add(&write(4, 100, &[1; 40]), 0), 40);
        let rest = packet.add(&write(4, 140, &[2; 200]), 0);
        assert!((1..200).contains(&rest));
        assert_eq!(packet.add(&write(4, 140, &[2; 200]), rest), 0);
        let body = packet.finish();
        assert_eq!(body.len(), 200);
        let Content::Pieces(pieces) = decode(&body).unwrap().content else { panic!() };
        assert_eq!(pieces[0], Piece::Write { segment: 4, offset: 100, bytes: &[1; 40] });
        assert_eq!(pieces[1], Piece::Write { segment: 4, offset: 140, bytes: &vec![2; rest] });
    }

    #[test]
    fn a_message_holds_writes_of_one_segment_only() {
        let mut packet = Packet::new(&header(), 64 << 10);
        assert_eq!(packet.add(&write(4, 100, &[1; 40]), 0), 40);
        assert_eq!(packet.add(&write(5, 0, &[1; 40]), 0), 0);
        let manifest = Step::Manifest { offset: 4096, bytes: Arc::new(vec![9; 112]) };
        assert_eq!(packet.add(&manifest, 0), 112);
        assert_eq!(packet.segment(), Some(4));
    }

    #[test]
    fn what_is_no_message_is_named() {
        assert_eq!(decode(b"hello"), Err(WireError::Foreign));
        let mut body = claim(&header(), "n");
        body[2] = 9;
        assert_eq!(decode(&body), Err(WireError::Version(9)));
        let mut body = claim(&header(), "n");
        body[30] ^= 1;
        assert_eq!(decode(&body), Err(WireError::Checksum));
        assert_eq!(decode(&end(begin(&header(), 7), 0)), Err(WireError::Content));
        assert_eq!(decode(&end(begin(&header(), KIND_PIECES), 0)), Err(WireError::Content));
    }

    proptest! {
        /// Whatever stands in the content, with a right checksum.
        #[test]
        fn no_content_makes_it_panic(content: Vec<u8>, kind in 0_u8..4, count: u16) {
            let mut body = begin(&header(), kind);
            body.extend_from_slice(&content);
            let _ = decode(&end(body, count));
            let _ = decode(&content);
        }
    }
}
