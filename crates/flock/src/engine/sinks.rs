//! Sinks of a run: each is one more receiver, behind the broker. What arrives there is held against
//! what was sent as for any subscriber that was there all the time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::clock::Clock;
use super::judge::{Part, add_latency, add_waits, book, keep_worst};
use super::plan::Plan;
use super::pool::Counting;
use super::stamp::{Reading, Stamps, WILL_STREAM};
use super::tally::Tally;
use flock_measure::ledger::{
    Agreed, Heard, Ledger, Path, Received, SentTable, Session, StreamId, Window, judge,
};
use flock_measure::{
    Integrity, LatencyHistogram, LatencyKind, LatencyPoint, SinkMinute, SinkResults,
};
use flock_model::{Sink as Model, TopicsId};
use flock_sinks::{Event, EventError, OnArrival, Sink, SinkError};

/// The sinks of a run, open.
#[derive(Default)]
pub(super) struct Sinks(Vec<Open>);

struct Open {
    model: Model,
    sink: Sink,
    book: Arc<Mutex<Book>>,
    /// It is owed all that is published, and no part of it.
    takes_all: bool,
    waited_ns: u64,
}

/// What one sink has received.
struct Book {
    plan: Arc<Plan>,
    clock: Clock,
    stamps: Stamps,
    topics: Vec<TopicsId>,
    ledger: Ledger,
    tally: Tally,
    /// All that arrived, and the messages of this run among them.
    events: u64,
    messages: u64,
    unreadable: u64,
    /// Messages by the second in which they arrived.
    by_second: Vec<u32>,
    /// Of the minute under way.
    minute: LatencyHistogram,
    minutes: Vec<SinkMinute>,
}

impl Sinks {
    /// Opens all sinks. From here on they miss nothing.
    pub(super) fn open(plan: &Arc<Plan>, clock: Clock, tag: u16) -> Result<Self, SinkError> {
        let mut all = Vec::new();
        for model in &plan.scenario.sinks {
            let book = Arc::new(Mutex::new(Book::new(Arc::clone(plan), clock, tag, model)));
            let shared = Arc::clone(&book);
            let on_arrival: OnArrival = Arc::new(move |event| lock(&shared).receive(event));
            let is_routed = |topics: TopicsId| model.topics.contains(&topics);
            all.push(Open {
                sink: Sink::open(model, on_arrival)?,
                takes_all: plan.families.iter().all(|family| is_routed(family.topics)),
                model: model.clone(),
                book,
                waited_ns: 0,
            });
        }
        Ok(Self(all))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Latencies count from now on, or no longer.
    pub(super) fn count(&self, counting: Counting) {
        for open in &self.0 {
            let mut book = lock(&open.book);
            let now_ns = book.clock.now_ns();
            book.tally.set_measured(counting, now_ns);
        }
    }

    /// Whether a sink may still get some of `published`, so long after publishing stopped.
    pub(super) fn are_open(&mut self, published: u64, waited_ns: u64) -> bool {
        let mut are_open = false;
        for open in &mut self.0 {
            let is_over = waited_ns >= open.model.drain_us * 1_000;
            let has_all = open.takes_all && lock(&open.book).distinct() >= published;
            if !is_over && !has_all {
                open.waited_ns = waited_ns;
                are_open = true;
            }
        }
        are_open
    }

    /// Ends the receiving. What comes later is lost.
    pub(super) fn close(&mut self) {
        self.0.iter_mut().for_each(|open| open.sink.close());
    }

    /// Holds what arrived against what was sent. Latencies go into `part`.
    pub(super) fn judge(
        &self,
        sent: &SentTable,
        window_secs: (f64, f64),
        part: &mut Part,
    ) -> Vec<SinkResults> {
        self.0.iter().map(|open| open.judge(sent, window_secs, part)).collect()
    }

    /// Why the figures of sinks may not be believed.
    pub(super) fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        for open in &self.0 {
            let (standing, name) = (open.sink.standing(), &open.model.id);
            if standing.failures > 0 {
                reasons.push(format!(
                    "sink {name} could not be read {} times: {}",
                    standing.failures, standing.last_failure
                ));
            }
            let foreign = lock(&open.book).tally.totals.received_foreign;
            if foreign > 0 {
                reasons.push(format!("sink {name} received {foreign} messages of other runs"));
            }
        }
        reasons
    }
}

impl Open {
    fn judge(&self, sent: &SentTable, window_secs: (f64, f64), part: &mut Part) -> SinkResults {
        let mut book_of = lock(&self.book);
        book_of.end_minute();
        let book_of = &*book_of;
        let (plan, ledger) = (&book_of.plan, &book_of.ledger);
        let mut integrity = Integrity::default();
        let mut latencies = book_of.tally.latencies();
        for (stream, published) in sent.published() {
            if !book_of.is_routed(stream) {
                continue;
            }
            let track = ledger.track(CLIENT, stream);
            let qos = published.sent.qos;
            let verdict = judge(published, track, (ALL_THE_TIME, &[WHOLE_RUN]), qos);
            add_waits(&mut latencies, &verdict, verdict.count.lost, true);
            book(plan, stream, &verdict, || self.model.id.clone(), &mut integrity);
        }
        keep_worst(&mut integrity.worst);
        latencies.iter().for_each(|measured| add_latency(&mut part.latencies, measured));
        let mut histogram = LatencyHistogram::new();
        latencies.iter().for_each(|measured| histogram.merge(&measured.histogram));
        let name = |topics: &TopicsId| plan.scenario.topic_group(*topics).id.clone();
        let standing = self.sink.standing();
        SinkResults {
            name: self.model.id.clone(),
            kind: self.model.kind.name().to_owned(),
            target: self.model.kind.to_string(),
            topics: self.model.topics.iter().map(name).collect(),
            drain_secs: self.model.drain_us as f64 / 1e6,
            waited_secs: self.waited_ns as f64 / 1e9,
            events: book_of.events,
            received_per_sec: book_of.per_sec(window_secs),
            by_qos: integrity.by_qos,
            worst: integrity.worst,
            misrouted: ledger.misrouted,
            wrong_topic: ledger.wrong_topic,
            damaged: ledger.damaged + integrity.damaged,
            unreadable: book_of.unreadable,
            foreign: book_of.tally.totals.received_foreign,
            refused: standing.refused,
            failures: standing.failures,
            last_failure: standing.last_failure,
            latency: histogram.summary(),
            histogram,
            unfinished: latencies.iter().map(|measured| measured.unfinished).sum(),
            missing: latencies.iter().map(|measured| measured.missing).sum(),
            minutes: book_of.minutes.clone(),
        }
    }
}

impl Book {
    fn new(plan: Arc<Plan>, clock: Clock, tag: u16, model: &Model) -> Self {
        Self {
            stamps: Stamps::new(tag, clock, plan.streams()),
            plan,
            clock,
            topics: model.topics.clone(),
            ledger: Ledger::default(),
            tally: Tally::new(0),
            events: 0,
            messages: 0,
            unreadable: 0,
            by_second: Vec::new(),
            minute: LatencyHistogram::new(),
            minutes: Vec::new(),
        }
    }

    fn receive(&mut self, event: Result<Event<'_>, EventError>) {
        let now_ns = self.clock.now_ns();
        self.events += 1;
        let Ok(event) = event else {
            self.unreadable += 1;
            return;
        };
        let plan = Arc::clone(&self.plan);
        let topic_of = |stream: StreamId| plan.topic_name_of(stream);
        let topic = match &event.subject {
            Some(subject) => subject.clone(),
            // Nothing says on which topic it was: that of its stream is taken for granted.
            None => {
                let stream = Stamps::stream_of(&event.payload);
                stream.and_then(topic_of).unwrap_or_default().into()
            }
        };
        let stamp = match self.stamps.read(&topic, &event.payload, now_ns, topic_of) {
            Reading::Ours { stamp, .. } if stamp.stream != WILL_STREAM => stamp,
            // Wills are routed as well, and nobody counts them here.
            Reading::Ours { .. } => return,
            Reading::Foreign { .. } => {
                self.tally.totals.received_foreign += 1;
                return;
            }
            Reading::WrongTopic => {
                self.ledger.wrong_topic += 1;
                return;
            }
            Reading::Damaged => {
                self.ledger.damaged += 1;
                return;
            }
        };
        self.messages += 1;
        let qos = plan.locate(stamp.stream).map_or(0, |(family, ..)| family.qos as u8);
        let path = match self.is_routed(stamp.stream) {
            true => Path::Plain { routed: true, qos: Agreed { low: qos, high: qos } },
            false => Path::Misrouted,
        };
        let received = Received {
            client: CLIENT,
            stream: stamp.stream,
            sequence: stamp.sequence,
            dup: false,
            may_be_dup: false,
            qos,
            times_ns: (stamp.due_ns, now_ns),
            sessions: (Session::default(), Session::default()),
        };
        if self.ledger.receive(received, || path) == Path::Misrouted {
            return;
        }
        self.tally.message_latency(LatencyKind::Routed, qos, stamp.due_ns, now_ns);
        self.note_time(now_ns, now_ns.saturating_sub(stamp.due_ns));
    }

    fn is_routed(&self, stream: StreamId) -> bool {
        let family = self.plan.locate(stream);
        family.is_some_and(|(family, ..)| self.topics.contains(&family.topics))
    }

    /// Messages that are owed and have arrived, each once.
    fn distinct(&self) -> u64 {
        self.messages - self.ledger.misrouted - self.ledger.duplicated_so_far
    }

    fn note_time(&mut self, now_ns: u64, latency_ns: u64) {
        let second = (now_ns / SECOND_NS) as usize;
        if self.by_second.len() <= second {
            self.by_second.resize(second + 1, 0);
        }
        self.by_second[second] += 1;
        let minute = (now_ns / MINUTE_NS) as u32 + 1;
        if self.minutes.last().is_none_or(|last| last.minute < minute) {
            self.end_minute();
            let from = self.minutes.last().map_or(minute, |last| last.minute + 1);
            let new = (from..=minute).map(|minute| SinkMinute { minute, ..SinkMinute::default() });
            self.minutes.extend(new);
        }
        if let Some(last) = self.minutes.last_mut() {
            last.received += 1;
        }
        self.minute.record_nanos(latency_ns);
    }

    fn end_minute(&mut self) {
        if let Some(last) = self.minutes.last_mut() {
            last.latency = LatencyPoint::of(&self.minute);
        }
        self.minute.clear();
    }

    /// Messages per second over the whole seconds of a part of the run.
    fn per_sec(&self, (from_secs, to_secs): (f64, f64)) -> f64 {
        let (from, to) = (from_secs.ceil() as usize, to_secs.floor() as usize);
        if to <= from {
            return 0.0;
        }
        let within = self.by_second.iter().skip(from).take(to - from);
        within.map(|count| f64::from(*count)).sum::<f64>() / (to - from) as f64
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sink is there from before the first message to after the last one.
const ALL_THE_TIME: Heard = Heard {
    since_ns: 0,
    until_ns: u64::MAX,
    generation: 0,
    copies_may_repeat: false,
    is_patchy: false,
    settled_ns: 0,
    patience_ns: 0,
};
const WHOLE_RUN: Window = (0, u64::MAX);
/// The one receiver in the ledger of a sink.
const CLIENT: u32 = 0;
const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;
