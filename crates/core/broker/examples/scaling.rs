//! How the core scales over threads: `scaling [PAIRS] [SECONDS]`.
//!
//! Four shards on one, two and four threads, with mailboxes between the threads and no sockets:
//! pairs of a publisher and a subscriber, QoS 1, flat out. Every number of threads has the same
//! shards, clients and messages, so all that differs is what threads cost each other. Three of four
//! messages cross to another shard, as with pairs anywhere. Take care that so many cores are idle.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use broker::{Mail, Shard, ShardId};
use codec::Version;
use mimalloc::MiMalloc;
use rig::{Lab, of_version, publish};

/// That of the server, because threads free each other's messages.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const SHARDS: u16 = 4;
const PAYLOAD: &[u8] = &[7; 16];
const PUBACK_BYTES: usize = 4;

/// Messages in one read of a publisher.
const BATCH: u16 = 100;

/// Messages of a publisher that wait for their acknowledgement.
const BATCHES_MAX: u16 = 4;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |or: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(or);
    let (pairs, seconds) = (number(256), number(3));
    let length = Duration::from_secs(seconds);
    for (reach, text) in [(Reach::Apart, "within a shard"), (Reach::Across, "to any shard")] {
        let mut before = None;
        for threads in [1, 2, 4] {
            let rate = run(pairs, reach, threads, length) as f64 / length.as_secs_f64();
            let factor = before.map_or(String::new(), |before| format!(", x {:.2}", rate / before));
            println!("{text}, {threads} threads: {:.2} M messages/s{factor}", rate / 1e6);
            before = Some(rate);
        }
    }
}

/// Where the subscriber of a publisher is.
#[derive(Clone, Copy, PartialEq)]
enum Reach {
    /// On its shard: what threads cost each other then is the machine's.
    Apart,
    /// Anywhere.
    Across,
}

/// Says how many messages were delivered and acknowledged.
fn run(pairs: u64, reach: Reach, threads: usize, length: Duration) -> u64 {
    let mailboxes: Arc<[Mailbox]> = (0..threads).map(|_| Mailbox::default()).collect();
    let drivers = drivers(pairs, reach, &mailboxes);
    let barrier = Arc::new(Barrier::new(threads));
    let is_over = Arc::new(AtomicBool::new(false));
    let start = |mut driver: Driver| {
        let (barrier, is_over) = (barrier.clone(), is_over.clone());
        thread::spawn(move || {
            barrier.wait();
            while !is_over.load(Ordering::Relaxed) {
                driver.turn();
            }
            driver.delivered
        })
    };
    let threads: Vec<_> = drivers.into_iter().map(start).collect();
    thread::sleep(length);
    is_over.store(true, Ordering::Relaxed);
    threads.into_iter().map(|thread| thread.join().expect("no thread panics")).sum()
}

/// Shard `n` on thread `n % threads`, each client with its shard.
fn drivers(pairs: u64, reach: Reach, mailboxes: &Arc<[Mailbox]>) -> Vec<Driver> {
    let mut lab = Lab::new(SHARDS);
    let mut clients: Vec<Vec<Client>> = (0..mailboxes.len()).map(|_| Vec::new()).collect();
    // Connections have the numbers of their places, as with the workers of the server.
    for pair in 0..pairs {
        let topic = format!("pairs/{pair:06}");
        let publisher = lab.open(of_version(Version::V311, &format!("pub-{pair}")));
        let name = format!("sub-{pair}");
        let near = lab.id_on(lab.place(publisher).0 as ShardId, &name);
        let name = if reach == Reach::Apart { near } else { name };
        let subscriber = lab.open(of_version(Version::V311, &name));
        lab.subscribe(subscriber, &topic, 1);
        for (conn, role) in
            [(subscriber, Role::subscriber(&topic)), (publisher, publishing(&topic))]
        {
            let (shard, slot) = lab.place(conn);
            clients[shard % mailboxes.len()].push(Client { shard, slot, conn, role });
        }
    }
    let mut drivers: Vec<Driver> = clients
        .into_iter()
        .enumerate()
        .map(|(index, clients)| Driver::new(index, mailboxes.clone(), clients, lab.now_ms))
        .collect();
    for (number, shard) in lab.shards.into_iter().enumerate() {
        drivers[number % mailboxes.len()].shards.push(shard);
    }
    drivers
}

fn publishing(topic: &str) -> Role {
    let batch = |number: u16| {
        let mut bytes = Vec::new();
        for place in 0..BATCH {
            let packet = publish(topic, PAYLOAD, 1, number * BATCH + place + 1);
            packet.encode(Version::V311, &mut bytes);
        }
        bytes
    };
    Role::Publisher { batches: (0..BATCHES_MAX).map(batch).collect(), sent: 0, acknowledged: 0 }
}

/// What a thread has: its shards and the clients of them.
struct Driver {
    index: usize,
    mailboxes: Arc<[Mailbox]>,
    shards: Vec<Shard>,
    clients: Vec<Client>,
    /// The place of a connection in `clients`.
    places: Vec<usize>,
    began: Instant,
    began_ms: u64,
    now_ms: u64,
    acks: Vec<u8>,
    delivered: u64,
}

struct Client {
    shard: usize,
    slot: u32,
    conn: u64,
    role: Role,
}

enum Role {
    Publisher {
        batches: Vec<Vec<u8>>,
        sent: u64,
        acknowledged: u64,
    },
    Subscriber {
        packet_bytes: usize,
        /// Came in, and has to be acknowledged.
        received: usize,
        packet_id: u16,
    },
}

impl Role {
    fn subscriber(topic: &str) -> Self {
        let mut bytes = Vec::new();
        publish(topic, PAYLOAD, 1, 1).encode(Version::V311, &mut bytes);
        Self::Subscriber { packet_bytes: bytes.len(), received: 0, packet_id: 0 }
    }
}

impl Driver {
    fn new(index: usize, mailboxes: Arc<[Mailbox]>, clients: Vec<Client>, began_ms: u64) -> Self {
        let last = clients.iter().map(|client| client.conn as usize).max().unwrap_or(0);
        let mut places = vec![usize::MAX; last + 1];
        for (place, client) in clients.iter().enumerate() {
            places[client.conn as usize] = place;
        }
        Self {
            index,
            mailboxes,
            shards: Vec::new(),
            clients,
            places,
            began: Instant::now(),
            began_ms,
            now_ms: began_ms,
            acks: Vec::new(),
            delivered: 0,
        }
    }

    /// As a worker of the server: mail, what clients send, mail, what clients get.
    fn turn(&mut self) {
        self.now_ms = self.began_ms + self.began.elapsed().as_millis() as u64;
        self.take_mail();
        for place in 0..self.clients.len() {
            self.take_mail();
            self.read(place);
        }
        self.post();
        for shard in 0..self.shards.len() {
            if self.shards[shard].next_deadline_ms() <= self.now_ms {
                self.shards[shard].on_tick(self.now_ms);
            }
            while let Some((slot, conn)) = self.shards[shard].take_dirty() {
                self.write(shard, slot, conn);
            }
            self.shards[shard].effects_mut().pauses.clear();
            self.shards[shard].end_turn();
        }
        self.post();
    }

    fn take_mail(&mut self) {
        for (to, mails) in self.mailboxes[self.index].take() {
            let shard = &mut self.shards[usize::from(to) / self.mailboxes.len()];
            shard.on_batch(mails, self.now_ms);
        }
    }

    fn post(&mut self) {
        for shard in &mut self.shards {
            for to in 0..SHARDS {
                let mails = shard.effects_mut().take_batch(to);
                if !mails.is_empty() {
                    self.mailboxes[usize::from(to) % self.mailboxes.len()].put(to, mails);
                }
            }
        }
    }

    /// Gives the shard what the client sends now.
    fn read(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let shard = &mut self.shards[client.shard / self.mailboxes.len()];
        let batch = u64::from(BATCH);
        match &mut client.role {
            Role::Publisher { batches, sent, acknowledged } => {
                if *sent - *acknowledged <= u64::from(BATCHES_MAX - 1) * batch {
                    let bytes = &batches[(*sent / batch % u64::from(BATCHES_MAX)) as usize];
                    *sent += batch;
                    shard.on_bytes(client.slot, client.conn, bytes, self.now_ms);
                }
            }
            Role::Subscriber { received, packet_id, .. } => {
                if *received == 0 {
                    return;
                }
                self.acks.clear();
                for _ in 0..std::mem::take(received) {
                    *packet_id = *packet_id % u16::MAX + 1;
                    let [high, low] = packet_id.to_be_bytes();
                    self.acks.extend([0x40, 2, high, low]);
                }
                shard.on_bytes(client.slot, client.conn, &self.acks, self.now_ms);
            }
        }
    }

    /// A client gets what it is owed: publishes of one length, or acknowledgements.
    fn write(&mut self, shard: usize, slot: u32, conn: u64) {
        let shard = &mut self.shards[shard];
        let len = shard.outbox(slot, conn).map_or(0, |outbox| outbox.len());
        match &mut self.clients[self.places[conn as usize]].role {
            Role::Publisher { acknowledged, .. } => *acknowledged += (len / PUBACK_BYTES) as u64,
            Role::Subscriber { packet_bytes, received, .. } => {
                *received += len / *packet_bytes;
                self.delivered += (len / *packet_bytes) as u64;
            }
        }
        shard.on_written(slot, conn, len, self.now_ms);
    }
}

/// That of the server without the waking: its threads do not sleep here.
#[derive(Default)]
#[repr(align(128))]
struct Mailbox {
    items: Mutex<Vec<(ShardId, Vec<Mail>)>>,
    has_items: AtomicBool,
}

impl Mailbox {
    fn put(&self, to: ShardId, mails: Vec<Mail>) {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).push((to, mails));
        self.has_items.store(true, Ordering::SeqCst);
    }

    fn take(&self) -> Vec<(ShardId, Vec<Mail>)> {
        if !self.has_items.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.has_items.store(false, Ordering::SeqCst);
        std::mem::take(&mut self.items.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
