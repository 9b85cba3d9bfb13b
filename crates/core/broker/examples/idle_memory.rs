//! What an idle connection costs a shard: connects sessions with one subscription each to four
//! shards and counts the bytes that stay, without sockets.
//!
//! `cargo run --profile quick -p quelea-broker --example idle_memory -- [SESSIONS] [durable]`
//! (default 1,000,000). With `durable` the sessions are persistent, are in a journal whose disk
//! takes everything and keeps nothing, and have no connection in the end.
#![allow(unsafe_code, reason = "counting bytes takes a global allocator of one's own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use broker::admission::{self, Admission};
use broker::{Homes, Limits, Name, Replay, Settings, Shard, Shared};
use codec::{
    Connect, FilterBuf, Packet, Properties, Property, PropertyBuf, QoS, Subscribe,
    SubscribeOptions, Version,
};
use policy::Access;
use session::{Delivery, Link, LinkSettings, Outbox, Outgoing, Session};
use storage::{Command, Completion, Outcome};

struct Counting;

static HELD_BYTES: AtomicUsize = AtomicUsize::new(0);
static BLOCKS: AtomicUsize = AtomicUsize::new(0);

/// What an allocator of the usual kind takes for a block: 8 bytes more, in steps of 16.
const fn block_bytes(size: usize) -> usize {
    let bytes = (size + 8).next_multiple_of(16);
    if bytes < 32 { 32 } else { bytes }
}

// SAFETY: every call goes to the system allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD_BYTES.fetch_add(block_bytes(layout.size()), Ordering::Relaxed);
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees for `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.fetch_sub(block_bytes(layout.size()), Ordering::Relaxed);
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: `pointer` came from `System` with this `layout`, as `alloc` forwards to it.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SHARDS: u16 = 4;
const KEEP_ALIVE_SECS: u16 = 300;
const NOW_MS: u64 = 1_700_000_000_000;

fn main() {
    let sessions: u32 =
        std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let is_durable = std::env::args().nth(2).as_deref() == Some("durable");
    let shared = Shared::new(Settings::default(), Homes::of_one_cell(SHARDS), 1);
    let mut shards: Vec<Shard> =
        (0..SHARDS).map(|id| Shard::new(id, shared.clone(), Access::open())).collect();
    let limits = Arc::new(Limits::default());
    if is_durable {
        shards.iter_mut().for_each(|shard| open_journal(shard, &limits));
    }

    let before = held();
    let slots: Vec<u32> = (0..sessions)
        .map(|number| connect(&mut shards, &shared, &limits, number, is_durable))
        .collect();
    let own = block_bytes(slots.capacity() * size_of::<u32>());
    let connected = held();
    for (number, slot) in (0..sessions).zip(&slots) {
        subscribe(&mut shards, &shared, number, *slot);
        if is_durable {
            let shard =
                &mut shards[usize::from(shared.place_of_client(Name::first(&client_id(number))))];
            shard.on_closed(*slot, number.into(), NOW_MS);
            drain(shard);
        }
    }
    for shard in shards.iter_mut().filter(|_| is_durable) {
        // Timers of connections that are gone.
        shard.on_tick(NOW_MS + 2_000 * u64::from(KEEP_ALIVE_SECS));
        drain(shard);
    }
    let subscribed = held();

    let per_session = |bytes: usize| bytes as f64 / f64::from(sessions);
    println!("{sessions} sessions on {SHARDS} shards, bytes and blocks per session:");
    println!(
        "  connected   {:7.1} B in {:.1} blocks",
        per_session(connected.0 - before.0 - own),
        per_session(connected.1 - before.1)
    );
    if !is_durable {
        println!(
            "  subscribed  {:7.1} B in {:.1} blocks more",
            per_session(subscribed.0 - connected.0),
            per_session(subscribed.1 - connected.1)
        );
    }
    println!("  together    {:7.1} B", per_session(subscribed.0 - before.0 - own));
    println!(
        "sizes: client {} (of it session {}), link {} (of it settings {}, outbox {})",
        broker::CLIENT_BYTES,
        size_of::<Session>(),
        size_of::<Link>(),
        size_of::<LinkSettings>(),
        size_of::<Outbox>()
    );
    println!("       outgoing {}, delivery {}", size_of::<Outgoing>(), size_of::<Delivery>());
}

fn held() -> (usize, usize) {
    (HELD_BYTES.load(Ordering::Relaxed), BLOCKS.load(Ordering::Relaxed))
}

fn client_id(number: u32) -> String {
    format!("device-{number:08}")
}

fn open_journal(shard: &mut Shard, limits: &Arc<Limits>) {
    let settings = storage::Settings { cache_bytes_max: 0, ..storage::Settings::default() };
    let identity = storage::Identity { id: [1; 16], shard: shard.id(), shards: SHARDS };
    let recovery = storage::Recovery::new((shard.id(), SHARDS), &settings, Vec::new(), None);
    let recovered = recovery.expect("no files are in order").finish(identity);
    shard
        .open_journal(recovered, settings, Replay::new(7), limits, NOW_MS)
        .expect("an empty log has no unreadable record");
    drain(shard);
}

/// Carries out what the disk is told, on no disk at all.
fn work_disk(shard: &mut Shard) {
    let mut commands = Vec::new();
    loop {
        shard.take_disk_commands(&mut commands, NOW_MS);
        if commands.is_empty() {
            return;
        }
        for command in commands.drain(..) {
            let id = command.id();
            let outcome = match command {
                Command::Commit { steps, .. } => {
                    Outcome::Committed { steps_done: steps.len(), fault: None }
                }
                Command::Read { .. } => Outcome::Read(Ok(Vec::new())),
                _ => Outcome::Done(Ok(())),
            };
            shard.on_disk(Completion { id, outcome }, NOW_MS);
        }
    }
}

fn connect(
    shards: &mut [Shard],
    shared: &Shared,
    limits: &Arc<Limits>,
    number: u32,
    is_durable: bool,
) -> u32 {
    let mut properties = PropertyBuf::new();
    if is_durable {
        properties.push(Property::SessionExpirySecs(u32::MAX));
    }
    let id = client_id(number);
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_secs: KEEP_ALIVE_SECS,
        client_id: &id,
        properties: properties.as_properties(),
        will: None,
        username: None,
        password: None,
        bridge: false,
    };
    let mut bytes = Vec::new();
    Packet::Connect(connect).encode(Version::V5, &mut bytes);
    let admission = admission::admit(&bytes, limits, "192.168.100.100:50000", String::new);
    let Admission::Connect(credentials, _) = admission else {
        panic!("a CONNECT that is in order was not admitted");
    };
    let shard = &mut shards[usize::from(shared.place_of_client(Name::first(&id)))];
    let connected = shard.on_connect(number.into(), credentials.request, NOW_MS);
    let slot = connected.expect("a new client id");
    drain(shard);
    slot
}

fn subscribe(shards: &mut [Shard], shared: &Shared, number: u32, slot: u32) {
    let id = client_id(number);
    let mut filters = FilterBuf::new();
    filters.push(&format!("devices/{id}/commands"), SubscribeOptions::new(QoS::AtLeastOnce));
    let mut bytes = Vec::new();
    let subscribe =
        Subscribe { packet_id: 1, properties: Properties::EMPTY, filters: filters.as_filters() };
    Packet::Subscribe(subscribe).encode(Version::V5, &mut bytes);
    let shard = usize::from(shared.place_of_client(Name::first(&id)));
    shards[shard].on_bytes(slot, number.into(), &bytes, NOW_MS);
    shards.iter_mut().for_each(drain);
    // The retained messages of the topic are asked for, and the answer comes back.
    for _ in 0..2 {
        for from in 0..shards.len() {
            for to in 0..shards.len() {
                for mail in std::mem::take(&mut shards[from].effects_mut().mail[to]) {
                    shards[to].on_mail(mail, NOW_MS);
                }
            }
        }
    }
}

/// Does what a driver does after a turn: writes what is owed, and hears of the events.
fn drain(shard: &mut Shard) {
    work_disk(shard);
    while let Some((slot, connection)) = shard.take_dirty() {
        let len = shard.outbox(slot, connection).map_or(0, |outbox| outbox.len());
        shard.on_written(slot, connection, len, NOW_MS);
    }
    shard.effects_mut().events.clear();
    shard.effects_mut().closes.clear();
    work_disk(shard);
}
