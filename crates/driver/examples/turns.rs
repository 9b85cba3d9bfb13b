//! Turns of drivers with sockets in memory, for counting instructions from outside:
//! `turns DRIVERS-QOS-BATCH COUNT`, or `turns DRIVERS-QOS-BATCH-SHARDS-PAIRS COUNT`.
//! `tests/instructions.py` runs it under callgrind.

use std::sync::Arc;

use broker::admission::{Admission, admit};
use broker::{ConnectRequest, Limits, Name, Settings, Shard, Shared};
use codec::{
    Connect, FilterBuf, Packet, Properties, Publish, QoS, Subscribe, SubscribeOptions, Version,
};
use driver::testing::{Alarm, Clock, Flaws, MemoryHost, Pipe, PipeEnd};
use driver::{Driver, DriverParts, Handover, Host, IncomingRoom, Item, Mailbox};
use policy::Access;

/// Of the first pair; all topics are as long.
const TOPIC: &str = "sensors/1/temperature";

const BEGIN_MS: u64 = 1_700_000_000_000;

/// More than a batch takes.
const PIPE_BYTES: usize = 1 << 20;

/// Turns after which a message is taken to be lost.
const TURNS_MAX: usize = 100;

const PUBLISH: u8 = 3;
const PUBACK: u8 = 4;
const QOS_BITS: u8 = 0b0110;

/// Of a PUBLISH whose remaining length takes one byte.
const PACKET_ID_AT: usize = 2 + 2 + TOPIC.len();

type Drivers = Vec<Driver<MemoryHost>>;
type Mailboxes = Arc<[Arc<Mailbox<MemoryHost>>]>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((work, count)) = parse(&arguments) else {
        eprintln!("usage: turns DRIVERS-QOS-BATCH[-SHARDS-PAIRS] COUNT");
        std::process::exit(2);
    };
    let mut lab = Lab::new(&work);
    (0..count).for_each(|_| lab.round());
}

struct Work {
    drivers: usize,
    qos: QoS,
    batch: usize,
    /// Of all drivers.
    shards: usize,
    pairs: usize,
}

fn parse(arguments: &[String]) -> Option<(Work, usize)> {
    let [work, count] = arguments else { return None };
    let numbers: Vec<usize> = work.split('-').map(str::parse).collect::<Result<_, _>>().ok()?;
    let (drivers, qos, batch, shards, pairs) = match numbers[..] {
        [drivers, qos, batch] => (drivers, qos, batch, drivers, 1),
        [drivers, qos, batch, shards, pairs] => (drivers, qos, batch, shards, pairs),
        _ => return None,
    };
    let qos = QoS::try_from(qos as u8).ok()?;
    Some((Work { drivers, qos, batch, shards, pairs }, count.parse().ok()?))
}

struct Lab {
    drivers: Drivers,
    pairs: Vec<Pair>,
}

/// A publisher and a subscriber, on the first and the last driver.
struct Pair {
    publisher: PipeEnd,
    subscriber: PipeEnd,
    publish: Vec<u8>,
    batch: usize,
    has_answers: bool,
    received: usize,
    acknowledged: usize,
}

impl Lab {
    fn new(work: &Work) -> Self {
        let (drivers, mailboxes) = drivers(work.drivers as u16, work.shards as u16);
        let shared = drivers[0].shards()[0].shared().clone();
        let connect = |name: &str, shard: usize| {
            let (driver, shard) = (shard % work.drivers, shard as u16);
            let request = request(&id_on(&shared, shard, name));
            let (socket, client) = Pipe::new(PIPE_BYTES, 0, Flaws::default());
            let rest = Vec::new();
            let handover = Handover { socket, shard, request, rest, permit: (), charge: () };
            mailboxes[driver].put(Item::Connection(Box::new(handover)));
            client
        };
        let pairs = (0..work.pairs).map(|pair| {
            let topic = TOPIC.replace('1', &(pair + 1).to_string());
            let publisher = connect(&format!("publisher-{pair}"), pair);
            let shard = (pair + work.drivers - 1) % work.shards;
            let subscriber = connect(&format!("subscriber-{pair}"), shard);
            Pair::new(publisher, subscriber, &topic, work)
        });
        let mut lab = Self { pairs: pairs.collect(), drivers };
        lab.settle();
        for (number, pair) in lab.pairs.iter().enumerate() {
            let topic = TOPIC.replace('1', &(number + 1).to_string());
            pair.subscriber.send(&subscribe(&topic, work.qos));
        }
        lab.settle();
        for pair in &lab.pairs {
            pair.publisher.take(usize::MAX);
            pair.subscriber.take(usize::MAX);
        }
        lab
    }

    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            turn_all(&mut self.drivers);
        }
    }

    /// A batch of publishes of each pair, their deliveries and all acknowledgements.
    ///
    /// # Panics
    ///
    /// When a message or an acknowledgement is missing: then less would be counted.
    fn round(&mut self) {
        self.pairs.iter_mut().for_each(Pair::begin);
        for _ in 0..TURNS_MAX {
            turn_all(&mut self.drivers);
            self.pairs.iter_mut().for_each(Pair::look);
            let is_unread = self.drivers.iter().any(|driver| driver.host().has_ready());
            if !is_unread && self.pairs.iter().all(Pair::is_complete) {
                return;
            }
        }
        panic!("messages or acknowledgements are missing");
    }
}

impl Pair {
    fn new(publisher: PipeEnd, subscriber: PipeEnd, topic: &str, work: &Work) -> Self {
        let mut publish = Vec::new();
        for packet_id in 1..=work.batch {
            let packet = publish_packet(topic, work.qos, packet_id as u16);
            packet.encode(Version::V5, &mut publish);
        }
        let (batch, has_answers) = (work.batch, work.qos > QoS::AtMostOnce);
        Self { publisher, subscriber, publish, batch, has_answers, received: 0, acknowledged: 0 }
    }

    fn begin(&mut self) {
        (self.received, self.acknowledged) = (0, 0);
        self.publisher.send(&self.publish);
    }

    fn look(&mut self) {
        let mut answers = Vec::new();
        self.received += read_packets(&self.subscriber, PUBLISH, |packet| {
            if packet[0] & QOS_BITS != 0 {
                let [high, low] = [packet[PACKET_ID_AT], packet[PACKET_ID_AT + 1]];
                answers.extend_from_slice(&[PUBACK << 4, 2, high, low]);
            }
        });
        self.subscriber.send(&answers);
        self.acknowledged += read_packets(&self.publisher, PUBACK, |_| {});
    }

    fn is_complete(&self) -> bool {
        let expected = if self.has_answers { self.batch } else { 0 };
        self.received == self.batch && self.acknowledged == expected
    }
}

fn turn_all(drivers: &mut Drivers) {
    for driver in drivers {
        let (ready, has_more) = driver.host_mut().ready(usize::MAX, |_| 0);
        driver.turn(driver.host().now(), ready.into_iter(), has_more);
        // Between two turns a worker asks how long it may sleep.
        driver.fall_asleep(driver.ended());
        driver.wake_up();
    }
}

/// Hands the packets of a kind to `take`. Returns how many there were.
fn read_packets(client: &PipeEnd, kind: u8, mut take: impl FnMut(&[u8])) -> usize {
    let written = client.take(usize::MAX);
    let mut rest = written.as_slice();
    let mut count = 0;
    while let [first, body_bytes, ..] = rest {
        let (packet, behind) = rest.split_at(2 + usize::from(*body_bytes));
        if first >> 4 == kind {
            take(packet);
            count += 1;
        }
        rest = behind;
    }
    count
}

/// So many drivers with these shards.
#[expect(clippy::arc_with_non_send_sync, reason = "a host in memory stays on its thread")]
fn drivers(count: u16, shards: u16) -> (Drivers, Mailboxes) {
    let shared = Shared::new(Settings::default(), shards, 7);
    let clock = Clock::new(BEGIN_MS);
    let mailboxes: Mailboxes =
        (0..count).map(|_| Arc::new(Mailbox::new(Alarm::default()))).collect();
    let driver = |index: u16| {
        Driver::new(DriverParts {
            host: MemoryHost::new(&clock),
            mailboxes: mailboxes.clone(),
            index: usize::from(index),
            shards: (index..shards)
                .step_by(usize::from(count))
                .map(|shard| Shard::new(shard, shared.clone(), Access::open()))
                .collect(),
            shutdown_grace_ms: 1000,
            incoming_room: IncomingRoom::new(1 << 30, 1 << 28),
        })
    };
    ((0..count).map(driver).collect(), mailboxes)
}

/// A client id that lives on a shard.
fn id_on(shared: &Shared, shard: u16, name: &str) -> String {
    let mut ids = (0..).map(|number| format!("{name}-{number}"));
    let id = ids.find(|id| shared.shard_of_client(Name::first(id)) == shard);
    id.unwrap_or_default()
}

fn request(client_id: &str) -> ConnectRequest {
    let connect = Connect {
        version: Version::V5,
        clean_start: true,
        keep_alive_secs: 0,
        client_id,
        properties: Properties::EMPTY,
        will: None,
        username: None,
        password: None,
        bridge: false,
    };
    let mut bytes = Vec::new();
    Packet::Connect(connect).encode(Version::V5, &mut bytes);
    match admit(&bytes, &Arc::new(Limits::default()), "peer", String::new) {
        Admission::Connect(credentials, _) => credentials.request,
        Admission::Refuse(_) | Admission::NeedMore => unreachable!("the CONNECT is sound"),
    }
}

fn subscribe(topic: &str, qos: QoS) -> Vec<u8> {
    let mut filters = FilterBuf::new();
    filters.push(topic, SubscribeOptions::new(qos));
    let (properties, filters) = (Properties::EMPTY, filters.as_filters());
    let mut bytes = Vec::new();
    let packet = Packet::Subscribe(Subscribe { packet_id: 1, properties, filters });
    packet.encode(Version::V5, &mut bytes);
    bytes
}

fn publish_packet(topic: &str, qos: QoS, packet_id: u16) -> Packet<'_> {
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id,
        properties: Properties::EMPTY,
        payload: &[7; 64],
    })
}
