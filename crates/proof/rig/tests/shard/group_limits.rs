//! The queue of a shared group has one limit, wherever its messages wait.

use crate::rows::{
    Stage, Step, all, counts, crashes, does, kept, opens, passes, row, rules, run, sends,
};
use broker::{ConnectRequest, Settings};
use policy::{Access, Permission, Who};
use rig::{Lab, rule, window, with_limits};
use session::{Overflow, QueueLimits};

const MESSAGES_MAX: u32 = 10;
const POLICIES: [Overflow; 3] = [Overflow::DropOldest, Overflow::DropNewest, Overflow::Reject];

/// With one shard and with three, in memory and in journals.
fn labs(share_queue: QueueLimits) -> [Lab; 4] {
    let settings = Settings { share_queue, ..Settings::default() };
    let [one, three] = [1, 3].map(|shards| {
        [
            Lab::with(shards, settings.clone(), access()),
            with_access(Lab::durable_with(shards, settings.clone())),
        ]
    });
    let ([a, b], [c, d]) = (one, three);
    [a, b, c, d]
}

fn limits(messages_max: u32, overflow: Overflow) -> QueueLimits {
    QueueLimits { messages_max, overflow, ..Settings::default().share_queue }
}

/// Owners may have all, an intruder may subscribe and gets nothing.
fn access() -> Access {
    let user = |name: &str, filter| rule(Who::User(name.into()), Permission::ReadWrite, filter);
    let access = Access::compile(&[user("owner", "#"), user("intruder", "open/#")]);
    access.expect("sound rules").accepting_all_subscriptions(true)
}

fn with_access(mut lab: Lab) -> Lab {
    lab.shards.iter_mut().for_each(|shard| shard.set_access(access()));
    lab
}

fn of(user: &'static str) -> impl Fn(ConnectRequest) -> ConnectRequest + 'static {
    move |request| ConnectRequest { username: Some(user.into()), ..kept(request) }
}

/// A member of the group.
fn joins(name: &str, user: &'static str) -> Step {
    all([opens(name, of(user)), sends(name, ["subscribe $share/g/t/# qos1"])])
}

/// An owner is away, and as many intruders are there.
fn intruders(count: usize) -> impl Iterator<Item = Step> {
    let away = [joins("owner", "owner"), sends("owner", ["cut"]), opens("writer", of("owner"))];
    let intruders = (0..count).map(|number| joins(&format!("intruder-{number}"), "intruder"));
    away.into_iter().chain(intruders)
}

/// Publishes the numbers; from time to time a second passes.
fn publishes(numbers: std::ops::Range<u32>) -> Step {
    does(move |stage| {
        let writer = stage.conn("writer");
        for number in numbers.clone() {
            stage.lab.publish(writer, "t/a", number.to_string().as_bytes(), 1, 1);
            if number % 7 == 0 {
                stage.lab.pass_secs(1);
            }
        }
    })
}

fn read(stage: &mut Stage) -> Vec<u32> {
    let owner = stage.conn("owner");
    let read = stage.read_all(owner).into_iter();
    let text = |payload| String::from_utf8(payload).expect("text");
    let mut numbers: Vec<u32> =
        read.map(|own| text(own.payload).parse().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

/// The owner comes back, and gets these in whatever order.
fn owner_gets(expected: std::ops::Range<u32>) -> Step {
    let reads = does(move |stage| assert_eq!(read(stage), expected.clone().collect::<Vec<_>>()));
    all([opens("owner", of("owner")), passes(5), reads])
}

#[test]
fn members_without_the_right_to_receive_do_not_switch_the_limit_off() {
    for (overflow, count) in POLICIES.into_iter().flat_map(|own| [0, 1, 3].map(|n| (own, n))) {
        let expected = match overflow {
            Overflow::DropOldest => 60 - MESSAGES_MAX..60,
            _ => 0..MESSAGES_MAX,
        };
        let name = format!("{count} intruders, {overflow:?}");
        run([row("", name, labs(limits(MESSAGES_MAX, overflow))).steps(intruders(count)).steps([
            publishes(0..60),
            counts(|m| &m.dropped_group, 50),
            owner_gets(expected),
            counts(|m| &m.dropped_group, 50),
        ])]);
    }
}

/// What one member may have, and another one may not.
#[test]
fn what_waits_counts_together() {
    for overflow in POLICIES {
        let bytes = QueueLimits { bytes_max: 10_000, ..limits(1_000, overflow) };
        let windowed = |request| with_limits(of("owner")(request), window(2));
        run([
            row("", format!("the limit on bytes, {overflow:?}"), labs(bytes))
                .steps(intruders(1))
                .steps([
                    sends("writer", ["publish t/a x*1000 qos1"; 50]),
                    passes(2),
                    opens("owner", of("owner")),
                    passes(5),
                    does(|stage| {
                        let owner = stage.conn("owner");
                        let got = stage.read_all(owner).len();
                        assert!((8..=10).contains(&got), "{got}");
                        assert_eq!(got as u64 + stage.lab.total(|m| &m.dropped_group), 50);
                    }),
                ]),
            // The one who may have messages has as many as its window takes.
            row("", format!("a busy member, {overflow:?}"), labs(limits(MESSAGES_MAX, overflow)))
                .steps([
                    opens("owner", windowed),
                    sends("owner", ["subscribe $share/g/t/# qos1"]),
                    joins("intruder", "intruder"),
                    opens("writer", of("owner")),
                    publishes(0..30),
                    sends("intruder", ["cut"]),
                    publishes(30..60),
                    counts(|m| &m.dropped_group, 48),
                    does(|stage| {
                        let mut got = 0;
                        for _ in 0..5 {
                            got += read(stage).len();
                            stage.lab.pass_secs(1);
                        }
                        assert_eq!(got, 12);
                    }),
                    counts(|m| &m.dropped_group, 48),
                ]),
        ]);
    }
}

#[test]
fn members_that_come_and_go() {
    let oldest = |most| limits(most, Overflow::DropOldest);
    let durable = [1, 3].map(|shards| {
        let settings = Settings { share_queue: oldest(MESSAGES_MAX), ..Settings::default() };
        with_access(Lab::durable_with(shards, settings))
    });
    run([
        row(
            "",
            "what has expired counts as expired wherever it waits",
            labs(limits(MESSAGES_MAX, Overflow::DropNewest)),
        )
        .steps(intruders(1))
        .steps([
            sends("writer", (1..=10).map(|id| format!("publish t/a x qos1 id{id} expiry1"))),
            passes(4),
            publishes(0..10),
            owner_gets(0..10),
            counts(|m| &m.dropped_group, 0),
            counts(|m| &m.dropped_expired, 10),
        ]),
        row("", "the limit holds after a start as well", durable).steps(intruders(1)).steps([
            publishes(0..20),
            crashes(),
            rules(access()),
            opens("intruder-0", of("intruder")),
            passes(2),
            opens("writer", of("owner")),
            publishes(20..40),
            owner_gets(30..40),
        ]),
        row("", "an owner that is there gets all", labs(oldest(1_000)))
            .steps([joins("owner", "owner")])
            .steps((0..3).map(|number| joins(&format!("intruder-{number}"), "intruder")))
            .steps([
                sends("other", ["subscribe other/# qos1"]),
                opens("writer", of("owner")),
                publishes(0..50),
                passes(3),
                does(|stage| assert_eq!(read(stage), (0..50).collect::<Vec<_>>())),
            ]),
    ]);
}
