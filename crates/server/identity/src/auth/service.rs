//! An HTTP service as a provider, asked and understood as EMQX does it.
//!
//! Who is not to ask it now ([`ServiceQueue`]) goes on to the next provider at once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::acl_claim::ReadRules;
use super::cache::{Digest, ProofCache};
use super::fair_queue::{Asks, FairQueue};
use super::fetch::{self, AskError, Client, Content, Reply, members_of_form};
use super::jwt::{CLIENT_ATTRS, attributes_of};
use super::pace::{Attempt, Pace};
use super::request::{Requests, Unfit, client};
use super::service_queue::{Ready, ServiceQueue, UnderWay};
use super::template::value_of;
use super::{AuthRequest, Later, Opinion, Proof, Step, acl_claim, lock};
use crate::json;
use base::Clock;
use config::{Auth, HttpConfig};
use driver::Origin;

/// Asks a service who a client is.
pub(super) struct Service {
    shared: Arc<Shared>,
}

impl super::Authenticator {
    /// Of each service that is asked over HTTP: its name, how many requests have failed since its
    /// last answer, and why the latest did.
    pub fn faults_of_services(&self) -> Vec<(String, u32, String)> {
        let of = |(name, kind): &(String, super::ProviderKind)| {
            let super::ProviderKind::Http(service) = kind else { return None };
            let (faults, why) = service.faults();
            Some((name.clone(), faults, why))
        };
        self.parts.providers.iter().filter_map(of).collect()
    }
}

struct Shared {
    requests: Requests,
    client: Client,
    handle: Handle,
    clock: Clock,
    queue: ServiceQueue<Question>,
    cache: Mutex<ProofCache>,
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
        let requests_max = config.requests_max as usize;
        let questions = FairQueue::new(step, auth.queue_max as usize, requests_max, pace);
        let shared = Shared {
            requests: Requests::new(config)?,
            client: client(config)?,
            handle: handle.clone(),
            clock,
            queue: ServiceQueue::new(name, questions),
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
        if cannot_send(&shared.requests.config, request) {
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
        let ticket = request.ticket;
        let question = Question { request, asked, digest, attempt, later };
        let Ok(crowded_out) = shared.queue.put(ticket, question) else {
            return Some(Opinion::Down);
        };
        if let Some(question) = crowded_out {
            (question.later)(Opinion::Busy);
        }
        shared.pump();
        None
    }

    pub(super) fn forget(&self, origin: Origin, ticket: u64) {
        drop(self.shared.queue.forget((0, origin), ticket));
    }

    /// A log-in has ended: another may begin.
    pub(super) fn wake(&self) {
        self.shared.pump();
    }

    /// Requests that have failed since the last answer, and why the latest did.
    pub(super) fn faults(&self) -> (u32, String) {
        self.shared.queue.faults()
    }

    /// Forgets the answers that are remembered. Returns how many bytes they took.
    pub(super) fn clear(&self) -> usize {
        lock(&self.shared.cache).clear()
    }

    /// What waits is answered; nothing is asked any more.
    pub(super) fn close(&self) {
        for question in self.shared.queue.close() {
            (question.later)(Opinion::Busy);
        }
    }
}

impl Shared {
    /// Err: what the client shows cannot be sent.
    fn question(&self, request: &AuthRequest) -> Result<fetch::Question, Opinion> {
        self.requests.question(|name| value_of(request, name)).map_err(|unfit| match unfit {
            Unfit::Missing => Opinion::NotMine,
            Unfit::Value(why) => Opinion::No(why),
        })
    }

    /// Asks what may be asked now.
    fn pump(self: &Arc<Self>) {
        loop {
            let shared = self.clone();
            match self.queue.next() {
                Ready::Ask(question, under_way) => {
                    self.handle.spawn(async move { shared.run(question, under_way).await });
                }
                Ready::LookAt(due) => {
                    self.handle.spawn(async move {
                        tokio::time::sleep_until(due.into()).await;
                        shared.queue.note_look();
                        shared.pump();
                    });
                    return;
                }
                Ready::Nothing => return,
            }
        }
    }

    /// From what is remembered; it has been tried then.
    fn remembered(&self, digest: &Digest, attempt: &Attempt, now: Instant) -> Option<Proof> {
        attempt.note_tried();
        lock(&self.cache).get(digest, now)
    }

    async fn run(self: Arc<Self>, question: Question, under_way: UnderWay) {
        let origin = question.attempt.origin;
        let known = self.remembered(&question.digest, &question.attempt, Instant::now());
        if let Some(proof) = known {
            self.queue.end_unasked(&under_way);
            (question.later)(Opinion::Yes(proof));
            return self.pump();
        }
        let generation = lock(&self.cache).generation();
        let reply = self.client.ask(&question.asked).await;
        let max_age = reply.as_ref().ok().and_then(|reply| reply.max_age_secs);
        let judged = match &reply {
            Ok(reply) => {
                judge(&self.requests.config, reply, &question.request, self.clock.wall_secs())
                    .unwrap_or_else(|why| self.on_fault(&why, Opinion::Unclear).into())
            }
            Err(AskError::Broken(why)) => self.on_fault(why, Opinion::Unclear).into(),
            Err(AskError::Unreachable(_, why)) => self.on_fault(why, Opinion::Down).into(),
        };
        let Judged { opinion, holds_for_same_fields } = judged;
        let now = Instant::now();
        for other in self.queue.end(&under_way, fetch::fault_of(&reply)) {
            (other.later)(Opinion::Down);
        }
        if let Opinion::Yes(proof) = &opinion {
            let lifetime = max_age.unwrap_or(self.requests.config.cache_secs);
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
        self.queue.log_fault(why);
        opinion
    }
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
        Content::Json => json::read(&reply.body)
            .map_err(|error| format!("the answer of the service must be a JSON object: {error}"))?,
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
