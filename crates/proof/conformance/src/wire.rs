//! Packets as a client writes them, put together byte by byte.
//!
//! The builders write what they are told, also what no client should: there are no checks here.

/// Protocol version of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Version {
    V31 = 3,
    V311 = 4,
    V5 = 5,
}

/// Property identifiers of MQTT 5.
pub mod prop {
    pub const PAYLOAD_FORMAT: u8 = 0x01;
    pub const MESSAGE_EXPIRY: u8 = 0x02;
    pub const CONTENT_TYPE: u8 = 0x03;
    pub const RESPONSE_TOPIC: u8 = 0x08;
    pub const CORRELATION_DATA: u8 = 0x09;
    pub const SUBSCRIPTION_ID: u8 = 0x0B;
    pub const SESSION_EXPIRY: u8 = 0x11;
    pub const ASSIGNED_CLIENT_ID: u8 = 0x12;
    pub const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub const AUTH_METHOD: u8 = 0x15;
    pub const AUTH_DATA: u8 = 0x16;
    pub const REQUEST_PROBLEM_INFO: u8 = 0x17;
    pub const WILL_DELAY: u8 = 0x18;
    pub const REQUEST_RESPONSE_INFO: u8 = 0x19;
    pub const RESPONSE_INFO: u8 = 0x1A;
    pub const SERVER_REFERENCE: u8 = 0x1C;
    pub const REASON_STRING: u8 = 0x1F;
    pub const RECEIVE_MAX: u8 = 0x21;
    pub const TOPIC_ALIAS_MAX: u8 = 0x22;
    pub const TOPIC_ALIAS: u8 = 0x23;
    pub const QOS_MAX: u8 = 0x24;
    pub const RETAIN_AVAILABLE: u8 = 0x25;
    pub const USER: u8 = 0x26;
    pub const PACKET_BYTES_MAX: u8 = 0x27;
    pub const WILDCARD_AVAILABLE: u8 = 0x28;
    pub const SUBSCRIPTION_ID_AVAILABLE: u8 = 0x29;
    pub const SHARED_AVAILABLE: u8 = 0x2A;
}

/// First bytes of packets: the type in the high half, the flags the standard fixes in the low.
pub mod first {
    pub const CONNECT: u8 = 0x10;
    pub const CONNACK: u8 = 0x20;
    pub const PUBLISH: u8 = 0x30;
    pub const PUBACK: u8 = 0x40;
    pub const PUBREC: u8 = 0x50;
    pub const PUBREL: u8 = 0x62;
    pub const PUBCOMP: u8 = 0x70;
    pub const SUBSCRIBE: u8 = 0x82;
    pub const SUBACK: u8 = 0x90;
    pub const UNSUBSCRIBE: u8 = 0xA2;
    pub const UNSUBACK: u8 = 0xB0;
    pub const PINGREQ: u8 = 0xC0;
    pub const PINGRESP: u8 = 0xD0;
    pub const DISCONNECT: u8 = 0xE0;
    pub const AUTH: u8 = 0xF0;
}

/// A variable byte integer in the fewest bytes.
pub fn varint(mut value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let low = (value % 128) as u8;
        value /= 128;
        if value == 0 {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}

/// Bytes with their length in two bytes before them: a string or binary data.
pub fn prefixed(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    let mut out = (bytes.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out
}

/// A packet of any first byte around any body.
pub fn packet(first: u8, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut out = vec![first];
    out.extend(varint(body.len()));
    out.extend_from_slice(body);
    out
}

/// A list of MQTT 5 properties, in the order in which they are added.
#[derive(Clone, Default, Debug)]
pub struct Props(Vec<u8>);

impl Props {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn byte(mut self, id: u8, value: u8) -> Self {
        self.0.extend([id, value]);
        self
    }

    pub fn two(mut self, id: u8, value: u16) -> Self {
        self.0.push(id);
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn four(mut self, id: u8, value: u32) -> Self {
        self.0.push(id);
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn varint(mut self, id: u8, value: usize) -> Self {
        self.0.push(id);
        self.0.extend(varint(value));
        self
    }

    /// A string or binary property.
    pub fn bytes(mut self, id: u8, value: impl AsRef<[u8]>) -> Self {
        self.0.push(id);
        self.0.extend(prefixed(value));
        self
    }

    pub fn user(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.0.push(prop::USER);
        self.0.extend(prefixed(name));
        self.0.extend(prefixed(value));
        self
    }

    /// With the length before them, as they stand in an MQTT 5 packet; nothing in older versions.
    pub fn encoded(&self, version: Version) -> Vec<u8> {
        if version < Version::V5 {
            return Vec::new();
        }
        let mut out = varint(self.0.len());
        out.extend_from_slice(&self.0);
        out
    }
}

/// The will of a [`Connect`].
#[derive(Clone, Debug)]
pub struct Will {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub props: Props,
}

impl Will {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            retain: false,
            props: Props::new(),
        }
    }

    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }
}

/// A CONNECT packet; a fresh client id and a clean start unless told otherwise.
#[derive(Clone, Debug)]
pub struct Connect {
    pub version: Version,
    pub client_id: Vec<u8>,
    pub clean: bool,
    pub keep_alive_secs: u16,
    pub props: Props,
    pub will: Option<Will>,
    pub username: Option<Vec<u8>>,
    pub password: Option<Vec<u8>>,
    /// Laid over the connect flags with XOR, to set what no client should.
    pub flags_flipped: u8,
}

impl Connect {
    pub fn new(version: Version) -> Self {
        Self {
            version,
            client_id: crate::fresh_client().into_bytes(),
            clean: true,
            keep_alive_secs: 0,
            props: Props::new(),
            will: None,
            username: None,
            password: None,
            flags_flipped: 0,
        }
    }

    pub fn id(mut self, client_id: impl AsRef<[u8]>) -> Self {
        self.client_id = client_id.as_ref().to_vec();
        self
    }

    /// Clean Start 0, and a session that outlives the connection, in the way of the version.
    pub fn persistent(mut self) -> Self {
        self.clean = false;
        self.session_expiry(3600)
    }

    /// The Session Expiry Interval in seconds; without effect before MQTT 5.
    pub fn session_expiry(mut self, secs: u32) -> Self {
        self.props = self.props.four(prop::SESSION_EXPIRY, secs);
        self
    }

    pub fn resume(mut self) -> Self {
        self.clean = false;
        self
    }

    pub fn clean(mut self) -> Self {
        self.clean = true;
        self
    }

    pub fn keep_alive(mut self, secs: u16) -> Self {
        self.keep_alive_secs = secs;
        self
    }

    pub fn props(mut self, props: Props) -> Self {
        self.props.0.extend(props.0);
        self
    }

    pub fn will(mut self, will: Will) -> Self {
        self.will = Some(will);
        self
    }

    pub fn user(mut self, name: impl AsRef<[u8]>) -> Self {
        self.username = Some(name.as_ref().to_vec());
        self
    }

    pub fn password(mut self, password: impl AsRef<[u8]>) -> Self {
        self.password = Some(password.as_ref().to_vec());
        self
    }

    pub fn flip(mut self, flags: u8) -> Self {
        self.flags_flipped ^= flags;
        self
    }

    /// The connect flags as the fields ask for them.
    pub fn flags(&self) -> u8 {
        let mut flags = u8::from(self.clean) << 1;
        if let Some(will) = &self.will {
            flags |= 0x04 | will.qos << 3 | u8::from(will.retain) << 5;
        }
        flags |= u8::from(self.password.is_some()) << 6;
        flags |= u8::from(self.username.is_some()) << 7;
        flags ^ self.flags_flipped
    }

    /// Protocol name and version, flags, keep alive, properties.
    pub fn header(&self) -> Vec<u8> {
        let name = if self.version == Version::V31 { "MQIsdp" } else { "MQTT" };
        let mut out = prefixed(name);
        out.push(self.version as u8);
        out.push(self.flags());
        out.extend(self.keep_alive_secs.to_be_bytes());
        out.extend(self.props.encoded(self.version));
        out
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut out = prefixed(&self.client_id);
        if let Some(will) = &self.will {
            out.extend(will.props.encoded(self.version));
            out.extend(prefixed(&will.topic));
            out.extend(prefixed(&will.payload));
        }
        out.extend(self.username.iter().flat_map(prefixed));
        out.extend(self.password.iter().flat_map(prefixed));
        out
    }

    pub fn encoded(&self) -> Vec<u8> {
        packet(first::CONNECT, [self.header(), self.payload()].concat())
    }
}

/// A PUBLISH packet.
#[derive(Clone, Debug)]
pub struct Publish {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    pub dup: bool,
    pub packet_id: u16,
    pub props: Props,
}

impl Publish {
    pub fn new(topic: impl AsRef<[u8]>, payload: impl AsRef<[u8]>) -> Self {
        Self {
            topic: topic.as_ref().to_vec(),
            payload: payload.as_ref().to_vec(),
            qos: 0,
            retain: false,
            dup: false,
            packet_id: 0,
            props: Props::new(),
        }
    }

    pub fn qos(mut self, qos: u8) -> Self {
        self.qos = qos;
        self
    }

    pub fn id(mut self, packet_id: u16) -> Self {
        self.packet_id = packet_id;
        self
    }

    pub fn retain(mut self) -> Self {
        self.retain = true;
        self
    }

    pub fn dup(mut self) -> Self {
        self.dup = true;
        self
    }

    pub fn props(mut self, props: Props) -> Self {
        self.props = props;
        self
    }

    pub fn encoded(&self, version: Version) -> Vec<u8> {
        let flags = u8::from(self.dup) << 3 | self.qos << 1 | u8::from(self.retain);
        let mut body = prefixed(&self.topic);
        if self.qos > 0 {
            body.extend(self.packet_id.to_be_bytes());
        }
        body.extend(self.props.encoded(version));
        body.extend_from_slice(&self.payload);
        packet(first::PUBLISH | flags, body)
    }
}

/// A PUBACK, PUBREC, PUBREL or PUBCOMP in its short form, which means success.
pub fn ack(first: u8, packet_id: u16) -> Vec<u8> {
    packet(first, packet_id.to_be_bytes())
}

/// The same with a reason code of MQTT 5.
pub fn ack_with(first: u8, packet_id: u16, reason: u8) -> Vec<u8> {
    let [high, low] = packet_id.to_be_bytes();
    packet(first, [high, low, reason])
}

/// A SUBSCRIBE of filters with their options bytes.
pub fn subscribe(
    version: Version,
    packet_id: u16,
    props: &Props,
    filters: &[(impl AsRef<[u8]>, u8)],
) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.extend(props.encoded(version));
    for (filter, options) in filters {
        body.extend(prefixed(filter));
        body.push(*options);
    }
    packet(first::SUBSCRIBE, body)
}

pub fn unsubscribe(version: Version, packet_id: u16, filters: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    body.extend(Props::new().encoded(version));
    for filter in filters {
        body.extend(prefixed(filter));
    }
    packet(first::UNSUBSCRIBE, body)
}

pub fn pingreq() -> Vec<u8> {
    packet(first::PINGREQ, [])
}

/// A DISCONNECT that says nothing: all there is before MQTT 5, and reason 0x00 there.
pub fn disconnect() -> Vec<u8> {
    packet(first::DISCONNECT, [])
}

pub fn disconnect_with(reason: u8, props: &Props) -> Vec<u8> {
    let mut body = vec![reason];
    body.extend(props.encoded(Version::V5));
    packet(first::DISCONNECT, body)
}

pub fn auth(reason: u8, props: &Props) -> Vec<u8> {
    let mut body = vec![reason];
    body.extend(props.encoded(Version::V5));
    packet(first::AUTH, body)
}
