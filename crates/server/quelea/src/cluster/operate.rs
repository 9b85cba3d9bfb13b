//! `quelea cluster`: what operators do with a cluster, from any machine that reaches NATS.

mod cells;
mod moves;
mod status;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use cluster::{Extent, Record};
use futures_util::StreamExt as _;

use super::checks::{self, Allowed};
use super::engine::Engine;
use super::init::{self, Plan};
use super::nodes::{NODE_EXAMPLES, NodeCommand};
use super::talk::{ASK_TOPIC, NodeStatus, Question};
use super::{connect, export, import};
use crate::commands::serve::ServeArgs;
use base::{EXIT_FAILURE, EXIT_OK, EXIT_USAGE, complain, print};
use config::{ClusterConfig, Config};

/// The flags of `quelea cluster`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum ClusterCommand {
    /// Create the streams and the buckets in NATS. Existing ones are checked and not changed.
    Init {
        #[command(flatten)]
        common: Common,
        /// Cells of the cluster, 1 to 56. It is the largest number of nodes that can be active, and
        /// never changes. Default: 1, or the number of a cluster that exists.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=CELLS))]
        cells: Option<u16>,
        #[command(flatten)]
        demands: Demands,
    },
    /// Show the role and lag of each node, and the active node of each cell.
    Status {
        #[command(flatten)]
        common: Common,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Move the active role, or that of a cell, to another node. Its clients are disconnected once.
    #[command(after_help = SWITCHOVER_EXAMPLES)]
    Switchover {
        #[command(flatten)]
        common: Common,
        /// The cell to move. A cluster with several cells needs it.
        #[arg(long, value_name = "N")]
        cell: Option<u16>,
        /// New active node. Default: any standby that has caught up.
        node: Option<String>,
    },
    /// Move all cells for which a node is active to other nodes, one after the other. Clients of
    /// these cells are disconnected once. The node stays a standby.
    #[command(after_help = DRAIN_EXAMPLES)]
    Drain {
        #[command(flatten)]
        common: Common,
        /// The `cluster.node` of the node.
        node: String,
    },
    /// Move single cells from nodes with many to nodes with few, until nodes differ by one cell at
    /// most. Clients of these cells are disconnected once. Run it after a node was added.
    #[command(after_help = REBALANCE_EXAMPLES)]
    Rebalance {
        #[command(flatten)]
        common: Common,
        /// Seconds between two moves.
        #[arg(long, value_name = "SECS", default_value_t = 10)]
        interval: u32,
    },
    /// Manage the nodes of a cluster with several cells.
    #[command(after_help = NODE_EXAMPLES)]
    Node {
        #[command(subcommand)]
        command: NodeCommand,
    },
    /// Import the data directory of a broker without a cluster into a cluster that no node has
    /// served yet. A cluster with several cells imports the export of such a cluster. Broker and
    /// nodes must be stopped. The directory is not changed.
    Import {
        #[command(flatten)]
        common: Common,
        /// The data directory.
        data_dir: PathBuf,
    },
    /// Write the stored data into a data directory for a broker without a cluster. Of a cluster
    /// with several cells, one for each cell, and a list for `import`. The cluster may keep
    /// running.
    Export {
        #[command(flatten)]
        common: Common,
        /// The directory to write. It must be empty, or not exist.
        data_dir: PathBuf,
    },
}

impl ClusterCommand {
    const fn common(&self) -> &Common {
        match self {
            Self::Init { common, .. }
            | Self::Status { common, .. }
            | Self::Switchover { common, .. }
            | Self::Drain { common, .. }
            | Self::Rebalance { common, .. }
            | Self::Import { common, .. }
            | Self::Export { common, .. } => common,
            Self::Node { command } => command.common(),
        }
    }
}

/// Requirements for the NATS servers.
#[derive(Clone, Debug, Args)]
struct Demands {
    /// Create the stream with one copy instead of three. The loss of a NATS server then loses
    /// messages.
    #[arg(long)]
    allow_unreplicated: bool,
    /// Accept servers that acknowledge before they sync (`sync_interval` is not `always`).
    #[arg(long)]
    allow_unsynced: bool,
    /// Monitoring port of a NATS server, http://HOST:8222, to check that it syncs. May be repeated.
    #[arg(long, value_name = "URL")]
    monitoring: Vec<String>,
}

/// Flags of all commands.
#[derive(Clone, Debug, Args)]
pub(super) struct Common {
    /// Configuration file of a node, for its section [cluster].
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command, and returns the exit code.
pub fn run(args: &ClusterArgs) -> u8 {
    let (config, cluster) = match configured(args.command.common()) {
        Ok(configured) => configured,
        Err(error) => {
            complain(&format!("{error:#}"));
            return EXIT_USAGE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.context("cannot start a runtime").and_then(|runtime| {
        runtime.block_on(async {
            let engine = connect::connect_once(&cluster).await?;
            match &args.command {
                ClusterCommand::Init { cells, demands, .. } => {
                    init(&engine, (&config, &cluster), *cells, demands).await
                }
                ClusterCommand::Node { command } => command.run(&engine).await,
                ClusterCommand::Status { json, .. } => status::run(&engine, *json).await,
                ClusterCommand::Switchover { cell, node, .. } => {
                    moves::switch_over(&engine, *cell, node.as_deref()).await
                }
                ClusterCommand::Drain { node, .. } => moves::drain(&engine, node).await,
                ClusterCommand::Rebalance { interval, .. } => {
                    moves::rebalance(&engine, Duration::from_secs((*interval).into())).await
                }
                ClusterCommand::Import { data_dir, .. } => import::run(&engine, data_dir).await,
                ClusterCommand::Export { data_dir, .. } => {
                    export::run(&engine, &config, data_dir).await
                }
            }
        })
    });
    match done {
        Ok(()) => EXIT_OK,
        Err(error) => {
            complain(&format!("{error:#}"));
            EXIT_FAILURE
        }
    }
}

fn configured(common: &Common) -> anyhow::Result<(Config, ClusterConfig)> {
    let serve = ServeArgs { config: Some(common.config.clone()), ..ServeArgs::default() };
    let loaded = serve.reread()?;
    let cluster = loaded.config.cluster.clone();
    let missing = || format!("{} has no section [cluster]", common.config.display());
    Ok((loaded.config, cluster.with_context(missing)?))
}

async fn init(
    engine: &Engine,
    (config, cluster): (&Config, &ClusterConfig),
    cells: Option<u16>,
    demands: &Demands,
) -> anyhow::Result<()> {
    let allowed =
        Allowed { unreplicated: demands.allow_unreplicated, unsynced: demands.allow_unsynced };
    let notes = checks::check(cluster, &demands.monitoring, allowed).await?;
    let replicas = if allowed.unreplicated { 1 } else { REPLICAS };
    let plan = Plan {
        cells,
        shards: config.server.shards,
        shards_are_fixed: config.shards_are_fixed,
        segment_bytes: config.durability.segment_bytes,
        replicas,
        stream_bytes_max: cluster.stream_bytes_max,
    };
    let made = init::make(engine, &plan).await?;
    let word = if made.is_new { "created" } else { "exists" };
    let of_cells = if made.cells > 1 { format!("{} cells of ", made.cells) } else { String::new() };
    let text = format!(
        "cluster '{}' {word}: id {}, {of_cells}{} shards, {replicas} replicas; {} streams created, \
         {} found\n",
        cluster.name, made.id, made.shards, made.streams_made, made.streams_found
    );
    print(text.as_bytes());
    notes.iter().for_each(|note| complain(&format!("note: {note}")));
    Ok(())
}

/// The engine by the names of each cell. A cluster with one cell has its own names only.
fn engines_of_cells(engine: &Engine, cluster: &Record) -> Vec<Engine> {
    match cluster.extent {
        Extent::Many { cells, .. } => (0..cells).map(|cell| engine.of_cell(cell)).collect(),
        Extent::One | Extent::Cell { .. } => vec![engine.clone()],
    }
}

/// The nodes that run.
pub(super) async fn nodes(engine: &Engine) -> anyhow::Result<Vec<NodeStatus>> {
    ask_all(engine, &Question::Status).await
}

async fn ask_all(engine: &Engine, question: &Question) -> anyhow::Result<Vec<NodeStatus>> {
    let mut answers = ask(engine, question).await?;
    let mut nodes: Vec<NodeStatus> = Vec::new();
    let ends_at = tokio::time::Instant::now() + ANSWERS_TIMEOUT;
    while let Ok(Some(message)) = tokio::time::timeout_at(ends_at, answers.next()).await {
        nodes.extend(serde_json::from_slice::<NodeStatus>(&message.payload).ok());
        if nodes.len() == NODES_MAX {
            break;
        }
    }
    nodes.sort_by(|one, other| one.node.cmp(&other.node));
    Ok(nodes)
}

async fn ask(engine: &Engine, question: &Question) -> anyhow::Result<async_nats::Subscriber> {
    let client = engine.client();
    let inbox = client.new_inbox();
    let answers = client.subscribe(inbox.clone()).await?;
    let subject = engine.names().talk_subject(ASK_TOPIC);
    client.publish_with_reply(subject, inbox, serde_json::to_vec(question)?.into()).await?;
    client.flush().await?;
    Ok(answers)
}

/// The most cells.
const CELLS: i64 = cluster::CELLS_MAX as i64;
/// Copies that the engine keeps of a stream.
const REPLICAS: u8 = 3;
/// Nodes whose answers are shown.
const NODES_MAX: usize = 64;
const ANSWERS_TIMEOUT: Duration = Duration::from_millis(700);

const EXAMPLES: &str = "\
Examples:
  quelea cluster init --config /etc/quelea/quelea.toml          once, before the first node starts
  quelea cluster init --config /etc/quelea/quelea.toml --monitoring http://127.0.0.1:8222
  quelea cluster init --config /etc/quelea/quelea.toml --cells 12
  quelea cluster node add --config /etc/quelea/quelea.toml node-1 --link broker1.example:7883
  quelea cluster status --config /etc/quelea/quelea.toml
  quelea cluster switchover --config /etc/quelea/quelea.toml node-2
  quelea cluster switchover --config /etc/quelea/quelea.toml --cell 3 node-2
  quelea cluster drain --config /etc/quelea/quelea.toml node-1  before the node is stopped
  quelea cluster import --config /etc/quelea/quelea.toml /var/lib/quelea-single
  quelea cluster export --config /etc/quelea/quelea.toml /var/lib/quelea-export";

const SWITCHOVER_EXAMPLES: &str = "\
Examples:
  quelea cluster switchover --config /etc/quelea/quelea.toml node-2           one cell
  quelea cluster switchover --config /etc/quelea/quelea.toml --cell 3         several cells
  quelea cluster switchover --config /etc/quelea/quelea.toml --cell 3 node-2";

const REBALANCE_EXAMPLES: &str = "\
Examples:
  quelea cluster rebalance --config /etc/quelea/quelea.toml
  quelea cluster rebalance --config /etc/quelea/quelea.toml --interval 60";

const DRAIN_EXAMPLES: &str = "\
Examples:
  quelea cluster drain --config /etc/quelea/quelea.toml node-1 && ssh node-1 systemctl stop quelea";
