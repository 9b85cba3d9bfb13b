//! Whether an endpoint wants events: asked before it gets the first one.

use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response};
use serde_json::{Value, json};

use super::client::Client;

/// The answer to OPTIONS, as CloudEvents has it: the least time between two requests, if the
/// endpoint limits their rate.
///
/// # Errors
///
/// Why the endpoint does not consent.
pub(super) fn consent(answer: &Response<Bytes>, origin: &str) -> Result<Option<Duration>, String> {
    let status = answer.status();
    let allowed = text_of(answer.headers(), "webhook-allowed-origin");
    let is_allowed = allowed.is_some_and(|it| it == "*" || it.eq_ignore_ascii_case(origin));
    if !status.is_success() || !is_allowed {
        let allowed = allowed.unwrap_or("none");
        return Err(format!(
            "the endpoint does not consent: OPTIONS was answered {status} with \
             WebHook-Allowed-Origin: {allowed}, and must be answered 200 with {origin} or *"
        ));
    }
    let rate = text_of(answer.headers(), "webhook-allowed-rate");
    let rate = rate.filter(|it| *it != "*").and_then(|it| it.parse::<u32>().ok());
    Ok(rate.filter(|rate| *rate > 0).map(|rate| MINUTE / rate))
}

/// Sends the event with a code that the endpoint has to return.
pub(super) async fn ask_event_grid(
    client: &Client,
    request: Request<()>,
    code: &str,
) -> Result<(), String> {
    let event = json!([{
        "id": code,
        "topic": "",
        "subject": "",
        "data": { "validationCode": code },
        "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
        "metadataVersion": "1",
        "dataVersion": "1",
    }]);
    let (mut head, ()) = request.into_parts();
    head.method = Method::POST;
    head.headers.insert(CONTENT_TYPE, JSON);
    head.headers.insert("aeg-event-type", VALIDATION);
    let request = Request::from_parts(head, Full::new(event.to_string().into()));
    let answer = client.exchange(request).await.map_err(|error| error.to_string())?;
    let body: Option<Value> = serde_json::from_slice(answer.body()).ok();
    let returned = body.as_ref().and_then(|body| body.get("validationResponse")?.as_str());
    match answer.status().as_u16() == 200 && returned == Some(code) {
        true => Ok(()),
        false => Err(format!(
            "the endpoint does not consent: the validation event was answered {}, and must be \
             answered 200 with its code as `validationResponse`",
            answer.status()
        )),
    }
}

fn text_of<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

const MINUTE: Duration = Duration::from_secs(60);
const JSON: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("application/json; charset=utf-8");
const VALIDATION: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("SubscriptionValidation");

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&str, &str)]) -> Response<Bytes> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        answer.body(Bytes::new()).unwrap()
    }

    #[test]
    fn an_endpoint_consents_by_naming_the_origin_or_all() {
        let allowed = "webhook-allowed-origin";
        for (status, origin, is_consent) in [
            (200, "broker.example", true),
            (204, "*", true),
            (200, "Broker.Example", true),
            (200, "other.example", false),
            (405, "*", false),
        ] {
            let found = consent(&answer(status, &[(allowed, origin)]), "broker.example");
            assert_eq!(found.is_ok(), is_consent, "{status} {origin}");
        }
        let error = consent(&answer(200, &[]), "broker.example").unwrap_err();
        assert!(error.contains("WebHook-Allowed-Origin: none"), "{error}");
    }

    #[test]
    fn an_endpoint_may_limit_the_rate() {
        for (rate, expected) in
            [("120", Some(Duration::from_millis(500))), ("*", None), ("0", None), ("many", None)]
        {
            let headers = [("webhook-allowed-origin", "*"), ("webhook-allowed-rate", rate)];
            assert_eq!(consent(&answer(200, &headers), "a"), Ok(expected), "{rate}");
        }
    }
}
