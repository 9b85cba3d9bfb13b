//! The cluster that this node belongs to, and what a node that does not serve refuses.

use web::axum::http::StatusCode;

use super::problem::Problem;
use super::route::{Outcome, Route};
use super::views::{Cluster, ClusterCell, ClusterFiles, ClusterNode, ClusterShard};
use super::{Api, json};
use crate::cluster::{Lag, Member, NodeStatus, Status, boot_ms};
use crate::http::State;
use crate::run::Calls;

pub(crate) fn show(api: &Api) -> Outcome {
    if let Some(calls) = &api.calls_to_cells {
        return json(&of_cells(calls));
    }
    let Some(member) = &api.facts.member else {
        let detail = "this broker is not part of a cluster";
        let fix = "configure the section [cluster]";
        return Err(Problem::new(StatusCode::NOT_FOUND, detail).fix(fix));
    };
    let (status, figures, now_ms) = (member.status(), member.figures(), boot_ms());
    let nodes = status.nodes(now_ms).into_iter().map(|node| node_of(&status, node, now_ms));
    json(&Cluster {
        node: status.own.node.clone(),
        role: figures.role,
        epoch: figures.epoch,
        active: status.holder.clone(),
        active_address: status.holder_address.clone().filter(|address| !address.is_empty()),
        lease_remaining_seconds: figures.lease_remaining_secs,
        engine_connected: figures.is_engine_connected,
        nodes: nodes.collect(),
        cells: Vec::new(),
    })
}

/// The same of a cluster with several cells: a node is active if it is for one of them.
fn of_cells(calls: &Calls) -> Cluster {
    let (now_ms, shards) = (boot_ms(), u64::from(calls.shards_of_cell()));
    let (mut nodes, mut cells) = (Vec::<ClusterNode>::new(), Vec::new());
    let (mut lease_secs, mut is_connected) = (f64::INFINITY, true);
    for (cell, (owner, member)) in (0..).zip(calls.members_of_cells()) {
        let figures = member.as_ref().map(Member::figures);
        if let Some(member) = &member {
            let status = member.status();
            for own in status.nodes(now_ms) {
                let mut node = node_of(&status, own, now_ms);
                node.shards.iter_mut().for_each(|it| it.shard += u64::from(cell) * shards);
                node.detail = node.detail.map(|detail| format!("cell {cell}: {detail}"));
                match nodes.iter_mut().find(|known| known.node == node.node) {
                    Some(known) => add_cell(known, node),
                    None => nodes.push(node),
                }
            }
        }
        is_connected &= figures.as_ref().is_some_and(|figures| figures.is_engine_connected);
        for figures in figures.iter().filter(|figures| figures.role == ACTIVE) {
            lease_secs = lease_secs.min(figures.lease_remaining_secs);
        }
        let (active, epoch) = owner.unzip();
        cells.push(ClusterCell {
            cell,
            active,
            epoch,
            role: figures.as_ref().map(|figures| figures.role.clone()),
            lag_messages: figures.map_or(0, |figures| figures.lag.messages),
        });
    }
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    let is_active = cells.iter().any(|cell| cell.role.as_deref() == Some(ACTIVE));
    Cluster {
        node: calls.own_node().to_owned(),
        role: if is_active { ACTIVE } else { STANDBY }.to_owned(),
        epoch: 0,
        active: None,
        active_address: None,
        lease_remaining_seconds: if lease_secs.is_finite() { lease_secs } else { 0.0 },
        engine_connected: is_connected,
        nodes,
        cells,
    }
}

const ACTIVE: &str = "active";
const STANDBY: &str = "standby";

/// What a node is for one more cell.
fn add_cell(known: &mut ClusterNode, mut more: ClusterNode) {
    if more.role == ACTIVE || known.role == STANDBY {
        known.role = more.role;
    }
    known.detail = known.detail.take().or(more.detail);
    known.epoch = known.epoch.max(more.epoch);
    known.silent_seconds = known.silent_seconds.min(more.silent_seconds);
    known.lag_messages = known.lag_messages.max(more.lag_messages);
    known.lag_bytes += more.lag_bytes;
    known.lag_seconds = known.lag_seconds.max(more.lag_seconds);
    known.shards.append(&mut more.shards);
}

fn node_of(status: &Status, node: &NodeStatus, now_ms: u64) -> ClusterNode {
    let lags = status.lags_of(node, now_ms);
    let worst = Lag::worst(&lags);
    let shards =
        node.shards.iter().zip(&lags).enumerate().map(|(number, (shard, lag))| ClusterShard {
            shard: number as u64,
            last_message: shard.last,
            bytes: shard.bytes,
            caught_up: shard.has_caught_up,
            fault: Some(shard.fault.clone()).filter(|fault| !fault.is_empty()),
            lag_messages: lag.messages,
            lag_bytes: lag.bytes,
            lag_seconds: lag.seconds,
        });
    let heard_at_ms = status.others.get(&node.node).map_or(now_ms, |(_, at_ms)| *at_ms);
    ClusterNode {
        node: node.node.clone(),
        role: node.role.clone(),
        version: node.version.clone(),
        address: Some(node.address.clone()).filter(|address| !address.is_empty()),
        settings: node.config.clone(),
        detail: Some(node.detail.clone()).filter(|detail| !detail.is_empty()),
        epoch: node.epoch,
        silent_seconds: now_ms.saturating_sub(heard_at_ms) as f64 / 1000.0,
        lag_messages: worst.messages,
        lag_bytes: worst.bytes,
        lag_seconds: worst.seconds,
        shards: shards.collect(),
        stream_files: node.stream_files.as_ref().map(|files| ClusterFiles {
            lag_messages: files.behind,
            caught_up: files.is_ready,
            fault: Some(files.detail.clone()).filter(|fault| !fault.is_empty()),
        }),
    }
}

/// A standby has no shards, and what it knows of bans and namespaces may be old; a suspended node
/// may neither change nor promise anything.
pub(crate) fn check_serves(api: &Api, route: &Route) -> Result<(), Problem> {
    let Some(member) = api.facts.member.as_ref().filter(|_| !route.without_shards) else {
        return Ok(());
    };
    let refuse = |detail: String, fix: &str| {
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).fix(fix))
    };
    match api.facts.health.state() {
        State::Standby => {
            let fix = "send the request to the active node: GET /cluster names it";
            refuse(member.status().where_to_go(), fix)
        }
        State::Ready => match member.suspension() {
            Some(why) => refuse(why, "retry in a second; GET /cluster has the details"),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}
