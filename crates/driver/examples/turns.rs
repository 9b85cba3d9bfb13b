//! Turns of drivers with sockets in memory, for counting instructions from outside:
//! `turns DRIVERS-QOS-BATCH COUNT`. `tests/instructions.py` runs it under callgrind.

use std::sync::Arc;

use broker::admission::{Admission, admit};
use broker::{ConnectRequest, Limits, Name, Settings, Shard, Shared};
use codec::{
    Connect, FilterBuf, Packet, Properties, Publish, QoS, Subscribe, SubscribeOptions, Version,
};
use driver::testing::{Alarm, Clock, Flaws, MemoryHost, Pipe, PipeEnd};
use driver::{Driver, DriverParts, Handover, IncomingRoom, Item, Mailbox};
use policy::Access;

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
        eprintln!("usage: turns DRIVERS-QOS-BATCH COUNT");
        std::process::exit(2);
    };
    let [driver_count, qos, batch] = work;
    let mut way = Way::new(driver_count, qos as u8, batch);
    (0..count).for_each(|_| way.round());
}

fn parse(arguments: &[String]) -> Option<([usize; 3], usize)> {
    let [work, count] = arguments else { return None };
    let work: Vec<usize> = work.split('-').map(str::parse).collect::<Result<_, _>>().ok()?;
    Some((work.try_into().ok()?, count.parse().ok()?))
}

/// A publisher on the first driver and a subscriber on the last one.
struct Way {
    drivers: Drivers,
    publisher: PipeEnd,
    subscriber: PipeEnd,
    publish: Vec<u8>,
    batch: usize,
    has_answers: bool,
}

impl Way {
    fn new(driver_count: usize, qos: u8, batch: usize) -> Self {
        let (drivers, mailboxes) = drivers(driver_count as u16);
        let shared = drivers[0].shards()[0].shared().clone();
        let connect = |name: &str, shard: usize| {
            let shard = shard as u16;
            let request = request(&id_on(&shared, shard, name));
            let (socket, client) = Pipe::new(PIPE_BYTES, 0, Flaws::default());
            let rest = Vec::new();
            let handover = Handover { socket, shard, request, rest, permit: (), charge: () };
            mailboxes[usize::from(shard)].put(Item::Connection(Box::new(handover)));
            client
        };
        let publisher = connect("publisher", 0);
        let subscriber = connect("subscriber", driver_count - 1);
        let qos = QoS::try_from(qos).unwrap_or(QoS::AtMostOnce);
        let mut publish = Vec::new();
        for packet_id in 1..=batch {
            publish_packet(qos, packet_id as u16).encode(Version::V5, &mut publish);
        }
        let has_answers = qos > QoS::AtMostOnce;
        let mut way = Self { drivers, publisher, subscriber, publish, batch, has_answers };
        way.settle();
        way.subscriber.send(&subscribe(qos));
        way.settle();
        way.publisher.take(usize::MAX);
        way.subscriber.take(usize::MAX);
        way
    }

    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            turn_all(&mut self.drivers);
        }
    }

    /// A batch of publishes, their deliveries and all acknowledgements.
    ///
    /// # Panics
    ///
    /// When a message or an acknowledgement is missing: then less would be counted.
    fn round(&mut self) {
        self.publisher.send(&self.publish);
        let (mut received, mut acknowledged) = (0, 0);
        let expected = if self.has_answers { self.batch } else { 0 };
        for _ in 0..TURNS_MAX {
            turn_all(&mut self.drivers);
            let mut answers = Vec::new();
            received += read_packets(&self.subscriber, PUBLISH, |packet| {
                if packet[0] & QOS_BITS != 0 {
                    let [high, low] = [packet[PACKET_ID_AT], packet[PACKET_ID_AT + 1]];
                    answers.extend_from_slice(&[PUBACK << 4, 2, high, low]);
                }
            });
            self.subscriber.send(&answers);
            acknowledged += read_packets(&self.publisher, PUBACK, |_| {});
            let is_unread = self.drivers.iter().any(|driver| driver.host().has_ready());
            if received == self.batch && acknowledged == expected && !is_unread {
                return;
            }
        }
        panic!("{received} of {} deliveries, {acknowledged} acknowledgements", self.batch);
    }
}

fn turn_all(drivers: &mut Drivers) {
    for driver in drivers {
        let (ready, has_more) = driver.host_mut().ready(usize::MAX, |_| 0);
        driver.turn(ready.into_iter(), has_more);
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

/// So many drivers with a shard each.
#[expect(clippy::arc_with_non_send_sync, reason = "a host in memory stays on its thread")]
fn drivers(count: u16) -> (Drivers, Mailboxes) {
    let shared = Shared::new(Settings::default(), count, 7);
    let clock = Clock::new(BEGIN_MS);
    let mailboxes: Mailboxes =
        (0..count).map(|_| Arc::new(Mailbox::new(Alarm::default()))).collect();
    let driver = |index: u16| {
        Driver::new(DriverParts {
            host: MemoryHost::new(&clock),
            mailboxes: mailboxes.clone(),
            index: usize::from(index),
            shards: vec![Shard::new(index, shared.clone(), Access::open())],
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

fn subscribe(qos: QoS) -> Vec<u8> {
    let mut filters = FilterBuf::new();
    filters.push(TOPIC, SubscribeOptions::new(qos));
    let (properties, filters) = (Properties::EMPTY, filters.as_filters());
    let mut bytes = Vec::new();
    let packet = Packet::Subscribe(Subscribe { packet_id: 1, properties, filters });
    packet.encode(Version::V5, &mut bytes);
    bytes
}

fn publish_packet(qos: QoS, packet_id: u16) -> Packet<'static> {
    Packet::Publish(Publish {
        dup: false,
        qos,
        retain: false,
        topic: TOPIC,
        packet_id,
        properties: Properties::EMPTY,
        payload: &[7; 64],
    })
}
