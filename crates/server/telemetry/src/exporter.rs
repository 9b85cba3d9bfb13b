//! The threads that send: one for spans, one for metrics.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::Scope;
use prost::Message;

use crate::collector::{Collector, CollectorOptions, Outcome};
use crate::metrics;
use crate::otlp::{InstrumentationScope, KeyValue, ResourceMessage};
use crate::queue::SpanQueue;
use crate::spans;

/// What is sent, and from where.
pub struct ExporterOptions {
    pub collector: CollectorOptions,
    pub resource: Resource,
    pub has_traces: bool,
    /// None: metrics are not sent.
    pub metrics_interval: Option<Duration>,
    /// The metrics in Prometheus' text format.
    pub exposition: Arc<dyn Fn() -> String + Send + Sync>,
    /// The name of a namespace.
    pub namespace_of: Box<dyn Fn(Scope) -> String + Send>,
}

/// Who sends.
#[derive(Clone, Debug)]
pub struct Resource {
    /// `service.name` and others.
    pub attributes: Vec<(String, String)>,
    pub version: &'static str,
}

/// The running threads. Dropping it ends them, once they have sent what they have, or after
/// `STOP_TIME_MAX`.
pub struct Exporter {
    queue: Arc<SpanQueue>,
    /// It ends when all threads have.
    ended: Receiver<()>,
}

/// One signal as its thread sees it.
struct Signal {
    queue: Arc<SpanQueue>,
    collector: Collector,
    log: LogPace,
    /// What the collector asked for.
    not_before: Instant,
}

/// What is logged of failures: the first, then at most one line a minute.
struct LogPace {
    what: &'static str,
    is_failing: bool,
    last: Option<Instant>,
    unlogged: u64,
}

impl Exporter {
    /// # Errors
    ///
    /// What is wrong with the URL or a file; or the system gives no thread.
    pub fn start(options: ExporterOptions, queue: &Arc<SpanQueue>) -> io::Result<Self> {
        let (running, ended) = channel();
        let ExporterOptions { collector, resource, exposition, namespace_of, .. } = options;
        if options.has_traces {
            let mut signal = Signal::new(&collector, "/v1/traces", "spans", queue)?;
            let (running, resource) = (running.clone(), resource.clone());
            let run = move || signal.send_spans(&resource, &*namespace_of, running);
            std::thread::Builder::new().name("telemetry-spans".into()).spawn(run)?;
        }
        if let Some(interval) = options.metrics_interval {
            let mut signal = Signal::new(&collector, "/v1/metrics", "metrics", queue)?;
            let run = move || signal.send_metrics(&resource, interval, &*exposition, running);
            std::thread::Builder::new().name("telemetry-metrics".into()).spawn(run)?;
        }
        Ok(Self { queue: queue.clone(), ended })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.queue.stop();
        // Nothing is sent here: the wait is for the end of all senders.
        let _ = self.ended.recv_timeout(STOP_TIME_MAX);
    }
}

impl Signal {
    fn new(
        options: &CollectorOptions,
        path: &str,
        what: &'static str,
        queue: &Arc<SpanQueue>,
    ) -> io::Result<Self> {
        let collector = Collector::new(options.clone(), path).map_err(io::Error::other)?;
        let log = LogPace { what, is_failing: false, last: None, unlogged: 0 };
        Ok(Self { queue: queue.clone(), collector, log, not_before: Instant::now() })
    }

    /// Until the end is asked for and nothing is left, or the collector takes nothing.
    fn send_spans(
        &mut self,
        resource: &Resource,
        namespace_of: &dyn Fn(Scope) -> String,
        running: Sender<()>,
    ) {
        while let Some(batch) = self.queue.next_batch() {
            let count = batch.len() as u64;
            let body = spans::request(resource, &batch, namespace_of).encode_to_vec();
            let failed = self.send_again_and_again(&body).map_or(count, |some| some.min(count));
            let counts = &self.queue.counts;
            counts.spans_sent.fetch_add(count - failed, Ordering::Relaxed);
            counts.spans_failed.fetch_add(failed, Ordering::Relaxed);
        }
        drop(running);
    }

    /// Spans are sent again until [`RETRY_TIME_MAX`] is over. Returns the number of those that were
    /// rejected; none: all are lost.
    fn send_again_and_again(&mut self, body: &[u8]) -> Option<u64> {
        let gives_up = Instant::now() + RETRY_TIME_MAX;
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            let is_stopping = self.queue.wait_until(self.not_before);
            match self.post(body) {
                Outcome::Accepted { rejected, .. } => return Some(rejected),
                Outcome::Refused(_) => return None,
                Outcome::Retry { after, .. } => {
                    let asked = after.unwrap_or(pause).min(RETRY_AFTER_MAX);
                    self.not_before = Instant::now() + asked;
                    pause = (2 * pause).min(RETRY_PAUSE_MAX);
                    if is_stopping || self.not_before > gives_up {
                        return None;
                    }
                }
            }
        }
    }

    /// Each request has all there is, so one that fails is not sent again.
    fn send_metrics(
        &mut self,
        resource: &Resource,
        interval: Duration,
        exposition: &dyn Fn() -> String,
        running: Sender<()>,
    ) {
        let started = now_nanos();
        let mut next = Instant::now() + interval;
        loop {
            let is_stopping = self.queue.wait_until(next.max(self.not_before));
            // An interval that was missed is not made up for.
            next = (next + interval).max(Instant::now());
            let times = metrics::Times { started, now: now_nanos() };
            let body = metrics::request(resource, &exposition(), times).encode_to_vec();
            if let Outcome::Retry { after: Some(after), .. } = self.post(&body) {
                self.not_before = Instant::now() + after.min(RETRY_AFTER_MAX);
            }
            if is_stopping {
                break;
            }
        }
        drop(running);
    }

    fn post(&mut self, body: &[u8]) -> Outcome {
        let time_max = if self.queue.is_stopping() { STOP_TIME_MAX / 2 } else { Duration::MAX };
        let outcome = self.collector.post(body, time_max);
        let counts = &self.queue.counts;
        let requests = match self.log.what {
            "spans" => &counts.trace_requests,
            _ => &counts.metric_requests,
        };
        let url = self.collector.url();
        match &outcome {
            Outcome::Accepted { rejected: 0, .. } => {
                add_one(&requests.succeeded);
                self.log.note_success(url);
            }
            Outcome::Accepted { rejected, warning } => {
                add_one(&requests.succeeded);
                self.log.note_failure(url, &format!("{rejected} were rejected: {warning}"));
            }
            Outcome::Retry { why, .. } | Outcome::Refused(why) => {
                add_one(&requests.failed);
                self.log.note_failure(url, why);
            }
        }
        outcome
    }
}

impl LogPace {
    fn note_success(&mut self, url: &str) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(url, "the collector takes {} again", self.what);
        }
    }

    fn note_failure(&mut self, url: &str, reason: &str) {
        self.is_failing = true;
        if self.last.is_some_and(|last| last.elapsed() < LOG_INTERVAL) {
            self.unlogged += 1;
            return;
        }
        let similar = std::mem::take(&mut self.unlogged);
        tracing::warn!(url, reason, similar, "cannot send {} to the collector", self.what);
        self.last = Some(Instant::now());
    }
}

impl Resource {
    pub(crate) fn to_message(&self) -> ResourceMessage {
        let attributes = self.attributes.iter().map(|(name, value)| KeyValue::text(name, value));
        ResourceMessage { attributes: attributes.collect() }
    }

    pub(crate) fn scope(&self) -> InstrumentationScope {
        InstrumentationScope { name: "quelea".into(), version: self.version.into() }
    }
}

fn add_one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Spans that a collector does not take for so long are dropped.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);

/// The pause before a batch is sent again doubles from one to the other.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Of what a collector asks for by `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// What the end of the broker waits for at most.
const STOP_TIME_MAX: Duration = Duration::from_secs(4);

const LOG_INTERVAL: Duration = Duration::from_secs(60);
