//! One publish through a shard: decoded, routed, delivered, written, acknowledged.
//!
//! `cargo bench -p quelea-broker --bench shard`. The time per delivery is the time per publish
//! divided by the number of subscribers (criterion shows it as elements per second).

mod fan;

use codec::Version;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fan::Fan;

fn fan_out(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    for version in [Version::V311, Version::V5] {
        for qos in [0, 1] {
            for subscriber_count in [1, 10, 1000] {
                let mut fan = Fan::new(version, subscriber_count, qos);
                let name = BenchmarkId::new(format!("{version:?}-qos{qos}"), subscriber_count);
                group.throughput(Throughput::Elements(subscriber_count as u64));
                group.bench_function(name, |bencher| bencher.iter(|| fan.round()));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, fan_out);
criterion_main!(benches);
