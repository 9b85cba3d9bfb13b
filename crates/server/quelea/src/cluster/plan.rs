//! What a node reads of a cluster with several cells before it takes part.

use anyhow::{Context as _, bail, ensure};
use cluster::{ClusterId, Extent, Record};

use super::connect::{self, WaitReason};
use super::engine::Engine;
use super::nodes::{self, MEMBERS_KEY, NodeMember};
use super::secret::{self, SECRET_KEY, Secret};
use config::{ClusterConfig, LinkConfig};

/// The facts of a cluster with several cells.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    /// Of the cluster. Each cell has another one: [`read_cell`].
    pub(crate) id: ClusterId,
    pub(crate) cells: u16,
    /// Of each cell.
    pub(crate) shards: u16,
    pub(crate) segment_bytes: u32,
    /// Of the hash that chooses the bits of interest.
    #[expect(dead_code, reason = "this version refuses to serve several cells")]
    pub(crate) seed: u64,
    #[expect(dead_code, reason = "this version refuses to serve several cells")]
    pub(crate) secret: Secret,
    pub(crate) members: Vec<NodeMember>,
}

/// Reads them, waiting for the engine as long as it takes. `record`: of the cluster.
///
/// # Errors
///
/// When the cluster has one cell, or is not whole.
pub(crate) async fn read_plan(
    engine: &Engine,
    record: &Record,
    waiting: &WaitReason,
) -> anyhow::Result<ClusterPlan> {
    let Record { id, shards, segment_bytes, extent } = *record;
    let Extent::Many { cells, seed } = extent else {
        bail!("cluster '{}' has one cell", engine.names().cluster());
    };
    let secret = secret::of(waiting.answer_of(|| engine.get(SECRET_KEY)).await)?;
    let (_, members) = nodes::of(waiting.answer_of(|| engine.get(MEMBERS_KEY)).await)?;
    Ok(ClusterPlan { id, cells, shards, segment_bytes, seed, secret, members })
}

/// What a node needs to take part.
///
/// # Errors
///
/// What it lacks.
pub(super) fn check_node<'a>(
    plan: &ClusterPlan,
    cluster: &'a ClusterConfig,
) -> anyhow::Result<&'a LinkConfig> {
    let ClusterConfig { name, node, links, .. } = cluster;
    let cells = plan.cells;
    let links = links.as_ref().with_context(|| {
        format!("cluster.listen: must be set, because cluster '{name}' has {cells} cells")
    })?;
    ensure!(
        plan.members.iter().any(|member| member.node == *node),
        "node '{node}' is no member of cluster '{name}': run `quelea cluster node add`"
    );
    Ok(links)
}

/// The connection for a cell, and its record. The id of that is the one of its stream and of local
/// copies. Waits for the engine as long as it takes.
///
/// # Errors
///
/// When it is missing, or belongs to another cluster.
pub(crate) async fn read_cell(
    engine: &Engine,
    plan: &ClusterPlan,
    cell: u16,
    waiting: &WaitReason,
) -> anyhow::Result<(Engine, Record)> {
    let engine = engine.of_cell(cell);
    let record = connect::wait_for_cluster(&engine, waiting).await?;
    let ClusterPlan { id, shards, segment_bytes, .. } = *plan;
    let wanted =
        Record { extent: Extent::Cell { cluster: id, cell }, shards, segment_bytes, ..record };
    ensure!(
        record == wanted,
        "the bucket '{}' belongs to another cluster",
        engine.names().bucket()
    );
    Ok((engine, record))
}
