//! Turns of drivers with sockets in memory, for counting instructions from outside:
//! `turns DRIVERS-QOS-BATCH COUNT`, or `turns DRIVERS-QOS-BATCH-SHARDS-PAIRS COUNT`.
//! `tests/instructions.py` runs it under callgrind.

mod lab;

use broker::{Homes, Limits, Settings, Shard, Shared};
use codec::{QoS, SubscribeOptions, Version};
use driver::Host;
use driver::testing::PipeEnd;
use policy::Access;
use rig::{id_on, publish, request_with, subscribe_bytes};

use lab::{Drivers, TOPIC, TURNS_MAX, connect, count_pubacks, drivers, receive};

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
        let shared = Shared::new(Settings::default(), Homes::of_one_cell(work.shards as u16), 7);
        let shards = |first: usize| (first..work.shards).step_by(work.drivers);
        let shard = |id: usize| Shard::new(id as u16, shared.clone(), Access::open());
        let of_driver = |index: usize| shards(index).map(shard).collect();
        let (drivers, mailboxes) = drivers((0..work.drivers).map(of_driver).collect());
        let connect = |name: &str, shard: usize| {
            let request = request_with(&id_on(&shared, shard as u16, name), Limits::default());
            connect(&mailboxes[shard % work.drivers], shard as u16, request)
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
            let filter = (&*topic, SubscribeOptions::new(work.qos));
            pair.subscriber.send(&subscribe_bytes(Version::V5, &[filter], None));
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
        let mut bytes = Vec::new();
        for packet_id in 1..=work.batch {
            let packet = publish(topic, &[7; 64], work.qos as u8, packet_id as u16);
            packet.encode(Version::V5, &mut bytes);
        }
        let (batch, has_answers) = (work.batch, work.qos > QoS::AtMostOnce);
        Self {
            publisher,
            subscriber,
            publish: bytes,
            batch,
            has_answers,
            received: 0,
            acknowledged: 0,
        }
    }

    fn begin(&mut self) {
        (self.received, self.acknowledged) = (0, 0);
        self.publisher.send(&self.publish);
    }

    fn look(&mut self) {
        self.received += receive(&self.subscriber);
        self.acknowledged += count_pubacks(&self.publisher);
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
