//! An accepted PUBLISH: one allocation, shared by everybody who is owed it.

use std::sync::Arc;

use codec::QoS;

/// The expiry time of a message that does not expire.
pub const NEVER: u64 = u64::MAX;

/// A message. Cloning shares the bytes.
///
/// The topic (with its length prefix, as on the wire), the properties that are forwarded and the
/// payload lie in one allocation, copied out of the read buffer: a message never pins a buffer
/// that it only partly fills.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Arc<[u8]>,
    expires_at_ms: u64,
    publisher: u64,
    properties_len: u32,
    qos: QoS,
    retain: bool,
    level: u8,
}

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
    /// Copies the parts into one allocation.
    ///
    /// A topic longer than 65,535 bytes cannot come off the wire; it is a bug of the caller.
    pub fn new(parts: &MessageParts<'_>) -> Self {
        let topic = parts.topic.as_bytes();
        debug_assert!(topic.len() <= usize::from(u16::MAX), "topic is too long for the wire");
        let topic_len = (topic.len() as u16).to_be_bytes();
        let total = 2 + topic.len() + parts.properties.len() + parts.payload.len();
        // Collecting from an exact-size iterator allocates once, in place.
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, total).collect();
        if let Some(body) = Arc::get_mut(&mut bytes) {
            let (head, rest) = body.split_at_mut(2 + topic.len());
            head[..2].copy_from_slice(&topic_len);
            head[2..].copy_from_slice(topic);
            let (properties, payload) = rest.split_at_mut(parts.properties.len());
            properties.copy_from_slice(parts.properties);
            payload.copy_from_slice(parts.payload);
        }
        Self {
            bytes,
            expires_at_ms: parts.expires_at_ms,
            publisher: parts.publisher,
            properties_len: parts.properties.len() as u32,
            qos: parts.qos,
            retain: parts.retain,
            level: parts.level,
        }
    }

    fn topic_end(&self) -> usize {
        2 + usize::from(u16::from_be_bytes([self.bytes[0], self.bytes[1]]))
    }

    fn payload_start(&self) -> usize {
        self.topic_end() + self.properties_len as usize
    }

    /// The topic name.
    pub fn topic(&self) -> &str {
        // The bytes came from a `str`; the check costs some nanoseconds and no `unsafe`.
        std::str::from_utf8(self.topic_bytes()).unwrap_or_default()
    }

    /// The topic name, without the check that it is text.
    pub fn topic_bytes(&self) -> &[u8] {
        &self.bytes[2..self.topic_end()]
    }

    /// The topic name with its two length bytes, as it stands in a PUBLISH.
    pub fn topic_on_wire(&self) -> &[u8] {
        &self.bytes[..self.topic_end()]
    }

    /// [`Self::topic_on_wire`], [`Self::properties`] and [`Self::payload`] in one look.
    pub(crate) fn parts_on_wire(&self) -> (&[u8], &[u8], &[u8]) {
        let (topic, rest) = self.bytes.split_at(self.topic_end());
        let (properties, payload) = rest.split_at(self.properties_len as usize);
        (topic, properties, payload)
    }

    /// The forwarded properties, raw, without a length prefix.
    pub fn properties(&self) -> &[u8] {
        &self.bytes[self.topic_end()..self.payload_start()]
    }

    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.payload_start()..]
    }

    pub const fn qos(&self) -> QoS {
        self.qos
    }

    /// The RETAIN flag as the publisher set it.
    pub const fn retain(&self) -> bool {
        self.retain
    }

    pub const fn level(&self) -> u8 {
        self.level
    }

    pub const fn publisher(&self) -> u64 {
        self.publisher
    }

    pub const fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// True once the message expiry interval has passed (MQTT-3.3.2-5).
    pub const fn is_expired(&self, now_ms: u64) -> bool {
        self.expires_at_ms <= now_ms
    }

    /// Seconds left until expiry, rounded up; None when the message does not expire
    /// (MQTT-3.3.2-6).
    pub fn expiry_secs_left(&self, now_ms: u64) -> Option<u32> {
        if self.expires_at_ms == NEVER {
            return None;
        }
        let left_ms = self.expires_at_ms.saturating_sub(now_ms);
        Some(u32::try_from(left_ms.div_ceil(1000)).unwrap_or(u32::MAX))
    }

    /// Bytes this message keeps on the heap, for the limits that count bytes.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.len() + 16
    }
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
        assert!(size_of::<Message>() <= 40, "{}", size_of::<Message>());
    }
}
