//! How often a message's way through a shard asks the allocator: once for the message itself, and
//! not at all for its deliveries, once everything is warm.
#![allow(unsafe_code, reason = "counting allocations takes a global allocator of one's own")]

mod lab;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use broker::Shard;
use codec::{Ack, AckKind, Packet, Reason, Version};
use lab::{Lab, publish, request};

struct Counting;

thread_local! {
    /// Per thread, as tests run side by side.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; counting does not allocate (the cell
// is const-initialised and needs no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Ignored while a thread is torn down: nobody measures there.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's guarantees for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this `layout`, as `alloc` forwards to it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const WARM_ROUNDS: u64 = 100;
const ROUNDS: u64 = 100;

/// One publisher and its subscribers on one shard, driven without the laboratory's own allocations.
struct Fan {
    shard: Shard,
    publisher: (u32, u64),
    /// Slot and connection of each subscriber, and the packet id it is to acknowledge next.
    subscribers: Vec<(u32, u64, u16)>,
    publish: Vec<u8>,
    qos: u8,
    now_ms: u64,
}

impl Fan {
    fn new(subscriber_count: usize, qos: u8) -> Self {
        let mut lab = Lab::new(1);
        let publisher = lab.open(request("publisher"));
        let mut conns = Vec::new();
        for number in 0..subscriber_count {
            let conn = lab.open(request(&format!("subscriber-{number}")));
            lab.subscribe(conn, "sensors/1/temperature", qos);
            conns.push(conn);
        }
        let places = conns.iter().map(|conn| (lab.place(*conn).1, *conn, 1)).collect();
        let mut bytes = Vec::new();
        publish("sensors/1/temperature", &[7; 64], qos, 1).encode(Version::V5, &mut bytes);
        Self {
            publisher: (lab.place(publisher).1, publisher),
            subscribers: places,
            publish: bytes,
            qos,
            now_ms: lab.now_ms,
            shard: lab.shards.remove(0),
        }
    }

    /// One publish, all deliveries written, all acknowledged.
    fn round(&mut self) {
        let (slot, conn) = self.publisher;
        self.shard.on_bytes(slot, conn, &self.publish, self.now_ms);
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

    /// Allocations in a hundred rounds.
    fn measure(mut self) -> u64 {
        for _ in 0..WARM_ROUNDS {
            self.round();
        }
        let before = ALLOCATIONS.with(Cell::get);
        for _ in 0..ROUNDS {
            self.round();
        }
        ALLOCATIONS.with(Cell::get) - before
    }
}

#[test]
fn a_publish_allocates_once_and_a_delivery_never() {
    for qos in [0, 1] {
        for subscriber_count in [1, 10, 1000] {
            let allocations = Fan::new(subscriber_count, qos).measure();
            assert_eq!(allocations, ROUNDS, "QoS {qos} to {subscriber_count} subscribers");
        }
    }
}

/// A shard keeps 1,024 emptied buffers, so that idle connections own none; a fan-out beyond them in
/// one turn takes one new buffer for each further subscriber.
#[test]
fn a_fan_out_beyond_the_spare_buffers_allocates_one_for_each_further_subscriber() {
    let further = 100;
    let allocations = Fan::new(1024 + further, 0).measure();
    assert_eq!(allocations, ROUNDS * (1 + further as u64));
}

#[test]
fn the_lab_s_acknowledgement_is_what_a_client_sends() {
    let mut bytes = Vec::new();
    Packet::Ack(Ack::new(AckKind::Puback, 258, Reason::SUCCESS)).encode(Version::V5, &mut bytes);
    assert_eq!(bytes, [0x40, 2, 1, 2]);
}
