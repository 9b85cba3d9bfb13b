//! Packets as texts: what rows send and expect.
//!
//! `publish TOPIC PAYLOAD qos1 id7 retain dup alias3 expiry20 sub1,2`: what is not set is left out.
//! `puback 7`, `pubrec 7 quota_exceeded`, `pubrel 7`, `pubcomp 7`; `connack`, `connack present`,
//! `connack not_authorized`; `subscribe FILTER qos1 sub7 no_local rap handling2`,
//! `suback 1: 0 not_authorized`; `unsubscribe FILTER`, `unsuback 1: 0`; `pingreq`, `pingresp`;
//! `disconnect`, `disconnect with_will expiry5`, `disconnect quota_exceeded`; `auth success two`.
//!
//! `user900` at the end of a `publish` is a user property of so many bytes. `""` is empty, and
//! `x*100` are a hundred `x`.

use codec::{
    Ack, AckKind, Disconnect, FilterBuf, Packet, Properties, Property, PropertyBuf, Publish,
    Reason, RetainHandling, Subscribe, SubscribeOptions, TopicBuf, Unsubscribe,
};
use rig::{Got, Received, level};

/// The words of a packet. Names are taken in order, after all else.
struct Words(Vec<String>);

impl Words {
    fn of(text: &str) -> Self {
        Self(text.split(' ').map(str::to_owned).collect())
    }

    fn next(&mut self) -> String {
        assert!(!self.0.is_empty(), "a word is missing");
        let word = self.0.remove(0);
        if word == "\"\"" { String::new() } else { word }
    }

    fn end(&self) {
        assert!(self.0.is_empty(), "no part of such a packet: {:?}", self.0);
    }

    fn has(&mut self, wanted: &str) -> bool {
        let at = self.0.iter().position(|word| word == wanted);
        at.map(|at| self.0.remove(at)).is_some()
    }

    /// Of `qos1` the 1.
    fn number(&mut self, name: &str) -> Option<u32> {
        let number = |word: &String| word.strip_prefix(name)?.parse().ok();
        let at = self.0.iter().position(|word| number(word).is_some())?;
        number(&self.0.remove(at))
    }
}

/// Calls with the packet of a client that a text means.
pub(crate) fn with_packet<T>(text: &str, act: impl FnOnce(&Packet<'_>) -> T) -> T {
    let mut words = Words::of(text);
    let kind = words.next();
    let ack = |kind, mut words: Words| {
        let packet_id = words.next().parse().expect("a packet id");
        Packet::Ack(Ack::new(kind, packet_id, Reason::SUCCESS))
    };
    match kind.as_str() {
        "publish" => with_publish(words, act),
        "subscribe" => with_subscribe(words, act),
        "unsubscribe" => {
            let mut filters = TopicBuf::new();
            filters.push(&words.next());
            let (properties, filters) = (Properties::EMPTY, filters.as_topics());
            act(&Packet::Unsubscribe(Unsubscribe { packet_id: 1, properties, filters }))
        }
        "puback" => act(&ack(AckKind::Puback, words)),
        "pubrec" => act(&ack(AckKind::Pubrec, words)),
        "pubrel" => act(&ack(AckKind::Pubrel, words)),
        "pubcomp" => act(&ack(AckKind::Pubcomp, words)),
        "pingreq" => act(&Packet::Pingreq),
        "disconnect" => {
            let mut properties = PropertyBuf::new();
            if let Some(secs) = words.number("expiry") {
                properties.push(Property::SessionExpirySecs(secs));
            }
            let reason = match words.has("with_will") {
                true => Reason::DISCONNECT_WITH_WILL,
                false => Reason::NORMAL_DISCONNECTION,
            };
            act(&Packet::Disconnect(Disconnect { reason, properties: properties.as_properties() }))
        }
        other => panic!("no packet of a client is called {other}"),
    }
}

fn with_subscribe<T>(mut words: Words, act: impl FnOnce(&Packet<'_>) -> T) -> T {
    let mut properties = PropertyBuf::new();
    if let Some(identifier) = words.number("sub") {
        properties.push(Property::SubscriptionId(identifier));
    }
    let qos = level(words.number("qos").unwrap_or(0) as u8);
    let options = SubscribeOptions {
        no_local: words.has("no_local"),
        retain_as_published: words.has("rap"),
        retain_handling: match words.number("handling") {
            Some(1) => RetainHandling::IfNew,
            Some(2) => RetainHandling::Never,
            _ => RetainHandling::Always,
        },
        ..SubscribeOptions::new(qos)
    };
    let packet_id = words.number("id").unwrap_or(1) as u16;
    let mut filters = FilterBuf::new();
    filters.push(&words.next(), options);
    words.end();
    let (properties, filters) = (properties.as_properties(), filters.as_filters());
    act(&Packet::Subscribe(Subscribe { packet_id, properties, filters }))
}

fn with_publish<T>(mut words: Words, act: impl FnOnce(&Packet<'_>) -> T) -> T {
    let mut properties = PropertyBuf::new();
    if let Some(secs) = words.number("expiry") {
        properties.push(Property::MessageExpirySecs(secs));
    }
    if let Some(alias) = words.number("alias") {
        properties.push(Property::TopicAlias(alias as u16));
    }
    if let Some(bytes) = words.number("user") {
        properties.push(Property::User("name", &"x".repeat(bytes as usize)));
    }
    let qos = words.number("qos").unwrap_or(0) as u8;
    let packet_id = words.number("id").map_or(u16::from(qos > 0), |id| id as u16);
    let (dup, retain) = (words.has("dup"), words.has("retain"));
    let (topic, payload) = (words.next(), words.next());
    words.end();
    let payload = match payload.split_once('*') {
        Some((part, count)) => part.repeat(count.parse().expect("a count")),
        None => payload,
    };
    act(&Packet::Publish(Publish {
        dup,
        qos: level(qos),
        retain,
        topic: &topic,
        packet_id,
        properties: properties.as_properties(),
        payload: payload.as_bytes(),
    }))
}

/// What a client was sent.
pub(crate) fn text_of(got: &Got) -> String {
    let reason = |reason: Reason| match reason {
        Reason::SUCCESS => String::new(),
        other => format!(" {}", other.word()),
    };
    let codes = |codes: &[u8]| -> String {
        if codes.len() > 20 && codes.iter().all(|code| *code == codes[0]) {
            return format!(" {}*{}", granted(codes[0]), codes.len());
        }
        codes.iter().map(|code| format!(" {}", granted(*code))).collect()
    };
    match got {
        Got::Connack { session_present: true, .. } => "connack present".into(),
        Got::Connack { reason: code, .. } => format!("connack{}", reason(*code)),
        Got::Publish(received) => text_of_publish(received),
        Got::Ack(kind, packet_id, code) => {
            format!("{} {packet_id}{}", format!("{kind:?}").to_lowercase(), reason(*code))
        }
        Got::Suback(packet_id, reasons) => format!("suback {packet_id}:{}", codes(reasons)),
        Got::Unsuback(packet_id, reasons) => format!("unsuback {packet_id}:{}", codes(reasons)),
        Got::Pingresp => "pingresp".into(),
        Got::Disconnect(code) => format!("disconnect{}", reason(*code)),
        Got::Auth(code, data) => {
            format!("auth{} {}", reason(*code), String::from_utf8_lossy(data)).trim_end().into()
        }
    }
}

fn text_of_publish(received: &Received) -> String {
    let or_empty = |text: &str| if text.is_empty() { "\"\"".to_owned() } else { text.to_owned() };
    let mut text =
        format!("publish {} {}", or_empty(&received.topic), or_empty(&payload_of(received)));
    if received.qos > 0 {
        text += &format!(" qos{} id{}", received.qos, received.packet_id);
    }
    for (is_set, word) in [(received.retain, " retain"), (received.dup, " dup")] {
        text += if is_set { word } else { "" };
    }
    if let Some(alias) = received.alias {
        text += &format!(" alias{alias}");
    }
    if let Some(secs) = received.expiry_secs {
        text += &format!(" expiry{secs}");
    }
    if !received.identifiers.is_empty() {
        let mut identifiers = received.identifiers.clone();
        identifiers.sort_unstable();
        let identifiers: Vec<_> = identifiers.iter().map(u32::to_string).collect();
        text += &format!(" sub{}", identifiers.join(","));
    }
    text
}

/// A payload as text; many times the same byte as `x*100`.
pub(crate) fn payload_of(received: &Received) -> String {
    let text = String::from_utf8_lossy(&received.payload);
    match text.chars().next() {
        Some(first) if text.len() > 20 && text.chars().all(|own| own == first) => {
            format!("{first}*{}", text.len())
        }
        _ => text.into(),
    }
}

fn granted(code: u8) -> String {
    if code < 3 { code.to_string() } else { Reason(code).word() }
}
