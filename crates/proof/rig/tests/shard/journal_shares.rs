//! The journals get short of space: those who fill them are refused more, and the others go on.

use broker::{ConnectRequest, Event, Settings, WhenFull};
use codec::{AckKind, Reason, Version};
use rig::{Conn, Got, Lab, persistent, publish, retained};
use session::{MemoryKind, Will};
use storage::Status;
use storage::testing::Crash;

const SHARDS: u16 = 2;
const JOURNAL_BYTES_MAX: u64 = 16 * 1024 * 1024;
const PAYLOAD: [u8; 4_000] = [b'x'; 4_000];

fn user(name: &str, client_id: &str) -> ConnectRequest {
    ConnectRequest { username: Some(name.into()), ..persistent(client_id) }
}

pub(crate) fn logged(lab: &Lab, owner: &str) -> u64 {
    let all = lab.shared.ledger.largest(usize::MAX);
    let found = all.iter().find(|consumer| *consumer.name == *owner);
    found.map_or(0, |consumer| consumer.bytes[MemoryKind::Logged as usize])
}

/// Each user has a session on each shard that is away, and one that publishes for both of its own.
struct Town {
    lab: Lab,
    eve: Conn,
    anna: Conn,
}

fn town(settings: Settings) -> Town {
    let journal = storage::Settings { log_bytes_max: JOURNAL_BYTES_MAX, ..rig::journal_settings() };
    let mut lab = Lab::durable_by(SHARDS, settings, journal);
    for name in ["eve", "anna"] {
        for shard in 0..SHARDS {
            let away = lab.open(user(name, &lab.id_on(shard, &format!("{name}-away"))));
            lab.subscribe(away, &format!("{name}/#"), 1);
            lab.subscribe(away, &format!("$share/{name}/{name}-jobs/#"), 1);
            lab.cut(away);
        }
    }
    let eve = lab.open(user("eve", &lab.id_on(0, "eve")));
    let anna = lab.open(user("anna", &lab.id_on(1, "anna")));
    Town { lab, eve, anna }
}

fn answer(lab: &mut Lab, conn: Conn, packet_id: u16) -> Option<Reason> {
    let answers = lab.take_all(conn);
    answers.iter().find_map(|got| match got {
        Got::Ack(AckKind::Puback | AckKind::Pubrec, id, reason) if *id == packet_id => {
            Some(*reason)
        }
        _ => None,
    })
}

fn answer_after_pause(lab: &mut Lab, conn: Conn, packet_id: u16) -> Option<Reason> {
    lab.pass_secs(1);
    lab.bytes(conn, &[]);
    lab.settle();
    answer(lab, conn, packet_id)
}

/// Publishes until that is refused, or a journal is full; returns how often it was taken.
fn fill(lab: &mut Lab, conn: Conn, topic: &str, qos: u8) -> usize {
    for number in 0..4_000 {
        let packet_id = number as u16 + 1;
        lab.send(conn, &publish(topic, &PAYLOAD, qos, packet_id));
        let reason = answer(lab, conn, packet_id).expect("an answer");
        assert!(!any_is_full(lab), "{number} were taken");
        if reason == Reason::QUOTA_EXCEEDED {
            return number;
        }
        if qos == 2 {
            lab.ack(conn, AckKind::Pubrel, packet_id);
        }
    }
    panic!("never refused");
}

fn any_is_full(lab: &Lab) -> bool {
    lab.shards.iter().any(|shard| matches!(shard.journal_status(), Some(Status::Full(_))))
}

fn goes_on(lab: &mut Lab, conn: Conn, topic: &str) {
    for packet_id in 1..=20 {
        lab.send(conn, &publish(topic, &PAYLOAD, 1, packet_id));
        assert_eq!(answer(lab, conn, packet_id), Some(Reason::SUCCESS), "{packet_id}");
    }
}

#[test]
fn who_fills_the_journals_is_refused_before_they_are_full_and_the_others_go_on() {
    for (topic, qos) in [("eve/x", 1), ("eve/x", 2), ("eve-jobs/x", 1)] {
        let Town { mut lab, eve, anna } = town(Settings::default());
        let taken = fill(&mut lab, eve, topic, qos);
        assert!(taken > 100, "{topic} {qos}: {taken}");
        let used = logged(&lab, "user eve");
        assert!(used >= (taken * PAYLOAD.len()) as u64, "{topic} {qos}: {used} for {taken}");
        assert_eq!(logged(&lab, "user anna"), 0);
        let is_told = |event: &Event| {
            matches!(event, Event::Refused { client_id, .. }
            if client_id.contains("eve"))
        };
        assert!(lab.events.iter().any(is_told), "{:?}", lab.events);
        goes_on(&mut lab, anna, "anna/x");
        goes_on(&mut lab, anna, "anna-jobs/x");
        assert!(!any_is_full(&lab));
        assert!(logged(&lab, "user anna") > 20 * 4_000);
        lab.send(eve, &retained("kept", b"", 1, 5_000));
        let cleared = answer(&mut lab, eve, 5_000).expect("an answer");
        assert!(!cleared.is_error(), "what frees room is taken: {cleared:?}");
    }
}

/// What may wait in all journals together, as far as reclaiming does not have to hurry.
fn room() -> u64 {
    let slack = 4 * u64::from(rig::journal_settings().segment_bytes);
    (JOURNAL_BYTES_MAX - slack) / 2 * u64::from(SHARDS)
}

#[test]
fn who_is_alone_has_nearly_all_of_the_journals_and_who_comes_later_still_gets_in() {
    let Town { mut lab, eve, anna } = town(Settings::default());
    fill(&mut lab, eve, "eve/x", 1);
    let alone = logged(&lab, "user eve");
    assert!(alone > room() / 100 * 92, "{alone} of {}", room());
    goes_on(&mut lab, anna, "anna/x");
    assert_eq!(answer_to(&mut lab, eve, "eve/x"), Reason::QUOTA_EXCEEDED);
}

/// Nobody else has anything in the journals, and there is no third.
#[test]
fn two_who_fill_the_journals_have_the_same_in_the_end() {
    let Town { mut lab, eve, anna } = town(Settings::default());
    fill(&mut lab, eve, "eve/x", 1);
    fill(&mut lab, anna, "anna/x", 1);
    // Some of what waits for eve's session on one shard is taken, again and again.
    for _ in 0..30 {
        let away = lab.id_on(0, "eve-away");
        let reader = lab.open(user("eve", &away));
        take_some(&mut lab, reader, 60);
        lab.cut(reader);
        let away = lab.id_on(1, "eve-away");
        let reader = lab.open(user("eve", &away));
        take_some(&mut lab, reader, 60);
        lab.cut(reader);
        for packet_id in 1..=60 {
            lab.send(eve, &publish("eve/x", &PAYLOAD, 1, packet_id));
            lab.send(anna, &publish("anna/x", &PAYLOAD, 1, packet_id));
        }
        lab.take_all(eve);
        lab.take_all(anna);
        assert!(!any_is_full(&lab));
    }
    let (eves, annas) = (logged(&lab, "user eve"), logged(&lab, "user anna"));
    assert!(annas > eves / 10 * 7, "{annas} and {eves}");
    assert!(eves + annas > room() / 100 * 80, "{eves} and {annas} of {}", room());
}

/// Acknowledges so many of the messages that wait for a session.
fn take_some(lab: &mut Lab, conn: Conn, count: usize) {
    let mut taken = 0;
    while taken < count {
        let got = lab.take_all(conn);
        let before = taken;
        for got in got {
            if let Got::Publish(received) = got
                && taken < count
            {
                lab.ack(conn, AckKind::Puback, received.packet_id);
                taken += 1;
            }
        }
        if taken == before {
            return;
        }
    }
}

fn answer_to(lab: &mut Lab, conn: Conn, topic: &str) -> Reason {
    lab.send(conn, &publish(topic, &PAYLOAD, 1, 7_000));
    answer(lab, conn, 7_000).expect("an answer")
}

#[test]
fn what_is_taken_out_of_the_journals_is_paid_for_by_nobody() {
    let Town { mut lab, eve, .. } = town(Settings::default());
    fill(&mut lab, eve, "eve/x", 1);
    for shard in 0..SHARDS {
        let id = lab.id_on(shard, "eve-away");
        let again = lab.open(ConnectRequest { clean_start: true, ..user("eve", &id) });
        lab.cut(again);
    }
    lab.turn_the_journal_over();
    assert_eq!(logged(&lab, "user eve"), 0);
    assert_eq!(lab.shared.ledger.bytes(MemoryKind::Logged), 0);
    lab.send(eve, &publish("eve/x", &PAYLOAD, 1, 6_000));
    let reason = answer(&mut lab, eve, 6_000).expect("an answer");
    assert!(!reason.is_error(), "{reason:?}");
}

#[test]
fn what_waits_is_its_publishers_after_a_restart_too() {
    let Town { mut lab, eve, .. } = town(Settings::default());
    for number in 0..10 {
        lab.send(eve, &retained(&format!("kept/{number}"), &PAYLOAD[..1_000], 1, 1));
    }
    fill(&mut lab, eve, "eve/x", 1);
    let kept = |lab: &Lab| {
        let all = lab.shared.ledger.largest(usize::MAX);
        let eve = all.iter().find(|consumer| *consumer.name == *"user eve");
        eve.map_or(0, |consumer| consumer.bytes[MemoryKind::Retained as usize])
    };
    let before = (logged(&lab, "user eve"), kept(&lab));
    assert!(before.1 > 0, "something is retained");
    lab.crash(Crash::Kill);
    let eves = logged(&lab, "user eve");
    assert!(eves > before.0 / 100 * 99 && eves <= before.0, "{eves} of {}", before.0);
    assert_eq!(kept(&lab), before.1);
    let eve = lab.open(user("eve", &lab.id_on(0, "eve")));
    let anna = lab.open(user("anna", &lab.id_on(1, "anna")));
    let reasons = [1, 2].map(|_| answer_to(&mut lab, eve, "eve/x"));
    assert_eq!(reasons, [Reason::QUOTA_EXCEEDED; 2]);
    goes_on(&mut lab, anna, "anna/x");
}

#[test]
fn who_reads_pays_for_nothing_however_much_comes() {
    let Town { mut lab, eve, .. } = town(Settings::default());
    let reader = lab.open(user("anna", &lab.id_on(1, "reader")));
    lab.subscribe(reader, "read/#", 1);
    for number in 0..1_500_u16 {
        lab.send(eve, &publish("read/x", &PAYLOAD, 1, number + 1));
        assert_eq!(answer(&mut lab, eve, number + 1), Some(Reason::SUCCESS));
        for got in lab.take_all(reader) {
            if let Got::Publish(received) = got {
                lab.ack(reader, AckKind::Puback, received.packet_id);
            }
        }
    }
    assert!(logged(&lab, "user eve") < 10 * 4_000, "{}", logged(&lab, "user eve"));
}

#[test]
fn where_publishers_wait_for_room_those_who_fill_the_journals_do() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let Town { mut lab, eve, anna } = town(settings);
    let taken = (1..4_000).find(|packet_id| {
        lab.send(eve, &publish("eve/x", &PAYLOAD, 1, *packet_id));
        let mut reason = answer(&mut lab, eve, *packet_id);
        if reason.is_none() {
            // Not a disk that is behind for a moment.
            reason = answer_after_pause(&mut lab, eve, *packet_id);
        }
        assert!(!any_is_full(&lab) && reason.is_none_or(|reason| reason == Reason::SUCCESS));
        reason.is_none()
    });
    assert!(taken.is_some_and(|taken| taken > 100), "{taken:?}");
    goes_on(&mut lab, anna, "anna/x");
    // It goes on when its sessions have what waits for them, or are gone.
    for shard in 0..SHARDS {
        let id = lab.id_on(shard, "eve-away");
        lab.open(ConnectRequest { clean_start: true, ..user("eve", &id) });
    }
    let reason = answer_after_pause(&mut lab, eve, taken.unwrap_or_default());
    assert!(reason.is_some_and(|reason| !reason.is_error()), "{reason:?}");
}

/// Fills the journals, until it is refused or has to wait.
fn fill_up(lab: &mut Lab, conn: Conn) {
    let is_over = |packet_id: &u16| {
        lab.send(conn, &publish("eve/x", &PAYLOAD, 1, *packet_id));
        let reason = answer(lab, conn, *packet_id);
        reason.or_else(|| answer_after_pause(lab, conn, *packet_id)) != Some(Reason::SUCCESS)
    };
    (1..4_000).find(is_over).expect("an end");
}

/// Nobody can be told to wait any more.
#[test]
fn who_sends_much_and_goes_does_not_get_around_its_share() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let Town { mut lab, eve, anna } = town(settings);
    fill_up(&mut lab, eve);
    let before = logged(&lab, "user eve");
    for _ in 0..60 {
        let again = lab.open(user("eve", &lab.id_on(0, "eve")));
        let mut burst = Vec::new();
        for packet_id in 1..=10 {
            publish("eve/x", &PAYLOAD, 1, packet_id).encode(Version::V5, &mut burst);
        }
        lab.bytes(again, &burst);
        lab.cut(again);
    }
    let after = logged(&lab, "user eve");
    assert!(after < before + 10 * 4_000, "{before} and then {after}");
    assert!(!any_is_full(&lab));
    goes_on(&mut lab, anna, "anna/x");
}

#[test]
fn wills_do_not_get_around_the_share_of_who_leaves_them() {
    let Town { mut lab, eve, anna } = town(Settings::default());
    fill_up(&mut lab, eve);
    let live = |lab: &Lab| -> u64 {
        let stats = lab.shards.iter().filter_map(|shard| Some(shard.journal()?.stats()));
        stats.map(|stats| stats.live_bytes).sum()
    };
    let before = live(&lab);
    for (number, session_expiry_secs) in (0..300).zip([0, 60].into_iter().cycle()) {
        let will = Will {
            topic: "eve/x".into(),
            properties: Box::default(),
            payload: PAYLOAD.as_slice().into(),
            qos: rig::level(1),
            retain: false,
            delay_secs: 0,
            message_expiry_secs: None,
            due_ms: u64::MAX,
        };
        let request = user("eve", &format!("dying-{number}"));
        let request = ConnectRequest { session_expiry_secs, will: Some(Box::new(will)), ..request };
        let dying = lab.open(request);
        lab.cut(dying);
    }
    let after = live(&lab);
    assert!(after < before + 20 * 4_000, "{before} and then {after}");
    let is_told = lab.events.iter().any(|event| match event {
        Event::Refused { client_id, .. } => client_id.starts_with("dying"),
        _ => false,
    });
    assert!(is_told, "{:?}", lab.events);
    goes_on(&mut lab, anna, "anna/x");
}
