//! The file of streams, targets and rules, in TOML.
//!
//! ```toml
//! [[streams]]
//! name = "plants"
//! filters = ["plants/#"]
//! bytes_max = "10 GiB"
//!
//! [[targets]]
//! name = "alarms"
//! type = "http"                 # or "kafka"
//! url = "https://example.com/alarms"
//!
//! [[rules]]
//! name = "overheated"
//! filter = "plants/+/motor"
//! target = "alarms"
//!
//! [[rules.conditions]]
//! key = "data.celsius"
//! operator = "NumberGreaterThan"
//! value = 80
//! ```
//!
//! `docs/use/rules.md` has all keys. A key that is unknown, missing or wrong refuses the whole
//! file, with its line and column. Files that are named in it, such as those of passwords, are not
//! read here.

mod checks;
mod entries;
mod reader;
mod rules;
mod streams;
mod targets;

use std::collections::BTreeSet;

use crate::dispatch::DispatchRules;
use crate::rule::{Rule, check_name};

pub use entries::{Entry, Kind, Tenant, entries, stored, stored_text, text};
pub use reader::Problem;
use reader::{Origin, Reader, Table};

/// Bytes of a file.
pub const FILE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Streams of a file.
pub const STREAMS_MAX: usize = 1_000;
/// Targets of a file.
pub const TARGETS_MAX: usize = 1_000;
/// Rules of a file.
pub const RULES_MAX: usize = 1_000;
/// Filters of a stream.
pub const FILTERS_MAX: usize = 100;
/// Servers of a Kafka target, and permitted networks of a target.
pub const SERVERS_MAX: usize = 100;
/// Delays of a rule between attempts.
pub const RETRIES_MAX: usize = 100;
/// Problems of one file that are reported.
pub const PROBLEMS_MAX: usize = 100;
/// The namespace of clients that select none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// What a file defines. Names are unique, and each name that is referred to is there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Definitions {
    pub streams: Vec<StreamSpec>,
    pub targets: Vec<TargetSpec>,
    pub rules: Vec<RuleSpec>,
}

/// A stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSpec {
    pub name: String,
    pub namespace: String,
    /// Without any it stores dead letters only.
    pub filters: Vec<String>,
    /// Messages of a lower QoS are not stored: 0 to 2.
    pub qos_min: u8,
    /// Some: only messages with this retain flag.
    pub retained: Option<bool>,
    /// Messages with a larger payload are not stored.
    pub payload_bytes_max: Option<u64>,
    pub durability: StreamDurability,
    /// Stored messages that are older are deleted.
    pub age_max_secs: Option<u64>,
    pub bytes_max: Option<u64>,
    pub messages_max: Option<u64>,
    /// Bytes of one of its files: messages are deleted file by file.
    pub file_bytes: u64,
    /// Delete what all consumers have passed.
    pub consumed: bool,
    pub full: WhenFull,
}

/// When a message of a stream is acknowledged to its publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamDurability {
    /// The operating system has it: it outlives the end of the broker.
    Disk,
    /// It outlives a loss of power.
    #[default]
    Fsync,
}

/// What a stream does at its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    #[default]
    DropOldest,
    /// Publishes are refused.
    Reject,
}

/// Where events are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    pub name: String,
    /// The namespace whose users have defined it. None: an operator of the broker has.
    pub namespace: Option<String>,
    /// Networks that are not public, and that the target may use. As written.
    pub networks: Vec<String>,
    pub kind: TargetKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    Http(HttpSpec),
    Kafka(KafkaSpec),
}

/// An HTTP endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSpec {
    pub url: String,
    /// Headers of each request.
    pub headers: Vec<HeaderSpec>,
    pub tls: TlsSpec,
    pub validation: HttpValidation,
    /// The secret that signs requests.
    pub signing_secret: Option<SecretSpec>,
    /// Status codes that refuse a message. None: the usual ones.
    pub refused_statuses: Option<Vec<u16>>,
    pub requests_max: usize,
    pub timeout_secs: u64,
}

/// A header that a target adds to each request or record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderSpec {
    pub name: String,
    pub value: HeaderValueSpec,
}

#[derive(Clone, PartialEq, Eq)]
pub enum HeaderValueSpec {
    Text(String),
    /// The first line of this file.
    File(String),
    /// What an event has at this key, as conditions have them.
    Path(String),
}

/// A text may be a secret.
impl std::fmt::Debug for HeaderValueSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(***)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Path(key) => f.debug_tuple("Path").field(key).finish(),
        }
    }
}

/// What an endpoint has to answer before it gets the first event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HttpValidation {
    #[default]
    None,
    /// `origin`: the DNS name of this broker.
    CloudEvents {
        origin: String,
    },
    EventGrid,
}

/// Kafka, and what speaks its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KafkaSpec {
    /// The first servers to ask, as `host:port`.
    pub servers: Vec<String>,
    pub client_id: String,
    /// Headers of each record. None of them is in a file.
    pub headers: Vec<HeaderSpec>,
    pub compression: KafkaCompression,
    /// None: no TLS.
    pub tls: Option<TlsSpec>,
    pub sasl: Option<SaslSpec>,
    pub record_bytes_max: u64,
    pub linger_ms: u64,
    pub timeout_secs: u64,
    pub delivery_timeout_secs: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KafkaCompression {
    #[default]
    None,
    Gzip,
    Lz4,
    Zstd,
}

/// A password, a token or the like.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSpec {
    /// The first line of this file.
    File(String),
    /// Written into the definition. Only an API does so.
    Text(String),
}

/// A secret is not shown.
impl std::fmt::Debug for SecretSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Text(_) => f.write_str("Text(***)"),
        }
    }
}

/// Files of TLS, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSpec {
    /// None: the authorities of the system.
    pub ca: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
}

/// A SASL login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaslSpec {
    Password {
        mechanism: SaslMechanism,
        username: String,
        password: SecretSpec,
    },
    /// OAUTHBEARER with a token that something else renews.
    Token {
        token: SecretSpec,
    },
    /// OAUTHBEARER with tokens of an identity provider.
    TokenEndpoint(TokenEndpointSpec),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslMechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenEndpointSpec {
    pub url: String,
    pub client_id: String,
    pub client_secret: SecretSpec,
    pub scope: Option<String>,
    pub ca: Option<String>,
}

/// A rule with all that its consumer has to know.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    pub rule: Rule,
    /// The name of its stream.
    pub stream: String,
    pub start: Start,
    /// The name of the stream of messages that could not be delivered.
    pub dead_letter: Option<String>,
    /// Skip messages that have expired.
    pub skip_expired: bool,
    pub dispatch: DispatchRules,
    pub order: Order,
}

/// Which messages of its stream a new rule reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Those that are stored from then on.
    #[default]
    New,
    /// All that are stored.
    Beginning,
}

/// Which messages of a rule stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Those of the same publisher and topic.
    Topic,
    None,
}

impl RuleSpec {
    pub fn name(&self) -> &str {
        self.rule.name()
    }
}

impl Definitions {
    pub fn stream(&self, name: &str) -> Option<&StreamSpec> {
        self.streams.iter().find(|stream| stream.name == name)
    }

    /// The target of a rule.
    pub fn target_of(&self, rule: &Rule) -> Option<&TargetSpec> {
        self.target(&rule.target()?.name)
    }

    pub fn target(&self, name: &str) -> Option<&TargetSpec> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// What is allowed, and is hardly meant.
    pub fn notes(&self) -> Vec<String> {
        checks::notes(self)
    }
}

/// Reads a file.
///
/// # Errors
///
/// All problems of the file, in their order.
pub fn parse(text: &str) -> Result<Definitions, Vec<Problem>> {
    reader::read(text, Origin::File, |reader, root| file(reader, root, &Definitions::default()))
}

/// Reads what an API has defined in addition to a file: entries with names of their own, which may
/// refer to those of the file. They have secrets in place of names of files, and grant no network.
/// Returns what is in `text` only.
///
/// # Errors
///
/// All problems of the text, in their order.
pub fn parse_more(text: &str, base: &Definitions) -> Result<Definitions, Vec<Problem>> {
    reader::read(text, Origin::Api, |reader, root| file(reader, root, base))
}

const KEYS: [&str; 3] = ["streams", "targets", "rules"];

fn file(reader: &mut Reader<'_>, root: &Table<'_>, base: &Definitions) -> Definitions {
    reader.check_keys(root, &KEYS);
    let streams = reader.entries(root, "streams", STREAMS_MAX);
    let known = base.streams.iter().map(|own| &*own.name).collect();
    let streams = named(reader, streams, &known, streams::stream);
    let targets = reader.entries(root, "targets", TARGETS_MAX);
    let known = base.targets.iter().map(|own| &*own.name).collect();
    let targets = named(reader, targets, &known, targets::target);
    let rules = reader.entries(root, "rules", RULES_MAX);
    let known = rules::Known::new(&streams, &targets, base);
    let names = base.rules.iter().map(RuleSpec::name).collect();
    let read = |reader: &mut Reader<'_>, table: &Table<'_>, name| known.rule(reader, table, name);
    let rules = named(reader, rules, &names, read);
    checks::check_dead_letters(reader, &rules, &streams, base);
    Definitions { streams: streams.values(), targets: targets.values(), rules: rules.values() }
}

/// The entries of a list.
struct Named<'v, T> {
    /// Those that could be read.
    entries: Vec<(Table<'v>, T)>,
    /// Of all.
    names: BTreeSet<String>,
}

impl<T> Named<'_, T> {
    fn values(self) -> Vec<T> {
        self.entries.into_iter().map(|(_, value)| value).collect()
    }
}

/// Reads the entries of a list, whose names must be unique. `known`: names of the file that these
/// are added to.
fn named<'v, T>(
    reader: &mut Reader<'_>,
    tables: Vec<Table<'v>>,
    known: &BTreeSet<&str>,
    read: impl Fn(&mut Reader<'_>, &Table<'v>, String) -> Option<T>,
) -> Named<'v, T> {
    let mut all = Named { entries: Vec::new(), names: BTreeSet::new() };
    for table in tables {
        let name = reader.required_text(&table, "name");
        if table.get("name").is_some_and(|value| value.get_ref().is_str()) {
            if let Err(error) = check_name("name", &name) {
                reader.problem_at(&table, error.key, error.detail);
            } else if known.contains(&*name) {
                let detail = format!("'{name}' is defined in the file of rules: use another name");
                reader.problem_at(&table, "name", detail);
            } else if !all.names.insert(name.clone()) {
                let detail = format!("'{name}' is used twice: names must be unique");
                reader.problem_at(&table, "name", detail);
            }
        }
        if let Some(value) = read(reader, &table, name) {
            all.entries.push((table, value));
        }
    }
    all
}

#[cfg(test)]
mod tests;
