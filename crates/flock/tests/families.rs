//! Each kind of thing that a client can do, at small scale, against Debian's mosquitto.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Mosquitto, run_on, scenario, total};
use flock::engine::{BrokerAccess, Options, run};
use flock::measure::{LatencyKind, Outcome, Results};

/// A scenario's head, with `[connect]` settings, and its stages.
fn text(connect: &str, rest: &str) -> String {
    format!(
        "id = \"t\"\ntitle = \"t\"\ndrain = \"3s\"\n[connect]\n{connect}\n\
         [clients.sub]\ncount = 10\n[clients.pub]\ncount = 10\n\
         [topics.pairs]\nnames = \"t/{{i}}\"\ncount = 10\n{rest}"
    )
}

fn run_clean(text: &str, address: &str) -> Results {
    let results = run_on(text, address, BrokerAccess::None);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    results
}

const V5: &str = "version = \"5\"";

#[test]
fn everyone_hears_everything_by_a_wildcard() {
    let broker = Mosquitto::start();
    let rest = r#"
[subscriptions.all]
filter = "t/#"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "all", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "100/s", count = 20, payload = 100 } }]
"#;
    let results = run_clean(&text(V5, rest), &broker.address);
    assert_eq!((total(&results).expected, total(&results).received), (2_000, 2_000));
}

#[test]
fn a_shared_group_gets_each_message_once() {
    let broker = Mosquitto::start();
    let rest = r#"
[subscriptions.one]
filter = "$share/g/t/#"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "one", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "200/s", count = 50, payload = 16 } }]
"#;
    let results = run_clean(&text(V5, rest), &broker.address);
    assert_eq!((total(&results).expected, total(&results).received), (500, 500));
    assert_eq!(results.totals.received_all(), 500);
}

#[test]
fn a_closed_loop_keeps_its_window_and_large_payloads_arrive() {
    let broker = Mosquitto::start();
    let rest = r#"
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "pairs", qos = 2 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 2, in_flight = 3, count = 5, payload = "1MiB" } }]
"#;
    let results = run_clean(&text("version = \"3.1.1\"", rest), &broker.address);
    assert_eq!(total(&results).received, 50);
    assert_eq!(results.totals.received_bytes, 50 << 20);
    assert!(results.latency(LatencyKind::PublishAck, Some(2)).unwrap().summary.count == 50);
}

#[test]
fn wills_are_published_when_clients_just_close() {
    let broker = Mosquitto::start();
    let rest = r#"
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "pairs", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = { will = { topics = "pairs", payload = 32, qos = 1 } } }]
[[stage]]
name = "leave"
[[stage.do]]
clients = "pub"
steps = [{ disconnect = { how = "close" } }]
[[stage.do]]
clients = "sub"
steps = [{ receive = { count = 1, timeout = "5s" } }]
"#;
    let results = run_clean(&text(V5, rest), &broker.address);
    assert_eq!(results.totals.wills_received, 10);
    assert_eq!(results.totals.disconnects, 10);
}

#[test]
fn retained_messages_come_on_subscribing_and_are_told_apart() {
    let broker = Mosquitto::start();
    let rest = r#"
[subscriptions.all]
filter = "t/#"
[[stage]]
name = "fill"
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }, { publish = { to = "pairs", qos = 1, retain = true, in_flight = 1, count = 1, payload = 16 } }]
[[stage]]
name = "subscribe"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "all", qos = 1 } }, { receive = { count = 10, timeout = "5s" } }]
"#;
    let text = text(V5, rest);
    let results = run_on(&text.replace("\"3s\"", "\"50ms\""), &broker.address, BrokerAccess::None);
    assert_eq!(results.totals.received_retained, 100, "{:?}", results.errors);
    assert_eq!(total(&results).lost, 0);
}

#[test]
fn a_persistent_session_gets_what_was_sent_while_it_was_away() {
    let broker = Mosquitto::start();
    let connect = "version = \"5\"\nclean_start = false\nsession_expiry = \"1h\"";
    let rest = r#"
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "pairs", qos = 1 } }, { disconnect = {} }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "500/s", count = 30, payload = 16 } }]
[[stage]]
name = "back"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { receive = { count = 30, timeout = "5s" } }]
"#;
    let text = text(connect, rest).replace("drain = \"3s\"", "drain = \"50ms\"");
    let results = run_clean(&text, &broker.address);
    assert_eq!((total(&results).expected, total(&results).received), (300, 300));
}

#[test]
fn a_reconnect_storm_comes_back_whole() {
    let broker = Mosquitto::start();
    let connect = "version = \"5\"\nclean_start = false\nsession_expiry = \"1h\"\nreconnect = true";
    let rest = r#"
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
[[stage.do]]
clients = "sub"
steps = [{ connect = {} }, { subscribe = { to = "pairs", qos = 1 } }]
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }]
[[stage]]
name = "publish"
[[stage.do]]
clients = "pub"
steps = [{ publish = { to = "pairs", qos = 1, rate = "100/s", count = 200, payload = 16 } }]
[[stage.do]]
steps = [{ delay = "500ms" }, { fault = { cut = { clients = "sub", share = 1.0 } } }, { delay = "500ms" }, { fault = { cut = { clients = "pub", share = 0.5 } } }]
"#;
    let results = run_on(&text(connect, rest), &broker.address, BrokerAccess::None);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    assert_eq!((results.totals.connections_lost, results.totals.reconnects), (15, 15));
    assert_eq!(total(&results).lost, 0, "{:?}", results.integrity);
    assert_eq!(results.faults.len(), 2);
}

#[test]
fn a_silent_client_is_dropped_by_the_broker() {
    let broker = Mosquitto::start();
    let rest = r#"
[[stage]]
name = "connect"
[[stage.do]]
clients = "pub"
steps = [{ connect = {} }, { disconnect = { how = "silent" } }]
"#;
    let results = run_clean(&text("version = \"5\"\nkeep_alive = \"1s\"", rest), &broker.address);
    assert_eq!(results.totals.disconnects, 10);
    assert!(results.run.duration_secs >= 1.0);
}

#[test]
fn a_dead_port_fails_the_run_and_says_why() {
    let rest = "[[stage]]\nname = \"connect\"\n[[stage.do]]\nclients = \"pub\"\nsteps = [{ connect = {} }]\n";
    let address = format!("127.0.0.1:{}", common::free_port());
    let results = run_on(&text(V5, rest), &address, BrokerAccess::None);
    assert!(matches!(results.run.outcome, Outcome::Failed(_)));
    assert_eq!(results.totals.connects_failed, 10);
    assert!(results.errors[0].reason.contains("refused"), "{:?}", results.errors);
    assert!(!results.errors[0].client.is_empty());
}

#[test]
fn the_broker_is_watched_while_it_works() {
    let broker = Mosquitto::start();
    let text = common::pairs(20, 300, 1, 200);
    let results = run_on(&text, &broker.address, BrokerAccess::Pid(broker.pid()));
    let load = results.broker_load.as_ref().unwrap();
    assert!(load.memory_bytes_max > 1_000_000, "{load:?}");
    assert!(load.cpu_us_per_message.unwrap() > 0.0);
    assert_eq!(results.series.iter().map(|second| second.received).sum::<u64>(), 6_000);
    assert_eq!(results.series.iter().map(|second| second.published).sum::<u64>(), 6_000);
    assert_eq!(results.series.last().unwrap().backlog, 0);
}

#[test]
fn the_highest_rate_that_holds_is_found() {
    let broker = Mosquitto::start();
    let text = common::pairs(10, 1, 0, 1)
        .replace("count = 1, payload", "payload")
        .replace("measured = true", "measured = true\nduration = \"1s\"")
        + "[search]\npercentile = 99\nlatency_max = \"200ms\"\nrate_min = 500\nrate_max = 2000\nstep = \"500ms\"\n";
    let mut model = scenario(&text, &broker.address);
    assert!(model.search.is_some());
    if let Some(search) = &mut model.search {
        search.precision = 0.1;
    }
    let options = Options { threads: Some(2), ..Options::default() };
    let results = run(&model, options).unwrap();
    let found = results.rate_search.unwrap();
    assert_eq!(found.rate_held, 2_000.0, "{found:#?}");
    assert_eq!(found.steps.len(), 3);
}
