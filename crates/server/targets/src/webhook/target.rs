//! The webhook target: requests of a batch, and what their answers mean.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use tokio::sync::{Mutex, mpsc};

use super::client::{Client, ExchangeError};
use super::settings::{Location, Settings, SettingsError, Validation, is_free};
use super::sign::sign;
use super::validation::{ask_event_grid, consent};
use super::verdict::{Now, Verdict};
use crate::batch::{Answers, Batch, Full as QueueFull, Outcome, Record, Target, keep_order};
use crate::dial::{Dialer, Resolve};
use crate::jobs::{Job, Jobs, work_off};
use crate::threads::Threads;

/// An HTTP endpoint as a target.
pub struct Webhook {
    jobs: Jobs,
}

struct Worker {
    settings: Settings,
    location: Location,
    names: Vec<HeaderName>,
    client: Client,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_validated: bool,
    /// When the endpoint last did not consent, and why.
    refused: Option<(Instant, Arc<str>)>,
    /// The endpoint wants nothing any more.
    gone: Option<Arc<str>>,
    /// The least time between two requests, and when the next one may begin.
    interval: Option<Duration>,
    next_at: Option<Instant>,
}

impl Webhook {
    /// Starts the target on a thread of `threads`. `answers` gets an answer for each batch.
    ///
    /// # Errors
    ///
    /// A setting is not valid. An endpoint that is away is no error here.
    pub fn start(
        threads: &Threads,
        settings: Settings,
        resolver: Arc<dyn Resolve>,
        answers: Answers,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let (location, names) = (settings.location()?, settings.header_names()?);
        let tls = location.is_tls.then(|| settings.tls.clone());
        let time_max = settings.request_time_max;
        let client = Client {
            dialer: Dialer::new(resolver, settings.networks.clone(), tls, time_max),
            host: location.host.clone(),
            port: location.port,
            time_max,
            idle: std::sync::Mutex::default(),
        };
        let state = Mutex::default();
        let worker = Arc::new(Worker { settings, location, names, client, state });
        let (jobs, queue) = Jobs::new(answers);
        threads.handle().spawn(run(queue, worker));
        Ok(Self { jobs })
    }
}

impl Target for Webhook {
    fn send(&self, batch: Batch) -> Result<(), QueueFull> {
        self.jobs.put(batch)
    }
}

async fn run(jobs: mpsc::Receiver<Job>, worker: Arc<Worker>) {
    let requests_max = worker.settings.requests_max;
    let send = |job| {
        let worker = Arc::clone(&worker);
        async move { worker.send(job).await }
    };
    work_off(jobs, requests_max, send).await;
}

impl Worker {
    async fn send(&self, mut job: Job) {
        if let Err(reason) = self.await_consent().await {
            return job.answer_all(Outcome::Unavailable(reason));
        }
        job.begin();
        let mut outcomes = match self.settings.is_batched {
            true => self.send_together(&job.batch.records).await,
            false => self.send_each(&job.batch.records).await,
        };
        keep_order(&job.batch.records, &mut outcomes);
        job.answer(outcomes);
    }

    /// Nothing is sent behind a record without a decision.
    async fn send_each(&self, records: &[Record]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(records.len());
        for record in records {
            let outcome = match headers_of(record) {
                Ok(headers) => self.post(record.value.clone(), headers).await.of_record(),
                Err(reason) => Outcome::Refused(reason),
            };
            let is_open = outcome.is_open();
            outcomes.push(outcome);
            if is_open {
                break;
            }
        }
        let rest = match outcomes.last() {
            Some(Outcome::Unknown(_)) => Outcome::Unknown(NOT_SENT.into()),
            Some(other) => other.clone(),
            None => Outcome::Unavailable(NOT_SENT.into()),
        };
        outcomes.resize(records.len(), rest);
        outcomes
    }

    async fn send_together(&self, records: &[Record]) -> Vec<Outcome> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, BATCH);
        let verdict = self.post(joined(records), headers).await;
        let outcome = if records.len() == 1 { verdict.of_record() } else { verdict.of_group() };
        vec![outcome; records.len()]
    }

    async fn post(&self, body: Bytes, headers: HeaderMap) -> Verdict {
        let request = match self.request(Method::POST, &headers, body) {
            Ok(request) => request,
            Err(reason) => return Verdict::Unavailable(reason),
        };
        self.await_turn().await;
        let verdict = match self.client.exchange(request).await {
            Ok(answer) => Verdict::of(&answer, &self.settings.permanent, Now::read()),
            Err(error) => of_error(&error),
        };
        if let Verdict::Gone(reason) = &verdict {
            self.state.lock().await.gone = Some(Arc::clone(reason));
        }
        verdict
    }

    /// A request with all that the settings add to it.
    fn request(
        &self,
        method: Method,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, Arc<str>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = method;
        let uri = self.location.path.parse();
        *request.uri_mut() = uri.map_err(|_| Arc::from("the path of the URL is not valid"))?;
        let all = request.headers_mut();
        all.extend(headers.clone());
        all.insert(HOST, self.location.authority.clone());
        if let Validation::CloudEvents { origin } = &self.settings.validation {
            all.insert(ORIGIN, value_of(origin)?);
        }
        for (name, (_, secret)) in self.names.iter().zip(&self.settings.headers) {
            let text = secret.read().map_err(|error| Arc::from(error.to_string()))?;
            let mut value = value_of(&text)?;
            value.set_sensitive(true);
            all.insert(name.clone(), value);
        }
        if let Some(secret) = &self.settings.signature {
            let secret = secret.read().map_err(|error| Arc::from(error.to_string()))?;
            let id = headers.get("ce-id").and_then(|id| id.to_str().ok());
            let signed = sign(&secret, id, secs_since_1970(), &body);
            all.insert(SIGNED_ID, value_of(&signed.id)?);
            all.insert(SIGNED_AT, signed.timestamp.into());
            all.insert(SIGNATURE, value_of(&signed.signature)?);
        }
        Ok(request)
    }

    /// Asks the endpoint, once, whether it wants events. Other batches wait for the same answer.
    async fn await_consent(&self) -> Result<(), Arc<str>> {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(reason) = &state.gone {
            return Err(
                format!("{reason}: the target sends nothing until it is started again").into()
            );
        }
        if state.is_validated || self.settings.validation == Validation::None {
            return Ok(());
        }
        if let Some((at, reason)) = &state.refused
            && asked < *at + VALIDATION_PAUSE
        {
            return Err(Arc::clone(reason));
        }
        match self.validate().await {
            Ok(interval) => {
                (state.is_validated, state.interval, state.refused) = (true, interval, None);
                Ok(())
            }
            Err(reason) => {
                let reason: Arc<str> = reason.into();
                state.refused = Some((Instant::now(), Arc::clone(&reason)));
                Err(reason)
            }
        }
    }

    async fn validate(&self) -> Result<Option<Duration>, String> {
        let request = |method| {
            let request = self.request(method, &HeaderMap::new(), Bytes::new());
            request.map_err(|reason| reason.to_string())
        };
        match &self.settings.validation {
            Validation::None => Ok(None),
            Validation::CloudEvents { origin } => {
                let answer = self.client.exchange(request(Method::OPTIONS)?).await;
                consent(&answer.map_err(|error| error.to_string())?, origin)
            }
            Validation::EventGrid => {
                let mut code = [0; 16];
                getrandom::fill(&mut code).map_err(|error| error.to_string())?;
                let code = BASE64_URL_SAFE_NO_PAD.encode(code);
                let request = request(Method::POST)?.map(drop);
                ask_event_grid(&self.client, request, &code).await.map(|()| None)
            }
        }
    }

    /// Keeps the rate that the endpoint has allowed.
    async fn await_turn(&self) {
        let mut state = self.state.lock().await;
        let Some(interval) = state.interval else { return };
        let now = Instant::now();
        let at = state.next_at.unwrap_or(now).max(now);
        state.next_at = Some(at + interval);
        drop(state);
        tokio::time::sleep_until(at.into()).await;
    }
}

fn of_error(error: &ExchangeError) -> Verdict {
    let text = error.to_string().into();
    match error.is_unsent() {
        true => Verdict::Unavailable(text),
        false => Verdict::Unknown(text),
    }
}

/// The headers of an event, or which one HTTP does not permit.
fn headers_of(record: &Record) -> Result<HeaderMap, Arc<str>> {
    let mut headers = HeaderMap::new();
    for (name, value) in &record.headers {
        let known = name.parse::<HeaderName>().ok().filter(is_free);
        let (Some(known), Ok(value)) = (known, HeaderValue::from_bytes(value)) else {
            return Err(format!("header `{name}` is not valid in HTTP").into());
        };
        headers.append(known, value);
    }
    Ok(headers)
}

/// A JSON array of the values, which are JSON.
fn joined(records: &[Record]) -> Bytes {
    let bytes = records.iter().map(|record| record.value.len() + 1).sum::<usize>() + 2;
    let mut body = Vec::with_capacity(bytes);
    for (number, record) in records.iter().enumerate() {
        body.push(if number == 0 { b'[' } else { b',' });
        body.extend_from_slice(&record.value);
    }
    if records.is_empty() {
        body.push(b'[');
    }
    body.push(b']');
    body.into()
}

fn value_of(text: &str) -> Result<HeaderValue, Arc<str>> {
    HeaderValue::from_str(text).map_err(|_| "a header has a value that is not valid in HTTP".into())
}

fn secs_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

const NOT_SENT: &str = "not sent, because an earlier record of the batch has no decision";
const BATCH: HeaderValue =
    HeaderValue::from_static("application/cloudevents-batch+json; charset=utf-8");
const ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
const SIGNED_ID: HeaderName = HeaderName::from_static("webhook-id");
const SIGNED_AT: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// An endpoint that does not consent is asked again after this time.
const VALIDATION_PAUSE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
