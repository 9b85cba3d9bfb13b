//! The owner of streams by single steps: what it orders, sends and says, and what it costs.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::Durability;
use broker::journal::StreamRecord;
use broker::streams::{
    ConsumerNumber, OrderRefusal, StoredRecord, StreamChange, StreamNews, StreamNumber,
};
use codec::QoS;
use routing::dispatch::{Answer, BatchId, RecordAnswer};
use routing::rule::Draft;
use routing::{DispatchRules, Form, Outcome, Rule};
use storage::stream::{StreamCommand, StreamLimits};
use storage::{Fault, FaultKind};
use streams::{
    ConsumerDefinition, ConsumerView, DefinitionError, Effect, Full, Happening, Hub, HubSettings,
    Order, Outgoing, ReadFiles, Seek, Start, StreamDefinition,
};

const MAIN: StreamNumber = StreamNumber(1);
const DEAD: StreamNumber = StreamNumber(2);

/// Files in memory.
#[derive(Default)]
struct Files(BTreeMap<(StreamNumber, u64), Vec<u8>>);

impl ReadFiles for Files {
    fn read(
        &self,
        stream: StreamNumber,
        file: u64,
        offset: u64,
        bytes: usize,
    ) -> std::io::Result<Vec<u8>> {
        let content = self.0.get(&(stream, file)).ok_or(std::io::ErrorKind::NotFound)?;
        let end = content.len().min(offset as usize + bytes);
        Ok(content[offset as usize..end].to_vec())
    }
}

struct Bench {
    hub: Hub,
    files: Files,
    now_ms: u64,
    next: BTreeMap<(StreamNumber, u16), u64>,
    sent: Vec<(ConsumerNumber, BatchId, bool, Vec<Outgoing>)>,
    orders: Vec<StreamChange>,
    happened: Vec<Happening>,
    /// Why orders of this kind are not done.
    refuses_dead: bool,
    writes_fail: bool,
    /// Orders to forget files that are not answered. None: they are answered at once.
    forgetting: Option<Vec<(u16, u64)>>,
}

fn stream(number: StreamNumber, limits: StreamLimits, full: Full) -> StreamDefinition {
    let identity = [number.0 as u8; 16];
    StreamDefinition { number, name: "s".into(), limits, full, identity }
}

fn rule(filter: &str) -> Arc<Rule> {
    let (name, filter) = ("r".to_owned(), filter.to_owned());
    let draft = Draft { name, is_enabled: true, filter, form: Form::Raw, ..Draft::default() };
    Arc::new(Rule::new(draft).expect("it is a rule"))
}

fn consumer(number: u32, filter: &str) -> ConsumerDefinition {
    ConsumerDefinition {
        number: ConsumerNumber(number),
        name: format!("c{number}").into(),
        stream: MAIN,
        namespace: "factory".into(),
        rule: rule(filter),
        dispatch: DispatchRules { lanes: 1, in_flight_max: 100, ..DispatchRules::default() },
        order: Order::Lanes,
        start: Start::New,
        dead_letter: None,
        skip_expired: false,
        in_flight_bytes_max: 1 << 20,
    }
}

impl Bench {
    fn new(settings: HubSettings, limits: StreamLimits, full: Full) -> Self {
        let mut hub = Hub::new(settings);
        let main = stream(MAIN, limits, full);
        hub.add_stream(main, Vec::new(), &BTreeMap::new()).expect("it is new");
        let dead = stream(DEAD, StreamLimits::default(), Full::DropOldest);
        hub.add_stream(dead, Vec::new(), &BTreeMap::new()).expect("it is new");
        Self {
            hub,
            files: Files::default(),
            now_ms: 10_000,
            next: BTreeMap::new(),
            sent: Vec::new(),
            orders: Vec::new(),
            happened: Vec::new(),
            refuses_dead: false,
            writes_fail: false,
            forgetting: None,
        }
    }

    fn with(consumers: Vec<ConsumerDefinition>) -> Self {
        let mut bench = Self::new(HubSettings::new(1), StreamLimits::default(), Full::DropOldest);
        for consumer in consumers {
            bench.hub.add_consumer(consumer, &BTreeMap::new()).expect("it is sound");
        }
        bench.work();
        bench
    }

    fn publish(&mut self, topics: &[&str]) {
        let record = |topic: &&str| {
            let mut bytes = Vec::new();
            let record = StreamRecord {
                at_ms: self.now_ms,
                life: 1,
                qos: QoS::AtLeastOnce,
                retain: false,
                expires_at_ms: u64::MAX,
                client_id: "c",
                username: None,
                attributes: &[],
                topic,
                properties: &[],
                payload: topic.as_bytes(),
            };
            record.encode(&mut bytes);
            StoredRecord { at_ms: self.now_ms, bytes: Arc::new(bytes) }
        };
        let records: Vec<StoredRecord> = topics.iter().map(record).collect();
        self.store(MAIN, records);
        self.work();
    }

    fn store(&mut self, stream: StreamNumber, records: Vec<StoredRecord>) {
        let next = self.next.entry((stream, 0)).or_default();
        let first = *next;
        *next += records.len() as u64;
        let next = *next;
        self.hub.on_news(0, StreamNews::Stored { stream, first, records }, self.now_ms);
        self.hub.on_news(0, StreamNews::Synced { stream, next }, self.now_ms);
    }

    /// Until nothing is to be done. Orders and files are done at once.
    fn work(&mut self) {
        for _ in 0..10_000 {
            let mut out = Vec::new();
            self.hub.work(self.now_ms, &self.files, &mut out);
            for effect in out {
                self.take(effect);
            }
            if !self.hub.has_work() {
                return;
            }
        }
        panic!("it never rests");
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Order { shard, order } => {
                let mut result = Ok(());
                if let StreamChange::DeadLetter { stream, record, .. } = &order.change {
                    match self.refuses_dead {
                        true => result = Err(OrderRefusal::TryAgain),
                        false => {
                            let bytes = Arc::clone(record);
                            self.store(*stream, vec![StoredRecord { at_ms: self.now_ms, bytes }]);
                        }
                    }
                }
                let is_drop = matches!(order.change, StreamChange::Dropped { .. });
                self.orders.push(order.change);
                if let Some(forgetting) = self.forgetting.as_mut().filter(|_| is_drop) {
                    return forgetting.push((shard, order.id));
                }
                let done = StreamNews::Done { order: order.id, result };
                self.hub.on_news(shard, done, self.now_ms);
            }
            Effect::File { stream, command } => self.write(stream, command),
            Effect::Send { consumer, batch, is_alone, records } => {
                self.sent.push((consumer, batch, is_alone, records));
            }
            Effect::Happened(happening) => self.happened.push(happening),
        }
    }

    fn write(&mut self, stream: StreamNumber, command: StreamCommand) {
        match command {
            StreamCommand::Write { id, file, offset, bytes } => {
                let fault = Fault { kind: FaultKind::NoSpace, detail: "no space".to_owned() };
                let result = if self.writes_fail { Err(fault) } else { Ok(()) };
                if result.is_ok() {
                    let content = self.files.0.entry((stream, file)).or_default();
                    content.resize(offset as usize, 0);
                    content.extend(bytes);
                }
                self.hub.on_file(stream, id, result, self.now_ms);
            }
            StreamCommand::Close { .. } => {}
            StreamCommand::Delete { file } => drop(self.files.0.remove(&(stream, file))),
        }
    }

    fn pass(&mut self, millis: u64) {
        self.now_ms += millis;
        self.work();
    }

    /// Answers all batches until there are none.
    fn answer(&mut self, answer: impl Fn(&[Outgoing]) -> Answer) {
        while !self.sent.is_empty() {
            let (consumer, batch, _, records) = self.sent.remove(0);
            self.hub.on_answer(consumer, batch, answer(&records), self.now_ms);
            self.work();
        }
    }

    fn view(&mut self, number: u32) -> ConsumerView {
        let view = self.hub.view(ConsumerNumber(number), self.now_ms).expect("it is there");
        assert!(view.adds_up, "{view:?}");
        view
    }

    fn state(&mut self, number: u32) -> &'static str {
        self.view(number).state.name()
    }

    fn total(&mut self, number: u32, outcome: Outcome) -> u64 {
        self.view(number).sum.total(outcome)
    }
}

fn accepted(records: &[Outgoing]) -> Answer {
    Answer::Records(vec![RecordAnswer::Accepted; records.len()])
}

fn refused(_: &[Outgoing]) -> Answer {
    Answer::Refused("too large".to_owned())
}

#[test]
fn a_message_is_sent_and_its_outcome_is_committed_within_a_second() {
    let mut bench = Bench::with(vec![consumer(1, "a/#")]);
    assert_eq!(bench.state(1), "idle");
    bench.publish(&["a/x", "b/x"]);
    let outgoing = &bench.sent[0].3[0];
    assert_eq!(outgoing.output.body.as_deref(), Some(&b"a/x"[..]));
    assert_eq!(outgoing.event_id.as_str().len(), 32);
    assert_eq!(bench.state(1), "running");
    bench.answer(accepted);
    bench.orders.clear();
    bench.pass(999);
    assert!(bench.orders.is_empty(), "{:?}", bench.orders);
    bench.pass(1);
    assert_eq!(levels_of_cursors(&bench), [Durability::Disk], "{:?}", bench.orders);
    let view = bench.view(1);
    assert_eq!((view.sum.stored, view.sum.lag(), view.state.name()), (2, 0, "idle"));
    assert_eq!(view.sum.total(Outcome::NotMatched), 1);
    assert_eq!(view.sum.total(Outcome::Delivered), 1);
}

fn levels_of_cursors(bench: &Bench) -> Vec<Durability> {
    let level = |change: &StreamChange| match change {
        StreamChange::Cursor { level, .. } => Some(*level),
        _ => None,
    };
    bench.orders.iter().filter_map(level).collect()
}

/// A loss of power does not undo it on some shards.
#[test]
fn a_run_begins_once_its_cursors_are_synced() {
    let mut bench = Bench::with(vec![consumer(1, "a/#")]);
    assert_eq!(levels_of_cursors(&bench), [Durability::Fsync], "a new consumer");
    bench.orders.clear();
    bench.hub.seek(ConsumerNumber(1), &Seek::Beginning, bench.now_ms);
    bench.work();
    assert_eq!(levels_of_cursors(&bench), [Durability::Fsync], "a seek");
}

#[test]
fn a_consumer_that_is_paused_sends_nothing_and_takes_answers() {
    let mut bench = Bench::with(vec![consumer(1, "#")]);
    bench.publish(&["a"]);
    bench.hub.pause(ConsumerNumber(1), bench.now_ms);
    bench.publish(&["b"]);
    assert_eq!((bench.sent.len(), bench.state(1)), (1, "paused"));
    bench.answer(accepted);
    let view = bench.view(1);
    assert_eq!((view.sum.total(Outcome::Delivered), view.sum.pending), (1, 1));
    bench.pass(5_000);
    assert_eq!(bench.view(1).lag_ms, Some(5_000));
    bench.hub.resume(ConsumerNumber(1), bench.now_ms);
    bench.work();
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (2, "idle"));
}

#[test]
fn the_end_of_a_suspension_does_not_resume_what_an_operator_has_paused() {
    let mut bench = Bench::with(vec![consumer(1, "#"), consumer(2, "#")]);
    let number = ConsumerNumber(1);
    bench.publish(&["a"]);
    bench.answer(accepted);
    bench.hub.set_suspended(number, true, bench.now_ms);
    bench.publish(&["b"]);
    bench.answer(accepted);
    assert_eq!((bench.state(1), bench.state(2)), ("suspended", "idle"));
    assert_eq!(bench.view(1).state.reason(), "namespace suspended");
    // Neither an operator's resume nor the end of the suspension alone has it send.
    bench.hub.pause(number, bench.now_ms);
    bench.hub.resume(number, bench.now_ms);
    bench.work();
    assert_eq!((bench.sent.len(), bench.state(1)), (0, "suspended"));
    bench.hub.pause(number, bench.now_ms);
    bench.hub.set_suspended(number, false, bench.now_ms);
    bench.pass(60_000);
    assert_eq!((bench.sent.len(), bench.state(1)), (0, "paused"));
    bench.hub.resume(number, bench.now_ms);
    bench.work();
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (2, "idle"));
}

#[test]
fn a_suspended_consumer_takes_answers_and_can_be_removed() {
    let mut bench = Bench::with(vec![consumer(1, "#")]);
    bench.publish(&["a"]);
    bench.hub.set_suspended(ConsumerNumber(1), true, bench.now_ms);
    bench.answer(accepted);
    assert_eq!(bench.total(1, Outcome::Delivered), 1);
    bench.hub.remove_consumer(ConsumerNumber(1), bench.now_ms);
    bench.pass(60_000);
    assert!(bench.hub.view(ConsumerNumber(1), bench.now_ms).is_none(), "it has ended");
}

#[test]
fn a_target_that_is_away_stops_no_other_consumer() {
    let mut bench = Bench::with(vec![consumer(1, "#"), consumer(2, "#")]);
    for round in 0..300_u64 {
        bench.publish(&["a", "b"]);
        while !bench.sent.is_empty() {
            let (consumer, batch, _, records) = bench.sent.remove(0);
            let answer = match consumer.0 {
                1 => Answer::Unavailable("connection refused".to_owned()),
                _ => accepted(&records),
            };
            bench.hub.on_answer(consumer, batch, answer, bench.now_ms);
            bench.work();
        }
        assert_eq!(bench.total(2, Outcome::Delivered), 2 * round + 2);
    }
    let view = bench.view(1);
    assert_eq!((view.state.name(), view.sum.in_flight, view.sum.pending), ("probation", 100, 500));
    assert!(view.state.reason().contains("connection refused"));
    bench.pass(120_000);
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (600, "idle"));
}

#[test]
fn a_record_is_a_dead_letter_once_the_stream_has_taken_it() {
    let dead = ConsumerDefinition { dead_letter: Some(DEAD), ..consumer(1, "a") };
    let of_dead = ConsumerDefinition { stream: DEAD, ..consumer(2, "#") };
    let mut bench = Bench::with(vec![dead, of_dead]);
    bench.refuses_dead = true;
    bench.publish(&["a"]);
    let (number, batch, is_alone, _) = bench.sent.remove(0);
    assert!(!is_alone);
    bench.hub.on_answer(number, batch, refused(&[]), bench.now_ms);
    bench.work();
    assert!(bench.sent[0].2, "refused in company, so it is sent alone");
    bench.answer(refused);
    bench.publish(&["a"]);
    let view = bench.view(1);
    assert_eq!(
        (view.state.name(), view.sum.in_flight, view.sum.pending),
        ("dead_letter_full", 1, 1)
    );
    bench.refuses_dead = false;
    bench.pass(1_000);
    assert_eq!(bench.total(1, Outcome::DeadLettered), 1);
    let letter = bench.sent.iter().find(|(consumer, ..)| consumer.0 == 2).expect("it is sent");
    assert_eq!(letter.3[0].output.body.as_deref(), Some(&b"a"[..]));
    bench.answer(accepted);
    assert_eq!((bench.state(1), bench.state(2)), ("idle", "idle"));
}

#[test]
fn a_dead_letter_waits_while_its_stream_rejects() {
    let dead = ConsumerDefinition { dead_letter: Some(DEAD), ..consumer(1, "a") };
    let of_dead = ConsumerDefinition { stream: DEAD, ..consumer(2, "#") };
    let mut bench = Bench::with(vec![dead, of_dead]);
    let limits = StreamLimits { records_max: Some(1), ..StreamLimits::default() };
    bench.hub.change_stream(stream(DEAD, limits, Full::Reject)).unwrap();
    bench.publish(&["a", "a"]);
    bench.hub.pause(ConsumerNumber(2), bench.now_ms);
    bench.answer(refused);
    bench.pass(2_000);
    // The first fills it, and the last waits for the consumer of dead letters.
    bench.publish(&["a"]);
    bench.answer(refused);
    bench.pass(2_000);
    assert!(bench.hub.is_full(DEAD));
    assert_eq!((bench.total(1, Outcome::DeadLettered), bench.state(1)), (2, "dead_letter_full"));
    bench.hub.resume(ConsumerNumber(2), bench.now_ms);
    bench.work();
    bench.answer(accepted);
    for _ in 0..40 {
        bench.pass(1_000);
        bench.answer(accepted);
    }
    assert_eq!((bench.total(1, Outcome::DeadLettered), bench.state(1)), (3, "idle"));
}

#[test]
fn without_a_dead_letter_stream_it_is_discarded_and_reported() {
    let mut bench = Bench::with(vec![consumer(1, "a")]);
    bench.publish(&["a"]);
    bench.answer(refused);
    assert_eq!(bench.total(1, Outcome::GivenUp), 1);
    assert!(
        bench.happened.iter().any(|it| matches!(it, Happening::Undelivered { stream: None, .. }))
    );
}

#[test]
fn dead_letters_do_not_come_back() {
    let mut bench = Bench::with(vec![]);
    let own = ConsumerDefinition { dead_letter: Some(MAIN), ..consumer(1, "a") };
    let refused = bench.hub.add_consumer(own, &BTreeMap::new());
    assert_eq!(refused, Err(DefinitionError::DeadLetterLoop(MAIN.0)));
    let there = ConsumerDefinition { dead_letter: Some(DEAD), ..consumer(1, "a") };
    bench.hub.add_consumer(there, &BTreeMap::new()).unwrap();
    let back = ConsumerDefinition { stream: DEAD, dead_letter: Some(MAIN), ..consumer(2, "a") };
    let refused = bench.hub.add_consumer(back.clone(), &BTreeMap::new());
    assert_eq!(refused, Err(DefinitionError::DeadLetterLoop(MAIN.0)));
    let none = ConsumerDefinition { dead_letter: None, ..back.clone() };
    bench.hub.add_consumer(none, &BTreeMap::new()).unwrap();
    assert!(bench.hub.change_consumer(back.clone(), 0).is_err());
    // One that was removed reads no more, although answers are still awaited.
    bench.hub.remove_consumer(ConsumerNumber(1), bench.now_ms);
    assert_eq!(bench.hub.change_consumer(back, 0), Ok(()));
    assert_eq!(bench.hub.remove_stream(DEAD), Err(DefinitionError::StreamUsed(DEAD.0)));
}

#[test]
fn a_stream_that_rejects_is_full_until_its_consumers_have_passed() {
    let limits = StreamLimits { records_max: Some(10), file_bytes: 600, ..StreamLimits::default() };
    let mut bench = Bench::new(HubSettings::new(1), limits, Full::Reject);
    bench.hub.add_consumer(consumer(1, "#"), &BTreeMap::new()).unwrap();
    bench.work();
    for _ in 0..6 {
        bench.publish(&["a", "b"]);
        bench.pass(31_000);
    }
    assert!(bench.hub.is_full(MAIN));
    assert_eq!(bench.total(1, Outcome::DroppedByRetention), 0);
    bench.answer(accepted);
    bench.pass(3_000);
    bench.pass(3_000);
    assert!(!bench.hub.is_full(MAIN));
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (12, "idle"));
}

#[test]
fn what_limits_delete_is_counted_for_each_consumer_that_has_not_passed_it() {
    let limits = StreamLimits { records_max: Some(10), file_bytes: 300, ..StreamLimits::default() };
    let settings = HubSettings { block_age_ms: 10, ..HubSettings::new(1) };
    let mut bench = Bench::new(settings, limits, Full::DropOldest);
    for number in [1, 2] {
        bench.hub.add_consumer(consumer(number, "#"), &BTreeMap::new()).unwrap();
    }
    bench.work();
    bench.hub.pause(ConsumerNumber(1), bench.now_ms);
    for _ in 0..30 {
        bench.publish(&["a"]);
        bench.answer(accepted);
        bench.pass(1_000);
    }
    bench.hub.seek(ConsumerNumber(2), &Seek::Beginning, bench.now_ms);
    bench.work();
    bench.answer(accepted);
    let dropped = bench.total(1, Outcome::DroppedByRetention);
    let view = bench.view(1);
    assert!(dropped > 10 && view.sum.pending + dropped == 30, "{view:?}");
    let reported = bench.happened.iter().map(|it| match it {
        Happening::Dropped { count, .. } => *count,
        _ => 0,
    });
    assert_eq!(reported.sum::<u64>(), dropped);
    assert_eq!((bench.total(2, Outcome::DroppedByRetention), bench.view(2).run), (0, 2));
    let deleted = bench.orders.iter().filter(|it| matches!(it, StreamChange::Dropped { .. }));
    assert!(deleted.count() > 0 && !bench.files.0.contains_key(&(MAIN, 1)));
}

/// A crash could bring back what a consumer has missed, behind what it has read.
#[test]
fn a_file_is_read_until_the_journals_have_forgotten_it() {
    let limits = StreamLimits { records_max: Some(10), file_bytes: 300, ..StreamLimits::default() };
    let settings = HubSettings { block_age_ms: 10, ..HubSettings::new(1) };
    let mut bench = Bench::new(settings, limits, Full::DropOldest);
    bench.hub.add_consumer(consumer(1, "#"), &BTreeMap::new()).unwrap();
    bench.work();
    bench.hub.pause(ConsumerNumber(1), bench.now_ms);
    bench.forgetting = Some(Vec::new());
    for _ in 0..30 {
        bench.publish(&["a"]);
        bench.pass(1_000);
    }
    bench.hub.resume(ConsumerNumber(1), bench.now_ms);
    bench.work();
    assert_eq!(bench.sent[0].3[0].id.ordinal, 0);
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (30, "idle"));
    assert!(bench.files.0.contains_key(&(MAIN, 1)));
    for (shard, order) in bench.forgetting.take().into_iter().flatten() {
        bench.hub.on_news(shard, StreamNews::Done { order, result: Ok(()) }, bench.now_ms);
    }
    bench.pass(2_000);
    assert!(!bench.files.0.contains_key(&(MAIN, 1)));
    assert_eq!(bench.total(1, Outcome::DroppedByRetention), 0);
}

#[test]
fn a_disk_with_little_space_makes_streams_drop_a_file_each_second_or_reject() {
    for full in [Full::DropOldest, Full::Reject] {
        let limits = StreamLimits { file_bytes: 300, ..StreamLimits::default() };
        let mut bench = Bench::new(HubSettings::new(1), limits, full);
        bench.hub.add_consumer(consumer(1, "a"), &BTreeMap::new()).unwrap();
        bench.hub.pause(ConsumerNumber(1), bench.now_ms);
        for _ in 0..9 {
            bench.publish(&["a"; 4]);
            bench.pass(31_000);
        }
        let files = |bench: &Bench| bench.files.0.keys().filter(|(own, _)| *own == MAIN).count();
        let before = files(&bench);
        assert!(before > 2, "{before}");
        bench.hub.set_disk_short(true);
        (0..6).for_each(|_| bench.pass(1000));
        let is_full = bench.hub.is_full(MAIN);
        match full {
            Full::DropOldest => {
                assert!(files(&bench) < before && !is_full);
                assert!(bench.total(1, Outcome::DroppedByRetention) > 0);
            }
            Full::Reject => assert!(files(&bench) == before && is_full),
        }
        bench.hub.set_disk_short(false);
        bench.pass(2000);
        assert!(!bench.hub.is_full(MAIN));
    }
}

#[test]
fn a_disk_that_is_full_is_tried_again_each_second() {
    let settings = HubSettings { block_age_ms: 10, ..HubSettings::new(1) };
    let mut bench = Bench::new(settings, StreamLimits::default(), Full::DropOldest);
    bench.writes_fail = true;
    bench.publish(&["a"]);
    for _ in 0..5 {
        bench.pass(1_000);
    }
    let faults = bench.happened.iter().filter(|it| matches!(it, Happening::WriteFault { .. }));
    assert_eq!(faults.count(), 1, "it is reported once");
    assert!(!bench.orders.iter().any(|it| matches!(it, StreamChange::Archived { .. })));
    bench.writes_fail = false;
    bench.pass(1_000);
    bench.pass(1_000);
    assert!(bench.happened.contains(&Happening::WriteResumed { stream: MAIN }));
    assert!(bench.orders.iter().any(|it| matches!(it, StreamChange::Archived { next: 1, .. })));
}

#[test]
fn memory_is_freed_once_records_are_in_files_and_a_consumer_behind_reads_these() {
    let settings =
        HubSettings { memory_max: 20_000, block_bytes_wait: 2_000, ..HubSettings::new(1) };
    let mut bench = Bench::new(settings, StreamLimits::default(), Full::DropOldest);
    let slow = ConsumerDefinition {
        dispatch: DispatchRules { in_flight_max: 1, lanes: 1, ..DispatchRules::default() },
        ..consumer(1, "#")
    };
    bench.hub.add_consumer(slow, &BTreeMap::new()).unwrap();
    bench.work();
    for _ in 0..100 {
        bench.publish(&["a", "b", "c", "d", "e"]);
        assert!(bench.hub.memory_bytes() < 20_000);
    }
    assert_eq!(bench.state(1), "in_flight_limit");
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::Delivered), bench.state(1)), (500, "idle"));
}

#[test]
fn a_thousand_idle_rules_cost_one_fact_each_in_ten_seconds_and_no_work_per_message() {
    let consumers = (1..=1_000).map(|number| consumer(number, &format!("none/{number}")));
    let mut bench = Bench::with(consumers.collect());
    bench.orders.clear();
    for _ in 0..100 {
        bench.publish(&["a/b"; 50]);
        bench.pass(100);
    }
    let cursors = bench.orders.iter().filter(|it| matches!(it, StreamChange::Cursor { .. }));
    let cursors = cursors.count();
    assert!((900..=1_100).contains(&cursors), "{cursors} cursors in ten seconds");
    assert!(bench.sent.is_empty());
    let view = bench.view(1_000);
    assert_eq!((view.sum.total(Outcome::NotMatched), view.state.name()), (5_000, "idle"));
}

#[test]
fn a_removed_consumer_awaits_answers_and_its_journals_forget_it() {
    let mut bench = Bench::with(vec![consumer(1, "#"), consumer(2, "#")]);
    bench.publish(&["a"]);
    for number in [1, 2] {
        bench.hub.remove_consumer(ConsumerNumber(number), bench.now_ms);
    }
    bench.publish(&["b"]);
    assert_eq!((bench.sent.len(), bench.state(1)), (2, "ending"));
    let (number, batch, _, records) = bench.sent.remove(0);
    bench.hub.on_answer(number, batch, accepted(&records), bench.now_ms);
    bench.work();
    assert!(bench.happened.contains(&Happening::Ended { consumer: number }));
    bench.pass(29_999);
    assert!(bench.hub.view(ConsumerNumber(2), bench.now_ms).is_some());
    bench.pass(1);
    assert!(bench.hub.view(ConsumerNumber(2), bench.now_ms).is_none());
    bench.hub.remove_stream(MAIN).unwrap();
}

#[test]
fn a_seek_by_time_finds_its_record_in_files_and_in_memory() {
    let settings = HubSettings { block_age_ms: 2_500, ..HubSettings::new(1) };
    let mut bench = Bench::new(settings, StreamLimits::default(), Full::DropOldest);
    bench.hub.add_consumer(consumer(1, "none"), &BTreeMap::new()).unwrap();
    bench.work();
    for _ in 0..20 {
        bench.publish(&["a", "b"]);
        bench.pass(1_000);
    }
    for (at_ms, start) in
        [(0, 0), (10_000, 0), (10_001, 2), (15_000, 10), (28_500, 38), (90_000, 40)]
    {
        bench.hub.seek(ConsumerNumber(1), &Seek::Time(at_ms), bench.now_ms);
        bench.work();
        let view = bench.view(1);
        assert_eq!((view.shards[0].start, view.sum.stored), (start, 40 - start), "{at_ms}");
    }
}

#[test]
fn another_revision_counts_for_retries_and_what_was_not_read() {
    let mut bench = Bench::with(vec![consumer(1, "#")]);
    bench.publish(&["a", "b"]);
    let (number, batch, ..) = bench.sent.remove(0);
    bench.hub.change_consumer(consumer(1, "b"), bench.now_ms).unwrap();
    bench.hub.on_answer(number, batch, Answer::Unavailable("away".to_owned()), bench.now_ms);
    bench.publish(&["a", "b"]);
    bench.pass(1_000);
    let sent: Vec<u64> = bench.sent[0].3.iter().map(|it| it.id.ordinal).collect();
    assert_eq!(sent, [1], "0 does not match any more");
    bench.answer(accepted);
    assert_eq!((bench.total(1, Outcome::NotMatched), bench.total(1, Outcome::Delivered)), (2, 2));
}
