//! What is wrong, where, and how to put it right (RFC 9457).

use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use web::axum::http::{HeaderValue, StatusCode};
use web::axum::response::{IntoResponse, Response};

use super::asked::Silent;
use super::schema::record;
use crate::run::NoAnswer;

record! {
    /// The cause of a failed request.
    ProblemDetails {
        /// The status in words.
        title: String,
        /// The status of the answer.
        status: u16,
        /// The cause.
        detail: String,
        /// The part of the request, such as `query parameter limit` or `body`.
        place: Option<String>,
        /// The remedy.
        fix: Option<String>,
    }
}

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    place: Option<String>,
    fix: Option<String>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), place: None, fix: None }
    }

    /// Of what a request says.
    pub(crate) fn bad(place: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { place: Some(place.into()), ..Self::new(StatusCode::BAD_REQUEST, detail) }
    }

    #[must_use]
    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.place = Some(place.into());
        self
    }

    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }

    /// There is none of this name.
    pub(crate) fn missing(what: &str, name: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("not found: {what} '{name}'"))
    }
}

/// Bytes of a text of an answer.
const TEXT_BYTES_MAX: usize = 2_048;

/// A text that may have come with a request, as an answer or a line shows it.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    match text.floor_char_boundary(bytes_max) {
        end if end == text.len() => text.to_owned(),
        end => format!("{}… ({} bytes)", &text[..end], text.len()),
    }
}

impl From<Problem> for ProblemDetails {
    fn from(problem: Problem) -> Self {
        let Problem { status, detail, place, fix } = problem;
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        Self { title, status: status.as_u16(), detail, place, fix }
    }
}

/// One that another node has found.
impl From<ProblemDetails> for Problem {
    fn from(details: ProblemDetails) -> Self {
        let ProblemDetails { status, detail, place, fix, .. } = details;
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, detail, place, fix }
    }
}

impl From<Silent> for Problem {
    fn from(silent: Silent) -> Self {
        let fix = "retry in a few seconds; GET /cluster shows the nodes of the cells";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, silent.to_string()).fix(fix)
    }
}

impl From<NoAnswer> for Problem {
    fn from(no_answer: NoAnswer) -> Self {
        match no_answer {
            NoAnswer::Absent => {
                let detail = "the broker is starting or stopping";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).fix("retry in a second")
            }
            NoAnswer::Late => {
                let detail = "timeout in the broker; the request may still be carried out";
                let fix = "check /readyz, and quelea_worker_turn_seconds_max in /metrics";
                Self::new(StatusCode::GATEWAY_TIMEOUT, detail).fix(fix)
            }
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Self { status, detail, place, fix } = self;
        let title = status.canonical_reason().unwrap_or_default().to_owned();
        // They may have parts of the request.
        let [detail, place, fix] =
            [Some(detail), place, fix].map(|text| text.map(|it| cut(&it, TEXT_BYTES_MAX)));
        let detail = detail.unwrap_or_default();
        let details = ProblemDetails { title, status: status.as_u16(), detail, place, fix };
        let body = serde_json::to_string(&details).unwrap_or_default() + "\n";
        let kind = [(CONTENT_TYPE, "application/problem+json"), (CACHE_CONTROL, "no-store")];
        let mut response = (status, kind, body).into_response();
        let extra = match status {
            StatusCode::UNAUTHORIZED => Some((WWW_AUTHENTICATE, "Bearer realm=\"quelea\"")),
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
                Some((RETRY_AFTER, "1"))
            }
            _ => None,
        };
        if let Some((name, value)) = extra {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
