//! Delivery properties: headers of a request whose values are taken from the event.

use serde_json::Value;

use crate::condition::{ConditionError, Context, Key};
use crate::enrich::Enrichments;
use crate::event::Found;
use crate::form::Header;

/// Bytes of a value, as Event Grid allows them. A header with a longer one is left out.
pub const PROPERTY_BYTES_MAX: usize = 4_096;

/// A header with a value of the event.
#[derive(Clone, Debug, PartialEq)]
pub struct Property {
    name: Box<str>,
    key: Key,
}

impl Property {
    /// `path`: a key, as conditions have them.
    ///
    /// # Errors
    ///
    /// The path is none.
    pub fn new(name: &str, path: &str, enrichments: &Enrichments) -> Result<Self, ConditionError> {
        Ok(Self { name: name.into(), key: Key::parse(path, enrichments)? })
    }

    /// None: the event has no text, number or boolean there, or one that no header can have.
    pub(crate) fn header(&self, context: Context<'_, '_>) -> Option<Header> {
        let value = self.value(context)?;
        let is_sound = value.len() <= PROPERTY_BYTES_MAX && value.bytes().all(is_of_value);
        is_sound.then(|| Header::new(&*self.name, value))
    }

    fn value(&self, context: Context<'_, '_>) -> Option<String> {
        let Context { event, enrichments, reading } = context;
        let found = match &self.key {
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

/// What the value of a header may have: printable ASCII characters.
pub(crate) fn is_of_value(byte: u8) -> bool {
    byte == b' ' || byte.is_ascii_graphic()
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
}
