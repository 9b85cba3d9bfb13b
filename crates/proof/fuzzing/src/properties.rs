//! The properties of MQTT 5, in each packet that carries some.

use codec::{Packet, Properties, Property, PropertyBuf, Sender, Version, decode, varint};

/// The first byte of the input chooses the packet, the rest are its properties.
pub fn properties(input: &[u8]) {
    let Some((&choice, raw)) = input.split_first() else { return };
    let (sender, bytes) = wrap(choice, raw);
    let Ok(Some((packet, taken))) = decode(&bytes, Version::V5, sender, u32::MAX) else { return };
    assert_eq!(taken, bytes.len());
    let properties = of(&packet);
    assert_eq!(properties.raw(), raw, "the properties are handed on as they came");
    let mut buf = PropertyBuf::new();
    for property in properties {
        buf.push(property);
    }
    assert_eq!(buf.as_properties().raw(), raw, "reading and writing them changes nothing");
    assert_eq!(properties.is_empty(), raw.is_empty());
    assert!(properties.user_properties().count() <= properties.iter().count());
}

/// A packet of the chosen kind around the properties.
fn wrap(choice: u8, raw: &[u8]) -> (Sender, Vec<u8>) {
    let mut length = Vec::new();
    varint::write(&mut length, raw.len() as u32);
    let raw = [&length[..], raw].concat();
    let (sender, first, before, after): (_, u8, &[u8], &[u8]) = match choice % 9 {
        0 => (Sender::Client, 0x10, b"\0\x04MQTT\x05\x02\0\x0A", b"\0\x01c"),
        1 => (Sender::Client, 0x10, b"\0\x04MQTT\x05\x06\0\x0A\0\0\x01c", b"\0\x01t\0\0"),
        2 => (Sender::Server, 0x20, b"\0\0", b""),
        3 => (Sender::Client, 0x30, b"\0\x01a", b"payload"),
        4 => (Sender::Server, 0x32, b"\0\x01a\0\x01", b"payload"),
        5 => (Sender::Client, 0x40, b"\0\x01\0", b""),
        6 => (Sender::Client, 0x82, b"\0\x01", b"\0\x01a\0"),
        7 => (Sender::Server, 0xE0, b"\0", b""),
        _ => (Sender::Client, 0xF0, b"\x18", b""),
    };
    let mut bytes = vec![first];
    varint::write(&mut bytes, (before.len() + raw.len() + after.len()) as u32);
    bytes.extend_from_slice(&[before, &raw, after].concat());
    (sender, bytes)
}

fn of<'a>(packet: &Packet<'a>) -> Properties<'a> {
    match packet {
        Packet::Connect(connect) => connect.will.map_or(connect.properties, |will| will.properties),
        Packet::Connack(connack) => connack.properties,
        Packet::Publish(publish) => publish.properties,
        Packet::Ack(ack) => ack.properties,
        Packet::Subscribe(subscribe) => subscribe.properties,
        Packet::Suback(suback) => suback.properties,
        Packet::Unsubscribe(unsubscribe) => unsubscribe.properties,
        Packet::Unsuback(unsuback) => unsuback.properties,
        Packet::Disconnect(disconnect) => disconnect.properties,
        Packet::Auth(auth) => auth.properties,
        Packet::Pingreq | Packet::Pingresp => Properties::EMPTY,
    }
}

/// Every property alone in every packet, and a few together.
pub fn seeds() -> Vec<Vec<u8>> {
    let all = [
        Property::PayloadFormat(1),
        Property::MessageExpirySecs(60),
        Property::ContentType("text/plain"),
        Property::ResponseTopic("re/ply"),
        Property::CorrelationData(b"\0\xFF"),
        Property::SubscriptionId(268_435_455),
        Property::SessionExpirySecs(u32::MAX),
        Property::AssignedClientId("auto-1"),
        Property::ServerKeepAliveSecs(30),
        Property::AuthMethod("PLAIN"),
        Property::AuthData(b"\0user\0secret"),
        Property::RequestProblemInfo(false),
        Property::WillDelaySecs(5),
        Property::RequestResponseInfo(true),
        Property::ResponseInfo("reply/"),
        Property::ServerReference("other:1883"),
        Property::ReasonString("because"),
        Property::ReceiveMax(10),
        Property::TopicAliasMax(10),
        Property::TopicAlias(3),
        Property::QosMax(1),
        Property::RetainAvailable(true),
        Property::User("key", "ä"),
        Property::PacketBytesMax(1024),
        Property::WildcardAvailable(true),
        Property::SubscriptionIdAvailable(false),
        Property::SharedAvailable(true),
    ];
    let mut seeds = Vec::new();
    for choice in 0..9_u8 {
        let mut together = PropertyBuf::new();
        for property in all {
            let mut alone = PropertyBuf::new();
            alone.push(property);
            let seed = [&[choice], alone.as_properties().raw()].concat();
            let (sender, bytes) = wrap(choice, &seed[1..]);
            if matches!(decode(&bytes, Version::V5, sender, u32::MAX), Ok(Some(_))) {
                together.push(property);
            }
            seeds.push(seed);
        }
        seeds.push([&[choice], together.as_properties().raw()].concat());
    }
    seeds
}
