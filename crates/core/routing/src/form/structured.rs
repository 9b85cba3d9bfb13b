//! Structured form: an event as a JSON object.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::enrich::Enrichments;
use crate::event::{Data, Event, PayloadReading, Scalar};

/// The event as JSON. JSON data of a payload is written as the publisher wrote it.
pub(super) fn json(
    event: &Event<'_>,
    enrichments: &Enrichments,
    reading: PayloadReading,
) -> Vec<u8> {
    let mut body = Vec::with_capacity(OVERHEAD_BYTES + event.record().payload.len());
    body.push(b'{');
    for (name, value) in event.attributes(enrichments, reading) {
        begin(&mut body, name);
        match &value {
            Scalar::Text(text) => quote(&mut body, text),
            Scalar::Integer(_) | Scalar::Json(_) => body.extend(value.text().as_bytes()),
        }
    }
    match event.data(reading) {
        Data::None => {}
        Data::Json(data) => {
            begin(&mut body, "data");
            body.extend(data.trim_ascii().as_bytes());
        }
        Data::Text(data) => {
            begin(&mut body, "data");
            quote(&mut body, &data);
        }
        Data::Binary(data) => {
            begin(&mut body, "data_base64");
            quote(&mut body, &STANDARD.encode(data));
        }
    }
    body.push(b'}');
    body
}

/// Begins a member.
fn begin(body: &mut Vec<u8>, name: &str) {
    if body.len() > 1 {
        body.push(b',');
    }
    quote(body, name);
    body.push(b':');
}

fn quote(body: &mut Vec<u8>, text: &str) {
    // Writing to memory does not fail.
    let _ = serde_json::to_writer(body, text);
}

/// What the attributes usually take.
const OVERHEAD_BYTES: usize = 512;
