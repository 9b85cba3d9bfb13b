//! Packets that a client got.

use codec::{AckKind, Packet, Reason};

/// A packet that a client was sent, owned.
#[derive(Clone, Debug, PartialEq)]
pub enum Got {
    Connack { session_present: bool, reason: Reason, properties: Vec<u8> },
    Publish(Received),
    Ack(AckKind, u16, Reason),
    Suback(u16, Vec<u8>),
    Unsuback(u16, Vec<u8>),
    Pingresp,
    Disconnect(Reason),
    Auth(Reason, Vec<u8>),
}

/// A PUBLISH that a client was sent.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Received {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub dup: bool,
    pub retain: bool,
    pub packet_id: u16,
    pub alias: Option<u16>,
    pub identifiers: Vec<u32>,
    pub expiry_secs: Option<u32>,
}

pub(crate) fn own(packet: &Packet<'_>) -> Got {
    match packet {
        Packet::Connack(connack) => Got::Connack {
            session_present: connack.session_present,
            reason: connack.reason,
            properties: connack.properties.raw().to_vec(),
        },
        Packet::Publish(publish) => Got::Publish(Received {
            topic: publish.topic.into(),
            payload: publish.payload.to_vec(),
            qos: publish.qos as u8,
            dup: publish.dup,
            retain: publish.retain,
            packet_id: publish.packet_id,
            alias: publish.properties.topic_alias(),
            identifiers: publish.properties.subscription_ids().collect(),
            expiry_secs: publish.properties.message_expiry_secs(),
        }),
        Packet::Ack(ack) => Got::Ack(ack.kind, ack.packet_id, ack.reason),
        Packet::Suback(suback) => Got::Suback(suback.packet_id, suback.reasons.to_vec()),
        Packet::Unsuback(unsuback) => Got::Unsuback(unsuback.packet_id, unsuback.reasons.to_vec()),
        Packet::Pingresp => Got::Pingresp,
        Packet::Disconnect(disconnect) => Got::Disconnect(disconnect.reason),
        Packet::Auth(auth) => {
            Got::Auth(auth.reason, auth.properties.auth_data().unwrap_or_default().to_vec())
        }
        other => panic!("a server does not send {other:?}"),
    }
}
