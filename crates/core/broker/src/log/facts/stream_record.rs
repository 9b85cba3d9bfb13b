//! A published message as streams have it: in the journal, in memory, and in their files.

use codec::QoS;
use policy::{Attribute, Attributes, Number};

use crate::log::facts::fact::Malformed;
use crate::log::facts::wire::{Reader, put_bytes, put_fixed, put_number};

/// The message, and what was known of its publisher at the time of the publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamRecord<'a> {
    /// Broker time of the publish, in milliseconds since 1970.
    pub at_ms: u64,
    /// Random, of the process that stored it: a number that is given twice after a loss of power
    /// names two records.
    pub life: u64,
    pub qos: QoS,
    pub retain: bool,
    /// `u64::MAX`: never.
    pub expires_at_ms: u64,
    /// Empty: the publisher was no client.
    pub client_id: &'a str,
    /// The authentication name.
    pub username: Option<&'a str>,
    /// As [`put_attributes`] writes them; empty if there are none.
    pub attributes: &'a [u8],
    /// As a key: the scope, and the topic.
    pub topic: &'a str,
    /// Raw MQTT 5 properties.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

const RETAIN: u8 = 1 << 2;
const EXPIRES: u8 = 1 << 3;
const HAS_USERNAME: u8 = 1 << 4;
const HAS_ATTRIBUTES: u8 = 1 << 5;

/// Nested lists of an attribute. Deeper ones are malformed: no provider gives them.
const LISTS_MAX: u8 = 16;

impl<'a> StreamRecord<'a> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        let expires = self.expires_at_ms != u64::MAX;
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        out.push(
            self.qos as u8
                | bit(self.retain, RETAIN)
                | bit(expires, EXPIRES)
                | bit(self.username.is_some(), HAS_USERNAME)
                | bit(!self.attributes.is_empty(), HAS_ATTRIBUTES),
        );
        put_fixed(out, self.life);
        put_number(out, self.at_ms);
        if expires {
            put_number(out, self.expires_at_ms);
        }
        put_bytes(out, self.client_id.as_bytes());
        if let Some(username) = self.username {
            put_bytes(out, username.as_bytes());
        }
        if !self.attributes.is_empty() {
            put_bytes(out, self.attributes);
        }
        put_bytes(out, self.topic.as_bytes());
        put_bytes(out, self.properties);
        out.extend_from_slice(self.payload);
    }

    /// # Errors
    ///
    /// The bytes are not what [`StreamRecord::encode`] writes.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        let flags = r.byte()?;
        let qos = match flags & 3 {
            0 => QoS::AtMostOnce,
            1 => QoS::AtLeastOnce,
            2 => QoS::ExactlyOnce,
            _ => return Err(Malformed("the QoS is unknown")),
        };
        if flags >> 6 != 0 {
            return Err(Malformed("a record of a stream has unknown flags"));
        }
        let (life, at_ms) = (r.fixed()?, r.number()?);
        let expires_at_ms = if flags & EXPIRES == 0 { u64::MAX } else { r.number()? };
        let client_id = r.text()?;
        let username = if flags & HAS_USERNAME == 0 { None } else { Some(r.text()?) };
        let attributes = if flags & HAS_ATTRIBUTES == 0 { &[][..] } else { r.bytes()? };
        let is_canonical = (flags & EXPIRES == 0 || expires_at_ms != u64::MAX)
            && (flags & HAS_ATTRIBUTES == 0 || !attributes.is_empty());
        if !is_canonical {
            return Err(Malformed("a record of a stream has a flag for nothing"));
        }
        Ok(Self {
            at_ms,
            life,
            qos,
            retain: flags & RETAIN != 0,
            expires_at_ms,
            client_id,
            username,
            attributes,
            topic: r.text()?,
            properties: r.bytes()?,
            payload: r.rest(),
        })
    }
}

/// Writes attributes for [`StreamRecord::attributes`]. None are no bytes.
pub fn put_attributes(out: &mut Vec<u8>, attributes: &Attributes) {
    for (name, value) in attributes.iter() {
        put_bytes(out, name.as_bytes());
        put_attribute(out, value);
    }
}

/// Reads [`StreamRecord::attributes`].
///
/// # Errors
///
/// The bytes are not what [`put_attributes`] writes.
pub fn read_attributes(bytes: &[u8]) -> Result<Attributes, Malformed> {
    let mut r = Reader(bytes);
    let mut values: Vec<(Box<str>, Attribute)> = Vec::new();
    while !r.is_empty() {
        let name = r.text()?.into();
        values.push((name, read_attribute(&mut r, LISTS_MAX)?));
    }
    Ok(Attributes::new(values))
}

fn put_attribute(out: &mut Vec<u8>, value: &Attribute) {
    match value {
        Attribute::Text(text) => {
            out.push(0);
            put_bytes(out, text.as_bytes());
        }
        Attribute::Number(number) => {
            out.push(1);
            put_bytes(out, number.to_string().as_bytes());
        }
        Attribute::List(items) => {
            out.push(2);
            put_number(out, items.len() as u64);
            for item in items {
                put_attribute(out, item);
            }
        }
    }
}

fn read_attribute(r: &mut Reader<'_>, lists: u8) -> Result<Attribute, Malformed> {
    match (r.byte()?, lists.checked_sub(1)) {
        (0, _) => Ok(Attribute::Text(r.text()?.into())),
        (1, _) => {
            let number = Number::parse(r.text()?);
            number.map(Attribute::Number).ok_or(Malformed("an attribute must be a number"))
        }
        (2, Some(lists)) => {
            let count = r.number()?;
            let items = (0..count).map(|_| read_attribute(r, lists));
            Ok(Attribute::List(items.collect::<Result<_, _>>()?))
        }
        _ => Err(Malformed("the kind of an attribute is unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(attributes: &'a [u8], username: Option<&'a str>) -> StreamRecord<'a> {
        StreamRecord {
            at_ms: 1_800_000_000_000,
            life: 7,
            qos: QoS::AtLeastOnce,
            retain: true,
            expires_at_ms: u64::MAX,
            client_id: "car-7",
            username,
            attributes,
            topic: "cars/7/speed",
            properties: &[1, 1],
            payload: b"{}",
        }
    }

    #[test]
    fn a_record_comes_back_with_the_attributes_of_its_publisher() {
        let number = Attribute::Number(Number::parse("2.5").unwrap());
        let list = Attribute::List(vec![number, Attribute::Text("b".into())].into());
        let attributes = Attributes::new([("site".into(), list)]);
        let mut raw = Vec::new();
        put_attributes(&mut raw, &attributes);
        for record in [record(&raw, Some("")), record(&[], None)] {
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let read = StreamRecord::decode(&bytes).unwrap();
            assert_eq!(read, record);
            let own = read_attributes(read.attributes).unwrap();
            assert_eq!(own.iter().count(), usize::from(!record.attributes.is_empty()));
        }
        assert_eq!(read_attributes(&raw).unwrap().get("site"), attributes.get("site"));
    }

    #[test]
    fn bytes_that_were_not_written_so_are_malformed() {
        let mut bytes = Vec::new();
        record(&[], None).encode(&mut bytes);
        for flags in [3, 0b100_0000, EXPIRES | 0x80] {
            bytes[0] = flags;
            assert!(StreamRecord::decode(&bytes).is_err(), "{flags}");
        }
        // A list in a list in a list, without an end.
        let deep = [&[1, b'a'][..], &[2, 1].repeat(100)].concat();
        assert!(read_attributes(&deep).is_err());
        assert!(read_attributes(&[1, b'a', 2, 0xff, 0xff, 0xff, 0xff, 0x7f]).is_err());
    }
}
