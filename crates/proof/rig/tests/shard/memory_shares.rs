//! Memory gets short: those who hold more than they leave to others are slowed, refused and cut.
//! The others go on.

use broker::{ConnectRequest, Ended, Event, Memory, Settings};
use codec::{AckKind, Reason, Version};
use policy::Access;
use rig::{Conn, Got, Lab, persistent, publish, request, retained};
use session::MemoryKind;

/// A client without a name at an address.
fn from(address: &str, client_id: &str) -> ConnectRequest {
    ConnectRequest { origin: address.into(), ..request(client_id) }
}

fn user(name: &str, client_id: &str) -> ConnectRequest {
    ConnectRequest { username: Some(name.into()), ..from("elsewhere", client_id) }
}

fn used(lab: &Lab, owner: &str, kind: MemoryKind) -> u64 {
    let all = lab.shared.ledger.largest(usize::MAX);
    all.iter().find(|consumer| *consumer.name == *owner).map_or(0, |h| h.bytes[kind as usize])
}

fn look(lab: &mut Lab) {
    for shard in &mut lab.shards {
        shard.on_memory_look(lab.now_ms);
    }
    lab.settle_mail();
}

/// Clients of one address that do not read, each with some 300 KB to read; who fills them; and a
/// pair of a user with little.
struct Town {
    lab: Lab,
    greedy: Vec<Conn>,
    filler: Conn,
    modest: Conn,
    other: Conn,
}

const OWED_EACH: u64 = 300_000;
const UNSENT_BYTES_MAX: u64 = 300_000;

fn town() -> Town {
    let settings = Settings { unsent_bytes_max: UNSENT_BYTES_MAX, ..Settings::default() };
    let mut lab = Lab::with(2, settings, Access::open());
    let mut greedy = Vec::new();
    for number in 0..3 {
        let version = if number == 2 { Version::V311 } else { Version::V5 };
        let request = ConnectRequest { version, ..from("greedy", &format!("greedy-{number}")) };
        let conn = lab.open(request);
        lab.subscribe(conn, "flood", 0);
        greedy.push(conn);
    }
    let filler = lab.open(from("greedy", "filler"));
    let modest = lab.open(user("anna", "modest"));
    lab.subscribe(modest, "news", 1);
    let other = lab.open(from("other", "other"));
    lab.subscribe(other, "some", 0);
    // Two that are away.
    for (address, client_id) in [("greedy", "absent-1"), ("modest", "absent-2")] {
        let request = ConnectRequest { origin: address.into(), ..persistent(client_id) };
        let conn = lab.open(request);
        lab.subscribe(conn, &format!("to/{address}"), 1);
        lab.cut(conn);
    }
    for _ in 0..50 {
        lab.send_only(filler, &publish("some", &[7; 1_000], 0, 0));
    }
    for _ in 0..OWED_EACH / 1_000 {
        lab.send_only(filler, &publish("flood", &[7; 1_000], 0, 0));
        lab.settle_mail();
    }
    Town { lab, greedy, filler, modest, other }
}

fn answer(lab: &mut Lab, conn: Conn, packet_id: u16) -> Reason {
    lab.write_some(conn, usize::MAX);
    let answers = lab.take_all(conn);
    let found = answers.iter().find_map(|got| match got {
        Got::Ack(AckKind::Puback, id, reason) if *id == packet_id => Some(*reason),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("expected a PUBACK, got {answers:?}"))
}

fn publish_to_news(lab: &mut Lab, conn: Conn, packet_id: u16) -> Reason {
    lab.send_only(conn, &publish("news", b"x", 1, packet_id));
    lab.settle_mail();
    answer(lab, conn, packet_id)
}

#[test]
fn what_waits_in_connections_is_counted_while_memory_is_short_and_ends_with_them() {
    let Town { mut lab, greedy, .. } = town();
    assert_eq!(used(&lab, "address greedy", MemoryKind::Unsent), 0, "nobody has looked");
    lab.shared.set_memory_left(Memory::Tight, 1 << 30);
    look(&mut lab);
    let counted = used(&lab, "address greedy", MemoryKind::Unsent);
    assert!((3 * OWED_EACH..=9 * OWED_EACH).contains(&counted), "{counted}");
    assert!(used(&lab, "user anna", MemoryKind::Unsent) < 1_000);
    for conn in greedy {
        lab.cut(conn);
    }
    let left = used(&lab, "address greedy", MemoryKind::Unsent);
    assert!(left < 5_000, "{left}");
}

#[test]
fn no_more_is_kept_for_who_does_not_read_while_memory_is_short() {
    let Town { mut lab, greedy, filler, other, .. } = town();
    let flood = |lab: &mut Lab| {
        for _ in 0..100 {
            lab.send_only(filler, &publish("flood", &[7; 1_000], 0, 0));
            lab.settle_mail();
        }
    };
    let unsent = |lab: &mut Lab| {
        lab.shared.set_memory_left(Memory::Tight, 1 << 30);
        look(lab);
        used(lab, "address greedy", MemoryKind::Unsent)
    };
    let before = unsent(&mut lab);
    flood(&mut lab);
    assert_eq!(unsent(&mut lab), before);
    assert_eq!(lab.total(|m| &m.dropped_slow), 300);
    // Who reads gets all.
    lab.send_only(filler, &publish("some", &[7; 1_000], 0, 0));
    lab.settle_mail();
    lab.write_some(other, usize::MAX);
    assert_eq!(lab.take_all(other).len(), 51);
    // As does who begins to, and it may fall behind again.
    lab.shared.set_memory(Memory::Enough);
    for conn in &greedy {
        lab.write_some(*conn, usize::MAX);
        lab.take_all(*conn);
    }
    flood(&mut lab);
    lab.write_some(greedy[0], usize::MAX);
    assert_eq!(lab.take_all(greedy[0]).len(), 100);
}

#[test]
fn no_more_is_kept_for_who_does_not_read_while_much_waits_in_connections() {
    let Town { mut lab, .. } = town();
    let sent = |lab: &Lab| lab.total(|m| &m.publishes_sent);
    // Each time from elsewhere: who publishes to those who are behind is read later.
    let [first, second] = ["first", "second"].map(|source| lab.open(from(source, source)));
    let flood = |lab: &mut Lab, filler: Conn| {
        let before = sent(lab);
        for _ in 0..100 {
            lab.send_only(filler, &publish("flood", &[7; 1_000], 0, 0));
            lab.settle_mail();
        }
        look(lab);
        // The look that finds too much begins before all are counted.
        look(lab);
        sent(lab) - before
    };
    assert!(flood(&mut lab, first) > 0);
    assert!(used(&lab, "address greedy", MemoryKind::Unsent) > UNSENT_BYTES_MAX);
    assert_eq!(lab.total(|m| &m.dropped_slow), 0);
    assert_eq!(flood(&mut lab, second), 0);
    assert!(lab.total(|m| &m.dropped_slow) > 0);
}

#[test]
fn those_who_hold_most_are_refused_and_the_others_go_on() {
    let Town { mut lab, filler, modest, .. } = town();
    lab.shared.set_memory_left(Memory::Short, 200_000);
    look(&mut lab);
    assert_eq!(publish_to_news(&mut lab, filler, 1), Reason::QUOTA_EXCEEDED);
    for packet_id in 2..50 {
        assert_eq!(publish_to_news(&mut lab, modest, packet_id), Reason::SUCCESS);
    }
    let newcomer = lab.open(user("bruno", "newcomer"));
    assert_eq!(publish_to_news(&mut lab, newcomer, 60), Reason::SUCCESS);
    assert_eq!(lab.subscribe(newcomer, "new", 1), 1);
    assert_eq!(lab.subscribe(filler, "new", 1), Reason::QUOTA_EXCEEDED.0);
    // What frees memory goes on, of them, too.
    lab.send_only(filler, &retained("kept", b"", 1, 70));
    lab.settle_mail();
    assert_ne!(answer(&mut lab, filler, 70), Reason::QUOTA_EXCEEDED);
    lab.shared.set_memory_left(Memory::Out, 50_000);
    assert_eq!(publish_to_news(&mut lab, modest, 71), Reason::QUOTA_EXCEEDED, "nothing is left");
    lab.shared.set_memory(Memory::Enough);
    assert_eq!(publish_to_news(&mut lab, filler, 72), Reason::SUCCESS);
}

#[test]
fn those_who_hold_most_are_slowed_before_anybody_is_refused() {
    let Town { mut lab, filler, modest, .. } = town();
    lab.shared.set_memory_left(Memory::Tight, 400_000);
    look(&mut lab);
    lab.pauses.clear();
    assert_eq!(publish_to_news(&mut lab, modest, 1), Reason::SUCCESS);
    assert_eq!(lab.pauses, []);
    assert_eq!(publish_to_news(&mut lab, filler, 1), Reason::SUCCESS);
    assert_eq!(lab.pauses, [(filler, lab.now_ms + 100)]);
}

#[test]
fn connections_of_the_largest_are_cut_until_enough_is_free() {
    let Town { mut lab, greedy, filler, modest, other } = town();
    lab.shared.set_memory_left(Memory::Short, 1_000);
    look(&mut lab);
    assert!(greedy.iter().all(|conn| !lab.is_closed(*conn)), "it is not known yet who it is");
    assert!(lab.shared.ledger.largest_unsent() >= 3 * OWED_EACH);
    lab.shared.ledger.cut_nobody();
    look(&mut lab);
    assert!(greedy.iter().all(|conn| !lab.is_closed(*conn)), "another cell holds more");
    lab.shared.ledger.cut_largest(OWED_EACH + 1);
    look(&mut lab);
    let cut = greedy.iter().filter(|conn| lab.is_closed(**conn)).count();
    assert!((1..=2).contains(&cut), "{cut}: as many as have to go");
    lab.shared.ledger.cut_largest(100 * OWED_EACH);
    look(&mut lab);
    assert!(greedy.iter().all(|conn| lab.is_closed(*conn)));
    assert!(!lab.is_closed(filler) && !lab.is_closed(modest), "they hold next to nothing");
    assert!(!lab.is_closed(other), "it has less than half as much");
    assert_eq!(lab.total(|m| &m.memory_cuts), 3);
    let reported = lab.events.iter().find_map(|event| match event {
        Event::Disconnected {
            client_id,
            username: None,
            peer,
            ended: Ended::LargestConsumer { bytes, owner_bytes },
            ..
        } => Some((client_id.to_string(), peer.to_string(), *bytes, *owner_bytes)),
        _ => None,
    });
    let (client_id, peer, bytes, owner_bytes) = reported.expect("it is told");
    assert!(client_id.starts_with("greedy-") && !peer.is_empty());
    assert!(bytes >= OWED_EACH && owner_bytes >= 3 * OWED_EACH, "{bytes} of {owner_bytes}");
    // Now the other is the largest; it is left alone when there is enough.
    lab.shared.set_memory(Memory::Enough);
    look(&mut lab);
    assert!(!lab.is_closed(other));
}

#[test]
fn who_is_cut_and_reads_is_reported_why() {
    for version in [Version::V5, Version::V311] {
        let mut lab = Lab::new(1);
        let conn = lab.open(ConnectRequest { version, ..user("eve", "sends") });
        // A part of a large packet, which waits here.
        let mut bytes = vec![0x32];
        codec::varint::write(&mut bytes, 1_000_000);
        bytes.resize(200_000, 0);
        lab.bytes(conn, &bytes);
        lab.shared.set_memory_left(Memory::Short, 1_000);
        look(&mut lab);
        lab.shared.ledger.cut_largest(1);
        look(&mut lab);
        assert!(lab.is_closed(conn));
        let reported = match version {
            Version::V5 => vec![Got::Disconnect(Reason::QUOTA_EXCEEDED)],
            _ => vec![],
        };
        assert_eq!(lab.take_all(conn), reported);
        assert!(lab.events.iter().any(|event| matches!(event,
                Event::Disconnected { username: Some(name), ended, .. }
                    if &**name == "eve" && matches!(ended, Ended::LargestConsumer { .. }))));
    }
}

#[test]
fn queues_of_those_who_hold_most_do_not_grow_while_memory_is_short() {
    let Town { mut lab, modest, .. } = town();
    lab.shared.set_memory_left(Memory::Tight, 400_000);
    look(&mut lab);
    for number in 0..20 {
        for topic in ["to/greedy", "to/modest"] {
            lab.send_only(modest, &publish(topic, &[7; 1_000], 1, number + 1));
            lab.settle_mail();
        }
    }
    assert_eq!(used(&lab, "address greedy", MemoryKind::Queued), 0);
    assert!(used(&lab, "address modest", MemoryKind::Queued) > 20_000);
    assert_eq!(lab.total(|m| &m.dropped_queue_full), 20, "counted");
}

// Retained messages.

fn retain(lab: &mut Lab, conn: Conn, topic: &str, bytes: usize) -> bool {
    lab.send(conn, &retained(topic, &vec![7; bytes], 1, 1));
    match lab.take_all(conn)[..] {
        [Got::Ack(AckKind::Puback, 1, reason)] => !reason.is_error(),
        ref other => panic!("expected a PUBACK, got {other:?}"),
    }
}

fn retained_lab(shards: u16, own_max: Option<u64>) -> Lab {
    let settings = Settings {
        retained_bytes_max: 100_000,
        retained_bytes_per_owner_max: own_max,
        ..Settings::default()
    };
    Lab::with(shards, settings, Access::open())
}

#[test]
fn the_retained_messages_of_one_owner_leave_room_for_those_of_others() {
    for shards in [1, 3] {
        let mut lab = retained_lab(shards, None);
        let greedy = lab.open(user("greedy", "one"));
        let second = lab.open(user("greedy", "two"));
        let count = (0..100)
            .filter(|n| {
                let conn = if n % 2 == 0 { greedy } else { second };
                retain(&mut lab, conn, &format!("greedy/{n}"), 1_000)
            })
            .count();
        assert!((40..=50).contains(&count), "{count} with {shards} shards");
        let modest = lab.open(user("modest", "other"));
        let count =
            (0..20).filter(|n| retain(&mut lab, modest, &format!("modest/{n}"), 1_000)).count();
        assert!(count >= 20, "{count}");
        // They are charged as long as they are there, whoever is gone; replacing takes no more.
        assert!(retain(&mut lab, greedy, "greedy/1", 900));
        lab.cut(greedy);
        lab.cut(second);
        assert!(used(&lab, "user greedy", MemoryKind::Retained) > 40_000);
        let again = lab.open(user("greedy", "three"));
        assert!(!retain(&mut lab, again, "more", 1_000));
        // The client that replaces one is charged from then on.
        let before = used(&lab, "user modest", MemoryKind::Retained);
        assert!(retain(&mut lab, modest, "greedy/2", 1_000));
        assert!(used(&lab, "user modest", MemoryKind::Retained) > before + 1_000);
        for n in 0..100 {
            assert!(retain(&mut lab, modest, &format!("greedy/{n}"), 0), "clearing goes on");
        }
        assert_eq!(used(&lab, "user greedy", MemoryKind::Retained), 0);
        assert!(retain(&mut lab, again, "more", 1_000));
    }
}

#[test]
fn the_part_of_one_owner_of_retained_bytes_can_be_set() {
    let mut lab = retained_lab(2, Some(80_000));
    let owner = lab.open(user("owner", "one"));
    let count = (0..100).filter(|n| retain(&mut lab, owner, &format!("t/{n}"), 1_000)).count();
    assert!((65..=80).contains(&count), "{count}");
    let mut lab = retained_lab(2, Some(5_000));
    let small = lab.open(user("small", "one"));
    let count = (0..100).filter(|n| retain(&mut lab, small, &format!("t/{n}"), 1_000)).count();
    assert_eq!(count, 4);
}
