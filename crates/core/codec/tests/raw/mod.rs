//! Packets written byte by byte, and what decoding them gives.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use codec::{Packet, Reason, Sender, Version, Violation, decode};

pub(crate) const ANY_SIZE: u32 = u32::MAX;

/// A packet of the given first byte and body, at most 127 bytes.
pub(crate) fn raw(first: u8, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    assert!(body.len() < 128);
    let mut bytes = vec![first, body.len() as u8];
    bytes.extend_from_slice(&body);
    bytes
}

pub(crate) fn accept(bytes: &[u8], version: Version, sender: Sender) -> Packet<'_> {
    let (packet, taken) = decode(bytes, version, sender, ANY_SIZE)
        .unwrap_or_else(|violation| panic!("refused {bytes:02X?}: {violation}"))
        .unwrap_or_else(|| panic!("wanted more than {bytes:02X?}"));
    assert_eq!(taken, bytes.len());
    packet
}

pub(crate) fn refuse(bytes: &[u8], version: Version, sender: Sender) -> Violation {
    match decode(bytes, version, sender, ANY_SIZE) {
        Err(violation) => violation,
        Ok(outcome) => panic!("took {bytes:02X?} for {outcome:?}"),
    }
}

/// Asserts that a client's packet is refused under the clause with the reason.
pub(crate) fn breaks(bytes: &[u8], version: Version, clause: &str, reason: Reason) {
    let violation = refuse(bytes, version, Sender::Client);
    assert_eq!((violation.clause, violation.reason), (clause, reason), "{bytes:02X?}: {violation}");
}

/// The same for a server's packet.
pub(crate) fn server_breaks(bytes: &[u8], version: Version, clause: &str, reason: Reason) {
    let violation = refuse(bytes, version, Sender::Server);
    assert_eq!((violation.clause, violation.reason), (clause, reason), "{bytes:02X?}: {violation}");
}

pub(crate) fn connect_v5(flags: u8, properties: &[u8], payload: &[u8]) -> Vec<u8> {
    let properties = [&[properties.len() as u8], properties].concat();
    raw(0x10, &[b"\0\x04MQTT\x05", &[flags, 0, 10], &properties, payload])
}

pub(crate) fn connect_v311(flags: u8, payload: &[u8]) -> Vec<u8> {
    raw(0x10, &[b"\0\x04MQTT\x04", &[flags, 0, 10], payload])
}

pub(crate) fn connect_v31(flags: u8, payload: &[u8]) -> Vec<u8> {
    raw(0x10, &[b"\0\x06MQIsdp\x03", &[flags, 0, 10], payload])
}

pub(crate) fn publish_v5(properties: &[u8]) -> Vec<u8> {
    raw(0x30, &[b"\0\x01a", &[properties.len() as u8], properties, b"payload"])
}

pub(crate) fn subscribe_v5(filter: &[u8], options: u8) -> Vec<u8> {
    raw(0x82, &[&[0, 1, 0, 0, filter.len() as u8], filter, &[options]])
}
