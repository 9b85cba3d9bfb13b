//! An HTTP service as a provider, asked and understood as EMQX does it.
//!
//! So many requests are under way at most; others wait in a lane for each origin. After some faults
//! in a row the service is left alone for a while, and who comes meanwhile goes on to the next
//! provider at once: a service that is down costs its clients no time-out each.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::cache::{Digest, ProofCache};
use super::fetch::{self, Client, Reply, percent_encoded};
use super::jwt::attributes_of;
use super::lanes::{Asks, Lanes, Next};
use super::pace::Pace;
use super::template::value_of;
use super::{AuthRequest, Later, Opinion, Proof, acl_claim, lock};
use crate::config::{Auth, BodyForm, HttpConfig};
use crate::run::Clock;
use driver::Origin;

/// Faults in a row after which the service is left alone, and for how long.
const FAULTS_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_secs(5);

/// How often a fault is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// Asks a service who a client is.
pub(super) struct Service {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    config: HttpConfig,
    client: Client,
    handle: Handle,
    clock: Clock,
    queue: Mutex<Queue>,
    cache: Mutex<ProofCache>,
    /// Makes numbers of user names.
    users: RandomState,
}

struct Queue {
    questions: Lanes<Question>,
    under_way: u32,
    /// A task sleeps until then, and looks whether a question may be asked.
    looks_at: Option<Instant>,
    breaker: Breaker,
    told_at: Option<Instant>,
    is_closed: bool,
}

/// Leaves a service alone that does not answer.
#[derive(Debug, Default)]
struct Breaker {
    faults: u32,
    open_until: Option<Instant>,
}

struct Question {
    request: Arc<AuthRequest>,
    asked: fetch::Question,
    digest: Digest,
    /// See [`Asks`].
    user: u64,
    later: Later,
}

impl Asks for Question {
    fn user(&self) -> u64 {
        self.user
    }
}

impl Service {
    /// # Errors
    ///
    /// Authorities that cannot be read.
    pub(super) fn new(
        name: &str,
        config: &HttpConfig,
        auth: &Auth,
        handle: &Handle,
        clock: Clock,
    ) -> Result<Self, String> {
        let timeout = Duration::from_secs(config.timeout_secs.into());
        let idle_max = config.requests_max as usize;
        let ca = config.ca.as_deref();
        let pace = Pace::new(auth.failures_per_second_max);
        let queue = Queue {
            questions: Lanes::new(auth.queue_max as usize, pace),
            under_way: 0,
            looks_at: None,
            breaker: Breaker::default(),
            told_at: None,
            is_closed: false,
        };
        let shared = Shared {
            name: name.to_owned(),
            client: Client::new(&config.url, &config.headers, ca, timeout, idle_max)?,
            config: config.clone(),
            handle: handle.clone(),
            clock,
            queue: Mutex::new(queue),
            cache: Mutex::new(ProofCache::new(auth.cache_entries_max as usize)),
            users: RandomState::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(super) fn ask(&self, request: &Arc<AuthRequest>, later: Later) -> Option<Opinion> {
        let shared = &self.shared;
        let asked = shared.question(request);
        let now = Instant::now();
        let digest = {
            let mut cache = lock(&shared.cache);
            let digest = cache.digest(&asked.query, asked.body.as_bytes());
            if let Some(proof) = cache.get(&digest, now) {
                return Some(Opinion::Yes(proof));
            }
            digest
        };
        let user = shared.users.hash_one(&request.username);
        let (origin, ticket) = (request.origin, request.ticket);
        let question = Question { request: request.clone(), asked, digest, user, later };
        let crowded_out = {
            let mut queue = lock(&shared.queue);
            if queue.is_closed || !queue.breaker.lets_through(now) {
                return Some(Opinion::Down);
            }
            queue.questions.put(origin, ticket, question)
        };
        if let Some(question) = crowded_out {
            (question.later)(Opinion::Busy);
        }
        shared.pump();
        None
    }

    pub(super) fn forget(&self, origin: Origin, ticket: u64) {
        drop(lock(&self.shared.queue).questions.forget(origin, ticket));
    }

    /// What was remembered may not hold any more.
    pub(super) fn clear(&self) {
        lock(&self.shared.cache).clear();
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
    fn question(&self, request: &AuthRequest) -> fetch::Question {
        let config = &self.config;
        let fields = config
            .body
            .iter()
            .map(|(name, template)| (name, template.fill_or_empty(|name| value_of(request, name))));
        let form = || {
            let pairs = fields.clone().map(|(name, value)| {
                format!("{}={}", percent_encoded(name), percent_encoded(&value))
            });
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
        fetch::Question { is_get: config.is_get, query, content_type, body }
    }

    /// Asks what may be asked now.
    fn pump(self: &Arc<Self>) {
        loop {
            let mut queue = lock(&self.queue);
            if queue.is_closed || queue.under_way >= self.config.requests_max {
                return;
            }
            match queue.questions.take(Instant::now()) {
                Next::Item(origin, question) => {
                    queue.under_way += 1;
                    drop(queue);
                    let shared = self.clone();
                    self.handle.spawn(async move { shared.run(origin, question).await });
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

    async fn run(self: Arc<Self>, origin: Origin, question: Question) {
        let reply = self.client.ask(&question.asked).await;
        let max_age = reply.as_ref().ok().and_then(|reply| reply.max_age_secs);
        let judged = reply
            .and_then(|reply| self.config.judge(&reply, &question.request, self.clock.wall_secs()));
        let now = Instant::now();
        let left_alone = {
            let mut queue = lock(&self.queue);
            queue.under_way -= 1;
            queue.questions.pace.end(origin, !matches!(judged, Ok(Opinion::No(_))), now);
            match &judged {
                Ok(_) => {
                    queue.breaker.on_answer();
                    Vec::new()
                }
                Err(why) => self.on_fault(&mut queue, why, now),
            }
        };
        for other in left_alone {
            (other.later)(Opinion::Down);
        }
        let opinion = judged.unwrap_or(Opinion::Down);
        if let Opinion::Yes(proof) = &opinion {
            let lifetime = max_age.unwrap_or(self.config.cache_secs);
            let ends = proof
                .expires_at_secs
                .map_or(u64::MAX, |at| at.saturating_sub(self.clock.wall_secs()));
            let lifetime = Duration::from_secs(u64::from(lifetime).min(ends));
            if !lifetime.is_zero() {
                lock(&self.cache).remember(question.digest, proof.clone(), now + lifetime, now);
            }
        }
        (question.later)(opinion);
        self.pump();
    }

    /// Returns those who do not wait any longer.
    fn on_fault(&self, queue: &mut Queue, why: &str, now: Instant) -> Vec<Question> {
        if queue.told_at.is_none_or(|at| now.duration_since(at) >= TOLD_EVERY) {
            queue.told_at = Some(now);
            let why = crate::logging::shown(why);
            tracing::warn!(by = self.name, why = &*why, "cannot ask the authentication service");
        }
        if queue.breaker.on_fault(now) { queue.questions.take_all().collect() } else { Vec::new() }
    }
}

impl Breaker {
    /// After the pause one fault more is enough to close the way again.
    fn lets_through(&mut self, now: Instant) -> bool {
        self.open_until.is_none_or(|until| until <= now)
    }

    fn on_answer(&mut self) {
        *self = Self::default();
    }

    /// True: the service is left alone from now on.
    fn on_fault(&mut self, now: Instant) -> bool {
        self.faults = self.faults.saturating_add(1);
        let is_open = self.faults >= FAULTS_MAX;
        if is_open {
            self.open_until = Some(now + PAUSE);
        }
        is_open
    }
}

impl HttpConfig {
    /// What an answer means. Err: it is none.
    fn judge(
        &self,
        reply: &Reply,
        request: &AuthRequest,
        now_secs: u64,
    ) -> Result<Opinion, String> {
        let proof = Proof { username: request.username.clone(), ..Proof::default() };
        match reply.status {
            StatusCode::NO_CONTENT => return Ok(Opinion::Yes(proof)),
            StatusCode::OK => {}
            status if status.is_client_error() => return Ok(Opinion::NotMine),
            status => return Err(format!("it answers {status}")),
        }
        if !reply.is_json {
            return Err("its answer is not application/json".into());
        }
        let parsed = serde_json::from_slice::<Map<String, Value>>(&reply.body);
        let answer = parsed.map_err(|_| "its answer is no JSON object".to_owned())?;
        match answer.get("result").and_then(Value::as_str) {
            Some("allow") => {}
            Some("deny") => return Ok(Opinion::No("the service denies it".into())),
            Some("ignore") | None => return Ok(Opinion::NotMine),
            Some(other) => return Err(format!("its result is '{other}'")),
        }
        let rules = match self.acl_ignored {
            true => Ok(Arc::default()),
            false => acl_claim::rules_of(&answer, acl_claim::ACL),
        };
        let rules = match rules {
            Ok(rules) => rules,
            Err(why) => return Ok(Opinion::No(why)),
        };
        let expires_at_secs = match answer.get("expire_at") {
            None | Some(Value::Null) => None,
            Some(at) => Some(at.as_u64().ok_or("its expire_at is no time")?),
        };
        if expires_at_secs.is_some_and(|at| at <= now_secs) {
            return Ok(Opinion::No("the service says that it has expired".into()));
        }
        let attributes = attributes_of(answer.get("client_attrs"), std::iter::empty())?;
        let is_superuser = answer.get("is_superuser").and_then(Value::as_bool).unwrap_or(false);
        Ok(Opinion::Yes(Proof { attributes, expires_at_secs, is_superuser, rules, ..proof }))
    }
}

#[cfg(test)]
mod tests;
