//! Delivery properties: headers of what a target receives.

use serde_json::Value;

use crate::condition::{ConditionError, Context, Key};
use crate::enrich::Enrichments;
use crate::event::Found;
use crate::form::Header;

/// Bytes of a value, as Event Grid allows them. A header with a longer one is left out.
pub const PROPERTY_BYTES_MAX: usize = 4_096;

/// A header of what a target receives.
#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    name: Box<str>,
    source: Source,
}

#[derive(Clone, Debug, PartialEq)]
enum Source {
    Fixed(Box<str>),
    Event(Key),
}

impl Property {
    /// A value of the event. `path`: a key, as conditions have them.
    ///
    /// # Errors
    ///
    /// The path is none.
    pub fn new(name: &str, path: &str, enrichments: &Enrichments) -> Result<Self, ConditionError> {
        Ok(Self { name: name.into(), source: Source::Event(Key::parse(path, enrichments)?) })
    }

    /// The same value for all events. None: no header can have it.
    pub fn fixed(name: &str, value: &str) -> Option<Self> {
        is_value(value).then(|| Self { name: name.into(), source: Source::Fixed(value.into()) })
    }

    /// Is its value that of one event?
    pub(crate) fn is_of_event(&self) -> bool {
        matches!(self.source, Source::Event(_))
    }

    /// None: the event has no text, number or boolean there, or one that no header can have.
    pub(crate) fn header(&self, context: Context<'_, '_>) -> Option<Header> {
        let value = self.value(context)?;
        is_value(&value).then(|| Header::new(&*self.name, value))
    }

    fn value(&self, context: Context<'_, '_>) -> Option<String> {
        let Context { event, enrichments, reading } = context;
        let key = match &self.source {
            Source::Fixed(value) => return Some(value.to_string()),
            Source::Event(key) => key,
        };
        let found = match key {
            Key::Enrichment(index) => {
                let value = enrichments.get(*index)?.value(event.record());
                return Some(value.as_text().into_owned());
            }
            Key::Attribute(name) => event.attribute(name, reading),
            Key::Data(path) => event.data_at(path, reading),
        };
        match found {
            Found::Text(text) => Some(text.into_owned()),
            Found::Json(Value::String(text)) => Some(text.clone()),
            Found::Json(Value::Number(number)) => Some(number.to_string()),
            Found::Json(Value::Bool(is_set)) => Some(is_set.to_string()),
            Found::Missing | Found::Json(_) => None,
        }
    }
}

/// What the value of a header may have: printable ASCII characters, not too many.
pub(crate) fn is_value(text: &str) -> bool {
    let is_of_value = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    text.len() <= PROPERTY_BYTES_MAX && text.bytes().all(is_of_value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, PayloadReading};
    use crate::record::Record;
    use crate::testing::text_record;

    #[test]
    fn a_header_has_a_text_a_number_or_a_boolean() {
        let payload = format!(
            r#"{{"text": "a b", "number": 1.50, "is": true, "none": null, "list": [1],
                "object": {{"in": 7}}, "long": "{}", "line": "a\nb", "foreign": "ä"}}"#,
            "x".repeat(PROPERTY_BYTES_MAX + 1)
        );
        let record = Record { payload: payload.as_bytes(), ..text_record("plants/7", "") };
        let event = Event::new(&record);
        let enrichments = Enrichments::default();
        let reading = PayloadReading::Json;
        let header = |path: &str| {
            let property = Property::new("x-own", path, &enrichments).expect("it is a key");
            property.header(Context { event: &event, enrichments: &enrichments, reading })
        };
        for (path, value) in [
            ("data.text", "a b"),
            ("data.number", "1.50"),
            ("data.is", "true"),
            ("data.object.in", "7"),
            ("subject", "plants/7"),
        ] {
            assert_eq!(header(path), Some(Header::new("x-own", value)), "{path}");
        }
        let without = ["none", "list", "object", "long", "line", "foreign", "missing"];
        for path in without.map(|name| format!("data.{name}")) {
            assert_eq!(header(&path), None, "{path}");
        }
        assert!(Property::new("x", "Data.x", &enrichments).is_err());
    }

    #[test]
    fn a_fixed_header_is_the_same_for_all_events() {
        let record = text_record("plants/7", "");
        let event = Event::new(&record);
        let enrichments = Enrichments::default();
        let context =
            Context { event: &event, enrichments: &enrichments, reading: PayloadReading::Json };
        let property = Property::fixed("x-own", "data.text").expect("it is a value");
        assert_eq!(property.header(context), Some(Header::new("x-own", "data.text")));
        for wrong in ["ä", "a\nb", &"x".repeat(PROPERTY_BYTES_MAX + 1)] {
            assert_eq!(Property::fixed("x-own", wrong), None, "{wrong}");
        }
    }
}
