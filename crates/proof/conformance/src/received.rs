//! Packets as they came from the server, taken apart with the rules of the standard for what a
//! server may send. A packet that breaks them fails the test that received it.

use crate::wire::{Version, prop};

/// One packet as it came: first byte and body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packet {
    pub first: u8,
    pub body: Vec<u8>,
    /// How many bytes the remaining length was written in.
    pub length_bytes: usize,
}

/// The value of a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Int(u32),
    Bytes(Vec<u8>),
    Pair(String, String),
}

/// Properties in the order in which they came.
pub type Received = Vec<(u8, Value)>;

#[derive(Clone, Debug)]
pub struct Connack {
    pub flags: u8,
    pub reason: u8,
    pub props: Received,
    pub packet_bytes: usize,
}

/// A PUBLISH from the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: String,
    pub packet_id: u16,
    pub props: Received,
    pub payload: Vec<u8>,
}

/// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK: packet id, reasons, properties.
#[derive(Clone, Debug)]
pub struct Acked {
    pub packet_id: u16,
    pub reasons: Vec<u8>,
    pub props: Received,
}

impl Packet {
    pub fn kind(&self) -> u8 {
        self.first & 0xF0
    }

    /// Bytes of the whole packet on the wire.
    pub fn packet_bytes(&self) -> usize {
        1 + self.length_bytes + self.body.len()
    }

    pub fn connack(&self, version: Version) -> Connack {
        assert_eq!(self.first, 0x20, "expected a CONNACK, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let (flags, reason) = (reader.byte(), reader.byte());
        let props = if version == Version::V5 { reader.props() } else { Vec::new() };
        reader.end();
        Connack { flags, reason, props, packet_bytes: self.packet_bytes() }
    }

    pub fn message(&self, version: Version) -> Message {
        assert_eq!(self.kind(), 0x30, "expected a PUBLISH, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let qos = self.first >> 1 & 3;
        let topic = reader.string();
        let packet_id = if qos > 0 { reader.two() } else { 0 };
        let props = if version == Version::V5 { reader.props() } else { Vec::new() };
        Message {
            dup: self.first & 8 != 0,
            qos,
            retain: self.first & 1 != 0,
            topic,
            packet_id,
            props,
            payload: reader.0.to_vec(),
        }
    }

    /// A PUBACK, PUBREC, PUBREL or PUBCOMP; a reason that is left out is success.
    pub fn ack(&self, first: u8, version: Version) -> Acked {
        assert_eq!(self.first, first, "expected an acknowledgement {first:#x}, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let packet_id = reader.two();
        if version < Version::V5 {
            reader.end();
            return Acked { packet_id, reasons: vec![0], props: Vec::new() };
        }
        let reason = if reader.0.is_empty() { 0 } else { reader.byte() };
        let props = if reader.0.is_empty() { Vec::new() } else { reader.props() };
        reader.end();
        Acked { packet_id, reasons: vec![reason], props }
    }

    /// A SUBACK or UNSUBACK.
    pub fn acks(&self, first: u8, version: Version) -> Acked {
        assert_eq!(self.first, first, "expected an acknowledgement {first:#x}, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let packet_id = reader.two();
        let props = if version == Version::V5 { reader.props() } else { Vec::new() };
        Acked { packet_id, reasons: reader.0.to_vec(), props }
    }

    /// A DISCONNECT of a server: reason and properties.
    pub fn disconnect(&self) -> (u8, Received) {
        assert_eq!(self.first, 0xE0, "expected a DISCONNECT, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let reason = if reader.0.is_empty() { 0 } else { reader.byte() };
        let props = if reader.0.is_empty() { Vec::new() } else { reader.props() };
        reader.end();
        (reason, props)
    }

    /// An AUTH of a server: reason and properties.
    pub fn auth(&self) -> (u8, Received) {
        assert_eq!(self.first, 0xF0, "expected an AUTH, got {self:02x?}");
        let mut reader = Reader(&self.body);
        let reason = if reader.0.is_empty() { 0 } else { reader.byte() };
        let props = if reader.0.is_empty() { Vec::new() } else { reader.props() };
        reader.end();
        (reason, props)
    }
}

impl Connack {
    pub fn session_present(&self) -> bool {
        self.flags & 1 != 0
    }

    pub fn int(&self, id: u8) -> Option<u32> {
        int(&self.props, id)
    }

    pub fn text(&self, id: u8) -> Option<String> {
        bytes(&self.props, id).map(|text| String::from_utf8(text).expect("a string is UTF-8"))
    }
}

impl Message {
    pub fn int(&self, id: u8) -> Option<u32> {
        int(&self.props, id)
    }

    pub fn bytes(&self, id: u8) -> Option<Vec<u8>> {
        bytes(&self.props, id)
    }

    pub fn users(&self) -> Vec<(String, String)> {
        let users = self.props.iter().filter_map(|(_, value)| match value {
            Value::Pair(name, value) => Some((name.clone(), value.clone())),
            Value::Int(_) | Value::Bytes(_) => None,
        });
        users.collect()
    }

    /// All subscription identifiers, sorted: their order has no meaning.
    pub fn subscription_ids(&self) -> Vec<u32> {
        let ids = self.props.iter().filter(|(id, _)| *id == prop::SUBSCRIPTION_ID);
        let mut ids: Vec<_> = ids.filter_map(|(_, value)| as_int(value)).collect();
        ids.sort_unstable();
        ids
    }
}

pub fn int(props: &Received, id: u8) -> Option<u32> {
    props.iter().find(|(found, _)| *found == id).and_then(|(_, value)| as_int(value))
}

pub fn bytes(props: &Received, id: u8) -> Option<Vec<u8>> {
    props.iter().find(|(found, _)| *found == id).and_then(|(_, value)| match value {
        Value::Bytes(bytes) => Some(bytes.clone()),
        Value::Int(_) | Value::Pair(..) => None,
    })
}

fn as_int(value: &Value) -> Option<u32> {
    if let Value::Int(value) = value { Some(*value) } else { None }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().expect("the packet ends too early");
        self.0 = rest;
        *first
    }

    fn two(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn four(&mut self) -> u32 {
        u32::from(self.two()) << 16 | u32::from(self.two())
    }

    fn varint(&mut self) -> u32 {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte();
            value |= u32::from(byte & 0x7F) << shift;
            if byte & 0x80 == 0 {
                assert!(byte != 0 || shift == 0, "a varint is longer than it need be");
                return value;
            }
        }
        panic!("a varint of more than four bytes");
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.two();
        self.take(usize::from(len)).to_vec()
    }

    fn string(&mut self) -> String {
        let text = String::from_utf8(self.bytes()).expect("the server sent a string in UTF-8");
        assert!(!text.contains('\0'), "the server sent U+0000 in a string");
        text
    }

    fn take(&mut self, len: usize) -> &[u8] {
        assert!(len <= self.0.len(), "the packet ends too early");
        let (taken, rest) = self.0.split_at(len);
        self.0 = rest;
        taken
    }

    fn props(&mut self) -> Received {
        let len = self.varint() as usize;
        let mut reader = Reader(self.take(len));
        let mut props = Vec::new();
        while !reader.0.is_empty() {
            let id = reader.byte();
            let value = reader.value(id);
            let once = id != prop::USER && id != prop::SUBSCRIPTION_ID;
            let again = props.iter().any(|(seen, _)| *seen == id);
            assert!(!(once && again), "the server sent property {id:#x} twice");
            props.push((id, value));
        }
        props
    }

    fn value(&mut self, id: u8) -> Value {
        match id {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2A => Value::Int(u32::from(self.byte())),
            0x13 | 0x21..=0x23 => Value::Int(u32::from(self.two())),
            0x02 | 0x11 | 0x18 | 0x27 => Value::Int(self.four()),
            0x0B => Value::Int(self.varint()),
            0x03 | 0x08 | 0x12 | 0x15 | 0x1A | 0x1C | 0x1F => {
                Value::Bytes(self.string().into_bytes())
            }
            0x09 | 0x16 => Value::Bytes(self.bytes()),
            0x26 => Value::Pair(self.string(), self.string()),
            _ => panic!("the server sent a property {id:#x} that does not exist"),
        }
    }

    fn end(&self) {
        assert!(self.0.is_empty(), "{} bytes too many in the packet", self.0.len());
    }
}
