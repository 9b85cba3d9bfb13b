//! What needs a person: computed in one place, for the API, `quelea ctl alarms` and the dashboard.

use std::sync::atomic::Ordering;

use super::limits::{self, LimitUse};
use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json};
use crate::http::State;
use crate::run::{BridgeState, RoutingFigures};

record! {
    /// Something that needs a person.
    Alarm {
        /// The kind.
        kind: String,
        /// A critical alarm means that clients are refused or lose messages, or soon will.
        severity: String,
        /// The listener, bridge, rule, stream, shard, limit or service that it is about; empty: the
        /// broker.
        subject: String,
        /// The fault.
        detail: String,
        /// The remedy.
        fix: String,
    }
}

/// Values of `kind`.
pub(crate) const KINDS: &[&str] = &[
    "not_ready",
    "bridge_away",
    "certificate_expires",
    "log_full",
    "log_poisoned",
    "memory",
    "queues",
    "limit",
    "authentication_service",
    "authorization_service",
    "cluster_engine",
    "listener_paused",
    "rule_stalled",
    "stream_full",
    "stream_write_fault",
];

/// Values of `severity`, the worst first.
pub(crate) const SEVERITIES: &[&str] = &[CRITICAL, WARNING];
const CRITICAL: &str = "critical";
const WARNING: &str = "warning";

/// Days before the end of a certificate.
const CERTIFICATE_DAYS: u64 = 21;
const CERTIFICATE_CRITICAL_DAYS: u64 = 3;
const DAY_SECS: u64 = 86_400;

/// A limit that is used by so many percent is nearly used up.
const USED_PERCENT: u128 = 90;

/// Queues are full if they have lost messages in this time.
const QUEUES_SECS: u64 = 600;

/// A rule that has messages is to deal with one of them in this time.
const STALLED_SECS: u64 = 60;

/// Requests to a service that have failed in a row.
const FAULTS_MIN: u32 = 3;

/// The worst first.
pub(crate) fn list(api: &Api) -> Outcome {
    let mut items = Vec::new();
    of_broker(api, &mut items);
    of_logs(api, &mut items);
    of_bridges(api, &mut items);
    of_listeners(api, &mut items);
    of_limits(&limits::all(api), &mut items);
    of_queues(api, &mut items);
    of_services(api, &mut items);
    if let Some(streams) = api.facts.streams.get() {
        of_routing(&streams.board.figures(), api.facts.clock.now_ms(), &mut items);
    }
    items.sort_by_key(|alarm: &Alarm| SEVERITIES.iter().position(|it| *it == alarm.severity));
    json(&Rows { items, cursor: None })
}

fn alarm(kind: &str, severity: &str, subject: &str, detail: String, fix: &str) -> Alarm {
    Alarm {
        kind: kind.to_owned(),
        severity: severity.to_owned(),
        subject: subject.to_owned(),
        detail,
        fix: fix.to_owned(),
    }
}

fn of_broker(api: &Api, alarms: &mut Vec<Alarm>) {
    if let (State::Ready | State::Failed, Some(detail)) = api.facts.health.readiness() {
        let fix = "see the log for the cause";
        alarms.push(alarm("not_ready", CRITICAL, "", detail, fix));
    }
    let is_cut_off = |member: &crate::cluster::Member| !member.figures().is_engine_connected;
    if api.facts.member.as_ref().is_some_and(is_cut_off) {
        let detail = "no connection to NATS".to_owned();
        let fix = "check the servers of cluster.servers, and the network";
        alarms.push(alarm("cluster_engine", CRITICAL, "", detail, fix));
    }
}

fn of_logs(api: &Api, alarms: &mut Vec<Alarm>) {
    for (shard, state) in api.facts.board.states().enumerate() {
        let subject = format!("shard {shard}");
        match state.name() {
            "full" => {
                let detail = "the durable log is full: publishers are refused or paused".to_owned();
                let fix = "free disk space, raise durability.log_bytes_max, or delete sessions \
                           that are not read";
                alarms.push(alarm("log_full", CRITICAL, &subject, detail, fix));
            }
            "poisoned" => {
                let detail = "the durable log failed a write, and stores nothing".to_owned();
                let fix = "check the disk, and restart the broker";
                alarms.push(alarm("log_poisoned", CRITICAL, &subject, detail, fix));
            }
            _ => {}
        }
    }
}

fn of_bridges(api: &Api, alarms: &mut Vec<Alarm>) {
    // The active node of a cluster has them.
    if api.facts.health.readiness().0 == State::Standby {
        return;
    }
    for own in api.facts.bridges.figures() {
        let is_first = own.state == BridgeState::Connecting && own.error.is_empty();
        if own.state == BridgeState::Connected || is_first {
            continue;
        }
        let why = if own.error.is_empty() { own.state.as_str() } else { &own.error };
        let detail = format!("not connected to {}: {why}", own.address);
        let fix = "check the remote broker, its address and the credentials of the bridge";
        alarms.push(alarm("bridge_away", WARNING, &own.name, detail, fix));
    }
}

fn of_listeners(api: &Api, alarms: &mut Vec<Alarm>) {
    let now_secs = api.facts.clock.wall_secs();
    for (name, own) in api.facts.certificates.all() {
        let left_secs = own.not_after_secs.saturating_sub(now_secs);
        let days = left_secs / DAY_SECS;
        if days >= CERTIFICATE_DAYS {
            continue;
        }
        let severity = if days < CERTIFICATE_CRITICAL_DAYS { CRITICAL } else { WARNING };
        let detail = match (left_secs, days) {
            (0, _) => "the certificate has expired".to_owned(),
            (_, 0) => "the certificate expires today".to_owned(),
            (_, days) => format!("the certificate expires in {days} days"),
        };
        let fix = "replace the files, and reload";
        alarms.push(alarm("certificate_expires", severity, &name, detail, fix));
    }
    for (name, counts) in api.facts.limiter.listeners() {
        if counts.is_paused.load(Ordering::Relaxed) {
            let detail = "the listener is paused: new connections are closed".to_owned();
            let fix = "resume it: quelea ctl listeners resume NAME";
            alarms.push(alarm("listener_paused", WARNING, &name, detail, fix));
        }
    }
}

/// Amounts per second are limits that clients may use up at any time.
fn of_limits(rows: &[LimitUse], alarms: &mut Vec<Alarm>) {
    for row in rows.iter().filter(|row| !row.unit.ends_with("per second")) {
        let (Some(max), Some(used)) = (row.max.filter(|max| *max > 0), row.used) else { continue };
        let percent = u128::from(used) * 100 / u128::from(max);
        if percent < USED_PERCENT {
            continue;
        }
        let kind = match row.name.as_str() {
            "limits.memory_bytes_max" => "memory",
            "limits.queues_bytes_max" | "queued_bytes" => "queues",
            _ => "limit",
        };
        let severity = if used >= max { CRITICAL } else { WARNING };
        let subject = match row.owner.as_str() {
            "" => row.name.clone(),
            owner => format!("{} {owner}: {}", row.kind, row.name),
        };
        let detail = format!("{percent} % in use: {used} of {max} {}", row.unit);
        let fix = "raise the limit, or reduce the use";
        alarms.push(alarm(kind, severity, &subject, detail, fix));
    }
}

/// Messages that full queues have lost lately, by the samples of the history.
fn of_queues(api: &Api, alarms: &mut Vec<Alarm>) {
    let history = &api.facts.history;
    let now_ms = api.facts.clock.now_ms();
    // Before its start the broker has lost nothing.
    let is_old = api.facts.clock.uptime_secs() > QUEUES_SECS;
    let samples = history.since(now_ms.saturating_sub(QUEUES_SECS * 1000), usize::MAX);
    let first = samples.first().filter(|_| is_old);
    let before = |place: usize| first.map_or(0, |sample| sample.values[place]);
    let is_of_queues =
        |name: &str| name.starts_with("quelea_messages_dropped_total") && name.contains("queue");
    let rows = history.series().iter().zip(history.values()).enumerate();
    let lost: u64 = rows
        .filter(|(_, (series, _))| is_of_queues(&series.name))
        .map(|(place, (_, now))| now.saturating_sub(before(place)))
        .sum();
    if lost > 0 {
        let detail =
            format!("full queues lost {lost} messages in the last {} minutes", QUEUES_SECS / 60);
        let fix =
            "GET /drops/clients names the clients: read faster, or raise the limits of queues";
        alarms.push(alarm("queues", WARNING, "", detail, fix));
    }
}

fn of_routing(figures: &RoutingFigures, now_ms: u64, alarms: &mut Vec<Alarm>) {
    for own in &figures.streams {
        let name = &own.spec.name;
        if own.view.is_full {
            let detail = "the stream is full: publishes that it would store are refused".to_owned();
            let fix = "raise its limits, or see the alarms of its rules";
            alarms.push(alarm("stream_full", CRITICAL, name, detail, fix));
        }
        if let Some(fault) = &own.view.fault {
            let detail = format!("files of the stream cannot be written: {fault}");
            let fix = "check the disk; the broker tries again every second";
            alarms.push(alarm("stream_write_fault", CRITICAL, name, detail, fix));
        }
    }
    // To suspend a namespace is an operator's decision, as to disable a rule.
    let is_meant_to_deliver = |own: &&crate::run::RuleFigures| {
        own.facts.spec.rule.is_enabled() && own.view.state != streams::State::Suspended
    };
    for own in figures.rules.iter().filter(is_meant_to_deliver) {
        let stalled_ms = own.stalled_since_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        if stalled_ms < STALLED_SECS * 1000 {
            continue;
        }
        let (count, secs) = (own.view.sum.lag(), stalled_ms / 1000);
        let reason = own.view.state.reason();
        let why = if reason.is_empty() { own.view.state.name() } else { &reason };
        let detail =
            format!("{count} messages are waiting, none was delivered for {secs} s: {why}");
        let fix = match own.is_paused {
            true => "resume it: quelea ctl rules resume NAME",
            false => "check the target, and `quelea ctl rules show NAME`",
        };
        alarms.push(alarm("rule_stalled", WARNING, own.name(), detail, fix));
    }
}

fn of_services(api: &Api, alarms: &mut Vec<Alarm>) {
    let fix = "check the service and its address; clients that need it are refused";
    let detail = |faults: u32, why: &str| format!("the last {faults} requests have failed: {why}");
    for (name, faults, why) in api.facts.authenticator.faults_of_services() {
        if faults >= FAULTS_MIN {
            let detail = detail(faults, &why);
            alarms.push(alarm("authentication_service", CRITICAL, &name, detail, fix));
        }
    }
    let faults = api.facts.authorizer.as_ref().map(|authorizer| authorizer.faults());
    if let Some((faults, why)) = faults.filter(|(faults, _)| *faults >= FAULTS_MIN) {
        let detail = detail(faults, &why);
        alarms.push(alarm("authorization_service", CRITICAL, "", detail, fix));
    }
}

#[cfg(test)]
mod tests {
    use streams::{ConsumerView, StreamView};

    use super::*;
    use crate::run::{RuleFacts, RuleFigures, StreamFigures};

    fn row(name: &str, unit: &str, used: u64, max: Option<u64>) -> LimitUse {
        LimitUse {
            kind: "broker".into(),
            owner: String::new(),
            name: name.into(),
            unit: unit.into(),
            max,
            used: Some(used),
            refused: None,
        }
    }

    #[test]
    fn a_limit_that_is_nearly_used_up_is_an_alarm() {
        let rows = [
            row("limits.memory_bytes_max", "bytes", 899, Some(1000)),
            row("limits.memory_bytes_max", "bytes", 900, Some(1000)),
            row("limits.queues_bytes_max", "bytes", 2000, Some(1000)),
            row("connects", "connections per second", 5000, Some(10)),
            row("limits.connections_max", "connections", 5000, None),
            row("limits.retained_messages_max", "messages", 1, Some(2)),
            LimitUse { owner: "red".into(), ..row("sessions", "sessions", 100, Some(100)) },
        ];
        let mut alarms = Vec::new();
        of_limits(&rows, &mut alarms);
        let found: Vec<_> =
            alarms.iter().map(|alarm| (&*alarm.kind, &*alarm.severity, &*alarm.subject)).collect();
        assert_eq!(
            found,
            [
                ("memory", WARNING, "limits.memory_bytes_max"),
                ("queues", CRITICAL, "limits.queues_bytes_max"),
                ("limit", CRITICAL, "broker red: sessions"),
            ]
        );
        assert!(alarms[1].detail.starts_with("200 % in use"), "{}", alarms[1].detail);
        assert!(alarms.iter().all(|alarm| KINDS.contains(&&*alarm.kind)));
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

    /// A rule whose last outcome was at this time.
    fn routing(stalled_since_ms: Option<u64>, is_paused: bool) -> RoutingFigures {
        let definitions = routing::definitions::parse(RULES).unwrap();
        let stream = broker::streams::StreamNumber(1);
        let reason = "connection refused".to_owned();
        let view = ConsumerView {
            consumer: broker::streams::ConsumerNumber(1),
            stream,
            run: 1,
            state: streams::State::Probation { until_ms: 9, reason },
            sum: streams::Sum { stored: 5, pending: 5, ..streams::Sum::default() },
            adds_up: true,
            lag_ms: None,
            shards: Vec::new(),
            counters: streams::Counters::default(),
            last_error: None,
        };
        let facts = RuleFacts { spec: definitions.rules[0].clone(), namespace: "default".into() };
        let rule = RuleFigures { facts: facts.into(), view, is_paused, stalled_since_ms };
        let view = StreamView {
            stream,
            stored: 5,
            records: 0,
            bytes: 0,
            unmoved: 5,
            consumers: 1,
            is_full: is_paused,
            fault: is_paused.then(|| "I/O error".to_owned()),
        };
        let stream = StreamFigures { spec: definitions.streams[0].clone().into(), view };
        RoutingFigures { streams: vec![stream], rules: vec![rule], memory_bytes: 0 }
    }

    #[test]
    fn a_rule_without_an_outcome_for_a_minute_is_an_alarm() {
        let found = |figures: RoutingFigures| {
            let mut alarms = Vec::new();
            of_routing(&figures, 100_000, &mut alarms);
            assert!(alarms.iter().all(|alarm| KINDS.contains(&&*alarm.kind)));
            alarms.into_iter().map(|alarm| (alarm.kind, alarm.detail)).collect::<Vec<_>>()
        };
        assert_eq!(found(routing(None, false)), []);
        assert_eq!(found(routing(Some(40_001), false)), []);
        let (kind, detail) = &found(routing(Some(40_000), false))[0];
        assert_eq!(kind, "rule_stalled");
        assert!(detail.starts_with("5 messages are waiting"), "{detail}");
        assert!(detail.ends_with("the target is not available: connection refused"), "{detail}");
        let mut suspended = routing(Some(0), false);
        suspended.rules[0].view.state = streams::State::Suspended;
        assert_eq!(found(suspended), []);
        let kinds = found(routing(Some(0), true)).into_iter().map(|(kind, _)| kind);
        let expected = ["stream_full", "stream_write_fault", "rule_stalled"];
        assert_eq!(kinds.collect::<Vec<_>>(), expected);
    }
}
