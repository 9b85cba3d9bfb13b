//! PUBLISH, the packet that matters for speed.

use crate::header::PacketType;
use crate::properties::PropertyScope;
use crate::reader::Reader;
use crate::{Properties, QoS, Sender, Version, Violation, rules, varint, writer};

/// A message on the wire (section 3.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publish<'a> {
    pub dup: bool,
    pub qos: QoS,
    pub retain: bool,
    /// Empty only in version 5, beside a topic alias.
    pub topic: &'a str,
    /// 0 at QoS 0, else not 0.
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    #[inline]
    pub(crate) fn read(
        mut reader: Reader<'a>,
        flags: u8,
        sender: Sender,
        known: &'a str,
    ) -> Result<Self, Violation> {
        // The header was checked: QoS is not 3.
        let qos = QoS::from_bits(flags >> 1).unwrap_or(QoS::AtMostOnce);
        let topic = reader.topic(&rules::PUBLISH_WILDCARD, known)?;
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { packet_id(&mut reader)? };
        let properties = Properties::read(&mut reader, PropertyScope::Publish(sender))?;
        if topic.is_empty() && properties.topic_alias().is_none() {
            return Err(reader.fail(&rules::TOPIC_MISSING));
        }
        Ok(Publish {
            dup: flags & DUP != 0 && qos != QoS::AtMostOnce,
            qos,
            retain: flags & RETAIN != 0,
            topic,
            packet_id,
            properties,
            payload: reader.remainder(),
        })
    }

    /// Appends the whole packet. Before version 5 the properties are left out.
    ///
    /// # Panics
    /// If the topic is longer than 65,535 bytes or the packet longer than MQTT can say (256 MiB).
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        out.reserve(self.encoded_len(version));
        self.encode_head(version, out);
        out.extend_from_slice(self.payload);
    }

    /// Appends all that stands before the payload, for a caller that sends the payload from where
    /// it is. The length counts the payload in.
    ///
    /// # Panics
    /// As [`encode`](Self::encode).
    pub fn encode_head(&self, version: Version, out: &mut Vec<u8>) {
        out.push(self.first_byte());
        varint::write(out, writer::length(self.body_len(version)));
        writer::text(out, self.topic);
        if self.qos != QoS::AtMostOnce {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        writer::properties(out, self.properties, version);
    }

    /// Bytes that [`encode`](Self::encode) appends: to be held against the receiver's maximum
    /// packet size.
    pub fn encoded_len(&self, version: Version) -> usize {
        let body = self.body_len(version);
        1 + varint::len(writer::length(body)) + body
    }

    /// Where in the encoded packet the two bytes of the packet identifier stand, if it has one. A
    /// packet that is encoded once can so be copied to many receivers and patched for each: this
    /// place, and the [first byte](Self::first_byte).
    pub fn packet_id_at(&self, version: Version) -> Option<usize> {
        if self.qos == QoS::AtMostOnce {
            return None;
        }
        let header = 1 + varint::len(writer::length(self.body_len(version)));
        Some(header + 2 + self.topic.len())
    }

    /// The packet type with the DUP, QoS and RETAIN flags.
    pub const fn first_byte(&self) -> u8 {
        let dup = if self.dup { DUP } else { 0 };
        let retain = if self.retain { RETAIN } else { 0 };
        PacketType::Publish.first_byte() | dup | (self.qos as u8) << 1 | retain
    }

    fn body_len(&self, version: Version) -> usize {
        let packet_id = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = writer::properties_len(self.properties, version);
        2 + self.topic.len() + packet_id + properties + self.payload.len()
    }
}

#[inline]
fn packet_id(reader: &mut Reader<'_>) -> Result<u16, Violation> {
    match reader.short()? {
        0 => Err(reader.fail(&rules::PACKET_ID_ZERO)),
        packet_id => Ok(packet_id),
    }
}

const DUP: u8 = 0b1000;
const RETAIN: u8 = 0b0001;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, decode_behind};

    fn packet(topic: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x30, topic.len() as u8 + 3, 0, topic.len() as u8];
        bytes.extend_from_slice(topic);
        bytes.push(b'p');
        bytes
    }

    #[test]
    fn a_known_topic_changes_nothing_about_what_is_read() {
        let is_valid = |topic: &[u8], known: &str| {
            let bytes = packet(topic);
            let alone = decode(&bytes, Version::V311, Sender::Client, 100);
            let behind = decode_behind(known, &bytes, Version::V311, Sender::Client, 100);
            assert_eq!(behind, alone, "{topic:?} behind {known:?}");
            alone.is_ok()
        };
        for known in ["", "a", "a/b", "a/c", "a/\u{FC}"] {
            for topic in [&b"a"[..], b"a/b", b"a/\xC3\xBC"] {
                assert!(is_valid(topic, known));
            }
            for topic in [&b""[..], b"a/+", b"a/\xFF", b"a/\xC3"] {
                assert!(!is_valid(topic, known));
            }
        }
    }
}
