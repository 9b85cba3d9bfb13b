//! Journals of which one has no room or is out of service: who is refused for it, and who is not.

use crate::rows::{
    Row, Step, all, asks, does, gets, is_not_read, passes, posts, reads_on, row, run, sends,
    settles,
};
use broker::{Settings, WhenFull};
use codec::Reason;
use rig::{Got, Lab, persistent};
use storage::Status;

/// Two shards, each with a session that is away: its messages on `zero/#` and `one/#`. The disk of
/// the second is full.
fn full(name: &str, when_full: WhenFull) -> Row {
    row("", name, two_shards(when_full)).steps([is_away(), fills()])
}

fn two_shards(when_full: WhenFull) -> Lab {
    Lab::durable_with(2, Settings { when_full, ..Settings::default() })
}

fn is_away() -> Step {
    all([
        sends("away@0", ["kept", "subscribe zero/# qos1", "cut"]),
        sends("away@1", ["kept", "subscribe one/# qos1", "cut"]),
        sends("writer@0", ["kept"]),
    ])
}

fn fills() -> Step {
    does(|stage| {
        let writer = stage.conn("writer@0");
        stage.lab.disks[1].faults.capacity_bytes = 4 * 64 * 1024;
        for packet_id in 1..1000 {
            stage.lab.publish(writer, "one/a", &[b'x'; 4000], 1, packet_id);
            if matches!(stage.lab.shards[1].journal_status(), Some(Status::Full(_))) {
                stage.lab.take_all(writer);
                stage.lab.pauses.clear();
                return;
            }
        }
        panic!("the disk is never full");
    })
}

/// What is written goes through again.
fn frees() -> Step {
    all([does(|stage| stage.lab.disks[1].faults.capacity_bytes = u64::MAX), passes(3)])
}

#[test]
fn full_journals() {
    let writer = "writer@0";
    let refused = [1, 2].map(|qos| {
        let publishes = |topic: &str, id: u16, retain: &str, answer: &str| {
            let ack = if qos == 1 { "puback" } else { "pubrec" };
            let packet = format!("publish {topic} x*4000 qos{qos} id{id}{retain}");
            asks(writer, &packet, [&format!("{ack} {id}{answer}")])
        };
        full(
            &format!("only what the full journal has to keep is refused, QoS {qos}"),
            WhenFull::Refuse,
        )
        .steps([
            publishes("one/a", 2000, "", " quota_exceeded"),
            publishes("zero/a", 2001, "", ""),
            publishes("r@0", 2002, " retain", ""),
            publishes("r@1", 2003, " retain", " quota_exceeded"),
        ])
    });
    run(refused);
    run([
        full("the reason is that of the journal that has no room", WhenFull::Refuse).steps([
            // The publisher's own journal is out of service, which is no matter to what it need
            // not keep.
            does(|stage| stage.lab.disks[0].faults.fail_next_sync = true),
            sends(writer, ["publish zero/a x qos1 id2000"]),
            gets(writer, ["puback 2000 implementation_specific_error"]),
            does(|stage| {
                let status = stage.lab.shards[0].journal_status();
                assert!(matches!(status, Some(Status::Poisoned(_))));
            }),
            asks(
                writer,
                "publish zero/a x qos1 id2001",
                ["puback 2001 implementation_specific_error"],
            ),
            asks(writer, "publish one/a x*4000 qos1 id2002", ["puback 2002 quota_exceeded"]),
        ]),
        full("only who publishes to the full journal has to wait", WhenFull::Wait).steps([
            asks(writer, "publish zero/a x qos1 id2000", ["puback 2000"]),
            does(|stage| assert_eq!(stage.lab.pauses, [])),
            asks(writer, "publish one/a x qos1 id2001", []),
            does(|stage| assert_eq!(stage.lab.pauses.len(), 1)),
        ]),
        full("what is behind a refused publish waits for its client", WhenFull::Wait).steps([
            sends("reader", ["subscribe zero/# qos1"]),
            posts(writer, "publish one/a x*4000 qos1 id2000"),
            posts(writer, "publish zero/a behind qos1 id2001"),
            settles(),
            // Both wait, and the client goes away.
            gets("reader", []),
            sends(writer, ["cut"]),
            gets("reader", []),
        ]),
    ]);
    run([WhenFull::Refuse, WhenFull::Wait].map(|when_full| {
        let name = format!("what is retained is cleared on a full disk, {when_full:?}");
        row("", name, two_shards(when_full)).steps([
            is_away(),
            asks(writer, "publish r@1 kept qos1 id1 retain", ["puback 1"]),
            fills(),
            asks(writer, "publish r@1 \"\" qos1 id5000 retain", ["puback 5000"]),
            frees(),
            asks(writer, "publish r@1 kept qos2 id2 retain", ["pubrec 2"]),
            asks(writer, "publish r@1 \"\" qos2 id5001 retain", ["pubrec 5001"]),
        ])
    }));
}

// Disks that are only behind.

#[test]
fn a_subscription_waits_for_a_disk_that_is_only_behind() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.disks_stand_still = true;
    for number in 0..100 {
        let filter = format!("{number}/{}", "x".repeat(2000));
        lab.subscribe_all(subscriber, &[&filter], 1);
    }
    assert_eq!(lab.take_all(subscriber), []);
    assert!(!lab.pauses.is_empty());
    lab.disks_stand_still = false;
    for _ in 0..100 {
        lab.pass_secs(1);
        lab.bytes(subscriber, &[]);
    }
    assert_eq!(lab.take_all(subscriber), vec![Got::Suback(1, vec![1]); 100]);
}

/// Each of them is written for the subscriber and as the retained message of its topic, with all
/// its properties: room for one of both is not enough.
#[test]
fn a_retained_publish_waits_for_a_disk_that_is_only_behind() {
    let stand_still = |stands: bool| does(move |stage| stage.lab.disks_stand_still = stands);
    run([row("", "forty that are retained", Lab::durable(1))
        .steps([sends("away", ["kept", "subscribe r/# qos1", "cut"]), sends("writer", ["kept"])])
        .steps([stand_still(true)])
        .steps((1..=40).map(|id| {
            sends("writer", [format!("publish r/{id} x*2097 qos1 id{id} retain user4000")])
        }))
        .steps([gets("writer", []), is_not_read("writer"), stand_still(false)])
        .steps((0..100).flat_map(|_| [passes(1), reads_on("writer")]))
        .steps([does(|stage| {
            let answers = stage.taken_by("writer");
            assert_eq!(answers.len(), 40);
            for got in answers {
                assert!(matches!(got, Got::Ack(_, _, Reason::SUCCESS)), "{got:?}");
            }
        })])]);
}
