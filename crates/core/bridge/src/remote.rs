//! What a bridge says in its CONNECT, and what it learns from the CONNACK.

use codec::{
    Connack, Connect, Packet, Properties, Property, PropertyBuf, QoS, Reason, Version, Will,
};

use crate::Settings;

/// As whom a bridge connects.
#[derive(Clone, Debug, Default)]
pub struct Login {
    pub client_id: String,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    /// A topic at the remote with the retained state of the bridge: 1 or 0.
    pub state_topic: Option<String>,
}

/// What a broker accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLimits {
    pub session_present: bool,
    pub receive_max: u16,
    pub packet_bytes_max: u32,
    pub qos_max: QoS,
    pub retain_available: bool,
    /// False with MQTT 3.1.1.
    pub has_subscription_ids: bool,
    /// 0: none.
    pub keep_alive_secs: u16,
}

/// A session that does not expire.
const NEVER_SECS: u32 = u32::MAX;

/// Appends the CONNECT of a bridge.
pub(crate) fn write_connect(settings: &Settings, login: &Login, out: &mut Vec<u8>) {
    let mut properties = PropertyBuf::new();
    if settings.version >= Version::V5 {
        if !settings.clean_session {
            properties.push(Property::SessionExpirySecs(NEVER_SECS));
        }
        properties.push(Property::ReceiveMax(settings.in_flight_max));
        properties.push(Property::PacketBytesMax(settings.packet_bytes_max));
    }
    let will = login.state_topic.as_deref().map(|topic| Will {
        topic,
        payload: DOWN,
        qos: QoS::AtLeastOnce,
        retain: true,
        properties: Properties::EMPTY,
    });
    let connect = Connect {
        version: settings.version,
        clean_start: settings.clean_session,
        keep_alive_secs: settings.keep_alive_secs,
        client_id: &login.client_id,
        properties: properties.as_properties(),
        will,
        username: login.username.as_deref(),
        password: login.password.as_deref(),
        bridge: settings.is_announced,
    };
    Packet::Connect(connect).encode(settings.version, out);
}

impl PeerLimits {
    /// Before its CONNACK.
    pub(crate) const fn unknown(packet_bytes_max: u32, keep_alive_secs: u16) -> Self {
        Self {
            session_present: false,
            receive_max: u16::MAX,
            packet_bytes_max,
            qos_max: QoS::ExactlyOnce,
            retain_available: true,
            has_subscription_ids: false,
            keep_alive_secs,
        }
    }

    /// Takes over what a CONNACK says.
    pub(crate) fn learn(&mut self, connack: &Connack<'_>, version: Version) {
        self.session_present = connack.session_present;
        self.has_subscription_ids = version >= Version::V5;
        let limits = self;
        for property in connack.properties.iter() {
            match property {
                Property::ReceiveMax(max) => limits.receive_max = max,
                Property::PacketBytesMax(max) => {
                    limits.packet_bytes_max = limits.packet_bytes_max.min(max);
                }
                Property::QosMax(max) => {
                    limits.qos_max = QoS::from_bits(max).unwrap_or(QoS::AtMostOnce);
                }
                Property::RetainAvailable(is_available) => limits.retain_available = is_available,
                Property::SubscriptionIdAvailable(is_available) => {
                    limits.has_subscription_ids = is_available;
                }
                Property::ServerKeepAliveSecs(secs) => limits.keep_alive_secs = secs,
                _ => {}
            }
        }
    }
}

/// Whether a remote of MQTT 3.1.1 has refused a CONNECT because it does not know bridges.
pub(crate) fn refuses_announcement(connack: &Connack<'_>, settings: &Settings) -> bool {
    connack.reason == Reason::UNSUPPORTED_PROTOCOL_VERSION
        && settings.is_announced
        && settings.version < Version::V5
}

/// Payloads of the state topic.
pub(crate) const UP: &[u8] = b"1";
pub(crate) const DOWN: &[u8] = b"0";
