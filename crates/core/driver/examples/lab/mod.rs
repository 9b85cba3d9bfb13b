//! What the examples share: drivers with sockets in memory, and their clients.

use std::sync::Arc;

use broker::{ConnectRequest, Shard};
use driver::testing::{Alarm, Clock, Flaws, MemoryHost, Pipe, PipeEnd};
use driver::{Driver, DriverParts, Handover, IncomingRoom, Item, Mailbox};
use rig::BEGIN_MS;
use rig::wire::{PUBACK, acknowledge, read_packets};

/// Of the first publisher; all topics are as long.
pub(crate) const TOPIC: &str = "sensors/1/temperature";

/// Turns after which a message is taken to be lost.
pub(crate) const TURNS_MAX: usize = 100;

/// More than a batch takes.
const PIPE_BYTES: usize = 1 << 20;

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
    let count = acknowledge(&subscriber.take(usize::MAX), TOPIC.len(), &mut answers);
    subscriber.send(&answers);
    count
}

/// Acknowledgements for a publisher.
pub(crate) fn count_pubacks(publisher: &PipeEnd) -> usize {
    read_packets(&publisher.take(usize::MAX), PUBACK, |_| {})
}
