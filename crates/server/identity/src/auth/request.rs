//! Requests to a service, made from the templates of the configuration.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use std::time::Duration;
use web::percent_encoded;

use super::fetch::{self, Client, header_name};
use config::template::Template;
use config::{BodyForm, HttpConfig};

/// Makes what a service is asked.
pub(super) struct Requests {
    pub(super) config: HttpConfig,
    /// Those with placeholders.
    headers: Vec<(HeaderName, Template)>,
}

/// Why a request cannot be made.
#[derive(Debug, PartialEq)]
pub(super) enum Unfit {
    /// Something in the path stands for nothing: there is nothing that the service could know.
    Missing,
    /// A value cannot be sent.
    Value(String),
}

impl Requests {
    /// # Errors
    ///
    /// A header that cannot be sent.
    pub(super) fn new(config: &HttpConfig) -> Result<Self, String> {
        Ok(Self { config: config.clone(), headers: headers_of(config)? })
    }

    /// What is asked, with what stands for the names.
    pub(super) fn question(
        &self,
        value: impl Fn(&str) -> Option<String>,
    ) -> Result<fetch::Question, Unfit> {
        let config = &self.config;
        let mut target = path_of(config, &value)?;
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            headers.insert(name, header_of(name, template, &value)?);
        }
        let fields =
            config.body.iter().map(|(name, template)| (name, template.fill_or_empty(&value)));
        let form = || {
            let pairs = fields
                .clone()
                .map(|(name, value)| format!("{}={}", form_encoded(name), form_encoded(&value)));
            pairs.collect::<Vec<_>>().join("&")
        };
        let json = || {
            let members = fields.clone().map(|(name, value)| (name.clone(), Value::String(value)));
            Value::Object(members.collect::<Map<_, _>>()).to_string()
        };
        let (query, body, content_type) = match (config.is_get, config.form) {
            (true, _) => (form(), String::new(), ""),
            (false, BodyForm::Json) => (String::new(), json(), "application/json"),
            (false, BodyForm::Form) => (String::new(), form(), "application/x-www-form-urlencoded"),
        };
        let encoded = |name: &str| value(name).map(|value| form_encoded(&value));
        let queries = [config.query.fill_or_empty(encoded), query];
        let queries = queries.iter().filter(|query| !query.is_empty());
        for (query, sign) in queries.zip(['?', '&']) {
            target.push(sign);
            target.push_str(query);
        }
        Ok(fetch::Question { is_get: config.is_get, target, headers, content_type, body })
    }
}

/// Asks the service. Also for the check of a configuration.
pub(super) fn client(config: &HttpConfig) -> Result<Client, String> {
    let timeout = Duration::from_secs(config.timeout_secs.into());
    let idle_max = config.requests_max as usize;
    headers_of(config)?;
    let headers = config.headers.iter();
    let headers = headers.filter_map(|(name, text)| Some((name.as_str(), text.plain()?)));
    let headers: Vec<_> = headers.collect();
    Client::new(&config.url, &headers, config.ca.as_deref(), timeout, idle_max)
}

/// Those with placeholders.
fn headers_of(config: &HttpConfig) -> Result<Vec<(HeaderName, Template)>, String> {
    let filled = config.headers.iter().filter(|(_, text)| text.plain().is_none());
    filled.map(|(name, text)| Ok((header_name(name)?, text.clone()))).collect()
}

/// The path with what is put in. A value is a part of one segment: services decode what is encoded,
/// and proxies leave out `..`, so another path could be asked than was meant.
fn path_of(config: &HttpConfig, value: &impl Fn(&str) -> Option<String>) -> Result<String, Unfit> {
    if config.path.fill(value).is_none() {
        return Err(Unfit::Missing);
    }
    let is_part = |value: &String| !value.contains(['/', '\\']);
    let encoded = |name: &str| value(name).filter(is_part).map(|it| form_encoded(&it));
    let is_step = |segment: &str| matches!(segment, "." | "..");
    let path = config.path.fill(encoded).filter(|path| !path.split('/').any(is_step));
    path.ok_or_else(|| {
        Unfit::Value("a value for the path of `url` has '/', or is '.' or '..'".into())
    })
}

/// What is at its ends would be lost, and two names could be one.
fn header_of(
    name: &HeaderName,
    template: &Template,
    value: &impl Fn(&str) -> Option<String>,
) -> Result<HeaderValue, Unfit> {
    let text = template.fill_or_empty(value);
    let value = HeaderValue::from_bytes(text.as_bytes()).ok();
    value.filter(|_| text.trim() == text).ok_or_else(|| {
        Unfit::Value(format!(
            "a value for the header '{name}' has a control character or outer spaces"
        ))
    })
}

/// A form needs no escape of dots, which `percent_encoded` makes for paths.
fn form_encoded(text: &str) -> String {
    percent_encoded(text).replace("%2E", ".")
}
