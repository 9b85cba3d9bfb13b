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
        measured_secs: &[(f64, f64)],
        part: &mut Part,
    ) -> Vec<SinkResults> {
        self.0.iter().map(|open| open.judge(sent, measured_secs, part)).collect()
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
    fn judge(
        &self,
        sent: &SentTable,
        measured_secs: &[(f64, f64)],
        part: &mut Part,
    ) -> SinkResults {
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
            received_per_sec: book_of.per_sec(measured_secs),
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

    /// Messages per second over the whole seconds of the measured stages, or over all that they
    /// touch where none is whole.
    fn per_sec(&self, measured_secs: &[(f64, f64)]) -> f64 {
        let within = |from: f64, to: f64| {
            let (from, to) = (from as usize, to as usize);
            let counts = self.by_second.iter().skip(from).take(to.saturating_sub(from));
            counts.map(|count| u64::from(*count)).sum::<u64>()
        };
        let whole = |(from, to): &(f64, f64)| (from.ceil(), to.floor());
        let is_whole = |(from, to): &(f64, f64)| from < to;
        let mut windows: Vec<_> = measured_secs.iter().map(whole).filter(is_whole).collect();
        if windows.is_empty() {
            windows = measured_secs.iter().map(|(from, to)| (from.floor(), to.ceil())).collect();
        }
        let secs: f64 = windows.iter().map(|(from, to)| to - from).sum();
        let all: u64 = windows.iter().map(|(from, to)| within(*from, *to)).sum();
        if secs > 0.0 { all as f64 / secs } else { 0.0 }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::stamp::{Stamp, Sum};
    use flock_measure::IntegrityCount;
    use flock_measure::ledger::Sent;
    use flock_model::scenario::{Choice, parse};

    const SCENARIO: &str = r#"
        id = "routed"
        title = "routed"
        [clients.pub]
        count = 2
        [topics.own]
        names = "own/{i}"
        count = 2
        [topics.other]
        names = "other/{i}"
        count = 2
        [sink.hook]
        kind = "webhook"
        listen = "127.0.0.1:0"
        topics = "own"
        [[stage]]
        name = "publish"
        [[stage.do]]
        clients = "pub"
        steps = [
            { connect = {} },
            { publish = { to = "own", qos = 1, count = 1, payload = 20 } },
            { publish = { to = "other", count = 1, payload = 20 } },
        ]
    "#;
    const TAG: u16 = 7;
    /// Of `own/1`, and of `other/0`.
    const OWN: StreamId = 1;
    const OTHER: StreamId = 2;

    struct Lab {
        sinks: Sinks,
        stamps: Stamps,
    }

    impl Lab {
        fn new() -> Self {
            let loaded = parse("x.toml", SCENARIO, &Choice::default(), &|_| Err(String::new()));
            let plan = Plan::new(loaded.unwrap().scenario).unwrap();
            let clock = Clock::start();
            let stamps = Stamps::new(TAG, clock, plan.streams());
            Self { sinks: Sinks::open(&plan, clock, TAG).unwrap(), stamps }
        }

        fn payload(&self, topic: &str, stream: StreamId, sequence: u32) -> Vec<u8> {
            let stamp = Stamp { due_ns: 0, stream, sequence };
            let front = self.stamps.write(stamp, Sum::of(topic.as_bytes()), Sum::of(b"rest"));
            [&front[..], b"rest"].concat()
        }

        fn arrive(&self, subject: Option<&str>, payload: Vec<u8>) {
            let event = Event { subject: subject.map(Into::into), payload: payload.into() };
            lock(&self.sinks.0[0].book).receive(Ok(event));
        }

        fn judge(&self, sent: u32) -> SinkResults {
            let mut table = SentTable::default();
            table.streams.insert(OWN, Sent::new(sent, 1, 0, 1_000));
            table.streams.insert(OTHER, Sent::new(sent, 0, 0, 1_000));
            let mut part = Part::default();
            self.sinks.judge(&table, &[(0.0, 1.0)], &mut part).remove(0)
        }
    }

    #[test]
    fn what_arrives_is_held_against_what_was_sent_on_its_topics() {
        let lab = Lab::new();
        lab.sinks.count(Counting::Yes);
        for sequence in [0, 1, 4, 3, 4, 5] {
            lab.arrive(Some("own/1"), lab.payload("own/1", OWN, sequence));
        }
        // The form `raw` has no subject.
        lab.arrive(None, lab.payload("own/1", OWN, 6));
        let found = lab.judge(10);
        let count = IntegrityCount {
            qos: 1,
            expected: 10,
            received: 6,
            lost: 4,
            duplicated: 1,
            reordered: 1,
            ..IntegrityCount::default()
        };
        assert_eq!(found.by_qos, [count]);
        assert_eq!((found.events, found.missing, found.latency.count), (7, 4, 7));
        assert_eq!(found.worst[0].missing, [(2, 2), (7, 9)]);
        assert_eq!(
            (found.worst[0].topic.as_str(), found.worst[0].publisher.as_str()),
            ("own/1", "pub-1")
        );
        assert_eq!(found.wrongs().map(|(_, n)| n), [0; 4]);
    }

    #[test]
    fn what_nobody_sent_there_stands_for_no_message() {
        let lab = Lab::new();
        lab.arrive(Some("own/0"), lab.payload("own/1", OWN, 0));
        lab.arrive(Some("other/0"), lab.payload("other/0", OTHER, 0));
        lab.arrive(Some("own/1"), b"no stamp in this payload".to_vec());
        lab.arrive(None, Vec::new());
        lock(&lab.sinks.0[0].book).receive(Err(EventError::NoJson));
        let foreign = Stamps::new(TAG + 1, Clock::start(), 4);
        let foreign = Lab { stamps: foreign, ..Lab::new() }.payload("own/1", OWN, 0);
        lab.arrive(Some("own/1"), foreign);
        let found = lab.judge(1);
        assert_eq!(found.by_qos[0].lost, 1);
        let wrongs = [found.misrouted, found.wrong_topic, found.damaged, found.unreadable];
        assert_eq!((wrongs, found.foreign), ([1, 1, 2, 1], 1));
        assert!(lab.sinks.reasons()[0].contains("1 messages of other runs"));
    }

    #[test]
    fn a_sink_with_a_part_of_the_topics_is_waited_for_to_the_end() {
        let mut lab = Lab::new();
        lab.arrive(Some("own/1"), lab.payload("own/1", OWN, 0));
        assert!(lab.sinks.are_open(1, 29_999_000_000), "the rest may be on its topics");
        assert!(!lab.sinks.are_open(1, 30_000_000_000));
        lab.sinks.0[0].takes_all = true;
        assert!(!lab.sinks.are_open(1, 0), "all is there");
        assert!(lab.sinks.are_open(2, 0));
    }

    #[test]
    fn a_rate_is_that_of_the_whole_seconds_of_measured_stages() {
        let lab = Lab::new();
        let mut book = lock(&lab.sinks.0[0].book);
        book.by_second = vec![5, 10, 20, 40];
        assert_eq!(book.per_sec(&[(0.5, 3.0)]), 15.0);
        assert_eq!(book.per_sec(&[(0.0, 1.0), (3.0, 5.5)]), 15.0, "nothing in the last one");
        assert_eq!(book.per_sec(&[(1.2, 1.8)]), 10.0);
        assert_eq!(book.per_sec(&[]), 0.0);
        for (at_secs, latency_ns) in [(10, 1_000_000), (59, 3_000_000), (185, 2_000_000)] {
            book.note_time(at_secs * SECOND_NS, latency_ns);
        }
        book.end_minute();
        let found = book.minutes.iter().map(|minute| (minute.minute, minute.received));
        assert_eq!(found.collect::<Vec<_>>(), [(1, 2), (2, 0), (3, 0), (4, 1)]);
        assert!((3_000..3_010).contains(&book.minutes[0].latency.max_us));
        assert_eq!(book.minutes[3].latency.count, 1);
    }
}
