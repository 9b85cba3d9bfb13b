//! This broker as a node of a cluster: one node is active, others follow the journals and take
//! over.
//!
//! What a node decides is in the crate `cluster`, without any input and output. Here it is carried
//! out: `member.rs` is the thread that does so, `engine.rs` speaks to NATS, `copy.rs` and
//! `files.rs` keep the data directory, `acting.rs` is what workers look at before anything leaves,
//! `talk.rs` is what nodes and operators say to each other.

mod acting;
mod cells_list;
mod changes;
mod checks;
mod claims;
mod connect;
mod copy;
mod engine;
mod export;
mod figures;
mod files;
mod import;
mod init;
mod lag;
mod login;
mod member;
mod members;
mod nodes;
mod operate;
mod placement;
mod plan;
mod secret;
mod source;
mod stream_files;
mod talk;
mod token;

use std::os::unix::process::CommandExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender};

use anyhow::{Context as _, ensure};

pub(crate) use acting::{Acting, boot_ms};
pub(crate) use claims::{ActiveCells, CellClaim};
use cluster::{ClusterId, Extent, Record};
pub(crate) use connect::WaitReason;
pub(crate) use copy::{PinnedCopy, TakenJournal};
use engine::Engine;
pub use figures::{ClusterFigures, ROLES, SYS_CLUSTER};
pub use lag::Lag;
pub use login::check_files;
pub(crate) use member::{JournalInput, Member, Order, Owner, RoleNews, Turn};
pub(crate) use members::{Following, MemberChange, follow};
pub(crate) use nodes::NodeMember;
pub use operate::{ClusterArgs, run};
pub(crate) use plan::ClusterPlan;
pub(crate) use stream_files::{ClusterStreamFiles, Reach};
use talk::Talk;
pub(crate) use talk::{NodeStatus, Status};

use crate::logging::Logging;
use config::{ClusterConfig, Config};
use data::DataDir;

/// This process as a node.
pub(crate) struct Clustered {
    pub(crate) member: Member,
    pub(crate) data: Arc<DataDir>,
    pub(crate) shards: u16,
    pub(crate) settings: storage::Settings,
    pub(crate) turns: Receiver<Turn>,
    /// For turns that do not come from the member.
    pub(crate) turn: Sender<Turn>,
}

/// The name of what a cell has in the engine.
pub(crate) fn name_of_cell(cluster: &str, cell: u16) -> String {
    engine::Names::of_cell(cluster, cell).cluster().to_owned()
}

/// What a node finds of its cluster.
pub(crate) enum Begun {
    /// A cluster with one cell, or one of the cells of another: it follows the logs.
    One(Box<Clustered>),
    /// A cluster with several cells.
    Several(Box<ClusterPlan>),
}

/// What the engine says of the cluster.
enum Found {
    One(Box<Reached>),
    Several(ClusterPlan),
}

/// What a node needs of the engine before it is one.
struct Reached {
    engine: Engine,
    facts: Record,
    talk: Talk,
    /// The cluster has a stream for the files of MQTT streams.
    has_blocks: bool,
}

/// Returns when the engine has answered all that a node has to know.
async fn reach(
    config: &Config,
    cluster: &ClusterConfig,
    data: &DataDir,
    waiting: &WaitReason,
    role_of: RoleOf,
) -> anyhow::Result<Found> {
    let engine = connect::connect(cluster, waiting).await?;
    let facts = connect::wait_for_cluster(&engine, waiting).await?;
    if role_of == RoleOf::Process && facts.cells() > 1 {
        import::refuse_begun(&waiting.answer_of(|| engine.get(import::IMPORT_KEY)).await)?;
        let plan = plan::read_plan(&engine, &facts, waiting).await?;
        plan::check_node(&plan, cluster)?;
        token::share(&engine, config, waiting).await?;
        return Ok(Found::Several(plan));
    }
    role_of.check(engine.names().cluster(), &facts)?;
    check_data(data, &facts)?;
    import::refuse_begun(&waiting.answer_of(|| engine.get(import::IMPORT_KEY)).await)?;
    token::share(&engine, config, waiting).await?;
    let talk = waiting.answer_of(|| Talk::begin(&engine)).await;
    let has_blocks = waiting.answer_of(|| engine.has_blocks()).await;
    ensure!(
        has_blocks || config.routing.is_none(),
        "routing.file: cluster '{}' was created before it could have streams: run `quelea cluster \
         init` again, it adds what is missing and changes nothing else",
        cluster.name
    );
    Ok(Found::One(Box::new(Reached { engine, facts, talk, has_blocks })))
}

/// A node that is refused leaves its whole data directory as it is: all shards are looked at before
/// anything is written.
fn check_data(data: &DataDir, facts: &Record) -> anyhow::Result<()> {
    let shards = data.shard_count(facts.shards, true)?;
    (0..shards).try_for_each(|shard| copy::LocalCopy::check(data, shard, &facts.id).map(drop))
}

impl Clustered {
    /// Connects to the engine, opens the local copies and begins to follow. An engine that cannot
    /// be reached is waited for until `stop`: then there is no node. `is_stopping`: the process is
    /// to end, and not to begin again when the role is lost. `claim`: of a cell of several.
    ///
    /// # Errors
    ///
    /// When the cluster does not exist, the data directory is of something else, or a file of the
    /// configuration cannot be used.
    pub(crate) fn begin(
        config: &Config,
        cluster: &ClusterConfig,
        waiting: &WaitReason,
        stop: impl Future,
        (is_stopping, role_of, claim): (Arc<AtomicBool>, RoleOf, Option<CellClaim>),
    ) -> anyhow::Result<Option<Begun>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime of the cluster")?;
        let data =
            DataDir::open(&config.server.data_dir).context("cannot use the data directory")?;
        let found = runtime.block_on(async {
            tokio::select! {
                biased;
                _ = stop => Ok(None),
                found = reach(config, cluster, &data, waiting, role_of) => found.map(Some),
            }
        });
        match found? {
            Some(Found::Several(plan)) => Ok(Some(Begun::Several(Box::new(plan)))),
            Some(Found::One(reached)) => {
                let node = (config, cluster, data);
                let started = Self::start(node, runtime, *reached, (is_stopping, role_of, claim))?;
                Ok(Some(Begun::One(Box::new(started))))
            }
            None => {
                // A host name that is being resolved is not waited for.
                runtime.shutdown_background();
                Ok(None)
            }
        }
    }

    fn start(
        (config, cluster, data): (&Config, &ClusterConfig, DataDir),
        runtime: tokio::runtime::Runtime,
        reached: Reached,
        (is_stopping, role_of, claim): (Arc<AtomicBool>, RoleOf, Option<CellClaim>),
    ) -> anyhow::Result<Self> {
        let Reached { engine, facts, talk, has_blocks } = reached;
        let shards = facts.shards;
        if config.shards_are_fixed && config.server.shards != shards {
            let configured = config.server.shards;
            tracing::warn!(
                configured,
                shards,
                "server.shards is ignored: the cluster was created with another number"
            );
        }
        let durability = config.durability.with_segment_bytes(facts.segment_bytes);
        let settings = durability.journal_settings(shards)?;
        let data = Arc::new(data);
        let instance = u64::from_ne_bytes(base::random());
        let address = cluster.advertise.clone().unwrap_or_default();
        let identity = cluster::Identity { node: cluster.node.clone(), instance, address };
        // Cells have no streams yet, and would need a thread each for their files.
        let stream_files = (has_blocks && !role_of.is_cell())
            .then(|| ClusterStreamFiles::start(engine.clone(), facts.id, data.path()))
            .transpose()?;
        let parts = member::MemberParts {
            stream_files,
            facts: NodeStatus {
                node: cluster.node.clone(),
                instance,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                address: identity.address.clone(),
                config: config_checksum(config),
                ..NodeStatus::default()
            },
            settings: cluster::Settings {
                cluster: facts.id,
                identity,
                seed: u64::from_ne_bytes(base::random()),
                timing: cluster::Timing::default(),
                message_bytes_max: cluster::MESSAGE_BYTES_MAX,
                span_bytes_min: cluster::span_bytes_min(shards, facts.segment_bytes),
                stream_bytes_max: cluster.stream_bytes_max.unwrap_or(u64::MAX),
                append_interval_ms: cluster.append_interval_ms.into(),
            },
            context: copy::CopyContext { cluster: facts.id, shards, settings: settings.clone() },
            data: data.clone(),
            engine,
            talk,
            is_stopping,
            role_of,
            claim,
        };
        let (member, turn, turns) = member::start(runtime, parts)?;
        tracing::info!(
            cluster = cluster.name,
            node = cluster.node,
            shards,
            "this node is a standby and follows the logs"
        );
        Ok(Self { member, data, shards, settings, turns, turn })
    }
}

/// Of what has to be the same on all nodes.
fn config_checksum(config: &Config) -> String {
    let text = format!("{:?} {:?}", config.durability.of_cluster(), config.namespaces);
    format!("{:08x}", storage::checksum(text.as_bytes()))
}

/// Of what a node has a role, and what ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoleOf {
    /// All that it is: it begins again as a new process.
    Process,
    /// A cell of this cluster. Others of the process go on.
    Cell { cluster: ClusterId, cell: u16 },
}

impl RoleOf {
    pub(crate) const fn is_cell(self) -> bool {
        matches!(self, Self::Cell { .. })
    }

    /// Whether the record is of what it is to be.
    fn check(self, name: &str, record: &Record) -> anyhow::Result<()> {
        match (self, record.extent) {
            (Self::Process, _) => connect::refuse_cells(name, record),
            (Self::Cell { cluster, cell }, found) => {
                let wanted = Extent::Cell { cluster, cell };
                ensure!(found == wanted, "the bucket of '{name}' belongs to another cluster");
                Ok(())
            }
        }
    }
}

/// Why a node starts again.
#[derive(Debug)]
pub(crate) enum End {
    /// An operator wanted it.
    SwitchedOver { to: String },
    /// It was active.
    Lost(String),
    /// It was not.
    Failed(String),
}

/// Of threads without which the broker would wait for ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Ends a process that stops; after a switchover it begins again.
pub(crate) fn end(member: &Member) -> ! {
    if let Some(to) = member.successor.get() {
        begin_again(&End::SwitchedOver { to });
    }
    Logging::flush_installed();
    std::process::exit(0)
}

/// Replaces the process by a new start of the same program: what it held is gone at once, sockets
/// are closed, and it is a standby again. So nothing that a former active node still had under way
/// can leave.
pub(crate) fn begin_again(end: &End) -> ! {
    match end {
        End::SwitchedOver { to } => {
            tracing::info!(to, "switched over: restarting as a standby");
        }
        End::Lost(why) => tracing::error!(
            detail = why,
            "this node lost the active role: closing all connections, restarting as a standby"
        ),
        End::Failed(why) => {
            tracing::error!(detail = why, "restarting as a standby");
        }
    }
    Logging::flush_installed();
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let error = std::process::Command::new("/proc/self/exe").arg0(name).args(arguments).exec();
    tracing::error!(%error, "restart failed; the process exits");
    Logging::flush_installed();
    std::process::exit(1)
}
