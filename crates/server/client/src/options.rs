//! What a client says in its CONNECT packet, owned.

use codec::{Connect, Properties, Property, PropertyBuf, QoS, Version, Will};

/// Everything in a CONNECT packet. Fields that MQTT 3 lacks are not sent to an MQTT 3 server.
#[derive(Clone, Debug, PartialEq)]
pub struct ConnectOptions {
    pub version: Version,
    /// Empty asks the server for an id (MQTT 3: only with `clean_start`).
    pub client_id: String,
    pub clean_start: bool,
    /// 0 turns keep-alive off.
    pub keep_alive_secs: u16,
    /// How long the server keeps the session after the connection ended; `u32::MAX` for ever.
    pub session_expiry_secs: u32,
    /// QoS 1 and 2 messages that the server may have in flight to us; `None` is 65,535.
    pub receive_max: Option<u16>,
    /// Largest packet that we accept. [`Machine`](crate::Machine) enforces it for MQTT 3 as well.
    pub packet_bytes_max: u32,
    /// Topic aliases that the server may use towards us.
    pub topic_alias_max: u16,
    pub username: Option<String>,
    pub password: Option<Vec<u8>>,
    pub will: Option<WillOptions>,
    pub user_properties: Vec<(String, String)>,
    pub request_problem_info: bool,
    pub request_response_info: bool,
    /// Enhanced authentication: method and first data.
    pub auth: Option<(String, Vec<u8>)>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            version: Version::V5,
            client_id: String::new(),
            clean_start: true,
            keep_alive_secs: 60,
            session_expiry_secs: 0,
            receive_max: None,
            packet_bytes_max: PACKET_BYTES_MAX,
            topic_alias_max: 0,
            username: None,
            password: None,
            will: None,
            user_properties: Vec::new(),
            request_problem_info: true,
            request_response_info: false,
            auth: None,
        }
    }
}

/// What the server publishes when the connection ends without a DISCONNECT.
#[derive(Clone, Debug, PartialEq)]
pub struct WillOptions {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
    /// MQTT 5: seconds between the end of the connection and the will.
    pub delay_secs: u32,
    /// Further MQTT 5 properties of the message.
    pub properties: PropertyBuf,
}

impl ConnectOptions {
    /// Appends the CONNECT packet.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut properties = PropertyBuf::new();
        let mut will_properties = PropertyBuf::new();
        if self.version >= Version::V5 {
            self.push_properties(&mut properties);
            if let Some(will) = &self.will {
                will.push_properties(&mut will_properties);
            }
        }
        let connect = Connect {
            version: self.version,
            clean_start: self.clean_start,
            keep_alive_secs: self.keep_alive_secs,
            client_id: &self.client_id,
            properties: properties.as_properties(),
            will: self.will.as_ref().map(|will| will.as_will(will_properties.as_properties())),
            username: self.username.as_deref(),
            password: self.password.as_deref(),
            bridge: false,
        };
        connect.encode(self.version, out);
    }

    fn push_properties(&self, properties: &mut PropertyBuf) {
        if self.session_expiry_secs > 0 {
            properties.push(Property::SessionExpirySecs(self.session_expiry_secs));
        }
        if let Some(receive_max) = self.receive_max {
            properties.push(Property::ReceiveMax(receive_max));
        }
        if self.packet_bytes_max != PACKET_BYTES_MAX {
            properties.push(Property::PacketBytesMax(self.packet_bytes_max));
        }
        if self.topic_alias_max > 0 {
            properties.push(Property::TopicAliasMax(self.topic_alias_max));
        }
        if !self.request_problem_info {
            properties.push(Property::RequestProblemInfo(false));
        }
        if self.request_response_info {
            properties.push(Property::RequestResponseInfo(true));
        }
        for (name, value) in &self.user_properties {
            properties.push(Property::User(name, value));
        }
        if let Some((method, data)) = &self.auth {
            properties.push(Property::AuthMethod(method));
            if !data.is_empty() {
                properties.push(Property::AuthData(data));
            }
        }
    }
}

impl WillOptions {
    fn push_properties(&self, properties: &mut PropertyBuf) {
        if self.delay_secs > 0 {
            properties.push(Property::WillDelaySecs(self.delay_secs));
        }
        for property in self.properties.as_properties().iter() {
            properties.push(property);
        }
    }

    fn as_will<'a>(&'a self, properties: Properties<'a>) -> Will<'a> {
        Will {
            topic: &self.topic,
            payload: &self.payload,
            qos: self.qos,
            retain: self.retain,
            properties,
        }
    }
}

/// The largest packet that MQTT can express, which is also the default of the standard.
pub(crate) const PACKET_BYTES_MAX: u32 = 268_435_460;
