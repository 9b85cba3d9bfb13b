//! Subscriptions whose options change while messages wait for them: what was accepted is delivered,
//! by the options of now (MQTT-3.8.4-4).

use codec::{AckKind, FilterBuf, Packet, Property, PropertyBuf, Subscribe, SubscribeOptions};
use rig::{
    Conn, Got, Lab, Received, level, persistent, publish_numbers, queue, request, texts,
    with_limits,
};
use session::Overflow;
use storage::testing::Crash;

/// A client of a window of one, that acknowledges when it is asked to.
struct Subscriber {
    conn: Conn,
    unread: Vec<Received>,
}

impl Subscriber {
    fn open(lab: &mut Lab) -> Self {
        let limits = queue(1000, Overflow::Reject);
        let conn = lab.open(with_limits(persistent("subscriber"), limits));
        Self { conn, unread: Vec::new() }
    }

    /// Subscribes, and acknowledges nothing; returns what SUBACK says.
    fn ask(&mut self, lab: &mut Lab, filter: &str, qos: u8, identifier: Option<u32>) -> u8 {
        let (mut filters, mut properties) = (FilterBuf::new(), PropertyBuf::new());
        filters.push(filter, SubscribeOptions::new(level(qos)));
        if let Some(identifier) = identifier {
            properties.push(Property::SubscriptionId(identifier));
        }
        let (properties, filters) = (properties.as_properties(), filters.as_filters());
        let packet = Packet::Subscribe(Subscribe { packet_id: 1, properties, filters });
        lab.send(self.conn, &packet);
        let mut answer = None;
        for got in lab.take_all(self.conn) {
            match got {
                Got::Publish(received) => self.unread.push(received),
                Got::Suback(_, reasons) => answer = reasons.first().copied(),
                other => panic!("{other:?}"),
            }
        }
        answer.expect("a SUBACK")
    }

    /// Reads and acknowledges until nothing comes any more.
    fn read_all(&mut self, lab: &mut Lab) -> Vec<Received> {
        let mut read = Vec::new();
        loop {
            let mut received = std::mem::take(&mut self.unread);
            received.extend(lab.received(self.conn));
            if received.is_empty() {
                return read;
            }
            for publish in received {
                match publish.qos {
                    0 => {}
                    1 => lab.ack(self.conn, AckKind::Puback, publish.packet_id),
                    _ => {
                        lab.ack(self.conn, AckKind::Pubrec, publish.packet_id);
                        lab.ack(self.conn, AckKind::Pubcomp, publish.packet_id);
                    }
                }
                read.push(publish);
            }
        }
    }

    fn read_payloads(&mut self, lab: &mut Lab) -> Vec<String> {
        let text = |publish: Received| String::from_utf8(publish.payload).expect("text");
        self.read_all(lab).into_iter().map(text).collect()
    }
}

fn publish_some(lab: &mut Lab, numbers: std::ops::Range<u32>) {
    let publisher = lab.open(request("publisher"));
    publish_numbers(lab, publisher, "t/a", numbers);
    lab.cut(publisher);
}

/// One is in flight, and all others wait.
fn with_backlog(lab: &mut Lab, filter: &str) -> Subscriber {
    let mut subscriber = Subscriber::open(lab);
    subscriber.ask(lab, filter, 1, None);
    publish_some(lab, 0..12);
    subscriber
}

/// The journals lose what was not committed, and the client comes back.
fn crash(lab: &mut Lab) -> Subscriber {
    lab.crash(Crash::Power);
    Subscriber::open(lab)
}

#[test]
fn mqtt_3_8_4_4_a_subscription_at_qos_0_loses_nothing_that_waits_for_the_one_it_replaces() {
    for mut lab in [Lab::new(2), Lab::durable(2)] {
        let mut subscriber = with_backlog(&mut lab, "t/#");
        assert_eq!(subscriber.ask(&mut lab, "t/#", 0, None), 0);
        let read = subscriber.read_all(&mut lab);
        assert_eq!(read.len(), 12, "{read:?}");
        assert!(read.iter().all(|publish| publish.qos == 1), "not to be lost with a connection");
        publish_some(&mut lab, 12..13);
        assert_eq!(subscriber.read_all(&mut lab)[0].qos, 0);
    }
}

#[test]
fn mqtt_3_8_4_4_a_session_that_was_away_is_owed_what_came_at_qos_1_and_nothing_else() {
    for is_crash in [false, true] {
        let mut lab = Lab::durable(2);
        let subscriber = with_backlog(&mut lab, "t/#");
        lab.cut(subscriber.conn);
        let mut subscriber = Subscriber::open(&mut lab);
        subscriber.ask(&mut lab, "t/#", 0, None);
        // The journal keeps these for somebody else.
        let other = lab.open(persistent("other"));
        lab.subscribe(other, "t/#", 1);
        publish_some(&mut lab, 100..103);
        subscriber.ask(&mut lab, "t/#", 1, None);
        publish_some(&mut lab, 12..15);
        if is_crash {
            subscriber = crash(&mut lab);
        }
        let read = subscriber.read_all(&mut lab);
        let stored = read.into_iter().filter(|publish| publish.qos > 0);
        let payloads: Vec<String> =
            stored.map(|publish| String::from_utf8(publish.payload).unwrap()).collect();
        assert_eq!(payloads, texts(0..15), "a crash: {is_crash}");
    }
}

#[test]
fn what_waits_comes_with_qos_and_identifiers_of_the_subscriptions_of_now() {
    for is_crash in [false, true] {
        let mut lab = Lab::durable(1);
        let mut subscriber = Subscriber::open(&mut lab);
        subscriber.ask(&mut lab, "t/#", 1, Some(1));
        let publisher = lab.open(request("publisher"));
        for number in 1..4 {
            lab.publish(publisher, "t/a", b"waits", 2, number);
        }
        subscriber.ask(&mut lab, "t/#", 2, Some(2));
        // A filter that is new overlaps.
        subscriber.ask(&mut lab, "t/+", 0, Some(3));
        lab.publish(publisher, "t/a", b"comes", 2, 4);
        if is_crash {
            subscriber = crash(&mut lab);
        }
        let read = subscriber.read_all(&mut lab);
        let seen: Vec<_> =
            read.iter().map(|publish| (publish.qos, &publish.identifiers[..])).collect();
        // The first had begun; a crash finds its packet id.
        let first = if is_crash { (1, &[2, 3][..]) } else { (1, &[1][..]) };
        assert_eq!(seen, [first, (2, &[2, 3]), (2, &[2, 3]), (2, &[2, 3])], "{is_crash}");
    }
}

#[test]
fn changes_of_options_survive_that_the_journal_is_turned_over() {
    let mut lab = Lab::durable(1);
    let mut subscriber = with_backlog(&mut lab, "t/#");
    subscriber.ask(&mut lab, "t/#", 0, None);
    lab.cut(subscriber.conn);
    lab.turn_the_journal_over();
    let mut subscriber = crash(&mut lab);
    assert_eq!(subscriber.read_payloads(&mut lab), texts(0..12));
    // All is acknowledged: what is written of the changes goes with it.
    lab.cut(subscriber.conn);
    lab.turn_the_journal_over();
    let mut subscriber = crash(&mut lab);
    assert_eq!(subscriber.read_payloads(&mut lab), texts(0..0));
}

#[test]
fn what_is_unsubscribed_takes_with_it_how_it_was_before() {
    for is_crash in [false, true] {
        let mut lab = Lab::durable(1);
        let mut subscriber = with_backlog(&mut lab, "t/#");
        subscriber.ask(&mut lab, "t/#", 0, None);
        subscriber.unread.extend(lab.received(subscriber.conn));
        lab.unsubscribe(subscriber.conn, "t/#");
        lab.take_all(subscriber.conn);
        subscriber.ask(&mut lab, "t/#", 1, None);
        if is_crash {
            subscriber = crash(&mut lab);
        }
        publish_some(&mut lab, 12..14);
        let read = subscriber.read_payloads(&mut lab);
        // What was in flight is completed.
        assert_eq!(read, ["0", "12", "13"], "a crash: {is_crash}");
    }
}

#[test]
fn a_filter_changes_as_often_as_it_likes_while_messages_wait() {
    for is_crash in [false, true] {
        let mut lab = Lab::durable(1);
        let mut subscriber = with_backlog(&mut lab, "t/#");
        // The journal keeps what comes at QoS 0 for somebody else.
        let other = lab.open(persistent("other"));
        lab.subscribe(other, "t/#", 1);
        let mut owed = texts(0..12);
        for number in 12..52 {
            let qos = (number % 3) as u8;
            assert_eq!(subscriber.ask(&mut lab, "t/#", qos, None), qos);
            publish_some(&mut lab, number..number + 1);
            if qos > 0 {
                owed.extend(texts(number..number + 1));
            }
        }
        if is_crash {
            subscriber = crash(&mut lab);
        }
        let read = subscriber.read_all(&mut lab);
        let stored = read.into_iter().filter(|publish| publish.qos > 0);
        let payloads: Vec<String> =
            stored.map(|publish| String::from_utf8(publish.payload).expect("text")).collect();
        assert_eq!(payloads, owed, "a crash: {is_crash}");
    }
}

#[test]
fn mqtt_3_8_4_4_what_is_due_to_a_subscription_of_qos_0_survives_crashes_and_later_subscriptions() {
    let mut lab = Lab::durable(1);
    let mut subscriber = with_backlog(&mut lab, "t/#");
    subscriber.ask(&mut lab, "t/#", 0, Some(1));
    lab.cut(subscriber.conn);
    let mut subscriber = crash(&mut lab);
    assert_eq!(subscriber.ask(&mut lab, "t/#", 0, Some(2)), 0);
    let mut subscriber = crash(&mut lab);
    assert_eq!(subscriber.read_payloads(&mut lab), texts(0..12));
    // Nothing is due any more: it is a subscription like any other of QoS 0.
    assert_eq!(subscriber.ask(&mut lab, "t/#", 0, None), 0);
    lab.cut(subscriber.conn);
    publish_some(&mut lab, 12..13);
    let mut subscriber = crash(&mut lab);
    assert_eq!(subscriber.read_payloads(&mut lab), texts(0..0));
}

#[test]
fn mqtt_3_8_4_4_a_group_whose_only_member_asks_for_qos_0_gives_out_what_it_keeps() {
    for mut lab in [Lab::new(2), Lab::durable(2)] {
        let mut subscriber = with_backlog(&mut lab, "$share/g/t/#");
        subscriber.ask(&mut lab, "$share/g/t/#", 0, None);
        let read = subscriber.read_payloads(&mut lab);
        assert_eq!(read.len(), 12, "{read:?}");
    }
}
