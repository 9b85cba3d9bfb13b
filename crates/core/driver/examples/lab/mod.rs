//! What the examples share: drivers with sockets in memory, packets, and clients.

use std::sync::Arc;

use broker::admission::{Admission, admit};
use broker::{ConnectRequest, Limits, Name, Shard, Shared};
use codec::{
    Connect, FilterBuf, Packet, Properties, Publish, QoS, Subscribe, SubscribeOptions, Version,
};
use driver::testing::{Alarm, Clock, Flaws, MemoryHost, Pipe, PipeEnd};
use driver::{Driver, DriverParts, Handover, IncomingRoom, Item, Mailbox};

/// Of the first publisher; all topics are as long.
pub(crate) const TOPIC: &str = "sensors/1/temperature";

pub(crate) const BEGIN_MS: u64 = 1_700_000_000_000;

/// Turns after which a message is taken to be lost.
pub(crate) const TURNS_MAX: usize = 100;

pub(crate) const PUBLISH: u8 = 3;
pub(crate) const PUBACK: u8 = 4;

/// More than a batch takes.
const PIPE_BYTES: usize = 1 << 20;

const QOS_BITS: u8 = 0b0110;

/// Of a PUBLISH whose remaining length takes one byte.
const PACKET_ID_AT: usize = 2 + 2 + TOPIC.len();

pub(crate) type Drivers = Vec<Driver<MemoryHost>>;
pub(crate) type Mailboxes = Arc<[Arc<Mailbox<MemoryHost>>]>;

/// Drivers with these shards, one after the other.
#[expect(clippy::arc_with_non_send_sync, reason = "a host in memory stays on its thread")]
pub(crate) fn drivers(of_drivers: Vec<Vec<Shard>>) -> (Drivers, Mailboxes) {
    let clock = Clock::new(BEGIN_MS);
    let mailboxes: Mailboxes =
        of_drivers.iter().map(|_| Arc::new(Mailbox::new(Alarm::default()))).collect();
    let driver = |(index, shards)| {
        Driver::new(DriverParts {
            host: MemoryHost::new(&clock),
            mailboxes: mailboxes.clone(),
            index,
            shards,
            shutdown_grace_ms: 1000,
            incoming_room: IncomingRoom::new(1 << 30, 1 << 28),
        })
    };
    (of_drivers.into_iter().enumerate().map(driver).collect(), mailboxes)
}

/// The socket of a client is on its way to the driver.
pub(crate) fn connect(
    mailbox: &Mailbox<MemoryHost>,
    shard: u16,
    request: ConnectRequest,
) -> PipeEnd {
    let (socket, client) = Pipe::new(PIPE_BYTES, 0, Flaws::default());
    let handover = Handover { socket, shard, request, rest: Vec::new(), permit: (), charge: () };
    mailbox.put(Item::Connection(Box::new(handover)));
    client
}

/// Answers deliveries. Returns how many there were.
pub(crate) fn receive(subscriber: &PipeEnd) -> usize {
    let mut answers = Vec::new();
    let count = read_packets(subscriber, PUBLISH, |packet| {
        if packet[0] & QOS_BITS != 0 {
            let [high, low] = [packet[PACKET_ID_AT], packet[PACKET_ID_AT + 1]];
            answers.extend_from_slice(&[PUBACK << 4, 2, high, low]);
        }
    });
    subscriber.send(&answers);
    count
}

/// Hands the packets of a kind to `take`. Returns how many there were.
pub(crate) fn read_packets(client: &PipeEnd, kind: u8, mut take: impl FnMut(&[u8])) -> usize {
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

/// A client id that lives on a shard.
pub(crate) fn id_on(shared: &Shared, shard: u16, name: &str) -> String {
    let mut ids = (0..).map(|number| format!("{name}-{number}"));
    let id = ids.find(|id| shared.shard_of_client(Name::first(id)) == shard);
    id.unwrap_or_default()
}

pub(crate) fn request(client_id: &str, limits: Limits) -> ConnectRequest {
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
    match admit(&bytes, &Arc::new(limits), "peer", String::new) {
        Admission::Connect(credentials, _) => credentials.request,
        Admission::Refuse(_) | Admission::NeedMore => unreachable!("the CONNECT is sound"),
    }
}

pub(crate) fn subscribe(topic: &str, qos: QoS) -> Vec<u8> {
    let mut filters = FilterBuf::new();
    filters.push(topic, SubscribeOptions::new(qos));
    let (properties, filters) = (Properties::EMPTY, filters.as_filters());
    let mut bytes = Vec::new();
    let packet = Packet::Subscribe(Subscribe { packet_id: 1, properties, filters });
    packet.encode(Version::V5, &mut bytes);
    bytes
}

pub(crate) fn publish_packet(topic: &str, qos: QoS, packet_id: u16) -> Packet<'_> {
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
