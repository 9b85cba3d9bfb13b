//! What goes over the wire as JSON, declared once: from there come the types, what is read and
//! written, and the schemas of the OpenAPI document.

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Schemas that have a name.
pub(crate) type Known = Map<String, Value>;

/// Something with a schema.
pub(crate) trait Described {
    /// May it be left out?
    const IS_OPTIONAL: bool = false;

    /// Its schema. One that has a name goes into `known`, and is referred to.
    fn schema(known: &mut Known) -> Value;
}

/// Declares an object of JSON.
macro_rules! record {
    (
        $(#[doc = $about:literal])+
        $name:ident {
            $( $(#[doc = $doc:literal])+ $field:ident: $type:ty, )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $( $(#[doc = $doc])+ pub(crate) $field: $type, )+
        }

        impl $crate::api::schema::Described for $name {
            fn schema(known: &mut $crate::api::schema::Known) -> serde_json::Value {
                use $crate::api::schema::{Described, of_field, of_record};
                let name = stringify!($name);
                if !known.contains_key(name) {
                    known.insert(name.into(), serde_json::Value::Null);
                    let fields = [
                        $( (
                            stringify!($field),
                            of_field(<$type as Described>::schema(known), concat!($($doc),+)),
                            <$type as Described>::IS_OPTIONAL,
                        ), )+
                    ];
                    known.insert(name.into(), of_record(concat!($($about),+), &fields));
                }
                serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
            }
        }
    };
}
pub(crate) use record;

pub(crate) fn of_field(mut schema: Value, doc: &str) -> Value {
    schema["description"] = words(doc).into();
    schema
}

/// Fields with their schemas, and whether each may be left out.
pub(crate) fn of_record(about: &str, fields: &[(&str, Value, bool)]) -> Value {
    let required: Vec<&str> =
        fields.iter().filter(|(.., optional)| !optional).map(|(name, ..)| *name).collect();
    let properties: Known =
        fields.iter().map(|(name, schema, _)| ((*name).to_owned(), schema.clone())).collect();
    let mut schema = json!({
        "type": "object",
        "description": words(about),
        "additionalProperties": false,
        "properties": properties,
    });
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// The lines of a doc comment as one.
pub(crate) fn words(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Described for String {
    fn schema(_: &mut Known) -> Value {
        json!({ "type": "string" })
    }
}

/// Whatever JSON there is.
impl Described for Value {
    fn schema(_: &mut Known) -> Value {
        json!({})
    }
}

impl Described for f64 {
    fn schema(_: &mut Known) -> Value {
        json!({ "type": "number" })
    }
}

impl Described for bool {
    fn schema(_: &mut Known) -> Value {
        json!({ "type": "boolean" })
    }
}

macro_rules! numbers {
    ($($type:ty),+) => { $(
        impl Described for $type {
            fn schema(_: &mut Known) -> Value {
                json!({ "type": "integer", "minimum": 0, "maximum": <$type>::MAX })
            }
        }
    )+ };
}
numbers!(u8, u16, u32, u64);

impl<T: Described> Described for Option<T> {
    const IS_OPTIONAL: bool = true;

    fn schema(known: &mut Known) -> Value {
        let mut schema = T::schema(known);
        if schema["type"].is_string() {
            schema["type"] = json!([schema["type"], "null"]);
            return schema;
        }
        json!({ "anyOf": [schema, { "type": "null" }] })
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema(known: &mut Known) -> Value {
        json!({ "type": "array", "items": T::schema(known) })
    }
}

/// A page of a list.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rows<T> {
    pub(crate) items: Vec<T>,
    pub(crate) cursor: Option<String>,
}

impl<T: Described> Described for Rows<T> {
    fn schema(known: &mut Known) -> Value {
        let items = of_field(Vec::<T>::schema(known), "The rows. A page may be short.");
        let doc = "The cursor of the next page; null: this is the last page.";
        let cursor = of_field(Option::<String>::schema(known), doc);
        of_record("A page of a list.", &[("items", items, false), ("cursor", cursor, true)])
    }
}
