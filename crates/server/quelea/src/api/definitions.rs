//! Definitions of streams, targets and rules: what the file has, and what the API adds to it.

use routing::definitions::{Entry, Kind};
use serde_json::{Map, Value, json as object};
use web::axum::http::StatusCode;

use super::call::Call;
use super::params::{CURSOR, LIMIT, Param, flag, needed, some_text};
use super::problem::Problem;
use super::route::{GET, Method, Outcome, Role, Route};
use super::routing::{change_definitions, missing, open};
use super::schema::{Described, Known, Rows, record};
use super::tenants::Visible;
use super::{Api, json};
use crate::run::{Change, ChangeError, Defined};

record! {
    /// A stream, a target or a rule as it was defined.
    Definition {
        /// `stream`, `target` or `rule`.
        kind: String,
        /// Its name.
        name: String,
        /// `file`: the file of rules defines it; `api`: the management API does.
        source: String,
        /// The namespace whose users have defined it; null: an operator of the broker has.
        tenant: Option<String>,
        /// Its keys. Secrets, values of headers and queries of URLs are `{"set": true}`.
        definition: DefinitionKeys,
    }
}

/// The keys of a definition.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct DefinitionKeys(Map<String, Value>);

impl Described for DefinitionKeys {
    fn schema(known: &mut Known) -> Value {
        let schema = object!({
            "type": "object",
            "description": "The keys of a stream, a target or a rule, as in the file of rules.",
            "example": { "stream": "plants", "filter": "plants/#", "target": "alarms" },
        });
        known.insert("DefinitionKeys".to_owned(), schema);
        object!({ "$ref": "#/components/schemas/DefinitionKeys" })
    }
}

const STREAM: Param = needed("name", "The name of a stream.");
const TARGET: Param = needed("name", "The name of a target.");
const RULE: Param = needed("name", "The name of a rule.");
const FORCE: Param =
    flag("force", "true: delete its messages, and the rules that read it. Default: false.");
const KIND: Param = some_text("kind", "stream, target or rule. Default: all of them.");

const SHOW: Route = Route {
    takes_tenants: true,
    role: Role::Operator,
    about: "Shows a definition as it was written, without its secrets.",
    answer: Some(Definition::schema),
    ..GET
};
const PUT: Route = Route {
    takes_tenants: true,
    method: Method::Put,
    role: Role::Admin,
    about: "Defines it, or replaces its definition. The definitions of the file and of the API are \
            checked as a whole. The change is stored, and in force before the answer.",
    body: Some(DefinitionKeys::schema),
    answer: Some(Definition::schema),
    ..GET
};
const DELETE: Route = Route {
    takes_tenants: true,
    method: Method::Delete,
    role: Role::Admin,
    about: "Deletes a definition of the API. One that a rule uses stays.",
    ..GET
};

/// What can be asked of definitions.
pub(super) const ROUTES: &[Route] = &[
    Route {
        path: "/definitions",
        takes_tenants: true,
        role: Role::Operator,
        about: "Lists the definitions by kind and name.",
        params: &[KIND, LIMIT, CURSOR],
        answer: Some(Rows::<Definition>::schema),
        run: |api, call| Box::pin(async move { list(&api, &call) }),
        ..GET
    },
    Route {
        path: "/stream/definition",
        segment_path: Some("/streams/{name}/definition"),
        params: &[STREAM],
        run: |api, call| Box::pin(async move { show(&api, &call, Kind::Stream) }),
        ..SHOW
    },
    Route {
        path: "/stream/definition",
        segment_path: Some("/streams/{name}/definition"),
        params: &[STREAM],
        run: |api, call| Box::pin(async move { put(&api, &call, Kind::Stream).await }),
        ..PUT
    },
    Route {
        path: "/stream/definition",
        segment_path: Some("/streams/{name}/definition"),
        about: "Deletes a stream that the API has defined. One with messages, or with rules that \
                read it, is deleted with force only.",
        params: &[STREAM, FORCE],
        run: |api, call| Box::pin(async move { delete(&api, &call, Kind::Stream).await }),
        ..DELETE
    },
    Route {
        path: "/target/definition",
        segment_path: Some("/targets/{name}/definition"),
        params: &[TARGET],
        run: |api, call| Box::pin(async move { show(&api, &call, Kind::Target) }),
        ..SHOW
    },
    Route {
        path: "/target/definition",
        segment_path: Some("/targets/{name}/definition"),
        params: &[TARGET],
        run: |api, call| Box::pin(async move { put(&api, &call, Kind::Target).await }),
        ..PUT
    },
    Route {
        path: "/target/definition",
        segment_path: Some("/targets/{name}/definition"),
        params: &[TARGET],
        run: |api, call| Box::pin(async move { delete(&api, &call, Kind::Target).await }),
        ..DELETE
    },
    Route {
        path: "/rule/definition",
        segment_path: Some("/rules/{name}/definition"),
        params: &[RULE],
        run: |api, call| Box::pin(async move { show(&api, &call, Kind::Rule) }),
        ..SHOW
    },
    Route {
        path: "/rule/definition",
        segment_path: Some("/rules/{name}/definition"),
        params: &[RULE],
        run: |api, call| Box::pin(async move { put(&api, &call, Kind::Rule).await }),
        ..PUT
    },
    Route {
        path: "/rule/definition",
        segment_path: Some("/rules/{name}/definition"),
        params: &[RULE],
        run: |api, call| Box::pin(async move { delete(&api, &call, Kind::Rule).await }),
        ..DELETE
    },
];

fn list(api: &Api, call: &Call) -> Outcome {
    let word = call.text(KIND.name);
    if word.is_some_and(|word| Kind::ALL.iter().all(|kind| kind.word() != word)) {
        let detail = "must be stream, target or rule";
        return Err(Problem::bad("query parameter kind", detail));
    }
    let Some(handle) = open(api)? else {
        return json(&Rows::<Definition> { items: Vec::new(), cursor: None });
    };
    let defined = handle.board.defined();
    let visible = Visible::to(api, call);
    let mut all: Vec<(String, Definition)> = rows(&defined)
        .filter(|(entry, _)| visible.has(entry))
        .filter(|(entry, _)| word.is_none_or(|word| entry.kind.word() == word))
        .map(|(entry, source)| (key_of(entry), row(entry, source)))
        .collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let after = call.text(CURSOR.name);
    all.retain(|(key, _)| after.is_none_or(|after| **key > *after));
    let has_more = all.len() > call.limit();
    all.truncate(call.limit());
    let cursor = all.last().filter(|_| has_more).map(|(key, _)| key.clone());
    json(&Rows { items: all.into_iter().map(|(_, row)| row).collect(), cursor })
}

/// Its place in the list.
fn key_of(entry: &Entry) -> String {
    format!("{}/{}", entry.kind.word(), entry.name)
}

fn rows(defined: &Defined) -> impl Iterator<Item = (&Entry, &'static str)> {
    let of_file = defined.file.iter().map(|entry| (entry, "file"));
    of_file.chain(defined.own.iter().map(|entry| (entry, "api")))
}

fn row(entry: &Entry, source: &str) -> Definition {
    Definition {
        kind: entry.kind.word().to_owned(),
        name: entry.name.clone(),
        source: source.to_owned(),
        tenant: entry.tenant.as_ref().map(|tenant| tenant.namespace.clone()),
        definition: DefinitionKeys(entry.keys().clone()),
    }
}

fn show(api: &Api, call: &Call, kind: Kind) -> Outcome {
    let (name, visible) = (call.needed("name"), Visible::to(api, call));
    let handle = open(api)?.ok_or_else(|| unknown(api, kind, name))?;
    let defined = handle.board.defined();
    let mut rows = rows(&defined).filter(|(entry, _)| visible.has(entry));
    let found = rows.find(|(entry, _)| (entry.kind, &*entry.name) == (kind, name));
    let (entry, source) = found.ok_or_else(|| unknown(api, kind, name))?;
    json(&row(entry, source))
}

async fn put(api: &Api, call: &Call, kind: Kind) -> Outcome {
    let name = call.needed("name");
    let DefinitionKeys(keys) = call.body()?;
    let entry = Entry::new(kind, name, keys).map_err(|detail| Problem::bad("body", detail))?;
    change(api, call, (kind, name), Change::Put(entry)).await?;
    show(api, call, kind)
}

async fn delete(api: &Api, call: &Call, kind: Kind) -> Outcome {
    let name = call.needed("name");
    let is_forced = call.flag(FORCE.name) == Some(true);
    let deletion = Change::Delete { kind, name: name.to_owned(), is_forced };
    change(api, call, (kind, name), deletion).await?;
    Ok(None)
}

async fn change(
    api: &Api,
    call: &Call,
    (kind, name): (Kind, &str),
    change: Change,
) -> Result<(), Problem> {
    let handle = open(api)?.ok_or_else(|| {
        let detail = "streams and rules are not configured";
        let fix = "set routing.file in the configuration, and restart";
        Problem::new(StatusCode::CONFLICT, detail).fix(fix)
    })?;
    let namespace = call.tenant().map(str::to_owned);
    let changed =
        change_definitions(handle, move |owner| owner.change(change, namespace.as_deref()));
    changed.await?.map_err(|error| refused(api, (kind, name), error))
}

fn refused(api: &Api, (kind, name): (Kind, &str), error: ChangeError) -> Problem {
    let word = kind.word();
    let conflict = |detail: String| Problem::new(StatusCode::CONFLICT, detail);
    match error {
        ChangeError::Unknown => unknown(api, kind, name),
        ChangeError::OfFile(path) => {
            let path = path.display();
            conflict(format!("the {word} '{name}' is defined in the file {path}"))
                .fix("change the file, and reload; or use another name")
        }
        ChangeError::OfNamespace(namespace) => conflict(format!(
            "the {word} '{name}' is of namespace '{namespace}', whose API users define it"
        ))
        .fix("use another name, or delete this one"),
        ChangeError::Taken => {
            conflict(format!("the operator of the broker uses the name '{name}'"))
                .fix("use another name")
        }
        ChangeError::Body(detail) => Problem::bad("body", detail)
            .fix("docs/use/rules.md has the keys, and what users of a namespace may define"),
        ChangeError::Quota(detail) => {
            conflict(detail).fix("delete what is not needed, or ask the operator of the broker")
        }
        ChangeError::Used(detail) => {
            let fix = match kind {
                Kind::Stream => {
                    "delete or change these rules first; force deletes those that read it"
                }
                Kind::Target | Kind::Rule => "delete or change these rules first",
            };
            conflict(format!("the {word} '{name}' is in use: {detail}")).fix(fix)
        }
        ChangeError::Stored(count) => {
            conflict(format!("the stream '{name}' stores {count} messages"))
                .fix("force=true (--force) deletes them")
        }
        ChangeError::Definitions(error) => Problem::bad("body", error.to_string())
            .fix("docs/use/rules.md has the keys; docs/use/api.md has those of secrets"),
        ChangeError::Refused(detail) => conflict(detail),
        ChangeError::Unwritten(error) => {
            let detail = format!("cannot write to the data directory: {error}");
            let fix = "nothing was changed: check the disk and try again";
            Problem::new(StatusCode::INSUFFICIENT_STORAGE, detail).fix(fix)
        }
        ChangeError::Stopping => crate::run::NoAnswer::Absent.into(),
    }
}

fn unknown(api: &Api, kind: Kind, name: &str) -> Problem {
    let problem = missing(api, kind.word(), name);
    match api.facts.config.routing {
        Some(_) => problem.fix("GET /definitions lists all"),
        None => problem,
    }
}
