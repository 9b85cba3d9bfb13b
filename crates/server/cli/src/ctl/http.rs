//! Calls of the management API.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read as _};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use net::Url;
use serde_json::Value;
use web::ClientTls;
use web::ureq;
use web::ureq::http::{Request, Response};

use super::{EXIT_NONE, EXIT_NOT_ALLOWED, Failure};
use base::EXIT_FAILURE;
use config::API_PREFIX;

/// The longest wait for a part of an answer.
const TIME_MAX: Duration = Duration::from_secs(30);

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The longest line of a stream.
const LINE_BYTES_MAX: u64 = 1 << 20;

const PORT_DEFAULT: u16 = 9883;

/// What the caller proves its identity with.
pub(super) enum Credentials {
    Token(String),
    /// User name and password.
    Password(String, String),
    /// The client certificate alone.
    Certificate,
}

/// A broker's API.
#[derive(Debug)]
pub(super) struct Http {
    /// Scheme, host and port.
    base: String,
    authorization: Option<String>,
    agent: ureq::Agent,
    /// An answer has lacked cells, which was said.
    has_warned: Cell<bool>,
}

impl Http {
    pub(super) fn new(
        url: &str,
        tls: &ClientTls<'_>,
        credentials: Credentials,
    ) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::new(format!("'{url}' {why}; write http://127.0.0.1:9883"));
        let base = web::http_url(url, PORT_DEFAULT, "").map_err(|why| wrong(&why))?;
        let parts = Url::parse(&base).map_err(|error| wrong(&error.to_string()))?;
        // The address of the API with its prefix, as documents write it, is the same.
        let path = parts.path.trim_end_matches('/');
        if !matches!(path, "" | API_PREFIX) {
            return Err(wrong("has a path other than /api/v1"));
        }
        if (tls.ca.is_some() || tls.identity.is_some()) && parts.scheme != "https" {
            let text = format!("--ca, --cert and --key need an https:// URL, got '{url}'");
            return Err(Failure::new(text));
        }
        let agent =
            web::agent(&parts, tls, TIME_MAX).map_err(|error| Failure::new(error.to_string()))?;
        let authorization = match credentials {
            Credentials::Token(token) => Some(format!("Bearer {token}")),
            Credentials::Password(user, password) => {
                let text = BASE64_STANDARD.encode(format!("{user}:{password}"));
                Some(format!("Basic {text}"))
            }
            Credentials::Certificate => None,
        };
        if authorization.as_ref().is_some_and(|text| text.contains(['\r', '\n'])) {
            return Err(Failure::new("the token must not have a line break"));
        }
        let base = base.strip_suffix(parts.path).unwrap_or(&base).to_owned();
        Ok(Self { base, authorization, agent, has_warned: Cell::new(false) })
    }

    /// Scheme, host and port.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Calls a route; JSON or null.
    pub(super) fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut answer = self.open(method, path, body)?;
        let status = answer.status().as_u16();
        let limited = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let bytes = limited.read_to_vec().map_err(|error| self.fault(&error))?;
        let value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if !(200..300).contains(&status) {
            return Err(failure(status, &value));
        }
        self.warn_of_missing(&value);
        Ok(value)
    }

    /// Of a cluster with several cells some may not answer.
    fn warn_of_missing(&self, answer: &Value) {
        if let Some(text) = missing_text(answer)
            && !self.has_warned.replace(true)
        {
            eprintln!("{text}");
        }
    }

    /// Reads a stream line by line, until it ends or `line` says that it is enough.
    pub(super) fn follow(
        &self,
        path: &str,
        mut line: impl FnMut(&str) -> bool,
    ) -> Result<(), Failure> {
        let mut stream = self.read("GET", path)?;
        let mut text = String::new();
        loop {
            text.clear();
            let count = (&mut stream).take(LINE_BYTES_MAX).read_line(&mut text);
            match count.map_err(|error| self.fault(&error))? {
                0 => return Ok(()),
                _ if line(text.trim_end()) => {}
                _ => return Ok(()),
            }
        }
    }

    /// The body of an answer that goes on. A part of it may take up to [`TIME_MAX`].
    pub(super) fn read(&self, method: &str, path: &str) -> Result<impl BufRead + use<>, Failure> {
        let answer = self.open(method, path, None)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().into_with_config().limit(u64::MAX).reader();
        let stream = BufReader::new(body);
        if status != 200 {
            let mut body = Vec::new();
            let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut body);
            read.map_err(|error| self.fault(&error))?;
            return Err(failure(status, &serde_json::from_slice(&body).unwrap_or(Value::Null)));
        }
        Ok(stream)
    }

    fn open(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Response<ureq::Body>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{API_PREFIX}{path}", self.base))
            .header("Content-Type", "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        // A POST has a body, be it empty; a GET has none.
        let answer = match (body, method) {
            (None, "GET" | "DELETE") => request.body(()).map(|request| self.agent.run(request)),
            (body, _) => {
                let text = body.map(Value::to_string).unwrap_or_default();
                request.body(text).map(|request| self.agent.run(request))
            }
        };
        let answer = answer.map_err(|error| Failure::new(error.to_string()))?;
        answer.map_err(|error| {
            Failure::new(format!("cannot reach {}: {error}; is the broker running?", self.base))
        })
    }

    fn fault(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::new(format!("cannot read from {}: {error}", self.base))
    }
}

fn missing_text(answer: &Value) -> Option<String> {
    let cells = answer["cells_missing"].as_array()?;
    let cells: Vec<_> = cells.iter().map(Value::to_string).collect();
    let cells = cells.join(", ");
    Some(format!("warning: the answer lacks cells that do not answer: {cells}"))
}

fn failure(status: u16, problem: &Value) -> Failure {
    let code = match status {
        401 | 403 => EXIT_NOT_ALLOWED,
        404 => EXIT_NONE,
        _ => EXIT_FAILURE,
    };
    Failure { code, text: error_text(status, problem) }
}

/// What a problem says, in one line.
fn error_text(status: u16, problem: &Value) -> String {
    let text = |name: &str| problem[name].as_str();
    let Some(detail) = text("detail") else { return format!("the broker answered {status}") };
    let place = text("place").map(|place| format!("{place}: ")).unwrap_or_default();
    let fix = text("fix").map(|fix| format!("; {fix}")).unwrap_or_default();
    format!("{place}{detail}{fix}")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_parsed_or_refused() {
        let base = |url: &str| {
            let token = Credentials::Token("t".into());
            Http::new(url, &ClientTls::default(), token).map(|http| http.base).ok()
        };
        assert_eq!(base("http://a:1/").as_deref(), Some("http://a:1"));
        assert_eq!(base("http://a").as_deref(), Some("http://a:9883"));
        assert_eq!(base("http://a:1/api/v1/").as_deref(), Some("http://a:1"));
        assert_eq!(base("http://[::1]:7").as_deref(), Some("http://[::1]:7"));
        for wrong in ["a:1", "ftp://a", "http://", "http:///x", "http://a/x"] {
            assert_eq!(base(wrong), None, "{wrong}");
        }
        let torn = Credentials::Token("a\nb".into());
        assert!(Http::new("http://a", &ClientTls::default(), torn).is_err());
        let tls = ClientTls { ca: Some(Path::new("ca.pem")), ..ClientTls::default() };
        let error_text = |url: &str| Http::new(url, &tls, Credentials::Certificate).unwrap_err();
        assert!(error_text("http://a").text.contains("need an https:// URL"));
        assert!(error_text("https://a").text.contains("ca.pem"), "the file is read");
    }

    #[test]
    fn cells_that_do_not_answer_are_named() {
        assert_eq!(missing_text(&json!({ "items": [] })), None);
        let text = missing_text(&json!({ "cells_missing": [2, 5] }));
        let expected = "warning: the answer lacks cells that do not answer: 2, 5";
        assert_eq!(text.as_deref(), Some(expected));
    }

    #[test]
    fn problems_become_one_line() {
        let problem = json!({ "detail": "no", "place": "body", "fix": "write yes" });
        assert_eq!(error_text(400, &problem), "body: no; write yes");
        assert_eq!(error_text(500, &Value::Null), "the broker answered 500");
    }
}
