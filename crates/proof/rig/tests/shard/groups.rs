//! Shared groups across shards: who knows of a member, from when on, and what is kept for it.

use crate::rows::{
    Step, all, asks, connects, counts, crashes, does, gets, is_closed, is_open, kept, opens,
    passes, posts, reads, reads_all, row, run, sends, settles,
};
use broker::{ConnectRequest, Durability, Limits, Settings, WhenFull};
use codec::{AckKind, Reason};
use policy::{Access, Permission, Who};
use rig::{Got, Lab, persistent, request, rule, with_limits};
use storage::Status;

/// Shards do their work, but for one that hears nothing.
fn settles_but(deaf: u16) -> Step {
    does(move |stage| stage.lab.settle_but(deaf))
}

/// A kept member asks for its subscription while a shard hears nothing of it.
fn asks_behind(deaf: u16) -> Step {
    all([
        sends("member@0", ["kept"]),
        posts("member@0", "subscribe $share/g/t/# qos1 id7"),
        settles_but(deaf),
    ])
}

/// Whoever publishes as soon as the SUBACK has come, on whichever shard, finds the member.
#[test]
fn from_the_suback_on() {
    for deaf in [1, 2] {
        let writer = format!("writer@{deaf}");
        let answered = || {
            all([
                opens(&writer, |request| request),
                asks_behind(deaf),
                // The shard of the publisher does not know of the member yet.
                gets("member@0", []),
                settles(),
                gets("member@0", ["suback 7: 1"]),
                asks(&writer, "publish t/a 1 qos1", ["puback 1"]),
            ])
        };
        run([
            row("", format!("shard {deaf} finds a group in memory"), Lab::new(3))
                .steps([answered(), reads("member@0", [1])]),
            row("", format!("shard {deaf} keeps it in the journal"), Lab::durable(3)).steps([
                answered(),
                crashes(),
                sends("member@0", ["kept"]),
                reads("member@0", [1]),
            ]),
        ]);
    }
}

#[test]
fn members() {
    let at = |durability| {
        let limits = Limits { durability, ..Limits::default() };
        move |request| with_limits(kept(request), limits.clone())
    };
    run([
        row("", "a member whose QoS rises waits for all shards", Lab::durable(2)).steps([
            opens("writer@1", |request| request),
            sends("member@0", ["kept", "subscribe $share/g/t/#"]),
            posts("member@0", "subscribe $share/g/t/# qos1 id7"),
            settles_but(1),
            gets("member@0", []),
            settles(),
            gets("member@0", ["suback 7: 1"]),
            asks("writer@1", "publish t/a 1 qos1", ["puback 1"]),
            crashes(),
            sends("member@0", ["kept"]),
            reads("member@0", [1]),
        ]),
        row("", "after a start all shards know who keeps what", Lab::durable(3)).steps([
            sends("member@0", ["kept", "subscribe $share/g/t/# qos1"]),
            crashes(),
            asks("writer@2", "publish t/a 1 qos1", ["puback 1"]),
            crashes(),
            sends("member@0", ["kept"]),
            reads("member@0", [1]),
        ]),
        row("", "who asks again waits for the first answer too", Lab::durable(2)).steps([
            asks_behind(1),
            posts("member@0", "subscribe $share/g/t/# qos1 id8"),
            settles_but(1),
            gets("member@0", []),
            settles(),
            gets("member@0", ["suback 7: 1", "suback 8: 1"]),
        ]),
        row("", "a late answer is not for the next connection", Lab::durable(2)).steps([
            asks_behind(1),
            connects("member@0#2", kept),
            gets("member@0#2", ["connack present"]),
            is_closed("member@0"),
        ]),
        row("", "who waits when the journal fails is cut off", Lab::durable(2)).steps([
            sends("member@0", ["kept"]),
            posts("member@0", "subscribe $share/g/t/# qos1 id7"),
            does(|stage| stage.lab.disks[0].faults.fail_next_sync = true),
            settles_but(1),
            is_open("member@0"),
            settles(),
            gets("member@0", ["disconnect implementation_specific_error"]),
        ]),
        row("", "messages are kept for a session that becomes durable", Lab::durable(2)).steps([
            opens("member@0", at(Durability::Memory)),
            sends("member@0", ["subscribe $share/g/t/# qos2"]),
            opens("member@0", at(Durability::Fsync)),
            asks("writer@1", "publish t/a 1 qos1", ["puback 1"]),
            sends("writer@1", ["publish t/a 2 qos2 id2", "pubrel 2"]),
            // At QoS 2 the client would take what has the packet id after a crash for a repetition.
            gets("member@0", ["publish t/a 1 qos1 id1", "publish t/a 2 qos1 id2"]),
            crashes(),
            opens("member@0", at(Durability::Fsync)),
            reads("member@0", [1, 2]),
        ]),
    ]);
}

#[test]
fn while_very_many_wait_for_other_shards_no_subscribe_is_read() {
    run([row("", "a flood of SUBSCRIBEs", Lab::new(2)).steps([
        sends("member@0", ["kept"]),
        does(|stage| {
            let member = stage.conn("member@0");
            let mut asked = 0_u16;
            while stage.lab.pauses.is_empty() {
                asked += 1;
                let text = format!("subscribe $share/g/t/# qos1 id{asked}");
                crate::notation::with_packet(&text, |packet| stage.lab.send_only(member, packet));
            }
            stage.lab.settle();
            stage.lab.bytes(member, &[]);
            stage.lab.settle();
            let answers: Vec<Got> = (1..=asked).map(|id| Got::Suback(id, vec![1])).collect();
            assert_eq!(stage.lab.take_all(member), answers);
        }),
    ])]);
}

/// Full disks of all shards, and a group with a kept member that is away.
fn full_disks(when_full: WhenFull) -> Lab {
    let mut lab = Lab::durable_with(2, Settings { when_full, ..Settings::default() });
    let member = lab.open(persistent("member"));
    lab.subscribe(member, "$share/g/t/#", 1);
    lab.cut(member);
    let publisher = lab.open(request("other"));
    for shard in 0..2 {
        let away = lab.id_on(shard, "away");
        let away = lab.open(persistent(&away));
        let topic = format!("f/{shard}");
        lab.subscribe(away, &topic, 1);
        lab.cut(away);
        lab.disks[usize::from(shard)].faults.capacity_bytes = 4 * 64 * 1024;
        let mut packet_id = 0;
        while !matches!(lab.shards[usize::from(shard)].journal_status(), Some(Status::Full(_))) {
            packet_id += 1;
            lab.publish(publisher, &topic, &[b'x'; 4000], 1, packet_id);
            assert!(packet_id < 1000, "the disk is never full");
        }
    }
    lab
}

#[test]
fn groups_without_room() {
    let rows = [0, 1].map(|shard| {
        let writer = &format!("writer@{shard}");
        let once = || {
            all([
                asks(writer, "publish t/a 1 qos1", []),
                sends(writer, ["cut"]),
                opens(writer, |own| own),
            ])
        };
        let frees = |stage: &mut crate::rows::Stage| {
            stage.lab.disks.iter_mut().for_each(|disk| disk.faults.capacity_bytes = u64::MAX);
        };
        [
            row(
                "",
                format!("what each connection sends does not pile up, {shard}"),
                full_disks(WhenFull::Wait),
            )
            .steps((0..20).map(|_| once()))
            .steps([
                does(frees),
                passes(3),
                sends(writer, ["cut"]),
                opens(writer, |own| own),
                asks(writer, "publish t/a 1 qos1", ["puback 1"]),
                sends("member", ["kept"]),
                reads_all("member", [1]),
            ]),
            row(
                "",
                format!("what is refused reaches nobody, {shard}"),
                full_disks(WhenFull::Refuse),
            )
            .steps([
                sends("other", ["subscribe t/a qos1"]),
                asks(writer, "publish t/a 1 qos1", ["puback 1 quota_exceeded"]),
                gets("other", []),
            ]),
        ]
    });
    run(rows.into_iter().flatten());
}

/// Somebody without the right to what a group is for is there all the time; who has it is away.
#[test]
fn a_message_waits_for_the_member_that_may_have_it() {
    let user = |name: &str, filter| rule(Who::User(name.into()), Permission::ReadWrite, filter);
    let access = Access::compile(&[user("owner", "#"), user("intruder", "open/#")]);
    let access = access.expect("sound rules").accepting_all_subscriptions(true);
    let of = |name: &'static str| {
        move |request| ConnectRequest { username: Some(name.into()), ..kept(request) }
    };
    let labs = [Lab::new(1), Lab::new(3), Lab::durable(1), Lab::durable(3)];
    run([row("", "an intruder is there, the owner is away", labs).steps([
        crate::rows::rules(access),
        opens("owner", of("owner")),
        sends("owner", ["subscribe $share/g/t/# qos1", "cut"]),
        opens("intruder", of("intruder")),
        sends("intruder", ["subscribe $share/g/t/# qos1"]),
        opens("writer", of("owner")),
        sends("writer", (1..=20).map(|number| format!("publish t/a {number} qos1 id{number}"))),
        passes(3),
        gets("intruder", []),
        opens("owner", of("owner")),
        passes(3),
        does(|stage| {
            let owner = stage.conn("owner");
            let mut got: Vec<u32> = rig::read_all(&mut stage.lab, owner)
                .iter()
                .filter_map(|payload| payload.parse().ok())
                .collect();
            got.sort_unstable();
            assert_eq!(got, (1..21).collect::<Vec<_>>());
        }),
        counts(|m| &m.dropped_group, 0),
    ])]);
}

/// What leads to it stands in the tables of other shards until they hear of it, and here until its
/// turn comes.
#[test]
fn nobody_does_anything_for_a_group_whose_last_member_is_gone() {
    for shard in [0, 1] {
        let mut lab = Lab::new(2);
        let [member, publisher] = [("member", 0), ("publisher", shard)].map(|(name, shard)| {
            let id = lab.id_on(shard, name);
            lab.open(request(&id))
        });
        let filters: Vec<_> = (0..100).map(|number| format!("$share/g{number}/t/#")).collect();
        lab.subscribe_all(member, &filters, 1);
        lab.take_all(member);
        let (shard_of_member, slot) = lab.place(member);
        let now_ms = lab.now_ms;
        lab.shards[shard_of_member].on_closed(slot, member, now_ms);
        lab.send_only(publisher, &rig::publish("t/a", b"x", 1, 1));
        lab.settle();
        let answer = Got::Ack(AckKind::Puback, 1, Reason::NO_MATCHING_SUBSCRIBERS);
        assert_eq!(lab.take_all(publisher), [answer], "shard {shard}");
        assert_eq!(lab.total(|metrics| &metrics.dropped_group), 0, "shard {shard}");
    }
}
