//! Journals with not even room for what frees some: it is done all the same, and written later.

use broker::ConnectRequest;
use codec::{AckKind, Disconnect, Packet, QoS, Reason, Version};
use rig::{Conn, Got, Lab, of_version, persistent, read_all, request, retained, will, with_will};
use session::Will;
use storage::Status;
use storage::testing::Crash;

/// A shard whose disk is full of messages of the session `away`, and whose reserve the session
/// `restless` has used up by coming and going. `before` is done while there is room.
fn brimful(before: impl FnOnce(&mut Lab)) -> (Lab, Conn) {
    let mut lab = Lab::durable(1);
    lab.leave("away", "a/#", 1);
    keep(&mut lab, "restless");
    before(&mut lab);
    let publisher = lab.open(request("publisher"));
    lab.fill_disk(publisher, "a/a");
    lab.take_all(publisher);
    let before = lab.log_stats(0).refused_full;
    for _ in 0..1000 {
        keep(&mut lab, "restless");
        if lab.log_stats(0).refused_full > before {
            return (lab, publisher);
        }
    }
    panic!("the reserve is never used up");
}

/// A session that is kept and away.
fn keep(lab: &mut Lab, name: &str) {
    let conn = lab.open(persistent(name));
    lab.cut(conn);
}

/// There is room again, all is written, and the power fails.
fn make_room_and_crash(lab: &mut Lab) {
    lab.make_room();
    lab.crash(Crash::Power);
}

fn damage(lab: &Lab) -> Option<storage::Position> {
    lab.shards[0].journal()?.damaged()
}

fn is_there(lab: &mut Lab, request: ConnectRequest) -> bool {
    let conn = lab.connect(request);
    lab.connack(conn).expect("an answer").expect("success")
}

fn dying(name: &str, topic: &str) -> ConnectRequest {
    with_will(persistent(name), will(topic, QoS::AtLeastOnce))
}

fn expiring(name: &str) -> ConnectRequest {
    ConnectRequest { session_expiry_secs: 10, ..persistent(name) }
}

#[test]
fn a_kept_session_is_never_refused_and_drains_the_journal_that_it_fills() {
    let (mut lab, publisher) = brimful(|_| {});
    let away = lab.open(persistent("away"));
    let got = read_all(&mut lab, away).len();
    assert!(got > 20, "{got} messages");
    lab.pass_secs(3);
    lab.publish(publisher, "a/a", b"again", 1, 1);
    assert_eq!(lab.take(publisher), Some(Got::Ack(AckKind::Puback, 1, Reason::SUCCESS)));
    lab.crash(Crash::Power);
    assert!(is_there(&mut lab, persistent("restless")));
    let away = lab.open(persistent("away"));
    assert_eq!(read_all(&mut lab, away).last().map(String::as_str), Some("again"));
}

#[test]
fn a_new_session_is_refused_where_there_is_no_room_for_it() {
    let (mut lab, _) = brimful(|_| {});
    let conn = lab.connect(persistent("new"));
    assert_eq!(lab.connack(conn), Some(Err(Reason::SERVER_UNAVAILABLE)));
    // One that ends with its connection needs none.
    lab.open(request("new"));
}

#[test]
fn a_session_that_is_given_up_is_gone_however_full_the_journal_is() {
    let (mut lab, _) = brimful(|_| {});
    let sessions = lab.shards[0].session_count();
    let anew = ConnectRequest { clean_start: true, ..request("restless") };
    assert!(!is_there(&mut lab, anew));
    assert_eq!(lab.shards[0].session_count(), sessions);
    make_room_and_crash(&mut lab);
    assert!(!is_there(&mut lab, persistent("restless")));
}

#[test]
fn what_a_connect_says_is_written_when_there_is_room() {
    let (mut lab, _) = brimful(|lab| {
        ["stays", "leaves"].iter().for_each(|name| lab.leave(name, "w/#", 1));
        keep(lab, "is gone");
    });
    lab.open(ConnectRequest { session_expiry_secs: 10, ..dying("stays", "w/stays") });
    let gone = lab.open(expiring("is gone"));
    lab.cut(gone);
    lab.pass_secs(2);
    let leaves = lab.open(expiring("leaves"));
    lab.cut(leaves);
    lab.pass_secs(5);
    make_room_and_crash(&mut lab);
    // One went eight seconds ago, one ten. The third has its time from the start on, and its will
    // is due.
    lab.pass_secs(1);
    let leaves = lab.open(expiring("leaves"));
    assert_eq!(read_all(&mut lab, leaves), ["gone"]);
    lab.cut(leaves);
    assert!(is_there(&mut lab, persistent("stays")));
    assert!(!is_there(&mut lab, expiring("is gone")));
}

#[test]
fn an_unsubscribe_holds_at_once_and_is_acknowledged_when_it_is_written() {
    let (no_room, none_of_3) = (Reason::QUOTA_EXCEEDED.0, vec![]);
    for (version, no_room, reasons) in
        [(Version::V5, no_room, vec![0]), (Version::V311, 0x80, none_of_3)]
    {
        let leaves = || ConnectRequest {
            clean_start: false,
            session_expiry_secs: u32::MAX,
            ..of_version(version, "leaves")
        };
        let (mut lab, publisher) = brimful(|lab| {
            let conn = lab.open(leaves());
            lab.subscribe(conn, "b/#", 1);
            lab.cut(conn);
        });
        let conn = lab.open(leaves());
        lab.unsubscribe(conn, "b/#");
        assert_eq!(lab.take_all(conn), [], "not before it is written");
        lab.publish(publisher, "b/b", b"unwanted", 1, 1);
        assert_eq!(lab.received(conn), []);
        // What needs room does not come before it.
        assert_eq!(lab.subscribe(conn, "b/#", 1), no_room);
        lab.make_room();
        assert_eq!(lab.take_all(conn), [Got::Unsuback(2, reasons)]);
    }
}

#[test]
fn what_is_retained_is_cleared_at_once_and_acknowledged_when_that_is_written() {
    let (mut lab, publisher) = brimful(|lab| {
        let publisher = lab.open(request("before"));
        for topic in ["r/0", "r/1"] {
            lab.send(publisher, &retained(topic, b"old", 1, 1));
        }
    });
    lab.send(publisher, &retained("r/0", b"", 0, 0));
    lab.send(publisher, &retained("r/1", b"", 1, 7));
    assert_eq!(lab.take_all(publisher), [], "not before it is written");
    assert!(lab.retained_on("r/#").is_empty());
    lab.make_room();
    let answers = lab.acks(publisher);
    assert!(
        matches!(answers[..], [(AckKind::Puback, 7, reason)] if !reason.is_error()),
        "{answers:?}"
    );
    lab.crash(Crash::Power);
    assert!(lab.retained_on("r/#").is_empty());
}

#[test]
fn a_will_that_was_withdrawn_on_a_full_disk_stays_withdrawn() {
    let mut withdrawing = None;
    let (mut lab, _) = brimful(|lab| {
        lab.leave("watches", "w/#", 1);
        withdrawing = Some(lab.open(dying("withdraws", "w/w")));
    });
    let withdrawing = withdrawing.expect("a connection");
    lab.send(withdrawing, &Packet::Disconnect(Disconnect::new(Reason::NORMAL_DISCONNECTION)));
    make_room_and_crash(&mut lab);
    lab.pass_secs(3);
    let (watches, _) = lab.resume("watches");
    assert_eq!(lab.received(watches), []);
}

#[test]
fn a_will_that_is_due_before_it_is_written_does_not_block_the_journal() {
    let mut lab = Lab::durable(1);
    lab.leave("watches", "w/#", 1);
    lab.leave("away", "a/#", 1);
    let ids: Vec<String> = (0..12).map(|who| format!("dies-{who}")).collect();
    ids.iter().for_each(|id| keep(&mut lab, id));
    let publisher = lab.open(request("publisher"));
    lab.fill_disk(publisher, "a/a");
    lab.take_all(publisher);
    // Sooner or later what is left has room for a CONNECT, and not for its will.
    for id in &ids {
        let large = Will { payload: [b'w'; 12_000].into(), ..will("w/w", QoS::AtLeastOnce) };
        let conn = lab.open(with_will(persistent(id), large));
        lab.cut(conn);
        lab.open(dying(id, "w/w"));
    }
    lab.make_room();
    lab.publish(publisher, "a/a", b"again", 1, 1);
    assert_eq!(lab.take(publisher), Some(Got::Ack(AckKind::Puback, 1, Reason::SUCCESS)));
    let (watches, _) = lab.resume("watches");
    assert_eq!(read_all(&mut lab, watches).len(), ids.len());
}

#[test]
fn more_than_can_be_put_off_is_refused() {
    let (mut lab, publisher) = brimful(|lab| keep(lab, "leaves"));
    let leaves = lab.open(persistent("leaves"));
    // A mebibyte, as a constant of the broker has it; nothing is retained there.
    for number in 1..=100 {
        let topic = format!("r/{number}/{}", "x".repeat(12_000));
        lab.send(publisher, &retained(&topic, b"", 1, number));
    }
    // There is nothing to be written, but the answer would say that the CONNECT is.
    lab.unsubscribe(leaves, "nothing");
    assert!(lab.is_closed(leaves));
    lab.make_room();
    let answers = lab.take_all(publisher).into_iter();
    let refused = answers.map(|got| matches!(got, Got::Ack(_, _, Reason::QUOTA_EXCEEDED)));
    let refused: Vec<bool> = refused.collect();
    assert_eq!((refused.len(), refused.iter().filter(|refused| **refused).count()), (100, 13));
    let leaves = lab.open(persistent("leaves"));
    lab.unsubscribe(leaves, "nothing");
    let none = Reason::NO_SUBSCRIPTION_EXISTED.0;
    assert_eq!(lab.take_all(leaves), [Got::Unsuback(2, vec![none])]);
}

#[test]
fn what_waits_for_a_journal_that_fails_gets_no_success() {
    let (mut lab, publisher) = brimful(|lab| {
        lab.leave("leaves", "b/#", 1);
        let publisher = lab.open(request("before"));
        lab.send(publisher, &retained("r/1", b"old", 1, 1));
    });
    let leaves = lab.open(persistent("leaves"));
    lab.unsubscribe(leaves, "b/#");
    lab.send(publisher, &retained("r/1", b"", 1, 7));
    lab.disks[0].faults.fail_next_sync = true;
    lab.disks[0].faults.capacity_bytes = u64::MAX;
    lab.pass_secs(3);
    assert!(lab.is_poisoned(0));
    let reason = Reason::IMPLEMENTATION_SPECIFIC_ERROR;
    assert_eq!(lab.take_all(publisher), [Got::Ack(AckKind::Puback, 7, reason)]);
    assert!(lab.is_closed(leaves));
}

#[test]
fn a_medium_that_does_not_give_back_what_was_written_is_noticed_when_space_is_reclaimed() {
    let mut lab = Lab::durable(1);
    lab.leave("away", "a/#", 1);
    let oldest = lab.disks[0].files()[0].number;
    lab.disks[0].flip_bit(oldest, 4096 + 100, 0);
    assert_eq!(damage(&lab), None);
    let publisher = lab.open(request("publisher"));
    for number in 0..1000 {
        // What replaces the one before is soon most of the journal.
        lab.send(publisher, &retained("r", &[number as u8; 4000], 1, 1));
        if damage(&lab).is_some() {
            break;
        }
    }
    assert_eq!(damage(&lab).map(|at| at.segment()), Some(oldest));
    assert!(lab.log_stats(0).is_damaged);
}

#[test]
fn space_that_could_not_be_read_for_a_moment_comes_back_later() {
    let mut lab = Lab::durable(1);
    let publisher = lab.open(request("publisher"));
    let keep = |lab: &mut Lab, topic: &str| lab.send(publisher, &retained(topic, &[1; 4000], 1, 1));
    keep(&mut lab, "stays");
    lab.disks[0].faults.fail_reads = true;
    while damage(&lab).is_none() {
        keep(&mut lab, "r");
    }
    let before = lab.log_stats(0);
    lab.pass_secs(30);
    assert!(damage(&lab).is_some(), "it is tried again in vain");
    lab.disks[0].faults.fail_reads = false;
    lab.pass_secs(30);
    assert_eq!(damage(&lab), None);
    let after = lab.log_stats(0);
    assert!(after.segments_reclaimed > before.segments_reclaimed, "{after:?}");
    lab.crash(Crash::Power);
    assert_eq!(lab.retained_on("stays").len(), 1);
}

/// A shard whose disk stands still, and whose journal has no segment to go on in.
fn without_segment() -> Lab {
    let mut lab = Lab::durable(1);
    lab.leave("away", "a/#", 1);
    let publisher = lab.open(request("publisher"));
    lab.disks_stand_still = true;
    for number in 0..1000 {
        let before = lab.log_stats(0).bytes_appended;
        lab.publish(publisher, "a/a", &[b'x'; 4000], 1, number + 1);
        lab.open(persistent(&format!("filler-{number}")));
        if lab.log_stats(0).bytes_appended == before {
            break;
        }
    }
    assert_eq!(lab.shards[0].journal_status(), Some(Status::Ready));
    lab
}

fn resume_disks(lab: &mut Lab, conn: Conn) {
    lab.disks_stand_still = false;
    for _ in 0..3 {
        lab.pass_secs(1);
        // What a pause had left unread is looked at again.
        lab.bytes(conn, &[]);
        lab.settle();
    }
}

#[test]
fn a_new_session_does_not_wait_for_the_next_segment_and_what_promises_it_does() {
    for crashes_before in [true, false] {
        let mut lab = without_segment();
        let conn = lab.open(dying("new", "a/will"));
        let twice = lab.open(persistent("twice"));
        let twice_again = lab.open(persistent("twice"));
        assert!(lab.is_closed(twice));
        lab.unsubscribe(conn, "nothing");
        lab.unsubscribe(twice_again, "nothing");
        assert_eq!(lab.take_all(conn), [], "not before the session is written");
        if !crashes_before {
            resume_disks(&mut lab, conn);
            let none = Reason::NO_SUBSCRIPTION_EXISTED.0;
            assert_eq!(lab.take_all(conn), [Got::Unsuback(2, vec![none])]);
            assert_eq!(lab.take_all(twice_again), [Got::Unsuback(2, vec![none])]);
        }
        lab.disks_stand_still = false;
        lab.crash(Crash::Power);
        lab.pass_secs(1);
        for name in ["new", "twice"] {
            assert_eq!(is_there(&mut lab, persistent(name)), !crashes_before, "{name}");
        }
        let away = lab.open(persistent("away"));
        let wills = read_all(&mut lab, away).into_iter().filter(|payload| payload == "gone");
        assert_eq!(wills.count(), usize::from(!crashes_before));
    }
}

#[test]
fn a_subscription_of_a_session_that_is_not_written_yet_comes_behind_it() {
    let mut lab = without_segment();
    let conn = lab.open(persistent("new"));
    lab.subscribe_all(conn, &["b/#"], 1);
    lab.settle();
    assert_eq!(lab.take_all(conn), []);
    resume_disks(&mut lab, conn);
    assert_eq!(lab.take_all(conn), [Got::Suback(1, vec![1])]);
    lab.crash(Crash::Power);
    let publisher = lab.open(request("publisher"));
    lab.publish(publisher, "b/b", b"1", 1, 1);
    let conn = lab.open(persistent("new"));
    assert_eq!(read_all(&mut lab, conn), ["1"]);
}

#[test]
fn a_new_session_outlasts_a_disk_that_turns_out_to_be_full() {
    let mut lab = without_segment();
    let stays = lab.open(persistent("stays"));
    let leaves = lab.open(expiring("leaves"));
    lab.cut(leaves);
    lab.disks[0].faults.capacity_bytes = 0;
    lab.disks_stand_still = false;
    lab.pass_secs(3);
    assert!(lab.is_full(0));
    // It could not be promised more, and others are refused at once.
    assert_eq!(lab.subscribe(stays, "b/#", 1), Reason::QUOTA_EXCEEDED.0);
    let conn = lab.connect(persistent("late"));
    assert_eq!(lab.connack(conn), Some(Err(Reason::SERVER_UNAVAILABLE)));
    // What frees room is not behind it.
    let away = lab.open(persistent("away"));
    assert!(!read_all(&mut lab, away).is_empty());
    make_room_and_crash(&mut lab);
    assert!(is_there(&mut lab, persistent("stays")));
    assert!(is_there(&mut lab, expiring("leaves")));
    let mut lab = without_segment();
    let leaves = lab.open(expiring("leaves"));
    lab.cut(leaves);
    lab.pass_secs(12);
    lab.disks_stand_still = false;
    lab.pass_secs(3);
    lab.crash(Crash::Power);
    assert!(!is_there(&mut lab, expiring("leaves")));
}

/// Its messages would be kept, and charged, for ever: a start finds two queues of the group.
#[test]
fn the_queue_of_a_group_that_was_closed_on_a_full_disk_is_gone_though_the_group_has_another() {
    // For some of the ends there is no room.
    let filters: Vec<String> = (0..50).map(|number| format!("$share/g/b/{number}")).collect();
    let leave_messages = |lab: &mut Lab, payload| {
        let member = lab.open(persistent("member"));
        lab.subscribe_all(member, &filters, 1);
        lab.cut(member);
        let publisher = lab.open(request("publisher"));
        for number in 0..50 {
            lab.publish(publisher, &format!("b/{number}"), payload, 1, number + 1);
        }
    };
    let (mut lab, _) = brimful(|lab| leave_messages(lab, b"lost"));
    let anew = |name| ConnectRequest { clean_start: true, ..request(name) };
    let member = lab.open(anew("member"));
    lab.cut(member);
    lab.make_room();
    leave_messages(&mut lab, b"new");
    lab.crash(Crash::Power);
    let member = lab.open(persistent("member"));
    assert_eq!(read_all(&mut lab, member), ["new"; 50]);
    lab.cut(member);
    for name in ["member", "away"] {
        let conn = lab.open(anew(name));
        lab.cut(conn);
    }
    lab.pass_secs(3);
    let live_bytes = lab.shards[0].journal().expect("a log").live_bytes();
    assert!(live_bytes < 100, "{live_bytes} bytes are kept, and nobody is left");
}
