//! The messages of a stream: the writes of all journals of a cell, packed.
//!
//! ```text
//! magic "QJ"  version u8  kind u8  pieces u16
//! cluster [u8; 16]  epoch u64  writer u64  number u64  sent_at_ms u64  cell u16
//! content     kind 1, claim: the name of the node
//!             kind 2, pieces: tag u8, shard u16, segment u32, offset u32, len u32, bytes; again
//! crc u32     CRC-32C of all before
//! ```
//!
//! All numbers are little-endian. The pieces of a shard are in the order of its journal. Those of
//! different shards have no order among each other.
//!
//! Version 1 had a stream for each shard. Its header has no cell, and its pieces name no shard.

use storage::{Step, checksum};

use crate::effect::{Body, ShardId};
use crate::entry::CARRY_OVER;

/// Names one cluster for ever. Random, made by `cluster init`.
pub type ClusterId = [u8; 16];

/// Shards of a cluster. Policy: a message that names another one is refused.
const SHARDS_MAX: ShardId = 64;

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
    /// Whose shards the pieces are of. A cluster has one cell today: [`CELL`].
    pub cell: u16,
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
    /// Writes of the journals of these shards, in order.
    Pieces(Vec<(ShardId, Piece<'a>)>),
}

/// A write of the journal, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece<'a> {
    Write { segment: u32, offset: u32, bytes: &'a [u8] },
    Manifest { offset: u32, bytes: &'a [u8] },
}

/// What a message holds of one shard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Portion {
    pub shard: ShardId,
    body: Body,
    pieces: Vec<Extent>,
}

impl Portion {
    /// What a message holds of each shard; of a claim nothing.
    ///
    /// # Errors
    ///
    /// When it is no message, or not whole.
    pub fn all_of(body: &Body) -> Result<Vec<Self>, WireError> {
        match parse(body)?.1 {
            Parsed::Claim { .. } => Ok(Vec::new()),
            Parsed::Pieces(pieces) => Ok(portions(body, pieces)),
        }
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.pieces.iter().map(|piece| piece.of(&self.body))
    }

    /// Bytes of the journal that it holds.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len as u64).sum()
    }

    /// The segments that begin in it.
    pub(crate) fn begun(&self) -> impl Iterator<Item = u32> {
        let begins = |piece: &&Extent| piece.tag == TAG_WRITE && piece.offset == 0;
        self.pieces.iter().filter(begins).map(|piece| piece.segment)
    }
}

/// Location of a piece in its message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    shard: ShardId,
    tag: u8,
    segment: u32,
    offset: u32,
    at: usize,
    len: usize,
}

impl Extent {
    fn of<'a>(&self, body: &'a [u8]) -> Piece<'a> {
        let Self { tag, segment, offset, .. } = *self;
        let bytes = &body[self.at..self.at + self.len];
        match tag {
            TAG_MANIFEST => Piece::Manifest { offset, bytes },
            _ => Piece::Write { segment, offset, bytes },
        }
    }
}

/// The content of a message, without the bytes of its pieces.
pub(crate) enum Parsed<'a> {
    Claim { node: &'a str },
    Pieces(Vec<Extent>),
}

/// Why the bytes of a stream are no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    #[error("not a message of a log: wrong magic number or length")]
    Foreign,
    #[error("unknown version {0}: this program reads version {VERSION}; use a newer one")]
    Version(u8),
    #[error("version {0} is of a cluster with a stream for each shard: {CARRY_OVER}")]
    Older(u8),
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
    let (header, parsed) = parse(body)?;
    let content = match parsed {
        Parsed::Claim { node } => Content::Claim { node },
        Parsed::Pieces(found) => {
            Content::Pieces(found.iter().map(|piece| (piece.shard, piece.of(body))).collect())
        }
    };
    Ok(Message { header, content })
}

/// Reads a message, and leaves its bytes where they are.
pub(crate) fn parse(body: &[u8]) -> Result<(Header, Parsed<'_>), WireError> {
    parse_form(body, &FORM)
}

/// The same for a message of version 1, of the stream of this shard.
pub(crate) fn parse_old(body: &[u8], shard: ShardId) -> Result<(Header, Parsed<'_>), WireError> {
    parse_form(
        body,
        &Form { version: OLD_VERSION, header_bytes: OLD_HEADER_BYTES, shard: Some(shard) },
    )
}

/// How a version is laid out.
struct Form {
    version: u8,
    header_bytes: usize,
    /// Of all pieces; `None`: each names its own.
    shard: Option<ShardId>,
}

fn parse_form<'a>(body: &'a [u8], form: &Form) -> Result<(Header, Parsed<'a>), WireError> {
    if body.len() < form.header_bytes + CRC_BYTES || body[..2] != MAGIC {
        return Err(WireError::Foreign);
    }
    match body[2] {
        version if version == form.version => {}
        version if version < form.version => return Err(WireError::Older(version)),
        version => return Err(WireError::Version(version)),
    }
    let (content, crc) = body.split_at(body.len() - CRC_BYTES);
    if crc != checksum(content).to_le_bytes() {
        return Err(WireError::Checksum);
    }
    let (head, content) = content.split_at(form.header_bytes);
    let header = Header {
        origin: Origin {
            cluster: array(&head[6..22]),
            epoch: u64::from_le_bytes(array(&head[22..30])),
            writer: u64::from_le_bytes(array(&head[30..38])),
        },
        number: u64::from_le_bytes(array(&head[38..46])),
        sent_at_ms: u64::from_le_bytes(array(&head[46..54])),
        cell: head.get(54..56).map_or(CELL, |cell| u16::from_le_bytes(array(cell))),
    };
    let count = u16::from_le_bytes(array(&head[4..6]));
    let parsed = match head[3] {
        KIND_CLAIM if count == 0 => {
            let node = std::str::from_utf8(content).map_err(|_| WireError::Content)?;
            Parsed::Claim { node }
        }
        KIND_PIECES => Parsed::Pieces(extents(content, count, form)?),
        _ => return Err(WireError::Content),
    };
    Ok((header, parsed))
}

fn extents(content: &[u8], count: u16, form: &Form) -> Result<Vec<Extent>, WireError> {
    let named_bytes = if form.shard.is_some() { 0 } else { SHARD_BYTES };
    let head_bytes = PIECE_BYTES - SHARD_BYTES + named_bytes;
    let mut found: Vec<Extent> = Vec::new();
    let mut rest = content;
    while !rest.is_empty() {
        let (head, behind) = rest.split_at_checked(head_bytes).ok_or(WireError::Content)?;
        let shard = form.shard.unwrap_or_else(|| ShardId::from_le_bytes(array(&head[1..3])));
        let numbers = &head[1 + named_bytes..];
        let number = |at: usize| u32::from_le_bytes(array(&numbers[at..at + 4]));
        let (tag, segment, offset, len) = (head[0], number(0), number(4), number(8));
        let (_, behind) = behind.split_at_checked(len as usize).ok_or(WireError::Content)?;
        offset.checked_add(len).ok_or(WireError::Content)?;
        let is_sound = tag == TAG_WRITE || tag == TAG_MANIFEST && segment == 0;
        if !is_sound || shard >= SHARDS_MAX || found.len() == usize::from(count) {
            return Err(WireError::Content);
        }
        let at = form.header_bytes + content.len() - rest.len() + head_bytes;
        found.push(Extent { shard, tag, segment, offset, at, len: len as usize });
        rest = behind;
    }
    match found.len() == usize::from(count) && !found.is_empty() {
        true => Ok(found),
        false => Err(WireError::Content),
    }
}

/// What a message holds of each shard.
pub(crate) fn portions(body: &Body, pieces: Vec<Extent>) -> Vec<Portion> {
    let mut portions: Vec<Portion> = Vec::new();
    for piece in pieces {
        let shard = piece.shard;
        match portions.iter_mut().find(|portion| portion.shard == shard) {
            Some(portion) => portion.pieces.push(piece),
            None => portions.push(Portion { shard, body: body.clone(), pieces: vec![piece] }),
        }
    }
    portions
}

/// A message in the making.
#[derive(Debug)]
pub(crate) struct Packet {
    body: Vec<u8>,
    pieces: Vec<Extent>,
    bytes_max: usize,
}

impl Packet {
    pub(crate) fn new(header: &Header, bytes_max: usize) -> Self {
        Self { body: begin(header, KIND_PIECES), pieces: Vec::new(), bytes_max }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds as much of a step of a shard as fits, from byte `from` on; says how much. 0: nothing
    /// fits.
    pub(crate) fn add(&mut self, shard: ShardId, step: &Step, from: usize) -> usize {
        let (tag, segment, offset, bytes) = match step {
            Step::Write { segment, offset, bytes } => (TAG_WRITE, *segment, *offset, bytes),
            Step::Manifest { offset, bytes } => (TAG_MANIFEST, 0, *offset, bytes),
            Step::Sync { .. } => return 0,
        };
        let left = self.bytes_max.saturating_sub(self.body.len() + PIECE_BYTES + CRC_BYTES);
        let wanted = bytes.len() - from;
        let len = wanted.min(left);
        // A manifest is short, and only whole is it of use. A write is not cut for a scrap.
        let least =
            if tag == TAG_MANIFEST { wanted } else { wanted.min(self.bytes_max / CUT_PART) };
        if self.pieces.len() == usize::from(u16::MAX) || len == 0 || len < least {
            return 0;
        }
        let offset = offset + from as u32;
        self.body.push(tag);
        self.body.extend_from_slice(&shard.to_le_bytes());
        for number in [segment, offset, len as u32] {
            self.body.extend_from_slice(&number.to_le_bytes());
        }
        let at = self.body.len();
        self.body.extend_from_slice(&bytes[from..from + len]);
        self.pieces.push(Extent { shard, tag, segment, offset, at, len });
        len
    }

    /// The message, and what it holds of each shard.
    pub(crate) fn finish(self) -> (Body, Vec<Portion>) {
        let body = Body::from(end(self.body, self.pieces.len() as u16));
        let portions = portions(&body, self.pieces);
        (body, portions)
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
    body.extend_from_slice(&header.cell.to_le_bytes());
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

/// The version of the format that this program writes, and the only one that nodes read.
pub const VERSION: u8 = 2;
/// The only cell of a cluster.
pub const CELL: u16 = 0;
const OLD_VERSION: u8 = 1;
const MAGIC: [u8; 2] = *b"QJ";
const KIND_CLAIM: u8 = 1;
const KIND_PIECES: u8 = 2;
const TAG_WRITE: u8 = 1;
const TAG_MANIFEST: u8 = 2;
const HEADER_BYTES: usize = 56;
const OLD_HEADER_BYTES: usize = 54;
const PIECE_BYTES: usize = 15;
const SHARD_BYTES: usize = size_of::<ShardId>();
const CRC_BYTES: usize = 4;
/// The rest of a message that is smaller than this part of it does not cut a write in two.
const CUT_PART: usize = 16;
const FORM: Form = Form { version: VERSION, header_bytes: HEADER_BYTES, shard: None };

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        let origin = Origin { cluster: *b"0123456789abcdef", epoch: 7, writer: 99 };
        Header { origin, number: 3, sent_at_ms: 1_700_000_000_000, cell: CELL }
    }

    fn write(segment: u32, offset: u32, bytes: &[u8]) -> Step {
        Step::Write { segment, offset, bytes: Arc::new(bytes.to_vec()) }
    }

    #[test]
    fn a_claim_survives_the_way_there_and_back() {
        let header = Header { cell: 5, ..header() };
        let body = claim(&header, "node-1");
        let read = decode(&body).unwrap();
        assert_eq!(read, Message { header, content: Content::Claim { node: "node-1" } });
    }

    #[test]
    fn pieces_survive_and_are_cut_where_the_message_is_full() {
        let mut packet = Packet::new(&header(), 200);
        assert_eq!(packet.add(3, &write(4, 100, &[1; 40]), 0), 40);
        let rest = packet.add(2, &write(4, 140, &[2; 200]), 0);
        assert!((1..200).contains(&rest));
        assert_eq!(packet.add(2, &write(4, 140, &[2; 200]), rest), 0);
        let (body, portions) = packet.finish();
        assert_eq!(body.len(), 200);
        let Content::Pieces(pieces) = decode(&body).unwrap().content else { panic!() };
        assert_eq!(pieces[0], (3, Piece::Write { segment: 4, offset: 100, bytes: &[1; 40] }));
        assert_eq!(pieces[1], (2, Piece::Write { segment: 4, offset: 140, bytes: &vec![2; rest] }));
        assert_eq!(portions.iter().map(|it| it.shard).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn a_message_holds_writes_of_several_shards_and_segments() {
        let mut packet = Packet::new(&header(), 64 << 10);
        let manifest = Step::Manifest { offset: 4096, bytes: Arc::new(vec![9; 112]) };
        packet.add(1, &write(4, 100, &[1; 40]), 0);
        packet.add(0, &write(9, 0, &[2; 50]), 0);
        packet.add(1, &write(5, 0, &[3; 60]), 0);
        packet.add(1, &manifest, 0);
        let (body, portions) = packet.finish();
        assert_eq!(Portion::all_of(&body).as_ref(), Ok(&portions), "as its writer knows it");
        let first: Vec<Piece<'_>> = portions[0].pieces().collect();
        let expected = [
            Piece::Write { segment: 4, offset: 100, bytes: &[1; 40] },
            Piece::Write { segment: 5, offset: 0, bytes: &[3; 60] },
            Piece::Manifest { offset: 4096, bytes: &[9; 112] },
        ];
        assert_eq!((portions[0].shard, &first[..]), (1, &expected[..]));
        assert_eq!(portions[0].begun().collect::<Vec<_>>(), [5]);
        assert_eq!((portions[1].shard, portions[1].bytes()), (0, 50));
        assert_eq!(portions[1].begun().collect::<Vec<_>>(), [9]);
    }

    #[test]
    fn a_write_is_not_cut_for_a_scrap() {
        let mut packet = Packet::new(&header(), 1600);
        assert_eq!(packet.add(0, &write(4, 0, &[1; 1440]), 0), 1440);
        assert_eq!(packet.add(1, &write(4, 0, &[1; 1440]), 0), 0, "70 bytes are left");
        assert_eq!(packet.add(1, &write(4, 0, &[1; 60]), 0), 60, "what fits whole is taken");
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

    /// A message as version 1 wrote it, byte by byte.
    const OLD: &str = "514a010201003031323334353637383961626364656607000000000000006300000000000000 \
        03000000000000000068e5cf8b010000010400000064000000050000000102030405";

    fn old_message() -> Vec<u8> {
        let hex: String = OLD.split_whitespace().collect();
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        let mut body: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
        let crc = checksum(&body);
        body.extend_from_slice(&crc.to_le_bytes());
        body
    }

    #[test]
    fn a_message_of_version_1_is_refused_but_by_those_who_ask_for_it() {
        let body = old_message();
        let error = decode(&body).unwrap_err();
        assert_eq!(error, WireError::Older(1));
        assert!(error.to_string().contains("quelea cluster import"), "{error}");
        let (read, Parsed::Pieces(extents)) = parse_old(&body, 6).unwrap() else { panic!() };
        assert_eq!(read, header());
        assert_eq!(extents.len(), 1);
        let piece = (extents[0].shard, extents[0].of(&body));
        assert_eq!(piece, (6, Piece::Write { segment: 4, offset: 100, bytes: &[1, 2, 3, 4, 5] }));
        let newer = claim(&header(), "n");
        assert!(matches!(parse_old(&newer, 6), Err(WireError::Version(VERSION))));
    }

    #[test]
    fn a_message_that_names_too_many_shards_or_pieces_is_refused() {
        let piece = |shard: ShardId| {
            let mut piece = vec![TAG_WRITE];
            piece.extend_from_slice(&shard.to_le_bytes());
            piece.extend_from_slice(&[0; PIECE_BYTES - 1 - SHARD_BYTES]);
            piece
        };
        for (shard, count, is_sound) in [(0, 2, true), (0, 1, false), (SHARDS_MAX, 2, false)] {
            let mut body = begin(&header(), KIND_PIECES);
            body.extend([piece(0), piece(shard)].concat());
            assert_eq!(decode(&end(body, count)).is_ok(), is_sound, "{shard}, {count}");
        }
    }

    proptest! {
        /// Whatever stands in the content, with a right checksum.
        #[test]
        fn no_content_makes_it_panic(content: Vec<u8>, kind in 0_u8..4, count: u16) {
            let mut body = begin(&header(), kind);
            body.extend_from_slice(&content);
            let body = Body::from(end(body, count));
            assert_eq!(decode(&body).is_ok(), Portion::all_of(&body).is_ok());
            let _ = decode(&content);
            // As version 1 wrote it.
            let mut old = old_message();
            old.truncate(OLD_HEADER_BYTES);
            old[3] = kind;
            old[4..6].copy_from_slice(&count.to_le_bytes());
            old.extend_from_slice(&content);
            let crc = checksum(&old);
            old.extend_from_slice(&crc.to_le_bytes());
            if let Ok((_, Parsed::Pieces(extents))) = parse_old(&Body::from(old), 0) {
                assert_eq!(extents.len(), usize::from(count));
            }
        }
    }
}
