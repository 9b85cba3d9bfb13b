//! An event subscription as a rule.

use serde_json::{Map, Value};

use super::delivery::{self, Delivery};
use super::{EventGridError, Note, Resource, Routing, join};
use crate::condition::{Condition, Given, Part, RawCondition};
use crate::event::PayloadReading;
use crate::rule::{Draft, Rule};

/// Event types of one subscription.
const TYPES_MAX: usize = 100;

/// Every topic but those of the broker.
const EVERY_TOPIC: &str = "#";

const FILTER_MEMBERS: [&str; 4] = ["operatorType", "key", "value", "values"];

/// The rule of a subscription. None: it is not of the routing topic.
pub(super) fn rule(
    resource: &Resource<'_>,
    routing: &Routing,
    notes: &mut Vec<Note>,
) -> Result<Option<Rule>, EventGridError> {
    if !is_of_routing(resource, routing, notes) {
        return Ok(None);
    }
    let own = resource.own;
    let read = [
        "filtersConfiguration",
        "filter",
        "deliveryConfiguration",
        "destination",
        "deliveryWithResourceIdentity",
        "eventDeliverySchema",
        "topic",
    ];
    resource.note_others(own, "", &read, notes);
    let schema = resource.text(own, "", "eventDeliverySchema")?.unwrap_or(SCHEMA);
    if !schema.eq_ignore_ascii_case(SCHEMA) {
        let detail = format!("'{schema}' has no counterpart: events are CloudEvents");
        notes.push(resource.note("eventDeliverySchema", detail));
    }
    let filters = filters_of(resource, routing, notes)?;
    let Delivery { target, form, properties } =
        delivery::of(resource, &routing.enrichments, notes)?;
    let draft = Draft {
        name: resource.name.clone(),
        is_enabled: true,
        filter: EVERY_TOPIC.into(),
        conditions: filters.conditions,
        enrichments: routing.enrichments.clone(),
        form,
        payload: PayloadReading::Declared,
        properties,
        target,
    };
    let rule = Rule::new(draft).map_err(|error| resource.error(error.key, error.detail))?;
    Ok(Some(rule.of_types(&filters.types)))
}

const SCHEMA: &str = "CloudEventSchemaV1_0";

fn is_of_routing(resource: &Resource<'_>, routing: &Routing, notes: &mut Vec<Note>) -> bool {
    if !routing.is_known {
        notes.push(resource.note("", "the namespace is missing in this file: no enrichments"));
        return true;
    }
    let Some(topic) = &routing.topic else {
        notes.push(resource.note("", "does not become a rule: the namespace has no routing topic"));
        return false;
    };
    let topic = topic.to_lowercase();
    let id = resource.id.map(str::to_lowercase);
    let own_topic = resource.own.get("topic").and_then(Value::as_str).map(str::to_lowercase);
    let begins = |id: &String| id.strip_prefix(&*topic).is_some_and(|rest| rest.starts_with('/'));
    match (id, own_topic) {
        (None, None) => {
            notes.push(resource.note("", "has no id: its topic is taken as the routing topic"));
            true
        }
        (id, own_topic)
            if own_topic.as_ref() == Some(&topic) || id.as_ref().is_some_and(begins) =>
        {
            true
        }
        _ => {
            notes.push(
                resource.note("", "does not become a rule: its topic is not the routing topic"),
            );
            false
        }
    }
}

#[derive(Default)]
struct Filters<'v> {
    types: Vec<&'v str>,
    conditions: Vec<Condition>,
}

fn filters_of<'v>(
    resource: &Resource<'v>,
    routing: &Routing,
    notes: &mut Vec<Note>,
) -> Result<Filters<'v>, EventGridError> {
    let mut filters = Filters::default();
    if let Some(members) = resource.object(resource.own, "", "filtersConfiguration")? {
        const AT: &str = "filtersConfiguration";
        resource.refuse_others(members, AT, &["includedEventTypes", "filters"])?;
        filters.types = types_of(resource, members, AT)?;
        add_filters(resource, routing, members, AT, "filters", &mut filters.conditions)?;
    }
    if let Some(members) = resource.object(resource.own, "", "filter")? {
        const AT: &str = "filter";
        resource.refuse_others(members, AT, &BASIC_MEMBERS)?;
        filters.types.extend(types_of(resource, members, AT)?);
        add_filters(resource, routing, members, AT, "advancedFilters", &mut filters.conditions)?;
        add_subject(resource, routing, members, &mut filters.conditions)?;
        let is_on = |name: &str| members.get(name).and_then(Value::as_bool) == Some(true);
        if is_on("isSubjectCaseSensitive") {
            let detail = "has no counterpart: texts are compared without regard to case";
            notes.push(resource.note("filter.isSubjectCaseSensitive", detail));
        }
        if !filters.conditions.is_empty() && !is_on("enableAdvancedFilteringOnArrays") {
            let detail = "is not set there; here conditions look into arrays in any case";
            notes.push(resource.note("filter.enableAdvancedFilteringOnArrays", detail));
        }
    }
    Ok(filters)
}

/// Filters of the basic tier.
const BASIC_MEMBERS: [&str; 6] = [
    "includedEventTypes",
    "advancedFilters",
    "subjectBeginsWith",
    "subjectEndsWith",
    "isSubjectCaseSensitive",
    "enableAdvancedFilteringOnArrays",
];

fn types_of<'v>(
    resource: &Resource<'v>,
    members: &'v Map<String, Value>,
    path: &str,
) -> Result<Vec<&'v str>, EventGridError> {
    const NAME: &str = "includedEventTypes";
    let items = resource.list(members, path, NAME)?;
    if items.len() > TYPES_MAX {
        let detail = format!("must have at most {TYPES_MAX} types, got {}", items.len());
        return Err(resource.error(&join(path, NAME), detail));
    }
    let text = |item: &'v Value| {
        item.as_str().ok_or_else(|| resource.wrong(path, NAME, "a list of texts", item))
    };
    items.iter().map(text).collect()
}

fn add_filters(
    resource: &Resource<'_>,
    routing: &Routing,
    members: &Map<String, Value>,
    path: &str,
    name: &str,
    conditions: &mut Vec<Condition>,
) -> Result<(), EventGridError> {
    for (index, item) in resource.list(members, path, name)?.iter().enumerate() {
        let at = join(path, &format!("{name}.{index}"));
        let Value::Object(filter) = item else {
            return Err(resource.wrong(path, name, "a list of objects", item));
        };
        resource.refuse_others(filter, &at, &FILTER_MEMBERS)?;
        let given = |name: &str| filter.get(name).filter(|it| !it.is_null()).map(Given::from);
        let raw = RawCondition {
            key: resource.text(filter, &at, "key")?.unwrap_or_default().into(),
            operator: resource.text(filter, &at, "operatorType")?.unwrap_or_default().into(),
            value: given("value"),
            values: given("values"),
        };
        conditions.push(condition(resource, routing, &raw, &at)?);
    }
    Ok(())
}

fn add_subject(
    resource: &Resource<'_>,
    routing: &Routing,
    members: &Map<String, Value>,
    conditions: &mut Vec<Condition>,
) -> Result<(), EventGridError> {
    let operators =
        [("subjectBeginsWith", "StringBeginsWith"), ("subjectEndsWith", "StringEndsWith")];
    for (name, operator) in operators {
        let Some(text) = resource.text(members, "filter", name)? else { continue };
        let raw = RawCondition {
            key: "subject".into(),
            operator: operator.into(),
            value: None,
            values: Some(Given::List(vec![Given::Text(text.into())])),
        };
        conditions.push(condition(resource, routing, &raw, &join("filter", name))?);
    }
    Ok(())
}

fn condition(
    resource: &Resource<'_>,
    routing: &Routing,
    raw: &RawCondition,
    path: &str,
) -> Result<Condition, EventGridError> {
    Condition::new(raw, &routing.enrichments).map_err(|error| {
        let part = match error.part {
            Part::Key => "key",
            Part::Operator => "operatorType",
            Part::Value => "value",
            Part::Values => "values",
        };
        resource.error(&join(path, part), error.detail)
    })
}
