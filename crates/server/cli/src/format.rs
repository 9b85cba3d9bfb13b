//! How `quelea sub` prints a message: as `-F` of mosquitto_sub says.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::moment;
use client::blocking::Message;
use codec::Property;
use serde_json::{Map, Value, json};

/// A parsed format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Format(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(char),
}

impl Format {
    /// Reads a format such as `%t: %p\n`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars();
        while let Some(sign) = chars.next() {
            match (sign, if matches!(sign, '%' | '\\') { chars.next() } else { None }) {
                ('%', Some('%')) => plain.push('%'),
                ('%', Some(field)) if FIELDS.contains(field) => {
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Field(field));
                }
                ('%', field) => {
                    let field = field.map(String::from).unwrap_or_default();
                    return Err(format!(
                        "-F: unknown field %{field}; valid: %% and, after %, {FIELDS}"
                    ));
                }
                ('\\', Some('n')) => plain.push('\n'),
                ('\\', Some('t')) => plain.push('\t'),
                ('\\', Some('r')) => plain.push('\r'),
                ('\\', Some('0')) => plain.push('\0'),
                ('\\', Some('a')) => plain.push('\x07'),
                ('\\', Some('e')) => plain.push('\x1b'),
                ('\\', Some('\\')) => plain.push('\\'),
                ('\\', _) => {
                    return Err("-F: unknown escape; valid: \\n \\t \\r \\0 \\a \\e \\\\".into());
                }
                (sign, _) => plain.push(sign),
            }
        }
        parts.push(Part::Text(plain));
        parts.retain(|part| *part != Part::Text(String::new()));
        Ok(Self(parts))
    }

    /// The payload, with the topic in front where wanted.
    pub(crate) fn plain(with_topic: bool) -> Self {
        let topic = [Part::Field('t'), Part::Text(" ".into())];
        let topic = topic.into_iter().filter(|_| with_topic);
        Self(topic.chain([Part::Field('p')]).collect())
    }

    /// Writes one message that came at `now`.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    pub(crate) fn write(
        &self,
        message: &Message,
        now: SystemTime,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let since_epoch = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        for part in &self.0 {
            match part {
                Part::Text(text) => out.write_all(text.as_bytes())?,
                Part::Field(field) => write_field(*field, message, since_epoch, out)?,
            }
        }
        Ok(())
    }
}

fn write_field(
    field: char,
    message: &Message,
    now: Duration,
    out: &mut dyn Write,
) -> io::Result<()> {
    match field {
        't' => write!(out, "{}", message.topic),
        'p' => out.write_all(&message.payload),
        'l' => write!(out, "{}", message.payload.len()),
        'm' => write!(out, "{}", message.packet_id),
        'q' => write!(out, "{}", message.qos as u8),
        'r' => write!(out, "{}", u8::from(message.retain)),
        'd' => write!(out, "{}", u8::from(message.dup)),
        'x' => message.payload.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        'X' => message.payload.iter().try_for_each(|byte| write!(out, "{byte:02X}")),
        'U' => write!(out, "{}.{:09}", now.as_secs(), now.subsec_nanos()),
        'I' => write!(out, "{}", moment::text_with_micros(now)),
        'j' => write!(out, "{}", as_json(message, now, payload_as_text(message))),
        'J' => write!(out, "{}", as_json(message, now, payload_as_json(message))),
        _ => write_property(field, message, out),
    }
}

/// Properties are separated by spaces where there are several.
fn write_property(field: char, message: &Message, out: &mut dyn Write) -> io::Result<()> {
    let mut separator = "";
    for property in message.properties.as_properties().iter() {
        let shown = match (field, property) {
            ('A', Property::TopicAlias(alias)) => alias.to_string(),
            ('C', Property::ContentType(text)) | ('R', Property::ResponseTopic(text)) => {
                text.into()
            }
            ('D', Property::CorrelationData(data)) => String::from_utf8_lossy(data).into_owned(),
            ('E', Property::MessageExpirySecs(secs)) => secs.to_string(),
            ('F', Property::PayloadFormat(format)) => format.to_string(),
            ('S', Property::SubscriptionId(id)) => id.to_string(),
            ('P', Property::User(name, value)) => format!("{name}:{value}"),
            _ => continue,
        };
        write!(out, "{separator}{shown}")?;
        separator = " ";
    }
    Ok(())
}

fn as_json(message: &Message, now: Duration, payload: Value) -> Value {
    let mut object = Map::new();
    object.insert("tst".into(), json!(moment::text_with_micros(now)));
    object.insert("topic".into(), json!(message.topic));
    object.insert("qos".into(), json!(message.qos as u8));
    object.insert("retain".into(), json!(u8::from(message.retain)));
    object.insert("payloadlen".into(), json!(message.payload.len()));
    if message.packet_id != 0 {
        object.insert("mid".into(), json!(message.packet_id));
    }
    let properties = properties_as_json(message);
    if !properties.is_empty() {
        object.insert("properties".into(), Value::Object(properties));
    }
    object.insert("payload".into(), payload);
    Value::Object(object)
}

fn properties_as_json(message: &Message) -> Map<String, Value> {
    let mut object = Map::new();
    let mut users = Vec::new();
    let mut identifiers = Vec::new();
    for property in message.properties.as_properties().iter() {
        let (name, value) = match property {
            Property::PayloadFormat(format) => ("payload-format-indicator", json!(format)),
            Property::MessageExpirySecs(secs) => ("message-expiry-interval", json!(secs)),
            Property::ContentType(text) => ("content-type", json!(text)),
            Property::ResponseTopic(text) => ("response-topic", json!(text)),
            Property::CorrelationData(data) => {
                ("correlation-data", json!(String::from_utf8_lossy(data)))
            }
            Property::TopicAlias(alias) => ("topic-alias", json!(alias)),
            Property::User(name, value) => {
                users.push(json!({ name: value }));
                continue;
            }
            Property::SubscriptionId(id) => {
                identifiers.push(json!(id));
                continue;
            }
            _ => continue,
        };
        object.insert(name.into(), value);
    }
    if !users.is_empty() {
        object.insert("user-properties".into(), Value::Array(users));
    }
    if !identifiers.is_empty() {
        object.insert("subscription-identifier".into(), Value::Array(identifiers));
    }
    object
}

fn payload_as_text(message: &Message) -> Value {
    json!(String::from_utf8_lossy(&message.payload))
}

/// A payload that is not JSON is shown as text.
fn payload_as_json(message: &Message) -> Value {
    serde_json::from_slice(&message.payload).unwrap_or_else(|_| payload_as_text(message))
}

const FIELDS: &str = "tplmqrdxXUIjJACDEFRSP";

#[cfg(test)]
mod tests {
    use codec::QoS;

    use super::*;

    fn message() -> Message {
        let mut message = Message::new("a/b", "{\"x\":1}").qos(QoS::AtLeastOnce).retain();
        message.packet_id = 9;
        for property in [
            Property::ContentType("json"),
            Property::User("k", "v"),
            Property::User("k", "w"),
            Property::SubscriptionId(3),
            Property::MessageExpirySecs(60),
        ] {
            message.properties.push(property);
        }
        message
    }

    fn show(format: &str, message: &Message) -> String {
        let mut out = Vec::new();
        let now = UNIX_EPOCH + Duration::new(951_782_400, 5_000);
        Format::parse(format).unwrap().write(message, now, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_put_in() {
        for (format, shown) in [
            ("%t %p", "a/b {\"x\":1}"),
            ("%q%r%d %m %l%%\\n", "110 9 7%\n"),
            ("%x", "7b2278223a317d"),
            ("%X", "7B2278223A317D"),
            ("%C|%P|%S|%E|%R", "json|k:v k:w|3|60|"),
            ("%U %I", "951782400.000005000 2000-02-29T00:00:00.000005Z"),
        ] {
            assert_eq!(show(format, &message()), shown, "{format}");
        }
    }

    #[test]
    fn json_is_json() {
        let text: Value = serde_json::from_str(&show("%j", &message())).unwrap();
        assert_eq!(text["payload"], "{\"x\":1}");
        assert_eq!(
            (&text["qos"], &text["mid"], &text["payloadlen"]),
            (&json!(1), &json!(9), &json!(7))
        );
        assert_eq!(text["properties"]["user-properties"], json!([{"k": "v"}, {"k": "w"}]));
        let inner: Value = serde_json::from_str(&show("%J", &message())).unwrap();
        assert_eq!(inner["payload"]["x"], 1);
        let bytes = Message::new("t", vec![0xFF]);
        assert!(serde_json::from_str::<Value>(&show("%J", &bytes)).is_ok());
    }

    #[test]
    fn plain_output_is_the_payload_or_topic_and_payload() {
        let shown = |with_topic| {
            let mut out = Vec::new();
            Format::plain(with_topic).write(&message(), UNIX_EPOCH, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!((shown(false).as_str(), shown(true).as_str()), ("{\"x\":1}", "a/b {\"x\":1}"));
    }

    #[test]
    fn unknown_fields_are_told() {
        for format in ["%y", "%", "\\y", "\\"] {
            assert!(Format::parse(format).unwrap_err().starts_with("-F"), "{format}");
        }
    }
}
