//! `quelea plan`: how many nodes, cells and machines a load needs, with the measured constant
//! behind each figure.

use clap::{Args, ValueEnum};

use base::{EXIT_OK, print};

/// The flags of `quelea plan`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Clients that are connected at the same time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=COUNT_MAX))]
    clients: u64,
    /// Messages that all clients publish, per second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=COUNT_MAX))]
    rate: u64,
    /// Subscribers that get each message.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(0..=COUNT_MAX))]
    fan_out: u64,
    /// Payload of a message, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100,
        value_parser = clap::value_parser!(u64).range(0..=1 << 28))]
    payload: u64,
    /// Subscriptions of a client.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(0..=100_000))]
    subscriptions: u64,
    /// Durability of messages. `memory`: clean sessions. `quorum`: persistent sessions, whose
    /// messages are on two of three disks.
    #[arg(long, value_enum, default_value_t = Level::Memory)]
    level: Level,
    /// CPU cores of a machine.
    #[arg(long, value_name = "N", default_value_t = 16,
        value_parser = clap::value_parser!(u64).range(1..=4096))]
    cores: u64,
    /// Memory of a machine, in GiB.
    #[arg(long, value_name = "GIB", default_value_t = 64,
        value_parser = clap::value_parser!(u64).range(1..=65_536))]
    memory: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Level {
    Memory,
    Quorum,
}

/// What a load takes, all machines together.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Load {
    /// Cores of brokers that are busy all the time.
    broker_cores: f64,
    /// The same of NATS servers.
    engine_cores: f64,
    /// Of active cells, with sockets.
    memory_bytes: f64,
    /// Of persistent sessions, on each node: a node follows all cells.
    copy_bytes: f64,
    /// What is written to logs, per second, once.
    log_bytes: f64,
}

/// What it needs: in each cluster, except for their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Needs {
    clusters: u64,
    /// Nodes by the cores, and by the memory, of a machine.
    by_cores: u64,
    by_memory: u64,
    /// Cells by the most that one stream takes.
    cells_by_log: u64,
    /// With one that may be lost.
    nodes: u64,
    cells: u64,
}

/// Prints the plan.
pub fn run(args: &PlanArgs) -> u8 {
    print(text(args).as_bytes());
    EXIT_OK
}

fn load(args: &PlanArgs) -> Load {
    let (clients, rate) = (args.clients as f64, args.rate as f64);
    let deliveries = rate * args.fan_out as f64;
    let kib = args.payload as f64 / 1024.0;
    let is_kept = args.level == Level::Quorum;
    let per_message = if is_kept { KEPT_US + KEPT_US_PER_KIB * kib } else { CLEAN_US };
    // A message that has many recipients is read once and written often.
    let busy_us = per_message * rate.max(deliveries);
    let session = CONNECTION_BYTES + SOCKET_BYTES + RELAY_BYTES * RELAYED_PART;
    let subscriptions = SUBSCRIPTION_BYTES * args.subscriptions as f64;
    let kept = if is_kept { SESSION_BYTES } else { 0.0 };
    let log_bytes = if is_kept { rate * (args.payload as f64 + RECORD_BYTES) } else { 0.0 };
    let engine_us = if is_kept { ENGINE_US + ENGINE_US_PER_KIB * kib } else { 0.0 };
    Load {
        broker_cores: busy_us / 1e6,
        engine_cores: engine_us * rate / 1e6,
        memory_bytes: clients * (session + subscriptions),
        copy_bytes: clients * kept,
        log_bytes,
    }
}

/// With the fewest clusters.
fn needs(args: &PlanArgs, load: &Load) -> Option<Needs> {
    (1..=CLUSTERS_MAX).find_map(|clusters| needs_of_each(args, load, clusters))
}

/// None: a cluster cannot have so much.
fn needs_of_each(args: &PlanArgs, load: &Load, clusters: u64) -> Option<Needs> {
    let part = 1.0 / clusters as f64;
    let up = |value: f64| value.ceil().max(1.0) as u64;
    let fixed = if args.level == Level::Quorum { NODE_CORES_KEPT } else { NODE_CORES_CLEAN };
    let cores = args.cores as f64 * BUSY_PART - fixed;
    let memory = args.memory as f64 * GIB * BUSY_PART - load.copy_bytes * part;
    if cores <= 0.0 || memory <= 0.0 {
        return None;
    }
    let by_cores = up((load.broker_cores + load.engine_cores) * part / cores);
    let by_memory = up(load.memory_bytes * part / memory);
    let cells_by_log = up(load.log_bytes * part / STREAM_BYTES);
    let nodes = (by_cores.max(by_memory) + 1).max(NODES_MIN);
    let cells = CELLS_DEFAULT.max(cells_by_log).max(nodes);
    let needs = Needs { clusters, by_cores, by_memory, cells_by_log, nodes, cells };
    (cells <= CELLS_MAX).then_some(needs)
}

/// What is used up first if there is more of everything.
fn first_limit(needs: &Needs) -> &'static str {
    let Needs { clusters, by_cores, by_memory, cells_by_log, .. } = *needs;
    if clusters > 1 {
        "one cluster: divide the clients between clusters, and join them by bridges"
    } else if cells_by_log > CELLS_DEFAULT.max(by_cores).max(by_memory) {
        "the streams: each cell has one, and the number of cells never changes"
    } else if by_memory > by_cores {
        "memory"
    } else {
        "CPU"
    }
}

fn text(args: &PlanArgs) -> String {
    let load = load(args);
    let mut text = format!("{:34} {:>16}  from\n", "needed", "value");
    let mut line = |what: &str, value: String, from: &str| {
        text.push_str(&format!("{what:34} {value:>16}  {from}\n"));
    };
    let gib = |bytes: f64| format!("{:.1} GiB", bytes / GIB);
    line("CPU of messages, brokers", format!("{:.1} cores", load.broker_cores), cpu_of(args));
    if args.level == Level::Quorum {
        line("CPU of messages, NATS", format!("{:.1} cores", load.engine_cores), ENGINE_SOURCE);
        line("written to logs", format!("{:.1} MB/s", load.log_bytes / 1e6), RECORD_SOURCE);
        line("memory of sessions, each node", gib(load.copy_bytes), SESSION_SOURCE);
    }
    line("memory of connections", gib(load.memory_bytes), MEMORY_SOURCE);
    let Some(needs) = needs(args, &load) else {
        return text + "\nno plan: the machines are too small; see --cores and --memory\n";
    };
    line("clusters", needs.clusters.to_string(), "56 cells, all sessions fit on each node");
    line("nodes by CPU, each cluster", needs.by_cores.to_string(), NODE_SOURCE);
    line("nodes by memory", needs.by_memory.to_string(), "half of the memory is used");
    line("nodes, with one that may be lost", needs.nodes.to_string(), "at least 3");
    line("cells", needs.cells.to_string(), CELLS_SOURCE);
    line("open files per node", files(args, &needs).to_string(), "two for a relayed client");
    text.push_str(&format!("\nfirst limit: {}\n{NOTES}", first_limit(&needs)));
    text
}

fn files(args: &PlanArgs, needs: &Needs) -> u64 {
    let serving = (needs.nodes - 1).max(1) * needs.clusters;
    args.clients.div_ceil(serving) * 2
}

const fn cpu_of(args: &PlanArgs) -> &'static str {
    match args.level {
        Level::Memory => CLEAN_SOURCE,
        Level::Quorum => KEPT_SOURCE,
    }
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;
const COUNT_MAX: u64 = 1_000_000_000_000;

// Measured. The larger value is taken where there are two.

/// us of CPU of all brokers for a message at full speed, from publisher to subscriber, QoS 1, on
/// three nodes, with relays and links.
const CLEAN_US: f64 = 1.9;
const CLEAN_SOURCE: &str = "1.9 us per message (cells-cost, 3 nodes)";
/// The same of a message for a persistent session, by its size: active broker and standbys.
const KEPT_US: f64 = 3.4;
const KEPT_US_PER_KIB: f64 = 5.8;
const KEPT_SOURCE: &str = "3.4 us and 5.8 us per KiB (cluster-cost, cells-cost)";
const ENGINE_US: f64 = 2.1;
const ENGINE_US_PER_KIB: f64 = 24.6;
const ENGINE_SOURCE: &str = "2.1 us and 24.6 us per KiB (cluster-cost)";
const CONNECTION_BYTES: f64 = 764.0;
const SESSION_BYTES: f64 = 591.0;
const SESSION_SOURCE: &str = "591 B per session: each node follows all (start)";
const SUBSCRIPTION_BYTES: f64 = 164.0;
const MEMORY_SOURCE: &str = "764 B per connection, 164 B per subscription (memory), sockets";

// Assumed.

/// Of the kernel, for an idle TCP connection.
const SOCKET_BYTES: f64 = 4096.0;
/// At the front of a relayed connection, with its socket.
const RELAY_BYTES: f64 = 1024.0 + SOCKET_BYTES;
/// Without a load balancer that knows cells.
const RELAYED_PART: f64 = 1.0;
/// Of a record in a log, without the payload.
const RECORD_BYTES: f64 = 100.0;
const RECORD_SOURCE: &str = "payload and 100 B per message";
/// Machines are no busier than this, so that others can take the load of one that is lost.
const BUSY_PART: f64 = 0.5;
/// Cores that a node uses to wake its threads at some thousand messages per second, with its NATS
/// server: a third of what three nodes used.
const NODE_CORES_CLEAN: f64 = 0.5;
const NODE_CORES_KEPT: f64 = 0.7;
const NODE_SOURCE: &str = "half busy; 0.5 to 0.7 cores to wake threads (cells-cost)";
const NODES_MIN: u64 = 3;
const CLUSTERS_MAX: u64 = 10_000;
const CELLS_DEFAULT: u64 = 12;
const CELLS_MAX: u64 = cluster_cells_max();
const CELLS_SOURCE: &str = "12, one for each node, 26 MB/s each";
/// Bytes per second that the stream of one cell takes, at 5 ms for an append.
const STREAM_BYTES: f64 = 26e6;

const fn cluster_cells_max() -> u64 {
    cluster::CELLS_MAX as u64
}

const NOTES: &str = "\
CPU and memory of messages and connections are sums over all clusters. Constants were measured
with 2 cores for load, brokers and NATS (docs/use/scale.md). Assumed: 4 KiB of the kernel for a
socket; each client is relayed. Not counted: TLS, messages that wait, backups.
";

const EXAMPLES: &str = "\
Examples:
  quelea plan --clients 1000000 --rate 50000
  quelea plan --clients 10000000 --rate 1000000 --level quorum --payload 200
  quelea plan --clients 200000000 --rate 1000000 --cores 64 --memory 256";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(clients: u64, rate: u64, level: Level) -> (Load, Needs) {
        let args = PlanArgs {
            clients,
            rate,
            fan_out: 1,
            payload: 100,
            subscriptions: 1,
            level,
            cores: 16,
            memory: 64,
        };
        let load = load(&args);
        (load, needs(&args, &load).unwrap())
    }

    #[test]
    fn a_small_load_needs_three_nodes() {
        let (_, needs) = plan(1000, 100, Level::Memory);
        assert_eq!((needs.nodes, needs.cells, needs.clusters), (3, 12, 1));
        assert_eq!(first_limit(&needs), "CPU");
    }

    #[test]
    fn more_of_the_same_needs_no_less() {
        let mut before = 0;
        for clients in [1_000_000, 10_000_000, 200_000_000] {
            let (load, needs) = plan(clients, clients / 100, Level::Quorum);
            let machines = needs.nodes * needs.clusters;
            assert!(machines >= before, "{clients}: {needs:?}");
            assert!(load.engine_cores > 0.0 && load.copy_bytes > 0.0);
            before = machines;
        }
    }

    #[test]
    fn what_one_cluster_cannot_do_is_divided() {
        let (load, needs) = plan(200_000_000, 1_000_000, Level::Quorum);
        assert!(needs.clusters > 1, "{needs:?}");
        assert!(load.copy_bytes / needs.clusters as f64 <= 32.0 * GIB, "{needs:?}");
        assert!(first_limit(&needs).contains("bridges"));
    }

    #[test]
    fn messages_of_a_rate_need_cells() {
        let (load, needs) = plan(1000, 2_000_000, Level::Quorum);
        assert_eq!(needs.cells_by_log, (load.log_bytes / STREAM_BYTES).ceil() as u64);
        assert!(needs.cells >= needs.cells_by_log && needs.cells_by_log > 12);
    }

    #[test]
    fn machines_that_are_too_small_have_no_plan() {
        let args = PlanArgs {
            clients: 10,
            rate: 10,
            fan_out: 1,
            payload: 100,
            subscriptions: 1,
            level: Level::Quorum,
            cores: 1,
            memory: 1,
        };
        assert!(text(&args).contains("too small"));
    }

    #[test]
    fn each_line_says_where_its_constant_is_from() {
        let args = PlanArgs {
            clients: 10,
            rate: 10,
            fan_out: 1,
            payload: 100,
            subscriptions: 1,
            level: Level::Quorum,
            cores: 2,
            memory: 4,
        };
        let text = text(&args);
        let rows = text.lines().skip(1).take_while(|line| !line.is_empty());
        assert!(rows.clone().count() >= 9);
        rows.for_each(|row| assert!(row.len() > 54, "{row}"));
    }
}
