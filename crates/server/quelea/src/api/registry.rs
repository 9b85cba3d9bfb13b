//! Clients of a registry, whose file is changed whole, and reloaded before a call is answered.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use config::Method;
use identity::auth::ReplaceError;
use identity::auth::registry_changes::{
    RegistryError, clients, delete_client, put_client, set_enabled,
};
use identity::event_grid::{Client, folded};
use serde_json::Value;
use web::axum::http::StatusCode;

use super::call::Call;
use super::paging::bad_cursor;
use super::params::{CURSOR, LIMIT, NAMED_CLIENT, REGISTRY, flag, some_text};
use super::problem::Problem;
use super::route::{GET, Method as HttpMethod, Outcome, Role, Route};
use super::schema::{Described, Known, Rows, of_field, of_record};
use super::spread::Spread;
use super::{Api, json, operate};
use crate::run::REGISTRIES;

/// A client of a registry, as Event Grid describes it. A body may leave out all members.
pub(crate) struct RegisteredClient;

/// The certificate that it must show.
struct CertificateMatch;

impl Described for RegisteredClient {
    fn schema(known: &mut Known) -> Value {
        let mut certificate = CertificateMatch::schema(known);
        certificate["description"] = "The certificate that the client must show. Without it, the \
            entry is about the user of this name in the password file."
            .into();
        let text =
            "The name. Its case does not distinguish clients. Default: the name in the path.";
        let fields = [
            ("authenticationName", of_field(String::schema(known), text), true),
            ("state", of_field(String::schema(known), "Default: Enabled."), true),
            ("clientCertificateAuthentication", certificate, true),
            (
                "attributes",
                serde_json::json!({
                    "type": "object",
                    "description": "Texts, integers and lists of texts by name.",
                    "example": { "type": "pump", "floor": 3 },
                }),
                true,
            ),
        ];
        named(known, "RegisteredClient", "A client of a registry, as in Event Grid.", &fields)
    }
}

impl Described for CertificateMatch {
    fn schema(known: &mut Known) -> Value {
        let scheme = "How it is compared. Default: SubjectMatchesAuthenticationName.";
        let thumbprints = "1 or 2 SHA-256 thumbprints, for ThumbprintMatch.";
        let fields = [
            ("validationScheme", of_field(String::schema(known), scheme), true),
            ("allowedThumbprints", of_field(Vec::<String>::schema(known), thumbprints), true),
        ];
        named(known, "CertificateMatch", "The certificate that a client must show.", &fields)
    }
}

fn named(known: &mut Known, name: &str, about: &str, fields: &[(&str, Value, bool)]) -> Value {
    known.insert(name.to_owned(), of_record(about, fields));
    serde_json::json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// What can be asked of a registry.
pub(super) const ROUTES: &[Route] = &[
    Route {
        path: "/registry/clients",
        role: Role::Operator,
        about: "Lists the clients of a registry by name.",
        params: &[
            REGISTRY,
            some_text("name", "A part of the name, in any case."),
            flag("enabled", "true: enabled clients; false: disabled ones."),
            LIMIT,
            CURSOR,
        ],
        answer: Some(Rows::<RegisteredClient>::schema),
        run: |api, call| Box::pin(async move { list(&api, &call).await }),
        ..GET
    },
    Route {
        path: "/registry/client",
        segment_path: Some("/registry/clients/{name}"),
        role: Role::Operator,
        about: "Shows a client of a registry.",
        params: &[NAMED_CLIENT, REGISTRY],
        answer: Some(RegisteredClient::schema),
        run: |api, call| Box::pin(async move { show(&api, &call).await }),
        ..GET
    },
    Route {
        method: HttpMethod::Put,
        path: "/registry/client",
        segment_path: Some("/registry/clients/{name}"),
        role: Role::Admin,
        about: "Adds a client to a registry, or replaces its entry. The file is written, and the \
                change is in force before the answer. Connections that rely on a replaced \
                certificate or on replaced attributes are closed (0x87).",
        params: &[NAMED_CLIENT, REGISTRY],
        body: Some(RegisteredClient::schema),
        answer: Some(RegisteredClient::schema),
        run: |api, call| Box::pin(async move { put(&api, &call).await }),
        spread: Spread::Nodes,
        ..GET
    },
    Route {
        method: HttpMethod::Delete,
        path: "/registry/client",
        segment_path: Some("/registry/clients/{name}"),
        role: Role::Admin,
        about: "Deletes a client from a registry, and closes its connections (0x87). Its sessions \
                stay: delete them with DELETE /client.",
        params: &[NAMED_CLIENT, REGISTRY],
        run: |api, call| Box::pin(async move { delete(&api, &call).await }),
        spread: Spread::Nodes,
        ..GET
    },
    Route {
        method: HttpMethod::Post,
        path: "/registry/client/enable",
        segment_path: Some("/registry/clients/{name}/enable"),
        role: Role::Operator,
        about: "Enables a client of a registry.",
        params: &[NAMED_CLIENT, REGISTRY],
        run: |api, call| Box::pin(async move { enable(&api, &call, true).await }),
        spread: Spread::Nodes,
        ..GET
    },
    Route {
        method: HttpMethod::Post,
        path: "/registry/client/disable",
        segment_path: Some("/registry/clients/{name}/disable"),
        role: Role::Operator,
        about: "Disables a client of a registry: it is refused, and its connections are closed \
                (0x87).",
        params: &[NAMED_CLIENT, REGISTRY],
        run: |api, call| Box::pin(async move { enable(&api, &call, false).await }),
        spread: Spread::Nodes,
        ..GET
    },
];

async fn list(api: &Api, call: &Call) -> Outcome {
    let path = file(api, call)?;
    let after = call.text("cursor").map(read_cursor).transpose()?;
    let (part, enabled) = (call.text("name").map(folded), call.flag("enabled"));
    let limit = call.limit();
    let page = move || {
        let all = clients(&path)?;
        let name = |client: &Client| folded(&client.authentication_name);
        let mut rows: Vec<Client> = all
            .into_iter()
            .filter(|client| after.as_deref().is_none_or(|after| *name(client) > *after))
            .filter(|client| part.as_deref().is_none_or(|part| name(client).contains(part)))
            .filter(|client| enabled.is_none_or(|enabled| client.is_enabled == enabled))
            .take(limit + 1)
            .collect();
        let has_more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| has_more).map(name);
        Ok::<_, RegistryError>((rows, last))
    };
    let (rows, last) = tokio::task::spawn_blocking(page).await.map_err(|_| failed())??;
    let items: Vec<Value> = rows.iter().map(Client::to_json).collect();
    json(&Rows { items, cursor: last.map(|name| BASE64_URL_SAFE_NO_PAD.encode(name)) })
}

async fn show(api: &Api, call: &Call) -> Outcome {
    let (path, wanted) = (file(api, call)?, folded(call.needed("name")));
    let all = tokio::task::spawn_blocking(move || clients(&path)).await.map_err(|_| failed())??;
    let found = all.iter().find(|client| folded(&client.authentication_name) == wanted);
    let found = found.ok_or_else(|| RegistryError::Unknown(call.needed("name").to_owned()))?;
    json(&found.to_json())
}

async fn put(api: &Arc<Api>, call: &Call) -> Outcome {
    let stated: Value = call.body()?;
    let (path, name) = (file(api, call)?, call.needed("name").to_owned());
    let client = change(api, move || put_client(&path, &name, &stated)).await?;
    json(&client.to_json())
}

async fn delete(api: &Arc<Api>, call: &Call) -> Outcome {
    let (path, name) = (file(api, call)?, call.needed("name").to_owned());
    change(api, move || delete_client(&path, &name)).await.map(|()| None)
}

async fn enable(api: &Arc<Api>, call: &Call, enabled: bool) -> Outcome {
    let (path, name) = (file(api, call)?, call.needed("name").to_owned());
    change(api, move || set_enabled(&path, &name, enabled)).await.map(|()| None)
}

/// One change at a time, as of the password file.
async fn change<T: Send + 'static>(
    api: &Arc<Api>,
    change: impl FnOnce() -> Result<T, RegistryError> + Send + 'static,
) -> Result<T, Problem> {
    let _alone = api.files.lock().await;
    let changed = tokio::task::spawn_blocking(change).await.map_err(|_| failed())??;
    operate::reloaded_part(api, REGISTRIES).await?;
    Ok(changed)
}

/// The file of the registry that is meant.
fn file(api: &Api, call: &Call) -> Result<PathBuf, Problem> {
    let registries = api.facts.config.authentication.iter().filter_map(|provider| {
        let Method::Registry(own) = &provider.method else { return None };
        Some((provider.name.as_str(), &own.file))
    });
    let all: Vec<_> = registries.collect();
    let named = call.text(REGISTRY.name);
    let mut meant = all.iter().filter(|(name, _)| named.is_none_or(|named| named == *name));
    match (meant.next(), meant.next()) {
        (Some((_, file)), None) => Ok((*file).clone()),
        (None, _) if all.is_empty() => {
            let detail = "no registry is configured";
            let fix = "add an [[authentication]] with kind = \"registry\", and restart";
            Err(Problem::new(StatusCode::CONFLICT, detail).fix(fix))
        }
        _ => {
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            let detail = format!("must be one of {}", names.join(", "));
            Err(Problem::bad("query parameter registry", detail))
        }
    }
}

fn read_cursor(text: &str) -> Result<String, Problem> {
    let name = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
    name.and_then(|name| String::from_utf8(name).ok()).ok_or_else(|| bad_cursor(text))
}

fn failed() -> Problem {
    let detail = "internal error: a thread of the broker failed";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Self {
        let detail = error.to_string();
        match error {
            RegistryError::Client(_) => Self::bad("body", detail),
            RegistryError::Unknown(_) => Self::new(StatusCode::NOT_FOUND, detail),
            RegistryError::File { .. } => {
                let fix = "correct the file: `quelea serve --check-config` names its faults";
                Self::new(StatusCode::CONFLICT, detail).fix(fix)
            }
            RegistryError::Replace { source, .. } => not_replaced(&source, detail),
        }
    }
}

/// A file that could not be changed.
pub(super) fn not_replaced(source: &ReplaceError, detail: String) -> Problem {
    match source {
        ReplaceError::Changed => {
            Problem::new(StatusCode::CONFLICT, detail).fix("nothing was changed: repeat the call")
        }
        ReplaceError::Io(_) => {
            let fix = "nothing was changed: check the disk, and that the broker may write the \
                       file and its directory";
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).fix(fix)
        }
    }
}
