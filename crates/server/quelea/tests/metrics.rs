//! `docs/use/metrics.md` says what `/metrics` shows, and `docs/use/sys-topics.md` what `$SYS` has.

#![allow(clippy::unwrap_used, reason = "a test that fails should stop")]

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use base::Clock;
use broker::streams::{ConsumerNumber, StreamNumber};
use broker::{Homes, Scope, Settings, Shared};
use config::{Config, Machine};
use quelea::cluster::{ClusterFigures, ROLES, SYS_CLUSTER};
use quelea::http::Health;
use quelea::life_cycle::{EVENT_KINDS, EventKind, LifeCycle};
use quelea::metrics::{CellLink, LinkFigures, Sources, exposition, of_links};
use quelea::run::{
    BridgeBoard, Certificates, ConnectionLimiter, FIGURES, JournalBoard, RoutingFigures, RuleFacts,
    RuleFigures, SelfChecks, StreamFigures, Timing,
};
use streams::{ConsumerView, Counters, State, StreamView, Sum};

const SYS_INTRODUCTION: &str = "\
# $SYS topics

<!-- Generated from crates/core/broker/src/words/sys.rs, crates/server/quelea/src/run/
     and cluster/figures.rs: `cargo xtask docs`. -->

The broker publishes its figures as retained messages every 10 s (`interval_secs` under `[sys]` in
the [configuration](configuration.md)), at QoS 0. Topics that mosquitto has as well have the same
names. Counters begin at 0 with each start. [Metrics](metrics.md) are more detailed.

    quelea sub -t '$SYS/broker/#' -v

- A subscription to `#` does not match these topics. Subscribe to `$SYS/#`.
- Without an access file all clients may read them. With an access file, grant
  `topic read $SYS/#` to those that may.
- Clients cannot publish below `$SYS/`. Bridges may publish `$SYS/broker/connection/NAME/state`.
- In a cluster with several cells the figures are totals, with
  [exceptions](cluster.md#several-cells).

";

const INTRODUCTION: &str = "\
# Metrics

<!-- Generated from crates/core/broker/src/words/metrics.rs and crates/server/quelea/src/metrics.rs:
     `cargo xtask docs`. -->

`quelea serve` serves metrics in the text format of Prometheus at `http://127.0.0.1:9883/metrics`
(`listen` under `[http]` in the [configuration](configuration.md)). Counters begin at 0 with each
start. A shard is a part of the sessions and topics. A metric with the label `shard` has one value
for each; `sum(quelea_connections)` is the total.

Alert on the metrics below. [Monitoring](monitoring.md) has these alerts and dashboards as files.

| Metric | Meaning |
|---|---|
| `quelea_messages_dropped_total`, reasons `queue_full` and `shared_group` | \
  Messages are lost at a limit: the label `limit` has its key. The log names the session. |
| `quelea_publishes_refused_total`, `quelea_retained_refused_total` | \
  Publishes are refused: a queue, the retained store or the memory is full. |
| `quelea_sessions_refused_total`, `quelea_incoming_cuts_total` | \
  A user or an address uses more than its share of the memory. `quelea_owner_bytes` shows the \
  largest ones. |
| `quelea_memory_cuts_total` | \
  The memory was short, and connections of its largest users were closed. |
| `quelea_log_poisoned` | \
  [A disk failed](operations.md#a-disk-that-fails). Messages that must be stored are refused. |
| `quelea_log_full` | [A log has no space](operations.md#a-full-disk). |
| `quelea_rule_pending_messages` above 0, and `quelea_rule_messages_total` does not increase | \
  A [rule](rules.md) does not deliver. `quelea_rule_state` and `GET /rules` have the reason. |
| `quelea_rule_messages_total`, outcomes `given_up`, `dead_lettered` and those with `dropped` | \
  Messages did not reach the target of a rule. |
| `quelea_stream_full`, `quelea_stream_write_fault` | \
  A stream refuses messages, or its disk failed. |
| `quelea_certificate_expiry_timestamp_seconds - time() < 14 * 86400` | \
  A certificate expires within two weeks. Replace the file. |
| `quelea_connections_turned_away_total` | Refused CONNECTs and failed handshakes, by listener. |
| `quelea_connects_refused_total` | \
  Refused CONNECTs by reason code: wrong passwords (0x87), limits (0x89). |
| `quelea_events_lost_total`, `quelea_logging_lines_lost_total` | Lines are missing in the log. |
| `process_open_fds` near `process_max_fds` | Each connection uses one descriptor. |

On a node of a [cluster](cluster.md), in addition:

| Metric | Meaning |
|---|---|
| `quelea_cluster_role{role=\"active\"}` is 1 on no node | No node serves. |
| `quelea_cluster_engine_connected` is 0 | The node has no connection to NATS. |
| `quelea_cluster_lag_seconds` above 10 | The standby does not follow the logs. |
| `quelea_log_unavailable` is 1 | NATS has no quorum, and acknowledgements wait. |
| `quelea_cluster_suspensions_total` increases | \
  The active node could not renew its lease in time. |

- On a node of a cluster with several [cells](cluster.md#several-cells), metrics of shards, logs,
  workers and roles have the label `cell`, too. `quelea_relay...` and `quelea_cell_...` exist only
  there.
- `quelea_worker_turn_seconds` shows how long clients wait for a busy worker. A worker that is busy
  for 10 ms at a time delays each of its clients by up to 10 ms.
- `quelea_queued_messages` and `quelea_in_flight_messages` are sums over all sessions. Each shard
  counts 5,000 of its sessions per second, so the sums may be some seconds old.
- `quelea_log_...` exist if something is stored. The average time of a commit is
  `rate(quelea_log_commit_seconds_sum[1m]) / rate(quelea_log_commit_seconds_count[1m])`.

";

fn shown(logs: u16) -> String {
    shown_with(logs, None)
}

fn shown_in_cluster() -> String {
    let figures = ClusterFigures {
        role: ROLES[0].to_owned(),
        last_messages: vec![7, 9],
        ..ClusterFigures::default()
    };
    let links = LinkFigures { cells: vec![CellLink::default()], ..LinkFigures::default() };
    shown_with(2, Some(&figures)) + &of_links(&links)
}

fn shown_with(logs: u16, cluster: Option<&ClusterFigures>) -> String {
    let shared = Shared::new(Settings::default(), Homes::of_one_cell(2), 0);
    let board = JournalBoard::new(logs, Health::new());
    let certificates = Certificates::default();
    let certificate =
        net::CertificateInfo { not_after_secs: 4_102_444_800, ..net::CertificateInfo::default() };
    certificates.set("a \"name\"", Arc::new(certificate));
    let turns = [Timing::default()];
    let limiter = ConnectionLimiter::new(0);
    for name in ["tcp://127.0.0.1:1883", "a \"name\"\n"] {
        let counts = limiter.add_listener(name, Vec::new());
        counts.refuse(codec::Reason::NOT_AUTHORIZED);
        counts.refuse(codec::Reason::SERVER_BUSY);
    }
    shared.spaces.open(Scope::new(1)).set_name("tenant");
    let self_checks = SelfChecks::default();
    self_checks.add_listener("a \"name\"\n");
    let _owner = shared.ledger.account("user anna");
    let events = Config::defaults(&Machine::UNKNOWN).events;
    exposition(&Sources {
        self_checks: &self_checks,
        shared: &shared,
        limiter: &limiter,
        board: &board,
        turns: &turns,
        certificates: &certificates,
        life_cycle: &LifeCycle::new(&events, &shared, Clock::start()),
        bridges: &BridgeBoard::new(["cloud"].into_iter()),
        routing: Some(&routing()),
        cluster,
        clock: Clock::start(),
        memory_bytes_max: 1 << 30,
    })
}

const RULES: &str = r#"
[[streams]]
name = "plants"
[[targets]]
name = "hook"
type = "http"
url = "https://example.com/in"
[[rules]]
name = "alarms"
filter = "plants/#"
target = "hook"
"#;

/// A stream, and a rule whose target is away.
fn routing() -> RoutingFigures {
    let definitions = routing::definitions::parse(RULES).unwrap();
    let view = StreamView {
        stream: StreamNumber(1),
        stored: 9,
        records: 4,
        bytes: 100,
        unmoved: 5,
        consumers: 1,
        is_full: true,
        fault: None,
    };
    let streams = vec![StreamFigures { spec: Arc::new(definitions.streams[0].clone()), view }];
    let mut counters = Counters::default();
    (counters.batches, counters.sent, counters.failed_batches) = (3, 8, 2);
    let view = ConsumerView {
        consumer: ConsumerNumber(1),
        stream: StreamNumber(1),
        run: 0,
        state: State::Probation { until_ms: 9, reason: "connection refused".into() },
        sum: Sum { stored: 9, in_flight: 2, pending: 7, ..Sum::default() },
        adds_up: true,
        lag_ms: Some(1500),
        shards: Vec::new(),
        counters,
        last_error: None,
    };
    let facts = RuleFacts { spec: definitions.rules[0].clone(), namespace: "default".into() };
    let (facts, stalled_since_ms) = (Arc::new(facts), Some(1));
    let rules = vec![RuleFigures { facts, view, is_paused: false, stalled_since_ms }];
    RoutingFigures { streams, rules, memory_bytes: 77 }
}

/// One metric: everything below its HELP line.
#[derive(Debug)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

/// Name, labels, value.
type Sample<'a> = (&'a str, Vec<(&'a str, String)>, f64);

/// Reads the text format of Prometheus as strictly as its own tools do.
fn parse(text: &str) -> Vec<Family<'_>> {
    assert!(text.ends_with('\n'));
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help text");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
            let kind = kind.strip_prefix(name).expect("HELP and TYPE of one metric").trim();
            families.push(Family { name, help, kind, samples: Vec::new() });
        } else {
            let family = families.last_mut().expect("a sample has a HELP before it");
            family.samples.push(parse_sample(line));
        }
    }
    families
}

fn parse_sample(line: &str) -> Sample<'_> {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").unwrap();
            let mut value = String::new();
            let mut chars = after.char_indices();
            let end = loop {
                match chars.next().expect("a closing quote") {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().unwrap().1 {
                        'n' => value.push('\n'),
                        escaped @ ('"' | '\\') => value.push(escaped),
                        other => panic!("no escape: {other}"),
                    },
                    (_, plain) => value.push(plain),
                }
            };
            labels.push((label, value));
            rest = &after[end + 1..];
            rest = rest.strip_prefix(',').unwrap_or(rest);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect("one space before the value");
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().unwrap() };
    (name, labels, value)
}

/// Every metric, in the order in which it is shown.
fn table() -> String {
    let text = shown_in_cluster();
    let mut table = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in parse(&text) {
        let (_, labels, _) = &family.samples[0];
        let labels = labels.iter().filter(|(label, _)| *label != "le");
        let labels: Vec<String> = labels.map(|(label, _)| format!("`{label}`")).collect();
        let (name, kind, labels) = (family.name, family.kind, labels.join(", "));
        let meaning = family.help.to_owned() + &meaning_of_labels(name);
        writeln!(table, "| `{name}` | {kind} | {labels} | {meaning} |").unwrap();
    }
    table
}

/// What each value of a label of the core stands for.
fn meaning_of_labels(name: &str) -> String {
    let own = broker::Metrics::descriptions().iter();
    let own = own.filter(|metric| metric.name == name && metric.help != metric.family_help());
    let meaning = |metric: &broker::Description| format!(" `{}`: {}.", metric.label, metric.help);
    own.map(meaning).collect()
}

#[test]
fn docs_metrics_are_those_that_are_shown() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/use/metrics.md");
    let text = INTRODUCTION.to_owned() + &table();
    if std::env::var_os("QUELEA_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(on_disk == text, "docs/use/metrics.md is stale: cargo xtask docs");
}

/// Every topic, in the order in which it is published.
fn sys_tables() -> String {
    let mut text = String::from("| topic | payload |\n|---|---|\n");
    for (topic, help) in broker::sys::topics() {
        let (topic, per) = match topic.strip_suffix("/+") {
            None => (format!("`$SYS/broker/{topic}`"), ""),
            Some(load) => {
                (format!("`$SYS/broker/{load}/1min`, `.../5min`, `.../15min`"), " Moving average.")
            }
        };
        writeln!(text, "| {topic} | {help}{per} |").unwrap();
    }
    let states = "`opening`, `ready`, `closed`, `full`, `unavailable`, `poisoned` or `fenced`: of the worst log";
    text += "\nWhere something is stored, sums over all logs:\n\n";
    text += "| topic | payload |\n|---|---|\n";
    writeln!(text, "| `$SYS/broker/log/state` | {states}. |").unwrap();
    for figure in FIGURES {
        let name = figure.name.trim_end_matches("_total");
        writeln!(text, "| `$SYS/broker/log/{name}` | {} |", figure.help).unwrap();
    }
    text += "\nOn the active node of a [cluster](cluster.md), also when one of them changes:\n\n";
    text += "| topic | payload |\n|---|---|\n";
    for (name, help) in SYS_CLUSTER {
        writeln!(text, "| `$SYS/broker/cluster/{name}` | {help} |").unwrap();
    }
    text +=
        "\nLost and refused messages are published as they happen, as JSON and not retained, at ";
    text += "most\nonce a second for each client and kind. `count` is the number since the last ";
    text += "one.\n\n";
    text += "| topic | fields | meaning |\n|---|---|---|\n";
    for kind in EVENT_KINDS {
        let (Some(topic), EventKind { fields, when, .. }) = (kind.sys_topic(), kind) else {
            continue;
        };
        writeln!(text, "| `{topic}` | `{}` | {when} |", fields.replace(", ", "`, `")).unwrap();
    }
    text
}

#[test]
fn docs_sys_topics_are_those_that_are_published() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/use/sys-topics.md");
    let text = SYS_INTRODUCTION.to_owned() + &sys_tables();
    if std::env::var_os("QUELEA_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let on_disk = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(on_disk == text, "docs/use/sys-topics.md is stale: cargo xtask docs");
}

#[test]
fn streams_and_rules_have_their_figures() {
    let text = shown(1);
    for line in [
        "quelea_streams_memory_bytes 77",
        "quelea_stream_stored_messages_total{stream=\"plants\"} 9",
        "quelea_stream_full{stream=\"plants\"} 1",
        "quelea_rule_pending_messages{rule=\"alarms\"} 7",
        "quelea_rule_sent_messages_total{rule=\"alarms\"} 8",
        "quelea_rule_lag_seconds{rule=\"alarms\"} 1.5",
        "quelea_rule_state{rule=\"alarms\",state=\"probation\"} 1",
        "quelea_rule_state{rule=\"alarms\",state=\"running\"} 0",
        "quelea_rule_messages_total{rule=\"alarms\",outcome=\"delivered\"} 0",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}");
    }
}

#[test]
fn only_a_node_of_a_cluster_has_metrics_of_one() {
    assert!(!shown(2).contains("quelea_cluster_"));
    let text = shown_in_cluster();
    for role in ROLES {
        let value = u8::from(role == "standby");
        let line = format!("quelea_cluster_role{{role=\"{role}\"}} {value}\n");
        assert!(text.contains(&line), "{line}");
    }
    assert!(text.contains("quelea_cluster_last_message{shard=\"1\"} 9\n"), "{text}");
}

#[test]
fn the_exposition_is_what_prometheus_asks_for() {
    let text = shown_in_cluster();
    let families = parse(&text);
    let names: HashSet<_> = families.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), families.len(), "each metric has one HELP");
    let mut series = HashSet::new();
    for Family { name, help, kind, samples } in &families {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(is_name), "{name}");
        assert!(name.starts_with("quelea_") || name.starts_with("process_"), "{name}");
        assert!(help.ends_with('.') && !help.contains('\\'), "{name}: {help}");
        assert!(["counter", "gauge", "histogram"].contains(kind), "{name}: {kind}");
        assert_eq!(name.ends_with("_total"), *kind == "counter", "{name}");
        for unit in ["_ms", "_millis", "_us", "_mb", "_kb", "_count", "_percent", "_secs"] {
            assert!(!name.trim_end_matches("_total").ends_with(unit), "{name}: base units");
        }
        assert!(!samples.is_empty(), "{name}");
        for (sample, labels, value) in samples {
            let suffix = sample.strip_prefix(name).unwrap_or_else(|| panic!("{sample} in {name}"));
            let suffixes: &[&str] = match *kind {
                "histogram" => &["_bucket", "_sum", "_count"],
                _ => &[""],
            };
            assert!(suffixes.contains(&suffix), "{sample}");
            assert!(*kind != "counter" || *value >= 0.0, "{sample}");
            let mut own: Vec<_> = labels.iter().map(|(label, _)| *label).collect();
            assert!(own.iter().all(|label| label.chars().all(is_name)), "{sample}: {own:?}");
            own.sort_unstable();
            own.dedup();
            assert_eq!(own.len(), labels.len(), "{sample}: a label twice");
            assert!(series.insert((*sample, labels.clone())), "{sample} {labels:?} twice");
        }
    }
}

#[test]
fn what_prometheus_clients_show_is_shown() {
    let text = shown(0);
    let families = parse(&text);
    let has = |name: &str| families.iter().any(|family| family.name == name);
    for name in [
        "quelea_build_info",
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_start_time_seconds",
    ] {
        assert!(has(name), "{name}");
    }
    let named = ("listener", "a \"name\"\n".to_owned());
    let refused = families.iter().find(|f| f.name == "quelea_connects_refused_total").unwrap();
    let own: Vec<_> = refused.samples.iter().filter(|(_, labels, _)| labels[0] == named).collect();
    assert_eq!(own.len(), 2);
    assert_eq!(own[0].1[1], ("code", "0x87".to_owned()));
}

#[test]
fn a_broker_that_keeps_nothing_shows_no_journals() {
    assert!(shown(1).contains("quelea_log_commit_seconds_bucket{le=\"+Inf\"} 0"));
    assert!(!shown(0).contains("quelea_log_"));
}
