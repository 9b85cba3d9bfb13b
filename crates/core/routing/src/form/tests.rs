use serde_json::{Value, json};

use super::*;
use crate::enrich::Enrichment;
use crate::record::Record;
use crate::testing::{record, text_record};

fn enrichments() -> Enrichments {
    let all = [("site", "${client.attributes.site}"), ("floor", "${client.attributes.floor}")];
    let all = all.map(|(key, value)| Enrichment::parse(key, value).expect("it is allowed"));
    Enrichments::new(all.into()).expect("they differ")
}

fn rendered(record: &Record<'_>, form: Form, binding: Binding) -> Output {
    render(&Event::new(record), &enrichments(), PayloadReading::Declared, form, binding)
}

fn structured(record: &Record<'_>) -> Value {
    let output = rendered(record, Form::Structured, Binding::Http);
    assert_eq!(output.headers, [Header::new("content-type", STRUCTURED_TYPE)]);
    serde_json::from_slice(&output.body.expect("a body")).expect("JSON")
}

fn header<'o>(output: &'o Output, name: &str) -> Option<&'o str> {
    let mut found = output.headers.iter().filter(|header| header.name == name);
    let first = found.next().map(|header| &*header.value);
    assert_eq!(found.next(), None, "{name} is there twice");
    first
}

#[test]
fn a_wrapped_message_in_structured_form() {
    let expected = json!({
        "specversion": "1.0",
        "id": "id-1",
        "source": "factory",
        "type": "MQTT.EventPublished",
        "subject": "plants/7",
        "time": "2026-11-29T12:00:00.007Z",
        "datacontenttype": "application/json",
        "site": "berlin",
        "floor": 3,
        "data": {"n": 1},
    });
    assert_eq!(structured(&text_record("plants/7", r#"{"n": 1}"#)), expected);
    let text = structured(&text_record("plants/7", "on\"\n"));
    assert_eq!(
        (&text["data"], &text["datacontenttype"]),
        (&json!("on\"\n"), &json!("text/plain; charset=utf-8"),)
    );
    let binary = structured(&record("plants/7", b"\xFF\x00"));
    assert_eq!((&binary["data_base64"], &binary["data"]), (&json!("/wA="), &Value::Null));
}

#[test]
fn json_data_is_written_as_it_was_published() {
    let payload = " {\"b\": 1.10, \"a\": 123456789012345678901234567890, \"b2\": 1e3} ";
    let output = rendered(&text_record("t", payload), Form::Structured, Binding::Http);
    let body = String::from_utf8(output.body.expect("a body")).expect("text");
    assert!(body.ends_with(&format!("\"data\":{}}}", payload.trim())), "{body}");
    let output = rendered(&text_record("t", payload), Form::Binary, Binding::Http);
    assert_eq!(output.body.as_deref(), Some(payload.as_bytes()));
}

#[test]
fn a_wrapped_message_in_binary_form() {
    let record = Record { topic: "größe 7/%", ..text_record("", r#"{"n": 1}"#) };
    let http = rendered(&record, Form::Binary, Binding::Http);
    assert_eq!(header(&http, "ce-subject"), Some("gr%C3%B6%C3%9Fe%207/%25"));
    assert_eq!(header(&http, "ce-floor"), Some("3"));
    assert_eq!(header(&http, "content-type"), Some("application/json"));
    assert_eq!(header(&http, "ce-datacontenttype"), None);
    assert_eq!(http.body.as_deref(), Some(&br#"{"n": 1}"#[..]));
    let kafka = rendered(&record, Form::Binary, Binding::Kafka);
    assert_eq!(header(&kafka, "ce_subject"), Some("größe 7/%"));
    assert_eq!(header(&kafka, "ce_specversion"), Some("1.0"));
    assert_eq!(header(&kafka, "content-type"), Some("application/json"));
}

#[test]
fn headers_of_http_have_visible_ascii_only() {
    let properties =
        [("specversion", "1.0"), ("id", "a\r\nb: \"c\"\u{7f}"), ("source", "/s"), ("type", "t")];
    let record = Record { user_properties: &properties, ..record("t", b"") };
    let output = rendered(&record, Form::Binary, Binding::Http);
    assert_eq!(header(&output, "ce-id"), Some("a%0D%0Ab:%20%22c%22%7F"));
    let record = Record { content_type: Some("a/b\r\nx: y"), ..record };
    for form in [Form::Raw, Form::Binary] {
        let output = rendered(&record, form, Binding::Http);
        assert_eq!(header(&output, "content-type"), None);
    }
}

#[test]
fn an_event_in_binary_mode_stays_that_event() {
    let properties =
        [("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t"), ("site", "forged")];
    let record = Record {
        user_properties: &properties,
        content_type: Some("text/plain"),
        ..record("topic", b"21")
    };
    let expected = json!({
        "specversion": "1.0",
        "id": "7",
        "source": "/s",
        "type": "t",
        "datacontenttype": "text/plain",
        "site": "berlin",
        "floor": 3,
        "data_base64": "MjE=",
    });
    assert_eq!(structured(&record), expected);
    let output = rendered(&record, Form::Binary, Binding::Kafka);
    assert_eq!((header(&output, "ce_id"), header(&output, "ce_site")), (Some("7"), Some("berlin")));
    assert_eq!(output.body.as_deref(), Some(&b"21"[..]));
}

#[test]
fn an_event_in_structured_mode_stays_that_event() {
    let of = |payload: &'static str| Record {
        content_type: Some("application/cloudevents+json; charset=utf-8"),
        ..record("topic", payload.as_bytes())
    };
    let own = of(r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","site":"forged",
        "on":true,"none":null,"data":{"n":1.10}}"#);
    let expected: Value = serde_json::from_str(
        r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","on":true,
        "site":"berlin","floor":3,"data":{"n":1.10}}"#,
    )
    .expect("JSON");
    assert_eq!(structured(&own), expected);
    let output = rendered(&own, Form::Binary, Binding::Http);
    assert_eq!(header(&output, "ce-on"), Some("true"));
    assert_eq!(header(&output, "content-type"), Some("application/json"));
    assert_eq!(output.body.as_deref(), Some(&br#"{"n":1.10}"#[..]));
    for (members, body) in [
        (r#""datacontenttype":"text/plain","data":"on""#, Some(&b"on"[..])),
        (r#""datacontenttype":"application/json","data":"on""#, Some(b"\"on\"")),
        (r#""data":"on""#, Some(b"\"on\"")),
        (r#""data_base64":"/wA=""#, Some(b"\xFF\x00")),
        (r#""data":null"#, None),
    ] {
        let text =
            format!(r#"{{"specversion":"1.0","id":"7","source":"/s","type":"t",{members}}}"#);
        let record = Record { payload: text.as_bytes(), ..own };
        let output = rendered(&record, Form::Binary, Binding::Kafka);
        assert_eq!(output.body.as_deref(), body, "{members}");
    }
}

#[test]
fn raw_is_the_payload_with_its_content_type() {
    let plain = rendered(&record("t", b"\xFF"), Form::Raw, Binding::Http);
    assert_eq!(plain, Output { headers: vec![], body: Some(vec![0xFF]) });
    let typed = Record { content_type: Some("text/plain"), ..record("t", b"on") };
    let typed = rendered(&typed, Form::Raw, Binding::Kafka);
    assert_eq!(typed.headers, [Header::new("content-type", "text/plain")]);
}

#[test]
fn a_batch_is_a_list_of_events() {
    let output = rendered(&text_record("t", "{}"), Form::Batch, Binding::Http);
    assert_eq!(output.headers, [Header::new("content-type", BATCH_TYPE)]);
    let batch: Value = serde_json::from_slice(&output.body.expect("a body")).expect("JSON");
    assert_eq!(batch, json!([structured(&text_record("t", "{}"))]));
    assert_eq!(batch_of([]), b"[]");
    assert_eq!(batch_of([&b"{}"[..], b"[1]"]), b"[{},[1]]");
}

#[test]
fn each_form_has_its_word() {
    for (word, form) in Form::WORDS {
        assert_eq!(form.word(), word);
    }
}
