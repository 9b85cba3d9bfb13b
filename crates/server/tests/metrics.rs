//! `docs/metrics.md` says what `/metrics` shows.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::fmt::Write as _;
use std::path::Path;

use broker::{Settings, Shared};
use server::http::Health;
use server::metrics::exposition;
use server::run::{Certificates, Clock, Gate, LogBoard, Timing};

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
- `quelea_log_poisoned`: the disk failed, nothing that must be kept is acknowledged any more.
  `quelea_log_full`: it has no space. [Durability](durability.md) says what to do.
- `quelea_certificate_expiry_timestamp_seconds - time() < 14 * 86400`: a certificate expires within
  two weeks, which the log says once a day, too. After renewing it, send SIGHUP.
- `quelea_turned_away_total`: refused passwords, connection limits, broken handshakes.
- `quelea_events_lost_total`: the log is missing lines.

How quick the broker is to look at a socket that has something for it is in
`quelea_worker_turn_seconds`: a worker that is busy for 10 ms at a time lets everybody wait so long.

Those of the logs (`quelea_log_...`) are there where something is kept. The average time of a
commit is `rate(quelea_log_commit_seconds_sum[1m]) / rate(quelea_log_commit_seconds_count[1m])`.

";

fn shown(logs: u16) -> String {
    let shared = Shared::new(Settings::default(), 1, 0);
    let board = LogBoard::new(logs, Health::new());
    let certificates = Certificates::default();
    certificates.set("a \"name\"", 4_102_444_800);
    let turns = [Timing::default()];
    exposition(&shared, &Gate::default(), &board, &turns, &certificates, Clock::start())
}

/// Every metric, in the order in which it is shown.
fn table() -> String {
    let text = shown(1);
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    let is_histogram =
        |line: &&str| ["_bucket{", "_sum ", "_count "].iter().any(|part| line.contains(part));
    let mut lines = text.lines().filter(|line| line.starts_with('#') || !is_histogram(line));
    while let Some(help) = lines.next().and_then(|line| line.strip_prefix("# HELP ")) {
        let (name, help) = help.split_once(' ').unwrap();
        let kind = lines.next().and_then(|line| line.rsplit(' ').next()).unwrap();
        let sample = if kind == "histogram" { "" } else { lines.next().unwrap() };
        let label = sample.split_once('{').and_then(|(_, rest)| rest.split_once('='));
        let label = label.map(|(label, _)| format!("`{label}`")).unwrap_or_default();
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
    assert_eq!(rows, shown(1).lines().filter(|line| line.starts_with("# TYPE")).count());
    assert!(rows > broker::Metrics::DESCRIPTIONS.len());
}

#[test]
fn a_broker_that_keeps_nothing_shows_no_logs() {
    assert!(shown(1).contains("quelea_log_commit_seconds_bucket{le=\"+Inf\"} 0"));
    assert!(!shown(0).contains("quelea_log_"));
}
