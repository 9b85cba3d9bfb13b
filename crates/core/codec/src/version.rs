//! The three protocol versions, the three levels of delivery, and the two directions.

/// The protocol version that a connection speaks. Ordered: `version >= Version::V5` reads well.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Version {
    /// MQTT 3.1, protocol name `MQIsdp`.
    V31 = 3,
    /// MQTT 3.1.1.
    V311 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

impl Version {
    /// The protocol level byte of CONNECT.
    pub const fn level(self) -> u8 {
        self as u8
    }

    /// The protocol name of CONNECT: `MQIsdp` for 3.1, `MQTT` since.
    pub const fn protocol_name(self) -> &'static str {
        match self {
            Self::V31 => "MQIsdp",
            Self::V311 | Self::V5 => "MQTT",
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::V31 => "3.1",
            Self::V311 => "3.1.1",
            Self::V5 => "5",
        })
    }
}

/// Quality of service of a message or the most that a subscription wants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum QoS {
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// The level that the low two bits of `bits` name, or `None` for the reserved value 3.
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<Self> {
        const LEVELS: [Option<QoS>; 4] =
            [Some(QoS::AtMostOnce), Some(QoS::AtLeastOnce), Some(QoS::ExactlyOnce), None];
        LEVELS[(bits & 0b11) as usize]
    }
}

impl TryFrom<u8> for QoS {
    type Error = NotAQoS;

    fn try_from(value: u8) -> Result<Self, NotAQoS> {
        if value > 2 {
            return Err(NotAQoS(value));
        }
        Self::from_bits(value).ok_or(NotAQoS(value))
    }
}

impl From<QoS> for u8 {
    fn from(qos: QoS) -> Self {
        qos as Self
    }
}

/// The number is none of the three quality of service levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("quality of service must be 0, 1 or 2, not {0}")]
pub struct NotAQoS(pub u8);

/// Who sent the bytes: a packet that only the other side may send is a violation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    Client,
    Server,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qos_is_0_1_or_2() {
        for value in 0..=255_u8 {
            assert_eq!(QoS::try_from(value).is_ok(), value <= 2, "{value}");
        }
        assert_eq!(QoS::from_bits(0b110), Some(QoS::ExactlyOnce));
        assert_eq!(u8::from(QoS::AtLeastOnce), 1);
    }

    #[test]
    fn versions_are_ordered() {
        assert!(Version::V31 < Version::V311 && Version::V311 < Version::V5);
        assert_eq!(Version::V31.protocol_name(), "MQIsdp");
        assert_eq!(Version::V5.to_string(), "5");
    }
}
