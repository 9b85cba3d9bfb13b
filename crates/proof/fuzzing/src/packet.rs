//! Whole packets, in both directions.

use codec::{
    Ack, AckKind, Auth, Connack, Connect, Disconnect, FilterBuf, Packet, Properties, Property,
    PropertyBuf, Publish, QoS, Reason, RetainHandling, Sender, Suback, Subscribe, SubscribeOptions,
    TopicBuf, Unsuback, Unsubscribe, Version, Will, decode, packet_len,
};

/// The first byte of the input chooses the version, the rest is what the client sent.
pub fn decode_client(input: &[u8]) {
    decode_stream(input, Sender::Client);
}

/// The same for bytes from a server.
pub fn decode_server(input: &[u8]) {
    decode_stream(input, Sender::Server);
}

fn decode_stream(input: &[u8], sender: Sender) {
    let Some((&choice, mut bytes)) = input.split_first() else { return };
    let mut version = [Version::V31, Version::V311, Version::V5][usize::from(choice) % 3];
    let packet_bytes_max = if choice & 0x80 == 0 { u32::MAX } else { 64 };
    loop {
        check_prefix(bytes, usize::from(choice), version, sender, packet_bytes_max);
        let Ok(Some((packet, taken))) = decode(bytes, version, sender, packet_bytes_max) else {
            return;
        };
        assert!((2..=bytes.len()).contains(&taken) && taken as u64 <= packet_bytes_max.into());
        assert_eq!(packet_len(bytes), Ok(Some(taken)));
        check_round_trip(&packet, version, sender);
        if let Packet::Connect(connect) = packet {
            version = connect.version;
        }
        bytes = &bytes[taken..];
    }
}

/// What a prefix gives is nothing yet, or what the whole gives.
fn check_prefix(bytes: &[u8], cut: usize, version: Version, sender: Sender, max: u32) {
    let whole = decode(bytes, version, sender, max);
    for len in [0, 1, 2, 3, cut % (bytes.len() + 1), bytes.len().saturating_sub(1)] {
        let part = decode(&bytes[..len.min(bytes.len())], version, sender, max);
        assert!(part == Ok(None) || part == whole, "{part:?} instead of {whole:?}");
    }
}

/// What was decoded encodes to something that decodes to the same, lazily read parts included.
fn check_round_trip(packet: &Packet<'_>, version: Version, sender: Sender) {
    let mut again = Vec::new();
    packet.encode(version, &mut again);
    assert_eq!(decode(&again, version, sender, u32::MAX), Ok(Some((*packet, again.len()))));
    assert!(!format!("{packet:?}").is_empty());
}

/// One packet of each kind that a client sends, in each version.
pub fn client_seeds() -> Vec<Vec<u8>> {
    seeds(Sender::Client)
}

/// One packet of each kind that a server sends, in each version.
pub fn server_seeds() -> Vec<Vec<u8>> {
    seeds(Sender::Server)
}

fn seeds(sender: Sender) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (choice, version) in [Version::V31, Version::V311, Version::V5].into_iter().enumerate() {
        let mut all = vec![choice as u8];
        each_packet(version, sender, &mut |packet| {
            let mut seed = vec![choice as u8];
            packet.encode(version, &mut seed);
            all.extend_from_slice(&seed[1..]);
            seeds.push(seed);
        });
        seeds.push(all);
    }
    seeds
}

fn each_packet(version: Version, sender: Sender, then: &mut dyn FnMut(Packet<'_>)) {
    let mut text = PropertyBuf::new();
    text.push(Property::ReasonString("because")).push(Property::User("k", "v"));
    let text = text.as_properties();
    let mut message = PropertyBuf::new();
    message
        .push(Property::PayloadFormat(1))
        .push(Property::MessageExpirySecs(60))
        .push(Property::ResponseTopic("re/ply"))
        .push(Property::CorrelationData(b"id"))
        .push(Property::TopicAlias(3));
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let packet_id = if qos == QoS::AtMostOnce { 0 } else { 258 };
        then(Packet::Publish(Publish {
            dup: qos == QoS::ExactlyOnce,
            qos,
            retain: qos == QoS::AtLeastOnce,
            topic: "tele/ä/1",
            packet_id,
            properties: message.as_properties(),
            payload: b"payload",
        }));
    }
    for kind in [AckKind::Puback, AckKind::Pubrec, AckKind::Pubrel, AckKind::Pubcomp] {
        then(Packet::Ack(Ack { kind, packet_id: 258, reason: Reason::SUCCESS, properties: text }));
    }
    match sender {
        Sender::Client => each_client_packet(version, text, message.as_properties(), then),
        Sender::Server => each_server_packet(version, text, then),
    }
}

fn each_client_packet(
    version: Version,
    text: Properties<'_>,
    message: Properties<'_>,
    then: &mut dyn FnMut(Packet<'_>),
) {
    let mut properties = PropertyBuf::new();
    properties
        .push(Property::SessionExpirySecs(3600))
        .push(Property::ReceiveMax(10))
        .push(Property::PacketBytesMax(1 << 20))
        .push(Property::AuthMethod("SCRAM-SHA-256"))
        .push(Property::AuthData(b"n,,n=u,r=x"));
    // A will has no topic alias, which stands last.
    let will_properties = Properties::from_raw(&message.raw()[..message.raw().len() - 3]);
    then(Packet::Connect(Connect {
        version,
        clean_start: true,
        keep_alive_secs: 60,
        client_id: "client",
        properties: properties.as_properties(),
        will: Some(Will {
            topic: "last/words",
            payload: b"gone",
            qos: QoS::AtLeastOnce,
            retain: true,
            properties: will_properties,
        }),
        username: Some("user"),
        password: Some(b"secret"),
        bridge: version == Version::V311,
    }));
    let mut filters = FilterBuf::new();
    filters.push("tele/+/#", SubscribeOptions::new(QoS::ExactlyOnce));
    let options = SubscribeOptions {
        retain_as_published: true,
        retain_handling: RetainHandling::IfNew,
        ..SubscribeOptions::new(QoS::AtLeastOnce)
    };
    filters.push("$share/group/tele/#", options);
    let mut properties = PropertyBuf::new();
    properties.push(Property::SubscriptionId(300)).push(Property::User("k", "v"));
    let properties = properties.as_properties();
    let filters = filters.as_filters();
    then(Packet::Subscribe(Subscribe { packet_id: 1, properties, filters }));
    let mut topics = TopicBuf::new();
    topics.push("tele/+/#").push("a");
    let properties = Properties::EMPTY;
    then(Packet::Unsubscribe(Unsubscribe {
        packet_id: 2,
        properties,
        filters: topics.as_topics(),
    }));
    then(Packet::Pingreq);
    let reason = Reason::DISCONNECT_WITH_WILL;
    then(Packet::Disconnect(Disconnect { reason, properties: text }));
    let mut method = PropertyBuf::new();
    method.push(Property::AuthMethod("SCRAM-SHA-256")).push(Property::AuthData(b"data"));
    let reason = Reason::CONTINUE_AUTHENTICATION;
    then(Packet::Auth(Auth { reason, properties: method.as_properties() }));
}

fn each_server_packet(version: Version, text: Properties<'_>, then: &mut dyn FnMut(Packet<'_>)) {
    let mut properties = PropertyBuf::new();
    properties
        .push(Property::AssignedClientId("auto-1"))
        .push(Property::ServerKeepAliveSecs(30))
        .push(Property::QosMax(1))
        .push(Property::SharedAvailable(true))
        .push(Property::ResponseInfo("reply/"));
    then(Packet::Connack(Connack {
        session_present: version >= Version::V311,
        reason: Reason::SUCCESS,
        properties: properties.as_properties(),
    }));
    let reasons = [0, 1, 2, 0x80];
    then(Packet::Suback(Suback { packet_id: 1, properties: text, reasons: &reasons }));
    let reasons = [0, 0x11];
    then(Packet::Unsuback(Unsuback { packet_id: 2, properties: text, reasons: &reasons }));
    then(Packet::Pingresp);
    let reason = Reason::SERVER_SHUTTING_DOWN;
    then(Packet::Disconnect(Disconnect { reason, properties: text }));
    let mut method = PropertyBuf::new();
    method.push(Property::AuthMethod("SCRAM-SHA-256"));
    then(Packet::Auth(Auth { reason: Reason::SUCCESS, properties: method.as_properties() }));
}
