use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn rules() -> DispatchRules {
    DispatchRules {
        lanes: 4,
        batch_records_max: 8,
        batch_bytes_max: 1000,
        attempts_max: 4,
        retry_after_ms: vec![10, 100],
        probation_ms: (5, 40),
        ..DispatchRules::default()
    }
}

fn id(ordinal: u64) -> RecordId {
    RecordId { shard: 0, ordinal }
}

struct Bench {
    dispatch: Dispatch,
    now_ms: u64,
    sent: VecDeque<(BatchId, Vec<u64>)>,
    delivered: Vec<u64>,
    dead: Vec<(u64, DeadReason, u32)>,
}

impl Bench {
    /// With records whose order hash is their number modulo `keys`.
    fn with(records: u64, keys: u64) -> Self {
        let mut dispatch = Dispatch::new(rules());
        for ordinal in 0..records {
            dispatch.offer(Offered { id: id(ordinal), order_hash: ordinal % keys, bytes: 10 });
        }
        let (sent, delivered, dead) = (VecDeque::new(), Vec::new(), Vec::new());
        let mut bench = Self { dispatch, now_ms: 1000, sent, delivered, dead };
        bench.work();
        bench
    }

    fn work(&mut self) {
        let mut out = Vec::new();
        self.dispatch.work(self.now_ms, &mut out);
        self.take(out);
    }

    fn take(&mut self, out: Vec<Effect>) {
        for effect in out {
            match effect {
                Effect::Send { batch, records, .. } => {
                    self.sent.push_back((batch, records.iter().map(|id| id.ordinal).collect()));
                }
                Effect::Delivered(id) => self.delivered.push(id.ordinal),
                Effect::Withdrawn(_) => panic!("all are wanted"),
                Effect::DeadLetter(dead) => {
                    self.dead.push((dead.id.ordinal, dead.reason, dead.attempts));
                }
            }
        }
    }

    /// Answers the oldest batch.
    fn answer(&mut self, answer: impl FnOnce(&[u64]) -> Answer) -> Vec<u64> {
        let (batch, records) = self.sent.pop_front().expect("something is under way");
        let mut out = Vec::new();
        self.dispatch.on_answer(batch, answer(&records), self.now_ms, &mut out);
        self.take(out);
        self.work();
        records
    }

    fn pass(&mut self, millis: u64) {
        self.now_ms += millis;
        self.work();
    }
}

fn accepted(records: &[u64]) -> Answer {
    Answer::Records(vec![RecordAnswer::Accepted; records.len()])
}

fn unknown(_: &[u64]) -> Answer {
    Answer::Unknown("500".to_owned())
}

#[test]
fn a_lane_has_one_batch_under_way_and_batches_have_limits() {
    let mut bench = Bench::with(20, 2);
    assert_eq!(bench.sent.len(), 2);
    assert_eq!(bench.sent[0].1, [0, 2, 4, 6, 8, 10, 12, 14]);
    bench.answer(accepted);
    assert_eq!(bench.sent[1].1, [16, 18]);
    assert_eq!(bench.dispatch.in_flight(), 12);
    assert_eq!(bench.dispatch.wanted(), 10_000 - 12);
}

#[test]
fn a_record_that_is_larger_than_a_batch_is_sent_alone() {
    let mut dispatch = Dispatch::new(rules());
    for (ordinal, bytes) in [(0, 600), (1, 5000), (2, 600), (3, 500)] {
        dispatch.offer(Offered { id: id(ordinal), order_hash: 0, bytes });
    }
    let mut sizes = Vec::new();
    for _ in 0..4 {
        let mut out = Vec::new();
        dispatch.work(0, &mut out);
        let Some(Effect::Send { batch, records, .. }) = out.pop() else { panic!() };
        sizes.push(records.len());
        let answer = Answer::Records(vec![RecordAnswer::Accepted; records.len()]);
        dispatch.on_answer(batch, answer, 0, &mut out);
    }
    assert_eq!(sizes, [1, 1, 1, 1]);
}

#[test]
fn a_refused_batch_is_halved_at_once_until_one_record_is_found() {
    let mut bench = Bench::with(8, 1);
    let refuses = |records: &[u64]| match records.contains(&5) {
        true => Answer::Refused("too large".to_owned()),
        false => accepted(records),
    };
    let mut sent = Vec::new();
    while !bench.sent.is_empty() {
        sent.push(bench.answer(refuses));
    }
    assert_eq!(sent[0], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(sent[1..4], [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![4, 5]]);
    assert_eq!(sent[4..], [vec![4], vec![5], vec![6, 7]]);
    assert_eq!(bench.delivered, [0, 1, 2, 3, 4, 6, 7]);
    assert_eq!(bench.dead, [(5, DeadReason::Refused, 0)]);
}

#[test]
fn a_record_that_was_refused_in_company_is_sent_alone_and_only_then_refused() {
    let mut dispatch = Dispatch::new(rules());
    dispatch.offer(Offered { id: id(0), order_hash: 0, bytes: 10 });
    let mut alone = Vec::new();
    let mut out = Vec::new();
    for _ in 0..2 {
        dispatch.work(0, &mut out);
        let Some(Effect::Send { batch, is_alone, .. }) = out.pop() else { panic!() };
        alone.push(is_alone);
        dispatch.on_answer(batch, Answer::Refused("no".to_owned()), 0, &mut out);
    }
    assert_eq!(alone, [false, true]);
    assert!(matches!(&out[..], [Effect::DeadLetter(dead)] if dead.id == id(0)), "{out:?}");
}

#[test]
fn a_record_that_is_not_wanted_any_more_is_withdrawn_ahead_of_its_next_attempt() {
    let mut bench = Bench::with(4, 1);
    let (batch, _) = bench.sent.pop_front().expect("it is under way");
    let mut out = Vec::new();
    bench.dispatch.on_answer(batch, Answer::Unavailable("away".to_owned()), 1000, &mut out);
    let sends = |out: &[Effect]| match out {
        [.., Effect::Send { records, .. }] => records.iter().map(|id| id.ordinal).collect(),
        _ => Vec::new(),
    };
    bench.dispatch.work_if(2000, |id| id.ordinal % 2 == 1, &mut out);
    assert_eq!(out[..2], [Effect::Withdrawn(id(0)), Effect::Withdrawn(id(2))]);
    assert_eq!((sends(&out), bench.dispatch.in_flight()), (vec![1, 3], 2));
    let Some(Effect::Send { batch, .. }) = out.pop() else { panic!() };
    out.clear();
    bench.dispatch.on_answer(batch, Answer::Unavailable("away".to_owned()), 2000, &mut out);
    bench.dispatch.offer(Offered { id: id(9), order_hash: 0, bytes: 10 });
    bench.dispatch.work_if(9000, |id| id.ordinal == 9, &mut out);
    assert_eq!((sends(&out), bench.dispatch.in_flight()), (vec![9], 1));
}

#[test]
fn each_part_of_a_halved_batch_is_withdrawn() {
    let mut bench = Bench::with(2, 1);
    let (batch, _) = bench.sent.pop_front().expect("it is under way");
    let mut out = Vec::new();
    bench.dispatch.on_answer(batch, Answer::Refused("no".to_owned()), 1000, &mut out);
    bench.dispatch.work_if(1000, |_| false, &mut out);
    assert_eq!(out, [Effect::Withdrawn(id(0)), Effect::Withdrawn(id(1))]);
    assert_eq!(bench.dispatch.in_flight(), 0);
}

#[test]
fn an_answer_of_an_earlier_run_is_taken_for_no_batch() {
    let mut bench = Bench::with(1, 1);
    let (batch, _) = bench.sent.pop_front().expect("it is under way");
    bench.dispatch = std::mem::replace(&mut bench.dispatch, Dispatch::new(rules())).renewed();
    bench.dispatch.offer(Offered { id: id(7), order_hash: 0, bytes: 10 });
    bench.work();
    let mut out = Vec::new();
    bench.dispatch.on_answer(batch, accepted(&[0]), 2000, &mut out);
    assert_eq!(out, []);
    bench.answer(accepted);
    assert_eq!(bench.delivered, [7]);
}

#[test]
fn a_record_that_the_target_never_decides_about_is_found_while_it_answers_others() {
    let mut bench = Bench::with(8, 2);
    for _ in 0..200 {
        let fails = |records: &[u64]| match records.contains(&4) {
            true => unknown(records),
            false => accepted(records),
        };
        if bench.sent.is_empty() {
            let Some(at_ms) = bench.dispatch.next_deadline() else { break };
            bench.now_ms = bench.now_ms.max(at_ms);
            // Others go on meanwhile.
            let next = 100 + 2 * bench.delivered.len() as u64 + 1;
            bench.dispatch.offer(Offered { id: id(next), order_hash: 1, bytes: 10 });
            bench.work();
        }
        while !bench.sent.is_empty() {
            bench.answer(fails);
        }
        if !bench.dead.is_empty() {
            break;
        }
    }
    assert_eq!(bench.dead, [(4, DeadReason::AttemptsUsedUp, 4)]);
    assert!([0, 2, 6].iter().all(|it| bench.delivered.contains(it)), "{:?}", bench.delivered);
}

#[test]
fn a_target_that_is_away_costs_no_attempt_and_is_probed_by_one_batch() {
    let mut bench = Bench::with(40, 4);
    assert_eq!(bench.sent.len(), 4);
    for _ in 0..4 {
        bench.answer(|_| Answer::Unavailable("refused".to_owned()));
    }
    assert!(bench.sent.is_empty());
    let waits = bench.dispatch.waits(bench.now_ms);
    assert_eq!(waits, Some(Waits::Probation { until_ms: 1005, reason: "refused".to_owned() }));
    let mut delays = Vec::new();
    for _ in 0..5 {
        let until_ms = bench.dispatch.next_deadline().expect("it is tried again");
        delays.push(until_ms - bench.now_ms);
        bench.pass(until_ms - bench.now_ms - 1);
        assert!(bench.sent.is_empty(), "not before its time");
        bench.pass(1);
        assert_eq!(bench.sent.len(), 1, "one batch finds out");
        bench.answer(|_| Answer::Unavailable("refused".to_owned()));
    }
    assert_eq!(delays, [5, 10, 20, 40, 40]);
    bench.pass(40);
    bench.answer(accepted);
    assert_eq!(bench.sent.len(), 4, "all lanes go on");
    while !bench.sent.is_empty() {
        bench.answer(accepted);
    }
    assert_eq!((bench.delivered.len(), bench.dead.len()), (40, 0));
}

#[test]
fn a_target_that_hangs_for_all_costs_no_attempt() {
    let mut bench = Bench::with(8, 2);
    for _ in 0..100 {
        while !bench.sent.is_empty() {
            bench.answer(unknown);
        }
        bench.pass(50);
    }
    assert_eq!((bench.delivered.len(), bench.dead.len()), (0, 0));
    while bench.dispatch.in_flight() > 0 {
        bench.pass(50);
        while !bench.sent.is_empty() {
            bench.answer(accepted);
        }
    }
    assert_eq!(bench.delivered.len(), 8);
}

#[test]
fn a_busy_target_is_left_alone_until_it_says() {
    let mut bench = Bench::with(8, 2);
    bench.answer(|_| Answer::Busy { until_ms: 1300 });
    bench.answer(accepted);
    assert!(bench.sent.is_empty(), "what was under way does not end it");
    assert_eq!(bench.dispatch.next_deadline(), Some(1300));
    bench.pass(299);
    assert!(bench.sent.is_empty());
    bench.pass(1);
    assert_eq!(bench.answer(accepted), [0, 2, 4, 6]);
    assert_eq!((bench.delivered.len(), bench.dispatch.in_flight()), (8, 0));
}

#[test]
fn an_answer_to_no_batch_or_to_an_earlier_one_is_ignored() {
    let mut bench = Bench::with(2, 1);
    let batch = bench.sent[0].0;
    bench.answer(accepted);
    let mut out = Vec::new();
    bench.dispatch.on_answer(batch, Answer::Refused("late".to_owned()), 2000, &mut out);
    assert_eq!(out, []);
}

/// A target with its own mind, and what it has got.
struct Store {
    refused: BTreeSet<u64>,
    /// It fails with these for ever.
    failing: BTreeSet<u64>,
    got: Vec<u64>,
    /// Unknown answers to a record that was sent alone.
    unknown: BTreeMap<u64, u32>,
}

impl Store {
    /// `fate`: what the weather is.
    fn answer(&mut self, records: &[u64], fate: u8, now_ms: u64) -> Answer {
        let answer = self.decide(records, fate, now_ms);
        let is_unknown = match &answer {
            Answer::Unknown(_) => true,
            Answer::Records(all) => matches!(all[..], [RecordAnswer::Unknown(_)]),
            _ => false,
        };
        if is_unknown && records.len() == 1 {
            *self.unknown.entry(records[0]).or_default() += 1;
        }
        answer
    }

    fn decide(&mut self, records: &[u64], fate: u8, now_ms: u64) -> Answer {
        let is_sound = |it: &u64| !self.refused.contains(it) && !self.failing.contains(it);
        match fate {
            0 => return Answer::Unavailable("away".to_owned()),
            1 => return unknown(records),
            2 => {
                // It has them, and the answer is lost.
                if records.iter().all(is_sound) {
                    self.got.extend(records);
                }
                return unknown(records);
            }
            3 if records.iter().any(|it| self.refused.contains(it)) => {
                return Answer::Refused("one of them".to_owned());
            }
            4 => return Answer::Busy { until_ms: now_ms + 30 },
            6..=8 if records.iter().any(|it| self.failing.contains(it)) => {
                return unknown(records);
            }
            _ => {}
        }
        self.answer_each(records)
    }

    /// As Kafka: a record that is not stored stops those behind it in its batch.
    fn answer_each(&mut self, records: &[u64]) -> Answer {
        let mut answers = Vec::new();
        let mut is_stopped = false;
        for record in records {
            is_stopped |= self.failing.contains(record);
            answers.push(match () {
                () if is_stopped => RecordAnswer::Unknown("500".to_owned()),
                () if self.refused.contains(record) => RecordAnswer::Refused("it".to_owned()),
                () => {
                    self.got.push(*record);
                    RecordAnswer::Accepted
                }
            });
        }
        Answer::Records(answers)
    }
}

fn has_outcome(bench: &Bench, record: u64) -> bool {
    bench.delivered.contains(&record) || bench.dead.iter().any(|(dead, ..)| *dead == record)
}

/// Until each of the first records has an outcome.
fn run(bench: &mut Bench, store: &mut Store, count: u64, weather: Vec<(u8, usize)>) {
    let mut weather = weather.into_iter();
    let mut more = 1000;
    for _ in 0..20_000 {
        if (0..count).all(|it| has_outcome(bench, it)) {
            return;
        }
        if bench.sent.is_empty() {
            // What fails is found only while the target answers others.
            bench.dispatch.offer(Offered { id: id(more), order_hash: more, bytes: 10 });
            more += 1;
            let at_ms = bench.dispatch.next_deadline().expect("it is not stuck");
            bench.now_ms = bench.now_ms.max(at_ms);
            bench.work();
            continue;
        }
        let (fate, place) = weather.next().unwrap_or((9, 0));
        let place = place % bench.sent.len();
        bench.sent.rotate_left(place);
        let now_ms = bench.now_ms;
        bench.answer(|records| store.answer(records, fate, now_ms));
    }
    panic!("it does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever the weather: each record has one outcome, the right one, and those of a key arrive
    /// in their order.
    #[test]
    fn every_record_has_one_outcome_and_order_holds(
        count in 1_u64..60,
        keys in 2_u64..6,
        refused in prop::collection::btree_set(0_u64..60, 0..4),
        failing in prop::collection::btree_set(0_u64..60, 0..3),
        weather in prop::collection::vec((0_u8..12, 0_usize..4), 0..80),
    ) {
        let mut bench = Bench::with(count, keys);
        let failing: BTreeSet<u64> = failing.difference(&refused).copied().collect();
        let mut store = Store { refused, failing, got: Vec::new(), unknown: BTreeMap::new() };
        run(&mut bench, &mut store, count, weather);
        let dead: BTreeMap<u64, DeadReason> =
            bench.dead.iter().map(|(record, reason, _)| (*record, *reason)).collect();
        prop_assert_eq!(dead.len(), bench.dead.len(), "no record is dead twice");
        let delivered: BTreeSet<u64> = bench.delivered.iter().copied().collect();
        prop_assert_eq!(delivered.len(), bench.delivered.len(), "no record is done twice");
        for record in 0..count {
            // Bad weather may hit the same record again and again, while others get through.
            let unlucky = store.unknown.get(&record).is_some_and(|it| *it >= rules().attempts_max);
            if unlucky && dead.get(&record) == Some(&DeadReason::AttemptsUsedUp) {
                continue;
            }
            let expected = match () {
                () if store.refused.contains(&record) => Some(DeadReason::Refused),
                () if store.failing.contains(&record) => Some(DeadReason::AttemptsUsedUp),
                () => None,
            };
            prop_assert_eq!(dead.get(&record).copied(), expected, "record {}", record);
            prop_assert_eq!(delivered.contains(&record), expected.is_none(), "record {}", record);
            prop_assert_eq!(store.got.contains(&record), expected.is_none());
        }
        for key in 0..keys {
            let mut seen = BTreeSet::new();
            let of_key = store.got.iter().filter(|it| **it < count && **it % keys == key);
            let first: Vec<u64> = of_key.copied().filter(|it| seen.insert(*it)).collect();
            prop_assert!(first.is_sorted(), "{:?}", first);
        }
    }
}
