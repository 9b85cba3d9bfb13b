//! What becomes of one message: the same message with the topic of the other side, or a refusal.

use codec::{Properties, Property, PropertyBuf, Publish, QoS, Version};

use crate::settings::Ways;
use crate::{RemoteLimits, Settings, Side};

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
    /// Its QoS is above the highest one of the remote.
    Qos,
    /// The remote has sent another copy of it, for another subscription.
    Copy,
}

impl Refusal {
    pub const ALL: [Self; 6] =
        [Self::Unmapped, Self::Topic, Self::Hops, Self::Size, Self::Qos, Self::Copy];

    /// For labels and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unmapped => "unmapped",
            Self::Topic => "topic",
            Self::Hops => "hops",
            Self::Size => "size",
            Self::Qos => "qos",
            Self::Copy => "copy",
        }
    }
}

/// Appends the message for the other side.
///
/// # Errors
///
/// Why it is not relayed; nothing is appended then.
pub(crate) fn forward(
    settings: &Settings,
    ways: &Ways,
    remote: &RemoteLimits,
    from: Side,
    publish: &Publish<'_>,
    out: &mut Vec<u8>,
) -> Result<(), Refusal> {
    let topic = match from {
        Side::Local => ways.topic_out(publish.topic),
        Side::Remote => ways.topic_in(publish.topic),
    };
    let topic = topic.ok_or(Refusal::Unmapped)?;
    let (version, bytes_max) = match from {
        Side::Local => (settings.version, remote.packet_bytes_max),
        Side::Remote => (Version::V5, settings.packet_bytes_max),
    };
    let is_valid = match from {
        Side::Local => topic::check_topic(&topic, &UNLIMITED).is_ok(),
        Side::Remote => topic::check_topic(&topic, &settings.topic).is_ok(),
    };
    if !is_valid {
        return Err(Refusal::Topic);
    }
    if from == Side::Local && publish.qos > remote.qos_max {
        return Err(Refusal::Qos);
    }
    let properties = properties_of(settings, publish.properties)?;
    let relayed = Publish {
        dup: publish.dup,
        qos: publish.qos,
        // A remote without retained messages gets it as an ordinary one.
        retain: publish.retain && (from == Side::Remote || remote.retain_available),
        topic: &topic,
        packet_id: if publish.qos == QoS::AtMostOnce { 0 } else { publish.packet_id },
        properties: properties.as_properties(),
        payload: publish.payload,
    };
    if relayed.encoded_len(version) > bytes_max as usize {
        return Err(Refusal::Size);
    }
    relayed.encode(version, out);
    Ok(())
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
