//! A published message as a CloudEvent.
//!
//! A message that is a CloudEvent of the MQTT binding stays that event: in structured mode its
//! content type is `application/cloudevents+json`, in binary mode its user properties have all
//! required attributes. Any other message is wrapped: its topic is the subject, its payload the
//! data.

use std::borrow::Cow;
use std::cell::OnceCell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::enrich::{Enriched, Enrichments};
use crate::json;
use crate::media_type;
use crate::record::Record;

/// `type` of a wrapped message.
pub const TYPE: &str = "MQTT.EventPublished";
/// Extension attribute of a wrapped message with a Message Expiry Interval.
pub const EXPIRY_TIME: &str = "expirytime";

/// Attributes of a message that is an event, or in binary mode its user properties. One with more
/// is wrapped.
pub const ATTRIBUTES_MAX: usize = 256;

const SPEC_VERSION: &str = "1.0";
const REQUIRED: [&str; 4] = ["specversion", "id", "source", "type"];
const OPTIONAL_TEXTS: [&str; 4] = ["datacontenttype", "dataschema", "subject", "time"];
/// Names of events that are no attributes of user properties: they are the payload and its type.
const NOT_IN_PROPERTIES: [&str; 3] = ["data", "data_base64", "datacontenttype"];

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const BINARY: &str = "application/octet-stream";

/// How a message came to be an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was not an event.
    Wrapped,
    /// It was one whose attributes are user properties.
    Binary,
    /// It was one whose attributes are in the payload.
    Structured,
}

/// When a payload counts as JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadReading {
    /// If the publisher has declared it as text or JSON, as in Event Grid: payload format indicator
    /// 1, or a content type of JSON.
    #[default]
    Declared,
    /// If it is JSON.
    Json,
}

/// A record as an event. It is made once for all rules, and parses the payload at most once.
#[derive(Debug)]
pub struct Event<'a> {
    record: &'a Record<'a>,
    origin: Origin,
    /// Why a message that looks like an event is not one.
    fault: Option<&'static str>,
    json: OnceCell<Option<Value>>,
}

/// What a condition finds at its key.
#[derive(Debug, PartialEq)]
pub(crate) enum Found<'e> {
    /// Nothing, or null.
    Missing,
    Text(Cow<'e, str>),
    Json(&'e Value),
}

/// The data of an event.
#[derive(Debug, PartialEq)]
pub(crate) enum Data<'e> {
    None,
    /// A JSON text, perhaps with spaces around it.
    Json(Cow<'e, str>),
    Text(Cow<'e, str>),
    Binary(Cow<'e, [u8]>),
}

/// An attribute of an event in one of CloudEvents' types.
#[derive(Debug, PartialEq)]
pub(crate) enum Scalar<'e> {
    Text(Cow<'e, str>),
    Integer(i32),
    Json(&'e Value),
}

impl<'a> Event<'a> {
    pub fn new(record: &'a Record<'a>) -> Self {
        let json = OnceCell::new();
        let (mut origin, mut fault) = (Origin::Wrapped, None);
        if record.content_type.is_some_and(media_type::is_structured_event) {
            let parsed = json::parse(record.payload);
            match fault_of(parsed.as_ref()) {
                None => origin = Origin::Structured,
                fault_found => fault = fault_found,
            }
            // It was empty.
            let _ = json.set(parsed);
        } else if has_required_properties(record) {
            match record.user_properties.len() <= ATTRIBUTES_MAX {
                true => origin = Origin::Binary,
                false => fault = Some(TOO_MANY),
            }
        }
        Self { record, origin, fault, json }
    }

    pub fn record(&self) -> &'a Record<'a> {
        self.record
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Why a message is wrapped, although its content type or its user properties are those of an
    /// event.
    pub fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Has a rule asked for the JSON of the payload?
    pub fn is_parsed(&self) -> bool {
        self.json.get().is_some()
    }

    /// The payload, if it is JSON within the limits.
    fn json(&self) -> Option<&Value> {
        self.json.get_or_init(|| json::parse(self.record.payload)).as_ref()
    }

    /// The members of a structured event.
    pub(crate) fn members(&self) -> Option<&Map<String, Value>> {
        match self.origin {
            Origin::Structured => self.json()?.as_object(),
            Origin::Wrapped | Origin::Binary => None,
        }
    }

    /// An attribute that is no enrichment.
    pub(crate) fn attribute(&self, name: &str, reading: PayloadReading) -> Found<'_> {
        let text = |text: Option<&'a str>| match text {
            Some(text) => Found::Text(Cow::Borrowed(text)),
            None => Found::Missing,
        };
        match self.origin {
            Origin::Structured => match self.members().and_then(|members| members.get(name)) {
                None | Some(Value::Null) => Found::Missing,
                Some(value) => Found::Json(value),
            },
            Origin::Binary if name == "datacontenttype" => text(self.content_type()),
            Origin::Binary => text(self.record.user_property(name)),
            Origin::Wrapped => match name {
                "specversion" => text(Some(SPEC_VERSION)),
                "id" => text(Some(self.record.id)),
                "source" => text(Some(self.record.namespace)),
                "type" => text(Some(TYPE)),
                "subject" => text(Some(self.record.topic)),
                "datacontenttype" => text(Some(self.wrapped_type(reading))),
                "time" => Found::Text(time_text(self.record.time_ms).into()),
                EXPIRY_TIME => match self.expiry_ms() {
                    Some(at_ms) => Found::Text(time_text(at_ms).into()),
                    None => Found::Missing,
                },
                _ => Found::Missing,
            },
        }
    }

    /// The value at a path inside the data.
    pub(crate) fn data_at(&self, path: &[Box<str>], reading: PayloadReading) -> Found<'_> {
        let data = match self.origin {
            Origin::Structured => self.members().and_then(|members| members.get("data")),
            _ if self.is_text() || reading == PayloadReading::Json => self.json(),
            _ => None,
        };
        match data.and_then(|data| json::at(data, path)) {
            Some(found) => Found::Json(found),
            None => Found::Missing,
        }
    }

    pub(crate) fn data(&self, reading: PayloadReading) -> Data<'_> {
        if let Some(members) = self.members() {
            return data_of(members);
        }
        let payload = self.record.payload;
        let is_text = self.is_text();
        let may_be_json = is_text || reading == PayloadReading::Json;
        match std::str::from_utf8(payload) {
            Ok(text) if may_be_json && self.json().is_some() => Data::Json(Cow::Borrowed(text)),
            Ok(text) if is_text => Data::Text(Cow::Borrowed(text)),
            _ => Data::Binary(Cow::Borrowed(payload)),
        }
    }

    /// All attributes with the enrichments of a rule, which take precedence.
    pub(crate) fn attributes<'e>(
        &'e self,
        enrichments: &'e Enrichments,
        reading: PayloadReading,
    ) -> Vec<(&'e str, Scalar<'e>)> {
        let mut all = Vec::new();
        let is_own = |name: &str| enrichments.index_of(name).is_none();
        for name in self.names().into_iter().filter(|name| is_own(name)) {
            match self.attribute(name, reading) {
                Found::Missing => {}
                Found::Text(text) => all.push((name, Scalar::Text(text))),
                Found::Json(Value::String(text)) => {
                    all.push((name, Scalar::Text(Cow::Borrowed(text))));
                }
                Found::Json(value) => all.push((name, Scalar::Json(value))),
            }
        }
        for enrichment in enrichments.iter() {
            all.push((enrichment.key(), enrichment.value(self.record).into()));
        }
        all
    }

    /// The names of attributes that it may have, each once, without those of enrichments.
    fn names(&self) -> Vec<&str> {
        match self.origin {
            Origin::Wrapped => WRAPPED.to_vec(),
            Origin::Structured => {
                let members = self.members().into_iter().flatten();
                let names = members.map(|(name, _)| &**name);
                names.filter(|name| !matches!(*name, "data" | "data_base64")).collect()
            }
            Origin::Binary => {
                let mut names = vec!["datacontenttype"];
                for (name, _) in self.record.user_properties {
                    if is_attribute_name(name) && !names.contains(name) {
                        names.push(name);
                    }
                }
                names
            }
        }
    }

    /// Has the publisher declared the payload as text or JSON?
    pub fn is_text(&self) -> bool {
        self.record.payload_format == 1 || self.record.content_type.is_some_and(media_type::is_json)
    }

    /// The content type, if it can be a header.
    fn content_type(&self) -> Option<&'a str> {
        self.record.content_type.and_then(media_type::valid)
    }

    fn wrapped_type(&self, reading: PayloadReading) -> &'a str {
        self.content_type().unwrap_or_else(|| match self.data(reading) {
            Data::Json(_) => JSON,
            Data::Text(_) => TEXT,
            Data::Binary(_) | Data::None => BINARY,
        })
    }

    fn expiry_ms(&self) -> Option<u64> {
        let expiry_ms = u64::from(self.record.expiry_secs?) * 1000;
        Some(self.record.time_ms.saturating_add(expiry_ms))
    }
}

/// Attributes of a wrapped message in their order.
const WRAPPED: [&str; 8] =
    ["specversion", "id", "source", "type", "subject", "time", "datacontenttype", EXPIRY_TIME];

/// Is it an attribute that events without enrichments may have?
pub(crate) fn is_known_attribute(name: &str) -> bool {
    WRAPPED.contains(&name) || OPTIONAL_TEXTS.contains(&name)
}

fn is_attribute_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    !name.is_empty() && name.bytes().all(is_of_name) && !NOT_IN_PROPERTIES.contains(&name)
}

fn has_required_properties(record: &Record<'_>) -> bool {
    let has = |name: &str| record.user_property(name).is_some_and(|value| !value.is_empty());
    let is_other_mode = record.content_type.is_some_and(media_type::is_of_events);
    !is_other_mode
        && record.user_property("specversion") == Some(SPEC_VERSION)
        && REQUIRED.into_iter().all(has)
}

const TOO_MANY: &str = "an event must have at most 256 attributes or user properties";

/// Why it is not an event in JSON. None: it is one.
fn fault_of(value: Option<&Value>) -> Option<&'static str> {
    let Some(value) = value else { return Some("the payload must be JSON") };
    let Some(members) = value.as_object() else {
        return Some("the payload must be a JSON object");
    };
    if members.len() > ATTRIBUTES_MAX {
        return Some(TOO_MANY);
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    if text("specversion") != Some(SPEC_VERSION) {
        return Some("`specversion` must be \"1.0\"");
    }
    if REQUIRED.iter().any(|name| text(name).is_none_or(str::is_empty)) {
        return Some("`id`, `source` and `type` must be texts that are not empty");
    }
    let is_text =
        |value: &Value| value.is_null() || value.as_str().is_some_and(|it| !it.is_empty());
    if !OPTIONAL_TEXTS.iter().all(|name| members.get(*name).is_none_or(is_text)) {
        return Some(
            "`datacontenttype`, `dataschema`, `subject` and `time` must be texts that are not empty",
        );
    }
    let encoded = members.get("data_base64").filter(|value| !value.is_null());
    if encoded.is_some() && members.get("data").is_some_and(|data| !data.is_null()) {
        return Some("`data` and `data_base64` exclude each other");
    }
    let is_base64 =
        |value: &Value| value.as_str().is_some_and(|text| STANDARD.decode(text).is_ok());
    if !encoded.is_none_or(is_base64) {
        return Some("`data_base64` must be base64 with padding");
    }
    let is_attribute = |(name, value): (&String, &Value)| match name.as_str() {
        "data" | "data_base64" | "datacontenttype" => true,
        _ => is_attribute_name(name) && !value.is_array() && !value.is_object(),
    };
    match members.iter().all(is_attribute) {
        true => None,
        false => Some("names of attributes must have a-z and 0-9 only, and values must be scalars"),
    }
}

/// The data of a structured event that has been checked.
fn data_of(members: &Map<String, Value>) -> Data<'_> {
    let content_type = members.get("datacontenttype").and_then(Value::as_str);
    if let Some(encoded) = members.get("data_base64").and_then(Value::as_str) {
        return Data::Binary(STANDARD.decode(encoded).unwrap_or_default().into());
    }
    match (members.get("data"), content_type) {
        (None | Some(Value::Null), _) => Data::None,
        (Some(Value::String(text)), Some(other)) if !media_type::is_json(other) => {
            Data::Text(Cow::Borrowed(text))
        }
        (Some(value), _) => Data::Json(value.to_string().into()),
    }
}

impl<'e> From<Enriched<'e>> for Scalar<'e> {
    fn from(value: Enriched<'e>) -> Self {
        match value {
            Enriched::Text(text) => Self::Text(text),
            Enriched::Integer(integer) => Self::Integer(integer),
        }
    }
}

impl Scalar<'_> {
    /// The canonical text of CloudEvents' types.
    pub(crate) fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Integer(integer) => integer.to_string().into(),
            Self::Json(value) => value.to_string().into(),
        }
    }
}

/// A time in ms since 1970 as RFC 3339. What is later than the year 9999 is its end.
fn time_text(at_ms: u64) -> String {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms.min(MS_MAX)) * 1_000_000);
    // Each moment up to the end of 9999 has such a text.
    at.ok().and_then(|at| at.format(format).ok()).unwrap_or_default()
}

/// The last millisecond of the year 9999.
const MS_MAX: u64 = 253_402_300_799_999;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TIME_MS, record, text_record};

    const ALREADY: &str = "application/cloudevents+json";

    fn found<'e>(event: &'e Event<'_>, name: &str) -> Option<Cow<'e, str>> {
        match event.attribute(name, PayloadReading::Declared) {
            Found::Missing => None,
            Found::Text(text) => Some(text),
            Found::Json(Value::String(text)) => Some(Cow::Borrowed(text)),
            Found::Json(value) => Some(value.to_string().into()),
        }
    }

    #[test]
    fn a_message_is_wrapped() {
        let record = Record { expiry_secs: Some(60), ..record("plants/7", b"\xFF") };
        let event = Event::new(&record);
        assert_eq!((event.origin(), event.fault()), (Origin::Wrapped, None));
        for (name, expected) in [
            ("specversion", Some("1.0")),
            ("id", Some("id-1")),
            ("source", Some("factory")),
            ("type", Some("MQTT.EventPublished")),
            ("subject", Some("plants/7")),
            ("time", Some("2026-11-29T12:00:00.007Z")),
            ("datacontenttype", Some("application/octet-stream")),
            ("expirytime", Some("2026-11-29T12:01:00.007Z")),
            ("dataschema", None),
            ("unit", None),
        ] {
            assert_eq!(found(&event, name).as_deref(), expected, "{name}");
        }
        assert!(!event.is_parsed(), "attributes need no JSON");
    }

    #[test]
    fn the_payload_is_data_in_its_kind() {
        let payload = |declared: u8, content_type, payload: &'static [u8], reading| {
            let record = record("t", payload);
            let record = Record { payload_format: declared, content_type, ..record };
            let event = Event::new(&record);
            let kind = match event.data(reading) {
                Data::None => "none",
                Data::Json(_) => "json",
                Data::Text(_) => "text",
                Data::Binary(_) => "binary",
            };
            (kind, found(&event, "datacontenttype").map(Cow::into_owned).unwrap_or_default())
        };
        let declared = PayloadReading::Declared;
        let json_utf8 = "application/json; charset=utf-8";
        for (pfi, content_type, bytes, expected) in [
            (0, None, &b"{}"[..], ("binary", "application/octet-stream")),
            (1, None, b" {} ", ("json", "application/json")),
            (1, None, b"on", ("text", "text/plain; charset=utf-8")),
            (1, None, b"\xFF", ("binary", "application/octet-stream")),
            (0, Some(json_utf8), b"{}", ("json", json_utf8)),
            (0, Some(json_utf8), b"on", ("text", json_utf8)),
            (0, Some("text/plain"), b"5", ("binary", "text/plain")),
            (1, Some("text/plain"), b"5", ("json", "text/plain")),
            (1, Some("a/b\r\nx: y"), b"5", ("json", "application/json")),
            (0, None, b"", ("binary", "application/octet-stream")),
        ] {
            let (kind, content) = payload(pfi, content_type, bytes, declared);
            assert_eq!((kind, &*content), expected, "{pfi} {content_type:?} {bytes:?}");
        }
        assert_eq!(payload(0, None, b"{}", PayloadReading::Json).0, "json");
        assert_eq!(payload(0, None, b"on", PayloadReading::Json).0, "binary");
    }

    #[test]
    fn user_properties_with_all_required_attributes_are_an_event() {
        let all = [
            ("specversion", "1.0"),
            ("id", "7"),
            ("source", "/s"),
            ("type", "t"),
            ("subject", "s"),
            ("unit", "C"),
            ("Other", "x"),
            ("data", "x"),
        ];
        let own = Record { user_properties: &all, ..text_record("topic", "21") };
        let event = Event::new(&own);
        assert_eq!(event.origin(), Origin::Binary);
        assert_eq!(found(&event, "id").as_deref(), Some("7"));
        assert_eq!(found(&event, "subject").as_deref(), Some("s"));
        assert_eq!(found(&event, "time"), None);
        let none = Enrichments::default();
        let attributes = event.attributes(&none, PayloadReading::Declared);
        let names: Vec<&str> = attributes.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["specversion", "id", "source", "type", "subject", "unit"]);
        for missing in 0..4 {
            let some: Vec<_> = (0..4).filter(|it| *it != missing).map(|it| all[it]).collect();
            let record = Record { user_properties: &some, ..own };
            assert_eq!(Event::new(&record).origin(), Origin::Wrapped, "{missing}");
        }
        let other = [("specversion", "0.3"), ("id", "7"), ("source", "/s"), ("type", "t")];
        let record = Record { user_properties: &other, ..own };
        assert_eq!(Event::new(&record).origin(), Origin::Wrapped);
        let record = Record { content_type: Some("application/cloudevents+avro"), ..own };
        assert_eq!(Event::new(&record).origin(), Origin::Wrapped);
    }

    #[test]
    fn a_payload_of_its_content_type_is_an_event() {
        let own = Record {
            content_type: Some(ALREADY),
            ..record(
                "topic",
                br#"{"specversion": "1.0", "id": "7", "source": "/s", "type": "t", "n": 5,
                    "none": null, "data": {"a": [1, 2]}}"#,
            )
        };
        let event = Event::new(&own);
        assert_eq!(event.origin(), Origin::Structured);
        assert_eq!(found(&event, "n").as_deref(), Some("5"));
        assert_eq!(found(&event, "none"), None);
        let path = ["a".into()];
        let data = event.data_at(&path, PayloadReading::Declared);
        assert_eq!(data, Found::Json(&serde_json::json!([1, 2])));
    }

    #[test]
    fn what_is_no_event_is_wrapped_and_says_why() {
        for (payload, why) in [
            ("", "must be JSON"),
            ("[]", "JSON object"),
            (r#"{"specversion": "0.3", "id": "7", "source": "/s", "type": "t"}"#, "specversion"),
            (r#"{"specversion": "1.0", "id": "", "source": "/s", "type": "t"}"#, "`id`"),
            (r#"{"specversion": "1.0", "id": "7", "source": "/s"}"#, "`type`"),
            (r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","time":7}"#, "`time`"),
            (r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","Bad":7}"#, "a-z"),
            (r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","a":[]}"#, "scalars"),
            (
                r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","data_base64":"%"}"#,
                "base64",
            ),
            (
                r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","data_base64":"","data":1}"#,
                "exclude",
            ),
        ] {
            let record = Record { content_type: Some(ALREADY), ..record("t", payload.as_bytes()) };
            let event = Event::new(&record);
            assert_eq!(event.origin(), Origin::Wrapped, "{payload}");
            assert!(event.fault().is_some_and(|fault| fault.contains(why)), "{payload}");
        }
    }

    #[test]
    fn an_event_has_a_limited_number_of_attributes() {
        let required = [("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t")];
        let binary = |count: usize| {
            let mut properties = required.to_vec();
            properties.resize(count, ("unit", "C"));
            let record = Record { user_properties: &properties, ..record("t", b"") };
            let event = Event::new(&record);
            (event.origin(), event.fault())
        };
        assert_eq!(binary(ATTRIBUTES_MAX), (Origin::Binary, None));
        assert_eq!(binary(ATTRIBUTES_MAX + 1), (Origin::Wrapped, Some(TOO_MANY)));
        let structured = |count: usize| {
            let more = (4..count).map(|number| (format!("a{number}"), Value::from(1)));
            let required = required.map(|(name, value)| (name.to_owned(), Value::from(value)));
            let payload = Value::Object(required.into_iter().chain(more).collect()).to_string();
            let payload = payload.as_bytes();
            let record = Record { content_type: Some(ALREADY), payload, ..record("t", b"") };
            let event = Event::new(&record);
            (event.origin(), event.fault())
        };
        assert_eq!(structured(ATTRIBUTES_MAX), (Origin::Structured, None));
        assert_eq!(structured(ATTRIBUTES_MAX + 1), (Origin::Wrapped, Some(TOO_MANY)));
        assert!(TOO_MANY.contains(&ATTRIBUTES_MAX.to_string()));
    }

    #[test]
    fn times_end_with_the_year_9999() {
        assert_eq!(time_text(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time_text(TIME_MS), "2026-11-29T12:00:00.007Z");
        assert_eq!(time_text(u64::MAX), "9999-12-31T23:59:59.999Z");
    }
}
