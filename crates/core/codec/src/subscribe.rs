//! SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK.

use std::fmt;

use crate::header::PacketType;
use crate::properties::PropertyScope;
use crate::reader::Reader;
use crate::{Properties, QoS, Reason, Version, Violation, reason, rules, writer};

/// A request for messages (section 3.8).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// At least one.
    pub filters: Filters<'a>,
}

/// How a subscription wants its messages (section 3.8.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SubscribeOptions {
    /// The highest quality of service to deliver with.
    pub qos: QoS,
    pub no_local: bool,
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

/// When a subscription is sent the retained messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RetainHandling {
    Always = 0,
    /// Only if the subscription did not exist.
    IfNew = 1,
    Never = 2,
}

impl SubscribeOptions {
    /// What a version 3 subscription means.
    pub const fn new(qos: QoS) -> Self {
        Self {
            qos,
            no_local: false,
            retain_as_published: false,
            retain_handling: RetainHandling::Always,
        }
    }

    /// The byte on the wire of version 5. Its low two bits are that of version 3.
    pub const fn to_byte(self) -> u8 {
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }

    /// `None` for reserved bits, QoS 3 and retain handling 3.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let Some(qos) = QoS::from_bits(byte) else { return None };
        let retain_handling = match byte >> 4 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return None,
        };
        Some(Self {
            qos,
            no_local: byte & 0b0100 != 0,
            retain_as_published: byte & 0b1000 != 0,
            retain_handling,
        })
    }
}

impl<'a> Subscribe<'a> {
    pub(crate) fn read(mut reader: Reader<'a>) -> Result<Self, Violation> {
        let packet_id = list_packet_id(&mut reader)?;
        let properties = Properties::read(&mut reader, PropertyScope::Subscribe)?;
        if reader.is_empty() {
            return Err(reader.fail(&rules::SUBSCRIBE_EMPTY));
        }
        let version = reader.version;
        let raw = reader.remainder();
        let mut entries = Reader::new(raw, version);
        while !entries.is_empty() {
            let filter = filter(&mut entries)?;
            let options = entries.byte()?;
            check_options(&entries, filter, options)?;
        }
        Ok(Subscribe { packet_id, properties, filters: Filters { raw } })
    }

    /// Appends the whole packet. Before version 5 only the QoS of the options is sent.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        writer::packet(out, PacketType::Subscribe.first_byte(), |out| {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
            writer::properties(out, self.properties, version);
            if version >= Version::V5 {
                out.extend_from_slice(self.filters.raw);
                return;
            }
            for (filter, options) in self.filters.iter() {
                writer::text(out, filter);
                out.push(options.qos as u8);
            }
        });
    }
}

/// The filters of a SUBSCRIBE with their options: validated raw bytes, read lazily.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Filters<'a> {
    raw: &'a [u8],
}

impl<'a> Filters<'a> {
    /// The filters in order: the codes of SUBACK stand in the same order.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscribeOptions)> + use<'a> {
        let mut reader = Reader::new(self.raw, Version::V5);
        std::iter::from_fn(move || {
            let filter = reader.text().ok()?;
            let options = SubscribeOptions::from_byte(reader.byte().ok()?)?;
            Some((filter, options))
        })
    }
}

impl fmt::Debug for Filters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The filters of a SUBSCRIBE in the making.
#[derive(Clone, Debug, Default)]
pub struct FilterBuf {
    raw: Vec<u8>,
}

impl FilterBuf {
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// # Panics
    /// If the filter is longer than 65,535 bytes.
    pub fn push(&mut self, filter: &str, options: SubscribeOptions) -> &mut Self {
        writer::text(&mut self.raw, filter);
        self.raw.push(options.to_byte());
        self
    }

    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub fn as_filters(&self) -> Filters<'_> {
        Filters { raw: &self.raw }
    }
}

/// The server's answer to SUBSCRIBE (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Suback<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// One code per filter, in order: [`Reason`]s, before version 5 of 0, 1, 2 and 0x80 only.
    pub reasons: &'a [u8],
}

impl<'a> Suback<'a> {
    pub(crate) fn read(mut reader: Reader<'a>) -> Result<Self, Violation> {
        let packet_id = list_packet_id(&mut reader)?;
        let properties = Properties::read(&mut reader, PropertyScope::Acknowledgement)?;
        let reasons = reader.remainder();
        let allowed =
            if reader.version >= Version::V5 { &reason::SUBACK } else { &reason::SUBACK_V3 };
        if reasons.is_empty() {
            return Err(reader.fail(&rules::SUBACK_EMPTY));
        }
        if !reasons.iter().all(|&code| allowed.contains(code)) {
            return Err(reader.fail(&rules::SUBACK_REASON));
        }
        Ok(Suback { packet_id, properties, reasons })
    }

    /// Appends the whole packet. Before version 5 every refusal is sent as 0x80.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        writer::packet(out, PacketType::Suback.first_byte(), |out| {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
            writer::properties(out, self.properties, version);
            if version >= Version::V5 {
                out.extend_from_slice(self.reasons);
            } else {
                out.extend(self.reasons.iter().map(|&code| Reason(code).suback_v3()));
            }
        });
    }
}

/// The end of subscriptions (section 3.10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unsubscribe<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// At least one.
    pub filters: Topics<'a>,
}

impl<'a> Unsubscribe<'a> {
    pub(crate) fn read(mut reader: Reader<'a>) -> Result<Self, Violation> {
        let packet_id = list_packet_id(&mut reader)?;
        let properties = Properties::read(&mut reader, PropertyScope::Unsubscribe)?;
        if reader.is_empty() {
            return Err(reader.fail(&rules::UNSUBSCRIBE_EMPTY));
        }
        let version = reader.version;
        let raw = reader.remainder();
        let mut entries = Reader::new(raw, version);
        while !entries.is_empty() {
            filter(&mut entries)?;
        }
        Ok(Unsubscribe { packet_id, properties, filters: Topics { raw } })
    }

    /// Appends the whole packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        writer::packet(out, PacketType::Unsubscribe.first_byte(), |out| {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
            writer::properties(out, self.properties, version);
            out.extend_from_slice(self.filters.raw);
        });
    }
}

/// The filters of an UNSUBSCRIBE: validated raw bytes, read lazily.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Topics<'a> {
    raw: &'a [u8],
}

impl<'a> Topics<'a> {
    /// The filters in order: the codes of UNSUBACK stand in the same order.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = Reader::new(self.raw, Version::V5);
        std::iter::from_fn(move || reader.text().ok())
    }
}

impl fmt::Debug for Topics<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The filters of an UNSUBSCRIBE in the making.
#[derive(Clone, Debug, Default)]
pub struct TopicBuf {
    raw: Vec<u8>,
}

impl TopicBuf {
    pub const fn new() -> Self {
        Self { raw: Vec::new() }
    }

    /// # Panics
    /// If the filter is longer than 65,535 bytes.
    pub fn push(&mut self, filter: &str) -> &mut Self {
        writer::text(&mut self.raw, filter);
        self
    }

    pub fn clear(&mut self) {
        self.raw.clear();
    }

    pub fn as_topics(&self) -> Topics<'_> {
        Topics { raw: &self.raw }
    }
}

/// The server's answer to UNSUBSCRIBE (section 3.11).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unsuback<'a> {
    pub packet_id: u16,
    pub properties: Properties<'a>,
    /// One [`Reason`] per filter, in order; empty and not sent before version 5.
    pub reasons: &'a [u8],
}

impl<'a> Unsuback<'a> {
    pub(crate) fn read(mut reader: Reader<'a>) -> Result<Self, Violation> {
        let packet_id = list_packet_id(&mut reader)?;
        let properties = Properties::read(&mut reader, PropertyScope::Acknowledgement)?;
        if reader.version < Version::V5 {
            reader.finish()?;
            return Ok(Unsuback { packet_id, properties, reasons: &[] });
        }
        let reasons = reader.remainder();
        if reasons.is_empty() {
            return Err(reader.fail(&rules::UNSUBACK_EMPTY));
        }
        if !reasons.iter().all(|&code| reason::UNSUBACK.contains(code)) {
            return Err(reader.fail(&rules::UNSUBACK_REASON));
        }
        Ok(Unsuback { packet_id, properties, reasons })
    }

    /// Appends the whole packet.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        writer::packet(out, PacketType::Unsuback.first_byte(), |out| {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
            writer::properties(out, self.properties, version);
            if version >= Version::V5 {
                out.extend_from_slice(self.reasons);
            }
        });
    }
}

fn list_packet_id(reader: &mut Reader<'_>) -> Result<u16, Violation> {
    match reader.short()? {
        0 => Err(reader.fail(&rules::LIST_ID_ZERO)),
        packet_id => Ok(packet_id),
    }
}

fn filter<'a>(entries: &mut Reader<'a>) -> Result<&'a str, Violation> {
    let filter = entries.name()?;
    if filter.is_empty() {
        return Err(entries.fail(&rules::TOPIC_EMPTY));
    }
    Ok(filter)
}

fn check_options(entries: &Reader<'_>, filter: &str, options: u8) -> Result<(), Violation> {
    let reserved = if entries.version >= Version::V5 { 0b1100_0000 } else { 0b1111_1100 };
    if options & reserved != 0 {
        return Err(entries.fail(&rules::SUBSCRIBE_RESERVED));
    }
    if QoS::from_bits(options).is_none() {
        return Err(entries.fail(&rules::SUBSCRIBE_QOS_3));
    }
    let Some(options) = SubscribeOptions::from_byte(options) else {
        return Err(entries.fail(&rules::SUBSCRIBE_RETAIN_HANDLING_3));
    };
    if options.no_local && filter.starts_with("$share/") {
        return Err(entries.fail(&rules::SUBSCRIBE_SHARED_NO_LOCAL));
    }
    Ok(())
}
