//! No Local is a matter of client IDs, whatever session has them (MQTT-3.8.3-3).

use crate::rows::{
    Step, all, crashes, crashes_by, does, gets, keeps, kept, opens, passes, posts, reads,
    reads_all, row, run, sends,
};
use broker::command::{Command, Publication};
use broker::{ConnectRequest, Durability, Scope};
use codec::QoS;
use rig::{Lab, SCOPES, will, window, with_will};
use storage::testing::Crash;

/// What a client gets, in any order, that subscribes with No Local.
fn hears<const N: usize>(
    name: &str,
    with: impl Fn(ConnectRequest) -> ConnectRequest + 'static,
    payloads: [&'static str; N],
) -> Step {
    let own = name.to_owned();
    let reads = does(move |stage| {
        let conn = stage.conn(&own);
        let received = stage.read_all(conn).into_iter();
        let mut got: Vec<_> =
            received.map(|own| String::from_utf8(own.payload).expect("text")).collect();
        got.sort_unstable();
        got.dedup();
        got.iter_mut().for_each(|text| text.truncate(6));
        assert_eq!(got, payloads);
    });
    all([
        opens(name, with),
        sends(name, ["subscribe t/# qos1 no_local"]),
        reads,
        sends(name, ["cut"]),
    ])
}

/// With a session that ends with its connection.
fn clean(request: ConnectRequest) -> ConnectRequest {
    request
}

fn in_scope(scope: Scope) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    move |request| ConnectRequest { scope, ..request }
}

fn memory() -> [Lab; 2] {
    [Lab::new(1), Lab::new(3)]
}

fn durable() -> [Lab; 2] {
    [Lab::durable(1), Lab::durable(3)]
}

#[test]
fn retained_messages() {
    // One of each QoS, small enough for a page and not.
    for bytes in [30, 100_000] {
        let name = format!("the next session is not sent what that before retained, {bytes} bytes");
        run([row("MQTT-3.8.3-3", name, memory())
            .steps([sends("other", ["publish t/other theirs qos1 retain"])])
            .steps((0..3).flat_map(|qos| {
                let packet = format!("publish t/{qos} {qos}*{bytes} qos{qos} retain");
                let packet = packet.replace(" qos0", "");
                [sends("client", [packet]), sends("client", ["pubrel 1", "cut"])]
                    .into_iter()
                    .chain([opens("client", clean)])
            }))
            .steps([
                sends("client", ["cut"]),
                hears("client", clean, ["theirs"]),
                // Somebody else gets all, also one who has the place of the session before.
                hears("third", clean, ["000000", "111111", "222222", "theirs"]),
                hears("client", clean, ["theirs"]),
            ])]);
    }
    for crash in [Crash::Power, Crash::Kill] {
        let name = format!("what it retained is its own after a start, {crash:?}");
        let each_its_own =
            || all([hears("client", kept, ["theirs"]), hears("other", kept, ["mine"])]);
        run([row("MQTT-3.8.3-3", name, durable()).steps([
            sends("client", ["kept", "subscribe t/# qos1 no_local"]),
            sends("client", ["publish t/mine mine qos1 retain"]),
            sends("other", ["kept", "publish t/other theirs qos1 retain"]),
            crashes_by(crash),
            each_its_own(),
            hears("third", clean, ["mine", "theirs"]),
            // Copied forward, and read once more.
            does(|stage| stage.lab.turn_the_journal_over()),
            crashes_by(crash),
            each_its_own(),
        ])]);
    }
    run([
        // The first session after each start has the same key.
        row("", "sessions with the same place are distinguished", Lab::durable(1))
            .steps([sends("first", ["kept", "publish t theirs qos1 retain", "cut"])])
            .steps((0..3).map(|_| {
                all([crashes(), hears("second", clean, ["theirs"]), hears("first", kept, [])])
            })),
        row("", "in another namespace it is another client", Lab::new(3)).steps(
            [Scope::FIRST, SCOPES[0], SCOPES[1]].map(|scope| {
                all([
                    opens("client", in_scope(scope)),
                    sends("client", ["publish t mine qos1 retain", "cut"]),
                    hears("client", in_scope(scope), []),
                    hears("other", in_scope(scope), ["mine"]),
                ])
            }),
        ),
        row("", "what operators publish is nobody's own", Lab::new(1)).steps([
            does(|stage| {
                let publication = Publication {
                    topic: "t".into(),
                    properties: Box::default(),
                    payload: b"theirs".as_slice().into(),
                    qos: QoS::AtLeastOnce,
                    retain: true,
                    expiry_secs: None,
                    durability: Durability::Memory,
                };
                stage.lab.order(0, &Command::Publish(publication));
                stage.lab.settle();
            }),
            hears("client", clean, ["theirs"]),
            hears("other", clean, ["theirs"]),
        ]),
    ]);
}

#[test]
fn wills() {
    let dying = |request| {
        let will = session::Will { retain: true, ..will("t/will", QoS::AtLeastOnce) };
        with_will(request, will)
    };
    let live = |request| with_will(kept(request), will("t/will", QoS::AtLeastOnce));
    let its_own = || all([hears("client", clean, []), hears("other", clean, ["gone"])]);
    let dies = || all([opens("client", dying), sends("client", ["cut"])]);
    run([
        row("MQTT-3.8.3-3", "a retained will is of its client", memory())
            .steps([dies(), its_own()]),
        row("MQTT-3.8.3-3", "so it is after a crash", durable()).steps([
            dies(),
            its_own(),
            crashes(),
            its_own(),
        ]),
        // It waits for the journal, and its client is back by then, still subscribed.
        row("MQTT-3.8.3-3", "a live will is of its client", durable()).steps([
            sends("witness", ["subscribe t/# qos1"]),
            opens("client", live),
            sends("client", ["subscribe t/# qos1 no_local", "cut", "kept"]),
            gets("client", []),
            reads("witness", ["gone"]),
        ]),
    ]);
}

#[test]
fn after_a_crash() {
    // Taken on, and routed once more by the next process.
    for (crash, writes) in [(Crash::Kill, 1), (Crash::Kill, 2), (Crash::Power, 1)] {
        let name = format!("what was taken on is its publisher's own, {crash:?} after {writes}");
        run([row("MQTT-3.8.3-3", name, durable()).steps([
            sends("witness", ["kept", "subscribe t/# qos1", "cut"]),
            sends("client", ["kept", "subscribe t/# qos2 no_local"]),
            posts("client", "publish t/a mine qos2"),
            does(move |stage| {
                for _ in 0..writes {
                    stage.lab.work_disks();
                }
            }),
            crashes_by(crash),
            passes(1),
            sends("client", ["kept"]),
            gets("client", []),
            sends("client", ["publish t/a mine qos2", "pubrel 1"]),
            gets("client", ["pubrec 1", "pubcomp 1"]),
            sends("witness", ["kept"]),
            reads_all("witness", ["mine"]),
        ])]);
    }
    // Its own are in the journal for others, and what it has skipped is not written when the
    // process ends.
    for (crash, qos) in [Crash::Power, Crash::Kill].into_iter().flat_map(|it| [(it, 1), (it, 2)]) {
        let name = format!("what a kept session published is its own, QoS {qos}, {crash:?}");
        let mine = move |id| {
            let pubrel = [format!("pubrel {id}")].into_iter().filter(move |_| qos == 2);
            [format!("publish t/a mine qos{qos} id{id}")].into_iter().chain(pubrel)
        };
        run([row("MQTT-3.8.3-3", name, durable()).steps([
            sends("witness@0", ["kept", "subscribe t/# qos1", "cut"]),
            keeps("client@0", window(1)),
            sends("client@0", ["subscribe t/# qos1 no_local"]),
            // The session is behind: all that comes now waits in the journal.
            sends("other", (1..4).map(|id| format!("publish t/a theirs qos1 id{id}"))),
            sends("client@0", (1..6).flat_map(mine)),
            crashes_by(crash),
            keeps("client@0", window(1)),
            reads_all("client@0", ["theirs"; 3]),
            sends("witness@0", ["kept"]),
            does(|stage| {
                let witness = stage.conn("witness@0");
                assert_eq!(stage.read_all(witness).len(), 8);
            }),
        ])]);
    }
}
