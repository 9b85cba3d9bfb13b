//! The OpenAPI document, made from the table of routes and the types that go over the wire.

use serde_json::{Map, Value, json};

use super::examples;
use super::params::{Param, ParamKind};
use super::problem::ProblemDetails;
use super::route::{Method, Route};
use super::routes::routes;
use super::schema::{Described, Known};
use super::{scopes, spread};
use config::API_PREFIX;

/// All of it.
pub fn document() -> Value {
    let mut known = Known::new();
    ProblemDetails::schema(&mut known);
    let mut paths = Map::new();
    for route in routes() {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method.as_str().to_lowercase()] = operation(route, &mut known);
    }
    put_missing_cells(&mut paths, &mut known);
    examples::put_enums(&mut known);
    examples::put_examples(&mut paths, &known);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "quelea",
            "version": "1",
            "description": "The management API of quelea. Lists come in pages: repeat the request with the cursor until there is none. docs/use/api.md has examples.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": API_PREFIX }],
        "security": [{ "token": [] }, { "password": [] }],
        "tags": examples::tags(),
        "paths": paths,
        "components": {
            "schemas": known,
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer" },
                "password": { "type": "http", "scheme": "basic" },
            },
        },
    })
}

/// Answers that may be those of some of the cells say so.
fn put_missing_cells(paths: &mut Map<String, Value>, known: &mut Known) {
    let field = json!({
        "type": "array",
        "items": { "type": "integer", "minimum": 0, "maximum": u16::MAX },
        "description": "Cells that did not answer: the answer lacks what they have. Only in a \
            cluster with several cells, and only if there are some.",
    });
    for route in routes().filter(|route| spread::may_be_partial(route)) {
        let method = route.method.as_str().to_lowercase();
        let answer = &mut paths[route.path][&method]["responses"]["200"]["content"];
        let schema = &mut answer["application/json"]["schema"];
        let name = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next());
        let record = match name.map(str::to_owned) {
            Some(name) => &mut known[&name],
            None => schema,
        };
        record["properties"][spread::MISSING] = field.clone();
    }
}

fn operation(route: &Route, known: &mut Known) -> Value {
    let mut responses = Map::new();
    let success = match (&route.stream, route.answer) {
        (Some(stream), _) => json!({
            "description": "The stream.",
            "content": { (stream.media_type): { "schema": { "type": "string" } } },
        }),
        (None, Some(schema)) => json!({
            "description": "Done.",
            "content": { "application/json": { "schema": schema(known) } },
        }),
        (None, None) => json!({ "description": "Done." }),
    };
    responses.insert(route.status().as_str().into(), success);
    let too_long = "Path and query are too long. The answer has no body.";
    responses.insert("431".into(), json!({ "description": too_long }));
    for (status, description) in problems(route) {
        let schema = json!({ "$ref": "#/components/schemas/ProblemDetails" });
        let content = json!({ "application/problem+json": { "schema": schema } });
        let problem = json!({ "description": description, "content": content });
        responses.insert(status.to_string(), problem);
    }
    let mut operation = json!({
        "operationId": operation_id(route),
        "tags": [examples::tag_of(route.path)],
        "summary": route.about,
        "description": needs(route),
        "x-role": route.role.as_str(),
        "responses": responses,
    });
    if !route.params.is_empty() {
        operation["parameters"] = route.params.iter().map(parameter).collect();
    }
    if let Some(schema) = route.body {
        let content = json!({ "application/json": { "schema": schema(known) } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

fn needs(route: &Route) -> String {
    let role = route.role.as_str();
    match route.takes_tenants {
        true => format!("Needs the role {role}, or an API user of a namespace."),
        false => format!("Needs the role {role}."),
    }
}

/// `PUT /settings/{key}` is `put_settings_key`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join("_");
    format!("{}_{words}", route.method.as_str().to_lowercase())
}

fn problems(route: &Route) -> Vec<(u16, &'static str)> {
    let mut problems = vec![
        (400, "A parameter or the body is invalid; `place` names it."),
        (401, "No token or password, or a wrong one."),
        (403, "The role or the namespace of the caller does not allow it."),
        (429, "Too many wrong passwords, or too many changes by users of a namespace."),
        (503, serves_not(route)),
        (504, "A part of the broker has not answered in time."),
    ];
    let takes_namespace = route.params.iter().any(|param| param.name == scopes::PARAM);
    if takes_namespace || route.params.iter().any(|param| param.is_required) {
        problems.push((404, "Not found."));
    }
    if route.path == "/cluster" {
        problems.push((404, "The broker is not part of a cluster."));
    }
    if route.path == "/bans" && route.method == Method::Delete {
        problems.push((409, "The ban is in `auth.ban_file`, which the API does not change."));
    }
    if route.path.starts_with("/registry/") {
        problems.push((409, "No registry is configured, or its file cannot be used."));
    }
    if takes_namespace && route.answer.is_some() && route.method != Method::Get {
        problems.push((409, "The namespace is being deleted."));
    }
    let changes_file = route.path.starts_with("/registry/") && route.method != Method::Get;
    let may_fill = route.body.is_some() || changes_file || route.path.ends_with("/disconnect");
    if may_fill {
        problems.push((507, "No memory, disk space or quota is left."));
    }
    if route.body.is_some() {
        problems.push((408, "The body did not arrive in time."));
        problems.push((413, "The body is too large."));
        problems.push((415, "The body is not application/json."));
    }
    problems
}

const fn serves_not(route: &Route) -> &'static str {
    if route.without_shards {
        "The broker is starting or stopping."
    } else {
        "The broker is starting or stopping, or this node of a cluster is not active. `detail` names the active node."
    }
}

fn parameter(param: &Param) -> Value {
    let schema = match param.kind {
        ParamKind::Text { bytes_min, bytes_max } => {
            json!({ "type": "string", "minLength": bytes_min, "maxLength": bytes_max })
        }
        ParamKind::Number { min, max } => {
            json!({ "type": "integer", "minimum": min, "maximum": max })
        }
        ParamKind::Flag => json!({ "type": "boolean" }),
    };
    json!({
        "name": param.name,
        "in": param.location.as_str(),
        "required": param.is_required,
        "description": param.about,
        "schema": schema,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_route_is_there_once_and_refers_to_what_is_there() {
        let document = document();
        let mut ids = HashSet::new();
        for route in routes() {
            let method = route.method.as_str().to_lowercase();
            let operation = &document["paths"][route.path][&method];
            assert!(ids.insert(operation["operationId"].clone()), "{}", route.path);
            assert!(!route.about.is_empty(), "{}", route.path);
            let tag = operation["tags"][0].as_str().unwrap();
            assert!(examples::TAGS.iter().any(|(_, name, _)| *name == tag), "{}", route.path);
            assert!(!operation.get("parameters").is_some_and(Value::is_null), "{}", route.path);
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(!parameter["example"].is_null(), "{}: {parameter}", route.path);
            }
            let answer = &operation["responses"]["200"]["content"]["application/json"];
            for content in [answer, &operation["requestBody"]["content"]["application/json"]] {
                assert!(content.is_null() || !content["example"].is_null(), "{}", route.path);
            }
            let patterns = [route.path, route.segment_path.unwrap_or_default()];
            let parts = patterns.iter().flat_map(|pattern| pattern.split('/'));
            for part in parts.filter_map(|part| part.strip_prefix('{')) {
                let name = part.trim_end_matches('}');
                assert!(route.params.iter().any(|param| param.name == name && param.is_required));
            }
        }
        let text = document.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
    }
}
