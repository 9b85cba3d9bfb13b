//! The delivery of an event subscription as a target.

use serde_json::{Map, Value};

use super::mappings::{self, Mapped};
use super::{EventGridError, NO_COUNTERPART, Note, Resource, join};
use crate::enrich::{Enrichments, Template};
use crate::form::{Binding, Form};
use crate::property::Property;
use crate::rule::{Destination, Target};

/// Where the events of a subscription go.
#[derive(Default)]
pub(super) struct Delivery {
    pub(super) target: Option<Target>,
    pub(super) form: Form,
    pub(super) properties: Vec<Property>,
}

const MAPPINGS: &str = mappings::NAME;

/// The key of records of an event hub: Event Grid has none by default, which keeps no order.
const KEY: &str = "${mqtt.message.topicName}";

pub(super) fn of(
    resource: &Resource<'_>,
    enrichments: &Enrichments,
    notes: &mut Vec<Note>,
) -> Result<Delivery, EventGridError> {
    let own = resource.own;
    if let Some(delivery) = resource.object(own, "", "deliveryConfiguration")? {
        const AT: &str = "deliveryConfiguration";
        resource.note_others(delivery, AT, &["deliveryMode", "queue", "push"], notes);
        if let Some(queue) = resource.object(delivery, AT, "queue")? {
            let detail = "pull delivery has no counterpart: the rule has no target";
            notes.push(resource.note(&join(AT, "queue"), detail));
            resource.note_others(queue, &join(AT, "queue"), &[], notes);
        }
        let Some(push) = resource.object(delivery, AT, "push")? else {
            return Ok(Delivery::default());
        };
        let at = join(AT, "push");
        resource.note_others(push, &at, &DESTINATIONS, notes);
        return destination(resource, push, &at, enrichments, notes);
    }
    destination(resource, own, "", enrichments, notes)
}

const DESTINATIONS: [&str; 2] = ["destination", "deliveryWithResourceIdentity"];

fn destination(
    resource: &Resource<'_>,
    members: &Map<String, Value>,
    path: &str,
    enrichments: &Enrichments,
    notes: &mut Vec<Note>,
) -> Result<Delivery, EventGridError> {
    let mut at = join(path, "destination");
    let mut found = resource.object(members, path, "destination")?;
    if let Some(with) = resource.object(members, path, "deliveryWithResourceIdentity")? {
        let inside = join(path, "deliveryWithResourceIdentity");
        resource.note_others(with, &inside, &["destination"], notes);
        at = join(&inside, "destination");
        found = resource.object(with, &inside, "destination")?;
    }
    let Some(destination) = found else {
        notes.push(resource.note(&at, "missing: the rule has no target"));
        return Ok(Delivery::default());
    };
    // The CLI prints its properties in addition to its type.
    let own = resource.object(destination, &at, "properties")?.unwrap_or(destination);
    match resource.text(destination, &at, "endpointType")? {
        Some("WebHook") => {
            let mapped = mappings::of(resource, own, &at, Binding::Http, enrichments, notes)?;
            webhook(resource, own, &at, mapped, notes)
        }
        Some("EventHub") => {
            let mapped = mappings::of(resource, own, &at, Binding::Kafka, enrichments, notes)?;
            event_hub(resource, own, &at, mapped, notes)
        }
        other => {
            let kind = other.unwrap_or("a destination without endpointType");
            let detail = format!("{kind} {NO_COUNTERPART}: the rule has no target");
            notes.push(resource.note(&at, detail));
            Ok(Delivery::default())
        }
    }
}

fn webhook(
    resource: &Resource<'_>,
    own: &Map<String, Value>,
    path: &str,
    mapped: Mapped,
    notes: &mut Vec<Note>,
) -> Result<Delivery, EventGridError> {
    let read = ["endpointType", "endpointUrl", "endpointBaseUrl", "maxEventsPerBatch", MAPPINGS];
    resource.note_others(own, path, &read, notes);
    let whole = resource.text(own, path, "endpointUrl")?;
    let base = resource.text(own, path, "endpointBaseUrl")?;
    let Some(url) = whole.or(base) else {
        notes.push(resource.note(path, "has no URL: the rule has no target"));
        return Ok(Delivery::default());
    };
    if whole.is_none() {
        let detail = "is exported without its query: add it to the rule if there is one";
        notes.push(resource.note(&join(path, "endpointBaseUrl"), detail));
    }
    let is_batch = match own.get("maxEventsPerBatch") {
        None | Some(Value::Null) => false,
        Some(Value::Number(count)) => count.as_u64() != Some(1),
        Some(other) => return Err(resource.wrong(path, "maxEventsPerBatch", "a number", other)),
    };
    if is_batch {
        let detail = "the number has no counterpart: the form is batch";
        notes.push(resource.note(&join(path, "maxEventsPerBatch"), detail));
    }
    let destination = Destination::Http { url: url.into() };
    let target = Target { name: resource.name.clone(), destination };
    let form = if is_batch { Form::Batch } else { Form::Structured };
    if is_batch && mapped.properties.iter().any(Property::is_of_event) {
        let detail = "must be Static with maxEventsPerBatch above 1: a batch of several events \
                      has no header with the value of one";
        return Err(resource.error(&join(path, MAPPINGS), detail.into()));
    }
    Ok(Delivery { target: Some(target), form, properties: mapped.properties })
}

fn event_hub(
    resource: &Resource<'_>,
    own: &Map<String, Value>,
    path: &str,
    mapped: Mapped,
    notes: &mut Vec<Note>,
) -> Result<Delivery, EventGridError> {
    resource.note_others(own, path, &["endpointType", "resourceId", MAPPINGS], notes);
    let id = resource.text(own, path, "resourceId")?.unwrap_or_default();
    let Some(hub) = id.rsplit('/').next().filter(|hub| !hub.is_empty()) else {
        notes.push(resource.note(path, "has no resourceId: the rule has no target"));
        return Ok(Delivery::default());
    };
    let detail = match mapped.key {
        Some(_) => "the event hub becomes a Kafka topic whose key is PartitionKey",
        None => "the event hub becomes a Kafka topic whose key is the MQTT topic",
    };
    notes.push(resource.note(&join(path, "resourceId"), detail));
    let key = match mapped.key {
        Some(key) => key,
        None => Template::parse(KEY).map_err(|error| resource.error(path, error.to_string()))?,
    };
    let destination = Destination::Kafka { topic: hub.into(), key };
    let target = Target { name: resource.name.clone(), destination };
    Ok(Delivery { target: Some(target), form: Form::Structured, properties: mapped.properties })
}
