//! What a Kafka target needs to know.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::token::TokenEndpoint;
use crate::dial::TlsFiles;
use crate::networks::Networks;
use crate::secret::Secret;

/// Where to send, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The first servers to ask, as `host:port`. They name all others.
    pub servers: Vec<String>,
    pub client_id: String,
    pub compression: Compression,
    /// None: no TLS.
    pub tls: Option<TlsFiles>,
    /// None: no SASL.
    pub login: Option<Login>,
    /// Networks of this machine that its servers may be in.
    pub networks: Networks,
    /// Records with more bytes are refused here.
    pub record_bytes_max: usize,
    /// How long a batch of a partition waits for more records.
    pub linger: Duration,
    /// For each connection, and each request.
    pub request_time_max: Duration,
    /// From sending a record to its answer, with all retries.
    pub delivery_time_max: Duration,
}

/// How batches are compressed. Event Hubs knows `gzip` only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    None,
    Gzip,
    Lz4,
    Zstd,
}

/// A SASL login.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    Plain {
        username: String,
        password: Secret,
    },
    ScramSha256 {
        username: String,
        password: Secret,
    },
    ScramSha512 {
        username: String,
        password: Secret,
    },
    /// A token that something else renews: a file is read for each connection.
    OAuthBearer {
        token: Secret,
    },
    /// Tokens of an identity provider.
    OAuthBearerFrom(TokenEndpoint),
}

#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("`servers`: must name at least one server")]
    NoServer,
    #[error("`servers`: must be host:port, got `{0}`")]
    Server(String),
    #[error("`compression`: must be none, gzip, lz4 or zstd, got `{0}`")]
    Compression(String),
    #[error("`delivery_time_max`: must be longer than `linger` and `request_time_max` together")]
    DeliveryTime,
    #[error("`record_bytes_max`: must be from 1 to {RECORD_BYTES_LIMIT}, got {0}")]
    RecordBytes(usize),
    #[error("`username`: must not be empty")]
    Username,
    #[error("`token_endpoint`: must be https://host/path, got `{0}`")]
    TokenEndpoint(String),
}

impl Settings {
    /// With the defaults, for these servers.
    pub fn new(servers: Vec<String>) -> Self {
        Self {
            servers,
            client_id: "quelea".to_owned(),
            compression: Compression::None,
            tls: None,
            login: None,
            networks: Networks::default(),
            record_bytes_max: 1024 * 1024,
            linger: Duration::from_millis(2),
            request_time_max: Duration::from_secs(10),
            delivery_time_max: Duration::from_secs(30),
        }
    }

    /// # Errors
    ///
    /// The first setting that is not valid.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.servers.is_empty() {
            return Err(SettingsError::NoServer);
        }
        let is_server = |text: &str| {
            matches!(net::host_and_port(text), Ok((host, Some(_))) if !host.is_empty())
                && !text.contains(',')
        };
        if let Some(server) = self.servers.iter().find(|server| !is_server(server)) {
            return Err(SettingsError::Server(server.clone()));
        }
        if self.delivery_time_max <= self.linger + self.request_time_max {
            return Err(SettingsError::DeliveryTime);
        }
        if !(1..=RECORD_BYTES_LIMIT).contains(&self.record_bytes_max) {
            return Err(SettingsError::RecordBytes(self.record_bytes_max));
        }
        match &self.login {
            Some(login) if login.username().is_some_and(str::is_empty) => {
                Err(SettingsError::Username)
            }
            Some(Login::OAuthBearerFrom(endpoint)) if endpoint.check().is_err() => {
                Err(SettingsError::TokenEndpoint(endpoint.url.clone()))
            }
            _ => Ok(()),
        }
    }
}

impl Login {
    fn username(&self) -> Option<&str> {
        match self {
            Self::Plain { username, .. }
            | Self::ScramSha256 { username, .. }
            | Self::ScramSha512 { username, .. } => Some(username),
            Self::OAuthBearer { .. } | Self::OAuthBearerFrom(_) => None,
        }
    }

    fn mechanism(&self) -> &'static str {
        match self {
            Self::Plain { .. } => "PLAIN",
            Self::ScramSha256 { .. } => "SCRAM-SHA-256",
            Self::ScramSha512 { .. } => "SCRAM-SHA-512",
            Self::OAuthBearer { .. } | Self::OAuthBearerFrom(_) => "OAUTHBEARER",
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mechanism())?;
        self.username().map_or(Ok(()), |username| write!(f, " as {username:?}"))
    }
}

impl FromStr for Compression {
    type Err = SettingsError;

    fn from_str(text: &str) -> Result<Self, SettingsError> {
        match text {
            "none" => Ok(Self::None),
            "gzip" => Ok(Self::Gzip),
            "lz4" => Ok(Self::Lz4),
            "zstd" => Ok(Self::Zstd),
            _ => Err(SettingsError::Compression(text.to_owned())),
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        })
    }
}

/// What the library sends in one request at most.
const RECORD_BYTES_LIMIT: usize = 64 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_show_no_secret() {
        let secret = || Secret::Text("hunter2".to_owned());
        for login in [
            Login::Plain { username: "ann".into(), password: secret() },
            Login::ScramSha256 { username: "ann".into(), password: secret() },
            Login::ScramSha512 { username: "ann".into(), password: secret() },
            Login::OAuthBearer { token: secret() },
        ] {
            let settings = Settings { login: Some(login), ..Settings::new(vec!["k:9092".into()]) };
            let shown = format!("{settings:?} {settings:#?}");
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(shown.contains("ann") || shown.contains("OAUTHBEARER"), "{shown}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_named() {
        let good = Settings::new(vec!["kafka.example:9092".into(), "[::1]:9093".into()]);
        assert_eq!(good.check(), Ok(()));
        let fault = |change: fn(&mut Settings)| {
            let mut settings = good.clone();
            change(&mut settings);
            settings.check().unwrap_err().to_string()
        };
        assert!(fault(|settings| settings.servers.clear()).contains("`servers`"));
        for server in ["kafka", "kafka:", ":9092", "::1:9092", "a:1,b:2", ""] {
            let settings = Settings::new(vec![server.into()]);
            assert_eq!(settings.check(), Err(SettingsError::Server(server.into())));
        }
        assert!(
            fault(|settings| settings.delivery_time_max = settings.request_time_max)
                .contains("`delivery_time_max`")
        );
        assert!(fault(|settings| settings.record_bytes_max = 0).contains("got 0"));
        let nobody = |settings: &mut Settings| {
            let password = Secret::Text("x".into());
            settings.login = Some(Login::Plain { username: String::new(), password });
        };
        assert!(fault(nobody).contains("`username`"));
    }

    #[test]
    fn compressions_have_names() {
        for name in ["none", "gzip", "lz4", "zstd"] {
            assert_eq!(name.parse::<Compression>().unwrap().to_string(), name);
        }
        let error = "snappy".parse::<Compression>().unwrap_err().to_string();
        assert_eq!(error, "`compression`: must be none, gzip, lz4 or zstd, got `snappy`");
    }
}
