//! Requests to a collector, and what its answers mean (OTLP/HTTP).

use std::path::PathBuf;
use std::time::Duration;

use net::Url;
use prost::Message;
use web::{ClientTls, ureq};

use crate::otlp::ExportResponse;

/// Where a collector is.
#[derive(Clone, Debug)]
pub struct CollectorOptions {
    /// Of all signals, without a slash at its end.
    pub endpoint: String,
    /// For a whole request.
    pub timeout: Duration,
    /// Headers, one a line. It is read before each request, so that a secret can be changed.
    pub headers_file: Option<PathBuf>,
    /// Replaces the certificate authorities of the system.
    pub ca: Option<PathBuf>,
}

/// One signal of a collector.
#[derive(Debug)]
pub(crate) struct Collector {
    options: CollectorOptions,
    url: String,
    agent: ureq::Agent,
}

/// What became of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    /// All was taken but `rejected` points or spans, for this reason.
    Accepted { rejected: u64, warning: String },
    /// The same may be sent again, not before that time.
    Retry { after: Option<Duration>, why: String },
    /// It is refused, however often it is sent.
    Refused(String),
}

impl Collector {
    /// `path`: of the signal.
    ///
    /// # Errors
    ///
    /// What is wrong with the URL or a file.
    pub(crate) fn new(options: CollectorOptions, path: &str) -> Result<Self, String> {
        let url = format!("{}{path}", options.endpoint);
        let parsed = Url::parse(&url).map_err(|error| error.to_string())?;
        let tls = ClientTls { ca: options.ca.as_deref(), ..ClientTls::default() };
        let agent = web::agent(&parsed, &tls, options.timeout).map_err(|e| e.to_string())?;
        Ok(Self { url, agent, options })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn post(&self, body: &[u8], time_max: Duration) -> Outcome {
        let headers = match self.headers() {
            Ok(headers) => headers,
            // It may be there again soon.
            Err(why) => return Outcome::Retry { after: None, why },
        };
        let mut request = self.agent.post(&self.url).config();
        request = request.timeout_global(Some(time_max.min(self.options.timeout)));
        let mut request = request.build().header("Content-Type", "application/x-protobuf");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let mut answer = match request.send(body) {
            Ok(answer) => answer,
            Err(error) => return Outcome::Retry { after: None, why: error.to_string() },
        };
        let status = answer.status().as_u16();
        let after = answer.headers().get("Retry-After").and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
        let read = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        outcome_of(status, after, read.unwrap_or_default().as_slice())
    }

    fn headers(&self) -> Result<Vec<(String, String)>, String> {
        let Some(path) = &self.options.headers_file else { return Ok(Vec::new()) };
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read the headers in {shown}: {error}"))?;
        headers_of(&text).map_err(|line| format!("{shown}: line {line} must be NAME: VALUE"))
    }
}

fn outcome_of(status: u16, after: Option<Duration>, body: &[u8]) -> Outcome {
    match status {
        200..=299 => {
            // What is no such message says nothing of a part that was rejected.
            let answer = ExportResponse::decode(body).unwrap_or_default();
            let partial = answer.partial_success.unwrap_or_default();
            Outcome::Accepted {
                rejected: u64::try_from(partial.rejected).unwrap_or(0),
                warning: shortened(&partial.error_message),
            }
        }
        // Those that OTLP lists, and no other.
        429 | 502 | 503 | 504 => {
            Outcome::Retry { after, why: format!("the collector answered {status}") }
        }
        _ => {
            let detail = shortened(&String::from_utf8_lossy(body));
            Outcome::Refused(format!("the collector answered {status}: {detail}"))
        }
    }
}

/// The number of the line that is wrong, if one is.
fn headers_of(text: &str) -> Result<Vec<(String, String)>, usize> {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            let (name, value) = line.split_once(':').ok_or(number + 1)?;
            let (name, value) = (name.trim(), value.trim());
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            let is_valid = !name.is_empty()
                && name.bytes().all(is_token)
                && value.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
            is_valid.then(|| (name.to_owned(), value.to_owned())).ok_or(number + 1)
        })
        .collect()
}

/// A text of the collector, for a log line.
fn shortened(text: &str) -> String {
    let printable = text.chars().filter(|c| !c.is_control());
    printable.take(TEXT_CHARS_MAX).collect()
}

/// Of an answer more is not read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

const TEXT_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::PartialSuccess;

    #[test]
    fn answers_mean_what_otlp_says() {
        let after = Some(Duration::from_secs(7));
        for status in [429, 502, 503, 504] {
            let outcome = outcome_of(status, after, b"");
            assert!(matches!(outcome, Outcome::Retry { after: Some(_), .. }), "{status}");
        }
        for status in [301, 400, 401, 404, 413, 500, 501] {
            assert!(matches!(outcome_of(status, after, b"no"), Outcome::Refused(_)), "{status}");
        }
        let all = Outcome::Accepted { rejected: 0, warning: String::new() };
        assert_eq!(outcome_of(200, None, b""), all);
        assert_eq!(outcome_of(202, None, b"{}"), all);
        let partial = PartialSuccess { rejected: 3, error_message: "too\nold".into() };
        let body = ExportResponse { partial_success: Some(partial) }.encode_to_vec();
        let some = Outcome::Accepted { rejected: 3, warning: "tooold".into() };
        assert_eq!(outcome_of(200, None, &body), some);
        let negative = PartialSuccess { rejected: -1, error_message: String::new() };
        let body = ExportResponse { partial_success: Some(negative) }.encode_to_vec();
        assert_eq!(outcome_of(200, None, &body), all);
    }

    #[test]
    fn headers_are_one_a_line() {
        let read = headers_of("# secret\n\nAuthorization: Bearer a:b\nx-scope : 1\n").unwrap();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(read, [pair("Authorization", "Bearer a:b"), pair("x-scope", "1")]);
        for (text, line) in [("a", 1), ("\nb c: d", 2), (": v", 1), ("a: \u{7f}", 1)] {
            assert_eq!(headers_of(text), Err(line), "{text}");
        }
    }
}
