//! Structured form: an event as a JSON object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::enrich::Enrichments;
use crate::event::{Data, Event, PayloadReading, Scalar};

/// The event as JSON. JSON data of a payload is written as the publisher wrote it.
pub(super) fn json(
    event: &Event<'_>,
    enrichments: &Enrichments,
    reading: PayloadReading,
) -> String {
    let mut text = String::with_capacity(OVERHEAD_BYTES + event.record().payload.len());
    text.push('{');
    for (name, value) in event.attributes(enrichments, reading) {
        member(&mut text, name, &json_of(&value));
    }
    match event.data(reading) {
        Data::None => {}
        Data::Json(data) => member(&mut text, "data", data.trim_ascii()),
        Data::Text(data) => member(&mut text, "data", &quoted(&data)),
        Data::Binary(data) => {
            member(&mut text, "data_base64", &format!("\"{}\"", STANDARD.encode(data)));
        }
    }
    text.push('}');
    text
}

fn member(text: &mut String, name: &str, value: &str) {
    if text.len() > 1 {
        text.push(',');
    }
    text.push_str(&quoted(name));
    text.push(':');
    text.push_str(value);
}

fn json_of(value: &Scalar<'_>) -> String {
    match value {
        Scalar::Text(text) => quoted(text),
        Scalar::Integer(_) | Scalar::Json(_) => value.text().into_owned(),
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// What the attributes usually take.
const OVERHEAD_BYTES: usize = 512;
