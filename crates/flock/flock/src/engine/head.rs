//! What stands in front of a payload: a PUBLISH with its topic and its properties.

use codec::{Property, PropertyBuf, QoS};

use super::plan::PublishPlan;
use super::task::wire_qos;
use flock_model::Publish;

/// A PUBLISH without its payload, and where its packet identifier and its correlation data stand.
/// `with`: an alias, and where an answer is wanted.
pub(super) fn encode_head(
    version: codec::Version,
    planned: &PublishPlan,
    topic: &str,
    (alias, reply): (Option<u16>, Option<&str>),
    payload_bytes: usize,
) -> (Vec<u8>, usize, usize) {
    let command = &planned.command;
    let mut properties = PropertyBuf::new();
    if version == codec::Version::V5 {
        if let Some(alias) = alias {
            properties.push(Property::TopicAlias(alias));
        }
        push_properties(command, reply.map(|reply| (reply, &CORRELATION_PLACE)), &mut properties);
    }
    let qos = wire_qos(command.qos);
    let publish = codec::Publish {
        dup: false,
        qos,
        retain: command.retain,
        topic,
        packet_id: u16::from(qos != QoS::AtMostOnce),
        properties: properties.as_properties(),
        payload: &planned.filler[..payload_bytes],
    };
    let mut bytes = Vec::new();
    publish.encode_head(version, &mut bytes);
    let place = bytes.windows(CORRELATION_BYTES).position(|bytes| bytes == CORRELATION_PLACE);
    let correlation_at = reply.and(place).unwrap_or(0);
    (bytes, publish.packet_id_at(version).unwrap_or(0), correlation_at)
}

/// What goes with every message of a command, but for the alias of its topic.
pub(super) fn push_properties(
    command: &Publish,
    reply: Option<(&str, &[u8; CORRELATION_BYTES])>,
    properties: &mut PropertyBuf,
) {
    if let Some(format) = command.payload_format {
        properties.push(Property::PayloadFormat(format));
    }
    if let Some(secs) = command.expiry_secs {
        properties.push(Property::MessageExpirySecs(secs));
    }
    if let Some(content_type) = &command.content_type {
        properties.push(Property::ContentType(content_type));
    }
    if let Some((reply, correlation)) = reply {
        properties.push(Property::ResponseTopic(reply));
        properties.push(Property::CorrelationData(correlation));
    }
    for (name, value) in &command.user_properties {
        properties.push(Property::User(name, value));
    }
}

pub(super) const CORRELATION_BYTES: usize = 8;
/// Stands where correlation data go; no text in a packet can have these bytes (RFC 3629).
const CORRELATION_PLACE: [u8; CORRELATION_BYTES] = [0xFF; CORRELATION_BYTES];

#[cfg(test)]
mod tests {
    use super::*;
    use flock_model::{Assign, Order, Pace, Payload, Phase, TopicsId};

    #[test]
    fn properties_go_with_every_message_of_mqtt_5_only() {
        let command = Publish {
            topics: TopicsId(0),
            assign: Assign::Pairwise,
            order: Order::RoundRobin,
            qos: flock_model::QoS::AtMostOnce,
            retain: false,
            payload: Payload::filler(16),
            expiry_secs: Some(60),
            count: None,
            pace: Pace { rate: None, phase: Phase::Spread, in_flight: None },
            reply_to: None,
            topic_alias: false,
            user_properties: vec![("k".into(), "v".into())],
            content_type: Some("c".into()),
            payload_format: Some(0),
        };
        let planned = PublishPlan::new(&command, 0, 1);
        let head = |version| encode_head(version, &planned, "t", (None, None), 16).0;
        assert_eq!(head(codec::Version::V311), b"\x30\x13\x00\x01t");
        let properties = b"\x12\x01\x00\x02\x00\x00\x00\x3c\x03\x00\x01c\x26\x00\x01k\x00\x01v";
        let expected = [b"\x30\x26\x00\x01t".as_slice(), properties].concat();
        assert_eq!(head(codec::Version::V5), expected);
    }
}
