//! Content types of messages.

/// The content type, if it can be a header: printable ASCII, and not empty.
pub(crate) fn valid(text: &str) -> Option<&str> {
    let text = text.trim();
    let is_printable = text.bytes().all(|byte| (0x20..0x7F).contains(&byte));
    (is_printable && !text.is_empty()).then_some(text)
}

/// Does it say that the content is JSON in UTF-8? (`*/json`, `*/*+json`)
pub(crate) fn is_json(text: &str) -> bool {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let Some((_, kind)) = media.split_once('/') else { return false };
    let ends = |end: &str| {
        let start = kind.len().checked_sub(end.len());
        let tail = start.and_then(|start| kind.get(start..));
        tail.is_some_and(|tail| tail.eq_ignore_ascii_case(end))
    };
    (kind.eq_ignore_ascii_case("json") || ends("+json")) && parts.all(is_utf8)
}

/// Is it an event in JSON, in structured mode? A batch is not one.
pub(crate) fn is_structured_event(text: &str) -> bool {
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    media.eq_ignore_ascii_case("application/cloudevents+json") && parts.all(is_utf8)
}

/// Is it a format of events, known or not? Then attributes are in the payload.
pub(crate) fn is_of_events(text: &str) -> bool {
    let start = text.trim_start().get(..EVENTS.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(EVENTS))
}

const EVENTS: &str = "application/cloudevents";

/// Is it another parameter than a character set, or UTF-8?
fn is_utf8(parameter: &str) -> bool {
    match parameter.split_once('=') {
        Some((name, value)) if name.trim().eq_ignore_ascii_case("charset") => {
            let value = value.trim().trim_matches('"');
            value.eq_ignore_ascii_case("utf-8") || value.eq_ignore_ascii_case("utf8")
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognized() {
        for text in [
            "application/json",
            "application/json; charset=utf-8",
            "Application/JSON;Charset=\"UTF-8\"",
            "text/json",
            "application/senml+json",
            "application/cloudevents+json",
        ] {
            assert!(is_json(text), "{text}");
        }
        for text in [
            "",
            "json",
            "application/jsonl",
            "text/plain",
            "a/xjson",
            "a/+jso",
            "a/ü",
            "application/json; charset=utf-16",
            "application/x; q=json",
        ] {
            assert!(!is_json(text), "{text}");
        }
    }

    #[test]
    fn structured_events_are_recognized() {
        assert!(is_structured_event("application/cloudevents+json; charset=utf-8"));
        assert!(is_structured_event("Application/CloudEvents+JSON"));
        assert!(!is_structured_event("application/cloudevents-batch+json"));
        assert!(!is_structured_event("application/cloudevents+avro"));
        assert!(is_of_events("Application/CloudEvents+avro"));
        assert!(!is_of_events("application/json"));
    }

    #[test]
    fn content_types_that_cannot_be_headers_are_not_used() {
        assert_eq!(valid("text/plain"), Some("text/plain"));
        assert_eq!(valid(" text/plain "), Some("text/plain"));
        for text in ["", " ", "a/b\r\nx: y", "a/ü", "a/b\u{7f}"] {
            assert_eq!(valid(text), None, "{text:?}");
        }
    }
}
