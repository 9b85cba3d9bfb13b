//! Records that are whole and say nothing that can be understood: no start goes on without them.

use std::sync::Arc;

use broker::journal::{Fact, QueueNumber, SessionOpened, Subscribed};
use broker::{Limits, Replay, Settings, Shard, Shared};
use codec::Version;
use policy::Access;
use storage::{Position, Record, RecordKind};

/// What a start says to these facts.
fn start(facts: &[Fact<'_>]) -> Result<u64, String> {
    let shared = Shared::new(Settings::default(), 1, 7);
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
    shard
        .open_journal(recovered, settings, replay, &Arc::new(Limits::default()), 1_000)
        .map(|restored| restored.subscriptions)
        .map_err(|unreadable| unreadable.to_string())
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
    assert_eq!(start(&subscribed("a/#", 1)), Ok(1));
    for (filter, options) in [("a/#/b", 1), ("$share/g", 1), ("a", 0xFF)] {
        let error = start(&subscribed(filter, options)).expect_err(filter);
        assert!(error.contains("segment 1 offset 2000"), "{error}");
        assert!(error.contains("meter") && error.contains(filter), "{error}");
        assert!(error.contains("quelea log dump"), "{error}");
    }
}
