//! Targets of the file of rules as the settings of their clients. Files of secrets are read here
//! once, to report those that cannot be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::{NamespaceApi, Network};
use net::Url;
use routing::Form;
use routing::definitions::{
    HeaderValueSpec, HttpSpec, HttpValidation, KafkaCompression, KafkaSpec, SaslMechanism,
    SaslSpec, SecretSpec, TargetKind, TargetSpec, TlsSpec,
};
use targets::kafka::{self, Compression, Login, TokenEndpoint};
use targets::webhook::{self, Validation};
use targets::{Networks, Secret, TENANT_CONNECTIONS_MAX, TlsFiles};

/// The settings of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetSettings {
    Http(webhook::Settings),
    Kafka(kafka::Settings),
}

impl TargetSettings {
    /// The namespace whose users have defined the target. None: an operator has.
    pub(super) fn namespace(&self) -> Option<&str> {
        let networks = match self {
            Self::Http(own) => &own.networks,
            Self::Kafka(own) => &own.networks,
        };
        networks.namespace()
    }

    /// The same for a rule with this form.
    pub(crate) fn of_form(&self, form: Form) -> Self {
        let mut own = self.clone();
        if let Self::Http(settings) = &mut own {
            settings.is_batched = form == Form::Batch;
        }
        own
    }
}

/// A key of a target that is wrong, and why.
pub(super) type Wrong = (String, String);

/// What targets may connect to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Permits {
    /// Networks of all targets of the operator.
    pub(super) networks: Vec<Network>,
    /// What users of namespaces may define, by the names of these.
    pub(super) tenants: BTreeMap<String, NamespaceApi>,
}

impl Permits {
    /// Of a target that users of this namespace have defined. One that is not configured any more
    /// permits nothing.
    pub(super) fn of_namespace(&self, name: &str) -> Networks {
        let own = self.tenants.get(name).cloned().unwrap_or_default();
        Networks::of_namespace(name, own.target_hosts, own.target_networks)
    }
}

/// The settings of a target. Relative paths begin at `base`.
///
/// # Errors
///
/// All keys that are wrong, and files that cannot be used.
pub(super) fn settings(
    spec: &TargetSpec,
    base: &Path,
    permits: &Permits,
) -> Result<TargetSettings, Vec<Wrong>> {
    let mut lowering = Lowering { base, wrong: Vec::new() };
    let networks = match &spec.namespace {
        Some(namespace) => permits.of_namespace(namespace),
        None => lowering.networks(&spec.networks, &permits.networks),
    };
    let settings = match &spec.kind {
        TargetKind::Http(http) => TargetSettings::Http(lowering.http(http, networks)),
        TargetKind::Kafka(kafka) => TargetSettings::Kafka(lowering.kafka(kafka, networks)),
    };
    match lowering.wrong.is_empty() {
        true => Ok(settings),
        false => Err(lowering.wrong),
    }
}

/// The first thing of a target that is not permitted to users of a namespace, such as a host of a
/// server or a token endpoint. None: all is. What is not valid is reported elsewhere.
pub(super) fn check_permitted(spec: &TargetSpec, permitted: &Networks) -> Option<Wrong> {
    let mut hosts: Vec<(&str, Option<&str>)> = Vec::new();
    match &spec.kind {
        TargetKind::Http(http) if http.requests_max > TENANT_CONNECTIONS_MAX => {
            let detail = format!(
                "must be at most {TENANT_CONNECTIONS_MAX} for a target of a namespace, got {}",
                http.requests_max
            );
            return Some(("requests_max".to_owned(), detail));
        }
        TargetKind::Http(http) => {
            hosts.push(("url", Url::parse(&http.url).ok().map(|url| url.host)));
        }
        TargetKind::Kafka(kafka) => {
            let servers = kafka.servers.iter().map(|own| net::host_and_port(own).ok());
            hosts.extend(servers.map(|own| ("servers", own.map(|(host, _)| host))));
            if let Some(SaslSpec::TokenEndpoint(own)) = &kafka.sasl {
                hosts.push(("sasl.token_url", Url::parse(&own.url).ok().map(|url| url.host)));
            }
        }
    }
    let mut refused = hosts.into_iter().filter_map(|(key, host)| {
        let error = permitted.check_host(host?).err()?;
        Some((key.to_owned(), error.to_string()))
    });
    refused.next()
}

struct Lowering<'b> {
    base: &'b Path,
    wrong: Vec<Wrong>,
}

impl Lowering<'_> {
    fn networks(&mut self, own: &[String], permitted: &[Network]) -> Networks {
        let mut all = permitted.to_vec();
        for (index, text) in own.iter().enumerate() {
            match text.parse() {
                Ok(network) => all.push(network),
                Err(error) => self.note(&format!("networks.{index}"), format!("{error}")),
            }
        }
        Networks::permitting(all)
    }

    fn http(&mut self, spec: &HttpSpec, networks: Networks) -> webhook::Settings {
        let headers = spec.headers.iter().filter_map(|header| {
            let value = match &header.value {
                HeaderValueSpec::Text(text) => Secret::Text(text.clone()),
                HeaderValueSpec::File(path) => {
                    self.secret(&format!("headers.{}.file", header.name), path)
                }
                // The rule makes these for each event.
                HeaderValueSpec::Path(_) => {
                    if !webhook::is_free_header(&header.name) {
                        let error = webhook::SettingsError::Header(header.name.clone());
                        self.note(&format!("headers.{}", header.name), error.to_string());
                    }
                    return None;
                }
            };
            Some((header.name.clone(), value))
        });
        let headers = headers.collect();
        let signature = spec.signing_secret.as_ref();
        let signature = signature.map(|own| self.secret_of("signing_secret_file", own));
        let usual = webhook::Settings::new(&spec.url);
        let settings = webhook::Settings {
            headers,
            tls: self.tls(&spec.tls),
            networks,
            validation: match &spec.validation {
                HttpValidation::None => Validation::None,
                HttpValidation::CloudEvents { origin } => {
                    Validation::CloudEvents { origin: origin.clone() }
                }
                HttpValidation::EventGrid => Validation::EventGrid,
            },
            signature,
            permanent: spec.refused_statuses.clone().unwrap_or(usual.permanent),
            requests_max: spec.requests_max,
            request_time_max: Duration::from_secs(spec.timeout_secs),
            url: usual.url,
            is_batched: usual.is_batched,
        };
        if let Err(error) = settings.check() {
            self.note(key_of_http(&error), error.to_string());
        }
        settings
    }

    fn kafka(&mut self, spec: &KafkaSpec, networks: Networks) -> kafka::Settings {
        let settings = kafka::Settings {
            servers: spec.servers.clone(),
            client_id: spec.client_id.clone(),
            compression: match spec.compression {
                KafkaCompression::None => Compression::None,
                KafkaCompression::Gzip => Compression::Gzip,
                KafkaCompression::Lz4 => Compression::Lz4,
                KafkaCompression::Zstd => Compression::Zstd,
            },
            tls: spec.tls.as_ref().map(|files| self.tls(files)),
            login: spec.sasl.as_ref().map(|sasl| self.login(sasl)),
            networks,
            record_bytes_max: usize::try_from(spec.record_bytes_max).unwrap_or(usize::MAX),
            linger: Duration::from_millis(spec.linger_ms),
            request_time_max: Duration::from_secs(spec.timeout_secs),
            delivery_time_max: Duration::from_secs(spec.delivery_timeout_secs),
        };
        if let Err(error) = settings.check() {
            let (key, detail) = wrong_of_kafka(&error);
            self.note(key, detail);
        }
        settings
    }

    fn login(&mut self, sasl: &SaslSpec) -> Login {
        match sasl {
            SaslSpec::Password { mechanism, username, password } => {
                let password = self.secret_of("sasl.password_file", password);
                let username = username.clone();
                match mechanism {
                    SaslMechanism::Plain => Login::Plain { username, password },
                    SaslMechanism::ScramSha256 => Login::ScramSha256 { username, password },
                    SaslMechanism::ScramSha512 => Login::ScramSha512 { username, password },
                }
            }
            SaslSpec::Token { token } => {
                Login::OAuthBearer { token: self.secret_of("sasl.token_file", token) }
            }
            SaslSpec::TokenEndpoint(spec) => {
                let ca = spec.ca.as_ref().map(|path| self.path(path));
                let files = TlsFiles { ca: ca.clone(), ..TlsFiles::default() };
                if ca.is_some()
                    && let Err(error) = files.check()
                {
                    self.note("sasl.ca", error.to_string());
                }
                Login::OAuthBearerFrom(TokenEndpoint {
                    url: spec.url.clone(),
                    client_id: spec.client_id.clone(),
                    client_secret: self.secret_of("sasl.client_secret_file", &spec.client_secret),
                    scope: spec.scope.clone(),
                    ca,
                })
            }
        }
    }

    /// A secret, or the file of one.
    fn secret_of(&mut self, key: &str, own: &SecretSpec) -> Secret {
        match own {
            SecretSpec::File(path) => self.secret(key, path),
            SecretSpec::Text(text) => Secret::Text(text.clone()),
        }
    }

    /// A file whose first line is a secret.
    fn secret(&mut self, key: &str, path: &str) -> Secret {
        let secret = Secret::File(self.path(path));
        if let Err(error) = secret.read() {
            self.note(key, error.to_string());
        }
        secret
    }

    fn tls(&mut self, spec: &TlsSpec) -> TlsFiles {
        let path = |path: &Option<String>| path.as_ref().map(|path| self.path(path));
        let files = TlsFiles {
            ca: path(&spec.ca),
            certificate: path(&spec.certificate),
            key: path(&spec.key),
        };
        if files != TlsFiles::default()
            && let Err(error) = files.check()
        {
            self.note("tls", error.to_string());
        }
        files
    }

    fn path(&self, path: &str) -> PathBuf {
        self.base.join(path)
    }

    fn note(&mut self, key: &str, detail: String) {
        self.wrong.push((key.to_owned(), detail));
    }
}

fn key_of_http(error: &webhook::SettingsError) -> &'static str {
    use webhook::SettingsError as Error;
    match error {
        Error::Url(_) => "url",
        Error::Header(_) => "headers",
        Error::Permanent(_) => "refused_statuses",
        Error::Requests(_) => "requests_max",
        Error::RequestTime(_) => "timeout_secs",
        Error::Origin(_) => "origin",
    }
}

fn wrong_of_kafka(error: &kafka::SettingsError) -> (&'static str, String) {
    use kafka::SettingsError as Error;
    let key = match error {
        Error::NoServer | Error::Server(_) => "servers",
        Error::Compression(_) => "compression",
        Error::DeliveryTime => {
            let detail = "must be longer than timeout_secs and linger_ms together";
            return ("delivery_timeout_secs", detail.into());
        }
        Error::RecordBytes(_) => "record_bytes_max",
        Error::Username => "sasl.username",
        Error::TokenEndpoint(_) => "sasl.token_url",
    };
    let text = error.to_string();
    // The key is written ahead of it.
    let detail = text.split_once("`: ").map_or(&*text, |(_, detail)| detail);
    (key, detail.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lowered(text: &str, base: &Path) -> Result<TargetSettings, Vec<Wrong>> {
        let found = routing::definitions::parse(text).expect("it can be read");
        let networks = vec!["192.168.0.0/16".parse().expect("a network")];
        settings(&found.targets[0], base, &Permits { networks, ..Permits::default() })
    }

    #[test]
    fn a_kafka_target_has_the_settings_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("password"), "hunter2\n").expect("it can be written");
        let text = r#"
[[targets]]
name = "k"
type = "kafka"
servers = ["kafka.example:9092"]
compression = "lz4"
networks = ["10.0.0.0/8"]
record_bytes_max = "2MiB"
linger_ms = 5
timeout_secs = 4
tls = true
sasl = { mechanism = "SCRAM-SHA-256", username = "ann", password_file = "password" }
"#;
        let TargetSettings::Kafka(found) = lowered(text, dir.path()).expect("it is valid") else {
            panic!("it is Kafka");
        };
        let password = Secret::File(dir.path().join("password"));
        let expected = kafka::Settings {
            compression: Compression::Lz4,
            tls: Some(TlsFiles::default()),
            login: Some(Login::ScramSha256 { username: "ann".into(), password }),
            networks: Networks::permitting(vec![
                "192.168.0.0/16".parse().expect("a network"),
                "10.0.0.0/8".parse().expect("a network"),
            ]),
            record_bytes_max: 2 << 20,
            linger: Duration::from_millis(5),
            request_time_max: Duration::from_secs(4),
            delivery_time_max: Duration::from_secs(12),
            ..kafka::Settings::new(vec!["kafka.example:9092".into()])
        };
        assert_eq!(found, expected);
        for (from, to, key, detail) in [
            ("\"password\"", "\"missing\"", "sasl.password_file", "cannot read"),
            ("kafka.example:9092", "kafka.example", "servers", "must be host:port, got"),
            ("10.0.0.0/8", "10.0.0.0/40", "networks.0", ""),
            (
                "timeout_secs = 4",
                "timeout_secs = 4\ndelivery_timeout_secs = 4",
                "delivery_timeout_secs",
                "must be longer",
            ),
            ("tls = true", "tls = { ca = \"missing\" }", "tls", "missing"),
        ] {
            assert!(text.contains(from), "{from}");
            let wrong = lowered(&text.replacen(from, to, 1), dir.path()).expect_err(to);
            let found = wrong.iter().any(|(own, why)| own == key && why.contains(detail));
            assert!(found && !format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
        }
    }

    #[test]
    fn an_http_target_has_the_settings_of_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("token"), "Bearer hunter2\n").expect("it can be written");
        let text = r#"
[[targets]]
name = "h"
type = "http"
url = "https://example.com/in"
headers = { authorization = { file = "token" }, x-site = "berlin" }
validation = "cloudevents"
origin = "quelea.example"
signing_secret_file = "token"
refused_statuses = [400]
requests_max = 8
timeout_secs = 10
"#;
        let settings = lowered(text, dir.path()).expect("it is valid");
        let TargetSettings::Http(found) = settings.of_form(Form::Batch) else {
            panic!("it is HTTP");
        };
        let token = Secret::File(dir.path().join("token"));
        let expected = webhook::Settings {
            headers: vec![
                ("authorization".into(), token.clone()),
                ("x-site".into(), Secret::Text("berlin".into())),
            ],
            networks: Networks::permitting(vec!["192.168.0.0/16".parse().expect("a network")]),
            validation: Validation::CloudEvents { origin: "quelea.example".into() },
            signature: Some(token),
            is_batched: true,
            permanent: vec![400],
            requests_max: 8,
            request_time_max: Duration::from_secs(10),
            ..webhook::Settings::new("https://example.com/in")
        };
        assert_eq!(found, expected);
        for (from, to, key, detail) in [
            (
                "{ file = \"token\" }",
                "{ file = \"x\" }",
                "headers.authorization.file",
                "cannot read",
            ),
            ("x-site", "host", "headers", "host"),
            ("[400]", "[429]", "refused_statuses", "429"),
            ("quelea.example", "not a name", "origin", "must be a DNS name"),
            (
                "secret_file = \"token\"",
                "secret_file = \"x\"",
                "signing_secret_file",
                "cannot read",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            let wrong = lowered(&text.replacen(from, to, 1), dir.path()).expect_err(to);
            let found = wrong.iter().any(|(own, why)| own == key && why.contains(detail));
            assert!(found, "{wrong:?}");
        }
    }
}
