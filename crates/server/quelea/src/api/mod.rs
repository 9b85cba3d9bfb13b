//! The management API: what operators may see and change while the broker runs.
//!
//! One table, `routes.rs`, has all that can be asked; router, checks and the OpenAPI document come
//! from it. A request passes `authentication.rs` (the caller), `call.rs` (what is asked), and a
//! handler (`bans.rs`, `broker.rs`, `clients.rs` and so on), which asks the shards by `run/ask.rs`.

mod alarms;
mod asked;
mod audit;
mod authentication;
mod backup;
mod bans;
mod broker;
mod call;
mod client_details;
mod clients;
mod cluster;
mod definitions;
mod events;
mod examples;
mod history;
mod limits;
mod log_lines;
mod logins;
mod merge;
mod messages;
mod namespaces;
pub mod openapi;
mod operate;
mod paging;
mod params;
mod password_checks;
mod permissions;
mod problem;
mod registry;
mod route;
mod routes;
mod routing;
mod schema;
mod scopes;
mod settings;
mod spread;
mod streams;
mod tenants;
pub(crate) mod token;
mod topics;
mod trace;
mod usage;
mod users;
mod views;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use tokio::sync::Semaphore;
use web::BodyError;
use web::axum::Router;
use web::axum::extract::{Request, State};
use web::axum::http::StatusCode;
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use web::axum::response::{IntoResponse as _, Response};
use web::axum::routing::on;

pub(crate) use asked::{Asked, Reply, Silent};
use audit::{Audit, AuditLog};
use authentication::Identity;
pub(crate) use authentication::{ApiAuthenticator, check_files};
pub(crate) use bans::CELL_OF_BANS;
use call::Call;
pub(crate) use logins::Owner;
use logins::Proof;
pub(crate) use problem::Problem;
pub(crate) use route::Outcome;
use route::{Method, Role, Route};
use routes::routes;
pub(crate) use spread::is_change;
use views::Caller;

use crate::cluster::Member;
use crate::history::History;
use crate::http::Health;
use crate::life_cycle::LifeCycle;
use crate::run::{
    BridgeBoard, Calls, Certificates, ConnectionLimiter, JournalBoard, LiveSettings, Reloads,
    Shards, StreamsHandle,
};
use base::Clock;
use config::{API_PREFIX, ApiConfig, Config};
use driver::Origin;
use identity::auth::Authenticator;
use identity::auth::authorizer::Authorizer;
use identity::auth::rules::RuleFiles;
use identity::namespaces::Namespaces;

/// Calls that are dealt with at a time; others wait. Each has one command under way at most, so
/// that this bounds what all of them together ask of a shard.
pub(crate) const CALLS_MAX: usize = 8;

/// The longest body: base64 of six million bytes.
const BODY_BYTES_MAX: usize = 8 << 20;

/// All that handlers need.
pub(crate) struct Api {
    pub(crate) authenticator: Arc<ApiAuthenticator>,
    calls: Arc<Semaphore>,
    /// Of users of namespaces.
    tenant_calls: Arc<Semaphore>,
    changes: tenants::Changes,
    audit: Arc<AuditLog>,
    /// Held by a call that changes a file of users or clients.
    files: tokio::sync::Mutex<()>,
    /// One backup at a time.
    backup: Arc<Semaphore>,
    pub(crate) shards: Shards,
    /// Of a node with several cells: the way to all of them.
    calls_to_cells: Option<Arc<Calls>>,
    pub(crate) facts: Facts,
}

/// What is known without asking a shard.
pub(crate) struct Facts {
    pub(crate) config: Config,
    pub(crate) live: Arc<LiveSettings>,
    pub(crate) clock: Clock,
    pub(crate) health: Health,
    pub(crate) limiter: Arc<ConnectionLimiter>,
    pub(crate) board: Arc<JournalBoard>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) life_cycle: Arc<LifeCycle>,
    pub(crate) reloads: Arc<Reloads>,
    pub(crate) history: Arc<History>,
    pub(crate) bridges: Arc<BridgeBoard>,
    /// Once streams are open.
    pub(crate) streams: Arc<OnceLock<StreamsHandle>>,
    pub(crate) namespaces: Arc<Namespaces>,
    pub(crate) rule_files: Arc<RuleFiles>,
    pub(crate) authenticator: Arc<Authenticator>,
    /// None: no service decides what clients may do.
    pub(crate) authorizer: Option<Arc<Authorizer>>,
    /// None: this broker belongs to no cluster.
    pub(crate) member: Option<Member>,
}

impl Api {
    /// # Errors
    ///
    /// When the files of the configuration cannot be used.
    pub(crate) fn new(config: &ApiConfig, shards: Shards, facts: Facts) -> anyhow::Result<Self> {
        let authenticator = ApiAuthenticator::new(config, &facts.config.namespaces)?;
        Ok(Self::of_cell(Arc::new(authenticator), shards, facts))
    }

    /// Of a cell among others: its node authenticates callers.
    pub(crate) fn of_cell(
        authenticator: Arc<ApiAuthenticator>,
        shards: Shards,
        facts: Facts,
    ) -> Self {
        Self {
            authenticator,
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
            tenant_calls: Arc::new(Semaphore::new(tenants::CALLS_MAX)),
            changes: tenants::Changes::default(),
            audit: Arc::default(),
            files: tokio::sync::Mutex::default(),
            backup: Arc::new(Semaphore::new(1)),
            shards,
            calls_to_cells: None,
            facts,
        }
    }

    /// Of a node: it answers for the cells that can be reached by `calls`.
    pub(crate) fn for_cells(self, calls: Arc<Calls>) -> Self {
        Self { calls_to_cells: Some(calls), ..self }
    }
}

/// All routes, below [`API_PREFIX`].
pub(crate) fn router(api: Arc<Api>) -> Router {
    let mut router = Router::new();
    for route in routes() {
        for pattern in [Some(route.path), route.segment_path].into_iter().flatten() {
            let handle = move |State(api): State<Arc<Api>>, request: Request| {
                handle(api, (route, pattern), request)
            };
            router = router.route(pattern, on(route.method.filter(), handle));
        }
    }
    let unknown = || async {
        let fix = "/api/v1/openapi.json lists all routes";
        Problem::new(StatusCode::NOT_FOUND, "unknown route").fix(fix)
    };
    let not_allowed = || async {
        let detail = "method not allowed on this route";
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail).fix(
            "/api/v1/openapi.json lists the \
        methods",
        )
    };
    let all = router.method_not_allowed_fallback(not_allowed).fallback(unknown).with_state(api);
    Router::new().nest(API_PREFIX, all)
}

/// The API of a node that knows nothing yet: all routes answer with the reason.
pub(crate) fn unavailable(reason: impl Fn() -> String + Clone + Send + Sync + 'static) -> Router {
    let answer = move || async move {
        let fix = "send the request to another node, or retry when /readyz answers 200";
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason()).fix(fix)
    };
    Router::new().nest(API_PREFIX, Router::new().fallback(answer))
}

async fn handle(
    api: Arc<Api>,
    (route, pattern): (&'static Route, &'static str),
    request: Request,
) -> Response {
    let caller = request.extensions().get::<web::CallerAddress>();
    let from = caller.map_or(Origin::Local, |caller| Origin::of(caller.0));
    let certificate = request.extensions().get::<web::CallerCertificate>().cloned();
    let certificate = certificate.as_ref().map(|certificate| &*certificate.0);
    let asked = api.authenticator.authenticate(request.headers(), from, certificate);
    let identity = match asked.await {
        Ok(identity) => identity,
        Err(problem) => {
            if api.authenticator.note_refused(request.headers(), from, &problem.detail) {
                api.facts.limiter.api_refused.fetch_add(1, Ordering::Relaxed);
            }
            return problem.into_response();
        }
    };
    let (uri, name) = (request.uri(), identity.name.clone());
    let asked = caller_of(&api, route, &identity).and_then(|caller| {
        let path = (pattern, uri.path());
        let call = Call::parse(route, path, uri.query().unwrap_or_default(), caller)?;
        cluster::check_serves(&api, route)?;
        Ok(call.shown(identity.proof))
    });
    let namespace = asked.as_ref().map(|call| call.namespace(route)).unwrap_or_default();
    let target = uri.to_string();
    let log = (api.audit.clone(), api.facts.clock);
    let audit = Audit { log, route, name, target, namespace, subject: String::new() };
    let outcome = match (asked, &route.stream) {
        (Ok(call), None) => run(api, route, call, request, audit).await,
        (Ok(call), Some(stream)) => match spread::begin(&api, (route, stream), call).await {
            Ok(response) => {
                audit.note(&Ok(None));
                return response;
            }
            Err(problem) => refused(&audit, problem),
        },
        (Err(problem), _) => refused(&audit, problem),
    };
    match outcome {
        Ok(Some(value)) => {
            let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
            (route.status(), headers, format!("{value}\n")).into_response()
        }
        Ok(None) => route.status().into_response(),
        Err(problem) => problem.into_response(),
    }
}

/// The caller, who may make this call.
fn caller_of(api: &Api, route: &Route, identity: &Identity) -> Result<Caller, Problem> {
    if matches!(identity.proof, Proof::Link(_)) && !route.takes_link {
        return Err(link_refused());
    }
    let namespace = tenants::namespace_of(api, route, identity)?;
    let role = match namespace {
        Some(_) => TENANT,
        None if identity.role < route.role => return Err(forbidden(route, identity.role)),
        None => identity.role.as_str(),
    };
    Ok(Caller { name: identity.name.clone(), role: role.into(), namespace })
}

/// The role of users of namespaces, in answers.
const TENANT: &str = "tenant";

fn refused(audit: &Audit, problem: Problem) -> Outcome {
    let outcome = Err(problem);
    audit.note(&outcome);
    outcome
}

/// A change that has begun is carried out whole and noted, also when its caller goes away. A body
/// is read before the call takes a place among [`CALLS_MAX`]: a slow one holds up nobody but its
/// sender. How many bodies are read at a time is bounded by the connections of the server.
async fn run(
    api: Arc<Api>,
    route: &'static Route,
    mut call: Call,
    request: Request,
    mut audit: Audit,
) -> Outcome {
    if route.body.is_some() {
        match body_of(request).await {
            Ok(body) => call.put_body(body),
            Err(problem) => return refused(&audit, problem),
        }
        audit.subject = call.subject();
        audit.namespace = call.namespace(route);
    }
    let of_tenants = match call.tenant() {
        Some(_) => api.tenant_calls.clone().acquire_owned().await.ok(),
        None => None,
    };
    let place = api.calls.clone().acquire_owned().await;
    let work = async move {
        let _places = (of_tenants, place);
        let outcome = spread::run(&api, route, call).await;
        audit.note(&outcome);
        outcome
    };
    if route.method == Method::Get {
        return work.await;
    }
    tokio::spawn(work).await.unwrap_or_else(|_| Err(thread_failed()))
}

fn thread_failed() -> Problem {
    let detail = "internal error: a thread of the broker failed";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

/// A page of the web cannot make a browser send this kind of body without asking first.
async fn body_of(request: Request) -> Result<Vec<u8>, Problem> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let media_type = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let detail = format!("the body is '{media_type}', not application/json");
        let problem = Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
        return Err(problem.at("header Content-Type").fix("send Content-Type: application/json"));
    }
    let body = web::read_body(request.into_body(), BODY_BYTES_MAX).await;
    body.map(Vec::from).map_err(|error| match error {
        BodyError::TooLong { .. } => call::too_much(error.to_string()),
        BodyError::Late => Problem::new(StatusCode::REQUEST_TIMEOUT, error.to_string()).at("body"),
    })
}

fn forbidden(route: &Route, role: Role) -> Problem {
    let detail = format!("this needs the role {}, got {}", route.role.as_str(), role.as_str());
    let fix = "add the user to api.operators or api.admins, or use the token";
    Problem::new(StatusCode::FORBIDDEN, detail).fix(fix)
}

fn link_refused() -> Problem {
    let detail = "a log-in link begins a session, and nothing else";
    Problem::new(StatusCode::FORBIDDEN, detail).fix("send it with POST /sessions")
}

/// An answer of JSON.
pub(crate) fn json(value: &impl Serialize) -> Outcome {
    let value = serde_json::to_value(value);
    value.map(Some).map_err(|error| {
        Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the answer cannot be written: {error}"),
        )
    })
}

pub(crate) fn base64_of(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// None: it is no base64.
pub(crate) fn of_base64(text: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(text).ok()
}
