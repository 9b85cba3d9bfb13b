//! The limits of the broker, of listeners and of namespaces: what is used of them, and how often
//! they were reached.

use std::sync::atomic::Ordering;

use broker::{Metrics, Quota};
use session::{MemoryKind, QueueLimit};

use super::route::Outcome;
use super::schema::{Rows, record};
use super::{Api, json};
use crate::run::FIGURES;
use base::resident_bytes;

record! {
    /// A limit, and what is used of it.
    LimitUse {
        /// The owner of the limit is a broker, listener or namespace.
        kind: String,
        /// The listener or namespace; empty: the broker.
        owner: String,
        /// The key of the configuration, or the name of the quota.
        name: String,
        /// The unit: connections, messages, bytes, or an amount per second.
        unit: String,
        /// The limit; null: none.
        max: Option<u64>,
        /// Present use. Of an amount per second: the sum since the start. Null: each session has
        /// its own.
        used: Option<u64>,
        /// Number of refusals, closed connections or pauses since the start; null: not counted.
        refused: Option<u64>,
    }
}

pub(crate) fn list(api: &Api) -> Outcome {
    json(&Rows { items: all(api), cursor: None })
}

/// Limits of the broker first, then those of listeners and namespaces.
pub(super) fn all(api: &Api) -> Vec<LimitUse> {
    let mut rows = of_broker(api);
    rows.extend(of_listeners(api));
    rows.extend(of_namespaces(api));
    rows
}

fn of_broker(api: &Api) -> Vec<LimitUse> {
    let shared = &api.shards.shared;
    let limits = &api.facts.config.limits;
    let total = |figure: fn(&Metrics) -> &broker::Counter| Some(shared.total(figure));
    let held = |kind: MemoryKind| shared.ledger.bytes(kind);
    let row = |name: &str, unit: &str, max: u64, used: u64, refused: Option<u64>| {
        broker_row(name, unit, max, Some(used), refused)
    };
    let connections = shared.total(|metrics| &metrics.connections);
    let mut rows = vec![
        row(
            "limits.connections_max",
            "connections",
            api.facts.live.get(|config| config.limits.connections_max).into(),
            connections,
            None,
        ),
        row(
            "limits.memory_bytes_max",
            "bytes",
            limits.memory_bytes_max,
            resident_bytes().unwrap_or_default(),
            total(|metrics| &metrics.memory_cuts)
                .map(|cuts| cuts + dropped_at(api, QueueLimit::Memory)),
        ),
        row(
            "limits.sessions_bytes_max",
            "bytes",
            limits.sessions_bytes_max,
            held(MemoryKind::Sessions),
            total(|metrics| &metrics.sessions_refused),
        ),
        row(
            "limits.retained_messages_max",
            "messages",
            limits.retained_messages_max.into(),
            shared.total(|metrics| &metrics.retained),
            total(|metrics| &metrics.retained_refused),
        ),
        row(
            "limits.retained_bytes_max",
            "bytes",
            limits.retained_bytes_max,
            shared.total(|metrics| &metrics.retained_bytes),
            None,
        ),
    ];
    rows.extend(of_queues(api));
    if api.facts.config.durability.has_journal() {
        let figure = |name: &str| {
            let place = FIGURES.iter().position(|figure| figure.name == name);
            place.map_or(0, |place| api.facts.board.figures(place).sum())
        };
        let (max, used) = (api.facts.config.durability.log_bytes_max, figure("used_bytes"));
        let refused = Some(figure("refused_total"));
        rows.push(row("durability.log_bytes_max", "bytes", max, used, refused));
    }
    rows
}

/// The limits of queues, each with what was dropped because of it.
fn of_queues(api: &Api) -> [LimitUse; 3] {
    let limits = &api.facts.config.limits;
    let queued = api.shards.shared.ledger.bytes(MemoryKind::Queued);
    let rows = [
        (QueueLimit::Share, "bytes", limits.queues_bytes_max, Some(queued)),
        (QueueLimit::Messages, "messages", limits.queued_messages_max.into(), None),
        (QueueLimit::Bytes, "bytes", limits.queued_bytes_max, None),
    ];
    rows.map(|(limit, unit, max, used)| {
        let name = format!("limits.{}", limit.word());
        broker_row(&name, unit, max, used, Some(dropped_at(api, limit)))
    })
}

/// Messages of sessions and of shared groups.
fn dropped_at(api: &Api, limit: QueueLimit) -> u64 {
    let of_groups = |metrics: &Metrics| match limit {
        QueueLimit::Messages | QueueLimit::Bytes => metrics.dropped_group.of(limit as usize),
        _ => 0,
    };
    let of = |metrics: &Metrics| metrics.dropped_queue_full.of(limit as usize) + of_groups(metrics);
    api.shards.shared.metrics.iter().map(|metrics| of(metrics)).sum()
}

fn broker_row(
    name: &str,
    unit: &str,
    max: u64,
    used: Option<u64>,
    refused: Option<u64>,
) -> LimitUse {
    LimitUse {
        kind: "broker".to_owned(),
        owner: String::new(),
        name: name.to_owned(),
        unit: unit.to_owned(),
        max: is_set(max).then_some(max),
        used,
        refused,
    }
}

fn of_listeners(api: &Api) -> impl Iterator<Item = LimitUse> {
    let listeners = api.facts.limiter.listeners().into_iter();
    listeners.filter_map(|(name, counts)| {
        let own = api.facts.config.listeners.iter().find(|own| own.name == name)?;
        let max = u64::from(own.connections_max);
        is_set(max).then(|| LimitUse {
            kind: "listener".to_owned(),
            owner: name,
            name: "connections_max".to_owned(),
            unit: "connections".to_owned(),
            max: Some(max),
            used: Some(counts.connections.load(Ordering::Relaxed).into()),
            refused: None,
        })
    })
}

/// Of those that have some, the limits that they have.
fn of_namespaces(api: &Api) -> impl Iterator<Item = LimitUse> {
    let views = api.facts.namespaces.behind(None, NAMESPACES_MAX);
    views.into_iter().flat_map(|view| {
        let limits = Quota::ALL.into_iter().filter_map(move |quota| {
            let max = view.space.limit(quota)?;
            Some(LimitUse {
                kind: "namespace".to_owned(),
                owner: view.name.to_string(),
                name: quota.as_str().to_owned(),
                unit: unit_of(quota).to_owned(),
                max: Some(max),
                used: Some(view.space.count(quota)),
                refused: Some(view.space.refused(quota)),
            })
        });
        limits.collect::<Vec<_>>()
    })
}

const fn unit_of(quota: Quota) -> &'static str {
    match quota {
        Quota::Connections => "connections",
        Quota::Sessions => "sessions",
        Quota::Subscriptions => "subscriptions",
        Quota::RetainedMessages => "messages",
        Quota::RetainedBytes | Quota::QueuedBytes | Quota::LoggedBytes | Quota::SessionBytes => {
            "bytes"
        }
        Quota::Connects => "connections per second",
        Quota::MessagesIn | Quota::MessagesOut => "messages per second",
        Quota::BytesIn | Quota::BytesOut => "bytes per second",
    }
}

/// 0 and the largest values mean that there is none.
const fn is_set(max: u64) -> bool {
    max != 0 && max < u32::MAX as u64 || max > u32::MAX as u64 && max != u64::MAX
}

/// Namespaces of which limits are shown; others are in the list of namespaces.
const NAMESPACES_MAX: usize = 1_000;
