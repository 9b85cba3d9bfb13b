//! Records that are whole and say nothing that can be understood: no start goes on without them.

use std::sync::Arc;

use broker::journal::{Fact, QueueNumber, SessionOpened, StoredMessage, Subscribed};
use broker::{Homes, Limits, Replay, Restored, Settings, Shard, Shared};
use codec::{QoS, Version};
use policy::Access;
use storage::testing::{SimDisk, Written};
use storage::{Position, Record, RecordKind};

/// What a start says to these facts.
fn start(facts: &[Fact<'_>]) -> Result<Restored, String> {
    start_shard(facts).map(|(_, restored)| restored)
}

fn start_shard(facts: &[Fact<'_>]) -> Result<(Shard, Restored), String> {
    let shared = Shared::new(Settings::default(), Homes::of_one_cell(1), 7);
    let mut shard = Shard::new(0, shared, Access::open());
    let settings = storage::Settings::with_segment_bytes(64 * 1024);
    let recovery =
        storage::Recovery::new((0, 1), &settings, Vec::new(), None).expect("no log is sound");
    let mut recovered = recovery.finish(storage::Identity { id: [7; 16], shard: 0, shards: 1 });
    let mut replay = Replay::new(7);
    for (number, fact) in (1..).zip(facts) {
        let mut bytes = Vec::new();
        let rest = fact.encode(&mut bytes);
        bytes.extend_from_slice(rest);
        let (position, kind) = (Position::new(1, number * 1000), RecordKind::new(fact.kind()));
        replay.on_record(Record { position, kind, bytes: &bytes }, &mut recovered.ledger);
    }
    let restored =
        shard.open_journal(recovered, settings, replay, &Arc::new(Limits::default()), 1_000);
    restored.map(|restored| (shard, restored)).map_err(|unreadable| unreadable.to_string())
}

fn subscribed(filter: &str, options: u8) -> [Fact<'_>; 2] {
    let session = QueueNumber::MIN;
    let opened = SessionOpened {
        session,
        version: Version::V5,
        opened_at_ms: 1,
        expiry_secs: u32::MAX,
        client_id: "meter",
        username: "",
    };
    let subscribed = Subscribed { session, options, identifier: 0, serial: 0, filter };
    [Fact::SessionOpened(opened), Fact::Subscribed(subscribed)]
}

#[test]
fn a_stored_subscription_that_does_not_parse_is_no_start() {
    let restored = start(&subscribed("a/#", 1)).expect("a start");
    assert_eq!(restored.subscriptions, 1);
    for (filter, options) in [("a/#/b", 1), ("$share/g", 1), ("a", 0xFF)] {
        let error = start(&subscribed(filter, options)).expect_err(filter);
        assert!(error.contains("segment 1 offset 2000"), "{error}");
        assert!(error.contains("meter") && error.contains(filter), "{error}");
        assert!(error.contains("quelea log dump"), "{error}");
    }
}

fn message(serial: u64) -> Fact<'static> {
    Fact::Message(StoredMessage {
        serial,
        origin: None,
        queue: None,
        qos: QoS::AtLeastOnce,
        retain: false,
        expires_at_ms: u64::MAX,
        owner: "",
        author: 0,
        topic: "a",
        properties: &[],
        payload: b"",
    })
}

/// Earlier versions wrote which options a subscription had before, up to which serial.
#[test]
fn a_journal_of_an_earlier_version_tells_what_a_changed_subscription_is_owed() {
    let session = QueueNumber::MIN;
    let formerly = |options, serial| {
        Fact::Formerly(Subscribed { session, options, identifier: 0, serial, filter: "a" })
    };
    let owed = |options, formerly: &[Fact<'static>]| {
        let mut facts: Vec<Fact<'_>> = (1..=9).map(message).collect();
        facts.extend(formerly);
        facts.extend(subscribed("a", options));
        start(&facts).expect("a start").messages
    };
    assert_eq!(owed(0, &[]), 0);
    assert_eq!(owed(1, &[]), 9);
    assert_eq!(owed(1, &[formerly(0, 4)]), 5, "those behind it");
    assert_eq!(owed(1, &[formerly(1, 4)]), 9);
    assert_eq!(owed(1, &[formerly(0, 4), formerly(2, 6)]), 5);
    assert_eq!(owed(0, &[formerly(0, 4), formerly(2, 6)]), 5);
    assert_eq!(owed(Subscribed::OWED, &[]), 9);
}

/// What a subscription is owed must not go with the segment of the earlier fact.
#[test]
fn the_fact_of_a_subscription_is_written_again_with_what_an_earlier_version_says_of_it() {
    let session = QueueNumber::MIN;
    let of = |options, serial| Subscribed { session, options, identifier: 0, serial, filter: "a" };
    for (options, formerly, written) in
        [(0, of(1, 4), of(Subscribed::OWED, 0)), (1, of(0, 4), of(1, 4))]
    {
        let mut facts: Vec<Fact<'_>> = (1..=9).map(message).collect();
        facts.push(Fact::Formerly(formerly));
        facts.extend(subscribed("a", options));
        let (mut shard, _) = start_shard(&facts).expect("a start");
        let mut expected = Vec::new();
        let rest = Fact::Subscribed(written).encode(&mut expected).to_vec();
        expected.extend(rest);
        let mut disk = SimDisk::new(1);
        disk.record_writes();
        let mut commands = Vec::new();
        loop {
            shard.take_disk_commands(&mut commands, 2_000);
            if commands.is_empty() {
                break;
            }
            commands.drain(..).for_each(|command| disk.submit(command));
            while !disk.is_idle() {
                if let Some(completion) = disk.step() {
                    shard.on_disk(completion, 2_000);
                }
            }
        }
        let is_expected = |bytes: &[u8]| bytes.windows(expected.len()).any(|it| it == expected);
        let found = disk.writes().expect("they are recorded").iter().any(|write| match write {
            Written::Segment { bytes, .. } => is_expected(bytes),
            _ => false,
        });
        assert!(found, "{written:?}");
    }
}
