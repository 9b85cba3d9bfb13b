//! What clients may do, asked of an HTTP service for each action, as EMQX does it.
//!
//! The service is asked what no access rule decides, about one action of a connection at a time.
//! The shard remembers its answers (`broker`, `clients/verdicts.rs`). Each question is answered
//! once, whatever happens: what cannot be asked has failed, and that denies.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use broker::{AccessQuestion, ServiceAnswer};
use config::AuthorizationConfig;
use config::template::ATTRIBUTES;
use driver::Origin;
use hyper::StatusCode;
use serde_json::{Map, Value};
use tokio::runtime::Handle;

use super::AuthError;
use super::Step;
use super::fair_queue::{Asks, FairQueue};
use super::fetch::{self, AskError, Client, Content, Net, Reply, members_of_form};
use super::pace::{Attempt, Pace};
use super::request::{Requests, Unfit, client};
use super::service_queue::{Ready, ServiceQueue, UnderWay};
use crate::json;

/// Takes the answer, on whatever thread has it. It should only put it somewhere.
pub type VerdictTaker = Box<dyn FnOnce(ServiceAnswer) + Send>;

/// Asks the authorization service. Dropping it ends its thread; what waits has failed.
pub struct Authorizer {
    shared: Arc<Shared>,
    /// Questions so far.
    last: AtomicU64,
    _net: Net,
}

struct Shared {
    requests: Requests,
    client: Client,
    handle: Handle,
    queue: ServiceQueue<Waiting>,
    /// Those who ask are paced by what they wait for, and never for failures.
    pace: Arc<Mutex<Pace>>,
    /// Makes numbers of client IDs.
    clients: RandomState,
}

struct Waiting {
    asked: fetch::Question,
    attempt: Attempt,
    tenant: u16,
    taker: Taker,
}

/// Answers once; if nobody does, the question has failed.
struct Taker(Option<VerdictTaker>);

impl Asks for Waiting {
    fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    fn tenant(&self) -> u16 {
        self.tenant
    }
}

impl Taker {
    fn answer(mut self, answer: ServiceAnswer) {
        if let Some(take) = self.0.take() {
            take(answer);
        }
    }
}

impl Drop for Taker {
    fn drop(&mut self) {
        if let Some(take) = self.0.take() {
            take(ServiceAnswer::Failed);
        }
    }
}

impl Authorizer {
    /// # Errors
    ///
    /// Authorities that cannot be read, or no thread.
    pub fn start(config: &AuthorizationConfig) -> Result<Self, AuthError> {
        let fail = |detail| AuthError::Provider { name: NAME.into(), detail };
        let net = Net::start().map_err(|error| fail(error.to_string()))?;
        let pace = Arc::new(Mutex::new(Pace::new(0)));
        let requests_max = config.service.requests_max as usize;
        // Each connection waits for one at most, and none is asked for who is gone: so there are no
        // more than connections. Without a pace it does not matter which step it is.
        let questions = FairQueue::new(Step::File, usize::MAX, requests_max, &pace);
        let shared = Shared {
            requests: Requests::new(&config.service).map_err(fail)?,
            client: client(&config.service).map_err(fail)?,
            handle: net.handle().clone(),
            queue: ServiceQueue::new(NAME, questions),
            pace,
            clients: RandomState::new(),
        };
        Ok(Self { shared: Arc::new(shared), last: AtomicU64::new(0), _net: net })
    }

    /// Can it be asked? For the check of a configuration.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn check(config: &AuthorizationConfig) -> Result<(), AuthError> {
        let fail = |detail| AuthError::Provider { name: NAME.into(), detail };
        client(&config.service).map(drop).map_err(fail)
    }

    /// Requests that have failed since the last answer, and why the latest did.
    pub fn faults(&self) -> (u32, String) {
        self.shared.queue.faults()
    }

    /// Asks whether a client may do something. `taker` is called once. Nothing is done here but to
    /// hand the question over: a worker asks.
    pub fn ask(&self, question: AccessQuestion, namespace: String, taker: VerdictTaker) -> Asked {
        let (shared, taker) = (self.shared.clone(), Taker(Some(taker)));
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let origin = address_of(&question.peer).map_or(Origin::Local, Origin::of);
        let asked = Asked { tenant: question.scope.number(), origin, number };
        let take = async move { shared.take(&question, &namespace, (asked, taker)) };
        self.shared.handle.spawn(take);
        asked
    }

    /// Who asked is gone: what waits is not asked.
    pub fn forget(&self, asked: Asked) {
        let shared = self.shared.clone();
        let Asked { tenant, origin, number } = asked;
        let forget = async move { drop(shared.queue.forget((tenant, origin), number)) };
        self.shared.handle.spawn(forget);
    }
}

/// A question, for [`Authorizer::forget`].
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    tenant: u16,
    origin: Origin,
    number: u64,
}

impl Drop for Authorizer {
    fn drop(&mut self) {
        drop(self.shared.queue.close());
    }
}

impl Shared {
    fn take(
        self: &Arc<Self>,
        question: &AccessQuestion,
        namespace: &str,
        (own, taker): (Asked, Taker),
    ) {
        let host =
            address_of(&question.peer).map(|ip| ip.to_canonical().to_string()).unwrap_or_default();
        let value = |name: &str| value_of(question, namespace, &host, name);
        let asked = match self.requests.question(value) {
            Ok(asked) => asked,
            Err(unfit) => {
                let why = match unfit {
                    Unfit::Missing => "a placeholder in the path of `url` has no value",
                    Unfit::Value(_) => "a value cannot be sent in the path or a header",
                };
                let client_id = base::shown(&question.client_id);
                tracing::debug!(client_id = &*client_id, detail = why, "denied without a request");
                return taker.answer(ServiceAnswer::Failed);
            }
        };
        let client = self.clients.hash_one((own.tenant, &question.client_id));
        let attempt = Attempt::new(&self.pace, own.origin, client);
        let waiting = Waiting { asked, attempt, tenant: own.tenant, taker };
        // What is not asked has failed.
        drop(self.queue.put(own.number, waiting));
        self.pump();
    }

    /// Asks what may be asked now. Nothing here waits for a pace, so each end of a question is the
    /// next time to look.
    fn pump(self: &Arc<Self>) {
        while let Ready::Ask(waiting, under_way) = self.queue.next() {
            let shared = self.clone();
            self.handle.spawn(async move { shared.run(waiting, under_way).await });
        }
    }

    async fn run(self: Arc<Self>, waiting: Waiting, under_way: UnderWay) {
        let reply = self.client.ask(&waiting.asked).await;
        let judged = match &reply {
            Ok(reply) => judge(reply),
            Err(AskError::Broken(why) | AskError::Unreachable(_, why)) => Err(why.clone()),
        };
        let answer = judged.unwrap_or_else(|why| {
            self.queue.log_fault(&why);
            ServiceAnswer::Failed
        });
        drop(self.queue.end(&under_way, fetch::fault_of(&reply)));
        waiting.taker.answer(answer);
        self.pump();
    }
}

fn address_of(peer: &str) -> Option<IpAddr> {
    peer.parse().ok().map(|peer: SocketAddr| peer.ip())
}

/// What stands for a name of [`config::template::ACTION_NAMES`], or for an attribute.
fn value_of(question: &AccessQuestion, namespace: &str, host: &str, name: &str) -> Option<String> {
    let action = if question.publishes { "publish" } else { "subscribe" };
    match name {
        "username" => question.username.as_deref().map(Into::into),
        "clientid" => Some(question.client_id.to_string()),
        "peerhost" => Some(host.to_owned()),
        "proto_name" => Some("MQTT".into()),
        "action" => Some(action.into()),
        "topic" => Some(question.topic.to_string()),
        "qos" => Some(question.qos.to_string()),
        // EMQX has none for a subscription.
        "retain" => question.publishes.then(|| question.retain.to_string()),
        "namespace" => Some(namespace.to_owned()),
        name => {
            let value = question.attributes.get(name.strip_prefix(ATTRIBUTES)?)?;
            match value.texts().as_slice() {
                [text] => Some(text.clone()),
                // A list is many values, and none of them alone.
                _ => None,
            }
        }
    }
    .filter(|value| !value.is_empty())
}

/// What an answer means. Err: it is none.
fn judge(reply: &Reply) -> Result<ServiceAnswer, String> {
    match reply.status {
        StatusCode::NO_CONTENT => return Ok(ServiceAnswer::Allow),
        StatusCode::OK => {}
        status => return Err(format!("the service answered with status {status}")),
    }
    let answer: Map<String, Value> = match reply.content {
        Content::Json => json::read(&reply.body)
            .map_err(|error| format!("the answer of the service must be a JSON object: {error}"))?,
        Content::Form => members_of_form(&reply.body)
            .ok_or("the answer of the service must be a form".to_owned())?,
        Content::Other => return Err("the answer of the service must be JSON or a form".into()),
    };
    match answer.get("result").map(|result| (result.as_str(), result)) {
        Some((Some("allow"), _)) => Ok(ServiceAnswer::Allow),
        Some((Some("deny"), _)) => Ok(ServiceAnswer::Deny),
        Some((Some("ignore"), _)) => Ok(ServiceAnswer::Ignore),
        Some((_, result)) => Err(format!("the service answered with the unknown result {result}")),
        None => Err("the answer of the service has no `result`".into()),
    }
}

/// Of the service, in logs.
const NAME: &str = "authorization";

#[cfg(test)]
mod tests;
