//! Wills of kept sessions, where no world of the simulator looks: one topic with what their
//! clients publish, a journal without room, and refusals.

use broker::{ConnectRequest, Settings};
use codec::{AckKind, Disconnect, Packet, QoS, Reason};
use rig::{
    Conn, Got, Lab, persistent, queue, read_all, request, retained, will, with_limits, with_will,
};
use session::{Overflow, Will};
use storage::testing::Crash;

/// Two shards, and a watcher of wills on one of them that is away.
fn watched(shard: u16, settings: Settings) -> (Lab, String) {
    let mut lab = Lab::durable_with(2, settings);
    let watcher = lab.id_on(shard, "watcher");
    lab.leave(&watcher, "will/#", 2);
    (lab, watcher)
}

/// What a watcher has got, with all that a few seconds bring.
fn seen_by(lab: &mut Lab, watcher: &str) -> Vec<String> {
    lab.pass_secs(3);
    let (conn, _) = lab.resume(watcher);
    lab.payloads(conn)
}

/// The connection breaks, and the disks of some shards do nothing any more.
pub(crate) fn cut_only(lab: &mut Lab, conn: Conn) {
    let (shard, slot) = lab.place(conn);
    lab.shards[shard].on_closed(slot, conn, lab.now_ms);
}

#[test]
fn a_will_waits_in_a_journal_without_even_its_reserve() {
    let (mut lab, watcher) = watched(0, Settings::default());
    let ids: Vec<String> = (0..12).map(|who| lab.id_on(0, &format!("dying-{who}"))).collect();
    let large = || Will { payload: [b'w'; 5_000].into(), ..will("will/a", QoS::AtLeastOnce) };
    let conns: Vec<Conn> =
        ids.iter().map(|id| lab.open(with_will(persistent(id), large()))).collect();
    fill(&mut lab, 0);
    let (watching, _) = lab.resume(&watcher);
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
    lab.leave(&lab.id_on(shard, "away"), "fill", 1);
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
    let (mut lab, watcher) = watched(1, Settings { rejects: true, ..Settings::default() });
    let full = with_limits(persistent(&lab.id_on(1, "full")), queue(1, Overflow::Reject));
    let conn = lab.open(full);
    lab.subscribe(conn, "will/#", 1);
    lab.cut(conn);
    for name in ["one", "two", "three"] {
        let id = lab.id_on(0, name);
        let conn = lab.open(with_will(persistent(&id), will("will/a", QoS::AtLeastOnce)));
        lab.cut(conn);
    }
    assert_eq!(seen_by(&mut lab, &watcher), ["gone"; 3]);
}

#[test]
fn a_connect_that_is_refused_does_not_take_the_will_away() {
    let (mut lab, watcher) = watched(1, Settings::default());
    let will = Will { delay_secs: 1, ..will("will/a", QoS::AtLeastOnce) };
    let request = with_will(persistent(&lab.id_on(0, "dying")), will);
    let conn = lab.open(request.clone());
    lab.cut(conn);
    lab.disks[0].faults.fail_next_write = true;
    lab.open(persistent(&lab.id_on(0, "other")));
    let refused = lab.connect(request);
    assert_eq!(lab.connack(refused), Some(Err(Reason::SERVER_UNAVAILABLE)));
    lab.pass_secs(3);
    lab.crash(Crash::Kill);
    assert_eq!(seen_by(&mut lab, &watcher).first().map(String::as_str), Some("gone"));
}

/// A client with a will whose session ends with its connection.
fn clean(lab: &Lab, name: &str) -> ConnectRequest {
    with_will(request(&lab.id_on(0, name)), will("will/a", QoS::AtLeastOnce))
}

#[test]
fn the_will_of_a_clean_session_outlives_each_end_of_the_broker() {
    let stop = |lab: &mut Lab| {
        let now_ms = lab.now_ms;
        lab.shards.iter_mut().for_each(|shard| shard.on_shutdown(now_ms));
        lab.settle();
        lab.restart();
    };
    let ends: [fn(&mut Lab); 3] =
        [|lab| lab.crash(Crash::Kill), |lab| lab.crash(Crash::Power), stop];
    for end in ends {
        let (mut lab, watcher) = watched(1, Settings::default());
        lab.open(clean(&lab, "lost"));
        lab.open(clean(&lab, "back"));
        let gone = lab.open(clean(&lab, "gone"));
        lab.cut(gone);
        let parted = lab.open(clean(&lab, "parted"));
        lab.send(parted, &Packet::Disconnect(Disconnect::new(Reason::NORMAL_DISCONNECTION)));
        end(&mut lab);
        let seen = |lab: &mut Lab| {
            lab.pass_secs(3);
            let (conn, _) = lab.resume(&watcher);
            read_all(lab, conn).len()
        };
        assert_eq!(seen(&mut lab), 1, "whose connection broke before");
        lab.open(clean(&lab, "back"));
        lab.pass_secs(2);
        assert_eq!(seen(&mut lab), 0, "within the grace");
        lab.pass_secs(4);
        assert_eq!(seen(&mut lab), 1, "who did not come back");
        end(&mut lab);
        lab.pass_secs(12);
        assert_eq!(seen(&mut lab), 1, "who was back, and is lost now");
    }
}

/// Whoever has the CONNACK has the will.
#[test]
fn the_connack_of_a_clean_session_waits_for_its_will() {
    let mut lab = Lab::durable(1);
    lab.disks_stand_still = true;
    let without = lab.connect(request("without"));
    assert_eq!(lab.connack(without), Some(Ok(false)));
    let conn = lab.connect(clean(&lab, "with"));
    assert_eq!(lab.connack(conn), None);
    lab.let_disks_work();
    assert_eq!(lab.connack(conn), Some(Ok(false)));
}

/// A journal that is emptied and copied has it as well.
#[test]
fn the_will_of_a_clean_session_is_copied_with_its_segment() {
    let (mut lab, watcher) = watched(1, Settings::default());
    lab.open(clean(&lab, "lost"));
    let publisher = lab.open(request(&lab.id_on(0, "publisher")));
    let topic = lab.topic_on(0, "busy");
    for number in 0..2_000_u32 {
        lab.publish(publisher, &topic, &[number as u8; 500], 1, 1);
        lab.take_all(publisher);
    }
    lab.crash(Crash::Power);
    lab.pass_secs(12);
    assert_eq!(seen_by(&mut lab, &watcher), ["gone"]);
}

/// There is no room for it: the client is let in, and the host hears of it.
#[test]
fn a_clean_session_is_open_though_its_will_finds_no_room() {
    let (mut lab, _) = watched(1, Settings::default());
    fill(&mut lab, 0);
    let conn = lab.connect(clean(&lab, "with"));
    assert_eq!(lab.connack(conn), Some(Ok(false)));
    make_room(&mut lab, 0);
}

#[test]
fn what_a_client_publishes_when_it_is_back_does_not_come_before_its_will() {
    for crashes in [false, true] {
        let mut lab = Lab::durable(2);
        let topic = lab.topic_on(1, "will");
        let id = lab.id_on(0, "dying");
        let will = Will { retain: true, ..will(&topic, QoS::AtLeastOnce) };
        let conn = lab.open(with_will(persistent(&id), will));
        if crashes {
            cut_only(&mut lab, conn);
            lab.crash(Crash::Power);
        }
        lab.disks_stand_still = true;
        let conn = lab.connect(persistent(&id));
        lab.send(conn, &retained(&topic, b"back", 1, 1));
        lab.let_disks_work();
        lab.pass_secs(2);
        assert_eq!(lab.retained_on(&topic), ["back"], "crashes: {crashes}");
    }
}
