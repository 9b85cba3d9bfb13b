//! How a PUBLISH stands on the wire: for one receiver, or copied for many.

use codec::{QoS, Version, varint};

use crate::alias::AliasUse;
use crate::{Message, SPLICE_BYTES_MIN, Terms};

/// A PUBLISH as many receivers get it, byte for byte but for the packet id: what is written for the
/// first of a kind is copied for those behind it. For the receivers of one message at one time.
#[derive(Debug, Default)]
pub struct Template {
    /// What the bytes depend on beside the message. None: nothing is written yet.
    kind: Option<(Version, QoS, bool)>,
    /// The packet, without a payload that is sent from the message.
    bytes: Vec<u8>,
    /// Where the packet id stands; 0: there is none.
    packet_id_at: usize,
    /// With the payload.
    packet_len: usize,
}

impl Template {
    /// Makes it one for another message.
    pub fn clear(&mut self) {
        self.kind = None;
        if self.bytes.capacity() > TEMPLATE_BYTES_MAX {
            self.bytes = Vec::new();
        }
    }

    /// Makes it one for receivers of this version on these terms, if it is not yet.
    #[inline]
    pub(crate) fn prepare(
        &mut self,
        version: Version,
        message: &Message,
        terms: &Terms,
        now_ms: u64,
    ) {
        let kind = (version, terms.qos, terms.retain);
        if self.kind != Some(kind) {
            self.kind = Some(kind);
            self.fill(version, message, terms, now_ms);
        }
    }

    fn fill(&mut self, version: Version, message: &Message, terms: &Terms, now_ms: u64) {
        let layout = Layout::of(version, message, terms, AliasUse::Name, now_ms);
        self.bytes.clear();
        layout.write(terms, (0, false), &mut self.bytes);
        self.packet_len = layout.packet_len();
        self.packet_id_at = match terms.qos {
            QoS::AtMostOnce => 0,
            _ => layout.packet_len() - layout.remaining_len + layout.topic.len(),
        };
    }

    /// With the payload, wherever that is sent from.
    pub(crate) const fn packet_len(&self) -> usize {
        self.packet_len
    }

    /// Is the payload sent from the message?
    pub(crate) const fn is_spliced(&self) -> bool {
        self.bytes.len() < self.packet_len
    }

    #[inline]
    pub(crate) fn write(&self, packet_id: u16, out: &mut Vec<u8>) {
        let begin = out.len();
        out.extend_from_slice(&self.bytes);
        if self.packet_id_at > 0 {
            let at = begin + self.packet_id_at;
            out[at..at + 2].copy_from_slice(&packet_id.to_be_bytes());
        }
    }
}

/// One PUBLISH on the wire: what is shared, and what is written anew for each receiver.
pub(crate) struct Layout<'a> {
    version: Version,
    pub(crate) alias: AliasUse,
    expiry_secs: Option<u32>,
    /// The topic name with its length.
    pub(crate) topic: &'a [u8],
    /// The properties that are forwarded as they are.
    properties: &'a [u8],
    /// Of all properties.
    properties_len: usize,
    payload: &'a [u8],
    remaining_len: usize,
}

impl<'a> Layout<'a> {
    #[inline(always)]
    pub(crate) fn of(
        version: Version,
        message: &'a Message,
        terms: &Terms,
        alias: AliasUse,
        now_ms: u64,
    ) -> Self {
        let (topic, properties, payload) = message.parts_on_wire();
        let topic_len = if matches!(alias, AliasUse::Known(_)) { 2 } else { topic.len() };
        let packet_id_len = if terms.qos == QoS::AtMostOnce { 0 } else { 2 };
        let mut layout = Self {
            version,
            alias,
            expiry_secs: None,
            topic,
            properties,
            properties_len: 0,
            payload,
            remaining_len: topic_len + packet_id_len + payload.len(),
        };
        if version >= Version::V5 {
            layout.add_properties(message.expiry_secs_left(now_ms), terms);
        }
        layout
    }

    fn add_properties(&mut self, expiry_secs: Option<u32>, terms: &Terms) {
        let alias_len = if self.alias == AliasUse::Name { 0 } else { 3 };
        let expiry_len = if expiry_secs.is_some() { 5 } else { 0 };
        let identifiers = terms.identifiers.as_slice();
        let identifiers_len: usize = identifiers.iter().map(|id| 1 + varint::len(*id)).sum();
        self.expiry_secs = expiry_secs;
        self.properties_len = alias_len + expiry_len + identifiers_len + self.properties.len();
        self.remaining_len += varint::len(self.properties_len as u32) + self.properties_len;
    }

    pub(crate) fn packet_len(&self) -> usize {
        1 + varint::len(self.remaining_len as u32) + self.remaining_len
    }

    /// Bytes between the fixed header and the payload.
    const fn head_len(&self) -> usize {
        self.remaining_len - self.payload.len()
    }

    /// The payload if it is copied for each receiver; else nothing.
    const fn copied(&self) -> &'a [u8] {
        if self.payload.len() < SPLICE_BYTES_MIN { self.payload } else { &[] }
    }

    /// Is the payload sent from the message?
    pub(crate) const fn is_spliced(&self) -> bool {
        self.copied().len() < self.payload.len()
    }

    /// Writes all but a payload that is sent from the message.
    #[inline(always)]
    pub(crate) fn write(&self, terms: &Terms, (packet_id, dup): (u16, bool), out: &mut Vec<u8>) {
        let copied = self.copied();
        // A new buffer takes the packet in one allocation.
        out.reserve(5 + self.head_len() + copied.len());
        let first = 0x30 | u8::from(dup) << 3 | (terms.qos as u8) << 1 | u8::from(terms.retain);
        if self.remaining_len < 0x80 {
            out.extend_from_slice(&[first, self.remaining_len as u8]);
        } else {
            out.push(first);
            varint::write(out, self.remaining_len as u32);
        }
        self.write_head(terms, packet_id, out);
        out.extend_from_slice(copied);
    }

    #[inline(always)]
    fn write_head(&self, terms: &Terms, packet_id: u16, out: &mut Vec<u8>) {
        match self.alias {
            AliasUse::Known(_) => out.extend_from_slice(&[0, 0]),
            AliasUse::Name | AliasUse::Set(_) => out.extend_from_slice(self.topic),
        }
        if terms.qos != QoS::AtMostOnce {
            out.extend_from_slice(&packet_id.to_be_bytes());
        }
        if self.version < Version::V5 {
            return;
        }
        match self.properties_len {
            0 => out.push(0),
            _ => self.write_properties(terms, out),
        }
    }

    #[inline(never)]
    fn write_properties(&self, terms: &Terms, out: &mut Vec<u8>) {
        const MESSAGE_EXPIRY: u8 = 0x02;
        const SUBSCRIPTION_ID: u8 = 0x0B;
        const TOPIC_ALIAS: u8 = 0x23;
        varint::write(out, self.properties_len as u32);
        if let AliasUse::Set(alias) | AliasUse::Known(alias) = self.alias {
            out.push(TOPIC_ALIAS);
            out.extend_from_slice(&alias.to_be_bytes());
        }
        if let Some(secs) = self.expiry_secs {
            out.push(MESSAGE_EXPIRY);
            out.extend_from_slice(&secs.to_be_bytes());
        }
        for identifier in terms.identifiers.as_slice() {
            out.push(SUBSCRIPTION_ID);
            varint::write(out, *identifier);
        }
        out.extend_from_slice(self.properties);
    }
}

/// A larger buffer is not kept for the next message: properties may be as large as packets.
const TEMPLATE_BYTES_MAX: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identifiers, MessageParts};

    #[test]
    fn a_template_for_a_large_packet_is_not_kept() {
        let large = Message::new(&MessageParts {
            topic: "site/7/state",
            properties: &[1; 2 * TEMPLATE_BYTES_MAX],
            payload: b"",
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at_ms: 5_000,
            publisher: 0,
            author: 0,
            level: 0,
            scope: 0,
        });
        let terms = Terms {
            identifiers: Identifiers::None,
            group: 0,
            serial: 0,
            qos: QoS::AtMostOnce,
            retain: false,
        };
        let mut template = Template::default();
        template.prepare(Version::V5, &large, &terms, 0);
        assert!(template.bytes.capacity() > TEMPLATE_BYTES_MAX);
        template.clear();
        assert_eq!(template.bytes.capacity(), 0);
    }
}
