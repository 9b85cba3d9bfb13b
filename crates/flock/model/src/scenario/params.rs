//! `${name}` in a scenario file, and the variants that give the names other values.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::format::Variant;
use super::{Choice, ScenarioError, did_you_mean, from_toml};

pub(super) struct Filled {
    pub text: String,
    pub variant: Option<Variant>,
    pub params: BTreeMap<String, String>,
}

/// The part of a file that can be read before its parameters are filled in.
#[derive(Deserialize)]
struct Head {
    id: String,
    #[serde(default)]
    params: BTreeMap<String, String>,
    #[serde(default)]
    variant: Vec<Variant>,
}

/// The text with every `${name}` replaced by its value: from the choice, the variant, the defaults.
pub(super) fn fill(file: &str, text: &str, choice: &Choice) -> Result<Filled, ScenarioError> {
    let head: Head = from_toml(file, text)?;
    let mut values = head.params;
    let variant = match &choice.variant {
        None => None,
        Some(id) if *id == head.id => None,
        Some(id) => Some(
            head.variant
                .into_iter()
                .find(|variant| variant.id == *id)
                .ok_or_else(|| ScenarioError::new(file, format!("unknown variant `{id}`")))?,
        ),
    };
    let place = |name: &str| format!("${{{name}}}");
    let is_idle = |name: &&String| values.contains_key(*name) && !text.contains(&place(name));
    if let Some(name) = choice.params.keys().find(is_idle) {
        let message = format!("setting `{name}` has no effect: {} is nowhere", place(name));
        return Err(ScenarioError::new(file, message));
    }
    let overrides = variant.iter().flat_map(|variant| &variant.params).chain(&choice.params);
    for (name, value) in overrides {
        match values.get_mut(name) {
            Some(known) => known.clone_from(value),
            None => {
                let hint =
                    did_you_mean(name, values.keys().map(String::as_str)).unwrap_or_else(|| {
                        let names: Vec<&str> = values.keys().map(String::as_str).collect();
                        format!(
                            "its parameters: {}",
                            if names.is_empty() { "none".into() } else { names.join(", ") }
                        )
                    });
                return Err(ScenarioError::new(file, format!("unknown parameter `{name}`"))
                    .hint(Some(hint)));
            }
        }
    }
    Ok(Filled { text: replace(file, text, &values)?, variant, params: values })
}

pub(super) fn ids(file: &str, text: &str) -> Result<Vec<String>, ScenarioError> {
    let head: Head = from_toml(file, text)?;
    if head.variant.is_empty() {
        return Ok(vec![head.id]);
    }
    Ok(head.variant.into_iter().map(|variant| variant.id).collect())
}

fn replace(
    file: &str,
    text: &str,
    values: &BTreeMap<String, String>,
) -> Result<String, ScenarioError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let start = text.len() - rest.len() + at;
        let wrong = |message: String, width: usize| {
            ScenarioError::new(file, message).at(text, start..start + width)
        };
        let inner = &rest[at + 2..];
        let end = inner.find('}').ok_or_else(|| wrong("`${` without a closing }".to_owned(), 2))?;
        let name = &inner[..end];
        let value = values.get(name).ok_or_else(|| {
            wrong(format!("unknown parameter `{name}`"), end + 3)
                .hint(did_you_mean(name, values.keys().map(String::as_str)))
        })?;
        if value.contains(['"', '\\', '\n']) {
            return Err(wrong(
                format!("the value of `{name}` must not have quotes or backslashes"),
                end + 3,
            ));
        }
        out.push_str(&rest[..at]);
        out.push_str(value);
        rest = &inner[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}
