//! Delivery properties of an event subscription: headers, and the key of records.

use serde_json::{Map, Value};

use super::{EventGridError, Note, Resource, join};
use crate::enrich::{Enrichments, Template};
use crate::form::Binding;
use crate::property::{PROPERTY_BYTES_MAX, Property};

pub(super) const NAME: &str = "deliveryAttributeMappings";

/// Properties of one destination, as Event Grid allows them.
const MAPPINGS_MAX: usize = 10;

/// The property that selects the partition of an event hub.
const PARTITION_KEY: &str = "PartitionKey";

/// Properties as parts of a rule.
#[derive(Default)]
pub(super) struct Mapped {
    pub(super) properties: Vec<Property>,
    /// The key of records of Kafka, if one of them is that.
    pub(super) key: Option<Template>,
}

/// Where the value of a property comes from.
enum From<'v> {
    /// A value that is not exported, or must not be shown.
    Secret,
    Static(&'v str),
    Dynamic(&'v str),
}

pub(super) fn of(
    resource: &Resource<'_>,
    own: &Map<String, Value>,
    path: &str,
    binding: Binding,
    enrichments: &Enrichments,
    notes: &mut Vec<Note>,
) -> Result<Mapped, EventGridError> {
    let items = resource.list(own, path, NAME)?;
    if items.len() > MAPPINGS_MAX {
        let detail = format!("must have at most {MAPPINGS_MAX} properties, got {}", items.len());
        return Err(resource.error(&join(path, NAME), detail));
    }
    let mut mapped = Mapped::default();
    let mut names: Vec<String> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let at = join(path, &format!("{NAME}.{index}"));
        let Value::Object(entry) = item else {
            return Err(resource.wrong(path, NAME, "a list of objects", item));
        };
        let name = name_of(resource, entry, &at, binding)?;
        if names.contains(&name.to_ascii_lowercase()) {
            let detail = format!("'{name}' is used twice: names must be unique");
            return Err(resource.error(&join(&at, "name"), detail));
        }
        names.push(name.to_ascii_lowercase());
        let from = from_of(resource, entry, &at)?;
        if binding == Binding::Kafka && name == PARTITION_KEY {
            mapped.key = Some(key_of(resource, &from, &at, enrichments)?);
            continue;
        }
        match from {
            From::Secret => notes.push(resource.note(&at, secret(name, binding))),
            From::Static(value) => {
                let property = Property::fixed(name, value);
                mapped.properties.push(property.ok_or_else(|| value_error(resource, &at))?);
            }
            From::Dynamic(field) => {
                let property = Property::new(name, field, enrichments);
                let wrong = |detail| resource.error(&join(&at, "sourceField"), detail);
                mapped.properties.push(property.map_err(|error| wrong(error.detail))?);
            }
        }
    }
    Ok(mapped)
}

fn secret(name: &str, binding: Binding) -> String {
    match binding {
        Binding::Http => format!(
            "its value is a secret: put it into a file, and set the header {name} of the target \
             to {{ file = \"PATH\" }}"
        ),
        Binding::Kafka => format!(
            "its value is a secret, and records have no secret headers: the header {name} is left out"
        ),
    }
}

fn value_error(resource: &Resource<'_>, at: &str) -> EventGridError {
    let detail = format!("must have at most {PROPERTY_BYTES_MAX} printable ASCII characters");
    resource.error(&join(at, "value"), detail)
}

fn name_of<'v>(
    resource: &Resource<'_>,
    entry: &'v Map<String, Value>,
    at: &str,
    binding: Binding,
) -> Result<&'v str, EventGridError> {
    let name = resource.text(entry, at, "name")?.unwrap_or_default();
    let wrong = |detail: String| Err(resource.error(&join(at, "name"), detail));
    if !is_token(name) {
        return wrong(format!("'{name}': must be the name of an HTTP header"));
    }
    if name.to_ascii_lowercase().starts_with("aeg-") {
        return wrong(format!("'{name}': must not begin with aeg-, which Event Grid uses"));
    }
    if binding.sets(name) {
        let prefix = binding.prefix();
        return wrong(format!(
            "'{name}': must not be content-type or begin with {prefix}: the form of a rule sets \
             these"
        ));
    }
    Ok(name)
}

/// RFC 9110, section 5.6.2.
fn is_token(name: &str) -> bool {
    let is_of_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.bytes().all(is_of_token)
}

/// The CLI prints what is in `properties` in addition to the name.
fn from_of<'v>(
    resource: &Resource<'_>,
    entry: &'v Map<String, Value>,
    at: &str,
) -> Result<From<'v>, EventGridError> {
    const OWN: [&str; 3] = ["value", "isSecret", "sourceField"];
    let (inner, inside) = match resource.object(entry, at, "properties")? {
        Some(inner) => {
            resource.refuse_others(entry, at, &["name", "type", "properties"])?;
            resource.refuse_others(inner, &join(at, "properties"), &OWN)?;
            (inner, join(at, "properties"))
        }
        None => {
            let read = ["name", "type", "properties", OWN[0], OWN[1], OWN[2]];
            resource.refuse_others(entry, at, &read)?;
            (entry, at.to_owned())
        }
    };
    let refuse = |other: &str, word: &str| match inner.get(other) {
        None | Some(Value::Null) => Ok(()),
        Some(_) => {
            let detail = format!("must not be set for a property of type {word}");
            Err(resource.error(&join(&inside, other), detail))
        }
    };
    let missing =
        |name: &str| resource.error(&join(&inside, name), "missing: must be a text".into());
    match resource.text(entry, at, "type")?.unwrap_or_default() {
        word if word.eq_ignore_ascii_case("Static") => {
            refuse("sourceField", word)?;
            let is_secret = match inner.get("isSecret") {
                None | Some(Value::Null | Value::Bool(false)) => false,
                Some(Value::Bool(true)) => true,
                Some(other) => {
                    return Err(resource.wrong(&inside, "isSecret", "true or false", other));
                }
            };
            // A wrong type is refused, though the value of a secret is not used.
            let value = resource.text(inner, &inside, "value")?;
            match is_secret {
                true => Ok(From::Secret),
                false => Ok(From::Static(value.ok_or_else(|| missing("value"))?)),
            }
        }
        word if word.eq_ignore_ascii_case("Dynamic") => {
            refuse("value", word)?;
            refuse("isSecret", word)?;
            let field = resource.text(inner, &inside, "sourceField")?;
            Ok(From::Dynamic(field.ok_or_else(|| missing("sourceField"))?))
        }
        other => {
            let detail = format!("must be Static or Dynamic, got '{other}'");
            Err(resource.error(&join(at, "type"), detail))
        }
    }
}

/// A key of records is a text with variables. An enrichment is one, and other values of an event
/// are not.
fn key_of(
    resource: &Resource<'_>,
    from: &From<'_>,
    at: &str,
    enrichments: &Enrichments,
) -> Result<Template, EventGridError> {
    let wrong = |detail: String| resource.error(at, detail);
    match from {
        From::Secret => Err(wrong("PartitionKey must not be a secret".into())),
        From::Static(value) if value.contains("${") => Err(wrong(
            "PartitionKey must not contain '${', which begins a variable in rules".into(),
        )),
        From::Static(value) => Template::parse(value).map_err(|error| wrong(error.to_string())),
        From::Dynamic(field) => {
            let enrichment = enrichments.iter().find(|enrichment| enrichment.key() == *field);
            enrichment.map(Template::of).ok_or_else(|| {
                wrong(format!(
                    "PartitionKey must be Static, or its sourceField the key of an enrichment, got \
                     '{field}'"
                ))
            })
        }
    }
}
