//! Life-cycle events: clients connect, disconnect, subscribe, lose messages, are banned.
//!
//! All kinds stand in one table (`table.rs`). An event becomes a log line (`log.rs`, limited by
//! `line_pace.rs`), a message below `$SYS/broker/events/` and a CloudEvent. CloudEvents are
//! published below `$SYS/events/` and written to the API's stream (`readers.rs`), limited by
//! `pace.rs`. Without a reader nothing is made.

mod happened;
pub(crate) mod line_pace;
mod log;
mod pace;
mod readers;
mod recent;
mod subject;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod traces;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use broker::{Event, Scope, Shared, Span};
use codec::QoS;
use serde_json::{Value, json};
use session::{Message, MessageParts, NEVER};
use telemetry::SpanQueue;

use base::Clock;
use base::moment;
use config::Events;
use config::namespaces::DEFAULT;
pub(crate) use happened::{ClientRefused, Happened};
use line_pace::LinePace;
use pace::Pace;
pub(crate) use readers::{Readers, Reading, Wanted};
use recent::Recent;
pub(crate) use subject::Subject;
pub use table::{EVENT_KINDS, EventKind};
pub(crate) use traces::{TraceReading, Traces};

/// The part of `per_second_max` that refused log-ins have, beside it.
const REFUSALS_PART: u32 = 10;

/// Who reads a stream.
pub(crate) struct Caller {
    pub(crate) name: String,
    /// Asked about twice a second: what proved its rights may end before its stream does.
    pub(crate) may_read: Box<dyn Fn() -> bool + Send + Sync>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Caller").field(&self.name).finish()
    }
}

#[cfg(test)]
impl Caller {
    fn always(name: &str) -> Self {
        Self { name: name.to_owned(), may_read: Box::new(|| true) }
    }
}

/// Shared by workers, acceptors, the API and the control plane.
#[derive(Debug)]
pub struct LifeCycle {
    shared: Arc<Shared>,
    clock: Clock,
    /// `source` of each event.
    source: String,
    /// They are published, too.
    is_published: bool,
    /// What begins the ids of this process.
    start: u64,
    made: AtomicU64,
    pace: Pace,
    /// Refused log-ins have a pace of their own: a client that was refused has proved nothing, and
    /// may not use up what others have.
    refusals: Pace,
    pub(crate) readers: Readers,
    pub(crate) traces: Traces,
    pub(crate) recent: Recent,
    /// For a collector.
    pub(crate) spans: Arc<SpanQueue>,
    /// Shards report subscriptions only while somebody reads them.
    reports_subscriptions: AtomicBool,
}

impl LifeCycle {
    pub fn new(config: &Events, shared: &Arc<Shared>, clock: Clock) -> Self {
        let own = Self {
            shared: shared.clone(),
            clock,
            source: config.source.clone(),
            is_published: config.sys,
            start: clock.wall_ms(),
            made: AtomicU64::new(0),
            pace: Pace::new(config.per_client_per_second_max, config.per_second_max),
            refusals: Pace::new(0, config.per_second_max.div_ceil(REFUSALS_PART)),
            readers: Readers::default(),
            traces: Traces::default(),
            recent: Recent::default(),
            spans: Arc::default(),
            reports_subscriptions: AtomicBool::new(false),
        };
        own.note_readers();
        own
    }

    /// Logs an event of a shard, and gives the messages that are to be published.
    pub(crate) fn on_event(
        &self,
        event: &Event,
        namespace: &str,
        lines: &LinePace,
        now_ms: u64,
        mut publish: impl FnMut(Message),
    ) {
        let kind = happened::kind_of(event);
        let subject = Subject::of_event(event, kind, namespace);
        let is_logged = kind.line.is_some()
            && subject.is_none_or(|(it, count)| lines.allows_of(it, count, now_ms));
        let is_kept = self.recent.admits(now_ms);
        if !is_logged && !is_kept && !kind.is_on_sys && self.is_unheard() {
            return;
        }
        for happened in happened::of(event, namespace) {
            if is_logged {
                happened.log();
            }
            if is_kept {
                self.recent.put(&happened, now_ms);
            }
            self.sys_message(&happened).into_iter().for_each(&mut publish);
            if self.is_heard(&happened) && self.pace.allows(&happened, now_ms) {
                self.publish(&happened).into_iter().for_each(&mut publish);
            }
        }
    }

    /// No reader and no subscriber can get an event.
    pub(crate) fn is_unheard(&self) -> bool {
        !self.is_published && self.readers.are_none()
    }

    /// With a queue of spans that it shares with others.
    pub(crate) fn with_spans(self, spans: Arc<SpanQueue>) -> Self {
        Self { spans, ..self }
    }

    /// A connection was refused before it came to a shard. The message is to be published.
    pub(crate) fn on_refused(
        &self,
        refused: &ClientRefused<'_>,
        is_logged: bool,
        now_ms: u64,
    ) -> Option<Message> {
        if !is_logged && self.is_unheard() {
            return None;
        }
        let happened = refused.happened();
        if is_logged {
            happened.log();
        }
        let is_wanted = self.is_heard(&happened) && self.refusals.allows(&happened, now_ms);
        if is_wanted { self.publish(&happened) } else { None }
    }

    /// Something has happened that is about no client, and is logged by the caller. The message is
    /// to be published.
    pub(crate) fn on_other(&self, happened: &Happened<'_>) -> Option<Message> {
        if self.is_heard(happened) { self.publish(happened) } else { None }
    }

    /// The same for what may happen often: at a limit the event is counted instead.
    pub(crate) fn on_paced(&self, happened: &Happened<'_>, now_ms: u64) -> Option<Message> {
        let is_wanted = self.is_heard(happened) && self.pace.allows(happened, now_ms);
        if is_wanted { self.publish(happened) } else { None }
    }

    /// Tells how many were withheld, ends the streams of callers that may not read any more, and
    /// tells the others that they are not forgotten. To be called about twice a second.
    pub(crate) fn tick(&self, now_ms: u64) -> Option<Message> {
        self.readers.end_refused();
        self.traces.end_refused();
        self.readers.beat(now_ms);
        self.note_readers();
        let count = self.pace.take_withheld() + self.refusals.take_withheld();
        let what = json!({ "count": count });
        if count == 0 { None } else { self.on_other(&Happened::of_broker(&table::WITHHELD, what)) }
    }

    /// What a namespace is called.
    pub(crate) fn namespace_of(&self, scope: Scope) -> Box<str> {
        match self.shared.spaces.get(scope) {
            _ if scope.is_first() => DEFAULT.into(),
            Some(space) => space.name().into(),
            None => "?".into(),
        }
    }

    /// Spans that end now, and the number of those that were left out.
    pub(crate) fn on_spans(&self, mut spans: Vec<Span>, lost: u64) {
        // Others know nothing of broker time.
        let (now_ms, wall_ms) = (self.clock.now_ms(), self.clock.wall_ms());
        spans
            .iter_mut()
            .for_each(|span| span.at_ms = (span.at_ms + wall_ms).saturating_sub(now_ms));
        self.spans.put(spans, lost, wall_ms);
    }

    /// Events that were not published, because there were too many.
    pub fn withheld(&self) -> u64 {
        self.pace.withheld() + self.refusals.withheld()
    }

    /// Readers that were cut, because they did not read.
    pub fn cut(&self) -> u64 {
        self.readers.cut()
    }

    /// There may be one reader more, or one less.
    pub(crate) fn note_readers(&self) {
        let are_wanted = self.is_published || !self.readers.are_none();
        if self.reports_subscriptions.swap(are_wanted, Ordering::Relaxed) != are_wanted {
            self.shared.set_reports_subscriptions(are_wanted);
        }
    }

    fn is_heard(&self, happened: &Happened<'_>) -> bool {
        let is_wanted = || self.is_subscribed(&happened.kind.topic("events"));
        happened.kind.not_exported.is_none()
            && (!self.readers.are_none() || self.is_published && is_wanted())
    }

    fn is_subscribed(&self, topic: &str) -> bool {
        self.shared.is_heard(topic)
    }

    /// What is published below `$SYS/broker/events/`: messages that were lost or refused. JSON, QoS
    /// 0, not retained.
    fn sys_message(&self, happened: &Happened<'_>) -> Option<Message> {
        let topic = happened.kind.sys_topic().filter(|topic| self.is_subscribed(topic))?;
        Some(message(&topic, &happened.data.to_string()))
    }

    fn publish(&self, happened: &Happened<'_>) -> Option<Message> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:x}-{number}", self.start);
        let text = self.cloud_event(&id, happened).to_string();
        self.readers.put(happened, &id, &text);
        self.is_published.then(|| message(&happened.kind.topic("events"), &text))
    }

    /// CloudEvents 1.0, section 3.1.
    fn cloud_event(&self, id: &str, happened: &Happened<'_>) -> Value {
        let wall_ms = self.clock.wall_ms();
        let time = moment::text_of(wall_ms / 1000);
        let time = format!("{}.{:03}Z", time.trim_end_matches('Z'), wall_ms % 1000);
        let mut event = json!({
            "specversion": "1.0",
            "id": id,
            "source": self.source,
            "type": happened.full_type(),
            "time": time,
            "datacontenttype": "application/json",
            "data": happened.data,
        });
        if let Some(subject) = happened.subject() {
            event["subject"] = subject.into();
        }
        event
    }
}

fn message(topic: &str, text: &str) -> Message {
    Message::new(&MessageParts {
        topic,
        properties: &[],
        payload: text.as_bytes(),
        qos: QoS::AtMostOnce,
        retain: false,
        expires_at_ms: NEVER,
        publisher: 0,
        author: 0,
        level: 0,
        scope: 0,
    })
}
