//! `-D COMMAND PROPERTY VALUE`: MQTT 5 properties by the names that mosquitto's clients use.

use codec::{Property, PropertyBuf};

/// The properties given on a command line, by the packet they belong to.
#[derive(Clone, Debug, Default)]
pub struct GivenProperties {
    pub connect: PropertyBuf,
    pub will: PropertyBuf,
    pub publish: PropertyBuf,
    pub subscribe: PropertyBuf,
    pub disconnect: PropertyBuf,
    is_any: bool,
}

impl GivenProperties {
    /// Reads the words of all `-D` flags: three each, or four for user properties.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(flags: &[Vec<String>]) -> Result<Self, String> {
        let mut given = Self::default();
        for words in flags {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let [packet, name, values @ ..] = words.as_slice() else {
                return Err("-D needs a command, a property and a value".into());
            };
            let property = parse_property(name, values)?;
            if !belongs(packet, &property) {
                return Err(format!("-D: the property {name} does not belong to {packet}"));
            }
            if matches!(*packet, "publish" | "will") {
                check_texts(name, property)?;
            }
            given.packet(packet)?.push(property);
            given.is_any = true;
        }
        Ok(given)
    }

    pub fn is_any(&self) -> bool {
        self.is_any
    }

    fn packet(&mut self, name: &str) -> Result<&mut PropertyBuf, String> {
        match name {
            "connect" => Ok(&mut self.connect),
            "will" => Ok(&mut self.will),
            "publish" => Ok(&mut self.publish),
            "subscribe" => Ok(&mut self.subscribe),
            "disconnect" => Ok(&mut self.disconnect),
            _ => Err(format!(
                "-D: the command must be connect, will, publish, subscribe or \
            disconnect, got {name}"
            )),
        }
    }
}

fn parse_property<'a>(name: &str, values: &[&'a str]) -> Result<Property<'a>, String> {
    if name == "user-property" {
        return match values {
            [key, value] => Ok(Property::User(key, value)),
            _ => Err("-D: a user-property needs a name and a value".into()),
        };
    }
    let [value] = values else { return Err(format!("-D: {name} needs exactly one value")) };
    Ok(match name {
        "payload-format-indicator" => Property::PayloadFormat(u8::from(flag(name, value)?)),
        "message-expiry-interval" => Property::MessageExpirySecs(number(name, value)?),
        "content-type" => Property::ContentType(value),
        "response-topic" => Property::ResponseTopic(value),
        "correlation-data" => Property::CorrelationData(value.as_bytes()),
        "subscription-identifier" => Property::SubscriptionId(identifier(name, value)?),
        "session-expiry-interval" => Property::SessionExpirySecs(number(name, value)?),
        "authentication-method" => Property::AuthMethod(value),
        "authentication-data" => Property::AuthData(value.as_bytes()),
        "request-problem-information" => Property::RequestProblemInfo(flag(name, value)?),
        "request-response-information" => Property::RequestResponseInfo(flag(name, value)?),
        "will-delay-interval" => Property::WillDelaySecs(number(name, value)?),
        "receive-maximum" => Property::ReceiveMax(positive(name, value)?),
        "maximum-packet-size" => Property::PacketBytesMax(positive(name, value)?),
        "topic-alias-maximum" => Property::TopicAliasMax(number(name, value)?),
        "topic-alias" => Property::TopicAlias(positive(name, value)?),
        "reason-string" => Property::ReasonString(value),
        _ => return Err(format!("-D: unknown property {name}")),
    })
}

/// Section 2.2.2.2: which packet takes which property.
fn belongs(packet: &str, property: &Property<'_>) -> bool {
    match property {
        Property::User(..) => true,
        Property::PayloadFormat(_)
        | Property::MessageExpirySecs(_)
        | Property::ContentType(_)
        | Property::ResponseTopic(_)
        | Property::CorrelationData(_) => matches!(packet, "publish" | "will"),
        Property::TopicAlias(_) => packet == "publish",
        Property::WillDelaySecs(_) => packet == "will",
        Property::SubscriptionId(_) => packet == "subscribe",
        Property::SessionExpirySecs(_) => matches!(packet, "connect" | "disconnect"),
        Property::ReasonString(_) => packet == "disconnect",
        _ => packet == "connect",
    }
}

/// Brokers refuse control characters in what they would have to forward.
fn check_texts(name: &str, property: Property<'_>) -> Result<(), String> {
    let texts = match property {
        Property::User(key, value) => [key, value],
        Property::ContentType(text) | Property::ResponseTopic(text) => [text, ""],
        _ => return Ok(()),
    };
    let check = |text| codec::check_name(text).map_err(|error| error.detail);
    texts.into_iter().try_for_each(check).map_err(|detail| format!("-D: {name}: {detail}"))
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("-D: {name} cannot be '{value}'"))
}

fn positive<T: std::str::FromStr + Default + PartialEq>(
    name: &str,
    value: &str,
) -> Result<T, String> {
    let number: T = number(name, value)?;
    if number == T::default() { Err(format!("-D: {name} cannot be 0")) } else { Ok(number) }
}

fn identifier(name: &str, value: &str) -> Result<u32, String> {
    let number: u32 = positive(name, value)?;
    let is_small = number <= codec::varint::MAX;
    is_small.then_some(number).ok_or_else(|| format!("-D: {name} cannot be '{value}'"))
}

fn flag(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "0" | "false" => Ok(false),
        "1" | "true" => Ok(true),
        _ => Err(format!("-D: {name} is 0 or 1, not '{value}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> Result<GivenProperties, String> {
        let words = |flag: &&str| flag.split(' ').map(Into::into).collect();
        GivenProperties::parse(&flags.iter().map(words).collect::<Vec<_>>())
    }

    #[test]
    fn properties_go_to_their_packets() {
        let given = parse(&[
            "publish content-type text/plain",
            "publish user-property a b",
            "publish user-property a c",
            "connect receive-maximum 7",
            "will will-delay-interval 5",
            "subscribe subscription-identifier 3",
        ])
        .unwrap();
        let publish: Vec<_> = given.publish.as_properties().iter().collect();
        let expected = [
            Property::ContentType("text/plain"),
            Property::User("a", "b"),
            Property::User("a", "c"),
        ];
        assert_eq!(publish, expected);
        assert_eq!(given.connect.as_properties().iter().next(), Some(Property::ReceiveMax(7)));
        assert!(given.is_any() && !parse(&[]).unwrap().is_any());
    }

    #[test]
    fn wrong_properties_are_reported() {
        for (flag, what) in [
            ("publish", "needs a command"),
            ("publish colour red", "unknown property"),
            ("publish receive-maximum 3", "does not belong"),
            ("post content-type x", "does not belong"),
            ("post user-property a b", "must be connect"),
            ("connect receive-maximum 0", "cannot be 0"),
            ("connect receive-maximum 65536", "cannot be '65536'"),
            ("subscribe subscription-identifier 268435456", "cannot be"),
            ("publish user-property a", "a name and a value"),
            ("publish content-type a b", "exactly one"),
            ("publish payload-format-indicator 2", "0 or 1"),
            ("publish user-property a line\n", "control character"),
            ("will content-type a\u{FFFE}", "noncharacter"),
        ] {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains(what), "{flag}: {error}");
        }
    }
}
