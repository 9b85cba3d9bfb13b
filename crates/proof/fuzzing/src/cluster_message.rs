//! Messages of a cluster's two streams: an input is a message without its checksum, which is added,
//! so that changes come as far as the content.

use cluster::{
    BlockMessage, Body, CELL, Content, Cursor, Message, Piece, Sequencer, ShardId, Verdict,
    WireError, decode,
};

pub fn cluster_message(input: &[u8]) {
    let _ = decode(input);
    let mut body = input.to_vec();
    body.extend_from_slice(&storage::checksum(input).to_le_bytes());
    if let Ok(block) = BlockMessage::decode(&body) {
        let of = (block.cluster, block.epoch);
        let again = BlockMessage::all_of(of, block.file, block.offset, block.bytes);
        assert!(block.bytes.is_empty() || *again[0] == *body, "a message has one encoding");
    }
    let Ok(message) = decode(&body) else { return };
    assert_eq!(write(&message), body, "a message has one encoding");
    for at in 0..body.len() {
        assert!(decode(&body[..at]).is_err(), "a part of a message is none");
    }
    let mut turned = body.clone();
    turned[HEAD_BYTES - 1] ^= 1;
    assert_eq!(decode(&turned), Err(WireError::Checksum));
    judge(&message, &Body::from(&body[..]));
}

/// A stream that begins with it: it counts, and coming again it does not.
fn judge(message: &Message<'_>, body: &Body) {
    let origin = message.header.origin;
    let mut sequencer = Sequencer::new(origin.cluster, SHARDS);
    let verdict = sequencer.on_message(7, body);
    if message.header.cell != CELL {
        assert!(verdict.is_err(), "it is of another cell");
        return;
    }
    match &message.content {
        Content::Claim { .. } => assert_eq!(verdict, Ok(Verdict::Claim(origin))),
        Content::Pieces(pieces) if pieces.iter().any(|(shard, _)| *shard >= SHARDS) => {
            assert!(verdict.is_err(), "there is no such shard");
            return;
        }
        Content::Pieces(pieces) => {
            let Ok(Verdict::Counts(portions)) = verdict else { panic!("{verdict:?}") };
            let found = portions.iter().map(|portion| portion.pieces().count());
            assert_eq!(found.sum::<usize>(), pieces.len(), "each piece is of one shard");
        }
    }
    if message.header.number < u64::MAX {
        assert_eq!(sequencer.on_message(8, body), Ok(Verdict::Void), "it comes twice");
    }
    let foreign = origin.cluster.map(|byte| !byte);
    let mut other = Sequencer::resume(foreign, vec![Cursor::default()]);
    assert!(other.on_message(1, body).is_err());
}

/// The documented layout.
fn write(message: &Message<'_>) -> Vec<u8> {
    let (kind, count, content) = match &message.content {
        Content::Claim { node } => (1, 0, node.as_bytes().to_vec()),
        Content::Pieces(pieces) => {
            (2, pieces.len() as u16, pieces.iter().flat_map(write_piece).collect())
        }
    };
    let header = message.header;
    let mut out = b"QJ".to_vec();
    out.extend_from_slice(&[cluster::VERSION, kind]);
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&header.origin.cluster);
    let (epoch, writer) = (header.origin.epoch, header.origin.writer);
    for number in [epoch, writer, header.number, header.sent_at_ms] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&header.cell.to_le_bytes());
    out.extend_from_slice(&content);
    let crc = storage::checksum(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn write_piece((shard, piece): &(ShardId, Piece<'_>)) -> Vec<u8> {
    let (tag, segment, offset, bytes) = match *piece {
        Piece::Write { segment, offset, bytes } => (1, segment, offset, bytes),
        Piece::Manifest { offset, bytes } => (2, 0, offset, bytes),
    };
    let mut out = vec![tag];
    out.extend_from_slice(&shard.to_le_bytes());
    for number in [segment, offset, bytes.len() as u32] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

/// A claim, and pieces of two shards with a manifest between them.
pub fn seeds() -> Vec<Vec<u8>> {
    let origin = cluster::Origin { cluster: *b"0123456789abcdef", epoch: 7, writer: 99 };
    let header = cluster::Header { origin, number: 3, sent_at_ms: 1_700_000_000_000, cell: CELL };
    let pieces = vec![
        (0, Piece::Write { segment: 4, offset: 0, bytes: &[1; 40] }),
        (1, Piece::Manifest { offset: 4096, bytes: &[2; 112] }),
        (0, Piece::Write { segment: 5, offset: 4096, bytes: &[3; 9] }),
    ];
    let contents = [
        Content::Claim { node: "node-1" },
        Content::Claim { node: "" },
        Content::Pieces(pieces[..1].to_vec()),
        Content::Pieces(pieces),
    ];
    let seed = |content| {
        let mut body = write(&Message { header, content });
        body.truncate(body.len() - 4);
        body
    };
    let file = cluster::BlockFile { stream: 7, file: cluster::first_file_of(7) };
    let block = BlockMessage::all_of((origin.cluster, 7), file, 64, &[5; 30]).remove(0);
    contents.map(seed).into_iter().chain([block[..block.len() - 4].to_vec()]).collect()
}

/// Of the fields in front of the content.
const HEAD_BYTES: usize = 56;

/// Of the cluster.
const SHARDS: ShardId = 4;
