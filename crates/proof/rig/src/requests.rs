//! Packets and requests of clients, with nothing special about them.

use std::sync::Arc;

use broker::admission::{self, Admission, Refusal};
use broker::{ConnectRequest, Limits};
use codec::{
    Connect, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish, QoS, Subscribe,
    SubscribeOptions, Version,
};
use policy::{Permission, Rule, Who};
use session::{Overflow, QueueLimits, Will};

/// A request of version 5 with a clean session that lasts as long as its connection.
pub fn request(client_id: &str) -> ConnectRequest {
    request_with(client_id, Limits::default())
}

pub fn request_with(client_id: &str, limits: Limits) -> ConnectRequest {
    admit(&connect_packet(client_id), &Arc::new(limits)).expect("a sound CONNECT")
}

/// The same, of a session that never expires.
pub fn persistent(client_id: &str) -> ConnectRequest {
    ConnectRequest { clean_start: false, session_expiry_secs: u32::MAX, ..request(client_id) }
}

pub fn of_version(version: Version, client_id: &str) -> ConnectRequest {
    let connect = Connect { version, ..connect_packet(client_id) };
    admit(&connect, &Arc::new(Limits::default())).expect("a sound CONNECT")
}

/// The request of a client that leaves a will.
pub fn with_will(request: ConnectRequest, will: Will) -> ConnectRequest {
    ConnectRequest { will: Some(Box::new(will)), ..request }
}

/// A will that says `gone`, at once.
pub fn will(topic: &str, qos: QoS) -> Will {
    Will {
        topic: topic.into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }
}

pub fn with_limits(request: ConnectRequest, limits: Limits) -> ConnectRequest {
    ConnectRequest { limits: Arc::new(limits), ..request }
}

pub fn window(in_flight_max: u16) -> Limits {
    Limits { in_flight_max, ..Limits::default() }
}

pub fn queue(messages_max: u32, overflow: Overflow) -> Limits {
    let queue = QueueLimits { messages_max, overflow, ..Limits::default().queue };
    Limits { queue, ..window(1) }
}

/// What an acceptor makes of a CONNECT.
pub fn admit(connect: &Connect<'_>, limits: &Arc<Limits>) -> Result<ConnectRequest, Refusal> {
    let mut bytes = Vec::new();
    Packet::Connect(*connect).encode(connect.version, &mut bytes);
    match admission::admit(&bytes, limits, "peer", || "assigned".into()) {
        Admission::Connect(credentials, len) => {
            assert_eq!(len, bytes.len());
            Ok(credentials.request)
        }
        Admission::Refuse(refusal) => Err(refusal),
        Admission::NeedMore => panic!("the packet is whole"),
    }
}

/// A CONNECT packet of version 5 with nothing special about it.
pub fn connect_packet(client_id: &str) -> Connect<'_> {
    Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_secs: 0,
        client_id,
        properties: Properties::EMPTY,
        will: None,
        username: None,
        password: None,
        bridge: false,
    }
}

pub fn publish<'a>(topic: &'a str, payload: &'a [u8], qos: u8, packet_id: u16) -> Packet<'a> {
    Packet::Publish(Publish {
        dup: false,
        qos: level(qos),
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload,
    })
}

pub fn retained<'a>(topic: &'a str, payload: &'a [u8], qos: u8, packet_id: u16) -> Packet<'a> {
    let Packet::Publish(publish) = publish(topic, payload, qos, packet_id) else { unreachable!() };
    Packet::Publish(Publish { retain: true, ..publish })
}

/// A SUBSCRIBE with packet ID 1.
pub fn subscribe_bytes(
    version: Version,
    filters: &[(&str, SubscribeOptions)],
    identifier: Option<u32>,
) -> Vec<u8> {
    let (mut asked, mut properties) = (FilterBuf::new(), PropertyBuf::new());
    for (filter, options) in filters {
        asked.push(filter, *options);
    }
    if let Some(identifier) = identifier {
        properties.push(Property::SubscriptionId(identifier));
    }
    let (properties, filters) = (properties.as_properties(), asked.as_filters());
    let mut bytes = Vec::new();
    Packet::Subscribe(Subscribe { packet_id: 1, properties, filters }).encode(version, &mut bytes);
    bytes
}

/// A packet as it is when it comes again.
pub fn again(packet: Packet<'_>) -> Packet<'_> {
    let Packet::Publish(publish) = packet else { panic!("it is no publish") };
    Packet::Publish(Publish { dup: true, ..publish })
}

pub fn level(qos: u8) -> QoS {
    QoS::try_from(qos).expect("0, 1 or 2")
}

pub fn rule(who: Who, permission: Permission, filter: &str) -> Rule {
    Rule { who, permission, filter: filter.into() }
}
