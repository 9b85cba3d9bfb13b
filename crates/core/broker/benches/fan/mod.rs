//! A shard with one publisher and many subscribers, for benchmarks and instruction counts.

use std::hint::black_box;

use broker::Shard;
use codec::Version;
use rig::{Lab, of_version, publish};

/// Nobody is to wait for the next turn.
const UNITS_PER_TURN: u32 = 10_000;

/// One publisher and its subscribers on one shard.
pub(crate) struct Fan {
    shard: Shard,
    publisher: (u32, u64),
    subscribers: Vec<(u32, u64, u16)>,
    publish: Vec<u8>,
    qos: u8,
    now_ms: u64,
}

impl Fan {
    pub(crate) fn new(version: Version, subscriber_count: usize, qos: u8) -> Self {
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

    /// A publish, its deliveries, and their acknowledgements.
    pub(crate) fn round(&mut self) {
        let (slot, conn) = self.publisher;
        self.shard.on_bytes(slot, conn, black_box(&self.publish), self.now_ms);
        while let Some((slot, conn)) = self.shard.take_dirty() {
            let len = self.shard.outbox(slot, conn).map_or(0, |outbox| outbox.len());
            self.shard.on_written(slot, conn, len, self.now_ms);
        }
        // As a driver has many messages in a turn.
        if self.subscribers.len() > 1 && self.shard.work().used() > UNITS_PER_TURN {
            self.shard.end_turn();
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
