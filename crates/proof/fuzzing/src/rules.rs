//! Rules: an input is a file of streams, targets and rules, a zero byte, and the payload of a
//! message. A file that is JSON is read as resources of Event Grid. Rules that are valid are asked
//! about the message.

use policy::{Attribute, Attributes};
use routing::{Definitions, Event, Form, Origin, Record, Rule, Verdict, definitions, event_grid};
use serde_json::Value;

pub fn rules(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == 0).unwrap_or(input.len());
    let payload = input.get(end + 1..).unwrap_or_default();
    let Ok(text) = std::str::from_utf8(&input[..end]) else { return };
    let rules = match text.starts_with(['{', '[']) && !text.starts_with("[[") {
        true => match event_grid::read(text) {
            Ok(imported) => imported.rules,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return;
            }
        },
        false => match definitions::parse(text) {
            Ok(found) => {
                check(&found);
                found.rules.into_iter().map(|spec| spec.rule).collect()
            }
            Err(problems) => {
                assert!(!problems.is_empty(), "a refusal has a reason: {text:?}");
                assert!(problems.iter().all(|problem| !problem.detail.is_empty()));
                return;
            }
        },
    };
    for record in &records(payload) {
        let event = Event::new(record);
        rules.iter().for_each(|rule| ask(rule, &event));
    }
}

/// Each name that is referred to is there.
fn check(found: &Definitions) {
    let _ = found.notes();
    for spec in &found.rules {
        assert!(found.stream(&spec.stream).is_some(), "{}", spec.stream);
        let letters = spec.dead_letter.as_deref();
        assert!(letters.is_none_or(|name| found.stream(name).is_some() && name != spec.stream));
        assert!(found.target_of(&spec.rule).is_some());
        assert!(spec.dispatch.lanes > 0 && !spec.dispatch.retry_after_ms.is_empty());
    }
}

fn ask(rule: &Rule, event: &Event<'_>) {
    let verdict = rule.verdict(event);
    let failed = rule.failed(event);
    match verdict {
        Verdict::Filter => {}
        Verdict::Condition(first) => assert_eq!(failed.first(), Some(&first)),
        Verdict::Matches => assert!(failed.is_empty()),
    }
    assert_eq!(verdict, rule.verdict(event), "an answer does not change");
    let output = rule.output(event);
    if rule.form() == Form::Structured {
        let body = output.body.unwrap_or_default();
        let read: Value = serde_json::from_slice(&body).expect("an event is JSON");
        assert_eq!(read["specversion"], "1.0");
        for enrichment in rule.enrichments().iter() {
            let value = enrichment.value(event.record());
            let own = &read[enrichment.key()];
            let shown = own.as_str().map_or_else(|| own.to_string(), str::to_owned);
            assert_eq!(shown, value.as_text(), "{}", enrichment.key());
        }
    }
    if let Some(target) = rule.target() {
        let _ = target.destination.key(event.record());
    }
    assert!(event.fault().is_none() || event.origin() == Origin::Wrapped);
}

/// The payload as messages that declare it in different ways.
fn records(payload: &[u8]) -> [Record<'_>; 4] {
    static ATTRIBUTES: std::sync::LazyLock<Attributes> = std::sync::LazyLock::new(|| {
        Attributes::new([("site".into(), Attribute::Text("berlin".into()))])
    });
    let plain = Record {
        id: "id-1",
        namespace: "default",
        time_ms: 1_795_953_600_007,
        client_id: "c7",
        username: Some("anna"),
        attributes: &ATTRIBUTES,
        topic: "plants/7/motor",
        qos: 1,
        retain: false,
        expiry_secs: Some(60),
        payload_format: 0,
        content_type: None,
        response_topic: None,
        correlation_data: Some(&[1, 2]),
        user_properties: &[("unit", "C"), ("unit", "F")],
        payload,
    };
    let text = Record { payload_format: 1, ..plain };
    let structured = Record { content_type: Some("application/cloudevents+json"), ..plain };
    let binary = Record {
        content_type: Some("application/json"),
        user_properties: &[("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t")],
        ..plain
    };
    [plain, text, structured, binary]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let files = [RULES, RESOURCES];
    let payloads = [
        r#"{"celsius": 81.5, "on": true, "list": ["a", 1, null], "none": null}"#,
        r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"celsius":81}}"#,
        r#"{"specversion":"1.0","id":"7","source":"/s","type":"t","data_base64":"AAE="}"#,
        "on",
    ];
    let both = files.iter().flat_map(|file| {
        payloads.iter().map(move |payload| format!("{file}\0{payload}").into_bytes())
    });
    both.collect()
}

const RULES: &str = r##"[[streams]]
name = "s"
filters = ["plants/#", "+"]
bytes_max = "10 GiB"
age_max_secs = "7d"
full = "reject"
[[streams]]
name = "d"
[[targets]]
name = "a"
type = "kafka"
servers = ["k:9092"]
tls = { ca = "ca.pem" }
sasl = { mechanism = "SCRAM-SHA-256", username = "u", password_file = "p" }
[[targets]]
name = "b"
type = "http"
url = "https://example.com/in"
headers = { x = "y", authorization = { file = "t" }, z = { path = "data.celsius" } }
networks = ["10.0.0.0/8"]
[[rules]]
name = "hot"
stream = "s"
filter = "plants/+/motor"
payload = "json"
conditions = [
  { key = "data.celsius", operator = "NumberInRange", values = [[80, 1e3]] },
  { key = "data.list", operator = "StringNotIn", values = ["b"] },
  { key = "data.on", operator = "BoolEquals", value = true },
  { key = "unit", operator = "StringContains", values = ["c,"] },
]
enrichments = { site = "${client.attributes.site}", unit = "${mqtt.message.userProperties['unit']}" }
target = "a"
topic = "t"
key = "x-${mqtt.message.correlationData}"
dead_letter = "d"
retry_secs = [1, 60]
[[rules]]
name = "all"
stream = "d"
filter = "#"
target = "b"
"##;

const RESOURCES: &str = r#"[{"name":"n","type":"Microsoft.EventGrid/namespaces","properties":{
"topicSpacesConfiguration":{"routeTopicResourceId":"/t/r","routingEnrichments":{"static":[{"key":"a",
"value":"b","valueType":"String"}],"dynamic":[{"key":"c","value":"${mqtt.message.pfi}"}]}}}},
{"id":"/t/r/eventSubscriptions/s","name":"s","properties":{"filtersConfiguration":{
"includedEventTypes":["MQTT.EventPublished"],"filters":[{"operatorType":"StringBeginsWith",
"key":"subject","values":["plants"]},{"operatorType":"NumberLessThan","key":"data.celsius",
"value":99}]},"deliveryConfiguration":{"push":{"destination":{"endpointType":"WebHook",
"properties":{"endpointUrl":"https://example.com"}}}}}}]"#;
