//! What `pub` and `sub` have in common: where to connect, as whom, and how it can fail.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use clap::{ArgAction, Args};
use client::blocking::{Client, ClientError, Connected};
use client::{ConnectOptions, Endpoint, TlsOptions, WillOptions};
use codec::{Property, QoS, Reason, Version};
use web::percent_decoded;

use identity::auth::scram;

use super::property::GivenProperties;
use base::{EXIT_FAILURE, EXIT_TIMEOUT, EXIT_USAGE, complain};

/// The flags of `mosquitto_pub` and `mosquitto_sub`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectionArgs {
    /// Host to connect to.
    #[arg(short = 'h', long, default_value = "localhost", value_name = "HOST")]
    pub host: String,
    /// Port. Default: 1883, 8883 with TLS, 80 with --ws, 443 with both.
    #[arg(short, long, value_name = "N")]
    pub port: Option<u16>,
    /// Connect to this Unix socket instead.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["port", "url"])]
    pub unix: Option<String>,
    /// URL instead of -h, -p, -u, -P and -t: mqtt[s]://[user[:password]@]host[:port]/topic, or
    /// ws[s]://.
    #[arg(short = 'L', long, value_name = "URL")]
    pub url: Option<String>,
    /// Client ID. Default: the broker chooses one.
    #[arg(short, long, value_name = "ID")]
    pub id: Option<String>,
    /// Prefix of a client ID that ends in the process ID.
    #[arg(short = 'I', long, value_name = "PREFIX", conflicts_with = "id")]
    pub id_prefix: Option<String>,
    /// Username.
    #[arg(short, long, value_name = "NAME")]
    pub username: Option<String>,
    /// Password.
    #[arg(short = 'P', long = "pw", value_name = "PASSWORD", requires = "username")]
    #[arg(allow_hyphen_values = true)]
    pub password: Option<String>,
    /// Prove the password with SCRAM-SHA-256 instead of sending it (MQTT 5).
    #[arg(long, requires = "password")]
    pub scram: bool,
    /// MQTT version: 5, 311 or 31 (also mqttv5, mqttv311, mqttv31).
    #[arg(short = 'V', long, default_value = "5", value_parser = parse_version)]
    #[arg(value_name = "VERSION")]
    pub protocol_version: Version,
    /// Keep alive in seconds; 0: none.
    #[arg(short, long, default_value_t = 60, value_name = "SECS")]
    pub keepalive: u16,
    /// Keep the session after the end of the connection. Needs -i.
    #[arg(short = 'c', long)]
    pub disable_clean_session: bool,
    /// How long the session is kept, in seconds, or "never" for no expiry (MQTT 5).
    #[arg(short = 'x', long, value_parser = parse_expiry, value_name = "SECS")]
    #[arg(allow_hyphen_values = true)]
    pub session_expiry_interval: Option<u32>,
    /// MQTT 5 property: a command (connect, will, publish, subscribe, ...), a name and a value.
    #[arg(short = 'D', long, num_args = 3..=4, action = ArgAction::Append,
          value_names = ["COMMAND", "PROPERTY", "VALUE"])]
    pub property: Vec<String>,
    /// Local address to connect from.
    #[arg(short = 'A', long, value_name = "ADDRESS")]
    pub bind: Option<IpAddr>,
    /// Accepted for compatibility: Nagle's algorithm is always off.
    #[arg(long, hide = true)]
    pub nodelay: bool,
    /// Use MQTT over WebSocket.
    #[arg(long)]
    pub ws: bool,
    /// Path of the WebSocket.
    #[arg(long, default_value = "/mqtt", value_name = "PATH")]
    pub ws_path: String,
    /// Timeout of each answer of the broker, in seconds.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(value_name = "SECS")]
    pub answer_timeout: u64,
    /// Print progress to standard error.
    #[arg(short, long)]
    pub debug: bool,
    /// Do not print errors.
    #[arg(long)]
    pub quiet: bool,
    #[command(flatten)]
    pub tls: TlsArgs,
    #[command(flatten)]
    pub will: WillArgs,
}

/// TLS flags.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub struct TlsArgs {
    /// Use TLS, and trust the CA certificates of the system.
    #[arg(long, alias = "tls-use-os-certs")]
    pub tls: bool,
    /// Use TLS, and trust the CA certificates of this file (PEM).
    #[arg(long, value_name = "FILE")]
    pub cafile: Option<String>,
    /// Client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<String>,
    /// Private key of the client certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<String>,
    /// Do not verify the broker's certificate (insecure).
    #[arg(long)]
    pub insecure: bool,
    /// Host name to verify in the certificate. Default: the host.
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
}

/// The will, which the broker publishes when the connection is lost.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Will")]
pub struct WillArgs {
    /// Topic of the will.
    #[arg(long, value_name = "TOPIC")]
    pub will_topic: Option<String>,
    /// Payload of the will.
    #[arg(long, value_name = "PAYLOAD", requires = "will_topic", allow_hyphen_values = true)]
    pub will_payload: Option<String>,
    /// QoS of the will.
    #[arg(long, default_value = "0", value_parser = parse_qos, value_name = "QOS")]
    pub will_qos: QoS,
    /// The will is retained.
    #[arg(long, requires = "will_topic")]
    pub will_retain: bool,
}

/// A client tool that failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("{0}")]
    Usage(String),
    #[error("{source}")]
    Client { source: ClientError, version: Version },
    #[error("{0}")]
    Failed(String),
    #[error("timeout")]
    TimedOut,
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
}

/// How and as whom to connect: [`ConnectionArgs`] checked.
#[derive(Clone, Debug)]
pub struct Connection {
    pub endpoint: Endpoint,
    pub options: ConnectOptions,
    pub properties: GivenProperties,
    pub timeout: Duration,
    /// The topic of the URL.
    pub topic: Option<String>,
    pub is_debug: bool,
    scram: bool,
}

impl ConnectionArgs {
    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// [`ToolError::Usage`].
    pub fn lower(&self) -> Result<Connection, ToolError> {
        let properties =
            GivenProperties::parse(&property_groups(&self.property)).map_err(ToolError::Usage)?;
        let is_v5 = self.protocol_version >= Version::V5;
        let usage = |text: &str| Err(ToolError::Usage(text.into()));
        if !is_v5 && (properties.is_any() || self.session_expiry_interval.is_some() || self.scram) {
            return usage("-D, -x and --scram need MQTT 5: omit -V");
        }
        if self.disable_clean_session && self.id.is_none() {
            return usage("-c needs -i: a session belongs to a client ID");
        }
        let url = self.url.as_deref().map(parse_url).transpose().map_err(ToolError::Usage)?;
        let url = url.unwrap_or_default();
        let mut options = ConnectOptions {
            version: self.protocol_version,
            client_id: self.client_id(),
            clean_start: !self.disable_clean_session,
            keep_alive_secs: self.keepalive,
            session_expiry_secs: self.session_expiry(),
            username: self.username.clone().or(url.username.clone()),
            password: self.password.clone().or(url.password.clone()).map(String::into_bytes),
            will: self.will(&properties),
            ..ConnectOptions::default()
        };
        apply(&properties, &mut options);
        Ok(Connection {
            endpoint: self.endpoint(&url),
            options,
            properties,
            timeout: Duration::from_secs(self.answer_timeout),
            topic: url.topic,
            is_debug: self.debug,
            scram: self.scram,
        })
    }

    fn client_id(&self) -> String {
        match (&self.id, &self.id_prefix) {
            (Some(id), _) => id.clone(),
            (None, Some(prefix)) => format!("{prefix}{}", std::process::id()),
            // Only since 3.1.1 may a broker choose (MQTT-3.1.3-6).
            (None, None) if self.protocol_version == Version::V31 => {
                format!("quelea-{}", std::process::id())
            }
            (None, None) => String::new(),
        }
    }

    /// A session that is to be kept is kept for ever, unless its time is stated.
    fn session_expiry(&self) -> u32 {
        let unstated = if self.disable_clean_session { u32::MAX } else { 0 };
        self.session_expiry_interval.unwrap_or(unstated)
    }

    fn will(&self, properties: &GivenProperties) -> Option<WillOptions> {
        let topic = self.will.will_topic.clone()?;
        let mut delay_secs = 0;
        let mut rest = codec::PropertyBuf::new();
        for property in properties.will.as_properties().iter() {
            match property {
                Property::WillDelaySecs(secs) => delay_secs = secs,
                other => {
                    rest.push(other);
                }
            }
        }
        Some(WillOptions {
            topic,
            payload: self.will.will_payload.clone().unwrap_or_default().into_bytes(),
            qos: self.will.will_qos,
            retain: self.will.will_retain,
            delay_secs,
            properties: rest,
        })
    }

    fn endpoint(&self, url: &UrlParts) -> Endpoint {
        let tls = &self.tls;
        let has_tls =
            url.has_tls || tls.tls || tls.cafile.is_some() || tls.insecure || tls.cert.is_some();
        let has_ws = url.has_ws || self.ws;
        let (scheme, default_port) = match (has_tls, has_ws) {
            (false, false) => ("tcp", 1883),
            (true, false) => ("tls", 8883),
            (false, true) => ("ws", 80),
            (true, true) => ("wss", 443),
        };
        let host = url.host.as_deref().unwrap_or(&self.host);
        let host = if host.contains(':') && !host.starts_with('[') {
            format!("[{host}]")
        } else {
            host.into()
        };
        let port = self.port.or(url.port).unwrap_or(default_port);
        let path = if has_ws { self.ws_path.as_str() } else { "" };
        let url = match &self.unix {
            Some(path) => format!("unix://{path}"),
            None => format!("{scheme}://{host}:{port}{path}"),
        };
        let tls = TlsOptions {
            ca_file: tls.cafile.clone(),
            insecure: tls.insecure,
            cert_file: tls.cert.clone(),
            key_file: tls.key.clone(),
            server_name: tls.server_name.clone(),
            ..TlsOptions::default()
        };
        Endpoint { url, tls, source: self.bind }
    }
}

impl Connection {
    /// Connects, by SCRAM where asked for.
    ///
    /// # Errors
    ///
    /// Whatever keeps the connection from being made.
    pub fn open(&self) -> Result<(Client, Connected), ToolError> {
        self.debug(&format_args!("connecting to {}", self.endpoint.url));
        let opened = match self.scram {
            true => self.open_with_scram()?,
            false => Client::connect(&self.endpoint, &self.options, self.timeout)
                .map_err(|source| self.not_opened(source))?,
        };
        let session = if opened.1.session_present { "found" } else { "new" };
        self.debug(&format_args!("connected, session {session}"));
        Ok(opened)
    }

    /// An error of the client, with what its exit code depends on.
    pub fn failed(&self, source: ClientError) -> ToolError {
        ToolError::Client { source, version: self.options.version }
    }

    /// As [`Connection::failed`]. Who breaks the protocol in the first answer does not speak it.
    fn not_opened(&self, source: ClientError) -> ToolError {
        match source {
            ClientError::Violation(violation) => ToolError::Failed(format!(
                "the server at {} does not speak MQTT ({violation}); use --tls or --cafile for a \
                port with TLS, --ws for one with WebSocket",
                self.endpoint.url
            )),
            other => self.failed(other),
        }
    }

    pub fn debug(&self, text: &dyn std::fmt::Display) {
        if self.is_debug {
            complain(text);
        }
    }

    fn open_with_scram(&self) -> Result<(Client, Connected), ToolError> {
        let username = self.options.username.clone().unwrap_or_default();
        let password = self.options.password.clone().unwrap_or_default();
        let (first, exchange) = scram::ClientExchange::start(&username);
        let mut options = self.options.clone();
        // The name goes in the exchange; the password does not go anywhere.
        options.username = None;
        options.password = None;
        options.auth = Some((scram::METHOD.into(), first));
        let mut proof = None;
        let mut answer = |challenge: &[u8]| {
            let (message, expected) =
                exchange.answer(challenge, &password).map_err(|e| e.to_string())?;
            proof = Some(expected);
            Ok(message)
        };
        let (client, connected) =
            Client::connect_with(&self.endpoint, &options, self.timeout, &mut answer)
                .map_err(|source| self.not_opened(source))?;
        let broker_proof =
            connected.properties.as_properties().iter().find_map(|property| match property {
                Property::AuthData(data) => Some(data.to_vec()),
                _ => None,
            });
        if broker_proof.is_none() || broker_proof != proof {
            let text = "the broker failed to prove that it knows the password: it may be an \
            impostor";
            return Err(ToolError::Failed(text.into()));
        }
        Ok((client, connected))
    }
}

impl ToolError {
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::TimedOut => EXIT_TIMEOUT,
            Self::Client { source: ClientError::Refused { reason, .. }, version } => {
                match version {
                    Version::V5 => reason.0,
                    _ => reason.connack_v3(),
                }
            }
            Self::Client { .. } | Self::Failed(_) | Self::Io { .. } => EXIT_FAILURE,
        }
    }

    pub fn refused(what: &str, reason: Reason) -> Self {
        Self::Failed(format!("{what} was refused: {reason} (0x{:02X})", reason.0))
    }

    /// Standard output was closed by whoever read it, who has had enough.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Turns the result of a tool into its exit code, and prints the error.
pub(crate) fn finish(result: Result<(), ToolError>, is_quiet: bool) -> u8 {
    match result {
        Ok(()) => base::EXIT_OK,
        Err(error) => {
            if !is_quiet && !error.is_broken_pipe() {
                complain(&error);
            }
            error.exit_code()
        }
    }
}

pub(crate) fn parse_qos(text: &str) -> Result<QoS, String> {
    match text {
        "0" => Ok(QoS::AtMostOnce),
        "1" => Ok(QoS::AtLeastOnce),
        "2" => Ok(QoS::ExactlyOnce),
        _ => Err("must be 0, 1 or 2".into()),
    }
}

/// The parts of a URL of `-L`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct UrlParts {
    has_tls: bool,
    has_ws: bool,
    username: Option<String>,
    password: Option<String>,
    host: Option<String>,
    port: Option<u16>,
    topic: Option<String>,
}

fn parse_url(url: &str) -> Result<UrlParts, String> {
    let wrong = || format!("-L {url}: write mqtt[s]://[user[:password]@]host[:port]/topic");
    let parts = net::Url::parse(url).map_err(|_| wrong())?;
    let (has_tls, has_ws) = match parts.scheme {
        "mqtt" => (false, false),
        "mqtts" => (true, false),
        "ws" => (false, true),
        "wss" => (true, true),
        _ => return Err(wrong()),
    };
    let decoded = |text: &str| percent_decoded(text).ok_or_else(wrong);
    let (username, password) =
        match parts.user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
            Some((name, "")) => (Some(decoded(name)?), None),
            Some((name, password)) => (Some(decoded(name)?), Some(decoded(password)?)),
            None => (None, None),
        };
    if parts.host.is_empty() {
        return Err(wrong());
    }
    let topic = parts.path.strip_prefix('/').filter(|topic| !topic.is_empty());
    let (host, topic) = (Some(parts.bracketed_host()), topic.map(Into::into));
    let port = parts.port;
    Ok(UrlParts { has_tls, has_ws, username, password, host, port, topic })
}

/// clap gives the words of all `-D` flags in one list. A group has three words, or four when it is
/// about a user property.
fn property_groups(words: &[String]) -> Vec<Vec<String>> {
    let mut groups = Vec::new();
    let mut rest = words;
    while !rest.is_empty() {
        let is_user = rest.get(1).is_some_and(|name| name == "user-property");
        let len = if is_user { 4 } else { 3 };
        let (group, tail) = rest.split_at(len.min(rest.len()));
        groups.push(group.to_vec());
        rest = tail;
    }
    groups
}

/// Puts the properties of CONNECT into the options, which hold them by name.
fn apply(properties: &GivenProperties, options: &mut ConnectOptions) {
    let (mut method, mut data) = (None, Vec::new());
    for property in properties.connect.as_properties().iter() {
        match property {
            Property::SessionExpirySecs(secs) => options.session_expiry_secs = secs,
            Property::ReceiveMax(max) => options.receive_max = Some(max),
            Property::PacketBytesMax(max) => options.packet_bytes_max = max,
            Property::TopicAliasMax(max) => options.topic_alias_max = max,
            Property::RequestProblemInfo(wanted) => options.request_problem_info = wanted,
            Property::RequestResponseInfo(wanted) => options.request_response_info = wanted,
            Property::User(name, value) => {
                options.user_properties.push((name.into(), value.into()))
            }
            Property::AuthMethod(name) => method = Some(name.to_owned()),
            Property::AuthData(bytes) => data = bytes.to_vec(),
            _ => {}
        }
    }
    options.auth = method.map(|method| (method, data));
}

fn parse_version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "mqttv5" => Ok(Version::V5),
        "311" | "3.1.1" | "mqttv311" => Ok(Version::V311),
        "31" | "3.1" | "mqttv31" => Ok(Version::V31),
        _ => Err("must be 5, 311 or 31".into()),
    }
}

fn parse_expiry(text: &str) -> Result<u32, String> {
    match text {
        "never" | "∞" | "-1" => Ok(u32::MAX),
        _ => text.parse().map_err(|_| "must be a number of seconds or `never`".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        connection: ConnectionArgs,
    }

    fn lower(line: &str) -> Result<Connection, ToolError> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap().connection.lower()
    }

    #[test]
    fn flags_make_a_url() {
        for (line, url) in [
            ("", "tcp://localhost:1883"),
            ("-h ::1 -p 2000", "tcp://[::1]:2000"),
            ("--cafile ca.pem", "tls://localhost:8883"),
            ("--ws --ws-path /x", "ws://localhost:80/x"),
            ("--ws --tls -h h", "wss://h:443/mqtt"),
            ("--unix /run/q", "unix:///run/q"),
            ("-L mqtt://h/t", "tcp://h:1883"),
            ("-L mqtts://u:p@[::1]:1/t/u", "tls://[::1]:1"),
            ("-L wss://h", "wss://h:443/mqtt"),
        ] {
            assert_eq!(lower(line).unwrap().endpoint.url, url, "{line}");
        }
    }

    #[test]
    fn a_url_says_who_and_what() {
        let connection = lower("-L mqtt://an%40na:p%3ass@h:7/home/lamp").unwrap();
        assert_eq!(connection.topic.as_deref(), Some("home/lamp"));
        assert_eq!(connection.options.username.as_deref(), Some("an@na"));
        assert_eq!(connection.options.password.as_deref(), Some(&b"p:ss"[..]));
        for url in ["h", "http://h", "mqtt://", "mqtt://h:x/", "mqtt://%zz@h"] {
            assert!(matches!(lower(&format!("-L {url}")), Err(ToolError::Usage(_))), "{url}");
        }
    }

    #[test]
    fn flags_make_a_connect_packet() {
        let line = "-i c -c -k 7 -u n -P p --will-topic w --will-payload x --will-qos 1 \
                    --will-retain -D connect user-property a b -D will \
                    will-delay-interval 9 -D connect receive-maximum 3";
        let connection = lower(line).unwrap();
        let options = &connection.options;
        assert_eq!((options.client_id.as_str(), options.keep_alive_secs), ("c", 7));
        assert!(!options.clean_start && options.session_expiry_secs == u32::MAX);
        let will = options.will.as_ref().unwrap();
        assert_eq!((will.topic.as_str(), will.delay_secs, will.retain), ("w", 9, true));
        assert_eq!(options.user_properties, [("a".into(), "b".into())]);
        assert_eq!(options.receive_max, Some(3));
        assert_eq!(lower("-x never").unwrap().options.session_expiry_secs, u32::MAX);
        assert!(lower("-I pre-").unwrap().options.client_id.starts_with("pre-"));
    }

    #[test]
    fn contradictions_are_reported() {
        for line in
            ["-c", "-V 311 -x 5", "-V 31 -D publish content-type x", "-V 311 --scram -u a -P b"]
        {
            let error = lower(line).unwrap_err();
            assert_eq!(error.exit_code(), EXIT_USAGE, "{line}: {error}");
        }
    }

    #[test]
    fn a_refusal_ends_with_its_code() {
        let refused = |version| {
            let source =
                ClientError::Refused { reason: Reason::NOT_AUTHORIZED, why: String::new() };
            ToolError::Client { source, version }.exit_code()
        };
        assert_eq!((refused(Version::V5), refused(Version::V311)), (0x87, 5));
        assert_eq!(ToolError::TimedOut.exit_code(), 27);
    }
}
