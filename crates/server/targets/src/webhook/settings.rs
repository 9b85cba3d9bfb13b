//! What a webhook target needs to know.

use std::time::Duration;

use hyper::header::{HeaderName, HeaderValue};
use net::Url;
use thiserror::Error;

use crate::dial::TlsFiles;
use crate::networks::Networks;
use crate::secret::Secret;

/// Where to send, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `https://host/path`, or `http` within permitted networks.
    pub url: String,
    /// Added to each request. Their values are never shown.
    pub headers: Vec<(String, Secret)>,
    pub tls: TlsFiles,
    /// Networks of this machine that the endpoint may be in.
    pub networks: Networks,
    /// What the endpoint has to answer before it gets the first event.
    pub validation: Validation,
    /// Signs each request as [Standard Webhooks](https://www.standardwebhooks.com) has it.
    pub signature: Option<Secret>,
    /// One request has all records of a batch, as a JSON array. Otherwise each has one of its own.
    pub is_batched: bool,
    /// Answers that refuse a record for good: [`PERMANENT`], or others from 400 to 499.
    pub permanent: Vec<u16>,
    /// Requests at a time, from 1 to 256. Default 4.
    pub requests_max: usize,
    /// For each request, with its connection. From 1 s to 10 min; Event Grid's is 30 s.
    pub request_time_max: Duration,
}

/// How an endpoint shows that it wants the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Validation {
    /// It is not asked.
    None,
    /// By the answer to OPTIONS: CloudEvents' protection against abuse. `origin`: the name of this
    /// sender, which the endpoint has to allow.
    CloudEvents { origin: String },
    /// By the code in an event of type `Microsoft.EventGrid.SubscriptionValidationEvent`.
    EventGrid,
}

/// Answers that refuse a record for good, by default: 400, 413, 414, 415 and 422. Event Grid also
/// gives up for 401, 403 and 404. Those concern the endpoint and not the record, so here they count
/// as an endpoint that is away.
pub const PERMANENT: [u16; 5] = [400, 413, 414, 415, 422];

/// What is wrong with the settings.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SettingsError {
    #[error("the URL must be https://host/path without a user, got `{0}`")]
    Url(String),
    #[error("header `{0}`: the name is not valid in HTTP, or is set by this program")]
    Header(String),
    #[error("permanent: must be from 400 to 499 without 408, 410 and 429, got {0}")]
    Permanent(u16),
    #[error("requests at a time: must be from 1 to 256, got {0}")]
    Requests(usize),
    #[error("the time of a request must be from 1 s to 10 min, got {} s", .0.as_secs())]
    RequestTime(Duration),
    #[error("the origin must be a DNS name, got `{0}`")]
    Origin(String),
}

/// The parts of the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) is_tls: bool,
    /// With the query.
    pub(super) path: String,
    /// The header `Host`.
    pub(super) authority: HeaderValue,
}

impl Settings {
    /// The usual limits for this URL.
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            headers: Vec::new(),
            tls: TlsFiles::default(),
            networks: Networks::default(),
            validation: Validation::None,
            signature: None,
            is_batched: false,
            permanent: PERMANENT.to_vec(),
            requests_max: 4,
            request_time_max: Duration::from_secs(30),
        }
    }

    /// # Errors
    ///
    /// The first setting that is not valid.
    pub fn check(&self) -> Result<(), SettingsError> {
        self.location()?;
        self.header_names()?;
        let is_retried = |code: &&u16| !(400..500).contains(*code) || RETRIED.contains(code);
        if let Some(code) = self.permanent.iter().find(is_retried) {
            return Err(SettingsError::Permanent(*code));
        }
        if !(1..=REQUESTS_MAX).contains(&self.requests_max) {
            return Err(SettingsError::Requests(self.requests_max));
        }
        if !(REQUEST_TIME_MIN..=REQUEST_TIME_MAX).contains(&self.request_time_max) {
            return Err(SettingsError::RequestTime(self.request_time_max));
        }
        match &self.validation {
            Validation::CloudEvents { origin } if !is_dns_name(origin) => {
                Err(SettingsError::Origin(origin.clone()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn location(&self) -> Result<Location, SettingsError> {
        let invalid = || SettingsError::Url(self.url.clone());
        let url = Url::parse(&self.url).map_err(|_| invalid())?;
        let is_tls = match url.scheme {
            "https" => true,
            "http" => false,
            _ => return Err(invalid()),
        };
        let is_path = url.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
        if url.user.is_some() || url.host.is_empty() || !is_path {
            return Err(invalid());
        }
        let authority = match url.port {
            Some(port) => format!("{}:{port}", url.bracketed_host()),
            None => url.bracketed_host(),
        };
        let path = match url.path.starts_with('/') {
            true => url.path.to_owned(),
            false => format!("/{}", url.path),
        };
        Ok(Location {
            host: url.host.to_owned(),
            port: url.port.unwrap_or(if is_tls { 443 } else { 80 }),
            is_tls,
            path,
            authority: HeaderValue::from_str(&authority).map_err(|_| invalid())?,
        })
    }

    pub(super) fn header_names(&self) -> Result<Vec<HeaderName>, SettingsError> {
        let name = |(name, _): &(String, Secret)| {
            let parsed = name.parse::<HeaderName>().ok();
            parsed.filter(is_free).ok_or_else(|| SettingsError::Header(name.clone()))
        };
        self.headers.iter().map(name).collect()
    }
}

/// Headers that an event or a setting may not set: they belong to the connection, or to what this
/// program states.
pub(super) fn is_free(name: &HeaderName) -> bool {
    const OWN: [&str; 9] = [
        "connection",
        "content-length",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "webhook-request-origin",
    ];
    !OWN.contains(&name.as_str()) && !name.as_str().starts_with("proxy-")
}

/// Whether a record or a setting may set this header.
pub fn is_free_header(name: &str) -> bool {
    name.parse().is_ok_and(|name| is_free(&name))
}

fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_sound = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        is_sound && (1..=63).contains(&label.len())
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Answers with a meaning of their own: too slow, gone, too many requests.
const RETRIED: [u16; 3] = [408, 410, 429];
const REQUESTS_MAX: usize = 256;
const REQUEST_TIME_MIN: Duration = Duration::from_secs(1);
const REQUEST_TIME_MAX: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_valid_is_named() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::new("https://hook.example/in?key=1");
            change(&mut settings);
            settings.check()
        };
        assert_eq!(with(|_| {}), Ok(()));
        for url in ["ftp://a/b", "https:///b", "https://me@host/", "host/path", "https://a/b#c"] {
            let error = Settings::new(url).check();
            assert_eq!(error, Err(SettingsError::Url(url.to_owned())), "{url}");
        }
        let header = |name: &str| {
            let mut settings = Settings::new("https://a/b");
            settings.headers.push((name.to_owned(), Secret::Text("x".to_owned())));
            settings.check()
        };
        assert_eq!(header("authorization"), Ok(()));
        for name in ["Host", "content-length", "a b", "", "Transfer-Encoding", "proxy-x"] {
            assert_eq!(header(name), Err(SettingsError::Header(name.to_owned())));
        }
        assert_eq!(with(|it| it.permanent.push(429)), Err(SettingsError::Permanent(429)));
        assert_eq!(with(|it| it.permanent.push(500)), Err(SettingsError::Permanent(500)));
        assert_eq!(with(|it| it.requests_max = 0), Err(SettingsError::Requests(0)));
        let origin = |it: &mut Settings| {
            it.validation = Validation::CloudEvents { origin: "a b".to_owned() };
        };
        assert_eq!(with(origin), Err(SettingsError::Origin("a b".to_owned())));
        let time = |it: &mut Settings| it.request_time_max = Duration::from_millis(5);
        let error = with(time).unwrap_err().to_string();
        assert!(error.contains("from 1 s to 10 min"), "{error}");
    }

    #[test]
    fn a_url_has_its_parts() {
        let location = |url: &str| Settings::new(url).location().unwrap();
        let found = location("https://hook.example/in?key=1");
        assert_eq!((&*found.host, found.port, &*found.path), ("hook.example", 443, "/in?key=1"));
        assert_eq!(found.authority, "hook.example");
        let found = location("http://[::1]:8080?x");
        assert_eq!((&*found.host, found.port, &*found.path), ("::1", 8080, "/?x"));
        assert_eq!((found.authority.to_str().unwrap(), found.is_tls), ("[::1]:8080", false));
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut settings = Settings::new("https://a/b");
        settings.headers.push(("authorization".to_owned(), Secret::Text("hunter2".to_owned())));
        settings.signature = Some(Secret::Text("hunter2".to_owned()));
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
