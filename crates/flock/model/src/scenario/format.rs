//! The native scenario file as serde sees it. `docs/flock/scenario-format.md` is its manual and
//! `docs/flock/scenario.schema.json` its schema; a test holds the three together.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use toml::Spanned;

use crate::model::{
    self, Assign, Directions, Failover, Mechanism, Order, Phase, QoS, Refuse, Search, SinkTls, Tls,
    Version, Which,
};

use super::units::{Count, PerTime, PerTimeOrMax, Ramp, Size, Time};

/// A whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub id: Spanned<String>,
    pub title: String,
    #[serde(default)]
    pub about: About,
    /// Names that `${name}` stands for in the rest of the file, with their defaults.
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "read before the parameters are filled in; listed here to be known"
    )]
    pub params: BTreeMap<String, String>,
    #[serde(default)]
    #[expect(
        dead_code,
        reason = "read before the parameters are filled in; listed here to be known"
    )]
    pub variant: Vec<Variant>,
    /// The stages come from this HiveMQ Swarm file instead.
    pub swarm: Option<Spanned<String>>,
    pub seed: Option<u64>,
    pub drain: Option<Time>,
    pub warm_up: Option<Spanned<Time>>,
    pub cool_down: Option<Spanned<Time>>,
    #[serde(default)]
    pub brokers_distinct: bool,
    #[serde(default)]
    pub source_addresses: Vec<Spanned<String>>,
    #[serde(default)]
    pub connect: Connect,
    #[serde(default)]
    pub brokers: BTreeMap<String, Spanned<Broker>>,
    #[serde(default)]
    pub clients: BTreeMap<String, Spanned<Clients>>,
    #[serde(default)]
    pub topics: BTreeMap<String, Spanned<Topics>>,
    #[serde(default)]
    pub subscriptions: BTreeMap<String, Spanned<Subscription>>,
    #[serde(default)]
    pub sink: BTreeMap<String, Spanned<Sink>>,
    #[serde(default)]
    pub stage: Vec<Spanned<Stage>>,
    #[serde(default)]
    pub expect: Expect,
    pub search: Option<Search>,
    #[serde(default)]
    pub published: Vec<Published>,
    /// Options of `flock run` with which a machine of two cores can carry it.
    pub laptop: Option<String>,
}

/// What a reader should know about a scenario; shown by `flock show`, not interpreted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct About {
    pub family: String,
    pub summary: String,
    /// Which report or repository it comes from.
    pub source: String,
    /// The hardware and set-up of the published runs.
    pub setup: String,
    /// Values that the source does not state and we chose.
    pub chosen: Vec<String>,
    /// What is worth knowing, such as contradictions in the source and how they were read.
    pub notes: Vec<String>,
}

/// The same scenario under another id with other parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Variant {
    pub id: String,
    pub title: Option<String>,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    #[serde(default)]
    pub published: Vec<Published>,
    /// Goes over the file's.
    pub laptop: Option<String>,
}

/// A figure that somebody published for this scenario. Absent means not stated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Published {
    pub system: String,
    /// vCPUs and nodes it ran on, in words.
    pub hardware: String,
    pub vcpus: Option<f64>,
    pub published_per_sec: Option<f64>,
    pub received_per_sec: Option<f64>,
    pub connects_per_sec: Option<f64>,
    pub connections: Option<f64>,
    /// From the first to the last client that connected.
    pub connect_secs: Option<f64>,
    pub average_ms: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p75_ms: Option<f64>,
    pub p90_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
    /// From a publish to its acknowledgement.
    pub ack_average_ms: Option<f64>,
    pub ack_p95_ms: Option<f64>,
    /// Per cent of the whole machine.
    pub cpu_average_percent: Option<f64>,
    pub cpu_max_percent: Option<f64>,
    /// Decimal megabytes.
    pub memory_average_mb: Option<f64>,
    pub memory_max_mb: Option<f64>,
    /// Decimal kilobytes.
    pub memory_per_connection_kb: Option<f64>,
    /// Which messages the figures are of; absent for all.
    pub part: Option<Part>,
    pub note: String,
    /// Of a message of the scenario, for rates in bytes.
    #[serde(skip)]
    pub payload_bytes: Option<f64>,
}

/// A part of the messages of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    #[serde(rename = "qos 0")]
    Qos0,
    #[serde(rename = "qos 1")]
    Qos1,
    #[serde(rename = "qos 2")]
    Qos2,
    #[serde(rename = "routed")]
    Routed,
}

impl Part {
    /// As in a file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qos0 => "qos 0",
            Self::Qos1 => "qos 1",
            Self::Qos2 => "qos 2",
            Self::Routed => "routed",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Broker {
    #[serde(deserialize_with = "one_or_many")]
    pub addresses: Vec<String>,
    #[serde(default)]
    pub transport: Transport,
    /// Path of the WebSocket upgrade.
    pub path: Option<String>,
    pub tls: Option<Tls>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    #[default]
    Tcp,
    Tls,
    Ws,
    Wss,
    Unix,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Clients {
    pub count: Count,
    pub id: Option<Spanned<String>>,
    #[serde(default)]
    pub offset: u64,
    pub version: Option<Version>,
    #[serde(default = "yes")]
    pub scales: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topics {
    pub count: Option<Count>,
    pub names: Spanned<String>,
    #[serde(default)]
    pub offset: u64,
    #[serde(default = "yes")]
    pub scales: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subscription {
    /// Either a topic group, with a share name if it is shared ...
    pub topics: Option<Spanned<String>>,
    pub share: Option<String>,
    /// ... or filters of their own.
    pub filter: Option<Spanned<String>>,
    pub count: Option<Count>,
    pub offset: Option<u64>,
    pub scales: Option<bool>,
    #[serde(default)]
    pub assign: Assign,
    #[serde(default)]
    pub routed: bool,
}

/// The keys of both kinds; those of the other one are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sink {
    pub kind: SinkKind,
    /// Topic groups; absent for all that are published to.
    pub topics: Option<Spanned<OneOrMany>>,
    pub drain: Option<Time>,
    pub servers: Option<Spanned<OneOrMany>>,
    pub topic: Option<Spanned<String>>,
    pub tls: Option<Spanned<SinkTls>>,
    pub mechanism: Option<Spanned<Mechanism>>,
    pub username: Option<Spanned<String>>,
    pub password: Option<Spanned<String>>,
    pub listen: Option<Spanned<String>>,
    pub path: Option<Spanned<String>>,
    pub delay: Option<Spanned<Time>>,
    pub refuse: Option<Spanned<Refuse>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SinkKind {
    Kafka,
    Webhook,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stage {
    pub name: String,
    pub duration: Option<Time>,
    #[serde(default)]
    pub measured: bool,
    pub expected: Option<Time>,
    #[serde(rename = "do", default)]
    pub cycles: Vec<Spanned<Cycle>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cycle {
    /// The group that does it; absent for the conductor (faults).
    pub clients: Option<Spanned<String>>,
    pub steps: Vec<Spanned<Step>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    Connect(Box<Connect>),
    Disconnect(Disconnect),
    Publish(Box<Publish>),
    Subscribe(Subscribe),
    /// The names of subscriptions.
    Unsubscribe(Spanned<OneOrMany>),
    Receive(Receive),
    Repeat(Repeat),
    Delay(Time),
    Spread(Time),
    SpreadDown(Time),
    SpreadRandom(Time),
    StartTimer(String),
    StopTimer(String),
    Stall(Time),
    Fault(Fault),
}

/// Everything optional: a step's values go over the file's `[connect]`, which go over the defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Connect {
    pub ramp: Option<Ramp>,
    pub brokers: Option<Spanned<OneOrMany>>,
    pub timeout: Option<Time>,
    pub keep_alive: Option<Spanned<Time>>,
    pub clean_start: Option<bool>,
    pub session_expiry: Option<Spanned<Time>>,
    pub receive_max: Option<u16>,
    pub username: Option<Spanned<String>>,
    pub password: Option<Spanned<String>>,
    /// A file of names and passwords, a line for each client.
    pub credentials: Option<Spanned<String>>,
    pub will: Option<Will>,
    pub user_properties: Option<BTreeMap<String, String>>,
    pub retries: Option<u32>,
    pub retry_interval: Option<Spanned<Time>>,
    pub fresh_id: Option<bool>,
    pub reconnect: Option<bool>,
    pub failover: Option<Failover>,
    /// Of groups without one, in `[connect]`.
    pub version: Option<Version>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Will {
    pub topics: Spanned<String>,
    #[serde(default)]
    pub assign: Assign,
    pub payload: Option<Payload>,
    #[serde(default)]
    pub qos: QoS,
    #[serde(default)]
    pub retain: bool,
    pub delay: Option<Spanned<Time>>,
    pub expiry: Option<Spanned<Time>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Disconnect {
    pub ramp: Option<Ramp>,
    pub how: model::Disconnect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Publish {
    pub to: Spanned<String>,
    #[serde(default)]
    pub assign: Assign,
    pub order: Option<Spanned<Order>>,
    #[serde(default)]
    pub qos: QoS,
    #[serde(default)]
    pub retain: bool,
    pub payload: Option<Payload>,
    pub expiry: Option<Spanned<Time>>,
    pub count: Option<Count>,
    /// Per client.
    pub rate: Option<Spanned<PerTimeOrMax>>,
    /// Of all clients of the group together, before scaling.
    pub total_rate: Option<Spanned<PerTimeOrMax>>,
    pub phase: Option<Spanned<Phase>>,
    pub in_flight: Option<Spanned<InFlight>>,
    /// Messages are requests, and this is where their answers are wanted.
    pub reply_to: Option<Spanned<String>>,
    #[serde(default)]
    pub topic_alias: bool,
    pub user_properties: Option<BTreeMap<String, String>>,
    pub content_type: Option<String>,
    pub payload_format: Option<Spanned<u8>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Subscribe {
    pub to: Spanned<OneOrMany>,
    #[serde(default)]
    pub qos: QoS,
    pub ack_delay: Option<Time>,
    #[serde(default)]
    pub no_local: bool,
    #[serde(default)]
    pub retain_as_published: bool,
    /// Answer requests, at this QoS.
    pub respond: Option<QoS>,
    #[serde(default)]
    pub retain_handling: u8,
    pub identifier: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Receive {
    pub from: Option<Spanned<String>>,
    pub count: Count,
    pub pattern: Option<String>,
    pub timeout: Option<Time>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Repeat {
    pub times: Option<Count>,
    pub rate: Option<PerTime>,
    pub steps: Vec<Spanned<Step>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fault {
    Kill(Spanned<Whom>),
    Stop(Spanned<Whom>),
    Pause(Spanned<Whom>),
    Resume(Spanned<Whom>),
    Restart(Spanned<Whom>),
    Cut(Spanned<Cut>),
    Mend(Spanned<Whom>),
}

/// A broker's name, or `{ node = 1 }`, `{ node = "active" }`, `{ engine = 2 }`; with `for` where
/// the fault may be over by itself.
#[derive(Clone, Debug)]
pub(super) enum Whom {
    Broker(String),
    Member(Member),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Member {
    pub node: Option<Which>,
    pub engine: Option<u32>,
    #[serde(rename = "for")]
    pub lasting: Option<Time>,
}

/// The connections of some clients, or the links of a node or an engine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cut {
    pub clients: Option<Spanned<String>>,
    pub share: Option<Spanned<f64>>,
    pub node: Option<Which>,
    pub engine: Option<u32>,
    pub directions: Option<Directions>,
    #[serde(rename = "for")]
    pub lasting: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Expect {
    pub copies: Option<f64>,
    pub lost_max: Option<u64>,
    pub duplicated_max: Option<AnyOr>,
    pub reordered_max: Option<AnyOr>,
    pub connect_failures_max: Option<u64>,
    pub latency_max: BTreeMap<String, Time>,
    /// By name, limits like `<= 10ms`.
    pub metrics: BTreeMap<String, Spanned<String>>,
}

/// A limit, or `"any"`.
#[derive(Clone, Copy, Debug)]
pub(super) enum AnyOr {
    Any,
    Max(u64),
}

/// Messages in flight; text is allowed so that a parameter can stand for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight(pub u16);

/// A name, or a list of names.
#[derive(Clone, Debug)]
pub(super) struct OneOrMany(pub Vec<String>);

/// `16`, `"8K"`, or `{ text = ".." }`, `{ random = "1K" }`, `{ random_from = 16, random_to = 512
/// }`.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    Filler(Size),
    Table(PayloadTable),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PayloadTable {
    pub bytes: Option<Size>,
    pub text: Option<String>,
    pub random: Option<Size>,
    pub random_from: Option<Size>,
    pub random_to: Option<Size>,
    /// Leave the first bytes alone: no latency, no integrity.
    pub unstamped: bool,
}

fn yes() -> bool {
    true
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    OneOrMany::deserialize(deserializer).map(|names| names.0)
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = OneOrMany;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name or a list of names")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<OneOrMany, E> {
                Ok(OneOrMany(vec![name.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMany, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                if names.is_empty() {
                    return Err(de::Error::custom("the list is empty"));
                }
                Ok(OneOrMany(names))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

impl<'de> Deserialize<'de> for Whom {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Whom;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a broker's name, or a table like { node = 1 } or { engine = 1 }")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<Whom, E> {
                Ok(Whom::Broker(name.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Whom, A::Error> {
                Member::deserialize(de::value::MapAccessDeserializer::new(map)).map(Whom::Member)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Payload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size like 16 or \"8K\", or a table like { text = \"..\" }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Payload, E> {
                super::units::size(text).map(|size| Payload::Filler(Size(size))).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Payload, E> {
                self.visit_str(&number.to_string())
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Payload, A::Error> {
                PayloadTable::deserialize(de::value::MapAccessDeserializer::new(map))
                    .map(Payload::Table)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for InFlight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Count(count) = Count::deserialize(deserializer)?;
        u16::try_from(count).map(Self).map_err(|_| {
            de::Error::custom(format!("`in_flight` must be at most 65,535, got {count}"))
        })
    }
}

impl<'de> Deserialize<'de> for AnyOr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Limit;
        impl Visitor<'_> for Limit {
            type Value = AnyOr;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or \"any\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<AnyOr, E> {
                match text {
                    "any" => Ok(AnyOr::Any),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<AnyOr, E> {
                u64::try_from(number)
                    .map(AnyOr::Max)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Limit)
    }
}
