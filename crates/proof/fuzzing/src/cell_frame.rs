//! What cells send one another: an input is a frame, and the bytes of a connection.

use std::borrow::Cow;

use broker::cells::frame::{Carried, Frame, PageEnd, Query};
use broker::cells::lane::{Fault, Lane, Packet};
use broker::cells::wire::{
    Envelope, Envelopes, LaneHello, Route, VERSION, decode, decode_owned, encode,
};
use broker::{Place, Scope};
use codec::{QoS, Reason};
use session::{Message, MessageParts, NEVER};
use topic::Cursor;
use topic::interest::{Change, Lanes, Snapshot};

pub fn cell_frame(input: &[u8]) {
    read_frame(input);
    read_connection(input);
    wrap(input);
}

fn read_frame(input: &[u8]) {
    let owned = decode_owned(input.to_vec(), PLACE, 0);
    let frame = match (decode(input, PLACE, 0), owned) {
        (Ok(frame), Ok(owned)) => {
            assert_eq!(written(&frame), written(&owned), "memory makes no difference");
            frame
        }
        (Err(error), owned) => return assert_eq!(owned.err(), Some(error)),
        (Ok(_), Err(error)) => panic!("{error}"),
    };
    let again = written(&frame);
    if !has_publisher(&frame) {
        assert_eq!(again, input, "a frame has one encoding");
    }
    assert!(decode(&again, PLACE, 0).is_ok(), "it can be sent on");
    for at in (0..input.len()).take(PARTS_MAX) {
        assert!(decode(&input[..at], PLACE, 0).is_err(), "a part of a frame is none");
    }
}

fn written(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, 0, &mut bytes);
    bytes
}

/// The decoder changes keys of publishers.
fn has_publisher(frame: &Frame) -> bool {
    match frame {
        Frame::Publish(it) | Frame::Retain(it) => it.message.publisher() != 0,
        Frame::Page { messages, .. } => messages.iter().any(|it| it.publisher() != 0),
        _ => false,
    }
}

/// Packets are the same however the bytes are cut, and a lane takes whatever they say.
fn read_connection(input: &[u8]) {
    let whole = packets_of(input, input.len());
    let piece = usize::from(input.first().copied().unwrap_or_default() % 9);
    assert_eq!(packets_of(input, piece), whole, "pieces make no difference");
    let mut lane = Lane::new();
    let (mut pushed, mut delivered) = (0, 0);
    for envelope in &whole.0 {
        read_hello(envelope);
        let _ = lane.reconnect(envelope.route.from_epoch);
        pushed += u64::from(lane.push(vec![1], 0).is_ok());
        while lane.next_packet(0).is_some() {}
        match lane.on_packet(envelope.packet()) {
            Ok(frame) => delivered += u64::from(frame.is_some()),
            Err(Fault::NeverSent { received, sent }) => assert!(received > sent && sent <= pushed),
            Err(_) => {}
        }
        assert_eq!(lane.received(), delivered);
        assert!(lane.kept().0 as u64 <= pushed);
    }
}

/// A hello has one encoding.
fn read_hello(envelope: &Envelope<'_>) {
    let Ok(Some(hello)) = envelope.lane_hello() else { return };
    let again = Envelope::of_hello(envelope.version, envelope.route, hello, envelope.received);
    assert_eq!((again.number, &again.frame), (envelope.number, &envelope.frame));
}

/// All packets, and what ended the connection.
fn packets_of(input: &[u8], piece: usize) -> (Vec<Envelope<'_>>, Option<String>) {
    let (mut envelopes, mut found) = (Envelopes::default(), Vec::new());
    for mut piece in input.chunks(piece.max(1)) {
        loop {
            match envelopes.next(&mut piece) {
                Ok(Some(envelope)) => found.push(envelope),
                Ok(None) => break,
                Err(error) => return (found, Some(error.to_string())),
            }
        }
        assert!(piece.is_empty() && envelopes.gathered_bytes() <= input.len());
    }
    (found, None)
}

/// A frame comes out of a packet as it was put in.
fn wrap(frame: &[u8]) {
    if frame.is_empty() {
        return;
    }
    let bytes = packet(frame);
    let (found, error) = packets_of(&bytes, bytes.len() / 2 + 1);
    assert_eq!((found.len(), error), (1, None));
    assert_eq!(found[0].frame, Cow::Borrowed(frame));
}

const ROUTE: Route = Route { from_cell: 1, to_cell: 2, from_epoch: 0, to_epoch: 300, lane: 1 };

fn hello() -> Vec<u8> {
    let mut bytes = Vec::new();
    let hello = LaneHello { attempt: 1, seen: 300 };
    Envelope::of_hello(VERSION, ROUTE, hello, 7).encode(&mut bytes);
    bytes
}

fn packet(frame: &[u8]) -> Vec<u8> {
    let packet = Packet { number: 1, received: 0, age_ms: 9, frame };
    let mut bytes = Vec::new();
    Envelope::new(VERSION, ROUTE, packet).encode(&mut bytes);
    bytes
}

/// Each kind of frame, alone and in a packet.
pub fn seeds() -> Vec<Vec<u8>> {
    let frames: Vec<_> = seed_frames().iter().map(written).collect();
    let packets: Vec<_> = frames.iter().map(|frame| packet(frame)).collect();
    let connection = [&hello()[..], &packet(&[8, 1]), &packets[0], &packets[1]].concat();
    frames.into_iter().chain(packets).chain([connection]).collect()
}

fn seed_frames() -> Vec<Frame> {
    let parts = MessageParts {
        topic: "a/ä",
        properties: &[1, 1],
        payload: b"payload",
        qos: QoS::ExactlyOnce,
        retain: true,
        expires_at_ms: 3_600_000,
        publisher: 0,
        author: 0x0123_4567_89ab_cdef,
        level: 2,
        scope: 300,
    };
    let known = Message::new(&MessageParts { publisher: 3 << 48 | 70_000, ..parts });
    let plain = MessageParts { expires_at_ms: NEVER, author: 0, scope: 0, ..parts };
    let (all, plain) = (Message::new(&parts), Message::new(&plain));
    let owner = || "user anna".into();
    let carried = |message: &Message, serial| {
        let message = message.clone();
        Box::new(Carried { number: 300, from: 1, serial, is_will: true, owner: owner(), message })
    };
    let after = PageEnd { shard: 2, after: Some(Cursor::at("a/ä".as_bytes())) };
    let query = |after| {
        let (scope, filter) = (Scope::new(1), "a/+/#".into());
        Frame::Query(Box::new(Query { number: 5, scope, filter, after }))
    };
    let summary = |lanes| {
        let snapshot = Snapshot::new(7, 6, lanes).expect("a sound one");
        Frame::Summary { ask: 1, snapshot: Box::new(snapshot) }
    };
    let changes = vec![Change::Depth(2), Change::Set { lane: 9_000 }, Change::Clear { lane: 1 }];
    vec![
        Frame::Publish(carried(&all, 0)),
        Frame::Publish(carried(&known, 7 << 40)),
        Frame::Retain(carried(&plain, 9)),
        Frame::Answer { number: 300, reason: Reason::QUOTA_EXCEEDED },
        query(None),
        query(Some(after.clone())),
        Frame::Page { number: 5, messages: vec![all, plain], next: Some(after) },
        Frame::Page { number: 5, messages: Vec::new(), next: None },
        Frame::AskGrant { number: 6, from: 3 },
        Frame::Granted { number: 6 },
        Frame::AskSummary { ask: 1 },
        summary(Lanes::List(vec![0, 1, 300, 70_000])),
        summary(Lanes::Bitmap(vec![1, 1 << 63])),
        Frame::Changes { through: 300, changes },
        Frame::Counts { through: 300 },
        Frame::Ask { number: 300, from: 63 },
        Frame::Passed { number: 7, to: 3, by: 63 },
    ]
}

const PLACE: Place = 5;

/// Parts of an input that are tried.
const PARTS_MAX: usize = 200;
