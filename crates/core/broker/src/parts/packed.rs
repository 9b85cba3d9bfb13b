//! A retained message as it lies in memory, a million times.

use codec::QoS;
use session::{Message, MessageParts};
use topic::Retainable;

use crate::words::ledger::NOBODY;
use crate::words::record_location::RecordLocation;
use crate::{Name, Scope};

/// A retained message, and where it stands in the journal.
///
/// A [`Message`] is made to be shared by many deliveries, with counters and all its fields in front
/// of its bytes, and two words for each holder. A retained message has one holder, who mostly
/// waits. So a small one is packed into a block of its own, and made a [`Message`] again whenever
/// somebody asks for it; one that costs more to copy than to hold stays as it is.
#[derive(Debug)]
pub(crate) struct Kept {
    body: Body,
    pub(crate) place: RecordLocation,
    /// The account that is charged, by its number.
    pub(crate) owner: u32,
}

/// Both variants fit into 16 bytes.
#[derive(Debug)]
enum Body {
    /// QoS and flags, level, author, then what the flags say: when it expires, and how many
    /// bytes of properties there are; the key of the topic with its length, properties, payload.
    Packed(Box<[u8]>),
    Shared(Box<Shared>),
}

#[derive(Debug)]
struct Shared {
    message: Message,
    /// Of the topic, if it is of another scope than the first; else it is the topic.
    key: Box<[u8]>,
}

impl Kept {
    pub(crate) fn new(message: &Message, place: RecordLocation) -> Self {
        let is_small = message.heap_bytes() <= PACKED_BYTES_MAX;
        let body = match is_small {
            true => Body::Packed(pack(message)),
            false => Body::Shared(Box::new(Shared::new(message))),
        };
        Self { body, place, owner: NOBODY }
    }

    pub(crate) fn message(&self) -> Message {
        match &self.body {
            Body::Packed(bytes) => Packed::read(bytes).message(),
            Body::Shared(shared) => shared.message.clone(),
        }
    }

    pub(crate) fn expires_at_ms(&self) -> u64 {
        match &self.body {
            Body::Packed(bytes) => Packed::read(bytes).expires_at_ms,
            Body::Shared(shared) => shared.message.expires_at_ms(),
        }
    }

    /// For the limit on bytes: what the message takes as a [`Message`], however it lies here.
    pub(crate) fn bytes(&self) -> i64 {
        let bytes = match &self.body {
            Body::Packed(bytes) => Packed::read(bytes).heap_bytes(),
            Body::Shared(shared) => shared.message.heap_bytes(),
        };
        bytes as i64
    }
}

impl Retainable for Kept {
    fn topic(&self) -> &[u8] {
        match &self.body {
            Body::Packed(bytes) => {
                let bytes = &bytes[topic_at(bytes[0])..];
                let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
                &bytes[2..2 + len]
            }
            Body::Shared(shared) if shared.key.is_empty() => shared.message.topic_bytes(),
            Body::Shared(shared) => &shared.key,
        }
    }
}

impl Shared {
    fn new(message: &Message) -> Self {
        let key = match Scope::of(message) {
            Scope::FIRST => Box::default(),
            _ => Name::topic_of(message).key().into(),
        };
        Self { message: message.clone(), key }
    }
}

/// A packed message, read.
struct Packed<'a> {
    first: u8,
    level: u8,
    author: u64,
    expires_at_ms: u64,
    properties_len: usize,
    /// The key of the topic with its length, properties, payload.
    rest: &'a [u8],
}

impl<'a> Packed<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let (first, level) = (bytes[0], bytes[1]);
        let (author, mut rest) = split_number(&bytes[2..]);
        let (mut expires_at_ms, mut properties_len) = (session::NEVER, 0);
        if first & EXPIRES != 0 {
            (expires_at_ms, rest) = split_number(rest);
        }
        if first & HAS_PROPERTIES != 0 {
            (properties_len, rest) = split_number(rest);
        }
        let properties_len = properties_len as usize;
        Self { first, level, author, expires_at_ms, properties_len, rest }
    }

    /// The name of the topic, and what stands behind its key.
    fn split_topic(&self) -> (Name<'a>, &'a [u8]) {
        let key_len = usize::from(u16::from_be_bytes([self.rest[0], self.rest[1]]));
        let (key, rest) = self.rest[2..].split_at(key_len);
        // It came from a `str`.
        (Name::of_key(std::str::from_utf8(key).unwrap_or_default()), rest)
    }

    /// What the message takes.
    fn heap_bytes(&self) -> usize {
        let (topic, rest) = self.split_topic();
        Message::OVERHEAD_BYTES + 2 + topic.text().len() + rest.len()
    }

    fn message(&self) -> Message {
        let (topic, rest) = self.split_topic();
        let (properties, payload) = rest.split_at(self.properties_len);
        Message::new(&MessageParts {
            topic: topic.text(),
            properties,
            payload,
            qos: match self.first & QOS {
                0 => QoS::AtMostOnce,
                1 => QoS::AtLeastOnce,
                _ => QoS::ExactlyOnce,
            },
            retain: self.first & RETAIN != 0,
            expires_at_ms: self.expires_at_ms,
            // Its session is nobody's business any more.
            publisher: 0,
            author: self.author,
            level: self.level,
            scope: topic.scope().number(),
        })
    }
}

fn pack(message: &Message) -> Box<[u8]> {
    let expires = message.expires_at_ms() != session::NEVER;
    let has_properties = !message.properties().is_empty();
    let flags = [(EXPIRES, expires), (HAS_PROPERTIES, has_properties), (RETAIN, message.retain())];
    let flags = flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).sum::<u8>();
    let first = message.qos() as u8 | flags;
    let key = Name::topic_of(message).key();
    // A small message has a short topic.
    let key_len = (key.len() as u16).to_be_bytes();
    let parts = [&key_len[..], &key, message.properties(), message.payload()];
    let rest = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut bytes = Vec::with_capacity(topic_at(first) + rest);
    bytes.extend_from_slice(&[first, message.level()]);
    bytes.extend_from_slice(&message.author().to_le_bytes());
    if expires {
        bytes.extend_from_slice(&message.expires_at_ms().to_le_bytes());
    }
    if has_properties {
        bytes.extend_from_slice(&(message.properties().len() as u64).to_le_bytes());
    }
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.into_boxed_slice()
}

/// Where the topic's length stands.
fn topic_at(first: u8) -> usize {
    let numbers = 1 + usize::from(first & EXPIRES != 0) + usize::from(first & HAS_PROPERTIES != 0);
    2 + numbers * size_of::<u64>()
}

fn split_number(bytes: &[u8]) -> (u64, &[u8]) {
    let (number, rest) = bytes.split_first_chunk().unwrap_or((&[0; 8], &[]));
    (u64::from_le_bytes(*number), rest)
}

/// A larger message is shared, not packed: copying it for each subscriber would cost more than the
/// hundred bytes that packing saves.
const PACKED_BYTES_MAX: usize = 1024;
const QOS: u8 = 0b11;
const RETAIN: u8 = 0b100;
const EXPIRES: u8 = 0b1000;
const HAS_PROPERTIES: u8 = 0b1_0000;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: &MessageParts<'_>) {
        let message = Message::new(parts);
        let kept = Kept::new(&message, RecordLocation::NOWHERE);
        let is_packed = matches!(kept.body, Body::Packed(_));
        assert_eq!(is_packed, message.heap_bytes() <= PACKED_BYTES_MAX);
        let scope = Scope::new(parts.scope);
        assert_eq!(kept.topic(), Name::new(scope, parts.topic).key().as_bytes());
        assert_eq!(kept.expires_at_ms(), parts.expires_at_ms);
        assert_eq!(kept.bytes(), message.heap_bytes() as i64);
        let again = kept.message();
        assert_eq!(again.topic(), parts.topic);
        assert_eq!(again.properties(), parts.properties);
        assert_eq!(again.payload(), parts.payload);
        assert_eq!(
            (again.qos(), again.retain(), again.level()),
            (parts.qos, parts.retain, parts.level)
        );
        assert_eq!((again.author(), again.scope()), (parts.author, parts.scope));
        assert_eq!(again.expires_at_ms(), parts.expires_at_ms);
    }

    #[test]
    fn a_message_comes_back_as_it_was_kept() {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            for (properties, payload_len) in [(&[][..], 1), (&[1, 1][..], 64), (&[1, 1][..], 5000)]
            {
                for (scope, expires_at_ms) in [(0, session::NEVER), (7, 0), (0, 0), (9, 77_000)] {
                    check(&MessageParts {
                        topic: "a/\u{fc}",
                        properties,
                        payload: &vec![7; payload_len],
                        qos,
                        retain: payload_len != 64,
                        expires_at_ms,
                        publisher: 5,
                        author: u64::MAX - 5,
                        level: payload_len as u8 % 3,
                        scope,
                    });
                }
            }
        }
    }

    #[test]
    fn what_is_kept_is_small() {
        assert_eq!(size_of::<Body>(), 16);
        assert_eq!(size_of::<Kept>(), 32);
        let message = Message::new(&MessageParts {
            topic: "site/0001/device/0001/state",
            properties: &[],
            payload: &[7; 64],
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: session::NEVER,
            publisher: 1,
            author: 1,
            level: 2,
            scope: 0,
        });
        assert_eq!(pack(&message).len(), 2 + 8 + 2 + 27 + 64);
    }
}
