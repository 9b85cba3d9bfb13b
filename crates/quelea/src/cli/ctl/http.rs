//! As much of an HTTP client as the API needs: one request for each connection.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::{EXIT_FAILURE, EXIT_NONE, EXIT_NOT_ALLOWED, Failure};
use crate::api::PREFIX;

/// How long a broker may take for a part of its answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest answer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The longest line of a stream.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Who we are.
pub(super) enum Credentials {
    Token(String),
    /// User name and password.
    Password(String, String),
}

/// A broker's API.
pub(super) struct Http {
    /// Host and port.
    authority: String,
    authorization: String,
}

impl Http {
    pub(super) fn new(url: &str, credentials: Credentials) -> Result<Self, Failure> {
        let wrong = || Failure::new(format!("'{url}' is no address such as http://127.0.0.1:9883"));
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let authority = rest.split('/').next().filter(|it| !it.is_empty()).ok_or_else(wrong)?;
        let has_port = authority.rsplit_once(':').is_some_and(|(_, it)| it.parse::<u16>().is_ok());
        let authority = if has_port { authority.to_owned() } else { format!("{authority}:9883") };
        let authorization = match credentials {
            Credentials::Token(token) => format!("Bearer {token}"),
            Credentials::Password(user, password) => {
                format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")))
            }
        };
        if authorization.contains(['\r', '\n']) {
            return Err(Failure::new("the token has a line break in it"));
        }
        Ok(Self { authority, authorization })
    }

    /// Calls a route; JSON or null.
    pub(super) fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let (status, answer) = self.exchange(method, path, body).map_err(|error| {
            let authority = &self.authority;
            Failure::new(format!("cannot ask http://{authority}: {error}; is the broker there?"))
        })?;
        let value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
        if (200..300).contains(&status) {
            return Ok(value);
        }
        Err(failure(status, &value))
    }

    /// Reads a stream line by line, until it ends or `line` says that it is enough.
    pub(super) fn follow(
        &self,
        path: &str,
        mut line: impl FnMut(&str) -> bool,
    ) -> Result<(), Failure> {
        let fault = |error: std::io::Error| {
            Failure::new(format!("cannot read from http://{}: {error}", self.authority))
        };
        let mut stream = BufReader::new(self.open("GET", path, "", "1.0").map_err(fault)?);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let count = (&mut stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut head);
            if count.map_err(fault)? == 0 || head.len() as u64 > LINE_BYTES_MAX {
                return Err(Failure::new("the broker's answer is not HTTP"));
            }
        }
        let status = parse(&head).map_or(0, |(status, _)| status);
        if status != 200 {
            let mut body = Vec::new();
            stream.take(ANSWER_BYTES_MAX).read_to_end(&mut body).map_err(fault)?;
            let problem = serde_json::from_slice(&body).unwrap_or(Value::Null);
            return Err(failure(status, &problem));
        }
        let mut text = String::new();
        loop {
            text.clear();
            match (&mut stream).take(LINE_BYTES_MAX).read_line(&mut text).map_err(fault)? {
                0 => return Ok(()),
                _ if line(text.trim_end()) => {}
                _ => return Ok(()),
            }
        }
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> std::io::Result<(u16, Vec<u8>)> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let stream = self.open(method, path, &body, "1.1")?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
        parse(&answer).ok_or_else(|| std::io::Error::other("its answer is not HTTP"))
    }

    /// A connection on which a request was sent. Answers to HTTP 1.0 come in one piece, however
    /// long they go on.
    fn open(
        &self,
        method: &str,
        path: &str,
        body: &str,
        version: &str,
    ) -> std::io::Result<TcpStream> {
        let mut addresses = self.authority.to_socket_addrs()?;
        let address = addresses.next().ok_or(std::io::ErrorKind::NotFound)?;
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let head = format!(
            "{method} {PREFIX}{path} HTTP/{version}\r\nHost: {}\r\nAuthorization: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            self.authority,
            self.authorization,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        Ok(stream)
    }
}

fn failure(status: u16, problem: &Value) -> Failure {
    let code = match status {
        401 | 403 => EXIT_NOT_ALLOWED,
        404 => EXIT_NONE,
        _ => EXIT_FAILURE,
    };
    Failure { code, text: told(status, problem) }
}

/// Status and body.
fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, answer[end + 4..].to_vec()))
}

/// What a problem says, in one line.
fn told(status: u16, problem: &Value) -> String {
    let text = |name: &str| problem[name].as_str();
    let Some(detail) = text("detail") else { return format!("the broker answered {status}") };
    let place = text("place").map(|place| format!("{place}: ")).unwrap_or_default();
    let fix = text("fix").map(|fix| format!("; {fix}")).unwrap_or_default();
    format!("{place}{detail}{fix}")
}

/// All but letters, digits and a few signs as %XX.
pub(super) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_understood_or_told() {
        let authority = |url: &str| {
            Http::new(url, Credentials::Token("t".into())).map(|http| http.authority).ok()
        };
        assert_eq!(authority("http://a:1/x").as_deref(), Some("a:1"));
        assert_eq!(authority("http://a").as_deref(), Some("a:9883"));
        assert_eq!(authority("http://[::1]:7").as_deref(), Some("[::1]:7"));
        for wrong in ["a:1", "https://a", "http://", "http:///x"] {
            assert_eq!(authority(wrong), None, "{wrong}");
        }
        assert!(Http::new("http://a", Credentials::Token("a\nb".into())).is_err());
    }

    #[test]
    fn answers_are_taken_apart() {
        let answer = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(parse(answer), Some((404, b"{}".to_vec())));
        assert_eq!(parse(b"hello"), None);
        assert_eq!(parse(b"HTTP/1.1 x\r\n\r\n"), None);
        let problem = json!({ "detail": "no", "place": "body", "fix": "write yes" });
        assert_eq!(told(400, &problem), "body: no; write yes");
        assert_eq!(told(500, &Value::Null), "the broker answered 500");
    }

    #[test]
    fn names_travel_in_paths() {
        assert_eq!(percent_encoded("a/b c.é"), "a%2Fb%20c%2E%C3%A9");
    }
}
