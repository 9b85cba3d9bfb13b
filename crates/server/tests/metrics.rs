//! `docs/metrics.md` says what `/metrics` shows.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fmt::Write as _;
use std::path::Path;

use broker::{Settings, Shared};
use server::metrics::exposition;
use server::run::{Clock, Gate};

const INTRODUCTION: &str = "\
# Metrics

<!-- Generated from crates/broker/src/metrics.rs and crates/server/src/metrics.rs:
     `QUELEA_BLESS=1 cargo test -p server docs_`. -->

`quelea serve` shows them in Prometheus' text format at `http://127.0.0.1:9883/metrics`; the
address is `listen` under `[http]` in the [configuration](configuration.md). Those with the
label `shard` have one value for each shard: `sum(quelea_connections)` is all of them. Counters
begin at 0 with each start.

What is worth an alarm:

- `quelea_dropped_queue_full_total`, `quelea_dropped_shared_group_total`: messages are lost at a
  limit. The log says whose, at most once a second for each session and reason.
- `quelea_publishes_refused_total`, `quelea_retained_refused_total`: publishers are told that
  there is no room, in a queue, in the retained store, or in memory.
- `quelea_turned_away_total`: refused passwords, connection limits, broken handshakes.
- `quelea_events_lost_total`: the log is missing lines.

";

/// Every metric, in the order in which it is shown.
fn table() -> String {
    let shared = Shared::new(Settings::default(), 1, 0);
    let text = exposition(&shared, &Gate::default(), Clock::start());
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    let mut lines = text.lines();
    while let Some(help) = lines.next().and_then(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = help.split_once(' ').unwrap();
        let kind = lines.next().and_then(|line| line.rsplit(' ').next()).unwrap();
        let sample = lines.next().unwrap();
        let label = if sample.contains("{shard=") { "`shard`" } else { "" };
        writeln!(table, "| `{name}` | {kind} | {label} | {help} |").unwrap();
    }
    table
}

#[test]
fn docs_metrics_are_those_that_are_shown() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let text = INTRODUCTION.to_owned() + &table();
    if std::env::var_os("QUELEA_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
    let remedy = "QUELEA_BLESS=1 cargo test -p server docs_";
    assert!(on_disk == text, "docs/metrics.md is stale: {remedy}");
}

#[test]
fn every_metric_has_one_line_in_the_table() {
    let rows = table().lines().skip(2).count();
    let shared = Shared::new(Settings::default(), 1, 0);
    let shown = exposition(&shared, &Gate::default(), Clock::start());
    assert_eq!(rows, shown.lines().filter(|line| line.starts_with("# TYPE")).count());
    assert!(rows > broker::Metrics::DESCRIPTIONS.len());
}
