//! The configuration: read from defaults, a TOML file, the environment and flags, checked as a
//! whole, and lowered once into typed values that need no further checks.
//!
//! Start reading at [`load`]; [`keys`] holds every key with its default and its reason.

mod api;
pub mod authorization;
pub mod bridges;
pub mod changes;
pub mod cluster;
mod demands;
mod derived;
mod durability;
pub mod endpoint;
mod foreign;
mod identity;
pub mod keys;
pub mod machine;
mod mask;
pub mod namespaces;
mod notes;
pub mod print;
pub mod routing;
pub mod schema;
pub mod source;
pub mod telemetry;
pub mod template;
mod tls;
pub mod url;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use api::{API_PREFIX, ApiAddress, ApiConfig, CertificateRoles, TOKEN_FILE};
pub use authorization::AuthorizationConfig;
pub use bridges::{BridgeConfig, BridgeDirection, BridgeProtocol, BridgeTls, BridgeTopic};
pub use cluster::{
    ClusterConfig, EngineLogin, EngineServer, EngineTls, LinkConfig, check_node_name,
    is_host_and_port,
};
pub use demands::{Demands, TokenField};
pub use derived::Derived;
pub use durability::DurabilityConfig;
pub use endpoint::{Address, Endpoint, Transport};
pub use identity::{
    BodyForm, FILE, HttpConfig, HttpMethod, JwtConfig, Method, Provider, RegistryConfig,
};
pub use keys::{
    AccessFile, Auth, CertificateIdentity, ClientAuth, DenyAction, DurabilityLevel, Events, Limits,
    LogFormat, LogLevel, NEVER, NameSource, QueueOverflow, SelfCheck, Server, SessionOwner,
    SharedStrategy, Sys, TlsVersion, WhenFull,
};
pub use machine::Machine;
pub use namespaces::{Namespace, NamespaceApi, NamespaceSource, NamespaceState, Placing};
pub use net::Cidr as Network;
pub use notes::notes;
pub use routing::RoutingConfig;
pub use source::{Flag, Origin, Problem, Settings, SourceFile, Sources};
pub use telemetry::TelemetryConfig;
use tls::OfListener;
pub use tls::TlsConfig;

use derived::{Deriving, logged_shards};
use endpoint::RawWebSocket;
use keys::{AUTO, Durability, Http, Log, RawListener, RawTls, Shared};
use schema::{Section, Value};

/// The checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `workers`, `shards` and `acceptor_threads` are resolved: never 0.
    pub server: Server,
    /// The number of shards was asked for, so another one in the data directory is refused.
    pub shards_are_fixed: bool,
    /// At least one.
    pub listeners: Vec<Listener>,
    /// What is `auto` is resolved, and the bursts are. For the rates and connections, 0 means no
    /// limit; for expiries and delays, [`NEVER`] does.
    pub limits: Limits,
    /// What a listener has that replaces nothing.
    pub listener_defaults: ListenerLimits,
    pub durability: DurabilityConfig,
    pub auth: Auth,
    /// In the order of the configuration.
    pub authentication: Vec<Provider>,
    pub access: AccessFile,
    /// None: no service is asked.
    pub authorization: Option<AuthorizationConfig>,
    /// Beside the default one.
    pub namespaces: Vec<Namespace>,
    pub shared_strategy: SharedStrategy,
    pub bridges: Vec<BridgeConfig>,
    /// Where the HTTP server listens; `None`: it is off.
    pub http: Option<SocketAddr>,
    /// `None`: HTTP is in clear text.
    pub http_tls: Option<TlsConfig>,
    /// Names by which requests may address HTTP and the API on loopback.
    pub http_hosts: Vec<String>,
    /// `None`: the management API is off.
    pub api: Option<ApiConfig>,
    pub self_check: SelfCheck,
    pub log: LogConfig,
    pub sys: Sys,
    pub events: Events,
    /// `None`: nothing is sent to a collector.
    pub telemetry: Option<TelemetryConfig>,
    /// `None`: there are no streams and rules.
    pub routing: Option<RoutingConfig>,
    /// `None`: a single node.
    pub cluster: Option<ClusterConfig>,
}

/// One listener, with everything that may differ between listeners resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// For logs, metrics and operators.
    pub name: String,
    /// Its URL as it was written, and in full.
    pub urls: [String; 2],
    pub transport: Transport,
    pub address: Address,
    /// Permission bits of the file of a Unix socket. `None`: the umask of the process decides.
    pub unix_mode: Option<u32>,
    /// Clients with neither user name nor certificate identity are admitted.
    pub allow_anonymous: bool,
    /// Who is asked, by name. Empty: everybody there is.
    pub authentication: Vec<String>,
    pub placing: Placing,
    /// `Some`: a PROXY header is required, and believed from these networks only.
    pub trusted_proxies: Option<Vec<Network>>,
    /// 0: no limit.
    pub connections_max: u32,
    /// 0: no limit.
    pub connections_per_second_max: u32,
    /// `Some` exactly for [`Transport::Tls`] and [`Transport::Wss`].
    pub tls: Option<TlsConfig>,
    /// `Some` exactly for [`Transport::Ws`] and [`Transport::Wss`].
    pub websocket: Option<WebSocketConfig>,
    pub limits: ListenerLimits,
}

/// The limits of `[limits]` that a listener may replace, resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    pub durability: DurabilityLevel,
    pub packet_bytes_max: u32,
    /// 0: no limit.
    pub keep_alive_max_secs: u16,
    pub in_flight_max: u16,
    pub receive_max: u16,
    pub topic_alias_max: u16,
    pub qos_max: u8,
    /// 0: no limit.
    pub messages_per_second_max: u32,
    /// At least 1 where there is a rate.
    pub messages_burst: u32,
    /// 0: no limit.
    pub bytes_per_second_max: u64,
    /// At least 1 where there is a rate.
    pub bytes_burst: u64,
}

/// WebSocket of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketConfig {
    /// `None`: any path.
    pub path: Option<String>,
    pub origins: Origins,
}

/// The web pages whose scripts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    Any,
    /// Those of the host and port that they connect to.
    Same,
    Listed(Vec<String>),
}

/// Where and how to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub level: LogLevel,
    pub format: LogFormat,
    pub target: LogTarget,
    /// Of each kind. 0: no limit.
    pub client_lines_per_second_max: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    Stderr,
    Stdout,
    File(PathBuf),
}

/// A configuration together with what it was made from.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    pub settings: Settings,
    /// What follows from the machine.
    pub derived: Vec<Derived>,
}

/// Everything that is wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub problems: Vec<Problem>,
}

/// Reads, checks and lowers the configuration.
///
/// # Errors
///
/// All problems of the sources, or, where each value is right by itself, all contradictions between
/// them. Each says what to write instead.
pub fn load(sources: &Sources, machine: &Machine) -> Result<Loaded, ConfigError> {
    let mut problems = Vec::new();
    let settings = Settings::read(sources, &mut problems);
    lower_all(settings, sources.port, machine, problems)
}

/// `problems` are those of the settings by themselves.
fn lower_all(
    settings: Settings,
    port: Option<u16>,
    machine: &Machine,
    mut problems: Vec<Problem>,
) -> Result<Loaded, ConfigError> {
    let mut deriving = Deriving::default();
    let config = match problems.is_empty() {
        true => lower(&settings, port, machine, &mut deriving, &mut problems),
        false => None,
    };
    match &config {
        Some(config) => {
            authorization::check_names(config, &settings, &mut problems);
            authorization::check_namespaces(config, &settings, &mut problems);
        }
        None if problems.is_empty() => problems.extend(emptied(&settings)),
        None => {}
    }
    match config {
        Some(config) if problems.is_empty() => {
            Ok(Loaded { config, settings, derived: deriving.notes })
        }
        _ => Err(ConfigError { problems }),
    }
}

impl Config {
    /// The configuration of a broker that nobody configured.
    pub fn defaults(machine: &Machine) -> Self {
        let loaded = load(&Sources::default(), machine);
        #[expect(clippy::expect_used, reason = "the tests load the defaults")]
        loaded.expect("the defaults are a valid configuration").config
    }

    /// TLS of the HTTP servers, by the key of their address.
    pub fn http_tls_by_key(&self) -> Vec<(&'static str, &TlsConfig)> {
        let api = self.api.as_ref().and_then(|api| api.tls.as_ref());
        let all = [("http.listen", self.http_tls.as_ref()), ("api.listen", api)];
        all.into_iter().filter_map(|(key, tls)| Some((key, tls?))).collect()
    }

    /// Is there any way to prove a user name?
    pub fn proves_names(&self) -> bool {
        self.has_provider() || self.listeners.iter().any(Listener::names_by_certificate)
    }

    /// Is there anybody to ask about a client?
    fn has_provider(&self) -> bool {
        self.auth.password_file.is_some() || !self.authentication.is_empty()
    }

    /// Does anybody come in without a user name that counts?
    pub fn admits_nameless(&self) -> bool {
        let admits = |listener: &Listener| {
            let is_required = |tls: &TlsConfig| tls.client_auth == ClientAuth::Require;
            let has_name =
                listener.names_by_certificate() && listener.tls.as_ref().is_some_and(is_required);
            listener.allow_anonymous && !has_name
        };
        self.listeners.iter().any(admits)
    }

    /// Why access rules for user names would rest on names that nobody has proved. None: they do
    /// not.
    pub fn why_names_are_unproved(&self) -> Option<String> {
        if self.has_provider() {
            return None;
        }
        let takes_none = |listener: &&Listener| {
            let is_required = |tls: &TlsConfig| tls.client_auth == ClientAuth::Require;
            !listener.names_by_certificate() && listener.tls.as_ref().is_some_and(is_required)
        };
        if let Some(Listener { name, .. }) = self.listeners.iter().find(takes_none) {
            return Some(format!(
                "listener '{name}' requires certificates but takes no username from them; set \
                 identity_from_certificate = \"cn\" on it"
            ));
        }
        (!self.proves_names()).then(|| {
            "usernames are not verified; set password_file under [auth], or \
            identity_from_certificate on a listener that requires certificates"
                .into()
        })
    }
}

impl Listener {
    /// Does a certificate give its client a user name here?
    pub fn names_by_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.own.identity != CertificateIdentity::None)
    }
}

impl ConfigError {
    /// A file that could not even be read.
    pub fn of_file(path: &std::path::Path, detail: String) -> Self {
        let place = path.display().to_string();
        Self { problems: vec![Problem { place, key: String::new(), detail }] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

fn lower(
    settings: &Settings,
    port: Option<u16>,
    machine: &Machine,
    deriving: &mut Deriving,
    problems: &mut Vec<Problem>,
) -> Option<Config> {
    let mut server = Server::lower(values(settings, Server::SECTION, "server"))?;
    let mut limits = Limits::lower(values(settings, Limits::SECTION, "limits"))?;
    let auth = Auth::lower(values(settings, Auth::SECTION, "auth"))?;
    let http = Http::lower(values(settings, Http::SECTION, "http"))?;
    let durability = Durability::lower(values(settings, Durability::SECTION, "durability"))?;
    let shards_are_fixed = server.shards != 0;
    deriving.machine(&mut server, &mut limits, machine);
    settings.check_placeholders(problems);
    let authentication = identity::lower(settings, problems)?;
    let has_file = auth.password_file.is_some();
    let mut lowering = Listeners {
        settings,
        limits: &limits,
        level: durability.level,
        auth: &auth,
        has_provider: has_file || settings.count_of("authentication") > 0,
        machine,
        problems,
    };
    let listeners = lowering.lower(port)?;
    let listener_defaults = lowering.lower_limits(&lowering.nothing_replaced()?);
    identity::check_chains(&listeners, &authentication, has_file, settings, problems);
    let namespaces = namespaces::lower(settings, problems)?;
    namespaces::check_listeners(&listeners, &namespaces, settings, problems);
    let shards = logged_shards(&server, machine);
    let mut durability =
        durability::lower(&durability, &limits, &listeners, shards, settings, problems);
    durability.resolve_sizes(deriving, &mut server, machine);
    (limits.messages_burst, limits.bytes_burst) =
        bursts(&limits, limits.messages_per_second_max, limits.bytes_per_second_max);
    let http_hosts = http.hosts.clone();
    let http = lower_http(&http, settings, problems);
    let (http_tls, api) = api::lower_with_tls((http, &namespaces), &server, settings, problems)?;
    let access = AccessFile::lower(values(settings, AccessFile::SECTION, "access"))?;
    let events = Events::lower(values(settings, Events::SECTION, "events"))?;
    check_events(&events, &access, settings, problems);
    Some(Config {
        bridges: bridges::lower(&namespaces, &limits, settings, problems)?,
        routing: routing::lower(&limits, settings, deriving, problems)?,
        cluster: cluster::lower(durability.has_journal(), settings, machine, problems),
        server,
        shards_are_fixed,
        listeners,
        limits,
        listener_defaults,
        durability,
        auth,
        authentication,
        authorization: authorization::lower(&access, settings, problems)?,
        access,
        namespaces,
        shared_strategy: Shared::lower(values(settings, Shared::SECTION, "shared"))?.strategy,
        http,
        http_tls,
        http_hosts,
        api,
        self_check: SelfCheck::lower(values(settings, SelfCheck::SECTION, "self_check"))?,
        log: lower_log(Log::lower(values(settings, Log::SECTION, "log"))?),
        sys: Sys::lower(values(settings, Sys::SECTION, "sys"))?,
        events,
        telemetry: telemetry::lower(settings, problems)?,
    })
}

/// Keys that were set to nothing and cannot be without a value.
fn emptied(settings: &Settings) -> Vec<Problem> {
    let mut problems = Vec::new();
    for section in keys::SECTIONS {
        for key in section.keys.iter().filter(|key| !key.default.is_empty()) {
            if settings.setting(section.name, key).value == Value::Unset {
                let name = format!("{}.{}", section.name, key.name);
                let detail =
                    format!("must not be empty; omit it for the default, \"{}\"", key.default);
                problems.push(Problem { place: settings.place(&name), key: name, detail });
            }
        }
    }
    problems
}

/// Looks values up by key name; `own` is the section with the index of a listener put in.
fn values<'a>(
    settings: &'a Settings,
    section: Section,
    own: &'a str,
) -> impl Fn(&str) -> Value + use<'a> {
    move |name| {
        let key = section.keys.iter().find(|key| key.name == name);
        key.map_or(Value::Unset, |key| settings.setting(own, key).value)
    }
}

fn bursts(limits: &Limits, messages_per_second: u32, bytes_per_second: u64) -> (u32, u64) {
    let messages =
        if limits.messages_burst == 0 { messages_per_second } else { limits.messages_burst };
    let bytes = if limits.bytes_burst == 0 { bytes_per_second } else { limits.bytes_burst };
    (messages, bytes)
}

fn lower_http(http: &Http, settings: &Settings, problems: &mut Vec<Problem>) -> Option<SocketAddr> {
    check_hosts("http.hosts", &http.hosts, settings, problems);
    if http.listen == "off" {
        return None;
    }
    let address = http.listen.parse().ok();
    if address.is_none() {
        let detail = format!(
            "must be an address and port such as \"127.0.0.1:9883\", or \"off\", got '{}'",
            http.listen
        );
        let key = "http.listen";
        problems.push(Problem { place: settings.place(key), key: key.into(), detail });
    }
    address
}

/// They are compared as a whole, so that what is no name would never be one that is asked for.
fn check_hosts(key: &str, names: &[String], settings: &Settings, problems: &mut Vec<Problem>) {
    for wrong in names.iter().filter(|name| !endpoint::is_host_name(name)) {
        let detail = format!(
            "must be a host name such as broker.example, without port, got \
        '{wrong}'"
        );
        problems.push(Problem { place: settings.place(key), key: key.into(), detail });
    }
}

/// What they tell is not for everybody.
fn check_events(
    events: &Events,
    access: &AccessFile,
    settings: &Settings,
    problems: &mut Vec<Problem>,
) {
    let has_service = settings.has_section("authorization");
    if events.sys && !has_service && access.acl_file.is_none() && access.policy_file.is_none() {
        let detail = "events name clients, users and addresses; set acl_file or policy_file \
        under [access], with a rule for $SYS/events/#";
        let key = "events.sys";
        let place = settings.place(key);
        problems.push(Problem { place, key: key.into(), detail: detail.into() });
    }
}

fn lower_log(log: Log) -> LogConfig {
    LogConfig {
        level: log.level,
        format: log.format,
        target: match log.target.as_str() {
            "stderr" => LogTarget::Stderr,
            "stdout" => LogTarget::Stdout,
            _ => LogTarget::File(log.target.into()),
        },
        client_lines_per_second_max: log.client_lines_per_second_max,
    }
}

/// Lowers the listeners; every contradiction becomes a problem with the place of the key to change.
struct Listeners<'a> {
    settings: &'a Settings,
    limits: &'a Limits,
    level: DurabilityLevel,
    auth: &'a Auth,
    /// There is somebody to ask about a client.
    has_provider: bool,
    machine: &'a Machine,
    problems: &'a mut Vec<Problem>,
}

impl Listeners<'_> {
    fn lower(&mut self, port: Option<u16>) -> Option<Vec<Listener>> {
        let count = self.settings.count_of("listeners");
        if count == 0 {
            return self.lower_defaults(port.unwrap_or(1883));
        }
        let mut port = port;
        let mut listeners: Vec<Listener> = Vec::with_capacity(count);
        for index in 0..count {
            let Some(mut listener) = self.lower_one(index)? else { continue };
            if let (Transport::Tcp, Address::Ip(address)) =
                (listener.transport, &mut listener.address)
                && let Some(port) = port.take()
            {
                address.set_port(port);
            }
            if let Some(other) = listeners.iter().find(|other| same_address(other, &listener)) {
                let detail = format!("listener '{}' already has this address", other.name);
                self.problem(&format!("listeners.{index}.url"), detail);
            }
            let name = format!("listeners.{index}.name");
            let is_named = !self.settings.place(&name).is_empty();
            if is_named && listeners.iter().any(|other| other.name == listener.name) {
                self.problem(&name, "another listener has this name".into());
            }
            listeners.push(listener);
        }
        if port.is_some() {
            let detail = "no listener has tcp://, so --port replaces nothing; use --listen".into();
            self.problems.push(Problem { place: "--port".into(), key: String::new(), detail });
        }
        Some(listeners)
    }

    /// Port 0 stands for any free port, which two sockets could not share.
    fn lower_defaults(&mut self, port: u16) -> Option<Vec<Listener>> {
        let mut urls = vec![format!("tcp://127.0.0.1:{port}")];
        if self.machine.has_ipv6 && port != 0 {
            urls.push(format!("tcp://[::1]:{port}"));
        }
        let mut listeners = Vec::new();
        for url in urls {
            let mut raw = self.nothing_replaced()?;
            raw.url = Some(url);
            listeners.extend(self.build("listeners.-", raw)?);
        }
        Some(listeners)
    }

    /// A listener of which nothing was said.
    fn nothing_replaced(&self) -> Option<RawListener> {
        RawListener::lower(values(self.settings, RawListener::SECTION, "listeners.-"))
    }

    fn lower_one(&mut self, index: usize) -> Option<Option<Listener>> {
        let own = format!("listeners.{index}");
        let raw = RawListener::lower(values(self.settings, RawListener::SECTION, &own))?;
        self.build(&own, raw)
    }

    /// The outer `None` is a mistake of this crate, the inner one a problem of the configuration.
    fn build(&mut self, own: &str, raw: RawListener) -> Option<Option<Listener>> {
        let Some(url) = &raw.url else {
            self.problem(own, "a listener needs a url".into());
            return Some(None);
        };
        let endpoint = match Endpoint::parse(url, self.machine.has_ipv6) {
            Ok(endpoint) => endpoint,
            Err(detail) => {
                self.problem(&format!("{own}.url"), detail);
                return Some(None);
            }
        };
        let (tls_key, websocket_key) = (format!("{own}.tls"), format!("{own}.websocket"));
        let tls = RawTls::lower(values(self.settings, RawTls::SECTION, &tls_key))?;
        let tls = self.lower_tls(own, &endpoint, &raw, tls);
        let websocket =
            RawWebSocket::lower(values(self.settings, RawWebSocket::SECTION, &websocket_key))?;
        let proves_identity =
            tls.as_ref().is_some_and(|tls| tls.client_auth == ClientAuth::Require);
        let allow_anonymous = self.allow_anonymous(own, &endpoint, &raw, proves_identity);
        let asks_password =
            !allow_anonymous && tls.as_ref().is_none_or(|tls| tls.client_auth == ClientAuth::None);
        let websocket = self.lower_websocket(own, &endpoint, websocket, asks_password);
        let (placing, misplaced) = Placing::lower(&raw, endpoint.transport.is_tls());
        for (key, detail) in misplaced {
            self.problem(&format!("{own}.{key}"), detail);
        }
        let unix_mode = self.unix_mode(own, &endpoint, &raw);
        Some(Some(Listener {
            name: raw.name.clone().unwrap_or_else(|| endpoint.to_string()),
            urls: [url.clone(), endpoint.to_string()],
            allow_anonymous,
            authentication: raw.authentication.clone(),
            placing,
            trusted_proxies: self.trusted_proxies(own, &raw),
            connections_max: raw.connections_max.unwrap_or(0),
            connections_per_second_max: raw.connections_per_second_max.unwrap_or(0),
            limits: self.lower_limits(&raw),
            transport: endpoint.transport,
            address: endpoint.address,
            unix_mode,
            tls,
            websocket,
        }))
    }

    fn unix_mode(&mut self, own: &str, endpoint: &Endpoint, raw: &RawListener) -> Option<u32> {
        let text = raw.unix_mode.as_ref()?;
        let key = format!("{own}.unix_mode");
        if endpoint.transport != Transport::Unix {
            let detail = format!("{endpoint} has no file: only unix:// listeners have a mode");
            self.problem(&key, detail);
            return None;
        }
        let is_octal = text.bytes().all(|digit| matches!(digit, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
        if mode.is_none() {
            let detail = format!("must be from \"0000\" to \"0777\" in octal, got \"{text}\"");
            self.problem(&key, detail);
        }
        mode
    }

    fn lower_limits(&self, raw: &RawListener) -> ListenerLimits {
        let limits = self.limits;
        let messages_per_second_max =
            raw.messages_per_second_max.unwrap_or(limits.messages_per_second_max);
        let bytes_per_second_max = raw.bytes_per_second_max.unwrap_or(limits.bytes_per_second_max);
        let (messages_burst, bytes_burst) =
            bursts(limits, messages_per_second_max, bytes_per_second_max);
        ListenerLimits {
            durability: raw.durability.unwrap_or(self.level),
            packet_bytes_max: raw.packet_bytes_max.unwrap_or(limits.packet_bytes_max),
            keep_alive_max_secs: raw.keep_alive_max_secs.unwrap_or(limits.keep_alive_max_secs),
            in_flight_max: raw.in_flight_max.unwrap_or(limits.in_flight_max),
            receive_max: raw.receive_max.unwrap_or(limits.receive_max),
            topic_alias_max: raw.topic_alias_max.unwrap_or(limits.topic_alias_max),
            qos_max: raw.qos_max.unwrap_or(limits.qos_max),
            messages_per_second_max,
            messages_burst,
            bytes_per_second_max,
            bytes_burst,
        }
    }

    fn lower_tls(
        &mut self,
        own: &str,
        endpoint: &Endpoint,
        raw: &RawListener,
        tls: RawTls,
    ) -> Option<TlsConfig> {
        let section = format!("{own}.tls");
        let identity_key = format!("{own}.identity_from_certificate");
        let takes_identity = raw.identity_from_certificate != CertificateIdentity::None;
        if takes_identity && (tls.client_auth == ClientAuth::None || !endpoint.transport.is_tls()) {
            let detail = "needs tls.client_auth = \"optional\" or \"require\"".into();
            self.problem(&identity_key, detail);
        }
        let takes_registered = raw.registered_certificates;
        if takes_registered && (tls.client_auth == ClientAuth::None || takes_identity) {
            let detail = match takes_identity {
                true => {
                    "contradicts identity_from_certificate: the names in such a certificate \
                     are not verified. Leave one of them out"
                }
                false => "needs tls.client_auth = \"optional\" or \"require\"",
            };
            self.problem(&format!("{own}.registered_certificates"), detail.into());
        }
        if !endpoint.transport.is_tls() {
            if self.settings.has_section(&section) {
                let detail = format!("{endpoint} does not speak TLS; use tls:// or wss://");
                self.problem(&section, detail);
            }
            return None;
        }
        let what = endpoint.to_string();
        let own = OfListener { identity: raw.identity_from_certificate, takes_registered };
        tls::lower(&section, &what, tls, own, &mut |key, detail| self.problem(key, detail))
    }

    fn lower_websocket(
        &mut self,
        own: &str,
        endpoint: &Endpoint,
        raw: RawWebSocket,
        asks_password: bool,
    ) -> Option<WebSocketConfig> {
        let section = format!("{own}.websocket");
        if !endpoint.transport.is_websocket() {
            if self.settings.has_section(&section) {
                let detail = format!("{endpoint} does not speak WebSocket; use ws:// or wss://");
                self.problem(&section, detail);
            }
            return None;
        }
        let path = raw.path.or_else(|| endpoint.path.clone());
        if path.as_ref().is_some_and(|path| !path.starts_with('/')) {
            self.problem(&format!("{section}.path"), "a path must begin with a slash".into());
        }
        // A browser sends a certificate for any page, and needs none where nothing is asked for.
        let is_origin = |text: &&String| *text == "*" || endpoint::is_origin(text);
        if let Some(wrong) = raw.origins.iter().find(|text| !is_origin(text)) {
            let detail = format!(
                "must be scheme and host as browsers send them, such as https://example.org, \
                with the port unless it is that of the scheme, got '{wrong}'"
            );
            self.problem(&format!("{section}.origins"), detail);
        }
        let origins = match raw.origins {
            listed if listed.iter().any(|origin| origin == "*") => Origins::Any,
            listed if !listed.is_empty() => Origins::Listed(listed),
            _ if asks_password => Origins::Any,
            _ => Origins::Same,
        };
        Some(WebSocketConfig { path, origins })
    }

    fn trusted_proxies(&mut self, own: &str, raw: &RawListener) -> Option<Vec<Network>> {
        let mut networks = Vec::new();
        for text in &raw.trusted_proxies {
            match text.parse::<Network>() {
                Ok(network) => networks.push(network),
                Err(error) => self.problem(&format!("{own}.trusted_proxies"), error.to_string()),
            }
        }
        if raw.proxy_protocol == raw.trusted_proxies.is_empty() {
            let detail = "proxy_protocol = true and trusted_proxies = [\"10.0.0.0/8\"] (the \
                          networks of your proxies) go together";
            self.problem(&format!("{own}.proxy_protocol"), detail.into());
        }
        raw.proxy_protocol.then_some(networks)
    }

    /// Nobody opens a broker to the world by accident.
    fn allow_anonymous(
        &mut self,
        own: &str,
        endpoint: &Endpoint,
        raw: &RawListener,
        proves_identity: bool,
    ) -> bool {
        if let Some(stated) = raw.allow_anonymous.or(self.auth.allow_anonymous) {
            return stated;
        }
        if self.has_provider {
            return false;
        }
        if !proves_identity && !endpoint.address.is_local() {
            let detail = format!(
                "{endpoint} can be reached from other machines without a login. Set `password_file` under \
                 [auth] (made with `quelea passwd`), add [[authentication]], or require client \
                 certificates. To admit all clients, add `allow_anonymous = true` to this listener \
                 or start with --allow-anonymous"
            );
            self.problem(&format!("{own}.url"), detail);
        }
        true
    }

    fn problem(&mut self, key: &str, detail: String) {
        self.problems.push(Problem { place: self.settings.place(key), key: key.into(), detail });
    }
}

fn same_address(a: &Listener, b: &Listener) -> bool {
    let is_any_port = matches!(&a.address, Address::Ip(address) if address.port() == 0);
    a.address == b.address && !is_any_port
}

/// Shards are identified by the bits of a `u64`.
const THREADS_MAX: u16 = 64;
