//! `quelea cluster status`: of a cluster with one cell, and what it shows of each cell.

use serde::Serialize;
use serde_json::Value;

use super::super::connect;
use super::super::engine::Engine;
use super::super::lag::{Lag, writer_among};
use super::super::stream_files::StreamFilesStatus;
use super::super::talk::{NodeStatus, Question};
use super::{ask_all, cells};
use base::print;

/// What the engine and the nodes answer, of a cell or of a cluster with one cell.
pub(super) struct Found {
    pub(super) lease: Option<cluster::LeaseValue>,
    pub(super) nodes: Vec<ShownNode>,
    pub(super) streams: Vec<ShownStream>,
}

/// What is shown of a cluster with one cell.
#[derive(Serialize)]
struct Shown {
    /// The node with the lease.
    active: Option<String>,
    epoch: u64,
    is_released: bool,
    nodes: Vec<ShownNode>,
    streams: Vec<ShownStream>,
}

#[derive(Serialize)]
pub(super) struct ShownNode {
    #[serde(flatten)]
    pub(super) status: NodeStatus,
    /// Of the shard that is furthest behind.
    #[serde(flatten)]
    pub(super) lag: Lag,
    /// By shard; empty for the node that writes.
    lags: Vec<Lag>,
}

#[derive(Serialize)]
pub(super) struct ShownStream {
    name: String,
    pub(super) leader: String,
    first: u64,
    last: u64,
    bytes: u64,
    /// Servers that keep it and have all of it, the leader included.
    pub(super) replicas_current: usize,
    pub(super) replicas: usize,
}

/// Shows the cluster.
///
/// # Errors
///
/// When there is none, or the engine does not answer.
pub(super) async fn run(engine: &Engine, as_json: bool) -> anyhow::Result<()> {
    let record = connect::read_whole(engine).await?;
    if record.cells() > 1 {
        return cells::status(engine, &record, as_json).await;
    }
    let Found { lease, nodes, streams } = look(engine).await?;
    let shown = Shown {
        active: lease.as_ref().map(|lease| lease.holder.node.clone()),
        epoch: lease.as_ref().map_or(0, |lease| lease.epoch),
        is_released: lease.as_ref().is_some_and(|lease| lease.is_released),
        nodes,
        streams,
    };
    let text = match as_json {
        true => format!("{}\n", serde_json::to_string_pretty(&shown)?),
        false => table(&shown),
    };
    print(text.as_bytes());
    Ok(())
}

/// Asks the nodes and the engine, by the names of this one.
///
/// # Errors
///
/// When the engine does not answer.
pub(super) async fn look(engine: &Engine) -> anyhow::Result<Found> {
    let nodes = ask_all(engine, &Question::Status).await?;
    let lease = connect::read_lease(engine).await?;
    let name = engine.names().stream();
    let info = engine.api(&format!("STREAM.INFO.{name}"), Value::Null).await?;
    let stream = stream_of(name, &info);
    let name = engine.names().blocks();
    // A cluster of an earlier version has none.
    let blocks = engine.api(&format!("STREAM.INFO.{name}"), Value::Null).await.ok();
    let blocks = blocks.map(|info| stream_of(name, &info));
    let nodes = with_lags(nodes, stream.last);
    Ok(Found { lease, nodes, streams: [stream].into_iter().chain(blocks).collect() })
}

pub(super) fn stream_of(name: String, info: &Value) -> ShownStream {
    let replicas = info["cluster"]["replicas"].as_array().cloned().unwrap_or_default();
    let is_current = |replica: &&Value| {
        replica["current"].as_bool() == Some(true) && replica["offline"].as_bool() != Some(true)
    };
    ShownStream {
        name,
        leader: info["cluster"]["leader"].as_str().unwrap_or("none").to_owned(),
        first: info["state"]["first_seq"].as_u64().unwrap_or_default(),
        last: info["state"]["last_seq"].as_u64().unwrap_or_default(),
        bytes: info["state"]["bytes"].as_u64().unwrap_or_default(),
        replicas_current: 1 + replicas.iter().filter(is_current).count(),
        replicas: 1 + replicas.len(),
    }
}

/// How far each node is behind the active one, or behind the stream where there is none.
pub(super) fn with_lags(nodes: Vec<NodeStatus>, end: u64) -> Vec<ShownNode> {
    let active = writer_among(&nodes).cloned();
    let lagging = |status: NodeStatus| {
        let writes = active.as_ref().is_some_and(|active| active.node == status.node);
        let lags = match writes {
            true => Vec::new(),
            false => Lag::of_shards(&status, active.as_ref(), end),
        };
        ShownNode { status, lag: Lag::worst(&lags), lags }
    };
    nodes.into_iter().map(lagging).collect()
}

pub(super) fn are_settings_mixed(nodes: &[ShownNode]) -> bool {
    nodes.windows(2).any(|pair| pair[0].status.config != pair[1].status.config)
}

pub(super) const MIXED_SETTINGS: &str =
    "settings of durability or namespaces differ: make them the same\n";

fn table(shown: &Shown) -> String {
    let mut text = format!(
        "lease: {} with epoch {}{}\n\n",
        shown.active.as_deref().unwrap_or("nobody"),
        shown.epoch,
        if shown.is_released { ", released" } else { "" }
    );
    text.push_str("node              role       version  config    detail\n");
    for node in &shown.nodes {
        let NodeStatus { node: name, role, version, config, detail, .. } = &node.status;
        text.push_str(&format!("{name:17} {role:10} {version:8} {config:9} {detail}\n"));
        // The stream of all shards is one.
        if let Some(shard) = node.status.shards.iter().find(|shard| !shard.fault.is_empty()) {
            text.push_str(&format!("  {}\n", shard.fault));
        }
    }
    if are_settings_mixed(&shown.nodes) {
        text.push_str(MIXED_SETTINGS);
    }
    text.push_str(
        "\nstream                      leader        last message        bytes  replicas\n",
    );
    for (place, stream) in shown.streams.iter().enumerate() {
        text.push_str(&format!(
            "{:27} {:12} {:13} {:12}  {} of {} current\n",
            stream.name,
            stream.leader,
            stream.last,
            stream.bytes,
            stream.replicas_current,
            stream.replicas
        ));
        if place > 0 {
            shown.nodes.iter().for_each(|node| text.push_str(&files_line(&node.status)));
            continue;
        }
        for node in shown.nodes.iter().filter(|node| !node.lags.is_empty()) {
            let Lag { messages, bytes, seconds } = node.lag;
            text.push_str(&format!(
                "  {:25} lag {messages} messages, {bytes} bytes, {seconds:.1} s\n",
                node.status.node
            ));
        }
    }
    text
}

/// How a node's copies of the files of streams are.
fn files_line(status: &NodeStatus) -> String {
    let Some(StreamFilesStatus { behind, detail, .. }) = &status.stream_files else {
        return format!("  {:25} does not copy them: restart the node\n", status.node);
    };
    if status.role == "active" && detail.is_empty() {
        return String::new();
    }
    let separator = if detail.is_empty() { "" } else { ": " };
    format!("  {:25} lag {behind} messages{separator}{detail}\n", status.node)
}
