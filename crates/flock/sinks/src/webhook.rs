//! An HTTP server that accepts events, and gives its consent when a sender asks for it.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flock_model::WebhookSink;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderMap};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use crate::event::{Envelope, unwrap};
use crate::{OnArrival, State};

pub(crate) fn listen(address: &str) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

#[derive(Clone)]
pub(crate) struct Hook(Arc<Inner>);

struct Inner {
    settings: WebhookSink,
    on_arrival: OnArrival,
    state: Arc<State>,
    requests: AtomicU64,
}

type Answer = Response<Full<Bytes>>;

impl Hook {
    pub(crate) fn new(settings: WebhookSink, on_arrival: OnArrival, state: Arc<State>) -> Self {
        Self(Arc::new(Inner { settings, on_arrival, state, requests: AtomicU64::new(0) }))
    }

    pub(crate) async fn serve(self, listener: TcpListener) {
        let listener = match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => listener,
            Err(error) => return self.0.state.fail(error.to_string()),
        };
        let permits = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
        loop {
            // At the limit, further connections wait in the queue of the kernel.
            let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let hook = self.clone();
                    tokio::spawn(async move {
                        // Its end is no failure: senders close idle connections.
                        let _ = stream.set_nodelay(true);
                        let _ = hook.serve_connection(TokioIo::new(stream)).await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    self.0.state.fail(format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    async fn serve_connection(self, stream: TokioIo<tokio::net::TcpStream>) -> hyper::Result<()> {
        let answer = service_fn(move |request| {
            let hook = self.clone();
            async move { Ok::<_, Infallible>(hook.answer(request).await) }
        });
        http1::Builder::new().timer(TokioTimer::new()).serve_connection(stream, answer).await
    }

    async fn answer(&self, request: Request<Incoming>) -> Answer {
        let settings = &self.0.settings;
        if settings.path.as_deref().is_some_and(|path| path != request.uri().path()) {
            return plain(StatusCode::NOT_FOUND);
        }
        if request.method() == Method::OPTIONS {
            return consent(request.headers());
        }
        if request.method() != Method::POST {
            let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED);
            answer.headers_mut().insert(ALLOW, METHODS);
            return answer;
        }
        let (head, body) = request.into_parts();
        let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
            return plain(StatusCode::PAYLOAD_TOO_LARGE);
        };
        let body = body.to_bytes();
        if let Some(code) = validation_code(&head.headers, &body) {
            return consent_to_event_grid(&code);
        }
        let number = self.0.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(refuse) = settings.refuse
            && is_of_share(number, refuse.share)
        {
            self.0.state.change(|standing| standing.refused += 1);
            self.pause().await;
            return plain(StatusCode::from_u16(refuse.status).unwrap_or(StatusCode::BAD_GATEWAY));
        }
        pass_on(&head.headers, &body, &self.0.on_arrival);
        self.pause().await;
        plain(StatusCode::OK)
    }

    async fn pause(&self) {
        if self.0.settings.delay_us > 0 {
            tokio::time::sleep(Duration::from_micros(self.0.settings.delay_us)).await;
        }
    }
}

/// Whether the request with this number is refused, so that the refused ones are spread evenly.
fn is_of_share(number: u64, share: f64) -> bool {
    let before = (number as f64 * share).floor();
    ((number + 1) as f64 * share).floor() > before
}

/// To the protection of CloudEvents against abuse: any sender, at any rate.
fn consent(headers: &HeaderMap) -> Answer {
    let mut answer = plain(StatusCode::OK);
    let known = answer.headers_mut();
    known.insert(ALLOW, METHODS);
    if let Some(origin) = headers.get("webhook-request-origin") {
        known.insert("webhook-allowed-origin", origin.clone());
        known.insert("webhook-allowed-rate", ANY);
    }
    answer
}

/// The code in a validation event of Event Grid.
fn validation_code(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let kind = headers.get("aeg-event-type")?;
    if !kind.as_bytes().eq_ignore_ascii_case(b"SubscriptionValidation") {
        return None;
    }
    let events: Value = serde_json::from_slice(body).ok()?;
    let code = events.get(0)?.get("data")?.get("validationCode")?.as_str()?;
    Some(code.to_owned())
}

fn consent_to_event_grid(code: &str) -> Answer {
    let body = json!({ "validationResponse": code }).to_string();
    let mut answer = Response::new(Full::new(body.into()));
    answer.headers_mut().insert(CONTENT_TYPE, JSON);
    answer
}

fn pass_on(headers: &HeaderMap, body: &[u8], on_arrival: &OnArrival) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Escapes are those of CloudEvents' HTTP binding.
    let subject = text("ce-subject").map(|text| percent_decode_str(text).decode_utf8_lossy());
    let envelope = Envelope {
        content_type: text("content-type"),
        is_binary: headers.contains_key("ce-specversion"),
        subject,
        body,
    };
    unwrap(envelope, &mut |event| on_arrival(event));
}

fn plain(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

/// Senders keep few connections, and use them again.
const CONNECTIONS_MAX: usize = 1024;
const BODY_BYTES_MAX: usize = 64 << 20;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const METHODS: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("POST, OPTIONS");
const ANY: hyper::header::HeaderValue = hyper::header::HeaderValue::from_static("*");
const JSON: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("application/json");

#[cfg(test)]
mod tests {
    use hyper::header::{HeaderName, HeaderValue};
    use routing::Binding;

    use super::*;
    use crate::testing::{check, forms, routed};

    #[test]
    fn requests_of_the_brokers_rules_are_unwrapped_in_every_form() {
        for (form, reading) in forms() {
            let output = routed(form, Binding::Http, reading);
            let mut headers = HeaderMap::new();
            for header in &output.headers {
                let name = HeaderName::from_bytes(header.name.as_bytes()).expect("a name");
                headers.insert(name, HeaderValue::from_str(&header.value).expect("a value"));
            }
            let body = output.body.unwrap_or_default();
            check(form, |on_arrival| pass_on(&headers, &body, on_arrival));
        }
    }

    #[test]
    fn refused_requests_are_spread_evenly() {
        let refused = |share: f64| -> Vec<u64> {
            (0..12).filter(|number| is_of_share(*number, share)).collect()
        };
        assert_eq!(refused(0.25), [3, 7, 11]);
        assert_eq!(refused(0.01), [0; 0]);
        assert_eq!(refused(0.5).len(), 6);
        let all = (0..10_000).filter(|number| is_of_share(*number, 0.3)).count();
        assert!((2_999..=3_000).contains(&all), "{all}");
    }

    #[test]
    fn only_a_validation_event_with_a_code_is_answered_with_it() {
        let mut headers = HeaderMap::new();
        let event = br#"[{"data": {"validationCode": "7"}}]"#;
        assert_eq!(validation_code(&headers, event), None, "it may be a message");
        headers.insert("aeg-event-type", HeaderValue::from_static("SubscriptionValidation"));
        assert_eq!(validation_code(&headers, event).as_deref(), Some("7"));
        for other in [&b"[]"[..], b"{}", b"[{}]", b"no JSON", br#"[{"data": {}}]"#] {
            assert_eq!(validation_code(&headers, other), None);
        }
    }
}
