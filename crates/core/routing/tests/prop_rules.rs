//! For any input: nothing panics, what is sent can be read again, and conditions follow logic.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use policy::{Attribute, Attributes};
use proptest::prelude::*;
use routing::condition::Condition;
use routing::form::render;
use routing::{
    Binding, Enrichment, Enrichments, Event, Form, Given, Operator, Origin, PayloadReading,
    RawCondition, Record, Variable, definitions, event_grid,
};
use serde_json::Value;

/// A message with everything that clients choose.
#[derive(Clone, Debug)]
struct Message {
    topic: String,
    payload: Vec<u8>,
    payload_format: u8,
    content_type: Option<String>,
    user_properties: Vec<(String, String)>,
    correlation_data: Option<Vec<u8>>,
    expiry_secs: Option<u32>,
    time_ms: u64,
    site: String,
}

impl Message {
    fn with_event<T>(&self, ask: impl FnOnce(&Event<'_>) -> T) -> T {
        let pairs = self.user_properties.iter();
        let user_properties: Vec<_> = pairs.map(|(name, value)| (&**name, &**value)).collect();
        let site = Attribute::Text(self.site.as_str().into());
        let attributes = Attributes::new([("site".into(), site)]);
        let record = Record {
            id: "id",
            namespace: "default",
            time_ms: self.time_ms,
            client_id: "c",
            username: None,
            attributes: &attributes,
            topic: &self.topic,
            qos: 0,
            retain: false,
            expiry_secs: self.expiry_secs,
            payload_format: self.payload_format,
            content_type: self.content_type.as_deref(),
            response_topic: None,
            correlation_data: self.correlation_data.as_deref(),
            user_properties: &user_properties,
            payload: &self.payload,
        };
        ask(&Event::new(&record))
    }
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9_f64).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map("[a-c]", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn structured_event() -> impl Strategy<Value = Value> {
    (
        "[a-z]{1,4}",
        proptest::option::of(json()),
        "[A-Za-z]{0,9}",
        proptest::option::of(any::<bool>()),
    )
        .prop_map(|(id, data, extension, encoded)| {
            let mut event = serde_json::json!({
                "specversion": "1.0", "id": id, "source": "/s", "type": "t",
            });
            if let Some(data) = data {
                event["data"] = data;
            }
            if encoded == Some(true) {
                event["data_base64"] = STANDARD.encode(&extension).into();
            }
            event[&extension] = 7.into();
            event
        })
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        ".{0,40}".prop_map(String::into_bytes),
        json().prop_map(|value| value.to_string().into_bytes()),
        structured_event().prop_map(|value| value.to_string().into_bytes()),
    ]
}

fn content_type() -> impl Strategy<Value = Option<String>> {
    proptest::option::of(prop_oneof![
        Just("application/json".to_owned()),
        Just("application/cloudevents+json; charset=utf-8".to_owned()),
        Just("text/plain".to_owned()),
        ".{0,20}",
    ])
}

fn user_properties() -> impl Strategy<Value = Vec<(String, String)>> {
    let event = [("specversion", "1.0"), ("id", "7"), ("source", "/s"), ("type", "t")];
    let event = event.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let free = proptest::collection::vec((".{0,6}", ".{0,12}"), 0..4);
    (any::<bool>(), free).prop_map(move |(is_event, free)| {
        let own = if is_event { &event[..] } else { &[] };
        own.iter().cloned().chain(free).collect()
    })
}

fn message() -> impl Strategy<Value = Message> {
    let properties = (content_type(), user_properties(), proptest::option::of(any::<Vec<u8>>()));
    (".{1,20}", payload(), 0..=1_u8, properties, any::<Option<u32>>(), any::<u64>(), ".{0,9}")
        .prop_map(|(topic, payload, payload_format, properties, expiry_secs, time_ms, site)| {
            let (content_type, user_properties, correlation_data) = properties;
            Message {
                topic,
                payload,
                payload_format,
                content_type,
                user_properties,
                correlation_data,
                expiry_secs,
                time_ms,
                site,
            }
        })
}

fn enrichments() -> Enrichments {
    let all = [
        ("site", "${client.attributes.site}"),
        ("corr", "${mqtt.message.correlationData}"),
        ("fixed", "x\u{1}\"ü"),
    ];
    let all = all.map(|(key, value)| Enrichment::parse(key, value).expect("it is allowed"));
    Enrichments::new(all.into()).expect("they differ")
}

fn given() -> impl Strategy<Value = Given> {
    json().prop_map(|value| Given::from(&value))
}

/// A condition that is valid as often as not.
fn raw_condition() -> impl Strategy<Value = RawCondition> {
    let key = prop_oneof![
        "[a-d.]{0,6}",
        Just("data".into()),
        Just("data.a".into()),
        Just("site".into()),
        Just("subject".into())
    ];
    let texts = proptest::collection::vec(".{0,4}".prop_map(Given::Text), 1..4);
    let numbers = proptest::collection::vec(
        any::<i32>().prop_map(|number| Given::Number(number.to_string())),
        1..4,
    );
    let values = prop_oneof![
        texts.prop_map(Given::List),
        numbers.prop_map(Given::List),
        (-9..9_i64, 0..9_i64).prop_map(|(low, more)| {
            let ends = [low, low + more].map(|end| Given::Number(end.to_string()));
            Given::List(vec![Given::List(ends.into())])
        }),
        given(),
    ];
    let value = prop_oneof![any::<bool>().prop_map(Given::Bool), given()];
    let operand = prop_oneof![
        Just((None, None)),
        value.prop_map(|value| (Some(value), None)),
        values.prop_map(|values| (None, Some(values))),
    ];
    (key, proptest::sample::select(&Operator::ALL[..]), operand).prop_map(
        |(key, operator, (value, values))| RawCondition {
            key,
            operator: operator.name().into(),
            value,
            values,
        },
    )
}

/// The rule of one condition, whose verdict is its answer.
fn rule_of(raw: &RawCondition) -> Option<routing::Rule> {
    let enrichments = enrichments();
    let conditions = vec![Condition::new(raw, &enrichments).ok()?];
    let draft = routing::rule::Draft {
        name: "r".into(),
        is_enabled: true,
        filter: "#".into(),
        conditions,
        enrichments,
        ..routing::rule::Draft::default()
    };
    routing::Rule::new(draft).ok()
}

fn opposite(operator: Operator) -> Option<Operator> {
    let name = operator.name();
    let opposite = match name {
        "IsNullOrUndefined" => "IsNotNull".into(),
        "NumberLessThan" => "NumberGreaterThanOrEquals".into(),
        "NumberGreaterThan" => "NumberLessThanOrEquals".into(),
        _ => name.replacen("String", "StringNot", 1).replacen("NumberIn", "NumberNotIn", 1),
    };
    Operator::parse(&opposite).filter(|_| opposite != name)
}

fn header<'o>(output: &'o routing::Output, name: &str) -> Option<&'o str> {
    output.headers.iter().find(|header| header.name == name).map(|header| &*header.value)
}

proptest! {
    #[test]
    fn structured_events_can_be_read_again(message in message()) {
        message.with_event(|event| {
            let reading = PayloadReading::Declared;
            let output = render(event, &enrichments(), reading, Form::Structured, Binding::Http);
            let body = output.body.unwrap_or_default();
            let read: Value = serde_json::from_slice(&body).expect("it is JSON");
            let members = read.as_object().expect("it is an object");
            for required in ["specversion", "id", "source", "type"] {
                prop_assert!(members[required].as_str().is_some_and(|text| !text.is_empty()));
            }
            prop_assert_eq!(members["site"].as_str(), Some(&*message.site));
            prop_assert!(!(members.contains_key("data") && members.contains_key("data_base64")));
            prop_assert!(event.fault().is_none() || event.origin() == Origin::Wrapped);
            if event.origin() != Origin::Structured {
                let payload = match (members.get("data"), members.get("data_base64")) {
                    (None, Some(text)) => {
                        STANDARD.decode(text.as_str().unwrap_or_default()).expect("base64")
                    }
                    (Some(Value::String(text)), None) if text.as_bytes() == message.payload => {
                        message.payload.clone()
                    }
                    (data, _) => {
                        let own: Value = serde_json::from_slice(&message.payload).expect("JSON");
                        prop_assert_eq!(Some(&own), data);
                        message.payload.clone()
                    }
                };
                prop_assert_eq!(payload, message.payload.clone());
            }
            Ok(())
        })?;
    }

    #[test]
    fn headers_carry_each_attribute(message in message(), reads_json: bool) {
        message.with_event(|event| {
            let reading = if reads_json { PayloadReading::Json } else { PayloadReading::Declared };
            let http = render(event, &enrichments(), reading, Form::Binary, Binding::Http);
            let kafka = render(event, &enrichments(), reading, Form::Binary, Binding::Kafka);
            prop_assert_eq!(&http.body, &kafka.body);
            prop_assert_eq!(http.headers.len(), kafka.headers.len());
            for header in &http.headers {
                prop_assert!(header.value.bytes().all(|byte| (0x20..0x7F).contains(&byte)));
                let is_of_name =
                    |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
                prop_assert!(header.name.bytes().all(is_of_name), "{}", header.name);
                if let Some(name) = header.name.strip_prefix("ce-") {
                    let decoded = percent_encoding::percent_decode_str(&header.value);
                    let decoded = decoded.decode_utf8().expect("UTF-8");
                    let plain = self::header(&kafka, &format!("ce_{name}"));
                    prop_assert_eq!(plain, Some(&*decoded));
                }
            }
            prop_assert_eq!(header(&kafka, "ce_site"), Some(&*message.site));
            if event.origin() == Origin::Binary {
                prop_assert_eq!(header(&kafka, "ce_id"), Some("7"));
            }
            Ok(())
        })?;
    }

    #[test]
    fn conditions_follow_logic(message in message(), raw in raw_condition()) {
        let Some(rule) = rule_of(&raw) else { return Ok(()) };
        message.with_event(|event| {
            let holds = |rule: &routing::Rule| rule.failed(event).is_empty();
            let answer = holds(&rule);
            prop_assert_eq!(answer, holds(&rule), "twice the same");
            let operator = Operator::parse(&raw.operator).expect("it is known");
            if let Some(opposite) = opposite(operator) {
                let other = RawCondition { operator: opposite.name().into(), ..raw.clone() };
                let other = rule_of(&other).map(|other| holds(&other));
                let is_array = |text: &str| text.starts_with("Number") && raw.key.starts_with("data");
                if !is_array(&raw.operator) {
                    prop_assert!(!(answer && other == Some(true)), "{:?} and its opposite", raw);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_file_of_rules_panics(text in "(\\[\\[(rules|streams|targets)\\]\\]\n)?([a-z]{1,6}( = |\\.)[-a-z0-9\"\\[\\]{}=, ]{0,20}\n){0,6}") {
        if let Err(problems) = definitions::parse(&text) {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                prop_assert!(problem.line >= 1 && problem.line <= text.lines().count() + 1);
                prop_assert!(!problem.detail.is_empty());
            }
        }
    }

    #[test]
    fn no_resource_panics(value in json(), text in ".{0,40}") {
        let _ = event_grid::read(&text);
        for name in ["topicSpacesConfiguration", "filtersConfiguration", "deliveryConfiguration",
            "filter", "properties", "resources", "value"]
        {
            let mut resource = serde_json::json!({"name": "x", "destination": {}});
            resource[name] = value.clone();
            let _ = event_grid::read(&resource.to_string());
        }
    }

    #[test]
    fn quoted_names_are_read_as_they_were_written(name in ".{1,20}", rest in ".{0,5}") {
        let escaped = name.replace('\\', "\\\\").replace('\'', "\\'");
        let text = format!("${{mqtt.message.userProperties['{escaped}']}}{rest}");
        let (variable, after) = Variable::parse(&text).expect("it is quoted");
        prop_assert_eq!(variable, Variable::UserProperty(name.into()));
        prop_assert_eq!(after, rest);
    }

    #[test]
    fn no_variable_panics(text in "(\\$\\{)?(client|mqtt)?[.a-zA-Z'\\[\\]\\\\}]{0,40}") {
        let _ = Variable::parse(&text);
        let _ = routing::Template::parse(&text);
    }
}
