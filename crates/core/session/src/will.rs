//! The will: what to publish for a client that went without saying goodbye.

use crate::MessageParts;

/// A stored will (MQTT-3.1.2-8).
#[derive(Clone, Debug)]
pub struct Will {
    pub topic: Box<str>,
    /// Properties to forward, raw, without will delay and message expiry.
    pub properties: Box<[u8]>,
    pub payload: Box<[u8]>,
    pub qos: codec::QoS,
    pub retain: bool,
    pub delay_secs: u32,
    /// The lifetime of the message counts from when it is published.
    pub message_expiry_secs: Option<u32>,
    /// When it is to be published, in milliseconds; [`crate::NEVER`] while the client is there.
    pub due_ms: u64,
}

impl Will {
    /// The message to publish at `now_ms`.
    pub fn parts(
        &self,
        (publisher, author): (u64, u64),
        scope: u16,
        level: u8,
        now_ms: u64,
    ) -> MessageParts<'_> {
        let expires_at_ms =
            self.message_expiry_secs.map_or(crate::NEVER, |secs| now_ms + u64::from(secs) * 1000);
        MessageParts {
            topic: &self.topic,
            properties: &self.properties,
            payload: &self.payload,
            qos: self.qos,
            retain: self.retain,
            expires_at_ms,
            publisher,
            author,
            level,
            scope,
        }
    }
}
