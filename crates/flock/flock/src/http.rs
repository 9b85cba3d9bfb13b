//! What the lab answers over HTTP, in words: problem details (RFC 9457) where something is wrong.

use serde_json::{Value, json};
use web::axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use web::axum::http::{HeaderName, HeaderValue, StatusCode};
use web::axum::response::{IntoResponse, Response};

pub fn text(status: StatusCode, kind: &'static str, body: impl Into<String>) -> Response {
    (status, [(CONTENT_TYPE, kind), (CACHE_CONTROL, "no-store")], body.into()).into_response()
}

pub fn json(status: StatusCode, body: &Value) -> Response {
    text(status, "application/json", format!("{body}\n"))
}

/// An answer that says what is wrong.
#[derive(Debug)]
pub struct Problem(Box<Response>);

impl Problem {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self::with(status, detail, json!({}))
    }

    /// The same with more members, an object.
    pub fn with(status: StatusCode, detail: impl Into<String>, mut more: Value) -> Self {
        let (title, detail) = (status.canonical_reason().unwrap_or_default(), detail.into());
        more["status"] = status.as_u16().into();
        // Clients of HiveMQ Swarm look for a list.
        more["errors"] = json!([{ "title": title, "detail": detail }]);
        more["title"] = title.into();
        more["detail"] = detail.into();
        let mut response = json(status, &more);
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        Self(Box::new(response))
    }

    #[must_use]
    pub fn and(mut self, name: HeaderName, value: &'static str) -> Self {
        self.0.headers_mut().insert(name, HeaderValue::from_static(value));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        *self.0
    }
}
