//! The ways of a message that need a second shard, a journal or a group.

use std::hint::black_box;

use std::sync::Arc;

use broker::streams::{
    ConsumerNumber, StreamChange, StreamNumber, StreamOrder, StreamSet, StreamSettings,
};
use broker::{ConnectRequest, Durability, Scope, Settings, Shard, ShardId};
use codec::Version;

use rig::wire::{PUBACK, QOS_BITS, acknowledge, read_packets};
use rig::{Lab, QuickDisk, of_version, persistent, publish, request};

const TOPIC: &str = "sensors/1/temperature";
/// As long as the first one.
const SECOND_TOPIC: &str = "sensors/2/temperature";

const GROUP: &str = "$share/readers/sensors/1/temperature";

/// Of a group. They are on the shard of the publisher.
const MEMBERS: u32 = 2;

/// No segment is full before the last message.
const SEGMENT_BYTES: u32 = 32 << 20;

/// A publisher and its subscribers, with a driver that has one turn for each batch.
pub(crate) struct Way {
    shards: Vec<Shard>,
    disks: Vec<QuickDisk>,
    /// Shard, slot and connection.
    publisher: (usize, u32, u64),
    publish: Vec<u8>,
    batch: usize,
    now_ms: u64,
    received: u64,
    acknowledged: u64,
    /// What a socket took last, and what its client answers.
    written: Vec<u8>,
    answers: Vec<u8>,
    commands: Vec<storage::Command>,
}

impl Way {
    /// The subscriber is on the other one of two shards.
    pub(crate) fn to_other_shard(version: Version, qos: u8, batch: usize) -> Self {
        let mut lab = Lab::new(2);
        let (publisher, subscriber) = (lab.id_on(0, "publisher"), lab.id_on(1, "subscriber"));
        let publisher = lab.open(of_version(version, &publisher));
        let subscriber = lab.open(of_version(version, &subscriber));
        lab.subscribe(subscriber, TOPIC, qos);
        Self::of(lab, version, publisher, qos, batch)
    }

    /// The session of the subscriber is kept in a journal.
    pub(crate) fn to_kept_session(batch: usize) -> Self {
        Self::in_lab(durable_lab(), persistent, (TOPIC, 1), batch)
    }

    pub(crate) fn to_group(batch: usize) -> Self {
        Self::in_lab(Lab::new(1), request, (GROUP, MEMBERS), batch)
    }

    /// Messages for the group are kept in a journal.
    pub(crate) fn to_kept_group(batch: usize) -> Self {
        Self::in_lab(durable_lab(), persistent, (GROUP, MEMBERS), batch)
    }

    /// A subscriber to each of up to two topics, which get a message in turn, and a stream with
    /// this filter, or `none`, with so many rules.
    pub(crate) fn past_stream(filter: &str, qos: u8, topics: usize, rules: u32) -> Self {
        let topics = [TOPIC, SECOND_TOPIC].get(..topics).expect("one topic or two");
        let mut lab = durable_lab();
        let publisher = lab.open(request("publisher"));
        let subscriber = lab.open(request("subscriber"));
        topics.iter().for_each(|topic| assert_eq!(lab.subscribe(subscriber, topic, qos), qos));
        if filter != "none" {
            let changes = stream_changes(filter, rules);
            for (id, change) in (1..).zip(changes) {
                lab.shards[0].on_stream_order(StreamOrder { id, change }, lab.now_ms);
                lab.settle();
            }
        }
        let mut bytes = Vec::new();
        for (topic, packet_id) in topics.iter().zip(1..) {
            publish(topic, &[7; 64], qos, packet_id).encode(Version::V5, &mut bytes);
        }
        Self { publish: bytes, ..Self::of(lab, Version::V5, publisher, qos, topics.len()) }
    }

    /// All at QoS 1.
    fn in_lab(
        mut lab: Lab,
        session: fn(&str) -> ConnectRequest,
        (filter, count): (&str, u32),
        batch: usize,
    ) -> Self {
        let publisher = lab.open(request("publisher"));
        for number in 0..count {
            let conn = lab.open(session(&format!("subscriber-{number}")));
            lab.subscribe(conn, filter, 1);
        }
        Self::of(lab, Version::V5, publisher, 1, batch)
    }

    fn of(mut lab: Lab, version: Version, publisher: u64, qos: u8, batch: usize) -> Self {
        let (shard, slot) = lab.place(publisher);
        let mut bytes = Vec::new();
        for packet_id in 1..=batch {
            publish(TOPIC, &[7; 64], qos, packet_id as u16).encode(version, &mut bytes);
        }
        Self {
            publisher: (shard, slot, publisher),
            disks: lab.disks.iter().map(QuickDisk::like).collect(),
            shards: std::mem::take(&mut lab.shards),
            publish: bytes,
            batch,
            now_ms: lab.now_ms,
            received: 0,
            acknowledged: 0,
            written: Vec::new(),
            answers: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// A batch of publishes, their deliveries and all acknowledgements.
    ///
    /// # Panics
    ///
    /// When a message or an acknowledgement is missing: then less would be counted.
    pub(crate) fn round(&mut self) {
        let (shard, slot, conn) = self.publisher;
        self.shards[shard].on_bytes(slot, conn, black_box(&self.publish), self.now_ms);
        while self.take_turn() {}
        let count = self.batch as u64;
        assert_eq!(std::mem::take(&mut self.received), count, "deliveries");
        let expected = if self.publish[0] & QOS_BITS == 0 { 0 } else { count };
        assert_eq!(std::mem::take(&mut self.acknowledged), expected, "acknowledgements");
    }

    /// False: no shard has anything to say.
    fn take_turn(&mut self) -> bool {
        let mut has_worked = false;
        for shard in 0..self.shards.len() {
            while let Some((slot, conn)) = self.shards[shard].take_dirty() {
                self.write(shard, slot, conn);
                has_worked = true;
            }
            self.shards[shard].end_turn();
            self.shards[shard].effects_mut().stream_news.clear();
            has_worked |= self.drive_journal(shard);
        }
        has_worked | self.carry_mail()
    }

    /// A socket takes everything, and its client answers.
    fn write(&mut self, shard: usize, slot: u32, conn: u64) {
        self.written.clear();
        let Some(outbox) = self.shards[shard].outbox(slot, conn) else { return };
        outbox.slices().for_each(|slice| self.written.extend_from_slice(slice));
        self.shards[shard].on_written(slot, conn, self.written.len(), self.now_ms);
        self.answers.clear();
        if conn == self.publisher.2 {
            self.acknowledged += read_packets(&self.written, PUBACK, |_| {}) as u64;
        } else {
            self.received += acknowledge(&self.written, TOPIC.len(), &mut self.answers) as u64;
        }
        if !self.answers.is_empty() {
            self.shards[shard].on_bytes(slot, conn, &self.answers, self.now_ms);
        }
    }

    fn drive_journal(&mut self, shard: usize) -> bool {
        let Some(disk) = self.disks.get_mut(shard) else { return false };
        self.shards[shard].take_disk_commands(&mut self.commands, self.now_ms);
        let has_commands = !self.commands.is_empty();
        for command in self.commands.drain(..) {
            let completion = disk.carry_out(command);
            self.shards[shard].on_disk(completion, self.now_ms);
        }
        has_commands
    }

    fn carry_mail(&mut self) -> bool {
        let count = self.shards.len();
        let mut has_mail = false;
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            let mails = self.shards[from].effects_mut().take_batch(to as ShardId);
            if !mails.is_empty() {
                has_mail = true;
                self.shards[to].on_batch(mails, self.now_ms);
            }
        }
        has_mail
    }
}

/// The stream, and what a shard knows of rules: their cursors.
fn stream_changes(filter: &str, rules: u32) -> Vec<StreamChange> {
    let stream = StreamSettings {
        number: StreamNumber(1),
        scope: Scope::FIRST,
        filters: vec![filter.into()],
        qos_min: 0,
        retain: None,
        payload_bytes_max: usize::MAX,
        level: Durability::Disk,
        is_full: Arc::default(),
    };
    let set = StreamSet { life: 1, streams: vec![stream], is_behind: Arc::default() };
    let cursor = |rule| StreamChange::Cursor {
        consumer: ConsumerNumber(rule),
        cursor: vec![7; 16],
        level: Durability::Disk,
    };
    std::iter::once(StreamChange::Set(Arc::new(set))).chain((1..=rules).map(cursor)).collect()
}

fn durable_lab() -> Lab {
    let journal = storage::Settings::with_segment_bytes(SEGMENT_BYTES);
    Lab::durable_by(1, Settings::default(), journal)
}
