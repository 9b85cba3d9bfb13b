//! Streams: what is stored in them, when others may see it, and what a crash leaves.

use std::collections::BTreeMap;
use std::sync::Arc;

use broker::journal::{StreamRecord, read_attributes};
use broker::streams::{
    ConsumerNumber, Flag, OrderRefusal, StoredRecord, StreamChange, StreamFound, StreamNews,
    StreamNumber, StreamOrder, StreamSet, StreamSettings,
};
use broker::{ConnectRequest, Durability};
use codec::{AckKind, Packet, Properties, Publish, QoS, Reason};
use policy::{Attribute, Attributes, Principal};
use session::Will;
use storage::testing::Crash;

use crate::journal_shares::logged;
use crate::wills::{cut_only, fill, make_room};
use rig::{Conn, Got, Lab, level, persistent, request};

const STREAM: StreamNumber = StreamNumber(3);
const OTHER: StreamNumber = StreamNumber(8);
const CONSUMER: ConsumerNumber = ConsumerNumber(5);

fn stream(number: StreamNumber, filter: &str, level: Durability) -> StreamSettings {
    StreamSettings {
        number,
        scope: broker::Scope::FIRST,
        filters: vec![filter.into()],
        qos_min: 0,
        retain: None,
        payload_bytes_max: usize::MAX,
        level,
        is_full: Arc::default(),
    }
}

fn set_of(streams: Vec<StreamSettings>) -> Arc<StreamSet> {
    Arc::new(StreamSet { life: 9, streams, is_behind: Arc::default() })
}

/// The owner of streams: what it has heard of one shard.
#[derive(Default)]
struct Owner {
    stored: BTreeMap<StreamNumber, BTreeMap<u64, StoredRecord>>,
    synced: BTreeMap<StreamNumber, u64>,
    done: Vec<(u64, Result<(), OrderRefusal>)>,
    orders: u64,
    asked_for_space: u64,
}

impl Owner {
    fn order(&mut self, lab: &mut Lab, change: StreamChange) -> u64 {
        self.orders += 1;
        let order = StreamOrder { id: self.orders, change };
        lab.shards[0].on_stream_order(order, lab.now_ms);
        self.orders
    }

    fn open(lab: &mut Lab, streams: Vec<StreamSettings>) -> Self {
        let mut owner = Self::default();
        owner.order(lab, StreamChange::Set(set_of(streams)));
        owner.look(lab);
        owner
    }

    fn look(&mut self, lab: &mut Lab) {
        for news in std::mem::take(&mut lab.shards[0].effects_mut().stream_news) {
            match news {
                StreamNews::Stored { stream, first, records } => {
                    let own = self.stored.entry(stream).or_default();
                    for (ordinal, record) in (first..).zip(records) {
                        assert_eq!(own.insert(ordinal, record).map(|_| ordinal), None);
                    }
                }
                StreamNews::Synced { stream, next } => {
                    self.synced.insert(stream, next);
                }
                StreamNews::NeedsSpace => self.asked_for_space += 1,
                StreamNews::Done { order, result } => self.done.push((order, result)),
            }
        }
    }

    fn payloads(&self, stream: StreamNumber) -> Vec<(u64, String)> {
        let own = self.stored.get(&stream);
        let payload = |record: &StoredRecord| {
            let record = StreamRecord::decode(&record.bytes).expect("a record");
            String::from_utf8(record.payload.to_vec()).expect("a text")
        };
        own.into_iter().flatten().map(|(ordinal, own)| (*ordinal, payload(own))).collect()
    }
}

fn numbered(payloads: &[&str]) -> Vec<(u64, String)> {
    (0..).zip(payloads.iter().map(|payload| (*payload).to_owned())).collect()
}

fn ack(lab: &mut Lab, conn: Conn) -> Option<(AckKind, Reason)> {
    lab.take_all(conn).into_iter().find_map(|got| match got {
        Got::Ack(kind, _, reason) => Some((kind, reason)),
        _ => None,
    })
}

#[test]
fn a_message_that_only_a_stream_wants_is_acknowledged_with_success_when_it_is_synced() {
    let mut lab = Lab::durable(1);
    let mut owner = Owner::open(&mut lab, vec![stream(STREAM, "cars/#", Durability::Fsync)]);
    let publisher = lab.open(request("car-7"));
    lab.disks_stand_still = true;
    lab.publish(publisher, "cars/7", b"1", 1, 1);
    owner.look(&mut lab);
    assert_eq!((ack(&mut lab, publisher), owner.payloads(STREAM)), (None, vec![]));
    lab.disks_stand_still = false;
    lab.settle();
    owner.look(&mut lab);
    assert_eq!(ack(&mut lab, publisher), Some((AckKind::Puback, Reason::SUCCESS)));
    assert_eq!(owner.payloads(STREAM), numbered(&["1"]));
    assert_eq!(owner.synced[&STREAM], 1);
    let record = owner.stored[&STREAM][&0].clone();
    let record = StreamRecord::decode(&record.bytes).expect("a record");
    assert_eq!((record.client_id, record.topic, record.life), ("car-7", "cars/7", 9));
    lab.publish(publisher, "trucks/7", b"1", 1, 2);
    let expected = Some((AckKind::Puback, Reason::NO_MATCHING_SUBSCRIBERS));
    assert_eq!(ack(&mut lab, publisher), expected);
}

#[test]
fn a_stream_gets_qos_0_and_qos_2_once_and_the_handover_stores_nothing_again() {
    for shards in [1, 4] {
        let mut lab = Lab::durable(shards);
        let settings = || vec![stream(STREAM, "a", Durability::Fsync)];
        let mut owner = Owner::open(&mut lab, settings());
        let id = lab.id_on(0, "publisher");
        let publisher = lab.open(persistent(&id));
        lab.publish(publisher, "a", b"0", 0, 0);
        lab.publish(publisher, "a", b"2", 2, 7);
        assert_eq!(ack(&mut lab, publisher), Some((AckKind::Pubrec, Reason::SUCCESS)));
        // It comes again, before the PUBREL.
        lab.send(publisher, &again("a", b"2", 7));
        owner.look(&mut lab);
        assert_eq!(owner.payloads(STREAM), numbered(&["0", "2"]), "{shards} shards");
        lab.crash(Crash::Power);
        let mut owner = Owner::open(&mut lab, settings());
        let publisher = lab.open(persistent(&id));
        lab.send(publisher, &again("a", b"2", 7));
        lab.settle();
        owner.look(&mut lab);
        assert_eq!(owner.payloads(STREAM), numbered(&["0", "2"]), "{shards} shards");
    }
}

fn again(topic: &'static str, payload: &'static [u8], packet_id: u16) -> Packet<'static> {
    let (qos, properties) = (level(2), Properties::EMPTY);
    Packet::Publish(Publish {
        dup: true,
        qos,
        retain: false,
        topic,
        packet_id,
        properties,
        payload,
    })
}

#[test]
fn one_record_is_for_streams_and_sessions_and_each_lets_it_go_by_itself() {
    let mut lab = Lab::durable(1);
    let settings =
        || vec![stream(STREAM, "a/+", Durability::Disk), stream(OTHER, "a/b", Durability::Fsync)];
    let mut owner = Owner::open(&mut lab, settings());
    let away = lab.open(persistent("away"));
    lab.subscribe(away, "a/#", 1);
    lab.cut(away);
    let publisher = lab.open(request("publisher"));
    let before = lab.shards[0].journal().unwrap().stats().records_appended;
    lab.publish(publisher, "a/b", b"1", 1, 1);
    let after = lab.shards[0].journal().unwrap().stats().records_appended;
    assert_eq!(after - before, 1);
    lab.publish(publisher, "a/c", b"2", 0, 0);
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["1", "2"]));
    assert_eq!(owner.payloads(OTHER), numbered(&["1"]));
    for (number, next) in [(STREAM, 2), (OTHER, 1)] {
        let (stream, file, end) = (number, 1, 500);
        owner.order(&mut lab, StreamChange::Archived { stream, next, file, end });
    }
    lab.settle();
    owner.look(&mut lab);
    assert!(owner.done.iter().all(|(_, result)| result.is_ok()), "{:?}", owner.done);
    // The streams do not need it any more; it goes round the journal for the session.
    lab.turn_the_journal_over();
    lab.crash(Crash::Power);
    let found = lab.shards[0].streams_found();
    let reach = BTreeMap::from([(1, 500)]);
    let of = |next| StreamFound { archived: next, next, reach: reach.clone(), first_file: 0 };
    assert_eq!(found.streams, BTreeMap::from([(STREAM, of(2)), (OTHER, of(1))]));
    let mut owner = Owner::open(&mut lab, settings());
    assert_eq!(owner.stored.len(), 0);
    let away = lab.connect(persistent("away"));
    assert_eq!(lab.payloads(away), ["1"], "QoS 0 is not stored for it");
    // Ordinals go on behind what is in files.
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a/c", b"3", 1, 1);
    lab.settle();
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), [(2, "3".to_owned())]);
}

#[test]
fn what_no_file_has_outlives_a_loss_of_power_and_turns_of_the_journal() {
    let mut lab = Lab::durable(1);
    let settings = || vec![stream(STREAM, "a", Durability::Fsync)];
    let mut owner = Owner::open(&mut lab, settings());
    let publisher = lab.open(request("publisher"));
    for (number, payload) in (1..).zip(["1", "2", "3"]) {
        lab.publish(publisher, "a", payload.as_bytes(), 1, number);
    }
    owner.order(&mut lab, StreamChange::Archived { stream: STREAM, next: 1, file: 1, end: 90 });
    owner.order(&mut lab, cursor(b"the first", Durability::Disk));
    lab.settle();
    for _ in 0..2 {
        lab.turn_the_journal_over();
        owner.look(&mut lab);
        assert!(owner.asked_for_space > 0, "files would free space");
        lab.crash(Crash::Power);
        let found = lab.shards[0].streams_found();
        let reach = BTreeMap::from([(1, 90)]);
        assert_eq!(
            found.streams[&STREAM],
            StreamFound { archived: 1, next: 3, reach, first_file: 0 }
        );
        assert_eq!(found.cursors[&CONSUMER], b"the first");
        owner = Owner::open(&mut lab, settings());
        assert_eq!(owner.payloads(STREAM), [(1, "2".to_owned()), (2, "3".to_owned())]);
    }
}

fn cursor(cursor: &[u8], level: Durability) -> StreamChange {
    StreamChange::Cursor { consumer: CONSUMER, cursor: cursor.to_vec(), level }
}

/// What the disk does, step by step, until the order is done.
fn steps_until_done(lab: &mut Lab, owner: &mut Owner, order: u64) -> u32 {
    let mut steps = 0;
    while owner.done.last() != Some(&(order, Ok(()))) {
        let mut commands = Vec::new();
        lab.shards[0].take_disk_commands(&mut commands, lab.now_ms);
        commands.into_iter().for_each(|command| lab.disks[0].submit(command));
        if let Some(completion) = lab.disks[0].step() {
            lab.shards[0].on_disk(completion, lab.now_ms);
        }
        steps += 1;
        assert!(steps < 1_000, "the order is answered");
        owner.look(lab);
    }
    steps
}

/// A cursor that begins a run is done when no loss of power can undo it.
#[test]
fn a_cursor_is_done_when_it_is_committed_at_its_level() {
    let steps = [Durability::Disk, Durability::Fsync].map(|level| {
        let mut lab = Lab::durable(1);
        let mut owner = Owner::open(&mut lab, vec![]);
        lab.settle();
        let order = owner.order(&mut lab, cursor(b"the first", level));
        let steps = steps_until_done(&mut lab, &mut owner, order);
        if level == Durability::Fsync {
            lab.crash(Crash::Power);
            assert_eq!(lab.shards[0].streams_found().cursors[&CONSUMER], b"the first");
        }
        steps
    });
    assert!(steps[0] < steps[1], "a sync is awaited: {steps:?}");
}

#[test]
fn a_crash_takes_what_is_not_committed_and_its_ordinal_is_given_again() {
    let mut lab = Lab::durable(1);
    let settings = || vec![stream(STREAM, "a", Durability::Fsync)];
    let mut owner = Owner::open(&mut lab, settings());
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a", b"1", 1, 1);
    lab.disks_stand_still = true;
    lab.publish(publisher, "a", b"lost", 1, 2);
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["1"]), "nobody reads what is not committed");
    lab.disks_stand_still = false;
    lab.crash(Crash::Power);
    let mut owner = Owner::open(&mut lab, settings());
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a", b"2", 1, 1);
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["1", "2"]));
}

#[test]
fn a_dead_letter_and_its_cursor_are_one_record() {
    let mut lab = Lab::durable(1);
    let mut dead = stream(OTHER, "none", Durability::Fsync);
    dead.filters.clear();
    let settings = vec![stream(STREAM, "a", Durability::Fsync), dead];
    let mut owner = Owner::open(&mut lab, settings.clone());
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "a", b"1", 1, 1);
    owner.look(&mut lab);
    let record = owner.stored[&STREAM][&0].clone();
    let letter = |stream| StreamChange::DeadLetter {
        consumer: CONSUMER,
        cursor: b"behind it".to_vec(),
        stream,
        record: Arc::clone(&record.bytes),
    };
    let unknown = owner.order(&mut lab, letter(StreamNumber(77)));
    owner.order(&mut lab, letter(OTHER));
    lab.settle();
    owner.look(&mut lab);
    assert!(owner.done.contains(&(unknown, Err(OrderRefusal::NoStream))));
    assert_eq!(owner.payloads(OTHER), numbered(&["1"]));
    // Its record goes round the journal, then the record is in a file and the cursor goes on alone.
    for archived in [0, 1] {
        if archived == 1 {
            let (stream, next, file, end) = (OTHER, 1, 4, 70);
            owner.order(&mut lab, StreamChange::Archived { stream, next, file, end });
            lab.settle();
        }
        lab.turn_the_journal_over();
        lab.crash(Crash::Power);
        let found = lab.shards[0].streams_found();
        assert_eq!(found.cursors[&CONSUMER], b"behind it");
        assert_eq!((found.streams[&OTHER].archived, found.streams[&OTHER].next), (archived, 1));
        owner = Owner::open(&mut lab, settings.clone());
    }
}

#[test]
fn files_that_were_deleted_are_not_asked_for_again_and_ordinals_go_on() {
    let mut lab = Lab::durable(1);
    let settings = || vec![stream(STREAM, "a", Durability::Fsync)];
    let mut owner = Owner::open(&mut lab, settings());
    let publisher = lab.open(request("publisher"));
    for number in 1..=4 {
        lab.publish(publisher, "a", b"x", 1, number);
    }
    for (next, file) in [(2, 1), (3, 2), (4, 3)] {
        owner.order(&mut lab, StreamChange::Archived { stream: STREAM, next, file, end: 100 });
    }
    owner.order(&mut lab, StreamChange::Dropped { stream: STREAM, first_file: 3 });
    lab.settle();
    lab.crash(Crash::Power);
    let reach = BTreeMap::from([(3, 100)]);
    let found = lab.shards[0].streams_found().streams[&STREAM].clone();
    assert_eq!(found, StreamFound { archived: 4, next: 4, reach, first_file: 3 });
    let mut owner = Owner::open(&mut lab, settings());
    owner.order(&mut lab, StreamChange::Dropped { stream: STREAM, first_file: 9 });
    lab.settle();
    lab.turn_the_journal_over();
    lab.crash(Crash::Power);
    let found = lab.shards[0].streams_found().streams[&STREAM].clone();
    let reach = BTreeMap::new();
    assert_eq!(found, StreamFound { archived: 4, next: 4, reach, first_file: 9 });
}

#[test]
fn a_stream_that_is_gone_holds_nothing_in_the_journal() {
    let mut lab = Lab::durable(1);
    let live = |lab: &Lab| lab.shards[0].journal().unwrap().live_bytes();
    let before = live(&lab);
    let mut owner = Owner::open(&mut lab, vec![stream(STREAM, "a", Durability::Fsync)]);
    let publisher = lab.open(request("publisher"));
    for number in 1..=9 {
        lab.publish(publisher, "a", b"x", 1, number);
    }
    owner.order(&mut lab, StreamChange::Archived { stream: STREAM, next: 2, file: 1, end: 100 });
    lab.settle();
    assert!(live(&lab) > before);
    owner.order(&mut lab, StreamChange::Set(set_of(vec![])));
    lab.settle();
    assert_eq!(live(&lab), before);
    lab.publish(publisher, "a", b"x", 1, 10);
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM).len(), 9);
}

#[test]
fn a_full_stream_refuses_what_asks_for_an_answer_and_counts_the_rest() {
    let mut lab = Lab::durable(1);
    let is_full: Arc<Flag> = Arc::default();
    let mut settings = stream(STREAM, "a", Durability::Fsync);
    settings.is_full = Arc::clone(&is_full);
    let mut owner = Owner::open(&mut lab, vec![settings]);
    let clean = lab.open(request("clean"));
    let kept = lab.open(persistent("kept"));
    is_full.set(true);
    for (conn, qos, kind) in [(clean, 1, AckKind::Puback), (kept, 2, AckKind::Pubrec)] {
        lab.publish(conn, "a", b"1", qos, 1);
        assert_eq!(ack(&mut lab, conn), Some((kind, Reason::QUOTA_EXCEEDED)));
    }
    lab.publish(clean, "a", b"0", 0, 0);
    assert_eq!(lab.total(|metrics| &metrics.stream_messages_unstored), 1);
    is_full.set(false);
    lab.publish(clean, "a", b"2", 1, 2);
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["2"]));
}

#[test]
fn a_will_that_only_a_stream_wants_is_stored_once_across_a_crash() {
    let mut lab = Lab::durable(1);
    let settings = || vec![stream(STREAM, "will", Durability::Fsync)];
    let mut owner = Owner::open(&mut lab, settings());
    let mut asking = persistent("dying");
    asking.will = Some(Box::new(Will {
        topic: "will".into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos: QoS::AtLeastOnce,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }));
    let conn = lab.open(asking);
    lab.cut(conn);
    lab.settle();
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["gone"]));
    lab.crash(Crash::Power);
    lab.pass_secs(4);
    let owner = Owner::open(&mut lab, settings());
    assert_eq!(owner.payloads(STREAM), numbered(&["gone"]));
}

/// The session is over before its journal has room for the will: the record says who it was.
#[test]
fn a_will_that_waits_for_log_space_is_stored_with_its_publisher() {
    let mut lab = Lab::durable(1);
    let mut owner = Owner::open(&mut lab, vec![stream(STREAM, "will", Durability::Fsync)]);
    let attributes = || {
        let site = Attribute::Text("berlin".into());
        Attributes::new([("site".into(), site)])
    };
    let ids: Vec<String> = (0..12).map(|who| format!("dying-{who:02}")).collect();
    let conns: Vec<Conn> = ids
        .iter()
        .map(|id| {
            let will =
                Will { payload: [b'w'; 5_000].into(), ..rig::will("will", QoS::AtLeastOnce) };
            let principal = Principal { attributes: attributes(), ..Principal::default() };
            lab.open(ConnectRequest {
                username: Some("sensors".into()),
                principal: Some(Box::new(principal)),
                ..rig::with_will(persistent(id), will)
            })
        })
        .collect();
    fill(&mut lab, 0);
    conns.iter().for_each(|conn| cut_only(&mut lab, *conn));
    lab.settle();
    owner.look(&mut lab);
    let before = owner.stored.get(&STREAM).map_or(0, BTreeMap::len);
    assert!(before < ids.len(), "the reserve of this log has room for them all");
    for id in &ids {
        lab.connect_only(ConnectRequest { username: Some("sensors".into()), ..request(id) });
    }
    make_room(&mut lab, 0);
    owner.look(&mut lab);
    let expected = ids.iter().map(|id| (id.clone(), Some("sensors".to_owned()), attributes()));
    let mut found: Vec<(String, Option<String>, Attributes)> = owner.stored[&STREAM]
        .values()
        .map(|stored| {
            let record = StreamRecord::decode(&stored.bytes).expect("a record");
            let attributes = read_attributes(record.attributes).expect("attributes");
            (record.client_id.to_owned(), record.username.map(str::to_owned), attributes)
        })
        .collect();
    found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, expected.collect::<Vec<_>>());
    let charged = logged(&lab, "user sensors");
    assert!(charged >= ids.len() as u64 * 5_000, "{charged} bytes are charged to their user");
}

#[test]
fn a_publisher_waits_while_files_are_behind_also_with_qos_0() {
    let mut lab = Lab::durable(1);
    let set = set_of(vec![stream(STREAM, "a", Durability::Fsync)]);
    let mut owner = Owner::default();
    owner.order(&mut lab, StreamChange::Set(Arc::clone(&set)));
    let publisher = lab.open(request("publisher"));
    set.is_behind.set(true);
    lab.publish(publisher, "a", b"1", 0, 0);
    assert!(!lab.is_read(publisher));
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), []);
    let other = lab.open(request("other"));
    lab.publish(other, "b", b"1", 0, 0);
    assert!(lab.is_read(other), "it is not for a stream");
    set.is_behind.set(false);
    lab.pass_secs(1);
    lab.bytes(publisher, &[]);
    lab.settle();
    owner.look(&mut lab);
    assert_eq!(owner.payloads(STREAM), numbered(&["1"]));
}
