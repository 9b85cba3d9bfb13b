//! An accepted PUBLISH: one allocation, shared by everybody who is owed it.

use std::sync::Arc;

use codec::QoS;

/// The expiry time of a message that does not expire.
pub const NEVER: u64 = u64::MAX;

/// A message. Cloning shares the bytes.
///
/// Head, topic (with its length prefix, as on the wire), the properties that are forwarded and the
/// payload lie in one allocation, copied out of the read buffer: a message never pins a buffer
/// that it only partly fills. The handle is two words, because it is moved and kept more often than
/// it is looked into: into a mailbox, a window, a queue.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Arc<[u8]>,
}

/// What stands before the topic: the fields of [`MessageParts`] that are no bytes, at these places.
const HEAD_BYTES: usize = 24;
const EXPIRES_AT_MS: usize = 0;
const PUBLISHER: usize = 8;
const PROPERTIES_LEN: usize = 16;
const QOS: usize = 20;
const RETAIN: usize = 21;
const LEVEL: usize = 22;

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
    /// An opaque key of the publishing session, for No Local (MQTT-3.8.3-3). 0: nobody.
    pub publisher: u64,
    /// How firmly the message is to be kept, as an opaque number.
    pub level: u8,
}

impl Message {
    /// What [`Self::heap_bytes`] counts beside topic, properties and payload: the two counters of
    /// the allocation, and the head.
    pub const OVERHEAD_BYTES: usize = 2 * size_of::<usize>() + HEAD_BYTES;

    /// Copies the parts into one allocation.
    ///
    /// A topic longer than 65,535 bytes cannot come off the wire; it is a bug of the caller.
    pub fn new(parts: &MessageParts<'_>) -> Self {
        let topic = parts.topic.as_bytes();
        debug_assert!(topic.len() <= usize::from(u16::MAX), "topic is too long for the wire");
        let topic_end = HEAD_BYTES + 2 + topic.len();
        let total = topic_end + parts.properties.len() + parts.payload.len();
        // Collecting from an exact-size iterator allocates once, in place.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, total).collect();
        if let Some(body) = Arc::get_mut(&mut bytes) {
            let (front, rest) = body.split_at_mut(topic_end);
            front[..HEAD_BYTES].copy_from_slice(&parts.head());
            front[HEAD_BYTES..HEAD_BYTES + 2].copy_from_slice(&(topic.len() as u16).to_be_bytes());
            front[HEAD_BYTES + 2..].copy_from_slice(topic);
            let (properties, payload) = rest.split_at_mut(parts.properties.len());
            properties.copy_from_slice(parts.properties);
            payload.copy_from_slice(parts.payload);
        }
        Self { bytes }
    }

    /// The head, and what stands behind it.
    fn split(&self) -> (&[u8; HEAD_BYTES], &[u8]) {
        // There is none without a head: the other branch is for the compiler.
        self.bytes.split_first_chunk().unwrap_or((&[0; HEAD_BYTES], &[0, 0]))
    }

    fn head(&self) -> &[u8; HEAD_BYTES] {
        self.split().0
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
        self.parts_on_wire().0
    }

    /// The forwarded properties, raw, without a length prefix.
    pub fn properties(&self) -> &[u8] {
        self.parts_on_wire().1
    }

    pub fn payload(&self) -> &[u8] {
        self.parts_on_wire().2
    }

    /// [`Self::topic_on_wire`], [`Self::properties`] and [`Self::payload`] in one look.
    pub(crate) fn parts_on_wire(&self) -> (&[u8], &[u8], &[u8]) {
        let (head, body) = self.split();
        let topic_len = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
        let properties_len = u32::from_le_bytes(field(head, PROPERTIES_LEN)) as usize;
        let (topic, rest) = body.split_at(topic_len);
        let (properties, payload) = rest.split_at(properties_len);
        (topic, properties, payload)
    }

    pub fn qos(&self) -> QoS {
        QoS::from_bits(self.head()[QOS]).unwrap_or(QoS::AtMostOnce)
    }

    /// The RETAIN flag as the publisher set it.
    pub fn retain(&self) -> bool {
        self.head()[RETAIN] != 0
    }

    pub fn level(&self) -> u8 {
        self.head()[LEVEL]
    }

    pub fn publisher(&self) -> u64 {
        u64::from_le_bytes(field(self.head(), PUBLISHER))
    }

    pub fn expires_at_ms(&self) -> u64 {
        u64::from_le_bytes(field(self.head(), EXPIRES_AT_MS))
    }

    /// True once the message expiry interval has passed (MQTT-3.3.2-5).
    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms() <= now_ms
    }

    /// Seconds left until expiry, rounded up; None when the message does not expire
    /// (MQTT-3.3.2-6).
    pub fn expiry_secs_left(&self, now_ms: u64) -> Option<u32> {
        let expires_at_ms = self.expires_at_ms();
        if expires_at_ms == NEVER {
            return None;
        }
        let left_ms = expires_at_ms.saturating_sub(now_ms);
        Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Bytes this message keeps on the heap, for the limits that count bytes.
    pub fn heap_bytes(&self) -> usize {
        Self::OVERHEAD_BYTES - HEAD_BYTES + self.bytes.len()
    }
}

impl MessageParts<'_> {
    fn head(&self) -> [u8; HEAD_BYTES] {
        let mut head = [0; HEAD_BYTES];
        head[EXPIRES_AT_MS..][..8].copy_from_slice(&self.expires_at_ms.to_le_bytes());
        head[PUBLISHER..][..8].copy_from_slice(&self.publisher.to_le_bytes());
        let properties_len = self.properties.len() as u32;
        head[PROPERTIES_LEN..][..4].copy_from_slice(&properties_len.to_le_bytes());
        head[QOS] = self.qos as u8;
        head[RETAIN] = u8::from(self.retain);
        head[LEVEL] = self.level;
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

    #[test]
    fn parts_come_back_as_they_went_in() {
        let message = Message::new(&MessageParts {
            topic: "a/ü",
            properties: &[1, 1],
            payload: b"hello",
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: 2_001,
            publisher: 7,
            level: 2,
        });
        assert_eq!(message.topic(), "a/ü");
        assert_eq!((message.qos(), message.retain()), (QoS::AtLeastOnce, true));
        assert_eq!((message.publisher(), message.level()), (7, 2));
        assert_eq!(message.expires_at_ms(), 2_001);
        assert_eq!(message.topic_on_wire(), [&[0, 4], "a/ü".as_bytes()].concat());
        assert_eq!(message.properties(), [1, 1]);
        assert_eq!(message.payload(), b"hello");
        assert_eq!(message.topic_bytes(), "a/ü".as_bytes());
        let parts = (message.topic_on_wire(), message.properties(), message.payload());
        assert_eq!(message.parts_on_wire(), parts);
        assert_eq!(message.expiry_secs_left(1_000), Some(2));
        assert!(!message.is_expired(2_000));
        assert!(message.is_expired(2_001));
    }

    #[test]
    fn a_message_handle_stays_small() {
        assert!(size_of::<Message>() <= 16, "{}", size_of::<Message>());
    }
}
