//! What the server's CONNACK says of itself.

use codec::{Properties, Property, QoS};

use super::Machine;

/// Kinds of subscriptions that the server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerTakes {
    pub wildcards: bool,
    pub shared: bool,
    pub identifiers: bool,
}

impl Default for PeerTakes {
    fn default() -> Self {
        Self { wildcards: true, shared: true, identifiers: true }
    }
}

impl<T> Machine<T> {
    /// Kinds of subscriptions that the server takes.
    pub fn peer_takes(&self) -> PeerTakes {
        self.peer_takes
    }

    /// How long the session outlives its connection: what we asked for, or what the server says.
    pub fn session_expiry_secs(&self) -> u32 {
        self.session_expiry_secs
    }

    pub(super) fn take_limits(&mut self, properties: Properties<'_>) {
        for property in properties.iter() {
            match property {
                Property::ReceiveMax(max) => self.window_max = max,
                Property::TopicAliasMax(max) => self.topic_alias_max = max,
                Property::PacketBytesMax(max) => self.peer_packet_bytes_max = max,
                Property::ServerKeepAliveSecs(secs) => self.keep_alive_secs = secs,
                Property::QosMax(0) => self.peer_qos_max = QoS::AtMostOnce,
                Property::QosMax(_) => self.peer_qos_max = QoS::AtLeastOnce,
                Property::RetainAvailable(is_there) => self.peer_retains = is_there,
                Property::WildcardAvailable(is_there) => self.peer_takes.wildcards = is_there,
                Property::SharedAvailable(is_there) => self.peer_takes.shared = is_there,
                Property::SubscriptionIdAvailable(is_there) => {
                    self.peer_takes.identifiers = is_there;
                }
                Property::SessionExpirySecs(secs) => self.session_expiry_secs = secs,
                _ => {}
            }
        }
    }
}
