//! One publish through a shard: decoded, routed, delivered, written, acknowledged.
//!
//! `cargo bench -p broker --bench shard`. The time per delivery is the time per publish divided by
//! the number of subscribers (criterion shows it as elements per second).

#[path = "../tests/lab/mod.rs"]
mod lab;

use std::hint::black_box;

use broker::Shard;
use codec::Version;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use lab::{Lab, of_version, publish};

struct Fan {
    shard: Shard,
    publisher: (u32, u32),
    subscribers: Vec<(u32, u32, u16)>,
    publish: Vec<u8>,
    qos: u8,
    now_ms: u64,
}

impl Fan {
    fn new(version: Version, subscriber_count: usize, qos: u8) -> Self {
        let mut lab = Lab::new(1);
        let publisher = lab.open(of_version(version, "publisher"));
        let mut conns = Vec::new();
        for number in 0..subscriber_count {
            let conn = lab.open(of_version(version, &format!("sub-{number}")));
            lab.subscribe(conn, "sensors/1/temperature", qos);
            conns.push(conn);
        }
        let subscribers = conns.iter().map(|conn| (lab.place(*conn).1, *conn, 1)).collect();
        let mut bytes = Vec::new();
        publish("sensors/1/temperature", &[7; 64], qos, 1).encode(version, &mut bytes);
        Self {
            publisher: (lab.place(publisher).1, publisher),
            subscribers,
            publish: bytes,
            qos,
            now_ms: lab.now_ms,
            shard: lab.shards.remove(0),
        }
    }

    fn round(&mut self) {
        let (slot, conn) = self.publisher;
        self.shard.on_bytes(slot, conn, black_box(&self.publish), self.now_ms);
        while let Some((slot, conn)) = self.shard.take_dirty() {
            let len = self.shard.outbox(slot, conn).map_or(0, |outbox| outbox.len());
            self.shard.on_written(slot, conn, len, self.now_ms);
        }
        if self.qos == 0 {
            return;
        }
        for (slot, conn, packet_id) in &mut self.subscribers {
            let [high, low] = packet_id.to_be_bytes();
            self.shard.on_bytes(*slot, *conn, &[0x40, 2, high, low], self.now_ms);
            *packet_id = *packet_id % u16::MAX + 1;
        }
    }
}

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
