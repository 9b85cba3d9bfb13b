//! What has expired takes no room in a queue (MQTT-3.3.2-5).

use crate::rows::{
    Stage, Step, all, counts, does, keeps, opens, passes, reads_all, row, run, sends, waits_ms,
};
use broker::{ConnectRequest, Limits, Settings};
use codec::{Packet, Property, PropertyBuf, Publish};
use policy::Access;
use rig::{Conn, Got, Lab, persistent, queue, read_all, request, window, with_limits};
use session::{MemoryKind, Overflow, QueueLimits};

const POLICIES: [Overflow; 3] = [Overflow::DropNewest, Overflow::DropOldest, Overflow::Reject];

/// Publishes these, with a lifetime or without; returns how many were refused.
fn publish(
    lab: &mut Lab,
    conn: Conn,
    numbers: std::ops::Range<u32>,
    expiry_secs: Option<u32>,
) -> usize {
    let mut properties = PropertyBuf::new();
    if let Some(secs) = expiry_secs {
        properties.push(Property::MessageExpirySecs(secs));
    }
    for number in numbers {
        let payload = number.to_string();
        let Packet::Publish(publish) = rig::publish("t", payload.as_bytes(), 1, 1) else {
            unreachable!()
        };
        let properties = properties.as_properties();
        lab.send(conn, &Packet::Publish(Publish { properties, ..publish }));
    }
    let is_refusal = |got: &&Got| matches!(got, Got::Ack(_, _, reason) if reason.is_error());
    lab.take_all(conn).iter().filter(is_refusal).count()
}

/// The same as a step, in which none is refused.
fn publishes(numbers: std::ops::Range<u32>, expiry_secs: Option<u32>) -> Step {
    does(move |stage| {
        let writer = stage.conn("writer");
        assert_eq!(publish(&mut stage.lab, writer, numbers.clone(), expiry_secs), 0);
    })
}

fn labs(settings: &Settings) -> [Lab; 2] {
    let access = Access::open();
    [Lab::with(2, settings.clone(), access), Lab::durable_with(2, settings.clone())]
}

/// With sessions that reject if that is their policy.
fn rejecting(overflow: Overflow) -> Settings {
    Settings { rejects: overflow == Overflow::Reject, ..Settings::default() }
}

fn of(address: &str, request: ConnectRequest) -> ConnectRequest {
    ConnectRequest { origin: address.into(), ..request }
}

fn texts(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|number| number.to_string()).collect()
}

/// A full queue, in which some live on.
#[derive(Clone, Copy, Debug)]
struct FullQueue {
    overflow: Overflow,
    is_online: bool,
    /// Of its messages in turn.
    lifetimes: [Option<u32>; 2],
    /// It is full by its bytes.
    by_bytes: bool,
}

/// No shard has looked at the time since the others expired.
#[test]
fn mqtt_3_3_2_5_each_copy_that_expires_leaves_its_room_at_once() {
    let all = [[Some(1), Some(1)], [None, Some(1)], [Some(1), None], [Some(60), Some(1)]];
    for (overflow, lifetimes) in POLICIES.into_iter().flat_map(|it| all.map(|own| (it, own))) {
        // Where its client is there, publishers are paused while it is half full by its bytes.
        for (is_online, by_bytes) in [(false, false), (true, false), (false, true)] {
            let full = FullQueue { overflow, is_online, lifetimes, by_bytes };
            for lab in labs(&rejecting(overflow)) {
                check_full_queue(lab, full);
            }
        }
    }
}

fn check_full_queue(mut lab: Lab, full: FullQueue) {
    let FullQueue { overflow, is_online, lifetimes, by_bytes } = full;
    let what = format!("{full:?}, durable {}", !lab.disks.is_empty());
    let back = |limits: &Limits| with_limits(persistent("subscriber"), limits.clone());
    let mut limits = queue(8, overflow);
    let mut conn = lab.open(back(&limits));
    lab.subscribe(conn, "t", 1);
    let publisher = lab.open(of("publisher", request("publisher")));
    // With a window of one, the first is in flight.
    publish(&mut lab, publisher, 10..11, None);
    let logged = lab.shared.ledger.bytes(MemoryKind::Logged);
    for (number, lifetime) in (11..19).zip(lifetimes.into_iter().cycle()) {
        publish(&mut lab, publisher, number..number + 1, lifetime);
    }
    if by_bytes {
        let queued = lab.session("subscriber").expect("it is kept").queued_bytes;
        let logged = lab.shared.ledger.bytes(MemoryKind::Logged) - logged;
        limits.queue.bytes_max = queued + logged;
        limits.queue.messages_max = u32::MAX;
    }
    lab.cut(conn);
    conn = lab.open(back(&limits));
    if !is_online {
        lab.cut(conn);
    }
    lab.now_ms += 1_001;
    let all = (11..19).zip(lifetimes.into_iter().cycle());
    let live = all.filter(|(_, lifetime)| *lifetime != Some(1)).map(|(number, _)| number);
    let mut expected: Vec<u32> = live.collect();
    let free = 8 - expected.len() as u32;
    expected.extend(20..20 + free);
    let counts =
        |lab: &Lab| (lab.total(|it| &it.dropped_queue_full), lab.total(|it| &it.dropped_expired));
    assert_eq!(publish(&mut lab, publisher, 20..20 + free, None), 0, "{what}");
    assert_eq!(counts(&lab), (0, free.into()), "{what}");
    // By bytes there may be some room left: what never expires is shorter.
    if !by_bytes {
        let refused = publish(&mut lab, publisher, 90..91, None);
        let is_refused = overflow == Overflow::Reject;
        assert_eq!((refused, counts(&lab).0), (is_refused.into(), (!is_refused).into()), "{what}");
    }
    if overflow == Overflow::DropOldest && !by_bytes {
        expected.remove(0);
        expected.push(90);
    }
    expected.insert(0, 10);
    if !is_online {
        conn = lab.open(back(&limits));
    }
    let mut read = read_all(&mut lab, conn);
    read.dedup();
    assert_eq!(read, texts(expected), "{what}");
}

/// In sessions, groups and shares of an owner: what has expired is gone, and is counted once.
#[test]
fn what_has_expired_takes_no_room() {
    // Another client of the owner.
    let own = |number| format!("anna-{number}");
    let share = Settings { queues_bytes_max: 20_000, ..Settings::default() };
    let queued = |expected: u64, or_more: u64| {
        does(move |stage| {
            let queued = stage.lab.shared.ledger.bytes(MemoryKind::Queued);
            assert!((expected..=expected + or_more).contains(&queued), "{queued}");
        })
    };
    run([row(
        "MQTT-3.3.2-5",
        "its owner has its share again",
        Lab::with(2, share, Access::open()),
    )
    .steps((0..4).map(|number| {
        let subscribe = format!("subscribe t/{number} qos1");
        let anna = opens(&own(number), |request| of("anna", crate::rows::kept(request)));
        all([anna, sends(&own(number), [subscribe.as_str(), "cut"])])
    }))
    .steps([
        sends("writer", (0..200).map(|number| format!("publish t/{} 0 qos1 expiry2", number % 3))),
        queued(9_000, 11_000),
        // Nothing comes for these sessions any more, and what waits in them has expired.
        passes(3),
        queued(0, 0),
        does(|stage| {
            let dropped = stage.lab.total(|m| &m.dropped_queue_full);
            assert!(dropped > 0, "the share was used up");
            let writer = stage.conn("writer");
            for _ in 0..40 {
                stage.lab.publish(writer, "t/3", b"0", 1, 1);
            }
            assert_eq!(stage.lab.total(|m| &m.dropped_queue_full), dropped);
            assert_eq!(stage.lab.total(|m| &m.dropped_expired), 200 - dropped);
        }),
    ])]);
    for overflow in [Overflow::DropNewest, Overflow::DropOldest] {
        let share_queue =
            QueueLimits { messages_max: 10, overflow, ..Settings::default().share_queue };
        let labs = labs(&Settings { share_queue, ..Settings::default() });
        run([row("MQTT-3.3.2-5", format!("the queue of a group, {overflow:?}"), labs).steps([
            keeps("member", window(1)),
            sends("member", ["subscribe $share/g/t qos1", "cut"]),
            publishes(1..5, None),
            publishes(5..8, Some(1)),
            publishes(8..11, Some(2)),
            waits_ms(1_001),
            publishes(11..14, None),
            waits_ms(1_000),
            publishes(14..17, Some(60)),
            counts(|m| &m.dropped_group, 0),
            keeps("member", window(1)),
            reads_all("member", (1..5).chain(11..17)),
            counts(|m| &m.dropped_expired, 6),
        ])]);
    }
    for overflow in POLICIES {
        let back = || keeps("reader", queue(10, overflow));
        let name = format!("the queue of a session after a start, {overflow:?}");
        run([row("MQTT-3.3.2-5", name, Lab::durable_with(1, rejecting(overflow))).steps([
            all([back(), sends("reader", ["subscribe t qos1", "cut"])]),
            publishes(0..1, None),
            publishes(1..10, Some(20)),
            does(Stage::restart),
            all([back(), sends("reader", ["cut"])]),
            passes(30),
            publishes(10..20, None),
            back(),
            reads_all("reader", [0].into_iter().chain(10..20)),
            counts(|m| &m.dropped_queue_full, 0),
        ])]);
    }
}

/// A kept session that is full of what has expired, again and again, while it is away and while it
/// does not acknowledge.
#[test]
fn what_expires_round_after_round_is_counted_each_time() {
    for (overflow, reattaches) in POLICIES.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let back = move || keeps("reader", queue(10, overflow));
        let round = move |round: u32| {
            let first = round * 100;
            let again = [all([sends("reader", ["cut"]), back()])].into_iter();
            let expired = (0..round).map(|before| u64::from(10 - before)).sum::<u64>();
            [publishes(first..first + 11 - round, Some(2))]
                .into_iter()
                .chain(again.filter(move |_| reattaches))
                .chain([
                    passes(5),
                    // Makes the queue one longer, and takes what has expired off its front.
                    publishes(first + 50..first + 51, None),
                    counts(|m| &m.dropped_expired, expired),
                    does(move |stage| {
                        let queued = stage.lab.session("reader").expect("a session").queued;
                        assert_eq!(queued, u64::from(round));
                    }),
                ])
        };
        let name = format!("{overflow:?}, reattaches {reattaches}");
        run([row("MQTT-3.3.2-5", name, Lab::durable_with(1, rejecting(overflow)))
            .steps([back(), sends("reader", ["subscribe t qos1"]), publishes(0..1, None)])
            .steps((1..=5).flat_map(round))
            .steps([
                counts(|m| &m.dropped_queue_full, 0),
                back(),
                reads_all("reader", [0].into_iter().chain((1..=5).map(|round| round * 100 + 50))),
                counts(|m| &m.dropped_expired, 40),
            ])]);
    }
}

/// What a kept session without a connection has waiting, and what has become of the rest.
#[derive(Default)]
struct Model {
    /// With the time from which they are gone.
    waiting: Vec<(u32, u64)>,
    in_flight: Option<u32>,
    full: u64,
    refused: usize,
}

impl Model {
    fn publish(&mut self, number: u32, expiry_secs: Option<u32>, now: u64, overflow: Overflow) {
        self.waiting.retain(|(_, gone)| *gone > now);
        let gone = expiry_secs.map_or(u64::MAX, |secs| now + u64::from(secs) * 1000);
        if self.waiting.len() < 10 {
            self.waiting.push((number, gone));
            return;
        }
        match overflow {
            Overflow::Reject => self.refused += 1,
            Overflow::DropOldest => {
                self.full += 1;
                self.waiting.remove(0);
                self.waiting.push((number, gone));
            }
            _ => self.full += 1,
        }
    }

    /// The session comes back: what has expired by now is not sent.
    fn attach(&mut self, now: u64) {
        while self.in_flight.is_none() && !self.waiting.is_empty() {
            let (number, gone) = self.waiting.remove(0);
            self.in_flight = (gone > now).then_some(number);
        }
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn a_full_queue_takes_what_a_count_of_all_that_waits_leaves_room_for(
        policy in 0..POLICIES.len(),
        is_durable: bool,
        steps in proptest::collection::vec((0..9_u32, 1..6_u32), 1..40),
    ) {
        let overflow = POLICIES[policy];
        let [memory, durable] = labs(&rejecting(overflow));
        let mut lab = if is_durable { durable } else { memory };
        let back = || with_limits(persistent("subscriber"), queue(10, overflow));
        let conn = lab.open(back());
        lab.subscribe(conn, "t", 1);
        lab.cut(conn);
        let publisher = lab.open(request("publisher"));
        let (mut model, mut now, mut number, mut refused) = (Model::default(), 0, 0, 0);
        for (step, size) in steps {
            let expiry_secs = match step {
                0..=2 => None,
                3..=5 => Some(size),
                6 => {
                    lab.pass_secs(size.into());
                    now += u64::from(size) * 1000;
                    continue;
                }
                7 => {
                    lab.now_ms += u64::from(size) * 300;
                    now += u64::from(size) * 300;
                    continue;
                }
                _ => {
                    // What is in flight comes again.
                    let conn = lab.open(back());
                    lab.cut(conn);
                    model.attach(now);
                    continue;
                }
            };
            for _ in 0..size {
                refused += publish(&mut lab, publisher, number..number + 1, expiry_secs);
                model.publish(number, expiry_secs, now, overflow);
                number += 1;
            }
            let queued = lab.session("subscriber").unwrap().queued;
            proptest::prop_assert!(queued >= model.waiting.len() as u64 && queued <= 10);
        }
        model.waiting.retain(|(_, gone)| *gone > now);
        let conn = lab.open(back());
        let waiting = model.waiting.iter().map(|(number, _)| *number);
        let live: Vec<_> = model.in_flight.into_iter().chain(waiting).collect();
        let lived = live.len() as u64;
        proptest::prop_assert_eq!(read_all(&mut lab, conn), texts(live));
        proptest::prop_assert_eq!(refused, model.refused);
        proptest::prop_assert_eq!(lab.total(|metrics| &metrics.dropped_queue_full), model.full);
        let expired = u64::from(number) - model.full - refused as u64 - lived;
        proptest::prop_assert_eq!(lab.total(|metrics| &metrics.dropped_expired), expired);
        proptest::prop_assert_eq!(lab.session("subscriber").unwrap().queued, 0);
    }
}

/// However many wait: a queue is looked through once they are worth it, and whoever is the reason
/// is charged. What waits in the journal is not looked through.
#[test]
fn what_has_expired_is_taken_off_a_long_queue_at_a_cost_that_is_charged() {
    const MESSAGES: u32 = 2000;
    for (number, mut lab) in labs(&Settings::default()).into_iter().enumerate() {
        let back = || with_limits(persistent("subscriber"), queue(MESSAGES, Overflow::DropNewest));
        let conn = lab.open(back());
        lab.subscribe(conn, "t", 1);
        lab.cut(conn);
        let publisher = lab.open(request("publisher"));
        let expired = |lab: &Lab| lab.total(|metrics| &metrics.dropped_expired);
        // Of the turn that takes one more.
        let units = |lab: &mut Lab| {
            let before: u32 = lab.shards.iter().map(|shard| shard.work().used()).sum();
            lab.send_only(publisher, &rig::publish("t", b"x", 1, 1));
            lab.deliver_mail();
            let after: u32 = lab.shards.iter().map(|shard| shard.work().used()).sum();
            lab.settle();
            lab.take_all(publisher);
            after - before
        };
        publish(&mut lab, publisher, 0..MESSAGES / 2, None);
        publish(&mut lab, publisher, 0..MESSAGES / 2 - 1, Some(20));
        assert_eq!(units(&mut lab), 0, "it has room, {number}");
        assert_eq!(units(&mut lab), 0, "it is full, and nothing has expired, {number}");
        lab.now_ms += 25_000;
        let looked_through = units(&mut lab);
        match number {
            0 => assert!(looked_through >= MESSAGES / 4, "{looked_through}"),
            _ => assert_eq!(looked_through, 0),
        }
        assert_eq!(expired(&lab), u64::from(MESSAGES / 2 - 1));
        assert_eq!(units(&mut lab), 0, "it has been looked through, {number}");
        assert_eq!(lab.session("subscriber").unwrap().queued, u64::from(MESSAGES / 2 + 3));
    }
}
