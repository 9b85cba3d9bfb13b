//! Wills of kept sessions: never lost between the journal and their recipients.

use broker::{ConnectRequest, Settings};
use codec::{AckKind, Disconnect, Packet, Properties, QoS, Reason};
use rig::{Conn, Got, Lab, persistent, read_all, request, retained};
use storage::testing::Crash;

/// A kept session with a will.
pub(crate) fn dying(id: &str, will: session::Will) -> ConnectRequest {
    ConnectRequest { will: Some(Box::new(will)), ..persistent(id) }
}

pub(crate) fn will(topic: &str, qos: QoS) -> session::Will {
    session::Will {
        topic: topic.into(),
        properties: [].into(),
        payload: b"gone".as_slice().into(),
        qos,
        retain: false,
        delay_secs: 0,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    }
}

/// A kept session that is subscribed and away.
fn watch(lab: &mut Lab, id: &str) {
    let conn = lab.open(persistent(id));
    lab.subscribe(conn, "will/#", 2);
    lab.cut(conn);
}

fn come_back(lab: &mut Lab, id: &str) -> Conn {
    let conn = lab.connect(persistent(id));
    match lab.take(conn) {
        Some(Got::Connack { session_present: true, reason: Reason::SUCCESS, .. }) => conn,
        other => panic!("expected a CONNACK, got {other:?}"),
    }
}

/// What a watcher has got, with all that a few seconds bring.
fn seen_by(lab: &mut Lab, id: &str) -> Vec<String> {
    lab.pass_secs(3);
    let conn = come_back(lab, id);
    lab.payloads(conn)
}

/// The connection breaks, and the disks of some shards do nothing any more.
pub(crate) fn cut_only(lab: &mut Lab, conn: Conn) {
    let (shard, slot) = lab.place(conn);
    lab.shards[shard].on_closed(slot, conn, lab.now_ms);
}

/// Two shards, a watcher on one, somebody with a will on the other.
fn two_shards(qos: QoS) -> (Lab, String, Conn) {
    let mut lab = Lab::durable(2);
    let watcher = lab.id_on(1, "watcher");
    watch(&mut lab, &watcher);
    let id = lab.id_on(0, "dying");
    let conn = lab.open(dying(&id, will("will/a", qos)));
    (lab, watcher, conn)
}

#[test]
fn a_will_outlives_a_crash_before_others_have_it() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut lab, watcher, conn) = two_shards(qos);
        cut_only(&mut lab, conn);
        // Its own shard has written everything; the mail to the other one is lost.
        lab.work_disks();
        lab.work_disks();
        lab.crash(Crash::Power);
        assert_eq!(seen_by(&mut lab, &watcher), ["gone"], "{qos:?}");
    }
}

#[test]
fn a_will_outlives_a_crash_before_anything_is_written() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut lab, watcher, conn) = two_shards(qos);
        cut_only(&mut lab, conn);
        lab.crash(Crash::Power);
        assert_eq!(seen_by(&mut lab, &watcher), ["gone"], "{qos:?}");
    }
}

#[test]
fn a_will_that_all_have_is_not_published_again() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let (mut lab, watcher, conn) = two_shards(qos);
        lab.cut(conn);
        lab.pass_secs(2);
        for _ in 0..3 {
            lab.crash(Crash::Power);
            lab.pass_secs(2);
        }
        assert_eq!(seen_by(&mut lab, &watcher), ["gone"], "{qos:?}");
    }
}

#[test]
fn a_retained_will_outlives_a_crash_and_replaces_nothing_newer() {
    let mut lab = Lab::durable(2);
    let topic = lab.topic_on(1, "will");
    let id = lab.id_on(0, "dying");
    let asking = || dying(&id, session::Will { retain: true, ..will(&topic, QoS::AtMostOnce) });
    let conn = lab.open(asking());
    cut_only(&mut lab, conn);
    lab.work_disks();
    lab.work_disks();
    lab.crash(Crash::Power);
    lab.pass_secs(2);
    let reader = lab.open(request("reader"));
    lab.subscribe(reader, &topic, 1);
    assert_eq!(lab.payloads(reader), ["gone"]);

    let conn = lab.open(ConnectRequest { will: None, ..asking() });
    lab.send(conn, &retained(&topic, b"back", 1, 1));
    lab.crash(Crash::Power);
    lab.pass_secs(2);
    let reader = lab.open(request("reader"));
    lab.subscribe(reader, &topic, 1);
    assert_eq!(lab.payloads(reader), ["back"]);
}

#[test]
fn what_a_client_publishes_when_it_is_back_does_not_come_before_its_will() {
    let mut lab = Lab::durable(2);
    let topic = lab.topic_on(1, "will");
    let id = lab.id_on(0, "dying");
    lab.open(dying(&id, session::Will { retain: true, ..will(&topic, QoS::AtLeastOnce) }));
    lab.disks_stand_still = true;
    let conn = lab.connect(persistent(&id));
    lab.send(conn, &retained(&topic, b"back", 1, 1));
    lab.disks_stand_still = false;
    lab.settle();
    let reader = lab.open(request("reader"));
    lab.subscribe(reader, &topic, 1);
    assert_eq!(lab.payloads(reader), ["back"]);
}

#[test]
fn a_will_that_was_due_before_the_crash_is_published_though_its_client_is_back_at_once() {
    let (mut lab, watcher, conn) = two_shards(QoS::AtLeastOnce);
    let id = lab.id_on(0, "dying");
    cut_only(&mut lab, conn);
    lab.crash(Crash::Power);
    lab.open(persistent(&id));
    assert_eq!(seen_by(&mut lab, &watcher), ["gone"]);
}

#[test]
fn a_will_whose_session_ends_with_it_outlives_a_crash() {
    let (mut lab, watcher, _) = two_shards(QoS::AtLeastOnce);
    let id = lab.id_on(0, "dying");
    // A clean start ends the session, and its end is in the journal before the will is anywhere
    // else.
    lab.connect_only(request(&id));
    lab.work_disks();
    lab.work_disks();
    lab.crash(Crash::Power);
    assert_eq!(seen_by(&mut lab, &watcher), ["gone"]);
}

#[test]
fn mqtt_3_1_2_10_a_will_that_was_withdrawn_is_not_published_after_a_crash() {
    let (mut lab, watcher, conn) = two_shards(QoS::AtLeastOnce);
    let reason = Reason::NORMAL_DISCONNECTION;
    lab.send(conn, &Packet::Disconnect(Disconnect { reason, properties: Properties::EMPTY }));
    lab.crash(Crash::Power);
    assert!(seen_by(&mut lab, &watcher).is_empty());
}

#[test]
fn a_will_waits_where_a_disk_is_full() {
    let mut lab = Lab::durable(2);
    let watcher = lab.id_on(1, "watcher");
    watch(&mut lab, &watcher);
    let id = lab.id_on(0, "dying");
    let conn = lab.open(dying(&id, will("will/a", QoS::AtLeastOnce)));
    fill(&mut lab, 1);
    lab.cut(conn);
    lab.pass_secs(2);
    make_room(&mut lab, 1);
    assert_eq!(seen_by(&mut lab, &watcher).last().map(String::as_str), Some("gone"));
}

#[test]
fn a_will_waits_in_a_journal_without_even_its_reserve() {
    let mut lab = Lab::durable(2);
    let watcher = lab.id_on(0, "watcher");
    watch(&mut lab, &watcher);
    let ids: Vec<String> = (0..12).map(|who| lab.id_on(0, &format!("dying-{who}"))).collect();
    let will =
        || session::Will { payload: [b'w'; 5_000].into(), ..will("will/a", QoS::AtLeastOnce) };
    let conns: Vec<Conn> = ids.iter().map(|id| lab.open(dying(id, will()))).collect();
    fill(&mut lab, 0);
    let watching = come_back(&mut lab, &watcher);
    conns[1..].iter().for_each(|conn| cut_only(&mut lab, *conn));
    // The end of its session is not written down either before its will is.
    lab.connect_only(request(&ids[0]));
    lab.flush();
    let received = lab.received(watching);
    let before = received.len();
    received.iter().for_each(|r| lab.ack(watching, AckKind::Puback, r.packet_id));
    assert!(before < ids.len(), "the reserve of this log has room for them all");
    make_room(&mut lab, 0);
    let after = read_all(&mut lab, watching).len();
    assert_eq!(before + after, ids.len());
}

/// Publishes until the journal of a shard takes no more.
pub(crate) fn fill(lab: &mut Lab, shard: u16) {
    let away = lab.id_on(shard, "away");
    let conn = lab.open(persistent(&away));
    lab.subscribe(conn, "fill", 1);
    lab.cut(conn);
    let disk = &mut lab.disks[usize::from(shard)];
    disk.faults.capacity_bytes = disk.files().iter().map(|file| file.bytes).sum();
    let publisher = lab.open(request("publisher"));
    loop {
        lab.publish(publisher, "fill", &[b'x'; 2_000], 1, 1);
        match lab.take(publisher) {
            Some(Got::Ack(_, _, Reason::SUCCESS)) => {}
            Some(Got::Ack(_, _, Reason::QUOTA_EXCEEDED)) => return,
            other => panic!("expected a PUBACK, got {other:?}"),
        }
    }
}

pub(crate) fn make_room(lab: &mut Lab, shard: u16) {
    lab.disks[usize::from(shard)].faults.capacity_bytes = u64::MAX;
    lab.pass_secs(30);
}

#[test]
fn a_will_is_refused_by_no_full_queue() {
    let settings = Settings { rejects: true, ..Settings::default() };
    let mut lab = Lab::durable_with(2, settings);
    let limits = rig::queue(1, session::Overflow::Reject);
    let full = lab.id_on(1, "full");
    let conn = lab.open(rig::with_limits(persistent(&full), limits));
    lab.subscribe(conn, "will/#", 1);
    lab.cut(conn);
    let watcher = lab.id_on(1, "watcher");
    watch(&mut lab, &watcher);
    for name in ["one", "two", "three"] {
        let id = lab.id_on(0, name);
        let conn = lab.open(dying(&id, will("will/a", QoS::AtLeastOnce)));
        lab.cut(conn);
    }
    assert_eq!(seen_by(&mut lab, &watcher), ["gone"; 3]);
}

#[test]
fn a_connect_that_is_refused_does_not_take_the_will_away() {
    let mut lab = Lab::durable(2);
    let watcher = lab.id_on(1, "watcher");
    watch(&mut lab, &watcher);
    let id = lab.id_on(0, "dying");
    let delayed =
        || dying(&id, session::Will { delay_secs: 1, ..will("will/a", QoS::AtLeastOnce) });
    let conn = lab.open(delayed());
    lab.cut(conn);
    lab.disks[0].faults.fail_next_write = true;
    lab.open(persistent(&lab.id_on(0, "other")));
    lab.settle();
    let refused = lab.connect(delayed());
    let connack = lab.take(refused);
    assert!(
        matches!(connack, Some(Got::Connack { reason: Reason::SERVER_UNAVAILABLE, .. })),
        "{connack:?}"
    );
    lab.pass_secs(3);
    lab.crash(Crash::Kill);
    assert_eq!(seen_by(&mut lab, &watcher).first().map(String::as_str), Some("gone"));
}
