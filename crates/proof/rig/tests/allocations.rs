//! How often a message's way through a shard asks the allocator: once for the message itself, and
//! not at all for its deliveries, once everything is warm. And whether what clients are charged is
//! what they make the broker allocate.
#![allow(unsafe_code, reason = "counting allocations takes a global allocator of one's own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use broker::{ConnectRequest, Limits, Settings, Shard};
use codec::{Ack, AckKind, Packet, QoS, Reason, Version};
use policy::{Access, Permission, Rule, Who};
use policy::{Attribute, Attributes, Principal};
use rig::{Lab, persistent, publish, request, retained, with_limits};
use session::{MemoryKind, Will};

struct Counting;

thread_local! {
    /// Per thread, as tests run side by side.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes that are allocated.
    static HELD: Cell<i64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; counting does not allocate (the cell
// is const-initialised and needs no destructor).
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Ignored while a thread is torn down: nobody measures there.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        let _ = HELD.try_with(|held| held.set(held.get() + layout.size() as i64));
        // SAFETY: the caller's guarantees for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let _ = HELD.try_with(|held| held.set(held.get() - layout.size() as i64));
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
        self.shard.end_turn();
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

// What is charged.

/// Tables and buffers that grow by doubling, and what the laboratory has of each client.
const FLOOR_BYTES: f64 = 64.0 * 1024.0;

fn charged(lab: &Lab) -> u64 {
    MemoryKind::ALL.iter().map(|held| lab.shared.ledger.bytes(*held)).sum()
}

/// How much is charged and how much allocated by what is done `count` times.
fn grow(lab: &mut Lab, count: usize, mut act: impl FnMut(&mut Lab, usize)) -> (f64, f64) {
    let look = |lab: &mut Lab| {
        for shard in &mut lab.shards {
            shard.on_memory_look(lab.now_ms);
            shard.effects_mut().events = Vec::new();
        }
        lab.events = Vec::new();
    };
    look(lab);
    let (charged_before, held_before) = (charged(lab), HELD.get());
    (0..count).for_each(|number| act(lab, number));
    look(lab);
    let held = (HELD.get() - held_before) as f64;
    ((charged(lab) - charged_before) as f64, held)
}

#[track_caller]
fn assert_fits(what: &str, (charged, held): (f64, f64)) {
    let off = (charged - held).abs();
    assert!(off <= held / 10.0 + FLOOR_BYTES, "{what}: {charged} charged, {held} allocated");
}

fn kept(client_id: &str) -> ConnectRequest {
    ConnectRequest { origin: "address".into(), ..persistent(client_id) }
}

#[test]
fn queued_messages_are_charged_as_they_are_allocated() {
    for bytes in [0, 20, 1_000, 100_000] {
        let mut lab = Lab::new(1);
        let conn = lab.open(kept("absent"));
        lab.subscribe(conn, "t", 1);
        lab.cut(conn);
        let publisher = lab.open(request("publisher"));
        let payload = vec![7; bytes];
        let grown = grow(&mut lab, 2_000, |lab, number| {
            lab.publish(publisher, "t", &payload, 1, number as u16 + 1);
            lab.take_all(publisher);
        });
        assert_fits(&format!("queue of {bytes}"), grown);
    }
}

#[test]
fn retained_messages_are_charged_as_they_are_allocated() {
    for bytes in [1, 20, 1_000, 100_000] {
        let mut lab = Lab::new(1);
        let publisher = lab.open(kept("publisher"));
        let payload = vec![7; bytes];
        let grown = grow(&mut lab, 2_000, |lab, number| {
            lab.send(publisher, &retained(&format!("site/{number}/state"), &payload, 1, 1));
            lab.take_all(publisher);
        });
        assert_fits(&format!("retained of {bytes}"), grown);
    }
}

#[test]
fn sessions_and_wills_are_charged_as_they_are_allocated() {
    for will_bytes in [0, 20_000] {
        let mut lab = Lab::new(1);
        let grown = grow(&mut lab, 2_000, |lab, number| {
            let will = Will {
                topic: "will".into(),
                properties: [].into(),
                payload: vec![7; will_bytes].into(),
                qos: QoS::AtMostOnce,
                retain: false,
                delay_secs: u32::MAX,
                message_expiry_secs: None,
                due_ms: session::NEVER,
            };
            let will = (will_bytes > 0).then(|| Box::new(will));
            let conn = lab.open(ConnectRequest { will, ..kept(&format!("session-{number:050}")) });
            lab.subscribe(conn, &format!("site/{number}/command"), 1);
            lab.cut(conn);
        });
        assert_fits(&format!("sessions with wills of {will_bytes}"), grown);
    }
}

/// Subscriptions, with a number in each.
const FILTERS: [&str; 9] = [
    "{n}",
    "a/b/c/{n}/e",
    "site/{n}/+/value",
    "+/{n}/#",
    "{n}/a/b/c/d/e/f/#",
    "+/{n}/a/b/c/d/e/f/g/h/i/j/k/l/m/n",
    "{long}/{n}",
    "{n}/+/{long}",
    "$share/{n}/work",
];

#[test]
fn subscriptions_are_charged_as_they_are_allocated() {
    let long = "l".repeat(800);
    let limits = Limits {
        subscription_bytes_max: u32::MAX,
        shared_subscriptions_per_client_max: 10_000,
        ..Limits::default()
    };
    for filter in FILTERS {
        let mut lab = Lab::new(1);
        let conn = lab.open(with_limits(kept("subscriber"), limits.clone()));
        let grown = grow(&mut lab, 4_000, |lab, number| {
            let filter = filter.replace("{n}", &number.to_string()).replace("{long}", &long);
            assert_eq!(lab.subscribe(conn, &filter, 1), 1);
        });
        assert_fits(filter, grown);
    }
}

#[test]
fn what_waits_in_connections_is_counted_as_it_is_allocated() {
    for (bytes, count) in [(20, 8_000), (1_000, 900), (8_000, 120)] {
        let mut lab = Lab::new(1);
        let readers: Vec<_> = (0..10).map(|n| lab.open(kept(&format!("reader-{n}")))).collect();
        for (number, conn) in readers.iter().enumerate() {
            lab.subscribe(*conn, &format!("t/{number}"), 0);
        }
        let publisher = lab.open(request("publisher"));
        let payload = vec![7; bytes];
        let grown = grow(&mut lab, count * readers.len(), |lab, number| {
            lab.send_only(publisher, &publish(&format!("t/{}", number % 10), &payload, 0, 0));
            lab.settle_mail();
        });
        assert_fits(&format!("outboxes with {bytes}"), grown);
    }
    let mut lab = Lab::new(1);
    let senders: Vec<_> = (0..10).map(|n| lab.open(kept(&format!("sender-{n}")))).collect();
    let grown = grow(&mut lab, senders.len(), |lab, number| {
        let mut bytes = vec![0x32];
        codec::varint::write(&mut bytes, 1_000_000);
        bytes.resize(500_000, 0);
        lab.bytes(senders[number], &bytes);
    });
    assert_fits("packets under way", grown);
    let mut lab = Lab::new(1);
    let askers: Vec<_> = (0..10).map(|n| lab.open(kept(&format!("asker-{n}")))).collect();
    let grown = grow(&mut lab, 10 * askers.len(), |lab, number| {
        lab.bytes(askers[number % 10], &[0xC0, 0].repeat(3_000));
    });
    assert_fits("answers", grown);
}

/// Two lists in one filter stand for the product of their values.
#[test]
fn rules_with_lists_take_no_more_than_the_lists() {
    const RULES: usize = 50;
    const VALUES: usize = 200;
    let rule = |number: usize| Rule {
        who: Who::Everyone,
        permission: Permission::ReadWrite,
        filter: format!("{number}/%{{attributes.a}}/x-%{{attributes.b}}/#"),
    };
    let rules: Vec<_> = (0..RULES).map(rule).collect();
    let mut lab = Lab::with(1, Settings::default(), Access::compile(&rules).unwrap());
    let list = |begin: &str| {
        let text = |number| Attribute::Text(format!("{begin}{number}").into());
        Attribute::List((0..VALUES).map(text).collect())
    };
    lab.open(request("first"));
    let (_, held) = grow(&mut lab, 1, |lab, _| {
        let attributes = Attributes::new([("a".into(), list("a")), ("b".into(), list("b"))]);
        let principal = Some(Box::new(Principal { attributes, ..Principal::default() }));
        let conn = lab.open(ConnectRequest { principal, ..request("client") });
        assert_eq!(lab.subscribe(conn, "7/a199/x-b0/+", 1), 1);
        assert_ne!(lab.subscribe(conn, "7/a199/x-b200/+", 1), 1);
    });
    assert!(held < (2 * VALUES * 128) as f64 + FLOOR_BYTES, "{held} bytes");
}
