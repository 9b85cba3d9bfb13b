//! An accepted PUBLISH: one allocation, shared by all its recipients.

use std::sync::Arc;

use codec::QoS;

/// The expiry time of a message that does not expire.
pub const NEVER: u64 = u64::MAX;

/// A message. Cloning shares the bytes.
///
/// Head, topic (with its length prefix, as on the wire), the properties that are forwarded and the
/// payload lie in one allocation, copied out of the read buffer: a message never pins a buffer
/// that it only partly fills. A payload of [`LARGE_BYTES_MIN`] and more is not copied with the
/// rest: it stays where its packet was gathered. The handle is two words, because it is moved and
/// kept more often than it is looked into: into a mailbox, a window, a queue.
#[derive(Clone, Debug)]
pub struct Message {
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Small(Arc<[u8]>),
    Large(Arc<Large>),
}

#[derive(Debug)]
struct Large {
    head: [u8; HEAD_BYTES],
    /// Topic and properties, as in a small one.
    front: Box<[u8]>,
    /// Ends with the payload; before it stands what else the packet had.
    packet: Arc<Vec<u8>>,
    payload_at: usize,
}

/// Payloads of at least this many bytes stay in the memory of their packet. Below it the copy is
/// cheaper than the allocations, and than reading a packet by itself.
pub const LARGE_BYTES_MIN: usize = 32 * 1024;

/// A packet's memory is not kept for its payload if more than this part of it is neither.
const SLACK_PART: usize = 8;

/// What stands before the topic: the fields of [`MessageParts`] that are no bytes, at these places.
const HEAD_BYTES: usize = 32;
const EXPIRES_AT_MS: usize = 0;
const PUBLISHER: usize = 8;
const AUTHOR: usize = 16;
const FRONT_LEN: usize = 24;
const QOS: usize = 28;
/// The RETAIN flag is the lowest bit, the level stands above it.
const RETAIN_AND_LEVEL: usize = 29;
const SCOPE: usize = 30;

/// What a message is made of.
#[derive(Clone, Copy, Debug)]
pub struct MessageParts<'a> {
    pub topic: &'a str,
    /// Raw MQTT 5 properties to forward: without topic alias, message expiry and subscription
    /// identifiers, which are written anew for each delivery.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Milliseconds on the broker's clock, or [`NEVER`].
    pub expires_at_ms: u64,
    /// An opaque key of the publishing session. 0: nobody.
    pub publisher: u64,
    /// Stands for the publishing client ID, whatever session has it, for No Local (MQTT-3.8.3-3).
    /// 0: nobody.
    pub author: u64,
    /// How firmly the message is to be kept, as an opaque number, below 128.
    pub level: u8,
    /// Where the topic means what it means, as an opaque number.
    pub scope: u16,
}

/// Of a [`Message`]: see the methods of these names.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    pub publisher: u64,
    pub author: u64,
    pub qos: QoS,
    pub retain: bool,
    pub scope: u16,
    pub payload_bytes: usize,
}

impl Message {
    /// What [`Self::heap_bytes`] counts beside topic, properties and payload of a small message:
    /// the two counters of the allocation, and the head.
    pub const OVERHEAD_BYTES: usize = COUNTERS_BYTES + HEAD_BYTES;

    /// Copies the parts: into one allocation, if the payload is not large.
    ///
    /// A topic longer than 65,535 bytes cannot come off the wire; it is a bug of the caller.
    pub fn new(parts: &MessageParts<'_>) -> Self {
        if parts.payload.len() >= LARGE_BYTES_MIN {
            // A block by itself is written once; one that is shared from the start is zeroed first.
            return Self::large(parts, Arc::new(parts.payload.to_vec()));
        }
        Self::small(parts)
    }

    fn small(parts: &MessageParts<'_>) -> Self {
        let payload_at = HEAD_BYTES + parts.front_len();
        // Collecting from an exact-size iterator allocates once, in place.
        let mut bytes: Arc<[u8]> =
            std::iter::repeat_n(0, payload_at + parts.payload.len()).collect();
        if let Some(body) = Arc::get_mut(&mut bytes) {
            let (front, payload) = body.split_at_mut(payload_at);
            front[..HEAD_BYTES].copy_from_slice(&parts.head());
            parts.write_front(&mut front[HEAD_BYTES..]);
            payload.copy_from_slice(parts.payload);
        }
        Self { body: Body::Small(bytes) }
    }

    /// Like [`Self::new`], but a large payload is not copied: the message takes a share in the
    /// memory of `packet`, which has to end with the payload.
    #[cold]
    pub fn of_packet(parts: &MessageParts<'_>, packet: &Arc<Vec<u8>>) -> Self {
        debug_assert!(packet.ends_with(parts.payload), "the payload is the end of its packet");
        let payload_len = parts.payload.len();
        if payload_len < LARGE_BYTES_MIN
            || packet.capacity() - payload_len > payload_len / SLACK_PART
        {
            return Self::new(parts);
        }
        Self::large(parts, packet.clone())
    }

    #[cold]
    fn large(parts: &MessageParts<'_>, packet: Arc<Vec<u8>>) -> Self {
        let mut front = vec![0; parts.front_len()].into_boxed_slice();
        parts.write_front(&mut front);
        let payload_at = packet.len() - parts.payload.len();
        let head = parts.head();
        Self { body: Body::Large(Arc::new(Large { head, front, packet, payload_at })) }
    }

    fn head(&self) -> &[u8; HEAD_BYTES] {
        match &self.body {
            // There is none without a head: the other value is for the compiler.
            Body::Small(bytes) => bytes.first_chunk().unwrap_or(&[0; HEAD_BYTES]),
            Body::Large(large) => &large.head,
        }
    }

    /// The topic name.
    pub fn topic(&self) -> &str {
        // The bytes came from a `str`; the check costs some nanoseconds and no `unsafe`.
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    /// The topic name, without the check that it is text.
    pub fn topic_bytes(&self) -> &[u8] {
        &self.topic_on_wire()[2..]
    }

    /// The topic name with its two length bytes, as it stands in a PUBLISH.
    pub fn topic_on_wire(&self) -> &[u8] {
        let bytes = match &self.body {
            Body::Small(bytes) => &bytes[HEAD_BYTES..],
            Body::Large(large) => &large.front,
        };
        &bytes[..2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]))]
    }

    /// The forwarded properties, raw, without a length prefix.
    pub fn properties(&self) -> &[u8] {
        self.parts_on_wire().1
    }

    pub fn payload(&self) -> &[u8] {
        self.parts_on_wire().2
    }

    /// What is asked for each of many receivers, in one look.
    #[inline]
    pub fn traits(&self) -> Traits {
        let head = self.head();
        Traits {
            publisher: u64::from_le_bytes(field(head, PUBLISHER)),
            author: u64::from_le_bytes(field(head, AUTHOR)),
            qos: QoS::from_bits(head[QOS]).unwrap_or(QoS::AtMostOnce),
            retain: head[RETAIN_AND_LEVEL] & 1 != 0,
            scope: u16::from_le_bytes(field(head, SCOPE)),
            payload_bytes: match &self.body {
                Body::Small(bytes) => bytes.len() - HEAD_BYTES - front_len(head),
                Body::Large(large) => large.packet.len() - large.payload_at,
            },
        }
    }

    /// Bytes of the payload.
    pub fn payload_len(&self) -> usize {
        match &self.body {
            Body::Small(bytes) => bytes.len() - HEAD_BYTES - front_len(self.head()),
            Body::Large(large) => large.packet.len() - large.payload_at,
        }
    }

    /// [`Self::topic_on_wire`], [`Self::properties`] and [`Self::payload`] in one look.
    #[inline(always)]
    pub fn parts_on_wire(&self) -> (&[u8], &[u8], &[u8]) {
        match &self.body {
            Body::Small(bytes) => {
                let (head, rest) = bytes.split_first_chunk().unwrap_or((&[0; HEAD_BYTES], &[0, 0]));
                split_front(head, rest)
            }
            Body::Large(large) => large.parts_on_wire(),
        }
    }

    pub fn qos(&self) -> QoS {
        QoS::from_bits(self.head()[QOS]).unwrap_or(QoS::AtMostOnce)
    }

    /// The RETAIN flag as the publisher set it.
    pub fn retain(&self) -> bool {
        self.head()[RETAIN_AND_LEVEL] & 1 != 0
    }

    pub fn level(&self) -> u8 {
        self.head()[RETAIN_AND_LEVEL] >> 1
    }

    #[inline]
    pub fn scope(&self) -> u16 {
        u16::from_le_bytes(field(self.head(), SCOPE))
    }

    pub fn publisher(&self) -> u64 {
        u64::from_le_bytes(field(self.head(), PUBLISHER))
    }

    pub fn author(&self) -> u64 {
        u64::from_le_bytes(field(self.head(), AUTHOR))
    }

    pub fn expires_at_ms(&self) -> u64 {
        u64::from_le_bytes(field(self.head(), EXPIRES_AT_MS))
    }

    /// True once the message expiry interval has passed (MQTT-3.3.2-5).
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms() <= now_ms
    }

    /// Seconds left until expiry, to the nearest; None when the message does not expire
    /// (MQTT-3.3.2-6).
    pub fn expiry_secs_left(&self, now_ms: u64) -> Option<u32> {
        let expires_at_ms = self.expires_at_ms();
        if expires_at_ms == NEVER {
            return None;
        }
        // The clock of who asks may be a moment behind that of who took the message: rounded up,
        // more would be left than was published. And 0 would say that it is over.
        let left_ms = expires_at_ms.saturating_sub(now_ms);
        let secs = (left_ms.saturating_add(500) / 1000).max(u64::from(left_ms > 0));
        Some(u32::try_from(secs).unwrap_or(u32::MAX))
    }

    /// Bytes this message keeps on the heap, for the limits that count bytes.
    pub fn heap_bytes(&self) -> usize {
        match &self.body {
            Body::Small(bytes) => COUNTERS_BYTES + bytes.len(),
            Body::Large(large) => {
                let blocks_bytes = 2 * COUNTERS_BYTES + size_of::<Large>() + size_of::<Vec<u8>>();
                blocks_bytes + large.front.len() + large.packet.capacity()
            }
        }
    }
}

impl crate::Expires for Message {
    fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms()
    }

    fn bytes(&self) -> u64 {
        self.heap_bytes() as u64
    }
}

impl Large {
    /// Out of line: small messages are the many.
    #[cold]
    #[inline(never)]
    fn parts_on_wire(&self) -> (&[u8], &[u8], &[u8]) {
        let (topic, properties, _) = split_front(&self.head, &self.front);
        (topic, properties, &self.packet[self.payload_at..])
    }
}

/// What stands behind a head: topic, properties and the rest.
fn split_front<'a>(head: &[u8; HEAD_BYTES], bytes: &'a [u8]) -> (&'a [u8], &'a [u8], &'a [u8]) {
    let topic_len = 2 + usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    let (front, rest) = bytes.split_at(front_len(head));
    let (topic, properties) = front.split_at(topic_len);
    (topic, properties, rest)
}

/// Bytes of topic with its length, and properties.
fn front_len(head: &[u8; HEAD_BYTES]) -> usize {
    u32::from_le_bytes(field(head, FRONT_LEN)) as usize
}

/// The two counters before what is shared.
const COUNTERS_BYTES: usize = 2 * size_of::<usize>();

impl MessageParts<'_> {
    /// Bytes of topic with its length, and properties.
    fn front_len(&self) -> usize {
        2 + self.topic.len() + self.properties.len()
    }

    fn write_front(&self, front: &mut [u8]) {
        let topic = self.topic.as_bytes();
        debug_assert!(topic.len() <= usize::from(u16::MAX), "topic is too long for the wire");
        let (topic_on_wire, properties) = front.split_at_mut(2 + topic.len());
        topic_on_wire[..2].copy_from_slice(&(topic.len() as u16).to_be_bytes());
        topic_on_wire[2..].copy_from_slice(topic);
        properties.copy_from_slice(self.properties);
    }

    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[EXPIRES_AT_MS..][..8].copy_from_slice(&self.expires_at_ms.to_le_bytes());
        head[PUBLISHER..][..8].copy_from_slice(&self.publisher.to_le_bytes());
        head[AUTHOR..][..8].copy_from_slice(&self.author.to_le_bytes());
        head[FRONT_LEN..][..4].copy_from_slice(&(self.front_len() as u32).to_le_bytes());
        head[QOS] = self.qos as u8;
        debug_assert!(self.level < 128, "a level shares its byte with a flag");
        head[RETAIN_AND_LEVEL] = u8::from(self.retain) | self.level << 1;
        head[SCOPE..][..2].copy_from_slice(&self.scope.to_le_bytes());
        head
    }
}

/// The bytes of the head from `at` on.
fn field<const N: usize>(head: &[u8; HEAD_BYTES], at: usize) -> [u8; N] {
    std::array::from_fn(|index| head[at + index])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(topic: &'a str, payload: &'a [u8]) -> MessageParts<'a> {
        MessageParts {
            topic,
            properties: &[1, 1],
            payload,
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: 2_001,
            publisher: 7,
            author: 9,
            level: 2,
            scope: 0x0102,
        }
    }

    fn check(message: &Message, parts: &MessageParts<'_>) {
        assert_eq!(message.topic(), parts.topic);
        assert_eq!((message.qos(), message.retain()), (QoS::AtLeastOnce, true));
        assert_eq!((message.publisher(), message.level()), (7, 2));
        assert_eq!((message.author(), message.traits().author), (9, 9));
        assert_eq!(message.scope(), 0x0102);
        assert_eq!(message.expires_at_ms(), 2_001);
        let length = (parts.topic.len() as u16).to_be_bytes();
        assert_eq!(message.topic_on_wire(), [&length, parts.topic.as_bytes()].concat());
        assert_eq!(message.properties(), [1, 1]);
        assert!(message.payload() == parts.payload);
        assert_eq!(message.payload_len(), parts.payload.len());
        assert_eq!(message.topic_bytes(), parts.topic.as_bytes());
        let on_wire = (message.topic_on_wire(), message.properties(), message.payload());
        assert!(message.parts_on_wire() == on_wire);
        let left = |now_ms| message.expiry_secs_left(now_ms);
        assert_eq!(
            (left(0), left(1_000), left(2_000), left(2_001)),
            (Some(2), Some(1), Some(1), Some(0))
        );
        assert!(!message.is_expired(2_000));
        assert!(message.is_expired(2_001));
    }

    fn payload(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index % 251) as u8).collect()
    }

    #[test]
    fn parts_come_back_as_they_went_in() {
        for len in [0, 5, LARGE_BYTES_MIN - 1, LARGE_BYTES_MIN, 100_000] {
            for topic in ["a/ü", ""] {
                let payload = payload(len);
                let parts = parts(topic, &payload);
                check(&Message::new(&parts), &parts);
                let packet = Arc::new([&[9; 20][..], &payload].concat());
                check(&Message::of_packet(&parts, &packet), &parts);
            }
        }
    }

    #[test]
    fn a_large_payload_stays_where_its_packet_was_gathered() {
        let packet = Arc::new([&[9; 20][..], &payload(LARGE_BYTES_MIN)].concat());
        let message = Message::of_packet(&parts("t", &packet[20..]), &packet);
        assert_eq!(message.payload().as_ptr(), packet[20..].as_ptr());
        assert!(message.heap_bytes() >= packet.capacity());
    }

    #[test]
    fn a_message_pins_no_memory_that_it_hardly_fills() {
        let payload = payload(LARGE_BYTES_MIN);
        let mut packet = Vec::with_capacity(2 * payload.len());
        packet.extend_from_slice(&payload);
        let packet = Arc::new(packet);
        let message = Message::of_packet(&parts("t", &payload), &packet);
        assert_eq!(Arc::strong_count(&packet), 1);
        assert!(message.heap_bytes() < payload.len() + 500, "{}", message.heap_bytes());
    }

    #[test]
    fn a_message_handle_stays_small() {
        assert!(size_of::<Message>() <= 16, "{}", size_of::<Message>());
    }
}
