//! What can be asked for on the command line.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::find::Find;
use crate::export::Sink;
use crate::faults::{LinkSpec, MemberSpec};
use flock_measure::threshold::Threshold;
use flock_model::matrix::Axis;
use flock_model::scenario::units;
use flock_model::{Failover, Payload, Target, Tls, TlsVersion, Transport};
use flock_report::Reports;

#[derive(Debug, Parser)]
#[command(
    name = "flock",
    version = env!("BUILD_VERSION"),
    about = "Load tests for MQTT brokers: runs published benchmarks, and checks delivery",
    after_help = "Examples:\n  $ flock list\n  $ flock show MB-E1\n  $ flock run MB-B1 --broker 127.0.0.1:1883 --duration 60s\n  $ flock compare results/a.json results/b.json"
)]
pub(super) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the built-in scenarios.
    #[command(
        after_help = "Examples:\n  $ flock list\n  $ flock list verne\n  $ flock list fan-out\n  $ flock list --family solace"
    )]
    List(List),
    /// Describe a scenario: its numbers, its source and published results.
    #[command(after_help = "Examples:\n  $ flock show MB-E1\n  $ flock show MB-E1 --source")]
    Show(Show),
    /// Run a scenario: a built-in ID, a .toml file, or a HiveMQ Swarm .xml file.
    #[command(
        after_help = "Examples:\n  $ flock run MB-B1 --broker 127.0.0.1:1883 --duration 60s\n  $ flock run MB-E1 --scale 0.02 --pid 1234\n  $ flock run HM-R2000 --speed 60\n  $ flock run scenario.xml --scale 0.0001\n  $ flock run XR-1-Q1 --find-rate p99=10ms --rate-max 50000\n  $ flock run MB-B4 --find-connections p99=1s --connections-max 50000\n  $ flock run MB-B4 --find-connect-rate p99=100ms\n  $ flock run X-1 --broker-command 'mosquitto'\n  $ flock run AIO-FO-16B --agents host1:3881,host2:3881\n  $ flock run MB-B1 --duration 20s --runs 5\n  $ flock run MB-B1 --expect 'p99<=10ms' --expect 'received_per_sec>=990'\n\nExit code: 0 completed, expectations met; 1 an expectation was not met; 2 not started (wrong input, no broker); 3 invalid measurement, or stopped early."
    )]
    Run(Box<Run>),
    /// Compare several brokers: run scenarios against each, on the same cores.
    #[command(
        after_help = "Examples:\n  $ flock versus MB-B1 MB-B3 --brokers quelea,mosquitto --duration 20s\n  $ flock versus XR-1-Q1 --brokers mosquitto,mine.toml --broker-cpus 0-1 --rounds 7"
    )]
    Versus(Box<Versus>),
    /// Run a scenario with every combination of parameter values, and draw curves.
    #[command(
        after_help = "Examples:\n  $ flock matrix\n  $ flock matrix AIO-REPORT --broker 10.0.0.5:1883 --scale 0.1 --duration 20s\n  $ flock matrix XR-1-Q1 --axis total_rate=2000/s,5000/s,10000/s --axis qos=0,1,2 --rounds 5\n  $ flock matrix MB-B1 --axis payload=16,1K,8K --axis version=3.1.1,5 --broker-command 'mosquitto'\n\nExit code: 0 every combination has a valid run; 1 a run was not executed; 2 wrong input; 3 a combination has no valid run."
    )]
    Matrix(Box<Matrix>),
    /// Connect clients and keep them connected (options of emqtt-bench).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock conn -c 10000 -R 1000\n  $ flock conn -h 10.0.0.5 -p 1883 -c 50000 -i 1 --ifaddr 10.0.0.1,10.0.0.2"
    )]
    Conn(Box<Conn>),
    /// Publish messages (options of emqtt-bench).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock pub -c 100 -I 10 -t bench/%i -s 256 -q 1\n  $ flock pub -c 10 -I 0 -F 100 -t t -q 1 --duration 30s"
    )]
    Pub(Box<Pub>),
    /// Subscribe and receive messages (options of emqtt-bench).
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  $ flock sub -c 100 -t bench/%i -q 1\n  $ flock sub -c 5 -t '$share/g/bench/#' -q 1"
    )]
    Sub(Box<Sub>),
    /// Generate load for a flock on another machine.
    #[command(after_help = "Examples:\n  $ flock agent --listen 0.0.0.0:3881")]
    Agent(Agent),
    /// Serve an HTTP API to submit scenarios and to control runs.
    #[command(
        after_help = "Examples:\n  $ flock commander --agents host1:3881,host2:3881\n  $ flock commander --http 0.0.0.0:3882 --token-file token --broker 10.0.0.5:1883\n\nThen: curl -d '{\"scenario\": \"MB-B1\", \"duration\": \"20s\"}' http://127.0.0.1:3882/runs"
    )]
    Commander(Box<Commander>),
    /// Write the reports of a results file.
    #[command(after_help = "Examples:\n  $ flock report results/MB-B1.json")]
    Report(Report),
    /// Write index.html, a list of the runs in a folder. Each run brings it up to date.
    #[command(after_help = "Examples:\n  $ flock index results")]
    Index(Index),
    /// Compare the results of runs, with ratios to the first.
    #[command(
        after_help = "Examples:\n  $ flock compare a.json b.json --out comparison.html\n  $ flock compare before-1.json,before-2.json,before-3.json after-1.json,after-2.json,after-3.json"
    )]
    Compare(Compare),
    /// Test flock's own checks on this machine, with a built-in broker that makes one mistake in
    /// each case (loss, duplicates, damage, delay, crash...).
    #[command(
        after_help = "Examples:\n  $ flock self-test\n  $ flock self-test --short\n\nExit code: 0 all mistakes were detected; 1 a mistake was not detected."
    )]
    SelfTest(SelfTest),
    /// Print a completion script for a shell.
    #[command(after_help = "Examples:\n  $ flock completions bash")]
    Completions(Completions),
    /// Write the manual pages of all commands.
    #[command(after_help = "Examples:\n  $ flock man /usr/local/share/man/man1")]
    Man(Man),
}

#[derive(Debug, clap::Args)]
pub(super) struct SelfTest {
    /// Run a dozen of the cases only, in a few seconds.
    #[arg(long)]
    pub short: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct List {
    /// List only scenarios with all these words in their ID, title, family, source or published
    /// systems.
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
    /// List only families whose name contains this text.
    #[arg(long)]
    pub family: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// A built-in ID, or a .toml or .xml file.
    pub scenario: String,
    /// Print the text of the scenario instead.
    #[arg(long)]
    pub source: bool,
    /// Set a parameter of the scenario. Repeatable.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Payload that replaces the payload generators of a Swarm scenario, as for flock run.
    #[arg(long, value_parser = Payload::parse, value_name = "PAYLOAD")]
    pub payload: Option<Payload>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Run {
    /// A built-in ID, or a .toml or .xml file.
    pub scenario: String,
    /// Addresses of the broker, separated by commas: host:port, or URLs with mqtt://, mqtts://,
    /// ws://, wss:// or unix://. Default: that of the scenario's file, or 127.0.0.1:1883 after a
    /// question.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    #[command(flatten)]
    pub changes: Changes,
    /// Payload that replaces the payload generators of a Swarm scenario: SIZE, random:SIZE,
    /// random:MIN..MAX or text:TEXT.
    #[arg(long, value_parser = Payload::parse, value_name = "PAYLOAD")]
    pub payload: Option<Payload>,
    #[command(flatten)]
    pub find: Find,
    /// Number of runs. With several, flock prints their median, minimum and maximum.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: u32,
    /// Limit of a metric, such as 'p99<=10ms'. If the run exceeds it, the exit code is 1.
    /// Repeatable.
    #[arg(long, value_parser = Threshold::parse, value_name = "LIMIT")]
    pub expect: Vec<Threshold>,
    /// File with a line name,password for each client.
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

/// Changes that fit a scenario to the present machine.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Changes {
    /// Multiply the numbers of clients and topics. Rates per client do not change.
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    pub scale: f64,
    /// Length of the measured stages.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub duration: Option<u64>,
    /// Time of load ahead of a measured stage. Default: as the scenario says, or a tenth of the
    /// stage, at most 10 s.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub warm_up: Option<u64>,
    /// Time of load after a measured stage. Default: as the scenario says, or a tenth of the stage,
    /// at most 2 s.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub cool_down: Option<u64>,
    /// Length of every ramp.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub ramp: Option<u64>,
    /// Divide all delays, ramps and stages by this factor, and multiply rates.
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    pub speed: f64,
    /// Set a parameter of the scenario. Repeatable.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = assignment)]
    pub set: Vec<(String, String)>,
    /// Seed of random choices. Default: that of the scenario, or 1.
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
    /// PEM file with trusted root certificates. Default: those of the system.
    #[arg(long, visible_alias = "cacertfile", value_name = "FILE", conflicts_with = "insecure")]
    pub ca: Option<String>,
    /// PEM file with the client's certificate.
    #[arg(long, visible_alias = "certfile", value_name = "FILE", requires = "key")]
    pub cert: Option<String>,
    /// PEM file with the key of the client's certificate.
    #[arg(long, visible_alias = "keyfile", value_name = "FILE", requires = "cert")]
    pub key: Option<String>,
    /// Accept any server certificate.
    #[arg(long)]
    pub insecure: bool,
    /// Server name for SNI and certificate verification.
    #[arg(long)]
    pub server_name: Option<String>,
    /// Use only this version of TLS: tlsv1.2 or tlsv1.3.
    #[arg(long, visible_alias = "ssl-version", value_parser = tls_version, value_name = "VERSION")]
    pub tls_version: Option<TlsVersion>,
    /// Cipher suites by IANA name, such as TLS_AES_256_GCM_SHA384, separated by commas.
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

/// Flags of the run and its reports, the same for every command that makes load.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Lab {
    /// Number of load threads. Default: the number of cores.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Agents that generate the load: host:port, separated by commas. dns://name:port means all
    /// addresses of the name.
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT")]
    pub agents: Vec<String>,
    /// Local addresses of the connections, separated by commas, used in turn.
    #[arg(long, visible_alias = "source-addresses", value_delimiter = ',', value_name = "IP")]
    pub ifaddr: Vec<IpAddr>,
    /// Address that a client uses if a connection fails and the broker has several addresses.
    /// Default: as the scenario says.
    #[arg(long, value_enum)]
    pub failover: Option<Failover>,
    /// Process ID of a broker on this machine, to measure its CPU and memory. Default: the process
    /// that listens on the broker's address.
    #[arg(long, conflicts_with_all = ["broker_command", "metrics"])]
    pub pid: Option<u32>,
    /// Command that starts the broker. flock measures the process and ends it after the run.
    #[arg(long, conflicts_with = "metrics", value_name = "COMMAND")]
    pub broker_command: Option<String>,
    /// Node of a cluster, for faults: HOST:PORT=pid:NUMBER, or HOST:PORT=COMMAND to start it.
    /// Repeatable; nodes are numbered from 0.
    #[arg(long, value_parser = MemberSpec::parse, value_name = "HOST:PORT=PROCESS")]
    pub node: Vec<MemberSpec>,
    /// Engine of a cluster (such as a NATS server), for faults. Written as --node. Repeatable.
    #[arg(long, value_parser = MemberSpec::parse, value_name = "HOST:PORT=PROCESS")]
    pub engine: Vec<MemberSpec>,
    /// Link between a node and an engine that faults can cut: NODE:PORT=HOST:PORT. Configure the
    /// node with 127.0.0.1:PORT as the address of its engine. Repeatable.
    #[arg(long, value_parser = LinkSpec::parse, value_name = "NODE:PORT=HOST:PORT")]
    pub link: Vec<LinkSpec>,
    /// URL of the broker's Prometheus metrics, to measure its CPU and memory.
    #[arg(long, value_name = "URL")]
    pub metrics: Option<String>,
    /// Name of the broker in the report.
    #[arg(long, default_value = "")]
    pub broker_name: String,
    /// Version of the broker in the report.
    #[arg(long, default_value = "")]
    pub broker_version: String,
    /// Hardware of the broker in the report, such as '8 vCPU, 32 GB'.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub broker_host: String,
    /// Configuration file of the broker, for the report. Secrets are omitted. Files named in the
    /// broker's command are included automatically.
    #[arg(long, value_name = "FILE")]
    pub broker_config: Option<PathBuf>,
    /// Folder for results and reports.
    #[arg(long, default_value = "results", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Name of the files. Default: scenario and time.
    #[arg(long)]
    pub name: Option<String>,
    /// Address of a /metrics page for Prometheus during the run.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = "")]
    pub prometheus: Option<String>,
    /// Write a line per second to InfluxDB, such as http://host:8086/write?db=NAME, or to a file.
    /// The token is read from INFLUX_TOKEN.
    #[arg(long, value_name = "URL|FILE", value_parser = Sink::influx)]
    pub influx: Option<Sink>,
    /// Send metrics to an OpenTelemetry collector, such as http://host:4318.
    #[arg(long, value_name = "URL", value_parser = Sink::otlp)]
    pub otlp: Option<Sink>,
    /// Seconds between progress lines. Default: 1 on a terminal, else 5.
    #[arg(long = "progress", alias = "interval", value_name = "SECONDS")]
    pub interval: Option<u32>,
    /// Print no progress lines.
    #[arg(long)]
    pub quiet: bool,
    /// Start the load without a question if no broker is named.
    #[arg(long)]
    pub yes: bool,
}

/// The flags that emqtt-bench's three commands share.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Bench {
    /// Print help.
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub help: Option<bool>,
    /// Hosts, separated by commas, used in turn. Default: 127.0.0.1 after a question.
    #[arg(short = 'h', long, value_delimiter = ',')]
    pub host: Vec<String>,
    /// Port. Default: 1883, with TLS 8883, with WebSocket 8083, with both 8084.
    #[arg(short, long)]
    pub port: Option<u16>,
    /// Number of clients.
    #[arg(
        short,
        long,
        default_value_t = 200,
        value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX))
    )]
    pub count: u64,
    /// Connects per second. Has precedence over --interval-ms.
    #[arg(short = 'R', long, value_parser = clap::value_parser!(u64).range(1..))]
    pub connrate: Option<u64>,
    /// Milliseconds between connects.
    #[arg(short = 'i', long = "interval-ms", default_value_t = 10)]
    pub interval_ms: u64,
    /// Number of the first client.
    #[arg(short = 'n', long, default_value_t = 0)]
    pub startnumber: u64,
    /// Prefix of client IDs.
    #[arg(long)]
    pub prefix: Option<String>,
    /// MQTT version: 3, 4 (3.1.1) or 5.
    #[arg(short = 'V', long = "mqtt-version", default_value = "5", value_parser = ["3", "4", "5"])]
    pub version: String,
    /// Username. %i is the number of the client.
    #[arg(short, long)]
    pub username: Option<String>,
    /// Password. %i is the number of the client.
    #[arg(short = 'P', long)]
    pub password: Option<String>,
    /// Keep-alive in seconds.
    #[arg(short, long, default_value_t = 300)]
    pub keepalive: u16,
    /// File with a line name,password for each client.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["username", "password"])]
    pub credentials: Option<PathBuf>,
    /// Clean start.
    #[arg(short = 'C', long, default_value_t = true, action = clap::ArgAction::Set)]
    pub clean: bool,
    /// Session expiry in seconds.
    #[arg(short = 'x', long, visible_alias = "session-expiry", default_value_t = 0)]
    pub expiry: u32,
    /// Number of further attempts if a connect fails.
    #[arg(long = "num-retry-connect", default_value_t = 0)]
    pub retries: u32,
    /// Reconnect after a lost connection.
    #[arg(long, num_args = 0..=1, default_missing_value = "1", default_value = "0")]
    pub reconnect: u64,
    /// Length of the run. Default: until Ctrl-C.
    #[arg(long, value_parser = units::time, value_name = "TIME")]
    pub duration: Option<u64>,
    /// Use only the prefix, if any, and the number as client ID.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        action = clap::ArgAction::Set
    )]
    pub shortids: bool,
    /// Address of a /metrics page for Prometheus. With a port only: all addresses.
    #[arg(long, value_name = "[IP:]PORT", conflicts_with = "prometheus")]
    pub restapi: Option<String>,
    /// Output of progress lines: console, or null for none.
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

impl Bench {
    /// Options of emqtt-bench for what flock does anyway, or does not have.
    pub(super) fn idle(&self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("--lowmem", self.lowmem),
            ("--dist", self.dist),
            ("--force-major-gc-interval", self.force_major_gc_interval.is_some()),
            ("--qoe", self.qoe.is_some()),
        ];
        all.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name)
    }
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
    /// Topic. %i: number of the client, %c: client ID, %u: username, %s: number of the message,
    /// %rand_N: random number below N.
    #[arg(short, long, required_unless_present = "topics_payload")]
    pub topic: Option<String>,
    /// JSON file of topics with interval, QoS and payload (format of emqtt-bench). Each client
    /// publishes to all of them. With inject_timestamp, `timestamp` in a payload is the due time.
    /// Latency and delivery are measured only with --payload-hdrs.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "topic", "message", "limit", "size", "qos", "retain", "interval_of_msg"
        ]
    )]
    pub topics_payload: Option<PathBuf>,
    /// Milliseconds between messages of a client. 0: as fast as possible.
    #[arg(short = 'I', long = "interval-of-msg", default_value_t = 1000)]
    pub interval_of_msg: u64,
    /// Size of the payload, such as 16, 8K or 1M.
    #[arg(short, long, default_value = "256", value_parser = units::size)]
    pub size: u32,
    /// Text of the payload.
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
    /// Number of messages of all clients. 0: no limit.
    #[arg(short = 'L', long, default_value_t = 0)]
    pub limit: u64,
    /// Unacknowledged messages per client. 0: no limit.
    #[arg(short = 'F', long, default_value_t = 1)]
    pub inflight: u16,
}

/// When publishing begins and what is there at its end.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Waits {
    /// Publish after all clients have connected (default). With false, each client publishes once
    /// it has connected.
    #[arg(
        short = 'w',
        long = "wait-before-publishing",
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    pub wait_before_publishing: bool,
    /// Minimum of the random time, in milliseconds, that each client waits ahead of publishing.
    #[arg(long, default_value_t = 0)]
    pub min_random_wait: u64,
    /// Maximum of that random time, in milliseconds.
    #[arg(long, default_value_t = 0)]
    pub max_random_wait: u64,
    /// Stay connected after all messages of -L, until --duration or Ctrl-C.
    #[arg(
        long,
        num_args = 0..=1,
        default_missing_value = "true",
        default_value_t = false,
        action = clap::ArgAction::Set
    )]
    pub keep_connected: bool,
    /// Only 0 is accepted: MQTT 5 forbids to repeat messages on an open connection (MQTT-4.4.0-1).
    /// They are always repeated after a reconnect.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=0))]
    pub retry_interval: u64,
    /// Counter (cnt64) and timestamp (ts) in each message. Both are always part of flock's stamp of
    /// 16 bytes; with --message and --topics-payload only if this option is given.
    #[arg(long, value_delimiter = ',', value_parser = ["cnt64", "ts"])]
    pub payload_hdrs: Vec<String>,
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Sub {
    #[command(flatten)]
    pub bench: Bench,
    /// Topic filter, with the variables of `pub`. Repeatable.
    #[arg(short, long, required = true)]
    pub topic: Vec<String>,
    /// Accepted for emqtt-bench. The stamp in messages of flock is always read.
    #[arg(long, value_delimiter = ',', value_parser = ["cnt64", "ts"])]
    pub payload_hdrs: Vec<String>,
    /// Maximum QoS.
    #[arg(short, long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub qos: u8,
}

#[derive(Debug, clap::Args)]
pub(super) struct Agent {
    /// Address to listen on. Use trusted networks only: any host that reaches it can make this
    /// machine send load.
    #[arg(long, default_value = "127.0.0.1:3881")]
    pub listen: String,
    /// Exit after one run.
    #[arg(long)]
    pub once: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Commander {
    /// Address of the HTTP API. Port 0: any free port.
    #[arg(long, default_value = "127.0.0.1:3882", value_name = "HOST:PORT")]
    pub http: String,
    /// File with the token that requests must have, of at least 16 characters. Required if other
    /// machines can reach the address. Alternative: FLOCK_TOKEN in the environment.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Broker of runs without `broker`: host:port, or URLs with mqtt://, mqtts://, ws://, wss:// or
    /// unix://, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    /// Payload that replaces the payload generators of Swarm scenarios, as for flock run.
    #[arg(long, value_parser = Payload::parse, value_name = "PAYLOAD")]
    pub payload: Option<Payload>,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

#[derive(Debug, clap::Args)]
pub(super) struct Versus {
    /// Built-in IDs, or .toml or .xml files.
    #[arg(required = true)]
    pub scenarios: Vec<String>,
    /// Names of brokers, description files, or NAME=HOST:PORT of running brokers, separated by
    /// commas. A broker that is not installed runs in a container, if its description has one.
    /// Default: all installed brokers, without variants.
    #[arg(long, value_delimiter = ',')]
    pub brokers: Vec<String>,
    /// Cores of the brokers, such as 0-1 or 0,2. Default: the lower half.
    #[arg(long)]
    pub broker_cpus: Option<String>,
    /// Cores of the load. Default: all others.
    #[arg(long)]
    pub load_cpus: Option<String>,
    /// Number of rounds. Tables show every round, and the median, minimum and maximum of the valid
    /// ones.
    #[arg(
        long,
        visible_alias = "runs",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub rounds: u32,
    #[command(flatten)]
    pub changes: Changes,
    #[command(flatten)]
    pub single_file: SingleFile,
    /// Folder for results, reports and comparisons.
    #[arg(long, default_value = "results/versus", value_name = "FOLDER")]
    pub out: PathBuf,
    /// Print no progress lines.
    #[arg(long)]
    pub quiet: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Matrix {
    /// A built-in matrix, a .toml file, or a scenario with --axis. Without it, flock lists the
    /// built-in ones.
    pub matrix: Option<String>,
    /// A parameter of the scenario, or qos, payload, version, rate, total_rate, load, in_flight or
    /// scale, and its values, separated by commas. The first axis is the x axis. Repeatable.
    #[arg(long, value_name = "NAME=VALUES", value_parser = Axis::parse)]
    pub axis: Vec<Axis>,
    /// Addresses of the broker, separated by commas: host:port, or URLs with mqtt://, mqtts://,
    /// ws://, wss:// or unix://. Default: that of the scenario.
    #[arg(long, value_delimiter = ',', value_parser = Target::parse, value_name = "HOST:PORT")]
    pub broker: Vec<Target>,
    /// Number of runs of each combination. Curves show medians.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
    #[command(flatten)]
    pub changes: Changes,
    #[command(flatten)]
    pub single_file: SingleFile,
    #[command(flatten)]
    pub secure: Secure,
    #[command(flatten)]
    pub lab: Lab,
}

#[derive(Debug, clap::Args)]
pub(super) struct SingleFile {
    /// Include the report of each run in the page, so that one file can be shared.
    #[arg(long)]
    single_file: bool,
}

impl SingleFile {
    pub(super) fn reports(&self) -> Reports {
        if self.single_file { Reports::Inside } else { Reports::Files }
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Report {
    /// Results file of a run.
    pub results: PathBuf,
    /// Folder for the reports. Default: that of the results.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Index {
    /// Folder with results.
    #[arg(default_value = "results")]
    pub folder: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(super) struct Compare {
    /// Results files of at least two runs. Files joined by commas, of one `--runs` or of one
    /// `versus` form a set. Sets are compared by medians, with a confidence interval.
    #[arg(required = true, value_name = "FILE[,FILE...]")]
    pub results: Vec<String>,
    /// Write the comparison to this .html or .md file.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// An existing directory. Files of the same names are replaced.
    pub directory: PathBuf,
}

/// By emqtt-bench's names.
fn tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "tlsv1.2" | "1.2" => Ok(TlsVersion::V12),
        "tlsv1.3" | "tlsv1.3_nocompat" | "1.3" => Ok(TlsVersion::V13),
        "tlsv1.1" | "tlsv1" => {
            Err("TLS versions below 1.2 are not supported (RFC 8996): use tlsv1.2 or tlsv1.3"
                .to_owned())
        }
        _ => Err("must be tlsv1.2 or tlsv1.3".to_owned()),
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}

pub(super) fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() && factor <= 1000.0 => Ok(factor),
        _ => Err("must be a number above 0, at most 1000".to_owned()),
    }
}
