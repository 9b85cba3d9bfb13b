//! Subscriptions whose options change while messages wait for them: what was accepted is delivered,
//! by the options of now (MQTT-3.8.4-4).

use crate::rows::{
    Row, Step, all, asks, crashes, does, keeps, numbers, reads_all, row, run, sends,
};
use rig::{Lab, queue};
use session::Overflow;

/// A client of a window of one, which acknowledges when it is asked to.
fn is_back() -> Step {
    keeps("reader", queue(1000, Overflow::Reject))
}

fn crashes_and_is_back() -> Step {
    all([crashes(), is_back()])
}

/// One is in flight, and all others wait.
fn has_backlog(subscribe: &str) -> Step {
    all([is_back(), sends("reader", [subscribe]), numbers("writer", "t/a", 0..12)])
}

/// Acknowledges until nothing comes any more; these have come at QoS 1 or 2.
fn reads_kept(numbers: impl IntoIterator<Item = u32>) -> Step {
    let expected: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    does(move |stage| {
        let reader = stage.conn("reader");
        let kept = stage.read_all(reader).into_iter().filter(|publish| publish.qos > 0);
        let kept = kept.map(|publish| String::from_utf8(publish.payload).expect("text"));
        assert_eq!(kept.collect::<Vec<_>>(), expected);
    })
}

/// The journal keeps what comes at QoS 0 for somebody else.
fn somebody_else() -> Step {
    sends("other", ["kept", "subscribe t/# qos1"])
}

/// A row without a crash, and one with a crash before its last steps.
fn rows<const N: usize, const M: usize>(
    clause: &'static str,
    name: &str,
    steps: impl Fn() -> [Step; N],
    last: impl Fn() -> [Step; M],
) -> [Row; 2] {
    [false, true].map(|is_crash| {
        let crash = [crashes_and_is_back()].into_iter().filter(|_| is_crash);
        row(clause, format!("{name}, a crash: {is_crash}"), Lab::durable(1))
            .steps(steps())
            .steps(crash)
            .steps(last())
    })
}

#[test]
fn what_waits_is_not_lost() {
    run([
        row("MQTT-3.8.4-4", "QoS 0 loses nothing that waits", [Lab::new(2), Lab::durable(2)])
            .steps([
                has_backlog("subscribe t/# qos1"),
                sends("reader", ["subscribe t/#"]),
                // At QoS 1, not to be lost with a connection.
                reads_kept(0..12),
                numbers("writer", "t/a", 12..13),
                asks("reader", "pingreq", ["publish t/a 12", "pingresp"]),
            ]),
        row("MQTT-3.8.4-4", "so does a group's only member", [Lab::new(2), Lab::durable(2)]).steps(
            [
                has_backlog("subscribe $share/g/t/# qos1"),
                sends("reader", ["subscribe $share/g/t/#"]),
                reads_all("reader", 0..12),
            ],
        ),
        row("MQTT-3.8.4-4", "later subscriptions and crashes change nothing", Lab::durable(1))
            .steps([
                has_backlog("subscribe t/# qos1"),
                sends("reader", ["subscribe t/# sub1", "cut"]),
                crashes_and_is_back(),
                sends("reader", ["subscribe t/# sub2"]),
                crashes_and_is_back(),
                reads_all("reader", 0..12),
                // Nothing is due any more: it is a subscription like any other of QoS 0.
                sends("reader", ["subscribe t/#", "cut"]),
                numbers("writer", "t/a", 12..13),
                crashes_and_is_back(),
                reads_all("reader", 0..0),
            ]),
        row("", "changes survive that the journal is turned over", Lab::durable(1)).steps([
            has_backlog("subscribe t/# qos1"),
            sends("reader", ["subscribe t/#", "cut"]),
            does(|stage| stage.lab.turn_the_journal_over()),
            crashes_and_is_back(),
            reads_all("reader", 0..12),
            // All is acknowledged: what is written of the changes goes with it.
            sends("reader", ["cut"]),
            does(|stage| stage.lab.turn_the_journal_over()),
            crashes_and_is_back(),
            reads_all("reader", 0..0),
        ]),
    ]);
}

#[test]
fn what_is_owed_across_changes() {
    run(rows(
        "MQTT-3.8.4-4",
        "who was away is owed what came at QoS 1 and nothing else",
        || {
            [
                has_backlog("subscribe t/# qos1"),
                sends("reader", ["cut"]),
                is_back(),
                sends("reader", ["subscribe t/#"]),
                somebody_else(),
                numbers("writer", "t/a", 100..103),
                sends("reader", ["subscribe t/# qos1"]),
                numbers("writer", "t/a", 12..15),
            ]
        },
        || [reads_kept(0..15)],
    ));
    run(rows(
        "",
        "what is unsubscribed takes with it how it was before",
        || {
            [
                has_backlog("subscribe t/# qos1"),
                sends("reader", ["subscribe t/#", "unsubscribe t/#", "subscribe t/# qos1"]),
            ]
        },
        // What was in flight is completed.
        || [numbers("writer", "t/a", 12..14), reads_kept([0, 12, 13])],
    ));
    let changes = || {
        (12..52).map(|number| {
            let subscribe = format!("subscribe t/# qos{}", number % 3);
            all([sends("reader", [subscribe]), numbers("writer", "t/a", number..number + 1)])
        })
    };
    for is_crash in [false, true] {
        let crash = [crashes_and_is_back()].into_iter().filter(|_| is_crash);
        let owed = (0..12).chain((12..52).filter(|number| number % 3 > 0));
        run([row("", format!("a filter changes often, a crash: {is_crash}"), Lab::durable(1))
            .steps([has_backlog("subscribe t/# qos1"), somebody_else()])
            .steps(changes())
            .steps(crash)
            .steps([reads_kept(owed)])]);
    }
}

#[test]
fn what_waits_comes_with_qos_and_identifiers_of_the_subscriptions_of_now() {
    let seen = |first: (u8, &'static [u32])| {
        does(move |stage| {
            let reader = stage.conn("reader");
            let read = stage.read_all(reader);
            let seen = read.iter().map(|publish| (publish.qos, &publish.identifiers[..]));
            let both = &[2, 3][..];
            assert_eq!(seen.collect::<Vec<_>>(), [first, (2, both), (2, both), (2, both)]);
        })
    };
    let steps = || {
        all([
            is_back(),
            sends("reader", ["subscribe t/# qos1 sub1"]),
            sends("writer", (1..4).map(|id| format!("publish t/a waits qos2 id{id}"))),
            // The second filter is new, and overlaps.
            sends("reader", ["subscribe t/# qos2 sub2", "subscribe t/+ sub3"]),
            sends("writer", ["publish t/a comes qos2 id4"]),
        ])
    };
    run([
        row("", "the first had begun", Lab::durable(1)).steps([steps(), seen((1, &[1]))]),
        row("", "a crash finds its packet id", Lab::durable(1)).steps([
            steps(),
            crashes_and_is_back(),
            seen((1, &[2, 3])),
        ]),
    ]);
}
