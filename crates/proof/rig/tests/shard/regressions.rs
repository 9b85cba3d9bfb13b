//! What once went wrong, one test each.

use std::sync::Arc;

use broker::admission::{self, AuthStep};
use broker::{ConnectRequest, Event, Limits, Metrics, Settings};
use codec::{
    AckKind, Connect, Packet, Properties, Property, PropertyBuf, Publish, Reason, RetainHandling,
    SubscribeOptions, Version, Will,
};
use policy::Access;
use policy::{Permission, Who};
use rig::{
    Got, Lab, admit, connect_packet, level, persistent, publish, request, retained, rule,
    with_limits,
};
use session::{Overflow, QueueLimits};

fn queue(messages_max: u32, overflow: Overflow) -> Limits {
    let queue = QueueLimits { messages_max, overflow, ..Limits::default().queue };
    Limits { in_flight_max: 1, queue, ..Limits::default() }
}

fn rejecting() -> Settings {
    Settings { rejects: true, ..Settings::default() }
}

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

#[test]
fn the_longest_client_id_leaves_no_room_for_response_information() {
    let mut lab = Lab::new(1);
    let id = "i".repeat(65_530);
    let asking = ConnectRequest { response_info: true, ..request(&id) };
    lab.open(asking);
}

#[test]
fn a_repeated_publish_sets_its_alias_all_the_same() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "a", 0);
    let publisher = lab.open(persistent("publisher"));
    lab.publish(publisher, "a", b"1", 2, 7);
    lab.cut(publisher);
    let publisher = lab.open(persistent("publisher"));
    let mut alias = PropertyBuf::new();
    alias.push(Property::TopicAlias(3));
    let with_alias = |topic, packet_id, dup| Publish {
        dup,
        qos: level(2),
        retain: false,
        topic,
        packet_id,
        properties: alias.as_properties(),
        payload: b"2",
    };
    lab.send(publisher, &Packet::Publish(with_alias("a", 7, true)));
    lab.send(publisher, &Packet::Publish(with_alias("", 8, false)));
    assert!(!lab.is_closed(publisher));
    assert_eq!(lab.payloads(subscriber), ["1", "2"]);
}

#[test]
fn an_alias_is_not_used_before_the_client_has_its_topic() {
    let mut lab = Lab::new(1);
    let small = ConnectRequest { alias_max: 5, packet_bytes_max: 30, ..request("small") };
    let subscriber = lab.open(small);
    lab.subscribe(subscriber, "topic", 0);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "topic", &[b'x'; 100], 0, 0);
    lab.publish(publisher, "topic", b"short", 0, 0);
    let received = lab.received(subscriber);
    assert_eq!(received.len(), 1);
    assert_eq!((received[0].topic.as_str(), received[0].alias), ("topic", Some(1)));
    // 30 bytes: header 2, topic 7, property length 1, payload 20. The alias would make it 33.
    let other = lab.open(ConnectRequest { alias_max: 5, packet_bytes_max: 30, ..request("other") });
    lab.subscribe(other, "topic", 0);
    lab.publish(publisher, "topic", &[b'x'; 20], 0, 0);
    let received = lab.received(other);
    assert_eq!((received[0].topic.as_str(), received[0].alias), ("topic", None));
}

#[test]
fn each_delivery_that_makes_room_for_a_large_one_is_counted() {
    let mut lab = Lab::new(1);
    let mut limits = queue(100, Overflow::DropOldest);
    limits.queue.bytes_max = 1000;
    let subscriber = lab.open(with_limits(persistent("subscriber"), limits));
    lab.subscribe(subscriber, "t", 1);
    lab.cut(subscriber);
    let publisher = lab.open(request("publisher"));
    for number in 0..5 {
        lab.publish(publisher, "t", &[number; 100], 1, 1);
    }
    lab.publish(publisher, "t", &[9; 900], 1, 1);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 5);
    // What does not fit at all drops itself, and nothing else.
    lab.publish(publisher, "t", &[9; 2000], 1, 1);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 6);
    let subscriber = lab.open(persistent("subscriber"));
    assert_eq!(lab.received(subscriber).len(), 1);
}

/// A shard other than the publisher's refuses.
fn refused_elsewhere(version: Version) -> (Lab, u64) {
    let mut lab = Lab::with(2, rejecting(), Access::open());
    let id = lab.id_on(0, "subscriber");
    let limits = queue(1, Overflow::Reject);
    let subscriber = lab.open(with_limits(persistent(&id), limits.clone()));
    lab.subscribe(subscriber, "t", 2);
    lab.cut(subscriber);
    let publisher_id = lab.id_on(1, "publisher");
    let asked = ConnectRequest { version, ..persistent(&publisher_id) };
    let publisher = lab.open(asked);
    lab.publish(publisher, "t", b"fills the queue", 1, 1);
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Puback, 1, Reason::SUCCESS)]);
    (lab, publisher)
}

#[test]
fn a_refusal_by_another_shard_is_counted_and_reported() {
    let (mut lab, publisher) = refused_elsewhere(Version::V5);
    lab.publish(publisher, "t", b"one too many", 1, 2);
    let answers = lab.take_all(publisher);
    assert_eq!(answers, [Got::Ack(AckKind::Puback, 2, Reason::QUOTA_EXCEEDED)]);
    assert_eq!(lab.total(|m| &m.publishes_refused), 1);
    assert!(
        lab.events
            .iter()
            .any(|event| matches!(event, Event::Refused { topic, .. } if **topic == *"t"))
    );
}

#[test]
fn a_3_1_1_client_is_cut_off_when_another_shard_refuses() {
    let (mut lab, publisher) = refused_elsewhere(Version::V311);
    lab.publish(publisher, "t", b"one too many", 1, 2);
    assert_eq!(lab.take_all(publisher), [], "no PUBACK, which would say success");
    assert!(lab.is_closed(publisher));
}

#[test]
fn a_publish_refused_after_its_connection_broke_is_no_repetition_when_it_comes_again() {
    let (mut lab, publisher) = refused_elsewhere(Version::V5);
    lab.send_only(publisher, &publish("t", b"one too many", 2, 2));
    // The connection breaks while the other shard is asked.
    lab.cut(publisher);
    let id = lab.id_on(1, "publisher");
    let publisher = lab.open(persistent(&id));
    lab.publish(publisher, "t", b"one too many", 2, 2);
    let answers = lab.take_all(publisher);
    assert_eq!(answers, [Got::Ack(AckKind::Pubrec, 2, Reason::QUOTA_EXCEEDED)]);
}

#[test]
fn a_3_1_1_client_never_gets_a_success_for_a_message_refused_here() {
    let settings = Settings { retained_messages_max: 1, ..rejecting() };
    let mut lab = Lab::with(2, settings, Access::open());
    let topic = lab.topic_on(1, "t");
    let filler = lab.topic_on(1, "filler");
    let id = lab.id_on(0, "subscriber");
    let limits = queue(0, Overflow::Reject);
    let subscriber = lab.open(with_limits(persistent(&id), limits));
    lab.subscribe(subscriber, &topic, 1);
    lab.cut(subscriber);
    let id = lab.id_on(0, "publisher");
    let publisher = lab.open(rig::of_version(Version::V311, &id));
    lab.send(publisher, &retained(&filler, b"kept", 0, 0));
    // The store, on the other shard, is full and has to be asked; the subscriber here refuses.
    lab.send(publisher, &retained(&topic, b"refused", 1, 5));
    assert_eq!(lab.take_all(publisher), []);
    assert!(lab.is_closed(publisher));
}

#[test]
fn a_retained_message_that_is_refused_reaches_nobody() {
    let settings = Settings { retained_messages_max: 1, ..Settings::default() };
    let mut lab = Lab::with(1, settings, Access::open());
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "#", 1);
    let publisher = lab.open(request("publisher"));
    lab.send(publisher, &retained("a", b"1", 1, 1));
    lab.send(publisher, &retained("b", b"2", 1, 2));
    let answers = lab.take_all(publisher);
    assert_eq!(answers[1], Got::Ack(AckKind::Puback, 2, Reason::QUOTA_EXCEEDED));
    assert_eq!(lab.payloads(subscriber), ["1"]);
    assert_eq!(lab.total(|m| &m.retained_refused), 1);
}

#[test]
fn a_subscriber_that_does_not_want_its_own_messages_does_not_refuse_them() {
    let mut lab = Lab::with(1, rejecting(), Access::open());
    let limits = queue(0, Overflow::Reject);
    let client = lab.open(with_limits(request("client"), limits));
    let options = SubscribeOptions { no_local: true, ..SubscribeOptions::new(level(1)) };
    lab.subscribe_with(client, "t", options, None);
    lab.subscribe(client, "other", 1);
    lab.publish(client, "other", b"takes the window", 1, 1);
    lab.take_all(client);
    lab.publish(client, "t", b"not for me", 1, 2);
    assert_eq!(lab.take_all(client), [Got::Ack(AckKind::Puback, 2, Reason::SUCCESS)]);
}

#[test]
fn a_shared_message_reaches_the_one_member_that_may_receive_it() {
    for shard_count in [1, 3] {
        let user = |name: &str, filter| rule(Who::User(name.into()), Permission::ReadWrite, filter);
        let access = Access::compile(&[user("many", "#"), user("one", "#")]).expect("sound rules");
        let mut lab = Lab::with(shard_count, Settings::default(), access);
        let as_user = |name: &str, id: &str| ConnectRequest {
            username: Some(name.into()),
            is_proved: true,
            ..request(id)
        };
        let members: Vec<_> = (0..9)
            .map(|number| if number == 4 { "one" } else { "many" })
            .enumerate()
            .map(|(number, user)| lab.open(as_user(user, &format!("member-{number}"))))
            .collect();
        for member in &members {
            lab.subscribe(*member, "$share/g/t/#", 1);
        }
        let secret = rule(Who::User("many".into()), Permission::Deny, "t/secret");
        let access = [user("many", "#"), secret, user("one", "#")];
        let access = Access::compile(&access).expect("sound rules");
        lab.shards.iter_mut().for_each(|shard| shard.set_access(access.clone()));
        let publisher = lab.open(as_user("one", "publisher"));
        for number in 0..20 {
            lab.publish(publisher, "t/secret", b"x", 1, number + 1);
        }
        for (number, member) in members.iter().enumerate() {
            let expected = if number == 4 { 20 } else { 0 };
            assert_eq!(lab.payloads(*member).len(), expected, "member {number}");
        }
        assert_eq!(lab.total(|m| &m.dropped_group), 0);
    }
}

#[test]
fn a_shared_message_that_no_member_may_receive_does_not_go_round_for_ever() {
    for shard_count in [1, 3] {
        let rules = [
            rule(Who::Everyone, Permission::ReadWrite, "t/#"),
            rule(Who::Everyone, Permission::Deny, "t/secret"),
        ];
        let access = Access::compile(&rules).expect("sound rules");
        let mut lab = Lab::with(shard_count, Settings::default(), access);
        let members: Vec<_> =
            (0..3).map(|number| lab.open(request(&format!("member-{number}")))).collect();
        for member in &members {
            lab.subscribe(*member, "$share/g/t/#", 1);
        }
        let admin = rule(Who::User("admin".into()), Permission::ReadWrite, "#");
        let rules = [admin, rule(Who::Anonymous, Permission::Read, "t/open")];
        let access = Access::compile(&rules).expect("sound rules");
        for shard in &mut lab.shards {
            shard.set_access(access.clone());
        }
        let publisher =
            lab.open(ConnectRequest { username: Some("admin".into()), ..request("publisher") });
        lab.publish(publisher, "t/secret", b"x", 1, 1);
        lab.publish(publisher, "t/open", b"y", 1, 2);
        let received: Vec<_> = members.iter().flat_map(|member| lab.payloads(*member)).collect();
        assert_eq!(received, ["y"]);
        assert_eq!(lab.total(|m| &m.dropped_group), 1);
    }
}

#[test]
fn new_rules_hold_for_shared_subscriptions_that_are_open() {
    let rules = [rule(Who::Everyone, Permission::ReadWrite, "t")];
    let open = Access::compile(&rules).expect("sound rules");
    let mut lab = Lab::with(1, Settings::default(), open);
    let member = lab.open(request("member"));
    lab.subscribe(member, "$share/g/t", 1);
    let publisher = lab.open(request("publisher"));
    let rules = [rule(Who::Everyone, Permission::Write, "t")];
    lab.shards[0].set_access(Access::compile(&rules).expect("sound rules"));
    lab.publish(publisher, "t", b"x", 1, 1);
    assert_eq!(lab.payloads(member), Vec::<String>::new());
    assert_eq!(lab.total(|m| &m.dropped_group), 1);
}

#[test]
fn a_member_that_resends_is_not_offered_messages_in_a_circle() {
    let mut lab = Lab::new(2);
    let limits = queue(10, Overflow::DropOldest);
    let id = lab.id_on(0, "member");
    let member = lab.open(with_limits(persistent(&id), limits.clone()));
    lab.subscribe(member, "plain", 1);
    lab.subscribe(member, "$share/g/t", 1);
    let publisher_id = lab.id_on(1, "publisher");
    let publisher = lab.open(request(&publisher_id));
    lab.publish(publisher, "plain", b"in flight", 1, 1);
    lab.take_all(member);
    lab.cut(member);
    // Back with an outbox that takes nothing, so that the resend has to wait.
    let limits = Limits { outbox_bytes_max: 0, ..limits };
    let member = lab.connect_only(with_limits(persistent(&id), limits));
    lab.settle_mail();
    lab.send_only(publisher, &publish("t", b"shared", 1, 2));
    lab.settle_mail();
    lab.flush();
    assert_eq!(lab.received(member), []);
}

#[test]
fn an_overflow_while_offline_does_not_end_the_next_connection() {
    let mut lab = Lab::new(1);
    let will = Will {
        topic: "t",
        payload: b"gone",
        qos: level(1),
        retain: false,
        properties: Properties::EMPTY,
    };
    let limits = Arc::new(queue(0, Overflow::Disconnect));
    let connect = Connect { will: Some(will), clean_start: false, ..connect_packet("client") };
    let asked = || {
        let request = admit(&connect, &limits).expect("sound");
        ConnectRequest { session_expiry_secs: 100, ..request }
    };
    let first = lab.open(asked());
    lab.subscribe(first, "t", 1);
    let second = lab.open(asked());
    assert!(lab.is_closed(first));
    assert!(!lab.is_closed(second), "its own will overflowed the queue while nobody was there");
}

#[test]
fn a_will_obeys_the_largest_message_expiry() {
    let mut lab = Lab::new(1);
    let limits = Arc::new(Limits { message_expiry_max_secs: 5, ..Limits::default() });
    let will = Will {
        topic: "t",
        payload: b"gone",
        qos: level(1),
        retain: false,
        properties: Properties::EMPTY,
    };
    let connect = Connect { will: Some(will), ..connect_packet("client") };
    let watcher = lab.open(request("watcher"));
    lab.subscribe(watcher, "t", 1);
    let client = lab.open(admit(&connect, &limits).expect("sound"));
    lab.cut(client);
    assert_eq!(lab.received(watcher)[0].expiry_secs, Some(5));
}

#[test]
fn an_unsubscribe_that_is_too_deep_is_refused_without_ending_the_connection() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.unsubscribe(client, &"a/".repeat(200));
    let invalid = Reason::TOPIC_FILTER_INVALID.0;
    assert_eq!(lab.take_all(client), [Got::Unsuback(2, vec![invalid])]);
}

#[test]
fn large_retained_messages_of_qos_0_wait_for_room_in_the_outbox() {
    let mut lab = Lab::new(2);
    let publisher = lab.open(request("publisher"));
    for number in 0..250 {
        let topic = format!("t/{number}");
        lab.send(publisher, &retained(&topic, &[1; 2000], 0, 0));
    }
    let limits = Limits { outbox_bytes_max: 10_000, ..Limits::default() };
    let subscriber = lab.open(with_limits(request("subscriber"), limits));
    lab.subscribe(subscriber, "t/+", 0);
    let topics: std::collections::BTreeSet<_> =
        lab.received(subscriber).into_iter().map(|received| received.topic).collect();
    assert_eq!(topics.len(), 250);
    assert_eq!(lab.total(|m| &m.dropped_slow), 0);
}

/// Whoever subscribes to everything that is retained gets it a little at a time, so that a worker
/// comes to its other connections in between.
#[test]
fn a_page_of_retained_messages_waits_until_the_one_before_it_is_written() {
    let mut lab = Lab::new(1);
    let publisher = lab.open(request("publisher"));
    for number in 0..1000 {
        lab.send(publisher, &retained(&format!("t/{number}"), &[1; 1000], 0, 0));
    }
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
    let mut lab = Lab::new(2);
    let publisher = lab.open(request("publisher"));
    for number in 0..1000 {
        lab.send(publisher, &retained(&format!("t/{number}"), b"x", 1, 1));
    }
    let limits = Limits { in_flight_max: 10, ..Limits::default() };
    let subscriber = lab.open(with_limits(persistent("subscriber"), limits.clone()));
    lab.subscribe(subscriber, "t/+", 1);
    lab.cut(subscriber);
    let subscriber = lab.open(with_limits(persistent("subscriber"), limits));
    let mut topics = std::collections::BTreeSet::new();
    loop {
        let received = lab.received(subscriber);
        if received.is_empty() {
            break;
        }
        for publish in received {
            topics.insert(publish.topic);
            lab.ack(subscriber, AckKind::Puback, publish.packet_id);
        }
    }
    assert_eq!(topics.len(), 1000);
}

#[test]
fn mqtt_3_8_3_3_a_retained_message_of_ones_own_is_not_sent_back_with_no_local() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.send(client, &retained("t", b"mine", 0, 0));
    let options = SubscribeOptions {
        no_local: true,
        retain_handling: RetainHandling::Always,
        ..SubscribeOptions::new(level(0))
    };
    lab.subscribe_with(client, "t", options, None);
    assert_eq!(lab.received(client), []);
}

/// The bit of the protocol level by which a bridge of mosquitto announces itself.
#[test]
fn a_bridge_gets_no_echo_and_retain_flags_as_they_were_published() {
    for shard_count in [1, 3] {
        for version in [Version::V31, Version::V311] {
            let mut lab = Lab::new(shard_count);
            let publisher = lab.open(request("publisher"));
            lab.send(publisher, &retained("t/kept", b"theirs", 0, 0));
            let bridge = lab.open(ConnectRequest { version, is_bridge: true, ..request("bridge") });
            lab.send(bridge, &retained("t/own", b"own", 0, 0));
            let group = lab.subscribe(bridge, "$share/g/s", 1);
            assert_eq!(lab.subscribe(bridge, "t/#", 1), 1);
            let plain = lab.open(ConnectRequest { version, ..request("plain") });
            lab.subscribe(plain, "t/#", 0);
            lab.take_all(plain);
            lab.publish(bridge, "t/a", b"echo", 1, 1);
            lab.publish(bridge, "s", b"group", 1, 2);
            lab.publish(publisher, "t/a", b"plain", 0, 0);
            lab.send(publisher, &retained("t/a", b"live", 0, 0));
            let got: Vec<_> = lab.received(bridge);
            let of = |topic: &str| -> Vec<(String, bool)> {
                got.iter()
                    .filter(|publish| publish.topic == topic)
                    .map(|p| (String::from_utf8_lossy(&p.payload).into(), p.retain))
                    .collect()
            };
            assert_eq!(group, 1, "a shared subscription has no No Local");
            assert_eq!(of("s"), [("group".to_owned(), false)]);
            assert_eq!(of("t/kept"), [("theirs".to_owned(), true)]);
            assert_eq!(of("t/own"), []);
            assert_eq!(of("t/a"), [("plain".to_owned(), false), ("live".to_owned(), true)]);
            // Anybody else gets both as ever.
            let others: Vec<_> = lab.received(plain);
            let flags: Vec<_> = others.iter().map(|p| (p.payload.as_slice(), p.retain)).collect();
            assert_eq!(flags, [(&b"echo"[..], false), (b"plain", false), (b"live", false)]);
        }
    }
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
fn packets_before_the_last_one_are_counted() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.bytes(client, &[0xC0, 0, 0xC0, 0, 0xE0, 0]);
    assert_eq!(lab.total(|m| &m.packets_received), 3);
    assert_eq!(lab.total(|m| &m.bytes_received), 6);
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

#[test]
fn deliveries_given_up_when_the_queue_moves_on_are_reported() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    lab.cut(subscriber);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", &[1; 100], 1, 1);
    let small = ConnectRequest { packet_bytes_max: 50, ..persistent("subscriber") };
    lab.open(small);
    assert_eq!(lab.total(|m| &m.dropped_too_large), 1);
    let is_announced = |event: &Event| matches!(event, Event::Dropped { count: 1, .. });
    assert!(lab.events.iter().any(is_announced), "{:?}", lab.events);
}

#[test]
fn a_resend_that_has_become_too_large_is_counted() {
    let mut lab = Lab::new(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t", &[1; 100], 1, 1);
    lab.publish(publisher, "t", b"small", 1, 2);
    lab.cut(subscriber);
    let small = ConnectRequest { packet_bytes_max: 50, ..persistent("subscriber") };
    let subscriber = lab.open(small);
    let received = lab.received(subscriber);
    assert_eq!(received.len(), 1);
    assert!(received[0].dup && received[0].packet_id == 2);
    assert_eq!(lab.total(|m| &m.dropped_too_large), 1);
}

#[test]
fn a_session_that_expired_while_nobody_looked_is_not_resumed() {
    let mut lab = Lab::new(1);
    let expiring = || ConnectRequest { session_expiry_secs: 5, ..persistent("client") };
    let client = lab.open(expiring());
    lab.cut(client);
    // No tick comes in between, as right after a start.
    lab.now_ms += 6000;
    let client = lab.connect(expiring());
    let connack = lab.take(client);
    assert!(matches!(connack, Some(Got::Connack { session_present: false, .. })), "{connack:?}");
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
fn mqtt_3_1_0_2_a_second_connect_is_answered_with_a_disconnect() {
    let v311 = &[0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 0][..];
    let v5 = &[0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 0][..];
    for (version, connect) in [(Version::V311, v311), (Version::V5, v5)] {
        let mut lab = Lab::new(1);
        let client = lab.open(ConnectRequest { version, ..request("client") });
        lab.bytes(client, connect);
        assert!(lab.is_closed(client));
        let answer = (version == Version::V5).then_some(Got::Disconnect(Reason::PROTOCOL_ERROR));
        assert_eq!(lab.take(client), answer);
    }
}

/// A second CONNECT, of a version that there is not.
#[test]
fn a_breach_is_reported_by_a_code_that_a_disconnect_may_have() {
    let mut lab = Lab::new(1);
    let client = lab.open(request("client"));
    lab.bytes(client, &[0x10, 0x0D, 0, 4, b'M', b'Q', b'T', b'T', 9, 2, 0, 0, 0, 0, 0]);
    assert!(lab.is_closed(client));
    assert_eq!(lab.take(client), Some(Got::Disconnect(Reason::PROTOCOL_ERROR)));
}
