//! Journals of which one has no room or is out of service: who is refused for it, and who is not.

use broker::{Settings, WhenFull};
use codec::{AckKind, Packet, Property, PropertyBuf, Reason};
use rig::{Conn, Got, Lab, persistent, retained};
use storage::Status;

/// Two shards, each with a session that is away: its messages on `zero/#` and `one/#`.
fn two_shards(settings: Settings) -> (Lab, Conn) {
    let mut lab = Lab::durable_with(2, settings);
    for (shard, filter) in [(0, "zero/#"), (1, "one/#")] {
        let id = lab.id_on(shard, "away");
        let away = lab.open(persistent(&id));
        lab.subscribe(away, filter, 1);
        lab.cut(away);
    }
    let publisher = lab.id_on(0, "publisher");
    let publisher = lab.open(persistent(&publisher));
    (lab, publisher)
}

fn fill(lab: &mut Lab, publisher: Conn) {
    lab.disks[1].faults.capacity_bytes = 4 * 64 * 1024;
    for packet_id in 1..1000 {
        lab.publish(publisher, "one/a", &[b'x'; 4000], 1, packet_id);
        if matches!(lab.shards[1].journal_status(), Some(Status::Full(_))) {
            lab.take_all(publisher);
            return;
        }
    }
    panic!("the disk is never full");
}

fn answer(lab: &mut Lab, conn: Conn, packet: &Packet<'_>) -> Option<Reason> {
    lab.send(conn, packet);
    let answers: Vec<Reason> = lab
        .take_all(conn)
        .into_iter()
        .filter_map(|got| match got {
            Got::Ack(_, _, reason) => Some(reason),
            _ => None,
        })
        .collect();
    assert!(answers.len() < 2, "{answers:?}");
    answers.first().copied()
}

#[test]
fn only_what_the_full_journal_has_to_keep_is_refused() {
    let (mut lab, publisher) = two_shards(Settings::default());
    fill(&mut lab, publisher);
    let refused = Some(Reason::QUOTA_EXCEEDED);
    let (here, there) = (lab.topic_on(0, "r"), lab.topic_on(1, "r"));
    for (qos, packet_id) in [(1, 2000), (2, 3000)] {
        let one = rig::publish("one/a", &[b'x'; 4000], qos, packet_id);
        assert_eq!(answer(&mut lab, publisher, &one), refused, "QoS {qos}");
        let zero = rig::publish("zero/a", &[b'x'; 4000], qos, packet_id + 1);
        assert_eq!(answer(&mut lab, publisher, &zero), Some(Reason::SUCCESS), "QoS {qos}");
        let kept = retained(&here, &[b'x'; 4000], qos, packet_id + 2);
        assert!(!answer(&mut lab, publisher, &kept).expect("an answer").is_error(), "QoS {qos}");
        let unkept = retained(&there, &[b'x'; 4000], qos, packet_id + 3);
        assert_eq!(answer(&mut lab, publisher, &unkept), refused, "QoS {qos}");
    }
}

#[test]
fn the_reason_is_that_of_the_journal_that_has_no_room() {
    let (mut lab, publisher) = two_shards(Settings::default());
    fill(&mut lab, publisher);
    // The publisher's own journal is out of service, which is no matter to what it need not keep.
    lab.disks[0].faults.fail_next_sync = true;
    lab.publish(publisher, "zero/a", b"1", 1, 2000);
    lab.take_all(publisher);
    assert!(matches!(lab.shards[0].journal_status(), Some(Status::Poisoned(_))));
    let zero = answer(&mut lab, publisher, &rig::publish("zero/a", b"2", 1, 2001));
    assert_eq!(zero, Some(Reason::IMPLEMENTATION_SPECIFIC_ERROR));
    let one = answer(&mut lab, publisher, &rig::publish("one/a", &[b'x'; 4000], 1, 2002));
    assert_eq!(one, Some(Reason::QUOTA_EXCEEDED));
}

#[test]
fn only_who_publishes_to_the_full_journal_has_to_wait() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let (mut lab, publisher) = two_shards(settings);
    fill(&mut lab, publisher);
    lab.collect_closes();
    lab.pauses.clear();
    lab.publish(publisher, "zero/a", b"1", 1, 2000);
    let answers = lab.take_all(publisher);
    assert_eq!(answers, [Got::Ack(AckKind::Puback, 2000, Reason::SUCCESS)]);
    assert_eq!(lab.pauses, []);
    lab.publish(publisher, "one/a", b"1", 1, 2001);
    assert_eq!(lab.take_all(publisher), []);
    assert_eq!(lab.pauses.len(), 1);
}

#[test]
fn what_is_retained_is_cleared_on_a_full_disk() {
    for when_full in [WhenFull::Refuse, WhenFull::Wait] {
        let (mut lab, publisher) = two_shards(Settings { when_full, ..Settings::default() });
        let there = lab.topic_on(1, "r");
        for qos in [1, 2] {
            let kept = retained(&there, b"kept", qos, u16::from(qos));
            assert!(!answer(&mut lab, publisher, &kept).expect("an answer").is_error());
            if qos == 1 {
                fill(&mut lab, publisher);
                let cleared = answer(&mut lab, publisher, &retained(&there, b"", qos, 5000));
                assert!(!cleared.expect("an answer").is_error(), "{when_full:?}");
                lab.disks[1].faults.capacity_bytes = u64::MAX;
                lab.pass_secs(3);
            }
        }
        let cleared = answer(&mut lab, publisher, &retained(&there, b"", 2, 5001));
        assert_eq!(cleared, Some(Reason::SUCCESS));
    }
}

#[test]
fn what_is_behind_a_refused_publish_of_a_client_that_is_gone_waits_for_it_to_come_again() {
    let settings = Settings { when_full: WhenFull::Wait, ..Settings::default() };
    let (mut lab, publisher) = two_shards(settings);
    fill(&mut lab, publisher);
    let reader = lab.open(rig::request("reader"));
    lab.subscribe(reader, "zero/#", 1);
    lab.send_only(publisher, &rig::publish("one/a", &[b'x'; 4000], 1, 2000));
    lab.send_only(publisher, &rig::publish("zero/a", b"behind", 1, 2001));
    lab.settle();
    assert_eq!(lab.take_all(reader), [], "both wait");
    lab.cut(publisher);
    lab.settle();
    assert_eq!(lab.take_all(reader), []);
}

#[test]
fn a_subscription_waits_for_a_disk_that_is_only_behind() {
    let mut lab = Lab::durable(1);
    let subscriber = lab.open(persistent("subscriber"));
    lab.disks_stand_still = true;
    for number in 0..100 {
        let filter = format!("{number}/{}", "x".repeat(2000));
        lab.subscribe_all(subscriber, &[&filter], 1);
    }
    assert_eq!(lab.take_all(subscriber), []);
    assert!(!lab.pauses.is_empty());
    lab.disks_stand_still = false;
    for _ in 0..100 {
        lab.pass_secs(1);
        lab.bytes(subscriber, &[]);
    }
    assert_eq!(lab.take_all(subscriber), vec![Got::Suback(1, vec![1]); 100]);
}

/// A PUBLISH with so many bytes of user property.
fn with_property<'a>(packet: Packet<'a>, properties: &'a PropertyBuf) -> Packet<'a> {
    match packet {
        Packet::Publish(publish) => {
            Packet::Publish(codec::Publish { properties: properties.as_properties(), ..publish })
        }
        other => other,
    }
}

/// Each of them is written for the subscriber and as the retained message of its topic, with all
/// its properties: room for one of both is not enough.
#[test]
fn a_retained_publish_waits_for_a_disk_that_is_only_behind() {
    let mut lab = Lab::durable(1);
    let away = lab.open(persistent("away"));
    lab.subscribe(away, "r/#", 1);
    lab.cut(away);
    let publisher = lab.open(persistent("publisher"));
    let mut properties = PropertyBuf::new();
    properties.push(Property::User("name", &"x".repeat(4000)));
    lab.disks_stand_still = true;
    for packet_id in 1..=40 {
        let topic = format!("r/{packet_id}");
        let packet = retained(&topic, &[b'x'; 2000 + 97], 1, packet_id);
        lab.send(publisher, &with_property(packet, &properties));
    }
    assert_eq!(lab.take_all(publisher), []);
    assert!(!lab.pauses.is_empty());
    lab.disks_stand_still = false;
    for _ in 0..100 {
        lab.pass_secs(1);
        lab.bytes(publisher, &[]);
    }
    let answers = lab.take_all(publisher);
    assert_eq!(answers.len(), 40);
    for got in answers {
        assert!(matches!(got, Got::Ack(AckKind::Puback, _, Reason::SUCCESS)), "{got:?}");
    }
}
