//! What becomes of one message: the same message with the topic of the other side, or a refusal.

use codec::{Properties, Property, PropertyBuf, Publish, QoS, Version};

use crate::settings::Ways;
use crate::{PeerLimits, Settings, Side};

/// The user property that counts the bridges that a message has crossed, so that a ring of bridges
/// does not relay it for ever.
pub const HOPS_PROPERTY: &str = "quelea-hops";

/// Why a message is not relayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No topic map matches its topic.
    Unmapped,
    /// The mapped topic is not valid, or longer than this broker allows.
    Topic,
    /// It has crossed `hops_max` bridges, or its count of them is not a number.
    Hops,
    /// It is larger than the receiver accepts.
    Size,
    /// It breaks a rule of the protocol.
    Malformed,
    /// The receiver has closed the connection several times right behind it.
    Closes,
    /// The receiver has answered several times that it does not accept it now.
    Exhausted,
    /// The remote has sent another copy of it, for another subscription.
    Copy,
}

impl Refusal {
    pub const ALL: [Self; 8] = [
        Self::Unmapped,
        Self::Topic,
        Self::Hops,
        Self::Size,
        Self::Malformed,
        Self::Closes,
        Self::Exhausted,
        Self::Copy,
    ];

    /// For labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Topic => "topic",
            Self::Hops => "hops",
            Self::Size => "size",
            Self::Malformed => "malformed",
            Self::Closes => "closes",
            Self::Exhausted => "exhausted",
            Self::Copy => "copy",
        }
    }
}

/// Appends the message for the other side, and returns the QoS that it has there.
///
/// # Errors
///
/// Why it is not relayed; nothing is appended then.
pub(crate) fn forward(
    settings: &Settings,
    ways: &Ways,
    limits: &PeerLimits,
    from: Side,
    publish: &Publish<'_>,
    out: &mut Vec<u8>,
) -> Result<QoS, Refusal> {
    let topic = match from {
        Side::Local => ways.topic_out(publish.topic),
        Side::Remote => ways.topic_in(publish.topic),
    };
    let topic = topic.ok_or(Refusal::Unmapped)?;
    let version = match from {
        Side::Local => settings.version,
        Side::Remote => Version::V5,
    };
    let is_valid = match from {
        Side::Local => topic::check_topic(&topic, &UNLIMITED).is_ok(),
        Side::Remote => topic::check_topic(&topic, &settings.topic).is_ok(),
    };
    if !is_valid {
        return Err(Refusal::Topic);
    }
    let qos = publish.qos.min(limits.qos_max);
    let properties = properties_of(settings, publish.properties)?;
    let relayed = Publish {
        dup: publish.dup && qos != QoS::AtMostOnce,
        qos,
        // A receiver without retained messages gets it as an ordinary one.
        retain: publish.retain && limits.retain_available,
        topic: &topic,
        packet_id: if qos == QoS::AtMostOnce { 0 } else { publish.packet_id },
        properties: properties.as_properties(),
        payload: publish.payload,
    };
    if relayed.encoded_len(version) > limits.packet_bytes_max as usize {
        return Err(Refusal::Size);
    }
    relayed.encode(version, out);
    Ok(qos)
}

/// Those that belong to the message, with one hop more. Identifiers and aliases belong to a
/// connection.
fn properties_of(settings: &Settings, own: Properties<'_>) -> Result<PropertyBuf, Refusal> {
    let mut properties = PropertyBuf::new();
    let mut hops = 0;
    for property in own.iter() {
        match property {
            Property::SubscriptionId(_) | Property::TopicAlias(_) => {}
            Property::User(HOPS_PROPERTY, count) => {
                hops = count.parse::<u8>().map_err(|_| Refusal::Hops)?.max(hops);
            }
            other => {
                properties.push(other);
            }
        }
    }
    if hops >= settings.hops_max {
        return Err(Refusal::Hops);
    }
    properties.push(Property::User(HOPS_PROPERTY, &(hops + 1).to_string()));
    Ok(properties)
}

/// The limits of the remote's topics are its own.
const UNLIMITED: topic::TopicLimits =
    topic::TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };
