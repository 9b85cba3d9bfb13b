//! What can be asked for on the command line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::export::Sink;
use crate::faults::{LinkSpec, MemberSpec};
use flock_measure::threshold::Threshold;
use flock_model::matrix::Axis;
use flock_model::scenario::units;
use flock_model::{Failover, Target, Tls, TlsVersion, Transport};

#[derive(Debug, Parser)]
#[command(
    name = "flock",
    version = env!("BUILD_VERSION"),
    about = "A load lab for MQTT brokers: runs any published benchmark against any broker, and checks that nothing was lost",
    after_help = "Examples:\n  $ flock list\n  $ flock show MB-E1\n  $ flock run MB-B1 --broker 127.0.0.1:1883 --duration 60s\n  $ flock compare results/a.json results/b.json"
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the built-in scenarios.
    #[command(after_help = "Examples:\n  $ flock list\n  $ flock list --family solace")]
    List(List),
    /// Explain a scenario: what it is, its numbers, its source, what was published.
    #[command(after_help = "Examples:\n  $ flock show MB-E1\n  $ flock show MB-E1 --source")]
    Show(Show),
    /// Run a scenario: a built-in id, a .toml file, or a HiveMQ Swarm .xml file.
    #[command(
        after_help = "Examples:\n  $ flock run MB-B1 --broker 127.0.0.1:1883 --duration 60s\n  $ flock run MB-E1 --scale 0.02 --pid 1234\n  $ flock run HM-R2000 --speed 60\n  $ flock run scenario.xml --scale 0.0001\n  $ flock run XR-1-Q1 --find-rate p99=10ms --rate-max 50000\n  $ flock run X-1 --broker-command 'mosquitto'\n  $ flock run AIO-FO-16B --agents host1:3881,host2:3881\n  $ flock run MB-B1 --duration 20s --runs 5\n  $ flock run MB-B1 --expect 'p99<=10ms' --expect 'received_per_sec>=990'\n\nExit code: 0 completed as expected, 1 not, 2 not begun (bad input, no broker), 3 not valid as a measurement (stopped early, say)."
    )]
    Run(Box<Run>),
    /// Run scenarios against several brokers in turn, each on the same cores, and compare.
    #[command(
        after_help = "Examples:\n  $ flock versus MB-B1 MB-B3 --brokers quelea,mosquitto --duration 20s\n  $ flock versus XR-1-Q1 --brokers mosquitto,mine.toml --broker-cpus 0-1 --rounds 3"
    )]
    Versus(Box<Versus>),
    /// Run a scenario over the values of parameters, every combination, and draw the curves.
    #[command(
        after_help = "Examples:\n  $ flock matrix\n  $ flock matrix AIO-PAYLOADS --broker 10.0.0.5:1883 --scale 0.1 --duration 20s\n  $ flock matrix XR-1-Q1 --axis total_rate=2000/s,5000/s,10000/s --axis qos=0,1,2 --rounds 3\n  $ flock matrix MB-B1 --axis payload=16,1K,8K --axis version=3.1.1,5 --broker-command 'mosquitto'\n\nExit code: 0 every combination has a valid run, 1 one was not carried out, 2 bad input, 3 one has no valid run."
    )]
    Matrix(Box<Matrix>),
    /// Connect clients and keep them (emqtt-bench's flags).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock conn -c 10000 -R 1000\n  $ flock conn -h 10.0.0.5 -p 1883 -c 50000 -i 1 --ifaddr 10.0.0.1,10.0.0.2"
    )]
    Conn(Box<Conn>),
    /// Publish (emqtt-bench's flags).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock pub -c 100 -I 10 -t bench/%i -s 256 -q 1\n  $ flock pub -c 10 -I 0 -F 100 -t t -q 1 --duration 30s"
    )]
    Pub(Box<Pub>),
    /// Subscribe (emqtt-bench's flags).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock sub -c 100 -t bench/%i -q 1\n  $ flock sub -c 5 -t '$share/g/bench/#' -q 1"
    )]
    Sub(Box<Sub>),
    /// Wait for a commander and carry out its work packages.
    #[command(after_help = "Examples:\n  $ flock agent --listen 0.0.0.0:3881")]
    Agent(Agent),
    /// Take scenarios over HTTP, and start, watch and stop their runs for whoever asks.
    #[command(
        after_help = "Examples:\n  $ flock commander --agents host1:3881,host2:3881\n  $ flock commander --http 0.0.0.0:3882 --token-file token --broker 10.0.0.5:1883\n\nThen, say: curl -d '{\"scenario\": \"MB-B1\", \"duration\": \"20s\"}' http://127.0.0.1:3882/runs"
    )]
    Commander(Box<Commander>),
    /// Write the reports of a results file again.
    #[command(after_help = "Examples:\n  $ flock report results/MB-B1.json")]
    Report(Report),
    /// Draw runs side by side, with ratios to the first.
    #[command(
        after_help = "Examples:\n  $ flock compare a.json b.json --out comparison.html\n  $ flock compare before-1.json,before-2.json,before-3.json after-1.json,after-2.json,after-3.json"
    )]
    Compare(Compare),
    /// Try on this machine whether the lab sees what a broker may do wrong: a built-in broker
    /// loses, doubles, damages, misdirects, stalls and dies, one thing at a time.
    #[command(
        after_help = "Examples:\n  $ flock self-test\n  $ flock self-test --short\n\nExit code: 0 everything was caught, 1 something was not."
    )]
    SelfTest(SelfTest),
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  $ flock completions bash")]
    Completions(Completions),
}

#[derive(Debug, clap::Args)]
pub(super) struct SelfTest {
    /// Only a dozen of the cases, a few seconds.
    #[arg(long)]
    pub short: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// Only families whose name contains this.
    #[arg(long)]
    pub family: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// A built-in id, or a .toml or .xml file.
    pub scenario: String,
    /// Print the scenario's own text instead, to start a new one from.
    #[arg(long)]
    pub source: bool,
    /// Set a parameter of the scenario.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// A built-in id, or a .toml or .xml file.
    pub scenario: String,
    /// Brokers: host:port, or mqtt://, mqtts://, ws://, wss:// addresses; several separated by
    /// commas.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    #[command(flatten)]
    pub changes: Changes,
    /// Look for the highest total rate that keeps a percentile below a latency, as p99=10ms.
    #[arg(long, value_parser = bound, value_name = "PERCENTILE=TIME")]
    pub find_rate: Option<(f64, u64)>,
    /// Where the search begins, in messages per second of all publishers.
    #[arg(long, default_value_t = RATE_MIN, requires = "find_rate")]
    pub rate_min: u64,
    /// Where it ends.
    #[arg(long, default_value_t = RATE_MAX, requires = "find_rate")]
    pub rate_max: u64,
    /// How long each rate is held.
    #[arg(
        long,
        default_value = RATE_STEP,
        value_parser = units::time,
        value_name = "TIME",
        requires = "find_rate"
    )]
    pub rate_step: u64,
    /// How often it is run: then median and spread are told at the end. One run is an anecdote.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// A limit of any figure, as 'p99<=10ms'; broken, the run ends with exit code 1.
    #[arg(long, value_parser = Threshold::parse, value_name = "LIMIT")]
    pub expect: Vec<Threshold>,
    /// A file of names and passwords for all clients, a line name,password for each.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

/// What makes a scenario fit the machine at hand.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Changes {
    /// Multiply clients and topics; rates per client and ratios stay.
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    pub scale: f64,
    /// Length of the measured stages.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub duration: Option<u64>,
    /// How long the load of a measured stage goes on before figures are taken; by default what the
    /// scenario says, or a tenth of the stage and at most 10 s.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub warm_up: Option<u64>,
    /// And how long after; by default what the scenario says, or a tenth of the stage and at most
    /// 2 s.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub cool_down: Option<u64>,
    /// Length of every ramp.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub ramp: Option<u64>,
    /// Shorten all delays, ramps and stages, and raise the rates, by this factor.
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    pub speed: f64,
    /// Set a parameter of the scenario.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Seed of all random choices; that of the scenario, or 1, by default.
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Transport security and the WebSocket path.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Secure {
    /// Connect with TLS.
    #[arg(long, visible_alias = "ssl")]
    pub tls: bool,
    /// Connect over WebSocket.
    #[arg(long)]
    pub ws: bool,
    /// PEM file with the roots to trust.
    #[arg(long, visible_alias = "cacertfile", value_name = "FILE")]
    pub ca: Option<String>,
    /// PEM file with the client's certificate.
    #[arg(long, visible_alias = "certfile", value_name = "FILE", requires = "key")]
    pub cert: Option<String>,
    /// PEM file with its key.
    #[arg(long, visible_alias = "keyfile", value_name = "FILE", requires = "cert")]
    pub key: Option<String>,
    /// Accept any server certificate.
    #[arg(long)]
    pub insecure: bool,
    /// Name to ask for and to check in the certificate.
    #[arg(long)]
    pub server_name: Option<String>,
    /// Connect with this version of TLS only: tlsv1.2 or tlsv1.3.
    #[arg(long, visible_alias = "ssl-version", value_parser = tls_version, value_name = "VERSION")]
    pub tls_version: Option<TlsVersion>,
    /// Cipher suites to offer, by their IANA names, as TLS_AES_256_GCM_SHA384.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub ciphers: Vec<String>,
}

impl Changes {
    /// What is asked for, by the names of the options.
    pub(super) fn overrides(&self) -> BTreeMap<String, String> {
        let is_other = |factor: f64| (factor - 1.0).abs() > f64::EPSILON;
        let mut all = BTreeMap::new();
        let mut add = |name: &str, value: Option<String>| {
            all.extend(value.map(|value| (name.to_owned(), value)));
        };
        add("scale", is_other(self.scale).then(|| self.scale.to_string()));
        add("duration", self.duration.map(units::show_time));
        add("ramp", self.ramp.map(units::show_time));
        add("warm-up", self.warm_up.map(units::show_time));
        add("cool-down", self.cool_down.map(units::show_time));
        add("speed", is_other(self.speed).then(|| self.speed.to_string()));
        add("seed", self.seed.map(|seed| seed.to_string()));
        for (name, value) in &self.set {
            add(&format!("set {name}"), Some(value.clone()));
        }
        all
    }
}

impl Secure {
    /// `None` leaves the scenario's choice.
    pub(super) fn transport(&self) -> Option<Transport> {
        let path = "/mqtt".to_owned();
        match (self.tls || self.tls_version.is_some(), self.ws) {
            (false, false) => None,
            (true, false) => Some(Transport::Tls),
            (false, true) => Some(Transport::Ws { path }),
            (true, true) => Some(Transport::Wss { path }),
        }
    }

    pub(super) fn tls(&self) -> Option<Tls> {
        let given = self.insecure
            || self.ca.is_some()
            || self.cert.is_some()
            || self.server_name.is_some()
            || self.tls_version.is_some()
            || !self.ciphers.is_empty();
        given.then(|| Tls {
            ca_file: self.ca.clone(),
            insecure: self.insecure,
            server_name: self.server_name.clone(),
            cert_file: self.cert.clone(),
            key_file: self.key.clone(),
            resume: false,
            version: self.tls_version,
            ciphers: self.ciphers.clone(),
        })
    }
}

/// How the run is carried out and told about; the same for every command that makes load.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Lab {
    /// Load threads; the cores by default.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Agents that share the load: host:port, separated by commas; dns://name:port stands for all
    /// addresses of the name.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub agents: Vec<String>,
    /// Local addresses to connect from, in turn.
    #[arg(long, visible_alias = "source-addresses", value_delimiter = ',', value_name = "IP")]
    pub ifaddr: Vec<IpAddr>,
    /// What clients do when one of several addresses does not serve them: go to the next (listed),
    /// follow a Server Reference to servers that are not listed as well (any), or stay (off). By
    /// default as the scenario says.
    #[arg(long, value_enum)]
    pub failover: Option<Failover>,
    /// Watch the CPU and memory of the broker with this process id, on this machine.
    #[arg(long, conflicts_with_all = ["broker_command", "metrics"])]
    pub pid: Option<u32>,
    /// Start the broker with this command, watch it, and end it afterwards.
    #[arg(long, conflicts_with = "metrics", value_name = "COMMAND")]
    pub broker_command: Option<String>,
    /// A node of a cluster, for faults by number: HOST:PORT=pid:NUMBER or HOST:PORT=COMMAND, which
    /// is started. Repeatable, in their order from 0.
    #[arg(long, value_parser = MemberSpec::parse, value_name = "HOST:PORT=PROCESS")]
    pub node: Vec<MemberSpec>,
    /// The same of an engine: a process that the nodes store in.
    #[arg(long, value_parser = MemberSpec::parse, value_name = "HOST:PORT=PROCESS")]
    pub engine: Vec<MemberSpec>,
    /// A link between a node and an engine that faults can cut: NODE:LISTEN_PORT=HOST:PORT. The
    /// node is configured with 127.0.0.1:LISTEN_PORT as the address of its engine. Repeatable.
    #[arg(long, value_parser = LinkSpec::parse, value_name = "NODE:PORT=HOST:PORT")]
    pub link: Vec<LinkSpec>,
    /// Watch the broker by its metrics page.
    #[arg(long, value_name = "URL")]
    pub metrics: Option<String>,
    /// What the report calls the broker.
    #[arg(long, default_value = "")]
    pub broker_name: String,
    /// Its version, for the report.
    #[arg(long, default_value = "")]
    pub broker_version: String,
    /// What it runs on, for the report, as '8 vCPU, 32 GB'.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub broker_host: String,
    /// Its configuration, for the report, without what looks like a secret; files that its command
    /// names are found without being asked for.
    #[arg(long, value_name = "FILE")]
    pub broker_config: Option<PathBuf>,
    /// Folder for the results and reports.
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Name of the files in it; scenario and time by default.
    #[arg(long)]
    pub name: Option<String>,
    /// Serve metrics of the running load for Prometheus at this address.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    pub prometheus: Option<String>,
    /// Push live figures as InfluxDB lines to this address, http://host:8086/write?db=NAME, or
    /// into this file. INFLUX_TOKEN is sent as the token.
    #[arg(long, value_name = "URL|FILE", value_parser = Sink::influx)]
    pub influx: Option<Sink>,
    /// Push live figures to this OpenTelemetry collector, http://host:4318.
    #[arg(long, value_name = "URL", value_parser = Sink::otlp)]
    pub otlp: Option<Sink>,
    /// Seconds between progress lines; 1 on a terminal, 5 in a pipe.
    #[arg(long = "progress", alias = "interval", value_name = "SECONDS")]
    pub interval: Option<u32>,
    /// No progress lines.
    #[arg(long)]
    pub quiet: bool,
}

/// The flags that emqtt-bench's three commands share.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Bench {
    /// Print help.
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,
    /// Hosts, separated by commas.
    #[arg(short = 'h', long, default_value = "127.0.0.1", value_delimiter = ',')]
    pub host: Vec<String>,
    /// Port; 1883, with TLS 8883, with WebSocket 8083 and 8084.
    #[arg(short, long)]
    pub port: Option<u16>,
    /// Clients.
    #[arg(
        short,
        long,
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX))
    )]
    pub count: u64,
    /// Connections per second; goes over --interval-ms.
    #[arg(short = 'R', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub connrate: Option<u64>,
    /// Milliseconds from one connect to the next.
    #[arg(short = 'i', long = "interval-ms", default_value_t = 10)]
    pub interval_ms: u64,
    /// Number of the first client.
    #[arg(short = 'n', long, default_value_t = 0)]
    pub startnumber: u64,
    /// Client ids begin with this.
    #[arg(long)]
    pub prefix: Option<String>,
    /// MQTT version: 3, 4 (3.1.1) or 5.
    #[arg(short = 'V', long = "mqtt-version", default_value = "5", value_parser = ["3", "4", "5"])]
    pub version: String,
    /// User name; %i stands for the client's number.
    #[arg(short, long)]
    pub username: Option<String>,
    /// Password; %i stands for the client's number.
    #[arg(short = 'P', long)]
    pub password: Option<String>,
    /// Keep-alive in seconds.
    #[arg(short, long, default_value_t = 300)]
    pub keepalive: u16,
    /// A file of names and passwords for the clients, a line name,password for each.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["username", "password"])]
    pub credentials: Option<PathBuf>,
    /// Clean start.
    #[arg(short = 'C', long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clean: bool,
    /// Session expiry in seconds.
    #[arg(short = 'x', long, visible_alias = "session-expiry", default_value_t = 0)]
    pub expiry: u32,
    /// Attempts to connect after the first that failed.
    #[arg(long = "num-retry-connect", default_value_t = 0)]
    pub retries: u32,
    /// Connect again after a lost connection.
    #[arg(long, num_args = 0..=1, default_missing_value = "1", default_value = "0")]
    pub reconnect: u64,
    /// Stop after this time; else at Ctrl-C.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub duration: Option<u64>,
    /// The client id is just the prefix, if one is given, and the client's number.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        action = clap::ArgAction::Set
    )]
    pub shortids: bool,
    /// Serve metrics at IP:PORT, or at a port of all addresses, below /metrics.
    #[arg(long, value_name = "[IP:]PORT")]
    pub restapi: Option<String>,
    /// Where the progress goes: console, or null for nowhere.
    #[arg(
        long = "log_to",
        visible_alias = "log-to",
        default_value = "console",
        value_parser = ["console", "null"]
    )]
    pub log_to: String,
    /// With TLS (the short form of --tls).
    #[arg(short = 'S', hide = true)]
    pub ssl_short: bool,
    /// Of emqtt-bench, and without effect: memory is low anyway.
    #[arg(short, long, hide = true)]
    pub lowmem: bool,
    /// Of emqtt-bench, and without effect: there is no Erlang to talk to.
    #[arg(short, long, hide = true)]
    pub dist: bool,
    /// Of emqtt-bench, and without effect: there is no garbage to collect.
    #[arg(long, hide = true, value_name = "MS")]
    pub force_major_gc_interval: Option<u64>,
    /// Of emqtt-bench, and without effect: how long connects take is always measured.
    #[arg(short = 'Q', long, hide = true, num_args = 0..=1, default_missing_value = "true")]
    pub qoe: Option<String>,
    /// Of emqtt-bench, and refused.
    #[arg(long, hide = true)]
    pub quic: bool,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Conn {
    #[command(flatten)]
    pub bench: Bench,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Pub {
    #[command(flatten)]
    pub bench: Bench,
    #[command(flatten)]
    pub waits: Waits,
    /// Topic: %i number of the client, %c its id, %u its user name, %s number of the message,
    /// %rand_N a random number below N.
    #[arg(short, long, required_unless_present = "topics_payload")]
    pub topic: Option<String>,
    /// A JSON file of topics, each with interval, QoS and payload of its own, all of which every
    /// client publishes to; emqtt-bench's format. With inject_timestamp the key `timestamp` of a
    /// payload is when the message was due. --payload-hdrs puts flock's stamp before each payload:
    /// without it nothing is known of latency and delivery.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["topic", "message", "limit"])]
    pub topics_payload: Option<PathBuf>,
    /// Milliseconds between the messages of a client; 0 is as fast as possible.
    #[arg(short = 'I', long = "interval-of-msg", default_value_t = 1000)]
    pub interval_of_msg: u64,
    /// Payload size: 16, 8K, 1M.
    #[arg(short, long, default_value = "256", value_parser = units::size)]
    pub size: u32,
    /// Payload text instead.
    #[arg(short, long, conflicts_with = "size")]
    pub message: Option<String>,
    /// QoS of the messages.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
    /// Publish retained messages.
    #[arg(
        short,
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        action = clap::ArgAction::Set
    )]
    pub retain: bool,
    /// Messages in all; 0 is without limit.
    #[arg(short = 'L', long, default_value_t = 0)]
    pub limit: u64,
    /// Messages in flight per client; 0 is no limit.
    #[arg(short = 'F', long, default_value_t = 1)]
    pub inflight: u16,
}

/// When publishing begins and what is there at its end.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Waits {
    /// Publish when all are connected, which is the default here; with false, each client as soon
    /// as it is.
    #[arg(
        short = 'w',
        long = "wait-before-publishing",
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    pub wait_before_publishing: bool,
    /// Milliseconds that each client waits at random before it publishes, at least.
    #[arg(long, default_value_t = 0)]
    pub min_random_wait: u64,
    /// And at most.
    #[arg(long, default_value_t = 0)]
    pub max_random_wait: u64,
    /// Stay connected when all messages of -L are sent, until --duration or Ctrl-C.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        action = clap::ArgAction::Set
    )]
    pub keep_connected: bool,
    /// Only 0 is taken: nothing is sent again on an open connection, which MQTT 5 forbids
    /// (MQTT-4.4.0-1); after a reconnect it is, always.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=0))]
    pub retry_interval: u64,
    /// Counter and timestamp in each message, cnt64 and ts: both are always there, in a stamp of
    /// 16 bytes that only flock reads; with --topics-payload only if this asks for it.
    #[arg(long, value_delimiter = ',', value_parser = ["cnt64", "ts"])]
    pub payload_hdrs: Vec<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Sub {
    #[command(flatten)]
    pub bench: Bench,
    /// Topic filters, with the variables of `pub`.
    #[arg(short, long, required = true)]
    pub topic: Vec<String>,
    /// Counter and timestamp in each message, cnt64 and ts: both are always looked at, in messages
    /// of flock.
    #[arg(long, value_delimiter = ',', value_parser = ["cnt64", "ts"])]
    pub payload_hdrs: Vec<String>,
    /// Highest QoS to receive with.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
}

#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// Address to wait at. Whoever reaches it can make this machine send load.
    #[arg(long, default_value = "127.0.0.1:3881")]
    pub listen: String,
    /// End after one run.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Commander {
    /// Address to be controlled at over HTTP; port 0 is any that is free.
    #[arg(long, default_value = "127.0.0.1:3882", value_name = "HOST:PORT")]
    pub http: String,
    /// A file with the token that every request must bring, of 16 characters or more; needed where
    /// other machines reach the address. FLOCK_TOKEN in the environment does the same.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Brokers of runs that name none: host:port, or mqtt://, mqtts://, ws://, wss:// addresses.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

#[derive(Debug, clap::Args)]
pub(super) struct Versus {
    /// Built-in ids, or .toml or .xml files.
    #[arg(required = true)]
    pub scenarios: Vec<String>,
    /// Brokers by name, or files that describe one; all that are installed by default, but none of
    /// their variants.
    #[arg(long, value_delimiter = ',')]
    pub brokers: Vec<String>,
    /// Cores of the brokers, as 0-1 or 0,2; the lower half by default.
    #[arg(long)]
    pub broker_cpus: Option<String>,
    /// Cores of the load; those that are left by default.
    #[arg(long)]
    pub load_cpus: Option<String>,
    /// How often everything is run; the table shows all rounds, the median of the valid ones, their
    /// spread, and whether brokers differ by more than that.
    #[arg(
        long,
        visible_alias = "runs",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub rounds: u32,
    #[command(flatten)]
    pub changes: Changes,
    /// Folder for results, reports and comparisons.
    #[arg(long, default_value = "results/versus", value_name = "FOLDER")]
    pub out: PathBuf,
    /// No progress lines.
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Matrix {
    /// A built-in matrix, a .toml file of one, or a scenario with axes; without it the built-in
    /// ones are listed.
    pub matrix: Option<String>,
    /// A parameter of the scenario, or qos, payload, version, rate, total_rate, load, in_flight,
    /// scale; and its values. The first axis lies along the curves.
    #[arg(long, value_name = "NAME=VALUES", value_parser = Axis::parse)]
    pub axis: Vec<Axis>,
    /// Brokers: host:port, or mqtt://, mqtts://, ws://, wss:// addresses; several separated by
    /// commas.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    /// How often every combination is run; the curves are of the medians.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    #[command(flatten)]
    pub changes: Changes,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// Results of a run.
    pub results: PathBuf,
    /// Folder for the reports; that of the results by default.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Compare {
    /// Results of at least two runs. Runs of one --runs, or one versus, are taken together, as
    /// are files joined by commas: then the comparison is of medians, and says what is noise.
    #[arg(required = true, value_name = "FILE[,FILE...]")]
    pub results: Vec<String>,
    /// Write it as .html or .md too.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell to complete in.
    pub shell: clap_complete::Shell,
}

/// By emqtt-bench's names.
fn tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "tlsv1.2" | "1.2" => Ok(TlsVersion::V12),
        "tlsv1.3" | "tlsv1.3_nocompat" | "1.3" => Ok(TlsVersion::V13),
        "tlsv1.1" | "tlsv1" => {
            Err("versions before 1.2 are unsafe (RFC 8996), and not spoken".to_owned())
        }
        _ => Err("write tlsv1.2 or tlsv1.3".to_owned()),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write name=value".to_owned()),
    }
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() && factor <= 1000.0 => Ok(factor),
        _ => Err("a factor is a number above 0, and 1000 at most".to_owned()),
    }
}

/// Of a search that does not say.
pub(super) const RATE_MIN: u64 = 100;
pub(super) const RATE_MAX: u64 = 1_000_000;
pub(super) const RATE_STEP: &str = "10s";

pub(super) fn bound(text: &str) -> Result<(f64, u64), String> {
    let wrong = || "write percentile and latency, as p99=10ms".to_owned();
    let (percentile, latency) = text.split_once('=').ok_or_else(wrong)?;
    let percentile: f64 = percentile.trim_start_matches('p').parse().map_err(|_| wrong())?;
    if !(percentile > 0.0 && percentile <= 100.0) {
        return Err("a percentile lies between 0 and 100".to_owned());
    }
    Ok((percentile, units::time(latency)?))
}
