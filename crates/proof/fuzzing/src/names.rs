//! Names that come by a call of the API, a command line or a file: an input is the text of one. It
//! is accepted if and only if a client could have named it in a packet.

use codec::{Packet, Properties, Property, PropertyBuf, Publish, QoS, Sender, Version};
use topic::TopicLimits;

const LIMITS: TopicLimits = TopicLimits { levels_max: u16::MAX, bytes_max: u16::MAX };

pub fn names(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if text.len() > usize::from(u16::MAX) {
        assert!(codec::check_name(text).is_err());
        return;
    }
    let by_api = broker::names::check_topic(text, &LIMITS).is_ok();
    // An empty topic in a packet stands for a topic alias.
    let by_packet = !text.is_empty() && is_taken(text, Properties::EMPTY);
    assert_eq!(by_api, by_packet, "topic {text:?}");
    if by_api {
        assert!(
            broker::names::check_filter(text, &LIMITS).is_ok(),
            "a topic is a filter: {text:?}"
        );
    }
    for property in
        [Property::ResponseTopic(text), Property::ContentType(text), Property::User("name", text)]
    {
        let mut properties = PropertyBuf::new();
        properties.push(property);
        let properties = properties.as_properties();
        let by_api = codec::check_publish_properties(properties.raw()).is_ok();
        assert_eq!(by_api, is_taken("t", properties), "{property:?}");
    }
}

fn is_taken(topic: &str, properties: Properties<'_>) -> bool {
    let publish = Publish {
        dup: false,
        qos: QoS::AtMostOnce,
        retain: true,
        topic,
        packet_id: 0,
        properties,
        payload: b"x",
    };
    let mut bytes = Vec::new();
    Packet::Publish(publish).encode(Version::V5, &mut bytes);
    matches!(codec::decode(&bytes, Version::V5, Sender::Client, u32::MAX as _), Ok(Some(_)))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "a/b/c",
        "+/#",
        "$SYS/x",
        "$share/g/a/#",
        "\u{1}",
        "a\u{7f}",
        "\u{85}",
        "\u{fdd0}",
        "\u{ffff}",
        "\u{1fffe}",
        "\u{feff}a",
        "\0",
        "line\nfeed",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
