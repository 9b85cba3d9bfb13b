//! An HTTP service as a provider, asked and understood as EMQX does it.
//!
//! So many requests are under way at most, of which one address has a part; others wait in a queue
//! for each origin. A service that several addresses could not reach is left alone for a while, and
//! who comes meanwhile goes on to the next provider at once: a service that is down costs its
//! clients no time-out each.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use web::percent_encoded;

use super::acl_claim::ReadRules;
use super::breaker::Breaker;
use super::cache::{Digest, ProofCache};
use super::fair_queue::{Asks, FairQueue, Next};
use super::fetch::{self, AskError, Client, Content, Reply, header_name, members_of_form};
use super::jwt::{CLIENT_ATTRS, attributes_of};
use super::pace::{Attempt, Pace};
use super::template::value_of;
use super::{AuthRequest, Later, Opinion, Proof, Step, acl_claim, lock};
use base::Clock;
use config::template::{NAMES, Template};
use config::{Auth, BodyForm, HttpConfig};
use driver::Origin;

/// How often a fault is logged.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Asks a service who a client is.
pub(super) struct Service {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    config: HttpConfig,
    /// Those with placeholders.
    headers: Vec<(HeaderName, Template)>,
    client: Client,
    handle: Handle,
    clock: Clock,
    queue: Mutex<Queue>,
    cache: Mutex<ProofCache>,
}

struct Queue {
    questions: FairQueue<Question>,
    /// A task sleeps until then, and looks whether a question may be asked.
    looks_at: Option<Instant>,
    breaker: Breaker,
    logged_at: Option<Instant>,
    is_closed: bool,
}

struct Question {
    request: Arc<AuthRequest>,
    asked: fetch::Question,
    digest: Digest,
    attempt: Arc<Attempt>,
    later: Later,
}

impl Asks for Question {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }
}

impl Service {
    /// # Errors
    ///
    /// Authorities that cannot be read.
    pub(super) fn new(
        (name, step): (&str, Step),
        config: &HttpConfig,
        auth: &Auth,
        pace: &Arc<Mutex<Pace>>,
        handle: &Handle,
        clock: Clock,
    ) -> Result<Self, String> {
        let idle_max = config.requests_max as usize;
        let queue = Queue {
            questions: FairQueue::new(step, auth.queue_max as usize, idle_max, pace),
            looks_at: None,
            breaker: Breaker::default(),
            logged_at: None,
            is_closed: false,
        };
        let shared = Shared {
            name: name.to_owned(),
            client: client(config)?,
            headers: headers_of(config)?,
            config: config.clone(),
            handle: handle.clone(),
            clock,
            queue: Mutex::new(queue),
            cache: Mutex::new(ProofCache::new(auth.cache_entries_max as usize)),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn ask(
        &self,
        request: &Arc<AuthRequest>,
        attempt: &Arc<Attempt>,
        later: Later,
    ) -> Option<Opinion> {
        let shared = &self.shared;
        if cannot_send(&shared.config, request) {
            return Some(Opinion::No(
                "the password must be UTF-8 text to be sent to the service".into(),
            ));
        }
        let asked = match shared.question(request) {
            Ok(asked) => asked,
            Err(opinion) => return Some(opinion),
        };
        let now = Instant::now();
        let digest = lock(&shared.cache).digest(&asked.target, &said_in(&asked));
        if attempt.has_begun()
            && let Some(proof) = shared.remembered(&digest, attempt, now)
        {
            return Some(Opinion::Yes(proof));
        }
        let (request, attempt) = (request.clone(), attempt.clone());
        let (origin, ticket) = (request.origin, request.ticket);
        let question = Question { request, asked, digest, attempt, later };
        let crowded_out = {
            let mut queue = lock(&shared.queue);
            if queue.is_closed || !queue.breaker.lets_through(origin, now) {
                return Some(Opinion::Down);
            }
            queue.questions.put(ticket, question)
        };
        if let Some(question) = crowded_out {
            (question.later)(Opinion::Busy);
        }
        shared.pump();
        None
    }

    pub(super) fn forget(&self, origin: Origin, ticket: u64) {
        let gone = lock(&self.shared.queue).questions.forget(origin, ticket);
        drop(gone);
    }

    /// A log-in has ended: another may begin.
    pub(super) fn wake(&self) {
        self.shared.pump();
    }

    /// Forgets the answers that are remembered. Returns how many bytes they took.
    pub(super) fn clear(&self) -> usize {
        lock(&self.shared.cache).clear()
    }

    /// What waits is answered; nothing is asked any more.
    pub(super) fn close(&self) {
        let waiting = {
            let mut queue = lock(&self.shared.queue);
            queue.is_closed = true;
            queue.questions.take_all()
        };
        for question in waiting {
            (question.later)(Opinion::Busy);
        }
    }
}

impl Shared {
    /// Err: what the client shows cannot be sent.
    fn question(&self, request: &AuthRequest) -> Result<fetch::Question, Opinion> {
        let config = &self.config;
        let mut target = path_of(config, request)?;
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            headers.insert(name, header_of(name, template, request)?);
        }
        let fields = config
            .body
            .iter()
            .map(|(name, template)| (name, template.fill_or_empty(|name| value_of(request, name))));
        let form = || {
            let pairs = fields
                .clone()
                .map(|(name, value)| format!("{}={}", form_encoded(name), form_encoded(&value)));
            pairs.collect::<Vec<_>>().join("&")
        };
        let json = || {
            let members = fields.clone().map(|(name, value)| (name.clone(), Value::String(value)));
            Value::Object(members.collect::<Map<_, _>>()).to_string()
        };
        let (query, body, content_type) = match (config.is_get, config.form) {
            (true, _) => (form(), String::new(), ""),
            (false, BodyForm::Json) => (String::new(), json(), "application/json"),
            (false, BodyForm::Form) => (String::new(), form(), "application/x-www-form-urlencoded"),
        };
        let encoded = |name: &str| value_of(request, name).map(|value| form_encoded(&value));
        let queries = [config.query.fill_or_empty(encoded), query];
        let queries = queries.iter().filter(|query| !query.is_empty());
        for (query, sign) in queries.zip(['?', '&']) {
            target.push(sign);
            target.push_str(query);
        }
        Ok(fetch::Question { is_get: config.is_get, target, headers, content_type, body })
    }

    /// Asks what may be asked now.
    fn pump(self: &Arc<Self>) {
        loop {
            let mut queue = lock(&self.queue);
            if queue.is_closed {
                return;
            }
            match queue.questions.take(Instant::now()) {
                Next::Item(question) => {
                    drop(queue);
                    let shared = self.clone();
                    self.handle.spawn(async move { shared.run(question).await });
                }
                Next::Later(Some(due)) if queue.looks_at.is_none_or(|at| due < at) => {
                    queue.looks_at = Some(due);
                    drop(queue);
                    let shared = self.clone();
                    self.handle.spawn(async move {
                        tokio::time::sleep_until(due.into()).await;
                        lock(&shared.queue).looks_at = None;
                        shared.pump();
                    });
                    return;
                }
                Next::Later(_) => return,
            }
        }
    }

    /// From what is remembered; it has been tried then.
    fn remembered(&self, digest: &Digest, attempt: &Attempt, now: Instant) -> Option<Proof> {
        attempt.note_tried();
        lock(&self.cache).get(digest, now)
    }

    async fn run(self: Arc<Self>, question: Question) {
        let origin = question.attempt.origin;
        let known = self.remembered(&question.digest, &question.attempt, Instant::now());
        if let Some(proof) = known {
            lock(&self.queue).questions.end(origin);
            (question.later)(Opinion::Yes(proof));
            return self.pump();
        }
        let (asked_at, generation) = (Instant::now(), lock(&self.cache).generation());
        let reply = self.client.ask(&question.asked).await;
        let max_age = reply.as_ref().ok().and_then(|reply| reply.max_age_secs);
        let judged = match &reply {
            Ok(reply) => judge(&self.config, reply, &question.request, self.clock.wall_secs())
                .unwrap_or_else(|why| self.on_fault(&why, Opinion::Unclear).into()),
            Err(AskError::Broken(why)) => self.on_fault(why, Opinion::Unclear).into(),
            Err(AskError::Unreachable(why)) => self.on_fault(why, Opinion::Down).into(),
        };
        let Judged { opinion, holds_for_same_fields } = judged;
        let now = Instant::now();
        let left_alone: Vec<_> = {
            let mut queue = lock(&self.queue);
            queue.questions.end(origin);
            let opens = match &reply {
                Err(AskError::Unreachable(_)) => queue.breaker.on_fault(origin, asked_at, now),
                // Whatever it says to this one, it is there for others.
                _ => {
                    queue.breaker.on_answer(now);
                    false
                }
            };
            if opens { queue.questions.take_all().collect() } else { Vec::new() }
        };
        for other in left_alone {
            (other.later)(Opinion::Down);
        }
        if let Opinion::Yes(proof) = &opinion {
            let lifetime = max_age.unwrap_or(self.config.cache_secs);
            let ends = proof
                .expires_at_secs
                .map_or(u64::MAX, |at| at.saturating_sub(self.clock.wall_secs()));
            let lifetime = Duration::from_secs(u64::from(lifetime).min(ends));
            if !lifetime.is_zero() && holds_for_same_fields {
                let asker = (origin, question.attempt.user);
                let answer = (proof.clone(), asker);
                let mut cache = lock(&self.cache);
                // One from before a reload says what was true then.
                if cache.generation() == generation {
                    cache.remember(question.digest, answer, now + lifetime, now);
                }
            }
        }
        (question.later)(opinion);
        self.pump();
    }

    fn on_fault(&self, why: &str, opinion: Opinion) -> Opinion {
        let now = Instant::now();
        let mut queue = lock(&self.queue);
        if queue.logged_at.is_none_or(|at| now.duration_since(at) >= TOLD_EVERY) {
            queue.logged_at = Some(now);
            let why = base::shown(why);
            tracing::warn!(
                provider = self.name,
                detail = &*why,
                "request to the authentication \
            service failed"
            );
        }
        opinion
    }
}

/// Asks the service. Also for the check of a configuration.
pub(super) fn client(config: &HttpConfig) -> Result<Client, String> {
    let timeout = Duration::from_secs(config.timeout_secs.into());
    let idle_max = config.requests_max as usize;
    headers_of(config)?;
    let headers = config.headers.iter();
    let headers = headers.filter_map(|(name, text)| Some((name.as_str(), text.plain()?)));
    let headers: Vec<_> = headers.collect();
    Client::new(&config.url, &headers, config.ca.as_deref(), timeout, idle_max)
}

/// Those with placeholders.
fn headers_of(config: &HttpConfig) -> Result<Vec<(HeaderName, Template)>, String> {
    let filled = config.headers.iter().filter(|(_, text)| text.plain().is_none());
    filled.map(|(name, text)| Ok((header_name(name)?, text.clone()))).collect()
}

/// The path with what is put in. A value is a part of one segment: services decode what is encoded,
/// and proxies leave out `..`, so another path could be asked than was meant.
fn path_of(config: &HttpConfig, request: &AuthRequest) -> Result<String, Opinion> {
    let is_part = |value: &String| !value.contains(['/', '\\']);
    let names = || NAMES.into_iter().filter(|name| config.path.names(name));
    if names().any(|name| value_of(request, name).is_none()) {
        // There is nothing of it that the service could know.
        return Err(Opinion::NotMine);
    }
    let encoded = |name: &str| value_of(request, name).filter(is_part).map(|it| form_encoded(&it));
    let is_step = |segment: &str| matches!(segment, "." | "..");
    let path = config.path.fill(encoded).filter(|path| !path.split('/').any(is_step));
    path.ok_or_else(|| {
        Opinion::No("a value for the path of `url` has '/', or is '.' or '..'".into())
    })
}

/// What is at its ends would be lost, and two names could be one.
fn header_of(
    name: &HeaderName,
    template: &Template,
    request: &AuthRequest,
) -> Result<HeaderValue, Opinion> {
    let text = template.fill_or_empty(|name| value_of(request, name));
    let value = HeaderValue::from_bytes(text.as_bytes()).ok();
    value.filter(|_| text.trim() == text).ok_or_else(|| {
        Opinion::No(format!(
            "a value for the header '{name}' has a control character or outer spaces"
        ))
    })
}

/// What of a question tells it from others, beside its target.
fn said_in(question: &fetch::Question) -> Vec<u8> {
    let mut said = Vec::new();
    for (name, value) in &question.headers {
        for part in [name.as_str().as_bytes(), value.as_bytes()] {
            said.extend_from_slice(&(part.len() as u64).to_be_bytes());
            said.extend_from_slice(part);
        }
    }
    said.extend_from_slice(question.body.as_bytes());
    said
}

/// With replacement characters, different passwords would be one.
fn cannot_send(config: &HttpConfig, request: &AuthRequest) -> bool {
    config.sends("password")
        && request.password.as_deref().is_some_and(|it| str::from_utf8(it).is_err())
}

/// What an answer means.
#[derive(Debug, PartialEq)]
struct Judged {
    opinion: Opinion,
    /// It holds for whoever sends the same, and may be remembered.
    holds_for_same_fields: bool,
}

impl From<Opinion> for Judged {
    fn from(opinion: Opinion) -> Self {
        Self { opinion, holds_for_same_fields: true }
    }
}

/// What an answer means. Err: it is none.
fn judge(
    config: &HttpConfig,
    reply: &Reply,
    request: &AuthRequest,
    now_secs: u64,
) -> Result<Judged, String> {
    let proof = Proof { username: request.username.clone(), ..Proof::default() };
    match reply.status {
        StatusCode::NO_CONTENT => return Ok(Opinion::Yes(proof).into()),
        StatusCode::OK => {}
        status if status.is_client_error() => return Ok(Opinion::NotMine.into()),
        status => return Err(format!("the service answered with status {status}")),
    }
    let answer: Map<String, Value> = match reply.content {
        Content::Json => serde_json::from_slice(&reply.body)
            .map_err(|_| "the answer of the service must be a JSON object".to_owned())?,
        Content::Form => members_of_form(&reply.body).ok_or(
            "the answer of the service must be a \
        form",
        )?,
        Content::Other => return Err("the answer of the service must be JSON or a form".into()),
    };
    let Some(result) = answer.get("result") else { return Ok(Opinion::NotMine.into()) };
    match result.as_str() {
        Some("allow") => {}
        Some("deny") => return Ok(Opinion::No("the service denied the login".into()).into()),
        Some("ignore") => return Ok(Opinion::NotMine.into()),
        _ => return Err(format!("the service answered with the unknown result {result}")),
    }
    let subject = request.subject(request.username.as_deref());
    let read = match config.acl_ignored {
        true => Ok(ReadRules::default()),
        false => acl_claim::rules_of(&answer, acl_claim::ACL, subject),
    };
    let ReadRules { rules, asks_client_id, asks_common_name } = match read {
        Ok(read) => read,
        Err(why) => return Ok(Opinion::No(why).into()),
    };
    let expires_at_secs = match answer.get("expire_at") {
        None | Some(Value::Null) => None,
        // All that a form has is text.
        Some(Value::String(at)) if reply.content == Content::Form => Some(
            at.parse().map_err(|_| "`expire_at` in the answer of the service must be a time")?,
        ),
        Some(at) => Some(at.as_u64().ok_or(
            "`expire_at` in the answer of the service must be a \
        time",
        )?),
    };
    if expires_at_secs.is_some_and(|at| at <= now_secs) {
        let why = "`expire_at` in the answer of the service is in the past";
        return Ok(Opinion::No(why.into()).into());
    }
    let attributes = match attributes_of(answer.get(CLIENT_ATTRS), std::iter::empty()) {
        Ok(attributes) => attributes,
        Err(why) => return Ok(Opinion::No(why).into()),
    };
    let Some(is_superuser) = flag_of(answer.get("is_superuser")) else {
        return Ok(Opinion::No(
            "`is_superuser` in the answer of the service must be true or false".into(),
        )
        .into());
    };
    let holds_for_same_fields = (!asks_client_id || config.sends("clientid"))
        && (!asks_common_name || config.sends("cert_common_name"));
    let proof = Proof { attributes, expires_at_secs, is_superuser, rules, ..proof };
    Ok(Judged { opinion: Opinion::Yes(proof), holds_for_same_fields })
}

/// A form needs no escape of dots, which `percent_encoded` makes for paths.
fn form_encoded(text: &str) -> String {
    percent_encoded(text).replace("%2E", ".")
}

/// As services write it for EMQX. None: neither yes nor no.
fn flag_of(value: Option<&Value>) -> Option<bool> {
    let (number, text) = (value.and_then(Value::as_u64), value.and_then(Value::as_str));
    match (value, number, text) {
        (None | Some(Value::Null | Value::Bool(false)), ..) => Some(false),
        (_, Some(0), _) | (.., Some("false" | "0" | "")) => Some(false),
        (Some(Value::Bool(true)), ..) | (_, Some(1), _) | (.., Some("true" | "1")) => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
