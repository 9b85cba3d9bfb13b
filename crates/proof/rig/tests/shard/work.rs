//! What one client may ask for in one turn, in one packet, and without reading the answers: the
//! others do not wait for it, and it takes no more than its part of the memory.

use crate::notation::with_packet;
use crate::rows::{
    asks, bursts, carries_mail, counts, counts_in, does, gets, is_closed, is_not_read, is_open,
    is_read, opens, reads_all_of, reads_count, reports, row, run, sends, sends_bytes, settles,
    subscribes_all, within,
};
use broker::{ConnectRequest, Event, Limits, Mail, Reauthenticated, SessionKey, Settings};
use codec::{AckKind, Auth, Packet, Property, PropertyBuf, Reason, Version};
use policy::{Access, Attribute, Attributes, Principal};
use policy::{Permission, Rule, Who};
use rig::{
    Conn, Got, Lab, level, persistent, publish, read_all, request, request_with, retained, rule,
    window, with_limits,
};
use session::{Message, MessageParts, NEVER};

/// What a client gets in a turn, in units.
const UNITS: usize = 25_000;

fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("filter/{number}")).collect()
}

/// The same packet so many times.
fn times(packet: &Packet<'_>, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.encode(Version::V5, &mut bytes);
    bytes.repeat(count)
}

/// Packets as bytes.
fn encoded(text: &str) -> Vec<u8> {
    with_packet(text, |packet| times(packet, 1))
}

/// Filters that all match `a/a/a/...`, of so many levels.
fn overlapping(levels: u32) -> Vec<String> {
    let name = |bits: u32| {
        let levels = (0..levels).map(|level| if bits >> level & 1 == 0 { "a" } else { "+" });
        levels.collect::<Vec<_>>().join("/")
    };
    (0..1 << levels).map(name).collect()
}

#[test]
fn long_requests() {
    let three = limits(|limits| limits.filters_per_packet_max = 3);
    let rows = [(Version::V5, "quota_exceeded"), (Version::V311, "unspecified_error")];
    run(rows.map(|(version, refused)| {
        let limits = three.clone();
        row("", format!("filters beyond those of one packet, {version:?}"), Lab::new(1)).steps([
            opens("client", move |own| {
                with_limits(ConnectRequest { version, ..own }, limits.clone())
            }),
            subscribes_all("client", names(5), 0),
            settles(),
            gets("client", [&format!("suback 1: 0 0 0 {refused} {refused}")]),
            counts(|m| &m.subscriptions, 3),
            counts(|m| &m.subscriptions_refused, 2),
            reports(|event| matches!(event, Event::TooManySubscriptions { .. }), 1),
            // The next packet has as many again.
            subscribes_all("client", names(5).split_off(3), 0),
            settles(),
            gets("client", ["suback 1: 0 0"]),
        ])
    }));
    let many = limits(|limits| limits.filters_per_packet_max = 1024);
    run([0x82, 0xa2, 0xf0].map(|first| {
        // 1 MiB is what 1,024 filters may have.
        let header = [first, 0x81, 0x80, 0x40, 0, 1];
        row("", format!("a header that no limit explains, {first:x}"), Lab::new(1)).steps([
            opens("client", within(many.clone())),
            sends_bytes("client", &header),
            gets("client", ["disconnect packet_too_large"]),
        ])
    }));
    run([]);
}

#[test]
fn long_requests_take_turns() {
    run([
        row("", "a PUBLISH may be longer", Lab::new(1)).steps([
            sends_bytes("client", &[0x30, 0x81, 0x80, 0x40, 0, 1, b't', 0]),
            is_open("client"),
        ]),
        row("", "a long request is done in portions and answered once", Lab::new(1)).steps([
            subscribes_all("client", names(10_000), 1),
            counts_in(|m| &m.subscriptions, 100..2_000),
            // Another one is served meanwhile, also by what is there already.
            sends("other", ["publish filter/0 x"]),
            gets("client", ["suback 1: 1*10000", "publish filter/0 x"]),
            counts(|m| &m.subscriptions, 10_000),
            does(|stage| {
                let client = stage.conn("client");
                stage.lab.unsubscribe_all(client, &names(10_000));
            }),
            counts_in(|m| &m.subscriptions, 8_000..9_900),
            settles(),
            gets("client", ["unsuback 2: 0*10000"]),
            counts(|m| &m.subscriptions, 0),
            // Nothing is remembered of it.
            sends("client", ["subscribe filter/1"]),
        ]),
        row("", "a long request ends with its connection", Lab::new(1)).steps([
            sends("client", ["kept"]),
            subscribes_all("client", names(10_000), 1),
            sends("client", ["cut"]),
            counts_in(|m| &m.subscriptions, 0..4_000),
            // The next request is a new one.
            sends("client", ["kept"]),
            subscribes_all("client", names(3_000), 1),
            settles(),
            gets("client", ["suback 1: 1*3000"]),
        ]),
        row("", "many short requests take many turns too", Lab::new(1)).steps([
            bursts("client", names(5_000).iter().map(|name| format!("subscribe {name}"))),
            counts_in(|m| &m.subscriptions, 100..2_000),
            settles(),
            counts(|m| &m.subscriptions, 5_000),
            does(|stage| assert_eq!(stage.taken_by("client").len(), 5_000)),
        ]),
        row("", "a client may be in so many groups", Lab::new(2)).steps([
            opens("client", within(limits(|own| own.shared_subscriptions_per_client_max = 2))),
            sends("client", ["subscribe $share/a/t qos1", "subscribe $share/b/t qos1"]),
            asks("client", "subscribe $share/c/t qos1", ["suback 1: quota_exceeded"]),
            // Others are not meant, and it has this one.
            sends("client", ["subscribe t qos1", "subscribe $share/a/t"]),
            sends("client", ["unsubscribe $share/a/t", "subscribe $share/c/t qos1"]),
            counts(|m| &m.subscriptions_refused, 1),
        ]),
    ]);
}

#[test]
fn a_long_request_of_a_kept_session_is_kept_whole_before_it_is_answered() {
    let mut lab = Lab::durable(1);
    let client = lab.open(persistent("client"));
    lab.subscribe_all(client, &names(3_000), 1);
    let mut answers = Vec::new();
    while answers.is_empty() {
        lab.settle();
        answers = lab.take_all(client);
        // It may wait for the next segment of the journal.
        lab.now_ms += 2;
        lab.bytes(client, &[]);
    }
    assert_eq!(answers, [Got::Suback(1, vec![1; 3_000])]);
    lab.crash(storage::testing::Crash::Power);
    assert_eq!(lab.total(|m| &m.subscriptions), 3_000);
}

/// A broker with so many retained messages.
fn with_retained(shards: u16, count: usize) -> Lab {
    let mut lab = Lab::new(shards);
    let publisher = lab.open(request("publisher"));
    for number in 0..count {
        lab.send(publisher, &retained(&format!("r/{number}"), &[b'x'; 1_000], 1, 1));
    }
    lab
}

#[test]
fn pages_of_retained_messages() {
    let again = |count: usize| vec!["subscribe r/#"; count];
    let each = (0..300)
        .flat_map(|number| ["subscribe", "unsubscribe"].map(|word| format!("{word} r/{number}")));
    let slow = |qos| {
        let name = format!("no further pages without reading, QoS {qos}");
        let subscribe = move || bursts("client", [format!("subscribe r/# qos{qos}")]);
        row("", name, with_retained(2, 2_000))
            .steps((0..200).flat_map(|_| [subscribe(), carries_mail()]))
            // A page of each shard, and what comes before 64 KiB of others are written.
            .steps([does(|stage| {
                let sent = stage.lab.total(|m| &m.publishes_sent);
                let given = sent + stage.lab.total(|m| &m.publishes_queued);
                assert!(given <= 600, "{given}");
            })])
    };
    run([
        row("MQTT-3.8.4-4", "as often as is sensible", with_retained(2, 700)).steps([
            bursts("client", again(100)),
            settles(),
            // One replay was under way when the others were asked for, and one comes behind them.
            reads_count("client", 1_400),
            // Each has its own if it is not in a hurry.
            sends("client", again(1)),
            reads_count("client", 700),
            sends("client", again(1)),
            reads_count("client", 700),
        ]),
        slow(0),
        slow(1),
        row("", "filters of one topic do not wait for each other", with_retained(2, 250)).steps([
            subscribes_all("client", (0..250).map(|number| format!("r/{number}")).collect(), 0),
            does(|stage| {
                let mails = stage.lab.shards.iter().flat_map(|own| own.effects().mail.iter());
                let asked = mails.flatten().filter(|own| matches!(own, Mail::QueryRetained(_)));
                assert_eq!(asked.count(), 100);
            }),
            settles(),
            reads_count("client", 250),
        ]),
        row("", "what is given up is not sent any more", with_retained(1, 300)).steps([
            bursts("client", again(1).into_iter().map(str::to_owned).chain(each)),
            settles(),
            reads_count("client", 300),
        ]),
        row(
            "MQTT-3.10.4-2",
            "nothing retained comes behind an UNSUBACK",
            [with_retained(1, 300), with_retained(2, 300)],
        )
        .steps([
            // Pages are under way.
            bursts("client", ["subscribe r/# qos1", "unsubscribe r/#"]),
            settles(),
            reads_count("client", 0),
            // A new subscription gets all.
            sends("client", ["subscribe r/# qos1"]),
            reads_all_of("client", 300),
        ]),
        row("MQTT-3.10.4-2", "no further page is asked for", with_retained(1, 300)).steps([
            opens("client", within(window(7))),
            sends("client", ["subscribe r/# qos1", "unsubscribe r/#"]),
            // Two pages were under way or in the session by then, and may come.
            reads_all_of("client", 200),
        ]),
    ]);
}

#[test]
fn pages_for_many_are_given_over_several_turns() {
    let mut lab = with_retained(1, 10);
    let clients: Vec<Conn> =
        (0..100).map(|number| lab.open(request(&format!("client-{number}")))).collect();
    clients.iter().for_each(|client| lab.bytes(*client, &encoded("subscribe +/+/nothing")));
    lab.deliver_mail();
    let given = |lab: &Lab| {
        let mails = lab.shards[0].effects().mail[0].iter();
        mails.filter(|mail| matches!(mail, Mail::Retained { .. })).count()
    };
    assert_eq!(given(&lab), 32);
    lab.shards[0].end_turn();
    assert_eq!(given(&lab), 64);
    lab.settle();
    assert!(clients.iter().all(|client| lab.take_all(*client).len() == 1));
}

fn with_small_outbox(client_id: &str) -> ConnectRequest {
    request_with(client_id, limits(|limits| limits.outbox_bytes_max = 10_000))
}

fn waits_for_client(lab: &Lab, conn: Conn) -> bool {
    lab.pauses.contains(&(conn, NEVER))
}

#[test]
fn a_client_that_takes_no_answers_is_not_read_until_it_does() {
    let answered: [Vec<u8>; 5] = [
        [0xc0, 0].repeat(1_000),
        encoded("subscribe t").repeat(100),
        encoded("unsubscribe t").repeat(100),
        times(&publish("t", b"", 1, 1), 100),
        [0x50, 2, 0, 1].repeat(500),
    ];
    for packets in answered {
        let mut lab = Lab::new(1);
        let client = lab.open(with_small_outbox("client"));
        let mut fed = 0;
        while !waits_for_client(&lab, client) {
            lab.bytes(client, &packets);
            fed += packets.len();
            assert!(fed < 100_000, "{:?}", &packets[..8]);
        }
        let (shard, slot) = lab.place(client);
        let unread = |lab: &mut Lab| lab.shards[shard].outbox(slot, client).unwrap().len();
        assert!(unread(&mut lab) < 20_000);
        assert_eq!(lab.total(|m| &m.unread_waits), 1);

        // Not with the first bytes that it takes, but once half of the room is free.
        lab.pauses.clear();
        lab.write_some(client, 100);
        lab.collect_closes();
        assert!(lab.pauses.is_empty());
        lab.write_some(client, 10_000);
        lab.collect_closes();
        assert!(lab.pauses.len() == 1 && lab.is_read(client));
        lab.settle();
        assert!(!lab.is_closed(client));
    }
}

#[test]
fn a_client_that_authenticates_again_and_takes_no_answers_is_not_read_until_it_does() {
    let mut lab = Lab::new(1);
    let request =
        ConnectRequest { auth_method: Some("SCRAM".into()), ..with_small_outbox("client") };
    let client = lab.open(request);
    let mut properties = PropertyBuf::new();
    properties.push(Property::AuthMethod("SCRAM")).push(Property::AuthData(b"again"));
    let properties = properties.as_properties();
    let again = Packet::Auth(Auth { reason: Reason::RE_AUTHENTICATE, properties });
    let (shard, slot) = lab.place(client);
    let answer = Reauthenticated::Continue(vec![7; 100]);
    let mut asked = 0;
    while !waits_for_client(&lab, client) {
        lab.bytes(client, &times(&again, 10));
        for ask in std::mem::take(&mut lab.asked) {
            let now_ms = lab.now_ms;
            lab.shards[shard].on_reauthenticated(slot, ask.connection, &answer, now_ms);
            asked += 1;
        }
        lab.collect_closes();
        assert!(asked < 1_000, "an answer is some 115 bytes");
    }
    let unread = |lab: &mut Lab| lab.shards[shard].outbox(slot, client).unwrap().len();
    assert!((10_000..20_000).contains(&unread(&mut lab)), "{}", unread(&mut lab));
    lab.pauses.clear();
    lab.write_some(client, 10_000);
    lab.collect_closes();
    assert!(lab.pauses.len() == 1 && lab.is_read(client), "it is read on when it reads");
}

#[test]
fn one_that_never_reads() {
    let alive = |request| {
        let small = limits(|limits| limits.outbox_bytes_max = 10_000);
        ConnectRequest { keep_alive_secs: 10, ..with_limits(request, small) }
    };
    let pings = || (0..20).map(|_| bursts("client", ["pingreq"; 1_000]));
    let waits = |reads: bool| {
        does(move |stage| {
            let client = stage.conn("client");
            for _ in 0..16 {
                stage.lab.now_ms += 1000;
                if reads {
                    stage.lab.write_some(client, 10);
                }
                stage.lab.shards[0].on_tick(stage.lab.now_ms);
                stage.lab.collect_closes();
            }
        })
    };
    let payload = "x*2000";
    run([
        row("MQTT-3.1.2-22", "it is cut after its keep alive", Lab::new(1))
            .steps([opens("client", alive)])
            .steps(pings())
            .steps([is_not_read("client"), waits(false), is_closed("client")]),
        row("", "one that reads is not cut", Lab::new(1))
            .steps([opens("client", alive)])
            .steps(pings())
            .steps([is_not_read("client"), waits(true), is_open("client")]),
        row("", "who only gets more than it takes is read on", Lab::new(1))
            .steps([opens("client", alive), sends("client", ["subscribe t"])])
            .steps((0..20).flat_map(|_| {
                let large = bursts("writer", [format!("publish t {payload}")]);
                [large, bursts("client", ["publish elsewhere x"; 50])]
            }))
            .steps([
                counts_in(|m| &m.dropped_slow, 1..1_000),
                counts(|m| &m.publishes_received, 1_020),
                is_read("client"),
            ]),
    ]);
}

/// A subscriber with 512 filters that all match `a/a/...`, and that topic.
fn with_overlapping(lab: &mut Lab) -> (Conn, String) {
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe_all(subscriber, &overlapping(9), 1);
    lab.settle();
    lab.take_all(subscriber);
    (subscriber, ["a"; 9].join("/"))
}

#[test]
fn publishes_that_many_filters_match_are_handled_over_several_turns_in_their_order() {
    let mut lab = Lab::new(1);
    let (subscriber, topic) = with_overlapping(&mut lab);
    let publisher = lab.open(request("publisher"));
    let other = lab.open(request("other"));
    let mut bytes = Vec::new();
    for number in 0..200_u16 {
        let payload = number.to_string();
        publish(&topic, payload.as_bytes(), 1, number + 1).encode(Version::V5, &mut bytes);
    }
    lab.bytes(publisher, &bytes);
    let handled = lab.total(|m| &m.publishes_received) as usize;
    assert_eq!(handled, UNITS.div_ceil(512));
    // In the same turn it has to wait, and others do not.
    lab.bytes(publisher, &[]);
    assert_eq!(lab.total(|m| &m.publishes_received) as usize, handled);
    lab.bytes(other, &times(&publish("t", b"x", 0, 0), 1));
    assert_eq!(lab.total(|m| &m.publishes_received) as usize, handled + 1);
    lab.settle();
    let expected: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    assert_eq!(read_all(&mut lab, subscriber), expected);
    let acks = lab.take_all(publisher);
    let ids = acks.iter().map(|got| match got {
        Got::Ack(AckKind::Puback, id, Reason::SUCCESS) => *id,
        other => panic!("{other:?}"),
    });
    assert_eq!(ids.collect::<Vec<_>>(), (1..=200).collect::<Vec<_>>());
}

#[test]
fn what_came_before_the_end_of_a_connection_is_handled_over_several_turns_too() {
    let mut lab = Lab::new(1);
    let (subscriber, topic) = with_overlapping(&mut lab);
    let publisher = lab.open(request("publisher"));
    let portion = times(&publish(&topic, b"x", 0, 0), 200);
    let disconnect = Packet::Disconnect(codec::Disconnect::new(Reason::NORMAL_DISCONNECTION));
    lab.bytes(publisher, &[portion, times(&disconnect, 1)].concat());
    let (shard, slot) = lab.place(publisher);
    let in_a_turn = UNITS.div_ceil(512) as u64;
    // Others have had this turn, and then it has its own.
    for turn in [1, 2] {
        lab.shards[shard].on_closed(slot, publisher, lab.now_ms);
        assert_eq!(lab.total(|m| &m.publishes_received), turn * in_a_turn);
        assert_eq!(lab.total(|m| &m.connections), 2, "it is not over yet");
        lab.shards[shard].end_turn();
    }
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 200);
    assert_eq!(lab.total(|m| &m.connections), 1);
    let says_goodbye = |event: &Event| match event {
        Event::Disconnected { ended, .. } => {
            *ended == broker::Ended::Client(Reason::NORMAL_DISCONNECTION)
        }
        _ => false,
    };
    assert!(lab.events.iter().any(says_goodbye), "{:?}", lab.events);
}

#[test]
fn those_who_ask_for_much_share_a_turn_and_take_turns() {
    let mut lab = Lab::new(1);
    let (_, topic) = with_overlapping(&mut lab);
    let publishers: Vec<Conn> =
        (0..10).map(|number| lab.open(request(&format!("publisher-{number}")))).collect();
    let newcomer = lab.open(request("newcomer"));
    let portion = times(&publish(&topic, b"x", 0, 0), 400);
    publishers.iter().for_each(|conn| lab.bytes(*conn, &portion));
    let first = lab.total(|m| &m.publishes_received);
    // The first one takes the turn, and nobody who brings as much has anything left of it.
    let in_a_turn = UNITS.div_ceil(512) as u64;
    assert_eq!(first, in_a_turn);
    lab.bytes(newcomer, &times(&publish("t", b"x", 0, 0), 1));
    let first = first + 1;
    assert_eq!(lab.total(|m| &m.publishes_received), first, "who brings little does not wait");
    for turn in 1..=20 {
        lab.flush();
        lab.shards[0].on_tick(lab.now_ms);
        assert_eq!(lab.total(|m| &m.publishes_received), first + turn * in_a_turn);
    }
    for (number, conn) in publishers.into_iter().enumerate() {
        let (shard, slot) = lab.place(conn);
        let left = lab.shards[shard].inbox(slot, conn).unwrap().len();
        let handled = 400 - left * 400 / portion.len();
        let turns = if number == 0 { 3 } else { 2 };
        assert_eq!(handled as u64, turns * in_a_turn, "everybody has had two turns more");
    }
}

#[test]
fn many_who_each_ask_for_a_little_share_turns_too() {
    let mut lab = Lab::new(1);
    let (subscriber, topic) = with_overlapping(&mut lab);
    let publishers: Vec<Conn> =
        (0..300).map(|number| lab.open(request(&format!("one-of-many-{number}")))).collect();
    let light = lab.open(request("light"));
    let send_all = |lab: &mut Lab| {
        let before = lab.total(|m| &m.publishes_received);
        for publisher in &publishers {
            lab.send_only(*publisher, &publish(&topic, b"x", 0, 0));
        }
        lab.send_only(light, &publish("elsewhere", b"x", 0, 0));
        lab.total(|m| &m.publishes_received) - before
    };
    // Nothing is known of them yet: what they bring is small.
    assert_eq!(send_all(&mut lab), 301);
    lab.settle();
    let in_a_turn = 2 * UNITS.div_ceil(512) as u64 + 2;
    let at_once = send_all(&mut lab);
    assert!(at_once <= in_a_turn + 1, "{at_once} at once");
    let unmatched = lab.total(|m| &m.publishes_unmatched);
    assert_eq!(unmatched, 2, "who asks for little does not wait for them");
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 600);
}

/// A message of nobody in particular.
fn message(topic: &str, payload: &str) -> Message {
    Message::new(&MessageParts {
        topic,
        properties: &[],
        payload: payload.as_bytes(),
        qos: level(1),
        retain: false,
        expires_at_ms: NEVER,
        publisher: SessionKey::NOBODY.as_u64(),
        author: 0,
        level: 0,
        scope: 0,
    })
}

#[test]
fn mail_that_many_filters_match_is_handled_over_several_turns_in_its_order() {
    let mut lab = Lab::new(1);
    let (subscriber, topic) = with_overlapping(&mut lab);
    let light = lab.open(request("light"));
    lab.subscribe(light, "light", 1);
    let mut batch: Vec<Mail> = Vec::new();
    for number in 0..200 {
        let message = message(&topic, &number.to_string());
        batch.push(Mail::Publish { message, confirm: None, owner: 0 });
    }
    batch.push(Mail::Publish { message: message("light", "behind"), confirm: None, owner: 0 });
    let now_ms = lab.now_ms;
    lab.shards[0].on_batch(batch, now_ms);
    let in_a_turn = UNITS.div_ceil(512);
    lab.flush();
    assert_eq!(lab.take_all(subscriber).len(), in_a_turn);
    assert_eq!(lab.shards[0].next_deadline_ms(), 0, "there is more to do");
    // What comes now waits behind it.
    let more = vec![Mail::Publish { message: message(&topic, "200"), confirm: None, owner: 0 }];
    lab.shards[0].on_batch(more, now_ms);
    let mut turns = 1;
    let mut received = 0;
    let mut behind = 0;
    while lab.shards[0].next_deadline_ms() == 0 {
        lab.shards[0].on_tick(now_ms);
        lab.flush();
        let payloads = lab.payloads(subscriber);
        assert!(payloads.len() <= in_a_turn);
        let expected = (in_a_turn + received..).map(|number| number.to_string());
        assert!(payloads.iter().zip(expected).all(|(one, other)| *one == other));
        received += payloads.len();
        behind += lab.received(light).len();
        turns += 1;
    }
    assert_eq!((in_a_turn + received, behind, turns), (201, 1, 201_usize.div_ceil(in_a_turn)));
}

/// A message of the session in this slot of another shard.
fn message_of(slot: u32, topic: &str, payload: &str) -> Mail {
    let message = Message::new(&MessageParts {
        topic,
        properties: &[],
        payload: payload.as_bytes(),
        qos: level(1),
        retain: false,
        expires_at_ms: NEVER,
        publisher: 1 << 48 | u64::from(slot),
        author: 0,
        level: 0,
        scope: 0,
    });
    Mail::Publish { message, confirm: None, owner: 0 }
}

#[test]
fn mail_of_one_publisher_does_not_wait_for_costly_mail_of_another() {
    let mut lab = Lab::new(1);
    let (_, topic) = with_overlapping(&mut lab);
    let light = lab.open(request("light"));
    lab.subscribe(light, "light/#", 1);
    let mut batch: Vec<Mail> =
        (0..200).map(|number| message_of(1, &topic, &number.to_string())).collect();
    batch.push(message_of(2, "light/one", "at once"));
    batch.push(message_of(2, "light/one", "and so on"));
    batch.push(message_of(1, "light/two", "behind its own"));
    batch.push(message_of(3, "light/two", "behind its topic"));
    batch.push(message_of(3, "light/one", "behind its own, too"));
    let now_ms = lab.now_ms;
    lab.shards[0].on_batch(batch, now_ms);
    assert!(lab.shards[0].next_deadline_ms() == 0, "the costly ones are not through");
    lab.flush();
    assert_eq!(lab.payloads(light), ["at once", "and so on"]);
    while lab.shards[0].next_deadline_ms() == 0 {
        lab.shards[0].on_tick(now_ms);
        lab.flush();
    }
    let behind = ["behind its own", "behind its topic", "behind its own, too"];
    assert_eq!(lab.payloads(light), behind);
}

#[test]
fn mail_that_goes_before_other_mail_has_its_part_of_a_turn() {
    let mut lab = Lab::new(1);
    let (subscriber, topic) = with_overlapping(&mut lab);
    // Each of another publisher, on a topic of its own.
    let others: Vec<String> = (0..400).map(|number| format!("{topic}/{number}")).collect();
    let all: Vec<String> = overlapping(9).iter().map(|filter| format!("{filter}/+")).collect();
    lab.subscribe_all(subscriber, &all, 0);
    lab.take_all(subscriber);
    let heavy = (0..200).map(|_| message_of(1, &topic, "heavy"));
    let light = others.iter().zip(2..).map(|(topic, slot)| message_of(slot, topic, "other"));
    let now_ms = lab.now_ms;
    lab.shards[0].on_batch(heavy.chain(light).collect(), now_ms);
    lab.flush();
    let in_a_turn = UNITS.div_ceil(512);
    let received = lab.payloads(subscriber);
    let passed = received.iter().filter(|payload| *payload == "other").count();
    assert!((1..=in_a_turn).contains(&passed), "{passed}");
    while lab.shards[0].next_deadline_ms() == 0 {
        lab.shards[0].on_tick(now_ms);
        lab.flush();
    }
    assert_eq!(received.len() + lab.received(subscriber).len(), 600);
}

#[test]
fn identifiers_of_many_overlapping_subscriptions() {
    let subscribes = || {
        let filters = overlapping(9);
        let numbered = filters.iter().zip(1..);
        sends("reader", numbered.map(|(filter, id)| format!("subscribe {filter} qos1 sub{id}")))
    };
    let publish = format!("publish {} x qos1", ["a"; 9].join("/"));
    let small = limits(|limits| {
        limits.in_flight_max = 1;
        limits.queue.bytes_max = 100_000;
    });
    run([
        row("MQTT-3.3.4-3", "all of them come with the message", Lab::new(1)).steps([
            subscribes(),
            sends("writer", [publish.as_str()]),
            does(|stage| {
                let reader = stage.conn("reader");
                let mut received = stage.received(reader);
                received[0].identifiers.sort_unstable();
                assert_eq!(received[0].identifiers, (1..=512).collect::<Vec<_>>());
                assert_eq!(received.len(), 1);
            }),
        ]),
        // 2 KiB each: the publisher is held when the queue is half full.
        row("", "they count to the bytes of a queue", Lab::new(1)).steps([
            opens("reader", within(small)),
            subscribes(),
            sends("writer", vec![publish.as_str(); 200]),
            does(|stage| {
                let total = stage.lab.total(|m| &m.publishes_queued);
                let kept = total - stage.lab.total(|m| &m.dropped_queue_full);
                assert!((20..=50).contains(&kept), "{kept}");
            }),
        ]),
    ]);
}

#[test]
fn mail_that_waits_for_a_turn_is_dealt_with_before_the_broker_ends() {
    let settings = Settings { turn_units: 100, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let subscribers = ["one", "two"].map(|name| {
        let id = lab.id_on(1, name);
        let subscriber = lab.open(request(&id));
        lab.subscribe(subscriber, "a", 0);
        subscriber
    });
    let publish =
        |number: &String| Mail::Publish { message: message("a", number), confirm: None, owner: 0 };
    let numbers: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    let now_ms = lab.now_ms;
    lab.shards[1].on_batch(numbers.iter().map(publish).collect(), now_ms);
    assert_eq!(lab.shards[1].next_deadline_ms(), 0, "there is more to do");
    lab.shards[1].on_shutdown(now_ms);
    lab.flush();
    for subscriber in subscribers {
        assert_eq!(lab.payloads(subscriber), numbers);
    }
}

fn groups(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("$share/g{number}/group/x")).collect()
}

/// What the first shard mails to the second until it has nothing more to do.
fn mail_of_first(lab: &mut Lab) -> Vec<Mail> {
    let mut mails = Vec::new();
    loop {
        lab.flush();
        let has_read_on = lab.read_on();
        lab.shards[0].on_tick(lab.now_ms);
        let more = lab.shards[0].effects_mut().take_batch(1);
        if more.is_empty() && !has_read_on && lab.shards[0].next_deadline_ms() != 0 {
            return mails;
        }
        mails.extend(more);
    }
}

#[test]
fn who_joins_groups_is_charged_for_the_work_of_all_shards() {
    let first_portion = |shards: u16| {
        let mut lab = Lab::new(shards);
        let member = lab.open(request(&lab.id_on(0, "member")));
        lab.subscribe_all(member, &groups(5_000), 0);
        let first = lab.total(|m| &m.subscriptions);
        lab.settle();
        assert_eq!(lab.take(member), Some(Got::Suback(1, vec![0; 5_000])));
        first
    };
    let (alone, of_eight) = (first_portion(1), first_portion(8));
    assert!((100..1_000).contains(&alone), "{alone}");
    assert!(of_eight < alone / 3, "{of_eight} and {alone}");
}

#[test]
fn members_of_which_a_shard_has_yet_to_hear_are_not_many() {
    let mut lab = Lab::new(2);
    let members: Vec<Conn> =
        (0..40).map(|n| lab.open(request(&lab.id_on(0, &format!("member-{n}"))))).collect();
    let groups = groups(1_000);
    let mut unheard = 0;
    for member in members {
        lab.subscribe_all(member, &groups, 0);
        let joins = mail_of_first(&mut lab);
        unheard += joins.iter().filter(|mail| matches!(mail, Mail::Join { .. })).count();
    }
    assert!((1_000..20_000).contains(&unheard), "{unheard}");
}

/// So many rules with two lists each, others, and one that grants everything.
fn costly<const N: usize>(count: usize, permission: Permission, others: [Rule; N]) -> Access {
    let with_two = |number| {
        let filter = format!("x/%{{attributes.a}}-%{{attributes.b}}/{number}");
        rule(Who::Everyone, permission, &filter)
    };
    let mut rules: Vec<_> = (0..count).map(with_two).chain(others).collect();
    rules.push(rule(Who::Everyone, Permission::ReadWrite, "#"));
    Access::compile(&rules).expect("valid rules")
}

fn with_lists(client_id: &str, count: i64) -> ConnectRequest {
    let list = |begin: &str| {
        let text = |number| Attribute::Text(format!("{begin}{number}").into());
        Attribute::List((0..count).map(text).collect())
    };
    let attributes = Attributes::new([("a".into(), list("a")), ("b".into(), list("b"))]);
    let principal = Some(Box::new(Principal { attributes, ..Principal::default() }));
    ConnectRequest { principal, ..request(client_id) }
}

#[test]
fn who_subscribes_is_charged_for_the_rules_that_are_asked() {
    let access = costly(100, Permission::Read, []);
    let mut lab = Lab::with(1, Settings::default(), access);
    let client = lab.open(with_lists("client", 200));
    let other = lab.open(request("other"));
    // Short enough to be done at once where there are few rules.
    let filters: Vec<_> = (0..500).map(|number| format!("{number:03}")).collect();
    lab.subscribe_all(client, &filters, 1);
    let first = lab.total(|m| &m.subscriptions);
    assert!((1..100).contains(&first), "{first} at first");
    lab.publish(other, "000", b"x", 0, 0);
    lab.settle();
    let got = lab.take_all(client);
    let subacks = got.iter().filter(|got| matches!(got, Got::Suback(..)));
    assert_eq!(subacks.collect::<Vec<_>>(), [&Got::Suback(1, vec![1; 500])]);
    assert_eq!(got.len(), 2, "and the message");
}

#[test]
fn rules_that_are_few_cost_a_subscriber_nothing_to_speak_of() {
    let rules: Vec<_> =
        (0..10).map(|n| rule(Who::Everyone, Permission::ReadWrite, &format!("{n}/#"))).collect();
    let mut lab = Lab::with(1, Settings::default(), Access::compile(&rules).unwrap());
    let client = lab.open(request("client"));
    let filters: Vec<_> = (0..500).map(|number| format!("{}/x", number % 10)).collect();
    lab.subscribe_all(client, &filters, 1);
    assert_eq!(lab.total(|m| &m.work_waits), 0, "in one go");
    lab.settle();
    assert_eq!(lab.take(client), Some(Got::Suback(1, vec![1; 500])));
}

#[test]
fn who_publishes_is_charged_for_many_rules_and_not_for_few() {
    for (count, waits) in [(100, true), (4, false)] {
        let mut lab = Lab::with(1, Settings::default(), costly(count, Permission::Deny, []));
        let client = lab.open(with_lists("client", 200));
        let other = lab.open(request("other"));
        lab.subscribe(other, "t", 0);
        let mut bytes = Vec::new();
        publish("t", b"x", 0, 0).encode(Version::V5, &mut bytes);
        lab.bytes(client, &bytes.repeat(100));
        let first = lab.total(|m| &m.publishes_received);
        assert_eq!(first < 100, waits, "{count} rules: {first} at first");
        lab.settle();
        assert_eq!(lab.received(other).len(), 100);
    }
}

#[test]
fn subscriptions_that_are_too_many_to_be_judged_at_once_are_checked_for_each_message() {
    let mut lab = Lab::with(1, Settings::default(), Access::open());
    let client = lab.open(with_lists("client", 200));
    let filters: Vec<_> = (0..500).map(|number| format!("{number:03}/x")).collect();
    lab.subscribe_all(client, &filters, 0);
    lab.settle();
    lab.take_all(client);
    let denied = rule(Who::Everyone, Permission::Deny, "499/#");
    lab.shards[0].set_access(costly(200, Permission::Deny, [denied]));
    let other = lab.open(request("other"));
    for topic in ["000/x", "498/x", "499/x"] {
        lab.publish(other, topic, b"x", 0, 0);
    }
    lab.settle();
    let topics: Vec<_> = lab.received(client).into_iter().map(|got| got.topic).collect();
    assert_eq!(topics, ["000/x", "498/x"]);
}
