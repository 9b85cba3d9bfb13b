//! The wire form of frames between cells.
//!
//! Connections carry packets ([`Envelope`]). The frame in a packet is:
//!
//! ```text
//! kind u8      1 Publish, 2 Retain: number, from, serial, owner, message
//!              3 Answer: number, reason u8
//!              4 Query: number, scope, filter, end
//!              5 Page: number, end, count, messages
//!              6 AskGrant: number, from      7 Granted: number
//!              8 AskSummary: ask            11 Counts: through
//!              9 Summary: ask, number, depths, 0 u8, count, gaps
//!                                            | 1 u8, bitmap
//!              10 Changes: through, count, changes
//!              12 Ask: number, from         13 Passed: number, to, by
//! end          0 | 1, shard | 2, shard, cursor
//! message      flags u8, level u8, scope?, left_ms?, publisher?, author?,
//!              topic, properties, payload
//! publisher    shard, generation, slot
//! gap          the lane, less the one before and 1
//! bitmap       words of 8 bytes, little-endian, as bytes
//! change       4 * lane to set it, + 1 to clear it, or 4 * depth + 2
//! ```
//!
//! Numbers are varints. Only the author, which is a hash, is 8 bytes, little-endian. Texts and
//! bytes follow their length. A field with a `?` is present if a flag says so. `Flags` lists the
//! flags; the highest bit of the level is the flag of the scope. `left_ms` is the time until the
//! message expires.
//!
//! A frame has exactly one encoding: padded numbers, fields that are present and zero, unknown
//! kinds and flags, and trailing bytes are refused. The peer is a node of the same cluster and is
//! trusted with its clients' data. Even so, no input may cause a panic or allocate more than a
//! small multiple of its length.

mod envelope;

use std::sync::Arc;

use codec::{QoS, Reason};
use session::{Message, MessageParts, NEVER};
use topic::interest::{Change, Lanes, Snapshot};
use topic::{Cursor, TopicLimits, check_filter, check_topic};

use super::frame::{Carried, Frame, PageEnd, Query, foreign_publisher};
use crate::words::homes::{PLACES_MAX, Place};
use crate::words::name::FRONT_BYTES_MAX;
use crate::words::wire::{Reader, Unreadable, put_bytes, put_fixed, put_number};
use crate::{Scope, SessionKey, ShardId};

/// For frames of other parts on the same connections ([`FRONT`]).
pub mod primitives {
    pub use crate::words::wire::{Reader, Unreadable, put_bytes, put_number};
}

pub use envelope::{Envelope, Envelopes, HEAD_BYTES_MAX, LaneHello, Route};

/// The version of packets and of the frames in them that this program writes.
pub const VERSION: u8 = 1;

/// The oldest version that this program reads.
pub const VERSION_MIN: u8 = 1;

/// In place of the sender's cell, in packets of relayed connections: a front is no cell. So many
/// cells there cannot be.
pub const FRONT: u16 = u16::MAX;

/// The longest frame: the largest MQTT packet, and what a frame adds to it. Policy: a connection
/// that announces a longer one is closed.
pub const FRAME_BYTES_MAX: usize = 257 * 1024 * 1024;

/// Messages of a page. Policy: the sender ends the page ([`fitting`]).
pub const PAGE_MESSAGES_MAX: usize = 256;

/// Bytes of a page with more than one message. Policy: as [`PAGE_MESSAGES_MAX`].
pub const PAGE_BYTES_MAX: usize = 1024 * 1024;

/// Changes in one frame. Policy: the sender sends several frames, or its summary.
pub const CHANGES_MAX: usize = 64 * 1024;

/// Bytes of an account's name: a username behind a prefix of the broker. Policy: refused.
pub const OWNER_BYTES_MAX: usize = u16::MAX as usize + 32;

/// Bytes of a cursor: a topic behind the prefix of its namespace. Policy: refused.
pub const CURSOR_BYTES_MAX: usize = u16::MAX as usize + FRONT_BYTES_MAX;

/// Why bytes are not a valid packet or frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("invalid data from another cell: {what} (byte {at})")]
pub struct WireError {
    pub what: &'static str,
    /// How far the bytes were read.
    pub at: usize,
}

/// Appends a frame. The time until a message expires counts from `now_ms`.
pub fn encode(frame: &Frame, now_ms: u64, bytes: &mut Vec<u8>) {
    match frame {
        Frame::Publish(carried) => put_carried(bytes, kind::PUBLISH, carried, now_ms),
        Frame::Retain(carried) => put_carried(bytes, kind::RETAIN, carried, now_ms),
        Frame::Answer { number, reason } => {
            put_numbered(bytes, kind::ANSWER, *number);
            bytes.push(reason.0);
        }
        Frame::Query(query) => put_query(bytes, query),
        Frame::Page { number, messages, next } => {
            debug_assert!(messages.len() <= PAGE_MESSAGES_MAX, "{} messages", messages.len());
            put_numbered(bytes, kind::PAGE, *number);
            put_end(bytes, next.as_ref());
            put_number(bytes, messages.len() as u64);
            messages.iter().for_each(|message| put_message(bytes, message, 0, now_ms));
        }
        Frame::AskGrant { number, from } => {
            put_numbered(bytes, kind::ASK_GRANT, *number);
            put_number(bytes, (*from).into());
        }
        Frame::Granted { number } => put_numbered(bytes, kind::GRANTED, *number),
        Frame::AskSummary { ask } => put_numbered(bytes, kind::ASK_SUMMARY, *ask),
        Frame::Summary { ask, snapshot } => put_summary(bytes, *ask, snapshot),
        Frame::Changes { through, changes } => {
            debug_assert!(changes.len() <= CHANGES_MAX, "{} changes", changes.len());
            put_numbered(bytes, kind::CHANGES, *through);
            put_number(bytes, changes.len() as u64);
            changes.iter().for_each(|change| put_number(bytes, number_of(*change)));
        }
        Frame::Counts { through } => put_numbered(bytes, kind::COUNTS, *through),
        Frame::Ask { number, from } => {
            put_numbered(bytes, kind::ASK, *number);
            put_number(bytes, (*from).into());
        }
        Frame::Passed { number, to, by } => {
            put_numbered(bytes, kind::PASSED, *number);
            put_number(bytes, (*to).into());
            put_number(bytes, (*by).into());
        }
    }
}

/// Reads a frame of the cell at `place`. `now_ms`: when it was encoded, on the reader's clock: now,
/// less the age that its packet states ([`super::lane::Packet::age_ms`]).
///
/// # Errors
///
/// The bytes are not a valid frame.
pub fn decode(bytes: &[u8], place: Place, now_ms: u64) -> Result<Frame, WireError> {
    Decoder { reader: Reader(bytes), place, now_ms, packet: None }.run()
}

/// Like [`decode`], but a large payload stays in the memory of its frame.
///
/// # Errors
///
/// As [`decode`].
pub fn decode_owned(bytes: Vec<u8>, place: Place, now_ms: u64) -> Result<Frame, WireError> {
    if bytes.len() < session::LARGE_BYTES_MIN {
        return decode(&bytes, place, now_ms);
    }
    let packet = Arc::new(bytes);
    Decoder { reader: Reader(&packet), place, now_ms, packet: Some(&packet) }.run()
}

/// How many of these messages fit into one page, from the first on. At least one, if there is any.
pub fn fitting(messages: &[Message]) -> usize {
    let mut bytes = 0;
    let fits = |message: &&Message| {
        let (topic, properties, payload) = message.parts_on_wire();
        bytes += MESSAGE_HEAD_BYTES_MAX + topic.len() + properties.len() + payload.len();
        bytes <= PAGE_BYTES_MAX
    };
    let count = messages.iter().take(PAGE_MESSAGES_MAX).take_while(fits).count();
    count.max(1).min(messages.len())
}

fn put_numbered(bytes: &mut Vec<u8>, kind: u8, number: u64) {
    bytes.push(kind);
    put_number(bytes, number);
}

fn put_carried(bytes: &mut Vec<u8>, kind: u8, carried: &Carried, now_ms: u64) {
    let Carried { number, from, serial, is_will, owner, message } = carried;
    debug_assert!(owner.len() <= OWNER_BYTES_MAX, "{} bytes of an owner", owner.len());
    // In one step, so that a large payload is copied once.
    let (topic, properties, payload) = message.parts_on_wire();
    let rest = CARRIED_HEAD_BYTES_MAX + MESSAGE_HEAD_BYTES_MAX + owner.len();
    bytes.reserve(rest + topic.len() + properties.len() + payload.len());
    put_numbered(bytes, kind, *number);
    put_number(bytes, (*from).into());
    put_number(bytes, *serial);
    put_bytes(bytes, owner.as_bytes());
    put_message(bytes, message, if *is_will { Flags::WILL } else { 0 }, now_ms);
}

fn put_query(bytes: &mut Vec<u8>, query: &Query) {
    put_numbered(bytes, kind::QUERY, query.number);
    put_number(bytes, query.scope.number().into());
    put_bytes(bytes, query.filter.as_bytes());
    put_end(bytes, query.after.as_ref());
}

fn put_end(bytes: &mut Vec<u8>, end: Option<&PageEnd>) {
    let Some(PageEnd { shard, after }) = end else { return bytes.push(0) };
    bytes.push(1 + u8::from(after.is_some()));
    put_number(bytes, (*shard).into());
    if let Some(cursor) = after {
        put_bytes(bytes, cursor.topic());
    }
}

fn put_summary(bytes: &mut Vec<u8>, ask: u64, snapshot: &Snapshot) {
    put_numbered(bytes, kind::SUMMARY, ask);
    put_number(bytes, snapshot.number());
    put_number(bytes, snapshot.depths().into());
    match snapshot.form() {
        Lanes::List(list) => {
            bytes.push(0);
            put_number(bytes, list.len() as u64);
            let mut next = 0;
            for lane in list {
                put_number(bytes, (lane - next).into());
                next = lane + 1;
            }
        }
        Lanes::Bitmap(words) => {
            bytes.push(1);
            put_number(bytes, size_of_val(&words[..]) as u64);
            words.iter().for_each(|word| put_fixed(bytes, *word));
        }
    }
}

/// A change in one number: its kind is in the two lowest bits.
fn number_of(change: Change) -> u64 {
    match change {
        Change::Set { lane } => u64::from(lane) << 2,
        Change::Clear { lane } => u64::from(lane) << 2 | 1,
        Change::Depth(depth) => u64::from(depth) << 2 | 2,
    }
}

fn change_of(number: u64) -> Result<Change, Unreadable> {
    let lane =
        u32::try_from(number >> 2).map_err(|_| Unreadable("number of a bit exceeds 32 bits"))?;
    match number & 3 {
        0 => Ok(Change::Set { lane }),
        1 => Ok(Change::Clear { lane }),
        2 => u8::try_from(lane).map(Change::Depth).map_err(|_| Unreadable("depth is above 255")),
        _ => Err(Unreadable("unknown kind of change")),
    }
}

/// `will`: that flag, or none.
fn put_message(bytes: &mut Vec<u8>, message: &Message, will: u8, now_ms: u64) {
    let (topic, properties, payload) = message.parts_on_wire();
    let publisher = SessionKey::from_u64(message.publisher());
    let (author, scope, expires_at_ms) =
        (message.author(), message.scope(), message.expires_at_ms());
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = message.qos() as u8
        | flag(message.retain(), Flags::RETAIN)
        | flag(expires_at_ms != NEVER, Flags::EXPIRES)
        | flag(publisher != SessionKey::NOBODY, Flags::PUBLISHER)
        | flag(author != 0, Flags::AUTHOR)
        | will;
    bytes.push(flags);
    bytes.push(message.level() | flag(scope != 0, LEVEL_WITH_SCOPE));
    if scope != 0 {
        put_number(bytes, scope.into());
    }
    if expires_at_ms != NEVER {
        put_number(bytes, expires_at_ms.saturating_sub(now_ms));
    }
    if publisher != SessionKey::NOBODY {
        put_number(bytes, publisher.shard().into());
        put_number(bytes, publisher.generation().into());
        put_number(bytes, publisher.slot().into());
    }
    if author != 0 {
        put_fixed(bytes, author);
    }
    put_bytes(bytes, &topic[2..]);
    put_bytes(bytes, properties);
    // The last field, so that it can stay in the memory of its frame.
    put_bytes(bytes, payload);
}

/// Reads a frame from its first byte to its last.
struct Decoder<'a> {
    reader: Reader<'a>,
    place: Place,
    now_ms: u64,
    /// The same bytes, if a message may share their memory.
    packet: Option<&'a Arc<Vec<u8>>>,
}

impl Decoder<'_> {
    fn run(mut self) -> Result<Frame, WireError> {
        let bytes = self.reader.left();
        let frame = self.frame().and_then(|frame| self.reader.end(frame));
        let at = bytes - self.reader.left();
        frame.map_err(|Unreadable(what)| WireError { what, at })
    }

    fn frame(&mut self) -> Result<Frame, Unreadable> {
        Ok(match self.reader.byte()? {
            kind::PUBLISH => Frame::Publish(Box::new(self.carried()?)),
            kind::RETAIN => Frame::Retain(Box::new(self.carried()?)),
            kind::ANSWER => {
                let (number, reason) = (self.reader.number()?, Reason(self.reader.byte()?));
                Frame::Answer { number, reason }
            }
            kind::QUERY => Frame::Query(Box::new(self.query()?)),
            kind::PAGE => self.page()?,
            kind::ASK_GRANT => {
                Frame::AskGrant { number: self.reader.number()?, from: self.shard()? }
            }
            kind::GRANTED => Frame::Granted { number: self.reader.number()? },
            kind::ASK_SUMMARY => Frame::AskSummary { ask: self.reader.number()? },
            kind::SUMMARY => self.summary()?,
            kind::CHANGES => self.changes()?,
            kind::COUNTS => Frame::Counts { through: self.reader.number()? },
            kind::ASK => Frame::Ask { number: self.reader.number()?, from: self.shard()? },
            kind::PASSED => {
                let (number, to) = (self.reader.number()?, self.shard()?);
                Frame::Passed { number, to, by: self.shard()? }
            }
            _ => return Err(Unreadable("unknown kind of frame")),
        })
    }

    fn carried(&mut self) -> Result<Carried, Unreadable> {
        let number = self.reader.number()?;
        let from = self.shard()?;
        let serial = self.reader.number()?;
        let owner = self.reader.text()?;
        if owner.len() > OWNER_BYTES_MAX {
            return Err(Unreadable("owner is longer than 65,567 bytes"));
        }
        let (message, flags) = self.message(Flags::WILL)?;
        let is_will = flags & Flags::WILL != 0;
        Ok(Carried { number, from, serial, is_will, owner: owner.into(), message })
    }

    fn query(&mut self) -> Result<Query, Unreadable> {
        let number = self.reader.number()?;
        let scope = Scope::new(self.reader.number_u16()?);
        let filter = self.reader.text()?;
        check_filter(filter, &TEXTS)
            .map_err(|_| Unreadable("filter is not a valid topic filter"))?;
        Ok(Query { number, scope, filter: filter.into(), after: self.end()? })
    }

    fn page(&mut self) -> Result<Frame, Unreadable> {
        let (number, next) = (self.reader.number()?, self.end()?);
        let count = self.reader.number()?;
        if count > PAGE_MESSAGES_MAX as u64 {
            return Err(Unreadable("page has more than 256 messages"));
        }
        // Grows with the messages that are there, whatever number is announced.
        let messages = (0..count).map(|_| Ok(self.message(0)?.0)).collect::<Result<_, _>>()?;
        Ok(Frame::Page { number, messages, next })
    }

    fn end(&mut self) -> Result<Option<PageEnd>, Unreadable> {
        let form = self.reader.byte()?;
        if form == 0 {
            return Ok(None);
        }
        let shard = self.shard()?;
        let after = match form {
            1 => None,
            2 => Some(self.reader.bytes()?),
            _ => return Err(Unreadable("unknown form of a page's end")),
        };
        if after.is_some_and(|cursor| cursor.len() > CURSOR_BYTES_MAX) {
            return Err(Unreadable("cursor is too long"));
        }
        Ok(Some(PageEnd { shard, after: after.map(Cursor::at) }))
    }

    fn summary(&mut self) -> Result<Frame, Unreadable> {
        let (ask, number) = (self.reader.number()?, self.reader.number()?);
        let depths = self.reader.number_u32()?;
        let lanes = match self.reader.byte()? {
            0 => Lanes::List(self.lanes()?),
            1 => Lanes::Bitmap(self.bitmap()?),
            _ => return Err(Unreadable("unknown form of a summary's bits")),
        };
        let snapshot =
            Snapshot::new(number, depths, lanes).map_err(|_| Unreadable(SUMMARY_TOO_LARGE))?;
        Ok(Frame::Summary { ask, snapshot: Box::new(snapshot) })
    }

    /// Each as its distance from the one before.
    fn lanes(&mut self) -> Result<Vec<u32>, Unreadable> {
        let mut next = 0_u32;
        let mut list = Vec::new();
        for _ in 0..self.reader.number()? {
            let lane = next.checked_add(self.reader.number_u32()?);
            let lane = lane.ok_or(Unreadable("number of a bit exceeds 32 bits"))?;
            list.push(lane);
            next = lane.saturating_add(1);
        }
        Ok(list)
    }

    fn bitmap(&mut self) -> Result<Vec<u64>, Unreadable> {
        let (words, rest) = self.reader.bytes()?.as_chunks();
        if rest.is_empty() {
            Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
        } else {
            Err(Unreadable("bytes of a bitmap are not a multiple of 8"))
        }
    }

    fn changes(&mut self) -> Result<Frame, Unreadable> {
        let (through, count) = (self.reader.number()?, self.reader.number()?);
        if count > CHANGES_MAX as u64 {
            return Err(Unreadable("more than 65,536 changes"));
        }
        let changes = (0..count).map(|_| change_of(self.reader.number()?));
        Ok(Frame::Changes { through, changes: changes.collect::<Result<_, _>>()? })
    }

    /// A shard of the sender.
    fn shard(&mut self) -> Result<ShardId, Unreadable> {
        let shard = self.reader.number_u16()?;
        if shard < PLACES_MAX { Ok(shard) } else { Err(Unreadable("shard number is not below 64")) }
    }

    /// A message, and its flags, of which `extra` are allowed besides those of any message.
    fn message(&mut self, extra: u8) -> Result<(Message, u8), Unreadable> {
        let flags = self.reader.byte()?;
        if flags & !(Flags::OF_ALL | extra) != 0 {
            return Err(Unreadable("unknown flag of a message"));
        }
        let qos =
            QoS::from_bits(flags & Flags::QOS).ok_or(Unreadable("QoS is 3; must be 0, 1 or 2"))?;
        let level = self.reader.byte()?;
        let scope = match level & LEVEL_WITH_SCOPE {
            0 => 0,
            _ => self.reader.number_u16().and_then(not_zero)?,
        };
        let expires_at_ms = match flags & Flags::EXPIRES {
            0 => NEVER,
            _ => self.expiry()?,
        };
        let publisher = match flags & Flags::PUBLISHER {
            0 => SessionKey::NOBODY.as_u64(),
            _ => self.publisher()?,
        };
        let author = match flags & Flags::AUTHOR {
            0 => 0,
            _ => self.reader.fixed().and_then(not_zero)?,
        };
        let topic = self.reader.text()?;
        check_topic(topic, &TEXTS).map_err(|_| Unreadable("topic is not a valid topic name"))?;
        let parts = MessageParts {
            topic,
            properties: self.reader.bytes()?,
            payload: self.reader.bytes()?,
            qos,
            retain: flags & Flags::RETAIN != 0,
            expires_at_ms,
            publisher,
            author,
            level: level & !LEVEL_WITH_SCOPE,
            scope,
        };
        let message = match self.packet.filter(|_| self.reader.is_empty()) {
            Some(packet) => Message::of_packet(&parts, packet),
            None => Message::new(&parts),
        };
        Ok((message, flags))
    }

    fn expiry(&mut self) -> Result<u64, Unreadable> {
        match self.reader.number()? {
            NEVER => Err(Unreadable("expiry is never; the field must be absent")),
            // A message with an expiry keeps one.
            left_ms => Ok(self.now_ms.saturating_add(left_ms).min(NEVER - 1)),
        }
    }

    fn publisher(&mut self) -> Result<u64, Unreadable> {
        let (shard, generation) = (self.reader.number_u16()?, self.reader.number_u16()?);
        let key = SessionKey::new(shard, generation, self.reader.number_u32()?);
        if key == SessionKey::NOBODY {
            return Err(ZERO);
        }
        Ok(foreign_publisher(self.place, key.as_u64()))
    }
}

fn not_zero<T: Default + PartialEq>(value: T) -> Result<T, Unreadable> {
    if value == T::default() { Err(ZERO) } else { Ok(value) }
}

/// Kinds of frames. None is ever given a second meaning.
mod kind {
    pub(super) const PUBLISH: u8 = 1;
    pub(super) const RETAIN: u8 = 2;
    pub(super) const ANSWER: u8 = 3;
    pub(super) const QUERY: u8 = 4;
    pub(super) const PAGE: u8 = 5;
    pub(super) const ASK_GRANT: u8 = 6;
    pub(super) const GRANTED: u8 = 7;
    pub(super) const ASK_SUMMARY: u8 = 8;
    pub(super) const SUMMARY: u8 = 9;
    pub(super) const CHANGES: u8 = 10;
    pub(super) const COUNTS: u8 = 11;
    pub(super) const ASK: u8 = 12;
    pub(super) const PASSED: u8 = 13;
}

/// Bits of a message's first byte. The highest bit is unused.
struct Flags;

impl Flags {
    const QOS: u8 = 0b11;
    const RETAIN: u8 = 1 << 2;
    const EXPIRES: u8 = 1 << 3;
    const PUBLISHER: u8 = 1 << 4;
    const AUTHOR: u8 = 1 << 5;
    const OF_ALL: u8 = Self::QOS | Self::RETAIN | Self::EXPIRES | Self::PUBLISHER | Self::AUTHOR;
    /// A will. Refused in messages of a page.
    const WILL: u8 = 1 << 6;
}

/// A level is below 128.
const LEVEL_WITH_SCOPE: u8 = 1 << 7;

/// Kind, number, shard, serial, and the length of the owner.
const CARRIED_HEAD_BYTES_MAX: usize = 1 + NUMBER_BYTES_MAX + 3 + NUMBER_BYTES_MAX + 3;

/// All of a message but its topic, properties and payload.
const MESSAGE_HEAD_BYTES_MAX: usize = 2 + 3 + NUMBER_BYTES_MAX + (3 + 3 + 5) + 8 + 3 + 5 + 5;

const NUMBER_BYTES_MAX: usize = 10;

/// The sender has applied its own limits.
const TEXTS: TopicLimits = TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };

const SUMMARY_TOO_LARGE: &str = "summary has depth 0, or more bits than the largest table";

const ZERO: Unreadable = Unreadable("optional field is present and zero");

const _: () = {
    let mqtt = 268_435_455 + 5;
    let besides = CARRIED_HEAD_BYTES_MAX + OWNER_BYTES_MAX + MESSAGE_HEAD_BYTES_MAX;
    assert!(mqtt + besides <= FRAME_BYTES_MAX, "the largest packet of MQTT fits");
};

#[cfg(test)]
mod tests {
    use session::LARGE_BYTES_MIN;

    use super::*;

    const PLACE: Place = 9;
    const NOW_MS: u64 = 1_000_000;

    fn message() -> MessageParts<'static> {
        MessageParts {
            topic: "a/b",
            properties: &[],
            payload: b"hi",
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: NEVER,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        }
    }

    /// With all that a message can have.
    fn full() -> MessageParts<'static> {
        MessageParts {
            properties: &[1, 1],
            qos: QoS::ExactlyOnce,
            retain: true,
            expires_at_ms: NOW_MS + 300,
            publisher: SessionKey::new(3, 4, 500).as_u64(),
            author: 0x0102_0304_0506_0708,
            level: 5,
            scope: 6,
            ..message()
        }
    }

    fn carried(owner: &str, parts: &MessageParts<'_>) -> Box<Carried> {
        let message = Message::new(parts);
        Box::new(Carried {
            number: 7,
            from: 2,
            serial: 0,
            is_will: false,
            owner: owner.into(),
            message,
        })
    }

    fn encoded(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(frame, NOW_MS, &mut bytes);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Frame, WireError> {
        decode(bytes, PLACE, NOW_MS)
    }

    fn refused(bytes: &[u8]) -> WireError {
        read(bytes).expect_err("it is not a frame")
    }

    const FULL: &[u8] = &[
        0x3e, 0x85, 6, 0xac, 0x02, // QoS 2, retain, all fields; level 5, scope 6; 300 ms
        3, 4, 0xf4, 0x03, // shard 3, generation 4, slot 500
        8, 7, 6, 5, 4, 3, 2, 1, // author
        3, b'a', b'/', b'b', 2, 1, 1, 2, b'h', b'i',
    ];

    /// Bytes that another version reads or writes. They never change; a new layout is a new kind or
    /// a new version.
    fn golden() -> Vec<(Frame, Vec<u8>)> {
        let all = Carried { serial: 300, is_will: true, ..*carried("user u", &full()) };
        let of_will = [&[2, 7, 2, 0xac, 2, 6], &b"user u"[..], &[0x7e], &FULL[1..]].concat();
        let shard = PageEnd { shard: 1, after: None };
        let after = PageEnd { shard: 63, after: Some(Cursor::at(b"$\0x")) };
        let query = |after| {
            let (scope, filter) = (Scope::new(300), "a/#".into());
            Frame::Query(Box::new(Query { number: 9, scope, filter, after }))
        };
        let page = |messages: &[MessageParts<'_>], next| {
            let messages = messages.iter().map(Message::new).collect();
            Frame::Page { number: 300, messages, next }
        };
        let summary = |depths, lanes| {
            let snapshot = Snapshot::new(300, depths, lanes).expect("a sound one");
            Frame::Summary { ask: 4, snapshot: Box::new(snapshot) }
        };
        let changes =
            vec![Change::Depth(3), Change::Set { lane: 300 }, Change::Clear { lane: 2_097_153 }];
        vec![
            (
                Frame::Publish(carried("", &message())),
                vec![1, 7, 2, 0, 0, 0, 0, 3, b'a', b'/', b'b', 0, 2, b'h', b'i'],
            ),
            (Frame::Retain(Box::new(all)), of_will),
            (Frame::Answer { number: 128, reason: Reason(0x97) }, vec![3, 0x80, 1, 0x97]),
            (query(None), vec![4, 9, 0xac, 2, 3, b'a', b'/', b'#', 0]),
            (query(Some(shard.clone())), vec![4, 9, 0xac, 2, 3, b'a', b'/', b'#', 1, 1]),
            (page(&[], Some(after)), vec![5, 0xac, 2, 2, 63, 3, b'$', 0, b'x', 0]),
            (page(&[], Some(shard)), vec![5, 0xac, 2, 1, 1, 0]),
            (
                page(&[message(), full()], None),
                [&[5, 0xac, 2, 0, 2, 0, 0, 3], &b"a/b\0\x02hi"[..], FULL].concat(),
            ),
            (Frame::AskGrant { number: 1, from: 63 }, vec![6, 1, 63]),
            (Frame::Granted { number: u64::MAX }, [&[7][..], &[0xff; 9], &[1]].concat()),
            (Frame::AskSummary { ask: 3 }, vec![8, 3]),
            (
                summary(1 << 9 | 2, Lanes::List(vec![0, 5, 300])),
                vec![9, 4, 0xac, 2, 0x82, 4, 0, 3, 0, 4, 0xa6, 2],
            ),
            (
                summary(0, Lanes::Bitmap(vec![0x0102_0304_0506_0708, 1])),
                vec![9, 4, 0xac, 2, 0, 1, 16, 8, 7, 6, 5, 4, 3, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0],
            ),
            (
                Frame::Changes { through: 300, changes },
                vec![10, 0xac, 2, 3, 14, 0xb0, 9, 0x85, 0x80, 0x80, 4],
            ),
            (Frame::Counts { through: 0 }, vec![11, 0]),
            (Frame::Ask { number: 300, from: 63 }, vec![12, 0xac, 2, 63]),
            (Frame::Passed { number: 1, to: 63, by: 2 }, vec![13, 1, 63, 2]),
        ]
    }

    /// The same as `decode` gives it.
    fn arrived(frame: Frame) -> Frame {
        let of = |message: Message| {
            let (_, properties, payload) = message.parts_on_wire();
            Message::new(&MessageParts {
                topic: message.topic(),
                properties,
                payload,
                qos: message.qos(),
                retain: message.retain(),
                expires_at_ms: message.expires_at_ms(),
                publisher: foreign_publisher(PLACE, message.publisher()),
                author: message.author(),
                level: message.level(),
                scope: message.scope(),
            })
        };
        let of_carried =
            |it: Box<Carried>| Box::new(Carried { message: of(it.message.clone()), ..*it });
        match frame {
            Frame::Publish(it) => Frame::Publish(of_carried(it)),
            Frame::Retain(it) => Frame::Retain(of_carried(it)),
            Frame::Page { number, messages, next } => {
                Frame::Page { number, messages: messages.into_iter().map(of).collect(), next }
            }
            other => other,
        }
    }

    #[test]
    fn each_kind_of_frame_has_its_bytes() {
        let golden = golden();
        for (frame, bytes) in golden {
            assert_eq!(encoded(&frame), bytes, "{frame:?}");
            let again = read(&bytes).expect("it is a frame");
            assert_eq!(format!("{again:?}"), format!("{:?}", arrived(frame)));
        }
    }

    #[test]
    fn no_part_of_a_frame_is_one_and_none_has_bytes_behind_it() {
        for (frame, bytes) in golden() {
            for at in 0..bytes.len() {
                assert_eq!(refused(&bytes[..at]).what, "it ends early", "{frame:?} {at}");
            }
            let refused = refused(&[&bytes[..], &[0]].concat());
            assert_eq!(refused.what, "there are bytes behind the end");
            assert_eq!(refused.at, bytes.len());
        }
    }

    #[test]
    fn a_small_message_has_few_bytes_besides_its_own() {
        let topic = "twenty/bytes/long/ab";
        let publisher = SessionKey::new(3, 2, 100_000).as_u64();
        let parts = MessageParts {
            topic,
            payload: &[7; 64],
            qos: QoS::AtLeastOnce,
            publisher,
            author: 0xffee_ddcc_bbaa_9988,
            level: 2,
            ..message()
        };
        let frame = Carried { number: 10_000_000, ..*carried("user u", &parts) };
        let bytes = encoded(&Frame::Publish(Box::new(frame)));
        assert_eq!(bytes.len() - topic.len() - "user u".len() - 64, 26);
    }

    #[test]
    fn time_until_expiry_goes_with_a_message() {
        let arrives = |expires_at_ms, sent_ms, now_ms| {
            let parts = MessageParts { expires_at_ms, ..message() };
            let mut bytes = Vec::new();
            encode(&Frame::Publish(carried("", &parts)), sent_ms, &mut bytes);
            let Ok(Frame::Publish(carried)) = decode(&bytes, PLACE, now_ms) else { panic!() };
            carried.message.expires_at_ms()
        };
        assert_eq!(arrives(1_500, 1_000, 70_000), 70_500);
        assert_eq!(arrives(1_500, 1_501, 70_000), 70_000, "it has expired");
        assert_eq!(arrives(NEVER, 1_000, 70_000), NEVER);
        assert_eq!(
            arrives(NEVER - 1, 0, 70_000),
            NEVER - 1,
            "it does not become one of the others"
        );
    }

    /// A change at one byte of a frame, and what is wrong with it then.
    #[test]
    fn what_no_frame_has_is_refused() {
        let refused_at = |frame: &[u8], at: usize, byte| {
            let mut bytes = frame.to_vec();
            bytes[at] = byte;
            refused(&bytes).what
        };
        let publish = encoded(&Frame::Publish(carried("", &message())));
        assert_eq!(refused_at(&publish, 0, 0), "unknown kind of frame");
        assert_eq!(refused_at(&publish, 0, 14), "unknown kind of frame");
        assert_eq!(refused_at(&publish, 2, 64), "shard number is not below 64");
        assert_eq!(refused_at(&publish, 5, 3), "QoS is 3; must be 0, 1 or 2");
        assert_eq!(refused_at(&publish, 5, 0x80), "unknown flag of a message");
        assert_eq!(refused_at(&publish, 8, 0), "topic is not a valid topic name");
        assert_eq!(refused_at(&publish, 8, b'#'), "topic is not a valid topic name");
        assert_eq!(refused_at(&publish, 8, 0xff), "a text is not UTF-8");
        let zero = "optional field is present and zero";
        let all = encoded(&Frame::Publish(carried("", &full())));
        assert_eq!(refused_at(&all, 7, 0), zero, "scope");
        for fields in [10..14, 14..22] {
            let mut bytes = all.clone();
            let last = fields.end;
            bytes[fields].fill(0);
            // A number of two bytes is one of one byte then.
            if last == 14 {
                bytes.remove(13);
            }
            assert_eq!(refused(&bytes).what, zero);
        }
        let never = [&all[..8], &[0xff; 9], &[1], &all[10..]].concat();
        assert_eq!(refused(&never).what, "expiry is never; the field must be absent");
        let page = encoded(&golden()[7].0);
        assert_eq!(refused_at(&page, 5, 0x40), "unknown flag of a message", "no will is retained");
        assert_eq!(refused_at(&page, 3, 3), "unknown form of a page's end".to_owned());
        let query = encoded(&golden()[3].0);
        assert_eq!(refused_at(&query, 6, b'#'), "filter is not a valid topic filter");
        assert_eq!(refused(&[9, 1, 1, 1, 0, 0]).what, SUMMARY_TOO_LARGE, "depth 0");
        assert_eq!(refused(&[9, 1, 1, 0, 2]).what, "unknown form of a summary's bits");
        assert_eq!(
            refused(&[9, 1, 1, 0, 1, 1, 0]).what,
            "bytes of a bitmap are not a multiple of 8"
        );
        let beyond = [&[9, 1, 1, 0, 0, 2][..], &[0xff, 0xff, 0xff, 0xff, 0xf], &[0]].concat();
        assert_eq!(refused(&beyond).what, SUMMARY_TOO_LARGE);
        let beyond = [&beyond[..11], &[1]].concat();
        assert_eq!(refused(&beyond).what, "number of a bit exceeds 32 bits");
        assert_eq!(refused(&[10, 1, 1, 3]).what, "unknown kind of change");
        assert_eq!(refused(&[10, 1, 1, 0x82, 8]).what, "depth is above 255");
        assert_eq!(
            refused(&[10, 1, 1, 0x80, 0x80, 0x80, 0x80, 0x40]).what,
            "number of a bit exceeds 32 bits"
        );
    }

    #[test]
    fn lengths_above_the_limits_are_refused() {
        let owner = |bytes| encoded(&Frame::Publish(carried(&"o".repeat(bytes), &message())));
        assert!(read(&owner(OWNER_BYTES_MAX)).is_ok());
        let longer = {
            let mut bytes = vec![1, 7, 2, 0];
            put_bytes(&mut bytes, &[b'o'; OWNER_BYTES_MAX + 1]);
            bytes
        };
        assert_eq!(refused(&longer).what, "owner is longer than 65,567 bytes");
        let cursor = |len| {
            let mut bytes = vec![4, 9, 0, 1, b'#', 2, 1];
            put_bytes(&mut bytes, &vec![b'c'; len]);
            read(&bytes).map(|_| ()).map_err(|error| error.what)
        };
        assert_eq!(cursor(CURSOR_BYTES_MAX), Ok(()));
        assert_eq!(cursor(CURSOR_BYTES_MAX + 1), Err("cursor is too long"));
        let announced = |kind, count| {
            let mut bytes = vec![kind, 1];
            if kind == kind::PAGE {
                bytes.push(0);
            }
            put_number(&mut bytes, count);
            refused(&bytes).what
        };
        assert_eq!(announced(kind::PAGE, PAGE_MESSAGES_MAX as u64), "it ends early");
        assert_eq!(announced(kind::PAGE, 257), "page has more than 256 messages");
        assert_eq!(announced(kind::CHANGES, CHANGES_MAX as u64), "it ends early");
        assert_eq!(announced(kind::CHANGES, 65_537), "more than 65,536 changes");
        let topic = "t".repeat(65_536);
        let mut bytes = vec![1, 7, 2, 0, 0, 0, 0];
        put_bytes(&mut bytes, topic.as_bytes());
        assert_eq!(
            refused(&[&bytes[..], &[0, 0]].concat()).what,
            "topic is not a valid topic name"
        );
    }

    #[test]
    fn a_large_payload_stays_where_it_was_received() {
        for (len, is_shared) in [(LARGE_BYTES_MIN - 200, false), (LARGE_BYTES_MIN, true)] {
            let payload = vec![5; len];
            let parts = MessageParts { payload: &payload, ..message() };
            let page = Frame::Page { number: 1, messages: vec![Message::new(&parts)], next: None };
            for frame in [Frame::Retain(carried("user u", &parts)), page] {
                let bytes = encoded(&frame).into_boxed_slice().into_vec();
                let end = bytes.as_ptr_range().end;
                let message = match decode_owned(bytes, PLACE, NOW_MS).expect("it is a frame") {
                    Frame::Retain(carried) => carried.message,
                    Frame::Page { mut messages, .. } => messages.remove(0),
                    other => panic!("{other:?}"),
                };
                assert!(message.payload() == payload);
                assert_eq!(message.payload().as_ptr_range().end == end, is_shared);
            }
        }
        let bytes = [encoded(&Frame::Counts { through: 1 }), vec![0; LARGE_BYTES_MIN]].concat();
        assert_eq!(decode_owned(bytes.clone(), PLACE, NOW_MS).err(), read(&bytes).err());
    }

    #[test]
    fn a_page_ends_by_messages_and_bytes() {
        assert_eq!(fitting(&[]), 0);
        let of = |bytes| Message::new(&MessageParts { payload: &vec![0; bytes], ..message() });
        assert_eq!(fitting(&vec![of(1); 1000]), PAGE_MESSAGES_MAX);
        assert_eq!(fitting(&vec![of(PAGE_BYTES_MAX / 4); 9]), 3);
        assert_eq!(fitting(&vec![of(2 * PAGE_BYTES_MAX); 2]), 1, "one goes in any case");
    }
}
