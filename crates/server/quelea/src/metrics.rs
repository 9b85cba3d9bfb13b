//! `/metrics` in Prometheus' text format.

mod cells;
mod routing;

use std::fmt::{Display, Write as _};
use std::sync::atomic::Ordering;

use bridge::Refusal;
use broker::{MetricType, Metrics, Quota, Shared};
use session::MemoryKind;
use telemetry::Counts as TelemetryCounts;

pub(crate) use self::cells::of_cells;
pub use self::cells::{CellLink, LinkFigures, of_links};
use self::routing::write_routing;
use crate::cluster::{ClusterFigures, ROLES};
use crate::life_cycle::LifeCycle;
use crate::logging::Logging;
use crate::run::{
    BridgeBoard, BridgeFigures, BridgeState, Certificates, ConnectionLimiter, Counts, FIGURES,
    JournalBoard, JournalState, RoutingFigures, SELF_CHECK_NAMESPACE, SelfChecks, Timing,
    TurnedAway,
};
use base::memory;
use base::shown;
use base::{Clock, Process};
use identity::auth::bans;

/// What the metrics are read from.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub shared: &'a Shared,
    pub limiter: &'a ConnectionLimiter,
    pub board: &'a JournalBoard,
    pub turns: &'a [Timing],
    pub certificates: &'a Certificates,
    pub life_cycle: &'a LifeCycle,
    pub self_checks: &'a SelfChecks,
    pub bridges: &'a BridgeBoard,
    /// None: no streams are open.
    pub routing: Option<&'a RoutingFigures>,
    /// None: this broker belongs to no cluster.
    pub cluster: Option<&'a ClusterFigures>,
    pub clock: Clock,
    /// `limits.memory_bytes_max`.
    pub memory_bytes_max: u64,
}

/// All metrics: those of the shards, then the process's own.
pub fn exposition(sources: &Sources<'_>) -> String {
    of_cell(sources) + &of_process(sources)
}

/// Each of the core's, per shard, those of the logs where there are any, of the role in a cluster,
/// and of workers.
pub(crate) fn of_cell(sources: &Sources<'_>) -> String {
    let Sources { shared, board, turns, cluster, .. } = *sources;
    let mut text = String::new();
    write_shards(&mut text, shared);
    if board.journal_count() > 0 {
        write_journals(&mut text, board);
    }
    if let Some(figures) = cluster {
        write_cluster(&mut text, figures);
    }
    let turns = Timing::sum(turns);
    let help = "Duration of event-loop iterations of workers.";
    write_timing(&mut text, "quelea_worker_turn_seconds", help, &turns);
    let name = "quelea_worker_turn_seconds_max";
    let help = "Longest event-loop iteration of a worker since the start.";
    write_one(&mut text, name, MetricType::Gauge, help, turns.longest_secs());
    text
}

/// The role in a cluster alone.
pub(crate) fn of_role(figures: &ClusterFigures) -> String {
    let mut text = String::new();
    write_cluster(&mut text, figures);
    text
}

/// Those of the listeners, and the process's own.
pub(crate) fn of_process(sources: &Sources<'_>) -> String {
    let Sources { shared, limiter, certificates, life_cycle, clock, .. } = *sources;
    let mut text = String::new();
    write_certificates(&mut text, certificates);
    write_listeners(&mut text, limiter);
    write_self_checks(&mut text, sources.self_checks);
    write_api(&mut text, limiter);
    write_events(&mut text, life_cycle);
    write_telemetry(&mut text, &life_cycle.spans.counts);
    write_namespaces(&mut text, shared);
    write_bridges(&mut text, &sources.bridges.figures());
    if let Some(figures) = sources.routing {
        write_routing(&mut text, figures);
    }
    write_own(&mut text, shared, clock);
    write_memory(&mut text, shared, sources.memory_bytes_max);
    if let Some(process) = Process::now() {
        write_process(&mut text, &process);
    }
    text
}

/// Metrics that differ in a label only are one to Prometheus.
fn write_shards(text: &mut String, shared: &Shared) {
    let shards: Vec<Vec<u64>> = shared.metrics.iter().map(|own| own.values()).collect();
    let mut last = "";
    for (number, metric) in Metrics::descriptions().iter().enumerate() {
        if metric.name != last {
            head(text, metric.name, metric.kind, metric.family_help());
        }
        last = metric.name;
        let comma = if metric.label.is_empty() { "" } else { "," };
        for (shard, values) in shards.iter().enumerate() {
            let labels = format!("shard=\"{shard}\"{comma}{}", metric.label);
            let _ = writeln!(text, "{}{{{labels}}} {}", metric.name, values[number]);
        }
    }
}

/// Nothing where no listener has one.
fn write_certificates(text: &mut String, certificates: &Certificates) {
    let name = "quelea_certificate_expiry_timestamp_seconds";
    for (number, (listener, secs)) in certificates.expiries().into_iter().enumerate() {
        if number == 0 {
            let help = "Expiry of the certificate of a TLS listener, in seconds since 1970.";
            head(text, name, MetricType::Gauge, help);
        }
        let _ = writeln!(text, "{name}{{listener=\"{}\"}} {secs}", escaped(&listener));
    }
}

/// How often what came to a listener.
type OfListener = fn(&Counts) -> u64;

const OF_LISTENERS: [(&str, MetricType, &str, OfListener); 3] = [
    (
        "quelea_listener_connections",
        MetricType::Gauge,
        "Open connections of a listener, including those without a CONNECT yet.",
        |counts| counts.connections.load(Ordering::Relaxed).into(),
    ),
    (
        "quelea_connections_accepted_total",
        MetricType::Counter,
        "Network connections that were accepted, before any handshake.",
        |counts| counts.accepted.load(Ordering::Relaxed),
    ),
    (
        "quelea_connections_admitted_total",
        MetricType::Counter,
        "Connections that were authenticated and got a session.",
        |counts| counts.admitted.load(Ordering::Relaxed),
    ),
];

/// Nothing where no listener is checked.
fn write_self_checks(text: &mut String, self_checks: &SelfChecks) {
    let listeners = self_checks.listeners();
    if listeners.is_empty() {
        return;
    }
    let name = "quelea_self_check_success";
    let help = "1: the last self-check of the listener succeeded.";
    head(text, name, MetricType::Gauge, help);
    for own in &listeners {
        let _ = writeln!(
            text,
            "{name}{{listener=\"{}\"}} {}",
            escaped(&own.name),
            u8::from(own.is_fine())
        );
    }
    let name = "quelea_self_check_round_trip_seconds";
    let help = "Time from the PUBLISH of the last successful self-check to its message.";
    head(text, name, MetricType::Gauge, help);
    for own in &listeners {
        let secs = own.round_trip_nanos.load(Ordering::Relaxed) as f64 / 1e9;
        let _ = writeln!(text, "{name}{{listener=\"{}\"}} {secs}", escaped(&own.name));
    }
    let name = "quelea_self_checks_total";
    let help = "Self-checks of a listener. refused: not done because of a limit or a pause.";
    head(text, name, MetricType::Counter, help);
    for own in &listeners {
        let results = [("ok", &own.succeeded), ("failed", &own.failed), ("refused", &own.refused)];
        for (result, count) in results {
            let labels = format!("listener=\"{}\",result=\"{result}\"", escaped(&own.name));
            let _ = writeln!(text, "{name}{{{labels}}} {}", count.load(Ordering::Relaxed));
        }
    }
}

fn write_listeners(text: &mut String, limiter: &ConnectionLimiter) {
    let listeners: Vec<_> = limiter
        .listeners()
        .into_iter()
        .map(|(name, counts)| (format!("listener=\"{}\"", escaped(&name)), counts))
        .collect();
    for (name, kind, help, value) in OF_LISTENERS {
        head(text, name, kind, help);
        for (listener, counts) in &listeners {
            let _ = writeln!(text, "{name}{{{listener}}} {}", value(counts));
        }
    }
    let name = "quelea_connections_turned_away_total";
    head(text, name, MetricType::Counter, TURNED_AWAY_HELP);
    for (listener, counts) in &listeners {
        for why in TurnedAway::ALL {
            let (reason, count) = (why.as_str(), counts.turned_away(why));
            let _ = writeln!(text, "{name}{{{listener},reason=\"{reason}\"}} {count}");
        }
    }
    write_bans(text, limiter);
    let name = "quelea_connects_refused_total";
    let help = "Refused CONNECTs, by the MQTT 5 reason code.";
    head(text, name, MetricType::Counter, help);
    for (listener, counts) in &listeners {
        for (reason, count) in counts.refused() {
            let (code, reason) = (reason.0, reason.word());
            let labels = format!("{listener},code=\"0x{code:02X}\",reason=\"{reason}\"");
            let _ = writeln!(text, "{name}{{{labels}}} {count}");
        }
    }
}

/// Calls that showed nothing are not counted.
fn write_api(text: &mut String, limiter: &ConnectionLimiter) {
    let help = "Requests to the management API with a wrong token or password.";
    let count = limiter.api_refused.load(Ordering::Relaxed);
    write_one(text, "quelea_api_logins_refused_total", MetricType::Counter, help, count);
}

fn write_events(text: &mut String, life_cycle: &LifeCycle) {
    let help = "Life-cycle events that were dropped at a limit.";
    write_one(
        text,
        "quelea_events_withheld_total",
        MetricType::Counter,
        help,
        life_cycle.withheld(),
    );
    let help = "Event streams that were closed because the reader was too slow.";
    write_one(text, "quelea_event_readers_cut_total", MetricType::Counter, help, life_cycle.cut());
}

fn write_telemetry(text: &mut String, counts: &TelemetryCounts) {
    let name = "quelea_telemetry_spans_total";
    let help = "Spans of messages for the collector. dropped: at a limit of the broker. failed: the collector did not accept them.";
    head(text, name, MetricType::Counter, help);
    let results = [
        ("sent", &counts.spans_sent),
        ("dropped", &counts.spans_dropped),
        ("failed", &counts.spans_failed),
    ];
    for (result, count) in results {
        let _ = writeln!(text, "{name}{{result=\"{result}\"}} {}", count.load(Ordering::Relaxed));
    }
    let name = "quelea_telemetry_requests_total";
    let help = "Requests to the collector, by signal and result.";
    head(text, name, MetricType::Counter, help);
    for (signal, own) in [("traces", &counts.trace_requests), ("metrics", &counts.metric_requests)]
    {
        for (result, count) in [("ok", &own.succeeded), ("failed", &own.failed)] {
            let labels = format!("signal=\"{signal}\",result=\"{result}\"");
            let _ = writeln!(text, "{name}{{{labels}}} {}", count.load(Ordering::Relaxed));
        }
    }
}

/// Nothing where there is none but the default one.
fn write_namespaces(text: &mut String, shared: &Shared) {
    let mut all = shared.spaces.all();
    all.retain(|space| space.name() != SELF_CHECK_NAMESPACE);
    if all.is_empty() {
        return;
    }
    let help = "Namespaces in addition to the default one. The 200 with the lowest numbers have metrics of their own.";
    write_one(text, "quelea_namespaces", MetricType::Gauge, help, all.len());
    let shown = &all[..all.len().min(NAMESPACES_MAX)];
    for quota in Quota::ALL {
        let (kind, end, help) = describe(quota);
        let name = format!("quelea_namespace_{}{end}", quota.as_str());
        head(text, &name, kind, help);
        for space in shown {
            let namespace = space.name();
            let _ = writeln!(text, "{name}{{namespace=\"{namespace}\"}} {}", space.count(quota));
        }
    }
    let name = "quelea_namespace_refused_total";
    let help = "Times that a limit of a namespace refused or throttled its clients, by limit.";
    head(text, name, MetricType::Counter, help);
    for space in shown {
        let namespace = space.name();
        for quota in Quota::ALL {
            let (limit, count) = (quota.as_str(), space.refused(quota));
            let labels = format!("namespace=\"{namespace}\",limit=\"{limit}\"");
            let _ = writeln!(text, "{name}{{{labels}}} {count}");
        }
    }
}

const fn describe(quota: Quota) -> (MetricType, &'static str, &'static str) {
    match quota {
        Quota::Connections => (MetricType::Gauge, "", "Open connections of a namespace."),
        Quota::Sessions => (MetricType::Gauge, "", "Sessions of a namespace, connected or not."),
        Quota::Subscriptions => (MetricType::Gauge, "", "Subscriptions of a namespace."),
        Quota::RetainedMessages => (MetricType::Gauge, "", "Retained messages of a namespace."),
        Quota::RetainedBytes => {
            (MetricType::Gauge, "", "Bytes of retained messages of a namespace.")
        }
        Quota::QueuedBytes => {
            (MetricType::Gauge, "", "Memory of messages queued for sessions of a namespace.")
        }
        Quota::LoggedBytes => {
            (MetricType::Gauge, "", "Bytes of messages of a namespace in the logs.")
        }
        Quota::SessionBytes => {
            (MetricType::Gauge, "", "Memory of sessions and subscriptions of a namespace.")
        }
        Quota::Connects => (MetricType::Counter, "_total", "Connects of clients of a namespace."),
        Quota::MessagesIn => {
            (MetricType::Counter, "_total", "Publishes from clients of a namespace.")
        }
        Quota::BytesIn => {
            (MetricType::Counter, "_total", "Bytes of packets from clients of a namespace.")
        }
        Quota::MessagesOut => {
            (MetricType::Counter, "_total", "Deliveries to clients of a namespace.")
        }
        Quota::BytesOut => (
            MetricType::Counter,
            "_total",
            "Bytes of topics and payloads delivered to clients of a namespace.",
        ),
    }
}

/// More would make a page of metrics that nobody reads in time.
const NAMESPACES_MAX: usize = 200;

/// A value of each bridge.
type OfBridge = fn(&BridgeFigures) -> u64;

fn write_bridges(text: &mut String, bridges: &[BridgeFigures]) {
    if bridges.is_empty() {
        return;
    }
    let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
    let is_connected = |own: &BridgeFigures| u64::from(own.state == BridgeState::Connected);
    let plain: [(&str, MetricType, &str, OfBridge); 5] = [
        ("connected", gauge, "Whether a bridge is connected: 1 or 0.", is_connected),
        ("attempts_total", counter, "Attempts of a bridge to connect.", |own| own.attempts),
        ("connects_total", counter, "Times that a bridge was connected.", |own| own.connects),
        (
            "lag_messages",
            gauge,
            "Messages queued for a bridge or unacknowledged by its remote.",
            |own| own.lag_messages,
        ),
        ("lag_bytes", gauge, "Memory of messages queued for a bridge.", |own| own.lag_bytes),
    ];
    for (name, kind, help, value) in plain {
        let name = format!("quelea_bridge_{name}");
        head(text, &name, kind, help);
        for own in bridges {
            let _ = writeln!(text, "{name}{{bridge=\"{}\"}} {}", own.name, value(own));
        }
    }
    let name = "quelea_bridge_messages_total";
    head(
        text,
        name,
        counter,
        "Messages that a bridge has relayed to its remote (out) or from it (in).",
    );
    for own in bridges {
        for (direction, count) in [("out", own.counts.sent), ("in", own.counts.received)] {
            let labels = format!("bridge=\"{}\",direction=\"{direction}\"", own.name);
            let _ = writeln!(text, "{name}{{{labels}}} {count}");
        }
    }
    let name = "quelea_bridge_refused_total";
    head(text, name, counter, BRIDGE_REFUSED_HELP);
    for own in bridges {
        for (side, direction) in ["out", "in"].into_iter().enumerate() {
            let refused =
                Refusal::ALL.map(|it| (it.as_str(), own.counts.refused[side][it as usize]));
            let rejected = ("rejected", own.counts.rejected[side]);
            for (reason, count) in refused.into_iter().chain([rejected]) {
                let bridge = &own.name;
                let labels =
                    format!("bridge=\"{bridge}\",direction=\"{direction}\",reason=\"{reason}\"");
                let _ = writeln!(text, "{name}{{{labels}}} {count}");
            }
        }
    }
}

const BRIDGE_REFUSED_HELP: &str = "Messages that a bridge has not relayed. Reasons: no topic map \
     (unmapped), an invalid topic (topic), hops_max (hops), another copy was relayed \
     (copy), or it breaks the protocol (malformed). The receiver accepts no packet of this size \
     (size), or has answered with an error code (rejected). It has answered several times that it \
     does not accept the message now (exhausted). It has closed several connections right behind \
     the message (closes).";

fn write_bans(text: &mut String, limiter: &ConnectionLimiter) {
    let name = "quelea_bans_enforced_total";
    let help = "Connections that a ban refused, by kind of ban.";
    head(text, name, MetricType::Counter, help);
    for kind in bans::BanKind::ALL {
        let by = kind.as_str();
        let _ = writeln!(text, "{name}{{by=\"{by}\"}} {}", limiter.bans.refused(kind));
    }
    let help = "Bans in the file and by the API, including expired ones.";
    write_one(text, "quelea_bans", MetricType::Gauge, help, limiter.bans.count_listed());
}

const TURNED_AWAY_HELP: &str = "Connections that ended before a client was admitted. Reasons: a \
     failed handshake of TLS, WebSocket or PROXY (handshake); connect_timeout_secs (timeout); the \
     client (closed). A refused or broken CONNECT (refused); lack of resources (resources); a ban \
     of the address (banned); a paused listener (paused).";

/// The largest consumers that are listed.
const CONSUMERS_MAX: usize = 10;

fn write_consumers(text: &mut String, shared: &Shared) {
    let name = "quelea_held_bytes";
    let help = "Bytes that clients use in memory and (logged) in the logs.";
    head(text, name, MetricType::Gauge, help);
    for held in MemoryKind::ALL {
        let _ = writeln!(text, "{name}{{kind=\"{}\"}} {}", held.name(), shared.ledger.bytes(held));
    }
    let mut consumers = shared.ledger.largest(CONSUMERS_MAX);
    for consumer in shared.ledger.largest_of(MemoryKind::Logged, CONSUMERS_MAX) {
        let is_listed = consumers.iter().any(|other| other.name == consumer.name);
        if consumer.bytes[MemoryKind::Logged as usize] > 0 && !is_listed {
            consumers.push(consumer);
        }
    }
    if consumers.is_empty() {
        return;
    }
    let name = "quelea_owner_bytes";
    let help = "Bytes of the ten users (or addresses) with the most memory, and of the ten with the most bytes in the logs.";
    head(text, name, MetricType::Gauge, help);
    for consumer in consumers {
        let who = shown(&consumer.name);
        for (held, bytes) in MemoryKind::ALL.into_iter().zip(consumer.bytes) {
            let (who, kind) = (escaped(&who), held.name());
            let _ = writeln!(text, "{name}{{owner=\"{who}\",kind=\"{kind}\"}} {bytes}");
        }
    }
}

fn write_own(text: &mut String, shared: &Shared, clock: Clock) {
    let name = "quelea_build_info";
    head(text, name, MetricType::Gauge, "Always 1; the labels name version, commit and build.");
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("BUILD_COMMIT"));
    let _ = writeln!(text, "{name}{{version=\"{version}\",commit=\"{commit}\"}} 1");
    let help = "Time since the start.";
    write_one(text, "quelea_uptime_seconds", MetricType::Gauge, help, clock.uptime_secs());
    let help = "Log lines that were lost because the log was written too slowly.";
    let lost = Logging::lines_lost();
    write_one(text, "quelea_logging_lines_lost_total", MetricType::Counter, help, lost);
    write_consumers(text, shared);
}

fn write_memory(text: &mut String, shared: &Shared, bytes_max: u64) {
    let help = "The limit limits.memory_bytes_max.";
    write_one(text, "quelea_memory_limit_bytes", MetricType::Gauge, help, bytes_max);
    let help = "Allocated memory, which limits.memory_bytes_max limits.";
    write_one(text, "quelea_memory_held_bytes", MetricType::Gauge, help, memory::held_bytes());
    let name = "quelea_memory_shortages_total";
    let help = "Times that memory became tight (the largest consumers are throttled), short (they are refused) or out (all clients are refused).";
    head(text, name, MetricType::Counter, help);
    for (stage, count) in ["tight", "short", "out"].into_iter().zip(shared.memory_shortages()) {
        let _ = writeln!(text, "{name}{{stage=\"{stage}\"}} {count}");
    }
}

fn write_process(text: &mut String, process: &Process) {
    let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
    let help = "Processor time of the process, user and system.";
    write_one(text, "process_cpu_seconds_total", counter, help, process.cpu_secs);
    let help = "When the process was started, in seconds since 1970.";
    write_one(text, "process_start_time_seconds", gauge, help, process.started_secs);
    let help = "Virtual memory of the process.";
    write_one(text, "process_virtual_memory_bytes", gauge, help, process.virtual_bytes);
    let help = "Resident memory of the process.";
    write_one(text, "process_resident_memory_bytes", gauge, help, process.resident_bytes);
    let help = "Open files of the process, including connections.";
    write_one(text, "process_open_fds", gauge, help, process.open_files);
    let help = "Limit of open files of the process.";
    let most = process.open_files_max.map_or(f64::INFINITY, |most| most as f64);
    let most = if most.is_finite() { most.to_string() } else { "+Inf".into() };
    write_one(text, "process_max_fds", gauge, help, most);
}

fn write_one(text: &mut String, name: &str, kind: MetricType, help: &str, value: impl Display) {
    head(text, name, kind, help);
    let _ = writeln!(text, "{name} {value}");
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn write_journals(text: &mut String, board: &JournalBoard) {
    for (name, state, help) in STATES {
        let values = board.states().map(|now| u64::from(now == state));
        write_journal(text, name, MetricType::Gauge, help, values);
    }
    for (place, figure) in FIGURES.iter().enumerate() {
        write_journal(text, figure.name, figure.kind, figure.help, board.figures(place));
    }
    let help = "Duration of the writes and syncs that a group of records shares with other logs.";
    write_timing(text, "quelea_log_commit_seconds", help, &board.commits);
}

fn write_cluster(text: &mut String, figures: &ClusterFigures) {
    let (counter, gauge) = (MetricType::Counter, MetricType::Gauge);
    let name = "quelea_cluster_role";
    head(
        text,
        name,
        gauge,
        "1 for the present role of this node in its cluster, 0 for the others.",
    );
    for role in ROLES {
        let value = u8::from(figures.role == role);
        let _ = writeln!(text, "{name}{{role=\"{role}\"}} {value}");
    }
    let mut write = |end: &str, kind, help: &str, value: &dyn Display| {
        write_one(text, &format!("quelea_cluster_{end}"), kind, help, value);
    };
    let help = "Epoch of the lease. Each takeover increases it.";
    write("epoch", gauge, help, &figures.epoch);
    let help = "Seconds until this node stops serving unless the lease is renewed. 0 on standbys and \
                suspended nodes.";
    write("lease_remaining_seconds", gauge, help, &figures.lease_remaining_secs);
    let help = "1 while this node has a connection to NATS.";
    write("engine_connected", gauge, help, &u8::from(figures.is_engine_connected));
    let help = "Messages that this node has not read yet, in the shard with the most; 0 on the active node.";
    write("lag_messages", gauge, help, &figures.lag.messages);
    let help = "Log bytes that this node has not read yet, in the shard with the most; 0 on the active node.";
    write("lag_bytes", gauge, help, &figures.lag.bytes);
    let help = "Age of the last message that this node has read; 0 if no message is missing.";
    write("lag_seconds", gauge, help, &figures.lag.seconds);
    let help =
        "Messages with files of streams that this node has not copied yet; 0 on the active node.";
    write("stream_files_lag_messages", gauge, help, &figures.stream_files_lag);
    let help = "Takeovers by this process. A node that loses its role restarts.";
    write("takeovers_total", counter, help, &figures.takeovers);
    let help = "Times the lease of this node expired while it was active.";
    write("suspensions_total", counter, help, &figures.suspensions);
    let help = "Appends that NATS did not answer in time. Each is checked in the stream.";
    write("append_unknown_total", counter, help, &figures.appends_unknown);
    let name = "quelea_cluster_last_message";
    head(
        text,
        name,
        gauge,
        "Sequence number of the last message of the stream that the copy of the shard has.",
    );
    for (shard, last) in figures.last_messages.iter().enumerate() {
        let _ = writeln!(text, "{name}{{shard=\"{shard}\"}} {last}");
    }
}

fn write_journal(
    text: &mut String,
    name: &str,
    kind: MetricType,
    help: &str,
    values: impl Iterator<Item = u64>,
) {
    let name = format!("quelea_log_{name}");
    head(text, &name, kind, help);
    for (shard, value) in values.enumerate() {
        let _ = writeln!(text, "{name}{{shard=\"{shard}\"}} {value}");
    }
}

/// A Prometheus histogram.
fn write_timing(text: &mut String, name: &str, help: &str, timing: &Timing) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} histogram");
    let mut count = 0;
    for (bound, sum) in timing.cumulative() {
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {sum}");
        count = sum;
    }
    let _ = writeln!(text, "{name}_sum {}\n{name}_count {count}", timing.sum_secs());
}

fn head(text: &mut String, name: &str, kind: MetricType, help: &str) {
    let kind = match kind {
        MetricType::Counter => "counter",
        MetricType::Gauge => "gauge",
    };
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

const STATES: [(&str, JournalState, &str); 4] = [
    ("full", JournalState::Full, "1 while there is no space for the log."),
    (
        "unavailable",
        JournalState::Unavailable,
        "1 while the replicated log has no quorum: acknowledgements and publishers wait.",
    ),
    (
        "fenced",
        JournalState::Fenced,
        "1 after another node has taken over the log. This node no longer acknowledges messages.",
    ),
    (
        "poisoned",
        JournalState::Poisoned,
        "1 after a write or sync failed: messages that must be stored are no longer acknowledged.",
    ),
];
