//! Messages of a remote of MQTT 3.1.1 that are too large. That cannot be told a limit, and would
//! send the message again after each reconnect: so it is answered, and its bytes are skipped.

use codec::{Properties, Publish, QoS};

/// What stands at the front of the bytes of a remote.
#[derive(Debug, PartialEq)]
pub(crate) enum Front<'a> {
    /// A packet that is to be decoded.
    Usual,
    /// The beginning of a PUBLISH that is too large; its topic is not complete.
    Incomplete,
    /// Such a PUBLISH without its payload, and its bytes.
    Oversize(Publish<'a>, usize),
}

/// A PUBLISH whose contents break the protocol: its frame, and the identifier to answer it by.
pub(crate) fn frame(bytes: &[u8]) -> Option<(Publish<'_>, usize)> {
    match look(bytes, 0) {
        Front::Oversize(publish, len) => Some((publish, len)),
        Front::Usual | Front::Incomplete => None,
    }
}

/// Looks at the front of `bytes`.
pub(crate) fn look(bytes: &[u8], bytes_max: u32) -> Front<'_> {
    let Some(first) = bytes.first().filter(|first| *first >> 4 == PUBLISH) else {
        return Front::Usual;
    };
    let Ok(Some(packet_len)) = codec::packet_len(bytes) else { return Front::Usual };
    if packet_len <= bytes_max as usize {
        return Front::Usual;
    }
    // A fault is found by the decoder.
    let Some(qos) = QoS::from_bits(first >> 1) else { return Front::Usual };
    let length_bytes = bytes[1..].iter().take_while(|byte| **byte >= 0x80).count() + 1;
    let body = &bytes[1 + length_bytes..];
    let Some((len, rest)) = body.split_first_chunk::<2>() else { return Front::Incomplete };
    let Some((topic, rest)) = rest.split_at_checked(u16::from_be_bytes(*len).into()) else {
        return Front::Incomplete;
    };
    let packet_id = match (qos, rest.split_first_chunk::<2>()) {
        (QoS::AtMostOnce, _) => 0,
        (_, Some((id, _))) => u16::from_be_bytes(*id),
        (_, None) => return Front::Incomplete,
    };
    let topic = std::str::from_utf8(topic).unwrap_or("(not UTF-8)");
    let publish = Publish {
        dup: first & DUP != 0,
        qos,
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload: &[],
    };
    Front::Oversize(publish, packet_len)
}

const PUBLISH: u8 = 3;
const DUP: u8 = 0b1000;

#[cfg(test)]
mod tests {
    use codec::Version;

    use super::*;

    #[test]
    fn a_large_message_is_known_once_its_identifier_has_come() {
        let publish = Publish {
            dup: true,
            qos: QoS::ExactlyOnce,
            retain: false,
            topic: "a/b",
            packet_id: 9,
            properties: Properties::EMPTY,
            payload: &[7; 500],
        };
        let mut bytes = Vec::new();
        publish.encode(Version::V311, &mut bytes);
        assert_eq!(look(&bytes, 1_000), Front::Usual);
        assert_eq!(look(&bytes[..2], 100), Front::Usual);
        assert_eq!(look(&bytes[..9], 100), Front::Incomplete);
        let known = Publish { payload: &[], ..publish };
        assert_eq!(look(&bytes[..10], 100), Front::Oversize(known, bytes.len()));
        assert_eq!(look(&[0x40, 2, 0, 9], 1), Front::Usual);
    }
}
