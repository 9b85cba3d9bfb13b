//! What a node reads of a cluster with several cells before it takes part.

use anyhow::{Context as _, bail, ensure};
use cluster::{ClusterId, Extent, Record};
use sha2::{Digest as _, Sha256};

use super::connect::WaitReason;
use super::engine::Engine;
use super::nodes::{self, MEMBERS_KEY, NodeMember};
use super::secret::{self, SECRET_KEY, Secret};
use config::{ClusterConfig, LinkConfig};

/// The facts of a cluster with several cells.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    /// Of the cluster. Each cell has another one.
    pub(crate) id: ClusterId,
    pub(crate) cells: u16,
    /// Of each cell.
    pub(crate) shards: u16,
    /// Of the hash that chooses the bits of interest.
    pub(crate) seed: u64,
    pub(crate) secret: Secret,
    pub(crate) members: Vec<NodeMember>,
}

impl ClusterPlan {
    /// A secret of its own for each purpose.
    pub(crate) fn secret_for(&self, purpose: &str) -> [u8; 32] {
        let secret = Sha256::new().chain_update(self.secret.bytes());
        secret.chain_update(purpose).finalize().into()
    }
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
    let Record { id, shards, extent, .. } = *record;
    let Extent::Many { cells, seed } = extent else {
        bail!("cluster '{}' has one cell", engine.names().cluster());
    };
    let secret = secret::of(waiting.answer_of(|| engine.get(SECRET_KEY)).await)?;
    let (_, members) = nodes::of(waiting.answer_of(|| engine.get(MEMBERS_KEY)).await)?;
    Ok(ClusterPlan { id, cells, shards, seed, secret, members })
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
        "node '{node}' is missing in the list of nodes of cluster '{name}': run `quelea cluster \
         node add`"
    );
    Ok(links)
}
