//! Packet ids of QoS 2 deliveries to kept sessions: the client has them until a PUBREL, so the
//! broker may not forget them.

mod lab;

use broker::ConnectRequest;
use codec::QoS;
use lab::{Lab, persistent, request};
use storage::Status;
use storage::testing::Crash;

fn will(topic: &str) -> session::Will {
    session::Will {
        topic: topic.into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos: QoS::ExactlyOnce,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }
}

#[test]
fn mqtt_4_4_0_1_what_is_in_flight_is_sent_again_at_its_qos_whatever_is_subscribed_now() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "t/+", 2);
    lab.subscribe(subscriber, "t/#", 1);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "t/a", b"1", 2, 1);
    let first = lab.received(subscriber);
    assert_eq!((first[0].qos, first[0].packet_id), (2, 1));
    lab.unsubscribe(subscriber, "t/+");
    lab.crash(Crash::Power);
    let subscriber = lab.open(persistent("subscriber"));
    let again = lab.received(subscriber);
    assert_eq!((again[0].qos, again[0].packet_id, again[0].dup), (2, 1, true));
}

#[test]
fn no_packet_id_of_qos_2_is_used_that_no_log_can_keep() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.subscribe(subscriber, "will/#", 2);
    let dying = lab.open(ConnectRequest { will: Some(Box::new(will("will/a"))), ..request("c") });
    lab.disks[0].faults.fail_next_sync = true;
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "will/b", b"1", 1, 1);
    lab.take_all(subscriber);
    assert!(matches!(lab.shards[0].log_status(), Some(Status::Poisoned(_))));
    lab.cut(dying);
    assert_eq!(lab.take_all(subscriber), []);
    assert_eq!(lab.total(|m| &m.dropped_unlogged), 1);
}
