//! The few shapes that all packets are written in.

use crate::{Properties, Version, varint};

/// Appends a whole packet: the type and flags byte, the length of what `body` writes, and that.
pub(crate) fn packet(out: &mut Vec<u8>, first: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(first);
    // Nearly every packet but PUBLISH is shorter than 128 bytes: leave room for one length byte,
    // and move the body only when it turns out longer.
    let length_at = out.len();
    out.push(0);
    let body_at = out.len();
    body(out);
    let body_bytes = length(out.len() - body_at);
    if body_bytes < 0x80 {
        out[length_at] = body_bytes as u8;
        return;
    }
    let mut prefix = Vec::with_capacity(4);
    varint::write(&mut prefix, body_bytes);
    out.splice(length_at..body_at, prefix);
}

pub(crate) fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    assert!(bytes.len() <= usize::from(u16::MAX), "a field of MQTT holds at most 65,535 bytes");
    out.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(bytes);
}

pub(crate) fn text(out: &mut Vec<u8>, text: &str) {
    binary(out, text.as_bytes());
}

/// Appends the property length and the properties; nothing before version 5.
pub(crate) fn properties(out: &mut Vec<u8>, properties: Properties<'_>, version: Version) {
    if version >= Version::V5 {
        varint::write(out, length(properties.raw().len()));
        out.extend_from_slice(properties.raw());
    }
}

/// Bytes that [`properties`] appends.
pub(crate) fn properties_len(properties: Properties<'_>, version: Version) -> usize {
    if version < Version::V5 {
        return 0;
    }
    let len = properties.raw().len();
    varint::len(length(len)) + len
}

/// A length as the type of variable byte integers. What does not even fit that type stays too
/// large for one and is refused where it is written.
pub(crate) fn length(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
