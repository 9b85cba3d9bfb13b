//! Matching, interest and retained walks at the sizes a broker meets.
//!
//! `cargo bench -p quelea-topic`, or `cargo bench -p quelea-topic -- index/exact` for a part.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use topic::{Claim, Index, Interest, InterestCounts, Matches, Retainable, Retained, Subscription};

const SIZES: [u32; 3] = [1_000, 100_000, 1_000_000];
/// Topics that a benchmark goes round: the number of busy topics at one time.
const BUSY: usize = 256;

/// 90 % exact filters, 5 % with `+`, 5 % with `#`.
fn filter(number: u32) -> String {
    let site = number % 100;
    match number % 20 {
        0 => format!("site{site}/device{number}/+"),
        1 => format!("site{site}/device{number}/#"),
        _ => format!("site{site}/device{number}/status"),
    }
}

fn index_of(size: u32, filter: impl Fn(u32) -> String) -> Index {
    let mut index = Index::new(7);
    for number in 0..size {
        index.subscribe(
            &filter(number),
            Subscription { subscriber: number, options: 1, identifier: 0 },
        );
    }
    index
}

/// `count` topics of devices spread over all filters.
fn topics(size: u32, count: usize) -> Vec<String> {
    let step = (size as usize / count).max(1) | 1;
    let number = |place: usize| (place * step % size as usize) as u32;
    (0..count).map(number).map(|at| format!("site{}/device{at}/status", at % 100)).collect()
}

fn bench_matches(c: &mut Criterion, name: &str, count: usize, filter: impl Fn(u32) -> String) {
    let mut group = c.benchmark_group(name);
    for size in SIZES {
        let mut index = index_of(size, &filter);
        let topics = topics(size, count.min(size as usize));
        let mut found = Matches::default();
        let mut place = 0;
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                place = if place + 1 == topics.len() { 0 } else { place + 1 };
                index.matches(black_box(topics[place].as_bytes()), &mut found);
                found.subscriptions.len()
            });
        });
    }
    group.finish();
}

fn exact(number: u32) -> String {
    format!("site{}/device{number}/status", number % 100)
}

fn index(c: &mut Criterion) {
    bench_matches(c, "index/exact hit, busy topics", BUSY, exact);
    bench_matches(c, "index/exact hit, all topics", usize::MAX, exact);
    bench_matches(c, "index/cached route, busy topics", BUSY, filter);
    // Far more topics than the cache holds, so that nearly every look-up walks the trie.
    bench_matches(c, "index/trie walk, all topics", usize::MAX, filter);
}

/// The route itself, without the copying of its subscriptions.
fn route(c: &mut Criterion) {
    let mut group = c.benchmark_group("index/cached route, filters only");
    let mut index = index_of(100_000, filter);
    for count in [1, BUSY] {
        let topics = topics(100_000, count);
        let mut found = Vec::new();
        let mut place = 0;
        group.bench_function(format!("{count} busy topics"), |bencher| {
            bencher.iter(|| {
                place = if place + 1 == topics.len() { 0 } else { place + 1 };
                index.matching_filters(black_box(topics[place].as_bytes()), &mut found);
                found.len()
            });
        });
    }
    group.finish();
}

/// The walk alone on hot memory: each turn forgets all routes, as a new wildcard filter would.
fn walk(c: &mut Criterion) {
    let mut group = c.benchmark_group("index/trie walk, busy topics and one filter change");
    for size in SIZES {
        let mut index = index_of(size, filter);
        let topics = topics(size, BUSY);
        let mut found = Matches::default();
        group.throughput(Throughput::Elements(topics.len() as u64));
        group.bench_function(BenchmarkId::from_parameter(size), |bencher| {
            bencher.iter(|| {
                let probe = Subscription { subscriber: u32::MAX, options: 0, identifier: 0 };
                let id = index.subscribe("other/+", probe).filter;
                index.unsubscribe(id, u32::MAX);
                for topic in &topics {
                    index.matches(black_box(topic.as_bytes()), &mut found);
                }
                found.subscriptions.len()
            });
        });
    }
    group.finish();
}

fn churn(c: &mut Criterion) {
    let mut group = c.benchmark_group("index/subscribe and unsubscribe");
    for (name, text) in [("exact", "x/device/status"), ("wildcard", "x/device/+")] {
        let mut index = index_of(1_000_000, filter);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let one = Subscription { subscriber: 1, options: 0, identifier: 0 };
                let id = index.subscribe(black_box(text), one).filter;
                index.unsubscribe(id, 1)
            });
        });
    }
    let mut index = index_of(1_000_000, |_| "news".to_string());
    group.bench_function("one of a million on one filter", |bencher| {
        let mut subscriber = 0;
        bencher.iter(|| {
            subscriber = (subscriber + 7919) % 1_000_000;
            let one = Subscription { subscriber, options: 0, identifier: 0 };
            let id = index.find("news");
            let gone = id.and_then(|id| index.unsubscribe(id, subscriber));
            index.subscribe("news", one);
            gone
        });
    });
    group.finish();
}

fn interest(c: &mut Criterion) {
    let mut group = c.benchmark_group("interest/shards of a topic");
    for (name, has_wildcards) in [("exact filters only", false), ("with wildcards", true)] {
        for count in [BUSY, 100_000] {
            let interest = Interest::new(4, 20, 7);
            let mut counts = InterestCounts::new(3, &interest);
            for number in 0..100_000 {
                let text = if has_wildcards { filter(number) } else { exact(number) };
                counts.add(&interest, &text, Claim::Want);
            }
            let topics = topics(100_000, count);
            let mut place = 0;
            group.bench_function(BenchmarkId::new(name, format!("{count} topics")), |bencher| {
                bencher.iter(|| {
                    place = if place + 1 == topics.len() { 0 } else { place + 1 };
                    interest.shards(black_box(topics[place].as_bytes()))
                });
            });
        }
    }
    group.finish();
}

fn retained(c: &mut Criterion) {
    let mut retained = Retained::new();
    for number in 0..1_000_000_u32 {
        retained.insert(Named(topic_of(number)));
    }
    let mut group = c.benchmark_group("retained/1,000,000 topics");
    let mut number = 0;
    let mut next = move || {
        number = (number + 7919) % 1_000_000;
        topic_of(number)
    };
    group.bench_function("get", |bencher| {
        bencher.iter_batched(&mut next, |topic| retained.get(&topic).is_some(), BATCH);
    });
    group.bench_function("exact filter", |bencher| {
        bencher.iter_batched(&mut next, |topic| page(&retained, &topic, 10), BATCH);
    });
    group.bench_function("replace", |bencher| {
        bencher.iter_batched(&mut next, |topic| retained.insert(Named(topic)), BATCH);
    });
    group.throughput(Throughput::Elements(1_000));
    for filter in ["#", "site7/#", "+/+/metric3", "site7/+/metric3"] {
        assert_eq!(page(&retained, filter, 1_000), 1_000, "{filter}");
        group.bench_function(BenchmarkId::new("page of 1,000", filter), |bencher| {
            bencher.iter(|| page(&retained, black_box(filter), 1_000));
        });
    }
    group.finish();
}

struct Named(String);

impl Retainable for Named {
    fn topic(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

fn topic_of(number: u32) -> String {
    format!("site{}/device{}/metric{}", number / 10_000 % 100, number / 10, number % 10)
}

fn page(retained: &Retained<Named>, filter: &str, max: usize) -> usize {
    let mut count = 0;
    retained.walk(filter, None, max, &mut |message| count += usize::from(!message.0.is_empty()));
    count
}

const BATCH: criterion::BatchSize = criterion::BatchSize::SmallInput;

criterion_group!(benches, index, route, walk, churn, interest, retained);
criterion_main!(benches);
