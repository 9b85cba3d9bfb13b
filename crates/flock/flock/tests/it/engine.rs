//! Small runs of each family against Debian's mosquitto.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Mosquitto, pairs, run_on, total};
use flock::engine::BrokerAccess;
use flock::standin::{Mischief, StandIn};
use flock_measure::{LatencyKind, Outcome, Validity};

#[test]
fn pairs_at_every_qos_lose_nothing() {
    let broker = Mosquitto::start();
    for qos in 0..3_u8 {
        let results = run_on(&pairs(20, 50, qos, 200), &broker.address, BrokerAccess::None);
        println!("{:#?} {:?}", results.totals, results.errors);
        assert_eq!(results.run.outcome, Outcome::Completed);
        assert_eq!(results.totals.published[usize::from(qos)], 1_000);
        let total = total(&results);
        assert_eq!((total.expected, total.received, total.lost), (1_000, 1_000, 0));
        assert!(results.integrity.is_clean(), "{:?}", results.integrity);
        let latency = results.latency(LatencyKind::EndToEnd, Some(qos)).unwrap();
        assert_eq!(latency.summary.count, 1_000);
        let acked = results.latency(LatencyKind::PublishAck, Some(qos));
        assert_eq!(acked.map_or(0, |acked| acked.summary.count), if qos > 0 { 1_000 } else { 0 });
    }
}

#[test]
fn what_a_connection_costs_is_counted_where_nobody_publishes() {
    let broker = Mosquitto::start();
    let text = r#"
id = "t"
title = "t"
[clients.c]
count = 50
[[stage]]
name = "connect"
do = [{ clients = "c", steps = [{ connect = {} }] }]
[[stage]]
name = "hold"
duration = "100ms"
[[stage]]
name = "leave"
do = [{ clients = "c", steps = [{ disconnect = {} }] }]
"#;
    let results = run_on(text, &broker.address, BrokerAccess::Pid(broker.pid()));
    assert_eq!(results.run.outcome, Outcome::Completed);
    let load = results.broker_load.unwrap();
    // So few connects may cost less CPU than the clock can tell: then there is no figure.
    assert!(load.cpu_resolution_us > 0.0);
    assert!(load.cpu_us_per_connect.is_none_or(|cost| cost > 0.0));
    // Not after the last stage, when no connection stands.
    assert!(load.memory_bytes_per_connection.is_some());
}

#[test]
fn with_a_fresh_id_each_round_is_another_client() {
    let broker = Mosquitto::start();
    let text = |fresh: bool| {
        format!(
            r#"
id = "t"
title = "t"
[connect]
version = "3.1.1"
clean_start = false
fresh_id = {fresh}
[clients.c]
count = 2
id = "fresh-{fresh}-{{i}}"
[subscriptions.s]
filter = "s"
[[stage]]
name = "calls"
[[stage.do]]
clients = "c"
steps = [{{ repeat = {{ times = 3, steps = [{{ connect = {{}} }}, {{ subscribe = {{ to = "s" }} }}, {{ disconnect = {{}} }}] }} }}]
"#
        )
    };
    let found = |fresh: bool| {
        let results = run_on(&text(fresh), &broker.address, BrokerAccess::None);
        assert_eq!(results.totals.connects_ok, 6);
        // A new id finds no session, and nobody has forgotten any.
        assert_eq!(results.errors, [], "{fresh}");
        assert_eq!(results.integrity.forgotten_sessions, 0);
    };
    found(false);
    found(true);
}

#[test]
fn a_broker_nobody_told_of_is_found_by_its_socket_and_others_are_told_from_it() {
    let text = pairs(2, 1, 0, 20).replace("count = 1, ", "");
    let text = text.replace("measured = true", "measured = true\nduration = \"2500ms\"");
    let broker = Mosquitto::start();
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    assert_eq!(results.broker.pid, Some(broker.pid()));
    assert!(results.broker.command[0].ends_with("mosquitto"), "{:?}", results.broker);
    let load = results.broker_load.unwrap();
    assert_eq!(load.source, format!("pid {}, found by its socket", broker.pid()));
    assert!(load.memory_bytes_max > 0);
    let Validity { contention, others_unknown, .. } = results.validity;
    assert!(contention.others_percent.is_some() && others_unknown.is_none(), "{contention:?}");

    // One in this process is part of what flock spends.
    let broker = StandIn::start(Mischief::default()).unwrap();
    let results = run_on(&text, &broker.address, BrokerAccess::None);
    assert!(results.validity.contention.others_percent.is_some(), "{:?}", results.validity);
    assert!(results.broker_load.is_none() && results.broker.pid.is_none());
}
