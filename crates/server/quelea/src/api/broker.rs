//! The broker itself: what is known without asking a shard.

use std::sync::atomic::Ordering;

use broker::{Figure as _, Metrics};

use super::call::Call;
use super::problem::Problem;
use super::route::Outcome;
use super::schema::Rows;
use super::views::{Bridge, Broker, Figure, Listener, Log};
use super::{Api, json};
use crate::http::State;
use crate::run::FIGURES;
use base::resident_bytes;

pub(crate) fn info(api: &Api) -> Outcome {
    let shared = &api.shards.shared;
    let total =
        |value: fn(&Metrics) -> u64| -> u64 { shared.metrics.iter().map(|own| value(own)).sum() };
    let (state, detail) = api.facts.health.readiness();
    let word = match (state, &detail) {
        (State::Ready, Some(_)) => "not_ready",
        _ => state.word(),
    };
    json(&Broker {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: word.to_owned(),
        detail,
        uptime_secs: api.facts.clock.uptime_secs(),
        shards: shared.homes.shards(),
        connections: total(|m| m.connections.total()),
        sessions: total(|m| m.sessions.total()),
        subscriptions: total(|m| m.subscriptions.total()),
        retained_messages: total(|m| m.retained.total()),
        retained_bytes: total(|m| m.retained_bytes.total()),
        messages_received: total(|m| m.publishes_received.total()),
        messages_sent: total(|m| m.publishes_sent.total()),
        messages_dropped: dropped(api),
        publishes_refused: total(|m| m.publishes_refused.total()),
        resident_bytes: resident_bytes().unwrap_or_default(),
    })
}

/// All reasons together.
fn dropped(api: &Api) -> u64 {
    let of_shard = |metrics: &Metrics| {
        let named = Metrics::descriptions().iter().zip(metrics.values());
        named
            .filter(|(metric, _)| metric.name == "quelea_messages_dropped_total")
            .map(|(_, value)| value)
            .sum::<u64>()
    };
    api.shards.shared.metrics.iter().map(|own| of_shard(own)).sum()
}

pub(crate) fn listeners(api: &Api) -> Outcome {
    let certificates = api.facts.certificates.all();
    let now_secs = api.facts.clock.wall_secs();
    let listeners = api.facts.limiter.listeners().into_iter().map(|(name, counts)| {
        let own = certificates.iter().find(|(known, _)| *known == name).map(|(_, own)| own);
        let days_left = |at: u64| at.saturating_sub(now_secs) / DAY_SECS;
        Listener {
            connections: counts.connections.load(Ordering::Relaxed).into(),
            accepted: counts.accepted.load(Ordering::Relaxed),
            admitted: counts.admitted.load(Ordering::Relaxed),
            paused: counts.is_paused.load(Ordering::Relaxed),
            url: counts.urls.last().cloned().unwrap_or_default(),
            certificate_expires_at: own.map(|own| own.not_after_secs),
            certificate_days_left: own.map(|own| days_left(own.not_after_secs)),
            certificate_subject: own.map(|own| own.subject.clone()),
            certificate_names: own.map(|own| own.alternative_names.clone()).unwrap_or_default(),
            certificate_fingerprint: own.map(|own| own.fingerprint_sha256.clone()),
            name,
        }
    });
    json(&Rows { items: listeners.collect(), cursor: None })
}

pub(crate) fn bridges(api: &Api) -> Outcome {
    let bridges = api.facts.bridges.figures().into_iter().map(|own| {
        let refused = |side: usize| own.counts.refused[side].iter().sum::<u64>();
        Bridge {
            state: own.state.as_str().to_owned(),
            error: Some(own.error.clone()).filter(|error| !error.is_empty()),
            messages_out: own.counts.sent,
            messages_in: own.counts.received,
            refused_out: refused(0) + own.counts.rejected[0],
            refused_in: refused(1) + own.counts.rejected[1],
            name: own.name,
            address: own.address,
            refused_subscriptions: own.refused,
            attempts: own.attempts,
            connects: own.connects,
            lag_messages: own.lag_messages,
            lag_bytes: own.lag_bytes,
        }
    });
    json(&Rows { items: bridges.collect(), cursor: None })
}

const DAY_SECS: u64 = 86_400;

/// Those who are in stay. After a restart all listeners are open.
pub(crate) fn pause(api: &Api, call: &Call, is_paused: bool) -> Outcome {
    let name = call.needed("name");
    match api.facts.limiter.listeners_of(name).as_slice() {
        [] => {
            let fix = "GET /listeners has their names and URLs";
            Err(Problem::missing("listener", name).fix(fix))
        }
        [(_, counts)] => {
            counts.is_paused.store(is_paused, Ordering::Relaxed);
            Ok(None)
        }
        several => {
            let count = several.len();
            let detail = format!("'{name}' is the URL of {count} listeners");
            let fix = "use the name of one: GET /listeners lists them";
            Err(Problem::bad("query parameter name", detail).fix(fix))
        }
    }
}

pub(crate) fn logs(api: &Api) -> Outcome {
    let board = &api.facts.board;
    let figures: Vec<Vec<u64>> =
        (0..FIGURES.len()).map(|place| board.figures(place).collect()).collect();
    let logs = board.states().enumerate().map(|(shard, state)| Log {
        shard: shard as u64,
        state: state.name().to_owned(),
        figures: FIGURES
            .iter()
            .zip(&figures)
            .map(|(figure, values)| Figure { name: figure.name.to_owned(), value: values[shard] })
            .collect(),
    });
    json(&Rows { items: logs.collect(), cursor: None })
}
