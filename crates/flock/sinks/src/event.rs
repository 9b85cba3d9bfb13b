//! From what arrives to the payload that was published: CloudEvents in binary, structured and
//! batched form, or the payload as it is.

use std::borrow::Cow;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// One routed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The subject of a CloudEvent, which is the topic if no rule changes it.
    pub subject: Option<Cow<'a, str>>,
    pub payload: Cow<'a, [u8]>,
}

/// Why something that arrived has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    #[error("is not JSON, although its content type says so")]
    NoJson,
    #[error("is not a JSON array of events")]
    NoBatch,
    #[error("lacks `specversion` 1.0")]
    NoEvent,
    #[error("has `data_base64` that is not base64")]
    NoBase64,
}

/// A record of Kafka, or a request.
#[derive(Debug)]
pub(crate) struct Envelope<'a> {
    pub(crate) content_type: Option<&'a str>,
    /// The attributes are in headers.
    pub(crate) is_binary: bool,
    /// The attribute `subject`, of those in headers.
    pub(crate) subject: Option<Cow<'a, str>>,
    pub(crate) body: &'a [u8],
}

/// Calls `each` with each event in an envelope.
pub(crate) fn unwrap<'a>(
    envelope: Envelope<'a>,
    each: &mut dyn FnMut(Result<Event<'a>, EventError>),
) {
    let Envelope { content_type, is_binary, subject, body } = envelope;
    if is_binary {
        return each(Ok(Event { subject, payload: Cow::Borrowed(body) }));
    }
    let has_type = |prefix: &str| {
        let start = content_type.and_then(|given| given.trim_start().get(..prefix.len()));
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    // The type of a single event begins like that of a batch.
    if has_type(BATCH) {
        match serde_json::from_slice(body) {
            Ok(Value::Array(all)) => all.into_iter().for_each(|one| each(structured(one))),
            Ok(_) => each(Err(EventError::NoBatch)),
            Err(_) => each(Err(EventError::NoJson)),
        }
    } else if has_type(STRUCTURED) {
        each(serde_json::from_slice(body).map_err(|_| EventError::NoJson).and_then(structured));
    } else {
        undeclared(body, each);
    }
}

/// Without a content type of CloudEvents, a body is the payload. But not every receiver passes the
/// content type on, so a body that is an event as a whole counts as one.
fn undeclared<'a>(body: &'a [u8], each: &mut dyn FnMut(Result<Event<'a>, EventError>)) {
    let is_like = |first: &u8| matches!(first, b'{' | b'[');
    let parsed = body.first().filter(|first| is_like(first));
    match parsed.and_then(|_| serde_json::from_slice::<Value>(body).ok()) {
        Some(Value::Array(all)) if !all.is_empty() && all.iter().all(is_event) => {
            all.into_iter().for_each(|one| each(structured(one)));
        }
        Some(one) if is_event(&one) => each(structured(one)),
        _ => each(Ok(Event { subject: None, payload: Cow::Borrowed(body) })),
    }
}

fn is_event(value: &Value) -> bool {
    value.get("specversion").is_some_and(|version| version == "1.0")
}

fn structured(mut event: Value) -> Result<Event<'static>, EventError> {
    if !is_event(&event) {
        return Err(EventError::NoEvent);
    }
    let payload = match (event["data_base64"].take(), event["data"].take()) {
        (Value::String(text), _) => {
            BASE64_STANDARD.decode(text).map_err(|_| EventError::NoBase64)?
        }
        (Value::Null, Value::Null) => Vec::new(),
        (Value::Null, Value::String(text)) => text.into_bytes(),
        (Value::Null, data) => data.to_string().into_bytes(),
        _ => return Err(EventError::NoBase64),
    };
    let subject = match event["subject"].take() {
        Value::String(subject) => Some(Cow::Owned(subject)),
        _ => None,
    };
    Ok(Event { subject, payload: Cow::Owned(payload) })
}

const STRUCTURED: &str = "application/cloudevents";
const BATCH: &str = "application/cloudevents-batch";

#[cfg(test)]
mod tests {
    use super::*;

    /// Subject and payload.
    type Found = Result<(Option<String>, Vec<u8>), EventError>;

    const STAMP: &[u8] = b"\x00\xffpayload of sixteen";

    fn all(content_type: Option<&str>, binary_subject: Option<&str>, body: &[u8]) -> Vec<Found> {
        let mut found = Vec::new();
        let envelope = Envelope {
            content_type,
            is_binary: binary_subject.is_some(),
            subject: binary_subject.map(Into::into),
            body,
        };
        unwrap(envelope, &mut |event| {
            found.push(
                event.map(|event| (event.subject.map(Cow::into_owned), event.payload.into_owned())),
            );
        });
        found
    }

    fn event(subject: &str, payload: &[u8]) -> String {
        let data = BASE64_STANDARD.encode(payload);
        format!(
            r#"{{"specversion":"1.0","id":"1","source":"s","type":"MQTT.EventPublished",
                 "subject":"{subject}","data_base64":"{data}"}}"#
        )
    }

    fn one(subject: Option<&str>, payload: &[u8]) -> Vec<Found> {
        vec![Ok((subject.map(str::to_owned), payload.to_vec()))]
    }

    #[test]
    fn a_raw_payload_is_the_body_whatever_it_begins_with() {
        for body in [STAMP, b"", b"{no json", b"[1]", b"{\"celsius\": 3}", b"[]"] {
            assert_eq!(all(None, None, body), one(None, body), "{body:?}");
            assert_eq!(all(Some("application/json"), None, body), one(None, body));
        }
    }

    #[test]
    fn binary_mode_has_the_subject_in_a_header_and_the_payload_as_it_is() {
        let kind = Some("application/octet-stream");
        assert_eq!(all(kind, Some("d2d/7"), STAMP), one(Some("d2d/7"), STAMP));
        // Its data may be an event itself.
        let inner = event("x", STAMP);
        assert_eq!(all(kind, Some("a"), inner.as_bytes()), one(Some("a"), inner.as_bytes()));
    }

    #[test]
    fn structured_mode_is_known_by_its_content_type_or_its_form() {
        let body = event("d2d/7", STAMP);
        for kind in [
            Some("application/cloudevents+json; charset=utf-8"),
            Some("Application/CloudEvents+JSON"),
            Some("application/json"),
            None,
        ] {
            assert_eq!(all(kind, None, body.as_bytes()), one(Some("d2d/7"), STAMP), "{kind:?}");
        }
    }

    #[test]
    fn data_is_text_json_or_nothing() {
        let kind = Some("application/cloudevents+json");
        for (data, payload) in [
            (r#","data":"text""#, &b"text"[..]),
            (r#","data":{"a": 1}"#, br#"{"a":1}"#),
            (r#","data":null"#, b""),
            ("", b""),
        ] {
            let body = format!(r#"{{"specversion":"1.0"{data}}}"#);
            assert_eq!(all(kind, None, body.as_bytes()), one(None, payload), "{data}");
        }
    }

    #[test]
    fn a_batch_has_each_of_its_events_also_beside_a_bad_one() {
        let body = format!("[{}, {{}}, {}]", event("a", b"1"), event("b", b"2"));
        let found = all(Some("application/cloudevents-batch+json"), None, body.as_bytes());
        let good = |subject: &str, payload: &[u8]| Ok((Some(subject.to_owned()), payload.to_vec()));
        assert_eq!(found, [good("a", b"1"), Err(EventError::NoEvent), good("b", b"2")]);
        let two = format!("[{}, {}]", event("a", b"1"), event("b", b"2"));
        assert_eq!(all(None, None, two.as_bytes()), [good("a", b"1"), good("b", b"2")]);
    }

    #[test]
    fn what_is_no_event_says_why() {
        let structured = Some("application/cloudevents+json");
        let batch = Some("application/cloudevents-batch+json");
        for (kind, body, error) in [
            (structured, "{", EventError::NoJson),
            (structured, "{}", EventError::NoEvent),
            (structured, r#"{"specversion":"0.3"}"#, EventError::NoEvent),
            (structured, r#"{"specversion":"1.0","data_base64":"%"}"#, EventError::NoBase64),
            (structured, r#"{"specversion":"1.0","data_base64":7}"#, EventError::NoBase64),
            (structured, "7", EventError::NoEvent),
            (batch, "{}", EventError::NoBatch),
            (batch, "", EventError::NoJson),
        ] {
            assert_eq!(all(kind, None, body.as_bytes()), [Err(error)], "{body}");
        }
    }
}
