//! What can be asked of a commander over HTTP. Described in `docs/flock/commander.md`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::desk::{Desk, Job, Refusal, Stored, scenario_entry};
use crate::catalogue;
use crate::cli::args::{Bend, RATE_MAX, RATE_MIN, RATE_STEP, bound, factor};
use crate::cli::run::{bent, checked, search};
use crate::http::{Handler, Request, Response};
use crate::model::{Search, Target};
use crate::scenario::{Choice, Loaded, ScenarioError, parse_any, units};
use crate::threshold::Threshold;

pub(super) struct Api {
    desk: Arc<Desk>,
    token: Option<String>,
}

impl Api {
    pub(super) fn new(desk: Arc<Desk>, token: Option<String>) -> Self {
        Self { desk, token }
    }
}

impl Handler for Api {
    fn admit(&self, request: &Request) -> Result<(), Response> {
        // A page of some other site, in a browser that reaches what the site itself does not.
        if request.header("origin").is_some() {
            return Err(Response::problem(403, "web pages have no business here"));
        }
        let Some(token) = &self.token else {
            let host = request.header("host").unwrap_or("localhost");
            // A name that a site has for this machine would make its pages ours.
            return match is_own(host) {
                true => Ok(()),
                false => Err(Response::problem(403, format!("ask by address, not as `{host}`"))),
            };
        };
        let given = request.header("authorization").and_then(|value| value.split_once(' '));
        match given {
            Some((scheme, given))
                if scheme.eq_ignore_ascii_case("bearer") && same(given.trim(), token) =>
            {
                Ok(())
            }
            _ => Err(Response::problem(401, "send Authorization: Bearer TOKEN")
                .with("WWW-Authenticate", "Bearer")),
        }
    }

    fn respond(&self, request: &Request) -> Response {
        self.answer(request).unwrap_or_else(|problem| *problem)
    }
}

type Answer = Result<Response, Box<Response>>;

impl Api {
    fn answer(&self, request: &Request) -> Answer {
        let parts: Vec<&str> = request.path.split('/').skip(1).collect();
        let desk = &self.desk;
        let ok = |value: Value| Ok(Response::json(200, &value));
        match (method(request), parts.as_slice()) {
            ("GET", ["commander"]) => ok(desk.commander()),
            ("GET", ["metrics"]) => Ok(desk.live.response()),
            ("GET", ["scenarios"]) => ok(desk.scenarios()),
            ("POST", ["scenarios"]) => self.submit(request),
            ("GET", ["scenarios", id]) => {
                let id = number(id, "scenario")?;
                let stored = desk.scenario(id)?;
                let mut entry = scenario_entry(id, &stored);
                entry["scenario"] = stored.text.into();
                ok(entry)
            }
            ("DELETE", ["scenarios", id]) => {
                desk.remove(number(id, "scenario")?)?;
                Ok(Response::text(204, "application/json", ""))
            }
            ("GET", ["runs"]) => ok(desk.runs()),
            ("POST", ["runs"]) => self.start(request),
            ("GET", ["runs", id]) => ok(desk.run(number(id, "run")?, wait(&request.query)?)?),
            ("POST", ["runs", id, "stop"]) => {
                Ok(Response::json(202, &desk.stop(number(id, "run")?)?))
            }
            ("GET", ["runs", id, "results"]) => {
                let which = value(&request.query, "number");
                let which = which.map(|text| number(text, "repetition")).transpose()?;
                let path = desk.results(number(id, "run")?, which)?;
                let text = std::fs::read(&path).map_err(|error| {
                    let detail = format!("{} cannot be read: {error}", path.display());
                    Box::new(Response::problem(404, detail))
                })?;
                Ok(Response::text(200, "application/json", text))
            }
            (_, parts) => Err(unknown(request, parts)),
        }
    }

    /// A scenario is handed in: the text as it would be in a file.
    fn submit(&self, request: &Request) -> Answer {
        let text = String::from_utf8(request.body.clone())
            .map_err(|_| bad("the scenario is not text in UTF-8"))?;
        if text.trim().is_empty() {
            return Err(bad("the body is empty: send the scenario, as TOML or as Swarm's XML"));
        }
        let name = name(&request.query)?;
        let is_xml = text.trim_start_matches('\u{feff}').trim_start().starts_with('<');
        let file = format!("{name}.{}", if is_xml { "xml" } else { "toml" });
        let loaded = parsed(&file, &text, &Choice::default())?;
        let stored = Stored {
            name: loaded.scenario.id.clone(),
            title: loaded.scenario.title.clone(),
            file,
            text,
        };
        let id = self.desk.add(stored.clone())?;
        let mut entry = scenario_entry(id, &stored);
        entry["clients"] = loaded.scenario.estimate().clients.into();
        Ok(Response::json(201, &entry).with("Location", format!("/scenarios/{id}")))
    }

    fn start(&self, request: &Request) -> Answer {
        let wishes: Wishes = serde_json::from_slice(&request.body)
            .map_err(|error| bad(format!("the body is not what starts a run: {error}")))?;
        let job = self.job(wishes)?;
        let id = self.desk.start(job)?;
        let told = self.desk.run(id, Duration::ZERO)?;
        Ok(Response::json(201, &told).with("Location", format!("/runs/{id}")))
    }

    fn job(&self, wishes: Wishes) -> Result<Job, Box<Response>> {
        let choice = Choice { variant: None, params: wishes.assignments().into_iter().collect() };
        let (scenario_id, loaded) = match &wishes.scenario {
            Which::HandedIn(id) => {
                let stored = self.desk.scenario(*id)?;
                (Some(*id), parsed(&stored.file, &stored.text, &choice)?)
            }
            Which::BuiltIn(id) => (
                None,
                catalogue::find(id, &choice).map_err(|error| {
                    // No parameter of an unknown scenario can be wrong.
                    let status =
                        if error.place.is_none() && choice.params.is_empty() { 404 } else { 400 };
                    scenario_problem(status, &error)
                })?,
            ),
        };
        let broker: Result<Vec<Target>, String> =
            wishes.broker.iter().map(|text| Target::parse(text)).collect();
        let mut broker = broker.map_err(bad)?;
        if broker.is_empty() {
            broker.clone_from(&self.desk.broker);
        }
        let bend = wishes.bend().map_err(bad)?;
        let runs = wishes.runs.unwrap_or(1);
        if !(1..=RUNS_MAX).contains(&runs) {
            return Err(bad(format!("runs: a number from 1 to {RUNS_MAX}, not {runs}")));
        }
        let mut scenario = loaded.scenario;
        let (transport, tls) = (self.desk.secure.transport(), self.desk.secure.tls());
        scenario.aim(&broker, transport.as_ref(), tls.as_ref()).map_err(bad)?;
        let mut scenario = bent(scenario, &bend);
        scenario.search = wishes.search().map_err(bad)?.or(scenario.search);
        for limit in &wishes.expect {
            scenario.expect.metrics.push(Threshold::parse(limit).map_err(bad)?);
        }
        let scenario = checked(scenario).map_err(|error| bad(error.to_string()))?;
        let overrides = bend.overrides();
        Ok(Job { scenario_id, scenario, source: loaded.source, overrides, runs })
    }
}

/// What starts a run: the options of `flock run`, by their names.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Wishes {
    scenario: Which,
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
}

#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "`scenario` is the number of one that was handed in, or a built-in id"
)]
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

    /// The search for a rate, if one is asked for.
    fn search(&self) -> Result<Option<Search>, String> {
        let Some(text) = &self.find_rate else {
            let keys = [self.rate_min.is_some(), self.rate_max.is_some(), self.rate_step.is_some()];
            return match keys.contains(&true) {
                true => Err("rate-min, rate-max and rate-step go with find-rate".to_owned()),
                false => Ok(None),
            };
        };
        let bound = bound(text).map_err(|error| format!("find-rate: {error}"))?;
        let rates = (self.rate_min.unwrap_or(RATE_MIN), self.rate_max.unwrap_or(RATE_MAX));
        let step = self.rate_step.as_deref().unwrap_or(RATE_STEP);
        let step_us = units::time(step).map_err(|error| format!("rate-step: {error}"))?;
        search(bound, rates, step_us).map(Some).map_err(|error| error.to_string())
    }

    fn bend(&self) -> Result<Bend, String> {
        let by = |name: &str, value: Option<f64>| match value {
            Some(value) => factor(&value.to_string()).map_err(|error| format!("{name}: {error}")),
            None => Ok(1.0),
        };
        let time = |name: &str, value: &Option<String>| match value {
            Some(text) => units::time(text).map(Some).map_err(|error| format!("{name}: {error}")),
            None => Ok(None),
        };
        Ok(Bend {
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

fn parsed(file: &str, text: &str, choice: &Choice) -> Result<Loaded, Box<Response>> {
    let none = |name: &str| Err(format!("{name}: a scenario sent over HTTP names no other files"));
    parse_any(file, text, choice, &none).map_err(|error| scenario_problem(400, &error))
}

fn scenario_problem(status: u16, error: &ScenarioError) -> Box<Response> {
    let place = error.place.as_ref();
    let more = json!({
        "line": place.map(|place| place.line),
        "column": place.map(|place| place.column),
        "message": error.message,
        "hint": error.hint,
    });
    Box::new(Response::problem_with(status, error.to_string(), more))
}

fn bad(detail: impl Into<String>) -> Box<Response> {
    Box::new(Response::problem(400, detail))
}

impl From<Refusal> for Box<Response> {
    fn from(refusal: Refusal) -> Self {
        let status = match refusal {
            Refusal::Missing(_) => 404,
            Refusal::State(_) => 409,
        };
        Self::new(Response::problem(status, refusal.to_string()))
    }
}

/// Whoever may read may ask for the head alone.
fn method(request: &Request) -> &str {
    if request.method == "HEAD" { "GET" } else { &request.method }
}

fn unknown(request: &Request, parts: &[&str]) -> Box<Response> {
    let allowed = match parts {
        ["commander" | "metrics"] | ["runs", _] | ["runs", _, "results"] => "GET",
        ["scenarios" | "runs"] => "GET, POST",
        ["scenarios", _] => "GET, DELETE",
        ["runs", _, "stop"] => "POST",
        _ => {
            let known = "/commander, /scenarios, /runs and /metrics are there";
            return Box::new(Response::problem(404, format!("{}: {known}", request.path)));
        }
    };
    let detail = format!("{} takes {allowed}, not {}", request.path, request.method);
    Box::new(Response::problem(405, detail).with("Allow", allowed))
}

fn number(text: &str, what: &str) -> Result<u32, Box<Response>> {
    text.parse().map_err(|_| {
        Box::new(Response::problem(404, format!("there is no {what} `{text}`: they have numbers")))
    })
}

/// `NAME=VALUE` of a query; no value that is asked for here has anything to decode.
fn value<'a>(query: &'a str, name: &str) -> Option<&'a str> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(known, _)| *known == name).map(|(_, value)| value).next()
}

fn wait(query: &str) -> Result<Duration, Box<Response>> {
    let Some(text) = value(query, "wait") else { return Ok(Duration::ZERO) };
    let us = units::time(text).map_err(|error| bad(format!("wait: {error}")))?;
    Ok(Duration::from_micros(us).min(WAIT_MAX))
}

fn name(query: &str) -> Result<&str, Box<Response>> {
    let name = value(query, "name").unwrap_or("scenario");
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(bad(format!("a name is 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, -, _ and .")));
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
const NAME_BYTES_MAX: usize = 64;
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
