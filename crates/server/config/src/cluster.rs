//! `[cluster]`: nodes that are one broker, on NATS servers with JetStream.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::schema::{Key, Section, Value, ValueKind, bytes_or, count, settings};
use super::source::{Problem, Settings, default_of};
use super::{Machine, endpoint, values};

settings! {
    /// A cluster: an active node, and standbys that take over. NATS servers (2.15 or newer) with
    /// JetStream replicate the logs: see `docs/use/cluster.md`. All nodes may use the same file.
    /// Not set: a single broker.
    "cluster" => RawCluster {
        /// Name of the cluster: letters, digits, `-` and `_`, at most 32. Several clusters can
        /// share NATS servers.
        name: Option<String> = ValueKind::Text("a name"), "";
        /// Name of this node, different for each: letters, digits, `.`, `-` and `_`, at most 64.
        /// Not set: the host name.
        node: Option<String> = ValueKind::Text("a name"), "";
        /// NATS servers, `nats://HOST:PORT` or `tls://HOST:PORT`. The node uses the first one that
        /// answers, and another one when it fails. List the local server first.
        servers: Vec<String> = ValueKind::List("URLs such as nats://127.0.0.1:4222"), "";
        /// Credentials file of a NATS user (`.creds`: JWT and seed).
        credentials_file: Option<PathBuf> = ValueKind::Path, "";
        /// File with the seed of a NATS user's NKey (`SU...`).
        nkey_seed_file: Option<PathBuf> = ValueKind::Path, "";
        /// NATS user with a password.
        username: Option<String> = ValueKind::Text("a username"), "";
        /// File with the password of `username`, one line.
        password_file: Option<PathBuf> = ValueKind::Path, "";
        /// Authorities that sign the certificates of the NATS servers, PEM. Not set: those of the
        /// system.
        ca_file: Option<PathBuf> = ValueKind::Path, "";
        /// Client certificate of this node with its chain, PEM, for NATS servers that verify
        /// clients.
        cert_file: Option<PathBuf> = ValueKind::Path, "";
        /// Private key of `cert_file`, PEM.
        key_file: Option<PathBuf> = ValueKind::Path, "";
        /// Host, and port unless it is the usual one, at which MQTT clients reach this node.
        /// Standbys report the active node's address to operators and, with `redirect`, to clients.
        advertise: Option<String> = ValueKind::Text("an address such as broker1.example:8883"), "";
        /// A standby redirects MQTT 5 clients to the active node: 0x9C with its `advertise` as
        /// Server Reference. `false`: it refuses them with 0x88 and a reason. With several cells, a
        /// node redirects clients of other nodes' cells. `false`: it relays them.
        redirect: bool = ValueKind::Flag, "false";
        /// Address and port at which this node accepts the links of other nodes, with the TLS of
        /// `[cluster.tls]`. A node of a cluster with several cells needs it.
        listen: Option<String> = ValueKind::Text("an address and port such as 0.0.0.0:7883"), "";
        /// Size limit of the stream of all shards, set by `quelea cluster init`. At the limit the
        /// logs count as full. Allow 2.5 times `durability.log_bytes_max`, at least eight log files
        /// (`segment_bytes`) per shard.
        stream_bytes_max: u64 = bytes_or("unlimited", i64::MAX as u64), "unlimited";
        /// A message to the stream that is less than half full begins at least this many
        /// milliseconds after the one before. The wait ends early when nothing has arrived for
        /// 2 ms. A single publisher does not wait. 0: no wait.
        append_interval_ms: u32 = count(0, 1_000), "5";
    }
}

settings! {
    /// TLS of the links between nodes (`cluster.listen`). TLS to NATS servers is configured by
    /// `cluster.ca_file` and the keys next to it.
    "cluster.tls" => RawClusterTls {
        /// The certificate of this node, then those of its issuers, PEM. It is issued for the name
        /// in `cluster.node`, and must be valid for servers and for clients.
        certificate: Option<PathBuf> = ValueKind::Path, "";
        /// The private key of the certificate, PEM.
        key: Option<PathBuf> = ValueKind::Path, "";
        /// The certificate authorities that sign the certificates of nodes, PEM.
        ca: Option<PathBuf> = ValueKind::Path, "";
    }
}

/// The cluster that this broker is a node of, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    pub name: String,
    pub node: String,
    /// At least one, in order.
    pub servers: Vec<EngineServer>,
    pub login: EngineLogin,
    /// `Some`: all servers are `tls://`.
    pub tls: Option<EngineTls>,
    /// `None`: it accepts no links of other nodes.
    pub links: Option<LinkConfig>,
    pub advertise: Option<String>,
    /// Only with `advertise`.
    pub redirect: bool,
    /// `None`: no limit.
    pub stream_bytes_max: Option<u64>,
    pub append_interval_ms: u32,
}

/// A NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineServer {
    /// With scheme and port.
    pub url: String,
    pub is_loopback: bool,
}

/// What a node shows to NATS servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineLogin {
    Nothing,
    Credentials(PathBuf),
    NkeySeed(PathBuf),
    Password { username: String, file: PathBuf },
}

/// TLS to NATS servers. The files are named, not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineTls {
    /// `None`: the authorities of the system.
    pub ca: Option<PathBuf>,
    /// Certificate and key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Where a node accepts links, and what it shows to other nodes. The files are named, not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    pub listen: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub ca: PathBuf,
}

/// `None`: no cluster is configured, or something of it is wrong.
pub(super) fn lower(
    has_journal: bool,
    settings: &Settings,
    machine: &Machine,
    problems: &mut Vec<Problem>,
) -> Option<ClusterConfig> {
    if !is_configured(settings) {
        return None;
    }
    check_level(has_journal, settings, problems);
    let mut lowering = Lowering { settings, problems };
    let raw = RawCluster::lower(values(settings, SECTION, SECTION.name))?;
    let name = lowering.name(&raw);
    let node = lowering.node(&raw, machine);
    let servers = lowering.servers(&raw);
    let login = lowering.login(&raw);
    let tls = lowering.tls(&raw, &servers);
    let links = lowering.links(&raw);
    let advertise = lowering.advertise(&raw);
    Some(ClusterConfig {
        name: name?,
        node: node?,
        servers,
        login: login?,
        tls,
        links,
        advertise,
        redirect: raw.redirect,
        stream_bytes_max: (raw.stream_bytes_max != 0).then_some(raw.stream_bytes_max),
        append_interval_ms: raw.append_interval_ms,
    })
}

/// Whether anything is said about a cluster.
pub(super) fn is_configured(settings: &Settings) -> bool {
    [SECTION, TLS].iter().any(|section| is_section_set(section, settings))
}

fn is_section_set(section: &Section, settings: &Settings) -> bool {
    section.keys.iter().any(|key| is_set(section, key, settings))
}

/// A cluster replicates what is stored.
fn check_level(has_journal: bool, settings: &Settings, problems: &mut Vec<Problem>) {
    if !has_journal {
        let key = "durability.level";
        let detail = "\"memory\" stores nothing that a cluster could replicate; set another \
        level, or remove [cluster]";
        problems.push(Problem {
            place: settings.place(key),
            key: key.into(),
            detail: detail.into(),
        });
    }
}

fn is_set(section: &Section, key: &Key, settings: &Settings) -> bool {
    let value = settings.setting(section.name, key).value;
    value != Value::Unset && value != default_of(key)
}

struct Lowering<'a> {
    settings: &'a Settings,
    problems: &'a mut Vec<Problem>,
}

impl Lowering<'_> {
    fn name(&mut self, raw: &RawCluster) -> Option<String> {
        let Some(name) = &raw.name else {
            self.problem("name", "is missing; write a name such as \"plant1\"".into());
            return None;
        };
        let is_valid = (1..=NAME_BYTES_MAX).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        if !is_valid {
            let detail =
                format!("must be 1 to {NAME_BYTES_MAX} letters, digits, `-` or `_`, got '{name}'");
            self.problem("name", detail);
        }
        is_valid.then(|| name.clone())
    }

    fn node(&mut self, raw: &RawCluster, machine: &Machine) -> Option<String> {
        let Some(node) = raw.node.clone().or_else(machine.host_name) else {
            self.problem("node", "is missing, and this machine has no host name".into());
            return None;
        };
        match check_node_name(&node) {
            Ok(()) => Some(node),
            Err(detail) => {
                let of_host = if raw.node.is_none() { " (the host name)" } else { "" };
                self.problem("node", format!("{detail}{of_host}"));
                None
            }
        }
    }

    fn servers(&mut self, raw: &RawCluster) -> Vec<EngineServer> {
        if raw.servers.is_empty() || raw.servers.len() > SERVERS_MAX {
            let detail = format!(
                "must have between 1 and {SERVERS_MAX} NATS servers, as in servers = \
                [\"nats://127.0.0.1:4222\"]"
            );
            self.problem("servers", detail);
        }
        let mut servers: Vec<EngineServer> = Vec::new();
        for text in &raw.servers {
            match server(text) {
                Err(detail) => self.problem("servers", detail),
                Ok(own) if servers.iter().any(|other| other.url == own.url) => {
                    self.problem("servers", format!("'{text}' is listed twice"));
                }
                Ok(own) => servers.push(own),
            }
        }
        if servers.iter().any(|own| own.is_tls() != servers[0].is_tls()) {
            let detail =
                "some are nats:// and some tls://; use tls:// for all of them, or for none";
            self.problem("servers", detail.into());
        }
        servers
    }

    fn login(&mut self, raw: &RawCluster) -> Option<EngineLogin> {
        let password = match (&raw.username, &raw.password_file) {
            (Some(username), Some(file)) => {
                Some(EngineLogin::Password { username: username.clone(), file: file.clone() })
            }
            (None, None) => None,
            (Some(_), None) => {
                self.problem("username", "needs password_file".into());
                return None;
            }
            (None, Some(_)) => {
                self.problem("password_file", "needs username".into());
                return None;
            }
        };
        let credentials = raw.credentials_file.clone().map(EngineLogin::Credentials);
        let seed = raw.nkey_seed_file.clone().map(EngineLogin::NkeySeed);
        let mut logins = [credentials, seed, password].into_iter().flatten();
        let login = logins.next().unwrap_or(EngineLogin::Nothing);
        if let Some(other) = logins.next() {
            let detail = format!("{} is set as well; choose one of them", login.key());
            self.problem(other.key(), detail);
            return None;
        }
        Some(login)
    }

    fn tls(&mut self, raw: &RawCluster, servers: &[EngineServer]) -> Option<EngineTls> {
        let files =
            [("ca_file", &raw.ca_file), ("cert_file", &raw.cert_file), ("key_file", &raw.key_file)];
        if !servers.first().is_some_and(EngineServer::is_tls) {
            if let Some((key, _)) = files.iter().find(|(_, file)| file.is_some())
                && !servers.is_empty()
            {
                let detail = "has no effect with nats://; write the servers as tls://";
                self.problem(key, detail.into());
            }
            return None;
        }
        let client = match (&raw.cert_file, &raw.key_file) {
            (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
            (None, None) => None,
            (Some(_), None) => {
                self.problem("cert_file", "needs key_file".into());
                None
            }
            (None, Some(_)) => {
                self.problem("key_file", "needs cert_file".into());
                None
            }
        };
        Some(EngineTls { ca: raw.ca_file.clone(), client })
    }

    fn links(&mut self, raw: &RawCluster) -> Option<LinkConfig> {
        let RawClusterTls { certificate, key, ca } =
            RawClusterTls::lower(values(self.settings, TLS, TLS.name))?;
        let Some(text) = &raw.listen else {
            if is_section_set(&TLS, self.settings) {
                let detail = "has no effect without cluster.listen";
                self.problem("tls", detail.into());
            }
            return None;
        };
        let Ok(listen) = text.parse() else {
            let detail = format!("must be an address and port such as 0.0.0.0:7883, got '{text}'");
            self.problem("listen", detail);
            return None;
        };
        let (Some(certificate), Some(key), Some(ca)) = (certificate, key, ca) else {
            let detail = "cluster.listen needs certificate, key and ca";
            self.problem("tls", detail.into());
            return None;
        };
        Some(LinkConfig { listen, certificate, key, ca })
    }

    fn advertise(&mut self, raw: &RawCluster) -> Option<String> {
        if let Some(text) = &raw.advertise
            && (text.len() > ADVERTISE_BYTES_MAX || !is_address(text))
        {
            let detail = format!("must be HOST or HOST:PORT, got '{text}'");
            self.problem("advertise", detail);
        }
        if raw.redirect && raw.advertise.is_none() {
            let detail = "needs advertise: the address at which clients reach this node";
            self.problem("redirect", detail.into());
        }
        raw.advertise.clone()
    }

    fn problem(&mut self, key: &str, detail: String) {
        let key = format!("{}.{key}", SECTION.name);
        self.problems.push(Problem { place: self.settings.place(&key), key, detail });
    }
}

impl EngineServer {
    pub fn is_tls(&self) -> bool {
        self.url.starts_with("tls://")
    }
}

impl EngineLogin {
    /// The key that says so.
    fn key(&self) -> &'static str {
        match self {
            Self::Nothing => "servers",
            Self::Credentials(_) => "credentials_file",
            Self::NkeySeed(_) => "nkey_seed_file",
            Self::Password { .. } => "username",
        }
    }
}

fn server(text: &str) -> Result<EngineServer, String> {
    let wrong = |why: &str| {
        Err(format!("'{text}' {why}; write one like nats://127.0.0.1:4222 or tls://nats1:4222"))
    };
    if text.contains('@') {
        // The text may hold a password, so it is not repeated.
        return Err("a URL must not contain a user; set username and password_file, or \
                    credentials_file"
            .into());
    }
    let url = match net::Url::parse(text) {
        Ok(url) => url,
        Err(error) => return wrong(&error.to_string()),
    };
    if !matches!(url.scheme, "nats" | "tls") {
        return wrong("is neither nats:// nor tls://");
    }
    if !is_host(url.host) || url.port == Some(0) || !matches!(url.path, "" | "/") {
        return wrong("has no valid host and port");
    }
    let (host, port) = (url.bracketed_host(), url.port.unwrap_or(NATS_PORT));
    let url_text = format!("{}://{host}:{port}", url.scheme);
    Ok(EngineServer { url: url_text, is_loopback: url.is_loopback() })
}

/// Whether a node of a cluster can have the name.
///
/// # Errors
///
/// What is valid.
pub fn check_node_name(name: &str) -> Result<(), String> {
    if (1..=NODE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_node_byte) {
        return Ok(());
    }
    Err(format!("must be 1 to {NODE_BYTES_MAX} letters, digits, `.`, `-` or `_`, got '{name}'"))
}

/// Whether the text is HOST:PORT, with a host name or an address.
pub fn is_host_and_port(text: &str) -> bool {
    text.len() <= ADVERTISE_BYTES_MAX
        && net::host_and_port(text)
            .is_ok_and(|(host, port)| is_host(host) && port.is_some_and(|port| port != 0))
}

/// What a Server Reference takes.
fn is_address(text: &str) -> bool {
    net::host_and_port(text).is_ok_and(|(host, port)| is_host(host) && port != Some(0))
}

/// A host name, or an address of IPv4 or IPv6.
fn is_host(host: &str) -> bool {
    endpoint::is_host_name(host) || host.parse::<std::net::Ipv6Addr>().is_ok()
}

fn is_node_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_".contains(&byte)
}

const SECTION: Section = RawCluster::SECTION;
const TLS: Section = RawClusterTls::SECTION;

/// Names of streams and subjects are made from it.
const NAME_BYTES_MAX: usize = 32;
/// The longest host name of Linux.
const NODE_BYTES_MAX: usize = 64;
const SERVERS_MAX: usize = 32;
const ADVERTISE_BYTES_MAX: usize = 256;
const NATS_PORT: u16 = 4222;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, DurabilityLevel, Loaded, SourceFile, Sources, load, print};

    const MACHINE: Machine =
        Machine { host_name: || Some("host7".into()), memory_bytes: 1 << 30, ..Machine::UNKNOWN };

    fn loaded(text: &str) -> Result<Loaded, String> {
        let file = SourceFile { path: "quelea.toml".into(), text: text.into() };
        let sources = Sources { file: Some(file), ..Sources::default() };
        load(&sources, &MACHINE).map_err(|error| error.to_string())
    }

    /// With what else there has to be.
    fn with(keys: &str) -> String {
        format!("[cluster]\nname = \"plant1\"\nservers = [\"tls://nats1\"]\n{keys}\n")
    }

    #[test]
    fn a_cluster_is_configured_by_its_name_and_servers() {
        let text = "[cluster]\nname = \"plant1\"\nservers = [\"nats://127.0.0.1\", \
                    \"nats://[::1]:4223/\", \"nats://nats2.example:5000\"]\n";
        let own = loaded(text).unwrap().config.cluster.unwrap();
        assert_eq!((&*own.name, &*own.node), ("plant1", "host7"));
        let servers: Vec<_> =
            own.servers.iter().map(|server| (&*server.url, server.is_loopback)).collect();
        assert_eq!(
            servers,
            [
                ("nats://127.0.0.1:4222", true),
                ("nats://[::1]:4223", true),
                ("nats://nats2.example:5000", false)
            ]
        );
        assert_eq!((own.login, own.tls), (EngineLogin::Nothing, None));
        assert_eq!((own.advertise, own.redirect, own.stream_bytes_max), (None, false, None));
        assert_eq!(own.append_interval_ms, 5);
    }

    #[test]
    fn quorum_needs_a_cluster_and_in_one_the_other_levels_are_noted() {
        let quorum = "[durability]\nlevel = \"quorum\"\n";
        let problems = loaded(quorum).unwrap_err().to_string();
        assert!(problems.contains("durability.level"), "{problems}");
        assert!(problems.contains("configure [cluster], or use \"fsync\""), "{problems}");
        let topics = "[durability]\ntopics = [\"a/#=quorum\"]\n";
        let problems = loaded(topics).unwrap_err().to_string();
        assert!(problems.contains("durability.topics"), "{problems}");
        let listener = "[[listeners]]\nurl = \"tcp://127.0.0.1:1999\"\ndurability = \"quorum\"\n";
        let problems = loaded(listener).unwrap_err().to_string();
        assert!(problems.contains("listeners.0.durability"), "{problems}");

        let cluster = "[cluster]\nname = \"plant1\"\nservers = [\"tls://nats1\"]\n";
        let config = loaded(&format!("{cluster}{quorum}")).unwrap().config;
        assert_eq!(config.durability.level, DurabilityLevel::Quorum);
        let is_noted = |config: &Config| {
            let notes = crate::notes(config);
            notes.iter().any(|note| note.contains("\"fsync\" is treated as \"quorum\""))
        };
        assert!(!is_noted(&config));
        let config = loaded(cluster).unwrap().config;
        assert!(is_noted(&config));
    }

    #[test]
    fn without_keys_there_is_no_cluster() {
        for text in ["", "[cluster]\n", "[cluster]\nname = \"\"\nredirect = false\n"] {
            assert_eq!(loaded(text).unwrap().config.cluster, None, "{text}");
        }
    }

    #[test]
    fn logins_and_files_of_tls_are_relative_to_the_file() {
        let text = with(
            "node = \"n.1\"\ncredentials_file = \"a.creds\"\nca_file = \"ca\"\n\
             cert_file = \"cert\"\nkey_file = \"key\"\nadvertise = \"b1:8883\"\nredirect = true\n\
             stream_bytes_max = \"2GiB\"\nappend_interval_ms = 0",
        );
        let loaded = loaded(&text).unwrap();
        let own = loaded.config.cluster.clone().unwrap();
        assert_eq!(own.node, "n.1");
        assert_eq!(own.login, EngineLogin::Credentials("a.creds".into()));
        let client = Some(("cert".into(), "key".into()));
        assert_eq!(own.tls, Some(EngineTls { ca: Some("ca".into()), client }));
        assert_eq!((own.redirect, own.stream_bytes_max), (true, Some(2 << 30)));
        assert_eq!(own.append_interval_ms, 0);
        assert!(print::effective(&loaded).contains("node = \"n.1\" # quelea.toml:4\n"));
    }

    #[test]
    fn links_have_an_address_and_files() {
        let tls = "[cluster.tls]\ncertificate = \"c\"\nkey = \"k\"\nca = \"a\"";
        let listen = "listen = \"[::]:7883\"";
        let own = loaded(&with(&format!("{listen}\n{tls}"))).unwrap().config.cluster.unwrap();
        let links = LinkConfig {
            listen: "[::]:7883".parse().unwrap(),
            certificate: "c".into(),
            key: "k".into(),
            ca: "a".into(),
        };
        assert_eq!(own.links, Some(links));
        for (keys, expected) in [
            (tls.to_owned(), "cluster.tls: has no effect without cluster.listen"),
            (listen.to_owned(), "cluster.tls: cluster.listen needs certificate, key and ca"),
            (
                format!("{listen}\n[cluster.tls]\nkey = \"k\"\nca = \"a\""),
                "cluster.tls: cluster.listen needs certificate, key and ca",
            ),
            (
                format!("listen = \"host:7883\"\n{tls}"),
                "quelea.toml:4: cluster.listen: must be an address and port such as 0.0.0.0:7883, \
                 got 'host:7883'",
            ),
        ] {
            let error = loaded(&with(&keys)).unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
        let error = loaded("[cluster.tls]\nca = \"a\"\n").unwrap_err();
        assert!(error.contains("cluster.name: is missing"), "{error}");
    }

    #[test]
    fn wrong_values_are_refused_with_place_and_remedy() {
        for (keys, expected) in [
            ("node = \"a b\"", "quelea.toml:4: cluster.node: must be 1 to 64 letters"),
            ("username = \"a\"", "cluster.username: needs password_file"),
            ("password_file = \"a\"", "cluster.password_file: needs username"),
            (
                "credentials_file = \"a\"\nnkey_seed_file = \"b\"",
                "cluster.nkey_seed_file: credentials_file is set as well",
            ),
            ("cert_file = \"a\"", "cluster.cert_file: needs key_file"),
            ("key_file = \"a\"", "cluster.key_file: needs cert_file"),
            ("redirect = true", "cluster.redirect: needs advertise"),
            ("advertise = \"a b\"", "cluster.advertise: must be HOST or HOST:PORT, got 'a b'"),
            ("advertise = \"a:0\"", "cluster.advertise: must be HOST or HOST:PORT, got 'a:0'"),
            ("stream_bytes_max = 0", "cluster.stream_bytes_max: must be a size"),
        ] {
            let error = loaded(&with(keys)).unwrap_err();
            assert!(error.contains(expected), "{keys}: {error}");
        }
    }

    #[test]
    fn wrong_names_and_servers_are_refused() {
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for name in ["a.b", "a b", "\u{e4}", &long] {
            let text = format!("[cluster]\nname = \"{name}\"\nservers = [\"nats://a\"]\n");
            let error = loaded(&text).unwrap_err();
            assert!(error.starts_with("quelea.toml:2: cluster.name: must be 1 to 32 "), "{error}");
        }
        let error = loaded("[cluster]\nnode = \"a\"\n").unwrap_err();
        assert!(error.contains("cluster.name: is missing"), "{error}");
        assert!(
            error.contains("cluster.servers: must have between 1 and 32 NATS servers"),
            "{error}"
        );
        for (servers, expected) in [
            ("\"a:4222\"", "has no scheme"),
            ("\"http://a\"", "is neither nats:// nor tls://"),
            ("\"nats://a:0\"", "has no valid host and port"),
            ("\"nats://a/b\"", "has no valid host and port"),
            ("\"nats://::1\"", "has an invalid host"),
            ("\"nats://\"", "has no valid host and port"),
            ("\"nats://a\", \"nats://a:4222\"", "is listed twice"),
            ("\"nats://a\", \"tls://b\"", "some are nats:// and some tls://"),
        ] {
            let text = format!("[cluster]\nname = \"a\"\nservers = [{servers}]\n");
            let error = loaded(&text).unwrap_err();
            assert!(error.contains(expected), "{servers}: {error}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_refused_and_not_repeated() {
        let text = "[cluster]\nname = \"a\"\nservers = [\"nats://u:secret@a\"]\n";
        let error = loaded(text).unwrap_err();
        assert!(error.contains("must not contain a user"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn files_of_tls_and_levels_that_have_no_effect_are_refused() {
        let text = "[cluster]\nname = \"a\"\nservers = [\"nats://a\"]\nca_file = \"ca\"\n";
        let error = loaded(text).unwrap_err();
        assert!(error.contains("cluster.ca_file: has no effect with nats://"), "{error}");
        let error = loaded(&format!("[durability]\nlevel = \"memory\"\n{}", with(""))).unwrap_err();
        assert!(
            error.contains("quelea.toml:2: durability.level: \"memory\" stores nothing"),
            "{error}"
        );
    }

    #[test]
    fn a_machine_without_a_usable_host_name_needs_a_node_name() {
        let file = SourceFile { path: "quelea.toml".into(), text: with("") };
        let sources = Sources { file: Some(file), ..Sources::default() };
        for (host_name, expected) in [
            ((|| None) as fn() -> Option<String>, "cluster.node: is missing"),
            (|| Some("a:b".into()), "`-` or `_`, got 'a:b' (the host name)"),
        ] {
            let error = load(&sources, &Machine { host_name, ..MACHINE }).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
