//! What once went wrong, one test or row each.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::rows::{
    Row, asks, connects, counts, does, everyone, gets, is_closed, is_open, keeps, kept, opens,
    posts, reads, reads_count, reports, row, rules, run, sends, sends_bytes, v311, waits_ms,
    within,
};
use broker::admission::{self, AuthStep};
use broker::{ConnectRequest, Event, Limits, Metrics, Settings};
use codec::{AckKind, Connect, Packet, Properties, Property, PropertyBuf, Reason, Version, Will};
use policy::{Access, Permission, Who};
use rig::{
    Got, Lab, admit, connect_packet, level, persistent, publish, queue, request, retained, rule,
    window, with_limits,
};
use session::Overflow;

fn rejecting(shard_count: u16) -> Lab {
    let settings = Settings { rejects: true, ..Settings::default() };
    Lab::with(shard_count, settings, Access::open())
}

// Connections.

#[test]
fn mqtt_3_1_2_24_a_refusal_is_silent_if_the_client_does_not_take_so_many_bytes() {
    let limits = Arc::new(Limits { client_id_bytes_max: 3, ..Limits::default() });
    let answer_to = |bytes_max: u32| {
        let mut properties = PropertyBuf::new();
        properties.push(Property::PacketBytesMax(bytes_max));
        let properties = properties.as_properties();
        let connect = Connect { properties, ..connect_packet("too long") };
        admit(&connect, &limits).expect_err("the id is too long").answer
    };
    assert_eq!(answer_to(5), [0x20, 3, 0, Reason::CLIENT_IDENTIFIER_NOT_VALID.0, 0]);
    assert!(answer_to(4).is_empty());
}

#[test]
fn a_3_1_client_may_have_a_longer_id_than_its_specification_says_unless_told_otherwise() {
    let long = "weather-station-on-the-roof";
    let reason_for = |client_id: &str, limits: Limits| {
        let connect = Connect { version: Version::V31, ..connect_packet(client_id) };
        admit(&connect, &Arc::new(limits)).map(drop).map_err(|refusal| refusal.reason)
    };
    let strict = || Limits { client_id_v31_chars_max: 23, ..Limits::default() };
    let refused = Err(Reason::CLIENT_IDENTIFIER_NOT_VALID);
    assert_eq!(reason_for(long, Limits::default()), Ok(()));
    assert_eq!(reason_for(&long[..23], strict()), Ok(()));
    assert_eq!(reason_for(&long[..24], strict()), refused);
    assert_eq!(reason_for("", Limits::default()), refused);
}

/// A request of version 5 with enhanced authentication, by a client that takes packets of so many
/// bytes.
fn with_exchange(packet_bytes_max: u32) -> ConnectRequest {
    ConnectRequest { auth_method: Some("M".into()), packet_bytes_max, ..request("client") }
}

#[test]
fn mqtt_3_1_2_24_a_client_is_not_asked_more_than_it_takes() {
    let asked = admission::auth_continue(&with_exchange(14), b"data");
    assert_eq!(asked.map(|bytes| bytes.len()), None);
    let asked = admission::auth_continue(&with_exchange(15), b"data");
    assert_eq!(asked.map(|bytes| bytes.len()), Some(15));
    assert!(admission::refuse(&with_exchange(4), Reason::NOT_AUTHORIZED).is_empty());
    let AuthStep::Refuse(refusal) = admission::auth_step(&[0xC0, 0], &with_exchange(4), 100) else {
        panic!("a PINGREQ is no answer");
    };
    assert!(refusal.answer.is_empty(), "{refusal:?}");
}

/// A PUBLISH with topic alias 0, for which there is a code, is not one that a CONNACK may tell.
#[test]
fn a_breach_in_an_exchange_is_reported_by_a_code_that_a_connack_may_have() {
    let alias_zero = [0x30, 0x08, 0, 1, b't', 3, 0x23, 0, 0, b'x'];
    let step = admission::auth_step(&alias_zero, &with_exchange(100), 100);
    let AuthStep::Refuse(refusal) = step else { panic!("it is no AUTH") };
    assert_eq!(refusal.reason, Reason::TOPIC_ALIAS_INVALID);
    assert_eq!(refusal.answer[3], Reason::PROTOCOL_ERROR.0);
}

#[test]
fn response_information_is_never_a_topic_filter() {
    let mut lab = Lab::new(1);
    for (id, is_announced) in [("asking", true), ("a/b", true), ("#", false), ("a/+", false)] {
        let client = lab.connect(ConnectRequest { response_info: true, ..request(id) });
        let answers = lab.take_all(client);
        let Some(Got::Connack { properties, .. }) = answers.first() else { panic!("no CONNACK") };
        let announced = Properties::from_raw(properties).find(|property| match property {
            Property::ResponseInfo(text) => Some(text.to_owned()),
            _ => None,
        });
        assert_eq!(announced, is_announced.then(|| format!("$response/{id}/")), "{id}");
    }
}

#[test]
fn connections() {
    let longest = "i".repeat(65_530);
    let asks_for_topics = |request| ConnectRequest { response_info: true, ..request };
    let expiring = |request| ConnectRequest { session_expiry_secs: 5, ..kept(request) };
    let second = [0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 9, 2, 0, 0, 0, 0, 0];
    let deep = format!("unsubscribe {}", "a/".repeat(200));
    run([
        row("", "the longest client id leaves no room for response information", Lab::new(1))
            .steps([opens(&longest, asks_for_topics)]),
        row("", "a session that expired while nobody looked is not resumed", Lab::new(1)).steps([
            opens("client", expiring),
            sends("client", ["cut"]),
            // No tick comes in between, as right after a start.
            waits_ms(6000),
            connects("client", expiring),
            gets("client", ["connack"]),
        ]),
        // The code of what is wrong with it is not one that a DISCONNECT may have.
        row("", "a second CONNECT of a version that there is not", Lab::new(1))
            .steps([sends_bytes("client", &second), gets("client", ["disconnect protocol_error"])]),
        row("", "an UNSUBSCRIBE that is too deep is refused", Lab::new(1)).steps([
            asks("client", &deep, ["unsuback 1: topic_filter_invalid"]),
            is_open("client"),
        ]),
        row("", "packets before the last one are counted", Lab::new(1)).steps([
            sends_bytes("client", &[0xC0, 0, 0xC0, 0, 0xE0, 0]),
            counts(|m| &m.packets_received, 3),
            counts(|m| &m.bytes_received, 6),
        ]),
    ]);
}

#[test]
fn aliases() {
    let small = |request| ConnectRequest { alias_max: 5, packet_bytes_max: 30, ..request };
    run([
        row("", "a repeated publish sets its alias", Lab::new(1)).steps([
            sends("reader", ["subscribe a"]),
            sends("writer", ["kept", "publish a 1 qos2 id7", "cut", "kept"]),
            sends("writer", ["publish a 2 qos2 id7 dup alias3", "publish \"\" 2 qos2 id8 alias3"]),
            is_open("writer"),
            reads("reader", [1, 2]),
        ]),
        row("", "an alias is not used before the client has its topic", Lab::new(1)).steps([
            opens("reader", small),
            sends("reader", ["subscribe topic"]),
            sends("writer", ["publish topic x*100", "publish topic short"]),
            gets("reader", ["publish topic short alias1"]),
            // 30 bytes: header 2, topic 7, property length 1, payload 20. The alias makes it 33.
            opens("other", small),
            sends("other", ["subscribe topic"]),
            sends("writer", ["publish topic just-twenty-letters-"]),
            gets("other", ["publish topic just-twenty-letters-"]),
        ]),
    ]);
}

// Refusals.

#[test]
fn refusals() {
    let settings = Settings { retained_messages_max: 1, ..Settings::default() };
    let one = Lab::with(1, settings.clone(), Access::open());
    let settings = Settings { rejects: true, ..settings };
    let one_elsewhere = Lab::with(2, settings, Access::open());
    run([
        full_elsewhere("a refusal by another shard is counted and reported").steps([
            asks("writer@1", "publish t x qos1", ["puback 1 quota_exceeded"]),
            counts(|m| &m.publishes_refused, 1),
            reports(|event| matches!(event, Event::Refused { topic, .. } if &**topic == "t"), 1),
        ]),
        full_elsewhere("a client of MQTT 3.1.1 is cut off when another shard refuses").steps([
            opens("writer@1", v311),
            // No PUBACK, which would say success.
            asks("writer@1", "publish t x qos1", []),
            is_closed("writer@1"),
        ]),
        full_elsewhere("what is refused after its connection broke is no repetition").steps([
            sends("writer@1", ["kept"]),
            posts("writer@1", "publish t x qos2"),
            // The connection breaks while the other shard is asked.
            sends("writer@1", ["cut", "kept"]),
            asks("writer@1", "publish t x qos2", ["pubrec 1 quota_exceeded"]),
        ]),
        row("", "a client of MQTT 3.1.1 gets no success for what is refused here", one_elsewhere)
            .steps([
                keeps("away@0", queue(0, Overflow::Reject)),
                sends("away@0", ["subscribe t@1 qos1", "cut"]),
                opens("writer@0", v311),
                sends("writer@0", ["publish filler@1 x retain"]),
                // The store, on the other shard, is full and has to be asked; the subscriber here
                // refuses.
                asks("writer@0", "publish t@1 x qos1 retain", []),
                is_closed("writer@0"),
            ]),
        row("", "a retained message that is refused reaches nobody", one).steps([
            sends("reader", ["subscribe # qos1"]),
            asks("writer", "publish a 1 qos1 retain", ["puback 1"]),
            asks("writer", "publish b 2 qos1 retain", ["puback 1 quota_exceeded"]),
            reads("reader", [1]),
            counts(|m| &m.retained_refused, 1),
        ]),
        row("", "a subscriber does not refuse what No Local keeps from it", rejecting(1)).steps([
            opens("client", within(queue(0, Overflow::Reject))),
            sends("client", ["subscribe t qos1 no_local", "subscribe other qos1"]),
            // It takes the window.
            asks("client", "publish other x qos1", ["puback 1", "publish other x qos1 id1"]),
            asks("client", "publish t x qos1", ["puback 1"]),
        ]),
    ]);
}

/// A subscriber on shard 0 has no room any more.
fn full_elsewhere(name: &str) -> Row {
    row("", name, rejecting(2)).steps([
        keeps("reader@0", queue(1, Overflow::Reject)),
        sends("reader@0", ["subscribe t qos2", "cut"]),
        asks("filler@1", "publish t x qos1", ["puback 1"]),
    ])
}

// Groups.

#[test]
fn a_shared_message_reaches_the_one_member_that_may_receive_it() {
    let user = |name: &str, permission, filter| rule(Who::User(name.into()), permission, filter);
    let (all, none) = (Permission::ReadWrite, Permission::Deny);
    let rights = [user("many", none, "t/secret"), user("many", all, "#"), user("one", all, "#")];
    let rights = |count: usize| Access::compile(&rights[3 - count..]).expect("sound rules");
    let labs = [1, 3].map(|count| Lab::with(count, Settings::default(), rights(2)));
    let of = |user: &'static str| {
        move |request| ConnectRequest { username: Some(user.into()), ..request }
    };
    let names = (0..9).map(|number| if number == 4 { "one".into() } else { format!("{number}") });
    let names: Vec<String> = names.collect();
    run([row("", "nine members, of which one may", labs)
        .steps(names.iter().map(|name| {
            let user = if name == "one" { "one" } else { "many" };
            crate::rows::all([opens(name, of(user)), sends(name, ["subscribe $share/g/t/# qos1"])])
        }))
        .steps([rules(rights(3)), opens("writer", of("one"))])
        .steps([sends("writer", (1..=20).map(|id| format!("publish t/secret x qos1 id{id}")))])
        .steps(names.iter().map(|name| reads_count(name, if name == "one" { 20 } else { 0 })))
        .steps([counts(|m| &m.dropped_group, 0)])]);
}

#[test]
fn groups() {
    use Permission::{Deny, Read, ReadWrite, Write};
    let ruled = |shard_count, access| Lab::with(shard_count, Settings::default(), access);
    let secret =
        [1, 3].map(|count| ruled(count, everyone([(ReadWrite, "t/#"), (Deny, "t/secret")])));
    let admin = rule(Who::User("admin".into()), ReadWrite, "#");
    let others = rule(Who::Anonymous, Read, "t/open");
    let access = Access::compile(&[admin, others]).expect("sound rules");
    let limits = queue(10, Overflow::DropOldest);
    let takes_nothing = Limits { outbox_bytes_max: 0, ..limits.clone() };
    run([
        row("", "what no member may receive does not go round for ever", secret)
            .steps(["1", "2", "3"].map(|name| sends(name, ["subscribe $share/g/t/# qos1"])))
            .steps([
                rules(access),
                opens("w", |request| ConnectRequest { username: Some("admin".into()), ..request }),
                sends("w", ["publish t/secret x qos1 id1", "publish t/open y qos1 id2"]),
                does(|stage| {
                    let members = ["1", "2", "3"].map(|name| stage.conn(name));
                    let received = members.iter().flat_map(|member| stage.lab.payloads(*member));
                    assert_eq!(received.collect::<Vec<_>>(), ["y"]);
                }),
                counts(|m| &m.dropped_group, 1),
            ]),
        row("", "new rules hold for shared subscriptions that are open", Lab::new(1)).steps([
            sends("member", ["subscribe $share/g/t qos1"]),
            rules(everyone([(Write, "t")])),
            sends("writer", ["publish t x qos1"]),
            gets("member", []),
            counts(|m| &m.dropped_group, 1),
        ]),
        row("", "a member that resends is not offered messages in a circle", Lab::new(2)).steps([
            keeps("member@0", limits),
            sends("member@0", ["subscribe plain qos1", "subscribe $share/g/t qos1"]),
            sends("writer@1", ["publish plain x qos1"]),
            sends("member@0", ["cut"]),
            // Back with an outbox that takes nothing, so that the resend has to wait.
            does(move |stage| {
                let id = stage.lab.id_on(0, "member");
                let back = with_limits(persistent(&id), takes_nothing.clone());
                let member = stage.lab.connect_only(back);
                stage.lab.settle_mail();
                let writer = stage.conn("writer@1");
                stage.lab.send_only(writer, &publish("t", b"shared", 1, 2));
                stage.lab.settle_mail();
                stage.lab.flush();
                assert_eq!(stage.lab.received(member), []);
            }),
        ]),
    ]);
}

// Queues, wills and packets that are too large.

/// A request with a will on `t`.
fn dying(limits: Limits) -> ConnectRequest {
    let properties = Properties::EMPTY;
    let will = Will { topic: "t", payload: b"gone", qos: level(1), retain: false, properties };
    let connect = Connect { will: Some(will), ..connect_packet("client") };
    admit(&connect, &Arc::new(limits)).expect("a sound CONNECT")
}

#[test]
fn queues() {
    let mut kilobyte = queue(100, Overflow::DropOldest);
    kilobyte.queue.bytes_max = 1000;
    let full = |_| ConnectRequest {
        clean_start: false,
        session_expiry_secs: 100,
        ..dying(queue(0, Overflow::Disconnect))
    };
    let brief = |_| dying(Limits { message_expiry_max_secs: 5, ..Limits::default() });
    let small = |request| ConnectRequest { packet_bytes_max: 50, ..kept(request) };
    run([
        row("", "each delivery that makes room for a large one is counted", Lab::new(1)).steps([
            keeps("reader", kilobyte),
            sends("reader", ["subscribe t qos1", "cut"]),
            sends("writer", ["publish t x*100 qos1"; 5]),
            sends("writer", ["publish t y*900 qos1"]),
            counts(|m| &m.dropped_queue_full, 5),
            // What does not fit at all drops itself, and nothing else.
            sends("writer", ["publish t z*2000 qos1"]),
            counts(|m| &m.dropped_queue_full, 6),
            sends("reader", ["kept"]),
            reads("reader", ["y*900"]),
        ]),
        // Its own will overflows the queue while nobody is there.
        row("", "an overflow while offline does not end the next connection", Lab::new(1)).steps([
            opens("client", full),
            sends("client", ["subscribe t qos1"]),
            opens("client#2", full),
            is_closed("client"),
            is_open("client#2"),
        ]),
        row("", "a will obeys the largest message expiry", Lab::new(1)).steps([
            sends("watcher", ["subscribe t qos1"]),
            opens("client", brief),
            sends("client", ["cut"]),
            gets("watcher", ["publish t gone qos1 id1 expiry5"]),
        ]),
        row("", "what is given up when the queue moves on is reported", Lab::new(1)).steps([
            sends("reader", ["kept", "subscribe t qos1", "cut"]),
            sends("writer", ["publish t x*100 qos1"]),
            opens("reader", small),
            counts(|m| &m.dropped_too_large, 1),
            reports(|event| matches!(event, Event::Dropped { count: 1, .. }), 1),
        ]),
        row("", "a resend that has become too large is counted", Lab::new(1)).steps([
            sends("reader", ["kept", "subscribe t qos1"]),
            sends("writer", ["publish t x*100 qos1", "publish t small qos1"]),
            sends("reader", ["cut"]),
            opens("reader", small),
            gets("reader", ["publish t small qos1 id2 dup"]),
            counts(|m| &m.dropped_too_large, 1),
        ]),
    ]);
}

// Retained messages.

/// So many topics below `t/`, each with a retained message of so many bytes.
fn keeping(shard_count: u16, topics: usize, bytes: usize, qos: u8) -> Lab {
    let mut lab = Lab::new(shard_count);
    let publisher = lab.open(request("publisher"));
    let payload = vec![1; bytes];
    for number in 0..topics {
        lab.send(publisher, &retained(&format!("t/{number}"), &payload, qos, qos.into()));
    }
    lab
}

#[test]
fn large_retained_messages_of_qos_0_wait_for_room_in_the_outbox() {
    let mut lab = keeping(2, 250, 2000, 0);
    let limits = Limits { outbox_bytes_max: 10_000, ..Limits::default() };
    let subscriber = lab.open(with_limits(request("subscriber"), limits));
    lab.subscribe(subscriber, "t/+", 0);
    let topics: BTreeSet<_> = lab.received(subscriber).into_iter().map(|own| own.topic).collect();
    assert_eq!(topics.len(), 250);
    assert_eq!(lab.total(|m| &m.dropped_slow), 0);
}

/// Whoever subscribes to everything that is retained gets it a little at a time, so that a worker
/// comes to its other connections in between.
#[test]
fn a_page_of_retained_messages_waits_until_the_one_before_it_is_written() {
    let mut lab = keeping(1, 1000, 1000, 0);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe_all(subscriber, &["t/+"], 0);
    lab.settle_mail();
    let (shard, slot) = lab.place(subscriber);
    let waiting = lab.shards[shard].outbox(slot, subscriber).expect("a connection").len();
    assert!((100_000..250_000).contains(&waiting), "{waiting} bytes wait");
    lab.settle();
    assert_eq!(lab.received(subscriber).len(), 1000);
}

#[test]
fn retained_messages_go_on_after_a_reconnect() {
    let mut lab = keeping(2, 1000, 1, 1);
    let ten = || with_limits(persistent("subscriber"), window(10));
    let subscriber = lab.open(ten());
    lab.subscribe(subscriber, "t/+", 1);
    lab.cut(subscriber);
    let subscriber = lab.open(ten());
    let mut topics = BTreeSet::new();
    while let Some(Got::Publish(publish)) = lab.take(subscriber) {
        topics.insert(publish.topic);
        lab.ack(subscriber, AckKind::Puback, publish.packet_id);
    }
    assert_eq!(topics.len(), 1000);
}

/// The bit of the protocol level by which a bridge of mosquitto announces itself.
#[test]
fn a_bridge_gets_no_echo_and_retain_flags_as_they_were_published() {
    for version in [Version::V31, Version::V311] {
        let labs = [Lab::new(1), Lab::new(3)];
        run([row("", format!("a bridge and a client of {version:?}"), labs).steps([
            sends("writer", ["publish t/kept theirs retain"]),
            opens("bridge", move |own| ConnectRequest { version, is_bridge: true, ..own }),
            sends("bridge", ["publish t/own own retain"]),
            opens("plain", move |own| ConnectRequest { version, ..own }),
            sends("plain", ["subscribe t/#"]),
            does(|stage| drop(stage.taken_by("plain"))),
            // A shared subscription has no No Local.
            sends("bridge", ["subscribe $share/g/s qos1"]),
            asks("bridge", "subscribe t/#", ["publish t/kept theirs retain"]),
            sends("bridge", ["publish t/a echo"]),
            asks("bridge", "publish s group", ["publish s group"]),
            sends("writer", ["publish t/a plain", "publish t/a live retain"]),
            gets("bridge", ["publish t/a plain", "publish t/a live retain"]),
            // Anybody else gets both as ever.
            gets("plain", ["publish t/a echo", "publish t/a plain", "publish t/a live"]),
        ])]);
    }
}

#[test]
fn packets_are_counted_by_qos_and_type() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    let publisher = lab.open(request("publisher"));
    lab.subscribe(subscriber, "a", 1);
    for (count, qos) in [(1, 0), (2, 1), (3, 2)] {
        for packet_id in 1..=count {
            lab.publish(publisher, "a", b"x", qos, packet_id);
            if qos == 2 {
                lab.ack(publisher, AckKind::Pubrel, packet_id);
            }
        }
    }
    for packet_id in 1..=5 {
        lab.ack(subscriber, AckKind::Puback, packet_id);
    }
    lab.send(publisher, &Packet::Pingreq);
    lab.unsubscribe(subscriber, "a");
    lab.settle();
    let metrics = &lab.shared.metrics[0];
    let by_label: Vec<(String, u64)> = Metrics::descriptions()
        .iter()
        .zip(metrics.values())
        .filter(|(metric, value)| metric.name.ends_with("_total") && *value > 0)
        .filter(|(metric, _)| metric.label.contains("qos") || metric.label.contains("type"))
        .map(|(metric, value)| (format!("{}{{{}}}", &metric.name[7..], metric.label), value))
        .collect();
    let expected = [
        ("packets_received_total{type=\"publish\"}", 6),
        ("packets_received_total{type=\"puback\"}", 5),
        ("packets_received_total{type=\"pubrel\"}", 3),
        ("packets_received_total{type=\"subscribe\"}", 1),
        ("packets_received_total{type=\"unsubscribe\"}", 1),
        ("packets_received_total{type=\"pingreq\"}", 1),
        ("control_packets_sent_total{type=\"puback\"}", 2),
        ("control_packets_sent_total{type=\"pubrec\"}", 3),
        ("control_packets_sent_total{type=\"pubcomp\"}", 3),
        ("control_packets_sent_total{type=\"suback\"}", 1),
        ("control_packets_sent_total{type=\"unsuback\"}", 1),
        ("control_packets_sent_total{type=\"pingresp\"}", 1),
        ("control_packets_sent_total{type=\"other\"}", 2),
        ("publishes_received_total{qos=\"0\"}", 1),
        ("publishes_received_total{qos=\"1\"}", 2),
        ("publishes_received_total{qos=\"2\"}", 3),
        ("publishes_sent_total{qos=\"0\"}", 1),
        ("publishes_sent_total{qos=\"1\"}", 5),
    ];
    assert_eq!(by_label, expected.map(|(name, value)| (name.to_owned(), value)));
    assert_eq!(lab.total(|m| &m.publishes_received), 6);
}
