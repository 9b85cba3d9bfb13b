//! DISCONNECT and AUTH.

use crate::header::PacketType;
use crate::properties::PropertyScope;
use crate::reader::Reader;
use crate::{Properties, Reason, Sender, Version, Violation, reason, rules, writer};

/// The last packet of a connection (section 3.14). Before version 5 only clients send it, and it
/// is empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disconnect<'a> {
    pub reason: Reason,
    pub properties: Properties<'a>,
}

impl<'a> Disconnect<'a> {
    /// A DISCONNECT without properties.
    pub const fn new(reason: Reason) -> Self {
        Disconnect { reason, properties: Properties::EMPTY }
    }

    pub(crate) fn read(mut reader: Reader<'a>, sender: Sender) -> Result<Self, Violation> {
        let mut disconnect = Disconnect::new(Reason::NORMAL_DISCONNECTION);
        if reader.is_empty() {
            return Ok(disconnect);
        }
        if reader.version < Version::V5 {
            return Err(reader.fail(&rules::TRAILING));
        }
        disconnect.reason = Reason(reader.byte()?);
        let allowed = match sender {
            Sender::Client => &reason::DISCONNECT_CLIENT,
            Sender::Server => &reason::DISCONNECT_SERVER,
        };
        if !allowed.contains(disconnect.reason.0) {
            return Err(reader.fail(&rules::REASON_DISCONNECT));
        }
        if !reader.is_empty() {
            disconnect.properties =
                Properties::read(&mut reader, PropertyScope::Disconnect(sender))?;
        }
        reader.finish()?;
        Ok(disconnect)
    }

    /// Appends the whole packet in its shortest form.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let first = PacketType::Disconnect.first_byte();
        let normal = self.reason == Reason::NORMAL_DISCONNECTION;
        if version < Version::V5 || (normal && self.properties.is_empty()) {
            out.extend_from_slice(&[first, 0]);
        } else if self.properties.is_empty() {
            out.extend_from_slice(&[first, 1, self.reason.0]);
        } else {
            writer::packet(out, first, |out| {
                out.push(self.reason.0);
                writer::properties(out, self.properties, version);
            });
        }
    }
}

/// A step of enhanced authentication (section 3.15), version 5 only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auth<'a> {
    pub reason: Reason,
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub(crate) fn read(mut reader: Reader<'a>, sender: Sender) -> Result<Self, Violation> {
        let allowed = match sender {
            Sender::Client => &reason::AUTH_CLIENT,
            Sender::Server => &reason::AUTH_SERVER,
        };
        // Reason and property length may be left out when they are 0 (section 3.15.2.1).
        let omitted = reader.is_empty();
        let reason = if omitted { Reason::SUCCESS } else { Reason(reader.byte()?) };
        if !allowed.contains(reason.0) {
            return Err(reader.fail(&rules::REASON_AUTH));
        }
        if omitted {
            return Ok(Auth { reason, properties: Properties::EMPTY });
        }
        if reader.is_empty() {
            return Err(reader.fail(&rules::AUTH_NO_METHOD));
        }
        let properties = Properties::read(&mut reader, PropertyScope::Auth)?;
        reader.finish()?;
        if properties.auth_method().is_none() {
            return Err(reader.fail(&rules::AUTH_NO_METHOD));
        }
        Ok(Auth { reason, properties })
    }

    /// Appends the whole packet. There is none before version 5: nothing is appended then.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        if version < Version::V5 {
            return;
        }
        let first = PacketType::Auth.first_byte();
        if self.reason == Reason::SUCCESS && self.properties.is_empty() {
            out.extend_from_slice(&[first, 0]);
            return;
        }
        writer::packet(out, first, |out| {
            out.push(self.reason.0);
            writer::properties(out, self.properties, version);
        });
    }
}
