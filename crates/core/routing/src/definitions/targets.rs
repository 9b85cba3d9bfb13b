//! `[[targets]]`.

use toml::de::DeValue;

use super::reader::{Origin, Reader, Table};
use super::{
    HeaderSpec, HeaderValueSpec, HttpSpec, HttpValidation, KafkaCompression, KafkaSpec,
    SERVERS_MAX, SaslMechanism, SaslSpec, SecretSpec, TargetKind, TargetSpec, TlsSpec,
    TokenEndpointSpec,
};
use crate::enrich::Enrichments;
use crate::form::Binding;
use crate::property::{PROPERTY_BYTES_MAX, Property, is_value};
use crate::rule::check_url;

const COMMON_KEYS: [&str; 5] = ["name", "type", "headers", "tls", "timeout_secs"];
const HTTP_KEYS: [&str; 5] = ["url", "validation", "origin", "refused_statuses", "requests_max"];
const KAFKA_KEYS: [&str; 8] = [
    "servers",
    "client_id",
    "compression",
    "event_hubs",
    "sasl",
    "record_bytes_max",
    "linger_ms",
    "delivery_timeout_secs",
];
/// For operators of the broker only: by an API anybody could reach the machine's own networks.
const NETWORKS_KEY: &str = "networks";
/// By an API: the namespace whose users have defined it. The operator's targets have none.
const NAMESPACE_KEY: &str = "namespace";
const TLS_KEYS: [&str; 3] = ["ca", "certificate", "key"];
const HEADER_KEYS: [&str; 2] = ["file", "path"];

/// Headers of a target, as Event Grid allows them.
const HEADERS_MAX: usize = 10;
/// Status codes of a list.
const STATUSES_MAX: usize = 100;
/// Records of Kafka: its library sends no more in one request.
const RECORD_BYTES_LIMIT: u64 = 64 << 20;
const RECORD_BYTES: u64 = 1 << 20;
/// The username with which Event Hubs expects a connection string.
const EVENT_HUBS_USERNAME: &str = "$ConnectionString";

pub(super) fn target(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    name: String,
) -> Option<TargetSpec> {
    let is_kafka = match table.get("type") {
        Some(_) => reader.word(table, "type", &[("http", false), ("kafka", true)]),
        None => {
            let detail = "missing: must be \"http\" or \"kafka\"".into();
            reader.problem_at(table, "type", detail);
            None
        }
    };
    let origin = reader.origin;
    let Some(is_kafka) = is_kafka else {
        reader.check_keys(table, &[keys(origin, false), keys(origin, true)].concat());
        return None;
    };
    let everywhere =
        [Origin::File, Origin::Api].map(|it| [keys(it, false), keys(it, true)].concat());
    let word = match (is_kafka, origin) {
        (true, Origin::File) => "a target of type kafka",
        (false, Origin::File) => "a target of type http",
        (true, Origin::Api) => "a target of type kafka, defined by the API,",
        (false, Origin::Api) => "a target of type http, defined by the API,",
    };
    reader.check_keys_of(table, &keys(origin, is_kafka), &everywhere.concat(), word);
    let networks = reader.texts(table, NETWORKS_KEY, SERVERS_MAX).unwrap_or_default();
    let namespace = reader.text(table, NAMESPACE_KEY);
    let kind = match is_kafka {
        true => TargetKind::Kafka(kafka(reader, table)?),
        false => TargetKind::Http(http(reader, table)?),
    };
    Some(TargetSpec { name, namespace, networks, kind })
}

fn keys(origin: Origin, is_kafka: bool) -> Vec<&'static str> {
    let mut keys = COMMON_KEYS.to_vec();
    match is_kafka {
        true => keys.extend(KAFKA_KEYS),
        false => {
            keys.extend(HTTP_KEYS);
            keys.push(SIGNING_SECRET.key(origin));
        }
    }
    keys.push(match origin {
        Origin::File => NETWORKS_KEY,
        Origin::Api => NAMESPACE_KEY,
    });
    keys
}

/// A key of a secret. The operator names a file. By an API, which could name any file of the
/// machine, the secret is written in its place.
#[derive(Clone, Copy)]
struct SecretKey {
    of_file: &'static str,
    of_api: &'static str,
}

const SIGNING_SECRET: SecretKey =
    SecretKey { of_file: "signing_secret_file", of_api: "signing_secret" };
const PASSWORD: SecretKey = SecretKey { of_file: "password_file", of_api: "password" };
const TOKEN: SecretKey = SecretKey { of_file: "token_file", of_api: "token" };
const CLIENT_SECRET: SecretKey =
    SecretKey { of_file: "client_secret_file", of_api: "client_secret" };

/// Tokens of identity providers have a few kilobytes.
const SECRET_BYTES_MAX: usize = 64 * 1024;

impl SecretKey {
    const fn key(self, origin: Origin) -> &'static str {
        match origin {
            Origin::File => self.of_file,
            Origin::Api => self.of_api,
        }
    }

    /// None: the key is missing, or it has been reported what is wrong.
    fn read(self, reader: &mut Reader<'_>, table: &Table<'_>) -> Option<SecretSpec> {
        let key = self.key(reader.origin);
        let text = reader.text(table, key)?;
        if reader.origin == Origin::File {
            return Some(SecretSpec::File(text));
        }
        let is_valid = (1..=SECRET_BYTES_MAX).contains(&text.len());
        if !is_valid || text.contains(['\r', '\n']) {
            let detail = format!("must have 1 to {SECRET_BYTES_MAX} bytes, without line breaks");
            reader.problem_at(table, key, detail);
        }
        Some(SecretSpec::Text(text))
    }

    /// A missing one is a problem.
    fn required(self, reader: &mut Reader<'_>, table: &Table<'_>) -> SecretSpec {
        let key = self.key(reader.origin);
        if table.get(key).is_none() {
            reader.problem_at(table, key, "missing: must be a text".into());
        }
        self.read(reader, table).unwrap_or_else(|| SecretSpec::Text(String::new()))
    }
}

fn http(reader: &mut Reader<'_>, table: &Table<'_>) -> Option<HttpSpec> {
    let url = reader.required_text(table, "url");
    if table.get("url").is_some()
        && let Err(error) = check_url(&url)
    {
        reader.problem_at(table, "url", error.detail);
    }
    let validation = validation(reader, table);
    let statuses = reader.numbers(table, "refused_statuses", STATUSES_MAX, 400..=499);
    Some(HttpSpec {
        headers: headers(reader, table, false),
        tls: tls(reader, table),
        validation,
        signing_secret: SIGNING_SECRET.read(reader, table),
        refused_statuses: statuses.map(|all| all.into_iter().map(|code| code as u16).collect()),
        requests_max: reader.count(table, "requests_max", 1..=256).unwrap_or(4) as usize,
        timeout_secs: reader.secs(table, "timeout_secs", 1..=600).unwrap_or(30),
        url,
    })
}

fn validation(reader: &mut Reader<'_>, table: &Table<'_>) -> HttpValidation {
    let words = [("none", 0), ("cloudevents", 1), ("event_grid", 2)];
    let word = reader.word(table, "validation", &words).unwrap_or(0);
    if word == 1 {
        return HttpValidation::CloudEvents { origin: reader.required_text(table, "origin") };
    }
    if table.get("origin").is_some() {
        reader.problem_at(table, "origin", "needs validation = \"cloudevents\"".into());
    }
    match word {
        2 => HttpValidation::EventGrid,
        _ => HttpValidation::None,
    }
}

/// Headers of requests, or of records.
fn headers(reader: &mut Reader<'_>, table: &Table<'_>, is_kafka: bool) -> Vec<HeaderSpec> {
    let Some(table) = reader.table(table, "headers") else { return Vec::new() };
    let mut all = Vec::new();
    for (key, value) in table.table.iter() {
        let name: &str = key.get_ref();
        let value = match value.get_ref() {
            DeValue::String(text) => HeaderValueSpec::Text(text.to_string()),
            DeValue::Table(_) => {
                let Some(inner) = reader.table(&table, name) else { continue };
                let Some(value) = header_value(reader, &inner, name, is_kafka) else { continue };
                value
            }
            other => {
                let file = if is_kafka { "" } else { ", { file = \"PATH\" }" };
                let got = other.type_str();
                let detail = format!("must be a text{file} or {{ path = \"KEY\" }}, got {got}");
                reader.problem(value.span().start, &table.key(name), detail);
                continue;
            }
        };
        if let HeaderValueSpec::Text(text) = &value
            && !is_value(text)
        {
            let detail =
                format!("must have at most {PROPERTY_BYTES_MAX} printable ASCII characters");
            reader.problem_at(&table, name, detail);
        }
        if name.to_ascii_lowercase().starts_with("aeg-") {
            let detail = "must not begin with aeg-, which Event Grid uses";
            reader.problem(key.span().start, &table.key(name), detail.into());
        }
        let is_of_event = matches!(value, HeaderValueSpec::Path(_));
        let binding = if is_kafka { Binding::Kafka } else { Binding::Http };
        if (is_kafka || is_of_event) && binding.sets(name) {
            let prefix = binding.prefix();
            let detail = format!(
                "must not be content-type or begin with {prefix}: the form of a rule sets these"
            );
            reader.problem(key.span().start, &table.key(name), detail);
        }
        if is_kafka && name.is_empty() {
            reader.problem(key.span().start, &table.path, "names must not be empty".into());
        }
        all.push(HeaderSpec { name: name.into(), value });
    }
    if all.len() > HEADERS_MAX {
        let detail = format!("must have at most {HEADERS_MAX} headers, got {}", all.len());
        reader.problem(table.span.start, &table.path, detail);
    }
    all
}

/// The table of a header whose value is elsewhere.
fn header_value(
    reader: &mut Reader<'_>,
    table: &Table<'_>,
    name: &str,
    is_kafka: bool,
) -> Option<HeaderValueSpec> {
    let word = match (is_kafka, reader.origin) {
        (true, _) => Some("a header of Kafka"),
        (false, Origin::Api) => Some("a header of a target that the API defines"),
        (false, Origin::File) => None,
    };
    if let Some(word) = word {
        reader.check_keys_of(table, &HEADER_KEYS[1..], &HEADER_KEYS[..1], word);
        return Some(HeaderValueSpec::Path(header_path(reader, table, name)));
    }
    reader.check_keys(table, &HEADER_KEYS);
    if table.get("path").is_none() {
        return Some(HeaderValueSpec::File(reader.required_text(table, "file")));
    }
    if table.get("file").is_some() {
        reader.problem_at(table, "file", "must not be set with path: remove one of them".into());
    }
    Some(HeaderValueSpec::Path(header_path(reader, table, name)))
}

fn header_path(reader: &mut Reader<'_>, table: &Table<'_>, name: &str) -> String {
    let path = reader.required_text(table, "path");
    // Names of enrichments are known in rules only. Any of them may be an attribute.
    if table.get("path").is_some()
        && let Err(error) = Property::new(name, &path, &Enrichments::default())
    {
        reader.problem_at(table, "path", error.detail);
    }
    path
}

fn kafka(reader: &mut Reader<'_>, table: &Table<'_>) -> Option<KafkaSpec> {
    let servers = reader.texts(table, "servers", SERVERS_MAX).unwrap_or_default();
    if servers.is_empty() {
        let detail = "must name at least one server, as in [\"kafka.example:9092\"]";
        reader.problem_at(table, "servers", detail.into());
    }
    let words = [
        ("none", KafkaCompression::None),
        ("gzip", KafkaCompression::Gzip),
        ("lz4", KafkaCompression::Lz4),
        ("zstd", KafkaCompression::Zstd),
    ];
    let compression = reader.word(table, "compression", &words).unwrap_or_default();
    let is_event_hubs = reader.flag(table, "event_hubs").unwrap_or(false);
    if is_event_hubs && !matches!(compression, KafkaCompression::None | KafkaCompression::Gzip) {
        let detail = "must be \"none\" or \"gzip\" for Event Hubs";
        reader.problem_at(table, "compression", detail.into());
    }
    let is_off = matches!(table.get("tls").map(|it| it.get_ref()), Some(DeValue::Boolean(false)));
    if is_event_hubs && is_off {
        reader.problem_at(table, "tls", "must not be false: Event Hubs needs TLS".into());
    }
    let timeout_secs = reader.secs(table, "timeout_secs", 1..=600).unwrap_or(10);
    let record_bytes = reader.size(table, "record_bytes_max", 1..=RECORD_BYTES_LIMIT);
    Some(KafkaSpec {
        servers,
        client_id: reader.text(table, "client_id").unwrap_or_else(|| "quelea".into()),
        headers: headers(reader, table, true),
        compression,
        tls: kafka_tls(reader, table, is_event_hubs),
        sasl: sasl(reader, table, is_event_hubs),
        record_bytes_max: record_bytes.unwrap_or(RECORD_BYTES),
        linger_ms: reader.count(table, "linger_ms", 0..=10_000).unwrap_or(2),
        timeout_secs,
        delivery_timeout_secs: delivery_timeout(reader, table, timeout_secs),
    })
}

/// Three requests fit into it by default.
fn delivery_timeout(reader: &mut Reader<'_>, table: &Table<'_>, timeout_secs: u64) -> u64 {
    let own = reader.secs(table, "delivery_timeout_secs", 1..=3_600);
    own.unwrap_or(3 * timeout_secs)
}

/// `tls = true`, or a table with files.
fn kafka_tls(reader: &mut Reader<'_>, table: &Table<'_>, is_event_hubs: bool) -> Option<TlsSpec> {
    match table.get("tls").map(|value| value.get_ref()) {
        None => is_event_hubs.then(TlsSpec::default),
        Some(DeValue::Boolean(is_on)) => is_on.then(TlsSpec::default),
        Some(_) => Some(tls(reader, table)),
    }
}

fn tls(reader: &mut Reader<'_>, table: &Table<'_>) -> TlsSpec {
    let Some(table) = reader.table(table, "tls") else { return TlsSpec::default() };
    match reader.origin {
        Origin::File => reader.check_keys(&table, &TLS_KEYS),
        Origin::Api => {
            let word = "a target that the API defines uses the authorities of the system, and";
            reader.check_keys_of(&table, &[], &TLS_KEYS, word);
            return TlsSpec::default();
        }
    }
    let tls = TlsSpec {
        ca: reader.text(&table, "ca"),
        certificate: reader.text(&table, "certificate"),
        key: reader.text(&table, "key"),
    };
    for (own, other) in [("certificate", "key"), ("key", "certificate")] {
        if table.get(own).is_some() && table.get(other).is_none() {
            reader.problem_at(&table, own, format!("needs {other}"));
        }
    }
    tls
}

/// The kinds of a login, with the keys that they need.
#[derive(Clone, Copy)]
enum Mechanism {
    Password(SaslMechanism),
    Token,
}

const MECHANISMS: [(&str, Mechanism); 4] = [
    ("PLAIN", Mechanism::Password(SaslMechanism::Plain)),
    ("SCRAM-SHA-256", Mechanism::Password(SaslMechanism::ScramSha256)),
    ("SCRAM-SHA-512", Mechanism::Password(SaslMechanism::ScramSha512)),
    ("OAUTHBEARER", Mechanism::Token),
];
/// Of a login with a password.
fn password_keys(origin: Origin) -> [&'static str; 2] {
    ["username", PASSWORD.key(origin)]
}

/// Of OAUTHBEARER. The first one excludes the others.
fn token_keys(origin: Origin) -> [&'static str; 6] {
    [TOKEN.key(origin), "token_url", "client_id", CLIENT_SECRET.key(origin), "scope", CA_KEY]
}

/// It is a file as well.
const CA_KEY: &str = "ca";

fn sasl(reader: &mut Reader<'_>, table: &Table<'_>, is_event_hubs: bool) -> Option<SaslSpec> {
    if table.get("sasl").is_none() {
        if is_event_hubs {
            let detail = "missing: Event Hubs needs a connection string";
            let key = format!("sasl.{}", PASSWORD.key(reader.origin));
            reader.problem_at(table, &key, detail.into());
        }
        return None;
    }
    let table = reader.table(table, "sasl")?;
    let mechanism = match table.get("mechanism") {
        None if is_event_hubs => Mechanism::Password(SaslMechanism::Plain),
        None => {
            let words: Vec<_> = MECHANISMS.iter().map(|(word, _)| *word).collect();
            let detail = format!("missing: must be one of {}", words.join(", "));
            reader.problem_at(&table, "mechanism", detail);
            return None;
        }
        Some(_) => reader.word(&table, "mechanism", &MECHANISMS)?,
    };
    let origin = reader.origin;
    let of_file = [&password_keys(Origin::File)[..], &token_keys(Origin::File)].concat();
    match mechanism {
        Mechanism::Password(mechanism) => {
            let keys = [&["mechanism"][..], &password_keys(origin)].concat();
            let others = [&token_keys(origin)[..], &of_file].concat();
            reader.check_keys_of(&table, &keys, &others, "a login with a password");
            let username = match table.get("username") {
                None if is_event_hubs => EVENT_HUBS_USERNAME.into(),
                _ => reader.required_text(&table, "username"),
            };
            let password = PASSWORD.required(reader, &table);
            Some(SaslSpec::Password { mechanism, username, password })
        }
        Mechanism::Token => {
            let mut keys = [&["mechanism"][..], &token_keys(origin)].concat();
            keys.retain(|key| *key != CA_KEY || origin == Origin::File);
            let others = [&password_keys(origin)[..], &of_file].concat();
            reader.check_keys_of(&table, &keys, &others, "OAUTHBEARER");
            Some(token(reader, &table))
        }
    }
}

/// A token, or an endpoint that issues them.
fn token(reader: &mut Reader<'_>, table: &Table<'_>) -> SaslSpec {
    let keys = token_keys(reader.origin);
    let has_token = table.get(keys[0]).is_some();
    if !has_token && table.get("token_url").is_none() {
        let detail = format!("missing: OAUTHBEARER needs {} or token_url", keys[0]);
        reader.problem_at(table, "token_url", detail);
    }
    if has_token {
        for other in &keys[1..] {
            if table.get(other).is_some() {
                reader.problem_at(table, other, format!("must not be set with {}", keys[0]));
            }
        }
        return SaslSpec::Token { token: TOKEN.required(reader, table) };
    }
    SaslSpec::TokenEndpoint(TokenEndpointSpec {
        url: reader.text(table, "token_url").unwrap_or_default(),
        client_id: reader.required_text(table, "client_id"),
        client_secret: CLIENT_SECRET.required(reader, table),
        scope: reader.text(table, "scope"),
        ca: reader.text(table, CA_KEY).filter(|_| reader.origin == Origin::File),
    })
}
