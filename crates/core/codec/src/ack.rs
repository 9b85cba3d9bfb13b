//! PUBACK, PUBREC, PUBREL and PUBCOMP: four packets of one shape.

use crate::header::PacketType;
use crate::properties::PropertyScope;
use crate::reader::Reader;
use crate::reason::{self, ReasonSet};
use crate::rules::{self, Rule};
use crate::{Properties, Reason, Version, Violation, writer};

/// One step of a QoS 1 or QoS 2 exchange (sections 3.4 to 3.7).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ack<'a> {
    pub kind: AckKind,
    pub packet_id: u16,
    /// Always success before version 5.
    pub reason: Reason,
    pub properties: Properties<'a>,
}

/// Which of the four acknowledgements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AckKind {
    Puback,
    Pubrec,
    Pubrel,
    Pubcomp,
}

impl<'a> Ack<'a> {
    /// An acknowledgement without properties.
    pub const fn new(kind: AckKind, packet_id: u16, reason: Reason) -> Self {
        Ack { kind, packet_id, reason, properties: Properties::EMPTY }
    }

    #[inline]
    pub(crate) fn read(mut reader: Reader<'a>, kind: AckKind) -> Result<Self, Violation> {
        let packet_id = reader.short()?;
        if packet_id == 0 {
            return Err(reader.fail(&rules::PACKET_ID_ZERO));
        }
        let mut ack = Ack::new(kind, packet_id, Reason::SUCCESS);
        if reader.is_empty() {
            return Ok(ack);
        }
        if reader.version < Version::V5 {
            return Err(reader.fail(&rules::TRAILING));
        }
        ack.reason = Reason(reader.byte()?);
        let (reasons, rule) = kind.reasons();
        if !reasons.contains(ack.reason.0) {
            return Err(reader.fail(rule));
        }
        if !reader.is_empty() {
            ack.properties = Properties::read(&mut reader, PropertyScope::Acknowledgement)?;
        }
        reader.finish()?;
        Ok(ack)
    }

    /// Appends the whole packet in its shortest form.
    #[inline]
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        if version < Version::V5 || (self.reason == Reason::SUCCESS && self.properties.is_empty()) {
            let [high, low] = self.packet_id.to_be_bytes();
            out.extend_from_slice(&[self.kind.packet().first_byte(), 2, high, low]);
        } else {
            self.encode_reason(version, out);
        }
    }

    fn encode_reason(&self, version: Version, out: &mut Vec<u8>) {
        let first = self.kind.packet().first_byte();
        let [high, low] = self.packet_id.to_be_bytes();
        if self.properties.is_empty() {
            out.extend_from_slice(&[first, 3, high, low, self.reason.0]);
        } else {
            writer::packet(out, first, |out| {
                out.extend_from_slice(&[high, low, self.reason.0]);
                writer::properties(out, self.properties, version);
            });
        }
    }
}

impl AckKind {
    #[inline]
    const fn packet(self) -> PacketType {
        match self {
            Self::Puback => PacketType::Puback,
            Self::Pubrec => PacketType::Pubrec,
            Self::Pubrel => PacketType::Pubrel,
            Self::Pubcomp => PacketType::Pubcomp,
        }
    }

    fn reasons(self) -> (&'static ReasonSet, &'static Rule) {
        match self {
            Self::Puback => (&reason::PUBACK, &rules::REASON_PUBACK),
            Self::Pubrec => (&reason::PUBACK, &rules::REASON_PUBREC),
            Self::Pubrel => (&reason::PUBREL, &rules::REASON_PUBREL),
            Self::Pubcomp => (&reason::PUBREL, &rules::REASON_PUBCOMP),
        }
    }
}
