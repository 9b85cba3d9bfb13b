//! `[[namespaces]]`: tenants who know nothing of each other, and how a client comes to one.

use std::path::PathBuf;

use broker::Quota;

use super::keys::RawListener;
use super::schema::{Section, ValueKind, bytes, count, count_or, settings, words};
use super::source::{Settings, unknown};
use super::{ApiConfig, Listener, Network, Problem, check_hosts, endpoint, values};

/// What everybody is in who is in no other.
pub const DEFAULT: &str = "default";

/// A name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

words! {
    /// The state of a namespace.
    NamespaceState {
        /// It accepts clients.
        Open = "open",
        /// Its clients are disconnected and refused, and its data is kept.
        Suspended = "suspended",
        /// As `suspended`, and its data is deleted.
        Deleted = "deleted",
    }
}

words! {
    /// The policy for clients that name an unknown namespace.
    UnknownNamespace {
        /// They are refused.
        Refuse = "refuse",
        /// The namespace is created.
        Create = "create",
    }
}

words! {
    /// A source of the namespace of a client.
    NamespaceSource {
        /// The host name in the TLS handshake.
        Host = "host",
        /// The part of the username before the first colon.
        Username = "username",
        /// The attribute `namespace` of its credential.
        Attribute = "attribute",
    }
}

/// What stands inside for a limit of `unlimited`.
const UNLIMITED: u64 = u64::MAX;

/// What a namespace may hold. 0: nothing.
const COUNT: ValueKind = count(0, u32::MAX as u64).or("unlimited", UNLIMITED);
const BYTES: ValueKind = bytes(0, UNLIMITED / 2).or("unlimited", UNLIMITED);

/// At no rate at all a client could not even say goodbye: `suspended` is for that.
const RATE: ValueKind = count(1, u32::MAX as u64).or("unlimited", UNLIMITED);
const BYTES_RATE: ValueKind = bytes(1, UNLIMITED / 2).or("unlimited", UNLIMITED);

settings! {
    /// Namespaces, each with its own topics, client IDs, sessions, retained messages and groups.
    /// See `docs/use/namespaces.md`. SIGHUP reloads them. A limit of 0 allows none; a rate must be
    /// at least 1. To admit no clients, set `state = "suspended"`.
    "namespaces" => RawNamespace {
        /// The name of the namespace: letters, digits, `.`, `_` and `-`, at most 64 bytes.
        /// `default` is the namespace of all other clients.
        name: Option<String> = ValueKind::Text("a name"), "";
        /// `open`; `suspended`: clients are disconnected and refused (0x8A), and the data is kept;
        /// `deleted`: as `suspended`, and the data is deleted while the broker runs.
        state: NamespaceState = ValueKind::OneOf(NamespaceState::WORDS), "open";
        /// With `state = "deleted"`: deletes its [streams](rules.md) although rules have messages to
        /// send. Without this key such a namespace stays suspended.
        discard_pending: bool = ValueKind::Flag, "false";
        /// Host names of clients that belong here, for listeners with `host` in `namespace_from`.
        hosts: Vec<String> = ValueKind::List("host names"), "";
        /// As in `[access]`, for its clients. Without rules, they may do everything in it.
        acl_file: Option<PathBuf> = ValueKind::Path, "";
        /// As in `[access]`, for its clients.
        policy_file: Option<PathBuf> = ValueKind::Path, "";
        /// Sets limits below that are not set to the quotas of Azure Event Grid for so many units.
        /// One has 10,000 sessions and connections, 200 connects/s, 1,000 messages/s and 1 MB/s in
        /// each direction, 10,000 retained messages (640 MB).
        throughput_units: u32 = count_or("unlimited", 10_000), "unlimited";
        /// The most connections. A further one is refused with 0x97.
        connections_max: Option<u64> = COUNT, "";
        /// The most connects per second. Further ones are refused with 0x9F.
        connects_per_second_max: Option<u64> = RATE, "";
        /// The most messages per second from its clients. Above this rate publishers are throttled.
        messages_in_per_second_max: Option<u64> = RATE, "";
        /// The most bytes of packets per second from its clients. Above this rate publishers are
        /// throttled.
        bytes_in_per_second_max: Option<u64> = BYTES_RATE, "";
        /// The most messages per second to its clients. Above this rate publishers are throttled.
        messages_out_per_second_max: Option<u64> = RATE, "";
        /// The most bytes of topics and payloads per second to its clients. Above this rate
        /// publishers are throttled.
        bytes_out_per_second_max: Option<u64> = BYTES_RATE, "";
        /// The most sessions, with or without a connection. A further one is refused with 0x97.
        sessions_max: Option<u64> = COUNT, "";
        /// The most subscriptions. A further one is refused with 0x97.
        subscriptions_max: Option<u64> = COUNT, "";
        /// The most retained messages. A further one is refused with 0x97.
        retained_messages_max: Option<u64> = COUNT, "";
        /// The most bytes of retained messages.
        retained_bytes_max: Option<u64> = BYTES, "";
        /// The most memory of messages queued for its sessions. Above it the queues count as full
        /// (`queue_overflow`).
        queued_bytes_max: Option<u64> = BYTES, "";
        /// The most bytes of its messages in the logs. Above it a publish that must be stored is
        /// refused with 0x97.
        logged_bytes_max: Option<u64> = BYTES, "";
        /// The most memory of its sessions, subscriptions and wills. Above it new persistent
        /// sessions, wills and subscriptions are refused with 0x97.
        session_bytes_max: Option<u64> = BYTES, "";
        /// Users of `api.password_file` who define streams, targets and rules of this namespace by
        /// the API, and see nothing else: see [tenants](rules.md#tenants). It needs `api.viewers`
        /// without `*`.
        api_users: Vec<String> = ValueKind::List("usernames"), "";
        /// The most streams that its API users define.
        streams_max: u64 = DEFINED, "10";
        /// The most targets that its API users define.
        targets_max: u64 = DEFINED, "10";
        /// The most rules that its API users define.
        rules_max: u64 = DEFINED, "10";
        /// The most bytes of all streams that its API users define: the sum of their `bytes_max`.
        stream_bytes_max: u64 = bytes(0, 1 << 50), "1GiB";
        /// Hosts that targets of its API users may have: `hooks.example`, `*.example` for all names
        /// below, or `*` for all hosts. Without any they may only be addresses in
        /// `target_networks`. A name must lead to a public address, or into `target_networks`.
        target_hosts: Vec<String> = ValueKind::List("host names"), "";
        /// Networks that are not public and that targets of its API users may use.
        /// `routing.target_networks` does not apply to them.
        target_networks: Vec<String> = ValueKind::List("networks such as 10.0.0.0/8"), "";
    }
}

/// Definitions of a kind: the broker itself has this limit of all together.
const DEFINED: ValueKind = count(0, 1_000);

/// Bytes of the name of a namespace with API users: the names of what they define begin with it,
/// and have at most 64.
const TENANT_NAME_BYTES_MAX: usize = 48;

/// One namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    pub name: String,
    pub state: NamespaceState,
    /// It is deleted even if rules have messages to send.
    pub discard_pending: bool,
    /// In lower case.
    pub hosts: Vec<String>,
    pub acl_file: Option<PathBuf>,
    pub policy_file: Option<PathBuf>,
    /// Those that are set.
    pub limits: Vec<(Quota, u64)>,
    pub api: NamespaceApi,
}

/// What its users of the API may define.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceApi {
    pub users: Vec<String>,
    pub streams_max: u64,
    pub targets_max: u64,
    pub rules_max: u64,
    /// The sum of `bytes_max` of their streams.
    pub stream_bytes_max: u64,
    /// In lower case: names, `*.` and a name, or `*`.
    pub target_hosts: Vec<String>,
    pub target_networks: Vec<Network>,
}

impl Namespace {
    /// One of which nothing else is said.
    pub fn open(name: &str) -> Self {
        let (name, state) = (name.into(), NamespaceState::Open);
        let (hosts, limits) = (Vec::new(), Vec::new());
        let (acl_file, policy_file, discard_pending) = (None, None, false);
        let api = NamespaceApi::default();
        Self { name, state, discard_pending, hosts, acl_file, policy_file, limits, api }
    }
}

/// How clients of a listener come to their namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placing {
    /// Of clients for whom no source names one. None: with sources they are refused, without any
    /// they are in the default one.
    pub own: Option<String>,
    pub from: Vec<NamespaceSource>,
    pub creates: bool,
}

/// May this be what a namespace is called?
pub fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_plain)
}

/// Lowers all of them. A contradiction becomes a problem with the place of the key to change.
pub(super) fn lower(settings: &Settings, problems: &mut Vec<Problem>) -> Option<Vec<Namespace>> {
    let mut all: Vec<Namespace> = Vec::new();
    for index in 0..settings.count_of(SECTION.name) {
        let own = format!("{}.{index}", SECTION.name);
        let raw = RawNamespace::lower(values(settings, SECTION, &own))?;
        check_hosts(&format!("{own}.hosts"), &raw.hosts, settings, problems);
        let mut problem = |key: &str, detail: String| {
            let key = format!("{own}.{key}");
            problems.push(Problem { place: settings.place(&key), key, detail });
        };
        let limits = limits_of(&raw);
        let name = raw.name.clone().unwrap_or_default();
        if !is_name(&name) {
            problem("name", NAME_RULE.into());
        } else if name == DEFAULT {
            let detail = "is built in and must not be configured: it has the settings of the \
            broker";
            problem("name", detail.into());
        } else if all.iter().any(|other| other.name == name) {
            problem("name", "another namespace has this name".into());
        }
        let hosts: Vec<String> = raw.hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        if let Some(host) =
            hosts.iter().find(|host| all.iter().any(|other| other.hosts.contains(host)))
        {
            problem("hosts", format!("'{host}' belongs to another namespace already"));
        }
        let api = api_of(&raw, &mut problem);
        let (state, discard_pending) = (raw.state, raw.discard_pending);
        let (acl_file, policy_file) = (raw.acl_file, raw.policy_file);
        all.push(Namespace {
            name,
            state,
            discard_pending,
            hosts,
            acl_file,
            policy_file,
            limits,
            api,
        });
    }
    Some(all)
}

/// Do listeners lead to what there is?
pub(super) fn check_listeners(
    listeners: &[Listener],
    namespaces: &[Namespace],
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    for (index, listener) in listeners.iter().enumerate() {
        let Some(own) = listener.placing.own.as_deref().filter(|own| *own != DEFAULT) else {
            continue;
        };
        let names = namespaces.iter().map(|namespace| &*namespace.name);
        if !listener.placing.creates && !names.clone().any(|name| name == own) {
            let key = format!("listeners.{index}.namespace");
            let detail = unknown(SECTION.name, own, names);
            problems.push(Problem { place: settings.place(&key), key, detail });
        }
    }
}

/// What its users of the API may define.
fn api_of(raw: &RawNamespace, problem: &mut dyn FnMut(&str, String)) -> NamespaceApi {
    let is_host = |text: &&String| {
        *text == "*" || endpoint::is_host_name(text.strip_prefix("*.").unwrap_or(text))
    };
    if let Some(wrong) = raw.target_hosts.iter().find(|text| !is_host(text)) {
        let detail = format!("must be host names, '*.' and a name, or '*', got '{wrong}'");
        problem("target_hosts", detail);
    }
    let mut target_networks = Vec::new();
    for text in &raw.target_networks {
        match text.parse() {
            Ok(network) => target_networks.push(network),
            Err(error) => problem("target_networks", format!("{error}")),
        }
    }
    NamespaceApi {
        users: raw.api_users.clone(),
        streams_max: raw.streams_max,
        targets_max: raw.targets_max,
        rules_max: raw.rules_max,
        stream_bytes_max: raw.stream_bytes_max,
        target_hosts: raw.target_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        target_networks,
    }
}

/// Users of the API belong to one namespace, or to none.
pub(super) fn check_api_users(
    namespaces: &[Namespace],
    api: Option<&ApiConfig>,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    for (index, own) in namespaces.iter().enumerate() {
        let Some(first) = own.api.users.first() else { continue };
        let mut problem = |detail: String| {
            let key = format!("{}.{index}.api_users", SECTION.name);
            problems.push(Problem { place: settings.place(&key), key, detail });
        };
        match api {
            None => problem("has no effect while the API is off: set api.listen".into()),
            Some(api) if api.password_file.is_none() => {
                problem(format!("'{first}' has no password; set password_file under [api]"));
            }
            Some(api) if api.viewers.iter().any(|name| name == "*") => problem(
                "needs api.viewers with the names of those who see everything, or []: with '*' a \
                 user that is removed here would see everything"
                    .into(),
            ),
            Some(api) => {
                let mut known = api.viewers.iter().chain(&api.operators).chain(&api.admins);
                if let Some(name) = known.find(|name| own.api.users.contains(name)) {
                    problem(format!(
                        "'{name}' is in `viewers`, `operators` or `admins` of [api] as well: use \
                         one of the lists"
                    ));
                }
            }
        }
        let others = || namespaces[..index].iter().filter(|other| !other.api.users.is_empty());
        let is_twice = |name: &&String| others().any(|other| other.api.users.contains(name));
        if let Some(name) = own.api.users.iter().find(is_twice) {
            problem(format!("'{name}' is a user of another namespace: use one of them"));
        }
        if own.name.len() > TENANT_NAME_BYTES_MAX {
            problem(format!(
                "the name of a namespace with API users must have at most {TENANT_NAME_BYTES_MAX} \
                 bytes"
            ));
        }
        let is_within = |one: &str, other: &str| {
            one.strip_prefix(other).is_some_and(|rest| rest.starts_with('.'))
        };
        let meets = |other: &&Namespace| {
            is_within(&own.name, &other.name) || is_within(&other.name, &own.name)
        };
        if let Some(other) = others().find(meets) {
            problem(format!(
                "names that begin with '{}.' would be of namespace '{}' as well: rename one of \
                 the two",
                own.name, other.name
            ));
        }
    }
}

/// What is set by itself goes before what units set.
fn limits_of(raw: &RawNamespace) -> Vec<(Quota, u64)> {
    let units = Some(u64::from(raw.throughput_units)).filter(|units| *units > 0);
    let by_unit = |each: u64| units.map(|units| each * units);
    let all = [
        (Quota::Connections, raw.connections_max, by_unit(10_000)),
        (Quota::Sessions, raw.sessions_max, by_unit(10_000)),
        (Quota::Connects, raw.connects_per_second_max, by_unit(200)),
        (Quota::MessagesIn, raw.messages_in_per_second_max, by_unit(1_000)),
        (Quota::BytesIn, raw.bytes_in_per_second_max, by_unit(1_000_000)),
        (Quota::MessagesOut, raw.messages_out_per_second_max, by_unit(1_000)),
        (Quota::BytesOut, raw.bytes_out_per_second_max, by_unit(1_000_000)),
        (Quota::Subscriptions, raw.subscriptions_max, units.map(|_| 1_000_000)),
        (Quota::RetainedMessages, raw.retained_messages_max, by_unit(10_000)),
        (Quota::RetainedBytes, raw.retained_bytes_max, by_unit(640_000_000)),
        (Quota::QueuedBytes, raw.queued_bytes_max, None),
        (Quota::LoggedBytes, raw.logged_bytes_max, None),
        (Quota::SessionBytes, raw.session_bytes_max, None),
    ];
    let set = all.into_iter().filter_map(|(quota, own, of_units)| Some((quota, own.or(of_units)?)));
    set.filter(|(_, max)| *max != UNLIMITED).collect()
}

impl Placing {
    /// How a listener does it, and what is wrong with that, by the key.
    pub(super) fn lower(raw: &RawListener, is_tls: bool) -> (Self, Vec<(&'static str, String)>) {
        let mut problems = Vec::new();
        let mut from = Vec::new();
        for word in &raw.namespace_from {
            let source =
                [NamespaceSource::Host, NamespaceSource::Username, NamespaceSource::Attribute];
            match source.into_iter().find(|source| source.as_str() == word) {
                Some(NamespaceSource::Host) if !is_tls && !raw.proxy_protocol => {
                    let detail = "host names need TLS: use tls:// or wss://, or a proxy that \
                    sends them";
                    problems.push(("namespace_from", detail.into()));
                }
                Some(source) => from.push(source),
                None => {
                    let words = NamespaceSource::WORDS.join("', '");
                    let detail = format!("must be one of '{words}', got '{word}'");
                    problems.push(("namespace_from", detail));
                }
            }
        }
        if raw.namespace.as_deref().is_some_and(|name| !is_name(name)) {
            problems.push(("namespace", NAME_RULE.into()));
        }
        let own = raw.namespace.clone();
        (Self { own, from, creates: raw.namespace_unknown == UnknownNamespace::Create }, problems)
    }

    /// Can a client be in another namespace than the default one?
    pub fn is_used(&self) -> bool {
        self.own.as_deref().is_some_and(|own| own != DEFAULT) || !self.from.is_empty()
    }
}

const NAME_RULE: &str = "a name must have 1 to 64 letters, digits, '.', '_' or '-'";

const SECTION: Section = RawNamespace::SECTION;
