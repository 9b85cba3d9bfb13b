//! How much one core of the lab can drive: `cargo run --profile quick -p flock --example ceiling`.
//!
//! The other side is the stand-in broker of the self-test on a thread of its own, which decodes
//! every packet and routes by exact topic, or, with an address as argument, any broker.

#![allow(clippy::unwrap_used, reason = "an example fails by panicking")]

use flock::engine::{Options, run};
use flock::standin::{Mischief, StandIn};
use flock_measure::Results;
use flock_model::scenario::{Choice, parse};

fn main() {
    let given = std::env::args().nth(1);
    let stand_in = StandIn::start(Mischief::default()).unwrap();
    let address = given.unwrap_or_else(|| stand_in.address.clone());
    println!("| work | published/s | received/s | load CPU us per message | p99 us |");
    println!("|---|---|---|---|---|");
    let pace = "in_flight = 1000";
    for (title, subs, step) in [
        ("publish only, QoS 0, 16 B", 0, format!("qos = 0, payload = 16, {pace}")),
        ("publish only, QoS 1, 16 B", 0, format!("qos = 1, payload = 16, {pace}")),
        ("10 pairs, QoS 0, 16 B", 10, format!("qos = 0, payload = 16, {pace}")),
        ("10 pairs, QoS 1, 16 B", 10, format!("qos = 1, payload = 16, {pace}")),
        (
            "10 pairs, QoS 0, 16 B, open loop, 10,000/s",
            10,
            "qos = 0, payload = 16, rate = \"1000/s\"".into(),
        ),
        ("10 pairs, QoS 0, 64 KiB", 10, format!("qos = 0, payload = \"64KiB\", {pace}")),
    ] {
        let results = measure(&address, subs, &step);
        show(title, &results);
    }
}

fn measure(address: &str, subs: u64, step: &str) -> Results {
    let subscribe = "{ subscribe = { to = \"pairs\", qos = 1 } }";
    let subscribers = if subs == 0 {
        String::new()
    } else {
        format!("[[stage.do]]\nclients = \"sub\"\nsteps = [{{ connect = {{}} }}, {subscribe}]\n")
    };
    let text = format!(
        r#"
id = "ceiling"
title = "ceiling"
drain = "5s"
[connect]
version = "3.1.1"
[clients.sub]
count = 10
[clients.pub]
count = 10
[topics.pairs]
names = "pairs/{{i}}"
count = 10
[subscriptions.pairs]
topics = "pairs"
[[stage]]
name = "connect"
{subscribers}
[[stage.do]]
clients = "pub"
steps = [{{ connect = {{}} }}]
[[stage]]
name = "publish"
duration = "4s"
measured = true
[[stage.do]]
clients = "pub"
steps = [{{ publish = {{ to = "pairs", {step} }} }}]
"#
    );
    let none = |name: &str| Err(format!("no file {name}"));
    let mut scenario = parse("ceiling.toml", &text, &Choice::default(), &none).unwrap().scenario;
    scenario.brokers[0].addresses = vec![address.to_owned()];
    run(&scenario, Options { threads: Some(1), ..Options::default() }).unwrap()
}

fn show(title: &str, results: &Results) {
    let phase = results.phases.iter().find(|phase| phase.name == "publish").unwrap();
    let seconds = phase.to_secs - phase.from_secs;
    let (published, received) = (results.totals.published_all(), results.totals.received_all());
    let load = &results.tool_load;
    let cpu = results.validity.thread_cpu_percent_max / 100.0;
    let per_message = cpu * seconds * 1e6 / (published + received).max(1) as f64;
    let p99 = results.latency_merged(flock_measure::LatencyKind::EndToEnd).micros_at(99.0);
    println!(
        "| {title} | {:.0} | {:.0} | {per_message:.2} | {p99} |",
        published as f64 / seconds,
        received as f64 / seconds,
    );
    assert!(load.samples.len() < 1_000_000);
    assert!(results.integrity.is_clean(), "{:?}", results.integrity);
}
