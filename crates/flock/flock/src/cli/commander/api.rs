//! What can be asked of a commander over HTTP. Described in `docs/flock/commander.md`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use web::BodyError;
use web::axum::Router;
use web::axum::body::Bytes;
use web::axum::extract::{Path, RawQuery, Request, State};
use web::axum::http::header::{AUTHORIZATION, HOST, LOCATION, ORIGIN, WWW_AUTHENTICATE};
use web::axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use web::axum::middleware::{self, Next};
use web::axum::response::{IntoResponse as _, Response};
use web::axum::routing::get;

use super::jobs::{Job, Jobs, Refusal, Stored, format_of, scenario_entry};
use crate::cli::args::{Changes, factor};
use crate::cli::find::{
    CONNECT_RATE, CONNECTIONS_MAX, CONNECTIONS_MIN, Find, RATE_MAX, RATE_MIN, RATE_STEP, bound,
};
use crate::cli::run::{changed, checked, without_effect};
use crate::http::{self, Problem};
use flock_measure::threshold::Threshold;
use flock_model::catalogue;
use flock_model::scenario::{Choice, Loaded, ScenarioError, parse_any, units};
use flock_model::{Payload, Target, Transport};

/// All that can be asked, by whoever may ask.
pub(super) fn router(jobs: Arc<Jobs>, token: Option<String>) -> Router {
    let admit = move |request: Request, next: Next| {
        let admitted = admit(request.headers(), token.as_deref())
            .and_then(|()| check_query(request.method(), request.uri()));
        async move {
            match admitted {
                Ok(()) => next.run(request).await,
                Err(problem) => problem.into_response(),
            }
        }
    };
    Router::new()
        .route("/commander", get(async |State(jobs): Of| ok(&jobs.commander())))
        .route("/metrics", get(async |State(jobs): Of| jobs.live.response()))
        .route("/scenarios", get(async |State(jobs): Of| ok(&jobs.scenarios())).post(submit))
        .route("/scenarios/{id}", get(scenario).delete(remove))
        .route("/runs", get(async |State(jobs): Of| ok(&jobs.runs())).post(start))
        .route("/runs/{id}", get(run).patch(change_run).delete(remove_run))
        .route("/runs/{id}/results", get(results))
        .fallback(async |uri: Uri| {
            let known = "use /commander, /scenarios, /runs or /metrics";
            missing(format!("{}: {known}", uri.path()))
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let detail = format!("{} does not support {method}", uri.path());
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .with_state(jobs)
        .layer(middleware::from_fn(admit))
}

type Of = State<Arc<Jobs>>;
type Answer = Result<Response, Problem>;

/// Before anything else is looked at.
fn admit(headers: &HeaderMap, token: Option<&str>) -> Result<(), Problem> {
    let header = |name| {
        headers.get(name).map(|value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()))
    };
    // A page of some other site, in a browser that reaches what the site itself does not.
    if headers.contains_key(ORIGIN) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "requests of web pages (Origin) are refused",
        ));
    }
    let Some(token) = token else {
        let host = header(HOST).unwrap_or("localhost".into());
        // A name that a site has for this machine would make its pages ours.
        return match is_own(&host) {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::FORBIDDEN,
                format!(
                    "use an IP address or localhost, \
                     not `{host}`"
                ),
            )),
        };
    };
    match header(AUTHORIZATION).as_deref().and_then(|value| value.split_once(' ')) {
        Some((scheme, given))
            if scheme.eq_ignore_ascii_case("bearer") && same(given.trim(), token) =>
        {
            Ok(())
        }
        _ => Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "the header Authorization: Bearer TOKEN \
             is required",
        )
        .and(WWW_AUTHENTICATE, "Bearer")),
    }
}

/// A parameter that the request does not have would be as if it were not there.
fn check_query(method: &Method, uri: &Uri) -> Result<(), Problem> {
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let known = match (method.as_str(), &path[..]) {
        ("POST", ["scenarios"]) => "name",
        ("GET" | "HEAD", ["runs", _]) => "wait",
        ("GET" | "HEAD", ["runs", _, "results"]) => "number",
        _ => "",
    };
    let names = uri.query().unwrap_or("").split('&').filter(|pair| !pair.is_empty());
    let mut names = names.map(|pair| pair.split_once('=').map_or(pair, |(name, _)| name));
    match names.find(|name| *name != known) {
        Some(name) if known.is_empty() => Err(bad(format!("{name}: there are no parameters here"))),
        Some(name) => Err(bad(format!("{name}: unknown parameter, valid is `{known}`"))),
        None => Ok(()),
    }
}

fn ok(body: &Value) -> Response {
    http::json(StatusCode::OK, body)
}

fn created(body: &Value, location: String) -> Response {
    let mut response = http::json(StatusCode::CREATED, body);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

async fn body(request: Request) -> Result<Bytes, Problem> {
    web::read_body(request.into_body(), BODY_BYTES_MAX).await.map_err(|error| {
        let status = match error {
            BodyError::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Late => StatusCode::REQUEST_TIMEOUT,
        };
        Problem::new(status, error.to_string())
    })
}

/// A scenario is handed in: the text as it would be in a file, or in Swarm's envelope.
async fn submit(State(jobs): Of, RawQuery(query): RawQuery, request: Request) -> Answer {
    let text = String::from_utf8(body(request).await?.into())
        .map_err(|_| bad("the scenario must be UTF-8"))?;
    let submitted = match text.trim_start().starts_with('{') {
        true if value(query.as_deref(), "name").is_some() => {
            return Err(bad("name: the body has a `scenario-name`, use one of them"));
        }
        true => Submitted::from_envelope(&text)?,
        false => {
            let name = named(query.as_deref())?.to_owned();
            Submitted { name, title: None, kind: None, text }
        }
    };
    let Submitted { name, title, kind, text } = submitted;
    if text.trim().is_empty() {
        return Err(bad("the scenario is empty: it must be TOML or Swarm XML"));
    }
    let is_xml = text.trim_start_matches('\u{feff}').trim_start().starts_with('<');
    let form = if is_xml { "XML" } else { "TOML" };
    if let Some(kind) = kind.filter(|kind| kind != form) {
        return Err(bad(format!("scenario-type: the scenario is {form}, not {kind}")));
    }
    let file = format!("{name}.{}", form.to_lowercase());
    let loaded = parsed(&file, &text, &Choice::default(), jobs.payload.as_ref())?;
    let stored = Stored {
        name: loaded.scenario.id.clone(),
        title: title.unwrap_or_else(|| loaded.scenario.title.clone()),
        file,
        text,
    };
    let id = jobs.add(stored.clone())?;
    let mut entry = scenario_entry(id, &stored);
    entry["clients"] = loaded.scenario.estimate().clients.into();
    Ok(created(&entry, format!("/scenarios/{id}")))
}

struct Submitted {
    name: String,
    title: Option<String>,
    /// XML or TOML, where that was said.
    kind: Option<String>,
    text: String,
}

/// As clients of HiveMQ Swarm submit a scenario.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Envelope {
    scenario_name: String,
    scenario_description: Option<String>,
    scenario_type: Option<String>,
    /// Base64.
    scenario: String,
}

impl Submitted {
    fn from_envelope(text: &str) -> Result<Self, Problem> {
        let envelope: Envelope = serde_json::from_str(text)
            .map_err(|error| bad(format!("the body is not valid: {error}")))?;
        match envelope.scenario_type.as_deref() {
            None | Some("XML" | "TOML") => {}
            Some(other) => {
                let fix = "submit the XML that the template makes";
                return Err(bad(format!("scenario-type `{other}` is not supported: {fix}")));
            }
        }
        let bytes = BASE64_STANDARD
            .decode(&envelope.scenario)
            .map_err(|error| bad(format!("scenario: must be Base64: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|_| bad("the scenario must be UTF-8"))?;
        let name = checked_name(&envelope.scenario_name)?.to_owned();
        let Envelope { scenario_description: title, scenario_type: kind, .. } = envelope;
        Ok(Self { name, title, kind, text })
    }
}

async fn scenario(State(jobs): Of, Path(id): Path<String>) -> Answer {
    let id = number(&id, "scenario")?;
    let stored = jobs.scenario(id)?;
    let mut entry = scenario_entry(id, &stored);
    entry["scenario"] = stored.text.into();
    Ok(ok(&entry))
}

async fn remove(State(jobs): Of, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    jobs.remove(number(&id, "scenario")?)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn start(State(jobs): Of, request: Request) -> Answer {
    let wishes: Wishes = serde_json::from_slice(&body(request).await?)
        .map_err(|error| bad(format!("the body is not valid: {error}")))?;
    let id = jobs.start(job(&jobs, wishes)?)?;
    Ok(created(&jobs.run(id, Duration::ZERO)?, format!("/runs/{id}")))
}

async fn run(State(jobs): Of, Path(id): Path<String>, RawQuery(query): RawQuery) -> Answer {
    let (id, wait) = (number(&id, "run")?, wait(query.as_deref())?);
    if wait.is_zero() {
        return Ok(ok(&jobs.run(id, wait)?));
    }
    Ok(ok(&aside(move || jobs.run(id, wait)).await??))
}

/// A new state: the only one that can be asked for ends the run.
async fn change_run(State(jobs): Of, Path(id): Path<String>, request: Request) -> Answer {
    let id = number(&id, "run")?;
    let ChangedRun { run_status } = serde_json::from_slice(&body(request).await?)
        .map_err(|error| bad(format!("the body is not valid: {error}")))?;
    match run_status.as_str() {
        "STOPPING" => Ok(ok(&jobs.stop(id)?)),
        other => Err(bad(format!("run-status: must be STOPPING, got `{other}`"))),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ChangedRun {
    run_status: String,
}

async fn remove_run(State(jobs): Of, Path(id): Path<String>) -> Result<StatusCode, Problem> {
    jobs.remove_run(number(&id, "run")?)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn results(State(jobs): Of, Path(id): Path<String>, RawQuery(query): RawQuery) -> Answer {
    let which = value(query.as_deref(), "number");
    let which = which.map(|text| number(text, "repetition")).transpose()?;
    let path = jobs.results(number(&id, "run")?, which)?;
    let text = aside(move || {
        std::fs::read_to_string(&path)
            .map_err(|error| missing(format!("cannot read {}: {error}", path.display())))
    });
    Ok(http::text(StatusCode::OK, "application/json", text.await??))
}

/// What may take a while keeps no other request waiting.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    web::aside(work)
        .await
        .ok_or_else(|| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error of flock"))
}

fn job(jobs: &Jobs, wishes: Wishes) -> Result<Job, Problem> {
    let (scenario_id, format, loaded) = chosen(jobs, &wishes)?;
    let broker: Result<Vec<Target>, String> =
        wishes.broker.iter().map(|text| Target::parse(text)).collect();
    let mut broker = broker.map_err(bad)?;
    if broker.is_empty() {
        broker.clone_from(&jobs.broker);
    }
    let changes = wishes.changes().map_err(bad)?;
    let runs = wishes.runs.unwrap_or(1);
    if !(1..=RUNS_MAX).contains(&runs) {
        return Err(bad(format!("runs: must be from 1 to {RUNS_MAX}, got {runs}")));
    }
    let mut scenario = loaded.scenario;
    let (transport, tls) = (jobs.secure.transport(), jobs.secure.tls());
    // The commander's certificates are for the runs that use TLS.
    let is_tls = |transport: &Option<Transport>| transport.as_ref().is_some_and(Transport::is_tls);
    let is_secure = is_tls(&transport)
        || broker.iter().any(|target| is_tls(&target.transport))
        || scenario.brokers.iter().any(|broker| broker.transport.is_tls());
    let tls = tls.filter(|_| is_secure);
    scenario.aim(&broker, transport.as_ref(), tls.as_ref()).map_err(bad)?;
    let mut scenario = changed(scenario, &changes);
    let find = wishes.find().map_err(bad)?;
    let wrong = |error: anyhow::Error| bad(error.to_string());
    scenario.search = find.rate_search().map_err(wrong)?.or(scenario.search);
    let seeks_size = find.find_connections.is_some() || find.find_connect_rate.is_some();
    if let Some(words) = without_effect(&scenario, &changes, seeks_size) {
        return Err(bad(words.trim_start_matches('-')));
    }
    for limit in &wishes.expect {
        scenario.expect.metrics.push(Threshold::parse(limit).map_err(bad)?);
    }
    let scenario = checked(scenario).map_err(wrong)?;
    let quest = find.quest(&scenario, changes.duration).map_err(wrong)?;
    let overrides = changes.overrides();
    Ok(Job { scenario_id, format, scenario, source: loaded.source, overrides, runs, quest })
}

/// The number of a scenario that was handed in, the format of its text, and the scenario.
fn chosen(jobs: &Jobs, wishes: &Wishes) -> Result<(Option<u32>, &'static str, Loaded), Problem> {
    let choice = Choice { params: wishes.assignments().into_iter().collect(), ..Choice::default() };
    let id = match &wishes.scenario {
        Which::HandedIn(id) => *id,
        // Clients of Swarm write the number as a text; no built-in ID is one.
        Which::BuiltIn(id) => match id.parse() {
            Ok(number) => number,
            Err(_) if wishes.payload.is_some() => {
                let what = "replaces payload generators, and a built-in scenario has none";
                return Err(bad(format!("payload: {what}")));
            }
            Err(_) => return built_in(id, &choice).map(|loaded| (None, "TOML", loaded)),
        },
    };
    let payload = wishes.payload.as_deref().map(Payload::parse).transpose();
    let payload = payload.map_err(|error| bad(format!("payload: {error}")))?;
    let stored = jobs.scenario(id)?;
    let loaded = match payload {
        // One that was asked for has something to replace.
        Some(_) => {
            let choice = Choice { payload, ..choice };
            let loaded = parse_any(&stored.file, &stored.text, &choice, &no_file);
            loaded.map_err(|error| scenario_problem(StatusCode::BAD_REQUEST, &error))?
        }
        None => parsed(&stored.file, &stored.text, &choice, jobs.payload.as_ref())?,
    };
    Ok((Some(id), format_of(&stored.file), loaded))
}

fn built_in(id: &str, choice: &Choice) -> Result<Loaded, Problem> {
    catalogue::find(id, choice).map_err(|error| {
        // No parameter of an unknown scenario can be wrong.
        let status = match error.location.is_none() && choice.params.is_empty() {
            true => StatusCode::NOT_FOUND,
            false => StatusCode::BAD_REQUEST,
        };
        scenario_problem(status, &error)
    })
}

/// What starts a run: the options of `flock run`, by their names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Wishes {
    #[serde(alias = "scenario-id")]
    scenario: Which,
    /// In place of the payload generators of a Swarm scenario.
    payload: Option<String>,
    #[serde(default)]
    broker: Vec<String>,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    scale: Option<f64>,
    speed: Option<f64>,
    duration: Option<String>,
    ramp: Option<String>,
    warm_up: Option<String>,
    cool_down: Option<String>,
    seed: Option<u64>,
    #[serde(default)]
    expect: Vec<String>,
    runs: Option<u32>,
    find_rate: Option<String>,
    rate_min: Option<u64>,
    rate_max: Option<u64>,
    rate_step: Option<String>,
    find_connections: Option<String>,
    find_connect_rate: Option<String>,
    connections_min: Option<u64>,
    connections_max: Option<u64>,
    connect_rate: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`scenario`: the number of a submitted scenario, or a built-in ID")]
enum Which {
    HandedIn(u32),
    BuiltIn(String),
}

impl Wishes {
    /// The parameters that are set; numbers may come as such.
    fn assignments(&self) -> Vec<(String, String)> {
        let plain = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        self.set.iter().map(|(name, value)| (name.clone(), plain(value))).collect()
    }

    /// The searches that are asked for, one at most.
    fn find(&self) -> Result<Find, String> {
        let searches = [&self.find_rate, &self.find_connections, &self.find_connect_rate];
        if searches.iter().filter(|search| search.is_some()).count() > 1 {
            return Err("use one of find-rate, find-connections and find-connect-rate".to_owned());
        }
        let is_size = self.find_connections.is_some() || self.find_connect_rate.is_some();
        if is_size && self.runs.is_some() {
            return Err("runs: not possible with find-connections or find-connect-rate".to_owned());
        }
        let rates = [self.rate_min.is_some(), self.rate_max.is_some(), self.rate_step.is_some()];
        let has_rate = self.find_rate.is_some() || self.find_connect_rate.is_some();
        if rates.contains(&true) && !has_rate {
            let keys = "rate-min, rate-max and rate-step";
            return Err(format!("{keys} need find-rate or find-connect-rate"));
        }
        let sizes = [self.connections_min, self.connections_max, self.connect_rate];
        if sizes.iter().any(Option::is_some) && self.find_connections.is_none() {
            let keys = "connections-min, connections-max and connect-rate";
            return Err(format!("{keys} need find-connections"));
        }
        if self.connect_rate == Some(0) {
            return Err("connect-rate: must be at least 1, got 0".to_owned());
        }
        let limit = |key: &str, text: &Option<String>| {
            let bound = text.as_deref().map(bound).transpose();
            bound.map_err(|error| format!("{key}: {error}"))
        };
        let step = self.rate_step.as_deref().unwrap_or(RATE_STEP);
        Ok(Find {
            find_rate: limit("find-rate", &self.find_rate)?,
            find_connections: limit("find-connections", &self.find_connections)?,
            find_connect_rate: limit("find-connect-rate", &self.find_connect_rate)?,
            rate_min: self.rate_min.unwrap_or(RATE_MIN),
            rate_max: self.rate_max.unwrap_or(RATE_MAX),
            rate_step: units::time(step).map_err(|error| format!("rate-step: {error}"))?,
            connections_min: self.connections_min.unwrap_or(CONNECTIONS_MIN),
            connections_max: self.connections_max.unwrap_or(CONNECTIONS_MAX),
            connect_rate: self.connect_rate.unwrap_or(CONNECT_RATE),
        })
    }

    fn changes(&self) -> Result<Changes, String> {
        let by = |name: &str, value: Option<f64>| match value {
            Some(value) => factor(&value.to_string()).map_err(|error| format!("{name}: {error}")),
            None => Ok(1.0),
        };
        let time = |name: &str, value: &Option<String>| match value {
            Some(text) => units::time(text).map(Some).map_err(|error| format!("{name}: {error}")),
            None => Ok(None),
        };
        Ok(Changes {
            scale: by("scale", self.scale)?,
            speed: by("speed", self.speed)?,
            duration: time("duration", &self.duration)?,
            ramp: time("ramp", &self.ramp)?,
            warm_up: time("warm-up", &self.warm_up)?,
            cool_down: time("cool-down", &self.cool_down)?,
            set: self.assignments(),
            seed: self.seed,
        })
    }
}

/// `payload` replaces payload generators, if there are some.
fn parsed(
    file: &str,
    text: &str,
    choice: &Choice,
    payload: Option<&Payload>,
) -> Result<Loaded, Problem> {
    let replaced = Choice { payload: payload.cloned(), ..choice.clone() };
    let loaded = match (parse_any(file, text, choice, &no_file), payload) {
        (Err(_), Some(_)) => parse_any(file, text, &replaced, &no_file),
        (loaded, _) => loaded,
    };
    loaded.map_err(|error| scenario_problem(StatusCode::BAD_REQUEST, &error))
}

fn no_file(name: &str) -> Result<String, String> {
    Err(format!("{name}: a scenario sent over HTTP must not name other files"))
}

fn scenario_problem(status: StatusCode, error: &ScenarioError) -> Problem {
    let location = error.location.as_ref();
    let more = json!({
        "line": location.map(|at| at.line),
        "column": location.map(|at| at.column),
        "message": error.message,
        "hint": error.hint,
    });
    Problem::with(status, error.to_string(), more)
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, detail)
}

fn missing(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, detail)
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Missing(_) => StatusCode::NOT_FOUND,
            Refusal::State(_) => StatusCode::CONFLICT,
        };
        Self::new(status, refusal.to_string())
    }
}

fn number(text: &str, what: &str) -> Result<u32, Problem> {
    text.parse().map_err(|_| missing(format!("{what} must be a number, got `{text}`")))
}

/// `NAME=VALUE` of a query; no value that is asked for here has anything to decode.
fn value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next()
}

fn wait(query: Option<&str>) -> Result<Duration, Problem> {
    let Some(text) = value(query, "wait") else { return Ok(Duration::ZERO) };
    let us = units::time(text).map_err(|error| bad(format!("wait: {error}")))?;
    Ok(Duration::from_micros(us).min(WAIT_MAX))
}

fn named(query: Option<&str>) -> Result<&str, Problem> {
    checked_name(value(query, "name").unwrap_or("scenario"))
}

fn checked_name(name: &str) -> Result<&str, Problem> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(bad(format!(
            "name: must be 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, -, _ and ."
        )));
    }
    Ok(name)
}

/// An address, with a port or without, or this machine's own name for itself.
fn is_own(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && (!name.contains(':') || name.ends_with(']')) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// How long it takes does not tell how much of a token is right.
fn same(given: &str, token: &str) -> bool {
    let differing = given.bytes().zip(token.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == token.len() && differing == 0
}

/// For the end of a run, in one request.
const WAIT_MAX: Duration = Duration::from_secs(60);
const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Clients of Swarm put a UUID ahead of a file's name.
const NAME_BYTES_MAX: usize = 128;
/// Repetitions that one request may ask for: their results are held until the last.
const RUNS_MAX: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_not_ours() {
        for own in ["localhost", "LOCALHOST:3882", "127.0.0.1:1", "[::1]:3882", "::1", "[::1]"] {
            assert!(is_own(own), "{own}");
        }
        for other in ["evil.example", "evil.example:3882", "localhost.evil.example", "", ":1"] {
            assert!(!is_own(other), "{other}");
        }
    }

    #[test]
    fn a_token_is_right_as_a_whole() {
        assert!(same("abc", "abc"));
        for wrong in ["", "ab", "abd", "abcd"] {
            assert!(!same(wrong, "abc"), "{wrong}");
        }
    }
}
