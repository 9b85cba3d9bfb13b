//! Binary form: attributes as headers, the data as the body.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::{Binding, CONTENT_TYPE, Header, Output, bytes_of};
use crate::enrich::Enrichments;
use crate::event::{Data, Event, PayloadReading};
use crate::media_type;

/// Section 3.1.3.2 of the HTTP binding. Whatever is not ASCII is encoded in any case.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

pub(super) fn binary(
    event: &Event<'_>,
    enrichments: &Enrichments,
    reading: PayloadReading,
    binding: Binding,
) -> Output {
    let mut headers = Vec::new();
    for (name, value) in event.attributes(enrichments, reading) {
        let text = value.text();
        if name != "datacontenttype" {
            let name = format!("{}{name}", binding.prefix());
            headers.push(Header::new(name, encoded(&text, binding)));
        } else if let Some(content_type) = media_type::valid(&text) {
            headers.push(Header::new(CONTENT_TYPE, content_type));
        }
    }
    let data = event.data(reading);
    // In JSON, an event without this attribute has data in JSON. As headers it has to be written.
    let is_typed = headers.iter().any(|header| header.name == CONTENT_TYPE);
    if matches!(data, Data::Json(_)) && !is_typed {
        headers.push(Header::new(CONTENT_TYPE, "application/json"));
    }
    Output { headers, body: bytes_of(data) }
}

fn encoded(text: &str, binding: Binding) -> String {
    match binding {
        Binding::Http => Cow::from(utf8_percent_encode(text, ENCODED)).into_owned(),
        Binding::Kafka => text.to_owned(),
    }
}
