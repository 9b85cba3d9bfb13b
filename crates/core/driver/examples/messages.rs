//! Single messages of many connections, with sockets and disks in memory, for counting
//! instructions from outside: `messages KIND-SHARDS-PUBLISHERS-SUBSCRIBERS COUNT`.
//! `tests/instructions.py` runs it under callgrind.
//!
//! All shards are on one driver. Publishers take turns: one of them sends one message at QoS 1, and
//! the next one follows when all acknowledgements have come. The kinds:
//!
//! - `paced`: pairs, over all pairs of shards;
//! - `share`: subscribers are members of one shared group;
//! - `disk`, `fsync`: pairs, whose subscribers have kept sessions of this level.

mod lab;

use std::cell::RefCell;
use std::rc::Rc;

use broker::{Durability, Limits, Settings};
use codec::{QoS, SubscribeOptions, Version};
use driver::testing::PipeEnd;
use driver::{Host, Item, Ready};
use rig::{QuickDisk, publish, request_with, subscribe_bytes};
use storage::{InPlace, InPlaceEnd, Settings as JournalSettings, Step};

use lab::{Drivers, Mailboxes, TOPIC, TURNS_MAX, connect, count_pubacks, drivers, receive};

const GROUP: &str = "$share/readers/sensors/+/temperature";

/// One character tells their topics apart.
const PUBLISHERS_MAX: usize = (b'z' - b'1') as usize + 1;

/// What a worker of the broker writes itself in a turn.
const IN_PLACE_BYTES_MAX: usize = 64 << 10;

/// No segment is full before the last message.
const SEGMENT_BYTES: u32 = 32 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((work, count)) = parse(&arguments) else {
        eprintln!("usage: messages paced|share|disk|fsync-SHARDS-PUBLISHERS-SUBSCRIBERS COUNT");
        std::process::exit(2);
    };
    let mut lab = Lab::new(&work);
    (0..count).for_each(|round| lab.round(round));
}

struct Work {
    is_shared: bool,
    level: Durability,
    shards: usize,
    publishers: usize,
    subscribers: usize,
}

fn parse(arguments: &[String]) -> Option<(Work, usize)> {
    let [work, count] = arguments else { return None };
    let (kind, sizes) = work.split_once('-')?;
    let (is_shared, level) = match kind {
        "paced" => (false, Durability::Memory),
        "share" => (true, Durability::Memory),
        "disk" => (false, Durability::Disk),
        "fsync" => (false, Durability::Fsync),
        _ => return None,
    };
    let sizes: Vec<usize> = sizes.split('-').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [shards, publishers, subscribers] = sizes[..] else { return None };
    let is_sound = (1..=PUBLISHERS_MAX).contains(&publishers)
        && (1..=64).contains(&shards)
        && (is_shared || subscribers == publishers);
    let work = Work { is_shared, level, shards, publishers, subscribers };
    is_sound.then_some((work, count.parse().ok()?))
}

impl Work {
    fn is_kept(&self) -> bool {
        self.level > Durability::Memory
    }

    fn filter(&self, subscriber: usize) -> String {
        if self.is_shared { GROUP.to_owned() } else { topic(subscriber) }
    }

    /// Pairs are over all pairs of shards alike: 16 of them on 4 shards.
    fn shard_of(&self, subscriber: usize) -> u16 {
        ((subscriber + 1 + subscriber / self.shards) % self.shards) as u16
    }
}

fn topic(publisher: usize) -> String {
    TOPIC.replace('1', &char::from(b'1' + publisher as u8).to_string())
}

/// The host of the driver is asked for the sockets of this round only: what all sockets cost is
/// none of the driver's.
struct Lab<'a> {
    work: &'a Work,
    drivers: Drivers,
    mailboxes: Mailboxes,
    /// Of each shard, if sessions are kept.
    disks: Rc<RefCell<Vec<QuickDisk>>>,
    /// With what each sends.
    publishers: Vec<(PipeEnd, Vec<u8>)>,
    subscribers: Vec<PipeEnd>,
}

impl<'a> Lab<'a> {
    fn new(work: &'a Work) -> Self {
        let count = work.shards as u16;
        let mut kit = match work.is_kept() {
            true => rig::Lab::durable_by(
                count,
                Settings::default(),
                JournalSettings::with_segment_bytes(SEGMENT_BYTES),
            ),
            false => rig::Lab::new(count),
        };
        let disks: Vec<QuickDisk> = kit.disks.iter().map(QuickDisk::like).collect();
        let disks = Rc::new(RefCell::new(disks));
        let (mut drivers, mailboxes) = drivers(vec![std::mem::take(&mut kit.shards)]);
        if work.level == Durability::Disk {
            let disks = disks.clone();
            let write = move |shard, write: &InPlace| {
                let InPlace { segment, offset, bytes } = write.clone();
                let step = Step::Write { segment, offset, bytes };
                disks.borrow_mut()[usize::from(shard)].write(&step);
                InPlaceEnd::Done
            };
            drivers[0].host_mut().set_disk(IN_PLACE_BYTES_MAX, Box::new(write));
        }
        let connect = |name: &str, shard: u16, is_kept: bool| {
            let limits = Limits { durability: work.level, ..Limits::default() };
            let mut request = request_with(&kit.id_on(shard, name), limits);
            if is_kept {
                (request.clean_start, request.session_expiry_secs) = (false, u32::MAX);
            }
            connect(&mailboxes[0], shard, request)
        };
        let publishers = (0..work.publishers).map(|number| {
            let shard = (number % work.shards) as u16;
            let client = connect(&format!("publisher-{number}"), shard, false);
            let mut bytes = Vec::new();
            let topic = topic(number);
            publish(&topic, &[7; 64], 1, 1).encode(Version::V5, &mut bytes);
            (client, bytes)
        });
        let publishers = publishers.collect();
        let subscribers = (0..work.subscribers).map(|number| {
            let name = format!("subscriber-{number}");
            connect(&name, work.shard_of(number), work.is_kept())
        });
        let subscribers = subscribers.collect();
        let mut lab = Self { work, drivers, mailboxes, disks, publishers, subscribers };
        lab.settle();
        for (number, subscriber) in lab.subscribers.iter().enumerate() {
            let options = SubscribeOptions::new(QoS::AtLeastOnce);
            let filter = (&*work.filter(number), options);
            subscriber.send(&subscribe_bytes(Version::V5, &[filter], None));
        }
        lab.settle();
        lab.publishers.iter().for_each(|(client, _)| drop(client.take(usize::MAX)));
        lab.subscribers.iter().for_each(|client| drop(client.take(usize::MAX)));
        lab
    }

    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let (ready, _) = self.drivers[0].host_mut().ready(usize::MAX, |_| 0);
            self.turn(ready);
        }
    }

    /// Journals get the answers to what they have ordered in the next turn.
    fn turn(&mut self, ready: Vec<Ready>) {
        let driver = &mut self.drivers[0];
        driver.turn(driver.host().now(), ready.into_iter(), false);
        // Between two turns a worker asks how long it may sleep.
        driver.fall_asleep(driver.ended());
        driver.wake_up();
        if self.work.is_kept() {
            let reports = driver.host().reports();
            for (shard, command) in reports.borrow_mut().commands.drain(..) {
                let disk = &mut self.disks.borrow_mut()[usize::from(shard)];
                let completion = disk.carry_out(command);
                self.mailboxes[0].put(Item::Disk(shard, Box::new(completion)));
            }
        }
    }

    /// A publish, its delivery and all acknowledgements, until nothing is left to do.
    ///
    /// # Panics
    ///
    /// When the message or an acknowledgement is missing: then less would be counted.
    fn round(&mut self, round: usize) {
        let publisher = round % self.work.publishers;
        let receivers = match self.work.is_shared {
            true => 0..self.work.subscribers,
            false => publisher..publisher + 1,
        };
        let (mut received, mut acknowledged) = (0, 0);
        let (client, bytes) = &self.publishers[publisher];
        client.send(bytes);
        for _ in 0..TURNS_MAX {
            let ends = std::iter::once(&self.publishers[publisher].0);
            let ends = ends.chain(&self.subscribers[receivers.clone()]);
            let host = self.drivers[0].host();
            let ready: Vec<Ready> = ends.filter_map(|end| host.ready_of(end)).collect();
            if ready.is_empty() && !self.drivers[0].has_mail() {
                assert_eq!((received, acknowledged), (1, 1), "delivered, acknowledged");
                return;
            }
            self.turn(ready);
            received += self.subscribers[receivers.clone()].iter().map(receive).sum::<usize>();
            acknowledged += count_pubacks(&self.publishers[publisher].0);
        }
        panic!("a round does not end");
    }
}
