//! The forms in which an event leaves: as headers and a body.

mod headers;
mod structured;

use crate::enrich::Enrichments;
use crate::event::{Data, Event, PayloadReading};
use crate::media_type;

/// Content type of an event in structured form.
pub const STRUCTURED_TYPE: &str = "application/cloudevents+json; charset=utf-8";
/// Content type of a batch of events.
pub const BATCH_TYPE: &str = "application/cloudevents-batch+json; charset=utf-8";

/// What a target receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// The payload as it was published, without attributes.
    Raw,
    /// The whole event as JSON in the body.
    #[default]
    Structured,
    /// Attributes as headers, the data as the body.
    Binary,
    /// A JSON array of events.
    Batch,
}

/// The protocol whose headers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// `ce-` and percent-encoded values.
    Http,
    /// `ce_` and values in UTF-8.
    Kafka,
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: String,
    pub value: String,
}

/// What is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    pub headers: Vec<Header>,
    /// None: the event has no data. In Kafka that is a null value.
    pub body: Option<Vec<u8>>,
}

impl Form {
    /// All forms with their words in rules.
    pub const WORDS: [(&str, Self); 4] = [
        ("raw", Self::Raw),
        ("structured", Self::Structured),
        ("binary", Self::Binary),
        ("batch", Self::Batch),
    ];

    /// The word for it in rules.
    pub fn word(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Structured => "structured",
            Self::Binary => "binary",
            Self::Batch => "batch",
        }
    }
}

impl Binding {
    /// What the names of attributes as headers begin with.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Self::Http => "ce-",
            Self::Kafka => "ce_",
        }
    }

    /// Does some form set this header?
    pub(crate) fn sets(self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        name == CONTENT_TYPE || name.starts_with(self.prefix())
    }
}

impl Header {
    pub(crate) fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// An event with the enrichments of a rule, in a form. A batch has this event alone:
/// [`batch_of`] joins several.
pub fn render(
    event: &Event<'_>,
    enrichments: &Enrichments,
    reading: PayloadReading,
    form: Form,
    binding: Binding,
) -> Output {
    match form {
        Form::Raw => raw(event),
        Form::Binary => headers::binary(event, enrichments, reading, binding),
        Form::Structured => Output {
            headers: vec![Header::new(CONTENT_TYPE, STRUCTURED_TYPE)],
            body: Some(structured::json(event, enrichments, reading)),
        },
        Form::Batch => {
            let body = batch_of([&*structured::json(event, enrichments, reading)]);
            let headers = vec![Header::new(CONTENT_TYPE, BATCH_TYPE)];
            Output { headers, body: Some(body) }
        }
    }
}

/// Events in structured form as one JSON array.
pub fn batch_of<'e>(events: impl IntoIterator<Item = &'e [u8]>) -> Vec<u8> {
    let mut batch = vec![b'['];
    for (index, event) in events.into_iter().enumerate() {
        if index > 0 {
            batch.push(b',');
        }
        batch.extend(event);
    }
    batch.push(b']');
    batch
}

/// Of HTTP, where upper and lower case are the same, and of Kafka's binding.
pub(crate) const CONTENT_TYPE: &str = "content-type";

fn raw(event: &Event<'_>) -> Output {
    let record = event.record();
    let content_type = record.content_type.and_then(media_type::valid);
    let headers = content_type.map(|text| Header::new(CONTENT_TYPE, text)).into_iter().collect();
    Output { headers, body: Some(record.payload.to_vec()) }
}

/// Data as the bytes of a body.
pub(crate) fn bytes_of(data: Data<'_>) -> Option<Vec<u8>> {
    match data {
        Data::None => None,
        Data::Json(text) | Data::Text(text) => Some(text.into_owned().into_bytes()),
        Data::Binary(bytes) => Some(bytes.into_owned()),
    }
}

#[cfg(test)]
mod tests;
