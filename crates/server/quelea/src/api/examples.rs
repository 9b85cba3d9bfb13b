//! What the OpenAPI document says beside schemas: tags of routes, values that a text may have, and
//! examples, which are made from the names of fields.

use serde_json::{Map, Value, json};

use super::schema::Known;

/// The first part of a path, the tag of its routes, and what they are about.
pub(super) const TAGS: &[(&str, &str, &str)] = &[
    ("openapi.json", "api", "The API itself."),
    ("caller", "api", "The API itself."),
    ("alarms", "broker", "State, configuration and logs of the broker."),
    ("broker", "broker", "State, configuration and logs of the broker."),
    ("history", "broker", "State, configuration and logs of the broker."),
    ("sessions", "api", "The API itself."),
    ("totals", "broker", "State, configuration and logs of the broker."),
    ("logs", "broker", "State, configuration and logs of the broker."),
    ("settings", "broker", "State, configuration and logs of the broker."),
    ("reload", "broker", "State, configuration and logs of the broker."),
    ("log-level", "broker", "State, configuration and logs of the broker."),
    ("audit", "broker", "State, configuration and logs of the broker."),
    ("limits", "broker", "State, configuration and logs of the broker."),
    ("memory", "broker", "State, configuration and logs of the broker."),
    ("drops", "broker", "State, configuration and logs of the broker."),
    ("backup", "broker", "State, configuration and logs of the broker."),
    ("log-lines", "broker", "State, configuration and logs of the broker."),
    ("cluster", "cluster", "The cluster of this node."),
    ("listeners", "listeners", "Listeners, and their certificates."),
    ("client", "clients", "Clients: their sessions and connections."),
    ("clients", "clients", "Clients: their sessions and connections."),
    ("disconnect", "clients", "Clients: their sessions and connections."),
    ("bridges", "bridges", "Bridges to other brokers."),
    ("access", "permissions", "Decisions of access rules."),
    ("authorization", "permissions", "Decisions of access rules."),
    ("permissions", "permissions", "Decisions of access rules."),
    ("user", "users", "Users of the password file."),
    ("users", "users", "Users of the password file."),
    ("registry", "registry", "Registered clients, as in Event Grid."),
    ("events", "events", "Events and packets as server-sent events."),
    ("trace", "events", "Events and packets as server-sent events."),
    ("stream", "routing", "Streams of messages, and rules that send them to targets."),
    ("streams", "routing", "Streams of messages, and rules that send them to targets."),
    ("rule", "routing", "Streams of messages, and rules that send them to targets."),
    ("rules", "routing", "Streams of messages, and rules that send them to targets."),
    ("target", "routing", "Streams of messages, and rules that send them to targets."),
    ("definitions", "routing", "Streams of messages, and rules that send them to targets."),
    ("namespace", "namespaces", "Isolated tenants on one broker."),
    ("namespaces", "namespaces", "Isolated tenants on one broker."),
    ("bans", "bans", "Clients, users and addresses that are refused."),
    ("subscriptions", "topics", "Subscriptions, topics and shared groups."),
    ("topics", "topics", "Subscriptions, topics and shared groups."),
    ("groups", "topics", "Subscriptions, topics and shared groups."),
    ("retained", "messages", "Retained messages, and publishing."),
    ("publish", "messages", "Retained messages, and publishing."),
];

/// Routes without a row above.
const OTHER: &str = "other";

/// Values of a field, by its record and its name.
const ENUMS: &[(&str, &str, &[&str])] = &[
    ("Alarm", "kind", super::alarms::KINDS),
    ("Alarm", "severity", super::alarms::SEVERITIES),
    ("Ban", "kind", &["client", "user", "address"]),
    ("NewBan", "kind", &["client", "user", "address"]),
    ("Broker", "state", &["starting", "ready", "not_ready", "standby", "stopping", "failed"]),
    ("Caller", "role", &["viewer", "operator", "admin", "tenant"]),
    ("Log", "state", &["opening", "ready", "closed", "full", "poisoned"]),
    ("LogLine", "level", LEVELS),
    ("LogLevelState", "level", LEVELS),
    ("LogLevelState", "configured", LEVELS),
    ("NewLogLevel", "level", LEVELS),
    ("Namespace", "state", &["open", "suspended", "deleted"]),
    ("Namespace", "maker", &["broker", "configuration", "client", "operator"]),
    ("Rule", "state", &streams::State::NAMES),
    ("Rule", "target_kind", &["http", "kafka"]),
    ("Stream", "durability", &["disk", "fsync"]),
    ("Stream", "when_full", &["drop_oldest", "reject"]),
    ("Setting", "source", &["default", "derived", "file", "environment", "flag", "running"]),
    ("Setting", "unit", &["count", "bytes", "seconds"]),
    ("Permission", "action", ACTIONS),
    ("PermissionQuestion", "action", ACTIONS),
    ("RegisteredClient", "state", &["Enabled", "Disabled"]),
    (
        "CertificateMatch",
        "validationScheme",
        &[
            "ThumbprintMatch",
            "SubjectMatchesAuthenticationName",
            "DnsMatchesAuthenticationName",
            "EmailMatchesAuthenticationName",
            "IpMatchesAuthenticationName",
            "UriMatchesAuthenticationName",
        ],
    ),
];

const THUMBPRINT: &str = "3b6f1c0e0a4d5b7c8e9fa0b1c2d3e4f50617283940516273849506172839405a";
const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];
const ACTIONS: &[&str] = &["publish", "subscribe", "receive"];

/// Examples of fields and parameters, by their names.
const EXAMPLES: &[(&str, &str)] = &[
    ("action", "publish"),
    ("active", "node-1"),
    ("address", "192.0.2.7:51234"),
    ("allowedThumbprints", THUMBPRINT),
    ("authenticationName", "pump-1"),
    ("advertise", "mqtt://192.0.2.1:1883"),
    ("client_id", "dev-7"),
    ("cursor", "0.100"),
    ("content_type", "text/plain"),
    ("decided_by", "access_file"),
    ("dead_letter", "undelivered"),
    ("detail", "a reason"),
    ("effect", "allow"),
    ("file", "/etc/quelea/acl"),
    ("filter", "home/#"),
    ("key", "limits.connections_max"),
    ("value", "5000"),
    ("origin", "set while running"),
    ("level", "info"),
    ("listener", "devices"),
    ("member", "dev-7"),
    ("namespace", "default"),
    ("node", "node-1"),
    ("payload", "on"),
    ("payload_base64", "b24="),
    ("correlation_data_base64", "AAE="),
    ("password", "a long password"),
    ("position", "0.17-1.3"),
    ("prefix", "home"),
    ("protocol", "5"),
    ("reason", "success"),
    ("response_topic", "home/answers"),
    ("role", "operator"),
    ("rule", "home/#"),
    ("share", "workers"),
    ("state", "ready"),
    ("stream", "plants"),
    ("target", "alarms"),
    ("to", "beginning"),
    ("topic", "home/lamp"),
    ("type", "quelea.session."),
    ("until", "2030-12-31T23:59:59Z"),
    ("url", "tls://0.0.0.0:8883"),
    ("username", "anna"),
    ("version", "0.1.0"),
    ("who", "dev-7"),
];

pub(super) fn tag_of(path: &str) -> &'static str {
    let first = path.split('/').nth(1).unwrap_or_default();
    TAGS.iter().find(|(part, ..)| *part == first).map_or(OTHER, |(_, tag, _)| tag)
}

/// Each tag once.
pub(super) fn tags() -> Value {
    let mut tags: Vec<Value> = Vec::new();
    for (_, name, about) in TAGS {
        if tags.iter().all(|tag| tag["name"] != *name) {
            tags.push(json!({ "name": name, "description": about }));
        }
    }
    tags.into()
}

pub(super) fn put_enums(known: &mut Known) {
    for (record, field, values) in ENUMS {
        if let Some(schema) = known.get_mut(*record) {
            schema["properties"][field]["enum"] = json!(values);
        }
    }
}

/// Gives each parameter, body and answer an example.
pub(super) fn put_examples(paths: &mut Map<String, Value>, known: &Known) {
    let operations = paths.values_mut().filter_map(Value::as_object_mut);
    for operation in operations.flat_map(|path| path.values_mut()) {
        let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
        for parameter in parameters.into_iter().flatten() {
            let name = parameter["name"].as_str().unwrap_or_default().to_owned();
            parameter["example"] = example(&name, &parameter["schema"], known);
        }
        for place in ["/responses/200/content", "/requestBody/content"] {
            let content = operation.pointer_mut(place).and_then(|it| it.get_mut(JSON));
            if let Some(content) = content {
                content["example"] = example("", &content["schema"], known);
            }
        }
    }
}

const JSON: &str = "application/json";

/// An example for a field of this name.
fn example(name: &str, schema: &Value, known: &Known) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let record = reference.rsplit('/').next().unwrap_or_default();
        return known.get(record).map_or(Value::Null, |schema| example(name, schema, known));
    }
    if let Some(first) = schema["anyOf"].get(0) {
        return example(name, first, known);
    }
    if let Some(own) = schema.get("example") {
        return own.clone();
    }
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("object") => {
            let fields = schema["properties"].as_object().into_iter().flatten();
            fields.map(|(name, schema)| (name.clone(), example(name, schema, known))).collect()
        }
        Some("array") => json!([example(name, &schema["items"], known)]),
        Some("string") => {
            let known = EXAMPLES.iter().find(|(own, _)| *own == name);
            known.map_or("text", |(_, text)| text).into()
        }
        Some("integer") => schema["minimum"].as_u64().unwrap_or_default().max(1).into(),
        Some("number") => 0.5.into(),
        Some("boolean") => true.into(),
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_enum_is_of_a_field_that_is_there() {
        let document = super::super::openapi::document();
        for (record, field, values) in ENUMS {
            let schema = &document["components"]["schemas"][record]["properties"][field];
            assert_eq!(schema["enum"], json!(values), "{record}.{field}");
            assert!(schema["description"].is_string(), "{record}.{field}");
        }
        assert_ne!(tag_of("/client"), OTHER);
        assert_eq!(tag_of("/elsewhere"), OTHER);
    }
}
