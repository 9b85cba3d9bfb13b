//! Each kind of thing that a client can do, at small scale, against Debian's mosquitto.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common;

use common::{Draft, LASTING, Mosquitto, V5, publish, run_on, scenario, total};
use flock::engine::{BrokerAccess, Options, run};
use flock_measure::{LatencyKind, Outcome, Results};

/// Runs it against a fresh broker.
fn run_draft(draft: Draft) -> Results {
    let broker = Mosquitto::start();
    let results = run_on(&draft.text(), &broker.address, BrokerAccess::None);
    assert_eq!(results.run.outcome, Outcome::Completed, "{:?}", results.errors);
    results
}

/// As [`run_draft`], where nothing may go wrong.
fn run_clean(draft: Draft) -> Results {
    let results = run_draft(draft);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
    assert!(results.errors.is_empty(), "{:?}", results.errors);
    results
}

/// Deliveries that were owed, and that came.
fn delivered(results: &Results) -> (u64, u64) {
    (total(results).expected, total(results).received)
}

#[test]
fn everyone_hears_everything_by_a_wildcard() {
    let draft = Draft::new(V5, 10)
        .subscription("all", "pairs/#")
        .connected("all", 1)
        .publishing("qos = 1, rate = \"100/s\", count = 20, payload = 100");
    assert_eq!(delivered(&run_clean(draft)), (2_000, 2_000));
}

#[test]
fn a_hold_lasts_and_keeps_the_connections() {
    let draft = Draft::new(V5, 10)
        .connected("pairs", 1)
        .hold("1200ms")
        .stage("leave", &[("sub", "{ disconnect = {} }"), ("pub", "{ disconnect = {} }")]);
    let results = run_clean(draft);
    let hold = results.phases.iter().find(|phase| phase.name == "hold").unwrap();
    assert!(hold.to_secs - hold.from_secs >= 1.2, "{hold:?}");
    assert_eq!((results.totals.connections_max, results.totals.disconnects), (20, 20));
}

#[test]
fn a_shared_group_gets_each_message_once() {
    let draft = Draft::new(V5, 10)
        .subscription("one", "$share/g/pairs/#")
        .connected("one", 1)
        .publishing("qos = 1, rate = \"200/s\", count = 50, payload = 16");
    let results = run_clean(draft);
    assert_eq!(delivered(&results), (500, 500));
    assert_eq!(results.totals.received_all(), 500);
    assert_eq!(results.integrity.reordered_in_groups, 0);
}

#[test]
fn a_closed_loop_keeps_its_window_and_large_payloads_arrive() {
    let draft = Draft::new("version = \"3.1.1\"", 10)
        .connected("pairs", 2)
        .publishing("qos = 2, in_flight = 3, count = 5, payload = \"1MiB\"");
    let results = run_clean(draft);
    assert_eq!(total(&results).received, 50);
    assert_eq!(results.totals.received_bytes, 50 << 20);
    assert!(results.latency(LatencyKind::PublishAck, Some(2)).unwrap().summary.count == 50);
}

#[test]
fn wills_are_published_when_clients_just_close() {
    let will = "{ connect = { will = { topics = \"pairs\", payload = 32, qos = 1 } } }";
    let subscribe = "{ connect = {} }, { subscribe = { to = \"pairs\", qos = 1 } }";
    let leave = "{ disconnect = { how = \"close\" } }";
    let receive = "{ receive = { count = 1, timeout = \"60s\" } }";
    let draft = Draft::new(V5, 10)
        .stage("connect", &[("sub", subscribe), ("pub", will)])
        .stage("leave", &[("pub", leave), ("sub", receive)]);
    let results = run_clean(draft);
    assert_eq!((results.totals.wills_received, results.totals.disconnects), (10, 10));
}

#[test]
fn retained_messages_come_on_subscribing_and_are_told_apart() {
    let keep = publish("qos = 1, retain = true, in_flight = 1, count = 1, payload = 16");
    let fill = format!("{{ connect = {{}} }}, {keep}");
    let take = "{ connect = {} }, { subscribe = { to = \"all\", qos = 1 } }, \
                { receive = { count = 10, timeout = \"60s\" } }";
    let draft = Draft::new(V5, 10)
        .drain("50ms")
        .subscription("all", "pairs/#")
        .stage("fill", &[("pub", &fill)])
        .stage("subscribe", &[("sub", take)]);
    let results = run_draft(draft);
    assert_eq!(results.totals.received_retained, 100, "{:?}", results.errors);
    assert_eq!(total(&results).lost, 0);
}

#[test]
fn a_persistent_session_gets_what_was_sent_while_it_was_away() {
    let visit =
        "{ connect = {} }, { subscribe = { to = \"pairs\", qos = 1 } }, { disconnect = {} }";
    let back = "{ connect = {} }, { receive = { count = 30, timeout = \"60s\" } }";
    let draft = Draft::new(LASTING, 10)
        .drain("50ms")
        .stage("connect", &[("sub", visit), ("pub", "{ connect = {} }")])
        .publishing("qos = 1, rate = \"500/s\", count = 30, payload = 16")
        .stage("back", &[("sub", back)]);
    assert_eq!(delivered(&run_clean(draft)), (300, 300));
}

#[test]
fn a_reconnect_storm_comes_back_whole() {
    let publish = publish("qos = 1, rate = \"100/s\", count = 200, payload = 16");
    let cuts = r#"{ delay = "500ms" }, { fault = { cut = { clients = "sub", share = 1.0 } } },
        { delay = "500ms" }, { fault = { cut = { clients = "pub", share = 0.5 } } }"#;
    let draft = Draft::new(LASTING, 10)
        .connected("pairs", 1)
        .stage("publish", &[("pub", &publish), ("", cuts)]);
    let results = run_draft(draft);
    assert_eq!((results.totals.connections_lost, results.totals.reconnects), (15, 15));
    assert_eq!(total(&results).lost, 0, "{:?}", results.integrity);
    assert_eq!(results.faults.len(), 2);
}

#[test]
fn a_receive_of_none_waits_for_nothing_and_one_of_a_shared_subscription_counts() {
    let broker = Mosquitto::start();
    let (_, port) = broker.address.split_once(':').unwrap();
    let text = format!(
        r#"<scenario>
  <brokers><broker id="b"><address>127.0.0.1</address><port>{port}</port></broker></brokers>
  <clientGroups><clientGroup id="c"/></clientGroups>
  <topicGroups><topicGroup id="t"><topicNamePattern>x/y</topicNamePattern></topicGroup></topicGroups>
  <subscriptions>
    <subscription id="own"><topicFilter>$share/g/x/#</topicFilter></subscription>
    <subscription id="other"><topicFilter>z</topicFilter></subscription>
  </subscriptions>
  <stages><stage id="s"><lifeCycle id="l" clientGroup="c">
    <connect/><subscribe to="own other" qos="1"/>
    <receive from="other" messagePattern="never" count="0"/>
    <publish topicGroup="t" qos="1" message="hello"/>
    <receive from="own" messagePattern="hello" count="1" timeOut="60s"/>
    <disconnect/>
  </lifeCycle></stage></stages></scenario>"#
    );
    let scenario = flock_model::swarm::parse("x.xml", &text, None).unwrap();
    let results = run(&scenario, Options { threads: Some(1), ..Options::default() }).unwrap();
    assert_eq!(results.run.outcome, Outcome::Completed);
    assert!(results.errors.is_empty(), "{:?}", results.errors);
}

#[test]
fn a_silent_client_is_dropped_by_the_broker() {
    let silence = "{ connect = {} }, { disconnect = { how = \"silent\" } }";
    let draft = Draft::new("version = \"5\"\nkeep_alive = \"1s\"", 10)
        .stage("connect", &[("pub", silence)]);
    let results = run_clean(draft);
    assert_eq!(results.totals.disconnects, 10);
    assert!(results.run.duration_secs >= 1.0);
}

#[test]
fn a_dead_port_fails_the_run_and_says_why() {
    let draft = Draft::new(V5, 10).stage("connect", &[("pub", "{ connect = {} }")]);
    let address = format!("127.0.0.1:{}", net::free_port().unwrap());
    let results = run_on(&draft.text(), &address, BrokerAccess::None);
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
    let text = common::searching(10, "latency_max = \"500ms\"\nrate_min = 500\nrate_max = 2000")
        .replace("id = \"t\"\n", "id = \"t\"\nwarm_up = \"300ms\"\n");
    let options = Options { threads: Some(2), ..Options::default() };
    let results = run(&scenario(&text, &broker.address), options).unwrap();
    check_search(&results, 500.0, 2_000.0);
    let warm_up = results.phases.iter().find(|phase| phase.name == "warm-up");
    assert!(warm_up.is_some_and(|phase| !phase.measured), "{:?}", results.phases);
}

/// Which rates hold is up to the machine. Whatever it is, nothing is tried below the minimum, a
/// rate fails by two steps, what held is confirmed, and the figures of the run are of that rate.
fn check_search(results: &Results, rate_min: f64, rate_max: f64) {
    let found = results.rate_search.as_ref().unwrap();
    assert_eq!(found.steps[0].rate, rate_min, "{found:#?}");
    for step in &found.steps {
        assert!((rate_min..=rate_max).contains(&step.rate), "{found:#?}");
        assert!(!step.held || step.samples >= found.samples_min * 9 / 10, "{found:#?}");
        // A handful of messages has no rate.
        let part = step.published_per_sec / step.rate;
        assert!(!step.held || (0.95..1.25).contains(&part), "{found:#?}");
    }
    let at = |rate: f64| found.steps.iter().filter(move |step| step.rate == rate);
    if let Some(failed) = found.rate_failed {
        assert!(failed > found.rate_held, "{found:#?}");
        assert!(at(failed).filter(|step| !step.held).count() >= 2, "{found:#?}");
    } else {
        assert_eq!(found.rate_held, rate_max, "{found:#?}");
    }
    if found.rate_held == 0.0 {
        // Nothing holds while the machine makes the tool late.
        assert!(found.limited_by_tool, "{found:#?}");
        return;
    }
    let confirmed = at(found.rate_held).filter(|step| step.confirms && step.held);
    assert!(confirmed.count() >= 2, "{found:#?}");
    let measured = results.latency_merged(LatencyKind::EndToEnd).count();
    let all = results.totals.received_all();
    assert!(measured > 0 && measured < all, "{measured} of {all}: of the last step alone");
}

#[test]
fn many_publishers_of_unequal_rates_share_the_rate_that_is_tried() {
    let broker = Mosquitto::start();
    // 200 at one message a second and 50 at four times that, for 400 messages in a second.
    let fast = r#"[[stage.do]]
clients = "fast"
steps = [{ publish = { to = "pairs", qos = 0, rate = "4/s", payload = 16 } }]
[search]"#;
    let text = common::searching(200, "latency_max = \"500ms\"\nrate_min = 800\nrate_max = 800")
        .replace("[clients.pub]", "[clients.fast]\ncount = 50\n[clients.pub]")
        .replace("[[stage]]\nname = \"connect\"", CONNECT_FAST)
        .replace("[search]", fast);
    let options = Options { threads: Some(2), ..Options::default() };
    let results = run(&scenario(&text, &broker.address), options).unwrap();
    check_search(&results, 800.0, 800.0);
    assert_eq!(total(&results).lost, 0, "{:?}", results.integrity);
}

const CONNECT_FAST: &str = "[[stage]]\nname = \"connect-fast\"\n[[stage.do]]\n\
                            clients = \"fast\"\nsteps = [{ connect = {} }]\n\
                            [[stage]]\nname = \"connect\"";

#[test]
fn retained_messages_are_judged_where_a_subscriber_comes_after_them() {
    let draft = Draft::new(V5, 10)
        .drain("300ms")
        .subscription("all", "pairs/#")
        .stage(
            "retain",
            &[(
                "pub",
                "{ connect = {} }, { publish = { to = \"pairs\", qos = 1, retain = true, \
                 count = 3, payload = 16 } }",
            )],
        )
        .stage("ask", &[("sub", "{ connect = {} }, { subscribe = { to = \"all\", qos = 1 } }")])
        .stage("wait", &[("sub", "{ receive = { count = 10, timeout = \"20s\" } }")])
        .leaving();
    let results = run_clean(draft);
    assert_eq!((delivered(&results), total(&results).unjudged), ((100, 100), 0));
    assert_eq!(results.totals.received_retained, 100);
}
