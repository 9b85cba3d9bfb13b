//! What lies before another shard is limited, and publishers wait for it.

use crate::rows::{
    Step, all, bursts, carries_mail, counts, does, flushes, gets, opens, pauses, reads,
    reads_count, row, run, sends, sends_bytes, settles, within,
};
use broker::{Limits, Mail, Settings};
use policy::Access;
use rig::{Conn, Lab, request, request_with};
use session::NEVER;

const MAIL_BYTES_MAX: u64 = 2_000;

/// Of one message on its way.
const MESSAGE_BYTES_MAX: u64 = 400;

fn lab(shards: u16) -> Lab {
    lab_with(shards, MAIL_BYTES_MAX)
}

/// So many bytes may lie on each way between two of the shards.
fn lab_with(shards: u16, mail_bytes_max: u64) -> Lab {
    let others = u64::from(shards - 1);
    let settings = Settings { mail_bytes_max: mail_bytes_max * others, ..Settings::default() };
    Lab::with(shards, settings, Access::open())
}

/// 100 bytes, with a number in front.
fn payload(number: u16) -> String {
    format!("{number:-<100}")
}

fn payloads(numbers: std::ops::Range<u16>) -> impl Iterator<Item = String> {
    numbers.map(payload)
}

/// Publishes messages in one go.
fn floods(name: &str, topic: &str, qos: u8, numbers: std::ops::Range<u16>) -> Step {
    let more = |id| if qos == 0 { String::new() } else { format!(" qos{qos} id{id}") };
    let packet = |number| format!("publish {topic} {}{}", payload(number), more(number + 1));
    bursts(name, numbers.map(packet))
}

/// These wait for another shard, and nobody else.
fn waits<const N: usize>(names: [&'static str; N]) -> Step {
    does(move |stage| {
        let conns = names.map(|name| (stage.conn(name), NEVER));
        assert_eq!(std::mem::take(&mut stage.lab.pauses), conns);
    })
}

/// So many bytes of messages lie before shard 1, and at most one message more.
fn lies(expected: u64) -> Step {
    does(move |stage| {
        let mails = stage.lab.shards[0].effects().mail[1].iter();
        let bytes = mails.map(|mail| match mail {
            Mail::Publish { message, .. } => message.heap_bytes() as u64,
            _ => 0,
        });
        let bytes = bytes.sum::<u64>();
        assert!((expected..expected + MESSAGE_BYTES_MAX).contains(&bytes), "{bytes}");
    })
}

fn subscribes(name: &str, topic: &str) -> Step {
    sends(name, [format!("subscribe {topic} qos2")])
}

/// These connect before anything lies anywhere.
fn are_there<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> Step {
    let names: Vec<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
    does(move |stage| names.iter().for_each(|name| drop(stage.taken_by(name))))
}

#[test]
fn a_window_is_full() {
    let modest = || (0..60).map(|number| format!("modest-{number}@0"));
    run([
        row("", "a publisher waits for a shard before which much lies", lab(2)).steps([
            subscribes("reader@1", "t"),
            floods("writer@0", "t", 0, 0..50),
            waits(["writer@0"]),
            lies(MAIL_BYTES_MAX),
            counts(|m| &m.mail_waits, 1),
            settles(),
            // It is read on.
            does(|stage| {
                let writer = stage.conn("writer@0");
                assert!(stage.lab.is_read(writer));
            }),
            reads("reader@1", payloads(0..50)),
        ]),
        row("", "who sends little does not wait for who sends much", lab(2)).steps([
            are_there(["flooder@0", "modest@0"]),
            subscribes("reader@1", "t"),
            floods("flooder@0", "t", 0, 0..50),
            waits(["flooder@0"]),
            // It has brought one, and that was it for this turn.
            floods("modest@0", "t", 0, 100..101),
            waits([]),
            floods("modest@0", "t", 0, 101..102),
            waits(["modest@0"]),
            settles(),
            does(|stage| {
                let reader = stage.conn("reader@1");
                let arrived = stage.lab.payloads(reader);
                let place = |number| arrived.iter().position(|own| *own == payload(number));
                assert!(place(100) < Some(30) && place(100) < place(101), "{arrived:?}");
                assert_eq!(arrived.len(), 52);
            }),
        ]),
        row("", "no more than twice as much lies there, whoever sends", lab(2))
            .steps([subscribes("reader@1", "t"), are_there(modest())])
            .steps(modest().map(|name| floods(&name, "t", 0, 0..1)))
            .steps([lies(2 * MAIL_BYTES_MAX)]),
        row("", "a flood from many does not pile up before a busy shard", lab(2))
            .steps([subscribes("reader@1", "t"), are_there(modest())])
            .steps(modest().cycle().take(180).map(|name| floods(&name, "t", 0, 0..20)))
            .steps([lies(MAIL_BYTES_MAX), settles(), reads_count("reader@1", 60 * 3 * 20)]),
        row("", "mail counts until the turn of its shard is over", lab(2)).steps([
            subscribes("reader@1", "t"),
            floods("writer@0", "t", 0, 0..50),
            carries_mail(),
            waits(["writer@0"]),
            // What it led to is not written, and it waits already.
            floods("writer@0", "t", 0, 0..0),
            waits(["writer@0"]),
            counts(|m| &m.mail_waits, 1),
        ]),
        row("", "two shards that flood each other come to an end", lab(2)).steps([
            are_there(["0@1", "1@0"]),
            subscribes("0@0", "to-0"),
            subscribes("1@1", "to-1"),
            floods("0@1", "to-0", 1, 0..200),
            floods("1@0", "to-1", 1, 0..200),
            waits(["0@1", "1@0"]),
            settles(),
            reads("0@0", payloads(0..200)),
            reads("1@1", payloads(0..200)),
        ]),
    ]);
}

#[test]
fn who_waits_and_who_does_not() {
    run([
        row("", "those who wait are read on in their order", lab(2)).steps([
            are_there(["a@0", "b@0", "c@0"]),
            subscribes("reader@1", "t"),
            floods("a@0", "t", 0, 0..30),
            floods("b@0", "t", 0, 0..30),
            floods("c@0", "t", 0, 0..30),
            waits(["a@0", "b@0", "c@0"]),
            carries_mail(),
            flushes(),
            does(|stage| {
                stage.lab.deliver_mail();
                stage.lab.collect_closes();
            }),
            // The first goes to the end of the row, and the others have not had their turn.
            waits(["a@0"]),
            settles(),
            does(|stage| {
                let ends = stage.lab.pauses.iter().filter(|(_, until_ms)| *until_ms != NEVER);
                assert_eq!(ends.count(), 3, "{:?}", stage.lab.pauses);
            }),
        ]),
        row("", "who publishes to others does not wait", lab(3)).steps([
            are_there(["writer@0", "neighbour@0"]),
            subscribes("t@1", "t"),
            subscribes("u@2", "u"),
            floods("writer@0", "t", 0, 0..50),
            waits(["writer@0"]),
            floods("neighbour@0", "u", 0, 0..1),
            waits([]),
            settles(),
            reads("u@2", payloads(0..1)),
        ]),
    ]);
}

#[test]
fn what_waits_and_what_does_not() {
    let retained = (1..50).map(|id| format!("publish kept {} qos1 id{id} retain", payload(id)));
    run([
        row("", "a retained message waits for the home of its topic", lab(2)).steps([
            does(|stage| {
                assert_eq!(stage.lab.shared.place_of_topic(broker::Name::first("kept")), 1)
            }),
            bursts("writer@0", retained),
            waits(["writer@0"]),
            settles(),
            // All are acknowledged.
            does(|stage| assert_eq!(stage.taken_by("writer@0").len(), 49)),
        ]),
        row("", "what is no PUBLISH waits for nothing", lab(2)).steps([
            are_there(["writer@0", "pinging@0"]),
            subscribes("reader@1", "t"),
            floods("writer@0", "t", 2, 0..50),
            does(|stage| assert!(stage.lab.deliver_mail())),
            floods("writer@0", "t", 2, 50..51),
            // An acknowledgement comes through, and a ping of somebody else.
            sends_bytes("pinging@0", &[0xC0, 0]),
            flushes(),
            gets("pinging@0", ["pingresp"]),
            settles(),
            reads("reader@1", payloads(0..51)),
            does(|stage| {
                let got = stage.taken_by("writer@0");
                let texts: Vec<_> = got.iter().map(crate::notation::text_of).collect();
                assert_eq!(texts, (1..52).map(|id| format!("pubrec {id}")).collect::<Vec<_>>());
            }),
        ]),
    ]);
}

#[test]
fn how_long_a_publisher_waits() {
    let rate = session::Rate { per_second: 10, burst: 10 };
    let rate = Limits { message_rate: rate, ..Limits::default() };
    run([
        row("", "who also waits for its rate is not read before its time", lab(2)).steps([
            subscribes("reader@1", "t"),
            opens("writer@0", within(rate)),
            floods("writer@0", "t", 0, 0..50),
            // It waits for the shard first.
            does(|stage| assert_eq!(stage.lab.pauses.last().map(|own| own.1), Some(NEVER))),
            does(|stage| {
                let received = |lab: &Lab| lab.total(|m| &m.publishes_received);
                let (writer, taken) = (stage.conn("writer@0"), received(&stage.lab));
                stage.lab.pauses.clear();
                stage.lab.settle();
                assert_eq!(received(&stage.lab), taken);
                let [(_, until_ms)] = stage.lab.pauses[..] else {
                    panic!("{:?}", stage.lab.pauses)
                };
                assert!(until_ms > stage.lab.now_ms && until_ms < NEVER);
                stage.lab.now_ms = until_ms;
                stage.lab.bytes(writer, &[]);
                assert!(received(&stage.lab) > taken);
            }),
        ]),
        row("", "what waits is published when the connection ends", lab(2)).steps([
            subscribes("reader@1", "t"),
            floods("writer@0", "t", 0, 0..50),
            sends("writer@0", ["cut"]),
            reads("reader@1", payloads(0..50)),
        ]),
        row(
            "",
            "a publisher waits as long again as its subscriber has been behind",
            lab_with(2, 1 << 20),
        )
        .steps([opens("reader@1", within(Limits { outbox_bytes_max: 1000, ..Limits::default() }))])
        .steps([sends("reader@1", ["subscribe t qos1"])])
        .steps([2, 2, 4, 8, 16, 32, 64].map(|ms| {
            all([
                floods("writer@0", "t", 1, 0..10),
                carries_mail(),
                does(move |stage| {
                    let until_ms = stage.lab.pauses.pop().expect("a pause").1;
                    assert_eq!(until_ms - stage.lab.now_ms, ms);
                    stage.lab.now_ms = until_ms;
                    stage.lab.shards[1].end_turn();
                }),
            ])
        }))
        .steps([
            flushes(),
            does(|stage| stage.lab.pauses.clear()),
            floods("writer@0", "t", 1, 0..10),
            carries_mail(),
            // It has caught up.
            pauses("writer@0", [2]),
        ]),
    ]);
}

/// Publishes of 100 bytes, 40 of them.
fn burst(topic: &str) -> Vec<u8> {
    let mut packet = Vec::new();
    rig::publish(topic, &[b'x'; 100], 0, 0).encode(codec::Version::V5, &mut packet);
    packet.repeat(40)
}

/// Pairs of which the subscribers read all there is in each turn, and have outboxes that take twice
/// what one credit window does: how much is dropped.
fn dropped_of_a_flood(mail_bytes_max: u64) -> u64 {
    let mut lab = lab_with(2, mail_bytes_max);
    let outbox_bytes_max = 4 * MAIL_BYTES_MAX as u32;
    let limits = Limits { outbox_bytes_max, ..Limits::default() };
    let pairs: Vec<(Conn, Conn, String)> = (0..20)
        .map(|number| {
            let topic = format!("t/{number}");
            let id = lab.id_on(1, &format!("s{number}"));
            let subscriber = lab.open(request_with(&id, limits.clone()));
            lab.subscribe(subscriber, &topic, 0);
            (lab.open(request(&lab.id_on(0, &format!("p{number}")))), subscriber, topic)
        })
        .collect();
    for _ in 0..10 {
        // Publishers are read three times in each turn of the subscribers' shard.
        for _ in 0..3 {
            for (publisher, _, topic) in &pairs {
                lab.bytes(*publisher, &burst(topic));
            }
        }
        lab.settle();
        lab.now_ms += 1000;
        pairs.iter().for_each(|(publisher, ..)| lab.bytes(*publisher, &[]));
        lab.settle();
    }
    let received: usize = pairs.iter().map(|(_, s, _)| lab.received(*s).len()).sum();
    let dropped = lab.total(|m| &m.dropped_slow);
    assert_eq!(received as u64 + dropped, 20 * 10 * 3 * 40);
    dropped
}

#[test]
fn a_flood_of_qos_0_is_not_dropped_by_subscribers_that_read() {
    assert_eq!(dropped_of_a_flood(MAIL_BYTES_MAX), 0);
    assert!(dropped_of_a_flood(u64::MAX / 64) > 0, "without a limit it is");
}
