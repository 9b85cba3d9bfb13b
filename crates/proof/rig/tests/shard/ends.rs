//! Ends of kept sessions: who has the client id next is told nothing before the journal has them.

use broker::{ConnectRequest, Durability, Limits, Name};
use codec::{AckKind, Disconnect, Packet, Reason, Version};
use rig::{Conn, Got, Lab, of_version, persistent, publish, request};
use storage::Status;
use storage::testing::Crash;

/// A session of this id is kept, and has no connection.
fn with_kept(client_id: &str) -> Lab {
    let mut lab = Lab::durable(1);
    let conn = lab.open(persistent(client_id));
    lab.cut(conn);
    lab
}

fn anew(client_id: &str) -> ConnectRequest {
    ConnectRequest { clean_start: true, ..persistent(client_id) }
}

/// The session that the client is told it has; none if it is told nothing.
fn is_present(lab: &mut Lab, conn: Conn) -> Option<bool> {
    lab.take(conn).map(|got| match got {
        Got::Connack { session_present, reason: Reason::SUCCESS, .. } => session_present,
        other => panic!("expected a CONNACK, got {other:?}"),
    })
}

fn let_disks_work(lab: &mut Lab) {
    lab.disks_stand_still = false;
    lab.settle();
}

#[test]
fn mqtt_3_1_2_4_a_clean_start_is_answered_when_the_journal_has_the_end_of_the_old_session() {
    for next in [anew("client"), request("client"), of_version(Version::V311, "client")] {
        let mut lab = with_kept("client");
        lab.disks_stand_still = true;
        let conn = lab.connect(next);
        assert_eq!(is_present(&mut lab, conn), None);
        let_disks_work(&mut lab);
        assert_eq!(is_present(&mut lab, conn), Some(false));
        lab.crash(Crash::Power);
        let conn = lab.open(request("client"));
        assert_eq!(lab.take_all(conn), []);
    }
}

#[test]
fn a_clean_start_never_reports_the_session_it_ended() {
    let mut lab = Lab::durable(1);
    let sender = lab.open(persistent("sender"));
    let receiver = lab.open(persistent("receiver"));
    lab.subscribe(receiver, "t", 2);
    lab.publish(sender, "t", b"of the old session", 2, 1);
    lab.cut(sender);
    lab.disks_stand_still = true;
    let sender = lab.connect(anew("sender"));
    let was_answered = is_present(&mut lab, sender).is_some();
    lab.disks_stand_still = false;
    lab.crash(Crash::Power);
    let sender = lab.connect(persistent("sender"));
    let is_present = is_present(&mut lab, sender).expect("an answer");
    assert!(!(was_answered && is_present), "it takes the session for its new one");
}

#[test]
fn it_waits_also_when_it_comes_back_during_the_commit() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    for _ in 0..3 {
        let conn = lab.connect(anew("client"));
        assert_eq!(is_present(&mut lab, conn), None);
        lab.cut(conn);
        assert_eq!(lab.take_all(conn), []);
    }
    let conn = lab.connect(persistent("client"));
    assert_eq!(is_present(&mut lab, conn), None);
    let_disks_work(&mut lab);
    assert_eq!(is_present(&mut lab, conn), Some(true));
}

#[test]
fn it_waits_however_the_session_ended() {
    let by_disconnect = |lab: &mut Lab| {
        let conn = lab.open(persistent("client"));
        let mut properties = codec::PropertyBuf::new();
        properties.push(codec::Property::SessionExpirySecs(0));
        lab.disks_stand_still = true;
        let properties = properties.as_properties();
        let reason = Reason::NORMAL_DISCONNECTION;
        lab.send(conn, &Packet::Disconnect(Disconnect { reason, properties }));
    };
    let by_expiry = |lab: &mut Lab| {
        let conn = lab.open(ConnectRequest { session_expiry_secs: 2, ..persistent("client") });
        lab.cut(conn);
        lab.disks_stand_still = true;
        lab.pass_secs(4);
    };
    let endings: [&dyn Fn(&mut Lab); 2] = [&by_disconnect, &by_expiry];
    for end in endings {
        let mut lab = Lab::durable(1);
        end(&mut lab);
        assert_eq!(lab.shards[0].session_count(), 0);
        let conn = lab.connect(request("client"));
        assert_eq!(is_present(&mut lab, conn), None);
        let_disks_work(&mut lab);
        assert_eq!(is_present(&mut lab, conn), Some(false));
    }
}

#[test]
fn nobody_else_waits_for_the_end_of_a_session() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    let waiting = lab.connect(anew("client"));
    let other = lab.connect(request("other"));
    assert_eq!(is_present(&mut lab, other), Some(false));
    assert_eq!(is_present(&mut lab, waiting), None);
}

#[test]
fn what_it_sends_at_once_is_handled_and_answered_behind_the_connack() {
    let mut lab = with_kept("client");
    let subscriber = lab.open(request("subscriber"));
    lab.subscribe(subscriber, "t", 0);
    lab.disks_stand_still = true;
    let conn = lab.connect(request("client"));
    lab.send(conn, &Packet::Pingreq);
    lab.send(conn, &publish("t", b"1", 1, 7));
    assert_eq!(lab.payloads(subscriber), ["1"]);
    assert_eq!(lab.take_all(conn), []);
    let_disks_work(&mut lab);
    let got = lab.take_all(conn);
    let puback = Got::Ack(AckKind::Puback, 7, Reason::SUCCESS);
    assert!(matches!(got[0], Got::Connack { reason: Reason::SUCCESS, .. }), "{got:?}");
    assert_eq!(got[1..], [Got::Pingresp, puback]);
}

#[test]
fn mqtt_3_14_0_1_who_waits_for_its_connack_is_not_sent_a_disconnect() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    let first = lab.connect(anew("client"));
    let second = lab.connect(anew("client"));
    let got = lab.take_all(first);
    let is_refused = |got: &[Got]| {
        matches!(got, [Got::Connack { session_present: false, reason, .. }]
            if *reason == Reason::SERVER_UNAVAILABLE)
    };
    assert!(lab.is_closed(first) && is_refused(&got), "{got:?}");
    lab.shards[0].on_kick(Name::first("client"), lab.now_ms);
    lab.settle();
    let got = lab.take_all(second);
    assert!(lab.is_closed(second) && is_refused(&got), "{got:?}");
}

#[test]
fn a_journal_that_fails_refuses_those_who_wait_for_it() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    let conn = lab.connect(anew("client"));
    lab.disks[0].faults.fail_next_sync = true;
    let_disks_work(&mut lab);
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Poisoned(_))));
    let got = lab.take_all(conn);
    assert!(
        matches!(got[..], [Got::Connack { reason: Reason::SERVER_UNAVAILABLE, .. }]),
        "{got:?}"
    );
    // A session that is not kept asks nothing of it.
    lab.open(request("client"));
}

#[test]
fn nobody_is_locked_out_while_the_disk_refuses_writes_for_want_of_room() {
    let mut lab = with_kept("client");
    lab.disks[0].faults.write_no_space_percent = 100;
    let conn = lab.connect(anew("client"));
    lab.pass_secs(2);
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Full(_))));
    assert_eq!(is_present(&mut lab, conn), Some(false));
    let conn = lab.connect(request("client"));
    assert_eq!(is_present(&mut lab, conn), Some(false));
    lab.disks[0].faults.write_no_space_percent = 0;
    lab.pass_secs(3);
    lab.crash(Crash::Power);
    let conn = lab.connect(persistent("client"));
    assert_eq!(is_present(&mut lab, conn), Some(false));
}

#[test]
fn the_end_of_a_session_is_kept_as_firmly_as_the_session_was() {
    for durability in [Durability::Memory, Durability::Disk] {
        let loosely =
            |request| rig::with_limits(request, Limits { durability, ..Limits::default() });
        let mut lab = with_kept("client");
        let conn = lab.open(loosely(persistent("client")));
        let mut properties = codec::PropertyBuf::new();
        properties.push(codec::Property::SessionExpirySecs(0));
        let properties = properties.as_properties();
        let reason = Reason::NORMAL_DISCONNECTION;
        lab.disks[0].faults.fail_next_sync = true;
        lab.send_only(conn, &Packet::Disconnect(Disconnect { reason, properties }));
        let conn = lab.connect(loosely(request("client")));
        // It has waited for the sync, which failed.
        let got = lab.take(conn);
        assert!(
            matches!(got, Some(Got::Connack { reason: Reason::SERVER_UNAVAILABLE, .. })),
            "{durability:?}: {got:?}"
        );
    }
}

/// The file is full, and the next cannot be made: not even what frees room finds any.
fn with_full_file(lab: &mut Lab) {
    let spares: Vec<String> = (0..20).map(|number| format!("spare{number}")).collect();
    for spare in &spares {
        let conn = lab.open(persistent(spare));
        lab.cut(conn);
    }
    let busy = lab.open(persistent("busy"));
    lab.disks_stand_still = true;
    let will = |number: u32| session::Will {
        topic: format!("t/{number}").into(),
        properties: [].into(),
        payload: vec![b'x'; 1000].into(),
        qos: codec::QoS::AtLeastOnce,
        retain: false,
        delay_secs: 1000,
        message_expiry_secs: None,
        due_ms: session::NEVER,
    };
    lab.cut(busy);
    for number in 0..300 {
        let will = Some(Box::new(will(number)));
        let conn = lab.connect(ConnectRequest { will, ..persistent("busy") });
        lab.cut(conn);
    }
    for spare in &spares {
        lab.connect(anew(spare));
    }
}

fn written(lab: &Lab) -> u64 {
    lab.shards[0].journal().expect("a log").stats().records_appended
}

#[test]
fn an_end_that_waits_for_the_next_file_of_the_journal_is_waited_for() {
    let mut lab = with_kept("client");
    with_full_file(&mut lab);
    let before = written(&lab);
    let conn = lab.connect(anew("client"));
    assert_eq!(written(&lab), before, "the log has no room");
    assert_eq!(is_present(&mut lab, conn), None);
    let_disks_work(&mut lab);
    lab.pass_secs(2);
    assert_eq!(is_present(&mut lab, conn), Some(false));
}

/// The broker is killed. A start that did not find the end would count from the start.
#[test]
fn expiry_runs_from_the_end_of_the_connection_though_the_journal_had_no_room_for_it() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(ConnectRequest { session_expiry_secs: 60, ..persistent("client") });
    lab.subscribe(conn, "t", 1);
    with_full_file(&mut lab);
    let before = written(&lab);
    lab.cut(conn);
    assert_eq!(written(&lab), before, "the log has no room");
    let_disks_work(&mut lab);
    lab.pass_secs(40);
    lab.crash(Crash::Kill);
    lab.pass_secs(30);
    let conn = lab.connect(persistent("client"));
    assert_eq!(is_present(&mut lab, conn), Some(false));
}
