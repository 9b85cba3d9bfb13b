//! A lowered, checked scenario: the one form that the engine executes.
//!
//! Whatever a scenario was written in (the native TOML, HiveMQ Swarm's XML, the flags of
//! `flock pub`), it ends as a [`Scenario`]: plain values, every reference an index that exists,
//! every time in microseconds. The engine needs nothing else, and a commander sends exactly this
//! to its agents.
//!
//! How it runs:
//!
//! - [`Stage`]s run one after another; the end of a stage is a barrier for all clients.
//! - All [`LifeCycle`]s of a stage start together. Each runs its [`Command`]s in order, once per
//!   client of its group; clients do not wait for each other within a stage.
//! - A stage ends when all its life cycles are done, or at [`Stage::duration_us`] if that is set:
//!   then publishing stops where it is, and what is in flight is given [`Scenario::drain_us`] to
//!   arrive. A stage in which no clients have steps lasts its whole duration: a hold.
//! - A client keeps its connection, session and subscriptions from one stage to the next; groups
//!   that have no life cycle in a stage just stay as they are and go on receiving.

mod aim;
mod assign;
mod calamity;
mod estimate;
mod length;
mod pattern;
mod payload;
mod reach;
mod scale;
mod sink;

pub use aim::Target;
pub use assign::{Assign, Members};
pub use calamity::{Directions, Fault, Party, Which};
pub use estimate::Estimate;
pub use length::Length;
pub use pattern::{Pattern, PatternError, unshared};
pub use payload::{Content, Payload, Piece, STAMP_BYTES, TimeUnit};
pub use reach::{Hears, Listener, matches};
pub use sink::{KafkaSink, Mechanism, Refuse, Sink, SinkKind, SinkLogin, SinkTls, WebhookSink};

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::scenario::units;
use flock_measure::threshold::Threshold;

/// Everything that a run needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scenario {
    /// Catalogue id, or the file name without its ending.
    pub id: String,
    pub title: String,
    /// What the numbers stand for: printed in the report, never interpreted.
    pub description: String,
    /// Seeds every random choice (topics taken at random, random payloads, phases).
    pub seed: u64,
    pub brokers: Vec<Broker>,
    /// The scenario makes no sense when two of its brokers are the same one (a bridge).
    pub brokers_distinct: bool,
    /// Local addresses to connect from, in turn; empty leaves the choice to the kernel.
    pub source_addresses: Vec<IpAddr>,
    pub groups: Vec<ClientGroup>,
    pub topics: Vec<TopicGroup>,
    pub subscriptions: Vec<Subscription>,
    /// What the broker routes messages to. The process that leads the run reads them.
    #[serde(default)]
    pub sinks: Vec<Sink>,
    pub stages: Vec<Stage>,
    /// How long in-flight messages may take to arrive after publishing stopped, before they count
    /// as lost. It ends earlier once everything expected has arrived.
    pub drain_us: u64,
    /// How long a measured stage goes on before figures are taken of it, and after; see
    /// [`Stage::is_steady`]. `None` leaves it to whoever runs it.
    pub warm_up_us: Option<u64>,
    pub cool_down_us: Option<u64>,
    pub expect: Expect,
    /// Look for the highest rate that holds a latency instead of running at the rates given.
    pub search: Option<Search>,
    /// By which factor client and topic counts were scaled from the scenario as published.
    pub scale: f64,
}

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    )*};
}

index! {
    /// Position in [`Scenario::brokers`].
    BrokerId;
    /// Position in [`Scenario::groups`].
    GroupId;
    /// Position in [`Scenario::topics`].
    TopicsId;
    /// Position in [`Scenario::subscriptions`].
    SubscriptionId;
}

impl Scenario {
    pub fn broker(&self, id: BrokerId) -> &Broker {
        &self.brokers[id.index()]
    }

    pub fn group(&self, id: GroupId) -> &ClientGroup {
        &self.groups[id.index()]
    }

    pub fn topic_group(&self, id: TopicsId) -> &TopicGroup {
        &self.topics[id.index()]
    }

    pub fn subscription(&self, id: SubscriptionId) -> &Subscription {
        &self.subscriptions[id.index()]
    }

    /// Calls `visit` for every command, nested ones included, with the stage and life cycle it is
    /// in.
    pub fn each_command<'a>(
        &'a self,
        visit: &mut dyn FnMut(&'a Stage, &'a LifeCycle, &'a Command),
    ) {
        for stage in &self.stages {
            for cycle in &stage.life_cycles {
                each_step(&cycle.steps, &mut |step| visit(stage, cycle, &step.command));
            }
        }
    }

    /// Calls `visit` for every command, nested ones included, for changing.
    pub fn each_command_mut(&mut self, visit: &mut dyn FnMut(&mut Command)) {
        for stage in &mut self.stages {
            for cycle in &mut stage.life_cycles {
                each_step_mut(&mut cycle.steps, visit);
            }
        }
    }
}

fn each_step<'a>(steps: &'a [Step], visit: &mut dyn FnMut(&'a Step)) {
    for step in steps {
        visit(step);
        if let Command::For(repeat) = &step.command {
            each_step(&repeat.steps, visit);
        }
    }
}

pub fn each_step_mut(steps: &mut [Step], visit: &mut dyn FnMut(&mut Command)) {
    for step in steps {
        visit(&mut step.command);
        if let Command::For(repeat) = &mut step.command {
            each_step_mut(&mut repeat.steps, visit);
        }
    }
}

/// One broker as the clients see it: several addresses count as one broker, used in turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broker {
    pub id: String,
    /// `host:port`, or the path of a Unix socket; at least one. Client `i` connects to address
    /// `i mod len`.
    pub addresses: Vec<String>,
    pub transport: Transport,
    pub tls: Tls,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    Tcp,
    Tls,
    /// MQTT over WebSocket; the path of the upgrade request, `/mqtt` by default.
    Ws {
        path: String,
    },
    Wss {
        path: String,
    },
    /// A Unix socket on this machine; the address is its path.
    Unix,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp => write!(f, "TCP"),
            Self::Tls => write!(f, "TLS"),
            Self::Ws { path } => write!(f, "WebSocket, {path}"),
            Self::Wss { path } => write!(f, "WebSocket over TLS, {path}"),
            Self::Unix => write!(f, "Unix socket"),
        }
    }
}

impl Transport {
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls | Self::Wss { .. })
    }
}

/// TLS settings, used when the transport asks for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// PEM file with the roots to trust; `None` trusts the system's.
    pub ca_file: Option<String>,
    /// Accept any server certificate.
    pub insecure: bool,
    /// Name to ask for and to check, when it is not the host of the address.
    pub server_name: Option<String>,
    /// PEM files of the client certificate.
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    /// Offer session resumption (tickets) on reconnects.
    pub resume: bool,
    /// Speak this version only.
    pub version: Option<TlsVersion>,
    /// The cipher suites to offer, by their IANA names; empty for all that are safe.
    pub ciphers: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TlsVersion {
    #[serde(rename = "1.2")]
    V12,
    #[serde(rename = "1.3")]
    V13,
}

/// Clients that behave alike.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientGroup {
    pub id: String,
    /// Client `i` (0-based) has the id `pattern.write(offset + i)`.
    pub client_ids: Pattern,
    pub offset: u64,
    /// Clients of the whole run, over all agents.
    pub count: u64,
    /// Which of them run here.
    pub here: Slice,
    pub version: Version,
    /// Whether `--scale` changes `count`; off for the few publishers of a fan-out, say.
    pub scales: bool,
}

/// The clients of a group that one process runs: `first, first + step, ...`, `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub first: u64,
    pub step: u64,
    pub count: u64,
}

impl Slice {
    pub fn whole(count: u64) -> Self {
        Self { first: 0, step: 1, count }
    }

    /// Part `part` of `parts`: every `parts`-th client, so that ramps and pairs stay spread evenly.
    pub fn part(count: u64, part: u64, parts: u64) -> Self {
        debug_assert!(part < parts);
        let len = if count > part { (count - part - 1) / parts + 1 } else { 0 };
        Self { first: part, step: parts, count: len }
    }

    /// The index in the whole group of the `local`-th client here.
    pub fn global(&self, local: u64) -> u64 {
        self.first + local * self.step
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Version {
    #[serde(rename = "3.1")]
    V31,
    #[serde(rename = "3.1.1")]
    V311,
    #[default]
    #[serde(rename = "5")]
    V5,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(into = "u8")]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl TryFrom<u8> for QoS {
    type Error = String;

    fn try_from(value: u8) -> Result<Self, String> {
        match value {
            0 => Ok(Self::AtMostOnce),
            1 => Ok(Self::AtLeastOnce),
            2 => Ok(Self::ExactlyOnce),
            _ => Err(format!("QoS must be 0, 1 or 2, got {value}")),
        }
    }
}

impl From<QoS> for u8 {
    fn from(qos: QoS) -> Self {
        qos as Self
    }
}

/// Topic `i` (0-based) is `names.write(offset + i)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicGroup {
    pub id: String,
    pub names: Pattern,
    pub offset: u64,
    pub count: u64,
    pub scales: bool,
}

/// What a client may subscribe to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subscription {
    pub id: String,
    pub filters: Filters,
    /// Which of the filters each client of the subscribing group takes.
    pub assign: Assign,
    /// The subscriber stands for the service behind the broker: its latency is "routed" latency.
    pub routed: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filters {
    /// The exact names of a topic group, with this in front (`$share/group/` or nothing).
    Topics { topics: TopicsId, prefix: String },
    /// Filters of their own (wildcards, `$share/...`): filter `i` is `pattern.write(offset + i)`.
    Pattern { pattern: Pattern, offset: u64, count: u64, scales: bool },
}

/// One step of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    pub id: String,
    /// End the stage at this time, even if life cycles have more to do. `None`: when they are
    /// done.
    pub duration_us: Option<u64>,
    /// Latency and rates of this stage are the headline of the report; `--duration` sets its
    /// length.
    pub measured: bool,
    /// How long the author believes it takes; running over is reported, nothing more.
    pub expected_us: Option<u64>,
    pub life_cycles: Vec<LifeCycle>,
}

/// The length of a stage that the user ends, with Ctrl-C.
pub const FOR_EVER_US: u64 = 365 * 86_400_000_000;

impl Stage {
    /// Whether the stage is one load from its beginning to its end, so that it can be begun earlier
    /// and ended later without being another one: every client that does something does so until it
    /// is over.
    pub fn is_steady(&self) -> bool {
        let clients =
            || self.life_cycles.iter().filter(|cycle| matches!(cycle.who, Who::Clients(_)));
        let goes_on = |cycle: &LifeCycle| match cycle.steps.first().map(|step| &step.command) {
            Some(Command::Publish(publish)) => publish.count.is_none(),
            Some(Command::For(repeat)) => repeat.times.is_none(),
            _ => false,
        };
        let has_end = self.duration_us.is_some_and(|us| us < FOR_EVER_US);
        self.measured && has_end && self.has_client_steps() && clients().all(goes_on)
    }

    pub fn has_client_steps(&self) -> bool {
        self.life_cycles.iter().any(|cycle| matches!(cycle.who, Who::Clients(_)))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LifeCycle {
    pub id: String,
    pub who: Who,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Who {
    /// Each client of the group runs the steps.
    Clients(GroupId),
    /// The run itself does, once: only `Delay`, `For`, timers and `Fault` are allowed.
    Conductor,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub command: Command,
}

impl From<Command> for Step {
    fn from(command: Command) -> Self {
        Self { command }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    Connect(Connect),
    Disconnect(Disconnect),
    Publish(Publish),
    Subscribe(Subscribe),
    /// From all filters that the client took of these subscriptions.
    Unsubscribe(Vec<SubscriptionId>),
    Receive(Receive),
    For(Repeat),
    Delay(Delay),
    /// Starts the named stopwatch of this client; `StopTimer` records it under that name.
    StartTimer(String),
    StopTimer(String),
    /// Stop reading the socket for so long: a stuck consumer.
    Stall {
        duration_us: u64,
    },
    Fault(Fault),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Connect {
    /// Client `i` takes broker `i mod len`; never empty.
    pub brokers: Vec<BrokerId>,
    /// From the first SYN to the CONNACK.
    pub timeout_us: u64,
    /// 0 turns keep-alive off.
    pub keep_alive_secs: u16,
    pub clean_start: bool,
    /// MQTT 5 only. For 3.x, `clean_start = false` is a session that does not expire.
    pub session_expiry_secs: u32,
    pub receive_max: Option<u16>,
    /// Written with the client's index in its group.
    pub username: Option<Pattern>,
    pub password: Option<Pattern>,
    pub will: Option<Will>,
    pub user_properties: Vec<(String, String)>,
    /// Attempts after the first that failed, before the client counts as failed.
    pub retries: u32,
    pub retry_interval_us: u64,
    /// Whether each round of this step is another client to the broker: the client's id, `-`, and
    /// how often the client has begun to connect.
    pub fresh_id: bool,
    /// Whether to connect again, and subscribe again if the session is gone, after losing the
    /// connection without having closed it.
    pub reconnect: Option<Reconnect>,
    /// Where to go when an address does not serve.
    #[serde(default)]
    pub failover: Failover,
}

/// How a client uses several addresses of its broker (a cluster, of which one node serves).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Failover {
    /// The same address again.
    Off,
    /// The next address, or a Server Reference that is one of the addresses.
    #[default]
    Listed,
    /// Any Server Reference, else the next address.
    Any,
}

impl Default for Connect {
    fn default() -> Self {
        Self {
            brokers: vec![BrokerId(0)],
            timeout_us: 60_000_000,
            keep_alive_secs: 60,
            clean_start: true,
            session_expiry_secs: 0,
            receive_max: None,
            username: None,
            password: None,
            will: None,
            user_properties: Vec::new(),
            retries: 0,
            retry_interval_us: 1_000_000,
            fresh_id: false,
            reconnect: None,
            failover: Failover::default(),
        }
    }
}

/// Waits `delay_us` plus a random part of `jitter_us`, doubling up to `delay_max_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconnect {
    pub delay_us: u64,
    pub delay_max_us: u64,
    pub jitter_us: u64,
}

impl Default for Reconnect {
    fn default() -> Self {
        Self { delay_us: 100_000, delay_max_us: 10_000_000, jitter_us: 100_000 }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Will {
    pub topics: TopicsId,
    pub assign: Assign,
    pub payload: Payload,
    pub qos: QoS,
    pub retain: bool,
    pub delay_secs: u32,
    pub expiry_secs: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disconnect {
    /// DISCONNECT, then close: the will is not sent.
    #[default]
    Message,
    /// DISCONNECT with reason 0x04 (MQTT 5), which sends the will; as `Close` for 3.x.
    MessageWithWill,
    /// Close the socket without a word.
    Close,
    /// Go silent with the socket open until the broker closes it for the missing keep-alive.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Publish {
    pub topics: TopicsId,
    /// Which topics of the group a client publishes to.
    pub assign: Assign,
    /// In what order it walks them, message by message.
    pub order: Order,
    pub qos: QoS,
    pub retain: bool,
    pub payload: Payload,
    pub expiry_secs: Option<u32>,
    /// Messages per client; `None` publishes until the stage ends, which then has a duration.
    pub count: Option<u64>,
    pub pace: Pace,
    /// MQTT 5: every message is a request, with correlation data and, as its response topic, the
    /// client's own of these: client `i` has topic `i mod count`.
    #[serde(default)]
    pub reply_to: Option<TopicsId>,
    /// MQTT 5: send the name once and an alias afterwards, as far as the broker allows.
    pub topic_alias: bool,
    /// MQTT 5, with every message.
    pub user_properties: Vec<(String, String)>,
    /// MQTT 5, with every message.
    #[serde(default)]
    pub content_type: Option<String>,
    /// MQTT 5, with every message: 0 for bytes, 1 for UTF-8.
    #[serde(default)]
    pub payload_format: Option<u8>,
}

impl Publish {
    /// Whether its messages have properties that a broker is to forward.
    pub fn has_properties(&self) -> bool {
        self.expiry_secs.is_some()
            || self.reply_to.is_some()
            || self.content_type.is_some()
            || self.payload_format.is_some()
            || !self.user_properties.is_empty()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    #[default]
    RoundRobin,
    Random,
}

/// When a client sends its next message.
///
/// With a rate the loop is open: message `k` is due at `start + phase + k / rate` whatever the
/// broker does, and latency counts from then. Without a rate the loop is closed: as soon as the
/// window and the socket allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    pub rate: Option<Rate>,
    pub phase: Phase,
    /// Unacknowledged QoS 1 and 2 messages per client, at most; `None` is bounded by the broker's
    /// receive maximum and the packet identifiers only. In an open loop a message that waits
    /// for the window keeps its due time.
    pub in_flight: Option<u16>,
}

/// Where in its first interval a client sends its first message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Client `i` of `n` at `i / n` of the interval: an even stream.
    #[default]
    Spread,
    /// All at once: the sharpest burst.
    Together,
}

/// `count` per `per_us` microseconds and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    pub count: u64,
    pub per_us: u64,
}

impl Rate {
    pub fn per_second(count: u64) -> Self {
        Self { count, per_us: 1_000_000 }
    }

    pub fn per_sec(self) -> f64 {
        self.count as f64 * 1e6 / self.per_us as f64
    }

    /// `factor` times as fast, to a millionth.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        const PARTS: u64 = 1_000_000;
        let per_us = (self.per_us as f64 * PARTS as f64 / factor).round() as u64;
        Self { count: self.count.saturating_mul(PARTS), per_us: per_us.max(1) }
    }

    /// When message `k` (0-based) is due, in microseconds after the start. Exact for any `k`.
    pub fn due_us(self, k: u64) -> u64 {
        (u128::from(k) * u128::from(self.per_us) / u128::from(self.count)) as u64
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subscribe {
    pub to: Vec<SubscriptionId>,
    pub qos: QoS,
    /// Hold back the acknowledgement of each received message for so long: a slow consumer.
    pub ack_delay_us: u64,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// MQTT 5: answer each message that has a response topic, with its payload and its correlation
    /// data, at this QoS.
    #[serde(default)]
    pub respond: Option<QoS>,
    /// 0, 1 or 2 as in MQTT 5.
    pub retain_handling: u8,
    /// MQTT 5 subscription identifier.
    pub identifier: Option<u32>,
}

/// Wait until so many messages have come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receive {
    /// Of this subscription; `None`: of any.
    pub from: Option<SubscriptionId>,
    pub count: u64,
    /// Only messages whose whole payload matches this regular expression count; `None`: all do.
    pub message_pattern: Option<String>,
    /// Give up, as a failure of this client, after so long; `None` waits for ever.
    pub timeout_us: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// `None` repeats until the stage ends, which then has a duration.
    pub times: Option<u64>,
    /// Start the rounds at this pace (open loop); `None`: back to back.
    pub rate: Option<Rate>,
    pub steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    pub duration_us: u64,
    pub spread: Spread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Every client waits the whole time.
    None,
    /// Client `i` of the group's `n` waits `i / (n - 1)` of it: a linear ramp.
    Linear,
    /// The other way round: client `n - 1` goes first.
    LinearDown,
    /// Each client waits a part of it, evenly distributed; the same one in every run.
    Random,
}

impl Delay {
    /// How long client `i` of `n` (over all agents) waits.
    pub fn wait_us(&self, i: u64, n: u64) -> u64 {
        let part = |i: u64| match n {
            0 | 1 => 0,
            _ => (u128::from(self.duration_us) * u128::from(i) / u128::from(n - 1)) as u64,
        };
        match self.spread {
            Spread::None => self.duration_us,
            Spread::Linear => part(i),
            Spread::LinearDown => part(n.saturating_sub(1 + i)),
            Spread::Random => ((u128::from(mixed(i)) * u128::from(self.duration_us)) >> 64) as u64,
        }
    }
}

/// A number that looks like a random one (splitmix64).
fn mixed(i: u64) -> u64 {
    let z = i.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// What a run must show to count as passed. Latency is judged on end-to-end of the measured stages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expect {
    /// Copies that each message should make, on average over all publishers, as the author
    /// computed it: checked against what the subscriptions say before the run starts.
    pub copies_per_message: Option<f64>,
    pub lost_max: u64,
    /// `None` for no limit (at-least-once across a crash may repeat).
    pub duplicated_max: Option<u64>,
    pub reordered_max: Option<u64>,
    pub connect_failures_max: u64,
    /// Upper limits by percentile, in microseconds: `"99" -> 10_000`.
    pub latency_max_us: BTreeMap<String, u64>,
    /// Limits of any other figure.
    pub metrics: Vec<Threshold>,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            copies_per_message: None,
            lost_max: 0,
            duplicated_max: Some(0),
            reordered_max: Some(0),
            connect_failures_max: 0,
            latency_max_us: BTreeMap::new(),
            metrics: Vec::new(),
        }
    }
}

/// Find the highest total publish rate at which `percentile` of the end-to-end latency stays below
/// `latency_max_us` and nothing piles up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    #[serde(default = "ninety_nine")]
    pub percentile: f64,
    #[serde(rename = "latency_max", with = "units::micros")]
    pub latency_max_us: u64,
    /// Messages per second of all publishers together.
    #[serde(deserialize_with = "units::whole")]
    pub rate_min: u64,
    #[serde(deserialize_with = "units::whole")]
    pub rate_max: u64,
    /// How long each rate is held.
    #[serde(default = "ten_seconds", rename = "step", with = "units::micros")]
    pub step_us: u64,
    /// Stop when the bounds are this close, as a share of the rate.
    #[serde(default = "one_in_twenty")]
    pub precision: f64,
}

fn ninety_nine() -> f64 {
    99.0
}

fn ten_seconds() -> u64 {
    10_000_000
}

fn one_in_twenty() -> f64 {
    0.05
}
