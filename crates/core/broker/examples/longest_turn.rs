//! How long a shard can be kept busy by one event: what one client or one tick leads to while
//! everybody else waits.
//!
//! `cargo run --profile quick -p quelea-broker --example longest_turn -- [SIZE]` (default 100,000)
//! prints for each kind of work the longest call, and how many calls it took in all.

use std::time::{Duration, Instant};

use broker::{ConnectRequest, Durability, Limits, Settings};
use policy::Access;
use rig::{Conn, Lab, persistent, publish, request, with_limits};

/// Filters of one SUBSCRIBE or UNSUBSCRIBE.
const FILTERS_PER_PACKET: usize = 10_000;

fn main() {
    let size = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    keep_alives(size);
    queue(size);
    subscriptions(size, "exact", |number| format!("site/{number:06}/state"));
    subscriptions(size, "wildcard", |number| format!("site/{number:06}/+"));
    again(size);
    member(size);
    window();
    rules(size);
    durable_queue(size / 10);
}

/// The longest of some calls.
#[derive(Default)]
struct Longest {
    calls: u32,
    longest: Duration,
}

impl Longest {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = call();
        self.longest = self.longest.max(began.elapsed());
        self.calls += 1;
        result
    }

    /// Calls until nothing more is due: the rest of what one event led to.
    fn drain(&mut self, lab: &mut Lab) {
        let now_ms = lab.now_ms;
        while lab.shards[0].next_deadline_ms() <= now_ms {
            self.time(|| lab.shards[0].on_tick(now_ms));
            self.time(|| lab.shards[0].end_turn());
            lab.settle();
        }
    }

    fn show(&self, what: &str) {
        println!("{:>10.3} ms  {:>6} calls  {what}", self.longest.as_secs_f64() * 1e3, self.calls);
    }
}

fn lab() -> Lab {
    Lab::new(1)
}

fn keep_alives(size: u32) {
    let mut lab = lab();
    let clients: Vec<Conn> = (0..size)
        .map(|number| {
            let request = request(&format!("client-{number}"));
            lab.connect_only(ConnectRequest { keep_alive_secs: 60, ..request })
        })
        .collect();
    lab.settle();
    lab.now_ms += 50_000;
    clients.iter().for_each(|conn| lab.bytes(*conn, &[0xc0, 0]));
    lab.settle();
    lab.now_ms += 41_000;
    let mut longest = Longest::default();
    longest.drain(&mut lab);
    longest.show(&format!("{size} keep-alives looked at in one second"));
    lab.now_ms += 100_000;
    let mut longest = Longest::default();
    longest.drain(&mut lab);
    longest.show(&format!("{size} keep-alives run out in one second"));
}

/// A session that is away, and so many messages that wait for it.
fn with_queue(lab: &mut Lab, id: &str, limits: &Limits, size: u32) {
    let conn = lab.open(with_limits(persistent(id), limits.clone()));
    lab.subscribe(conn, "t", 1);
    let publisher = lab.open(with_limits(request("publisher"), limits.clone()));
    lab.cut(conn);
    for number in 0..size {
        lab.send_only(publisher, &publish("t", &number.to_be_bytes(), 1, 1));
        if number % 100 == 0 {
            lab.settle();
            lab.take_all(publisher);
        }
    }
    lab.settle();
}

fn clean(id: &str) -> ConnectRequest {
    ConnectRequest { clean_start: true, ..request(id) }
}

fn queue(size: u32) {
    let mut lab = lab();
    with_queue(&mut lab, "queue", &Limits::default(), size);
    let mut longest = Longest::default();
    longest.time(|| lab.connect_only(clean("queue")));
    lab.settle();
    longest.drain(&mut lab);
    longest.show(&format!("clean start of a session with {size} messages in its queue"));
}

/// The filters of each packet.
fn in_packets(size: u32, name: fn(u32) -> String) -> Vec<Vec<String>> {
    let filters: Vec<String> = (0..size).map(name).collect();
    filters.chunks(FILTERS_PER_PACKET).map(<[String]>::to_vec).collect()
}

fn subscriptions(size: u32, kind: &str, name: fn(u32) -> String) {
    let mut lab = lab();
    let conn = lab.open(persistent("many"));
    for what in ["subscribe", "subscribe again"] {
        let mut longest = Longest::default();
        for filters in in_packets(size, name) {
            longest.time(|| lab.subscribe_all(conn, &filters, 1));
            lab.settle();
        }
        longest.show(&format!("{what}: {FILTERS_PER_PACKET} of {size} {kind} filters in a packet"));
    }
    let mut longest = Longest::default();
    longest.time(|| lab.connect_only(clean("many")));
    lab.settle();
    longest.drain(&mut lab);
    longest.show(&format!("clean start of a session with {size} {kind} filters"));
}

fn again(size: u32) {
    let name = |number| format!("site/{number:06}/state");
    let mut lab = lab();
    let conn = lab.open(request("many"));
    for filters in in_packets(size, name) {
        lab.subscribe_all(conn, &filters, 1);
        lab.settle();
    }
    let mut longest = Longest::default();
    for filters in in_packets(size, name) {
        longest.time(|| lab.unsubscribe_all(conn, &filters));
        lab.settle();
    }
    longest.show(&format!("unsubscribe: {FILTERS_PER_PACKET} of {size} filters in a packet"));
}

/// A member of a group acknowledges, whose other subscriptions have nothing to do with it.
fn member(size: u32) {
    const ROUNDS: u32 = 1_000;
    let mut lab = lab();
    let conn = lab.open(request("member"));
    lab.subscribe(conn, "$share/group/t", 1);
    for filters in in_packets(size - 1, |number| format!("site/{number:06}/state")) {
        lab.subscribe_all(conn, &filters, 1);
        lab.settle();
    }
    let publisher = lab.open(request("publisher"));
    lab.take_all(conn);
    let (mut longest, mut total) = (Longest::default(), Duration::ZERO);
    for _ in 0..ROUNDS {
        lab.send(publisher, &publish("t", b"x", 1, 1));
        let mut puback = vec![0x40, 2];
        puback.extend_from_slice(&lab.received(conn)[0].packet_id.to_be_bytes());
        let began = Instant::now();
        longest.time(|| lab.bytes(conn, &puback));
        total += began.elapsed();
    }
    let mean_us = total.as_secs_f64() * 1e6 / f64::from(ROUNDS);
    longest
        .show(&format!("a PUBACK by a member, {size} filters, one shared: {mean_us:.2} us each"));
}

fn window() {
    let mut lab = lab();
    with_queue(&mut lab, "window", &Limits::default(), 100_000);
    let limits = Limits { in_flight_max: u16::MAX, ..Limits::default() };
    let back = || with_limits(persistent("window"), limits.clone());
    let mut longest = Longest::default();
    let first = longest.time(|| lab.connect_only(back()));
    longest.show("connect with a window of 65,535 to 100,000 messages in the queue");
    lab.cut(first);
    let mut longest = Longest::default();
    longest.time(|| lab.connect_only(back()));
    longest.show("the same once more: what was in flight is sent again");
}

fn rules(size: u32) {
    let mut lab = lab();
    for number in 0..size {
        lab.connect_only(request(&format!("client-{number}")));
    }
    lab.settle();
    let mut longest = Longest::default();
    longest.time(|| lab.shards[0].set_access(Access::open()));
    longest.show(&format!("new access rules for {size} sessions"));
}

fn durable_queue(size: u32) {
    let limits = Limits { durability: Durability::Disk, ..Limits::default() };
    let journal_settings = storage::Settings::with_segment_bytes(1 << 20);
    let mut lab = Lab::durable_by(1, Settings::default(), journal_settings);
    with_queue(&mut lab, "queue", &limits, size);
    let mut longest = Longest::default();
    longest.time(|| lab.connect_only(with_limits(clean("queue"), limits)));
    lab.settle();
    longest.drain(&mut lab);
    longest.show(&format!("clean start of a kept session with {size} messages in its queue"));
}
