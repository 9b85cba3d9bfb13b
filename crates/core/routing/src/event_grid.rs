//! Routing of Azure Event Grid, in the JSON of its CLI, REST API and templates.
//!
//! A text is one resource, a list of them, the answer of a list call (`{"value": [...]}`) or a
//! template (`{"resources": [...]}`). A namespace gives the enrichments and the routing topic, and
//! each event subscription of that topic becomes a rule. A part that has no counterpart is
//! [noted](Note). A part that is wrong, or unknown where it changes which messages match, refuses
//! the whole text.

mod delivery;
mod mappings;
mod subscription;

use std::fmt;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::definitions::{FILE_BYTES_MAX, RULES_MAX};
use crate::enrich::{Enrichment, Enrichments};
use crate::rule::Rule;

/// How deep resources may be inside each other.
const DEPTH_MAX: usize = 4;

/// What a text has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    pub rules: Vec<Rule>,
    /// Parts that have no counterpart, or another one than it seems.
    pub notes: Vec<Note>,
}

/// A part of a resource that has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Kind and name.
    pub resource: String,
    /// The dotted member; empty: the whole resource.
    pub part: String,
    pub detail: String,
}

/// Why a text is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EventGridError {
    #[error("must have at most {FILE_BYTES_MAX} bytes")]
    TooLarge,
    #[error("must be JSON: {0}")]
    Json(String),
    #[error("must have at most {RULES_MAX} event subscriptions")]
    TooMany,
    #[error("resources must be inside each other at most {DEPTH_MAX} times")]
    TooDeep,
    #[error("must have one namespace at most")]
    Namespaces,
    #[error("{resource}: {part}: {detail}")]
    Part { resource: String, part: String, detail: String },
    #[error("a resource must be an object, got {0}")]
    Resource(&'static str),
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resource, part, detail } = self;
        match part.is_empty() {
            true => write!(f, "{resource}: {detail}"),
            false => write!(f, "{resource}: {part}: {detail}"),
        }
    }
}

/// Reads the resources of a text.
///
/// # Errors
///
/// The text is not JSON, or the first part that is wrong.
pub fn read(text: &str) -> Result<Imported, EventGridError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(EventGridError::TooLarge);
    }
    let value: Value =
        serde_json::from_str(text).map_err(|error| EventGridError::Json(error.to_string()))?;
    let mut resources = Vec::new();
    collect(&value, &mut resources, 0)?;
    let mut notes = Vec::new();
    let mut routing = Routing::default();
    let mut namespaces = resources.iter().filter(|resource| resource.kind == Kind::Namespace);
    if let Some(namespace) = namespaces.next() {
        routing = routing_of(namespace, &mut notes)?;
    }
    if namespaces.next().is_some() {
        return Err(EventGridError::Namespaces);
    }
    let mut rules: Vec<Rule> = Vec::new();
    for resource in &resources {
        match resource.kind {
            Kind::Namespace => {}
            Kind::Subscription if rules.len() >= RULES_MAX => return Err(EventGridError::TooMany),
            Kind::Subscription => {
                if let Some(rule) = subscription::rule(resource, &routing, &mut notes)? {
                    if rules.iter().any(|other| other.name() == rule.name()) {
                        return Err(resource.error("name", "names must be unique".into()));
                    }
                    rules.push(rule);
                }
            }
            Kind::Registry => notes.push(resource.note("", REGISTRY)),
            Kind::Other => notes.push(resource.note("", NO_COUNTERPART)),
        }
    }
    if rules.is_empty() {
        notes.push(Note {
            resource: "file".into(),
            part: String::new(),
            detail: "no event subscription became a rule".into(),
        });
    }
    Ok(Imported { rules, notes })
}

/// The routing settings of a namespace.
#[derive(Debug, Default)]
struct Routing {
    is_known: bool,
    /// The resource ID of the routing topic.
    topic: Option<String>,
    enrichments: Enrichments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Namespace,
    Subscription,
    /// Clients, groups, topic spaces, bindings, certificates.
    Registry,
    Other,
}

/// A resource of the text.
#[derive(Debug)]
struct Resource<'v> {
    kind: Kind,
    /// Kind and name, for messages.
    shown: String,
    name: String,
    id: Option<&'v str>,
    /// Its description: below `properties`, or in addition to the name, as the CLI prints it.
    own: &'v Map<String, Value>,
}

impl Resource<'_> {
    fn note(&self, part: &str, detail: impl Into<String>) -> Note {
        Note { resource: self.shown.clone(), part: part.into(), detail: detail.into() }
    }

    fn error(&self, part: &str, detail: String) -> EventGridError {
        EventGridError::Part { resource: self.shown.clone(), part: part.into(), detail }
    }

    /// Notes members that are set and not read.
    fn note_others(
        &self,
        members: &Map<String, Value>,
        path: &str,
        read: &[&str],
        notes: &mut Vec<Note>,
    ) {
        for (name, value) in members {
            if !read.contains(&name.as_str()) && !COMMON.contains(&name.as_str()) && is_set(value) {
                notes.push(self.note(&join(path, name), NO_COUNTERPART));
            }
        }
    }

    /// Refuses members that are not known: they might change which messages match.
    fn refuse_others(
        &self,
        members: &Map<String, Value>,
        path: &str,
        read: &[&str],
    ) -> Result<(), EventGridError> {
        let unknown = members.keys().find(|name| !read.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| {
            let detail = format!("unknown member: must be one of {}", read.join(", "));
            Err(self.error(&join(path, name), detail))
        })
    }

    fn object<'m>(
        &self,
        members: &'m Map<String, Value>,
        path: &str,
        name: &str,
    ) -> Result<Option<&'m Map<String, Value>>, EventGridError> {
        match members.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(inner)) => Ok(Some(inner)),
            Some(other) => Err(self.wrong(path, name, "an object", other)),
        }
    }

    fn list<'m>(
        &self,
        members: &'m Map<String, Value>,
        path: &str,
        name: &str,
    ) -> Result<&'m [Value], EventGridError> {
        match members.get(name) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(items)) => Ok(items),
            Some(other) => Err(self.wrong(path, name, "a list", other)),
        }
    }

    /// A text that is not empty.
    fn text<'m>(
        &self,
        members: &'m Map<String, Value>,
        path: &str,
        name: &str,
    ) -> Result<Option<&'m str>, EventGridError> {
        match members.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok((!text.is_empty()).then_some(text)),
            Some(other) => Err(self.wrong(path, name, "a text", other)),
        }
    }

    fn wrong(&self, path: &str, name: &str, wanted: &str, got: &Value) -> EventGridError {
        self.error(&join(path, name), format!("must be {wanted}, got {}", kind_of_value(got)))
    }
}

/// Gathers the resources of a value.
fn collect<'v>(
    value: &'v Value,
    found: &mut Vec<Resource<'v>>,
    depth: usize,
) -> Result<(), EventGridError> {
    if depth > DEPTH_MAX {
        return Err(EventGridError::TooDeep);
    }
    let members = match value {
        Value::Array(items) => {
            return items.iter().try_for_each(|item| collect(item, found, depth + 1));
        }
        Value::Object(members) => members,
        other => return Err(EventGridError::Resource(kind_of_value(other))),
    };
    let lists = ["value", "resources"].map(|name| members.get(name).filter(|it| it.is_array()));
    if !members.contains_key("name") && lists.iter().any(Option::is_some) {
        return lists.into_iter().flatten().try_for_each(|list| collect(list, found, depth + 1));
    }
    let own = match members.get("properties") {
        Some(Value::Object(own)) => own,
        _ => members,
    };
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    // In templates a name has those of its parents.
    let name = text("name").unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let (kind, word) = kind_of(text("type"), own);
    let shown = format!("{word} '{name}'");
    found.push(Resource { kind, shown, name: name.into(), id: text("id"), own });
    match members.get("resources").or_else(|| own.get("resources")) {
        Some(inner @ Value::Array(_)) => collect(inner, found, depth + 1),
        _ => Ok(()),
    }
}

/// By its type, or by the members that only this kind has.
fn kind_of(kind: Option<&str>, own: &Map<String, Value>) -> (Kind, String) {
    let last = kind.and_then(|kind| kind.rsplit('/').next()).unwrap_or_default();
    let has = |name: &str| own.contains_key(name);
    let is = |word: &str| last.eq_ignore_ascii_case(word);
    if is("namespaces") || last.is_empty() && has("topicSpacesConfiguration") {
        return (Kind::Namespace, "namespace".into());
    }
    let looks_like_subscription = has("filtersConfiguration")
        || has("deliveryConfiguration")
        || has("filter") && has("destination");
    if is("eventSubscriptions") || last.is_empty() && looks_like_subscription {
        return (Kind::Subscription, "event subscription".into());
    }
    match REGISTRY_KINDS.iter().find(|word| is(word)) {
        Some(word) => (Kind::Registry, (*word).into()),
        None if last.is_empty() => (Kind::Other, "resource".into()),
        None => (Kind::Other, last.into()),
    }
}

fn routing_of(namespace: &Resource<'_>, notes: &mut Vec<Note>) -> Result<Routing, EventGridError> {
    const AT: &str = "topicSpacesConfiguration";
    namespace.note_others(namespace.own, "", &[AT, "resources"], notes);
    let mut routing = Routing { is_known: true, ..Routing::default() };
    let Some(settings) = namespace.object(namespace.own, "", AT)? else {
        notes.push(namespace.note(AT, "missing: no message is routed"));
        return Ok(routing);
    };
    let read = ["state", "routeTopicResourceId", "routingEnrichments"];
    namespace.note_others(settings, AT, &read, notes);
    if settings.get("state").and_then(Value::as_str).is_some_and(|state| state != "Enabled") {
        notes.push(namespace.note(&join(AT, "state"), "it is not Enabled there; rules apply here"));
    }
    routing.topic = namespace.text(settings, AT, "routeTopicResourceId")?.map(str::to_owned);
    let detail = match &routing.topic {
        Some(topic) => format!("'{topic}' is used to find its event subscriptions"),
        None => "missing: no message is routed".into(),
    };
    notes.push(namespace.note(&join(AT, "routeTopicResourceId"), detail));
    if let Some(enrichments) = namespace.object(settings, AT, "routingEnrichments")? {
        let at = join(AT, "routingEnrichments");
        namespace.refuse_others(enrichments, &at, &["static", "dynamic"])?;
        routing.enrichments = enrichments_of(namespace, enrichments, &at)?;
    }
    Ok(routing)
}

fn enrichments_of(
    namespace: &Resource<'_>,
    members: &Map<String, Value>,
    path: &str,
) -> Result<Enrichments, EventGridError> {
    let mut all = Vec::new();
    for (list, is_static) in [("static", true), ("dynamic", false)] {
        let at = join(path, list);
        for item in namespace.list(members, path, list)? {
            let Value::Object(entry) = item else {
                return Err(namespace.wrong(path, list, "a list of objects", item));
            };
            let read: &[&str] =
                if is_static { &["key", "value", "valueType"] } else { &["key", "value"] };
            namespace.refuse_others(entry, &at, read)?;
            if !matches!(namespace.text(entry, &at, "valueType")?, None | Some("String")) {
                return Err(namespace.error(&join(&at, "valueType"), "must be String".into()));
            }
            let key = namespace.text(entry, &at, "key")?.unwrap_or_default();
            let value = namespace.text(entry, &at, "value")?.unwrap_or_default();
            let enrichment = match is_static {
                true => Enrichment::fixed(key, value),
                false => Enrichment::dynamic(key, value),
            };
            all.push(enrichment.map_err(|error| namespace.error(&at, error.to_string()))?);
        }
    }
    Enrichments::new(all).map_err(|error| namespace.error(path, error.to_string()))
}

fn join(path: &str, name: &str) -> String {
    match path.is_empty() {
        true => name.into(),
        false => format!("{path}.{name}"),
    }
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    }
}

fn kind_of_value(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

const NO_COUNTERPART: &str = "has no counterpart in rules";
const REGISTRY: &str = "is not about routing: `quelea import --from event-grid` reads it";

const REGISTRY_KINDS: [&str; 5] =
    ["clients", "clientGroups", "topicSpaces", "permissionBindings", "caCertificates"];

/// Members of any resource that only describe it.
const COMMON: [&str; 12] = [
    "id",
    "name",
    "type",
    "apiVersion",
    "provisioningState",
    "resourceGroup",
    "systemData",
    "dependsOn",
    "location",
    "tags",
    "etag",
    "resources",
];

#[cfg(test)]
mod tests;
