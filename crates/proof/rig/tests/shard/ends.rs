//! Ends of kept sessions: who has the client id next is told nothing before the journal has them.

use broker::{ConnectRequest, Durability, Limits, Name};
use codec::{AckKind, Disconnect, Packet, Property, PropertyBuf, QoS, Reason, Version};
use rig::{Conn, Got, Lab, of_version, persistent, publish, request, will, with_limits, with_will};
use session::Will;
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

/// A DISCONNECT with which the session ends; the mail stays where it is.
fn end_session(lab: &mut Lab, conn: Conn) {
    let mut properties = PropertyBuf::new();
    properties.push(Property::SessionExpirySecs(0));
    let properties = properties.as_properties();
    let reason = Reason::NORMAL_DISCONNECTION;
    lab.send_only(conn, &Packet::Disconnect(Disconnect { reason, properties }));
}

const OLD: Option<Result<bool, Reason>> = Some(Ok(true));
const NEW: Option<Result<bool, Reason>> = Some(Ok(false));
const UNAVAILABLE: Option<Result<bool, Reason>> = Some(Err(Reason::SERVER_UNAVAILABLE));

/// How a session ends while the disk stands still, who connects then, and what it is told.
#[test]
fn mqtt_3_1_2_4_a_clean_start_is_answered_when_the_journal_has_the_end_of_the_old_session() {
    let by_itself: fn(&mut Lab) = |_| {};
    let by_disconnect: fn(&mut Lab) = |lab| {
        let conn = lab.connect(persistent("client"));
        end_session(lab, conn);
        lab.settle();
    };
    let by_expiry: fn(&mut Lab) = |lab| {
        let conn = lab.connect(ConnectRequest { session_expiry_secs: 2, ..persistent("client") });
        lab.cut(conn);
        lab.pass_secs(4);
    };
    let by_others: fn(&mut Lab) = |lab| {
        for _ in 0..3 {
            let conn = lab.connect(anew("client"));
            lab.cut(conn);
            assert_eq!(lab.take_all(conn), []);
        }
    };
    let rows = [
        ("clean start", by_itself, anew("client"), NEW),
        ("clean session", by_itself, request("client"), NEW),
        ("clean session of 3.1.1", by_itself, of_version(Version::V311, "client"), NEW),
        ("DISCONNECT", by_disconnect, request("client"), NEW),
        ("expiry", by_expiry, request("client"), NEW),
        ("comes back during the commit", by_others, persistent("client"), OLD),
    ];
    for (what, end, next, expected) in rows {
        let mut lab = with_kept("client");
        lab.disks_stand_still = true;
        end(&mut lab);
        let conn = lab.connect(next);
        assert_eq!(lab.connack(conn), None, "{what}");
        lab.let_disks_work();
        assert_eq!(lab.connack(conn), expected, "{what}");
    }
}

#[test]
fn nobody_else_waits_for_the_end_of_a_session() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    let waiting = lab.connect(anew("client"));
    let other = lab.connect(request("other"));
    assert_eq!(lab.connack(other), NEW);
    assert_eq!(lab.connack(waiting), None);
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
    lab.let_disks_work();
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
    assert!(lab.is_closed(first));
    assert_eq!((lab.connack(first), lab.take(first)), (UNAVAILABLE, None));
    lab.shards[0].on_kick(Name::first("client"), lab.now_ms);
    lab.settle();
    assert!(lab.is_closed(second));
    assert_eq!((lab.connack(second), lab.take(second)), (UNAVAILABLE, None));
}

#[test]
fn a_journal_that_fails_refuses_those_who_wait_for_it() {
    let mut lab = with_kept("client");
    lab.disks_stand_still = true;
    let conn = lab.connect(anew("client"));
    lab.disks[0].faults.fail_next_sync = true;
    lab.let_disks_work();
    assert!(lab.is_poisoned(0));
    assert_eq!((lab.connack(conn), lab.take(conn)), (UNAVAILABLE, None));
    // A session that is not kept asks nothing of it.
    lab.open(request("client"));
}

#[test]
fn nobody_is_locked_out_while_the_disk_refuses_writes_for_want_of_room() {
    let mut lab = with_kept("client");
    lab.disks[0].faults.write_no_space_percent = 100;
    let conn = lab.connect(anew("client"));
    lab.pass_secs(2);
    assert!(lab.is_full(0));
    assert_eq!(lab.connack(conn), NEW);
    let conn = lab.connect(request("client"));
    assert_eq!(lab.connack(conn), NEW);
    lab.disks[0].faults.write_no_space_percent = 0;
    lab.pass_secs(3);
    lab.crash(Crash::Power);
    let conn = lab.connect(persistent("client"));
    assert_eq!(lab.connack(conn), NEW);
}

#[test]
fn the_end_of_a_session_is_kept_as_firmly_as_the_session_was() {
    for durability in [Durability::Memory, Durability::Disk] {
        let loosely = |request| with_limits(request, Limits { durability, ..Limits::default() });
        let mut lab = with_kept("client");
        let conn = lab.open(loosely(persistent("client")));
        lab.disks[0].faults.fail_next_sync = true;
        end_session(&mut lab, conn);
        let conn = lab.connect(loosely(request("client")));
        // It has waited for the sync, which failed.
        assert_eq!(lab.connack(conn), UNAVAILABLE, "{durability:?}");
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
    let will =
        Will { payload: vec![b'x'; 1000].into(), delay_secs: 1000, ..will("t", QoS::AtLeastOnce) };
    lab.cut(busy);
    for _ in 0..300 {
        let conn = lab.connect(with_will(persistent("busy"), will.clone()));
        lab.cut(conn);
    }
    for spare in &spares {
        lab.connect(anew(spare));
    }
}

#[test]
fn an_end_that_waits_for_the_next_file_of_the_journal_is_waited_for() {
    let mut lab = with_kept("client");
    with_full_file(&mut lab);
    let before = lab.log_stats(0).records_appended;
    let conn = lab.connect(anew("client"));
    assert_eq!(lab.log_stats(0).records_appended, before, "the log has no room");
    assert_eq!(lab.connack(conn), None);
    lab.let_disks_work();
    lab.pass_secs(2);
    assert_eq!(lab.connack(conn), NEW);
}

/// The broker is killed. A start that did not find the end would count from the start.
#[test]
fn expiry_runs_from_the_end_of_the_connection_though_the_journal_had_no_room_for_it() {
    let mut lab = Lab::durable(1);
    let conn = lab.open(ConnectRequest { session_expiry_secs: 60, ..persistent("client") });
    lab.subscribe(conn, "t", 1);
    with_full_file(&mut lab);
    let before = lab.log_stats(0).records_appended;
    lab.cut(conn);
    assert_eq!(lab.log_stats(0).records_appended, before, "the log has no room");
    lab.let_disks_work();
    lab.pass_secs(40);
    lab.crash(Crash::Kill);
    lab.pass_secs(30);
    let conn = lab.connect(persistent("client"));
    assert_eq!(lab.connack(conn), NEW);
}
