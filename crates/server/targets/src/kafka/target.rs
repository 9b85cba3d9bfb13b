//! The Kafka target: a bounded queue of batches, and the task that sends them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use krafka::producer::DeliveryHandle;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{timeout, timeout_at};

use super::connection::{BATCH_BYTES, Connection, explain};
use super::errors::{About, is_fatal, outcome};
use super::settings::{Login, Settings, SettingsError};
use super::token::Tokens;
use crate::batch::{Answers, Batch, Full, Outcome, Record, Target, keep_order};
use crate::dial::{Dialer, Resolve};
use crate::jobs::{Job, Jobs, STOP_TIME_MAX, work_off};
use crate::threads::Threads;

/// A Kafka cluster as a target. It connects with the first batch, and again when it must.
pub struct Kafka {
    jobs: Jobs,
}

/// What the jobs share.
struct Worker {
    settings: Settings,
    dialer: Dialer,
    tokens: Option<Arc<Tokens>>,
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    connection: Option<Arc<Connection>>,
    /// When the last attempt to connect failed, and why.
    failed: Option<(Instant, Arc<str>)>,
}

impl Kafka {
    /// Starts the target on a thread of `threads`. `answers` gets an answer for each batch.
    ///
    /// # Errors
    ///
    /// A setting is not valid. Servers that are away are no error here.
    pub fn start(
        threads: &Threads,
        settings: Settings,
        resolver: Arc<dyn Resolve>,
        answers: Answers,
    ) -> Result<Self, SettingsError> {
        settings.check()?;
        let (networks, tls) = (settings.networks.clone(), settings.tls.clone());
        let time_max = settings.request_time_max;
        let tokens = match &settings.login {
            Some(Login::OAuthBearerFrom(endpoint)) => {
                let (endpoint, resolver) = (endpoint.clone(), Arc::clone(&resolver));
                let url = endpoint.url.clone();
                let tokens = Tokens::new(endpoint, resolver, networks.clone(), time_max);
                Some(Arc::new(tokens.map_err(|_| SettingsError::TokenEndpoint(url))?))
            }
            _ => None,
        };
        let dialer = Dialer::new(resolver, networks, tls, time_max);
        let (queue, jobs) = Jobs::new(answers);
        let worker = Worker { settings, dialer, tokens, link: Mutex::default() };
        threads.handle().spawn(run(jobs, Arc::new(worker)));
        Ok(Self { jobs: queue })
    }
}

impl Target for Kafka {
    fn send(&self, batch: Batch) -> Result<(), Full> {
        self.jobs.put(batch)
    }
}

async fn run(jobs: mpsc::Receiver<Job>, worker: Arc<Worker>) {
    let send = |job| {
        let worker = Arc::clone(&worker);
        async move { worker.send(job).await }
    };
    work_off(jobs, SENDING_BATCHES_MAX, send).await;
    if let Some(connection) = worker.link.lock().await.connection.take() {
        connection.close(STOP_TIME_MAX).await;
    }
}

impl Worker {
    async fn send(&self, mut job: Job) {
        job.begin();
        // The library keeps its own limits; this one is for its faults.
        let time_max = 4 * self.settings.request_time_max + 2 * self.settings.delivery_time_max;
        match timeout(time_max, self.outcomes(&job.batch)).await {
            Ok(mut outcomes) => {
                keep_order(&job.batch.records, &mut outcomes);
                job.answer(outcomes);
            }
            Err(_) => {
                self.disconnect(None).await;
                job.answer_all(Outcome::Unknown("the client of Kafka gave no answer".into()));
            }
        }
    }

    async fn outcomes(&self, batch: &Batch) -> Vec<Outcome> {
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(reason) => return vec![Outcome::Unavailable(reason); batch.records.len()],
        };
        let queued = self.enqueue(&connection, &batch.records).await;
        let mut outcomes = Vec::with_capacity(queued.len());
        for (record, queued) in batch.records.iter().zip(queued) {
            outcomes.push(match queued {
                Ok(handle) => match handle.await {
                    Ok(_) => Outcome::Accepted,
                    Err(error) => {
                        let is_single = batch.is_alone && batch.records.len() == 1;
                        let is_large = bytes_of(record) > BATCH_BYTES;
                        let about =
                            if is_single || is_large { About::Record } else { About::Group };
                        self.on_error(&connection, &error, about).await
                    }
                },
                Err(outcome) => outcome,
            });
        }
        outcomes
    }

    /// Queues all records in the library, in their order.
    async fn enqueue(
        &self,
        connection: &Arc<Connection>,
        records: &[Record],
    ) -> Vec<Result<DeliveryHandle, Outcome>> {
        // Nothing overtakes a record that could not be queued, and one wait for a topic is enough.
        let mut failed: HashMap<&str, Outcome> = HashMap::new();
        let deadline = tokio::time::Instant::now() + self.settings.delivery_time_max;
        let mut queued = Vec::with_capacity(records.len());
        for record in records {
            queued.push(if let Some(outcome) = failed.get(&*record.topic) {
                Err(outcome.clone())
            } else if let Some(fault) = fault_of(record, self.settings.record_bytes_max) {
                Err(Outcome::Refused(fault.into()))
            } else {
                let queueing = connection.producer.enqueue(to_kafka(record));
                let result = match timeout_at(deadline, queueing).await {
                    Ok(Ok(handle)) => Ok(handle),
                    Ok(Err(error)) => Err(self.on_error(connection, &error, About::Record).await),
                    Err(_) => Err(Outcome::Unavailable("no memory for the record in time".into())),
                };
                if let Err(outcome) = &result
                    && outcome.is_open()
                {
                    failed.insert(&record.topic, outcome.clone());
                }
                result
            });
        }
        queued
    }

    async fn on_error(
        &self,
        connection: &Arc<Connection>,
        error: &krafka::KrafkaError,
        about: About,
    ) -> Outcome {
        if is_fatal(error) {
            self.disconnect(Some(connection)).await;
        }
        match outcome(error, about, Instant::now()) {
            Outcome::Unavailable(_) => {
                Outcome::Unavailable(explain(error, connection.last_fault()))
            }
            Outcome::Unknown(_) => Outcome::Unknown(explain(error, connection.last_fault())),
            outcome => outcome,
        }
    }

    /// The connection that there is, or a new one. Batches that wait for the same attempt share its
    /// failure.
    async fn connection(&self) -> Result<Arc<Connection>, Arc<str>> {
        let asked = Instant::now();
        let mut link = self.link.lock().await;
        if let Some(connection) = &link.connection {
            return Ok(Arc::clone(connection));
        }
        if let Some((at, reason)) = &link.failed
            && *at > asked
        {
            return Err(Arc::clone(reason));
        }
        match Connection::open(&self.settings, &self.dialer, self.tokens.as_ref()).await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                link.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(reason) => {
                link.failed = Some((Instant::now(), Arc::clone(&reason)));
                Err(reason)
            }
        }
    }

    /// Forgets the connection, if it is this one. None: whichever it is.
    async fn disconnect(&self, broken: Option<&Arc<Connection>>) {
        let mut link = self.link.lock().await;
        let is_it = |connection: &Arc<Connection>| {
            broken.is_none_or(|broken| Arc::ptr_eq(connection, broken))
        };
        if let Some(connection) = link.connection.take_if(|connection| is_it(connection)) {
            // Batches that still wait for it get their answers from it.
            tokio::spawn(async move { connection.close(STOP_TIME_MAX).await });
        }
    }
}

fn to_kafka(record: &Record) -> krafka::Record {
    let mut sent = krafka::Record::new(&*record.topic, record.value.clone());
    if let Some(key) = &record.key {
        sent = sent.key(key.clone());
    }
    if let Some(time) = record.time_ms {
        sent = sent.timestamp(time);
    }
    for (name, value) in &record.headers {
        sent = sent.header(name, value.clone());
    }
    sent
}

/// Why no server could accept the record.
fn fault_of(record: &Record, bytes_max: usize) -> Option<String> {
    let (topic, bytes, headers) = (&*record.topic, bytes_of(record), record.headers.len());
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=TOPIC_BYTES_MAX).contains(&topic.len())
        || !topic.bytes().all(is_valid)
        || [".", ".."].contains(&topic)
    {
        let valid = "1 to 249 letters, digits, `.`, `_` and `-`";
        return Some(format!("the name of a Kafka topic must have {valid}, got `{topic}`"));
    }
    if headers > HEADERS_MAX {
        return Some(format!("the record has {headers} headers, more than {HEADERS_MAX}"));
    }
    (bytes > bytes_max).then(|| format!("the record has {bytes} bytes, more than {bytes_max}"))
}

/// An upper bound of what the server counts, but for the lengths of key and value.
fn bytes_of(record: &Record) -> usize {
    let key = record.key.as_ref().map_or(0, |key| key.len());
    let headers = record.headers.iter();
    let headers = headers.map(|(name, value)| name.len() + value.len() + HEADER_OVERHEAD);
    key + record.value.len() + headers.sum::<usize>()
}

const TOPIC_BYTES_MAX: usize = 249;
/// Far more than anybody needs, and fewer than the library takes.
const HEADERS_MAX: usize = 1000;
/// The two lengths of a header.
const HEADER_OVERHEAD: usize = 10;
/// Batches that are being sent at a time.
const SENDING_BATCHES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn record(topic: &str) -> Record {
        let (key, value) = (Some("key".into()), "value".into());
        Record { topic: topic.into(), key, value, headers: Vec::new(), time_ms: None }
    }

    #[test]
    fn records_that_no_server_accepts_are_refused_here() {
        for topic in ["a", "Fleet.eu_1-x", "...", &"x".repeat(249)] {
            assert_eq!(fault_of(&record(topic), 100), None, "{topic}");
        }
        for topic in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(250)] {
            let fault = fault_of(&record(topic), 100).expect(topic);
            assert!(fault.contains("must have 1 to 249") && fault.contains(topic), "{fault}");
        }
        assert_eq!(fault_of(&record("t"), 8), None);
        let fault = fault_of(&record("t"), 7).unwrap();
        assert_eq!(fault, "the record has 8 bytes, more than 7");
        let many = Record { headers: vec![("h".into(), "v".into()); 1001], ..record("t") };
        let fault = fault_of(&many, 100_000).unwrap();
        assert_eq!(fault, "the record has 1001 headers, more than 1000");
    }
}
