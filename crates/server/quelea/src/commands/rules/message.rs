//! The message of `quelea rules test`: from flags, and from a file in JSON.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use policy::{Attribute, Attributes, Number};
use routing::Record;
use serde::Deserialize;
use serde_json::Value;
use topic::TopicLimits;

use base::{moment, wall_ms};
use cli::policy::{attribute, lists_of};

/// The largest payload or message file, in bytes: that of an MQTT packet.
const MESSAGE_BYTES_MAX: usize = 256 * 1024 * 1024;

/// The flags of a message. They take precedence over the message file.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct MessageArgs {
    /// The topic.
    #[arg(short, long, value_name = "TOPIC")]
    topic: Option<String>,
    /// The payload. Without one it is empty.
    #[arg(short = 'm', long, visible_alias = "message", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    payload: Option<String>,
    /// A file whose content is the payload.
    #[arg(short, long, value_name = "FILE", conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// QoS of the message.
    #[arg(short, long, value_name = "QOS", value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: Option<u8>,
    /// The message has the retain flag.
    #[arg(short, long)]
    retain: bool,
    /// The client ID of the publisher.
    #[arg(short = 'i', long, visible_alias = "id", value_name = "ID")]
    client_id: Option<String>,
    /// The username of the publisher: its authentication name.
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,
    /// An attribute of the publisher. Repeated, it is a list. Quote a number to make it a text.
    #[arg(short, long = "attribute", value_name = "NAME=VALUE", value_parser = attribute)]
    attributes: Vec<(String, Attribute)>,
    /// A user property. May be repeated.
    #[arg(long = "property", value_name = "NAME=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,
    /// The content type.
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The response topic.
    #[arg(long, value_name = "TOPIC")]
    response_topic: Option<String>,
    /// The correlation data, as text.
    #[arg(long, value_name = "TEXT")]
    correlation_data: Option<String>,
    /// Payload format indicator. 1: the payload is text in UTF-8.
    #[arg(long, value_name = "0|1", value_parser = clap::value_parser!(u8).range(0..=1))]
    pfi: Option<u8>,
    /// Message expiry, in seconds.
    #[arg(long, value_name = "SECS")]
    expiry: Option<u32>,
    /// The namespace of the publisher: the source of the event. Default: default.
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// When the broker received it, as in 2026-12-31T23:59:59Z. Default: now.
    #[arg(long, value_name = "TIME")]
    time: Option<String>,
    /// The id of the event. Default: test.
    #[arg(long, value_name = "ID")]
    event_id: Option<String>,
    /// A file with the message in JSON: the members of a publish of the management API. In
    /// addition: client_id, username, attributes, payload_format, namespace, time, event_id.
    #[arg(long, value_name = "FILE")]
    message_file: Option<PathBuf>,
}

/// A message, from a file or from flags.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageFile {
    topic: Option<String>,
    payload: Option<String>,
    payload_base64: Option<String>,
    qos: Option<u8>,
    #[serde(default)]
    retain: bool,
    message_expiry_secs: Option<u32>,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation_data_base64: Option<String>,
    #[serde(default)]
    user_properties: Vec<UserProperty>,
    payload_format: Option<u8>,
    client_id: Option<String>,
    username: Option<String>,
    #[serde(default)]
    attributes: BTreeMap<String, Value>,
    namespace: Option<String>,
    time: Option<String>,
    event_id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserProperty {
    name: String,
    value: String,
}

/// A message that has been checked.
#[derive(Debug)]
pub(super) struct Message {
    event_id: String,
    namespace: String,
    time_ms: u64,
    client_id: String,
    username: Option<String>,
    attributes: Attributes,
    topic: String,
    qos: u8,
    retain: bool,
    expiry_secs: Option<u32>,
    payload_format: u8,
    content_type: Option<String>,
    response_topic: Option<String>,
    correlation_data: Option<Vec<u8>>,
    user_properties: Vec<(String, String)>,
    payload: Vec<u8>,
}

impl Message {
    /// Asks something about it as a record.
    pub(super) fn with_record<T>(&self, ask: impl FnOnce(&Record<'_>) -> T) -> T {
        let pairs = self.user_properties.iter();
        let user_properties: Vec<_> = pairs.map(|(name, value)| (&**name, &**value)).collect();
        ask(&Record {
            id: &self.event_id,
            namespace: &self.namespace,
            time_ms: self.time_ms,
            client_id: &self.client_id,
            username: self.username.as_deref(),
            attributes: &self.attributes,
            topic: &self.topic,
            qos: self.qos,
            retain: self.retain,
            expiry_secs: self.expiry_secs,
            payload_format: self.payload_format,
            content_type: self.content_type.as_deref(),
            response_topic: self.response_topic.as_deref(),
            correlation_data: self.correlation_data.as_deref(),
            user_properties: &user_properties,
            payload: &self.payload,
        })
    }
}

impl MessageArgs {
    /// The message of the flags and the file.
    ///
    /// # Errors
    ///
    /// What is wrong, and which flag or member has it.
    pub(super) fn read(&self) -> Result<Message, String> {
        let file = match &self.message_file {
            Some(path) => message_file(path)?,
            None => MessageFile::default(),
        };
        let topic = self.topic.clone().or(file.topic);
        let topic = topic.ok_or("a topic is needed: add -t TOPIC, or `topic` to the file")?;
        topic::check_topic(&topic, &TopicLimits::default())
            .map_err(|error| format!("'{topic}': {error}"))?;
        let payload = match (&self.payload, &self.file, file.payload, file.payload_base64) {
            (Some(text), ..) => text.clone().into_bytes(),
            (None, Some(path), ..) => bytes_of(path)?,
            (_, _, Some(_), Some(_)) => {
                return Err("`payload` excludes `payload_base64`: use one of them".into());
            }
            (_, _, Some(text), None) => text.into_bytes(),
            (_, _, None, Some(text)) => of_base64("payload_base64", &text)?,
            (_, _, None, None) => Vec::new(),
        };
        let in_file = file.correlation_data_base64.as_deref();
        let correlation_data = match (&self.correlation_data, in_file) {
            (Some(text), _) => Some(text.clone().into_bytes()),
            (None, Some(text)) => Some(of_base64("correlation_data_base64", text)?),
            (None, None) => None,
        };
        let user_properties = match self.properties.is_empty() {
            true => file.user_properties.into_iter().map(|one| (one.name, one.value)).collect(),
            false => self.properties.clone(),
        };
        let attributes = match self.attributes.is_empty() {
            true => attributes_of(file.attributes)?,
            false => Attributes::new(lists_of(&self.attributes)),
        };
        Ok(Message {
            event_id: filled("event_id", self.event_id.clone().or(file.event_id), "test")?,
            namespace: filled("namespace", self.namespace.clone().or(file.namespace), "default")?,
            time_ms: time_of(self.time.as_deref().or(file.time.as_deref()))?,
            client_id: self.client_id.clone().or(file.client_id).unwrap_or_default(),
            username: self.username.clone().or(file.username),
            attributes,
            topic,
            qos: at_most("qos", self.qos.or(file.qos), 2)?,
            retain: self.retain || file.retain,
            expiry_secs: self.expiry.or(file.message_expiry_secs),
            payload_format: at_most("payload_format", self.pfi.or(file.payload_format), 1)?,
            content_type: self.content_type.clone().or(file.content_type),
            response_topic: self.response_topic.clone().or(file.response_topic),
            correlation_data,
            user_properties,
            payload,
        })
    }
}

fn message_file(path: &Path) -> Result<MessageFile, String> {
    let bytes = bytes_of(path)?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: {error}", path.display()))
}

fn bytes_of(path: &Path) -> Result<Vec<u8>, String> {
    crate::run::routing::read_at_most(path, MESSAGE_BYTES_MAX)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) => Ok((name.into(), value.into())),
        None => Err("a user property must be NAME=VALUE".into()),
    }
}

fn of_base64(name: &str, text: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(text).map_err(|_| format!("`{name}` must be base64 with padding"))
}

fn filled(name: &str, text: Option<String>, default: &str) -> Result<String, String> {
    match text {
        Some(text) if text.is_empty() => Err(format!("`{name}` must not be empty")),
        Some(text) => Ok(text),
        None => Ok(default.into()),
    }
}

fn at_most(name: &str, number: Option<u8>, max: u8) -> Result<u8, String> {
    match number.unwrap_or(0) {
        number if number > max => {
            Err(format!("`{name}` must be between 0 and {max}, got {number}"))
        }
        number => Ok(number),
    }
}

fn time_of(text: Option<&str>) -> Result<u64, String> {
    let Some(text) = text else { return Ok(wall_ms()) };
    let secs = moment::secs_of(text);
    let secs = secs.ok_or_else(|| format!("'{text}': must be a time as 2026-12-31T23:59:59Z"))?;
    Ok(secs.saturating_mul(1_000))
}

fn attributes_of(values: BTreeMap<String, Value>) -> Result<Attributes, String> {
    let read = |(name, value): (String, Value)| match attribute_of(&value) {
        Some(attribute) => Ok((name.into(), attribute)),
        None => Err(format!(
            "`attributes.{name}` must be a text, a number, or a list of them, got {value}"
        )),
    };
    Ok(Attributes::new(values.into_iter().map(read).collect::<Result<Vec<_>, String>>()?))
}

fn attribute_of(value: &Value) -> Option<Attribute> {
    match value {
        Value::String(text) => Some(Attribute::Text(text.as_str().into())),
        Value::Number(number) => Number::parse(number.as_str()).map(Attribute::Number),
        Value::Array(items) => {
            let scalar = |item: &Value| attribute_of(item).filter(|_| !item.is_array());
            Some(Attribute::List(items.iter().map(scalar).collect::<Option<_>>()?))
        }
        Value::Null | Value::Bool(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(topic: &str) -> MessageArgs {
        MessageArgs { topic: Some(topic.into()), ..MessageArgs::default() }
    }

    #[test]
    fn flags_make_a_message() {
        let given = MessageArgs {
            payload: Some("on".into()),
            properties: vec![property("unit=a=b").expect("it has a sign")],
            attributes: vec![attribute("floor=3").expect("it is an attribute")],
            time: Some("2026-12-31T23:59:59Z".into()),
            ..args("a/b")
        };
        let message = given.read().expect("it is valid");
        message.with_record(|record| {
            assert_eq!((record.topic, record.payload), ("a/b", &b"on"[..]));
            assert_eq!(record.user_properties, [("unit", "a=b")]);
            assert_eq!(record.attributes.get("floor"), Some(&Attribute::Number(3.into())));
            assert_eq!((record.id, record.namespace), ("test", "default"));
            assert_eq!(record.time_ms, 1_798_761_599_000);
        });
    }

    #[test]
    fn messages_that_cannot_be_are_refused() {
        for (given, part) in [
            (MessageArgs::default(), "-t TOPIC"),
            (args("a/+"), "wildcard"),
            (MessageArgs { time: Some("noon".into()), ..args("a") }, "2026-12-31"),
            (MessageArgs { event_id: Some(String::new()), ..args("a") }, "event_id"),
            (MessageArgs { file: Some("/nowhere/x".into()), ..args("a") }, "/nowhere/x"),
        ] {
            let error = given.read().expect_err("it is not valid");
            assert!(error.contains(part), "{error}");
        }
        assert!(property("unit").is_err());
    }

    #[test]
    fn attributes_of_a_file_have_the_types_of_a_client() {
        let values = serde_json::from_str(r#"{"a": "x", "b": 7, "c": ["x", 7]}"#);
        let attributes = attributes_of(values.expect("it is JSON")).expect("all have a type");
        assert_eq!(attributes.get("b"), Some(&Attribute::Number(7.into())));
        assert_eq!(attributes.get("c").map(|list| list.texts().join(",")), Some("x,7".into()));
        for wrong in ["true", "null", "{}", "[[]]", "1e99"] {
            let values = serde_json::from_str(&format!(r#"{{"a": {wrong}}}"#)).expect("JSON");
            assert!(attributes_of(values).expect_err(wrong).contains("attributes.a"), "{wrong}");
        }
    }
}
