//! Which property may stand in which packet.

mod raw;

use codec::Sender::{Client, Server};
use codec::Version::V5;
use codec::{Property, PropertyBuf, decode};
use raw::*;

#[test]
fn each_property_has_its_places() {
    // Identifier and value of every property, and who may carry it (table 2-4 of the standard).
    let places = "CONNECT WILL CONNACK PUBLISH PUBACK SUBSCRIBE UNSUBSCRIBE DISCONNECT AUTH";
    let table: [(Property<'_>, &str); 27] = [
        (Property::PayloadFormat(1), "WILL PUBLISH"),
        (Property::MessageExpirySecs(1), "WILL PUBLISH"),
        (Property::ContentType("x"), "WILL PUBLISH"),
        (Property::ResponseTopic("x"), "WILL PUBLISH"),
        (Property::CorrelationData(b"x"), "WILL PUBLISH"),
        (Property::SubscriptionId(1), "PUBLISH SUBSCRIBE"),
        (Property::SessionExpirySecs(1), "CONNECT CONNACK DISCONNECT"),
        (Property::AssignedClientId("x"), "CONNACK"),
        (Property::ServerKeepAliveSecs(1), "CONNACK"),
        (Property::AuthMethod("x"), "CONNECT CONNACK AUTH"),
        (Property::AuthData(b"x"), "CONNECT CONNACK AUTH"),
        (Property::RequestProblemInfo(true), "CONNECT"),
        (Property::WillDelaySecs(1), "WILL"),
        (Property::RequestResponseInfo(true), "CONNECT"),
        (Property::ResponseInfo("x"), "CONNACK"),
        (Property::ServerReference("x"), "CONNACK DISCONNECT"),
        (Property::ReasonString("x"), "CONNACK PUBACK DISCONNECT AUTH"),
        (Property::ReceiveMax(1), "CONNECT CONNACK"),
        (Property::TopicAliasMax(1), "CONNECT CONNACK"),
        (Property::TopicAlias(1), "PUBLISH"),
        (Property::QosMax(1), "CONNACK"),
        (Property::RetainAvailable(true), "CONNACK"),
        (Property::User("x", "y"), places),
        (Property::PacketBytesMax(1), "CONNECT CONNACK"),
        (Property::WildcardAvailable(true), "CONNACK"),
        (Property::SubscriptionIdAvailable(true), "CONNACK"),
        (Property::SharedAvailable(true), "CONNACK"),
    ];
    for (property, expected) in table {
        let mut buf = PropertyBuf::new();
        buf.push(property);
        assert_eq!(buf.as_properties().iter().collect::<Vec<_>>(), [property]);
        for place in places.split(' ') {
            let found = carries(place, buf.as_properties().raw());
            // The method must be there too, and data needs its method in CONNECT.
            let lone = matches!(property, Property::AuthData(_)) && place == "CONNECT";
            let allowed = expected.split(' ').any(|name| name == place) && !lone;
            assert_eq!(found, allowed, "{property:?} in {place}");
        }
    }
}

/// Whether a packet of the place is accepted with these properties, from either side.
fn carries(place: &str, raw_properties: &[u8]) -> bool {
    let properties = [&[raw_properties.len() as u8], raw_properties].concat();
    let method_needed = place == "AUTH" && !raw_properties.starts_with(&[0x15]);
    let with_method = [&[raw_properties.len() as u8 + 4], raw_properties, b"\x15\0\x01m"].concat();
    let bytes = match place {
        "CONNECT" => connect_v5(2, raw_properties, b"\0\x01c"),
        "WILL" => connect_v5(6, b"", &[b"\0\x01c", &properties[..], b"\0\x01t\0\0"].concat()),
        "CONNACK" => raw(0x20, &[&[0, 0], &properties]),
        "PUBLISH" => publish_v5(raw_properties),
        "PUBACK" => raw(0x40, &[&[0, 1, 0], &properties]),
        "SUBSCRIBE" => raw(0x82, &[&[0, 1], &properties, b"\0\x01a\0"]),
        "UNSUBSCRIBE" => raw(0xA2, &[&[0, 1], &properties, b"\0\x01a"]),
        "DISCONNECT" => raw(0xE0, &[&[0], &properties]),
        "AUTH" if method_needed => raw(0xF0, &[&[0x18], &with_method]),
        "AUTH" => raw(0xF0, &[&[0x18], &properties]),
        _ => panic!("no such place: {place}"),
    };
    [Client, Server]
        .iter()
        .any(|&sender| matches!(decode(&bytes, V5, sender, ANY_SIZE), Ok(Some(_))))
}
